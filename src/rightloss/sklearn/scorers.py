"""Scorers at a prevalence, for `cross_val_score`, `cross_validate` and `GridSearchCV`.

Stage: a fitted classifier, X, y → log-probabilities → one figure of `rightloss.metrics.evaluate` at the population, greater is
better.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from numbers import Real
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.validation import column_or_1d

from ..log_probs import Numbers, log_prob_table
from ..metrics.class_statistics import make_spec
from ..metrics.decisions import cost_matrix
from ..metrics.evaluation_inputs import EvaluationInputs, prepare
from ..metrics.figures import FIGURES
from ..metrics.sample import Sample
from ..predictive import retarget
from ..prevalence import Prevalence, PrevalenceWarning, without_estimate
from .population import Population, class_prevalence

_RANKINGS = ("auc", "auc_pairwise")  # for which an order is enough

Scored = Literal["labels"]


class PrevalenceScorer(BaseEstimator):
    """A scorer `(estimator, X, y) → float`, greater is better. See `prevalence_scorer`, which makes one and checks its options.

    It can be cloned and pickled. With metadata routing, `set_score_request(sample_weight=True)` asks for weights.

    Examples:
        >>> from sklearn.datasets import load_breast_cancer
        >>> from sklearn.naive_bayes import GaussianNB
        >>> from rightloss.sklearn.scorers import PrevalenceScorer
        >>> X, y = load_breast_cancer(return_X_y=True)
        >>> scorer = PrevalenceScorer("auc", population=0.99)
        >>> round(scorer(GaussianNB().fit(X, y), X, y), 3)
        0.989
    """

    __metadata_request__score = {"estimator": UNUSED}  # noqa: RUF012  # an argument, no metadata

    def __init__(
        self,
        figure: str = "expected_log_likelihood",
        population: Population | None = None,
        from_: Population | Scored | None = None,
        costs: Numbers | None = None,
        threshold: float | None = None,
        bins: int = 15,
    ) -> None:
        self.figure = figure
        self.population = population
        self.from_ = from_
        self.costs = costs
        self.threshold = threshold
        self.bins = bins

    def __call__(self, estimator: Any, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        return self.score(estimator, X, y, sample_weight)

    def score(self, estimator: Any, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the figure of a fitted classifier, its sign such that greater is better; NaN, with a warning, where it is
        not defined on these labels.

        Args:
            estimator: fitted, with `classes_` and probabilities.
            X: the rows.
            y: their labels.
            sample_weight: how much each counts within its class `(n,)`.
        """
        _check_figure(self.figure)
        classes = _classes_of(estimator)
        labels = _numbers(y, classes)
        weights = _weights(sample_weight, len(labels))
        counts = np.bincount(labels, weights, len(classes))
        missing = [classes[c] for c in np.flatnonzero(counts == 0)]
        if missing and (self.population is None or isinstance(self.from_, str)):
            return _undefined(self.figure, f"no row of class(es) {missing}, so the mix of the labels is not one to score at")
        at = _mix(self.population, classes, counts)
        table = self._table(estimator, X, classes, counts, at)
        kept = weights > 0
        votes = None if sample_weight is None else torch.from_numpy(weights[kept])
        rows = torch.from_numpy(table[kept])
        log_prob_table(rows, len(classes), "predictions")
        sample = Sample(rows, Prevalence(at.population), None, torch.from_numpy(labels[kept]), votes, None)
        matrix = cost_matrix(len(classes), self.costs, self.threshold)
        return self._greater_is_better(prepare(sample, make_spec(sample, matrix, self.bins, self.figure), self.figure), classes)

    def _table(self, estimator: Any, X: Any, classes: NDArray[Any], counts: NDArray[Any], at: Prevalence) -> NDArray[Any]:
        """Return log-probabilities `(n, k)`, moved where that is asked for and the estimator has no population of its own."""
        if self.figure in _RANKINGS and len(classes) == 2 and hasattr(estimator, "decision_function"):
            odds = torch.from_numpy(np.asarray(estimator.decision_function(X), dtype=np.float64))
            return torch.stack([torch.nn.functional.logsigmoid(-odds), torch.nn.functional.logsigmoid(odds)], 1).numpy()
        table = _log_probabilities(estimator, X, self.figure)
        if self.from_ is None or _has_population(estimator):
            return table
        return np.asarray(retarget(table, _mix(self.from_, classes, counts), at))

    def _greater_is_better(self, inputs: EvaluationInputs, classes: NDArray[Any]) -> float:
        formula = FIGURES[self.figure]
        if self.figure in inputs.reasons:
            return _undefined(self.figure, f"{inputs.reasons[self.figure]} of {classes.tolist()}, numbered from 0")
        value = inputs.values[self.figure, None]
        if formula.ideal is not None:
            return -abs(value - float(formula.ideal(inputs.statistics)))
        return -value if formula.better == "lower" else value


