"""The test of unlabelled rows against labelled ones: its size, its power, what leaves it unchanged, and bad input."""

from __future__ import annotations

import math
import warnings
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from draws import SEED, assert_refused, stream
from scipy.stats import norm, rankdata
from scipy.stats import t as student
from sklearn.metrics import roc_auc_score
from without_torch import HAS_TORCH

import rightloss as rl
from rightloss.shift import LabelShiftWarning, UnlabelledShift, unlabelled_shift_test
from rightloss.shift.unlabelled_shift import HeldOutPart, Learner, normal_scores

Rows = tuple[np.ndarray, np.ndarray, np.ndarray]


def drawn(rows: int, pi: float, seed: int, shift: float = 0.0, columns: int = 4, unlabelled: int | None = None) -> Rows:
    """Draw `rows` of each of two normal classes, and ten times as many unlabelled, moved by `shift` in the second column."""
    random = np.random.default_rng([SEED, seed])
    y = np.repeat([0, 1], rows)
    hidden = (random.random(20 * rows if unlabelled is None else unlabelled) < pi).astype(int)
    x, others = random.standard_normal((len(y), columns)), random.standard_normal((len(hidden), columns))
    x[:, 0] += 1.5 * y
    others[:, 0] += 1.5 * hidden
    others[:, 1] += shift
    return x, y, others


def quietly(*args: Any, **options: Any) -> UnlabelledShift:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LabelShiftWarning)
        return unlabelled_shift_test(*args, **options)


def share_refused(cases: list[tuple[Any, ...]], **options: Any) -> float:
    return float(np.mean([not quietly(*case, **options).tenable for case in cases]))


def assert_no_more_than(share: float, size: float, cases: int) -> None:
    assert share <= size + 4 * math.sqrt(size * (1 - size) / cases), share


class TestSize:
    """At most nominal without a shift."""

    @pytest.mark.long
    @pytest.mark.parametrize(("pi", "known"), [(0.3, True), (0.3, False), (0.001, True)])
    def test_of_two_classes(self, pi: float, known: bool) -> None:
        cases = [(*drawn(50, pi, seed), pi if known else None) for seed in range(80)]
        assert_no_more_than(share_refused(cases), 0.06, 80)

    @pytest.mark.long
    def test_of_three_classes_at_an_unknown_prevalence(self) -> None:
        cases = []
        for seed in range(50):
            random = np.random.default_rng([SEED, 1000 + seed])
            y, hidden = np.repeat([0, 1, 2], 60), random.choice(3, 900, p=[0.7, 0.25, 0.05])
            x, others = (random.standard_normal((len(k), 3)) + 1.5 * np.eye(3)[k] for k in (y, hidden))
            cases.append((x, y, others, None))
        assert_no_more_than(share_refused(cases), 0.06, 50)

    @pytest.mark.long
    def test_of_rows_that_are_alike_within_a_group_only_if_the_groups_are_given(self) -> None:
        cases, groups = [], []
        for seed in range(40):
            x, y, unlabelled = drawn(100, 0.1, 2000 + seed, unlabelled=1000)
            random = np.random.default_rng([SEED, 3000 + seed])
            own = 30 * y + random.integers(0, 30, len(y)), 60 + random.integers(0, 300, len(unlabelled))
            moved = random.standard_normal((360, x.shape[1]))
            cases.append((x + moved[own[0]], y, unlabelled + moved[own[1]], 0.1))
            groups.append(own)
        refused = np.mean([not quietly(*case, groups=own).tenable for case, own in zip(cases, groups, strict=True)])
        assert_no_more_than(float(refused), 0.06, 40)
        assert share_refused(cases) > 0.25


