"""Weights by name ↔ weights as one flat vector.

Stage: `{name: tensor}` → (d,) and back; leading dimensions, as of draws or chains, stay in front.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the weights, in the order of the flat vector."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, params: Mapping[str, Tensor]) -> Layout:
        """That of one set of weights."""
        return cls(tuple(params), tuple(tuple(value.shape) for value in params.values()))

    @property
    def sizes(self) -> list[int]:
        """How many numbers each name stands for."""
        return [prod(shape) for shape in self.shapes]

    @property
    def size(self) -> int:
        """d."""
        return sum(self.sizes)

    def flatten(self, params: Mapping[str, Tensor]) -> Float[Tensor, "*lead d"]:
        """The weights as vectors; names that are not in the layout are left out."""
        parts = []
        for name, shape in zip(self.names, self.shapes, strict=True):
            lead = params[name].shape[: params[name].ndim - len(shape)]
            parts.append(params[name].reshape(*lead, prod(shape)))
        return torch.cat(parts, -1)

    def unflatten(self, vector: Float[Tensor, "*lead d"]) -> dict[str, Tensor]:
        """The weights by name."""
        parts = vector.split(self.sizes, -1)
        return {
            name: part.reshape((*vector.shape[:-1], *shape))
            for name, shape, part in zip(self.names, self.shapes, parts, strict=True)
        }

    def columns(self, names: tuple[str, ...]) -> slice:
        """Where `names`, which must follow one another, stand in the flat vector."""
        first = self.names.index(names[0])
        assert self.names[first : first + len(names)] == names
        start = sum(self.sizes[:first])
        return slice(start, start + sum(self.sizes[first : first + len(names)]))
