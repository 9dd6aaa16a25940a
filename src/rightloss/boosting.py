"""Objectives for LightGBM and XGBoost: the information gain, with its marginal over all rows, and early-stopping metrics.

Stage: raw scores `(n,)` or `(n, k)`, labels `(n,)`, weights `(n,)`, in the form of either library → gradient and positive
Hessian, or the value of a metric. The raw scores are logits at the population.

Both libraries accept the objects directly: natively (`params["objective"]` of LightGBM, `obj=` of `xgboost.train`), called
with `(scores, data)`, and in their scikit-learn classes (`objective=`), called with `(labels, scores, sample_weight)`.

**The loss.** Let z_nk be the raw scores, the population's logits, p_nk = softmax_k(z_n + log r − log π) the prediction in the
reference mix r, s_n the sample weights, W = Σ_n s_n, v_k = Σ_n s_n 1{y_n=k} / W (with evidence ρ_k, as in the losses),
β_n = r_y/ρ_y at y = y_n, and

    m_k = (1/W) Σ_n s_n β_n p_nk,      c_k = v_k − κ r_k,      a_k = c_k / m_k,      ā_n = Σ_j a_j p_nj.

A boosting round uses all rows, so the marginal m is exact, with its value and gradient; nothing is estimated from a minibatch.
The objective of a library is a sum over rows, W times the mean loss:

    F = −Σ_n s_n log p_{n,y_n} + W Σ_k c_k log m_k.

**Gradient.** ∂m_j/∂z_nk = (s_n β_n / W) p_nj (δ_jk − p_nk), so

    ∂F/∂z_nk = s_n [ p_nk − 1{y_n=k} + β_n p_nk (a_k − ā_n) ].

**Exact Hessian, its diagonal.** With ∂²m_j/∂z_nk² = (s_n β_n / W) p_nj [(δ_jk − p_nk)² − p_nk (1 − p_nk)] and b_k = c_k/m_k²,

    ∂²F/∂z_nk² = s_n [ p_nk (1 − p_nk) + β_n p_nk (1 − 2 p_nk)(a_k − ā_n) ]
                 − (s_n β_n)²/W · p_nk² [ b_k (1 − 2 p_nk) + Σ_j b_j p_nj² ].

It is negative, for example, at a confident row, p_nk > ½, of a class that is predicted too rarely: a_k is then large. A Newton
step there goes the wrong way, and LightGBM and XGBoost divide by the sum of it over a leaf.

**The positive Hessian** bounds the curvature along every tree of one class, that is, along any change of the scores of class k
over all the rows, cross terms between the rows included. For c_j > 0 the tangent bounds c_j log m_j from above; the omitted
term, −W c_j (∂ log m_j)², is never positive. For c_j < 0 the bound is Jensen's inequality, as in the EM algorithm. Together
they give, with a⁺ and a⁻ the positive and negative parts of a,

    s_n [ p_nk (1 − p_nk)(1 + β_n Σ_j a⁻_j p_nj) + β_n Σ_j a⁺_j p_nj ((δ_jk − p_nk)² − p_nk (1 − p_nk)) ].

The last sum does not change when a number is added to all a⁺_j. Subtract the smallest, a'_j = a⁺_j − min a⁺ ≥ 0, then leave out
the negative part of each term:

    h_nk = s_n [ p_nk (1 − p_nk)(1 + β_n Σ_j a⁻_j p_nj) + β_n p_nk (a'_k (1 − 2 p_nk) + p_nk Σ_j a'_j p_nj) ].

So h_nk ≥ s_n p_nk (1 − p_nk), the Hessian of cross-entropy. For the same gradient, steps are never longer than those of the
built-in objective, and equally long if the marginal is right (all a_k equal and not negative). On underflow it is 1e-16, as in
XGBoost, never 0. The bound is on the curvature at the current scores, as for any Newton step. At r = π and a small π, a leaf
with only the rare class still takes a first step of the order of 1/π, at r = ρ of 1/ρ; `max_delta_step` of the libraries limits
it. With K raw scores per row h is multiplied by K/(K − 1), because all K change together (Friedman 2000; LightGBM's own factor;
XGBoost's is 2).

**Where it is the built-in objective.** At r = ρ and κ = 1, c = 0: the marginal's terms vanish, and F is the cross-entropy
of the scores moved to ρ, logit adjustment.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from .prevalence import Frequencies, Prevalence, PrevalenceWarning, frequencies

__all__ = ["BoostingMetric", "InformationGainObjective", "WeightedObjective"]

FLOOR = 1e-16  # minimum of the Hessian, as in XGBoost
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


class _Objective:
    """What the objectives share."""

    prevalence: Prevalence

    @property
    def log_loss(self) -> BoostingMetric:
        """Minus the expected log-likelihood at π, lower is better."""
        pi = self.prevalence.population
        return BoostingMetric("expected_log_loss", lambda rows: expected_log_loss(rows, pi), len(pi))


class InformationGainObjective(_Objective):
    """The information gain as an objective, with the exact marginal and gradient, and a positive Hessian.

    The raw scores are the logits of the population: one per row for two classes, K per row (`num_class=K`) for more. Start them
    at log π (`init_score` in LightGBM, `base_margin` in XGBoost) and add it to the predictions. Every round takes the marginal
    over all rows, also with bagging, because both libraries compute the derivatives of all rows and bag afterwards. The
    derivation is at the top of this file.

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
        return _as_given(*gain_derivatives(rows, self._terms), one_score)

    @property
    def metric(self) -> BoostingMetric:
        """The loss itself, the negative mean information gain, on a validation set; lower is better."""
        return BoostingMetric("information_gain_loss", lambda rows: gain_loss(rows, self._terms), self.prevalence.num_classes)

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


