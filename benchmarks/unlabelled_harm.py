"""Measure what unlabelled rows cost where they are not of the labelled rows' kind: p(x|y) differs between the streams.

Stage: Gaussian classes, CT slices by manufacturer → benchmarks/out/unlabelled_harm.csv → docs/benchmarks/unlabelled_harm.md.

- *Gaussian*: ten columns, classes two standard deviations apart along the first, π = 0.1, 50 labelled of each class, 5,000
  unlabelled. Unlabelled rows of both classes are moved by 0.25, 0.5 or 1 standard deviation, along the first column or
  across it. The model is used where the unlabelled rows are from ("used there"), or where the labelled ones are ("used here").
- *CT slices*: labelled are scans of General Electric, unlabelled and test those of other makers, and the reverse; π is that of
  the place where the model is used.

    python benchmarks/unlabelled_harm.py           # about ten minutes on one core; does only what is missing
    python benchmarks/unlabelled_harm.py --docs    # writes the page, trains nothing
    python benchmarks/unlabelled_harm.py --quick   # two draws of each, nothing kept
"""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
import torch
from data_sets import DataSet
from report import ROOT
from unlabelled import SLICES, at_mix, data_of, of_each, standardised
from unlabelled_methods import DECAYS, Draw, Job, Kind, fit, stream_weights

from rightloss.lidc import binary_set

OUT = ROOT / "benchmarks/out/unlabelled_harm.csv"
STRENGTHS, DIRECTIONS, USED = (0.25, 0.5, 1.0), ("along", "across"), ("there", "here")
COLUMNS, APART, POPULATION, LABELLED, UNLABELLED = 10, 2.0, 0.1, 50, 5_000
WEIGHTS, EVIDENCE = ("0", "1", "root", "rows"), "ε = 3"
DRAWS = {"linear": 20, "MLP": 10, "ConvNet": 10}
FIELDS = ("data", "model", "direction", "shift", "used", "draw", "weight", "likelihood", "auc")


class Setting(NamedTuple):
    """Where the labelled and the unlabelled rows differ, and where the model is used."""

    data: str
    model: Kind
    direction: str
    shift: float
    used: str


def settings(slices: Path) -> Iterator[Setting]:
    """Yield every setting: without a shift, three strengths in two directions, and scanners."""
    models: tuple[Kind, ...] = ("linear", "MLP")
    for model in models:
        yield Setting("Gaussian", model, "none", 0.0, "there")
        for direction in DIRECTIONS:
            for shift in STRENGTHS:
                yield from (Setting("Gaussian", model, direction, shift, used) for used in USED)
    if slices.exists():
        yield from (
            Setting("CT slices", "ConvNet", direction, np.nan, "there") for direction in ("GE to others", "others to GE")
        )


def gaussian_draw(setting: Setting, seed: int) -> Draw:
    """Return rows of two Gaussian classes; the unlabelled ones moved, the test rows moved if the model is used there."""
    random = np.random.default_rng(seed)
    place = {"none": 0, "along": 0, "across": 1}[setting.direction]

    def rows(labels: np.ndarray, moved: bool) -> tuple[torch.Tensor, torch.Tensor]:
        x = random.normal(size=(len(labels), COLUMNS))
        x[:, 0] += APART * labels
        x[:, place] += setting.shift * moved
        return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(labels)

    balanced, natural = np.repeat([0, 1], LABELLED), (random.random(2 * UNLABELLED) < POPULATION).astype(np.int64)
    unlabelled, _ = rows(natural[:UNLABELLED], True)
    test = rows(natural[UNLABELLED:], setting.used == "there")
    return Draw(*rows(balanced, False), *rows(balanced, False), unlabelled, *test, POPULATION)


