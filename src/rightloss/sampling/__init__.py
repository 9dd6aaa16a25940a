"""Minibatches at chosen rates.

Stage: labels, `Prevalence` → dataset indices for a `DataLoader`, and the `Prevalence` they realise.
"""

from .samplers import RebalancedSampler as RebalancedSampler
from .samplers import StratifiedBatchSampler as StratifiedBatchSampler
