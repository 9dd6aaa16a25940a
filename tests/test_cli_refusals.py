"""What makes no study is refused at once, in a line or two, and nothing is written."""

from __future__ import annotations

import errno
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import invoke, ran, refused
from nodule_files import small_archive
from test_cli import failing_with
from test_cli_study import SMALL, contents

from rightloss.cli import study as command
from rightloss.cli.terminal import plain_errors
from rightloss.study import execute, report


class Harmful:
    def __reduce__(self) -> Any:
        return os.mkdir, ("harm",)


def pickled_array(path: Path) -> None:
    with open(path, "wb") as file:
        np.savez(file, patches=np.array([Harmful()], object), ratings=np.ones((1, 1), int), patient_id=np.arange(1))


@pytest.mark.long
def test_a_file_that_is_no_data_set_is_refused_and_nothing_in_it_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pickled_array(Path("pickle.npz"))
    for name, words in (("pickle.npz", "never unpickled"), ("missing.npz", "there is none at")):
        refused(words, "study", "quick", "--data", name, "--out", "out", codes=(1, 2))
        assert [path.name for path in tmp_path.iterdir()] == ["pickle.npz"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--prevalence x", "Expected a prevalence between 0 and 1"),
        ("--loss focal", "'information-gain', 'published'"),
        ("--prior-scale 0.5", "laplace, variational, sghmc"),
        ("--steps 0", "--steps"),
        ("--engine cloud", "choose among in-process, processes, ray"),
        ("--engine in-process --workers 2", "--workers"),
        ("--engine processes --workers 0", "Expected --workers to be an int of at least 1"),
        ("--address head:6379", "--engine ray"),
        ("--engine processes --devices 2", "--engine in-process"),
        ("--accelerator abacus", "devices that this machine has"),
    ],
)
def test_an_option_that_makes_no_study_is_refused(
    arguments: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "processors", lambda: 2)
    refused(words, "study", "quick", "--out", str(tmp_path / "out"), *arguments.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("missing", "arguments"), [("ray", "quick --engine ray"), ("arviz_stats", "features"), ("matplotlib", "quick")]
)
def test_a_package_that_is_not_installed_is_named_before_anything_is_done(
    missing: str, arguments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [missing, *(name for name in sys.modules if name.startswith(f"{missing}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    result = invoke("study", *arguments.split(), "--out", str(tmp_path / "out"))
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1)
    assert result.stderr.startswith(f"rightloss: {missing} is needed for this: in a checkout of rightloss, pip install -c")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "discs.npz"
    path.parent.mkdir()
    small_archive(path)
    return path


def test_a_place_where_no_folder_can_be_is_refused(archive: Path, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("mine")
    study = ["study", "quick", "--data", str(archive), "--out"]
    for below in ("", "sub/folder"):
        refused("is a file: choose another name", *study, str(taken / below), codes=(1, 2))
    assert taken.read_text() == "mine"
    if Path("/proc/self").exists():
        refused("can be written, but /proc cannot", *study, "/proc/results", codes=(1, 2))
        assert not Path("/proc/results").exists()


@pytest.mark.long
def test_a_full_disk_is_an_error_and_the_study_goes_on_when_there_is_room(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    arguments = ["study", "quick", "--data", str(archive), "--out", str(out), *SMALL, "--folds", "1"]
    full = OSError(errno.ENOSPC, "No space left on device", str(out))
    places = [(execute, "write_data"), (execute, "write_config"), (execute, "write_run"), (report, "write_tables")]
    for module, name in places:  # further and further
        with monkeypatch.context() as patch:
            patch.setattr(module, name, failing_with(full))
            refused("No space left on device", *arguments, codes=(1,))
        assert not [path for path in contents(out) if ".saving" in path or path.endswith(".lock")]
    ran(*arguments)


def test_a_folder_with_something_else_named_as_a_study_is_refused(archive: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "study.json").write_text("{}")
    for dry in ([], ["--dry-run"]):
        refused(
            "choose another folder", "study", "quick", "--data", str(archive), "--out", str(out), *SMALL, *dry, codes=(1, 2)
        )
    assert contents(out) == {"study.json": b"{}"}


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 524288000000 bytes."),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 524288000000 bytes."),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB."),
        MemoryError(),
    ],
)
def test_running_out_of_memory_gives_one_line(error: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left, plain_errors():
        raise error
    assert left.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "out of memory: for a study, lower --batch-size" in line
    with pytest.raises(RuntimeError, match="sizes"), plain_errors():
        raise RuntimeError("sizes of tensors do not match")


@pytest.mark.parametrize(
    ("given", "meant"), [("--population", "--prevalence"), ("--kappa", "--evidence"), ("--lr", "--learning-rate")]
)
def test_an_option_by_another_name_is_answered_with_its_own(given: str, meant: str) -> None:
    for arguments in ([given, "0.3"], [f"{given}=0.3"]):
        result = invoke("study", "quick", "--out", "unused", *arguments)
        assert result.exit_code == 2
        assert re.search(rf"No such option: {given}\b.*{meant}\b", " ".join(result.stderr.split()))
    nonsense = invoke("study", "quick", "--out", "unused", "--zebra", "3")
    assert (nonsense.exit_code, "--prevalence" in nonsense.stderr) == (2, False)
