"""`rightloss.metrics.evaluate`: every figure against an independent computation, and its interval against another way."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest
import torch
from members import assert_refused, generator, population
from scipy import optimize, special, stats
from sklearn import metrics as sk
from torch import Tensor

import rightloss as rl
from rightloss.metrics import Evaluation, evaluate
from rightloss.study.population import FiveRatings, TwoGaussians


@dataclass(frozen=True)
class Case:
    """Labelled predictions as the reference computations take them: one row per class that has a vote, with weights."""

    log_probs: Tensor
    target: Tensor
    population: Tensor
    rows: np.ndarray
    labels: np.ndarray
    votes: np.ndarray

    @property
    def probs(self) -> np.ndarray:
        return self.log_probs.double().exp().numpy()[self.rows]

    @property
    def weights(self) -> np.ndarray:
        """π_c / n_c · vote."""
        k = len(self.population)
        totals = np.array([self.votes[self.labels == c].sum() for c in range(k)])
        return (self.population.numpy() / totals)[self.labels] * self.votes

    @property
    def decided(self) -> np.ndarray:
        """The last of the likeliest classes."""
        best = self.probs >= self.probs.max(1, keepdims=True) * (1 - 1e-12)
        return best.shape[1] - 1 - best[:, ::-1].argmax(1)


def hard(log_probs: Tensor, target: Tensor, pi: Tensor) -> Case:
    rows = np.arange(len(target))
    return Case(log_probs, target, pi, rows, target.numpy(), np.ones(len(target)))


def logits(k: int, n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Predictions that are informative and not calibrated; labels in a mix of their own."""
    source = generator(seed)
    y = torch.multinomial(torch.arange(1.0, k + 1), n, replacement=True, generator=source)
    y[:k] = torch.arange(k)
    x = torch.randn(n, k, dtype=torch.float64, generator=source) + 1.2 * torch.nn.functional.one_hot(y, k)
    return torch.log_softmax(1.4 * x, 1), y


def with_ties(k: int) -> Case:
    log_probs, y = logits(k, 240, 7)
    probs = (log_probs.exp() * 8).round() + 1
    return hard((probs / probs.sum(1, keepdim=True)).log(), y, population(k, 1))


def with_votes(k: int) -> Case:
    log_probs, y = logits(k, 150, 3)
    counts = torch.nn.functional.one_hot(y, k) * 2 + torch.nn.functional.one_hot(y.roll(1), k)
    votes = counts.double() / 3
    rows, labels = np.nonzero(votes.numpy())
    return Case(log_probs, votes, population(k, 2), rows, labels, votes.numpy()[rows, labels])


CASES: dict[str, Callable[[], Case]] = {
    "2 classes": lambda: hard(*logits(2, 300, 0), torch.tensor([0.95, 0.05], dtype=torch.float64)),
    "2 classes, 1 in 100,000": lambda: hard(*logits(2, 300, 0), torch.tensor([1 - 1e-5, 1e-5], dtype=torch.float64)),
    "3 classes": lambda: hard(*logits(3, 300, 1), population(3)),
    "5 classes": lambda: hard(*logits(5, 400, 2), population(5)),
    "2 classes with ties": lambda: with_ties(2),
    "4 classes with ties": lambda: with_ties(4),
    "2 classes, votes": lambda: with_votes(2),
    "3 classes, votes": lambda: with_votes(3),
}
PRECISE = {"xatol": 1e-9, "fatol": 1e-9, "maxiter": 20_000, "maxfev": 20_000, "adaptive": True}
each_case = pytest.mark.parametrize("make", CASES.values(), ids=CASES)


def figures(case: Case, **options: object) -> Evaluation:
    return evaluate(case.log_probs, case.target, case.population, **{"intervals": None, **options})  # type: ignore[arg-type]


def close(found: float, expected: float) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@each_case
def test_scores_of_probabilities_equal_scikit_learns_with_sample_weights(make: Callable[[], Case]) -> None:
    case = make()
    found, pi, k = figures(case), case.population.numpy(), len(case.population)
    loss = sk.log_loss(case.labels, case.probs, sample_weight=case.weights, labels=range(k))
    close(found.expected_log_likelihood.value, -loss)
    close(found.skill.value, 1 - loss / stats.entropy(pi))
    scaled = sk.brier_score_loss(
        case.labels, case.probs if k > 2 else case.probs[:, 1], sample_weight=case.weights, labels=range(k)
    )
    close(found.brier.value, scaled)
    close(found.mean_prediction.value, np.average(case.probs[:, -1], weights=case.weights))


