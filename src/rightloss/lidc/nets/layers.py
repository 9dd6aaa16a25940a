"""VGG16's first two convolutions, for grey images; and convolution layers, initial weights and checks of all networks.

Stage: grey images (n, 1, h, w) in [0, 1] → low-level features (n, 64, h, w); numbers of channels → layers with initial weights.

No network here has batch normalisation, because the statistics of rebalanced minibatches would bring the sampled mix into the
features. He's initialisation keeps the scale of the features without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ...arrays import checked_int, checked_number
from ...likelihoods import Likelihood

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's red, green and blue, in [0, 1]
CHANNELS = 64
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


def conv_layers(channels: int, widths: Sequence[int], strides: Sequence[int], dropout: float) -> list[nn.Module]:
    """Return 3×3 convolutions, each with ReLU and dropout of whole channels.

    Neighbouring pixels are strongly correlated, so dropout of single pixels would have no effect.
    """
    dropout = checked_number(dropout, "dropout", 0, 0.99, "0 for none")
    layers: list[nn.Module] = []
    for before, after, stride in zip([checked_int(channels, "channels", 1), *widths], widths, strides, strict=False):
        layers += [nn.Conv2d(before, after, 3, stride, padding=1), nn.ReLU(inplace=True), nn.Dropout2d(dropout)]
    return layers


def he_start(module: nn.Module, generator: torch.Generator | None = None) -> None:
    """Draw the weights of every convolution in `module` from N(0, 2 / inputs per output) (He et al. 2015); set biases to 0."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, nonlinearity="relu", generator=generator)
            if part.bias is not None:
                nn.init.zeros_(part.bias)


def zero_start(head: nn.Linear | nn.Conv2d) -> None:
    """Set a last layer to zero: its bias is the logits for every x, so `start_at_prevalence` starts the network exactly at π.

    The last layer learns from the first step on, the layers before it from the second.
    """
    nn.init.zeros_(head.weight)
    if head.bias is not None:
        nn.init.zeros_(head.bias)


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
    with (files("rightloss.lidc") / "data" / "vgg16_conv1.npz").open("rb") as file:
        raw = {name: torch.from_numpy(array) for name, array in np.load(file, allow_pickle=False).items()}
    mean, std = torch.tensor([MEAN, STD], dtype=torch.float64)[:, None, :, None, None]
    colour = raw["features.0.weight"].double() / std
    grey = torch.stack([colour.sum(1), -(colour * mean).sum(1)], 1)
    return {
        "first.weight": grey.float(),
        "first.bias": raw["features.0.bias"],
        "second.weight": raw["features.2.weight"],
        "second.bias": raw["features.2.bias"],
    }
