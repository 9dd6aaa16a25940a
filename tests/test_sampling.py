"""Sampling: the rates, their reproducibility, many ranks, resumption, bad input."""

from __future__ import annotations

import itertools
import pickle
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from members import assert_mean_is, assert_refused, unchecked_types
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from rightloss.prevalence import Prevalence
from rightloss.sampling import RebalancedSampler, SemiSupervisedBatchSampler, StratifiedBatchSampler
from rightloss.tensors import tensor_of

SEED = 0
LABELS = torch.tensor([0] * 23 + [1] * 7 + [2] * 2)
THREE = Prevalence([0.9, 0.09, 0.01], sampling=[0.5, 0.3, 0.2])
BINARY = Prevalence.binary(population=0.001, sampling=0.5)

Make = Callable[..., Any]


def seeded(seed: int = SEED) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def soft_votes(n: int = 60) -> Tensor:
    """Three readers' votes among three classes."""
    readers = torch.multinomial(torch.tensor([0.7, 0.2, 0.1]), 3 * n, replacement=True, generator=seeded()).view(n, 3)
    return torch.nn.functional.one_hot(readers, 3).double().mean(1)


# Each makes a sampler with a chosen length of its epoch, of all replicas together.
SAMPLERS: dict[str, Make] = {
    "rebalanced": lambda length=None, **kwargs: RebalancedSampler(LABELS, THREE, length, **kwargs),
    "rebalanced by votes": lambda length=None, **kwargs: RebalancedSampler(soft_votes(), THREE, length, **kwargs),
    "stratified": lambda length=None, **kwargs: StratifiedBatchSampler(LABELS, THREE, 7, length, **kwargs),
    "semi-supervised": lambda length=None, **kwargs: SemiSupervisedBatchSampler(LABELS, 23, THREE, 7, 5, length, **kwargs),
    "semi-supervised by votes": lambda length=None, **kwargs: SemiSupervisedBatchSampler(
        soft_votes(), 23, THREE, 2, 5, length, **kwargs
    ),
}


@pytest.fixture(params=SAMPLERS)
def make(request: pytest.FixtureRequest) -> Make:
    return SAMPLERS[request.param]


def take(iterator: Iterator[Any], count: int) -> list[Any]:
    return list(itertools.islice(iterator, count))


class TestRates:
    @pytest.mark.parametrize("rate", [0.5, 0.01, 0.9])
    def test_classes_come_at_the_sampling_rates(self, rate: float) -> None:
        prevalence = Prevalence.binary(0.001, sampling=rate)
        labels = (torch.arange(1000) % 40 == 0).long()
        drawn = torch.tensor(list(RebalancedSampler(labels, prevalence, 100_000, seeded())))
        assert_mean_is(torch.nn.functional.one_hot(labels[drawn], 2).double(), tensor_of(prevalence.sampling))

    def test_examples_of_a_class_come_equally_often(self) -> None:
        drawn = torch.tensor(list(RebalancedSampler(LABELS, THREE, 100_000, seeded())))
        expected = (tensor_of(THREE.sampling) / LABELS.bincount())[LABELS]
        assert_mean_is(torch.nn.functional.one_hot(drawn, len(LABELS)).double(), expected)

    @pytest.mark.long
    def test_soft_votes_are_drawn_class_first_then_example(self) -> None:
        votes = soft_votes()
        drawn = torch.tensor(list(RebalancedSampler(votes, THREE, 100_000, seeded())))
        expected = torch.zeros(len(votes), dtype=torch.float64)
        for c, rho in enumerate(tensor_of(THREE.sampling)):
            expected += rho * votes[:, c] / votes[:, c].sum()
        assert_mean_is(torch.nn.functional.one_hot(drawn, len(votes)).double(), expected)

    def test_realised_sampling_of_soft_votes_is_the_mean_vote_of_the_draws(self) -> None:
        votes = soft_votes()
        sampler = RebalancedSampler(votes, THREE, 100_000, seeded())
        assert_mean_is(votes[list(sampler)], sampler.sampling)
        assert not torch.allclose(sampler.sampling, tensor_of(THREE.sampling))

    def test_unanimous_votes_draw_what_int_labels_draw(self) -> None:
        votes = torch.nn.functional.one_hot(LABELS, 3).float()
        soft, hard = (RebalancedSampler(labels, THREE, generator=seeded()) for labels in (votes, LABELS))
        assert list(soft) == list(hard)
        torch.testing.assert_close(soft.sampling, hard.sampling)

    def test_lists_arrays_and_tensors_of_labels_are_alike(self) -> None:
        frozen = LABELS.numpy().astype(np.uint8)
        frozen.flags.writeable = False
        kinds: list[Any] = [LABELS, LABELS.int(), LABELS.tolist(), LABELS.numpy(), frozen]
        drawn = [list(RebalancedSampler(labels, THREE, generator=seeded())) for labels in kinds]
        assert all(each == drawn[0] for each in drawn)

    @pytest.mark.long
    def test_more_examples_than_multinomial_takes_are_drawn_to_the_last(self) -> None:
        labels = torch.zeros(2**24 + 2, dtype=torch.int8)
        labels[-1] = 1
        sampler = RebalancedSampler(labels, BINARY, 1000, seeded())
        ones = sum(index == len(labels) - 1 for index in sampler)
        assert abs(ones - 500) < 4 * (1000 * 0.25) ** 0.5


