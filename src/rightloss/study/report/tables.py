"""The study's tables, the paper's figures beside ours.

Stage: `Summary` → `Table`s, which `table_text` writes as HTML or Markdown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...metrics import Figure
from ..paper import AVERAGES, MISPRINT, RATINGS, paper_row
from ..pooled_predictions import CellKey
from ..summary import Row, Summary
from ..summary.contract import CONSTANT
from ..summary.layouts import PAPER_COLUMNS
from ..summary.words import MINIBATCHES, decimals, difference, interval, method, number, source, where
from .words import chief_loss

RATING = {
    "accuracy": "Acc.",
    "balanced_accuracy": "BA",
    "off_by_one": "off by one: Acc.",
    "balanced_off_by_one": "off by one: BA",
    "malignant_accuracy": "malignant or not: Acc.",
    "malignant_tpr": "TPR",
    "malignant_tnr": "TNR",
    "malignant_ppv": "PPV",
    "malignant_npv": "NPV",
}
SCORE = {
    "expected_log_likelihood": "exp. log-lik.",
    "skill": "gain over answering π",
    "score_within_half": "score within ½",
    "score_within_one": "score within 1",
    "score_error": "mean distance",
}
_PAPERS_NAMES = {"published": "the paper's bayesIG", "weighted": "the paper's wLoss"}
LEGEND = (
    "exp. log-lik.: expected log-likelihood in the population, higher is better. Acc., wAcc., BA: share of right decisions "
    "among the nodules as they are, in the population, were both classes equally frequent. PPV, NPV: share of those called "
    "malignant, or benign, who are, in the population. TPR, TNR: share of malignant, and of benign, nodules called so. "
    "AUC: how often a malignant nodule is ranked above a benign one, the mean over folds. Small print: 95 % intervals, by "
    "patient."
)


@dataclass(frozen=True)
class Line:
    """A row: its name, cells of a value and a range, and what kind of row it is."""

    label: str
    cells: tuple[tuple[str, str], ...]
    kind: str = ""


@dataclass(frozen=True)
class Table:
    """Rows in groups, each with a title.

    Attributes:
        title: above the table.
        columns: their heads, after the first.
        groups: title (may be empty) and rows.
        notes: below it.
    """

    title: str
    columns: tuple[str, ...]
    groups: tuple[tuple[str, tuple[Line, ...]], ...]
    notes: tuple[str, ...] = ()


def result_tables(summary: Summary) -> list[Table]:
    """One for each data set and way of drawing minibatches; of ratings one for each way of aggregating them."""
    found = []
    for name, minibatches in dict.fromkeys((row.key.data, row.key.minibatches) for row in summary.rows):
        rows = [row for row in summary.rows if (row.key.data, row.key.minibatches) == (name, minibatches)]
        title = f"{source(name)}, {MINIBATCHES[minibatches]}"
        if summary.config.task == "rating":
            found += _rating_tables(rows, summary, title)
        else:
            found.append(_binary_table(rows, summary, title))
    return found


def comparison_table(summary: Summary) -> Table | None:
    """Paired differences; None where nothing is compared."""
    if not summary.comparisons:
        return None
    groups: dict[str, list[Line]] = {}
    for each in summary.comparisons:
        ours, theirs = _parties(each.about, each.ours, each.theirs, summary)
        cells = []
        for name in ("expected_log_likelihood", "auc"):
            found = each.differences.get(name)
            cells.append(("–", "") if found is None else (difference(found.figure), ""))
            cells.append(("–", "") if found is None else (f"{found.standing}, {found.ahead} of {found.folds}", ""))
        groups.setdefault(f"{ours} less", []).append(Line(theirs, tuple(cells)))
    columns = ("exp. log-lik.", "verdict, folds ahead", "AUC", "verdict, folds ahead")
    return Table("Paired differences", columns, tuple((title, tuple(lines)) for title, lines in groups.items()))


def _parties(about: str, ours: CellKey, theirs: CellKey, summary: Summary) -> tuple[str, str]:
    config = summary.config
    if about in ("loss", "published"):
        return f"{where(ours, config)}: {method(ours)}", method(theirs)
    own = where(ours, config, without=("data",))
    place = f"{source(ours.data)}, " if len(config.sources) > 1 else ""
    return f"{place}{own}, {method(ours)}", where(theirs, config, without=("data", "population"))


def _binary_table(rows: Sequence[Row], summary: Summary, title: str) -> Table:
    constants = {row.key.population: row for row in rows if row.key.loss == CONSTANT}
    groups: dict[str, list[Line]] = {}
    beside = False
    for row in rows:
        if row.key.loss == CONSTANT:
            continue
        name = where(row.key, summary.config, without=("data", "minibatches"))
        if name not in groups:
            groups[name] = (
                [_line(constants[row.key.population], PAPER_COLUMNS, "faint")] if row.key.population in constants else []
            )
        groups[name].append(_line(row, PAPER_COLUMNS, "ours" if row.key.loss == chief_loss(summary.config) else ""))
        if (papers := _papers_line(row, summary)) is not None:
            groups[name].append(papers)
            beside = True
    number_of = {"rebalanced": 1, "raw": 2}[rows[0].key.minibatches]
    heading = f"The paper's Table {number_of} ({title})" if beside else title[:1].upper() + title[1:]
    notes = (LEGEND, AVERAGES, *([MISPRINT] if _has_misprint(rows) else [])) if beside else (LEGEND,)
    return Table(heading, tuple(PAPER_COLUMNS.values()), tuple((each, tuple(lines)) for each, lines in groups.items()), notes)


def _has_misprint(rows: Sequence[Row]) -> bool:
    return any(row.key[1:3] == ("rebalanced", "inception") and row.key.population == 0.001 for row in rows)


def _papers_line(row: Row, summary: Summary) -> Line | None:
    key = row.key
    plain = (key.likelihood, key.marginal, key.inference) == ("categorical", "own", "map")
    found = paper_row(key.minibatches, key.net, key.population, key.loss) if plain and summary.config.task == "binary" else None
    if found is None:
        return None
    cells = tuple((_papers_number(found.figures.get(name)), "") for name in PAPER_COLUMNS)
    return Line(_PAPERS_NAMES[key.loss], cells, "paper")


def _papers_number(value: float | None) -> str:
    """As many digits as it is known to."""
    return "–" if value is None else f"{value:g}".replace("-", "−")


def _rating_tables(rows: Sequence[Row], summary: Summary, title: str) -> list[Table]:
    kinds = [
        (f"Ratings by the rounded mean of readers and predictions ({title})", "mean_", RATING),
        (f"Ratings by majority ({title})", "majority_", RATING),
        (f"The mean rating itself ({title})", "", SCORE),
    ]
    return [_rating_table(rows, summary, *kind) for kind in kinds]


def _rating_table(rows: Sequence[Row], summary: Summary, title: str, prefix: str, columns: dict[str, str]) -> Table:
    groups: dict[str, list[Line]] = {}
    for row in rows:
        if row.key.loss == CONSTANT:
            continue
        own = groups.setdefault(where(row.key, summary.config, without=("data", "minibatches")), [])
        own.append(_line(row, {f"{prefix}{name}": head for name, head in columns.items()}, _chief(row, summary)))
        if prefix and (row.key.likelihood, row.key.loss) == ("onion-peeling", "published"):
            cells = tuple((f"{RATINGS[name]:g}", "") for name in columns)
            own.append(Line("the paper's bayesIG", cells, "paper"))
    notes = (
        "off by one: right if no more than one rating away. BA: the mean over ratings. Malignant or not: 4 and 5 against 1 "
        "and 2, nodules rated 3 left out. Small print: 95 % intervals, by patient.",
    )
    if not prefix:
        notes = ("Score: the mean rating, expected by the net and given by readers. Small print: 95 % intervals, by patient.",)
    return Table(title, tuple(columns.values()), tuple((name, tuple(lines)) for name, lines in groups.items()), notes)


def _chief(row: Row, summary: Summary) -> str:
    return "ours" if row.key.loss == chief_loss(summary.config) else ""


def _line(row: Row, columns: dict[str, str], kind: str) -> Line:
    return Line(method(row.key), tuple(_cell(row, name) for name in columns), kind)


def _cell(row: Row, name: str) -> tuple[str, str]:
    figure = row.figures.get(name, Figure(math.nan))
    places = decimals(name, row.key.population)
    return number(figure.value, places), _range(figure, places)


def _range(figure: Figure, places: int) -> str:
    """Shorter than in a sentence, where no minus sign is in the way."""
    ends = interval(figure, places)
    return ends if "−" in ends else ends.replace(" to ", "–")
