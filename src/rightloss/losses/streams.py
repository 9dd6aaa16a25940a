"""Unlabelled rows of the population as one more class: the likelihood of the stream from which each x comes.

Stage: labelled batch, outputs of unlabelled rows → a batch over K + 1 streams, for the gain or the cross-entropy.

There are n_k labelled x of class k, drawn from p(x|k) = p(k|x,w) p(x)/π_k, and N_u unlabelled ones, drawn from p(x). With p(x)
profiled out (Prentice & Pyke 1979 where N_u = 0; Vardi 1985, Qin 1998), the likelihood is that of the stream s of each x:

    P(s = k|x,w) ∝ ρ_k p(k|x,w)/π_k,      P(s = unlabelled|x,w) ∝ λ,      λ = N_u / Σ_k n_k.

So "unlabelled" is a class to which every x of the population belongs: p(u|x,w) = 1 and π_u = 1. It adds a column of zeros to
the table of the K classes, and one entry to the mix r or ρ of the streams. Nothing else changes.

The streams do not use one known fact: the mean prediction over the unlabelled rows, p(k|w) = avg_u p(k|x,w), must be π_k.
`with_evidence` adds it as the likelihood of people counted by class, ε for each unlabelled row. The mean prediction over
N rows has a variance of Var p(k|x)/N, and the class frequency among N people counted has one of π_k(1 − π_k)/N. So a row is
worth 1/R² people, where R² is the fraction of the classes' variance that x explains.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from ..arrays import checked_number, rows_of
from ..likelihoods import Likelihood
from ..marginals import (
    AuxiliaryMarginal,
    MarginalState,
    MinibatchEstimate,
    PoolMarginal,
    cannot_be_read,
    log_mean_over_ranks,
    sum_over_ranks,
    with_minibatch_gradient,
)
from .batch import LabelledBatch, Labels, Reduction, check_finite_rows, full_precision, wide
from .gain import PriorTerms

SEEN = 30  # approximate number of people of the rarest class among the unlabelled rows of a mean prediction
LONGEST = 33  # minibatches in a mean prediction at most: the weights change meanwhile, so old ones are biased


EVIDENCE = 3.0  # ε by default: never behind logit adjustment in docs/benchmarks/unlabelled_evidence.md, where 0 and 1 are


@dataclass(frozen=True, eq=False)
class PopulationRows:
    """Unlabelled rows of the population for a loss, `criterion(logits, y, unlabelled=PopulationRows(logits_u))`.

    Attributes:
        logits: the model's outputs for them, as those of the labelled rows.
        weight: λ, the weight of unlabelled relative to labelled rows; None for the ratio of their numbers.
        evidence: ε, people counted by class per unlabelled row: adds `−ε λ κ Σ_k π_k log p(k|w)`, with p(k|w) the mean
            prediction over the unlabelled rows. It keeps that mean at a known π, and flexible models from memorising which
            rows are labelled; 0 for the likelihood of the streams only.

    Examples:
        >>> import torch, rightloss as rl
        >>> from rightloss.losses import PopulationRows
        >>> criterion = rl.InformationGainLoss(rl.Prevalence.binary(0.1))
        >>> logits, y = torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])
        >>> loss = criterion(logits, y, unlabelled=PopulationRows(torch.zeros(8, 2), weight=1.0))
    """

    logits: Tensor
    weight: float | None = None
    evidence: float = EVIDENCE

    def __post_init__(self) -> None:
        check_unlabelled_weight(self.weight)
        remedy = "it is the number of people of the population, counted by class, per unlabelled row; 0 for none, 3 is a start"
        checked_number(self.evidence, "unlabelled_evidence", 0, remedy=remedy)


@dataclass(eq=False)
class Tables:
    """The table log p(k|x,w) of the labelled rows, followed by the unlabelled ones.

    Attributes:
        table: all rows.
        labelled: the number of labelled rows.
        rows: the unlabelled ones, as given.
    """

    table: Float[Tensor, "n k"]
    labelled: int
    rows: PopulationRows

    @property
    def population(self) -> Float[Tensor, "m k"]:
        """The table of the unlabelled rows."""
        return self.table[self.labelled :]

    def log_mean(self, group: dist.ProcessGroup | None) -> Float[Tensor, " k"]:
        """Return the log of the mean prediction over the (global) unlabelled rows."""
        others = self.population
        return log_mean_over_ranks(torch.logsumexp(others, 0), math.log(max(1, len(others))), group)

    def number(self, group: dist.ProcessGroup | None) -> int:
        """Return the number of unlabelled rows, on all ranks if they have as many each."""
        return len(self.population) * (1 if group is None else dist.get_world_size(group))


def check_unlabelled_weight(weight: float | None) -> None:
    """Raise a ValueError if λ is not a size."""
    remedy = "it is the weight of unlabelled relative to labelled rows; None takes the ratio of their numbers"
    if weight is not None:
        checked_number(weight, "unlabelled_weight", 0, remedy=remedy)


def check_stream_marginal(marginal: object) -> None:
    """Raise a ValueError for a marginal that cannot estimate the frequency of the unlabelled stream."""
    if isinstance(marginal, PoolMarginal | AuxiliaryMarginal):
        came = f"{type(marginal).__name__}, with no estimate for the unlabelled stream"
        remedy = "use RunningMarginal(), or reference=prevalence.population"
        raise ValueError(f"Expected a marginal of the minibatches with `unlabelled`, but got {came}: {remedy}.")


def check_takes_unlabelled(loss: object, takes: bool) -> None:
    """Raise a ValueError for unlabelled rows, if the loss is not among those that use them."""
    if not takes:
        remedy = "its likelihood cannot use them; use LogitAdjustedLoss or InformationGainLoss"
        raise ValueError(f"Expected no `unlabelled` rows for {type(loss).__name__}, but got some: {remedy}.")


def evidence_decay(rows: int, population: Tensor | np.ndarray) -> float:
    """Return the decay of the running mean prediction: 0 if one minibatch has enough rows of each class."""
    return 1 - min(1.0, max(rows * float(population.min()) / SEEN, 1 / LONGEST))


def with_evidence(
    loss: Tensor,
    batch: LabelledBatch,
    tables: Tables,
    terms: PriorTerms,
    marginal: MarginalState,
    reduction: Reduction,
    group: dist.ProcessGroup | None,
) -> Tensor:
    """Return the loss minus `ε λ κ Σ_k π_k log p(k|w)` per labelled example, with p(k|w) the mean over the unlabelled rows.

    The term has its maximum where that mean is π. Its value uses the marginal's q, its gradient is `Σ_k π_k/q_k ∇m_k`, with m
    the minibatch's mean. (Mann and McCallum 2007 call it expectation regularisation.) Where r = π, the gain already has it.
    """
    rows = tables.rows
    if rows.evidence * terms.evidence == 0 or terms.at_population:
        return loss
    log_m = tables.log_mean(group)
    detached = log_m.detach()
    log_q = detached if detached.is_meta else marginal.update(MinibatchEstimate(detached, tables.number(group)))
    assert terms.population is not None
    mass: int | float | Tensor | None = rows.weight
    if mass is None:
        examples, unlabelled = _global_counts(batch.labels.count, len(tables.population), group)
        mass = unlabelled / examples
    mean = (terms.population.to(log_m) * with_minibatch_gradient(log_q, log_m)).sum()
    evidence = rows.evidence * terms.evidence * mass * mean
    if reduction == "mean":
        return loss - evidence
    if reduction == "sum":
        return loss - evidence * batch.labels.count
    each = batch.labels.mask(evidence.expand(batch.labels.rows))
    return loss - F.pad(each, (0, loss.numel() - len(each))).view_as(loss)


def tables_of(batch: LabelledBatch, unlabelled: PopulationRows | Tensor, likelihood: Likelihood) -> Tables:
    """Return the checked tables of labelled and unlabelled rows, from one call of the likelihood."""
    given = unlabelled if isinstance(unlabelled, PopulationRows) else PopulationRows(unlabelled)
    rows = batch.rows()
    others = rows_of(full_precision(_checked_outputs(given.logits, batch.outputs)))
    others = check_finite_rows(others, batch.nonfinite) if len(others) else others
    return Tables(likelihood.table(torch.cat([rows, others.to(rows.dtype)])), len(rows), given)


def stream_batch(
    batch: LabelledBatch,
    tables: Tables,
    terms: PriorTerms,
    weight: float | None,
    group: dist.ProcessGroup | None = None,
) -> tuple[LabelledBatch, PriorTerms]:
    """Return the batch and the prior terms of the streams: logits `log p(k|x,w)` and 0, labels with one more class.

    Classes that are never sampled have no stream. The mean loss is per labelled example, so that N times the mean is the
    negative log-likelihood of all rows, and its gradient has a limit as λ grows.

    Args:
        batch: the labelled rows.
        tables: all rows.
        terms: r, ρ, κ and offsets of the classes.
        weight: λ; None for the ratio of the rows given.
        group: the ranks that share the batch.
    """
    sampled = terms.sampling > 0
    _check_sampled(batch.labels, sampled)
    labels, rows = batch.labels, len(tables.table) - tables.labelled
    examples, unlabelled = _global_counts(labels.count, rows, group)
    lam = unlabelled / examples if weight is None else weight
    streams = stream_labels(labels, rows, sampled, None if weight is None else lam * examples / unlabelled)
    outputs = stream_columns(tables.table, sampled)
    joined = LabelledBatch(outputs, streams, None, outputs.shape[:1], batch.nonfinite, batch.labels.count)
    return joined, stream_terms(terms, sampled, lam)


def stream_columns(table: Float[Tensor, "*sets n k"], sampled: Bool[Tensor, " k"]) -> Float[Tensor, "*sets n s"]:
    """Return the table of the streams: log p(k|x,w) for the sampled classes, and 0 for the unlabelled stream."""
    return F.pad(table if bool(sampled.all()) else table[..., sampled], (0, 1))


def unreduced_shape(batch: LabelledBatch, unlabelled: Tensor) -> torch.Size:
    """Return the shape of an unreduced loss: labelled examples first, then the unlabelled; flat if dense sizes differ."""
    others = unlabelled.shape[2:] if unlabelled.ndim > 1 else torch.Size()
    if batch.shape[1:] == others:
        return torch.Size([batch.shape[0] + unlabelled.shape[0], *others])
    return torch.Size([math.prod(batch.shape) + unlabelled.shape[0] * math.prod(others)])


def _check_sampled(labels: Labels, sampled: Bool[Tensor, " k"]) -> None:
    """Raise a ValueError for a label of a class that is never sampled, because it has no stream."""
    if bool(sampled.all()):
        return
    found = labels.per_class(torch.zeros(0, device=sampled.device))
    if not cannot_be_read(found) and bool((found[~sampled] > 0).any()):
        never = torch.nonzero(~sampled).flatten().tolist()
        remedy = "give the mix of the labels, Prevalence.from_labels(y, population=…)"
        raise ValueError(f"Expected no label of class(es) {never}, by `sampling` never labelled, but got some: {remedy}.")


def _global_counts(
    labelled: int | float | Tensor, unlabelled: int, group: dist.ProcessGroup | None
) -> tuple[int | float | Tensor, int | float | Tensor]:
    if group is None:
        return labelled, unlabelled
    like = labelled if isinstance(labelled, Tensor) else torch.zeros((), dtype=torch.float64)
    both = torch.stack([torch.as_tensor(each).to(like.device, torch.float64) for each in (labelled, unlabelled)])
    examples, rows = sum_over_ranks(both, group)
    return (examples, rows) if isinstance(labelled, Tensor) else (float(examples), float(rows))


def stream_labels(labels: Labels, rows: int, sampled: Bool[Tensor, " k"], multiple: int | float | Tensor | None) -> Labels:
    """Return the labels of all rows as streams, unlabelled rows last; each unlabelled row counts `multiple` times.

    With leading dimensions `*sets`, each set has its own unlabelled rows, the same number each, and may have its own multiple.
    """
    like = labels.index if labels.index is not None else labels.votes
    assert like is not None
    last = int(sampled.sum())
    if last < len(sampled):
        column = (torch.cumsum(sampled, 0) - 1).clamp_min(0).to(like.device)
        like = column[like] if labels.votes is None else like[..., sampled.to(like.device)]
    if labels.votes is None:
        index, votes = F.pad(like, (0, rows), value=last), None
    else:
        index, votes = None, F.pad(like, (0, 1, 0, rows))
        votes[..., like.shape[-2] :, last] = 1.0
    multiples = None
    if multiple is not None or labels.multiples is not None:
        own = wide(torch.ones(labels.rows, device=like.device) if labels.multiples is None else labels.multiples)
        each = torch.as_tensor(1 if multiple is None else multiple, dtype=own.dtype, device=own.device).unsqueeze(-1)
        sets = torch.broadcast_shapes(own.shape[:-1], each.shape[:-1])
        multiples = torch.cat([own.expand(*sets, -1), each.expand(*sets, rows)], -1)
    count = labels.count + rows if multiple is None else labels.count + multiple * rows
    return Labels(index, votes, last + 1, count, multiples)


def stream_terms(terms: PriorTerms, sampled: Bool[Tensor, " k"], lam: int | float | Tensor) -> PriorTerms:
    """Return r, ρ, κ and offsets of the streams at λ, from those of the classes."""
    return _computed_terms(terms, sampled, lam) if isinstance(lam, Tensor) else _remembered_terms(terms, float(lam))


@lru_cache(16)
def _remembered_terms(terms: PriorTerms, lam: float) -> PriorTerms:
    with torch.inference_mode(False):
        return _computed_terms(terms, terms.sampling > 0, lam)


def _computed_terms(terms: PriorTerms, sampled: Bool[Tensor, " k"], lam: float | Tensor) -> PriorTerms:
    mass = torch.as_tensor(lam, dtype=terms.sampling.dtype, device=terms.sampling.device).reshape(1)

    def mix(classes: Tensor) -> Tensor:
        return torch.cat([classes[sampled], mass]) / (1 + mass)

    def offset(classes: Tensor | None) -> Tensor:
        return torch.cat([mass.new_zeros(int(sampled.sum())) if classes is None else classes[sampled], mass.log()])

    return replace(
        terms,
        reference=mix(terms.reference),
        sampling=mix(terms.sampling),
        log_offset=offset(terms.log_offset),
        log_adjust=offset(terms.log_adjust),
        at_population=False,
    )


def _checked_outputs(unlabelled: object, outputs: Tensor) -> Tensor:
    """Return the outputs of unlabelled rows, with a dimension for the outputs like the labelled ones."""
    if not isinstance(unlabelled, Tensor) or not unlabelled.is_floating_point():
        found = unlabelled.dtype if isinstance(unlabelled, Tensor) else type(unlabelled).__name__
        raise ValueError(f"Expected `unlabelled` to be logits, a float tensor, but got {found}: pass model(x_unlabelled).")
    one = unlabelled.unsqueeze(1) if outputs.shape[1] == 1 and unlabelled.ndim == 1 else unlabelled
    if one.ndim != outputs.ndim or one.shape[1] != outputs.shape[1]:
        came = f"{tuple(unlabelled.shape)}: pass the same model's outputs for both"
        raise ValueError(f"Expected unlabelled logits as the labelled ones, of shape {tuple(outputs.shape)}, but got {came}.")
    return one
