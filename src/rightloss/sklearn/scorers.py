"""Scorers at a prevalence, for `cross_val_score`, `cross_validate` and `GridSearchCV`.

Stage: a fitted classifier, X, y → log-probabilities → one figure of `rightloss.metrics.evaluate` at the population; greater is
better.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from numbers import Real
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.validation import column_or_1d

from ..arrays import Numbers, checked_choice, log_prob_table
from ..metrics.class_statistics import make_spec
from ..metrics.confidence import EvaluationInputs, prepare
from ..metrics.decisions import cost_matrix
from ..metrics.figures import FIGURES
from ..metrics.sample import Sample
from ..predictive import retarget
from ..prevalence import Prevalence, PrevalenceWarning, without_estimate
from .population import Population, class_prevalence, names_positive
from .training_mix import own_population

_RANKINGS = ("auc", "auc_pairwise")  # figures that need only the ranking
_OF_POSITIVE = ("ppv", "npv", "tpr", "tnr", "net_benefit")  # figures that change if two classes change places
_SURE = float(np.finfo(np.float64).eps)  # the probability of the other classes for a decision without probabilities

Scored = Literal["labels"]


class PrevalenceScorer(BaseEstimator):
    """A scorer `(estimator, X, y) → float`, greater is better. Make one with `prevalence_scorer`, which checks the options.

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
        """Return the figure of a fitted classifier, signed so that greater is better; NaN, with a warning, if undefined.

        Args:
            estimator: fitted, with `classes_` and probabilities.
            X: the rows.
            y: their labels.
            sample_weight: the weight of each row within its class `(n,)`.
        """
        checked_choice(self.figure, "figure", FIGURES)
        classes = _classes_of(estimator)
        labels = _numbers(y, classes)
        weights = _weights(sample_weight, len(labels))
        counts = np.bincount(labels, weights, len(classes))
        missing = [classes[c] for c in np.flatnonzero(counts == 0)]
        if missing and (self.population is None or isinstance(self.from_, str)):
            return _undefined(self.figure, f"no row of class(es) {missing}, so the mix of the labels cannot be the population")
        at = _mix(self.population, classes, counts)
        return self._figure(self._table(estimator, X, classes, counts, at), labels, weights, classes, at)

    # these three are what scikit-learn's TunedThresholdClassifierCV reads of a scorer
    _sign = 1
    _kwargs: Mapping[str, Any] = {}

    def _score_func(self, y_true: ArrayLike, y_pred: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the figure of decisions, as labels; its lower bound if it is undefined, such as the PPV of no decisions."""
        checked_choice(self.figure, "figure", FIGURES)
        if not FIGURES[self.figure].of_decisions:
            names = ", ".join(name for name, formula in FIGURES.items() if formula.of_decisions)
            raise ValueError(
                f"Expected a figure of decisions to choose a threshold by, but got {self.figure!r}, which is one of "
                f"probabilities and the same at every threshold: use one of {names}."
            )
        classes = np.unique(np.concatenate([column_or_1d(y_true), column_or_1d(y_pred)]))
        labels, decided = _numbers(y_true, classes), _numbers(y_pred, classes)
        weights = _weights(sample_weight, len(labels))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrevalenceWarning)
            at = _mix(self.population, classes, np.bincount(labels, weights, len(classes)))
            sure = np.log(np.where(np.eye(len(classes))[decided] == 1, 1 - _SURE, _SURE / (len(classes) - 1)))
            found = self._figure(sure, labels, weights, classes, at)
        return FIGURES[self.figure].bounds[0] if math.isnan(found) else found

    def _figure(self, table: np.ndarray, labels: np.ndarray, weights: np.ndarray, classes: np.ndarray, at: Prevalence) -> float:
        """Return the figure of log-probabilities at the population `at`, signed so that greater is better."""
        _check_positive(self.figure, self.threshold, classes)
        kept = weights > 0
        rows, votes = log_prob_table(table[kept], len(classes), "predictions"), weights[kept]
        sample = Sample(rows, Prevalence(at.population), None, labels[kept], None if (votes == 1).all() else votes, None)
        matrix = cost_matrix(len(classes), self.costs, self.threshold)
        return self._greater_is_better(prepare(sample, make_spec(sample, matrix, self.bins, self.figure), self.figure), classes)

    def _table(self, estimator: Any, X: Any, classes: np.ndarray, counts: np.ndarray, at: Prevalence) -> np.ndarray:
        """Return log-probabilities `(n, k)`, moved if requested and if the estimator has no population of its own."""
        if self.figure in _RANKINGS and len(classes) == 2 and hasattr(estimator, "decision_function"):
            odds = np.asarray(estimator.decision_function(X), dtype=np.float64)
            return -np.logaddexp(0, np.stack([odds, -odds], 1))
        table = _log_probabilities(estimator, X, self.figure)
        if self.from_ is None or own_population(estimator) is not None:
            return table
        return np.asarray(retarget(table, _mix(self.from_, classes, counts), at))

    def _greater_is_better(self, inputs: EvaluationInputs, classes: np.ndarray) -> float:
        formula = FIGURES[self.figure]
        if self.figure in inputs.reasons:
            return _undefined(self.figure, f"{inputs.reasons[self.figure]} of {classes.tolist()}, numbered from 0")
        value = inputs.values[self.figure, None]
        if formula.ideal is not None:
            return -abs(value - np.asarray(formula.ideal(inputs.statistics)).item())
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
    """Return a scorer for one figure of `evaluate` at the class frequencies `population`.

    A row of class c has the weight π_c/n_c, so test folds may have any mix of classes. Greater is better, as in scikit-learn:
    figures for which lower is better (`brier`, `calibration_error`, `expected_cost`) change their sign. Figures with an ideal
    value (`calibration_slope`, `calibration_intercept`, `mean_prediction`) become the negative distance from it.

    **Which predictions are scored.** By default those of the estimator, unchanged. rightloss's classifiers predict at their
    own population: give them the same one. A plain classifier predicts at its training mix, so it is miscalibrated at another.
    That is the right score if nobody corrects it, but misleading if you choose among models to be corrected. For that, `from_`
    names the mix of its predictions, which are then moved to `population` before scoring. A scorer does not know the training
    labels, so you must name the mix. "labels" uses that of the scored labels, which is right for stratified folds without class
    weights. Estimators with a fitted `population_` (also as the last step of a pipeline, or the best of a search) are never
    moved.

    A probability of exactly 0 is replaced by the machine epsilon of its dtype, as in scikit-learn's `log_loss`. For `auc` of
    two classes the ranking by `decision_function` is used if there is one.

    Args:
        figure: the name of a figure in `Evaluation`.
        population: π: a dict by class label; the frequency of `classes_[1]` (of two words only if that is plainly the positive
            one, such as "yes"); K frequencies; a `Prevalence` (its mean) or an estimate. None for the mix of the scored
            labels, as in scikit-learn's own scorers.
        from_: the mix of plain classifiers' predictions, in the form of `population`; or "labels". None to not move them.
        costs: costs of decisions `(k, k)`, as in `evaluate`.
        threshold: for two classes, instead of `costs`: decide `classes_[1]` from this probability on.
        bins: number of bins of the calibration error.

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
    checked_choice(figure, "figure", FIGURES)
    if costs is not None and threshold is not None:
        raise ValueError("Expected `costs` or `threshold`, but got both: a threshold is shorthand for a table of costs.")
    for name, value in (("population", population), ("from_", from_)):
        _check_mix(value, name)
    return PrevalenceScorer(figure, population, from_, costs, threshold, bins)


def _check_positive(figure: str, threshold: float | None, classes: np.ndarray) -> None:
    """Raise a ValueError if a figure or threshold is of the positive of two classes, and these are words in another order."""
    if len(classes) == 2 and (figure in _OF_POSITIVE or threshold is not None) and not names_positive(classes):
        what = f"{figure} with a threshold" if figure not in _OF_POSITIVE else figure
        raise ValueError(
            f"Expected labels that show the positive class for {what}, but got {classes.tolist()}, of which the second, "
            f"{classes.tolist()[1]!r}, would be taken: give labels of 0 and 1."
        )


def _check_mix(value: Any, name: str) -> None:
    """Raise a ValueError, before anything is trained, for values that cannot be class frequencies."""
    value = without_estimate(value)
    if isinstance(value, str):
        if (name, value) != ("from_", "labels"):
            raise ValueError(f'Expected `{name}` to be frequencies, but got {value!r}: only `from_` may be a word, "labels".')
    elif isinstance(value, Real):
        Prevalence.binary(float(value))
    elif value is not None and not isinstance(value, Prevalence):
        Prevalence(list(value.values()) if isinstance(value, Mapping) else value)


def _mix(value: Any, classes: np.ndarray, counts: np.ndarray) -> Prevalence:
    """Return a mix of the classes as a `Prevalence`; that of the labels for None or "labels"."""
    if value is None or isinstance(value, str):
        return Prevalence(counts / counts.sum())
    return class_prevalence(value, classes, np.full(len(classes), 1 / len(classes)))


def _undefined(figure: str, reason: str) -> float:
    warnings.warn(f"{figure} is not defined on these rows: {reason}. Use stratified folds.", PrevalenceWarning, stacklevel=4)
    return math.nan


def _classes_of(estimator: Any) -> np.ndarray:
    classes = getattr(estimator, "classes_", None)
    if classes is None or np.ndim(classes) != 1 or len(classes) < 2:
        raise ValueError(
            f"Expected a fitted classifier with `classes_`, at least two, but got {type(estimator).__name__} with "
            f"{'none' if classes is None else list(classes)}: fit it on labels of every class."
        )
    return np.asarray(classes)


def _numbers(y: ArrayLike, classes: np.ndarray) -> np.ndarray:
    """Return the labels as indices into `classes`."""
    known = {label: number for number, label in enumerate(classes.tolist())}
    met, place = np.unique(column_or_1d(y), return_inverse=True)
    unknown = [label for label in met.tolist() if label not in known]
    if unknown:
        raise ValueError(
            f"Expected labels among the classifier's classes {list(known)}, but got {unknown[:5]}: it has not been trained on "
            "them; use stratified folds."
        )
    return np.array([known[label] for label in met.tolist()], dtype=np.int64)[place]


def _weights(sample_weight: ArrayLike | None, rows: int) -> np.ndarray:
    if sample_weight is None:
        return np.ones(rows)
    weights = np.asarray(sample_weight, dtype=np.float64)
    if weights.shape != (rows,) or not bool((weights >= 0).all()) or not 0 < float(weights.sum()) < math.inf:
        raise ValueError(
            f"Expected `sample_weight` to be {rows} numbers of 0 or more, but got shape {weights.shape}"
            f"{'' if weights.shape != (rows,) else ' with negative, missing or only zero ones'}: one weight per row."
        )
    return weights


def _log_probabilities(estimator: Any, X: Any, figure: str) -> np.ndarray:
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
