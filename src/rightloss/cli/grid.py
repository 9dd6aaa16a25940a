"""The grid that options ask for.

Stage: name of a preset, options → `StudyConfig`; option → what the presets have in its place, in words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..study.config import OF_TABLES, Source, StudyConfig
from ..study.presets import PRESETS
from .errors import require

TOY = "toy"
NAMES = (TOY, *PRESETS)
# By option: the field of `StudyConfig` or of `Training` that it overrides.
GRID = {
    "data": "sources",
    "net": "nets",
    "loss": "losses",
    "prevalence": "populations",
    "likelihood": "likelihoods",
    "marginal": "marginals",
    "inference": "inferences",
    "minibatches": "minibatches",
    "folds": "folds",
    "num_folds": "num_folds",
    "seeds": "seeds",
    "evidence": "evidence",
}
TRAINING = {
    "steps": "steps",
    "batch_size": "batch_size",
    "views": "views",
    "test_views": "test_views",
    "learning_rate": "learning_rates",
    "checkpoints": "checkpoints",
    "weight_decay": "weight_decay",
    "averaging": "averaging",
    "prior_scale": "prior_scales",
    "precision": "precision",
    "members": "members",
    "small": "small",
}

# By option: the inferences that take it up.
_USED_BY = {"members": ("ensemble", "mc-dropout"), "prior_scale": OF_TABLES}


def configured(preset: str, options: Mapping[str, Any]) -> StudyConfig:
    """The preset with what is given in its place; the files that are given are looked at last, and read whole.

    Raises:
        ValueError, FileNotFoundError: an option or a file that makes no study.
        ModuleNotFoundError: what an inference needs is not installed.
    """
    base = PRESETS[preset]
    training = {TRAINING[name]: _plain(value) for name, value in options.items() if name in TRAINING}
    chosen = {GRID[name]: _plain(value) for name, value in options.items() if name in GRID and name != "data"}
    if "prevalence" in options:
        chosen["populations"] = tuple(_prevalence(text) for text in options["prevalence"])
    config = replace(base, **chosen, training=replace(base.training, **training))
    if not config.runs():
        raise ValueError(f"Expected a loss that takes the marginals {config.marginals}, but got none: add --marginal own.")
    _check_use(config, options)
    require(*(["posteriors"] if "sghmc" in config.inferences else []))
    return _with_data(config, options.get("data"))


def default_of(option: str) -> str:
    """What the presets have: what most of them have first, then the others by name; "" for what is no part of the grid."""
    if option not in GRID and option not in TRAINING:
        return ""
    by_value: dict[str, list[str]] = {}
    for name, config in PRESETS.items():
        value = getattr(config, GRID[option]) if option in GRID else getattr(config.training, TRAINING[option])
        by_value.setdefault(words(value), []).append(name)
    usual, *others = sorted(by_value.items(), key=lambda item: -len(item[1]))
    return "; ".join([usual[0], *(f"{', '.join(names)}: {value}" for value, names in others)])


def words(value: Any) -> str:
    """A value of the grid, for people."""
    if isinstance(value, tuple):
        return ", ".join(map(words, value))
    if isinstance(value, bool):
        return "small" if value else "full"
    if isinstance(value, Source):
        return value.name
    return "the data's own shares" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _with_data(config: StudyConfig, data: list[str] | None) -> StudyConfig:
    from ..study.datasets import check_sources, source_of

    if data is not None:
        config = replace(config, sources=tuple(map(source_of, data)))
    check_sources(config)
    return config


def _prevalence(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"Expected a prevalence between 0 and 1, but got {text!r}: a number such as 0.001.") from None


def _check_use(config: StudyConfig, options: Mapping[str, Any]) -> None:
    """Refuses what nothing in the grid would take up."""
    for name, inferences in _USED_BY.items():
        if name in options and not set(inferences) & set(config.inferences):
            raise ValueError(
                f"Expected --{name.replace('_', '-')} with an inference among {words(inferences)}, but got "
                f"{words(config.inferences)}: leave it out."
            )


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
