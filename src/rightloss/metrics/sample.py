"""Check predictions and labels, and convert them to a `Sample`, the input of every figure and curve.

Stage: log_probs, target, prevalence → entries of one class each, with the weight that each has in the population.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arrays import Numbers as Numbers
from ..arrays import Predictions as Predictions
from ..arrays import array_of, array_or_tensor, clusters_of, log_prob_table, rows_of, target_rows
from ..finding_tables import by_name
from ..prevalence import Mix as Mix
from ..prevalence import Prevalence, frequencies, without_estimate

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64

IGNORED = -100  # as in torch and in the losses
_NUMBERS = 1 << 16  # numbers of a block of predictions, which stay in the processor's cache


@dataclass(frozen=True)
class Sample:
    """Labelled predictions. A soft label is several entries of one row, an entry for each class that has a vote.

    Attributes:
        log_probs: the rows' predictions `(n, k)`, in the dtype given; columns first in memory if made by `labelled_sample`.
        prevalence: π, the prevalence of all results.
        rows: the row of each entry `(m,)`; None if entry i is row i.
        labels: an entry's class `(m,)`.
        votes: its fraction of that row's label `(m,)`; None if all are 1.
        groups: the rows' clusters, such as patients, numbered from 0 `(n,)`; None if all rows are independent.
        weighted: whether `votes` are weights of rows with one class each, 1 on average in a class, instead of fractions.
    """

    log_probs: np.ndarray
    prevalence: Prevalence
    rows: Int64[np.ndarray, " m"] | None
    labels: Int64[np.ndarray, " m"]
    votes: Float64[np.ndarray, " m"] | None
    groups: Int64[np.ndarray, " n"] | None
    weighted: bool = False

    @property
    def num_classes(self) -> int:
        return self.log_probs.shape[1]

    @cached_property
    def totals(self) -> Float64[np.ndarray, " k"]:
        """The number of examples of each class; votes count as fractions."""
        return np.bincount(self.labels, self.votes, self.num_classes).astype(np.float64)

    @property
    def effective_totals(self) -> Float64[np.ndarray, " k"]:
        """The number of examples of each class; with weights, of equally weighted ones that say as much, (Σ w)²/Σ w²."""
        if not self.weighted or self.votes is None:
            return self.totals
        squares = np.bincount(self.labels, self.votes**2, self.num_classes)
        return self.totals**2 / np.maximum(squares, 1e-300)

    @property
    def missing(self) -> list[int]:
        """The classes without an example."""
        return np.flatnonzero(self.totals == 0).tolist()

    @cached_property
    def population_weights(self) -> Float64[np.ndarray, " m"]:
        """Return each entry's weight in the population: π_c / n_c of its class, times its vote. They sum to 1."""
        with np.errstate(divide="ignore"):  # of a class without an example
            each = (self.prevalence.population / self.totals)[self.labels]
        return each if self.votes is None else each * self.votes

    def parts(self, rows: int) -> Iterator[slice]:
        """Yield the entries in blocks; `rows` times their predictions stay in the processor's cache."""
        size = max(_NUMBERS // (rows * self.num_classes), 1024)
        yield from (slice(start, start + size) for start in range(0, len(self.labels), size))

    def by_class(self) -> Iterator[tuple[int, Int64[np.ndarray, " m"]]]:
        """Yield the entries of each class, in blocks."""
        size = max(_NUMBERS // self.num_classes, 1024)
        for c, own in enumerate(self._entries_by_class):
            yield from ((c, own[start : start + size]) for start in range(0, len(own), size))

    @cached_property
    def _entries_by_class(self) -> list[Int64[np.ndarray, " m"]]:
        order = np.argsort(self.labels.astype(np.min_scalar_type(self.num_classes)), kind="stable")
        return np.split(order, np.bincount(self.labels, minlength=self.num_classes).cumsum()[:-1])

    def columns(self, entries: slice | Int64[np.ndarray, " m"]) -> Float64[np.ndarray, "k m"]:
        """Return the predictions of some entries, a row per class."""
        at = entries if self.rows is None else self.rows[entries]
        return np.ascontiguousarray(self.log_probs.T[:, at], dtype=np.float64)

    @property
    def own_log_probs(self) -> Float64[np.ndarray, " m"]:
        """Return the log-probability of each entry's class."""
        rows = np.arange(len(self.labels)) if self.rows is None else self.rows
        return self.log_probs[rows, self.labels].astype(np.float64)

    def per_entry(self, per_row: np.ndarray) -> np.ndarray:
        """Return one value per entry `(m, …)`, from one value per row `(n, …)`."""
        return per_row if self.rows is None else per_row[self.rows]

    def require_every_class(self, purpose: str) -> None:
        """Raise a ValueError that names `purpose` if a class has no example."""
        if self.missing:
            came = f"class(es) {self.missing} have none: add some, or leave the class out of the prevalence and predictions"
            raise ValueError(f"Expected examples of every class for {purpose}, but {came}.")


def labelled_sample(
    log_probs: Predictions,
    target: Numbers,
    prevalence: Mix | None,
    groups: Numbers | None = None,
    ignore_index: int = IGNORED,
    weights: Float64[np.ndarray, " n"] | None = None,
) -> Sample:
    """Check predictions and labels, and return a `Sample`; a dense map has a row per cell.

    The arguments are those of `evaluate`; a `prevalence` of None means equal classes. Rows without a vote are ignored. For a
    dense map `groups` are those of the images; by default each image is a group, because neighbouring cells are correlated.
    `weights` of rows are relative to others of the same class, for rows of a table.
    """
    refuse_findings(prevalence)
    given = array_or_tensor(log_probs, "log_probs")
    refuse_multi_hot(target, given)
    table = np.asfortranarray(log_prob_table(rows_of(given)))
    classes = table.shape[1]
    at = as_prevalence(np.full(classes, 1 / classes) if prevalence is None else prevalence, classes)
    label = target_rows(target, given.shape)
    clusters = clusters_of(groups, given.shape)
    if label.ndim == 0 or len(label) != len(table):
        came = f"{len(label)} labels for {len(table)} rows" if label.ndim else f"the single number {label}"
        raise ValueError(f"Expected one label per row of `log_probs`, but got {came}: were some dropped from one of the two?")
    if label.ndim == 2 and label.dtype.kind == "f":
        shares = _checked_votes(label, classes)
        voted, labels = np.nonzero(shares)
        votes = shares[voted, labels]
        return Sample(table, at, voted, labels, votes if weights is None else votes * weights[voted], clusters)
    if label.ndim != 1:
        raise ValueError(
            f"Expected int labels of shape (n,) or soft votes of shape (n, {classes}), but got {label.dtype} of "
            f"shape {label.shape}: flatten the labels (`squeeze(1)`), or divide counts of votes by their row sums; for "
            "multi-label data use Prevalence.multilabel."
        )
    rows, index = _checked_classes(label, classes, ignore_index)
    if weights is None:
        return Sample(table, at, rows, index, None, clusters)
    own = weights if rows is None else weights[rows]
    mean = np.bincount(index, own, classes) / np.maximum(np.bincount(index, minlength=classes), 1)
    return Sample(table, at, rows, index, own / mean[index], clusters, weighted=True)


def _checked_classes(label: np.ndarray, num_classes: int, ignore_index: int) -> tuple[np.ndarray | None, np.ndarray]:
    """Return the rows that have a label, None if all have, and their classes."""
    index = label.astype(np.int64, copy=False)
    if 0 <= index.min() and index.max() < num_classes and not 0 <= ignore_index < num_classes:
        return None, index
    rows = np.flatnonzero(index != ignore_index)
    index = index[rows]
    if len(rows) == 0:
        raise ValueError(f"Expected at least one label, but all are ignore_index = {ignore_index}: skip such a batch.")
    if index.min() < 0 or index.max() >= num_classes:
        remedy = f"number the classes from 0, or mark rows to leave out with ignore_index (now {ignore_index})"
        raise ValueError(f"Expected labels in 0..{num_classes - 1}, but got {index.min()}..{index.max()}: {remedy}.")
    return rows, index


def _checked_votes(label: np.ndarray, num_classes: int) -> Float64[np.ndarray, "n k"]:
    """Return soft labels whose rows sum to 1, up to rounding; a row of zeros is ignored."""
    if label.shape[1] != num_classes:
        raise ValueError(f"Expected soft votes of shape (n, {num_classes}), but got {label.shape}: a column per class.")
    votes, rounding = label.astype(np.float64), float(np.finfo(label.dtype).eps)
    sums = votes.sum(1)
    if rounding > 1e-4:  # float16
        votes = votes / np.where(sums == 0, 1.0, sums)[:, None]
    wrong = np.flatnonzero(~(np.abs(sums - 1) <= max(1e-3, rounding)) & (sums != 0) | (votes < 0).any(1))
    if len(wrong):
        counts = not ((label == 0) | (label == 1)).all()
        remedy = "divide counts by their row sums" if counts else "for multi-label findings use Prevalence.multilabel(…)"
        row = f"row {wrong[0]} is {label[wrong[0], :10].astype(float).round(4).tolist()}"
        raise ValueError(f"Expected soft labels to be non-negative with rows that sum to 1, but {row}: {remedy}.")
    if not sums.any():
        raise ValueError("Expected at least one example with votes, but every row is zero: skip such a batch.")
    return votes


def refuse_findings(prevalence: Any) -> None:
    """Raise a ValueError for a prevalence of several findings, where one of classes is needed."""
    findings = by_name(prevalence)
    if findings is not None:
        raise ValueError(
            f"Expected the prevalence of classes that exclude each other, but got that of {len(findings)} findings "
            f"(multi-label): select one, such as {next(iter(findings))!r} by `table, y = rightloss.finding_tables.one_finding("
            "log_probs, target, prevalence, name)`, and pass `table`, `y` and `prevalence[name]`."
        )


def refuse_multi_hot(target: Any, log_probs: Any) -> None:
    """Raise a ValueError for labels of several findings: a table of 0 and 1, or NaN, that is no table of votes."""
    labels = array_of(target, "target")
    if labels.shape != tuple(log_probs.shape) or labels.ndim != 2 or labels.shape[1] < 2:
        return
    binary = ((labels == 0) | (labels == 1) | (labels != labels)).all()
    if binary and (labels.dtype.kind != "f" or not (labels.sum(1) <= 1).all()):
        raise ValueError(
            f"Expected int labels of shape (n,), or soft votes, but `target` is a table of 0 and 1, {labels.shape}, as the "
            "predictions are: for findings that can be present together (multi-label), use Prevalence.multilabel; for classes "
            "that exclude each other, take `target.argmax(1)`."
        )


def as_prevalence(value: Mix, num_classes: int) -> Prevalence:
    """Return a `Prevalence` of `num_classes`, from one, an estimate, K frequencies, or for two classes that of class 1."""
    value = without_estimate(value)
    prevalence = value if isinstance(value, Prevalence) else Prevalence(frequencies(value, "prevalence", num_classes))
    if prevalence.num_classes != num_classes:
        came = f"{prevalence.num_classes}: both list the same classes in the same order"
        raise ValueError(f"Expected a prevalence of {num_classes} classes, as `log_probs` has columns, but got {came}.")
    return prevalence
