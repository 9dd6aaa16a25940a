"""The bar and its time left; the folder that is looked at and left as it was."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rightloss.cli import bar
from rightloss.cli.bar import Clock, in_words, progress, rounds
from rightloss.cli.folder import check_folder, size_in_words
from rightloss.study.estimate import makespan


class Hand:
    """A clock that goes when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> Hand:
    return Hand(monkeypatch)


@pytest.mark.parametrize(("groups", "workers"), [(4, 2), (5, 2), (1, 4), (7, 3), (6, 1)])
def test_the_time_left_of_equal_groups_is_exact_from_the_first_moment_on(groups: int, workers: int, hand: Hand) -> None:
    length, clock = 60.0, Clock(workers)
    clock.left(0.0, groups)
    clock.left(0.0, groups)
    whole = makespan([length] * groups, workers)
    for second in range(5, int(whole), 5):
        hand.now = 100.0 + second
        begun = [second - length * (number // workers) for number in range(groups)]
        done = sum(min(1.0, max(0.0, each / length)) for each in begun)
        assert clock.left(done, groups) == pytest.approx(whole - second)


def test_what_was_done_before_says_nothing_of_the_speed(hand: Hand) -> None:
    clock = Clock()
    assert clock.left(0.0, 10) is None
    assert clock.left(8.0, 10) is None
    hand.now += 30
    assert clock.left(8.5, 10) == pytest.approx(90)


def test_all_rounds_are_over_when_all_is_done() -> None:
    assert [rounds(float(each), 5.0, 2) for each in range(6)] == [0, 0.5, 1, 1.5, 2, 3]
    assert rounds(0.5, 1.0, 4) == 0.5


@pytest.mark.parametrize(
    ("seconds", "words"), [(None, ""), (0.2, "1 s left"), (59.6, "60 s left"), (100, "2 min left"), (9000, "2.5 h left")]
)
def test_time_is_told_in_one_unit(seconds: float | int | None, words: str) -> None:
    assert in_words(seconds if seconds is None else float(seconds)) == words


def test_a_terminal_shows_how_much_is_done_and_the_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # which makes rich take stderr for a terminal
    monkeypatch.setenv("COLUMNS", "200")
    hand = Hand(monkeypatch)
    with progress("groups", workers=2) as show:
        show(0.0, 4, "reading the data")
        show(0.0, 4, "fold 1")
        hand.now += 10
        show(1.0, 4, "fold 2")
    shown = capsys.readouterr().err
    assert all(words in shown for words in ("25 %", "of 4 groups", "30 s left", "fold 2"))


def test_a_log_has_a_line_a_minute(hand: Hand, capsys: pytest.CaptureFixture[str]) -> None:
    with progress("groups") as show:
        for second in range(0, 200, 10):
            hand.now = 100.0 + second
            show(second / 200, 1, "fold 1")
    assert capsys.readouterr() == ("", "0.3 of 1 groups; 2 min left\n0.6 of 1 groups; 80 s left\n0.9 of 1 groups; 20 s left\n")
    assert bar._EVERY == 60


def test_whole_numbers_will_do(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("series") as show:
        for done in range(3):
            show(done, 2, "")
    assert capsys.readouterr() == ("", "")


def test_a_folder_is_looked_at_without_a_trace(tmp_path: Path) -> None:
    check_folder(tmp_path / "not" / "there", 10)
    assert list(tmp_path.iterdir()) == []


def test_more_than_there_is_room_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"Expected 1000000000 GB of free space for the results, but .* has .*B: make room"):
        check_folder(tmp_path, 10**18)


def test_a_link_to_nowhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="is a link that leads nowhere: choose another name"):
        check_folder(tmp_path / "link", 10)


def test_sizes_have_units() -> None:
    sizes = [12, 64_000, 3_140_000, 120_000_000, 2_500_000_000]
    assert [size_in_words(size) for size in sizes] == ["12 bytes", "64 kB", "3.1 MB", "120 MB", "2.5 GB"]
