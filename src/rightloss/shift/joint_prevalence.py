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
from scipy.special import log_softmax

from ..arrays import Array, Numbers, array_of, as_given, checked_level, checked_number, fields_as_given
from ..prevalence import mix_of_every_class
from .estimate import PrevalenceEstimate, warn_of_few
from .joint_likelihood import JointLikelihood, Rows, whitening
from .label_shift import LabelShiftWarning
from .maximum_likelihood import QuadraticModel, log_mixture, maximise
from .regions import boundary_limit, condition_number, curvature_at, profile_region, tangent_inverse


@dataclass(frozen=True, eq=False)
class JointPrevalenceEstimate(PrevalenceEstimate):
    """The result of `joint_prevalence`: a `PrevalenceEstimate` with the fitted model.

    Attributes:
        tilt: α (K,), with mean 0: p(x|k) ∝ exp(α_k + b_k·f(x)) h(x), with one h for all classes. Independent of π.
        slopes: b `(K, d)`, with mean 0 over the classes.
        counts: labelled rows of each class (K,).

    Examples:
        >>> import numpy as np
        >>> from rightloss.shift import joint_prevalence
        >>> draw, y, unknown = np.random.default_rng(0), np.arange(400) % 2, np.arange(2000) % 10 == 0
        >>> x, unlabelled = (draw.normal(2.0 * each[:, None]) for each in (y, unknown))
        >>> estimate = joint_prevalence(x, y, unlabelled)
        >>> np.allclose(np.exp(estimate.log_probs(unlabelled)).mean(0), estimate.population)
        True
    """

    tilt: Array = field(repr=False)
    slopes: Array = field(repr=False)
    counts: Array = field(repr=False)

    @property
    def intercept(self) -> Array:
        """a (K,): α_k + log π̂_k; −∞ for a class with π̂_k = 0."""
        with np.errstate(divide="ignore"):
            return as_given(array_of(self.tilt, "tilt") + np.log(array_of(self.population, "population")), self.tilt)

    def log_probs(self, features: Numbers) -> Any:
        """Return log p(k|x) in the population `(n, K)` for features `(n, d)`; tensors for a tensor."""
        slopes, intercept = array_of(self.slopes, "slopes"), array_of(self.intercept, "intercept")
        given = _table(features, "features", slopes.shape[1])
        return as_given(log_softmax(given @ slopes.T + intercept, axis=1), features)

    def __str__(self) -> str:
        head = f"Prevalence estimate (joint, {int(self.counts.sum()):,} labelled and {self.rows:,} unlabelled rows)"
        return "\n".join([head, *super().__str__().splitlines()[1:]])


