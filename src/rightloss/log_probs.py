"""Tables of log-probabilities: check them, convert between libraries, multiply classes by factors.

Stage: arrays or tensors `(n, k)` → `log_probs`, the input of every stage after training. Logits and probabilities raise an
error: the library never guesses which of the three an array holds. `rows_of` turns dense maps `(n, k, h, w, …)` into rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_BLOCK = 1 << 18  # rows checked at a time, so that a check needs no second copy of a large table
# Before torch 2.7 the two could not be distinguished.
_is_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)
_ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-4}  # tolerance of a row's sum; log-probabilities of trees are often float32


@runtime_checkable
class HasLogProbs(Protocol):
    """A prediction with an attribute `log_probs`, such as a posterior's; it is accepted as its log-probabilities."""

    @property
    def log_probs(self) -> Any: ...


# What `np.asarray` accepts, and tensors; at run time NumPy's own alias excludes tuples and single numbers.
Numbers = ArrayLike | Sequence[Any] | float | int
Predictions = Numbers | HasLogProbs


def log_prob_table(values: Predictions, num_classes: int | None = None, name: str = "log_probs") -> Tensor:
    """Return `values` as log-probabilities `(n, k)` in their own dtype, or raise a ValueError that says how to fix them.

    A probability of 0, here −∞, is a valid prediction. Dtypes that torch lacks, such as NumPy's longdouble, become float64.

    Args:
        values: tensor, array, list or a posterior's prediction; row per example, column per class.
        num_classes: K, if known.
        name: the argument's name in messages.
    """
    table = tensor_of(values, name)
    if table.ndim != 2 or table.shape[1] < 2:
        remedy = "write both columns where there are two classes, such as scikit-learn's `predict_log_proba(x)`"
        if table.ndim > 2:
            remedy = "make rows of a dense map, such as `log_probs.movedim(1, -1).flatten(0, -2)`"
        shape = tuple(table.shape)
        raise ValueError(
            f"Expected `{name}` to be a table of shape (n, k), a column per class, but got shape {shape}: {remedy}."
        )
    if num_classes is not None and table.shape[1] != num_classes:
        raise ValueError(
            f"Expected `{name}` to have {num_classes} columns, one per class, but got {table.shape[1]}: "
            "the prevalence and the predictions list the same classes in the same order."
        )
    if len(table) == 0:
        raise ValueError(f"Expected at least one row in `{name}`, but got none: is the data set empty?")
    if not table.is_floating_point():
        raise ValueError(f"Expected `{name}` to be log-probabilities, but got {table.dtype}: are these class numbers?")
    for start, block in row_blocks(table.detach()):
        _check_rows(block, start, name)
    return table


def tensor_of(values: Any, name: str) -> Tensor:
    """Return a tensor that shares memory with `values` if torch can, else a copy (for read-only or reversed arrays)."""
    if isinstance(values, Tensor):
        return values
    if isinstance(values, HasLogProbs):
        return tensor_of(values.log_probs, name)
    labels = name.endswith(("target", "labels"))
    remedy = "number the classes from 0" if labels else "give an array or a tensor of numbers"
    kind = type(values).__name__
    try:
        array = np.asarray(values)
        if array.dtype == object:
            array = np.array(array.tolist())
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"Expected `{name}` to be numbers, but got {kind}: {remedy}.") from error
    if array.dtype.kind not in "biuf":
        remedy = _how_to_number(values) if labels else remedy
        came = getattr(values, "dtype", np.asarray(values).dtype)
        raise ValueError(f"Expected `{name}` to be numbers, but got {kind} of dtype {came}: {remedy}.")
    dtype = np.dtype(np.float64) if array.dtype == np.longdouble else array.dtype.newbyteorder("=")
    takes = array.flags.writeable and array.flags.aligned and all(s >= 0 and s % array.itemsize == 0 for s in array.strides)
    return torch.from_numpy(array.astype(dtype, copy=not takes))


def as_given(result: Tensor, given: Any) -> Any:
    """Return `result` as a tensor if `given` is a tensor, else as an array."""
    given = given.log_probs if isinstance(given, HasLogProbs) else given
    return result if isinstance(given, Tensor) else result.detach().cpu().numpy()


def rows_of(table: Tensor) -> Tensor:
    """Return dense `(n, k, h, w, …)` as rows `(n·h·w·…, k)`, one per cell, image by image; a table `(n, k)` is unchanged."""
    return table.movedim(1, -1).flatten(0, -2) if table.ndim > 2 else table


def map_of(rows: Tensor, shape: Sequence[int]) -> Tensor:
    """Undo `rows_of`: return rows `(n·h·w·…, k)`, or one value per row, as maps for predictions of shape `(n, k, h, w, …)`."""
    if len(shape) <= 2:
        return rows
    dense = rows.unflatten(0, (shape[0], *shape[2:]))
    return dense if rows.ndim == 1 else dense.movedim(-1, 1)