def prevalence_scorer(
    figure: str = "expected_log_likelihood",
    population: Population | None = None,
    *,
    from_: Population | Scored | None = None,
    costs: Numbers | None = None,
    threshold: float | None = None,
    bins: int = 15,
) -> PrevalenceScorer:
    """Make a scorer that states one figure of `evaluate` where the classes come as `population` says.

    A row of class c counts π_c/n_c, so that test folds may have any mix of classes. Greater is better, as scikit-learn
    wants it: figures that are better low (`brier`, `calibration_error`, `expected_cost`) have their sign changed, and of those
    with an ideal (`calibration_slope`, `calibration_intercept`, `mean_prediction`) it is the distance from it, negative.

    **Which predictions are scored.** Those that the estimator makes, as they are. rightloss's classifiers predict at a
    population of their own: give them the same one. A plain classifier predicts at its training mix, and scored at another it
    looks as miscalibrated as it is: that is right if nobody will correct it, and misleading for choosing among models that
    will be corrected. `from_` then names the mix that it predicts at, and predictions are moved from there to `population`
    before they are scored. A scorer does not see the training labels, so the mix is yours to name: "labels" takes that of the
    labels scored, which is right for stratified folds and no class weights. Estimators with a fitted `population_` (also as the
    last step of a pipeline, or the best of a search) are never moved.

    A probability of exactly 0 counts as the smallest that its dtype tells from 0 beside 1, as in scikit-learn's `log_loss`. For
    `auc` of two classes the order by `decision_function` is used where there is one.

    Args:
        figure: a figure's name in `Evaluation`.
        population: π: the frequency of `classes_[1]`, K frequencies, a dict by class label, a `Prevalence` (its mean) or an
            estimate. None: the mix of the labels scored, as in scikit-learn's own scorers.
        from_: the mix that plain classifiers predict at, written as `population`; or "labels". None: score as they are.
        costs: of decisions `(k, k)`, as in `evaluate`.
        threshold: for two classes, in the place of `costs`: decide `classes_[1]` from this probability on.
        bins: for the calibration error.

    Examples:
        >>> from sklearn.datasets import load_breast_cancer
        >>> from sklearn.linear_model import LogisticRegression
        >>> from sklearn.model_selection import cross_val_score
        >>> from sklearn.pipeline import make_pipeline
        >>> from sklearn.preprocessing import StandardScaler
        >>> from rightloss.sklearn.scorers import prevalence_scorer
        >>> X, y = load_breast_cancer(return_X_y=True)
        >>> model = make_pipeline(StandardScaler(), LogisticRegression())
        >>> as_it_is = prevalence_scorer(population={0: 0.01, 1: 0.99})
        >>> corrected = prevalence_scorer(population={0: 0.01, 1: 0.99}, from_="labels")
        >>> [round(float(cross_val_score(model, X, y, scoring=scorer).mean()), 3) for scorer in (as_it_is, corrected)]
        [-0.049, -0.008]
    """
    _check_figure(figure)
    if costs is not None and threshold is not None:
        raise ValueError("Expected `costs` or `threshold`, but got both: a threshold is shorthand for a table of costs.")
    for name, value in (("population", population), ("from_", from_)):
        _check_mix(value, name)
    return PrevalenceScorer(figure, population, from_, costs, threshold, bins)


