"""Random numbers and comparators that tests without torch share."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

# Fixed by default, free on request (RIGHTLOSS_TEST_SEED=7 pytest): every seed must pass.
SEED = int(os.environ.get("RIGHTLOSS_TEST_SEED", "0"))


def stream(seed: int = 0) -> np.random.Generator:
    """Return a generator for `seed`; RIGHTLOSS_TEST_SEED moves all of them together."""
    return np.random.default_rng(1000 * SEED + seed)


def population(k: int, seed: int = 0) -> np.ndarray:
    """Return random class frequencies (k,): uniform over all that sum to 1."""
    return stream(seed).dirichlet(np.ones(k))


def assert_mean_is(samples: np.ndarray, expected: np.ndarray | float, z: float = 4) -> None:
    """Assert that the mean of `samples` over axis 0 is `expected` in every coordinate, within `z` standard errors.

    Samples without spread must agree to rounding.
    """
    samples = np.asarray(samples, np.float64)
    rounding = np.finfo(np.float64).eps * (1 + np.abs(expected))
    scores = (samples.mean(0) - expected) / (samples.std(0, ddof=1) / len(samples) ** 0.5 + rounding)
    assert (np.abs(scores) < z).all(), f"z-scores {scores}: mean {samples.mean(0)}, not {expected}"


@contextmanager
def unchecked_types() -> Iterator[None]:
    """Switch off the type checks that pytest switches on, as it is for users."""
    config = getattr(sys.modules.get("jaxtyping"), "config", None)
    if config is None:
        yield
        return
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        config.update("jaxtyping_disable", before)


def assert_refused(call: Callable[[], Any], words: str) -> None:
    """Assert that `call` raises a ValueError "Expected …, but …: remedy" that matches the regular expression `words`."""
    with unchecked_types(), pytest.raises(ValueError, match=words) as caught:
        call()
    message = str(caught.value)
    assert re.match(r"Expected .+ but .+: \S", message, re.DOTALL), f"no expectation, finding and remedy in: {message}"
