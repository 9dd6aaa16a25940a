"""Ready-made networks: the paper's, and small ones for CPUs.

Stage: number of outputs or likelihood → net: views (n, s, h, w) → logits (n, num_outputs).

Full networks have m = 256 features. Small ones use every second low-level feature, so that the second convolution has a quarter
of the cost and replaces one layer of stride 2, and have m = 64.
"""

from __future__ import annotations

from typing import Any

import torch

from ...likelihoods import Likelihood
from .bodies import ConvBody, GatedBody, InceptionBody
from .layers import CHANNELS, LowLevelBlock
from .metadata import MetadataBlock, WithMetadata
from .multiview import FullyConvolutionalNet, GatedNet, MultiViewNet, Pool

FULL, SMALL = (64, 128, 256, 256), (32, 64, 64)  # channels after each layer of stride 2


def convnet(
    num_outputs: int | Likelihood = 2,
    *,
    pool: Pool = "max",
    small: bool = False,
    pretrained: bool = True,
    frozen: bool | None = None,
    dropout: float = 0.1,
    generator: torch.Generator | None = None,
) -> MultiViewNet:
    """Return the paper's ConvNet: convolutions of stride 2 on each view.

    Args:
        num_outputs: number of logits, or the likelihood they are for.
        pool: "min", "max" or "mean" of the features over views.
        small: the variant for CPUs.
        pretrained: VGG16's weights in the low-level block; otherwise random ones.
        frozen: whether the low-level block stays fixed; by default if it is pretrained.
        dropout: fraction of channels to drop.
        generator: for the random weights; torch's default generator if None.

    Examples:
        >>> import torch
        >>> from rightloss.lidc.nets import convnet
        >>> convnet(2, small=True)(torch.rand(5, 9, 32, 32)).shape
        torch.Size([5, 2])
    """
    low_level = LowLevelBlock(pretrained, frozen, 2 if small else 1, generator)
    body = ConvBody(CHANNELS, SMALL if small else FULL, dropout, generator)
    return MultiViewNet(low_level, body, body.num_features, num_outputs, pool)


def inception_net(
    num_outputs: int | Likelihood = 2,
    *,
    pool: Pool = "max",
    small: bool = False,
    pretrained: bool = True,
    frozen: bool | None = None,
    dropout: float = 0.1,
    generator: torch.Generator | None = None,
) -> MultiViewNet:
    """Return the paper's InceptionNet: inception blocks of stride 2 on each view. Arguments as in `convnet`.

    Examples:
        >>> import torch
        >>> from rightloss.lidc.nets import inception_net
        >>> inception_net(2, small=True)(torch.rand(5, 9, 32, 32)).shape
        torch.Size([5, 2])
    """
    low_level = LowLevelBlock(pretrained, frozen, 2 if small else 1, generator)
    body = InceptionBody(CHANNELS, SMALL if small else FULL, dropout, generator)
    return MultiViewNet(low_level, body, body.num_features, num_outputs, pool)


def fully_convolutional_net(
    num_outputs: int | Likelihood = 2,
    *,
    small: bool = False,
    pretrained: bool = True,
    frozen: bool | None = None,
    dropout: float = 0.1,
    generator: torch.Generator | None = None,
) -> FullyConvolutionalNet:
    """Return a net that averages class maps, for one view per nodule. Arguments as in `convnet`, without `pool`.

    Examples:
        >>> import torch
        >>> from rightloss.lidc.nets import fully_convolutional_net
        >>> fully_convolutional_net(2, small=True)(torch.rand(5, 1, 32, 32)).shape
        torch.Size([5, 2])
    """
    low_level = LowLevelBlock(pretrained, frozen, 2 if small else 1, generator)
    widths, strides = ((32, 64), (2, 1)) if small else ((64, 128, 256), (2, 2, 1))
    return FullyConvolutionalNet(low_level, widths, strides, num_outputs, dropout, generator)


def gated_net(
    num_outputs: int | Likelihood = 2,
    *,
    pool: Pool = "max",
    small: bool = False,
    pretrained: bool = True,
    frozen: bool | None = None,
    dropout: float = 0.1,
    generator: torch.Generator | None = None,
) -> GatedNet:
    """Return a net whose features are weighted by a map, refined by a GRU in three steps. Arguments as in `convnet`.

    Examples:
        >>> import torch
        >>> from rightloss.lidc.nets import gated_net
        >>> gated_net(2, small=True)(torch.rand(5, 9, 32, 32)).shape
        torch.Size([5, 2])
    """
    low_level = LowLevelBlock(pretrained, frozen, 2 if small else 1, generator)
    body = GatedBody((64,) if small else (128, 256), 16 if small else 32, 3, dropout, generator)
    return GatedNet(low_level, body, num_outputs, pool)


def metadata_net(
    num_features: int,
    num_outputs: int | Likelihood = 2,
    *,
    units: int = 16,
    generator: torch.Generator | None = None,
    **options: Any,
) -> WithMetadata:
    """Return `convnet` plus a `MetadataBlock`, called as `net(views, metadata)`; for another image net, `WithMetadata(…)`.

    The block takes columns of mean 0 and standard deviation 1. For raw ones, before training and on its rows alone:
    `net.metadata.standardise_by(training_metadata)`.

    Args:
        num_features: columns of the metadata.
        num_outputs: number of logits, or the likelihood they are for.
        units: of the block.
        generator: for the random weights; torch's default generator if None.
        **options: as in `convnet`.

    Examples:
        >>> import torch
        >>> from rightloss.lidc.nets import metadata_net
        >>> metadata_net(4, 2, small=True)(torch.rand(5, 9, 32, 32), torch.randn(5, 4)).shape
        torch.Size([5, 2])
    """
    block = MetadataBlock(num_features, num_outputs, units, bias=False, generator=generator)
    return WithMetadata(convnet(num_outputs, generator=generator, **options), block)
