"""Run the studies that check the paper's claims, and write docs/results/paper-*, which docs/paper.md includes.

    .venv/bin/python docs/make_paper.py --run     # about three hours of one core; stop and resume at will
    .venv/bin/python docs/make_paper.py           # writes the pages from finished studies, trains nothing

Figures and verdicts are those of each study's `summary.json`; `made.json` beside it has the commit and the time. Writes
paper.json (commands, commits, seeds, times, checks), paper-checks.md (the table of all claims), and for each study
paper-NAME.md (pictures, a short table) and paper-NAME-details.md.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rightloss.atomic_files import whole_file
from rightloss.study import PRESETS
from rightloss.study.config import StudyConfig, options_of
from rightloss.study.pooled_predictions import CellKey
from rightloss.study.report.export import to_markdown
from rightloss.study.report.methods_section import command
from rightloss.study.report.tables import tables
from rightloss.study.summary import PaperCheck, Summary, wording
from rightloss.study.summary.across_studies import checks_across

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "results"
RESULTS = ROOT / "results" / "paper"
DATA = Path(os.environ.get("RIGHTLOSS_DATA", ROOT.parent / "shared" / "data"))
SLICES, SLABS = "lidc_slices.npz", "lidc_slabs.npz"
SMALLER = "--folds 5 --steps 300 --checkpoints 6 --averaging 0.98"  # than the presets
THREE = "--loss information-gain --loss published --loss published-network --loss weighted"
BOTH = "--start population --start equal"
SMALL = f"{SMALLER} {BOTH} --views 3 --learning-rate 0.003 --small"
STUDIES = {  # name of the folder → preset and options
    "table1": f"table1 {THREE} --loss published-running {SMALL} --data {SLABS} --data contours --data {SLICES}",
    "table2": f"table2 {THREE} --loss plain {SMALL} --data {SLABS} --data contours",
    "ratings": f"ratings {THREE} {SMALL} --likelihood onion-peeling --likelihood categorical "
    f"--data {SLABS} --data contours --data {SLICES}",
    "prevalence-sweep": f"prevalence-sweep {THREE} {SMALL} --prevalence 0.3 --prevalence 0.1 --prevalence 0.03 "
    f"--prevalence 0.01 --prevalence 0.001 --data {SLABS} --data contours",
    "metadata": f"metadata {THREE} {SMALL} --prevalence 0.5 --prevalence 0.03 --prevalence 0.001",
    "full": "table1 --loss information-gain --loss published-network --loss weighted --folds 1 --net convnet --steps 300 --views 9 "
    f"--learning-rate 0.001 --checkpoints 6 --data {SLABS}",
}
VERDICTS = {"does not": "does not reproduce"}
LOWER_AUC = "the weighted loss has a lower AUC at a prevalence of 0.001"
ORDER = ("reproduces", "does not", "undecided", "cannot be tested")


@dataclass(frozen=True)
class Layout:
    """How a study is shown.

    Attributes:
        pictures: the first files that match, one per pattern.
        by: fields of a row's label.
        figures: of the short table, by name, with their titles; a column for each loss.
        rare: whether the short table has the lowest prevalence alone.
        nets: whose claims about losses are listed among all claims; none for a net without images.
        claims: of other nets, that are listed, too.
    """

    pictures: tuple[str, ...]
    by: tuple[str, ...]
    figures: dict[str, str]
    rare: bool = False
    nets: tuple[str, ...] = ("convnet", "inception", "fully-convolutional", "gated")
    claims: tuple[str, ...] = ()


LIKELIHOOD = {"expected_log_likelihood": "exp. log-lik."}
LAYOUTS = {
    "features": Layout(("inferences-*.png",), ("inference",), {**LIKELIHOOD, "auc": "AUC"}, True, (), (LOWER_AUC,)),
    "ratings": Layout(("ratings-*.png",), ("data", "likelihood"), {**LIKELIHOOD, "mean_off_by_one": "Acc. ±1"}),
    "metadata": Layout(
        ("nets-*.png", "prevalences-*image-and-metadata*.png"),
        ("population", "net"),
        {"auc": "AUC", "skill": "skill"},
        nets=("both",),
    ),
    "table1": Layout(("roc-*.png",), ("data", "net", "population"), {**LIKELIHOOD, "tpr": "TPR"}),
    "table2": Layout(("roc-*.png",), ("data", "net", "population"), {**LIKELIHOOD, "tpr": "TPR"}),
    "prevalence-sweep": Layout(("roc-*.png", "prevalences-*.png"), ("data", "population"), {"skill": "skill", "tpr": "TPR"}),
}
SHOWN = ("information-gain", "published", "weighted")  # losses of the short tables


@dataclass(frozen=True)
class Study:
    """A study's folder, its summary, and how it was made."""

    folder: Path
    summary: Summary
    made: dict[str, Any]

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def config(self) -> StudyConfig:
        return self.summary.config

    @property
    def layout(self) -> Layout:
        return LAYOUTS[self.config.preset]

    def pictures(self) -> list[Path]:
        """Return the first picture of each data set that matches a pattern."""
        found = [sorted((self.folder / "figures").glob(pattern)) for pattern in self.layout.pictures]
        several = len(self.config.sources) > 1
        return [path for some in found for path in (some if several else some[:1])]


