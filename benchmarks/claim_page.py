"""Write the page of claim.py from its stored results: picture, verdicts, reasons, what to use when; trains nothing.

Stage: `Compared` cells of claim_tables.py, and claim_why.json → docs/benchmarks/claim.md, .csv, .png.
"""

from __future__ import annotations

import itertools
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from claim import BY_YEAR, CHOSEN_ON, REPORTED_ON, SCREEN, SIZES, cells
from claim_methods import LOGIT_ADJUSTED
from claim_reasons import BY_YEAR_TEXT, SLOPES_TEXT, by_year, proposal, repairs, slopes, why
from claim_sets import MORE
from claim_tables import (
    CANDIDATES,
    CANDIDATES_UNLABELLED,
    GUESS,
    RIVALS,
    RIVALS_UNLABELLED,
    Compared,
    Verdict,
    as_frame,
    counted,
    interval,
    median_interval,
    percent,
    read,
    share_name,
    verdict,
)
from report import ROOT, table
from unlabelled_page import sources

PICTURED = (
    "natural rows", "weighted", "half weighted", "focal, affine", "gain, r = ρ, κ = 0", "affine", "beta", "pooled, beta",
    "ensemble", "ensemble, beta", f"{LOGIT_ADJUSTED}, smoothed", "beta, smoothed unless worse",
    "pooled, beta, smoothed unless worse", "classifier, smoothing auto", "mean matching", "unlabelled, evidence",
    "unlabelled, evidence, matched", "unlabelled, evidence, beta, matched", "unlabelled, evidence, beta, matched, smoothed",
)  # fmt: skip
IN_CSV = tuple(dict.fromkeys((
    *PICTURED, *CANDIDATES, *CANDIDATES_UNLABELLED, "focal", "Prior2Posterior", "affine, fitted at π", "weighted, affine",
    "natural rows, as is",
)))  # fmt: skip
VERDICT_TEXT = """Counted on the reported half; *median*: difference to logit adjustment, in % of the log-loss of answering π.

"""
WHEN_TEXT = """Chosen on the first half, in bold: among those below π least often (within 2 % of the cells), the one that is
level with the best rival most often. The figures are those on the second half, with the usual correction beside it.

"""
SMOOTHING_TEXT = """
What smoothing the likelihood ratios does. It is an insurance: it costs where classes are nearly separable, and saves a model
that extrapolates. *Unless worse* on validation rows, it hardly costs:

"""
CLASSIFIER_TEXT = """
`PrevalenceCorrectedClassifier` around logistic regression and LightGBM, by its `method`, compared with "auto" without
smoothing, at the populations that it was fitted for:

"""
FORMS_TEXT = """
### The gain, form by form

Made by `python benchmarks/claim.py --screen` at commit 83b73bd, on three sets with 50 labelled of each class; differences to
logit adjustment.

"""
NOT_RUN = "\nWhat has been run:\n\n"
Filter = Callable[[Compared], bool]

