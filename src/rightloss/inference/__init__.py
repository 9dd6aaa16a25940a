"""Bayesian inference: a posterior over weights from loss and prior, with a file or folder for each method.

Stage: `log_posterior(model, prevalence, …)` → `LogPosterior`; that and data → `Posterior`.

- The log posterior: `target`, `priors`, `exact_mix`; `weight_sets` for many weights at once.
- The methods: `map`, `ensemble`, `laplace` (with `fisher`), `vi` (with `local_noise`), `ep` (with `ep_sites`), `sgmcmc`,
  `nuts`.
- Shared by the methods: `minibatches`; for chains `diagnostics` (R̂, effective sample size).
- The choice of a prior by evidence: `prior_choice`.
- Results: `posterior`, with `distributions` and `prediction`.
"""

from .diagnostics import effective_sample_size as effective_sample_size
from .diagnostics import r_hat as r_hat
from .distributions import DenseGaussian as DenseGaussian
from .distributions import DiagonalGaussian as DiagonalGaussian
from .distributions import Distribution as Distribution
from .distributions import Diverged as Diverged
from .distributions import LowRankGaussian as LowRankGaussian
from .distributions import Particles as Particles
from .ensemble import ensemble as ensemble
from .ep import expectation_propagation as expectation_propagation
from .laplace import laplace as laplace
from .map import map_estimate as map_estimate
from .map import mc_dropout as mc_dropout
from .nuts import nuts as nuts
from .posterior import Posterior as Posterior
from .prediction import Prediction as Prediction
from .prior_choice import ChosenPrior as ChosenPrior
from .prior_choice import optimize_prior as optimize_prior
from .priors import gaussian_prior as gaussian_prior
from .priors import horseshoe_prior as horseshoe_prior
from .priors import layer_prior as layer_prior
from .sgmcmc import sghmc as sghmc
from .sgmcmc import sgld as sgld
from .target import LogPosterior as LogPosterior
from .target import log_posterior as log_posterior
from .vi import variational as variational
