"""CT of LIDC-IDRI's nodules, from the archive's DICOM files.

dicom_index    folder → the files of each series
slices         one DICOM file → header and pixels in HU
workers        processes that may crash without ending this one
series         the files of a series → a volume → patches
shards         the patches of one series in a file; all of these files → a nodule archive
preparation    `prepare`: all steps, for all series
"""

from .dicom_index import Found as Found
from .dicom_index import find_series as find_series
from .preparation import Prepared as Prepared
from .preparation import Remark as Remark
from .preparation import prepare as prepare
from .series import Patch as Patch
from .series import Series as Series
from .series import cut_patch as cut_patch
from .series import read_series as read_series