class TestBatches:
    @pytest.mark.parametrize(
        ("rates", "batch_size", "counts"),
        [
            ([0.5, 0.5], 16, [8, 8]),
            ([0.99, 0.01], 16, [15, 1]),
            ([0.01, 0.99], 16, [1, 15]),
            ([1 / 3, 1 / 3, 1 / 3], 16, [6, 5, 5]),
            ([0.5, 0.3, 0.2], 10, [5, 3, 2]),
            ([0.47, 0.34, 0.19], 10, [5, 3, 2]),
            ([0.97, 0.01, 0.01, 0.01], 4, [1, 1, 1, 1]),
            ([0.6, 0.36, 0.02, 0.02], 12, [6, 4, 1, 1]),
        ],
    )
    def test_every_batch_has_the_same_counts(self, rates: list[float], batch_size: int, counts: list[int]) -> None:
        labels = torch.arange(len(rates)).repeat_interleave(torch.arange(len(rates)) * 5 + 3)
        sampler = StratifiedBatchSampler(labels, Prevalence(rates, rates), batch_size, 40, seeded())
        assert [labels[batch].bincount(minlength=len(rates)).tolist() for batch in sampler] == [counts] * 40
        torch.testing.assert_close(sampler.sampling, torch.tensor(counts).double() / batch_size)

    def test_counts_are_the_nearest_whole_numbers_wherever_no_class_would_go_empty(self) -> None:
        whole = torch.cartesian_prod(*[torch.arange(13)] * 3)
        whole = whole[whole.sum(1) == 12]
        labels = torch.arange(3).repeat(12)
        for rates in torch._sample_dirichlet(torch.ones(50, 3).double(), generator=seeded()):
            nearest = whole[(whole - 12 * rates).square().sum(1).argmin()]
            sampler = StratifiedBatchSampler(labels, Prevalence(rates, rates), 12, 1)
            counts = (sampler.sampling * 12).round().long()
            assert int(counts.sum()) == 12
            assert torch.equal(counts, nearest) if bool((nearest > 0).all()) else bool((counts > 0).all())

    def test_no_batch_has_an_example_twice(self) -> None:
        # 7 and 5 at a time out of 9 and 5: most batches span a reshuffling.
        labels = [0] * 9 + [1] * 5
        for batch in StratifiedBatchSampler(labels, Prevalence.binary(0.1, 5 / 12), 12, 500, seeded()):
            assert len(set(batch)) == 12

    @pytest.mark.parametrize("size", [1, 3, 4, 5, 9])
    def test_all_examples_of_a_class_are_used_equally_often(self, size: int) -> None:
        labels = [0] * 50 + [1] * size
        sampler = StratifiedBatchSampler(labels, BINARY, 8, 6 * size, seeded())
        seen: Counter[int] = Counter()
        for number, batch in enumerate(sampler, 1):
            seen.update(index - 50 for index in batch if index >= 50)
            shares = [seen[index] for index in range(size)]
            assert sum(shares) == 4 * number
            assert max(shares) - min(shares) == (0 if 4 * number % size == 0 else 1)

    def test_the_place_in_a_batch_is_independent_of_the_class(self) -> None:
        labels = torch.tensor([0] * 20 + [1] * 20)
        batches = torch.tensor(list(StratifiedBatchSampler(labels, BINARY, 8, 4000, seeded())))
        assert_mean_is(labels[batches].double(), torch.full((8,), 0.5, dtype=torch.float64))

    def test_an_epoch_has_as_many_batches_as_it_takes_for_all_examples(self) -> None:
        assert len(StratifiedBatchSampler(LABELS, THREE, 7)) == 5
        assert len(StratifiedBatchSampler(LABELS, THREE, 8)) == 4


