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
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd

from .. import __version__
from ..atomic_files import check_writable, umask
from ..calibration import Calibration
from ..extras import install
from ..serialization import Format, prevalence_facts, read_file, saved_prevalence, write_file
from .columns import Kind
from .encode import ColumnSpec
from .findings import Finding
from .labels import MOST_CLASSES, Label
from .model import FoldModels, HeldOutPredictions, TableModel, UnlabelledReport
from .pipelines import BoostingPipeline, LinearPipeline, Pipeline

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
    own = _own_files(folder)
    foreign = (
        [] if not folder.is_dir() else sorted(each.name for each in folder.iterdir() if each.name not in own or each.is_dir())
    )
    if foreign:
        raise ValueError(
            f"Expected a folder with nothing but a model to overwrite, but {folder} holds other files "
            f"({', '.join(foreign[:10])}): move them elsewhere, or choose another name."
        )
    check_writable(folder.absolute().parent)
    if folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK):
        raise OSError(f"Expected a folder that can be written, but {folder} cannot: choose another.")


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
    for name, digest in dict(facts.get("files") or {}).items():
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
        with suppress(FileNotFoundError):
            if overwrite:
                os.rename(folder, old)
        try:
            os.rename(temporary, folder)
        except OSError:
            if old.is_dir():
                os.rename(old, folder)
            raise
        _delete(old)
    finally:
        with suppress(OSError):  # what came into the old folder at the last moment is kept
            aside.rmdir()


def _delete(folder: Path) -> None:
    """Delete the files that `save_model` wrote to a folder, and the folder if it is empty then; of a link, only the link."""
    if folder.is_symlink():
        folder.unlink()
        return
    for name in _own_files(folder):
        (folder / name).unlink(missing_ok=True)
    with suppress(OSError):
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
    classes = facts["classes"]
    fine = 2 <= len(classes) <= MOST_CLASSES and len(set(classes)) == len(classes)
    _require(fine and all(isinstance(each, Label) for each in classes), "the classes are odd")
    prevalence = saved_prevalence(facts["prevalence"])
    _require(prevalence.num_classes == len(classes), "classes and population differ in number")
    _require(facts["positive"] == (classes[1] if len(classes) == 2 else None), "the positive class is odd")
    lists = ("categories", "pooled")
    columns = [ColumnSpec(**each | {name: tuple(each[name]) for name in lists}) for each in facts["columns"]]
    _require(all(column.scale > 0 and column.kind in get_args(Kind) for column in columns), "a column is odd")
    stored = _Stored(arrays, folder, columns, len(classes))
    compared = pd.DataFrame(facts["comparison"])[["candidate", "family", "correction", *_FIGURES, "chosen"]]
    ratios = None if facts.get("odds_ratios") is None else pd.DataFrame(facts["odds_ratios"])[[*_ODDS_RATIOS]]
    model = TableModel(
        target=facts["target"],
        group=facts["group"],
        classes_=classes,
        positive=facts["positive"],
        population=prevalence,
        columns=columns,
        comparison=compared.astype(dict.fromkeys(_FIGURES, np.float64) | {"chosen": bool}),
        held_out=stored.held_out(),
        fitted=stored.pipeline(facts["family"]),
        correction=None,
        rows=facts["rows"],
        findings=[Finding(**each) for each in facts["findings"]],
        unlabelled=None if facts.get("unlabelled") is None else UnlabelledReport(**facts["unlabelled"]),
        odds_ratios=None if ratios is None else ratios.astype(dict.fromkeys(_ODDS_RATIOS[3:], np.float64)),
    )
    if model.fitted is None:
        return model
    models = stored.fold_pipelines(facts["family"])
    predictions = stored.fold_predictions(len(models)) if models else None
    if facts["version"] == 1:
        correction, of_folds = _of_version_1(model, facts["correction"], stored, predictions)
    else:
        correction = stored.correction(facts["correction"])
        of_folds = [stored.correction(facts["correction"], f"folds.{number}.") for number in range(len(models))]
    return replace(
        model, correction=correction, folds=None if predictions is None else FoldModels(models, *predictions, of_folds)
    )


