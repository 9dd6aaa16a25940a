"""Compare every correction for a population's prevalence on the same rows: which one should be the default?

Stage: data sets → a small npz per cell and draw in benchmarks/out/claim → docs/benchmarks/claim.md, .csv, .png.

A *cell* is a data set, a model and a number of labelled rows of each class. A *draw* splits its rows at random: labelled,
validation, unlabelled, test. Each method is judged at the set's natural prevalence and at those of `SHARES`, with the test rows
weighted by class. All methods have the same start, minibatches, steps, rates and decays, chosen on the same validation rows.

    python benchmarks/claim.py              # runs what is missing, a process per core; stop and resume at will. All of it takes
                                            # 105 minutes of one core, a third of them for the cells with all labelled rows
    python benchmarks/claim.py --engine ray --address HEAD:6379     # the same on a Ray cluster
    python benchmarks/claim.py --screen     # every form of the gain, on three sets
    python benchmarks/claim.py --quick      # three small sets, three draws: a few minutes
    python benchmarks/claim.py --docs       # writes the page from the stored results, trains nothing

A draw that has a file is not run again: delete benchmarks/out/claim after a change of the methods.

The CT slices do not come with the package: `--slices PATH`, or their folder in RIGHTLOSS_DATA; skipped where absent.
"""

from __future__ import annotations

import argparse
import io
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from claim_methods import LOSSES, Job, Loss, Rows, Stack, fit, jobs_of
from claim_posthoc import (
    FIGURES,
    Scores,
    can_stream,
    linear_classifier,
    score_classifiers,
    score_natural,
    score_nets,
    score_streams,
)
from claim_sets import Task, task_of
from report import ROOT
from unlabelled import IMAGES, SLICES, standardised

from rightloss import BatchMarginal, Prevalence, RunningMarginal, information_gain_loss, logit_adjusted_loss, weighted_loss
from rightloss.atomic_files import whole_file
from rightloss.study.engines import OnRay, Processes, Report

OUT = ROOT / "benchmarks/out/claim"
SCREEN = ROOT / "benchmarks/out/claim_screen"
# Settings are chosen on the first half and reported on the second; named before anything was run.
CHOSEN_ON = ("Default", "LIDC", "credit", "bank", "satimage", "hypothyroid", "law", "nursery", "two Gaussians")
REPORTED_ON = ("Caravan", "TV churn", "sylva", "shuttle", "adult", "credit cards", "stop and frisk", "abalone", "fars",
               "curved risk", "LIDC contours", "CT slices")  # fmt: skip
SCREENED_ON = ("Default", "LIDC", "credit")  # where models are trained by every loss: `--screen`, in a folder of its own
BY_YEAR = ("accidents 2020", "accidents 2021", "employment")  # other people than the labelled: reported apart
BY_YEAR_SIZE = 200  # labelled of each class there
SHARES = (0.3, 0.1, 0.01, 1e-3, 1e-4)  # of the class of interest, beside the natural one
TRAINED_AT = (0.01, 1e-3)  # where losses are trained whose training depends on π, beside the natural one
SCREENED_AT = (1e-3,)  # the same for those that are screened, and for unlabelled rows
SIZES = (50, 200, 1000, 0)  # labelled of each class; 0: all that there are
MOST_VALID = {50: 50, 200: 100, 1000: 250, 0: 250}  # validation rows of each class
ENSEMBLES_TO = 200  # labelled of each class, at most, where there are ensembles
DRAWS, TESTED, MOST_TESTED, MOST_UNLABELLED, MOST_LABELLED, FEWEST = 10, 0.4, 4_000, 4_000, 5_000, 30
Model = Literal["linear", "MLP", "ConvNet", "boosting"]
MODELS: tuple[Model, ...] = ("linear", "MLP", "boosting", "ConvNet")  # in the order of running
QUICK = {"sets": ("Default", "LIDC", "Caravan"), "sizes": (50,), "draws": 3}


