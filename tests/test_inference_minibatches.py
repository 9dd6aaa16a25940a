"""Data as users give them, as minibatches; and steps that are shown, stopped and left no trace of."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from members import assert_mean_is, assert_refused, generator
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, SubsetRandomSampler, TensorDataset

from rightloss import ContinuousPrevalence, Prevalence, RebalancedSampler
from rightloss.inference.minibatches import Minibatches, steps_of

X, Y = torch.arange(12.0)[:, None], torch.arange(12) % 2  # x says which example it is


def seen(batches: Minibatches, steps: int) -> list[list[int]]:
    """Which examples come in each of the next steps; labels are theirs."""
    found = []
    for _ in range(steps):
        x, y = batches.next()
        torch.testing.assert_close(y, x[:, 0].long() % 2)
        found.append(x[:, 0].long().tolist())
    return found


@pytest.mark.parametrize("size", [1, 5, 12])
def test_an_epoch_has_each_example_at_most_once_and_all_where_batches_fill_it(size: int) -> None:
    batches, per_epoch = Minibatches((X, Y), size, generator(1)), 12 // size
    for _ in range(3):
        epoch = list(chain(*seen(batches, per_epoch)))
        assert len(set(epoch)) == len(epoch) == per_epoch * size
    assert batches.epochs == [12 / size]


@pytest.mark.long
def test_every_example_comes_equally_often_to_members_with_orders_of_their_own() -> None:
    """Each one's epoch has every example once, and which one a member sees says nothing of what another sees."""
    counts = [torch.bincount(torch.tensor(rows), minlength=12) for rows in seen(Minibatches((X, Y), 5, generator(2)), 2000)]
    assert_mean_is(torch.stack(counts).double(), 5 / 12)
    batches = Minibatches((X, Y), 4, generator(3))
    x, y = (torch.stack(parts) for parts in zip(*(batches.next_each(3) for _ in range(900)), strict=True))
    torch.testing.assert_close(y, x[..., 0].long() % 2)
    epochs = x[..., 0].long().reshape(300, 3, 3, 4).movedim(1, 2).flatten(2)  # epoch, member, example
    assert bool((epochs.sort(-1).values == torch.arange(12)).all())
    firsts = epochs[:, :, 0]
    assert_mean_is((firsts[:, 0] == firsts[:, 1]).double(), 1 / 12)
    assert_mean_is((firsts[:, 0] == firsts[:, 2]).double(), 1 / 12)


def test_without_a_batch_size_every_step_has_all_data() -> None:
    for size in (None, 12, 100):
        batches = Minibatches((X, Y), size, generator(1))
        assert batches.at_once
        assert seen(batches, 2) == [list(range(12))] * 2
        assert [each.shape for each in batches.next_each(3)] == [(3, 12, 1), (3, 12)]


def test_equal_seeds_have_equal_orders_and_the_global_stream_stays() -> None:
    before = torch.get_rng_state()
    one, same, other = (seen(Minibatches((X, Y), 4, generator(seed)), 9) for seed in (1, 1, 2))
    assert one == same != other
    assert torch.equal(torch.get_rng_state(), before)


