"""Functional losses of logits and target. The modules of the same names hold the state and call the same functions."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ..likelihoods import Bernoulli, Categorical, Findings, Likelihood
from ..marginals import (
    BatchMarginal,
    FindingMarginals,
    Marginal,
    MarginalState,
    Measure,
    MinibatchEstimate,
    cannot_be_read,
    in_transform,
    sharing_group,
    sum_over_ranks,
)
from ..prevalence import AnyPrevalence, ContinuousPrevalence, Density, Frequencies, MultilabelPrevalence, Prevalence
from .batch import (
    UNREAD,
    LabelledBatch,
    NonFinite,
    Reduction,
    check_finite_rows,
    check_options,
    check_pair,
    class_batch,
    finding_batch,
    full_precision,
    regression_batch,
)
from .fused import LARGE, fused_cross_entropy, fused_loss
from .gain import (
    PriorTerms,
    at_reference,
    class_terms,
    continuous_terms,
    example_log_weights,
    finding_terms,
    gain_of_rows,
    log_sum,
    realised_frequencies,
)
from .streams import (
    Tables,
    add_evidence,
    check_unlabelled_evidence,
    check_unlabelled_weight,
    population_evidence,
    stream_batch,
    tables_of,
    unlabelled_mass,
    unreduced_shape,
)


def information_gain_loss(
    logits: Tensor,
    target: Tensor,
    prevalence: AnyPrevalence,
    likelihood: Likelihood | None = None,
    marginal: Marginal | None = None,
    reference: Frequencies | Density | None = None,
    reduction: Reduction = "mean",
    *,
    ignore_index: int | None = -100,
    nonfinite: NonFinite = "raise",
    process_group: dist.ProcessGroup | None = None,
    training: bool = True,
    fused: bool = True,
    unlabelled: Tensor | None = None,
    unlabelled_weight: float | None = None,
    unlabelled_evidence: float = 0.0,
) -> Tensor:
    """Return the negative information gain, `−(log p(y_n|x_n,w) − log p(y_n|w))`, the paper's Eq. (1).

    Train with this loss, and predict with the plain likelihood.

    Both probabilities are those at the class frequencies r, `reference`; with evidence κ, `−κ Σ_k r_k log p(k|w)` is added.
    The value of log p(y|w) is `log q`, estimated by `marginal`; its gradient is that of m/q, with m the minibatch's mean.

    Args:
        logits: outputs of the network for p(y|x,w) in the population, `(n, num_outputs)` or dense `(n, num_outputs, h, w, …)`.
        target: int `(n,)`, dense int `(n, h, w, …)`, soft float `(n, k)` with rows that sum to 1; float `(n,)` in regression.
            With a `Prevalence.multilabel`, logits and targets `(n, L)`: 0 and 1, and NaN where a finding was not read.
        prevalence: π, ρ and κ.
        likelihood: maps outputs to log-probabilities; Categorical by default.
        marginal: the estimator of q; by default the stateless `BatchMarginal`.
        reference: r. None for the sampled mix ρ, which reweights nothing; `prevalence.population` for the paper's form; or
            any other mix.
        reduction: "mean" over rows not ignored, "sum", or "none" for a loss per example.
        ignore_index: the int label of rows to ignore; None if there is none.
        nonfinite: "raise" an error for logits that are not finite, or "nan" to return a loss of NaN.
        process_group: the ranks that share the batch under `torch.distributed`; all by default.
        training: False for no communication with other ranks.
        fused: False to compose the softmax path from torch operations; forward-mode derivatives need it.
        unlabelled: logits of unlabelled rows from the population. They are one more stream in the mix r (see
            rightloss.losses.streams for the likelihood); where r = π, they are the marginal. An unreduced loss has them last.
        unlabelled_weight: λ, the weight of unlabelled relative to labelled rows; None for the ratio of their numbers.
        unlabelled_evidence: ε, people counted by class per unlabelled row: adds `−ε λ κ Σ_k π_k log p(k|w)`, with p(k|w)
            the mean prediction over the unlabelled rows. This keeps that mean at π.

    Examples:
        >>> import torch, rightloss as rl
        >>> logits, y = torch.tensor([[2.0, 0.0], [0.0, 2.0], [1.0, 0.0]]), torch.tensor([0, 1, 0])
        >>> loss = rl.information_gain_loss(logits, y, rl.Prevalence.binary(population=0.01))
        >>> round(float(loss), 4)
        2.0969
    """
    likelihood = likelihood_of(likelihood, prevalence)
    marginal = marginal_of(marginal, prevalence)
    check_options(reduction, nonfinite, ignore_index)
    weight, people = check_unlabelled_weight(unlabelled_weight), check_unlabelled_evidence(unlabelled_evidence)
    group = sharing_group(process_group, training)
    batch, terms = batch_and_terms(logits, target, prevalence, likelihood, reference, ignore_index, nonfinite, group)
    measure = measure_of(batch, terms, prevalence, likelihood, reference, ignore_index)
    others = usable(unlabelled, weight, prevalence, group)
    if others is None:
        if terms.cancels:
            return cross_entropy(batch, likelihood, terms.log_offset, None, reduction, group)
        marginal.prepare(likelihood.num_classes if likelihood.num_classes is not None else _num_classes(prevalence))
        return gain_loss(batch, terms, likelihood, marginal, measure, reduction, group, fused)
    tables = tables_of(batch, others, likelihood)
    if terms.at_population:
        marginal.prepare(len(terms.reference))
        loss = population_gain_loss(batch, tables, terms, likelihood, marginal, measure, reduction, group)
    else:
        marginal.prepare(int((terms.sampling > 0).sum()) + 1)
        joined, stream_terms = stream_batch(batch, tables, terms, weight, group)
        loss = gain_loss(joined, stream_terms, Categorical(), marginal, None, reduction, group, fused)
        loss = loss.reshape(unreduced_shape(batch, others)) if reduction == "none" else loss
    return with_evidence(loss, batch, tables, terms, prevalence, people, weight, BatchMarginal(), reduction, group)


def weighted_loss(
    logits: Tensor,
    target: Tensor,
    prevalence: AnyPrevalence,
    likelihood: Likelihood | None = None,
    reduction: Reduction = "mean",
    *,
    ignore_index: int | None = -100,
    nonfinite: NonFinite = "raise",
) -> Tensor:
    """Return the importance-weighted loss, `−β_n log p(y_n|x_n,w)`, the paper's wLoss; soft: `−Σ_k v_nk β_k log p(k|x_n,w)`.

    The mean divides by the number of examples, not by the sum of their weights as `nn.CrossEntropyLoss(weight=…)` does. So it
    is an unbiased estimate of the population's risk. The arguments are those of `information_gain_loss`.

    Examples:
        >>> import torch, rightloss as rl
        >>> logits, y = torch.tensor([[2.0, 0.0], [0.0, 2.0], [1.0, 0.0]]), torch.tensor([0, 1, 0])
        >>> round(float(rl.weighted_loss(logits, y, rl.Prevalence.binary(population=0.01))), 4)
        0.2914
    """
    batch, terms, likelihood = _checked(logits, target, prevalence, likelihood, reduction, ignore_index, nonfinite)
    return cross_entropy(batch, likelihood, None, importance(terms), reduction)


def logit_adjusted_loss(
    logits: Tensor,
    target: Tensor,
    prevalence: AnyPrevalence,
    likelihood: Likelihood | None = None,
    reduction: Reduction = "mean",
    *,
    ignore_index: int | None = -100,
    nonfinite: NonFinite = "raise",
    unlabelled: Tensor | None = None,
    unlabelled_weight: float | None = None,
    unlabelled_evidence: float = 0.0,
) -> Tensor:
    """Return the logit-adjusted cross-entropy, `−log p_ρ(y_n|x_n,w)` with `p_ρ(k|x,w) ∝ p(k|x,w) ρ_k/π_k`.

    With `unlabelled` rows it is the cross-entropy of the streams, defined in rightloss.losses.streams.

    The logits are for the population: the offset log ρ − log π is added in training only. For regression, with the batch's
    labels as the support, this is the batch Monte Carlo form of Balanced MSE. The arguments are those of
    `information_gain_loss`.

    Examples:
        >>> import torch, rightloss as rl
        >>> logits, y = torch.tensor([[2.0, 0.0], [0.0, 2.0], [1.0, 0.0]]), torch.tensor([0, 1, 0])
        >>> round(float(rl.logit_adjusted_loss(logits, y, rl.Prevalence.binary(population=0.01))), 4)
        2.0969
    """
    batch, terms, likelihood = _checked(logits, target, prevalence, likelihood, reduction, ignore_index, nonfinite)
    weight, people = check_unlabelled_weight(unlabelled_weight), check_unlabelled_evidence(unlabelled_evidence)
    others = usable(unlabelled, weight, prevalence, None)
    if others is None:
        return cross_entropy(batch, likelihood, terms.log_adjust, None, reduction)
    tables = tables_of(batch, others, likelihood)
    loss = stream_cross_entropy(batch, tables, terms, weight, reduction, others)
    return with_evidence(loss, batch, tables, terms, prevalence, people, weight, BatchMarginal(), reduction, None)


def log_likelihood_loss(
    logits: Tensor,
    target: Tensor,
    prevalence: AnyPrevalence,
    likelihood: Likelihood | None = None,
    reduction: Reduction = "mean",
    *,
    ignore_index: int | None = -100,
    nonfinite: NonFinite = "raise",
) -> Tensor:
    """Return plain cross-entropy, `−log p(y_n|x_n,w)`: right if ρ = π, or if predictions are corrected afterwards.

    The arguments are those of `information_gain_loss`.

    Examples:
        >>> import torch, rightloss as rl
        >>> logits, y = torch.tensor([[2.0, 0.0], [0.0, 2.0], [1.0, 0.0]]), torch.tensor([0, 1, 0])
        >>> round(float(rl.log_likelihood_loss(logits, y, rl.Prevalence.binary(population=0.01))), 4)
        0.189
    """
    batch, _, likelihood = _checked(logits, target, prevalence, likelihood, reduction, ignore_index, nonfinite)
    return cross_entropy(batch, likelihood, None, None, reduction)


def batch_and_terms(
    logits: Tensor,
    target: Tensor,
    prevalence: AnyPrevalence,
    likelihood: Likelihood,
    reference: Any,
    ignore_index: int | None,
    nonfinite: NonFinite,
    group: dist.ProcessGroup | None = None,
) -> tuple[LabelledBatch, PriorTerms]:
    """Return the checked batch, and the prior terms of its labels."""
    if isinstance(prevalence, ContinuousPrevalence):
        batch = regression_batch(logits, target, likelihood, nonfinite, group)
        assert batch.support is not None
        return batch, continuous_terms(prevalence, reference, batch.support)
    if isinstance(prevalence, MultilabelPrevalence):
        batch = finding_batch(logits, target, prevalence, ignore_index, nonfinite)
        return batch, finding_terms(prevalence, reference, full_precision(batch.outputs[:0]))
    batch = class_batch(logits, target, likelihood, prevalence.num_classes, ignore_index, nonfinite)
    return batch, class_terms(prevalence, reference, full_precision(batch.outputs[:0]))


def likelihood_of(likelihood: Likelihood | None, prevalence: AnyPrevalence) -> Likelihood:
    """Return the checked likelihood: Categorical by default, and a logit for each finding of a multi-label prevalence."""
    if isinstance(prevalence, MultilabelPrevalence):
        check_pair(Bernoulli() if likelihood is None else likelihood, prevalence)
        return Findings(prevalence.num_findings)
    likelihood = Categorical() if likelihood is None else likelihood
    check_pair(likelihood, prevalence)
    return likelihood


def marginal_of(marginal: Marginal | None, prevalence: AnyPrevalence) -> Marginal:
    """Return the marginal, by default that of the minibatch, with a copy for each finding of a multi-label prevalence."""
    marginal = BatchMarginal() if marginal is None else marginal
    if isinstance(prevalence, MultilabelPrevalence) and not isinstance(marginal, FindingMarginals):
        return FindingMarginals(marginal, prevalence.num_findings)
    return marginal


def _num_classes(prevalence: AnyPrevalence) -> int | None:
    return prevalence.num_classes if isinstance(prevalence, Prevalence) else None


def measure_of(
    batch: LabelledBatch,
    terms: PriorTerms,
    prevalence: AnyPrevalence,
    likelihood: Likelihood,
    reference: Any,
    ignore_index: int | None,
) -> Measure:
    """Return the function that estimates the marginal over other data, at this batch's support, for a `MinibatchEstimate`."""
    options: dict[str, Any] = {"terms": terms, "likelihood": likelihood, "nonfinite": batch.nonfinite}
    if not isinstance(prevalence, ContinuousPrevalence):
        return partial(class_log_sum, ignore_index=ignore_index, **options)
    assert batch.support is not None
    return partial(density_log_sum, support=batch.support, prevalence=prevalence, reference=reference, **options)


