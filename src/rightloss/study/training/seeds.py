"""Random streams by name, so that no run's depend on which others run beside it.

Stage: what a stream is for → its seed.
"""

from __future__ import annotations

from hashlib import sha256

import torch


def seed_of(*purpose: str | int) -> int:
    """The same for the same words and numbers, everywhere."""
    return int.from_bytes(sha256("|".join(map(str, purpose)).encode()).digest()[:7], "big")


def stream(*purpose: str | int) -> torch.Generator:
    return torch.Generator().manual_seed(seed_of(*purpose))
