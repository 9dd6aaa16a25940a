"""The Makefile does what it says and nothing twice; `.ci/run` looks for a browser, then hands over to `make test`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TARGETS = "help study toy test tables fast slow extras lint notebooks bench docs dist clean".split()

pytestmark = pytest.mark.skipif(not shutil.which("make") or not shutil.which("bash"), reason="make or bash is missing")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What make looks at, without an environment."""
    for name in ("Makefile", "constraints.txt", "requirements-dev.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def printed(checkout: Path, *arguments: str) -> list[str]:
    """By a make that does not know of another, which may be running these tests."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(["make", *arguments], cwd=checkout, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def commands(checkout: Path, target: str) -> list[str]:
    """What make would do."""
    return printed(checkout, "-n", target)


def stamp(checkout: Path, *names: str) -> None:
    (checkout / ".venv").mkdir(exist_ok=True)
    for name in names:
        (checkout / ".venv" / name).touch()


def test_make_alone_lists_the_targets(checkout: Path) -> None:
    listed = [line.split() for line in printed(checkout)]
    assert [words[0] for words in listed] == TARGETS
    assert all(len(words) > 2 for words in listed)


@pytest.mark.parametrize(("target", "preset"), [("study", "quick"), ("toy", "toy")])
def test_a_study_sets_up_what_it_needs_once(checkout: Path, target: str, preset: str) -> None:
    run = f".venv/bin/rightloss study {preset} --out results/{preset}"
    first = commands(checkout, target)
    assert "-m venv .venv" in first[0]
    assert next(line for line in first if "pip install" in line).endswith("-c constraints.txt -e '.[study,lidc]'")
    assert not any("requirements-dev" in line for line in first)
    assert first[-1] == run
    stamp(checkout, ".created", ".study")
    assert commands(checkout, target) == [run]


def test_tests_add_to_what_studies_have(checkout: Path) -> None:
    stamp(checkout, ".created", ".study")
    assert next(line for line in commands(checkout, "slow") if "pip install" in line).endswith("-r requirements-dev.txt")
    stamp(checkout, ".test")
    assert commands(checkout, "slow") == [".venv/bin/python -m pytest -m slow --ignore tests/test_extras.py"]


def test_the_workflow_calls_targets_that_are_there() -> None:
    called = re.findall(r"run: make (\w+)", (ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8"))
    assert called == ["test", "tables"]
    assert set(called) <= set(TARGETS)


def ci(tmp_path: Path, **programs: str) -> subprocess.CompletedProcess[str]:
    """`.ci/run` where there are no other programs than these, each a script."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    place = tmp_path / "programs"
    place.mkdir()
    for name, script in {"dirname": f'exec {shutil.which("dirname")} "$@"', **programs}.items():
        (place / name.replace("_", "-")).write_text(f"#!{shutil.which('bash')}\n{script}\n")
        (place / name.replace("_", "-")).chmod(0o755)
    command = [str(shutil.which("bash")), str(tmp_path / ".ci" / "run")]
    return subprocess.run(command, env={"PATH": str(place)}, capture_output=True, text=True)


INSTALLS = 'echo "$@" >> asked; echo chatter'


@pytest.mark.parametrize("browser", ["chromium", "chromium_browser", "google_chrome", ""])
def test_a_browser_is_taken_or_installed(tmp_path: Path, browser: str) -> None:
    there = {browser: ""} if browser else {}
    done = ci(tmp_path, id="echo 0", apt_get=INSTALLS, make='echo "make $@"', **there)
    assert (done.returncode, done.stdout, done.stderr) == (0, "make test\n", "")
    asked = (tmp_path / "asked").read_text().splitlines() if (tmp_path / "asked").exists() else []
    assert asked == ([] if browser else ["-qq update", "-qq install -y --no-install-recommends chromium"])


def test_a_browser_that_cannot_be_installed_gives_a_warning_and_the_tests_run(tmp_path: Path) -> None:
    done = ci(tmp_path, id="echo 0", apt_get="exit 100", make='echo "make $@"')
    assert (done.returncode, done.stdout) == (0, "make test\n")
    assert "chromium could not be installed" in done.stderr


def test_other_users_install_nothing(tmp_path: Path) -> None:
    done = ci(tmp_path, id="echo 1000", apt_get=INSTALLS, make='echo "make $@"')
    assert (done.stdout, done.stderr, (tmp_path / "asked").exists()) == ("make test\n", "", False)


def test_ci_has_the_exit_code_of_make(tmp_path: Path) -> None:
    assert ci(tmp_path, id="echo 1000", make="exit 2").returncode == 2
