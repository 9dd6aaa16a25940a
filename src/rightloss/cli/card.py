"""`rightloss card scores.csv --target y --score risk --from 0.5 --population 0.006 --out card`.

Stage: a file of scores, a model, or a study's stored predictions → `Labelled` → card.html, card.md and card.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ..atomic_files import check_writable
from . import commands
from .population import parse_population, population_source, population_text
from .scores import Asked, Labelled, is_model, labelled_by_model, labelled_scores, mix_of
from .terminal import print_json, print_sentences, quiet_exit, require, warnings_on_stderr

if TYPE_CHECKING:
    from ..study.results import Cell
    from ..tabular import TableModel

_YES = {"1", "1.0", "yes", "y", "true", "t", "positive", "pos", "+", "case"}  # a class that its column names
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
    asked = Asked(target, positive, population, score, scale, from_, group, by, encoding)
    with quiet_exit():
        from ..card.card import card as make_card
    with warnings_on_stderr() as warned:
        labelled, about = _labelled(source, data, asked, cell)
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


def _labelled(source: Path, data: Path | None, asked: Asked, cell: list[str]) -> tuple[Labelled, dict[str, Any]]:
    """Return labelled predictions of a source of any kind, and words about them."""
    is_study = (source / "study.json").is_file() or source.suffix == ".npz"
    if cell and not is_study:
        raise ValueError(f"Expected the folder of a study with --cell, but got {source}: leave it out.")
    if data is not None and not is_model(source):
        raise ValueError(f"Expected the folder of a model before a labelled table, but got {source}: name one file of scores.")
    if is_study:
        return _of_study(source, asked, cell)
    if is_model(source):
        return _of_model(source, data, asked)
    read = labelled_scores(source, asked)
    names = list(read.predictions) if isinstance(read.predictions, Mapping) else asked.score
    condition = _condition(read, asked.target[0]) if len(asked.target) == 1 else None
    return read, {"model": ", ".join(names) or None, "data": str(source), "target": condition, "sampling": _mix(read)}


def _mix(labelled: Labelled) -> str | None:
    """Return the mix at which the scores hold, if it is known; of findings it is beside their rates."""
    positive = labelled.classes[-1] if len(labelled.classes) == 2 else None
    known = labelled.from_ is not None and labelled.target.ndim == 1
    return population_text(labelled.from_.tolist(), labelled.classes, positive) if known else None


def _condition(labelled: Labelled, target: str) -> str | None:
    """Return the name of what people have: the positive of two classes, or its column if it is called "yes" or the like."""
    if len(labelled.classes) != 2:
        return None
    label = str(labelled.classes[1])
    return target if label.casefold() in _YES else label


def _of_model(folder: Path, data: Path | None, asked: Asked) -> tuple[Labelled, dict[str, Any]]:
    """Return a model's predictions of a labelled table, or those of its held-out rows."""
    from ..tabular import load_model

    model = load_model(folder)
    read = _held_out(folder, model, asked) if data is None else labelled_by_model(folder, data, asked, map)
    kind = None if model.correction is None else f"held-out calibration ({model.correction.kind}), then Bayes' rule from ρ to π"
    words = {"model": str(folder), "data": "held-out rows of the training table" if data is None else str(data), "undone": kind}
    words |= {
        "target": _condition(read, model.target),
        "sampling": population_text(model.sampling.tolist(), model.classes_, model.positive),
    }
    return read, words


def _held_out(folder: Path, model: TableModel, asked: Asked) -> Labelled:
    if asked.by or asked.target or asked.score or asked.group or asked.from_ is not None:
        raise ValueError(f"Expected a labelled table after {folder} with --by, --target, --score, --group or --from: name it.")
    held_out, at = model.held_out, model.population
    prevalence = at if asked.population is None else model.prevalence_of(parse_population(asked.population))
    start = None if prevalence is at else at.population
    return Labelled(held_out.log_probs, held_out.target, prevalence, start, model.classes_, held_out.groups, {})


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


def _of_study(folder: Path, asked: Asked, cell: list[str]) -> tuple[Labelled, dict[str, Any]]:
    """Return stored predictions of a study: of one cell, or of several on the same rows."""
    import numpy as np

    from ..prevalence import Prevalence
    from ..study import read_one_file, read_study
    from ..study.results import cells

    if asked.by or asked.target or asked.score or asked.group or asked.from_ is not None:
        raise ValueError(f"Expected no columns with the study {folder}, but got some: its labels and patients are its own.")
    found = _chosen(cells((read_one_file if folder.is_file() else read_study)(folder)), cell)
    first = next(iter(found.values()))
    if any(not np.array_equal(each.rows, first.rows) for each in found.values()):
        raise ValueError("Expected cells with the same tested nodules, but they differ: choose others by --cell.")
    classes = ["benign", "malignant"] if len(first.population) == 2 else [f"rating {number + 1}" for number in range(5)]
    at = Prevalence(first.population)
    prevalence, start = at, None
    if asked.population is not None:
        prevalence, start = mix_of(classes, parse_population(asked.population)), at.population
    tables = {name: each.log_probs for name, each in found.items()} if len(found) > 1 else first.log_probs
    words = {"model": ", ".join(found), "data": f"{folder}, {first.key.data}, tested by cross-validation"}
    return Labelled(
        tables, first.labels, prevalence, start, classes, np.unique(first.patients, return_inverse=True)[1], {}
    ), words


def _chosen(cells: list[Cell], asked: list[str]) -> dict[str, Cell]:
    """Return the cells that are chosen by KEY=VALUE; of other keys the default loss, or the first value in the study."""
    wanted: dict[str, list[str]] = {}
    for text in asked:
        key, _, value = text.partition("=")
        wanted.setdefault(key.strip(), []).append(value.strip())
    keys = cells[0].key._fields if cells else ()
    if not {*wanted} <= {*keys}:
        raise ValueError(
            f"Expected --cell with one of {', '.join(keys)}, but got {', '.join(wanted)}: write loss=weighted, say."
        )
    for key in keys:
        values = list(dict.fromkeys(str(getattr(each.key, key)) for each in cells))
        choice = wanted.get(key) or ["information-gain" if "information-gain" in values else values[0]]
        if not {*choice} <= {*values}:
            raise ValueError(
                f"Expected --cell {key}=… of {', '.join(values)}, but got {', '.join(choice)}: choose one of these."
            )
        cells = [each for each in cells if str(getattr(each.key, key)) in choice]
    several = [key for key in keys if len({getattr(each.key, key) for each in cells}) > 1] or ["loss"]
    return {", ".join(str(getattr(each.key, key)) for key in several): each for each in cells}
