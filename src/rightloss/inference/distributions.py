"""Distributions over the weights as a flat vector, the results of inference methods; and the error `Diverged`.

Stage: weights `{name: tensor}` ↔ vectors `(d,)` by a `Layout`; tensors → `Distribution`. Rows are drawn one by one, so that two
draws followed by three are the same as five.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor


@runtime_checkable
class Distribution(Protocol):
    """A distribution of weights as flat vectors (d,).

    Examples:
        >>> import torch
        >>> from rightloss.inference import DiagonalGaussian, Distribution
        >>> isinstance(DiagonalGaussian(torch.zeros(2), torch.ones(2)), Distribution)
        True
    """

    def sample(self, n: int, generator: torch.Generator | None = None) -> Float[Tensor, "n d"]:
        """Return n draws."""
        ...

    @property
    def mean(self) -> Float[Tensor, " d"]: ...

    @property
    def standard_deviation(self) -> Float[Tensor, " d"]: ...

    def covariance(self) -> Float[Tensor, "d d"]: ...

    def tensors(self) -> dict[str, Tensor]:
        """Return the constructor's arguments as tensors by name, for saving."""
        ...


class Diverged(ValueError):
    """Raised when a step is not finite; keeps the last finite state.

    Attributes:
        step: the step, counted from 0.
        posterior: the result of the method before that step; None if there was none.

    Examples:
        >>> from rightloss.inference import Diverged
        >>> Diverged("Expected a finite loss, but got nan: lower `lr`.", step=7, posterior=None).step
        7
    """

    def __init__(self, message: str, step: int, posterior: Any) -> None:  # a Posterior; its module imports this one
        super().__init__(message)
        self.step, self.posterior = step, posterior


def check_finite(value: Tensor, step: int, last_good: Callable[[], Any], what: str = "the log posterior") -> None:
    """Raise `Diverged`, with the posterior that `last_good` returns, if a number in `value` is not finite."""
    if bool(torch.isfinite(value).all()):
        return
    raise Diverged(
        f"Expected {what} to be finite, but step {step} gave {value.flatten()[:5].tolist()}: lower `lr`, look for NaN in "
        "the inputs, and check their scale and the prior; the last good result is this error's `.posterior`.",
        step,
        last_good(),
    )


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the weights, in the order of the flat vector."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, params: Mapping[str, Tensor]) -> Layout:
        """Return the layout of one set of weights."""
        return cls(tuple(params), tuple(tuple(value.shape) for value in params.values()))

    @property
    def sizes(self) -> list[int]:
        """The number of elements of each weight."""
        return [prod(shape) for shape in self.shapes]

    @property
    def size(self) -> int:
        """d, the total number of elements."""
        return sum(self.sizes)

    def flatten(self, params: Mapping[str, Tensor]) -> Float[Tensor, "*lead d"]:
        """Return the weights as vectors; leading dimensions are kept, names outside the layout are ignored."""
        parts = []
        for name, shape in zip(self.names, self.shapes, strict=True):
            lead = params[name].shape[: params[name].ndim - len(shape)]
            parts.append(params[name].reshape(*lead, prod(shape)))
        return torch.cat(parts, -1)

    def unflatten(self, vector: Float[Tensor, "*lead d"]) -> dict[str, Tensor]:
        """Return vectors as weights by name."""
        parts = vector.split(self.sizes, -1)
        return {
            name: part.reshape((*vector.shape[:-1], *shape))
            for name, shape, part in zip(self.names, self.shapes, parts, strict=True)
        }


