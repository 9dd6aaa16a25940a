"""The net that looks where it chooses to: a map over the view, refined by a recurrent unit.

Stage: views (n, s, h, w) → maps in [0, 1] and features under them → pooled (n, m) → logits (n, num_outputs).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from .bodies import conv_layers
from .checks import checked_count, checked_outputs, checked_widths
from .low_level import CHANNELS
from .multiview import checked_pool, each_view, pool_views
from .start import he_start, zero_start


class GatedNet(nn.Module):
    """`MultiViewNet` with a `GatedBody`, whose maps can be looked at: `gates(views)`.

    Args:
        low_level: images (n, 1, h, w) → (n, 64, h', w'), a `LowLevelBlock`.
        body: a `GatedBody`.
        num_outputs: of the head, or the likelihood that they are for.
        pool: of the features over views: "min", "max" or "mean".
    """

    def __init__(self, low_level: nn.Module, body: GatedBody, num_outputs: Any, pool: Any = "max") -> None:
        super().__init__()
        self.pool = checked_pool(pool)
        self.low_level, self.body = low_level, body
        self.head = nn.Linear(body.num_features, checked_outputs(num_outputs))
        zero_start(self.head)

    def forward(self, views: Float[Tensor, "n s *chw"]) -> Float[Tensor, "n k"]:
        return self.head(pool_views(each_view(views, self.low_level, self.body), self.pool))

    @torch.no_grad()
    def gates(self, views: Float[Tensor, "n s h w"]) -> Float[Tensor, "n s h w"]:
        """The last map of each view, enlarged to its size: 1 where the net looks, 0 where it does not."""
        maps = each_view(views, self.low_level, self.body.encoder, self.body.gate)
        return F.interpolate(maps.flatten(1, 2), views.shape[2:], mode="bilinear")


class GatedBody(nn.Module):
    """Features under a map: mean over positions of a ⊙ f, f (n, m, h, w) of the view, a (n, 1, h, w) in [0, 1].

    The mean is over the whole view, so that the area of the map counts too.

    Args:
        widths: channels of the 3×3 convolutions of stride 2 that give f; m is the last.
        hidden: channels of the recurrent unit.
        steps: how often it refines the map.
        dropout: share of the channels.
        generator: of the random weights; torch's own by default.
    """

    def __init__(
        self,
        widths: Any,
        hidden: Any,
        steps: Any = 3,
        dropout: Any = 0.1,
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
    """A convolutional gated recurrent unit (Cho et al. 2014; Ballas et al. 2016) that looks at f through its own map.

    With ∗ a 3×3 convolution, ⊙ elementwise, h₀ = 0, a₀ = 1 and p a projection of f to the unit's channels:

        x_t = a_t ⊙ p,   z = σ(W_z ∗ [x_t, h_t] + b_z),   r = σ(W_r ∗ [x_t, h_t] + b_r),
        h_{t+1} = (1 − z) ⊙ h_t + z ⊙ tanh(W ∗ [x_t, r ⊙ h_t] + b),   a_{t+1} = σ(v · h_{t+1} + b_a).
    """

    def __init__(self, channels: int, hidden: Any, steps: Any) -> None:
        super().__init__()
        hidden = checked_count(hidden, "hidden")
        self.steps = checked_count(steps, "steps")
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
