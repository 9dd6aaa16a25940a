"""Made-up rows and comparisons of a study, for tests of its checks and sentences."""

from __future__ import annotations

import math

from rightloss.metrics import Figure
from rightloss.study.config import StudyConfig
from rightloss.study.results import CellKey
from rightloss.study.summary import CellPair, CellSummary, PairedFigure

CONFIG = StudyConfig("table1", losses=("information-gain", "published", "weighted"))
BLIND = 0.999 * math.log(0.999) + 0.001 * math.log(0.001)


def key(loss: str, population: float) -> CellKey:
    return CellKey("contours", "rebalanced", "convnet", "categorical", "population", "map", population, loss)


def row(loss: str, population: float, skill: Figure, tpr: Figure | None = None, **others: Figure) -> CellSummary:
    figures = {
        "skill": skill,
        "expected_log_likelihood": Figure(BLIND * (1 - skill.value), BLIND * (1 - skill.low), BLIND * (1 - skill.high)),
        "tpr": Figure(0.0, 0.0, 0.02) if tpr is None else tpr,
        "calibration_error": Figure(0.1, 0.0, 0.2),
        "mean_prediction": Figure(population, 0.9 * population, 1.1 * population),
        **others,
    }
    return CellSummary(key(loss, population), figures, 5, 1, 700, 400)


def comparison(
    ours: str, theirs: str, population: float, likelihood: Figure, auc: Figure, tpr: Figure | None = None, **others: Figure
) -> CellPair:
    about = "loss" if ours == "information-gain" else "published"
    figures = {"tpr": Figure(0.0, -0.1, 0.1) if tpr is None else tpr, **others}
    differences = {"expected_log_likelihood": PairedFigure(likelihood, 5, 3, 2), "auc": PairedFigure(auc, 5, 4, 1)}
    differences |= {name: PairedFigure(figure, 5, 3, 2) for name, figure in figures.items()}
    return CellPair(about, key(ours, population), key(theirs, population), differences)


BETTER, EVEN, WORSE = Figure(0.2, 0.1, 0.3), Figure(0.0, -0.1, 0.1), Figure(-0.2, -0.3, -0.1)
NEAR = Figure(0.0, -0.01, 0.01)
NONE = Figure(0.1, reason="no interval")


def all_rows(**skills: Figure) -> list[CellSummary]:
    default = {"information-gain": BETTER, "published": WORSE, "weighted": BETTER} | {
        name.replace("_", "-"): skill for name, skill in skills.items()
    }
    return [row(loss, rate, skill) for rate in (0.3, 0.001) for loss, skill in default.items()]


def all_comparisons(common: Figure = NEAR, rare: Figure = BETTER, rare_published: Figure = BETTER) -> list[CellPair]:
    return [
        comparison("information-gain", "published", 0.3, EVEN, EVEN),
        comparison("information-gain", "weighted", 0.3, common, EVEN),
        comparison("published", "weighted", 0.3, common, NEAR),
        comparison("information-gain", "weighted", 0.001, EVEN, rare),
        comparison("published", "weighted", 0.001, EVEN, rare_published),
    ]
