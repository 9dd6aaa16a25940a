"""Arrays of numbers: check them, convert them, and compute with arrays and tensors alike.

Stage: what users give (arrays, tensors, lists, data frames) → NumPy arrays, the input of every later stage; a result → the kind
that was given. Logits and probabilities raise an error where log-probabilities are expected: the library never guesses which of
the three an array holds. `rows_of` turns dense maps `(n, k, h, w, …)` into rows.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import array_api_compat.numpy
import numpy as np
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    from jaxtyping import Int64

_BLOCK = 1 << 18  # rows checked at a time, so that a check needs no second copy of a large table


@runtime_checkable
class HasLogProbs(Protocol):
    """A prediction with an attribute `log_probs`, such as a posterior's; it is accepted as its log-probabilities."""

    @property
    def log_probs(self) -> Any: ...


Array = Any  # a NumPy array or a tensor: what computes in the namespace of its argument
# What `np.asarray` accepts, and tensors; at run time NumPy's own alias excludes tuples and single numbers.
Numbers = ArrayLike | Sequence[Any] | float | int
Predictions = Numbers | HasLogProbs
Choice = TypeVar("Choice")
Result = TypeVar("Result")


def log_prob_table(values: Predictions, num_classes: int | None = None, name: str = "log_probs") -> np.ndarray:
    """Return `values` as log-probabilities `(n, k)` in their own dtype, or raise a ValueError that says how to fix them.

    A probability of 0, here −∞, is a valid prediction.

    Args:
        values: tensor, array, list or a posterior's prediction; row per example, column per class.
        num_classes: K, if known.
        name: the argument's name in messages.
    """
    table = array_of(values, name)
    if table.ndim != 2 or table.shape[1] < 2:
        raise ValueError(
            f"Expected `{name}` to be a table of shape (n, k), a column per class, but got shape {table.shape}: write both "
            "columns of two classes, as scikit-learn's `predict_log_proba(x)` does, or make rows of a dense map, such as "
            "`log_probs.movedim(1, -1).flatten(0, -2)`."
        )
    if num_classes is not None and table.shape[1] != num_classes:
        remedy = "the prevalence and the predictions list the same classes"
        raise ValueError(f"Expected `{name}` to have {num_classes} columns, but got {table.shape[1]}: {remedy}.")
    if len(table) == 0:
        raise ValueError(f"Expected at least one row in `{name}`, but got none: is the data set empty?")
    if table.dtype.kind != "f":
        raise ValueError(f"Expected `{name}` to be log-probabilities, but got {table.dtype}: are these class numbers?")
    tolerance = rounding(values)
    for start, block in row_blocks(table):
        _check_rows(block, start, tolerance, name)
    return table


def feature_table(values: Any, name: str, like: Any = None, finite: bool = False) -> np.ndarray:
    """Return features as a table `(n, d)`, float64, with images flattened; with the columns of `like`, if given."""
    table = array_of(values, name).astype(np.float64, copy=False)
    if table.ndim < 2 or 0 in table.shape:
        came = f"shape {table.shape}: {'write one column as `x[:, None]`' if table.ndim == 1 else 'is the data set empty?'}"
        raise ValueError(f"Expected `{name}` to be a table of features, a row per example, but got {came}.")
    table = table.reshape(len(table), -1)
    width = table.shape[1] if like is None else math.prod(np.shape(like)[1:])
    if table.shape[1] != width:
        came = f"{table.shape[1]}: take both from the same source, without the label"
        raise ValueError(f"Expected `{name}` to have the {width} columns of the labelled rows, but got {came}.")
    columns, own = (list(getattr(each, "columns", [])) for each in (like, values))
    if columns and own and columns != own:
        came = f"{own[:10]} for {columns[:10]}: write `{name}[x.columns]`"
        raise ValueError(f"Expected `{name}` to have the labelled rows' columns in their order, but got {came}.")
    if finite and not np.isfinite(table).all():
        row = int(np.flatnonzero(~np.isfinite(table).all(1))[0])
        raise ValueError(f"Expected `{name}` to be finite, but row {row} is not: drop such rows, or fill them in.")
    return table


