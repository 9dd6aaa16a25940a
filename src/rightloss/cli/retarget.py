"""`rightloss retarget scores.csv --score risk --from 0.5 --to 0.02`: another program's scores at another population.

Stage: a file of scores → the same table with scores at other class frequencies; no model is needed.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from . import commands
from .population import parse_mix, parse_population, parse_rates
from .scores import ScoreFile, certain, mix_of, positive_last, two_classes
from .tables import PREDICTED, check_output, kept_columns, warn_of_apostrophes, write_table, writes_text
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
    if out is not None:
        check_output(out, overwrite)
    elif json:
        raise ValueError("Expected --out with --json, but got none: scores and JSON would mix on standard output.")
    ends = parse_mix(from_, rates=bool(score)), (parse_rates if score else parse_population)(to)
    with quiet_exit():
        from ..tabular import open_table  # noqa: F401 (what takes long)
    printed = sys.stdout.buffer
    with warnings_on_stderr():
        file = ScoreFile.open(data, score, (), scale, encoding, map, others_as_text=writes_text(out))
        if file.classes is not None:
            file = positive_last(file, positive)
        start, end = (_mix(file, mix, name) for mix, name in zip(ends, ("from_", "to"), strict=True))
        new, kept = _columns(file, end, keep)

        def change(frame: pd.DataFrame, first: int) -> tuple[pd.DataFrame, np.ndarray]:
            before = file.log_probs(frame, first)
            after = _moved(file, before, start, end)
            return _with_scores(file, file.plain(frame, kept), new, after), _sums(before, after)

        types = {name: file.table.arrow_types()[raw] for name, raw in file.names.items()}
        changed, sums = write_table(file.table, list(file.names.values()), change, out or printed, map, types)
        file.warn_of_certain(sums[2])
    warn_of_apostrophes(changed)
    means = (sums[:2] / file.table.rows).tolist()
    pairs = [{"column": each, "from": old, "to": moved} for each, old, moved in zip(new, *means, strict=True)]
    if json:
        return print_json({"out": str(out), "rows": file.table.rows, "from": from_, "to": to, "mean": pairs})
    said = [f"{each['column']} {number(each['to'], 4)} (before, {number(each['from'], 4)})" for each in pairs]
    with redirect_stdout(sys.stderr) if out is None else nullcontext():
        print_sentences(f"{file.table.rows:,} rows moved from {from_} to {to}. Means over these rows: {', '.join(said)}.")
        print_sentences(*([] if out is None else [f"Written to {out}."]))


def _mix(file: ScoreFile, mix: Any, option: str) -> Any:
    """Return the class frequencies, or those of each column of scores."""
    from ..prevalence.multilabel import by_finding

    if file.classes is not None:
        return mix_of(file.classes, mix, option)
    return by_finding(mix if isinstance(mix, Mapping) else dict.fromkeys(file.columns, mix), option, file.columns)


def _columns(file: ScoreFile, end: Any, keep: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the columns of the moved scores, and those of the file that are kept."""
    if file.classes is None:
        from ..prevalence import Prevalence

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


def _moved(file: ScoreFile, log_probs: np.ndarray, start: Any, end: Any) -> np.ndarray:
    import numpy as np

    from ..predictive import retarget as moved_to

    if not len(log_probs):
        return log_probs
    if file.classes is not None:
        return np.asarray(moved_to(log_probs, start, end))
    columns = zip(log_probs.T, start, end, strict=True)
    return np.stack([moved_to(two_classes(log_p), at, to)[:, 1] for log_p, at, to in columns], 1)


def _with_scores(file: ScoreFile, frame: pd.DataFrame, new: Sequence[str], log_probs: np.ndarray) -> pd.DataFrame:
    import numpy as np

    added = dict(zip(new, file.scores(log_probs).T, strict=True))
    if file.classes is not None and PREDICTED in frame:
        added[PREDICTED] = np.array(file.classes, dtype=object)[log_probs.argmax(1)]
    return frame.assign(**added)


def _sums(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return, by column, the sums of the risks before and after, and how many of them are exactly 0 or 1."""
    import numpy as np

    return np.stack([np.exp(before).sum(0), np.exp(after).sum(0), certain(before)])
