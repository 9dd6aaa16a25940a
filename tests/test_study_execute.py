"""A study, run: only what is missing, whole or not at all, and the same bytes however often it was stopped."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import study_work
from members import SEED, assert_refused
from study_work import NODULES, contents, processes_of, small_result, small_source, small_study, wait_for
from worker_jobs import is_running

from rightloss.atomic_files import whole_path
from rightloss.study.config import Source, StudyConfig
from rightloss.study.engines import InProcess, Processes
from rightloss.study.execute import run_study
from rightloss.study.results import StudyResults, write_run


@dataclass
class Place:
    """A study's data, folder and log of work."""

    source: Source
    out: Path
    log: Path

    @property
    def config(self) -> StudyConfig:
        return small_study(self.source)

    def run(self, config: StudyConfig | None = None) -> StudyResults:
        return run_study(config or self.config, self.out, work=partial(study_work.fake, log=self.log))

    def refuses(self, words: str, config: StudyConfig | None = None) -> None:
        """Assert that it is refused, and that nothing is worked on."""
        self.done()
        assert_refused(lambda: self.run(config), words)
        assert self.done() == []

    def done(self) -> list[str]:
        """What was worked on since the last look: "number of runs, fold"."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return [line.partition(" ")[2] for line in lines]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(small_source(tmp_path), tmp_path / "out", tmp_path / "log")


class TestWhatIsRun:
    @pytest.mark.long
    def test_every_run_is_written_as_the_work_made_it_in_one_process_or_several(self, place: Place, tmp_path: Path) -> None:
        results = place.run()
        assert results.missing == 0
        assert [run.config for run in results.runs] == place.config.runs()
        assert results.data["slices"].labels.tolist() == [int(row // 2 % 3 == 0) for row in range(NODULES)]
        (tmp_path / "alone" / "runs").mkdir(parents=True)
        for run in place.config.runs():
            write_run(tmp_path / "alone", small_result(run))
        assert contents(place.out / "runs") == contents(tmp_path / "alone" / "runs")
        run_study(place.config, tmp_path / "deep" / "other", Processes(2), work=study_work.fake)
        assert contents(place.out) == contents(tmp_path / "deep" / "other")
        before = contents(place.out)
        os.unlink(str(place.source.path))  # not even the data are looked at
        assert run_study(place.config, place.out, Processes(), work=study_work.unspeakable).missing == 0
        assert contents(place.out) == before

    @pytest.mark.long
    def test_only_missing_runs_are_computed_of_a_study_that_lost_some_has_grown_or_has_shrunk(self, place: Place) -> None:
        place.run()
        assert place.done() == ["2 0", "2 1", "2 2", "2 3"]
        before, runs = contents(place.out), place.config.runs()
        (place.out / "runs" / f"{runs[2].key}.json").unlink()  # of fold 1, one of two; its predictions are still there
        for ending in (".json", ".npz"):
            for run in runs[6:]:
                (place.out / "runs" / f"{run.key}{ending}").unlink()
        place.run()
        assert place.done() == ["1 1", "2 3"]
        assert contents(place.out) == before
        for changes, number, worked in (
            ({"seeds": 2}, 16, 4),
            ({"populations": (0.3, 0.01)}, 16, 4),
            ({"folds": 1}, 2, 0),
            ({"task": "rating", "populations": (None,)}, 8, 4),
            ({}, 8, 0),
        ):
            results = place.run(replace(place.config, **changes))
            assert (len(results.runs), len(place.done())) == (number, worked), changes
            assert set(results.data["slices"].labels) == ({0, 4} if "task" in changes else {0, 1}), "of its own task"

    @pytest.mark.long
    def test_progress_counts_what_was_done_before_and_never_falls(self, place: Place) -> None:
        place.run(replace(place.config, folds=1))
        told: list[tuple[float, int, str]] = []
        run_study(place.config, place.out, InProcess(), lambda *each: told.append(each), study_work.fake)
        done = [each[0] for each in told]
        assert (done[0], done[1], done[-1]) == (0, 1, 4)
        assert done == sorted(done)
        assert any(each % 1 for each in done)
        assert {each[1] for each in told} == {4}
        assert "slices, fold 2, seed 0: 2 runs" in {each[2] for each in told}


class TestWhatIsRefused:
    def test_a_file_in_the_way_or_a_folder_of_something_else(self, place: Place) -> None:
        place.out.write_text("")
        place.refuses("out to be a folder, but .*out is a file")
        replace(place, out=place.out / "in").refuses("in to be a folder, but .*out is a file")
        place.out.unlink()
        place.out.mkdir()
        (place.out / "study.json").write_text('{"mine": 1}')
        place.refuses("to hold a study's config")
        assert contents(place.out) == {"study.json": b'{"mine": 1}'}
        (place.out / "study.json").unlink()
        for name in ("table.csv", "tables/losses.tex"):
            (place.out / name).parent.mkdir(exist_ok=True)
            (place.out / name).write_text("mine")
            place.refuses(f"{name.split('/')[0]} of another program")
        assert contents(place.out) == {"table.csv": b"mine", "tables/losses.tex": b"mine"}

    def test_a_folder_that_cannot_be_written(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(**_: Any) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(tempfile, "TemporaryFile", refuse)  # root may write wherever others may not
        words = r"Expected a folder that can be written, but .* cannot \(Permission denied\): choose"
        with pytest.raises(OSError, match=words):
            place.run()
        assert not place.out.exists()

    def test_bad_data_before_anything_is_written(self, place: Place) -> None:
        path = Path(str(place.source.path))
        path.write_bytes(path.read_bytes()[:-40])
        place.refuses("has changed")
        path.unlink()
        with pytest.raises((ValueError, FileNotFoundError)):
            place.run()
        assert not place.out.exists()

    @pytest.mark.long
    def test_a_damaged_result_or_data_set_before_anything_is_computed(self, place: Place) -> None:
        place.run()
        damaged, lost = (place.out / "runs" / f"{place.config.runs()[number].key}.npz" for number in (0, 7))
        damaged.write_bytes(damaged.read_bytes()[:-40])
        lost.with_suffix(".json").unlink()
        place.refuses(f"{damaged.stem}.json, but .*delete it")
        (data,) = (place.out / "data").iterdir()
        data.write_bytes(data.read_bytes()[:-40])
        place.refuses(f"{data.name} is not, or is damaged")

    def test_predictions_that_are_no_numbers(self, place: Place) -> None:
        message = "those of slices, convnet, weighted loss, π = 0.3, fold 1, seed 0 are not"
        assert_refused(lambda: run_study(place.config, place.out, work=study_work.not_numbers), message)
        assert len(list((place.out / "runs").glob("*.json"))) == 1

    @pytest.mark.long
    def test_two_studies_at_once_in_one_folder(self, place: Place) -> None:
        refused = []

        def other(done: float, total: int, words: str) -> None:
            if 0 < done < total:
                place.refuses("no other run to write .*study.json")
                refused.append(done)

        run_study(place.config, place.out, InProcess(), other, study_work.fake)
        assert refused
        assert sorted(path.name for path in place.out.iterdir()) == ["data", "runs", "study.json"]


class TestWhatIsLeft:
    @pytest.mark.long
    def test_half_files_of_a_killed_run_go_and_nothing_else(self, place: Place) -> None:
        place.run()
        before = contents(place.out)
        for folder in (place.out, place.out / "runs", place.out / "data"):
            with whole_path(folder / "x") as temporary:
                name = temporary.name
            (folder / "x").rename(folder / name)  # as a kill leaves it
            (folder / "notes.txt").touch()
        left = place.out / next(each.name for each in place.out.glob(".*"))
        place.run()
        notes = {"notes.txt", "runs/notes.txt", "data/notes.txt"}
        assert set(contents(place.out)) - set(before) == {*notes, left.name}  # which may be a report that is being written
        os.utime(left, (0, time.time() - 7200))
        place.run()
        assert set(contents(place.out)) - set(before) == notes

    @pytest.mark.long
    def test_a_full_disk_keeps_what_is_done(self, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        save, calls = np.savez, []

        def full_after_three(file: Any, **arrays: Any) -> None:
            calls.append(file)
            if len(calls) > 3:
                file.write(b"half")
                raise OSError(28, "No space left on device")
            save(file, **arrays)

        work = partial(study_work.fake, log=place.log)
        with monkeypatch.context() as patch:
            patch.setattr(np, "savez", full_after_three)
            with pytest.raises(OSError, match=r"results to .*out, but could not \(No space left on device\): make room"):
                run_study(place.config, place.out, Processes(1), work=work)
        assert not any(map(is_running, processes_of(place.log)))
        assert len(list((place.out / "runs").glob("*.json"))) == 3
        assert not [name for name in contents(place.out) if "partial" in name or "lock" in name]
        place.run()
        run_study(place.config, tmp_path / "fresh", work=study_work.fake)
        assert contents(place.out) == contents(tmp_path / "fresh")


def started(place: Place) -> subprocess.Popen[bytes]:
    """A study in a process of its own, of whose groups at least one is under way."""
    place.log.unlink(missing_ok=True)
    script = str(Path(__file__).with_name("study_work.py"))
    arguments = [str(each) for each in (place.source.path, place.out, place.log)]
    study = subprocess.Popen([sys.executable, script, *arguments], stderr=subprocess.PIPE, start_new_session=True)
    wait_for(lambda: place.log.exists() or study.poll() is not None)
    assert study.poll() is None, study.communicate()
    return study


class TestBeingStopped:
    @pytest.mark.long
    def test_killed_at_two_random_moments_it_ends_with_the_same_bytes(self, place: Place, tmp_path: Path) -> None:
        moments = random.Random(SEED)
        for done in range(2):
            study = started(place)
            wait_for(lambda: len(list((place.out / "runs").glob("*.json"))) >= done)  # noqa: B023
            time.sleep(moments.uniform(0, 0.5))
            study.kill()
            study.communicate()
            assert study.returncode == -signal.SIGKILL
            wait_for(lambda: not any(map(is_running, processes_of(place.log))), 5)
        config = small_study(place.source, folds=8)
        assert 0 < len(list((place.out / "runs").glob("*.json"))) < 16
        place.run(config)
        run_study(config, tmp_path / "fresh", work=study_work.fake)
        assert contents(place.out) == contents(tmp_path / "fresh")

    @pytest.mark.long
    def test_interrupted_it_ends_at_once_and_leaves_no_process_no_lock_and_no_half_file(self, place: Place) -> None:
        study = started(place)
        os.killpg(study.pid, signal.SIGINT)  # as a terminal does, to all of them
        _, printed = study.communicate(timeout=5)
        assert printed.strip().endswith(b"KeyboardInterrupt")
        assert not any(map(is_running, processes_of(place.log)))
        assert not [name for name in contents(place.out) if "partial" in name or "lock" in name]
