"""InformationGainClassifier: a linear model or a neural network, trained for the population's class frequencies.

Stage: `fit(X, y)` at class frequencies ρ, with or without unlabelled rows of the population → `predict_proba(X)` at the
population π; `summary()` for the coefficients' standard errors.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy import special
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import _check_partial_fit_first_call
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from ..likelihoods import Bernoulli, Categorical
from ..prevalence import Frequencies, Prevalence
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
from .criteria import LossName, OutputLoss, make_criterion, reference_mix
from .firth import firth
from .labelled_rows import LabelledRows, read_rows
from .linear import NEWTON_LIMIT, SMALL, CrossEntropy, LinearFit, lbfgs, newton, warn_unless_converged
from .network import Activation, EndlessRows, Network, NetworkSettings, epoch_loss, forward, split_rows, train
from .options import check_options, hidden_sizes, network_settings
from .population import LearntPopulation, Population, class_prevalence, is_unknown
from .stream_likelihood import FittedStreams, fit_streams, mixture_proportions, moved, stream_covariances, streams_are_separated
from .unlabelled_rows import UnlabelledRows, both_classes, check_usable, read_unlabelled, warn_of_absent_class, warn_of_shift

Reference = Frequencies | Mapping[Hashable, float] | Literal["population"]

_ROWS_FOR_POPULATION = 10_000  # unlabelled rows used to update a network's π before each epoch; at the end all are used
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


class InformationGainClassifier(ClassifierMixin, BaseEstimator):
    """A classifier trained at one mix of classes, with predictions for a population with another mix.

    It is linear by default. Then the default loss is logit adjustment, the slopes are those of `LogisticRegression` with the
    same `C`, and the intercept is that of the population. The intercept is always fitted and never penalised, because it
    holds the prevalence. Features are not standardised: do so in a pipeline before an "l2" penalty or hidden layers.

    The losses of a linear model use all rows at once. At the default reference r = ρ the information gain has the same
    optimum as logit adjustment for every κ, so `evidence` has no effect there; it has with hidden layers and with other
    references.

    Args:
        population: π, the population's class frequencies: a dict by class label; for two classes a number, the frequency of
            `classes_[1]` (words only if that is plainly the positive one, such as "yes" or "malignant"; else a dict); K
            frequencies in the order of `classes_`; a `Prevalence` or an estimate of one. None for the training mix. "unknown"
            to learn it from `X_unlabelled`; `rightloss.shift.joint_prevalence` returns intervals of it.
        loss: "information_gain"; "as_published", the paper's form, r = π and κ = 0; "logit_adjusted"; "weighted";
            "log_likelihood", plain cross-entropy moved to the population afterwards.
        evidence: κ of the information gain; None for 1, or that of `population`, if it is a `Prevalence`.
        reference: r of the information gain: None for the training mix, "population", or a mix in the form of `population`.
        hidden_layer_sizes: () is a linear model; (100,) one hidden layer.
        activation: activation of hidden layers: "relu", "tanh" or "logistic".
        penalty: "l2"; "firth" for few cases or separated classes, linear models of two classes (see `firth.firth`); None.
        C: inverse of the strength of "l2": minimises `C Σ_n loss_n + ½ ‖weights‖²`, as in `LogisticRegression`.
        max_iter: maximum number of iterations, or of epochs.
        tol: linear models stop when no derivative of the mean loss, by standardised features, is above tol, or, for few
            features and without "l2", when the expected improvement of a Newton step is below tol²; both relative to the mean
            absolute residual. With hidden layers it is the smallest improvement that counts, relative to the entropy of
            the population if the loss is "weighted" or with early stopping.
        batch_size: rows of a minibatch; "auto" is min(200, n). Only for hidden layers and `partial_fit`.
        learning_rate_init: learning rate of Adam. Only for hidden layers and `partial_fit`.
        early_stopping: hold out a stratified fraction of the rows, stop by the expected log-likelihood in the population on
            them, and keep the best weights. Only for hidden layers.
        validation_fraction: the fraction held out.
        n_iter_no_change: epochs without improvement before training stops.
        warm_start: start from the last solution.
        random_state: seed for hidden layers and `partial_fit`; a linear `fit` is deterministic.
        verbose: print the loss of each epoch.
        unlabelled_weight: λ, the total weight of `X_unlabelled` relative to the labelled rows. None for the ratio of their
            numbers; for a network, with the same number of both in a minibatch, 1. 0 ignores them.
        unlabelled_evidence: ε, people counted by class per unlabelled row, which keeps the mean prediction over these rows at
            a known population. None for 3; for 0 with another loss or reference, and for a linear model without an l2
            penalty, because that has standard errors.
        check_unlabelled: test whether p(x|y) is the same in `X` and `X_unlabelled`, and warn if not:
            `rightloss.shift.unlabelled_shift_test`.

    Attributes:
        classes_: the class labels, sorted.
        population_: π (K,) of the predictions; the mean if it is uncertain; the learned one if it is unknown.
        sampling_: ρ (K,), the mix of the training rows, by weight.
        concentration_: Dirichlet parameters of an uncertain population (K,), else None.
        coef_: slopes of a linear model, (1, d) for two classes, else (K, d).
        intercept_: at the population, (1,) or (K,).
        coefs_, intercepts_: weights of the layers of a network, as in `MLPClassifier`.
        n_layers_: 2 for a linear model, and one more for each hidden layer.
        n_iter_: iterations or epochs run.
        loss_curve_: the objective after each of them.
        validation_scores_: with early stopping, the expected log-likelihood after each epoch; else None.
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

    def __init__(
        self,
        population: LearntPopulation | None = None,
        *,
        loss: LossName = "information_gain",
        evidence: float | None = None,
        reference: Reference | None = None,
        hidden_layer_sizes: Sequence[int] | int = (),
        activation: Activation = "relu",
        penalty: Literal["l2", "firth"] | None = "l2",
        C: float = 1.0,
        max_iter: int = 200,
        tol: float = 1e-4,
        batch_size: int | Literal["auto"] = "auto",
        learning_rate_init: float = 1e-3,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        warm_start: bool = False,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
        unlabelled_weight: float | None = None,
        unlabelled_evidence: float | None = None,
        check_unlabelled: bool = True,
    ) -> None:
        self.population = population
        self.loss = loss
        self.evidence = evidence
        self.reference = reference
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.penalty = penalty
        self.C = C
        self.max_iter = max_iter
        self.tol = tol
        self.batch_size = batch_size
        self.learning_rate_init = learning_rate_init
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose
        self.unlabelled_weight = unlabelled_weight
        self.unlabelled_evidence = unlabelled_evidence
        self.check_unlabelled = check_unlabelled

    def fit(
        self, X: Any, y: Any, sample_weight: ArrayLike | None = None, *, X_unlabelled: Any = None
    ) -> InformationGainClassifier:
        """Fit to rows sampled by class, and to unlabelled rows of the population.

        The likelihood with unlabelled rows is that of `rightloss.losses.streams`. It needs a `population`, or "unknown". With a
        known one, labelled rows of one of two classes are enough (positive-unlabelled learning); if their label is neither 1
        nor True, write the population as a dict that names both classes.

        Args:
            X: features (n, d).
            y: labels (n,); or votes, floats (n, K) with rows that sum to 1: the columns of a DataFrame name the classes.
            sample_weight: (n,): 2 is the same as the row twice, 0 ignores it; ρ is the weighted mix.
            X_unlabelled: features (m, d) of rows from the population, with the columns of `X`.
        """
        check_options(self, ("l2", "firth", None))
        sizes, unknown = hidden_sizes(self), is_unknown(self.population)
        dtype = [np.float64, np.float32] if sizes else np.float64
        classes = None if X_unlabelled is None else both_classes(y, sample_weight, self.population)
        rows = read_rows(self, X, y, sample_weight, dtype, classes)
        others = None if X_unlabelled is None else read_unlabelled(self, X_unlabelled, rows, bool(sizes))
        check_usable(self, rows, others, X_unlabelled is not None)
        totals = rows.class_totals()
        prevalence = self._prevalence_of(rows.classes, totals / totals.sum())
        reference = None if unknown else reference_mix(self.reference, prevalence, rows.classes)
        _check_firth(self.penalty, bool(sizes), len(rows.classes), _is_plain(self.loss, prevalence, reference))
        if others is not None and self.check_unlabelled:
            warn_of_shift(rows, others, prevalence)
        start = self._earlier_solution(rows, prevalence, sizes) if self.warm_start else None
        self._remember(rows.classes, totals, prevalence, self.population is not None)
        self.n_layers_, self.unlabelled_weight_ = len(sizes) + 2, 0.0 if others is None else others.mass
        self._network: Network | None = None
        self._learnt_population: np.ndarray | None = None
        if sizes:
            self._fit_network(rows, prevalence, reference, start, others)
        elif others is not None:
            self._fit_with_unlabelled(rows, others, prevalence, reference, start)
        else:
            self._fit_linear(rows, prevalence, reference, start)
        return self

    def partial_fit(
        self, X: Any, y: Any, classes: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> InformationGainClassifier:
        """Train for one epoch of Adam on more rows; ρ is the mix of all rows so far.

        Args:
            X: features (n, d).
            y: labels (n,), or votes (n, K).
            classes: all possible classes, in the first call; not needed with votes.
            sample_weight: as in `fit`.
        """
        check_options(self, ("l2", None))
        if is_unknown(self.population):
            raise ValueError("Expected a known population for partial_fit, but got 'unknown': use fit(…, X_unlabelled=…).")
        sizes, first = hidden_sizes(self), not hasattr(self, "classes_")
        if classes is not None or (first and np.ndim(y) == 1):
            _check_partial_fit_first_call(self, classes)
        known = getattr(self, "classes_", None)
        dtype = [np.float64, np.float32] if sizes else np.float64
        rows = read_rows(self, X, y, sample_weight, dtype, known, reset=not hasattr(self, "n_features_in_"))
        if known is not None and not np.array_equal(known, rows.classes):
            raise ValueError(f"Expected votes for the classes {known.tolist()}, but got {rows.classes.tolist()}: keep them.")
        totals = rows.class_totals() + getattr(self, "class_totals_", 0.0)
        prevalence = self._with_evidence(self._prevalence_so_far(rows.classes, totals))
        arrays = self._layers() if hasattr(self, "population_") else None
        given = getattr(self, "_population_given", self.population is not None)
        self._remember(rows.classes, totals, prevalence, given)
        self.n_layers_, self.unlabelled_weight_, self._learnt_population = len(sizes) + 2, 0.0, None
        self._take_epoch(rows, prevalence, reference_mix(self.reference, prevalence, rows.classes), arrays)
        return self

    def set_population(self, population: Population | None) -> InformationGainClassifier:
        """Move the predictions to another population without refitting; None is the training mix.

        Args:
            population: in the form of the constructor's argument.
        """
        check_is_fitted(self)
        prevalence = class_prevalence(population, self.classes_, self.sampling_)
        before, self._learnt_population = self.population_, None
        self._remember(self.classes_, self.class_totals_, prevalence, population is not None)
        self._shift(np.log(self.population_) - np.log(before))
        return self

    @property
    def prevalence_(self) -> Prevalence:
        """π, with its uncertainty, and ρ."""
        check_is_fitted(self)
        if self.concentration_ is not None:
            return Prevalence.dirichlet(self.concentration_, self.sampling_)
        return class_prevalence(self.population_, self.classes_, self.sampling_)

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the log-odds of `classes_[1]` in the population (n,); for more than two classes logits (n, K)."""
        outputs = self._outputs(X)
        if outputs.shape[1] == 1:
            return outputs[:, 0]
        return outputs[:, 1] - outputs[:, 0] if len(self.classes_) == 2 else outputs

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return log-probabilities in the population (n, K)."""
        outputs = self._outputs(X)
        if outputs.shape[1] == 1:
            return np.column_stack([special.log_expit(-outputs[:, 0]), special.log_expit(outputs[:, 0])])
        log_probs: np.ndarray = special.log_softmax(outputs, axis=1)
        return log_probs

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return probabilities in the population (n, K)."""
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class in the population (n,), rarely a rare one: see `rightloss.metrics` for costs."""
        check_is_fitted(self)
        return self.classes_[self.predict_log_proba(X).argmax(1)]

    def summary(self, covariance: Covariance = "model", level: float = 0.95) -> CoefficientTable:
        """Return the coefficients of a linear model with standard errors, z, p-values, intervals and odds ratios.

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

    def _with_evidence(self, prevalence: Prevalence) -> Prevalence:
        return prevalence if self.evidence is None else prevalence.with_evidence(self.evidence)

    def _prevalence_of(self, classes: np.ndarray, sampling: np.ndarray) -> Prevalence:
        """Return the prevalence: π, or unknown, and ρ."""
        given = self.population
        if isinstance(given, str) or (isinstance(given, Prevalence) and given.is_unknown and given.start.equal(given.sampling)):
            given = Prevalence.unknown(len(classes), start=sampling)
        return self._with_evidence(class_prevalence(given, classes, sampling))

    def _remember(self, classes: np.ndarray, totals: np.ndarray, prevalence: Prevalence, given: bool) -> None:
        concentration = prevalence.concentration
        self.classes_, self.class_totals_, self._population_given = classes, totals, given
        self.population_, self.sampling_ = prevalence.start.numpy(), prevalence.sampling.numpy()
        self.concentration_ = None if concentration is None else concentration.numpy()

    def _prevalence_so_far(self, classes: np.ndarray, totals: np.ndarray) -> Prevalence:
        """Return the prevalence for `partial_fit`; a class without rows so far counts as half a row."""
        counts = totals if totals.all() else totals + 0.5
        if not hasattr(self, "population_"):
            return self._prevalence_of(classes, counts / counts.sum())
        return class_prevalence(self.prevalence_ if self._population_given else None, classes, counts / counts.sum())

    def _fit_linear(self, rows: LabelledRows, prevalence: Prevalence, reference: Tensor | None, start: Any) -> None:
        pi, rho = prevalence.population.numpy(), prevalence.sampling.numpy()
        to_population = np.log(pi) - np.log(rho)
        weighted, plain = self.loss == "weighted", _is_plain(self.loss, prevalence, reference)
        class_weight = pi / rho if weighted else np.ones_like(pi)
        ridge = 1 / (self.C * rows.total) if self.penalty == "l2" else 0.0
        begin = _start(rows.features.shape[1], np.log(pi if weighted else rho)) if start is None else start[0]
        if start is not None and not weighted:
            begin = moved(begin, -to_population)
        fit = self._solve_cross_entropy(rows, class_weight if weighted else None, ridge, begin)
        stated = fit.coefficients
        found = stated if weighted else moved(stated, to_population)
        if not (plain or weighted):
            likelihood = Bernoulli() if len(pi) == 2 else Categorical()
            criterion = make_criterion(self.loss, prevalence, reference, likelihood, True)
            loss = OutputLoss(criterion, rows)
            fit = lbfgs(rows.features, loss, ridge, found, self.max_iter, self.tol, weight=rows.weight)
            found = fit.coefficients
        self._keep(fit, found)
        self._no_covariances = self._why_no_errors(rows, plain or weighted)
        if self._no_covariances is None:
            self._measure_errors(rows, stated, class_weight, -to_population if weighted else 0 * to_population)

    def _fit_with_unlabelled(
        self, rows: LabelledRows, others: UnlabelledRows, prevalence: Prevalence, reference: Tensor | None, start: Any
    ) -> None:
        """Fit the likelihood of all rows, starting from the optimum of the labelled ones."""
        ridge = 1 / (self.C * rows.total) if self.penalty == "l2" else 0.0
        begin = start[0] if start is not None else self._optimum_of_labelled(rows, prevalence, ridge)
        open_evidence = prevalence.evidence == 1 or self.loss == "logit_adjusted"
        plain = _is_plain(self.loss, prevalence, reference) and open_evidence
        if plain:
            fit, fitted = fit_streams(rows, others, prevalence, begin, ridge, self.max_iter, self.tol)
        else:
            likelihood = Bernoulli() if len(rows.classes) == 2 else Categorical()
            options: tuple[Any, ...] = (likelihood, True, others.mass)
            loss = OutputLoss(make_criterion(self.loss, prevalence, reference, *options), rows)
            fit = lbfgs(np.vstack([rows.features, others.features]), loss, ridge, begin, self.max_iter, self.tol)
        self._keep(fit, fit.coefficients)
        self._no_covariances = self._why_no_errors(rows, plain)
        if plain and len(fit.own):
            self._learnt_population = self.population_ = fitted.population
            self.concentration_ = None  # the uncertainty of π is now in its covariance
            warn_of_absent_class(self.classes_, fitted.population, len(others.features))
        if self._no_covariances is None:
            self._measure_stream_errors(fitted)

    def _optimum_of_labelled(self, rows: LabelledRows, prevalence: Prevalence, ridge: float) -> np.ndarray:
        """Return the coefficients at the population from the labelled rows only; None if they are all of one class."""
        pi, rho = prevalence.start.numpy(), prevalence.sampling.numpy()
        if not rho.all():
            return _start(rows.features.shape[1], np.log(pi))
        fit = self._solve_cross_entropy(rows, None, max(ridge, 1e-6), _start(rows.features.shape[1], np.log(rho)))
        return moved(fit.coefficients, np.log(pi) - np.log(rho))

    def _keep(self, fit: LinearFit, coefficients: np.ndarray) -> None:
        """Set the attributes of a linear fit, except for the covariances."""
        warn_unless_converged(fit, self.max_iter)
        self.coef_, self.intercept_ = coefficients[:-1].T.copy(), coefficients[-1].copy()
        self.loss_curve_, self.n_iter_ = fit.loss_curve, len(fit.loss_curve)
        self.validation_scores_: list[float] | None = None
        self._covariances: dict[str, np.ndarray] | None = None

    def _solve_cross_entropy(
        self, rows: LabelledRows, class_weight: np.ndarray | None, ridge: float, begin: np.ndarray
    ) -> LinearFit:
        table = rows.table(class_weight)
        if self.penalty == "firth":
            return firth(rows.features, table, begin, self.max_iter, self.tol)
        loss = CrossEntropy.of(table, rows.total)
        if begin.size <= SMALL or (ridge == 0 and begin.size <= NEWTON_LIMIT):
            return newton(rows.features, loss, ridge, begin, self.max_iter, self.tol)
        return lbfgs(rows.features, loss, ridge, begin, self.max_iter, self.tol, weight=rows.weight)

    def _why_no_errors(self, rows: LabelledRows, cross_entropy: bool) -> str | None:
        """Return the error message of `summary` if there are no standard errors."""
        if self.penalty == "l2":
            return (
                "Expected penalty=None or 'firth' for standard errors, but got 'l2': shrunken coefficients are biased, so "
                "their intervals have the wrong coverage; fit again without it."
            )
        if not cross_entropy:
            return (
                "Expected reference=None for standard errors, but got an information gain with another reference: use the "
                "default, or loss='weighted'."
            )
        if rows.index is None:
            return (
                "Expected class labels for standard errors, but got votes: the sampling of votes by class is not known; "
                "fit each row's majority label."
            )
        if (len(rows.classes) - 1) * (rows.features.shape[1] + 1) > NEWTON_LIMIT:
            return (
                f"Expected at most {NEWTON_LIMIT} coefficients for standard errors, but got more: choose fewer features, or "
                "use a bootstrap."
            )
        return None

    def _measure_errors(
        self, rows: LabelledRows, stated: np.ndarray, class_weight: np.ndarray, to_sampling: np.ndarray
    ) -> None:
        """Store the covariances, and warn if the classes are separated."""
        assert rows.index is not None
        outputs = rows.features @ stated[:-1] + stated[-1]
        outputs = np.column_stack([np.zeros(len(outputs)), outputs]) if outputs.shape[1] == 1 else outputs
        weight = np.ones(len(outputs)) if rows.weight is None else rows.weight
        fitted = FittedRows(
            rows.features,
            rows.index,
            weight,
            special.softmax(outputs, axis=1),
            special.softmax(outputs + to_sampling, axis=1),
            class_weight,
            few=self.penalty == "firth",
        )
        if self.penalty is None and is_separated(fitted):
            self._no_covariances = _SEPARATED
            warnings.warn(_SEPARATED, ConvergenceWarning, stacklevel=4)
            return
        self._covariances = covariances(fitted)
        self._no_covariances = None if self._covariances is not None else _DEPENDENT

    def _measure_stream_errors(self, fitted: FittedStreams) -> None:
        """Store the covariances of a fit with unlabelled rows, for the π of the fit and for a π known otherwise."""
        if self._learnt_population is not None and self._learnt_population.min() * fitted.likelihood.unlabelled < 1:
            self._no_covariances = _ABSENT
            return
        if streams_are_separated(fitted):
            self._no_covariances = _SEPARATED
            warnings.warn(_SEPARATED, ConvergenceWarning, stacklevel=4)
            return
        found = stream_covariances(fitted)
        self._no_covariances = None if found is not None else _DEPENDENT
        self._covariances = None if found is None else {}
        k, size = len(self.classes_), self.n_features_in_ + 1
        for kind, joint in (found or {}).items():
            assert self._covariances is not None
            self._covariances[f"{kind} unlabelled"] = joint[: (k - 1) * size, : (k - 1) * size]
            if self._learnt_population is None:
                continue
            without = np.eye(len(joint))[: (k - 1) * size]
            without[size - 1 :: size, (k - 1) * size :] -= np.eye(k - 1)
            self._covariances[f"{kind} learnt"] = self._covariances[f"{kind} unlabelled"]
            self._covariances[f"{kind} unlabelled"] = without @ joint @ without.T

    def _fit_network(
        self,
        rows: LabelledRows,
        prevalence: Prevalence,
        reference: Tensor | None,
        start: Any,
        others: UnlabelledRows | None,
    ) -> None:
        settings, generator = network_settings(self, len(rows.features), rows.total), self._generator(0)
        at_sampling = self.loss == "log_likelihood" or prevalence.is_unknown
        stated = Prevalence(prevalence.sampling, prevalence.sampling) if at_sampling else prevalence
        to_population = prevalence.start.log().numpy() - stated.start.log().numpy()
        likelihood, known = Categorical(), stated if prevalence.is_unknown else prevalence
        counts: tuple[Any, ...] = () if others is None else (others.mass, others.evidence)
        criterion = make_criterion(self.loss, known, reference, likelihood, False, *counts)
        dtype = torch.from_numpy(rows.features[:0]).dtype
        sizes = [rows.features.shape[1], *settings.hidden_layer_sizes, len(rows.classes)]
        network = Network(sizes, likelihood.starting_outputs(stated), settings, criterion, dtype, generator)
        if start is not None:
            weights, biases = start
            network.set_arrays(weights, [*biases[:-1], biases[-1] - to_population])
        mix = prevalence.sampling.numpy() if prevalence.is_unknown else prevalence.population.numpy()
        if self.loss == "weighted" or settings.early_stopping:  # the figure that must improve is in the units of the mix
            settings = replace(settings, tol=settings.tol * float(special.entr(mix).sum() / np.log(len(mix))))

        def score(outputs: Tensor, held: LabelledRows) -> float:
            """Return the score at the population, or at the sampled mix while the population is being learned."""
            log_probs = special.log_softmax(outputs.double().numpy() + (0 if prevalence.is_unknown else to_population), axis=1)
            return expected_log_likelihood(log_probs, held, mix)

        if prevalence.is_unknown:
            assert others is not None
            to_population = self._train_with_unknown_population(network, rows, others, stated, score, settings, generator)
        else:
            train(network, rows, score, settings, generator, None if others is None else others.features)
        self.coefs_, self.intercepts_ = network.arrays()
        self._shift(to_population)
        self.loss_curve_, self.n_iter_ = network.loss_curve, len(network.loss_curve)
        self.validation_scores_ = network.validation_scores or None

    def _train_with_unknown_population(
        self,
        network: Network,
        rows: LabelledRows,
        others: UnlabelledRows,
        stated: Prevalence,
        score: Any,
        settings: NetworkSettings,
        generator: torch.Generator,
    ) -> np.ndarray:
        """Train a network with outputs at the sampled mix, and learn π; return log π − log ρ.

        Train first on the labelled rows, because an untrained network cannot determine π. Then train on all rows; before each
        epoch set π to its maximum likelihood estimate, given the outputs. At the end use all unlabelled rows: their mean
        prediction is π, as at the maximum of the likelihood.
        """
        rho, held = stated.sampling.numpy(), None
        if settings.early_stopping:
            rows, held = split_rows(rows, settings.validation_fraction, generator)
        train(network, rows, score, settings, generator, held=held)

        def most_likely(features: Tensor) -> np.ndarray:
            return mixture_proportions(special.log_softmax(network(features).double().numpy(), axis=1), rho)

        def learn(unlabelled: EndlessRows) -> None:
            pi = most_likely(unlabelled.take(_ROWS_FOR_POPULATION))
            options = (None, Categorical(), False, others.mass)
            network.criterion = make_criterion(self.loss, stated.retarget(pi), *options).to(network.vector.dtype)
            network.to_population = torch.from_numpy(np.log(pi) - np.log(rho)).to(network.vector.dtype)

        before, best = network.state(), max(network.validation_scores, default=-np.inf)
        train(network, rows, score, settings, generator, others.features, learn, held)
        if held is not None and max(network.validation_scores) <= best:
            network.restore(before)
        pi = most_likely(torch.from_numpy(others.features))
        self._learnt_population = self.population_ = pi
        warn_of_absent_class(self.classes_, pi, len(others.features))
        moves: np.ndarray = np.log(pi) - np.log(rho)
        return moves

    def _take_epoch(self, rows: LabelledRows, prevalence: Prevalence, reference: Tensor | None, arrays: Any) -> None:
        sizes, settings = hidden_sizes(self), network_settings(self, len(rows.features), float(self.class_totals_.sum()))
        likelihood = Bernoulli() if len(rows.classes) == 2 and not sizes else Categorical()
        loss = "logit_adjusted" if self.loss == "log_likelihood" else self.loss  # the outputs remain those of the population
        criterion = make_criterion(loss, prevalence, reference, likelihood, False)
        self.n_iter_ = getattr(self, "n_iter_", 0) + 1
        generator, dtype = self._generator(self.n_iter_), torch.from_numpy(rows.features[:0]).dtype
        network = getattr(self, "_network", None)
        if network is None:
            first = likelihood.starting_outputs(prevalence)
            layers = [rows.features.shape[1], *sizes, len(first)]
            network = Network(layers, first, settings, criterion, dtype, generator)
            if not sizes:
                network.weights[0].zero_()
        network.criterion = criterion.to(dtype)
        if arrays is not None:
            network.set_arrays(*arrays)
        loss_value = epoch_loss(network, rows, settings, generator)
        self.loss_curve_, self._network = [*getattr(self, "loss_curve_", []), loss_value], network
        weights, biases = network.arrays()
        if sizes:
            self.coefs_, self.intercepts_ = weights, biases
        else:
            self.coef_, self.intercept_ = weights[0].T.copy(), biases[0]
        self.validation_scores_, self._covariances = None, None
        self._no_covariances = "Expected `fit` for standard errors, but got partial_fit: fit all rows at once."

    def _generator(self, call: int) -> torch.Generator:
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        return torch.Generator().manual_seed(seed + call)

    def _layers(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return the weights of the layers; a linear model has one layer."""
        if self.n_layers_ > 2:
            return self.coefs_, self.intercepts_
        return [self.coef_.T], [self.intercept_]

    def _earlier_solution(self, rows: LabelledRows, prevalence: Prevalence, sizes: tuple[int, ...]) -> Any:
        """Return the start of a warm start: coefficients or layers at the new population; None if there are none."""
        if not np.array_equal(getattr(self, "classes_", np.empty(0)), rows.classes):
            return None
        move = prevalence.start.log().numpy() - np.log(self.population_)
        if sizes:
            shapes = [weight.shape for weight in getattr(self, "coefs_", [])]
            wanted = [rows.features.shape[1], *sizes, len(rows.classes)]
            if shapes != list(pairwise(wanted)):
                return None
            return self.coefs_, [*self.intercepts_[:-1], self.intercepts_[-1] + move]
        if getattr(self, "coef_", np.empty((0, 0))).shape[1] != rows.features.shape[1]:
            return None
        return [moved(np.vstack([self.coef_.T, self.intercept_]), move)]

    def _shift(self, move: np.ndarray) -> None:
        """Add offsets to the log-odds of the classes."""
        if self.n_layers_ > 2:
            last = self.intercepts_[-1]
            self.intercepts_ = [*self.intercepts_[:-1], last + move.astype(last.dtype)]
        else:
            self.intercept_ = moved(self.intercept_[None], move)[0]

    def _outputs(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        if self.n_layers_ == 2:
            features = validate_data(self, X, dtype=np.float64, reset=False)
            outputs: np.ndarray = features @ self.coef_.T + self.intercept_
            return outputs
        features = validate_data(self, X, dtype=self.coefs_[0].dtype, reset=False)
        return forward(self.coefs_, self.intercepts_, self.activation, features).astype(np.float64)

    def _contrasts(self) -> np.ndarray:
        """Return the log-odds against class 0 as coefficients (K − 1, d + 1), the intercept last."""
        found = np.column_stack([self.coef_, self.intercept_])
        return found if len(self.classes_) == 2 else found[1:] - found[0]

    def _covariance(self, covariance: Covariance, level: float) -> tuple[np.ndarray, str]:
        check_is_fitted(self)
        if covariance not in ("model", "robust"):
            raise ValueError(f"Expected `covariance` to be 'model' or 'robust', but got {covariance!r}: choose one of them.")
        if not 0 < level < 1:
            raise ValueError(f"Expected `level` between 0 and 1, but got {level!r}: 0.95 is the default.")
        if self.n_layers_ > 2:
            raise ValueError("Expected a linear model for standard errors, but it has hidden layers: hidden_layer_sizes=().")
        if self._covariances is None:
            raise ValueError(self._no_covariances)
        design = "case-control" if self._population_given else "cohort"
        if self.unlabelled_weight_ > 0:
            design = "unlabelled" if self._learnt_population is None else "learnt"
        matrix = self._covariances[f"{covariance} {design}"].copy()
        if self.concentration_ is not None:
            size = self.n_features_in_ + 1
            matrix[size - 1 :: size, size - 1 :: size] += prevalence_variance(self.concentration_)
        return matrix, design


def expected_log_likelihood(log_probs: np.ndarray, rows: LabelledRows, population: np.ndarray) -> float:
    """Return `Σ_k π_k · avg_{n: y_n = k} log p(k|x_n)`, the mean log-likelihood in the population."""
    table = rows.table()
    totals = table.sum(0)
    seen = totals > 0
    means = (table * log_probs).sum(0)[seen] / totals[seen]
    return float(means @ population[seen] / population[seen].sum())


def _is_plain(loss: str, prevalence: Prevalence, reference: Tensor | None) -> bool:
    """Return whether a linear model's optimum is that of plain cross-entropy in the sampled mix."""
    at_sampling = reference is None or bool(torch.equal(reference, prevalence.sampling))
    return loss in ("logit_adjusted", "log_likelihood") or (loss == "information_gain" and at_sampling)


def _check_firth(penalty: str | None, hidden: bool, classes: int, plain: bool) -> None:
    if penalty == "firth" and (hidden or classes != 2 or not plain):
        came = "hidden layers" if hidden else f"{classes} classes" if classes != 2 else "a weighted loss or another reference"
        raise ValueError(
            f"Expected a linear model of two classes and a loss in the training mix for penalty='firth', but got {came}: "
            "use penalty='l2'."
        )


def _start(num_features: int, log_mix: np.ndarray) -> np.ndarray:
    """Return coefficients that predict the mix: (d + 1, m)."""
    intercept = log_mix[1:] - log_mix[0] if len(log_mix) == 2 else log_mix - log_mix.mean()
    return np.vstack([np.zeros((num_features, len(intercept))), intercept])