@each_case
def test_figures_of_decisions_equal_scikit_learns_with_sample_weights(make: Callable[[], Case]) -> None:
    case = make()
    found, k = figures(case), len(case.population)
    given = {"y_true": case.labels, "y_pred": case.decided}
    close(found.accuracy.value, sk.accuracy_score(**given, sample_weight=case.votes))
    close(found.weighted_accuracy.value, sk.accuracy_score(**given, sample_weight=case.weights))
    close(found.balanced_accuracy.value, sk.balanced_accuracy_score(**given, sample_weight=case.votes))
    close(found.expected_cost.value, 1 - found.weighted_accuracy.value)
    values: dict[str, list[float]] = {name: [] for name in ("ppv", "npv", "tpr", "tnr")}
    for c in [1] if k == 2 else range(k):
        ((tn, fp), (fn, tp)) = sk.confusion_matrix(case.labels == c, case.decided == c, sample_weight=case.weights)
        for name, value in {"ppv": tp / (tp + fp), "npv": tn / (tn + fn), "tpr": tp / (tp + fn), "tnr": tn / (tn + fp)}.items():
            values[name].append(value)
    for name, expected in values.items():
        close(found[name].value, float(np.mean(expected)))
        if k > 2:
            np.testing.assert_allclose([float(each) for each in found[name].by_class or ()], expected, rtol=1e-9)
        else:
            assert found[name].by_class is None


@each_case
def test_auc_equals_scikit_learns_with_sample_weights(make: Callable[[], Case]) -> None:
    case = make()
    found, k = figures(case), len(case.population)
    one = [
        sk.roc_auc_score(case.labels == c, case.log_probs.numpy()[case.rows, c], sample_weight=case.weights)
        for c in ([1] if k == 2 else range(k))
    ]
    close(found.auc.value, float(np.mean(one)))
    if k == 2:
        close(found.auc_pairwise.value, found.auc.value)
    elif (case.votes == 1).all():
        close(found.auc_pairwise.value, sk.roc_auc_score(case.labels, case.probs, multi_class="ovo", labels=range(k)))


@each_case
def test_off_by_one_cost_and_net_benefit_equal_a_count(make: Callable[[], Case]) -> None:
    case = make()
    k = len(case.population)
    close(figures(case).off_by_one.value, case.weights[np.abs(case.decided - case.labels) <= 1].sum())
    costs = np.random.default_rng(0).uniform(0, 1, (k, k)) * (1 - np.eye(k))
    decided = (case.probs @ costs).argmin(1)
    found = figures(case, costs=costs)
    close(found.expected_cost.value, float((costs[case.labels, decided] * case.weights).sum()))
    if k > 2:
        assert math.isnan(found.net_benefit.value)
        assert found.net_benefit.reason == "defined for two classes"
        return
    for t in (0.03, 0.3, 0.8):
        found, said = figures(case, threshold=t), case.probs[:, 1] >= t
        benefit = case.weights[said & (case.labels == 1)].sum() - case.weights[said & (case.labels == 0)].sum() * t / (1 - t)
        close(found.net_benefit.value, benefit)
        close(found.expected_cost.value, case.population[1].item() - benefit)


@each_case
@pytest.mark.parametrize("bins", [1, 4, 15])
def test_calibration_error_equals_a_count_over_bins_of_equal_weight(make: Callable[[], Case], bins: int) -> None:
    case = make()
    k, errors = len(case.population), []
    for c in [1] if k == 2 else range(k):
        p, score, weights = case.probs[:, c], case.log_probs.numpy()[case.rows, c], case.weights
        total = 0.0
        # a value belongs to the bin in which the share of the population strictly below it falls
        shares = np.array([weights[score < each].sum() for each in score])
        number = np.floor(shares * bins + 1e-9)
        for each in np.unique(number):
            inside = number == each
            total += abs((weights * (p - (case.labels == c)))[inside].sum())
        errors.append(total)
    close(figures(case, bins=bins).calibration_error.value, float(np.mean(errors)))


@each_case
def test_calibration_slope_maximises_the_weighted_likelihood(make: Callable[[], Case]) -> None:
    case = make()
    table, k = case.log_probs.double().numpy()[case.rows], len(case.population)
    weights = case.weights / case.weights.min()
    mixed = np.array([case.votes[case.labels == c].sum() for c in range(k)]) / case.votes.sum()
    offset = np.log(case.population.numpy()) - np.log(mixed)  # about where the intercepts will be

    def loss(theta: np.ndarray) -> float:
        scores = theta[0] * table + offset + np.append(0.0, theta[1:])
        own = scores[np.arange(len(table)), case.labels] - special.logsumexp(scores, axis=1)
        return -float((weights * own).sum())

    best = optimize.minimize(loss, np.append(1.0, np.zeros(k - 1)), method="Nelder-Mead", options=PRECISE)
    assert figures(case).calibration_slope.value == pytest.approx(best.x[0], rel=1e-5)


