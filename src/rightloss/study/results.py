"""Results of runs on disk: written atomically, read without running anything; and pooled over folds and seeds.

Stage: `RunResult` → `runs/KEY.npz` and `runs/KEY.json`; a data set → `data/KEY.npz`; a folder → `StudyResults`; a finished
study → one small `.npz`, from which every figure can be computed again without training; and back. `StudyResults` → `Cell`s:
out-of-fold predictions with labels and patients. `matched` moves them first, so that what a loss learnt can be told from where
its intercept stands.

    study.json          the config
    data/KEY.npz        of each source and task: labels, votes, ratings, patients, nodules, small pictures
    runs/KEY.npz        of each run: test rows and their log-probabilities
    runs/KEY.json       of each run: its config, what was chosen on the validation part, SHA-256 of its predictions; written
                        last, so that it means "done"
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float32, Float64, Int64, Shaped, UInt8
from scipy.special import log_softmax

from .. import __version__
from ..atomic_files import whole_file, write_whole
from ..lidc.nodulemnist import COUNTS
from ..lidc.splits import fold_numbers
from ..serialization import open_npz
from .config import RunConfig, StudyConfig, unique_name

Item = TypeVar("Item")
Key = TypeVar("Key")
_TRACED = 50
_ARRAYS = ("labels", "votes", "ratings", "patients", "nodules", "pictures")  # of a data set


@dataclass(frozen=True, eq=False)
class RunResult:
    """A run's predictions.

    Attributes:
        config: the run.
        rows: tested rows of the data set `(n,)`.
        log_probs: predictions at the run's population `(n, k)`.
        chosen: what the validation part chose: learning rate and step, or prior scale.
        validation: expected log-likelihood on the validation part, by candidate, then by checkpoint.
        matched: what to add to the log-probabilities by class so that their mean over the validation part, weighted to π, is π.
        trace: mean prediction of the last class over training minibatches, weighted to π, at `trace_steps`; () if not trained
            by steps.
    """

    config: RunConfig
    rows: Int64[np.ndarray, " n"]
    log_probs: Float64[np.ndarray, "n k"]
    chosen: Mapping[str, float | int]
    validation: tuple[tuple[float, ...], ...]
    matched: tuple[float, ...] = ()
    trace: tuple[float, ...] = ()


def trace_steps(steps: int) -> list[int]:
    """Return the steps at which the mean prediction is recorded: the first, and up to 50 at equal distances."""
    points = min(steps, _TRACED)
    return sorted({1, *(round(steps * number / points) for number in range(1, points + 1))})


@dataclass(frozen=True, eq=False)
class DataSummary:
    """The part of a data set that the report uses.

    Attributes:
        name: of the source.
        labels: class numbers `(n,)`.
        votes: shares of the readers for each class `(n, k)`.
        ratings: number of readers who gave each malignancy, 1 to 5 `(n, 5)`; no rows if unknown.
        patients: names `(n,)`; row numbers if no patients are published.
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

    def tested(self, fold: int, num_folds: int) -> Int64[np.ndarray, " rows"]:
        """Return the rows that this fold tests, in ascending order; NoduleMNIST3D, which has no ratings, has one published
        split."""
        return np.flatnonzero(_fold_of_rows(self, num_folds) == fold)


@dataclass(frozen=True, eq=False)
class StudyResults:
    """Everything in a study's folder.

    Attributes:
        config: of the study.
        data: by name of the source.
        runs: finished runs, in the config's order.

    Examples:
        >>> from rightloss.study import PRESETS, StudyResults
        >>> StudyResults(PRESETS["quick"], data={}, runs=()).missing
        80
    """

    config: StudyConfig
    data: Mapping[str, DataSummary]
    runs: tuple[RunResult, ...]

    @property
    def missing(self) -> int:
        """Number of runs of the config that are not done."""
        return len(self.config.runs()) - len(self.runs)


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return the items by key, in order of first occurrence."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


# Runs that differ only in fold and seed are pooled: a cell of the tables.


class CellKey(NamedTuple):
    """Settings that all runs of a cell share."""

    data: str
    minibatches: str
    net: str
    likelihood: str
    start: str
    inference: str
    population: float | None
    loss: str

    @classmethod
    def of(cls, run: RunConfig) -> CellKey:
        return cls(*(getattr(run, name) for name in cls._fields))


