"""Predictions on unlabelled data → the prevalence there, and how well it is known.

Stage: `log_probs`, ρ → `PrevalenceEstimate` → an uncertain `Prevalence`, which prediction and metrics take.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from ..log_probs import Numbers, Predictions
from ..prevalence import Frequencies, Prevalence, PrevalenceWarning
from ..rng import checked_level
from .bbse_rlls import bbse, covariance, fieller_region, prediction_moments, rlls
from .calibration import KINDS, Calibration, CalibrationKind, HeldOut, calibrate, held_out_set, require_every_class
from .label_shift import LabelShiftWarning, goodness_of_fit, sampling_mix
from .maximum_likelihood import MixLikelihood, maximise
from .regions import condition_number, curvature_at, curvature_region, deviance_limit, profile_region, tangent_inverse
from .stream import PredictionStream, Stream

Method = Literal["em", "bbse", "bbse-soft", "rlls", "rlls-soft"]
METHODS = get_args(Method)
CalibrationChoice = CalibrationKind | Literal["assumed"] | Calibration | None
_PROFILE_WORK = 1e10  # operations a profile may take before the curvature must do
_FEW = 15  # held-out examples of a class below which regions may cover too little
_BLURRED = 1e6  # condition number beyond which classes cannot be told apart


def estimate_prevalence(
    log_probs: Stream,
    sampling: Frequencies | Prevalence,
    *,
    method: Method = "em",
    held_out: tuple[Predictions, Numbers] | list[Any] | None = None,
    calibration: CalibrationChoice = None,
    prior: Numbers | None = None,
    region: Literal["auto", "profile", "curvature", "fieller"] | None = "auto",
    level: float = 0.95,
) -> PrevalenceEstimate:
    """Estimate the class frequencies of the data that `log_probs` are predictions on, if p(x|y) is as in training.

    - "em" maximises L(π) = Σ_n log Σ_k π_k p(k|x_n)/ρ_k (Saerens et al. 2002), by Newton's method rather than EM. It trusts
      the predictions, so they must be calibrated; with a held-out set they are (Alexandari et al. 2020). Without one there is
      a `PrevalenceWarning`: see `calibration`.
    - "bbse" solves P π = μ with the confusion matrix of a held-out set (Lipton et al. 2018), "bbse-soft" with mean
      probabilities; calibration does not matter. Solutions outside the simplex are replaced by the π of least ‖P π − μ‖.
    - "rlls" and "rlls-soft" regularise that system (Azizzadenesheli et al. 2019).

    Regions, per class: "profile" is the likelihood's (χ² with 1 degree), and reaches down to 0 where 0 is likely enough; with
    a fitted calibration its limit is scaled by Var/Var_0, where Var = H⁻¹ (H + J Var(calibration) Jᵀ) H⁻¹ and Var_0 = H⁻¹.
    "curvature" takes π̂ ± z s.e. on the scale of log odds and needs no further pass over the data; it is rough for a class
    within two standard errors of 0. "auto" is "profile" for tables in memory that are not huge and for classes near 0, else
    "curvature". Linear systems: "fieller", all π_k that P⁻¹ μ could come from by chance, with the noise of both sets; it is
    that of the system before regularisation, which adds a bias but no knowledge. All of them take rows to be independent.
    Pixels of an image, or visits of a patient, are not: the estimate is still right on average, but its region is too narrow.
    For an honest one, repeat the estimate on images (patients) drawn with replacement.

    Args:
        log_probs: predictions on unlabelled data: a table `(n, k)`, dense maps `(n, k, h, w, …)` of which each cell counts as a
            row, `np.memmap` (read in blocks), or a stream of these that can be read again: a list, a loader, or a function
            that returns a fresh iterator.
        sampling: ρ, the mix at which they are stated: K frequencies, for two classes that of class 1, or a `Prevalence`.
            With a calibration, "em" takes that of the calibrated predictions instead, their mean over the held-out set. With
            biases this is that set's mix of labels, whatever the predictions. "mean" and "temperature" trust the predictions
            and need a held-out set at the mix ρ; where its labels contradict that (p < 0.001), there is a warning. Linear
            systems go by the held-out labels alone.
        method: "em", "bbse", "bbse-soft", "rlls" or "rlls-soft".
        held_out: `(log_probs, labels)` of the same model on labelled data that it was not trained on, with every class in it.
            For dense maps the labels are `(n, h, w, …)`. Rows and cells labelled −100 are left out. Below 15 examples of a
            class there is a warning, since regions then cover less than they say.
        calibration: "bias-corrected", "vector", "temperature" or "mean" (predictions as they are, ρ their mean), fitted on
            `held_out`; or a `Calibration`. None with a held-out set is "bias-corrected" for "em". "assumed": the predictions
            are known to be calibrated at the mix ρ, and nothing is fitted. None without a held-out set assumes the same and
            warns, whatever the predictions, since unlabelled ones cannot show it: at π̂, with weights 1 / Σ_k π̂_k p(k|x)/ρ_k
            that sum to n, their weighted mean is exactly ρ, for a wrong model as for a right one.
        prior: Dirichlet parameters (K,), all ≥ 1, for the maximum a posteriori ("em").
        region: "auto", "profile", "curvature", "fieller", or None for none.
        level: of the regions.

    Examples:
        >>> import torch
        >>> from rightloss.shift import estimate_prevalence
        >>> def predict(x):  # at equal classes, N(−1, 1) and N(1, 1)
        ...     return torch.log_softmax(torch.stack([-x, x], 1), 1)
        >>> labels, unknown = torch.arange(2000) % 2, torch.arange(2000) % 10 == 0
        >>> held_out, target = (predict(torch.randn(2000) + 2 * y.float() - 1) for y in (labels, unknown))
        >>> estimate = estimate_prevalence(target, sampling=0.5, held_out=(held_out, labels))
        >>> bool(estimate.low[1] < 0.1 < estimate.high[1])
        True
    """
    level = checked_level(level)
    _check_options(method, region, calibration, held_out, prior)
    rows = PredictionStream(log_probs, passes=method == "em")
    rho = sampling_mix(sampling, rows.num_classes)
    alpha = None if prior is None else _dirichlet(prior, rows.num_classes)
    data = None if held_out is None else held_out_set(held_out, rows.num_classes)
    fitted = _fitted_calibration(calibration, method, data, rho)
    rho = rho if fitted is None else fitted.sampling.numpy()
    if method == "em":
        found = _maximum_likelihood(rows, rho, fitted, alpha, region, level)
    else:
        assert data is not None
        require_every_class(data)
        _warn_of_few(data.counts, stacklevel=3)
        found = _linear_system(rows, data, fitted, method, region, level)
    if found.condition > _BLURRED or not found.converged:
        why = "its search did not converge" if not found.converged else "the predictions hardly tell some classes apart"
        warnings.warn(f"Do not rely on the estimated prevalence: {why}.", LabelShiftWarning, stacklevel=2)
    with torch.inference_mode(False):  # so that the tensors can be used in training, too
        arrays = {name: torch.from_numpy(value.copy()) for name, value in vars(found).items() if isinstance(value, np.ndarray)}
        context: dict[str, Any] = {"level": level, "method": method, "rows": rows.count, "calibration": fitted}
        return PrevalenceEstimate(**{**vars(found), **arrays, **context, "sampling": torch.from_numpy(rho.copy())})


@dataclass(frozen=True, eq=False)
class PrevalenceEstimate:
    """The result of `estimate_prevalence`: estimated class frequencies of a population.

    Attributes:
        population: π̂ (K,), float64; a class may have exactly 0.
        low: lower ends of the regions per class (K,); π̂ itself where no region was asked for.
        high: upper ends.
        level: of the regions.
        region: how they were made: "profile", "curvature", "fieller" or "none".
        method: as asked for.
        covariance: of π̂ `(K, K)`, with the calibration's uncertainty where one was fitted. A class at 0 has the variance whose
            normal region at `level` ends where its likelihood's does; what the data do not tell has a standard error of 1.
        condition: condition number: of the classes' likelihood ratios (EM) or of the confusion matrix. 1 is best.
        iterations: Newton steps; 1 for linear systems.
        converged: whether the maximum was reached.
        log_likelihood: L(π̂) (with a prior: the log posterior, both up to a constant); None where none was maximised.
        rows: how many predictions it rests on.
        calibration: the one that was applied, if any.
        sampling: ρ (K,), the mix at which the predictions hold.

    Examples:
        >>> import torch
        >>> from rightloss.shift import estimate_prevalence
        >>> certain = torch.tensor([[0.999, 0.001]] * 90 + [[0.001, 0.999]] * 10).log()
        >>> estimate = estimate_prevalence(certain, sampling=0.5, calibration="assumed")
        >>> print(estimate)
        Prevalence estimate (em, 100 predictions)
          class 0: 0.9008  95 % profile [0.8319, 0.9495]
          class 1: 0.0992  95 % profile [0.05051, 0.1681]
        >>> estimate.prevalence().is_uncertain
        True
    """

    population: Tensor
    low: Tensor
    high: Tensor
    level: float
    region: str
    method: str
    covariance: Tensor
    condition: float
    iterations: int
    converged: bool
    log_likelihood: float | None
    rows: int
    calibration: Calibration | None = field(repr=False)
    sampling: Tensor = field(repr=False)

    @property
    def standard_error(self) -> Tensor:
        """The standard error of each class's frequency (K,)."""
        return self.covariance.diagonal().clamp_min(0).sqrt()

    def prevalence(self, sampling: Frequencies | Prevalence | None = None) -> Prevalence:
        """Return an uncertain `Prevalence`: the Dirichlet with the estimate's mean and Σ_k Var(π_k)/π_k.

        For two classes that is the Beta with its mean and variance. A class closer to 0 than 0.8 of its standard error is put
        at 0.8 of it, which is the mean of a normal distribution truncated at 0. Where a region ends at 0 or 1, or is
        "fieller", its width gives the standard error. Σα is at least K, that of the uniform distribution over all mixes.

        Args:
            sampling: ρ of the model it will be used with; by default the mix at which the predictions hold.
        """
        errors, size = self._errors(), len(self.population)
        mean = torch.maximum(self.population, (math.sqrt(2 / math.pi) * errors).clamp_max(1 / size))
        mean = mean / mean.sum()
        total = max((size - 1) / float((errors**2 / mean).sum()) - 1, size)
        rho = self.sampling if sampling is None else torch.from_numpy(sampling_mix(sampling, size))
        return Prevalence.dirichlet(total * mean, rho)

    def _errors(self) -> Tensor:
        """Return standard errors; where the region ends at 0 or 1, from its longer side: the curvature ignores the ends."""
        errors = self.standard_error
        if self.region == "none":
            return errors
        z = math.sqrt(deviance_limit(self.level))
        up, down = (self.high - self.population) / z, (self.population - self.low) / z
        wide = torch.maximum(up, down)
        if self.region == "fieller":
            return wide
        return torch.where((self.low == 0) | (self.high == 1), wide, errors)

    def __str__(self) -> str:
        how = f"{self.method}, {self.rows:,} predictions" + (f", {self.calibration.kind}" if self.calibration else "")
        lines = [f"Prevalence estimate ({how})"]
        for k, (value, low, high) in enumerate(zip(self.population, self.low, self.high, strict=True)):
            region = "" if self.region == "none" else f"  {100 * self.level:g} % {self.region} [{low:.4g}, {high:.4g}]"
            lines.append(f"  class {k}: {value:.4g}{region}")
        return "\n".join(lines)


