"""An endless stream of minibatches from data in any form; and the steps that take them, with a progress bar.

Stage: (x, y), a Dataset or a DataLoader → `(x, y)` on the device, at random and without replacement within an epoch; with some
of the unlabelled rows as a third part, if these are in minibatches as well.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, SubsetRandomSampler

from ..arrays import checked_int
from ..extras import install
from ..losses import InformationGainLoss, LogitAdjustedLoss
from ..losses.functional import check_unlabelled, usable
from ..losses.streams import PopulationRows, check_stream_marginal, check_takes_unlabelled, check_unlabelled_weight
from ..marginals.pool import Pool
from ..prevalence import ContinuousPrevalence, Prevalence, class_frequencies
from ..tensors import as_input, ordinary, tensor_of

Pair = tuple[Tensor, Tensor]
Batch = tuple[Any, ...]  # x and labels, and unlabelled x where a minibatch has some
Data = Iterable[Any] | Dataset[Any]  # `(x, y)` as tensors or arrays, a Dataset of such pairs, or a DataLoader
Device = str | torch.device | None


@dataclass(frozen=True, eq=False)
class UnlabelledRows:
    """Unlabelled rows of the population: one more stream of the likelihood, defined in rightloss.losses.streams.

    Attributes:
        x: the model's input.
        weight: the given λ; None if each counts once.
        batch_size: number of unlabelled rows per minibatch; None for all.
    """

    x: Tensor
    weight: float | None = None
    batch_size: int | None = None

    def mass(self, num_data: int) -> float:
        """Return λ, their weight relative to N labelled examples."""
        return len(self.x) / num_data if self.weight is None else self.weight


class Minibatches:
    """Minibatches of one data set.

    Args:
        data: `(x, y)` as tensors or arrays; a Dataset of such pairs; or a DataLoader (or any other iterable that can be
            repeated) that yields batches of them, with its own sampler and batch size. A Dataset is read once into memory: if
            it is too large, or has random transforms, give a DataLoader.
        batch_size: examples per batch; None for all of them. A smaller last batch of an epoch is dropped.
        generator: for the order.
        device: the device of the batches; None does not move them.
        prevalence: if given, the labels must have its `sampling`, within chance; for a loader over its first pass.
        like: the model; arrays become tensors of its dtype, on its device. Without it, float64 becomes torch's default dtype.
            Tensors are not changed.
        unlabelled: some of these rows are added to each minibatch, unless it has all data, or they have no `batch_size`.
    """

    def __init__(
        self,
        data: Data,
        batch_size: int | None,
        generator: torch.Generator | None = None,
        device: Device = None,
        prevalence: Prevalence | ContinuousPrevalence | None = None,
        like: nn.Module | None = None,
        unlabelled: UnlabelledRows | None = None,
    ) -> None:
        self.generator, self.device, self.like = generator, device, like
        self.others = None if batch_size is None else _in_parts(unlabelled, generator, device)
        self._batches: Iterator[Any] | None = None
        self.loader = _loader(data)
        if self.loader is not None:
            self.num_data, self.batch_size = _length(data), 0
            self._mix = _LoaderMix(prevalence) if isinstance(prevalence, Prevalence) else None
            return
        if isinstance(data, Dataset):
            data = _stacked([data[row] for row in range(len(data))])  # type: ignore[arg-type]
        self.x, self.y = _pair(data, device, like)
        self.num_data = len(self.y)
        self.batch_size = len(self.y) if batch_size is None else min(checked_int(batch_size, "batch_size", 1), len(self.y))
        if isinstance(prevalence, Prevalence):
            check_mix(self.y, prevalence)
            self.num_data = int(counting(self.y).sum())
        self.rows = _Rows((self.x, self.y), self.batch_size, generator)

    @property
    def at_once(self) -> bool:
        """Whether every minibatch has all data."""
        return self.loader is None and self.batch_size == len(self.y) and self.others is None

    def next(self) -> Batch:
        """Return the next minibatch."""
        if self.loader is not None:
            pair = self._from_loader()
        elif self.batch_size == len(self.y):
            pair = self.x, self.y
        else:
            pair = tuple(part[0] for part in self.rows.next(1))  # type: ignore[assignment]
        return pair if self.others is None else (*pair, self.others.next(1)[0][0])

    def next_each(self, members: int) -> Batch:
        """Return the next minibatch of each of `members`, stacked; each has its own order of the data."""
        if self.loader is not None:
            pair = [torch.stack(part) for part in zip(*(self._of_one_size() for _ in range(members)), strict=True)]
        elif self.batch_size == len(self.y):
            pair = [each.expand(members, *each.shape) for each in (self.x, self.y)]
        else:
            pair = self.rows.next(members)
        return (*pair, *([] if self.others is None else self.others.next(members)))

    def any_each(self, members: int) -> Batch:
        """Return the same with rows drawn with replacement; for a loader its next batch."""
        if self.loader is not None:
            return self.next_each(members)
        return (*self.rows.any(members), *([] if self.others is None else self.others.any(members)))

    @property
    def epoch(self) -> float | tuple[float | None, float] | None:
        """Return the approximate number of minibatches per epoch, also of unlabelled rows if in parts; None for a loader."""
        own = None if self.loader is not None else self.rows.epoch
        return own if self.others is None else (own, self.others.epoch)

    def whole(self) -> Pair:
        """Return all data."""
        if self.loader is None:
            return self.x, self.y
        x, y = _concatenated([_pair(batch, self.device, self.like) for batch in self.loader])
        if self._mix is not None:
            check_mix(y, self._mix.prevalence)
        return x, y

    def few(self) -> Tensor:
        """Return inputs of two examples, to test a model."""
        if self.loader is None:
            return self.x[:2]
        for batch in self.loader:
            return _pair(batch, self.device, self.like)[0][:2]
        return self._from_loader()[0]  # which raises the error

    def _of_one_size(self) -> Pair:
        """Return the loader's next batch that has as many examples as its first one."""
        for _ in range(1000):
            batch = self._from_loader()
            self.batch_size = self.batch_size or len(batch[1])
            if len(batch[1]) == self.batch_size:
                return batch
        raise ValueError("Expected the loader's batches to have one size, but got many: set drop_last=True.")

    def _from_loader(self) -> Pair:
        assert self.loader is not None
        for _ in range(2):
            self._batches = iter(self.loader) if self._batches is None else self._batches
            for batch in self._batches:
                pair = _pair(batch, self.device, self.like)
                if self._mix is not None:
                    self._mix.add(pair[1])
                return pair
            self._batches = None
            if self._mix is not None:
                self._mix.check()
        raise ValueError("Expected the loader to give batches, but got none: is the data set smaller than one batch?")


