"""Nodule archives: patches, readers' ratings and patients in one `.npz` file; HU as grey levels.

Stage: path → `Archive`: patches `(n, d, h, w)` or `(n, h, w)` in HU, ratings `(n, readers)`, patients, columns; and back.
Patches in HU → grey levels in [0, 1].
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64, Shaped
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ..atomic_files import whole_file
from ..serialization import Npz, StoredArray, open_npz
from ..tensors import tensor_of

_PARTS = ("patches", "ratings", "patient_id", "spacing_mm")
_KINDS = {  # kinds of dtypes, and their description in messages
    "patches": ("iuf", "numbers in HU of shape (n, d, h, w) or (n, h, w), none of them 0"),
    "ratings": ("iu", "integers, a column per reader"),
    "patient_id": ("USiu", "text or integers"),
    "spacing_mm": ("iuf", "millimetres (or one number for all)"),
}
_WIDER = {"u2": np.int32, "u4": np.int64, "u8": np.int64}  # torch supports few operations on its unsigned dtypes


@dataclass(frozen=True, eq=False)
class Archive:
    """A nodule archive, read and checked by `read_archive`. Patches of an uncompressed file are read on access.

    Attributes:
        path: the file.
        ratings: malignancy 1 … 5 by reader `(n, readers)`; 0 if that reader did not mark the nodule.
        patients: `(n,)` names; folds never split one.
        spacing_mm: `(n,)` millimetres from voxel to voxel, the same along all axes; None if the file does not say.
        columns: the other arrays of the file, `(n,)` each, by name.
        shape: of all patches: `(n, d, h, w)`, or `(n, h, w)` for single slices.

    Examples:
        >>> import tempfile
        >>> import numpy as np
        >>> from rightloss.lidc import read_archive, write_archive
        >>> path = tempfile.mkdtemp() + "/nodules.npz"
        >>> write_archive(path, np.zeros((2, 8, 8)), ratings=[[1, 2], [5, 0]], patient_id=["a", "b"])
        >>> read_archive(path)
        Archive(nodules.npz: 2 patches of 8×8, 2 patients, columns [])
    """

    path: Path
    ratings: Int64[Tensor, "n readers"]
    patients: Shaped[np.ndarray, " n"]
    spacing_mm: Float64[Tensor, " n"] | None
    columns: Mapping[str, NDArray[Any]]
    shape: tuple[int, ...]
    _patches: NDArray[Any] | Npz

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        size = "×".join(str(length) for length in self.shape[1:])
        people = len(set(self.patients.tolist()))
        return f"Archive({self.path.name}: {len(self)} patches of {size}, {people} patients, columns {list(self.columns)})"

    def patches(self, rows: ArrayLike | None = None) -> Tensor:
        """Return a copy of the patches of these rows (numbers or a mask; all by default), in the file's dtype."""
        # Mapped at each call, so that a pickled archive has only its path, not its content.
        array = self._patches.map("patches") if isinstance(self._patches, Npz) else self._patches
        chosen = np.array(array) if rows is None else array[row_numbers(rows, len(self))]
        dtype = _WIDER.get(chosen.dtype.str[1:], chosen.dtype.newbyteorder("="))
        return torch.from_numpy(chosen.astype(dtype, order="C", copy=False))


def read_archive(path: str | PathLike[str]) -> Archive:
    """Read a nodule archive, without unpickling anything.

    The file is an `.npz` with `patches` (n, d, h, w) or (n, h, w) in HU; `ratings` (n, readers), malignancy 1 … 5 and 0 for
    none, at least one in a row; `patient_id` (n,); optionally `spacing_mm`, a number or (n,); and any further columns (n,).
    Patches of a file written by `write_archive` or `np.savez` are mapped, not loaded; of `np.savez_compressed`, loaded.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged (checksums and the directory are verified), of another kind, or its arrays do not fit
            each other.

    Examples:
        >>> import tempfile
        >>> import numpy as np
        >>> from rightloss.lidc import read_archive, write_archive
        >>> path = tempfile.mkdtemp() + "/nodules.npz"
        >>> write_archive(path, np.zeros((2, 8, 8)), ratings=[[1, 2], [5, 0]], patient_id=["a", "b"])
        >>> read_archive(path).patches([1]).shape
        torch.Size([1, 8, 8])
    """
    file = open_npz(path)
    _check_shapes(file.members, str(file.path))
    stored = file.members["patches"].stored
    if stored:
        file.check("patches")
    patches = file.map("patches") if stored else file.read("patches")
    arrays = {name: file.read(name) for name in file.members if name != "patches"}
    columns = _checked(patches, arrays, str(file.path))
    spacing = columns.pop("spacing_mm", None)
    return Archive(
        path=file.path,
        ratings=torch.from_numpy(columns.pop("ratings")),
        patients=columns.pop("patient_id"),
        spacing_mm=None if spacing is None else torch.from_numpy(spacing),
        columns=columns,
        shape=patches.shape,
        _patches=file if stored else patches,
    )