def array_of(values: Any, name: str) -> np.ndarray:
    """Return a NumPy array of numbers that shares memory with `values` if it can; a tensor is detached.

    Dtypes that NumPy lacks become wider: bfloat16 is float32. A longdouble becomes float64.
    """
    values = log_probs_of(values)
    if is_tensor(values):
        values = values.detach().cpu()
        if str(values.dtype) == "torch.bfloat16":
            values = values.float()
        values = values.resolve_conj().resolve_neg().numpy()
    labels, remedy = name.endswith(("target", "labels")), "give an array or a tensor of numbers"
    if labels:
        remedy = "number the classes from 0 in the order of the columns, such as by `np.unique(y, return_inverse=True)[1]`"
    kind = type(values).__name__
    try:
        array = np.asarray(values)
        if array.dtype == object:
            array = np.array(array.tolist())
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"Expected `{name}` to be numbers, but got {kind}: {remedy}.") from error
    if array.dtype.kind not in "biuf":
        if labels and any(map(is_missing, np.asarray(values, dtype=object).ravel().tolist())):
            remedy = f"drop the rows without a label, such as by `y.notna()` of a pandas series; {remedy}"
        came = getattr(values, "dtype", np.asarray(values).dtype)
        raise ValueError(f"Expected `{name}` to be numbers, but got {kind} of dtype {came}: {remedy}.")
    dtype = np.dtype(np.float64) if array.dtype == np.longdouble else array.dtype.newbyteorder("=")
    return array.astype(dtype, copy=False)


def array_or_tensor(values: Any, name: str) -> Array:
    """Return a tensor unchanged, for functions that keep its gradients, and anything else as `array_of`."""
    values = log_probs_of(values)
    return values if is_tensor(values) else array_of(values, name)


def log_probs_of(values: Any) -> Any:
    """Return the log-probabilities of a prediction that has them; anything else unchanged."""
    plain = isinstance(values, np.ndarray) or is_tensor(values)  # known at once; a protocol takes 7 µs
    return values.log_probs if not plain and isinstance(values, HasLogProbs) else values


def as_given(result: Array, given: Any) -> Any:
    """Return `result` as a tensor, on the device of `given`, if that is a tensor; otherwise unchanged."""
    given = log_probs_of(given)
    return like(result, given) if is_tensor(given) and not is_tensor(result) else result


def fields_as_given(result: Result, given: Any) -> Result:
    """Return a dataclass with its arrays as tensors if `given` is a tensor; otherwise unchanged."""
    given = log_probs_of(given)
    if not is_tensor(given):
        return result
    own = {field.name: getattr(result, field.name) for field in fields(result)}  # type: ignore[arg-type]
    arrays = {name: like(value, given) for name, value in own.items() if isinstance(value, np.ndarray)}
    return replace(result, **arrays)  # type: ignore[type-var]


def like(values: Any, other: Array, dtype: Any = None) -> Array:
    """Return `values` as the same kind of array as `other`, on its device; of `dtype`, or its own."""
    if not is_tensor(other):
        return np.asarray(values, dtype)
    if is_tensor(values):
        return values.to(other.device, dtype)
    torch = array_namespace(other)
    return torch.asarray(np.ascontiguousarray(values), dtype=dtype, device=other.device)


def is_tensor(value: Any) -> bool:
    """Return whether `value` is a tensor, without importing torch."""
    return "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor)


def array_namespace(array: Array) -> Any:
    """Return the module with the functions of the array API for this kind of array."""
    if not is_tensor(array):
        return array_api_compat.numpy
    from array_api_compat import torch

    return torch


def is_traced(array: Array) -> bool:
    """Return whether values cannot be checked: torch is compiling or exporting a graph, or maps over tensors."""
    if not is_tensor(array):
        return False
    torch = sys.modules["torch"]
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def rows_of(table: Array) -> Array:
    """Return dense `(n, k, h, w, …)` as rows `(n·h·w·…, k)`, one per cell, image by image; a table `(n, k)` is unchanged."""
    if table.ndim <= 2:
        return table
    last = (0, *range(2, table.ndim), 1)
    return array_namespace(table).permute_dims(table, last).reshape(-1, table.shape[1])  # torch's vmap has no moveaxis


def map_of(rows: Array, shape: Sequence[int]) -> Array:
    """Undo `rows_of`: return rows `(n·h·w·…, k)`, or one value per row, as maps for predictions of shape `(n, k, h, w, …)`."""
    if len(shape) <= 2:
        return rows
    dense = rows.reshape(shape[0], *shape[2:], *rows.shape[1:])
    return dense if rows.ndim == 1 else array_namespace(rows).moveaxis(dense, -1, 1)


def target_rows(target: Numbers, shape: Sequence[int], name: str = "target") -> np.ndarray:
    """Return the labels of predictions of `shape`, in the order of `rows_of`.

    Class numbers `(n,)` or `(n, h, w, …)` → `(n·h·w·…,)`, soft votes of the predictions' shape → `(n·h·w·…, k)`. With two
    classes, False is 0 and True is 1. Labels of a table are not checked further.

    Args:
        target: tensor, array, list or pandas series.
        shape: that of the predictions, `(n, k)` or `(n, k, h, w, …)`.
        name: the argument's name in messages.

    Raises:
        ValueError: if labels are not numbers, or do not fit a dense map of that shape.
    """
    labels, cells = array_of(target, name), (shape[0], *shape[2:])
    if labels.dtype == bool and shape[1] == 2:
        labels = labels.astype(np.int64)
    if labels.dtype == bool or (labels.dtype.kind == "f" and labels.shape == cells):
        _refuse_labels(labels, target, shape[1], name)
    if len(shape) <= 2:
        return labels
    if labels.shape == cells:
        return labels.reshape(-1)
    if labels.shape == tuple(shape) and labels.dtype.kind == "f":
        return rows_of(labels)
    remedies = {(shape[0], 1, *shape[2:]): "call `squeeze(1)` on it", tuple(shape): "soft labels are floats; convert them"}
    raise ValueError(
        f"Expected `{name}` of shape {cells} (class numbers) or {tuple(shape)} (soft), but got {labels.dtype} of shape "
        f"{labels.shape}: {remedies.get(labels.shape, 'a label per cell; do they come from one batch?')}."
    )


