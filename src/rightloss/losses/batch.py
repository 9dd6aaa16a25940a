"""Outputs and targets as users give them → rows, labels and a support, or a ValueError."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..likelihoods import Likelihood
from ..log_probs import full_precision as full_precision
from ..marginals import gather_ranks, unseen, world_size
from ..prevalence import ContinuousPrevalence, Prevalence
from .labels import Labels, hard_labels, soft_labels

NonFinite = str  # "raise" or "nan"
Reduction = str  # "mean", "sum" or "none"


@dataclass(frozen=True)
class Frame:
    """One batch, checked.

    Attributes:
        outputs: as given, `(n, num_outputs)` or dense `(n, num_outputs, h, w, …)`.
        labels: of the rows; in regression row n's label is the support's entry n.
        support: None for classes; in regression the (global) batch's own labels.
        shape: that of an unreduced loss.
        nonfinite: what to do with outputs that are not finite.
        ranks_count: what a mean divides by where the batch is spread over ranks, the average count of a rank: a mean over
            the ranks' means is then that over all rows.
    """

    outputs: Tensor
    labels: Labels
    support: Tensor | None
    shape: torch.Size
    nonfinite: NonFinite
    ranks_count: Tensor | None = None

    @property
    def mean_count(self) -> int | Tensor:
        """What a mean divides by."""
        return self.labels.count if self.ranks_count is None else self.ranks_count

    def rows(self) -> Tensor:
        """The outputs as `(n, num_outputs)`, a row per label, in float32 or float64, checked to be finite."""
        return checked(_rows(full_precision(self.outputs)), self.nonfinite)

    def reduce(self, loss: Tensor, reduction: Reduction) -> Tensor:
        """The rows' losses as asked for."""
        if reduction == "mean":
            return loss.sum() / self.mean_count
        if reduction == "sum":
            return loss.sum()
        return loss.reshape(self.shape)


def class_frame(
    outputs: Tensor, target: Tensor, likelihood: Likelihood, num_classes: int, ignore_index: int | None, nonfinite: NonFinite
) -> Frame:
    """For classes: int labels `(n,)`, dense int labels `(n, h, w, …)`, or soft labels `(n, k)` or `(n, k, h, w, …)`."""
    num_outputs = num_classes if likelihood.num_outputs is None else likelihood.num_outputs
    _check_tensors(outputs, target, "logits")
    if num_outputs == 1 and outputs.shape == target.shape:
        if target.is_floating_point():
            raise ValueError(
                f"Expected class numbers, or soft labels for {num_classes} classes, but got {target.dtype} of the logits' "
                f"shape {tuple(target.shape)}: call `target.long()`."
            )
        outputs = outputs.unsqueeze(1)
    if outputs.ndim < 2 or outputs.shape[1] != num_outputs:
        remedy = " (one logit for two classes needs likelihood=Bernoulli())" if num_classes == 2 else ""
        raise ValueError(
            f"Expected logits of shape (n, {num_outputs}, …) for {type(likelihood).__name__} and {num_classes} classes, "
            f"but got {tuple(outputs.shape)}: match the last layer to the likelihood and the prevalence{remedy}."
        )
    shape = outputs.shape[:1] + outputs.shape[2:]
    if target.is_floating_point() and target.shape == (*shape[:1], num_classes, *shape[1:]):
        votes = target.movedim(1, -1).flatten(0, -2) if target.ndim > 2 else target
        return Frame(outputs, soft_labels(votes, full_precision(outputs)), None, shape, nonfinite)
    if target.shape != shape:
        remedy = "do they come from one batch?"
        if target.shape == (*shape[:1], num_classes, *shape[1:]):
            remedy = "soft labels are floats, so call `target.float()`."
        elif target.shape == (*shape[:1], 1, *shape[1:]):
            remedy = "call `target.squeeze(1)`."
        raise ValueError(
            f"Expected a target of shape {tuple(shape)} (class numbers), or {(shape[0], num_classes, *shape[1:])} (soft), "
            f"but got {target.dtype} of shape {tuple(target.shape)} for logits of shape {tuple(outputs.shape)}: {remedy}"
        )
    return Frame(outputs, hard_labels(target, num_classes, ignore_index), None, shape, nonfinite)


def regression_frame(
    outputs: Tensor, target: Tensor, likelihood: Likelihood, nonfinite: NonFinite, group: Any, synced: bool
) -> Frame:
    """For densities: float labels `(n,)` or `(n, d)`."""
    _check_tensors(outputs, target, "outputs")
    outputs = outputs.unsqueeze(1) if outputs.ndim == 1 else outputs
    if outputs.ndim != 2 or outputs.shape[1] != likelihood.num_outputs:
        raise ValueError(
            f"Expected outputs of shape (n, {likelihood.num_outputs}) for {type(likelihood).__name__}, "
            f"but got {tuple(outputs.shape)}: match the last layer to the likelihood."
        )
    if not target.is_floating_point() or len(target) != len(outputs) or len(target) == 0:
        raise ValueError(
            f"Expected a float target with {len(outputs)} rows, but got {target.dtype} of shape {tuple(target.shape)}: "
            "call `target.float()`, or use a likelihood over classes."
        )
    support = target.to(full_precision(outputs).dtype)
    if not unseen(support) and not bool(torch.isfinite(support).all()):
        raise ValueError("Expected finite labels, but some are not: drop the rows without a measurement.")
    first = 0
    if synced:
        support, first = gather_ranks(support, group).flatten(0, 1), dist.get_rank(group) * len(target)
    index = torch.arange(first, first + len(target), device=target.device)
    return Frame(outputs, Labels(index, None, None, len(support), len(target)), support, target.shape[:1], nonfinite)