class TestPower:
    @pytest.mark.long
    @pytest.mark.parametrize(
        ("change", "kind", "known"), [("mean", "means", True), ("spread", "spreads", False), ("correlation", "pairs", True)]
    )
    def test_it_names_what_differs(self, change: str, kind: str, known: bool) -> None:
        named = []
        for seed in range(10):
            x, y, unlabelled = drawn(300, 0.3, 5000 + seed, 0.5 * (change == "mean"))
            if change == "spread":
                unlabelled[:, 1] *= 1.5
            if change == "correlation":
                unlabelled[:, 2] = 0.6 * unlabelled[:, 1] + 0.8 * unlabelled[:, 2]
            found = quietly(x, y, unlabelled, 0.3 if known else None)
            named.append(found.p_values[kind] < 0.05)
            assert found.p_value == min(found.p_values.values())
        assert np.mean(named) > 0.8

    @pytest.mark.long
    def test_a_wrong_prevalence_is_told_from_a_shift(self) -> None:
        wrong = [quietly(*drawn(300, 0.5, 6000 + seed), 0.1) for seed in range(8)]
        assert not any(each.tenable for each in wrong)
        assert np.mean([each.any_prevalence > 0.05 for each in wrong]) > 0.7
        assert "check the prevalence first" in max(wrong, key=lambda each: each.any_prevalence).message
        shifted = [quietly(*drawn(300, 0.5, 6100 + seed, 0.5), 0.5) for seed in range(3)]
        assert all(each.any_prevalence < 0.05 for each in shifted)

    @pytest.mark.long
    def test_a_shift_within_an_unseen_class_is_not_seen_and_within_another_is(self) -> None:
        for pi, seen in ((0.02, False), (0.5, True)):
            refused = []
            for seed in range(15):
                x, y, unlabelled = drawn(200, 0.0, 7100 + seed)
                few = int(pi * len(unlabelled))
                unlabelled[:few, 0] += 0.5  # instead of 1.5
                found = quietly(x, y, unlabelled, pi)
                refused.append(not found.tenable)
                assert (1 in found.unseen) is not seen
                assert ("within class(es) [1] alone would hardly show" in found.message) is not seen
            assert np.mean(refused) > 0.8 if seen else np.mean(refused) < 0.3

    def test_streams_that_never_overlap_are_refused_although_no_score_varies(self) -> None:
        y = np.repeat([0, 1], 100)
        found = quietly(np.ones((200, 1)), y, np.zeros((500, 1)), 0.3)
        assert found.p_value < 1e-6
        assert found.auc == pytest.approx(1)


class TestWarning:
    @pytest.mark.long
    def test_it_warns_rather_than_raises_and_is_silent_without_a_shift(self) -> None:
        with pytest.warns(LabelShiftWarning, match="no mixture of the labelled classes at this prevalence.*means of columns"):
            found = unlabelled_shift_test(*drawn(200, 0.3, 10, 1.0), 0.3)
        assert not found.tenable
        assert len(found.complaints) == 2
        assert str(found) == found.message
        assert found.message.startswith(found.complaints[0])
        found = unlabelled_shift_test(*drawn(200, 0.3, 11), 0.3, size=1e-6)  # a warning would be an error
        assert found.tenable
        assert found.complaints == ()
        assert found.any_prevalence == quietly(*drawn(200, 0.3, 11), None).p_value
        assert abs(found.auc - 0.5) < 5 * found.auc_error

    def test_too_few_rows_are_no_proof(self) -> None:
        x, y, unlabelled = drawn(1, 0.3, 12, unlabelled=50)
        with pytest.warns(LabelShiftWarning, match="Too few rows"):
            found = unlabelled_shift_test(x, y, unlabelled, 0.3)
        assert found.p_value == 1


