"""Scores of any model in a file: risks, p_… columns of `rightloss predict`, of several models or findings.

Stage: path, names of columns, scale → `ScoreFile` → log-probabilities, chunk by chunk, at other class frequencies, and back on
the scale of the file.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import logsumexp

from ..arrays import checked_choice
from ..finding_tables import log_complement
from ..predictive import retarget
from ..prevalence import Prevalence
from ..prevalence.multilabel import by_finding
from ..sklearn.population import likely_positive
from ..tabular import TableStream
from ..tabular.columns import as_numbers, matching_label, population_of
from .tables import PREDICTED, Each, as_predicted, kept_columns, open_predictions, probability_columns

Scale = Literal["probability", "logit", "log-probability"]
SCALES = ("probability", "logit", "log-probability")
_OFF = 1e-3  # tolerance for the sum of a row of rounded probabilities
_ROUNDED = 1e-6  # a probability may be above 1 by this


class Asked(NamedTuple):
    """The options that say what to read, as they are typed; `target` has several names for several findings."""

    target: Sequence[str] = ()
    positive: str | None = None
    population: str | None = None
    score: Sequence[str] = ()
    scale: str = "probability"
    from_: str | None = None
    group: str | None = None
    by: Sequence[str] = ()
    encoding: str | None = None


@dataclass(frozen=True, eq=False)
class ScoreFile:
    """A file, or a folder of parts, with columns of scores.

    Attributes:
        path: of the file.
        table: the same, open.
        names: the names of its columns as they stand there, by those without the apostrophe of a formula.
        columns: of the scores.
        classes: the classes that these are of; None if each column is the risk of one thing.
        scale: of the scores.
    """

    path: Path
    table: TableStream
    names: Mapping[str, str]
    columns: Sequence[str]
    classes: Sequence[str] | None
    scale: Scale

    @classmethod
    def open(cls, path: Path, asked: Asked, each: Each, others_as_text: bool = False) -> ScoreFile:
        """Open a file and find its columns of scores: those named, p_… of each of several targets, or p_… of each class.

        Without named ones, the columns of labels are read as text, as are the names p_….

        Args:
            path: of the file, or of a folder of parts.
            asked: what to read.
            each: of `engine_of`.
            others_as_text: whether all other columns of a text file are read as they stand.

        Raises:
            ValueError: there are none, or a named one is missing.
        """
        scores, targets = asked.score, asked.target
        checked_choice(asked.scale, "scale", SCALES)

        def is_text(name: str) -> bool:
            if others_as_text:
                return name not in scores if scores else not name.startswith("p_")
            return not scores and [name] == list(targets)

        table, names = open_predictions(path, is_text, asked.encoding, each)
        named = list(dict.fromkeys(scores)) or [f"p_{name}" for name in targets if len(targets) > 1]
        columns = named or probability_columns(list(names))
        if not named and len(columns) < 2:
            raise ValueError(
                f"Expected the name of a column of scores by --score, or a column p_… per class in {path}, but got "
                f"{len(columns)} of these: the columns are {list(names)[:30]}."
            )
        require_columns(path, names, {"--score": columns, "--target": targets})
        classes = None if named else [name.removeprefix("p_") for name in columns]
        return cls(path, table, names, columns, classes, asked.scale)  # type: ignore[arg-type]

    def plain(self, frame: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
        """Return some columns of a chunk, without apostrophes before formulas."""
        return as_predicted(frame, {name: self.names[name] for name in columns}, self.table.is_parquet)

    def log_probs(self, frame: pd.DataFrame, start: int) -> np.ndarray:
        """Return the log-probabilities of a chunk whose first row has this number: of the classes, or each of its own thing.

        Raises:
            ValueError: a score is missing or not on the scale.
        """
        values = np.column_stack([self._numbers(frame[self.names[name]], start) for name in self.columns])
        with np.errstate(divide="ignore"):
            if self.classes is None:
                return -np.logaddexp(0, -values) if self.scale == "logit" else np.minimum(self._logs(values), 0.0)
            table = self._logs(values)
            sums = logsumexp(table, axis=1, keepdims=True)
        bad = np.flatnonzero(~np.isfinite(sums[:, 0]) | ((abs(np.expm1(sums[:, 0])) > _OFF) & (self.scale != "logit")))
        if len(bad):
            raise ValueError(
                f"Expected columns {list(self.columns)[:10]} of {self.path} to have the probabilities of all classes, but in "
                f"row {start + bad[0] + 1:,} they sum to {np.exp(sums[bad[0], 0]):.4g}: name other columns by --score, or the "
                "scores' scale by --scale."
            )
        return np.asarray(table - sums)

    def scores(self, log_probs: np.ndarray) -> np.ndarray:
        """Return log-probabilities on the scale of the file; those of classes are logits, too."""
        if self.scale == "probability":
            return np.exp(log_probs)
        return np.asarray(log_probs - log_complement(log_probs)) if self.scale == "logit" and not self.classes else log_probs

    def warn_of(self, log_probs: np.ndarray) -> None:
        """Warn of scores that say nothing, or that nothing can move."""
        for name, values in zip(self.columns, log_probs.T, strict=True):
            if len(values) > 1 and (values == values[0]).all():
                warnings.warn(f"column {name!r} has the same score in all rows: it says nothing about them", stacklevel=3)
        self.warn_of_certain(certain(log_probs))

    def warn_of_certain(self, counts: np.ndarray) -> None:
        """Warn of as many scores of exactly 0 or 1 in each column."""
        for name, count in zip(self.columns, counts.tolist(), strict=True):
            if count:
                warnings.warn(
                    f"column {name!r}: {count:,.0f} scores are exactly 0 or 1. They are taken as they stand: no population "
                    "changes them, and a wrong one makes the log-likelihood −∞. If they were rounded, write more digits.",
                    stacklevel=3,
                )

    def _logs(self, values: np.ndarray) -> np.ndarray:
        return np.log(values) if self.scale == "probability" else values

    def _numbers(self, series: pd.Series, start: int) -> np.ndarray:
        """Return a chunk's scores, each checked to be on the scale."""
        values, text = as_numbers(series, infinite=True)
        where = f"column {series.name!r} of {self.path}"
        bad = np.flatnonzero(np.isnan(values))
        if len(bad):
            cell = series.iloc[bad[0]]
            what = f"{cell!r}" if text and isinstance(cell, str) else "none"
            raise ValueError(
                f"Expected a score in every row of {where}, but row {start + bad[0] + 1:,} has {what} (and {len(bad) - 1:,} "
                "more): leave such rows out, and say so, or name another column by --score."
            )
        ends = {"probability": (0.0, 1 + _ROUNDED), "logit": (-np.inf, np.inf), "log-probability": (-np.inf, _ROUNDED)}
        low, high = ends[self.scale]
        bad = np.flatnonzero((values < low) | (values > high))
        if len(bad):
            what = "probabilities from 0 to 1" if high > 1 else "log-probabilities, at most 0,"
            others = " or ".join(f"--scale {each}" for each in SCALES if each != self.scale)
            raise ValueError(
                f"Expected {what} in {where}, but row {start + bad[0] + 1:,} has {values[bad[0]]:.6g}: if the scores are on "
                f"another scale, add {others}; divide percentages by 100."
            )
        return values


