"""Plots: what is drawn is the curve, axes have labels, lines differ without colour, nothing clipped, no global state."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from functools import cache
from itertools import combinations
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
from draws import SEED, assert_refused
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rightloss.metrics import plots
from rightloss.metrics.calibration import reliability_curve
from rightloss.metrics.curves import precision_recall_curve, probability_histogram, roc_curve
from rightloss.metrics.plots import line_style, one_in
from rightloss.metrics.predictive_values import decision_curve, predictive_value_curve
from rightloss.metrics.smooth_calibration import smooth_calibration_curve
from rightloss.prevalence import Prevalence
from rightloss.study.toy.population import TwoGaussians

RATES = [0.3, 0.01]


@cache
def screened(rate: float, seed: int = 0, per_class: int = 300) -> tuple[np.ndarray, np.ndarray]:
    truth = TwoGaussians(positive=rate)
    x, y = truth.sample(per_class, 1000 * SEED + seed)
    return truth.log_probs(x), y


# Name: the function, a curve at a rate, and the pairs of arrays that must be on the axes.
PLOTS: dict[str, tuple[Callable[..., Axes], Callable[..., Any], Callable[[Any], list[tuple[Any, Any]]]]] = {
    "roc": (
        plots.plot_roc,
        cache(lambda rate, seed=0: roc_curve(*screened(rate, seed))),
        lambda curve: [(curve.false_positive_rate, curve.true_positive_rate)],
    ),
    "precision and recall": (
        plots.plot_precision_recall,
        cache(lambda rate, seed=0: precision_recall_curve(*screened(rate, seed), rate)),
        lambda curve: [(curve.recall, curve.precision)],
    ),
    "predictive values": (
        plots.plot_predictive_values,
        cache(lambda rate, seed=0: predictive_value_curve(*screened(rate, seed), threshold=rate)),
        lambda curve: [(curve.prevalence, curve.ppv), (curve.prevalence, curve.npv)],
    ),
    "reliability": (
        plots.plot_reliability,
        cache(lambda rate, seed=0: reliability_curve(*screened(rate, seed), rate, 5)),
        lambda curve: [(curve.predicted[curve.observed > 0], curve.observed[curve.observed > 0])],
    ),
    "smooth calibration": (
        plots.plot_smooth_calibration,
        cache(lambda rate, seed=0: smooth_calibration_curve(*screened(rate, seed), rate)),
        lambda curve: [(curve.predicted, curve.observed)],
    ),
    "decision curve": (
        plots.plot_decision_curve,
        cache(lambda rate, seed=0: decision_curve(*screened(rate, seed), rate)),
        lambda curve: [(curve.threshold, 1000 * curve.net_benefit), (curve.threshold, 1000 * curve.treat_all)],
    ),
}
HISTOGRAM = probability_histogram(*screened(0.3), 10)

each_plot = pytest.mark.parametrize("name", PLOTS)
at_each_rate = pytest.mark.parametrize("rate", RATES)


def points(ax: Axes) -> list[set[tuple[float, float]]]:
    return [set(zip(*(np.asarray(each).tolist() for each in line.get_data()), strict=True)) for line in ax.get_lines()]


def every_picture() -> list[Any]:
    made = [
        pytest.param(lambda name=name, rate=rate, many=many: picture(name, rate, many), id=f"{name} {rate} {many}")
        for name in PLOTS
        for rate in RATES
        for many in (False, True)
        if many or rate == RATES[0]
    ]
    return [
        *made,
        pytest.param(lambda: plots.plot_probability_histogram(HISTOGRAM), id="histogram"),
        pytest.param(lambda: plots.plot_probability_histogram({"first": HISTOGRAM, "other": HISTOGRAM}), id="histograms"),
    ]


def picture(name: str, rate: float, many: bool) -> Axes:
    draw, make, _ = PLOTS[name]
    return draw({"weighted": make(rate), "information gain": make(rate, 1)} if many else make(rate), positive_name="cancers")


@each_plot
@at_each_rate
class TestEveryCurve:
    def test_is_drawn_as_it_is(self, name: str, rate: float) -> None:
        draw, make, data = PLOTS[name]
        curve = make(rate)
        drawn = points(draw(curve))
        for x, y in data(curve):
            assert any(set(zip(x.tolist(), y.tolist(), strict=True)) <= line for line in drawn)

    def test_says_what_the_axes_are_and_for_whom(self, name: str, rate: float) -> None:
        ax = picture(name, rate, many=False)
        assert len(ax.get_xlabel()) > 8
        assert len(ax.get_ylabel()) > 8
        assert "cancers" in ax.get_xlabel() + ax.get_ylabel()
        unnamed = PLOTS[name][0](PLOTS[name][1](rate))
        assert "class 1" in unnamed.get_xlabel() + unnamed.get_ylabel()

    def test_is_in_the_legend_by_name_before_what_it_is_compared_with(self, name: str, rate: float) -> None:
        legend = picture(name, rate, many=True).get_legend()
        assert legend is not None
        texts = [text.get_text() for text in legend.get_texts()]
        assert texts[0].startswith("weighted")
        named = [text.startswith(("weighted", "information gain")) for text in texts]
        assert sum(named) == (4 if name == "predictive values" else 2)
        assert named == sorted(named, reverse=True)

    def test_goes_on_the_axes_given(self, name: str, rate: float) -> None:
        ax = Figure().subplots()
        assert PLOTS[name][0](PLOTS[name][1](rate), ax) is ax


@pytest.mark.parametrize("draw", every_picture())
class TestEveryPicture:
    def test_is_unknown_to_pyplot(self, draw: Callable[[], Axes]) -> None:
        before = plt.get_fignums()
        draw()
        assert plt.get_fignums() == before

    @pytest.mark.long
    def test_has_no_clipped_and_no_overlapping_words(self, draw: Callable[[], Axes]) -> None:
        ax = draw()
        figure = ax.figure
        assert isinstance(figure, Figure)
        assert figure.get_size_inches().tolist() == [4.0, 3.5]
        figure.savefig(io.BytesIO())
        paper = figure.bbox
        ticks = [visible_ticks(axis) for axis in (ax.xaxis, ax.yaxis)]
        assert min(map(len, ticks)) > 1
        legend = ax.get_legend()
        assert legend is not None
        words = [*ticks[0], *ticks[1], ax.xaxis.label, ax.yaxis.label, *legend.get_texts()]
        for word in words:
            box = word.get_window_extent()
            assert paper.x0 <= box.x0 < box.x1 <= paper.x1, word
            assert paper.y0 <= box.y0 < box.y1 <= paper.y1, word
        for one, other in combinations([*ticks[0], *ticks[1], ax.xaxis.label, ax.yaxis.label], 2):
            assert not one.get_window_extent().overlaps(other.get_window_extent()), (one, other)

    def test_tells_its_lines_apart_without_colour(self, draw: Callable[[], Axes]) -> None:
        ax = draw()
        legend = ax.get_legend()
        assert legend is not None
        handles, _ = ax.get_legend_handles_labels()
        lines = [getattr(handle, "lines", [handle])[0] for handle in handles]
        looks = [
            (str(line.get_linestyle()), getattr(line, "_dash_pattern", None), *marker(line), line.get_linewidth())
            for line in lines
        ]
        assert len(set(map(str, looks))) == len(looks)


def visible_ticks(axis: Any) -> list[Any]:
    low, high = axis.get_view_interval()
    pairs = zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
    return [text for place, text in pairs if low <= place * (1 + 1e-9) and place <= high * (1 + 1e-9)]


def marker(line: Any) -> tuple[Any, ...]:
    """A marker's shape, and whether it is hollow; outlines of a histogram have none."""
    return (line.get_marker(), line.get_markerfacecolor() == "white") if hasattr(line, "get_marker") else ()


