"""Names and numbers as readers see them.

Stage: a `CellKey`, a `Figure`, a prevalence → a few words.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from ...card.words import counted
from ...metrics import Figure
from ..config import CONTOURS, StudyConfig
from ..methods import METHODS
from ..results import CellKey
from .comparisons import main_loss
from .contract import CONSTANT, LOG_LIKELIHOOD, Summary

NETS = {
    "convnet": "ConvNet",
    "inception": "InceptionNet",
    "fully-convolutional": "fully convolutional net",
    "gated": "gated net",
    "both": "image and metadata",
    "metadata": "metadata alone",
    "mlp": "MLP on features",
}
LIKELIHOODS = {
    "categorical": "softmax",
    "onion-peeling": "onion peeling",
    "stick-breaking": "stick breaking",
    "cumulative-logit": "cumulative logit",
}
INFERENCES = {
    "map": "one net",
    "ensemble": "ensemble",
    "mc-dropout": "MC dropout",
    "laplace": "Laplace",
    "variational": "variational",
    "sghmc": "SGHMC",
}
STARTS = {"population": "started at π", "equal": "started at equal classes"}
MINIBATCHES = {"rebalanced": "rebalanced minibatches", "raw": "raw minibatches"}
# Figures on the population's scale, where 0.999 and 0.9989 differ a lot.
_FINE = ("expected_log_likelihood", "weighted_accuracy", "npv", "brier", "calibration_error", "mean_prediction")


# What a study is about: its first kind of comparisons, among these.
_COMPARED = {
    "unlabelled": "Logit adjustment with the unlabelled patients, against without",
    "net": "Image and metadata together, against either alone",
    "inference": "Averages over many weights, against one net",
    "likelihood": "The likelihood of ordered ratings, against the softmax",
    "loss": "Against the other losses",
}
_TITLES = {
    "binary": "Which loss for the prevalence you will meet?",
    "rating": "Can a net rate nodules as readers do?",
    "balanced": "Image, metadata, or both, at the prevalence you will meet?",
}


def title(config: StudyConfig) -> str:
    """Return the report's heading."""
    if config.unlabelled:
        return "Do patients without a label help?"
    return "Which posterior for rare malignancy?" if len(config.inferences) > 1 else _TITLES[config.task]


def incomplete(summary: Summary) -> str:
    """Say that runs are missing; "" if none are."""
    if not summary.missing:
        return ""
    return (
        f"The study is incomplete: {summary.missing:,} of {counted(len(summary.config.runs()), 'run')} are missing, and this "
        "report covers the others. Run it again to go on."
    )


def headline(summary: Summary) -> list[str]:
    """Count the cases in which the default is better than always answering π, and than what it is compared with."""
    rows = [row for row in summary.rows if row.key.loss == main_loss(summary.config)]
    if not rows:
        return ["No run is done yet."]
    better, worse = (sum(test(row.figures["skill"]) for row in rows) for test in (is_better, is_worse))
    found = [
        f"Against always answering π, {METHODS[rows[0].key.loss].title}: clearly better in {better} of "
        f"{counted(len(rows), 'case')}, clearly worse in {worse or 'none'}."
    ]
    for about, words in _COMPARED.items():
        standings = [each.differences[LOG_LIKELIHOOD].standing for each in summary.comparisons if each.about == about]
        if standings:
            ahead, behind = standings.count("ahead"), standings.count("behind")
            comparisons = counted(len(standings), "comparison")
            return [*found, f"{words}: clearly better in {ahead} of {comparisons}, clearly worse in {behind or 'none'}."]
    return found


def is_better(skill: Figure) -> bool:
    """Return whether the interval is above always answering π."""
    return skill.low > 0


def is_worse(skill: Figure) -> bool:
    """Return whether it is below. A skill of −∞, from a probability of 0 for an observed class, has no interval."""
    return skill.high < 0 or skill.value == -math.inf


def method(key: CellKey, config: StudyConfig | None = None) -> str:
    """Return the loss, and with a config whether it learnt from unlabelled patients."""
    if key.loss == CONSTANT:
        return "always answering π"
    learnt = config is not None and config.unlabelled > 0 and METHODS[key.loss].takes_unlabelled
    return METHODS[key.loss].title + (", with unlabelled" if learnt else "")


def source(name: str) -> str:
    """Return the name of a data set."""
    return "readers' outlines" if name == CONTOURS else name


def net(key: CellKey, config: StudyConfig) -> str:
    """Return the net's name; in the study of metadata an image net is called by its input."""
    name = NETS[key.net]
    return f"image alone ({name})" if config.task == "balanced" and key.net not in ("both", "metadata", "mlp") else name


def where(key: CellKey, config: StudyConfig, *, without: Sequence[str] = ()) -> str:
    """Return the net and every other field that the study varies, except the loss and those in `without`."""
    parts = {
        "data": source(key.data) if len(config.sources) > 1 else "",
        "minibatches": MINIBATCHES[key.minibatches] if len(config.minibatches) > 1 else "",
        "net": net(key, config) if key.net else "",
        "likelihood": LIKELIHOODS[key.likelihood] if len(config.likelihoods) > 1 and key.likelihood else "",
        "start": STARTS[key.start] if len(config.starts) > 1 and key.start else "",
        "inference": INFERENCES[key.inference] if len(config.inferences) > 1 and key.inference else "",
        "population": "" if key.population is None else f"π = {key.population:g}",
    }
    return ", ".join(text for name, text in parts.items() if text and name not in without)


def panel_title(key: CellKey, config: StudyConfig, without: tuple[str, ...] = ()) -> str:
    """Return data and net, and other settings that vary or are unusual, except those in `without`."""
    parts = [source(key.data), where(key, config, without=("data", "population", "minibatches", *without))]
    if key.minibatches != "rebalanced" or len(config.minibatches) > 1:
        parts.append(MINIBATCHES[key.minibatches])
    return ", ".join(parts)


def file_name(title: str) -> str:
    """Return `title` in letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60] or "panel"


def decimals(name: str, population: float | None) -> int:
    """Return the number of decimals that distinguishes figures of that population."""
    if population is None or name not in _FINE:
        return 3
    return max(3, math.ceil(-math.log10(min(population, 1 - population)) - 1e-9) + 2)


def number(value: float, places: int, *, sign: bool = False) -> str:
    """Return a number with a real minus sign, or an en dash if it is not defined."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    text = f"{value:+.{places}f}" if sign else f"{value:.{places}f}"
    if float(text) == 0:
        text = text.replace("-", "").replace("+", "")
    return text.replace("-", "−")


def interval(figure: Figure, places: int, *, sign: bool = False) -> str:
    """Return "low to high", or "" if there is no interval."""
    if math.isnan(figure.low) or math.isnan(figure.high):
        return ""
    return f"{number(figure.low, places, sign=sign)} to {number(figure.high, places, sign=sign)}"


def with_interval(figure: Figure, places: int, *, sign: bool = False) -> str:
    """Return "value (low to high)"."""
    ends = interval(figure, places, sign=sign)
    return number(figure.value, places, sign=sign) + (f" ({ends})" if ends else "")


def difference(figure: Figure) -> str:
    """Return a difference and its interval, with two digits of the largest number and three places at least."""
    sizes = [abs(each) for each in (figure.value, figure.low, figure.high) if math.isfinite(each) and each != 0]
    places = 3 if not sizes else min(9, max(3, 1 - math.floor(math.log10(max(sizes)))))
    return with_interval(figure, places, sign=True)


def capitalised(text: str) -> str:
    """Return `text` with a capital first letter."""
    return text[:1].upper() + text[1:]
