"""Draws with replacement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed
from jaxtyping import Float64
from torch import Tensor
from torch.utils.data import Sampler

from ..prevalence import Prevalence
from .checks import checked_labels, checked_prevalence, realised, whole_number
from .epochs import Epochs, Share, within

# Randomness is drawn in whole blocks, so that a sequence does not depend on its length, nor on the number of replicas.
_DRAWS_PER_BLOCK = 2**16


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
            `num_samples` or `num_replicas` below 1; `rank` missing or out of range; a `generator` that is no
            torch.Generator, or a number that is no int.
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
        labels = checked_labels(labels, checked_prevalence(prevalence).num_classes)
        rates, sampling = _example_rates(labels, prevalence.sampling)
        self._prevalence = realised(prevalence, sampling)
        self._cumulative = rates.cumsum(0)
        self._share = Share.of(num_replicas, rank, whole_number(num_samples, "num_samples", len(labels)))
        self._epochs = Epochs(generator, self._share, {"labels": len(labels)}, self.sampling)

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
        mine = uniform[within(positions, low, _DRAWS_PER_BLOCK)] * cumulative[-1]
        yield from torch.searchsorted(cumulative, mine, right=True).tolist()
