"""Every class in every batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed
from jaxtyping import Float64, Int64
from torch import Tensor
from torch.utils.data import Sampler

from ..prevalence import Prevalence
from .checks import checked_labels, checked_prevalence, realised, whole_number
from .epochs import Epochs, Share, within

# Randomness is drawn in whole blocks, so that a sequence does not depend on its length, nor on the number of replicas.
_BATCHES_PER_BLOCK = 32


class StratifiedBatchSampler(Sampler[list[int]]):
    """Batches of dataset indices with every class in every batch: `DataLoader(dataset, batch_sampler=…)`.

    The count of each class is fixed: `batch_size` · ρ, rounded by largest remainder, and at least 1. A class is gone
    through in random order and reshuffled when it is used up; no batch has an example twice, unless the class has fewer
    examples than the batch takes of it.

    Of several replicas, rank r takes batches r, r + R, r + 2R, … of one sequence that all of them compute alike; let
    nothing shard it again (Lightning: `use_distributed_sampler=False`).

    Args:
        labels: int labels `(n,)`.
        prevalence: its `sampling` is the rate of each class.
        batch_size: examples per batch, at least one per class.
        num_batches: batches per epoch, of all replicas together; padded up to a multiple of `num_replicas`. `None`
            means as many as it takes to hand out n examples.
        generator: as in `RebalancedSampler`.
        num_replicas: as in `RebalancedSampler`.
        rank: as in `RebalancedSampler`.

    Raises:
        ValueError: labels that are empty, soft, out of range, of the wrong dtype or shape; a class without an example;
            `batch_size` below the number of classes; `num_batches` or `num_replicas` below 1; `rank` missing or out of
            range; a `generator` that is no torch.Generator, or a number that is no int.
    """

    def __init__(
        self,
        labels: Any,
        prevalence: Prevalence,
        batch_size: int,
        num_batches: int | None = None,
        generator: torch.Generator | None = None,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        labels = checked_labels(labels, checked_prevalence(prevalence).num_classes)
        if labels.is_floating_point():
            raise ValueError(
                "Expected int labels, but got soft votes: a stratum holds whole examples; "
                "take the majority's label, or use RebalancedSampler."
            )
        batch_size = whole_number(batch_size, "batch_size", 0)
        if batch_size < prevalence.num_classes:
            raise ValueError(
                f"Expected `batch_size` to be at least the number of classes, {prevalence.num_classes}, "
                f"but got {batch_size}: enlarge the batch, or use RebalancedSampler."
            )
        self._counts = _batch_counts(prevalence.sampling, batch_size)
        self._prevalence = realised(prevalence, self._counts.double() / batch_size)
        self._members = labels.argsort(stable=True).split(labels.bincount().tolist())
        num_batches = whole_number(num_batches, "num_batches", -(-len(labels) // batch_size))
        self._share = Share.of(num_replicas, rank, num_batches)
        config = {"labels": len(labels), "batch_size": batch_size}
        self._epochs = Epochs(generator, self._share, config, self.sampling)

    @property
    def sampling(self) -> Tensor:
        """The mix of classes in every batch (K,), float64: counts / batch size."""
        return self._prevalence.sampling

    @property
    def prevalence(self) -> Prevalence:
        """The given prevalence with the realised `sampling`: give this one to the loss."""
        return self._prevalence

    def __len__(self) -> int:
        """Batches per epoch on this rank."""
        return self._share.length

    def __iter__(self) -> Iterator[list[int]]:
        """One epoch, or what is left of a loaded one."""
        counts = self._counts.tolist()
        return self._epochs.run(lambda seed, handed: _batches(self._members, counts, seed, self._share.positions(handed)))

    def state_dict(self) -> dict[str, Any]:
        """As in `RebalancedSampler`; an item is a batch."""
        return self._epochs.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As in `RebalancedSampler`."""
        self._epochs.load_state_dict(state)


def _batches(members: tuple[Tensor, ...], counts: list[int], seed: int, positions: range) -> Iterator[list[int]]:
    """Those of a sequence of batches that stand at `positions`."""
    generator = torch.Generator("cpu").manual_seed(seed)
    decks = [_Deck(cards, count, generator) for cards, count in zip(members, counts, strict=True)]
    for low in range(0, positions.stop, _BATCHES_PER_BLOCK):
        block = torch.cat([deck.deal(_BATCHES_PER_BLOCK) for deck in decks], 1)
        keys = torch.rand(block.shape, dtype=torch.float64, generator=generator, device="cpu")
        mine = within(positions, low, _BATCHES_PER_BLOCK)
        yield from block[mine].gather(1, keys[mine].argsort(1)).tolist()


@dataclass
class _Deck:
    """The examples of one class, dealt in hands of `count` and reshuffled when they are used up."""

    cards: Int64[Tensor, " m"]
    count: int
    generator: torch.Generator
    dealt: int = 0

    def deal(self, hands: int) -> Int64[Tensor, "hands count"]:
        pieces, wanted = [], hands * self.count
        while wanted:
            used = self.dealt % len(self.cards)
            if used == 0:
                self._shuffle()
            pieces.append(self.cards[used : used + wanted])
            self.dealt += len(pieces[-1])
            wanted -= len(pieces[-1])
        return torch.cat(pieces).view(hands, self.count)

    def _shuffle(self) -> None:
        """A random order, uniform among those that do not deal a card again to the hand that holds it."""
        held = self.dealt % self.count if self.count <= len(self.cards) else 0
        free, holding = self.cards.split([len(self.cards) - held, held])
        free = self._shuffled(free)
        if held == 0:
            self.cards = free
        else:
            head, rest = free[: self.count - held], free[self.count - held :]
            self.cards = torch.cat([head, self._shuffled(torch.cat([rest, holding]))])

    def _shuffled(self, cards: Tensor) -> Tensor:
        return cards[torch.randperm(len(cards), generator=self.generator, device="cpu")]


def _batch_counts(sampling: Float64[Tensor, " k"], batch_size: int) -> Int64[Tensor, " k"]:
    """Largest remainder of batch_size · ρ; a class that would get none gets 1, and the others share the rest."""
    alone = torch.zeros_like(sampling, dtype=torch.bool)
    while True:
        counts = torch.ones_like(sampling, dtype=torch.int64)
        counts[~alone] = _largest_remainder(sampling[~alone], batch_size - int(alone.sum()))
        if bool((counts > 0).all()):
            return counts
        alone |= counts == 0


def _largest_remainder(shares: Float64[Tensor, " k"], total: int) -> Int64[Tensor, " k"]:
    # Rounded, so that ties go to the first class whatever the last bit of a share.
    quota = (total * shares / shares.sum()).round(decimals=9)
    counts = quota.floor().long()
    order = (quota - counts).argsort(descending=True, stable=True)
    counts[order[: total - int(counts.sum())]] += 1
    return counts
