"""`rightloss retarget scores.csv --score risk --from 0.5 --to 0.02`: another program's scores at another population.

Stage: a file of scores → the same table with scores at other class frequencies; no model is needed.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from . import commands
from .population import parse_mix, parse_population, parse_rates
from .terminal import number, print_json, print_sentences, quiet_exit, warnings_on_stderr

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd


def retarget(
    data: Annotated[Path, commands.argument("The file of scores, .csv, .tsv or .parquet; .gz too; or a folder of parts.")],
    from_: Annotated[str, commands.from_option()],
    to: Annotated[str, commands.population_option(". Of several scores by column: risk_a=0.02,risk_b=0.01.", "--to")],
    out: commands.Out = None,
    score: commands.Score = [],  # noqa: B006 (typer's way to say "none given")
    scale: commands.Scale = "probability",
    positive: commands.Positive = None,
    keep: commands.Keep = [],  # noqa: B006
    encoding: commands.Encoding = None,
    overwrite: commands.Overwrite = False,
    json: commands.Json = False,
) -> None:
    """Move scores to other class frequencies, without a model: those of any program.

    By Bayes' rule. It is right if the people of a class look alike in both places, and only
    the mix of the classes differs. Columns named by --score are left as they
    are; beside them come risk_at_0.02, on the same scale. Without --score,
    the columns p_… of the classes are replaced, and `predicted` is the more
    probable class. Scores of exactly 0 or 1 stay what they are. All other
    columns are written as they stand.

    \b
    Risks of a program that was trained on as many ill as healthy people, where 2 % are ill:
      rightloss retarget scores.csv --score risk --from 0.5 --to 2% \\
        --out moved.csv

    \b
    Three classes, in a pipe:
      rightloss retarget predictions.csv \\
        --from none=0.4,early=0.3,late=0.3 \\
        --to none=0.9,early=0.09,late=0.01 | head
    """
    ends = parse_mix(from_, rates=bool(score)), (parse_rates if score else parse_population)(to)
    with quiet_exit():
        from . import scores, tables
    tables.check_output(out, overwrite, json)
    printed = sys.stdout.buffer
    with warnings_on_stderr():
        asked = scores.Asked(score=score, scale=scale, encoding=encoding)
        file = scores.ScoreFile.open(data, asked, map, others_as_text=tables.writes_text(out))
        if file.classes is not None:
            file = scores.positive_last(file, positive)
        mix_of, names = (scores.rates_of, file.columns) if file.classes is None else (scores.mix_of, file.classes)
        start, end = (mix_of(names, mix, option) for mix, option in zip(ends, ("from_", "to"), strict=True))
        new, kept = scores.moved_columns(file, end, keep)

        def change(frame: pd.DataFrame, first: int) -> tuple[pd.DataFrame, np.ndarray]:
            before = file.log_probs(frame, first)
            after = scores.moved(file, before, start, end)
            return scores.with_scores(file, file.plain(frame, kept), new, after), scores.sums_of(before, after)

        types = {name: file.table.arrow_types()[raw] for name, raw in file.names.items()}
        _, sums = tables.write_table(file.table, list(file.names.values()), change, out or printed, map, types)
        file.warn_of_certain(sums[2])
    means = (sums[:2] / file.table.rows).tolist()
    pairs = [{"column": each, "from": old, "to": moved} for each, old, moved in zip(new, *means, strict=True)]
    if json:
        return print_json({"out": str(out), "rows": file.table.rows, "from": from_, "to": to, "mean": pairs})
    said = [f"{each['column']} {number(each['to'], 4)} (before, {number(each['from'], 4)})" for each in pairs]
    with redirect_stdout(sys.stderr) if out is None else nullcontext():
        print_sentences(f"{file.table.rows:,} rows moved from {from_} to {to}. Means over these rows: {', '.join(said)}.")
        print_sentences(*([] if out is None else [f"Written to {out}."]))
