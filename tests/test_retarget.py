"""Predictions at another mix of classes, certain, uncertain or estimated: identities, Bayes by other routes, bad input."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from draws import assert_refused, population, stream, unchecked_types
from scipy import integrate, special, stats
from scipy.special import log_expit, log_softmax
from sklearn.ensemble import RandomForestClassifier
from sklearn.naive_bayes import GaussianNB

import rightloss as rl
from rightloss import Prevalence, metrics
from rightloss.metrics.sample import as_prevalence
from rightloss.predictive import PredictionInterval, interval, retarget, retarget_interval
from rightloss.predictive.interval import BetaLogOdds
from rightloss.shift import PrevalenceEstimate, estimate_prevalence

NAN, INF = float("nan"), float("inf")


@cache
def classified(model: type, k: int) -> tuple[np.ndarray, np.ndarray]:
    """A fitted classifier's log-probabilities `(n, k)`, and the mix that it was trained on."""
    rng = stream(k)
    y = np.concatenate([np.arange(60 * k) % k, np.zeros(80, np.int64)])
    x = rng.normal(size=(len(y), 4)) + 4 * rng.normal(size=(k, 4))[y]
    options = {"n_estimators": 10, "max_depth": 4, "random_state": 0} if model is RandomForestClassifier else {}
    with np.errstate(divide="ignore"):
        table = model(**options).fit(x, y).predict_log_proba(x)
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
    "a forest, with probabilities of 0": partial(classified, RandomForestClassifier, 5),
    "naive Bayes, far below 0": partial(classified, GaussianNB, 2),
    "confident": partial(confident, 5),
    "extreme": extreme,
}


class TestRetarget:
    @pytest.mark.parametrize("predictions", PREDICTIONS)
    def test_there_and_back_is_the_identity_also_by_way_of_a_third_mix(self, predictions: str) -> None:
        table, mix = PREDICTIONS[predictions]()
        k = table.shape[1]
        rare = np.full(k, 1e-9)
        rare[0] = 1 - 1e-9 * (k - 1)
        for to, third in ((population(k, 11), rare), (rare, rare[::-1]), (rare[::-1], population(k, 11))):
            found = retarget(table, mix, to)
            np.testing.assert_allclose(retarget(found, to, mix), table, rtol=0, atol=1e-12)
            np.testing.assert_allclose(retarget(found, to, third), retarget(table, mix, third), rtol=0, atol=1e-12)
            np.testing.assert_allclose(np.exp(found).sum(1), np.exp(table).sum(1), rtol=1e-13)

    def test_to_the_mix_it_comes_from_is_exactly_the_identity_in_every_form(self) -> None:
        for predictions in PREDICTIONS.values():
            table, mix = predictions()
            rows = np.tile(mix, (len(table), 1))
            for from_, to in ((mix, mix), (mix.tolist(), Prevalence(mix)), (rows, rows), (mix, rows)):
                assert np.array_equal(retarget(table, from_, to), table)
            narrow = table.astype(np.float32)
            assert np.array_equal(retarget(narrow, mix, mix), narrow)

    @pytest.mark.parametrize(("from_", "to"), [(0.5, 1e-9), (0.02, 0.3), (0.5, 1 - 1e-6)])
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
        table, mix = classified(GaussianNB, 3)
        rows = np.stack([population(3, seed) for seed in range(len(table))])
        there, back = retarget(table, mix, rows), retarget(table, rows, mix)
        for row in range(0, len(table), 17):
            one = slice(row, row + 1)
            np.testing.assert_allclose(there[one], retarget(table[one], mix, rows[row]), rtol=1e-14)
            np.testing.assert_allclose(back[one], retarget(table[one], rows[row], mix), rtol=1e-14)

    def test_for_two_classes_a_number_or_a_column_of_frequencies_of_class_1_is_enough(self) -> None:
        table, mix = classified(GaussianNB, 2)
        column = np.linspace(0.01, 0.99, len(table))[:, None]
        expected = retarget(table, mix, np.concatenate([1 - column, column], 1))
        assert np.array_equal(retarget(table, mix, column), expected)
        assert np.array_equal(retarget(table, mix, column.tolist()), expected)
        assert np.array_equal(retarget(table, 0.25, 0.01), retarget(table, [0.75, 0.25], Prevalence.binary(0.01)))

    @pytest.mark.parametrize("shape", [(4,), (2, 3)])
    def test_dense_maps_are_their_cells(self, shape: tuple[int, ...]) -> None:
        flat = log_softmax(stream(1).normal(size=(2, math.prod(shape), 3)), 2)
        maps = np.moveaxis(flat, 2, 1).reshape(2, 3, *shape)
        each = np.stack([population(3, 4), population(3, 5)])
        for to, per_cell in ((each[0], each[0]), (each, each.repeat(math.prod(shape), 0))):
            found = retarget(maps, population(3), to)
            assert found.shape == maps.shape
            expected = retarget(flat.reshape(-1, 3), population(3), per_cell)
            np.testing.assert_allclose(np.moveaxis(found, 1, -1).reshape(-1, 3), expected, rtol=0, atol=1e-14)

    def test_dtype_and_kind_stay(self) -> None:
        for dtype in (np.float64, np.float32, np.float16):
            table = np.log([[0.5, 0.5], [0.25, 0.75]]).astype(dtype)
            found = retarget(table, 0.75, 0.5)
            assert found.dtype == dtype
            np.testing.assert_allclose(found, np.log([[0.75, 0.25], [0.5, 0.5]]), rtol=0, atol=4 * float(np.finfo(dtype).eps))
        assert isinstance(retarget(np.log([[0.5, 0.5]]).tolist(), 0.75, 0.5), np.ndarray)

    def test_an_uncertain_prevalence_counts_with_its_mean(self) -> None:
        table, mix = classified(GaussianNB, 2)
        assert np.array_equal(retarget(table, mix, Prevalence.beta(0.5, 2.0)), retarget(table, mix, 0.2))


