"""Columns: what is found about them, their kinds and cells, and the labels of the target column.

Stage: a column → its kind, and its values as numbers, days or text; the target column, `positive`, `population` → classes, a
class number per row, and a `Prevalence` over the classes.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from ..prevalence import Prevalence
from ..sklearn.population import Population, by_class, class_prevalence, likely_positive

Level = Literal["error", "warning", "note"]


class TableWarning(UserWarning):
    """Warn that a table differs from the training table: cells that are not numbers, or unknown categories.

    Examples:
        >>> import warnings
        >>> from rightloss.tabular import TableWarning
        >>> warnings.filterwarnings("ignore", category=TableWarning)
    """


@dataclass(frozen=True)
class Finding:
    """One thing to know about a table.

    Attributes:
        level: "error" (no model can be fitted), "warning" (the result may mislead) or "note".
        column: the column, if it is about one.
        message: a sentence that says what was found and what to do.

    Examples:
        >>> from rightloss.tabular import Finding
        >>> print(Finding("warning", "age", "3 of 1,000 cells are text"))
        warning: column 'age': 3 of 1,000 cells are text
    """

    level: Level
    column: str | None
    message: str

    def __str__(self) -> str:
        where = "" if self.column is None else f"column {self.column!r}: "
        return f"{self.level}: {where}{self.message}"


def warn_of(findings: Iterable[Finding], stacklevel: int = 2) -> None:
    """Warn of the warnings among findings."""
    for finding in findings:
        if finding.level == "warning":
            warnings.warn(str(finding).removeprefix("warning: "), TableWarning, stacklevel=stacklevel + 1)


Label = str | int | float | bool
Kind = Literal["number", "category", "text", "identifier", "constant", "date", "boolean"]

# pandas' own list without "None", which is often the name of a category.
MISSING = ["", "NA", "N/A", "n/a", "<NA>", "#N/A", "#NA", "#N/A N/A", "NaN", "nan", "-NaN", "-nan", "NULL", "null"]
NUMBER = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?")
# Spreadsheet programs read text as a formula if it begins with one of these characters and is not a number.
_FORMULA = re.compile(r"[\s\x00-\x1f\ufeff]*[=+\-@＝＋－＠]\s*\S|\s*[\t\r]")
MOSTLY = 0.9  # fraction of cells that makes a column one of numbers or dates; other cells are read as missing
_FEW_LEVELS = 50  # a category with more levels must have enough rows for each
_MANY_LEVELS = 0.2  # distinct values per row from which text is not a category
_FEWEST_IDS = 20  # with fewer rows, distinct values are no sign of an identifier
_ID_NAME = re.compile(r"(^|[_\W])(id|uuid|guid|key|index|nr|no|number|mrn|ssn)($|[_\W])|Id$|ID$|^Unnamed: ", re.IGNORECASE)
_DATE = re.compile(r"\d{4}[-/]\d{1,2}[-/]\d{1,2}([T ].*)?|\d{1,2}([./-])\d{1,2}\2\d{4}")
_DATE_FORMATS = ("ISO8601", "%Y/%m/%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%d-%m-%Y")
_EPOCH = np.datetime64("1970-01-01", "ns")
_LOOKED_AT = 2000  # cells used to find the date format


def kind_of(series: pd.Series, distinct: int | None = None) -> Kind:
    """Return the kind of a column; `distinct` is the result of `count_distinct`, if known.

    All-distinct numbers are an identifier if they are whole and without gaps, or if the name says so; all-distinct text is one
    if it has no spaces. Text with many distinct values is not a category.
    """
    present = series.dropna()
    distinct = count_distinct(present) if distinct is None else distinct
    if distinct == 0 or (distinct == 1 and len(present) == len(series)):
        return "constant"
    if pd.api.types.is_datetime64_any_dtype(series):
        return "date"
    if _is_boolean(present):
        return "boolean"
    if _is_numeric(series):
        return "identifier" if _counts_rows(present.to_numpy(dtype=np.float64), distinct, str(series.name)) else "number"
    return _kind_of_text(present, distinct, str(series.name))


def count_distinct(series: pd.Series) -> int:
    """Return the number of distinct values, without missing ones."""
    return int(hashable(series).nunique())


def as_numbers(series: pd.Series, infinite: bool = False) -> tuple[np.ndarray, list[str]]:
    """Return the cells as float64, with NaN for missing and other cells, also infinite ones, and examples of text cells."""
    cells: list[str] = []
    if _is_numeric(series) or pd.api.types.is_bool_dtype(series):
        found = series.to_numpy(dtype=np.float64, na_value=np.nan)
    else:
        codes, values = pd.factorize(hashable(series))
        parsed = pd.to_numeric(pd.Series(list(map(_plain, values)), dtype=object), errors="coerce")
        found = np.append(parsed.to_numpy(dtype=np.float64), np.nan)[codes]
        cells = [str(value) for value in values[parsed.isna()]]
    return found if infinite else np.where(np.isfinite(found), found, np.nan), cells


def as_text(series: pd.Series) -> tuple[np.ndarray, list[str]]:
    """Return a code per cell, −1 for missing ones, and the text of each code."""
    codes, values = pd.factorize(hashable(series))
    return np.asarray(codes, dtype=np.int64), [text_of(value) for value in values]


def group_numbers(series: pd.Series) -> tuple[np.ndarray, int]:
    """Return the groups as numbers, in which a row without one is its own group, and how many rows have none."""
    codes = as_text(series)[0]
    alone = codes < 0
    codes[alone] = codes.max(initial=-1) + 1 + np.arange(int(alone.sum()))
    return codes, int(alone.sum())


def as_values(series: pd.Series, kind: Kind, written: str | None) -> np.ndarray:
    """Return the numbers of a column, or its days if they are dates in this format, as float64."""
    return as_days(series, written or "ISO8601") if kind == "date" else as_numbers(series)[0]


def plain_label(value: Any) -> Label:
    """Return a cell as Python's own str, bool, int or float; whole numbers are ints."""
    value = _plain(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, str | bool | int | float) else str(value)


