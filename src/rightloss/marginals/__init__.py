"""Marginals: table of log p(y|x,w) → log p(y|w), the mean prediction of the model over x.

Stage: `log_probs (n, k) → log_marginal (k,)`. The gradient is always that of the minibatch; the value q is estimated by one of
the marginals in this package.
"""

from .auxiliary import AuxiliaryMarginal as AuxiliaryMarginal
from .contract import Marginal as Marginal
from .contract import MarginalState as MarginalState
from .contract import Measure as Measure
from .contract import MinibatchEstimate as MinibatchEstimate
from .contract import cannot_be_read as cannot_be_read
from .contract import gather_ranks as gather_ranks
from .contract import in_transform as in_transform
from .contract import log_mean_over_ranks as log_mean_over_ranks
from .contract import sharing_group as sharing_group
from .contract import sum_over_ranks as sum_over_ranks
from .contract import with_minibatch_gradient as with_minibatch_gradient
from .minibatch import BatchMarginal as BatchMarginal
from .minibatch import ClasswiseMarginal as ClasswiseMarginal
from .minibatch import FindingMarginals as FindingMarginals
from .minibatch import RunningMarginal as RunningMarginal
from .minibatch import running_average as running_average
from .pool import PoolMarginal as PoolMarginal
from .pool import log_mean as log_mean
