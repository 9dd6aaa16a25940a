"""Write the tables of claim.py's page that say why: the gain form by form, closed forms, slopes, and other years.

Stage: `Compared` cells of claim_tables.py, and claim_why.json → Markdown.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
from claim import BY_YEAR, SCREENED_AT, SIZES
from claim_methods import LOGIT_ADJUSTED, SCREENED
from claim_tables import GUESS, Compared, percent
from claim_why import OUT as WHY
from report import table

WHEN = (
    (
        "labelled rows alone, any model",
        "logit adjustment, then beta or affine calibration on held-out rows",
        (
            "level with the best rival about twice as often as logit adjustment alone, and below π on one set alone, "
            "*credit*, where a model extrapolates (*Labelled rows alone*)"
        ),
    ),
    (
        "a net, and time for five",
        "an ensemble, then affine calibration",
        "of all methods for nets most often level with the best of the others, and below π on *credit* alone",
    ),
    (
        "few labelled rows, π of 0.01 or less, columns with long tails",
        "`PrevalenceCorrectedClassifier`; with another calibration smooth the likelihood ratio, too",
        (
            "its rule is below π in no cell but of *accidents 2020*, which has another shift; another calibration, smoothed, "
            "in hardly any. Always on, smoothing costs where classes are nearly separable (*sylva*, *shuttle*, *nursery*). A "
            "cap is no better, and its ties lower the AUC"
        ),
    ),
    (
        "trees",
        "logit adjustment, calibrated or not; not the weighted loss",
        "calibration changes little either way; the weighted loss is far behind at a small π",
    ),
    (
        "unlabelled rows of the population, linear or net",
        "the likelihood with them, guarded by validation, then affine, then matched to π",
        "ahead of all rivals several times as often as mean matching (*With unlabelled rows*)",
    ),
    (
        "unlabelled rows, trees",
        "affine, then matched to π, or mean matching",
        "(*Boosting*)",
    ),
    (
        "π unknown",
        "see [Labelled and unlabelled data](unlabelled.md)",
        "not measured here",
    ),
)
DEFAULTS = (
    (
        "`InformationGainLoss(reference=None)`, r = ρ",
        "keep",
        ("at r = π the data hardly see the intercept (*Why*); r between is no better (*The gain, form by form*)"),
    ),
    (
        "κ = 1",
        "keep",
        (
            "κ = 0 and 0.1 are behind it more often than ahead; κ chosen on validation is ahead in about a tenth of the "
            "cells and hardly ever behind, by little"
        ),
    ),
    (
        "`RunningMarginal`",
        "keep",
        "at κ = 1 and r = ρ it has no effect; elsewhere it matters less than the start and the reference",
    ),
    (
        "`start_at_prevalence`",
        "keep",
        (
            "without it the AUC is lower at 0.001; the log-likelihood is lower for linear models and higher for MLPs, which "
            "then stop before they overfit (*The gain, form by form*)"
        ),
    ),
    (
        '`PrevalenceCorrectedClassifier(method="auto")`',
        '"beta", with a guard',
        (
            'the "auto" of this run weighed all corrections against each other; "beta" is level with the best in more cells '
            '(*Labelled rows alone*), and below π in one. Since then "auto" is "beta", unless always predicting π is better'
        ),
    ),
    (
        '`PrevalenceCorrectedClassifier(smoothing="auto")`',
        "an option, off by default",
        (
            'after logit adjustment or one calibration it saves models that extrapolate; the rule of "auto" is safe without '
            "it, and with it is ahead as often as behind around logistic regression, and behind around boosting (next table)"
        ),
    ),
)
WHY_TEXT = (
    """
### Why

Made by `python benchmarks/claim_why.py`. Two Gaussian classes, for which a linear model is right, 200 labelled of each class;
each loss is minimised to the end, over 60 samples. *Lost* is the distance to the best possible log-likelihood, in % of the
log-loss of always answering π.

""",
    """
In the published form the data hardly say where the intercept is, and κ = 1 helps less at r = π than at r = ρ, where the
intercept has the spread of logistic regression. At the optimum over all rows, κ makes no difference at r = ρ; what differs
in training is the path. Where the model is wrong, here by a bend of the log-odds, the weighted loss is right in the limit, and
logit adjustment is not; with few rows its variance costs more than that, and half the weight is a compromise:

""",
    """
At a small π the log-likelihood depends on the few rows of the other class with the largest log-odds. In real tables some rows
are far out, where a model extrapolates: it claims likelihood ratios of thousands, which a hundred labelled rows cannot show.
With n labelled rows of a class, the ratio is capped at n + 1: if none of n looks like x, about one in n still may.
Where the model is right this costs little (first table). Where one row in fifty is ten times as far out,
it decides whether anything is gained:

""",
)
SLOPES_TEXT = """
The slope that calibration on validation rows gives the log-odds of logit adjustment; below 1 they are overconfident. With 50
labelled of each class MLPs and boosting are so more often than not, linear models, stopped early, less often. All of them
predict too much at a small π then: a few rows with high log-odds do that.

"""
BY_YEAR_TEXT = """
### Other years

Labelled in some years, used in a later one, at its own prevalence. Differences to logit adjustment, ± s.e. Employment is a
control: hardly anything shifts there. Where logit adjustment is below π, more than the mix has moved, which the test may not
see with 100 validation rows of each class.

