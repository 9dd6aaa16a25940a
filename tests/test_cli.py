"""The command line, through typer's runner and through `main`."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import invoke, ran, refused
from dicom_series import nodule_table, ramp, several_scans, write_scan
from draws import assert_refused
from test_toy import tiny

import rightloss
from rightloss import cli
from rightloss.cli.terminal import progress
from rightloss.extras import install
from rightloss.lidc.ct import preparation
from rightloss.study.execute import check_folder, size_in_words
from rightloss.study.methods import FULLY_LABELLED, METHODS
from rightloss.study.toy import study as toy
from rightloss.study.toy.table import COLUMNS


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The study of this name, but in seconds, and its picture in words."""

    def save(rows: Any, config: Any, paths: tuple[Path, ...]) -> None:
        for path in paths:
            path.write_text(str(rows))

    monkeypatch.setattr(toy, "save_biases", save)
    monkeypatch.setattr(toy, "ToyConfig", tiny)


def failing_with(error: BaseException) -> Callable[..., Any]:
    def fail(*arguments: Any) -> Any:
        raise error

    return fail


def test_help_names_commands_and_options_and_the_version_is_that_of_the_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = invoke("study", "--help")
    assert shown.exit_code == 0
    assert all(word in shown.stdout for word in ("--out", "--seeds", "toy", "quick", "--dry-run"))
    assert invoke("--version").stdout == f"{rightloss.__version__}\n"
    monkeypatch.setattr(sys, "argv", ["rightloss", "--version"])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    assert (exit_.value.code, capsys.readouterr().out) == (0, f"{rightloss.__version__}\n")


@pytest.mark.long
def test_the_study_prints_its_table_and_last_where_the_report_is_and_a_second_call_runs_nothing(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["study", "toy", "--out", str(tmp_path / "toy"), "--seeds", "1"]
    monkeypatch.chdir(tmp_path)
    dry = invoke("study", "toy", "--seeds", "1", "--dry-run")
    assert (dry.exit_code, dry.stdout.splitlines()[-1]) == (0, "nothing was written"), dry.stderr
    assert list(tmp_path.iterdir()) == []
    result = ran(*arguments)
    titles = [METHODS[name].title for name in FULLY_LABELLED]
    assert all(words in result.stdout for words in (*titles, "best possible", "always saying the prevalence"))
    assert all(word in result.stdout for title, _ in COLUMNS.values() for word in title.split())
    *_, first, last = result.stdout.splitlines()
    assert (first, last) == (str(tmp_path / "toy" / "table.csv"), str(tmp_path / "toy" / "report.md"))
    assert all((tmp_path / "toy" / name).exists() for name in toy.FILES)
    monkeypatch.setattr(toy, "run", failing_with(AssertionError("ran again")))
    second = invoke(*arguments)
    assert (second.exit_code, second.stdout) == (0, result.stdout)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["study", "tyo", "--out", "unused"], "but got 'tyo': choose among toy, quick, table1, table2"),
        (["study", "toy", "--out", "unused", "--seeds", "0"], "Expected at least 1 seed, but got 0"),
        (["study", "toy", "--out", "unused", "--net", "mlp", "--num-folds", "3"], "but got --net, --num-folds: leave"),
        (["lidc", "prepare", "--dicom", "nowhere", "--out", "n.npz"], "Expected a folder of DICOM files, but nowhere is none"),
        (["lidc", "prepare", "--dicom", ".", "--out", "n.npz"], "but got none"),
        (["lidc", "prepare", "--dicom", ".", "--out", ""], "Expected a file to write"),
        (["study", "quick", "--out", ""], "Expected a folder for the results, but got none"),
        (["lidc", "prepare", "--dicom", ".", "--out", "nowhere/n.npz"], "make the folder first"),
    ],
)
def test_a_users_mistake_gives_one_line_and_writes_nothing(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(message, *arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "interrupted; run again to resume"),
        (PermissionError(13, "Permission denied", "out"), 1, "Permission denied: 'out'"),
        (ModuleNotFoundError("No module named 'sklearn'", name="sklearn"), 1, 'pip install -c constraints.txt -e ".[study]"'),
    ],
)
def test_an_error_that_stops_a_study_gives_one_line(
    error: BaseException, code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toy, "run_toy", failing_with(error))
    monkeypatch.setattr("sys.argv", ["rightloss", "study"])
    result = invoke("study", "toy", "--out", str(tmp_path))
    assert result.exit_code == code
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    monkeypatch.setattr(toy, "run_toy", failing_with(ModuleNotFoundError("No module named 'x'", name="x")))
    ours = invoke("study", "toy", "--out", str(tmp_path)).exception
    assert isinstance(ours, ModuleNotFoundError), "an error of our own keeps its traceback"