def scanner_draw(setting: Setting, seed: int, slices: Path) -> Draw:
    """Return labelled and validation rows of some makers, unlabelled and test rows of the others, split by patient."""
    data = data_of("CT slices", slices)
    general = makers(slices) == "GE MEDICAL SYSTEMS"
    labelled = general if setting.direction == "GE to others" else ~general
    assert data.groups is not None
    random = np.random.default_rng(seed)
    order = random.permutation(len(set(data.groups)))[np.unique(data.groups, return_inverse=True)[1]]
    here, there = (_halves(data, order, where, random) for where in (labelled, ~labelled))
    chosen = [of_each(data.y, half, LABELLED) for half in here]
    natural = float(data.y[~labelled].mean())
    unlabelled, test = (at_mix(data.y, half, natural, len(half)) for half in there)
    x, y = standardised(data.x, np.concatenate([chosen[0], unlabelled])), torch.from_numpy(data.y)
    labelled_rows, valid = chosen
    return Draw(x(labelled_rows), y[labelled_rows], x(valid), y[valid], x(unlabelled), x(test), y[test], natural)


def _halves(data: DataSet, order: np.ndarray, where: np.ndarray, random: np.random.Generator) -> list[np.ndarray]:
    half = np.median(order[where])
    return [random.permutation(np.flatnonzero(where & side)) for side in (order < half, order >= half)]


def makers(slices: Path) -> np.ndarray:
    """Return the scanner's manufacturer of each row of the binary set, from the table beside the archive."""
    table = pd.read_csv(slices.with_name("lidc_slices_manufacturer.csv")).set_index("nodule_id")["manufacturer"]
    return table.loc[binary_set(slices).nodules.numpy()].to_numpy()


def jobs_of(draw: Draw, kind: Kind) -> list[Job]:
    """Return the streams at each weight, and at the weight of the minibatch with evidence of π."""
    plain = [("stream", name, value) for name, value in stream_weights(draw.ratio).items() if name in WEIGHTS]
    plain += [("evidence", EVIDENCE, 3.0)]
    return [Job(method, name, decay, value, draw.population) for method, name, value in plain for decay in DECAYS[kind]]


def run(setting: Setting, seed: int, slices: Path) -> list[dict[str, object]]:
    """Return a row per weight of the unlabelled, the decay chosen on the validation rows."""
    draw = gaussian_draw(setting, seed) if setting.data == "Gaussian" else scanner_draw(setting, seed, slices)
    jobs = jobs_of(draw, setting.model)
    found = fit(setting.model, draw, jobs, seed)
    rows = []
    for weight in dict.fromkeys(job.setting for job in jobs):
        places = [place for place, job in enumerate(jobs) if job.setting == weight]
        best = places[int(found.score[places].argmax())]
        figures = {"likelihood": float(found.likelihood[best]), "auc": float(found.auc[best])}
        rows.append({**setting._asdict(), "draw": seed, "weight": weight, **figures})
    return rows


def read(path: Path) -> pd.DataFrame:
    return pd.read_csv(path) if path.exists() else pd.DataFrame(columns=list(FIELDS))


def append(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS)
        if new:
            writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--slices", type=Path, default=SLICES, help="lidc_slices.npz, with lidc_slices_manufacturer.csv beside it"
    )
    parser.add_argument("--models", nargs="+", default=list(DRAWS))
    parser.add_argument("--quick", action="store_true", help="two draws of each")
    parser.add_argument("--docs", action="store_true", help="write the page into docs/benchmarks from the stored results")
    chosen = parser.parse_args()
    if chosen.docs:
        from unlabelled_page import write_harm

        return write_harm(OUT, ROOT / "docs/benchmarks")
    torch.set_num_threads(1)
    path = OUT.with_name("unlabelled_harm_quick.csv") if chosen.quick else OUT
    known = read(path)
    done = set(
        zip(
            known["data"],
            known["model"],
            known["direction"],
            known["shift"].fillna(-1),
            known["used"],
            known["draw"],
            strict=True,
        )
    )
    for setting in settings(chosen.slices):
        if setting.model not in chosen.models:
            continue
        for seed in range(2 if chosen.quick else DRAWS[setting.model]):
            key = (*setting[:3], -1 if np.isnan(setting.shift) else setting.shift, setting.used, seed)
            if key not in done:
                append(path, run(setting, seed, chosen.slices))
        print(*setting, flush=True)


if __name__ == "__main__":
    main()
