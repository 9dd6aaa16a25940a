"""What a card says: lines, tables and plots, made from its numbers.

Stage: the numbers of a `Card` → the context of `card.html.j2` and `card.md.j2`. Each line has the item of the reporting
guideline that asks for it: TRIPOD+AI (2024) and STARD-AI (2025).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit, logit

from .figures import Plain
from .page import render
from .plots import Axis, Series, plot
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
_Words = Callable[[float], str]
_PERFORMANCE: dict[str, tuple[str, str, _Words]] = {
    "sensitivity": ("Sensitivity", "of those with it, flagged", percent),
    "specificity": ("Specificity", "of those without it, not flagged", percent),
    "ppv": ("Positive predictive value (PPV)", "of the flagged, have it", percent),
    "npv": ("Negative predictive value (NPV)", "of the others, do not have it", percent),
    "lr_plus": ("Likelihood ratio, LR+", "the odds of having it, once flagged, times this", number),
    "lr_minus": ("Likelihood ratio, LR−", "the odds of having it, if not flagged, times this", number),
    "auc": ("AUC", "at any threshold: how often somebody with it has the higher risk", number),
    "skill": ("Skill", "of the way from always answering the prevalence to certainty", percent),
}
_COMPARED: dict[str, tuple[str, _Words]] = {
    "expected_log_likelihood": ("expected log-likelihood", number), "auc": ("AUC", number), "tpr": ("sensitivity", percent),
    "tnr": ("specificity", percent), "ppv": ("PPV", percent), "npv": ("NPV", percent), "net_benefit": ("net benefit", number),
    "calibration_slope": ("calibration slope", number),
}  # fmt: skip
_VERDICTS = {"yes": "yes", "no": "no", "unclear": "no sign against it", "unknown": "too few to say"}
_HELPS = {"yes": "yes", "no": "no", "unclear": "cannot tell"}
_MOST_CELLS = 12


class Line(NamedTuple):
    """A line of a table: what, the value, what it means, and the guideline's item."""

    label: str
    value: Shown | str
    note: str
    item: str


def html_page(data: Plain) -> str:
    """Return the card as an HTML page."""
    answers = [_answer(data, each) | {"plots": _plots(data, each)} for each in data["answers"]]
    script = {
        "answers": [
            {"slider": each["slider"], "term": _term(data, each), "threshold": data["questions"][each["question"]]["threshold"]}
            for each in data["answers"]
        ],
        "questions": len(data["questions"]),
        "start": start(data),
        "several": len(data["questions"]) > 1,
    }
    return render("card.html.j2", _context(data, answers) | {"data": script, "dots": _dots(data["answers"][start(data)])})


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
                for name, words in _PERFORMANCE.items()
                if (value := each["figures"][name]["value"]) is not None
            ]
            where = (
                f"{about.get('data', 'labelled rows')}, weighted to a prevalence of {percent(question['prevalence']['value'])}"
            )
            results.append({"task": f"Prediction of {_term(data, each)}", "dataset": where, "metrics": metrics})
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
        "overview": _overview(data) if len(answers) > 1 else None,
        "comparisons": [_comparison(each) for each in data["comparisons"]],
        "confusions": [_confusion(data, each) for each in data["decisions"]],
        "left_out": data["left_out"],
        "kind": data["kind"],
        "items": ITEMS,
    }


def _title(data: Plain) -> str:
    terms = [_term(data, each) for each in data["answers"][: len(data["questions"])]]
    if len(terms) == 1:
        rate = share(data["questions"][0]["prevalence"]["value"])
        return f"{_capital(terms[0])}: what to expect where {rate} {'has' if rate.startswith('1 in') else 'have'} it"
    named = listed(terms) if len(terms) < 5 else f"{len(terms)} {data['kind']}"
    return f"{_capital(named)}: what to expect where the model is used"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _term(data: Plain, answer: Plain) -> str:
    """Return what people have: the condition by name, or its class."""
    label: str = data["questions"][answer["question"]]["label"]
    if len(data["questions"]) == 1 and "target" in data["about"]:
        return str(data["about"]["target"])
    return f"class {label}" if label.lstrip("-").isdigit() else label


