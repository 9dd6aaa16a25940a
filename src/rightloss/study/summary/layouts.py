"""The tables that fit a study, before they are written in any language.

Stage: `Summary` → `Table`s: like the paper's Table 1 and 2 with its figures beside ours, ratings, metadata, or by population.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ...metrics import Figure
from .. import paper
from ..pooled_predictions import CellKey
from . import words
from .contract import CONSTANT, Row, Summary

PAPER_COLUMNS = {
    "expected_log_likelihood": "exp. log-lik.",
    "accuracy": "Acc.",
    "weighted_accuracy": "wAcc.",
    "balanced_accuracy": "BA",
    "ppv": "PPV",
    "npv": "NPV",
    "tpr": "TPR",
    "tnr": "TNR",
    "auc": "AUC",
}
COLUMNS = {
    "expected_log_likelihood": "exp. log-lik.",
    "skill": "skill",
    "auc": "AUC",
    "balanced_accuracy": "BA",
    "ppv": "PPV",
    "tpr": "TPR",
    "tnr": "TNR",
    "mean_prediction": "mean pred.",
    "calibration_error": "cal. error",
}
RATING_COLUMNS = {
    "expected_log_likelihood": "exp. log-lik.",
    **{
        f"{rule}_{name}": f"{title}, {rule}"
        for rule in ("majority", "mean")
        for name, title in (
            ("accuracy", "Acc."),
            ("balanced_accuracy", "BA"),
            ("off_by_one", "Acc. ±1"),
            ("balanced_off_by_one", "BA ±1"),
        )
    },
    "score_within_half": "score ±½",
    "score_within_one": "score ±1",
    "score_error": "score error",
}
_CLASS_COLUMNS = {
    **{f"off_by_one_recall_{rating}": f"{rating} ±1" for rating in range(1, 6)},
    **{f"malignant_{name}": title for name, title in (("accuracy", "Acc."), ("tpr", "TPR"), ("tnr", "TNR"))},
    **{f"malignant_{name}": title for name, title in (("ppv", "PPV"), ("npv", "NPV"))},
}
NAMES = ("table1", "table2", "populations", "metadata", "ratings", "ratings_by_class")
_PAPER_NAMES = {"published": "bayesIG (paper)", "weighted": "wLoss (paper)"}
LEGEND = (
    "Intervals: 95 %, with patients drawn anew; none where the figure is undefined in too many of the draws. Exp. log-lik.: "
    "expected log-likelihood at π, the higher the better. AUC: how often a malignant nodule is ranked above a benign one, the "
    "mean over folds and seeds. Called malignant is what has a probability of ½ or more. TPR, TNR: share of malignant, of "
    "benign nodules called so; BA: the mean of the two. PPV, NPV: share of those called malignant, or benign, that are, in the "
    "population. A dash: not defined, as PPV is where nothing is called malignant."
)
PREDICTED = (
    "Mean pred.: the mean prediction in the population, π where it is right. Cal. error: the mean distance between predicted "
    "and observed shares."
)
SKILL = "Skill: the expected log-likelihood on a scale where 0 is always answering π, and 1 is certainty."
RATING_LEGEND = (
    "Intervals: 95 %, with patients drawn anew. Readers and predictions are made one answer by the same rule: majority, the "
    "class nearest to the mean rating, or the mean rating itself (score). ±1: the rating or one beside it."
)
_ABOUT_RATINGS = "The paper's line is of onion peeling with bayesIG; it does not say for which net and rule."


@dataclass(frozen=True)
class Entry:
    """A figure as text, and its interval, empty where there is none."""

    value: str
    interval: str = ""


@dataclass(frozen=True)
class Line:
    """A line of a table: whose it is, and an entry per column."""

    label: str
    origin: Literal["ours", "paper", "constant"]
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Section:
    """Lines that belong together.

    Attributes:
        key: what they have in common, other fields empty.
        title: the same in words.
        lines: in order.
    """

    key: CellKey
    title: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        name: of its files.
        title: above it.
        columns: headers; the lines' labels have none.
        sections: in order.
        notes: below it.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    sections: tuple[Section, ...]
    notes: tuple[str, ...]


def tables(summary: Summary) -> list[Table]:
    """Those that fit the study, none of them empty."""
    if summary.config.task == "rating":
        found = [_ratings(summary), _ratings_by_class(summary)]
    elif summary.config.task == "balanced":
        found = [_metadata(summary)]
    else:
        found = [_like_paper(summary, "rebalanced"), _like_paper(summary, "raw"), _by_population(summary)]
    return [table for table in found if table.sections]


def sections(summary: Summary, columns: Mapping[str, str], rows: Iterable[Row] | None = None) -> list[Section]:
    """All rows, or these, by data set, net and population; each with the line of always answering π."""
    groups: dict[CellKey, list[Row]] = {}
    for row in summary.rows if rows is None else rows:
        if row.key.loss != CONSTANT:
            groups.setdefault(_context(row), []).append(row)
    return [_section(key, some, summary, tuple(columns)) for key, some in groups.items()]


def _section(key: CellKey, rows: Sequence[Row], summary: Summary, names: Sequence[str]) -> Section:
    lines = [_line(row, names, words.method(row.key)) for row in rows]
    return Section(key, words.where(key, summary.config), (_constant(key, summary, names), *lines))


def _constant(key: CellKey, summary: Summary, names: Sequence[str]) -> Line:
    same = (key.data, key.minibatches, key.population)
    for row in summary.rows:
        if row.key.loss == CONSTANT and (row.key.data, row.key.minibatches, row.key.population) == same:
            return _line(row, names, words.method(row.key), "constant")
    raise AssertionError(f"no row that always answers π for {key}")


def _line(row: Row, names: Sequence[str], label: str, origin: Literal["ours", "constant"] = "ours") -> Line:
    return Line(label, origin, tuple(_entry(row.figures.get(name), words.decimals(name, row.key.population)) for name in names))


def _entry(figure: Figure | None, places: int) -> Entry:
    return Entry("–") if figure is None else Entry(words.number(figure.value, places), words.interval(figure, places))


def _like_paper(summary: Summary, minibatches: str) -> Table:
    """Rows of its nets and populations, population first, as the paper has them; its own lines on top of each section."""
    number = 1 if minibatches == "rebalanced" else 2
    own = [row for row in summary.rows if row.key.minibatches == minibatches and _is_of_paper(row.key, summary)]
    own.sort(key=lambda row: paper.POPULATIONS.index(row.key.population) if row.key.population is not None else 0)
    found = [
        replace(section, lines=(*_paper_lines(section.key), *section.lines))
        for section in sections(summary, PAPER_COLUMNS, own)
    ]
    misprint = [paper.MISPRINT] if number == 1 and any(row.key.net == "inception" for row in own) else []
    title = f"The paper's Table {number}: {words.MINIBATCHES[minibatches]}"
    return Table(f"table{number}", title, _headers(PAPER_COLUMNS), tuple(found), (LEGEND, paper.AVERAGES, *misprint))


def _is_of_paper(key: CellKey, summary: Summary) -> bool:
    plain = key.inference == ("map" if "map" in summary.config.inferences else summary.config.inferences[0])
    return key.loss != CONSTANT and key.net in paper.NETS and key.population in paper.POPULATIONS and plain


def _context(row: Row) -> CellKey:
    return row.key._replace(loss="", marginal="")


def _paper_lines(key: CellKey) -> list[Line]:
    rows = [paper.paper_row(key.minibatches, key.net, key.population, loss) for loss in _PAPER_NAMES]
    return [
        Line(_PAPER_NAMES[row.loss], "paper", tuple(_of_paper(row.figures.get(name)) for name in PAPER_COLUMNS))
        for row in rows
        if row is not None
    ]


def _of_paper(value: float | None) -> Entry:
    """As printed, and with two places at least."""
    if value is None:
        return Entry("–")
    return Entry(words.number(value, max(2, len(f"{value:g}".partition(".")[2]))))


def _by_population(summary: Summary) -> Table:
    """Everything, where the paper's tables do not have it all."""
    own = [row for row in summary.rows if row.key.loss != CONSTANT]
    rest = [] if all(_is_of_paper(row.key, summary) for row in own) else own
    found = tuple(sections(summary, COLUMNS, rest))
    return Table("populations", "Figures by population", _headers(COLUMNS), found, (LEGEND, SKILL, PREDICTED))