HOW = """
- A *cell* is a data set, a model, a number of labelled rows of each class, and a population: the natural prevalence of the last
  class, or 0.3, 0.1, 0.01, 10⁻³, 10⁻⁴, to which the test rows are weighted by class (not counted again within a factor of 1.25
  of the natural one). A *draw* splits the rows at random, by patient where there are patients: labelled, validation (50 of each
  class beside 50 labelled, 100 beside 200, else 250), unlabelled (at most 4,000, sampled at the population's mix), test.
- Linear, MLP (64 hidden units) and ConvNet: stacked nets, trained by Adam for 300 steps, minibatches of 64 rows of each of two
  classes. All methods have the same start, minibatches, step sizes and weight decays (two for linear models, one for nets), and
  keep the step and decay with the best validation log-likelihood at π. Boosting: LightGBM with 4 or 15 leaves and 5 to 80
  rounds, chosen alike. A loss whose training does not depend on π is trained once and moved to every π in closed form.
- *Logit-adjusted* is `LogitAdjustedLoss`; cross-entropy corrected afterwards takes the same path from this start, and so does
  `InformationGainLoss` at its defaults, r = ρ and κ = 1: every run begins by asserting that the gradients are equal.
  *Natural rows*: as many labelled rows as they are met, cross-entropy, moved to π; *as is*: not moved. *Weighted*: β = π/ρ, at
  every π. *Half weighted*: the same in the mix r ∝ √(ρπ), with weights r/ρ. *Focal*: γ = 2, moved to π.
  *Gain as published*: r = π, κ = 0, the minibatch's marginal, bias not started at π. *By x*: logit adjustment with weights
  that depend on x alone, through the present prediction: (p_π(x)/p_ρ(x))^½; *by uncertainty*: 1 − Σp² (the paper's outlook).
- *Affine*, *beta*: calibration on the validation rows, slopes shrunk, moved to π. *Classifier, …*: the methods of
  `PrevalenceCorrectedClassifier` around logistic regression and LightGBM, on out-of-fold predictions of the labelled rows, not
  smoothed; *smoothing auto*: with `smoothing="auto"`. *Flattening only*: left out where the slope is above 1. *Auto*: its rule
  on the validation rows: logit adjustment where that is clearly better than a calibration and than always answering π, else the
  better of affine and beta, and the guess where that is not worse by half a standard error (*if better*, *if clearly better*,
  *never*: other guards). *Fitted at π*: affine with the rows weighted to π, not shrunk.
  *Prior2Posterior*: divided by the mean prediction on the labelled rows. *Pooled*: mean log-odds of four nets trained by
  logit adjustment, the weighted loss, the gain at κ = 0 and by uncertainty. *Ensemble*: five logit-adjusted MLPs.
  *Laplace*: averaged over a Gaussian posterior of the linear model. *κ validated*: the best of κ = 0, 0.1, 1 on validation.
- *Capped*: no class has a likelihood of x below 1/(n_k + 1) of the largest one, for n_k labelled rows of it; *smoothed*:
  1/(n_k + 1) is added to each class's share of the likelihood; *unless worse*: by a standard error, on the validation rows.
  Rivals are neither.
- With unlabelled rows: *mean matching* moves the intercept until their mean prediction is π; *matched* does so after another
  method. *Unlabelled, root*: they are one more stream of the likelihood, with mass √(N_u/n). *Evidence*: with the mass of the
  minibatch's rows, and evidence (ε = 3) that their mean prediction is π, as `InformationGainClassifier` has it. *Guarded*:
  unless logit adjustment is better on validation; without another word, that is the root.
- What was set after looking: the cap, found on four draws of credit, LIDC, Default and Caravan (which it does not change) with
  50 labelled of each class; *flattening only*, after Default and LIDC. Steps and rates are those of `unlabelled.py`, with one
  weight decay for nets to save time. Left out: ensembles of other losses, unlabelled rows with several classes, at 0.3, 0.1,
  10⁻⁴ and, but for linear models, at 10⁻³ (mean matching: at 0.01 and 10⁻³ too), PNU and EM (see *Unlabelled rows*), Laplace
  for nets.
- Differences are paired by draw. *Beyond noise*: more than two standard errors of the draws, which share rows, so these errors
  are somewhat small. The best rival is picked by the test rows themselves, which favours it.
"""


def verdict_row(name: str, own: Verdict, half: Verdict) -> list[str]:
    return [
        name, str(own.cells), str(own.below_guess), str(own.below_weighted), percent(own.level, own.cells),
        percent(own.fair, own.cells), percent(own.ahead, own.cells), f"{own.gain:+.2f}", f"{own.won} / {own.lost}",
        f"{own.auc:+.4f}",
        f"{percent(half.level, half.cells)}, {percent(half.ahead, half.cells)}, {half.below_guess}",
    ]  # fmt: skip


HEADER = ["candidate", "cells", "(a) below π", "(b) AUC below weighted", "(c) level with the best rival",
          "picked on other draws", "(d) ahead of all rivals", "median, %",
          "ahead / behind, of logit adjustment", "AUC",
          "chosen on: (c), (d), below π"]  # fmt: skip