@dataclass(frozen=True, eq=False)
class Cell:
    """Predictions of all folds and seeds, a row for each nodule and seed.

    Attributes:
        key: settings that all its runs share.
        data: the data set.
        rows: of the data set `(n,)`; each nodule once for each seed.
        log_probs: at the cell's population `(n, k)`.
        fold, seed: of each row `(n,)`.
    """

    key: CellKey
    data: DataSummary
    rows: Int64[np.ndarray, " n"]
    log_probs: Float64[np.ndarray, "n k"]
    fold: Int64[np.ndarray, " n"]
    seed: Int64[np.ndarray, " n"]

    @property
    def labels(self) -> Int64[np.ndarray, " n"]:
        return self.data.labels[self.rows]

    @property
    def patients(self) -> np.ndarray:
        return self.data.patients[self.rows]

    @property
    def runs(self) -> dict[tuple[int, int], Int64[np.ndarray, " m"]]:
        """Positions of the rows of each run, by fold and seed."""
        found = dict.fromkeys(zip(self.fold.tolist(), self.seed.tolist(), strict=True))
        return {(fold, seed): np.flatnonzero((self.fold == fold) & (self.seed == seed)) for fold, seed in found}

    @property
    def population(self) -> Float64[np.ndarray, " k"]:
        """π by class; for None, the shares of the readers' votes in the whole data set."""
        if self.key.population is None:
            return self.data.votes.mean(0, dtype=np.float64)
        return np.array([1 - self.key.population, self.key.population])


def matched(results: StudyResults) -> StudyResults:
    """Move each run's predictions by its offsets, so that their mean at π is π on the validation part. Runs without finite
    offsets are left out."""
    runs = [run for run in results.runs if run.matched and np.isfinite(run.matched).all()]
    return replace(results, runs=tuple(replace(run, log_probs=_moved(run)) for run in runs))


def _moved(run: RunResult) -> Float64[np.ndarray, "n k"]:
    table = run.log_probs + np.array(run.matched)
    return np.asarray(table - np.logaddexp.reduce(table, axis=1, keepdims=True))


def cells(results: StudyResults) -> list[Cell]:
    """Return the cells, in the config's order of data, minibatches, nets, likelihoods, inferences, populations and losses."""
    pooled = grouped(results.runs, lambda run: CellKey.of(run.config))
    return [_cell(key, results.data[key.data], runs) for key, runs in pooled.items()]


def _cell(key: CellKey, data: DataSummary, runs: list[RunResult]) -> Cell:
    return Cell(
        key,
        data,
        np.concatenate([run.rows for run in runs]),
        np.concatenate([run.log_probs for run in runs]),
        np.concatenate([np.full(len(run.rows), run.config.fold) for run in runs]),
        np.concatenate([np.full(len(run.rows), run.config.seed) for run in runs]),
    )


# On disk.


def write_run(out: Path, result: RunResult) -> None:
    """Write a run's files: the predictions first; the JSON file, which means "done", last."""
    if not np.isfinite(result.log_probs.max(1)).all():
        raise ValueError(
            f"Expected predictions that are numbers, but those of {result.config.label} are not: lower the learning rate."
        )
    path = _run_path(out, result.config)
    with whole_file(path.with_suffix(".npz")) as file:
        np.savez(file, allow_pickle=False, rows=result.rows, log_probs=result.log_probs)
    content = {"config": result.config.to_dict(), **_choices(result), "sha256": sha256_of(path.with_suffix(".npz"))}
    write_whole(path, json.dumps(content, indent=1) + "\n")


def read_run(out: Path, config: RunConfig, data: DataSummary) -> RunResult | None:
    """Return the run's result, or None if it is not done.

    Raises:
        ValueError: the result is damaged, belongs to another run, or has other rows than its fold tests. Older runs without a
            digest are checked by their rows only.
    """
    path = _run_path(out, config)
    if not path.exists():
        return None
    try:
        content = _read_json(path)
        if RunConfig.from_dict(content["config"]) != config:
            raise ValueError("it is of another run")
        predictions = path.with_suffix(".npz")
        if "sha256" in content and content["sha256"] != sha256_of(predictions):
            raise ValueError(f"{predictions.name} is not the file that was written with it")
        file = open_npz(predictions)
        rows, log_probs = file.read("rows"), file.read("log_probs")
        _check_predictions(rows, log_probs, config, data)
        return RunResult(config, rows, log_probs, *_chosen(content))
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise ValueError(
            f"Expected the result of one run, {config.label}, in {path}, but it does not hold it ({error}): delete it, and run "
            "the study again."
        ) from error


