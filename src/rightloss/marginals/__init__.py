"""Table of log p(y|x,w) → log p(y|w), what the model predicts before it sees x.

Stage: `log_probs (n, k) → log_marginal (k,)`. The gradient is always the minibatch's; the value, q, is supplied by one of
the marginals here.
"""

from .auxiliary import AuxiliaryMarginal as AuxiliaryMarginal
from .batch import BatchMarginal as BatchMarginal
from .batch import ClasswiseMarginal as ClasswiseMarginal
from .contract import Estimate as Estimate
from .contract import Marginal as Marginal
from .contract import attach as attach
from .contract import in_transform as in_transform
from .contract import unseen as unseen
from .pool import PoolMarginal as PoolMarginal
from .pool import mean_over_batches as mean_over_batches
from .ranks import gather_ranks as gather_ranks
from .ranks import log_mean_over_ranks as log_mean_over_ranks
from .ranks import sum_over_ranks as sum_over_ranks
from .ranks import world_size as world_size
from .running import RunningMarginal as RunningMarginal