@dataclass(frozen=True)
class _Solution:
    """The result of either kind of method, in numpy: the first attributes of `PrevalenceEstimate`."""

    population: np.ndarray
    low: np.ndarray
    high: np.ndarray
    region: str
    covariance: np.ndarray
    condition: float
    iterations: int = 1
    converged: bool = True
    log_likelihood: float | None = None


def _fitted_calibration(
    calibration: CalibrationChoice, method: Method, data: HeldOut | None, rho: np.ndarray
) -> Calibration | None:
    """Return the calibration to apply, fitted where need be, with warnings of what makes it doubtful."""
    if method == "em" and calibration is None:
        if data is None:
            _warn_of_trust(stacklevel=4)
        else:
            calibration = "bias-corrected"
    if calibration is None or calibration == "assumed":
        return None
    if isinstance(calibration, str):
        assert data is not None
        calibration = calibrate(data, calibration)
    if len(calibration.bias) != len(rho):
        raise ValueError(
            f"Expected a calibration of {len(rho)} classes, but got one of {len(calibration.bias)}: fit it to this model."
        )
    if method == "em":
        _warn_of_mix(calibration, rho, stacklevel=4)
        _warn_of_few(calibration.counts.numpy(), stacklevel=4)
    return calibration


def _maximum_likelihood(
    rows: PredictionStream,
    rho: np.ndarray,
    calibration: Calibration | None,
    prior: np.ndarray | None,
    region: str | None,
    level: float,
) -> _Solution:
    likelihood = MixLikelihood(rows, rho, calibration, prior)
    some = likelihood.of_some_rows()
    # drawn in from the boundary, since other rows may need a class that these do without
    guess = rho if some is None else 0.999 * maximise(some, rho).point + 0.001 * rho
    best = maximise(likelihood, guess)
    curvature = curvature_at(best, level)
    by_calibration = None
    if calibration is not None:
        moved = likelihood.by_calibration(best.point)
        by_calibration = moved @ calibration.covariance.numpy() @ moved.T
    plain, full = _covariances(curvature, by_calibration)
    errors, wide = (np.sqrt(np.diag(each).clip(0)) for each in (plain, full))
    low, high = (best.point, best.point) if region is None else curvature_region(best.point, wide, level)
    if region == "auto":
        cheap = likelihood.is_kept and 24.0 * (rows.count or 0) * rows.num_classes**3 <= _PROFILE_WORK
        near = bool((low <= 0).any() or (high >= 1).any()) and rows.num_classes <= 10  # where the curvature says little
        region = "profile" if cheap or near else "curvature"
    if region == "profile":
        # with no class held at 0: the calibration is as uncertain for one that is there as for one just beside it
        alone, together = (np.diag(each) for each in _covariances(best.model.curvature, by_calibration))
        widening = np.divide(together, alone, out=np.ones_like(alone), where=alone > 0)
        low, high = profile_region(likelihood, best, errors, deviance_limit(level), widening)
    condition = condition_number(curvature)
    return _Solution(best.point, low, high, region or "none", full, condition, best.iterations, best.converged, best.value)


