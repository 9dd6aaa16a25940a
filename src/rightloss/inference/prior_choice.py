"""The choice of a prior's scale, by Laplace's evidence or by the bound of variational inference.

Stage: `LogPosterior`, data → `ChosenPrior`, which is a prior.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from ..arrays import checked_choice
from ..tensors import in_mode
from .distributions import DiagonalGaussian, Distribution
from .laplace import laplace_from
from .map import Search, reset_marginal
from .minibatches import Data, Device
from .posterior import Posterior
from .prediction import JointModel
from .priors import LIKELIHOOD, Params, Prior, layer_prior, positive_number
from .target import LogPosterior, inference_method
from .vi import variational

Scale = float | dict[str, float]
Fit = Callable[[LogPosterior, Params | None], tuple[Posterior, float]]  # target, start → posterior, log evidence

_TOLERANCE = 0.1  # of the logarithm of a scale
_SWEEPS, _GAIN = 5, 0.01  # over the layers: at most so many, and as long as one adds so many nats
_DRAWS = 100  # of the weights, for the bound


@inference_method
def optimize_prior(
    target: LogPosterior,
    data: Data,
    *,
    prior: Callable[[Any], Prior] | None = None,
    by: Literal["evidence", "elbo"] = "evidence",
    layers: bool = False,
    bounds: tuple[float, float] = (0.01, 100.0),
    steps: int = 1000,
    batch_size: int | None = None,
    lr: float = 1e-2,
    seed: int = 0,
    device: Device = None,
    **options: Any,
) -> ChosenPrior:
    """Return the prior whose scale maximises the evidence log ∫ p(w) p(Y|X,w) dw on the training data.

    No data are held out. A wide prior spreads its mass over weights that explain the data badly, a narrow one excludes those
    that explain them well. The search tries a scale per decade, and then the surroundings of the best by Brent's method, until
    the scale is known to 10 %. Newton's method starts at the last mode, other fits at the model's weights. With `layers` the
    search continues with the scale of one layer at a time, at most 5 times through all of them.

    Args:
        target: from `log_posterior`; its own prior is not used.
        data: `(x, y)`, a Dataset or a DataLoader.
        prior: scale → prior, such as `gaussian_prior`, or `lambda s: gaussian_prior(s, centre)`. With `layers` it gets a scale
            for each weight, `{name: s}`. None for the default, `layer_prior` around the model's current biases.
        by: "evidence" for Laplace's estimate; "elbo" for the lower bound by `variational`, for models without a useful mode,
            for likelihoods that are densities, and for networks that are too large for a full covariance.
        layers: whether each layer has its own scale; the likelihood's own parameters are one, "likelihood".
        bounds: smallest and largest scale.
        steps: number of optimiser steps of each fit, except those by Newton's method.
        batch_size: examples per step; None for all data, so that p(y|w) and the mode are exact.
        lr: initial learning rate.
        seed: seed of draws and minibatches, the same in every fit.
        device: the device to compute on; None for that of the model and the data.
        **options: `covariance` ("full" or "diagonal") and `curvature` of `laplace`, or further arguments of `variational`.

    Returns:
        The prior, with the scale, the evidence, what was tried, and the posterior at the chosen scale. To infer the last layer
        alone, freeze the others: `requires_grad_(False)`.

    Examples:
        >>> import torch, rightloss as rl
        >>> from rightloss.inference import laplace, log_posterior, optimize_prior
        >>> y = torch.arange(100) % 2
        >>> x = torch.randn(100, 1, generator=torch.Generator().manual_seed(0)) + y[:, None]
        >>> model, prevalence = torch.nn.Linear(1, 2), rl.Prevalence.binary(population=0.1)
        >>> rl.start_at_prevalence(model, prevalence)
        >>> prior = optimize_prior(log_posterior(model, prevalence), (x, y))
        >>> posterior = laplace(log_posterior(model, prevalence, prior=prior), (x, y))
        >>> abs(posterior.record["log_evidence"] - prior.log_evidence) < 1e-3
        True
    """
    low, high = _checked_bounds(bounds)
    checked_choice(by, "by", ("evidence", "elbo"))
    checked_choice(layers, "layers", (True, False))
    make = partial(_layer_prior, target) if prior is None else prior
    if not callable(make):
        raise ValueError(f"Expected `prior` to make a prior from a scale, but got {make!r}: write prior=gaussian_prior.")
    search = Search(steps, batch_size, lr, seed, device, False)
    fit = (_laplace if by == "evidence" else _variational)(data, search, **options)
    trials = _Trials(target, make, fit, _layers(target) if layers else None)
    _over_all(trials, low, high)
    if len(trials.groups) > 1:
        _by_layer(trials, low, high)
    return trials.chosen((low, high))


@dataclass(frozen=True, eq=False)
class ChosenPrior:
    """A prior with a scale chosen by `optimize_prior`: weights by name → log p(w).

    Attributes:
        prior: the prior at this scale.
        scale: its scale; with `layers` one for each layer, by name.
        log_evidence: Laplace's estimate of log ∫ p(w) p(Y|X,w) dw, or its lower bound by variational inference.
        tried: every scale that was tried, with its `log_evidence`, in the order of the search.
        posterior: that of the prior, by the method of the search.

    Examples:
        >>> import torch, rightloss as rl
        >>> from rightloss.inference import log_posterior, optimize_prior
        >>> y = torch.arange(100) % 2
        >>> x = torch.randn(100, 1, generator=torch.Generator().manual_seed(0)) + y[:, None]
        >>> chosen = optimize_prior(log_posterior(torch.nn.Linear(1, 2), rl.Prevalence.binary(population=0.1)), (x, y))
        >>> chosen.log_evidence == max(value for _, value in chosen.tried)
        True
    """

    prior: Prior
    scale: Scale
    log_evidence: float
    tried: tuple[tuple[Scale, float], ...]
    posterior: Posterior

    def __call__(self, params: Params) -> Tensor:
        """Return log p(w)."""
        return self.prior(params)


class _Trials:
    """Fits at several scales, with the best so far."""

    def __init__(
        self, target: LogPosterior, make: Callable[[Any], Prior], fit: Fit, groups: Mapping[str, tuple[str, ...]] | None
    ) -> None:
        self.target, self.make, self.fit, self.by_layer = target, make, fit, groups is not None
        self.groups = {"": tuple(target.parameters())} if groups is None else groups
        self.mode: Params | None = None
        self.tried: list[tuple[Scale, float]] = []
        self.best, self.value = np.zeros(len(self.groups)), -math.inf

    def __call__(self, logs: np.ndarray) -> float:
        """Return the log evidence at the logarithms of the scales, one for each group."""
        scale = dict(zip(self.groups, np.exp(logs).tolist(), strict=True))
        named = {name: scale[group] for group, names in self.groups.items() for name in names}
        prior = self.make(named if self.by_layer else scale[""])
        with warnings.catch_warnings(record=True) as issued:
            warnings.simplefilter("always")
            found, value = self.fit(replace(self.target, prior=prior), self.mode)
        self.mode = found.layout.unflatten(found.distribution.mean)
        self.tried.append((scale if self.by_layer else scale[""], value))
        if value > self.value:
            self.best, self.value, self.prior, self.posterior, self.warnings = logs, value, prior, found, issued
        return value

    def chosen(self, bounds: tuple[float, float]) -> ChosenPrior:
        """Return the best; warn where a scale is at a bound, and of what its own fit warned."""
        if not math.isfinite(self.value):
            raise ValueError("Expected a finite evidence at some scale, but got none: check the data, or narrow `bounds`.")
        for each in self.warnings:
            warnings.warn(each.message, each.category, stacklevel=4)
        for bound in bounds:
            if (np.abs(self.best - math.log(bound)) < 2 * _TOLERANCE).any():
                warnings.warn(
                    f"The evidence is highest where a scale is at its bound, {bound:g}, and may be higher beyond it: widen "
                    "`bounds`. It is small if the data say nothing about the weights, and large if features are small.",
                    stacklevel=4,
                )
        scale = max(self.tried, key=lambda each: each[1])[0]
        return ChosenPrior(self.prior, scale, self.value, tuple(self.tried), self.posterior)


def _over_all(trials: _Trials, low: float, high: float) -> None:
    """Search for one scale of all groups: by decades, and between the neighbours of the best."""
    ones = np.ones(len(trials.groups))
    points = np.linspace(math.log(low), math.log(high), max(2, math.ceil(math.log10(high / low))) + 1)
    best = int(np.argmax([trials(point * ones) for point in points]))
    _line(lambda at: trials(at * ones), float(points[max(best - 1, 0)]), float(points[min(best + 1, len(points) - 1)]))


def _by_layer(trials: _Trials, low: float, high: float) -> None:
    """Search for the scale of one group at a time, within a decade of its best so far."""
    for _ in range(_SWEEPS):
        before = trials.value
        for i in range(len(trials.groups)):
            best, unit = trials.best.copy(), np.eye(len(trials.groups))[i]
            ends = (max(math.log(low), best[i] - math.log(10)), min(math.log(high), best[i] + math.log(10)))
            _line(lambda at, best=best, unit=unit: trials(best + (at - best @ unit) * unit), *ends)  # type: ignore[misc]
        if trials.value < before + _GAIN:
            return


def _line(value: Callable[[float], float], low: float, high: float) -> None:
    minimize_scalar(lambda at: -value(float(at)), bounds=(low, high), method="bounded", options={"xatol": _TOLERANCE})


def _laplace(data: Data, search: Search, covariance: str = "full", curvature: str | None = None) -> Fit:
    """Return a function: target, start → Laplace's posterior and evidence."""
    remedy = "for the last layer alone, freeze the others by requires_grad_(False)"
    checked_choice(covariance, "covariance", ("full", "diagonal"), remedy)

    def fit(target: LogPosterior, start: Params | None) -> tuple[Posterior, float]:
        found = laplace_from(target, data, start, covariance, curvature, None, "search", None, search)
        return found, float(found.record["log_evidence"])

    return fit


