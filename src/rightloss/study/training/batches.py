"""Minibatches that all runs of a group share, with views cut and low-level features computed once for all of them.

Stage: data, fold, seed → `Batch` after `Batch`; rows → one `Batch` of fixed views. Random streams by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ...lidc.nets import LowLevelBlock, each_view
from ...lidc.splits import Parts
from ...lidc.views import FixedViews, RandomViews
from ...prevalence import Prevalence
from ...sampling import RebalancedSampler
from ..config import RunConfig
from ..datasets import StudyData

_BLOCK = 32  # nodules of which views are cut in one go


def seed_of(*purpose: str | int) -> int:
    """Return a seed that depends on these words and numbers alone, not on which other runs there are."""
    return int.from_bytes(sha256("|".join(map(str, purpose)).encode()).digest()[:7], "big")


def stream(*purpose: str | int) -> torch.Generator:
    """Return a random stream with the seed of `purpose`."""
    return torch.Generator().manual_seed(seed_of(*purpose))


class Batch(NamedTuple):
    """Inputs and targets of some rows: low-level features of views (None where no net reads images), metadata, labels."""

    features: Float[Tensor, "n s c h w"] | None
    metadata: Float[Tensor, "n d"]
    target: Tensor  # int (n,), or readers' votes (n, k)


class Batches:
    """The minibatches of one group, and its parts to validate and test on.

    Args:
        data: the nodules.
        images: their patches in [0, 1]; None where no net reads them.
        run: any run of the group: they share all that matters here.
        device: where batches go.
        rank, world: of this process among those that train together; each takes every `world`-th row of a minibatch.
    """

    def __init__(
        self, data: StudyData, images: Tensor | None, run: RunConfig, device: torch.device, rank: int = 0, world: int = 1
    ) -> None:
        self.data, self.images, self.run = data, images, run
        self.device, self.rank, self.world = device, rank, world
        self.parts: Parts = data.parts(run.fold, run.num_folds)
        self.metadata = data.standardised(self.parts.train)
        self.target = data.votes if run.task == "rating" else data.labels
        self.low_level = None
        if images is not None:
            self.low_level = LowLevelBlock(stride=2 if run.training.small else 1).to(device)
        self._sampler = self._draws()

    @property
    def sampling(self) -> Float[Tensor, " k"]:
        """ρ, the mix of labels, or of votes, in minibatches."""
        return self._sampler.sampling

    def __iter__(self) -> Iterator[Batch]:
        training, views = self.run.training, self._stream("views")
        cutter = RandomViews(training.views)
        drawn = self.parts.train[torch.tensor(list(self._sampler))]
        for rows in drawn.split(training.batch_size):
            yield self._batch(rows, cutter, views)

    def fixed(self, rows: Int64[Tensor, " n"]) -> Batch:
        """Return these rows with fixed views."""
        cutter = FixedViews(self.run.training.test_views)
        blocks = [self._batch(block, cutter, alone=True) for block in rows.split(_BLOCK)]
        features = [block.features for block in blocks if block.features is not None]
        return Batch(
            torch.cat(features) if features else None,
            torch.cat([block.metadata for block in blocks]),
            torch.cat([block.target for block in blocks]),
        )

    def _batch(
        self, rows: Tensor, cutter: RandomViews | FixedViews, generator: torch.Generator | None = None, alone: bool = False
    ) -> Batch:
        own = slice(None) if alone else slice(self.rank, None, self.world)
        features = None
        if self.images is not None and self.low_level is not None:
            # Cut for all ranks, so that the views do not depend on their number.
            views = cutter(self.images[rows], generator=generator, spacing_mm=self.data.spacing_mm[rows])[own]
            with torch.no_grad():
                features = each_view(views.to(self.device), self.low_level)
        mine = rows[own]
        return Batch(features, self.metadata[mine].to(self.device), self.target[mine].to(self.device))

    def _draws(self) -> RebalancedSampler:
        """Return the sampler, with replacement: equal classes, or each row alike."""
        labels, training = self.target[self.parts.train], self.run.training
        classes = self.data.votes.shape[1]
        mix = None
        if self.run.minibatches == "raw":
            shares = labels if labels.is_floating_point() else torch.nn.functional.one_hot(labels, classes)
            mix = shares.double().mean(0)
        prevalence = Prevalence(torch.full((classes,), 1 / classes), sampling=mix)
        draws = training.steps * training.batch_size
        return RebalancedSampler(labels, prevalence, draws, self._stream("minibatches"), num_replicas=1, rank=0)

    def _stream(self, purpose: str) -> torch.Generator:
        return stream(purpose, self.run.data, self.run.fold, self.run.seed)
