"""What a card says, made from its numbers: sentences, lines and tables.

Stage: the numbers of a `Card` → the context of `card.html.j2` and `card.md.j2`. Each line has the item of the reporting
guideline that asks for it: TRIPOD+AI (2024) and STARD-AI (2025).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from .charts import benefit_plot, curve_plot, value_plot
from .numbers import Plain
from .page import render
from .subgroups import worst
from .thousand_people import dots
from .words import Shown, counted, listed, number, people, percent, share
from .words import figure as shown_figure

ITEMS = {
    "population": "TRIPOD+AI 20c, STARD-AI 28",
    "undone": "TRIPOD+AI 12f, 13, 24",
    "threshold": "TRIPOD+AI 15, STARD-AI 15c",
    "rows": "TRIPOD+AI 21",
    "counts": "STARD-AI 30",
    "performance": "TRIPOD+AI 23a, STARD-AI 31",
}
_OWN_LINES = ("title", "target", "model", "data", "population_source", "undone", "sampling", "shift")
_UNBROKEN = re.compile(r"(?<=\d) %")  # a number and its percent sign stay on one line
Words = Callable[[float], str]
PERFORMANCE: dict[str, tuple[str, str, Words]] = {
    "sensitivity": ("Sensitivity", "of those with it, flagged", percent),
    "specificity": ("Specificity", "of those without it, not flagged", percent),
    "ppv": ("Positive predictive value (PPV)", "of the flagged, have it", percent),
    "npv": ("Negative predictive value (NPV)", "of the others, do not have it", percent),
    "lr_plus": ("Likelihood ratio, LR+", "the odds of having it, once flagged, times this", number),
    "lr_minus": ("Likelihood ratio, LR−", "the odds of having it, if not flagged, times this", number),
    "auc": ("AUC", "at any threshold: how often somebody with it has the higher risk", number),
    "skill": (
        "Skill",
        "of the uncertainty about who has it, removed: 0 % is no better than the prevalence alone, 100 % is certainty",
        percent,
    ),
}


def _points(value: float) -> str:
    return number(round(100 * value, 1), sign=True)


_COMPARED: dict[str, tuple[str, Words]] = {
    "expected_log_likelihood": ("expected log-likelihood", number), "auc": ("AUC", number), "tpr": ("sensitivity", _points),
    "tnr": ("specificity", _points), "ppv": ("PPV", _points), "npv": ("NPV", _points), "net_benefit": ("net benefit", number),
    "calibration_slope": ("calibration slope", number),
}  # fmt: skip
_VERDICTS = {"yes": "yes", "no": "no", "unclear": "no sign against it", "unknown": "too few to say"}
_HELPS = {"yes": "yes", "nobody": "no: flag nobody", "everybody": "no: flag everybody", "same": "no", "unclear": "cannot tell"}
_MOST_CELLS = 12
_AT_A_GLANCE = (
    "how frequent | rows (with it) | flagged from | sensitivity | specificity | PPV | AUC | predicted / observed | calibrated?"
)
_BY_SUBGROUP = (
    "how frequent (computed) | sensitivity | specificity | PPV there | AUC | predicted / observed | "
    "sensitivity, against the others | specificity, against the others"
)


class Line(NamedTuple):
    """A line of a table: what, the value, what it means, and the guideline's item."""

    label: str
    value: Shown | str
    note: str
    item: str


