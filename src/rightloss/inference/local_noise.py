"""Local reparametrisation and flipout: independent weights for every example, without drawing them.

Stage: means and standard deviations of independent weights, x → outputs, with independent weights for each example. The noise
of the examples then averages out in a minibatch. This works only for a mean over examples of a function of one example, such as
a log-likelihood. p(y|w), in which all examples share the weights, cannot be estimated this way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..marginals import ClasswiseMarginal, Marginal, PoolMarginal
from ..prevalence import Prevalence
from .priors import Params
from .target import LogPosterior

_Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


class LocalNoise:
    """The layers of a model that can have independent weights for every example.

    `nn.Linear` on rows (n, features) by local reparametrisation (Kingma et al. 2015): the outputs are drawn, not the weights.
    Convolutions by flipout (Wen et al. 2018): one draw of the weights, with random signs for every example. Other layers, and
    those that are called more than once or share weights, use one draw for all examples.

    Args:
        target: with the model.
        params: weights and buffers, for a trial run.
        x: inputs, for a trial run.
    """

    def __init__(self, target: LogPosterior, params: Params, x: Tensor) -> None:
        self.target = target
        self.layers = _layers_called_once(target, params, x)
        self.names = {f"{name}.{part}" for name, layer in self.layers.items() for part in _parts(layer)}

    def outputs(self, means: Params, deviations: Params, drawn: Params, x: Tensor, stream: torch.Generator) -> Tensor:
        """Return the model's outputs with independent noise for every example.

        Args:
            means: of all weights, by name.
            deviations: their standard deviations.
            drawn: one draw of them, for layers without independent noise; also buffers.
            x: inputs.
            stream: the generator of the noise.
        """
        mixed = {name: means[name] if name in self.names else value for name, value in drawn.items()}
        with _hooked({layer: self._noise(name, layer, deviations, stream) for name, layer in self.layers.items()}):
            return self.target.outputs(mixed, x)

    def _noise(self, name: str, layer: nn.Module, deviations: Params, stream: torch.Generator) -> Callable[..., Tensor]:
        weight, bias = (deviations.get(f"{name}.{part}") if part in _parts(layer) else None for part in ("weight", "bias"))
        assert weight is not None
        add = _linear_noise if isinstance(layer, nn.Linear) else _flipout
        return lambda module, inputs, output: output + add(module, inputs[0], output, weight, bias, stream)


def local_noise_for(target: LogPosterior, estimator: str, independent: bool, params: Params, x: Tensor) -> LocalNoise | None:
    """Return local noise if the estimator is "local", or "auto" and it is possible and useful; None for a shared draw.

    Args:
        target: with the model, and p(y|w) or none.
        estimator: "local", "shared" or "auto".
        independent: whether the weights are independent.
        params: as in `LocalNoise`.
        x: as in `LocalNoise`.
    """
    possible = independent and not target.exact and (not target.gains or isinstance(target.prevalence, Prevalence))
    mixed = any(isinstance(part, _BatchNorm) for part in target.model.modules())
    if estimator == "local":
        _check_local(possible, mixed, target.marginal)
    wanted = estimator == "local" or (estimator == "auto" and possible and not mixed and not target.gains)
    return LocalNoise(target, params, x) if wanted else None


def _check_local(possible: bool, mixed: bool, marginal: Marginal | None) -> None:
    if not possible:
        raise ValueError(
            "Expected family='mean-field', classes and no evidence='exact' for estimator='local', but got another family, a "
            "density or an exact prevalence: weights on which outputs depend together cannot be drawn output by output; "
            "estimator='shared'."
        )
    if mixed:
        raise ValueError(
            "Expected every example's outputs to be its own for estimator='local', but got normalisation by minibatch, which "
            "would normalise over draws: estimator='shared', or another normalisation."
        )
    if isinstance(marginal, PoolMarginal | ClasswiseMarginal):
        kind = type(marginal).__name__
        raise ValueError(f"Expected a marginal that follows the weights for estimator='local', but got {kind}: give `pool`.")


def _linear_noise(
    layer: nn.Linear, x: Tensor, output: Tensor, weight: Tensor, bias: Tensor | None, stream: torch.Generator
) -> Tensor:
    """Return noise of variance Σ_i σ_oi² x_i² + σ_o²."""
    variance = F.linear(x.square(), weight.square(), None if bias is None else bias.square())
    smallest = torch.finfo(variance.dtype).tiny  # the derivative of the root at 0 is not finite
    return variance.clamp_min(smallest).sqrt() * _normal(output.shape, output, stream)


def _flipout(
    layer: _Convolution, x: Tensor, output: Tensor, weight: Tensor, bias: Tensor | None, stream: torch.Generator
) -> Tensor:
    """Return (noise ∘ signs of the outputs × signs of the inputs) ∗ x, for each example."""
    ones = (1,) * (x.ndim - 2)
    into, out = (_signs((len(x), channels, *ones), x, stream) for channels in (x.shape[1], output.shape[1]))
    noise = layer._conv_forward(x * into, weight * _normal(weight.shape, weight, stream), None) * out
    return noise if bias is None else noise + (bias * _normal((len(x), len(bias)), bias, stream)).unflatten(1, (-1, *ones))


def _normal(shape: tuple[int, ...], like: Tensor, stream: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=stream, dtype=like.dtype).to(like.device)


def _signs(shape: tuple[int, ...], like: Tensor, stream: torch.Generator) -> Tensor:
    return (2 * torch.randint(2, shape, generator=stream) - 1).to(like)


def _layers_called_once(target: LogPosterior, params: Params, x: Tensor) -> dict[str, nn.Module]:
    """Return the layers that the model calls exactly once, with a row per example, that are trained and share no weights."""
    layers = {name: layer for name, layer in target.model.named_modules() if isinstance(layer, nn.Linear | _Convolution)}
    calls: Counter[nn.Module] = Counter()
    rows: set[nn.Module] = set()

    def note(layer: nn.Module, inputs: Any, output: Tensor) -> None:
        calls[layer] += 1
        given = inputs[0]
        if len(given) == len(x) and (given.ndim == 2 if isinstance(layer, nn.Linear) else given.ndim > 2):
            rows.add(layer)

    with torch.no_grad(), _hooked(dict.fromkeys(layers.values(), note)):
        target.outputs({name: value.clone() for name, value in params.items()}, x)
    trained = target.parameters()
    owners = Counter(id(value) for module in target.model.modules() for value in module._parameters.values())
    return {
        name: layer
        for name, layer in layers.items()
        if calls[layer] == 1
        and layer in rows
        and all(owners[id(value)] == 1 for value in layer.parameters(recurse=False))
        and all(f"{name}.{part}" in trained for part in _parts(layer))
    }


def _parts(layer: nn.Module) -> list[str]:
    return [name for name in ("weight", "bias") if getattr(layer, name) is not None]


@contextmanager
def _hooked(hooks: dict[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Add these forward hooks inside, before other hooks of the layers, and remove them afterwards."""
    handles = [layer.register_forward_hook(hook, prepend=True) for layer, hook in hooks.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
