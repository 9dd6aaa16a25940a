"""Nets by name, with their likelihoods.

Stage: name, likelihood, number of feature columns, random stream → `Model`: low-level features, metadata → outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ...lidc.nets import (
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
    """

    def __init__(
        self, name: str, likelihood: Likelihood, num_features: int, small: bool, dropout: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.takes_image, self.takes_metadata = takes_image(name), name not in IMAGE_NETS
        self.net = _net(name, likelihood, num_features, small, dropout, generator)
        self.likelihood = likelihood

    @property
    def head(self) -> nn.Module:
        """The last layer."""
        head = self.net[-1] if isinstance(self.net, nn.Sequential) else self.net.head
        assert isinstance(head, nn.Module)
        return head

    def forward(self, features: Tensor | None, metadata: Tensor) -> Tensor:
        outputs: Tensor = self.net(*([features] * self.takes_image), *([metadata] * self.takes_metadata))
        return outputs


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
    return net


def _perceptron(inputs: int, outputs: int, dropout: float, generator: torch.Generator) -> nn.Module:
    first, last = nn.Linear(inputs, HIDDEN), nn.Linear(HIDDEN, outputs)
    for layer in (first, last):
        bound = layer.in_features**-0.5
        nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
        nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
    return nn.Sequential(first, nn.ReLU(), nn.Dropout(dropout), last)