def test_forty_lines_differ_in_dashes_or_markers() -> None:
    looks = {(str(line_style(i, 10)["linestyle"]), line_style(i, 10)["marker"]) for i in range(40)}
    assert len(looks) == 40


def test_a_prevalence_over_decades_is_logarithmic_and_in_words() -> None:
    ax = plots.plot_predictive_values(PLOTS["predictive values"][1](0.3))
    assert ax.get_xscale() == "log"
    assert [text.get_text() for text in ax.get_xticklabels()] == ["1 in 10000", "1 in 1000", "1 in 100", "1 in 10", "1 in 2"]


@pytest.mark.parametrize(("rate", "scale"), [(0.3, "linear"), (0.01, "log")])
def test_probabilities_of_what_is_rare_are_logarithmic(rate: float, scale: str) -> None:
    for name in ("reliability", "decision curve"):
        assert picture(name, rate, many=False).get_xscale() == scale


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.001, "1 in 1000"),
        (0.5, "1 in 2"),
        (1.0, "all"),
        (0.37, "37 %"),
        (0.0123, "1 in 81"),
        (1 / 3, "1 in 3"),
        (3e-4, "1 in 3300"),
    ],
)
def test_shares_are_put_in_words(share: float, words: str) -> None:
    assert one_in(share) == words


