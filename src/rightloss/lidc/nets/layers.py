"""Convolution layers, initial weights and checks shared by all networks.

Stage: numbers of channels → layers with initial weights, or a ValueError.

No network here has batch normalisation, because the statistics of rebalanced minibatches would bring the sampled mix into the
features. He's initialisation keeps the scale of the features without it.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import nn

from ...likelihoods import Likelihood


def conv_layers(channels: int, widths: Sequence[int], strides: Sequence[int], dropout: float) -> list[nn.Module]:
    """Return 3×3 convolutions, each with ReLU and dropout of whole channels.

    Neighbouring pixels are strongly correlated, so dropout of single pixels would have no effect.
    """
    dropout = checked_dropout(dropout)
    layers: list[nn.Module] = []
    for before, after, stride in zip([checked_count(channels, "channels"), *widths], widths, strides, strict=False):
        layers += [nn.Conv2d(before, after, 3, stride, padding=1), nn.ReLU(inplace=True), nn.Dropout2d(dropout)]
    return layers


def he_start(module: nn.Module, generator: torch.Generator | None = None) -> None:
    """Draw the weights of every convolution in `module` from N(0, 2 / inputs per output) (He et al. 2015); set biases to 0."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, nonlinearity="relu", generator=generator)
            if part.bias is not None:
                nn.init.zeros_(part.bias)


def zero_start(head: nn.Linear | nn.Conv2d) -> None:
    """Set a last layer to zero: its bias is the logits for every x, so `start_at_prevalence` starts the network exactly at π.

    The last layer learns from the first step on, the layers before it from the second.
    """
    nn.init.zeros_(head.weight)
    if head.bias is not None:
        nn.init.zeros_(head.bias)


def checked_outputs(num_outputs: int | Likelihood) -> int:
    """Return a number of outputs, or that of a likelihood."""
    count = num_outputs.num_outputs if isinstance(num_outputs, Likelihood) else num_outputs
    if count is None:
        raise ValueError(
            f"Expected a likelihood with a number of outputs, but {type(num_outputs).__name__}() takes any: "
            "give the number of classes, as in Categorical(5), or pass a number."
        )
    return checked_count(count, "num_outputs")


def checked_count(count: int, name: str) -> int:
    """Return an integer of Python, NumPy or torch as an int ≥ 1; bools raise a ValueError."""
    is_bool = isinstance(count, bool) or getattr(count, "dtype", None) == torch.bool
    try:
        number = 0 if is_bool else operator.index(count)
    except TypeError:
        number = 0
    if number < 1:
        raise ValueError(f"Expected `{name}` to be a whole number ≥ 1, but got {count!r}: give an integer.")
    return number


def checked_widths(widths: object, name: str = "widths") -> list[int]:
    """Return a count for each layer, at least one."""
    if not isinstance(widths, Sequence) or isinstance(widths, str) or not widths:
        raise ValueError(f"Expected `{name}`, a number for each layer, but got {widths!r}: such as (64, 128).")
    return [checked_count(width, f"{name}[{layer}]") for layer, width in enumerate(widths)]


def checked_dropout(dropout: float) -> float:
    """Return a dropout rate in [0, 1)."""
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise ValueError(f"Expected `dropout` to be a share in [0, 1), but got {dropout!r}: 0 for none.")
    return float(dropout)
