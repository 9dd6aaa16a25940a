"""The paper's figures, and checks of its claims on made-up summaries: each verdict by interval."""

from __future__ import annotations

import importlib
import json
import math
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from study_summaries import BETTER, BLIND, CONFIG, EVEN, NEAR, NONE, WORSE, all_comparisons, all_rows, comparison, key, row

from rightloss.metrics import Figure
from rightloss.study import PRESETS, paper
from rightloss.study.config import NETS, StudyConfig
from rightloss.study.results import CellKey
from rightloss.study.summary import CellPair, CellSummary, PairedFigure, PaperCheck, Summary
from rightloss.study.summary.claims import RATING_RULES, rating_claims
from rightloss.study.summary.comparisons import RULE_FIGURES
from rightloss.study.summary.contract import Outcome
from rightloss.study.summary.summarise import paper_checks

sys.path.append(str(Path(__file__).parent.parent / "docs"))
across: Any = importlib.import_module("scripts.across_studies")

SIMILAR, RANKING = "the losses are similar", "the weighted loss has a lower AUC"
SENSITIVITY, SOME = "the weighted loss has a sensitivity of 0", "has a sensitivity above 0"
CONSTANT, NEVER = "as published, worse than always answering", "never worse"
LIKELIHOOD, CALIBRATED = "has the lower expected log-likelihood", "calibrated more consistently"
FALLING, STEADY = "of the weighted loss falls", "does not fall"


# The figures.


def test_the_papers_figures_agree_with_each_other_in_every_row_but_the_one_to_be_taken_with_care() -> None:
    """Balanced and weighted accuracies are means of TPR and TNR, up to rounding and the averages over folds."""
    for table in paper.TABLES.values():
        assert {case[:2] for case in table} == {(net, rate) for net in paper.NETS for rate in paper.POPULATIONS}
        for (net, rate, loss), figures in table.items():
            tpr, tnr = figures["tpr"], figures["tnr"]
            blind = rate * math.log(rate) + (1 - rate) * math.log1p(-rate)
            assert figures["expected_log_likelihood"] < 0
            assert (figures["expected_log_likelihood"] > blind) == (rate == 0.3 or loss == "weighted")
            assert all(0 <= value <= 1 for name, value in figures.items() if name != "expected_log_likelihood")
            assert figures["balanced_accuracy"] == pytest.approx((tpr + tnr) / 2, abs=0.0151)
            right = figures["weighted_accuracy"] == pytest.approx(rate * tpr + (1 - rate) * tnr, abs=0.0151)
            assert right == ((net, rate, loss) != ("inception", 0.001, "published") or table is paper.TABLE_2)
            assert figures["accuracy"] == pytest.approx(0.25 * tpr + 0.75 * tnr, abs=0.0451)
            assert ("auc" in figures) == (table is paper.TABLE_2)
    assert {net for net, _, _ in paper.TABLE_1} <= set(NETS)
    assert paper.TABLES["raw"]["convnet", 0.001, "weighted"]["auc"] == 0.86
    malignant = [paper.RATINGS[f"malignant_{name}"] for name in ("tpr", "tnr", "accuracy")]
    assert malignant[1] < malignant[2] < malignant[0]


def test_the_papers_figures_are_those_that_were_compared_with_its_text() -> None:
    """By a checksum: the text is not part of this project."""
    tables = [[[*case, *figures.values()] for case, figures in table.items()] for table in paper.TABLES.values()]
    assert zlib.crc32(json.dumps([tables, paper.RATINGS]).encode()) == 1543437670


def test_notes_on_the_papers_figures_follow_from_them() -> None:
    figures = paper.TABLES["rebalanced"]["convnet", 0.001, "published"]
    tpr, tnr = figures["tpr"], figures["tnr"]
    by_bayes = 0.001 * tpr / (0.001 * tpr + 0.999 * (1 - tnr))
    assert f"TPR of {tpr} and a TNR of {tnr} make a PPV of {by_bayes:.2f}" in paper.AVERAGES
    assert f"prints {figures['ppv']}" in paper.AVERAGES
    figures = paper.TABLES["rebalanced"]["inception", 0.001, "published"]
    at = {rate: rate * figures["tpr"] + (1 - rate) * figures["tnr"] for rate in (0.3, 0.001)}
    assert round(at[0.3], 2) == figures["weighted_accuracy"] == 0.86
    assert round(at[0.001], 2) == 0.93
    assert "0.3 (0.86), not at 0.001 (0.93)" in paper.MISPRINT