def test_bands_are_the_limits() -> None:
    curve = PLOTS["decision curve"][1](0.3)
    ax = plots.plot_decision_curve(curve)
    corners = np.asarray(ax.collections[0].get_paths()[0].vertices).tolist()
    for t, low, high in zip(curve.threshold, 1000 * curve.low, 1000 * curve.high, strict=True):
        assert [t, low] in corners
        assert [t, high] in corners


def test_error_bars_are_the_limits() -> None:
    curve = PLOTS["reliability"][1](0.3)
    bars = plots.plot_reliability(curve).containers[0].lines[2][0].get_segments()  # type: ignore[attr-defined]
    np.testing.assert_allclose(np.stack(bars)[:, :, 1], np.stack([curve.low, curve.high], 1), atol=1e-12)


def test_a_bin_without_the_class_is_drawn_at_a_logarithmic_axis() -> None:
    p = np.array([0.001] * 50 + [0.02] * 50)
    curve = reliability_curve(np.log(np.stack([1 - p, p], 1)), [0] * 70 + [1] * 30, 0.01, 2, width="equal-mass")
    assert curve.observed[0] == 0 < curve.observed[1]
    ax = plots.plot_reliability(curve)
    drawn = np.asarray(ax.containers[0].lines[0].get_ydata())  # type: ignore[attr-defined]
    assert drawn[0] == ax.get_ylim()[0] > 0


def test_where_there_is_no_value_nothing_is_drawn() -> None:
    log_probs, y = screened(0.01)
    curve = predictive_value_curve(log_probs, y, threshold=0.9, retarget=True, from_=0.01)
    missing = np.isnan(curve.ppv)
    assert 0 < missing.sum() < len(missing)
    ax = plots.plot_predictive_values(curve, values=("ppv",))
    band = np.concatenate([np.asarray(path.vertices) for path in ax.collections[0].get_paths()])
    assert band[:, 0].min() == curve.prevalence[~missing].min()


def test_a_histogram_shows_each_class_in_per_cent() -> None:
    ax = plots.plot_probability_histogram(HISTOGRAM, positive_name="cancer", class_names=["healthy", "ill"])
    outlines = [patch for patch in ax.patches if patch.get_label() in ("healthy", "ill")]
    for patch, share in zip(outlines, HISTOGRAM.share, strict=True):
        values, edges, _ = patch.get_data()  # type: ignore[attr-defined]
        np.testing.assert_allclose(values, 100 * share)
        np.testing.assert_allclose(edges, HISTOGRAM.edges)
    assert ax.get_xlabel() == "Predicted probability (cancer)"