def _metadata(summary: Summary) -> Table:
    """By population; the nets of one loss below each other."""
    groups: dict[CellKey, list[Row]] = {}
    for row in summary.rows:
        if row.key.loss != CONSTANT:
            groups.setdefault(_context(row)._replace(net=""), []).append(row)
    found = []
    for key, rows in groups.items():
        methods = list(dict.fromkeys(words.method(row.key) for row in rows))
        rows.sort(key=lambda row: methods.index(words.method(row.key)))
        lines = [_line(row, tuple(COLUMNS), f"{words.method(row.key)}: {words.net(row.key, summary.config)}") for row in rows]
        found.append(Section(key, words.where(key, summary.config), (_constant(key, summary, tuple(COLUMNS)), *lines)))
    title = "Image, metadata and both, by population"
    return Table("metadata", title, _headers(COLUMNS), tuple(found), (LEGEND, SKILL, PREDICTED))


def _ratings(summary: Summary) -> Table:
    found = [_with_paper(section, RATING_COLUMNS) for section in sections(summary, RATING_COLUMNS)]
    return Table("ratings", "Ratings 1 to 5", _headers(RATING_COLUMNS), tuple(found), (RATING_LEGEND, _ABOUT_RATINGS))


def _ratings_by_class(summary: Summary) -> Table:
    """Off by one within each rating, and benign or malignant, for both rules."""
    found: list[Section] = []
    for rule in ("majority", "mean"):
        columns = {f"{rule}_{name}": title for name, title in _CLASS_COLUMNS.items()}
        for section in sections(summary, columns):
            lines = tuple(line for line in section.lines if line.origin == "ours")
            titled = replace(section, title=f"{section.title}, by {rule}", lines=lines)
            found.append(_with_paper(titled, columns))
    title = "Recall off by one of each rating, and benign or malignant from ratings"
    notes = (RATING_LEGEND, _ABOUT_RATINGS, "Benign or malignant: nodules rated 3 are left out, 4 and 5 are malignant.")
    return Table("ratings_by_class", title, _headers(_CLASS_COLUMNS), tuple(found), notes)


def _with_paper(section: Section, columns: Iterable[str]) -> Section:
    """Its line, where the likelihood is its own."""
    if (section.key.likelihood, section.key.minibatches) != ("onion-peeling", "rebalanced"):
        return section
    names = [name.removeprefix("majority_").removeprefix("mean_") for name in columns]
    line = Line(_PAPER_NAMES["published"], "paper", tuple(_of_paper(paper.RATINGS.get(name)) for name in names))
    return replace(section, lines=(line, *section.lines))


def _headers(columns: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(columns.values())