def joint_prevalence(
    features: Numbers, y: Numbers, unlabelled: Numbers, *, level: float = 0.95, penalty: float = 1e-3
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
        penalty: τ of −τ/2 Σ_k Var(b_k·f − mean of the classes), which keeps slopes finite if the classes are separated.

    Raises:
        ValueError: if features are not a finite table, differ in width, or a class has no rows.

    Examples:
        >>> import numpy as np
        >>> from rightloss.shift import joint_prevalence
        >>> draw, y, unknown = np.random.default_rng(0), np.arange(400) % 2, np.arange(2000) % 10 == 0
        >>> x, unlabelled = (draw.normal(2.0 * each[:, None]) for each in (y, unknown))
        >>> estimate = joint_prevalence(x, y, unlabelled)
        >>> bool(estimate.low[1] < 0.1 < estimate.high[1])
        True
    """
    level = checked_level(level)
    penalty = checked_number(penalty, "penalty", 0.0, remedy="1e-3 keeps separated classes finite")
    rows, mean, whiten = _whitened(features, y, unlabelled)
    likelihood = JointLikelihood(rows, penalty)
    _warn_of_rows(rows, likelihood)
    best = maximise(likelihood, _start(likelihood, rows))
    likelihood(best.point)
    weights = likelihood.weights

    def go_back() -> None:  # so that a search does not depend on those before
        likelihood.weights = weights

    curvature = curvature_at(best, level)
    full = tangent_inverse(curvature)
    errors = np.sqrt(np.diag(tangent_inverse(best.model.curvature)))
    limit = partial(boundary_limit, level=level, degrees=_degrees(rows))

    def reach(k: int, value: float, model: QuadraticModel) -> tuple[float, float]:
        error = min(float(errors[k]), math.sqrt(tangent_inverse(model.curvature)[k, k]))
        distance, step = min(value, 1 - value) / error, 1e-4
        root, further = math.sqrt(limit(distance)), math.sqrt(limit(distance + step))
        return root, math.copysign(1.0, 0.5 - value) * (further - root) / (step * error)

    most = np.full(len(best.point), math.sqrt(limit(math.inf)))
    low, high = profile_region(likelihood, best, np.sqrt(np.diag(full)), most, reach, go_back)
    if not best.converged:
        warnings.warn("Do not rely on the estimated prevalence: its search did not converge.", LabelShiftWarning, stacklevel=2)
    gamma, multipliers = weights
    slopes = gamma[:, 1:] @ whiten.T  # in the features' own units
    tilt = gamma[:, 0] + multipliers - slopes @ mean
    found = JointPrevalenceEstimate(
        population=best.point,
        low=low,
        high=high,
        level=level,
        region="profile",
        method="joint",
        covariance=full,
        condition=condition_number(curvature),
        iterations=best.iterations,
        converged=best.converged,
        log_likelihood=best.value,
        rows=rows.unlabelled.shape[1],
        calibration=None,
        sampling=rows.counts / rows.counts.sum(),
        tilt=tilt - tilt.mean(),
        slopes=slopes - slopes.mean(0),
        counts=rows.counts,
    )
    return fields_as_given(found, features)


def _degrees(rows: Rows) -> float:
    """Return the degrees of freedom of the rarest class: its labelled rows minus the weights of a class, at least 3."""
    return max(3.0, float(rows.counts.min()) - len(rows.labelled))


def _start(likelihood: JointLikelihood, rows: Rows) -> np.ndarray:
    """Return the π that best fits the unlabelled rows with the model of the labelled rows, moved away from the boundary."""
    densities, size = likelihood.class_densities(), len(rows.counts)
    found = maximise(lambda population: log_mixture(population, [densities]), np.full(size, 1 / size))
    return 0.99 * found.point + 0.01 / size


def _whitened(features: Any, y: Any, unlabelled: Any) -> tuple[Rows, np.ndarray, np.ndarray]:
    """Return the whitened data, and the mean and the matrix used for whitening."""
    labelled = _table(features, "features")
    others = _table(unlabelled, "unlabelled", labelled.shape[1])
    labels = _labels(y, len(labelled))
    mean, whiten = whitening(np.concatenate([labelled, others]))
    if whiten.shape[1] == 0:
        raise ValueError("Expected features that vary, but all rows are equal: use other features.")
    first, second = (np.concatenate([np.ones((1, len(x))), whiten.T @ (x - mean).T]) for x in (labelled, others))
    return Rows(first, labels, second, np.bincount(labels).astype(float)), mean, whiten


def _table(values: Any, name: str, width: int | None = None) -> np.ndarray:
    table = array_of(values, name).astype(np.float64, copy=False)
    if table.ndim != 2 or 0 in table.shape:
        raise ValueError(
            f"Expected `{name}` to be a table (rows, features), but got shape {table.shape}: "
            "give a row per example and a column per feature; `x[:, None]` makes a table of one feature."
        )
    if width is not None and table.shape[1] != width:
        raise ValueError(
            f"Expected `{name}` to have {width} columns, as the labelled rows have, but got {table.shape[1]}: "
            "use the same features for both."
        )
    if not np.isfinite(table).all():
        row = int(np.flatnonzero(~np.isfinite(table).all(1))[0])
        raise ValueError(f"Expected `{name}` to be finite, but row {row} is not: drop such rows, or fill them in.")
    return table


def _labels(y: Any, rows: int) -> np.ndarray:
    labels = array_of(y, "labels")
    labels = labels.astype(np.int64) if labels.dtype == bool else labels
    if labels.shape != (rows,):
        raise ValueError(
            f"Expected one label per labelled row, ({rows},), but got shape {labels.shape}: "
            "were some rows dropped from one of the two?"
        )
    size = 2 if labels.dtype.kind == "f" else max(2, int(labels.max()) + 1)
    mix_of_every_class(labels, size, None, "add some, or number the classes from 0 without gaps")
    return labels.astype(np.int64)


def _warn_of_rows(rows: Rows, likelihood: JointLikelihood) -> None:
    """Warn of classes with few rows, and of labelled rows that a linear model separates perfectly."""
    warn_of_few(rows.counts, 4, "labelled rows")
    if ((likelihood.weights.gamma @ rows.labelled).argmax(0) == rows.labels).all():
        warnings.warn(
            "A linear model separates the labelled rows, so only `penalty` bounds its slopes and the estimate assumes that the "
            "classes do not overlap: use fewer features, or label more rows.",
            LabelShiftWarning,
            stacklevel=3,
        )
