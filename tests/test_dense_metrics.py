"""Dense maps in metrics: each cell is an example, each image a group unless patients are named, some labels are left out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cases import Method
from draws import assert_refused, population, stream, unchecked_types
from labelled import PHI, assert_covers, of_odds
from scipy.special import log_softmax

from rightloss import Prevalence, metrics
from rightloss.arrays import map_of, rows_of, target_rows
from rightloss.predictive import retarget_interval

SHAPES = [(30, 2, 4, 5), (24, 3, 6), (20, 4, 2, 3, 2)]
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def maps(shape: tuple[int, ...], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Predictions in which the cells of an image are alike, and a label per cell."""
    n, k, *cells = shape
    source = stream(seed)
    y = source.integers(k, size=(n, *cells))
    x = source.normal(size=shape) + np.moveaxis(np.eye(k)[y], -1, 1)
    return log_softmax(x + source.normal(size=(n, k, *[1] * len(cells))), axis=1), y


def rows_by_loop(log_probs: np.ndarray, y: np.ndarray) -> tuple[list[list[float]], list[int], list[int]]:
    """Row, label and image of each cell, one at a time."""
    cells = list(np.ndindex(*y.shape))
    rows = [[float(log_probs[(i, c, *rest)]) for c in range(log_probs.shape[1])] for i, *rest in cells]
    return rows, [int(y[cell]) for cell in cells], [cell[0] for cell in cells]


@pytest.mark.long
@each_shape
@pytest.mark.parametrize("intervals", ["analytic", "bootstrap"])
def test_a_map_is_evaluated_as_its_cells_with_images_as_groups(shape: tuple[int, ...], intervals: Method) -> None:
    log_probs, y = maps(shape)
    rows, labels, images = rows_by_loop(log_probs, y)
    pi = population(shape[1])
    expected = metrics.evaluate(rows, labels, pi, groups=images, intervals=intervals, draws=200)
    found = metrics.evaluate(log_probs, y, pi, intervals=intervals, draws=200)
    np.testing.assert_equal(found.to_dict(), expected.to_dict())
    assert found.num_examples == tuple(np.bincount(labels).astype(float))


CURVES: dict[str, Callable[..., Any]] = {
    "roc_curve": lambda t, y, pi, **o: metrics.roc_curve(t, y, 1, pi, **o),
    "precision_recall_curve": lambda t, y, pi, **o: metrics.precision_recall_curve(t, y, pi, 1, **o),
    "probability_histogram": lambda t, y, pi, **o: metrics.probability_histogram(t, y, positive=1, **o),
    "reliability_curve": lambda t, y, pi, **o: metrics.reliability_curve(t, y, pi, positive=1, **o),
    "decision_curve": lambda t, y, pi, **o: metrics.decision_curve(t, y, pi, positive=1, **o),
    "predictive_value_curve": lambda t, y, pi, **o: metrics.predictive_value_curve(
        t, y, threshold=0.3, from_=pi, positive=1, **o
    ),
    "evaluate": lambda t, y, pi, **o: metrics.evaluate(t, y, pi, intervals="analytic", **o),
}
WITH_LIMITS = ["roc_curve", "reliability_curve", "decision_curve", "predictive_value_curve"]


@pytest.mark.long
@each_shape
@pytest.mark.parametrize("name", [name for name in CURVES if name != "evaluate"])
def test_curves_of_a_map_are_those_of_its_cells_and_of_votes_that_agree(name: str, shape: tuple[int, ...]) -> None:
    log_probs, y = maps(shape)
    rows, labels, images = rows_by_loop(log_probs, y)
    groups = {"groups": images} if name in WITH_LIMITS else {}
    expected = vars(CURVES[name](np.array(rows), labels, population(shape[1]), **groups))
    np.testing.assert_equal(vars(CURVES[name](log_probs, y, population(shape[1]))), expected)
    votes = np.moveaxis(np.eye(shape[1])[y], -1, 1)
    agreed = vars(CURVES[name](log_probs, votes, population(shape[1])))
    for key in ("true_positive_rate", "precision", "share", "observed", "low", "net_benefit", "ppv_low"):
        np.testing.assert_allclose(agreed.get(key, 0.0), expected.get(key, 0.0), rtol=1e-9)


