"""Train on classes mixed in one proportion, use where they come in another.

The names most programs need; the rest are in the submodules, which load when they are first used: `inference` (posteriors),
`shift` (an unknown prevalence), `metrics` (evaluation at a prevalence), `check` (called as a function: what can be seen to be
wrong after training), `lidc` (the case study) and `study`.
"""

__version__ = "0.1.0"

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from .likelihoods import Bernoulli as Bernoulli
from .likelihoods import Categorical as Categorical
from .likelihoods import CumulativeLogit as CumulativeLogit
from .likelihoods import FromDistribution as FromDistribution
from .likelihoods import Gaussian as Gaussian
from .likelihoods import OnionPeeling as OnionPeeling
from .likelihoods import StickBreaking as StickBreaking
from .likelihoods import start_at_prevalence as start_at_prevalence
from .losses import InformationGainLoss as InformationGainLoss
from .losses import LogitAdjustedLoss as LogitAdjustedLoss
from .losses import LogLikelihoodLoss as LogLikelihoodLoss
from .losses import WeightedLoss as WeightedLoss
from .losses import information_gain_loss as information_gain_loss
from .losses import log_likelihood_loss as log_likelihood_loss
from .losses import logit_adjusted_loss as logit_adjusted_loss
from .losses import weighted_loss as weighted_loss
from .marginals import AuxiliaryMarginal as AuxiliaryMarginal
from .marginals import BatchMarginal as BatchMarginal
from .marginals import ClasswiseMarginal as ClasswiseMarginal
from .marginals import PoolMarginal as PoolMarginal
from .marginals import RunningMarginal as RunningMarginal
from .predictive import PrevalenceLayer as PrevalenceLayer
from .predictive import retarget as retarget
from .predictive import retarget_interval as retarget_interval
from .predictive import undo_sampling as undo_sampling
from .prevalence import ContinuousPrevalence as ContinuousPrevalence
from .prevalence import Prevalence as Prevalence
from .prevalence import PrevalenceWarning as PrevalenceWarning
from .sampling import RebalancedSampler as RebalancedSampler
from .sampling import StratifiedBatchSampler as StratifiedBatchSampler

if TYPE_CHECKING:
    from . import inference as inference
    from . import lidc as lidc
    from . import metrics as metrics
    from . import shift as shift
    from . import study as study
    from .check import check as check
    from .predictive import predictive as predictive  # the type checker does not know that the subpackage can be called

_SUBMODULES = ("check", "inference", "lidc", "metrics", "shift", "study")

__all__ = [
    "AuxiliaryMarginal",
    "BatchMarginal",
    "Bernoulli",
    "Categorical",
    "ClasswiseMarginal",
    "ContinuousPrevalence",
    "CumulativeLogit",
    "FromDistribution",
    "Gaussian",
    "InformationGainLoss",
    "LogLikelihoodLoss",
    "LogitAdjustedLoss",
    "OnionPeeling",
    "PoolMarginal",
    "Prevalence",
    "PrevalenceLayer",
    "PrevalenceWarning",
    "RebalancedSampler",
    "RunningMarginal",
    "StickBreaking",
    "StratifiedBatchSampler",
    "WeightedLoss",
    "__version__",
    "check",
    "inference",
    "information_gain_loss",
    "lidc",
    "log_likelihood_loss",
    "logit_adjusted_loss",
    "metrics",
    "predictive",
    "retarget",
    "retarget_interval",
    "shift",
    "start_at_prevalence",
    "study",
    "undo_sampling",
    "weighted_loss",
]


def __getattr__(name: str) -> ModuleType:
    """Load a submodule when it is first asked for."""
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
