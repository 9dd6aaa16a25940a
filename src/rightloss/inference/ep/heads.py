"""The linear layer that a model ends in.

Stage: model, x → features h `(n, p)` with outputs W h, where the bias is W's last column and h ends in 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..layout import Layout
from ..priors import Params
from ..target import LogPosterior
from .natural import Natural

_ROWS = 4096  # that go through the model at once


@dataclass(frozen=True, eq=False)
class Head:
    """The model's last linear layer.

    Attributes:
        module: the layer.
        names: of its weight and, where it has one, its bias, in the model.
    """

    module: nn.Linear
    names: tuple[str, ...]

    @property
    def layout(self) -> Layout:
        """Of its weights."""
        return Layout.of(dict(zip(self.names, self.module.parameters(), strict=True)))

    def order(self) -> Int[Tensor, " d"]:
        """Where each number of the layout stands among the rows of W, one after the other."""
        outputs, size = self.module.out_features, self.module.in_features
        if len(self.names) == 1:
            return torch.arange(outputs * size)
        places = torch.arange(outputs * (size + 1)).reshape(outputs, size + 1)
        return torch.cat([places[:, :size].flatten(), places[:, size]])

    @torch.no_grad()
    def features(self, model: nn.Module, x: Tensor) -> tuple[Float[Tensor, "n p"], Tensor]:
        """h in float64, and the model's outputs."""
        pieces = [self._piece(model, part) for part in x.split(_ROWS)]
        features = torch.cat([piece for piece, _ in pieces]).double()
        if len(self.names) > 1:
            features = torch.cat([features, features.new_ones(len(features), 1)], 1)
        return features, torch.cat([outputs for _, outputs in pieces])

    def _piece(self, model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        seen: list[tuple[Tensor, Tensor]] = []
        handle = self.module.register_forward_hook(lambda _, inputs, output: seen.append((inputs[0], output)))
        try:
            outputs: Tensor = model(x)
        finally:
            handle.remove()
        if not bool(torch.isfinite(outputs).all()):
            raise ValueError(
                "Expected finite outputs of the model, but some are not: look for NaN or infinity in x, or in its weights."
            )
        last = len(seen) == 1 and seen[0][1].ndim == 2 and seen[0][1].numel() == outputs.numel()
        if not last or not torch.equal(seen[0][1].flatten(), outputs.flatten()):
            raise ValueError(
                f"Expected the outputs of the linear layer {self.names[0]!r} to be the model's, a row for each example, but "
                "something comes after it, or it is called otherwise: name the last layer with `layer`, or use `laplace`."
            )
        return seen[0][0], outputs

    def prior(self, target: LogPosterior, values: Params) -> Natural:
        """The prior of this layer's weights, given the others' values: it must be Gaussian."""
        layout, order = self.layout, self.order().to(next(iter(values.values())).device)
        others = {name: value.double() for name, value in values.items() if value.is_floating_point()}

        def log_prior(w: Tensor) -> Tensor:
            return target.log_prior({**others, **layout.unflatten(w[order])})

        start = torch.zeros(layout.size, dtype=torch.float64, device=order.device)
        elsewhere = torch.linspace(-1.7, 1.3, layout.size).to(start)
        with torch.enable_grad():
            slope = torch.autograd.functional.jacobian(log_prior, start)
            bends = [torch.autograd.functional.hessian(log_prior, at) for at in (start, elsewhere)]
        constant = torch.allclose(bends[0], bends[1], rtol=1e-6, atol=1e-9)
        if not constant or int(torch.linalg.cholesky_ex(-bends[0])[1]):
            raise ValueError(
                "Expected a Gaussian prior of the linear layer's weights, but log p(w) is not quadratic with one peak: "
                "expectation propagation starts from it; use gaussian_prior or layer_prior, or nuts or laplace."
            )
        return Natural(-bends[0], slope)


def head_of(model: nn.Module, layer: Any, trainable: Any) -> Head:
    """The layer of that name; None: the last linear one."""
    linear = {name: part for name, part in model.named_modules() if isinstance(part, nn.Linear)}
    if not linear or (layer is not None and layer not in linear):
        raise ValueError(
            f"Expected a model that ends in an nn.Linear, but got {list(linear)} as its linear layers for `layer` = {layer!r}: "
            "name one of them; models without one take laplace, variational, sghmc."
        )
    name = list(linear)[-1] if layer is None else layer
    names = tuple(f"{name}.{each}" if name else each for each, _ in linear[name].named_parameters())
    _check_own(model, linear[name], name)
    frozen = [each for each in names if each not in trainable]
    if frozen:
        raise ValueError(f"Expected the last layer's weights to be random, but {frozen} have no requires_grad: unfreeze them.")
    return Head(linear[name], names)


def _check_own(model: nn.Module, module: nn.Linear, name: str) -> None:
    """A ValueError where the outputs are not W h with a W that is the layer's alone."""
    own = {id(value) for value in module.parameters()}
    shared = sum(id(value) in own for _, value in model.named_parameters(remove_duplicate=False)) > len(own)
    if shared or {each for each, _ in module.named_parameters()} - {"weight", "bias"}:
        what = "others share its weights" if shared else "these are computed from others"
        raise ValueError(
            f"Expected the linear layer {name!r} to have a weight and a bias of its own, but {what}: take a plain nn.Linear, "
            "or use laplace, variational or sghmc."
        )
