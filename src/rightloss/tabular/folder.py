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
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd

from .. import __version__
from ..atomic_files import check_writable, umask
from ..calibration import Calibration
from ..extras import install
from ..serialization import Format, prevalence_facts, read_file, saved_prevalence, write_file
from .candidates import correction_of, fold_corrections
from .columns import Kind
from .encode import ColumnSpec
from .findings import Finding, Level
from .labels import MOST_CLASSES, Label
from .model import FoldModels, HeldOutPredictions, TableModel
from .pipelines import BoostingPipeline, LinearPipeline, Pipeline
from .unlabelled import UnlabelledReport

FORMAT, VERSION = "rightloss.table-model", 2
_JSON, _ARRAYS, _TREES = "model.json", "arrays.safetensors", "boosting.txt"
_MOST_JSON = 1 << 26  # bytes
_ARRAYS_FORMAT = Format(
    "rightloss.table-arrays", 1, (), "model", "TableModel.save", "give the folder that TableModel.save has written"
)
_CORRECTION = ("slopes", "biases", "sampling")
_ODDS_RATIOS = ("class", "column", "change", "step", "odds_ratio", "low", "high")
_FIGURES = ("expected_log_likelihood", "low", "high", "skill", "auc", "calibration_slope", "calibration_intercept", "seconds")


def save_model(
    model: TableModel, folder: str | os.PathLike[str], *, overwrite: bool = False, also: Mapping[str, str] | None = None
) -> None:
    """Save a model as a folder, atomically: a killed process leaves the old folder or none.

    Args:
        model: the model.
        folder: the new folder; its parent must exist.
        overwrite: replace an existing model, or an empty folder. Only files that `save_model` wrote are deleted.
        also: other text files of the folder by name, such as a report.

    Raises:
        ValueError: if the folder exists, or has files that `save_model` did not write.
        OSError: if nothing can be written there.
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
        temporary.chmod(0o777 & ~umask())
        _replace(temporary, folder, overwrite)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_destination(folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Raise a ValueError or OSError if a model cannot be saved there: call it before a long fit.

    Examples:
        >>> import tempfile
        >>> from rightloss.tabular import check_destination
        >>> check_destination(tempfile.mkdtemp() + "/model")
    """
    folder = Path(folder)
    if not folder.absolute().parent.is_dir():
        raise ValueError(f"Expected a folder at {folder.absolute().parent}, but there is none: make it first.")
    if os.path.lexists(folder) and not folder.is_dir():
        raise ValueError(f"Expected a new folder, but {folder} is a file: choose another name.")
    if folder.is_dir() and not overwrite:
        raise ValueError(f"Expected a new folder, but {folder} exists: choose another name, or ask to overwrite it.")
    foreign = _foreign_files(folder) and _foreign_files(folder)  # twice: another process may just have replaced the model
    if foreign:
        raise ValueError(
            f"Expected a folder with nothing but a model to overwrite, but {folder} holds other files "
            f"({', '.join(foreign[:10])}): move them elsewhere, or choose another name."
        )
    check_writable(folder.absolute().parent)
    if folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK):
        raise OSError(f"Expected a folder that can be written, but {folder} cannot: choose another.")


def _foreign_files(folder: Path) -> list[str]:
    """Return the names of files and folders in a folder that `save_model` did not write."""
    with suppress(FileNotFoundError, NotADirectoryError):
        own = _own_files(folder)
        return sorted(path.name for path in folder.iterdir() if path.name not in own or path.is_dir())
    return []


def _own_files(folder: Path) -> set[str]:
    """Return the names of the files that `save_model` wrote to a folder; none if its model.json is another program's."""
    try:
        facts = _parsed(folder / _JSON)
    except (ValueError, OSError):
        return set()
    also = facts.get("also", ["report.html"])  # older models do not list it
    plain = {name for name in also if isinstance(name, str) and Path(name).name == name} if isinstance(also, list) else set()
    return {_JSON, _ARRAYS, _TREES} | plain


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
    arrays, _ = read_file(_ARRAYS_FORMAT, folder / _ARRAYS, "numpy")
    try:
        return _assemble(facts, arrays, folder)
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise _damaged(folder, f"{type(error).__name__}: {error}") from error


def _write(model: TableModel, folder: Path, others: Mapping[str, str]) -> None:
    held, folds = model.held_out, model.folds
    arrays = {f"held_out.{name}": value for name, value in vars(held).items() if value is not None}
    if model.fitted is not None and model.correction is not None:
        arrays |= _pipeline_arrays(model.fitted, model.correction, "")
    if folds is not None:
        arrays |= {"folds.log_probs": folds.log_probs, "folds.numbers": folds.numbers}
        for number, (fitted, correction) in enumerate(zip(folds.models, folds.corrections, strict=True)):
            arrays |= _pipeline_arrays(fitted, correction, f"folds.{number}.")
    if isinstance(model.fitted, BoostingPipeline):
        (folder / _TREES).write_bytes(arrays.pop("trees").tobytes())
    write_file(_ARRAYS_FORMAT, folder / _ARRAYS, arrays, {})
    for name, text in others.items():
        (folder / name).write_text(text, encoding="utf-8")
    facts = _facts(model) | {
        "files": {name: _sha256(folder / name, folder) for name in (_ARRAYS, _TREES) if (folder / name).exists()},
        "also": sorted(others),
    }
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


