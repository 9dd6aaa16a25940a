"""From a folder of DICOM series to a nodule archive: its content, what is skipped, and runs that are stopped or killed."""

from __future__ import annotations

import csv
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import dicom_series
import numpy as np
import pandas as pd
import pytest
from dicom_series import LOG, Scan, nodule_table, ramp, several_scans, write_all, write_scan, write_slice
from members import assert_refused, unchecked_types
from typer.testing import CliRunner
from worker_jobs import is_running

from rightloss import cli
from rightloss.lidc.archive import read_archive
from rightloss.lidc.ct import preparation
from rightloss.lidc.ct.preparation import Prepared, make_shard, prepare, read_shard, shard_job

SIZE = 8


def arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def set_up(folder: Path, count: int = 2) -> tuple[dict[str, Scan], pd.DataFrame, partial[Prepared]]:
    """Write scans below `folder`; return them, their nodules, and the call that cuts these into n.npz."""
    scans = several_scans(count)
    write_all(folder / "dicom", scans)
    table = nodule_table(scans)
    return scans, table, partial(prepare, dicom=folder / "dicom", out=folder / "n.npz", workers=0, size=SIZE, nodules=table)


def remarks(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


class TestTheArchive:
    @pytest.mark.long
    def test_it_holds_the_patches_and_the_table_in_its_order(self, tmp_path: Path) -> None:
        scans, table, cut = set_up(tmp_path, 3)
        table = table.iloc[[3, 0, 4, 5, 1, 2]]  # series mixed
        prepared = cut(nodules=table)
        found = arrays(tmp_path / "n.npz")
        assert (prepared.nodules, prepared.wanted, prepared.series_read, prepared.remarks) == (6, 6, 3, ())
        assert found["patches"].dtype == np.int16
        away = np.arange(SIZE) - (SIZE - 1) / 2
        by_patient = {scan.uid: scan for scan in scans.values()}
        for row, patch in zip(table.itertuples(), found["patches"], strict=True):
            scan = by_patient[row.series_uid]
            centre = scan.place(row.x, row.y, (row.z - scan.origin[2]) / scan.step[2])
            k, j, i = np.meshgrid(away, away, away, indexing="ij")
            assert np.abs(patch - ramp(centre + np.stack([i, j, k], -1))).max() <= 1 + 1e-6
        for name in ("patient_id", "series_uid", "x", "y", "z", "diameter_mm", "contrast", "scan", "rating_2"):
            np.testing.assert_array_equal(found[name], table[name].to_numpy(dtype=found[name].dtype))
        np.testing.assert_array_equal(found["nodule_id"], table["nodule"])
        np.testing.assert_array_equal(found["spacing_mm"], 1.0)
        np.testing.assert_array_equal(found["outside"], 0.0)
        assert "nodule" not in found
        assert sorted(path.name for path in tmp_path.iterdir()) == ["dicom", "n.npz", "n.skipped.csv"]

    @pytest.mark.long
    def test_it_is_a_nodule_archive_and_the_same_bytes_from_several_processes(self, tmp_path: Path) -> None:
        (scans, _, cut), seen = set_up(tmp_path, 4), []
        with unchecked_types():
            cut()
            cut(out=tmp_path / "b.npz", workers=2, progress=lambda *step: seen.append(step))
        assert (tmp_path / "n.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
        assert [done for done, _, _ in seen] == [0, 0, 1, 2, 3, 4, 4]
        assert {total for _, total, _ in seen} == {4}
        archive = read_archive(tmp_path / "n.npz")
        assert archive.shape == (8, SIZE, SIZE, SIZE)
        assert set(archive.patients.tolist()) == set(scans)

    def test_of_a_users_table_the_series_asked_for_are_cut_with_the_ratings_that_readers_gave(self, tmp_path: Path) -> None:
        scans, _, cut = set_up(tmp_path, 2)
        table = nodule_table(scans, per_scan=3).assign(patient_id=7, nodule=[9.0, 8.0, 7.0, 4.0, 2.0, 3.0])
        table.loc[3:, [f"rating_{r}" for r in range(1, 6)]] = [[0, 2, 0, 1, 0], [0, 0, 0, 0, 1], [1, 1, 1, 1, 1]]
        cut(nodules=table.drop(columns="diameter_mm"), series=[scans["P-01"].uid])
        archive = read_archive(tmp_path / "n.npz")
        assert archive.patients.tolist() == ["7"] * 3
        assert archive.columns["nodule_id"].tolist() == [4, 2, 3]
        assert set(archive.columns["series_uid"]) == {scans["P-01"].uid}
        assert archive.ratings.tolist() == [[2, 2, 4, 0, 0], [5, 0, 0, 0, 0], [1, 2, 3, 4, 5]]


class TestWhatIsSkipped:
    @pytest.mark.long
    def test_one_bad_series_or_nodule_does_not_stop_the_rest_and_is_reported(self, tmp_path: Path) -> None:
        scans, table, cut = set_up(tmp_path, 5)
        shutil.rmtree(tmp_path / "dicom" / "P-04")
        for path in (tmp_path / "dicom" / "P-01").iterdir():
            path.write_bytes(path.read_bytes()[:-3])  # every slice cut short
        write_slice(tmp_path / "dicom" / "P-02" / "double.dcm", scans["P-02"], 3, np.full((16, 18), 9.0), number=2)
        table.loc[7, "z"] = 0.0  # of P-03, and nowhere near its scan
        prepared = cut()
        found = arrays(tmp_path / "n.npz")
        assert found["patient_id"].tolist() == ["P-00", "P-00", "P-02", "P-02", "P-03"]
        assert (prepared.nodules, prepared.wanted, prepared.series_read) == (5, 10, 3)
        assert prepared.series_missing == (scans["P-04"].uid,)
        rows = {(row["patient_id"], row["nodule"], row["outcome"]): row["reason"] for row in remarks(prepared.remarks_path)}
        assert len(rows) == 4
        assert "at least 2 slices" in rows["P-01", "", "skipped"]
        assert "double.dcm left out" in rows["P-02", "", "used"]
        assert "a centre within the scan" in rows["P-03", "73", "skipped"]
        assert rows["P-04", "", "skipped"] == "not found"
        assert "5 of 10 written, 1 skipped" in str(prepared)
        assert "3 read, 1 not found, 1 unreadable; 1 remarks" in str(prepared)

    def test_no_archive_is_written_of_nothing(self, tmp_path: Path) -> None:
        _, table, cut = set_up(tmp_path, 1)
        prepared = cut(nodules=table.assign(z=0.0))
        assert (prepared.path, prepared.nodules) == (None, 0)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["dicom", "n.skipped.csv"]
        assert len(remarks(prepared.remarks_path)) == 2

    @pytest.mark.long
    def test_missing_slices_are_found_by_the_table_of_positions(self, tmp_path: Path) -> None:
        (scan,) = several_scans(1, slices=30).values()
        files = write_scan(tmp_path, scan, ramp)
        z = [float(scan.origin_of(index)[2]) for index in range(30)]
        nodules = pd.DataFrame({"nodule": [1, 2, 3, 4], "x": 9.0, "y": 8.0, "diameter_mm": 3.0})
        nodules["z"] = [z[at] for at in (8, 16, 17, 4)]
        have = [files[index] for index in range(20) if index != 4]  # the download stopped here
        job = shard_job(tmp_path, tmp_path, have, nodules, SIZE, z)
        make_shard(job)
        shard = read_shard(job.path)
        assert shard.nodules.tolist() == [1, 2]
        (third, fourth), notes = shard.remarks[:2], shard.remarks[2:]
        assert (third[:2], fourth[:2]) == ((3, True), (4, True))
        assert "10 are missing at the scan's end" in third[2]
        assert "every slice through the nodule" in fourth[2]
        assert [text for number, skipped, text in notes if number is None and not skipped] == [
            f"1 slice missing between {files[3].name} (z = {z[3]:g} mm) and {files[5].name} (z = {z[5]:g} mm)",
            f"10 slices missing above {files[19].name} (z = {z[19]:g} mm), the last",
        ]
        unaware = shard_job(tmp_path, tmp_path, have, nodules, SIZE)
        make_shard(unaware)
        assert read_shard(unaware.path).nodules.tolist() == [1, 2, 3]


def table_with(**columns: Any) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda table: table.assign(**columns)


# What is given instead, as a function of the folder, or of the table for `nodules`; and what the error says.
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no folder": ({"dicom": lambda at: at / "nowhere"}, "a folder of DICOM files"),
    "a folder without DICOM": ({"dicom": lambda at: at / "dicom" / "P-00"}, "DICOM files in .* but got none"),
    "other series": (
        {"nodules": table_with(series_uid="1.2.3")},
        "series of the table .* but got 12 DICOM files of other series",
    ),
    "no .npz": ({"out": lambda at: at / "n.h5"}, r"an \.npz file"),
    "no folder to write to": ({"out": lambda at: at / "nowhere" / "n.npz"}, "make the folder"),
    "a size of nothing": ({"size": lambda at: 0}, "`size`"),
    "fewer than no workers": ({"workers": lambda at: -1}, "`workers`"),
    "unknown series": ({"series": lambda at: ["1.2.3"]}, r"\['1.2.3'\] are not in it"),
    "half a nodule": ({"nodules": lambda table: table.assign(nodule=table["nodule"] + 0.5)}, "whole numbers"),
    "durations": ({"nodules": table_with(extra=pd.Timedelta(1, "s"))}, "`extra` to be numbers or text"),
    "half a reader": ({"nodules": table_with(rating_2=1.5)}, "whole counts"),
    "no patient": ({"nodules": table_with(patient_id="")}, "a `patient_id`"),
    "no z": ({"nodules": lambda table: table.drop(columns="z")}, r"lacks \['z'\]"),
    "a name of ours": ({"nodules": table_with(patches=1)}, r"has \['patches'\]"),
    "no nodules": ({"nodules": lambda table: table.iloc[:0]}, "the table has none"),
    "no ratings": ({"nodules": table_with(**{f"rating_{r}": 0 for r in range(1, 6)})}, "a rating in every row|`ratings`"),
}


@pytest.mark.long
@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_at_once_and_leaves_nothing(what: str, tmp_path: Path) -> None:
    (_, table, cut), (changes, words) = set_up(tmp_path, 1), BAD[what]
    if what == "a folder without DICOM":
        for path in (tmp_path / "dicom" / "P-00").iterdir():
            path.unlink()
    given = {name: change(table if name == "nodules" else tmp_path) for name, change in changes.items()}
    assert_refused(lambda: cut(**given), words)
    assert [path.name for path in tmp_path.iterdir()] == ["dicom"]


def test_an_archive_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "n.npz").write_bytes(b"precious")
    assert_refused(set_up(tmp_path, 1)[2], "a new file")
    assert (tmp_path / "n.npz").read_bytes() == b"precious"


