"""An endless stream of minibatches from data in any form; and the steps that take them, with a progress bar.

Stage: (x, y), a Dataset or a DataLoader → `(x, y)` on the device, at random and without replacement within an epoch; with a
third part where a minibatch has only some of the unlabelled rows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
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
Batch = tuple[Tensor, ...]  # x and labels; then unlabelled x, where a minibatch has only some of them
Data = Iterable[Any] | Dataset[Any]  # `(x, y)` as tensors or arrays, a Dataset of such pairs, or a DataLoader
Device = str | torch.device | None


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
        others: minibatches of the unlabelled rows, whose x are added to each minibatch.
    """

    def __init__(
        self,
        data: Data,
        batch_size: int | None,
        generator: torch.Generator | None = None,
        device: Device = None,
        prevalence: Prevalence | ContinuousPrevalence | None = None,
        like: nn.Module | None = None,
        others: Minibatches | None = None,
    ) -> None:
        self.generator, self.device, self.like, self.others = generator, device, like, others
        self.prevalence = prevalence if isinstance(prevalence, Prevalence) else None
        self._batches: Iterator[Any] | None = None
        self._first_pass = None if self.prevalence is None else _Mix(self.prevalence)
        self._order, self._at = torch.empty(0, 0, dtype=torch.long), 0  # a row for each member
        self.loader = _loader(data)
        if self.loader is not None:
            self.num_data, self.batch_size = _length(data), 0
            return
        if isinstance(data, Dataset):
            data = _stacked([data[row] for row in range(len(data))])  # type: ignore[arg-type]
        self.x, self.y = _pair(data, device, like)
        self.num_data = len(self.y)
        self.batch_size = len(self.y) if batch_size is None else min(checked_int(batch_size, "batch_size", 1), len(self.y))
        if self.prevalence is not None:
            check_mix(self.y, self.prevalence)
            self.num_data = int(counting(self.y).sum())

    @property
    def at_once(self) -> bool:
        """Whether every minibatch has all data."""
        return self.loader is None and self.batch_size == len(self.y) and self.others is None

    @property
    def epochs(self) -> list[float | None]:
        """The approximate number of minibatches that contain all data (None for a loader), then that of the other rows."""
        own = None if self.loader is not None else len(self.y) / self.batch_size
        return [own] if self.others is None else [own, *self.others.epochs]

    def next(self) -> Batch:
        """Return the next minibatch."""
        if self.loader is None:
            return tuple(part[0] for part in self.next_each(1))
        others = () if self.others is None else self.others.next()[:1]
        return *self._from_loader(), *others

    def next_each(self, members: int) -> Batch:
        """Return the next minibatch of each of `members`, stacked; each has its own order of the data."""
        pair: Iterable[Tensor]
        if self.loader is not None:
            pair = map(torch.stack, zip(*(self._of_one_size() for _ in range(members)), strict=True))
        elif self.batch_size == len(self.y):
            pair = (part.expand(members, *part.shape) for part in (self.x, self.y))
        else:
            pair = self._at_rows(self._next_rows(members))
        return *pair, *(() if self.others is None else self.others.next_each(members)[:1])

    def any_each(self, members: int) -> Batch:
        """Return the same with rows drawn with replacement; for a loader its next batch."""
        if self.loader is not None:
            return self.next_each(members)
        pair = self._at_rows(torch.randint(len(self.y), (members, self.batch_size), generator=self.generator))
        return *pair, *(() if self.others is None else self.others.any_each(members)[:1])

    def _next_rows(self, members: int) -> Int[Tensor, "m n"]:
        """Return the next rows of each member, without replacement; an incomplete last part of an epoch is dropped."""
        if len(self._order) != members or self._at + self.batch_size > len(self.y):
            orders = [torch.randperm(len(self.y), generator=self.generator) for _ in range(members)]
            self._order, self._at = torch.stack(orders), 0
        self._at += self.batch_size
        return self._order[:, self._at - self.batch_size : self._at]

    def _at_rows(self, index: Int[Tensor, "m n"]) -> Pair:
        return self.x[index.to(self.x.device)], self.y[index.to(self.y.device)]

    def whole(self) -> Pair:
        """Return all data."""
        if self.loader is None:
            return self.x, self.y
        x, y = _concatenated([_pair(batch, self.device, self.like) for batch in self.loader])
        if self.prevalence is not None:
            check_mix(y, self.prevalence)
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
                if self._first_pass is not None:
                    self._first_pass.add(pair[1])
                return pair
            if self._first_pass is not None:
                self._first_pass.check()
            self._batches = self._first_pass = None
        raise ValueError("Expected the loader to give batches, but got none: is the data set smaller than one batch?")


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