class Cell(NamedTuple):
    """A data set, a model, and a number of labelled rows of each class (0: all)."""

    set: str
    model: Model
    labelled: int

    def path(self, draw: int, folder: Path = OUT) -> Path:
        return folder / f"{self.set.replace(' ', '_')}-{self.model}-{self.labelled}-{draw}.npz"


def cells(sets: tuple[str, ...], sizes: tuple[int, ...], models: tuple[str, ...], slices: Path = SLICES) -> Iterator[Cell]:
    """Yield the cells that the rows suffice for: nets on tables first, then boosting, then images; small ones first."""
    for kinds in (("linear", "MLP"), ("boosting",), ("ConvNet",)):
        for size in sizes:
            for name in sets:
                if name == "CT slices" and not slices.exists():
                    continue
                fits = enough(task_of(name, slices), size) and (name not in BY_YEAR or size == BY_YEAR_SIZE)
                own = [model for model in kinds if (model == "ConvNet") == (name in IMAGES) and model in models]
                yield from (Cell(name, model, size) for model in own if fits)


def enough(task: Task, size: int) -> bool:
    """Return whether a size can be had; all rows count as a size where there are 1.3 times as many as the largest other."""
    source = task.y if task.source is None else task.y[task.source]
    rarest = int(np.bincount(source).min()) * (1 - TESTED if task.source is None else 1.0)
    fits = [each for each in SIZES if each and rarest >= each + MOST_VALID[each] + FEWEST]
    if size:
        return size in fits
    return min(rarest * 2 / 3, MOST_LABELLED) > 1.3 * max(fits, default=0)


def rows_of(task: Task, labelled: int, seed: int) -> Rows:
    """Return draw `seed`; test rows share no group with the others, validation rows none with labelled ones."""
    random = np.random.default_rng(seed)
    test, first, second = parts_of(task, random)
    natural = task.natural
    chosen = of_each(task.y, first, labelled or MOST_LABELLED)
    valid = of_each(task.y, second, MOST_VALID[labelled])
    rest = random.permutation(np.setdiff1d(np.concatenate([first, second]), np.concatenate([chosen, valid])))
    if task.source is not None:
        half = len(test) // 2
        rest, test = test[:half], test[half:]
    populations = np.stack([natural, *(with_share(natural, share) for share in SHARES)])
    unlabelled = {at: at_mix(task.y, rest, populations[at], MOST_UNLABELLED) for at in places_of(TRAINED_AT)}
    x = standardised(task.x, np.concatenate([chosen, rest]))
    many = at_mix(task.y, test, with_share(natural, max(natural[-1], 0.25)), MOST_TESTED)
    as_met = first[: len(chosen)]
    y = torch.tensor(task.y)
    return Rows(
        x(chosen), y[chosen], x(as_met), y[as_met], x(valid), y[valid], x(many), y[many],
        {at: x(rows) for at, rows in unlabelled.items() if len(rows) >= FEWEST}, torch.from_numpy(populations).float(),
        torch.from_numpy(natural if task.source is None else np.bincount(task.y[task.source]) / task.source.sum()).float(),
    )  # fmt: skip


