"""Prevalence from unlabelled predictions: maximum likelihood, BBSE and RLLS, what they trust, bad input."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from draws import assert_mean_is, assert_refused, population, stream
from normal_classes import (
    best_on_simplex,
    certain,
    constant,
    drawn,
    equal,
    exact,
    log_likelihood,
    mix,
    overconfident,
)
from scipy.optimize import minimize, minimize_scalar
from scipy.special import log_softmax

from rightloss.shift import (
    LabelShiftWarning,
    PrevalenceEstimate,
    estimate_prevalence,
    fit_calibration,
)

pytestmark = pytest.mark.filterwarnings("ignore:The predictions are trusted to be calibrated:rightloss.PrevalenceWarning")


SEEDS = range(3)
KINDS = ("mean", "temperature", "affine", "beta")
LINEAR = ("bbse", "bbse-soft", "rlls", "rlls-soft")


class TestMaximumLikelihood:
    @pytest.mark.parametrize("seed", SEEDS)
    def test_it_is_the_maximum_over_a_line_for_two_classes(self, seed: int) -> None:
        rho, pi = population(2, seed), population(2, seed + 50)
        table = exact(drawn(pi, 300, seed)[0], rho)
        best = minimize_scalar(
            lambda t: -log_likelihood(np.array([1 - t, t]), table, rho),
            bounds=(0, 1),
            method="bounded",
            options={"xatol": 1e-10},
        )
        found = estimate_prevalence(table, rho)
        assert float(found.population[1]) == pytest.approx(best.x, abs=1e-6)
        assert found.log_likelihood == pytest.approx(-best.fun, abs=1e-9)
        assert found.converged

    @pytest.mark.parametrize("k", [3, 5])
    def test_it_is_scipys_maximum_for_more_classes(self, k: int) -> None:
        rho, pi = population(k, 1), population(k, 2)
        table = exact(drawn(pi, 400, 3)[0], rho)
        found = estimate_prevalence(table, rho, region=None)
        best = best_on_simplex(lambda p: log_likelihood(p, table, rho) / 400, k)
        np.testing.assert_allclose(found.population, best, atol=1e-4)
        assert found.log_likelihood is not None
        assert found.log_likelihood >= log_likelihood(best, table, rho) - 1e-9
        assert found.log_likelihood == pytest.approx(log_likelihood(found.population, table, rho), abs=1e-8)

    @pytest.mark.long
    def test_it_is_where_20_000_steps_of_plain_em_arrive(self) -> None:
        rho = population(3, 4)
        table = exact(drawn(population(3, 5), 60, 6)[0], rho)
        ratios, pi = (np.exp(table) / rho), rho
        for _ in range(20_000):
            shares = ratios * pi
            pi = (shares / shares.sum(1, keepdims=True)).mean(0)
        found = estimate_prevalence(table, rho, region=None)
        np.testing.assert_allclose(found.population, pi, atol=1e-9)
        assert found.iterations < 15

    @pytest.mark.parametrize("k", [2, 4, 60])
    def test_no_class_could_gain_at_the_maximum_and_absent_ones_reach_0(self, k: int) -> None:
        rho, mix = equal(k), equal(k)
        mix[k // 2 :] = 0
        table = exact(drawn(mix / mix.sum(), 1500, k)[0], rho)
        found = estimate_prevalence(table, rho, region=None)
        ratios = np.exp(table) / rho
        slope = (ratios / (ratios @ found.population)[:, None]).mean(0)
        assert found.converged
        assert bool((slope < 1 + 1e-6).all())
        assert bool((found.population[slope < 1 - 1e-6] == 0).all())
        assert bool((np.abs(slope - 1)[found.population > 0] < 1e-6).all())
        assert bool((found.population == 0).any()) or k < 60  # few absent classes may all seem present

    @pytest.mark.parametrize("method", ["em", *LINEAR])
    def test_rows_may_come_in_any_order_and_classes_in_any_numbering(self, method: Any) -> None:
        rho, pi = (0.5 * population(4, seed) + 0.5 * equal(4) for seed in (11, 12))
        (x, _), (h, y) = drawn(pi, 300, 13), drawn(equal(4), 300, 14)
        table, held = exact(x, rho), exact(h, rho)
        rows, classes = stream(15).permutation(300), stream(16).permutation(4)
        back = classes.argsort()
        first = estimate_prevalence(table, rho, method=method, held_out=(held, y))
        other = estimate_prevalence(table[rows][:, classes], rho[classes], method=method, held_out=(held[:, classes], back[y]))
        for one, two in ((first.population, other.population), (first.low, other.low), (first.high, other.high)):
            np.testing.assert_allclose(two, one[classes], atol=1e-6, rtol=0)

    def test_certain_predictions_are_counted(self) -> None:
        labels = np.array([0] * 7 + [1] * 2 + [2])
        sharp = log_softmax(1e4 * np.eye(3)[labels], axis=1)
        for table in (certain(labels, 3), sharp):
            found = estimate_prevalence(table, population(3, 17))
            np.testing.assert_allclose(found.population, np.array([0.7, 0.2, 0.1]), atol=1e-9, rtol=0)
            assert found.condition == pytest.approx(1)

    def test_uninformative_predictions_leave_every_prevalence_possible(self) -> None:
        rho = np.array([0.7, 0.3])
        with pytest.warns(LabelShiftWarning, match="hardly distinguish some classes"):
            found = estimate_prevalence(constant(rho, 50), rho)
        assert found.condition == float("inf")
        np.testing.assert_allclose(found.low, 0)
        np.testing.assert_allclose(found.high, 1)

    @pytest.mark.long
    @pytest.mark.parametrize("method", ["em", "bbse", "bbse-soft", "rlls"])
    def test_estimates_are_right_on_average_and_vary_as_they_say(self, method: Any) -> None:
        pi = np.array([0.5, 0.3, 0.2])
        found = _repeated(method, None, pi)
        assert_mean_is(np.stack([each.population for each in found]), pi)
        _assert_errors_are_right(found, pi)

    @pytest.mark.long
    @pytest.mark.parametrize("kind", ["mean", "beta"])
    def test_calibrated_estimates_vary_as_they_say(self, kind: Any) -> None:
        pi = np.array([0.5, 0.3, 0.2])
        found = _repeated("em", kind, pi)
        assert_mean_is(np.stack([each.population for each in found]), pi)
        _assert_errors_are_right(found, pi)
        narrower = np.stack([each.standard_error for each in _repeated("em", None, pi, times=20)]).mean(0)
        assert bool((np.stack([each.standard_error for each in found]).mean(0) > 1.02 * narrower).all())


def _repeated(method: Any, kind: Any, pi: np.ndarray, times: int = 150) -> list[PrevalenceEstimate]:
    found = []
    predict = (lambda x: exact(x, equal(3))) if kind in (None, "mean") else overconfident
    for seed in range(times):
        table, (h, y) = predict(drawn(pi, 1000, 2000 + seed)[0]), drawn(equal(3), 1000, 9000 + seed)
        held_out = None if method == "em" and kind is None else (predict(h), y)
        with warnings.catch_warnings():  # one held-out set in a thousand is far from its mix by chance
            warnings.filterwarnings("ignore", "The held-out labels have the mix", LabelShiftWarning)
            found.append(estimate_prevalence(table, equal(3), method=method, held_out=held_out, calibration=kind, region=None))
    return found


def _assert_errors_are_right(found: list[PrevalenceEstimate], pi: np.ndarray) -> None:
    """Squared errors over their claimed variances are 1 on average, with the spread of χ²."""
    scores = np.stack([(each.population - pi) ** 2 / each.standard_error**2 for each in found])
    assert bool((np.abs(scores.mean(0) - 1) < 4 * (2 / len(found)) ** 0.5).all()), scores.mean(0).tolist()


class TestIdentity:
    """The commonest mistake in this field is the wrong direction."""

    @pytest.mark.parametrize("k", [2, 5])
    def test_data_at_the_sampled_mix_give_the_sampled_mix(self, k: int) -> None:
        rho = population(k, 20)
        found = estimate_prevalence(exact(drawn(rho, 4000, 21)[0], rho), rho)
        assert bool((np.abs(found.population - rho) < 4 * found.standard_error).all())

    @pytest.mark.parametrize("kind", KINDS)
    def test_the_held_out_set_itself_has_the_mix_it_was_calibrated_at(self, kind: Any) -> None:
        h, y = drawn(0.5 * population(4, 22) + 0.5 * equal(4), 500, 23)
        labelled = np.bincount(y, minlength=4) / 500
        found = estimate_prevalence(overconfident(h), labelled, held_out=(overconfident(h), y), calibration=kind, region=None)
        np.testing.assert_allclose(found.population, found.sampling, atol=1e-7, rtol=0)
        assert found.calibration is not None
        np.testing.assert_allclose(found.sampling, np.exp(found.calibration(overconfident(h))).mean(0))
        if kind in ("affine", "beta"):
            np.testing.assert_allclose(found.population, labelled, atol=1e-7, rtol=0)

    def test_by_default_a_held_out_set_gives_its_own_frequencies_whatever_the_predictions(self) -> None:
        h, y = drawn(equal(2), 2000, 26)
        biased = log_softmax(exact(h, equal(2)) + np.array([0.0, 1.0]), axis=1)
        found = estimate_prevalence(biased, 0.5, held_out=(biased, y))
        assert float(found.population[1]) == pytest.approx(float(y.mean()), abs=1e-7)
        trusting = estimate_prevalence(biased, 0.5, held_out=(biased, y), calibration="mean")
        assert float(trusting.population[1]) > float(y.mean()) + 0.05

    @pytest.mark.parametrize("method", LINEAR)
    def test_linear_systems_give_the_held_out_set_its_own_frequencies(self, method: Any) -> None:
        h, y = drawn(population(4, 24), 500, 25)
        found = estimate_prevalence(overconfident(h), equal(4), held_out=(overconfident(h), y), method=method)
        np.testing.assert_allclose(found.population, np.bincount(y, minlength=4) / 500, atol=1e-9, rtol=0)


class TestLinearSystems:
    def test_bbse_is_the_inverse_of_the_confusion_matrix(self) -> None:
        # held out: 8 of 10 of class 0 and 3 of 4 of class 1 are recognised; in the target 14 of 20 are called 0
        held = np.log(([[0.7, 0.3]] * 8 + [[0.4, 0.6]] * 2 + [[0.8, 0.2]] + [[0.1, 0.9]] * 3) * 5)
        labels = ([0] * 10 + [1] * 4) * 5
        target = np.log(np.array([[0.6, 0.4]] * 14 + [[0.3, 0.7]] * 6))
        found = estimate_prevalence(target, 0.5, method="bbse", held_out=(held, labels))
        by_hand = np.linalg.solve([[0.8, 0.25], [0.2, 0.75]], [0.7, 0.3])
        np.testing.assert_allclose(found.population, by_hand, atol=1e-12)
        assert found.condition == pytest.approx(np.linalg.cond([[0.8, 0.25], [0.2, 0.75]]))
        soft = estimate_prevalence(target, 0.5, method="bbse-soft", held_out=(held, labels))
        columns = np.array([[0.64, 0.36], [0.275, 0.725]]).T
        np.testing.assert_allclose(soft.population, np.linalg.solve(columns, [0.51, 0.49]), atol=1e-7)

    def test_outside_the_simplex_bbse_is_the_closest_fit_inside(self) -> None:
        pi, outside = np.array([0.97, 0.01, 0.01, 0.01]), 0
        for seed in range(8):
            (x, _), (h, y) = drawn(pi, 60, seed), drawn(equal(4), 200, seed + 30)
            table, held = exact(x, equal(4)), exact(h, equal(4))
            counts = [np.bincount(held.argmax(1)[y == k], minlength=4) for k in range(4)]
            confusion = np.stack([count / count.sum() for count in counts], 1)
            called = np.bincount(table.argmax(1), minlength=4) / 60
            outside += int((np.linalg.solve(confusion, called) < 0).any())
            best = best_on_simplex(lambda p, c=confusion, m=called: -float(((c @ p - m) ** 2).sum()), 4)  # type: ignore[misc]
            found = estimate_prevalence(table, equal(4), method="bbse", held_out=(held, y)).population
            np.testing.assert_allclose(found, best, atol=1e-5)
        assert outside > 0

    @pytest.mark.parametrize(("n", "rare"), [(60, 0.01), (60, 0.2), (2000, 0.2), (25, 0.9)])
    def test_rlls_minimises_its_two_norms(self, n: int, rare: float) -> None:
        mix = np.array([0.9 - 0.9 * rare, rare, 0.1 - 0.1 * rare])
        (x, _), (h, y) = drawn(mix, 80, 31), drawn(equal(3), n, 32)
        table, held = 0.3 * x, 0.3 * h  # a model that hardly tells the classes apart
        table, held = log_softmax(table, axis=1), log_softmax(held, axis=1)
        joint = np.stack([np.bincount(held.argmax(1)[y == k], minlength=3) for k in range(3)], 1) / n
        gap = np.bincount(table.argmax(1), minlength=3) / 80 - joint.sum(1)
        spread = 2 * np.log(2 * 3 / 0.05)
        penalty = 0.01 * 3 * (spread / (3 * n) + np.sqrt(spread / n))

        def cost(theta: np.ndarray) -> float:
            return float(np.linalg.norm(joint @ theta - gap) + penalty * np.linalg.norm(theta))

        starts = [np.zeros(3) + 1e-3, np.linalg.solve(joint, gap).clip(-1), np.array([0.5, -0.5, 0.1])]
        options = {"xatol": 1e-10, "fatol": 1e-14, "maxiter": 20_000, "maxfev": 20_000}
        best = min(
            (minimize(cost, s, bounds=[(-1, None)] * 3, method="Nelder-Mead", options=options) for s in starts),
            key=lambda r: r.fun,
        )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*held-out examples", LabelShiftWarning)
            found = estimate_prevalence(table, equal(3), method="rlls", held_out=(held, y)).population
        weights = joint.sum(0) * (1 + best.x)
        np.testing.assert_allclose(found, weights / weights.sum(), atol=2e-5)


class TestHeldOutMix:
    @pytest.mark.parametrize("kind", ["mean", "temperature"])
    def test_another_mix_than_stated_gives_a_warning_where_it_matters(self, kind: Any) -> None:
        (x, _), (h, y) = drawn(mix(0.9, 0.1), 2000, 30), drawn(mix(0.9, 0.1), 2000, 31)
        table, held_out = exact(x, equal(2)), (exact(h, equal(2)), y)
        with pytest.warns(LabelShiftWarning, match="use calibration='affine'"):
            found = estimate_prevalence(table, 0.5, held_out=held_out, calibration=kind)
        assert abs(float(found.population[1]) - 0.1) > 4 * float(found.standard_error[1])

    @pytest.mark.parametrize("options", [{}, {"calibration": "beta"}, {"method": "bbse-soft"}])
    def test_methods_that_use_the_labels_do_not_depend_on_the_stated_mix(self, options: dict[str, Any]) -> None:
        (x, _), (h, y) = drawn(mix(0.9, 0.1), 2000, 30), drawn(mix(0.9, 0.1), 2000, 31)
        found = estimate_prevalence(exact(x, equal(2)), 0.5, held_out=(exact(h, equal(2)), y), **options)
        assert abs(float(found.population[1]) - 0.1) < 4 * float(found.standard_error[1])


TABLE = exact(drawn(equal(3), 60, 70)[0], equal(3))
LABELS = drawn(equal(3), 60, 70)[1]
NEVER = np.tile([np.log(0.5), np.log(0.5), -np.inf], (60, 1))

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "probabilities": (lambda: estimate_prevalence(np.exp(TABLE), equal(3)), "look like probabilities"),
    "NaN": (lambda: estimate_prevalence(np.full((3, 2), np.nan), 0.5), "without NaN"),
    "NaN later in a stream": (lambda: estimate_prevalence([TABLE, TABLE * float("nan")], equal(3)), r"log_probs\[60:\]"),
    "one column": (lambda: estimate_prevalence(TABLE[:, :1], 0.5), "column per class"),
    "no rows": (lambda: estimate_prevalence(TABLE[:0], equal(3)), "at least one row"),
    "an empty stream": (lambda: estimate_prevalence(lambda: iter([]), equal(3)), "the stream is empty"),
    "a one-shot stream": (lambda: estimate_prevalence((t for t in [TABLE]), equal(3)), "used up after one pass"),
    "another width later": (lambda: estimate_prevalence([TABLE, TABLE[:, :2]], equal(3)), "3 columns"),
    "words": (lambda: estimate_prevalence("predictions", 0.5), "to be"),
    "a mix of another length": (lambda: estimate_prevalence(TABLE, [0.5, 0.5]), "3 entries"),
    "a mix that does not sum to 1": (lambda: estimate_prevalence(TABLE, [0.5, 0.5, 0.5]), "sum to 1"),
    "a class never sampled": (lambda: estimate_prevalence(TABLE, [0.5, 0.5, 0.0]), "never sampled"),
    "an unknown method": (lambda: estimate_prevalence(TABLE, equal(3), method="acc"), "`method`"),
    "an unknown region": (lambda: estimate_prevalence(TABLE, equal(3), region="bayes"), "`region`"),
    "an unknown calibration": (lambda: estimate_prevalence(TABLE, equal(3), calibration="platt"), "`calibration`"),
    "a level beyond 1": (lambda: estimate_prevalence(TABLE, equal(3), level=95), "`level`"),
    "no held-out set": (lambda: estimate_prevalence(TABLE, equal(3), method="bbse"), "`held_out` for method='bbse'"),
    "no calibration set": (lambda: estimate_prevalence(TABLE, equal(3), calibration="beta"), "`held_out` for calibration"),
    "a held-out table alone": (lambda: estimate_prevalence(TABLE, equal(3), method="bbse", held_out=TABLE), "a pair"),
    "labels missing": (
        lambda: estimate_prevalence(TABLE, equal(3), held_out=(TABLE, LABELS[:9])),
        "one held-out label per row",
    ),
    "labels the predictions separate": (
        lambda: estimate_prevalence(TABLE, equal(3), held_out=(TABLE, TABLE.argmax(1))),
        "separate the held-out",
    ),
    "a class never predicted": (
        lambda: estimate_prevalence(NEVER, equal(3), held_out=(NEVER, LABELS), calibration="mean"),
        r"class\(es\) \[2\] never have any",
    ),
    "an array for a calibration": (lambda: estimate_prevalence(TABLE, equal(3), calibration=np.ones(2)), "`calibration`"),
    "a class missing for the mean": (
        lambda: estimate_prevalence(TABLE, equal(3), held_out=(TABLE, LABELS.clip(max=1)), calibration="mean"),
        r"class\(es\) \[2\]",
    ),
    "a stream of pairs": (lambda: estimate_prevalence([TABLE, (TABLE, LABELS)], equal(3)), "the predictions alone"),
    "a calibration of other classes": (
        lambda: estimate_prevalence(log_softmax(TABLE[:, :2], axis=1), 0.5, calibration=fit_calibration(TABLE, LABELS)),
        "calibration of 2 classes",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_with_a_remedy(case: str) -> None:
    call, words = REFUSED[case]
    assert_refused(call, words)