@dataclass(frozen=True, eq=False)
class Particles:
    """Samples of the weights: one (MAP), an ensemble's members, or draws of Markov chains.

    Attributes:
        draws: `(s, d)`; those of chain c are rows c·s/chains to (c + 1)·s/chains.
        chains: the number of chains.

    Examples:
        >>> import torch
        >>> from rightloss.inference import Particles
        >>> Particles(torch.tensor([[1.0, 2.0], [3.0, 4.0]])).mean
        tensor([2., 3.])
    """

    draws: Float[Tensor, "s d"]
    chains: int = 1

    def __post_init__(self) -> None:
        _check_finite("draws", self.draws, 2)
        if self.chains < 1 or len(self.draws) == 0 or len(self.draws) % self.chains:
            raise ValueError(
                f"Expected as many draws from each of {self.chains} chain(s), but got {len(self.draws)} in all: "
                "drop the last ones of the longer chains."
            )

    def __len__(self) -> int:
        return len(self.draws)

    @property
    def by_chain(self) -> Float[Tensor, "chains s d"]:
        """The draws, chain by chain."""
        return self.draws.unflatten(0, (self.chains, -1))

    @property
    def mean(self) -> Float[Tensor, " d"]:
        """Mean of the draws."""
        return self.draws[0] if len(self) == 1 else self.draws.mean(0)

    @property
    def standard_deviation(self) -> Float[Tensor, " d"]:
        """Square root of the unbiased variance; 0 if there is only one draw."""
        return torch.zeros_like(self.draws[0]) if len(self) == 1 else self.draws.std(0)

    def covariance(self) -> Float[Tensor, "d d"]:
        """Return the unbiased covariance; 0 if there is only one draw."""
        away = self.draws - self.mean
        return away.T @ away / max(len(self) - 1, 1)

    def picks(self, n: int, generator: torch.Generator | None = None) -> Int[Tensor, " n"]:
        """Return the indices of the draws of `sample`: without replacement if there are enough, else with replacement."""
        device = _device_of(generator)
        if max(n, 2) <= len(self):  # randperm(1) would not advance the generator, and the next draws would repeat
            return torch.randperm(len(self), generator=generator, device=device)[:n]
        return torch.randint(len(self), (n,), generator=generator, device=device)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Float[Tensor, "n d"]:
        """Return n of the draws: see `picks`."""
        return self.draws[self.picks(n, generator).to(self.draws.device)]

    def tensors(self) -> dict[str, Tensor]:
        """Return the constructor's arguments."""
        return {"draws": self.draws, "chains": torch.tensor(self.chains)}


@dataclass(frozen=True, eq=False)
class DiagonalGaussian:
    """N(mean, diag(standard_deviation²)): independent weights.

    Examples:
        >>> import torch
        >>> from rightloss.inference import DiagonalGaussian
        >>> DiagonalGaussian(torch.zeros(2), torch.tensor([1.0, 2.0])).covariance()
        tensor([[1., 0.],
                [0., 4.]])
    """

    mean: Float[Tensor, " d"]
    standard_deviation: Float[Tensor, " d"]

    def __post_init__(self) -> None:
        _check_moments(self.mean, self.standard_deviation)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Float[Tensor, "n d"]:
        """Return n draws."""
        return self.mean + self.standard_deviation * _noise(n, len(self.mean), self.mean, generator)

    def covariance(self) -> Float[Tensor, "d d"]:
        """Return diag(standard_deviation²)."""
        return torch.diag(self.standard_deviation.square())

    def tensors(self) -> dict[str, Tensor]:
        """Return the constructor's arguments."""
        return {"mean": self.mean, "standard_deviation": self.standard_deviation}


@dataclass(frozen=True, eq=False)
class DenseGaussian:
    """N(mean, F Fᵀ) with any square factor F, such as a Cholesky factor.

    Examples:
        >>> import torch
        >>> from rightloss.inference import DenseGaussian
        >>> DenseGaussian(torch.zeros(2), torch.tensor([[3.0, 0.0], [4.0, 0.0]])).standard_deviation
        tensor([3., 4.])
    """

    mean: Float[Tensor, " d"]
    factor: Float[Tensor, "d d"]

    def __post_init__(self) -> None:
        _check_finite("mean", self.mean, 1)
        _check_finite("factor", self.factor, 2)
        _check_shape("factor", self.factor, (len(self.mean), len(self.mean)))

    @property
    def standard_deviation(self) -> Float[Tensor, " d"]:
        """Square root of the covariance's diagonal."""
        return torch.linalg.vector_norm(self.factor, dim=1)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Float[Tensor, "n d"]:
        """Return n draws."""
        return self.mean + _noise(n, len(self.mean), self.mean, generator) @ self.factor.T

    def covariance(self) -> Float[Tensor, "d d"]:
        """Return F Fᵀ."""
        return self.factor @ self.factor.T

    def tensors(self) -> dict[str, Tensor]:
        """Return the constructor's arguments."""
        return {"mean": self.mean, "factor": self.factor}


