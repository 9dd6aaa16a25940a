"""The entry point of the command `rightloss`, before the package is imported.

Stage: the process as the shell started it → standard streams that take any text, Ctrl-C without a traceback → `rightloss.cli`.

This module is outside the package, so that only the standard library is imported before Ctrl-C is handled.
"""

from __future__ import annotations

import codecs
import importlib.metadata
import io
import os
import signal
import sys

# Non-ASCII characters in tables and messages, for terminals and pipes that cannot encode them.
_PLAIN = {
    **{"−": "-", "–": "-", "—": "-", "…": "...", "→": "->", "×": "x", "±": "+-", "½": "1/2", "²": "^2", "³": "^3", "∞": "inf"},
    **{"π": "pi", "ρ": "rho", "κ": "kappa", "Σ": "sum"},
}


def main() -> None:
    """Run the command."""
    open_closed_streams()
    spell_out()
    if sys.argv[1:] == ["--version"]:  # at once
        return print(importlib.metadata.version("rightloss"))
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # and not ignored, as in the background
    if usual:
        signal.signal(signal.SIGINT, _leave)
    from rightloss.cli import main as run

    if usual:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def open_closed_streams() -> None:
    """Open the null device for each standard stream that the shell closed (`>&-`), so that no file gets its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))


def spell_out() -> None:
    """Let standard output and error replace characters they cannot encode by ASCII or question marks."""
    codecs.register_error("rightloss", _spelled)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="rightloss")


def _spelled(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(sign, "?") for sign in error.object[error.start : error.end]), error.end


def _leave(*_: object) -> None:
    """Exit immediately: no work is lost, and packages might catch an exception during their import."""
    os._exit(130)
