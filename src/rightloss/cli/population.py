"""The population as users type it.

Stage: `0.001`, `0.1%`, `1/1000`, `12 of 3000` or `a=0.9,b=0.09,c=0.01`, → what `rightloss.tabular` takes, and back.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..prevalence import Prevalence

    Parsed = float | dict[Hashable, float] | Prevalence

_NUMBER = r"(?:\d+\.?\d*(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?)"
_SHARE = re.compile(rf"(?P<number>{_NUMBER})\s*(?P<percent>%)?(?:\s*/\s*(?P<of>\d+\.?\d*))?", re.I)
_COUNTED = re.compile(r"(?P<found>\d+)\s+of\s+(?P<people>\d+)", re.I)
# A class and its share, up to the comma after the share: names may have commas, and anything in double quotes.
_PART = re.compile(
    rf'\s*(?:"(?P<quoted>(?:[^"]|"")+)"|(?P<label>.+?))\s*=\s*(?P<share>{_SHARE.pattern})\s*(?:,|$)', re.I | re.S
)
_SMALLEST = 1e-12  # figures at smaller frequencies are lost in rounding
_OFF = 1e-6  # tolerance for the sum of the shares
_ESTIMATE = " If you do not know it, estimate it first: `rightloss prevalence MODEL DATA`."
EXAMPLES = "0.001, 0.1%, 1/1000, '12 of 3000' counted in a survey, or a=0.9,b=0.1"


def parse_population(text: str) -> Parsed:
    """Return a frequency, frequencies by class, or the uncertain frequency from a survey's counts.

    `12 of 3000` is Beta(12.5, 2988.5), the posterior of Jeffreys' prior. A class whose name could be read as a class and its
    share is written in double quotes, which are doubled inside the name.

    Examples:
        >>> from rightloss.cli.population import parse_population
        >>> parse_population("1/1000"), parse_population("0.1%"), parse_population("benign=90%, malignant=1/10")
        (0.001, 0.001, {'benign': 0.9, 'malignant': 0.1})
        >>> parse_population("other, benign=0.9,malignant=0.1")
        {'other, benign': 0.9, 'malignant': 0.1}
    """
    if found := _COUNTED.fullmatch(text.strip()):
        return _counted(int(found["found"]), int(found["people"]))
    if "=" not in text:
        return _share(text)
    shares: dict[Hashable, float] = {}
    start = 0
    while start < len(text):
        part = _PART.match(text, start)
        label = part and (part["quoted"].replace('""', '"') if part["quoted"] else part["label"].strip())
        if not part or not label or label in shares:
            raise ValueError(
                f"Expected a share for each class, from 0 to 1, each once, but got {text!r}: write {EXAMPLES}; a class with an "
                'equals sign in its name in double quotes, "a=1,b"=0.9.'
            )
        shares[label], start = _share(part["share"], of_class=True), part.end()
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
    return shares_text(dict(zip(classes, exact, strict=True)))


def shares_text(shares: Mapping[Hashable, float]) -> str:
    """Return the shares by class as text for `parse_population`; a class is in double quotes if it must be."""
    return ",".join(f"{_class_text(str(label))}={share:.6g}" for label, share in shares.items())


def population_words(frequencies: Sequence[float], classes: Sequence[Hashable], positive: Hashable | None) -> str:
    """Return frequencies for a reader: those of the classes, or that of the positive one of two, with its name."""
    named = "" if positive is None or len(classes) > 2 else f" ({positive})"
    return f"{population_text(frequencies, classes, positive)}{named}"


def _class_text(label: str) -> str:
    """Return the name of a class, in double quotes if it could be read otherwise."""
    plain = label.strip() == label and not {'"', "="} & set(label)
    return label if plain else '"' + label.replace('"', '""') + '"'


def _counted(found: int, people: int) -> Prevalence:
    from ..prevalence import Prevalence

    if not 0 <= found <= people or not people:
        raise ValueError(f"Expected counts such as '12 of 3000', but got '{found} of {people}': which is the number of people?")
    return Prevalence.beta(found + 0.5, people - found + 0.5)


def _share(text: str, of_class: bool = False) -> float:
    found = _SHARE.fullmatch(text.strip())
    value = math.nan
    if found and not (found["percent"] and found["of"]):
        value = float(found["number"]) / (100 if found["percent"] else float(found["of"] or 1) or math.nan)
    if 0 < value < _SMALLEST or (not of_class and 1 - _SMALLEST < value < 1):
        raise ValueError(
            f"Expected a population of {_SMALLEST:g} or more, but got {text.strip()!r}: fewer than one of all people is none."
        )
    if not (0 <= value <= 1 if of_class else 0 < value < 1):  # the library rejects a class of 0
        unknown = _ESTIMATE if text.strip().casefold() == "unknown" else ""
        raise ValueError(f"Expected a population between 0 and 1, but got {text.strip()!r}: write {EXAMPLES}.{unknown}")
    return value
