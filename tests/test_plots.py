"""Plots: what is drawn is the curve, axes have labels, lines differ without colour, nothing clipped, no global state."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from functools import cache, partial
from itertools import combinations
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
from draws import SEED, assert_refused
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rightloss import metrics
from rightloss.metrics import plots
from rightloss.prevalence import Prevalence
from rightloss.study.toy.population import TwoGaussians


@cache
def screened(rate: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    truth = TwoGaussians(positive=rate)
    x, y = truth.sample(300, 1000 * SEED + seed)
    return truth.log_probs(x), y


# The function, a curve of predictions at a rate, the pairs of its arrays that must be on the axes, with the unit of the second,
# and the label that names the people.
PLOTS: dict[str, tuple[Callable[..., Axes], Callable[..., Any], dict[str, list[str]], int, str]] = {
    "roc": (
        plots.plot_roc, lambda p, y, rate: metrics.roc_curve(p, y), {"false_positive_rate": ["true_positive_rate"]}, 1,
        "True positive rate\n(cancers: share found)",
    ),
    "precision and recall": (
        plots.plot_precision_recall, metrics.precision_recall_curve, {"recall": ["precision"]}, 1,
        "Recall (cancers: share found)",
    ),
    "predictive values": (
        plots.plot_predictive_values, lambda p, y, rate: metrics.predictive_value_curve(p, y, threshold=rate),
        {"prevalence": ["ppv", "npv"]}, 1, "Prevalence (cancers)",
    ),
    "reliability": (
        plots.plot_reliability, lambda p, y, rate: metrics.reliability_curve(p, y, rate, 5), {"predicted": ["observed"]}, 1,
        "Observed share (cancers)",
    ),
    "smooth calibration": (
        plots.plot_smooth_calibration, metrics.smooth_calibration_curve, {"predicted": ["observed"]}, 1,
        "Observed share (cancers)",
    ),
    "decision curve": (
        plots.plot_decision_curve, metrics.decision_curve, {"threshold": ["net_benefit", "treat_all"]}, 1000,
        "Net benefit per 1000 people\n(cancers: acted on, less others at their cost)",
    ),
}  # fmt: skip
HISTOGRAM = metrics.probability_histogram(*screened(0.3), 10)


@cache
def curve_of(name: str, rate: float, seed: int = 0) -> Any:
    return PLOTS[name][1](*screened(rate, seed), rate)


@cache
def picture(name: str, rate: float, many: bool) -> Axes:
    first, second = (curve_of(name, rate, seed) for seed in (0, 1))
    return PLOTS[name][0]({"weighted": first, "_hidden": second} if many else first, positive_name="cancers")


@pytest.mark.long
@pytest.mark.parametrize("name", PLOTS)
def test_every_curve_is_drawn_as_it_is_and_named_in_axes_and_legend(name: str) -> None:
    draw, _, pairs, unit, who = PLOTS[name]
    before = plt.get_fignums()
    for rate in (0.3, 0.01):
        ax = picture(name, rate, many=False)
        lines = [set(zip(*(np.asarray(each).tolist() for each in line.get_data()), strict=True)) for line in ax.get_lines()]
        drawn = vars(curve_of(name, rate))
        for x, y in ((drawn[x], unit * drawn[each]) for x, ys in pairs.items() for each in ys):
            points = zip(x[y != 0].tolist(), y[y != 0].tolist(), strict=True)  # a logarithmic axis has no 0
            assert any(set(points) <= line for line in lines)
        assert who in (ax.get_xlabel(), ax.get_ylabel())
        assert min(len(ax.get_xlabel()), len(ax.get_ylabel())) > 8
        legend = picture(name, rate, many=True).get_legend()
        assert legend is not None
        texts = [text.get_text().strip() for text in legend.get_texts()]
        named = [text.startswith(("weighted", "_hidden")) for text in texts]  # which matplotlib would leave out
        assert sum(named) == (4 if name == "predictive values" else 2)
        assert named == sorted(named, reverse=True)
    given = Figure().subplots()
    assert draw(curve_of(name, 0.3), given) is given
    assert "class 1" in given.get_xlabel() + given.get_ylabel()
    assert plt.get_fignums() == before


PICTURES: dict[str, Callable[[], Axes]] = {
    **{f"{name} {rate}": partial(picture, name, rate, True) for name in PLOTS for rate in (0.3, 0.01)},
    "one roc": lambda: picture("roc", 0.3, many=False),
    "histogram": lambda: plots.plot_probability_histogram(HISTOGRAM),
    "histograms": lambda: plots.plot_probability_histogram({"first": HISTOGRAM, "other": HISTOGRAM}),
}


@pytest.mark.long
@pytest.mark.parametrize("name", PICTURES)
def test_no_words_are_clipped_or_overlap_and_lines_differ_without_colour(name: str) -> None:
    ax = PICTURES[name]()
    figure, legend = ax.figure, ax.get_legend()
    assert isinstance(figure, Figure)
    assert legend is not None
    assert figure.get_size_inches().tolist() == [4.0, 3.5]
    figure.savefig(io.BytesIO())
    ticks = [visible_ticks(axis) for axis in (ax.xaxis, ax.yaxis)]
    assert min(map(len, ticks)) > 1
    apart = [*ticks[0], *ticks[1], ax.xaxis.label, ax.yaxis.label]
    for word in [*apart, *legend.get_texts()]:
        box = word.get_window_extent()
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1, word
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1, word
    for one, other in combinations(apart, 2):
        assert not one.get_window_extent().overlaps(other.get_window_extent()), (one, other)
    lines = [getattr(handle, "lines", [handle])[0] for handle in ax.get_legend_handles_labels()[0]]
    assert len({look(line) for line in lines}) == len(lines)


def visible_ticks(axis: Any) -> list[Any]:
    low, high = axis.get_view_interval()
    pairs = zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
    return [text for place, text in pairs if low <= place * (1 + 1e-9) and place <= high * (1 + 1e-9)]


def look(line: Any) -> str:
    """Dashes, width, a marker's shape, and whether it is hollow; outlines of a histogram have no markers."""
    marker = (line.get_marker(), line.get_markerfacecolor() == "white") if hasattr(line, "get_marker") else ()
    return str((line.get_linestyle(), getattr(line, "_dash_pattern", None), line.get_linewidth(), *marker))


