"""Estimate the prevalence jointly with a model, from labelled rows sampled by class and unlabelled rows of the population.

Stage: features of both, labels → `JointPrevalenceEstimate`: π̂ with an interval, and the model's weights.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..log_probs import Numbers, as_given, tensor_of
from ..prevalence import class_frequencies
from ..rng import checked_level
from .estimate import PrevalenceEstimate
from .joint_likelihood import JointLikelihood, Rows, whitening
from .label_shift import LabelShiftWarning
from .maximum_likelihood import Maximum, QuadraticModel, maximise
from .regions import boundary_limit, condition_number, curvature_at, profile_region, tangent_inverse

_FEW = 15  # with fewer labelled rows of a class, intervals may cover too little


@dataclass(frozen=True, eq=False)
class JointPrevalenceEstimate(PrevalenceEstimate):
    """The result of `joint_prevalence`: a `PrevalenceEstimate` with the fitted model.

    Attributes:
        tilt: α (K,), with mean 0: p(x|k) ∝ exp(α_k + b_k·f(x)) h(x), with one h for all classes. Independent of π.
        slopes: b `(K, d)`, with mean 0 over the classes.
        counts: labelled rows of each class (K,).

    Examples:
        >>> import torch
        >>> from rightloss.shift import joint_prevalence
        >>> y, unknown = torch.arange(400) % 2, torch.arange(2000) % 10 == 0
        >>> x, unlabelled = (torch.randn(len(k), 1) + 2 * k.float()[:, None] for k in (y, unknown))
        >>> estimate = joint_prevalence(x, y, unlabelled)
        >>> mean = estimate.log_probs(unlabelled).exp().mean(0)
        >>> torch.allclose(mean.double(), estimate.population, atol=1e-6)
        True
    """

    tilt: Tensor = field(repr=False)
    slopes: Tensor = field(repr=False)
    counts: Tensor = field(repr=False)

    @property
    def intercept(self) -> Tensor:
        """a (K,): α_k + log π̂_k; −∞ for a class with π̂_k = 0."""
        return self.tilt + self.population.log()

    def log_probs(self, features: Numbers) -> Any:
        """Return log p(k|x) in the population `(n, K)` for features `(n, d)`, with the type of the input."""
        given = _table(features, "features", self.slopes.shape[1])
        return as_given(torch.log_softmax(given @ self.slopes.T + self.intercept, 1), features)

    def __str__(self) -> str:
        head = f"Prevalence estimate (joint, {int(self.counts.sum()):,} labelled and {self.rows:,} unlabelled rows)"
        return "\n".join([head, *super().__str__().splitlines()[1:]])


def joint_prevalence(
    features: Numbers,
    y: Numbers,
    unlabelled: Numbers,
    *,
    level: float = 0.95,
    unlabelled_weight: float | None = None,
    penalty: float = 1e-3,
) -> JointPrevalenceEstimate:
    """Estimate the prevalence by the joint maximum likelihood of π and of p(k|x) ∝ exp(a_k + b_k·f(x)), with intervals.

    Unlike `estimate_prevalence` it uses no given predictions: labelled rows, drawn by class in any numbers, and unlabelled
    rows of the population fit the model together. So the intervals include the uncertainty of the model. π̂_k is the model's
    mean prediction over the unlabelled rows. f is the inputs of a logistic model, or the logits of a trained network on rows
    that it was *not* trained on; the model is then an affine recalibration of it. The estimate does not depend on the units of
    f, nor on a linear map of it.

    Intervals are those of the profile likelihood with p(x) profiled out, see `JointLikelihood`. The limit of the deviance is
    that of χ² with 1 degree of freedom, and smaller near 0 and 1 (`boundary_limit`). If a class has few labelled rows,
    Student's t replaces the normal distribution; its degrees of freedom are the rows of the rarest class minus d + 1, a choice
    made among a few on simulated draws. Intervals include 0 if 0 is probable enough. The class counts of the labelled rows
    are treated as fixed by design, as in a case-control study (Prentice and Pyke 1979). Random counts change nothing, because
    they contain no information about π.

    Args:
        features: f of the labelled rows `(n, d)`.
        y: their classes (n,), 0 … K−1; each class needs rows. Fewer than 15 give a warning.
        unlabelled: f of the population's rows `(m, d)`, assumed to be independent.
        level: the level of the intervals.
        unlabelled_weight: λ, the weight of unlabelled relative to labelled rows; by default m/n, the same for each row. Other
            values are consistent, but less precise: the limit of the deviance is then scaled by Var/Var_0, with Var the
            sandwich variance.
        penalty: τ of −τ/2 Σ_k Var(b_k·f − mean of the classes), which keeps slopes finite if the classes are separated.

    Raises:
        ValueError: if features are not a finite table, differ in width, or a class has no rows.

    Examples:
        >>> import torch
        >>> from rightloss.shift import joint_prevalence
        >>> y, unknown = torch.arange(400) % 2, torch.arange(2000) % 10 == 0
        >>> x, unlabelled = (torch.randn(len(k), 1) + 2 * k.float()[:, None] for k in (y, unknown))
        >>> estimate = joint_prevalence(x, y, unlabelled)
        >>> bool(estimate.low[1] < 0.1 < estimate.high[1])
        True
    """
    level = checked_level(level)
    rows, mean, whiten = _whitened(features, y, unlabelled, unlabelled_weight)
    likelihood = JointLikelihood(rows, _checked_penalty(penalty))
    _warn_of_rows(rows, likelihood)
    best = maximise(likelihood, _start(likelihood, rows))
    likelihood(best.point)
    go_back = partial(likelihood.go_back, likelihood.last)
    curvature = curvature_at(best, level)
    plain = full = tangent_inverse(curvature)
    widening = np.ones(len(best.point))
    if unlabelled_weight is not None:
        full = plain @ likelihood.score_variance(best.point) @ plain
        widening = np.divide(np.diag(full), np.diag(plain), out=widening, where=np.diag(plain) > 0)
    limit = partial(boundary_limit, level=level, degrees=_degrees(rows))
    low, high = profile_region(likelihood, best, np.sqrt(np.diag(plain)), limit, widening, go_back)
    go_back()  # to the weights at π̂
    if not best.converged:
        warnings.warn("Do not rely on the estimated prevalence: its search did not converge.", LabelShiftWarning, stacklevel=2)
    return _estimate(best, likelihood, rows, (mean, whiten), low, high, full, condition_number(curvature), level)


def _degrees(rows: Rows) -> float:
    """Return the degrees of freedom of the rarest class: its labelled rows minus the weights of a class, at least 3."""
    return max(3.0, float(rows.counts.min()) - len(rows.labelled))


def _start(likelihood: JointLikelihood, rows: Rows) -> np.ndarray:
    """Return the π that best fits the unlabelled rows with the model of the labelled rows, moved away from the boundary."""
    densities, size = likelihood.class_densities(), len(rows.counts)

    def of_labelled_model(population: np.ndarray) -> QuadraticModel:
        mixed = torch.from_numpy(population) @ densities
        shares = densities / mixed
        return QuadraticModel(population, float(mixed.log().sum()), shares.sum(1).numpy(), (shares @ shares.T).numpy())

    return 0.99 * maximise(of_labelled_model, np.full(size, 1 / size)).point + 0.01 / size


def _estimate(
    best: Maximum,
    likelihood: JointLikelihood,
    rows: Rows,
    map_: tuple[np.ndarray, np.ndarray],
    low: np.ndarray,
    high: np.ndarray,
    covariance: np.ndarray,
    condition: float,
    level: float,
) -> JointPrevalenceEstimate:
    """Return the result, with weights in the features' own units."""
    mean, whiten = map_
    gamma = likelihood.weights.gamma
    slopes = gamma[:, 1:] @ whiten.T
    tilt = gamma[:, 0] + likelihood.weights.log_multipliers - slopes @ mean
    arrays = {
        "population": best.point,
        "low": low,
        "high": high,
        "covariance": covariance,
        "sampling": rows.counts / rows.counts.sum(),
        "tilt": tilt - tilt.mean(),
        "slopes": slopes - slopes.mean(0),
        "counts": rows.counts,
    }
    with torch.inference_mode(False):  # so that the tensors can also be used in training
        return JointPrevalenceEstimate(
            **{name: torch.from_numpy(np.array(value)) for name, value in arrays.items()},
            level=level,
            region="profile",
            method="joint",
            condition=condition,
            iterations=best.iterations,
            converged=best.converged,
            log_likelihood=best.value,
            rows=rows.unlabelled.shape[1],
            calibration=None,
        )