def data_path(out: Path, name: str, task: str, digest: str = "") -> Path:
    """Return the path of a data set; it depends on everything that could change labels or pictures."""
    return out / "data" / f"{unique_name(f'{name}-{task}', [__version__, name, task, digest])}.npz"


def write_data(out: Path, summary: DataSummary, task: str, digest: str = "") -> None:
    """Write a data set, with `task` and `digest` as in the runs that use it."""
    arrays = {name: value for name, value in vars(summary).items() if name != "name"}
    with whole_file(data_path(out, summary.name, task, digest)) as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def read_data(out: Path, name: str, task: str, digest: str = "") -> DataSummary:
    """Read the data set that `write_data` wrote; raise ValueError if it is missing or damaged."""
    path = data_path(out, name, task, digest)
    try:
        file = open_npz(path)
        return DataSummary(name, **{each: file.read(each) for each in _ARRAYS})
    except FileNotFoundError:
        raise ValueError(f"Expected what the report needs of {name}, but {path} is missing: run the study again.") from None
    except (ValueError, KeyError) as error:
        raise ValueError(
            f"Expected what the report needs of {name} in {path}, but it does not hold it ({error}): delete it, and run the "
            "study again."
        ) from error


def write_config(out: Path, config: StudyConfig) -> None:
    """Write the study's config to `study.json`."""
    write_whole(out / "study.json", json.dumps(config.to_dict(), indent=1) + "\n")


def read_config(out: Path) -> StudyConfig:
    """Read the config of the study in this folder; raise ValueError if there is none, or if it is from another version."""
    path = out / "study.json"
    try:
        content = _read_json(path)
        version = content["version"]
        if version == __version__:
            return StudyConfig.from_dict(content)
        if not isinstance(version, str) or "preset" not in content:
            raise ValueError("it has no version")
    except (FileNotFoundError, IsADirectoryError):
        raise ValueError(f"Expected the folder of a study, but {out} has no study.json: run `rightloss study` first.") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"Expected {path} to hold a study's config, but it does not: choose another folder.") from error
    raise ValueError(
        f"Expected a study by rightloss {__version__}, but {path} was written by rightloss {version[:40]}: install that "
        "version to go on or to report on it, or choose another folder and run the study again."
    )


def read_study(out: Path) -> StudyResults:
    """Read the finished runs of the study in this folder.

    Raises:
        ValueError: the folder has no study, or one from another version, or a damaged file.

    Examples:
        >>> from pathlib import Path
        >>> from rightloss.study import read_study
        >>> read_study(Path("nowhere"))
        Traceback (most recent call last):
        ...
        ValueError: Expected the folder of a study, but nowhere has no study.json: run `rightloss study` first.
    """
    config = read_config(out)
    done = [run for run in config.runs() if _run_path(out, run).exists()]
    names = {run.data: run.digest for run in done}
    data = {name: read_data(out, name, config.task, digest) for name, digest in names.items()}
    runs = [read_run(out, run, data[run.data]) for run in done]
    return StudyResults(config, data, tuple(run for run in runs if run is not None))


# A finished study in one small file: content (JSON: config, and what each run chose), log_probs_N (predictions of all runs on
# source number N in float32, one run after the other), labels_N and the other arrays of the data set.


