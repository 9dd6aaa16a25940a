"""The command as a process of its own: what starts at once, streams that are closed or know few letters, and Ctrl-C."""

from __future__ import annotations

import ast
import codecs
import importlib
import io
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from commands import command, invoke
from nodule_files import small_archive
from study_results import fake_study
from table_files import people, write_people

import rightloss as rl
from rightloss.cli.commands import COMMANDS, load_command
from rightloss.cli.report import make_pages
from rightloss.study.config import PRESETS
from rightloss.study.results import read_study
from rightloss.tabular import fit_table

HEAVY = {"torch", "numpy", "pandas", "sklearn", "jaxtyping"}
SOURCE = Path(rl.__file__)
SIGNS = {"−": "-", "π": "pi", "½": "1/2", "–": "-", "…": "..."}


def run(*arguments: str, first: Path | None = None, more: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a process that finds modules as this one does, or in a folder before."""
    paths = os.pathsep.join([*([] if first is None else [str(first)]), *map(os.path.abspath, filter(None, sys.path))])
    return subprocess.run(arguments, env={**os.environ, "PYTHONPATH": paths, **(more or {})}, capture_output=True, text=True)


# What starts at once.


def test_importing_the_package_imports_nothing_heavy_and_its_command_only_the_standard_library() -> None:
    done = run(sys.executable, "-c", "import rightloss, rightloss.cli, sys; print(*sys.modules)")
    assert done.returncode == 0, done.stderr
    assert not HEAVY & set(done.stdout.split())
    program = "import sys; before = set(sys.modules); import rightloss_command; print(*set(sys.modules) - before)"
    imported = {name.partition(".")[0] for name in run(sys.executable, "-c", program).stdout.split()}
    assert "rightloss_command" in imported
    assert imported - {"rightloss_command"} <= sys.stdlib_module_names


@pytest.mark.long
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], [], ["chek"]], ids=["help", "version", "none", "unknown"])
def test_help_version_and_a_typing_error_import_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    for name in HEAVY:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} was imported')\n")
    done = run(*command(*arguments), first=tmp_path)
    assert "was imported" not in done.stdout + done.stderr
    assert done.returncode == (2 if arguments in ([], ["chek"]) else 0), done.stderr
    assert arguments != ["--version"] or done.stdout == f"{rl.__version__}\n"


@pytest.mark.long
def test_the_help_of_the_commands_for_tables_imports_nothing_heavy_and_has_two_examples() -> None:
    names = ["check", "fit", "predict", "evaluate", "prevalence", "card", "retarget"]
    program = "import sys; from rightloss.cli import application\nfor name in sys.argv[1:]:\n"
    program += "    application()([name, '--help'], standalone_mode=False)\n    print('modules', *sys.modules)"
    done = run(sys.executable, "-c", program, *names)
    pages = done.stdout.split("modules ")
    assert not HEAVY & set(pages[-1].split())
    for name, shown in zip(names, pages[:-1], strict=True):
        assert shown.count(f"rightloss {name} ") >= 2, done.stderr
        assert "--json" in shown


def test_the_list_of_commands_says_what_each_says_of_itself_and_a_typing_error_is_answered() -> None:
    shown = invoke("--help")
    assert shown.exit_code == 0
    for name, known in COMMANDS.items():
        assert f" {name} " in shown.stdout
        (first, *_) = (load_command(name).help or "").splitlines()
        assert known[1].split(":")[0].split(",")[0].rstrip(".") in first, f"{name} says: {first}"
    found = invoke("prevalance", "model", "new.csv")
    assert found.exit_code == 2
    assert "Did you mean 'prevalence'" in found.stderr


def test_the_shell_completes_commands_and_columns(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("patient;age;cancer\n1;50;yes\n")
    people(3).to_parquet(tmp_path / "data.parquet")
    variables = {"COMP_CWORD": "4", "_RIGHTLOSS_COMPLETE": "complete_bash"}
    for name in ("data.csv", "data.parquet"):
        done = run(*_named("rightloss"), more=variables | {"COMP_WORDS": f"rightloss fit {tmp_path / name} --target ca"})
        assert done.stdout.split() == ["cancer"], done.stderr
    done = run(*_named("rightloss"), more=variables | {"COMP_CWORD": "1", "COMP_WORDS": "rightloss pre"})
    assert done.stdout.split() == ["predict", "prevalence"], done.stderr
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # tests need not have been started from a shell
    assert "complete -o" in run(*_named("rightloss", "--show-completion", "bash"), more=named).stdout


def _named(name: str, *arguments: str) -> list[str]:
    """Return a command whose process knows itself by that name."""
    program = f"import sys; sys.argv[0] = {name!r}; from rightloss_command import main; main()"
    return [sys.executable, "-c", program, *arguments]


def test_every_public_name_loads_and_is_the_one_of_its_module() -> None:
    for name in rl.__all__:
        assert getattr(rl, name) is not None
    loss = rl.InformationGainLoss(rl.Prevalence.binary(0.1))
    assert type(pickle.loads(pickle.dumps(loss))) is importlib.import_module("rightloss.losses").InformationGainLoss
    assert "InformationGainLoss" in vars(rl), "looked up again and again"
    assert dir(rl) == sorted({*rl.__all__, "boosting", "sklearn", "tabular"})
    with pytest.raises(AttributeError, match="module 'rightloss' has no attribute 'InformationLoss'"):
        _ = rl.InformationLoss
    blocks = [each.body for each in ast.parse(SOURCE.read_text(encoding="utf-8")).body if isinstance(each, ast.If)]
    typed = {alias.asname for block in blocks for each in block if isinstance(each, ast.ImportFrom) for alias in each.names}
    assert typed | {"__version__"} == set(dir(rl)), "what type checkers see"


@pytest.mark.long
def test_subpackages_that_can_be_called_are_both_whatever_is_imported_first() -> None:
    for first in ("rl.retarget", "importlib.import_module('rightloss.predictive.retarget')"):
        program = f"import importlib, rightloss as rl; {first}; import types\n"
        program += "print(*(callable(m) and isinstance(m, types.ModuleType) for m in (rl.predictive, rl.check)))"
        assert run(sys.executable, "-c", program).stdout.split() == ["True", "True"]


# Streams.


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Arguments for a study that is done, so that its table is printed and nothing is computed."""
    folder = tmp_path_factory.mktemp("study")
    source = small_archive(folder / "discs.npz")
    config = replace(PRESETS["quick"], sources=(source,), losses=("weighted",), populations=(0.3,), folds=2)
    fake_study(folder, config, nodules=60)
    make_pages(read_study(folder), folder)
    options = ["--loss", "weighted", "--prevalence", "0.3", "--folds", "2", "--engine", "in-process"]
    return ["study", "quick", "--data", str(source.path), "--out", str(folder), *options]


@pytest.fixture(scope="module")
def processes(study: list[str]) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """One for each kind of standard output, all at once."""
    kinds = {"ascii": "", "closed": "<&- >&-"}
    found = {
        name: subprocess.Popen(
            ["sh", "-c", f'exec "$@" {closed}', "sh", *command(*study)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", **({} if closed else {"PYTHONIOENCODING": name})},
        )
        for name, closed in kinds.items()
    }
    yield found
    for process in found.values():
        process.kill()
        process.communicate()


@pytest.mark.long
def test_a_stream_of_another_encoding_gets_the_whole_table_with_every_minus_sign(
    study: list[str], processes: dict[str, subprocess.Popen[bytes]]
) -> None:
    printed, errors = processes["ascii"].communicate()
    assert (processes["ascii"].returncode, errors) == (0, b"")
    expected = invoke(*study).stdout
    for sign, plain in SIGNS.items():
        expected = expected.replace(sign, plain)
    assert "-0." in expected
    assert printed.decode("ascii").splitlines() == expected.splitlines()


@pytest.mark.long
def test_a_closed_stream_is_no_error(processes: dict[str, subprocess.Popen[bytes]]) -> None:
    assert processes["closed"].communicate() == (b"", b"")
    assert processes["closed"].returncode == 0


def test_letters_without_an_ascii_spelling_become_question_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    from rightloss_command import spell_out

    written = {name: io.BytesIO() for name in ("stdout", "stderr")}
    for name, file in written.items():
        monkeypatch.setattr(sys, name, io.TextIOWrapper(file, encoding="latin-1", write_through=True))
    spell_out()
    for stream in (sys.stdout, sys.stderr):
        print("π of Ångström – 结果 \udcff: −0.3 ±½", file=stream)
    assert {file.getvalue().rstrip() for file in written.values()} == {"pi of Ångström - ?? ?: -0.3 ±½".encode("latin-1")}
    with pytest.raises(UnicodeDecodeError):
        codecs.decode(b"\xff", "utf-8", "rightloss")


@pytest.mark.long
def test_a_reader_that_ends_early_ends_predictions_quietly(tmp_path: Path) -> None:
    write_people(tmp_path / "new.csv", 20_000)
    fit_table(people(), target="cancer", population=0.1, candidates=["linear"], folds=2).save(tmp_path / "model")
    arguments = command("predict", str(tmp_path / "model"), str(tmp_path / "new.csv"))
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == b"patient,age,density,clinic,cancer,p_no,p_yes,predicted\n"
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 1


@pytest.mark.parametrize("caught", ["", "BaseException"])
def test_ctrl_c_while_torch_is_imported_ends_it_at_once_and_quietly(tmp_path: Path, caught: str) -> None:
    slow = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"
    if caught:  # as packages do that can do without another
        lines = "".join(f"    {line}\n" for line in slow.splitlines())
        slow = f"try:\n{lines}except {caught}:\n    pass\n"
    (tmp_path / "torch.py").write_text(slow)
    done = run(*command("study", "quick", "--out", str(tmp_path / "out")), first=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
    assert not (tmp_path / "out").exists()
