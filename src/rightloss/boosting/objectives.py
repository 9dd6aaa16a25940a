"""Objectives and early-stopping metrics for LightGBM and XGBoost, with raw scores that are logits at the population.

Stage: raw scores and labels, in the form of either library → gradient and Hessian, or the value of a metric.

Both libraries accept the objects directly: natively (`params["objective"]` of LightGBM, `obj=` of `xgboost.train`), called
with `(scores, data)`, and in their scikit-learn classes (`objective=`), called with `(labels, scores, sample_weight)`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..prevalence import Frequencies, Prevalence, PrevalenceWarning, frequencies
from .derivatives import (
    ClassTerms,
    ScoredRows,
    binary_derivatives,
    expected_log_loss,
    gain_derivatives,
    gain_loss,
    weighted_derivatives,
    weighted_loss,
)

MISMATCH = 1.25  # the factor by which a class may differ from its declared frequency


@runtime_checkable
class TrainingData(Protocol):
    """The methods of `lightgbm.Dataset` and `xgboost.DMatrix` that the objectives use."""

    def get_label(self) -> Any: ...
    def get_weight(self) -> Any: ...


@runtime_checkable
class XGBoostData(Protocol):
    """The methods that distinguish `xgboost.DMatrix` from `lightgbm.Dataset`."""

    def num_row(self) -> int: ...


class InformationGainObjective:
    """The information gain as an objective, with the exact marginal and gradient, and a positive Hessian.

    The raw scores are the logits of the population: one per row for two classes, K per row (`num_class=K`) for more. Start them
    at log π (`init_score` in LightGBM, `base_margin` in XGBoost) and add it to the predictions. Every round takes the marginal
    over all rows, also with bagging, because both libraries compute the derivatives of all rows and bag afterwards. The
    derivation is in `rightloss.boosting.derivatives`.

    At `reference=None` and κ = 1 this is logit adjustment, which needs no custom objective: use the built-in objective,
    started at log ρ, and add log π − log ρ to its scores.

    Args:
        prevalence: π, ρ (that of the training rows, weights included: `Prevalence.from_labels`) and κ.
        reference: r, the class frequencies of the marginal; ρ by default, π in the paper.

    Examples:
        >>> import lightgbm as lgb, numpy as np, rightloss as rl
        >>> from rightloss.boosting import InformationGainObjective
        >>> y = np.arange(400) % 2
        >>> x = np.random.default_rng(0).normal(size=(400, 3)) + y[:, None]
        >>> objective = InformationGainObjective(rl.Prevalence.binary(population=0.01))
        >>> data = lgb.Dataset(x, y, init_score=np.full(400, np.log(0.01 / 0.99)))
        >>> booster = lgb.train({"objective": objective, "verbosity": -1}, data, num_boost_round=20)
        >>> log_odds = booster.predict(x) + np.log(0.01 / 0.99)
        >>> bool(0.002 < np.mean(1 / (1 + np.exp(-log_odds))[y == 0]) < 0.02)
        True
    """

    def __init__(self, prevalence: Prevalence, reference: Frequencies | None = None) -> None:
        self.prevalence, self.reference = prevalence, reference
        pi, rho = prevalence.population, prevalence.sampling
        mix = rho if reference is None else frequencies(reference, "reference", prevalence.num_classes)
        self._terms = ClassTerms(mix, np.log(mix) - np.log(pi), mix / rho, prevalence.evidence)
        self._warned = False

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """Return gradient and Hessian in the shape of the scores; `(scores, data)` is understood as well."""
        rows, one_score = _rows(y_true, y_pred, sample_weight, self.prevalence.num_classes)
        self._check_mix(rows)
        if one_score:
            return binary_derivatives(rows, self._terms)
        return _by_row(*gain_derivatives(rows, self._terms))

    @property
    def metric(self) -> BoostingMetric:
        """The loss itself, the negative mean information gain, on a validation set; lower is better."""
        return BoostingMetric("information_gain_loss", lambda rows: gain_loss(rows, self._terms), self.prevalence.num_classes)

    @property
    def log_loss(self) -> BoostingMetric:
        """Minus the expected log-likelihood at π, lower is better."""
        return _log_loss_metric(self.prevalence)

    def _check_mix(self, rows: ScoredRows) -> None:
        """Warn once if the class frequencies of the rows are not the declared ones."""
        if self._warned:
            return
        self._warned = True
        mix, sampling = rows.mix(), self.prevalence.sampling
        if (mix > MISMATCH * sampling).any() or (mix < sampling / MISMATCH).any():
            warnings.warn(
                f"Expected training rows in the mix {sampling.round(4).tolist()} (`sampling`), but got "
                f"{mix.round(4).tolist()}: use Prevalence.from_labels(y, population).",
                PrevalenceWarning,
                stacklevel=2,
            )


class WeightedObjective:
    """The importance-weighted loss as an objective, the paper's wLoss: `−β_n log p(y_n|x_n)`, β = π/ρ.

    The raw scores are the logits of the population. It is a baseline for comparisons: at a small prevalence a few rows have
    almost all the weight, which harms the ranking.

    Args:
        prevalence: π and ρ.

    Examples:
        >>> import numpy as np, rightloss as rl
        >>> from rightloss.boosting import WeightedObjective
        >>> objective = WeightedObjective(rl.Prevalence.binary(population=0.01))
        >>> gradient, hessian = objective(np.array([0, 1]), np.zeros(2))
        >>> gradient.round(3), hessian.round(3)
        (array([ 0.99, -0.01]), array([0.495, 0.005]))
    """

    def __init__(self, prevalence: Prevalence) -> None:
        self.prevalence = prevalence
        self._weights = prevalence.weights

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """Return gradient and Hessian in the shape of the scores; `(scores, data)` is understood as well."""
        rows, one_score = _rows(y_true, y_pred, sample_weight, self.prevalence.num_classes)
        gradient, hessian = weighted_derivatives(rows, self._weights)
        return (gradient[1], hessian[1]) if one_score else _by_row(gradient, hessian)

    @property
    def metric(self) -> BoostingMetric:
        """The weighted loss on a validation set; lower is better."""
        return BoostingMetric("weighted_loss", lambda rows: weighted_loss(rows, self._weights), self.prevalence.num_classes)

    @property
    def log_loss(self) -> BoostingMetric:
        """Minus the expected log-likelihood at π, lower is better."""
        return _log_loss_metric(self.prevalence)


class BoostingMetric:
    """A metric of raw scores for early stopping. It is always a loss: lower is better.

    | where | write |
    |---|---|
    | `lightgbm.train` | `feval=objective.metric` |
    | `LGBMClassifier.fit` | `eval_metric=objective.metric` |
    | `xgboost.train` | `custom_metric=objective.metric` |
    | `XGBClassifier` | `eval_metric=objective.metric.score` |

    Examples:
        >>> import numpy as np, rightloss as rl
        >>> from rightloss.boosting import InformationGainObjective
        >>> metric = InformationGainObjective(rl.Prevalence.binary(population=0.5)).log_loss
        >>> metric(np.array([0, 1]), np.zeros(2), None)  # labels, scores, weights: as LGBMClassifier calls it
        ('expected_log_loss', 0.693..., False)
    """

    def __init__(self, name: str, value: Callable[[ScoredRows], float], num_classes: int) -> None:
        self.name, self._value, self._num_classes = name, value, num_classes

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Return name and value, for LightGBM also False, which means "lower is better"."""
        value = self.score(y_true, y_pred, sample_weight)
        return (self.name, value) if isinstance(y_pred, XGBoostData) else (self.name, value, False)

    def score(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> float:
        """Return only the value."""
        return self._value(_rows(y_true, y_pred, sample_weight, self._num_classes)[0])


def _log_loss_metric(prevalence: Prevalence) -> BoostingMetric:
    pi = prevalence.population
    return BoostingMetric("expected_log_loss", lambda rows: expected_log_loss(rows, pi), prevalence.num_classes)


def _rows(first: Any, second: Any, sample_weight: Any, num_classes: int) -> tuple[ScoredRows, bool]:
    """Return the checked rows of `(scores, data)` or `(labels, scores, sample_weight)`, and whether a row has one score."""
    if isinstance(second, TrainingData):
        first, second, sample_weight = second.get_label(), first, second.get_weight()
    labels, scores = _labels(first, num_classes), np.asarray(second, dtype=np.float64)
    one_score = scores.ndim == 1
    if scores.shape != ((len(labels),) if one_score and num_classes == 2 else (len(labels), num_classes)):
        raise ValueError(
            f"Expected raw scores of shape ({len(labels)}, {num_classes}){' or one per row' if num_classes == 2 else ''}, "
            f"but got {scores.shape}: set num_class={num_classes} in the library's parameters, or give the prevalence as many "
            "classes as the labels have."
        )
    by_class = np.stack([np.zeros_like(scores), scores]) if one_score else np.ascontiguousarray(scores.T)
    weights = None if sample_weight is None or np.size(sample_weight) == 0 else np.asarray(sample_weight, dtype=np.float64)
    return ScoredRows(by_class, labels, weights, float(len(labels) if weights is None else weights.sum())), one_score


def _labels(labels: Any, num_classes: int) -> np.ndarray:
    given = np.asarray(labels)
    numbers = given.astype(np.intp)
    if (numbers != given).any() or len(numbers) == 0 or numbers.min() < 0 or numbers.max() >= num_classes:
        raise ValueError(
            f"Expected labels 0..{num_classes - 1}, but got {np.unique(given)[:10].tolist()}: number the classes from 0, "
            "and list each of them in the prevalence."
        )
    return numbers


def _by_row(gradient: np.ndarray, hessian: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return derivatives by class as `(n, k)`, with the Hessian times K/(K − 1)."""
    return gradient.T, hessian.T * (len(hessian) / (len(hessian) - 1))
