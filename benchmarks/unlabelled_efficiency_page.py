"""The page and the picture of `unlabelled_efficiency.py`, from its stored estimates."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from report import table
from stream_likelihood import Draws, GaussianClasses, asymptotic, log_likelihood, logit_adjusted

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ALONE, STREAMS, LEARNT, EMPIRICAL = "logit adjustment", "streams", "streams, π learnt", "empirical likelihood"
TITLE = "## The interval of π"
RESAMPLES, ALONE_DRAWS = 1000, 5000
MASSES = (0.1, 0.3, 1, 3, 10, 30, 100, 1000)
Cell = tuple[float, int, int]
Statistic = Callable[[np.ndarray], np.ndarray]


class Results:
    """The stored estimates, an array `(draws, columns)` for each cell and method."""

    def __init__(self, store: Path, plan: Any, classes: GaussianClasses) -> None:
        self.plan, self.classes = plan, classes
        self._found: dict[tuple[float, int, int, str], list[list[float]]] = {}
        with store.open(encoding="utf-8", newline="") as file:
            for row in sorted(csv.DictReader(file), key=lambda row: int(row["draw"])):
                key = (float(row["pi"]), int(row["labelled"]), int(row["ratio"]), row["method"])
                values = [float(row[name] or "nan") for name in ("alpha", "b1", "b2", "population", "low", "high", "separated")]
                self._found.setdefault(key, []).append(values)

    @property
    def cells(self) -> list[Cell]:
        """All cells with unlabelled rows."""
        plan = self.plan
        return [(pi, n, ratio) for pi in plan.populations for n in plan.labelled for ratio in plan.ratios if ratio]

    def of(self, cell: Cell, method: str, more: bool = False) -> np.ndarray:
        """Return the estimates of the plan's draws, or with `more` of all there are."""
        pi, labelled, ratio = cell
        found = np.array(self._found[pi, labelled, 0 if method == ALONE else ratio, method])
        return found if more else found[: self.plan.draws]

    def limit(self, cell: Cell, parameter: int, known: bool = True) -> float:
        """Return the bound of a parameter's variance at the cell's sizes: 0 α, 1 and 2 the slopes, 3 π (unknown)."""
        pi, labelled, ratio = cell
        found = asymptotic(self.classes, pi, ratio)
        matrix = found.known if known else found.unknown
        assert matrix is not None
        return float(matrix[parameter, parameter]) / (2 * labelled)

    def efficiency(self, cell: Cell, method: str, parameter: int) -> str:
        """Return Var(logit adjustment)/Var(method), with its standard error by a bootstrap of the draws."""
        both = np.stack([self.of(cell, ALONE)[:, parameter], self.of(cell, method)[:, parameter]], 1)
        return _with_error(both, lambda draws: draws[..., 0].var(-1) / draws[..., 1].var(-1))

    def against_bound(self, cell: Cell, method: str, parameter: int) -> str:
        """Return Var(method)/bound, with its standard error."""
        bound = self.limit(cell, parameter, known=method != LEARNT)
        return _with_error(self.of(cell, method)[:, [parameter]], lambda draws: draws[..., 0].var(-1, ddof=1) / bound)

    def information(self, cell: Cell, method: str) -> np.ndarray:
        """Return the share of the attainable information that each draw's model has: 1 the true one, 0 answering π."""
        pi, labelled, ratio = cell
        found = self.of(cell, method)
        least = 1 / (2 * (2 * labelled * ratio + 1))
        believed = np.clip(found[:, 3], least, 1 - least) if method == LEARNT else pi
        reached = log_likelihood(self.classes, pi, found[:, :3], believed)
        best = log_likelihood(self.classes, pi, self.classes.truth[None], pi)
        flat = pi * np.log(pi) + (1 - pi) * np.log1p(-pi)
        return (reached - flat) / (best - flat)