def _of_version_1(
    model: TableModel, kind: str, stored: _Stored, predictions: tuple[np.ndarray, np.ndarray] | None
) -> tuple[Calibration, list[Calibration]]:
    """Return the correction of an older model, and of its folds: the closed form, or an affine one without shrinkage."""
    from .candidates import correction_of, fold_corrections

    method, rho, codes = {"affine": "affine", "closed form": "closed_form"}[kind], model.sampling, model.held_out.target
    found = correction_of("closed_form", codes, codes, rho)
    if method == "affine":
        names = ("temperature", "bias", "sampling")
        temperature, bias, sampling = (stored.array(f"calibration.{name}", np.float64, len(rho)) for name in names)
        found = Calibration("affine", 1 / temperature, bias, sampling)
    if predictions is None:
        return found, []
    if model.unlabelled is not None and model.unlabelled.kept:  # such models predict at the same mix in each fold
        return found, [found] * (int(predictions[1].max()) + 1)
    return found, fold_corrections(method, predictions[0], codes, predictions[1], rho, shrink=0.0)


@dataclass(frozen=True)
class _Stored:
    """The arrays of a folder, checked as they are read."""

    arrays: Mapping[str, np.ndarray]
    folder: Path
    columns: list[ColumnSpec]
    num_classes: int

    def array(self, name: str, dtype: type, *shape: int) -> np.ndarray:
        """Return an array with dtype, shape and finiteness checked; −1 is any length."""
        array = self.arrays[name]
        fits = array.ndim == len(shape) and all(want in (-1, have) for want, have in zip(shape, array.shape, strict=True))
        _require(fits and array.dtype == dtype, f"{name} is {array.dtype}{list(array.shape)}")
        _require(bool(np.isfinite(array).all()), f"{name} has numbers that are not finite")
        return array

    def held_out(self) -> HeldOutPredictions:
        log_probs = self.array("held_out.log_probs", np.float64, -1, self.num_classes)
        names = [name for name in ("target", "groups", "rows") if name != "groups" or "held_out.groups" in self.arrays]
        found = {name: self.array(f"held_out.{name}", np.int64, len(log_probs)) for name in names}
        _require(bool(np.isin(found["target"], np.arange(self.num_classes)).all()), "labels are out of range")
        return HeldOutPredictions(log_probs, found["target"], found.get("groups"), found["rows"])

    def pipeline(self, family: Any, prefix: str = "") -> Pipeline | None:
        if family == "linear":
            width = sum(column.linear_width for column in self.columns)
            coefficients = self.array(f"{prefix}coefficients", np.float64, self.num_classes, width)
            return LinearPipeline.of(coefficients, self.array(f"{prefix}intercepts", np.float64, self.num_classes))
        if family == "boosting":
            trees = self.array(f"{prefix}trees", np.uint8, -1).tobytes() if prefix else (self.folder / _TREES).read_bytes()
            return BoostingPipeline.of(self._booster(trees), self.num_classes)
        _require(family is None, f"the family {family!r} is not known")
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
        _require(count > 1 and set(numbers.tolist()) == set(range(count)), "the models of the folds are odd")
        return log_probs, numbers

    def correction(self, kind: Any, prefix: str = "") -> Calibration:
        slopes, biases, sampling = (self.array(prefix + name, np.float64, self.num_classes) for name in _CORRECTION)
        fine = kind in ("mean", "affine", "beta", "intercepts") and (slopes >= 0).all() and (sampling > 0).all()
        _require(bool(fine), "the correction is odd")
        return Calibration(kind, slopes, biases, sampling)

    def _booster(self, trees: bytes) -> Any:
        try:
            import lightgbm
        except ImportError as error:
            raise ImportError(f"This model needs LightGBM: {install('boosting')}.") from error
        try:
            booster = lightgbm.Booster(model_str=trees.decode())
        except (lightgbm.basic.LightGBMError, ValueError) as error:
            raise _damaged(self.folder, f"{_TREES} cannot be read: {error}") from error
        outputs = 1 if self.num_classes == 2 else self.num_classes
        fits = booster.num_feature() == len(self.columns) and booster.num_model_per_iteration() == outputs
        _require(fits, "the trees do not fit the columns and classes")
        return booster


def _require(fine: bool, what: str) -> None:
    if not fine:
        raise TypeError(what)


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