@pytest.fixture
def scans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two of three series, and the table of the three instead of LIDC-IDRI's."""
    every = several_scans(3)
    for patient, scan in list(every.items())[:2]:
        write_scan(tmp_path / "dicom" / patient, scan, ramp)
    monkeypatch.setattr(preparation, "all_nodules", lambda: nodule_table(every))
    monkeypatch.setattr(preparation, "scan_positions", dict)
    return tmp_path


@pytest.mark.long
def test_prepare_prints_its_summary_and_last_the_file(scans: Path) -> None:
    out = scans / "n.npz"
    result = ran("lidc", "prepare", "--dicom", str(scans / "dicom"), "--out", str(out), "--workers", "0")
    assert result.stdout.splitlines() == [
        "nodules: 4 of 6 written, 0 skipped in series that were read",
        "series: 2 read, 1 not found, 0 unreadable; 0 remarks",
        f"what was skipped, and why: {scans / 'n.skipped.csv'}",
        str(out),
    ]
    assert out.is_file()
    refused("exists: remove it", "lidc", "prepare", "--dicom", scans / "dicom", "--out", out)


@pytest.mark.long
def test_prepare_that_could_cut_nothing_fails_and_says_where_to_look(scans: Path) -> None:
    for path in (scans / "dicom").rglob("*.dcm"):
        path.write_bytes(path.read_bytes()[:-2])
    result = invoke("lidc", "prepare", "--dicom", str(scans / "dicom"), "--out", str(scans / "n.npz"), "--workers", "0")
    assert result.exit_code == 1
    assert "n.skipped.csv" in result.stdout
    assert result.stderr == "rightloss: no nodule could be cut, so no archive was written\n"


@pytest.mark.parametrize("missing", ["typer", "pebble"])
def test_a_missing_extra_gives_one_line(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [missing, *(name for name in sys.modules if name.startswith(f"{missing}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(toy, "run_toy", failing_with(AssertionError("ran before it looked")))
    monkeypatch.setattr(sys, "argv", ["rightloss", "study", "toy", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    assert exit_.value.code == 1
    assert capsys.readouterr().err == f"rightloss: {missing} is needed for this: {install('study')}\n"


def test_a_missing_pydicom_gives_one_line(scans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ["pydicom", *(name for name in sys.modules if name.startswith("pydicom."))]:
        monkeypatch.setitem(sys.modules, name, None)
    result = invoke("lidc", "prepare", "--dicom", str(scans / "dicom"), "--out", str(scans / "n.npz"))
    assert result.exit_code == 1
    assert result.stderr == f"rightloss: pydicom is needed for this: {install('lidc')}\n"
    assert [path.name for path in scans.iterdir()] == ["dicom"]


# Progress.


class Clock:
    now = 100.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that tests set."""
    found = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: found.now)
    return found


def test_a_terminal_shows_how_much_is_done_and_the_time_left(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # which makes rich take stderr for a terminal
    monkeypatch.setenv("COLUMNS", "200")
    with progress("groups") as show:
        show(0.0, 4, "reading the data")
        show(0.0, 4, "fold 1")
        for done in (0.5, 1.0):
            clock.now += 10
            show(done, 4, "fold 2")
    shown = capsys.readouterr().err
    assert all(words in shown for words in ("25 %", "of 4 groups", "0:01:00", "fold 2"))


def test_a_log_has_a_line_a_minute(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with progress("groups") as show:
        for second in range(0, 200, 10):
            clock.now = 100.0 + second
            show(second / 200, 1, "fold 1")
    lines = ["0.3 of 1 groups; 0:02:20 left", "0.6 of 1 groups; 0:01:20 left", "0.9 of 1 groups; 0:00:20 left"]
    assert capsys.readouterr() == ("", "\n".join(lines) + "\n")


def test_what_was_done_before_says_nothing_of_the_speed(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with progress("groups") as show:
        for done in (0.0, 8.0, 8.1, 8.5):
            show(done, 10, "fold 9")
            clock.now += 60
    assert capsys.readouterr().err.splitlines() == ["8.1 of 10 groups; fold 9", "8.5 of 10 groups; 0:03:45 left"]


def test_a_folder_that_is_checked_is_left_as_it_was_and_must_have_room(tmp_path: Path) -> None:
    check_folder(tmp_path / "not" / "there", 10)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match=r"Expected 1000000000 GB of free space for the results, but .* has .*B: make room"):
        check_folder(tmp_path, 10**18)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert_refused(lambda: check_folder(tmp_path / "link", 10), "is a broken link: choose another name")
    sizes = [12, 64_000, 3_140_000, 120_000_000, 2_500_000_000]
    assert [size_in_words(size) for size in sizes] == ["12 bytes", "64 kB", "3.1 MB", "120 MB", "2.5 GB"]
