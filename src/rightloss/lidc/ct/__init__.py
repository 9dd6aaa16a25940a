"""CT of LIDC-IDRI's nodules, from the archive's DICOM files.

Stage: folder of DICOM files → series → patches in HU → nodule archive.
"""

from .finding import Found as Found
from .finding import find_series as find_series
from .patches import Patch as Patch
from .patches import cut_patch as cut_patch
from .preparation import prepare as prepare
from .prepared import Prepared as Prepared
from .prepared import Remark as Remark
from .series import Series as Series
from .series import read_series as read_series
