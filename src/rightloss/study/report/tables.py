"""The tables of a study, independent of the output format.

Stage: `Summary` → `Table`s: the paper's Tables 1 and 2 with its figures and ours, ratings, metadata, or by population; figures
after matching to π, decisions by cost, and the paired differences. `export` writes LaTeX and Markdown and prints to the
terminal; the page's template writes HTML.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ...card.words import Shown, percent
from ...metrics import Figure
from .. import paper
from ..config import StudyConfig
from ..results import CellKey, grouped
from ..summary import CellPair, CellSummary, Summary, wording
from ..summary.comparisons import RULES, main_loss
from ..summary.contract import AUC, CONSTANT, COSTS, LOG_LIKELIHOOD

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
_OTHERS = {"accuracy": "Acc.", "weighted_accuracy": "wAcc.", "npv": "NPV"}
PAPER_COLUMNS = {name: (COLUMNS | _OTHERS)[name] for name in paper.COLUMNS}
RATING_TITLES = {"accuracy": "Acc.", "balanced_accuracy": "BA", "off_by_one": "Acc. ±1", "balanced_off_by_one": "BA ±1"}
RATING_COLUMNS = {
    "expected_log_likelihood": "exp. log-lik.",
    **{f"{rule}_{name}": f"{title}, {rule}" for rule in RULES for name, title in RATING_TITLES.items()},
    "score_within_half": "score ±½",
    "score_within_one": "score ±1",
    "score_error": "score error",
}
_CLASS_COLUMNS = {
    **{f"off_by_one_recall_{rating}": f"{rating} ±1" for rating in range(1, 6)},
    "malignant_accuracy": "Acc.",
    **{f"malignant_{name}": name.upper() for name in ("tpr", "tnr", "ppv", "npv")},
}
NAMES = "table1 table2 populations metadata ratings ratings_by_class matched costs standings checks".split()
_PAPER_NAMES = {"published": "bayesIG (paper)", "weighted": "wLoss (paper)"}
# What a reader needs to know of a column, in a few words.
MEANINGS = {
    "exp. log-lik.": "expected log-likelihood at π, higher is better",
    "skill": "the same, rescaled: 0 is always answering π, 1 is certainty",
    "AUC": "how often a malignant nodule is ranked above a benign one, averaged over folds and seeds",
    "Acc.": "share of correct decisions among the tested nodules",
    "wAcc.": "the same in the population",
    "BA": "mean of TPR and TNR",
    "PPV": "share of malignant ones among the nodules called malignant (from ½ on), in the population",
    "NPV": "share of benign ones among the others",
    "TPR": "share of the malignant nodules that are called so",
    "TNR": "share of the benign nodules that are called so",
    "mean pred.": "mean prediction in the population, which should be π",
    "cal. error": "mean distance between predicted and observed shares",
    "matched": "after a shift of every intercept so that the mean prediction on the validation part is π",
    "minus default": "exp. log-lik. minus that of the default from the same start, on the same nodules",
}
_INTERVALS = "Intervals: 95 %, by resampling patients; a dash is an undefined figure"
UNLABELLED = (
    "With unlabelled: also trained on the patients without labels, drawn at prevalence π by their hidden labels. The paper, "
    "which had every label, is left out."
)
BY_COST = (
    f"If missing a cancer costs as much as C needless actions (C = {' and '.join(f'{cost:,}' for cost in COSTS)}), it pays to "
    "act from a probability of 1/(C + 1) on. Benefit: cancers acted on per 1,000 people, minus needless actions divided by C."
)
BY_RULE = (
    "Readers' votes and predictions become one answer by the same rule: majority, the class nearest to the mean rating, or the "
    "mean rating itself (score). ±1: the rating or a neighbouring one. Nodules rated 3 are neither benign nor malignant. The "
    "paper's line is for onion peeling with bayesIG; it does not name the net and the rule."
)
_RARE_ENOUGH = 0.1  # the highest prevalence at which decisions by cost are shown


@dataclass(frozen=True)
class TableLine:
    """A line of a table.

    Attributes:
        label: in the first column.
        entries: in the other columns.
        origin: source of the figures; "main" for the loss that the study is about.
    """

    label: str
    entries: tuple[Shown, ...]
    origin: Literal["main", "other", "paper", "constant"] = "other"


@dataclass(frozen=True)
class TableSection:
    """Lines under a title."""

    title: str
    lines: tuple[TableLine, ...]


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        name: of its files.
        title: above it.
        columns: headers; the labels of the lines have none.
        sections: in order.
        notes: below it.

    Examples:
        >>> from rightloss.card.words import Shown
        >>> from rightloss.study.report.tables import Table, TableLine, TableSection
        >>> lines = (TableLine("weighted loss", (Shown("0.90", "0.85 to 0.94"),)),)
        >>> table = Table("auc", "AUC", ("AUC",), (TableSection("ConvNet", lines),))
        >>> print(table.sections[0].lines[0].entries[0])
        0.90 (0.85 to 0.94)
    """

    name: str
    title: str
    columns: tuple[str, ...]
    sections: tuple[TableSection, ...]
    notes: tuple[str, ...] = ()


