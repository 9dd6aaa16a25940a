"""Data sets for the study, from the package or from files.

Stage: "contours" or a path → `Source`; `Source`, task → `StudyData`: nodules, patches in [0, 1], and the parts of each fold.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor

from ..lidc import NoduleSet, balanced_set, binary_set, rating_set, read_archive, read_nodulemnist, train_valid_test
from ..lidc.nodulemnist import COUNTS
from ..lidc.splits import Parts, split_labels
from ..serialization import open_npz
from .config import CONTOURS, IMAGE_NETS, Source, StudyConfig, label_draw
from .results import DataSummary, sha256_of

SETS = {"binary": binary_set, "rating": rating_set, "balanced": balanced_set}
_SIDE = 40  # pixels along a picture's sides
_FIXED = 48  # views of a volume that `FixedViews` has
_NAME = 40  # bytes of a source's name in file names


@dataclass(frozen=True, eq=False)
class StudyData:
    """Nodules of one source under one task.

    Attributes:
        source: where they come from.
        sets: one, or NoduleMNIST3D's train, val and test parts.
        labels, votes, spacing_mm: of all rows, as in `NoduleSet`.
    """

    source: Source
    sets: tuple[NoduleSet, ...]

    @property
    def labels(self) -> Int64[Tensor, " n"]:
        return torch.cat([each.labels for each in self.sets])

    @property
    def votes(self) -> Float[Tensor, "n k"]:
        return torch.cat([each.votes for each in self.sets])

    @property
    def spacing_mm(self) -> Float[Tensor, " n"]:
        return torch.cat([each.spacing_mm for each in self.sets])

    @property
    def patients(self) -> Shaped[np.ndarray, " n"]:
        """Names of the patients; row numbers if none are published."""
        names = self.sets[0].patients
        return np.array([f"row {row}" for row in range(len(self.labels))]) if names is None else names

    @property
    def feature_names(self) -> tuple[str, ...]:
        return self.sets[0].feature_names

    def images(self) -> Float[Tensor, " n *dhw"]:
        """Return the patches of all rows, in [0, 1]."""
        return torch.cat([each.images() for each in self.sets]) if len(self.sets) > 1 else self.sets[0].images()

    def standardised(self, train: Int64[Tensor, " rows"]) -> Float[Tensor, "n d"]:
        """Return the features of all rows, standardised by the training rows; no columns if the source has none."""
        return self.sets[0].standardised(train) if len(self.sets) == 1 else torch.zeros(len(self.labels), 0)

    def parts(self, fold: int, num_folds: int) -> Parts:
        """Return the training, validation and test rows; NoduleMNIST3D's published split is its only fold."""
        if len(self.sets) == 1:
            return train_valid_test(self.labels, self.sets[0].patients, fold, num_folds)
        if fold:
            raise ValueError(f"Expected one fold of {self.source.name}, which is published in parts, but got more: --folds 1.")
        ends = np.cumsum([0, *(len(each) for each in self.sets)]).tolist()
        return Parts(*(torch.arange(start, end) for start, end in pairwise(ends)))


def source_of(text: str) -> Source:
    """Return the source: "contours", which come with the package, or a nodule archive's or NoduleMNIST3D's file."""
    if text == CONTOURS:
        return Source(CONTOURS)
    path = Path(text)
    file = open_npz(path)
    name = re.sub(r"[^\w.-]+", "-", path.stem).encode()[:_NAME].decode(errors="ignore")
    return Source(CONTOURS + "-file" if name == CONTOURS else name, sha256_of(file.path), str(path.resolve()))