# Two classes.


def check(about: str, rows: Sequence[CellSummary], comparisons: Sequence[CellPair], config: StudyConfig = CONFIG) -> PaperCheck:
    (found,) = (each for each in paper_checks(rows, comparisons, config) if about in each.about)
    return found


def verdict(about: str, rows: Sequence[CellSummary], comparisons: Sequence[CellPair], config: StudyConfig = CONFIG) -> str:
    return check(about, rows, comparisons, config).verdict


def rare(**figures: Figure) -> list[CellPair]:
    """The published form minus the weighted loss at 0.001."""
    return [comparison("published", "weighted", 0.001, **{"likelihood": EVEN, "auc": EVEN, **figures})]


def falls(weighted: Figure, published: Figure) -> list[CellPair]:
    """AUC at 0.001 minus that at 0.3."""
    return [
        CellPair("population", key(loss, 0.001), key(loss, 0.3), {"auc": PairedFigure(figure, 5, 2, 3)})
        for loss, figure in (("weighted", weighted), ("published", published))
    ]


def test_the_papers_own_pattern_reproduces_in_every_check_which_gives_its_figures() -> None:
    published = comparison("published", "weighted", 0.001, WORSE, BETTER, BETTER, log_mean_off=WORSE)
    rows = all_rows()
    comparisons = [*all_comparisons()[:-1], published, *falls(WORSE, Figure(0.0, -0.005, 0.005))]
    found = {each.about: each for each in paper_checks(rows, comparisons, CONFIG)}
    assert len(found) == 10
    assert {each.verdict for each in found.values()} == {"reproduces"}
    assert {each.where for each in found.values()} == {"ConvNet"}
    shown = {about: (each.place, each.paper, each.ours) for about, each in found.items()}
    blind = f"{BLIND:.5f}".replace("-", "−")
    assert list(shown.values()) == [
        ("Table 1", "TPR wLoss 0", "TPR 0.000 (0.000 to 0.020)"),
        ("Fig. 3", "", "0.3 to 0.001: −0.200 (−0.300 to −0.100)"),
        ("ours, not the paper's", "", "least skill 0.20 (0.10 to 0.30)"),
        (
            "Table 1",
            "log-lik. bayesIG −0.3483, wLoss −0.3488",
            "difference in log-lik. 0.000 (−0.010 to +0.010), AUC 0.000 (−0.010 to +0.010)",
        ),
        ("Table 1, Fig. 3", "", "difference in AUC +0.200 (+0.100 to +0.300)"),
        ("Table 1", "TPR bayesIG 0.33, wLoss 0", "TPR 0.000 (0.000 to 0.020); minus weighted loss +0.200 (+0.100 to +0.300)"),
        ("Table 1", "bayesIG −0.027, wLoss −0.0074", "difference in log-lik. −0.200 (−0.300 to −0.100)"),
        ("Fig. 3", "", "0.3 to 0.001: 0.0000 (−0.0050 to +0.0050)"),
        ("Table 1, by its figures", f"log-lik. bayesIG −0.027, always π {blind}", "skill −0.20 (−0.30 to −0.10)"),
        (
            "Section 4, Brompton; Fig. 3",
            "",
            "difference in mean over prevalences of |log(mean prediction/π)| −0.200 (−0.300 to −0.100)",
        ),
    ]


@pytest.mark.parametrize(
    ("difference", "expected"),
    [
        (Figure(0.0, -0.03, 0.03), "reproduces"),
        (Figure(0.02, 0.01, 0.04), "undecided"),
        (Figure(-0.05, -0.08, -0.02), "undecided"),
        (Figure(-0.05, -0.08, -0.031), "does not"),
        (BETTER, "does not"),
        (NONE, "undecided"),
    ],
)
def test_similar_is_an_interval_within_three_hundredths(difference: Figure, expected: str) -> None:
    assert verdict(SIMILAR, all_rows(), all_comparisons(common=difference)) == expected
    in_auc = comparison("published", "weighted", 0.3, NEAR, difference)
    assert verdict(SIMILAR, all_rows(), [in_auc]) == expected
    ours, theirs = (key(loss, 0.3)._replace(minibatches="raw") for loss in ("weighted", "plain"))
    rows = [CellSummary(each, row("weighted", 0.3, BETTER).figures, 5, 1, 700, 400) for each in (ours, theirs)]
    differences = {name: PairedFigure(difference, 5, 3, 2) for name in ("expected_log_likelihood", "auc")}
    found = check("as the standard loss", rows, [CellPair("plain", ours, theirs, differences)])
    assert (found.verdict, found.place) == (expected, "Appendix B")


