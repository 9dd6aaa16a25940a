"""NoduleMNIST3D, the nodules of LIDC-IDRI as MedMNIST publishes them.

Stage: path of `nodulemnist3d.npz` or `nodulemnist3d_64.npz` → `NoduleMNIST(train, val, test)`.

What: patches of 28³ or 64³, benign (ratings 1, 2) or malignant (4, 5). Licence: CC BY 4.0. Citation: Yang et al., MedMNIST v2,
Scientific Data 10:41, 2023. How to get it: from medmnist.com; nothing is downloaded here.
"""

from __future__ import annotations

from functools import partial
from os import PathLike
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float32, UInt8
from numpy.typing import NDArray
from torch import Tensor

from ..serialization import Npz, StoredArray, open_npz
from .sets import NoduleSet, PatchSource

COUNTS = {"train": 1158, "val": 165, "test": 310}  # as published
SIDES = (28, 64)


class NoduleMNIST(NamedTuple):
    """The published split: three `NoduleSet`s.

    Examples:
        >>> from rightloss.lidc import NoduleMNIST
        >>> NoduleMNIST._fields
        ('train', 'val', 'test')
    """

    train: NoduleSet
    val: NoduleSet
    test: NoduleSet


def read_nodulemnist(path: str | PathLike[str], check: bool = True) -> NoduleMNIST:
    """Return the three sets of a published file.

    Readers and patients are not published: `.votes` are the labels, `.ratings` and `.patients` are None, so folds cannot be
    made. `.images()` are grey levels over 255; voxels are assumed to be 1 mm, as published for 28³.

    Args:
        path: the `.npz` file.
        check: whether 1158, 165 and 310 nodules of 28³ or 64³ are expected, as published; False for a part of them.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged or another one.

    Examples:
        >>> import tempfile
        >>> import numpy as np
        >>> from rightloss.lidc import read_nodulemnist
        >>> path, arrays = tempfile.mkdtemp() + "/nodulemnist3d.npz", {}
        >>> for part in ("train", "val", "test"):
        ...     arrays[f"{part}_images"] = np.zeros((2, 28, 28, 28), np.uint8)
        ...     arrays[f"{part}_labels"] = np.array([[0], [1]], np.uint8)
        >>> np.savez(path, **arrays)
        >>> read_nodulemnist(path, check=False).val
        NoduleSet(nodulemnist-val: 2 nodules (1/1), unnamed patients, 0 features)
    """
    file = open_npz(path)
    for part in COUNTS:
        _check_part(file, part, check)
    return NoduleMNIST(*(_part(file, part) for part in COUNTS))


def _check_part(file: Npz, part: str, check: bool) -> None:
    found = [file.members[name] for name in (f"{part}_images", f"{part}_labels") if name in file.members]
    if len(found) < 2 or not _fits(found[0], found[1], COUNTS[part] if check else None):
        came = {name: f"{array.dtype}{list(array.shape)}" for name, array in list(file.members.items())[:10]}
        raise ValueError(
            f"Expected `{part}_images` of NoduleMNIST3D, {COUNTS[part]} uint8 cubes of 28³ or 64³, and `{part}_labels`, "
            f"integers, but {file.path} has {came}: is it another file? check=False accepts any cubes; `read_archive` reads "
            "nodule archives."
        )


def _fits(images: StoredArray, labels: StoredArray, count: int | None) -> bool:
    """Return whether images are cubes with a label each; with a count also as many, and of a published size."""
    n, *sides = images.shape or (0,)
    cubes = images.dtype == np.uint8 and n > 0 and len(sides) == 3 and len(set(sides)) == 1
    labelled = labels.dtype.kind in "iu" and labels.shape in ((n, 1), (n,))
    return cubes and labelled and (count is None or (n == count and sides[0] in SIDES))


def _part(file: Npz, part: str) -> NoduleSet:
    labels = file.read(f"{part}_labels").reshape(-1).astype(np.int64)
    if labels.min() < 0 or labels.max() > 1:
        raise ValueError(
            f"Expected labels 0 (benign) and 1 (malignant), but {file.path} has {labels.min()} to {labels.max()} in "
            f"`{part}_labels`: is it another of MedMNIST's files?"
        )
    target, n = torch.from_numpy(labels), len(labels)
    return NoduleSet(
        name=f"nodulemnist-{part}",
        labels=target,
        votes=F.one_hot(target, 2).float(),
        ratings=None,
        patients=None,
        features=torch.zeros(n, 0),
        feature_names=(),
        nodules=torch.arange(n),
        spacing_mm=torch.ones(n),
        source=PatchSource(partial(_taken, torch.from_numpy(file.read(f"{part}_images"))), _grey),
        places=np.arange(n),
    )


def _taken(images: UInt8[Tensor, "all d h w"], places: NDArray[np.int64]) -> UInt8[Tensor, "n d h w"]:
    return images[places]


def _grey(images: UInt8[Tensor, "n d h w"]) -> Float32[Tensor, "n d h w"]:
    return images.float() / 255
