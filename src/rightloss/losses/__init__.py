"""Loss functions: the information gain, and the losses it is compared with.

Stage: `log_probs (n, k), log_marginal (k,), target → loss (n,)`.
"""

from .functional import information_gain_loss as information_gain_loss
from .functional import log_likelihood_loss as log_likelihood_loss
from .functional import logit_adjusted_loss as logit_adjusted_loss
from .functional import weighted_loss as weighted_loss
from .modules import InformationGainLoss as InformationGainLoss
from .modules import LogitAdjustedLoss as LogitAdjustedLoss
from .modules import LogLikelihoodLoss as LogLikelihoodLoss
from .modules import WeightedLoss as WeightedLoss
from .streams import PopulationRows as PopulationRows
