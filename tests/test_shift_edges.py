"""Estimates where little is known: absent classes, classes that look alike, one row, few held-out examples, tied scores."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from members import generator
from scipy.optimize import brentq
from scipy.stats import norm
from test_shift import drawn, equal, exact, overconfident
from test_shift_regions import mix, quietly_tested
from torch import Tensor

from rightloss.shift import LabelShiftWarning, PrevalenceEstimate, estimate_prevalence, label_shift_test

pytestmark = pytest.mark.filterwarnings("ignore:The predictions are taken at their word:rightloss.PrevalenceWarning")


def certain(labels: Tensor, k: int) -> Tensor:
    return torch.nn.functional.one_hot(labels, k).double().log()


def quietly(*args: Any, **options: Any) -> PrevalenceEstimate:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LabelShiftWarning)
        return estimate_prevalence(*args, **options)


def spread_handed_on(found: PrevalenceEstimate) -> Tensor:
    """Standard deviations of the Dirichlet (K,)."""
    alpha = found.prevalence().concentration
    assert alpha is not None
    return torch.distributions.Dirichlet(alpha).stddev


class TestAbsentClasses:
    @pytest.mark.parametrize("sharpness", [math.inf, 50.0])
    @pytest.mark.parametrize("region", ["profile", "curvature"])
    def test_no_case_in_n_certain_rows_is_the_rule_of_two_nats(self, region: Any, sharpness: float) -> None:
        # n log(1 − t) = −χ²/2, and no warning: that a class is absent is well known
        table = certain(torch.zeros(5000, dtype=torch.long), 2).clamp_min(-sharpness).log_softmax(1)
        found = estimate_prevalence(table, 0.5, region=region)
        assert found.population.tolist() == [1, 0]
        high = -math.expm1(-(norm.ppf(0.975) ** 2) / 2 / 5000)
        assert float(found.high[1]) == pytest.approx(high, rel=1e-3)
        assert float(found.low[0]) == pytest.approx(1 - high, abs=1e-3 * high)
        assert found.condition == pytest.approx(1)
        handed = found.prevalence()
        assert float((handed.sample(4000, generator(1))[:, 1] < high).double().mean()) == pytest.approx(0.9, abs=0.05)
        torch.testing.assert_close(found.covariance.sum(1), torch.zeros(2).double(), atol=1e-12, rtol=0)

    @pytest.mark.parametrize("region", ["profile", "curvature"])
    def test_the_others_are_known_as_if_it_did_not_exist(self, region: Any) -> None:
        labels = torch.arange(2000) % 2
        found = estimate_prevalence(certain(labels, 3), equal(3), region=region)
        assert found.standard_error[:2].tolist() == pytest.approx([math.sqrt(0.25 / 2000)] * 2, rel=1e-2)
        assert float(found.high[2]) == pytest.approx(norm.ppf(0.975) ** 2 / 2 / 2000, rel=2e-3)

    def test_the_curvature_region_of_a_class_at_0_ends_where_the_parabola_of_its_deviance_does(self) -> None:
        at_0 = 0
        for seed in range(12):
            table = exact(drawn(mix(0.9999, 0.0001), 2000, seed)[0], equal(2))
            found = estimate_prevalence(table, 0.5, region="curvature")
            if float(found.population[1]) == 0:
                at_0 += 1
                gain = (table[:, 1] - table[:, 0]).exp() - 1  # L(t) = Σ log(1 + t gain), but for a constant
                high = float(found.high[1])
                deviance = -2 * high * float(gain.sum()) + high**2 * float((gain**2).sum())
                assert deviance == pytest.approx(norm.ppf(0.975) ** 2, rel=1e-6)
        assert at_0 > 0

    def test_people_counted_elsewhere_are_not_forgotten(self) -> None:
        table = exact(drawn(mix(0.9, 0.1), 500, 11)[0], equal(2))
        found = estimate_prevalence(table, 0.5, prior=[1e6, 11])
        handed = found.prevalence()
        assert float(handed.population[1]) == pytest.approx(float(found.population[1]), rel=1e-6)
        assert float(found.population[1]) < 2e-5
        none = estimate_prevalence(table, 0.5, prior=[1e6, 1]).prevalence()
        assert 0 < float(none.population[1]) < 2e-6


class TestNothingKnown:
    def test_one_row_leaves_everything_open(self) -> None:
        (h, y), row = drawn(equal(2), 400, 20), torch.tensor([[0.2, 0.8]]).double().log()
        for options in ({}, {"method": "bbse"}, {"method": "bbse-soft"}, {"calibration": "mean"}):
            held_out = (exact(h, equal(2)), y) if options else None
            found = quietly(row, 0.5, held_out=held_out, **options)
            assert float(found.low[1]) < 0.1, options
            assert float(found.high[1]) == 1
            handed = found.prevalence().concentration
            assert handed is not None
            assert 1.99 < float(handed.sum()) < 6
            assert float(handed.min()) > 0.3  # no mass on the corners alone

    @pytest.mark.parametrize("region", ["profile", "curvature"])
    def test_classes_that_look_alike_share_what_the_third_leaves(self, region: Any) -> None:
        p = torch.rand(1000, generator=generator(21), dtype=torch.float64)
        found = quietly(torch.stack([p, (1 - p) / 2, (1 - p) / 2], 1).log(), equal(3), region=region)
        assert found.low[1:].tolist() == [0, 0]
        left = 1 - float(found.low[0])
        assert found.high[1:].tolist() == pytest.approx([left, left], rel=0.02)
        assert bool((found.standard_error[1:] > 0.5).all())
        assert bool((spread_handed_on(found)[1:] > 0.2 * left).all())
        torch.testing.assert_close(found.covariance.sum(1), torch.zeros(3).double(), atol=1e-9, rtol=0)

    @pytest.mark.parametrize("method", ["bbse", "rlls"])
    def test_a_class_never_predicted_has_any_frequency(self, method: Any) -> None:
        rho = mix(0.9, 0.1)
        (x, _), (h, y) = drawn(mix(0.95, 0.05), 500, 22), drawn(rho, 500, 23)
        table, held = (torch.log_softmax(0.1 * each + rho.log(), 1) for each in (x, h))
        assert int(table.argmax(1).max()) == int(held.argmax(1).max()) == 0
        with pytest.warns(LabelShiftWarning, match="hardly tell"):
            found = estimate_prevalence(table, rho, method=method, held_out=(held, y))
        assert found.low.tolist() == [0, 0]
        assert found.high.tolist() == [1, 1]
        assert bool((spread_handed_on(found) > 0.2).all())
        torch.testing.assert_close(found.covariance.sum(1), torch.zeros(2).double(), atol=1e-9, rtol=0)

    def test_one_held_out_row_of_a_class_is_not_taken_for_noiseless(self) -> None:
        table = exact(drawn(mix(0.9, 0.1), 4000, 24)[0], equal(2))
        held_out = (np.log([[0.9, 0.1], [0.2, 0.8]]), [0, 1])
        with pytest.warns(LabelShiftWarning, match=r"Class\(es\) \[0, 1\] have fewer than 15"):
            found = estimate_prevalence(table, 0.5, method="bbse-soft", held_out=held_out)
        assert float((found.high - found.low)[1]) > 0.7
        with pytest.warns(LabelShiftWarning, match="fewer than 15"):
            found = estimate_prevalence(table, 0.5, calibration="mean", held_out=held_out)
        assert float((found.high - found.low)[1]) > 0.3


class TestHeldOutMix:
    @pytest.mark.parametrize("kind", ["mean", "temperature"])
    def test_another_mix_than_stated_is_named_where_it_matters(self, kind: Any) -> None:
        (x, _), (h, y) = drawn(mix(0.9, 0.1), 2000, 30), drawn(mix(0.9, 0.1), 2000, 31)
        table, held_out = exact(x, equal(2)), (exact(h, equal(2)), y)
        with pytest.warns(LabelShiftWarning, match="use calibration='bias-corrected'"):
            found = estimate_prevalence(table, 0.5, held_out=held_out, calibration=kind)
        assert abs(float(found.population[1]) - 0.1) > 4 * float(found.standard_error[1])

    @pytest.mark.parametrize("options", [{}, {"calibration": "vector"}, {"method": "bbse-soft"}])
    def test_elsewhere_it_makes_no_difference(self, options: dict[str, Any]) -> None:
        (x, _), (h, y) = drawn(mix(0.9, 0.1), 2000, 30), drawn(mix(0.9, 0.1), 2000, 31)
        found = estimate_prevalence(exact(x, equal(2)), 0.5, held_out=(exact(h, equal(2)), y), **options)
        assert abs(float(found.population[1]) - 0.1) < 4 * float(found.standard_error[1])


def test_the_region_of_two_classes_is_fiellers() -> None:
    (x, _), (h, y) = drawn(mix(0.7, 0.3), 400, 40), drawn(mix(0.9, 0.1), 300, 41)
    table, held = overconfident(x), overconfident(h)
    found = quietly(table, 0.5, method="bbse", held_out=(held, y))

    def share(called: Tensor) -> tuple[float, float]:
        """Of class 1, and its variance with half a count more of either."""
        n, ones = len(called), float(called.sum())
        smooth = (ones + 0.5) / (n + 1)
        return ones / n, smooth * (1 - smooth) / n

    (mu, of_mu), (p0, of_0), (p1, of_1) = (share(c.argmax(1)) for c in (table, held[y == 0], held[y == 1]))

    def excess(v: float) -> float:
        noise = of_mu + (1 - v) ** 2 * of_0 + v**2 * of_1
        return (mu - (1 - v) * p0 - v * p1) ** 2 - norm.ppf(0.975) ** 2 * noise

    best = (mu - p0) / (p1 - p0)
    assert float(found.population[1]) == pytest.approx(best, abs=1e-9)
    assert float(found.low[1]) == pytest.approx(brentq(excess, 0, best) if excess(0) > 0 else 0, abs=1e-8)
    assert float(found.high[1]) == pytest.approx(brentq(excess, best, 1) if excess(1) > 0 else 1, abs=1e-8)
    torch.testing.assert_close(found.low, 1 - found.high.flip(0), atol=1e-9, rtol=0)


@pytest.mark.parametrize("method", ["bbse", "bbse-soft"])
def test_few_held_out_examples_make_wide_regions_rather_than_wrong_ones(method: Any) -> None:
    rho, pi, inside = mix(0.96, 0.04), mix(0.7, 0.3), 0
    cases = 0
    for seed in range(150):
        (x, _), (h, y) = drawn(pi, 1000, 70_000 + 1000 * seed), drawn(rho, 300, 70_001 + 1000 * seed)
        if int(y.sum()) == 0:
            continue
        found = quietly(exact(x, rho), rho, method=method, held_out=(exact(h, rho), y))
        inside += int(found.low[1] <= 0.3 <= found.high[1])
        cases += 1
    assert inside / cases > 0.93 - 4 * math.sqrt(0.95 * 0.05 / cases)


class TestTiedScores:
    def rounded(self, table: Tensor) -> Tensor:
        probs = (table.exp() * 10).round() / 10
        return (probs / probs.sum(1, keepdim=True)).log()

    def test_they_are_rejected_as_scores_without_ties_are(self) -> None:
        (x, _), (h, y) = drawn(mix(0.9, 0.1), 2000, 50), drawn(equal(2), 2000, 51)
        table, held = self.rounded(exact(x, equal(2))), self.rounded(exact(h, equal(2)))
        table[:1000] = math.log(0.5)
        with pytest.warns(LabelShiftWarning, match="no mixture"):
            found = label_shift_test(table, (held, y))
        assert found.p_value < 1e-50
        assert math.isfinite(found.statistic)
        assert math.isfinite(found.error)

    def test_constant_predictions_are_no_mixture_of_informative_ones(self) -> None:
        h, y = drawn(equal(2), 2000, 52)
        with pytest.warns(LabelShiftWarning, match="no mixture"):
            found = label_shift_test(equal(2).log().expand(2000, 2), (self.rounded(exact(h, equal(2))), y))
        assert not found.tenable

    def test_under_label_shift_they_pass(self) -> None:
        refused = 0
        for seed in range(100):
            (x, _), (h, y) = drawn(mix(0.8, 0.2), 600, 80_000 + 1000 * seed), drawn(equal(2), 600, 80_001 + 1000 * seed)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", LabelShiftWarning)
                refused += int(
                    not label_shift_test(self.rounded(exact(x, equal(2))), (self.rounded(exact(h, equal(2))), y)).tenable
                )
        assert refused / 100 < 0.05 + 4 * math.sqrt(0.05 * 0.95 / 100)


def test_classes_absent_from_the_target_raise_no_false_alarm() -> None:
    refused, pi = 0, mix(0.5, 0.5, 0, 0, 0)
    for seed in range(200):
        (x, _), (h, y) = drawn(pi, 200, 90_000 + 1000 * seed), drawn(equal(5), 150, 90_001 + 1000 * seed)
        refused += int(not quietly_tested(x, h, y).tenable)
    assert refused / 200 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 200)
