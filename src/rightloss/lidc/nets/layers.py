"""Layers: features of single views (VGG16's first two convolutions, ConvNet, InceptionNet, gated), metadata, initial weights.

Stage: grey images (n, 1, h, w) in [0, 1] → low-level features (n, 64, h, w) → features (n, m), m the last of the widths.

Stage: metadata (n, d) → logits (n, num_outputs).

No network here has batch normalisation, because the statistics of rebalanced minibatches would bring the sampled mix into the
features. He's initialisation keeps the scale of the features without it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ...arrays import checked_int, checked_number
from ...likelihoods import Likelihood
from ...marginals import cannot_be_read
from ..readings import DATA

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's red, green and blue, in [0, 1]
CHANNELS = 64
_LARGE = 20  # for columns of metadata of mean 0 and standard deviation 1
_BLOCK = 64  # images at a time, so that the activations between the convolutions stay in the processor's cache


class LowLevelBlock(nn.Module):
    """Two 3×3 convolutions with ReLU, by default with VGG16's weights from ImageNet (Simonyan & Zisserman 2015).

    VGG16 takes colour images, normalised by a mean μ_c and a standard deviation σ_c per channel c. For a grey image g in all
    three channels its first convolution, with weights W_c and a border of zeros around the normalised image, is

        Σ_c W_c ∗ (g − μ_c)/σ_c + b  =  V ∗ g + U ∗ 1 + b,      V = Σ_c W_c/σ_c,   U = −Σ_c W_c μ_c/σ_c,

    where 1 is an image of ones: a convolution of two channels, g and 1, each with a border of zeros. Within the image U ∗ 1
    is a constant that a bias could hold; at its edge it is not, since the border's zeros are there *after* normalisation. So
    the features equal VGG16's everywhere.

    Args:
        pretrained: VGG16's weights; otherwise He's random ones.
        frozen: whether the weights stay fixed (no graph is kept then). By default if they are pretrained.
        stride: of the second convolution, 1 or 2. 2 gives every second of the same features, `features[:, :, ::2, ::2]`, at a
            quarter of the cost.
        generator: for the random weights; torch's default generator if None.

    Examples:
        >>> import torch
        >>> from rightloss.lidc.nets import LowLevelBlock
        >>> LowLevelBlock(stride=2)(torch.rand(5, 1, 32, 32)).shape
        torch.Size([5, 64, 16, 16])
    """

    def __init__(
        self, pretrained: bool = True, frozen: bool | None = None, stride: int = 1, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        stride = checked_int(stride, "stride", 1, 2, "larger ones would skip most of the image")
        self.first = nn.Conv2d(2, CHANNELS, 3, padding=1)
        self.second = nn.Conv2d(CHANNELS, CHANNELS, 3, stride, padding=1)
        if pretrained:
            self.load_state_dict(_grey_weights())
        else:
            he_start(self, generator)
        self.requires_grad_(not (pretrained if frozen is None else frozen))

    def forward(self, images: Float[Tensor, "n 1 h w"]) -> Float[Tensor, "n c h2 w2"]:
        _check_images(images)
        images = images.to(self.first.weight.dtype)
        if torch.compiler.is_compiling():  # an exported graph must not depend on the number of images
            return self._features(images)
        return torch.cat([self._features(block) for block in images.split(_BLOCK)])

    def _features(self, images: Tensor) -> Tensor:
        # Stacked last, so that channels are contiguous in memory: half the time on a CPU, also for all layers that follow.
        both = torch.stack([images[:, 0], torch.ones_like(images[:, 0])], -1).movedim(-1, 1)
        return F.relu_(self.second(F.relu_(self.first(both))))


class ConvBody(nn.Module):
    """3×3 convolutions of stride 2, each with ReLU and dropout of channels, then the mean over positions.

    A layer halves h and w, rounding up.

    Args:
        channels: c.
        widths: channels after each layer.
        dropout: fraction of channels to drop.
        generator: for the random weights; torch's default generator if None.

    Examples:
        >>> import torch
        >>> from rightloss.lidc.nets import ConvBody
        >>> ConvBody(64, [32, 128])(torch.rand(5, 64, 32, 32)).shape
        torch.Size([5, 128])
    """

    def __init__(
        self, channels: int, widths: Sequence[int], dropout: float = 0.1, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        widths = checked_widths(widths)
        self.layers = nn.Sequential(*conv_layers(channels, widths, [2] * len(widths), dropout, self.layer))
        self.num_features = widths[-1]
        he_start(self, generator)

    def forward(self, features: Float[Tensor, "n c h w"]) -> Float[Tensor, "n m"]:
        return self.layers(features).mean((2, 3))

    @staticmethod
    def layer(before: int, after: int, stride: int) -> list[nn.Module]:
        """Return a convolution with ReLU."""
        return [nn.Conv2d(before, after, 3, stride, padding=1), nn.ReLU(inplace=True)]


class InceptionBody(ConvBody):
    """`ConvBody` with inception blocks of stride 2 instead of convolutions.

    Args:
        channels: c.
        widths: channels after each block, multiples of 8.
        dropout: fraction of channels to drop.
        generator: for the random weights; torch's default generator if None.

    Examples:
        >>> import torch
        >>> from rightloss.lidc.nets import InceptionBody
        >>> InceptionBody(64, [32, 128])(torch.rand(5, 64, 32, 32)).shape
        torch.Size([5, 128])
    """

    @staticmethod
    def layer(before: int, after: int, stride: int) -> list[nn.Module]:
        """Return an inception block, whose stride is 2."""
        return [InceptionBlock(before, after)]


class InceptionBlock(nn.Module):
    """Four branches of stride 2 side by side (Szegedy et al. 2015, the 5×5 as two 3×3 as in their second version).

    1×1; 1×1 then 3×3; 1×1 then 3×3 and 3×3; 3×3 max-pooling then 1×1: a quarter of the channels each, ReLU after every
    convolution. The 1×1 before a 3×3 have an eighth.

    Args:
        channels: c of the input.
        width: channels of the output, a multiple of 8.

    Examples:
        >>> import torch
        >>> from rightloss.lidc.nets import InceptionBlock
        >>> InceptionBlock(64, 32)(torch.rand(5, 64, 32, 32)).shape
        torch.Size([5, 32, 16, 16])
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        width = checked_int(width, "width", 1)
        if width % 8:
            raise ValueError(f"Expected the width of an inception block to be a multiple of 8, but got {width}: round it up.")
        quarter, eighth = width // 4, width // 8
        self.point = nn.Conv2d(channels, quarter, 1, stride=2)
        self.narrow = nn.Conv2d(channels, 2 * eighth, 1)  # for both the 3×3 and the 5×5
        self.three = nn.Conv2d(eighth, quarter, 3, stride=2, padding=1)
        self.five = nn.Sequential(
            nn.Conv2d(eighth, quarter, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(quarter, quarter, 3, stride=2, padding=1)
        )
        self.pooled = nn.Conv2d(channels, quarter, 1)

    def forward(self, features: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c2 h2 w2"]:
        narrow = F.relu(self.narrow(features))
        for_three, for_five = narrow.chunk(2, 1)
        largest = F.max_pool2d(features, 3, stride=2, padding=1)
        return F.relu_(torch.cat([self.point(features), self.three(for_three), self.five(for_five), self.pooled(largest)], 1))


class GatedBody(nn.Module):
    """Features under a map: mean over positions of a ⊙ f, f (n, m, h, w) of the view, a (n, 1, h, w) in [0, 1].

    The mean is over the whole view, so that the area of the map counts too.

    Args:
        widths: channels of the 3×3 convolutions of stride 2 that give f; m is the last.
        hidden: channels of the recurrent unit.
        steps: number of refinements of the map.
        dropout: fraction of channels to drop.
        generator: for the random weights; torch's default generator if None.

    Examples:
        >>> import torch
        >>> from rightloss.lidc.nets import GatedBody
        >>> GatedBody([32, 128], hidden=16)(torch.rand(5, 64, 32, 32)).shape
        torch.Size([5, 128])
    """

    def __init__(
        self, widths: Sequence[int], hidden: int, steps: int = 3, dropout: float = 0.1, generator: torch.Generator | None = None
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
    """A convolutional gated recurrent unit (Cho et al. 2014; Ballas et al. 2016) that sees f through its own map.

    With ∗ a 3×3 convolution, ⊙ elementwise, h₀ = 0, a₀ = 1 and p a projection of f to the unit's channels:

        x_t = a_t ⊙ p,   z = σ(W_z ∗ [x_t, h_t] + b_z),   r = σ(W_r ∗ [x_t, h_t] + b_r),
        h_{t+1} = (1 − z) ⊙ h_t + z ⊙ tanh(W ∗ [x_t, r ⊙ h_t] + b),   a_{t+1} = σ(v · h_{t+1} + b_a).

    Args:
        channels: of f.
        hidden: channels of h.
        steps: number of refinements of the map.

    Examples:
        >>> import torch
        >>> from rightloss.lidc.nets import RecurrentGate
        >>> RecurrentGate(channels=8, hidden=4, steps=3)(torch.rand(5, 8, 16, 16)).shape
        torch.Size([5, 1, 16, 16])
    """

    def __init__(self, channels: int, hidden: int, steps: int) -> None:
        super().__init__()
        hidden = checked_int(hidden, "hidden", 1)
        self.steps = checked_int(steps, "steps", 1)
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
        readable = not (isinstance(metadata, Tensor) and cannot_be_read(metadata))
        _check_metadata(metadata, self.num_features, readable)
        if readable:
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
        _check_metadata(metadata, self.num_features, finite=True)
        if len(metadata) < 2:
            raise ValueError(
                f"Expected two rows or more of metadata, but got {len(metadata)}: a standard deviation takes two; "
                "give the whole training set."
            )
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


def conv_layers(
    channels: int,
    widths: Sequence[int],
    strides: Sequence[int],
    dropout: float,
    layer: Callable[[int, int, int], list[nn.Module]] = ConvBody.layer,
) -> list[nn.Module]:
    """Return layers, by default 3×3 convolutions with ReLU, each with dropout of whole channels.

    Neighbouring pixels are strongly correlated, so dropout of single pixels would have no effect.
    """
    dropout = checked_number(dropout, "dropout", 0, 0.99, "0 for none")
    layers: list[nn.Module] = []
    for before, after, stride in zip([checked_int(channels, "channels", 1), *widths], widths, strides, strict=False):
        layers += [*layer(before, after, stride), nn.Dropout2d(dropout)]
    return layers


def he_start(module: nn.Module, generator: torch.Generator | None = None) -> None:
    """Draw the weights of every convolution in `module` from N(0, 2 / inputs per output) (He et al. 2015); set biases to 0."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, nonlinearity="relu", generator=generator)
            if part.bias is not None:
                nn.init.zeros_(part.bias)


def checked_outputs(num_outputs: int | Likelihood) -> int:
    """Return a number of outputs, or that of a likelihood."""
    count = num_outputs.num_outputs if isinstance(num_outputs, Likelihood) else num_outputs
    if count is None:
        raise ValueError(
            f"Expected a likelihood with a number of outputs, but {type(num_outputs).__name__}() takes any: "
            "give the number of classes, as in Categorical(5), or pass a number."
        )
    return checked_int(count, "num_outputs", 1)


def checked_widths(widths: object, name: str = "widths") -> list[int]:
    """Return a count for each layer, at least one."""
    if not isinstance(widths, Sequence) or isinstance(widths, str) or not widths:
        raise ValueError(f"Expected `{name}`, a number for each layer, but got {widths!r}: such as (64, 128).")
    return [checked_int(width, f"{name}[{layer}]", 1) for layer, width in enumerate(widths)]


def _check_images(images: Tensor) -> None:
    if not isinstance(images, Tensor) or images.ndim != 4 or images.shape[1] != 1:
        came = f"shape {tuple(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
        raise ValueError(
            f"Expected grey images, a tensor of shape (n, 1, h, w), but got {came}: "
            "images[:, None] where there is no channel, images.mean(1, keepdim=True) where there are several."
        )


def _grey_weights() -> dict[str, Tensor]:
    """Load the bundled weights, those of the first convolution turned from (64, 3, 3, 3) into V and U, (64, 2, 3, 3)."""
    with np.load(DATA / "vgg16_conv1.npz", allow_pickle=False) as file:
        raw = {name: torch.from_numpy(array) for name, array in file.items()}
    mean, std = torch.tensor([MEAN, STD], dtype=torch.float64)[:, None, :, None, None]
    colour = raw["features.0.weight"].double() / std
    grey = torch.stack([colour.sum(1), -(colour * mean).sum(1)], 1)
    return {
        "first.weight": grey.float(),
        "first.bias": raw["features.0.bias"],
        "second.weight": raw["features.2.weight"],
        "second.bias": raw["features.2.bias"],
    }


def _check_metadata(metadata: Tensor, num_features: int, finite: bool) -> None:
    fits = isinstance(metadata, Tensor) and metadata.ndim == 2 and metadata.shape[1] == num_features
    if not fits or not metadata.is_floating_point():
        came = f"{metadata.dtype} of shape {tuple(metadata.shape)}" if isinstance(metadata, Tensor) else type(metadata).__name__
        raise ValueError(
            f"Expected metadata, a tensor of floating-point numbers of shape (n, {num_features}), but got {came}: a row per "
            "nodule, with the columns that the block was made for."
        )
    if finite and not bool(torch.isfinite(metadata).all()):
        wrong = torch.nonzero(~torch.isfinite(metadata))
        row, column = wrong[0].tolist()
        raise ValueError(
            f"Expected metadata of finite numbers, but row {row}, column {column} is {float(metadata[row, column])}, and "
            f"{len(wrong)} of the numbers are not finite: fill in missing values, for example by the column's mean."
        )