def write_archive(
    path: str | PathLike[str],
    patches: ArrayLike,
    ratings: ArrayLike,
    patient_id: ArrayLike,
    spacing_mm: float | int | ArrayLike | None = None,
    columns: Mapping[str, ArrayLike] | None = None,
) -> None:
    """Write a nodule archive for `read_archive`, atomically, and uncompressed so that it can be memory-mapped.

    Equal arrays give equal bytes. `patches` may be a memory map; it is not copied into memory.

    Args:
        path: the file; an existing one is replaced.
        patches: `(n, d, h, w)` or `(n, h, w)` in HU.
        ratings: `(n, readers)`, 1 … 5, or 0 for none.
        patient_id: `(n,)` names.
        spacing_mm: a number, or `(n,)`.
        columns: further `(n,)` numbers or strings by name.

    Examples:
        >>> import tempfile
        >>> import numpy as np
        >>> from rightloss.lidc import read_archive, write_archive
        >>> path = tempfile.mkdtemp() + "/nodules.npz"
        >>> write_archive(path, np.zeros((2, 8, 8)), [[1, 2], [5, 0]], ["a", "b"], columns={"age": [64, 71]})
        >>> read_archive(path).columns["age"].tolist()
        [64, 71]
    """
    path = Path(path)
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"Expected the path of a file in a folder that exists, but got {path}: make the folder first.")
    clash = sorted(set(columns or {}) & set(_PARTS))
    if clash:
        raise ValueError(f"Expected other names than {list(_PARTS)} in `columns`, but got {clash}: give them as arguments.")
    given = {"ratings": ratings, "patient_id": patient_id, **(columns or {})}
    given |= {} if spacing_mm is None else {"spacing_mm": spacing_mm}
    arrays = {name: _as_array(value, name) for name, value in given.items()}
    images = _as_array(patches, "patches")
    checked = checked_columns(images, arrays, "the archive to be written")
    # Ids are stored as text, ratings as small integers, the rest unchanged.
    every = {"patches": images, **arrays, "patient_id": checked["patient_id"], "ratings": checked["ratings"].astype(np.int8)}
    with whole_file(path) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in every.items():
            info = zipfile.ZipInfo(f"{name}.npy")  # the default date, 1980, so that the bytes are the same on any day
            with archive.open(info, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array, order="C"), allow_pickle=False)


def window(hu: ArrayLike, low: float | int = -1000, high: float | int = 400) -> Float32[Tensor, "*shape"]:
    """Return Hounsfield units as grey levels: clamp((hu − low) / (high − low), 0, 1).

    Examples:
        >>> from rightloss.lidc import window
        >>> window([-2000, -300, 400])
        tensor([0.0000, 0.5000, 1.0000])
    """
    if not low < high:
        raise ValueError(f"Expected `low` below `high`, but got {low} and {high}: air is at −1000 HU, calcium above 400.")
    return tensor_of(hu, "hu").to(torch.float32, copy=True).sub_(low).div_(high - low).clamp_(0, 1)


def grey_levels(patches: Tensor) -> Tensor:
    """Apply `window`; raise a ValueError if the numbers cannot be HU, because grey levels would all become equal."""
    if patches.dtype == torch.uint8 or (len(patches) and 0 <= patches.min() and patches.max() <= 1):
        raise ValueError(
            f"Expected the archive's patches in Hounsfield units, but got {patches.dtype} from {patches.min()} to "
            f"{patches.max()}: write it again in HU, or take `.volumes()` as they are."
        )
    return window(patches)


def row_numbers(rows: int | ArrayLike, total: int) -> NDArray[np.int64]:
    """Return row numbers, or a mask, as numbers from 0 to `total` − 1."""
    array = np.atleast_1d(_as_array(rows, "rows"))
    if array.dtype == bool and array.shape == (total,):
        return np.flatnonzero(array)
    array = array.astype(np.int64) if array.size == 0 else array
    if array.ndim != 1 or array.dtype.kind not in "iu" or (array.size and not -total <= array.min() <= array.max() < total):
        raise ValueError(
            f"Expected row numbers below {total} or a mask of that length, but got {array.dtype}{list(array.shape)} "
            f"{repr(rows)[:80]}: rows are counted from 0."
        )
    return array.astype(np.int64) % max(1, total)


