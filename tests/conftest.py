"""Settings for all tests."""

import torch

# The tensors here are small, and two threads that wait for a busy core take longer than one.
torch.set_num_threads(1)