class _Rows:
    """Tensors of equal length, some rows at a time; each of several members has its own order."""

    def __init__(self, parts: tuple[Tensor, ...], size: int, generator: torch.Generator | None) -> None:
        self.parts, self.size, self.generator, self.number = parts, size, generator, len(parts[0])
        self._order, self._at = torch.empty(0, 0, dtype=torch.long), 0  # a row for each member

    @property
    def epoch(self) -> float:
        """The approximate number of minibatches that contain all rows."""
        return self.number / self.size

    def next(self, members: int) -> list[Tensor]:
        """Return the next `size` of each member, without replacement; an incomplete last part of an epoch is dropped."""
        if len(self._order) != members or self._at + self.size > self.number:
            orders = [torch.randperm(self.number, generator=self.generator) for _ in range(members)]
            self._order, self._at = torch.stack(orders), 0
        self._at += self.size
        return self._at_rows(self._order[:, self._at - self.size : self._at])

    def any(self, members: int) -> list[Tensor]:
        """Return the same number, drawn with replacement."""
        return self._at_rows(torch.randint(self.number, (members, self.size), generator=self.generator))

    def _at_rows(self, index: Int[Tensor, "m n"]) -> list[Tensor]:
        return [part[index.to(part.device)] for part in self.parts]


def _in_parts(unlabelled: UnlabelledRows | None, generator: torch.Generator | None, device: Device) -> _Rows | None:
    """Return the rows in parts; None if there are none, or if every step uses all."""
    if unlabelled is None or unlabelled.batch_size is None or unlabelled.batch_size >= len(unlabelled.x):
        return None
    x = unlabelled.x if device is None else unlabelled.x.to(device)
    return _Rows((x,), unlabelled.batch_size, generator)


def _loader(data: Data) -> Iterable[Any] | None:
    """Return `data` if it yields batches; None if it has examples."""
    if isinstance(data, list) and data and all(_is_batch(each) for each in data):
        return data
    if isinstance(data, tuple | list) or (isinstance(data, Dataset) and not isinstance(data, IterableDataset)):
        return None
    if not isinstance(data, Iterable) or isinstance(data, Iterator | Tensor | np.ndarray | IterableDataset):
        raise ValueError(
            f"Expected data as (x, y), a Dataset or a DataLoader, but got {type(data).__name__}: an iterator can be used only "
            "once, and an IterableDataset needs a DataLoader."
        )
    return data