def write_one_file(results: StudyResults, path: str | PathLike[str]) -> Path:
    """Write a finished study to one file, whole or not at all; small pictures of nodules are left out.

    Args:
        results: of a study without missing runs.
        path: of the file, ending in .npz.

    Examples:
        >>> from pathlib import Path
        >>> from rightloss.study import read_one_file, read_study, write_one_file
        >>> file = write_one_file(read_study(Path("results/quick")), "quick.npz")  # doctest: +SKIP
        >>> read_one_file(file).missing  # doctest: +SKIP
        0
    """
    path = Path(path)
    if results.missing:
        raise ValueError(f"Expected a finished study, but {results.missing} of its runs are missing: run it again first.")
    if path.suffix != ".npz":
        raise ValueError(f"Expected a file name ending in .npz, but got {path.name!r}: add it.")
    runs = [_choices(run) for run in results.runs]
    content = json.dumps({"config": results.config.to_dict(), "runs": runs})
    arrays: dict[str, np.ndarray] = {"content": np.frombuffer(content.encode(), np.uint8)}
    for number, source in enumerate(results.config.sources):
        own = [run.log_probs for run in results.runs if run.config.data == source.name]
        arrays[f"log_probs_{number}"] = np.concatenate(own).astype(np.float32)
        arrays |= {f"{name}_{number}": getattr(results.data[source.name], name) for name in _ARRAYS if name != "pictures"}
    with whole_file(path) as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)
    return path


def read_one_file(path: str | PathLike[str]) -> StudyResults:
    """Return the study that `write_one_file` wrote, with log-probabilities normalised again in float64.

    Examples:
        >>> from rightloss.study import read_one_file
        >>> from rightloss.study.summary import summarise
        >>> summary = summarise(read_one_file("quick.npz"))  # doctest: +SKIP
    """
    file = open_npz(path)
    try:
        content = json.loads(file.read("content").tobytes())
        config = StudyConfig.from_dict(content["config"])
        data = {source.name: _without_pictures(file, number, source.name) for number, source in enumerate(config.sources)}
        tables = {source.name: file.read(f"log_probs_{number}") for number, source in enumerate(config.sources)}
        runs, at = [], dict.fromkeys(data, 0)
        for run, stored in zip(config.runs(), content["runs"], strict=True):
            rows = data[run.data].tested(run.fold, run.num_folds)
            table = tables[run.data][at[run.data] : at[run.data] + len(rows)]
            at[run.data] += len(rows)
            if table.shape != (len(rows), data[run.data].votes.shape[1]) or not np.isfinite(table.max(1)).all():
                raise ValueError(f"the predictions of {run.label} are missing or are not numbers")
            runs.append(RunResult(run, rows, log_softmax(table.astype(np.float64), 1), *_chosen(stored)))
        return StudyResults(config, data, tuple(runs))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"Expected a study in {path}, but it does not hold one ({error}): write it again.") from error


def _without_pictures(file: Any, number: int, name: str) -> DataSummary:
    arrays = {each: file.read(f"{each}_{number}") for each in _ARRAYS if each != "pictures"}
    return DataSummary(name, **arrays, pictures=np.zeros((len(arrays["labels"]), 0, 0), np.uint8))


def _choices(run: RunResult) -> dict[str, Any]:
    """Return the part of a result that is JSON."""
    return {"chosen": dict(run.chosen), "validation": run.validation, "matched": run.matched, "trace": run.trace}


def _chosen(stored: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what `_choices` wrote, in the order of a `RunResult`; older runs have neither offsets nor traces."""
    validation = tuple(tuple(each) for each in stored["validation"])
    return stored["chosen"], validation, tuple(stored.get("matched", ())), tuple(stored.get("trace", ()))


def _run_path(out: Path, config: RunConfig) -> Path:
    return out / "runs" / f"{config.key}.json"


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def sha256_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@lru_cache(maxsize=4)
def _fold_of_rows(data: DataSummary, num_folds: int) -> Int64[np.ndarray, " n"]:
    """Return the fold that tests each row; −1 for none."""
    if len(data.ratings):
        return fold_numbers(data.labels, data.patients, num_folds).numpy()
    train, valid, test = COUNTS.values()
    return np.repeat([-1, 0], [train + valid, test])


def _check_predictions(rows: np.ndarray, log_probs: np.ndarray, config: RunConfig, data: DataSummary) -> None:
    expected = data.tested(config.fold, config.num_folds)
    if rows.dtype != np.int64 or not np.array_equal(rows, expected):
        raise ValueError(f"its {rows.size} rows are not the {len(expected)} that fold {config.fold + 1} tests")
    shape = (len(rows), data.votes.shape[1])
    if log_probs.dtype != np.float64 or log_probs.shape != shape or not np.isfinite(log_probs.max(1)).all():
        raise ValueError(f"its predictions are not numbers of shape {shape}")