def test_forty_lines_differ_in_dashes_or_markers() -> None:
    looks = {(str(plots.line_style(i, 10)["linestyle"]), plots.line_style(i, 10)["marker"]) for i in range(40)}
    assert len(looks) == 40


def test_what_is_rare_has_logarithmic_axes_in_words() -> None:
    ax = plots.plot_predictive_values(curve_of("predictive values", 0.3))
    assert ax.get_xscale() == "log"
    assert [text.get_text() for text in ax.get_xticklabels()] == ["1 in 10000", "1 in 1000", "1 in 100", "1 in 10", "1 in 2"]
    for rate, scale in ((0.3, "linear"), (0.01, "log")):
        for name in ("reliability", "decision curve"):
            assert picture(name, rate, many=False).get_xscale() == scale
    words = {0.001: "1 in 1000", 0.5: "1 in 2", 1.0: "all", 0.37: "37 %", 0.0123: "1 in 81", 1 / 3: "1 in 3", 3e-4: "1 in 3300"}
    assert {share: plots.one_in(share) for share in words} == words


def test_bands_and_bars_are_the_limits() -> None:
    curve = curve_of("decision curve", 0.3)
    corners = np.asarray(plots.plot_decision_curve(curve).collections[0].get_paths()[0].vertices).tolist()
    for t, low, high in zip(curve.threshold, 1000 * curve.low, 1000 * curve.high, strict=True):
        assert [t, low] in corners
        assert [t, high] in corners
    curve = curve_of("reliability", 0.3)
    bars = plots.plot_reliability(curve).containers[0].lines[2][0].get_segments()  # type: ignore[attr-defined]
    np.testing.assert_allclose(np.stack(bars)[:, :, 1], np.stack([curve.low, curve.high], 1), atol=1e-12)


def test_a_bin_without_the_class_is_drawn_at_a_logarithmic_axis() -> None:
    p = np.array([0.001] * 50 + [0.02] * 50)
    curve = metrics.reliability_curve(np.log(np.stack([1 - p, p], 1)), [0] * 70 + [1] * 30, 0.01, 2)
    assert curve.observed[0] == 0 < curve.observed[1]
    ax = plots.plot_reliability(curve)
    drawn = np.asarray(ax.containers[0].lines[0].get_ydata())  # type: ignore[attr-defined]
    assert drawn[0] == ax.get_ylim()[0] > 0


def test_where_there_is_no_value_nothing_is_drawn() -> None:
    curve = metrics.predictive_value_curve(*screened(0.01), threshold=0.9, retarget=True, from_=0.01)
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


def test_a_single_point_is_drawn_within_the_axes() -> None:
    two = screened(0.3)
    for ax in (
        plots.plot_predictive_values(metrics.predictive_value_curve(*two, threshold=0.5, prevalences=Prevalence.beta(2, 98))),
        plots.plot_predictive_values(metrics.predictive_value_curve(*two, threshold=0.5, prevalences=[0.99])),
        plots.plot_decision_curve(metrics.decision_curve(*two, 0.3, [0.2])),
        plots.plot_decision_curve(metrics.decision_curve(*screened(0.01), 0.01, [0.02])),
    ):
        low, high = ax.get_xlim()
        points = [float(np.asarray(line.get_xdata())[0]) for line in ax.get_lines() if len(np.asarray(line.get_xdata())) == 1]
        assert points
        assert all(low < x < high <= 1 for x in points)


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install .*\.\[study\]"):
        plots.plot_roc(curve_of("roc", 0.3))


OTHER_SCALE = metrics.probability_histogram(*screened(0.3), 10, scale="log-odds")
ANY: Any = HISTOGRAM
ALIKE: Any = {1: curve_of("roc", 0.3), "1": curve_of("roc", 0.3, 1)}
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "another curve": (lambda: plots.plot_roc(ANY), "a RocCurve.*but got ProbabilityHistogram: "),
    "one wrong among them": (lambda: plots.plot_reliability({"a": ANY}), "a ReliabilityCurve.*but got Prob"),
    "nothing": (lambda: plots.plot_decision_curve({}), "a DecisionCurve.*but got an empty dict"),
    "names that read alike": (lambda: plots.plot_roc(ALIKE), r"names that differ.* \[1, '1'\]: "),
    "another value": (
        lambda: plots.plot_predictive_values(curve_of("predictive values", 0.3), values=("auc",)),  # type: ignore[arg-type]
        "ppv.*npv.*but got",
    ),
    "two scales": (lambda: plots.plot_probability_histogram({"a": HISTOGRAM, "b": OTHER_SCALE}), "of one scale, but got"),
    "too few names": (lambda: plots.plot_probability_histogram(HISTOGRAM, class_names=["a"]), "2 `class_names`, but got 1"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_with_what_came_and_what_to_do(what: str) -> None:
    assert_refused(*BAD[what])