def write_page(store: Path, plan: Any, classes: GaussianClasses, page: Path, origin: str) -> str:
    """Write the page and the picture beside it, and return the page's text."""
    results = Results(store, plan, classes)
    parts = [
        f"Made by `python benchmarks/unlabelled_efficiency.py`: {plan.draws} draws a cell, {origin}. Two classes, normal with "
        f"unit variance around (0, 0) and ({classes.distance:g}, 0): AUC {classes.auc:.3f}, true slopes {classes.distance:g} "
        "and 0. *Labelled* is the number of labelled rows of each class, *unlabelled* the ratio of the unlabelled rows to all "
        "labelled ones. The bound is worked out by quadrature; [the theory](../unlabelled_theory.md) says of what. ± is one "
        "standard error, by a bootstrap of the draws.\n",
        f"\n![Relative efficiency against the ratio of unlabelled rows]({page.stem}.png)\n",
        _alone(results),
        _slopes(results, 1, "The slope of the informative feature"),
        _slopes(results, 2, "The slope of the feature that says nothing"),
        _intercept(results),
        _information(results),
        _intervals(results),
        _masses(results),
    ]
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("".join(parts), encoding="utf-8")
    _picture(results, page.with_suffix(".png"))
    return "".join(parts)


def write_intervals(store: Path, plan: Any, classes: GaussianClasses, page: Path, origin: str) -> str:
    """Put the table of intervals into a page that is there, and return the table's section."""
    before, after = page.read_text(encoding="utf-8").split(TITLE)
    section = _intervals(Results(store, plan, classes), f" Made with --intervals, {origin}.")
    page.write_text(before + section[section.index(TITLE) :] + "\n## " + after.split("\n## ", 1)[1], encoding="utf-8")
    return section


def _alone(results: Results) -> str:
    """Logit adjustment without unlabelled rows against its own bound, in draws of its own, which cost little."""
    rows, pi = [], results.plan.populations[0]
    for labelled in results.plan.labelled:
        bound = np.diag(asymptotic(results.classes, pi, 0).known) / (2 * labelled)
        theta, separated = _many_alone(results.classes, labelled)
        shown = [_with_error(theta[:, [i]] / np.sqrt(bound[i]), lambda draws: draws[..., 0].var(-1, ddof=1)) for i in range(3)]
        quartiles = _with_error(theta[:, [1]] / np.sqrt(bound[1]), _by_quartiles)
        of_plan = int(results.of((pi, labelled, 0), ALONE)[:, 6].sum())
        rows.append([str(labelled), *shown, quartiles, f"{separated} of {len(theta):,}", f"{of_plan} of {results.plan.draws}"])
    header = ["labelled", "intercept", "slope 1", "slope 2", "slope 1, by quartiles", "separated", "in the draws below"]
    words = (
        "The variance of logit adjustment relative to the bound for labelled rows alone; π only moves the intercept. By "
        "quartiles: (their distance/1.349)², which the few draws whose classes are separated do not move.\n\n"
    )
    return f"\n## Without unlabelled rows\n\n{words}{table(header, rows)}"


def _by_quartiles(draws: np.ndarray) -> np.ndarray:
    low, high = np.quantile(draws[..., 0], [0.25, 0.75], axis=-1)
    return ((high - low) / 1.348980) ** 2