def verdicts(all_cells: Sequence[Compared], names: Sequence[str], rivals: Sequence[str], where: Filter) -> str:
    """Return a row per candidate, counted on the half that nothing was chosen on; the other half in the last column."""
    halves = [counted(all_cells, sets, where) for sets in (REPORTED_ON, CHOSEN_ON)]
    rows = []
    for name in names:
        own, half = (verdict(part, name, rivals) for part in halves)
        if own.cells:
            rows.append(verdict_row(name, own, half))
    return table(HEADER, rows)


def is_complete(names: Sequence[str], part: Sequence[Compared]) -> list[str]:
    return [name for name in names if part and sum(name in cell.likelihood for cell in part) >= 0.95 * len(part)]


def chosen_of(part: Sequence[Compared], names: Sequence[str], rivals: Sequence[str]) -> str:
    """Return the candidate that is below the guess in the fewest cells, within 2 % of them, and then level in the most."""
    found = {name: verdict(part, name, rivals) for name in is_complete(names, part)}
    least = min(each.below_guess for each in found.values()) + 0.02 * len(part)
    return max((name for name in found if found[name].below_guess <= least), key=lambda name: found[name].level)


SITUATIONS: dict[str, tuple[bool, Filter]] = {
    "labelled only": (False, lambda cell: True),
    "labelled only, linear": (False, lambda cell: cell.model == "linear"),
    "labelled only, MLP": (False, lambda cell: cell.model == "MLP"),
    "labelled only, boosting": (False, lambda cell: cell.model == "boosting"),
    "labelled only, 50 of each class": (False, lambda cell: cell.labelled == 50),
    "labelled only, 200 or more": (False, lambda cell: cell.labelled != 50),
    "labelled only, π ≥ 0.1": (False, lambda cell: cell.share >= 0.1),
    "labelled only, π ≤ 0.01": (False, lambda cell: cell.share <= 0.01),
    "and unlabelled, linear or MLP": (True, lambda cell: "unlabelled, guarded" in cell.likelihood),
    "and unlabelled, boosting": (True, lambda cell: cell.model == "boosting" and "mean matching" in cell.likelihood),
}


def candidates_and_rivals(unlabelled: bool) -> tuple[Sequence[str], Sequence[str]]:
    """Return what may be chosen, and what it is compared with."""
    return ((*CANDIDATES, *CANDIDATES_UNLABELLED), RIVALS_UNLABELLED) if unlabelled else (CANDIDATES, RIVALS)


def when(all_cells: Sequence[Compared]) -> str:
    """Return a row per situation: what is chosen on one half of the sets, and what it does on the other."""
    rows = []
    for title, (unlabelled, where) in SITUATIONS.items():
        names, rivals = candidates_and_rivals(unlabelled)
        half, rest = (counted(all_cells, sets, where) for sets in (CHOSEN_ON, REPORTED_ON))
        if not half or not rest:
            continue
        name = chosen_of(half, names, rivals)
        for shown in dict.fromkeys((name, "mean matching" if unlabelled else LOGIT_ADJUSTED)):
            own = verdict(rest, shown, rivals)
            if own.cells:
                mark = "**" if shown == name else ""
                figures = [str(own.cells), str(own.below_guess), str(own.below_weighted), percent(own.level, own.cells)]
                figures.append(percent(own.fair, own.cells))
                rows.append(
                    [title if mark else "", f"{mark}{shown}{mark}", *figures, percent(own.ahead, own.cells), f"{own.gain:+.2f}"]
                )
    return table(["there is", "chosen, and beside it", *HEADER[1:8]], rows)


