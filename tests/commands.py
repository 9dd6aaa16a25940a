"""The command line as tests run it: in this process, or as a shell would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from rightloss import cli

ROOT = Path(__file__).parent.parent


def invoke(*arguments: str) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(cli.application(), list(arguments))


def command(*arguments: str) -> list[str]:
    """Return what `rightloss` in a shell runs; Ctrl-C as from a terminal, which a parent in the background switches off."""
    module, _, function = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["rightloss"].partition(":")
    program = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    return [sys.executable, "-c", f"{program}from {module} import {function}; {function}()", *arguments]


def killed(arguments: list[str], folder: Path, when: Callable[[], bool]) -> None:
    """Start the command in `folder`, and kill it with SIGKILL as soon as `when` says so."""
    paths = os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command(*arguments), cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while not when():
            assert process.poll() is None, "it had ended before it was killed"
            time.sleep(0.001)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def ran(*arguments: object) -> Result:
    """Run a command in this process; it must succeed."""
    done = invoke(*map(str, arguments))
    assert done.exit_code == 0, done.output
    return done


def answer(*arguments: object) -> Any:
    """Return the JSON that a command prints, which must be all that it prints."""
    return json.loads(ran(*arguments, "--json").stdout)


def refused(words: str, *arguments: object, codes: tuple[int, ...] = (2,)) -> None:
    """Run a command in this process; it must end with these words, in a line or two on stderr, and print nothing else."""
    done = invoke(*map(str, arguments))
    assert done.exit_code in codes, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert (done.stdout, 1 <= len(done.stderr.splitlines()) <= 2) == ("", True), done.stderr
    assert done.stderr.startswith("rightloss: ")
    assert words in done.stderr
