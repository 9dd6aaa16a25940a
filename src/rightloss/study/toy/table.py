"""The toy study's table and sentences.

Stage: `ToyRow`s → `Results` → CSV, Markdown, JSON, the terminal.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from ..methods import DEFAULT, METHODS
from ..report.export import csv_text, markdown_rows, print_page
from ..results import grouped
from .population import Population

TITLE = "Trained on equal classes, used where they are not: how close does each loss come to the best possible?"
# By column: its title and how its figures are shown.
COLUMNS = {
    "prevalence": ("prevalence", "{}"),
    "model": ("model", "{}"),
    "method": ("method", "{}"),
    "start": ("start", "{}"),
    "log_likelihood": ("expected log-likelihood ± s.e.", "{:.6f}"),
    "from_best": ("s.e. from best possible", "{:+.1f}"),
    "spread": ("spread over seeds", "{:.6f}"),
    "lost": ("lost to best possible", "{:.6f}"),
    "auc": ("AUC", "{:.4f}"),
    "mean_prediction": ("mean prediction", "{:.5f}"),
}
NARROW = ("method", "start", "log_likelihood", "lost", "mean_prediction")  # fits 80 characters
START_NAMES, BOTH = {"population": "π", "equal": "equal"}, "both"
BEST, CONSTANT = "best possible", "always saying the prevalence"
CLEAR = 3  # standard errors
_READING = "s.e.: standard error of the test; the report explains every column."


@dataclass(frozen=True)
class ToyRow:
    """One line of the table: a method on a population, over the seeds.

    Attributes:
        prevalence: of class 1, or the population's name.
        model: the network.
        method: the loss.
        start: what the untrained network predicts: "π", "equal" classes, or "both" if they are the same for this loss.
        log_likelihood: expected log-likelihood at π, the mean over the seeds' test sets.
        standard_error: of that mean, for these trained networks: from the test examples alone, by their variance within each
            test set, pooled over seeds. Steadier than the spread of a few seeds, and stricter where training makes them differ.
        from_best: (log_likelihood − best possible) / standard_error.
        spread: standard deviation over the seeds, of training and test together; None for one seed.
        lost: mean of log p_true(y|x) − log p(y|x) on the same test examples, in which most of the test noise cancels.
        auc: None for more than two classes.
        mean_prediction: of the last class, at π.
        log_likelihood_by_seed, auc_by_seed: the values that are averaged.
    """

    prevalence: str
    model: str
    method: str
    start: str
    log_likelihood: float
    standard_error: float | None
    from_best: float | None
    spread: float | None
    lost: float
    auc: float | None
    mean_prediction: float
    log_likelihood_by_seed: list[float]
    auc_by_seed: list[float]

    @property
    def case(self) -> str:
        """Population and network."""
        return f"{self.prevalence} {self.model}"

    @property
    def name(self) -> str:
        """Method and start."""
        return self.method if self.start in ("", BOTH) else f"{self.method} from {self.start}"


@dataclass(frozen=True)
class Results:
    """The settings and rows of the study."""

    settings: dict[str, Any]
    rows: list[ToyRow]

    def to_json(self) -> str:
        return json.dumps({"study": "toy", **dataclasses.asdict(self)}, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def read(cls, path: Path) -> Results:
        """Read `results.json`."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["study"] != "toy":
                raise ValueError(f"of the study {content['study']!r}")
            return cls(content["settings"], [ToyRow(**row) for row in content["rows"]])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(
                f"Expected {path} to hold results of this study, but it does not: choose another folder."
            ) from error


def constant_rows(population: Population) -> list[ToyRow]:
    """Return the rows that bound the others: the best possible, and always answering π."""
    prevalence, best = population.prevalence.population, population.best_log_likelihood
    blind = float(prevalence @ np.log(prevalence))
    last = float(prevalence[-1])
    auc = None if population.best_auc is None else 0.5
    return [
        ToyRow(population.title, "any", BEST, "", best, None, None, None, 0.0, population.best_auc, last, [], []),
        ToyRow(population.title, "any", CONSTANT, "", blind, None, None, None, best - blind, auc, last, [], []),
    ]


def to_csv(results: Results) -> str:
    """Return every figure of the table, with the standard error in a column of its own."""
    names = [field.name for field in dataclasses.fields(ToyRow) if not field.name.endswith("_by_seed")]
    return csv_text(names, [[getattr(row, name) for name in names] for row in results.rows], digits=6)