class TestPrevalence:
    @pytest.mark.parametrize(
        "given",
        [
            Prevalence([0.9, 0.09, 0.01], [0.5, 0.3, 0.2], evidence=2.0),
            Prevalence.dirichlet([90.0, 9.0, 1.0], [0.5, 0.3, 0.2], evidence=2.0),
        ],
    )
    @pytest.mark.parametrize("labels", [LABELS, soft_votes()])
    def test_only_the_sampling_of_the_prevalence_changes(self, labels: Tensor, given: Prevalence) -> None:
        samplers: list[Any] = [RebalancedSampler(labels, given)]
        samplers += [] if labels.is_floating_point() else [StratifiedBatchSampler(labels, given, 7)]
        for sampler in samplers:
            assert sampler.sampling.dtype == torch.float64
            assert sampler.prevalence.sampling.tolist() == sampler.sampling.tolist()
            np.testing.assert_array_equal(sampler.prevalence.population, given.population)
            np.testing.assert_array_equal(sampler.prevalence.concentration, given.concentration)
            assert sampler.prevalence.evidence == given.evidence

    def test_int_labels_realise_the_given_prevalence(self) -> None:
        assert RebalancedSampler(LABELS, THREE).prevalence == THREE


class TestReproducibility:
    def test_a_generator_decides_all_epochs(self, make: Make) -> None:
        one, other = make(generator=seeded()), make(generator=seeded())
        assert [list(one) for _ in range(3)] == [list(other) for _ in range(3)]
        assert list(make(generator=seeded(1))) != list(make(generator=seeded(2)))

    def test_epochs_differ(self, make: Make) -> None:
        for sampler in (make(generator=seeded()), make(), make(num_replicas=2, rank=1)):
            first, second = list(sampler), list(sampler)
            assert first != second
            assert len(first) == len(second) == len(sampler)

    def test_manual_seed_governs_a_sampler_without_a_generator(self, make: Make) -> None:
        sampler, epochs = make(), []
        list(sampler)
        for copy in (sampler, sampler, make(), pickle.loads(pickle.dumps(sampler))):
            torch.manual_seed(SEED)
            epochs.append(list(copy))
        assert all(epoch == epochs[0] for epoch in epochs)

    def test_the_first_items_do_not_depend_on_the_length(self, make: Make) -> None:
        short, long = list(make(5, generator=seeded())), list(make(100, generator=seeded()))
        assert short == long[:5]


class TestReplicas:
    @pytest.mark.parametrize("replicas", [2, 3])
    @pytest.mark.parametrize("length", [1, 6, 10, 11, 65])
    def test_ranks_partition_the_sequence_of_one(self, make: Make, replicas: int, length: int) -> None:
        ranks = [make(length, generator=seeded(), num_replicas=replicas, rank=rank) for rank in range(replicas)]
        padded = replicas * len(ranks[0])
        assert 0 <= padded - length < replicas
        one = make(padded, generator=seeded(), num_replicas=1, rank=0)
        for _ in range(2):
            shares = [list(rank) for rank in ranks]
            assert [item for items in zip(*shares, strict=True) for item in items] == list(one)

    def test_ranks_partition_a_sequence_of_many_blocks(self) -> None:
        one, *ranks = (
            RebalancedSampler(LABELS, THREE, 150_000, seeded(), replicas, rank)
            for replicas, rank in [(1, 0), (3, 0), (3, 1), (3, 2)]
        )
        assert [index for row in zip(*ranks, strict=True) for index in row] == list(one)

    def test_ranks_without_a_generator_agree_whatever_their_global_seed(self, make: Make) -> None:
        shares = []
        for rank in range(2):
            torch.manual_seed(rank)
            shares.append(list(make(10, num_replicas=2, rank=rank)))
        whole = list(make(10, generator=seeded(0)))
        assert [item for items in zip(*shares, strict=True) for item in items] == whole

    def test_torch_distributed_is_the_default(self, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        expected = list(make(11, num_replicas=3, rank=2))
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: 2)
        assert list(make(11)) == expected