def html_page(data: Plain) -> str:
    """Return the card as an HTML page."""
    answers = [_answer(data, each) | {"plots": _plots(data, each)} for each in data["answers"]]
    moving = [
        {"slider": each["slider"], "term": shown["term"], "notes": shown["notes"], "weight": shown["question"]["weight"]}
        for each, shown in zip(data["answers"], answers, strict=True)
    ]
    several = len(data["questions"]) > 1
    script = {"answers": moving, "questions": len(data["questions"]), "start": start(data), "several": several}
    drawn = {"data": script, "dots": dots(data["answers"][start(data)]["whole_people"])}
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
                {"type": name, "name": words[0], **{part: each["figures"][name][part] for part in ("value", "low", "high")}}
                for name, words in PERFORMANCE.items()
                if each["figures"][name]["value"] is not None
            ]
            rate = percent(question["prevalence"]["value"])
            where = f"{about.get('data', 'labelled rows')}, weighted to a prevalence of {rate}"
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
        "overview": _overview_table(data) if len(answers) > 1 else None,
        "comparisons": [_comparison_table(data, each) for each in data["comparisons"]],
        "confusions": [_confusion_table(data, each) for each in data["decisions"]],
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
        "counts": _counts_shown(answer),
        "origin": _origin_lines(data, question, term),
        "performance": performance,
        "tiles": {name: shown(figures[name], of) for name, (_, _, of) in PERFORMANCE.items()},
        "cross": _counted_table(answer, question, term),
        "prevalences": _prevalence_table(answer, question),
        "helps": _helps(answer, question),
        "verdict": _calibrated(data, answer, question),
        "notes": _notes(data, answer, question),
        "rate": percent(question["prevalence"]["value"]),
        "threshold": percent(question["threshold"]),
        "weight": _false_alarms(question),
        "among": f"{answer['prevalences'][0]['people']:,}",
        "calibration": _calibration_lines(calibration, together),
        "subgroups": {column: _subgroup_table(each, term) for column, each in answer["subgroups"].items()},
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
    if sure["low"] is None:
        where, rest = _between(possible), f" Certainly not elsewhere: {listed(ends)}." if ends else ""
        return f"{given}, flagging these people may help where {where}; the intervals leave it open.{rest}", elsewhere
    rest = f" {capital(listed(ends))}. In between, the intervals leave it open." if ends else ""
    return f"{given}, flagging these people helps where {_between(sure)}.{rest}", elsewhere


def _between(ends: Plain) -> str:
    return f"{percent(ends['low'])} to {percent(ends['high'])} have it"


def _calibrated(data: Plain, answer: Plain, question: Plain) -> str:
    """Return the verdict about calibration, and on what condition it holds where the model is used."""
    pi, rows = question["prevalence"]["value"], question["events"] / question["rows"]
    counted_as = f" {percent(rows)} of these rows have it; they are counted so that {percent(pi)} do."
    counted_as *= abs(rows / pi - 1) >= 0.05
    same = data["about"].get("shift")
    tested = "was not tested" if same is None else f"was tested: {same.rstrip('.')}"
    return f"{answer['calibration']['sentence']}{counted_as} Whether people look the same where the model is used {tested}."


def _plots(data: Plain, answer: Plain) -> dict[str, Any]:
    question, found = data["questions"][answer["question"]], answer["calibration"]
    rate, curve = question["prevalence"]["value"], None
    if found["curve"]:
        curve = curve_plot({"observed": SimpleNamespace(**found["curve"], ici=found["ici"])}, rate)
    return {"by_prevalence": value_plot(answer, question), "calibration": curve, "benefit": benefit_plot(answer, question)}


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def condition(data: Plain, answer: Plain) -> str:
    """Return what people have: the condition by name, or its class."""
    label: str = data["questions"][answer["question"]]["label"]
    if len(data["questions"]) == 1 and "target" in data["about"]:
        return str(data["about"]["target"])
    return f"class {label}" if not label or label.lstrip("-").isdigit() else label


def shown(found: Plain, of: Words = number, unit: float = 1.0) -> Shown:
    """Return a figure of the data as text; with a lower limit alone as "above" it."""
    value, low, high = (None if found[name] is None else unit * found[name] for name in ("value", "low", "high"))
    if value is None:
        return Shown("–" if low is None else f"above {of(low)}", found.get("reason", ""))
    return shown_figure(value, low, high, of)


def _counts_shown(answer: Plain) -> dict[str, Shown]:
    """Return people in whole people who add up, with limits."""
    whole = answer["whole_people"] | {"flagged": answer["whole_people"]["found"] + answer["whole_people"]["false_alarms"]}
    return {name: shown(answer["figures"][name], people)._replace(value=people(whole[name])) for name in whole}


