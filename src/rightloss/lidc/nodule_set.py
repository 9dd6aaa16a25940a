"""What every data set of nodules gives: labels, votes, patients, features and patches, row by row.

Stage: columns of chosen nodules, and where their patches are → `NoduleSet`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64, Shaped
from numpy.typing import NDArray
from torch import Tensor

from .archive import row_numbers

__all__ = ["NoduleSet", "PatchSource"]

_BLOCK = 8  # patches scaled in one go: 8 MB of float32 at 64³, which caches hold


class PatchSource(NamedTuple):
    """Where patches come from: their places there → patches; and patches → [0, 1], None where that is what they are."""

    read: Callable[[NDArray[np.int64]], Tensor]
    scale: Callable[[Tensor], Tensor] | None = None


@dataclass(frozen=True, eq=False, repr=False)
class NoduleSet:
    """Nodules with labels; made by `binary_set`, `rating_set`, `balanced_set` and `read_nodulemnist`.

    Attributes:
        name: of the set.
        labels: class numbers `(n,)`, from 0.
        votes: shares of the readers for each class `(n, k)`, a soft label.
        ratings: how many readers gave each malignancy, 1 to 5 `(n, 5)`; None where only labels are known.
        patients: `(n,)` names, for `folds`; None where they are not published.
        features: `(n, d)` columns beside the image, of sizes the logarithm; see `standardised`.
        feature_names: of the d columns.
        nodules: `(n,)` numbers of the nodules in `nodules()`, or in the file.
        spacing_mm: `(n,)` from voxel to voxel, to be handed on to views; 1 where an archive does not say.
        source, places: where the patches are; `volumes` and `images` read them.
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

    def volumes(self, rows: Any = None) -> Tensor:
        """The patches of these rows (all by default) as they are kept: shares of readers, HU, or grey levels 0 to 255."""
        return self.source.read(self._places_of(rows))

    def images(self, rows: Any = None) -> Tensor:
        """The same in [0, 1], as nets take them, in float16: HU through `window`, whose steps of 1/1400 it tells apart."""
        if self.source.scale is None:
            return self.volumes(rows)
        places = self._places_of(rows)
        images = torch.empty(len(places), *self.source.read(places[:0]).shape[1:], dtype=torch.float16)
        for at in range(0, len(places), _BLOCK):
            images[at : at + _BLOCK] = self.source.scale(self.source.read(places[at : at + _BLOCK]))
        return images

    def subset(self, rows: Any) -> NoduleSet:
        """The same set with only these rows: numbers or a mask."""
        numbers = row_numbers(rows, len(self))
        index = torch.from_numpy(numbers)
        return NoduleSet(
            name=self.name,
            labels=self.labels[index],
            votes=self.votes[index],
            ratings=None if self.ratings is None else self.ratings[index],
            patients=None if self.patients is None else self.patients[numbers],
            features=self.features[index],
            feature_names=self.feature_names,
            nodules=self.nodules[index],
            spacing_mm=self.spacing_mm[index],
            source=self.source,
            places=self.places[numbers],
        )

    def standardised(self, train_rows: Any) -> Float32[Tensor, "n d"]:
        """The features of all rows, less the mean and over the standard deviation of the training rows alone.

        A column that is the same in all training rows is only moved, to 0 there.
        """
        index = torch.from_numpy(row_numbers(train_rows, len(self)))
        if not len(index):
            raise ValueError("Expected rows to take the mean of, but got none: give those of the training part.")
        if not self.feature_names:
            return self.features.float()
        train = self.features[index].double()
        spread = torch.where((train == train[0]).all(0), 1, train.std(0, correction=0))
        return ((self.features - train.mean(0)) / spread).float()

    def _places_of(self, rows: Any) -> NDArray[np.int64]:
        return self.places if rows is None else self.places[row_numbers(rows, len(self))]
