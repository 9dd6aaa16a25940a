"""What makes no study is refused at once, in a line or two, and nothing is written."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import invoke
from nodule_files import small_archive
from study_results import fake_study
from test_cli import failing_with
from test_cli_study import SMALL, contents

import rightloss
from rightloss.atomic_files import only_run
from rightloss.cli import study as command
from rightloss.cli.terminal import plain_errors
from rightloss.study import execute, report
from rightloss.study.config import PRESETS
from rightloss.study.datasets import source_of, study_data


def damaged(path: Path) -> None:
    small_archive(path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)


def unrated(path: Path) -> None:
    np.savez(path, patches=np.zeros((6, 32, 32), np.int16), patient_id=np.arange(6))


def one_class(path: Path) -> None:
    np.savez(path, patches=np.zeros((60, 32, 32), np.int16), ratings=np.ones((60, 1), int), patient_id=np.arange(60))


class Harmful:
    def __reduce__(self) -> Any:
        return os.mkdir, ("harm",)


def pickled_array(path: Path) -> None:
    with open(path, "wb") as file:
        np.savez(file, patches=np.array([Harmful()], object), ratings=np.ones((1, 1), int), patient_id=np.arange(1))


BAD_FILES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a text": (lambda path: path.write_text("id,rating\n1,2\n"), "Expected an .npz file that np.savez wrote"),
    "a pickle in an array": (pickled_array, "never unpickled"),
    "damaged": (damaged, "is not, or is damaged"),
    "without ratings": (unrated, "ratings"),
    "all of one class": (one_class, "every class"),
    "missing": (lambda path: None, "there is none at"),
    "a folder": (lambda path: path.mkdir(), "is a folder"),
}


def refused(result: Any, words: str, codes: tuple[int, ...] = (1, 2)) -> None:
    """In a line or two on stderr, and nothing else."""
    assert result.exit_code in codes, result.stdout
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert (result.stdout, 1 <= len(result.stderr.splitlines()) <= 2) == ("", True), result.stderr
    assert result.stderr.startswith("rightloss: Expected ")
    assert words in result.stderr


@pytest.mark.long
@pytest.mark.parametrize("name", BAD_FILES)
def test_a_file_that_is_no_data_set_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make, words = BAD_FILES[name]
    make(Path("data.npz"))
    before = sorted(tmp_path.rglob("*"))
    refused(invoke("study", "quick", "--data", "data.npz", "--out", "out"), words)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--prevalence 0", "Expected a prevalence between 0 and 1"),
        ("--prevalence x", "Expected a prevalence between 0 and 1"),
        ("--prevalence 0.3 --prevalence 0.3", "each once"),
        ("--prevalence 0.3", "no prevalence for ratings"),
        ("--net vgg", "'convnet', 'inception'"),
        ("--loss focal", "'information-gain', 'published'"),
        ("--inference sghmc", "mlp"),
        ("--likelihood onion-peeling", "ratings have these"),
        ("--start zero", "'population' or 'equal'"),
        ("--prior-scale 0.5", "laplace, variational, sghmc"),
        ("--num-folds 2", "at least 3"),
        ("--folds 0", "the number of folds to test"),
        ("--seeds 0", "--seeds"),
        ("--steps 0", "--steps"),
        ("--views 4", "a multiple of 3"),
        ("--learning-rate 0", "above 0"),
        ("--evidence nan", "evidence"),
        ("--engine cloud", "choose among in-process, processes, ray"),
        ("--engine in-process --workers 2", "--workers"),
        ("--workers 0", "at least 1 worker"),
        ("--address head:6379", "--engine ray"),
        ("--engine ray --address head:6379 --workers 2", "number of workers"),
        ("--engine processes --devices 2", "--engine in-process"),
        ("--devices 0", "devices"),
        ("--accelerator abacus", "devices that this machine has"),
        ("--precision 7-bit", "'32-true'"),
    ],
)
def test_an_option_that_makes_no_study_is_refused(
    arguments: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "processors", lambda: 2)
    preset = "ratings" if "ratings" in words and "prevalence" in words else "quick"
    refused(invoke("study", preset, "--out", str(tmp_path / "out"), *arguments.split()), words, codes=(2,))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("missing", "arguments"),
    [
        ("ray", "quick --engine ray"),
        ("arviz_stats", "features"),
        ("matplotlib", "quick"),
    ],
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
        refused(invoke(*study, str(taken / below)), "is a file: choose another name")
    assert taken.read_text() == "mine"
    if Path("/proc/self").exists():
        refused(invoke(*study, "/proc/results"), "can be written, but /proc cannot")
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
            refused(invoke(*arguments), "No space left on device", codes=(1,))
        assert not [path for path in contents(out) if ".saving" in path or path.endswith(".lock")]
    assert invoke(*arguments).exit_code == 0


def test_two_studies_in_one_folder_at_once_are_refused(archive: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with only_run(out / "study.json"):
        refused(invoke("study", "quick", "--data", str(archive), "--out", str(out), *SMALL), "Expected no other run")
    assert not (out / "report.html").exists()


def test_a_folder_with_something_else_named_as_a_study_is_refused(archive: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "study.json").write_text("{}")
    for dry in ([], ["--dry-run"]):
        refused(invoke("study", "quick", "--data", str(archive), "--out", str(out), *SMALL, *dry), "choose another folder")
    assert contents(out) == {"study.json": b"{}"}


def test_a_folder_of_another_version_is_refused_and_left_as_it_is(archive: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    fake_study(out, PRESETS["quick"], nodules=60, skip=39)
    config = json.loads((out / "study.json").read_text())
    (out / "study.json").write_text(json.dumps({**config, "version": "0.0.7"}))
    before = contents(out)
    words = (
        f"by rightloss {rightloss.__version__}, but {out / 'study.json'} was written by rightloss 0.0.7: install that version"
    )
    study = ["study", "quick", "--data", str(archive), "--out", str(out), *SMALL]
    for arguments in (["report", str(out)], study, [*study, "--dry-run"]):
        refused(invoke(*arguments), words, codes=(2,))
    assert contents(out) == before


def test_a_batch_larger_than_the_training_part_is_refused_at_once(archive: Path, tmp_path: Path) -> None:
    arguments = ["study", "quick", "--data", str(archive), "--out", str(tmp_path / "out"), *SMALL]
    result = invoke(*arguments, "--batch-size", "1000")
    refused(result, "fold 1 of discs trains on, but got 1000: lower --batch-size", codes=(2,))
    most = re.search(r"at most the (\d+) nodules", result.stderr)
    assert most is not None
    assert int(most[1]) == len(study_data(source_of(str(archive)), "binary").parts(0, 4).train)
    assert not (tmp_path / "out").exists()


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
    ("given", "meant"),
    [("--population", "--prevalence"), ("--kappa", "--evidence"), ("--lr", "--learning-rate")],
)
def test_an_option_by_another_name_is_answered_with_its_own(given: str, meant: str) -> None:
    for arguments in ([given, "0.3"], [f"{given}=0.3"]):
        result = invoke("study", "quick", "--out", "unused", *arguments)
        assert result.exit_code == 2
        assert re.search(rf"No such option: {given}\b.*{meant}\b", " ".join(result.stderr.split()))
    nonsense = invoke("study", "quick", "--out", "unused", "--zebra", "3")
    assert (nonsense.exit_code, "--prevalence" in nonsense.stderr) == (2, False)
