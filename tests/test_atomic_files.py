"""Files are written whole or not at all, by one run at a time."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from rightloss.atomic_files import only_run, whole_file, write_whole


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_whole(tmp_path / "a.txt", "old")

    def fail(source: str, target: Path) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr("os.replace", fail)
        with pytest.raises(OSError, match="no space"):
            write_whole(tmp_path / "a.txt", "new")
    with pytest.raises(UnicodeEncodeError):
        write_whole(tmp_path / "a.txt", "half of it, then \ud800")
    assert contents(tmp_path) == {"a.txt": b"old"}


def test_the_old_file_stands_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with whole_file(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert contents(tmp_path) == {"a.bin": b"new"}


def test_an_interruption_removes_what_was_written(tmp_path: Path) -> None:
    def interrupted() -> None:
        with whole_file(tmp_path / "a.bin") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("mask", [0o022, 0o027])
def test_a_file_has_the_permissions_of_any_other(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        (tmp_path / "plain").touch()
        write_whole(tmp_path / "whole", "")
        assert os.umask(mask) == mask
    finally:
        os.umask(before)
    assert (tmp_path / "whole").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_lock_names_its_holder_and_leaves_no_file(tmp_path: Path) -> None:
    with only_run(tmp_path / "out"):
        assert [path.name for path in tmp_path.iterdir()] == ["out.lock"]
        with pytest.raises(ValueError, match=rf"but process {os.getpid()} on .* does: wait"), only_run(tmp_path / "out"):
            pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_the_lock_of_a_killed_process_locks_nobody_out(tmp_path: Path) -> None:
    program = "import os, pathlib, sys; from rightloss.atomic_files import only_run\n"
    program += "with only_run(pathlib.Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path / "out")])
    assert (killed.returncode, (tmp_path / "out.lock").exists()) == (-9, True)
    with only_run(tmp_path / "out"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_lock_holds_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk the file can be created, but nothing written into it."""

    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", full)
    with only_run(tmp_path / "out"):
        with pytest.raises(ValueError, match="but process of an unknown number does"), only_run(tmp_path / "out"):
            pass
    assert list(tmp_path.iterdir()) == []