def text_of(value: Any) -> str:
    """Return the category of a cell as text; 1.0 and 1 are the same."""
    return str(plain_label(value))


def date_format(series: pd.Series) -> str | None:
    """Return the date format of a text column, or None if no format fits nearly all cells."""
    present = series.dropna()
    if pd.api.types.is_datetime64_any_dtype(series):
        return "ISO8601"
    some = present.iloc[:: max(1, len(present) // _LOOKED_AT)].astype(str)
    if not len(some) or some.str.fullmatch(_DATE).mean() < MOSTLY:
        return None
    fits = {each: np.isfinite(as_days(some, each)).mean() for each in _DATE_FORMATS}
    best = max(_DATE_FORMATS, key=fits.__getitem__)
    return best if fits[best] >= MOSTLY else None


def as_days(series: pd.Series, date_format: str) -> np.ndarray:
    """Return dates as days since 1970, with NaN for missing ones."""
    text = series
    if not pd.api.types.is_datetime64_any_dtype(series):  # pandas also reads words such as "today"
        text = series.astype(str).where(series.astype(str).str.match(r"\s*\d") & series.notna(), None)
    times = pd.to_datetime(text, format=date_format, errors="coerce", utc=True).dt.tz_localize(None)
    days = (times.to_numpy(dtype="datetime64[ns]") - _EPOCH) / np.timedelta64(1, "D")
    return np.where(times.isna(), np.nan, days)


def is_text(series: pd.Series) -> bool:
    """Return whether the cells may be text: whether they are no numbers, truth values or dates."""
    kinds = pd.api.types
    others = (kinds.is_numeric_dtype, kinds.is_bool_dtype, kinds.is_datetime64_any_dtype)
    return not any(is_other(series) for is_other in others)


def is_formula(text: str) -> bool:
    """Return whether a spreadsheet program would run a cell as a formula."""
    return bool(_FORMULA.match(text)) and not NUMBER.fullmatch(text.strip())


def formula_cells(series: pd.Series) -> list[str]:
    """Return the distinct cells that a spreadsheet would run as a formula."""
    return list(filter(is_formula, as_text(series)[1])) if is_text(series) else []


def _kind_of_text(present: pd.Series, distinct: int, name: str) -> Kind:
    numbers = as_numbers(present)[0]
    if np.isfinite(numbers).mean() >= MOSTLY:
        kept = numbers[np.isfinite(numbers)]
        return "identifier" if _counts_rows(kept, len(np.unique(kept)), name) else "number"
    if date_format(present) is not None:
        return "date"
    if distinct >= _FEWEST_IDS and distinct == len(present):
        words = present.iloc[:_LOOKED_AT].astype(str).str.strip().str.contains(r"\s").mean()
        return "text" if words > 0.5 else "identifier"
    return "text" if distinct > max(_FEW_LEVELS, _MANY_LEVELS * len(present)) else "category"


def _counts_rows(values: np.ndarray, distinct: int, name: str) -> bool:
    """Return whether whole numbers identify the rows: all distinct, and without gaps or with a name that says so."""
    if len(values) < _FEWEST_IDS or distinct < len(values) or not np.isfinite(values).all() or (values % 1 != 0).any():
        return False
    return bool(_ID_NAME.search(name)) or float(values.max()) - float(values.min()) < 1.1 * len(values)


def _is_numeric(series: pd.Series) -> bool:
    kinds = pd.api.types
    return bool(kinds.is_numeric_dtype(series) and not kinds.is_bool_dtype(series) and not kinds.is_complex_dtype(series))


def _is_boolean(present: pd.Series) -> bool:
    if pd.api.types.is_bool_dtype(present):
        return True
    return bool(pd.api.types.is_object_dtype(present) and all(isinstance(value, bool | np.bool_) for value in present))


def hashable(series: pd.Series) -> pd.Series:
    """Return a column with cells that can be compared; lists and similar become text."""
    values = series.astype(object) if isinstance(series.dtype, pd.CategoricalDtype) else series
    try:
        if pd.api.types.is_object_dtype(values):
            hash(tuple(values.iloc[:100]))
        return values
    except TypeError:
        return values.map(str, na_action="ignore")


def _plain(value: Any) -> Any:
    """Return a cell as Python's own type."""
    return value.item() if isinstance(value, np.generic) else value


MOST_CLASSES = 50


@dataclass(frozen=True)
class Labels:
    """The classes of a target column.

    Attributes:
        classes: the labels, sorted; of two the positive one is the second.
        codes: the class number of each row `(n,)`, −1 for a missing label.
        positive: the second of two classes; None if there are more.
        guessed: whether `positive` is an arbitrary choice.
    """

    classes: list[Label]
    codes: np.ndarray
    positive: Label | None
    guessed: bool

    @property
    def counts(self) -> np.ndarray:
        """The rows of each class."""
        return np.bincount(self.codes[self.codes >= 0], minlength=len(self.classes))

    @property
    def shares(self) -> np.ndarray:
        """The mix of the classes."""
        found: np.ndarray = self.counts / max(self.counts.sum(), 1)
        return found


def labels_of(series: pd.Series, positive: Label | None = None) -> Labels:
    """Return the classes of a target column, and the class number of each row.

    Raises:
        ValueError: if `positive` is not a class, or there are more than two classes.
    """
    numbers, values = pd.factorize(series.astype(object))
    labels = [plain_label(value) for value in values]
    if any(isinstance(label, float) and math.isinf(label) for label in labels):
        raise ValueError(
            f"Expected names or finite numbers as classes in the column {series.name!r}, but got infinity: is it the right one?"
        )
    names: dict[str, Label] = {}
    for label in labels:
        other = names.setdefault(str(label).strip(), label)
        if (type(other), other) != (type(label), label):
            raise ValueError(
                f"Expected classes in the column {series.name!r} that differ in more than blanks or type, but got {other!r} "
                f"and {label!r}: write them in one way."
            )
    mixed = len({type(label) for label in labels}) > 1
    classes = sorted(set(labels), key=str if mixed else None)
    if positive is not None and not classes:
        raise ValueError(f"Expected labels in the column {series.name!r}, but every cell is empty: is it the right column?")
    second = None if positive is None else matching_label(positive, classes, "positive")
    if second is not None and len(classes) > 2:
        raise ValueError(
            f"Expected two classes for positive={positive!r}, but got {len(classes)}: leave `positive` out, and give "
            "the population by class."
        )
    likely = likely_positive(classes) if second is None and len(classes) == 2 else second
    if len(classes) == 2:
        second = classes[1] if likely is None else likely
        classes = sorted(classes, key=lambda label: label == second)
    place = {label: number for number, label in enumerate(classes)}
    codes = np.array([*(place[label] for label in labels), -1], dtype=np.int64)[numbers]
    return Labels(classes, codes, second, guessed=likely is None and len(classes) == 2)


def population_of(
    population: Population | None, classes: Sequence[Label], sampling: np.ndarray, name: str = "population"
) -> Prevalence:
    """Return the `Prevalence` of a table.

    Args:
        population: π: a number for two classes (the frequency of the second), a dict by label, K frequencies in their order, a
            `Prevalence`, an estimate, or None for ρ.
        classes: the labels.
        sampling: ρ, such as the labels' own mix.
        name: the argument's name in messages.
    """
    if isinstance(population, Mapping):
        named = {matching_label(key, classes, name): value for key, value in population.items()}
        population = by_class(named, np.array(classes, dtype=object), name)
    elif isinstance(population, int | float) and len(classes) > 2:
        raise ValueError(
            f"Expected a frequency for each of the classes {classes}, but got {population!r}: name them all, such as "
            f"{ {label: round(1 / len(classes), 3) for label in classes} }."
        )
    return class_prevalence(population, np.arange(len(classes)), sampling)


def class_numbers(labels: pd.Series, classes: Sequence[Label]) -> np.ndarray:
    """Return the class number of each row (n,), −1 if it has no label; raise a ValueError for unknown labels."""
    place = {text_of(label): number for number, label in enumerate(classes)}
    numbers, names = pd.factorize(labels.astype(object))
    found = {text: _class_number(text, place) for text in map(text_of, names)}
    unknown = sorted(text for text, number in found.items() if number is None)
    if unknown:
        raise ValueError(
            f"Expected the classes {list(place)} in column {labels.name!r}, but got {unknown[:5]}: leave those rows out."
        )
    return np.array([*(found[text_of(name)] for name in names), -1], dtype=np.int64)[numbers]


def _class_number(text: str, place: dict[str, int]) -> int | None:
    """Return the number of the class that a label names, as it stands or loosely; −1 for "NA" and similar, None if unknown."""
    number = text_of(float(text)) if NUMBER.fullmatch(text.strip()) and "," not in text else text  # "1.0" is the class 1
    exact = [place[form] for form in (text, text.rstrip(), number) if form in place]
    alike = [each for label, each in place.items() if label.casefold() == text.casefold()]
    return exact[0] if exact else alike[0] if len(alike) == 1 else -1 if text in MISSING else None


def matching_label(value: Any, classes: Sequence[Label], name: str) -> Label:
    """Return the class that a user means; "1" matches 1, and "true" matches True.

    Raises:
        ValueError: if there is no such class.
    """
    exact = [label for label in classes if type(label) is type(value) and label == value]
    alike = [label for label in classes if str(label) == str(value)]
    loose = [label for label in classes if str(label).strip().casefold() == str(value).strip().casefold()]
    for found in (exact, alike, loose):
        if len(found) == 1:
            return found[0]
    raise ValueError(
        f"Expected `{name}` to name one of the classes {classes[:MOST_CLASSES]}, but got {value!r}: "
        "write it as it stands in the table; a class without rows cannot be learned."
    )
