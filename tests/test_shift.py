"""Prevalence from unlabelled predictions: the likelihood, BBSE and RLLS, what they trust; tables, streams, maps, tensors."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from draws import assert_mean_is, assert_refused, population, stream
from normal_classes import (
    best_on_simplex,
    drawn,
    equal,
    estimate_quietly,
    exact,
    log_likelihood,
    mix,
    overconfident,
)
from scipy.optimize import minimize
from scipy.special import log_softmax

from rightloss import Prevalence
from rightloss.arrays import rows_of
from rightloss.shift import LabelShiftWarning, estimate_prevalence, fit_calibration, label_shift_test

pytestmark = pytest.mark.filterwarnings("ignore:The predictions are trusted to be calibrated:rightloss.PrevalenceWarning")


KINDS = ("mean", "temperature", "affine", "beta")
LINEAR: Any = ("bbse", "bbse-soft", "rlls", "rlls-soft")


class TestMaximumLikelihood:
    @pytest.mark.parametrize("k", [2, 5])
    def test_it_is_scipys_maximum(self, k: int) -> None:
        rho, pi = population(k, 1), population(k, 2)
        table = exact(drawn(pi, 400, 3)[0], rho)
        found = estimate_prevalence(table, rho, region=None)
        best = best_on_simplex(lambda p: log_likelihood(p, table, rho) / 400, k)
        np.testing.assert_allclose(found.population, best, atol=1e-4)
        assert found.log_likelihood is not None
        assert found.log_likelihood >= log_likelihood(best, table, rho) - 1e-9
        assert found.log_likelihood == pytest.approx(log_likelihood(found.population, table, rho), abs=1e-8)

    @pytest.mark.parametrize("k", [4, 60])
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

    @pytest.mark.parametrize("method", ["em", "bbse", "rlls-soft"])
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

    @pytest.mark.long
    @pytest.mark.parametrize(
        ("method", "kind"), [("em", None), ("em", "affine"), ("bbse", None), ("bbse-soft", None), ("rlls", None)]
    )
    def test_estimates_are_right_on_average_and_vary_as_they_say(self, method: Any, kind: Any) -> None:
        """Squared errors over their claimed variances are 1 on average, with the spread of χ²."""
        pi, found = np.array([0.5, 0.3, 0.2]), []
        predict = (lambda x: exact(x, equal(3))) if kind in (None, "mean") else overconfident
        for seed in range(100):
            table, (h, y) = predict(drawn(pi, 1000, 2000 + seed)[0]), drawn(equal(3), 1000, 9000 + seed)
            held_out = None if method == "em" and kind is None else (predict(h), y)
            found.append(estimate_quietly(table, equal(3), method=method, held_out=held_out, calibration=kind, region=None))
        assert_mean_is(np.stack([each.population for each in found]), pi)
        scores = np.stack([(each.population - pi) ** 2 / each.standard_error**2 for each in found])
        assert bool((np.abs(scores.mean(0) - 1) < 4 * (2 / len(found)) ** 0.5).all()), scores.mean(0).tolist()


class TestIdentity:
    """The commonest mistake in this field is the wrong direction."""

    @pytest.mark.parametrize("kind", KINDS)
    def test_the_held_out_set_itself_has_the_mix_it_was_calibrated_at_and_its_own_frequencies(self, kind: Any) -> None:
        h, y = drawn(0.5 * population(4, 22) + 0.5 * equal(4), 500, 23)
        labelled = np.bincount(y, minlength=4) / 500
        found = estimate_prevalence(overconfident(h), labelled, held_out=(overconfident(h), y), calibration=kind, region=None)
        np.testing.assert_allclose(found.population, found.sampling, atol=1e-7, rtol=0)
        assert found.calibration is not None
        np.testing.assert_allclose(found.sampling, np.exp(found.calibration(overconfident(h))).mean(0))
        if kind in ("affine", "beta"):
            np.testing.assert_allclose(found.population, labelled, atol=1e-7, rtol=0)
        for method in LINEAR if kind == "mean" else ():
            linear = estimate_prevalence(overconfident(h), equal(4), held_out=(overconfident(h), y), method=method)
            np.testing.assert_allclose(linear.population, labelled, atol=1e-9, rtol=0)


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

    @pytest.mark.parametrize(("n", "rare"), [(60, 0.01), (2000, 0.2), (25, 0.9)])
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
        found = estimate_quietly(table, equal(3), method="rlls", held_out=(held, y)).population
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


def split(table: np.ndarray, size: int) -> list[np.ndarray]:
    return [table[start : start + size] for start in range(0, len(table), size)]


class TestStreams:
    @pytest.fixture
    def table(self) -> np.ndarray:
        return exact(drawn(np.array([0.6, 0.3, 0.1]), 1000, 40)[0], equal(3))

    @pytest.mark.parametrize("kind", [None, "affine"])
    def test_chunks_make_no_difference(self, table: np.ndarray, kind: Any) -> None:
        h, y = drawn(equal(3), 400, 41)
        options: dict[str, Any] = {"held_out": (overconfident(h), y), "calibration": kind} if kind else {}
        whole = estimate_prevalence(table, equal(3), **options, region="curvature")
        for parts in (
            split(table, 64),
            lambda: iter(split(table, 999)),
            lambda: ([chunk] for chunk in split(table, 300)),
        ):
            found = estimate_prevalence(parts, equal(3), **options, region="curvature")
            assert found.rows == 1000
            np.testing.assert_allclose(found.population, whole.population, atol=1e-10, rtol=0)
            for name in ("low", "high", "covariance"):  # by the curvature one last step before
                np.testing.assert_allclose(getattr(found, name), getattr(whole, name), atol=1e-7, rtol=0)

    def test_a_memory_map_is_read_in_blocks_and_a_private_one_keeps_its_changes(self, tmp_path: Path) -> None:
        table = exact(drawn(np.array([0.9, 0.1]), 300_000, 42)[0], equal(2)).astype(np.float32)
        np.save(tmp_path / "predictions.npy", table)
        mapped, private = (np.load(tmp_path / "predictions.npy", mmap_mode=mode) for mode in ("r", "c"))
        assert isinstance(mapped, np.memmap)
        found, whole = (estimate_prevalence(each, 0.5, region=None) for each in (mapped, table))
        np.testing.assert_allclose(found.population, whole.population, atol=1e-10, rtol=0)
        assert float(mapped[299_999, 0]) == table[299_999, 0]
        private[:] = private[:, ::-1].copy()
        estimate_prevalence(private, 0.5, region=None)
        np.testing.assert_array_equal(private, table[:, ::-1])

    def test_tables_and_mixes_come_in_any_form(self, table: np.ndarray) -> None:
        whole = estimate_prevalence(table, equal(3), region=None)
        for form in (table.tolist(), table.astype(np.float32), np.asfortranarray(table), pd.DataFrame(table)):
            found = estimate_prevalence(form, equal(3), region=None)
            np.testing.assert_allclose(found.population, whole.population, atol=1e-6, rtol=0)
        two = exact(drawn(equal(2), 100, 44)[0], np.array([0.75, 0.25]))
        for rho in (0.25, [0.75, 0.25], Prevalence.binary(0.001, sampling=0.25)):
            assert estimate_prevalence(two, rho).sampling.tolist() == [0.75, 0.25]

    def test_a_stream_that_changes_is_refused(self, table: np.ndarray) -> None:
        calls = iter(range(100))
        shrinking = lambda: iter([table[: 1000 - next(calls)]])  # noqa: E731
        assert_refused(lambda: estimate_prevalence(shrinking, equal(3)), "same rows in every pass")
        once = iter([table])
        assert_refused(lambda: estimate_prevalence(lambda: once, equal(3)), "same rows in every pass")

    def test_a_one_shot_stream_is_enough_for_one_pass(self, table: np.ndarray) -> None:
        h, y = drawn(equal(3), 300, 35)
        options: dict[str, Any] = {"method": "bbse-soft", "held_out": (exact(h, equal(3)), y)}
        whole, once = estimate_prevalence(table, equal(3), **options), iter(split(table, 250))
        for chunks in ((chunk for chunk in split(table, 77)), lambda: once):
            found = estimate_prevalence(chunks, equal(3), **options)
            np.testing.assert_allclose(found.population, whole.population, atol=1e-12, rtol=0)
            assert found.rows == 1000


class TestDenseMaps:
    """A cell counts as a row."""

    @pytest.fixture
    def maps(self) -> tuple[np.ndarray, np.ndarray]:
        """Log-probabilities `(6, 3, 4, 5)` and labels `(6, 4, 5)`, some of them to be ignored."""
        x, y = drawn(mix(0.5, 0.3, 0.2), 120, 20)
        labels = y.reshape(6, 4, 5).copy()
        labels[stream(21).random((6, 4, 5)) < 0.1] = -100
        return np.moveaxis(overconfident(x).reshape(6, 4, 5, 3), -1, 1), labels

    @pytest.mark.parametrize("options", [{"calibration": "assumed"}, {"calibration": "beta"}, {"method": "bbse-soft"}])
    def test_they_equal_the_table_of_their_cells_also_as_streams_and_files(
        self, maps: tuple[np.ndarray, np.ndarray], options: dict[str, Any], tmp_path: Path
    ) -> None:
        dense, labels = maps
        rows, kept = rows_of(dense), labels.ravel() >= 0
        with_labels = options.get("calibration") != "assumed"
        options = options if "method" in options else {**options, "region": "curvature"}
        plain = (rows[kept], labels.ravel()[kept]) if with_labels else None
        expected = estimate_prevalence(rows, equal(3), held_out=plain, **options)
        np.save(tmp_path / "maps.npy", dense)
        for given in (dense, split(dense, 4), lambda: iter(split(dense, 1)), np.load(tmp_path / "maps.npy", mmap_mode="r")):
            found = estimate_prevalence(given, equal(3), held_out=(dense, labels) if with_labels else None, **options)
            assert found.rows == 120
            for name in ("population", "low", "high", "covariance"):
                np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=1e-7, rtol=0)

    def test_calibration_and_test_take_them_cell_by_cell(self, maps: tuple[np.ndarray, np.ndarray]) -> None:
        dense, labels = maps
        rows, kept = rows_of(dense), labels.ravel() >= 0
        calibration = fit_calibration(dense, labels)
        np.testing.assert_allclose(rows_of(calibration(dense)), calibration(rows))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = label_shift_test(dense, (dense, labels))
            expected = label_shift_test(rows, (rows[kept], labels.ravel()[kept]))
        assert found.p_value == pytest.approx(expected.p_value, rel=1e-9)


class TestTensors:
    def test_estimates_of_tensors_are_tensors_with_the_same_numbers(self) -> None:
        torch = pytest.importorskip("torch")
        table, (h, y) = overconfident(drawn(population(3, 30), 300, 31)[0]), drawn(equal(3), 300, 32)
        expected = estimate_prevalence(table, equal(3), held_out=(overconfident(h), y))
        given = torch.from_numpy(table).requires_grad_()
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.from_numpy(table)), batch_size=77)
        held_out = (torch.from_numpy(overconfident(h)), torch.from_numpy(y))
        with torch.inference_mode():
            made_there = torch.from_numpy(table) + 0
        for predictions in (given, loader, made_there):
            found = estimate_prevalence(predictions, torch.from_numpy(equal(3)), held_out=held_out, region="profile")
            for name in ("population", "low", "high", "covariance", "standard_error", "sampling"):
                value = getattr(found, name)
                assert isinstance(value, torch.Tensor)
                np.testing.assert_allclose(value, getattr(expected, name), atol=1e-9)
            assert found.prevalence().num_classes == 3
            assert str(found) == str(expected)
        rough = estimate_prevalence(torch.from_numpy(table).bfloat16(), equal(3))
        np.testing.assert_allclose(rough.population, estimate_prevalence(table, equal(3)).population, atol=0.02)


TABLE, LABELS = exact(drawn(equal(3), 60, 70)[0], equal(3)), drawn(equal(3), 60, 70)[1]
NEVER = np.tile([np.log(0.5), np.log(0.5), -np.inf], (60, 1))
PAIR = (TABLE, LABELS)


def estimate(*args: Any, **options: Any) -> Callable[[], Any]:
    return lambda: estimate_prevalence(*args, **options)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "probabilities": (estimate(np.exp(TABLE), equal(3)), "look like probabilities"),
    "NaN later in a stream": (estimate([TABLE, TABLE * float("nan")], equal(3)), r"log_probs\[60:\]"),
    "one column": (estimate(TABLE[:, :1], 0.5), "column per class"),
    "an empty stream": (estimate(lambda: iter([]), equal(3)), "the stream is empty"),
    "a one-shot stream": (estimate((t for t in [TABLE]), equal(3)), "used up after one pass"),
    "another width later": (estimate([TABLE, TABLE[:, :2]], equal(3)), "3 columns"),
    "a stream of pairs": (estimate([TABLE, PAIR], equal(3)), "the predictions alone"),
    "words": (estimate("predictions", 0.5), "to be"),
    "a mix of another length": (estimate(TABLE, [0.5, 0.5]), "3 entries"),
    "a class never sampled": (estimate(TABLE, [0.5, 0.5, 0.0]), "never sampled"),
    "an unknown method": (estimate(TABLE, equal(3), method="acc"), "`method`"),
    "an unknown region": (estimate(TABLE, equal(3), region="bayes"), "`region`"),
    "an unknown calibration": (estimate(TABLE, equal(3), calibration="platt"), "`calibration`"),
    "a level beyond 1": (estimate(TABLE, equal(3), level=95), "`level`"),
    "no held-out set": (estimate(TABLE, equal(3), method="bbse"), "`held_out` for method='bbse'"),
    "no calibration set": (estimate(TABLE, equal(3), calibration="beta"), "`held_out` for calibration"),
    "labels the predictions separate": (estimate(TABLE, equal(3), held_out=(TABLE, TABLE.argmax(1))), "separate the held-out"),
    "a class never predicted": (estimate(NEVER, equal(3), held_out=(NEVER, LABELS), calibration="mean"), "never have any"),
    "a calibration of other classes": (
        estimate(log_softmax(TABLE[:, :2], axis=1), 0.5, calibration=fit_calibration(*PAIR)),
        "calibration of 2 classes",
    ),
    "groups of a linear system": (
        estimate(TABLE, equal(3), method="bbse", held_out=PAIR, groups=LABELS),
        "method='em' and a table",
    ),
    "groups of a stream": (estimate([TABLE], equal(3), groups=LABELS), "method='em' and a table"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_with_a_remedy(case: str) -> None:
    assert_refused(*REFUSED[case])
