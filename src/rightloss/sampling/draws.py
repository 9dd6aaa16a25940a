"""Random sequences of examples, generated in blocks: with replacement at chosen rates, or from shuffled decks.

Stage: labels, rates of the classes, a seed → indices of examples, and the class frequencies among them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

# Random numbers are drawn in whole blocks, so that a sequence depends neither on its length nor on the number of replicas.
DRAWS_PER_BLOCK = 2**16
BATCHES_PER_BLOCK = 32


@runtime_checkable
class Draws(Protocol):
    """A random sequence of items, generated in blocks.

    Attributes:
        sampling: the class frequencies in it (K,), float64.
        block: items in a block.
    """

    sampling: Tensor
    block: int

    def dealer(self, seed: int) -> Callable[[slice], Tensor]:
        """Return a function that returns, at each call, the requested items of the next block."""
        ...


class DrawsByRate:
    """Examples drawn with replacement, each at its rate p(n), see `RebalancedSampler`.

    Args:
        labels: int labels `(n,)`, or soft votes `(n, k)`, checked.
        rho: the rates of the classes.
        shape: the shape of a block, items first.
    """

    def __init__(self, labels: Tensor, rho: Float64[Tensor, " k"], *shape: int) -> None:
        rates, self.sampling = _example_rates(labels, rho)
        self._cumulative, self._shape, self.block = rates.cumsum(0), shape, shape[0]

    def dealer(self, seed: int) -> Callable[[slice], Tensor]:
        """Return the function that generates blocks of draws."""
        generator = torch.Generator("cpu").manual_seed(seed)

        def deal(wanted: slice) -> Int64[Tensor, " items *batch"]:
            # Inverse transform sampling, because torch.multinomial accepts at most 2²⁴ examples.
            uniform = torch.rand(self._shape, dtype=torch.float64, generator=generator, device="cpu")[wanted]
            return torch.searchsorted(self._cumulative, uniform * self._cumulative[-1], right=True)

        return deal


class StratifiedDraws:
    """Batches with a fixed count of each class, see `StratifiedBatchSampler`; int labels `(n,)`, checked."""

    block = BATCHES_PER_BLOCK

    def __init__(self, labels: Int64[Tensor, " n"], rho: Float64[Tensor, " k"], batch_size: int) -> None:
        self._counts = _batch_counts(rho, batch_size)
        self._members = labels.argsort(stable=True).split(labels.bincount(minlength=len(rho)).tolist())
        self.sampling = self._counts.double() / batch_size

    def dealer(self, seed: int) -> Callable[[slice], Tensor]:
        """Return the function that generates blocks of batches, each in random order."""
        generator = torch.Generator("cpu").manual_seed(seed)
        classes = zip(self._members, self._counts.tolist(), strict=True)
        decks = [Deck(cards, count, generator) for cards, count in classes if count]

        def deal(wanted: slice) -> Int64[Tensor, "items batch"]:
            block = torch.cat([deck.deal(self.block) for deck in decks], 1)
            keys = torch.rand(block.shape, dtype=torch.float64, generator=generator, device="cpu")
            return block[wanted].gather(1, keys[wanted].argsort(1))

        return deal


@dataclass
class Deck:
    """Examples in random order, dealt `count` at a time and reshuffled after all were used."""

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
        """Shuffle, uniformly among the orders in which no example occurs twice in one hand."""
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


def _example_rates(labels: Tensor, rho: Float64[Tensor, " k"]) -> tuple[Float64[Tensor, " n"], Float64[Tensor, " k"]]:
    """Return p(n) of each example, and the resulting class frequencies."""
    if not labels.is_floating_point():
        return (rho / labels.bincount(minlength=len(rho)))[labels], rho
    votes = labels / labels.sum(1, keepdim=True)
    rates = (votes / torch.where(rho > 0, votes.sum(0), 1.0)) @ rho
    return rates, rates @ votes


def _batch_counts(sampling: Float64[Tensor, " k"], batch_size: int) -> Int64[Tensor, " k"]:
    """Round batch_size · ρ by largest remainder; every sampled class gets at least 1, and the others share the rest.

    A class with ρ = 0 gets none.
    """
    alone = torch.zeros_like(sampling, dtype=torch.bool)
    while True:
        counts = torch.ones_like(sampling, dtype=torch.int64)
        counts[~alone] = _largest_remainder(sampling[~alone], batch_size - int(alone.sum()))
        forgotten = (counts == 0) & (sampling > 0)
        if not bool(forgotten.any()):
            return counts
        alone |= forgotten


def _largest_remainder(shares: Float64[Tensor, " k"], total: int) -> Int64[Tensor, " k"]:
    # Rounded, so that ties always go to the first class.
    quota = (total * shares / shares.sum()).round(decimals=9)
    counts = quota.floor().long()
    order = (quota - counts).argsort(descending=True, stable=True)
    counts[order[: total - int(counts.sum())]] += 1
    return counts
