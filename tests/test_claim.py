"""Properties of the benchmark that compares all corrections: its losses, its corrections and its counts."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

from claim import Cell, check_losses, enough, of_each, with_share
from claim_methods import LOGIT_ADJUSTED, LOSSES, Job, Rows, Stack, fit
from claim_posthoc import Scores, at_mean, auc, averaged, moved
from claim_sets import Task
from claim_tables import GUESS, Compared, median_interval, verdict
from unlabelled_methods import Draw, Kind
from unlabelled_methods import Job as StreamJob
from unlabelled_methods import fit as fit_streams

PI = torch.tensor([[0.8, 0.2], [0.99, 0.01]])


@pytest.mark.long
def test_stacked_losses_have_the_librarys_gradients():
    check_losses()


@pytest.mark.parametrize("name", [LOGIT_ADJUSTED, "by uncertainty", "by x, half", "by x"])
def test_weights_that_depend_on_x_alone_leave_the_truth_a_stationary_point(name: str):
    positives = torch.tensor([1, 3, 6])  # of ten rows at each of three x
    y = torch.cat([(torch.arange(10) < count).long() for count in positives])
    z = torch.stack([torch.zeros(3), (positives / (10 - positives)).log()], 1).repeat_interleave(10, 0)
    rho = torch.bincount(y) / len(y)
    stack = Stack([Job(name, 1, 0.0)], PI, rho)
    own = z[:, None].clone().requires_grad_()
    stack.losses(own, y).sum().backward()
    assert own.grad is not None
    by_x = own.grad[:, 0].reshape(3, 10, 2).sum(1)
    torch.testing.assert_close(by_x, torch.zeros(3, 2), atol=1e-7, rtol=0)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["linear", "MLP"])
def test_unlabelled_rows_of_no_weight_leave_the_path_of_logit_adjustment(kind: Kind):
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(120) % 2
    x = torch.randn(120, 4, generator=generator) + y[:, None]
    others = torch.randn(300, 4, generator=generator)
    kept = fit(kind, Rows(x, y, x, y, x, y, x, y, {}, PI[:1], PI[0]), [Job(LOGIT_ADJUSTED, None, 1e-3)], seed=3, steps=40)
    ours = kept.table(x)[:, 0]
    draw = Draw(x, y, x, y, others, x, y, 0.2)
    theirs = fit_streams(kind, draw, [StreamJob("stream", "0", 1e-3, 0.0, 0.2)], seed=3, steps=40).z_test[:, 0]
    odds = (ours[:, 1] - ours[:, 0] + np.log(0.2 / 0.8)).float()
    torch.testing.assert_close(odds, theirs, atol=1e-5, rtol=1e-5)


def test_the_focal_loss_moves_away_from_the_truth():
    y = torch.tensor([1, 0, 0, 0])
    z = torch.tensor([[[0.0, -np.log(3)]]]).float().repeat(4, 1, 1).requires_grad_()
    Stack([Job("focal", None, 0.0)], PI, torch.tensor([0.75, 0.25])).losses(z, y).sum().backward()
    assert z.grad is not None
    assert float(z.grad.sum(0).abs().max()) > 0.01


def test_only_losses_without_a_population_are_trained_once():
    free = {name for name, loss in LOSSES.items() if not loss.depends}
    assert {LOGIT_ADJUSTED, "focal", "by uncertainty", "gain, r = ρ, κ = 0"} <= free
    assert not free & {"weighted", "half weighted", "gain as published", "by x"}


def test_predictions_moved_there_and_back_are_the_same():
    table = np.log(np.random.default_rng(0).dirichlet(np.ones(3), 20))
    here, there = np.array([0.2, 0.3, 0.5]), np.array([0.9, 0.09, 0.01])
    np.testing.assert_allclose(moved(moved(table, here, there), there, here), table, atol=1e-12)


@pytest.mark.parametrize("pi", [[0.97, 0.03], [0.6, 0.37, 0.03]])
def test_matched_predictions_have_the_populations_mean(pi: list[float]):
    table = np.log(np.random.default_rng(0).dirichlet([2] * len(pi), 200))
    np.testing.assert_allclose(np.exp(at_mean(table, np.array(pi))(table)).mean(0), pi, rtol=1e-5)


def scores(labelled: int) -> Scores:
    x, y = torch.zeros(2 * labelled, 1), torch.arange(2).repeat_interleave(labelled)
    return Scores(Rows(x, y, x, y, x, y, x, y, {}, PI, PI[0]))


def test_capped_predictions_claim_no_likelihood_ratio_beyond_the_labelled_rows():
    z = np.linspace(-20, 20, 41)
    found = scores(50).capped(-np.logaddexp(0, np.stack([z, -z], 1)), 1)
    ratio = found[:, 1] - found[:, 0] - np.log(0.01 / 0.99)
    assert np.abs(ratio).max() == pytest.approx(np.log(51), abs=1e-5)
    plain = z - np.log(0.01 / 0.99)
    inside = np.abs(plain) < np.log(51)
    np.testing.assert_allclose(ratio[inside], plain[inside], atol=1e-5)
    assert -found[:, 0].min() < 51 * 0.01 / 0.99  # what a row of class 0 can cost at most
    assert (np.diff(ratio) >= 0).all()


def test_smoothed_predictions_are_between_the_caps_of_n_and_one_row_more():
    table = np.array([[-30.0, 0.0], [0.0, -30.0]])
    ratio = np.diff(scores(50).smoothed(table, 1), axis=1)[:, 0] - np.log(0.01 / 0.99)
    np.testing.assert_allclose(ratio, [np.log(52), -np.log(52)], atol=1e-3)


def test_the_area_under_the_curve_is_scikit_learns():
    random = np.random.default_rng(0)
    y, odds = random.integers(0, 2, 200), random.normal(size=200).round(1)
    assert auc(odds, y) == pytest.approx(roc_auc_score(y, odds), abs=1e-12)


def test_averaging_over_no_spread_changes_nothing_and_over_some_flattens():
    z = np.array([-3.0, 0.0, 2.0])
    table = -np.logaddexp(0, np.stack([z, -z], 1))
    np.testing.assert_allclose(averaged(table, np.zeros(3)), table, atol=1e-9)
    wide = averaged(table, np.ones(3))
    np.testing.assert_allclose(np.exp(wide).sum(1), 1, atol=1e-9)
    assert abs(wide[0, 1] - wide[0, 0]) < 3


def test_shares_keep_the_other_classes_among_themselves():
    found = with_share(np.array([0.6, 0.3, 0.1]), 0.01)
    assert found.sum() == pytest.approx(1)
    assert found[0] / found[1] == pytest.approx(2)


def test_sizes_are_run_where_every_class_has_rows_enough():
    task = Task(np.zeros((4000, 1)), (np.arange(4000) % 10 == 0).astype(np.int64))
    assert [size for size in (50, 200, 1000) if enough(task, size)] == [50]
    assert len(of_each(task.y, np.arange(4000), 50)) == 100
    assert Cell("TV churn", "linear", 50).path(3, Path()).name == "TV_churn-linear-50-3.npz"


def cell(**likelihood: list[float]) -> Compared:
    arrays = {name.replace("_", " "): np.array(values) for name, values in likelihood.items()}
    base = {LOGIT_ADJUSTED: np.array([-0.30, -0.31, -0.29]), "weighted": np.array([-0.32, -0.33, -0.30])}
    draws = {name: np.zeros(3) for name in {**arrays, **base}}
    natural = {"natural": np.full((3, 3), 0.1)}
    return Compared("a", "linear", 50, 0, 0.1, -0.325, {**base, **arrays}, draws, natural, draws, draws, (1,), np.zeros(3))


def test_a_candidate_ahead_of_every_rival_is_level_and_ahead():
    found = verdict([cell(better=[-0.27, -0.285, -0.26])], "better", (LOGIT_ADJUSTED, "weighted"))
    assert (found.cells, found.level, found.ahead, found.won, found.lost, found.below_guess) == (1, 1, 1, 1, 0, 0)


@pytest.mark.long
def test_the_medians_interval_covers_it_as_often_as_it_says():
    random = np.random.default_rng(0)
    for size in (8, 20, 41):
        ends = [median_interval(random.normal(size=size)) for _ in range(2_000)]
        share = np.mean([low <= 0 <= high for low, _, high in ends])
        assert share > 0.95 - 3 * np.sqrt(0.95 * 0.05 / 2_000)


def test_a_candidate_below_the_guess_is_counted():
    bad = cell(worse=[-0.40, -0.41, -0.42])
    found = verdict([bad], "worse", (LOGIT_ADJUSTED, "weighted"))
    assert (found.level, found.ahead, found.lost, found.below_guess) == (0, 0, 1, 1)
    assert bad.difference("worse", GUESS)[0] == pytest.approx(-0.085)


def test_a_method_is_no_rival_of_itself():
    found = verdict([cell()], LOGIT_ADJUSTED, (LOGIT_ADJUSTED, "weighted"))
    assert (found.level, found.ahead) == (1, 1)
