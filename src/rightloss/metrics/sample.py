"""Check predictions and labels, and convert them to a `Sample`, the input of every figure and curve.

Stage: log_probs, target, prevalence → entries of one class each, with the weight that each has in the population.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

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
    """

    log_probs: Tensor
    prevalence: Prevalence
    rows: Int64[Tensor, " m"] | None
    labels: Int64[Tensor, " m"]
    votes: Float64[Tensor, " m"] | None
    groups: Int64[Tensor, " n"] | None

    @property
    def num_classes(self) -> int:
        return self.log_probs.shape[1]

    @property
    def totals(self) -> Float64[Tensor, " k"]:
        """The number of examples of each class; votes count as fractions."""
        return torch.bincount(self.labels, weights=self.votes, minlength=self.num_classes).double()

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
) -> Sample:
    """Check predictions and labels, and return a `Sample`; a dense map has a row per cell.

    The arguments are those of `evaluate`. Rows without a vote are ignored. For a dense map `groups` are those of the images; by
    default each image is a group, because neighbouring cells are correlated.
    """
    given = tensor_of(log_probs, "log_probs").detach()
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
        return Sample(table, at, voted, labels, soft.votes[voted, labels], clusters)
    if label.ndim != 1:
        raise ValueError(
            f"Expected int labels of shape (n,) or soft votes of shape (n, {table.shape[1]}), but got {label.dtype} of "
            f"shape {tuple(label.shape)}: flatten the labels (`squeeze(1)`), or divide counts of votes by their row sums."
        )
    hard = hard_labels(label, table.shape[1], ignore_index)
    assert hard.index is not None
    rows = None if hard.valid is None else torch.nonzero(hard.valid).flatten()
    index = hard.index if rows is None else hard.index[rows]
    return Sample(table, at, rows, index, None, clusters)


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
