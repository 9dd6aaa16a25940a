"""From a folder of DICOM series to a nodule archive: what is in it, what is told, and what survives a kill."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from dicom_series import LOG, Scan, nodule_table, ramp, several_scans, write_scan, write_slice
from members import assert_refused, unchecked_types

from rightloss.lidc import prepare as preparing
from rightloss.lidc.archive import read_archive
from rightloss.lidc.parts import make_part, part_job, read_part
from rightloss.lidc.prepare import prepare
from rightloss.lidc.workers import Failure, run_jobs

SIZE = 8


def write_all(folder: Path, scans: dict[str, Scan]) -> None:
    for patient, scan in scans.items():
        write_scan(folder / patient, scan, ramp)


def arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def remarks(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


class TestTheArchive:
    def test_it_holds_the_patches_and_the_table_in_its_order(self, tmp_path: Path) -> None:
        scans = several_scans(3)
        write_all(tmp_path / "dicom", scans)
        table = nodule_table(scans).iloc[[3, 0, 4, 5, 1, 2]]  # series mixed
        prepared = prepare(tmp_path / "dicom", tmp_path / "n.npz", workers=0, size=SIZE, nodules=table)
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

    def test_ratings_are_what_the_readers_gave_a_column_each(self, tmp_path: Path) -> None:
        scans = several_scans(1)
        write_all(tmp_path / "dicom", scans)
        table = nodule_table(scans, per_scan=3)
        table[[f"rating_{r}" for r in range(1, 6)]] = [[0, 2, 0, 1, 0], [0, 0, 0, 0, 1], [1, 1, 1, 1, 1]]
        prepare(tmp_path / "dicom", tmp_path / "n.npz", workers=0, size=SIZE, nodules=table)
        assert arrays(tmp_path / "n.npz")["ratings"].tolist() == [[2, 2, 4, 0, 0], [5, 0, 0, 0, 0], [1, 2, 3, 4, 5]]

    def test_it_is_a_nodule_archive_and_the_same_bytes_from_several_processes(self, tmp_path: Path) -> None:
        scans = several_scans(4)
        write_all(tmp_path / "dicom", scans)
        table, seen = nodule_table(scans), []
        with unchecked_types():
            prepare(tmp_path / "dicom", tmp_path / "a.npz", workers=0, size=SIZE, nodules=table)
            prepare(tmp_path / "dicom", tmp_path / "b.npz", 2, SIZE, lambda *step: seen.append(step), nodules=table)
        assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
        assert [done for done, _, _ in seen] == [0, 0, 1, 2, 3, 4, 4]
        assert {total for _, total, _ in seen} == {4}
        archive = read_archive(tmp_path / "a.npz")
        assert archive.shape == (8, SIZE, SIZE, SIZE)
        assert set(archive.patients.tolist()) == set(scans)

    def test_only_the_series_asked_for_are_cut(self, tmp_path: Path) -> None:
        scans = several_scans(3)
        write_all(tmp_path / "dicom", scans)
        wanted = scans["P-01"].uid
        prepare(tmp_path / "dicom", tmp_path / "n.npz", workers=0, size=SIZE, series=[wanted], nodules=nodule_table(scans))
        assert set(arrays(tmp_path / "n.npz")["series_uid"]) == {wanted}


class TestWhatIsSkipped:
    def test_one_bad_series_or_nodule_does_not_stop_the_rest_and_is_told(self, tmp_path: Path) -> None:
        scans = several_scans(5)
        present = {patient: scan for patient, scan in scans.items() if patient != "P-04"}
        write_all(tmp_path / "dicom", present)
        for path in (tmp_path / "dicom" / "P-01").iterdir():
            path.write_bytes(path.read_bytes()[:-3])  # every slice cut short
        write_slice(tmp_path / "dicom" / "P-02" / "double.dcm", scans["P-02"], 3, np.full((16, 18), 9.0), number=2)
        table = nodule_table(scans)
        table.loc[7, "z"] = 0.0  # of P-03, and nowhere near its scan
        prepared = prepare(tmp_path / "dicom", tmp_path / "n.npz", workers=0, size=SIZE, nodules=table)
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
        scans = several_scans(1)
        write_all(tmp_path / "dicom", scans)
        table = nodule_table(scans)
        table["z"] = 0.0
        prepared = prepare(tmp_path / "dicom", tmp_path / "n.npz", workers=0, size=SIZE, nodules=table)
        assert (prepared.path, prepared.nodules) == (None, 0)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["dicom", "n.skipped.csv"]
        assert len(remarks(prepared.remarks_path)) == 2

    def test_a_scan_cut_short_does_not_pass_for_one_that_ends_there(self, tmp_path: Path) -> None:
        (scan,) = several_scans(1, slices=30).values()
        files = write_scan(tmp_path, scan, ramp)
        z = [float(scan.origin_of(index)[2]) for index in range(30)]
        have = [files[index] for index in range(20)]  # the download stopped here
        job = part_job(tmp_path, have, {1: (9.0, 8.0, z[8]), 2: (9.0, 8.0, z[17])}, SIZE, z)
        make_part(job)
        part = read_part(job["part"])
        assert part.nodules.tolist() == [1]
        assert "1 slices that it needs are missing at the scan's end" in part.skipped[2]
        assert "10 slices missing at its ends" in part.notes[0][1]
        unaware = part_job(tmp_path, have, {2: (9.0, 8.0, z[17])}, SIZE)
        make_part(unaware)
        assert read_part(unaware["part"]).nodules.tolist() == [2]


class TestWorkers:
    def test_a_process_that_dies_or_hangs_costs_only_its_series(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        scans = several_scans(4)
        write_all(tmp_path / "dicom", scans)
        monkeypatch.setattr(preparing, "_MAKE_PART", "dicom_series:crash_in_one")
        prepared = prepare(tmp_path / "dicom", tmp_path / "n.npz", 1, SIZE, nodules=nodule_table(scans), timeout=4.0)
        assert arrays(tmp_path / "n.npz")["patient_id"].tolist() == ["P-00", "P-00", "P-03", "P-03"]
        reasons = {row["patient_id"]: row["reason"] for row in remarks(prepared.remarks_path)}
        assert "SIGSEGV" in reasons["P-01"]
        assert reasons["P-02"] == "given up after 4 s"

    def test_results_and_errors_come_back_with_their_jobs_whatever_is_printed(self) -> None:
        jobs = [[], [1, 2], "unbalanced"]
        found = {json.dumps(job): result for job, result in run_jobs("dicom_series:noisy_sum", jobs, 1, 60.0)}
        assert found == {"[]": 0, "[1, 2]": 3, '"unbalanced"': Failure("no numbers in 'unbalanced'", "ValueError")}

    def test_no_process_is_left_when_it_is_stopped(self) -> None:
        results = run_jobs("dicom_series:own_process", list(range(8)), 1, 60.0)
        pid = next(results)[1]
        results.close()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


KILLED = """
import sys, pandas as pd
sys.path.insert(0, sys.argv[1])
from rightloss.lidc import prepare as preparing
preparing._MAKE_PART = "dicom_series:slow_and_logged"
preparing.prepare(sys.argv[2], sys.argv[3], workers=1, size=8, nodules=pd.read_csv(sys.argv[4]))
"""


def number_of_parts(out: Path) -> int:
    return len(list(out.with_name(out.name + ".parts").glob("[0-9a-f]*.npz")))


def wait_for_the_worker(out: Path, log: Path) -> None:
    """A worker whose parent is gone still does its job: all that it began is done, and for a second nothing begins."""
    quiet = 0
    while quiet < 20:
        quiet = quiet + 1 if number_of_parts(out) == len(log.read_text().splitlines()) else 0
        time.sleep(0.05)


class TestResuming:
    def test_a_killed_run_goes_on_and_gives_the_same_bytes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        scans, out, log = several_scans(5), tmp_path / "n.npz", tmp_path / "log"
        write_all(tmp_path / "dicom", scans)
        nodule_table(scans).to_csv(tmp_path / "table.csv", index=False)
        table = pd.read_csv(tmp_path / "table.csv")
        monkeypatch.setenv(LOG, str(log))
        arguments = [str(path) for path in (Path(__file__).parent, tmp_path / "dicom", out, tmp_path / "table.csv")]
        run = subprocess.Popen([sys.executable, "-c", KILLED, *arguments])
        while number_of_parts(out) < 2:
            assert run.poll() is None
            time.sleep(0.02)
        run.send_signal(signal.SIGKILL)
        run.wait()
        wait_for_the_worker(out, log)
        assert not out.exists()
        made = number_of_parts(out)
        assert 2 <= made < 5
        before = log.read_text().splitlines()
        monkeypatch.setattr(preparing, "_MAKE_PART", "dicom_series:slow_and_logged")
        prepare(tmp_path / "dicom", out, workers=0, size=8, nodules=table)
        assert len(log.read_text().splitlines()) - len(before) == 5 - made  # none of those that were done
        prepare(tmp_path / "dicom", tmp_path / "fresh.npz", workers=0, size=8, nodules=table)
        assert out.read_bytes() == (tmp_path / "fresh.npz").read_bytes()
        assert not (tmp_path / "n.npz.parts").exists()

    @pytest.mark.parametrize(
        "flaw", ["none", "truncated", "flipped", "foreign", "another size", "another table", "another file"]
    )
    def test_parts_that_are_damaged_or_of_something_else_are_made_again(
        self, flaw: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scans, out, log = several_scans(3), tmp_path / "n.npz", tmp_path / "log"
        write_all(tmp_path / "dicom", scans)
        table, size = nodule_table(scans), 6
        arguments: dict[str, Any] = {"workers": 0, "size": size, "nodules": table}

        def interrupt(done: int, total: int, text: str) -> None:
            if done == 3:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            prepare(tmp_path / "dicom", out, progress=interrupt, **arguments)
        part = sorted((tmp_path / "n.npz.parts").iterdir())[1]
        content = part.read_bytes()
        if flaw == "truncated":
            part.write_bytes(content[:-30])
        elif flaw == "flipped":
            part.write_bytes(content[:700] + bytes([content[700] ^ 1]) + content[701:])
        elif flaw == "foreign":
            part.write_text("not a part")
        elif flaw == "another size":
            arguments["size"] = 7
        elif flaw == "another table":
            table.loc[0, "x"] += 0.5
        elif flaw == "another file":
            os.utime(next((tmp_path / "dicom" / "P-01").iterdir()), ns=(1, 1))
        monkeypatch.setenv(LOG, str(log))
        monkeypatch.setattr(preparing, "_MAKE_PART", "dicom_series:logged")
        log.touch()
        prepare(tmp_path / "dicom", out, **arguments)
        assert len(log.read_text().splitlines()) == {"none": 0, "another size": 3}.get(flaw, 1)
        prepare(tmp_path / "dicom", tmp_path / "fresh.npz", **arguments)
        assert out.read_bytes() == (tmp_path / "fresh.npz").read_bytes()


def test_a_full_disk_stops_it_and_keeps_what_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scans = several_scans(3)
    write_all(tmp_path / "dicom", scans)
    arguments: dict[str, Any] = {"workers": 0, "size": SIZE, "nodules": nodule_table(scans)}
    save, calls = np.savez, []

    def full_after_one(file: Any, **arrays: Any) -> None:
        calls.append(file)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        save(file, **arrays)

    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", full_after_one)
        with pytest.raises(OSError, match="No space left on device: is the disk full"):
            prepare(tmp_path / "dicom", tmp_path / "n.npz", **arguments)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dicom", "n.npz.parts"]
    assert [path.suffix for path in (tmp_path / "n.npz.parts").iterdir()] == [".npz"]
    assert prepare(tmp_path / "dicom", tmp_path / "n.npz", **arguments).nodules == 6


def in_place(folder: Path, **changes: Any) -> Callable[[], Any]:
    """A call that works but for what is changed."""
    scans = several_scans(1)
    write_all(folder / "dicom", scans)
    table = nodule_table(scans)
    given = {"dicom": folder / "dicom", "out": folder / "n.npz", "workers": 0, "size": SIZE, "nodules": table}
    given |= {name: change(table) if callable(change) else change for name, change in changes.items()}
    return lambda: prepare(**given)


BAD: dict[str, tuple[Callable[[Path], Callable[[], Any]], str]] = {
    "no folder": (lambda at: in_place(at, dicom=at / "nowhere"), "a folder of DICOM files"),
    "a folder without DICOM": (lambda at: in_place(at, dicom=at), "DICOM files in .* but got none among 0 files"),
    "other series": (
        lambda at: in_place(at, nodules=lambda table: table.assign(series_uid="1.2.3")),
        "series of the table .* but got 12 DICOM files of other series",
    ),
    "no .npz": (lambda at: in_place(at, out=at / "n.h5"), r"an \.npz file"),
    "no folder to write to": (lambda at: in_place(at, out=at / "nowhere" / "n.npz"), "make the folder"),
    "a size of nothing": (lambda at: in_place(at, size=0), "`size`"),
    "fewer than no workers": (lambda at: in_place(at, workers=-1), "`workers`"),
    "unknown series": (lambda at: in_place(at, series=["1.2.3"]), r"\['1.2.3'\] are not in it"),
    "no z": (lambda at: in_place(at, nodules=lambda table: table.drop(columns="z")), r"lacks \['z'\]"),
    "a name of ours": (lambda at: in_place(at, nodules=lambda table: table.assign(patches=1)), r"has \['patches'\]"),
    "a gap": (lambda at: in_place(at, nodules=lambda table: table.assign(x=np.nan)), "finite columns"),
    "doubles": (lambda at: in_place(at, nodules=lambda table: table.assign(nodule=1)), "numbers of their own"),
    "no nodules": (lambda at: in_place(at, nodules=lambda table: table.iloc[:0]), "the table has none"),
    "no ratings": (
        lambda at: in_place(at, nodules=lambda table: table.assign(**{f"rating_{r}": 0 for r in range(1, 6)})),
        "a rating for every nodule",
    ),
    "a path for a UID": (lambda at: in_place(at, nodules=lambda table: table.assign(series_uid="../x")), "DICOM UIDs"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_at_once_and_leaves_nothing(what: str, tmp_path: Path) -> None:
    make, words = BAD[what]
    call = make(tmp_path)
    if what == "a folder without DICOM":
        for path in (tmp_path / "dicom" / "P-00").iterdir():
            path.unlink()
    assert_refused(call, words)
    assert [path.name for path in tmp_path.iterdir()] == ["dicom"]


def test_an_archive_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    call = in_place(tmp_path)
    (tmp_path / "n.npz").write_bytes(b"dear")
    assert_refused(call, "a new file")
    assert (tmp_path / "n.npz").read_bytes() == b"dear"


def test_the_shipped_table_is_the_default(tmp_path: Path) -> None:
    """A synthetic scan under the name of a real one, with the slices that the table says it has."""
    table, positions = preparing.all_nodules(), preparing.scan_positions()
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
