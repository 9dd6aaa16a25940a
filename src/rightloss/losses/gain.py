"""The information gain, the paper's Eq. (1): one place for its formula, for any likelihood and any derivative.

Stage: `log_probs (*sets, n, k), log_marginal (*sets, k), labels → gain (*sets, n)`, for one set of weights or many.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ..arrays import rows_of
from ..likelihoods import Likelihood
from ..marginals import cannot_be_read, log_mean_over_ranks, sum_over_ranks, with_minibatch_gradient
from ..prevalence import AnyPrevalence, ContinuousPrevalence, MultilabelPrevalence, Prevalence, frequencies
from ..tensors import tensor_of
from .batch import Labels, full_precision


@dataclass(frozen=True, eq=False)
class PriorTerms:
    """Prior terms of each label of the support, which do not depend on x.

    Attributes:
        reference: r_k; in regression the mass of each support point under r, (r/ρ)/k.
        sampling: ρ_k; in regression 1/k each, because the support is a sample.
        log_offset: log r_k − log π_k, which turns p(k|x,w) into p_r(k|x,w) up to normalisation; None where r = π.
        log_adjust: log ρ_k − log π_k, the offset of logit adjustment.
        evidence: κ.
        plain: whether r = ρ, which makes every β 1.
        at_population: whether r = π.
        population: π_k; in regression the mass of each support point under π, (π/ρ)/k, or None where ρ has no density.
        of_marginal: ρ_k − κ r_k, the weight of log p(k|w) in the mean loss; None if κ = 0, where each row has its own
            log p(y_n|w).
        cancels: whether p(y|w) cancels, as r = ρ and κ = 1: the loss is the cross-entropy at the sampled mix, logit adjustment.
    """

    reference: Tensor
    sampling: Tensor
    log_offset: Tensor | None
    log_adjust: Tensor
    evidence: float
    plain: bool
    at_population: bool
    population: Tensor | None = None
    of_marginal: Tensor | None = field(init=False)
    cancels: bool = field(init=False)
    _copies: dict[tuple[torch.device, torch.dtype], PriorTerms] = field(init=False, default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        of_marginal = self.sampling - self.evidence * self.reference if self.evidence else None
        object.__setattr__(self, "of_marginal", of_marginal)
        object.__setattr__(self, "cancels", self.plain and self.evidence == 1)

    def like(self, logits: Tensor) -> PriorTerms:
        """Return a copy on the device of the logits, in float64 if they are, and else in float32; it is kept."""
        key = logits.device, torch.float64 if logits.dtype == torch.float64 else torch.float32
        if key not in self._copies:
            self._copies[key] = self.to(*key)
        return self._copies[key]

    def to(self, device: torch.device, dtype: torch.dtype) -> PriorTerms:
        """Return a copy on another device and in another dtype."""
        return self._each(lambda part: part.to(device, dtype))

    def of_finding(self, number: int) -> PriorTerms:
        """Return the terms of one of several findings."""
        return self._each(lambda part: part[number].squeeze(0))

    def _each(self, change: Callable[[Tensor], Tensor]) -> PriorTerms:
        parts = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
        changed: dict[str, Any] = {name: change(value) for name, value in parts.items() if isinstance(value, Tensor)}
        return replace(self, **changed)


def information_gain(
    log_probs: Float[Tensor, "*sets n k"], log_marginal: Float[Tensor, "*sets k"], labels: Labels, terms: PriorTerms
) -> Float[Tensor, "*sets n"]:
    """Return the information gain of each row plus its share of the evidence; 0 where ignored.

    At κ = 0 it is `log p(y_n|x_n,w) − log p(y_n|w)`, Eq. (1); for soft labels Σ_k v_nk of these. With evidence it is

        log p(y_n|x_n,w) − Σ_k (ρ_k − κ r_k) log p(k|w):

    the declared ρ_k replace the label frequencies f_k of the batch, which would be the mean of Eq. (1). The f_k come
    from the same rows as the gradient of log p(k|w), so that the gradient of f_k log p(k|w) is biased in a minibatch; with ρ_k
    it is not. At κ = 0 the loss stays the paper's, where a constant prediction gains nothing in any batch.
    docs/benchmarks/label_frequencies.md compares both.
    """
    gain = labels.gather(log_probs)
    if terms.of_marginal is None:
        gain = gain - labels.per_row(log_marginal)
    elif not terms.cancels:
        gain = gain - (terms.of_marginal * log_marginal).sum(-1, keepdim=True)
    return labels.mask(gain)


def at_reference(table: Float[Tensor, "*sets n k"], log_offset: Float[Tensor, ...] | None) -> Float[Tensor, "*sets n k"]:
    """Return the table of `log p_r(k|x,w)`, `p_r(k|x,w) ∝ p(k|x,w) r_k/π_k`: predictions at another mix of classes."""
    return table if log_offset is None else F.log_softmax(table + log_offset, dim=-1)


def log_sum(
    log_probs: Float[Tensor, "*sets n k"], labels: Labels, log_weights: Float[Tensor, "*sets n"] | None
) -> Float[Tensor, "*sets k"]:
    """Return log Σ_n β_n p(k|x_n,w) over the rows not ignored."""
    counted = labels.row_weights(log_probs.dtype)
    if counted is not None:
        log_weights = counted.log() if log_weights is None else log_weights + counted.log()
    return torch.logsumexp(log_probs if log_weights is None else log_probs + log_weights.unsqueeze(-1), -2)


def table_of(outputs: Tensor, likelihood: Likelihood, support: Tensor | None = None) -> Float[Tensor, "n k"]:
    """Return log p(y|x,w) of a model's outputs, a row per label; dense outputs have a row per cell."""
    outputs = outputs.unsqueeze(1) if outputs.ndim == 1 and likelihood.num_outputs == 1 else outputs
    return likelihood.table(rows_of(full_precision(outputs)), support)


