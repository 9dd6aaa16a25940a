"""Functional losses of logits and target. The modules of the same names hold the state and call the same functions."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from ..likelihoods import Categorical, Likelihood
from ..likelihoods.standard import likelihood_of
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
from ..prevalence import AnyPrevalence, Density, Frequencies, MultilabelPrevalence, Prevalence
from .batch import (
    UNREAD,
    LabelledBatch,
    NonFinite,
    Reduction,
    check_options,
    checked_batch,
    full_precision,
)
from .fused import LARGE, fused_cross_entropy, fused_loss
from .gain import (
    PriorTerms,
    at_reference,
    example_log_weights,
    gain_of_rows,
    log_sum,
    prior_terms,
    realised_frequencies,
)
from .streams import EVIDENCE, PopulationRows, Tables, stream_batch, tables_of, unreduced_shape, with_evidence


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
    unlabelled: Tensor | PopulationRows | None = None,
    unlabelled_weight: float | None = None,
    unlabelled_evidence: float = EVIDENCE,
    sample_weight: Tensor | None = None,
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
        unlabelled: logits of unlabelled rows from the population, or `PopulationRows`. They are one more stream in the mix r
            (see rightloss.losses.streams for the likelihood); where r = π, they are the marginal. An unreduced loss has them
            last.
        unlabelled_weight: λ of `PopulationRows`.
        unlabelled_evidence: ε of `PopulationRows`.
        sample_weight: how many times each example counts, `(n,)`, or each cell of dense maps: 2 is the same as the row twice,
            0 as if it were not there. Not in regression, where the labels are also the support.

    Examples:
        >>> import torch, rightloss as rl
        >>> logits, y = torch.tensor([[2.0, 0.0], [0.0, 2.0], [1.0, 0.0]]), torch.tensor([0, 1, 0])
        >>> loss = rl.information_gain_loss(logits, y, rl.Prevalence.binary(population=0.01))
        >>> round(float(loss), 4)
        2.0969
    """
    group = sharing_group(process_group, training)
    options = reduction, ignore_index, nonfinite, sample_weight, reference, group
    batch, terms, likelihood = _checked(logits, target, prevalence, likelihood, *options)
    rows = usable(unlabelled, prevalence, group, unlabelled_weight, unlabelled_evidence)
    marginal = marginal_of(marginal, prevalence)
    if rows is None and terms.cancels:
        return cross_entropy(batch, likelihood, terms.log_offset, None, reduction, group)
    if rows is None:
        classes = prevalence.num_classes if isinstance(prevalence, Prevalence) else None
        marginal.prepare(classes if likelihood.num_classes is None else likelihood.num_classes)
        measure = measure_of(batch, terms, prevalence, likelihood, reference, ignore_index)
        return gain_loss(batch, terms, likelihood, marginal, measure, reduction, group, fused)
    tables = tables_of(batch, rows, likelihood)
    marginal.prepare(len(terms.reference) if terms.at_population else int((terms.sampling > 0).sum()) + 1)
    return loss_with_rows(batch, tables, terms, likelihood, reduction, group, marginal, BatchMarginal(), fused)


