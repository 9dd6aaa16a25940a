"""Samplers and the joined dataset: rates, counts, the pool's order, reproducibility, ranks, resumption, bad input."""

from __future__ import annotations

import itertools
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from members import assert_mean_is, assert_refused, generator, unchecked_types
from scipy.stats import chisquare
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from rightloss.prevalence import Prevalence
from rightloss.sampling import (
    RebalancedSampler,
    SemiSupervisedBatchSampler,
    SemiSupervisedDataset,
    StratifiedBatchSampler,
    split_unlabelled,
)
from rightloss.tensors import tensor_of

LABELS = torch.tensor([0] * 23 + [1] * 7 + [2] * 2)
VOTES = torch.tensor([[1.0, 0.0, 0.0]] * 20 + [[0.5, 0.5, 0.0]] * 10 + [[0.0, 0.25, 0.75]] * 6).double()
THREE = Prevalence([0.9, 0.09, 0.01], sampling=[0.5, 0.3, 0.2])
BINARY = Prevalence.binary(population=0.001, sampling=0.5)
POSITIVE = Prevalence.positive_unlabelled(0.1)
UNLIKELY = 1e-5  # a p-value that chance does not reach, whatever the seed

Make = Callable[..., Any]

# Each makes a sampler with a chosen length of its epoch, of all replicas together.
SAMPLERS: dict[str, Make] = {
    "rebalanced": lambda length=None, **kwargs: RebalancedSampler(VOTES, THREE, length, **kwargs),
    "stratified": lambda length=None, **kwargs: StratifiedBatchSampler(LABELS, THREE, 7, length, **kwargs),
    "semi-supervised": lambda length=None, **kwargs: SemiSupervisedBatchSampler(LABELS, 23, THREE, 7, 5, length, **kwargs),
}


@pytest.fixture(params=SAMPLERS)
def make(request: pytest.FixtureRequest) -> Make:
    return SAMPLERS[request.param]


def take(iterator: Iterator[Any], count: int) -> list[Any]:
    return list(itertools.islice(iterator, count))


def one_hot(index: Tensor, size: int) -> Tensor:
    return F.one_hot(index, size).double()


def batches(sampler: SemiSupervisedBatchSampler, batch_size: int) -> tuple[Tensor, Tensor]:
    """One epoch: the labelled and the unlabelled part of each batch, as (batches, size)."""
    whole = torch.tensor(list(sampler))
    return whole[:, :batch_size], whole[:, batch_size:]