def test_the_true_model_has_the_closed_forms_figures() -> None:
    for world, per_class in ((TwoGaussians(0.01), 20_000), (FiveRatings(), 8_000)):
        x, y = world.sample(per_class, 5)
        found = evaluate(world.log_probs(x), y, world.prevalence, intervals="analytic", level=0.999)
        expected = {
            "expected_log_likelihood": world.best_log_likelihood,
            "mean_prediction": float(world.prevalence.population[-1]),
            "calibration_slope": 1.0,
            "calibration_error": 0.0,
        }
        expected |= {} if world.best_auc is None else {"auc": world.best_auc}
        for name, value in expected.items():
            assert found[name].low <= value <= found[name].high, name
            assert found[name].high - found[name].low < 0.15, name


@each_case
def test_always_answering_the_prevalence_has_no_skill_and_no_calibration_error(make: Callable[[], Case]) -> None:
    case = make()
    found = evaluate(case.population.log().expand(len(case.log_probs), -1), case.target, case.population)
    for name, value in {"skill": 0.0, "calibration_error": 0.0, "auc": 0.5, "auc_pairwise": 0.5}.items():
        assert found[name].value == pytest.approx(value, abs=1e-12)
        assert found[name].low == pytest.approx(value, abs=1e-9)
        assert found[name].high == pytest.approx(value, abs=1e-9)
    assert math.isnan(found.calibration_slope.value)
    assert "alike" in found.calibration_slope.reason
    if len(case.population) == 2:
        assert "never decided" in found.ppv.reason or "always decided" in found.npv.reason


@each_case
@pytest.mark.parametrize("intervals", ["bootstrap", "analytic"])
def test_neither_the_order_nor_the_kind_of_the_rows_matters(make: Callable[[], Case], intervals: str) -> None:
    case = make()
    shuffled = torch.randperm(len(case.log_probs), generator=generator(9))
    first = figures(case, intervals=intervals)
    again = figures(replace(case, log_probs=case.log_probs[shuffled], target=case.target[shuffled]), intervals=intervals)
    arrays = evaluate(case.log_probs.numpy(), case.target.numpy(), case.population.numpy(), intervals=intervals)
    for name in first:
        np.testing.assert_equal(arrays.to_dict()[name], first.to_dict()[name])
        np.testing.assert_allclose(again[name].value, first[name].value, rtol=1e-6, atol=1e-9)
        if intervals == "analytic":
            np.testing.assert_allclose(again[name].low, first[name].low, rtol=1e-6, atol=1e-9)


@each_case
def test_repeating_a_class_changes_no_figure_but_the_samples_own_accuracy(make: Callable[[], Case]) -> None:
    case = make()
    twice = torch.nonzero(case.target == 1 if case.target.ndim == 1 else case.target[:, 1] > 0).flatten()
    rows = torch.cat([torch.arange(len(case.target)), twice])
    more = figures(replace(case, log_probs=case.log_probs[rows], target=case.target[rows]))
    if case.target.ndim == 1:
        for name, value in figures(case).to_dict().items():
            same = np.isclose(more[name].value, value["value"], rtol=1e-5, equal_nan=True)
            assert same or name in ("accuracy", "calibration_error"), name  # bins move a little


def test_rows_marked_as_ignored_are_left_out() -> None:
    log_probs, y = logits(3, 200, 4)
    kept = torch.arange(200) % 5 != 0
    votes = torch.nn.functional.one_hot(y, 3).double()
    expected = evaluate(log_probs[kept], y[kept], population(3), intervals="analytic")
    for target in (torch.where(kept, y, -100), torch.where(kept[:, None], votes, 0.0)):
        found = evaluate(log_probs, target, population(3), intervals="analytic")
        assert found.num_examples == expected.num_examples
        for name in expected:
            np.testing.assert_allclose(found[name].value, expected[name].value, rtol=1e-9)
            np.testing.assert_allclose(found[name].high, expected[name].high, rtol=2e-2)


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_ranks_are_taken_in_log_odds_where_probabilities_round_to_one(scale: float) -> None:
    y = torch.arange(400) % 2
    odds = scale * (torch.randn(400, dtype=torch.float64, generator=generator(1)) + y + 3)
    table = torch.stack([torch.nn.functional.logsigmoid(-odds), torch.nn.functional.logsigmoid(odds)], 1)
    found = evaluate(table, y, 0.01, intervals=None)
    close(found.auc.value, sk.roc_auc_score(y, odds))
    assert math.isfinite(found.expected_log_likelihood.value)