def _covariances(curvature: np.ndarray, by_calibration: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return H⁻¹, and H⁻¹ (H + J Var(calibration) Jᵀ) H⁻¹."""
    plain = tangent_inverse(curvature)
    return plain, plain if by_calibration is None else plain + plain @ by_calibration @ plain


def _linear_system(
    rows: PredictionStream, data: HeldOut, calibration: Calibration | None, method: str, region: str | None, level: float
) -> _Solution:
    blocks: Iterable[Tensor] = rows
    if calibration is not None:
        blocks = (calibration.apply(block) for block in rows)
        data = HeldOut(calibration.apply(data.log_probs), data.labels)
    means = prediction_moments(blocks, data, soft=method.endswith("soft"))
    point = rlls(means) if method.startswith("rlls") else bbse(means)
    full, condition = covariance(means, point), float(np.linalg.cond(means.by_class))
    if region is None:
        return _Solution(point, point, point, "none", full, condition)
    low, high = fieller_region(means, point, level)
    return _Solution(point, np.minimum(low, point), np.maximum(high, point), "fieller", full, condition)


def _warn_of_trust(stacklevel: int) -> None:
    warnings.warn(
        "The predictions are trusted to be calibrated, which unlabelled rows cannot show. Where they are not, as often with "
        "trees, the estimate is wrong and its region too narrow: pass held_out=(log_probs, labels) of rows that the model was "
        "not trained on, or calibration='assumed' where this was checked.",
        PrevalenceWarning,
        stacklevel=stacklevel,
    )


def _warn_of_mix(calibration: Calibration, rho: np.ndarray, stacklevel: int) -> None:
    """Warn where a calibration assumes a held-out set at the mix ρ, and its labels contradict that."""
    counts = calibration.counts.numpy()
    if not calibration.has_biases and goodness_of_fit(counts, rho) < 1e-3:
        shown = ", ".join(f"{share:.3g}" for share in counts / counts.sum())
        warnings.warn(
            f"The held-out labels come at the mix ({shown}), but calibration={calibration.kind!r} assumes "
            "`sampling`: the prevalence may be far off; use calibration='bias-corrected'.",
            LabelShiftWarning,
            stacklevel=stacklevel,
        )


def _warn_of_few(counts: np.ndarray, stacklevel: int) -> None:
    """Warn of classes with few held-out examples."""
    few = np.flatnonzero(counts < _FEW).tolist()
    if few:
        warnings.warn(
            f"Class(es) {few} have fewer than {_FEW} held-out examples: regions may cover less than they say; label more.",
            LabelShiftWarning,
            stacklevel=stacklevel,
        )


def _check_options(method: Any, region: Any, calibration: Any, held_out: Any, prior: Any) -> None:
    if method not in METHODS:
        raise ValueError(f"Expected `method` to be one of {', '.join(METHODS)}, but got {method!r}: choose one of them.")
    kinds = ("auto", "profile", "curvature", None) if method == "em" else ("auto", "fieller", None)
    if region not in kinds:
        raise ValueError(f"Expected `region` for {method!r} to be one of {kinds}, but got {region!r}: choose one of them.")
    kind = calibration if isinstance(calibration, str) else None
    if calibration is not None and not isinstance(calibration, Calibration) and kind not in (*KINDS, "assumed"):
        raise ValueError(
            f"Expected `calibration` to be None, assumed, one of {', '.join(KINDS)}, or a Calibration, but got "
            f"{calibration!r}: choose one, or make one with fit_calibration."
        )
    if kind == "assumed" and held_out is not None:
        raise ValueError(
            "Expected calibration='assumed' or `held_out`, but got both: leave one of them out; with a held-out set nothing "
            "needs to be assumed."
        )
    needs = f"method={method!r}" if method != "em" else f"calibration={kind!r}" if kind in KINDS else None
    if needs and held_out is None:
        raise ValueError(
            f"Expected `held_out` for {needs}, but got None: pass (log_probs, labels) of the same model on labelled data, "
            "or use method='em' on calibrated predictions."
        )
    if prior is not None and method != "em":
        raise ValueError(f"Expected no `prior` for method={method!r}, but got one: a linear system has none; use method='em'.")


def _dirichlet(prior: Any, size: int) -> np.ndarray:
    alpha = np.asarray(prior.detach().cpu() if isinstance(prior, Tensor) else prior)
    if alpha.shape != (size,) or alpha.dtype.kind not in "fiu" or not np.isfinite(alpha).all() or (alpha < 1).any():
        raise ValueError(
            f"Expected `prior` to be {size} Dirichlet parameters ≥ 1, but got {prior!r}: 1 knows nothing, "
            "1 + c stands for c people of a class seen elsewhere."
        )
    return alpha.astype(np.float64)
