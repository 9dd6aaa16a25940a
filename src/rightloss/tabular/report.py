"""The report of a table model: one self-contained HTML page with a prevalence slider.

Stage: `TableModel` → `report.html`, by the templates in `templates/`. Nothing is fitted here: the page shows the comparison and
the held-out predictions stored in the model.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import expit, logit, logsumexp

from .. import __version__
from ..predictive import retarget
from .report_picture import calibration_drawing

if TYPE_CHECKING:
    from jaxtyping import Float64
    from jinja2 import Environment

    from .encode import ColumnSpec
    from .model import TableModel, UnlabelledReport

_MANTISSAS = "1 1.2 1.5 2 2.5 3 4 5 6 8".split()
_HIGH = (0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.99)
_PEOPLE = {"median": 0.5, "top 10 %": 0.9, "top 1 %": 0.99, "top 1 in 1,000": 0.999, "highest of all": 1.0}
_RECALL = 0.8  # at the slider's initial threshold
_MOST_SHOWN = 8  # categories shown per column
_ROUNDING = 1e-12  # smaller values are shown as 0
_COMMANDS = (
    "rightloss predict MODEL new.csv --out predictions.csv",
    "rightloss predict MODEL new.csv --population 0.01 --out predictions.csv",
    "rightloss evaluate MODEL labelled.csv",
    "rightloss prevalence MODEL unlabelled.csv",
)
_LIMITS = (
    "The slider, and predictions at another population, hold where each class looks as it did in this file and only the mix of "
    "classes differs (label shift); `rightloss prevalence` tests that on rows without labels. Figures without intervals rest "
    "on the held-out rows alone: with few rows of a class they are rough."
)


def report_page(model: TableModel) -> str:
    """Return the page as HTML; all text of the table is escaped."""
    population, sampling, focus = model.population.population, model.population.sampling, _focus_classes(model)
    held = model.held_out
    context = {
        "version": __version__,
        "title": f"{model.target}, where {_where(model.classes_[focus[0]], float(population[focus[0]]))}",
        "sentences": sentences(model),
        "focus_label": str(model.classes_[focus[0]]),
        "drawing": calibration_drawing(held.log_probs, held.target, population, sampling, focus[0]),
        "slider": slider_data(model),
        "people": list(_PEOPLE),
        "comparison": _comparison(model),
        "odds_ratios": _odds_ratios(model),
        "findings": model.findings,
        "columns": [{"name": each.name, "kind": each.kind, "about": _about(each)} for each in model.columns],
        "commands": _COMMANDS,
        "limits": _LIMITS,
    }
    return _environment().get_template("table.html.j2").render(context)


def sentences(model: TableModel) -> list[str]:
    """Return sentences about the model: which one was kept, how well it predicts, and what the correction changes."""
    (best,), focus = model.comparison[model.comparison["chosen"]].to_dict("records"), _focus_classes(model)[0]
    label, pi = model.classes_[focus], float(model.population.population[focus])
    after, before = _mean_predictions(model, focus)
    kept = (
        f"Of the models compared, “{best['candidate']}” is kept to predict {model.target} where {_where(label, pi)}: AUC "
        f"{best['auc']:.3f}, {100 * best['skill']:.3g} % of the way from always answering the frequencies to certainty."
    )
    mean = f"On average it predicts {_share(after)} there; without the correction the same model would say {_share(before)}."
    if abs(before - after) < 0.01 * after:
        mean = f"On average it predicts {_share(after)} there."
    return [kept, mean, *unlabelled_sentences(model)]


def unlabelled_sentences(model: TableModel) -> list[str]:
    """Return sentences about the unlabelled rows: the learned population, if any, and whether the model improved."""
    used, said = model.unlabelled, []
    if used is None:
        return []
    said.append(_test_sentence(used))
    if used.population_low is not None and used.population_high is not None:
        focus = _focus_classes(model)[0]
        shares = (float(model.population.population[focus]), used.population_low[focus], used.population_high[focus])
        share, low, high = (f"{100 * each:.3g} %" for each in shares)
        said.append(
            f"How frequent {model.classes_[focus]} is was learnt from the unlabelled rows: {share} (95 % interval {low} to "
            f"{high})."
        )
    if used.gain is not None and used.low is not None and used.high is not None:
        interval = f"95 % interval {_number(used.low)} to {_number(used.high)}"
        said.append(
            f"With them the linear model’s log-likelihood of labelled rows changes by {_signed(used.gain)} nats a row "
            f"({interval}). {_kept(used)}"
        )
    if used.mean_predictions is not None:
        focus = _focus_classes(model)[0]
        said.append(f"For the unlabelled rows the model predicts {_share(used.mean_predictions[focus])} on average.")
    return said


def _test_sentence(used: UnlabelledReport) -> str:
    """Return a sentence with the number of unlabelled rows and the result of the shift test."""
    of_all = "" if used.used == used.rows else f" of {used.rows:,}"
    tested = "whether people of a class look the same in both tables was not tested"
    if used.p_value is not None and used.warned:
        tested = f"the test of whether people of a class look the same in both tables warned (p = {used.p_value:.2g})"
    elif used.p_value is not None:
        tested = f"a test found no sign that people of a class look different in the two tables (p = {used.p_value:.2g})"
    rows = f"{used.used:,} unlabelled row{'' if used.used == 1 else 's'}"
    return f"{rows}{of_all} were used; {tested}."


def _kept(used: UnlabelledReport) -> str:
    """Return which model is kept, and why."""
    if used.stream_gain is None:
        another = "It is not kept, since the test warned." if used.warned else "The model kept is another."
        return "It is kept." if used.kept else another
    both = f"held-out rows of both tables together decided, with {_signed(used.stream_gain)} nats a labelled row for it"
    return f"It is kept: {both}." if used.kept else f"The model kept is another: {both}."


def slider_data(model: TableModel) -> dict[str, Any]:
    """Return the data of the page's script: for each selectable class, its log-odds in the rows of each true class.

    If the frequency of one class changes from π_c to π′_c and the others keep their proportions, Bayes' rule adds
    logit π′_c − logit π_c to the log-odds of that class. The fractions of each true class above a threshold then give every
    figure.
    """
    thresholds = [*_grid(-5), *_HIGH]
    return {"thresholds": thresholds, "focus": [_focus(model, k, thresholds) for k in _focus_classes(model)]}


def _focus(model: TableModel, k: int, thresholds: list[float]) -> dict[str, Any]:
    held, pi = model.held_out, model.population.population
    odds, rate = _log_odds(held.log_probs, k), float(pi[k])
    weights = (pi / np.bincount(held.target, minlength=len(pi)))[held.target]
    people = _weighted_quantiles(odds, weights, list(_PEOPLE.values()))
    sampling = model.population.sampling[k]
    start = expit(np.quantile(odds[held.target == k], 1 - _RECALL))
    rest = [j for j in range(len(pi)) if j != k and (held.target == j).any()]
    return {
        "label": str(model.classes_[k]),
        "rate": rate,
        "prevalences": sorted({*_grid(-5), *_HIGH, rate}),
        "threshold": int(np.argmin(np.abs(np.log(thresholds) - np.log(np.clip(start, thresholds[0], thresholds[-1]))))),
        "own": _packed(odds[held.target == k]),
        "rest": [{"weight": float(pi[j] / pi[rest].sum()), "odds": _packed(odds[held.target == j])} for j in rest],
        "people": people.tolist(),
        "uncorrected": expit(people + logit(sampling) - logit(rate)).tolist(),
    }


def _grid(lowest: int) -> list[float]:
    """Return round numbers from 10^lowest to 0.5, almost evenly spaced in the logarithm."""
    numbers = [float(f"{mantissa}e{power}") for power in range(lowest, 0) for mantissa in _MANTISSAS]
    return [each for each in numbers if each <= 0.5]


def _packed(odds: Float64[np.ndarray, " n"]) -> str:
    """Return the sorted values as float64 bytes in base64, without rounding."""
    return base64.b64encode(np.sort(odds).astype("<f8").tobytes()).decode("ascii")


def _weighted_quantiles(values: np.ndarray, weights: np.ndarray, shares: list[float]) -> np.ndarray:
    """Return the weighted quantiles of the values."""
    order = np.argsort(values)
    below = np.cumsum(weights[order]) / weights.sum()
    return values[order][np.minimum(np.searchsorted(below, np.array(shares) - 1e-12), len(values) - 1)]


def _log_odds(log_probs: np.ndarray, k: int) -> np.ndarray:
    """Return log p_k/(1 − p_k) from a table of log-probabilities, without rounding 1 − p_k."""
    return log_probs[:, k] - logsumexp(np.delete(log_probs, k, axis=1), axis=1)


def _mean_predictions(model: TableModel, k: int) -> tuple[float, float]:
    """Return the mean prediction of class k over the population, and that of the same model at the table's mix."""
    held, pi = model.held_out, model.population.population
    weights = (pi / np.bincount(held.target, minlength=len(pi)))[held.target]
    tables = held.log_probs, retarget(held.log_probs, pi, model.population.sampling)
    after, before = (float(np.average(np.exp(table[:, k]), weights=weights)) for table in tables)
    return after, before


