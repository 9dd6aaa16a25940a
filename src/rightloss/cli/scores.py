"""Scores of any model in a file (risks, p_… columns of `rightloss predict`, models, findings), and labelled predictions.

Stage: path, names of columns, scale → `ScoreFile` → log-probabilities, chunk by chunk, and back on the scale of the file; with
labels, or of a model for a labelled table → `Labelled`: what `metrics.evaluate` and `metrics.card` take.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from .population import parse_mix, parse_population, parse_rates
from .tables import Each, as_predicted, open_for, open_predictions, over_chunks, probability_columns, stacked, used

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

    from ..tabular.columns import population_of

    return population_of(mix, list(classes), np.full(len(classes), 1 / len(classes)), option)


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


class Labelled(NamedTuple):
    """Labelled predictions.

    Attributes:
        predictions: log-probabilities `(n, k)`; several models' by name; or of findings, that each is present `(n, L)`.
        target: class numbers `(n,)`; of findings 0, 1, or NaN where it was not read `(n, L)`.
        prevalence: π, with its uncertainty; of findings by name.
        from_: the mix at which the predictions hold; None for π.
        classes: the labels, of two the positive one last; or the findings.
        groups: the number of each row's group; None without a group column.
        by: the subgroup of each row, by column.
    """

    predictions: Any
    target: np.ndarray
    prevalence: Any
    from_: Any
    classes: Sequence[Any]
    groups: np.ndarray | None
    by: dict[str, np.ndarray]

    def each(self) -> Iterator[tuple[str, Labelled]]:
        """Yield each model or finding by itself, with its name, at π; "" if there is just one."""
        import numpy as np

        from ..predictive import retarget

        if self.target.ndim == 1:
            models = self.predictions if isinstance(self.predictions, Mapping) else {"": self.predictions}
            for name, table in models.items():
                moved = table if self.from_ is None else retarget(table, self.from_, self.prevalence)
                yield name, self._replace(predictions=moved)
            return
        for number, name in enumerate(self.classes):
            read = ~np.isnan(self.target[:, number])
            one = self._replace(
                predictions=two_classes(self.predictions[read, number]),
                target=self.target[read, number].astype(np.int64),
                prevalence=self.prevalence[name],
                from_=None if self.from_ is None else self.from_[name],
                classes=("absent", "present"),
                groups=None if self.groups is None else self.groups[read],
            )
            yield name, next(one.each())[1]


def is_model(path: Path) -> bool:
    """Return whether a path is the folder of a model."""
    return (path / "model.json").is_file()


def labelled_by_model(folder: Path, data: Path, asked: Asked, each: Each) -> Labelled:
    """Predict a labelled table at the population."""
    from ..tabular import load_model
    from ..tabular.columns import class_numbers

    if asked.score or asked.from_ is not None or len(asked.target) > 1:
        raise ValueError("Expected no --score, no --from and one --target with a model: it predicts at --population itself.")
    mix = None if asked.population is None else parse_population(asked.population)
    model = load_model(folder)
    target = asked.target[0] if asked.target else model.target
    table = open_for(model, data, asked.encoding, each)
    names = _cell_columns(data, table.columns, [target], asked)

    def rows(frame: pd.DataFrame, start: int) -> Any:
        return model.predict_log_proba(frame, mix, warn=False), _cells(frame[names])

    chunks = over_chunks(each, table, {*names, *(spec.name for spec in used(model))}, rows, used(model))
    log_probs, cells = _collected(chunks, table.rows, names)
    codes = class_numbers(cells[target], model.classes_)
    prevalence = model.population if mix is None else model.prevalence_of(mix)
    columns = _groups_and_subgroups(cells, asked)
    return _with_labels(Labelled(log_probs, codes, prevalence, None, model.classes_, *columns), target)


def labelled_scores(path: Path, asked: Asked, each: Each = map) -> Labelled:
    """Read the scores and labels of a file: of classes, of a class by one model or several, or of findings."""
    if is_model(path):
        raise ValueError("Expected a labelled table after the model's folder, but got none: name it, or a file of scores.")
    if not asked.target or asked.population is None:
        raise ValueError("Expected --target and --population with a file of scores, but got none: add them.")
    findings = len(asked.target) > 1
    population = parse_rates(asked.population) if findings else parse_population(asked.population)
    from_ = None if asked.from_ is None else parse_mix(asked.from_, rates=findings)
    file = ScoreFile.open(path, asked.score, asked.target, asked.scale, asked.encoding, each)
    if findings and len(file.columns) != len(asked.target):
        raise ValueError(
            f"Expected a --score for each of the {len(asked.target)} findings, --target, but got {len(file.columns)}: name "
            "them in the same order. Several models of one condition have one --target."
        )
    if file.classes is not None:
        file = positive_last(file, asked.positive)
    names = _cell_columns(path, list(file.names), asked.target, asked)

    def rows(frame: pd.DataFrame, start: int) -> Any:
        return file.log_probs(frame, start), _cells(file.plain(frame, names))

    columns = [file.names[name] for name in [*file.columns, *names]]
    log_probs, cells = _collected(over_chunks(each, file.table, columns, rows), file.table.rows, names)
    file.warn_of(log_probs)
    found = _of_findings if findings else _of_classes
    return found(file, log_probs, cells, population, from_, asked)


def _of_classes(
    file: ScoreFile, log_probs: np.ndarray, cells: pd.DataFrame, population: Any, from_: Any, asked: Asked
) -> Labelled:
    """Return labelled predictions of classes; without columns of classes, of those in the target column."""
    from ..tabular.columns import class_numbers

    (target,) = asked.target
    predictions: Any = log_probs
    classes: Sequence[Any]
    if file.classes is None:
        classes, codes = _two_classes(cells[target], file, asked.positive)
        tables = dict(zip(file.columns, map(two_classes, log_probs.T), strict=True))
        predictions = tables if len(tables) > 1 else tables[file.columns[0]]
    else:
        classes, codes = file.classes, class_numbers(cells[target], list(file.classes))
    start = None if from_ is None else mix_of(classes, from_, "from_").population
    at, columns = mix_of(classes, population), _groups_and_subgroups(cells, asked)
    return _with_labels(Labelled(predictions, codes, at, start, classes, *columns), target)


def _of_findings(
    file: ScoreFile, log_probs: np.ndarray, cells: pd.DataFrame, population: Any, from_: Any, asked: Asked
) -> Labelled:
    import numpy as np

    from ..prevalence import Prevalence
    from ..prevalence.multilabel import by_finding

    names = list(asked.target)

    def by_name(rates: Any, option: str) -> dict[str, Any]:
        given = rates if isinstance(rates, Mapping) else dict.fromkeys(names, rates)
        return dict(zip(names, by_finding(given, option, names), strict=True))

    codes = np.stack([_two_classes(cells[name], file, asked.positive)[1] for name in names], 1)
    target = np.where(codes < 0, np.nan, codes)
    prevalence = Prevalence.multilabel(by_name(population, "population"))
    start = None if from_ is None else by_name(from_, "from_")
    return Labelled(log_probs, target, prevalence, start, names, *_groups_and_subgroups(cells, asked))


def _with_labels(found: Labelled, target: str) -> Labelled:
    """Return the rows that have a label; warn of others."""
    has = found.target >= 0
    if not has.any():
        raise ValueError(f"Expected labels in column {target!r}, but all are missing: `rightloss predict` needs none.")
    if has.all():
        return found
    warnings.warn(f"column {target!r}: {int((~has).sum()):,} rows have no label and are left out", UserWarning, stacklevel=2)
    tables = found.predictions
    return found._replace(
        predictions={name: each[has] for name, each in tables.items()} if isinstance(tables, Mapping) else tables[has],
        target=found.target[has],
        groups=None if found.groups is None else found.groups[has],
        by={name: each[has] for name, each in found.by.items()},
    )


def _cell_columns(path: Path, known: Sequence[str], targets: Sequence[str], asked: Asked) -> list[str]:
    """Return the columns of labels, groups and subgroups, which the table must have."""
    group = [] if asked.group is None else [asked.group]
    require_columns(path, known, {"--target": targets, "--group": group, "--by": asked.by})
    return list(dict.fromkeys([*targets, *group, *asked.by]))


def _cells(frame: pd.DataFrame) -> dict[str, pd.Categorical]:
    """Return columns of a chunk with a number in place of each cell, so that all chunks together take little memory."""
    import pandas as pd

    from ..tabular.columns import hashable

    found = {name: pd.factorize(hashable(frame[name]).astype(object)) for name in frame}
    return {name: pd.Categorical.from_codes(codes, pd.Index(cells, dtype=object)) for name, (codes, cells) in found.items()}


def _collected(chunks: Iterable[Any], rows: int, names: Sequence[str]) -> tuple[np.ndarray, pd.DataFrame]:
    """Return the predictions of all chunks, and the cells of the other columns."""
    import pandas as pd

    parts: dict[str, list[pd.Categorical]] = {name: [] for name in names}

    def tables() -> Iterator[np.ndarray]:
        for table, cells in chunks:
            for name in names:
                parts[name].append(cells[name])
            yield table

    log_probs = stacked(tables(), rows)
    return log_probs, pd.DataFrame({name: pd.api.types.union_categoricals(each) for name, each in parts.items()})


def _groups_and_subgroups(cells: pd.DataFrame, asked: Asked) -> tuple[np.ndarray | None, dict[str, np.ndarray]]:
    """Return the number of each row's group, one of its own without a cell, and the subgroups: text, or numbers."""
    import numpy as np

    from ..tabular.columns import group_numbers, text_of

    by = {}
    for name in asked.by:
        kinds, codes = list(cells[name].cat.categories), cells[name].cat.codes
        if all(isinstance(each, int | float) and not isinstance(each, bool) for each in kinds):
            by[name] = np.array([*kinds, np.nan], dtype=np.float64)[codes]
        else:
            by[name] = np.array([*map(text_of, kinds), "missing"], dtype=object)[codes]
    return None if asked.group is None else group_numbers(cells[asked.group])[0], by