def parts_of(task: Task, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return test rows, and two parts of which labelled and validation rows are taken, in random order."""
    groups = np.arange(len(task.y)) if task.groups is None else np.unique(task.groups, return_inverse=True)[1]
    order = random.permutation(groups.max() + 1)[groups]  # a random place for each group
    own = np.ones(len(order), dtype=bool) if task.source is None else task.source
    tested = TESTED if task.source is None else 0.0
    cut = np.quantile(order[own], [tested, tested + (1 - tested) * 2 / 3])
    test = own & (order < cut[0]) if task.source is None else ~own
    parts = (test, own & ~test & (order < cut[1]), own & ~test & (order >= cut[1]))
    test, first, second = (random.permutation(np.flatnonzero(part)) for part in parts)
    return test, first, second


def with_share(natural: np.ndarray, share: float) -> np.ndarray:
    """Return frequencies in which the class of interest has the share, and the others are as they are among themselves."""
    return np.append(natural[:-1] / natural[:-1].sum() * (1 - share), share)


def places_of(shares: tuple[float, ...]) -> list[int]:
    """Return the places of populations: that of the natural one, and those with the shares."""
    return [0, *(1 + SHARES.index(share) for share in shares)]


def of_each(y: np.ndarray, rows: np.ndarray, size: int) -> np.ndarray:
    """Return the first `size` of the rows of each class."""
    return np.concatenate([rows[y[rows] == k][:size] for k in range(int(y.max()) + 1)])


def at_mix(y: np.ndarray, rows: np.ndarray, mix: np.ndarray, most: int) -> np.ndarray:
    """Return as many of the rows as there are at the mix, at most `most`; a class of less than one row may lack."""
    own = [rows[y[rows] == k] for k in range(len(mix))]
    total = min(most, *(max(len(each), 1) / share for each, share in zip(own, mix, strict=True)))
    return np.concatenate([each[: round(total * share)] for each, share in zip(own, mix, strict=True)])


class Run(NamedTuple):
    """A draw of a cell: what the study's engines call a group."""

    cell: Cell
    draw: int
    slices: Path
    screened: bool

    @property
    def label(self) -> str:
        return f"{self.cell.set}, {self.cell.model}, {self.cell.labelled or 'all'}, draw {self.draw}"


def run(one: Run, report: Report) -> list[bytes]:
    """Train and score every method on a cell's draw, and return its file."""
    warnings.simplefilter("ignore")
    cell, draw, slices, screening = one
    start = time.process_time()
    rows = rows_of(task_of(cell.set, slices), cell.labelled, draw)
    scores = Scores(rows)
    if cell.model == "boosting":
        from claim_trees import score_boosting

        score_boosting(rows, scores, places_of(TRAINED_AT), draw)
    else:
        screened = places_of(SCREENED_AT) if screening else []
        ensembles = 0 < cell.labelled <= ENSEMBLES_TO and cell.model == "MLP"
        jobs = jobs_of(cell.model, len(scores.populations), places_of(TRAINED_AT), screened, ensembles)
        kept = fit(cell.model, rows, jobs, draw)
        score_nets(rows, kept, scores, ensembles)
        score_natural(cell.model, rows, draw, scores)
        if cell.model == "linear":
            score_classifiers(linear_classifier(rows, kept), rows, scores, places_of(TRAINED_AT))
        for at in places_of(SCREENED_AT) if can_stream(rows) else ():
            if at in rows.unlabelled and (at == 0 or cell.model == "linear"):
                score_streams(cell.model, rows, draw, scores, at, kept)
    return [packed(rows, scores, time.process_time() - start)]


def packed(rows: Rows, scores: Scores, seconds: float) -> bytes:
    """Return the figures of all methods, and how many rows there were, as a file's bytes."""
    count = [int((each == rows.y.max()).sum()) for each in (rows.y, rows.y_natural, rows.y_valid, rows.y_test)]
    sizes = [len(rows.y), len(rows.y_valid), len(rows.y_test), *count]
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer, names=np.array([name for name, _ in scores.names]), at=np.array([at for _, at in scores.names], dtype=np.int8),
        figures=np.array(scores.figures, dtype=np.float32), columns=np.array(FIGURES), populations=scores.populations,
        sizes=np.array(sizes), shift=scores.shift, seconds=seconds,
    )  # fmt: skip
    return buffer.getvalue()


