"""Train a classifier on one mix of classes, and use it where the classes have other frequencies.

This module has the names that most programs need. The submodules have the rest: `inference` (posteriors), `shift` (an unknown
prevalence), `metrics` (evaluation at a prevalence), `check` (called as a function: find mistakes after training), `sklearn`,
`boosting` and `tabular` (the same for other libraries and for tables), `lidc` (the case study) and `study`. Every name is
imported on first use, so that `import rightloss` and the command line start fast.
"""

__version__ = "0.2.0"

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import boosting as boosting
    from . import inference as inference
    from . import lidc as lidc
    from . import metrics as metrics
    from . import shift as shift
    from . import sklearn as sklearn
    from . import study as study
    from . import tabular as tabular
    from .check import check as check  # the type checker does not know that these two subpackages can be called
    from .layer import PrevalenceLayer as PrevalenceLayer
    from .likelihoods import Bernoulli as Bernoulli
    from .likelihoods import Categorical as Categorical
    from .likelihoods import CumulativeLogit as CumulativeLogit
    from .likelihoods import FromDistribution as FromDistribution
    from .likelihoods import Gaussian as Gaussian
    from .likelihoods import OnionPeeling as OnionPeeling
    from .likelihoods import StickBreaking as StickBreaking
    from .likelihoods import match_prevalence as match_prevalence
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
    from .predictive import retarget_interval as retarget_interval
    from .predictive import undo_sampling as undo_sampling
    from .predictive.retarget import retarget as retarget
    from .prevalence import ContinuousPrevalence as ContinuousPrevalence
    from .prevalence import Prevalence as Prevalence
    from .prevalence import PrevalenceWarning as PrevalenceWarning
    from .sampling import RebalancedSampler as RebalancedSampler
    from .sampling import SemiSupervisedBatchSampler as SemiSupervisedBatchSampler
    from .sampling import SemiSupervisedDataset as SemiSupervisedDataset
    from .sampling import StratifiedBatchSampler as StratifiedBatchSampler
    from .sampling import split_unlabelled as split_unlabelled

if TYPE_CHECKING:  # separate, so that mypy reads the name as the function, after it has read the subpackage
    from .predictive import predictive as predictive

_NAMES = {
    "likelihoods": "Bernoulli Categorical CumulativeLogit FromDistribution Gaussian OnionPeeling StickBreaking "
    "match_prevalence start_at_prevalence",
    "losses": "InformationGainLoss LogLikelihoodLoss LogitAdjustedLoss WeightedLoss information_gain_loss log_likelihood_loss "
    "logit_adjusted_loss weighted_loss",
    "marginals": "AuxiliaryMarginal BatchMarginal ClasswiseMarginal PoolMarginal RunningMarginal",
    "layer": "PrevalenceLayer",
    "predictive": "retarget retarget_interval undo_sampling",
    "prevalence": "ContinuousPrevalence Prevalence PrevalenceWarning",
    "sampling": "RebalancedSampler SemiSupervisedBatchSampler SemiSupervisedDataset StratifiedBatchSampler split_unlabelled",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}
_OF_EXTRAS = ("boosting", "sklearn", "tabular")  # not part of `from rightloss import *`, since they need their extras
_SUBMODULES = {*_NAMES, *_OF_EXTRAS, "check", "inference", "lidc", "metrics", "shift", "study"}

_HERE = ("__version__", "check", "inference", "lidc", "metrics", "predictive", "shift", "study")
__all__ = sorted([*_MODULE_OF, *_HERE])


def __getattr__(name: str) -> Any:
    """Import a name or a submodule on first use."""
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_OF_EXTRAS])
