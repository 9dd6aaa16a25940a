"""BoostingClassifier: gradient boosting as a scikit-learn classifier with probabilities for the population.

Stage: table `(n, d)`, labels `(n,)`, a population → `BoostingClassifier`, probabilities `(n, k)` at that population or another.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, Literal, get_args

import numpy as np
import torch
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.model_selection import train_test_split
from sklearn.utils import Tags, assert_all_finite, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from ..prevalence import Frequencies, Prevalence
from ..sklearn.population import Population, by_class, class_prevalence
from .libraries import TRAIN, Library, Objective, Part, Plan, is_frame, raw_scores, with_plain_categories
from .objectives import InformationGainObjective, WeightedObjective

Loss = Literal["information_gain", "logit_adjusted", "weighted"]
FORBIDDEN = ("objective", "loss_function", "num_class", "init_score", "base_score")


class BoostingClassifier(ClassifierMixin, BaseEstimator):
    """Gradient boosting with LightGBM, XGBoost or CatBoost, with probabilities for the population.

    Scores start at log π, which `predict_proba` adds again, and `set_population` moves a fitted model without training. Missing
    values and pandas categorical columns are left to the library, a category that was not in `fit` as a missing one.

    `loss="logit_adjusted"` uses the library's own objective, started at the training mix ρ and moved to π in closed form. The
    information gain at κ = 1 and `reference=None` is the same loss with our objective. Other κ, the paper's reference
    (`reference="population"`) and `loss="weighted"` need our objective. CatBoost calls custom objectives row by row in
    Python, which is slow, so it supports only "logit_adjusted".

    Args:
        population: π: a dict by class label; for two classes the frequency of `classes_[1]` (of two words only if that is
            plainly the positive one, such as "yes"); K frequencies; a `Prevalence` or an estimate. None: the mix of the
            training rows.
        library: "lightgbm", "xgboost" or "catboost".
        loss: "information_gain", "logit_adjusted" or "weighted".
        evidence: κ of the information gain; None for that of `population`, if it is a `Prevalence`.
        reference: r of the information gain: None or "sampling" for ρ, "population" for π, or K frequencies.
        n_estimators: maximum number of rounds.
        learning_rate: the step size of each round.
        num_leaves: maximum leaves of a tree; None for the library's default.
        max_depth: maximum depth of a tree; None for the library's default.
        early_stopping: whether to hold out rows, stratified by class, and stop when the expected log-likelihood at π no longer
            increases on them (CatBoost: when its own loss, at the training mix, no longer decreases).
        validation_fraction: the fraction of rows held out.
        n_iter_no_change: rounds to wait for an improvement.
        params: further parameters of the library.
        random_state: seed of the split and of the library.
        n_jobs: number of threads; None for the library's default.

    Attributes:
        classes_: the labels, sorted.
        population_: π of the predictions (K,).
        prevalence_: the same, and ρ of the training rows.
        booster_: the library's own booster; its raw scores do not include the start. None with CatBoost if no column varies.
        offset_: (k,) log π, to be added to the raw scores (for two classes to 0 and the score). The log-softmax of the sum is
            `predict_log_proba`, for every loss.
        n_iter_: number of rounds kept.

    Examples:
        >>> import numpy as np
        >>> from rightloss.boosting import BoostingClassifier
        >>> y = np.arange(400) % 2  # sampled half and half
        >>> x = np.random.default_rng(0).normal(size=(400, 3)) + y[:, None]
        >>> model = BoostingClassifier(population=0.01, n_estimators=20).fit(x, y)
        >>> bool(model.predict_proba(x)[y == 0, 1].mean() < 0.01)
        True
        >>> bool(model.set_population(0.2).predict_proba(x)[y == 0, 1].mean() < 0.2)
        True
    """

    def __init__(
        self,
        population: Population | None = None,
        *,
        library: Library = "lightgbm",
        loss: Loss = "information_gain",
        evidence: float | None = 1.0,
        reference: Literal["sampling", "population"] | Frequencies | None = None,
        n_estimators: int = 100,
        learning_rate: float = 0.1,
        num_leaves: int | None = None,
        max_depth: int | None = None,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        params: Mapping[str, Any] | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.population = population
        self.library = library
        self.loss = loss
        self.evidence = evidence
        self.reference = reference
        self.n_estimators = n_estimators
        self.learning_rate = learning_rate
        self.num_leaves = num_leaves
        self.max_depth = max_depth
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.params = params
        self.random_state = random_state
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> BoostingClassifier:
        """Train on rows sampled by class, and return the classifier.

        Args:
            X: table `(n, d)`: array, sparse matrix or frame; NaN where a value is missing.
            y: labels `(n,)`, numbers or text.
            sample_weight: `(n,)`; also used for the training mix ρ.
        """
        self._check_options()
        x = self._table(X, reset=True)
        numbers, weights = self._targets(x, y, sample_weight)
        train, valid = self._split(Part(x, numbers, weights))
        sampling = np.bincount(train.y, train.sample_weight) / (
            len(train.y) if train.sample_weight is None else train.sample_weight.sum()
        )
        prevalence = class_prevalence(self.population, self.classes_, sampling)
        if self.evidence is not None:
            prevalence = prevalence.with_evidence(self.evidence)
        plan = self._plan(prevalence)
        self.booster_, self.n_iter_ = TRAIN[self.library](plan, train, valid)
        self._set(prevalence)
        return self

    def set_population(self, population: Population | None) -> BoostingClassifier:
        """Move the predictions to another population, without training; None is the mix of the training rows."""
        check_is_fitted(self)
        self._set(class_prevalence(population, self.classes_, self.prevalence_.sampling))
        return self

    @property
    def population_(self) -> np.ndarray:
        """π of the predictions (K,)."""
        check_is_fitted(self)
        return self.prevalence_.population.numpy()

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return log-probabilities at the population, `(n, k)`."""
        scores = self._scores(X)
        return torch.log_softmax(torch.from_numpy(scores), dim=1).numpy()

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return probabilities at the population, `(n, k)`."""
        return np.exp(self.predict_log_proba(X))

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the logits at the population: log-odds `(n,)` of `classes_[1]` for two classes, else `(n, k)`."""
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class at the population."""
        best = self._scores(X).argmax(1)
        return self.classes_[best]

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = self.library != "catboost"
        return tags

    def _scores(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        x = self._table(X, reset=False)
        return raw_scores(self.library, self.booster_, x, self._names(), self.n_jobs) + self.offset_

    def _set(self, prevalence: Prevalence) -> None:
        self.prevalence_ = prevalence
        self.offset_ = prevalence.population.log().numpy()

    def _plan(self, prevalence: Prevalence) -> Plan:
        objective = self._objective(prevalence)
        log_pi, log_rho = prevalence.population.log().numpy(), prevalence.sampling.log().numpy()
        return Plan(
            objective=objective,
            start=log_rho if objective is None else log_pi,
            metric=InformationGainObjective(prevalence).log_loss,
            adjust=log_pi - log_rho,
            n_estimators=self.n_estimators,
            learning_rate=self.learning_rate,
            num_leaves=self.num_leaves,
            max_depth=self.max_depth,
            n_iter_no_change=self.n_iter_no_change,
            names=self._names(),
            params=dict(self.params or {}),
            seed=int(check_random_state(self.random_state).randint(2**31 - 1)),
            n_jobs=self.n_jobs,
        )

    def _objective(self, prevalence: Prevalence) -> Objective | None:
        if self.loss == "logit_adjusted":
            return None
        if self.loss == "weighted":
            return WeightedObjective(prevalence)
        if isinstance(self.reference, str):
            return InformationGainObjective(prevalence, getattr(prevalence, self.reference))
        return InformationGainObjective(prevalence, by_class(self.reference, self.classes_, "reference"))

    def _targets(self, x: Any, y: Any, sample_weight: Any) -> tuple[np.ndarray, np.ndarray | None]:
        """Set `classes_`; return class numbers and weights."""
        if y is None:
            raise ValueError("BoostingClassifier requires y to be passed, but the target y is None: give the rows' labels.")
        labels = column_or_1d(y, warn=True)
        assert_all_finite(labels, input_name="y")
        check_classification_targets(labels)
        check_consistent_length(x, labels)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, x, dtype=np.float64, ensure_non_negative=True)
        seen = self.classes_[np.bincount(numbers, weights) > 0]
        if len(self.classes_) < 2 or len(seen) < len(self.classes_):
            raise ValueError(
                f"Expected at least 2 classes, each with rows of positive weight, but got {len(seen)} class(es) with such "
                f"rows, {seen.tolist()[:10]}, of {self.classes_.tolist()[:10]}: a class never sampled cannot be learned."
            )
        return numbers, weights

    def _split(self, rows: Part) -> tuple[Part, Part | None]:
        """Return training rows and, with early stopping, validation rows, stratified by class."""
        if not self.early_stopping:
            return rows, None
        fewest = int(np.bincount(rows.y).min())
        if fewest < 2:
            raise ValueError(
                f"Expected at least 2 rows of each class with early_stopping=True, but got {fewest}: one is held out; "
                "use early_stopping=False."
            )
        # at least one row of each class
        share = min(0.5, max(self.validation_fraction, 1 / fewest))
        parts = train_test_split(np.arange(len(rows.y)), test_size=share, stratify=rows.y, random_state=self.random_state)
        return tuple(_take(rows, np.sort(part)) for part in parts)  # type: ignore[return-value]

    def _table(self, X: Any, reset: bool) -> Any:
        """Return a checked table; a pandas frame with categorical columns stays one, with the categories of `fit`."""
        if is_frame(X) and any(str(kind) == "category" for kind in X.dtypes):
            validate_data(self, X, reset=reset, skip_check_array=True)
            kinds = dict(X.dtypes.items())
            if reset:
                self._dtypes = {name: kind for name, kind in kinds.items() if str(kind) == "category"}
            other = [name for name in kinds if name not in self._dtypes and getattr(kinds[name], "kind", "O") not in "biuf"]
            if other:
                raise ValueError(
                    f"Expected columns of numbers or categories, but {other[:10]} have the dtype {kinds[other[0]]}: give words "
                    "the dtype of a category, `astype('category')`."
                )
            known = X.copy(deep=False)
            for name, kind in self._dtypes.items():
                known[name] = X[name].astype("category").cat.set_categories(kind.categories)
            names = self._names() or [f"column_{number}" for number in range(X.shape[1])]
            return with_plain_categories(known.set_axis(names, axis=1), self.library)
        if reset:
            self._dtypes = {}
        elif self._dtypes:
            raise ValueError(
                f"Expected a frame with the categorical column(s) {list(self._dtypes)[:10]}, but got {type(X).__name__}: "
                "give the columns the dtype that they had in fit, `astype('category')`."
            )
        accepted = False if self.library == "catboost" else "csr"
        dtype = [np.float64, np.float32]
        x = validate_data(self, X, reset=reset, accept_sparse=accepted, dtype=dtype, ensure_all_finite="allow-nan")
        return sparse.csr_matrix(x) if sparse.issparse(x) else x

    def _names(self) -> list[str] | None:
        """Return the column names without characters that the libraries refuse; None if there are none or they clash."""
        names = getattr(self, "feature_names_in_", None)
        if names is None:
            return None
        plain = ["".join(letter if letter.isalnum() else "_" for letter in name) for name in names]
        return plain if len(set(plain)) == len(plain) else [f"column_{number}" for number in range(len(plain))]

    def _check_options(self) -> None:
        """Check the constructor arguments."""
        for name, options in (("library", get_args(Library)), ("loss", get_args(Loss))):
            if getattr(self, name) not in options:
                found = getattr(self, name)
                raise ValueError(f"Expected `{name}` to be one of {list(options)}, but got {found!r}: choose one.")
        if self.library == "catboost" and self.loss != "logit_adjusted":
            raise ValueError(
                f"Expected loss='logit_adjusted' with CatBoost, but got {self.loss!r}: it calls custom objectives row by "
                "row, which is slow; use LightGBM or XGBoost for the others."
            )
        if isinstance(self.reference, str) and self.reference not in ("sampling", "population"):
            raise ValueError(
                f"Expected `reference` to be 'sampling', 'population' or frequencies, but got {self.reference!r}: choose one."
            )
        for name in ("n_estimators", "n_iter_no_change"):
            value = getattr(self, name)
            if not isinstance(value, Integral) or value < 1:
                raise ValueError(f"Expected `{name}` to be a whole number ≥ 1, but got {value!r}: it counts rounds.")
        share: Any = self.validation_fraction
        if not isinstance(share, Real) or not 0 < float(share) < 1:
            raise ValueError(
                f"Expected `validation_fraction` to lie strictly between 0 and 1, but got {share!r}: "
                "0.1 holds a tenth of the rows out."
            )
        taken = [name for name in FORBIDDEN if name in (self.params or {})]
        if taken:
            raise ValueError(
                f"Expected `params` without the loss and its start, but got {taken}: use `loss`, or the library itself with an "
                "objective of rightloss.boosting."
            )


def _take(rows: Part, index: np.ndarray) -> Part:
    x = rows.x.iloc[index] if is_frame(rows.x) else rows.x[index]
    return Part(x, rows.y[index], None if rows.sample_weight is None else rows.sample_weight[index])
