"""Compare the methods of claim.py, cell by cell: stored results → paired differences → the counts on which a default rests.

Stage: npz per cell and draw → `Cell`: method → figures of each draw → `verdict` of a candidate against the guess, the weighted
loss and the best of its rivals.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from claim import BY_YEAR, CHOSEN_ON, DRAWS, REPORTED_ON, SHARES
from claim_methods import LOGIT_ADJUSTED
from scipy.stats import binom
from scipy.stats import t as student

NEAR = 1.25  # a share within this factor of the natural one is not counted again
ROUNDING = 1e-6  # of the guess's log-likelihood: less is no difference
GUESS = "always π"
RIVALS = (LOGIT_ADJUSTED, "natural rows", "weighted", "focal", "focal, affine", "weighted, affine", "affine", "beta",
          "affine, fitted at π", "Prior2Posterior", "ensemble", "ensemble, affine", "Laplace", "classifier, beta",
          "classifier, affine", "classifier, closed form")  # fmt: skip
RIVALS_UNLABELLED = (*RIVALS, "mean matching")
UNLABELLED = ("unlabelled", "matched", "mean matching")
CAPPED_LA = f"{LOGIT_ADJUSTED}, capped"
FLATTENED = {  # calibrations that are left out where their slope is above 1
    "affine": LOGIT_ADJUSTED,
    "affine, capped": CAPPED_LA,
    "ensemble, affine, capped": "ensemble, capped",
    "affine, matched, capped": "mean matching, capped",
}
GUARDS = {"": 0.5, ", guess if better": 0.0, ", guess if clearly better": -1.0, ", never the guess": None}
UNLESS_WORSE = (LOGIT_ADJUSTED, "affine", "beta", "pooled, beta", "ensemble, beta", "classifier, auto")
CANDIDATES = (
    LOGIT_ADJUSTED, "gain, r = ρ, κ = 0", "gain, r = ρ, κ = 0.1", "κ validated", "weighted", "half weighted", "by uncertainty",
    "by x, half", "affine", "affine, flattening only", "beta", *(f"auto{title}" for title in GUARDS), "pooled, affine",
    "pooled, beta", "ensemble", "ensemble, affine", "ensemble, beta", "Laplace",
    "classifier, auto", "classifier, beta", CAPPED_LA, "gain, r = ρ, κ = 0, capped", "affine, capped",
    "affine, capped, flattening only", "beta, capped", "pooled, affine, capped", "pooled, beta, capped", "ensemble, capped",
    "ensemble, affine, capped", "ensemble, affine, capped, flattening only", "classifier, auto, capped",
    f"{LOGIT_ADJUSTED}, smoothed", "affine, smoothed", "beta, smoothed", *(f"auto{title}, smoothed" for title in GUARDS),
    "pooled, affine, smoothed", "pooled, beta, smoothed", "ensemble, affine, smoothed", "ensemble, beta, smoothed",
    "classifier, auto, smoothed", "classifier, beta, smoothed",
    *(f"{name}, smoothed unless worse" for name in UNLESS_WORSE), "classifier, smoothing auto",
)  # fmt: skip
STREAMS = ("unlabelled, guarded", "unlabelled, evidence", "unlabelled, evidence, guarded")
MATCHED = ("mean matching", *(f"{name}{method}, matched" for name in ("", "pooled, ") for method in ("affine", "beta")),
           *(f"{name}{method}, matched" for name in STREAMS for method in ("", ", affine", ", beta")))  # fmt: skip
CANDIDATES_UNLABELLED = (
    "unlabelled, root", *STREAMS, *(f"{name}{bound}" for bound in ("", ", capped", ", smoothed") for name in MATCHED),
    "affine, matched, capped, flattening only",
)  # fmt: skip


@dataclass(frozen=True)
class Compared:
    """A data set, a model, a number of labelled rows and a population, with what every method reached in each draw.

    Attributes:
        set, model, labelled: the cell; 0 labelled stands for all.
        place, share: of the population; place 0 is the natural one.
        guess: log-likelihood of always answering π.
        likelihood, auc: method → draws.
        valid: method → log-likelihood on the validation rows, its standard errors over the guess and over logit adjustment.
        mean, slope: method → draws: mean prediction of the class of interest, and a calibration's slope.
        rows: mean numbers of positives: labelled, labelled as met, validation, test.
        shift: p-values of the test for label shift.
    """

    set: str
    model: str
    labelled: int
    place: int
    share: float
    guess: float
    likelihood: dict[str, np.ndarray]
    auc: dict[str, np.ndarray]
    valid: dict[str, np.ndarray]
    mean: dict[str, np.ndarray]
    slope: dict[str, np.ndarray]
    rows: tuple[int, ...]
    shift: np.ndarray

    @property
    def draws(self) -> int:
        return len(self.likelihood[LOGIT_ADJUSTED])

    @property
    def counted(self) -> bool:
        """Return whether the population is not near the natural one, or is it."""
        return self.place == 0 or not 1 / NEAR < self.share / self.natural < NEAR

    @property
    def natural(self) -> float:
        return float(self.valid["natural"][0, 0])

    def difference(self, method: str, other: str, figure: str = "likelihood") -> tuple[float, float]:
        """Return the mean paired difference and its standard error; ties where rounding may be all."""
        values: dict[str, np.ndarray] = getattr(self, figure)
        second = np.full(self.draws, self.guess) if other == GUESS else values[other]
        paired = values[method] - second
        error = paired.std(ddof=1) / np.sqrt(len(paired))
        return float(paired.mean()), max(float(error), ROUNDING * abs(self.guess))


def read(folder: Path, fewest: int = DRAWS) -> list[Compared]:
    """Return every cell and population of which there are at least `fewest` draws, with the rules that validation decides."""
    found: dict[tuple[str, str, int], list[Path]] = {}
    for path in sorted(folder.glob("*.npz")):
        match = re.fullmatch(r"(.*)-(linear|MLP|ConvNet|boosting)-(\d+)-(\d+)", path.stem)
        assert match is not None
        name, model, labelled, _ = match.groups()
        found.setdefault((name.replace("_", " "), model, int(labelled)), []).append(path)
    cells = [each for key, paths in found.items() if len(paths) >= fewest for each in _of_cell(key, paths)]
    order = (*CHOSEN_ON, *REPORTED_ON, *BY_YEAR)
    models = ("linear", "MLP", "boosting", "ConvNet")
    return sorted(cells, key=lambda each: (order.index(each.set), models.index(each.model), each.labelled or 10**9, each.place))


def _of_cell(key: tuple[str, str, int], paths: Sequence[Path]) -> Iterable[Compared]:
    draws = []
    for path in paths:
        with np.load(path, allow_pickle=False) as arrays:
            draws.append(dict(arrays))
    populations = np.mean([each["populations"] for each in draws], axis=0)
    columns = draws[0]["columns"].tolist()
    for place, pi in enumerate(populations):
        tables = [{n: f for n, a, f in zip(d["names"], d["at"], d["figures"], strict=True) if a == place} for d in draws]
        names = [name for name in tables[0] if all(name in each for each in tables)]
        figures = {name: np.array([each[name] for each in tables], dtype=float) for name in names}
        part = {column: {name: figures[name][:, columns.index(column)] for name in names} for column in columns}
        valid = {
            name: figures[name][
                :, [columns.index(c) for c in ("valid", "valid_over_guess_se", "valid_over_base_se", "valid_over_own_se")]
            ]
            for name in names
        }
        valid["natural"] = np.full((len(draws), 4), populations[0, -1])
        rows = tuple(np.mean([each["sizes"][3:] for each in draws], axis=0).round().astype(int).tolist())
        shift = np.array([float(each["shift"]) for each in draws])
        cell = Compared(
            *key, place, float(pi[-1]), float(pi @ np.log(pi)), part["likelihood"], part["auc"], valid, part["mean"],
            part["slope"], rows, shift,
        )  # fmt: skip
        yield _with_rules(cell)


def _with_rules(cell: Compared) -> Compared:
    """Add the methods that are a choice on the validation rows."""
    gains = [name for name in (LOGIT_ADJUSTED, "gain, r = ρ, κ = 0.1", "gain, r = ρ, κ = 0") if name in cell.valid]
    best = np.argmax([cell.valid[name][:, 0] for name in gains], axis=0)
    _add(cell, "κ validated", [gains[each] for each in best])
    for suffix in ("", ", smoothed"):
        chosen = _calibrated_unless_worse(cell, suffix)
        for title, errors in GUARDS.items():
            _add(cell, f"auto{title}{suffix}", chosen, errors)
    for name in UNLESS_WORSE:
        if f"{name}, smoothed" in cell.valid:
            before, bounded = cell.valid[name], cell.valid[f"{name}, smoothed"]
            worse = before[:, 0] - bounded[:, 0] > bounded[:, 3]
            _add(cell, f"{name}, smoothed unless worse", [name if each else f"{name}, smoothed" for each in worse])
    for name, plain in FLATTENED.items():
        if name in cell.valid and plain in cell.valid:
            _add(cell, f"{name}, flattening only", [name if each < 1 else plain for each in cell.slope[name]])
    return cell


def _calibrated_unless_worse(cell: Compared, suffix: str) -> list[str]:
    """Return for each draw what `PrevalenceCorrectedClassifier(method="auto")` takes before it compares with the guess."""
    chosen = []
    for draw in range(cell.draws):
        scores = {name: cell.valid[f"{name}{suffix}"][draw] for name in (LOGIT_ADJUSTED, "affine", "beta")}
        plain, best = scores[LOGIT_ADJUSTED], max(("affine", "beta"), key=lambda name: scores[name][0])
        keep = plain[0] - cell.guess > 2 * plain[1] and plain[0] - scores[best][0] > scores[best][2]
        chosen.append(f"{LOGIT_ADJUSTED if keep else best}{suffix}")
    return chosen


def _add(cell: Compared, name: str, chosen: Sequence[str], guard: float | None = None) -> None:
    """Add a method that is another one in each draw.

    Args:
        cell: where it is added.
        name: of the method.
        chosen: what it is in each draw.
        guard: the guess replaces it where it is not better on validation by as many standard errors; None for never.
    """
    for values in (cell.likelihood, cell.auc, cell.mean, cell.slope):
        values[name] = np.array([values[each][draw] for draw, each in enumerate(chosen)])
    cell.valid[name] = np.array([cell.valid[each][draw] for draw, each in enumerate(chosen)])
    if guard is not None:
        doubtful = cell.valid[name][:, 0] - cell.guess < guard * cell.valid[name][:, 1]
        cell.likelihood[name][doubtful] = cell.guess
        cell.mean[name][doubtful] = cell.share


class Verdict(NamedTuple):
    """What a candidate did in a set of cells: how many there are, and in how many each of the aims was met.

    Attributes:
        cells: how many have the candidate.
        below_guess: (a) below always answering π by more than two standard errors.
        below_weighted: (b) an AUC below the weighted loss's by more than two standard errors.
        level: (c) not behind the best rival by more than one standard error.
        fair: the same, with the best rival picked on the other half of the draws.
        ahead: (d) ahead of every rival by more than one.
        gain: median difference to logit adjustment, in % of the guess's log-loss.
        auc: mean difference to logit adjustment.
        won, lost: ahead of and behind logit adjustment by more than two standard errors.
    """

    cells: int
    below_guess: int
    below_weighted: int
    level: int
    fair: int
    ahead: int
    gain: float
    auc: float
    won: int
    lost: int


def verdict(cells: Sequence[Compared], name: str, rivals: Sequence[str]) -> Verdict:
    """Return the verdict of one candidate."""
    own = [cell for cell in cells if name in cell.likelihood]
    counts = np.zeros(7, dtype=int)
    gains, ranks = [], []
    for cell in own:
        others = [each for each in rivals if each in cell.likelihood and each != name]
        against = {each: cell.difference(name, each) for each in others}
        best = max(others, key=lambda each: float(cell.likelihood[each].mean()))
        over, noise = cell.difference(name, GUESS)
        ranked, ranked_noise = cell.difference(name, "weighted", "auc")
        plain, plain_noise = cell.difference(name, LOGIT_ADJUSTED)
        counts += [
            over < -2 * noise,
            ranked < -2 * ranked_noise,
            against[best][0] >= -against[best][1],
            _is_level_with_best(cell, name, others),
            all(mean > error for mean, error in against.values()),
            plain > 2 * plain_noise,
            plain < -2 * plain_noise,
        ]
        gains.append(100 * plain / -cell.guess)
        ranks.append(cell.difference(name, LOGIT_ADJUSTED, "auc")[0])
    if not own:
        return Verdict(0, 0, 0, 0, 0, 0, np.nan, np.nan, 0, 0)
    guess, weighted, level, fair, ahead, won, lost = (int(each) for each in counts)
    return Verdict(len(own), guess, weighted, level, fair, ahead, float(np.median(gains)), float(np.mean(ranks)), won, lost)


def _is_level_with_best(cell: Compared, name: str, others: Sequence[str]) -> bool:
    """Return whether a method is level with the best rival, picked for each half of the draws on the other half."""
    values = np.stack([cell.likelihood[each] for each in others])
    even = np.arange(cell.draws) % 2 == 0
    paired = np.empty(cell.draws)
    for half in (even, ~even):
        best = values[:, ~half].mean(axis=1).argmax()
        paired[half] = (cell.likelihood[name] - values[best])[half]
    return bool(paired.mean() >= -paired.std(ddof=1) / np.sqrt(cell.draws))


def counted(
    cells: Iterable[Compared], sets: Sequence[str], where: Callable[[Compared], bool] = lambda cell: True
) -> list[Compared]:
    """Return the cells of some sets that count."""
    return [cell for cell in cells if cell.set in sets and cell.counted and where(cell)]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and half the width of a 95 % interval by Student's t."""
    array = np.asarray(values)
    if len(array) < 2:
        return float(array.mean()), np.nan
    half = student.ppf(0.975, len(array) - 1) * array.std(ddof=1) / np.sqrt(len(array))
    return float(array.mean()), float(half)