def require_columns(path: Path, known: Mapping[str, Any] | Sequence[str], wanted: Mapping[str, Sequence[str]]) -> None:
    """Raise a ValueError if a table lacks columns; they are given by the option that names them."""
    for option, names in wanted.items():
        missing = [name for name in names if name not in known]
        if missing:
            raise ValueError(f"Expected a column {missing[0]!r} in {path}, but got {list(known)[:30]}: name it by {option}.")


def certain(log_probs: np.ndarray) -> np.ndarray:
    """Return how many probabilities of each column are exactly 0 or 1."""
    return np.asarray((np.isneginf(log_probs) | (log_probs == 0)).sum(0))


def two_classes(log_p: np.ndarray) -> np.ndarray:
    """Return the log-probabilities of both classes `(n, 2)` from that of the positive one `(n,)`."""
    return np.stack([log_complement(log_p), log_p], 1)


def mix_of(classes: Sequence[Any], mix: Any, option: str = "population") -> Prevalence:
    """Return frequencies of classes, the positive one last, as they are typed for an option, as a `Prevalence`."""
    return population_of(mix, list(classes), np.full(len(classes), 1 / len(classes)), option)


def positive_last(file: ScoreFile, positive: str | None) -> ScoreFile:
    """Return a file of two classes with the positive one last."""
    classes: list[Any] = list(file.classes or ())
    second = likely_positive(classes) if positive is None else matching_label(positive, classes, "positive")
    if len(classes) != 2:
        return file
    require_positive(second, classes)
    last = sorted(range(2), key=lambda number: classes[number] == second)
    return replace(file, columns=[file.columns[number] for number in last], classes=[classes[number] for number in last])


