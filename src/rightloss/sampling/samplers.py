"""Samplers with chosen class frequencies, sharded over ranks and resumable in the middle of an epoch.

Stage: labels, `Prevalence` → blocks of a random sequence of examples → this rank's items of an epoch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
import torch.distributed
from jaxtyping import Float64, Int64
from torch import Tensor
from torch.utils.data import Sampler

from ..arrays import Numbers, checked_int
from ..prevalence import Prevalence, class_frequencies, mix_of_every_class
from ..tensors import checked_generator, tensor_of

# Random numbers are drawn in whole blocks, so that a sequence depends neither on its length nor on the number of replicas.
DRAWS_PER_BLOCK = 2**16
BATCHES_PER_BLOCK = 32

Item = TypeVar("Item")


class ResumableSampler(Sampler[Item]):
    """An abstract sampler with a seed per epoch, this rank's part of the sequence, and a position that can be saved."""

    def _set_up(
        self,
        prevalence: Prevalence,
        draws: Draws,
        total: int,
        generator: torch.Generator | None,
        num_replicas: int | None,
        rank: int | None,
        **config: int,
    ) -> None:
        """Set `prevalence` with the realised `sampling`, and share `total` items among the replicas."""
        same = np.allclose(draws.sampling, prevalence.sampling, rtol=1e-12, atol=0)  # up to the rounding of votes' sums
        self._prevalence = prevalence if same else prevalence.with_sampling(draws.sampling)
        self._draws = draws
        self._replicas, self._rank = _place(num_replicas, rank)
        self._length = -(-total // self._replicas)
        self._own_generator = checked_generator(generator)
        if generator is None and self._replicas > 1:
            self._own_generator = torch.Generator("cpu").manual_seed(0)
        self._config = config | {"length": self._length, "replicas": self._replicas}
        self._epoch: _Epoch | None = None
        self._resume_at: Tensor | None = None

    @property
    def prevalence(self) -> Prevalence:
        """The given prevalence with the realised `sampling`: pass this one to the loss."""
        return self._prevalence

    @property
    def sampling(self) -> Tensor:
        """The class frequencies of the draws (K,), float64: exact in every batch if counts are fixed, else in expectation."""
        return tensor_of(self._prevalence.sampling)

    def __len__(self) -> int:
        """Return the number of items (draws or batches) per epoch on this rank."""
        return self._length

    def __iter__(self) -> Iterator[Item]:
        """Yield one epoch, or the rest of a loaded one."""
        epoch = self._begin()
        start = self._rank + epoch.handed * self._replicas
        for item in self._items(epoch.seed, range(start, self._length * self._replicas, self._replicas)):
            epoch.handed += 1
            yield item
        if self._epoch is epoch:
            self._epoch = None

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the epoch: its seed (−1 between epochs), the number of items yielded, the generator's state.

        Items count when they are yielded: a `DataLoader` with `num_workers > 0` prefetches items beyond the current batch.
        """
        epoch = self._epoch or _Epoch(-1)
        generator = self._generator.get_state() if self._resume_at is None else self._resume_at.clone()
        place = {"seed": epoch.seed, "handed": epoch.handed, "generator": generator, "sampling": self.sampling}
        return {**place, **self._config}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a position: the next `__iter__` continues the saved epoch, and later epochs are the same as well.

        The generator, by default torch's global one, is restored now and again when the epoch continues.

        Raises:
            ValueError: if the state is damaged, or from a sampler with other arguments.
        """
        if not isinstance(state, Mapping):
            raise ValueError(f"Expected what `state_dict()` returned, but got {type(state).__name__}: save it again.")
        expected, got = ({name: type(value).__name__ for name, value in each.items()} for each in (self.state_dict(), state))
        if got != expected:
            remedy = "load what `state_dict()` of a sampler of the same kind returned"
            raise ValueError(f"Expected a state that holds {expected}, but got {got}: {remedy}.")
        config, sampling = {name: state[name] for name in self._config}, state["sampling"].cpu().double()
        own = self.sampling
        if config != self._config or sampling.shape != own.shape or not torch.allclose(sampling, own, rtol=1e-9, atol=0):
            came = f"one with {config} at {sampling.tolist()}: make this sampler like the one that was saved"
            raise ValueError(f"Expected the state of a sampler with {self._config} at {own.tolist()}, but got {came}.")
        seed, handed = state["seed"], state["handed"]
        if not -1 <= seed < 2**63 or not 0 <= handed <= (0 if seed == -1 else self._length):
            raise ValueError(f"Expected a place within an epoch, but got seed {seed}, handed {handed}: save it again.")
        generator = state["generator"].cpu().clone()
        try:
            self._generator.set_state(generator)
        except (RuntimeError, TypeError) as error:
            raise ValueError(
                f"Expected the state of a {self._generator.device} generator, but got {generator.dtype} "
                f"of shape {tuple(generator.shape)}: load it with the kind of generator it was saved with."
            ) from error
        self._epoch, self._resume_at = (None, None) if seed == -1 else (_Epoch(seed, handed), generator)

    def _items(self, seed: int, positions: range) -> Iterator[Item]:
        """Yield the items at `positions` of the sequence that the seed gives."""
        deal, block = self._draws.dealer(seed), self._draws.block
        for low in range(0, positions.stop, block):
            yield from deal(_within(positions, low, block)).tolist()

    @property
    def _generator(self) -> torch.Generator:
        # Looked up at each call: a pickled or copied sampler must still follow torch.manual_seed.
        return torch.default_generator if self._own_generator is None else self._own_generator

    def _begin(self) -> _Epoch:
        if self._epoch is not None and self._resume_at is not None:
            # Again, because a DataLoader draws its own seed from the global generator before the first item.
            self._generator.set_state(self._resume_at)
            self._resume_at = None
        else:
            device = self._generator.device
            self._epoch = _Epoch(int(torch.randint(2**63 - 1, (), generator=self._generator, device=device)))
        return self._epoch


class RebalancedSampler(ResumableSampler[int]):
    """Draw dataset indices with replacement, with the class frequencies `prevalence.sampling`.

    Choose a class c with probability ρ_c, then an example of it: p(n) = Σ_c ρ_c v_nc / Σ_m v_mc, where v_nc is the
    fraction of votes of example n for class c; an int label is a unanimous vote. The realised `sampling` is Σ_n p(n) v_n;
    for int labels it is ρ.

    With several replicas (processes), all compute the same sequence, and rank r takes draws r, r + R, r + 2R, … Do not shard
    it again (Lightning: `use_distributed_sampler=False`).

    Args:
        labels: int labels `(n,)`, or soft votes, float `(n, k)` with rows that sum to 1.
        prevalence: its `sampling` is the rate of each class.
        num_samples: draws per epoch, of all replicas together; padded up to a multiple of `num_replicas`. `None` means
            one per label.
        generator: gives the seed of each epoch; with several replicas it must be in the same state on each.
            `None` means torch's global generator for one replica, and one seeded with 0 for several.
        num_replicas: R. `None` means torch.distributed's world size if that is initialised, else 1.
        rank: the rank of this process. `None` means torch.distributed's if that is initialised, else 0.

    Raises:
        ValueError: labels that are empty, out of range, of the wrong dtype or shape; a class without an example;
            `num_samples` or `num_replicas` below 1; `rank` missing or out of range; a `generator` that is not a
            torch.Generator, or a number that is not an int.

    Examples:
        >>> import torch
        >>> import rightloss as rl
        >>> labels = torch.tensor([0] * 990 + [1] * 10)
        >>> prevalence = rl.Prevalence.binary(population=0.01, sampling=0.5)
        >>> sampler = rl.RebalancedSampler(labels, prevalence, generator=torch.Generator().manual_seed(0))
        >>> bool(0.4 < labels[list(sampler)].double().mean() < 0.6)  # about half of the draws are of class 1
        True
        >>> loader = torch.utils.data.DataLoader(labels, batch_size=50, sampler=sampler)
    """

    def __init__(
        self,
        labels: Numbers,
        prevalence: Prevalence,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        given = checked_labels(labels, prevalence)
        total = whole_number(num_samples, "num_samples", len(given))
        draws = DrawsByRate(given, tensor_of(prevalence.sampling), DRAWS_PER_BLOCK)
        self._set_up(prevalence, draws, total, generator, num_replicas, rank, labels=len(given))


class StratifiedBatchSampler(ResumableSampler[list[int]]):
    """Draw batches of dataset indices with every class in every batch: `DataLoader(dataset, batch_sampler=…)`.

    The count of each class is fixed: `batch_size` · ρ, rounded by largest remainder, and at least 1; count / `batch_size` is
    the realised `sampling`. The examples of a class are in random order and reshuffled after all were used. No batch has an
    example twice, unless the class has fewer examples than the batch needs.

    With several replicas, all compute the same sequence, and rank r takes batches r, r + R, r + 2R, … Do not shard it again
    (Lightning: `use_distributed_sampler=False`).

    Args:
        labels: int labels `(n,)`.
        prevalence: its `sampling` is the rate of each class.
        batch_size: examples per batch, at least one per class.
        num_batches: batches per epoch, of all replicas together; padded up to a multiple of `num_replicas`. `None`
            means as many as are needed for n examples.
        generator: as in `RebalancedSampler`.
        num_replicas: as in `RebalancedSampler`.
        rank: as in `RebalancedSampler`.

    Raises:
        ValueError: soft labels, a `batch_size` below the number of classes, and as in `RebalancedSampler`.

    Examples:
        >>> import torch
        >>> import rightloss as rl
        >>> labels = torch.tensor([0] * 990 + [1] * 10)
        >>> sampler = rl.StratifiedBatchSampler(labels, rl.Prevalence.binary(0.01, sampling=0.25), batch_size=8)
        >>> {int(labels[batch].sum()) for batch in sampler}  # of class 1 in each batch
        {2}
        >>> loader = torch.utils.data.DataLoader(labels, batch_sampler=sampler)
    """

    def __init__(
        self,
        labels: Numbers,
        prevalence: Prevalence,
        batch_size: int,
        num_batches: int | None = None,
        generator: torch.Generator | None = None,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        given = checked_labels(labels, prevalence)
        if given.is_floating_point():
            raise ValueError("Expected int labels, but got soft votes: use the majority's label, or RebalancedSampler.")
        batch_size = whole_number(batch_size, "batch_size")
        classes = int((prevalence.sampling > 0).sum())
        if batch_size < classes:
            came = f"{batch_size}: enlarge the batch, or use RebalancedSampler"
            raise ValueError(f"Expected `batch_size` to be at least the number of classes, {classes}, but got {came}.")
        total = whole_number(num_batches, "num_batches", -(-len(given) // batch_size))
        draws = StratifiedDraws(given, tensor_of(prevalence.sampling), batch_size)
        sizes = {"labels": len(given), "batch_size": batch_size}
        self._set_up(prevalence, draws, total, generator, num_replicas, rank, **sizes)


def checked_labels(labels: Numbers, prevalence: Prevalence) -> Tensor:
    """Return int64 labels (n,) or float64 votes (n, k); every sampled class must have an example, and no other class."""
    if not isinstance(prevalence, Prevalence):
        raise ValueError(f"Expected a Prevalence, but got {type(prevalence).__name__}: rightloss.Prevalence([…]).")
    given = tensor_of(labels, "labels").detach().cpu()
    if given.layout != torch.strided:
        raise ValueError(f"Expected `labels` in a dense tensor, but got {given.layout}: call `.to_dense()` on it.")
    if not given.is_floating_point() and given.ndim != 1:
        remedy = "give one label per example, or votes as floats with rows that sum to 1"
        raise ValueError(f"Expected int labels of shape (n,), but got {tuple(given.shape)}: {remedy}.")
    sampled = prevalence.sampling > 0
    if sampled.all():
        mix_of_every_class(given, prevalence.num_classes)
    elif not np.array_equal(seen := class_frequencies(given, prevalence.num_classes) > 0, sampled):
        expected, got = (np.flatnonzero(which).tolist() for which in (sampled, seen))
        came = f"{got}: leave the other examples out, or give them as unlabelled"
        raise ValueError(f"Expected `labels` of class(es) {expected} only, those whose `sampling` is positive, but got {came}.")
    return given.double() if given.is_floating_point() else given.long()


def whole_number(value: Any, name: str, default: int | None = None, least: int = 1, most: int = sys.maxsize) -> int:
    """Return an int of Python, NumPy or torch in `least`..`most`; for None the default, if there is one."""
    if value is None and default is not None:
        return default
    given = value.item() if isinstance(value, Tensor) and value.ndim == 0 else value
    return checked_int(
        given, name, least, most, "give a whole number in that range" if default is None else "leave it out for the default"
    )


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


@dataclass
class _Epoch:
    seed: int
    handed: int = 0


def _place(num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    """Return the number of replicas and the rank of this process, by default from torch.distributed."""
    running = torch.distributed.is_available() and torch.distributed.is_initialized()
    replicas = whole_number(num_replicas, "num_replicas", torch.distributed.get_world_size() if running else 1)
    if rank is None and not running and replicas > 1:
        remedy = "give each process its rank, or initialise torch.distributed first"
        raise ValueError(f"Expected `rank` along with num_replicas={replicas}, but got None: {remedy}.")
    rank = (torch.distributed.get_rank() if running else 0) if rank is None else rank
    return replicas, whole_number(rank, "rank", None, 0, replicas - 1)


def _within(positions: range, low: int, size: int) -> slice:
    """Return the `positions` in the block of `size` that starts at `low`, relative to `low`."""
    ahead = positions.start - low
    return slice(ahead if ahead >= 0 else ahead % positions.step, min(positions.stop - low, size), positions.step)
