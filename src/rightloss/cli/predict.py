"""`rightloss predict model new.csv --out predictions.csv`.

Stage: a model folder, a table → the table with a probability per class, at the model's population or at another.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .errors import plain_errors, quiet_exit
from .population import parse_population, population_text
from .predictions_file import PREDICTED, check_output, in_order, write_frame
from .table_options import Data, Encoding, Json, ModelFolder, Overwrite, Population, Threshold, complete_column
from .terminal import command_line, print_json, print_next, print_sentences, warnings_on_stderr

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from ..tabular import TableModel

Keep = Annotated[
    list[str],
    typer.Option(
        help="A column of the table to keep with the predictions; all by default. Repeat the option for more.",
        show_default=False,
        metavar="COLUMN",
        autocompletion=complete_column,
    ),
]


def predict(
    model: ModelFolder,
    data: Data,
    out: Annotated[Path, typer.Option(help="File to write: .csv, .csv.gz, .tsv or .parquet.", show_default=False)],
    population: Population = None,
    threshold: Threshold = None,
    keep: Keep = [],  # noqa: B006 (typer's way to say "none given")
    encoding: Encoding = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Predict a table's rows: a probability per class (p_yes, p_no), at the model's population or at another.

    The file has the table's columns, or those named by --keep, a column
    p_… per class, and the predicted class; if the table's last columns are
    called p_…, they follow. It is written whole or not at all. Text that a
    spreadsheet would run gets an apostrophe in front.

    \b
    At the population that the model was fitted for:
      rightloss predict model new.csv --out predictions.csv

    \b
    In a clinic where 1 in 50 has the disease, with the rows' numbers alone, flagged from a risk of 10 % on:
      rightloss predict model clinic.parquet --population 2% \\
        --keep patient --threshold 0.1 --out clinic.csv
    """
    with plain_errors():
        check_output(out, overwrite)
        mix = None if population is None else parse_population(population)
        with quiet_exit():
            from ..tabular import load_model, read_table
        with warnings_on_stderr():
            fitted = load_model(model)
            check_threshold(threshold, len(fitted.classes_))
            frame = read_table(data, encoding=encoding)
            kept = kept_columns(frame, keep, fitted)
            log_probs = fitted.predict_log_proba(frame, population=mix)
            predicted = with_predictions(frame[kept], log_probs, fitted, threshold)
            changed = write_frame(predicted, out)
        for column, cells in changed.items():
            text = f"column {column!r}: {cells} cells begin like a formula and got an apostrophe in front"
            print(f"rightloss: warning: {text}", file=sys.stderr)
        following = ["prevalence", str(model), str(data)] if population is None else []
        _print_done(fitted, predicted, out, population, changed, following, json)


def check_threshold(threshold: float | None, num_classes: int) -> None:
    """Raise ValueError for a threshold that decides nothing."""
    if threshold is None:
        return
    if num_classes != 2:
        raise ValueError(f"Expected --threshold with two classes, but the model has {num_classes}: leave it out.")
    if not 0 < threshold < 1:
        raise ValueError(f"Expected a threshold between 0 and 1, but got {threshold}: 0.1, say.")


def kept_columns(frame: pd.DataFrame, keep: list[str], model: TableModel) -> list[str]:
    """Return the columns to keep: those named, or all; raise ValueError if one has the name of a new column."""
    missing = [name for name in keep if name not in frame.columns]
    if missing:
        raise ValueError(f"Expected columns of the table with --keep, but got {missing}: write them as they stand there.")
    kept = list(dict.fromkeys(keep)) or list(frame.columns)
    taken = sorted({*probability_names(model), PREDICTED} & set(kept))
    if taken:
        raise ValueError(f"Expected a table without columns named {taken}, but it has them: choose others with --keep.")
    return kept


def probability_names(model: TableModel) -> list[str]:
    """Return the name of each class's column of probabilities, as `read_table` reads it."""
    return [f"p_{label}".strip() for label in model.classes_]


def with_predictions(frame: pd.DataFrame, log_probs: np.ndarray, model: TableModel, threshold: float | None) -> pd.DataFrame:
    """Return the columns with a probability per class, and the predicted class."""
    import numpy as np

    probabilities = np.exp(log_probs)
    best = probabilities.argmax(1) if threshold is None else (probabilities[:, 1] >= threshold).astype(int)
    classes = np.array(model.classes_, dtype=object)
    names = probability_names(model)
    table = frame.assign(**{name: probabilities[:, k] for k, name in enumerate(names)}, **{PREDICTED: classes[best]})
    return table[in_order(list(frame.columns), names)]


def _print_done(
    model: TableModel,
    predicted: pd.DataFrame,
    out: Path,
    population: str | None,
    changed: dict[str, int],
    following: list[str],
    json: bool,
) -> None:
    means = predicted[probability_names(model)].mean()
    at = population or population_text(model.population.population.tolist(), model.classes_, model.positive)
    if json:
        content = {"out": str(out), "rows": len(predicted), "population": at, "mean": means.to_dict(), "neutralised": changed}
        return print_json({**content, "next": command_line(*following) if following else None})
    found = ", ".join(f"{name} {value:.4g}" for name, value in means.items())
    print_sentences(
        f"{len(predicted):,} rows predicted at the population {at}. Mean predictions: {found}.",
        f"Written to {out}.",
    )
    if following:
        print_sentences("Do these rows have the model's population? Compare it with the estimate of `rightloss prevalence`.")
        print_next(*following)
