"""Chains that follow the posterior by stochastic-gradient Hamiltonian or Langevin steps, and whether they have converged.

Stage: target, data → `Posterior` over `Particles`.
"""

from .diagnostics import effective_sample_size as effective_sample_size
from .diagnostics import r_hat as r_hat
from .sghmc import sghmc as sghmc
from .sgld import sgld as sgld