# ---- intervals


def jackknife(case: Case) -> dict[str, float]:
    """Standard errors by leaving out one example at a time, class by class: no formula of ours in them."""
    rows = torch.arange(len(case.target))
    left_out = [hard(case.log_probs[rows != row], case.target[rows != row], case.population) for row in rows]
    found = [figures(each) for each in left_out]
    errors = {}
    for name in found[0]:
        values = np.array([each[name].value for each in found])
        by_class = [values[case.labels == c] for c in range(len(case.population))]
        errors[name] = math.sqrt(sum((len(v) - 1) / len(v) * ((v - v.mean()) ** 2).sum() for v in by_class))
    return errors


@pytest.mark.parametrize("k", [2, 3])
def test_analytic_standard_errors_equal_the_jackknifes(k: int) -> None:
    case = hard(*logits(k, 160, 11), population(k, 3))
    # one standard error to each side; and groups of one, for else figures of decisions are made otherwise
    found = figures(case, intervals="analytic", level=0.6826894921370859, groups=range(160))
    expected = jackknife(case)
    for name, end in {"expected_log_likelihood": 0.0, "skill": 1.0, "brier": 0.0}.items():
        value, low, high = found[name].value, found[name].low, found[name].high
        width = abs(math.log((high - end) / (low - end))) / 2 * abs(value - end)
        assert width == pytest.approx(expected[name], rel=0.02), name
    width = (found.calibration_slope.high - found.calibration_slope.low) / 2
    assert width == pytest.approx(expected["calibration_slope"], rel=0.12)
    for name in ("ppv", "npv", "tpr", "tnr", "auc", "auc_pairwise", "off_by_one", "mean_prediction", "weighted_accuracy"):
        value, low, high = found[name].value, found[name].low, found[name].high
        if value < 1:
            width = (stats.logistic.ppf(high) - stats.logistic.ppf(low)) / 2 * value * (1 - value)
            assert width == pytest.approx(expected[name], rel=0.04 if name in ("ppv", "npv") else 0.02), name  # not linear


@pytest.mark.parametrize("intervals", ["bootstrap", "analytic"])
@pytest.mark.parametrize(("n", "missed"), [(40, 0), (40, 1), (300, 60), (1, 0)])
def test_the_interval_of_a_share_is_jeffreys(n: int, missed: int, intervals: str) -> None:
    y = torch.cat([torch.zeros(50, dtype=torch.int64), torch.ones(n, dtype=torch.int64)])
    odds = torch.where(y == 1, 2.0, -1.0).double() + 0.1 * torch.rand(50 + n, dtype=torch.float64, generator=generator(6))
    odds[50 : 50 + missed] = -2.0
    table = torch.stack([torch.nn.functional.logsigmoid(-odds), torch.nn.functional.logsigmoid(odds)], 1)
    found = evaluate(table, y, 0.01, intervals=intervals, draws=20_000).tpr
    low, high = stats.beta.ppf([0.025, 0.975], n - missed + 0.5, missed + 0.5)
    # the standard error of a 2.5 % quantile of 20,000 draws is about 2 % of the standard deviation
    error = 0.1 * stats.beta.std(n - missed + 0.5, missed + 0.5)
    assert found.low == pytest.approx(low, abs=error)
    assert found.high == pytest.approx(max(high, found.value), abs=error)


def test_the_bootstrap_equals_scipys() -> None:
    case = hard(*logits(2, 1000, 12), torch.tensor([0.9, 0.1], dtype=torch.float64))
    found = figures(case, intervals="bootstrap", draws=8000)
    p, y = case.probs[:, 1], case.labels

    def brier(zeros: np.ndarray, ones: np.ndarray, axis: int = -1) -> np.ndarray:
        return 0.1 * ((1 - ones) ** 2).mean(axis) + 0.9 * (zeros**2).mean(axis)

    def ell(zeros: np.ndarray, ones: np.ndarray, axis: int = -1) -> np.ndarray:
        return 0.1 * np.log(ones).mean(axis) + 0.9 * np.log1p(-zeros).mean(axis)

    for name, statistic in {"brier": brier, "expected_log_likelihood": ell}.items():
        reference = stats.bootstrap(
            (p[y == 0], p[y == 1]), statistic, n_resamples=8000, vectorized=True, rng=np.random.default_rng(0)
        ).confidence_interval
        width = reference.high - reference.low
        # of 8,000 resamples, a 2.5 % quantile has a standard error of about 1 % of the interval's width
        assert abs(found[name].low - reference.low) < 0.04 * width
        assert abs(found[name].high - reference.high) < 0.04 * width


