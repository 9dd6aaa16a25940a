"""Inspect a table before a fit: its columns, its classes, and possible problems.

Stage: `pandas.DataFrame`, the name of the target column → `TableReport`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from ..sklearn.population import Population
from .columns import (
    MOST_CLASSES,
    Finding,
    Kind,
    Label,
    Labels,
    as_days,
    as_numbers,
    as_text,
    as_values,
    count_distinct,
    date_format,
    formula_cells,
    group_numbers,
    hashable,
    kind_of,
    labels_of,
    population_of,
)

Role = Literal["target", "group", "feature", "left out"]

LEVELS_KEPT = 100  # number of levels of a category with their own code; see `pipelines`
_MOSTLY_MISSING = 0.5
_MOST_TARGET_VALUES = 20  # a column of numbers with more distinct values is not a target of a classifier
_FEW_ROWS = 10  # of a class
_TARGET_NAME = re.compile(
    r"^(y|target|label|class|outcome|status|diagnosis|response|event|disease|cancer|default|churn|purchase|survived|died)$",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class ColumnReport:
    """One column of a table.

    Attributes:
        name: the name of the column.
        kind: "number", "category", "text", "identifier", "constant", "date" or "boolean".
        missing: fraction of missing cells.
        distinct: number of distinct values.
        role: "target", "group", "feature" or "left out".
        examples: some of its values, as text.
        note: why it is left out, or how it is used; may be empty.

    Examples:
        >>> import pandas as pd
        >>> from rightloss.tabular import inspect_table
        >>> inspect_table(pd.DataFrame({"age": [61.5, None, 48.0]})).columns[0].kind
        'number'
    """

    name: str
    kind: Kind
    missing: float
    distinct: int
    role: Role
    examples: list[str]
    note: str


@dataclass(frozen=True)
class ClassReport:
    """One class of the target: its label, its number of rows, and their fraction.

    Examples:
        >>> from rightloss.tabular import ClassReport
        >>> ClassReport("yes", rows=20, share=0.02).share
        0.02
    """

    label: Label
    rows: int
    share: float


@dataclass(frozen=True)
class TableReport:
    """The result of `inspect_table`: columns, classes and findings.

    Attributes:
        rows: number of rows.
        columns: each column, in the order of the table.
        classes: the classes of the target, of two the positive one last; None without a target.
        findings: errors, warnings and notes, in this order.
        likely_targets: columns that could be the target, if none was given; the most probable first.
        groups: number of groups; None without a group column.
        positive: the positive one of two classes.

    Examples:
        >>> import pandas as pd
        >>> from rightloss.tabular import inspect_table
        >>> report = inspect_table(pd.DataFrame({"age": [61, 48, 55, 70], "cancer": ["yes", "no", "no", "yes"]}))
        >>> report.likely_targets
        ['cancer']
    """

    rows: int
    columns: list[ColumnReport]
    classes: list[ClassReport] | None
    findings: list[Finding]
    likely_targets: list[str] = field(default_factory=list)
    groups: int | None = None
    positive: Label | None = None

    @property
    def errors(self) -> list[Finding]:
        """The findings that prevent a fit."""
        return [finding for finding in self.findings if finding.level == "error"]

    def column(self, name: str) -> ColumnReport:
        """Return the column of that name."""
        return next(column for column in self.columns if column.name == name)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as dicts and lists, for JSON."""
        return asdict(self)