def run(name: str, seeds: int, workers: int | None) -> None:
    """Run a study or what is missing of it, and note the commit and the processor time, with that of earlier runs."""
    folder = RESULTS / name
    options = [str(DATA / word) if word in (SLICES, SLABS) else word for word in STUDIES[name].split()]
    options += ["--seeds", str(seeds), "--out", str(folder)]
    options += ["--workers", str(workers)] if workers else []
    made = folder / "made.json"
    earlier = json.loads(made.read_text(encoding="utf-8")) if made.exists() else {"commit": "", "cpu_minutes": 0.0}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    commits = dict.fromkeys([*filter(None, earlier["commit"].split(", ")), commit.stdout.strip()])
    done, before = _finished_runs(folder), _seconds_of_children()
    try:
        subprocess.run([Path(sys.executable).with_name("rightloss"), "study", *options], check=True)
    finally:
        if _finished_runs(folder) != done:
            minutes = earlier["cpu_minutes"] + (_seconds_of_children() - before) / 60
            with whole_file(made) as file:
                file.write(json.dumps({"commit": ", ".join(commits), "cpu_minutes": round(minutes, 1)}).encode())


def _finished_runs(folder: Path) -> int:
    return len([*folder.glob("runs/*.npz")])


def _seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def read(folder: Path) -> Study:
    """Read a finished study."""
    if not (folder / "summary.json").exists() or not (folder / "made.json").exists():
        raise ValueError(f"Expected a finished study in {folder}, but there is none: run it with `--run`.")
    summary = Summary.read(folder / "summary.json")
    if summary.missing:
        raise ValueError(f"Expected a finished study in {folder}, but {summary.missing} runs are missing: let it end.")
    return Study(folder, summary, json.loads((folder / "made.json").read_text(encoding="utf-8")))


# The table of all claims.


def all_checks(studies: Sequence[Study]) -> list[tuple[str, PaperCheck]]:
    """Return each check with the words that say where it was made."""
    found = [(_place(study, check), check) for study in studies for check in study.summary.checks if _is_listed(study, check)]
    return found + [(check.where, check) for check in checks_across([study.summary for study in studies])]


def _is_listed(study: Study, check: PaperCheck) -> bool:
    """Leave claims about losses to nets of images, and in the study of metadata to the net that sees both."""
    own = "standard strategy" in check.about or "together" in check.about or study.config.task == "rating"
    own = own or check.about in study.layout.claims
    return own or any(wording.NETS[net] in check.where for net in study.layout.nets)


def _place(study: Study, check: PaperCheck) -> str:
    config = study.config
    data = "" if len(config.sources) > 1 else wording.source(config.sources[0].name)
    stand_in = "balanced set" if config.task == "balanced" else ""
    raw = "raw" if config.minibatches == ("raw",) and config.task == "binary" and "mlp" not in config.nets else ""
    return ", ".join(filter(None, [data, stand_in, raw, check.where]))


def checks_table(checks: Sequence[tuple[str, PaperCheck]]) -> str:
    """Return a row per check, those of one claim below each other."""
    lines = ["| the paper's claim | where we checked | the paper | ours | verdict |", "| --- | --- | --- | --- | --- |"]
    for about in dict.fromkeys(_claim(check) for _, check in checks):
        own = [(place, check) for place, check in checks if _claim(check) == about]
        where = "; ".join(dict.fromkeys(part for _, check in own for part in check.place.split("; ")))
        claim = f"{wording.capitalised(about)} *({where})*"
        for place, check in own:
            entries = [claim, _specific(place, check), check.paper or "–", check.ours or check.sentence]
            lines.append("| " + " | ".join([*entries, f"**{VERDICTS.get(check.verdict, check.verdict)}**"]) + " |")
            claim = ""
    return "\n".join(lines) + "\n"


def _claim(check: PaperCheck) -> str:
    return check.about.partition(": ")[0]


def _specific(place: str, check: PaperCheck) -> str:
    return ", ".join(filter(None, [check.about.partition(": ")[2], place]))


def counts(checks: Sequence[tuple[str, PaperCheck]]) -> str:
    """Say how many checks had which verdict."""
    verdicts = [check.verdict for _, check in checks]
    parts = [f"{VERDICTS.get(each, each)} {verdicts.count(each)}" for each in ORDER if each in verdicts]
    return f"{len({_claim(check) for _, check in checks})} claims in {len(verdicts)} checks: {', '.join(parts)}."


# A study's part of the page.


def picture_and_table(study: Study) -> str:
    """Return the pictures, and below them the short table."""
    pictures = [f"![{_alt(study, path)}](results/paper-{study.name}-{path.name})" for path in study.pictures()]
    return "\n\n".join([*pictures, short_table(study)]) + "\n"


