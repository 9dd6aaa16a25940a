"""Where the nets' weights start.

Stage: layers → the same layers, with weights drawn or zero.

No net here has batch normalisation: minibatches are rebalanced, and their statistics would carry the sampled mix into the
features. He's start keeps the scale of the features without it.
"""

from __future__ import annotations

import torch
from torch import nn


def he_start(module: nn.Module, generator: torch.Generator | None = None) -> None:
    """Every convolution of `module`: weights ~ N(0, 2 / inputs per output) (He et al. 2015), biases 0."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, nonlinearity="relu", generator=generator)
            if part.bias is not None:
                nn.init.zeros_(part.bias)


def zero_start(head: nn.Linear | nn.Conv2d) -> None:
    """A last layer of zeros: the logits are its bias for every x, so that `start_at_prevalence` starts the net at π exactly.

    The layer itself learns from the first step on, those before it from the second.
    """
    nn.init.zeros_(head.weight)
    if head.bias is not None:
        nn.init.zeros_(head.bias)
