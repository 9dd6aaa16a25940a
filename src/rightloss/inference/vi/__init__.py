"""Variational inference.

Stage: target, data → `Posterior` over a Gaussian.
"""

from .elbo import variational as variational
