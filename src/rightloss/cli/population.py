"""The population as users type it.

Stage: `0.001`, `0.1%`, `1/1000`, `12/3000`, `0.3%-2%` or `a=0.9,b=0.09,c=0.01` → what `rightloss.tabular` takes, and back.

A fraction `1/n` is one in n. A fraction of other whole numbers, `12/3000`, is a survey's count, and `12 of 3000` is always one:
Beta(12.5, 2988.5), the posterior of Jeffreys' prior. A range `0.3%-2%` is a 95 % interval: the Beta with these limits.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..prevalence import Prevalence

    Parsed = float | dict[Hashable, float] | Prevalence
    Rates = float | Prevalence | dict[str, float | Prevalence]

_NUMBER = r"(?:\d+\.?\d*(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?)"
_ONE = rf"{_NUMBER}\s*(?:%|/\s*\d+\.?\d*)?"
_SHARE = re.compile(rf"(?P<number>{_NUMBER})\s*(?P<percent>%)?(?:\s*/\s*(?P<of>\d+\.?\d*))?", re.I)
_COUNTED = re.compile(r"(?P<found>\d+)(?P<sign>\s+of\s+|\s*/\s*)(?P<people>\d+)", re.I)
_RANGE = re.compile(rf"(?P<low>{_ONE})\s*(?:-|–|\bto\b)\s*(?P<high>{_ONE})", re.I)
# A class and its share, up to the comma after the share: names may have commas, and anything in double quotes.
_PART = re.compile(
    rf'\s*(?:"(?P<quoted>(?:[^"]|"")+)"|(?P<label>.+?))\s*=\s*(?P<share>{_ONE}|\d+\s+of\s+\d+|{_ONE}\s*(?:-|–|to)\s*{_ONE})'
    r"\s*(?:,|$)",
    re.I | re.S,
)
_SMALLEST = 1e-12  # figures at smaller frequencies are lost in rounding
_OFF = 1e-6  # tolerance for the sum of the shares
_LIMITS = (0.025, 0.975)  # of a range
_ESTIMATE = " If you do not know it, estimate it first: `rightloss prevalence MODEL DATA`."
EXAMPLES = "0.001, 0.1%, 1/1000, 12/3000 counted in a survey, a range 0.3%-2%, or a=0.9,b=0.1"


def parse_population(text: str) -> Parsed:
    """Return a frequency, an uncertain one, or frequencies by class; say on standard error how an uncertain one was read.

    A class whose name could be read as a class and its share is written in double quotes, which are doubled inside the name. By
    class, fractions are shares.

    Examples:
        >>> from rightloss.cli.population import parse_population
        >>> parse_population("1/1000"), parse_population("0.1%"), parse_population("benign=90%, malignant=1/10")
        (0.001, 0.001, {'benign': 0.9, 'malignant': 0.1})
        >>> parse_population("other, benign=0.9,malignant=0.1")
        {'other, benign': 0.9, 'malignant': 0.1}
    """
    if "=" not in text:
        return _rate(text)
    shares: dict[Hashable, float] = {label: _share(share, of_class=True) for label, share in _by_name(text).items()}
    if abs(math.fsum(shares.values()) - 1) > _OFF:
        raise ValueError(f"Expected shares that sum to 1, but got {math.fsum(shares.values()):g}: correct {text!r}.")
    return shares


def parse_rates(text: str) -> Rates:
    """Return a rate for all findings, or rates by finding, which need not sum to 1; each may be uncertain.

    Examples:
        >>> from rightloss.cli.population import parse_rates
        >>> parse_rates("mass=5%,nodule=1/100")
        {'mass': 0.05, 'nodule': 0.01}
    """
    return {label: _rate(share, label) for label, share in _by_name(text).items()} if "=" in text else _rate(text)


def parse_mix(text: str, rates: bool = False) -> float | dict[Hashable, float]:
    """Return the mix at which scores hold: as `parse_population` (or `parse_rates`), but exactly what was written.

    Examples:
        >>> from rightloss.cli.population import parse_mix
        >>> parse_mix("500/2000")
        0.25
    """
    if "=" in text and rates:
        return {label: _share(share) for label, share in _by_name(text).items()}
    return parse_population(text) if "=" in text else _share(text.replace(" of ", "/"))  # type: ignore[return-value]


def _by_name(text: str) -> dict[str, str]:
    """Return the text of each share by the name of its class or finding."""
    shares: dict[str, str] = {}
    start = 0
    while start < len(text):
        part = _PART.match(text, start)
        label = part and (part["quoted"].replace('""', '"') if part["quoted"] else part["label"].strip())
        if not part or not label or label in shares:
            raise ValueError(
                f"Expected a share for each class, from 0 to 1, each once, but got {text!r}: write {EXAMPLES}; a class with an "
                'equals sign in its name in double quotes, "a=1,b"=0.9.'
            )
        shares[label], start = part["share"], part.end()
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


def interval_words(population: Prevalence) -> str:
    """Return the mean of an uncertain frequency of two classes with its 95 % interval, for a reader."""
    low, high = _quantiles(*population.concentration[::-1])  # type: ignore[index]
    return f"a mean of {float(population.population[1]):.4g}, 95 % interval {low:.3g} to {high:.3g}"


def _class_text(label: str) -> str:
    """Return the name of a class, in double quotes if it could be read otherwise."""
    plain = label.strip() == label and not {'"', "="} & set(label)
    return label if plain else '"' + label.replace('"', '""') + '"'


def _rate(text: str, name: str = "") -> float | Prevalence:
    """Return a frequency: a number, or an uncertain one from a survey's count or from a range."""
    counted, between = _forms(text)
    if counted:
        beta = _counted(int(counted["found"]), int(counted["people"]))
    elif between:
        beta = _between(_share(between["low"]), _share(between["high"]), text)
    else:
        return _share(text)
    of = f" of {name}" if name else ""
    print(f"rightloss: note: the population{of} is {population_source(text)}: {interval_words(beta)}.", file=sys.stderr)
    return beta


