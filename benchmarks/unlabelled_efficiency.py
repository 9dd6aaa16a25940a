"""Measure what unlabelled rows of the population add to labelled ones sampled by class, against the semiparametric bound.

x|k ~ N(k (1.5, 0), I) in two dimensions, so the logistic model is exactly true: an AUC of 0.856, a slope of 1.5 for the first
feature, 0 for the second. 25, 100 or 400 labelled rows of each class; as many unlabelled rows as labelled ones in all, 10 or
100 times as many, or none; π = 0.3, 0.02, 0.001; 200 draws, and 1,000 for intervals where there are at most 2,500 rows. The
labelled rows are the same at each π and ratio, and the unlabelled ones of a ratio are among those of the next. Four estimators,
all with the same tiny ridge:

- logit adjustment: the labelled rows alone; π known;
- streams: the likelihood of the stream that a row came from, each row counting one; π known;
- streams, π learnt: the same, maximised over π too, with profile intervals: `rightloss.shift.joint_prevalence`;
- empirical likelihood: p(x) profiled out, such that p(k|x) averages to the known π exactly.

Results go to benchmarks/out/unlabelled_efficiency.csv as they come, and a second call takes up where the first ended; delete
the file to start again. Writes unlabelled_efficiency.md and .png. Half an hour on one core. With --intervals the intervals
of π alone are made again, in a file of their own, and put into a page that is there.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from report import ROOT
from stream_likelihood import Draws, GaussianClasses, empirical_estimate, logit_adjusted, stream_estimate

from rightloss.shift import LabelShiftWarning, joint_prevalence

SEED, RIDGE = 16, 1e-3
CLASSES = GaussianClasses(1.5)
COLUMNS = ["pi", "labelled", "ratio", "draw", "method", "alpha", "b1", "b2", "population", "low", "high", "separated", "fine"]


@dataclass(frozen=True)
class Plan:
    """The cells and draws of a run."""

    populations: tuple[float, ...] = (0.3, 0.02, 0.001)
    labelled: tuple[int, ...] = (25, 100, 400)
    ratios: tuple[int, ...] = (0, 1, 10, 100)
    draws: int = 200
    coverage_draws: int = 1000  # of the intervals, in cells of at most `coverage_rows`
    coverage_rows: int = 2500
    rows_at_a_time: int = 1_600_000

    def more_draws(self, labelled: int) -> list[int]:
        """Return the ratios whose intervals get more draws."""
        more = self.coverage_draws > self.draws
        return [ratio for ratio in self.ratios if more and ratio and 2 * labelled * (1 + ratio) <= self.coverage_rows]

    def pieces(self, labelled: int, ratio: int, draws: range, at_most: int = 1_000_000) -> list[range]:
        """Return the draws in pieces that are fitted, and written, together."""
        step = min(at_most, max(1, self.rows_at_a_time // (2 * labelled * (1 + ratio))))
        return [draws[first : first + step] for first in range(0, len(draws), step)]


QUICK = Plan(populations=(0.3, 0.02), labelled=(25,), ratios=(0, 1, 10), draws=8, coverage_draws=0)


def drawn(pi: float, labelled: int, ratio: int, draws: range) -> np.ndarray:
    """Return `(D, N, 3)`: labelled rows by class, then unlabelled ones, `ratio` times as many."""
    y, most = np.repeat([0, 1], labelled), ratio * 2 * labelled
    found = []
    for draw in draws:
        first = CLASSES.drawn(y, np.random.default_rng([SEED, labelled, draw]))
        rng = np.random.default_rng([SEED, labelled, draw, round(1e6 * pi)])
        found.append(np.concatenate([first, CLASSES.drawn((rng.random(most) < pi).astype(int), rng)]))
    return np.stack(found)


def fitted(plan: Plan, pi: float, labelled: int, draws: range) -> Iterator[list[object]]:
    """Yield a row per ratio, draw and method."""
    everything = drawn(pi, labelled, max(plan.ratios), draws)
    alone = logit_adjusted(Draws(everything[:, : 2 * labelled], labelled, RIDGE))
    margin = np.einsum("dnp,dp->dn", everything[:, : 2 * labelled], alone) * np.repeat([-1, 1], labelled)
    separated = (margin > 0).all(1)

    def lines(
        ratio: int, method: str, theta: np.ndarray, pi_and_limits: np.ndarray, fine: np.ndarray
    ) -> Iterator[list[object]]:
        for i, draw in enumerate(draws):
            yield [pi, labelled, ratio, draw, method, *theta[i], *pi_and_limits[i], int(separated[i]), int(fine[i])]

    known, fine = np.tile([pi, np.nan, np.nan], (len(draws), 1)), np.ones(len(draws))
    yield from lines(0, "logit adjustment", alone, known, fine)
    for ratio in filter(None, plan.ratios):
        data = Draws(np.ascontiguousarray(everything[:, : 2 * labelled * (1 + ratio)]), labelled, RIDGE)
        streams = stream_estimate(data, pi, alone)
        yield from lines(ratio, "streams", streams, known, fine)
        empirical, converged = empirical_estimate(data, pi, streams)
        yield from lines(ratio, "empirical likelihood", empirical, known, converged)
        yield from lines(ratio, "streams, π learnt", *learnt(data))


def intervals(pi: float, labelled: int, ratio: int, draws: range) -> Iterator[list[object]]:
    """Yield a row per draw, of the learnt π alone."""
    theta, limits, fine = learnt(Draws(drawn(pi, labelled, ratio, draws), labelled, RIDGE))
    for i, draw in enumerate(draws):
        yield [pi, labelled, ratio, draw, "streams, π learnt", *theta[i], *limits[i], "", int(fine[i])]


def learnt(data: Draws) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (α, b) `(D, 3)`, π̂ and its limits `(D, 3)`, and whether the search converged."""
    theta, limits, fine = np.empty((len(data.x), 3)), np.empty((len(data.x), 3)), np.empty(len(data.x))
    y, first = np.repeat([0, 1], data.labelled), 2 * data.labelled
    for i, x in enumerate(data.x):
        found = joint_prevalence(x[:first, 1:], y, x[first:, 1:], penalty=RIDGE)
        tilt = found.tilt
        theta[i] = [float(tilt[1] - tilt[0]), *(found.slopes[1] - found.slopes[0]).tolist()]
        limits[i] = [float(each[1]) for each in (found.population, found.low, found.high)]
        fine[i] = found.converged
    return theta, limits, fine