class TestResumption:
    @pytest.mark.long
    @pytest.mark.parametrize("kwargs", [{}, {"num_replicas": 3, "rank": 1}])
    @pytest.mark.parametrize("with_generator", [True, False])
    def test_a_sampler_resumes_from_every_place(self, make: Make, kwargs: dict[str, int], with_generator: bool) -> None:
        def fresh(seed: int) -> Any:
            return make(24, generator=seeded(seed) if with_generator else None, **kwargs)

        for place in range(len(fresh(0)) + 1):
            torch.manual_seed(SEED)
            sampler = fresh(0)
            list(sampler)
            epoch = iter(sampler)
            take(epoch, place)
            state = sampler.state_dict()
            expected = [list(epoch), list(sampler), list(sampler)]
            torch.manual_seed(SEED + 1)
            resumed = fresh(1)
            resumed.load_state_dict(state)
            assert [list(resumed) for _ in range(3)] == expected

    def test_a_state_between_epochs_starts_the_next(self, make: Make) -> None:
        sampler, resumed = make(generator=seeded()), make(generator=seeded(1))
        for _ in range(2):
            resumed.load_state_dict(sampler.state_dict())
            assert list(resumed) == list(sampler)

    def test_a_loaded_state_is_saved_again_unchanged(self, make: Make) -> None:
        sampler, resumed = make(generator=seeded()), make(generator=seeded(1))
        take(iter(sampler), 2)
        resumed.load_state_dict(sampler.state_dict())
        torch.testing.assert_close(resumed.state_dict(), sampler.state_dict())

    def test_an_abandoned_epoch_does_not_move_the_next(self, make: Make) -> None:
        sampler = make(generator=seeded())
        old = iter(sampler)
        take(old, 2)
        new = iter(sampler)
        take(new, 1)
        list(old)
        assert sampler.state_dict()["handed"] == 1

    def test_a_state_survives_a_file(self, make: Make, tmp_path: Path) -> None:
        sampler, resumed = make(generator=seeded()), make(generator=seeded(1))
        epoch = iter(sampler)
        take(epoch, 2)
        torch.save(sampler.state_dict(), tmp_path / "state.pt")
        resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        assert [list(resumed), list(resumed)] == [list(epoch), list(sampler)]

    def test_a_state_holds_ints_and_tensors_only(self, make: Make) -> None:
        assert {type(value) for value in make().state_dict().values()} == {int, Tensor}


class TestDataLoader:
    DATASET = TensorDataset(torch.arange(len(LABELS)), LABELS)

    def loader(self, **kwargs: Any) -> tuple[Any, DataLoader[Any]]:
        sampler = StratifiedBatchSampler(LABELS, THREE, 7, **kwargs)
        return sampler, DataLoader(self.DATASET, batch_sampler=sampler)

    def test_indices_arrive_in_order(self) -> None:
        sampler = RebalancedSampler(LABELS, THREE, 20, seeded())
        loader = DataLoader(self.DATASET, batch_size=6, sampler=sampler)
        assert len(loader) == 4
        expected = list(RebalancedSampler(LABELS, THREE, 20, seeded()))
        assert torch.cat([index for index, _ in loader]).tolist() == expected

    def test_batches_arrive_whole(self) -> None:
        _, loader = self.loader(generator=seeded())
        assert [index.tolist() for index, _ in loader] == list(StratifiedBatchSampler(LABELS, THREE, 7, None, seeded()))
        assert all(label.bincount().tolist() == [4, 2, 1] for _, label in loader)

    @pytest.mark.parametrize("place", [1, 3, 5])
    def test_a_loader_resumes_without_a_generator(self, place: int) -> None:
        torch.manual_seed(SEED)
        sampler, loader = self.loader()
        epoch = iter(loader)
        take(epoch, place)
        state = sampler.state_dict()
        expected = [[index.tolist() for index, _ in each] for each in (epoch, loader, loader)]
        torch.manual_seed(SEED + 1)
        resumed, loader = self.loader()
        resumed.load_state_dict(state)
        assert [[index.tolist() for index, _ in loader] for _ in range(3)] == expected


