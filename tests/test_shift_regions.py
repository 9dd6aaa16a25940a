"""How well an estimated prevalence is known, what it hands on, and the test of what it rests on."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from members import assert_refused, generator, population
from scipy.optimize import brentq, minimize
from scipy.stats import chi2, chisquare, kstest
from test_shift import DISTANCE, best_on_simplex, drawn, equal, exact, log_likelihood, overconfident
from torch import Tensor

from rightloss.prevalence import Prevalence
from rightloss.shift import LabelShiftTest, LabelShiftWarning, estimate_prevalence, label_shift_test

pytestmark = pytest.mark.filterwarnings("ignore:The predictions are taken at their word:rightloss.PrevalenceWarning")


def mix(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


class TestProfile:
    @pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
    @pytest.mark.parametrize("rare", [0.4, 0.15])
    def test_two_classes_end_where_the_deviance_does(self, rare: float, level: float) -> None:
        table = exact(drawn(mix(1 - rare, rare), 500, 1)[0], equal(2))
        found = estimate_prevalence(table, 0.5, level=level)
        best = float(found.population[1])

        def value(t: float) -> float:
            return log_likelihood(np.array([1 - t, t]), table, equal(2))

        def excess(t: float) -> float:
            gap = value(best) - value(t)
            return 2 * gap - chi2.ppf(level, 1)

        assert float(found.low[1]) == pytest.approx(brentq(excess, 1e-12, best, xtol=1e-12), abs=1e-7)
        assert float(found.high[1]) == pytest.approx(brentq(excess, best, 1 - 1e-12, xtol=1e-12), abs=1e-7)
        torch.testing.assert_close(found.low, 1 - found.high.flip(0), atol=1e-12, rtol=0)

    def test_three_classes_end_where_the_best_of_the_others_does(self) -> None:
        table = exact(drawn(mix(0.6, 0.3, 0.1), 300, 2)[0], equal(3))
        found = estimate_prevalence(table, equal(3))
        top = found.log_likelihood

        def excess(t: float, k: int) -> float:
            def at(share: float) -> np.ndarray:
                return np.insert(np.array([share, 1 - share]) * (1 - t), k, t)

            inner = minimize(
                lambda s: -log_likelihood(at(float(s[0])), table, equal(3)),
                [0.5],
                bounds=[(1e-9, 1 - 1e-9)],
                options={"ftol": 1e-15},
            )
            assert top is not None
            return 2 * (top + float(inner.fun)) - chi2.ppf(0.95, 1)

        for k in range(3):
            best = float(found.population[k])
            assert float(found.low[k]) == pytest.approx(brentq(excess, 1e-9, best, args=(k,), xtol=1e-9), abs=2e-5)
            assert float(found.high[k]) == pytest.approx(brentq(excess, best, 0.99, args=(k,), xtol=1e-9), abs=2e-5)

    def test_a_class_that_may_be_absent_has_a_bound_above_alone(self) -> None:
        table = exact(drawn(mix(0.9998, 0.0001, 0.0001), 300, 3)[0], equal(3))
        found = estimate_prevalence(table, equal(3))
        assert found.low[1:].tolist() == [0.0, 0.0]
        assert found.high[0] == 1
        assert found.log_likelihood is not None
        for k in (1, 2):  # at the bound the best of the others is 3.84 below
            high = float(found.high[k])

            def value(others: np.ndarray, k: int = k, high: float = high) -> float:
                return log_likelihood(np.insert(others * (1 - high), k, high), table, equal(3))

            gap = found.log_likelihood - value(best_on_simplex(value, 2))
            assert 2 * gap == pytest.approx(chi2.ppf(0.95, 1), abs=1e-3)

    def test_certain_predictions_give_the_region_of_a_count(self) -> None:
        certain = torch.nn.functional.one_hot(torch.tensor([0] * 30 + [1] * 10), 2).double().log()

        def excess(t: float) -> float:
            gap = 30 * math.log(0.75) + 10 * math.log(0.25) - 30 * math.log(1 - t) - 10 * math.log(t)
            return 2 * gap - chi2.ppf(0.95, 1)

        found = estimate_prevalence(certain, 0.4)
        assert float(found.low[1]) == pytest.approx(brentq(excess, 1e-9, 0.25), abs=1e-7)
        assert float(found.high[1]) == pytest.approx(brentq(excess, 0.25, 1 - 1e-9), abs=1e-7)
        assert float(found.standard_error[1]) == pytest.approx(math.sqrt(0.25 * 0.75 / 40), rel=1e-6)

    def test_a_class_at_0_that_alone_could_explain_a_row_without_another_is_let_in(self) -> None:
        # the last row can be of class 1 or 2; class 2 gets nothing while class 1 may have it
        table = torch.tensor([[0.9, 0.1, 0.0]] * 6 + [[0.2, 0.8, 0.0]] * 3 + [[0.0, 0.7, 0.3]], dtype=torch.float64).log()
        found = estimate_prevalence(table, equal(3))
        assert found.population[2] == 0

        def value(others: np.ndarray) -> float:
            return log_likelihood(np.insert(others, 1, 0.0), table, equal(3))

        assert found.log_likelihood is not None
        without = 2 * (found.log_likelihood - value(best_on_simplex(value, 2)))
        assert (float(found.low[1]) == 0) == (without < chi2.ppf(0.95, 1))
        assert np.isfinite(without)

    @pytest.mark.parametrize("k", [2, 3])
    def test_the_curvature_agrees_where_there_are_many_rows(self, k: int) -> None:
        table = exact(drawn(0.5 * population(k, 4) + 0.5 * equal(k), 40_000, 5)[0], equal(k))
        profile, curvature = (estimate_prevalence(table, equal(k), region=region) for region in ("profile", "curvature"))
        width = profile.high - profile.low
        assert bool(((profile.low - curvature.low).abs() < 0.02 * width).all())
        assert bool(((profile.high - curvature.high).abs() < 0.02 * width).all())

    def test_covariances_are_those_of_frequencies(self) -> None:
        (x, _), (h, y) = drawn(population(4, 6), 500, 7), drawn(equal(4), 500, 8)
        cases: list[dict[str, Any]] = [{}, {"calibration": "vector"}, {"method": "bbse"}, {"method": "rlls-soft"}]
        for options in cases:
            found = estimate_prevalence(overconfident(x), equal(4), held_out=(overconfident(h), y), **options)
            torch.testing.assert_close(found.covariance.sum(1), torch.zeros(4).double(), atol=1e-7, rtol=0)
            assert bool((torch.linalg.eigvalsh(found.covariance) > -1e-12).all())

    def test_no_region_is_the_estimate_itself(self) -> None:
        found = estimate_prevalence(exact(drawn(equal(3), 100, 9)[0], equal(3)), equal(3), region=None)
        assert found.region == "none"
        assert found.low.tolist() == found.population.tolist() == found.high.tolist()

    def test_the_errors_of_a_linear_system_are_those_of_a_bootstrap(self) -> None:
        (x, _), (h, y) = drawn(mix(0.6, 0.3, 0.1), 800, 10), drawn(equal(3), 900, 11)
        table, held = overconfident(x), overconfident(h)
        found = estimate_prevalence(table, equal(3), method="bbse", held_out=(held, y))
        random = np.random.default_rng(12)
        called, said, labels = table.argmax(1).numpy(), held.argmax(1).numpy(), y.numpy()
        counted = [np.bincount(said[labels == k], minlength=3) for k in range(3)]
        draws = []
        for _ in range(4000):
            mu = random.multinomial(800, np.bincount(called, minlength=3) / 800) / 800
            columns = [random.multinomial(row.sum(), row / row.sum()) / row.sum() for row in counted]
            draws.append(np.linalg.solve(np.stack(columns, 1), mu))
        # 4000 draws give a standard deviation to 1/√8000 = 1.1 %, the delta method to O(1/n)
        np.testing.assert_allclose(np.std(draws, axis=0), found.standard_error.numpy(), rtol=0.06)


CASES: dict[str, tuple[bool, dict[str, Any]]] = {
    "exact": (False, {}),
    "mean": (False, {"calibration": "mean"}),
    "bias-corrected": (True, {"calibration": "bias-corrected"}),
    "vector": (True, {"calibration": "vector"}),
    "bbse": (True, {"method": "bbse"}),
    "bbse-soft": (True, {"method": "bbse-soft"}),
    "rlls": (True, {"method": "rlls"}),
}


def assert_covers(case: str, pi: Tensor, cases: int, rows: int) -> None:
    """Regions at 95 % hold the truth in 95 % of the cases, within 4 standard errors, per class."""
    wrong, options = CASES[case]
    predict = overconfident if wrong else lambda x: exact(x, equal(len(pi)))
    inside = torch.zeros(len(pi))
    for seed in range(cases):
        (x, _), (h, y) = drawn(pi, rows, 20_000 + 1000 * seed), drawn(equal(len(pi)), rows, 20_001 + 1000 * seed)
        held_out = (predict(h), y) if options else None
        with warnings.catch_warnings():  # one held-out set in a thousand is far from its mix by chance
            warnings.filterwarnings("ignore", "The held-out labels come at", LabelShiftWarning)
            found = estimate_prevalence(predict(x), equal(len(pi)), held_out=held_out, **options)
        inside += (found.low <= pi) & (pi <= found.high)
    assert bool(((inside / cases - 0.95).abs() < 4 * math.sqrt(0.95 * 0.05 / cases)).all()), (inside / cases).tolist()


@pytest.mark.parametrize("case", CASES)
def test_regions_cover_the_truth(case: str) -> None:
    assert_covers(case, mix(0.95, 0.05), 200, 800)


@pytest.mark.slow
@pytest.mark.parametrize("pi", [mix(0.9, 0.1), mix(0.99, 0.01), mix(0.3, 0.3, 0.2, 0.19, 0.01)], ids=["0.1", "0.01", "five"])
@pytest.mark.parametrize("case", CASES)
def test_regions_cover_the_truth_in_1000_cases(case: str, pi: Tensor) -> None:
    assert_covers(case, pi, 1000, 2000)


class TestHandedOn:
    def test_two_classes_are_the_beta_of_the_estimates_moments(self) -> None:
        found = estimate_prevalence(exact(drawn(mix(0.8, 0.2), 300, 30)[0], equal(2)), 0.5)
        handed = found.prevalence()
        alpha = handed.concentration
        assert alpha is not None
        beta = torch.distributions.Beta(alpha[1], alpha[0])
        assert float(beta.mean) == pytest.approx(float(found.population[1]), rel=1e-9)
        assert float(beta.variance) == pytest.approx(float(found.covariance[1, 1]), rel=1e-6)

    def test_more_classes_keep_the_mean_and_the_relative_variance(self) -> None:
        found = estimate_prevalence(exact(drawn(mix(0.5, 0.3, 0.2), 400, 31)[0], equal(3)), equal(3))
        alpha = found.prevalence().concentration
        assert alpha is not None
        dirichlet = torch.distributions.Dirichlet(alpha)
        torch.testing.assert_close(dirichlet.mean, found.population, atol=1e-9, rtol=0)
        assert float((dirichlet.variance / dirichlet.mean).sum()) == pytest.approx(
            float((found.covariance.diagonal() / found.population).sum()), rel=1e-6
        )

    def test_an_absent_class_is_kept_possible(self) -> None:
        found = estimate_prevalence(exact(drawn(mix(1 - 1e-9, 1e-9), 200, 32)[0], equal(2)), 0.5)
        handed = found.prevalence(sampling=0.3)
        assert handed.is_uncertain
        assert handed.sampling.tolist() == [0.7, 0.3]
        assert 0 < float(handed.population[1]) < float(found.high[1])
        assert float((handed.sample(4000, generator(33))[:, 1] < found.high[1]).double().mean()) > 0.85

    def test_predictions_that_say_nothing_hand_on_a_prevalence_all_the_same(self) -> None:
        with pytest.warns(LabelShiftWarning):
            found = estimate_prevalence(equal(2).log().expand(30, 2), 0.5)
        assert isinstance(found.prevalence(), Prevalence)

    def test_it_reads_well(self) -> None:
        found = estimate_prevalence(exact(drawn(mix(0.8, 0.2), 1234, 34)[0], equal(2)), 0.5)
        lines = str(found).splitlines()
        assert lines[0] == "Prevalence estimate (em, 1,234 predictions)"
        assert lines[2].startswith(f"  class 1: {found.population[1]:.4g}  95 % profile [")


def quietly_tested(x: Tensor, h: Tensor, y: Tensor, **options: Any) -> LabelShiftTest:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LabelShiftWarning)
        return label_shift_test(overconfident(x), (overconfident(h), y), **options)


class TestLabelShift:
    @pytest.mark.parametrize(("pi", "rows"), [(mix(0.7, 0.3), 600), (mix(0.98, 0.02), 600), (mix(0.4, 0.3, 0.2, 0.1), 1500)])
    def test_it_has_its_size_under_label_shift(self, pi: Tensor, rows: int) -> None:
        found = []
        for seed in range(300):
            (x, _), (h, y) = drawn(pi, rows, 40_000 + 1000 * seed), drawn(equal(len(pi)), rows, 40_001 + 1000 * seed)
            found.append(quietly_tested(x, h, y))
        refused = np.mean([not each.tenable for each in found])
        assert 0.005 < refused < 0.05 + 4 * math.sqrt(0.05 * 0.95 / 300), refused
        # where a class may be absent the degrees are an upper bound, and the p-values too large
        side = "two-sided" if float(pi.min()) > 0.05 else "greater"
        assert kstest([each.p_value for each in found], "uniform", alternative=side).pvalue > 1e-4

    @pytest.mark.parametrize("change", ["spread", "one class moved", "new kind of case"])
    def test_it_has_power_where_more_than_the_mix_differs(self, change: str) -> None:
        refused = []
        for seed in range(40):
            (x, y), (h, labels) = drawn(mix(0.8, 0.2), 3000, 50_000 + 1000 * seed), drawn(equal(2), 3000, 50_001 + 1000 * seed)
            if change == "spread":
                x = 1.2 * x
            elif change == "one class moved":
                x = x - 0.8 * DISTANCE * torch.nn.functional.one_hot(y, 2) * (y == 1)[:, None]
            else:
                x[:200] = torch.tensor([3.0, -3.0], dtype=torch.float64)
            refused.append(not quietly_tested(x, h, labels).tenable)
        assert np.mean(refused) > 0.8

    def test_it_warns_rather_than_guesses(self) -> None:
        (x, _), (h, y) = drawn(mix(0.8, 0.2), 3000, 60), drawn(equal(2), 3000, 61)
        with pytest.warns(LabelShiftWarning, match="no mixture of the held-out classes"):
            found = label_shift_test(overconfident(1.5 * x), (overconfident(h), y))
        assert not found.tenable
        assert str(found) == found.message

    def test_it_says_nothing_where_all_is_well(self) -> None:
        (x, _), (h, y) = drawn(mix(0.8, 0.2), 3000, 62), drawn(equal(2), 3000, 63)
        found = label_shift_test(overconfident(x), (overconfident(h), y), equal(2), level=0.9999)  # a warning would be an error
        assert found.tenable
        assert found.well_conditioned
        assert found.p_value == pytest.approx(float(chi2.sf(found.statistic, found.degrees)), rel=1e-9)

    def test_the_held_out_labels_are_tested_against_the_mix_given(self) -> None:
        (x, _), (h, y) = drawn(mix(0.8, 0.2), 1000, 64), drawn(equal(2), 1000, 65)
        found = quietly_tested(x, h, y, sampling=[0.45, 0.55])
        expected = chisquare(torch.bincount(y).numpy(), [450, 550]).pvalue
        assert found.sampling_p_value == pytest.approx(float(expected), rel=1e-9)
        assert quietly_tested(x, h, y).sampling_p_value is None
        with pytest.warns(LabelShiftWarning, match="do not come at the mix"):
            label_shift_test(overconfident(x), (overconfident(h), y), 0.9)

    def test_a_model_that_cannot_tell_classes_apart_is_ill_conditioned(self) -> None:
        (x, _), (h, y) = drawn(equal(3), 1000, 66), drawn(equal(3), 1000, 67)
        same = x[:, [0, 1, 1]], h[:, [0, 1, 1]]
        found = quietly_tested(*same, y)
        assert found.condition > 30
        assert not found.well_conditioned
        assert "hardly tells some classes apart" in found.message

    def test_sets_too_small_for_an_estimate_are_named(self) -> None:
        (x, _), (h, y) = drawn(equal(2), 12, 68), drawn(equal(2), 12, 69)
        found = quietly_tested(x, h, y)
        assert found.error > 0.1
        assert not found.well_conditioned
        assert "collect more" in found.message

    def test_bad_input_is_refused(self) -> None:
        (x, _), (h, y) = drawn(equal(2), 50, 70), drawn(equal(2), 50, 71)
        table, pair = overconfident(x), (overconfident(h), y)
        assert_refused(lambda: label_shift_test(table.exp(), pair), "look like probabilities")
        assert_refused(lambda: label_shift_test(table, None), "a pair")  # type: ignore[arg-type]
        assert_refused(lambda: label_shift_test(table, (pair[0], y * 0)), "every class")
        assert_refused(lambda: label_shift_test(table, pair, level=0), "`level`")
        assert_refused(lambda: label_shift_test(table, pair, [0.5, 0.2, 0.3]), "2 entries")
