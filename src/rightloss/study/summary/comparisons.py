"""Paired comparisons: which cells are compared, and their differences on the same nodules.

Stage: `Cell`s, their AUCs, `Resamples` → `CellPair`s.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ...metrics import Figure
from ..config import StudyConfig
from ..methods import ADJUSTED, ADJUSTED_LABELLED, DEFAULT, METHODS
from ..pooled_predictions import Cell, CellKey
from .cell_figures import paired_figures
from .contract import AUC, MEAN, CellPair, PairedFigure
from .resampling import Areas, BootstrapEstimate, GroupMeans, Resamples, combined, mean_area

PUBLISHED, WEIGHTED, PLAIN, BOTH = "published", "weighted", "plain", "both"
PUBLISHED_FORMS = tuple(name for name, method in METHODS.items() if method.published)
LOG_MEAN_OFF = "log_mean_off"  # mean over prevalences of |log(mean prediction/π)|
FEW = 3  # prevalences for that mean


def pairs(keys: Sequence[CellKey], config: StudyConfig) -> Iterator[tuple[str, CellKey, CellKey]]:
    """Yield the respect in which two cells differ, ours, and theirs.

    From the same start: the default against every rival; each published form against the weighted loss, as in the paper, and
    the weighted loss against plain cross-entropy; logit adjustment with unlabelled patients against without; the lowest
    population against the highest; image and metadata against either alone; each inference against a single net, and each
    likelihood against the softmax. A start at equal classes against one at π.
    """
    have = set(keys)
    rates = [rate for rate in config.populations if rate is not None]
    for ours in keys:
        if ours.loss == DEFAULT:
            yield from (("loss", ours, theirs) for theirs in keys if theirs != ours and _context(theirs) == _context(ours))
        if ours.loss in PUBLISHED_FORMS and (theirs := ours._replace(loss=WEIGHTED)) in have:
            yield "published", ours, theirs
        if ours.loss == WEIGHTED and (theirs := ours._replace(loss=PLAIN)) in have:
            yield "plain", ours, theirs
        if rates and ours.population == min(rates) and (theirs := ours._replace(population=max(rates))) in have - {ours}:
            yield "population", ours, theirs
        if ours.loss == ADJUSTED and (theirs := ours._replace(loss=ADJUSTED_LABELLED)) in have:
            yield "unlabelled", ours, theirs
        if ours.net == BOTH:
            yield from (("net", ours, theirs) for theirs in keys if theirs != ours and ours._replace(net=theirs.net) == theirs)
        plain = {
            "start": ours._replace(start="population"),
            "inference": ours._replace(inference="map"),
            "likelihood": ours._replace(likelihood="categorical"),
        }
        yield from ((about, ours, theirs) for about, theirs in plain.items() if theirs in have and theirs != ours)


def main_loss(config: StudyConfig) -> str:
    """Return the main loss: the default, or else the study's first."""
    return DEFAULT if DEFAULT in config.losses else config.losses[0]


def compare(about: str, ours: Cell, theirs: Cell, areas: tuple[Areas, Areas] | None, resamples: Resamples) -> CellPair | None:
    """Compare two cells on their common runs; None if there are none. Between populations the AUC alone is compared."""
    own, other = _shared(ours, theirs)
    if len(own) == 0:
        return None
    found = {}
    if ours.key.population == theirs.key.population:
        mine, yours = paired_figures(ours), paired_figures(theirs)
        patient, fold = resamples.patient[ours.rows[own]], ours.fold[own]
        differences = {name: mine[name].at(own) - yours[name].at(other) for name in mine}
        found = {name: _difference(each, patient, fold, resamples) for name, each in differences.items()}
    if areas is not None:
        found[AUC] = _area_difference(*areas, resamples)
    return CellPair(about, ours.key, theirs.key, found)


def calibration_difference(ours: Sequence[Cell], theirs: Sequence[Cell], resamples: Resamples) -> PairedFigure | None:
    """Compare |log(mean prediction/π)|, averaged over populations; None if fewer than three have common runs."""
    estimates: list[BootstrapEstimate] = []
    folds: list[dict[int, float]] = []
    rates = []
    for one, other in zip(ours, theirs, strict=True):
        shared = _shared(one, other)
        if len(shared[0]):
            means = [paired_figures(cell)[MEAN].at(rows) for cell, rows in zip((one, other), shared, strict=True)]
            patient, fold = resamples.patient[one.rows[shared[0]]], one.fold[shared[0]]
            estimates += [each.estimate(patient, resamples) for each in means]
            folds += [each.in_folds(fold) for each in means]
            rates.append(one.population[1])
    if len(rates) < FEW:
        return None

    def off(means: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            gaps = np.abs(np.log(means / np.repeat(rates, 2)[:, None]))
        return np.asarray((gaps[::2] - gaps[1::2]).mean(0))

    common = set(folds[0]).intersection(*folds)
    by_fold = {fold: float(off(np.array([[each[fold]] for each in folds]))[0]) for fold in common}
    return _counted(combined(off, estimates).figure("a class has no nodule"), by_fold)


def _context(key: CellKey) -> CellKey:
    return key._replace(loss="")


def _shared(ours: Cell, theirs: Cell) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of the entries that both have, in the same order."""
    places = [
        {key: number for number, key in enumerate(zip(cell.rows.tolist(), cell.seed.tolist(), strict=True))}
        for cell in (ours, theirs)
    ]
    both = [key for key in places[0] if key in places[1]]
    own, other = (np.array([place[key] for key in both], dtype=np.int64) for place in places)
    return own, other


def _difference(means: GroupMeans, patient: np.ndarray, fold: np.ndarray, resamples: Resamples) -> PairedFigure:
    if not np.isfinite(means.counted).all():
        return PairedFigure(Figure(math.nan, reason="a probability of 0 was given to what happened"), 0, 0, 0)
    return _counted(means.figure(patient, resamples, "a class has no nodule"), means.in_folds(fold))


def _area_difference(ours: Areas, theirs: Areas, resamples: Resamples) -> PairedFigure:
    areas = {run: ours[run] - theirs[run] for run in ours if run in theirs}
    by_fold: dict[int, list[float]] = {}
    for (fold, _), area in areas.items():
        by_fold.setdefault(fold, []).append(area.value)
    figure = mean_area(areas, resamples).figure("no fold has both classes")
    return _counted(figure, {fold: float(np.mean(each)) for fold, each in by_fold.items()})


def _counted(figure: Figure, by_fold: Mapping[int, float]) -> PairedFigure:
    values = list(by_fold.values())
    return PairedFigure(figure, len(values), sum(value > 0 for value in values), sum(value < 0 for value in values))
