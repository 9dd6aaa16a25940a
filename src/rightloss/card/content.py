"""What a card says, made from its numbers.

Stage: the numbers of a `Card` → the context of `card.html.j2` and `card.md.j2`, with its tables and drawings.
"""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np

from . import tables
from .calibration_plot import curve_plot
from .drawings import benefit_plot, dots, value_plot
from .figures import Plain
from .page import render
from .subgroups import worst
from .tables import ITEMS, PERFORMANCE, Line, capital, condition, shown
from .words import listed, number, people, percent, share

_UNBROKEN = re.compile(r"(?<=\d) %")  # a number and its percent sign stay on one line


def html_page(data: Plain) -> str:
    """Return the card as an HTML page."""
    answers = [_answer(data, each) | {"plots": _plots(data, each)} for each in data["answers"]]
    moving = [
        {"slider": each["slider"], "term": shown["term"], "notes": shown["notes"], "weight": shown["question"]["weight"]}
        for each, shown in zip(data["answers"], answers, strict=True)
    ]
    several = len(data["questions"]) > 1
    script = {"answers": moving, "questions": len(data["questions"]), "start": start(data), "several": several}
    drawn = {"data": script, "dots": dots(data["answers"][start(data)])}
    page, tag, rest = render("card.html.j2", _context(data, answers) | drawn).rpartition("<script>")
    return _UNBROKEN.sub("\u00a0%", page) + tag + rest


def markdown_page(data: Plain) -> str:
    """Return the card as Markdown, with the metadata that model hubs read."""
    context = _context(data, [_answer(data, each) for each in data["answers"]])
    return render("card.md.j2", context | {"metadata": metadata(data)})


def start(data: Plain) -> int:
    """Return the answer that the page begins with: of the first finding, or of the rarest class."""
    if data["kind"] == "findings":
        return 0
    return int(np.argmin([each["prevalence"]["value"] for each in data["questions"]]))


def metadata(data: Plain) -> list[Plain]:
    """Return the `model-index` of a model card: results with their metrics, for each model."""
    about, found = data["about"], []
    for model in data["models"]:
        results = []
        for each in (answer for answer in data["answers"] if answer["model"] == model):
            question = data["questions"][each["question"]]
            metrics = [
                {
                    "type": name,
                    "name": words[0],
                    "value": value,
                    "low": each["figures"][name]["low"],
                    "high": each["figures"][name]["high"],
                }
                for name, words in PERFORMANCE.items()
                if (value := each["figures"][name]["value"]) is not None
            ]
            where = (
                f"{about.get('data', 'labelled rows')}, weighted to a prevalence of {percent(question['prevalence']['value'])}"
            )
            results.append({"task": f"Prediction of {condition(data, each)}", "dataset": where, "metrics": metrics})
        found.append({"name": model or about.get("model", "model"), "results": results})
    return found


def _context(data: Plain, answers: list[Plain]) -> Plain:
    return {
        "title": data["about"].get("title", _title(data)),
        "start": start(data),
        "answers": answers,
        "models": [each or "model" for each in data["models"]],
        "questions": [each["label"] for each in data["questions"]],
        "level": percent(data["level"]),
        "overview": tables.overview(data) if len(answers) > 1 else None,
        "comparisons": [tables.comparison(data, each) for each in data["comparisons"]],
        "confusions": [tables.confusion(data, each) for each in data["decisions"]],
        "left_out": data["left_out"],
        "kind": data["kind"],
        "items": ITEMS,
    }


def _title(data: Plain) -> str:
    terms = [condition(data, each) for each in data["answers"][: len(data["questions"])]]
    if len(terms) == 1:
        rate = share(data["questions"][0]["prevalence"]["value"])
        return f"{capital(terms[0])}: what to expect where {rate} {'has' if rate.startswith('1 in') else 'have'} it"
    named = listed(terms) if len(terms) < 5 else f"{len(terms)} {data['kind']}"
    return f"{capital(named)}: what to expect where the model is used"


