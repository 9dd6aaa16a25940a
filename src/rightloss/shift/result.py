"""What an estimate of a prevalence holds, and the `Prevalence` that it hands on.

Stage: π̂ and its covariance → an uncertain `Prevalence`, which prediction and metrics take.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..prevalence import Prevalence
from .calibration import Calibration
from .label_shift import mix_of
from .regions import deviance_limit

__all__ = ["PrevalenceEstimate"]


@dataclass(frozen=True, eq=False)
class PrevalenceEstimate:
    """The class frequencies of a population, estimated.

    Attributes:
        population: π̂ (K,), float64; a class may have exactly 0.
        low: lower ends of the regions per class (K,); π̂ itself where no region was asked for.
        high: upper ends.
        level: of the regions.
        region: how they were made: "profile", "curvature", "delta" or "none".
        method: as asked for.
        covariance: of π̂ `(K, K)`, with the calibration's uncertainty where one was fitted.
        condition: condition number: of the classes' likelihood ratios (EM) or of the confusion matrix. 1 is best.
        iterations: Newton steps; 1 for linear systems.
        converged: whether the maximum was reached.
        log_likelihood: L(π̂) (with a prior: the log posterior, both up to a constant); None where none was maximised.
        rows: how many predictions it rests on.
        calibration: the one that was applied, if any.
        sampling: ρ (K,), the mix at which the predictions hold.
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
        """Of each class's frequency (K,)."""
        return self.covariance.diagonal().clamp_min(0).sqrt()

    def prevalence(self, sampling: Any = None) -> Prevalence:
        """An uncertain `Prevalence`: the Dirichlet with the estimate's mean and Σ_k Var(π_k)/π_k.

        For two classes that is the Beta with its mean and variance. A class closer to 0 than 0.8 of its standard error (and
        half a person) is put there, which is the mean of a normal distribution cut at 0.

        Args:
            sampling: ρ of the model it will be used with; by default the mix at which the predictions hold.
        """
        errors = self._errors()
        floor = torch.clamp(math.sqrt(2 / math.pi) * errors, min=0.5 / self.rows).clamp_max(1 / len(errors))
        mean = torch.maximum(self.population, floor)
        mean = mean / mean.sum()
        spread = float((errors**2 / mean).sum())
        total = max((len(mean) - 1) / spread - 1, len(mean) * 1e-3) if spread > 0 else 1e12
        rho = self.sampling if sampling is None else torch.from_numpy(mix_of(sampling, len(mean)))
        return Prevalence.dirichlet(total * mean, rho)

    def _errors(self) -> Tensor:
        """Standard errors; where the region ends at 0 or 1 the curvature may say more than is known, and its width is taken."""
        errors = self.standard_error
        if self.region == "none":
            return errors
        z = math.sqrt(deviance_limit(self.level))
        up, down = (self.high - self.population) / z, (self.population - self.low) / z
        errors = torch.where(self.low == 0, torch.minimum(errors, up), errors)
        return torch.where(self.high == 1, torch.minimum(errors, down), errors)

    def __str__(self) -> str:
        how = f"{self.method}, {self.rows:,} predictions" + (f", {self.calibration.kind}" if self.calibration else "")
        lines = [f"Prevalence estimate ({how})"]
        for k, (value, low, high) in enumerate(zip(self.population, self.low, self.high, strict=True)):
            region = "" if self.region == "none" else f"  {100 * self.level:g} % {self.region} [{low:.4g}, {high:.4g}]"
            lines.append(f"  class {k}: {value:.4g}{region}")
        return "\n".join(lines)
