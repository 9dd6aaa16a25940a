"""Epochs that can be sharded over ranks and taken up in the middle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed
from torch import Tensor

from .checks import checked_generator, checked_int, whole_number

Item = TypeVar("Item")


@dataclass
class _Epoch:
    seed: int
    handed: int = 0


class Epochs:
    """A seed per epoch, how far the epoch has got, and both saved and restored."""

    def __init__(self, generator: torch.Generator | None, share: Share, config: dict[str, int], sampling: Tensor) -> None:
        generator = checked_generator(generator)
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


@dataclass(frozen=True)
class Share:
    """This rank's part of a sequence that all replicas share."""

    length: int
    replicas: int
    rank: int

    @classmethod
    def of(cls, num_replicas: int | None, rank: int | None, total: int) -> Share:
        running = torch.distributed.is_available() and torch.distributed.is_initialized()
        replicas = whole_number(num_replicas, "num_replicas", torch.distributed.get_world_size() if running else 1)
        if rank is None and not running and replicas > 1:
            raise ValueError(
                f"Expected `rank` along with num_replicas={replicas}, but got None: "
                "give each process its number, or initialise torch.distributed first."
            )
        own = torch.distributed.get_rank() if running else 0
        rank = own if rank is None else checked_int(rank, "rank")
        if not 0 <= rank < replicas:
            raise ValueError(
                f"Expected `rank` in 0..{replicas - 1}, but got {rank}: pass the `num_replicas` that it belongs to."
            )
        return cls(-(-total // replicas), replicas, rank)

    def positions(self, handed: int) -> range:
        """Where in the whole sequence this rank's items stand that come after the first `handed`."""
        return range(self.rank + handed * self.replicas, self.length * self.replicas, self.replicas)


def within(positions: range, low: int, size: int) -> slice:
    """Those of `positions` in the block of `size` that starts at `low`, counted from there."""
    ahead = positions.start - low
    return slice(ahead if ahead >= 0 else ahead % positions.step, min(positions.stop - low, size), positions.step)
