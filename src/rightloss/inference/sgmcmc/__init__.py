"""Stochastic-gradient Markov chain Monte Carlo: Hamiltonian (`sghmc`) and Langevin (`sgld`) steps on minibatches.

Stage: target, data → `Posterior` over `Particles`.
"""

from .samplers import sghmc as sghmc
from .samplers import sgld as sgld