def shown(found: Plain, of: _Words = number, unit: float = 1.0) -> Shown:
    """Return a figure of the data as text; with a lower limit alone as "above" it."""
    value, low, high = (None if found[name] is None else unit * found[name] for name in ("value", "low", "high"))
    if value is None:
        return Shown("–" if low is None else f"above {of(low)}", found.get("reason", ""))
    return shown_figure(value, low, high, of)


def _answer(data: Plain, answer: Plain) -> Plain:
    """Return everything about one answer but its plots."""
    question, term = data["questions"][answer["question"]], _term(data, answer)
    figures, calibration = answer["figures"], answer["calibration"]
    performance = [
        Line(label, shown(figures[name], of), note, ITEMS["performance"]) for name, (label, note, of) in _PERFORMANCE.items()
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
        "counts": _counts(answer),
        "origin": _origin(data, question, term),
        "performance": performance,
        "cross": _cross(answer, question, term),
        "prevalences": _prevalences(answer, question),
        "helps": _helps(answer, question),
        "verdict": calibration["sentence"],
        "calibration": _calibration_lines(calibration),
        "subgroups": {column: _subgroups(each, term) for column, each in answer["subgroups"].items()},
    }


def _counts(answer: Plain) -> dict[str, Shown]:
    """Return people in whole people who add up, with limits."""
    whole = answer["whole_people"] | {"flagged": answer["whole_people"]["found"] + answer["whole_people"]["false_alarms"]}
    return {
        name: shown(answer["figures"][name], people)._replace(value=people(whole[name]))
        for name in ("flagged", "found", "false_alarms", "missed")
    }


def _origin(data: Plain, question: Plain, term: str) -> list[Line]:
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
        Line("Predictions moved", "yes" if was is not None else "no", moved, ITEMS["undone"]),
        Line(
            "What was undone",
            about.get("undone", "not reported"),
            "weights, or a rebalanced sample, in training",
            ITEMS["undone"],
        ),
        Line(
            "Training mix (ρ)",
            about.get("sampling", "not reported"),
            "how frequent it was among the training rows",
            ITEMS["undone"],
        ),
        Line(
            "Test rows",
            f"{rows:,}",
            f"{events:,} of them {term} ({percent(events / rows)}), weighted to π" + _patients(question),
            ITEMS["rows"],
        ),
        Line(
            "Flagged from a risk of",
            percent(t),
            f"{question['threshold_reason']}; a missed case weighs as much as {number((1 - t) / t)} false alarms",
            ITEMS["threshold"],
        ),
        Line(
            "Same kind of people?",
            about.get("shift", "not tested"),
            "test of label shift between test rows and population",
            ITEMS["population"],
        ),
    ]
    lines += [Line(_capital(name), about[name], "", "") for name in ("model", "data") if name in about]
    return lines + [
        Line(_capital(name.replace("_", " ")), text, "", "") for name, text in about.items() if name not in _OWN_LINES
    ]


def _patients(question: Plain) -> str:
    return "" if question["patients"] is None else f"; rows of {question['patients']:,} patients or groups, drawn together"


def _cross(answer: Plain, question: Plain, term: str) -> Plain:
    """Return the cross-tabulation, in people and in test rows."""
    figures, events = answer["figures"], question["events"]
    others = question["rows"] - events
    hit, right = (
        round(each * count)
        for each, count in ((figures["sensitivity"]["value"], events), (figures["specificity"]["value"], others))
    )
    whole = answer["whole_people"]

    def cell(name: str, rows: int) -> Shown:
        return Shown(people(whole[name]), f"{rows:,} test rows")

    columns = ["", term, f"not {term}"]
    flagged = ["flagged", cell("found", hit), cell("false_alarms", others - right)]
    return {"columns": columns, "rows": [flagged, ["not flagged", cell("missed", events - hit), cell("rest", right)]]}