@pytest.mark.parametrize("k", [2, 4])
def test_the_two_ways_agree_on_a_large_sample(k: int) -> None:
    case = hard(*logits(k, 4000, 13), population(k, 4))
    by = {how: figures(case, intervals=how, draws=4000) for how in ("bootstrap", "analytic")}
    for name in by["bootstrap"]:
        one, other = (by[how][name].high - by[how][name].low for how in ("bootstrap", "analytic"))
        if not math.isnan(by["bootstrap"][name].value):
            # the distance between two quantiles of 4,000 draws is known to about 1.5 %
            assert one == pytest.approx(other, rel=0.08), name


@pytest.mark.parametrize("intervals", ["bootstrap", "analytic"])
@pytest.mark.parametrize("k", [2, 3])
def test_copies_of_examples_grouped_with_them_add_nothing(k: int, intervals: str) -> None:
    log_probs, y = logits(k, 300, 14)
    single = evaluate(log_probs, y, population(k), intervals=intervals)
    rows = torch.arange(300).repeat(3)
    names = np.array([f"patient {row}" for row in rows.tolist()])
    grouped = evaluate(log_probs[rows], y[rows], population(k), groups=names, intervals=intervals)
    naive = evaluate(log_probs[rows], y[rows], population(k), intervals=intervals)
    for name in ("expected_log_likelihood", "brier", "auc", "tnr", "calibration_slope", "weighted_accuracy"):
        of_decisions = name in ("tnr", "weighted_accuracy")
        close(grouped[name].value, single[name].value)
        width = single[name].high - single[name].low
        tolerance = 0.15 if of_decisions else 1e-9 if intervals == "analytic" else 0.1
        assert abs(grouped[name].low - single[name].low) < tolerance * width
        assert naive[name].high - naive[name].low < 0.7 * width, name


def test_groups_of_one_are_no_groups() -> None:
    log_probs, y = logits(3, 300, 15)
    alone = evaluate(log_probs, y, population(3), groups=torch.randperm(300, generator=generator(2)), intervals="analytic")
    plain = evaluate(log_probs, y, population(3), intervals="analytic")
    for name in ("expected_log_likelihood", "skill", "brier", "auc", "auc_pairwise", "calibration_error", "calibration_slope"):
        np.testing.assert_allclose(alone[name].high, plain[name].high, rtol=1e-9)


@pytest.mark.parametrize("intervals", ["bootstrap", "analytic"])
def test_an_uncertain_prevalence_widens_what_depends_on_it(intervals: str) -> None:
    log_probs, y = logits(2, 600, 16)
    certain = evaluate(log_probs, y, 0.05, intervals=intervals)
    vague = evaluate(log_probs, y, rl.Prevalence.beta(5.0, 95.0), intervals=intervals)
    for name in certain:
        close(vague[name].value, certain[name].value) if not math.isnan(certain[name].value) else None
    for name in ("ppv", "npv", "skill"):
        assert vague[name].high - vague[name].low > 1.2 * (certain[name].high - certain[name].low), name
    for name in ("tpr", "tnr", "auc"):
        assert vague[name].high - vague[name].low == pytest.approx(certain[name].high - certain[name].low, rel=0.15), name
    # with so large a sample, PPV's interval is that of π, carried through a formula that rises with it
    x, labels = TwoGaussians(0.05).sample(40_000, 3)
    large = evaluate(TwoGaussians(0.05).log_probs(x), labels, rl.Prevalence.beta(5.0, 95.0), intervals=intervals, threshold=0.2)
    ends = [stats.beta.ppf(q, 5, 95) for q in (0.025, 0.975)]
    t, f = large.tpr.value, 1 - large.tnr.value
    expected = [pi * t / (pi * t + (1 - pi) * f) for pi in ends]
    assert large.ppv.low == pytest.approx(expected[0], abs=0.03)
    assert large.ppv.high == pytest.approx(expected[1], abs=0.03)


