"""Networks for several views of one nodule: their parts, and ready-made ones, the paper's and small ones for CPUs.

Stage: views (n, s, h, w) → features of each (n, s, m) → pooled (n, m) → logits (n, num_outputs); with metadata, their sum with
the logits of the metadata.

Full ready-made networks have m = 256 features. Small ones use every second low-level feature, so that the second convolution
has a quarter of the cost and replaces one layer of stride 2, and have m = 64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ...arrays import checked_choice, checked_int
from ...likelihoods import Likelihood
from ...marginals import cannot_be_read
from .layers import (
    CHANNELS,
    ConvBody,
    GatedBody,
    InceptionBody,
    LowLevelBlock,
    MetadataBlock,
    checked_outputs,
    checked_widths,
    conv_layers,
    he_start,
)

FULL, SMALL = (64, 128, 256, 256), (32, 64, 64)  # channels after each layer of stride 2
Pooling = Literal["min", "max", "mean"]
POOLS: dict[Pooling, Callable[..., Tensor]] = {"min": torch.amin, "max": torch.amax, "mean": torch.mean}


class MultiViewNet(nn.Module):
    """Features of each view with shared weights; their minimum, maximum or mean over views; a linear layer.

    The linear layer, `head`, starts at zero: see `zero_start`.

    Args:
        low_level: images (n, 1, h, w) → (n, c, h', w'), a `LowLevelBlock`.
        body: (n, c, h', w') → (n, m): `ConvBody`, `InceptionBody`, `GatedBody`.
        num_features: m.
        num_outputs: of the head, or the likelihood they are for.
        pool: "min", "max" or "mean" over views, for each feature separately.

    Examples:
        >>> import torch
        >>> from rightloss.lidc.nets import ConvBody, LowLevelBlock, MultiViewNet
        >>> net = MultiViewNet(LowLevelBlock(), ConvBody(64, [32]), num_features=32, num_outputs=2)
        >>> net(torch.rand(5, 9, 32, 32)).shape
        torch.Size([5, 2])
    """

    def __init__(
        self, low_level: nn.Module, body: nn.Module, num_features: int, num_outputs: int | Likelihood, pool: Pooling = "max"
    ) -> None:
        super().__init__()
        self.pool = checked_choice(pool, "pool", POOLS)
        self.low_level, self.body = low_level, body
        self.head = nn.Linear(checked_int(num_features, "num_features", 1), checked_outputs(num_outputs))
        zero_start(self.head)

    def forward(self, views: Float[Tensor, "n s *chw"]) -> Float[Tensor, "n k"]:
        return self.head(self.features(views))

    def features(self, views: Float[Tensor, "n s *chw"]) -> Float[Tensor, "n m"]:
        """Return the features pooled over views, the head's input."""
        return pool_views(each_view(views, self.low_level, self.body), self.pool)

    def extra_repr(self) -> str:
        return f"pool={self.pool!r}"


class GatedNet(MultiViewNet):
    """`MultiViewNet` with a `GatedBody`, whose maps can be shown: `gates(views)`.

    Args:
        low_level: images (n, 1, h, w) → (n, 64, h', w'), a `LowLevelBlock`.
        body: a `GatedBody`.
        num_outputs: of the head, or the likelihood they are for.
        pool: "min", "max" or "mean" of the features over views.

    Examples:
        >>> import torch
        >>> from rightloss.lidc.nets import GatedBody, GatedNet, LowLevelBlock
        >>> net = GatedNet(LowLevelBlock(), GatedBody([32], hidden=8), num_outputs=2)
        >>> net(torch.rand(5, 9, 32, 32)).shape, net.gates(torch.rand(5, 9, 32, 32)).shape
        (torch.Size([5, 2]), torch.Size([5, 9, 32, 32]))
    """

    def __init__(self, low_level: nn.Module, body: GatedBody, num_outputs: int | Likelihood, pool: Pooling = "max") -> None:
        super().__init__(low_level, body, body.num_features, num_outputs, pool)

    body: GatedBody

    @torch.no_grad()
    def gates(self, views: Float[Tensor, "n s h w"]) -> Float[Tensor, "n s h w"]:
        """Return the last map of each view, enlarged to its size: 1 where positions count fully, 0 where they do not."""
        maps = each_view(views, self.low_level, self.body.encoder, self.body.gate)
        return F.interpolate(maps.flatten(1, 2), views.shape[2:], mode="bilinear")


