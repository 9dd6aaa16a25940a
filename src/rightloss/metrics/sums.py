"""Sums by place, for one sample or for many resamples of it at once."""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int64
from torch import Tensor


def add_by_place(
    sums: Float64[Tensor, "p b"],
    places: Int64[Tensor, " m"],
    values: Float64[Tensor, " m"] | None = None,
    weights: Float64[Tensor, "m _"] | None = None,
) -> Float64[Tensor, "p b"]:
    """`sums[places[i], :] += values[i] · weights[i, :]`, where what is None is 1."""
    if (weights is None or weights.shape[1] == 1) and len(sums) <= 4 * len(places):  # far faster for a single column
        single = None if weights is None else weights[:, 0]
        product = single if values is None else values if single is None else values * single
        return sums.add_(torch.bincount(places, weights=product, minlength=len(sums)).double()[:, None])
    if weights is None:
        weights = torch.ones(len(places), 1, dtype=sums.dtype)
    return sums.index_add_(0, places, weights if values is None else values[:, None] * weights)