def _origin_lines(data: Plain, question: Plain, term: str) -> list[Line]:
    """Return where the numbers come from."""
    about, pi, was = data["about"], question["prevalence"], question["predicted_at"]
    rate, rows, events, t = pi["value"], question["rows"], question["events"], question["threshold"]
    source = about.get("population_source", "given as exactly known, its source not stated")
    if "beta" in pi and "population_source" not in about:
        a, b = pi["beta"]
        source = f"known as well as from {number(a)} with it among {number(a + b)} people, Beta({number(a)}, {number(b)})"
    moved = "made for this prevalence, as given"
    if was is not None:
        assumed = "how people of each class look is assumed to be the same"
        moved = f"from {percent(was)} to {percent(rate)} by Bayes’ rule; {assumed}"
    none, corrected = "not reported", "what was done, and corrected for in these risks"
    patients = question["patients"]
    counted_so = (
        f"{events:,} of them {term} ({percent(events / rows)}), counted so that {percent(rate)} have it. "
        "A row is one entry of the test data: a person, an image, a visit"
    )
    counted_so += "" if patients is None else f"; rows of {patients:,} patients or groups, drawn together"
    reason = f"{question['threshold_reason']}; a missed case weighs as much as {number(question['weight'])} false alarms"
    alike = "whether those with it, and those without it, look in the test rows as they do where the model is used"
    lines = [
        Line(f"How frequent {term} is (π)", shown(pi, percent), source, ITEMS["population"]),
        Line("Were the risks moved to this prevalence?", "yes" if was is not None else "no", moved, ITEMS["undone"]),
        Line("Weights or rebalancing in training", about.get("undone", none), corrected, ITEMS["undone"]),
        Line("How frequent it was in training (ρ)", about.get("sampling", none), "among the training rows", ITEMS["undone"]),
        Line("Test rows", f"{rows:,}", counted_so, ITEMS["rows"]),
        Line("Flagged from a risk of", percent(t), reason, ITEMS["threshold"]),
        Line("Same kind of people?", about.get("shift", "not tested"), alike, ITEMS["population"]),
    ]
    others = [*(name for name in ("model", "data") if name in about), *(name for name in about if name not in _OWN_LINES)]
    return lines + [Line(capital(name.replace("_", " ")), about[name], "", "") for name in others]


def _counted_table(answer: Plain, question: Plain, term: str) -> Plain:
    """Return the cross-tabulation of the test rows, as they were counted."""
    figures, events = answer["figures"], question["events"]
    others = question["rows"] - events
    hit = round(figures["sensitivity"]["value"] * events)
    right = round(figures["specificity"]["value"] * others)
    counts = {"flagged": (hit, others - right), "not flagged": (events - hit, right), "all": (events, others)}
    rows = [[name, *(f"{count:,}" for count in (*pair, sum(pair)))] for name, pair in counts.items()]
    return {"columns": ["", term, f"not {term}", "all"], "rows": rows}


def _prevalence_table(answer: Plain, question: Plain) -> Plain:
    """Return the table of other prevalences."""
    columns = ["how frequent", "helps?", "flagged", "of these, have it", "missed", "PPV", "NPV"]
    rows = []
    for each in answer["prevalences"]:
        counted = [shown(each[name], people) for name in ("flagged", "found", "missed")]
        values = [shown(each[name], percent) for name in ("ppv", "npv")]
        rows.append([_both(each["prevalence"]), _HELPS[each["helps"]], *counted, *values])
    own = [each["prevalence"] for each in answer["prevalences"]].index(question["prevalence"]["value"])
    return {"columns": columns, "rows": rows, "own": own}


def _both(rate: float) -> str:
    """Return "2 %, 1 in 50", or the percentage alone if it is no round number."""
    return ", ".join(dict.fromkeys([percent(rate), share(rate)]))