def median_interval(values: np.ndarray) -> tuple[float, float, float]:
    """Return a 95 % interval of the median by order statistics (the range of few values), with the median between its ends."""
    ordered = np.sort(values)
    place = max(int(binom.ppf(0.025, len(ordered), 0.5)) - 1, 0)
    return float(ordered[place]), float(np.median(ordered)), float(ordered[len(ordered) - 1 - place])


def percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "–"


def share_name(cell: Compared) -> str:
    return "natural" if cell.place == 0 else f"{SHARES[cell.place - 1]:g}"


def as_frame(cells: Sequence[Compared], methods: Sequence[str]) -> pd.DataFrame:
    """Return a row per cell and population: logit adjustment, and the difference of each method with its standard error."""
    rows = []
    for cell in cells:
        row: dict[str, object] = {
            "set": cell.set, "model": cell.model, "labelled": cell.labelled or "all", "share": f"{cell.share:.4g}",
            "natural": int(cell.place == 0), "draws": cell.draws,
            **dict(zip(("positives labelled", "as met", "validation", "test"), cell.rows, strict=True)),
            GUESS: f"{cell.guess:.4g}", LOGIT_ADJUSTED: f"{cell.likelihood[LOGIT_ADJUSTED].mean():.4g}",
            "its AUC": f"{cell.auc[LOGIT_ADJUSTED].mean():.3f}",
        }  # fmt: skip
        for name in methods:
            if name in cell.likelihood:
                mean, error = cell.difference(name, LOGIT_ADJUSTED)
                row[name] = f"{mean:.2g}±{error:.1g}"
        rows.append(row)
    return pd.DataFrame(rows)
