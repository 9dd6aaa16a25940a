"""Features of single views: ConvNet, InceptionNet, and a gated body that weights positions by a learned map.

Stage: low-level features (n, c, h, w) → features (n, m), m the last of the widths.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ...arrays import checked_int, checked_number
from .layers import CHANNELS, checked_widths, conv_layers, he_start


class ConvBody(nn.Module):
    """3×3 convolutions of stride 2, each with ReLU and dropout of channels, then the mean over positions.

    A layer halves h and w, rounding up.

    Args:
        channels: c.
        widths: channels after each layer.
        dropout: fraction of channels to drop.
        generator: for the random weights; torch's default generator if None.

    Examples:
        >>> import torch
        >>> from rightloss.lidc.nets import ConvBody
        >>> ConvBody(64, [32, 128])(torch.rand(5, 64, 32, 32)).shape
        torch.Size([5, 128])
    """

    def __init__(
        self, channels: int, widths: Sequence[int], dropout: float = 0.1, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        widths = checked_widths(widths)
        self.layers = nn.Sequential(*self._layers(channels, widths, dropout))
        self.num_features = widths[-1]
        he_start(self, generator)

    def forward(self, features: Float[Tensor, "n c h w"]) -> Float[Tensor, "n m"]:
        return self.layers(features).mean((2, 3))

    def _layers(self, channels: int, widths: list[int], dropout: float) -> list[nn.Module]:
        return conv_layers(channels, widths, [2] * len(widths), dropout)


class InceptionBody(ConvBody):
    """`ConvBody` with inception blocks of stride 2 instead of convolutions.

    Args:
        channels: c.
        widths: channels after each block, multiples of 8.
        dropout: fraction of channels to drop.
        generator: for the random weights; torch's default generator if None.

    Examples:
        >>> import torch
        >>> from rightloss.lidc.nets import InceptionBody
        >>> InceptionBody(64, [32, 128])(torch.rand(5, 64, 32, 32)).shape
        torch.Size([5, 128])
    """

    def _layers(self, channels: int, widths: list[int], dropout: float) -> list[nn.Module]:
        share, before = checked_number(dropout, "dropout", 0, 0.99, "0 for none"), checked_int(channels, "channels", 1)
        layers: list[nn.Module] = []
        for first, after in zip([before, *widths], widths, strict=False):
            layers += [InceptionBlock(first, after), nn.Dropout2d(share)]
        return layers


class InceptionBlock(nn.Module):
    """Four branches of stride 2 side by side (Szegedy et al. 2015, the 5×5 as two 3×3 as in their second version).

    1×1; 1×1 then 3×3; 1×1 then 3×3 and 3×3; 3×3 max-pooling then 1×1: a quarter of the channels each, ReLU after every
    convolution. The 1×1 before a 3×3 have an eighth.

    Args:
        channels: c of the input.
        width: channels of the output, a multiple of 8.

    Examples:
        >>> import torch
        >>> from rightloss.lidc.nets import InceptionBlock
        >>> InceptionBlock(64, 32)(torch.rand(5, 64, 32, 32)).shape
        torch.Size([5, 32, 16, 16])
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        width = checked_int(width, "width", 1)
        if width % 8:
            raise ValueError(f"Expected the width of an inception block to be a multiple of 8, but got {width}: round it up.")
        quarter, eighth = width // 4, width // 8
        self.point = nn.Conv2d(channels, quarter, 1, stride=2)
        self.narrow = nn.Conv2d(channels, 2 * eighth, 1)  # for both the 3×3 and the 5×5
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


class GatedBody(nn.Module):
    """Features under a map: mean over positions of a ⊙ f, f (n, m, h, w) of the view, a (n, 1, h, w) in [0, 1].

    The mean is over the whole view, so that the area of the map counts too.

    Args:
        widths: channels of the 3×3 convolutions of stride 2 that give f; m is the last.
        hidden: channels of the recurrent unit.
        steps: number of refinements of the map.
        dropout: fraction of channels to drop.
        generator: for the random weights; torch's default generator if None.

    Examples:
        >>> import torch
        >>> from rightloss.lidc.nets import GatedBody
        >>> GatedBody([32, 128], hidden=16)(torch.rand(5, 64, 32, 32)).shape
        torch.Size([5, 128])
    """

    def __init__(
        self,
        widths: Sequence[int],
        hidden: int,
        steps: int = 3,
        dropout: float = 0.1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        widths = checked_widths(widths)
        self.encoder = nn.Sequential(*conv_layers(CHANNELS, widths, [2] * len(widths), dropout))
        self.gate = RecurrentGate(widths[-1], hidden, steps)
        self.num_features = widths[-1]
        he_start(self, generator)

    def forward(self, features: Float[Tensor, "n c h w"]) -> Float[Tensor, "n m"]:
        encoded = self.encoder(features)
        return (encoded * self.gate(encoded)).mean((2, 3))


class RecurrentGate(nn.Module):
    """A convolutional gated recurrent unit (Cho et al. 2014; Ballas et al. 2016) that sees f through its own map.

    With ∗ a 3×3 convolution, ⊙ elementwise, h₀ = 0, a₀ = 1 and p a projection of f to the unit's channels:

        x_t = a_t ⊙ p,   z = σ(W_z ∗ [x_t, h_t] + b_z),   r = σ(W_r ∗ [x_t, h_t] + b_r),
        h_{t+1} = (1 − z) ⊙ h_t + z ⊙ tanh(W ∗ [x_t, r ⊙ h_t] + b),   a_{t+1} = σ(v · h_{t+1} + b_a).

    Args:
        channels: of f.
        hidden: channels of h.
        steps: number of refinements of the map.

    Examples:
        >>> import torch
        >>> from rightloss.lidc.nets import RecurrentGate
        >>> RecurrentGate(channels=8, hidden=4, steps=3)(torch.rand(5, 8, 16, 16)).shape
        torch.Size([5, 1, 16, 16])
    """

    def __init__(self, channels: int, hidden: int, steps: int) -> None:
        super().__init__()
        hidden = checked_int(hidden, "hidden", 1)
        self.steps = checked_int(steps, "steps", 1)
        self.projection = nn.Conv2d(channels, hidden, 1)
        self.rates = nn.Conv2d(2 * hidden, 2 * hidden, 3, padding=1)  # z and r
        self.proposal = nn.Conv2d(2 * hidden, hidden, 3, padding=1)
        self.map = nn.Conv2d(hidden, 1, 1)

    def forward(self, features: Float[Tensor, "n m h w"]) -> Float[Tensor, "n 1 h w"]:
        seen = whole = self.projection(features)
        state = torch.zeros_like(whole)
        for _ in range(self.steps):
            state = self._next(seen, state)
            gate = torch.sigmoid(self.map(state))
            seen = gate * whole
        return gate

    def _next(self, seen: Tensor, state: Tensor) -> Tensor:
        update, reset = torch.sigmoid(self.rates(torch.cat([seen, state], 1))).chunk(2, 1)
        proposal = torch.tanh(self.proposal(torch.cat([seen, reset * state], 1)))
        return state + update * (proposal - state)