class TestInvariance:
    def test_the_order_of_the_rows_changes_nothing(self) -> None:
        x, y, unlabelled = drawn(40, 0.3, 20, 0.3, unlabelled=200)
        random = np.random.default_rng(0)
        rows, others = random.permutation(len(x)), random.permutation(len(unlabelled))
        assert quietly(x[rows], y[rows], unlabelled[others], 0.3) == quietly(x, y, unlabelled, 0.3)

    @pytest.mark.parametrize("known", [True, False])
    def test_increasing_changes_of_columns_and_constant_and_empty_ones_change_nothing(self, known: bool) -> None:
        x, y, unlabelled = drawn(40, 0.3, 22, 0.3, unlabelled=200)
        pi, scale = 0.3 if known else None, np.array([1e-3, 2.0, 3.0, 1.0])
        more, others = (
            np.column_stack([np.exp(scale * each), np.full(len(each), 5.0), np.full(len(each), np.nan)])
            for each in (x, unlabelled)
        )
        plain, moved = quietly(x, y, unlabelled, pi), quietly(more, y, others, pi)
        assert moved.p_value == pytest.approx(plain.p_value, rel=1e-8)
        assert moved.auc == pytest.approx(plain.auc, rel=1e-8)
        for unknown in (rl.Prevalence.unknown(2), rl.Prevalence.beta(3.0, 7.0)) * (not known):
            assert quietly(x, y, unlabelled, unknown) == plain

    def test_every_kind_of_array_and_label_gives_the_same(self) -> None:
        x, y, unlabelled = drawn(40, 0.3, 24, 0.2, unlabelled=200)
        plain = quietly(x, y, unlabelled, 0.3)
        frame, others = (pd.DataFrame(each, columns=list("abcd")) for each in (x, unlabelled))
        assert quietly(frame, pd.Series(y), others, [0.7, 0.3]) == plain
        assert quietly(x.tolist(), y == 1, unlabelled.astype(object), rl.Prevalence.binary(0.3)) == plain
        images = quietly(x.reshape(80, 2, 2), np.eye(2)[y], unlabelled.reshape(-1, 2, 2), 0.3)
        assert images.p_value == pytest.approx(plain.p_value)
        ignored = np.concatenate([x, 9 + x[:10]]), np.append(y, np.full(10, -100))
        assert quietly(*ignored, unlabelled, 0.3) == plain
        alone = quietly(x, y, unlabelled, 0.3, groups=([f"p{row}" for row in range(80)], None))
        assert alone.p_value == pytest.approx(plain.p_value)
        if HAS_TORCH:
            import torch

            assert quietly(*map(torch.from_numpy, (x, y, unlabelled)), 0.3) == plain
            first, again = (quietly(x, y, unlabelled, 0.3, generator=torch.Generator().manual_seed(1)) for _ in range(2))
            assert first == again

    def test_the_generator_alone_decides_on_the_cut(self) -> None:
        data = drawn(40, 0.3, 27, unlabelled=200)
        first, again, other = (quietly(*data, 0.3, generator=stream(seed)) for seed in (1, 1, 2))
        assert first == again
        assert first.auc != other.auc
        assert quietly(*data, 0.3) == quietly(*data, 0.3, generator=0)

    @pytest.mark.long
    def test_many_columns_are_reduced_to_components_and_missing_values_hide_no_shift(self) -> None:
        x, y, unlabelled = drawn(100, 0.3, 28, columns=60)
        assert quietly(x, y, unlabelled + 0.3, 0.3).p_value < 1e-3
        x, y, unlabelled = drawn(100, 0.3, 29, 1.0)
        x[::7, 1], unlabelled[::7, 1] = np.nan, np.nan
        assert quietly(x, y, unlabelled, 0.3).p_value < 1e-3


