"""Outputs of a network → table of log p(y|x,w), a row per example and a column per possible label.

Stage: `outputs (n, num_outputs) → log_probs (n, k)`.
"""

from .continuous import FromDistribution as FromDistribution
from .continuous import Gaussian as Gaussian
from .contract import Likelihood as Likelihood
from .nominal import Bernoulli as Bernoulli
from .nominal import Categorical as Categorical
from .ordinal import CumulativeLogit as CumulativeLogit
from .ordinal import OnionPeeling as OnionPeeling
from .ordinal import StickBreaking as StickBreaking
from .start import start_at_prevalence as start_at_prevalence