def _comparison(model: TableModel) -> dict[str, Any]:
    heads = ["model", "expected log-likelihood", "skill", "AUC", "calibration slope", "calibration intercept", "seconds"]
    rows = []
    for row in model.comparison.to_dict("records"):
        interval = f"{_number(row['low'])} to {_number(row['high'])}"
        cells = [{"value": _number(row["expected_log_likelihood"], 4), "range": interval}]
        names = ("skill", "auc", "calibration_slope", "calibration_intercept", "seconds")
        cells += [{"value": _number(row[name]), "range": ""} for name in names]
        rows.append({"name": row["candidate"], "chosen": bool(row["chosen"]), "cells": cells})
    grouped = "" if model.held_out.groups is None else ", whole groups at a time"
    return {"heads": heads, "rows": rows, "folds": "on parts of the table by cross-validation", "grouped": grouped}


def _odds_ratios(model: TableModel) -> dict[str, Any] | None:
    if model.odds_ratios is None:
        return None
    rows = [
        {"column": row["column"], "label": row["class"], "change": row["change"], "value": _number(row["odds_ratio"])}
        | {"range": f"{_number(row['low'])} to {_number(row['high'])}"}
        for row in model.odds_ratios.to_dict("records")
    ]
    several = len(model.classes_) > 2
    of = f"each class against {model.classes_[0]}" if several else str(model.classes_[1])
    grouped = "" if model.held_out.groups is None else ", with the rows of a group as one draw"
    return {"rows": rows, "several": several, "of": of, "grouped": grouped}


