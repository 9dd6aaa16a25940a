"""CT of LIDC-IDRI's nodules, from the archive's DICOM files.

Stage: folder of DICOM files → series → patches in HU → nodule archive.
"""

from .dicom_index import Found as Found
from .dicom_index import find_series as find_series
from .patches import Patch as Patch
from .patches import cut_patch as cut_patch
from .preparation import prepare as prepare
from .prepare_report import Prepared as Prepared
from .prepare_report import Remark as Remark
from .series import Series as Series
from .series import read_series as read_series
