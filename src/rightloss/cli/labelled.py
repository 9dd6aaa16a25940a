"""Labelled predictions of a file of scores, of a table's model, or of a study, for `card` and `evaluate`.

Stage: a source, the options that say what to read → `Labelled`: what `metrics.evaluate` and `metrics.card` take.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from ..predictive import retarget
from ..prevalence import Prevalence
from ..tabular import TableModel, load_model
from ..tabular.columns import class_numbers, group_numbers, hashable, labels_of, text_of
from .population import parse_mix, parse_population, parse_rates, population_text
from .scores import Asked, ScoreFile, mix_of, positive_last, rates_of, require_columns, require_positive, two_classes
from .tables import Each, open_for, over_chunks, stacked

if TYPE_CHECKING:
    from ..study.results import Cell

_YES = {"1", "1.0", "yes", "y", "true", "t", "positive", "pos", "+", "case"}  # a class that its column names


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
    if asked.score or asked.from_ is not None or len(asked.target) > 1:
        raise ValueError("Expected no --score, no --from and one --target with a model: it predicts at --population itself.")
    mix = None if asked.population is None else parse_population(asked.population)
    model = load_model(folder)
    target = asked.target[0] if asked.target else model.target
    table = open_for(model, data, asked.encoding, each)
    names = _cell_columns(data, table.columns, [target], asked)

    def rows(frame: pd.DataFrame, start: int) -> Any:
        return model.predict_log_proba(frame, mix, warn=False), _cells(frame[names])

    log_probs, cells = _collected(over_chunks(each, table, names, rows, model), table.rows, names)
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
    file = ScoreFile.open(path, asked, each)
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
    names = list(asked.target)
    codes = np.stack([_two_classes(cells[name], file, asked.positive)[1] for name in names], 1)
    target = np.where(codes < 0, np.nan, codes)
    prevalence = Prevalence.multilabel(dict(zip(names, rates_of(names, population, "population"), strict=True)))
    start = None if from_ is None else dict(zip(names, rates_of(names, from_, "from_"), strict=True))
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
    found = {name: pd.factorize(hashable(frame[name]).astype(object)) for name in frame}
    return {name: pd.Categorical.from_codes(codes, pd.Index(cells, dtype=object)) for name, (codes, cells) in found.items()}


def _collected(chunks: Iterable[Any], rows: int, names: Sequence[str]) -> tuple[np.ndarray, pd.DataFrame]:
    """Return the predictions of all chunks, and the cells of the other columns."""
    parts: list[dict[str, pd.Categorical]] = []

    def tables() -> Iterator[np.ndarray]:
        for table, cells in chunks:
            parts.append(cells)
            yield table

    log_probs, union = stacked(tables(), rows), pd.api.types.union_categoricals
    return log_probs, pd.DataFrame({name: union([each[name] for each in parts]) for name in names})


def _groups_and_subgroups(cells: pd.DataFrame, asked: Asked) -> tuple[np.ndarray | None, dict[str, np.ndarray]]:
    """Return the number of each row's group, one of its own without a cell, and the subgroups: text, or numbers."""
    by = {}
    for name in asked.by:
        kinds, codes = list(cells[name].cat.categories), cells[name].cat.codes
        if all(isinstance(each, int | float) and not isinstance(each, bool) for each in kinds):
            by[name] = np.array([*kinds, np.nan], dtype=np.float64)[codes]
        else:
            by[name] = np.array([*map(text_of, kinds), "missing"], dtype=object)[codes]
    return None if asked.group is None else group_numbers(cells[asked.group])[0], by


def _two_classes(series: pd.Series, file: ScoreFile, positive: str | None) -> tuple[list[Any], np.ndarray]:
    """Return the two classes of a target column, the positive one last, and the class number of each row."""
    labels = labels_of(series, positive)
    if len(labels.classes) != 2:
        shown = ", ".join(map(repr, labels.classes[:10])) or "no label"
        raise ValueError(
            f"Expected two classes in column {series.name!r} of {file.path}, but got {len(labels.classes)}: {shown}. Figures "
            "need rows of both; for more than two classes name the columns of their probabilities p_…, after the classes."
        )
    require_positive(None if labels.guessed else labels.positive, labels.classes)
    return list(labels.classes), labels.codes


def labelled_predictions(source: Path, data: Path | None, asked: Asked, cell: list[str]) -> tuple[Labelled, dict[str, Any]]:
    """Return labelled predictions of a source of any kind, and words about them."""
    is_study = (source / "study.json").is_file() or source.suffix == ".npz"
    if cell and not is_study:
        raise ValueError(f"Expected the folder of a study with --cell, but got {source}: leave it out.")
    if data is not None and not is_model(source):
        raise ValueError(f"Expected the folder of a model before a labelled table, but got {source}: name one file of scores.")
    if is_study:
        return _of_study(source, asked, cell)
    if is_model(source):
        return _of_model(source, data, asked)
    read = labelled_scores(source, asked)
    names = list(read.predictions) if isinstance(read.predictions, Mapping) else asked.score
    condition = _condition(read, asked.target[0]) if len(asked.target) == 1 else None
    return read, {"model": ", ".join(names) or None, "data": str(source), "target": condition, "sampling": _mix(read)}