class TestRates:
    @pytest.mark.parametrize("rate", [0.5, 0.01])
    def test_classes_come_at_the_sampling_rates(self, rate: float) -> None:
        prevalence = Prevalence.binary(0.001, sampling=rate)
        labels = (torch.arange(1000) % 40 == 0).long()
        drawn = torch.tensor(list(RebalancedSampler(labels, prevalence, 100_000, generator())))
        assert_mean_is(one_hot(labels[drawn], 2), tensor_of(prevalence.sampling))

    @pytest.mark.long
    def test_votes_are_drawn_class_first_then_example(self) -> None:
        expected = sum(rho * VOTES[:, c] / VOTES[:, c].sum() for c, rho in enumerate(tensor_of(THREE.sampling)))
        assert isinstance(expected, Tensor)
        rebalanced = RebalancedSampler(VOTES, THREE, 100_000, generator())
        both = SemiSupervisedBatchSampler(VOTES, 50, THREE, 8, 1, 10_000, generator())
        for sampler, drawn in ((rebalanced, torch.tensor(list(rebalanced))), (both, batches(both, 8)[0].flatten())):
            assert_mean_is(one_hot(drawn, len(VOTES)), expected)
            assert_mean_is(VOTES[drawn], sampler.sampling)
            assert not torch.allclose(sampler.sampling, tensor_of(THREE.sampling))

    @pytest.mark.long
    def test_a_batch_too_small_for_every_class_is_drawn_at_the_rates(self) -> None:
        sampler = SemiSupervisedBatchSampler(LABELS, 50, THREE, 2, 1, 20_000, generator())
        assert_mean_is(one_hot(LABELS[batches(sampler, 2)[0].flatten()], 3), tensor_of(THREE.sampling))
        assert sampler.prevalence == THREE

    def test_labels_of_every_kind_and_unanimous_votes_draw_the_same(self) -> None:
        frozen = LABELS.numpy().astype(np.uint8)
        frozen.flags.writeable = False
        kinds: list[Any] = [LABELS, LABELS.int(), LABELS.tolist(), LABELS.numpy(), frozen, F.one_hot(LABELS, 3).float()]
        samplers = [RebalancedSampler(labels, THREE, generator=generator()) for labels in kinds]
        drawn = [list(sampler) for sampler in samplers]
        assert all(each == drawn[0] for each in drawn)
        torch.testing.assert_close(samplers[-1].sampling, samplers[0].sampling)

    @pytest.mark.long
    def test_more_examples_than_multinomial_takes_are_drawn_to_the_last(self) -> None:
        labels = torch.zeros(2**24 + 2, dtype=torch.int8)
        labels[-1] = 1
        ones = sum(index == len(labels) - 1 for index in RebalancedSampler(labels, BINARY, 1000, generator()))
        assert abs(ones - 500) < 4 * (1000 * 0.25) ** 0.5

    def test_only_the_sampling_of_the_prevalence_changes(self) -> None:
        given = Prevalence.dirichlet([90.0, 9.0, 1.0], [0.5, 0.3, 0.2], evidence=2.0)
        counts = given.with_sampling(torch.tensor([4, 2, 1]).double() / 7)
        assert RebalancedSampler(LABELS, given).prevalence == given
        assert StratifiedBatchSampler(LABELS, given, 7).prevalence == counts
        assert SemiSupervisedBatchSampler(LABELS, 50, given, 7).prevalence == counts
        votes = RebalancedSampler(VOTES, given)
        assert votes.prevalence == given.with_sampling(votes.sampling)
        assert votes.sampling.dtype == torch.float64
        unknown = Prevalence.unknown(3, sampling=[0.5, 0.3, 0.2], start=[0.8, 0.1, 0.1])
        found = SemiSupervisedBatchSampler(LABELS, 50, unknown, 7).prevalence
        assert found == unknown.with_sampling(counts.sampling)
        assert found.is_unknown


class TestBatches:
    @pytest.mark.parametrize(
        ("rates", "batch_size", "counts"),
        [
            ([0.99, 0.01], 16, [15, 1]),
            ([1 / 3, 1 / 3, 1 / 3], 16, [6, 5, 5]),
            ([0.47, 0.34, 0.19], 10, [5, 3, 2]),
            ([0.97, 0.01, 0.01, 0.01], 4, [1, 1, 1, 1]),
            ([0.6, 0.36, 0.02, 0.02], 12, [6, 4, 1, 1]),
        ],
    )
    def test_every_batch_has_the_same_counts(self, rates: list[float], batch_size: int, counts: list[int]) -> None:
        labels = torch.arange(len(rates)).repeat_interleave(torch.arange(len(rates)) * 5 + 3)
        sampler = StratifiedBatchSampler(labels, Prevalence(rates, rates), batch_size, 40, generator())
        assert [labels[batch].bincount(minlength=len(rates)).tolist() for batch in sampler] == [counts] * 40
        torch.testing.assert_close(sampler.sampling, torch.tensor(counts).double() / batch_size)

    @pytest.mark.parametrize("size", [1, 3, 5, 9])
    def test_all_examples_of_a_class_are_used_equally_often(self, size: int) -> None:
        sampler = StratifiedBatchSampler([0] * 50 + [1] * size, BINARY, 8, 6 * size, generator())
        seen: Counter[int] = Counter()
        for number, batch in enumerate(sampler, 1):
            seen.update(index - 50 for index in batch if index >= 50)
            shares = [seen[index] for index in range(size)]
            assert sum(shares) == 4 * number
            assert max(shares) - min(shares) == (0 if 4 * number % size == 0 else 1)

    def test_no_batch_has_an_example_twice_and_places_are_independent_of_the_class(self) -> None:
        # 7 and 5 at a time out of 9 and 5: most batches span a reshuffling.
        labels = torch.tensor([0] * 9 + [1] * 5)
        found = torch.tensor(list(StratifiedBatchSampler(labels, Prevalence.binary(0.1, 5 / 12), 12, 2000, generator())))
        assert all(len(set(batch)) == 12 for batch in found.tolist())
        assert_mean_is(labels[found].double(), torch.full((12,), 5 / 12, dtype=torch.float64))

    def test_an_epoch_has_as_many_batches_as_it_takes_for_all_examples(self) -> None:
        assert [len(StratifiedBatchSampler(LABELS, THREE, size)) for size in (7, 8)] == [5, 4]
        sizes: list[tuple[int, int, int | None]] = [(100, 8, None), (100, 8, 50), (96, 8, 32), (100, 32, 1000), (1, 1, 1)]
        found = [len(SemiSupervisedBatchSampler(LABELS, pool, THREE, size, beside)) for pool, size, beside in sizes]
        assert found == [13, 4, 4, 1, 32]