BETAS = [(2.0, 50.0), (0.1, 3.0), (3.0, 2000.0), (1e6, 1e9), (40.0, 0.5)]
ODDS = np.array([-30.0, -3.0, 0.0, 2.0, 12.0])  # log p(x|1)/p(x|0)


def predictions_at_half() -> np.ndarray:
    return np.stack([log_expit(-ODDS), log_expit(ODDS)], 1)


class TestInterval:
    @pytest.mark.parametrize(("a", "b"), BETAS)
    def test_of_two_classes_has_the_betas_quantiles_and_mean_carried_over(self, a: float, b: float) -> None:
        for level in (0.5, 0.999):
            found = retarget_interval(predictions_at_half(), 0.5, Prevalence.beta(a, b), level)
            for share, ends in (((1 - level) / 2, found.low), ((1 + level) / 2, found.high)):
                rates = stats.beta.ppf(share, a, b)
                np.testing.assert_allclose(ends[:, 1], special.expit(ODDS + special.logit(rates)), rtol=1e-8)
            np.testing.assert_allclose(found.low + found.high[:, ::-1], 1, rtol=1e-14)
        low, high = special.logit(stats.beta.ppf(1e-22, a, b)), -special.logit(stats.beta.ppf(1e-22, b, a))

        def density(t: float) -> float:
            return float(np.exp(a * log_expit(t) + b * log_expit(-t) - special.betaln(a, b)))

        for odds, mean in zip(ODDS, found.mean, strict=True):
            expected = [
                integrate.quad(lambda t: special.expit(sign * (t + odds)) * density(t), low, high, limit=500, epsabs=0)[0]  # noqa: B023
                for sign in (-1, 1)
            ]
            np.testing.assert_allclose(mean, expected, rtol=1e-7)
            assert math.isclose(mean.sum(), 1, rel_tol=1e-12)

    @pytest.mark.parametrize(("a", "b"), [(2.0, 50.0), (40.0, 0.5), (1e-3, 2.0), (1e-4, 1e-4)])
    def test_a_quantile_has_its_share_below_and_the_mean_is_the_betas(self, a: float, b: float) -> None:
        found = retarget_interval(np.log([[0.5, 0.5]]), 0.5, Prevalence.beta(a, b))  # without evidence from x
        np.testing.assert_allclose(found.mean, [[b / (a + b), a / (a + b)]], rtol=1e-12)
        for share in (1e-6, 0.025, 0.5, 1 - 1e-6):
            quantile = BetaLogOdds(a, b).quantile(share)
            side, smaller, c, d = (quantile, share, a, b) if quantile < 0 else (-quantile, 1 - share, b, a)
            if side > -700:
                reached = stats.beta.cdf(special.expit(side), c, d)
            else:  # a π that no float holds: F(π) = π^a / (a B(a, b)) there
                reached = math.exp(c * side - special.betaln(c, d)) / c
            assert math.isclose(reached, smaller, rel_tol=1e-8)

    @pytest.mark.parametrize(("draws", "level"), [(41, 0.95), (101, 0.9)])
    def test_for_three_classes_it_is_made_of_the_draws_own_mean_and_quantiles(self, draws: int, level: float) -> None:
        table, mix = classified(RandomForestClassifier, 3)
        table = table[:30]
        to = Prevalence.dirichlet([0.001, 2.0, 30.0])
        found = retarget_interval(table, mix, to, level, draws, stream(4))
        each = np.stack([np.exp(retarget(table, mix, pi)) for pi in to.sample(draws, stream(4))])
        np.testing.assert_allclose(found.mean, each.mean(0), rtol=1e-9, atol=1e-300)
        for share, ends in (((1 - level) / 2, found.low), ((1 + level) / 2, found.high)):
            np.testing.assert_allclose(ends, np.quantile(each, share, 0), rtol=1e-9, atol=1e-300)

    @pytest.mark.long
    @pytest.mark.parametrize("k", [2, 3])
    def test_small_blocks_change_nothing(self, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
        (table, mix), to = classified(GaussianNB, k), Prevalence.dirichlet(5 * population(k, 3) + 1)
        whole = retarget_interval(table[:50], mix, to, generator=stream(5))
        monkeypatch.setattr(interval, "_NUMBERS", 7 * 4000 * k)
        parts = retarget_interval(table[:50], mix, to, generator=stream(5))
        for name in ("mean", "low", "high"):
            np.testing.assert_allclose(getattr(whole, name), getattr(parts, name), rtol=1e-13)

    def test_a_certain_prevalence_gives_an_interval_of_no_width(self) -> None:
        expected = np.exp(retarget(predictions_at_half(), 0.5, 0.1))
        for to in (0.1, [0.9, 0.1], Prevalence.binary(0.1), np.full((5, 1), 0.1)):
            found = retarget_interval(predictions_at_half(), 0.5, to)
            for ends in (found.low, found.mean, found.high):
                np.testing.assert_allclose(ends, expected, rtol=1e-14)

    @pytest.mark.parametrize("k", [2, 3])
    def test_kind_and_dtype_stay_and_a_probability_of_0_too(self, k: int) -> None:
        table, mix = classified(RandomForestClassifier, k)
        found = retarget_interval(table[:40].astype(np.float32), mix, Prevalence.dirichlet(np.ones(k)), level=np.float32(0.75))  # type: ignore[arg-type]
        assert isinstance(found, PredictionInterval)
        for values in (found.mean, found.low, found.high):
            assert values.dtype == np.float32
            assert values.shape == (40, k)
            assert ((values >= 0) & (values <= 1)).all()
        assert (found.high[table[:40] == -INF] == 0).all()
        vague = retarget_interval(np.array([[0.0, *[-INF] * (k - 1)]]), mix, Prevalence.dirichlet(np.full(k, 1e-3)))
        for ends in (vague.low, vague.mean, vague.high):
            np.testing.assert_allclose(ends, [[1.0, *[0.0] * (k - 1)]], rtol=1e-14)

    def test_draws_are_repeatable(self) -> None:
        once, again, other = (retarget_interval(THREE, EVEN, DIRICHLET, generator=stream(seed)).mean for seed in (1, 1, 2))
        assert np.array_equal(once, again)
        assert not np.array_equal(once, other)
        default, zero = (retarget_interval(THREE, EVEN, DIRICHLET, **each).mean for each in ({}, {"generator": 0}))
        assert np.array_equal(default, zero)


TWO = np.log([[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]])
THREE, EVEN = np.log([[0.5, 0.25, 0.25]]), [1 / 3] * 3
BETA, DIRICHLET = Prevalence.beta(1.0, 9.0), Prevalence.dirichlet([1.0, 2.0, 3.0])

BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "logits": (lambda: retarget(3 * TWO, 0.5, 0.1), "row 0 .*are these logits"),
    "probabilities": (lambda: retarget(np.exp(TWO), 0.5, 0.1), "take their logarithm"),
    "probabilities in a map": (lambda: retarget(np.exp(TWO).T[None], 0.5, 0.1), "take their logarithm"),
    "NaN": (lambda: retarget(np.full((2, 2), NAN), 0.5, 0.1), "without NaN, but row 0"),
    "one column": (lambda: retarget(TWO[:, 1], 0.5, 0.1), r"shape \(n, k\).*\(3,\)"),
    "no rows": (lambda: retarget(TWO[:0], 0.5, 0.1), "at least one row"),
    "a percentage": (lambda: retarget(TWO, 0.5, 10.0), "`to` to lie strictly between 0 and 1.*percentage"),
    "a number for three classes": (lambda: retarget(THREE, 0.5, 0.1), "`from_` to list"),
    "a mix off 1": (lambda: retarget(TWO, [0.5, 0.6], 0.1), "`from_` to sum to 1"),
    "a mix of other classes": (lambda: retarget(THREE, [0.5, 0.5], EVEN), "`from_` to have 3 entries"),
    "a prevalence of other classes": (lambda: retarget(THREE, EVEN, Prevalence.binary(0.1)), "3 classes, but got 2"),
    "rates by name": (lambda: retarget(TWO, 0.5, {"ill": 0.1}), "`to` to be K frequencies, but got a dict"),
    "a number per row without a column": (lambda: retarget(TWO, 0.5, [0.1, 0.2, 0.3]), r"as a column, `to\[:, None\]`"),
    "too few mixes": (lambda: retarget(TWO, 0.5, [[0.1, 0.9]]), r"one mix per example, \(3, 2\), but got shape \(1, 2\)"),
    "a negative rate in a row": (lambda: retarget(TWO, 0.5, [[0.1], [0.2], [-0.1]]), "rows of `to` to be positive.*but row 2"),
    "a rate of NaN in a row": (lambda: retarget(TWO, [[0.1], [NAN], [0.1]], 0.5), "rows of `from_`.*but row 1"),
    "a row off 1": (lambda: retarget(TWO, 0.5, [[0.1, 0.9], [0.1, 0.8], [0.5, 0.5]]), "sum to 1, but row 1"),
    "a level in per cent": (lambda: retarget_interval(TWO, 0.5, BETA, level=95), "`level` to lie .*but got 95"),
    "too few draws": (lambda: retarget_interval(TWO, 0.5, BETA, draws=10), "of at least 40, but got 10: for level 0.95"),
    "draws for more than memory": (lambda: retarget_interval(THREE, EVEN, DIRICHLET, draws=10**12), "at most .* 3 classes"),
    "a word for a generator": (lambda: retarget_interval(THREE, EVEN, DIRICHLET, generator="7"), "`generator` to be"),
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
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            narrow = torch.from_numpy(TWO).to(dtype)
            found = retarget(narrow, 0.75, 0.5)
            assert found.dtype == dtype
            np.testing.assert_allclose(found.double(), retarget(TWO, 0.75, 0.5), rtol=0, atol=8 * torch.finfo(dtype).eps)
            assert torch.equal(retarget(narrow, 0.75, 0.75), narrow)

    def test_intervals_are_tensors_too_with_draws_of_torchs_generator(self) -> None:
        torch = pytest.importorskip("torch")
        found, expected = (retarget_interval(each, EVEN, DIRICHLET) for each in (torch.from_numpy(THREE), THREE))
        for name in ("mean", "low", "high"):
            assert isinstance(getattr(found, name), torch.Tensor)
            assert np.array_equal(getattr(found, name), getattr(expected, name))
        assert isinstance(retarget_interval(torch.from_numpy(TWO), 0.5, 0.1).mean, torch.Tensor)
        one, again, other = (
            retarget_interval(THREE, EVEN, DIRICHLET, generator=torch.Generator().manual_seed(seed)).mean for seed in (1, 1, 2)
        )
        assert np.array_equal(one, again)
        assert not np.array_equal(one, other)

    def test_gradients_are_right_at_the_identity_too_and_finite_at_a_probability_of_0(self) -> None:
        torch = pytest.importorskip("torch")
        outputs = torch.from_numpy(stream(2).normal(size=(4, 3))).requires_grad_()
        for to in ([0.2, 0.3, 0.5], [0.9, 0.09, 0.01]):
            moved = partial(lambda z, to: retarget(torch.log_softmax(z, 1), [0.9, 0.09, 0.01], to), to=to)
            assert torch.autograd.gradcheck(moved, outputs)
            assert torch.autograd.gradgradcheck(moved, outputs)
        certain = torch.tensor([[0.0, -INF], [0.3, 0.1]], requires_grad=True)
        retarget(torch.log_softmax(certain, 1), 0.5, 0.1)[:, 0].sum().backward()
        assert certain.grad is not None
        assert bool(certain.grad.isfinite().all())

    @pytest.mark.long
    @pytest.mark.parametrize(("make", "shape"), [("export", (4, 2, 3, 5)), ("compile", (4, 2, 3, 5)), ("vmap", (6, 2))])
    def test_exported_compiled_and_mapped_it_gives_the_same(self, make: str, shape: tuple[int, ...]) -> None:
        torch = pytest.importorskip("torch")

        class Model(torch.nn.Module):  # type: ignore[name-defined]
            def forward(self, z: Any) -> Any:
                return retarget(torch.log_softmax(z, 1), 0.5, Prevalence.binary(0.1))

        z, model = torch.from_numpy(stream(4).normal(size=shape)), Model()
        with unchecked_types():
            if make == "export":
                rows = {0: torch.export.Dim("rows", min=2, max=100)}
                exported = torch.export.export(model, (z,), dynamic_shapes=(rows,), strict=False)
                found, expected = exported.module()(z[1:]), model(z[1:])
            elif make == "compile":
                found, expected = torch.compile(model, backend="eager")(z), model(z)
            else:
                found, expected = torch.func.vmap(model)(torch.stack([z, 2 * z])), torch.stack([model(z), model(2 * z)])
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)