def gain_loss(
    batch: LabelledBatch,
    terms: PriorTerms,
    likelihood: Likelihood,
    marginal: Marginal,
    measure: Measure | None,
    reduction: Reduction,
    group: dist.ProcessGroup | None,
    fused: bool,
) -> Tensor:
    """Return `information_gain_loss` of a checked batch; `measure` is the estimate's, see `MinibatchEstimate`."""
    labels = batch.labels
    sampling = marginal.sampling_frequencies(terms.sampling, lambda: realised_frequencies(terms, labels, group))
    readable = not cannot_be_read(batch.outputs)

    def log_q_of(log_m: Tensor) -> Tensor:
        if log_m.is_meta:  # shapes without values: nothing for a marginal to learn from
            return log_m
        rows = labels.count if isinstance(labels.count, int) else labels.rows
        rows = rows if group is None else rows * dist.get_world_size(group)
        read = None
        if log_m.ndim > 1 and (labels.valid is not None or group is not None):  # ranks must agree whether they ask each other
            read = sum_over_ranks(torch.as_tensor(labels.count).to(log_m), group) > UNREAD**0.5
        return marginal.update(MinibatchEstimate(log_m, rows, measure, readable and batch.nonfinite == "raise", read=read))

    if fused and readable and group is None and reduction != "none" and type(likelihood) is Categorical:
        if labels.index is not None:
            return fused_loss(batch, terms, sampling, log_q_of, reduction)
    gain = gain_of_rows(likelihood.table(batch.rows(), batch.support), labels, terms, log_q_of, sampling, group)
    return batch.reduce(-gain, reduction, group)