def inspect_table(
    frame: pd.DataFrame,
    *,
    target: str | None = None,
    positive: Label | None = None,
    group: str | None = None,
    population: Population | None = None,
    leave_out: Iterable[str] = (),
) -> TableReport:
    """Return a report on a table, to read before a fit.

    Errors in the table are not raised here, but listed in the findings; `fit_table` raises them.

    Args:
        frame: the table, for example from `read_table`.
        target: the column with the classes; None to list likely ones.
        positive: of two classes, the one that `population` is the frequency of.
        group: the column of patients, sites or other groups of rows.
        population: π as in `fit_table`, to check that it fits the classes.
        leave_out: columns to ignore.

    Examples:
        >>> import numpy as np, pandas as pd
        >>> from rightloss.tabular import inspect_table
        >>> frame = pd.DataFrame({"nr": np.arange(100), "age": np.arange(100) % 37, "cancer": ["no"] * 90 + ["yes"] * 10})
        >>> report = inspect_table(frame, target="cancer", population=0.001)
        >>> [(each.label, each.rows) for each in report.classes]
        [('no', 90), ('yes', 10)]
        >>> print(report.findings[0])
        warning: column 'nr': it names the rows (an identifier) and is left out.
    """
    findings, left_out = list(frame.attrs.get("findings", [])), list(leave_out)
    findings += _missing_names(frame, target, group, left_out)
    roles: dict[str | None, Role] = {**dict.fromkeys(left_out, "left out"), group: "group", target: "target"}
    columns = [_column(frame[name], roles.get(name, "feature")) for name in frame.columns]
    row_hashes, same = _repeated(frame, [column.name for column in columns if column.role == "feature"])
    columns = [replace(c, role="left out", note=f"the same as {same[c.name]!r}") if c.name in same else c for c in columns]
    for column in columns:
        findings += _column_findings(frame[column.name], column, same)
    findings += _row_findings(row_hashes)
    labels, groups, more = None, None, list[Finding]()
    if target in frame.columns:
        labels, more = _labels(frame, str(target), positive, columns)
        findings += more
    if labels is not None:
        findings += [*_class_findings(labels, str(target), population), *_leak_findings(frame, labels, columns)]
    if group in frame.columns:
        groups, more = _groups(frame[group], labels)
        findings += more
    if target is not None and not any(column.role == "feature" for column in columns):
        findings.append(Finding("error", None, "Expected a column to learn from, but every column is left out: add columns."))
    return TableReport(
        rows=len(frame),
        columns=columns,
        classes=None if labels is None else _classes(labels),
        findings=sorted(findings, key=lambda finding: ("error", "warning", "note").index(finding.level)),
        likely_targets=_likely_targets(columns, len(frame)) if target is None else [],
        groups=groups,
        positive=None if labels is None else labels.positive,
    )


def _missing_names(frame: pd.DataFrame, target: str | None, group: str | None, left_out: list[str]) -> Iterator[Finding]:
    for what, name in [("target", target), ("group", group), *(("leave_out", name) for name in left_out)]:
        if name is not None and name not in frame.columns:
            names = list(frame.columns[:30])
            words = f"Expected the {what} column {name!r} in the table, but got {names}: write it as it stands there."
            yield Finding("error", name, words)
    if target is not None and target == group:
        yield Finding("error", target, f"Expected target and group to differ, but both are {target!r}: name another.")
    if target is not None and target in left_out:
        yield Finding("error", target, f"Expected the target {target!r} to be used, but it is left out: keep it.")


def _column(series: pd.Series, role: Role) -> ColumnReport:
    present = series.dropna()
    distinct = count_distinct(present)
    kind = kind_of(series, distinct)
    examples = [str(value)[:40] for value in present.iloc[:200].drop_duplicates().iloc[:3]] if len(present) else []
    missing = 1 - len(present) / max(len(series), 1)
    reasons = {"text": "free text", "identifier": "an identifier", "constant": "always the same"}
    note = reasons.get(kind, "") if role == "feature" else "as asked" if role == "left out" else ""
    return ColumnReport(str(series.name), kind, missing, distinct, "left out" if note else role, examples, note)


def _column_findings(series: pd.Series, column: ColumnReport, same: dict[str, str]) -> Iterator[Finding]:
    name = column.name
    if name in same:
        yield Finding("warning", name, f"its cells are the same as those of column {same[name]!r}: it is left out.")
    if name in same or column.note == "as asked":
        return
    words = {
        "identifier": "it names the rows (an identifier) and is left out.",
        "text": f"it has {column.distinct:,} distinct texts, too many for categories, and is left out.",
        "constant": "it is the same in every row and is left out." if column.distinct else "it is empty and is left out.",
    }
    if column.role == "left out":
        yield Finding("note" if column.kind == "constant" else "warning", name, words[column.kind])
    formulas = formula_cells(series)
    if formulas:
        text = f"cells such as {formulas[0][:40]!r} begin like a formula: a spreadsheet would run them; they are read as text."
        yield Finding("warning", name, text)
    if column.role == "feature":
        yield from _feature_findings(series, column)