def _is_batch(each: object) -> bool:
    return isinstance(each, tuple | list) and len(each) == 2 and all(isinstance(part, Tensor | np.ndarray) for part in each)


def _pair(data: Any, device: Device, like: nn.Module | None) -> Pair:
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise ValueError(f"Expected pairs (x, y), but got {type(data).__name__} of {_count(data)}: give inputs and labels.")
    x, y = data
    x, given = _inputs(x, like), tensor_of(y, "target")
    y = given if isinstance(y, Tensor) else given.to(x.device)
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y) or len(y) == 0:
        shapes = f"{tuple(x.shape)} and {tuple(y.shape)}"
        raise ValueError(f"Expected as many inputs as labels, at least one, but got shapes {shapes}: is one cut off?")
    x, y = ordinary(x), ordinary(y)
    return (x, y) if device is None else (x.to(device), y.to(device))


def _inputs(x: Any, like: nn.Module | None) -> Tensor:
    if isinstance(x, Tensor):
        return x
    tensor = tensor_of(x, "x")
    if like is not None:
        result: Tensor = as_input(tensor.numpy(), like, torch.empty(0))
        return result
    return tensor.to(torch.get_default_dtype()) if tensor.dtype == torch.float64 else tensor


class _LoaderMix:
    """The class frequencies of a loader's labels over its first pass."""

    def __init__(self, prevalence: Prevalence) -> None:
        self.prevalence, self.done, self.examples = prevalence, False, 0
        self.total = np.zeros(prevalence.num_classes)

    def add(self, y: Tensor) -> None:
        """Count one more batch."""
        if not self.done:
            mix, examples = _mix_of(y, self.prevalence), int(counting(y).sum())
            self.total += examples * mix
            self.examples += examples

    def check(self) -> None:
        """Raise a ValueError at the end of the pass, if the mix cannot be due to chance."""
        if not self.done and self.examples:
            _check_chance(self.total / self.examples, self.examples, self.prevalence)
        self.done = True


def check_mix(y: Tensor, prevalence: Prevalence) -> None:
    """Raise a ValueError if the labels' mix cannot be due to chance: ρ is wrong, and every prediction would be.

    The cells of one dense map are not independent, so the test uses whole examples.
    """
    _check_chance(_mix_of(y, prevalence), int(counting(y).sum()), prevalence)


def _check_chance(found: np.ndarray, examples: int, prevalence: Prevalence) -> None:
    rho = prevalence.sampling
    error = np.sqrt(rho * (1 - rho) / examples)
    never = (rho == 0) & (found > 0)
    if ((np.abs(found - rho) > 5 * error + 1.5 / examples) | never).any():
        raise ValueError(
            f"Expected labels in the mix `prevalence.sampling`, {_rounded(rho)}, but got {_rounded(found)}: "
            "write Prevalence.from_labels(y, population=…), or take a DataLoader that rebalances and its sampler's prevalence."
        )


def _mix_of(y: Tensor, prevalence: Prevalence) -> np.ndarray:
    """Return the mix (K,) of the labels that are not ignored."""
    if y.is_floating_point() and y.ndim > 1:
        votes = y.movedim(1, -1).flatten(0, -2)
        return class_frequencies(votes[(votes != 0).any(1)], prevalence.num_classes)
    return class_frequencies(y, prevalence.num_classes, ignore_index=-100)


def counting(y: Tensor) -> Bool[Tensor, " n"]:
    """Return which examples have a label, or votes, that are not ignored."""
    return ((y != 0) if y.is_floating_point() else (y != -100)).reshape(len(y), -1).any(1)


def _rounded(mix: np.ndarray) -> list[float]:
    return [round(value, 4) for value in mix.tolist()]


def _stacked(pairs: list[Any]) -> tuple[Any, Any]:
    """Return stacked inputs and labels of examples; arrays stay arrays."""
    if not pairs:
        raise ValueError("Expected at least one example, but the data set is empty: is its folder right?")
    if any(not isinstance(each, tuple | list) or len(each) != 2 for each in pairs):
        kind = type(pairs[0]).__name__
        raise ValueError(f"Expected a data set of pairs (x, y), but got {kind}: give inputs and labels alone.")
    x, y = zip(*pairs, strict=True)
    return tuple(torch.stack(each) if isinstance(each[0], Tensor) else np.stack(each) for each in (x, y))  # type: ignore[return-value]


def _concatenated(batches: list[Pair]) -> Pair:
    if not batches:
        raise ValueError("Expected the loader to give batches, but got none: is it a used-up iterator?")
    return torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])