@pytest.mark.parametrize(
    ("tpr", "expected"),
    [
        (Figure(0.0, 0.0, 0.05), "reproduces"),
        (Figure(0.03, 0.02, 0.08), "undecided"),
        (Figure(0.3, 0.051, 0.4), "does not"),
        (Figure(math.nan, reason="no such nodule"), "undecided"),
    ],
)
def test_near_zero_is_an_interval_up_to_a_twentieth_and_trivial(tpr: Figure, expected: str) -> None:
    rows = [*all_rows()[:-1], row("weighted", 0.001, BETTER, tpr)]
    found = check(SENSITIVITY, rows, all_comparisons())
    assert (found.verdict, found.trivial) == (expected, True)
    assert [each.trivial for each in paper_checks(rows, all_comparisons(), CONFIG)].count(True) == 1


@pytest.mark.parametrize(
    ("difference", "expected"),
    [
        (Figure(0.06, 0.01, 0.2), "reproduces"),
        (Figure(0.1, -0.01, 0.2), "undecided"),
        (Figure(0.03, 0.01, 0.04), "does not"),
        (WORSE, "does not"),
        (NONE, "undecided"),
    ],
)
def test_a_sensitivity_above_0_is_a_twentieth_above_that_of_the_weighted_loss(difference: Figure, expected: str) -> None:
    assert verdict(SOME, all_rows(), rare(tpr=difference)) == expected


@pytest.mark.parametrize(("difference", "expected"), [(WORSE, "reproduces"), (EVEN, "undecided"), (BETTER, "does not")])
def test_lower_and_nearer_are_below_the_weighted_loss_and_a_better_ranking_above(difference: Figure, expected: str) -> None:
    assert verdict(LIKELIHOOD, all_rows(), rare(likelihood=difference)) == expected
    assert verdict(CALIBRATED, all_rows(), rare(log_mean_off=difference)) == expected
    opposite = Figure(-difference.value, -difference.high, -difference.low)
    assert verdict(RANKING, all_rows(), rare(auc=opposite)) == expected
    assert not any(CALIBRATED in each.about for each in paper_checks(all_rows(), rare(), CONFIG)), "without its difference"


@pytest.mark.parametrize(
    ("skill", "worse", "never"),
    [
        (WORSE, "reproduces", "does not"),
        (EVEN, "undecided", "undecided"),
        (BETTER, "does not", "reproduces"),
        (NONE, "undecided", "undecided"),
        (Figure(-math.inf, reason="a probability of 0"), "reproduces", "does not"),
    ],
)
def test_worse_than_always_answering_the_prevalence_is_by_interval(skill: Figure, worse: str, never: str) -> None:
    assert verdict(CONSTANT, all_rows(published=skill), []) == worse
    rows = [*(each for each in all_rows() if each.key != key("information-gain", 0.3)), row("information-gain", 0.3, skill)]
    assert verdict(NEVER, rows, []) == never, "at one prevalence of two"


@pytest.mark.parametrize(
    ("change", "falling", "steady"),
    [
        (Figure(-0.04, -0.06, -0.02), "reproduces", "does not"),
        (Figure(-0.003, -0.006, -0.001), "reproduces", "reproduces"),
        (Figure(0.0, -0.005, 0.005), "does not", "reproduces"),
        (Figure(-0.02, -0.05, 0.01), "undecided", "undecided"),
        (NONE, "undecided", "undecided"),
    ],
)
def test_an_auc_that_falls_by_less_than_a_hundredth_is_steady(change: Figure, falling: str, steady: str) -> None:
    found = [*all_comparisons(), *falls(change, change)]
    assert (verdict(FALLING, all_rows(), found), verdict(STEADY, all_rows(), found)) == (falling, steady)