def rates_of(names: Sequence[str], mix: Any, option: str) -> list[Any]:
    """Return the rate of each finding, or column of scores, from one for all or rates by name."""
    return by_finding(mix if isinstance(mix, Mapping) else dict.fromkeys(names, mix), option, names)


def moved_columns(file: ScoreFile, end: Any, keep: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the columns of the moved scores, and those of the file that are kept."""
    if file.classes is None:
        rates = [float(rate.population[1]) if isinstance(rate, Prevalence) else rate for rate in end]
        new = [f"{name}_at_{rate:.4g}" for name, rate in zip(file.columns, rates, strict=True)]
        return new, kept_columns(list(file.names), keep, new)
    own = [name for name in file.names if name in (*file.columns, PREDICTED)]
    limits = {f"{side}_{label}" for label in file.classes for side in ("low", "high")}
    stale = [name for name in file.names if name in limits] if limits <= {*file.names} else []
    if stale:
        warnings.warn(f"columns {stale} are limits at the other population: they are left out", stacklevel=1)
    others = kept_columns([name for name in file.names if name not in stale], keep, [])
    return list(file.columns), [*(name for name in others if name not in own), *own] if keep else others


def moved(file: ScoreFile, log_probs: np.ndarray, start: Any, end: Any) -> np.ndarray:
    """Return the log-probabilities of a chunk at other class frequencies."""
    if not len(log_probs):
        return log_probs
    if file.classes is not None:
        return np.asarray(retarget(log_probs, start, end))
    columns = zip(log_probs.T, start, end, strict=True)
    return np.stack([retarget(two_classes(log_p), at, to)[:, 1] for log_p, at, to in columns], 1)


def with_scores(file: ScoreFile, frame: pd.DataFrame, new: Sequence[str], log_probs: np.ndarray) -> pd.DataFrame:
    """Return columns of a chunk with these scores, and the more probable class in place of that in the file."""
    added = dict(zip(new, file.scores(log_probs).T, strict=True))
    if file.classes is not None and PREDICTED in frame:
        added[PREDICTED] = np.array(file.classes, dtype=object)[log_probs.argmax(1)]
    return frame.assign(**added)


def sums_of(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return, by column, the sums of the risks before and after, and how many of them are exactly 0 or 1."""
    return np.stack([np.exp(before).sum(0), np.exp(after).sum(0), certain(before)])


def require_positive(positive: Any, classes: Sequence[Any]) -> None:
    """Raise a ValueError if it is not known which of two classes is the positive one."""
    if positive is None:
        first, second = classes
        raise ValueError(
            f"Expected the class that scores and --population are of, as the labels do not tell, but got {first!r} and "
            f"{second!r}: add --positive {first} or --positive {second}."
        )
