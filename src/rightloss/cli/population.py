"""The population as users type it.

Stage: `0.001`, `0.1%`, `1/1000` or `a=0.9,b=0.09,c=0.01`, → what `rightloss.tabular` takes, and back.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Sequence

_SHARE = re.compile(
    r"(?P<number>\d+\.?\d*(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?)\s*(?P<percent>%)?(?:\s*/\s*(?P<of>\d+\.?\d*))?", re.I
)
_OFF = 1e-6  # tolerance for the sum of the shares
_ESTIMATE = " If you do not know it, estimate it first: `rightloss prevalence MODEL DATA`."
EXAMPLES = "0.001, 0.1%, 1/1000, or a=0.9,b=0.1"


def parse_population(text: str) -> float | dict[Hashable, float]:
    """Return a frequency, or frequencies by class.

    Examples:
        >>> from rightloss.cli.population import parse_population
        >>> parse_population("1/1000"), parse_population("0.1%"), parse_population("benign=90%, malignant=1/10")
        (0.001, 0.001, {'benign': 0.9, 'malignant': 0.1})
    """
    if "=" not in text:
        return _share(text)
    shares: dict[Hashable, float] = {}
    for part in text.split(","):
        label, sign, share = part.rpartition("=")
        if not sign or not label.strip() or label.strip() in shares:
            raise ValueError(f"Expected a share for each class, each once, but got {text!r}: write {EXAMPLES}.")
        shares[label.strip()] = _share(share, of_class=True)
    if abs(math.fsum(shares.values()) - 1) > _OFF:
        raise ValueError(f"Expected shares that sum to 1, but got {math.fsum(shares.values()):g}: correct {text!r}.")
    return shares


def population_text(frequencies: Sequence[float], classes: Sequence[Hashable], positive: Hashable | None) -> str:
    """Return frequencies, in the order of the classes, as text for `parse_population`."""
    if len(classes) == 2 and positive is not None:
        share = frequencies[list(classes).index(positive)]
        return f"{share:.4g}" if 0 < float(f"{share:.4g}") < 1 else f"{share:.7g}"
    exact = [float(f"{each:.4g}") for each in frequencies]
    exact[max(range(len(exact)), key=exact.__getitem__)] += 1 - math.fsum(exact)
    return ",".join(f"{label}={share:.6g}" for label, share in zip(classes, exact, strict=True))


def _share(text: str, of_class: bool = False) -> float:
    found = _SHARE.fullmatch(text.strip())
    value = math.nan
    if found and not (found["percent"] and found["of"]):
        value = float(found["number"]) / (100 if found["percent"] else float(found["of"] or 1) or math.nan)
    if not (0 <= value <= 1 if of_class else 0 < value < 1):  # the library rejects a class of 0
        unknown = _ESTIMATE if text.strip().casefold() == "unknown" else ""
        raise ValueError(f"Expected a population between 0 and 1, but got {text.strip()!r}: write {EXAMPLES}.{unknown}")
    return value