def population_source(text: str) -> str:
    """Return in words what was typed: a survey, a range, or a number.

    Examples:
        >>> from rightloss.cli.population import population_source
        >>> population_source("12/3000")
        'from a survey that counted 12 of 3,000'
    """
    counted, between = _forms(text)
    if counted:
        return f"from a survey that counted {int(counted['found']):,} of {int(counted['people']):,}"
    return f"given as the range {text.strip()}, read as a 95 % interval" if between else f"given as {text.strip()}"


def _forms(text: str) -> tuple[re.Match[str] | None, re.Match[str] | None]:
    """Return the parts of a survey's count and of a range, if the text is one."""
    counted = _COUNTED.fullmatch(text.strip())
    is_share = counted and counted["sign"].strip() == "/" and counted["found"] == "1"  # 1/3000 is one in 3,000
    return None if is_share else counted, _RANGE.fullmatch(text.strip())


def _counted(found: int, people: int) -> Prevalence:
    from ..prevalence import Prevalence

    if not 0 <= found <= people or not people:
        raise ValueError(
            f"Expected counts of a population such as 12/3000, but got {found} of {people}: which is the number of people?"
        )
    return Prevalence.beta(found + 0.5, people - found + 0.5)


def _between(low: float, high: float, text: str) -> Prevalence:
    """Return the Beta with these 2.5 % and 97.5 % quantiles."""
    import numpy as np
    from scipy.optimize import root
    from scipy.special import expit, logit

    from ..prevalence import Prevalence

    if not low < high:
        raise ValueError(
            f"Expected a range of the population from low to high, but got {text.strip()!r}: write both ends alike, 0.3%-2%."
        )
    ends = logit([low, high])
    mean, width = expit(ends.mean()), (ends[1] - ends[0]) / 3.92
    start = np.log(max(1.0, 1 / (width**2 * mean * (1 - mean))) * np.array([mean, 1 - mean]))
    with np.errstate(all="ignore"):
        found = root(lambda logs: logit(_quantiles(*np.exp(logs))) - ends, start)
        a, b = np.exp(found.x).tolist()
        if not np.allclose(_quantiles(a, b), [low, high], rtol=1e-6):
            raise ValueError(
                f"Expected a range of the population that a Beta distribution can have, but got {text.strip()!r}: narrow it."
            )
    return Prevalence.beta(a, b)


def _quantiles(a: float, b: float) -> Sequence[float]:
    """Return the 2.5 % and 97.5 % quantiles of a Beta distribution."""
    from scipy.special import betaincinv

    return betaincinv(a, b, _LIMITS)


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