def target_rows(target: Numbers, shape: Sequence[int], name: str = "target") -> Tensor:
    """Return the labels of predictions of `shape` as a tensor, in the order of `rows_of`.

    Class numbers `(n,)` or `(n, h, w, …)` → `(n·h·w·…,)`, soft votes of the predictions' shape → `(n·h·w·…, k)`. With two
    classes, False is 0 and True is 1. Labels of a table are not checked further.

    Args:
        target: tensor, array, list or pandas series.
        shape: that of the predictions, `(n, k)` or `(n, k, h, w, …)`.
        name: the argument's name in messages.

    Raises:
        ValueError: if labels are not numbers, or do not fit a dense map of that shape.
    """
    labels, cells = tensor_of(target, name), (shape[0], *shape[2:])
    if labels.dtype == torch.bool and shape[1] == 2:
        labels = labels.long()
    if labels.dtype == torch.bool or (labels.is_floating_point() and labels.shape == cells):
        _refuse_labels(labels, target, shape[1], name)
    if len(shape) <= 2:
        return labels
    if labels.shape == cells:
        return labels.flatten()
    if labels.shape == tuple(shape) and labels.is_floating_point():
        return rows_of(labels)
    remedy = "a label per cell; do they come from one batch?"
    if labels.shape == (shape[0], 1, *shape[2:]):
        remedy = "call `squeeze(1)` on it"
    elif labels.shape == tuple(shape):
        remedy = "soft labels are floats; convert them"
    raise ValueError(
        f"Expected `{name}` of shape {cells} (class numbers) or {tuple(shape)} (soft) for a map of shape {tuple(shape)}, "
        f"but got {labels.dtype} of shape {tuple(labels.shape)}: {remedy}."
    )


def by_cell(table: Callable[[Tensor], Tensor], outputs: Tensor) -> Tensor:
    """Apply `table`, which takes rows `(n, c)` to `(n, k)`, to dense outputs `(n, c, h, w, …)` cell by cell."""
    with _ExactLogSigmoid() if _is_exporting() else nullcontext():
        return map_of(table(rows_of(outputs)), outputs.shape)


def full_precision(tensor: Tensor) -> Tensor:
    """Return float64 unchanged, and every narrower dtype as float32."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def multiply_classes(table: Float[Tensor, "n k *dense"], log_factors: Float[Tensor, "*n k"]) -> Float[Tensor, "n k *dense"]:
    """Multiply each class's probability by its factor, then rescale each row to its old sum (1 up to rounding).

    Rescaling to the old sum, rather than to 1, makes factors of 1 exactly the identity.
    """
    wide = full_precision(table)
    factors = log_factors.to(wide)
    moved = wide + factors.reshape(*factors.shape, *[1] * (wide.ndim - 2))
    change = torch.logsumexp(moved, 1, keepdim=True) - torch.logsumexp(wide, 1, keepdim=True)
    return (moved - change).to(table.dtype)


def as_input(x: Any, model: nn.Module, default: Tensor) -> Any:
    """Convert an array to a tensor of the model's dtype, on its device; ints stay ints for a model with an `nn.Embedding`.

    Args:
        x: any input; only arrays are converted.
        model: the model that takes x.
        default: gives the dtype and device if the model has no weights.
    """
    if not isinstance(x, np.ndarray):
        return x
    tensor, like = tensor_of(x, "x"), first_float(model, default)
    numbers = any(isinstance(part, nn.Embedding | nn.EmbeddingBag) for part in model.modules())
    return tensor.to(like.device) if numbers and not tensor.is_floating_point() else tensor.to(like)


def first_float(model: nn.Module, default: Tensor) -> Tensor:
    """Return the model's first floating-point parameter, which gives its dtype and device."""
    return next((each for each in model.parameters() if each.is_floating_point()), default)


def is_missing(value: Any) -> bool:
    """Return True for missing values: None, NaN, NaT and pandas' NA."""
    return value is None or not any((value != value) is no for no in (False, np.False_))


def clusters_of(groups: Numbers | None, shape: Sequence[int]) -> Int64[Tensor, " n"] | None:
    """Return the group of each row as a number: the given one, or for a dense map its image."""
    images = _group_numbers(groups, shape[0])
    if len(shape) == 2:
        return images
    return (torch.arange(shape[0]) if images is None else images).repeat_interleave(math.prod(shape[2:]))


