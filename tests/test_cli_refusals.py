"""What makes no study is refused at once, in a line or two, and nothing is written."""

from __future__ import annotations

import errno
import json
import os
import pickle
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import invoke
from nodule_files import small_archive
from PIL import Image
from study_results import fake_study
from test_cli import failing_with
from test_cli_study import SMALL, contents

import rightloss
from rightloss.atomic_files import only_run
from rightloss.cli import study as command
from rightloss.study import execute, report
from rightloss.study.config import PRESETS
from rightloss.study.datasets import source_of, study_data


def png(path: Path) -> None:
    Image.new("L", (4, 4)).save(path, "PNG")


def zipped_text(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("read.me", "not an array")


def truncated(path: Path) -> None:
    small_archive(path)
    path.write_bytes(path.read_bytes()[:-2000])


def damaged(path: Path) -> None:
    small_archive(path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)


def unrated(path: Path) -> None:
    np.savez(path, patches=np.zeros((6, 32, 32), np.int16), patient_id=np.arange(6))


def unlabelled(path: Path) -> None:
    np.savez(
        path, allow_pickle=False, **{f"{part}_images": np.zeros((3, 28, 28, 28), np.uint8) for part in ("train", "val", "test")}
    )


def one_class(path: Path) -> None:
    np.savez(path, patches=np.zeros((60, 32, 32), np.int16), ratings=np.ones((60, 1), int), patient_id=np.arange(60))


class Harmful:
    def __reduce__(self) -> Any:
        return os.mkdir, ("harm",)


def pickled_array(path: Path) -> None:
    with open(path, "wb") as file:
        np.savez(file, patches=np.array([Harmful()], object), ratings=np.ones((1, 1), int), patient_id=np.arange(1))


BAD_FILES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a picture": (png, "Expected an .npz file that np.savez wrote"),
    "a text": (lambda path: path.write_text("id,rating\n1,2\n"), "Expected an .npz file that np.savez wrote"),
    "a zip of something else": (zipped_text, "Expected an .npz file that np.savez wrote"),
    "a pickle": (lambda path: path.write_bytes(pickle.dumps(Harmful())), "Expected an .npz file that np.savez wrote"),
    "a pickle in an array": (pickled_array, "never unpickled"),
    "empty": (lambda path: path.touch(), "Expected an .npz file that np.savez wrote"),
    "truncated": (truncated, "Expected an .npz file that np.savez wrote"),
    "damaged": (damaged, "is not, or is damaged"),
    "without ratings": (unrated, "ratings"),
    "without labels": (unlabelled, "train_labels"),
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
        *(
            (f"--prevalence {rate}", "Expected a prevalence between 0 and 1")
            for rate in ("0", "2", "1", "-0.1", "nan", "inf", "x")
        ),
        ("--prevalence 0.3 --prevalence 0.3", "each once"),
        ("--net vgg", "'convnet', 'inception'"),
        ("--loss focal", "'information-gain', 'published'"),
        ("--inference sghmc", "mlp"),
        ("--likelihood onion-peeling", "ratings have these"),
        ("--start zero", "'population' or 'equal'"),
        ("--prior-scale 0.5", "laplace, variational, sghmc"),
        ("--engine=", "choose among in-process, processes, ray"),
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
    refused(invoke("study", "quick", "--out", str(tmp_path / "out"), *arguments.split()), words, codes=(2,))
    assert list(tmp_path.iterdir()) == []


def test_ratings_take_no_prevalence(tmp_path: Path) -> None:
    refused(invoke("study", "ratings", "--out", str(tmp_path / "out"), "--prevalence", "0.3"), "no prevalence for ratings")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("missing", "arguments"),
    [
        ("ray", "quick --engine ray"),
        ("arviz_stats", "features"),
        ("pebble", "quick"),
        ("matplotlib", "quick"),
        ("pandas", "quick"),
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


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A file system in memory with the given options, where this process may mount one."""
    place = tmp_path / "mounted"
    place.mkdir()

    def mount(options: str) -> Path:
        try:
            done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True, text=True)
        except OSError as error:
            pytest.skip(f"nothing can be mounted here: {error}")
        if done.returncode:
            pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
        return place

    yield mount
    subprocess.run(["umount", str(place)], capture_output=True)


@pytest.mark.parametrize("below", ["", "sub/folder"])
def test_a_file_in_the_place_of_the_folder_is_refused(archive: Path, tmp_path: Path, below: str) -> None:
    taken = tmp_path / "taken"
    taken.write_text("mine")
    refused(invoke("study", "quick", "--data", str(archive), "--out", str(taken / below)), "is a file: choose another name")
    assert taken.read_text() == "mine"


@pytest.mark.long
@pytest.mark.parametrize("preset", ["quick", "toy"])
def test_a_folder_on_a_disk_that_cannot_be_written_is_refused(mounted: Callable[[str], Path], preset: str) -> None:
    place = mounted("ro")
    refused(invoke("study", preset, "--out", str(place / "out")), "Read-only file system")
    assert list(place.iterdir()) == []


def test_a_folder_that_is_no_place_for_files_is_refused(archive: Path) -> None:
    if not Path("/proc/self").exists():
        pytest.skip("this system has no such folder")
    refused(invoke("study", "quick", "--data", str(archive), "--out", "/proc/results"), "can be written, but /proc cannot")
    assert not Path("/proc/results").exists()


def test_a_folder_of_others_is_refused(archive: Path, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    if os.access(locked, os.W_OK):
        pytest.skip("permissions do not stop this user")
    refused(invoke("study", "quick", "--data", str(archive), "--out", str(locked / "out")), "Permission denied")
    assert list(locked.iterdir()) == []


@pytest.mark.long
@pytest.mark.parametrize("preset", ["quick", "toy"])
def test_a_disk_without_room_is_refused_before_anything_is_done(mounted: Callable[[str], Path], preset: str) -> None:
    place = mounted("size=256k")
    refused(invoke("study", preset, "--out", str(place / "out")), "of free space for the results")
    assert list(place.iterdir()) == []


def test_a_disk_that_fills_up_meanwhile_leaves_nothing_half_written(
    archive: Path, mounted: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = mounted("size=96k")
    monkeypatch.setattr(execute, "check_folder", lambda out, needed=0: None)
    refused(
        invoke("study", "quick", "--data", str(archive), "--out", str(place / "out"), *SMALL), "No space left on device", (1,)
    )
    assert not [path for path in place.rglob("*") if path.name.startswith(".saving") or path.name.endswith(".lock")]


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


@pytest.mark.parametrize("dry", [True, False])
def test_a_batch_larger_than_the_training_part_is_refused_at_once(archive: Path, tmp_path: Path, dry: bool) -> None:
    arguments = ["study", "quick", "--data", str(archive), "--out", str(tmp_path / "out"), *SMALL, *["--dry-run"] * dry]
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
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
        MemoryError(),
    ],
)
def test_running_out_of_memory_gives_one_line(
    error: BaseException, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execute, "run_study", failing_with(error))
    result = invoke("study", "quick", "--data", str(archive), "--out", str(tmp_path / "out"), *SMALL)
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1)
    assert "out of memory: for a study, lower --batch-size" in result.stderr
    monkeypatch.setattr(execute, "run_study", failing_with(RuntimeError("sizes of tensors do not match")))
    ours = invoke("study", "quick", "--data", str(archive), "--out", str(tmp_path / "out"), *SMALL)
    assert isinstance(ours.exception, RuntimeError)


@pytest.mark.parametrize(
    ("given", "meant"),
    [("--population", "--prevalence"), ("--pi", "--prevalence"), ("--kappa", "--evidence"), ("--lr", "--learning-rate")],
)
def test_an_option_by_another_name_is_answered_with_its_own(given: str, meant: str) -> None:
    for arguments in ([given, "0.3"], [f"{given}=0.3"]):
        result = invoke("study", "quick", "--out", "unused", *arguments)
        assert result.exit_code == 2
        assert re.search(rf"No such option: {given}\b.*{meant}\b", " ".join(result.stderr.split()))
    nonsense = invoke("study", "quick", "--out", "unused", "--zebra", "3")
    assert (nonsense.exit_code, "--prevalence" in nonsense.stderr) == (2, False)


@pytest.mark.long
def test_a_closed_pipe_ends_the_command_quietly() -> None:
    program = (
        "from rightloss.cli.errors import plain_errors\nwith plain_errors():\n  for row in range(9999): print(row, flush=True)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"0\n"
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 1


@pytest.mark.long
def test_a_refusal_takes_seconds_and_shows_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "data.npz").write_bytes(b"PK\3\4")
    start = time.monotonic()
    command = [
        sys.executable,
        "-c",
        "from rightloss.cli import main; main()",
        "study",
        "quick",
        "--data",
        "data.npz",
        "--out",
        "o",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert time.monotonic() - start < 30  # 4 when the machine has nothing else to do
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["data.npz"]
