"""Save and load a `TableModel` as a folder, without pickle: JSON, safetensors, and LightGBM's own text format.

Stage: `TableModel` → folder, written atomically → `TableModel`, with everything checked on load.

| file | content |
|---|---|
| model.json | format and version, columns, classes, population, comparison, findings, digests and names of the other files |
| arrays.safetensors | predictions out of fold, coefficients, calibration, the models of the folds |
| boosting.txt | the trees, if the model has some |
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd

from .. import __version__
from ..atomic_files import check_writable
from ..calibration import Calibration
from ..extras import install
from ..serialization import Format, prevalence_facts, read_file, saved_prevalence, write_file
from .columns import Finding, Kind
from .model import FoldModels, HeldOutPredictions, TableModel, UnlabelledReport
from .pipelines import BoostingPipeline, ColumnSpec, LinearPipeline, Pipeline

FORMAT, VERSION = "rightloss.table-model", 2
_JSON, _ARRAYS, _TREES = "model.json", "arrays.safetensors", "boosting.txt"
_ARRAYS_FORMAT = Format(
    "rightloss.table-arrays", 1, (), "model", "TableModel.save", "give the folder that TableModel.save has written"
)
_CORRECTION = ("slopes", "biases", "sampling")
_ODDS_RATIOS = ("step", "odds_ratio", "low", "high")
_FIGURES = ("expected_log_likelihood", "low", "high", "skill", "auc", "calibration_slope", "calibration_intercept", "seconds")


def save_model(
    model: TableModel, folder: str | os.PathLike[str], *, overwrite: bool = False, also: Mapping[str, str] | None = None
) -> None:
    """Save a model as a folder, atomically: a killed process leaves the old folder or none.

    Args:
        model: the model.
        folder: the new folder; its parent must exist.
        overwrite: replace an existing model, or an empty folder.
        also: other text files of the folder by name, such as a report.

    Raises:
        ValueError: if the folder exists, or has files that `save_model` did not write.
        OSError: if nothing can be written there.
    """
    folder = Path(folder)
    check_destination(folder, overwrite=overwrite)
    with tempfile.TemporaryDirectory(dir=folder.absolute().parent, prefix=".saving-") as temporary:
        new, old = Path(temporary, "new"), Path(temporary, "old")
        new.mkdir()
        _write(model, new, also or {})
        if overwrite and os.path.lexists(folder):
            os.rename(folder, old)
        try:
            os.rename(new, folder)
        except OSError:
            if os.path.lexists(old):
                os.rename(old, folder)
            raise


def check_destination(folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Raise a ValueError or OSError if a model cannot be saved there: call it before a long fit.

    Examples:
        >>> import tempfile
        >>> from rightloss.tabular import check_destination
        >>> check_destination(tempfile.mkdtemp() + "/model")
    """
    folder = Path(folder)
    parent, exists = folder.absolute().parent, folder.is_dir()
    if not parent.is_dir():
        raise ValueError(f"Expected a folder at {parent}, but there is none: make it first.")
    if os.path.lexists(folder) and not exists:
        raise ValueError(f"Expected a new folder, but {folder} is a file: choose another name.")
    if exists and not overwrite:
        raise ValueError(f"Expected a new folder, but {folder} exists: choose another name, or ask to overwrite it.")
    foreign = sorted({each.name for each in folder.iterdir()} - _own_files(folder)) if exists else []
    if foreign:
        raise ValueError(
            f"Expected a folder with nothing but a model to overwrite, but {folder} holds other files "
            f"({', '.join(foreign[:10])}): move them elsewhere, or choose another name."
        )
    check_writable(parent)
    if exists and not os.access(folder, os.W_OK | os.X_OK):
        raise OSError(f"Expected a folder that can be written, but {folder} cannot: choose another.")


def _own_files(folder: Path) -> set[str]:
    """Return the names of the files that `save_model` wrote to a folder; none if its model.json is another program's."""
    try:
        names = map(str, (_JSON, _ARRAYS, _TREES, *_parsed(folder / _JSON).get("also", ["report.html"])))  # not in older models
    except (ValueError, OSError, TypeError):
        return set()
    return {name for name in names if not (folder / name).is_dir()}