def _answer(data: Plain, answer: Plain) -> Plain:
    """Return everything about one answer but its plots."""
    question, term = data["questions"][answer["question"]], condition(data, answer)
    figures, calibration = answer["figures"], answer["calibration"]
    together = "; of all classes together" if data["kind"] == "classes" and len(data["labels"]) > 2 else ""
    performance = [
        Line(label, shown(figures[name], of), note + together * (name == "skill"), ITEMS["performance"])
        for name, (label, note, of) in PERFORMANCE.items()
    ]
    return {
        "model": answer["model"],
        "term": term,
        "question": question,
        "whole": {name: people(count) for name, count in answer["whole_people"].items()},
        "flagged_whole": people(answer["whole_people"]["found"] + answer["whole_people"]["false_alarms"]),
        "people": f"{question['people']:,}",
        "each": f"{question['people'] // 1000:,}",
        "number": data["answers"].index(answer),
        "uncertain": "beta" in question["prevalence"],
        "counts": tables.counts(answer),
        "origin": tables.origin(data, question, term),
        "performance": performance,
        "tiles": {name: shown(figures[name], of) for name, (_, _, of) in PERFORMANCE.items()},
        "cross": tables.cross(answer, question, term),
        "prevalences": tables.prevalences(answer, question),
        "helps": _helps(answer, question),
        "verdict": _calibrated(data, answer, question),
        "notes": _notes(data, answer, question),
        "rate": percent(question["prevalence"]["value"]),
        "threshold": percent(question["threshold"]),
        "weight": _false_alarms(question),
        "among": f"{answer['prevalences'][0]['people']:,}",
        "calibration": tables.calibration_lines(calibration, together),
        "subgroups": {column: tables.subgroups(each, term) for column, each in answer["subgroups"].items()},
    }


def _notes(data: Plain, answer: Plain, question: Plain) -> list[str]:
    """Return what a reader must know first: who chose the threshold, and for whom the model works worse."""
    unchosen = (
        f"Nobody chose this threshold: it is the average risk, {percent(question['threshold'])}. That suits whoever would "
        f"accept {_false_alarms(question)} to find one case. If you would not, choose your own, then make the card with it."
    )
    return list(filter(None, ["" if question["threshold_chosen"] else unchosen, worst(answer["subgroups"])]))


def _false_alarms(question: Plain) -> str:
    text = number(question["weight"])
    return f"{text} false alarm{'' if text == '1' else 's'}"


def _helps(answer: Plain, question: Plain) -> tuple[str, str]:
    """Return at what prevalences flagging these people helps, and what to do elsewhere."""
    best = percent(1 / (1 + question["weight"]))
    elsewhere = (
        "Helps: better than flagging nobody, and better than flagging everybody. At another prevalence other people should be "
        f"flagged: move the risks there first (the command “rightloss retarget”), then flag again from {best} on, which is the "
        "best threshold for this weight if risks are calibrated."
    )
    found, given = answer["helps"], f"If a missed case weighs as much as {_false_alarms(question)}"
    sure, possible = found["sure"], found["possible"]
    if possible["low"] is None:
        return f"{given}, flagging these people helps at no prevalence.", elsewhere
    ends = []
    if possible["low"] > 0:
        ends.append(f"below {percent(possible['low'])} flagging nobody is better")
    if possible["high"] < 1:
        ends.append(f"above {percent(possible['high'])} flagging everybody is better")
    between = f" Certainly not elsewhere: {listed(ends)}." if ends else ""
    if sure["low"] is None:
        where = f"{percent(possible['low'])} to {percent(possible['high'])}"
        return (
            f"{given}, flagging these people may help where {where} have it; the intervals leave it open.{between}",
            elsewhere,
        )
    where = f"{percent(sure['low'])} to {percent(sure['high'])}"
    open_ = " In between, the intervals leave it open." if ends else ""
    between = f" {capital(listed(ends))}." if ends else ""
    return f"{given}, flagging these people helps where {where} have it.{between}{open_}", elsewhere


def _calibrated(data: Plain, answer: Plain, question: Plain) -> str:
    """Return the verdict about calibration, and on what condition it holds where the model is used."""
    pi, rows = question["prevalence"]["value"], question["events"] / question["rows"]
    counted_as = (
        ""
        if abs(rows / pi - 1) < 0.05
        else f" {percent(rows)} of these rows have it; they are counted so that {percent(pi)} do."
    )
    same = data["about"].get("shift")
    tested = "was not tested" if same is None else f"was tested: {same.rstrip('.')}"
    return f"{answer['calibration']['sentence']}{counted_as} Whether people look the same where the model is used {tested}."


def _plots(data: Plain, answer: Plain) -> dict[str, Any]:
    question, found = data["questions"][answer["question"]], answer["calibration"]
    rate, curve = question["prevalence"]["value"], None
    if found["curve"]:
        curve = curve_plot({"observed": SimpleNamespace(**found["curve"], ici=found["ici"])}, rate)
    return {"by_prevalence": value_plot(answer, question), "calibration": curve, "benefit": benefit_plot(answer, question)}
