"""Predictions of several findings (multi-label): tables of log p(absent) and log p(present), and results by finding.

Stage: predictions `(n, L)` → tables `(n, 2, L)`, the input of every function of predictions; a result for each finding. What
exists for two classes is called for one finding after another: its table, its labels, its prevalence.
"""

from __future__ import annotations

import html
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from .arrays import (
    Array,
    Numbers,
    Predictions,
    array_namespace,
    array_of,
    array_or_tensor,
    as_given,
    is_traced,
    logsumexp,
    shift_classes,
)
from .prevalence import FindingMix, MultilabelPrevalence, PrevalenceWarning, by_finding, check_findings

if TYPE_CHECKING:
    from jaxtyping import Float, Float64

UNREAD = -100  # the class number of rows to ignore


def finding_tables(log_probs: Predictions, num_findings: int) -> Array:
    """Return predictions of findings as tables `(n, 2, L)` of log p(absent) and log p(present), checked; tensors stay tensors.

    Args:
        log_probs: `(n, L)`, the log-probability that each finding is present, such as `F.logsigmoid(logits)`; or tables
            `(n, 2, L)` with both; also dense, `(n, L, h, w)`.
        num_findings: L.
    """
    given = array_or_tensor(log_probs, "log_probs")
    table = is_table(given, num_findings)
    if given.ndim < 2 or len(given) == 0 or "float" not in str(given.dtype) or not (table or given.shape[1] == num_findings):
        raise ValueError(
            f"Expected `log_probs` of {num_findings} findings (multi-label), floats of shape (n, {num_findings}) or (n, 2, "
            f"{num_findings}), but got {given.dtype} of shape {tuple(given.shape)}: pass log σ(logits), in the order of the "
            "prevalence, such as torch.nn.functional.logsigmoid(logits)."
        )
    if not is_traced(given):
        _check_values(array_of(given, "log_probs").astype(np.float64), table)
    return given if table else array_namespace(given).stack([log_complement(given), given], axis=1)


def _check_values(values: np.ndarray, table: bool) -> None:
    if np.isnan(values).any():
        raise ValueError("Expected `log_probs` without NaN, but got some: no figure can be right with them; drop such rows.")
    sums = np.abs(logsumexp(values)) if table or values.shape[1:] == (2,) else np.ones(1)
    if table and not (sums <= 1e-4).all():
        remedy = "take a log-softmax over dimension 1"
        raise ValueError(f"Expected tables (n, 2, L) of log-probabilities that sum to 1, but some do not: {remedy}.")
    if (values > 1e-4 * table).any():
        raise ValueError(
            "Expected log-probabilities that each finding is present, at most 0, but some are above: are these logits? Take "
            "torch.nn.functional.logsigmoid(logits); of probabilities take the logarithm."
        )
    if not table and len(values) > 1 and (sums < 1e-4).all():
        remedy = "use Prevalence.binary, or give tables (n, 2, 2)"
        raise ValueError(f"Expected two findings (multi-label), but got two classes that exclude each other: {remedy}.")


def map_findings(log_probs: Predictions, names: Sequence[str], call: Callable[[Array, int], Array]) -> Any:
    """Return `call(table (n, 2), number)` of each finding, in the shape and type of the predictions."""
    given = array_or_tensor(in_order(log_probs, names), "log_probs")
    table = finding_tables(given, len(names))
    moved = array_namespace(given).stack([call(table[:, :, number], number) for number in range(len(names))], axis=2)
    return as_given(moved if is_table(given, len(names)) else moved[:, 1], log_probs)


def is_table(log_probs: Array, num_findings: int) -> bool:
    """Return whether predictions of findings have both log-probabilities, `(n, 2, L)`."""
    return log_probs.ndim > 2 and log_probs.shape[1] == 2 and log_probs.shape[2] == num_findings


def log_complement(log_p: Array) -> Array:
    """Return log(1 − p), precise for all p."""
    xp = array_namespace(log_p)
    small, one = log_p > -0.6931, -xp.ones_like(log_p)
    near, far = xp.where(small, log_p, one), xp.where(small, one, log_p)
    with np.errstate(divide="ignore"):  # log 0 where p is 1
        return xp.where(small, xp.log(-xp.expm1(near)), xp.log1p(-xp.exp(far)))


def multiply_findings(table: Array, log_factors: Array) -> Array:
    """Multiply both probabilities of each finding by their factors, `(2, L)` or `(n, 2, L)`, and rescale them."""
    return shift_classes(table, log_factors.reshape(*log_factors.shape, *[1] * (table.ndim - 3)))


def by_name(value: Any) -> dict[str, Any] | None:
    """Return the prevalence of each finding by its name; None for a prevalence of classes."""
    if isinstance(value, MultilabelPrevalence):
        return dict(zip(value.names, value, strict=True))
    return {str(name): each for name, each in value.items()} if isinstance(value, Mapping) and value else None


