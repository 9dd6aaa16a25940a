"""Runs of the grid → their predictions.

Stage: `Group` → `RunResult`s.

    hardware, seeds          where, how precisely, and from which random streams
    models                   nets by name
    batches                  minibatches and low-level features that a group's runs share
    candidates, loop         side by side, chosen on the validation part
    posteriors               for nets that read features alone
"""

from .hardware import Hardware as Hardware
from .loop import train_group as train_group
