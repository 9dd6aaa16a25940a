"""Estimate the prevalence from predictions on unlabelled data, with confidence regions, and test for label shift.

Stage: `log_probs (n, k), ρ → PrevalenceEstimate → Prevalence`.
"""

from ..calibration import Calibration as Calibration
from ..calibration import fit_calibration as fit_calibration
from .estimate import PrevalenceEstimate as PrevalenceEstimate
from .estimate import estimate_prevalence as estimate_prevalence
from .joint_prevalence import JointPrevalenceEstimate as JointPrevalenceEstimate
from .joint_prevalence import joint_prevalence as joint_prevalence
from .label_shift import LabelShiftTest as LabelShiftTest
from .label_shift import LabelShiftWarning as LabelShiftWarning
from .label_shift import label_shift_test as label_shift_test
from .unlabelled_shift import UnlabelledShift as UnlabelledShift
from .unlabelled_shift import unlabelled_shift_test as unlabelled_shift_test
