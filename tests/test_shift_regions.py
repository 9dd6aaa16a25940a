"""How well an estimated prevalence is known, also where little is, and the uncertain `Prevalence` it converts to."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from draws import population, stream
from normal_classes import (
    best_on_simplex,
    certain,
    constant,
    drawn,
    equal,
    estimate_quietly,
    exact,
    log_likelihood,
    mix,
    overconfident,
)
from scipy.optimize import brentq
from scipy.special import log_softmax
from scipy.stats import binomtest, chi2, dirichlet, norm
from scipy.stats import t as student

from rightloss.shift import LabelShiftWarning, PrevalenceEstimate, estimate_prevalence, fit_calibration
from rightloss.shift.maximum_likelihood import boundary_limit

pytestmark = pytest.mark.filterwarnings("ignore:The predictions are trusted to be calibrated:rightloss.PrevalenceWarning")


class TestProfile:
    @pytest.mark.parametrize(("rare", "level"), [(0.4, 0.5), (0.15, 0.95)])
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
        np.testing.assert_allclose(found.low, 1 - found.high[::-1], atol=1e-12, rtol=0)

    def test_a_class_that_may_be_absent_has_only_an_upper_bound(self) -> None:
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

    def test_the_profile_of_one_class_can_free_another_class_at_0(self) -> None:
        # the last row can be of class 1 or 2; class 2 gets nothing while class 1 may have it
        with np.errstate(divide="ignore"):
            table = np.log([[0.9, 0.1, 0.0]] * 6 + [[0.2, 0.8, 0.0]] * 3 + [[0.0, 0.7, 0.3]])
        found = estimate_prevalence(table, equal(3))
        assert found.population[2] == 0
        assert found.log_likelihood is not None
        best = best_on_simplex(lambda others: log_likelihood(np.insert(others, 1, 0.0), table, equal(3)), 2)
        without = 2 * (found.log_likelihood - log_likelihood(np.insert(best, 1, 0.0), table, equal(3)))
        assert np.isfinite(without)
        assert (float(found.low[1]) == 0) == (without < chi2.ppf(0.95, 1))

    def test_the_curvature_agrees_where_there_are_many_rows(self) -> None:
        k = 3
        table = exact(drawn(0.5 * population(k, 4) + 0.5 * equal(k), 40_000, 5)[0], equal(k))
        profile, curvature = (estimate_prevalence(table, equal(k), region=region) for region in ("profile", "curvature"))
        width = profile.high - profile.low
        assert bool((np.abs(profile.low - curvature.low) < 0.02 * width).all())
        assert bool((np.abs(profile.high - curvature.high) < 0.02 * width).all())

    @pytest.mark.parametrize("kind", ["mean", "temperature", "beta"])
    def test_the_covariance_is_the_curvatures_and_the_calibrations_carried_on_by_finite_differences(self, kind: Any) -> None:
        table, (h, y) = overconfident(drawn(mix(0.5, 0.3, 0.2), 500, 7)[0]), drawn(equal(3), 400, 8)
        made, step = fit_calibration(overconfident(h), y, kind, shrink=0), 1e-4

        def moved(place: int, by: float) -> np.ndarray:
            both = np.zeros(6)
            both[place] = by
            other = replace(made, slopes=made.slopes + both[:3], sampling=made.sampling * np.exp(-both[3:]))
            return estimate_quietly(table, equal(3), calibration=other, region=None).population

        slopes = np.stack([(moved(place, step) - moved(place, -step)) / (2 * step) for place in range(6)], 1)
        assumed = estimate_prevalence(made(table), made.sampling, calibration="assumed", region=None)
        assert assumed.region == "none"
        assert assumed.low.tolist() == assumed.population.tolist() == assumed.high.tolist()
        found = estimate_quietly(table, equal(3), calibration=made, region=None)
        expected = assumed.covariance + slopes @ made.covariance @ slopes.T
        np.testing.assert_allclose(found.covariance, expected, rtol=0, atol=1e-3 * expected.max())
        assert expected[1, 1] > 1.1 * assumed.covariance[1, 1]


CASES: dict[str, dict[str, Any]] = {
    "mean": {"calibration": "mean"},
    "affine": {"calibration": "affine"},
    "bbse-soft": {"method": "bbse-soft"},
}


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_regions_at_95_per_cent_cover_the_truth_of_a_rare_class(case: str) -> None:
    """Within 4 standard errors; `benchmarks/prevalence_coverage.py` has more cases."""
    pi, inside, options = mix(0.95, 0.05), 0, CASES[case]
    predict = (lambda x: exact(x, equal(2))) if case == "mean" else overconfident
    for seed in range(120):
        (x, _), (h, y) = drawn(pi, 800, 20_000 + 1000 * seed), drawn(equal(2), 800, 20_001 + 1000 * seed)
        found = estimate_quietly(predict(x), 0.5, held_out=(predict(h), y), **options)
        inside += int(found.low[1] <= 0.05 <= found.high[1])
    assert abs(inside / 120 - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 120)


def test_the_region_of_two_classes_is_fiellers() -> None:
    (x, _), (h, y) = drawn(mix(0.7, 0.3), 400, 40), drawn(mix(0.9, 0.1), 300, 41)
    table, held = overconfident(x), overconfident(h)
    found = estimate_quietly(table, 0.5, method="bbse", held_out=(held, y))

    def share(called: np.ndarray) -> tuple[float, float]:
        """Return that of class 1, and its variance with half a count more of either."""
        n, ones = len(called), float(called.sum())
        smooth = (ones + 0.5) / (n + 1)
        return ones / n, smooth * (1 - smooth) / n

    (mu, of_mu), (p0, of_0), (p1, of_1) = (share(c.argmax(1)) for c in (table, held[y == 0], held[y == 1]))

    def excess(v: float) -> float:
        noise = of_mu + (1 - v) ** 2 * of_0 + v**2 * of_1
        return (mu - (1 - v) * p0 - v * p1) ** 2 - student.ppf(0.975, degrees) ** 2 * noise

    best = (mu - p0) / (p1 - p0)
    of_held_out = (1 - best) ** 2 * of_0 + best**2 * of_1
    degrees = (int((y == 1).sum()) - 1) * ((of_mu + of_held_out) / of_held_out) ** 2  # Welch's
    assert float(found.population[1]) == pytest.approx(best, abs=1e-9)
    assert float(found.low[1]) == pytest.approx(brentq(excess, 0, best) if excess(0) > 0 else 0, abs=1e-4)
    assert float(found.high[1]) == pytest.approx(brentq(excess, best, 1) if excess(1) > 0 else 1, abs=1e-4)
    np.testing.assert_allclose(found.low, 1 - found.high[::-1], atol=1e-9, rtol=0)


class TestPrevalence:
    @pytest.mark.parametrize("pi", [mix(0.8, 0.2), mix(0.5, 0.3, 0.2)])
    def test_it_keeps_the_mean_and_the_relative_variance(self, pi: np.ndarray) -> None:
        found = estimate_prevalence(exact(drawn(pi, 400, 31)[0], equal(len(pi))), equal(len(pi)))
        alpha = found.prevalence().concentration
        assert alpha is not None
        np.testing.assert_allclose(dirichlet.mean(alpha), found.population, atol=1e-9, rtol=0)
        relative = float((found.covariance.diagonal() / found.population).sum())
        assert float((dirichlet.var(alpha) / dirichlet.mean(alpha)).sum()) == pytest.approx(relative, rel=1e-6)

    def test_an_absent_class_keeps_a_positive_frequency(self) -> None:
        found = estimate_prevalence(exact(drawn(mix(1 - 1e-9, 1e-9), 200, 32)[0], equal(2)), 0.5)
        handed = found.prevalence(sampling=0.3)
        assert handed.is_uncertain
        assert handed.sampling.tolist() == [0.7, 0.3]
        assert 0 < float(handed.population[1]) < float(found.high[1])
        assert float((handed.sample(4000, stream(33))[:, 1] < found.high[1]).mean()) > 0.85

    def test_it_prints_a_line_per_class(self) -> None:
        found = estimate_prevalence(exact(drawn(mix(0.8, 0.2), 1234, 34)[0], equal(2)), 0.5)
        lines = str(found).splitlines()
        assert lines[0] == "Prevalence estimate (em, 1,234 predictions)"
        assert lines[2].startswith(f"  class 1: {found.population[1]:.4g}  95 % profile [")


def deviances(x: np.ndarray, t: float) -> np.ndarray:
    """2 (log N(x; best, 1) − log N(x; t, 1)), the best of all means ≥ 0."""
    return 2 * (norm.logpdf(x - np.maximum(x, 0)) - norm.logpdf(x - t))


class TestBoundaryLimit:
    @pytest.mark.parametrize("level", [0.8, 0.95])
    def test_contains_a_mean_that_is_not_negative_as_often_as_it_says(self, level: float) -> None:
        for t in (0.0, 0.02, 0.3, 1.3, 2.5):
            x = np.random.default_rng(7).normal(t, 1, 200_000)
            inside = int((deviances(x, t) <= boundary_limit(t, level)).sum())
            assert binomtest(inside, len(x), level).pvalue > 1e-4

    def test_is_one_sided_at_the_boundary_and_chi2_far_from_it(self) -> None:
        assert boundary_limit(0.0, 0.95) == pytest.approx(norm.ppf(0.95) ** 2, rel=1e-9)
        for distance in (1.96, 5.0, math.inf):
            assert boundary_limit(distance, 0.95) == pytest.approx(chi2.ppf(0.95, 1), rel=1e-9)
        assert boundary_limit(0.0, 0.4) == 0  # of a low level: nothing but the estimate
        assert boundary_limit(3.0, 0.4) == pytest.approx(chi2.ppf(0.4, 1), rel=1e-9)

    @pytest.mark.parametrize("degrees", [3.0, 22.0])
    def test_far_from_the_boundary_is_students_within_wallaces_approximation(self, degrees: float) -> None:
        exact = student.ppf(0.975, degrees) ** 2
        assert boundary_limit(math.inf, 0.95, degrees) == pytest.approx(exact, rel=0.08 / degrees)
        assert boundary_limit(0.0, 0.95, degrees) == pytest.approx(student.ppf(0.95, degrees) ** 2, rel=0.08 / degrees)


def dirichlet_spread(found: PrevalenceEstimate) -> np.ndarray:
    """Standard deviations of the Dirichlet (K,)."""
    alpha = found.prevalence().concentration
    assert alpha is not None
    return np.sqrt(dirichlet.var(alpha))


class TestAbsentClasses:
    @pytest.mark.parametrize(("region", "sharpness"), [("profile", math.inf), ("curvature", 50.0)])
    def test_zero_cases_in_n_certain_rows_have_the_exact_likelihood_bound(self, region: Any, sharpness: float) -> None:
        # n log(1 − t) = −χ²/2, and no warning: that a class is absent is well known
        table = log_softmax(certain([0] * 5000, 2).clip(-sharpness), axis=1)
        found = estimate_prevalence(table, 0.5, region=region)
        assert found.population.tolist() == [1, 0]
        high = -math.expm1(-(norm.ppf(0.975) ** 2) / 2 / 5000)
        assert float(found.high[1]) == pytest.approx(high, rel=1e-3)
        assert float(found.low[0]) == pytest.approx(1 - high, abs=1e-3 * high)
        assert found.condition == pytest.approx(1)
        handed = found.prevalence()
        assert float((handed.sample(4000, stream(1))[:, 1] < high).mean()) == pytest.approx(0.9, abs=0.05)
        np.testing.assert_allclose(found.covariance.sum(1), 0, atol=1e-12, rtol=0)

    @pytest.mark.parametrize("region", ["profile", "curvature"])
    def test_the_other_classes_are_known_as_if_it_did_not_exist(self, region: Any) -> None:
        labels = np.arange(2000) % 2
        found = estimate_prevalence(certain(labels, 3), equal(3), region=region)
        assert found.standard_error[:2].tolist() == pytest.approx([math.sqrt(0.25 / 2000)] * 2, rel=1e-2)
        assert float(found.high[2]) == pytest.approx(norm.ppf(0.975) ** 2 / 2 / 2000, rel=2e-3)


class TestNothingKnown:
    def test_uninformative_predictions_leave_every_prevalence_possible(self) -> None:
        with pytest.warns(LabelShiftWarning, match="hardly distinguish some classes"):
            found = estimate_prevalence(constant(mix(0.7, 0.3), 50), [0.7, 0.3])
        assert found.condition == math.inf
        assert (*found.low, *found.high) == pytest.approx((0, 0, 1, 1))

    def test_one_row_leaves_everything_open(self) -> None:
        (h, y), row = drawn(equal(2), 400, 20), np.log([[0.2, 0.8]])
        for options in ({}, {"method": "bbse"}, {"method": "bbse-soft"}, {"calibration": "mean"}):
            held_out = (exact(h, equal(2)), y) if options else None
            found = estimate_quietly(row, 0.5, held_out=held_out, **options)
            assert float(found.low[1]) < 0.1, options
            assert float(found.high[1]) == 1
            handed = found.prevalence().concentration
            assert handed is not None
            assert 1.99 < float(handed.sum()) < 6
            assert float(handed.min()) > 0.3  # no mass on the corners alone

    @pytest.mark.parametrize("region", ["profile", "curvature"])
    def test_classes_that_look_alike_share_what_the_third_leaves(self, region: Any) -> None:
        p = stream(21).random(1000)
        found = estimate_quietly(np.log(np.stack([p, (1 - p) / 2, (1 - p) / 2], 1)), equal(3), region=region)
        assert found.low[1:].tolist() == [0, 0]
        left = 1 - float(found.low[0])
        assert found.high[1:].tolist() == pytest.approx([left, left], rel=0.02)
        assert bool((found.standard_error[1:] > 0.5).all())
        assert bool((dirichlet_spread(found)[1:] > 0.2 * left).all())
        np.testing.assert_allclose(found.covariance.sum(1), 0, atol=1e-9, rtol=0)

    def test_a_class_never_predicted_has_any_frequency(self) -> None:
        rho = mix(0.9, 0.1)
        (x, _), (h, y) = drawn(mix(0.95, 0.05), 500, 22), drawn(rho, 500, 23)
        table, held = (log_softmax(0.1 * each + np.log(rho), axis=1) for each in (x, h))
        assert int(table.argmax(1).max()) == int(held.argmax(1).max()) == 0
        with pytest.warns(LabelShiftWarning, match="hardly distinguish"):
            found = estimate_prevalence(table, rho, method="bbse", held_out=(held, y))
        assert found.low.tolist() == [0, 0]
        assert found.high.tolist() == [1, 1]
        assert bool((dirichlet_spread(found) > 0.2).all())
        np.testing.assert_allclose(found.covariance.sum(1), 0, atol=1e-9, rtol=0)

    def test_one_held_out_row_of_a_class_is_not_taken_for_noiseless(self) -> None:
        table = exact(drawn(mix(0.9, 0.1), 4000, 24)[0], equal(2))
        held_out = (np.log([[0.9, 0.1], [0.2, 0.8]]), [0, 1])
        with pytest.warns(LabelShiftWarning, match=r"Class\(es\) \[0, 1\] have fewer than 15"):
            found = estimate_prevalence(table, 0.5, method="bbse-soft", held_out=held_out)
        assert float((found.high - found.low)[1]) > 0.7
        found = estimate_quietly(table, 0.5, calibration="mean", held_out=held_out)
        assert float((found.high - found.low)[1]) > 0.3


class TestGroups:
    def test_copies_of_a_row_in_one_group_add_nothing(self) -> None:
        x = exact(drawn(mix(0.8, 0.2), 300, 70)[0], equal(2))
        once = estimate_prevalence(x, 0.5, calibration="assumed", region="curvature")
        copies, ids = np.tile(x, (4, 1)), np.tile(np.arange(300), 4)
        grouped = estimate_prevalence(copies, 0.5, calibration="assumed", region="curvature", groups=ids)
        np.testing.assert_allclose(grouped.covariance, once.covariance * 300 / 299, rtol=1e-6, atol=0)
        assert float(estimate_prevalence(copies, 0.5, calibration="assumed").covariance[1, 1]) < 0.3 * float(
            once.covariance[1, 1]
        )

    def test_copies_of_a_held_out_row_in_one_group_add_nothing(self) -> None:
        (x, _), (h, y) = drawn(mix(0.8, 0.2), 300, 71), drawn(equal(2), 200, 72)
        errors = [
            estimate_quietly(
                overconfident(x), 0.5, held_out=(np.tile(overconfident(h), (n, 1)), np.tile(y, n)), held_out_groups=ids
            )
            for n, ids in ((1, None), (5, np.tile(np.arange(200), 5)), (5, None))
        ]
        once, grouped, plain = (float(each.standard_error[1]) for each in errors)
        assert grouped == pytest.approx(once, rel=0.02)
        assert plain < 0.95 * once
