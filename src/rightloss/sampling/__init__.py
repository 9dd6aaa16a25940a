"""Minibatches at chosen rates.

Stage: labels, `Prevalence` → dataset indices for a `DataLoader`, and the `Prevalence` they realise.
"""

from .rebalanced import RebalancedSampler as RebalancedSampler
from .stratified import StratifiedBatchSampler as StratifiedBatchSampler
