"""The benchmark of unlabelled rows: its own formulas agree with the losses', its bounds with closed forms, and it resumes."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import rightloss as rl

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))
from stream_likelihood import (
    Draws,
    GaussianClasses,
    asymptotic,
    derivatives,
    empirical_estimate,
    log_likelihood,
    logit_adjusted,
    stream_estimate,
)
from unlabelled_efficiency import CLASSES, Plan, run
from unlabelled_efficiency_page import write_page


def draws(labelled: int, unlabelled: int, pi: float, number: int = 3) -> Draws:
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], labelled)
    rows = [
        np.concatenate([CLASSES.drawn(y, rng), CLASSES.drawn((rng.random(unlabelled) < pi).astype(int), rng)])
        for _ in range(number)
    ]
    return Draws(np.stack(rows), labelled, 1e-3)


@pytest.mark.long
class TestLikelihood:
    @pytest.mark.parametrize("pi", [0.3, 0.001])
    @pytest.mark.parametrize("ratio", [0, 1, 7])
    def test_is_the_loss_of_the_package(self, pi: float, ratio: int) -> None:
        torch = pytest.importorskip("torch")
        n, m, theta = 20, 40 * ratio, np.array([-0.7, 1.2, 0.4])
        data = draws(n, m, pi, 1)
        free = torch.from_numpy(theta).requires_grad_()
        logit = torch.from_numpy(data.x[0]) @ free + np.log(pi / (1 - pi))
        logits = torch.stack([torch.zeros_like(logit), logit], 1)
        y = torch.arange(2).repeat_interleave(n)
        prevalence = rl.Prevalence.binary(population=pi, sampling=0.5)
        others = logits[2 * n :] if m else None
        loss = 2 * n * rl.logit_adjusted_loss(logits[: 2 * n], y, prevalence, unlabelled=others, unlabelled_evidence=0.0)
        value, gradient, _ = derivatives(data, theta[None], pi, n + m * pi)
        constant = 2 * n * np.log(n) + (m * np.log(m) if m else 0.0)
        assert float(value[0]) + constant == pytest.approx(-loss.item(), abs=1e-9)
        np.testing.assert_allclose(-torch.autograd.grad(loss, free)[0].numpy(), gradient[0], atol=1e-9)

    def test_without_unlabelled_rows_the_three_estimates_are_one(self) -> None:
        data = draws(50, 0, 0.1)
        alone = logit_adjusted(data)
        np.testing.assert_allclose(stream_estimate(data, 0.1, 0 * alone), alone, atol=1e-7)
        found, fine = empirical_estimate(data, 0.1, alone)
        assert fine.all()
        np.testing.assert_allclose(found[:, 1:], alone[:, 1:], atol=1e-6)

    def test_expected_is_that_of_many_people(self) -> None:
        rng = np.random.default_rng(0)
        theta, pi = np.array([[-0.9, 1.3, -0.4]]), 0.2
        y = (rng.random(400_000) < pi).astype(int)
        logit = CLASSES.drawn(y, rng) @ theta[0] + np.log(pi / (1 - pi))
        people = -np.logaddexp(0, np.where(y == 1, -logit, logit))
        expected = log_likelihood(CLASSES, pi, theta, pi)[0]
        assert abs(people.mean() - expected) < 4 * people.std() / np.sqrt(len(people))


class TestBound:
    def test_of_labelled_rows_alone_is_prentice_and_pykes(self) -> None:
        x, f0, r = CLASSES.grid()
        curved = f0 * r / (1 + r)  # t (1 − t) in the sampled mix, ½ (f0 + f1), times 2
        information = np.array([[curved.sum(), curved @ x], [curved @ x, curved @ x**2]]) / 2
        of_logistic = np.linalg.inv(information)
        found = asymptotic(CLASSES, 0.02, 0.0)
        assert found.unknown is None
        assert found.known[1, 1] == pytest.approx(of_logistic[1, 1], rel=1e-9)
        assert found.known[0, 0] == pytest.approx(of_logistic[0, 0] - 4, rel=1e-9)  # less 1/n₀ + 1/n₁, n = 1
        np.testing.assert_allclose(found.streams, found.known, atol=1e-9)

    def test_with_the_population_known_and_a_rare_class_is_that_of_an_exponential_family(self) -> None:
        found = asymptotic(CLASSES, 1e-9, 1e7).known  # p(x|1) ∝ p(x) exp(b·x), Var(x|1) = I, half of the rows
        np.testing.assert_allclose(np.diag(found)[1:], [2, 2], rtol=1e-4)

    @pytest.mark.parametrize("pi", [0.3, 0.02, 0.001])
    def test_falls_with_every_unlabelled_row_and_rises_where_less_is_known(self, pi: float) -> None:
        before = asymptotic(CLASSES, pi, 0.0).known
        for ratio in (0.1, 1, 10, 100):
            now = asymptotic(CLASSES, pi, ratio)
            assert now.unknown is not None
            assert np.linalg.eigvalsh(before - now.known).min() > -1e-9
            assert np.linalg.eigvalsh(now.unknown[:3, :3] - now.known).min() > -1e-9
            assert np.linalg.eigvalsh(now.streams - now.known).min() > -1e-9
            before = now.known

    @pytest.mark.long
    def test_is_reached_in_large_samples(self) -> None:
        data = draws(1000, 4000, 0.3, 300)
        streams = stream_estimate(data, 0.3, np.tile(CLASSES.truth, (300, 1)))
        found, fine = empirical_estimate(data, 0.3, streams)
        assert fine.all()
        limits = asymptotic(CLASSES, 0.3, 2.0)
        for estimates, limit in ((streams, limits.streams), (found, limits.known)):
            ratio = estimates.var(0, ddof=1) / (np.diag(limit) / 2000)
            assert np.abs(ratio - 1).max() < 4 * np.sqrt(2 / 299)


@pytest.mark.long
def test_the_benchmark_resumes_and_writes_its_page(tmp_path: Path) -> None:
    plan = Plan(populations=(0.3,), labelled=(25,), ratios=(0, 1), draws=6, coverage_draws=8, rows_at_a_time=300)
    store = tmp_path / "found.csv"
    run(plan, store)
    whole = store.read_text(encoding="utf-8").splitlines()
    store.write_text("\n".join(whole[: 1 + 3 * 4]) + "\n", encoding="utf-8")  # as if it had been stopped
    run(plan, store)
    assert store.read_text(encoding="utf-8").splitlines() == whole
    page = write_page(store, plan, GaussianClasses(1.5), tmp_path / "page.md", "seed 16")
    assert "AUC 0.856" in page
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == page
    assert (tmp_path / "page.png").stat().st_size > 10_000