def option_by_name(value: Any, names: Sequence[str], option: str) -> dict[str, Any]:
    """Return the option of each finding, from a dict by name, or one for all."""
    if not isinstance(value, Mapping):
        return dict.fromkeys(names, value)
    return dict(zip(names, by_finding(value, option, names), strict=True))


@dataclass(frozen=True)
class FindingRows:
    """Labelled predictions of L findings.

    Attributes:
        names: of the findings.
        tables: log p(absent) and log p(present).
        labels: 0, 1, or NaN where a finding was not read.
        weights: of rows sampled by findings together, from `pattern_weights`; None if there are none.
    """

    names: tuple[str, ...]
    tables: Float[np.ndarray, "n 2 l *dense"]
    labels: Float64[np.ndarray, "n l *dense"]
    weights: Float64[np.ndarray, "n l"] | None

    @classmethod
    def of(
        cls, log_probs: Predictions, target: Numbers, prevalence: Any, name: str = "target", weighted: bool = True
    ) -> FindingRows:
        """Check predictions and labels of findings.

        Args:
            log_probs: as in `finding_tables`.
            target: `(n, L)`, or dense `(n, L, h, w)`.
            prevalence: of the findings, or anything by their names. Columns of data frames are put in the order of names.
            name: the argument's name in messages.
            weighted: whether rows were sampled as the label matrix of the prevalence.
        """
        names = tuple(by_name(prevalence) or ())
        tables = finding_tables(array_of(in_order(log_probs, names), "log_probs"), len(names))
        labels = array_of(in_order(target, names), name).astype(np.float64)
        expected = (len(tables), *tables.shape[2:])
        if labels.shape != expected:
            came = f"{labels.shape}: 0 is absent, 1 present, NaN not read"
            raise ValueError(f"Expected multi-label `{name}` of shape {expected}, but got {came}.")
        check_findings(labels, name)
        return cls(names, tables, labels, pattern_weights(prevalence, labels) if weighted else None)

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Return a finding's table of two classes, its class numbers, and the weights of rows."""
        weights = None if self.weights is None else self.weights[:, number]
        return self.tables[:, :, number], class_labels(self.labels[:, number]), weights


def class_labels(labels: np.ndarray) -> np.ndarray:
    """Return the labels of one finding as class numbers, −100 where it was not read; as votes if some are between 0 and 1."""
    unread, known = np.isnan(labels), np.nan_to_num(labels)
    if ((known == 0) | (known == 1)).all():
        return np.where(unread, UNREAD, known.astype(np.int64))
    return np.where(np.expand_dims(unread, 1), 0.0, np.stack([1 - known, known], 1))


def in_order(values: Any, names: Sequence[str]) -> Any:
    """Return a data frame with columns in the order of the findings, if it has their names; anything else unchanged."""
    columns = [str(column) for column in getattr(values, "columns", ())]
    if not set(columns) & set(names):
        return values
    missing = [name for name in names if name not in columns]
    if missing:
        raise ValueError(f"Expected a column for each finding, but got none for {missing}: the columns are {columns}.")
    return values[list(names)]


def one_finding(
    log_probs: Predictions, target: Numbers, prevalence: FindingMix, finding: str
) -> tuple[Float[np.ndarray, "n 2 *dense"], np.ndarray]:
    """Return the predictions of one finding as a table of two classes, and its labels, for functions of classes.

    Args:
        log_probs: of all findings, as in `finding_tables`.
        target: labels of all findings, NaN where not read: class number −100, which is ignored.
        prevalence: of all findings.
        finding: the name of one.

    Examples:
        >>> import numpy as np
        >>> import rightloss as rl
        >>> from rightloss.finding_tables import one_finding
        >>> prevalence = rl.Prevalence.multilabel({"mass": 0.05, "nodule": 0.01})
        >>> log_probs = np.log([[0.2, 0.1], [0.6, 0.3], [0.1, 0.1]])
        >>> table, y = one_finding(log_probs, [[0, 1], [1, 0], [np.nan, 0]], prevalence, "mass")
        >>> np.exp(table)[:, 1].round(3).tolist(), y.tolist()  # for roc_curve(table, y)
        ([0.2, 0.6, 0.1], [0, 1, -100])
    """
    names = list(by_name(prevalence) or ())
    if finding not in names:
        raise ValueError(f"Expected `finding` to be one of {names}, but got {finding!r}: give its name.")
    if getattr(prevalence, "patterns", None) is not None:
        remedy = "use `evaluate` or `check` with all findings"
        raise ValueError(f"Expected findings that were sampled each by itself, but they were sampled together: {remedy}.")
    return FindingRows.of(log_probs, target, prevalence)[names.index(finding)][:2]