def answer(all_cells: Sequence[Compared]) -> str:
    """Return the aims' verdict for what the first half chose, with labelled rows alone and with unlabelled ones."""
    lines = ["The aims: (a) and (b) in every cell, (c) in 80 %, (d) in 20 %. On the sets that nothing was chosen on:", ""]
    for title, unlabelled in (("Labelled rows alone", False), ("With unlabelled rows", True)):
        where = SITUATIONS["and unlabelled, linear or MLP"][1] if unlabelled else SITUATIONS["labelled only"][1]
        names, rivals = candidates_and_rivals(unlabelled)
        half, rest = (counted(all_cells, sets, where) for sets in (CHOSEN_ON, REPORTED_ON))
        if not half or not rest:
            continue
        name = chosen_of(half, names, rivals)
        own = verdict(rest, name, rivals)
        best = max(is_complete(names, rest), key=lambda each: verdict(rest, each, rivals).level)
        other = verdict(rest, best, rivals)
        lines.append(
            f"- **{title}**: the first half chooses *{name}*. Of {own.cells} cells it is below always answering π in "
            f"{own.below_guess}, has a lower AUC than the weighted loss in {own.below_weighted}, is level with the best rival "
            f"in {percent(own.level, own.cells)} and ahead of all in {percent(own.ahead, own.cells)}. In hindsight *{best}* is "
            f"level most often: {percent(other.level, other.cells)}, ahead of all in {percent(other.ahead, other.cells)}, "
            f"below π in {other.below_guess}."
        )
    return "\n".join(lines) + "\n" + reasons(counted(all_cells, REPORTED_ON))


def reasons(part: Sequence[Compared]) -> str:
    """Return why the aims are missed: which rivals are best, and where the AUC is below the weighted loss's."""
    best = Counter(
        max((name for name in RIVALS if name in cell.likelihood), key=lambda name: float(cell.likelihood[name].mean()))
        for cell in part
    )
    shares = "; ".join(f"*{name}* {percent(count, len(part))}" for name, count in best.most_common())
    lower = [cell for cell in part for mean, error in [cell.difference("affine", "weighted", "auc")] if mean < -2 * error]
    cells = ", ".join(dict.fromkeys(f"{cell.set} ({cell.model}, {cell.labelled or 'all'})" for cell in lower)) or "none"
    return (
        f"\nWhy (c) is missed: no rival is best everywhere, and whoever is compared with the best of all, picked afterwards, "
        f"is behind it by chance as well (the column *picked on other draws* has that removed). The best rival is {shares}. "
        f"Why (b) is missed: calibration leaves the AUC of logit adjustment as it is, which is below that of the weighted loss "
        f"in {cells}.\n"
    )


def smoothing_effect(all_cells: Sequence[Compared]) -> str:
    """Return in a sentence by how much smoothing changes some methods, where it matters."""
    lines = []
    for name, how in itertools.product((LOGIT_ADJUSTED, "beta", "pooled, beta"), ("smoothed", "smoothed unless worse")):
        found = [
            (100 * cell.difference(f"{name}, {how}", name)[0] / -cell.guess, cell)
            for cell in all_cells
            if cell.counted and cell.set not in BY_YEAR and f"{name}, {how}" in cell.likelihood
        ]
        better, worse = ([cell for change, cell in found if sign * change > 1] for sign in (1, -1))
        ends = [pick(found, key=lambda each: each[0]) for pick in (max, min)]
        best, worst = (f"{change:+.0f} % ({_name(cell)})" for change, cell in ends)
        lines.append(
            f"- *{name}, {how}*: better in {len(better)} of {len(found)} cells by more than 1 % of the log-loss of answering π "
            f"({_sets(better)}), at best {best}; worse in {len(worse)} ({_sets(worse)}), at worst {worst}."
        )
    return "\n".join(lines) + "\n"


def _sets(part: Sequence[Compared]) -> str:
    return ", ".join(dict.fromkeys(cell.set for cell in part)) or "none"


def _name(cell: Compared) -> str:
    size = f"{cell.labelled} labelled" if cell.labelled else "all labelled"
    return f"{cell.set}, {cell.model}, {size}, π = {cell.share:.2g}"