def _variational(data: Data, search: Search, **options: Any) -> Fit:
    """Return a function: target, start (not used) → the posterior by variational inference, and its bound."""

    def fit(target: LogPosterior, start: Params | None) -> tuple[Posterior, float]:
        found = variational(target, data, **vars(search), **options)
        return found, _bound(target, data, found, search)

    return fit


@torch.no_grad()
def _bound(target: LogPosterior, data: Data, found: Posterior, search: Search) -> float:
    """Return E_q[log p(w, Y|X)] + H[q] over all data, from the same standard normal draws in every call."""
    batches = target.minibatches(data, None, device=search.device)
    target = reset_marginal(target.with_data(batches.num_data), True, search.device)
    state, batch = JointModel(found.model, found.likelihood).own(), batches.whole()
    draws = found.distribution.sample(_DRAWS, torch.Generator().manual_seed(search.seed))
    assert target.num_data is not None
    with in_mode(target.model, False):
        values = [float(target({**state, **found.layout.unflatten(draw)}, batch)[0]) for draw in draws]
    return target.num_data * sum(values) / _DRAWS + _entropy(found.distribution)


def _entropy(q: Distribution) -> float:
    if isinstance(q, DiagonalGaussian):
        half_log_det = float(q.standard_deviation.double().log().sum())
    else:
        half_log_det = 0.5 * float(torch.logdet(q.covariance().double()))
    return half_log_det + 0.5 * len(q.mean) * (1 + math.log(2 * math.pi))


def _layers(target: LogPosterior) -> dict[str, tuple[str, ...]]:
    """Return the names of the weights of each layer."""
    found: dict[str, tuple[str, ...]] = {}
    for name in target.parameters():
        layer = LIKELIHOOD[:-1] if name.startswith(LIKELIHOOD) else name.rpartition(".")[0]
        found[layer] = (*found.get(layer, ()), name)
    return found


def _layer_prior(target: LogPosterior, scale: float | Mapping[str, float]) -> Prior:
    return layer_prior(target.model, scale, target.likelihood)


def _checked_bounds(bounds: Any) -> tuple[float, float]:
    if not isinstance(bounds, tuple | list) or len(bounds) != 2:
        raise ValueError(f"Expected `bounds` to be two scales, but got {bounds!r}: write bounds=(0.01, 100).")
    low, high = (positive_number(each, "bounds") for each in bounds)
    if low >= high:
        raise ValueError(f"Expected `bounds` to be increasing, but got {bounds!r}: write bounds=(0.01, 100).")
    return low, high
