"""The report of a table model: one self-contained HTML page with a prevalence slider.

Stage: `TableModel` → `report.html`, by `templates/table.html.j2` on the skeleton of `rightloss.card`. Nothing is fitted to the
table here: the page shows the comparison and the held-out predictions stored in the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import expit, logit

from ..card.charts import calibration_plot
from ..card.page import grid, one_against_rest, render
from ..card.words import counted, figure, limits, number, percent, share
from ..metrics.one_vs_rest import log_odds
from ..metrics.smooth_calibration import weighted_quantiles
from ..predictive import retarget

if TYPE_CHECKING:
    from .model import TableModel, UnlabelledReport
    from .pipelines import ColumnSpec

_PEOPLE = {"median": 0.5, "top 10 %": 0.9, "top 1 %": 0.99, "top 1 in 1,000": 0.999}
_FEWEST = 5  # rows above the last of them
_RECALL = 0.8  # at the slider's initial threshold
_MOST_SHOWN = 8  # categories shown per column
_Z = 1.959964  # of 95 % limits


def report_page(model: TableModel) -> str:
    """Return the page as HTML; all text of the table is escaped."""
    population, held, focus = model.population.population, model.held_out, _focus_classes(model)
    several = len(model.classes_) > 2
    drawn = {"the model": held.log_probs, "without the correction": retarget(held.log_probs, population, model.sampling)}
    context = {
        "title": f"{model.target}, where {_where(model.classes_[focus[0]], float(population[focus[0]]))}",
        "sentences": sentences(model),
        "focus_labels": [str(model.classes_[k]) for k in focus],
        "drawing": calibration_plot(drawn, held.target, population, focus[0], held.groups),
        "data": slider_data(model),
        "people": list(_people(model)),
        "compared": [_compared(row) for row in model.comparison.to_dict("records")],
        "kept": model.comparison["chosen"].tolist().index(True),
        "grouped": held.groups is not None,
        "ratios": None if model.odds_ratios is None else [_ratio(row) for row in model.odds_ratios.to_dict("records")],
        "several": several,
        "of": f"each class against {model.classes_[0]}" if several else str(model.classes_[1]),
        "findings": model.findings,
        "columns": [[each.name, each.kind, _about(each)] for each in model.columns],
    }
    return render("table.html.j2", context, __package__)


def sentences(model: TableModel) -> list[str]:
    """Return sentences about the model: which one was kept, how well it predicts, and what the correction changes."""
    (best,), focus = model.comparison[model.comparison["chosen"]].to_dict("records"), _focus_classes(model)[0]
    label, pi = model.classes_[focus], float(model.population.population[focus])
    after, before = _mean_predictions(model, focus)
    kept = (
        f"Of the models compared, “{best['candidate']}” is kept to predict {model.target} where {_where(label, pi)}: AUC "
        f"{best['auc']:.3f}, {percent(best['skill'])} of the way from always answering the frequencies to certainty."
    )
    changed = abs(before - after) >= 0.01 * after
    mean = f"On average it predicts {share(after)} there"
    mean += f"; without the correction the same model would say {share(before)}." if changed else "."
    return [kept, mean, *unlabelled_sentences(model)]


def unlabelled_sentences(model: TableModel) -> list[str]:
    """Return sentences about the unlabelled rows: the learned population, if any, and whether the model improved."""
    used, focus = model.unlabelled, _focus_classes(model)[0]
    if used is None:
        return []
    said = [_test_sentence(used)]
    if used.population_low is not None and used.population_high is not None:
        learnt = float(model.population.population[focus]), used.population_low[focus], used.population_high[focus]
        shown, ends = percent(learnt[0]), limits(*learnt[1:], percent)
        what = f"How frequent {model.classes_[focus]} is was learnt from the unlabelled rows"
        said.append(f"{what}: {shown} (95 % interval {ends}).")
    if used.gain is not None:
        gain, ends = number(used.gain, sign=True), limits(used.low, used.high)
        changes = f"the linear model’s log-likelihood of labelled rows changes by {gain} nats a row (95 % interval {ends})"
        said.append(f"With them {changes}. {_kept(used)}")
    if used.mean_predictions is not None:
        said.append(f"For the unlabelled rows the model predicts {share(used.mean_predictions[focus])} on average.")
    return said


def _test_sentence(used: UnlabelledReport) -> str:
    """Return a sentence with the number of unlabelled rows and the result of the shift test."""
    of_all = "" if used.used == used.rows else f" of {used.rows:,}"
    tested = "whether people of a class look the same in both tables was not tested"
    if used.p_value is not None and used.warned:
        tested = f"the test of whether people of a class look the same in both tables warned (p = {used.p_value:.2g})"
    elif used.p_value is not None:
        tested = f"a test found no sign that people of a class look different in the two tables (p = {used.p_value:.2g})"
    return f"{counted(used.used, 'unlabelled row')}{of_all} were used; {tested}."


def _kept(used: UnlabelledReport) -> str:
    """Return which model is kept, and why."""
    if used.stream_gain is None:
        another = "It is not kept, since the test warned." if used.warned else "The model kept is another."
        return "It is kept." if used.kept else another
    gain = number(used.stream_gain, sign=True)
    both = f"held-out rows of both tables together decided, with {gain} nats a labelled row for it"
    return f"It is kept: {both}." if used.kept else f"The model kept is another: {both}."


def slider_data(model: TableModel) -> dict[str, Any]:
    """Return the data of the page's script, for each selectable class."""
    return {"thresholds": grid(-5), "focus": [_focus(model, k) for k in _focus_classes(model)]}