def pattern_weights(prevalence: Any, labels: Float64[np.ndarray, "n l *dense"]) -> Float64[np.ndarray, "n l"] | None:
    """Return weights of rows that were sampled by findings together, as the label matrix was; None without such weights.

    Within a class of a finding, they are the pattern's frequency in the population over that in the sample, up to a factor.
    """
    patterns = getattr(prevalence, "patterns", None)
    if patterns is None:
        return None
    if labels.ndim > 2:
        raise ValueError("Expected labels (n, L) for weights by findings, but got maps: use Prevalence.multilabel.")
    weights = patterns.of_rows(labels)
    for present in (0, 1):
        _warn_of_rows(weights, labels == present)
    unit = patterns.weights[0]  # those of one pattern: its weight over the mean of each class
    known = np.nan_to_num(labels)
    return weights / (unit[:, 0] * (1 - known) + unit[:, 1] * known)


def _warn_of_rows(weights: np.ndarray, own: np.ndarray) -> None:
    """Warn if the mean weight in a class is above 1, as it is in the population, where large weights are more frequent.

    One row of weight 0 is added, so that a few rows with equal weights have an error.
    """
    count = own.sum(0) + 1
    mean = (weights * own).sum(0) / count
    error = np.sqrt(((weights - mean) ** 2 * own).sum(0) + mean**2) / np.sqrt(np.maximum(count * (count - 1), 1e-300))
    if (mean - 1 > 4 * error).any():
        message = (
            "These rows were not sampled by findings as the label matrix of the prevalence was: patterns with a large weight "
            "are too frequent. For a random sample of the population, pass a prevalence without weights: "
            "Prevalence.multilabel(dict(zip(prevalence.names, prevalence)))."
        )
        warnings.warn(message, PrevalenceWarning, stacklevel=5)


Result = TypeVar("Result")


def for_each_finding(names: Iterable[str], call: Callable[[int, str], Result], stacklevel: int) -> dict[str, Result]:
    """Return `call(number, name)` of each finding; errors and warnings say which."""
    results: dict[str, Result] = {}
    said: dict[tuple[type[Warning], str], list[str]] = {}
    for number, name in enumerate(names):
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            try:
                results[name] = call(number, name)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
        for each in heard:
            said.setdefault((each.category, str(each.message)), []).append(name)
    for (category, message), by in said.items():
        warnings.warn(f"{', '.join(dict.fromkeys(by))}: {message}", category, stacklevel=stacklevel)
    return results


class ByFinding(Mapping[str, Result], Generic[Result]):
    """Results by the name of each finding: a mapping that prints itself.

    Args:
        results: by name.
        cells: the cells of a result's row in the printed table, by the name of their column; None to print each as it is.
        title: above the table.
        remarks: lines below it.

    Examples:
        >>> from rightloss.finding_tables import ByFinding
        >>> ByFinding({"mass": 1, "nodule": 2})["nodule"]
        2
    """

    _kind = "finding"  # of the names, in messages

    def __init__(
        self,
        results: Mapping[str, Result],
        cells: Callable[[Result], Mapping[str, str]] | None = None,
        title: str = "",
        remarks: Sequence[str] = (),
    ) -> None:
        self._results = dict(results)
        self._cells, self._title, self._remarks = cells, title, tuple(remarks)

    def __getitem__(self, finding: str) -> Result:
        if finding not in self._results:
            raise KeyError(f"there is no {self._kind} {finding!r}; there are {', '.join(self._results)}")
        return self._results[finding]

    def __iter__(self) -> Iterator[str]:
        return iter(self._results)

    def __len__(self) -> int:
        return len(self._results)

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers by finding."""
        return {name: each.to_dict() if hasattr(each, "to_dict") else asdict(each) for name, each in self.items()}  # type: ignore[call-overload]

    def __repr__(self) -> str:
        if self._cells is None:
            return "\n".join(f"{name}\n{each!r}" for name, each in self._results.items())
        lines = self._lines(self._cells)
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        shown = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
        return "\n".join([self._title, *("  " + line for line in shown), *self._remarks])

    def _repr_html_(self) -> str:
        if self._cells is None:
            return "".join(f"<h4>{html.escape(name)}</h4><pre>{html.escape(repr(each))}</pre>" for name, each in self.items())
        rows = zip(["th", *["td"] * len(self)], self._lines(self._cells), strict=True)
        cells = ("".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in line) for tag, line in rows)
        title, *remarks = (f"<p>{html.escape(line)}</p>" for line in (self._title, *self._remarks))
        return f"{title}<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>{''.join(remarks)}"

    def _lines(self, cells: Callable[[Result], Mapping[str, str]]) -> list[list[str]]:
        """Return the lines of the table, with the names of all columns first; a result without a column has "–" there."""
        rows = {name: cells(each) for name, each in self._results.items()}
        columns = list(dict.fromkeys(column for row in rows.values() for column in row))
        return [["", *columns], *([name, *(row.get(column, "–") for column in columns)] for name, row in rows.items())]
