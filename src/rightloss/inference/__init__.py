"""Loss and prior → a posterior over weights: a file or a folder for each method.

Stage: `log_posterior(model, prevalence, …)` → `LogPosterior`; that and data → `Posterior`.

- `target`, `priors`; `marginals` for p(y|w) inside transforms and runs, `weight_sets` for many weights at once.
- `minibatches`, `steps`, `layout`: what all methods share.
- `maximum`, `members`, `dropout`, `curvature` (with `expansion` and `information`), `variation/`, `propagation/`, `markov/`,
  `no_u_turn`: the methods.
- `distributions`, `posterior`, with `nets`, `prediction` and `kept` (files): what they give.
"""

from .contract import Distribution as Distribution
from .contract import Diverged as Diverged
from .distributions import DenseGaussian as DenseGaussian
from .distributions import DiagonalGaussian as DiagonalGaussian
from .distributions import LowRankGaussian as LowRankGaussian
from .distributions import Particles as Particles
from .ensemble import ensemble as ensemble
from .ep import expectation_propagation as expectation_propagation
from .laplace import laplace as laplace
from .map import map_estimate as map_estimate
from .mc_dropout import mc_dropout as mc_dropout
from .nuts import nuts as nuts
from .posterior import Posterior as Posterior
from .prediction import Prediction as Prediction
from .priors import gaussian_prior as gaussian_prior
from .priors import horseshoe_prior as horseshoe_prior
from .priors import layer_prior as layer_prior
from .sgmcmc import effective_sample_size as effective_sample_size
from .sgmcmc import r_hat as r_hat
from .sgmcmc import sghmc as sghmc
from .sgmcmc import sgld as sgld
from .target import LogPosterior as LogPosterior
from .target import log_posterior as log_posterior
from .vi import variational as variational