def _feature_findings(series: pd.Series, column: ColumnReport) -> Iterator[Finding]:
    name, rows, present = column.name, len(series), series.notna().to_numpy()
    if column.kind == "number":
        numbers, cells = as_numbers(series)
        bad = int((np.isnan(numbers) & present).sum())
        if cells:
            words = f"{bad:,} of {rows:,} cells are text among numbers, such as {cells[0][:40]!r}: they are read as missing."
            yield Finding("warning", name, words)
        elif bad:
            yield Finding("warning", name, "it has infinite numbers, which are read as missing.")
    if column.kind == "category" and column.distinct > LEVELS_KEPT:
        words = f"of {column.distinct:,} categories the {LEVELS_KEPT} most frequent are kept, and the others pooled."
        yield Finding("note", name, words)
    if column.kind == "date":
        bad = int((np.isnan(as_days(series, date_format(series) or "ISO8601")) & present).sum())
        words = "dates are used as days since 1970: does the date tell when the row was collected, rather than about the class?"
        yield Finding("note", name, words)
        if bad:
            yield Finding("warning", name, f"{bad:,} of {rows:,} cells are no dates: they are read as missing.")
    if column.missing > _MOSTLY_MISSING:
        yield Finding("note", name, f"{column.missing:.0%} of its cells are missing.")


def _row_findings(hashes: np.ndarray) -> Iterator[Finding]:
    twice = int(pd.Series(hashes).duplicated().sum())
    if len(hashes) < 2:
        yield Finding("error", None, f"Expected two rows or more, but got {len(hashes)}: add data.")
    elif twice:
        words = f"{twice:,} of {len(hashes):,} rows repeat an earlier row, and a copy in another fold flatters a model: "
        yield Finding("warning", None, words + "remove copies, or name a group column.")


def _repeated(frame: pd.DataFrame, names: list[str]) -> tuple[np.ndarray, dict[str, str]]:
    """Return a 64-bit hash of each row, and, by the name of a column among some, an earlier one with the same cells.

    A million rows have equal hashes with probability 3e-8.
    """
    rows, first, same = np.zeros(len(frame), dtype=np.uint64), dict[int, str](), {}
    for name in frame.columns:
        cells = pd.util.hash_pandas_object(hashable(frame[name]), index=False, categorize=False).to_numpy()
        rows = rows * np.uint64(0x9E3779B97F4A7C15) + cells
        earlier = first.setdefault(hash(cells.tobytes()), name) if name in names else name
        if earlier != name and frame[earlier].equals(frame[name]):
            same[name] = earlier
    return rows, same


def _labels(
    frame: pd.DataFrame, target: str, positive: Label | None, columns: list[ColumnReport]
) -> tuple[Labels | None, list[Finding]]:
    """Return the classes, or None and an error if the column has none."""
    kind, distinct = next((c.kind, c.distinct) for c in columns if c.name == target)
    if distinct > (_MOST_TARGET_VALUES if kind in ("number", "identifier", "date") else MOST_CLASSES):
        words = f"Expected classes in the target column {target!r}, but got {distinct:,} distinct values: name another column."
        return None, [Finding("error", target, words)]
    try:
        labels = labels_of(frame[target], positive)
    except ValueError as error:
        return None, [Finding("error", target, str(error))]
    missing = int((labels.codes < 0).sum())
    words = f"{missing:,} of {len(frame):,} rows have no label: they are left out."
    return labels, [Finding("warning", target, words)] if missing else []


def _class_findings(labels: Labels, target: str, population: Population | None) -> Iterator[Finding]:
    if len(labels.classes) < 2:
        only = f"only {labels.classes[0]!r}" if labels.classes else "no label at all"
        words = f"Expected two classes or more in the target column {target!r}, but got {only}: add rows of another class."
        yield Finding("error", target, words)
        return
    for label, rows in zip(labels.classes, labels.counts.tolist(), strict=True):
        if rows < 2:
            words = f"Expected two rows or more of each class, but {label!r} has {rows}: add rows, or remove the class."
            yield Finding("error", target, words)
        elif rows < _FEW_ROWS:
            words = f"class {label!r} has only {rows} rows: expect wide intervals, and few ways to tell models apart."
            yield Finding("warning", target, words)
    if labels.guessed and isinstance(population, int | float):
        first, second = labels.classes
        example = {first: population, second: round(1 - population, 10)}
        words = (
            f"Expected to know which class has the population's {population:g}, but neither {first!r} nor {second!r} is "
            f"plainly the positive one: give positive={first!r} or positive={second!r}, or both frequencies, such as {example}."
        )
        yield Finding("error", target, words)
    elif labels.guessed:
        words = f"{labels.positive!r} is taken as the positive class: if it is {labels.classes[0]!r}, say so with `positive`."
        yield Finding("warning", target, words)
    if population is not None:
        try:
            population_of(population, labels.classes, labels.shares)
        except ValueError as error:
            yield Finding("error", target, str(error))


