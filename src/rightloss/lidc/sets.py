"""The paper's data sets: binary, rating, and balanced with metadata.

Stage: `nodules()` or a nodule archive → `NoduleSet`: labels, votes, patients, features and patches, row by row.
`votes.py` turns votes into labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64, Shaped
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ..extras import install
from ..tensors import tensor_of
from .archive import Archive, read_archive, row_numbers
from .readings import CHARACTERISTICS, RATINGS, SIZES, nodules
from .volumes import contour_volumes
from .votes import UNDECIDED, binary_labels, binary_votes, rounded_mean, vote_shares

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THICKEST, SMALLEST, READERS = 2.5, 3.0, 3  # mm of a slice, mm of diameter, readers of a rating
FEATURES = (*CHARACTERISTICS, *SIZES)
# Content of a radiology report: size, solidity, calcification, fat or fluid inside, and contrast.
# The readers' other characteristics describe the outline, which is visible in the image.
METADATA = ("diameter_mm", "texture", "calcification", "internal_structure", "contrast")
COUNTS = {"binary": (1068, 344), "binary by mean": (1162, 557), "rating": (88, 191, 585, 246, 82)}
COUNTS |= dict.fromkeys(("balanced", "balanced by mean"), (340, 339))

# Columns of an archive that identify the nodule, describe the scan, or reveal the label; readers mark what looks malignant.
_NO_FEATURES = {"nodule", "nodule_id", "scan", "x", "y", "z", "outside"}
_NO_FEATURES |= {"contrast", "slice_thickness", "slice_spacing", "pixel_spacing"}
_ANSWERS = ("rating", "malignan", "benign", "cancer", "label", "target", "class", "diagnos", "vote", "reader", "fold", "split")
_SIZES = ("_mm", "_mm2", "_mm3", "_px")
_BLOCK = 8  # patches scaled at a time: 8 MB of float32 at 64³, which fit into caches

Source = Archive | str | PathLike[str] | None  # of nodules; None for the bundled tables


class PatchSource(NamedTuple):
    """Functions that read patches by their places, and scale them to [0, 1] (None if they are)."""

    read: Callable[[NDArray[np.int64]], Tensor]
    scale: Callable[[Tensor], Tensor] | None = None


@dataclass(frozen=True, eq=False, repr=False)
class NoduleSet:
    """Nodules with labels; made by `binary_set`, `rating_set`, `balanced_set` and `read_nodulemnist`.

    Attributes:
        name: of the set.
        labels: class numbers `(n,)`, from 0.
        votes: fraction of the readers for each class `(n, k)`, a soft label.
        ratings: the number of readers for each malignancy, 1 to 5 `(n, 5)`; None if only labels are known.
        patients: `(n,)` names, for `folds`; None if they are not published.
        features: `(n, d)` columns beside the image, sizes as logarithms; see `standardised`.
        feature_names: of the d columns.
        nodules: `(n,)` numbers of the nodules in `nodules()`, or in the file.
        spacing_mm: `(n,)` from voxel to voxel, for views; 1 if an archive does not say.
        source, places: of the patches; `volumes` and `images` read them.

    Examples:
        >>> from rightloss.lidc import binary_set
        >>> small = binary_set().subset([0, 2])
        >>> len(small), small.num_classes, small.images().shape
        (2, 2, torch.Size([2, 64, 64, 64]))
    """

    name: str
    labels: Int64[Tensor, " n"]
    votes: Float[Tensor, "n k"]
    ratings: Int64[Tensor, "n 5"] | None
    patients: Shaped[np.ndarray, " n"] | None
    features: Float32[Tensor, "n d"]
    feature_names: tuple[str, ...]
    nodules: Int64[Tensor, " n"]
    spacing_mm: Float32[Tensor, " n"]
    source: PatchSource
    places: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        counts = "/".join(str(count) for count in torch.bincount(self.labels, minlength=self.num_classes).tolist())
        people = "unnamed patients" if self.patients is None else f"{len(set(self.patients.tolist()))} patients"
        return f"NoduleSet({self.name}: {len(self)} nodules ({counts}), {people}, {len(self.feature_names)} features)"

    @property
    def num_classes(self) -> int:
        return self.votes.shape[1]

    def volumes(self, rows: ArrayLike | None = None) -> Tensor:
        """Return the patches of these rows (all by default) as stored: shares of readers, HU, or grey levels 0 to 255."""
        return self.source.read(self._places_of(rows))

    def images(self, rows: ArrayLike | None = None) -> Tensor:
        """Return the patches in [0, 1] for nets, in float16: HU through `window`, whose steps of 1/1400 float16 resolves."""
        if self.source.scale is None:
            return self.volumes(rows)
        places = self._places_of(rows)
        images = torch.empty(len(places), *self.source.read(places[:0]).shape[1:], dtype=torch.float16)
        for at in range(0, len(places), _BLOCK):
            images[at : at + _BLOCK] = self.source.scale(self.source.read(places[at : at + _BLOCK]))
        return images

    def subset(self, rows: ArrayLike) -> NoduleSet:
        """Return the set with only these rows: numbers or a mask."""
        numbers = row_numbers(rows, len(self))
        by_row: dict[str, Any] = {name: each for name, each in vars(self).items() if isinstance(each, Tensor | np.ndarray)}
        return replace(self, **{name: each[numbers] for name, each in by_row.items()})

    def standardised(self, train_rows: ArrayLike) -> Float32[Tensor, "n d"]:
        """Return the features of all rows, standardised by mean and standard deviation of the training rows.

        A column that is constant in the training rows is only centred.
        """
        index = torch.from_numpy(row_numbers(train_rows, len(self)))
        if not len(index):
            raise ValueError("Expected rows to take the mean of, but got none: give those of the training part.")
        if not self.feature_names:
            return self.features.float()
        train = self.features[index].double()
        spread = torch.where((train == train[0]).all(0), 1, train.std(0, correction=0))
        return ((self.features - train.mean(0)) / spread).float()

    def _places_of(self, rows: ArrayLike | None) -> NDArray[np.int64]:
        return self.places if rows is None else self.places[row_numbers(rows, len(self))]


def binary_set(archive: Source = None, features: str | Sequence[str] | None = None, rule: str = "majority") -> NoduleSet:
    """Return the set of benign (0) and malignant (1) nodules: 1068 and 344, or 1162 and 557 by the mean.

    It has nodules with slices of at most 2.5 mm, a mean diameter of at least 3 mm, and a rating other than 3 by the `rule`.
    In `.votes` a reader's 3 counts half for each class. So by the majority 28 nodules labelled benign have more votes for
    malignant, and 79 have equal votes (2, 3, 4, 5 is a tie, and the lowest wins).

    Args:
        archive: path of a nodule archive, or the result of `read_archive`, to use instead of the bundled tables and
            contour volumes. The rules then apply as far as it has `slice_thickness` and `diameter_mm`; no counts are expected.
        features: names of the columns to use. By default those of the bundled tables, and of an archive all numeric columns
            but those that number the nodule, say how it was scanned, or may contain the answer by their names: see
            `.feature_names`. Columns in px become mm where the archive has `spacing_mm`; of sizes (`…_mm`, `…_mm3`) the
            logarithm is taken.
        rule: "majority", the readers' most frequent rating (the lowest of a tie), which comes close to the paper's counts; or
            "mean", their average, the paper's words. Below 3 is benign, above 3 malignant; 3 is left out.

    Examples:
        >>> from rightloss.lidc import binary_set
        >>> binary_set()
        NoduleSet(binary: 1412 nodules (1068/344), 635 patients, 11 features)
        >>> binary_set(rule="mean")
        NoduleSet(binary by mean: 1719 nodules (1162/557), 696 patients, 11 features)
    """
    return _expected(_binary("binary", _columns_of(archive), features, rule), archive)


def rating_set(archive: Source = None, features: str | Sequence[str] | None = None) -> NoduleSet:
    """Return the set of malignancies 1 to 5, as classes 0 to 4: 1192 nodules, labelled by `rounded_mean` of their readers.

    It has nodules with slices of at most 2.5 mm and at least three readers; the readers' votes are the soft label. Arguments as
    in `binary_set`.

    Examples:
        >>> from rightloss.lidc import rating_set
        >>> rating_set().labels.bincount()
        tensor([ 88, 191, 585, 246,  82])
    """
    table = _columns_of(archive)
    table = table.where(_thin(table) & (table.counts.sum(1) >= READERS))
    labels, votes = rounded_mean(table.counts), vote_shares(table.counts)
    return _expected(_made("rating", table, labels, votes, _feature_columns(table, features)), archive)


def balanced_set(archive: Source = None, features: str | Sequence[str] | None = None, rule: str = "majority") -> NoduleSet:
    """Return 340 benign and 339 malignant nodules of the binary set, with the clinical columns `METADATA` as features.

    It replaces the paper's private set. The first of each class are chosen, in the order of SHA-256 of "balanced:nodule".
    From an `archive` with fewer, as many of each class as the rarer one has; its features are the columns of `METADATA` that it
    has and any that the bundled tables lack, such as age. Arguments as in `binary_set`.

    Examples:
        >>> from rightloss.lidc import balanced_set
        >>> balanced_set().feature_names
        ('log_diameter_mm', 'texture', 'calcification', 'internal_structure', 'contrast')
    """
    table = _columns_of(archive)
    if features is None:
        others = [name for name in _open_columns(table) if name not in FEATURES]
        features = [name for name in METADATA if name in table.columns] + [name for name in others if name not in METADATA]
    binary = _binary("balanced", table, features, rule)
    available = torch.bincount(binary.labels, minlength=2).tolist()
    wanted = COUNTS["balanced"]
    if any(there < needed for there, needed in zip(available, wanted, strict=True)):
        wanted = (min(available),) * 2
    if not all(wanted):
        raise ValueError(f"Expected benign and malignant nodules, but got {available}: each class is half of a balanced set.")
    order = sorted(range(len(binary)), key=lambda row: sha256(f"balanced:{int(binary.nodules[row])}".encode()).digest())
    chosen = [[row for row in order if binary.labels[row] == label][: wanted[label]] for label in (0, 1)]
    return _expected(binary.subset(sorted(chosen[0] + chosen[1])), archive)


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


def montage(images: ArrayLike, titles: Sequence[str] | None = None, columns: int = 6, window_mm: int = 40) -> Figure:
    """Return a figure with the middle plane of each patch (axial for volumes) and its title.

    Args:
        images: patches in [0, 1], `(n, d, h, w)` or `(n, h, w)`: `NoduleSet.images()` or rows of it.
        titles: one for each patch.
        columns: patches in a row.
        window_mm: voxels of the plane that are shown along each side, around the middle; millimetres if a voxel is one.

    Examples:
        >>> import torch
        >>> from rightloss.lidc import montage
        >>> len(montage(torch.rand(5, 8, 8, 8), titles=list("abcde"), columns=3).axes)
        6
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"Plots need matplotlib: {install('study')}") from error
    planes = np.asarray(images, np.float32)
    if planes.ndim not in (3, 4) or not len(planes):
        raise ValueError(f"Expected patches (n, d, h, w) or (n, h, w), but got {planes.shape}: give rows of `.images()`.")
    if titles is not None and len(titles) != len(planes):
        raise ValueError(f"Expected a title for each of {len(planes)} patches, but got {len(titles)}: leave none out.")
    if planes.ndim == 4:
        planes = planes[:, (planes.shape[1] - 1) // 2 : planes.shape[1] // 2 + 1].mean(1)
    rows = math.ceil(len(planes) / columns)
    figure = Figure(figsize=(1.3 * columns, 1.5 * rows), dpi=150, layout="constrained")
    for place, axes in enumerate(figure.subplots(rows, columns, squeeze=False).flat):
        axes.set_axis_off()
        if place < len(planes):
            axes.imshow(_middle(planes[place], window_mm), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axes.set_title("" if titles is None else titles[place], fontsize=7)
    return figure


class _Columns(NamedTuple):
    """Columns of nodules, from the bundled tables or from an archive."""

    ids: NDArray[np.int64]
    places: NDArray[np.int64]
    patients: Shaped[np.ndarray, " n"]
    counts: NDArray[np.int64]  # of readers by rating (n, 5)
    columns: Mapping[str, NDArray[Any]]
    spacing_mm: NDArray[np.float64]
    archive: Archive | None

    def where(self, mask: NDArray[np.bool_]) -> _Columns:
        if not mask.any():
            raise ValueError(
                f"Expected nodules that fit the set's rules, but none of {len(mask)} does: look at the archive's ratings, "
                "`slice_thickness` and `diameter_mm`."
            )
        columns = {name: column[mask] for name, column in self.columns.items()}
        rows = (self.ids[mask], self.places[mask], self.patients[mask], self.counts[mask])
        return _Columns(*rows, columns, self.spacing_mm[mask], self.archive)


def _columns_of(archive: Source) -> _Columns:
    if archive is None:
        return _bundled_columns()
    if not isinstance(archive, Archive | str | PathLike):
        raise ValueError(f"Expected the path of a nodule archive, but got {type(archive).__name__}: give a path, or None.")
    return _archive_columns(archive if isinstance(archive, Archive) else read_archive(archive))


def _bundled_columns() -> _Columns:
    frame = nodules()
    ids = frame["nodule"].to_numpy(np.int64)
    counts = frame[[f"rating_{rating}" for rating in RATINGS]].to_numpy(np.int64)
    columns = {name: frame[name].to_numpy() for name in (*FEATURES, "contrast", "slice_thickness")}
    return _Columns(ids, ids, frame["patient_id"].to_numpy().astype(np.str_), counts, columns, np.ones(len(ids)), None)


def _archive_columns(archive: Archive) -> _Columns:
    rows = np.arange(len(archive))
    counts = (archive.ratings[:, :, None] == torch.tensor(RATINGS)).sum(1).numpy()
    columns = {name: column for name, column in archive.columns.items() if column.dtype.kind in "biuf"}
    spacing = np.ones(len(rows)) if archive.spacing_mm is None else archive.spacing_mm.numpy()
    if archive.spacing_mm is not None:
        columns = dict(_in_mm(name, column, spacing) for name, column in columns.items())
    ids = columns.get("nodule_id", rows)
    if ids.dtype.kind not in "iu" or len(np.unique(ids)) < len(ids):
        raise ValueError(f"Expected a different integer `nodule_id` in each row, but {archive.path} has others: number them.")
    return _Columns(ids.astype(np.int64), rows, archive.patients, counts, columns, spacing, archive)


def _binary(name: str, table: _Columns, features: str | Sequence[str] | None, rule: str) -> NoduleSet:
    decided = binary_labels(table.counts, rule).numpy() != UNDECIDED
    large = table.columns.get("diameter_mm", np.full(len(table.ids), SMALLEST)) >= SMALLEST
    table = table.where(_thin(table) & large & decided)
    labels, votes = binary_labels(table.counts, rule), binary_votes(table.counts)
    return _made(name if rule == "majority" else f"{name} by {rule}", table, labels, votes, _feature_columns(table, features))


def _thin(table: _Columns) -> NDArray[np.bool_]:
    return table.columns.get("slice_thickness", np.full(len(table.ids), THICKEST)) <= THICKEST


def _feature_columns(table: _Columns, features: str | Sequence[str] | None) -> list[str]:
    """Return the requested columns, or all that may be features."""
    if features is None:
        return _open_columns(table)
    wanted = [features] if isinstance(features, str) else list(features)
    absent = [name for name in wanted if name not in table.columns]
    if absent:
        raise ValueError(f"Expected `features` among {sorted(table.columns)}, but got {absent}: take names of numeric columns.")
    return wanted


def _open_columns(table: _Columns) -> list[str]:
    """Return columns that neither identify the nodule, nor describe the scan, nor may reveal the label."""
    return [name for name in table.columns if name not in _NO_FEATURES and not any(word in name.lower() for word in _ANSWERS)]


def _made(name: str, table: _Columns, labels: Tensor, votes: Tensor, columns: Sequence[str]) -> NoduleSet:
    if table.archive is None:
        source, places = PatchSource(contour_volumes), table.ids
    else:
        source, places = PatchSource(table.archive.patches, _grey), table.places
    features = {f"log_{column}" if _is_size(column) else column: _feature(table, column) for column in columns}
    return NoduleSet(
        name=name,
        labels=labels,
        votes=votes,
        ratings=torch.from_numpy(table.counts),
        patients=table.patients,
        features=torch.from_numpy(np.stack([*features.values()], 1)) if features else torch.zeros(len(labels), 0),
        feature_names=tuple(features),
        nodules=torch.from_numpy(table.ids),
        spacing_mm=torch.from_numpy(table.spacing_mm.astype(np.float32)),
        source=source,
        places=places,
    )


def _grey(patches: Tensor) -> Tensor:
    """Apply `window`; raise a ValueError if the numbers cannot be HU, because grey levels would all become equal."""
    if patches.dtype == torch.uint8 or (len(patches) and 0 <= patches.min() and patches.max() <= 1):
        raise ValueError(
            f"Expected the archive's patches in Hounsfield units, but got {patches.dtype} from {patches.min()} to "
            f"{patches.max()}: write it again in HU, or take `.volumes()` as they are."
        )
    return window(patches)


def _in_mm(name: str, column: NDArray[Any], spacing: NDArray[np.float64]) -> tuple[str, NDArray[Any]]:
    return (name.removesuffix("_px") + "_mm", column * spacing) if name.endswith("_px") else (name, column)


def _is_size(column: str) -> bool:
    return column.endswith(_SIZES)


def _feature(table: _Columns, column: str) -> NDArray[np.float32]:
    values = table.columns[column].astype(np.float64)
    if not _is_size(column):
        return values.astype(np.float32)
    if values.min() <= 0:
        raise ValueError(f"Expected sizes above 0 in `{column}`, but got {values.min()}: leave such nodules out, or rename it.")
    return np.log(values).astype(np.float32)


def _expected(made: NoduleSet, archive: Source) -> NoduleSet:
    found = tuple(torch.bincount(made.labels, minlength=made.num_classes).tolist())
    if archive is None and found != COUNTS[made.name]:
        raise ValueError(
            f"Expected {COUNTS[made.name]} nodules by class in the {made.name} set, but got {found}: the bundled tables are "
            "not those of this version; install rightloss again."
        )
    return made


def _middle(plane: np.ndarray, width: int) -> np.ndarray:
    top, left = (max(0, (side - width) // 2) for side in plane.shape)
    return plane[top : plane.shape[0] - top, left : plane.shape[1] - left]
