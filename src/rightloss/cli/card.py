"""`rightloss card scores.csv --target y --score risk --from 0.5 --population 0.006 --out card`.

Stage: a file of scores, a model, or a study's stored predictions → `Labelled` → card.html, card.md and card.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from ..atomic_files import check_writable
from . import commands
from .population import population_source
from .terminal import print_json, print_sentences, quiet_exit, require, warnings_on_stderr

_FILES = ("card.html", "card.md", "card.json")
_CELL = "Of a study: loss=weighted or net=mlp, say. Repeat it for other keys, or for several losses side by side."


def card(
    source: Annotated[Path, commands.argument("A file of scores, the folder of `rightloss fit`, or the folder of a study.")],
    out: Annotated[Path, commands.option("Folder to write: card.html, card.md and card.json.")],
    data: Annotated[
        Path | None, commands.argument("A labelled table for a model; without it, its held-out predictions are shown.")
    ] = None,
    target: commands.Targets = [],  # noqa: B006 (typer's way to say "none given")
    score: commands.Score = [],  # noqa: B006
    scale: commands.Scale = "probability",
    from_: commands.From = None,
    positive: commands.Positive = None,
    population: commands.Population = None,
    threshold: commands.Threshold = None,
    by: Annotated[list[str], commands.column_option("A column of subgroups. Repeat the option for more.", "--by")] = [],  # noqa: B006
    group: commands.Group = None,
    cell: Annotated[list[str], commands.option(_CELL, metavar="KEY=VALUE")] = [],  # noqa: B006
    title: Annotated[str | None, commands.option("Title of the page.")] = None,
    encoding: commands.Encoding = None,
    overwrite: commands.Overwrite = False,
    json: commands.Json = False,
) -> None:
    """Write one page about a model at a population, for the people who must decide: what happens to the next 1,000 people?

    Sensitivity, specificity, likelihood ratios, PPV and NPV at the
    population, calibration and net benefit, each with an interval, and by
    subgroup; prevalence and threshold can be moved on the page. It loads
    nothing from the net. The same as Markdown and JSON lies beside it.

    \b
    A file of risks that hold where half of the people are ill, for a place where 12 of 3,000 were found to be:
      rightloss card scores.csv --target y --score risk --from 0.5 \\
        --population 12/3000 --by sex --out card

    \b
    A model of `rightloss fit`: on a labelled table, or from its held-out predictions:
      rightloss card model labelled.csv --by clinic --out card
      rightloss card model --population 0.3%-2% --out card

    \b
    Two programs side by side; several findings, each with its own column:
      rightloss card scores.csv --target y --score first --score second \\
        --population 2% --out card
      rightloss card reads.csv --target mass --target nodule \\
        --score p_mass --score p_nodule \\
        --population mass=5%,nodule=1% --out card
    """
    _check_folder(out, overwrite)
    require("jinja2")
    with quiet_exit():
        from ..card.card import card as make_card
        from .labelled import Asked, labelled_predictions
    asked = Asked(target, positive, population, score, scale, from_, group, by, encoding)
    with warnings_on_stderr() as warned:
        labelled, about = labelled_predictions(source, data, asked, cell)
        words = {"title": title, "population_source": None if population is None else population_source(population), **about}
        options: dict[str, Any] = {
            "classes": [*map(str, labelled.classes)],
            "groups": labelled.groups,
            "by": labelled.by or None,
        }
        options |= {"from_": labelled.from_, "threshold": threshold, "about": words}
        made = make_card(labelled.predictions, labelled.target, labelled.prevalence, **options)
        made.write(out, overwrite=overwrite)
    if json:
        return print_json({"out": out, "card": made.data, "warnings": warned})
    print_sentences(*_summary(made.data), f"The card is {out / _FILES[0]}; beside it, {_FILES[1]} and {_FILES[2]}.")


def _check_folder(out: Path, overwrite: bool) -> None:
    """Raise a ValueError or OSError if a card cannot be written there."""
    there = [name for name in _FILES if (out / name).exists()]
    if not out.name.strip() or (out.exists() and not out.is_dir()) or not out.absolute().parent.is_dir():
        raise ValueError(f"Expected a folder for the card, in one that exists, but got {str(out)!r}: --out card, say.")
    if there and not overwrite:
        raise ValueError(
            f"Expected a folder without a card, but {out} has {', '.join(there)}: choose another, or add --overwrite."
        )
    check_writable(out if out.is_dir() else out.absolute().parent)


def _summary(data: Mapping[str, Any]) -> list[str]:
    """Return what happens to the next people, for each model and question."""
    said = []
    for found in data["answers"]:
        question, whole = data["questions"][found["question"]], found["whole_people"]
        label = data["about"].get("target", question["label"]) if len(data["questions"]) == 1 else question["label"]
        name = ": ".join(filter(None, [found["model"], label]))
        flagged, ill = whole["found"] + whole["false_alarms"], whole["found"] + whole["missed"]
        said.append(
            f"{name}: of {question['people']:,} people {flagged:,} are flagged, and {whole['found']:,} of these have it; "
            f"{whole['missed']:,} of {ill:,} are missed."
        )
    return said
