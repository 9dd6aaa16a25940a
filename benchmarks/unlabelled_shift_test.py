"""Measure how often `unlabelled_shift_test` warns, without and with a shift of p(x|y) in the unlabelled rows.

    python benchmarks/unlabelled_shift_test.py                       # simulated rows, then CT slices if available
    python benchmarks/unlabelled_shift_test.py --slices FILE.npz     # a nodule archive, with FILE_manufacturer.csv beside it

Simulated: two classes, normal in d dimensions with variance 1, 1.5 apart in the first; n labelled rows of each class, and ten
times as many unlabelled as labelled ones at the prevalence π. A shift moves both classes of the unlabelled rows along the
second dimension by a part of a standard deviation, or, "along the classes", the first; "spread" multiplies the second by a
factor; "correlation" joins the second and the third; "class 1 alone" moves that class towards the other. With d = 20 there are
fewer cells, to save time: all of it takes about a quarter of an hour of one core.

CT slices of lung nodules in LIDC-IDRI, malignant against benign by the readers' majority: 16 × 16 pooled pixels, of these 20
principal components, and the diameter. Labelled: 25, 50 or 90 of each class from GE scanners, at random. Unlabelled: slices of
another manufacturer, and for comparison of other patients at GE; π is the malignant share among the unlabelled. Patients are
groups.

Results go to benchmarks/out/unlabelled_shift_test.csv as they come, and a second call takes up where the first ended; delete
the file to start again. Writes unlabelled_shift_test.md and .png.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import subprocess
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from report import ROOT, table

from rightloss.shift import LabelShiftWarning, UnlabelledShift, unlabelled_shift_test

SLICES = Path(os.environ.get("RIGHTLOSS_DATA", ROOT.parent / "shared" / "data")) / "lidc_slices.npz"
APART, TIMES, SIZE = 1.5, 10, 0.05
PREVALENCES, SIZES, DIMENSIONS = (0.3, 0.02, 0.001), (50, 200, 1000), (5, 20)
Change = Callable[[np.ndarray, np.ndarray], None]  # of unlabelled rows, given their classes, in place


def moved(column: int, by: float, of_class: int | None = None) -> Change:
    """Add to a column, of all rows or of one class's."""

    def change(x: np.ndarray, y: np.ndarray) -> None:
        x[:, column] += by * (1 if of_class is None else y == of_class)

    return change


def spread(x: np.ndarray, y: np.ndarray) -> None:
    x[:, 1] *= 1.25


def correlated(x: np.ndarray, y: np.ndarray) -> None:
    x[:, 2] = 0.4 * x[:, 1] + math.sqrt(1 - 0.4**2) * x[:, 2]


def unchanged(x: np.ndarray, y: np.ndarray) -> None:
    pass


NONE, MEAN, ONE_CLASS = "none", "mean, 0.25 sd", "class 1 alone, 1 sd"
SHIFTS: dict[str, Change] = {
    "mean, 0.1 sd": moved(1, 0.1),
    MEAN: moved(1, 0.25),
    "mean, 0.5 sd": moved(1, 0.5),
    "spread, × 1.25": spread,
    "along the classes, 0.25 sd": moved(0, 0.25),
    "correlation, 0.4": correlated,
    ONE_CLASS: moved(0, -1.0, of_class=1),
}
IN_MANY_COLUMNS = list(SHIFTS)[:4]
STRENGTHS = (0.1, 0.25, 0.5)  # of the first three


