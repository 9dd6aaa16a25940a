"""The prevalence learnt jointly with a model: the right maximum, the right interval, also at the boundary."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest
from draws import assert_refused
from scipy.optimize import minimize, minimize_scalar
from scipy.special import logsumexp
from scipy.stats import t as student

from rightloss.shift import LabelShiftWarning, joint_prevalence
from rightloss.shift.joint_prevalence import JointLikelihood, _whitened
from rightloss.shift.maximum_likelihood import boundary_limit

Data = tuple[np.ndarray, np.ndarray, np.ndarray]


def two_classes(pi: float, labelled: int, unlabelled: int, seed: int) -> Data:
    """x, y and unlabelled x of two normal classes in two dimensions, 1.5 apart in the first."""
    rng = np.random.default_rng(seed)
    y, hidden = np.repeat([0, 1], labelled), (rng.random(unlabelled) < pi).astype(int)
    first, second = (rng.normal(size=(len(each), 2)) + np.outer(each, [1.5, 0.0]) for each in (y, hidden))
    return first, y, second


def three_classes(mix: tuple[float, ...], counts: tuple[int, ...], unlabelled: int, seed: int) -> Data:
    rng = np.random.default_rng(seed)
    corners = np.array([[0.0, 0.0], [1.8, 0.0], [0.0, 1.5]])
    y, hidden = np.repeat([0, 1, 2], counts), rng.choice(3, size=unlabelled, p=mix)
    return rng.normal(size=(len(y), 2)) + corners[y], y, rng.normal(size=(unlabelled, 2)) + corners[hidden]


def log_streams(parameters: np.ndarray, data: Data, population: np.ndarray) -> float:
    """The likelihood of the streams, written out: (α, b) of classes 1 … K−1 flat."""
    x, y, unlabelled = data
    counts = np.bincount(y)
    theta = np.concatenate([np.zeros((1, x.shape[1] + 1)), parameters.reshape(len(counts) - 1, -1)])
    logits, others = (np.column_stack([np.ones(len(f)), f]) @ theta.T for f in (x, unlabelled))
    with np.errstate(divide="ignore"):
        multipliers, log_pi = np.log(counts + len(unlabelled) * population), np.log(population)
    labelled = logits[np.arange(len(y)), y] - logsumexp(logits + multipliers, axis=1)
    return labelled.sum() + (logsumexp(others + log_pi, axis=1) - logsumexp(others + multipliers, axis=1)).sum()


def softmax(z: np.ndarray) -> np.ndarray:
    return np.exp(z - logsumexp(z))


def by_brute_force(data: Data) -> tuple[np.ndarray, np.ndarray]:
    """scipy's maximum of the streams' likelihood over (α, b) and π: π̂ (K,), and (α, b) `(K − 1, d + 1)`."""
    size, width = data[1].max() + 1, data[0].shape[1] + 1
    split = (size - 1) * width

    def loss(z: np.ndarray) -> float:
        return -log_streams(z[:split], data, softmax(np.append(0.0, z[split:])))

    found = minimize(loss, np.zeros(split + size - 1), method="BFGS", options={"gtol": 1e-7})
    return softmax(np.append(0.0, found.x[split:])), found.x[:split].reshape(size - 1, width)


DATA = {
    "two classes": two_classes(0.3, 40, 300, 1),
    "three classes": three_classes((0.6, 0.3, 0.1), (40, 30, 50), 600, 2),
}
each_data = pytest.mark.parametrize("data", DATA.values(), ids=DATA.keys())


@pytest.mark.long
class TestMaximum:
    @each_data
    def test_is_that_of_the_streams_likelihood(self, data: Data) -> None:
        found = joint_prevalence(*data, penalty=0.0)
        population, theta = by_brute_force(data)
        np.testing.assert_allclose(found.population, population, atol=2e-5)
        np.testing.assert_allclose(found.slopes[1:] - found.slopes[0], theta[:, 1:], atol=2e-4)
        np.testing.assert_allclose(found.tilt[1:] - found.tilt[0], theta[:, 0], atol=2e-4)

    def test_does_not_depend_on_the_features_units_nor_on_features_that_repeat_others(self) -> None:
        x, y, unlabelled = DATA["three classes"]
        matrix, shift = np.array([[200.0, 3.0], [-1.0, 0.01]]), np.array([1e3, -5.0])
        plain = joint_prevalence(x, y, unlabelled)
        moved = joint_prevalence(x @ matrix + shift, y, unlabelled @ matrix + shift)
        twice, others = (np.column_stack([f, f[:, 0] + f[:, 1], np.ones(len(f))]) for f in (x, unlabelled))
        for other in (moved, joint_prevalence(twice, y, others)):
            for name in ("population", "low", "high", "covariance"):
                np.testing.assert_allclose(getattr(other, name), getattr(plain, name), atol=1e-6, rtol=1e-5)
        np.testing.assert_allclose(moved.log_probs(x @ matrix + shift), plain.log_probs(x), atol=1e-6)

    def test_follows_the_numbering_of_the_classes(self) -> None:
        x, y, unlabelled = DATA["three classes"]
        order = np.array([2, 0, 1])  # class k becomes order[k]
        plain, found = joint_prevalence(x, y, unlabelled), joint_prevalence(x, order[y], unlabelled)
        for name in ("population", "low", "high"):
            np.testing.assert_allclose(getattr(found, name)[order], getattr(plain, name), atol=1e-6, rtol=0)

    def test_of_many_rows_is_that_of_the_blocks_together(self, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = joint_prevalence(*DATA["three classes"])
        monkeypatch.setattr(sys.modules[JointLikelihood.__module__], "_BLOCK", 250)
        found = joint_prevalence(*DATA["three classes"])
        np.testing.assert_allclose(found.covariance, whole.covariance, rtol=1e-6)
        np.testing.assert_allclose(found.high, whole.high, atol=1e-8)


def primal(data: Data, pi: float) -> float:
    """The empirical log-likelihood at a known π₁ by scipy, over (α, b) and a mass of p(x|0) at each row."""
    x, y, unlabelled = data
    rows = np.column_stack([np.ones(len(x) + len(unlabelled)), np.concatenate([x, unlabelled])])
    size, width = len(rows), rows.shape[1]

    def loss(z: np.ndarray) -> tuple[float, np.ndarray]:
        eta = rows @ z[:width]
        mixed = 1 - pi + pi * np.exp(eta[len(y) :])
        by_eta = np.concatenate([y.astype(float), 1 - (1 - pi) / mixed])
        value = z[width:].sum() + eta[: len(y)][y == 1].sum() + np.log(mixed).sum()
        return -value, -np.concatenate([rows.T @ by_eta, np.ones(size)])

    def sums(z: np.ndarray) -> np.ndarray:
        mass = np.exp(z[width:])
        return np.array([mass.sum() - 1, mass @ np.exp(rows @ z[:width]) - 1])

    def jacobian(z: np.ndarray) -> np.ndarray:
        mass = np.exp(z[width:])
        ill = mass * np.exp(rows @ z[:width])
        return np.stack([np.concatenate([np.zeros(width), mass]), np.concatenate([rows.T @ ill, ill])])

    start = np.concatenate([np.zeros(width), np.full(size, -math.log(size))])
    ends = {"type": "eq", "fun": sums, "jac": jacobian}
    found = minimize(loss, start, jac=True, constraints=[ends], method="SLSQP", options={"maxiter": 2000, "ftol": 1e-13})
    assert found.success
    return -float(found.fun)


@pytest.mark.long
class TestInterval:
    def test_ends_where_the_deviance_of_the_masses_of_the_rows_does_and_its_curvature_is_the_error(self) -> None:
        data = two_classes(0.5, 15, 40, 5)  # far from 0 and 1
        found = joint_prevalence(*data, penalty=0.0, level=0.5)
        rate, step = float(found.population[1]), 0.02
        best = primal(data, rate)
        for end in (float(found.low[1]), float(found.high[1])):
            assert 2 * (best - primal(data, end)) == pytest.approx(boundary_limit(math.inf, 0.5, 12.0), abs=1e-4)
        curvature = (2 * best - primal(data, rate - step) - primal(data, rate + step)) / step**2
        assert float(found.standard_error[1]) == pytest.approx(curvature**-0.5, rel=5e-3)
        np.testing.assert_allclose(found.covariance, found.covariance[1, 1] * np.array([[1, -1], [-1, 1]]), rtol=1e-6)
        np.testing.assert_allclose(found.low, 1 - found.high[::-1], atol=1e-12, rtol=0)

    @pytest.mark.parametrize("seed", [2, 6])
    def test_near_0_ends_where_the_deviance_reaches_the_limit_of_that_distance(self, seed: int) -> None:
        data = two_classes(0.03, 100, 400, seed)
        found = joint_prevalence(*data)
        likelihood = JointLikelihood(_whitened(*data)[0], 1e-3)
        assert found.low[1] == 0
        end = float(found.high[1])
        at_best, at_end = (likelihood(np.array([1 - t, t])) for t in (float(found.population[1]), end))
        # the curvature of L along (−1, 1); the standard error is the smaller
        curvature = max(float(np.array([-1, 1]) @ at.curvature @ np.array([-1, 1])) for at in (at_best, at_end))
        limit = boundary_limit(end * math.sqrt(curvature), 0.95, 97.0)
        assert 2 * (at_best.value - at_end.value) == pytest.approx(limit, abs=1e-4)
        without = likelihood(np.array([1.0, 0.0])).value
        assert 2 * (at_best.value - without) < boundary_limit(0.0, 0.95, 97.0)

    def test_of_few_rows_is_wider_by_students_t(self) -> None:
        x, y, unlabelled = two_classes(0.5, 40, 4000, 8)
        wider, others = (np.column_stack([f, f[:, 0] ** 2]) for f in (x, unlabelled))
        found = joint_prevalence(wider, y, others)
        likelihood = JointLikelihood(_whitened(wider, y, others)[0], 1e-3)
        high = float(found.high[1])
        deviance = 2 * (likelihood(found.population).value - likelihood(np.array([1 - high, high])).value)
        assert deviance == pytest.approx(student.ppf(0.975, 40 - 4) ** 2, rel=1e-3)  # 3 features and the constant

    def test_reaches_to_0_where_a_class_is_absent(self) -> None:
        x, y, _ = two_classes(0.3, 60, 10, 11)
        unlabelled = np.random.default_rng(0).normal(size=(500, 2)) - [0.3, 0.0]
        found = joint_prevalence(x, y, unlabelled)
        assert found.population.tolist() == [1.0, 0.0]
        assert found.low[1] == 0
        assert found.high[0] == 1
        assert 0 < float(found.high[1]) < 0.1
        assert np.isneginf(found.intercept[1])
        assert (found.log_probs(x)[:, 0] == 0).all()
        found = joint_prevalence(*three_classes((0.7, 0.3, 0.0), (60, 60, 60), 800, 4))
        assert found.population[2] == found.low[2] == 0
        assert found.high[2] > 0
        assert bool((found.low[:2] > 0).all())

    def test_of_three_classes_ends_where_the_best_of_the_others_does(self) -> None:
        data = DATA["three classes"]
        found = joint_prevalence(*data)
        likelihood = JointLikelihood(_whitened(*data)[0], 1e-3)
        for end in (float(found.low[1]), float(found.high[1])):

            def deviance(share: float, end: float = end) -> float:
                value = likelihood(np.array([share * (1 - end), end, (1 - share) * (1 - end)])).value
                return 2 * (found.log_likelihood - value)  # type: ignore[operator]

            least = minimize_scalar(deviance, bounds=(0.5, 1.0), method="bounded", options={"xatol": 1e-6})
            assert least.fun == pytest.approx(boundary_limit(math.inf, 0.95, 27.0), abs=1e-4)


@pytest.mark.long
class TestResult:
    def test_is_an_estimate_like_others(self) -> None:
        found = joint_prevalence(*DATA["three classes"])
        assert found.prevalence().is_uncertain
        assert {found} == {found}  # by identity, as its arrays have no single answer
        assert found.converged
        assert str(found).startswith("Prevalence estimate (joint, 120 labelled and 600 unlabelled rows)\n  class 0: ")
        np.testing.assert_allclose(found.sampling, np.array([40.0, 30.0, 50.0]) / 120)

    def test_takes_tensors_of_any_dtype(self) -> None:
        x, y, unlabelled = DATA["two classes"]
        plain = joint_prevalence(x, y, unlabelled)
        torch = pytest.importorskip("torch")
        found = joint_prevalence(torch.from_numpy(x).float(), torch.from_numpy(y == 1), torch.from_numpy(unlabelled).float())
        np.testing.assert_allclose(found.population, plain.population, atol=1e-5, rtol=0)
        assert isinstance(found.population, torch.Tensor)
        assert isinstance(found.log_probs(torch.zeros(3, 2)), torch.Tensor)
        assert isinstance(found.log_probs(x), np.ndarray)

    def test_warns_of_few_rows_and_of_separated_classes_and_stays_finite(self) -> None:
        rng = np.random.default_rng(0)
        y = np.repeat([0, 1], 20)
        x, unlabelled = rng.normal(size=(40, 1)) + 20 * y[:, None], rng.normal(size=(100, 1))
        unlabelled[:30] += 20
        with pytest.warns(LabelShiftWarning, match="separates"):
            found = joint_prevalence(x, y, unlabelled)
        with pytest.warns(LabelShiftWarning, match="fewer than 15") as heard:
            joint_prevalence(*two_classes(0.3, 10, 100, 1))
        assert heard[0].filename == __file__  # the line that called
        assert float(found.population[1]) == pytest.approx(0.3, abs=1e-3)
        assert bool(np.isfinite(found.slopes).all())
        assert float(found.standard_error[1]) == pytest.approx(math.sqrt(0.3 * 0.7 / 100), rel=0.02)


class TestBadInput:
    x, y, unlabelled = two_classes(0.3, 20, 50, 23)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"features": x[:, 0]}, "`features` to be a table"),
            ({"unlabelled": unlabelled[:, :1]}, "`unlabelled` to have the 2 columns"),
            ({"features": np.where(x > 1, np.nan, x)}, "`features` to be finite, but row"),
            ({"unlabelled": unlabelled + math.inf}, "`unlabelled` to be finite, but row"),
            ({"y": y[:-1]}, "one label per labelled row"),
            ({"y": 2 * y}, r"class\(es\) \[1\] have none"),
            ({"y": y + 0.5}, "int labels"),
            ({"level": 1.0}, "`level`"),
            ({"penalty": math.nan}, "`penalty` to be a finite number from 0 up"),
            ({"features": 0 * x, "unlabelled": 0 * unlabelled}, "features that vary"),
        ],
    )
    def test_is_refused_with_a_remedy(self, change: dict[str, Any], message: str) -> None:
        given = {"features": self.x, "y": self.y, "unlabelled": self.unlabelled, **change}
        assert_refused(lambda: joint_prevalence(**given), message)


def far_apart(seed: int) -> Data:
    """Ten labelled rows of each of three classes, which a linear model nearly separates."""
    rng = np.random.default_rng(seed)
    y, corners, hidden = np.arange(30) % 3, 3.0 * rng.normal(size=(3, 2)), rng.choice(3, size=60, p=[0.5, 0.4, 0.1])
    return rng.normal(size=(30, 2)) + corners[y], y, rng.normal(size=(60, 2)) + corners[hidden]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::rightloss.shift.LabelShiftWarning")
def test_separated_rows_have_limits_without_a_penalty() -> None:
    found = joint_prevalence(*far_apart(1), penalty=0.0)
    assert bool(((found.low <= found.population) & (found.population <= found.high)).all())
    np.testing.assert_allclose(np.exp(found.log_probs(far_apart(1)[2])).mean(0), found.population, atol=1e-6)