def _as_array(values: int | float | ArrayLike, name: str) -> NDArray[Any]:
    try:
        array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    except ValueError as error:
        raise ValueError(f"Expected `{name}` to be an array, but got rows of different lengths: fill them up.") from error
    # Text of a data frame has dtype object; other objects raise an error later.
    return array.astype(np.str_) if array.dtype == object and all(isinstance(value, str) for value in array.flat) else array


def checked_columns(patches: NDArray[Any], arrays: Mapping[str, NDArray[Any]], where: str) -> dict[str, NDArray[Any]]:
    """Return the columns of an archive in the form of `Archive`; ValueError if they do not fit each other or the patches."""
    _check_shapes({"patches": patches, **arrays}, where)
    return _checked(patches, arrays, where)


def _check_shapes(found: Mapping[str, NDArray[Any] | StoredArray], where: str) -> None:
    """Check names, shapes and dtypes, before any array is read."""
    missing = [name for name in _PARTS[:3] if name not in found]
    if missing:
        raise ValueError(
            f"Expected a nodule archive with patches, ratings and patient_id, but {where} lacks {missing} and has "
            f"{list(found)[:10]}: is it another kind of file? `read_nodulemnist` reads NoduleMNIST3D's."
        )
    shape, rows = found["patches"].shape, found["patches"].shape[:1]
    for name, array in found.items():
        kinds, words = _KINDS.get(name, ("biufUS", "numbers or text"))
        fits = array.shape == rows or (name == "spacing_mm" and array.shape == ())
        if name in ("patches", "ratings"):
            fits = array.shape[:1] == rows and 0 not in array.shape and array.ndim in ((2,) if name == "ratings" else (3, 4))
        if not fits or array.dtype.kind not in kinds or (array.dtype.kind == "f" and array.dtype.itemsize > 8):
            raise ValueError(
                f"Expected `{name}` to be {words}, a row for each nodule, but {where} has {array.dtype}{list(array.shape)} and "
                f"patches {list(shape)}: correct it, or leave it out."
            )


def _checked(patches: NDArray[Any], arrays: Mapping[str, NDArray[Any]], where: str) -> dict[str, NDArray[Any]]:
    """Return the columns with ratings as int64, patients as text and a spacing per row; ValueError if a value is wrong."""
    ratings = arrays["ratings"].astype(np.int64)
    outside = (ratings < 0) | (ratings > 5)
    _refuse_rows(outside, "`ratings` from 1 to 5, or 0 for none", ratings, where, "check the scale")
    _refuse_rows((ratings == 0).all(1), "a rating in every row", ratings, where, "leave out nodules that nobody rated")
    columns = {name: _plain(array, name, where) for name, array in arrays.items()} | {"ratings": ratings}
    patients = columns["patient_id"].astype(np.str_)
    _refuse_rows(np.char.str_len(patients) == 0, "a `patient_id` in every row", patients, where, "name every patient")
    columns["patient_id"] = patients
    if "spacing_mm" in columns:
        spacing = np.array(np.broadcast_to(columns["spacing_mm"].astype(np.float64), len(patches)))
        _refuse_rows(~(spacing > 0), "positive `spacing_mm`", spacing, where, "give millimetres from voxel to voxel")
        columns["spacing_mm"] = spacing
    if patches.dtype.kind == "f":
        shown = np.full(len(patches), "not")
        finite = np.array([np.isfinite(patch).all() for patch in patches])  # one by one, because they may be mapped
        _refuse_rows(~finite, "finite `patches`", shown, where, "fill it, or leave it out")
    return columns


def _plain(array: NDArray[Any], name: str, where: str) -> NDArray[Any]:
    """Return the array in native byte order, bytes as text; raise a ValueError for NaN and infinities."""
    if array.dtype.kind in "US":
        try:
            return np.array([text.decode("ascii") if isinstance(text, bytes) else text for text in array.tolist()], np.str_)
        except (ValueError, SystemError) as error:  # the latter for invalid code points
            raise ValueError(f"Expected text in `{name}`, but {where} has other bytes ({error}): write it as str.") from error
    if array.dtype.kind == "f":
        rows = np.atleast_1d(array)
        _refuse_rows(~np.isfinite(rows), f"finite numbers in `{name}`", rows, where, "fill the gaps, or leave the column out")
    return array.astype(array.dtype.newbyteorder("="))


def _refuse_rows(wrong: NDArray[Any], expected: str, values: NDArray[Any], where: str, remedy: str) -> None:
    if wrong.any():
        row = int(np.argwhere(wrong)[0, 0])
        raise ValueError(f"Expected {expected}, but row {row} of {where} is {values[row].tolist()}: {remedy}.")
