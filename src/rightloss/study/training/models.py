"""Nets by name, with their likelihoods.

Stage: name, likelihood, number of feature columns, random stream → `Model`: low-level features, metadata → outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ...lidc.nets import (
    ConvBody,
    MetadataBlock,
    convnet,
    fully_convolutional_net,
    gated_net,
    inception_net,
    metadata_net,
)
from ...likelihoods import Categorical, CumulativeLogit, Likelihood, OnionPeeling, StickBreaking
from ..config import IMAGE_NETS

LIKELIHOOD_OF: dict[str, Callable[[int], Likelihood]] = {
    "categorical": Categorical,
    "onion-peeling": OnionPeeling,
    "stick-breaking": StickBreaking,
    "cumulative-logit": CumulativeLogit,
}
IMAGE_NET_OF: dict[str, Callable[..., nn.Module]] = {
    "convnet": convnet,
    "inception": inception_net,
    "fully-convolutional": fully_convolutional_net,
    "gated": gated_net,
}
HIDDEN, DROPOUT = 32, 0.1


class Model(nn.Module):
    """A net and its likelihood; parameters of the likelihood are trained with the net.

    It is called with low-level features of views and metadata, and uses the ones its net needs.

    Args:
        name: of the net.
        likelihood: outputs → table.
        num_features: columns of the metadata.
        small: the variant for CPUs.
        dropout: share of the channels or units.
        generator: of the random weights.

    Attributes:
        first: the convolution that reads the features, if the net begins with a single one.
    """

    def __init__(
        self, name: str, likelihood: Likelihood, num_features: int, small: bool, dropout: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.takes_image, self.takes_metadata = takes_image(name), name not in IMAGE_NETS
        self.net = _net(name, likelihood, num_features, small, dropout, generator)
        self.likelihood = likelihood

    @property
    def first(self) -> FirstConvolution | None:
        return next((each for each in self.net.modules() if isinstance(each, FirstConvolution)), None)

    @property
    def head(self) -> nn.Module:
        """The last layer."""
        head = self.net[-1] if isinstance(self.net, nn.Sequential) else self.net.head
        assert isinstance(head, nn.Module)
        return head

    def forward(self, features: Tensor | None, metadata: Tensor) -> Tensor:
        outputs: Tensor = self.net(*([features] * self.takes_image), *([metadata] * self.takes_metadata))
        return outputs


class FirstConvolution(nn.Module):
    """A net's first convolution, which can be computed together with those of other nets: see `convolve_together`."""

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        self.convolution = convolution
        self.computed: Tensor | None = None

    def forward(self, features: Float[Tensor, "n c h w"]) -> Float[Tensor, "n d h2 w2"]:
        computed, self.computed = self.computed, None
        return self.convolution(features) if computed is None else computed


def convolve_together(layers: Sequence[FirstConvolution], features: Float[Tensor, "n c h w"]) -> bool:
    """Apply layers of the same shape to the same features in one call, which uses the processor better.

    Each layer returns its part of the result on its next call. Returns False, and leaves the layers unchanged, if this
    machine's results for layers together are not bitwise those of single layers.
    """
    form, count = layers[0].convolution, len(layers)
    sizes = (form.out_channels, *form.kernel_size), (form.stride, form.padding)
    order = _memory_order(features)
    if not _same_bits(*sizes, tuple(features.shape), order, count, torch.is_grad_enabled()):
        return False
    weights = [layer.convolution.weight for layer in layers]
    biases = [layer.convolution.bias for layer in layers]
    for layer, part in zip(layers, _parts(features, weights, biases, sizes[1]), strict=True):
        layer.computed = part
    return True


def _parts(features: Tensor, weights: Sequence[Tensor], biases: Sequence[Any], steps: Any) -> list[Tensor]:
    found = F.conv2d(features, torch.cat([*weights]), torch.cat([*biases]), *steps)
    order = _memory_order(found)
    return [part.contiguous(memory_format=order) for part in found.chunk(len(weights), 1)]


@lru_cache(maxsize=64)
def _same_bits(
    kernel: tuple[int, ...], steps: Any, shape: tuple[int, ...], order: torch.memory_format, count: int, trained: bool
) -> bool:
    """Test whether `count` convolutions, and their gradients in training, are bitwise the same together and alone."""
    random = torch.Generator().manual_seed(count)
    features = torch.rand(shape, generator=random).contiguous(memory_format=order)
    weights = [torch.randn(kernel[0], shape[1], *kernel[1:], generator=random, requires_grad=trained) for _ in range(count)]
    biases = [torch.randn(kernel[0], generator=random, requires_grad=trained) for _ in range(count)]
    together = _parts(features, weights, biases, steps)
    alone = [F.conv2d(features, *each, *steps) for each in zip(weights, biases, strict=True)]
    pairs = [*zip(together, alone, strict=True)]
    if trained:
        slopes = [torch.randn(alone[0].shape, generator=random).contiguous(memory_format=order) for _ in range(count)]
        gradients = [torch.autograd.grad(found, weights + biases, slopes) for found in (together, alone)]
        pairs += zip(*gradients, strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


def _memory_order(images: Tensor) -> torch.memory_format:
    last = images.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format


def takes_image(name: str) -> bool:
    """Return whether the net of this name reads images."""
    return name in (*IMAGE_NETS, "both")


def _net(name: str, likelihood: Likelihood, num_features: int, small: bool, dropout: float, generator: torch.Generator) -> Any:
    outputs = likelihood.num_outputs
    assert outputs is not None
    settings: dict[str, Any] = {"small": small, "dropout": dropout, "generator": generator}
    if name == "metadata":
        return MetadataBlock(num_features, outputs, generator=generator)
    if name == "mlp":
        return _perceptron(num_features, outputs, dropout, generator)
    if name != "fully-convolutional":
        settings["pool"] = "mean"  # steadier than the largest of three views
    net = metadata_net(num_features, outputs, **settings) if name == "both" else IMAGE_NET_OF[name](outputs, **settings)
    image: Any = net.image if name == "both" else net
    image.low_level = nn.Identity()  # it is the same in all nets, and computed once for all of them
    if isinstance(image.body, ConvBody) and isinstance(image.body.layers[0], nn.Conv2d):  # not an inception block
        image.body.layers[0] = FirstConvolution(image.body.layers[0])
    return net


def _perceptron(inputs: int, outputs: int, dropout: float, generator: torch.Generator) -> nn.Module:
    first, last = nn.Linear(inputs, HIDDEN), nn.Linear(HIDDEN, outputs)
    for layer in (first, last):
        bound = layer.in_features**-0.5
        nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
        nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
    return nn.Sequential(first, nn.ReLU(), nn.Dropout(dropout), last)
