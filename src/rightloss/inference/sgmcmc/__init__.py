"""Stochastic-gradient Markov chain Monte Carlo: Hamiltonian (`sghmc`) and Langevin (`sgld`) steps on minibatches.

Stage: target, data → `Posterior` over `Particles`.
"""

from .sghmc import sghmc as sghmc
from .sgld import sgld as sgld
