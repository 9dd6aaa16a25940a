"""Labelled and unlabelled examples in one minibatch: a batch sampler, its dataset, and a function that splits the outputs.

Stage: labelled examples at chosen rates, a pool of unlabelled ones → batches of both → outputs of each.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from ..arrays import Numbers
from ..prevalence import Prevalence
from ..tensors import tensor_of
from .samplers import (
    BATCHES_PER_BLOCK,
    Deck,
    Draws,
    DrawsByRate,
    ResumableSampler,
    StratifiedDraws,
    checked_labels,
    whole_number,
)


class SemiSupervisedBatchSampler(ResumableSampler[list[int]]):
    """Draw batches of labelled and unlabelled examples: `DataLoader(SemiSupervisedDataset(…), batch_sampler=…)`.

    Each batch is a list of `batch_size` indices of labelled examples, then `unlabelled_batch_size` of unlabelled ones, whose
    indices start at `len(labels)`.

    The labelled ones are the same as those of `StratifiedBatchSampler` with a generator in the same state: each class has a
    fixed count. For soft votes, and if a batch is too small for one of each class, they are drawn with replacement, as in
    `RebalancedSampler`. The unlabelled ones are in random order, reshuffled after all were used and at the start of each
    epoch. No batch has one twice, unless it needs more than there are.

    With several replicas, all compute the same sequence, and rank r takes batches r, r + R, r + 2R, … Do not shard it again
    (Lightning: `use_distributed_sampler=False`).

    Args:
        labels: labels of the labelled examples: int `(n,)`, or soft votes, float `(n, k)` with rows that sum to 1.
        num_unlabelled: number of unlabelled examples.
        prevalence: its `sampling` is the rate of each class. A class of rate 0 (`Prevalence.positive_unlabelled`) has no
            labelled example.
        batch_size: labelled examples per batch.
        unlabelled_batch_size: unlabelled examples per batch. `None` means `batch_size`.
        num_batches: batches per epoch, of all replicas together; padded up to a multiple of `num_replicas`. `None` means as
            many as are needed for n labelled examples and every unlabelled one.
        generator: as in `RebalancedSampler`.
        num_replicas: as in `RebalancedSampler`.
        rank: as in `RebalancedSampler`.

    Raises:
        ValueError: `num_unlabelled`, `batch_size` or `unlabelled_batch_size` below 1; labels of a class of rate 0; and as in
            `RebalancedSampler`.

    Examples:
        >>> import torch
        >>> import rightloss as rl
        >>> labels = torch.tensor([0] * 30 + [1] * 10)
        >>> sampler = rl.SemiSupervisedBatchSampler(labels, 500, rl.Prevalence.binary(0.01), batch_size=8)
        >>> batch = next(iter(sampler))
        >>> labels[batch[:8]].bincount().tolist()  # of each class
        [4, 4]
        >>> len(batch), min(batch[8:]) >= 40  # 8 more, which have no label
        (16, True)
        >>> len(sampler)  # until all 500 were used
        63
    """

    def __init__(
        self,
        labels: Numbers,
        num_unlabelled: int,
        prevalence: Prevalence,
        batch_size: int,
        unlabelled_batch_size: int | None = None,
        num_batches: int | None = None,
        generator: torch.Generator | None = None,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        given = checked_labels(labels, prevalence)
        pool = whole_number(num_unlabelled, "num_unlabelled")
        batch_size = whole_number(batch_size, "batch_size")
        beside = whole_number(unlabelled_batch_size, "unlabelled_batch_size", batch_size)
        total = whole_number(num_batches, "num_batches", max(-(-len(given) // batch_size), -(-pool // beside)))
        draws = _DrawsOfBoth(_labelled_draws(given, prevalence, batch_size), range(len(given), len(given) + pool), beside)
        sizes = {"labels": len(given), "unlabelled": pool, "batch_size": batch_size, "unlabelled_batch_size": beside}
        self._set_up(prevalence, draws, total, generator, num_replicas, rank, **sizes)


@runtime_checkable
class MapDataset(Protocol):
    """A dataset with a length and access by index: any but torch's `IterableDataset`; also a tensor."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class SemiSupervisedDataset(Dataset[tuple[Any, Any]]):
    """Concatenate labelled and unlabelled examples, as items `(x, y)` for torch's default collate function.

    The y of an unlabelled example has the shape and type of the first labelled one, filled with `ignore_index`, or with zeros
    if labels are soft votes, `(k,)` or dense `(k, h, w, …)`. The losses ignore both, and `split_unlabelled` recognises them.

    Args:
        labelled: its items are tuples `(x, y)`.
        unlabelled: its items are x, or tuples `(x, …)`, of which only x is used; so a dataset with labels is accepted.
        ignore_index: the int label that means "no label".

    Raises:
        ValueError: if a dataset is empty or has no length; on access to an item, if labelled items are not pairs, or labels
            are neither ints nor votes, or their dtype cannot hold `ignore_index`.

    Examples:
        >>> import torch
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> import rightloss as rl
        >>> labelled = TensorDataset(torch.zeros(4, 3), torch.tensor([0, 0, 1, 1]))
        >>> dataset = rl.SemiSupervisedDataset(labelled, torch.ones(100, 3))
        >>> sampler = rl.SemiSupervisedBatchSampler([0, 0, 1, 1], 100, rl.Prevalence.binary(0.01), batch_size=2)
        >>> x, y = next(iter(DataLoader(dataset, batch_sampler=sampler)))
        >>> x.shape, sorted(y.tolist())
        (torch.Size([4, 3]), [-100, -100, 0, 1])
    """

    def __init__(self, labelled: MapDataset, unlabelled: MapDataset, ignore_index: int = -100) -> None:
        self.labelled = _checked_dataset(labelled, "labelled")
        self.unlabelled = _checked_dataset(unlabelled, "unlabelled")
        self.ignore_index = whole_number(ignore_index, "ignore_index", least=-(2**63))

    def __len__(self) -> int:
        """Return the number of examples, labelled and unlabelled."""
        return len(self.labelled) + len(self.unlabelled)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """Return `(x, y)`; indices from the number of labelled examples on are unlabelled ones."""
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(f"index {index} is out of range for {len(self)} examples")
        if place < len(self.labelled):
            return self._pair(place)
        item = self.unlabelled[place - len(self.labelled)]
        return item[0] if isinstance(item, tuple) else item, deepcopy(self._no_label)

    def _pair(self, place: int) -> tuple[Any, Any]:
        item = self.labelled[place]
        if not isinstance(item, tuple) or len(item) != 2:
            size = f" of length {len(item)}" if isinstance(item, tuple) else ""
            came = f"{type(item).__name__}{size}: return such pairs from its `__getitem__`, or wrap tensors in a TensorDataset"
            raise ValueError(f"Expected items of `labelled` to be tuples (x, y), but got {came}.")
        return item

    @cached_property
    def _no_label(self) -> Any:
        # Not in the constructor: a dataset may open files with its first item, which must happen in the worker process.
        return _like_without_label(self._pair(0)[1], self.ignore_index)


