"""What a check hands out.

Stage: findings, the level of the whole table → `Check`.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

__all__ = ["Check", "CheckRow", "Finding", "p_value"]


@dataclass(frozen=True)
class CheckRow:
    """One question to a model, and the answer.

    Attributes:
        name: what was looked at.
        seen: what was seen, with an interval where there is one.
        expected: what a model that is right shows.
        p_value: how often a model that is right shows as much by chance; None where chance plays no part.
        verdict: "ok", "look" or "not tested".
        remedy: what to do where the verdict is "look", why not where it is "not tested", else empty.
    """

    name: str
    seen: str
    expected: str
    p_value: float | None
    verdict: Literal["ok", "look", "not tested"]
    remedy: str = ""


@dataclass(frozen=True, repr=False)
class Check:
    """What `check` found. Print it for a table.

    Attributes:
        rows: a `CheckRow` for each question.
        level: the share of right models that get "ok" in all rows.
        num_examples: how many examples of each class there were, votes counted in fractions.
    """

    rows: tuple[CheckRow, ...]
    level: float
    num_examples: tuple[float, ...]

    @property
    def ok(self) -> bool:
        """Whether no row says "look"."""
        return all(row.verdict != "look" for row in self.rows)

    def __getitem__(self, name: str) -> CheckRow:
        found = {row.name: row for row in self.rows}
        if name not in found:
            raise KeyError(f"there is no row {name!r}; there are {', '.join(found)}")
        return found[name]

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Plain numbers and words by the rows' names: `pandas.DataFrame(check.to_dict()).T`."""
        return {row.name: asdict(row) for row in self.rows}

    def __repr__(self) -> str:
        cells = [("", "seen", "expected", "p", ""), *map(_cells, self.rows)]
        widths = [max(len(line[column]) for line in cells) for column in range(5)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
        about: dict[str, list[str]] = {}
        for row in self.rows:
            about.setdefault(row.remedy, []).append(row.name)
        remarks = [f"- {', '.join(names)}: {remedy}" for remedy, names in about.items() if remedy]
        return "\n".join([self._title(), *("  " + line for line in lines), *remarks])

    def _repr_html_(self) -> str:
        def line(cells: Iterable[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        head = line(("", "seen", "expected", "p", "", "what to do"), "th")
        body = "".join(line((*_cells(row), row.remedy), "td") for row in self.rows)
        return f"<p>{html.escape(self._title())}</p><table>{head}{body}</table>"

    def _title(self) -> str:
        bad = [row.name for row in self.rows if row.verdict == "look"]
        counts = ", ".join(f"{count:g}" for count in self.num_examples[:6]) + (", …" if len(self.num_examples) > 6 else "")
        return f"{'Look at: ' + ', '.join(bad) if bad else 'Nothing seen to be wrong'} (examples by class: {counts})"


@dataclass(frozen=True)
class Finding:
    """A row before the level of its test is known.

    Attributes:
        name, expected, remedy: as in `CheckRow`.
        p_value: None where no test decides.
        wrong: the verdict then; None for "not tested".
        seen: words before the figure, or in its place.
        value: the figure.
        error: its standard error.
        weight: how many examples the figure rests on.
        looks: from how many figures this one was chosen.
        bounds: between which it lies.
    """

    name: str
    expected: str
    remedy: str
    p_value: float | None = None
    wrong: bool | None = None
    seen: str = ""
    value: float = math.nan
    error: float = math.nan
    weight: float = math.inf
    looks: int = 1
    bounds: tuple[float, float] = (-math.inf, math.inf)

    def row(self, size: float) -> CheckRow:
        """With a test of level `size`."""
        if self.p_value is None and self.wrong is None:
            return CheckRow(self.name, self.seen or "–", self.expected, None, "not tested", self.remedy)
        wrong = self.wrong if self.p_value is None else self.p_value < size
        seen = self.seen
        if not math.isnan(self.error):
            reach = _quantile(size / self.looks, self.weight) * self.error
            low, high = max(self.value - reach, self.bounds[0]), min(self.value + reach, self.bounds[1])
            seen += f"{self.value:.4g} ({low:.4g} to {high:.4g})"
        return CheckRow(self.name, seen, self.expected, self.p_value, "look" if wrong else "ok", self.remedy if wrong else "")


def p_value(distance: float, error: float, weight: float, looks: int = 1) -> float:
    """P(|T| ≥ distance/error), with Student's t of as many degrees of freedom as `weight` examples have; times `looks`.

    By Wallace's normal approximation, within 2 % from 10 examples on where p > 0.003; with fewer a little too large.
    """
    degrees = max(weight - 1, 1.0)
    score = math.sqrt(degrees * math.log1p((distance / error) ** 2 / degrees)) * (8 * degrees + 1) / (8 * degrees + 3)
    return min(1.0, looks * math.erfc(score / math.sqrt(2)))


def _quantile(size: float, weight: float) -> float:
    """The distance, in standard errors, at which `p_value` is `size`."""
    z = float(torch.special.ndtri(torch.tensor(1 - size / 2, dtype=torch.float64)))
    if math.isinf(weight):
        return z
    degrees = max(weight - 1, 1.0)
    z *= (8 * degrees + 3) / (8 * degrees + 1)
    return math.sqrt(degrees * math.expm1(min(z * z / degrees, 500.0)))


def _cells(row: CheckRow) -> tuple[str, str, str, str, str]:
    p = "" if row.p_value is None else "< 1e-6" if row.p_value < 1e-6 else f"{row.p_value:.2g}"
    return row.name, row.seen, row.expected, p, row.verdict