class TestPool:
    def test_the_labelled_are_those_of_a_stratified_sampler_whatever_the_pool(self) -> None:
        both = SemiSupervisedBatchSampler(LABELS, 50, THREE, 7, 3, 70, generator())
        alone = StratifiedBatchSampler(LABELS, THREE, 7, 70, generator())
        for _ in range(2):
            labelled, unlabelled = batches(both, 7)
            assert labelled.tolist() == list(alone)
            assert unlabelled.shape == (70, 3)
            assert (int(unlabelled.min()), int(unlabelled.max())) == (len(LABELS), len(LABELS) + 49)
        assert both.prevalence == alone.prevalence
        small, large = (SemiSupervisedBatchSampler(VOTES, n, THREE, 7, n // 2, 70, generator()) for n in (4, 400))
        assert torch.equal(batches(small, 7)[0], batches(large, 7)[0])

    @pytest.mark.parametrize(("pool", "beside"), [(1, 1), (9, 7), (9, 30), (100, 7)])
    def test_all_are_used_before_any_is_used_again_and_none_twice_in_a_batch(self, pool: int, beside: int) -> None:
        seen: Counter[int] = Counter()
        for number, batch in enumerate(SemiSupervisedBatchSampler(LABELS, pool, THREE, 3, beside, 3 * pool, generator()), 1):
            seen.update(batch[3:])
            uses = [seen[len(LABELS) + index] for index in range(pool)]
            assert sum(uses) == number * beside
            assert max(uses) - min(uses) <= 1
            assert len(set(batch[3:])) == min(pool, beside)

    @pytest.mark.long
    def test_each_is_as_likely_as_any_other_to_come_first(self) -> None:
        # A batch takes the whole pool, so each has an order of its own.
        _, unlabelled = batches(SemiSupervisedBatchSampler(LABELS, 10, THREE, 3, 10, 3000, generator()), 3)
        for place in (0, 9):
            assert chisquare((unlabelled[:, place] - len(LABELS)).bincount().numpy()).pvalue > UNLIKELY

    @pytest.mark.long
    def test_labelled_and_unlabelled_and_the_next_epoch_come_in_orders_of_their_own(self) -> None:
        # Decks of equal size, one card a batch: with a common seed they would have the same order.
        n = 5000
        sampler = SemiSupervisedBatchSampler([1] * n, n, POSITIVE, 1, 1, n, generator())
        orders = torch.cat([*batches(sampler, 1), *batches(sampler, 1)], 1).T
        correlations = torch.corrcoef(orders.double()).triu(1)
        assert float(correlations.abs().max()) < 4.5 / (n - 1) ** 0.5  # in standard errors

    @pytest.mark.parametrize("labels", [[1] * 30, torch.tensor([[0.0, 1.0]] * 30)])
    def test_a_class_that_is_never_sampled_needs_no_label(self, labels: Any) -> None:
        sampler = SemiSupervisedBatchSampler(labels, 100, POSITIVE, 10, 5, 6, generator())
        labelled, unlabelled = batches(sampler, 10)
        assert int(labelled.max()) < 30 <= int(unlabelled.min())
        assert sampler.prevalence == POSITIVE
        if isinstance(labels, list):
            assert sorted(labelled.flatten().tolist()) == sorted([*range(30)] * 2)
            assert sorted(itertools.chain(*StratifiedBatchSampler(labels, POSITIVE, 10))) == [*range(30)]
        assert len(list(RebalancedSampler(labels, POSITIVE))) == 30


class TestReproducibility:
    def test_a_generator_decides_all_epochs_which_differ(self, make: Make) -> None:
        one, other = make(generator=generator()), make(generator=generator())
        epochs = [list(one) for _ in range(3)]
        assert epochs == [list(other) for _ in range(3)]
        assert epochs[0] != epochs[1] != epochs[2]
        assert list(make(generator=generator(1))) != epochs[0]
        assert {len(epoch) for epoch in epochs} == {len(one)}
        for without in (make(), make(num_replicas=2, rank=1)):
            assert list(without) != list(without)
        assert list(make(5, generator=generator())) == list(make(100, generator=generator()))[:5]

    def test_manual_seed_governs_a_sampler_without_a_generator(self, make: Make) -> None:
        sampler, epochs = make(), []
        list(sampler)
        for copy in (sampler, sampler, make(), pickle.loads(pickle.dumps(sampler))):
            torch.manual_seed(0)
            epochs.append(list(copy))
        assert all(epoch == epochs[0] for epoch in epochs)

    @pytest.mark.parametrize(("replicas", "length"), [(2, 1), (3, 10), (2, 65)])
    def test_ranks_partition_the_sequence_of_one(self, make: Make, replicas: int, length: int) -> None:
        ranks = [make(length, generator=generator(), num_replicas=replicas, rank=rank) for rank in range(replicas)]
        padded = replicas * len(ranks[0])
        assert 0 <= padded - length < replicas
        one = make(padded, generator=generator(), num_replicas=1, rank=0)
        for _ in range(2):
            shares = [list(rank) for rank in ranks]
            assert [item for items in zip(*shares, strict=True) for item in items] == list(one)

    def test_ranks_partition_a_sequence_of_many_blocks(self) -> None:
        one, *ranks = (
            RebalancedSampler(LABELS, THREE, 150_000, generator(), replicas, rank)
            for replicas, rank in [(1, 0), (3, 0), (3, 1), (3, 2)]
        )
        assert [index for row in zip(*ranks, strict=True) for index in row] == list(one)

    def test_ranks_without_a_generator_agree_whatever_their_global_seed(
        self, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shares = []
        for rank in range(2):
            torch.manual_seed(rank)
            shares.append(list(make(10, num_replicas=2, rank=rank)))
        whole = list(make(10, generator=torch.Generator().manual_seed(0)))
        assert [item for items in zip(*shares, strict=True) for item in items] == whole
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
        assert list(make(10)) == shares[1]


class TestResumption:
    @pytest.mark.long
    @pytest.mark.parametrize(("with_generator", "kwargs"), [(True, {}), (False, {"num_replicas": 3, "rank": 1}), (False, {})])
    def test_a_sampler_resumes_from_every_place(self, make: Make, kwargs: dict[str, int], with_generator: bool) -> None:
        def fresh(seed: int) -> Any:
            return make(24, generator=generator(seed) if with_generator else None, **kwargs)

        for place in range(0, len(fresh(0)) + 1, 2):
            torch.manual_seed(0)
            sampler = fresh(0)
            list(sampler)
            epoch = iter(sampler)
            take(epoch, place)
            state = sampler.state_dict()
            expected = [list(epoch), list(sampler), list(sampler)]
            torch.manual_seed(1)
            resumed = fresh(1)
            resumed.load_state_dict(state)
            torch.testing.assert_close(resumed.state_dict(), state)  # saved again unchanged
            assert [list(resumed) for _ in range(3)] == expected

    def test_a_state_survives_a_file_and_one_between_epochs_starts_the_next(self, make: Make, tmp_path: Path) -> None:
        sampler, resumed = make(generator=generator()), make(generator=generator(1))
        resumed.load_state_dict(sampler.state_dict())
        assert list(resumed) == list(sampler)
        epoch = iter(sampler)
        take(epoch, 2)
        assert {type(value) for value in sampler.state_dict().values()} == {int, Tensor}
        torch.save(sampler.state_dict(), tmp_path / "state.pt")
        resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        assert [list(resumed), list(resumed)] == [list(epoch), list(sampler)]

    def test_an_abandoned_epoch_does_not_move_the_next(self, make: Make) -> None:
        sampler = make(generator=generator())
        old = iter(sampler)
        take(old, 2)
        take(iter(sampler), 1)
        list(old)
        assert sampler.state_dict()["handed"] == 1

    @pytest.mark.long
    @pytest.mark.parametrize("with_generator", [True, False])
    def test_a_loader_resumes_in_the_middle_of_an_epoch(self, with_generator: bool) -> None:
        dataset = SemiSupervisedDataset(TensorDataset(torch.arange(32), LABELS), torch.arange(32, 72))

        def made(seed: int) -> tuple[SemiSupervisedBatchSampler, DataLoader[Any]]:
            torch.manual_seed(seed)
            own = generator(seed) if with_generator else None
            sampler = SemiSupervisedBatchSampler(LABELS, 40, THREE, 7, 5, generator=own)
            return sampler, DataLoader(dataset, batch_sampler=sampler)

        for place in (1, 8):
            sampler, loader = made(0)
            epoch = iter(loader)
            take(epoch, place)
            state = sampler.state_dict()
            expected = [[[x.tolist(), y.tolist()] for x, y in each] for each in (epoch, loader, loader)]
            assert len(expected[0]) == len(sampler) - place
            resumed, loader = made(1)
            resumed.load_state_dict(state)
            assert [[[x.tolist(), y.tolist()] for x, y in loader] for _ in range(3)] == expected


BAD_LABELS: list[tuple[Any, str]] = [
    ([], "at least one label"),
    ([0, 1, 2], r"labels in 0\.\.1"),
    ([0, 0, 0], r"every class in `labels`, but class\(es\) \[1\]"),
    (["benign", "malignant"], "number the classes"),
    ([[0, 1], [1, 0]], r"of shape \(n,\)"),
    ([[0.5, 0.5], [0.5, 0.6]], "sum to 1"),
    ([[0.2, 0.3, 0.5]], "votes of shape"),
    (torch.tensor([0, 1]).to_sparse(), "to_dense"),
]

SIZES: dict[Any, dict[str, int]] = {
    RebalancedSampler: {},
    StratifiedBatchSampler: {"batch_size": 4},
    SemiSupervisedBatchSampler: {"batch_size": 4, "num_unlabelled": 9},
}
BAD_ARGUMENTS: list[tuple[type, dict[str, Any], str]] = [
    (RebalancedSampler, {"num_samples": 0}, r"`num_samples` to be an int in 1\.\."),
    (RebalancedSampler, {"num_samples": 10**30}, "`num_samples` to be an int in .* but got 1000"),
    (StratifiedBatchSampler, {"num_batches": 0}, "`num_batches`"),
    (StratifiedBatchSampler, {"batch_size": 1}, "number of classes, 2"),
    (StratifiedBatchSampler, {"batch_size": 0.5}, "`batch_size` to be an int"),
    (StratifiedBatchSampler, {"labels": [[0.5, 0.5]]}, "soft votes"),
    (SemiSupervisedBatchSampler, {"batch_size": 0}, "`batch_size`"),
    (SemiSupervisedBatchSampler, {"num_unlabelled": True}, "`num_unlabelled` to be an int"),
    (SemiSupervisedBatchSampler, {"unlabelled_batch_size": 0}, "`unlabelled_batch_size`"),
    (SemiSupervisedBatchSampler, {"num_batches": "1"}, "`num_batches`"),
    (SemiSupervisedBatchSampler, {"prevalence": POSITIVE}, r"class\(es\) \[1\] only, .* but got \[0, 1\]: leave the other"),
    (SemiSupervisedBatchSampler, {"prevalence": [0.5, 0.5]}, "Expected a Prevalence, but got list"),
    *(
        (kind, bad, message)
        for kind in SIZES
        for bad, message in (
            ({"num_replicas": 0, "rank": 0}, "`num_replicas`"),
            ({"num_replicas": 2, "rank": 2}, r"`rank` to be an int in 0\.\.1"),
            ({"num_replicas": 2, "rank": torch.tensor(0.5)}, "`rank` to be an int"),
            ({"num_replicas": 2}, "`rank` along with num_replicas=2"),
            ({"rank": 1}, r"`rank` to be an int in 0\.\.0"),
            ({"generator": 3}, r"a torch.Generator, but got int: write torch.Generator\(\).manual_seed\(3\)"),
            ({"generator": np.random.default_rng(0)}, "a torch.Generator, but got Generator of numpy: write torch.Generator"),
        )
    ),
]

# States of other samplers and damaged ones, for a RebalancedSampler of 10 draws.
FOREIGN: dict[str, Callable[[], Any]] = {
    "length": lambda: RebalancedSampler(LABELS, THREE, 9).state_dict(),
    "replicas": lambda: RebalancedSampler(LABELS, THREE, 20, None, 2, 0).state_dict(),
    "labels": lambda: RebalancedSampler(LABELS[1:], THREE, 10).state_dict(),
    "rates": lambda: RebalancedSampler(LABELS, Prevalence([0.9, 0.09, 0.01]), 10).state_dict(),
    "classes": lambda: RebalancedSampler(LABELS.clamp_max(1), BINARY, 10).state_dict(),
    "kind": lambda: StratifiedBatchSampler(LABELS, THREE, 10, 10).state_dict(),
    "no mapping": lambda: [("seed", 1)],
}
DAMAGE: dict[str, dict[str, Any]] = {
    "too far": {"handed": 11},
    "before the start": {"handed": -1},
    "handed out between epochs": {"seed": -1},
    "a seed out of range": {"seed": 2**63},
    "a seed of another type": {"seed": "0"},
    "a cut generator": {"generator": torch.zeros(10, dtype=torch.uint8)},
    "a generator of floats": {"generator": torch.zeros(10)},
    "one key too many": {"more": 0},
}


class TestBadInput:
    @pytest.mark.parametrize(("labels", "message"), BAD_LABELS)
    def test_labels_are_checked(self, labels: Any, message: str) -> None:
        for kind, sizes in SIZES.items():
            assert_refused(lambda: kind(labels=labels, prevalence=BINARY, **sizes), message)  # noqa: B023

    @pytest.mark.parametrize(("kind", "arguments", "message"), BAD_ARGUMENTS)
    def test_arguments_are_checked(self, kind: Any, arguments: dict[str, Any], message: str) -> None:
        assert_refused(lambda: kind(**{"labels": [0, 1, 1], "prevalence": BINARY, **SIZES[kind], **arguments}), message)

    def test_ints_of_numpy_and_torch_are_ints(self, make: Make) -> None:
        kinds: list[Any] = [int, np.int64, torch.tensor]
        with unchecked_types():
            plain, *others = (list(make(kind(10), generator=generator(), num_replicas=kind(2), rank=kind(1))) for kind in kinds)
        assert others == [plain, plain]

    @pytest.mark.parametrize("what", [*FOREIGN, *DAMAGE])
    def test_a_state_of_another_sampler_or_a_damaged_one_is_refused_and_changes_nothing(self, what: str) -> None:
        sampler, other = (RebalancedSampler(LABELS, THREE, 10, generator(seed)) for seed in (0, 1))
        take(iter(other), 3)
        before = sampler.state_dict()
        state = other.state_dict() | DAMAGE[what] if what in DAMAGE else FOREIGN[what]()
        assert_refused(lambda: sampler.load_state_dict(state), "Expected")
        torch.testing.assert_close(sampler.state_dict(), before)

    @pytest.mark.parametrize(
        "other", [{"num_unlabelled": 51}, {"unlabelled_batch_size": 4}, {"batch_size": 8}, {"labels": LABELS[1:]}], ids=str
    )
    def test_a_state_of_another_semi_supervised_sampler_is_refused(self, other: dict[str, Any]) -> None:
        sizes: dict[str, Any] = {"labels": LABELS, "num_unlabelled": 50, "prevalence": THREE, "batch_size": 7}
        sizes |= {"unlabelled_batch_size": 5, "num_batches": 20}
        sampler, foreign = SemiSupervisedBatchSampler(**sizes), SemiSupervisedBatchSampler(**sizes | other)
        assert_refused(lambda: sampler.load_state_dict(foreign.state_dict()), "make this sampler like the one that was saved")


class Pairs(Dataset[Any]):
    """Items as given."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([torch.zeros(2)])


# Labels as datasets give them, and what the default collate makes of two of them and two without.
KINDS: dict[str, tuple[Any, Any, Any]] = {
    "int": (1, 0, [1, 0, -100, -100]),
    "NumPy int": (np.int64(1), np.int64(0), [1, 0, -100, -100]),
    "NumPy scalar array": (np.array(1), np.array(0), [1, 0, -100, -100]),
    "int8": (torch.tensor(1, dtype=torch.int8), torch.tensor(0, dtype=torch.int8), [1, 0, -100, -100]),
    "NumPy mask": (np.array([1, 0]), np.array([0, 0]), [[1, 0], [0, 0], [-100, -100], [-100, -100]]),
    "NumPy votes": (np.array([0.5, 0.5]), np.array([0.0, 1.0]), [[0.5, 0.5], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]]),
    "votes by pixel": (
        torch.tensor([[1.0, 0.5], [0.0, 0.5]]),
        torch.tensor([[1.0, 0.0], [0.0, 0.0]]),
        [[[1.0, 0.5], [0.0, 0.5]], [[1.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]],
    ),
}


class TestDataset:
    def joined(self, *labels: Any, ignore_index: int = -100) -> SemiSupervisedDataset:
        return SemiSupervisedDataset(Pairs([(torch.zeros(3), y) for y in labels]), torch.ones(2, 3), ignore_index)

    @pytest.mark.parametrize("kind", KINDS)
    def test_labels_of_every_kind_are_joined_and_split_again(self, kind: str) -> None:
        one, two, expected = KINDS[kind]
        dataset = self.joined(one, two)
        ((x, y),) = DataLoader(dataset, batch_size=4)
        assert y.tolist() == expected
        assert y.dtype == tensor_of(one).dtype
        assert x[:, 0].tolist() == [0, 0, 1, 1]
        assert np.shape(dataset[3][1]) == np.shape(one)
        labelled, target, unlabelled = split_unlabelled(x, y)
        assert target.tolist() == expected[:2]
        assert torch.equal(labelled, torch.zeros(2, 3))
        assert torch.equal(unlabelled, torch.ones(2, 3))

    def test_labelled_examples_come_first_and_of_other_tuples_only_x_is_used(self) -> None:
        dataset = SemiSupervisedDataset(Pairs([("a", 0), ("b", 1)]), Pairs([("c",), ("d", 1, "more"), ["a", "list"]]))
        no_label = [("c", -100), ("d", -100), (["a", "list"], -100)]
        assert [dataset[index] for index in range(len(dataset))] == [("a", 0), ("b", 1), *no_label]
        assert [dataset[index] for index in (-1, -5)] == [no_label[-1], ("a", 0)]
        for index in (5, -6):
            with pytest.raises(IndexError, match="out of range"):
                dataset[index]

    def test_nothing_is_read_early_and_a_label_changed_in_place_does_not_change_the_next(self) -> None:
        class Closed(Pairs):
            def __getitem__(self, index: int) -> Any:
                raise OSError("read too early")

        SemiSupervisedDataset(Closed([0]), Closed([0]))
        dataset = self.joined(torch.tensor([0, 1]))
        dataset[1][1].fill_(7)
        assert dataset[1][1].tolist() == [-100, -100]
        votes = np.array([0.5, 0.5])
        votes.flags.writeable = False
        assert self.joined(votes)[1][1].tolist() == [0.0, 0.0]

    def test_masks_of_bytes_take_an_index_that_they_can_hold(self) -> None:
        mask = torch.zeros(2, dtype=torch.uint8)
        assert self.joined(mask, ignore_index=255)[1][1].tolist() == [255, 255]
        assert_refused(lambda: self.joined(mask)[1], r"`ignore_index`, -100, but got torch.uint8.*choose an index in 0\.\.255")
        target = torch.tensor([156, 255, 0], dtype=torch.uint8)  # −100 would be 156 as a byte
        assert split_unlabelled(torch.arange(3), target)[0].tolist() == [0, 1, 2]
        assert split_unlabelled(torch.arange(3), target, ignore_index=255)[2].tolist() == [1]

    @pytest.mark.long
    def test_workers_give_what_one_process_gives_and_slices_at_the_batch_size_what_is_split(self) -> None:
        dataset = SemiSupervisedDataset(TensorDataset(torch.arange(32), LABELS), torch.arange(32, 72))
        epochs = []
        for workers in (0, 2):
            sampler = SemiSupervisedBatchSampler(LABELS, 40, THREE, 7, 5, generator=generator())
            epochs.append(list(DataLoader(dataset, batch_sampler=sampler, num_workers=workers)))
        torch.testing.assert_close(epochs[0], epochs[1], rtol=0, atol=0)
        for x, y in epochs[0]:
            labelled, target, unlabelled = split_unlabelled(x, y)
            assert torch.equal(labelled, x[:7])
            assert torch.equal(target, LABELS[labelled])
            assert torch.equal(unlabelled, x[7:])

    @pytest.mark.parametrize(
        "label", [0.5, True, "ill", (0.5, 0.5), np.float64(1), *map(torch.tensor, (True, 1.0, 1j, [1.0, 1.0]))], ids=repr
    )
    def test_labels_that_no_loss_takes_are_refused(self, label: Any) -> None:
        assert_refused(lambda: self.joined(label)[1], "Expected labels to be ints.*convert class numbers to int64")

    def test_data_that_cannot_be_joined_are_refused(self) -> None:
        pairs, index = Pairs([(0, 0)]), "none"
        for item in (torch.zeros(2), (torch.zeros(2),), (1, 2, 3)):
            for place in (0, 1):
                dataset = SemiSupervisedDataset(Pairs([item]), torch.ones(2, 3))
                assert_refused(lambda: dataset[place], r"tuples \(x, y\), but got .*TensorDataset")  # noqa: B023
        data: Any
        for data in (Stream(), 3, iter([1])):
            assert_refused(lambda: SemiSupervisedDataset(data, pairs), "`labelled` to be a dataset with `__len__`")  # noqa: B023
            assert_refused(lambda: SemiSupervisedDataset(pairs, data), "`unlabelled` to be a dataset with `__len__`")  # noqa: B023
        assert_refused(lambda: SemiSupervisedDataset([], [1]), "at least one labelled example")
        assert_refused(lambda: SemiSupervisedDataset([(1, 1)], []), "at least one unlabelled example")
        assert_refused(lambda: self.joined(1, ignore_index=index), "`ignore_index` to be an int")  # type: ignore[arg-type]


class TestSplit:
    def test_rows_keep_their_order_wherever_the_unlabelled_stand(self) -> None:
        target = torch.tensor([-100, 2, -100, 0, 1, -100])
        for shape in ((), (3,), (3, 4, 5)):
            outputs = torch.randn(6, *shape, generator=generator())
            labelled, y, unlabelled = split_unlabelled(outputs, target)
            assert torch.equal(labelled, outputs[[1, 3, 4]])
            assert y.tolist() == [2, 0, 1]
            assert torch.equal(unlabelled, outputs[[0, 2, 5]])
        for rows, sizes in (([0, 1, 1], (3, 0)), ([-100, -100], (0, 2)), ([], (0, 0))):
            parts = split_unlabelled(torch.zeros(len(rows), 2), torch.tensor(rows, dtype=torch.long))
            assert (len(parts[0]), len(parts[1]), len(parts[2])) == (sizes[0], *sizes)

    def test_a_dense_target_or_votes_are_unlabelled_only_if_all_of_them_are(self) -> None:
        target = torch.full((3, 2, 2), -100)
        target[1, 0, 1] = 1
        labelled, y, unlabelled = split_unlabelled(torch.arange(3.0), target)
        assert (labelled.tolist(), unlabelled.tolist()) == ([1], [0, 2])
        assert torch.equal(y, target[1:2])
        votes = torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
        labelled, y, unlabelled = split_unlabelled(torch.arange(3), votes)
        assert (labelled.tolist(), unlabelled.tolist()) == ([1, 2], [0])
        assert torch.equal(y, votes[1:])

    BAD: tuple[tuple[Callable[[], Any], str], ...] = (
        (lambda: split_unlabelled(torch.zeros(3, 2), torch.zeros(4).long()), r"shapes \(3, 2\) and \(4,\)"),
        (lambda: split_unlabelled(torch.zeros(3, 2), torch.zeros(3)), r"call `target.long\(\)`"),
        (lambda: split_unlabelled([0.0], torch.zeros(1).long()), "`outputs` to be a tensor, but got list"),  # type: ignore[arg-type]
        (lambda: split_unlabelled(torch.zeros(1), [0]), "`target` to be a tensor, but got list"),  # type: ignore[arg-type]
        (lambda: split_unlabelled(torch.zeros(1), torch.tensor([0]), None), "`ignore_index` to be an int"),  # type: ignore[arg-type]
    )

    @pytest.mark.parametrize(("call", "message"), BAD)
    def test_what_is_no_batch_is_refused(self, call: Callable[[], Any], message: str) -> None:
        assert_refused(call, message)
