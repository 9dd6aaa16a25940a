"""Which correction for a population's prevalence should be the default? Every one of them, on the same rows of 24 data sets.

A *cell* is a data set, a model, a number of labelled rows of each class, and a draw, which splits the rows at random: labelled,
validation, unlabelled, test. Each method is judged at the set's natural prevalence and at those of `SHARES`, with the test rows
weighted by class. All methods have the same start, minibatches, steps, rates and decays, chosen on the same validation rows.
All of it takes 105 minutes of one core, a third of them for the cells with all labelled rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from . import claim_tables
from .claim_scores import Scores, can_stream, score_boosting, score_natural, score_nets, score_streams
from .claim_tables import BY_YEAR, CHOSEN_ON, REPORTED_ON, SHARES, SIZES
from .data_sets import IMAGES, SOURCES, DataSet, available, load
from .engine import Comparison
from .losses import LOGIT_ADJUSTED, Rows
from .streams import FEWEST, TESTED, of_each, parts_of, standardised

TRAINED_AT = (0, 3, 4)  # places of populations at which losses are trained that depend on π: the natural one, 0.01, 10⁻³
STREAMED_AT = (0, 4)
MOST_VALID = {50: 50, 200: 100, 1000: 250, 0: 250}  # by labelled rows of each class (0: all): validation rows of each class
BY_YEAR_SIZE, ENSEMBLES_TO = 200, 200  # labelled of each class: of the sets by year; at most, where there are ensembles
DRAWS, MOST_TESTED, MOST_UNLABELLED, MOST_LABELLED = 10, 4_000, 4_000, 5_000
Model = Literal["linear", "MLP", "ConvNet", "boosting"]


class Cell(NamedTuple):
    set: str
    model: Model
    labelled: int  # of each class; 0: all that there are
    draw: int


def cells() -> Iterator[Cell]:
    """Yield the cells that the rows suffice for: nets on tables first, then boosting, then images; small ones first."""
    sets = available((*CHOSEN_ON, *REPORTED_ON, *BY_YEAR))
    kinds: tuple[tuple[Model, ...], ...] = (("linear", "MLP"), ("boosting",), ("ConvNet",))
    for models in kinds:
        for size in SIZES:
            for name in sets:
                own = [model for model in models if (model == "ConvNet") == (name in IMAGES) and enough(name, size)]
                yield from (Cell(name, model, size, draw) for model in own for draw in range(DRAWS))


def enough(name: str, size: int) -> bool:
    """Return whether a size can be had; all rows count as a size where there are 1.3 times as many as the largest other."""
    if name in BY_YEAR:
        return size == BY_YEAR_SIZE
    rarest = min(SOURCES[name].counts) * (1 - TESTED)
    fits = [each for each in SIZES if each and rarest >= each + MOST_VALID[each] + FEWEST]
    return size in fits if size else min(rarest * 2 / 3, MOST_LABELLED) > 1.3 * max(fits, default=0)


def rows_of(data: DataSet, labelled: int, seed: int) -> Rows:
    """Return draw `seed`; test rows share no group with the others, validation rows none with labelled ones."""
    random = np.random.default_rng(seed)
    if data.source is None:
        test, first, second = parts_of(data.groups, len(data.y), random)
    else:  # tested is the population; two thirds of the others are for labelled rows, one for validation
        order = random.permutation(len(data.y))
        cut = np.quantile(order[data.source], [0.0, 2 / 3])[1]
        parts = (~data.source, data.source & (order < cut), data.source & (order >= cut))
        test, first, second = (random.permutation(np.flatnonzero(part)) for part in parts)
    natural = data.natural
    chosen, valid = of_each(data.y, first, labelled or MOST_LABELLED), of_each(data.y, second, MOST_VALID[labelled])
    rest = random.permutation(np.setdiff1d(np.concatenate([first, second]), np.concatenate([chosen, valid])))
    if data.source is not None:
        half = len(test) // 2
        rest, test = test[:half], test[half:]
    populations = np.stack([natural, *(with_share(natural, share) for share in SHARES)])
    unlabelled = {at: at_mix(data.y, rest, populations[at], MOST_UNLABELLED) for at in TRAINED_AT}
    x = standardised(data.x, np.concatenate([chosen, rest]))
    many = at_mix(data.y, test, with_share(natural, max(natural[-1], 0.25)), MOST_TESTED)
    as_met = first[: len(chosen)]
    y = torch.tensor(data.y)
    met = natural if data.source is None else np.bincount(data.y[data.source]) / data.source.sum()
    return Rows(
        x(chosen), y[chosen], x(as_met), y[as_met], x(valid), y[valid], x(many), y[many],
        {at: x(rows) for at, rows in unlabelled.items() if len(rows) >= FEWEST}, torch.from_numpy(populations).float(),
        torch.from_numpy(met).float(),
    )  # fmt: skip


def with_share(natural: np.ndarray, share: float) -> np.ndarray:
    """Return frequencies in which the class of interest has the share, and the others are as they are among themselves."""
    return np.append(natural[:-1] / natural[:-1].sum() * (1 - share), share)


def at_mix(y: np.ndarray, rows: np.ndarray, mix: np.ndarray, most: int) -> np.ndarray:
    """Return as many of the rows as there are at the mix, at most `most`; a class of less than one row may lack."""
    own = [rows[y[rows] == k] for k in range(len(mix))]
    total = min(most, *(max(len(each), 1) / share for each, share in zip(own, mix, strict=True)))
    return np.concatenate([each[: round(total * share)] for each, share in zip(own, mix, strict=True)])


def run(cell: Cell) -> list[dict[str, Any]]:
    """Train and score every method on a cell's draw."""
    rows = rows_of(load(cell.set), cell.labelled, cell.draw)
    scores = Scores(rows)
    if cell.model == "boosting":
        score_boosting(rows, scores, TRAINED_AT)
    else:
        ensembles = 0 < cell.labelled <= ENSEMBLES_TO and cell.model == "MLP"
        kept = score_nets(cell.model, rows, scores, TRAINED_AT, ensembles, cell.draw)
        score_natural(cell.model, rows, cell.draw, scores)
        if cell.model == "linear":
            decay = kept.decays[kept.names.index((LOGIT_ADJUSTED, 0, 0))]  # the best on the validation rows
            classifier = LogisticRegression(C=1 / (2 * decay * len(rows.y)), max_iter=1_000)
            scores.add_classifiers(classifier, rows, TRAINED_AT)
        for at in STREAMED_AT if can_stream(rows) else ():
            if at in rows.unlabelled and (at == 0 or cell.model == "linear"):
                score_streams(cell.model, rows, cell.draw, scores, at, kept)
    counts = (int((y == rows.y.max()).sum()) for y in (rows.y, rows.y_natural, rows.y_valid, rows.y_test))
    shared = dict(zip(claim_tables.POSITIVES, counts, strict=True)) | {"shift": scores.shift}
    populations = [{"share": float(pi[-1]), "guess": float(pi @ np.log(pi))} for pi in scores.populations]
    return [{**row, **populations[row["place"]], **shared} for row in scores.rows]


COMPARISONS = (Comparison("claim", cells, run, claim_tables.tables, claim_tables.draw, claim_tables.reduced),)
