"""The net that is convolutional to the end.

Stage: views (n, s, h, w) → maps of logits (n, s, num_outputs, h', w') → logits (n, num_outputs).
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .bodies import conv_layers
from .checks import checked_outputs, checked_strides, checked_widths
from .low_level import CHANNELS
from .multiview import each_view
from .start import he_start, zero_start


class FullyConvolutionalNet(nn.Module):
    """A map of each class's logit over the view, and its mean.

    Meant for one view per nodule (s = 1), of any size; of several views the mean is over all their positions.
    The last convolution, of 1×1, is `head`, and starts at zero: see `zero_start`.

    Args:
        low_level: images (n, 1, h, w) → (n, 64, h', w'), a `LowLevelBlock`.
        widths: channels of the 3×3 convolutions.
        strides: of the same, one for each.
        num_outputs: of the head, or the likelihood that they are for.
        dropout: share of the channels.
        generator: of the random weights; torch's own by default.
    """

    def __init__(
        self,
        low_level: nn.Module,
        widths: Any,
        strides: Any,
        num_outputs: Any,
        dropout: Any = 0.1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        widths = checked_widths(widths)
        strides = checked_strides(strides, widths)
        self.low_level = low_level
        self.body = nn.Sequential(*conv_layers(CHANNELS, widths, strides, dropout))
        he_start(self.body, generator)
        self.head = nn.Conv2d(widths[-1], checked_outputs(num_outputs), 1)
        zero_start(self.head)

    def forward(self, views: Float[Tensor, "n s *chw"]) -> Float[Tensor, "n k"]:
        return self._maps(views).mean((1, 3, 4))

    def class_maps(self, views: Float[Tensor, "n s h w"]) -> Float[Tensor, "n s k h2 w2"]:
        """Where in each view the logits come from."""
        return self._maps(views).contiguous()

    def _maps(self, views: Tensor) -> Tensor:
        """With channels last in memory, as convolutions on a CPU leave them."""
        return each_view(views, self.low_level, self.body, self.head)
