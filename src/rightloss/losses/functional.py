"""The losses as functions of logits and target. The modules of the same names keep state and call these."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..likelihoods import Categorical, Likelihood
from ..marginals import BatchMarginal, Marginal, sum_over_ranks, unseen, world_size
from ..prevalence import ContinuousPrevalence, Prevalence
from .batch import (
    Frame,
    NonFinite,
    Reduction,
    check_choices,
    check_pair,
    checked,
    class_frame,
    full_precision,
    is_synced,
    regression_frame,
)
from .composed import at_reference, composed_loss, estimate_from, example_log_weights, sum_over_batch
from .fused import fused_loss
from .prior_terms import Setting, class_setting, continuous_setting


def information_gain_loss(
    logits: Tensor,
    target: Tensor,
    prevalence: Prevalence | ContinuousPrevalence,
    likelihood: Likelihood | None = None,
    marginal: Marginal | None = None,
    reference: Any = None,
    reduction: Reduction = "mean",
    *,
    ignore_index: int | None = -100,
    nonfinite: NonFinite = "raise",
    process_group: Any = None,
    training: bool = True,
    fused: bool = True,
    setting: Setting | None = None,
) -> Tensor:
    """`−(log p(y_n|x_n,w) − log p(y_n|w))`, Eq. (1): train with it, predict with the plain likelihood.

    Both probabilities are taken in the mix of classes r, `reference`; with evidence κ, `−κ Σ_k r_k log p(k|w)` is added.
    The value of log p(y|w) is `log q`, supplied by `marginal`; its gradient is that of the minibatch's m/q.

    Args:
        logits: outputs of the network for p(y|x,w) in the population, `(n, num_outputs)` or dense `(n, num_outputs, h, w, …)`.
        target: int `(n,)`, dense int `(n, h, w, …)`, soft float `(n, k)` with rows that sum to 1; float `(n,)` in regression.
        prevalence: π, ρ and κ.
        likelihood: outputs → table; Categorical by default.
        marginal: who supplies q; for this function the stateless `BatchMarginal` by default.
        reference: r. None: the sampled mix ρ, nothing is reweighted. `prevalence.population`: the paper's form. Or any mix.
        reduction: "mean" over what is not ignored, "sum", or "none" for a loss per example.
        ignore_index: the int label of rows that count for nothing; None where there is none.
        nonfinite: "raise" for logits that are not finite, or "nan" to let them make the loss NaN.
        process_group: the ranks that share the batch under `torch.distributed`.
        training: False leaves other ranks alone.
        fused: False composes the softmax path from torch operations too: forward-mode derivatives need it.
        setting: what a module has already worked out of `prevalence` and `reference`.
    """
    likelihood = Categorical() if likelihood is None else likelihood
    marginal = BatchMarginal() if marginal is None else marginal
    if setting is None:
        check_choices(reduction, nonfinite, ignore_index)
        marginal.prepare(prevalence.num_classes if isinstance(prevalence, Prevalence) else None)
    group = process_group if is_synced(process_group, training) else False
    frame, setting = _frame_and_setting(
        logits, target, prevalence, likelihood, reference, ignore_index, nonfinite, group, setting
    )
    like = setting.reference
    if group is not False:
        count = torch.as_tensor(frame.labels.count).to(like).reshape(1)
        frame = replace(frame, ranks_count=sum_over_ranks(count, group)[0] / world_size(group))
    log_weights = example_log_weights(setting, frame.labels, marginal, like, group)

    def measure(outputs: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor | float]:
        return _measure(outputs, labels, frame, setting, prevalence, likelihood, reference, ignore_index)

    seen = not unseen(logits)

    def value(log_m: Tensor) -> Tensor:
        if log_m.is_meta:  # shapes alone: nothing for a marginal to learn from
            return log_m
        return marginal.value(estimate_from(log_m, frame, group, measure, finite=seen and nonfinite == "raise"))

    if fused and seen and type(likelihood) is Categorical and frame.labels.index is not None:
        return fused_loss(frame, setting, log_weights, value, group, reduction)
    return frame.reduce(composed_loss(frame, setting, likelihood, log_weights, value, group), reduction)


def weighted_loss(
    logits: Tensor,
    target: Tensor,
    prevalence: Prevalence | ContinuousPrevalence,
    likelihood: Likelihood | None = None,
    reduction: Reduction = "mean",
    *,
    ignore_index: int | None = -100,
    nonfinite: NonFinite = "raise",
    setting: Setting | None = None,
) -> Tensor:
    """`−β_n log p(y_n|x_n,w)`, importance weighting, the paper's wLoss; for soft labels `−Σ_k v_nk β_k log p(k|x_n,w)`.

    The mean divides by the number of examples, not by the sum of their weights as `nn.CrossEntropyLoss(weight=…)` does:
    it estimates the population's risk without bias.
    """
    frame, setting, likelihood = _rival(logits, target, prevalence, likelihood, reduction, ignore_index, nonfinite, setting)
    if setting.log_importance is None:
        raise ValueError(
            "Expected ContinuousPrevalence(population, sampling) with both densities, but `sampling` is None: "
            "their ratio is the weight, so give it."
        )
    weights = setting.log_importance.exp()
    if frame.labels.index is not None:
        return frame.reduce(_cross_entropy(frame, likelihood) * frame.labels.spread(weights), reduction)
    table = likelihood.table(frame.rows(), frame.support)
    return frame.reduce(frame.labels.mask(-frame.labels.pick(table * weights)), reduction)


def logit_adjusted_loss(
    logits: Tensor,
    target: Tensor,
    prevalence: Prevalence | ContinuousPrevalence,
    likelihood: Likelihood | None = None,
    reduction: Reduction = "mean",
    *,
    ignore_index: int | None = -100,
    nonfinite: NonFinite = "raise",
    setting: Setting | None = None,
) -> Tensor:
    """`−log p_ρ(y_n|x_n,w)`, `p_ρ(k|x,w) ∝ p(k|x,w) ρ_k/π_k`: cross-entropy of the table moved to the sampled mix.

    The logits are the population's, so the offset log ρ − log π is added in training and left out afterwards. For regression,
    with the batch's labels as the support, this is Balanced MSE's batch Monte Carlo form.
    """
    frame, setting, likelihood = _rival(logits, target, prevalence, likelihood, reduction, ignore_index, nonfinite, setting)
    return frame.reduce(_cross_entropy(frame, likelihood, setting.log_adjust), reduction)


def log_likelihood_loss(
    logits: Tensor,
    target: Tensor,
    prevalence: Prevalence | ContinuousPrevalence,
    likelihood: Likelihood | None = None,
    reduction: Reduction = "mean",
    *,
    ignore_index: int | None = -100,
    nonfinite: NonFinite = "raise",
    setting: Setting | None = None,
) -> Tensor:
    """`−log p(y_n|x_n,w)`, plain cross-entropy: right where ρ = π, and for prior correction afterwards."""
    frame, _, likelihood = _rival(logits, target, prevalence, likelihood, reduction, ignore_index, nonfinite, setting)
    return frame.reduce(_cross_entropy(frame, likelihood), reduction)


def _frame_and_setting(
    logits: Tensor,
    target: Tensor,
    prevalence: Prevalence | ContinuousPrevalence,
    likelihood: Likelihood,
    reference: Any,
    ignore_index: int | None,
    nonfinite: NonFinite,
    group: Any,
    setting: Setting | None,
) -> tuple[Frame, Setting]:
    if setting is None:
        check_pair(likelihood, prevalence)
    if isinstance(prevalence, ContinuousPrevalence):
        frame = regression_frame(logits, target, likelihood, nonfinite, group, group is not False)
        assert frame.support is not None
        return frame, continuous_setting(prevalence, reference, frame.support)
    frame = class_frame(logits, target, likelihood, prevalence.num_classes, ignore_index, nonfinite)
    return frame, setting or class_setting(prevalence, reference, full_precision(logits[:0]))


def _cross_entropy(frame: Frame, likelihood: Likelihood, log_offset: Tensor | None = None) -> Tensor:
    """−Σ_k v_nk log p(k|x_n,w) of each row (n,), 0 where ignored, with the table moved by `log_offset`.

    A softmax of class numbers is torch's own cross-entropy, which takes dense logits as they lie in memory.
    """
    index = frame.labels.index
    if type(likelihood) is not Categorical or index is None:
        table = at_reference(likelihood.table(frame.rows(), frame.support), log_offset)
        return frame.labels.mask(-frame.labels.pick(table))
    logits = checked(full_precision(frame.outputs), frame.nonfinite)
    if log_offset is not None:
        logits = logits + log_offset.view(-1, *(1 for _ in logits.shape[2:]))
    rows = F.cross_entropy(logits, index.view(frame.shape), reduction="none")
    return frame.labels.mask(rows.flatten())


def _rival(
    logits: Tensor,
    target: Tensor,
    prevalence: Prevalence | ContinuousPrevalence,
    likelihood: Likelihood | None,
    reduction: Reduction,
    ignore_index: int | None,
    nonfinite: NonFinite,
    setting: Setting | None,
) -> tuple[Frame, Setting, Likelihood]:
    likelihood = Categorical() if likelihood is None else likelihood
    if setting is None:
        check_choices(reduction, nonfinite, ignore_index)
    frame, setting = _frame_and_setting(logits, target, prevalence, likelihood, None, ignore_index, nonfinite, False, setting)
    return frame, setting, likelihood


def _measure(
    outputs: Tensor,
    target: Tensor | None,
    frame: Frame,
    setting: Setting,
    prevalence: Prevalence | ContinuousPrevalence,
    likelihood: Likelihood,
    reference: Any,
    ignore_index: int | None,
) -> tuple[Tensor, Tensor | float]:
    """log Σ_n β_n p_r(k|x_n,w) and log n over other data, at this batch's support; without labels β = 1."""
    if target is None and not setting.at_population:
        raise ValueError(
            "Expected reference=prevalence.population with an unlabelled pool, but got another mix: such data show the "
            "population's mix alone; give a labelled pool, or that reference."
        )
    if isinstance(prevalence, Prevalence):
        stand_in = outputs.new_zeros(outputs.shape[:1] + outputs.shape[2:], dtype=torch.long) if target is None else target
        ignored = -100 if target is None else ignore_index
        pool = class_frame(outputs, stand_in, likelihood, prevalence.num_classes, ignored, frame.nonfinite)
        weights = setting.reference / setting.sampling
        log_weights = None if target is None or setting.plain else pool.labels.spread(weights).log()
    else:
        stand_in = outputs.new_zeros(len(outputs)) if target is None else target
        pool = regression_frame(outputs, stand_in, likelihood, frame.nonfinite, None, False)
        own = None if target is None else continuous_setting(prevalence, reference, stand_in)
        log_weights = None if own is None or own.plain else (own.reference / own.sampling).log()
    log_probs = at_reference(likelihood.table(pool.rows(), frame.support), setting.log_offset)
    return sum_over_batch(log_probs, pool.labels, log_weights)
