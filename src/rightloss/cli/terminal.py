"""Terminal output of the commands for tables.

Stage: titles, rows, findings and sentences → text on stdout, or one JSON document there; warnings → lines on stderr.
"""

from __future__ import annotations

import json
import math
import shlex
import shutil
import string
import sys
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import for_command_line, printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..tabular import Finding

WIDTH = 110  # of the output without a terminal
_ROUNDING = 1e-12  # smaller numbers are shown as 0
_PLAIN = set(string.ascii_letters + string.digits + " _-.,=/%+:@")  # in the shell's $'…'
_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None, left: int = 1) -> None:
    """Print a table; the first `left` columns are text, the others numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    shown = None if title is None else Text(printable(title))
    table = Table(title=shown, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))  # not read as rich markup
    _show(table)


def print_findings(findings: Iterable[Finding]) -> None:
    """Print the findings about a table, errors first, each with its column."""
    from rich.text import Text

    order = list(_STYLES)
    for finding in sorted(findings, key=lambda each: order.index(each.level)):
        words = for_command_line(str(finding)).removeprefix(finding.level)
        _show(Text(finding.level, _STYLES[finding.level]) + Text(printable(words)))


def findings_json(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Return the findings for JSON."""
    return [{**vars(each), "message": for_command_line(each.message)} for each in findings]


def print_sentences(*sentences: str) -> None:
    """Print sentences, one per line, as wide as the terminal or `WIDTH`."""
    for sentence in sentences:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
        print(textwrap.fill(printable(sentence), width, break_on_hyphens=False))


def print_next(*arguments: object) -> None:
    """Print the next command to type, on one line, quoted for the shell."""
    print(f"\nNext:\n  {command_line(*arguments)}")


def command_line(*arguments: object) -> str:
    """Return the shell command for these arguments; "…" stands for what the user has to fill in. No path is an option."""
    texts = [f"./{each}" if isinstance(each, Path) and str(each).startswith("-") else str(each) for each in arguments]
    return " ".join(map(_quoted, ["rightloss", *texts]))


def _quoted(argument: str) -> str:
    """Return an argument for the shell; one with control characters as bash, zsh and POSIX write them: $'\\x1b'."""
    if argument.isprintable():
        return argument if argument == "…" else shlex.quote(argument)
    octets = argument.encode("utf-8", "surrogateescape")
    return "$'" + "".join(chr(each) if chr(each) in _PLAIN else f"\\x{each:02x}" for each in octets) + "'"


def print_json(content: Any) -> None:
    """Print one JSON document; numbers that are not finite become null, and control characters are escaped."""
    text = json.dumps(_plain(content), indent=2, ensure_ascii=False, allow_nan=False)
    print("".join(sign if sign.isprintable() or sign == "\n" else json.dumps(sign)[1:-1] for sign in text))


def number(value: float | None, digits: int = 3) -> str:
    """Return a number with a few digits, or a dash if there is none."""
    if value is None or not math.isfinite(value):
        return "–"
    value = value if abs(value) > _ROUNDING else 0.0
    return f"{value:.{digits}g}".replace("-", "−") if not 1e5 <= abs(value) < 1e12 else f"{value:,.0f}".replace("-", "−")


def percent(value: float) -> str:
    """Return a share in percent: 0.1 %, 12 %, 99.9 %."""
    return f"{100 * value:.3g} %"


@contextmanager
def warnings_on_stderr() -> Iterator[list[str]]:
    """Print each warning of the library once, as one line on stderr; yield the list of warnings."""
    seen: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        try:
            yield seen
        finally:
            for each in caught:
                text = " ".join(printable(for_command_line(str(each.message))).split())
                if text not in seen and issubclass(each.category, UserWarning):
                    seen.append(text)
                    print(f"rightloss: warning: {text}", file=sys.stderr)


def _show(renderable: RenderableType) -> None:
    """Print a rich object as wide as the terminal, or `WIDTH`, without trailing spaces."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    with console.capture() as captured:
        console.print(renderable)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _plain(value: Any) -> Any:
    """Convert to dicts, lists, text and finite numbers."""
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | None) else str(value)