def _replace(temporary: Path, folder: Path, overwrite: bool) -> None:
    """Move a folder to its final path; an old model there is renamed first, and its files are deleted last, by name."""
    aside = Path(tempfile.mkdtemp(dir=folder.absolute().parent, prefix=".replaced-"))
    old = aside / "old"
    try:
        while True:
            if overwrite:
                with suppress(FileNotFoundError):  # nothing is there, or another process has just moved it
                    os.rename(folder, old)
            try:
                os.rename(temporary, folder)
                return
            except OSError:
                if not (overwrite and folder.is_dir()):  # else another process has just written its model: replace that
                    if old.is_dir():
                        os.rename(old, folder)
                    check_destination(folder, overwrite=overwrite)
                    raise
            _delete(old)
    finally:
        _delete(old)
        with suppress(OSError):
            aside.rmdir()


def _delete(folder: Path) -> None:
    """Delete the files that `save_model` wrote to a folder, and the folder if it is empty then; of a link, only the link."""
    if folder.is_symlink():
        folder.unlink()
        return
    for name in _own_files(folder):
        (folder / name).unlink(missing_ok=True)
    with suppress(OSError):  # what came into it at the last moment is kept
        folder.rmdir()


def _parsed(path: Path) -> dict[str, Any]:
    """Return the content of a model.json; raise a ValueError if it is none."""
    if path.stat().st_size > _MOST_JSON:
        raise _damaged(path.parent, f"{_JSON} has {path.stat().st_size:,} bytes")
    try:
        facts = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise _damaged(path.parent, f"{_JSON} is no JSON: {error}") from error
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise ValueError(f"Expected a model that rightloss has saved, but {path} is another program's: give another folder.")
    return facts


def _read_facts(folder: Path) -> dict[str, Any]:
    path = folder / _JSON
    if not folder.is_dir() or not path.is_file():
        raise ValueError(f"Expected a model's folder with {_JSON} in it, but {folder} is none: give what `fit` has written.")
    facts = _parsed(path)
    if facts.get("version") not in (1, VERSION):
        raise ValueError(
            f"Expected version {VERSION} of the model format, but {folder} has {facts.get('version')!r}, written by rightloss "
            f"{facts.get('rightloss')}: update rightloss (this is {__version__}), or fit again."
        )
    digest = facts.pop("sha256", None)
    if digest != _digest(facts):
        raise _damaged(folder, f"{_JSON} is not as it was saved")
    return facts


def _assemble(facts: dict[str, Any], arrays: Mapping[str, np.ndarray], folder: Path) -> TableModel:
    classes = _classes(facts["classes"], folder)
    prevalence = saved_prevalence(_dict(facts, "prevalence"), folder / _JSON)
    columns = [_column(each, folder) for each in _list(facts, "columns")]
    _require(prevalence.num_classes == len(classes), folder, "classes and population differ in number")
    positive = None if facts["positive"] is None else classes[1]
    _require(positive == facts["positive"] and (positive is None or len(classes) == 2), folder, "the positive class is odd")
    _require(isinstance(facts["target"], str) and isinstance(facts["rows"], int), folder, "target or rows are odd")
    _require(facts["group"] is None or isinstance(facts["group"], str), folder, "the group column is odd")
    stored = _Stored(arrays, folder, columns, len(classes))
    held_out = stored.held_out()
    model = TableModel(
        target=facts["target"],
        group=facts["group"],
        classes_=classes,
        positive=positive,
        population=prevalence,
        columns=columns,
        comparison=_comparison(_list(facts, "comparison"), folder),
        held_out=held_out,
        fitted=stored.pipeline(facts["family"]),
        correction=None,
        rows=facts["rows"],
        findings=[_finding(each, folder) for each in _list(facts, "findings")],
        unlabelled=None if facts.get("unlabelled") is None else _unlabelled(facts["unlabelled"], len(classes), folder),
        odds_ratios=None if facts.get("odds_ratios") is None else _odds_ratios(_list(facts, "odds_ratios"), folder),
    )
    if model.fitted is None:
        return model
    if facts["version"] == 1:
        return _of_version_1(model, facts["correction"], stored)
    kind, models = facts["correction"], stored.fold_pipelines(facts["family"])
    made = [stored.correction(kind, f"folds.{number}.") for number in range(len(models))]
    folds = FoldModels(models, *stored.fold_predictions(len(models)), made) if models else None
    return replace(model, correction=stored.correction(kind), folds=folds)