class FullyConvolutionalNet(nn.Module):
    """A map of each class's logit over the view, and its mean.

    Meant for one view per nodule (s = 1), of any size; of several views the mean is over all their positions.
    The last convolution, of 1×1, is `head`, and starts at zero: see `zero_start`.

    Args:
        low_level: images (n, 1, h, w) → (n, 64, h', w'), a `LowLevelBlock`.
        widths: channels of the 3×3 convolutions.
        strides: of each of them.
        num_outputs: of the head, or the likelihood they are for.
        dropout: fraction of channels to drop.
        generator: for the random weights; torch's default generator if None.

    Examples:
        >>> import torch
        >>> from rightloss.lidc.nets import FullyConvolutionalNet, LowLevelBlock
        >>> net = FullyConvolutionalNet(LowLevelBlock(), widths=[32, 64], strides=[2, 1], num_outputs=2)
        >>> net(torch.rand(5, 1, 32, 32)).shape, net.class_maps(torch.rand(5, 1, 32, 32)).shape
        (torch.Size([5, 2]), torch.Size([5, 1, 2, 16, 16]))
    """

    def __init__(
        self,
        low_level: nn.Module,
        widths: Sequence[int],
        strides: Sequence[int],
        num_outputs: int | Likelihood,
        dropout: float = 0.1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        widths, strides = checked_widths(widths), checked_widths(strides, "strides")
        if len(strides) != len(widths):
            raise ValueError(
                f"Expected as many strides as widths, but got {len(strides)} for {len(widths)}: "
                "1 for layers that do not shrink maps."
            )
        self.low_level = low_level
        self.body = nn.Sequential(*conv_layers(CHANNELS, widths, strides, dropout))
        he_start(self.body, generator)
        self.head = nn.Conv2d(widths[-1], checked_outputs(num_outputs), 1)
        zero_start(self.head)

    def forward(self, views: Float[Tensor, "n s *chw"]) -> Float[Tensor, "n k"]:
        return self._maps(views).mean((1, 3, 4))

    def class_maps(self, views: Float[Tensor, "n s h w"]) -> Float[Tensor, "n s k h2 w2"]:
        """Return the logits of each class by position in each view."""
        return self._maps(views).contiguous()

    def _maps(self, views: Tensor) -> Tensor:
        """Return the maps with channels last in memory, as from convolutions on a CPU."""
        return each_view(views, self.low_level, self.body, self.head)


class WithMetadata(nn.Module):
    """Logits of the image plus logits of the metadata: `net(views, metadata)`.

    The bias of the sum is that of the image's `head`. If the block has a bias too, it is added to the head's and set to 0, in
    the modules given: the sum stays the same, and `start_at_prevalence(net.head, …)` sets all of it.

    Args:
        image: a net of this package: views → logits, its last layer `head`.
        metadata: the block, with as many outputs.

    Examples:
        >>> import torch
        >>> from rightloss.lidc.nets import MetadataBlock, WithMetadata, convnet
        >>> net = WithMetadata(convnet(2, small=True), MetadataBlock(4, 2))
        >>> net(torch.rand(5, 9, 32, 32), torch.randn(5, 4)).shape
        torch.Size([5, 2])
    """

    def __init__(self, image: nn.Module, metadata: MetadataBlock) -> None:
        super().__init__()
        bias = getattr(getattr(image, "head", None), "bias", None)
        came = len(bias) if isinstance(bias, Tensor) else "no such layer"
        if came != metadata.num_outputs:
            raise ValueError(
                f"Expected an image net whose `head` has {metadata.num_outputs} output(s), as the metadata's block has, "
                f"but got {came}: give both the same likelihood."
            )
        self.image, self.metadata = image, metadata
        if metadata.bias is not None:
            assert bias is not None
            with torch.no_grad():
                bias += metadata.bias
                metadata.bias.zero_()

    @property
    def head(self) -> nn.Linear | nn.Conv2d:
        """Return the image's last layer, whose bias is that of the whole net."""
        return cast(nn.Linear | nn.Conv2d, self.image.head)

    def forward(self, views: Float[Tensor, "n s *chw"], metadata: Float[Tensor, "n2 d"]) -> Float[Tensor, "n k"]:
        if views.shape[0] != metadata.shape[0]:  # not len, because it would fix both in an exported graph
            raise ValueError(
                f"Expected a row of metadata for each nodule, but got {metadata.shape[0]} rows for {views.shape[0]} nodules: "
                "take both from the same batch."
            )
        return self.image(views) + self.metadata(metadata)


def zero_start(head: nn.Linear | nn.Conv2d) -> None:
    """Set a last layer to zero: its bias is the logits for every x, so `start_at_prevalence` starts the network exactly at π.

    The last layer learns from the first step on, the layers before it from the second.
    """
    nn.init.zeros_(head.weight)
    if head.bias is not None:
        nn.init.zeros_(head.bias)


def each_view(views: Tensor, low_level: nn.Module, *stages: nn.Module) -> Float[Tensor, "n s ..."]:
    """Apply the stages in turn to every view as an image (n·s, 1, h, w).

    Networks with equal low-level blocks can share its result, `each_view(views, block)`: with nn.Identity as their own block
    they take (n, s, c, h, w).

    Examples:
        >>> import torch
        >>> from rightloss.lidc.nets import LowLevelBlock, each_view
        >>> each_view(torch.rand(5, 9, 32, 32), LowLevelBlock(stride=2)).shape
        torch.Size([5, 9, 64, 16, 16])
    """
    if isinstance(low_level, nn.Identity) and isinstance(views, Tensor) and views.ndim == 5:
        found = views.flatten(0, 1)
    else:
        _check_views(views)
        found = low_level(views.flatten(0, 1)[:, None])
    for stage in stages:
        found = stage(found)
    return found.unflatten(0, views.shape[:2])


def pool_views(features: Float[Tensor, "n s m"], pool: Pooling) -> Float[Tensor, "n m"]:
    """Return the "min", "max" or "mean" over views, elementwise.

    Examples:
        >>> import torch
        >>> from rightloss.lidc.nets import pool_views
        >>> pool_views(torch.tensor([[[1.0, 4.0], [3.0, 2.0]]]), "max")
        tensor([[3., 4.]])
    """
    return POOLS[pool](features, 1)


def convnet(
    num_outputs: int | Likelihood = 2,
    *,
    pool: Pooling = "max",
    small: bool = False,
    pretrained: bool = True,
    frozen: bool | None = None,
    dropout: float = 0.1,
    generator: torch.Generator | None = None,
    body: type[ConvBody] = ConvBody,
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
        body: features of a view, `ConvBody` or `InceptionBody`.

    Examples:
        >>> import torch
        >>> from rightloss.lidc.nets import convnet
        >>> convnet(2, small=True)(torch.rand(5, 9, 32, 32)).shape
        torch.Size([5, 2])
    """
    low_level = LowLevelBlock(pretrained, frozen, 2 if small else 1, generator)
    features = body(CHANNELS, SMALL if small else FULL, dropout, generator)
    return MultiViewNet(low_level, features, features.num_features, num_outputs, pool)


def inception_net(num_outputs: int | Likelihood = 2, **options: Any) -> MultiViewNet:
    """Return the paper's InceptionNet: inception blocks of stride 2 on each view. Options as in `convnet`.

    Examples:
        >>> import torch
        >>> from rightloss.lidc.nets import inception_net
        >>> inception_net(2, small=True)(torch.rand(5, 9, 32, 32)).shape
        torch.Size([5, 2])
    """
    return convnet(num_outputs, body=InceptionBody, **options)


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
    pool: Pooling = "max",
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


def _check_views(views: Tensor) -> None:
    """Check shape and dtype always, and values if the host need not wait for an accelerator.

    Values slightly outside [0, 1] are accepted, for augmented images.
    """
    if not isinstance(views, Tensor) or views.ndim != 4 or 0 in views.shape[1:] or not views.is_floating_point():
        came = f"{views.dtype} of shape {tuple(views.shape)}" if isinstance(views, Tensor) else type(views).__name__
        raise ValueError(
            f"Expected views, a tensor of floating-point numbers of shape (n, s, h, w), none of them 0, but got {came}: "
            "scale them to [0, 1]; for one view per nodule, images[:, None]."
        )
    if views.numel() and not cannot_be_read(views):
        low, high = (float(end) for end in views.detach().aminmax())
        if not (-1 <= low and high <= 2):
            raise ValueError(
                f"Expected views with numbers in [0, 1], but they range from {low:g} to {high:g}: "
                "pass HU through `window` first, divide grey levels up to 255 by 255, fill in NaN."
            )
