"""Findings: what a user should know about a table, each with a level, a column and a sentence.

Stage: an observation in a table → `Finding`; all stages of `rightloss.tabular` collect them in lists.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Level = Literal["error", "warning", "note"]


class TableWarning(UserWarning):
    """Warn that a table differs from the training table: cells that are not numbers, or unknown categories.

    Examples:
        >>> import warnings
        >>> from rightloss.tabular import TableWarning
        >>> warnings.filterwarnings("ignore", category=TableWarning)
    """


@dataclass(frozen=True)
class Finding:
    """One thing to know about a table.

    Attributes:
        level: "error" (no model can be fitted), "warning" (the result may mislead) or "note".
        column: the column, if it is about one.
        message: a sentence that says what was found and what to do.

    Examples:
        >>> from rightloss.tabular import Finding
        >>> print(Finding("warning", "age", "3 of 1,000 cells are text"))
        warning: column 'age': 3 of 1,000 cells are text
    """

    level: Level
    column: str | None
    message: str

    def __str__(self) -> str:
        where = "" if self.column is None else f"column {self.column!r}: "
        return f"{self.level}: {where}{self.message}"


def warn_of(findings: Iterable[Finding], stacklevel: int = 2) -> None:
    """Warn of the warnings among findings."""
    for finding in findings:
        if finding.level == "warning":
            warnings.warn(str(finding).removeprefix("warning: "), TableWarning, stacklevel=stacklevel + 1)
