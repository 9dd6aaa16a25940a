"""The wheel in an empty environment: each extra installs and works, with the pinned versions and with the lowest declared.

Slow, and gigabytes of downloads: the lowest torch comes with its GPU libraries. `make extras` runs it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from smoke import PROGRAMS

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FOR_USERS = sorted({*PROJECT["optional-dependencies"]} - {"test", "test-table", "docs", "bench", "release", "dev"})


def requirements(extra: str) -> list[Requirement]:
    """Return what rightloss and one of its extras ask for, with the extras that it names."""
    texts = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"].get(extra, [])]
    named = [each for text in texts if (own := Requirement(text)).name == "rightloss" for each in own.extras]
    found = [Requirement(text) for text in texts if Requirement(text).name != "rightloss"]
    return found + [each for other in named for each in requirements(other)]


def lowest(needed: list[Requirement]) -> list[str]:
    """Return the requirements pinned to the lowest versions that they admit; of two bounds on one package, the higher."""
    bounds: dict[str, Version] = {}
    for requirement in needed:
        (bound,) = [Version(each.version) for each in requirement.specifier if each.operator == ">="]
        bounds[requirement.name] = max(bound, bounds.get(requirement.name, bound))
    return [f"{name}=={bound}" for name, bound in bounds.items()]


def test_each_extra_for_users_has_a_smoke_test() -> None:
    assert {*PROGRAMS} == {"core", *FOR_USERS}


def test_each_dependency_has_a_lower_bound_and_no_pin() -> None:
    for requirement in (each for extra in PROJECT["optional-dependencies"] for each in requirements(extra)):
        assert sorted({each.operator for each in requirement.specifier} - {"<"}) == [">="], requirement


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    pip(Path(sys.executable), "wheel", "--no-deps", "-w", str(folder), str(ROOT))
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Path]:
    """An empty environment's Python; removed afterwards, since it takes gigabytes."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    yield tmp_path / "venv" / "bin" / "python"
    shutil.rmtree(tmp_path / "venv")


def pip(python: Path, *arguments: str) -> None:
    done = subprocess.run([str(python), "-m", "pip", *arguments, "-q"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("versions", ["pinned", "lowest"])
@pytest.mark.parametrize("extra", PROGRAMS)
def test_an_extra_works_alone(extra: str, versions: str, wheel: Path, environment: Path, tmp_path: Path) -> None:
    constraints = ROOT / "constraints.txt"
    if versions == "lowest":
        constraints = tmp_path / "lowest.txt"
        constraints.write_text("\n".join(lowest(requirements(extra))))
    what = str(wheel) if extra == "core" else f"{wheel}[{extra}]"
    pip(environment, "install", "-c", str(constraints), what)
    smoke = shutil.copy(ROOT / "tests" / "smoke.py", tmp_path)
    done = subprocess.run([str(environment), smoke, extra], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    assert re.search(rf"rightloss\[{extra}\]: ok$", done.stdout)
