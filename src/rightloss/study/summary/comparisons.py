"""Which cells are compared with which, and by how much one is ahead on the same nodules.

Stage: `Cell`s, their AUCs, `Resamples` → `Comparison`s.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ...metrics import Figure
from ..config import StudyConfig
from ..methods import DEFAULT
from ..pooled_predictions import Cell, CellKey
from .areas import Areas, differences, mean_area
from .contract import Comparison, Difference
from .likelihood import expected_at, expected_in_folds, votes_of
from .resampling import Resamples

LOG_LIKELIHOOD, AUC = "expected_log_likelihood", "auc"
PUBLISHED, WEIGHTED, BOTH = "published", "weighted", "both"


def pairs(keys: Sequence[CellKey], config: StudyConfig) -> Iterator[tuple[str, CellKey, CellKey]]:
    """In what they differ, ours, theirs.

    The default against every rival; the published form against the weighted loss, as in the paper; image and metadata against
    either alone; each inference against a single net, and each likelihood against the softmax.
    """
    have = set(keys)
    for ours in keys:
        if is_default(ours, config):
            yield from (("loss", ours, theirs) for theirs in keys if theirs != ours and _context(theirs) == _context(ours))
        if ours.loss == PUBLISHED and (theirs := ours._replace(loss=WEIGHTED, marginal="own")) in have:
            yield "published", ours, theirs
        if ours.net == BOTH:
            yield from (("net", ours, theirs) for theirs in keys if theirs != ours and ours._replace(net=theirs.net) == theirs)
        plain = {"inference": ours._replace(inference="map"), "likelihood": ours._replace(likelihood="categorical")}
        yield from ((about, ours, theirs) for about, theirs in plain.items() if theirs in have and theirs != ours)


def is_default(key: CellKey, config: StudyConfig) -> bool:
    """The information gain as users get it: with its own marginal, or the first that the study names."""
    usual = "own" if "own" in config.marginals else config.marginals[0]
    return key.loss == DEFAULT and key.marginal == usual


def compare(about: str, ours: Cell, theirs: Cell, areas: tuple[Areas, Areas] | None, resamples: Resamples) -> Comparison | None:
    """On the runs that both have; None where there are none."""
    own, other = _shared(ours, theirs)
    if len(own) == 0:
        return None
    found = {LOG_LIKELIHOOD: _of_likelihood(ours, theirs, own, other, resamples)}
    if areas is not None:
        found[AUC] = _of_areas(differences(*areas), resamples)
    return Comparison(about, ours.key, theirs.key, found)


def _context(key: CellKey) -> CellKey:
    return key._replace(loss="", marginal="")


def _shared(ours: Cell, theirs: Cell) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the entries that both have, in the same order."""
    places = [
        {key: number for number, key in enumerate(zip(cell.rows.tolist(), cell.seed.tolist(), strict=True))}
        for cell in (ours, theirs)
    ]
    both = [key for key in places[0] if key in places[1]]
    own, other = (np.array([place[key] for key in both], dtype=np.int64) for place in places)
    return own, other


def _of_likelihood(ours: Cell, theirs: Cell, own: np.ndarray, other: np.ndarray, resamples: Resamples) -> Difference:
    votes, patient = votes_of(ours)[own], resamples.patient[ours.rows[own]]
    with np.errstate(invalid="ignore"):
        values = ours.log_probs[own] - theirs.log_probs[other]
    if not np.isfinite(values[votes > 0]).all():
        return Difference(Figure(math.nan, reason="a probability of 0 was given to what happened"), 0, 0, 0)
    figure = expected_at(values, votes, patient, ours.population, resamples).figure("a class has no nodule")
    return _counted(figure, expected_in_folds(values, votes, ours.fold[own], ours.population))


def _of_areas(areas: Areas, resamples: Resamples) -> Difference:
    by_fold: dict[int, list[float]] = {}
    for (fold, _), area in areas.items():
        by_fold.setdefault(fold, []).append(area.value)
    figure = mean_area(areas, resamples).figure("no fold has both classes")
    return _counted(figure, {fold: float(np.mean(each)) for fold, each in by_fold.items()})


def _counted(figure: Figure, by_fold: Mapping[int, float]) -> Difference:
    values = list(by_fold.values())
    return Difference(figure, len(values), sum(value > 0 for value in values), sum(value < 0 for value in values))
