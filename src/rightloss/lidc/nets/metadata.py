"""Metadata in addition to the image: a two-layer predictor with logits that are added to the image's.

Stage: metadata (n, d) → logits (n, num_outputs); views, metadata → logits.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...arrays import checked_int
from ...likelihoods import Likelihood
from ...marginals import cannot_be_read
from .layers import checked_outputs

_LARGE = 20  # for columns of mean 0 and standard deviation 1


class MetadataBlock(nn.Module):
    """Affine predictors, each active within its own band: the logits of x are

        b + Σ_u K(g_u(x)) l_u(x),      K(t) = exp(−t²),      u = 1 … H,

    g_u affine to a number, l_u affine to `num_outputs`, K the radial basis kernel. The l_u and b start at 0, so the block
    initially adds nothing, and `start_at_prevalence` on the image's head starts the whole network at π. Without an image,
    start the block itself: `start_at_prevalence(block.head, …)`.

    The bands cover the range of standardised columns. Raw columns, such as volumes in mm³, are outside all bands, and nothing
    is learned there: standardise them, or let the block do it, `block.standardise_by(training_metadata)`. Their means and
    standard deviations are kept in float32, whatever the weights are converted to.

    Args:
        num_features: d, columns of the metadata.
        num_outputs: number of logits, or the likelihood they are for.
        units: H.
        bias: whether there is b; not needed with an image network, whose head has one.
        generator: for the random g_u; torch's default generator if None.

    Examples:
        >>> import torch
        >>> from rightloss.lidc.nets import MetadataBlock
        >>> block = MetadataBlock(num_features=4, num_outputs=2)
        >>> block.standardise_by(100 * torch.rand(50, 4))
        >>> block(100 * torch.rand(3, 4)).shape
        torch.Size([3, 2])
    """

    bias: Tensor | None
    centre: Tensor
    scale: Tensor

    def __init__(
        self,
        num_features: int,
        num_outputs: int | Likelihood = 2,
        units: int = 16,
        bias: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.num_features, self.num_outputs = checked_int(num_features, "num_features", 1), checked_outputs(num_outputs)
        self.units = checked_int(units, "units", 1)
        self.where = nn.Linear(self.num_features, self.units)  # g
        self.what = nn.Linear(self.num_features, self.units * self.num_outputs)  # l
        self.register_parameter("bias", nn.Parameter(torch.zeros(self.num_outputs)) if bias else None)
        self._warned = False
        self.register_buffer("centre", torch.zeros(self.num_features))
        self.register_buffer("scale", torch.ones(self.num_features))
        # g_u ~ N(0, 2) for standardised columns: some bands near each x, at different places
        nn.init.normal_(self.where.weight, std=self.num_features**-0.5, generator=generator)
        nn.init.normal_(self.where.bias, generator=generator)
        nn.init.zeros_(self.what.weight)
        nn.init.zeros_(self.what.bias)

    @property
    def head(self) -> MetadataBlock:
        """Return the block itself, with the bias that `start_at_prevalence` sets."""
        return self

    def forward(self, metadata: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        _check_metadata(metadata, self.num_features)
        if not cannot_be_read(metadata):
            _check_finite(metadata)
            self._warn_of_raw_columns(metadata)
        x = ((metadata - self.centre) / self.scale).to(self.where.weight.dtype)  # standardised in float32, or wider
        kernel = torch.exp(-self.where(x).square())
        logits = torch.einsum("nu,nuk->nk", kernel, self.what(x).unflatten(1, (self.units, self.num_outputs)))
        return logits if self.bias is None else logits + self.bias

    @torch.no_grad()
    def standardise_by(self, metadata: Float[Tensor, "n d"]) -> None:
        """Standardise columns by the means and standard deviations of `metadata`, the training set's, from now on.

        They are saved with the weights. A constant column is only centred.
        """
        _check_metadata(metadata, self.num_features)
        if len(metadata) < 2:
            raise ValueError(
                f"Expected two rows or more of metadata, but got {len(metadata)}: a standard deviation takes two; "
                "give the whole training set."
            )
        _check_finite(metadata)
        spread = metadata.double().std(0)
        self.centre.copy_(metadata.double().mean(0))
        self.scale.copy_(spread.where(spread > 0, torch.ones_like(spread)))

    def extra_repr(self) -> str:
        return f"{self.num_features}, {self.num_outputs}, units={self.units}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> MetadataBlock:
        """Convert dtype and device, but keep centre and scale in float32 or wider: half precision ends at 65504."""
        before = {"centre": self.centre, "scale": self.scale}
        super()._apply(fn, recurse)
        for name, old in before.items():
            new = getattr(self, name)
            if new.dtype.itemsize < 4:
                setattr(self, name, old.to(new.device))
        return self

    def _warn_of_raw_columns(self, metadata: Tensor) -> None:
        if self._warned or not metadata.numel() or float(metadata.detach().abs().max()) <= _LARGE:
            return
        if not bool(self.centre.any()) and bool((self.scale == 1).all()):
            self._warned = True
            largest, column = metadata.detach().abs().amax(0).max(0)
            warnings.warn(
                f"Metadata of size {float(largest):g} (column {int(column)}) lie outside every band of a block "
                "that takes columns of mean 0 and standard deviation 1: call standardise_by(training_metadata) first.",
                stacklevel=2,
            )


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


def _check_metadata(metadata: Tensor, num_features: int) -> None:
    fits = isinstance(metadata, Tensor) and metadata.ndim == 2 and metadata.shape[1] == num_features
    if not fits or not metadata.is_floating_point():
        came = f"{metadata.dtype} of shape {tuple(metadata.shape)}" if isinstance(metadata, Tensor) else type(metadata).__name__
        raise ValueError(
            f"Expected metadata, a tensor of floating-point numbers of shape (n, {num_features}), but got {came}: a row per "
            "nodule, with the columns that the block was made for."
        )


def _check_finite(metadata: Tensor) -> None:
    good = torch.isfinite(metadata)
    if not bool(good.all()):
        row, column = torch.nonzero(~good)[0].tolist()
        raise ValueError(
            f"Expected metadata of finite numbers, but row {row}, column {column} is {float(metadata[row, column])}, and "
            f"{int((~good).sum())} of the numbers are not finite: fill in missing values, for example by the column's mean."
        )