def _focus(model: TableModel, k: int) -> dict[str, Any]:
    held, pi = model.held_out, model.population.population
    people = _log_odds_of_people(model, k)
    uncorrected = expit(people + logit(model.sampling[k]) - logit(pi[k]))
    start = float(expit(np.quantile(log_odds(held.log_probs, k)[held.target == k], 1 - _RECALL)))
    return {
        "label": str(model.classes_[k]),
        "prevalences": grid(-5, float(pi[k])),
        "threshold": min(max(start, 1e-5), 0.99),
        "people": people.tolist(),
        "uncorrected": uncorrected.tolist(),
        **one_against_rest(held.log_probs, held.target, pi, k, held.groups),
    }


def _people(model: TableModel) -> dict[str, float]:
    """Return the shares of the population below the people shown, by name: those that enough rows are above."""
    return {name: place for name, place in _PEOPLE.items() if (1 - place) * len(model.held_out.target) >= _FEWEST}


def _log_odds_of_people(model: TableModel, k: int) -> np.ndarray:
    """Return quantiles of the log-odds over the population, with limits `(p, 3)`: those of the share of rows below each."""
    held, pi = model.held_out, model.population.population
    odds, counts = log_odds(held.log_probs, k), np.bincount(held.target, minlength=len(pi))
    weights = (pi / counts)[held.target]
    places = np.array(list(_people(model).values()))
    values = weighted_quantiles(odds, weights, tuple(places))
    met = [j for j in range(len(pi)) if counts[j]]
    below = np.stack([[(odds[held.target == j] <= value).mean() for value in values] for j in met])
    error = _Z * np.sqrt((pi[met] ** 2 / counts[met]) @ (below * (1 - below)))
    ends = [weighted_quantiles(odds, weights, tuple(np.clip(places + sign * error, 0, 1))) for sign in (-1, 1)]
    return np.stack([values, *ends], 1)


def _mean_predictions(model: TableModel, k: int) -> tuple[float, float]:
    """Return the mean prediction of class k over the population, and that of the same model at the table's mix."""
    held, pi = model.held_out, model.population.population
    weights = (pi / np.bincount(held.target, minlength=len(pi)))[held.target]
    tables = held.log_probs, retarget(held.log_probs, pi, model.sampling)
    after, before = (float(np.average(np.exp(table[:, k]), weights=weights)) for table in tables)
    return after, before


def _compared(row: dict[str, Any]) -> list[Any]:
    """Return a candidate's row of the table."""
    gain = figure(row["expected_log_likelihood"], row["low"], row["high"], lambda value: number(value, 4))
    rest = [number(row[name]) for name in ("skill", "auc", "calibration_slope", "calibration_intercept", "seconds")]
    return [f"{row['candidate']}{' ✓' if row['chosen'] else ''}", gain, *rest]


def _ratio(row: dict[str, Any]) -> list[Any]:
    """Return an odds ratio's row of the table; the class is last."""
    return [row["column"], row["change"], figure(row["odds_ratio"], row["low"], row["high"]), row["class"]]


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


def _where(label: object, rate: float) -> str:
    return f"{share(rate)} {'is' if share(rate).startswith('1 in') else 'are'} {label}"
