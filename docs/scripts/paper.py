"""Run the studies that check the paper's claims, and write docs/results/paper-*, which docs/paper.md includes.

Finished studies are stored as docs/results/paper/NAME.npz (predictions, offsets and traces of every run), and how they were
made in made.json beside them. From these files alone come paper.json (commands, commits, seeds, times, checks),
paper-claims.md, paper-trivial.md and paper-checks.md (verdicts), paper-starts-RATE.md, paper-standings-RATE.md and
paper-starts.png (every loss from both starts), and for each study paper-NAME.md (pictures) and paper-NAME-details.md.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import indent
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure as Picture
from matplotlib.ticker import NullLocator

from rightloss.atomic_files import write_whole
from rightloss.card.words import counted
from rightloss.study import PRESETS, StudyResults, read_one_file, read_study, write_one_file
from rightloss.study.config import StudyConfig, options_of
from rightloss.study.methods import METHODS
from rightloss.study.report.export import markdown_rows, to_markdown
from rightloss.study.report.figures import Drawing, panels_of, prevalence_figures, rating_figures, roc_figure, trace_figures
from rightloss.study.report.page import command
from rightloss.study.report.tables import tables
from rightloss.study.summary import CellSummary, PaperCheck, Summary, summarise, wording
from rightloss.study.summary.contract import AUC, CONSTANT, LOG_LIKELIHOOD, CellPair

from .across_studies import ORDER, by_claim, checks_across
from .charts import make_charts

ROOT = Path(__file__).resolve().parent.parent.parent
OUT = ROOT / "docs" / "results"
STORED = OUT / "paper"
RESULTS = ROOT / "results" / "paper"
DATA = Path(os.environ.get("RIGHTLOSS_DATA", ROOT.parent / "shared" / "data"))
SLICES, SLABS = "lidc_slices.npz", "lidc_slabs.npz"
THREE = "--loss information-gain --loss published --loss published-network --loss weighted"
SMALL = "--folds 5 --steps 300 --views 3 --learning-rate 0.003 --checkpoints 6 --averaging 0.98 --small"  # than the presets
BOTH = f"{SMALL} --start population --start equal"
STUDIES = {  # name → preset and options; they share runs in one folder
    "table1": f"table1 {THREE} --loss published-running {BOTH} --data {SLABS} --data contours --data {SLICES}",
    "table2": f"table2 {THREE} --loss plain {BOTH} --data {SLABS} --data contours",
    "ratings": f"ratings {THREE} {SMALL} --likelihood onion-peeling --likelihood categorical "
    f"--data {SLABS} --data contours --data {SLICES}",
    "prevalence-sweep": f"prevalence-sweep {THREE} {SMALL} --prevalence 0.3 --prevalence 0.1 --prevalence 0.03 "
    f"--prevalence 0.01 --prevalence 0.001 --data {SLABS} --data contours",
    "full": "table1 --loss information-gain --loss published-network --loss weighted --folds 1 --net convnet --steps 300 "
    f"--views 9 --learning-rate 0.001 --checkpoints 6 --data {SLABS}",
}
SOURCES = {"lidc_slabs": "CT slabs", "contours": "readers' outlines", "lidc_slices": "CT slices"}
TICKS = (0.7, 1, 2, 5, 10, 20)
COLOURS = {
    "information-gain": "#0072b2",
    "published": "#d55e00",
    "published-running": "#e69f00",
    "published-network": "#cc79a7",
    "weighted": "#009e73",
}


@dataclass(frozen=True)
class Study:
    """A stored study, its summary, and how it was made."""

    name: str
    results: StudyResults
    summary: Summary
    made: dict[str, Any]

    @property
    def config(self) -> StudyConfig:
        return self.summary.config

    def pictures(self) -> Iterator[Drawing]:
        """Yield ROC curves and traces of tables, figures over prevalences, and ratings."""
        if self.config.task == "rating":
            yield from rating_figures(self.results, self.summary)[:1]
            return
        if len(self.config.populations) > 2:
            yield from prevalence_figures(self.summary)[:2]
        else:
            yield from [roc_figure(panel) for panel in panels_of(self.results)][:1]
        yield from trace_figures(self.results)[1:2]  # the lowest prevalence


def run_study(name: str, seeds: int, workers: int | None) -> None:
    """Run a study or what is missing of it, store its predictions, and note the commit and the processor time."""
    made = STORED / "made.json"
    options = [str(DATA / word) if word in (SLICES, SLABS) else word for word in STUDIES[name].split()]
    options += ["--seeds", str(seeds), "--out", str(RESULTS)]
    options += ["--workers", str(workers)] if workers else []
    done, before = len([*RESULTS.glob("runs/*.npz")]), sum(os.times()[2:4])  # seconds of children
    try:
        subprocess.run([Path(sys.executable).with_name("rightloss"), "study", *options], check=True)
    finally:
        if len([*RESULTS.glob("runs/*.npz")]) != done:
            STORED.mkdir(exist_ok=True)
            notes = json.loads(made.read_text(encoding="utf-8")) if made.exists() else {}
            earlier = notes.get(name, {"commit": "", "cpu_minutes": 0.0})
            command = ["git", "rev-parse", "--short", "HEAD"]
            here = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
            commits = dict.fromkeys([*filter(None, earlier["commit"].split(", ")), here])
            minutes = round(earlier["cpu_minutes"] + (sum(os.times()[2:4]) - before) / 60, 1)
            notes[name] = {"commit": ", ".join(commits), "cpu_minutes": minutes}
            write_whole(made, json.dumps(notes, indent=1) + "\n")
    write_one_file(read_study(RESULTS), STORED / f"{name}.npz")


def stored_studies() -> list[Study]:
    """Return every stored study, summarised in parallel."""
    made = json.loads((STORED / "made.json").read_text(encoding="utf-8"))
    names = [name for name in STUDIES if (STORED / f"{name}.npz").exists()]
    results = [read_one_file(STORED / f"{name}.npz") for name in names]
    with ProcessPoolExecutor() as pool:
        summaries = list(pool.map(summarise, results))
    return [Study(name, found, summary, made[name]) for name, found, summary in zip(names, results, summaries, strict=True)]


# Claims.


def all_checks(studies: Sequence[Study]) -> list[tuple[str, PaperCheck]]:
    """Return each check with the words that say where it was made; once, if studies share its runs."""
    found: dict[Any, tuple[str, PaperCheck]] = {}
    for study in (each for each in studies if each.name != "full"):
        for check in study.summary.checks:
            found.setdefault((check.about, *sorted(check.setting.items())), (_place(study, check), check))
    return [*found.values(), *((check.where, check) for check in checks_across([study.summary for study in studies]))]


def _place(study: Study, check: PaperCheck) -> str:
    config = study.config
    data = "" if len(config.sources) > 1 else wording.source(config.sources[0].name)
    stand_in = "balanced set" if config.task == "balanced" else ""
    raw = "raw" if config.minibatches == ("raw",) else ""
    return ", ".join(filter(None, [data, stand_in, raw, check.where]))


def claims_table(checks: Sequence[PaperCheck], trivial: bool) -> str:
    """Return a row per claim, those that always answering π fulfils or the others: verdicts over settings by start, and all."""
    lines = [["the paper's claim", "from π", "from equal classes", "over all"], ["---"] * 4]
    for claim in by_claim(checks, trivial=trivial):
        own = [check for check in checks if check.about.partition(": ")[0] == claim.claim]
        starts = [_counts([each for each in own if each.setting.get("start", "population") == name]) for name in wording.STARTS]
        because = f", by {claim.depends_on}" if claim.depends_on else ""
        lines.append([wording.capitalised(claim.claim), *starts, f"**{claim.overall}**{because}"])
    return markdown_rows(lines) + "\n"


def _counts(checks: Sequence[PaperCheck]) -> str:
    verdicts = [check.verdict for check in checks]
    return ", ".join(f"{verdict} {verdicts.count(verdict)}" for verdict in ORDER if verdict in verdicts) or "–"


def checks_table(checks: Sequence[tuple[str, PaperCheck]]) -> str:
    """Return a row per check, those of one claim below each other."""
    lines = [["the paper's claim", "where we checked", "the paper", "ours", "verdict"], ["---"] * 5]
    for about in dict.fromkeys(check.about for _, check in checks):
        own = [(place, check) for place, check in checks if check.about == about]
        where = "; ".join(dict.fromkeys(part for _, check in own for part in check.place.split("; ")))
        claim = f"{wording.capitalised(about)} *({where})*"
        for place, check in own:
            lines.append([claim, place, check.paper or "–", check.ours, f"**{check.verdict}**"])
            claim = ""
    return markdown_rows([[cell.replace("|", "\\|") for cell in line] for line in lines]) + "\n"


# Every loss from both starts.


def starts_table(summary: Summary, population: float) -> str:
    """Return a row per data set, net, start and loss, as trained and matched to π, with differences to the default."""
    matched = {row.key: row for row in summary.matched_rows}
    given, after = (
        {each.theirs: each for each in some if each.about == "loss"}
        for some in (summary.comparisons, summary.matched_comparisons)
    )
    head = ["exp. log-lik.", "skill", "AUC", "TPR/TNR at ½", "mean prediction", "log-lik. minus the default's", "AUC minus"]
    head += ["skill, matched", "log-lik. minus, matched"]
    lines = [["loss, start", *head], ["---", *("--:" for _ in head)]]
    title = ""
    for row in summary.rows:
        if row.key.population != population or row.key.loss == CONSTANT:
            continue
        where = f"{SOURCES[row.key.data]}, {wording.NETS[row.key.net]}"
        if where != title:
            lines.append([f"**{where}**", *("" for _ in head)])
            title = where
        figures, moved = row.figures, matched[row.key].figures
        rates = [wording.number(figures[name].value, 3) for name in ("tpr", "tnr")]
        own = [_shown(row, LOG_LIKELIHOOD), wording.with_interval(figures["skill"], 2), wording.with_interval(figures[AUC], 3)]
        own += ["/".join(rates), _shown(row, "mean_prediction")]
        own += [_difference(given.get(row.key), LOG_LIKELIHOOD), _difference(given.get(row.key), AUC)]
        own += [wording.with_interval(moved["skill"], 2), _difference(after.get(row.key), LOG_LIKELIHOOD)]
        lines.append([f"{wording.method(row.key)}, {wording.STARTS[row.key.start]}", *own])
    return markdown_rows(lines) + "\n"


def standings_table(summary: Summary, population: float) -> str:
    """Return how each loss stands against the default from the same start, counted over data sets and nets."""
    columns = {
        "log-lik., as trained": (summary.comparisons, LOG_LIKELIHOOD),
        "log-lik., matched to π": (summary.matched_comparisons, LOG_LIKELIHOOD),
        "AUC": (summary.comparisons, AUC),
    }
    lines = [["loss, start: ahead of the default / level / behind", *columns], ["---", *("--:" for _ in columns)]]
    for loss, start in itertools.product(summary.config.losses[1:], summary.config.starts):
        cells = []
        for comparisons, name in columns.values():
            found = [
                each.differences[name].standing  # of the default
                for each in comparisons
                if each.about == "loss"
                and (each.theirs.loss, each.theirs.start, each.theirs.population) == (loss, start, population)
            ]
            cells.append(" / ".join(str(found.count(word)) for word in ("behind", "undecided", "ahead")))
        lines.append([f"{METHODS[loss].title}, {wording.STARTS[start]}", *cells])
    return markdown_rows(lines) + "\n"


def _shown(row: CellSummary, name: str) -> str:
    return wording.with_interval(row.figures[name], wording.decimals(name, row.key.population))


def _difference(comparison: CellPair | None, name: str) -> str:
    """Return theirs minus the default."""
    if comparison is None or name not in comparison.differences:
        return "–"
    found = comparison.differences[name].figure
    return wording.difference(type(found)(-found.value, -found.high, -found.low))


def starts_picture(summary: Summary, population: float) -> Picture:
    """Draw the loss of likelihood relative to always answering π, as trained and matched: filled from π, hollow from ½."""
    places = list(dict.fromkeys((row.key.data, row.key.net) for row in summary.rows if row.key.net))
    losses = [loss for loss in COLOURS if loss in summary.config.losses]
    picture, axes = plt.subplots(1, 2, figsize=(9, 0.95 * len(places) + 1.4), sharey=True, sharex=True, layout="constrained")
    for axis, rows, title in zip(axes, (summary.rows, summary.matched_rows), ("as trained", "matched to π"), strict=True):
        for row in (row for row in rows if row.key.population == population and row.key.loss in COLOURS):
            number = 2 * losses.index(row.key.loss) + (row.key.start == "equal")
            height = places.index((row.key.data, row.key.net)) + 0.075 * (number - len(losses) + 0.5)
            skill, colour = row.figures["skill"], COLOURS[row.key.loss]
            axis.plot([1 - skill.high, 1 - skill.low], [height, height], color=colour, lw=1.2)
            filled = colour if row.key.start == "population" else "white"
            axis.plot(1 - skill.value, height, "o", color=colour, mfc=filled, ms=5)
        axis.axvline(1, color="#555555", lw=1, ls=":")
        axis.set(xscale="log", title=title)
        axis.set_xticks(TICKS, [f"{each:g}" for each in TICKS], minor=False)
        axis.xaxis.set_minor_locator(NullLocator())
        axis.grid(axis="x", alpha=0.25)
    axes[0].set_yticks(range(len(places)), [f"{SOURCES[data]},\n{wording.NETS[net]}" for data, net in places])
    axes[0].invert_yaxis()
    label = f"expected loss at π = {population:g}, relative to always answering π (log scale; left is better, 1 is no better)"
    picture.supxlabel(label, fontsize=9)
    handles = [plt.Line2D([], [], color=COLOURS[loss], marker="o", ls="", label=METHODS[loss].short) for loss in losses]
    for start, face in (("started at π", "#555555"), ("started at ½", "white")):
        handles.append(plt.Line2D([], [], color="#555555", marker="o", ls="", mfc=face, label=start))
    picture.legend(handles=handles, loc="outside upper center", ncols=4, frameon=False, fontsize=9)
    return picture


# A study's part of the page.


def details(study: Study) -> str:
    """Return command, time and what was reduced, then every check and figure, folded."""
    made = (
        f"Made by `{command(study.config)}` in {study.made['cpu_minutes']:g} minutes of one core, commit "
        f"{study.made['commit']}, {counted(study.config.seeds, 'seed')}. Reduced from the preset: "
        f"{'; '.join(reductions(study.config)) or 'nothing'}."
    )
    full = [to_markdown(table) for table in tables(study.summary) if table.name not in ("checks", "standings")]
    lines = indent("\n\n".join(full), "    ").rstrip("\n")
    return f'{made}\n\n??? note "All figures, with intervals"\n\n{lines}\n'


def reductions(config: StudyConfig) -> Iterator[str]:
    """Yield each option that differs from the preset's: "steps 2000 → 300"."""
    preset = PRESETS[config.preset]
    for own, usual in ((config, preset), (config.training, preset.training)):
        for field, option in options_of(type(own)).items():
            ours, theirs = (_words(getattr(each, field)) for each in (own, usual))
            if ours != theirs and field != "sources":
                yield f"{option.name} {theirs} → {ours}"