def _group_numbers(groups: Any, rows: int) -> Tensor | None:
    if groups is None:
        return None
    names: Any = np.asarray(groups.detach().cpu() if isinstance(groups, Tensor) else groups)
    if names.shape != (rows,):
        raise ValueError(
            f"Expected one group id per row, ({rows},), or per image of a dense map, but got shape {names.shape}: "
            "give each example its patient's id."
        )
    if names.dtype.kind in "biuf":
        without = np.flatnonzero(names != names)
    else:  # NumPy would convert missing values in a list of strings to strings
        names = list(groups)
        without = np.flatnonzero([is_missing(name) for name in names])
    if len(without):
        raise ValueError(
            f"Expected a group id for every row, but row(s) {without[:5].tolist()} have none: "
            "give each such row an id of its own."
        )
    if isinstance(names, np.ndarray):
        return torch.from_numpy(np.unique(names, return_inverse=True)[1].astype(np.int64))
    numbers: dict[Any, int] = {}
    return torch.tensor([numbers.setdefault(name, len(numbers)) for name in names])


def row_blocks(table: Tensor, rows: int = _BLOCK) -> list[tuple[int, Tensor]]:
    """Split the table into blocks of at most `rows` rows; yield each with the index of its first row."""
    return [(start, table[start : start + rows]) for start in range(0, len(table), rows)]


class _ExactLogSigmoid(TorchFunctionMode):
    """Compute log σ(z) as a softmax of (z, 0) in exported graphs.

    The ONNX exporter writes Log(Sigmoid(z)), which onnxruntime computes wrongly in float32 for z ≤ −15: off by 0.15, then −∞.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.logsigmoid:
            return torch.log_softmax(torch.stack([args[0], torch.zeros_like(args[0])], -1), -1)[..., 0]
        return func(*args, **(kwargs or {}))


def _how_to_number(labels: Any) -> str:
    """Return advice on how to number the labels, with pandas functions if the labels are a pandas object."""
    values = np.asarray(labels, dtype=object).ravel().tolist()
    if any(is_missing(value) for value in values):
        return "drop the rows without a label, such as by `y.notna()` of a pandas series, and number the classes from 0"
    in_words = all(isinstance(value, str) for value in values)
    if in_words and all(value.isdecimal() for value in values):
        return "number the classes from 0; `y.astype(int)` makes numbers of these"
    in_pandas = type(labels).__module__.startswith("pandas")
    call = "pd.factorize(y, sort=True)[0]" if in_pandas else "np.unique(y, return_inverse=True)[1]"
    if in_pandas and str(labels.dtype) == "category" and type(labels).__name__ == "Series":
        call = "y.cat.codes"
    if not in_words or not in_pandas:
        return f"number the classes from 0 in the order of the predictions' columns, such as by `{call}`"
    names = sorted(set(values))
    listed = ", ".join(f"{name!r}: {number}" for number, name in enumerate(names[:4])) + (", …" if len(names) > 4 else "")
    return f"number the classes from 0 in the order of the predictions' columns, such as by `y.map({{{listed}}})` or `{call}`"


def _refuse_labels(labels: Tensor, given: Any, num_classes: int, name: str) -> None:
    """Raise the ValueError for floats and bools given instead of class numbers."""
    call = f"{name}.long()" if isinstance(given, Tensor) else "y.astype(int)"
    remedy = f"call `{call}` on class numbers"
    if labels.dtype == torch.bool:
        remedy = f"False and True number two classes; give the class of each row, in 0..{num_classes - 1}"
    elif bool(labels.isnan().any()):
        remedy = "drop the rows without a label (NaN), such as by `y.notna()` of a pandas series, then `y.astype(int)`"
    raise ValueError(
        f"Expected `{name}` to be class numbers, or soft votes with a column for each of {num_classes} classes, but got "
        f"{labels.dtype} of shape {tuple(labels.shape)}: {remedy}."
    )


def _check_rows(block: Tensor, start: int, name: str) -> None:
    total = torch.logsumexp(block if block.dtype in _ROUNDING else block.float(), 1)
    fine = total.abs() <= _ROUNDING.get(block.dtype, 2e-2)  # NaN is not
    if bool(fine.all()):
        return
    row = int(torch.nonzero(~fine)[0])
    shown = [round(value, 4) for value in block[row, :10].tolist()]
    if bool(block[row].isnan().any()):
        raise ValueError(
            f"Expected `{name}` without NaN, but row {start + row} is {shown}: drop such rows, or find out what "
            "made them; no figure can be right with them."
        )
    sums = block[row].double().sum()
    if bool((block[row] >= 0).all()) and abs(float(sums) - 1) < 1e-2:
        remedy = "these look like probabilities; take their logarithm"
    else:
        remedy = "are these logits? Apply torch.log_softmax(logits, 1)"
        if bool((block[row] <= 0).all()):
            remedy += "; of findings that can be present together (multi-label)? Pass a Prevalence.multilabel"
    raise ValueError(
        f"Expected the rows of `{name}` to be log-probabilities, whose exponentials sum to 1, but row {start + row} "
        f"is {shown}: {remedy}."
    )
