"""Numbers as readers of the pages see them; `templates/page.js` has the same functions for figures that move.

Stage: shares, figures with limits, counts → text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import NamedTuple

_ROUNDING = 1e-12  # smaller values are shown as 0
_DASH = "–"  # a number that is not defined


class Shown(NamedTuple):
    """A figure as text; in tables the limits are below the value.

    Attributes:
        value: the figure.
        range: its limits as "low to high", "" if there are none.
    """

    value: str
    range: str = ""

    def __str__(self) -> str:
        return f"{self.value} ({self.range})" if self.range else self.value


def number(value: float | None, digits: int = 3, *, sign: bool = False) -> str:
    """Return a number with a few significant digits.

    Examples:
        >>> number(-0.01234), number(1234567.0), number(float("nan")), number(0.5, sign=True)
        ('−0.0123', '1,234,567', '–', '+0.5')
    """
    if value is None or math.isnan(value):
        return _DASH
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    value = value if abs(value) > _ROUNDING else 0.0
    large = 10 ** (digits - 1) <= abs(value) < 1e15
    text = f"{_rounded(value, 0):,.0f}" if large else f"{_significant(value, digits):.{digits}g}"
    return ("+" if sign and value > 0 else "") + text.replace("-", "−")


def percent(share: float | None) -> str:
    """Return a share in percent: three digits, and near 100 % two digits of what is missing.

    Examples:
        >>> percent(0.8), percent(0.01234), percent(0.99951), percent(1.0), percent(3e-9), percent(1 - 1e-12)
        ('80 %', '1.23 %', '99.951 %', '100 %', '<0.0001 %', '>99.9999 %')
    """
    if share is None or not math.isfinite(share):
        return _DASH
    rest = 100 * min(abs(share), abs(1 - share))
    if 0 < rest < 0.9999e-4:
        return ">99.9999 %" if share > 0.5 else "<0.0001 %"
    fewest, digits = (1, 2) if share > 0.5 else (0, 3)
    places = max(fewest, digits - 1 - math.floor(math.log10(rest))) if rest else 0
    text = f"{_rounded(100 * share, places):.{places}f}"
    return f"{text.rstrip('0').rstrip('.') if places else text} %".replace("-", "−")


def _rounded(value: float, places: int) -> Decimal:
    """Return a number with some decimals; ties are rounded away from 0, as JavaScript's `toFixed` does."""
    return Decimal(value).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP)


def _significant(value: float, digits: int) -> float:
    return float(Context(prec=digits, rounding=ROUND_HALF_UP).create_decimal(Decimal(value)))


def share(value: float) -> str:
    """Return how frequent something is: "1 in 1,000" if that is a round number, else in percent.

    Examples:
        >>> share(0.001), share(1 / 30), share(0.033), share(0.5), share(2.31e-7)
        ('1 in 1,000', '1 in 30', '3.3 %', '50 %', '1 in 4,300,000')
    """
    whole = round(1 / value) if value > _ROUNDING else 0
    slack = 0.005 if float(f"{whole:.0e}") == whole else 1e-6 if whole < 1e5 else 0.0
    if whole >= 5 and abs(whole * value - 1) < slack:
        return f"1 in {whole:,}"
    return f"1 in {float(f'{whole:.1e}'):,.0f}" if whole > 1e6 else percent(value)


def people(count: float) -> str:
    """Return a number of people, in whole people.

    Examples:
        >>> people(12.4), people(0.2), people(0.0), people(4321.0)
        ('12', '<1', '0', '4,321')
    """
    if not math.isfinite(count):
        return _DASH
    return "<1" if 0 < count < 0.5 else f"{math.floor(count + 0.5):,}"


def crowd(rate: float) -> int:
    """Return how many people to speak of where `rate` of them are ill: 1,000, or as many as make at least four of them ill.

    Examples:
        >>> crowd(0.3), crowd(0.006), crowd(0.001)
        (1000, 1000, 10000)
    """
    return 10 ** max(3, math.ceil(math.log10(4 / rate) - 1e-9)) if rate > _ROUNDING else 1000


def limits(low: float | None, high: float | None, of: Callable[[float], str] = number) -> str:
    """Return "low to high", with one unit for both; "" if there are no limits.

    If both are the same in whole people, they have decimals; if they still are, there is one of them.

    Examples:
        >>> limits(0.01, 0.025, percent), limits(-0.5, 0.25), limits(float("nan"), 1.0)
        ('1 to 2.5 %', '−0.5 to 0.25', '')
        >>> limits(6.71, 7.4, people), limits(0.02, 0.3, people), limits(1 - 1e-9, 1 - 1e-10, percent)
        ('6.7 to 7.4', '0.02 to 0.3', '>99.9999 %')
    """
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return ""
    first, last = of(low), of(high)
    if first == last and of is people:
        first, last = number(low, 2), number(high, 2)
    if first == last:
        return last
    return f"{first.removesuffix(' %') if last.endswith(' %') else first} to {last}"


def figure(value: float, low: float | None = None, high: float | None = None, of: Callable[[float], str] = number) -> Shown:
    """Return a figure with its limits.

    Examples:
        >>> str(figure(0.8, 0.75, 0.84, percent)), str(figure(0.8))
        ('80 % (75 to 84 %)', '0.8')
    """
    return Shown(of(value), limits(low, high, of))


def listed(parts: Sequence[str]) -> str:
    """Return "a, b and c"."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def counted(count: int, word: str) -> str:
    """Return "1 row", "2,000 rows"."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def markdown_text(text: object) -> str:
    """Return text as one line of Markdown that shows it as it is, also within a table.

    Examples:
        >>> print(markdown_text("<b>a|b</b> [x](y)"))
        &lt;b&gt;a\\|b&lt;/b&gt; \\[x\\](y)
    """
    line = " ".join(str(text).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join("\\" + each if each in "\\`*_[]|#~$" else each for each in line)
