"""The command that makes a study again.

Stage: `StudyConfig` → a line for the shell.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TypeVar

from ..config import CONTOURS, PRESETS, StudyConfig, Training, options_of

Config = TypeVar("Config", StudyConfig, Training)


def command(config: StudyConfig) -> str:
    """The preset, and options for whatever differs from it."""
    preset = PRESETS.get(config.preset, StudyConfig(config.preset, task=config.task, populations=config.populations))
    words = ["rightloss", "study", config.preset, "--out", "FOLDER"]
    if [source.name for source in config.sources] != [CONTOURS]:
        names = [source.name if source.name == CONTOURS else f"{source.name}.npz" for source in config.sources]
        words += [word for name in names for word in ("--data", name)]
    words += _differences(replace(config, sources=preset.sources), preset)
    words += _differences(config.training, preset.training)
    return shlex.join(words)


def _differences(own: Config, usual: Config) -> list[str]:
    """Return the options of the fields that differ, as the config has them beside its defaults."""
    words = []
    for field, option in options_of(type(own)).items():
        value = getattr(own, field)
        if value == getattr(usual, field):
            continue
        if isinstance(value, bool):
            words.append(f"--{option.name}" if value else "--full")
        else:
            values = value if isinstance(value, tuple) else (value,)
            words += [word for each in values if each is not None for word in (f"--{option.name}", f"{each}")]
    return words
