"""Predictions at another mix of classes, certain or not: identities, Bayes by other routes, bad input."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from draws import assert_mean_is, assert_refused, population, stream, unchecked_types
from scipy import integrate, special, stats
from scipy.special import log_softmax
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB

from rightloss import ContinuousPrevalence, Prevalence
from rightloss.predictive import PredictionInterval, interval, retarget, retarget_interval
from rightloss.predictive.interval import BetaLogOdds

NAN, INF = float("nan"), float("inf")

CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "LogisticRegression": lambda: LogisticRegression(max_iter=1000),
    "RandomForest": lambda: RandomForestClassifier(10, max_depth=4, random_state=0),  # gives probabilities of 0
    "GaussianNB": GaussianNB,  # gives log-probabilities far below 0
}


@cache
def classified(name: str, k: int) -> tuple[np.ndarray, np.ndarray]:
    """A fitted classifier's log-probabilities `(n, k)`, and the mix that it was trained on."""
    rng = stream(k)
    y = np.concatenate([np.arange(60 * k) % k, np.zeros(80, np.int64)])
    x = rng.normal(size=(len(y), 4)) + 4 * rng.normal(size=(k, 4))[y]
    with np.errstate(divide="ignore"):
        table = CLASSIFIERS[name]().fit(x, y).predict_log_proba(x)
    return table, np.bincount(y) / len(y)


def confident(k: int) -> tuple[np.ndarray, np.ndarray]:
    """The log-probabilities of a confident network."""
    return log_softmax(30 * stream(k).normal(size=(50, k)), 1), population(k, 1)


