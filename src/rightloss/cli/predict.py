"""`rightloss predict model new.csv --out predictions.csv`.

Stage: a model folder, a table → the table with a probability per class, at the model's population or at another.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from .errors import plain_errors, quiet_exit
from .parts import Each, chunks, engine_of, open_for, used, warn_of
from .population import parse_population, population_text, population_words
from .predictions_file import PREDICTED, FileFormat, check_output, in_order
from .table_options import Address, Data, Encoding, Engine, Json, ModelFolder, Overwrite, Population, Threshold, column_option
from .terminal import command_line, path_text, print_json, print_next, print_sentences, warnings_on_stderr

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from ..tabular import TableModel, TableStream
    from ..tabular.encode import OddCells
    from .population import Parsed

_KEEP = "A column of the table to keep with the predictions; all by default. Repeat the option for more."


def predict(
    model: ModelFolder,
    data: Data,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write: .csv, .csv.gz, .tsv or .parquet; by default CSV on standard output.", show_default=False
        ),
    ] = None,
    population: Population = None,
    threshold: Threshold = None,
    level: Annotated[
        float | None,
        typer.Option(help="Add limits of the probabilities, low_… and high_…, at this level: 0.95, say.", show_default=False),
    ] = None,
    keep: Annotated[list[str], column_option(_KEEP)] = [],  # noqa: B006 (typer's way to say "none given")
    encoding: Encoding = None,
    engine: Engine = "in-process",
    address: Address = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Predict a table's rows: a probability per class (p_yes, p_no), at the model's population or at another.

    The file has the table's columns, or those named by --keep, a column
    p_… per class, and the predicted class; if the table's last columns are
    called p_…, they follow. It is written whole or not at all. Text that a
    spreadsheet would run gets an apostrophe in front.
    Without --out it goes to standard output, and messages to standard error.

    The table is read and written by chunk, so it may be larger than the
    memory. A folder of parts (.csv or .parquet with the same columns) is one
    table, in the order of their names; with --engine ray several parts are
    predicted at a time, on this machine or on a cluster.

    \b
    With --level there are also columns low_… and high_… per class: limits of
    its probability. They say how far it could be off had the model learnt
    from other rows of the same kind (a jackknife by folds), and how uncertain
    the population is, if it is a survey's ('12 of 3000'), learnt, or the mix
    of the training rows. A population stated as one number is taken as known.

    \b
    At the population that the model was fitted for:
      rightloss predict model new.csv --out predictions.csv

    \b
    In a clinic where 1 in 50 has the disease, with the rows' numbers alone, flagged from a risk of 10 % on:
      rightloss predict model clinic.parquet --population 2% \\
        --keep patient --threshold 0.1 --out clinic.csv

    \b
    With 95 % limits, where a survey found the disease in 12 of 3,000, in a pipe:
      rightloss predict model new.csv --population "12 of 3000" \\
        --level 0.95 | head

    \b
    A folder of parts on a Ray cluster; data files are at the same path on each machine:
      rightloss predict model parts --out predictions.parquet \\
        --engine ray --address head:6379
    """
    with plain_errors():
        if out is not None:
            check_output(out, overwrite)
        elif json:
            raise ValueError("Expected --out with --json, but got none: predictions and JSON would mix on standard output.")
        mix = None if population is None else parse_population(population)
        with quiet_exit():
            from ..tabular import load_model
            from ..tabular.encode import odd_findings
        with warnings_on_stderr(), engine_of(engine, address) as each:
            fitted = load_model(model)
            check_threshold(threshold, len(fitted.classes_))
            table = open_for(fitted, data, encoding, each)
            kept = kept_columns(table.columns, keep, fitted, level is not None)
            job = Prediction(fitted, table, kept, mix, threshold, level)
            done = _write(job, each, out)
            warn_of(odd_findings(done.odd, table.rows, used(fitted)))
        for column, cells in done.changed.items():
            text = f"column {column!r}: {cells} cells begin like a formula and got an apostrophe in front"
            print(f"rightloss: warning: {text}", file=sys.stderr)
        following = ["prevalence", path_text(model), path_text(data)] if population is None and out is not None else []
        with redirect_stdout(sys.stderr) if out is None else nullcontext():
            _print_done(job, done, out, population, following, json)


class Predicted(NamedTuple):
    """Predicted rows of a table.

    Attributes:
        rows: their number.
        sums: of the probabilities (K,).
        changed: how many cells got an apostrophe, by column.
        odd: cells that did not occur in training, by chunk.
        content: what is written.
    """

    rows: int
    sums: np.ndarray
    changed: Counter[str]
    odd: list[OddCells]
    content: Any = None