class WeightedObjective(_Objective):
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
        return _as_given(*weighted_derivatives(rows, self._weights), one_score)

    @property
    def metric(self) -> BoostingMetric:
        """The weighted loss on a validation set; lower is better."""
        return BoostingMetric("weighted_loss", lambda rows: weighted_loss(rows, self._weights), self.prevalence.num_classes)


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


def _as_given(gradient: np.ndarray, hessian: np.ndarray, one_score: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return derivatives by class as `(n, k)`, the Hessian times K/(K − 1); with one score per row those of class 1 `(n,)`."""
    return (gradient[1], hessian[1]) if one_score else (gradient.T, hessian.T * (len(hessian) / (len(hessian) - 1)))


@dataclass(frozen=True)
class ClassTerms:
    """Prior terms of each class: r, log r − log π, r/ρ, and κ."""

    reference: np.ndarray
    offset: np.ndarray
    weights: np.ndarray
    evidence: float


class ScoredRows(NamedTuple):
    """Raw scores by class `(k, n)`, class numbers `(n,)`, sample weights `(n,)` (None: all 1) and their sum."""

    scores: np.ndarray
    labels: np.ndarray
    sample_weight: np.ndarray | None
    total: float

    def mix(self) -> np.ndarray:
        """Return v (k,), the weighted class frequencies of the rows."""
        return np.bincount(self.labels, self.sample_weight, len(self.scores)) / self.total

    def weigh(self, values: np.ndarray) -> np.ndarray:
        """Return `values (…, n)` times the sample weights."""
        return values if self.sample_weight is None else values * self.sample_weight

    def importance(self, weights: np.ndarray) -> np.ndarray:
        """Return s_n times the weight of the row's class (n,)."""
        return self.weigh(weights[self.labels])


def gain_loss(rows: ScoredRows, terms: ClassTerms) -> float:
    """Return F/W, the mean information gain loss of the rows."""
    table = log_table(rows, terms.offset)
    own = rows.weigh(table[rows.labels, np.arange(len(rows.labels))]).sum() / rows.total
    return float((_excess(rows, terms) * _log_marginal(table, rows, terms)).sum() - own)


def gain_derivatives(rows: ScoredRows, terms: ClassTerms) -> tuple[np.ndarray, np.ndarray]:
    """Return the gradient and the positive Hessian of F by class, `(k, n)` each; the Hessian without the factor K/(K − 1)."""
    table = log_table(rows, terms.offset)
    probs, c = np.exp(table), _excess(rows, terms)
    gradient, hessian = probs.copy(), probs * (1 - probs)
    gradient[rows.labels, np.arange(len(rows.labels))] -= 1
    if c.any():
        log_m = _log_marginal(table, rows, terms)
        beta = terms.weights[rows.labels]
        shares = _shares(table, log_m, beta)
        plus, minus = np.maximum(c, 0)[:, None], np.maximum(-c, 0)[:, None]
        gradient += c[:, None] * shares - probs * (c[:, None] * shares).sum(0)
        with np.errstate(divide="ignore"):
            least = beta * np.exp((np.log(plus[:, 0]) - log_m).min())  # β_n min_k a⁺_k
        own = plus * shares - least * probs
        hessian *= 1 + (minus * shares).sum(0)
        hessian += own * (1 - 2 * probs) + probs**2 * own.sum(0)
    return rows.weigh(gradient), np.maximum(rows.weigh(hessian), FLOOR)


def weighted_derivatives(rows: ScoredRows, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the gradient s β (p − 1{y=k}) and Hessian s β p (1 − p) of the weighted loss by class, `(k, n)` each."""
    probs = np.exp(log_table(rows, np.zeros(len(rows.scores))))
    importance, hessian = rows.importance(weights), probs * (1 - probs)
    probs[rows.labels, np.arange(len(rows.labels))] -= 1
    return probs * importance, np.maximum(hessian * importance, FLOOR)


def weighted_loss(rows: ScoredRows, weights: np.ndarray) -> float:
    """Return the mean of −β_n log p(y_n|x_n)."""
    own = log_table(rows, np.zeros(len(rows.scores)))[rows.labels, np.arange(len(rows.labels))]
    return float(-(own * rows.importance(weights)).sum() / rows.total)


def expected_log_loss(rows: ScoredRows, population: np.ndarray) -> float:
    """Return −Σ_k π_k avg_{n: y_n=k} log p(k|x_n), the negative expected log-likelihood in the population."""
    mix = rows.mix()
    if not mix.all():
        absent = np.flatnonzero(mix == 0).tolist()
        raise ValueError(
            f"Expected every class among the rows to evaluate on, but class(es) {absent} are missing: "
            "split by class (train_test_split(stratify=y)), or evaluate on more rows."
        )
    return weighted_loss(rows, population / mix)


def log_table(rows: ScoredRows, offset: np.ndarray) -> np.ndarray:
    """Return log p_nk by class, `(k, n)`: the log-softmax of the scores plus an offset per class."""
    shifted = rows.scores + offset[:, None]
    shifted -= shifted.max(0)
    return shifted - np.log(np.exp(shifted).sum(0))


def _excess(rows: ScoredRows, terms: ClassTerms) -> np.ndarray:
    """Return c = v − κ r (k,), with ρ for v if there is evidence; exactly 0 if only rounding is left."""
    c = (terms.reference / terms.weights if terms.evidence else rows.mix()) - terms.evidence * terms.reference
    return c if np.abs(c).max() > 1e-9 else np.zeros_like(c)


def _log_marginal(table: np.ndarray, rows: ScoredRows, terms: ClassTerms) -> np.ndarray:
    """Return log m (k,)."""
    with np.errstate(divide="ignore"):
        weighted = table + np.log(rows.importance(terms.weights))
    highest = weighted.max(1, keepdims=True)
    return highest[:, 0] + np.log(np.exp(weighted - highest).sum(1)) - np.log(rows.total)


def _shares(table: np.ndarray, log_m: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """Return β_n p_nk / m_k by class: at most W/s_n, also for a small m; capped for rows without weight."""
    return np.exp(np.minimum(table - log_m[:, None], 600)) * beta


def __getattr__(name: str) -> Any:
    """Name the replacement of a class that is gone."""
    if name == "BoostingClassifier":
        raise ImportError(
            "BoostingClassifier is gone: use rightloss.sklearn.PrevalenceCorrectedClassifier(LGBMClassifier(), population=…). "
            "It takes LightGBM, XGBoost and CatBoost. For other losses give the library an objective of rightloss.boosting."
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