def population_gain_loss(
    batch: LabelledBatch,
    tables: Tables,
    terms: PriorTerms,
    likelihood: Likelihood,
    marginal: Marginal,
    measure: Measure | None,
    reduction: Reduction,
    group: dist.ProcessGroup | None,
) -> Tensor:
    """Return the gain at r = π with the marginal (value and gradient) from the unlabelled rows, without weights."""
    rows = len(tables.population) * (1 if group is None else dist.get_world_size(group))

    def log_q_of(log_m: Tensor) -> Tensor:
        return log_m if log_m.is_meta else marginal.update(MinibatchEstimate(log_m, rows, measure))

    table = likelihood.table(batch.rows())
    gain = gain_of_rows(table, batch.labels, terms, log_q_of, group=group, population=tables.population)
    return batch.reduce(-gain, reduction, group)


def stream_cross_entropy(
    batch: LabelledBatch,
    tables: Tables,
    terms: PriorTerms,
    weight: float | None,
    reduction: Reduction,
    unlabelled: Tensor,
) -> Tensor:
    """Return `logit_adjusted_loss` with unlabelled rows."""
    joined, stream_terms = stream_batch(batch, tables, terms, weight)
    loss = cross_entropy(joined, Categorical(), stream_terms.log_adjust, None, reduction)
    return loss.reshape(unreduced_shape(batch, unlabelled)) if reduction == "none" else loss


