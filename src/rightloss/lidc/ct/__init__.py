"""CT of LIDC-IDRI's nodules, from the archive's DICOM files.

dicom_files    folder → the files of each series; one file → header and pixels in HU
series         the files of a series → a volume → patches
preparation    `prepare`: the patches of each series in a file; all of these files → a nodule archive
"""

from .dicom_files import Found as Found
from .dicom_files import find_series as find_series
from .preparation import Prepared as Prepared
from .preparation import Remark as Remark
from .preparation import prepare as prepare
from .series import Patch as Patch
from .series import Series as Series
from .series import cut_patch as cut_patch
from .series import read_series as read_series