@pytest.mark.long
@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize(("ignored", "dtype"), [(-100, np.int64), (255, np.uint8), (2, np.int16)])
def test_cells_of_the_ignored_label_are_left_out(name: str, ignored: int, dtype: Any) -> None:
    log_probs, y = maps((40, 2, 3, 4))
    left_out = stream(3).random(y.shape) < 0.3
    left_out[0] = True  # an image of which nothing is left
    rows, labels, images = (np.array(each)[~left_out.ravel()] for each in rows_by_loop(log_probs, y))
    groups = {"groups": images} if name in [*WITH_LIMITS, "evaluate"] else {}
    expected = CURVES[name](rows, labels, population(2), **groups)
    target = np.where(left_out, ignored, y).astype(dtype)
    found = CURVES[name](log_probs, target, population(2), ignore_index=ignored)
    np.testing.assert_equal(vars(found), vars(expected))


@each_shape
def test_decisions_and_their_costs_have_the_shape_of_the_labels(shape: tuple[int, ...]) -> None:
    log_probs, y = maps(shape)
    assert np.array_equal(metrics.decide(log_probs), log_probs.argmax(1))
    costs = stream(1).random((shape[1], 3))
    cost_of_each = np.einsum("nk...,kd->nd...", np.exp(log_probs), costs)
    chosen = metrics.decide(log_probs, costs)
    assert np.array_equal(chosen, cost_of_each.argmin(1))
    np.testing.assert_allclose(metrics.expected_cost(log_probs, costs, chosen), cost_of_each.min(1))
    found = metrics.decide(log_probs, costs, abstain_cost=0.2)
    assert isinstance(found, np.ndarray)
    assert found.shape == y.shape
    np.testing.assert_array_equal(found == -1, cost_of_each.min(1) > 0.2)


@pytest.mark.long
@pytest.mark.parametrize("intervals", ["analytic", "bootstrap"])
def test_copies_of_a_cell_in_its_image_add_nothing(intervals: Method) -> None:
    log_probs, y = maps((200, 2, 1))
    wide = [np.repeat(each, 9, -1) for each in (log_probs, y)]
    single = metrics.evaluate(log_probs[..., 0], y[:, 0], 0.1, groups=range(200), intervals=intervals)
    found, naive = (
        metrics.evaluate(t, labels, 0.1, intervals=intervals) for t, labels in (wide, (rows_of(wide[0]), wide[1].ravel()))
    )
    for name in ("brier", "auc", "tpr", "ppv", "calibration_slope"):
        np.testing.assert_allclose([found[name].low, found[name].high], [single[name].low, single[name].high], rtol=1e-9)
        assert naive[name].high - naive[name].low < 0.5 * (found[name].high - found[name].low), name


def test_limits_of_curves_know_that_copies_of_a_cell_add_nothing() -> None:
    log_probs, y = maps((400, 2, 1))
    wide = [np.repeat(each, 16, -1) for each in (log_probs, y)]
    single = metrics.decision_curve(log_probs[..., 0], y[:, 0], 0.1, [0.1, 0.3, 0.6])
    found = metrics.decision_curve(wide[0], wide[1], 0.1, [0.1, 0.3, 0.6])
    np.testing.assert_allclose(found.net_benefit, single.net_benefit, rtol=1e-12)
    # of n images they are n − 1 independent examples; a limit of 4,000 draws is known to 2 % of the distance
    np.testing.assert_allclose(found.high - found.low, single.high - single.low, rtol=0.06)


def test_patients_of_several_images_are_drawn_together() -> None:
    log_probs, y = maps((60, 2, 3, 3))
    patients = np.array([f"patient {i // 3}" for i in range(60)])
    rows, labels, images = rows_by_loop(log_probs, y)
    expected = metrics.evaluate(rows, labels, 0.1, groups=patients[images], intervals="analytic")
    found = metrics.evaluate(log_probs, y, 0.1, groups=patients, intervals="analytic")
    np.testing.assert_equal(found.to_dict(), expected.to_dict())


def test_one_image_has_figures_and_no_interval() -> None:
    log_probs, y = maps((1, 2, 20, 20))
    found = metrics.evaluate(log_probs, y, 0.1)
    assert math.isfinite(found.brier.value)
    assert math.isnan(found.brier.low)
    assert "1 groups are too few" in found.brier.reason
    curve = metrics.decision_curve(log_probs, y, 0.1, [0.1])
    assert bool((curve.high - curve.low > 0.08).all())  # as from one example of each class