def _about(column: ColumnSpec) -> str:
    """Return a column's categories, or the value used for a missing number."""
    if column.categories:
        more = len(column.categories) - _MOST_SHOWN
        return ", ".join(column.categories[:_MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return f"missing values count as {column.fill:.4g}, the median, in linear models" if column.has_missing else ""


def _focus_classes(model: TableModel) -> list[int]:
    """Return the selectable classes: the positive one of two, or all of more than two, the rarest first."""
    if len(model.classes_) == 2:
        return [1]
    return np.argsort(model.population.population).tolist()


def _where(label: object, share: float) -> str:
    return f"{_share(share)} {'is' if _share(share).startswith('1 in') else 'are'} {label}"


def _share(value: float) -> str:
    """Return a frequency as text: "1 in 1,000" for round numbers, or "2.5 %"."""
    whole = round(1 / value) if value > 1e-12 else 0
    is_round = whole >= 5 and float(f"{whole:.1g}") == whole and abs(whole * value - 1) < 0.005
    return f"1 in {whole:,}" if is_round else f"{100 * value:.3g} %"


def _number(value: float, digits: int = 3) -> str:
    if not np.isfinite(value):
        return "–"
    return f"{value if abs(value) > _ROUNDING else 0.0:.{digits}g}".replace("-", "−")


def _signed(value: float) -> str:
    return f"+{_number(value)}" if value > 0 else _number(value)


def _environment() -> Environment:
    """Return the templates; all text is escaped, except for our own style and script."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    style, script = (files(__package__).joinpath("templates", name).read_text("utf-8") for name in ("table.css", "table.js"))
    environment = Environment(
        loader=PackageLoader(__package__, "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    environment.globals |= {"style": Markup(style), "script": Markup(script), "script_digest": digest}
    return environment
