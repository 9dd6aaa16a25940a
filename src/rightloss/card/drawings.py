"""The drawings of a card: a picture of 1,000 people, predictive values by prevalence, and net benefit.

Stage: an answer of a card's numbers → SVG by `plots`, or the paths of points.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import expit, logit

from .figures import Plain
from .plots import Axis, Series, plot
from .words import number, percent

if TYPE_CHECKING:
    from markupsafe import Markup

_PLACES = ("found", "false_alarms", "rest", "missed")  # the missed are far from the flagged


def value_plot(answer: Plain, question: Plain) -> Markup:
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
    series = [each for each in series if np.isfinite(each.y).any()]
    return plot(x, Axis("share", 0, 1), series, alt="Predictive values by prevalence, with intervals as bands.", marker=True)


def benefit_plot(answer: Plain, question: Plain) -> Markup:
    """Return the decision curve, at the card's own prevalence."""
    curve = {name: np.array(each, dtype=float) for name, each in answer["decision"].items()}
    t, rate, unit = curve["threshold"], question["prevalence"]["value"], question["people"]
    top = unit * max(float(np.nanmax(curve["high"])), rate)
    everybody = curve["treat_all"] * unit
    series = [
        Series("flag nobody", [t[0], t[-1]], [0, 0], style=None),
        Series("flag everybody", t, np.where(everybody < -0.35 * top, np.nan, everybody), style=1),
        Series("flag by the model", t, unit * curve["net_benefit"], unit * curve["low"], unit * curve["high"]),
    ]
    x = Axis("flag from this risk on", float(t[0]), float(t[-1]), "log-odds", words=percent)
    y = Axis(f"net benefit among {unit:,} people", -0.35 * top, 1.05 * top, words=number)
    alt = f"Net benefit by threshold where {percent(rate)} have it: of the model, of flagging everybody and of flagging nobody."
    return plot(x, y, series, alt=alt, marker=True)


def dots(answer: Plain) -> dict[str, str]:
    """Return a path for each kind of people of 1,000: a point for each, 25 in a column, one column after the other."""
    total = sum(answer["whole_people"].values())
    shares = {name: 1000 * answer["whole_people"][name] / total for name in _PLACES}
    whole = {name: math.floor(each) for name, each in shares.items()}
    for name in sorted(shares, key=lambda name: whole[name] - shares[name])[: 1000 - sum(whole.values())]:
        whole[name] += 1
    paths, place = {}, 0
    for name, count in whole.items():
        paths[name] = "".join(f"M{10 * (i // 25) + 5} {10 * (i % 25) + 5}h0" for i in range(place, place + count))
        place += count
    return paths
