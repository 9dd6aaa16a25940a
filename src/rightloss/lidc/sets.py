"""The paper's data sets: binary, rating, and balanced with metadata; their labels from readers' votes.

Stage: `nodules()` or a nodule archive → `NoduleSet`: labels, votes, patients, features and patches, row by row.

Stage: counts of votes `(n, k)` → shares `(n, k)`; votes, shares or probabilities `(n, k)` → a class `(n,)` or a score `(n,)`.
The same rules apply to readers' ratings and to predictions.
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
from jaxtyping import Float, Float32, Float64, Int64, Shaped
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ..arrays import checked_choice
from ..extras import imported
from ..tensors import tensor_of
from .archive import Archive, grey_levels, read_archive, row_numbers
from .readings import CHARACTERISTICS, RATINGS, SIZES, nodules
from .volumes import contour_volumes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THICKEST, SMALLEST, READERS = 2.5, 3.0, 3  # mm of a slice, mm of diameter, readers of a rating
UNDECIDED = -1
RULES = ("majority", "mean")  # how readers' ratings become benign or malignant
_ROUNDING = 1e-6  # tolerance of a score: fractions such as 1/6 in float32 must not move a half below itself
FEATURES = (*CHARACTERISTICS, *SIZES)
# Content of a radiology report: size, solidity, calcification, fat or fluid inside, and contrast.
# The readers' other characteristics describe the outline, which is visible in the image.
METADATA = ("diameter_mm", "texture", "calcification", "internal_structure", "contrast")
BALANCED = (340, 339)  # benign and malignant

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
    return _binary("binary", _table_of(archive), features, rule)


def rating_set(archive: Source = None, features: str | Sequence[str] | None = None) -> NoduleSet:
    """Return the set of malignancies 1 to 5, as classes 0 to 4: 1192 nodules, labelled by `rounded_mean` of their readers.

    It has nodules with slices of at most 2.5 mm and at least three readers; the readers' votes are the soft label. Arguments as
    in `binary_set`.

    Examples:
        >>> from rightloss.lidc import rating_set
        >>> rating_set().labels.bincount()
        tensor([ 88, 191, 585, 246,  82])
    """
    table = _table_of(archive)
    kept = _thin(table) & (table.counts.sum(1) >= READERS)
    return _made("rating", table, kept, rounded_mean(table.counts), vote_shares(table.counts), features)


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
    table = _table_of(archive)
    if features is None:
        others = [name for name in _open_columns(table) if name not in FEATURES]
        features = [name for name in METADATA if name in table.columns] + [name for name in others if name not in METADATA]
    binary = _binary("balanced", table, features, rule)
    available = torch.bincount(binary.labels, minlength=2).tolist()
    if not all(available):
        raise ValueError(f"Expected benign and malignant nodules, but got {available}: each class is half of a balanced set.")
    wanted = BALANCED if np.greater_equal(available, BALANCED).all() else (min(available),) * 2
    order = sorted(range(len(binary)), key=lambda row: sha256(f"balanced:{int(binary.nodules[row])}".encode()).digest())
    chosen = [[row for row in order if binary.labels[row] == label][: wanted[label]] for label in (0, 1)]
    return binary.subset(sorted(chosen[0] + chosen[1]))


def vote_shares(votes: ArrayLike) -> Float[Tensor, "n k"]:
    """Return the fraction of an example's votes for each class: its soft label.

    Args:
        votes: `(n, k)`, the number of readers for each class; fractions or probabilities are returned unchanged, up to
            rounding. Every row needs a vote. Log-probabilities are not votes: pass `log_probs.exp()`.

    Examples:
        >>> from rightloss.lidc import vote_shares
        >>> vote_shares([[3, 1], [0, 2]])
        tensor([[0.7500, 0.2500],
                [0.0000, 1.0000]])
    """
    table = _votes(votes)
    return (table / table.sum(1, keepdim=True)).to(torch.get_default_dtype())


def binary_votes(votes: ArrayLike) -> Float[Tensor, "n 2"]:
    """Return fractions for benign and malignant from ratings `(n, 5)`: 1 and 2 are benign, 4 and 5 malignant, 3 is half of
    each.

    Examples:
        >>> from rightloss.lidc import binary_votes
        >>> binary_votes([[1, 0, 2, 1, 0]])
        tensor([[0.5000, 0.5000]])
    """
    shares = vote_shares(votes)
    if shares.shape[1] != 5:
        raise ValueError(f"Expected votes for the ratings 1 to 5, but got {shares.shape[1]} columns: pass `.ratings`.")
    malignant = shares[:, 3] + shares[:, 4] + shares[:, 2] / 2
    return torch.stack([1 - malignant, malignant], 1)


def binary_labels(votes: ArrayLike, rule: str = "majority") -> Int64[Tensor, " n"]:
    """Return 0 (benign), 1 (malignant) or `UNDECIDED` (−1) from ratings `(n, 5)`: majority or mean below, above or at 3."""
    checked_choice(rule, "rule", RULES, "the majority gives the paper's counts, the mean is its text")
    above = (majority(votes) + 1 if rule == "majority" else expected_score(votes)) - 3
    return torch.where(above.abs() < _ROUNDING, UNDECIDED, (above > 0).long())


def majority(votes: ArrayLike) -> Int64[Tensor, " n"]:
    """Return the class with most votes, or the most probable one, counted from 0; the lowest in a tie.

    Examples:
        >>> from rightloss.lidc import majority
        >>> majority([[1, 2, 0], [1, 1, 0]])
        tensor([1, 0])
    """
    return _votes(votes).argmax(1)


def expected_score(votes: ArrayLike) -> Float64[Tensor, " n"]:
    """Return the mean rating, s = Σ_k k p_k, with classes counted from 1 as readers count them.

    Examples:
        >>> from rightloss.lidc import expected_score
        >>> expected_score([[1, 0, 0, 1, 0]])
        tensor([2.5000], dtype=torch.float64)
    """
    table = _votes(votes)
    scores = torch.arange(1, table.shape[1] + 1, dtype=torch.float64, device=table.device)
    return (table * scores).sum(1) / table.sum(1)


def rounded_mean(votes: ArrayLike) -> Int64[Tensor, " n"]:
    """Return the class closest to the mean rating, ⌊s + ½⌋ − 1, counted from 0; halves are rounded up.

    Examples:
        >>> from rightloss.lidc import rounded_mean
        >>> rounded_mean([[1, 0, 0, 1, 0]])
        tensor([2])
    """
    return (expected_score(votes) + 0.5 + _ROUNDING).floor().long() - 1


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
    planes = np.asarray(images, np.float32)
    if planes.ndim not in (3, 4) or not len(planes):
        raise ValueError(f"Expected patches (n, d, h, w) or (n, h, w), but got {planes.shape}: give rows of `.images()`.")
    if titles is not None and len(titles) != len(planes):
        raise ValueError(f"Expected a title for each of {len(planes)} patches, but got {len(titles)}: leave none out.")
    if planes.ndim == 4:
        planes = planes[:, (planes.shape[1] - 1) // 2 : planes.shape[1] // 2 + 1].mean(1)
    rows = math.ceil(len(planes) / columns)
    make = imported("matplotlib.figure", "Plots need matplotlib", "study").Figure
    figure: Figure = make(figsize=(1.3 * columns, 1.5 * rows), dpi=150, layout="constrained")
    for place, axes in enumerate(figure.subplots(rows, columns, squeeze=False).flat):
        axes.set_axis_off()
        if place < len(planes):
            axes.imshow(_middle(planes[place], window_mm), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axes.set_title("" if titles is None else titles[place], fontsize=7)
    return figure


def _votes(values: ArrayLike) -> Float64[Tensor, "n k"]:
    table = tensor_of(values, "votes").detach().double()
    if table.ndim != 2 or table.shape[1] < 2:
        raise ValueError(
            f"Expected votes of shape (n, k), a column per class, but got shape {tuple(table.shape)}: "
            "count the readers of each rating."
        )
    wrong = ~((table >= 0).all(1) & table.isfinite().all(1) & (table.sum(1) > 0))
    if bool(wrong.any()):
        row = int(torch.nonzero(wrong)[0])
        raise ValueError(
            f"Expected votes from 0 up, and some in every row, but row {row} is {table[row].tolist()}: "
            "leave out rows without votes, and take `.exp()` of log-probabilities."
        )
    return table


class _Table(NamedTuple):
    """Nodules of the bundled tables, or of an archive."""

    ids: NDArray[np.int64]
    patients: Shaped[np.ndarray, " n"]
    counts: NDArray[np.int64]  # of readers by rating (n, 5)
    columns: Mapping[str, NDArray[Any]]
    spacing_mm: NDArray[np.float64]
    patches: PatchSource  # the places are row numbers


def _table_of(archive: Source) -> _Table:
    if archive is None:
        return _bundled_table()
    if not isinstance(archive, Archive | str | PathLike):
        raise ValueError(f"Expected the path of a nodule archive, but got {type(archive).__name__}: give a path, or None.")
    return _archive_table(archive if isinstance(archive, Archive) else read_archive(archive))


def _bundled_table() -> _Table:
    frame = nodules()
    ids, patients = frame["nodule"].to_numpy(np.int64), frame["patient_id"].to_numpy().astype(np.str_)
    counts = frame[[f"rating_{rating}" for rating in RATINGS]].to_numpy(np.int64)
    columns = {name: frame[name].to_numpy() for name in (*FEATURES, "contrast", "slice_thickness")}
    return _Table(ids, patients, counts, columns, np.ones(len(ids)), PatchSource(contour_volumes))


def _archive_table(archive: Archive) -> _Table:
    counts = (archive.ratings[:, :, None] == torch.tensor(RATINGS)).sum(1).numpy()
    columns = {name: column for name, column in archive.columns.items() if column.dtype.kind in "biuf"}
    spacing = np.ones(len(archive)) if archive.spacing_mm is None else archive.spacing_mm.numpy()
    if archive.spacing_mm is not None:
        columns = dict(_in_mm(name, column, spacing) for name, column in columns.items())
    ids = columns.get("nodule_id", np.arange(len(archive)))
    if ids.dtype.kind not in "iu" or len(np.unique(ids)) < len(ids):
        raise ValueError(f"Expected a different integer `nodule_id` in each row, but {archive.path} has others: number them.")
    return _Table(ids.astype(np.int64), archive.patients, counts, columns, spacing, PatchSource(archive.patches, grey_levels))


def _binary(name: str, table: _Table, features: str | Sequence[str] | None, rule: str) -> NoduleSet:
    labels, votes = binary_labels(table.counts, rule), binary_votes(table.counts)
    large = np.greater_equal(table.columns.get("diameter_mm", SMALLEST), SMALLEST)
    kept = _thin(table) & large & (labels != UNDECIDED).numpy()
    return _made(name if rule == "majority" else f"{name} by {rule}", table, kept, labels, votes, features)


def _thin(table: _Table) -> NDArray[np.bool_] | np.bool_:
    return np.less_equal(table.columns.get("slice_thickness", THICKEST), THICKEST)


def _open_columns(table: _Table) -> list[str]:
    """Return columns that neither identify the nodule, nor describe the scan, nor may reveal the label."""
    return [name for name in table.columns if name not in _NO_FEATURES and not any(word in name.lower() for word in _ANSWERS)]


def _made(
    name: str, table: _Table, kept: NDArray[np.bool_], labels: Tensor, votes: Tensor, features: str | Sequence[str] | None
) -> NoduleSet:
    """Return the set of the kept rows, with the requested columns, or all that may be features."""
    wanted = [features] if isinstance(features, str) else list(_open_columns(table) if features is None else features)
    if absent := [each for each in wanted if each not in table.columns]:
        raise ValueError(f"Expected `features` among {sorted(table.columns)}, but got {absent}: take names of numeric columns.")
    rows = np.flatnonzero(kept)
    if not len(rows):
        raise ValueError(
            f"Expected nodules that fit the set's rules, but none of {len(kept)} does: look at the archive's ratings, "
            "`slice_thickness` and `diameter_mm`."
        )
    columns = {f"log_{each}" if each.endswith(_SIZES) else each: _feature(table.columns[each][rows], each) for each in wanted}
    return NoduleSet(
        name=name,
        labels=labels[rows],
        votes=votes[rows],
        ratings=torch.from_numpy(table.counts[rows]),
        patients=table.patients[rows],
        features=torch.from_numpy(np.stack([*columns.values()], 1)) if columns else torch.zeros(len(rows), 0),
        feature_names=tuple(columns),
        nodules=torch.from_numpy(table.ids[rows]),
        spacing_mm=torch.from_numpy(table.spacing_mm[rows].astype(np.float32)),
        source=table.patches,
        places=rows,
    )


def _in_mm(name: str, column: NDArray[Any], spacing: NDArray[np.float64]) -> tuple[str, NDArray[Any]]:
    return (name.removesuffix("_px") + "_mm", column * spacing) if name.endswith("_px") else (name, column)


def _feature(column: NDArray[Any], name: str) -> NDArray[np.float32]:
    values = column.astype(np.float64)
    if not name.endswith(_SIZES):
        return values.astype(np.float32)
    if values.min() <= 0:
        raise ValueError(f"Expected sizes above 0 in `{name}`, but got {values.min()}: leave such nodules out, or rename it.")
    return np.log(values).astype(np.float32)


def _middle(plane: np.ndarray, width: int) -> np.ndarray:
    top, left = (max(0, (side - width) // 2) for side in plane.shape)
    return plane[top : plane.shape[0] - top, left : plane.shape[1] - left]