@cache
def estimated(k: int) -> PrevalenceEstimate:
    """From predictions stated at even classes, on data with twice as many of each class as of the next."""
    mix, random = 0.5 ** np.arange(k), stream()
    x = random.standard_normal((600, k)) + 2 * np.eye(k)[random.choice(k, 600, p=mix / mix.sum())]
    return estimate_prevalence(log_softmax(2 * x, axis=1), [1 / k] * k, calibration="assumed")


def layered(k: int) -> Any:
    torch = pytest.importorskip("torch")
    return rl.PrevalenceLayer(torch.nn.Identity(), rl.Prevalence([1 / k] * k))


# Whatever takes a population; the even mix is that of the predictions.
USES: dict[str, Callable[[np.ndarray, np.ndarray, Any, Any], Any]] = {
    "retarget to": lambda t, y, even, pi: retarget(t, even, pi),
    "retarget from": lambda t, y, even, pi: retarget(t, pi, even),
    "retarget_interval": lambda t, y, even, pi: retarget_interval(t, even, pi, draws=100),
    "undo_sampling": lambda t, y, even, pi: rl.undo_sampling(t, sampling=even, population=pi),
    "PrevalenceLayer.predict": lambda t, y, even, pi: layered(t.shape[1]).predict(t, pi),
    "evaluate": lambda t, y, even, pi: metrics.evaluate(t, y, pi, intervals="analytic").to_dict(),
    "roc_curve": lambda t, y, even, pi: metrics.roc_curve(t, y, 1, pi),
    "precision_recall_curve": lambda t, y, even, pi: metrics.precision_recall_curve(t, y, pi, 1),
    "reliability_curve": lambda t, y, even, pi: metrics.reliability_curve(t, y, pi, positive=1),
    "decision_curve": lambda t, y, even, pi: metrics.decision_curve(t, y, pi, positive=1),
    "predictive_value_curve": lambda t, y, even, pi: metrics.predictive_value_curve(
        t, y, threshold=0.3, prevalences=pi, from_=pi, positive=1
    ),
    "conformal sets": lambda t, y, even, pi: metrics.ConformalSets.fit(t, y, pi).predict(t),
}


