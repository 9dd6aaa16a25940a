"""The table of nets that their tests loop over, views and metadata to give them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from members import generator
from torch import Tensor, nn

from rightloss.lidc.nets import (
    WithMetadata,
    convnet,
    fully_convolutional_net,
    gated_net,
    inception_net,
    metadata_net,
)

FEATURES = 5  # columns of the metadata
Make = Callable[..., nn.Module]
NETS: dict[str, Make] = {
    "convnet": convnet,
    "inception": inception_net,
    "fully convolutional": fully_convolutional_net,
    "gated": gated_net,
    "metadata": lambda num_outputs=2, **options: metadata_net(FEATURES, num_outputs, **options),
}
each_net = pytest.mark.parametrize("make", NETS.values(), ids=NETS.keys())


def images(n: int = 4, s: int = 3, size: tuple[int, int] = (32, 32), seed: int = 1) -> Tensor:
    return torch.rand(n, s, *size, generator=generator(seed))


def metadata(n: int = 4, seed: int = 2) -> Tensor:
    return torch.randn(n, FEATURES, generator=generator(seed))


def inputs(net: nn.Module, views: Tensor) -> tuple[Tensor, ...]:
    return (views, metadata(len(views))) if isinstance(net, WithMetadata) else (views,)


def logits(net: nn.Module, views: Tensor) -> Tensor:
    return net(*inputs(net, views))


def awake(net: Any) -> Any:
    """Without the last layers' zeros, which would hide what comes before them; in eval mode."""
    layers: list[Any] = [net.image.head, net.metadata.what] if isinstance(net, WithMetadata) else [net.head]
    for layer in layers:
        nn.init.normal_(layer.weight, generator=generator(3))
    return net.eval()
