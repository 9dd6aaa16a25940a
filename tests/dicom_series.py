"""Synthetic CT series as DICOM files, of a volume that is known everywhere; and jobs for workers.

Values are functions of the place in mm, so that what a reader and an interpolator make of the files has an independent answer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from members import generator
from numpy.typing import NDArray
from pydicom import Dataset, FileMetaDataset
from pydicom.uid import (
    CTImageStorage,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGLosslessSV1,
    JPEGLSLossless,
    RLELossless,
)
from worker_jobs import segfault

from rightloss.lidc.ct.preparation import ShardJob, make_shard

SYNTAXES = {
    "implicit": ImplicitVRLittleEndian,
    "explicit": ExplicitVRLittleEndian,
    "big endian": ExplicitVRBigEndian,
    "RLE": RLELossless,
    "JPEG lossless": JPEGLosslessSV1,
    "JPEG-LS": JPEGLSLossless,
    "JPEG 2000": JPEG2000Lossless,
}
Values = Callable[[NDArray[np.float64]], NDArray[np.float64]]  # places (…, 3) in mm → HU (…)
LOG = "RIGHTLOSS_TEST_LOG"


@dataclass(frozen=True)
class Scan:
    """How a volume was scanned: geometry and encoding; a header with all that the reader needs."""

    uid: str = "1.2.826.0.1.3680043.8.498.1"
    slices: int = 24
    rows: int = 40
    columns: int = 44
    spacing: tuple[float, float] = (0.8, 0.7)  # between rows, between columns
    origin: tuple[float, float, float] = (-15.0, -16.0, -310.0)
    orientation: tuple[float, ...] = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
    step: tuple[float, float, float] = (0.0, 0.0, 1.25)  # from slice to slice
    slope: float = 1.0
    intercept: float = -1024.0
    bits: int = 16
    signed: bool = False
    padding: int | None = None
    syntax: str = "explicit"

    def origin_of(self, index: float) -> NDArray[np.float64]:
        return np.array(self.origin) + index * np.array(self.step)

    def places(self, index: float) -> NDArray[np.float64]:
        """Where the pixels of a slice lie `(rows, columns, 3)`, mm."""
        right, down = np.array(self.orientation).reshape(2, 3)
        row, column = np.mgrid[: self.rows, : self.columns]
        in_plane = column[..., None] * self.spacing[1] * right + row[..., None] * self.spacing[0] * down
        return self.origin_of(index) + in_plane

    def place(self, x: float, y: float, index: float) -> NDArray[np.float64]:
        """The place of column x and row y of a slice, whole or not."""
        right, down = np.array(self.orientation).reshape(2, 3)
        return self.origin_of(index) + x * self.spacing[1] * right + y * self.spacing[0] * down


def ramp(places: NDArray[np.float64]) -> NDArray[np.float64]:
    """Affine, so that trilinear interpolation is exact."""
    return 1450.0 + places @ np.array([7.0, -11.0, 5.0])


def dataset(scan: Scan, index: float, hu: NDArray[np.float64], number: int = 1) -> Dataset:
    """One slice, uncompressed."""
    stored = np.rint((hu - scan.intercept) / scan.slope).astype(np.int64)
    low, high = (-(1 << (scan.bits - 1)), (1 << (scan.bits - 1)) - 1) if scan.signed else (0, (1 << scan.bits) - 1)
    assert low <= stored.min() <= stored.max() <= high, "the volume does not fit into the bits"
    made = Dataset()
    made.SOPClassUID, made.Modality = CTImageStorage, "CT"
    made.SOPInstanceUID = f"1.2.826.0.1.3680043.8.498.{number}.{round(index * 1000) + 10**6}"
    made.SeriesInstanceUID, made.StudyInstanceUID, made.PatientID = scan.uid, "1.2.3", "A"
    made.AcquisitionNumber, made.InstanceNumber = number, 1000 - round(index)
    made.ImagePositionPatient = [f"{v:.9g}" for v in scan.origin_of(index)]
    made.ImageOrientationPatient = [f"{v:.12g}" for v in scan.orientation]
    made.PixelSpacing, made.SamplesPerPixel, made.PhotometricInterpretation = list(scan.spacing), 1, "MONOCHROME2"
    made.Rows, made.Columns = hu.shape
    made.BitsAllocated, made.BitsStored, made.HighBit = 16, scan.bits, scan.bits - 1
    made.PixelRepresentation = int(scan.signed)
    made.RescaleSlope, made.RescaleIntercept = f"{scan.slope:g}", f"{scan.intercept:g}"
    if scan.padding is not None:
        made.add_new("PixelPaddingValue", "SS" if scan.signed else "US", scan.padding)
    # Bits beyond those stored carry nothing, as in scanners that keep overlays there.
    order = ">" if scan.syntax == "big endian" else "<"
    made.PixelData = (stored & ((1 << scan.bits) - 1)).astype(f"{order}u2").tobytes()
    made["PixelData"].VR = "OW"
    made.file_meta = FileMetaDataset()
    plain = scan.syntax in ("implicit", "explicit", "big endian")
    made.file_meta.TransferSyntaxUID = SYNTAXES[scan.syntax] if plain else ExplicitVRLittleEndian
    return made


def write_slice(path: Path, scan: Scan, index: float, hu: NDArray[np.float64], number: int = 1) -> None:
    made = dataset(scan, index, hu, number)
    if scan.syntax == "RLE":
        made.compress(RLELossless)
    made.save_as(path, enforce_file_format=True)
    if scan.syntax in ("JPEG lossless", "JPEG-LS", "JPEG 2000"):
        _recode(path, scan.syntax)


def write_scan(
    folder: Path, scan: Scan, values: Values, leave_out: tuple[int, ...] = (), suffix: str = ".dcm", seed: int = 0
) -> dict[int, Path]:
    """The slices of a scan, in files whose names say nothing of the order; which file is which."""
    folder.mkdir(parents=True, exist_ok=True)
    names = torch.randperm(scan.slices, generator=generator(seed)).tolist()
    files = {}
    for index in range(scan.slices):
        if index not in leave_out:
            files[index] = folder / f"1-{names[index]:03d}{suffix}"
            write_slice(files[index], scan, index, values(scan.places(index)))
    return files


def nodule_table(scans: Mapping[str, Scan], per_scan: int = 2) -> pd.DataFrame:
    """A table like `nodules()`: some nodules in each scan, named by patient."""
    rows: list[dict[str, Any]] = []
    for patient, scan in scans.items():
        for k in range(per_scan):
            z = scan.origin_of((k + 1) * (scan.slices - 1) / (per_scan + 1))[2]
            row = {"nodule": 10 * len(rows) + 3, "scan": len(rows), "patient_id": patient, "series_uid": scan.uid}
            row |= {f"rating_{r}": int((len(rows) + r) % 3 == 0) for r in range(1, 6)}
            row |= {"x": scan.columns / 3 + k, "y": scan.rows / 2 - k, "z": z, "diameter_mm": 4.5 + k, "contrast": k % 2 == 0}
            rows.append(row)
    return pd.DataFrame(rows)


def several_scans(count: int, **changes: Any) -> dict[str, Scan]:
    """Small scans by patient, each with a UID of its own."""
    small = replace(Scan(slices=12, rows=16, columns=18), **changes)
    return {f"P-{k:02d}": replace(small, uid=f"1.2.826.0.1.3680043.8.498.{k + 10}") for k in range(count)}


def write_all(folder: Path, scans: dict[str, Scan]) -> None:
    """A folder for each."""
    for patient, scan in scans.items():
        write_scan(folder / patient, scan, ramp)


def crash_in_one(job: ShardJob) -> None:
    """`make_shard`, but the second of `several_scans` crashes its process and the fourth never ends."""
    patient = job.files[0].parent.name
    if patient == "P-01":
        segfault()
    if patient == "P-03":
        time.sleep(1000)
    make_shard(job)


def out_of_reach_in_one(job: ShardJob) -> None:
    """`make_shard`, but the disk fails the second of `several_scans`."""
    if job.files[0].parent.name == "P-01":
        raise OSError(5, "Input/output error")
    make_shard(job)


def without_scipy(job: ShardJob) -> None:
    raise ModuleNotFoundError("scipy is needed", name="scipy")


def logged(job: ShardJob, seconds: float = 0) -> None:
    """`make_shard`; each call leaves a line in the log, with its process."""
    with open(os.environ[LOG], "a") as log:
        log.write(f"{job.files[0].parent.name} {os.getpid()}\n")
    time.sleep(seconds)
    make_shard(job)


def slow_and_logged(job: ShardJob) -> None:
    logged(job, 0.5)


def _recode(path: Path, syntax: str) -> None:
    import gdcm

    names = {"JPEG lossless": "JPEGLosslessProcess14_1", "JPEG-LS": "JPEGLSLossless", "JPEG 2000": "JPEG2000Lossless"}
    reader = gdcm.ImageReader()
    reader.SetFileName(str(path))
    assert reader.Read()
    change = gdcm.ImageChangeTransferSyntax()
    change.SetTransferSyntax(gdcm.TransferSyntax(getattr(gdcm.TransferSyntax, names[syntax])))
    change.SetInput(reader.GetImage())
    assert change.Change()
    writer = gdcm.ImageWriter()
    writer.SetFile(reader.GetFile())
    writer.SetImage(change.GetOutput())
    writer.SetFileName(str(path))
    assert writer.Write()