@pytest.mark.long
@unchecked_types()
def test_intervals_and_limits_hold_the_truth_where_cells_resemble_each_other() -> None:
    """Log-odds N(±1, 1) whose noise is 60 % the image's: 30 images of 36 cells, half of either class."""
    source, share, threshold = stream(8), 0.6, 0.4
    cut = math.log(threshold / (1 - threshold))
    truth = {"tpr": 1 - PHI(cut - 1), "tnr": PHI(cut + 1), "auc": PHI(2 / math.sqrt(2))}
    benefit = 0.3 * truth["tpr"] - 0.7 * (1 - truth["tnr"]) * threshold / (1 - threshold)
    held: dict[str, list[bool]] = {name: [] for name in (*truth, "net benefit")}
    alone = []
    for _ in range(120):
        y = np.tile(np.arange(36) % 2, (30, 1))
        noise = math.sqrt(share) * source.normal(size=(30, 1))
        odds = 2 * y - 1 + noise + math.sqrt(1 - share) * source.normal(size=(30, 36))
        table = of_odds(odds)
        found = metrics.evaluate(table, y, 0.3, threshold=threshold, intervals="analytic")
        for name in truth:
            held[name].append(found[name].low <= truth[name] <= found[name].high)
        curve = metrics.decision_curve(table, y, 0.3, [threshold])
        held["net benefit"].append(bool(curve.low[0] <= benefit <= curve.high[0]))
        curve = metrics.decision_curve(rows_of(table), y.ravel(), 0.3, [threshold])
        alone.append(bool(curve.low[0] <= benefit <= curve.high[0]))
    for hits in held.values():
        assert_covers(hits)
    assert np.mean(alone) < 0.8  # cells that are taken to be independent


@each_shape
def test_rows_become_the_map_they_came_from(shape: tuple[int, ...]) -> None:
    log_probs, y = maps(shape)
    rows = rows_of(log_probs)
    np.testing.assert_array_equal(rows, rows_by_loop(log_probs, y)[0])
    assert np.array_equal(map_of(rows, log_probs.shape), log_probs)
    assert np.array_equal(map_of(rows.argmax(1), log_probs.shape), log_probs.argmax(1))
    assert target_rows(y, log_probs.shape).tolist() == rows_by_loop(log_probs, y)[1]
    table = np.zeros((3, 2))
    assert rows_of(table) is table
    assert map_of(table, (3, 2)) is table
    assert target_rows(y, (len(y), 2)) is y


@each_shape
@pytest.mark.parametrize("by_image", [False, True])
def test_an_interval_of_a_map_is_that_of_each_cell(shape: tuple[int, ...], by_image: bool) -> None:
    log_probs, _ = maps(shape)
    n, k = shape[:2]
    start = np.stack([population(k, seed) for seed in range(n)]) if by_image else population(k, 1)
    to = Prevalence.dirichlet(10 * population(k, 2))
    found = retarget_interval(log_probs, start, to, generator=stream(5))
    for i in (0, n - 1):
        rows = log_probs[i].reshape(k, -1).T
        expected = retarget_interval(rows, start[i] if by_image else start, to, generator=stream(5))
        for name in ("mean", "low", "high"):
            np.testing.assert_allclose(getattr(found, name)[i].reshape(k, -1).T, getattr(expected, name))


MAP, LABELS = maps((4, 3, 5, 6))
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "labels of one channel": (lambda: metrics.evaluate(MAP, LABELS[:, None], population(3)), r"squeeze\(1\)"),
    "votes as ints": (lambda: metrics.evaluate(MAP, np.ones_like(MAP).astype(int), population(3)), "soft labels are floats"),
    "labels of another size": (lambda: metrics.evaluate(MAP, LABELS[:, 1:], population(3)), r"\(4, 5, 6\).*one batch"),
    "labels as rows": (lambda: metrics.roc_curve(MAP, LABELS.ravel(), 1, population(3)), r"\(4, 5, 6\) \(class numbers\)"),
    "labels beyond the classes": (lambda: metrics.evaluate(MAP, LABELS + 1, population(3)), "1..3"),
    "a group per cell": (lambda: metrics.evaluate(MAP, LABELS, population(3), groups=LABELS), "per image"),
    "one channel": (lambda: metrics.decide(np.zeros((2, 1, 4, 4))), "both columns"),
    "one channel in a curve": (lambda: metrics.roc_curve(np.zeros((2, 1, 4, 4)), LABELS), "both columns"),
    "logits": (lambda: metrics.decide(3 * MAP), "log_softmax"),
    "decisions as rows": (lambda: metrics.expected_cost(MAP, None, LABELS.ravel()), r"of shape \(4, 5, 6\)"),
    "a map to calibrate sets on": (
        lambda: metrics.ConformalSets.fit(MAP, LABELS, population(3)),
        r"make rows of a dense map, such as `log_probs\.movedim\(1, -1\)\.flatten\(0, -2\)`",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_what_does_not_fit_a_map_is_refused_with_what_to_do(what: str) -> None:
    assert_refused(*BAD[what])