def test_each_published_form_start_and_net_has_checks_of_its_own_those_of_a_claim_together() -> None:
    losses = ("information-gain", "published", "published-running", "weighted")
    config = replace(CONFIG, losses=losses, starts=("population", "equal"))
    rows = []
    for start, skill in (("population", BETTER), ("equal", WORSE)):
        for net in ("convnet", "inception"):
            for loss in losses:
                each = row(loss, 0.001, skill if loss == "published-running" else EVEN)
                rows.append(replace(each, key=each.key._replace(start=start, net=net)))
    every = paper_checks(rows, [], config)
    about = [each.about for each in every]
    assert sum(one != other for one, other in zip(about[1:], about, strict=False)) == len(set(about)) - 1
    checks = [each for each in every if CONSTANT in each.about]
    assert len({each.where for each in checks}) == len(checks) == 8
    decided = [each for each in checks if each.setting["loss"] == "published-running"]
    assert [(each.setting["start"], each.verdict) for each in decided] == [("population", "does not")] * 2 + [
        ("equal", "reproduces")
    ] * 2
    assert "started at equal classes" in decided[-1].where
    assert {each.verdict for each in checks if each not in decided} == {"undecided"}


def test_without_a_published_form_the_default_stands_in_and_without_the_papers_cases_there_is_no_check() -> None:
    config = replace(CONFIG, losses=("information-gain", "weighted"))
    rows = [each for each in all_rows() if each.key.loss != "published"]
    found = paper_checks(rows, [each for each in all_comparisons() if each.ours.loss == "information-gain"], config)
    assert not any("as published" in each.about for each in found)
    ranking = next(each for each in found if RANKING in each.about)
    assert (ranking.verdict, ranking.where) == ("reproduces", "ConvNet, information gain")
    sweep = StudyConfig("sweep", losses=("information-gain", "corrected"), populations=(0.1,))
    rows = [row("information-gain", 0.1, BETTER), row("corrected", 0.1, BETTER)]
    assert paper_checks(rows, [comparison("information-gain", "corrected", 0.1, EVEN, EVEN)], sweep) == ()
    assert paper_checks(all_rows(), all_comparisons(), replace(CONFIG, unlabelled=0.5)) == ()


@pytest.mark.parametrize(
    ("figures", "together", "approximated"),
    [
        ([BETTER, EVEN], "reproduces", "undecided"),
        ([BETTER, Figure(0.0, -0.0002, 0.1)], "reproduces", "reproduces"),
        ([BETTER, Figure(0.0, -0.0003, 0.1)], "reproduces", "undecided"),
        ([BETTER, WORSE], "undecided", "undecided"),
        ([WORSE, EVEN], "does not", "undecided"),
        ([WORSE, WORSE], "does not", "does not"),
    ],
)
def test_together_is_ahead_and_an_approximation_less_than_0_03_behind(
    figures: list[Figure], together: str, approximated: str
) -> None:
    def against(about: str, **ours: Any) -> list[CellPair]:
        """Both against the image alone, or an ensemble against one net."""
        keys = [key("information-gain", rate) for rate in (0.3, 0.001)]
        pairs = [{"expected_log_likelihood": PairedFigure(figure, 5, 3, 2)} for figure in figures]
        return [CellPair(about, each._replace(**ours), each, pair) for each, pair in zip(keys, pairs, strict=True)]

    balanced = replace(CONFIG, task="balanced", nets=("convnet", "metadata", "both"))
    assert verdict("together", [], against("net", net="both"), balanced) == together
    assert verdict("standard strategy: ensemble", [], against("inference", inference="ensemble")) == approximated


# Over several studies.