def example_log_weights(
    terms: PriorTerms, labels: Labels, sampling: Float[Tensor, "*sets k"] | None = None
) -> Float[Tensor, "*sets n"] | None:
    """Return log β_n, β_n = Σ_c v_nc r_c/ρ_c; None if every β is 1. ρ is `sampling`, by default the declared one."""
    if sampling is None or sampling is terms.sampling:
        if terms.plain:
            return None
        sampling = terms.sampling
    return labels.per_row(terms.reference / sampling).log()


def realised_frequencies(terms: PriorTerms, labels: Labels, group: dist.ProcessGroup | None) -> Float[Tensor, "*sets k"]:
    """Return the class frequencies of the (global) batch."""
    like = terms.reference
    found = labels.per_class(like)
    counts = torch.cat([found, torch.as_tensor(labels.count).to(like).reshape(*found.shape[:-1], 1)], -1)
    counts = sum_over_ranks(counts, group)
    return counts[..., :-1] / counts[..., -1:]


def log_mean_prediction(
    log_probs: Float[Tensor, "*sets n k"],
    labels: Labels,
    terms: PriorTerms,
    sampling: Float[Tensor, "*sets k"] | None = None,
    group: dist.ProcessGroup | None = None,
) -> Float[Tensor, "*sets k"]:
    """Return log m_k = log avg_n β_n p_r(k|x_n,w) of the (global) minibatch; ρ of β is `sampling`, by default the declared."""
    sums = log_sum(log_probs, labels, example_log_weights(terms, labels, sampling))
    return log_mean_over_ranks(sums, labels.log_count(log_probs), group)


def gain_of_rows(
    table: Float[Tensor, "*sets n k"],
    labels: Labels,
    terms: PriorTerms,
    log_q_of: Callable[[Tensor], Tensor],
    sampling: Float[Tensor, "*sets k"] | None = None,
    group: dist.ProcessGroup | None = None,
    population: Float[Tensor, "m k"] | None = None,
) -> Float[Tensor, "*sets n"]:
    """Return the information gain of each row, from torch operations that support all derivatives and transforms.

    Args:
        table: log p(k|x,w) at the population's mix; of the streams if there are unlabelled rows.
        labels: one per row.
        terms: r, ρ and κ, of the classes or of the streams.
        log_q_of: the minibatch's log m (without gradient) → log q.
        sampling: ρ in the weights β of the rows; the declared one by default.
        group: the ranks to average m over.
        population: the table of unlabelled rows to take m over, instead of the batch's rows; only where r = π.
    """
    log_probs = at_reference(table, terms.log_offset)
    if population is None:
        log_m = log_mean_prediction(log_probs, labels, terms, sampling, group)
    else:
        log_m = log_mean_over_ranks(torch.logsumexp(population, 0), math.log(len(population)), group)
    return information_gain(log_probs, with_minibatch_gradient(log_q_of(log_m.detach()), log_m), labels, terms)


