"""The command as a process of its own: streams that are closed or know few letters, and Ctrl-C while it is starting."""

from __future__ import annotations

import codecs
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from commands import command, invoke
from nodule_files import small_archive
from study_results import fake_study
from table_files import write_people

import rightloss
from rightloss.cli.report import make_pages
from rightloss.study.config import PRESETS
from rightloss.study.results import read_study

ROOT = Path(__file__).parent.parent
SIGNS = {"−": "-", "π": "pi", "½": "1/2", "–": "-", "…": "..."}


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
    kinds = {"cp1252": "", "ascii": "", "closed": "<&- >&-"}
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
@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_a_stream_of_another_encoding_gets_the_whole_table_with_every_minus_sign(
    study: list[str], processes: dict[str, subprocess.Popen[bytes]], encoding: str
) -> None:
    printed, errors = processes[encoding].communicate()
    assert (processes[encoding].returncode, errors) == (0, b"")
    expected = invoke(*study).stdout
    for sign, plain in SIGNS.items():
        try:
            sign.encode(encoding)
        except UnicodeEncodeError:
            expected = expected.replace(sign, plain)
    assert "-0." in expected
    assert printed.decode(encoding).splitlines() == expected.splitlines()


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
    write_people(tmp_path / "data.csv")
    write_people(tmp_path / "new.csv", 20_000)
    assert (
        invoke(
            "fit", str(tmp_path / "data.csv"), "--target", "cancer", "--folds", "2", "--out", str(tmp_path / "model")
        ).exit_code
        == 0
    )
    process = subprocess.Popen(
        command("predict", str(tmp_path / "model"), str(tmp_path / "new.csv")), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == b"patient,age,density,clinic,cancer,p_no,p_yes,predicted\n"
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 1


@pytest.mark.parametrize("caught", ["", "Exception", "BaseException"])
def test_ctrl_c_while_torch_is_imported_ends_it_at_once_and_quietly(tmp_path: Path, caught: str) -> None:
    slow = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"
    if caught:  # as packages do that can do without another
        lines = "".join(f"    {line}\n" for line in slow.splitlines())
        slow = f"try:\n{lines}except {caught}:\n    pass\n"
    (tmp_path / "torch.py").write_text(slow)
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        command("study", "quick", "--out", str(tmp_path / "out")), env={**os.environ, "PYTHONPATH": paths}, capture_output=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")
    assert not (tmp_path / "out").exists()


def test_the_version_is_printed_without_importing_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run(command("--version"), env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{rightloss.__version__}\n", "")


def test_only_the_standard_library_is_imported_before_ctrl_c_is_handled() -> None:
    program = "import sys; before = set(sys.modules); import rightloss_command; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported = {name.partition(".")[0] for name in done.stdout.split()}
    assert imported - {"rightloss_command"} <= sys.stdlib_module_names
