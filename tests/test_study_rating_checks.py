"""Checks of what the paper says of ratings, on made-up summaries: each verdict by interval."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import pytest
from rightloss.study.summary.rating_claims import RULES, rating_claims

from rightloss.metrics import Figure
from rightloss.study import PRESETS
from rightloss.study.paper import RATINGS
from rightloss.study.results import CellKey
from rightloss.study.summary import CellPair, CellSummary, PairedFigure, PaperCheck
from rightloss.study.summary.comparisons import RULE_FIGURES

CONFIG = PRESETS["ratings"]
EXACT, NEAR, EXTREMES, MALIGNANT = (
    "are as accurate",
    "off by no more than one",
    "rating 1 is the hardest",
    "benign or malignant",
)


def around(value: float, half: float = 0.02) -> Figure:
    return Figure(value, value - half, value + half)


def row(
    loss: str = "published",
    likelihood: str = "onion-peeling",
    majority: float = 0.0,
    mean: float = 0.0,
    others: Mapping[str, Figure] | None = None,
) -> CellSummary:
    """The paper's figures, each changed by so much, by rule; some replaced by `others`."""
    figures = {f"{rule}_off_by_one_margin": around(0.2) for rule in RULES} | {
        f"majority_{name}": around(value + majority) for name, value in RATINGS.items()
    }
    figures |= {f"mean_{name}": around(value + mean) for name, value in RATINGS.items()}
    key = CellKey("contours", "rebalanced", "convnet", likelihood, "population", "map", None, loss)
    return CellSummary(key, {**figures, **(others or {})}, 5, 1, 600, 300)


def check(about: str, rows: list[CellSummary], comparisons: Sequence[CellPair] = ()) -> PaperCheck:
    (found,) = (each for each in rating_claims(rows, comparisons, CONFIG) if about in each.about)
    return found


@pytest.mark.parametrize("about", [EXACT, NEAR, MALIGNANT])
@pytest.mark.parametrize(
    ("mean", "majority", "expected", "rule"),
    [
        (0.0, 0.0, "reproduces", "mean"),
        (-0.2, 0.0, "reproduces", "majority"),
        (0.05, -0.2, "reproduces", "mean"),
        (-0.1, -0.1, "does not", "mean"),
        (-0.024, -0.2, "reproduces", "mean"),  # within the paper's rounding
        (-0.026, -0.2, "does not", "mean"),
    ],
)
def test_accuracies_reproduce_if_by_one_rule_their_intervals_reach_the_papers(
    about: str, mean: float, majority: float, expected: str, rule: str
) -> None:
    found = check(about, [row(majority=majority, mean=mean)])
    assert found.verdict == expected
    assert found.ours.startswith(f"by {rule}")


def test_a_figure_without_an_interval_decides_nothing() -> None:
    none = {f"{rule}_balanced_accuracy": Figure(0.5, reason="too few patients") for rule in RULES}
    assert check(EXACT, [row(others=none)]).verdict == "undecided"


def test_every_published_form_is_checked_and_no_other_loss() -> None:
    config = dataclasses.replace(CONFIG, losses=("information-gain", "published", "published-network", "weighted"))
    rows = [row(), row("published-network", majority=-0.5, mean=-0.5), row("information-gain"), row("weighted")]
    found = [each for each in rating_claims(rows, [], config) if NEAR in each.about]
    assert [(each.where, each.verdict) for each in found] == [
        ("ConvNet, as published", "reproduces"),
        ("ConvNet, as published, network", "does not"),
    ]
    assert found[0].paper == "Acc. ±1 0.94, BA ±1 0.94"
    assert found[1].ours.startswith("by mean Acc. ±1 0.44 (0.42 to 0.46)")


@pytest.mark.parametrize(
    ("mean", "majority", "expected"),
    [
        (0.1, -0.1, "reproduces"),
        (0.0, 0.1, "reproduces"),
        (0.0, -0.1, "undecided"),
        (-0.1, -0.1, "does not"),
    ],
)
def test_rating_1_is_the_hardest_if_by_one_rule_its_distance_to_2_to_4_is_above_0(
    mean: float, majority: float, expected: str
) -> None:
    margins = {"mean_off_by_one_margin": around(mean), "majority_off_by_one_margin": around(majority)}
    assert check(EXTREMES, [row(others=margins)]).verdict == expected


@pytest.mark.parametrize(("value", "expected"), [(0.1, "reproduces"), (0.0, "undecided"), (-0.1, "does not")])
def test_onion_peeling_is_better_if_ahead_of_the_softmax(value: float, expected: str) -> None:
    difference = {"expected_log_likelihood": PairedFigure(around(value), 5, 3, 2)}
    against = [CellPair("likelihood", row().key, row(likelihood=other).key, difference) for other in ("categorical", "x")]
    assert check("onion peeling reflects", [row()], against[:1]).verdict == expected
    assert not any("onion peeling reflects" in each.about for each in rating_claims([row()], against[1:], CONFIG))


@pytest.mark.parametrize(
    ("majority", "mean", "expected"),
    [(0.1, 0.1, "reproduces"), (0.1, 0.0, "undecided"), (0.1, -0.1, "does not"), (-0.1, -0.1, "reproduces")],
)
def test_rules_show_the_same_trends_if_what_both_decide_is_decided_alike(majority: float, mean: float, expected: str) -> None:
    found = {"majority": around(majority), "mean": around(mean)}
    differences = {f"{rule}_{name}": PairedFigure(each, 5, 3, 2) for rule, each in found.items() for name in RULE_FIGURES}
    against = CellPair("loss", row("information-gain").key, row().key, differences)
    check_of = check("the same trends", [row(), row("information-gain")], [against])
    assert check_of.verdict == expected
    assert f"of {len(RULE_FIGURES)}, opposed" in check_of.ours


def test_each_data_set_has_checks_of_its_own() -> None:
    other = row()
    rows = [row(), CellSummary(other.key._replace(data="slices"), other.figures, 5, 1, 600, 300)]
    found = rating_claims(rows, [], CONFIG)
    assert len(found) == 2 * len({each.about for each in found})