class TestParts:
    """Compare the statistics of one held-out part with scipy and scikit-learn."""

    def part(self, seed: int) -> tuple[HeldOutPart, np.ndarray, np.ndarray]:
        random = np.random.default_rng([SEED, seed])
        votes = np.eye(3)[np.repeat([0, 1, 2], [12, 9, 40])]
        return HeldOutPart(votes, np.arange(61)), random.standard_normal((61, 1)), np.array([0.8, 0.2])

    def test_normal_scores_are_those_of_scipys_ranks(self) -> None:
        table = np.random.default_rng(SEED).integers(0, 9, (50, 3)).astype(float)
        expected = norm.ppf((rankdata(table, axis=0) - 0.5) / 50)
        np.testing.assert_allclose(normal_scores(table), expected - expected.mean(0), atol=1e-12)

    def test_the_ridge_is_the_features_over_the_squared_difference_that_is_not_noise(self) -> None:
        x, stream_of = stream(1).normal(size=(90, 4)), np.repeat(np.arange(3), 30)
        x[:, :2] += 2.0 * (stream_of == 1)[:, None]  # a difference in features of the first kind; noise in the second
        found = Learner(x, np.eye(3)[stream_of], np.repeat(["mean", "spread"], 2)).direction(np.array([-1.0, 1.0, 0.0]))
        delta, noise = x[stream_of == 1].mean(0) - x[stream_of == 0].mean(0), 2 / 15  # q / n at n = 1 / (1/30 + 1/30)
        energies = np.repeat([max(0.0, (part**2).sum() - noise) for part in (delta[:2], delta[2:])], 2)
        ridge = 2 / (15 * energies + 2)  # √2q = 2
        np.testing.assert_allclose((np.cov(x.T, bias=True) + np.diag(ridge)) @ found, delta, rtol=1e-9, atol=1e-12)

    def test_z_is_as_rare_as_welchs_t(self) -> None:
        for seed in range(10):
            held, score, pi = self.part(seed)
            parts = [score[held.votes[:, k] == 1, 0] for k in range(3)]
            variances = [c**2 * part.var(ddof=1) / len(part) for c, part in zip((*pi, 1), parts, strict=True)]
            total = sum(variances)
            degrees = total**2 / sum(v**2 / (len(part) - 1) for v, part in zip(variances, parts, strict=True))
            t = (pi[0] * parts[0].mean() + pi[1] * parts[1].mean() - parts[2].mean()) / math.sqrt(total)
            expected = float(norm.isf(student.sf(abs(t), degrees)))
            assert abs(held.z_values(score, pi)[0]) == pytest.approx(expected, abs=0.01)

    def test_auc_is_scikit_learns_with_weights(self) -> None:
        held, score, pi = self.part(1)
        score = np.round(score, 1)  # with ties
        weight = held.votes @ np.array([pi[0] / 12, pi[1] / 9, 1.0])
        expected = roc_auc_score(held.votes[:, 2] == 0, score[:, 0], sample_weight=weight)
        assert held.auc(score[:, 0], pi)[0] == pytest.approx(expected, abs=1e-12)

    @pytest.mark.long
    def test_the_error_of_the_auc_is_the_spread_over_samples(self) -> None:
        found = np.array([held.auc(score[:, 0], pi) for held, score, pi in map(self.part, range(400))])
        spread, error = found[:, 0].std(ddof=1), math.sqrt(found[:, 1].mean())
        assert abs(spread / error - 1) < 4 / math.sqrt(2 * 400) + 0.03

    def test_rows_repeated_within_their_groups_count_once(self) -> None:
        held, score, pi = self.part(2)
        repeated = HeldOutPart(np.repeat(held.votes, 3, 0), np.repeat(held.groups, 3))
        assert repeated.z_values(np.repeat(score, 3, 0), pi)[0] == pytest.approx(held.z_values(score, pi)[0], rel=1e-9)

    def test_without_the_mix_no_class_has_a_mean(self) -> None:
        held, score, _ = self.part(4)
        classes = score + held.votes[:, [1]]
        mix, rest, indicators = held.without_mix(np.append(score, score**2, 1), classes)
        np.testing.assert_allclose(held.means(rest)[:-1], 0, atol=1e-12)
        np.testing.assert_allclose(held.means(indicators)[:-1], np.eye(2), atol=1e-12)
        assert mix.sum() == pytest.approx(1)


class TestBadInput:
    def test_it_is_refused_with_the_remedy(self) -> None:
        x, y, unlabelled = drawn(20, 0.3, 30)
        table, others = pd.DataFrame(x, columns=list("abcd")), pd.DataFrame(unlabelled, columns=list("bacd"))
        refused: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
            ((x[:, 0], y, unlabelled, 0.3), {}, r"x\[:, None\]"),
            ((x, y, unlabelled[:, :2], 0.3), {}, "the 4 columns of the labelled rows"),
            ((x, y, unlabelled[:0], 0.3), {}, "is the data set empty"),
            ((table, y, others, 0.3), {}, r"unlabelled\[x\.columns\]"),
            ((x, y[:-1], unlabelled, 0.3), {}, "one label per row"),
            ((x, y * 0, unlabelled, 0.3), {}, "cannot be tested"),
            ((x, y * 0 + 1, unlabelled, None), {}, r"class\(es\) \[0\]"),
            ((x, y.astype(float), unlabelled, 0.3), {}, r"labels\.long\(\)"),
            ((x * 0, y, unlabelled * 0, 0.3), {}, "only constant ones"),
            ((x, y, unlabelled, 30), {}, "is it a percentage"),
            ((x, y, unlabelled, [0.5, 0.2, 0.3]), {}, r"class\(es\) \[2\]"),
            ((x, y, unlabelled, 0.3), {"size": 5}, "5 % false alarms"),
            ((x, y, unlabelled, 0.3), {"folds": 1}, "of at least 2"),
            ((x, y, unlabelled, 0.3), {"generator": "3"}, "or a seed"),
            ((x, y, unlabelled, 0.3), {"groups": np.arange(40)}, "a pair"),
            ((x, y, unlabelled, 0.3), {"groups": (np.arange(39), None)}, "one group per row"),
        ]
        for given, options, words in refused:
            assert_refused(partial(unlabelled_shift_test, *given, **options), words)