def _prevalences(answer: Plain, question: Plain) -> Plain:
    """Return the table of other prevalences."""
    columns = ["how frequent", "flagged", "of these, have it", "missed", "PPV", "NPV", "helps?"]
    rows = []
    for each in answer["prevalences"]:
        of = f" of {each['people']:,}"
        cells = [shown(each[name], people) for name in ("flagged", "found", "missed")]
        cells[0] = cells[0]._replace(value=cells[0].value + of)
        rows.append(
            [share(each["prevalence"]), *cells, shown(each["ppv"], percent), shown(each["npv"], percent), _HELPS[each["helps"]]]
        )
    own = [each["prevalence"] for each in answer["prevalences"]].index(question["prevalence"]["value"])
    return {"columns": columns, "rows": rows, "own": own}


def _helps(answer: Plain, question: Plain) -> tuple[str, str]:
    """Return where flagging these people is better than flagging nobody and everybody, and what that means."""
    found = answer["helps"]
    means = (
        f"Helps: better than flagging nobody, and better than flagging everybody, if a missed case weighs as much as "
        f"{number(1 / found['price'])} false alarms, which is what a threshold of {percent(question['threshold'])} says. "
        "Outside this range choose another threshold. Before anybody reads risks at another prevalence, move them there "
        "(rightloss retarget)."
    )
    if found["low"] is None:
        return "At this threshold it helps at no prevalence.", means
    sure = found["sure"]
    certain = "but in view of the intervals that is certain nowhere."
    if sure["low"] is not None:
        certain = f"and that is certain, in view of the intervals, from {percent(sure['low'])} to {percent(sure['high'])}."
    return (
        f"At this threshold it helps where from {percent(found['low'])} to {percent(found['high'])} have it, {certain}",
        means,
    )


def _calibration_lines(found: Plain) -> list[Line]:
    lines = [
        Line(
            "Mean prediction / π",
            shown(found["ratio"]),
            "1 is right; above 1, risks are too high on average",
            ITEMS["performance"],
        ),
        Line("Calibration slope", shown(found["slope"]), "1 is right; below 1, risks are too extreme", ITEMS["performance"]),
    ]
    if found.get("ici") is not None:
        lines.append(
            Line(
                "Mean distance (ICI)",
                percent(found["ici"]),
                "between the curve and the diagonal, over the population",
                ITEMS["performance"],
            )
        )
    return lines


