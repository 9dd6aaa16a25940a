"""User errors in one line.

Stage: an exception → a line on stderr and an exit code: 2 for a wrong argument or file, 1 for the machine, 130 for Ctrl-C.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from ..extras import install
from .population import shares_text

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