def _words(value: Any) -> str:
    values = value if isinstance(value, tuple) else (str(value),)
    return ", ".join(f"{each:g}" if isinstance(each, float) else str(each) for each in values)


def write_pages(studies: Sequence[Study]) -> None:
    """Write every part of the page."""
    for old in OUT.glob("paper-*"):
        if old.name != "paper-verdicts.png":
            old.unlink()
    checks = all_checks(studies)
    alone = [check for _, check in checks]
    parts = {
        "claims": claims_table(alone, trivial=False),
        "trivial": claims_table(alone, trivial=True),
        "checks": checks_table(checks),
    }
    for study in studies:
        drawings = list(study.pictures())
        for drawing in drawings:
            write_whole(OUT / f"paper-{study.name}-{drawing.name}.svg", drawing.svg())
        shown = [f"![{drawing.alt}](results/paper-{study.name}-{drawing.name}.svg)" for drawing in drawings]
        parts |= {study.name: "\n\n".join(shown) + "\n", f"{study.name}-details": details(study)}
        if study.name == "table1":
            for population in study.config.populations:
                assert population is not None
                parts[f"starts-{population:g}"] = starts_table(study.summary, population)
                parts[f"standings-{population:g}"] = standings_table(study.summary, population)
            starts_picture(study.summary, 0.001).savefig(OUT / "paper-starts.png", dpi=130)
    for name, text in parts.items():
        write_whole(OUT / f"paper-{name}.md", _renamed(text))
    content = {
        "studies": [
            {"name": each.name, "command": command(each.config), "seeds": each.config.seeds, **each.made} for each in studies
        ],
        "claims": [claim._asdict() for claim in by_claim(alone)],
        "checks": [{**asdict(check), "where": place} for place, check in checks],
    }
    write_whole(OUT / "paper.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _renamed(text: str) -> str:
    """Return the text with names of data sets in words, except in commands and links."""
    for name in ("lidc_slabs", "lidc_slices"):
        escaped = name.replace("_", r"\\?_")  # as tables have it
        text = re.sub(rf"(?<![\w/-]){escaped}(?![\w.-])", SOURCES[name], text)
    return text


def make_paper(names: Sequence[str], run: bool, seeds: int, workers: int | None) -> None:
    """Run studies, by default all; or write the pages of all."""
    if not run:
        if names:
            raise ValueError("Expected no names without --run: the page shows all studies.")
        write_pages(stored_studies())
        return make_charts()
    if unknown := sorted(set(names) - set(STUDIES)):
        raise ValueError(f"Expected some of {', '.join(STUDIES)}, but got {', '.join(unknown)}.")
    if missing := [name for name in (SLICES, SLABS) if not (DATA / name).exists()]:
        raise ValueError(f"Expected {', '.join(missing)} in {DATA}: name the folder by RIGHTLOSS_DATA.")
    for name in names or STUDIES:
        run_study(name, seeds, workers)