def prior_terms(prevalence: AnyPrevalence, reference: Any, like: Tensor, support: Tensor | None = None) -> PriorTerms:
    """Return the prior terms, computed in float64, then cast to the dtype and device of `like`.

    The reference is None for ρ, "population" for π, or r. For several findings (multi-label) r and ρ are `(L, 2)`, and offsets
    `(L, 1, 2)`. In regression the terms are those of the `support`.
    """
    if isinstance(prevalence, ContinuousPrevalence):
        assert support is not None
        return continuous_terms(prevalence, reference, support)
    mixes: list[Any] = [prevalence.population, prevalence.sampling, reference]
    if isinstance(reference, str):
        mixes[2] = prevalence.population
    elif isinstance(prevalence, Prevalence):
        mixes[2] = None if reference is None else frequencies(reference, "reference", prevalence.num_classes)
    elif reference is not None:
        mixes[2] = prevalence.retarget(reference).population
    if isinstance(prevalence, MultilabelPrevalence):
        mixes = [None if rates is None else np.stack([1 - rates, rates], 1) for rates in mixes]
    pi, rho = tensor_of(mixes[0]), tensor_of(mixes[1])
    r = rho if mixes[2] is None else tensor_of(mixes[2])
    to_reference, to_sampling = (
        (mix.log() - pi.log()).unsqueeze(-2) if pi.ndim > 1 else mix.log() - pi.log() for mix in (r, rho)
    )
    at_population = bool((r == pi).all())
    terms = PriorTerms(
        reference=r,
        sampling=rho,
        log_offset=None if at_population else to_reference,
        log_adjust=to_sampling,
        evidence=prevalence.evidence,
        plain=bool((r == rho).all()),
        at_population=at_population,
        population=pi,
    )
    return terms.to(like.device, like.dtype)


def continuous_terms(prevalence: ContinuousPrevalence, reference: Any, support: Tensor) -> PriorTerms:
    """Return the prior terms for regression, at the batch's labels: a sample of ρ, each with mass 1/k and density ρ.

    On that sample the density r has weights ∝ r/ρ, and p_r(y_j|x) ∝ p(y_j|x) r/(π ρ). With the default r = ρ, ρ cancels.
    """
    log_pi = _log_density(prevalence.population, support, "population")
    flat = torch.full_like(log_pi, 1 / len(log_pi))
    log_rho = None if prevalence.sampling is None else _log_density(prevalence.sampling, support, "sampling")
    if reference is None or reference is prevalence.sampling:
        weights, at_population, plain = flat, False, True
        log_offset: Tensor | None = -log_pi
    else:
        if log_rho is None:
            remedy = "give `sampling`, or leave `reference` out"
            raise ValueError(f"Expected ContinuousPrevalence with both densities, because `reference` is not ρ: {remedy}.")
        at_population, plain = reference is prevalence.population, False
        log_r = log_pi if at_population else _log_density(reference, support, "reference")
        weights = torch.exp(log_r - log_rho) * flat
        log_offset = None if at_population else log_r - log_pi - log_rho
    return PriorTerms(
        reference=weights,
        sampling=flat,
        log_offset=log_offset,
        log_adjust=-log_pi,
        evidence=prevalence.evidence,
        plain=plain,
        at_population=at_population,
        population=None if log_rho is None else torch.exp(log_pi - log_rho) * flat,
    )


def _log_density(density: Any, support: Tensor, name: str) -> Tensor:
    if not callable(getattr(density, "log_prob", None)):
        raise ValueError(f"Expected `{name}` to be a density with `log_prob`, but got {type(density).__name__}.")
    event = tuple(getattr(density, "event_shape", ()))
    log_density: Tensor = density.log_prob(support.reshape(len(support), *event) if event else support).to(support)
    if log_density.ndim > 1:
        log_density = log_density.flatten(1).sum(1)
    if not cannot_be_read(log_density) and not bool(torch.isfinite(log_density).all()):
        label = support[~torch.isfinite(log_density)][0].tolist()
        remedy = "choose a density that covers the labels"
        raise ValueError(f"Expected `{name}` to give every label a positive density, but it is 0 at {label}: {remedy}.")
    return log_density