def check_losses() -> None:
    """Assert that the stacked losses have the library's gradients, and that κ = 1 at r = ρ is logit adjustment."""
    generator = torch.Generator().manual_seed(0)
    y, pi = torch.arange(42) % 3, torch.tensor([[0.7, 0.2, 0.1], [0.9, 0.09, 0.01]])
    LOSSES["κ = 1"] = Loss("gain", kappa=1.0)
    try:
        names = [name for name, loss in LOSSES.items() if loss.family in ("weighted", "gain") and 0.5 != loss.reference]
        jobs = sorted((Job(name, 1, 0.0) for name in names), key=lambda job: job.loss.family == "gain")
        stack = Stack(jobs, pi, torch.full((3,), 1 / 3))
        marginals = [RunningMarginal() if job.loss.running else BatchMarginal() for job in jobs]
        for _ in range(2):  # so that running means run
            z = (2 * torch.randn(42, len(jobs), 3, generator=generator)).requires_grad_()
            stack.losses(z, y).sum().backward()
            ours = {job.name: z.grad[:, place] for place, job in enumerate(jobs)}  # type: ignore[index]
            for place, (job, marginal) in enumerate(zip(jobs, marginals, strict=True)):
                logits = (z.detach()[:, place] + (pi[1] * 3).log()).requires_grad_()
                known = Prevalence(pi[1].tolist(), evidence=job.loss.kappa)
                if job.loss.family == "gain":
                    reference = known.population if job.loss.reference else None
                    own = information_gain_loss(logits, y, known, marginal=marginal, reference=reference)
                else:
                    own = (weighted_loss if job.loss.reference else logit_adjusted_loss)(logits, y, known)
                own.backward()
                torch.testing.assert_close(ours[job.name], logits.grad)
            same = z.detach()[:, [jobs.index(Job("κ = 1", 1, 0.0))]].requires_grad_()
            torch.nn.functional.cross_entropy(same[:, 0], y).backward()
            torch.testing.assert_close(ours["κ = 1"], same.grad[:, 0])  # type: ignore[index]
    finally:
        del LOSSES["κ = 1"]


def run_missing(runs: list[Run], folder: Path, engine: Any) -> None:
    """Run draws of cells by one of the study's engines, and write each file when it is there, whole or not at all."""
    from rich.progress import track

    folder.mkdir(parents=True, exist_ok=True)
    with closing(engine.run(run, runs, lambda number, share: None)) as done:
        for number, (content,) in track(done, "draws of cells", len(runs)):
            one = runs[number]
            with whole_file(one.cell.path(one.draw, folder)) as file:
                file.write(content)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=[*CHOSEN_ON, *REPORTED_ON, *BY_YEAR], help="data sets; all by default")
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="labelled rows of each class; 0 for all")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--slices", type=Path, default=SLICES, help="lidc_slices.npz")
    parser.add_argument("--screen", action="store_true", help="every loss, on three sets with 50 labelled of each class")
    parser.add_argument("--quick", action="store_true", help="three small sets, three draws, in a folder of their own")
    parser.add_argument("--docs", action="store_true", help="write the page into docs/benchmarks from the stored results")
    parser.add_argument("--engine", choices=("processes", "ray"), default="processes")
    parser.add_argument("--workers", type=int, help="processes; one per processor by default")
    parser.add_argument("--address", help="of a Ray cluster; one on this machine by default")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if chosen.docs:
        from claim_page import write_page

        return write_page(OUT, ROOT / "docs/benchmarks")
    sets, sizes, draws, folder = tuple(chosen.sets), tuple(chosen.sizes), chosen.draws, OUT
    if chosen.quick:
        sets, sizes, draws, folder = *QUICK.values(), OUT.with_name("claim_quick")  # type: ignore[assignment]
    if chosen.screen:
        sets, sizes, folder = SCREENED_ON, SIZES[:1], SCREEN
        chosen.models = [model for model in chosen.models if model in ("linear", "MLP")]
    check_losses()
    each = cells(sets, sizes, tuple(chosen.models), chosen.slices)
    runs = [Run(cell, draw, chosen.slices, chosen.screen) for cell in each for draw in range(draws)]
    engine = Processes(chosen.workers) if chosen.engine == "processes" else OnRay(chosen.address, chosen.workers)
    run_missing([one for one in runs if not one.cell.path(one.draw, folder).exists()], folder, engine)
    from claim_page import summary

    print(summary(folder, draws))


if __name__ == "__main__":
    main()
