"""Variational inference.

Stage: target, data → `Posterior` over a Gaussian.
"""

from .ascent import variational as variational