@pytest.mark.long
def test_the_shipped_table_is_the_default(tmp_path: Path) -> None:
    """A synthetic scan under the name of a real one, with the slices that the table says it has."""
    table, positions = preparation.all_nodules(), preparation.scan_positions()
    row = table[(table["slice_spacing"] == 1.0) & (table["x"] < 200)].iloc[0]
    own = table[table["series_uid"] == row.series_uid]
    z = positions[row.series_uid].astype(float)
    low, high = own["z"].min() - 40, own["z"].max() + 40
    scan = Scan(row.series_uid, rows=8, columns=8, spacing=(1.0, 1.0), origin=(0.0, 0.0, 0.0))
    (tmp_path / "dicom").mkdir()
    for k in np.flatnonzero((z > low) & (z < high)):
        at = replace(scan, origin=(0.0, 0.0, float(z[k])))
        write_slice(tmp_path / "dicom" / f"{k}", at, 0, np.full((8, 8), 1.0))
    prepared = prepare(tmp_path / "dicom", tmp_path / "n.npz", workers=0, series=[row.series_uid])
    assert prepared.wanted == len(own)
    # The images are smaller than where the nodules lie: all are skipped, for that reason and no other.
    assert {remark.nodule for remark in prepared.remarks if remark.skipped} == set(own["nodule"])
    assert all("a centre within the scan, 8 × 8 pixels" in remark.text for remark in prepared.remarks if remark.skipped)