def _check_figure(figure: str) -> None:
    if figure not in FIGURES:
        raise ValueError(f"Expected `figure` to be one of {', '.join(FIGURES)}, but got {figure!r}: choose one.")


def _check_mix(value: Any, name: str) -> None:
    """Refuse what no set of classes could have as its mix, before anything is trained."""
    value = without_estimate(value)
    if isinstance(value, str):
        if (name, value) != ("from_", "labels"):
            raise ValueError(f'Expected `{name}` to be frequencies, but got {value!r}: only `from_` may be a word, "labels".')
    elif isinstance(value, Real):
        Prevalence.binary(float(value))
    elif value is not None and not isinstance(value, Prevalence):
        Prevalence(list(value.values()) if isinstance(value, Mapping) else value)


def _mix(value: Any, classes: NDArray[Any], counts: NDArray[Any]) -> Prevalence:
    """Return a mix of the classes as a `Prevalence`; that of the labels where none is given, or "labels"."""
    if value is None or isinstance(value, str):
        return Prevalence(counts / counts.sum())
    return class_prevalence(value, classes, np.full(len(classes), 1 / len(classes)))


def _undefined(figure: str, reason: str) -> float:
    warnings.warn(f"{figure} is not defined on these rows: {reason}. Use stratified folds.", PrevalenceWarning, stacklevel=4)
    return math.nan


def _classes_of(estimator: Any) -> NDArray[Any]:
    classes = getattr(estimator, "classes_", None)
    if classes is None or np.ndim(classes) != 1 or len(classes) < 2:
        raise ValueError(
            f"Expected a fitted classifier with `classes_`, at least two, but got {type(estimator).__name__} with "
            f"{'none' if classes is None else list(classes)}: fit it on labels of every class."
        )
    return np.asarray(classes)


def _numbers(y: ArrayLike, classes: NDArray[Any]) -> NDArray[np.int64]:
    """Number labels by their place in `classes`."""
    known = {label: number for number, label in enumerate(classes.tolist())}
    met, place = np.unique(column_or_1d(y), return_inverse=True)
    unknown = [label for label in met.tolist() if label not in known]
    if unknown:
        raise ValueError(
            f"Expected labels among the classifier's classes {list(known)}, but got {unknown[:5]}: it has not been trained on "
            "them; use stratified folds."
        )
    return np.array([known[label] for label in met.tolist()], dtype=np.int64)[place]


def _weights(sample_weight: ArrayLike | None, rows: int) -> NDArray[np.float64]:
    if sample_weight is None:
        return np.ones(rows)
    weights = np.asarray(sample_weight, dtype=np.float64)
    if weights.shape != (rows,) or not bool((weights >= 0).all()) or not 0 < float(weights.sum()) < math.inf:
        raise ValueError(
            f"Expected `sample_weight` to be {rows} numbers of 0 or more, but got shape {weights.shape}"
            f"{'' if weights.shape != (rows,) else ' with negative, missing or only zero ones'}: one weight per row."
        )
    return weights


def _log_probabilities(estimator: Any, X: Any, figure: str) -> NDArray[Any]:
    if not hasattr(estimator, "predict_proba") and not hasattr(estimator, "predict_log_proba"):
        raise ValueError(
            f"Expected a classifier with `predict_proba` to score {figure}, but got {type(estimator).__name__}: wrap it in "
            'PrevalenceCorrectedClassifier or CalibratedClassifierCV, or score "auc".'
        )
    with np.errstate(divide="ignore"):
        if hasattr(estimator, "predict_log_proba"):
            table = np.array(estimator.predict_log_proba(X))
        else:
            table = np.log(np.asarray(estimator.predict_proba(X)))
    table[np.isneginf(table)] = math.log(np.finfo(table.dtype).eps)
    return table


def _has_population(estimator: Any) -> bool:
    """Tell whether the classifier, or the one inside a pipeline or a search, predicts at a population of its own."""
    inner = getattr(estimator, "best_estimator_", None)
    if inner is None and hasattr(estimator, "steps"):
        inner = estimator.steps[-1][1]
    return hasattr(estimator, "population_") or (inner is not None and _has_population(inner))