PaperLines = Callable[[CellKey], Iterable[TableLine]]


def tables(summary: Summary) -> list[Table]:
    """Return the tables of the study, without empty ones.

    Examples:
        >>> from rightloss.study import PRESETS, StudyResults
        >>> from rightloss.study.summary import summarise
        >>> from rightloss.study.report import tables
        >>> tables(summarise(StudyResults(PRESETS["quick"], data={}, runs=())))  # no run is done
        []
    """
    config = summary.config
    if config.task == "rating":
        found = [_ratings(summary), _ratings_by_class(summary)]
    elif config.task == "balanced":
        found = [_metadata(summary)]
    else:
        of_paper = [] if config.unlabelled else [_like_paper(summary, "rebalanced"), _like_paper(summary, "raw")]
        found = [*of_paper, _by_population(summary)]
    found += [_matched(summary), _costs(summary), _standings(summary), _checks(summary)]
    return [_marked(table, config) for table in found if table.sections]


def _marked(table: Table, config: StudyConfig) -> Table:
    """Return the table with a title and a note on unlabelled patients, if there are any."""
    if not config.unlabelled:
        return table
    title = f"{table.title}, {percent(config.unlabelled)} of the training patients unlabelled"
    return replace(table, title=title, notes=(*table.notes, UNLABELLED))


def sections(
    summary: Summary,
    columns: Iterable[str],
    rows: Iterable[CellSummary] | None = None,
    paper_lines: PaperLines = lambda key: (),
    with_constant: bool = True,
) -> list[TableSection]:
    """Return all rows, or these, by data set, net and population; the paper's lines and always answering π come first."""
    names, found = tuple(columns), []
    shown = (row for row in (summary.rows if rows is None else rows) if row.key.loss != CONSTANT)
    for key, some in grouped(shown, lambda row: row.key._replace(loss="")).items():
        constant = [_constant(key, summary, names)] if with_constant else []
        lines = [_line(row, summary, names) for row in some]
        papers = () if summary.config.unlabelled else paper_lines(key)
        found.append(TableSection(wording.where(key, summary.config), (*papers, *constant, *lines)))
    return found


def comparison_table(summary: Summary) -> Table | None:
    """Return the paired differences; None if nothing is compared."""
    found = []
    for each in summary.comparisons:
        ours, theirs = _parties(each, summary)
        entries: list[str] = []
        for paired in (each.differences.get(name) for name in (LOG_LIKELIHOOD, AUC)):
            words = paired and (wording.difference(paired.figure), f"{paired.standing}, {paired.ahead} of {paired.folds}")
            entries += words or ("–", "–")
        found.append((f"{ours} minus", TableLine(theirs, tuple(map(Shown, entries)))))
    columns = ("exp. log-lik.", "verdict, folds ahead", "AUC", "verdict, folds ahead")
    return Table("comparisons", "Paired differences", columns, _sections(found)) if found else None