def with_evidence(
    loss: Tensor,
    batch: LabelledBatch,
    tables: Tables,
    terms: PriorTerms,
    prevalence: AnyPrevalence,
    people: float,
    weight: float | None,
    marginal: MarginalState,
    reduction: Reduction,
    group: dist.ProcessGroup | None,
) -> Tensor:
    """Return the loss with unlabelled rows plus the term for the known π, with `people` counted per unlabelled row.

    Where r = π, the gain already includes that term.
    """
    assert isinstance(prevalence, Prevalence)
    if people * terms.evidence == 0 or prevalence.is_unknown or terms.at_population:
        return loss
    marginal = BatchMarginal() if in_transform() else marginal  # where no state can change
    assert terms.population is not None
    evidence = population_evidence(tables, terms.population, marginal, group)
    each = people * terms.evidence * unlabelled_mass(batch, tables, weight, group)
    return add_evidence(loss, batch, each * evidence, reduction)


def usable(
    unlabelled: Tensor | None,
    weight: float | None,
    prevalence: AnyPrevalence,
    group: dist.ProcessGroup | None,
) -> Tensor | None:
    """Return the unlabelled outputs; None if there are none to use. Raise a ValueError if they are required."""
    if unlabelled is not None and isinstance(prevalence, MultilabelPrevalence):
        raise ValueError(
            "Expected no `unlabelled` rows with a multi-label prevalence, but got some: use one loss for each finding, "
            "[InformationGainLoss(each, Bernoulli()) for each in prevalence], and pass each its column."
        )
    if unlabelled is not None and not isinstance(prevalence, Prevalence):
        raise ValueError(
            "Expected no `unlabelled` in regression, but got some: the likelihood of unlabelled rows needs classes."
        )
    if unlabelled is None or weight == 0 or (group is None and len(unlabelled) == 0):
        if torch.compiler.is_compiling():
            return None
        if isinstance(prevalence, Prevalence) and bool((prevalence.sampling == 0).any()):
            raise ValueError(
                "Expected `unlabelled` rows, because one class is never labelled, but got none with a weight above 0: pass "
                "unlabelled=model(x_unlabelled) to the loss."
            )
        return None
    return unlabelled


