"""Estimate the prevalence, with confidence regions, from predictions on unlabelled data.

Stage: `log_probs`, ρ → `PrevalenceEstimate` → an uncertain `Prevalence`, an input of predictions and metrics.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, overload

import numpy as np

from ..arrays import (
    Array,
    Numbers,
    Predictions,
    array_of,
    as_given,
    checked_choice,
    checked_level,
    clusters_of,
    fields_as_given,
)
from ..calibration import Calibration
from ..calibration.fit_with_shrinkage import CalibrationKind, calibrate, checked_kind
from ..calibration.held_out import HeldOut, held_out_set
from ..finding_tables import ByFinding, by_name, for_each_finding, in_order, option_by_name
from ..prevalence import FindingMix, Frequencies, Prevalence, PrevalenceWarning
from .bbse_rlls import bbse, covariance, fieller_region, prediction_moments, rlls
from .label_shift import LabelShiftWarning, goodness_of_fit, held_out_by_finding, sampling_mix
from .maximum_likelihood import (
    MixLikelihood,
    QuadraticModel,
    condition_number,
    curvature_at,
    curvature_region,
    deviance_limit,
    maximise,
    profile_region,
    tangent_inverse,
    welch_limit,
)
from .stream import PredictionStream, Stream, predictions_by_finding

Method = Literal["em", "bbse", "bbse-soft", "rlls", "rlls-soft"]
CalibrationChoice = CalibrationKind | Literal["assumed"] | Calibration | None
_PROFILE_WORK = 1e10  # operations a profile may take; with more, use the curvature
_FEW = 15  # with fewer held-out examples of a class, regions may cover too little
_ENOUGH = 200  # examples (groups) from which a variance is taken at π̂ alone
_BLURRED = 1e6  # condition number above which classes cannot be distinguished


@overload
def estimate_prevalence(log_probs: Stream, sampling: FindingMix, **options: Any) -> ByFinding[PrevalenceEstimate]: ...
@overload
def estimate_prevalence(log_probs: Stream, sampling: Frequencies | Prevalence, **options: Any) -> PrevalenceEstimate: ...
def estimate_prevalence(  # type: ignore[misc]  # the options of both are these
    log_probs: Stream,
    sampling: Frequencies | Prevalence | FindingMix,
    *,
    method: Method = "em",
    held_out: tuple[Predictions, Numbers] | list[Any] | None = None,
    calibration: CalibrationChoice | Mapping[str, CalibrationChoice] = None,
    region: Literal["auto", "profile", "curvature", "fieller"] | None = "auto",
    level: float = 0.95,
    groups: Numbers | None = None,
    held_out_groups: Numbers | None = None,
) -> PrevalenceEstimate | ByFinding[PrevalenceEstimate]:
    """Estimate the class frequencies of unlabelled data from predictions on them, if p(x|y) is the same as in training.

    - "em" maximises L(π) = Σ_n log Σ_k π_k p(k|x_n)/ρ_k (Saerens et al. 2002), by Newton's method rather than EM. It needs
      calibrated predictions; a held-out set calibrates them (Alexandari et al. 2020). Without one there is a
      `PrevalenceWarning`: see `calibration`.
    - "bbse" solves P π = μ with the confusion matrix of a held-out set (Lipton et al. 2018), "bbse-soft" with mean
      probabilities; they need no calibration. A solution outside the simplex is replaced by the π that minimises ‖P π − μ‖.
    - "rlls" and "rlls-soft" regularise that system (Azizzadenesheli et al. 2019).

    Regions per class: "profile" is that of the profile likelihood (χ² with 1 degree of freedom), and includes 0 if 0 is
    probable enough. With a fitted calibration its limit is scaled by Var/Var_0, where Var = H⁻¹ (H + J Var(calibration) Jᵀ) H⁻¹
    and Var_0 = H⁻¹, and is that of Student's t, because few held-out examples show Var(calibration) only roughly. "curvature"
    is π̂ ± t s.e. on the scale of log-odds and needs no further pass over the data; it is rough for a class within two standard
    errors of 0. "auto" is "profile" for tables in memory that are not huge and for classes near 0, else "curvature". For linear
    systems the region is "fieller": all π_k that are compatible with P⁻¹ μ, given the noise of both sets. It is that of the
    system before regularisation, which adds bias but no information. All regions assume independent rows, or independent
    `groups` of rows. For pixels of an image, or visits of a patient, the estimate without groups is still right on average,
    but its region is too narrow.

    **Several findings** (multi-label), with a `Prevalence.multilabel` or a dict of rates by name as `sampling`:
    log-probabilities of presence `(n, L)`, held-out labels `(n, L)` with NaN where a finding was not read. The result has an
    estimate for each finding, `found["mass"].high`, for `retarget` and `evaluate`. `calibration` may be a dict.

    Args:
        log_probs: predictions on unlabelled data: a table `(n, k)`, dense maps `(n, k, h, w, …)` with a row per cell,
            `np.memmap` (read in blocks), or a stream of these that can be read repeatedly: a list, a loader, or a function
            that returns a new iterator.
        sampling: ρ, the mix of the predictions: K frequencies, for two classes that of class 1, or a `Prevalence` (its
            `sampling`; predictions of a model trained with one of rightloss's losses are at its `population`). With a
            calibration, "em" uses the mean of the calibrated predictions over the held-out set instead. With biases this is
            the label frequencies of that set. "mean" and "temperature" need a held-out set at the mix ρ; if its labels
            contradict that (p < 0.001), there is a warning. Linear systems use only the held-out labels.
        method: "em", "bbse", "bbse-soft", "rlls" or "rlls-soft".
        held_out: `(log_probs, labels)` of the same model on labelled data that it was not trained on, with every class in it.
            For dense maps the labels are `(n, h, w, …)`. Rows and cells labelled −100 are ignored. With fewer than 15 examples
            of a class there is a warning, because regions then cover less than their level.
        calibration: "affine", "beta", "temperature" or "mean" (unchanged predictions, ρ is their mean), fitted on `held_out`
            by [`fit_calibration`][rightloss.calibration.fit_calibration] without shrinkage; or a `Calibration`. None with a
            held-out set is "affine" for "em": one slope, and a bias per class. "assumed" means that the
            predictions are known to be calibrated at the mix ρ, and fits nothing. None without a held-out set assumes the same
            and always warns, because unlabelled predictions cannot show it: at π̂, with weights 1 / Σ_k π̂_k p(k|x)/ρ_k that
            sum to n, their weighted mean is exactly ρ for any model, right or wrong.
        region: "auto", "profile", "curvature", "fieller", or None for no regions.
        level: the level of the regions.
        groups: ids of patients (or sites) of the rows of `log_probs` `(n,)`, for dense maps of the images: rows with the same
            id may be correlated. Only for "em" and a table in memory.
        held_out_groups: the same of the held-out rows, for a calibration fitted here.

    Examples:
        >>> import numpy as np
        >>> from scipy.special import log_softmax
        >>> from rightloss.shift import estimate_prevalence
        >>> def predict(y):  # at equal classes, N(−1, 1) and N(1, 1)
        ...     x = np.random.default_rng(0).normal(2.0 * y - 1)
        ...     return log_softmax(np.stack([-x, x], 1), 1)
        >>> labels, unknown = np.arange(2000) % 2, np.arange(2000) % 10 == 0
        >>> held_out, target = predict(labels), predict(unknown)
        >>> estimate = estimate_prevalence(target, sampling=0.5, held_out=(held_out, labels))
        >>> bool(estimate.low[1] < 0.1 < estimate.high[1])
        True
    """
    if by_name(sampling) is not None:
        same = {"method": method, "region": region, "level": level, "groups": groups, "held_out_groups": held_out_groups}
        return _by_finding(log_probs, sampling, held_out, calibration, same)
    level = checked_level(level)
    choice = _checked_options(method, region, calibration, held_out)
    rows = PredictionStream(log_probs, passes=method == "em")
    rho = sampling_mix(sampling, rows.num_classes)  # type: ignore[arg-type]
    data = None if held_out is None else held_out_set(held_out, rows.num_classes, held_out_groups)
    if groups is not None and (method != "em" or rows.is_stream):
        remedy = "use method='em' and a table in memory"
        raise ValueError(f"Expected no `groups` for method={method!r} or a stream, but got some: {remedy}.")
    clusters = None if groups is None else clusters_of(groups, array_of(log_probs, "log_probs").shape)
    fitted = _fitted_calibration(choice, method, data, rho)
    rho = rho if fitted is None else fitted.sampling
    if method == "em":
        found = _maximum_likelihood(rows, rho, fitted, region, level, clusters)
    else:
        assert data is not None
        data.require_every_class()
        warn_of_few(data.counts, stacklevel=3)
        found = _linear_system(rows, data, fitted, method, region, level)
    estimate = PrevalenceEstimate(
        **found, level=level, method=method, rows=rows.count or 0, calibration=fitted, sampling=rho.copy()
    )
    if estimate.condition > _BLURRED or not estimate.converged:
        why = "the predictions hardly distinguish some classes" if estimate.converged else "its search did not converge"
        warnings.warn(f"Do not rely on the estimated prevalence: {why}.", LabelShiftWarning, stacklevel=2)
    return fields_as_given(estimate, rows.given)


@dataclass(frozen=True, eq=False)
class PrevalenceEstimate:
    """The result of `estimate_prevalence`: estimated class frequencies of a population.

    Attributes:
        population: π̂ (K,), float64; a class may have exactly 0. Arrays are tensors if the predictions were.
        low: lower limits of the regions per class (K,); π̂ itself without regions.
        high: upper limits.
        level: the level of the regions.
        region: the kind of the regions: "profile", "curvature", "fieller" or "none".
        method: the method used.
        covariance: covariance of π̂ `(K, K)`, including the uncertainty of a fitted calibration. A class at 0 has the variance
            for which the normal region at `level` ends at the limit of the likelihood's; directions without information have
            a standard error of 1.
        condition: condition number: of the classes' likelihood ratios (EM) or of the confusion matrix. 1 is best.
        iterations: evaluations of the likelihood of all rows; 1 for linear systems.
        converged: whether the maximum was reached.
        log_likelihood: L(π̂), up to a constant; None for linear systems.
        rows: the number of predictions.
        calibration: the applied calibration, if any.
        sampling: ρ (K,), the mix at which the predictions hold.

    Examples:
        >>> import numpy as np
        >>> from rightloss.shift import estimate_prevalence
        >>> certain = np.log([[0.999, 0.001]] * 90 + [[0.001, 0.999]] * 10)
        >>> estimate = estimate_prevalence(certain, sampling=0.5, calibration="assumed")
        >>> print(estimate)
        Prevalence estimate (em, 100 predictions)
          class 0: 0.9008  95 % profile [0.8319, 0.9495]
          class 1: 0.0992  95 % profile [0.05051, 0.1681]
        >>> estimate.prevalence().is_uncertain
        True
    """

    population: Array
    low: Array
    high: Array
    level: float
    region: str
    method: str
    covariance: Array
    condition: float
    iterations: int
    converged: bool
    log_likelihood: float | None
    rows: int
    calibration: Calibration | None = field(repr=False)
    sampling: Array = field(repr=False)

    @property
    def standard_error(self) -> Array:
        """The standard error of each class's frequency (K,)."""
        return as_given(np.sqrt(np.diag(array_of(self.covariance, "covariance")).clip(0)), self.covariance)

    def prevalence(self, sampling: Frequencies | Prevalence | None = None) -> Prevalence:
        """Return an uncertain `Prevalence`: the Dirichlet with the estimate's mean and Σ_k Var(π_k)/π_k.

        For two classes that is the Beta with its mean and variance. A class below 0.8 of its standard error is set to 0.8 of
        it, the mean of a normal distribution truncated at 0. If a region ends at 0 or 1, or is "fieller", its width gives the
        standard error. Σα is at least K, that of the uniform distribution over all mixes.

        Args:
            sampling: ρ of the model; by default the mix at which the predictions hold.
        """
        population, low, high, errors, rho = (
            array_of(getattr(self, name), name) for name in ("population", "low", "high", "standard_error", "sampling")
        )
        if self.region != "none":  # the curvature ignores the ends of the region at 0 and 1
            wide = np.maximum(high - population, population - low) / math.sqrt(deviance_limit(self.level))
            errors = np.where((self.region == "fieller") | (low == 0) | (high == 1), wide, errors)
        size = len(population)
        mean = np.maximum(population, np.minimum(math.sqrt(2 / math.pi) * errors, 1 / size))
        mean = mean / mean.sum()
        total = max((size - 1) / float((errors**2 / mean).sum()) - 1, size)
        return Prevalence.dirichlet(total * mean, rho if sampling is None else sampling_mix(sampling, size))

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers and strings: the frequencies with their limits, and what they come from."""
        arrays = {name: getattr(self, name).tolist() for name in ("population", "low", "high", "standard_error", "sampling")}
        return arrays | {name: getattr(self, name) for name in ("level", "region", "method", "rows", "condition", "converged")}

    @property
    def _source(self) -> str:
        return f"{self.method}, {self.rows:,} predictions" + (f", {self.calibration.kind}" if self.calibration else "")

    def __str__(self) -> str:
        lines = [f"Prevalence estimate ({self._source})"]
        for k, (value, low, high) in enumerate(zip(self.population, self.low, self.high, strict=True)):
            region = "" if self.region == "none" else f"  {100 * self.level:g} % {self.region} [{low:.4g}, {high:.4g}]"
            lines.append(f"  class {k}: {value:.4g}{region}")
        return "\n".join(lines)


def _by_finding(
    log_probs: Any, sampling: Any, held_out: Any, calibration: Any, options: dict[str, Any]
) -> ByFinding[PrevalenceEstimate]:
    """Estimate the frequency of each finding as that of two classes."""
    findings = by_name(sampling) or {}
    names = list(findings)
    if isinstance(calibration, Calibration):
        raise ValueError("Expected a calibration of each finding by its name, but got one for all: fit one to each finding.")
    pairs = held_out_by_finding(held_out, sampling)
    predictions = predictions_by_finding(in_order(log_probs, names), len(names))
    calibrations = option_by_name(calibration, names, "calibration")

    def estimated(number: int, name: str) -> PrevalenceEstimate:
        own = {"held_out": pairs[number], "calibration": calibrations[name]}
        return estimate_prevalence(predictions[number], findings[name], **own, **options)

    title = "Prevalence estimates by finding" + ("" if options["region"] is None else f", {100 * options['level']:g} % regions")
    return ByFinding(for_each_finding(names, estimated, stacklevel=4), _cells, title)


def _cells(found: PrevalenceEstimate) -> dict[str, str]:
    """Return a finding's row of the table."""
    region = {} if found.region == "none" else {"low": f"{found.low[1]:.4g}", "high": f"{found.high[1]:.4g}"}
    return {"present": f"{found.population[1]:.4g}", **region, "": found._source}


def _fitted_calibration(
    calibration: CalibrationChoice, method: Method, data: HeldOut | None, rho: np.ndarray
) -> Calibration | None:
    """Return the calibration to apply, fitted if necessary, and warn if it is doubtful."""
    if method == "em" and calibration is None:
        calibration = "assumed" if data is None else "affine"
        if data is None:
            message = (
                "The predictions are trusted to be calibrated at the mix `sampling`, which unlabelled rows cannot show; those "
                "of a model trained with one of rightloss's losses are at its population. If they are not, as often with "
                "trees, the estimate is wrong and its region too narrow: pass held_out=(log_probs, labels) of rows that the "
                "model was not trained on, or calibration='assumed' if this was checked."
            )
            warnings.warn(message, PrevalenceWarning, stacklevel=3)
    if calibration is None or calibration == "assumed":
        return None
    if isinstance(calibration, str):
        assert data is not None
        calibration = calibrate(data, calibration, shrink=0.0, stacklevel=4)  # shrunken slopes would bias the estimate
    counts = calibration.counts
    if len(calibration.slopes) != len(rho) or counts is None:
        kind = f"one of {len(calibration.slopes)}" if counts is not None else "one without labels"
        raise ValueError(f"Expected a calibration of {len(rho)} classes, fitted to labels, but got {kind}: fit it to these.")
    if method == "em":
        if not calibration.has_biases and goodness_of_fit(counts, rho) < 1e-3:
            shown = ", ".join(f"{share:.3g}" for share in counts / counts.sum())
            message = f"The held-out labels have the mix ({shown}), but calibration={calibration.kind!r} assumes `sampling`: "
            warnings.warn(f"{message}it may be far off; use calibration='affine'.", LabelShiftWarning, stacklevel=3)
        warn_of_few(counts, stacklevel=4)
    return calibration


def _maximum_likelihood(
    rows: PredictionStream,
    rho: np.ndarray,
    calibration: Calibration | None,
    region: str | None,
    level: float,
    clusters: np.ndarray | None,
) -> dict[str, Any]:
    likelihood = MixLikelihood(rows, rho, calibration)
    some = likelihood.of_some_rows()
    # moved away from the boundary, because other rows may need a class that these rows do not
    guess = rho if some is None else 0.999 * maximise(some, rho).point + 0.001 * rho
    best = maximise(likelihood, guess)
    # the variance beyond the curvature is estimated from the held-out examples of the rarest class, and from the groups
    examples = math.inf if calibration is None else float(np.asarray(calibration.counts).min())
    examples = examples if clusters is None else min(examples, float(clusters.max()) + 1)

    def variances(point: np.ndarray, curvature: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the variances of π̂ by H⁻¹ (K,), their covariance with the added variance `(K, K)`, and limits (K,)."""
        plain = tangent_inverse(curvature)
        full = plain + plain @ likelihood.added_variance(point, clusters) @ plain
        return np.diag(plain), full, welch_limit(np.diag(plain), np.diag(full), examples, level)

    def most(model: QuadraticModel) -> np.ndarray:
        # without fixing classes at 0: the calibration is as uncertain for a class at 0 as for one close to 0
        alone, full, limit = variances(model.point, model.curvature)
        return np.sqrt(limit * np.diag(full) / alone)

    curvature = curvature_at(best, level)
    alone, full, limit = variances(best.point, curvature)
    low, high = curvature_region(best.point, np.sqrt(limit * np.diag(full).clip(0)))
    if region == "auto":
        cheap = likelihood.is_kept and 24.0 * (rows.count or 0) * rows.num_classes**3 <= _PROFILE_WORK
        # where the curvature has little information
        near = bool((low <= 0).any() or (high >= 1).any()) and rows.num_classes <= 10
        region = "profile" if cheap or near else "curvature"
    if region == "profile":
        own = most(best.model)

        def reach(k: int, value: float, model: QuadraticModel) -> float:
            return max(float(own[k]), float(most(model)[k]))  # π̂ may be where the variance is small

        low, high = profile_region(likelihood, best, np.sqrt(alone), own, reach if examples < _ENOUGH else None)
    elif region is None:
        low, high = best.point.copy(), best.point.copy()
    found = {"population": best.point, "low": low, "high": high, "region": region or "none", "covariance": full}
    search = {"iterations": best.iterations, "converged": best.converged, "log_likelihood": best.value}
    return {**found, "condition": condition_number(curvature), **search}


def _linear_system(
    rows: PredictionStream, data: HeldOut, calibration: Calibration | None, method: str, region: str | None, level: float
) -> dict[str, Any]:
    blocks: Iterable[np.ndarray] = rows
    if calibration is not None:
        blocks = (calibration.apply(block) for block in rows)
        data = HeldOut(calibration.apply(data.log_probs), data.labels)
    means = prediction_moments(blocks, data, soft=method.endswith("soft"))
    point = rlls(means) if method.startswith("rlls") else bbse(means)
    low, high = (point, point) if region is None else fieller_region(means, point, level)
    found = {"population": point, "low": np.minimum(low, point), "high": np.maximum(high, point)}
    found |= {"region": "none" if region is None else "fieller", "covariance": covariance(means, point)}
    search = {"iterations": 1, "converged": True, "log_likelihood": None}
    return {**found, "condition": float(np.linalg.cond(means.by_class)), **search}


def warn_of_few(counts: np.ndarray, stacklevel: int, what: str = "held-out examples") -> None:
    """Warn of classes with few labelled examples."""
    few = np.flatnonzero(counts < _FEW).tolist()
    if few:
        message = f"Class(es) {few} have fewer than {_FEW} {what}: regions may cover less than their level; label more."
        warnings.warn(message, LabelShiftWarning, stacklevel=stacklevel)


def _checked_options(method: Any, region: Any, calibration: Any, held_out: Any) -> CalibrationChoice:
    """Return the calibration, by its present name."""
    checked_choice(method, "method", get_args(Method))
    checked_choice(region, "region", ("auto", "profile", "curvature", None) if method == "em" else ("auto", "fieller", None))
    assumed = isinstance(calibration, str) and calibration == "assumed"
    if assumed and held_out is not None:
        raise ValueError("Expected calibration='assumed' or `held_out`, but got both: leave one of them out.")
    fits = calibration is not None and not assumed and not isinstance(calibration, Calibration)
    if fits:
        calibration = checked_kind(calibration, "calibration", stacklevel=4)
    if held_out is None and (fits or method != "em"):
        needs = f"method={method!r}" if method != "em" else f"calibration={calibration!r}"
        raise ValueError(f"Expected `held_out` for {needs}, but got None: pass (log_probs, labels) of rows with labels.")
    return calibration
