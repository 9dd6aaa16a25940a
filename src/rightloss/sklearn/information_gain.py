"""InformationGainClassifier: a linear model trained for the population's class frequencies, with right standard errors.

Stage: `fit(X, y)` at class frequencies ρ, with or without unlabelled rows of the population → `predict_proba(X)` at the
population π; `summary()` for the coefficients' standard errors.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import special
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, validate_data

from ..arrays import checked_choice, checked_level
from ..extras import install
from ..prevalence import Prevalence
from . import linear
from .base import PopulationClassifier, check_solver, training_prevalence
from .coefficients import (
    CoefficientTable,
    Covariance,
    FittedRows,
    coefficient_table,
    covariances,
    is_separated,
    prevalence_variance,
    risk_interval,
)
from .population import LearntPopulation, is_unknown
from .rows import EVIDENCE, LabelledRows, UnlabelledFeatures, read_both, warn_of_absent_class, warn_of_shift
from .stream_likelihood import FittedStreams, fit_streams, stream_covariances, streams_are_separated

_SEPARATED = (
    "Expected classes that overlap, but a combination of the features separates them: the coefficients would be "
    "infinite; use penalty='firth' or 'l2'."
)
_ABSENT = (
    "Expected unlabelled rows of every class for standard errors of a learned population, but the estimate of one class is 0: "
    "give the population, or more unlabelled rows."
)
_DEPENDENT = (
    "Expected linearly independent features for standard errors, but some depend on others: "
    "drop constant and duplicate columns."
)
_SHRUNKEN = (
    "Expected penalty=None or 'firth' for standard errors, but got 'l2': shrunken coefficients are biased, so "
    "their intervals have the wrong coverage; fit again without it."
)
_VOTES = (
    "Expected class labels for standard errors, but got votes: the sampling of votes by class is not known; "
    "fit each row's majority label."
)
_TOO_MANY = (
    f"Expected at most {linear.NEWTON_LIMIT} coefficients for standard errors, but got more: choose fewer features, or "
    "use a bootstrap."
)


class InformationGainClassifier(PopulationClassifier):
    """A linear classifier trained at one mix of classes, with predictions and standard errors for another.

    A linear model that uses all rows at once has the same optimum for the information gain and for logit adjustment, whatever
    the evidence κ: the slopes are those of `LogisticRegression` with the same `C`, and the intercept is that of the population.
    The intercept is always fitted and never penalised, because it holds the prevalence. Features are not standardised: do so in
    a pipeline before an "l2" penalty. `InformationGainMLPClassifier` has hidden layers.

    Args:
        population: π, the population's class frequencies: a dict by class label; for two classes a number, the frequency of
            `classes_[1]` (words only if that is plainly the positive one, such as "yes" or "malignant"; else a dict); K
            frequencies in the order of `classes_`; a `Prevalence` or an estimate of one. None for the training mix. "unknown"
            to learn it from `X_unlabelled`; `rightloss.shift.joint_prevalence` returns intervals of it.
        loss: "information_gain"; "weighted", with each class's importance π/ρ, to compare.
        penalty: "l2"; "firth" for few cases or separated classes, of two classes (see `linear.firth`); None.
        C: inverse of the strength of "l2": minimises `C Σ_n loss_n + ½ ‖weights‖²`, as in `LogisticRegression`.
        max_iter: maximum number of iterations.
        tol: stop when no derivative of the mean loss, by standardised features, is above tol, or, for few features and without
            "l2", when the expected improvement of a Newton step is below tol²; both relative to the mean absolute residual.
        unlabelled_weight: λ, the total weight of `X_unlabelled` relative to the labelled rows. None for the ratio of their
            numbers. 0 ignores them.
        unlabelled_evidence: ε, people counted by class per unlabelled row, which keeps the mean prediction over these rows at
            a known population. None for 3; for 0 without an "l2" penalty, because standard errors are those of the likelihood
            alone.
        check_unlabelled: test whether p(x|y) is the same in `X` and `X_unlabelled`, and warn if not:
            `rightloss.shift.unlabelled_shift_test`.
        hidden_layer_sizes: deprecated: anything but () is refused, with the name of the class that has hidden layers.

    Attributes:
        classes_: the class labels, sorted.
        population_: π (K,) of the predictions; the mean if it is uncertain; the learned one if it is unknown.
        sampling_: ρ (K,), the mix of the training rows, by weight.
        concentration_: Dirichlet parameters of an uncertain population (K,), else None.
        coef_: slopes, (1, d) for two classes, else (K, d).
        intercept_: at the population, (1,) or (K,).
        n_iter_: iterations run.
        loss_curve_: the objective after each of them.
        unlabelled_weight_: the λ used; 0 without unlabelled rows.

    Examples:
        >>> import numpy as np
        >>> from rightloss.sklearn.information_gain import InformationGainClassifier
        >>> rng = np.random.default_rng(0)
        >>> y = np.repeat([0, 1], 100)  # as many cases as controls
        >>> x = rng.normal(size=(200, 1)) + y[:, None]
        >>> model = InformationGainClassifier(population=0.01).fit(x, y)
        >>> model.predict_proba([[0.0], [2.0]]).round(3)
        array([[0.994, 0.006],
               [0.964, 0.036]])
        >>> model.set_population(0.2).predict_proba([[2.0]]).round(2)
        array([[0.52, 0.48]])

        Unlabelled rows of the population make the fit more precise, and show how frequent the classes are:

        >>> cases = rng.random(2000) < 0.1
        >>> x_unlabelled = rng.normal(size=(2000, 1)) + 3 * cases[:, None]
        >>> x = rng.normal(size=(200, 1)) + 3 * y[:, None]
        >>> model = InformationGainClassifier("unknown").fit(x, y, X_unlabelled=x_unlabelled)
        >>> bool(0.07 < model.population_[1] < 0.13)
        True
    """

    intercept_: np.ndarray

    def __init__(
        self,
        population: LearntPopulation | None = None,
        *,
        loss: Literal["information_gain", "weighted"] = "information_gain",
        penalty: Literal["l2", "firth"] | None = "l2",
        C: float = 1.0,
        max_iter: int = 200,
        tol: float = 1e-4,
        unlabelled_weight: float | None = None,
        unlabelled_evidence: float | None = None,
        check_unlabelled: bool = True,
        hidden_layer_sizes: Sequence[int] | int = (),
    ) -> None:
        self.population = population
        self.loss = loss
        self.penalty = penalty
        self.C = C
        self.max_iter = max_iter
        self.tol = tol
        self.unlabelled_weight = unlabelled_weight
        self.unlabelled_evidence = unlabelled_evidence
        self.check_unlabelled = check_unlabelled
        self.hidden_layer_sizes = hidden_layer_sizes

    def fit(
        self, X: Any, y: Any, sample_weight: ArrayLike | None = None, *, X_unlabelled: Any = None
    ) -> InformationGainClassifier:
        """Fit to rows sampled by class, and to unlabelled rows of the population.

        The likelihood with unlabelled rows is that of `stream_likelihood`. It needs a `population`, or "unknown". With a known
        one, labelled rows of one of two classes are enough (positive-unlabelled learning); if their label is neither 1 nor
        True, write the population as a dict that names both classes.

        Args:
            X: features (n, d).
            y: labels (n,); or votes, floats (n, K) with rows that sum to 1: the columns of a DataFrame name the classes.
            sample_weight: (n,): 2 is the same as the row twice, 0 ignores it; ρ is the weighted mix.
            X_unlabelled: features (m, d) of rows from the population, with the columns of `X`.
        """
        self._check_options()
        evidence = self.unlabelled_evidence
        if evidence is None:
            evidence = 0.0 if self.penalty != "l2" or is_unknown(self.population) else EVIDENCE
        rows, others = read_both(self, X, y, sample_weight, X_unlabelled, self.unlabelled_weight, evidence)
        self._check_rows(len(rows.classes), X_unlabelled is not None, others)
        prevalence = training_prevalence(self.population, rows)
        if others is not None and self.check_unlabelled:
            warn_of_shift(rows, others, prevalence)
        self.classes_, self.unlabelled_weight_ = rows.classes, 0.0 if others is None else others.mass
        self._set_prevalence(prevalence)
        self._sampled_by_class, self._learnt = self.population is not None, False
        if others is not None:
            self._fit_streams(rows, others, prevalence)
        else:
            self._fit_labelled(rows, prevalence)
        return self

    def set_population(self, population: Any) -> InformationGainClassifier:
        """Move the predictions to another population without refitting; None is the training mix.

        Args:
            population: in the form of the constructor's argument.
        """
        check_is_fitted(self)
        before = self.population_
        super().set_population(population)
        self._sampled_by_class, self._learnt = population is not None, False
        self.intercept_ = linear.moved(self.intercept_[None], np.log(self.population_) - np.log(before))[0]
        return self

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return log-probabilities in the population (n, K)."""
        log_probs: np.ndarray = special.log_softmax(linear.class_logits(self._outputs(X)), axis=1)
        return log_probs

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the log-odds of `classes_[1]` in the population (n,); for more than two classes logits (n, K)."""
        outputs = self._outputs(X)
        return outputs[:, 0] if outputs.shape[1] == 1 else outputs

    def summary(self, covariance: Covariance = "model", level: float = 0.95) -> CoefficientTable:
        """Return the coefficients with standard errors, z, p-values, intervals and odds ratios.

        With a `population` the rows are treated as sampled by class, with the errors of `coefficients`: for the slopes as in
        ordinary logistic regression, for the intercept smaller by Σ_c 1/n_c and larger by the uncertainty of the population.
        Without one, the training mix is that of the population, and the errors are the ordinary ones. The log-odds are those
        of `classes_[1]`, or of each further class, against `classes_[0]`; the note below the table names them. Sample weights
        are numbers of rows.

        Args:
            covariance: "model", or "robust", which is valid even if the log-odds are not linear in x.
            level: the level of the intervals.
        """
        matrix, design = self._covariance(covariance, level)
        names = getattr(self, "feature_names_in_", [f"x{i}" for i in range(self.n_features_in_)])
        words = {"unlabelled": "case-control sampling with unlabelled rows"}
        words["learnt"] = f"{words['unlabelled']}, population learnt"
        first, *others = labels = self.classes_.tolist()
        note = f"log-odds {f'of {others[0]!r} ' if len(others) == 1 else ''}against {first!r}, {covariance} standard errors, "
        note += f"{words.get(design, f'{design} sampling')}, intercept at the population"
        return coefficient_table(self._contrasts(), matrix, list(names), labels, level, note)

    def predict_interval(self, X: Any, covariance: Covariance = "model", level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Return limits of the probabilities in the population, each (n, K), from the errors of `summary`.

        Args:
            X: features (n, d).
            covariance: as in `summary`.
            level: the probability that the limits contain the model's probability, for each entry.
        """
        matrix, _ = self._covariance(covariance, level)
        features = validate_data(self, X, dtype=np.float64, reset=False)
        return risk_interval(features, self._contrasts(), matrix, level)

    def _check_options(self) -> None:
        remedy = "logit adjustment and the log-likelihood have the default's optimum; InformationGainMLPClassifier has more"
        checked_choice(self.loss, "loss", ("information_gain", "weighted"), remedy)
        checked_choice(self.penalty, "penalty", ("l2", "firth", None))
        check_solver(self)
        if np.size(self.hidden_layer_sizes):
            raise ValueError(
                f"Expected a linear model, but got hidden_layer_sizes={self.hidden_layer_sizes!r}: use "
                "rightloss.sklearn.InformationGainMLPClassifier, a network, which needs rightloss[torch]: "
                f"{install('torch')}."
            )

    def _check_rows(self, classes: int, given: bool, others: UnlabelledFeatures | None) -> None:
        came = "X_unlabelled" if given else f"{classes} classes" if classes != 2 else "loss='weighted'"
        if self.penalty == "firth" and (classes != 2 or self.loss == "weighted" or given):
            raise ValueError(f"Expected two classes and the default loss for penalty='firth', but got {came}: use 'l2'.")
        if self.loss == "weighted" and given:
            raise ValueError(
                "Expected the default loss with X_unlabelled, but got 'weighted': these rows have no part in its likelihood."
            )
        if others is not None and others.evidence and (is_unknown(self.population) or self.penalty is None):
            raise ValueError(
                f"Expected unlabelled_evidence=0 with an unknown population or penalty=None, but got {others.evidence:g}: it "
                "holds predictions at a population that is known, and standard errors are those of the likelihood alone."
            )

    def _ridge(self, rows: LabelledRows) -> float:
        return 1 / (self.C * rows.total) if self.penalty == "l2" else 0.0

    def _fit_labelled(self, rows: LabelledRows, prevalence: Prevalence) -> None:
        pi, rho = prevalence.population, prevalence.sampling
        weighted, to_population = self.loss == "weighted", np.log(pi) - np.log(rho)
        class_weight = pi / rho if weighted else np.ones_like(pi)
        fit = self._solve(rows, class_weight if weighted else None, self._ridge(rows), pi if weighted else rho)
        self._keep(fit, fit.coefficients if weighted else linear.moved(fit.coefficients, to_population))
        self._covariances: dict[str, np.ndarray] | str = self._why_no_errors(rows) or self._errors(
            rows, fit.coefficients, class_weight, -to_population if weighted else 0 * to_population
        )

    def _fit_streams(self, rows: LabelledRows, others: UnlabelledFeatures, prevalence: Prevalence) -> None:
        """Fit the likelihood of all rows, starting from the optimum of the labelled ones."""
        ridge, pi, rho = self._ridge(rows), prevalence.start, prevalence.sampling
        begin = _start(rows.features.shape[1], pi)
        if rho.all():
            begin = linear.moved(self._solve(rows, None, max(ridge, 1e-6), rho).coefficients, np.log(pi) - np.log(rho))
        fit, fitted = fit_streams(rows, others, prevalence, begin, ridge, self.max_iter, self.tol)
        self._keep(fit, fit.coefficients)
        if len(fit.own):
            self._learnt, self.population_ = True, fitted.population
            self.concentration_ = None  # the uncertainty of π is now in its covariance
            warn_of_absent_class(self.classes_, fitted.population, len(others.features))
        self._covariances = self._why_no_errors(rows) or self._stream_errors(fitted)

    def _solve(self, rows: LabelledRows, class_weight: np.ndarray | None, ridge: float, mix: np.ndarray) -> linear.LinearFit:
        """Minimise the cross-entropy in the training mix, or with class weights, from coefficients that predict `mix`."""
        table, begin = rows.table(class_weight), _start(rows.features.shape[1], mix)
        if self.penalty == "firth":
            return linear.firth(rows.features, table, begin, self.max_iter, self.tol)
        loss = linear.CrossEntropy.of(table, rows.total)
        if begin.size <= linear.SMALL or (ridge == 0 and begin.size <= linear.NEWTON_LIMIT):
            return linear.newton(rows.features, loss, ridge, begin, self.max_iter, self.tol)
        return linear.lbfgs(rows.features, loss, ridge, begin, self.max_iter, self.tol, weight=rows.weight)

    def _keep(self, fit: linear.LinearFit, coefficients: np.ndarray) -> None:
        linear.warn_unless_converged(fit, self.max_iter)
        self.coef_, self.intercept_ = coefficients[:-1].T.copy(), coefficients[-1].copy()
        self.loss_curve_, self.n_iter_ = fit.loss_curve, len(fit.loss_curve)

    def _why_no_errors(self, rows: LabelledRows) -> str | None:
        """Return the error message of `summary` if there are no standard errors."""
        if self.penalty == "l2":
            return _SHRUNKEN
        if not rows.hard:
            return _VOTES
        return _TOO_MANY if (len(rows.classes) - 1) * (rows.features.shape[1] + 1) > linear.NEWTON_LIMIT else None

    def _errors(
        self, rows: LabelledRows, stated: np.ndarray, class_weight: np.ndarray, to_sampling: np.ndarray
    ) -> dict[str, np.ndarray] | str:
        """Return the covariances, or why there are none; warn if the classes are separated."""
        logits = linear.class_logits(rows.features @ stated[:-1] + stated[-1])
        probs, sampled = (special.softmax(logits + move, axis=1) for move in (0.0, to_sampling))
        weight = np.ones(len(logits)) if rows.weight is None else rows.weight
        few = self.penalty == "firth"
        fitted = FittedRows(rows.features, rows.index, weight, probs, sampled, class_weight, few)
        if not few and is_separated(fitted):
            warnings.warn(_SEPARATED, ConvergenceWarning, stacklevel=4)
            return _SEPARATED
        return covariances(fitted) or _DEPENDENT

    def _stream_errors(self, fitted: FittedStreams) -> dict[str, np.ndarray] | str:
        """Return the covariances of a fit with unlabelled rows, for the π of the fit and for a π known otherwise."""
        if self._learnt and self.population_.min() * fitted.likelihood.unlabelled < 1:
            return _ABSENT
        if streams_are_separated(fitted):
            warnings.warn(_SEPARATED, ConvergenceWarning, stacklevel=4)
            return _SEPARATED
        found: dict[str, np.ndarray] = {}
        k, size = len(self.classes_), self.n_features_in_ + 1
        for kind, joint in (stream_covariances(fitted) or {}).items():
            found[f"{kind} unlabelled"] = found[f"{kind} learnt"] = joint[: (k - 1) * size, : (k - 1) * size]
            if self._learnt:
                without = np.eye(len(joint))[: (k - 1) * size]
                without[size - 1 :: size, (k - 1) * size :] -= np.eye(k - 1)
                found[f"{kind} unlabelled"] = without @ joint @ without.T
        return found or _DEPENDENT

    def _outputs(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        outputs: np.ndarray = validate_data(self, X, dtype=np.float64, reset=False) @ self.coef_.T + self.intercept_
        return outputs

    def _contrasts(self) -> np.ndarray:
        """Return the log-odds against class 0 as coefficients (K − 1, d + 1), the intercept last."""
        found = np.column_stack([self.coef_, self.intercept_])
        return found if len(self.classes_) == 2 else found[1:] - found[0]

    def _covariance(self, covariance: Covariance, level: float) -> tuple[np.ndarray, str]:
        check_is_fitted(self)
        checked_choice(covariance, "covariance", ("model", "robust"))
        checked_level(level)
        if isinstance(self._covariances, str):
            raise ValueError(self._covariances)
        design = "case-control" if self._sampled_by_class else "cohort"
        if self.unlabelled_weight_ > 0:
            design = "learnt" if self._learnt else "unlabelled"
        matrix = self._covariances[f"{covariance} {design}"].copy()
        if self.concentration_ is not None:
            size = self.n_features_in_ + 1
            matrix[size - 1 :: size, size - 1 :: size] += prevalence_variance(self.concentration_)
        return matrix, design


def _start(num_features: int, mix: np.ndarray) -> np.ndarray:
    """Return coefficients that predict the mix: (d + 1, m)."""
    log_mix = np.log(mix)
    intercept = log_mix[1:] - log_mix[0] if len(log_mix) == 2 else log_mix - log_mix.mean()
    return np.vstack([np.zeros((num_features, len(intercept))), intercept])
