"""What starts at once: the package's names and the commands load when they are used."""

from __future__ import annotations

import ast
import importlib
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from commands import command, invoke

import rightloss as rl
from rightloss.cli.commands import COMMANDS, load_command

HEAVY = {"torch", "numpy", "pandas", "sklearn", "jaxtyping"}
SOURCE = Path(rl.__file__)


def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
    environment = {**os.environ, "PYTHONPATH": paths, **more}
    return subprocess.run(arguments, env=environment, capture_output=True, text=True)


def test_importing_the_package_imports_nothing_heavy() -> None:
    done = run(sys.executable, "-c", "import rightloss, rightloss.cli, sys; print(*sys.modules)")
    assert done.returncode == 0, done.stderr
    assert not HEAVY & set(done.stdout.split())


@pytest.mark.long
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], [], ["chek"]], ids=["help", "version", "none", "unknown"])
def test_help_version_and_a_typing_error_import_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    for name in HEAVY:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} was imported')\n")
    paths = os.pathsep.join([str(tmp_path), *map(os.path.abspath, filter(None, sys.path))])
    done = run(*command(*arguments), PYTHONPATH=paths)
    assert "was imported" not in done.stdout + done.stderr
    assert done.returncode == (2 if arguments in ([], ["chek"]) else 0), done.stderr


@pytest.mark.long
@pytest.mark.parametrize("name", ["check", "fit", "predict", "evaluate", "prevalence"])
def test_the_help_of_a_command_for_tables_imports_nothing_heavy_and_has_two_examples(name: str) -> None:
    program = "import sys; from rightloss.cli import application as a\n"
    program += f"try: a()(['{name}', '--help'])\nfinally: print('modules', *sys.modules)"
    done = run(sys.executable, "-c", program)
    shown, _, modules = done.stdout.partition("modules ")
    assert not HEAVY & set(modules.split())
    assert shown.count(f"rightloss {name} ") >= 2
    assert "--json" in shown


def test_the_list_of_commands_says_what_each_says_of_itself() -> None:
    shown = invoke("--help")
    assert shown.exit_code == 0
    for name, known in COMMANDS.items():
        assert f" {name} " in shown.stdout
        (first, *_) = (load_command(name).help or "").splitlines()
        assert known[1].split(":")[0].split(",")[0].rstrip(".") in first, f"{name} says: {first}"


def test_a_typing_error_is_answered_with_the_command_that_was_meant() -> None:
    found = invoke("prevalance", "model", "new.csv")
    assert found.exit_code == 2
    assert "Did you mean 'prevalence'" in found.stderr


def test_the_shell_completes_commands_and_columns(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("patient;age;cancer\n1;50;yes\n")
    words = f"rightloss fit {tmp_path / 'data.csv'} --target ca"
    variables = {"COMP_WORDS": words, "COMP_CWORD": "4", "_RIGHTLOSS_COMPLETE": "complete_bash"}
    done = run(*_named("rightloss"), **variables)
    assert done.stdout.split() == ["cancer"], done.stderr
    done = run(*_named("rightloss"), **{**variables, "COMP_WORDS": "rightloss pre", "COMP_CWORD": "1"})
    assert done.stdout.split() == ["predict", "prevalence"], done.stderr
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # tests need not have been started from a shell
    assert "complete -o" in run(*_named("rightloss", "--show-completion", "bash"), **named).stdout


def _named(name: str, *arguments: str) -> list[str]:
    """Return a command whose process knows itself by that name."""
    program = f"import sys; sys.argv[0] = {name!r}; from rightloss_command import main; main()"
    return [sys.executable, "-c", program, *arguments]


def test_every_public_name_loads_and_is_the_one_of_its_module() -> None:
    for name in rl.__all__:
        assert getattr(rl, name) is not None
    assert rl.InformationGainLoss is importlib.import_module("rightloss.losses").InformationGainLoss
    assert "InformationGainLoss" in vars(rl), "looked up again and again"
    assert dir(rl) == sorted({*rl.__all__, "boosting", "sklearn", "tabular"})
    with pytest.raises(AttributeError, match="module 'rightloss' has no attribute 'InformationLoss'"):
        _ = rl.InformationLoss


def test_the_names_for_type_checkers_are_those_that_load() -> None:
    blocks = [each.body for each in ast.parse(SOURCE.read_text(encoding="utf-8")).body if isinstance(each, ast.If)]
    typed = {alias.asname for block in blocks for each in block if isinstance(each, ast.ImportFrom) for alias in each.names}
    assert typed | {"__version__"} == set(dir(rl))


@pytest.mark.long
def test_subpackages_that_can_be_called_are_both_whatever_is_imported_first() -> None:
    for first in ("rl.retarget", "importlib.import_module('rightloss.predictive.retarget')"):
        program = f"import importlib, rightloss as rl; {first}; import types\n"
        program += "print(*(callable(m) and isinstance(m, types.ModuleType) for m in (rl.predictive, rl.check)))"
        done = run(sys.executable, "-c", program)
        assert done.stdout.split() == ["True", "True"], done.stderr


def test_a_loss_survives_pickling_by_the_name_of_its_module() -> None:
    loss = rl.InformationGainLoss(rl.Prevalence.binary(0.1))
    assert type(pickle.loads(pickle.dumps(loss))) is rl.InformationGainLoss
