"""`rightloss` in a shell, up to the import of the package, which takes seconds.

Stage: the process as the shell started it → standard streams that take any text, Ctrl-C without a traceback → `rightloss.cli`.

It stands beside the package, since importing anything within imports torch. Nothing here imports more than Python itself.
"""

from __future__ import annotations

import codecs
import io
import os
import signal
import sys

# For terminals and pipes that know fewer letters: what the tables and messages have beyond ASCII.
_PLAIN = {
    **{"−": "-", "–": "-", "—": "-", "…": "...", "→": "->", "×": "x", "±": "+-", "½": "1/2", "²": "^2", "³": "^3", "∞": "inf"},
    **{"π": "pi", "ρ": "rho", "κ": "kappa", "Σ": "sum"},
}


def main() -> None:
    """The entry point."""
    open_closed_streams()
    spell_out()
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # and not ignored, as in the background
    if usual:
        signal.signal(signal.SIGINT, _leave)
    from rightloss.cli import main as run

    if usual:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def open_closed_streams() -> None:
    """What would go to a stream that the shell has closed, as by `>&-`, goes nowhere; no file gets its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))


def spell_out() -> None:
    """Letters that standard output and error cannot encode are written in ASCII, or as question marks."""
    codecs.register_error("rightloss", _spelled)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="rightloss")


def _spelled(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(sign, "?") for sign in error.object[error.start : error.end]), error.end


def _leave(*_: object) -> None:
    """At once: nothing has been done yet, and an exception might be caught on its way through other packages' imports."""
    os._exit(130)
