"""What a study found, as figures and sentences: all that tables and pages are made from.

Stage: `Row`s, `Comparison`s, `Check`s, sentences → `Summary` → `summary.json`, and back.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...metrics import Figure
from ..config import StudyConfig
from ..pooled_predictions import CellKey

CONSTANT = "constant"  # in the place of a loss: always answering π
Verdict = Literal["reproduces", "does not", "undecided"]
Standing = Literal["ahead", "behind", "undecided"]


@dataclass(frozen=True)
class Row:
    """A cell of the study, and its figures.

    Attributes:
        key: what its runs have in common; for the row that always answers π the loss is "constant" and the net "".
        figures: by name, as `rightloss.metrics.evaluate` names them; `auc` is the mean over folds and seeds. Of ratings, see
            `ratings.py`.
        folds, seeds: how many went into it.
        nodules, patients: how many were tested.
    """

    key: CellKey
    figures: Mapping[str, Figure]
    folds: int
    seeds: int
    nodules: int
    patients: int


@dataclass(frozen=True)
class Difference:
    """Ours less theirs, of one figure, on the same nodules.

    Attributes:
        figure: the difference and its interval.
        folds: in which it is defined.
        ahead: how many of them have ours ahead.
        behind: how many have theirs ahead.
    """

    figure: Figure
    folds: int
    ahead: int
    behind: int

    @property
    def standing(self) -> Standing:
        """Of ours: undecided where the interval holds 0, or there is none."""
        if self.figure.low > 0:
            return "ahead"
        return "behind" if self.figure.high < 0 else "undecided"


@dataclass(frozen=True)
class Comparison:
    """Two cells that differ in one respect.

    Attributes:
        about: in what: "loss" (ours is the default), "published" (ours is the published form, theirs the weighted loss),
            "net", "inference" or "likelihood".
        ours, theirs: the cells.
        differences: by figure: `expected_log_likelihood`, and for two classes `auc`.
    """

    about: str
    ours: CellKey
    theirs: CellKey
    differences: Mapping[str, Difference]


@dataclass(frozen=True)
class Check:
    """Whether something that the paper found shows here, too.

    Attributes:
        about: what, in a few words.
        where: data set, net, and whatever else the study varies.
        verdict: "reproduces", "does not" or "undecided".
        sentence: with the figures.
    """

    about: str
    where: str
    verdict: Verdict
    sentence: str


@dataclass(frozen=True)
class Summary:
    """What a study found.

    Attributes:
        config: of the study.
        missing: runs that are not done.
        question: what was asked, a paragraph.
        answer: what was found, in a few plain words; "" where the default loss was not run.
        rows: in the study's order; before the first row of a population and data set, the one that always answers π.
        comparisons: between rows.
        checks: of the paper's findings.
        findings: sentences for those who read no table; the first says so where the study is incomplete.
    """

    config: StudyConfig
    missing: int
    question: str
    answer: str
    rows: tuple[Row, ...]
    comparisons: tuple[Comparison, ...]
    checks: tuple[Check, ...]
    findings: tuple[str, ...]

    def to_json(self) -> str:
        """Without NaN: what is not defined is null."""
        content = {
            "config": self.config.to_dict(),
            "missing": self.missing,
            "question": self.question,
            "answer": self.answer,
            "rows": [_plain_row(row) for row in self.rows],
            "comparisons": [_plain_comparison(each) for each in self.comparisons],
            "checks": [vars(check) for check in self.checks],
            "findings": self.findings,
        }
        return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def read(cls, path: Path) -> Summary:
        """From `summary.json`."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                StudyConfig.from_dict(content["config"]),
                content["missing"],
                content["question"],
                content["answer"],
                tuple(_row(row) for row in content["rows"]),
                tuple(_comparison(each) for each in content["comparisons"]),
                tuple(Check(**check) for check in content["checks"]),
                tuple(content["findings"]),
            )
        except FileNotFoundError:
            raise ValueError(f"Expected a summary in {path}, but there is none: make the report first.") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(
                f"Expected {path} to hold the summary of a study, but it does not: make the report again."
            ) from error


def rounded(figure: Figure) -> Figure:
    """To nine digits: the last ones hang on the order in which a machine adds."""
    value, low, high = (float(f"{each:.9g}") for each in (figure.value, figure.low, figure.high))
    return Figure(value, low, high, figure.reason)


def _plain_row(row: Row) -> dict[str, Any]:
    figures = {name: _plain_figure(figure) for name, figure in row.figures.items()}
    return {**vars(row), "key": row.key._asdict(), "figures": figures}


def _row(content: dict[str, Any]) -> Row:
    figures = {name: _figure(each) for name, each in content["figures"].items()}
    return Row(**{**content, "key": CellKey(**content["key"]), "figures": figures})


def _plain_comparison(comparison: Comparison) -> dict[str, Any]:
    differences = {name: {**vars(each), "figure": _plain_figure(each.figure)} for name, each in comparison.differences.items()}
    keys = {"ours": comparison.ours._asdict(), "theirs": comparison.theirs._asdict()}
    return {"about": comparison.about, **keys, "differences": differences}


def _comparison(content: dict[str, Any]) -> Comparison:
    differences = {
        name: Difference(**{**each, "figure": _figure(each["figure"])}) for name, each in content["differences"].items()
    }
    return Comparison(content["about"], CellKey(**content["ours"]), CellKey(**content["theirs"]), differences)


def _plain_figure(figure: Figure) -> dict[str, Any]:
    numbers = {name: _plain(getattr(figure, name)) for name in ("value", "low", "high")}
    return {**numbers, "reason": figure.reason} if figure.reason else numbers


def _figure(content: dict[str, Any]) -> Figure:
    value, low, high = (math.nan if content[name] is None else float(content[name]) for name in ("value", "low", "high"))
    return Figure(value, low, high, content.get("reason", ""))


def _plain(number: float) -> float | str | None:
    """JSON has neither NaN nor infinity."""
    if math.isnan(number):
        return None
    return number if math.isfinite(number) else str(number)
