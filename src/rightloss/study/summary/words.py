"""Names and numbers as readers see them.

Stage: a `CellKey`, a `Figure`, a population → a few words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...metrics import Figure
from ..config import CONTOURS, StudyConfig
from ..methods import METHODS
from ..pooled_predictions import CellKey
from .contract import CONSTANT

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
MINIBATCHES = {"rebalanced": "rebalanced minibatches", "raw": "raw minibatches"}
# On the population's scale, where 0.999 and 0.9989 are far apart.
_FINE = ("expected_log_likelihood", "weighted_accuracy", "npv", "brier", "calibration_error", "mean_prediction")


def method(key: CellKey) -> str:
    """The loss, and its marginal where that is not its own."""
    if key.loss == CONSTANT:
        return "always answering π"
    return METHODS[key.loss].title + ("" if key.marginal == "own" else f", {key.marginal} marginal")


def source(name: str) -> str:
    return "readers' outlines" if name == CONTOURS else name


def net(key: CellKey, config: StudyConfig) -> str:
    """In the study of metadata an image net is what it looks at."""
    name = NETS[key.net]
    return f"image alone ({name})" if config.task == "balanced" and key.net not in ("both", "metadata", "mlp") else name


def rate(population: float | None) -> str:
    return "the data's own shares" if population is None else f"π = {population:g}"


def where(key: CellKey, config: StudyConfig, *, without: Sequence[str] = ()) -> str:
    """What of a cell the study varies, but for its loss, and but for `without`; the net in any case."""
    parts = {
        "data": source(key.data) if len(config.sources) > 1 else "",
        "minibatches": MINIBATCHES[key.minibatches] if len(config.minibatches) > 1 else "",
        "net": net(key, config) if key.net else "",
        "likelihood": LIKELIHOODS[key.likelihood] if len(config.likelihoods) > 1 and key.likelihood else "",
        "inference": INFERENCES[key.inference] if len(config.inferences) > 1 and key.inference else "",
        "population": "" if key.population is None else rate(key.population),
    }
    return ", ".join(text for name, text in parts.items() if text and name not in without)


def decimals(name: str, population: float | None) -> int:
    """Enough to tell figures of that population apart."""
    if population is None or name not in _FINE:
        return 3
    return max(3, math.ceil(-math.log10(min(population, 1 - population)) - 1e-9) + 2)


def number(value: float, places: int, *, sign: bool = False) -> str:
    """With a real minus sign; an en dash for what is not defined."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    text = f"{value:+.{places}f}" if sign else f"{value:.{places}f}"
    if float(text) == 0:
        text = text.replace("-", "").replace("+", "")
    return text.replace("-", "−")


def interval(figure: Figure, places: int, *, sign: bool = False) -> str:
    """Nothing where there is none."""
    if math.isnan(figure.low) or math.isnan(figure.high):
        return ""
    return f"{number(figure.low, places, sign=sign)} to {number(figure.high, places, sign=sign)}"


def told(figure: Figure, places: int, *, sign: bool = False) -> str:
    """A figure with its interval, in a sentence."""
    ends = interval(figure, places, sign=sign)
    return number(figure.value, places, sign=sign) + (f" ({ends})" if ends else "")


def difference(figure: Figure) -> str:
    """With two digits of its largest number, and three places at least."""
    sizes = [abs(each) for each in (figure.value, figure.low, figure.high) if math.isfinite(each) and each != 0]
    places = 3 if not sizes else min(9, max(3, 1 - math.floor(math.log10(max(sizes)))))
    return told(figure, places, sign=True)


def listed(parts: Sequence[str]) -> str:
    """ "a, b and c"."""
    if len(parts) < 2:
        return parts[0] if parts else "none"
    return ", ".join(parts[:-1]) + f" and {parts[-1]}"


def counted(count: int, word: str) -> str:
    """ "1 fold", "5 folds"."""
    return f"{count:,} {word}" + ("" if count == 1 else "s")