def _of_version_1(model: TableModel, correction: str, stored: _Stored) -> TableModel:
    """Return a model of the version with an affine calibration without shrinkage, which folds repeat; 0.2.0 has no folds."""
    _require(correction in ("affine", "closed form"), stored.folder, "the correction is not known")
    method, rho, codes = correction.replace(" ", "_"), model.sampling, model.held_out.target
    models = stored.fold_pipelines(str(model.family))
    folds = None
    if models:
        log_probs, numbers = stored.fold_predictions(len(models))
        made = fold_corrections(method, log_probs, codes, numbers, rho, shrink=0.0)
        if method == "closed_form" and model.unlabelled is not None and model.unlabelled.kept:
            made = [correction_of(method, log_probs, codes, rho)] * len(models)
        folds = FoldModels(models, log_probs, numbers, made)
    if method == "closed_form":
        return replace(model, correction=correction_of(method, codes, codes, rho), folds=folds)
    temperature, bias, sampling = (
        stored.array(f"calibration.{name}", np.float64, -1) for name in ("temperature", "bias", "sampling")
    )
    return replace(model, correction=Calibration("affine", 1 / temperature, bias, sampling), folds=folds)


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


def _odds_ratios(records: list[Any], folder: Path) -> pd.DataFrame:
    frame = pd.DataFrame(records)
    _require(set(_ODDS_RATIOS) == set(frame.columns), folder, "the odds ratios lack columns")
    return frame.astype({name: np.float64 for name in _ODDS_RATIOS[3:]})


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


@dataclass(frozen=True)
class _Stored:
    """The arrays of a folder, checked as they are read."""

    arrays: Mapping[str, np.ndarray]
    folder: Path
    columns: list[ColumnSpec]
    num_classes: int

    def array(self, name: str, dtype: type, *shape: int) -> np.ndarray:
        """Return an array with dtype, shape and finiteness checked; −1 is any length."""
        _require(name in self.arrays, self.folder, f"{name} is missing")
        array = self.arrays[name]
        fits = array.ndim == len(shape) and all(want in (-1, have) for want, have in zip(shape, array.shape, strict=True))
        _require(fits and array.dtype == dtype, self.folder, f"{name} is {array.dtype}{list(array.shape)}")
        _require(bool(np.isfinite(array).all()), self.folder, f"{name} has numbers that are not finite")
        return array

    def held_out(self) -> HeldOutPredictions:
        log_probs = self.array("held_out.log_probs", np.float64, -1, self.num_classes)
        names = ["target", "rows", *(["groups"] if "held_out.groups" in self.arrays else [])]
        found = {name: self.array(f"held_out.{name}", np.int64, len(log_probs)) for name in names}
        _require(bool(np.isin(found["target"], np.arange(self.num_classes)).all()), self.folder, "labels out of range")
        return HeldOutPredictions(log_probs, found["target"], found.get("groups"), found["rows"])

    def pipeline(self, family: Any, prefix: str = "") -> Pipeline | None:
        if family == "linear":
            width = sum(column.linear_width for column in self.columns)
            coefficients = self.array(f"{prefix}coefficients", np.float64, self.num_classes, width)
            return LinearPipeline.of(coefficients, self.array(f"{prefix}intercepts", np.float64, self.num_classes))
        if family == "boosting":
            trees = self.array(f"{prefix}trees", np.uint8, -1).tobytes() if prefix else None
            return BoostingPipeline.of(self._booster(trees), self.num_classes)
        _require(family is None, self.folder, f"the family {family!r} is not known")
        return None

    def fold_pipelines(self, family: str) -> list[Pipeline]:
        """Return the models of the folds; none in models of version 0.2.0."""
        found: list[Pipeline] = []
        while any(name.startswith(f"folds.{len(found)}.") for name in self.arrays):
            found += filter(None, [self.pipeline(family, f"folds.{len(found)}.")])
        return found

    def fold_predictions(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the predictions of the models of the folds, and the fold of each row."""
        rows = len(self.arrays["held_out.target"])
        log_probs = self.array("folds.log_probs", np.float64, rows, self.num_classes)
        numbers = self.array("folds.numbers", np.int64, rows)
        _require(count > 1 and set(numbers.tolist()) == set(range(count)), self.folder, "the models of the folds are odd")
        return log_probs, numbers

    def correction(self, kind: Any, prefix: str = "") -> Calibration:
        slopes, biases, sampling = (self.array(prefix + name, np.float64, self.num_classes) for name in _CORRECTION)
        fine = kind in ("mean", "affine", "beta", "intercepts") and (slopes >= 0).all() and (sampling > 0).all()
        _require(bool(fine), self.folder, "the correction is odd")
        return Calibration(kind, slopes, biases, sampling)

    def _booster(self, trees: bytes | None) -> Any:
        try:
            import lightgbm
        except ImportError as error:
            raise ImportError(f"This model needs LightGBM: {install('boosting')}.") from error
        try:
            booster = lightgbm.Booster(model_str=((self.folder / _TREES).read_bytes() if trees is None else trees).decode())
        except (lightgbm.basic.LightGBMError, OSError, ValueError) as error:
            raise _damaged(self.folder, f"{_TREES} cannot be read: {error}") from error
        outputs = 1 if self.num_classes == 2 else self.num_classes
        fits = booster.num_feature() == len(self.columns) and booster.num_model_per_iteration() == outputs
        _require(fits, self.folder, "the trees do not fit the columns and classes")
        return booster


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
