"""Runs that are stopped, killed or failed from outside: what is kept, and that going on ends in the same bytes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from dicom_series import LOG, is_running, nodule_table, several_scans, write_all
from members import assert_refused
from typer.testing import CliRunner

from rightloss import cli
from rightloss.lidc.ct import preparation as preparing
from rightloss.lidc.ct.preparation import prepare

SIZE = 8


def reasons(path: Path) -> dict[str, str]:
    table = pd.read_csv(path)
    return dict(zip(table["patient_id"], table["reason"], strict=True))


class TestTroubleFromOutside:
    def test_files_that_vanish_are_tried_again_and_what_was_done_stays(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scans, dicom, out, log = several_scans(4), tmp_path / "dicom", tmp_path / "n.npz", tmp_path / "log"
        write_all(dicom, scans)
        arguments: dict[str, Any] = {"workers": 0, "size": SIZE, "nodules": nodule_table(scans)}

        def unmount(done: int, total: int, text: str) -> None:
            if done == 2 and dicom.exists():
                dicom.rename(tmp_path / "away")

        half = prepare(dicom, out, progress=unmount, **arguments)
        assert (half.nodules, half.series_failed) == (4, (scans["P-02"].uid, scans["P-03"].uid))
        assert half.parts == tmp_path / "n.npz.parts"
        assert "2 series failed" in str(half)
        assert "again" in str(half)
        assert [patient for patient, why in reasons(half.remarks_path).items() if "No such file" in why] == ["P-02", "P-03"]
        (tmp_path / "away").rename(dicom)
        log.touch()
        monkeypatch.setenv(LOG, str(log))
        monkeypatch.setattr(preparing, "_MAKE_PART", "dicom_series:logged")
        whole = prepare(dicom, out, **arguments)
        assert log.read_text().split() == ["P-02", "P-03"]
        assert (whole.nodules, whole.series_failed, whole.parts) == (8, (), None)
        prepare(dicom, tmp_path / "fresh.npz", **arguments)
        assert out.read_bytes() == (tmp_path / "fresh.npz").read_bytes()
        assert not (tmp_path / "n.npz.parts").exists()
        assert_refused(lambda: prepare(dicom, out, **arguments), "a new file")

    def test_going_on_never_replaces_an_archive_by_a_smaller_or_anothers(self, tmp_path: Path) -> None:
        scans, dicom, out = several_scans(3), tmp_path / "dicom", tmp_path / "n.npz"
        write_all(dicom, scans)
        arguments: dict[str, Any] = {"workers": 0, "size": SIZE, "nodules": nodule_table(scans)}

        def lose(done: int, total: int, text: str) -> None:
            if done == 2 and (dicom / "P-02").exists():
                (dicom / "P-02").rename(tmp_path / "P-02")

        assert prepare(dicom, out, progress=lose, **arguments).nodules == 4
        (dicom / "P-01").rename(tmp_path / "P-01")
        before = out.read_bytes()
        with pytest.raises(OSError, match="has 4 nodules, and this run could cut only 2"):
            prepare(dicom, out, **arguments)
        assert out.read_bytes() == before
        out.write_bytes(before + b" ")
        assert_refused(lambda: prepare(dicom, out, **arguments), "a new file")

    def test_a_folder_that_cannot_be_opened_is_looked_into_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        scans, out, scandir = several_scans(2), tmp_path / "n.npz", os.scandir
        write_all(tmp_path / "dicom", scans)
        arguments: dict[str, Any] = {"workers": 0, "size": SIZE, "nodules": nodule_table(scans)}

        def locked(path: Any) -> Any:
            if str(path).endswith("P-01"):
                raise PermissionError(13, "Permission denied", str(path))
            return scandir(path)

        with monkeypatch.context() as patch:
            patch.setattr(os, "scandir", locked)
            half = prepare(tmp_path / "dicom", out, **arguments)
        assert (half.nodules, half.parts) == (2, tmp_path / "n.npz.parts")
        assert "Permission denied" in half.remarks[0].text
        assert prepare(tmp_path / "dicom", out, **arguments).nodules == 4

    def test_the_command_says_that_its_archive_is_incomplete(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        scans, arguments = several_scans(2), ["lidc", "prepare", "--dicom", str(tmp_path / "dicom"), "--workers", "0", "--out"]
        write_all(tmp_path / "dicom", scans)
        monkeypatch.setattr(preparing, "all_nodules", lambda: nodule_table(scans))
        monkeypatch.setattr(preparing, "scan_positions", dict)
        with monkeypatch.context() as patch:
            patch.setattr(preparing, "_MAKE_PART", "dicom_series:out_of_reach_in_one")
            result = CliRunner().invoke(cli.application(), [*arguments, str(tmp_path / "n.npz")])
        assert (result.exit_code, result.stderr) == (
            1,
            "rightloss: the archive is incomplete; run again to try again what failed\n",
        )
        assert str(tmp_path / "n.npz") in result.stdout.splitlines()
        assert CliRunner().invoke(cli.application(), [*arguments, str(tmp_path / "n.npz")]).exit_code == 0

    def test_what_every_series_would_meet_stops_the_run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        scans = several_scans(2)
        write_all(tmp_path / "dicom", scans)
        monkeypatch.setattr(preparing, "_MAKE_PART", "dicom_series:without_scipy")
        with pytest.raises(OSError, match="scipy is needed"):
            prepare(tmp_path / "dicom", tmp_path / "n.npz", workers=0, size=SIZE, nodules=nodule_table(scans))
        assert not (tmp_path / "n.npz").exists()

    def test_two_runs_for_one_archive_do_not_meet(self, tmp_path: Path) -> None:
        scans, out, lock = several_scans(2), tmp_path / "n.npz", tmp_path / "n.npz.lock"
        write_all(tmp_path / "dicom", scans)
        arguments: dict[str, Any] = {"workers": 0, "size": SIZE, "nodules": nodule_table(scans)}
        refused = []

        def other(done: int, total: int, text: str) -> None:
            assert_refused(lambda: prepare(tmp_path / "dicom", out, **arguments), "no other run to write")
            refused.append(text)

        ended = subprocess.Popen([sys.executable, "-c", ""])
        ended.wait()
        lock.write_text(f"{ended.pid} on {socket.gethostname()}\n")  # left by a kill
        assert prepare(tmp_path / "dicom", out, progress=other, **arguments).nodules == 4
        assert len(refused) == 5
        assert not lock.exists()

    def test_how_the_folder_is_spelt_makes_no_difference_to_going_on(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scans, out, log = several_scans(2), tmp_path / "n.npz", tmp_path / "log"
        write_all(tmp_path / "dicom", scans)
        arguments: dict[str, Any] = {"workers": 0, "size": SIZE, "nodules": nodule_table(scans)}
        log.touch()
        monkeypatch.setenv(LOG, str(log))
        monkeypatch.setattr(preparing, "_MAKE_PART", "dicom_series:logged")
        monkeypatch.chdir(tmp_path)

        def interrupt(done: int, total: int, text: str) -> None:
            if done == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            prepare("dicom", out, progress=interrupt, **arguments)
        assert prepare(tmp_path / "." / "dicom", "n.npz", **arguments).nodules == 4
        assert len(log.read_text().split()) == 2


KILLED = """
import sys, pandas as pd
sys.path.insert(0, sys.argv[1])
from rightloss.lidc.ct import preparation as preparing
preparing._MAKE_PART = "dicom_series:slow_and_logged"
preparing.prepare(sys.argv[2], sys.argv[3], workers=1, size=8, nodules=pd.read_csv(sys.argv[4]))
"""


def number_of_parts(out: Path) -> int:
    return len(list(out.with_name(out.name + ".parts").glob("[0-9a-f]*.npz")))


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
        while is_running(int(log.read_text().split()[-1])):  # a worker whose parent is gone
            time.sleep(0.02)
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
