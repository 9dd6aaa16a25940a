"""The progress bar and its lines in a log; the folder that is checked and left as it was."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rightloss.cli.terminal import progress
from rightloss.study.execute import check_folder, size_in_words


class Clock:
    """A clock that tests set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


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


def test_progress_takes_integers(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("series") as show:
        for done in range(3):
            show(done, 2, "")
    assert capsys.readouterr() == ("", "")


def test_checking_a_folder_leaves_nothing_there(tmp_path: Path) -> None:
    check_folder(tmp_path / "not" / "there", 10)
    assert list(tmp_path.iterdir()) == []


def test_more_than_there_is_room_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"Expected 1000000000 GB of free space for the results, but .* has .*B: make room"):
        check_folder(tmp_path, 10**18)


def test_a_link_to_nowhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="is a broken link: choose another name"):
        check_folder(tmp_path / "link", 10)


def test_sizes_have_units() -> None:
    sizes = [12, 64_000, 3_140_000, 120_000_000, 2_500_000_000]
    assert [size_in_words(size) for size in sizes] == ["12 bytes", "64 kB", "3.1 MB", "120 MB", "2.5 GB"]