# Beyond the intercept, by cost, and against the default.


def _matched(summary: Summary) -> Table:
    """Return skill and log-likelihood as trained and after matching, and the difference to the default from the same start."""
    matched = {row.key: row for row in summary.matched_rows}
    differences = [_to_default(some) for some in (summary.comparisons, summary.matched_comparisons)]
    found = []
    for row in (row for row in summary.rows if row.key in matched):
        both = (row, matched[row.key])
        pairs = [_shown(each, name) for name in ("skill", LOG_LIKELIHOOD) for each in both]
        entries = (*pairs, _shown(row, AUC), *(_difference(some.get(row.key)) for some in differences))
        line = TableLine(wording.method(row.key, summary.config), entries, _origin(row.key, summary))
        found.append((wording.where(row.key, summary.config), line))
    columns = ("skill", "matched", "exp. log-lik.", "matched", "AUC", "minus default", "matched")
    return _table("matched", "Beyond the intercept: every net matched to π", columns, _sections(found))


_COMPARED = {
    "loss": "The default minus",
    "start": "Started at equal classes minus started at π",
    "unlabelled": "With unlabelled patients minus without",
    "net": "Image and metadata minus",
    "inference": "Minus one net",
    "likelihood": "Minus softmax",
}


def _standings(summary: Summary) -> Table:
    """Count in how many comparisons the first party is ahead, level and behind."""
    kinds = {
        "exp. log-lik.": (summary.comparisons, LOG_LIKELIHOOD),
        "exp. log-lik., matched": (summary.matched_comparisons, LOG_LIKELIHOOD),
        "AUC": (summary.comparisons, AUC),
    }
    standings: list[tuple[tuple[str, str], str, str]] = []  # of which comparison, in what, and how
    for kind, (comparisons, name) in kinds.items():
        for each in (each for each in comparisons if each.about in _COMPARED and name in each.differences):
            line = (_COMPARED[each.about], _party(each, summary.config))
            standings.append((line, kind, each.differences[name].standing))
    found = [
        (title, TableLine(label, tuple(_counted([word for _, own, word in some if own == kind]) for kind in kinds)))
        for (title, label), some in grouped(standings, lambda each: each[0]).items()
    ]
    return Table("standings", "Comparisons: ahead / undecided / behind", tuple(kinds), _sections(found))


def _counted(standings: list[str]) -> Shown:
    return Shown(" / ".join(f"{standings.count(word)}" for word in ("ahead", "undecided", "behind")) if standings else "–")


def _party(comparison: CellPair, config: StudyConfig) -> str:
    """Return what tells the comparisons of one kind apart."""
    ours, theirs = comparison.ours, comparison.theirs
    if comparison.about == "net":
        return wording.net(theirs, config)
    if comparison.about == "inference":
        return wording.INFERENCES[ours.inference]
    return wording.LIKELIHOODS[ours.likelihood] if comparison.about == "likelihood" else wording.method(theirs, config)


def _checks(summary: Summary) -> Table:
    """Return the paper's findings with its figures and ours; a check that always answering π passes, too, says so."""
    found = []
    for check in summary.checks:
        verdict = check.verdict + (" (as always answering π)" if check.trivial else "")
        entries = tuple(map(Shown, (check.paper or "–", check.ours, verdict)))
        found.append((f"{wording.capitalised(check.about)} ({check.place})", TableLine(check.where, entries)))
    return Table("checks", "What the paper found", ("paper", "ours", "verdict"), _sections(found))


def _sections(lines: Iterable[tuple[str, TableLine]]) -> tuple[TableSection, ...]:
    """Return the lines under their titles."""
    groups = grouped(lines, lambda each: each[0])
    return tuple(TableSection(title, tuple(line for _, line in some)) for title, some in groups.items())