BAD_LABELS: list[tuple[Any, str]] = [
    ([], "at least one label"),
    (torch.zeros(0, 2), "at least one label"),
    ([0, 1, 2], r"labels in 0\.\.1"),
    ([0, 1, -1], r"labels in 0\.\.1"),
    ([0, 0, 0], r"every class in `labels`, but class\(es\) \[1\]"),
    ([0.0, 1.0], "votes of shape"),
    ([True, False], "bool"),
    (torch.tensor([True, False]), "bool"),
    (["benign", "malignant"], "number the classes"),
    ([[0, 1], [1, 0]], r"of shape \(n,\)"),
    (torch.tensor(1), r"of shape \(n,\)"),
    ([[0.5, 0.5], [0.5, 0.6]], "sum to 1"),
    ([[1.5, -0.5], [0.5, 0.5]], "non-negative"),
    ([[float("nan"), 0.5], [0.5, 0.5]], "sum to 1"),
    ([[0.2, 0.3, 0.5]], "votes of shape"),
    ([[1.0, 0.0], [1.0, 0.0]], r"every class in `labels`, but class\(es\) \[1\]"),
]

BAD_ARGUMENTS: list[tuple[type, dict[str, Any], str]] = [
    (RebalancedSampler, {"num_samples": 0}, "`num_samples` to be at least 1"),
    (RebalancedSampler, {"num_samples": 10**30}, f"`num_samples` to be at least 1, and at most {sys.maxsize}, but got 1000"),
    (StratifiedBatchSampler, {"batch_size": 4, "num_batches": 0}, "`num_batches` to be at least 1"),
    (StratifiedBatchSampler, {"batch_size": 1}, "number of classes, 2"),
    (StratifiedBatchSampler, {"batch_size": 0}, "`batch_size` to be at least 1"),
    (StratifiedBatchSampler, {"batch_size": 4, "labels": [[0.5, 0.5]]}, "soft votes"),
    (SemiSupervisedBatchSampler, {"batch_size": 0, "num_unlabelled": 9}, "`batch_size` to be at least 1"),
    (SemiSupervisedBatchSampler, {"batch_size": 4, "num_unlabelled": 0}, "`num_unlabelled` to be at least 1"),
    (
        SemiSupervisedBatchSampler,
        {"batch_size": 4, "num_unlabelled": 9, "unlabelled_batch_size": 0},
        "`unlabelled_batch_size` to be at least 1",
    ),
    *(
        (kind, {**size, **bad}, message)
        for kind, size in (
            (RebalancedSampler, {}),
            (StratifiedBatchSampler, {"batch_size": 4}),
            (SemiSupervisedBatchSampler, {"batch_size": 4, "num_unlabelled": 9}),
        )
        for bad, message in (
            ({"num_replicas": 0, "rank": 0}, "`num_replicas` to be at least 1"),
            ({"num_replicas": 2, "rank": 2}, r"`rank` in 0\.\.1"),
            ({"num_replicas": 2, "rank": -1}, r"`rank` in 0\.\.1"),
            ({"num_replicas": 2}, "`rank` along with num_replicas=2"),
            ({"rank": 1}, r"`rank` in 0\.\.0"),
        )
    ),
]

NO_INTS: list[Any] = [0.5, 1.0, "1", True, [1], 1j, torch.tensor(0.5), torch.tensor([1, 2]), np.float64(1), object()]
NO_GENERATORS: list[Any] = [3, 0.5, "0", True, torch.tensor(1), np.int64(1), np.random.default_rng(0), np.random.RandomState(0)]