class LowRankGaussian:
    """N(mean, F Fᵀ + diag(s²)) with a factor F of few columns.

    Args:
        mean: `(d,)`.
        factor: F, `(d, r)`.
        standard_deviation: s `(d,)`, the independent part, stored as `own_deviation`; the property `standard_deviation` is that
            of both parts together.

    Examples:
        >>> import torch
        >>> from rightloss.inference import LowRankGaussian
        >>> LowRankGaussian(torch.zeros(2), torch.tensor([[3.0], [0.0]]), torch.tensor([4.0, 1.0])).standard_deviation
        tensor([5., 1.])
    """

    def __init__(
        self, mean: Float[Tensor, " d"], factor: Float[Tensor, "d r"], standard_deviation: Float[Tensor, " d"]
    ) -> None:
        _check_moments(mean, standard_deviation)
        _check_finite("factor", factor, 2)
        _check_shape("factor", factor, (len(mean), factor.shape[1]))
        self.mean, self.factor, self.own_deviation = mean, factor, standard_deviation

    @property
    def standard_deviation(self) -> Float[Tensor, " d"]:
        """Square root of the covariance's diagonal."""
        return (self.factor.square().sum(1) + self.own_deviation.square()).sqrt()

    def sample(self, n: int, generator: torch.Generator | None = None) -> Float[Tensor, "n d"]:
        """Return n draws."""
        size, rank = self.factor.shape
        own, common = _noise(n, size + rank, self.mean, generator).split([size, rank], 1)
        return self.mean + self.own_deviation * own + common @ self.factor.T

    def covariance(self) -> Float[Tensor, "d d"]:
        """Return F Fᵀ + diag(s²)."""
        return self.factor @ self.factor.T + torch.diag(self.own_deviation.square())

    def tensors(self) -> dict[str, Tensor]:
        """Return the constructor's arguments."""
        return {"mean": self.mean, "factor": self.factor, "standard_deviation": self.own_deviation}


SAVED: dict[str, Callable[..., Distribution]] = {
    each.__name__: each for each in (Particles, DiagonalGaussian, DenseGaussian, LowRankGaussian)
}  # the distributions that can be saved


def saved_distribution(name: str, tensors: Mapping[str, Tensor]) -> Distribution:
    """Return the distribution of that name, from the result of its `tensors()`."""
    if name not in SAVED:
        raise ValueError(f"Expected the tensors of one of {', '.join(SAVED)}, but got {name!r}: save the posterior again.")
    return SAVED[name](**{key: int(value) if key == "chains" else value for key, value in tensors.items()})


def _noise(n: int, size: int, like: Tensor, generator: torch.Generator | None) -> Float[Tensor, "n size"]:
    """Draw standard normal rows one by one, so that a row does not depend on the number of rows."""
    device = _device_of(generator)
    rows = [torch.randn(size, generator=generator, device=device, dtype=like.dtype) for _ in range(n)]
    return torch.stack(rows).to(like.device) if rows else like.new_empty(0, size)


def _device_of(generator: torch.Generator | None) -> torch.device:
    return torch.device("cpu") if generator is None else generator.device


def _check_moments(mean: Tensor, deviation: Tensor) -> None:
    _check_finite("mean", mean, 1)
    _check_finite("standard_deviation", deviation, 1)
    _check_shape("standard_deviation", deviation, tuple(mean.shape))
    if bool((deviation < 0).any()):
        raise ValueError("Expected standard deviations ≥ 0, but some are negative: were these logarithms?")


def _check_finite(name: str, value: Tensor, ndim: int) -> None:
    if value.ndim != ndim or not value.is_floating_point():
        raise ValueError(
            f"Expected `{name}` to be a float tensor of {ndim} dimension(s), but got {value.dtype} of shape "
            f"{tuple(value.shape)}: flatten the weights with a Layout."
        )
    if not bool(torch.isfinite(value).all()):
        raise ValueError(f"Expected `{name}` to be finite, but some of it is not: lower the learning rate.")


def _check_shape(name: str, value: Tensor, shape: tuple[int, ...]) -> None:
    if value.shape != shape:
        raise ValueError(f"Expected `{name}` of shape {shape}, but got {tuple(value.shape)}: it must fit the mean.")
