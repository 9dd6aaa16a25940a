"""Calibrate predictions: one model, q(k|x) ∝ exp(a_k log p(k|x) + b_k), fitted to labels or to a known mean.

Stage: held-out `log_probs (n, k)`, labels → `Calibration`, which maps `log_probs` to calibrated `log_probs`.
"""

from .fit_with_shrinkage import fit_calibration as fit_calibration
from .model import Calibration as Calibration
from .model import fit_mean as fit_mean
from .model import match_mean as match_mean
from .model import smooth_likelihoods as smooth_likelihoods
