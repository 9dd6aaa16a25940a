"""A study, run: only what is missing, whole or not at all, and the same bytes however often it was stopped."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import study_work
from members import SEED, assert_refused
from study_work import NODULES, processes_of, small_result, small_source, small_study
from worker_jobs import is_running

from rightloss.atomic_files import whole_path
from rightloss.study.config import Source, StudyConfig
from rightloss.study.engines import InProcess, Processes
from rightloss.study.execute import run_study
from rightloss.study.results import write_run


@dataclass
class Place:
    """A study's data, folder and log of work."""

    source: Source
    out: Path
    log: Path

    @property
    def config(self) -> StudyConfig:
        return small_study(self.source)

    @property
    def work(self) -> Any:
        return partial(study_work.fake, log=self.log)

    def done(self) -> list[str]:
        """What was worked on since the last look: "number of runs, fold"."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return [line.partition(" ")[2] for line in lines]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(small_source(tmp_path), tmp_path / "out", tmp_path / "log")


def content(out: Path) -> dict[str, bytes]:
    """Every file below the folder."""
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


class TestWhatIsRun:
    @pytest.mark.long
    def test_every_run_is_written_as_the_work_made_it_and_read_again(self, place: Place, tmp_path: Path) -> None:
        results = run_study(place.config, place.out / "deep", work=place.work)
        assert results.missing == 0
        assert [run.config for run in results.runs] == place.config.runs()
        assert results.data["slices"].labels.tolist() == [int(row // 2 % 3 == 0) for row in range(NODULES)]
        (tmp_path / "runs").mkdir()
        for run in place.config.runs():
            write_run(tmp_path, small_result(run))
        assert content(place.out / "deep" / "runs") == content(tmp_path / "runs")

    @pytest.mark.long
    def test_processes_leave_the_same_files_as_one(self, place: Place, tmp_path: Path) -> None:
        run_study(place.config, place.out, InProcess(), work=study_work.fake)
        run_study(place.config, tmp_path / "other", Processes(2), work=study_work.fake)
        assert content(place.out) == content(tmp_path / "other")

    @pytest.mark.long
    def test_a_study_that_is_done_runs_nothing(self, place: Place) -> None:
        run_study(place.config, place.out, work=place.work)
        before = content(place.out)
        os.unlink(str(place.source.path))  # not even the data are looked at
        results = run_study(place.config, place.out, Processes(), work=study_work.unspeakable)
        assert (results.missing, content(place.out)) == (0, before)

    @pytest.mark.long
    def test_only_missing_runs_are_computed(self, place: Place) -> None:
        run_study(place.config, place.out, work=place.work)
        assert place.done() == ["2 0", "2 1", "2 2", "2 3"]
        before, runs = content(place.out), place.config.runs()
        (place.out / "runs" / f"{runs[2].key}.json").unlink()  # of fold 1, one of two; its predictions are still there
        for ending in (".json", ".npz"):
            for run in runs[6:]:
                (place.out / "runs" / f"{run.key}{ending}").unlink()
        run_study(place.config, place.out, work=place.work)
        assert place.done() == ["1 1", "2 3"]
        assert content(place.out) == before

    @pytest.mark.long
    def test_a_study_that_has_grown_keeps_its_runs_and_one_that_has_shrunk_ignores_the_rest(self, place: Place) -> None:
        config = place.config
        run_study(config, place.out, work=place.work)
        place.done()
        assert len(run_study(replace(config, seeds=2), place.out, work=place.work).runs) == 16
        assert place.done() == ["2 0", "2 1", "2 2", "2 3"]
        wider = replace(config, populations=(0.3, 0.01))
        assert len(run_study(wider, place.out, work=place.work).runs) == 16
        assert place.done() == ["2 0", "2 1", "2 2", "2 3"]
        assert len(run_study(replace(config, folds=1), place.out, work=place.work).runs) == 2
        assert place.done() == []

    @pytest.mark.long
    def test_each_task_has_its_own_labels_in_one_folder(self, place: Place) -> None:
        ratings = replace(place.config, task="rating", populations=(None,))
        for _ in range(2):
            binary = run_study(place.config, place.out, work=place.work)
            assert set(binary.data["slices"].labels) == {0, 1}
            assert set(run_study(ratings, place.out, work=place.work).data["slices"].labels) == {0, 4}
        assert len(place.done()) == 8

    @pytest.mark.long
    def test_progress_counts_what_was_done_before_and_never_falls(self, place: Place) -> None:
        run_study(replace(place.config, folds=1), place.out, work=place.work)
        told: list[tuple[float, int, str]] = []
        run_study(place.config, place.out, InProcess(), lambda *each: told.append(each), place.work)
        done = [each[0] for each in told]
        assert (done[0], done[1], done[-1]) == (0, 1, 4)
        assert done == sorted(done)
        assert any(each % 1 for each in done)
        assert {each[1] for each in told} == {4}
        assert "slices, fold 2, seed 0: 2 runs" in {each[2] for each in told}


class TestWhatIsRefused:
    def test_a_file_in_the_way_or_a_folder_of_something_else(self, place: Place) -> None:
        place.out.write_text("")
        assert_refused(lambda: run_study(place.config, place.out, work=place.work), "out to be a folder, but .*out is a file")
        assert_refused(
            lambda: run_study(place.config, place.out / "in", work=place.work), "in to be a folder, but .*out is a file"
        )
        place.out.unlink()
        place.out.mkdir()
        (place.out / "study.json").write_text('{"mine": 1}')
        assert_refused(lambda: run_study(place.config, place.out, work=place.work), "to hold a study's config")
        assert content(place.out) == {"study.json": b'{"mine": 1}'}

    @pytest.mark.parametrize("name", ["table.csv", "summary.json", "report.html", "tables/losses.tex"])
    def test_a_folder_with_files_of_others_that_the_pages_would_overwrite(self, name: str, place: Place) -> None:
        path = place.out / name
        path.parent.mkdir(parents=True)
        path.write_text("mine")
        assert_refused(lambda: run_study(place.config, place.out, work=place.work), f"holds {name.split('/')[0]} of another")
        assert content(place.out) == {name: b"mine"}

    def test_a_folder_that_cannot_be_written(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(OSError, match=r"Expected a folder that can be written, but .proc cannot \(No such file.*choose"):
            run_study(place.config, Path("/proc/study"), work=place.work)

        def refuse(**_: Any) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(tempfile, "TemporaryFile", refuse)  # root may write wherever others may not
        with pytest.raises(
            OSError, match=r"Expected a folder that can be written, but .* cannot \(Permission denied\): choose"
        ):
            run_study(place.config, place.out, work=place.work)
        assert not place.out.exists()

    def test_bad_data_before_anything_is_written(self, place: Place) -> None:
        path = Path(str(place.source.path))
        path.write_bytes(path.read_bytes()[:-40])
        assert_refused(lambda: run_study(place.config, place.out, work=place.work), "has changed")
        path.unlink()
        with pytest.raises((ValueError, FileNotFoundError)):
            run_study(place.config, place.out, work=place.work)
        assert not place.out.exists()

    @pytest.mark.long
    def test_a_damaged_result_before_anything_is_computed(self, place: Place) -> None:
        run_study(place.config, place.out, work=place.work)
        damaged, lost = (place.out / "runs" / f"{place.config.runs()[number].key}.npz" for number in (0, 7))
        damaged.write_bytes(damaged.read_bytes()[:-40])
        lost.with_suffix(".json").unlink()
        place.done()
        assert_refused(lambda: run_study(place.config, place.out, work=place.work), f"{damaged.stem}.json, but .*delete it")
        assert place.done() == []

    def test_damaged_data_before_anything_is_computed(self, place: Place) -> None:
        run_study(replace(place.config, folds=1), place.out, work=place.work)
        (damaged,) = (place.out / "data").iterdir()
        damaged.write_bytes(damaged.read_bytes()[:-40])
        place.done()
        assert_refused(lambda: run_study(place.config, place.out, work=place.work), f"{damaged.name} is not, or is damaged")
        assert place.done() == []

    def test_predictions_that_are_no_numbers(self, place: Place) -> None:
        message = "those of slices, convnet, weighted loss, π = 0.3, fold 1, seed 0 are not"
        assert_refused(lambda: run_study(place.config, place.out, work=study_work.not_numbers), message)
        assert len(list((place.out / "runs").glob("*.json"))) == 1

    @pytest.mark.long
    def test_two_studies_at_once_in_one_folder(self, place: Place) -> None:
        refused = []

        def other(done: float, total: int, words: str) -> None:
            if 0 < done < total:
                assert_refused(
                    lambda: run_study(place.config, place.out, work=place.work), "no other run to write .*study.json"
                )
                refused.append(done)

        run_study(place.config, place.out, InProcess(), other, study_work.fake)
        assert refused
        assert place.done() == []
        assert sorted(path.name for path in place.out.iterdir()) == ["data", "runs", "study.json"]


class TestWhatIsLeft:
    @pytest.mark.long
    def test_half_files_of_a_killed_run_go_and_nothing_else(self, place: Place) -> None:
        run_study(place.config, place.out, work=place.work)
        before = content(place.out)
        for folder in (place.out, place.out / "runs", place.out / "data"):
            with whole_path(folder / "x") as temporary:
                name = temporary.name
            (folder / "x").rename(folder / name)  # as a kill leaves it
            (folder / "notes.txt").touch()
        left = place.out / next(each.name for each in place.out.glob(".*"))
        run_study(place.config, place.out, work=place.work)
        notes = {"notes.txt", "runs/notes.txt", "data/notes.txt"}
        assert set(content(place.out)) - set(before) == {*notes, left.name}  # which may be a report that is being written
        os.utime(left, (0, time.time() - 7200))
        run_study(place.config, place.out, work=place.work)
        assert set(content(place.out)) - set(before) == notes

    @pytest.mark.long
    @pytest.mark.parametrize("engine", [InProcess(), Processes(1)], ids=["in-process", "processes"])
    def test_a_full_disk_stops_it_and_keeps_what_is_done(
        self, engine: InProcess | Processes, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        save, calls = np.savez, []

        def full_after_three(file: Any, **arrays: Any) -> None:
            calls.append(file)
            if len(calls) > 3:
                file.write(b"half")
                raise OSError(28, "No space left on device")
            save(file, **arrays)

        with monkeypatch.context() as patch:
            patch.setattr(np, "savez", full_after_three)
            with pytest.raises(
                OSError, match=r"write the results to .*out, but could not \(No space left on device\): make room"
            ):
                run_study(place.config, place.out, engine, work=place.work)
        assert not any(map(is_running, set(processes_of(place.log)) - {os.getpid()}))
        assert len(list((place.out / "runs").glob("*.json"))) == 3
        assert not [name for name in content(place.out) if "partial" in name or "lock" in name]
        run_study(place.config, place.out, work=place.work)
        run_study(place.config, tmp_path / "fresh", work=place.work)
        assert content(place.out) == content(tmp_path / "fresh")


def started(place: Place) -> subprocess.Popen[bytes]:
    """A study in a process of its own, of whose groups at least one is under way."""
    place.log.unlink(missing_ok=True)
    script = str(Path(__file__).with_name("study_work.py"))
    arguments = [str(each) for each in (place.source.path, place.out, place.log)]
    study = subprocess.Popen([sys.executable, script, *arguments], stderr=subprocess.PIPE, start_new_session=True)
    wait_for(lambda: place.log.exists() or study.poll() is not None)
    assert study.poll() is None, study.communicate()
    return study


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def written(place: Place) -> list[Path]:
    return list((place.out / "runs").glob("*.json"))


def assert_no_process_left(place: Place) -> None:
    wait_for(lambda: not any(map(is_running, processes_of(place.log))), 5)


class TestBeingStopped:
    @pytest.mark.long
    def test_killed_at_two_random_moments_it_ends_with_the_same_bytes_and_leaves_no_process(
        self, place: Place, tmp_path: Path
    ) -> None:
        moments = random.Random(SEED)
        for done in range(2):
            study = started(place)
            wait_for(lambda: len(written(place)) >= done)  # noqa: B023
            time.sleep(moments.uniform(0, 0.5))
            study.kill()
            study.communicate()
            assert study.returncode == -signal.SIGKILL
            assert_no_process_left(place)
        config = small_study(place.source, folds=8)
        assert 0 < len(written(place)) < 16
        run_study(config, place.out, work=place.work)
        run_study(config, tmp_path / "fresh", work=place.work)
        assert content(place.out) == content(tmp_path / "fresh")

    @pytest.mark.long
    def test_interrupted_it_ends_at_once_and_leaves_no_process_no_lock_and_no_half_file(self, place: Place) -> None:
        study = started(place)
        os.killpg(study.pid, signal.SIGINT)  # as a terminal does, to all of them
        _, printed = study.communicate(timeout=5)
        assert printed.strip().endswith(b"KeyboardInterrupt")
        assert not any(map(is_running, processes_of(place.log)))
        assert not [name for name in content(place.out) if "partial" in name or "lock" in name]