def run(plan: Plan, store: Path) -> None:
    """Fit what the file does not hold yet, the small cells first."""
    done = _done(store)
    for labelled, pi in product(plan.labelled, plan.populations):
        start = time.perf_counter()
        for draws in plan.pieces(labelled, max(plan.ratios), range(plan.draws)):
            if not all((pi, labelled, 0, draw) in done for draw in draws):
                _append(store, fitted(plan, pi, labelled, draws))
        for ratio in plan.more_draws(labelled):
            if (pi, labelled, ratio, plan.coverage_draws - 1) not in done:
                _append(store, intervals(pi, labelled, ratio, range(plan.draws, plan.coverage_draws)))
        print(f"π = {pi:g}, {labelled} of each class: {time.perf_counter() - start:.0f} s", flush=True)


def run_intervals(plan: Plan, store: Path) -> None:
    """Fit the learnt π alone, where the file does not hold it yet: the first piece of each cell, then the second, and so on."""
    done, cells = _done(store), list(product(filter(None, plan.ratios), plan.labelled, plan.populations))
    pieces = {}
    for ratio, labelled, pi in sorted(cells, key=lambda cell: cell[0] * cell[1]):
        draws = range(plan.coverage_draws if ratio in plan.more_draws(labelled) else plan.draws)
        pieces[pi, labelled, ratio] = plan.pieces(labelled, ratio, draws, at_most=100)
    for turn in range(max(map(len, pieces.values()))):
        start = time.perf_counter()
        for cell, each in pieces.items():
            if turn < len(each) and (*cell, each[turn][-1]) not in done:
                _append(store, intervals(*cell, each[turn]))
        print(f"turn {turn}: {time.perf_counter() - start:.0f} s", flush=True)


def _done(store: Path) -> set[tuple[float, ...]]:
    """Return π, labelled rows, ratio and draw of what the file holds; begin it where there is none."""
    store.parent.mkdir(parents=True, exist_ok=True)
    if not store.exists():
        store.write_text(",".join(COLUMNS) + "\n", encoding="utf-8")
    with store.open(encoding="utf-8", newline="") as file:
        return {tuple(float(row[name]) for name in ("pi", "labelled", "ratio", "draw")) for row in csv.DictReader(file)}


def _append(store: Path, rows: Iterable[list[object]]) -> None:
    """Write all rows at once, so that an interrupted run leaves whole pieces."""
    found = list(rows)
    with store.open("a", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--docs", action="store_true", help="write into docs/benchmarks, which is kept in the repository")
    parser.add_argument("--quick", action="store_true", help="a few draws of few rows, in a file of their own")
    parser.add_argument("--draws", type=int, help="how many draws of each cell")
    parser.add_argument("--intervals", action="store_true", help="the intervals of π alone; the page's other tables are kept")
    options = parser.parse_args()
    plan = QUICK if options.quick else Plan()
    plan = plan if options.draws is None else Plan(**{**vars(plan), "draws": options.draws})
    warnings.simplefilter("ignore", LabelShiftWarning)
    name = "unlabelled_efficiency_quick" if options.quick else "unlabelled_efficiency"
    store = ROOT / "benchmarks/out" / f"{name}{'_intervals' if options.intervals else ''}.csv"
    (run_intervals if options.intervals else run)(plan, store)
    from unlabelled_efficiency_page import write_intervals, write_page

    page = ROOT / ("docs/benchmarks" if options.docs else "benchmarks/out") / f"{name}.md"
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    if options.intervals:
        print(write_intervals(store, plan, CLASSES, page, f"commit {commit}"))
    else:
        print(write_page(store, plan, CLASSES, page, f"commit {commit}, seed {SEED}, ridge {RIDGE:g}"))


if __name__ == "__main__":
    main()