@pytest.mark.parametrize(
    ("raw", "rebalanced", "expected"),
    [(EVEN, Figure(0.1, 0.0, 0.2), "undecided"), (WORSE, BETTER, "reproduces"), (BETTER, WORSE, "does not")],
)
def test_less_degraded_when_raw_needs_both_studies_and_an_interval_above_0(
    raw: Figure, rebalanced: Figure, expected: str
) -> None:
    def study(minibatches: str, auc: Figure) -> Summary:
        (found,) = rare(auc=auc)
        ours, theirs = (each._replace(minibatches=minibatches) for each in (found.ours, found.theirs))
        config = replace(CONFIG, minibatches=(minibatches,))
        return Summary(config, 0, (), (CellPair(found.about, ours, theirs, found.differences),), ())

    (found, *others) = across.checks_across([study("raw", raw), study("rebalanced", rebalanced)])
    assert (found.verdict, found.where) == (expected, "readers' outlines, ConvNet")
    half = math.hypot(raw.value - raw.low, rebalanced.high - rebalanced.value)
    low, high = (f"{rebalanced.value - raw.value + sign * half:+.3f}".replace("-", "−") for sign in (-1, 1))
    assert f"({low} to {high})" in found.ours
    assert {each.verdict for each in across.checks_across([study("raw", raw)])} == {"cannot be tested"}
    assert all(each.ours and each.place for each in others)


@pytest.mark.parametrize(
    ("second", "expected"), [("reproduces", "reproduces"), ("undecided", "reproduces"), ("does not", "does not")]
)
def test_trends_differ_if_a_net_reproduces_what_another_of_the_study_does_not(second: Outcome, expected: str) -> None:
    def nets(**verdicts: Outcome) -> Summary:
        config = replace(CONFIG, nets=("convnet", "inception"))
        checks = tuple(PaperCheck("a claim", "", each, setting={"net": net}) for net, each in verdicts.items())
        return Summary(config, 0, (), (), checks)

    found = across.checks_across([nets(convnet="reproduces", inception=second)])[0]
    assert (found.about, found.verdict) == ("the trends are similar across architectures", expected)
    apart = [nets(convnet="reproduces", inception="undecided"), nets(convnet="undecided", inception="does not")]
    assert across.checks_across(apart)[0].verdict == "reproduces"


@pytest.mark.parametrize(
    ("verdicts", "settings", "overall", "depends_on"),
    [
        (("reproduces", "undecided"), {}, "reproduces", ""),
        (("does not", "undecided"), {}, "does not", ""),
        (("undecided",), {}, "undecided", ""),
        (("cannot be tested",), {}, "cannot be tested", ""),
        (("reproduces", "does not"), {"start": "ab", "net": "cc"}, "mixed", "start"),
        (("reproduces", "does not", "undecided"), {"start": "aba", "net": "cde"}, "mixed", ""),
        (("reproduces", "does not", "reproduces", "does not"), {"start": "abab", "net": "ccdd"}, "mixed", "start"),
        (("reproduces", "does not", "does not", "does not"), {"start": "abab", "net": "ccdd"}, "mixed", ""),
    ],
)
def test_a_claim_is_decided_by_all_its_decided_checks_and_mixed_by_the_one_factor_that_explains_it(
    verdicts: Sequence[Outcome], settings: dict[str, str], overall: str, depends_on: str
) -> None:
    checks = [
        PaperCheck("a claim", "", each, setting={name: letters[place] for name, letters in settings.items()})
        for place, each in enumerate(verdicts)
    ]
    (found,) = across.by_claim(checks)
    assert (found.overall, found.depends_on) == (overall, depends_on)
    assert sum(found.counts.values()) == len(checks)


def test_trivial_claims_are_counted_apart_and_our_own_not_at_all() -> None:
    checks = paper_checks(all_rows(), all_comparisons(), CONFIG)
    counted, trivial = across.by_claim(checks), across.by_claim(checks, trivial=True)
    assert [each.overall for each in trivial if SENSITIVITY in each.claim] == ["reproduces"]
    assert {each.claim for each in (*counted, *trivial)} == {each.about for each in checks if NEVER not in each.about}


# Ratings.

RATED = PRESETS["ratings"]
EXACT, CLOSE, EXTREMES, MALIGNANT = (
    "are as accurate",
    "off by no more than one",
    "rating 1 is the hardest",
    "benign or malignant",
)


def around(value: float, half: float = 0.02) -> Figure:
    return Figure(value, value - half, value + half)


def rated(
    loss: str = "published",
    likelihood: str = "onion-peeling",
    majority: float = 0.0,
    mean: float = 0.0,
    others: Mapping[str, Figure] | None = None,
    data: str = "contours",
) -> CellSummary:
    """The paper's figures, each changed by so much, by rule; some replaced by `others`."""
    figures = {f"{rule}_off_by_one_margin": around(0.2) for rule in RATING_RULES}
    for rule, change in (("majority", majority), ("mean", mean)):
        figures |= {f"{rule}_{name}": around(value + change) for name, value in paper.RATINGS.items()}
    cell = CellKey(data, "rebalanced", "convnet", likelihood, "population", "map", None, loss)
    return CellSummary(cell, {**figures, **(others or {})}, 5, 1, 600, 300)


