"""Settings for all tests."""

import os
from pathlib import Path

import torch

# The tensors here are small, and two threads that wait for a busy core take longer than one.
torch.set_num_threads(1)

# What tests draw is kept for the next run, in a place of their own.
os.environ["RIGHTLOSS_CACHE"] = str(Path(__file__).parent.parent / ".pytest_cache" / "rightloss")
