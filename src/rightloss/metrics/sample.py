"""Check predictions and labels, and convert them to a `Sample`, the input of every figure and curve.

Stage: log_probs, target, prevalence → entries of one class each, with the weight that each has in the population.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ..finding_tables import by_name
from ..log_probs import Numbers as Numbers
from ..log_probs import Predictions as Predictions
from ..log_probs import clusters_of, log_prob_table, rows_of, target_rows, tensor_of
from ..losses.batch import hard_labels, soft_labels
from ..prevalence import Mix as Mix
from ..prevalence import Prevalence, frequencies, without_estimate

IGNORED = -100  # as in torch and in the losses


@dataclass(frozen=True)
class Sample:
    """Labelled predictions. A soft label is several entries of one row, an entry for each class that has a vote.

    Attributes:
        log_probs: the rows' predictions `(n, k)`.
        prevalence: π, the prevalence of all results.
        rows: the row of each entry `(m,)`; None if entry i is row i.
        labels: an entry's class `(m,)`.
        votes: its fraction of that row's label `(m,)`; None if all are 1.
        groups: the rows' clusters, such as patients, numbered from 0 `(n,)`; None if all rows are independent.
        weighted: whether `votes` are weights of rows with one class each, 1 on average in a class, instead of fractions.
    """

    log_probs: Tensor
    prevalence: Prevalence
    rows: Int64[Tensor, " m"] | None
    labels: Int64[Tensor, " m"]
    votes: Float64[Tensor, " m"] | None
    groups: Int64[Tensor, " n"] | None
    weighted: bool = False

    @property
    def num_classes(self) -> int:
        return self.log_probs.shape[1]

    @property
    def totals(self) -> Float64[Tensor, " k"]:
        """The number of examples of each class; votes count as fractions."""
        return torch.bincount(self.labels, weights=self.votes, minlength=self.num_classes).double()

    @property
    def effective_totals(self) -> Float64[Tensor, " k"]:
        """The number of examples of each class; with weights, of equally weighted ones that say as much, (Σ w)²/Σ w²."""
        if not self.weighted or self.votes is None:
            return self.totals
        squares = torch.bincount(self.labels, weights=self.votes.square(), minlength=self.num_classes)
        return self.totals.square() / squares.clamp_min(1e-300)

    @property
    def missing(self) -> list[int]:
        """The classes without an example."""
        return torch.nonzero(self.totals == 0).flatten().tolist()

    @property
    def population_weights(self) -> Float64[Tensor, " m"]:
        """Return each entry's weight in the population: π_c / n_c of its class, times its vote. They sum to 1."""
        each = (self.prevalence.population / self.totals)[self.labels]
        return each if self.votes is None else each * self.votes

    def per_entry(self, per_row: Tensor) -> Tensor:
        """Return one value per entry `(m, …)`, from one value per row `(n, …)`."""
        return per_row if self.rows is None else per_row[self.rows]

    def require_every_class(self, purpose: str) -> None:
        """Raise a ValueError that names `purpose` if a class has no example."""
        if self.missing:
            raise ValueError(
                f"Expected examples of every class for {purpose}, but class(es) {self.missing} have none: "
                "add some, or leave the class out of the prevalence and the predictions."
            )