@pytest.mark.parametrize(
    ("mean", "majority", "expected", "rule"),
    [
        (0.0, 0.0, "reproduces", "mean"),
        (-0.2, 0.0, "reproduces", "majority"),
        (-0.024, -0.2, "reproduces", "mean"),  # within the paper's rounding
        (-0.026, -0.2, "does not", "mean"),
    ],
)
def test_accuracies_reproduce_if_by_one_rule_they_reach_the_papers(
    mean: float, majority: float, expected: str, rule: str
) -> None:
    for about in (EXACT, CLOSE, MALIGNANT):
        found = check(about, [rated(majority=majority, mean=mean)], (), RATED)
        assert found.verdict == expected
        assert found.ours.startswith(f"by {rule}")
    none = {f"{each}_balanced_accuracy": Figure(0.5, reason="too few patients") for each in RATING_RULES}
    assert verdict(EXACT, [rated(others=none)], (), RATED) == "undecided"


def test_every_published_form_is_checked_for_each_data_set_and_no_other_loss() -> None:
    config = replace(RATED, losses=("information-gain", "published", "published-network", "weighted"))
    rows = [rated(), rated("published-network", majority=-0.5, mean=-0.5), rated("information-gain"), rated("weighted")]
    found = [each for each in rating_claims(rows, [], config) if CLOSE in each.about]
    assert [(each.where, each.verdict) for each in found] == [
        ("ConvNet, as published", "reproduces"),
        ("ConvNet, as published, network", "does not"),
    ]
    assert found[0].paper == "Acc. ±1 0.94, BA ±1 0.94"
    assert found[1].ours.startswith("by mean Acc. ±1 0.44 (0.42 to 0.46)")
    both = rating_claims([rated(), rated(data="slices")], [], RATED)
    assert len(both) == 2 * len({each.about for each in both})


@pytest.mark.parametrize(
    ("mean", "majority", "expected"), [(0.1, -0.1, "reproduces"), (0.0, -0.1, "undecided"), (-0.1, -0.1, "does not")]
)
def test_rating_1_is_the_hardest_if_by_one_rule_its_distance_is_above_0(mean: float, majority: float, expected: str) -> None:
    margins = {"mean_off_by_one_margin": around(mean), "majority_off_by_one_margin": around(majority)}
    assert verdict(EXTREMES, [rated(others=margins)], (), RATED) == expected


@pytest.mark.parametrize(("value", "expected"), [(0.1, "reproduces"), (0.0, "undecided"), (-0.1, "does not")])
def test_onion_peeling_is_better_if_ahead_of_the_softmax(value: float, expected: str) -> None:
    difference = {"expected_log_likelihood": PairedFigure(around(value), 5, 3, 2)}
    against = [CellPair("likelihood", rated().key, rated(likelihood=other).key, difference) for other in ("categorical", "x")]
    assert verdict("onion peeling reflects", [rated()], against[:1], RATED) == expected
    assert not any("onion peeling reflects" in each.about for each in rating_claims([rated()], against[1:], RATED))


@pytest.mark.parametrize(
    ("majority", "mean", "expected"),
    [(0.1, 0.1, "reproduces"), (0.1, 0.0, "undecided"), (0.1, -0.1, "does not"), (-0.1, -0.1, "reproduces")],
)
def test_rules_show_the_same_trends_if_what_both_decide_is_decided_alike(majority: float, mean: float, expected: str) -> None:
    found = {"majority": around(majority), "mean": around(mean)}
    differences = {f"{rule}_{name}": PairedFigure(each, 5, 3, 2) for rule, each in found.items() for name in RULE_FIGURES}
    against = CellPair("loss", rated("information-gain").key, rated().key, differences)
    trends = check("the same trends", [rated(), rated("information-gain")], [against], RATED)
    assert trends.verdict == expected
    assert f"of {len(RULE_FIGURES)}, opposed" in trends.ours
