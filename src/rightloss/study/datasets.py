"""Data sets for the study, from the package or from files.

Stage: "contours" or a path → `Source`; `Source`, task → `NoduleSet`, patches in [0, 1]; the parts of each fold.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..lidc import NoduleSet, balanced_set, binary_set, rating_set, read_archive
from ..lidc.nodulemnist import COUNTS, NoduleMNIST, read_nodulemnist
from ..lidc.splits import Parts, split_labels, train_valid_test
from ..serialization import open_npz
from .config import CONTOURS, IMAGE_NETS, Source, StudyConfig, label_draw
from .results import DataSummary, sha256_of

SETS = {"binary": binary_set, "rating": rating_set, "balanced": balanced_set}
_SIDE = 40  # pixels along a picture's sides
_FIXED = 48  # views of a volume that `FixedViews` has
_NAME = 40  # bytes of a source's name in file names


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
        if config.training.test_views > _FIXED and data.images([0]).ndim == 4:
            raise ValueError(
                f"Expected at most {_FIXED} views of a volume to validate and test on, but got {config.training.test_views}: "
                "lower `test_views`."
            )
        for fold in range(config.folds):
            if fold and data.ratings is None:
                raise ValueError(f"Expected one fold of {source.name}, which is published in parts, but got more: --folds 1.")
            parts, where = parts_of(data, fold, config.num_folds), f"fold {fold + 1} of {source.name}"
            _check_classes(data, parts._asdict(), where, "take fewer folds (--num-folds), or more nodules")
            _check_batch(parts.train, config, where)
            for seed in range(config.seeds if config.unlabelled else 0):
                labelled, unlabelled = split_labels(
                    parts.train, data.patients, config.unlabelled, label_draw(source.name, fold, seed)
                )
                halves = {"train on with labels": labelled, "train on without": unlabelled}
                remedy = "a lower share" if len(labelled) < len(unlabelled) else "a higher share"
                _check_classes(data, halves, where, f"take {remedy} (--unlabelled), or more nodules")
                _check_batch(labelled, config, f"{where}, with labels,")


@lru_cache(maxsize=4)
def study_data(source: Source, task: str) -> NoduleSet:
    """Return the nodules; patches are read on demand, but those of NoduleMNIST3D are kept in memory."""
    if source.path is None:
        if source.name != CONTOURS:
            raise ValueError(f"Expected the file of {source.name}, but its path is not known: give it by --data.")
        return SETS[task]()
    if sha256_of(Path(source.path)) != source.digest:
        raise ValueError(f"Expected {source.path} as it was when the study began, but it has changed: start a new study.")
    if all(f"{part}_images" in open_npz(source.path).members for part in COUNTS):
        if task != "binary":
            raise ValueError(
                f"Expected ratings and patients, but NoduleMNIST3D ({source.name}) has none: take a nodule archive."
            )
        return _joined(read_nodulemnist(source.path))
    return SETS[task](read_archive(source.path))


def _joined(sets: NoduleMNIST) -> NoduleSet:
    """Return the published parts one after the other; each row is a patient of its own."""
    patches = torch.cat([each.volumes() for each in sets])
    return replace(
        sets.train,
        labels=torch.cat([each.labels for each in sets]),
        votes=torch.cat([each.votes for each in sets]),
        patients=np.array([f"row {row}" for row in range(len(patches))]),
        features=torch.zeros(len(patches), 0),
        nodules=torch.cat([each.nodules for each in sets]),
        spacing_mm=torch.ones(len(patches)),
        source=sets.train.source._replace(read=lambda places: patches[places]),
        places=np.arange(len(patches)),
    )


def parts_of(data: NoduleSet, fold: int, num_folds: int) -> Parts:
    """Return the training, validation and test rows; NoduleMNIST3D, which has no ratings, has one published split."""
    if data.ratings is None:
        return Parts(*torch.arange(len(data)).split(list(COUNTS.values())))
    return train_valid_test(data.labels, data.patients, fold, num_folds)


@lru_cache(maxsize=1)  # 740 MB for the binary set's contour volumes
def study_images(source: Source, task: str) -> Float[Tensor, " n *dhw"]:
    """Return the patches of `study_data`, kept in memory."""
    return study_data(source, task).images()


def summary_of(source: Source, task: str) -> DataSummary:
    """Return the part of a data set that the report uses, with small pictures."""
    data = study_data(source, task)
    assert data.patients is not None
    return DataSummary(
        name=source.name,
        labels=data.labels.numpy(),
        votes=data.votes.float().numpy(),
        ratings=np.zeros((0, 5), np.int64) if data.ratings is None else data.ratings.numpy(),
        patients=data.patients,
        nodules=data.nodules.numpy(),
        pictures=_pictures(data),
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


def _check_classes(data: NoduleSet, parts: Mapping[str, Tensor], where: str, remedy: str) -> None:
    """Check that every part has each class, in the labels and in the readers' votes."""
    classes = data.votes.shape[1]
    for name, rows in parts.items():
        labels, votes = torch.bincount(data.labels[rows], minlength=classes), data.votes[rows].sum(0)
        for counts, words in ((labels, "label"), (votes, "vote")):
            if not bool((counts > 0).all()):
                raise ValueError(
                    f"Expected a {words} for every class in each part, but {where} has {counts.tolist()} to {name}: {remedy}."
                )
