"""The lines and tables of a card.

Stage: an answer of a card's numbers → lines, columns and rows as text, for the templates. Each line has the item of the
reporting guideline that asks for it: TRIPOD+AI (2024) and STARD-AI (2025).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .figures import Plain
from .words import Shown, counted, number, people, percent, share
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


class Line(NamedTuple):
    """A line of a table: what, the value, what it means, and the guideline's item."""

    label: str
    value: Shown | str
    note: str
    item: str


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


def counts(answer: Plain) -> dict[str, Shown]:
    """Return people in whole people who add up, with limits."""
    whole = answer["whole_people"] | {"flagged": answer["whole_people"]["found"] + answer["whole_people"]["false_alarms"]}
    return {name: shown(answer["figures"][name], people)._replace(value=people(whole[name])) for name in whole}


def origin(data: Plain, question: Plain, term: str) -> list[Line]:
    """Return where the numbers come from."""
    about, pi, was = data["about"], question["prevalence"], question["predicted_at"]
    rate, rows, events, t = pi["value"], question["rows"], question["events"], question["threshold"]
    source = about.get("population_source", "given as exactly known, its source not stated")
    if "beta" in pi and "population_source" not in about:
        a, b = pi["beta"]
        source = f"known as well as from {number(a)} with it among {number(a + b)} people, Beta({number(a)}, {number(b)})"
    moved = "made for this prevalence, as given"
    if was is not None:
        moved = (
            f"from {percent(was)} to {percent(rate)} by Bayes’ rule; how people of each class look is assumed to be the same"
        )
    lines = [
        Line(f"How frequent {term} is (π)", shown(pi, percent), source, ITEMS["population"]),
        Line("Were the risks moved to this prevalence?", "yes" if was is not None else "no", moved, ITEMS["undone"]),
        Line(
            "Weights or rebalancing in training",
            about.get("undone", "not reported"),
            "what was done, and corrected for in these risks",
            ITEMS["undone"],
        ),
        Line(
            "How frequent it was in training (ρ)",
            about.get("sampling", "not reported"),
            "among the training rows",
            ITEMS["undone"],
        ),
        Line(
            "Test rows",
            f"{rows:,}",
            f"{events:,} of them {term} ({percent(events / rows)}), counted so that {percent(rate)} have it. "
            "A row is one entry of the test data: a person, an image, a visit" + _patients(question),
            ITEMS["rows"],
        ),
        Line(
            "Flagged from a risk of",
            percent(t),
            f"{question['threshold_reason']}; a missed case weighs as much as {number(question['weight'])} false alarms",
            ITEMS["threshold"],
        ),
        Line(
            "Same kind of people?",
            about.get("shift", "not tested"),
            "whether those with it, and those without it, look in the test rows as they do where the model is used",
            ITEMS["population"],
        ),
    ]
    lines += [Line(capital(name), about[name], "", "") for name in ("model", "data") if name in about]
    return lines + [
        Line(capital(name.replace("_", " ")), text, "", "") for name, text in about.items() if name not in _OWN_LINES
    ]


def _patients(question: Plain) -> str:
    return "" if question["patients"] is None else f"; rows of {question['patients']:,} patients or groups, drawn together"


def cross(answer: Plain, question: Plain, term: str) -> Plain:
    """Return the cross-tabulation of the test rows, as they were counted."""
    figures, events = answer["figures"], question["events"]
    others = question["rows"] - events
    hit, right = (
        round(each * count)
        for each, count in ((figures["sensitivity"]["value"], events), (figures["specificity"]["value"], others))
    )
    flagged, rest = (
        ["flagged", hit, others - right, hit + others - right],
        ["not flagged", events - hit, right, events - hit + right],
    )
    rows = [
        [each[0], *(f"{count:,}" for count in each[1:])] for each in (flagged, rest, ["all", events, others, question["rows"]])
    ]
    return {"columns": ["", term, f"not {term}", "all"], "rows": rows}


def prevalences(answer: Plain, question: Plain) -> Plain:
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


def calibration_lines(found: Plain, together: str) -> list[Line]:
    lines = [
        Line(
            "Mean risk, relative to the prevalence",
            shown(found["ratio"]),
            "1 is right; above 1, risks are too high on average",
            ITEMS["performance"],
        ),
        Line(
            "Calibration slope",
            shown(found["slope"]),
            "1 is right; below 1, risks are too extreme" + together,
            ITEMS["performance"],
        ),
    ]
    if found.get("ici") is not None:
        lines.append(
            Line(
                "Mean distance from calibrated (ICI)",
                f"{number(100 * found['ici'], 2)} percentage points",
                "between the curve and the dashed line, over the population",
                ITEMS["performance"],
            )
        )
    return lines


def subgroups(found: Plain, term: str) -> Plain:
    """Return the table of the subgroups of one column, and its sentences."""
    columns = [
        "",
        f"rows ({term})",
        "how frequent (computed)",
        "sensitivity",
        "specificity",
        "PPV there",
        "AUC",
        "predicted / observed",
        "sensitivity, against the others",
        "specificity, against the others",
    ]
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
    notes = found["summary"] + (
        [f"{counted(found['rows_left_out'], 'row')} of further groups are not shown."] if found["rows_left_out"] else []
    )
    return {"columns": columns, "rows": rows, "notes": notes}


def overview(data: Plain) -> Plain:
    """Return a line for each answer."""
    columns = [
        "",
        "how frequent",
        "rows (with it)",
        "flagged from",
        "sensitivity",
        "specificity",
        "PPV",
        "AUC",
        "predicted / observed",
        "calibrated?",
    ]
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


def comparison(data: Plain, found: Plain) -> Plain:
    """Return the table of one pair of models."""
    rows = []
    for name, (label, of) in _COMPARED.items():
        each = found["differences"][name]
        ahead = f"{each['verdict']} ahead" if each["verdict"] else "undecided" if each["value"] is not None else "–"
        rows.append([label, shown(each, of), ahead])
    title = f"{found['a']} compared with {found['b']}" + (
        f", {found['question']}" if found["question"] and len(data["questions"]) > 1 else ""
    )
    return {"title": title, "columns": ["", "difference, first minus second (shares: in points)", ""], "rows": rows}


def confusion(data: Plain, found: Plain) -> Plain:
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
    return {
        "model": found["model"],
        "columns": columns,
        "rows": rows,
        "of": f"{of:,}",
        "right": percent(float(np.trace(shares))),
    }
