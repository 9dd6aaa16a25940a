"""Draw the charts of pages that would otherwise be tables alone, from stored results.

`toy.png` shows docs/results/toy.csv, `paper-verdicts.png` counts the checks in docs/results/paper.json.
"""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from rightloss.study.summary.contract import OURS

FOLDER = Path(__file__).resolve().parent.parent / "results"
COLOURS = {"reproduces": "#0072b2", "undecided": "#bbbbbb", "does not": "#d55e00"}
STARTS = {"population": " (from π)", "equal": " (from equal classes)"}
NAMES = {"does not": "does not reproduce"}
BEST, ALWAYS, BOTH = "best possible", "always saying the prevalence", "both"


def toy_rows() -> pd.DataFrame:
    """Return the rows of the toy study."""
    return pd.read_csv(FOLDER / "toy.csv", dtype={"prevalence": str}).fillna({"start": ""})


def toy(rows: pd.DataFrame) -> Figure:
    """Draw what each loss loses to the best possible answer, by population; hollow if started at equal classes."""
    rows = rows[rows["method"] != BEST]
    always = rows[rows["method"] == ALWAYS].set_index("prevalence")["lost"]
    methods = [name for name in rows["method"].unique() if name != ALWAYS]
    figure, grid = plt.subplots(-(-len(always) // 2), 2, figsize=(7, 5.2), sharey=True, layout="constrained")
    axes = grid.flatten()
    for axis, (population, table) in zip(axes, rows.groupby("prevalence", sort=False), strict=True):
        for model, (marker, colour) in {"linear": ("o", "#0072b2"), "MLP": ("s", "#d55e00")}.items():
            for start, fill in {"equal": "none", "π": "full"}.items():
                own = table[(table["model"] == model) & table["start"].isin([start, BOTH])]
                places = own["method"].map(methods.index)
                axis.plot(own["lost"], places, marker, color=colour, fillstyle=fill, label=f"{model}, from {start}", ms=6)
        axis.axvline(always[population], color="#777777", ls=":", label=ALWAYS)
        axis.set(xscale="log", title=f"prevalence {population}" if str(population)[0] == "0" else population)
        axis.xaxis.set_major_locator(LogLocator(numticks=4))
        axis.grid(alpha=0.25)
    axes[0].set_yticks(range(len(methods)), methods)
    axes[0].invert_yaxis()
    figure.supxlabel("nats lost to the best possible answer (log scale; left is better)", fontsize=10)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
    return figure


def is_counted(check: dict[str, Any]) -> bool:
    """Leave out what cannot be tested, what always answering π fulfils, and our own claims."""
    return check["verdict"] != "cannot be tested" and not check["trivial"] and check["place"] != OURS


def verdicts(checks: list[dict[str, Any]]) -> Figure:
    """Draw how often each claim of the paper reproduced, a bar for each claim and start."""
    found: dict[str, Counter[str]] = {}
    for check in (each for each in checks if is_counted(each)):
        claim = check["about"].partition(":")[0]
        found.setdefault(claim + STARTS.get(check["setting"].get("start", ""), ""), Counter())[check["verdict"]] += 1
    figure, axis = plt.subplots(figsize=(9, 0.42 * len(found) + 1.2), layout="constrained")
    left = [0] * len(found)
    for verdict, colour in COLOURS.items():
        width = [count[verdict] for count in found.values()]
        if any(width):
            axis.barh(range(len(found)), width, left=left, color=colour, edgecolor="#444444", label=NAMES.get(verdict, verdict))
        left = [a + b for a, b in zip(left, width, strict=True)]
    axis.set_yticks(range(len(found)), [textwrap.fill(claim[0].upper() + claim[1:], 70) for claim in found], fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel("settings in which the claim was checked")
    axis.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=4, frameon=False)
    return figure


def make_charts() -> None:
    checks = json.loads((FOLDER / "paper.json").read_text(encoding="utf-8"))["checks"]
    for name, figure in {"toy": toy(toy_rows()), "paper-verdicts": verdicts(checks)}.items():
        figure.savefig(FOLDER / f"{name}.png", dpi=130)
        print(f"docs/results/{name}.png")