class _Mix:
    """The class frequencies of labels, which must be `prevalence.sampling`."""

    def __init__(self, prevalence: Prevalence) -> None:
        self.prevalence, self.examples, self.total = prevalence, 0, np.zeros(prevalence.num_classes)

    def add(self, y: Tensor) -> None:
        """Count some labels."""
        examples = int(counting(y).sum())
        self.total += examples * _mix_of(y, self.prevalence)
        self.examples += examples

    def check(self) -> None:
        """Raise a ValueError if the mix cannot be due to chance."""
        rho, found = self.prevalence.sampling, self.total / max(self.examples, 1)
        error = np.sqrt(rho * (1 - rho) / max(self.examples, 1))
        never = (rho == 0) & (found > 0)
        if self.examples and ((np.abs(found - rho) > 5 * error + 1.5 / self.examples) | never).any():
            raise ValueError(
                f"Expected labels in the mix `prevalence.sampling`, {np.round(rho, 4).tolist()}, but got "
                f"{np.round(found, 4).tolist()}: write Prevalence.from_labels(y, population=…), or take a DataLoader that "
                "rebalances and its sampler's prevalence."
            )


def check_mix(y: Tensor, prevalence: Prevalence) -> None:
    """Raise a ValueError if the labels' mix cannot be due to chance: ρ is wrong, and every prediction would be.

    The cells of one dense map are not independent, so the test uses whole examples.
    """
    mix = _Mix(prevalence)
    mix.add(y)
    mix.check()


def _mix_of(y: Tensor, prevalence: Prevalence) -> np.ndarray:
    """Return the mix (K,) of the labels that are not ignored."""
    if y.is_floating_point() and y.ndim > 1:
        votes = y.movedim(1, -1).flatten(0, -2)
        return class_frequencies(votes[(votes != 0).any(1)], prevalence.num_classes)
    return class_frequencies(y, prevalence.num_classes, ignore_index=-100)


def counting(y: Tensor) -> Bool[Tensor, " n"]:
    """Return which examples have a label, or votes, that are not ignored."""
    return ((y != 0) if y.is_floating_point() else (y != -100)).reshape(len(y), -1).any(1)


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
    pool: Any, unlabelled: Any, weight: Any, batch_size: int | None, criterion: Any, model: nn.Module, marginal: Any
) -> tuple[Pool | None, Tensor | None]:
    """Return the pool and the unlabelled rows of `log_posterior`; if r = π, the latter *are* the pool."""
    x = _checked_unlabelled(unlabelled, weight, criterion, model)
    if x is None:
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
        return None, x
    if marginal is not None or batch_size is not None:
        name = "unlabelled_batch_size" if marginal is None else "marginal"
        raise ValueError(
            f"Expected no `{name}` with unlabelled rows and r = π, but got one: p(y|w) is exact over all rows in each "
            "evaluation. If that takes too long, give fewer of them, or marginal=PoolMarginal(…) instead of `unlabelled`."
        )
    return (x, None), None


def _checked_unlabelled(unlabelled: Any, weight: Any, criterion: Any, model: nn.Module) -> Tensor | None:
    """Return the rows; None if there are none with a positive weight."""
    check_unlabelled_weight(weight)
    if unlabelled is None:
        return None
    check_takes_unlabelled(criterion, isinstance(criterion, InformationGainLoss | LogitAdjustedLoss))
    x = _as_tensor(unlabelled, model, "unlabelled")
    if x.ndim < 1:
        raise ValueError("Expected `unlabelled` to be inputs, a row for each person, but got a number: pass x_unlabelled.")
    return None if usable(PopulationRows(x, weight), criterion.prevalence, None) is None else x


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
    """Return an iterator over 0 … total − 1, with a progress bar on stderr: on request, or if stderr is a terminal.

    Without `rich` there is no bar; if one was requested, an ImportError is raised.
    """
    if progress is False or (progress is None and not sys.stderr.isatty()):
        return iter(range(total))
    try:
        from rich.console import Console
        from rich.progress import track
    except ImportError as error:
        if progress:
            raise ImportError(f"A progress bar needs rich: progress=False, or {install('bayes')}.") from error
        return iter(range(total))
    return iter(track(range(total), label, console=Console(stderr=True), transient=progress is None))
