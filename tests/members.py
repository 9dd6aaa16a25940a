"""The tables of members that the property tests loop over, and the comparators they share.

A new member is one new row here, and gets every property.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from draws import SEED
from draws import assert_refused as assert_refused
from draws import unchecked_types as unchecked_types
from torch import Tensor, nn

from rightloss.likelihoods import Bernoulli, Categorical, CumulativeLogit, OnionPeeling, StickBreaking
from rightloss.marginals import AuxiliaryMarginal, BatchMarginal, ClasswiseMarginal, Marginal, PoolMarginal, RunningMarginal

ClassLikelihood = Categorical | Bernoulli | OnionPeeling | StickBreaking | CumulativeLogit
LEVELS = (2, 3, 4, 7)

# Likelihoods over classes: (name, factory, number of classes).
LIKELIHOODS: list[tuple[str, Callable[[], ClassLikelihood], int]] = [
    *((f"Categorical({k})", lambda k=k: Categorical(k), k) for k in (2, 5)),
    ("Bernoulli()", Bernoulli, 2),
    *((f"OnionPeeling({k})", lambda k=k: OnionPeeling(k), k) for k in LEVELS),
    *((f"StickBreaking({k})", lambda k=k: StickBreaking(k), k) for k in LEVELS),
    *((f"CumulativeLogit({k})", lambda k=k: CumulativeLogit(k), k) for k in LEVELS),
]

# One member of each class, with its largest number of classes.
KINDS = list({type(make()): (name, make, k) for name, make, k in LIKELIHOODS}.values())

# Marginals, each made of the model, whose weights it may read, and of a pool.
MARGINALS: dict[str, Callable[[nn.Module, list[Any]], Marginal]] = {
    "batch": lambda model, pool: BatchMarginal(),
    "classwise": lambda model, pool: ClasswiseMarginal(),
    "running": lambda model, pool: RunningMarginal(0.7),
    "pool": lambda model, pool: PoolMarginal(model, pool, every=2),
    "auxiliary": lambda model, pool: AuxiliaryMarginal(model),
}

# Each decorates a test with the arguments `make` (a factory) and `k` (its number of classes): for properties of the
# likelihoods themselves, and for properties of what uses them, which do not depend on the number of classes.
each_likelihood = pytest.mark.parametrize(("make", "k"), [pytest.param(make, k, id=name) for name, make, k in LIKELIHOODS])
each_kind = pytest.mark.parametrize(("make", "k"), [pytest.param(make, k, id=name) for name, make, k in KINDS])


def generator(seed: int = 0) -> torch.Generator:
    """Return a generator for `seed`; RIGHTLOSS_TEST_SEED moves all of them together."""
    return torch.Generator().manual_seed(1000 * SEED + seed)


def population(k: int, seed: int = 0) -> Tensor:
    """Return random class frequencies (k,), float64: uniform over all that sum to 1."""
    draws = torch.empty(k, dtype=torch.float64).exponential_(generator=generator(seed))
    return draws / draws.sum()


def random_outputs(likelihood: ClassLikelihood, n: int, scale: float = 2.0, seed: int = 0) -> Tensor:
    """Return random outputs `(n, num_outputs)`, float64."""
    assert likelihood.num_outputs is not None
    return scale * torch.randn(n, likelihood.num_outputs, dtype=torch.float64, generator=generator(seed))


def assert_mean_is(samples: Tensor, expected: Tensor | float, z: float = 4) -> None:
    """Assert that the mean of `samples` over dimension 0 is `expected` in every coordinate, within `z` standard errors.

    Samples without spread must agree to rounding.
    """
    samples = samples.double()
    expected = torch.as_tensor(expected, dtype=torch.float64).expand(samples.shape[1:])
    rounding = torch.finfo(torch.float64).eps * (1 + expected.abs())
    scores = (samples.mean(0) - expected) / (samples.std(0) / len(samples) ** 0.5 + rounding)
    assert bool((scores.abs() < z).all()), (
        f"z-scores {scores.tolist()}: mean {samples.mean(0).tolist()}, not {expected.tolist()}"
    )


def assert_same(
    found: Tensor, expected: Tensor, inputs: Tensor | tuple[Tensor, ...], rtol: float = 0, atol: float = 1e-12
) -> None:
    """Assert that the values, and the gradients by the inputs, agree."""
    torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)
    ours, theirs = (torch.autograd.grad(each.sum(), inputs, retain_graph=True) for each in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol)


def recorded(marginal: Any) -> list[Tensor]:
    """Make the marginal record log q of each update, and return the list of them."""
    seen: list[Tensor] = []
    update = marginal.update
    marginal.update = lambda estimate: seen.append(update(estimate)) or seen[-1]  # type: ignore[func-returns-value]
    return seen
