"""Predictions at the prevalence where they are used, whatever mix of classes the model was trained on.

Stage: `log_probs`, or a trained model → `log_probs` at any prevalence.
"""

from .layer import PrevalenceLayer as PrevalenceLayer
from .retarget import retarget as retarget
from .uncertain import PredictionInterval as PredictionInterval
from .uncertain import retarget_interval as retarget_interval
from .undo import undo_sampling as undo_sampling