@pytest.mark.parametrize("intervals", ["bootstrap", "analytic"])
def test_intervals_hold_the_truth_as_often_as_they_say(intervals: str) -> None:
    world, draws = TwoGaussians(0.2), 300
    x, y = world.sample(400_000, 99)
    truth = evaluate(world.log_probs(x), y, 0.2, threshold=0.3, intervals=None)
    names = ["expected_log_likelihood", "brier", "ppv", "npv", "tpr", "tnr", "auc", "net_benefit", "calibration_slope"]
    held = dict.fromkeys(names, 0)
    for draw in range(draws):
        x, y = world.sample(200, 1000 + draw)
        found = evaluate(world.log_probs(x), y, 0.2, threshold=0.3, intervals=intervals, draws=400)
        for name in names:
            held[name] += found[name].low <= truth[name].value <= found[name].high
    for name, count in held.items():
        assert stats.binomtest(count, draws, 0.95).pvalue > 1e-3, (name, count / draws)


@pytest.mark.parametrize("intervals", ["bootstrap", "analytic"])
def test_an_interval_has_a_width_where_no_mistake_was_met(intervals: str) -> None:
    y = torch.arange(60) % 2
    odds = (2.0 * y - 1) * (1 + torch.rand(60, dtype=torch.float64, generator=generator(5)))
    table = torch.stack([torch.nn.functional.logsigmoid(-odds), torch.nn.functional.logsigmoid(odds)], 1)
    unseen = stats.norm.ppf(0.975) ** 2 / (30 + stats.norm.ppf(0.975) ** 2)  # Wilson's limit of 0 among 30
    found = evaluate(table, y, 0.01, intervals=intervals)
    assert found.tpr.value == found.ppv.value == found.auc.value == 1
    assert found.tpr.low == pytest.approx(stats.beta.ppf(0.025, 30.5, 0.5), abs=0.01)
    assert found.ppv.low < 0.25
    close(found.auc.low, 1 - unseen)
    assert "separated" in found.calibration_slope.reason
    # people who come in groups cannot be counted so: Wilson's limit, of groups
    rows = torch.arange(60).repeat(2)
    grouped = evaluate(table[rows], y[rows], 0.01, intervals=intervals, groups=rows)
    close(grouped.tpr.low, 1 - unseen)
    close(grouped.ppv.low, 0.01 * (1 - unseen) / (0.01 * (1 - unseen) + 0.99 * unseen))


def test_accuracy_in_the_population_knows_of_mistakes_that_were_not_met() -> None:
    # 1 in 100 is ill; all of 50 healthy are right, half of 50 ill: the healthy carry 99 % of the weight
    y = torch.arange(100) % 2
    odds = torch.where((y == 1) & (torch.arange(100) % 4 == 1), 3.0, -3.0).double()
    table = torch.stack([torch.nn.functional.logsigmoid(-odds), torch.nn.functional.logsigmoid(odds)], 1)
    for groups in (None, range(100)):
        found = evaluate(table, y, 0.01, groups=groups)
        assert found.weighted_accuracy.low < found.tnr.low + 0.005
        assert found.expected_cost.high > 1 - found.tnr.low - 0.005
        assert found.net_benefit.low < -0.02


def test_undefined_figures_are_nan_with_a_reason() -> None:
    log_probs, y = logits(3, 100, 17)
    found = evaluate(log_probs[y != 1], y[y != 1], population(3))
    for name in found:
        if name != "accuracy":
            assert math.isnan(found[name].value), name
            assert "no example of class(es) [1]" in found[name].reason or name == "net_benefit"
    assert "undefined: no example" in str(found)
    log_probs, y = logits(2, 100, 18)
    found = evaluate(log_probs[y == 1], y[y == 1], 0.1)
    assert 0 < found.tpr.low < found.tpr.value < found.tpr.high < 1
    assert math.isnan(found.tnr.value)
    assert math.isnan(found.auc.value)
    lonely = torch.cat([torch.nonzero(y == 0).flatten(), torch.nonzero(y == 1).flatten()[:1]])
    found = evaluate(log_probs[lonely], y[lonely], 0.1)
    assert math.isfinite(found.auc.value)
    assert math.isnan(found.auc.low)
    assert "[1] occur in a single example" in found.auc.reason
    assert 0 < found.tnr.low < found.tnr.high < 1  # for which the lonely class plays no part
    assert found.tpr.high - found.tpr.low > 0.8