def cross_entropy(
    batch: LabelledBatch,
    likelihood: Likelihood,
    log_offset: Float[Tensor, ...] | None,
    weights: Float[Tensor, ...] | None,
    reduction: Reduction,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Return −Σ_k v_nk weights_k log p(k|x_n,w) of a checked batch, 0 where ignored, with `log_offset` added to the table.

    For a softmax and class numbers this is torch's own cross-entropy, which takes dense logits without a copy; large tables
    are handled in blocks by `fused_cross_entropy`.
    """
    labels = batch.labels
    if type(likelihood) is not Categorical or labels.index is None:
        table = at_reference(likelihood.table(batch.rows(), batch.support), log_offset)
        loss = labels.mask(-labels.gather(table if weights is None else table * weights))
        return batch.reduce(loss, reduction, group)
    plain = labels.valid is None and labels.multiples is None and weights is None
    if plain and group is None and reduction != "none" and batch.outputs.numel() > LARGE and not cannot_be_read(batch.outputs):
        if (fused := fused_cross_entropy(batch, log_offset, reduction)) is not None:
            return fused
    logits = check_finite_rows(full_precision(batch.outputs), batch.nonfinite)
    if log_offset is not None:
        logits = logits + (log_offset if logits.ndim == 2 else log_offset.view(-1, *(1 for _ in logits.shape[2:])))
    target = labels.index if logits.ndim == 2 else labels.index.view(batch.shape)
    if plain and group is None and reduction != "none" and batch.examples is None:
        return F.cross_entropy(logits, target, reduction=reduction)
    rows = labels.mask(F.cross_entropy(logits, target, reduction="none").flatten())
    return batch.reduce(rows if weights is None else rows * labels.per_row(weights), reduction, group)


def importance(terms: PriorTerms) -> Float[Tensor, ...]:
    """Return π_k/ρ_k, the weights of the weighted loss, or raise a ValueError if ρ has no density."""
    if terms.log_importance is None:
        raise ValueError(
            "Expected ContinuousPrevalence(population, sampling) with both densities, but `sampling` is None: "
            "pass it, because the ratio of the two is the weight."
        )
    return terms.log_importance.exp()


def class_log_sum(
    outputs: Tensor,
    target: Tensor | None,
    terms: PriorTerms,
    likelihood: Likelihood,
    ignore_index: int | None = -100,
    nonfinite: NonFinite = "nan",
) -> tuple[Float[Tensor, " k"], Tensor | float]:
    """Return log Σ_n β_n p_r(k|x_n,w) and log n over a data set, such as a pool; without labels β = 1."""
    if target is None:
        check_unlabelled(terms)
        target = torch.zeros(outputs.shape[:1] + outputs.shape[2:], dtype=torch.long, device=outputs.device)
        data, log_weights = class_batch(outputs, target, likelihood, len(terms.reference), -100, nonfinite), None
    else:
        data = class_batch(outputs, target, likelihood, len(terms.reference), ignore_index, nonfinite)
        log_weights = example_log_weights(terms, data.labels)
    log_probs = at_reference(likelihood.table(data.rows()), terms.log_offset)
    return log_sum(log_probs, data.labels, log_weights), data.labels.log_count(log_probs)


def density_log_sum(
    outputs: Tensor,
    target: Tensor | None,
    terms: PriorTerms,
    likelihood: Likelihood,
    support: Tensor,
    prevalence: ContinuousPrevalence,
    reference: Any,
    nonfinite: NonFinite,
) -> tuple[Float[Tensor, " k"], Tensor | float]:
    """Return the same for a density, at the support of another batch."""
    if target is None:
        check_unlabelled(terms)
        data, log_weights = regression_batch(outputs, outputs.new_zeros(len(outputs)), likelihood, nonfinite), None
    else:
        data, own = regression_batch(outputs, target, likelihood, nonfinite), continuous_terms(prevalence, reference, target)
        log_weights = None if own.plain else (own.reference / own.sampling).log()
    log_probs = at_reference(likelihood.table(data.rows(), support), terms.log_offset)
    return log_sum(log_probs, data.labels, log_weights), data.labels.log_count(log_probs)


def check_unlabelled(terms: PriorTerms) -> None:
    """Check that a marginal over unlabelled data has the population's mix as reference."""
    if not terms.at_population:
        raise ValueError(
            "Expected reference=prevalence.population with an unlabelled pool, but got another mix: unlabelled data have the "
            "population's mix; give a labelled pool, or that reference."
        )


def _checked(
    logits: Tensor,
    target: Tensor,
    prevalence: AnyPrevalence,
    likelihood: Likelihood | None,
    reduction: Reduction,
    ignore_index: int | None,
    nonfinite: NonFinite,
) -> tuple[LabelledBatch, PriorTerms, Likelihood]:
    """Check the arguments of a loss without a marginal."""
    check_options(reduction, nonfinite, ignore_index)
    likelihood = likelihood_of(likelihood, prevalence)
    batch, terms = batch_and_terms(logits, target, prevalence, likelihood, None, ignore_index, nonfinite)
    return batch, terms, likelihood
