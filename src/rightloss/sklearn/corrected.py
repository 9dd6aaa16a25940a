"""PrevalenceCorrectedClassifier: any classifier, with its probabilities moved to the population's class frequencies.

Stage: a classifier, rows, labels, π → a classifier with `predict_proba` at π, and later at any other π.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
from sklearn import get_config
from sklearn.base import MetaEstimatorMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags, indexable
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_method_params,
    _check_sample_weight,
    check_is_fitted,
    column_or_1d,
)

from ..arrays import checked_choice
from ..calibration import Calibration, fit_mean, smooth_likelihoods
from ..calibration.auto import choose_correction, compare, corrections, cross_fitted, is_smoothed
from ..calibration.fit_with_shrinkage import FLAT, fit_slopes, warn_of_disagreement
from ..calibration.held_out import HeldOut
from ..predictive import retarget
from ..prevalence import PrevalenceWarning, frequencies
from ..shift import estimate_prevalence, label_shift_test
from . import folds
from .base import PopulationClassifier
from .folds import GivenRows, OutOfFold, Split
from .population import Population, by_class, class_prevalence
from .training_mix import TrainingMix, resamples, training_mix, was_trained_on

CorrectionMethod = Literal["auto", "closed_form", "affine", "beta", "mean_matching"]
METHODS = get_args(CorrectionMethod)
_CALIBRATING = ("auto", "affine", "beta")  # methods that need folds
_MANY_COPIES = 0.3  # the share of rows with a near-copy in another fold, beyond chance, that is warned of


class PrevalenceCorrectedClassifier(MetaEstimatorMixin, PopulationClassifier):
    """Wrap any classifier so that its probabilities hold at the population's class frequencies π.

    A classifier's probabilities hold at the class frequencies ρ of its training: those of the labels, times class weights,
    after resampling. `fit` finds ρ from the classifier's parameters (`sampling_`) and corrects the probabilities by one of

    | method | correction | fits of the classifier |
    |---|---|---|
    | "closed_form" | `rightloss.retarget` from ρ to π; exact if the classifier is right at ρ | 1 |
    | "affine" | one slope on the logits and an intercept per class | cv + 1 |
    | "beta" | a slope and an intercept per class; with two classes this is beta calibration | cv + 1 |
    | "mean_matching" | an intercept per class, so that the mean prediction over `X_unlabelled` is π; uses no labels | 1 |
    | "auto" | "beta", unless the rule below finds better | cv + 1 |

    "affine" and "beta" are `rightloss.calibration.fit_calibration` on out-of-fold predictions, with its shrinkage. They give
    predictions at the mix of the labels, which the closed form then moves to π. Weighting the rows to π instead would need a
    new fit for each π.

    **The rule of "auto".** Every correction is scored by the expected log-likelihood at π of out-of-fold predictions
    (class averages, weighted by π), calibrations fitted on the other folds. "Better" means by more than one standard error of
    the paired difference, stratified by class.

    1. Use "beta", or mean matching if there is `X_unlabelled` and that is better.
    2. If always predicting π is better than the result, use "flat": all logits times 0.01, which predicts about π and keeps
       the order. A `PrevalenceWarning` says so.

    With fewer than 20 rows of a class calibration is the last resort: the closed form, or mean matching if that is better, is
    used, unless always predicting π is better than it and "affine" scores higher. If a class has only one row, the closed form
    is used.

    In `evidence/claim.py` and `corrections.py` "beta" is level with the best of all corrections most often, and behind always
    predicting π on one table; step 2 is for that. `comparison_` has the scores of all corrections.

    **Smoothing.** At a small π a few rows far out decide the log-likelihood. There linear models and networks extrapolate, and
    claim likelihood ratios of thousands that a hundred labelled rows cannot show. With `smoothing`, 1/(n_k + 1) is added to
    each class's share of the likelihood of x, for n_k labelled rows of class k, so that no ratio exceeds about n_k + 1. For two
    classes the order of the predictions stays. It costs where classes are nearly separable, and for trees. It is off by
    default: with "auto" as the method it is behind as often as ahead (`evidence/claim.py`).

    **Probabilities of 0 and 1**, as forests give, have no logit. A probability of 0 becomes half the smallest positive one
    among the predictions in training (`floor_`), which keeps their order; 1/(2(n + 1)) if all of them are 0 or 1.

    Args:
        estimator: any classifier; LogisticRegression by default. **It is fitted again, even if it is fitted already**: as often
            as the table says. To prevent this, wrap a fitted one in `sklearn.frozen.FrozenEstimator`. The X and y of `fit` must
            then be rows that it has not seen: on its training rows it looks too good, and the correction is wrong. A
            `PrevalenceWarning` says so for LightGBM, XGBoost and some trees of scikit-learn, if all training rows are given;
            for other models, and for a part of the rows, there is no warning. The closed form uses *their* mix as that of the
            training, unless `sampling` is given. A classifier with only a `decision_function`, such as LinearSVC, can be
            calibrated ("affine", "beta", "auto"): its values are used as logits.
        population: π: a dict by label; for two classes a number, the frequency of `classes_[1]` (words only if that is plainly
            the positive one, such as "yes"; else a dict); K frequencies in the order of `classes_`; a `Prevalence`; an estimate
            of one. None for the labels' own mix, by weight, or, if `fit` is given
            `X_unlabelled` and the method is not "mean_matching", for an estimate from these rows.
        method: "auto", "closed_form", "affine", "beta" or "mean_matching".
        smoothing: True or False; not for "mean_matching". "auto" is True only with method="auto", if that chose the
            closed form or a calibration, which then is not better without smoothing by a standard error on held-out rows at
            π. It is False with fewer than 20 rows of a class, and for a frozen classifier, which may have been trained on
            more rows than `fit` is given. The method is chosen, and `comparison_` is, without smoothing.
        sampling: ρ, in the form of `population`, if the classifier's parameters do not show it. Samplers that generate rows
            (SMOTE) or choose them by x (Tomek links) change more than the mix: the closed form is then approximate, and a
            `PrevalenceWarning` says so.
        cv: number of folds, or a splitter of scikit-learn. If a class has fewer rows than folds, or `groups`, there are fewer
            folds.
        n_jobs: number of processes for the folds.
        random_state: seed of the folds. None does not shuffle the rows.

    Attributes:
        classes_: the labels, sorted (K,).
        estimator_: the fitted classifier.
        method_: the correction in use; for "auto" also "flat".
        smoothing_: whether likelihoods are smoothed.
        sampling_: ρ (K,); the labels' own mix for a classifier without probabilities.
        population_: π (K,); the mean if it is uncertain.
        prevalence_: both as a `rightloss.Prevalence`, with the uncertainty of π.
        comparison_: for "auto" a dict: method → its "expected_log_likelihood" at π on held-out rows, its "gain" over always
            predicting π ("population") and the gain's "standard_error".
        calibration_: the `rightloss.calibration.Calibration` of the classifier's own predictions, or None.
        held_out_: the corrected predictions of rows that neither the classifier nor its calibration saw: `log_probs` `(n, k)`
            at the population of `fit`, `labels` as class numbers, `weights`, `groups`, in the order of the rows of `fit`
            without those of weight 0. None for "closed_form" and "mean_matching".
        floor_: the probability used for 0; None for a classifier without probabilities.
        estimate_: the estimate of `adapt`.
        n_features_in_: number of columns of X, if the classifier has it.
        feature_names_in_: their names, if the classifier has them.

    Examples:
        >>> import numpy as np
        >>> from sklearn.linear_model import LogisticRegression
        >>> from rightloss.sklearn import PrevalenceCorrectedClassifier
        >>> rng = np.random.default_rng(0)
        >>> y = (rng.random(2000) < 0.3).astype(int)
        >>> X = rng.normal(size=(2000, 2)) + y[:, None]
        >>> balanced = LogisticRegression(class_weight="balanced")
        >>> model = PrevalenceCorrectedClassifier(balanced, population=0.01).fit(X, y)
        >>> model.method_, model.sampling_.tolist(), model.population_.tolist()
        ('beta', [0.5, 0.5], [0.99, 0.01])
        >>> bool(model.predict_proba(X)[:, 1].mean() < balanced.fit(X, y).predict_proba(X)[:, 1].mean())
        True
        >>> model.set_population(0.001).population_.tolist()  # without a new fit
        [0.999, 0.001]
    """

    __metadata_request__fit = {"groups": True}  # noqa: RUF012  # requested, as by scikit-learn's splitters

    def __init__(
        self,
        estimator: Any = None,
        population: Any = None,
        *,
        method: Any = "auto",
        smoothing: Any = False,
        sampling: Any = None,
        cv: Any = 5,
        n_jobs: Any = None,
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.population = population
        self.method = method
        self.smoothing = smoothing
        self.sampling = sampling
        self.cv = cv
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        X_unlabelled: Any = None,
        groups: Any = None,
        **fit_params: Any,
    ) -> PrevalenceCorrectedClassifier:
        """Fit the classifier (unless it is frozen), find the class frequencies of its training, and fit the correction.

        With scikit-learn's metadata routing, weights, groups and further arguments reach the classifier and the splitter as
        they request them.

        Args:
            X: the rows, in any form that the classifier accepts. For a `FrozenEstimator`: rows that it was not trained on.
            y: their labels `(n,)`.
            sample_weight: weights of the rows `(n,)`; rows of weight 0 are left out. They are passed to the classifier, if it
                accepts weights (in a pipeline: to its last step), and used for the mix and the calibration. There whole numbers
                from 1 on count rows; others count as Kish's effective number of rows, whatever their sum.
            X_unlabelled: rows of the population, for "mean_matching", "auto", or `population=None`.
            groups: rows that belong together `(n,)`, such as those of one person, are left out together. Also passed to a
                search inside.
            **fit_params: passed to the classifier's `fit`.
        """
        X, y, groups = indexable(X, y, groups)
        check_classification_targets(y)
        y = column_or_1d(y, warn=True)
        classes, labels = np.unique(y, return_inverse=True)
        weights = np.ones(len(labels)) if sample_weight is None else np.asarray(_check_sample_weight(sample_weight, X))
        data = folds.label_mix(labels, weights, classes)
        estimator, rows = self._estimator(), GivenRows(X, y, labels, weights, groups)
        by_score = folds.response_method(estimator) == "decision_function"
        self._check_options(by_score, X_unlabelled, classes, data)
        params, metadata = self._routed(estimator, None if sample_weight is None else weights, groups, fit_params)
        splits = self._splits(by_score, rows, metadata)
        if not weights.all() and not get_tags(estimator).input_tags.pairwise:
            kept, place = np.flatnonzero(weights), np.cumsum(weights > 0) - 1
            params = _check_method_params(X, params, kept)
            rows = rows.take(kept)
            splits = None if splits is None else [(place[train], place[test]) for train, test in splits]

        self.estimator_ = clone(estimator).fit(rows.X, rows.y, **params)
        self.classes_ = classes
        self._copy_features()
        weighted = isinstance(estimator, FrozenEstimator) or any(name.endswith("sample_weight") for name in params)
        mix = TrainingMix(data, data) if by_score else self._training_mix(rows, weighted)
        self._data, self._counts = data, folds.rows_of_classes(rows.labels, rows.weights)
        self._set_prevalence(class_prevalence(data if self.population is None else self.population, classes, mix.sampling))

        folded = None if splits is None else folds.out_of_fold(estimator, rows, splits, params, self.n_jobs)
        if folded is not None and isinstance(estimator, FrozenEstimator) and was_trained_on(estimator, rows.X, rows.labels):
            _warn(
                "The frozen classifier was trained on these rows. It looks better on them than it is, so the correction is "
                "wrong: call `fit` with rows that it has not seen, or leave out `FrozenEstimator` to train it again.",
                2,
            )
        self.floor_ = None
        if not by_score:
            seen = folds.sample_of_predictions(self.estimator_, rows) if folded is None else folded.values
            self.floor_ = folds.probability_floor(seen)
        self._correct(rows, folded, X_unlabelled)
        self._warn_of(mix)
        if self.population is None and X_unlabelled is not None:
            self.adapt(X_unlabelled)
        return self

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return log-probabilities at the population `(n, k)`, columns in the order of `classes_`."""
        check_is_fitted(self)
        return self._moved(self._log_probs(X), self.calibration_)

    def set_population(self, population: Population | None) -> PrevalenceCorrectedClassifier:
        """Move to another population without a new fit, with the same method and smoothing. None for the labels' own mix."""
        check_is_fitted(self)
        return super().set_population(self._data if population is None else population)

    def adapt(self, X_unlabelled: Any, groups: Any = None) -> PrevalenceCorrectedClassifier:
        """Estimate the population's class frequencies from unlabelled rows, and move the predictions to them.

        The estimate (`estimate_`) is from `rightloss.shift.estimate_prevalence`, calibrated on out-of-fold predictions if there
        are some ("auto", "affine", "beta"). These are also used to test for label shift, with a
        `rightloss.shift.LabelShiftWarning` if more than the mix has changed. For both, each unlabelled row is predicted by the
        classifier of one fold, as each labelled row was: the one fitted to all rows is another classifier, and not comparable.
        Without out-of-fold predictions the classifier is assumed to be calibrated at ρ, and a `PrevalenceWarning` says so.

        Args:
            X_unlabelled: rows of the population.
            groups: unlabelled rows that belong together `(n,)`, such as those of one person. With them, or with `groups` in
                `fit`, the interval is for independent groups, and the test uses one row of each.
        """
        check_is_fitted(self)
        if self._adapting is None:
            self.estimate_ = estimate_prevalence(self._log_probs(X_unlabelled), self.sampling_)
            return self.set_population(self.estimate_)
        data, own_folds, models = self._adapting
        values, drawn = folds.predict_by_fold(models, X_unlabelled)
        table = self._table(values)
        ours, theirs = (folds.one_of_each(each) for each in (data.groups, groups))
        by_fold = (drawn[theirs], own_folds[ours]) if len(models) > 1 else None
        label_shift_test(table[theirs], (data.log_probs[ours], data.labels[ours]), folds=by_fold)
        held_out = data.log_probs, data.labels
        self.estimate_ = estimate_prevalence(
            table, self.sampling_, held_out=held_out, groups=groups, held_out_groups=data.groups
        )
        return self.set_population(self.estimate_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(self._estimator())
        tags.input_tags.sparse = inner.input_tags.sparse
        tags.input_tags.pairwise = inner.input_tags.pairwise
        tags.input_tags.allow_nan = inner.input_tags.allow_nan
        tags.classifier_tags.multi_class = inner.classifier_tags is None or inner.classifier_tags.multi_class
        return tags

    def _estimator(self) -> Any:
        return LogisticRegression() if self.estimator is None else self.estimator

    def _check_options(self, by_score: bool, X_unlabelled: Any, classes: np.ndarray, data: np.ndarray) -> None:
        checked_choice(self.method, "method", METHODS)
        if not isinstance(self.smoothing, bool | np.bool_):
            checked_choice(self.smoothing, "smoothing", (True, False, "auto"))
        if self.method == "mean_matching" and self.smoothing != "auto" and self.smoothing:
            raise ValueError(
                "Expected no smoothing for method='mean_matching', but got smoothing=True, which would change the mean: leave "
                "it out, or use another method."
            )
        if by_score and self.method not in _CALIBRATING:
            raise ValueError(
                f"Expected a classifier with `predict_proba` for method={self.method!r}, but got one with only "
                "`decision_function`: use 'auto', 'affine' or 'beta', which calibrate its values."
            )
        if self.method == "mean_matching" and (X_unlabelled is None or self.population is None):
            raise ValueError(
                "Expected `X_unlabelled` in `fit` and a `population` for method='mean_matching', but one is missing: give rows "
                "of the population and its class frequencies, or use another method."
            )
        if X_unlabelled is not None and self.population is not None and self.method not in ("auto", "mean_matching"):
            raise ValueError(
                f"Expected no `X_unlabelled` for method={self.method!r} and a known population, but got some: leave them "
                "out, or use method='mean_matching', or population=None to estimate it from them."
            )
        class_prevalence(self.population, classes, data if self.sampling is None else self.sampling)  # checked before any fit

    def _training_mix(self, rows: GivenRows, weighted: bool) -> TrainingMix:
        if self.sampling is None:
            return training_mix(self.estimator_, rows.X, rows.y, self.classes_, rows.weights if weighted else None)
        known = frequencies(by_class(self.sampling, self.classes_, "sampling"), "sampling", len(self.classes_))
        return TrainingMix(known, known)

    def _copy_features(self) -> None:
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
            elif hasattr(self, name):
                delattr(self, name)

    def get_metadata_routing(self) -> MetadataRouter:
        """Return how scikit-learn's metadata routing passes the arguments of `fit` on."""
        router = MetadataRouter(owner=self).add_self_request(self)
        router.add(estimator=self._estimator(), method_mapping=MethodMapping().add(caller="fit", callee="fit"))
        return router.add(splitter=self.cv, method_mapping=MethodMapping().add(caller="fit", callee="split"))

    def _routed(
        self, estimator: Any, weights: np.ndarray | None, groups: Any, fit_params: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the further arguments of the classifier's `fit` and of the splitter's `split`."""
        if weights is not None and isinstance(estimator, Pipeline) and resamples(estimator):
            raise ValueError(
                "Expected no `sample_weight` with a sampler in the pipeline, but got both: the sampler changes the rows, and "
                "their weights would be lost; use the one or the other."
            )
        if get_config()["enable_metadata_routing"]:
            routed = process_routing(self, "fit", sample_weight=weights, groups=groups, **fit_params)
            return routed.estimator.fit, routed.splitter.split
        params, name = folds.with_weights(estimator, weights, fit_params), folds.name_of_argument(estimator, "groups")
        if groups is None:
            return params, {}
        return params if name is None else {**params, name: groups}, {"groups": groups}

    def _splits(self, by_score: bool, rows: GivenRows, metadata: dict[str, Any]) -> list[Split] | None:
        """Return the folds, if the method needs them; None also if a class has only one row."""
        if self.method not in _CALIBRATING:
            return None
        metadata = {name: value for name, value in metadata.items() if name != "groups"}
        splits = folds.splits_of(self.cv, rows, self.random_state, metadata)
        if splits is None and (self.method != "auto" or by_score):
            raise ValueError(
                "Expected at least 2 rows of every class to calibrate on, of 2 groups if there are `groups`, but one class has "
                "a single one: use method='closed_form', or collect more."
            )
        if splits is None or isinstance(self._estimator(), FrozenEstimator):
            return splits
        if folds.share_of_copies(rows.X, splits) > _MANY_COPIES:
            remedy = "If some rows belong together, such as those of one person, call `fit` with `groups`."
            if rows.groups is not None:
                remedy = "Check that `groups` has the same number for rows that belong together, in the order of the rows."
            _warn(
                "Many rows have a near-copy in another fold, so held-out rows look easier than new ones, and the correction is "
                f"too sure. {remedy}",
                3,
            )
        return splits

    def _table(self, values: Any) -> np.ndarray:
        return folds.log_prob_rows(values, len(self.classes_), self.floor_)

    def _log_probs(self, X: Any) -> np.ndarray:
        """Return the classifier's own predictions as finite log-probabilities `(n, k)`."""
        return self._table(self.estimator_.decision_function(X) if self.floor_ is None else self.estimator_.predict_proba(X))

    def _moved(self, table: np.ndarray, calibration: Calibration | None) -> np.ndarray:
        """Return the classifier's own predictions, calibrated, at the population, and smoothed."""
        at = self.sampling_ if calibration is None else calibration.sampling
        found = retarget(table if calibration is None else calibration.apply(table), at, self.population_)
        return smooth_likelihoods(found, self.population_, self._counts) if self.smoothing_ else np.asarray(found)

    def _correct(self, rows: GivenRows, folded: OutOfFold | None, X_unlabelled: Any) -> None:
        """Choose the correction and fit it."""
        matched = None
        if X_unlabelled is not None and self.population is not None and self.floor_ is not None:
            matched = fit_mean(self._log_probs(X_unlabelled), self.population_)
        self.comparison_: dict[str, dict[str, float]] = {}
        self.held_out_: HeldOut | None = None
        self._adapting: tuple[HeldOut, np.ndarray, list[Any]] | None = None
        self.smoothing_ = self.smoothing != "auto" and bool(self.smoothing)
        if folded is None:
            self.method_ = "closed_form" if self.method == "auto" else self.method
            self.calibration_ = matched if self.method_ == "mean_matching" else None
            return
        kept = rows.weights > 0  # of a pairwise X they are all there
        shares = rows.weights * (self._counts / np.bincount(rows.labels, rows.weights))[rows.labels]
        groups = None if rows.groups is None else np.unique(np.asarray(rows.groups)[kept], return_inverse=True)[1]
        data = HeldOut(self._table(folded.values), rows.labels[kept], groups, shares[kept])
        tables = self._tables(data, folded.folds, matched)
        self.method_ = self.method
        if self.method == "auto":
            always = np.broadcast_to(np.log(self.population_), data.log_probs.shape)
            self.comparison_ = compare({**tables, "population": always}, data, self.population_)
            self.method_ = choose_correction(tables, data, self.population_)
        self.calibration_ = self._calibration(data, matched)
        if self.method_ in ("flat", "mean_matching"):
            self.smoothing_ = False
        elif self.method == self.smoothing == "auto" and not isinstance(self._estimator(), FrozenEstimator):
            self.smoothing_ = is_smoothed(tables[self.method_], data, self.population_)
        held_out = tables[self.method_] if self.method_ in tables else self._moved(data.log_probs, self.calibration_)
        if self.smoothing_:
            held_out = smooth_likelihoods(held_out, self.population_, self._counts)
        self.held_out_ = replace(data, log_probs=held_out)
        chosen = folds.rows_by_weight(data.labels, data.mass)
        self._adapting = data.take(chosen), folded.folds[chosen], folded.models

    def _tables(self, data: HeldOut, fold: np.ndarray, matched: Calibration | None) -> dict[str, np.ndarray]:
        """Return the held-out predictions at the population by correction."""
        if self.method != "auto":
            return {self.method: cross_fitted(data, fold, self.method, self.population_)}
        return corrections(data, fold, None if self.floor_ is None else self.sampling_, self.population_, matched)

    def _calibration(self, data: HeldOut, matched: Calibration | None) -> Calibration | None:
        """Return the calibration of `method_`, if it has one."""
        if self.method_ == "flat":
            size = len(self.classes_)
            return fit_mean(data.log_probs, data.counts / data.counts.sum(), data.mass, np.full(size, FLAT))
        if self.method_ not in ("affine", "beta"):
            return matched if self.method_ == "mean_matching" else None
        found = fit_slopes(data, self.method_)
        if self.method != "auto":
            warn_of_disagreement(data, found, stacklevel=4)
        return found

    def _warn_of(self, mix: TrainingMix) -> None:
        if mix.reshaped and self.method_ == "closed_form":
            names = ", ".join(mix.reshaped)
            _warn(
                f"{names} changed what the classes look like, not only their mix, so the closed form is approximate: use "
                "method='affine', which calibrates on held-out rows, or random under- or oversampling.",
                3,
            )
        if self.method_ == "flat":
            _warn(
                "On held-out rows the classifier is no better than predicting the population's frequencies for every row. So "
                "it now predicts these, with a small change that keeps the order: see `comparison_`.",
                3,
            )


def _warn(message: str, stacklevel: int) -> None:
    warnings.warn(message, PrevalenceWarning, stacklevel=stacklevel + 1)