def test_few_examples_or_groups_are_told() -> None:
    log_probs, y = logits(2, 100, 18)
    some = torch.cat([torch.nonzero(y == 0).flatten(), torch.nonzero(y == 1).flatten()[:6]])
    found = evaluate(log_probs[some], y[some], 0.1)
    assert "fewer than 10 examples of class(es) [1]" in found.auc.reason
    assert math.isfinite(found.auc.low)
    assert found.tnr.reason == ""
    assert "2 groups are too few" in evaluate(log_probs, y, 0.1, groups=np.arange(100) // 50).brier.reason


def test_a_figure_that_hangs_on_a_few_examples_says_so() -> None:
    world = TwoGaussians(0.01, separation=1.2)
    x, y = world.sample(100, 2)
    found = evaluate(world.log_probs(x), y, 0.01)
    assert "the interval may be too short" in found.calibration_slope.reason  # weights of 0.0099 and of 0.0001
    assert found.auc.reason == found.tpr.reason == ""


def test_a_resample_without_a_slope_is_left_out() -> None:
    p = np.array([0.9, 0.1, 0.1, 0.1, 0.1, 0.9, 0.9, 0.5])
    found = evaluate(np.log(np.stack([1 - p, p], 1)), np.repeat([0, 1], 4), 0.1)
    assert math.isfinite(found.brier.low)
    assert math.isnan(found.calibration_slope.low) or found.calibration_slope.low < found.calibration_slope.high


@pytest.mark.parametrize("intervals", ["bootstrap", "analytic"])
def test_no_interval_leaves_the_possible(intervals: str) -> None:
    y = torch.cat([torch.zeros(300), torch.ones(4)]).long()
    odds = torch.cat([torch.randn(300, dtype=torch.float64, generator=generator(8)) - 9, torch.tensor([9.0, 9, 9, -3])])
    table = torch.stack([torch.nn.functional.logsigmoid(-odds), torch.nn.functional.logsigmoid(odds)], 1)
    for prevalence in (0.3, rl.Prevalence.beta(30.0, 70.0)):
        found = evaluate(table, y, prevalence, intervals=intervals)
        assert found.expected_log_likelihood.high < 0
        assert found.skill.high < 1
        assert min(found.brier.low, found.expected_cost.low, found.calibration_error.low) >= 0


@pytest.mark.parametrize(("positive", "per_class"), [(0.2, 30), (0.01, 100), (0.5, 200)])
def test_the_calibration_error_of_a_model_that_is_right_may_be_zero(positive: float, per_class: int) -> None:
    world, draws, reached = TwoGaussians(positive), 200, 0
    for draw in range(draws):
        x, y = world.sample(per_class, 500 + draw)
        reached += evaluate(world.log_probs(x), y, positive, intervals="analytic").calibration_error.low == 0
    assert stats.binomtest(reached, draws, 0.95, alternative="less").pvalue > 1e-3, reached / draws


def test_votes_make_intervals_as_wide_as_the_estimates_vary() -> None:
    """Rows are drawn at random and read by four: the standard error is that over samples, with 300 of them."""
    source, world = generator(31), TwoGaussians(0.3)
    values, errors = [], []
    for _ in range(300):
        y = (torch.rand(200, generator=source) < 0.3).long()
        x = torch.randn(200, 5, generator=source) + (2 * y[:, None] - 1) * world.separation / math.sqrt(5)
        probs = world.log_probs(x).exp()[:, 1:]
        said = (torch.rand(200, 4, generator=source, dtype=torch.float64) < probs).double().mean(1)
        found = evaluate(world.log_probs(x), torch.stack([1 - said, said], 1), 0.3, intervals="analytic").accuracy
        values.append(found.value)
        errors.append((stats.logistic.ppf(found.high) - stats.logistic.ppf(found.low)) / 3.92 * found.value * (1 - found.value))
    # a standard deviation of 300 is known to 4 %
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.15)


def test_many_classes_take_seconds_and_little_memory() -> None:
    k, n = 300, 900
    y = torch.arange(n) % k
    log_probs = torch.log_softmax(torch.randn(n, k, generator=generator(3)) + 2 * torch.nn.functional.one_hot(y, k), 1)
    found = evaluate(log_probs, y, [1 / k] * k)
    assert found.intervals == "analytic"
    close(found.accuracy.value, float((log_probs.argmax(1) == y).double().mean()))


def test_a_probability_of_zero_for_what_happened_is_infinitely_bad_and_no_nan() -> None:
    log_probs, y = logits(2, 100, 19)
    log_probs[3] = torch.tensor([0.0, -math.inf]) if y[3] == 1 else torch.tensor([-math.inf, 0.0])
    found = evaluate(log_probs, y, 0.1)
    assert found.expected_log_likelihood.value == found.skill.value == -math.inf
    assert "1 example(s) were given probability 0" in found.skill.reason
    assert 0 < found.auc.low < found.auc.high < 1
    assert math.isfinite(found.brier.high)
    assert "no log-odds" in found.calibration_slope.reason


