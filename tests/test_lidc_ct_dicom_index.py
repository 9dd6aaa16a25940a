"""Series found on disk, in any layout, among whatever else lies there."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from dicom_series import Scan, dataset, ramp, write_scan
from members import assert_refused
from pydicom import Dataset, FileMetaDataset
from pydicom.uid import UID, ExplicitVRLittleEndian, MediaStorageDirectoryStorage

from rightloss.lidc.ct import dicom_files
from rightloss.lidc.ct.dicom_files import find_series, series_uid_of

OTHER = replace(Scan(), uid="1.2.826.0.1.3680043.8.498.2", slices=5, rows=8, columns=9)
SMALL = replace(OTHER, uid="1.2.826.0.1.3680043.8.498.3")


def test_series_are_found_in_any_layout_among_other_files(tmp_path: Path) -> None:
    deep = write_scan(tmp_path / "LIDC-IDRI-0001" / "01-01-2000" / "3000566", OTHER, ramp)
    bare = write_scan(tmp_path / "flat", SMALL, ramp, suffix="")
    mixed = write_scan(tmp_path / "flat", replace(OTHER, uid="1.2.3.9"), ramp, suffix="-b.dcm")
    for name, content in {"LICENSE": b"CC BY", "069.xml": b"<a/>", "thumb.jpg": b"\xff\xd8\xff", "empty.dcm": b""}.items():
        (tmp_path / "flat" / name).write_bytes(content)
    found = find_series(tmp_path)
    assert {uid: set(files) for uid, files in found.series.items()} == {
        OTHER.uid: set(deep.values()),
        SMALL.uid: set(bare.values()),
        "1.2.3.9": set(mixed.values()),
    }
    assert (found.others, found.foreign, found.unreadable) == (0, 4, ())


def test_only_the_wanted_series_are_kept(tmp_path: Path) -> None:
    files = write_scan(tmp_path, OTHER, ramp)
    write_scan(tmp_path / "b", SMALL, ramp)
    found = find_series(tmp_path, {OTHER.uid, "1.2.3.4"})
    assert found.series == {OTHER.uid: tuple(sorted(files.values()))}
    assert found.others == SMALL.slices


def test_a_dicomdir_is_no_series(tmp_path: Path) -> None:
    files, listing, entry = write_scan(tmp_path, OTHER, ramp), Dataset(), Dataset()
    entry.DirectoryRecordType, entry.SeriesInstanceUID = "SERIES", "1.2.3.4"
    listing.FileSetID, listing.DirectoryRecordSequence = "A", [entry]
    listing.file_meta = FileMetaDataset()
    listing.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    listing.file_meta.MediaStorageSOPClassUID = MediaStorageDirectoryStorage
    listing.file_meta.MediaStorageSOPInstanceUID = UID("1.2.3.5")
    listing.save_as(tmp_path / "DICOMDIR", enforce_file_format=True)
    found = find_series(tmp_path)
    assert found.series == {OTHER.uid: tuple(sorted(files.values()))}
    assert found.foreign == 1


def test_links_are_followed_but_loops_and_pipes_do_not_hang_it(tmp_path: Path) -> None:
    files = write_scan(tmp_path / "elsewhere", OTHER, ramp)
    (tmp_path / "data" / "deeper").mkdir(parents=True)
    (tmp_path / "data" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "deeper" / "up").symlink_to(tmp_path / "data")
    (tmp_path / "data" / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "data" / "itself").symlink_to("itself")
    os.mkfifo(tmp_path / "data" / "pipe.dcm")
    found = find_series(tmp_path / "data")
    assert [path.name for path in found.series[OTHER.uid]] == sorted(path.name for path in files.values())


def test_a_series_uid_behind_a_long_header_is_found(tmp_path: Path) -> None:
    long = dataset(OTHER, 0, ramp(OTHER.places(0)))
    long.add_new(0x0009_0010, "LO", "rightloss test")
    long.add_new(0x0009_1001, "OB", bytes(100_000))
    long.save_as(tmp_path / "a.dcm", enforce_file_format=True)
    assert series_uid_of(tmp_path / "a.dcm") == OTHER.uid


def test_a_file_that_cannot_be_opened_is_named_and_the_rest_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write_scan(tmp_path, OTHER, ramp)

    def locked(path: str) -> str | None:
        if path == str(files[2]):
            raise PermissionError(13, "Permission denied", path)
        return series_uid_of(path)

    monkeypatch.setattr(dicom_files, "series_uid_of", locked)
    found = find_series(tmp_path)
    assert len(found.series[OTHER.uid]) == OTHER.slices - 1
    (named,) = found.unreadable
    assert files[2].name in named


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    assert_refused(lambda: find_series(tmp_path / "nowhere"), "a folder of DICOM files")