def _to_default(comparisons: Iterable[CellPair]) -> dict[CellKey, Figure]:
    """Return each loss's log-likelihood minus the default's."""
    found = {each.theirs: each.differences[LOG_LIKELIHOOD].figure for each in comparisons if each.about == "loss"}
    return {key: Figure(-each.value, -each.high, -each.low, each.reason) for key, each in found.items()}


def _costs(summary: Summary) -> Table:
    """Return decisions at ½ and at the thresholds that costs demand; where malignancy is common, these act on everybody."""
    rows = tuple(
        replace(row, figures={name: _per_thousand(name, each) for name, each in row.figures.items()}) for row in summary.rows
    )
    columns = {"tpr": "TPR at ½", "tnr": "TNR at ½"}
    for cost in COSTS:
        names = {"tpr": "TPR", "tnr": "TNR", "net_benefit": "benefit"}
        columns |= {f"{name}_cost_{cost}": f"{title} at 1/{1 + cost:,}" for name, title in names.items()}
    shown = [row for row in rows if row.key.population is not None and row.key.population <= _RARE_ENOUGH]
    found = sections(replace(summary, rows=rows), columns, shown)
    return _table("costs", "Decisions by cost, beside ½", columns.values(), found, BY_COST)


def _per_thousand(name: str, figure: Figure) -> Figure:
    scale = 1000 if name.startswith("net_benefit") else 1
    return Figure(scale * figure.value, scale * figure.low, scale * figure.high, figure.reason)


def _parties(comparison: CellPair, summary: Summary) -> tuple[str, str]:
    config, ours, theirs = summary.config, comparison.ours, comparison.theirs
    if comparison.about in ("loss", "published", "unlabelled", "plain"):
        return f"{wording.where(ours, config)}: {wording.method(ours, config)}", wording.method(theirs, config)
    without = ("data",) if comparison.about == "population" else ("data", "population")
    return f"{wording.where(ours, config)}, {wording.method(ours, config)}", wording.where(theirs, config, without=without)


def _constant(key: CellKey, summary: Summary, names: Iterable[str]) -> TableLine:
    constant = CellKey(key.data, key.minibatches, "", "", "", "", key.population, CONSTANT)
    return next(_line(row, summary, names) for row in summary.rows if row.key == constant)


def _line(row: CellSummary, summary: Summary, names: Iterable[str], label: str = "") -> TableLine:
    entries = tuple(_shown(row, name) for name in names)
    return TableLine(label or wording.method(row.key, summary.config), entries, _origin(row.key, summary))


def _origin(key: CellKey, summary: Summary) -> Literal["main", "other", "constant"]:
    return "constant" if key.loss == CONSTANT else "main" if key.loss == main_loss(summary.config) else "other"


def _shown(row: CellSummary, name: str) -> Shown:
    figure, places = row.figures.get(name), wording.decimals(name, row.key.population)
    return Shown("–") if figure is None else Shown(wording.number(figure.value, places), wording.interval(figure, places))


def _difference(figure: Figure | None) -> Shown:
    value, _, ends = ("–" if figure is None else wording.difference(figure)).partition(" (")
    return Shown(value, ends.rstrip(")"))


def _paper_line(label: str, figures: Mapping[str, float], names: Iterable[str]) -> TableLine:
    """Return the paper's figures as printed, with at least two decimals."""
    values = [figures.get(name) for name in names]
    texts = ["–" if each is None else wording.number(each, max(2, len(f"{each:g}".partition(".")[2]))) for each in values]
    return TableLine(label, tuple(map(Shown, texts)), "paper")