def check_sources(config: StudyConfig) -> None:
    """Raise ValueError if a source lacks what the study needs; files are read completely, nothing is computed."""
    for source in config.sources:
        data = study_data(source, config.task)
        if any(net not in IMAGE_NETS for net in config.nets) and not data.feature_names:
            raise ValueError(
                f"Expected features beside the images in {source.name}, but it has none: leave out the nets "
                f"{', '.join(net for net in config.nets if net not in IMAGE_NETS)}, or add columns to the archive."
            )
        if config.training.test_views > _FIXED and data.sets[0].images([0]).ndim == 4:
            raise ValueError(
                f"Expected at most {_FIXED} views of a volume to validate and test on, but got {config.training.test_views}: "
                "lower `test_views`."
            )
        for fold in range(config.folds):
            parts = data.parts(fold, config.num_folds)
            _check_classes(data, parts._asdict(), fold, "take fewer folds (--num-folds), or more nodules")
            _check_batch(parts.train, config, f"fold {fold + 1} of {source.name}")
            for seed in range(config.seeds if config.unlabelled else 0):
                labelled, unlabelled = split_labels(
                    parts.train, data.patients, config.unlabelled, label_draw(source.name, fold, seed)
                )
                halves = {"train on with labels": labelled, "train on without": unlabelled}
                remedy = "a lower share" if len(labelled) < len(unlabelled) else "a higher share"
                _check_classes(data, halves, fold, f"take {remedy} (--unlabelled), or more nodules")
                _check_batch(labelled, config, f"fold {fold + 1} of {source.name}, with labels,")


@lru_cache(maxsize=4)
def study_data(source: Source, task: str) -> StudyData:
    """Return the nodules; patches are read on demand."""
    if source.path is None:
        if source.name != CONTOURS:
            raise ValueError(f"Expected the file of {source.name}, but its path is not known: give it by --data.")
        return StudyData(source, (SETS[task](),))
    if sha256_of(Path(source.path)) != source.digest:
        raise ValueError(f"Expected {source.path} as it was when the study began, but it has changed: start a new study.")
    if _is_nodulemnist(source.path):
        if task != "binary":
            raise ValueError(
                f"Expected ratings and patients, but NoduleMNIST3D ({source.name}) has none: take a nodule archive."
            )
        return StudyData(source, tuple(read_nodulemnist(source.path)))
    return StudyData(source, (SETS[task](read_archive(source.path)),))


@lru_cache(maxsize=1)  # 740 MB for the binary set's contour volumes
def study_images(source: Source, task: str) -> Float[Tensor, " n *dhw"]:
    """Return the patches of `study_data`, kept in memory."""
    return study_data(source, task).images()


def summary_of(source: Source, task: str) -> DataSummary:
    """Return the part of a data set that the report uses, with small pictures."""
    data = study_data(source, task)
    ratings = data.sets[0].ratings
    return DataSummary(
        name=source.name,
        labels=data.labels.numpy(),
        votes=data.votes.float().numpy(),
        ratings=np.zeros((0, 5), np.int64) if ratings is None else ratings.numpy(),
        patients=data.patients,
        nodules=torch.cat([each.nodules for each in data.sets]).numpy(),
        pictures=np.concatenate([_pictures(each) for each in data.sets]),
    )


def _pictures(data: NoduleSet) -> np.ndarray:
    """Return the middle 40 × 40 voxels of each nodule's middle plane."""
    found = []
    for rows in torch.arange(len(data)).split(64):
        images = data.images(rows)
        plane = images[:, images.shape[1] // 2] if images.ndim == 4 else images
        top, left = (max(0, (side - _SIDE) // 2) for side in plane.shape[1:])
        found.append((255 * plane[:, top : top + _SIDE, left : left + _SIDE].float()).round().to(torch.uint8))
    return torch.cat(found).numpy()


def _check_batch(train: Tensor, config: StudyConfig, where: str) -> None:
    if config.training.batch_size > len(train):
        raise ValueError(
            f"Expected a batch of at most the {len(train)} nodules that {where} trains on, but got "
            f"{config.training.batch_size}: lower --batch-size."
        )


def _check_classes(data: StudyData, parts: Mapping[str, Tensor], fold: int, remedy: str) -> None:
    """Check that every part has each class, in the labels and in the readers' votes."""
    classes = data.votes.shape[1]
    for name, rows in parts.items():
        labels, votes = torch.bincount(data.labels[rows], minlength=classes), data.votes[rows].sum(0)
        for counts, words in ((labels, "label"), (votes, "vote")):
            if not bool((counts > 0).all()):
                raise ValueError(
                    f"Expected a {words} for every class in each part, but fold {fold + 1} of {data.source.name} has "
                    f"{counts.tolist()} to {name}: {remedy}."
                )


def _is_nodulemnist(path: str) -> bool:
    return all(f"{part}_images" in open_npz(path).members for part in COUNTS)