def _mix(labelled: Labelled) -> str | None:
    """Return the mix at which the scores hold, if it is known; of findings it is beside their rates."""
    positive = labelled.classes[-1] if len(labelled.classes) == 2 else None
    known = labelled.from_ is not None and labelled.target.ndim == 1
    return population_text(labelled.from_.tolist(), labelled.classes, positive) if known else None


def _condition(labelled: Labelled, target: str) -> str | None:
    """Return the name of what people have: the positive of two classes, or its column if it is called "yes" or the like."""
    if len(labelled.classes) != 2:
        return None
    label = str(labelled.classes[1])
    return target if label.casefold() in _YES else label


def _of_model(folder: Path, data: Path | None, asked: Asked) -> tuple[Labelled, dict[str, Any]]:
    """Return a model's predictions of a labelled table, or those of its held-out rows."""
    model = load_model(folder)
    read = _held_out(folder, model, asked) if data is None else labelled_by_model(folder, data, asked, map)
    kind = None if model.correction is None else f"held-out calibration ({model.correction.kind}), then Bayes' rule from ρ to π"
    words = {"model": str(folder), "data": "held-out rows of the training table" if data is None else str(data), "undone": kind}
    words |= {
        "target": _condition(read, model.target),
        "sampling": population_text(model.sampling.tolist(), model.classes_, model.positive),
    }
    return read, words


def _held_out(folder: Path, model: TableModel, asked: Asked) -> Labelled:
    if asked.by or asked.target or asked.score or asked.group or asked.from_ is not None:
        raise ValueError(f"Expected a labelled table after {folder} with --by, --target, --score, --group or --from: name it.")
    held_out, at = model.held_out, model.population
    prevalence = at if asked.population is None else model.prevalence_of(parse_population(asked.population))
    start = None if prevalence is at else at.population
    return Labelled(held_out.log_probs, held_out.target, prevalence, start, model.classes_, held_out.groups, {})


def _of_study(folder: Path, asked: Asked, cell: list[str]) -> tuple[Labelled, dict[str, Any]]:
    """Return stored predictions of a study: of one cell, or of several on the same rows."""
    from ..study import read_one_file, read_study
    from ..study.results import cells

    if asked.by or asked.target or asked.score or asked.group or asked.from_ is not None:
        raise ValueError(f"Expected no columns with the study {folder}, but got some: its labels and patients are its own.")
    found = _chosen(cells((read_one_file if folder.is_file() else read_study)(folder)), cell)
    first = next(iter(found.values()))
    if any(not np.array_equal(each.rows, first.rows) for each in found.values()):
        raise ValueError("Expected cells with the same tested nodules, but they differ: choose others by --cell.")
    classes = ["benign", "malignant"] if len(first.population) == 2 else [f"rating {number + 1}" for number in range(5)]
    at = Prevalence(first.population)
    prevalence, start = at, None
    if asked.population is not None:
        prevalence, start = mix_of(classes, parse_population(asked.population)), at.population
    tables = {name: each.log_probs for name, each in found.items()} if len(found) > 1 else first.log_probs
    words = {"model": ", ".join(found), "data": f"{folder}, {first.key.data}, tested by cross-validation"}
    return Labelled(
        tables, first.labels, prevalence, start, classes, np.unique(first.patients, return_inverse=True)[1], {}
    ), words


def _chosen(cells: list[Cell], asked: list[str]) -> dict[str, Cell]:
    """Return the cells that are chosen by KEY=VALUE; of other keys the default loss, or the first value in the study."""
    wanted: dict[str, list[str]] = {}
    for text in asked:
        key, _, value = text.partition("=")
        wanted.setdefault(key.strip(), []).append(value.strip())
    keys = cells[0].key._fields if cells else ()
    if not {*wanted} <= {*keys}:
        raise ValueError(
            f"Expected --cell with one of {', '.join(keys)}, but got {', '.join(wanted)}: write loss=weighted, say."
        )
    for key in keys:
        values = list(dict.fromkeys(str(getattr(each.key, key)) for each in cells))
        choice = wanted.get(key) or ["information-gain" if "information-gain" in values else values[0]]
        if not {*choice} <= {*values}:
            raise ValueError(
                f"Expected --cell {key}=… of {', '.join(values)}, but got {', '.join(choice)}: choose one of these."
            )
        cells = [each for each in cells if str(getattr(each.key, key)) in choice]
    several = [key for key in keys if len({getattr(each.key, key) for each in cells}) > 1] or ["loss"]
    return {", ".join(str(getattr(each.key, key)) for key in several): each for each in cells}