def drawn(rows: int, pi: float, columns: int, change: Change, case: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw labelled rows, their labels, and unlabelled rows."""
    random = np.random.default_rng([case, rows, columns])
    y = np.repeat([0, 1], rows)
    hidden = (random.random(2 * TIMES * rows) < pi).astype(int)
    x, unlabelled = random.standard_normal((len(y), columns)), random.standard_normal((len(hidden), columns))
    x[:, 0] += APART * y
    unlabelled[:, 0] += APART * hidden
    change(unlabelled, hidden)
    return x, y, unlabelled


class Tests:
    """The tests of a file, `(cell, case) → p-values and AUC`, and those that it lacks, which are run."""

    def __init__(self, store: Path) -> None:
        self._store, self._found = store, dict[tuple[str, int], tuple[float, float, float]]()
        if store.exists():
            with store.open(encoding="utf-8", newline="") as lines:
                for cell, case, *values in csv.reader(lines):
                    self._found[cell, int(case)] = (float(values[0]), float(values[1]), float(values[2]))

    def of(self, cell: str, cases: int, test: Callable[[int], UnlabelledShift]) -> np.ndarray:
        """Return, for each case, p where π is given, p where it is not, and the AUC `(cases, 3)`."""
        missing = [case for case in range(cases) if (cell, case) not in self._found]
        for some in (missing[i : i + 50] for i in range(0, len(missing), 50)):
            found = {(cell, case): test(case) for case in some}
            lines = {key: (each.p_value, each.any_prevalence, each.auc) for key, each in found.items()}
            with self._store.open("a", encoding="utf-8", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows([*key, *values] for key, values in lines.items())
            self._found |= lines
        values = np.array([self._found[cell, case] for case in range(cases)])
        if missing:
            print(cell, *(percent(*each) for each in shares(values)), flush=True)
        return values

    def simulated(self, rows: int, pi: float, columns: int, name: str, cases: int) -> np.ndarray:
        """Return the shares of warnings and their standard errors `(2, 2)`: π given, and not."""

        def test(case: int) -> UnlabelledShift:
            data = drawn(rows, pi, columns, SHIFTS.get(name, unchanged), case)
            return unlabelled_shift_test(*data, pi, generator=torch.Generator().manual_seed(case))

        return shares(self.of(f"{name}; d {columns}; π {pi:g}; n {rows}", cases, test))


def shares(found: np.ndarray) -> np.ndarray:
    share = (found[:, :2] < SIZE).mean(0)
    return np.stack([share, np.sqrt(share * (1 - share) / len(found))], 1)


def percent(share: float, error: float) -> str:
    return f"{100 * share:.1f} ± {100 * error:.1f} %"


def size_cells() -> list[tuple[int, float, int]]:
    sizes = zip(DIMENSIONS, (SIZES, SIZES[:2]), strict=True)
    return [(columns, pi, rows) for columns, each in sizes for pi in PREVALENCES for rows in each]


def size_rows(tests: Tests, cases: int) -> list[list[str]]:
    found = [(cell, tests.simulated(cell[2], cell[1], cell[0], NONE, cases)) for cell in size_cells()]
    return [[str(d), f"{pi:g}", f"{rows:,}", *(percent(*each) for each in both)] for (d, pi, rows), both in found]


def power_rows(tests: Tests, cases: int) -> list[list[str]]:
    first, many = DIMENSIONS
    cells = [(name, first, PREVALENCES[0]) for name in SHIFTS] + [(name, many, PREVALENCES[0]) for name in IN_MANY_COLUMNS]
    cells += [(name, first, pi) for name in (MEAN, ONE_CLASS) for pi in PREVALENCES[1:]]
    lines = []
    for name, columns, pi in cells:
        sizes = SIZES if columns == first else SIZES[:2]
        found = [tests.simulated(rows, pi, columns, name, cases) for rows in sizes]
        missing = ["–"] * (len(SIZES) - len(sizes))
        shown = [[*(percent(*each[given]) for each in found), *missing] for given in (0, 1)]
        lines.append([name, str(columns), f"{pi:g}", *shown[0], *shown[1]])
    return lines


def archive(file: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return features, labels, patients and manufacturers of the nodules with a majority for or against malignancy."""
    with np.load(file, allow_pickle=False) as parts:
        patches, ratings, patients, spacing = (parts[name] for name in ("patches", "ratings", "patient_id", "spacing_mm"))
        diameter, nodules = parts["equivalent_diameter_px"] * spacing, parts["nodule_id"]
    with file.with_name(f"{file.stem}_manufacturer.csv").open(encoding="utf-8", newline="") as lines:
        makers = {int(row["nodule_id"]): row["manufacturer"].split()[0].title() for row in csv.DictReader(lines)}
    counts = np.stack([(ratings == level).sum(1) for level in range(1, 6)], 1)
    majority = counts.argmax(1) + 1  # the lowest of equals
    kept = majority != 3
    pooled = torch.nn.functional.adaptive_avg_pool2d(torch.from_numpy(patches[kept].astype(np.float32)).clamp(-1000, 400), 16)
    pixels = pooled.flatten(1).double().numpy()
    pixels -= pixels.mean(0)
    components = pixels @ np.linalg.svd(pixels, full_matrices=False)[2][:20].T
    features = np.column_stack([components, diameter[kept]])
    return features, (majority[kept] > 3).astype(int), patients[kept], np.array([makers[int(each)] for each in nodules[kept]])


def slice_draw(data: tuple[np.ndarray, ...], target: str, labelled: int, case: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw the rows of labelled slices at GE, and return those of the unlabelled; where both are GE, of other patients."""
    _, y, patients, makers = data
    random = np.random.default_rng(case)
    at_home, away = makers == "Ge", makers == target
    if target == "Ge":
        names = np.unique(patients[at_home])
        first = np.isin(patients, random.choice(names, len(names) // 2, replace=False))
        at_home, away = at_home & first, away & ~first
    of_class = [np.flatnonzero(at_home & (y == k)) for k in (0, 1)]
    return np.concatenate([random.permutation(own)[:labelled] for own in of_class]), np.flatnonzero(away)


def slice_test(data: tuple[np.ndarray, ...], target: str, labelled: int, case: int) -> UnlabelledShift:
    """Test labelled against unlabelled slices."""
    x, y, patients, _ = data
    chosen, away = slice_draw(data, target, labelled, case)
    groups, cut = (patients[chosen], patients[away]), torch.Generator().manual_seed(case)
    return unlabelled_shift_test(x[chosen], y[chosen], x[away], float(y[away].mean()), groups=groups, generator=cut)


def slice_rows(tests: Tests, file: Path, cases: int) -> list[list[str]]:
    data, lines = archive(file), []
    for target, name in (("Ge", "GE, other patients"), ("Siemens", "Siemens"), ("Philips", "Philips"), ("Toshiba", "Toshiba")):
        for labelled in (25, 50, 90):
            test = partial(slice_test, data, target, labelled)
            found = tests.of(f"slices; {target}; n {labelled}", cases, test)
            away = slice_draw(data, target, labelled, 0)[1]
            about = [name, f"{labelled}", f"{len(away):,}", f"{data[1][away].mean():.2f}"]
            lines.append([*about, *(percent(*each) for each in shares(found)), f"{found[:, 2].mean():.3f}"])
    return lines


def seconds() -> float:
    """Return the processor time of one test of 1,000 labelled and 10,000 unlabelled rows with 50 columns."""
    x, y, unlabelled = drawn(500, 0.3, 50, unchanged, 0)
    start = time.process_time()
    unlabelled_shift_test(x, y, unlabelled, 0.3)
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", action="store_true", help="write into docs/benchmarks, which is kept in the repository")
    parser.add_argument("--slices", type=Path, default=SLICES, help="the nodule archive; without it that part is left out")
    parser.add_argument(
        "--cases", type=int, default=400, help="of each size; a quarter as many of each power, and of each slice test"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", LabelShiftWarning)
    cases, kept = options.cases, ROOT / "benchmarks/out"
    kept.mkdir(parents=True, exist_ok=True)
    tests = Tests(kept / "unlabelled_shift_test.csv")
    size, power = size_rows(tests, cases), power_rows(tests, cases // 4)
    slices = slice_rows(tests, options.slices, cases // 4) if options.slices.exists() else []
    out = ROOT / "docs/benchmarks" if options.docs else kept
    out.mkdir(parents=True, exist_ok=True)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    text = page(cases, commit, seconds(), size, power, slices)
    (out / "unlabelled_shift_test.md").write_text(text, encoding="utf-8")
    picture(tests, cases, out / "unlabelled_shift_test.png")
    print(text)


def page(cases: int, commit: str, took: float, size: list[list[str]], power: list[list[str]], slices: list[list[str]]) -> str:
    at = [f"π {known}, n = {rows:,}" for known in ("given", "not given") for rows in SIZES]
    shares_of_size = [float(cell.split()[0]) for row in size for cell in row[3:]]
    parts = [
        f"Made by `python benchmarks/unlabelled_shift_test.py` at commit {commit}, seeds 0 to {cases - 1:,}: how often "
        f"`unlabelled_shift_test` warns at `size={SIZE:g}`, ± one standard error. {TIMES} times as many unlabelled as labelled "
        "rows; n labelled rows of each class; d columns. One test of 1,000 labelled and 10,000 unlabelled rows with 50 columns "
        f"took {took:.1f} s of processor time.\n",
        f"Without a shift, {cases:,} cases: between {min(shares_of_size):.1f} and {max(shares_of_size):.1f} %, on average "
        f"{np.mean(shares_of_size):.1f} %.\n",
        table(["d", "π", "n", "π given", "π not given"], size),
        f"With a shift, {cases // 4:,} cases:\n",
        table(["shift", "d", "π", *at], power),
    ]
    if slices:
        parts += [
            f"CT slices, n of each class labelled at GE, {cases // 4:,} draws; AUC: their mean, where π is given:\n",
            table(["unlabelled", "n", "rows", "malignant", "π given", "π not given", "AUC"], slices),
        ]
    return "\n".join(parts)


def picture(tests: Tests, cases: int, file: Path) -> None:
    """Draw how often the test warns against the shift of a mean, at the first prevalence."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.2), sharey=True, layout="constrained")
    names, pi = list(SHIFTS)[: len(STRENGTHS)], PREVALENCES[0]
    for axis, columns in zip(axes, DIMENSIONS, strict=True):
        for colour, rows in enumerate(SIZES if columns == DIMENSIONS[0] else SIZES[:2]):
            found = [tests.simulated(rows, pi, columns, NONE, cases)]
            found += [tests.simulated(rows, pi, columns, name, cases // 4) for name in names]
            for given, style in ((0, "o-"), (1, "s--")):
                share, error = 100 * np.array([each[given] for each in found]).T
                label = f"n = {rows:,}, π {'not ' if given else ''}given"
                axis.errorbar([0, *STRENGTHS], share, error, fmt=style, color=f"C{colour}", ms=4, label=label)
        axis.axhline(100 * SIZE, color="0.5", lw=1, ls=":")
        axis.set(title=f"{columns} columns", xlabel="shift of one column's mean (sd)", ylim=(-2, 103))
    axes[0].set_ylabel("warnings (%)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=8, frameon=False)
    axes[0].annotate(
        f"{100 * SIZE:g} %", (0.5, 100 * SIZE), (0, 2), textcoords="offset points", ha="right", color="0.4", fontsize=7
    )
    figure.savefig(file, dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    main()
