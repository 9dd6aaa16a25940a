"""Samplers: minibatches with chosen class frequencies.

Stage: labels, `Prevalence` → dataset indices for a `DataLoader`, and the `Prevalence` they realise.
"""

from .samplers import RebalancedSampler as RebalancedSampler
from .samplers import StratifiedBatchSampler as StratifiedBatchSampler
from .semi_supervised import SemiSupervisedBatchSampler as SemiSupervisedBatchSampler
from .semi_supervised import SemiSupervisedDataset as SemiSupervisedDataset
from .semi_supervised import split_unlabelled as split_unlabelled