def to_markdown(results: Results) -> str:
    """Return the report: the question, the answers, the table, and its legend."""
    titles = [title for title, _ in COLUMNS.values()]
    lines = [list(cells(row).values()) for row in results.rows]
    table = markdown_rows([titles, ["---"] * 4 + ["--:"] * (len(titles) - 4), *lines])
    answers = [f"- {each}" for each in findings(results.rows, METHODS[DEFAULT].title)]
    notes = [f"- {each}" for each in legend(results)]
    return "\n".join([f"# {TITLE}", "", *answers, "", table, "", *notes, ""])


def print_results(results: Results) -> None:
    """Print the table and three sentences at most: all columns if they fit, else the most important ones."""
    layouts = []
    groups = grouped(results.rows, lambda row: f"prevalence {row.prevalence}, model {row.model}")
    for names in ([*COLUMNS][2:], NARROW):
        shown = {title: [[cells(row)[name] for name in names] for row in rows] for title, rows in groups.items()}
        layouts.append(([COLUMNS[name][0] for name in names], shown))
    print_page(TITLE, layouts, [*findings(results.rows, METHODS[DEFAULT].title), _READING], left=2)


def findings(rows: list[ToyRow], default: str) -> list[str]:
    """Return what the rows say, in two sentences: about the default against the others, and about always answering π."""
    leads = list(_leads(rows, default))
    clear = [mean for mean, error in leads if abs(mean) > CLEAR * error]
    better, worse = sum(mean < 0 for mean in clear), sum(mean > 0 for mean in clear)
    compared = (
        f"The {default} is clearly better than the other losses in {better} of {len(leads)} comparisons and clearly worse in "
        f"{worse or 'none'}."
    )
    cases = Counter(row.name for row in rows)
    below = [f"{name} ({number} of {cases[name]})" for name, number in _worse_than_constant(rows).items()]
    return [
        compared if leads else "One seed does not tell the methods apart: run more.",
        f"Worse than {CONSTANT}: {'; '.join(below)}." if below else f"No method is worse than {CONSTANT}.",
    ]


def cells(row: ToyRow) -> dict[str, str]:
    """Return a row as the table shows it, by column."""
    values = {name: (getattr(row, name), form) for name, (_, form) in COLUMNS.items()}
    shown = {name: "–" if value in (None, "") else form.format(value) for name, (value, form) in values.items()}
    if row.standard_error is not None:
        shown["log_likelihood"] += f" ± {row.standard_error:.6f}"
    return shown


def legend(results: Results) -> list[str]:
    """Return the legend of the table."""
    settings = results.settings
    return [
        "Start: what the untrained network predicts, π or equal classes; for cross-entropy the two coincide.",
        f"Means over {settings['seeds']} seed(s). Expected log-likelihood: higher is better, 0 would be certainty.",
        f"s.e.: from the test examples alone ({settings['test_examples']} per seed), pooled over seeds. "
        "Spread: standard deviation between seeds, which differ in training and test examples.",
        "Lost: against the true probabilities on the same test examples, where most of the test noise cancels.",
        "Mean prediction: of class 1, or of the highest rating; right where it equals that of the best possible.",
    ]


def _leads(rows: list[ToyRow], default: str) -> Iterator[tuple[float, float]]:
    """Yield each method's lead over the default from the same start, seed by seed: mean and standard error over the seeds."""
    ours = {(row.case, row.start): row.log_likelihood_by_seed for row in rows if row.method == default}
    for row in rows:
        theirs, start = row.log_likelihood_by_seed, START_NAMES["population"] if row.start == BOTH else row.start
        if row.method != default and len(theirs) > 1:
            leads = [other - own for other, own in zip(theirs, ours[row.case, start], strict=True)]
            yield fmean(leads), stdev(leads) / math.sqrt(len(leads))


def _worse_than_constant(rows: list[ToyRow]) -> Counter[str]:
    """Count the cases in which a method is clearly worse than always answering π, by method."""
    constant = {row.prevalence: row.log_likelihood for row in rows if row.method == CONSTANT}
    return Counter(
        row.name
        for row in rows
        if row.standard_error is not None and row.log_likelihood < constant[row.prevalence] - CLEAR * row.standard_error
    )