def _whitened(features: Any, y: Any, unlabelled: Any, mass: Any) -> tuple[Rows, np.ndarray, np.ndarray]:
    """Return the whitened data, and the mean and the matrix used for whitening."""
    labelled = _table(features, "features").numpy()
    others = _table(unlabelled, "unlabelled", labelled.shape[1]).numpy()
    labels = _labels(y, len(labelled))
    weight = _checked_weight(mass, len(labelled) / len(others))
    mean, whiten = whitening(np.concatenate([labelled, others]))
    if whiten.shape[1] == 0:
        raise ValueError("Expected features that vary, but all rows are equal: use other features.")
    first, second = (
        torch.from_numpy(np.concatenate([np.ones((1, len(x))), whiten.T @ (x - mean).T])) for x in (labelled, others)
    )
    counts = labels.bincount().double().numpy()
    return Rows(first, labels, second, weight, counts), mean, whiten


def _table(values: Any, name: str, width: int | None = None) -> Float[Tensor, "n d"]:
    table = tensor_of(values, name).detach().to("cpu", torch.float64)
    if table.ndim != 2 or 0 in table.shape:
        raise ValueError(
            f"Expected `{name}` to be a table (rows, features), but got shape {tuple(table.shape)}: "
            "give a row per example and a column per feature; `x[:, None]` makes a table of one feature."
        )
    if width is not None and table.shape[1] != width:
        raise ValueError(
            f"Expected `{name}` to have {width} columns, as the labelled rows have, but got {table.shape[1]}: "
            "use the same features for both."
        )
    if not bool(torch.isfinite(table).all()):
        row = int(torch.nonzero(~torch.isfinite(table).all(1))[0])
        raise ValueError(f"Expected `{name}` to be finite, but row {row} is not: drop such rows, or fill them in.")
    return table