def classifier_methods(all_cells: Sequence[Compared]) -> str:
    """Return a row per model and method of the corrected classifier: differences to "auto"."""
    base = "classifier, auto"
    every = [cell for cell in all_cells if cell.counted and cell.set not in BY_YEAR and base in cell.likelihood]
    rows = []
    for model in ("linear", "boosting"):
        own = [cell for cell in every if cell.model == model]
        for title in ("closed form", "affine", "beta", "auto, smoothed", "smoothing auto") if own else ():
            name = f"classifier, {title}"
            found = [cell.difference(name, base) for cell in own]
            changes = [100 * mean / -cell.guess for (mean, _), cell in zip(found, own, strict=True)]
            ahead, behind = (sum(sign * mean > 2 * error for mean, error in found) for sign in (1, -1))
            below = [sum(over < -2 * noise for over, noise in (cell.difference(each, GUESS) for cell in own))
                     for each in (name, base)]  # fmt: skip
            spread = f"{min(changes):+.1f} to {max(changes):+.1f}"
            counts = [f"{ahead} / {behind}", f"{below[0]} (auto: {below[1]})"]
            rows.append([model, title, str(len(own)), f"{np.median(changes):+.2f}", spread, *counts])
    return table(["model", "method", "cells", "difference to auto, %: median", "range", "ahead / behind", "below π"], rows)


def by_model(all_cells: Sequence[Compared], places: Sequence[int] = (0, 3, 4)) -> str:
    """Return a row per method: mean difference to logit adjustment in 10⁻³ nats over cells, by model and population."""
    columns: dict[str, list[Compared]] = {}
    for model in ("linear", "MLP", "boosting", "ConvNet"):
        for place in places:
            own = [cell for cell in all_cells if cell.model == model and cell.place == place and cell.set not in BY_YEAR]
            if own:
                columns[f"{model}, {share_name(own[0])}"] = own
    rows = []
    for name in PICTURED:
        line = []
        for own in columns.values():
            found = [1000 * cell.difference(name, LOGIT_ADJUSTED)[0] for cell in own if name in cell.likelihood]
            mean, half = interval(found) if len(found) > 1 else (np.nan, np.nan)
            line.append("–" if np.isnan(mean) else f"{mean:+.2g} ± {half:.2g}")
        rows.append([name, *line])
    return table(["10⁻³ nats", *(f"{title} ({len(own)})" for title, own in columns.items())], rows)


