"""`rightloss fit data.csv --target cancer --positive yes --population 0.001 --out model`.

Stage: a table → candidates compared at the population → a model folder with its report, the comparison on the terminal.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import commands, terminal
from .population import parse_population, population_text, population_words
from .terminal import number, percent, progress, quiet_exit, require

if TYPE_CHECKING:
    from ..tabular import TableModel

LeaveOut = Annotated[list[str], commands.column_option("A column to leave out. Repeat the option for more.")]
Unlabelled = Annotated[
    Path | None,
    commands.option("A table of people of the population, without labels: a model may learn from them too.", metavar="FILE"),
]
FitPopulation = Annotated[str | None, commands.population_option("; unknown: learn it from the --unlabelled rows.")]


_TICK = "✓ is the model that is kept: the best by log-likelihood, or a simpler or calibrated one within a standard error of it."


def fit(
    data: commands.Data,
    target: commands.Target,
    out: Annotated[Path, commands.option("Folder to write: the model and its report.")],
    positive: commands.Positive = None,
    population: FitPopulation = None,
    unlabelled: Unlabelled = None,
    group: commands.Group = None,
    leave_out: LeaveOut = [],  # noqa: B006 (typer's way to say "none given")
    folds: Annotated[int, typer.Option(help="Parts of the cross-validation.")] = 5,
    seed: Annotated[int, typer.Option(help="Random seed: the same seed gives the same model.")] = 0,
    encoding: commands.Encoding = None,
    overwrite: commands.Overwrite = False,
    json: commands.Json = False,
) -> None:
    """Compare models at the population by cross-validation, keep the best, and write it with a report to a folder.

    Linear and boosted models, each with the corrections for the
    population, against always answering its frequencies. The one with the
    highest expected log-likelihood, or a simpler one that is as good, is
    fitted again to all rows. Without --population the model is for the
    file's own mix.

    \b
    How frequent the classes are is unknown: leave --population out, and
    estimate it from unlabelled rows with `rightloss prevalence`.

    \b
    A case-control file, for a population in which 1 in 1,000 has the disease:
      rightloss fit data.csv --target cancer --positive yes \\
        --population 1/1000 --out model

    \b
    Several rows per patient, three classes, and a column that would give the answer away:
      rightloss fit visits.parquet --target stage --group patient \\
        --leave-out treatment --out model \\
        --population none=0.9,early=0.09,late=0.01

    \b
    Few labels, and a file of everybody who was screened, without any. The
    unlabelled rows show how the population looks: predictions are made to
    agree with its frequencies over these rows, and one more model learns from
    both files. It is kept if it explains held-out rows of both best. Where a
    test warns that people of a class look different in the two files, their
    rows are not used:
      rightloss fit data.csv --target cancer --positive yes \\
        --unlabelled screening.csv --population 1/100 --out model

    \b
    The same where nobody knows how frequent the disease is:
      rightloss fit data.csv --target cancer --positive yes \\
        --unlabelled screening.csv --population unknown --out model
    """
    with quiet_exit():
        from ..tabular import check_destination, fit_table, read_table
        from ..tabular.report import report_page
    require("jinja2", "safetensors", "rich")
    if not out.name.strip():  # such as an unset shell variable
        raise ValueError(f"Expected a folder for the model, but got {str(out)!r}: --out model, say.")
    check_destination(out, overwrite=overwrite)
    unknown = population is not None and population.strip().casefold() == "unknown"
    mix: Any = "unknown" if unknown else None if population is None else parse_population(population)
    with terminal.warnings_on_stderr(), progress("steps") as show:
        show(0, 1, "reading the table")
        frame = read_table(data, encoding=encoding)
        others = None if unlabelled is None else read_table(unlabelled, encoding=encoding)
        columns: dict[str, Any] = {"target": target, "positive": positive, "group": group, "leave_out": leave_out}
        model = fit_table(frame, population=mix, unlabelled=others, folds=folds, seed=seed, progress=show, **columns)
        model.save(out, overwrite=overwrite, also={"report.html": report_page(model)})
    _print_model(model, out, population is None, json)


def _print_model(model: TableModel, out: Path, own_mix: bool, json: bool) -> None:
    from ..tabular.report import sentences

    following: list[object] = ["predict", out, "new.csv", "--out", "predictions.csv"]
    said = sentences(model)
    if own_mix:
        said.append(_own_mix(model, terminal.command_line(*following)))
        following = ["prevalence", out, "new.csv"]
    if json:
        ratios = model.odds_ratios
        content = {
            "out": out,
            "report": out / "report.html",
            "classes": model.classes_,
            "positive": model.positive,
            "population": model.population.population,
            "sampling": model.population.sampling,
            "unlabelled": model.unlabelled and vars(model.unlabelled),
            "comparison": model.comparison.to_dict("records"),
            "odds_ratios": None if ratios is None else ratios.to_dict("records"),
            "findings": terminal.findings_json(model.findings),
            "sentences": said,
            "next": terminal.command_line(*following),
        }
        return terminal.print_json(content)
    terminal.print_findings(model.findings)
    heads = ("model", "log-likelihood", "95 % interval", "AUC", "skill", "slope", "seconds")
    terminal.print_table(heads, _rows(model), _title(model))
    terminal.print_sentences(_TICK, *said, f"The report, with a prevalence slider, is {out / 'report.html'}.")
    terminal.print_next(*following)


def _own_mix(model: TableModel, predict: str) -> str:
    """Return a sentence for a model without --population: at which mix it predicts, and what to do at another."""
    shares = model.population.population.tolist()
    mix = population_text(shares, model.classes_, model.positive)
    if model.positive is not None:
        mix = f"{percent(shares[model.classes_.index(model.positive)])} {model.positive}"
    return (
        f"Without --population, its risks are at this file's own mix, {mix}. If new rows have that mix: `{predict}`. If not, "
        "estimate theirs first."
    )


def _title(model: TableModel) -> str:
    population = population_words(model.population.population.tolist(), model.classes_, model.positive)
    learnt = model.unlabelled is not None and model.unlabelled.population_low is not None
    return f"Cross-validated at the population {population}{', learnt from the unlabelled rows' if learnt else ''}"


def _rows(model: TableModel) -> Iterator[tuple[str, ...]]:
    for row in model.comparison.to_dict("records"):
        interval = f"{number(row['low'])} to {number(row['high'])}"
        figures = [number(row[name]) for name in ("auc", "skill", "calibration_slope", "seconds")]
        name = f"{row['candidate']} ✓" if row["chosen"] else str(row["candidate"])
        yield (name, number(row["expected_log_likelihood"], 4), interval, *figures)
