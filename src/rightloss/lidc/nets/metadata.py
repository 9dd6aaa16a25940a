"""Metadata beside the image: a two-layer predictor whose logits add to the image's.

Stage: metadata (n, d) → logits (n, num_outputs); views, metadata → logits.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...marginals import cannot_be_read
from .checks import check_finite, check_metadata, checked_count, checked_outputs

_LARGE = 20  # for columns of mean 0 and standard deviation 1


class MetadataBlock(nn.Module):
    """Affine predictors, each within a band of its own: the logits of x are

        b + Σ_u K(g_u(x)) l_u(x),      K(t) = exp(−t²),      u = 1 … H,

    g_u affine to a number, l_u affine to `num_outputs`, K the radial basis kernel. The l_u and b start at 0, so the block adds
    nothing at first, and a net with it starts at π wherever `start_at_prevalence` puts its image's head. Without an image,
    start the block itself: `start_at_prevalence(block.head, …)`.

    The bands lie where standardised columns have their numbers. Raw columns, as volumes in mm³, lie outside all of them, and
    nothing is learnt there: standardise them, or have the block do it, `block.standardise_by(training_metadata)`. Their means
    and standard deviations are kept in float32, whatever the weights are converted to.

    Args:
        num_features: d, columns of the metadata.
        num_outputs: of the logits, or the likelihood that they are for.
        units: H.
        bias: whether there is b; beside an image, whose head has one, it is not needed.
        generator: of the random g_u; torch's own by default.
    """

    bias: Tensor | None
    centre: Tensor
    scale: Tensor

    def __init__(
        self,
        num_features: Any,
        num_outputs: Any = 2,
        units: Any = 16,
        bias: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.num_features, self.num_outputs = checked_count(num_features, "num_features"), checked_outputs(num_outputs)
        self.units = checked_count(units, "units")
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
        """What `start_at_prevalence` takes: the block itself, by its bias."""
        return self

    def forward(self, metadata: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        check_metadata(metadata, self.num_features)
        if not cannot_be_read(metadata):
            check_finite(metadata)
            self._warn_of_raw_columns(metadata)
        x = ((metadata - self.centre) / self.scale).to(self.where.weight.dtype)  # standardised in float32, or wider
        kernel = torch.exp(-self.where(x).square())
        logits = torch.einsum("nu,nuk->nk", kernel, self.what(x).unflatten(1, (self.units, self.num_outputs)))
        return logits if self.bias is None else logits + self.bias

    @torch.no_grad()
    def standardise_by(self, metadata: Any) -> None:
        """Take the columns' means and standard deviations, of the training set, as 0 and 1 from here on.

        They are saved with the weights. A column that is the same in every row is only centred.
        """
        check_metadata(metadata, self.num_features)
        if len(metadata) < 2:
            raise ValueError(
                f"Expected two rows or more of metadata, but got {len(metadata)}: a standard deviation takes two; "
                "give the whole training set."
            )
        check_finite(metadata)
        spread = metadata.double().std(0)
        self.centre.copy_(metadata.double().mean(0))
        self.scale.copy_(spread.where(spread > 0, torch.ones_like(spread)))

    def extra_repr(self) -> str:
        return f"{self.num_features}, {self.num_outputs}, units={self.units}"

    def _apply(self, fn: Any, recurse: bool = True) -> MetadataBlock:
        """Conversion, as of every module, but of centre and scale never below float32: half precision ends at 65504."""
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

    The bias of the sum is that of the image's `head`. A block that has one too, as after a start by itself, hands it over: it
    is added to the head's and set to 0, in the modules given. So the sum stays what it was, and
    `start_at_prevalence(net.head, …)` sets all of it.

    Args:
        image: a net of this package: views → logits, its last layer `head`.
        metadata: the block, with as many outputs.
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
            with torch.no_grad():
                self.head.bias += metadata.bias
                metadata.bias.zero_()

    @property
    def head(self) -> Any:
        """The image's last layer, whose bias is the whole net's."""
        return self.image.head

    def forward(self, views: Float[Tensor, "n s *chw"], metadata: Float[Tensor, "n2 d"]) -> Float[Tensor, "n k"]:
        if views.shape[0] != metadata.shape[0]:  # not len, which would fix both in an exported graph
            raise ValueError(
                f"Expected a row of metadata for each nodule, but got {metadata.shape[0]} rows for {views.shape[0]} nodules: "
                "take both from the same batch."
            )
        return self.image(views) + self.metadata(metadata)