def draw(all_cells: Sequence[Compared], path: Path) -> None:
    """Draw each method's median difference to logit adjustment by model and population, with 95 % intervals over cells."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    models = [model for model in ("linear", "MLP", "boosting") if any(cell.model == model for cell in all_cells)]
    limits = {0: 0.04, 3: 0.012, 4: 0.003}
    figure, axes = plt.subplots(
        len(models), 3, figsize=(11, 3.7 * len(models) + 0.8), sharey=True, layout="constrained", squeeze=False
    )
    for line, model in zip(axes, models, strict=True):
        for axis, (place, limit) in zip(line, limits.items(), strict=True):
            own = [cell for cell in all_cells if cell.model == model and cell.place == place and cell.set not in BY_YEAR]
            for y, name in enumerate(PICTURED):
                found = np.array([cell.difference(name, LOGIT_ADJUSTED)[0] for cell in own if name in cell.likelihood])
                if len(found) < 2:
                    continue
                low, mean, high = median_interval(found)
                needs = any(word in name for word in ("matching", "unlabelled"))
                bounded = "smoothed" in name or "smoothing" in name
                colour = "#d55e00" if needs else "#009e73" if bounded else "#0072b2"
                axis.plot(np.clip(found, -limit, limit), np.full(len(found), y), "|", color="#999999", ms=7, mew=0.9)
                axis.plot(np.clip([low, high], -limit, limit), [y, y], color=colour, lw=2)
                axis.plot(
                    np.clip(mean, -limit, limit),
                    y,
                    marker="o" if abs(mean) < limit else "<" if mean < 0 else ">",
                    color=colour,
                    ms=5,
                )
            axis.axvline(0, color="black", lw=0.8)
            axis.set(
                xlim=(-1.05 * limit, 1.05 * limit),
                title=f"{model}, π {'natural' if place == 0 else f'= {share_name(own[0])}'}" if own else "",
            )
            axis.set_yticks(range(len(PICTURED)), PICTURED, fontsize=8)
            axis.tick_params(axis="x", labelsize=8)
            axis.grid(axis="x", alpha=0.3)
    axes[0, 0].invert_yaxis()
    label = "log-likelihood in the population, difference to logit adjustment, nats: median over cells (95 %), each cell a tick"
    figure.supxlabel(f"{label}; green: smoothed; orange: needs unlabelled rows", fontsize=9)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def missing(all_cells: Sequence[Compared]) -> str:
    """Return how many of the planned cells have been run, by model and rows."""
    done = {(cell.set, cell.model, cell.labelled) for cell in all_cells}
    planned = [
        tuple(cell) for cell in cells((*CHOSEN_ON, *REPORTED_ON, *BY_YEAR), SIZES, ("linear", "MLP", "boosting", "ConvNet"))
    ]
    rows = []
    for model in ("linear", "MLP", "boosting", "ConvNet"):
        line = []
        for size in SIZES:
            own = [cell for cell in planned if cell[1] == model and cell[2] == size]
            line.append(f"{sum(cell in done for cell in own)} of {len(own)}" if own else "–")
        rows.append([model, *line])
    return table(
        ["sets run, of those with rows enough", *(f"{size:,} of each class" if size else "all" for size in SIZES)], rows
    )


def summary(folder: Path, draws: int) -> str:
    """Return the verdicts of what is stored."""
    found = read(folder, min(draws, 3))
    streams = SITUATIONS["and unlabelled, linear or MLP"][1]
    first = verdicts(found, CANDIDATES, RIVALS, lambda cell: True)
    return first + "\n" + verdicts(found, CANDIDATES_UNLABELLED, RIVALS_UNLABELLED, streams)


def write_page(results: Path, out: Path) -> None:
    """Write claim.md, .csv and .png into `out` from the results that there are."""
    all_cells = read(results)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    runs = {(cell.set, cell.model, cell.labelled) for cell in all_cells}
    sets = [name for name in (*CHOSEN_ON, *REPORTED_ON, *BY_YEAR) if any(name == each[0] for each in runs)]
    half, rest = ", ".join(CHOSEN_ON), ", ".join(REPORTED_ON)
    unlabelled = LOGIT_ADJUSTED, *CANDIDATES_UNLABELLED
    streams, boosting = (SITUATIONS[f"and unlabelled, {each}"][1] for each in ("linear or MLP", "boosting"))
    more = [[name, MORE[name].positive, MORE[name].origin] for name in sets if name in MORE]
    parts = [
        f"Made by `python benchmarks/claim.py`, then `--docs`, at commit {commit.stdout.strip()}: {len(runs)} sets × models × "
        f"sizes of {len(sets)} sets, {sum(cell.counted for cell in all_cells)} cells with their populations, 10 draws each "
        "(seeds 0 to 9). Every cell, with its positives, is in `docs/benchmarks/claim.csv`.\n\n",
        answer(all_cells),
        f"\nSettings were chosen on {half}; reported are {rest}: named before the runs. Tables of both halves were seen while "
        "it ran, and the order in which further cells were run was chosen by hand.\n",
        "\n### Labelled rows alone\n\n", VERDICT_TEXT, verdicts(all_cells, CANDIDATES, RIVALS, lambda cell: True),
        SMOOTHING_TEXT, smoothing_effect(all_cells),
        "\n### With unlabelled rows of the population\n\n", verdicts(all_cells, unlabelled, RIVALS_UNLABELLED, streams),
        "\nBoosting, which has no likelihood for them:\n\n", verdicts(all_cells, unlabelled, RIVALS_UNLABELLED, boosting),
        "\n### What to use when\n\n", WHEN_TEXT, when(all_cells), proposal(), CLASSIFIER_TEXT, classifier_methods(all_cells),
        "\n### By model and prevalence\n\nMean difference to logit adjustment over all cells, ± 95 %; their number in "
        "brackets.\n\n", by_model(all_cells),
        FORMS_TEXT, repairs(read(SCREEN)),
        why(), SLOPES_TEXT, slopes(all_cells), BY_YEAR_TEXT, by_year(all_cells),
        "\n### How\n", HOW, NOT_RUN, missing(all_cells), "\n", sources(sets),
        "\n", table(["set", "last class", "source"], more),
    ]  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    as_frame(all_cells, IN_CSV).to_csv(out / "claim.csv", index=False, lineterminator="\n")
    draw(all_cells, out / "claim.png")
    (out / "claim.md").write_text("".join(parts), encoding="utf-8")
