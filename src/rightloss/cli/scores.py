"""Scores of any model in a file: risks, p_… columns of `rightloss predict`, several models or findings.

Stage: path, names of columns, scale → `ScoreFile` → log-probabilities, chunk by chunk, and back on the scale of the file.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .parts import Each
from .predictions_file import as_predicted, open_predictions, probability_columns

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from ..prevalence import Prevalence
    from ..tabular import TableStream

Scale = Literal["probability", "logit", "log-probability"]
SCALES = ("probability", "logit", "log-probability")
_OFF = 1e-3  # tolerance for the sum of a row of rounded probabilities
_ROUNDED = 1e-6  # a probability may be above 1 by this


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
    def open(
        cls,
        path: Path,
        scores: Sequence[str],
        targets: Sequence[str],
        scale: str,
        encoding: str | None,
        each: Each,
        others_as_text: bool = False,
    ) -> ScoreFile:
        """Open a file and find its columns of scores: those named, p_… of each of several targets, or p_… of each class.

        Args:
            path: of the file, or of a folder of parts.
            scores: the columns named.
            targets: the columns of labels; without `scores` they are read as text, as are the names p_….
            scale: of the scores.
            encoding: see `open_table`.
            each: of `engine_of`.
            others_as_text: whether all other columns of a text file are read as they stand.

        Raises:
            ValueError: there are none, or a named one is missing.
        """
        from ..arrays import checked_choice

        checked_choice(scale, "scale", SCALES)

        def is_text(name: str) -> bool:
            if others_as_text:
                return name not in scores if scores else not name.startswith("p_")
            return not scores and [name] == list(targets)

        table, names = open_predictions(path, is_text, encoding, each)
        named = list(dict.fromkeys(scores)) or [f"p_{name}" for name in targets if len(targets) > 1]
        columns = named or probability_columns(list(names))
        if not named and len(columns) < 2:
            raise ValueError(
                f"Expected the name of a column of scores by --score, or a column p_… per class in {path}, but got "
                f"{len(columns)} of these: the columns are {list(names)[:30]}."
            )
        require_columns(path, names, {"--score": columns, "--target": targets})
        classes = None if named else [name.removeprefix("p_") for name in columns]
        return cls(path, table, names, columns, classes, scale)  # type: ignore[arg-type]

    def plain(self, frame: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
        """Return some columns of a chunk, without apostrophes before formulas."""
        return as_predicted(frame, {name: self.names[name] for name in columns}, self.table.is_parquet)

    def log_probs(self, frame: pd.DataFrame, start: int) -> np.ndarray:
        """Return the log-probabilities of a chunk whose first row has this number: of the classes, or each of its own thing.

        Raises:
            ValueError: a score is missing or not on the scale.
        """
        import numpy as np
        from scipy.special import logsumexp

        values = np.column_stack([self._numbers(frame[self.names[name]], start) for name in self.columns])
        with np.errstate(divide="ignore"):
            if self.classes is None:
                return _risks(values, self.scale)
            table = np.log(values) if self.scale == "probability" else values
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
        import numpy as np

        from ..finding_tables import log_complement

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

    def _numbers(self, series: pd.Series, start: int) -> np.ndarray:
        """Return a chunk's scores, each checked to be on the scale."""
        import numpy as np

        from ..tabular.columns import as_numbers

        values, text = as_numbers(series, infinite=True)
        where = f"column {series.name!r} of {self.path}"
        bad = np.flatnonzero(np.isnan(values))
        if len(bad):
            cell = series.iloc[bad[0]]
            remedy = "leave such rows out, and say so, or name another column by --score"
            what = f"{cell!r}" if text and isinstance(cell, str) else "none"
            raise ValueError(
                f"Expected a score in every row of {where}, but row {start + bad[0] + 1:,} has {what} (and {len(bad) - 1:,} "
                f"more): {remedy}."
            )
        low = -np.inf if self.scale != "probability" else 0.0
        high = {"probability": 1 + _ROUNDED, "logit": np.inf, "log-probability": _ROUNDED}[self.scale]
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


def _risks(values: np.ndarray, scale: Scale) -> np.ndarray:
    """Return the log-probability of each score."""
    import numpy as np

    if scale == "logit":
        return np.asarray(-np.logaddexp(0, -values))
    return np.minimum(np.log(values) if scale == "probability" else values, 0.0)


def certain(log_probs: np.ndarray) -> np.ndarray:
    """Return how many probabilities of each column are exactly 0 or 1."""
    import numpy as np

    return np.asarray((np.isneginf(log_probs) | (log_probs == 0)).sum(0))


def two_classes(log_p: np.ndarray) -> np.ndarray:
    """Return the log-probabilities of both classes `(n, 2)` from that of the positive one `(n,)`."""
    import numpy as np

    from ..finding_tables import log_complement

    return np.stack([log_complement(log_p), log_p], 1)


def mix_of(classes: Sequence[Any], mix: Any, option: str = "population") -> Prevalence:
    """Return frequencies of classes, the positive one last, as they are typed for an option, as a `Prevalence`."""
    import numpy as np

    from ..tabular.labels import Labels, population_of

    labels = Labels(list(classes), np.empty(0, dtype=np.int64), classes[1] if len(classes) == 2 else None, False)
    return population_of(mix, labels, np.full(len(classes), 1 / len(classes)), option)