def positive_last(file: ScoreFile, positive: str | None) -> ScoreFile:
    """Return a file of two classes with the positive one last."""
    from ..sklearn.population import likely_positive
    from ..tabular.columns import matching_label

    classes: list[Any] = list(file.classes or ())
    second = likely_positive(classes) if positive is None else matching_label(positive, classes, "positive")
    if len(classes) != 2:
        return file
    _require_positive(second, classes)
    last = sorted(range(2), key=lambda number: classes[number] == second)
    return replace(file, columns=[file.columns[number] for number in last], classes=[classes[number] for number in last])


def _two_classes(series: pd.Series, file: ScoreFile, positive: str | None) -> tuple[list[Any], np.ndarray]:
    """Return the two classes of a target column, the positive one last, and the class number of each row."""
    from ..tabular.columns import labels_of

    labels = labels_of(series, positive)
    if len(labels.classes) != 2:
        shown = ", ".join(map(repr, labels.classes[:10])) or "no label"
        raise ValueError(
            f"Expected two classes in column {series.name!r} of {file.path}, but got {len(labels.classes)}: {shown}. Figures "
            "need rows of both; for more than two classes name the columns of their probabilities p_…, after the classes."
        )
    _require_positive(None if labels.guessed else labels.positive, labels.classes)
    return list(labels.classes), labels.codes


def _require_positive(positive: Any, classes: Sequence[Any]) -> None:
    if positive is None:
        first, second = classes
        raise ValueError(
            f"Expected the class that scores and --population are of, as the labels do not tell, but got {first!r} and "
            f"{second!r}: add --positive {first} or --positive {second}."
        )
