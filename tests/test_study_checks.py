"""Checks of the paper's claims about two classes, on made-up summaries: each verdict by interval."""

from __future__ import annotations

import dataclasses
import math

import pytest
from study_summaries import BETTER, BLIND, CONFIG, EVEN, NONE, WORSE, all_comparisons, all_rows, comparison, key, row

from rightloss.metrics import Figure
from rightloss.study.config import StudyConfig
from rightloss.study.summary import CellSummary, Comparison, Difference, PaperCheck, Summary
from rightloss.study.summary.across_studies import checks_across
from rightloss.study.summary.checks import paper_checks
from rightloss.study.summary.contract import Verdict

SIMILAR, RANKING = "the losses are similar", "the weighted loss has a lower AUC"
SENSITIVITY, SOME = "the weighted loss has a sensitivity of 0", "has a sensitivity above 0"
CONSTANT, LIKELIHOOD = "worse than always answering", "has the lower expected log-likelihood"
FALLING, STEADY, CALIBRATED = "of the weighted loss falls", "does not fall", "calibrated more consistently"


def check(about: str, rows: list[CellSummary], comparisons: list[Comparison], config: StudyConfig = CONFIG) -> PaperCheck:
    (found,) = (each for each in paper_checks(rows, comparisons, config) if about in each.about)
    return found


def verdict(about: str, rows: list[CellSummary], comparisons: list[Comparison], config: StudyConfig = CONFIG) -> str:
    return check(about, rows, comparisons, config).verdict


def test_the_papers_own_pattern_reproduces_in_every_check() -> None:
    rows = [each for each in all_rows() if each.key != key("published", 0.001)]
    rows.append(row("published", 0.001, WORSE, Figure(0.33, 0.2, 0.4)))
    comparisons = [*all_comparisons()[:-1], comparison("published", "weighted", 0.001, WORSE, BETTER), *falls(WORSE, EVEN)]
    narrow = [
        dataclasses.replace(each, differences={"auc": Difference(Figure(0.0, -0.005, 0.005), 5, 2, 3)})
        for each in falls(EVEN, EVEN)[1:]
    ]
    found = paper_checks(rows, [*comparisons[:-1], *narrow], CONFIG)
    assert len(found) == 8
    assert {each.verdict for each in found} == {"reproduces"}


@pytest.mark.parametrize(
    ("difference", "expected"),
    [
        (EVEN, "reproduces"),
        (Figure(0.025, 0.013, 0.037), "reproduces"),
        (Figure(-0.05, -0.08, -0.02), "does not"),
        (Figure(-0.05, -0.11, 0.01), "undecided"),
        (BETTER, "does not"),
        (NONE, "undecided"),
    ],
)
def test_similar_is_within_three_hundredths(difference: Figure, expected: str) -> None:
    assert verdict(SIMILAR, all_rows(), all_comparisons(common=difference)) == expected


@pytest.mark.parametrize(
    ("tpr", "expected"),
    [
        (Figure(0.0, 0.0, 0.03), "reproduces"),
        (Figure(0.05, 0.02, 0.08), "reproduces"),
        (Figure(0.06, 0.02, 0.09), "undecided"),
        (Figure(0.3, 0.2, 0.4), "does not"),
        (Figure(math.nan, reason="no such nodule"), "undecided"),
    ],
)
def test_near_zero_is_up_to_a_twentieth(tpr: Figure, expected: str) -> None:
    rows = [*all_rows()[:-1], row("weighted", 0.001, BETTER, tpr)]
    assert verdict(SENSITIVITY, rows, all_comparisons()) == expected


def test_the_sensitivity_of_the_default_is_given_beside_that_of_the_weighted_loss() -> None:
    rows = [each for each in all_rows() if each.key != key("information-gain", 0.001)]
    without = check(SENSITIVITY, rows, all_comparisons()).sentence
    default = row("information-gain", 0.001, BETTER, Figure(0.125, 0.1, 0.2))
    beside = check(SENSITIVITY, [*rows, default], all_comparisons()).sentence
    assert "default" not in without
    assert "That of the default information gain is 0.125 (0.100 to 0.200)." in beside


@pytest.mark.parametrize(
    ("tpr", "expected"),
    [
        (Figure(0.3, 0.2, 0.4), "reproduces"),
        (Figure(0.1, 0.01, 0.2), "undecided"),
        (Figure(0.02, 0.0, 0.04), "does not"),
        (Figure(math.nan, reason="no such nodule"), "undecided"),
    ],
)
def test_a_sensitivity_above_0_is_above_that_of_the_weighted_loss(tpr: Figure, expected: str) -> None:
    rows = [each for each in all_rows() if each.key != key("published", 0.001)]
    found = check(SOME, [*rows, row("published", 0.001, WORSE, tpr)], all_comparisons())
    assert found.verdict == expected
    assert (found.place, found.paper) == ("Table 1", "TPR bayesIG 0.33, wLoss 0")


