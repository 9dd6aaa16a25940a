"""Settings for all tests."""

import os
from pathlib import Path

# The arrays here are small, and threads that wait for a busy core take longer than one thread: 3 times as long with boosting.
# Also for the processes that tests start; before torch and NumPy are imported, which read it once.
os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

from without_torch import HAS_TORCH, needs_torch

if HAS_TORCH:
    import torch

    torch.set_num_threads(1)
else:
    collect_ignore = [file.name for file in Path(__file__).parent.glob("test_*.py") if needs_torch(file.stem)]

# What tests draw is kept for the next run, in a place of their own.
os.environ["RIGHTLOSS_CACHE"] = str(Path(__file__).parent.parent / ".pytest_cache" / "rightloss")