def labelled_sample(
    log_probs: Predictions,
    target: Numbers,
    prevalence: Mix,
    groups: Numbers | None = None,
    ignore_index: int = IGNORED,
    weights: Float64[Tensor, " n"] | None = None,
) -> Sample:
    """Check predictions and labels, and return a `Sample`; a dense map has a row per cell.

    The arguments are those of `evaluate`. Rows without a vote are ignored. For a dense map `groups` are those of the images; by
    default each image is a group, because neighbouring cells are correlated. `weights` of rows are relative to others of the
    same class, for rows of a table.
    """
    refuse_findings(prevalence)
    given = tensor_of(log_probs, "log_probs").detach()
    refuse_multi_hot(target, given)
    table = log_prob_table(rows_of(given)).cpu()
    at = as_prevalence(prevalence, table.shape[1])
    label = target_rows(target, given.shape).detach().cpu()
    clusters = clusters_of(groups, given.shape)
    if label.ndim == 0:
        raise ValueError(f"Expected one label per row of `log_probs`, but got the single number {label}: give (n,) labels.")
    if len(label) != len(table):
        raise ValueError(
            f"Expected one label per row of `log_probs`, but got {len(label)} labels for {len(table)} rows: "
            "were some examples dropped from one of the two?"
        )
    if label.ndim == 2 and label.is_floating_point():
        if label.shape[1] != table.shape[1]:
            raise ValueError(
                f"Expected soft votes of shape (n, {table.shape[1]}), but got {tuple(label.shape)}: a column per class."
            )
        soft = soft_labels(label, torch.empty(0, dtype=torch.float64))
        assert soft.votes is not None
        voted, labels = torch.nonzero(soft.votes, as_tuple=True)
        votes = soft.votes[voted, labels]
        return Sample(table, at, voted, labels, votes if weights is None else votes * weights[voted], clusters)
    if label.ndim != 1:
        raise ValueError(
            f"Expected int labels of shape (n,) or soft votes of shape (n, {table.shape[1]}), but got {label.dtype} of "
            f"shape {tuple(label.shape)}: flatten the labels (`squeeze(1)`), or divide counts of votes by their row sums; for "
            "multi-label data use Prevalence.multilabel."
        )
    hard = hard_labels(label, table.shape[1], ignore_index)
    assert hard.index is not None
    rows = None if hard.valid is None else torch.nonzero(hard.valid).flatten()
    index = hard.index if rows is None else hard.index[rows]
    if weights is None:
        return Sample(table, at, rows, index, None, clusters)
    own = weights if rows is None else weights[rows]
    sums, counts = (torch.bincount(index, weights=each, minlength=table.shape[1]) for each in (own, None))
    return Sample(table, at, rows, index, own * (counts / sums)[index], clusters, weighted=True)


def refuse_findings(prevalence: Any) -> None:
    """Raise a ValueError for a prevalence of several findings, where one of classes is needed."""
    findings = by_name(prevalence)
    if findings is not None:
        raise ValueError(
            f"Expected the prevalence of classes that exclude each other, but got that of {len(findings)} findings "
            f"(multi-label): select one, such as {next(iter(findings))!r} by `table, y = rightloss.finding_tables.one_finding("
            "log_probs, target, prevalence, name)`, and pass `table`, `y` and `prevalence[name]`."
        )


def refuse_multi_hot(target: Any, log_probs: Tensor) -> None:
    """Raise a ValueError for labels of several findings: a table of 0 and 1, or NaN, that is no table of votes."""
    labels = tensor_of(target, "target")
    if labels.shape != log_probs.shape or labels.ndim != 2 or labels.shape[1] < 2:
        return
    values = labels.detach().double()
    if bool(((values == 0) | (values == 1) | values.isnan()).all()):
        if not labels.is_floating_point() or not bool((values.sum(1) <= 1).all()):
            raise ValueError(
                f"Expected int labels of shape (n,), or soft votes, but `target` is a table of 0 and 1, {tuple(labels.shape)}, "
                "as the predictions are: for findings that can be present together (multi-label), use Prevalence.multilabel; "
                "for classes that exclude each other, take `target.argmax(1)`."
            )


def num_classes_of(log_probs: Predictions) -> int:
    """Return the number of classes of predictions `(n, k)` or `(n, k, h, w, …)`."""
    given = tensor_of(log_probs, "log_probs")
    if given.ndim < 2 or given.shape[1] < 2:
        log_prob_table(rows_of(given))  # raises for the shape
    return given.shape[1]


def as_prevalence(value: Mix, num_classes: int) -> Prevalence:
    """Return a `Prevalence` of `num_classes`, from one, an estimate, K frequencies, or for two classes that of class 1."""
    value = without_estimate(value)
    prevalence = value if isinstance(value, Prevalence) else Prevalence(frequencies(value, "prevalence", num_classes))
    if prevalence.num_classes != num_classes:
        raise ValueError(
            f"Expected a prevalence of {num_classes} classes, as many as `log_probs` has columns, "
            f"but got {prevalence.num_classes}: both list the same classes in the same order."
        )
    return prevalence