@pytest.mark.parametrize(("difference", "expected"), [(WORSE, "reproduces"), (EVEN, "undecided"), (BETTER, "does not")])
def test_the_lower_likelihood_is_that_of_the_published_form(difference: Figure, expected: str) -> None:
    found = [*all_comparisons()[:-1], comparison("published", "weighted", 0.001, difference, EVEN)]
    assert verdict(LIKELIHOOD, all_rows(), found) == expected


@pytest.mark.parametrize(
    ("default", "published", "expected"),
    [
        (BETTER, EVEN, "reproduces"),
        (EVEN, BETTER, "reproduces"),
        (EVEN, EVEN, "undecided"),
        (BETTER, WORSE, "undecided"),
        (WORSE, EVEN, "does not"),
        (WORSE, WORSE, "does not"),
        (NONE, NONE, "undecided"),
    ],
)
def test_the_weighted_loss_ranks_worse_if_one_form_is_ahead_and_none_behind(
    default: Figure, published: Figure, expected: str
) -> None:
    assert verdict(RANKING, all_rows(), all_comparisons(rare=default, rare_published=published)) == expected


@pytest.mark.parametrize(
    ("default", "published", "expected"),
    [
        (BETTER, WORSE, "reproduces"),
        (EVEN, WORSE, "reproduces"),
        (WORSE, WORSE, "does not"),
        (BETTER, BETTER, "does not"),
        (BETTER, EVEN, "undecided"),
        (BETTER, NONE, "undecided"),
    ],
)
def test_worse_than_always_answering_the_prevalence_is_by_interval(default: Figure, published: Figure, expected: str) -> None:
    rows = all_rows(**{"information_gain": default, "published": published})
    assert verdict(CONSTANT, rows, all_comparisons()) == expected


def falls(weighted: Figure, published: Figure) -> list[Comparison]:
    """AUC at 0.001 minus that at 0.3."""
    return [
        Comparison("population", key(loss, 0.001), key(loss, 0.3), {"auc": Difference(figure, 5, 2, 3)})
        for loss, figure in (("weighted", weighted), ("published", published))
    ]


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
    assert verdict(FALLING, all_rows(), found) == falling
    assert verdict(STEADY, all_rows(), found) == steady


@pytest.mark.parametrize(("published", "weighted", "expected"), [(3, 1, "reproduces"), (2, 2, "undecided"), (0, 3, "does not")])
def test_consistent_calibration_is_a_count_of_prevalences_at_which_the_mean_prediction_agrees(
    published: int, weighted: int, expected: str
) -> None:
    rates = (0.5, 0.03, 0.001)
    config = dataclasses.replace(CONFIG, populations=rates)

    def mean(agrees: bool, rate: float) -> Figure:
        return Figure(rate, 0.9 * rate, 1.1 * rate) if agrees else Figure(2 * rate, 1.5 * rate, 3 * rate)

    rows = [
        row(loss, rate, BETTER, mean_prediction=mean(place < count, rate))
        for loss, count in (("published", published), ("weighted", weighted))
        for place, rate in enumerate(rates)
    ]
    found = check(CALIBRATED, rows, [], config)
    assert found.verdict == expected
    assert found.ours == f"as published {published} of 3, weighted {weighted} of 3"
    assert not any(CALIBRATED in each.about for each in paper_checks(rows[:2], [], config)), "two prevalences are too few"


@pytest.mark.parametrize(("difference", "expected"), [(EVEN, "reproduces"), (BETTER, "does not")])
def test_with_raw_minibatches_the_weighted_loss_is_held_against_plain_cross_entropy(difference: Figure, expected: str) -> None:
    def raw(loss: str) -> CellSummary:
        found = row(loss, 0.3, BETTER)
        return dataclasses.replace(found, key=found.key._replace(minibatches="raw"))

    ours, theirs = raw("weighted"), raw("plain")
    differences = {name: Difference(difference, 5, 3, 2) for name in ("expected_log_likelihood", "auc")}
    found = check("as the standard loss", [ours, theirs], [Comparison("plain", ours.key, theirs.key, differences)])
    assert (found.verdict, found.place) == (expected, "Appendix B")