class Prediction(NamedTuple):
    """The prediction of a table, part by part; see the options of `predict`."""

    model: TableModel
    table: TableStream
    kept: list[str]
    population: Parsed | None
    threshold: float | None
    level: float | None
    format: FileFormat | None = None

    def frame(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the kept columns of some rows with their predictions."""
        log_probs = self.model.predict_log_proba(frame, self.population, warn=False)
        limits = None if self.level is None else self.model.predict_limits(frame, self.population, self.level)
        return with_predictions(frame[self.kept], log_probs, self.model, self.threshold, limits)

    def rows(self, part: int) -> Iterator[Predicted]:
        """Yield the predicted rows of a part, chunk by chunk."""
        from ..tabular.encode import odd_cells

        assert self.format is not None
        for frame in self.table.frames([*self.kept, *(spec.name for spec in used(self.model))], part):
            predicted = self.frame(frame)
            sums = predicted[probability_names(self.model)].to_numpy().sum(0)
            content, changed = self.format.content(predicted)
            yield Predicted(len(frame), sums, changed, [odd_cells(frame, used(self.model))], content)


def _write(job: Prediction, each: Each, out: Path | None) -> Predicted:
    """Predict the table and write it, chunk by chunk; return the sums over all rows."""
    import numpy as np
    import pyarrow as pa

    names = [*job.kept, *(spec.name for spec in used(job.model) if spec.name not in job.kept)]
    types = job.table.arrow_types() | {PREDICTED: pa.array(plain_classes(job.model)).type}
    file = FileFormat.of(out, job.frame(job.table.empty(names)), types)
    done = Predicted(0, np.zeros(len(job.model.classes_)), file.changed_names(), [])
    with file.written(out) as write:
        for chunk in chunks(each, job._replace(format=file).rows, job.table):
            write(chunk.content)
            both = zip(done[:4], chunk[:4], strict=True)
            done = Predicted(*(first + second for first, second in both))
    return done


def check_threshold(threshold: float | None, num_classes: int) -> None:
    """Raise ValueError for a threshold that decides nothing."""
    if threshold is None:
        return
    if num_classes != 2:
        raise ValueError(f"Expected --threshold with two classes, but the model has {num_classes}: leave it out.")
    if not 0 < threshold < 1:
        raise ValueError(f"Expected a threshold between 0 and 1, but got {threshold}: 0.1, say.")


def kept_columns(columns: Sequence[str], keep: list[str], model: TableModel, with_limits: bool = False) -> list[str]:
    """Return the columns to keep: those named, or all; raise ValueError if one has the name of a new column."""
    missing = [name for name in keep if name not in columns]
    if missing:
        raise ValueError(f"Expected columns of the table with --keep, but got {missing}: write them as they stand there.")
    kept = list(dict.fromkeys(keep)) or list(columns)
    limits = [name for pair in limit_names(model) for name in pair] if with_limits else []
    taken = sorted({*probability_names(model), *limits, PREDICTED} & set(kept))
    if taken:
        raise ValueError(f"Expected a table without columns named {taken}, but it has them: choose others with --keep.")
    return kept


def probability_names(model: TableModel) -> list[str]:
    """Return the name of each class's column of probabilities, as `read_table` reads it."""
    return [f"p_{label}".strip() for label in model.classes_]


def limit_names(model: TableModel) -> list[tuple[str, str]]:
    """Return the names of each class's columns of limits."""
    return [(f"low_{label}", f"high_{label}") for label in model.classes_]


def plain_classes(model: TableModel) -> list[Any]:
    """Return the classes for a column of a file: as text if they are of several types."""
    alike = len({type(label) for label in model.classes_}) == 1
    return list(model.classes_) if alike else [str(label) for label in model.classes_]


def with_predictions(
    frame: pd.DataFrame,
    log_probs: np.ndarray,
    model: TableModel,
    threshold: float | None,
    limits: tuple[np.ndarray, np.ndarray] | None = None,
) -> pd.DataFrame:
    """Return the columns with a probability per class, its limits, and the predicted class."""
    import numpy as np

    probabilities = np.exp(log_probs)
    best = probabilities.argmax(1) if threshold is None else (probabilities[:, 1] >= threshold).astype(int)
    classes = np.array(plain_classes(model), dtype=object)
    names = probability_names(model)
    added = {name: probabilities[:, k] for k, name in enumerate(names)} | {PREDICTED: classes[best]}
    ends: list[str] = []
    if limits is not None:
        for k, pair in enumerate(limit_names(model)):
            added |= {name: side[:, k] for name, side in zip(pair, limits, strict=True)}
            ends += pair
    return frame.assign(**added)[in_order(list(frame.columns), names, ends)]


def _print_done(
    job: Prediction, done: Predicted, out: Path | None, population: str | None, following: list[str], json: bool
) -> None:
    model, level = job.model, job.level
    means = dict(zip(probability_names(model), (done.sums / done.rows).tolist(), strict=True))
    shares = model.population.population.tolist()
    covers = None if level is None else model.limits_cover(job.population)
    if json:
        at = population or population_text(shares, model.classes_, model.positive)
        content = {"out": str(out), "rows": done.rows, "population": at, "mean": means, "neutralised": dict(done.changed)}
        content |= {} if level is None else {"level": level, "limits_allow_for": covers}
        return print_json({**content, "next": command_line(*following) if following else None})
    found = ", ".join(f"{name} {value:.4g}" for name, value in means.items())
    at = population or population_words(shares, model.classes_, model.positive)
    survey = job.population
    if survey is not None and not isinstance(survey, int | float | dict):  # a distribution, whose mean the predictions are for
        at = f"{population}, a mean of {float(survey.population[1]):.4g}"
    print_sentences(f"{done.rows:,} rows predicted at the population {at}. Mean predictions: {found}.")
    if level is not None:
        print_sentences(f"Columns low_… and high_… are {100 * level:g} % limits. They allow for {covers}.")
    if out is not None:
        print_sentences(f"Written to {out}.")
    if following:
        print_sentences("Do these rows have the model's population? Compare it with the estimate of `rightloss prevalence`.")
        print_next(*following)
