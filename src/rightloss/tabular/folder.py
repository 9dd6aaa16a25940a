"""Save and load a `TableModel` as a folder, without pickle: JSON, safetensors, and LightGBM's own text format.

Stage: `TableModel` → folder, written atomically → `TableModel`, with everything checked on load.

| file | content |
|---|---|
| model.json | format and version, columns, classes, population, comparison, findings, digests of the other files |
| arrays.safetensors | predictions out of fold, coefficients, calibration, the models of the folds |
| boosting.txt | the trees, if the model has some |
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from .. import __version__
from ..prevalence import Prevalence
from ..serialization import Format, prevalence_facts, read_file, saved_prevalence, write_file
from ..shift import Calibration
from .candidates import BoostingModel, Fitted, LinearModel
from .columns import Kind
from .encode import ColumnSpec
from .findings import Finding, Level
from .labels import MOST_CLASSES, Label
from .model import FoldModels, HeldOutRows, TableModel
from .unlabelled import UnlabelledReport

FORMAT, VERSION = "rightloss.table-model", 1
_JSON, _ARRAYS, _TREES = "model.json", "arrays.safetensors", "boosting.txt"
_MOST_JSON = 1 << 26  # bytes
_ARRAYS_FORMAT = Format(
    "rightloss.table-arrays", 1, (), "model", "TableModel.save", "give the folder that TableModel.save has written"
)
_CALIBRATION = ("temperature", "bias", "sampling", "counts", "covariance")
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
        ValueError: if the folder exists, or has other files than those of a model.
    """
    folder = Path(folder)
    check_destination(folder, overwrite=overwrite)
    others = dict(also or {})
    bad = [name for name in others if Path(name).name != name or name in (_JSON, _ARRAYS, _TREES)]
    if bad:
        raise ValueError(f"Expected plain names of other files, but got {bad}: choose names that the model does not use.")
    temporary = Path(tempfile.mkdtemp(dir=folder.absolute().parent, prefix=".saving-"))
    try:
        _write(model, temporary, others)
        temporary.chmod(0o777 & ~_umask())
        _replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_destination(folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Raise a ValueError if a model cannot be saved there: call it before a long fit.

    Examples:
        >>> import tempfile
        >>> from rightloss.tabular import check_destination
        >>> check_destination(tempfile.mkdtemp() + "/model")
    """
    folder = Path(folder)
    if not folder.absolute().parent.is_dir():
        raise ValueError(f"Expected a folder at {folder.absolute().parent}, but there is none: make it first.")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"Expected a new folder, but {folder} is a file: choose another name.")
    if folder.is_dir() and not overwrite:
        raise ValueError(f"Expected a new folder, but {folder} exists: choose another name, or ask to overwrite it.")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / _JSON).is_file():
        raise ValueError(f"Expected a model's folder to overwrite, but {folder} holds other files: choose another name.")


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
    facts = _read_facts(folder)
    for name, digest in _dict(facts, "files").items():
        if name not in (_ARRAYS, _TREES) or _sha256(folder / name, folder) != digest:
            raise _damaged(folder, f"{name} is not as it was saved")
    tensors, _ = read_file(_ARRAYS_FORMAT, folder / _ARRAYS)
    try:
        return _assemble(facts, tensors, folder)
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise _damaged(folder, f"{type(error).__name__}: {error}") from error


def _write(model: TableModel, folder: Path, others: Mapping[str, str]) -> None:
    tensors = {"held_out.log_probs": model.held_out.log_probs, "held_out.target": model.held_out.target}
    tensors["held_out.rows"] = model.held_out.rows
    if model.held_out.groups is not None:
        tensors["held_out.groups"] = model.held_out.groups
    if isinstance(model.fitted, LinearModel):
        tensors |= {"coefficients": model.fitted.coefficients, "intercepts": model.fitted.intercepts}
    tensors |= _fold_arrays(model.folds)
    arrays = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in tensors.items()}
    if model.calibration is not None:
        arrays |= {f"calibration.{name}": getattr(model.calibration, name).double() for name in _CALIBRATION}
    write_file(_ARRAYS_FORMAT, folder / _ARRAYS, arrays, {})
    if isinstance(model.fitted, BoostingModel):
        (folder / _TREES).write_bytes(_trees(model.fitted))
    for name, text in others.items():
        (folder / name).write_text(text, encoding="utf-8")
    facts = _facts(model) | {
        "files": {name: _sha256(folder / name, folder) for name in (_ARRAYS, _TREES) if (folder / name).exists()}
    }
    facts["sha256"] = _digest(facts)
    (folder / _JSON).write_text(json.dumps(facts, indent=1, ensure_ascii=False, allow_nan=False), encoding="utf-8")


def _fold_arrays(folds: FoldModels | None) -> dict[str, np.ndarray]:
    """Return the models of the folds as arrays, trees as the bytes of their text."""
    if folds is None:
        return {}
    arrays = {"folds.log_probs": folds.log_probs, "folds.numbers": folds.numbers}
    for number, fitted in enumerate(folds.models):
        if isinstance(fitted, LinearModel):
            arrays |= {f"folds.{number}.{name}": getattr(fitted, name) for name in ("coefficients", "intercepts")}
        elif isinstance(fitted, BoostingModel):
            arrays[f"folds.{number}.trees"] = np.frombuffer(_trees(fitted), dtype=np.uint8).copy()
    return arrays


def _trees(fitted: BoostingModel) -> bytes:
    return str(fitted.booster.model_to_string()).encode()


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
        "correction": "affine" if model.calibration is not None else "closed form",
        "rows": model.rows,
        "columns": [asdict(column) for column in model.columns],
        "comparison": _finite(model.comparison.to_dict("records")),
        "findings": [asdict(finding) for finding in model.findings],
        "unlabelled": None if model.unlabelled is None else _finite(asdict(model.unlabelled)),
    }


def _finite(value: Any) -> Any:
    """Return lists and dicts with None instead of NaN and infinity, which JSON lacks, and with Python's own numbers."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _replace(temporary: Path, folder: Path) -> None:
    """Move a folder to its final path; an old folder there is renamed first, and deleted last."""
    if not folder.exists():
        os.rename(temporary, folder)
        return
    aside = Path(tempfile.mkdtemp(dir=folder.absolute().parent, prefix=".replaced-"))
    os.rename(folder, aside / "old")
    try:
        os.rename(temporary, folder)
    except OSError:
        os.rename(aside / "old", folder)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _read_facts(folder: Path) -> dict[str, Any]:
    path = folder / _JSON
    if not folder.is_dir() or not path.is_file():
        raise ValueError(f"Expected a model's folder with {_JSON} in it, but {folder} is none: give what `fit` has written.")
    if path.stat().st_size > _MOST_JSON:
        raise _damaged(folder, f"{_JSON} has {path.stat().st_size:,} bytes")
    try:
        facts = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise _damaged(folder, f"{_JSON} is no JSON: {error}") from error
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise ValueError(f"Expected a model that rightloss has saved, but {path} is another program's: give another folder.")
    if facts.get("version") != VERSION:
        raise ValueError(
            f"Expected version {VERSION} of the model format, but {folder} has {facts.get('version')!r}, written by rightloss "
            f"{facts.get('rightloss')}: update rightloss (this is {__version__}), or fit again."
        )
    digest = facts.pop("sha256", None)
    if digest != _digest(facts):
        raise _damaged(folder, f"{_JSON} is not as it was saved")
    return facts


def _assemble(facts: dict[str, Any], tensors: Mapping[str, Tensor], folder: Path) -> TableModel:
    classes = _classes(facts["classes"], folder)
    prevalence = saved_prevalence(_dict(facts, "prevalence"), folder / _JSON)
    columns = [_column(each, folder) for each in _list(facts, "columns")]
    _require(prevalence.num_classes == len(classes), folder, "classes and population differ in number")
    positive = None if facts["positive"] is None else classes[1]
    _require(positive == facts["positive"] and (positive is None or len(classes) == 2), folder, "the positive class is odd")
    _require(isinstance(facts["target"], str) and isinstance(facts["rows"], int), folder, "target or rows are odd")
    _require(facts["group"] is None or isinstance(facts["group"], str), folder, "the group column is odd")
    return TableModel(
        target=facts["target"],
        group=facts["group"],
        classes_=classes,
        positive=positive,
        population=prevalence,
        columns=columns,
        comparison=_comparison(_list(facts, "comparison"), folder),
        held_out=_held_out(tensors, len(classes), folder),
        family=facts["family"],
        fitted=_fitted(facts["family"], tensors, columns, len(classes), folder),
        folds=_folds(facts["family"], tensors, columns, len(classes), folder),
        calibration=_calibration(tensors, prevalence, folder) if facts["correction"] == "affine" else None,
        rows=facts["rows"],
        findings=[_finding(each, folder) for each in _list(facts, "findings")],
        unlabelled=None if facts.get("unlabelled") is None else _unlabelled(facts["unlabelled"], len(classes), folder),
    )


def _classes(values: Any, folder: Path) -> list[Label]:
    fine = isinstance(values, list) and 2 <= len(values) <= MOST_CLASSES
    fine = fine and all(isinstance(value, str | int | float | bool) for value in values)
    _require(fine and len({(type(value), value) for value in values}) == len(values), folder, "the classes are odd")
    return list(values)


def _column(value: Any, folder: Path) -> ColumnSpec:
    numbers = [value["fill"], value["mean"], value["scale"]]
    _require(
        all(isinstance(each, int | float) and not isinstance(each, bool) for each in numbers), folder, "a column's numbers"
    )
    texts = [value["name"], *value["categories"], *value["pooled"]]
    _require(all(isinstance(each, str) for each in texts) and value["kind"] in get_args(Kind), folder, "a column's names")
    _require(isinstance(value["has_missing"], bool) and value["scale"] > 0, folder, "a column's scale")
    _require(value["date_format"] is None or isinstance(value["date_format"], str), folder, "a date's format")
    fixed = {"categories": tuple(value["categories"]), "pooled": tuple(value["pooled"])}
    floats = {name: float(value[name]) for name in ("fill", "mean", "scale")}
    return ColumnSpec(**{**value, **fixed, **floats})


def _comparison(records: list[Any], folder: Path) -> pd.DataFrame:
    frame = pd.DataFrame(records)
    needed = {"candidate", "family", "correction", "chosen", *_FIGURES}
    _require(needed == set(frame.columns), folder, "the comparison lacks columns")
    return frame.astype({name: np.float64 for name in _FIGURES} | {"chosen": bool})


def _finding(value: Any, folder: Path) -> Finding:
    fine = value["level"] in get_args(Level) and isinstance(value["message"], str)
    _require(fine and (value["column"] is None or isinstance(value["column"], str)), folder, "a finding is odd")
    return Finding(value["level"], value["column"], value["message"])


def _unlabelled(value: Any, num_classes: int, folder: Path) -> UnlabelledReport:
    names = {each.name for each in fields(UnlabelledReport)}
    later = {"stream_gain", "warned", "mean_predictions"}  # older models lack them
    _require(isinstance(value, dict) and names - later <= set(value) <= names, folder, "unlabelled")
    counts = value["rows"], value["used"]
    numbers = [value.get(name) for name in ("p_value", "gain", "low", "high", "stream_gain")]
    fine = all(isinstance(each, int) and not isinstance(each, bool) and each >= 0 for each in counts)
    fine &= all(each is None or isinstance(each, float) for each in numbers) and isinstance(value["kept"], bool)
    fine &= isinstance(value.get("warned", False), bool)
    for limits in (value["population_low"], value["population_high"], value.get("mean_predictions")):
        of_classes = isinstance(limits, list) and len(limits) == num_classes
        fine &= limits is None or (of_classes and all(isinstance(each, float) for each in limits))
    _require(fine, folder, "what is said of unlabelled rows is odd")
    return UnlabelledReport(**value)


def _held_out(tensors: Mapping[str, Tensor], num_classes: int, folder: Path) -> HeldOutRows:
    log_probs = _array(tensors, "held_out.log_probs", np.float64, (-1, num_classes), folder)
    target, rows = (_array(tensors, f"held_out.{name}", np.int64, (len(log_probs),), folder) for name in ("target", "rows"))
    _require(bool(((target >= 0) & (target < num_classes)).all()), folder, "labels out of range")
    groups = None
    if "held_out.groups" in tensors:
        groups = _array(tensors, "held_out.groups", np.int64, (len(log_probs),), folder)
    return HeldOutRows(log_probs, target, groups, rows)


def _fitted(
    family: Any,
    tensors: Mapping[str, Tensor],
    columns: list[ColumnSpec],
    num_classes: int,
    folder: Path,
    prefix: str = "",
) -> Fitted | None:
    if family == "linear":
        width = sum(column.linear_width for column in columns)
        coefficients = _array(tensors, f"{prefix}coefficients", np.float64, (num_classes, width), folder)
        return LinearModel(coefficients, _array(tensors, f"{prefix}intercepts", np.float64, (num_classes,), folder))
    if family == "boosting":
        trees = _array(tensors, f"{prefix}trees", np.uint8, (-1,), folder).tobytes() if prefix else None
        return BoostingModel(_booster(folder, trees, len(columns), num_classes), num_classes)
    _require(family is None, folder, f"the family {family!r} is not known")
    return None


def _folds(
    family: Any, tensors: Mapping[str, Tensor], columns: list[ColumnSpec], num_classes: int, folder: Path
) -> FoldModels | None:
    """Return the models of the folds; None in models of version 0.2.0."""
    if "folds.log_probs" not in tensors:
        return None
    shape = (len(tensors["held_out.target"]), num_classes)
    log_probs = _array(tensors, "folds.log_probs", np.float64, shape, folder)
    models: list[Fitted] = []
    while any(name.startswith(f"folds.{len(models)}.") for name in tensors):
        fitted = _fitted(family, tensors, columns, num_classes, folder, f"folds.{len(models)}.")
        _require(fitted is not None, folder, "models of folds without a family")
        models += [] if fitted is None else [fitted]
    numbers = _array(tensors, "folds.numbers", np.int64, shape[:1], folder)
    _require(len(models) > 1 and set(numbers.tolist()) == set(range(len(models))), folder, "the models of the folds are odd")
    return FoldModels(models, log_probs, numbers)


def _booster(folder: Path, trees: bytes | None, num_columns: int, num_classes: int) -> Any:
    try:
        import lightgbm
    except ImportError as error:
        raise ImportError("This model needs LightGBM: pip install 'rightloss[boosting]'.") from error
    try:
        booster = lightgbm.Booster(model_str=((folder / _TREES).read_bytes() if trees is None else trees).decode())
    except (lightgbm.basic.LightGBMError, OSError, ValueError) as error:
        raise _damaged(folder, f"{_TREES} cannot be read: {error}") from error
    outputs = 1 if num_classes == 2 else num_classes
    fits = booster.num_feature() == num_columns and booster.num_model_per_iteration() == outputs
    _require(fits, folder, "the trees do not fit the columns and classes")
    return booster


def _calibration(tensors: Mapping[str, Tensor], prevalence: Prevalence, folder: Path) -> Calibration:
    k = prevalence.num_classes
    shapes: dict[str, tuple[int, ...]] = {name: (k,) for name in _CALIBRATION} | {"covariance": (2 * k, 2 * k)}
    parts = {name: _array(tensors, f"calibration.{name}", np.float64, shape, folder) for name, shape in shapes.items()}
    _require(bool((parts["temperature"] > 0).all()), folder, "a temperature is not positive")
    return Calibration("bias-corrected", **{name: torch.from_numpy(value) for name, value in parts.items()})


def _array(tensors: Mapping[str, Tensor], name: str, dtype: type, shape: tuple[int, ...], folder: Path) -> np.ndarray:
    """Return an array of the file, with dtype, shape and finiteness checked; −1 is any length."""
    _require(name in tensors, folder, f"{name} is missing")
    array: np.ndarray = tensors[name].numpy()
    fits = array.ndim == len(shape) and all(want in (-1, have) for want, have in zip(shape, array.shape, strict=True))
    _require(fits and array.dtype == dtype, folder, f"{name} is {array.dtype}{list(array.shape)}")
    _require(bool(np.isfinite(array).all()), folder, f"{name} has numbers that are not finite")
    return array


def _list(facts: Mapping[str, Any], name: str) -> list[Any]:
    value = facts[name]
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise TypeError(f"{name} is no list of objects")
    return value


def _dict(facts: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = facts.get(name)
    return value if isinstance(value, dict) else {}


def _require(fine: bool, folder: Path, what: str) -> None:
    if not fine:
        raise _damaged(folder, what)


def _damaged(folder: Path, what: str) -> ValueError:
    return ValueError(f"Expected {folder} to be as it was saved, but it is damaged ({what}): copy it again, or fit again.")


def _sha256(path: Path, folder: Path) -> str:
    if not path.is_file():
        raise _damaged(folder, f"{path.name} is missing")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is no number")


def _umask() -> int:
    mask = os.umask(0o077)  # the umask can only be read by setting it
    os.umask(mask)
    return mask
