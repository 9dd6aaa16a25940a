"""How the page and its figures name things where `summary.words` has no name, or a longer one.

Stage: a `CellKey`, a share → a few words.
"""

from __future__ import annotations

import re

from ..config import StudyConfig
from ..methods import DEFAULT
from ..pooled_predictions import CellKey
from ..summary.words import MINIBATCHES, source, where

# In figures, where there is little room.
SHORT = {
    "information-gain": "information gain",
    "published": "as published",
    "weighted": "weighted",
    "logit-adjusted": "logit-adjusted",
    "corrected": "corrected after",
    "plain": "cross-entropy",
}


def short_method(key: CellKey) -> str:
    return SHORT[key.loss] + ("" if key.marginal == "own" else f", {key.marginal}")


def chief_loss(config: StudyConfig) -> str:
    """The loss that is shown where there is room for one: the default, or the first where the study has it not."""
    return DEFAULT if DEFAULT in config.losses else config.losses[0]


def one_in(rate: float) -> str:
    """A share as people say it: "1 in 1,000", "30 %"."""
    people = round(1 / rate)
    if rate <= 0.2 and abs(people * rate - 1) < 1e-6:
        return f"1 in {people:,}"
    return f"{100 * rate:.3g} %"


def panel_title(key: CellKey, config: StudyConfig, without: tuple[str, ...] = ()) -> str:
    """Data and net, and of the rest, but for `without`, what the study varies or what is unusual."""
    parts = [source(key.data), where(key, config, without=("data", "population", "minibatches", *without))]
    if key.minibatches != "rebalanced" or len(config.minibatches) > 1:
        parts.append(MINIBATCHES[key.minibatches])
    return ", ".join(parts)


def file_name(title: str) -> str:
    """Letters, digits and dashes alone."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60] or "panel"
