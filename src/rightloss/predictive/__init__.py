"""Predictions at the prevalence where they are used, whatever mix of classes the model was trained on.

Stage: `log_probs`, a trained model or a posterior → `log_probs` at any prevalence. The package itself can be called: it is
then the function `predictive` in it, so that `rightloss.predictive` is both.
"""

import sys
from types import ModuleType

from .layer import PrevalenceLayer as PrevalenceLayer
from .posterior_predictive import predictive as predictive
from .retarget import retarget as retarget
from .uncertain import PredictionInterval as PredictionInterval
from .uncertain import retarget_interval as retarget_interval
from .undo import undo_sampling as undo_sampling


class _Callable(ModuleType):
    __call__ = staticmethod(predictive)


sys.modules[__name__].__class__ = _Callable
