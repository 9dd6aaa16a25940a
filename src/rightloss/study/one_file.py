"""A finished study in one small file, from which every figure and verdict can be computed again without training.

Stage: `StudyResults` → one `.npz`: config, data sets without pictures, and predictions in float32; and back.

    content             JSON: config, and for each run what was chosen, validation scores, offsets and trace
    log_probs_N         predictions of all runs on source number N, one run after the other: rows are those that its fold tests
    labels_N, …         arrays of the data set, without pictures
"""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import log_softmax

from ..atomic_files import whole_file
from ..lidc.npz import open_npz
from .config import StudyConfig
from .results import DataSummary, RunResult, StudyResults

_ARRAYS = ("labels", "votes", "ratings", "patients", "nodules")
_PARTS = ("chosen", "validation", "matched", "trace")


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
        raise ValueError(f"Expected a file name ending in .npz, but got {path.name!r}.")
    runs = [{name: getattr(run, name) for name in _PARTS} for run in results.runs]
    content = json.dumps({"config": results.config.to_dict(), "runs": runs})
    arrays: dict[str, np.ndarray] = {"content": np.frombuffer(content.encode(), np.uint8)}
    for number, source in enumerate(results.config.sources):
        own = [run.log_probs for run in results.runs if run.config.data == source.name]
        arrays[f"log_probs_{number}"] = np.concatenate(own).astype(np.float32)
        arrays |= {f"{name}_{number}": getattr(results.data[source.name], name) for name in _ARRAYS}
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
        data = {source.name: _data(file, number, source.name) for number, source in enumerate(config.sources)}
        tables = {source.name: file.read(f"log_probs_{number}") for number, source in enumerate(config.sources)}
        runs, at = [], dict.fromkeys(data, 0)
        for run, stored in zip(config.runs(), content["runs"], strict=True):
            rows = data[run.data].tested(run.fold, run.num_folds)
            table = tables[run.data][at[run.data] : at[run.data] + len(rows)]
            at[run.data] += len(rows)
            if table.shape != (len(rows), data[run.data].votes.shape[1]) or not np.isfinite(table.max(1)).all():
                raise ValueError(f"the predictions of {run.label} are missing or are not numbers")
            runs.append(RunResult(run, rows, log_softmax(table.astype(np.float64), 1), **_parts(stored)))
        return StudyResults(config, data, tuple(runs))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"Expected a study in {path}, but it does not hold one ({error}): write it again.") from error


def _data(file: Any, number: int, name: str) -> DataSummary:
    arrays = {each: file.read(f"{each}_{number}") for each in _ARRAYS}
    return DataSummary(name, **arrays, pictures=np.zeros((len(arrays["labels"]), 0, 0), np.uint8))


def _parts(stored: dict[str, Any]) -> dict[str, Any]:
    validation = tuple(tuple(each) for each in stored["validation"])
    return {
        "chosen": stored["chosen"],
        "validation": validation,
        "matched": tuple(stored["matched"]),
        "trace": tuple(stored["trace"]),
    }