def details(study: Study) -> str:
    """Return command, time and what was reduced, then every check and figure, folded."""
    seeds = wording.counted(study.config.seeds, "seed")
    made = (
        f"Made by `{command(study.config)}` in {study.made['cpu_minutes']:g} minutes of one core, commit "
        f"{study.made['commit']}, {seeds}. Reduced from the preset: {'; '.join(reductions(study.config)) or 'nothing'}."
    )
    full = [to_markdown(table) for table in tables(study.summary)]
    checks = [
        f"- *{each.about} ({each.where}): {VERDICTS.get(each.verdict, each.verdict)}.* {each.sentence}"
        for each in study.summary.checks
    ]
    findings = [f"- {sentence}" for sentence in study.summary.findings]
    parts = [
        folded("Every check of this study, with its figures", "\n".join(checks)),
        folded("All figures, with intervals", "\n\n".join(full)),
        folded("What the report says", "\n\n".join([study.summary.answer, study.summary.question, "\n".join(findings)])),
    ]
    return "\n\n".join([made, *parts]) + "\n"


def _alt(study: Study, path: Path) -> str:
    return f"{study.name}: {path.stem.replace('-', ' ')}"


def folded(title: str, content: str) -> str:
    """Return an admonition that opens on a click."""
    lines = [f"    {line}" if line else "" for line in content.splitlines()]
    return "\n".join([f'??? note "{title}"', "", *lines])


def reductions(config: StudyConfig) -> Iterator[str]:
    """Yield each option that differs from the preset's: "steps 2000 → 300"."""
    preset = PRESETS[config.preset]
    for own, usual in ((config, preset), (config.training, preset.training)):
        for field, option in options_of(type(own)).items():
            ours, theirs = (_words(getattr(each, field)) for each in (own, usual))
            if ours != theirs and field != "sources":
                yield f"{option.name} {theirs} → {ours}"


def _words(value: Any) -> str:
    return (
        ", ".join(f"{each:g}" if isinstance(each, float) else str(each) for each in value)
        if isinstance(value, tuple)
        else str(value)
    )


def short_table(study: Study) -> str:
    """Return figures without intervals, a column per figure and loss of those that the paper is about."""
    layout, config = study.layout, study.config
    rows = [row for row in study.summary.rows if row.key.loss in SHOWN]
    if layout.rare:
        rows = [row for row in rows if row.key.population == min(config.populations)]  # type: ignore[type-var]
    losses = list(dict.fromkeys(row.key.loss for row in rows))
    head = [f"{title}, {wording.SHORT_LOSSES[loss]}" for title in layout.figures.values() for loss in losses]
    lines = ["| " + " | ".join(["", *head]) + " |", "| --- |" + " --: |" * len(head)]
    by_label: dict[str, dict[str, Any]] = {}
    for row in rows:
        by_label.setdefault(_label(row.key, study), {})[row.key.loss] = row
    for label, own in by_label.items():
        entries = []
        for name in layout.figures:
            for loss in losses:
                places = wording.decimals(name, own[loss].key.population)
                entries.append(wording.number(own[loss].figures[name].value, places))
        lines.append("| " + " | ".join([label, *entries]) + " |")
    return "\n".join(lines)


def _label(key: CellKey, study: Study) -> str:
    config = study.config
    words = {
        "data": wording.source(key.data) if len(config.sources) > 1 else "",
        "net": wording.net(key, config),
        "population": "" if key.population is None else f"π = {key.population:g}",
        "likelihood": wording.LIKELIHOODS[key.likelihood],
        "inference": wording.INFERENCES[key.inference],
    }
    return ", ".join(filter(None, (words[field] for field in study.layout.by)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"with --run: some of {', '.join(STUDIES)}; all by default")
    parser.add_argument("--run", action="store_true", help="run the studies, and write no page")
    parser.add_argument("--seeds", type=int, default=1, help="with --run: repetitions; more can be added later")
    parser.add_argument("--workers", type=int, help="with --run: processes; one per processor by default")
    chosen = parser.parse_args()
    if chosen.names and not chosen.run:
        parser.error("names of studies are for --run: the page shows all of them")
    if chosen.run:
        missing = [name for name in (SLICES, SLABS) if not (DATA / name).exists()]
        if missing:
            parser.error(f"expected {', '.join(missing)} in {DATA}: name the folder by RIGHTLOSS_DATA")
        for name in chosen.names or STUDIES:
            run(name, chosen.seeds, chosen.workers)
        return
    studies = [read(RESULTS / name) for name in STUDIES]
    for old in OUT.glob("paper-*"):
        old.unlink()
    checks = all_checks(studies)
    (OUT / "paper-checks.md").write_text(f"{counts(checks)}\n\n{checks_table(checks)}", encoding="utf-8")
    for study in studies:
        (OUT / f"paper-{study.name}.md").write_text(picture_and_table(study), encoding="utf-8")
        (OUT / f"paper-{study.name}-details.md").write_text(details(study), encoding="utf-8")
        for picture in study.pictures():
            shutil.copyfile(picture, OUT / f"paper-{study.name}-{picture.name}")
    content = {
        "studies": [
            {"name": each.name, "command": command(each.config), "seeds": each.config.seeds, **each.made} for each in studies
        ],
        "checks": [{**asdict(check), "where": place} for place, check in checks],
    }
    (OUT / "paper.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