def _leak_findings(frame: pd.DataFrame, labels: Labels, columns: list[ColumnReport]) -> Iterator[Finding]:
    kinds = {column.name: column.kind for column in columns if column.role == "feature"}
    for name, auc in leaking_columns(frame, labels, kinds).items():
        words = f"it alone tells the classes apart (AUC {auc:.3f}): if it is known only after the class is, leave it out."
        yield Finding("warning", name, words)


def _groups(series: pd.Series, labels: Labels | None) -> tuple[int, list[Finding]]:
    found, name = [], str(series.name)
    codes, missing = group_numbers(series)
    if missing:
        found.append(Finding("warning", name, f"{missing:,} rows have no group: each counts as a group of its own."))
    count = len(np.unique(codes))
    if count == len(series):
        found.append(Finding("note", name, "every row is a group of its own."))
    for number, label in enumerate(labels.classes if labels else ()):
        if labels and len(np.unique(codes[labels.codes == number])) < 2:
            words = (
                f"Expected rows of class {label!r} in two groups or more of {name!r}, but all are in one: add groups of it, "
            )
            found.append(Finding("error", name, words + "or leave the group column out."))
    return count, found


def _classes(labels: Labels) -> list[ClassReport]:
    return list(map(ClassReport, labels.classes, labels.counts.tolist(), labels.shares.tolist()))


def _likely_targets(columns: list[ColumnReport], rows: int) -> list[str]:
    """Return columns with few distinct values: those named like a target first, then the last of the table, then by values."""
    most = min(10, rows // 2)
    fits = [(i, c) for i, c in enumerate(columns) if c.role == "feature" and 2 <= c.distinct <= most and c.kind != "date"]
    last = len(columns) - 1
    ranked = sorted(fits, key=lambda each: (not _TARGET_NAME.match(each[1].name), each[0] != last, each[1].distinct, each[0]))
    return [column.name for _, column in ranked[:5]]


_SUSPECT = 0.995  # AUC of a single column from which it counts as a leak
_FEWEST = 10  # with fewer rows of a class, a perfect order says little
_MOST_ROWS = 20_000  # rows used per class
_BINS = 32  # parts of each class's values


def leaking_columns(frame: pd.DataFrame, labels: Labels, kinds: Mapping[str, Kind]) -> dict[str, float]:
    """Return the AUC of each column that separates the classes by itself, averaged over the classes against the rest."""
    if len(labels.classes) < 2 or labels.counts.min() < _FEWEST:
        return {}
    steps = -(-labels.counts // _MOST_ROWS)
    rows = np.sort(np.concatenate([np.flatnonzero(labels.codes == k)[::step] for k, step in enumerate(steps)]))
    codes, part = labels.codes[rows], frame.iloc[rows]
    areas = {name: single_column_auc(level_numbers(part[name], kind, codes), codes) for name, kind in kinds.items()}
    return {name: area for name, area in areas.items() if area >= _SUSPECT}


def single_column_auc(levels: np.ndarray, codes: np.ndarray) -> float:
    """Return the AUC of a column cut into levels, where each half of the rows is scored by the class rates of the other."""
    from sklearn.metrics import roc_auc_score

    halves = pd.Series(codes).groupby(codes).cumcount().to_numpy() % 2  # alternating within each class
    areas = []
    for known in (halves == 0, halves == 1):
        counts = np.zeros((levels.max() + 1, codes.max() + 1))
        np.add.at(counts, (levels[known], codes[known]), 1)
        rates = (counts + counts.sum(0) / counts.sum()) / (counts.sum(1, keepdims=True) + 1)
        areas += [roc_auc_score(codes[~known] == k, rates[levels[~known], k]) for k in range(codes.max() + 1)]
    return float(np.mean(areas))


def level_numbers(series: pd.Series, kind: Kind, codes: np.ndarray) -> np.ndarray:
    """Return the level of each cell: its category, or its bin between the classes' quantiles; missing cells are one level."""
    if kind in ("category", "text", "identifier", "constant"):
        return as_text(series)[0] + 1
    values = as_values(series, kind, date_format(series) if kind == "date" else None)
    known = np.isfinite(values)
    edges = np.unique(np.concatenate([_quantiles(values[known & (codes == k)]) for k in np.unique(codes)]))
    return np.where(known, 1 + np.searchsorted(edges, values, side="right"), 0)


def _quantiles(values: np.ndarray) -> np.ndarray:
    """Return values that split a class into parts of about the same size, from its smallest to just above its largest."""
    if not len(values):
        return values
    return np.append(np.quantile(values, np.linspace(0, 1, _BINS + 1), method="lower"), np.nextafter(values.max(), np.inf))
