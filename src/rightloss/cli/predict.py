"""`rightloss predict model new.csv --out predictions.csv`.

Stage: a model folder, a table → the table with a probability per class, at the model's population or at another.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Annotated

from . import commands
from .population import parse_population, population_text, population_words
from .terminal import command_line, print_json, print_next, print_sentences, quiet_exit, warnings_on_stderr

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

_COMPARE = "Do these rows have the model's population? Compare it with the estimate of `rightloss prevalence`."


def predict(
    model: commands.ModelFolder,
    data: commands.Data,
    out: commands.Out = None,
    population: commands.Population = None,
    threshold: commands.Threshold = None,
    level: Annotated[
        float | None, commands.option("Add limits of the probabilities, low_… and high_…, at this level: 0.95, say.")
    ] = None,
    keep: commands.Keep = [],  # noqa: B006 (typer's way to say "none given")
    encoding: commands.Encoding = None,
    engine: commands.Engine = "in-process",
    address: commands.Address = None,
    overwrite: commands.Overwrite = False,
    json: commands.Json = False,
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
    the population is, if it is a survey's (12/3000), learnt, or the mix
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
      rightloss predict model new.csv --population 12/3000 \\
        --level 0.95 | head

    \b
    A folder of parts on a Ray cluster; data files are at the same path on each machine:
      rightloss predict model parts --out predictions.parquet \\
        --engine ray --address head:6379
    """
    mix = None if population is None else parse_population(population)
    with quiet_exit():
        import pyarrow as pa

        from ..tabular import load_model
        from . import tables
    tables.check_output(out, overwrite, json)
    printed = sys.stdout.buffer
    with warnings_on_stderr(), tables.engine_of(engine, address) as each:
        fitted = load_model(model)
        check_threshold(threshold, len(fitted.classes_))
        table = tables.open_for(fitted, data, encoding, each, others_as_text=tables.writes_text(out))
        limits = [] if level is None else tables.limit_names(fitted)
        kept = tables.kept_columns(table.columns, keep, [*tables.probability_names(fitted), tables.PREDICTED, *limits])

        def predicted(frame: pd.DataFrame, start: int) -> tuple[pd.DataFrame, np.ndarray]:
            log_probs = fitted.predict_log_proba(frame, mix, warn=False)
            ends = None if level is None else fitted.predict_limits(frame, mix, level)
            found = tables.with_predictions(frame[kept], log_probs, fitted, threshold, ends)
            return found, found[tables.probability_names(fitted)].to_numpy().sum(0)

        types = table.arrow_types() | {tables.PREDICTED: pa.array(tables.plain_classes(fitted)).type}
        changed, sums = tables.write_table(table, kept, predicted, out or printed, each, types, fitted)
    means = dict(zip(tables.probability_names(fitted), (sums / table.rows).tolist(), strict=True))
    covers = None if level is None else fitted.limits_cover(mix)
    following: list[object] = ["prevalence", model, data] if population is None and out is not None else []
    shares = fitted.population.population.tolist(), fitted.classes_, fitted.positive
    if json:
        at = population or population_text(*shares)
        content = {"out": str(out), "rows": table.rows, "population": at, "mean": means, "neutralised": dict(changed)}
        content |= {} if level is None else {"level": level, "limits_allow_for": covers}
        return print_json({**content, "next": command_line(*following) if following else None})
    at = population or population_words(*shares)
    if mix is not None and not isinstance(mix, int | float | dict):  # a distribution, whose mean the predictions are for
        at = f"{population}, a mean of {float(mix.population[1]):.4g}"
    found = ", ".join(f"{name} {value:.4g}" for name, value in means.items())
    said = [f"{table.rows:,} rows predicted at the population {at}. Mean predictions: {found}."]
    said += [] if level is None else [f"Columns low_… and high_… are {100 * level:g} % limits. They allow for {covers}."]
    said += [] if out is None else [f"Written to {out}."]
    with redirect_stdout(sys.stderr) if out is None else nullcontext():
        print_sentences(*said, *([_COMPARE] if following else []))
        if following:
            print_next(*following)


def check_threshold(threshold: float | None, num_classes: int) -> None:
    """Raise ValueError for a threshold that decides nothing."""
    if threshold is not None and num_classes != 2:
        raise ValueError(f"Expected --threshold with two classes, but the model has {num_classes}: leave it out.")
    if threshold is not None and not 0 < threshold < 1:
        raise ValueError(f"Expected a threshold between 0 and 1, but got {threshold}: 0.1, say.")