def extreme() -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities down to −700 and −∞, for a mix with classes of 1e-9."""
    table = np.array([[0.0, -700.0, -INF], [-300.0, 0.0, -700.0], [-INF, -INF, 0.0], [-1e-9, -40.0, -1.0]])
    return log_softmax(table, 1), np.array([1 - 2e-9, 1e-9, 1e-9])


# Predictions (n, k) and the mix they are for.
PREDICTIONS: dict[str, Callable[[], tuple[np.ndarray, np.ndarray]]] = {
    **{f"{name}, {k} classes": partial(classified, name, k) for name in CLASSIFIERS for k in (2, 5)},
    "confident, 2 classes": partial(confident, 2),
    "confident, 5 classes": partial(confident, 5),
    "extreme": extreme,
}

each_prediction = pytest.mark.parametrize("predictions", PREDICTIONS)


def targets(k: int) -> list[np.ndarray]:
    rare = np.full(k, 1e-9)
    rare[0] = 1 - 1e-9 * (k - 1)
    return [population(k, 11), rare, rare[::-1]]


class TestRetarget:
    @pytest.mark.long
    @each_prediction
    def test_to_the_mix_it_comes_from_is_exactly_the_identity(self, predictions: str) -> None:
        table, mix = PREDICTIONS[predictions]()
        rows = np.tile(mix, (len(table), 1))
        for from_, to in ((mix, mix), (mix.tolist(), Prevalence(mix)), (rows, rows), (mix, rows)):
            assert np.array_equal(retarget(table, from_, to), table)
        narrow = table.astype(np.float32)
        assert np.array_equal(retarget(narrow, mix, mix), narrow)

    @each_prediction
    def test_there_and_back_is_the_identity(self, predictions: str) -> None:
        table, mix = PREDICTIONS[predictions]()
        for to in targets(table.shape[1]):
            back = retarget(retarget(table, mix, to), to, mix)
            np.testing.assert_allclose(back, table, rtol=0, atol=1e-12)

    @each_prediction
    def test_by_way_of_a_third_mix_is_the_same(self, predictions: str) -> None:
        table, mix = PREDICTIONS[predictions]()
        first, second, third = targets(table.shape[1])
        direct = retarget(table, mix, third)
        np.testing.assert_allclose(retarget(retarget(table, mix, first), first, third), direct, rtol=0, atol=1e-12)
        np.testing.assert_allclose(retarget(retarget(table, mix, second), second, third), direct, rtol=0, atol=1e-12)

    @each_prediction
    def test_the_result_is_normalised(self, predictions: str) -> None:
        table, mix = PREDICTIONS[predictions]()
        for to in targets(table.shape[1]):
            total = np.exp(retarget(table, mix, to)).sum(1)
            np.testing.assert_allclose(total, np.exp(table).sum(1), rtol=1e-13)

    @pytest.mark.parametrize("k", [2, 3, 5, 10])
    def test_predictions_by_bayes_at_one_mix_become_those_at_the_other(self, k: int) -> None:
        x = np.linspace(-4, 4, 50)
        density = np.stack([stats.norm(mean, 1 + 0.1 * mean).pdf(x) for mean in range(k)], 1)
        joint = [density * population(k, seed) for seed in (1, 2)]
        here, there = (np.log(each / each.sum(1, keepdims=True)) for each in joint)
        np.testing.assert_allclose(retarget(here, population(k, 1), population(k, 2)), there, rtol=0, atol=1e-12)

    def test_on_people_of_the_population_the_mean_prediction_is_its_prevalence(self) -> None:
        rng, k, centres = stream(3), 3, np.array([0.0, 1.0, 2.0])
        here, there = population(k, 1), np.array([0.9, 0.09, 0.01])
        y = rng.choice(k, 200_000, p=there)
        x = centres[y] + rng.normal(size=len(y))
        table = log_softmax(np.log(here) - (x[:, None] - centres) ** 2 / 2, 1)
        assert_mean_is(np.exp(retarget(table, here, there)), there)

    @pytest.mark.parametrize("to", [1e-9, 1e-3, 0.3, 1 - 1e-6])
    @pytest.mark.parametrize("from_", [0.5, 0.02])
    def test_the_odds_of_class_1_are_multiplied_by_the_ratio_of_the_mixes_odds(self, from_: float, to: float) -> None:
        probs = [1e-12, 0.01, 0.5, 0.99]
        found = retarget(np.log([[1 - p, p] for p in probs]), from_, to)[:, 1]
        with localcontext() as context:
            context.prec = 50
            one, f, t = Decimal(1), Decimal(from_), Decimal(to)
            odds = [Decimal(p) / (one - Decimal(p)) * (t / (one - t)) / (f / (one - f)) for p in probs]
            exact = [float((each / (one + each)).ln()) for each in odds]
        np.testing.assert_allclose(found, exact, rtol=0, atol=1e-12)

    def test_a_mix_per_row_is_each_rows_own(self) -> None:
        table, mix = classified("GaussianNB", 3)
        rows = np.stack([population(3, seed) for seed in range(len(table))])
        there, back = retarget(table, mix, rows), retarget(table, rows, mix)
        for row in range(0, len(table), 17):
            one = slice(row, row + 1)
            np.testing.assert_allclose(there[one], retarget(table[one], mix, rows[row]), rtol=1e-14)
            np.testing.assert_allclose(back[one], retarget(table[one], rows[row], mix), rtol=1e-14)

    @pytest.mark.parametrize("convert", [np.asarray, lambda rows: rows.tolist()])
    def test_for_two_classes_a_column_of_frequencies_of_class_1_is_enough(self, convert: Callable[[Any], Any]) -> None:
        table, mix = classified("LogisticRegression", 2)
        column = np.linspace(0.01, 0.99, len(table))[:, None]
        both = np.concatenate([1 - column, column], 1)
        assert np.array_equal(retarget(table, mix, convert(column)), retarget(table, mix, both))

    def test_a_number_is_the_frequency_of_class_1(self) -> None:
        table, _ = classified("LogisticRegression", 2)
        assert np.array_equal(retarget(table, 0.25, 0.01), retarget(table, [0.75, 0.25], Prevalence.binary(0.01)))

    @pytest.mark.parametrize("shape", [(4,), (2, 3), (2, 3, 2)])
    def test_dense_maps_are_their_cells(self, shape: tuple[int, ...]) -> None:
        flat = log_softmax(stream(1).normal(size=(2, math.prod(shape), 3)), 2)
        maps = np.moveaxis(flat, 2, 1).reshape(2, 3, *shape)
        each = np.stack([population(3, 4), population(3, 5)])
        for to, per_cell in ((each[0], each[0]), (each, each.repeat(math.prod(shape), 0))):
            found = retarget(maps, population(3), to)
            assert found.shape == maps.shape
            expected = retarget(flat.reshape(-1, 3), population(3), per_cell)
            np.testing.assert_allclose(np.moveaxis(found, 1, -1).reshape(-1, 3), expected, rtol=0, atol=1e-14)

    @pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
    def test_dtype_and_kind_stay(self, dtype: Any) -> None:
        table = np.log([[0.5, 0.5], [0.25, 0.75]]).astype(dtype)
        found = retarget(table, 0.75, 0.5)
        assert found.dtype == dtype
        np.testing.assert_allclose(found, np.log([[0.75, 0.25], [0.5, 0.5]]), rtol=0, atol=4 * np.finfo(dtype).eps)
        assert isinstance(retarget(np.log([[0.5, 0.5]]).tolist(), 0.75, 0.5), np.ndarray)

    @pytest.mark.parametrize(("a", "b"), [(0.5, 3.0), (2.0, 100.0), (30.0, 70.0)])
    def test_for_one_person_an_uncertain_prevalence_counts_with_its_mean(self, a: float, b: float) -> None:
        """∫ p(1|x,π) p(π|x) dπ by quadrature, with p(π|x) ∝ p(x|π) p(π) and p(x|π) = Σ_k p(x|k) π_k."""
        ratio = 4.0  # p(x|1) / p(x|0)
        here = np.log([[0.5 / (0.5 + 0.5 * ratio), 0.5 * ratio / (0.5 + 0.5 * ratio)]])

        def evidence(pi: float) -> float:
            return float((pi * ratio + 1 - pi) * stats.beta.pdf(pi, a, b))

        def joint(pi: float) -> float:
            return pi * ratio / (pi * ratio + 1 - pi) * evidence(pi)

        expected = integrate.quad(joint, 0, 1, epsabs=1e-12)[0] / integrate.quad(evidence, 0, 1, epsabs=1e-12)[0]
        assert math.isclose(math.exp(retarget(here, 0.5, Prevalence.beta(a, b))[0, 1]), expected, rel_tol=1e-7)


def confident_rows(k: int) -> tuple[np.ndarray, np.ndarray]:
    table, mix = classified("LogisticRegression", k)
    return table[:100], mix


BETAS = [(2.0, 50.0), (0.5, 0.5), (0.1, 3.0), (1.0, 1.0), (3.0, 2000.0), (1e6, 1e9), (40.0, 0.5)]
each_beta = pytest.mark.parametrize(("a", "b"), BETAS)
ODDS = np.array([-30.0, -3.0, 0.0, 2.0, 12.0])  # log p(x|1)/p(x|0)


def predictions_at_half() -> np.ndarray:
    return np.stack([special.log_expit(-ODDS), special.log_expit(ODDS)], 1)


class TestInterval:
    @each_beta
    @pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
    def test_for_two_classes_its_ends_are_the_betas_quantiles_carried_over(self, a: float, b: float, level: float) -> None:
        found = retarget_interval(predictions_at_half(), 0.5, Prevalence.beta(a, b), level)
        for share, ends in (((1 - level) / 2, found.low), ((1 + level) / 2, found.high)):
            rates = stats.beta.ppf(share, a, b)
            np.testing.assert_allclose(ends[:, 1], special.expit(ODDS + special.logit(rates)), rtol=1e-8)
        np.testing.assert_allclose(found.low + found.high[:, ::-1], 1, rtol=1e-14)

    @each_beta
    def test_for_two_classes_its_mean_is_the_integral(self, a: float, b: float) -> None:
        found = retarget_interval(predictions_at_half(), 0.5, Prevalence.beta(a, b))
        low, high = special.logit(stats.beta.ppf(1e-22, a, b)), -special.logit(stats.beta.ppf(1e-22, b, a))

        def density(t: float) -> float:
            return float(np.exp(a * special.log_expit(t) + b * special.log_expit(-t) - special.betaln(a, b)))

        for odds, mean in zip(ODDS, found.mean, strict=True):
            expected = [
                integrate.quad(lambda t: special.expit(sign * (t + odds)) * density(t), low, high, limit=500, epsabs=0)[0]  # noqa: B023
                for sign in (-1, 1)
            ]
            np.testing.assert_allclose(mean, expected, rtol=1e-7)
            assert math.isclose(mean.sum(), 1, rel_tol=1e-12)

    @pytest.mark.parametrize(("a", "b"), [*BETAS, (1e-3, 2.0), (1e-4, 1e-4)])
    def test_without_evidence_from_x_the_mean_is_the_prevalence(self, a: float, b: float) -> None:
        found = retarget_interval(np.log([[0.5, 0.5]]), 0.5, Prevalence.beta(a, b))
        np.testing.assert_allclose(found.mean, [[b / (a + b), a / (a + b)]], rtol=1e-12)

    @pytest.mark.parametrize(("a", "b"), [*BETAS, (1e-3, 2.0), (1e-4, 1e-4)])
    @pytest.mark.parametrize("share", [1e-6, 0.025, 0.5, 0.975, 1 - 1e-6])
    def test_the_betas_distribution_function_of_its_quantile_is_the_share(self, a: float, b: float, share: float) -> None:
        found = BetaLogOdds(a, b).quantile(share)
        side, smaller, (a, b) = (found, share, (a, b)) if found < 0 else (-found, 1 - share, (b, a))
        if side > -700:
            reached = stats.beta.cdf(special.expit(side), a, b)
        else:  # a π that no float holds: F(π) = π^a / (a B(a, b)) there
            reached = math.exp(a * side - special.betaln(a, b)) / a
        assert math.isclose(reached, smaller, rel_tol=1e-8)

    def test_for_three_classes_of_which_one_is_ruled_out_it_is_that_of_two(self) -> None:
        """Given y ≠ 2, π_1/(π_0 + π_1) ~ Beta(α_1, α_0): so the quantiles found by draws have known shares."""
        draws, (zero, one) = 40_000, (20.0, 3.0)
        table = np.concatenate([predictions_at_half(), np.full((5, 1), -INF)], 1)
        to = Prevalence.dirichlet([zero, one, 5.0])
        found = retarget_interval(table, [0.4, 0.4, 0.2], to, draws=draws, generator=stream(1))
        exact = retarget_interval(predictions_at_half(), 0.5, Prevalence.beta(one, zero))
        assert np.array_equal(found.high[:, 2], np.zeros(5))
        for share, ends in ((0.025, found.low), (0.975, found.high)):
            reached = stats.beta.cdf(special.expit(special.logit(ends[1:, 1]) - ODDS[1:]), one, zero)
            np.testing.assert_allclose(reached, share, rtol=0, atol=4 * (0.025 * 0.975 / draws) ** 0.5)
        spread = (exact.high - exact.low)[:, 1] / 3.9  # of p(1|x,π), about
        assert bool((np.abs(found.mean[:, 1] - exact.mean[:, 1]) < 5 * spread / draws**0.5).all())

    @pytest.mark.long
    @pytest.mark.parametrize("k", [2, 3, 5])
    def test_small_blocks_change_nothing(self, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
        table, mix = confident_rows(k)
        to = Prevalence.dirichlet(5 * population(k, 3) + 1)
        whole = retarget_interval(table, mix, to, generator=stream(5))
        monkeypatch.setattr(interval, "_NUMBERS", 7 * 4000 * k)
        parts = retarget_interval(table, mix, to, generator=stream(5))
        for name in ("mean", "low", "high"):
            np.testing.assert_allclose(getattr(whole, name), getattr(parts, name), rtol=1e-13)

    @pytest.mark.long
    @pytest.mark.parametrize("k", [2, 3, 10])
    def test_it_encloses_the_prediction_at_the_mean_and_shrinks_on_it_as_more_is_known(self, k: int) -> None:
        table, mix = confident_rows(k)
        pi = 0.9 * population(k, 3) + 0.1 / k
        centre = np.exp(retarget(table, mix, pi))
        before = np.full_like(centre, INF)
        for people in (50.0, 5000.0, 500000.0):
            found = retarget_interval(table, mix, Prevalence.dirichlet(people * pi), generator=stream(2))
            assert bool(((found.low <= centre) & (centre <= found.high)).all())
            assert bool((found.high - found.low < before).all())
            before = found.high - found.low
        np.testing.assert_allclose(found.mean, centre, rtol=0, atol=1e-3)

    @pytest.mark.parametrize("to", [0.1, [0.9, 0.1], Prevalence.binary(0.1), np.full((5, 1), 0.1)])
    def test_a_certain_prevalence_gives_an_interval_of_no_width(self, to: Any) -> None:
        found = retarget_interval(predictions_at_half(), 0.5, to)
        expected = np.exp(retarget(predictions_at_half(), 0.5, 0.1))
        for ends in (found.low, found.mean, found.high):
            np.testing.assert_allclose(ends, expected, rtol=1e-14)

    @pytest.mark.long
    @pytest.mark.parametrize("k", [2, 3])
    def test_kind_and_dtype_stay(self, k: int) -> None:
        table, mix = classified("RandomForest", k)
        to = Prevalence.dirichlet(np.ones(k))
        for dtype in (np.float32, np.float64):
            found = retarget_interval(table.astype(dtype), mix, to)
            assert isinstance(found, PredictionInterval)
            for values in (found.mean, found.low, found.high):
                assert values.dtype == dtype
                assert values.shape == table.shape
                assert ((values >= 0) & (values <= 1)).all()
            assert (found.high[table == -INF] == 0).all()

    @pytest.mark.parametrize("level", [np.float32(0.75), np.float64(0.75)])
    def test_a_level_of_numpy_is_that_of_python(self, level: Any) -> None:
        for table, to in ((TWO, BETA), (THREE, Prevalence.dirichlet([1.0, 2.0, 3.0]))):
            mix = [1 / table.shape[1]] * table.shape[1]
            with unchecked_types():
                given, plain = (retarget_interval(table, mix, to, each, generator=stream(1)) for each in (level, 0.75))
            assert np.array_equal(given.low, plain.low)

    @pytest.mark.long
    @pytest.mark.parametrize(("draws", "level"), [(400, 0.95), (41, 0.95), (101, 0.9), (7, 0.5)])
    def test_for_three_classes_it_is_made_of_the_draws_own_mean_and_quantiles(self, draws: int, level: float) -> None:
        table, mix = classified("RandomForest", 3)
        table = table[:30]
        to = Prevalence.dirichlet([0.001, 2.0, 30.0])
        found = retarget_interval(table, mix, to, level, draws, stream(4))
        each = np.stack([np.exp(retarget(table, mix, pi)) for pi in to.sample(draws, stream(4))])
        np.testing.assert_allclose(found.mean, each.mean(0), rtol=1e-9, atol=1e-300)
        for share, ends in (((1 - level) / 2, found.low), ((1 + level) / 2, found.high)):
            np.testing.assert_allclose(ends, np.quantile(each, share, 0), rtol=1e-9, atol=1e-300)

    def test_a_certain_prediction_at_a_vague_prevalence_gives_no_nan(self) -> None:
        table = np.array([[0.0, -INF, -INF], [-INF, math.log(0.5), math.log(0.5)]])
        found = retarget_interval(table, [1 / 3] * 3, Prevalence.dirichlet([1e-3] * 3), generator=stream(1))
        for ends in (found.mean, found.low, found.high):
            assert ends[0].tolist() == [1.0, 0.0, 0.0]
            assert np.isfinite(ends).all()

    @pytest.mark.long
    def test_draws_are_repeatable(self) -> None:
        table, mix = classified("GaussianNB", 3)
        to = Prevalence.dirichlet([1.0, 2.0, 3.0])
        once, again, other = (retarget_interval(table, mix, to, generator=stream(seed)).mean for seed in (1, 1, 2))
        assert np.array_equal(once, again)
        assert not np.array_equal(once, other)
        assert np.array_equal(retarget_interval(table, mix, to).mean, retarget_interval(table, mix, to, generator=0).mean)


TWO = np.log([[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]])
THREE = np.log([[0.5, 0.25, 0.25]])
BETA = Prevalence.beta(1.0, 9.0)
DIRICHLET = Prevalence.dirichlet([1.0, 2.0, 3.0])


class Flat:
    """A density."""

    def log_prob(self, value: Any) -> Any:
        return 0 * value


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "logits": (lambda: retarget(3 * TWO, 0.5, 0.1), "row 0 .*are these logits"),
    "probabilities": (lambda: retarget(np.exp(TWO), 0.5, 0.1), "take their logarithm"),
    "probabilities in a map": (lambda: retarget(np.exp(TWO).T[None], 0.5, 0.1), "take their logarithm"),
    "NaN": (lambda: retarget(np.full((2, 2), NAN), 0.5, 0.1), "without NaN, but row 0"),
    "one column": (lambda: retarget(TWO[:, 1], 0.5, 0.1), r"shape \(n, k\).*\(3,\)"),
    "no rows": (lambda: retarget(TWO[:0], 0.5, 0.1), "at least one row"),
    "words": (lambda: retarget([["a", "b"]], 0.5, 0.1), "`log_probs` to be numbers"),
    "a percentage": (lambda: retarget(TWO, 0.5, 10.0), "`to` to lie strictly between 0 and 1.*percentage"),
    "a certain mix": (lambda: retarget(TWO, 0.0, 0.1), "`from_` to lie strictly between"),
    "a number for three classes": (lambda: retarget(THREE, 0.5, 0.1), "`from_` to list"),
    "a mix off 1": (lambda: retarget(TWO, [0.5, 0.6], 0.1), "`from_` to sum to 1"),
    "a class that never occurs": (lambda: retarget(THREE, [0.5, 0.5, 0.0], [0.2, 0.3, 0.5]), r"`from_` .* 0 for \[2\]"),
    "a mix of other classes": (lambda: retarget(THREE, [0.5, 0.5], [0.2, 0.3, 0.5]), "`from_` to have 3 entries"),
    "a prevalence of other classes": (lambda: retarget(THREE, [0.2, 0.3, 0.5], Prevalence.binary(0.1)), "3 classes, but got 2"),
    "a density": (lambda: retarget(TWO, 0.5, ContinuousPrevalence(Flat())), "`to` to be numbers"),  # type: ignore[arg-type]
    "a number per row without a column": (lambda: retarget(TWO, 0.5, [0.1, 0.2, 0.3]), r"as a column, `to\[:, None\]`"),
    "too few mixes": (lambda: retarget(TWO, 0.5, [[0.1, 0.9]]), r"one mix per example, \(3, 2\), but got shape \(1, 2\)"),
    "mixes of other classes": (lambda: retarget(TWO, np.full((3, 3), 1 / 3), 0.5), r"\(3, 2\), but got shape \(3, 3\)"),
    "a negative rate in a row": (lambda: retarget(TWO, 0.5, [[0.1], [0.2], [-0.1]]), "rows of `to` to be positive.*but row 2"),
    "a rate of NaN in a row": (lambda: retarget(TWO, [[0.1], [NAN], [0.1]], 0.5), "rows of `from_`.*but row 1"),
    "a rate of 1 in a row": (lambda: retarget(TWO, [[1.0], [0.1], [0.1]], 0.5), "rows of `from_`.*but row 0"),
    "a row off 1": (lambda: retarget(TWO, 0.5, [[0.1, 0.9], [0.1, 0.8], [0.5, 0.5]]), r"sum to 1, but row 1 is \[0.1, 0.8\]"),
    "ragged mixes": (lambda: retarget(TWO, 0.5, [[0.1, 0.9], [0.1]]), "`to` to be numbers"),
    "a level in per cent": (lambda: retarget_interval(TWO, 0.5, BETA, level=95), "`level` to lie .*but got 95"),
    "a level in words": (lambda: retarget_interval(TWO, 0.5, BETA, level="95%"), "`level` to lie"),  # type: ignore[arg-type]
    "too few draws": (lambda: retarget_interval(TWO, 0.5, BETA, draws=10), "of at least 40, but got 10: for level 0.95"),
    "half a draw": (lambda: retarget_interval(TWO, 0.5, BETA, draws=99.5), "`draws` to be an int"),  # type: ignore[arg-type]
    "a level of True": (lambda: retarget_interval(TWO, 0.5, BETA, level=True), "`level` to lie"),
    "a level that needs more draws than memory holds": (
        lambda: retarget_interval(THREE, [0.2, 0.3, 0.5], DIRICHLET, level=0.99999999),
        r"at most \d+ draws of 3 classes, but got 199\d+: lower `level`",
    ),
    "more draws than memory holds": (
        lambda: retarget_interval(THREE, [0.2, 0.3, 0.5], DIRICHLET, draws=10**12),
        r"at most \d+ draws of 3 classes, but got 10{12}",
    ),
    "a word for a generator": (
        lambda: retarget_interval(THREE, [0.2, 0.3, 0.5], DIRICHLET, generator="7"),
        r"`generator` to be a numpy\.random\.Generator, .* but got '7': ",
    ),
    "a negative seed": (lambda: retarget_interval(TWO, 0.5, BETA, generator=-1), "or a seed, but got -1"),
    "a distribution of other classes": (lambda: retarget_interval(THREE, [0.2, 0.3, 0.5], BETA), "3 classes, but got 2"),
    "an interval of logits": (lambda: retarget_interval(3 * TWO, 0.5, BETA), "are these logits"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_with_what_came_and_what_to_do(what: str) -> None:
    assert_refused(*BAD[what])


class TestTensors:
    """The same formula for tensors, with gradients, in graphs of torch."""

    def test_they_give_the_numbers_of_arrays_and_keep_their_dtype(self) -> None:
        torch = pytest.importorskip("torch")
        each = np.stack([population(2, seed) for seed in range(3)])
        for to in (0.3, each):
            found, there = retarget(torch.from_numpy(TWO), 0.5, to), retarget(TWO, 0.5, to)
            np.testing.assert_allclose(found.numpy(), there, rtol=1e-15)
            mix = torch.as_tensor(to, dtype=torch.float64)
            assert torch.equal(retarget(torch.from_numpy(TWO), torch.tensor(0.5), mix), found)
        maps = torch.from_numpy(TWO.T[None].copy())
        np.testing.assert_allclose(retarget(maps, 0.5, 0.3)[0].T.numpy(), retarget(TWO, 0.5, 0.3), rtol=1e-15)
        for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
            narrow = torch.from_numpy(TWO).to(dtype)
            found = retarget(narrow, 0.75, 0.5)
            assert found.dtype == dtype
            tolerance = 8 * torch.finfo(dtype).eps
            np.testing.assert_allclose(found.double(), retarget(TWO, 0.75, 0.5), rtol=0, atol=tolerance)
            assert torch.equal(retarget(narrow, 0.75, 0.75), narrow)

    def test_intervals_are_tensors_too(self) -> None:
        torch = pytest.importorskip("torch")
        found = retarget_interval(torch.from_numpy(THREE), [0.2, 0.3, 0.5], DIRICHLET)
        expected = retarget_interval(THREE, [0.2, 0.3, 0.5], DIRICHLET)
        for name in ("mean", "low", "high"):
            assert isinstance(getattr(found, name), torch.Tensor)
            assert np.array_equal(getattr(found, name), getattr(expected, name))
        for to, same in ((BETA, True), (0.1, True)):
            assert isinstance(retarget_interval(torch.from_numpy(TWO), 0.5, to).mean, torch.Tensor) == same
        one, again, other = (
            retarget_interval(THREE, [0.2, 0.3, 0.5], DIRICHLET, generator=torch.Generator().manual_seed(seed)).mean
            for seed in (1, 1, 2)
        )
        assert np.array_equal(one, again)
        assert not np.array_equal(one, other)

    @pytest.mark.parametrize("to", [[0.2, 0.3, 0.5], [0.9, 0.09, 0.01]])
    def test_gradients_are_right_and_at_the_identity_too(self, to: list[float]) -> None:
        torch = pytest.importorskip("torch")
        outputs = torch.from_numpy(stream(2).normal(size=(4, 3))).requires_grad_()
        assert torch.autograd.gradcheck(lambda z: retarget(torch.log_softmax(z, 1), [0.9, 0.09, 0.01], to), outputs)
        assert torch.autograd.gradgradcheck(lambda z: retarget(torch.log_softmax(z, 1), [0.9, 0.09, 0.01], to), outputs)

    def test_a_probability_of_0_gives_no_nan_gradient(self) -> None:
        torch = pytest.importorskip("torch")
        outputs = torch.tensor([[0.0, -INF], [0.3, 0.1]], requires_grad=True)
        retarget(torch.log_softmax(outputs, 1), 0.5, 0.1)[:, 0].sum().backward()
        assert outputs.grad is not None
        assert bool(outputs.grad.isfinite().all())

    @pytest.mark.parametrize("make", ["export", "compile", "vmap"])
    @pytest.mark.parametrize("to", [[0.9, 0.1], Prevalence.binary(0.1)], ids=["list", "Prevalence"])
    @pytest.mark.parametrize("shape", [(6, 2), (4, 2, 3, 5)])
    def test_exported_compiled_and_mapped_it_gives_the_same(self, make: str, shape: tuple[int, ...], to: Any) -> None:
        torch = pytest.importorskip("torch")

        class Model(torch.nn.Module):  # type: ignore[name-defined]
            def forward(self, z: Any) -> Any:
                return retarget(torch.log_softmax(z, 1), 0.5, to)

        z, model = torch.from_numpy(stream(4).normal(size=shape)), Model()
        with unchecked_types():
            if make == "export":
                rows = {0: torch.export.Dim("rows", min=2, max=100)}
                found, expected = (
                    torch.export.export(model, (z,), dynamic_shapes=(rows,), strict=False).module()(z[1:]),
                    model(z[1:]),
                )
            elif make == "compile":
                found, expected = torch.compile(model, backend="aot_eager")(z), model(z)
            else:
                found, expected = torch.func.vmap(model)(torch.stack([z, 2 * z])), torch.stack([model(z), model(2 * z)])
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)
