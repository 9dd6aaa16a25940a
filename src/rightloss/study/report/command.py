"""The command that makes a study again.

Stage: `StudyConfig` → a line for the shell.
"""

from __future__ import annotations

import dataclasses
import shlex
from typing import Any

from ..config import CONTOURS, PRESETS, StudyConfig

_OPTIONS = {
    "nets": "--net",
    "losses": "--loss",
    "populations": "--prevalence",
    "likelihoods": "--likelihood",
    "marginals": "--marginal",
    "inferences": "--inference",
    "minibatches": "--minibatches",
    "folds": "--folds",
    "num_folds": "--num-folds",
    "seeds": "--seeds",
    "evidence": "--evidence",
}
_TRAINING = {
    "steps": "--steps",
    "batch_size": "--batch-size",
    "views": "--views",
    "test_views": "--test-views",
    "learning_rates": "--learning-rate",
    "checkpoints": "--checkpoints",
    "weight_decay": "--weight-decay",
    "averaging": "--averaging",
    "prior_scales": "--prior-scale",
    "precision": "--precision",
    "members": "--members",
}


def command(config: StudyConfig) -> str:
    """The preset, and options for whatever differs from it."""
    preset = PRESETS.get(config.preset, StudyConfig(config.preset, task=config.task, populations=config.populations))
    words = ["rightloss", "study", config.preset, "--out", "FOLDER"]
    if [source.name for source in config.sources] != [CONTOURS]:
        names = [source.name if source.name == CONTOURS else f"{source.name}.npz" for source in config.sources]
        words += [word for name in names for word in ("--data", name)]
    words += _differences(config, preset, _OPTIONS)
    words += _differences(config.training, preset.training, _TRAINING)
    if config.training.small != preset.training.small:
        words.append("--small" if config.training.small else "--full")
    return shlex.join(words)


def _differences(own: Any, usual: Any, options: dict[str, str]) -> list[str]:
    words = []
    for field in dataclasses.fields(own):
        value = getattr(own, field.name)
        if field.name in options and value != getattr(usual, field.name):
            values = value if isinstance(value, tuple) else (value,)
            words += [word for each in values if each is not None for word in (options[field.name], f"{each}")]
    return words