class TestFailures:
    @pytest.mark.long
    def test_files_that_vanish_are_tried_again_and_what_was_done_stays(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (scans, _, cut), dicom, log = set_up(tmp_path, 4), tmp_path / "dicom", tmp_path / "log"

        def unmount(done: int, total: int, text: str) -> None:
            if done == 2 and dicom.exists():
                dicom.rename(tmp_path / "away")

        half = cut(progress=unmount)
        assert (half.nodules, half.series_failed) == (4, (scans["P-02"].uid, scans["P-03"].uid))
        assert half.parts == tmp_path / "n.npz.parts"
        assert "2 series failed" in str(half)
        assert "again" in str(half)
        assert [row["patient_id"] for row in remarks(half.remarks_path) if "No such file" in row["reason"]] == ["P-02", "P-03"]
        (tmp_path / "away").rename(dicom)
        log.touch()
        monkeypatch.setenv(LOG, str(log))
        monkeypatch.setattr(preparation, "make_shard", dicom_series.logged)
        whole = cut()
        assert [line.split()[0] for line in log.read_text().splitlines()] == ["P-02", "P-03"]
        assert (whole.nodules, whole.series_failed, whole.parts) == (8, (), None)
        (tmp_path / "fresh.npz.parts").mkdir()
        (tmp_path / "fresh.npz.parts" / "notes.npz").write_text("mine")
        again(tmp_path, cut)
        assert [path.read_text() for path in (tmp_path / "fresh.npz.parts").iterdir()] == ["mine"]
        assert not (tmp_path / "n.npz.parts").exists()
        assert_refused(cut, "a new file")

    @pytest.mark.long
    def test_a_resumed_run_never_replaces_an_archive_by_a_smaller_or_another_one(self, tmp_path: Path) -> None:
        (_, _, cut), dicom, out = set_up(tmp_path, 3), tmp_path / "dicom", tmp_path / "n.npz"

        def lose(done: int, total: int, text: str) -> None:
            if done == 2 and (dicom / "P-02").exists():
                (dicom / "P-02").rename(tmp_path / "P-02")

        assert cut(progress=lose).nodules == 4
        (dicom / "P-01").rename(tmp_path / "P-01")
        before = out.read_bytes()
        with pytest.raises(OSError, match="has 4 nodules, and this run could cut only 2, so it was not replaced"):
            cut()
        assert out.read_bytes() == before
        out.write_bytes(before + b" ")
        assert_refused(cut, "a new file")

    @pytest.mark.long
    def test_a_folder_that_cannot_be_opened_is_tried_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        cut, scandir = set_up(tmp_path)[2], os.scandir

        def locked(path: Any) -> Any:
            if str(path).endswith("P-01"):
                raise PermissionError(13, "Permission denied", str(path))
            return scandir(path)

        with monkeypatch.context() as patch:
            patch.setattr(os, "scandir", locked)
            half = cut()
        assert (half.nodules, half.parts) == (2, tmp_path / "n.npz.parts")
        assert "Permission denied" in half.remarks[0].text
        assert cut().nodules == 4

    @pytest.mark.long
    def test_the_command_says_that_its_archive_is_incomplete(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        table, out = set_up(tmp_path)[1], tmp_path / "n.npz"
        arguments = ["lidc", "prepare", "--dicom", str(tmp_path / "dicom"), "--workers", "0", "--out", str(out)]
        monkeypatch.setattr(preparation, "all_nodules", lambda: table)
        monkeypatch.setattr(preparation, "scan_positions", dict)
        with monkeypatch.context() as patch:
            patch.setattr(preparation, "make_shard", dicom_series.out_of_reach_in_one)
            result = CliRunner().invoke(cli.application(), arguments)
        assert result.exit_code == 1
        assert result.stderr == "rightloss: the archive is incomplete; run again to try again what failed\n"
        assert str(out) in result.stdout.splitlines()
        assert CliRunner().invoke(cli.application(), arguments).exit_code == 0

    def test_an_error_that_all_series_would_raise_stops_the_run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        cut = set_up(tmp_path)[2]
        monkeypatch.setattr(preparation, "make_shard", dicom_series.without_scipy)
        with pytest.raises(OSError, match="scipy is needed"):
            cut()
        assert not (tmp_path / "n.npz").exists()

    @pytest.mark.long
    def test_a_second_run_for_the_same_archive_is_refused(self, tmp_path: Path) -> None:
        cut, lock, refused = set_up(tmp_path)[2], tmp_path / "n.npz.lock", []

        def other(done: int, total: int, text: str) -> None:
            assert_refused(cut, "no other run to write")
            refused.append(text)

        ended = subprocess.Popen([sys.executable, "-c", ""])
        ended.wait()
        lock.write_text(f"{ended.pid} {socket.gethostname()}\n")  # left by a kill
        assert cut(progress=other).nodules == 4
        assert len(refused) == 5
        assert not lock.exists()


def again(folder: Path, cut: partial[Prepared]) -> None:
    """Cut the same into a new archive, which must have the same bytes."""
    cut(out=folder / "fresh.npz")
    assert (folder / "n.npz").read_bytes() == (folder / "fresh.npz").read_bytes()


KILLED = """
import sys, pandas as pd
sys.path.insert(0, sys.argv[1])
import dicom_series
from rightloss.lidc.ct import preparation
preparation.make_shard = dicom_series.slow_and_logged
preparation.prepare(sys.argv[2], sys.argv[3], workers=1, size=8, nodules=pd.read_csv(sys.argv[4]))
"""


def number_of_shards(out: Path) -> int:
    return len(list(out.with_name(out.name + ".parts").glob("[0-9a-f]*.npz")))


class TestResuming:
    @pytest.mark.long
    def test_a_killed_run_resumes_with_the_same_bytes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        scans, out, log = several_scans(5), tmp_path / "n.npz", tmp_path / "log"
        write_all(tmp_path / "dicom", scans)
        nodule_table(scans).to_csv(tmp_path / "table.csv", index=False)
        table = pd.read_csv(tmp_path / "table.csv")
        monkeypatch.setenv(LOG, str(log))
        arguments = [str(path) for path in (Path(__file__).parent, tmp_path / "dicom", out, tmp_path / "table.csv")]
        run = subprocess.Popen([sys.executable, "-c", KILLED, *arguments])
        while number_of_shards(out) < 2:
            assert run.poll() is None
            time.sleep(0.02)
        run.send_signal(signal.SIGKILL)
        run.wait()
        while is_running(int(log.read_text().split()[-1])):  # a worker whose parent is gone
            time.sleep(0.02)
        assert not out.exists()
        made = number_of_shards(out)
        assert 2 <= made < 5
        before = log.read_text().splitlines()
        monkeypatch.setattr(preparation, "make_shard", dicom_series.slow_and_logged)
        prepare(tmp_path / "dicom", out, workers=0, size=8, nodules=table)
        assert len(log.read_text().splitlines()) - len(before) == 5 - made  # none of those that were done
        prepare(tmp_path / "dicom", tmp_path / "fresh.npz", workers=0, size=8, nodules=table)
        assert out.read_bytes() == (tmp_path / "fresh.npz").read_bytes()
        assert not (tmp_path / "n.npz.parts").exists()

    @pytest.mark.long
    @pytest.mark.parametrize("flaw", ["none", "flipped", "another size", "another table", "another file"])
    def test_shards_that_are_damaged_or_of_something_else_are_made_again(
        self, flaw: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (_, table, cut), log = set_up(tmp_path, 3), tmp_path / "log"

        def interrupt(done: int, total: int, text: str) -> None:
            if done == 3:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            cut(progress=interrupt)
        monkeypatch.chdir(tmp_path)  # another spelling of the folder makes no difference
        cut = partial(cut, dicom="dicom")
        shard = sorted((tmp_path / "n.npz.parts").iterdir())[1]
        content = shard.read_bytes()
        if flaw == "flipped":
            shard.write_bytes(content[:700] + bytes([content[700] ^ 1]) + content[701:])
        elif flaw == "another size":
            cut = partial(cut, size=7)
        elif flaw == "another table":
            table.loc[0, "x"] += 0.5
        elif flaw == "another file":
            os.utime(next((tmp_path / "dicom" / "P-01").iterdir()), ns=(1, 1))
        monkeypatch.setenv(LOG, str(log))
        monkeypatch.setattr(preparation, "make_shard", dicom_series.logged)
        log.touch()
        cut()
        assert len(log.read_text().splitlines()) == {"none": 0, "another size": 3}.get(flaw, 1)
        again(tmp_path, cut)


@pytest.mark.long
def test_a_full_disk_stops_it_and_keeps_what_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut, save, calls = set_up(tmp_path, 3)[2], np.savez, []

    def full_after_one(file: Any, **arrays: Any) -> None:
        calls.append(file)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        save(file, **arrays)

    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", full_after_one)
        with pytest.raises(OSError, match="No space left on device: is the disk full"):
            cut()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dicom", "n.npz.parts"]
    assert [path.suffix for path in (tmp_path / "n.npz.parts").iterdir()] == [".npz"]
    assert cut().nodules == 6
