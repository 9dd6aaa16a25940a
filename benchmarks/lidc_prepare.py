"""Measure how long finding, reading and cutting CT takes, compared with plain pydicom and SciPy code.

A synthetic series of 130 uncompressed slices of 512 × 512, like most of LIDC-IDRI, in the system's cache, so disk time comes
on top. Finding is compared with `dcmread` of whole files, and of one tag without the pixels; reading with a loop of `dcmread`,
`apply_rescale` and a sort by position; cutting with `scipy.ndimage.zoom` of the whole volume to 1 mm and a crop (once per
scan, and a scan has 2.6 nodules), and with the same for a box around the nodule, up to half a millimetre off.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from measuring import medians, shown, table, write_pages
from pydicom import Dataset, FileMetaDataset, dcmread
from pydicom.pixels import apply_rescale
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian
from scipy.ndimage import zoom

from rightloss.lidc.ct import cut_patch, find_series, read_series

SLICES, SIDE, PIXEL, DISTANCE, SIZE, REPEATS = 130, 512, 0.7, 2.5, 64, 5
CENTRE = (250.3, 240.8, 160.2)  # column, row, z
UID = "1.2.826.0.1.3680043.8.498.1"
HEADER = {
    **{"SOPClassUID": CTImageStorage, "Modality": "CT", "StudyInstanceUID": "1.2.3", "PatientID": "A", "SamplesPerPixel": 1},
    **{
        "ImageOrientationPatient": [1, 0, 0, 0, 1, 0],
        "PixelSpacing": [PIXEL, PIXEL],
        "PhotometricInterpretation": "MONOCHROME2",
    },
    **{"Rows": SIDE, "Columns": SIDE, "PixelRepresentation": 1, "BitsAllocated": 16, "BitsStored": 16, "HighBit": 15},
    **{"RescaleSlope": 1, "RescaleIntercept": -1024},
}
Tasks = dict[tuple[str, str, float], dict[str, Callable[[], object]]]  # by task, unit and number of units per call


def write_series(at: Path, uid: str = UID, positions: Sequence[float] = tuple(DISTANCE * np.arange(SLICES))) -> None:
    """Write slices of smooth waves, for which all interpolations agree."""
    wave = 300 * np.sin(np.arange(SIDE) / 40)
    for k, z in enumerate(positions):
        made = Dataset()
        tags = {"SOPInstanceUID": f"1.2.4.{k + 1}", "InstanceNumber": k + 1, "SeriesInstanceUID": uid}
        for name, value in {**HEADER, **tags, "ImagePositionPatient": [0, 0, f"{z:.9g}"]}.items():
            setattr(made, name, value)
        made.PixelData = (wave[:, None] + wave + 5 * k).astype("<i2").tobytes()
        made["PixelData"].VR = "OW"
        made.file_meta = FileMetaDataset()
        made.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        made.save_as(at / f"1-{k:03d}.dcm", enforce_file_format=True)


def found_by_dcmread(at: Path, **options: object) -> dict[str, list[Path]]:
    series: dict[str, list[Path]] = {}
    for path in sorted(at.rglob("*.dcm")):
        series.setdefault(str(dcmread(path, **options).SeriesInstanceUID), []).append(path)  # type: ignore[arg-type]
    return series


def read_by_dcmread(files: Sequence[Path]) -> np.ndarray:
    slices = sorted((dcmread(path) for path in files), key=lambda each: float(each.ImagePositionPatient[2]))
    return np.stack([apply_rescale(each.pixel_array, each) for each in slices]).astype(np.int16)


def cut_by_zoom(hu: np.ndarray, margin: int | None = None) -> np.ndarray:
    """Resample everything, or a box of `margin` mm around the nodule, to 1 mm, and return the nearest cube."""
    steps = np.array([DISTANCE, PIXEL, PIXEL])
    centre = np.array([CENTRE[2] / DISTANCE, CENTRE[1], CENTRE[0]])
    start = np.zeros(3, int) if margin is None else np.floor(centre - margin / steps).astype(int)
    end = np.array(hu.shape) if margin is None else np.ceil(centre + margin / steps).astype(int) + 1
    box = zoom(hu[tuple(slice(a, b) for a, b in zip(start, end, strict=True))], steps, order=1)
    first = np.rint((centre - start) * steps - (SIZE - 1) / 2).astype(int)
    return box[tuple(slice(a, a + SIZE) for a in first)]


def contenders(at: Path) -> Tasks:
    """Return the calls by task, after checking that their results agree."""
    (files,) = find_series(at).series.values()
    series = read_series(files)
    assert found_by_dcmread(at) == {UID: list(files)}
    np.testing.assert_array_equal(read_by_dcmread(files), series.hu)
    for margin in (None, 36):  # half a voxel off, along slopes of up to 8 HU a voxel each way
        assert np.abs(cut_by_zoom(series.hu, margin) - cut_patch(series, *CENTRE, SIZE).hu).max() < 20
    return {
        ("finding", "ms a file", SLICES / 1e3): {
            "rightloss": lambda: find_series(at),
            "dcmread": lambda: found_by_dcmread(at),
            "dcmread, one tag": lambda: found_by_dcmread(at, stop_before_pixels=True, specific_tags=["SeriesInstanceUID"]),
        },
        ("reading", "s a series", 1): {
            "rightloss": lambda: read_series(files),
            "dcmread, apply_rescale, sort": lambda: read_by_dcmread(files),
        },
        ("cutting", "ms a nodule", 1e-3): {
            "rightloss": lambda: cut_patch(series, *CENTRE, SIZE),
            "zoom of the scan, crop": lambda: cut_by_zoom(series.hu),
            "zoom of a box, crop": lambda: cut_by_zoom(series.hu, 36),
        },
    }


def timed(ours_alone: bool) -> dict[tuple[str, str, float], dict[str, float]]:
    """Return processor seconds by task and implementation."""
    with tempfile.TemporaryDirectory() as at:
        write_series(Path(at))
        tasks = {what: {"rightloss": each["rightloss"]} if ours_alone else each for what, each in contenders(Path(at)).items()}
        return {what: medians(each, REPEATS, clock=time.process_time, warm_up=1) for what, each in tasks.items()}


def lidc_prepare() -> str:
    rows = [
        shown([what, who, f"{seconds / count:.2f} {unit}", f"{seconds / times['rightloss']:.1f}"])
        for (what, unit, count), times in timed(False).items()
        for who, seconds in times.items()
    ]
    words = f"{SLICES} slices of {SIDE} × {SIDE}, uncompressed, in the system's cache; processor time on one thread, medians"
    return f"{words} of {REPEATS} calls.\n\n{table(['what', 'by', 'time', 'time / ours'], rows)}"


if __name__ == "__main__":
    write_pages(__doc__, lidc_prepare=lidc_prepare)