def weighted_loss(
    logits: Tensor,
    target: Tensor,
    prevalence: AnyPrevalence,
    likelihood: Likelihood | None = None,
    reduction: Reduction = "mean",
    *,
    ignore_index: int | None = -100,
    nonfinite: NonFinite = "raise",
    sample_weight: Tensor | None = None,
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
    options = reduction, ignore_index, nonfinite, sample_weight
    batch, terms, likelihood = _checked(logits, target, prevalence, likelihood, *options)
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
    unlabelled: Tensor | PopulationRows | None = None,
    unlabelled_weight: float | None = None,
    unlabelled_evidence: float = EVIDENCE,
    sample_weight: Tensor | None = None,
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
    options = reduction, ignore_index, nonfinite, sample_weight
    batch, terms, likelihood = _checked(logits, target, prevalence, likelihood, *options)
    rows = usable(unlabelled, prevalence, None, unlabelled_weight, unlabelled_evidence)
    if rows is None:
        return cross_entropy(batch, likelihood, terms.log_offset, None, reduction)
    return loss_with_rows(batch, tables_of(batch, rows, likelihood), terms, likelihood, reduction, mean=BatchMarginal())


def log_likelihood_loss(
    logits: Tensor,
    target: Tensor,
    prevalence: AnyPrevalence,
    likelihood: Likelihood | None = None,
    reduction: Reduction = "mean",
    *,
    ignore_index: int | None = -100,
    nonfinite: NonFinite = "raise",
    sample_weight: Tensor | None = None,
) -> Tensor:
    """Return plain cross-entropy, `−log p(y_n|x_n,w)`: right if ρ = π, or if predictions are corrected afterwards.

    The arguments are those of `information_gain_loss`.

    Examples:
        >>> import torch, rightloss as rl
        >>> logits, y = torch.tensor([[2.0, 0.0], [0.0, 2.0], [1.0, 0.0]]), torch.tensor([0, 1, 0])
        >>> round(float(rl.log_likelihood_loss(logits, y, rl.Prevalence.binary(population=0.01))), 4)
        0.189
    """
    options = reduction, ignore_index, nonfinite, sample_weight
    batch, _, likelihood = _checked(logits, target, prevalence, likelihood, *options)
    return cross_entropy(batch, likelihood, None, None, reduction)


def marginal_of(marginal: Marginal | None, prevalence: AnyPrevalence) -> Marginal:
    """Return the marginal, by default that of the minibatch, with a copy for each finding of a multi-label prevalence."""
    marginal = BatchMarginal() if marginal is None else marginal
    if isinstance(prevalence, MultilabelPrevalence) and not isinstance(marginal, FindingMarginals):
        return FindingMarginals(marginal, prevalence.num_findings)
    return marginal


def measure_of(
    batch: LabelledBatch,
    terms: PriorTerms,
    prevalence: AnyPrevalence,
    likelihood: Likelihood,
    reference: Any,
    ignore_index: int | None,
) -> Measure:
    """Return the function that estimates the marginal over other data, at this batch's support, for a `MinibatchEstimate`."""
    others = prevalence, likelihood, reference, ignore_index, batch.nonfinite, batch.support
    return lambda outputs, target: log_sum_of(outputs, target, terms, *others)


def loss_with_rows(
    batch: LabelledBatch,
    tables: Tables,
    terms: PriorTerms,
    likelihood: Likelihood,
    reduction: Reduction,
    group: dist.ProcessGroup | None = None,
    marginal: Marginal | None = None,
    mean: MarginalState | None = None,
    fused: bool = True,
) -> Tensor:
    """Return the loss of labelled and unlabelled rows.

    Args:
        batch: the labelled rows.
        tables: all rows.
        terms: of the classes.
        likelihood: of the classes.
        reduction: of the labelled rows, then the unlabelled ones.
        group: the ranks that share the batch.
        marginal: the estimator of q, of the streams, or of the classes where r = π; None for logit adjustment.
        mean: the estimator of the mean prediction over the unlabelled rows, for the evidence; None if π is unknown.
        fused: see `information_gain_loss`.
    """
    if terms.at_population and marginal is not None:
        gain = gain_of_rows(
            likelihood.table(batch.rows()),
            batch.labels,
            terms,
            lambda log_m: log_m if log_m.is_meta else marginal.update(MinibatchEstimate(log_m, tables.number(group))),
            group=group,
            population=tables.population,
        )
        return batch.reduce(-gain, reduction, group)
    joined, stream_terms = stream_batch(batch, tables, terms, tables.rows.weight, group)
    if marginal is None or stream_terms.cancels:
        loss = cross_entropy(joined, Categorical(), stream_terms.log_offset, None, reduction, group)
    else:
        loss = gain_loss(joined, stream_terms, Categorical(), marginal, None, reduction, group, fused)
    loss = loss.reshape(unreduced_shape(batch, tables.rows.logits)) if reduction == "none" else loss
    if mean is None:
        return loss
    return with_evidence(loss, batch, tables, terms, BatchMarginal() if in_transform() else mean, reduction, group)


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
    """Return the negative gain of a checked batch; `measure` is the estimate's, see `MinibatchEstimate`."""
    labels, readable = batch.labels, not cannot_be_read(batch.outputs)
    sampling = marginal.sampling_frequencies(terms.sampling, lambda: realised_frequencies(terms, labels, group))

    def log_q_of(log_m: Tensor) -> Tensor:
        if log_m.is_meta:  # shapes without values: nothing for a marginal to learn from
            return log_m
        rows = labels.count if isinstance(labels.count, int) else labels.rows
        rows = rows if group is None else rows * dist.get_world_size(group)
        read = None
        uneven = labels.multiples is not None or group is not None  # ranks must agree whether they ask each other
        if log_m.ndim > 1 and uneven:
            read = sum_over_ranks(torch.as_tensor(labels.count).to(log_m), group) > UNREAD**0.5
        return marginal.update(MinibatchEstimate(log_m, rows, measure, readable and batch.nonfinite == "raise", read=read))

    if fused and readable and group is None and reduction != "none" and type(likelihood) is Categorical:
        if labels.index is not None:
            return fused_loss(batch, terms, sampling, log_q_of, reduction)
    gain = gain_of_rows(likelihood.table(batch.rows(), batch.support), labels, terms, log_q_of, sampling, group)
    return batch.reduce(-gain, reduction, group)


def usable(
    unlabelled: Tensor | PopulationRows | None,
    prevalence: AnyPrevalence,
    group: dist.ProcessGroup | None,
    weight: float | None = None,
    evidence: float = EVIDENCE,
) -> PopulationRows | None:
    """Return the unlabelled rows as one object; None if there are none to use. Raise a ValueError if they are required."""
    rows = unlabelled
    if rows is not None and not isinstance(rows, PopulationRows):
        rows = PopulationRows(rows, weight, evidence)
    if rows is not None and isinstance(prevalence, MultilabelPrevalence):
        remedy = "use one loss for each finding, [InformationGainLoss(each, Bernoulli()) for each in prevalence], on its column"
        raise ValueError(f"Expected no `unlabelled` rows with a multi-label prevalence, but got some: {remedy}.")
    if rows is not None and not isinstance(prevalence, Prevalence):
        raise ValueError("Expected no `unlabelled` in regression, but got some: their likelihood needs classes.")
    if rows is not None and rows.weight != 0 and (group is not None or len(rows.logits) > 0):
        return rows
    if not torch.compiler.is_compiling() and isinstance(prevalence, Prevalence) and bool((prevalence.sampling == 0).any()):
        came = "none with a weight above 0: pass unlabelled=model(x_unlabelled) to the loss"
        raise ValueError(f"Expected `unlabelled` rows, because one class is never labelled, but got {came}.")
    return None


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
    plain = labels.multiples is None and weights is None and group is None and reduction != "none"
    if plain and batch.outputs.numel() > LARGE and not cannot_be_read(batch.outputs):
        if (fused := fused_cross_entropy(batch, log_offset, reduction)) is not None:
            return fused
    if plain and batch.examples is None:
        return batch.cross_entropy(log_offset, reduction)
    rows = labels.mask(batch.cross_entropy(log_offset, "none").flatten())
    return batch.reduce(rows if weights is None else rows * labels.per_row(weights), reduction, group)


def importance(terms: PriorTerms) -> Float[Tensor, ...]:
    """Return π_k/ρ_k, the weights of the weighted loss, or raise a ValueError if ρ has no density."""
    if terms.population is None:
        remedy = "pass it, because the ratio of the two is the weight"
        raise ValueError(f"Expected ContinuousPrevalence with both densities, but `sampling` is None: {remedy}.")
    weights = terms.population / terms.sampling
    return weights.unsqueeze(-2) if weights.ndim > 1 else weights  # several findings


def log_sum_of(
    outputs: Tensor,
    target: Tensor | None,
    terms: PriorTerms,
    prevalence: AnyPrevalence,
    likelihood: Likelihood,
    reference: Any = None,
    ignore_index: int | None = -100,
    nonfinite: NonFinite = "nan",
    support: Tensor | None = None,
) -> tuple[Float[Tensor, " k"], Tensor | float]:
    """Return log Σ_n β_n p_r(k|x_n,w) and log n over a data set, such as a pool; without labels β = 1.

    In regression it is that of the labels `support` of another batch.
    """
    log_weights = None
    if target is None:
        check_unlabelled(terms)
        dtype = torch.long if support is None else outputs.dtype
        nothing = torch.zeros(outputs.shape[:1] + outputs.shape[2:], dtype=dtype, device=outputs.device)
        data = checked_batch(outputs, nothing, prevalence, likelihood, -100, nonfinite)
    else:
        data = checked_batch(outputs, target, prevalence, likelihood, ignore_index, nonfinite)
        own = terms if support is None else prior_terms(prevalence, reference, outputs, target)
        log_weights = example_log_weights(own, data.labels)
    log_probs = at_reference(likelihood.table(data.rows(), support), terms.log_offset)
    return log_sum(log_probs, data.labels, log_weights), data.labels.log_count(log_probs)


def check_unlabelled(terms: PriorTerms) -> None:
    """Check that a marginal over unlabelled data has the population's mix as reference."""
    if not terms.at_population:
        remedy = "unlabelled data have the population's mix; give a labelled pool, or that reference"
        raise ValueError(f"Expected reference=prevalence.population with an unlabelled pool, but got another mix: {remedy}.")


def _checked(
    logits: Tensor,
    target: Tensor,
    prevalence: AnyPrevalence,
    likelihood: Likelihood | None,
    reduction: Reduction,
    ignore_index: int | None,
    nonfinite: NonFinite,
    sample_weight: Tensor | None,
    reference: Any = None,
    group: dist.ProcessGroup | None = None,
) -> tuple[LabelledBatch, PriorTerms, Likelihood]:
    """Check the arguments of a loss."""
    check_options(reduction, nonfinite, ignore_index)
    likelihood = likelihood_of(likelihood, prevalence)
    batch = checked_batch(logits, target, prevalence, likelihood, ignore_index, nonfinite, group, sample_weight)
    return batch, prior_terms(prevalence, reference, full_precision(batch.outputs[:0]), batch.support), likelihood