def check_pair(likelihood: Likelihood, prevalence: Prevalence | ContinuousPrevalence) -> None:
    """A likelihood over classes goes with a Prevalence, a density with a ContinuousPrevalence."""
    if isinstance(likelihood, type) or not isinstance(likelihood, Likelihood):
        raise ValueError(
            f"Expected `likelihood` to be a likelihood such as Categorical(), but got {likelihood!r}: "
            "make one with brackets, and name other arguments (marginal=…)."
        )
    if isinstance(prevalence, Prevalence):
        if not likelihood.over_classes:
            raise ValueError(
                f"Expected ContinuousPrevalence(population=…) for {type(likelihood).__name__}, but got a Prevalence of "
                f"{prevalence.num_classes} classes: a density has no classes."
            )
        if likelihood.num_classes not in (None, prevalence.num_classes):
            raise ValueError(
                f"Expected a prevalence of {likelihood.num_classes} classes for {type(likelihood).__name__}, "
                f"but got {prevalence.num_classes}: list the same classes in both."
            )
    elif isinstance(prevalence, ContinuousPrevalence):
        if likelihood.over_classes:
            raise ValueError(
                f"Expected a Prevalence of classes for {type(likelihood).__name__}, but got a ContinuousPrevalence: "
                "use Prevalence([…]), or Gaussian() for regression."
            )
    else:
        raise ValueError(f"Expected a Prevalence, but got {type(prevalence).__name__}: rightloss.Prevalence([…]).")


def check_choices(reduction: Reduction, nonfinite: NonFinite, ignore_index: Any = None) -> None:
    """Validate the options of a loss."""
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"Expected `reduction` to be 'mean', 'sum' or 'none', but got {reduction!r}: choose one of them.")
    if nonfinite not in ("raise", "nan"):
        raise ValueError(f"Expected `nonfinite` to be 'raise' or 'nan', but got {nonfinite!r}: choose one of them.")
    if ignore_index is not None and (isinstance(ignore_index, bool) or not isinstance(ignore_index, Integral)):
        raise ValueError(
            f"Expected `ignore_index` to be an int label, or None where none is ignored, but got {ignore_index!r}: "
            "-100 is the default."
        )


def is_synced(group: Any, training: bool) -> bool:
    """Whether the batch is spread over ranks. Not in eval mode: there a rank may be alone at work."""
    return training and world_size(group) > 1


def checked(outputs: Tensor, nonfinite: NonFinite) -> Tensor:
    """Raise for rows that are not finite; where values cannot be looked at, or on request, turn the whole row into NaN."""
    if nonfinite == "raise" and not unseen(outputs):
        # a finite sum says it sooner; one that overflows says nothing
        if not math.isfinite(float(outputs.detach().sum())) and not bool(torch.isfinite(outputs).all()):
            raise_nonfinite(_rows(outputs))
        return outputs
    return outputs + 0 * outputs.sum(1, keepdim=True)


def _rows(outputs: Tensor) -> Tensor:
    """`(n, num_outputs, h, w, …)` → a row for each cell."""
    return outputs.movedim(1, -1).flatten(0, -2) if outputs.ndim > 2 else outputs


def raise_nonfinite(rows: Tensor, first: int = 0) -> None:
    """The error that names the row, counted from `first`."""
    bad = torch.nonzero(~torch.isfinite(rows).all(1)).flatten()
    raise ValueError(
        f"Expected finite logits, but row {first + int(bad[0])} is not: "
        f"{rows[int(bad[0]), :10].tolist()}; lower the learning rate, look for bad inputs, or pass nonfinite='nan'."
    )


def _check_tensors(outputs: Tensor, target: Tensor, name: str) -> None:
    for what, value in ((name, outputs), ("target", target)):
        if not isinstance(value, Tensor):
            raise ValueError(f"Expected `{what}` to be a tensor, but got {type(value).__name__}: call torch.as_tensor on it.")
    if not outputs.is_floating_point():
        raise ValueError(
            f"Expected {name} to be a float tensor, not normalised, but got {outputs.dtype}: "
            "pass what the last layer gives, before any softmax."
        )
    if outputs.ndim == 0 or outputs.shape[0] == 0:
        raise ValueError(
            "Expected at least one example, but the batch is empty: skip it, or pass drop_last=True to the loader."
        )