FOREIGN: dict[str, Callable[[], Any]] = {
    "length": lambda: RebalancedSampler(LABELS, THREE, 9),
    "replicas": lambda: RebalancedSampler(LABELS, THREE, 20, None, 2, 0),
    "labels": lambda: RebalancedSampler(LABELS[1:], THREE, 10),
    "rates": lambda: RebalancedSampler(LABELS, Prevalence([0.9, 0.09, 0.01]), 10),
    "classes": lambda: RebalancedSampler(LABELS.clamp_max(1), BINARY, 10),
    "kind": lambda: StratifiedBatchSampler(LABELS, THREE, 10, 10),
    "unlabelled beside": lambda: SemiSupervisedBatchSampler(LABELS, 9, THREE, 10, None, 10),
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
    @pytest.mark.parametrize(
        ("kind", "sizes"),
        [
            (RebalancedSampler, {}),
            (StratifiedBatchSampler, {"batch_size": 2}),
            (SemiSupervisedBatchSampler, {"batch_size": 2, "num_unlabelled": 9}),
        ],
    )
    def test_labels_are_checked(self, kind: Any, sizes: dict[str, int], labels: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            kind(labels=labels, prevalence=BINARY, **sizes)

    @pytest.mark.parametrize(("kind", "arguments", "message"), BAD_ARGUMENTS)
    def test_arguments_are_checked(self, kind: Any, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            kind(**{"labels": [0, 1, 1], "prevalence": BINARY} | arguments)

    @pytest.mark.parametrize("value", NO_INTS, ids=lambda value: type(value).__name__)
    def test_a_number_that_is_no_int_is_refused_by_name(self, value: Any) -> None:
        for name in ("num_samples", "num_replicas", "rank"):
            given = {"labels": [0, 1, 1], "prevalence": BINARY, "num_replicas": 2, "rank": 0, name: value}
            assert_refused(lambda: RebalancedSampler(**given), f"`{name}` to be an int, but got .*: give a whole number")  # noqa: B023
        for name in ("batch_size", "num_batches", "num_replicas", "rank"):
            given = {"labels": [0, 1, 1], "prevalence": BINARY, "batch_size": 4, "num_replicas": 2, "rank": 0, name: value}
            assert_refused(lambda: StratifiedBatchSampler(**given), f"`{name}` to be an int, but got .*: give a whole number")  # noqa: B023
        for name in ("num_unlabelled", "batch_size", "unlabelled_batch_size"):
            given = {"labels": [0, 1, 1], "prevalence": BINARY, "batch_size": 4, "num_unlabelled": 9, name: value}
            assert_refused(
                lambda: SemiSupervisedBatchSampler(**given),  # noqa: B023
                f"`{name}` to be an int, but got .*: give a whole number",
            )

    @pytest.mark.parametrize("value", NO_GENERATORS, ids=lambda value: type(value).__name__)
    def test_anything_but_a_torch_generator_is_refused(self, make: Make, value: Any) -> None:
        assert_refused(
            lambda: make(generator=value), f"a torch.Generator, but got {type(value).__name__}.*: write torch.Generator"
        )

    def test_a_seed_is_refused_with_the_generator_to_write(self, make: Make) -> None:
        with unchecked_types(), pytest.raises(ValueError, match="Generator") as caught:
            make(generator=3)
        assert "torch.Generator().manual_seed(3)" in str(caught.value)
        assert list(make(generator=torch.Generator().manual_seed(3))) == list(make(generator=seeded(3)))

    def test_ints_of_numpy_and_torch_are_ints(self, make: Make) -> None:
        kinds: list[Any] = [int, np.int64, torch.tensor]
        with unchecked_types():
            plain, *others = (list(make(kind(10), generator=seeded(), num_replicas=kind(2), rank=kind(1))) for kind in kinds)
        assert others == [plain, plain]

    @pytest.mark.parametrize(
        "labels", [torch.tensor([0, 1]) + 0j, torch.tensor([0, 1]).to_sparse(), [[0, 1], [1]], [[0.5, 0.5], [1.0]]]
    )
    def test_labels_that_are_complex_sparse_or_ragged_are_refused(self, labels: Any) -> None:
        for kind, size in ((RebalancedSampler, 1), (StratifiedBatchSampler, 2)):
            assert_refused(lambda: kind(labels, BINARY, size), "labels")  # noqa: B023

    @pytest.mark.parametrize("state", [3, None, "state", [("seed", 1)]])
    def test_a_state_that_is_no_mapping_is_refused(self, make: Make, state: Any) -> None:
        assert_refused(lambda: make().load_state_dict(state), "`state_dict\\(\\)` returns it, but got")

    @pytest.mark.parametrize("other", FOREIGN)
    def test_a_state_of_another_sampler_is_refused(self, other: str) -> None:
        with pytest.raises(ValueError, match="Expected"):
            RebalancedSampler(LABELS, THREE, 10).load_state_dict(FOREIGN[other]().state_dict())

    @pytest.mark.parametrize("damage", DAMAGE)
    def test_a_damaged_state_is_refused_and_changes_nothing(self, damage: str) -> None:
        sampler, other = (RebalancedSampler(LABELS, THREE, 10, seeded(seed)) for seed in (0, 1))
        take(iter(other), 3)
        before = sampler.state_dict()
        with pytest.raises(ValueError, match="Expected"):
            sampler.load_state_dict(other.state_dict() | DAMAGE[damage])
        torch.testing.assert_close(sampler.state_dict(), before)