def _labels(y: Any, rows: int) -> Tensor:
    labels = tensor_of(y, "labels").detach().cpu()
    labels = labels.long() if labels.dtype == torch.bool else labels
    if labels.shape != (rows,):
        raise ValueError(
            f"Expected one label per labelled row, ({rows},), but got shape {tuple(labels.shape)}: "
            "were some rows dropped from one of the two?"
        )
    size = 2 if labels.is_floating_point() else max(2, int(labels.max()) + 1)
    missing = torch.nonzero(class_frequencies(labels, size) == 0).flatten().tolist()
    if missing:
        raise ValueError(
            f"Expected labelled rows of every class, but class(es) {missing} have none: add some, or number the classes from 0 "
            "without gaps."
        )
    return labels.long()


def _checked_weight(mass: Any, per_row: float) -> float:
    """Return the weight of an unlabelled row: 1, or λ n/m."""
    if mass is None:
        return 1.0
    if isinstance(mass, bool) or not isinstance(mass, int | float) or not 0 < mass < math.inf:
        raise ValueError(
            f"Expected `unlabelled_weight` to be a positive number, but got {mass!r}: it is the weight of unlabelled relative "
            "to labelled rows; None gives each row the same weight."
        )
    return float(mass) * per_row


def _checked_penalty(penalty: Any) -> float:
    if isinstance(penalty, bool) or not isinstance(penalty, int | float) or not 0 <= penalty < math.inf:
        raise ValueError(f"Expected `penalty` to be a number ≥ 0, but got {penalty!r}: 1e-3 keeps separated classes finite.")
    return float(penalty)


def _warn_of_rows(rows: Rows, likelihood: JointLikelihood) -> None:
    """Warn of classes with few rows, and of labelled rows that a linear model separates perfectly."""
    few = np.flatnonzero(rows.counts < _FEW).tolist()
    if few:
        warnings.warn(
            f"Class(es) {few} have fewer than {_FEW} labelled rows: intervals may cover less than their level; label more.",
            LabelShiftWarning,
            stacklevel=3,
        )
    if bool(((torch.from_numpy(likelihood.weights.gamma) @ rows.labelled).argmax(0) == rows.labels).all()):
        warnings.warn(
            "A linear model separates the labelled rows, so only `penalty` bounds its slopes and the estimate assumes that the "
            "classes do not overlap: use fewer features, or label more rows.",
            LabelShiftWarning,
            stacklevel=3,
        )
