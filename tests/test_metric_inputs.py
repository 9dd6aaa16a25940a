"""What the metrics take: dense maps, whose images are groups; tensors in every mode; labels of pandas and others."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from draws import assert_refused, population, stream
from scipy.special import log_softmax

from rightloss import Prevalence, metrics
from rightloss.predictive import retarget_interval

SHAPES = [(24, 3, 6), (20, 4, 2, 3, 2)]
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def maps(shape: tuple[int, ...], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Predictions in which the cells of an image are alike, and a label per cell."""
    n, k, *cells = shape
    source = stream(seed)
    y = source.integers(k, size=(n, *cells))
    x = source.normal(size=shape) + np.moveaxis(np.eye(k)[y], -1, 1)
    return log_softmax(x + source.normal(size=(n, k, *[1] * len(cells))), axis=1), y


def rows_by_loop(log_probs: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Row, label and image of each cell, one at a time."""
    cells = list(np.ndindex(*y.shape))
    rows = [[float(log_probs[(i, c, *rest)]) for c in range(log_probs.shape[1])] for i, *rest in cells]
    return np.array(rows), np.array([int(y[cell]) for cell in cells]), np.array([cell[0] for cell in cells])


def curve(name: str, **fixed: Any) -> Callable[..., Any]:
    return lambda t, y, pi, c, **o: getattr(metrics, name)(t, y, prevalence=pi, positive=1, **fixed, **o)


# Each function, and whether it takes groups; with the costs of decisions, and an uncertain prevalence.
CALLS: dict[str, tuple[Callable[..., Any], bool]] = {
    "evaluate, analytic": (lambda t, y, pi, c, **o: metrics.evaluate(t, y, pi, costs=c, intervals="analytic", **o), True),
    "evaluate, bootstrap": (
        lambda t, y, pi, c, **o: metrics.evaluate(t, y, pi, costs=c, intervals="bootstrap", draws=100, **o), True
    ),
    "probability_histogram": (lambda t, y, pi, c, **o: metrics.probability_histogram(t, y, positive=1, **o), False),
    "predictive_value_curve": (
        lambda t, y, pi, c, **o: metrics.predictive_value_curve(t, y, threshold=0.4, prevalences=pi, positive=1, **o), True
    ),
    "precision_recall_curve": (curve("precision_recall_curve"), False),
    "roc_curve": (curve("roc_curve"), True),
    "reliability_curve": (curve("reliability_curve"), True),
    "smooth_calibration_curve": (curve("smooth_calibration_curve"), True),
    "decision_curve": (curve("decision_curve", thresholds=[0.1, 0.4]), True),
    "operating_point": (curve("operating_point", recall=0.8), True),
}  # fmt: skip
OF_ROWS: dict[str, Callable[..., Any]] = {
    "decide": lambda t, y, pi, c: metrics.decide(t, c, abstain_cost=0.4),
    "expected_cost": lambda t, y, pi, c: metrics.expected_cost(t, c, y),
    "conformal sets": lambda t, y, pi, c: metrics.ConformalSets.fit(t, y, pi).predict(t),
}


def numbers(result: Any) -> Any:
    """Anything's numbers, to be compared."""
    if isinstance(result, metrics.Evaluation):
        return result.to_dict()
    return vars(result) if hasattr(result, "__dataclass_fields__") else np.asarray(result)


def at(k: int) -> tuple[Prevalence, np.ndarray]:
    return Prevalence.dirichlet(np.arange(1.0, k + 1) * 10), np.where(np.tri(k, k=-1), 3.0, 1 - np.eye(k))


class TestMaps:
    @pytest.mark.long
    @pytest.mark.parametrize("name", CALLS)
    def test_are_their_cells_with_images_as_groups_without_those_of_the_ignored_label(self, name: str) -> None:
        call, grouped = CALLS[name]
        for shape, ignored, dtype in zip(SHAPES, (-100, 255), (np.int64, np.uint8), strict=True):
            log_probs, y = maps(shape)
            left_out = stream(3).random(y.shape) < 0.3
            left_out[0] = True  # an image of which nothing is left
            rows, labels, images = (each[~left_out.ravel()] for each in rows_by_loop(log_probs, y))
            expected = call(rows, labels, *at(shape[1]), **({"groups": images} if grouped else {}))
            target = np.where(left_out, ignored, y).astype(dtype)
            found = call(log_probs, target, *at(shape[1]), ignore_index=ignored)
            np.testing.assert_equal(numbers(found), numbers(expected))

    @pytest.mark.long
    def test_with_votes_that_agree_are_those_with_labels(self) -> None:
        log_probs, y = maps(SHAPES[0])
        votes = np.moveaxis(np.eye(3)[y], -1, 1)
        for call in (call for name, (call, _) in CALLS.items() if "curve" in name and "smooth" not in name):
            agreed, expected = (vars(call(log_probs, target, *at(3))) for target in (votes, y))
            for key in ("true_positive_rate", "precision", "share", "observed", "low", "net_benefit", "ppv_low"):
                np.testing.assert_allclose(agreed.get(key, 0.0), expected.get(key, 0.0), rtol=1e-9)

    @each_shape
    def test_have_decisions_and_costs_of_the_shape_of_the_labels(self, shape: tuple[int, ...]) -> None:
        log_probs, y = maps(shape)
        assert np.array_equal(metrics.decide(log_probs), log_probs.argmax(1))
        costs = stream(1).random((shape[1], 3))
        cost_of_each = np.einsum("nk...,kd->nd...", np.exp(log_probs), costs)
        chosen = metrics.decide(log_probs, costs)
        assert np.array_equal(chosen, cost_of_each.argmin(1))
        np.testing.assert_allclose(metrics.expected_cost(log_probs, costs, chosen), cost_of_each.min(1))
        found = metrics.decide(log_probs, costs, abstain_cost=0.2)
        assert found.shape == y.shape
        np.testing.assert_array_equal(found == -1, cost_of_each.min(1) > 0.2)

    def test_have_limits_of_curves_that_know_that_copies_of_a_cell_add_nothing(self) -> None:
        log_probs, y = maps((400, 2, 1))
        single = metrics.decision_curve(log_probs[..., 0], y[:, 0], 0.1, [0.1, 0.3, 0.6])
        found = metrics.decision_curve(np.repeat(log_probs, 16, -1), np.repeat(y, 16, -1), 0.1, [0.1, 0.3, 0.6])
        np.testing.assert_allclose(found.net_benefit, single.net_benefit, rtol=1e-12)
        # of n images they are n − 1 independent examples; a limit of 4,000 draws is known to 2 % of the distance
        np.testing.assert_allclose(found.high - found.low, single.high - single.low, rtol=0.06)

    def test_of_one_patient_are_drawn_together(self) -> None:
        log_probs, y = maps((60, 2, 3, 3))
        patients = np.array([f"patient {i // 3}" for i in range(60)])
        rows, labels, images = rows_by_loop(log_probs, y)
        expected = metrics.evaluate(rows, labels, 0.1, groups=patients[images], intervals="analytic")
        found = metrics.evaluate(log_probs, y, 0.1, groups=patients, intervals="analytic")
        np.testing.assert_equal(found.to_dict(), expected.to_dict())

    def test_of_one_image_have_figures_and_no_interval(self) -> None:
        log_probs, y = maps((1, 2, 20, 20))
        found = metrics.evaluate(log_probs, y, 0.1)
        assert math.isfinite(found.brier.value)
        assert math.isnan(found.brier.low)
        assert "1 groups are too few" in found.brier.reason
        curve = metrics.decision_curve(log_probs, y, 0.1, [0.1])
        assert bool((curve.high - curve.low > 0.08).all())  # as from one example of each class

    @pytest.mark.long
    @pytest.mark.parametrize("by_image", [False, True])
    def test_have_the_interval_of_each_cell_when_moved(self, by_image: bool) -> None:
        (n, k), (log_probs, _) = SHAPES[1][:2], maps(SHAPES[1])
        start = np.stack([population(k, seed) for seed in range(n)]) if by_image else population(k, 1)
        to = Prevalence.dirichlet(10 * population(k, 2))
        found = retarget_interval(log_probs, start, to, generator=stream(5))
        for i in (0, n - 1):
            rows = log_probs[i].reshape(k, -1).T
            expected = retarget_interval(rows, start[i] if by_image else start, to, generator=stream(5))
            for name in ("mean", "low", "high"):
                np.testing.assert_allclose(getattr(found, name)[i].reshape(k, -1).T, getattr(expected, name))


@pytest.mark.long
@pytest.mark.parametrize(
    ("made_in", "called_in"), [("gradients", "no_grad"), ("gradients", "inference_mode"), ("inference_mode", "gradients")]
)
@pytest.mark.parametrize("call", [*CALLS, *OF_ROWS])
def test_tensors_have_the_numbers_of_arrays_and_lists_in_every_mode(call: str, called_in: str, made_in: str) -> None:
    torch = pytest.importorskip("torch")
    modes = {"gradients": torch.enable_grad, "no_grad": torch.no_grad, "inference_mode": torch.inference_mode}
    function = OF_ROWS[call] if call in OF_ROWS else CALLS[call][0]
    y, (pi, costs) = np.arange(240) % 3, at(3)
    log_probs = log_softmax(stream(1).normal(size=(240, 3)) + 1.5 * np.eye(3)[y], axis=1)
    expected = numbers(function(log_probs, y, pi, costs))
    with modes[made_in]():
        tensors = torch.tensor(log_probs), torch.tensor(y), pi, torch.tensor(costs)
        if made_in == "gradients":
            tensors[0].requires_grad_()
    with modes[called_in]():
        found = function(*tensors)
    assert isinstance(found, torch.Tensor) == (call in OF_ROWS)
    np.testing.assert_equal(numbers(found), expected)
    np.testing.assert_equal(numbers(function(log_probs.tolist(), y.tolist(), pi, costs.tolist())), expected)


ILL = [False, True, True, False, True, False]
WORDS = ["ill" if each else "healthy" for each in ILL]
TABLE = np.log([[0.8, 0.2], [0.3, 0.7], [0.6, 0.4], [0.1, 0.9], [0.4, 0.6], [0.7, 0.3]])
OBJECTS: dict[str, Any] = {"dtype": object}


def evaluated(labels: Any) -> dict[str, Any]:
    return metrics.evaluate(TABLE, labels, 0.1, intervals=None).to_dict()


class TestLabels:
    def test_that_are_bools_are_classes_0_and_1(self) -> None:
        expected = evaluated(np.array(ILL, dtype=np.int64))
        series = [pd.Series(ILL, dtype=dtype) for dtype in ("bool", "boolean", object, "category")]
        for labels in (*series, pd.Series(ILL, index=list("fedcba")), pd.Index(ILL), np.array(ILL), ILL):
            np.testing.assert_equal(evaluated(labels), expected)
        y = np.array(ILL)
        for call in (metrics.roc_curve, metrics.ConformalSets.fit):
            options: dict[str, Any] = {"prevalence": 0.1, "level": 0.5}
            np.testing.assert_equal(vars(call(TABLE, y, **options)), vars(call(TABLE, y.astype(int), **options)))
        three = np.log([[0.8, 0.1, 0.1]] * 6)
        assert_refused(lambda: metrics.evaluate(three, pd.Series(ILL), [0.2, 0.3, 0.5]), r"in 0\.\.2")

    @pytest.mark.parametrize(
        ("labels", "words"),
        [
            (pd.Series(WORDS), "Series"),
            (pd.Series(WORDS, dtype="string"), "Series of dtype string"),
            (pd.Series(WORDS, **OBJECTS), "Series of dtype object"),
            (pd.Categorical(WORDS), "Categorical of dtype category"),
            (pd.Index(WORDS), "Index"),
            (np.array(WORDS), "ndarray of dtype <U7"),
            (pd.Series(["1" if each else "0" for each in ILL]), "number the classes from 0"),
            (pd.Series(pd.to_datetime(["2021" if each else "2020" for each in ILL])), "datetime64"),
            (np.array(ILL, dtype=np.float32), "float32"),
        ],
    )
    def test_that_are_not_numbers_are_refused_with_what_makes_numbers_of_them(self, labels: Any, words: str) -> None:
        assert_refused(lambda: metrics.evaluate(TABLE, labels, 0.1), words)
        with pytest.raises(ValueError, match=words) as caught:
            metrics.evaluate(TABLE, labels, 0.1)
        calls = [each for each in re.findall(r"`([^`]*)`", str(caught.value)) if each.endswith((")", "]", ".codes"))]
        assert calls
        for call in calls:
            made = eval(call, {"pd": pd, "np": np, "y": labels, "target": labels})
            np.testing.assert_equal(evaluated(made), evaluated(np.array(ILL, dtype=np.int64)))

    @pytest.mark.parametrize(
        "labels",
        [
            pd.Series([*WORDS[:5], pd.NA], dtype="string"),
            pd.Series([*WORDS[:5], None], dtype="category"),
            pd.Series([*ILL[:5], pd.NA], dtype="boolean"),
            pd.Series([0.0, 1.0, 1.0, 0.0, 1.0, None]),
        ],
        ids=lambda labels: str(labels.dtype),
    )
    def test_that_are_missing_are_to_be_dropped(self, labels: Any) -> None:
        assert_refused(lambda: metrics.evaluate(TABLE, labels, 0.1), r"drop the rows without a label.*`y\.notna\(\)`")

    def test_in_tensors_and_frames_are_taken_or_told_how_to_be_flat(self) -> None:
        frame = pd.DataFrame({"label": np.array(ILL, dtype=np.int64)})
        assert_refused(lambda: metrics.evaluate(TABLE, frame, 0.1), r"squeeze\(1\)")
        np.testing.assert_equal(evaluated(frame.squeeze(axis=1)), evaluated(np.array(ILL, dtype=np.int64)))
        torch = pytest.importorskip("torch")
        np.testing.assert_equal(evaluated(torch.tensor(ILL)), evaluated(np.array(ILL, dtype=np.int64)))
        assert_refused(lambda: metrics.evaluate(TABLE, torch.tensor(ILL).float(), 0.1), r"call `target\.long\(\)`")


MAP, LABELS = maps((4, 3, 5, 6))
BAD: dict[str, Callable[[], Any]] = {
    r"squeeze\(1\)": lambda: metrics.evaluate(MAP, LABELS[:, None], population(3)),
    "soft labels are floats": lambda: metrics.evaluate(MAP, np.ones_like(MAP).astype(int), population(3)),
    r"\(4, 5, 6\).*one batch": lambda: metrics.evaluate(MAP, LABELS[:, 1:], population(3)),
    r"\(4, 5, 6\) \(class numbers\)": lambda: metrics.roc_curve(MAP, LABELS.ravel(), 1, population(3)),
    "1..3": lambda: metrics.evaluate(MAP, LABELS + 1, population(3)),
    "per image": lambda: metrics.evaluate(MAP, LABELS, population(3), groups=LABELS),
    "both columns": lambda: metrics.decide(np.zeros((2, 1, 4, 4))),
    "log_softmax": lambda: metrics.decide(3 * MAP),
    r"of shape \(4, 5, 6\)": lambda: metrics.expected_cost(MAP, None, LABELS.ravel()),
    "make rows of a dense map": lambda: metrics.ConformalSets.fit(MAP, LABELS, population(3)),
}


@pytest.mark.parametrize("words", BAD)
def test_what_does_not_fit_a_map_is_refused_with_what_to_do(words: str) -> None:
    assert_refused(BAD[words], words)
