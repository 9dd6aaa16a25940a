"""Single-view bodies: what looks at one view at a time.

Stage: low-level features (n, c, h, w) → features (n, m), m the last of the widths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from .checks import checked_count, checked_dropout, checked_widths
from .start import he_start


class ConvBody(nn.Module):
    """3×3 convolutions of stride 2, each with ReLU and dropout, then the mean over positions.

    A layer halves h and w, rounding up. Dropout is of whole channels of a view: neighbouring pixels are so alike that they
    would stand in for one another.

    Args:
        channels: c.
        widths: channels after each layer.
        dropout: share of the channels.
        generator: of the random weights; torch's own by default.
    """

    def __init__(self, channels: Any, widths: Any, dropout: Any = 0.1, generator: torch.Generator | None = None) -> None:
        super().__init__()
        widths = checked_widths(widths)
        self.layers = nn.Sequential(*conv_layers(channels, widths, [2] * len(widths), dropout))
        self.num_features = widths[-1]
        he_start(self, generator)

    def forward(self, features: Float[Tensor, "n c h w"]) -> Float[Tensor, "n m"]:
        return self.layers(features).mean((2, 3))


class InceptionBody(nn.Module):
    """`ConvBody` with inception blocks of stride 2 in the place of the convolutions.

    Args:
        channels: c.
        widths: channels after each block, multiples of 8.
        dropout: share of the channels.
        generator: of the random weights; torch's own by default.
    """

    def __init__(self, channels: Any, widths: Any, dropout: Any = 0.1, generator: torch.Generator | None = None) -> None:
        super().__init__()
        widths, dropout = checked_widths(widths), checked_dropout(dropout)
        layers: list[nn.Module] = []
        for before, after in zip([checked_count(channels, "channels"), *widths], widths, strict=False):
            layers += [InceptionBlock(before, after), nn.Dropout2d(dropout)]
        self.layers = nn.Sequential(*layers)
        self.num_features = widths[-1]
        he_start(self, generator)

    def forward(self, features: Float[Tensor, "n c h w"]) -> Float[Tensor, "n m"]:
        return self.layers(features).mean((2, 3))


class InceptionBlock(nn.Module):
    """Four ways to halve an image, side by side (Szegedy et al. 2015, the 5×5 as two 3×3 as in their second version).

    1×1; 1×1 then 3×3; 1×1 then 3×3 and 3×3; largest of 3×3 then 1×1: a quarter of the channels each, ReLU after every
    convolution. The 1×1 that come before a 3×3 have an eighth.
    """

    def __init__(self, channels: int, width: Any) -> None:
        super().__init__()
        width = checked_count(width, "width")
        if width % 8:
            raise ValueError(f"Expected the width of an inception block to be a multiple of 8, but got {width}: round it up.")
        quarter, eighth = width // 4, width // 8
        self.point = nn.Conv2d(channels, quarter, 1, stride=2)
        self.narrow = nn.Conv2d(channels, 2 * eighth, 1)  # of both the 3×3 and the 5×5, in one go
        self.three = nn.Conv2d(eighth, quarter, 3, stride=2, padding=1)
        self.five = nn.Sequential(
            nn.Conv2d(eighth, quarter, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(quarter, quarter, 3, stride=2, padding=1)
        )
        self.pooled = nn.Conv2d(channels, quarter, 1)

    def forward(self, features: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c2 h2 w2"]:
        narrow = F.relu(self.narrow(features))
        for_three, for_five = narrow.chunk(2, 1)
        largest = F.max_pool2d(features, 3, stride=2, padding=1)
        return F.relu_(torch.cat([self.point(features), self.three(for_three), self.five(for_five), self.pooled(largest)], 1))


def conv_layers(channels: Any, widths: Sequence[int], strides: Sequence[int], dropout: Any) -> list[nn.Module]:
    """3×3 convolutions, each with ReLU and dropout of channels."""
    dropout = checked_dropout(dropout)
    layers: list[nn.Module] = []
    for before, after, stride in zip([checked_count(channels, "channels"), *widths], widths, strides, strict=False):
        layers += [nn.Conv2d(before, after, 3, stride, padding=1), nn.ReLU(inplace=True), nn.Dropout2d(dropout)]
    return layers