class Pairs(Dataset[Any]):
    """Without torch."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, row: int) -> tuple[Any, int]:
        return np.array([float(row)]), row % 2


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        while True:
            yield torch.zeros(1), 0


@pytest.mark.parametrize(
    "data",
    [[X, Y], (X.double().numpy(), Y.numpy()), (X.tolist(), Y.tolist()), TensorDataset(X, Y), Pairs()],
    ids=["a list of tensors", "arrays", "lists", "a TensorDataset", "a Dataset of arrays"],
)
def test_data_come_in_many_kinds(data: Any) -> None:
    batches = Minibatches(data, 4, generator(1), prevalence=Prevalence.binary(0.1))
    assert batches.num_data == 12
    assert sorted(chain(*seen(batches, 3))) == list(range(12))
    torch.testing.assert_close(batches.whole(), (X, Y))


def test_a_loader_is_used_as_it_is_and_repeated() -> None:
    batches = Minibatches(DataLoader(TensorDataset(X, Y), batch_size=5), 3)
    assert batches.num_data == 12
    assert not batches.at_once
    assert batches.epochs == [None]
    assert [len(rows) for rows in seen(batches, 6)] == [5, 5, 2, 5, 5, 2]
    torch.testing.assert_close(batches.whole()[0], X)
    assert len(batches.few()) == 2
    prepared = Minibatches([(X[:6], Y[:6]), (X[6:].numpy(), Y[6:].numpy())], None)
    assert seen(prepared, 3) == [list(range(6)), list(range(6, 12)), list(range(6))]
    assert prepared.num_data is None
    members = Minibatches(DataLoader(TensorDataset(X, Y), batch_size=5), None)
    for _ in range(4):  # of one size
        assert [each.shape for each in members.next_each(3)] == [(3, 5, 1), (3, 5)]


def test_the_size_of_a_loaders_data_is_that_of_what_it_draws_from() -> None:
    y = (torch.arange(1000) < 30).long()
    prevalence = Prevalence.binary(0.03)
    sampler = RebalancedSampler(y, prevalence, generator=generator(5))
    loader = DataLoader(TensorDataset(torch.zeros(1000, 1), y), batch_size=100, sampler=sampler)
    batches = Minibatches(loader, None, prevalence=prevalence)
    assert batches.num_data == 1000
    assert_mean_is(torch.cat([batches.next()[1] for _ in range(40)]).double(), 0.5)
    part = DataLoader(TensorDataset(X, Y), 2, sampler=SubsetRandomSampler(range(6)))
    assert Minibatches(part, None).num_data == 6
    assert Minibatches(DataLoader(Endless(), batch_size=3), None).num_data is None


def test_arrays_take_the_models_dtype_and_tensors_keep_theirs() -> None:
    for dtype in (torch.float64, torch.bfloat16):
        model = nn.Linear(1, 2).to(dtype)
        for x in (X.double().numpy(), X.long().numpy(), X.tolist()):
            assert Minibatches((x, Y), 4, like=model).next()[0].dtype == dtype
        assert Minibatches((X.double(), Y), 4, like=model).next()[0].dtype == torch.float64
        assert Minibatches(Pairs(), 4, like=model).next()[0].dtype == dtype
    words = nn.Sequential(nn.Embedding(12, 2), model)
    assert Minibatches((X.long().numpy(), Y), 4, like=words).next()[0].dtype == torch.long
    assert Minibatches((X.double().numpy(), Y), 4).next()[0].dtype == torch.get_default_dtype()


def test_batches_go_to_the_device() -> None:
    for data in ((X, Y), DataLoader(TensorDataset(X, Y), batch_size=4)):
        assert {each.device.type for each in Minibatches(data, 4, device="meta").next()} == {"meta"}


def labelled(share: float, n: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(n, 1), (torch.arange(n) < share * n).long()


@pytest.mark.parametrize("rho", [0.5, 0.003])
def test_labels_in_a_mix_that_chance_does_not_explain_are_refused(rho: float) -> None:
    prevalence, n = Prevalence.binary(0.01, sampling=rho), 2000
    error = (rho * (1 - rho) / n) ** 0.5
    for away in (0, 4, -4):
        Minibatches(labelled(max(rho + away * error, 0), n), None, prevalence=prevalence)
    assert_refused(lambda: Minibatches(labelled(rho + 7 * error, n), None, prevalence=prevalence), "from_labels")


def test_labels_drawn_in_the_mix_are_hardly_ever_refused() -> None:
    prevalence, stream = Prevalence([0.7, 0.2, 0.1], sampling=[0.96, 0.03, 0.01]), generator(7)
    refused = 0
    for n in (1, 2, 5, 20, 100) * 40:
        y = torch.multinomial(torch.tensor(prevalence.sampling), n, replacement=True, generator=stream)
        try:
            Minibatches((torch.zeros(n, 1), y), None, prevalence=prevalence)
        except ValueError:
            refused += 1
    assert refused <= 1


def test_a_loader_in_another_mix_is_refused_after_its_first_pass() -> None:
    prevalence, pairs = Prevalence.binary(0.01, sampling=0.1), [labelled(0.5, 2000), labelled(0.1, 2000)]
    wrong, right = (DataLoader(TensorDataset(*pair), batch_size=500) for pair in pairs)  # sorted: its batches differ
    for loader, refused in ((wrong, True), (right, False)):
        batches = Minibatches(loader, None, prevalence=prevalence)
        for _ in range(4):
            batches.next()
        if refused:
            assert_refused(batches.next, "sampler's prevalence")
            assert_refused(batches.whole, "sampler's prevalence")
        else:
            batches.next()
            batches.whole()


def test_what_is_ignored_counts_neither_as_an_example_nor_in_the_mix() -> None:
    prevalence = Prevalence.binary(0.1)
    hard, votes = Y.clone(), nn.functional.one_hot(Y, 2).float()
    hard[:4], votes[:4] = -100, 0
    for y, examples in ((hard, 8), (votes, 8), (torch.stack([hard, Y], 1), 12)):
        batches = Minibatches((X, y), None, prevalence=prevalence)
        assert batches.num_data == examples
        assert batches.at_once
        assert len(batches.next()[1]) == 12
    x, quarter = torch.zeros(200, 1, 2, 2), Prevalence.binary(0.01, sampling=0.25)
    dense = torch.tensor([[0, 1], [-100, 0]]).expand(200, 2, 2).clone()
    dense[::2, 0, 1] = 0  # of six cells that count in two maps, one
    votes = torch.tensor([0.75, 0.25]).expand(200, 2).clone()
    votes[::3] = 0
    for y in (dense, votes, votes[..., None, None].expand(200, 2, 2, 2)):
        Minibatches((x, y), None, prevalence=quarter)
        assert_refused(partial(Minibatches, (x, y), None, prevalence=prevalence), "sampling")


def test_labels_of_regression_are_taken_as_they_are() -> None:
    prevalence = ContinuousPrevalence(torch.distributions.Normal(0.0, 1.0))
    x, y = Minibatches((X, X[:, 0]), 12, prevalence=prevalence).next()
    torch.testing.assert_close(x[:, 0], y)


NO_DATA: list[tuple[Any, str]] = [
    *((data, "DataLoader") for data in (X, 3, iter([(X, Y)]), Endless())),
    *((data, "inputs and labels") for data in ((X, Y, Y), TensorDataset(X, Y, Y), DataLoader(TensorDataset(X, Y, Y)))),
    *((data, "cut off") for data in ((X, Y[:5]), (X[:0], Y[:0]), (torch.tensor(1.0), torch.tensor(1)))),
    ((X, ["a"] * 12), "number the classes"),
    (TensorDataset(X[:0], Y[:0]), "empty"),
    (DataLoader(TensorDataset(X, Y), batch_size=20, drop_last=True), "smaller than one batch"),
]


@pytest.mark.parametrize(("data", "words"), NO_DATA, ids=range(len(NO_DATA)))
def test_invalid_data_are_refused(data: Any, words: str) -> None:
    assert_refused(lambda: Minibatches(data, None).next(), words)


def test_invalid_sizes_and_labels_are_refused() -> None:
    for size in (0, 2.5):
        assert_refused(partial(Minibatches, (X, Y), size), "batch_size")  # type: ignore[arg-type]
    for y in (Y.double(), Y + 1):
        assert_refused(partial(Minibatches, (X, y), None, prevalence=Prevalence.binary(0.1)), "labels")
    assert_refused(lambda: Minibatches(DataLoader(TensorDataset(X, Y), 20, drop_last=True), None).whole(), "used-up")
    sizes = iter(range(12, 10**9))

    class Growing:
        def __iter__(self) -> Iterator[Any]:
            n = next(sizes)
            yield torch.zeros(n, 1), torch.zeros(n, dtype=torch.long)

    assert_refused(lambda: Minibatches(Growing(), None).next_each(2), "drop_last")


def test_a_bar_goes_to_stderr_on_request_and_else_to_a_terminal_alone(capsys: Any, monkeypatch: Any) -> None:
    for progress, shown in ((True, True), (False, False), (None, False)):
        assert list(steps_of(3, "MAP", progress)) == [0, 1, 2]
        written = capsys.readouterr()
        assert written.out == ""
        assert ("MAP" in written.err and "100%" in written.err) == shown
    assert written.err == ""
    real = builtins.__import__

    def without_rich(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("rich"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without_rich)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert list(steps_of(2, "MAP", None)) == [0, 1]
    with pytest.raises(ImportError, match=r"pip install -c constraints.txt -e \"\.\[bayes"):
        list(steps_of(2, "MAP", True))