def split_unlabelled(
    outputs: Shaped[Tensor, "n ..."], target: Shaped[Tensor, "n ..."], ignore_index: int = -100
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the outputs of the labelled rows, their targets, and the outputs of the unlabelled rows, in the given order.

    Use one forward pass for both: with batch norm they must share a batch. A row is unlabelled if its target is
    `ignore_index`, or zeros for soft votes; a dense target must be so everywhere.

    On an accelerator the host waits here to count the rows. For batches of `SemiSupervisedBatchSampler`, slicing at
    `batch_size` gives the same result without waiting.

    Args:
        outputs: the model's outputs for the whole batch.
        target: int labels `(n,)`, dense `(n, h, w, …)`, or soft votes, float `(n, k)` or `(n, k, h, w, …)`.
        ignore_index: the int label that means "no label".

    Raises:
        ValueError: if the arguments are not tensors, or not one row of outputs per target, or class numbers are floats.

    Examples:
        >>> import torch
        >>> import rightloss as rl
        >>> logits, y = torch.arange(8.0).view(4, 2), torch.tensor([1, 0, -100, -100])
        >>> labelled, y, unlabelled = rl.split_unlabelled(logits, y)
        >>> labelled.tolist(), y.tolist(), unlabelled.tolist()
        ([[0.0, 1.0], [2.0, 3.0]], [1, 0], [[4.0, 5.0], [6.0, 7.0]])
    """
    _check_rows(outputs, target)
    ignore_index = whole_number(ignore_index, "ignore_index", least=-(2**63))
    # In int64, because -100 would be 156 in uint8.
    empty = target == 0 if target.is_floating_point() else target.long() == ignore_index
    unlabelled = empty.unsqueeze(-1).flatten(1).all(1)
    order = unlabelled.to(torch.int8).argsort(stable=True)
    count = len(target) - int(unlabelled.sum())
    rows = outputs[order.to(outputs.device)]
    return rows[:count], target[order[:count]], rows[count:]


class _DrawsOfBoth:
    """Batches of labelled examples followed by unlabelled ones, drawn from a pool without replacement."""

    block = BATCHES_PER_BLOCK

    def __init__(self, labelled: Draws, pool: range, count: int) -> None:
        assert labelled.block == self.block
        self.sampling, self._labelled, self._pool, self._count = labelled.sampling, labelled, pool, count

    def dealer(self, seed: int) -> Callable[[slice], Tensor]:
        """Return the function that generates blocks of batches; the unlabelled have their own seed."""
        first = torch.Generator("cpu").manual_seed(seed)
        own = int(torch.randint(2**63 - 1, (), generator=first, device="cpu"))
        cards = torch.arange(self._pool.start, self._pool.stop, device="cpu")
        labelled, deck = self._labelled.dealer(seed), Deck(cards, self._count, torch.Generator("cpu").manual_seed(own))

        def deal(wanted: slice) -> Int64[Tensor, "items batch"]:
            return torch.cat([labelled(wanted), deck.deal(self.block)[wanted]], 1)

        return deal


def _labelled_draws(labels: Tensor, prevalence: Prevalence, batch_size: int) -> Draws:
    """Return batches with fixed counts, if labels are ints and each class fits into a batch; else draws by rate."""
    rho = tensor_of(prevalence.sampling)
    if labels.is_floating_point() or batch_size < int((rho > 0).sum()):
        return DrawsByRate(labels, rho, BATCHES_PER_BLOCK, batch_size)
    return StratifiedDraws(labels, rho, batch_size)


def _checked_dataset(data: Any, name: str) -> MapDataset:
    if isinstance(data, IterableDataset) or not isinstance(data, MapDataset):
        came = f"{type(data).__name__}: examples are drawn by index, so read a stream into a list or a file first"
        raise ValueError(f"Expected `{name}` to be a dataset with `__len__` and `__getitem__`, but got {came}.")
    if len(data) == 0:
        raise ValueError(f"Expected at least one {name} example, but got none: is the path or the filter right?")
    return data


def _like_without_label(label: Any, ignore_index: int) -> Any:
    """Return the "no label" value for labels like this one: `ignore_index` everywhere, or zeros for soft votes."""
    if isinstance(label, int) and not isinstance(label, bool):
        return ignore_index
    if not isinstance(label, Tensor | np.ndarray | np.generic):
        raise _wrong_label(type(label).__name__)
    kind, of = tensor_of(label, "labels"), f"{label.dtype} of shape {tuple(label.shape)}"
    if kind.is_floating_point():
        _check_votes(kind, of)
        return torch.zeros_like(label) if isinstance(label, Tensor) else np.zeros_like(label)
    if kind.is_complex() or kind.dtype == torch.bool:
        raise _wrong_label(of)
    holds = torch.iinfo(kind.dtype)
    if not holds.min <= ignore_index <= holds.max:
        remedy = f"convert them to int64, or choose an index in {holds.min}..{holds.max} that is no class"
        raise ValueError(f"Expected labels of a dtype that holds `ignore_index`, {ignore_index}, but got {of}: {remedy}.")
    return torch.full_like(label, ignore_index) if isinstance(label, Tensor) else np.full_like(label, ignore_index)[()]


def _check_votes(votes: Float[Tensor, ...], of: str) -> None:
    """Raise a ValueError for floats that are not votes: class numbers as floats, or multi-label targets."""
    sums = votes.double().sum(0) if votes.ndim else torch.tensor(2.0)
    if not bool(((sums == 0) | ((sums - 1).abs() < 1e-2)).all()):
        raise _wrong_label(of)


def _wrong_label(got: str) -> ValueError:
    return ValueError(
        f"Expected labels to be ints, int tensors or arrays, or soft votes whose classes sum to 1, but got {got}: "
        "number the classes from 0, and convert class numbers to int64."
    )


def _check_rows(outputs: object, target: object) -> None:
    for name, value in (("outputs", outputs), ("target", target)):
        if not isinstance(value, Tensor):
            remedy = "call this function for each output separately"
            raise ValueError(f"Expected `{name}` to be a tensor, but got {type(value).__name__}: {remedy}.")
    assert isinstance(outputs, Tensor)
    assert isinstance(target, Tensor)
    if outputs.ndim == 0 or target.ndim == 0 or len(outputs) != len(target):
        came = f"shapes {tuple(outputs.shape)} and {tuple(target.shape)}"
        raise ValueError(f"Expected a row of outputs per target, but got {came}: give both for the same batch, examples first.")
    if target.ndim == 1 and target.is_floating_point():
        came = f"{target.dtype} of shape {tuple(target.shape)}: call `target.long()` on class numbers"
        raise ValueError(f"Expected int labels, or soft votes with a column per class, but got {came}.")