def _like_paper(summary: Summary, minibatches: str) -> Table:
    """Return rows of the paper's nets and populations, sorted by population, with the paper's lines on top of each section."""
    number, printed = (1 if minibatches == "rebalanced" else 2), paper.TABLES[minibatches]

    def paper_lines(key: CellKey) -> Iterable[TableLine]:
        for loss, label in _PAPER_NAMES.items():
            if key.population is not None and (figures := printed.get((key.net, key.population, loss))):
                yield _paper_line(label, figures, PAPER_COLUMNS)

    own = [row for row in summary.rows if row.key.minibatches == minibatches and _is_of_paper(row.key, summary)]
    own.sort(key=lambda row: paper.POPULATIONS.index(row.key.population) if row.key.population is not None else 0)
    found = sections(summary, PAPER_COLUMNS, own, paper_lines)
    misprint = [paper.MISPRINT] if number == 1 and any(row.key.net == "inception" for row in own) else []
    title = f"The paper's Table {number}: {wording.MINIBATCHES[minibatches]}"
    return _table(f"table{number}", title, PAPER_COLUMNS.values(), found, paper.AVERAGES, *misprint)


def _is_of_paper(key: CellKey, summary: Summary) -> bool:
    plain = key.inference == ("map" if "map" in summary.config.inferences else summary.config.inferences[0])
    return key.loss != CONSTANT and key.net in paper.NETS and key.population in paper.POPULATIONS and plain


def _by_population(summary: Summary) -> Table:
    """Return all rows, unless the paper's tables have them all."""
    own = [row for row in summary.rows if row.key.loss != CONSTANT]
    rest = [] if not summary.config.unlabelled and all(_is_of_paper(row.key, summary) for row in own) else own
    return _table("populations", "Figures by population", COLUMNS.values(), sections(summary, COLUMNS, rest))


def _metadata(summary: Summary) -> Table:
    """Return rows by population; the nets of one loss are adjacent."""
    found, config = [], summary.config
    of_nets = (row for row in summary.rows if row.key.loss != CONSTANT)
    for key, rows in grouped(of_nets, lambda row: row.key._replace(net="", loss="")).items():
        rows.sort(key=lambda row: config.losses.index(row.key.loss))
        labels = [f"{wording.method(row.key, config)}: {wording.net(row.key, config)}" for row in rows]
        lines = [_line(row, summary, COLUMNS, label) for row, label in zip(rows, labels, strict=True)]
        found.append(TableSection(wording.where(key, config), (_constant(key, summary, COLUMNS), *lines)))
    return _table("metadata", "Image, metadata and both, by population", COLUMNS.values(), found)


def _ratings(summary: Summary) -> Table:
    found = sections(summary, RATING_COLUMNS, paper_lines=_paper_ratings(RATING_COLUMNS))
    return Table("ratings", "Ratings 1 to 5", tuple(RATING_COLUMNS.values()), tuple(found), (BY_RULE,))


def _ratings_by_class(summary: Summary) -> Table:
    """Return accuracy within one of each rating, and benign or malignant, for both rules."""
    found: list[TableSection] = []
    for rule in RULES:
        names = [f"{rule}_{name}" for name in _CLASS_COLUMNS]
        some = sections(summary, names, paper_lines=_paper_ratings(names), with_constant=False)
        found += [replace(section, title=f"{section.title}, by {rule}") for section in some]
    title = "Recall off by one of each rating, and benign or malignant from ratings"
    return Table("ratings_by_class", title, tuple(_CLASS_COLUMNS.values()), tuple(found), (BY_RULE,))


def _paper_ratings(columns: Iterable[str]) -> PaperLines:
    """Return the paper's line for its own likelihood and minibatches."""
    names = [name.removeprefix("majority_").removeprefix("mean_") for name in columns]

    def paper_lines(key: CellKey) -> Iterable[TableLine]:
        if (key.likelihood, key.minibatches) == ("onion-peeling", "rebalanced"):
            yield _paper_line(_PAPER_NAMES["published"], paper.RATINGS, names)

    return paper_lines


def _table(name: str, title: str, columns: Iterable[str], found: Iterable[TableSection], *notes: str) -> Table:
    """Return a table whose first note explains its columns."""
    columns = tuple(columns)
    known = [f"{column}: {MEANINGS[column]}" for column in dict.fromkeys(columns) if column in MEANINGS]
    return Table(name, title, columns, tuple(found), (f"{'; '.join([_INTERVALS, *known])}.", *notes))