def full_precision(array: Array) -> Array:
    """Return float64 unchanged, and every narrower dtype as float32."""
    xp = array_namespace(array)
    return array if array.dtype in (xp.float32, xp.float64) else xp.astype(array, xp.float32)


def multiply_classes(table: Array, log_factors: Array) -> Array:
    """Multiply each class's probability by its factor, then rescale each row to its old sum (1 up to rounding).

    Rescaling to the old sum, rather than to 1, makes factors of 1 exactly the identity.

    Args:
        table: log-probabilities `(n, k)`, or dense `(n, k, h, w, …)`.
        log_factors: one per class, `(k,)` or `(n, k)`.

    Returns:
        Log-probabilities of the shape, dtype and kind of `table`; tensors keep their gradients.
    """
    return shift_classes(table, log_factors.reshape(*log_factors.shape, *[1] * (table.ndim - 2)))


def shift_classes(table: Array, offset: Array) -> Array:
    """Add an offset that broadcasts to the table, then rescale to the old sum over the classes, in dimension 1."""
    wide = full_precision(table)
    moved = wide + like(offset, wide, wide.dtype)
    return array_namespace(table).astype(moved - (logsumexp(moved) - logsumexp(wide)), table.dtype)


def logsumexp(table: Array, axis: int = 1) -> Array:
    """Return log Σ exp over one axis, which stays with length 1; −∞ where all are."""
    if is_tensor(table):
        return table.logsumexp(axis, keepdim=True)
    if axis == 1 and table.ndim == 2 and table.shape[1] <= 16:  # NumPy is slow to sum along short rows
        return logsumexp(np.ascontiguousarray(table.T), 0).T
    top = table.max(axis, keepdims=True)
    top = np.where(np.isneginf(top), 0.0, top).astype(table.dtype)
    with np.errstate(divide="ignore", invalid="ignore"):  # of rows that are refused
        return np.log(np.exp(table - top).sum(axis, keepdims=True)) + top


def is_missing(value: Any) -> bool:
    """Return True for missing values: None, NaN, NaT and pandas' NA."""
    return value is None or not any((value != value) is no for no in (False, np.False_))


def clusters_of(groups: Any, shape: Sequence[int]) -> Int64[np.ndarray, " n"] | None:
    """Return the group of each row as a number: the given one, or for a dense map its image."""
    if groups is None:
        return None if len(shape) == 2 else np.repeat(np.arange(shape[0]), math.prod(shape[2:]))
    names: Any = np.asarray(groups.detach().cpu() if is_tensor(groups) else groups)
    if names.shape != (shape[0],):
        came = f"shape {names.shape}: give each example its patient's id"
        raise ValueError(f"Expected one group id per row, ({shape[0]},), or per image of a dense map, but got {came}.")
    plain = names.dtype.kind in "biuf"
    listed: list[Any] = [] if plain else list(groups)  # NumPy would convert missing values in a list of strings to strings
    without = np.flatnonzero(names != names if plain else [is_missing(name) for name in listed])
    if len(without):
        rows = without[:5].tolist()
        raise ValueError(f"Expected a group id for every row, but row(s) {rows} have none: give each an id of its own.")
    order = {name: number for number, name in enumerate(dict.fromkeys(listed))}
    number = np.unique(names, return_inverse=True)[1] if plain else np.array([order[name] for name in listed])
    return np.repeat(number.astype(np.int64), math.prod(shape[2:]))


def row_blocks(table: Array, rows: int = _BLOCK) -> list[tuple[int, Array]]:
    """Split the table into blocks of at most `rows` rows; return each with the index of its first row."""
    return [(start, table[start : start + rows]) for start in range(0, len(table), rows)]


def checked_level(level: Any) -> float:
    """Return the level of an interval, strictly between 0 and 1, or raise a ValueError."""
    if isinstance(level, bool) or not isinstance(level, Real) or not 0 < float(level) < 1:
        raise ValueError(f"Expected `level` to lie strictly between 0 and 1, but got {level!r}: write 0.95 for 95 %.")
    return float(level)