ONE_POINT: dict[str, Callable[[], Axes]] = {
    "an uncertain prevalence": lambda: plots.plot_predictive_values(
        predictive_value_curve(*screened(0.3), threshold=0.5, prevalences=Prevalence.beta(2.0, 98.0))
    ),
    "a prevalence near 1": lambda: plots.plot_predictive_values(
        predictive_value_curve(*screened(0.3), threshold=0.5, prevalences=[0.99])
    ),
    "a threshold": lambda: plots.plot_decision_curve(decision_curve(*screened(0.3), 0.3, [0.2])),
    "a threshold of what is rare": lambda: plots.plot_decision_curve(decision_curve(*screened(0.01), 0.01, [0.02])),
}


@pytest.mark.long
@pytest.mark.parametrize("what", ONE_POINT)
def test_a_single_point_is_drawn_within_the_axes(what: str) -> None:
    ax = ONE_POINT[what]()
    ax.figure.savefig(io.BytesIO())  # type: ignore[union-attr]
    low, high = ax.get_xlim()
    points_drawn = [float(np.asarray(line.get_xdata())[0]) for line in ax.get_lines() if len(np.asarray(line.get_xdata())) == 1]
    assert points_drawn
    assert all(low < x < high <= 1 for x in points_drawn)


@each_plot
def test_a_name_that_begins_with_an_underscore_is_in_the_legend(name: str) -> None:
    draw, make, _ = PLOTS[name]
    legend = draw({"_hidden": make(0.3), "other": make(0.3, 1)}).get_legend()
    assert legend is not None
    texts = [text.get_text().strip() for text in legend.get_texts()]
    assert [text.split(":")[0].split(",")[0] for text in texts].count("_hidden") == (2 if name == "predictive values" else 1)


@pytest.mark.parametrize("who", ["malignant", "cancers"])
def test_axes_read_well_for_nouns_and_adjectives(who: str) -> None:
    made = {name: draw(make(0.3), positive_name=who) for name, (draw, make, _) in PLOTS.items()}
    assert made["predictive values"].get_xlabel() == f"Prevalence ({who})"
    assert made["roc"].get_ylabel() == f"True positive rate\n({who}: share found)"
    assert made["precision and recall"].get_xlabel() == f"Recall ({who}: share found)"
    assert made["reliability"].get_ylabel() == f"Observed share ({who})"
    assert made["decision curve"].get_ylabel() == f"Net benefit per 1000 people\n({who}: acted on, less others at their cost)"


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install .*\.\[study\]"):
        plots.plot_roc(roc_curve(*screened(0.3)))


OTHER_SCALE = probability_histogram(*screened(0.3), 10, scale="log-odds")
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "another curve": (lambda: plots.plot_roc(HISTOGRAM), "a RocCurve.*but got ProbabilityHistogram: "),  # type: ignore[arg-type]
    "one wrong among them": (lambda: plots.plot_reliability({"a": HISTOGRAM}), "a ReliabilityCurve.*but got Prob"),  # type: ignore[dict-item]
    "nothing": (lambda: plots.plot_decision_curve({}), "a DecisionCurve.*but got an empty dict"),
    "an array": (lambda: plots.plot_precision_recall(np.ones(3)), "PrecisionRecallCurve.*but got ndarray"),  # type: ignore[arg-type]
    "names that read alike": (
        lambda: plots.plot_roc({1: roc_curve(*screened(0.3)), "1": roc_curve(*screened(0.3, 1))}),  # type: ignore[dict-item]
        r"names that differ, but got \[1, '1'\]: ",
    ),
    "another value": (
        lambda: plots.plot_predictive_values(PLOTS["predictive values"][1](0.3), values=("auc",)),  # type: ignore[arg-type]
        "ppv.*npv.*but got",
    ),
    "two scales": (lambda: plots.plot_probability_histogram({"a": HISTOGRAM, "b": OTHER_SCALE}), "of one scale, but got"),
    "too few names": (lambda: plots.plot_probability_histogram(HISTOGRAM, class_names=["a"]), "2 `class_names`, but got 1"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_with_what_came_and_what_to_do(what: str) -> None:
    assert_refused(*BAD[what])
