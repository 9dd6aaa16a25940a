"""A prevalence and a reference → the few tensors a loss computes with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..marginals import unseen
from ..prevalence import ContinuousPrevalence, Prevalence, frequencies


@dataclass(frozen=True)
class Setting:
    """What the loss knows of each label of the support.

    Attributes:
        reference: r_k; in regression the mass of each support point under r, (r/ρ)/k.
        sampling: ρ_k, in regression 1/k each: the support is a sample.
        log_offset: log r_k − log π_k, what turns p(k|x,w) into p_r(k|x,w) up to its sum; None where r = π.
        log_adjust: log ρ_k − log π_k, the offset of logit adjustment.
        log_importance: log π_k − log ρ_k, the weight of the weighted loss; None in regression where ρ has no density.
        evidence: κ.
        plain: whether r = ρ, so that every β is 1.
        at_population: whether r = π.
    """

    reference: Tensor
    sampling: Tensor
    log_offset: Tensor | None
    log_adjust: Tensor
    log_importance: Tensor | None
    evidence: float
    plain: bool
    at_population: bool

    def to(self, device: torch.device, dtype: torch.dtype) -> Setting:
        """The same elsewhere."""

        def cast(tensor: Tensor | None) -> Any:
            return None if tensor is None else tensor.to(device=device, dtype=dtype)

        return Setting(
            cast(self.reference),
            cast(self.sampling),
            cast(self.log_offset),
            cast(self.log_adjust),
            cast(self.log_importance),
            self.evidence,
            self.plain,
            self.at_population,
        )


def class_setting(prevalence: Prevalence, reference: Any, like: Tensor, num_data: int | None = None) -> Setting:
    """For classes: computed in float64, cast to the logits' dtype and device."""
    pi, rho = prevalence.population, prevalence.sampling
    r = rho if reference is None else frequencies(reference, "reference", prevalence.num_classes)
    at_population, plain = bool((r == pi).all()), bool((r == rho).all())
    return Setting(
        reference=r,
        sampling=rho,
        log_offset=None if at_population else r.log() - pi.log(),
        log_adjust=rho.log() - pi.log(),
        log_importance=pi.log() - rho.log(),
        evidence=prevalence.evidence_for(num_data, r),
        plain=plain,
        at_population=at_population,
    ).to(like.device, like.dtype)


def continuous_setting(prevalence: ContinuousPrevalence, reference: Any, support: Tensor) -> Setting:
    """For regression, at the batch's own labels: a sample of ρ, so each stands for a mass 1/k and a density ρ.

    Relative to that sample the density r has weights ∝ r/ρ, and p_r(y_j|x) ∝ p(y_j|x) r/(π ρ); the default r = ρ needs no ρ.
    """
    log_pi = _log_density(prevalence.population, support, "population")
    flat = torch.full_like(log_pi, 1 / len(log_pi))
    log_rho = None if prevalence.sampling is None else _log_density(prevalence.sampling, support, "sampling")
    if reference is None or reference is prevalence.sampling:
        weights, at_population, plain = flat, False, True
        log_offset: Tensor | None = -log_pi
    else:
        if log_rho is None:
            raise ValueError(
                "Expected ContinuousPrevalence(population, sampling) with both densities, because `reference` is not "
                "the sampled mix: give `sampling`, or leave `reference` out."
            )
        at_population, plain = reference is prevalence.population, False
        log_r = log_pi if at_population else _log_density(reference, support, "reference")
        weights = torch.exp(log_r - log_rho) * flat
        log_offset = None if at_population else log_r - log_pi - log_rho
    return Setting(
        reference=weights,
        sampling=flat,
        log_offset=log_offset,
        log_adjust=-log_pi,
        log_importance=None if log_rho is None else log_pi - log_rho,
        evidence=prevalence.evidence,
        plain=plain,
        at_population=at_population,
    )


def _log_density(density: Any, support: Tensor, name: str) -> Tensor:
    if not callable(getattr(density, "log_prob", None)):
        raise ValueError(f"Expected `{name}` to be a density with `log_prob`, but got {type(density).__name__}.")
    event = tuple(getattr(density, "event_shape", ()))
    log_density: Tensor = density.log_prob(support.reshape(len(support), *event) if event else support).to(support)
    if log_density.ndim > 1:
        log_density = log_density.flatten(1).sum(1)
    if not unseen(log_density) and not bool(torch.isfinite(log_density).all()):
        label = support[~torch.isfinite(log_density)][0].tolist()
        raise ValueError(
            f"Expected `{name}` to give every label a positive density, but it is 0 at {label}: "
            "choose a density that covers the labels."
        )
    return log_density
