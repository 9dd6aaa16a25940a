"""A Gaussian as wide as the log posterior is curved at its mode.

Stage: `LogPosterior`, data → `Posterior` with a `DenseGaussian` or `DiagonalGaussian`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..prevalence import Prevalence
from .distributions import Particles
from .expansion import Expansion, Problem, expand_at
from .layout import Layout
from .map import map_estimate
from .minibatches import Batch, Minibatches
from .nets import Net
from .posterior import Posterior
from .priors import Params
from .steps import in_mode, own_random
from .target import LIKELIHOOD, LogPosterior, inference_method

_COVARIANCES = ("full", "diagonal", "last-layer")
_MODES = ("model", "search")
_CURVATURES = ("hessian", "fisher")
_LARGEST = 20_000  # weights whose covariance is still worked out in full: 3 GB
_SEARCHED = "found by map_estimate"


@inference_method
def laplace(
    target: LogPosterior,
    data: Any,
    *,
    covariance: Any = "full",
    curvature: Any = None,
    layer: Any = None,
    mode: Any = None,
    linearised: Any = None,
    steps: Any = 1000,
    batch_size: Any = None,
    lr: Any = 1e-2,
    seed: Any = 0,
    device: Any = None,
    progress: bool | None = None,
) -> Posterior:
    """Laplace's approximation: N(ŵ, H⁻¹) with the mode ŵ and the curvature H of −log p(w|X,Y) there.

    p(y|w) is taken over `target.pool`, or else over the training data, exactly, and in float64: of one example, or of a
    minibatch, the marginal follows the prediction, and the curvature would come out too small.

    Weights are near a mode if H is positive there, and the Newton step from them, H⁻¹g with the gradient g, is short by three
    measures, none of which depends on scales:

    - It gains ½ gᵀH⁻¹g nats, fewer than 95 % of the Gaussian's own draws are below the peak (χ² with as many degrees of freedom
      as weights). That is half a standard deviation for each of 6 weights, and nearly one for each of thousands.
    - It moves no class's log p(k|w) by more than two posterior standard deviations: among many weights one intercept that is
      far off, as after training with plain cross-entropy, would go unnoticed.
    - The log-likelihood is above that of the best constant predictions by 3 nats or more, and by at least 4 times what the step
      would still add to the log posterior, or, with the likelihood's own g, as after training without a prior, to the
      log-likelihood. Random weights, of which few data say little, may pass the other two.

    Args:
        target: from `log_posterior`, over classes.
        data: `(x, y)`, a Dataset or a DataLoader.
        covariance: "full" (small models); "diagonal"; or "last-layer", in full over the last layer (and the likelihood's own
            parameters), with the other weights fixed at the mode.
        curvature: "hessian": all second derivatives as they are, for linear models at their mode the more exact; with hidden
            layers they are rarely those of a peak. "fisher": the information that the model itself expects of the data, which
            is never negative and also a Gauss–Newton matrix, so it stands at any weights of any net. None: the Hessian, if
            the weights to infer are those of one layer and it is that of a peak, else "fisher".
        layer: the name of the module that "last-layer" stands for; None: the last one that has trainable parameters.
        mode: where to expand. "model": at the model's own weights, wherever they are. "search": where `map_estimate`, with the
            following arguments, leads from there. Or what `map_estimate` has found, or weights by name. None: "model" where
            the weights are near a mode, as after training, else "search".
        linearised: whether predictions are those of the model made linear in the weights around the mode. Gauss–Newton
            curvature is that of this linear model, and the net itself, at weights as far from the mode as it allows, predicts
            worse than at the mode (Immer et al., 2021). None: with "fisher", if torch can differentiate the model forwards.
        steps: of the search's optimiser.
        batch_size: of its steps. None: all data in each, and from there to the mode itself.
        lr: its first step size.
        seed: of the order of its data.
        device: where to compute; None: where model and data are.
        progress: whether a bar is shown; None: on a terminal.

    Returns:
        A posterior whose `record` holds the `mode` that was used: "the model's own weights", "found by map_estimate" or "as
        given"; `log_evidence`, Laplace's estimate of log ∫ p(w) p(Y|X,w) dw, by which priors can be compared; `decrement`,
        ½ gᵀH⁻¹g: how far below its peak the log posterior is at that mode; the `curvature` that was taken; and `repaired`: if H
        is no peak (a warning says so), curvatures below the prior's are set to the prior's, and this is how many there were.
    """
    _check(target, covariance, curvature, layer, mode, linearised)
    with own_random(seed) as generator:
        whole = Minibatches(data, None, generator, device, target.prevalence, target.model)
        target = target.with_data(whole.num_data)
        batch, names = whole.whole(), _chosen(target, covariance, layer)

        def expand(at: Any) -> Expansion:
            with in_mode(target.model, False):
                problem = _problem(target, _state(target, at, device), batch, names)
                return expand_at(problem, covariance == "diagonal", curvature)

        def search() -> Posterior:
            options = {"steps": steps, "batch_size": batch_size, "lr": lr}
            return map_estimate(target, data, **options, seed=seed, device=device, progress=progress)

        expansion, where = _at_mode(mode, target.parameters(), expand, search)
        with in_mode(target.model, False):
            found = expansion.posterior(where, linearised)
    if where == _SEARCHED and found.record["decrement"] > 0.5 * found.layout.size:
        warnings.warn(
            f"The log posterior is {found.record['decrement']:.3g} nats below its peak where the search ended, farther than "
            f"draws of its {found.layout.size} weights are on average: the Gaussian is in the wrong place. Raise `steps`.",
            stacklevel=3,
        )
    return found


def _at_mode(
    mode: Any, own: Params, expand: Callable[[Any], Expansion], search: Callable[[], Posterior]
) -> tuple[Expansion, str]:
    """The expansion there, and where that is."""
    if mode is not None and not isinstance(mode, str):
        return expand(mode), "as given"
    if mode != "search":
        here = expand(own)
        if mode == "model" or here.is_near():
            return here, "the model's own weights"
        del here  # before the second one
    return expand(search()), _SEARCHED


def _problem(target: LogPosterior, state: dict[str, Tensor], data: Batch, names: tuple[str, ...]) -> Problem:
    """In float64, if the model can be computed with in it."""
    layout = Layout.of({name: state[name] for name in names})
    if target.pool is not None:
        x, y = target.pool
        target = replace(target, pool=(x.to(data[0].device), None if y is None else y.to(data[0].device)))
    wide = {name: _wide(value) for name, value in state.items()}
    try:
        with torch.no_grad():
            target.outputs(wide, _wide(data[0][:1]))
    except (RuntimeError, TypeError):
        return Problem(target, state, state, data, layout)
    pool = None if target.pool is None else (_wide(target.pool[0]), target.pool[1])
    return Problem(replace(target, pool=pool), state, wide, (_wide(data[0]), data[1]), layout)


def _wide(value: Tensor) -> Tensor:
    return value.double() if value.is_floating_point() else value


def _state(target: LogPosterior, mode: Any, device: Any) -> dict[str, Tensor]:
    """All weights and buffers at the mode."""
    own = {**dict(target.model.named_parameters()), **dict(target.model.named_buffers())}
    if isinstance(target.likelihood, torch.nn.Module):
        parts = [*target.likelihood.named_parameters(), *target.likelihood.named_buffers()]
        own |= {LIKELIHOOD + name: value for name, value in parts}
    if isinstance(mode, Posterior) and isinstance(mode.distribution, Particles) and len(mode.distribution) > 1:
        raise ValueError(
            f"Expected `mode` to be one set of weights, but got {len(mode.distribution)} draws: use map_estimate, or "
            "mode=posterior.mean where their mean is a mode."
        )
    given = Net(mode.model, mode.likelihood).own() if isinstance(mode, Posterior) else mode
    for name, value in given.items():
        if name not in own or own[name].shape != value.shape:
            raise ValueError(
                f"Expected a mode of this target's model, but `{name}` of shape {tuple(value.shape)} is not in it: "
                "use the model that the mode was found with."
            )
    return {name: value.detach().to(device, copy=True) for name, value in {**own, **given}.items()}


def _chosen(target: LogPosterior, covariance: str, layer: Any) -> tuple[str, ...]:
    """The names of the weights to infer."""
    names = tuple(target.parameters())
    if covariance == "last-layer":
        names = _names_in(target, names, layer)
    size = Layout.of({name: value for name, value in target.parameters().items() if name in names}).size
    if covariance != "diagonal" and size > _LARGEST:
        raise ValueError(
            f"Expected at most {_LARGEST} weights for a {covariance} covariance, but got {size}: "
            "use covariance='last-layer', with `layer` if need be, or 'diagonal'."
        )
    return names


def _names_in(target: LogPosterior, names: tuple[str, ...], layer: Any) -> tuple[str, ...]:
    owners = [name.rpartition(".")[0] for name in names if not name.startswith(LIKELIHOOD)]
    layers = [name for name, _ in target.model.named_modules() if name in owners]
    prefix = layer if layer is not None else layers[-1] if layers else ""
    chosen = tuple(name for name in names if name.startswith((LIKELIHOOD, f"{prefix}." if prefix else "")))
    if all(name.startswith(LIKELIHOOD) for name in chosen):
        raise ValueError(f"Expected `layer` to have trainable parameters, but got {layer!r}: choose from {layers[-10:]}.")
    return chosen


def _check(target: LogPosterior, covariance: Any, curvature: Any, layer: Any, mode: Any, linearised: Any) -> None:
    if covariance not in _COVARIANCES:
        raise ValueError(f"Expected `covariance` to be one of {', '.join(_COVARIANCES)}, but got {covariance!r}: choose one.")
    if curvature not in (None, *_CURVATURES):
        raise ValueError(f"Expected `curvature` to be one of {', '.join(_CURVATURES)}, but got {curvature!r}: or None.")
    if not isinstance(mode, Posterior | Mapping) and (mode is not None and mode not in _MODES):
        raise ValueError(
            f"Expected `mode` to be one of {', '.join(_MODES)}, a Posterior from map_estimate, or weights by name, but got "
            f"{mode!r}: leave it out."
        )
    if layer is not None and (covariance != "last-layer" or not isinstance(layer, str)):
        raise ValueError(
            f"Expected `layer` to be a module's name, with covariance='last-layer', but got {layer!r} with {covariance!r}: "
            "leave it out, or give both."
        )
    if linearised not in (None, True, False):
        raise ValueError(f"Expected `linearised` to be True, False or None, but got {linearised!r}: leave it out.")
    if not isinstance(target.prevalence, Prevalence):
        raise ValueError("Expected classes for laplace, but the likelihood is a density: use another method of inference.")