def load_model(folder: str | os.PathLike[str]) -> TableModel:
    """Load a model saved by `TableModel.save`. Nothing in it is run or unpickled.

    Raises:
        ValueError: the folder is missing, damaged, of another program or a newer version, or does not fit together.

    Examples:
        >>> import tempfile
        >>> import numpy as np, pandas as pd
        >>> from rightloss.tabular import fit_table, load_model
        >>> x = np.random.default_rng(0).normal(size=200)
        >>> frame = pd.DataFrame({"x": x, "cancer": (x + np.arange(200) % 2 > 0.5).astype(int)})
        >>> folder = tempfile.mkdtemp() + "/model"
        >>> fit_table(frame, target="cancer", population=0.01, candidates=["linear"]).save(folder)
        >>> load_model(folder).classes_
        [0, 1]
    """
    folder = Path(folder)
    if not (folder / _JSON).is_file():
        raise ValueError(f"Expected a model's folder with {_JSON} in it, but {folder} is none: give what `fit` has written.")
    facts = _parsed(folder / _JSON)
    if facts.get("version") not in (1, VERSION):
        raise ValueError(
            f"Expected version {VERSION} of the model format, but {folder} has {facts.get('version')!r}, written by rightloss "
            f"{facts.get('rightloss')}: update rightloss (this is {__version__}), or fit again."
        )
    try:
        _require(facts.pop("sha256", None) == _digest(facts), f"{_JSON} is not as it was saved")
        for name, digest in facts["files"].items():
            _require((folder / name).is_file(), f"{name} is missing")
            _require(name in (_ARRAYS, _TREES) and _sha256(folder / name) == digest, f"{name} is not as it was saved")
        arrays, _ = read_file(_ARRAYS_FORMAT, folder / _ARRAYS, "numpy")
        return _assemble(facts, arrays, folder)
    except _Damaged as error:
        raise _damaged(folder, str(error)) from error
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise _damaged(folder, f"{type(error).__name__}: {error}") from error


def _write(model: TableModel, folder: Path, others: Mapping[str, str]) -> None:
    folds = model.folds
    arrays = {f"held_out.{name}": value for name, value in vars(model.held_out).items() if value is not None}
    if model.fitted is not None and model.correction is not None:
        arrays |= _pipeline_arrays(model.fitted, model.correction, "")
    if folds is not None:
        arrays |= {"folds.log_probs": folds.log_probs, "folds.numbers": folds.numbers}
        for number, (fitted, correction) in enumerate(zip(folds.models, folds.corrections, strict=True)):
            arrays |= _pipeline_arrays(fitted, correction, f"folds.{number}.")
    if "trees" in arrays:
        (folder / _TREES).write_bytes(arrays.pop("trees").tobytes())
    write_file(_ARRAYS_FORMAT, folder / _ARRAYS, arrays, {})
    digests = {path.name: _sha256(path) for path in (folder / _ARRAYS, folder / _TREES) if path.exists()}
    for name, text in others.items():
        (folder / name).write_text(text, encoding="utf-8")
    facts = _facts(model) | {"files": digests, "also": sorted(others)}
    facts["sha256"] = _digest(facts)
    (folder / _JSON).write_text(json.dumps(facts, indent=1, ensure_ascii=False, allow_nan=False), encoding="utf-8")


def _pipeline_arrays(fitted: Pipeline, correction: Calibration, prefix: str) -> dict[str, np.ndarray]:
    """Return a pipeline and its correction as arrays, trees as the bytes of their text."""
    arrays = {name: getattr(correction, name) for name in _CORRECTION}
    if isinstance(fitted, LinearPipeline):
        arrays |= {"coefficients": fitted.coef_, "intercepts": fitted.intercept_}
    else:
        arrays["trees"] = np.frombuffer(fitted.booster_.model_to_string().encode(), dtype=np.uint8)
    return {prefix + name: value for name, value in arrays.items()}


def _facts(model: TableModel) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "rightloss": __version__,
        "target": model.target,
        "group": model.group,
        "classes": model.classes_,
        "positive": model.positive,
        "prevalence": prevalence_facts(model.population),
        "family": model.family,
        "correction": None if model.correction is None else model.correction.kind,
        "rows": model.rows,
        "columns": [asdict(column) for column in model.columns],
        "comparison": _finite(model.comparison.to_dict("records")),
        "findings": [asdict(finding) for finding in model.findings],
        "unlabelled": None if model.unlabelled is None else _finite(asdict(model.unlabelled)),
        "odds_ratios": None if model.odds_ratios is None else _finite(model.odds_ratios.to_dict("records")),
    }


def _finite(value: Any) -> Any:
    """Return lists and dicts with None instead of NaN and infinity, which JSON lacks, and with Python's own numbers."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _parsed(path: Path) -> dict[str, Any]:
    """Return the content of a model.json; raise a ValueError if it is none."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise _damaged(path.parent, f"{_JSON} is no JSON: {error}") from error
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise ValueError(f"Expected a model that rightloss has saved, but {path} is another program's: give another folder.")
    return facts


