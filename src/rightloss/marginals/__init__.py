"""Marginals: table of log p(y|x,w) → log p(y|w), the mean prediction of the model over x.

Stage: `log_probs (n, k) → log_marginal (k,)`. The gradient is always that of the minibatch; the value q is estimated by one of
the marginals in this package.
"""

from .auxiliary import AuxiliaryMarginal as AuxiliaryMarginal
from .batch import BatchMarginal as BatchMarginal
from .batch import ClasswiseMarginal as ClasswiseMarginal
from .contract import Marginal as Marginal
from .contract import MarginalState as MarginalState
from .contract import Measure as Measure
from .contract import MinibatchEstimate as MinibatchEstimate
from .contract import cannot_be_read as cannot_be_read
from .contract import in_transform as in_transform
from .contract import with_minibatch_gradient as with_minibatch_gradient
from .multilabel import FindingMarginals as FindingMarginals
from .pool import PoolMarginal as PoolMarginal
from .pool import log_mean as log_mean
from .ranks import gather_ranks as gather_ranks
from .ranks import log_mean_over_ranks as log_mean_over_ranks
from .ranks import sharing_group as sharing_group
from .ranks import sum_over_ranks as sum_over_ranks
from .running import RunningMarginal as RunningMarginal
from .running import running_average as running_average