class TestEstimates:
    """An estimated prevalence counts as its uncertain prevalence."""

    @pytest.mark.long
    @pytest.mark.parametrize("use", USES)
    def test_wherever_a_population_is_taken(self, use: str) -> None:
        y = np.arange(120) % 4
        table = log_softmax(2 * (stream(9).standard_normal((120, 4)) + np.eye(4)[y]), axis=1)
        found, expected = (USES[use](table, y, [1 / 4] * 4, pi) for pi in (estimated(4), estimated(4).prevalence()))
        if dataclasses.is_dataclass(found):
            found, expected = vars(found), vars(expected)
        np.testing.assert_equal(found, expected)

    def test_a_class_estimated_at_zero_is_not_ruled_out(self) -> None:
        table = log_softmax([[9.0, -9.0], [0.0, 0.0]], axis=1)
        estimate = estimate_prevalence(np.repeat(table[:1], 200, 0), 0.5, calibration="assumed")
        assert estimate.population[1] == 0
        moved = retarget(table, 0.5, estimate)
        assert np.isfinite(moved).all()
        assert np.exp(moved[1, 1]) < 0.02

    def test_it_is_no_sampling_and_a_layer_is_trained_for_none(self) -> None:
        table: Any = log_softmax(stream().normal(size=(4, 2)), axis=1)
        sampling: Any = estimated(2)
        assert_refused(lambda: rl.undo_sampling(table, sampling=sampling, labels=[0, 1]), r"write `prevalence\.sampling`")
        layer, torch = layered(2), pytest.importorskip("torch")
        assert_refused(lambda: type(layer)(torch.nn.Identity(), estimated(2)), "trained for, and the estimate to `predict")
        assert_refused(lambda: as_prevalence(layer, 2), "`prevalence` to be numbers")  # it holds one, and is none
        assert_refused(lambda: retarget(table, 0.5, layer), "`to` to be numbers")