def _assemble(facts: dict[str, Any], arrays: Mapping[str, np.ndarray], folder: Path) -> TableModel:
    classes, ratios, unlabelled = facts["classes"], facts.get("odds_ratios"), facts.get("unlabelled")
    prevalence = saved_prevalence(facts["prevalence"])
    _require(len(set(classes)) == len(classes) == prevalence.num_classes, "the classes are odd")
    _require(facts["positive"] == (classes[1] if len(classes) == 2 else None), "the positive class is odd")
    lists = ("categories", "pooled")
    columns = [ColumnSpec(**each | {name: tuple(each[name]) for name in lists}) for each in facts["columns"]]
    _require(all(column.scale > 0 and column.kind in get_args(Kind) for column in columns), "a column is odd")
    model = TableModel(
        target=facts["target"],
        group=facts["group"],
        classes_=classes,
        positive=facts["positive"],
        population=prevalence,
        columns=columns,
        comparison=pd.DataFrame(facts["comparison"]).astype(dict.fromkeys(_FIGURES, np.float64) | {"chosen": bool}),
        held_out=HeldOutPredictions(
            *(arrays.get(f"held_out.{name}") for name in ("log_probs", "target", "groups", "rows"))  # type: ignore[arg-type]
        ),
        fitted=None,
        correction=None,
        rows=facts["rows"],
        findings=[Finding(**each) for each in facts["findings"]],
        unlabelled=None if unlabelled is None else UnlabelledReport(**unlabelled),
        odds_ratios=None if ratios is None else pd.DataFrame(ratios).astype(dict.fromkeys(_ODDS_RATIOS, np.float64)),
    )
    if facts["family"] is None:
        return model
    if facts["version"] == 1:
        fitted = _pipeline(facts["family"], arrays, "", folder, columns)
        return replace(model, fitted=fitted, correction=_of_version_1(facts["correction"], arrays, prevalence.sampling))
    prefixes = ["", *(f"folds.{number}." for number in range(1 + int(arrays["folds.numbers"].max())))]
    fitted, *models = (_pipeline(facts["family"], arrays, each, folder, columns) for each in prefixes)
    correction, *corrections = (_correction(facts["correction"], arrays, each) for each in prefixes)
    folds = FoldModels(models, arrays["folds.log_probs"], arrays["folds.numbers"], corrections)
    return replace(model, fitted=fitted, correction=correction, folds=folds)


def _pipeline(
    family: str, arrays: Mapping[str, np.ndarray], prefix: str, folder: Path, columns: Sequence[ColumnSpec]
) -> Pipeline:
    """Return the model fitted to all rows, or that of a fold."""
    if family == "linear":
        coefficients = arrays[f"{prefix}coefficients"]
        width = sum(column.linear_width for column in columns)
        _require(coefficients.shape[1:] == (width,), "the coefficients do not fit the columns")
        return LinearPipeline.of(coefficients, arrays[f"{prefix}intercepts"])
    _require(family == "boosting", f"the family {family!r} is not known")
    try:
        import lightgbm
    except ImportError as error:
        raise ImportError(f"This model needs LightGBM: {install('boosting')}.") from error
    trees = arrays[f"{prefix}trees"].tobytes() if prefix else (folder / _TREES).read_bytes()
    try:
        booster = lightgbm.Booster(model_str=trees.decode())
    except (lightgbm.basic.LightGBMError, ValueError) as error:
        raise _Damaged(f"{_TREES} cannot be read: {error}") from error
    _require(booster.num_feature() == len(columns), "the trees do not fit the columns")
    return BoostingPipeline.of(booster, arrays["held_out.log_probs"].shape[1])


def _correction(kind: Any, arrays: Mapping[str, np.ndarray], prefix: str) -> Calibration:
    _require(kind in ("mean", "affine", "beta", "intercepts"), "the correction is odd")
    return Calibration(kind, *(arrays[prefix + name] for name in _CORRECTION))


def _of_version_1(kind: str, arrays: Mapping[str, np.ndarray], sampling: np.ndarray) -> Calibration:
    """Return the correction of an older model, which has no models of the folds: the closed form, or a temperature."""
    if kind == "closed form":
        return Calibration("mean", np.ones(len(sampling)), np.zeros(len(sampling)), sampling)
    temperature, bias, sampling = (arrays[f"calibration.{name}"] for name in ("temperature", "bias", "sampling"))
    return Calibration("affine", 1 / temperature, bias, sampling)


class _Damaged(Exception):
    """Say what is wrong with a folder."""


def _require(fine: bool, what: str) -> None:
    if not fine:
        raise _Damaged(what)


def _damaged(folder: Path, what: str) -> ValueError:
    return ValueError(f"Expected {folder} to be as it was saved, but it is damaged ({what}): copy it again, or fit again.")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True, ensure_ascii=True).encode()).hexdigest()