def _length(loader: Any) -> int | None:
    data, sampler = getattr(loader, "dataset", None), getattr(loader, "sampler", None)
    if isinstance(sampler, SubsetRandomSampler):
        return len(sampler)
    return None if data is None or isinstance(data, IterableDataset) else len(data)


def _count(data: object) -> str:
    return f"{len(data)} parts" if isinstance(data, tuple | list) else "no parts"


def checked_rows(
    pool: Any, unlabelled: Any, weight: Any, batch_size: Any, criterion: Any, model: nn.Module, marginal: Any
) -> tuple[Pool | None, UnlabelledRows | None]:
    """Return the pool, and the unlabelled rows; if r = π these *are* the pool.

    Args:
        pool: the argument of `log_posterior`, like the following ones.
        unlabelled: x.
        weight: λ.
        batch_size: of the unlabelled rows.
        criterion: the loss.
        model: for which arrays become tensors.
        marginal: as given.
    """
    rows = _checked_unlabelled(unlabelled, weight, batch_size, criterion, model)
    if rows is None:
        found = None if pool is None else _checked_pool(pool, criterion, model)
        if found is None or found[1] is not None:
            usable(None, criterion.prevalence, None)  # raises the error if a class is never labelled
        return found, None
    if pool is not None:
        raise ValueError(
            "Expected one of `pool` and `unlabelled`, but got both: where r = π the unlabelled rows are the pool, and "
            "elsewhere p(y|w) is that of labelled and unlabelled rows together."
        )
    if not isinstance(criterion, InformationGainLoss) or not criterion.terms(torch.empty(0)).at_population:
        check_stream_marginal(marginal)
        return None, rows
    if marginal is not None or rows.batch_size is not None:
        name = "unlabelled_batch_size" if marginal is None else "marginal"
        raise ValueError(
            f"Expected no `{name}` with unlabelled rows and r = π, but got one: p(y|w) is exact over all rows in each "
            "evaluation. If that takes too long, give fewer of them, or marginal=PoolMarginal(…) instead of `unlabelled`."
        )
    return (rows.x, None), None


def _checked_unlabelled(
    unlabelled: Any, weight: Any, batch_size: Any, criterion: Any, model: nn.Module
) -> UnlabelledRows | None:
    """Return the rows; None if there are none with a positive weight."""
    check_unlabelled_weight(weight)
    size = None if batch_size is None else checked_int(batch_size, "unlabelled_batch_size", 1)
    if unlabelled is None:
        return None
    check_takes_unlabelled(criterion, isinstance(criterion, InformationGainLoss | LogitAdjustedLoss))
    x = _as_tensor(unlabelled, model, "unlabelled")
    if x.ndim < 1:
        raise ValueError("Expected `unlabelled` to be inputs, a row for each person, but got a number: pass x_unlabelled.")
    found = usable(PopulationRows(x, weight), criterion.prevalence, None)
    return None if found is None else UnlabelledRows(x, weight, None if size is None else min(size, len(x)))


def _checked_pool(pool: Any, criterion: Any, model: nn.Module) -> Pool:
    if not isinstance(criterion.prevalence, Prevalence):
        raise ValueError("Expected classes for `pool`, but the likelihood is a density: use marginal=PoolMarginal(…).")
    x, y = pool if isinstance(pool, tuple | list) and len(pool) == 2 else (pool, None)
    x = _as_tensor(x, model, "pool")
    if y is None:
        check_unlabelled(criterion.terms(torch.empty(0)))
        return x, None
    y = ordinary(tensor_of(y, "target")).to(x.device)
    if len(x) != len(y):
        raise ValueError(f"Expected as many inputs as labels in `pool`, but got {len(x)} and {len(y)}: is one cut off?")
    check_mix(y, criterion.prevalence)
    return x, y


def _as_tensor(x: Any, model: nn.Module, name: str) -> Tensor:
    result: Tensor = ordinary(tensor_of(as_input(x, model, torch.empty(0)), name))
    return result


def steps_of(total: int, label: str, progress: bool | None) -> Iterator[int]:
    """Yield 0 … total − 1, with a progress bar on stderr: on request, or if stderr is a terminal.

    Without `rich` there is no bar; if one was requested, an ImportError is raised.
    """
    if progress is False or (progress is None and not sys.stderr.isatty()):
        yield from range(total)
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError as error:
        if progress:
            raise ImportError(f"A progress bar needs rich: progress=False, or {install('bayes')}.") from error
        yield from range(total)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=progress is None) as bar:
        task = bar.add_task(label, total=total)
        for step in range(total):
            yield step
            bar.advance(task)
