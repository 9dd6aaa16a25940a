"""Samplers with chosen class frequencies, sharded over ranks and resumable in the middle of an epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed
from torch import Tensor
from torch.utils.data import Sampler

from ..arrays import Numbers
from ..prevalence import Prevalence
from ..tensors import checked_generator, tensor_of
from .checks import checked_int, checked_labels, checked_prevalence, whole_number
from .draws import DRAWS_PER_BLOCK, Draws, DrawsByRate, StratifiedDraws

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
            raise ValueError(
                f"Expected a state as `state_dict()` returns it, but got {type(state).__name__}: load what it returned."
            )
        expected, got = ({name: type(value).__name__ for name, value in each.items()} for each in (self.state_dict(), state))
        if got != expected:
            raise ValueError(
                f"Expected a state that holds {expected}, but got {got}: "
                "load what `state_dict()` of a sampler of the same kind returned."
            )
        config, sampling = {name: state[name] for name in self._config}, state["sampling"].cpu().double()
        own = self.sampling
        if config != self._config or sampling.shape != own.shape or not torch.allclose(sampling, own, rtol=1e-9, atol=0):
            raise ValueError(
                f"Expected the state of a sampler with {self._config} at the rates {own.tolist()}, "
                f"but got one with {config} at {sampling.tolist()}: make this sampler like the one that was saved."
            )
        seed, handed = state["seed"], state["handed"]
        if not -1 <= seed < 2**63 or not 0 <= handed <= (0 if seed == -1 else self._length):
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
        given = checked_labels(labels, checked_prevalence(prevalence))
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
        given = checked_labels(labels, checked_prevalence(prevalence))
        if given.is_floating_point():
            raise ValueError("Expected int labels, but got soft votes: use the majority's label, or RebalancedSampler.")
        batch_size = whole_number(batch_size, "batch_size")
        classes = int((prevalence.sampling > 0).sum())
        if batch_size < classes:
            raise ValueError(
                f"Expected `batch_size` to be at least the number of classes, {classes}, "
                f"but got {batch_size}: enlarge the batch, or use RebalancedSampler."
            )
        total = whole_number(num_batches, "num_batches", -(-len(given) // batch_size))
        draws = StratifiedDraws(given, tensor_of(prevalence.sampling), batch_size)
        sizes = {"labels": len(given), "batch_size": batch_size}
        self._set_up(prevalence, draws, total, generator, num_replicas, rank, **sizes)


@dataclass
class _Epoch:
    seed: int
    handed: int = 0


def _place(num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    """Return the number of replicas and the rank of this process, by default from torch.distributed."""
    running = torch.distributed.is_available() and torch.distributed.is_initialized()
    replicas = whole_number(num_replicas, "num_replicas", torch.distributed.get_world_size() if running else 1)
    if rank is None and not running and replicas > 1:
        raise ValueError(
            f"Expected `rank` along with num_replicas={replicas}, but got None: "
            "give each process its rank, or initialise torch.distributed first."
        )
    own = torch.distributed.get_rank() if running else 0
    rank = own if rank is None else checked_int(rank, "rank")
    if not 0 <= rank < replicas:
        raise ValueError(f"Expected `rank` in 0..{replicas - 1}, but got {rank}: pass the `num_replicas` that it belongs to.")
    return replicas, rank


def _within(positions: range, low: int, size: int) -> slice:
    """Return the `positions` in the block of `size` that starts at `low`, relative to `low`."""
    ahead = positions.start - low
    return slice(ahead if ahead >= 0 else ahead % positions.step, min(positions.stop - low, size), positions.step)
