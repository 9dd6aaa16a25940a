"""What came of runs, on disk: written whole or not at all, read without running anything.

Stage: `RunResult` → `runs/KEY.npz` and `runs/KEY.json`; a data set → `data/KEY.npz`; a folder → `StudyResults`.

    study.json          the config
    data/KEY.npz        of each source and task: labels, votes, ratings, patients, nodules, small pictures
    runs/KEY.npz        of each run: test rows and their log-probabilities
    runs/KEY.json       of each run: its config, what was chosen on the validation part; written last, so that it means "done"
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Float64, Int64, Shaped, UInt8

from .. import __version__
from ..files import whole_file, write_whole
from ..lidc.npz import open_npz
from .config import RunConfig, StudyConfig


@dataclass(frozen=True, eq=False)
class RunResult:
    """A run's predictions.

    Attributes:
        config: the run.
        rows: of the data set, those tested `(n,)`.
        log_probs: predictions at the run's population `(n, k)`.
        chosen: what the validation part chose: learning rate and step, or prior scale.
        validation: expected log-likelihood on the validation part, by candidate, then by checkpoint.
    """

    config: RunConfig
    rows: Int64[np.ndarray, " n"]
    log_probs: Float64[np.ndarray, "n k"]
    chosen: Mapping[str, float | int]
    validation: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, eq=False)
class DataSummary:
    """What the report needs of a data set.

    Attributes:
        name: of the source.
        labels: class numbers `(n,)`.
        votes: shares of the readers for each class `(n, k)`.
        ratings: how many readers gave each malignancy, 1 to 5 `(n, 5)`; no rows where that is not known.
        patients: `(n,)` names; numbers of the rows where no patients are published.
        nodules: `(n,)` numbers of the nodules.
        pictures: grey levels of the middle plane `(n, h, w)`.
    """

    name: str
    labels: Int64[np.ndarray, " n"]
    votes: Float32[np.ndarray, "n k"]
    ratings: Int64[np.ndarray, "m 5"]
    patients: Shaped[np.ndarray, " n"]
    nodules: Int64[np.ndarray, " n"]
    pictures: UInt8[np.ndarray, "n h w"]


@dataclass(frozen=True, eq=False)
class StudyResults:
    """Everything in a study's folder.

    Attributes:
        config: of the study.
        data: by name of the source.
        runs: those that are done, in the config's order.
    """

    config: StudyConfig
    data: Mapping[str, DataSummary]
    runs: tuple[RunResult, ...]

    @property
    def missing(self) -> int:
        """How many runs of the config are not done."""
        return len(self.config.runs()) - len(self.runs)


def write_run(out: Path, result: RunResult) -> None:
    """The predictions first; the JSON file, which means "done", last."""
    if not np.isfinite(result.log_probs.max(1)).all():
        raise ValueError(
            f"Expected predictions that are numbers, but those of {result.config.label} are not: lower the learning rate."
        )
    folder, key = out / "runs", result.config.key
    with whole_file(folder / f"{key}.npz") as file:
        np.savez(file, allow_pickle=False, rows=result.rows, log_probs=result.log_probs)
    content = {"config": dataclasses.asdict(result.config), "chosen": dict(result.chosen), "validation": result.validation}
    write_whole(folder / f"{key}.json", json.dumps(content, indent=1) + "\n")


def read_run(out: Path, config: RunConfig) -> RunResult | None:
    """The run's result, or None where it is not done; a damaged one is an error."""
    path = out / "runs" / f"{config.key}.json"
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if RunConfig.from_dict(content["config"]) != config:
            raise ValueError("it is of another run")
        file = open_npz(path.with_suffix(".npz"))
        rows, log_probs = file.read("rows"), file.read("log_probs")
        if log_probs.shape[:1] != rows.shape or not np.isfinite(log_probs.max(1)).all():
            raise ValueError("rows and predictions do not fit")
        return RunResult(config, rows, log_probs, content["chosen"], tuple(tuple(each) for each in content["validation"]))
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise ValueError(
            f"Expected the result of one run in {path}, but it does not hold it ({error}): delete it, and run again."
        ) from error


def data_path(out: Path, name: str, task: str, digest: str = "") -> Path:
    """Another for whatever could give other labels or pictures: a folder may hold several studies, one after the other."""
    content = json.dumps([__version__, name, task, digest])
    readable = re.sub(r"[^\w.]+", "-", f"{name}-{task}")
    return out / "data" / f"{readable}-{hashlib.sha256(content.encode()).hexdigest()[:12]}.npz"


def write_data(out: Path, summary: DataSummary, task: str, digest: str = "") -> None:
    """`task` and `digest` as in the runs that have this data set."""
    arrays = {name: value for name, value in vars(summary).items() if name != "name"}
    with whole_file(data_path(out, summary.name, task, digest)) as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def read_data(out: Path, name: str, task: str, digest: str = "") -> DataSummary:
    path = data_path(out, name, task, digest)
    fields = [field.name for field in dataclasses.fields(DataSummary) if field.name != "name"]
    try:
        file = open_npz(path)
        return DataSummary(name, **{each: file.read(each) for each in fields})
    except (ValueError, KeyError) as error:
        raise ValueError(
            f"Expected what the report needs of {name} in {path}, but it does not hold it ({error}): delete it, and run the "
            "study again."
        ) from error


def write_config(out: Path, config: StudyConfig) -> None:
    write_whole(out / "study.json", json.dumps(config.to_dict(), indent=1) + "\n")


def read_config(out: Path) -> StudyConfig:
    path = out / "study.json"
    try:
        return StudyConfig.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, IsADirectoryError):
        raise ValueError(f"Expected the folder of a study, but {out} has no study.json: run `rightloss study` first.") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"Expected {path} to hold a study's config, but it does not: choose another folder.") from error


def read_study(out: Path) -> StudyResults:
    """All that is done of the study in this folder."""
    config = read_config(out)
    runs = [result for run in config.runs() if (result := read_run(out, run)) is not None]
    names = {run.config.data: run.config.digest for run in runs}
    data = {name: read_data(out, name, config.task, digest) for name, digest in names.items()}
    return StudyResults(config, data, tuple(runs))
