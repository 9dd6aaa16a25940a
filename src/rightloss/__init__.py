"""Train on classes mixed in one proportion, use where they come in another.

The names most programs need; the rest live in the submodules.
"""

__version__ = "0.1.0"

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

if TYPE_CHECKING:  # which does not know that the subpackage can be called
    from .predictive import predictive as predictive
