"""Chains that follow the posterior by stochastic-gradient Hamiltonian or Langevin steps, and whether they have converged.

Stage: target, data → `Posterior` over `Particles`.
"""

from .diagnostics import effective_sample_size as effective_sample_size
from .diagnostics import r_hat as r_hat
from .hamiltonian import sghmc as sghmc
from .langevin import sgld as sgld
