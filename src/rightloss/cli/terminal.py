"""What the commands print: tables, sentences, JSON, progress and errors.

Stage: titles, rows, findings and sentences → text on stdout, or one JSON document there; warnings, progress and errors → lines
on stderr, and an exit code: 2 for a wrong argument or file, 1 for the machine, 130 for Ctrl-C.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import math
import os
import re
import shlex
import shutil
import signal
import string
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ..extras import install
from .population import shares_text

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


Show = Callable[[float | int, int, str], None]
_EVERY = 60.0  # seconds between two lines
_SPEED = 600.0  # seconds over which the speed is measured, for the time left


@contextmanager
def progress(things: str) -> Iterator[Show]:
    """Yield a function that shows what is done (fractions included), how many `things` there are, and a few words."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    bar = Progress(
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TextColumn(f"of {{task.total:,}} {things}"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
        speed_estimate_period=_SPEED,
        get_time=lambda: time.monotonic(),  # the stream at the time of the call
    )
    task = bar.add_task("", total=0, visible=False)
    calls, last = 0, time.monotonic()

    def show(done: float | int, total: int, words: str) -> None:
        nonlocal calls, last
        calls += 1
        if calls <= 2:  # done by an earlier run: says nothing about the speed
            bar.reset(task, completed=done, total=total, description=words, visible=True)  # type: ignore[arg-type]
            return
        bar.update(task, completed=done, total=total, description=words)
        if bar.disable and done < total and time.monotonic() - last >= _EVERY:
            last = time.monotonic()
            left = bar.tasks[task].time_remaining
            text = words if left is None else f"{timedelta(seconds=round(left))} left"
            print(
                f"{done if isinstance(done, int) else round(done, 1):,} of {total:,} {things}; {text}",
                file=sys.stderr,
                flush=True,
            )

    with bar:
        yield show


# The extras of rightloss by the modules that they install, and the packages that have another name than their module.
_EXTRAS = {
    "torch": ("torch", "jaxtyping"),
    "table": ("typer", "rich", "sklearn", "pandas", "pyarrow", "lightgbm", "matplotlib", "safetensors", "filelock", "jinja2"),
    "study": ("pebble", "threadpoolctl"),
    "lidc": ("pydicom", "platformdirs"),
    "bayes": ("arviz_stats", "pyro"),
    "ray": ("ray",),
}
_PACKAGES = {"sklearn": "scikit-learn", "pyro": "pyro-ppl"}
running_options: dict[str, str] = {}  # of the running command, by the name of the argument: population → --population
_ARGUMENT = re.compile(r"`(?P<quoted>\w+)`|\b(?P<name>\w+)=(?P<value>'[^']*'|\"[^\"]*\"|[\w.+-]+\b)")
_SHARES = re.compile(r"\{[^{}]*\}")
_NO_MEMORY = re.compile("can't allocate memory|not enough memory|out of memory", re.IGNORECASE)  # torch's messages


@contextmanager
def plain_errors() -> Iterator[None]:
    """Print user errors in one line and exit; internal errors keep their traceback."""
    try:
        yield
    except KeyboardInterrupt:
        leave("interrupted; run again to resume", 130)
    except ModuleNotFoundError as error:
        if str(error).startswith("rightloss."):
            leave(str(error), 1)  # it says what to install
        missing = (error.name or "").partition(".")[0]
        extra = next((extra for extra, modules in _EXTRAS.items() if missing in modules), None)
        if extra is None:
            raise
        extra = "study" if extra == "table" and sys.argv[1:2] in (["study"], ["report"]) else extra  # it has these too
        leave(f"{_PACKAGES.get(missing, missing)} is needed for this: {install(extra)}", 1)
    except ImportError as error:
        if not isinstance(error.__cause__, ModuleNotFoundError):
            raise
        leave(str(error), 1)  # it says what to install
    except BrokenPipeError:  # the reader, such as `head`, has ended; Python's flush at exit would complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except ValueError as error:
        leave(str(error), 2)
    except OSError as error:
        leave(str(error), 1)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not _NO_MEMORY.search(str(error)):
            raise
        leave("out of memory: for a study, lower --batch-size, --views or --workers", 1)


@contextmanager
def quiet_exit() -> Iterator[None]:
    """End the process at once on Ctrl-C during imports: packages might catch the exception, and nothing is lost."""
    in_main = threading.current_thread() is threading.main_thread()
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler or not in_main:
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def require(*modules: str) -> None:
    """Raise ModuleNotFoundError if a module is not installed, before hours of work."""
    for name in modules:
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def leave(message: str, code: int) -> NoReturn:
    """Print the message to stderr and exit with the code."""
    print(f"rightloss: {printable(for_command_line(message))}", file=sys.stderr)
    # Without the cause, which would be shown as a traceback.
    raise SystemExit(code) from None


def for_command_line(text: str) -> str:
    """Return a message of the library with the running command's options in place of Python's arguments.

    `positive` becomes --positive, calibration='mean' becomes --calibration mean, and {'a': 0.9, 'b': 0.1} becomes a=0.9,b=0.1.
    """

    def option(found: re.Match[str]) -> str:
        name = running_options.get(found["quoted"] or found["name"])
        return found[0] if name is None else name if found["quoted"] else f"{name} {found['value']}"

    return _SHARES.sub(_shares, _ARGUMENT.sub(option, text)) if running_options else text


def _shares(found: re.Match[str]) -> str:
    """Return a dict of shares as it is typed."""
    try:
        shares = ast.literal_eval(found[0])
        return shlex.quote(shares_text(shares))
    except (ValueError, SyntaxError, AttributeError):  # something else in braces
        return found[0]


def printable(text: str) -> str:
    """Return text without control characters."""
    return "".join(sign if sign.isprintable() or sign == "\n" else "�" for sign in text)
