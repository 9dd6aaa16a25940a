"""The nets with their sizes settled: the paper's, and small ones for CPUs.

Stage: number of outputs or likelihood → net: views (n, s, h, w) → logits (n, num_outputs).

Full nets have m = 256 features. Small ones take every second low-level feature, so that the second convolution is a quarter
of the work and one halving is done, and have m = 64.
"""

from __future__ import annotations

from typing import Any

import torch

from .bodies import ConvBody, InceptionBody
from .fully_convolutional import FullyConvolutionalNet
from .gated import GatedBody, GatedNet
from .low_level import CHANNELS, LowLevelBlock
from .metadata import MetadataBlock, WithMetadata
from .multiview import MultiViewNet

Generator = torch.Generator | None
FULL, SMALL = (64, 128, 256, 256), (32, 64, 64)  # channels after each halving


def convnet(
    num_outputs: Any = 2,
    *,
    pool: Any = "max",
    small: bool = False,
    pretrained: bool = True,
    frozen: bool | None = None,
    dropout: Any = 0.1,
    generator: Generator = None,
) -> MultiViewNet:
    """The paper's ConvNet: convolutions of stride 2 on each view.

    Args:
        num_outputs: of the logits, or the likelihood that they are for.
        pool: of the features over views: "min", "max" or "mean".
        small: the variant for CPUs.
        pretrained: VGG16's weights in the low-level block; otherwise random ones.
        frozen: whether the low-level block stays as it is; by default if it is pretrained.
        dropout: share of the channels.
        generator: of the random weights; torch's own by default.
    """
    low_level = LowLevelBlock(pretrained, frozen, 2 if small else 1, generator)
    body = ConvBody(CHANNELS, SMALL if small else FULL, dropout, generator)
    return MultiViewNet(low_level, body, body.num_features, num_outputs, pool)


def inception_net(
    num_outputs: Any = 2,
    *,
    pool: Any = "max",
    small: bool = False,
    pretrained: bool = True,
    frozen: bool | None = None,
    dropout: Any = 0.1,
    generator: Generator = None,
) -> MultiViewNet:
    """The paper's InceptionNet: inception blocks of stride 2 on each view. Arguments as of `convnet`."""
    low_level = LowLevelBlock(pretrained, frozen, 2 if small else 1, generator)
    body = InceptionBody(CHANNELS, SMALL if small else FULL, dropout, generator)
    return MultiViewNet(low_level, body, body.num_features, num_outputs, pool)


def fully_convolutional_net(
    num_outputs: Any = 2,
    *,
    small: bool = False,
    pretrained: bool = True,
    frozen: bool | None = None,
    dropout: Any = 0.1,
    generator: Generator = None,
) -> FullyConvolutionalNet:
    """Class maps, averaged; for one view per nodule. Arguments as of `convnet`, without views to pool."""
    low_level = LowLevelBlock(pretrained, frozen, 2 if small else 1, generator)
    widths, strides = ((32, 64), (2, 1)) if small else ((64, 128, 256), (2, 2, 1))
    return FullyConvolutionalNet(low_level, widths, strides, num_outputs, dropout, generator)


def gated_net(
    num_outputs: Any = 2,
    *,
    pool: Any = "max",
    small: bool = False,
    pretrained: bool = True,
    frozen: bool | None = None,
    dropout: Any = 0.1,
    generator: Generator = None,
) -> GatedNet:
    """Features under a map that a recurrent unit refines in three steps. Arguments as of `convnet`."""
    low_level = LowLevelBlock(pretrained, frozen, 2 if small else 1, generator)
    body = GatedBody((64,) if small else (128, 256), 16 if small else 32, 3, dropout, generator)
    return GatedNet(low_level, body, num_outputs, pool)


def metadata_net(
    num_features: Any,
    num_outputs: Any = 2,
    *,
    units: Any = 16,
    pool: Any = "max",
    small: bool = False,
    pretrained: bool = True,
    frozen: bool | None = None,
    dropout: Any = 0.1,
    generator: Generator = None,
) -> WithMetadata:
    """`convnet` plus a `MetadataBlock`, called as `net(views, metadata)`; for another image net, `WithMetadata(…)`.

    The block takes columns of mean 0 and standard deviation 1. For raw ones, before training and on its rows alone:
    `net.metadata.standardise_by(training_metadata)`.

    Args:
        num_features: columns of the metadata.
        num_outputs: of the logits, or the likelihood that they are for.
        units: of the block.
        pool: this and the rest as of `convnet`.
    """
    block = MetadataBlock(num_features, num_outputs, units, bias=False, generator=generator)
    image = convnet(
        num_outputs, pool=pool, small=small, pretrained=pretrained, frozen=frozen, dropout=dropout, generator=generator
    )
    return WithMetadata(image, block)
