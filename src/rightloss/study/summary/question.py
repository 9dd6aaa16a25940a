"""What a study asked, in a paragraph: trained on what, for which population, tested how.

Stage: `StudyResults` → sentences.
"""

from __future__ import annotations

import numpy as np

from ..config import CONTOURS, StudyConfig
from ..results import DataSummary, StudyResults
from . import words

_MINIBATCHES = {
    "rebalanced": "minibatches in which all classes are equally frequent",
    "raw": "minibatches mixed as the data are",
}


def question_of(results: StudyResults) -> str:
    config = results.config
    data = "; ".join(_data(each, config.task) for each in results.data.values()) or "no run is done yet"
    return " ".join([f"Data: {data}.", _trained(config), _asked(config), _tested(config)])


def _data(data: DataSummary, task: str) -> str:
    what = "readers' outlines of lung nodules in LIDC-IDRI" if data.name == CONTOURS else f"nodules of {data.name}"
    counts = f"{len(data.labels):,} of {words.counted(len(np.unique(data.patients)), 'patient')}"
    if task == "rating":
        return f"{what} ({counts}), with the ratings that readers gave, 1 to 5"
    return f"{what} ({counts}), {int((data.labels == 1).sum()):,} of them malignant"


def _trained(config: StudyConfig) -> str:
    return f"Nets were trained on {words.listed([_MINIBATCHES[each] for each in config.minibatches])}."


def _asked(config: StudyConfig) -> str:
    if config.task == "rating":
        return "They were asked for probabilities where ratings are as frequent as readers gave them."
    shares = words.listed([f"{population:g}" for population in config.populations if population is not None])
    return f"They were asked for probabilities in a population where the share of malignant nodules, π, is {shares}."


def _tested(config: StudyConfig) -> str:
    folds = f"{config.folds} of {config.num_folds} folds" if config.folds < config.num_folds else f"all {config.folds} folds"
    seeds = "" if config.seeds == 1 else f", with {config.seeds} seeds"
    return (
        f"Each was tested on patients that it had not seen, in {folds}{seeds}; whatever was chosen was chosen on other "
        "patients still, by one rule for all losses. Intervals, of 95 %, say how far other patients might move a figure; "
        "training once more would move it, too."
    )
