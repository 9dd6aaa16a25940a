"""Minibatches at chosen rates.

Stage: labels, `Prevalence` → dataset indices for a `DataLoader`, and the `Prevalence` they realise.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed
from jaxtyping import Float64, Int64
from torch import Tensor
from torch.utils.data import Sampler

from rightloss.prevalence import Prevalence, class_frequencies

__all__ = ["RebalancedSampler", "StratifiedBatchSampler"]

Item = TypeVar("Item")

# Randomness is drawn in whole blocks, so that a sequence does not depend on its length, nor on the number of replicas.
_DRAWS_PER_BLOCK = 2**16
_BATCHES_PER_BLOCK = 32


class RebalancedSampler(Sampler[int]):
    """Dataset indices, drawn with replacement so that the classes come at `prevalence.sampling`.

    A class c is chosen with probability ρ_c, then an example of it: p(n) = Σ_c ρ_c v_nc / Σ_m v_mc, where v_nc is the
    share of votes of example n for class c; an int label is a unanimous vote.

    Of several replicas (processes), rank r takes draws r, r + R, r + 2R, … of one sequence that all of them compute
    alike; let nothing shard it again (Lightning: `use_distributed_sampler=False`).

    Args:
        labels: int labels `(n,)`, or soft votes, float `(n, k)` with rows that sum to 1.
        prevalence: its `sampling` is the rate of each class.
        num_samples: draws per epoch, of all replicas together; padded up to a multiple of `num_replicas`. `None` means
            one per label.
        generator: where the seed of each epoch comes from; with several replicas it must be in the same state on each.
            `None` means torch's global generator for one replica, and one seeded with 0 for several.
        num_replicas: R. `None` means torch.distributed's world size where that is initialised, else 1.
        rank: this process's number. `None` means torch.distributed's where that is initialised, else 0.

    Raises:
        ValueError: labels that are empty, out of range, of the wrong dtype or shape; a class without an example;
            `num_samples` or `num_replicas` below 1; `rank` missing or out of range.
    """

    def __init__(
        self,
        labels: Any,
        prevalence: Prevalence,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        labels = _checked_labels(labels, prevalence.num_classes)
        rates, sampling = _example_rates(labels, prevalence.sampling)
        self._prevalence = _realised(prevalence, sampling)
        self._cumulative = rates.cumsum(0)
        self._share = _Share.of(num_replicas, rank, _whole(num_samples, "num_samples", len(labels)))
        self._epochs = _Epochs(generator, self._share, {"labels": len(labels)}, self.sampling)

    @property
    def sampling(self) -> Tensor:
        """The mix of labels that the draws have in expectation (K,), float64: Σ_n p(n) v_n. For int labels it is ρ."""
        return self._prevalence.sampling

    @property
    def prevalence(self) -> Prevalence:
        """The given prevalence with the realised `sampling`: give this one to the loss."""
        return self._prevalence

    def __len__(self) -> int:
        """Draws per epoch on this rank."""
        return self._share.length

    def __iter__(self) -> Iterator[int]:
        """One epoch, or what is left of a loaded one."""
        return self._epochs.run(lambda seed, handed: _draws(self._cumulative, seed, self._share.positions(handed)))

    def state_dict(self) -> dict[str, Any]:
        """Where the epoch stands: its seed (−1 between epochs), how many items were handed out, the generator's state.

        An item counts once it is handed out: a `DataLoader` with `num_workers > 0` asks ahead of the batch you see.
        """
        return self._epochs.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next `__iter__` goes on where the saved epoch stood, and later epochs as they would have.

        The generator, torch's global one where none was given, is set back now and once more when the epoch goes on.

        Raises:
            ValueError: the state is damaged, or that of a sampler made otherwise.
        """
        self._epochs.load_state_dict(state)


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
            range.
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
        labels = _checked_labels(labels, prevalence.num_classes)
        if labels.is_floating_point():
            raise ValueError(
                "Expected int labels, but got soft votes: a stratum holds whole examples; "
                "take the majority's label, or use RebalancedSampler."
            )
        batch_size = _whole(batch_size, "batch_size", 0)
        if batch_size < prevalence.num_classes:
            raise ValueError(
                f"Expected `batch_size` to be at least the number of classes, {prevalence.num_classes}, "
                f"but got {batch_size}: enlarge the batch, or use RebalancedSampler."
            )
        self._counts = _batch_counts(prevalence.sampling, batch_size)
        self._prevalence = _realised(prevalence, self._counts.double() / batch_size)
        self._members = labels.argsort(stable=True).split(labels.bincount().tolist())
        num_batches = _whole(num_batches, "num_batches", -(-len(labels) // batch_size))
        self._share = _Share.of(num_replicas, rank, num_batches)
        config = {"labels": len(labels), "batch_size": batch_size}
        self._epochs = _Epochs(generator, self._share, config, self.sampling)

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


def _example_rates(labels: Tensor, rho: Float64[Tensor, " k"]) -> tuple[Float64[Tensor, " n"], Float64[Tensor, " k"]]:
    """p(n) of each example, and the mix of labels that it realises."""
    if not labels.is_floating_point():
        return (rho / labels.bincount())[labels], rho
    votes = labels / labels.sum(1, keepdim=True)
    rates = (votes / votes.sum(0)) @ rho
    return rates, rates @ votes


def _draws(cumulative: Float64[Tensor, " n"], seed: int, positions: range) -> Iterator[int]:
    """Those of a sequence of draws that stand at `positions`: the inverse of the cumulative rates, at uniform numbers.

    Not torch.multinomial, which takes no more than 2²⁴ examples.
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    for low in range(0, positions.stop, _DRAWS_PER_BLOCK):
        uniform = torch.rand(_DRAWS_PER_BLOCK, dtype=torch.float64, generator=generator, device="cpu")
        mine = uniform[_within(positions, low, _DRAWS_PER_BLOCK)] * cumulative[-1]
        yield from torch.searchsorted(cumulative, mine, right=True).tolist()


def _batches(members: tuple[Tensor, ...], counts: list[int], seed: int, positions: range) -> Iterator[list[int]]:
    """Those of a sequence of batches that stand at `positions`."""
    generator = torch.Generator("cpu").manual_seed(seed)
    decks = [_Deck(cards, count, generator) for cards, count in zip(members, counts, strict=True)]
    for low in range(0, positions.stop, _BATCHES_PER_BLOCK):
        block = torch.cat([deck.deal(_BATCHES_PER_BLOCK) for deck in decks], 1)
        keys = torch.rand(block.shape, dtype=torch.float64, generator=generator, device="cpu")
        mine = _within(positions, low, _BATCHES_PER_BLOCK)
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


def _realised(prevalence: Prevalence, sampling: Tensor) -> Prevalence:
    if torch.equal(sampling, prevalence.sampling):
        return prevalence
    if prevalence.concentration is not None:
        return Prevalence.dirichlet(prevalence.concentration, sampling, prevalence.evidence)
    return Prevalence(prevalence.population, sampling, prevalence.evidence)


@dataclass(frozen=True)
class _Share:
    """This rank's part of a sequence that all replicas share."""

    length: int
    replicas: int
    rank: int

    @classmethod
    def of(cls, num_replicas: int | None, rank: int | None, total: int) -> _Share:
        running = torch.distributed.is_available() and torch.distributed.is_initialized()
        replicas = _whole(num_replicas, "num_replicas", torch.distributed.get_world_size() if running else 1)
        if rank is None and not running and replicas > 1:
            raise ValueError(
                f"Expected `rank` along with num_replicas={replicas}, but got None: "
                "give each process its number, or initialise torch.distributed first."
            )
        rank = rank if rank is not None else torch.distributed.get_rank() if running else 0
        if not 0 <= rank < replicas:
            raise ValueError(
                f"Expected `rank` in 0..{replicas - 1}, but got {rank}: pass the `num_replicas` that it belongs to."
            )
        return cls(-(-total // replicas), replicas, rank)

    def positions(self, handed: int) -> range:
        """Where in the whole sequence this rank's items stand that come after the first `handed`."""
        return range(self.rank + handed * self.replicas, self.length * self.replicas, self.replicas)


def _within(positions: range, low: int, size: int) -> slice:
    """Those of `positions` in the block of `size` that starts at `low`, counted from there."""
    ahead = positions.start - low
    return slice(ahead if ahead >= 0 else ahead % positions.step, min(positions.stop - low, size), positions.step)


@dataclass
class _Epoch:
    seed: int
    handed: int = 0


class _Epochs:
    """A seed per epoch, how far the epoch has got, and both saved and restored."""

    def __init__(self, generator: torch.Generator | None, share: _Share, config: dict[str, int], sampling: Tensor) -> None:
        if generator is None and share.replicas > 1:
            generator = torch.Generator("cpu").manual_seed(0)
        self._own = generator
        self._config = config | {"length": share.length, "replicas": share.replicas}
        self._sampling = sampling
        self._epoch: _Epoch | None = None
        self._resume_at: Tensor | None = None

    @property
    def _generator(self) -> torch.Generator:
        # Looked up each time: a pickled or copied sampler must still follow torch.manual_seed.
        return torch.default_generator if self._own is None else self._own

    def run(self, items: Callable[[int, int], Iterator[Item]]) -> Iterator[Item]:
        """The items of `items(seed, handed)`, counted as they are handed out."""
        epoch = self._begin()
        for item in items(epoch.seed, epoch.handed):
            epoch.handed += 1
            yield item
        if self._epoch is epoch:
            self._epoch = None

    def _begin(self) -> _Epoch:
        if self._epoch is not None and self._resume_at is not None:
            # Again, because a DataLoader draws a seed of its own from the global generator before it asks for an item.
            self._generator.set_state(self._resume_at)
            self._resume_at = None
        else:
            device = self._generator.device
            self._epoch = _Epoch(int(torch.randint(2**63 - 1, (), generator=self._generator, device=device)))
        return self._epoch

    def state_dict(self) -> dict[str, Any]:
        epoch = self._epoch or _Epoch(-1)
        generator = self._generator.get_state() if self._resume_at is None else self._resume_at.clone()
        return {
            "seed": epoch.seed,
            "handed": epoch.handed,
            "generator": generator,
            "sampling": self._sampling.clone(),
            **self._config,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        expected, got = ({name: type(value).__name__ for name, value in each.items()} for each in (self.state_dict(), state))
        if got != expected:
            raise ValueError(
                f"Expected a state that holds {expected}, but got {got}: "
                "load what `state_dict()` of a sampler of the same kind returned."
            )
        config, sampling = {name: state[name] for name in self._config}, state["sampling"].cpu().double()
        same = config == self._config and sampling.shape == self._sampling.shape
        if not same or not torch.allclose(sampling, self._sampling, rtol=1e-9, atol=0):
            raise ValueError(
                f"Expected the state of a sampler with {self._config} at the rates {self._sampling.tolist()}, "
                f"but got one with {config} at {sampling.tolist()}: make this sampler like the one that was saved."
            )
        seed, handed = state["seed"], state["handed"]
        if not -1 <= seed < 2**63 or not 0 <= handed <= (0 if seed == -1 else self._config["length"]):
            raise ValueError(f"Expected a place within an epoch, but got seed {seed}, handed {handed}: save it again.")
        generator = state["generator"].detach().cpu().clone()
        try:
            self._generator.set_state(generator)
        except (RuntimeError, TypeError) as error:
            raise ValueError(
                f"Expected the state of a {self._generator.device} generator, but got {generator.dtype} "
                f"of shape {tuple(generator.shape)}: load it with the kind of generator it was saved with."
            ) from error
        self._epoch, self._resume_at = (None, None) if seed == -1 else (_Epoch(seed, handed), generator)


def _checked_labels(labels: Any, num_classes: int) -> Tensor:
    """Int64 labels (n,) or float64 votes (n, k), with an example of every class."""
    if not isinstance(labels, Tensor):
        array = np.asarray(labels)
        if array.dtype.kind not in "iuf":
            raise ValueError(
                f"Expected int labels or float votes, but got {array.dtype}: number the classes from 0, "
                "and call `.astype(int)` on bools."
            )
        labels = torch.from_numpy(array.astype(np.float64 if array.dtype.kind == "f" else np.int64))
    labels = labels.detach().cpu()
    if labels.numel() == 0:
        raise ValueError(f"Expected at least one label, but got shape {tuple(labels.shape)}: is the dataset empty?")
    if not labels.is_floating_point() and labels.ndim != 1:
        raise ValueError(
            f"Expected int labels of shape (n,), but got {tuple(labels.shape)}: give one label per example, "
            "or votes as floats with rows that sum to 1."
        )
    mix = class_frequencies(labels, num_classes).cpu()
    never = torch.nonzero(mix == 0).flatten().tolist()
    if never:
        raise ValueError(
            f"Expected an example of every class, but class(es) {never} have none: "
            "a class that is never sampled cannot be learned; collect some, or drop it from the prevalence."
        )
    return labels.double() if labels.is_floating_point() else labels.long()


def _whole(value: int | None, name: str, default: int) -> int:
    try:
        number = default if value is None else operator.index(value)
    except TypeError:
        raise ValueError(f"Expected `{name}` to be a whole number, but got {value!r}: round it.") from None
    if value is not None and number < 1:
        raise ValueError(f"Expected `{name}` to be at least 1, but got {number}: leave it out for the default.")
    return number