def _subgroups(found: Plain, term: str) -> Plain:
    """Return the table of the subgroups of one column, and its sentences."""
    columns = [
        "",
        f"rows ({term})",
        "how frequent",
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
        head = [each["name"], f"{each['rows']:,} ({each['events']:,})"]
        if "reason" in each:
            rows.append([f"{each['name']}: too few to say", head[1], *["–"] * 8])
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


def _points(value: float) -> str:
    return number(100 * value, 2, sign=True)


def _overview(data: Plain) -> Plain:
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
        head = ", ".join(filter(None, [each["model"], _term(data, each) if len(data["questions"]) > 1 else ""]))
        cells = [
            share(question["prevalence"]["value"]),
            f"{question['rows']:,} ({question['events']:,})",
            percent(question["threshold"]),
            *(shown(figures[name], percent) for name in ("sensitivity", "specificity", "ppv")),
        ]
        verdict = _VERDICTS[each["calibration"]["verdict"]]
        rows.append([head, *cells, shown(figures["auc"]), shown(each["calibration"]["ratio"]), verdict])
    return {"columns": columns, "rows": rows}


def _comparison(found: Plain) -> Plain:
    """Return the table of one pair of models."""
    rows = []
    for name, (label, of) in _COMPARED.items():
        each = found["differences"][name]
        ahead = f"{each['verdict']} ahead" if each["verdict"] else "undecided" if each["value"] is not None else "–"
        rows.append([label, shown(each, of), ahead])
    title = f"{found['a']} minus {found['b']}" + (f", {found['question']}" if found["question"] else "")
    return {"title": title, "columns": ["", "difference", ""], "rows": rows}


def _confusion(data: Plain, found: Plain) -> Plain:
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


def _plots(data: Plain, answer: Plain) -> dict[str, Any]:
    question = data["questions"][answer["question"]]
    return {
        "by_prevalence": _value_plot(answer, question),
        "calibration": _calibration_plot(answer["calibration"]) if answer["calibration"]["curve"] else None,
        "benefit": _benefit_plot(answer, question),
    }


def _value_plot(answer: Plain, question: Plain) -> Any:
    """Return PPV and NPV by prevalence, of flagging the same people."""
    rate, figures = question["prevalence"]["value"], answer["figures"]
    low, high = max(1e-6, rate / 30), min(0.6, 30 * rate)
    grid = expit(np.linspace(logit(low), logit(high), 61))

    def after(ratio: float | None, unbounded: bool) -> np.ndarray:
        if ratio is None:
            return np.full(len(grid), 1.0 if unbounded else np.nan)
        return expit(logit(grid) + math.log(ratio)) if ratio > 0 else np.zeros(len(grid))

    plus, minus = (
        {part: after(figures[name][part], figures[name]["low"] is not None) for part in ("value", "low", "high")}
        for name in ("lr_plus", "lr_minus")
    )
    series = [
        Series("NPV: of the others, do not have it", grid, 1 - minus["value"], 1 - minus["high"], 1 - minus["low"], style=2),
        Series("PPV: of the flagged, have it", grid, plus["value"], plus["low"], plus["high"]),
    ]
    x = Axis("how frequent it is", low, high, "log-odds", words=percent)
    return plot(x, Axis("share", 0, 1), series, alt="Predictive values by prevalence, with intervals as bands.", marker=True)


def _calibration_plot(found: Plain) -> Any:
    curve = found["curve"]
    low, high = (float(expit(logit(curve["predicted"][end]) + more)) for end, more in ((0, -0.7), (-1, 0.7)))
    x, y = (Axis(each, low, high, "log-odds", words=percent) for each in ("predicted risk", "observed frequency"))
    series = [
        Series("perfectly calibrated", [low, high], [low, high], style=None),
        Series("observed", curve["predicted"], curve["observed"], curve["low"], curve["high"]),
    ]
    return plot(x, y, series, alt="Observed frequency by predicted risk, with an interval as a band, beside the diagonal.")


def _benefit_plot(answer: Plain, question: Plain) -> Any:
    curve = {name: np.array(each, dtype=float) for name, each in answer["decision"].items()}
    t, rate = curve["threshold"], question["prevalence"]["value"]
    unit = question["people"]
    top = unit * max(float(np.nanmax(curve["high"])), rate)
    series = [
        Series("flag nobody", [t[0], t[-1]], [0, 0], style=None),
        Series(
            "flag everybody", t, np.where(curve["treat_all"] * unit < -0.35 * top, np.nan, curve["treat_all"] * unit), style=1
        ),
        Series("flag by the model", t, unit * curve["net_benefit"], unit * curve["low"], unit * curve["high"]),
    ]
    x = Axis(
        "flag from this risk on",
        float(t[0]),
        float(t[-1]),
        "log-odds",
        words=percent,
    )
    y = Axis(f"net benefit among {unit:,} people", -0.35 * top, 1.05 * top, words=number)
    return plot(
        x, y, series, alt="Net benefit by threshold, of the model, of flagging everybody and of flagging nobody.", marker=True
    )


def _dots(answer: Plain) -> dict[str, str]:
    """Return a path for each kind of people of 1,000: a point for each, 40 in a row, column by column."""
    total = sum(answer["whole_people"].values())
    shares = {name: 1000 * each / total for name, each in answer["whole_people"].items()}
    whole = {name: math.floor(each) for name, each in shares.items()}
    for name in sorted(shares, key=lambda name: whole[name] - shares[name])[: 1000 - sum(whole.values())]:
        whole[name] += 1
    paths, place = {}, 0
    for name, count in whole.items():
        paths[name] = "".join(f"M{10 * (i // 25) + 5} {10 * (i % 25) + 5}h0" for i in range(place, place + count))
        place += count
    return paths
