"""Labelled and unlabelled examples in one batch: their counts, the pool's order, ranks, resumption, the joined dataset."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from members import assert_mean_is, assert_refused, generator
from scipy.stats import chisquare
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from rightloss.losses import LogitAdjustedLoss
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
THREE = Prevalence([0.9, 0.09, 0.01], sampling=[0.5, 0.3, 0.2])
BINARY = Prevalence.binary(population=0.001, sampling=0.5)
VOTES = torch.tensor([[1.0, 0.0, 0.0]] * 20 + [[0.5, 0.5, 0.0]] * 10 + [[0.0, 0.25, 0.75]] * 6).double()
UNLIKELY = 1e-5  # a p-value that chance does not reach, whatever the seed


def batches(sampler: SemiSupervisedBatchSampler, batch_size: int) -> tuple[Tensor, Tensor]:
    """One epoch: the labelled and the unlabelled part of each batch, as (batches, size)."""
    whole = torch.tensor(list(sampler))
    return whole[:, :batch_size], whole[:, batch_size:]


class TestCounts:
    @pytest.mark.parametrize(("beside", "expected"), [(None, 10), (1, 1), (3, 3), (40, 40)])
    def test_every_batch_has_the_counts_asked_for(self, beside: int | None, expected: int) -> None:
        sampler = SemiSupervisedBatchSampler(LABELS, 100, THREE, 10, beside, 70, generator())
        labelled, unlabelled = batches(sampler, 10)
        assert [LABELS[batch].bincount().tolist() for batch in labelled] == [[5, 3, 2]] * 70
        assert unlabelled.shape == (70, expected)
        assert int(unlabelled.min()) >= len(LABELS)
        assert int(unlabelled.max()) < len(LABELS) + 100

    def test_the_labelled_are_those_of_a_stratified_sampler_of_the_same_seed(self) -> None:
        both = SemiSupervisedBatchSampler(LABELS, 50, THREE, 7, 3, 70, generator())
        alone = StratifiedBatchSampler(LABELS, THREE, 7, 70, generator())
        for _ in range(2):
            assert batches(both, 7)[0].tolist() == list(alone)
        assert both.prevalence == alone.prevalence

    def test_the_labelled_do_not_depend_on_the_pool(self) -> None:
        small, large = (SemiSupervisedBatchSampler(VOTES, n, THREE, 7, n // 2, 70, generator()) for n in (4, 400))
        assert torch.equal(batches(small, 7)[0], batches(large, 7)[0])

    @pytest.mark.long
    @pytest.mark.parametrize("labels", [VOTES, torch.nn.functional.one_hot(LABELS, 3).double()])
    def test_votes_are_drawn_class_first_then_example(self, labels: Tensor) -> None:
        sampler = SemiSupervisedBatchSampler(labels, 50, THREE, 8, 1, 10_000, generator())
        drawn = batches(sampler, 8)[0].flatten()
        expected = sum(rho * labels[:, c] / labels[:, c].sum() for c, rho in enumerate(tensor_of(THREE.sampling)))
        assert isinstance(expected, Tensor)
        assert_mean_is(torch.nn.functional.one_hot(drawn, len(labels)).double(), expected)
        assert_mean_is(labels[drawn], sampler.sampling)

    @pytest.mark.long
    def test_a_batch_too_small_for_every_class_is_drawn_at_the_rates(self) -> None:
        sampler = SemiSupervisedBatchSampler(LABELS, 50, THREE, 2, 1, 20_000, generator())
        drawn = LABELS[batches(sampler, 2)[0].flatten()]
        assert_mean_is(torch.nn.functional.one_hot(drawn, 3).double(), tensor_of(THREE.sampling))
        assert sampler.prevalence == THREE

    @pytest.mark.parametrize(
        ("pool", "batch_size", "beside", "expected"),
        [(100, 8, None, 13), (100, 8, 50, 4), (96, 8, 32, 4), (100, 32, 1000, 1), (1, 1, 1, 32)],
    )
    def test_an_epoch_hands_out_as_many_as_there_are_of_both(
        self, pool: int, batch_size: int, beside: int | None, expected: int
    ) -> None:
        assert len(SemiSupervisedBatchSampler(LABELS, pool, THREE, batch_size, beside)) == expected

    def test_only_the_sampling_of_the_prevalence_changes(self) -> None:
        given = Prevalence.dirichlet([90.0, 9.0, 1.0], [0.5, 0.3, 0.2], evidence=2.0)
        sampler = SemiSupervisedBatchSampler(LABELS, 50, given, 7)
        assert sampler.prevalence == given.with_sampling(torch.tensor([4, 2, 1]).double() / 7)


class TestPool:
    @pytest.mark.parametrize(("pool", "beside"), [(1, 1), (9, 4), (9, 9), (9, 10), (9, 30), (100, 7)])
    def test_all_are_used_before_any_is_used_again(self, pool: int, beside: int) -> None:
        sampler = SemiSupervisedBatchSampler(LABELS, pool, THREE, 3, beside, 3 * pool, generator())
        seen: Counter[int] = Counter()
        for number, batch in enumerate(sampler, 1):
            seen.update(batch[3:])
            uses = [seen[len(LABELS) + index] for index in range(pool)]
            assert sum(uses) == number * beside
            assert max(uses) - min(uses) <= 1

    def test_one_epoch_by_default_uses_every_unlabelled_example(self) -> None:
        _, unlabelled = batches(SemiSupervisedBatchSampler(LABELS, 1001, THREE, 3, 10, None, generator()), 3)
        assert sorted(set(unlabelled.flatten().tolist())) == list(range(len(LABELS), len(LABELS) + 1001))

    def test_no_batch_has_an_example_twice(self) -> None:
        # 7 at a time out of 9: most batches span a reshuffling.
        for batch in SemiSupervisedBatchSampler(LABELS, 9, THREE, 3, 7, 500, generator()):
            assert len(set(batch[3:])) == 7

    @pytest.mark.long
    def test_each_is_as_likely_as_any_other_to_come_first(self) -> None:
        # A batch takes the whole pool, so each has an order of its own.
        _, unlabelled = batches(SemiSupervisedBatchSampler(LABELS, 10, THREE, 3, 10, 3000, generator()), 3)
        for place in (0, 4, 9):
            assert chisquare((unlabelled[:, place] - len(LABELS)).bincount().numpy()).pvalue > UNLIKELY

    @pytest.mark.long
    def test_labelled_and_unlabelled_and_the_next_epoch_come_in_orders_of_their_own(self) -> None:
        # Decks of equal size, one card a batch: with a common seed they would have the same order.
        n, prevalence = 5000, Prevalence.positive_unlabelled(0.1)
        sampler = SemiSupervisedBatchSampler([1] * n, n, prevalence, 1, 1, n, generator())
        orders = torch.cat([*batches(sampler, 1), *batches(sampler, 1)], 1).T
        correlations = torch.corrcoef(orders.double()).triu(1)
        assert float(correlations.abs().max()) < 4.5 / (n - 1) ** 0.5  # in standard errors


class TestPositiveUnlabelled:
    PREVALENCE = Prevalence.positive_unlabelled(0.1)

    @pytest.mark.parametrize("labels", [[1] * 30, torch.tensor([[0.0, 1.0]] * 30), torch.tensor([[0.0, 1.0]] * 7)])
    @pytest.mark.parametrize("batch_size", [1, 4, 50])
    def test_the_labelled_are_all_of_class_1(self, labels: Any, batch_size: int) -> None:
        sampler = SemiSupervisedBatchSampler(labels, 100, self.PREVALENCE, batch_size, 5, 40, generator())
        labelled, unlabelled = batches(sampler, batch_size)
        assert int(labelled.max()) < len(labels) <= int(unlabelled.min())
        assert sampler.prevalence == self.PREVALENCE

    def test_each_labelled_example_comes_once_before_any_comes_again(self) -> None:
        labelled, _ = batches(SemiSupervisedBatchSampler([1] * 30, 100, self.PREVALENCE, 10, 5, 6, generator()), 10)
        assert sorted(labelled.flatten().tolist()) == sorted([*range(30)] * 2)

    def test_an_epoch_goes_on_where_it_was_saved(self) -> None:
        one, other = (SemiSupervisedBatchSampler([1] * 30, 100, self.PREVALENCE, 4, 5, 40, generator(seed)) for seed in (0, 1))
        epoch = iter(one)
        list(itertools.islice(epoch, 17))
        other.load_state_dict(one.state_dict())
        assert list(other) == list(epoch)

    def test_samplers_of_labelled_examples_alone_take_it_too(self) -> None:
        labels = [1] * 30
        assert len(list(RebalancedSampler(labels, self.PREVALENCE))) == 30
        assert sorted(itertools.chain(*StratifiedBatchSampler(labels, self.PREVALENCE, 10))) == [*range(30)]

    @pytest.mark.parametrize("labels", [[0, 1, 1], [0, 0], [[0.0, 1.0], [0.5, 0.5]]])
    def test_labels_of_the_other_class_are_refused(self, labels: Any) -> None:
        assert_refused(
            lambda: SemiSupervisedBatchSampler(labels, 100, self.PREVALENCE, 4),
            r"class\(es\) \[1\] only, .* but got \[0(, 1)?\]: leave the other examples out, or give them as unlabelled",
        )


class TestLoss:
    @pytest.mark.parametrize(
        ("prevalence", "labels"),
        [
            (BINARY, [0] * 20 + [1] * 20),
            (Prevalence.binary(0.02, sampling=0.2), [0] * 32 + [1] * 8),
            (Prevalence.positive_unlabelled(0.1), [1] * 40),
        ],
    )
    def test_an_epoch_that_uses_each_once_has_the_mean_loss_and_gradient_of_all(
        self, prevalence: Prevalence, labels: list[int]
    ) -> None:
        x = torch.randn(100, 3, dtype=torch.float64, generator=generator())
        weights = torch.randn(3, 2, dtype=torch.float64, generator=generator(1), requires_grad=True)
        sampler = SemiSupervisedBatchSampler(labels, 60, prevalence, 10, 15, generator=generator())
        dataset = SemiSupervisedDataset(TensorDataset(x[:40], torch.tensor(labels)), TensorDataset(x[40:]))
        criterion, losses = LogitAdjustedLoss(sampler.prevalence, unlabelled_evidence=0.0), []
        for inputs, y in DataLoader(dataset, batch_sampler=sampler):
            labelled, target, unlabelled = split_unlabelled(inputs @ weights, y)
            losses.append(criterion(labelled, target, unlabelled=unlabelled))
        assert len(losses) == 4
        whole = criterion(x[:40] @ weights, torch.tensor(labels), unlabelled=x[40:] @ weights)
        by_batch = torch.stack(losses).mean()
        torch.testing.assert_close(by_batch, whole, rtol=1e-12, atol=0)
        ours, theirs = (torch.autograd.grad(loss, weights)[0] for loss in (by_batch, whole))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)

    def test_an_unknown_prevalence_stays_unknown(self) -> None:
        given = Prevalence.unknown(3, sampling=[0.5, 0.3, 0.2], start=[0.8, 0.1, 0.1])
        found = SemiSupervisedBatchSampler(LABELS, 50, given, 7).prevalence
        assert found == given.with_sampling(torch.tensor([4, 2, 1]).double() / 7)
        assert found.is_unknown


class TestManyRanks:
    @pytest.mark.parametrize("replicas", [2, 3])
    def test_ranks_share_out_the_pool_without_overlap(self, replicas: int) -> None:
        # 12 batches of 5 use 60 unlabelled examples once each, whichever rank takes them.
        ranks = [
            SemiSupervisedBatchSampler(LABELS, 60, THREE, 7, 5, 12, generator(), replicas, rank) for rank in range(replicas)
        ]
        parts = [batches(sampler, 7)[1] for sampler in ranks]
        assert {len(part) for part in parts} == {12 // replicas}
        used = torch.cat(parts).flatten().tolist()
        assert sorted(used) == list(range(len(LABELS), len(LABELS) + 60))

    def test_every_rank_has_the_counts_of_every_class(self) -> None:
        for rank in range(3):
            labelled, _ = batches(SemiSupervisedBatchSampler(LABELS, 60, THREE, 10, 5, 12, generator(), 3, rank), 10)
            assert [LABELS[batch].bincount().tolist() for batch in labelled] == [[5, 3, 2]] * 4


class TestState:
    @pytest.mark.parametrize(
        "other",
        [
            {"num_unlabelled": 51},
            {"unlabelled_batch_size": 4},
            {"batch_size": 8},
            {"num_batches": 21},
            {"labels": LABELS[1:]},
        ],
        ids=lambda other: next(iter(other)),
    )
    def test_a_state_of_another_sampler_is_refused(self, other: dict[str, Any]) -> None:
        sizes: dict[str, Any] = {"labels": LABELS, "num_unlabelled": 50, "prevalence": THREE, "batch_size": 7}
        sizes |= {"unlabelled_batch_size": 5, "num_batches": 20}
        sampler, foreign = SemiSupervisedBatchSampler(**sizes), SemiSupervisedBatchSampler(**sizes | other)
        assert_refused(lambda: sampler.load_state_dict(foreign.state_dict()), "make this sampler like the one that was saved")

    def test_a_state_of_a_stratified_sampler_is_refused(self) -> None:
        sampler, foreign = SemiSupervisedBatchSampler(LABELS, 50, THREE, 7), StratifiedBatchSampler(LABELS, THREE, 7)
        assert_refused(lambda: sampler.load_state_dict(foreign.state_dict()), "of a sampler of the same kind")

    @pytest.mark.long
    @pytest.mark.parametrize("place", [1, 4, 8])
    @pytest.mark.parametrize("with_generator", [True, False])
    def test_a_loader_resumes_in_the_middle_of_an_epoch(self, place: int, with_generator: bool) -> None:
        dataset = SemiSupervisedDataset(TensorDataset(torch.arange(32), LABELS), torch.arange(32, 72))

        def made(seed: int) -> tuple[SemiSupervisedBatchSampler, DataLoader[Any]]:
            torch.manual_seed(seed)
            own = generator(seed) if with_generator else None
            sampler = SemiSupervisedBatchSampler(LABELS, 40, THREE, 7, 5, generator=own)
            return sampler, DataLoader(dataset, batch_sampler=sampler)

        sampler, loader = made(0)
        epoch = iter(loader)
        list(itertools.islice(epoch, place))
        state = sampler.state_dict()
        expected = [[[x.tolist(), y.tolist()] for x, y in each] for each in (epoch, loader, loader)]
        assert len(expected[0]) == len(sampler) - place
        resumed, loader = made(1)
        resumed.load_state_dict(state)
        assert [[[x.tolist(), y.tolist()] for x, y in loader] for _ in range(3)] == expected


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
    "tensor": (torch.tensor(1), torch.tensor(0), [1, 0, -100, -100]),
    "int8": (torch.tensor(1, dtype=torch.int8), torch.tensor(0, dtype=torch.int8), [1, 0, -100, -100]),
    "mask": (torch.tensor([[1, 0]]), torch.tensor([[0, 0]]), [[[1, 0]], [[0, 0]], [[-100, -100]], [[-100, -100]]]),
    "NumPy mask": (np.array([1, 0]), np.array([0, 0]), [[1, 0], [0, 0], [-100, -100], [-100, -100]]),
    "votes": (torch.tensor([0.5, 0.5]), torch.tensor([0.0, 1.0]), [[0.5, 0.5], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]]),
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
    def test_the_default_collate_joins_labels_of_every_kind(self, kind: str) -> None:
        one, two, expected = KINDS[kind]
        ((x, y),) = DataLoader(self.joined(one, two), batch_size=4)
        assert y.tolist() == expected
        assert y.dtype == torch.as_tensor(one).dtype
        assert x[:, 0].tolist() == [0, 0, 1, 1]

    @pytest.mark.parametrize("kind", KINDS)
    def test_an_unlabelled_example_alone_has_a_label_of_the_same_type(self, kind: str) -> None:
        one, two, _ = KINDS[kind]
        no_label = self.joined(one, two)[3][1]
        assert torch.as_tensor(no_label).dtype == torch.as_tensor(one).dtype
        assert np.shape(no_label) == np.shape(one)

    @pytest.mark.parametrize("kind", KINDS)
    def test_what_was_joined_is_split_again(self, kind: str) -> None:
        one, two, expected = KINDS[kind]
        ((x, y),) = DataLoader(self.joined(one, two), batch_size=4)
        labelled, target, unlabelled = split_unlabelled(x, y)
        assert target.tolist() == expected[:2]
        assert torch.equal(labelled, torch.zeros(2, 3))
        assert torch.equal(unlabelled, torch.ones(2, 3))

    def test_labelled_examples_come_first_and_pass_through(self) -> None:
        pairs = [("a", 0), ("b", 1)]
        dataset = SemiSupervisedDataset(Pairs(pairs), Pairs(["c", "d", "e"]))
        assert [dataset[index] for index in range(len(dataset))] == [("a", 0), ("b", 1), ("c", -100), ("d", -100), ("e", -100)]
        assert [dataset[index] for index in (-1, -4, -5)] == [("e", -100), ("b", 1), ("a", 0)]
        for index in (5, -6):
            with pytest.raises(IndexError, match="out of range"):
                dataset[index]

    def test_the_rest_of_a_tuple_is_dropped_and_a_list_is_an_x(self) -> None:
        unlabelled = Pairs([("c",), ("d", 1), ("e", 1, "more"), ["a", "list"], {"x": 1}])
        dataset = SemiSupervisedDataset(Pairs([("a", 0)]), unlabelled)
        assert [dataset[index][0] for index in range(1, 6)] == ["c", "d", "e", ["a", "list"], {"x": 1}]

    def test_nothing_is_read_before_the_first_item(self) -> None:
        class Closed(Pairs):
            def __getitem__(self, index: int) -> Any:
                raise OSError("read too early")

        SemiSupervisedDataset(Closed([0]), Closed([0]))

    def test_a_label_changed_in_place_does_not_change_the_next(self) -> None:
        dataset = self.joined(torch.tensor([0, 1]))
        dataset[1][1].fill_(7)
        assert dataset[1][1].tolist() == [-100, -100]

    def test_masks_of_bytes_take_an_index_that_they_can_hold(self) -> None:
        mask = torch.zeros(2, dtype=torch.uint8)
        assert self.joined(mask, ignore_index=255)[1][1].tolist() == [255, 255]
        assert_refused(
            lambda: self.joined(mask)[1], r"holds `ignore_index`, -100, but got torch.uint8.*choose an index in 0\.\.255"
        )
        assert_refused(lambda: self.joined(mask.numpy())[1], "holds `ignore_index`, -100, but got uint8")

    def test_a_read_only_array_of_votes_is_taken(self) -> None:
        votes = np.array([0.5, 0.5])
        votes.flags.writeable = False
        assert self.joined(votes)[1][1].tolist() == [0.0, 0.0]

    @pytest.mark.long
    def test_workers_give_what_one_process_gives(self) -> None:
        dataset = SemiSupervisedDataset(TensorDataset(torch.arange(32), LABELS), torch.arange(32, 72))
        epochs = []
        for workers in (0, 2):
            sampler = SemiSupervisedBatchSampler(LABELS, 40, THREE, 7, 5, generator=generator())
            loader = DataLoader(dataset, batch_sampler=sampler, num_workers=workers)
            epochs.append([[x.tolist(), y.tolist()] for x, y in loader])
        assert epochs[0] == epochs[1]

    @pytest.mark.parametrize(
        "label",
        [
            *(0.5, True, "ill", None, [0, 1], (0.5, 0.5), np.float64(1), np.bool_(True)),
            *(torch.tensor(value) for value in (True, 1.0, 1j, [1.0, 1.0], [[0.0, 1.0], [1.0, 1.0]], [float("nan"), 1.0])),
        ],
        ids=repr,
    )
    def test_labels_that_no_loss_takes_are_refused(self, label: Any) -> None:
        assert_refused(lambda: self.joined(label)[1], "Expected labels to be ints.*convert class numbers to int64")

    @pytest.mark.parametrize("item", [torch.zeros(2), [torch.zeros(2), 1], (torch.zeros(2),), (1, 2, 3), {"x": 1, "y": 2}])
    def test_labelled_items_that_are_no_pairs_are_refused(self, item: Any) -> None:
        dataset = SemiSupervisedDataset(Pairs([item]), torch.ones(2, 3))
        for index in (0, 1):
            assert_refused(lambda: dataset[index], r"tuples \(x, y\), but got .*TensorDataset")  # noqa: B023

    @pytest.mark.parametrize("data", [Stream(), 3, None, iter([1])], ids=lambda data: type(data).__name__)
    def test_data_that_cannot_be_asked_by_number_are_refused(self, data: Any) -> None:
        pairs = Pairs([(0, 0)])
        assert_refused(lambda: SemiSupervisedDataset(data, pairs), "`labelled` to be a dataset with `__len__`")
        assert_refused(lambda: SemiSupervisedDataset(pairs, data), "`unlabelled` to be a dataset with `__len__`")

    def test_no_examples_are_refused(self) -> None:
        assert_refused(lambda: SemiSupervisedDataset([], [1]), "at least one labelled example")
        assert_refused(lambda: SemiSupervisedDataset([(1, 1)], []), "at least one unlabelled example")

    def test_an_ignore_index_that_is_no_int_is_refused(self) -> None:
        index: Any = "none"
        assert_refused(lambda: self.joined(1, ignore_index=index), "`ignore_index` to be an int")


class TestSplit:
    @pytest.mark.parametrize("shape", [(), (3,), (3, 4, 5)])
    def test_rows_keep_their_order_wherever_the_unlabelled_stand(self, shape: tuple[int, ...]) -> None:
        outputs = torch.randn(6, *shape, generator=generator())
        target = torch.tensor([-100, 2, -100, 0, 1, -100])
        labelled, y, unlabelled = split_unlabelled(outputs, target)
        assert torch.equal(labelled, outputs[[1, 3, 4]])
        assert y.tolist() == [2, 0, 1]
        assert torch.equal(unlabelled, outputs[[0, 2, 5]])

    def test_a_dense_target_is_unlabelled_only_if_all_of_it_is(self) -> None:
        target = torch.full((3, 2, 2), -100)
        target[1, 0, 1] = 1
        outputs = torch.arange(3.0).view(3, 1, 1, 1).expand(3, 2, 2, 2)
        labelled, y, unlabelled = split_unlabelled(outputs, target)
        assert labelled[:, 0, 0, 0].tolist() == [1]
        assert torch.equal(y, target[1:2])
        assert unlabelled[:, 0, 0, 0].tolist() == [0, 2]

    def test_a_row_of_no_votes_is_unlabelled(self) -> None:
        votes = torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
        labelled, y, unlabelled = split_unlabelled(torch.arange(3), votes)
        assert (labelled.tolist(), unlabelled.tolist()) == ([1, 2], [0])
        assert torch.equal(y, votes[1:])

    def test_class_156_of_a_byte_mask_is_a_class(self) -> None:
        target = torch.tensor([156, 255, 0], dtype=torch.uint8)
        assert split_unlabelled(torch.arange(3), target)[0].tolist() == [0, 1, 2]
        assert split_unlabelled(torch.arange(3), target, ignore_index=255)[2].tolist() == [1]

    @pytest.mark.parametrize(("target", "sizes"), [([0, 1, 1], (3, 0)), ([-100, -100, -100], (0, 3)), ([], (0, 0))])
    def test_a_part_may_be_empty(self, target: list[int], sizes: tuple[int, int]) -> None:
        labelled, y, unlabelled = split_unlabelled(torch.zeros(len(target), 2), torch.tensor(target, dtype=torch.long))
        assert (len(labelled), len(unlabelled)) == sizes
        assert len(y) == len(labelled)
        assert labelled.shape[1] == unlabelled.shape[1] == 2

    def test_gradients_reach_the_rows_that_they_belong_to(self) -> None:
        outputs = torch.randn(5, 2, dtype=torch.float64, generator=generator(), requires_grad=True)
        target = torch.tensor([-100, 1, 0, -100, 1])
        labelled, _, unlabelled = split_unlabelled(outputs, target)
        weights = torch.arange(1.0, 11.0, dtype=torch.float64).view(5, 2)
        loss = (weights[[1, 2, 4]] * labelled).sum() - (weights[[0, 3]] * unlabelled).sum()
        (slope,) = torch.autograd.grad(loss, outputs)
        assert torch.equal(slope, torch.where(target[:, None] >= 0, weights, -weights))

    def test_both_parts_come_from_one_batch_norm(self) -> None:
        x, y = torch.randn(8, 3, generator=generator()), torch.tensor([0, 1, 0, 1] + [-100] * 4)
        norm = nn.BatchNorm1d(3, affine=False, momentum=1.0)
        labelled, _, unlabelled = split_unlabelled(norm(x), y)
        torch.testing.assert_close(norm.running_mean, x.mean(0))
        torch.testing.assert_close(torch.cat([labelled, unlabelled]).mean(0), torch.zeros(3), atol=1e-6, rtol=0)

    def test_slices_at_the_batch_size_give_the_same(self) -> None:
        dataset = SemiSupervisedDataset(TensorDataset(torch.arange(32), LABELS), torch.arange(32, 72))
        sampler = SemiSupervisedBatchSampler(LABELS, 40, THREE, 7, 5, generator=generator())
        for x, y in DataLoader(dataset, batch_sampler=sampler):
            labelled, target, unlabelled = split_unlabelled(x, y)
            assert torch.equal(labelled, x[:7])
            assert torch.equal(target, LABELS[labelled])
            assert torch.equal(unlabelled, x[7:])

    BAD: tuple[tuple[Callable[[], Any], str], ...] = (
        (lambda: split_unlabelled(torch.zeros(3, 2), torch.zeros(4).long()), r"shapes \(3, 2\) and \(4,\)"),
        (lambda: split_unlabelled(torch.tensor(0.0), torch.tensor(1)), r"shapes \(\) and \(\)"),
        (lambda: split_unlabelled(torch.zeros(3, 2), torch.zeros(3)), r"call `target.long\(\)`"),
        (lambda: split_unlabelled([0.0], torch.zeros(1).long()), "`outputs` to be a tensor, but got list"),  # type: ignore[arg-type]
        (lambda: split_unlabelled(torch.zeros(1), [0]), "`target` to be a tensor, but got list"),  # type: ignore[arg-type]
        (lambda: split_unlabelled(torch.zeros(1), torch.tensor([0]), None), "`ignore_index` to be an int"),  # type: ignore[arg-type]
    )

    @pytest.mark.parametrize(("call", "message"), BAD)
    def test_what_is_no_batch_is_refused(self, call: Callable[[], Any], message: str) -> None:
        assert_refused(call, message)