"""


def proposal() -> str:
    """Return what the figures support, in words."""
    first = table(["there is", "use", "because"], WHEN)
    second = table(["default", "proposal", "because"], DEFAULTS)
    return f"\nWhat these figures support; each line points to the table that it rests on.\n\n{first}\n{second}"


def repairs(all_cells: Sequence[Compared]) -> str:
    """Return a row per form of the gain, where all were run: median difference to logit adjustment in %, AUC, mean."""
    names = (*SCREENED, "gain, r = ρ, κ = 0", "gain, r = ρ, κ = 0.1")
    parts = {
        f"{model}, {title}": [
            cell
            for cell in all_cells
            if cell.model == model and (cell.place > 0) == rare and "gain as published" in cell.likelihood
        ]
        for model in ("linear", "MLP")
        for title, rare in (("natural", False), (f"{SCREENED_AT[0]:g}", True))
    }
    rows = []
    for name in names:
        line = [name]
        for part in parts.values():
            own = [cell for cell in part if name in cell.likelihood and cell.place in (0, 4)]
            if not own:
                line += ["–", "–", "–"]
                continue
            gain = np.median([100 * cell.difference(name, LOGIT_ADJUSTED)[0] / -cell.guess for cell in own])
            ranks = np.mean([cell.difference(name, LOGIT_ADJUSTED, "auc")[0] for cell in own])
            factor = np.median([cell.mean[name].mean() / cell.share for cell in own])
            line += [f"{gain:+.1f}", f"{ranks:+.4f}", f"{factor:.2g}"]
        rows.append(line)
    header = [f"{title} ({len(part)}): {each}" if not place else each for title, part in parts.items()
              for place, each in enumerate(("median, %", "AUC", "mean prediction / π"))]  # fmt: skip
    return table(["loss", *header], rows)


def slopes(all_cells: Sequence[Compared]) -> str:
    """Return the median slope that a calibration gives logit adjustment, and its mean prediction over π, by model and rows."""
    rows = []
    for model in ("linear", "MLP", "boosting", "ConvNet"):
        for size in SIZES:
            own = [cell for cell in all_cells if cell.model == model and cell.labelled == size and cell.set not in BY_YEAR]
            if not own:
                continue
            slope = np.concatenate([cell.slope["affine"] for cell in own if cell.place == 0])
            rare = [cell for cell in own if cell.place == 4]
            factor = [float(np.median(cell.mean[LOGIT_ADJUSTED] / cell.share)) for cell in rare]
            steep = percent(int((slope < 1).sum()), len(slope))
            rows.append([model, f"{size:,}" if size else "all", f"{np.median(slope):.2f}", steep, f"{np.median(factor):.2f}"])
    return table(["model", "labelled of each class", "median slope", "below 1 in", "mean prediction / π at 0.001"], rows)


def why() -> str:
    """Return the two tables of claim_why.py."""
    found = json.loads(WHY.read_text())
    shares = list(dict.fromkeys(row["share"] for row in found["intercepts"]))
    rows = []
    for name in dict.fromkeys(row["loss"] for row in found["intercepts"]):
        own = {row["share"]: row for row in found["intercepts"] if row["loss"] == name}
        rows.append(
            [
                name,
                *(
                    f"{own[s]['intercept']:.2g}, {own[s]['slope']:.2g}, {own[s]['lost']:.2g} ± {own[s]['lost_se']:.1g}"
                    for s in shares
                ),
            ]
        )
    first = table(["s.d. of intercept, of slope; lost, %", *(f"π = {each:g}" for each in shares)], rows)
    sizes = list(dict.fromkeys(row["rows"] for row in found["wrong_model"]))
    rows = []
    for each in shares:
        for name in dict.fromkeys(row["loss"] for row in found["wrong_model"]):
            own = {row["rows"]: row for row in found["wrong_model"] if row["loss"] == name and row["share"] == each}
            rows.append([f"{each:g}", name, *(f"{own[size]['lost']:.2f} ± {own[size]['lost_se']:.2f}" for size in sizes)])
    second = table(["π", "lost, %", *(f"{size:,} of each class" for size in sizes)], rows)
    rows = []
    for each in shares:
        for name in dict.fromkeys(row["loss"] for row in found["heavy_tails"]):
            tails = [row for row in found["heavy_tails"] if row["loss"] == name and row["share"] == each]
            rows.append([f"{each:g}", name, *(f"{row['median']:.1f}, {row['worst']:.3g}" for row in tails)])
    counts = list(dict.fromkeys(row["rows"] for row in found["heavy_tails"]))
    third = table(["π", "gain over always π, %: median, worst", *(f"{size:,} of each class" for size in counts)], rows)
    return WHY_TEXT[0] + first + WHY_TEXT[1] + second + WHY_TEXT[2] + third


def by_year(all_cells: Sequence[Compared]) -> str:
    """Return a row per set by year: what the test for label shift says, and differences to logit adjustment."""
    names = ("natural rows", "weighted", "affine", "mean matching", "unlabelled, guarded, matched")
    rows = []
    for cell in all_cells:
        if cell.set in BY_YEAR and cell.place == 0:
            differences = [cell.difference(name, LOGIT_ADJUSTED) for name in names if name in cell.likelihood]
            over = cell.difference(LOGIT_ADJUSTED, GUESS)
            passed = f"{int((cell.shift >= 0.05).sum())} of {cell.draws}" if np.isfinite(cell.shift).all() else "–"
            rows.append([f"{cell.set}, {cell.model}", f"{cell.share:.3f}", passed, f"{over[0]:+.4f} ± {over[1]:.4f}",
                         *(f"{mean:+.4f} ± {error:.4f}" for mean, error in differences)])  # fmt: skip
    header = ["set, model", "π", "label shift tenable (p ≥ 0.05)", "logit-adjusted over always π ± s.e.", *names]
    return table(header, rows) if rows else ""
