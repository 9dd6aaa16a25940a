"""Likelihoods: outputs of a network → table of log p(y|x,w), a row per example and a column per possible label.

Stage: `outputs (n, num_outputs) → log_probs (n, k)`.
"""

from .contract import Likelihood as Likelihood
from .intercept import match_prevalence as match_prevalence
from .intercept import start_at_prevalence as start_at_prevalence
from .ordinal import CumulativeLogit as CumulativeLogit
from .ordinal import OnionPeeling as OnionPeeling
from .ordinal import StickBreaking as StickBreaking
from .standard import Bernoulli as Bernoulli
from .standard import Categorical as Categorical
from .standard import Findings as Findings
from .standard import FromDistribution as FromDistribution
from .standard import Gaussian as Gaussian