def checked_choice(value: Any, name: str, choices: Iterable[Choice], remedy: str = "choose one of them") -> Choice:
    """Return `value` if it is one of the choices, or raise a ValueError that lists them."""
    listed = list(choices)
    if not isinstance(value, str | int | type(None)) or value not in listed:
        *first, last = map(repr, listed)
        options = f"{', '.join(first)}{' or ' * bool(first)}{last}"
        raise ValueError(f"Expected `{name}` to be {options}, but got {value!r}: {remedy}.")
    return listed[listed.index(value)]


def checked_int(value: Any, name: str, least: int, most: float = math.inf, remedy: str = "leave it out for the default") -> int:
    """Return an int from `least` to `most`, or raise a ValueError."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) <= most:
        span = f"of at least {least}" if most == math.inf else f"in {least}..{most}"
        raise ValueError(f"Expected `{name}` to be an int {span}, but got {value!r}: {remedy}.")
    return int(value)


def checked_number(value: Any, name: str, least: float = -math.inf, most: float = math.inf, remedy: str = "") -> float:
    """Return a finite number from `least` to `most` as a float, or raise a ValueError."""
    try:
        number = float("nan") if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    except OverflowError:  # an int too large for a float
        number = math.inf
    if not (least <= number <= most and math.isfinite(number)):
        span = "" if least == -math.inf else f" from {least:g}" + (" up" if most == math.inf else f" to {most:g}")
        raise ValueError(f"Expected `{name}` to be a finite number{span}, but got {value!r}: {remedy or 'write a number'}.")
    return number


def random_generator(generator: Any) -> np.random.Generator:
    """Return a NumPy generator, by default one with a fixed seed, so that equal input gives equal intervals.

    Args:
        generator: a `numpy.random.Generator`, a seed, or a `torch.Generator`, which draws the seed.
    """
    if isinstance(generator, np.random.Generator):
        return generator
    if type(generator).__module__.startswith("torch") and hasattr(generator, "initial_seed"):
        torch = sys.modules["torch"]
        return np.random.default_rng(int(torch.randint(2**62, (), generator=generator, device=generator.device)))
    if generator is not None and (isinstance(generator, bool) or not isinstance(generator, Integral) or int(generator) < 0):
        came = f"{generator!r}: write numpy.random.default_rng(0)"
        raise ValueError(f"Expected `generator` to be a numpy.random.Generator, a torch.Generator or a seed, but got {came}.")
    return np.random.default_rng(0 if generator is None else int(generator))


def _refuse_labels(labels: np.ndarray, given: Any, num_classes: int, name: str) -> None:
    """Raise the ValueError for floats and bools given instead of class numbers."""
    remedy = f"call `{f'{name}.long()' if is_tensor(given) else 'y.astype(int)'}` on class numbers"
    if labels.dtype == bool:
        remedy = f"False and True number two classes; give the class of each row, in 0..{num_classes - 1}"
    elif np.isnan(labels).any():
        remedy = "drop the rows without a label (NaN), such as by `y.notna()` of a pandas series, then `y.astype(int)`"
    came = f"{labels.dtype} of shape {labels.shape}: {remedy}"
    raise ValueError(f"Expected `{name}` to be class numbers, or soft votes of {num_classes} classes, but got {came}.")


def rounding(values: Any) -> float:
    """Return the tolerance of a sum of 1 in the dtype given; log-probabilities of trees are often float32."""
    name = str(getattr(log_probs_of(values), "dtype", "float64")).removeprefix("torch.")
    return {"float16": 2e-2, "bfloat16": 2e-2, "float32": 1e-4}.get(name, 1e-6)


def _check_rows(block: np.ndarray, start: int, tolerance: float, name: str) -> None:
    # columns first, because NumPy is slow at sums over few numbers
    fine = np.abs(logsumexp(np.asfortranarray(full_precision(block)))[:, 0]) <= tolerance  # NaN is not
    if fine.all():
        return
    own = block[row := int(np.flatnonzero(~fine)[0])]
    shown = f"row {start + row} is {[round(value, 4) for value in own[:10].tolist()]}"
    if np.isnan(own).any():
        raise ValueError(f"Expected `{name}` without NaN, but {shown}: drop such rows, or find out what made them.")
    remedy = "are these logits? Apply a log-softmax: scipy.special.log_softmax(logits, 1), torch.log_softmax(logits, 1)"
    if (own >= 0).all() and abs(own.astype(float).sum() - 1) < 1e-2:
        remedy = "these look like probabilities; take their logarithm"
    elif (own <= 0).all():
        remedy += "; of findings that can be present together (multi-label)? Pass a Prevalence.multilabel"
    raise ValueError(f"Expected rows of `{name}` to be log-probabilities, whose exponentials sum to 1, but {shown}: {remedy}.")
