"""The examples run as they are, and so do the commands of the README."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
COMMAND = [sys.executable, "-c", "import sys; sys.argv[0] = 'rightloss'; from rightloss_command import main; main()"]

pytestmark = pytest.mark.long


def run(command: list[str], folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "MPLBACKEND": "agg"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    return done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_and_prints(example: Path, tmp_path: Path) -> None:
    assert run([sys.executable, str(example)], tmp_path).strip()


def test_the_list_of_examples_is_complete() -> None:
    listed = set(re.findall(r"\]\((\w+\.py)\)", (ROOT / "examples" / "README.md").read_text(encoding="utf-8")))
    assert listed == {example.name for example in EXAMPLES}


def test_the_commands_of_the_readme_run(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = [block for block in re.findall(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.M) if "rightloss fit" in block]
    printed = {}
    for line in block.splitlines():
        program, *arguments = shlex.split(line, comments=True)
        if program == "python":
            run([sys.executable, str(ROOT / arguments[0]), *arguments[1:]], tmp_path)
        else:
            assert program == "rightloss"
            printed[arguments[0]] = run([*COMMAND, *arguments], tmp_path)
    assert set(printed) == {"fit", "predict", "evaluate", "prevalence", "card"}
    assert all(text.strip() for text in printed.values())
    assert {"model", "predictions.csv"} <= {path.name for path in tmp_path.iterdir()}
    assert (tmp_path / "model" / "report.html").is_file()
