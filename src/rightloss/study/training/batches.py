"""Minibatches shared by all runs of a group: views are cut and low-level features computed once.

Stage: data, fold, seed → `Batch` after `Batch`; rows → one `Batch` of fixed views. Random streams by name.

Patients who lost their labels come with each `Batch` at every π of the group. Their hidden labels choose who is drawn, which
simulates a population with that prevalence; then they are erased.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import one_hot

from ...lidc import NoduleSet
from ...lidc.nets import LowLevelBlock, each_view
from ...lidc.splits import split_labels
from ...lidc.views import FixedViews, RandomViews
from ...prevalence import Prevalence
from ...sampling import RebalancedSampler
from ..config import RunConfig, label_draw
from ..datasets import parts_of

_BLOCK = 32  # nodules per block when views are cut


def seed_of(*purpose: str | int) -> int:
    """Return a seed that depends only on these words and numbers, not on other runs."""
    return int.from_bytes(sha256("|".join(map(str, purpose)).encode()).digest()[:7], "big")


def stream(*purpose: str | int) -> torch.Generator:
    """Return a random stream with the seed of `purpose`."""
    return torch.Generator().manual_seed(seed_of(*purpose))


class Inputs(NamedTuple):
    """Inputs of some rows: low-level features of views (None if no net reads images), and metadata."""

    features: Float[Tensor, "n s c h w"] | None
    metadata: Float[Tensor, "n d"]


class Batch(NamedTuple):
    """Inputs and targets of some rows.

    Attributes:
        inputs: of the labelled rows.
        target: of the labelled rows: int `(n,)`, or readers' votes `(n, k)`.
        with_unlabelled: by the run's population: the same inputs and, after them, those of unlabelled rows at that mix.
    """

    inputs: Inputs
    target: Tensor
    with_unlabelled: Mapping[float | None, Inputs] = MappingProxyType({})


class Batches:
    """The minibatches of one group, and its parts to validate and test on.

    Args:
        data: the nodules.
        images: their patches in [0, 1]; None if no net reads them.
        run: any run of the group: they share everything that is used here.
        device: where batches go.
        rank, world: of this process among those that train together; each takes every `world`-th row of a minibatch.
        populations: π by class of the runs that learn from unlabelled rows, by the run's `population`.

    Attributes:
        parts: rows to train on with labels, to validate on, to test.
        unlabelled: rows to train on without labels; their `target` is −1, or NaN.
    """

    def __init__(
        self,
        data: NoduleSet,
        images: Tensor | None,
        run: RunConfig,
        device: torch.device,
        rank: int = 0,
        world: int = 1,
        populations: Mapping[float | None, np.ndarray] = MappingProxyType({}),
    ) -> None:
        self.data, self.images, self.run = data, images, run
        self.device, self.rank, self.world = device, rank, world
        parts = parts_of(data, run.fold, run.num_folds)
        draw = label_draw(run.data, run.fold, run.seed)
        labelled, self.unlabelled = split_labels(parts.train, data.patients, run.unlabelled, draw)
        self.parts = parts._replace(train=labelled)
        self.metadata = data.standardised(labelled)
        self.target = data.votes if run.task == "rating" else data.labels
        self.low_level = None
        if images is not None:
            self.low_level = LowLevelBlock(stride=2 if run.training.small else 1).to(device)
        self._sampler = self._draws(labelled, self._mix(), "minibatches")
        draws = {rate: self._draws(self.unlabelled, mix, "unlabelled minibatches") for rate, mix in populations.items()}
        self._drawn = {rate: self.unlabelled[torch.tensor(list(sampler))] for rate, sampler in draws.items()}
        self.target = _erased(self.target, self.unlabelled)

    @property
    def sampling(self) -> np.ndarray:
        """ρ, the mix of labels, or of votes, in minibatches."""
        return self._sampler.prevalence.sampling

    def unlabelled_rows(self, population: float | None) -> Int64[Tensor, " drawn"]:
        """Return unlabelled rows at the class frequencies of a run's population, as many as there are: those of the first
        minibatches."""
        return self._drawn[population][: len(self.unlabelled)]

    def __iter__(self) -> Iterator[Batch]:
        drawn = self.parts.train[torch.tensor(list(self._sampler))]
        others = {rate: self._views_of(rows, "unlabelled views") for rate, rows in self._drawn.items()}
        targets = (self.target[rows[self._own]].to(self.device) for rows in drawn.split(self.run.training.batch_size))
        for inputs, target in zip(self._views_of(drawn, "views"), targets, strict=True):
            yield Batch(inputs, target, {rate: _joined([inputs, next(each)]) for rate, each in others.items()})

    def fixed(self, rows: Int64[Tensor, " n"]) -> Batch:
        """Return these rows with fixed views."""
        cutter = FixedViews(self.run.training.test_views)
        blocks = [self._inputs(block, cutter, slice(None)) for block in rows.split(_BLOCK)]
        return Batch(_joined(blocks), self.target[rows].to(self.device))

    @property
    def _own(self) -> slice:
        return slice(self.rank, None, self.world)

    def _views_of(self, drawn: Int64[Tensor, " draws"], purpose: str) -> Iterator[Inputs]:
        """Yield minibatches of these rows, with random views."""
        cutter, views = RandomViews(self.run.training.views), self._stream(purpose)
        for rows in drawn.split(self.run.training.batch_size):
            yield self._inputs(rows, cutter, self._own, views)

    def _inputs(
        self, rows: Tensor, cutter: RandomViews | FixedViews, own: slice, generator: torch.Generator | None = None
    ) -> Inputs:
        features = None
        if self.images is not None and self.low_level is not None:
            # Cut for all ranks, so that the views do not depend on their number.
            views = cutter(self.images, generator, self.data.spacing_mm[rows], rows)[own]
            with torch.no_grad():
                features = each_view(views.to(self.device), self.low_level)
        return Inputs(features, self.metadata[rows[own]].to(self.device))

    def _mix(self) -> np.ndarray | None:
        """Return the mix of the labelled training rows for raw minibatches; None for equal classes."""
        labels = self.target[self.parts.train]
        if self.run.minibatches != "raw":
            return None
        shares = labels if labels.is_floating_point() else one_hot(labels, self.data.votes.shape[1])
        return shares.double().mean(0).numpy()

    def _draws(self, rows: Int64[Tensor, " rows"], mix: np.ndarray | None, purpose: str) -> RebalancedSampler:
        """Return a sampler of these rows with replacement, at these class frequencies; equal by default."""
        classes, training = self.data.votes.shape[1], self.run.training
        prevalence = Prevalence(np.full(classes, 1 / classes), sampling=mix)
        draws = training.steps * training.batch_size
        return RebalancedSampler(self.target[rows], prevalence, draws, self._stream(purpose), num_replicas=1, rank=0)

    def _stream(self, purpose: str) -> torch.Generator:
        return stream(purpose, self.run.data, self.run.fold, self.run.seed)


def _joined(blocks: Sequence[Inputs]) -> Inputs:
    """Concatenate the inputs of all blocks."""
    features = [block.features for block in blocks if block.features is not None]
    return Inputs(torch.cat(features) if features else None, torch.cat([block.metadata for block in blocks]))


def _erased(target: Tensor, rows: Int64[Tensor, " unlabelled"]) -> Tensor:
    """Return the labels with those of these rows erased: −1, or NaN for votes, which every loss rejects."""
    kept = target.clone()
    kept[rows] = math.nan if target.is_floating_point() else -1
    return kept