def _calibration_lines(found: Plain, together: str) -> list[Line]:
    item = ITEMS["performance"]
    too_high, too_extreme = "1 is right; above 1, risks are too high on average", "1 is right; below 1, risks are too extreme"
    lines = [
        Line("Mean risk, relative to the prevalence", shown(found["ratio"]), too_high, item),
        Line("Calibration slope", shown(found["slope"]), too_extreme + together, item),
    ]
    if found.get("ici") is not None:
        distance = f"{number(100 * found['ici'], 2)} percentage points"
        note = "between the curve and the dashed line, over the population"
        lines.append(Line("Mean distance from calibrated (ICI)", distance, note, item))
    return lines


def _subgroup_table(found: Plain, term: str) -> Plain:
    """Return the table of the subgroups of one column, and its sentences."""
    columns = ["", f"rows ({term})", *_BY_SUBGROUP.split(" | ")]
    rows = []
    for each in found["groups"]:
        few = each.get("few", True)
        head = [f"{each['name']}: too few to say" if few else each["name"], f"{each['rows']:,} ({each['events']:,})"]
        if "reason" in each:
            rows.append([*head, *["–"] * 8])
            continue
        cells = [percent(each["prevalence"]), *(shown(each[name], percent) for name in ("sensitivity", "specificity", "ppv"))]
        cells += [shown(each["auc"]), shown(each["ratio"])]
        gaps = each["differences"]
        cells += ["–", "–"] if gaps is None else [shown(gaps[name], _points) for name in ("sensitivity", "specificity")]
        rows.append([*head, *cells])
    left_out = f"{counted(found['rows_left_out'], 'row')} of further groups are not shown."
    return {"columns": columns, "rows": rows, "notes": found["summary"] + [left_out] * (found["rows_left_out"] > 0)}


def _overview_table(data: Plain) -> Plain:
    """Return a line for each answer."""
    columns = ["", *_AT_A_GLANCE.split(" | ")]
    rows = []
    for each in data["answers"]:
        question, figures = data["questions"][each["question"]], each["figures"]
        head = ", ".join(filter(None, [each["model"], condition(data, each) if len(data["questions"]) > 1 else ""]))
        cells = [
            share(question["prevalence"]["value"]),
            f"{question['rows']:,} ({question['events']:,})",
            percent(question["threshold"]),
            *(shown(figures[name], percent) for name in ("sensitivity", "specificity", "ppv")),
        ]
        verdict = _VERDICTS[each["calibration"]["verdict"]]
        rows.append([head, *cells, shown(figures["auc"]), shown(each["calibration"]["ratio"]), verdict])
    return {"columns": columns, "rows": rows}


def _comparison_table(data: Plain, found: Plain) -> Plain:
    """Return the table of one pair of models."""
    rows = []
    for name, (label, of) in _COMPARED.items():
        each = found["differences"][name]
        ahead = f"{each['verdict']} ahead" if each["verdict"] else "undecided" if each["value"] is not None else "–"
        rows.append([label, shown(each, of), ahead])
    title = f"{found['a']} compared with {found['b']}"
    title += f", {found['question']}" if found["question"] and len(data["questions"]) > 1 else ""
    return {"title": title, "columns": ["", "difference, first minus second (shares: in points)", ""], "rows": rows}


def _confusion_table(data: Plain, found: Plain) -> Plain:
    """Return people of each class by the most probable class; with very many classes the most frequent confusions."""
    labels, shares, crowd = data["labels"], np.array(found["shares"]), data["questions"][0]["people"]
    of = max(1000, crowd if len(labels) <= _MOST_CELLS else 1000)
    if len(labels) <= _MOST_CELLS:
        columns = ["", *(f"said: {each}" for each in labels)]
        rows = [[f"is: {label}", *(people(of * each) for each in row)] for label, row in zip(labels, shares, strict=True)]
    else:
        wrong = shares * (1 - np.eye(len(labels)))
        worst = np.dstack(np.unravel_index(np.argsort(-wrong, axis=None)[:_MOST_CELLS], wrong.shape))[0]
        columns = ["is", "said", "people"]
        rows = [[labels[i], labels[j], people(of * wrong[i, j])] for i, j in worst]
    right = percent(float(np.trace(shares)))
    return {"model": found["model"], "columns": columns, "rows": rows, "of": f"{of:,}", "right": right}
