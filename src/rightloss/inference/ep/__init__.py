"""Expectation propagation, for models that are linear in their random weights.

Stage: target, data → `Posterior` over a `DenseGaussian`.
"""

from .sweeps import expectation_propagation as expectation_propagation