def _many_alone(classes: GaussianClasses, labelled: int) -> tuple[np.ndarray, int]:
    """Return estimates (α, b) of logit adjustment, and in how many draws the classes are separated."""
    rng, y, found, separated = np.random.default_rng(labelled), np.repeat([0, 1], labelled), [], 0
    for _ in range(ALONE_DRAWS // 500):
        x = np.stack([classes.drawn(y, rng) for _ in range(500)])
        found.append(logit_adjusted(Draws(x, labelled, 1e-3)))
        separated += int((np.einsum("dnp,dp->dn", x, found[-1]) * (2 * y - 1) > 0).all(1).sum())
    return np.concatenate(found), separated


def _slopes(results: Results, parameter: int, title: str) -> str:
    rows = []
    for cell in results.cells:
        base = asymptotic(results.classes, cell[0], 0).known[parameter, parameter] / (2 * cell[1])
        known, unknown = (base / results.limit(cell, parameter, known) for known in (True, False))
        of_methods = [_both(results, cell, method, parameter) for method in (STREAMS, EMPIRICAL, LEARNT)]
        rows.append([*_names(cell), f"{known:.2f}", *of_methods[:2], f"{unknown:.2f}", of_methods[2]])
    header = ["π", "labelled", "unlabelled", "limit, π known", STREAMS, EMPIRICAL, "limit, π unknown", LEARNT]
    words = (
        "The variance of logit adjustment relative to that of each method: 2 is as good as twice the labelled rows. *Limit* is "
        "that of the bounds. In brackets: the method's variance relative to its bound.\n\n"
    )
    return f"\n## {title}\n\n{words}{table(header, rows)}"


def _both(results: Results, cell: Cell, method: str, parameter: int) -> str:
    return f"{results.efficiency(cell, method, parameter)} ({results.against_bound(cell, method, parameter)})"


def _intercept(results: Results) -> str:
    rows = []
    for cell in results.cells:
        pi, _, ratio = cell
        found = asymptotic(results.classes, pi, ratio)
        base = asymptotic(results.classes, pi, 0).known[0, 0]
        limits = [base / found.known[0, 0], base / found.streams[0, 0]]
        own = [results.efficiency(cell, method, 0) for method in (EMPIRICAL, STREAMS)]
        rows.append([*_names(cell), f"{limits[0]:.2f}", own[0], f"{limits[1]:.2f}", own[1]])
    header = ["π", "labelled", "unlabelled", "limit, π known", EMPIRICAL, "limit of streams", STREAMS]
    words = (
        "As above, for the intercept where π is known. The likelihood of the streams does not use all that a known π says "
        "about the intercept: it has a limit of its own.\n\n"
    )
    return f"\n## The intercept\n\n{words}{table(header, rows)}"


def _information(results: Results) -> str:
    rows = []
    for cell in results.cells:
        base = results.information(cell, ALONE)
        shown = [_mean(base)]
        for method in (STREAMS, EMPIRICAL, LEARNT):
            gained = results.information(cell, method) - base
            shown.append(_mean(gained, sign=True))
        zeros = np.mean(results.of(cell, LEARNT)[:, 3] == 0)
        rows.append([*_names(cell), *shown, f"{100 * zeros:.0f} %"])
    header = ["π", "labelled", "unlabelled", ALONE, *(f"gain of {method}" for method in (STREAMS, EMPIRICAL, LEARNT)), "π̂ = 0"]
    words = (
        "The expected log-likelihood in the population, as % of the way from always answering π (0) to the true model (100); "
        "then what each method adds to logit adjustment on the same labelled rows. A learnt π̂ of 0 is put at half a person "
        "among the unlabelled, since its log-likelihood would be −∞.\n\n"
    )
    return f"\n## Expected log-likelihood\n\n{words}{table(header, rows)}"


def _intervals(results: Results, origin: str = "") -> str:
    rows, covered = [], {}
    for cell in results.cells:
        found = results.of(cell, LEARNT, more=True)
        pi, low, high = cell[0], found[:, 4], found[:, 5]
        share = float(np.mean((low <= pi) & (pi <= high)))
        error = float(np.sqrt(share * (1 - share) / len(found)))
        covered[cell] = share, error
        spreads = [found[:, 3].std(ddof=1), np.sqrt(results.limit(cell, 3, known=False)), np.sqrt(_hessian(results, cell))]
        shares = [f"{100 * np.mean(pi > high):.1f} %", f"{100 * np.mean(pi < low):.1f} %", f"{100 * np.mean(low == 0):.0f} %"]
        shown = [f"{len(found):,}", f"{100 * share:.1f} ± {100 * error:.1f} %", *shares, f"{np.median(high - low):.3g}"]
        rows.append([*_names(cell), *shown, *(f"{spread:.3g}" for spread in spreads)])
    names = "π, labelled, unlabelled, draws, covered, π above, π below, from 0, median width, s.d. of π̂, its bound, by Hessian"
    words = (
        "95 % profile intervals of a learnt π: how often they contain it, and how often π lies above or below them. "
        f"{_verdict(covered)} An interval from 0 cannot lie above π, so it misses on one side only. The last column is the "
        "standard error by the inverse Hessian of the streams' likelihood, which takes the class counts to be random."
        f"{origin}\n\n"
    )
    return f"\n{TITLE}\n\n{words}{table(names.split(', '), rows)}"


def _verdict(covered: dict[Cell, tuple[float, float]]) -> str:
    """Say in which cells the coverage lies between 93 and 97 %, and which are farther off than two standard errors."""
    inside = sum(0.93 <= share <= 0.97 + 1e-9 for share, _ in covered.values())
    far = [
        f"π = {pi:g} with {n} and {ratio}× ({100 * share:.1f} %)"
        for (pi, n, ratio), (share, error) in covered.items()
        if share + 2 * error < 0.93 or share - 2 * error > 0.97
    ]
    said = f"{inside} of {len(covered)} cells lie between 93 and 97 %. "
    return said + f"By more than two standard errors outside: {', '.join(far) or 'none'}."


def _hessian(results: Results, cell: Cell) -> float:
    found = asymptotic(results.classes, cell[0], cell[2]).hessian
    assert found is not None
    return float(found[3, 3]) / (2 * cell[1])


def _masses(results: Results) -> str:
    rows = []
    for pi in results.plan.populations:
        base = asymptotic(results.classes, pi, 0).known
        for ratio in filter(None, results.plan.ratios):
            found = [asymptotic(results.classes, pi, ratio, mass).streams for mass in MASSES]
            shown = [f"{base[1, 1] / each[1, 1]:.2f}" for each in found]
            rows.append(
                [f"{pi:g}", f"{ratio}×", *(f"**{v}**" if m == ratio else v for v, m in zip(shown, MASSES, strict=True))]
            )
    header = ["π", "unlabelled", *(f"λ = {mass:g}" for mass in MASSES)]
    words = (
        "The efficiency for the informative feature's slope in large samples (quadrature, no draws), π known, where the "
        "unlabelled rows together count λ times the labelled ones; in bold the rows' own ratio.\n\n"
    )
    return f"\n## Another weight of the unlabelled rows\n\n{words}{table(header, rows)}"


def _picture(results: Results, path: Path) -> None:
    plan = results.plan
    ratios = [ratio for ratio in plan.ratios if ratio]
    fine = np.geomspace(min(ratios), max(ratios), 40)
    figure, axes = plt.subplots(1, len(plan.populations), figsize=(10, 3.4), layout="constrained", sharey=True, squeeze=False)
    for axis, pi in zip(axes[0], plan.populations, strict=True):
        base = asymptotic(results.classes, pi, 0).known[1, 1]
        limits = [asymptotic(results.classes, pi, float(ratio)) for ratio in fine]
        axis.plot(fine, [base / found.known[1, 1] for found in limits], "k-", lw=1, label="bound, π known")
        unknown = [base / found.unknown[1, 1] for found in limits if found.unknown is not None]
        axis.plot(fine, unknown, "k--", lw=1, label="bound, π unknown")
        for labelled, mark in zip(plan.labelled, "os^", strict=False):
            for method, colour in ((STREAMS, "tab:blue"), (LEARNT, "tab:orange")):
                cells: Sequence[Cell] = [(pi, labelled, ratio) for ratio in ratios]
                pairs = [results.efficiency(cell, method, 1).split(" ± ") for cell in cells]
                shifted = np.array(ratios) * {"o": 0.9, "s": 1.0, "^": 1.1}[mark]
                values, errors = ([float(pair[i]) for pair in pairs] for i in (0, 1))
                label = f"{'π known' if method == STREAMS else 'π learnt'}, {labelled} of each class"
                axis.errorbar(shifted, values, errors, fmt=mark, color=colour, ms=4, lw=1, label=label)
        axis.axhline(1, color="0.7", lw=0.8)
        axis.set(xscale="log", yscale="log", title=f"π = {pi:g}", xlabel="unlabelled rows per labelled row")
        axis.set_yticks([1, 1.5, 2, 3, 4, 5], ["1", "1.5", "2", "3", "4", "5"])
        axis.set_xticks(ratios, [str(ratio) for ratio in ratios])
        axis.minorticks_off()
    axes[0, 0].set_ylabel("variance of the slope:\nlogit adjustment / with unlabelled")
    axes[0, 0].legend(frameon=False, fontsize=7)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _names(cell: Cell) -> list[str]:
    pi, labelled, ratio = cell
    return [f"{pi:g}", str(labelled), f"{ratio}×"]


def _with_error(values: np.ndarray, statistic: Statistic) -> str:
    """Return a statistic of draws `(…, draws, columns)`, with its bootstrap standard error."""
    rng = np.random.default_rng(0)
    drawn = statistic(values[rng.integers(len(values), size=(RESAMPLES, len(values)))])
    return f"{float(statistic(values)):.2f} ± {drawn.std():.2f}"


def _mean(values: np.ndarray, sign: bool = False) -> str:
    error = 100 * values.std(ddof=1) / np.sqrt(len(values))
    return f"{100 * values.mean():{'+' if sign else ''}.2f} ± {error:.2f}"