def test_equal_input_gives_equal_output_and_another_generator_another() -> None:
    log_probs, y = logits(2, 100, 20)
    first, second = evaluate(log_probs, y, 0.1), evaluate(log_probs, y, 0.1)
    assert first == second
    assert evaluate(log_probs, y, 0.1, generator=generator(77)).auc.low != first.auc.low
    assert evaluate(log_probs, y, 0.1, level=np.float32(0.95), draws=np.int64(1000)).brier.value == first.brier.value


def test_small_samples_are_resampled_and_large_ones_differentiated() -> None:
    assert evaluate(*logits(2, 100, 21), 0.1).intervals == "bootstrap"
    assert evaluate(*logits(2, 30_000, 21), 0.1).intervals == "analytic"
    assert evaluate(*logits(2, 100, 21), 0.1, intervals=None).intervals == "none"


def test_an_evaluation_shows_every_figure_once() -> None:
    found = evaluate(*logits(2, 100, 22), 0.1)
    shown = str(found).splitlines()
    assert len(shown) == 1 + len(list(found))
    assert "[0.9, 0.1]" in shown[0]
    assert float(found.auc) == found["auc"].value == found.to_dict()["auc"]["value"]
    assert_names = pytest.raises(KeyError, match="there is no figure 'f1'")
    with assert_names:
        found["f1"]


LOG_PROBS, LABELS = logits(2, 40, 23)
REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: evaluate(LOG_PROBS.exp(), LABELS, 0.1), "take their logarithm"),
    (lambda: evaluate(3 * LOG_PROBS, LABELS, 0.1), "log_softmax"),
    (lambda: evaluate(LOG_PROBS[:, 1], LABELS, 0.1), "both columns"),
    (lambda: evaluate(LOG_PROBS * torch.nan, LABELS, 0.1), "row 0 is"),
    (lambda: evaluate(LOG_PROBS[:0], LABELS[:0], 0.1), "data set empty"),
    (lambda: evaluate(LOG_PROBS, LABELS[:-1], 0.1), "39 labels for 40 rows"),
    (lambda: evaluate(LOG_PROBS, LABELS + 1, 0.1), "1..2"),
    (lambda: evaluate(LOG_PROBS, LABELS.double(), 0.1), "target.long"),
    (lambda: evaluate(LOG_PROBS, LABELS[:, None].double(), 0.1), "a column per class"),
    (lambda: evaluate(LOG_PROBS, LABELS, 0.0), "strictly between 0 and 1"),
    (lambda: evaluate(LOG_PROBS, LABELS, [0.2, 0.3, 0.5]), "2 entries"),
    (lambda: evaluate(LOG_PROBS, LABELS, rl.Prevalence([0.2, 0.3, 0.5])), "2 classes"),
    (lambda: evaluate(LOG_PROBS, LABELS, 0.1, groups=[1, 2]), "one group id per row"),
    (lambda: evaluate(LOG_PROBS, LABELS, 0.1, groups=[math.nan] * 40), "an id of its own"),
    (lambda: evaluate(LOG_PROBS, LABELS, 0.1, groups=["a"] * 39 + [math.nan]), "row\\(s\\) \\[39\\] have none"),
    (lambda: evaluate(LOG_PROBS, LABELS, 0.1, groups=pd.Series(["a"] * 39 + [None])), "have none"),
    (lambda: evaluate(LOG_PROBS, LABELS, 0.1, groups=pd.Series(["a"] * 39 + [pd.NA], dtype="string")), "have none"),
    (lambda: evaluate(LOG_PROBS, LABELS, 0.1, groups=np.array(["2020-01-01"] * 39 + ["NaT"], "datetime64[D]")), "have none"),
    (lambda: evaluate(LOG_PROBS, 1, 0.1), "single number"),
    (lambda: evaluate(LOG_PROBS, LABELS, 0.1, generator=0), "torch.Generator"),
    (lambda: evaluate(LOG_PROBS, LABELS, 0.1, costs=[[0, 1, 1], [1, 0, 1]]), "a decision per class"),
    (lambda: evaluate(LOG_PROBS, LABELS, 0.1, threshold=50), "percentage"),
    (lambda: evaluate(LOG_PROBS, LABELS, 0.1, intervals="jackknife"), "choose one"),
    (lambda: evaluate(LOG_PROBS, LABELS, 0.1, level=95), "write 0.95"),
    (lambda: evaluate(LOG_PROBS, LABELS, 0.1, draws=10), "at least 100"),
    (lambda: evaluate(LOG_PROBS, LABELS, 0.1, bins=0), "at least 1"),
]


@pytest.mark.parametrize(("call", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_bad_input_is_refused_with_a_remedy(call: Callable[[], object], words: str) -> None:
    assert_refused(call, words)
