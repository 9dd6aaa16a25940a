"""What the classifiers that are trained for a population share: π and ρ, predictions at π, and moving to another π.

Stage: log-probabilities of a subclass, (n, K) at `population_` → probabilities, classes and scores in scikit-learn's form.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from ..arrays import checked_int, checked_number
from ..prevalence import Prevalence
from .population import LearntPopulation, Population, class_prevalence
from .rows import LabelledRows

Model = TypeVar("Model", bound="PopulationClassifier")


class PopulationClassifier(ClassifierMixin, BaseEstimator):
    """The base of classifiers with a constructor argument `population`; subclasses fit, and predict log-probabilities."""

    classes_: np.ndarray

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return log-probabilities in the population (n, K)."""
        raise NotImplementedError

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return probabilities in the population (n, K)."""
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class in the population (n,), rarely a rare one: see `rightloss.metrics` for costs."""
        check_is_fitted(self)
        return self.classes_[self.predict_log_proba(X).argmax(1)]

    def set_population(self: Model, population: Population | None) -> Model:
        """Move the predictions to another population without refitting; None is the training mix.

        Args:
            population: in the form of the constructor's argument.
        """
        check_is_fitted(self)
        self._set_prevalence(class_prevalence(population, self.classes_, self.sampling_))
        return self

    @property
    def prevalence_(self) -> Prevalence:
        """π, with its uncertainty, and ρ."""
        check_is_fitted(self)
        if self.concentration_ is not None:
            return Prevalence.dirichlet(self.concentration_, self.sampling_)
        return class_prevalence(self.population_, self.classes_, self.sampling_)

    def _set_prevalence(self, prevalence: Prevalence) -> None:
        self.population_, self.sampling_ = prevalence.start, prevalence.sampling
        self.concentration_ = prevalence.concentration


def log_odds(self: PopulationClassifier, X: Any) -> np.ndarray:
    """Return the log-odds of `classes_[1]` in the population (n,); for more than two classes log-probabilities (n, K)."""
    log_probs = self.predict_log_proba(X)
    return log_probs[:, 1] - log_probs[:, 0] if len(self.classes_) == 2 else log_probs


def training_prevalence(population: LearntPopulation | None, rows: LabelledRows) -> Prevalence:
    """Return π, which may be unknown, and ρ, the mix of the rows; an unknown π without a start of its own starts at ρ."""
    totals = rows.class_totals()
    rho = totals / totals.sum()
    if isinstance(population, str) or (
        isinstance(population, Prevalence) and population.is_unknown and np.array_equal(population.start, population.sampling)
    ):
        population = Prevalence.unknown(len(rho), start=rho)
    return class_prevalence(population, rows.classes, rho)


def check_solver(estimator: Any) -> None:
    """Raise a ValueError unless `C` and `tol` are positive, and `max_iter` is a whole number from 1 up."""
    for name in ("C", "tol"):
        checked_number(getattr(estimator, name), name, 1e-300, remedy="leave it out for the default")
    checked_int(estimator.max_iter, "max_iter", 1)
