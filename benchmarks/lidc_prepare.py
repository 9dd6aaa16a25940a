"""Measure how long finding, reading and cutting CT takes, compared with plain pydicom and SciPy code.

The data are a synthetic series of 130 slices of 512 × 512, uncompressed like most of LIDC-IDRI. Files are in the system's
cache, so disk time comes on top. Finding is compared with `dcmread` of whole files, and of one tag without the pixels. Reading
is compared with a loop of `dcmread`, `apply_rescale` and a sort by position. Cutting is compared with `scipy.ndimage.zoom` of
the whole volume to 1 mm, followed by a crop (needed once per scan, and LIDC-IDRI has 2.6 nodules per scan), and with the same
for a box around the nodule, whose voxels are up to half a millimetre off. Processor time on one thread. Writes
lidc_prepare.md: a row per task and implementation.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from pydicom import Dataset, FileMetaDataset, dcmread
from pydicom.pixels import apply_rescale
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian
from report import folder, table
from scipy.ndimage import zoom

from rightloss.lidc.ct import cut_patch, find_series, read_series

SLICES, SIDE, PIXEL, DISTANCE, SIZE, REPEATS = 130, 512, 0.7, 2.5, 64, 5
POSITIONS = tuple((DISTANCE * np.arange(SLICES)).tolist())
CENTRE = (250.3, 240.8, 160.2)  # column, row, z
UID = "1.2.826.0.1.3680043.8.498.1"
Calls = Mapping[str, Callable[[], object]]


def write_series(at: Path, uid: str = UID, positions: Sequence[float] = POSITIONS) -> None:
    """Write slices of smooth waves, for which all interpolations agree."""
    wave = 300 * np.sin(np.arange(SIDE) / 40)
    for k, z in enumerate(positions):
        made = Dataset()
        made.SOPClassUID, made.SOPInstanceUID, made.Modality = CTImageStorage, f"1.2.4.{k + 1}", "CT"
        made.SeriesInstanceUID, made.StudyInstanceUID, made.PatientID, made.InstanceNumber = uid, "1.2.3", "A", k + 1
        made.ImagePositionPatient, made.ImageOrientationPatient = [0, 0, f"{z:.9g}"], [1, 0, 0, 0, 1, 0]
        made.PixelSpacing, made.SamplesPerPixel, made.PhotometricInterpretation = [PIXEL, PIXEL], 1, "MONOCHROME2"
        made.Rows, made.Columns, made.PixelRepresentation = SIDE, SIDE, 1
        made.BitsAllocated, made.BitsStored, made.HighBit = 16, 16, 15
        made.RescaleSlope, made.RescaleIntercept = 1, -1024
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


def read_by_dcmread(files: list[Path]) -> np.ndarray:
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


def medians(calls: Calls, repeats: int) -> dict[str, float]:
    """Return median processor times of calls made in turn, after one warm-up call."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(1 + repeats):
        for name, call in calls.items():
            start = time.process_time()
            call()
            if repeat:
                times[name].append(time.process_time() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def contenders(at: Path) -> dict[tuple[str, str, float], Calls]:
    """Return the calls by task, unit and number of units per call, after checking that their results agree."""
    (files,) = find_series(at).series.values()
    series = read_series(files)
    assert found_by_dcmread(at) == {UID: list(files)}
    np.testing.assert_array_equal(read_by_dcmread(list(files)), series.hu)
    patch = cut_patch(series, *CENTRE, SIZE).hu
    for margin in (None, 36):
        # half a voxel off, along slopes of up to 8 HU a voxel each way
        assert np.abs(cut_by_zoom(series.hu, margin) - patch).max() < 20
    return {
        ("finding", "ms a file", SLICES / 1e3): {
            "rightloss": lambda: find_series(at),
            "dcmread": lambda: found_by_dcmread(at),
            "dcmread, one tag": lambda: found_by_dcmread(at, stop_before_pixels=True, specific_tags=["SeriesInstanceUID"]),
        },
        ("reading", "s a series", 1): {
            "rightloss": lambda: read_series(files),
            "dcmread, apply_rescale, sort": lambda: read_by_dcmread(list(files)),
        },
        ("cutting", "ms a nodule", 1e-3): {
            "rightloss": lambda: cut_patch(series, *CENTRE, SIZE),
            "zoom of the scan, crop": lambda: cut_by_zoom(series.hu),
            "zoom of a box, crop": lambda: cut_by_zoom(series.hu, 36),
        },
    }


def main() -> None:
    out = folder()
    rows = []
    with tempfile.TemporaryDirectory() as at:
        write_series(Path(at))
        for (what, unit, count), calls in contenders(Path(at)).items():
            times = medians(calls, REPEATS)
            base = times["rightloss"]
            rows += [[what, who, f"{t / count:.2f} {unit}", f"{t / base:.1f}"] for who, t in times.items()]
            print(*rows[-len(calls) :], sep="\n", flush=True)
    words = (
        f"Made by `python benchmarks/lidc_prepare.py`: {SLICES} slices of {SIDE} × {SIDE}, uncompressed, in the system's "
        f"cache; processor time on one thread, medians of {REPEATS} calls.\n\n"
    )
    (out / "lidc_prepare.md").write_text(words + table(["what", "by", "time", "time / ours"], rows))


if __name__ == "__main__":
    main()