def test_a_check_gives_its_figures() -> None:
    ranking = check(RANKING, all_rows(), all_comparisons())
    assert ranking.where == "ConvNet"
    assert "information gain (default) +0.200 (+0.100 to +0.300), ahead in 4 of 5 folds" in ranking.sentence
    constant = check(CONSTANT, all_rows(), all_comparisons())
    blind = f"{BLIND:.5f}".replace("-", "−")
    assert f"always answering π {blind}" in constant.sentence
    assert constant.paper == f"log-lik. bayesIG −0.027, always π {blind}"


def against(about: str, populations: tuple[float, ...], figures: list[Figure]) -> list[Comparison]:
    """Both against the image alone, or an ensemble against one net."""
    found = []
    for rate, figure in zip(populations, figures, strict=True):
        one = key("information-gain", rate)
        ours = one._replace(net="both") if about == "net" else one._replace(inference="ensemble")
        found.append(Comparison(about, ours, one, {"expected_log_likelihood": Difference(figure, 5, 3, 2)}))
    return found


@pytest.mark.parametrize(
    ("figures", "together", "approximated"),
    [
        ([BETTER, EVEN], "reproduces", "reproduces"),
        ([EVEN, EVEN], "undecided", "reproduces"),
        ([BETTER, WORSE], "undecided", "undecided"),
        ([WORSE, EVEN], "does not", "undecided"),
        ([WORSE, WORSE], "does not", "does not"),
    ],
)
def test_together_is_better_if_ahead_and_an_approximation_holds_if_not_behind(
    figures: list[Figure], together: str, approximated: str
) -> None:
    balanced = dataclasses.replace(CONFIG, task="balanced", nets=("convnet", "metadata", "both"))
    assert verdict("together", [], against("net", (0.3, 0.001), figures), balanced) == together
    assert verdict("standard strategy: ensemble", [], against("inference", (0.3, 0.001), figures)) == approximated


def test_the_checks_of_one_claim_stand_next_to_each_other() -> None:
    rows = all_rows()
    others = [dataclasses.replace(each, key=each.key._replace(net="inception")) for each in rows]
    where = [(each.about, each.where) for each in paper_checks([*rows, *others], [], CONFIG)]
    assert [about for about, _ in where[::2]] == [about for about, _ in where[1::2]]
    assert {place for _, place in where} == {"ConvNet", "InceptionNet"}


def test_nothing_is_checked_where_patients_are_unlabelled() -> None:
    assert paper_checks(all_rows(), all_comparisons(), dataclasses.replace(CONFIG, unlabelled=0.5)) == ()


def study(minibatches: str, auc: Figure) -> Summary:
    config = dataclasses.replace(CONFIG, minibatches=(minibatches,))
    found = comparison("published", "weighted", 0.001, EVEN, auc)
    ours, theirs = (each._replace(minibatches=minibatches) for each in (found.ours, found.theirs))
    return Summary(config, 0, "", "", (), (Comparison(found.about, ours, theirs, found.differences),), (), ())


@pytest.mark.parametrize(
    ("raw", "rebalanced", "expected"), [(EVEN, BETTER, "undecided"), (WORSE, BETTER, "reproduces"), (BETTER, WORSE, "does not")]
)
def test_less_degraded_when_raw_needs_both_studies_and_intervals_apart(raw: Figure, rebalanced: Figure, expected: str) -> None:
    (found, *_) = checks_across([study("raw", raw), study("rebalanced", rebalanced)])
    assert (found.verdict, found.where) == (expected, "readers' outlines, ConvNet")
    assert {each.verdict for each in checks_across([study("raw", raw)])} == {"cannot be tested"}


def nets(**verdicts: Verdict) -> Summary:
    config = dataclasses.replace(CONFIG, nets=("convnet", "inception"))
    checks = tuple(
        PaperCheck("a claim", {"convnet": "ConvNet", "inception": "InceptionNet"}[net], each, "")
        for net, each in verdicts.items()
    )
    return Summary(config, 0, "", "", (), (), checks, ())


@pytest.mark.parametrize(
    ("second", "expected"), [("reproduces", "reproduces"), ("undecided", "reproduces"), ("does not", "does not")]
)
def test_trends_are_similar_across_nets_unless_one_reproduces_what_another_does_not(second: Verdict, expected: str) -> None:
    found = checks_across([nets(convnet="reproduces", inception=second)])[0]
    assert (found.about, found.verdict) == ("the trends are similar across architectures", expected)


def test_nets_that_never_disagree_within_a_study_are_similar() -> None:
    one, other = nets(convnet="reproduces", inception="undecided"), nets(convnet="undecided", inception="does not")
    assert checks_across([one, other])[0].verdict == "reproduces"


def test_every_claim_that_cannot_be_tested_says_why() -> None:
    assert all(each.sentence and each.place for each in checks_across([]))
