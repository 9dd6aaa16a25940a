"""Checks of the paper's claims about two classes, on made-up summaries: each verdict by interval."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
from study_results import fake_study
from study_summaries import BETTER, BLIND, CONFIG, EVEN, NEAR, NONE, WORSE, all_comparisons, all_rows, comparison, key, row

from rightloss.metrics import Figure
from rightloss.study.config import StudyConfig
from rightloss.study.results import read_study
from rightloss.study.summary import CellPair, CellSummary, PairedFigure, PaperCheck, Summary, summarise
from rightloss.study.summary.across_studies import by_claim, checks_across
from rightloss.study.summary.contract import Outcome
from rightloss.study.summary.summarise import paper_checks

SIMILAR, RANKING = "the losses are similar", "the weighted loss has a lower AUC"
SENSITIVITY, SOME = "the weighted loss has a sensitivity of 0", "has a sensitivity above 0"
CONSTANT, NEVER, LIKELIHOOD = (
    "as published, worse than always answering",
    "never worse",
    "has the lower expected log-likelihood",
)
FALLING, STEADY, CALIBRATED = "of the weighted loss falls", "does not fall", "calibrated more consistently"


def check(about: str, rows: list[CellSummary], comparisons: list[CellPair], config: StudyConfig = CONFIG) -> PaperCheck:
    (found,) = (each for each in paper_checks(rows, comparisons, config) if about in each.about)
    return found


def verdict(about: str, rows: list[CellSummary], comparisons: list[CellPair], config: StudyConfig = CONFIG) -> str:
    return check(about, rows, comparisons, config).verdict


def rare(**figures: Figure) -> list[CellPair]:
    """The published form minus the weighted loss at 0.001."""
    return [comparison("published", "weighted", 0.001, **{"likelihood": EVEN, "auc": EVEN, **figures})]


def test_the_papers_own_pattern_reproduces_in_every_check() -> None:
    published = comparison("published", "weighted", 0.001, WORSE, BETTER, BETTER, log_mean_off=WORSE)
    found = paper_checks(all_rows(), [*all_comparisons()[:-1], published, *falls(WORSE, Figure(0.0, -0.005, 0.005))], CONFIG)
    assert len(found) == 10
    assert {each.verdict for each in found} == {"reproduces"}


# Each verdict by where the interval lies: reproduces, undecided, does not.


@pytest.mark.parametrize(
    ("difference", "expected"),
    [
        (Figure(0.0, -0.03, 0.03), "reproduces"),
        (Figure(0.02, 0.01, 0.029), "reproduces"),
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
        (Figure(0.3, 0.2, 0.4), "reproduces"),
        (Figure(0.06, 0.01, 0.2), "reproduces"),
        (Figure(0.1, -0.01, 0.2), "undecided"),
        (Figure(0.03, 0.01, 0.04), "does not"),
        (WORSE, "does not"),
        (NONE, "undecided"),
    ],
)
def test_a_sensitivity_above_0_is_above_that_of_the_weighted_loss_on_the_same_nodules(
    difference: Figure, expected: str
) -> None:
    found = check(SOME, all_rows(), rare(tpr=difference))
    assert found.verdict == expected
    assert (found.place, found.paper) == ("Table 1", "TPR bayesIG 0.33, wLoss 0")


@pytest.mark.parametrize(("difference", "expected"), [(WORSE, "reproduces"), (EVEN, "undecided"), (BETTER, "does not")])
def test_lower_and_nearer_are_below_the_weighted_loss_and_a_better_ranking_above(difference: Figure, expected: str) -> None:
    assert verdict(LIKELIHOOD, all_rows(), rare(likelihood=difference)) == expected
    assert verdict(CALIBRATED, all_rows(), rare(log_mean_off=difference)) == expected
    opposite = Figure(-difference.value, -difference.high, -difference.low)
    assert verdict(RANKING, all_rows(), rare(auc=opposite)) == expected


def test_calibration_over_prevalences_is_not_checked_without_its_difference() -> None:
    assert not any(CALIBRATED in each.about for each in paper_checks(all_rows(), rare(), CONFIG))


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
def test_worse_than_always_answering_the_prevalence_is_by_interval_and_the_default_is_apart(
    skill: Figure, worse: str, never: str
) -> None:
    assert verdict(CONSTANT, all_rows(published=skill), []) == worse
    rows = [*(each for each in all_rows() if each.key != key("information-gain", 0.3)), row("information-gain", 0.3, skill)]
    assert verdict(NEVER, rows, []) == never, "at one prevalence of two"


@pytest.mark.parametrize("form", ["published", "published-running", "published-network"])
def test_each_published_form_and_start_has_checks_of_its_own(form: str) -> None:
    losses = ("information-gain", "published", "published-running", "published-network", "weighted")
    config = dataclasses.replace(CONFIG, losses=losses, starts=("population", "equal"))
    found = []
    for start, skill in (("population", BETTER), ("equal", WORSE)):
        for loss in losses:
            each = row(loss, 0.001, skill if loss == form else EVEN)
            found.append(dataclasses.replace(each, key=each.key._replace(start=start)))
    checks = [each for each in paper_checks(found, [], config) if CONSTANT in each.about]
    assert len({each.where for each in checks}) == len(checks) == 6
    decided = {each.setting["start"]: each for each in checks if each.setting["loss"] == form}
    assert {start: each.verdict for start, each in decided.items()} == {"population": "does not", "equal": "reproduces"}
    assert "started at equal classes" in decided["equal"].where
    assert {each.verdict for each in checks if each.setting["loss"] != form} == {"undecided"}


def test_without_a_published_form_the_default_stands_in_where_the_claim_allows_it() -> None:
    config = dataclasses.replace(CONFIG, losses=("information-gain", "weighted"))
    rows = [each for each in all_rows() if each.key.loss != "published"]
    found = paper_checks(rows, [each for each in all_comparisons() if each.ours.loss == "information-gain"], config)
    assert not any("as published" in each.about for each in found)
    ranking = next(each for each in found if RANKING in each.about)
    assert (ranking.verdict, ranking.where) == ("reproduces", "ConvNet, information gain")


def falls(weighted: Figure, published: Figure) -> list[CellPair]:
    """AUC at 0.001 minus that at 0.3."""
    return [
        CellPair("population", key(loss, 0.001), key(loss, 0.3), {"auc": PairedFigure(figure, 5, 2, 3)})
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


@pytest.mark.parametrize(("difference", "expected"), [(NEAR, "reproduces"), (EVEN, "undecided"), (BETTER, "does not")])
def test_with_raw_minibatches_the_weighted_loss_is_held_against_plain_cross_entropy(difference: Figure, expected: str) -> None:
    def raw(loss: str) -> CellSummary:
        found = row(loss, 0.3, BETTER)
        return dataclasses.replace(found, key=found.key._replace(minibatches="raw"))

    ours, theirs = raw("weighted"), raw("plain")
    differences = {name: PairedFigure(difference, 5, 3, 2) for name in ("expected_log_likelihood", "auc")}
    found = check("as the standard loss", [ours, theirs], [CellPair("plain", ours.key, theirs.key, differences)])
    assert (found.verdict, found.place) == (expected, "Appendix B")


def test_a_check_gives_its_figures() -> None:
    ranking = check(RANKING, all_rows(), all_comparisons())
    assert ranking.where == "ConvNet"
    assert ranking.ours == "difference in AUC +0.200 (+0.100 to +0.300)"
    assert ranking.setting["net"] == "convnet"
    constant = check(CONSTANT, all_rows(), all_comparisons())
    blind = f"{BLIND:.5f}".replace("-", "−")
    assert constant.paper == f"log-lik. bayesIG −0.027, always π {blind}"


def against(about: str, populations: tuple[float, ...], figures: list[Figure]) -> list[CellPair]:
    """Both against the image alone, or an ensemble against one net."""
    found = []
    for rate, figure in zip(populations, figures, strict=True):
        one = key("information-gain", rate)
        ours = one._replace(net="both") if about == "net" else one._replace(inference="ensemble")
        found.append(CellPair(about, ours, one, {"expected_log_likelihood": PairedFigure(figure, 5, 3, 2)}))
    return found


@pytest.mark.parametrize(
    ("figures", "together", "approximated"),
    [
        ([BETTER, EVEN], "reproduces", "undecided"),
        ([BETTER, Figure(0.0, -0.0002, 0.1)], "reproduces", "reproduces"),
        ([BETTER, Figure(0.0, -0.0003, 0.1)], "reproduces", "undecided"),
        ([EVEN, EVEN], "undecided", "undecided"),
        ([BETTER, WORSE], "undecided", "undecided"),
        ([WORSE, EVEN], "does not", "undecided"),
        ([WORSE, WORSE], "does not", "does not"),
    ],
)
def test_together_is_better_if_ahead_and_an_approximation_holds_if_less_than_three_hundredths_of_skill_behind(
    figures: list[Figure], together: str, approximated: str
) -> None:
    balanced = dataclasses.replace(CONFIG, task="balanced", nets=("convnet", "metadata", "both"))
    assert verdict("together", [], against("net", (0.3, 0.001), figures), balanced) == together
    assert verdict("standard strategy: ensemble", [], against("inference", (0.3, 0.001), figures)) == approximated


def test_without_the_papers_losses_or_prevalences_there_is_no_check() -> None:
    config = StudyConfig("sweep", losses=("information-gain", "corrected"), populations=(0.1,))
    rows = [row("information-gain", 0.1, BETTER), row("corrected", 0.1, BETTER)]
    assert paper_checks(rows, [comparison("information-gain", "corrected", 0.1, EVEN, EVEN)], config) == ()


@pytest.mark.long
def test_each_check_is_made_for_each_data_set_net_and_minibatches(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, nets=("convnet", "inception"), minibatches=("rebalanced", "raw"), folds=1, num_folds=3)
    fake_study(tmp_path, config, 100)
    where = [check.where for check in summarise(read_study(tmp_path)).checks]
    assert len(set(where)) == 4
    assert len({where.count(each) for each in where}) == 1


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
    return Summary(config, 0, (), (CellPair(found.about, ours, theirs, found.differences),), ())


@pytest.mark.parametrize(
    ("raw", "rebalanced", "expected"),
    [(EVEN, Figure(0.1, 0.0, 0.2), "undecided"), (WORSE, BETTER, "reproduces"), (BETTER, WORSE, "does not")],
)
def test_less_degraded_when_raw_needs_both_studies_and_an_interval_of_their_difference_above_0(
    raw: Figure, rebalanced: Figure, expected: str
) -> None:
    (found, *_) = checks_across([study("raw", raw), study("rebalanced", rebalanced)])
    assert (found.verdict, found.where) == (expected, "readers' outlines, ConvNet")
    assert {each.verdict for each in checks_across([study("raw", raw)])} == {"cannot be tested"}


def nets(**verdicts: Outcome) -> Summary:
    config = dataclasses.replace(CONFIG, nets=("convnet", "inception"))
    checks = tuple(PaperCheck("a claim", "", each, setting={"net": net}) for net, each in verdicts.items())
    return Summary(config, 0, (), (), checks)


@pytest.mark.parametrize(
    ("second", "expected"), [("reproduces", "reproduces"), ("undecided", "reproduces"), ("does not", "does not")]
)
def test_trends_are_similar_across_nets_unless_one_reproduces_what_another_does_not(second: Outcome, expected: str) -> None:
    found = checks_across([nets(convnet="reproduces", inception=second)])[0]
    assert (found.about, found.verdict) == ("the trends are similar across architectures", expected)


def test_nets_that_never_disagree_within_a_study_are_similar() -> None:
    one, other = nets(convnet="reproduces", inception="undecided"), nets(convnet="undecided", inception="does not")
    assert checks_across([one, other])[0].verdict == "reproduces"


def test_every_claim_that_cannot_be_tested_says_why() -> None:
    assert all(each.ours and each.place for each in checks_across([]))


def checked(*verdicts: Outcome, **settings: str) -> list[PaperCheck]:
    """A check for each verdict; its settings are a letter each."""
    return [
        PaperCheck("a claim", "", verdict, setting={name: each[place] for name, each in settings.items()})
        for place, verdict in enumerate(verdicts)
    ]


@pytest.mark.parametrize(
    ("checks", "overall", "depends_on"),
    [
        (checked("reproduces", "undecided", "undecided"), "reproduces", ""),
        (checked("does not", "undecided"), "does not", ""),
        (checked("undecided", "undecided"), "undecided", ""),
        (checked("cannot be tested"), "cannot be tested", ""),
        (checked("reproduces", "does not", start="ab", net="cc"), "mixed", "start"),
        (checked("reproduces", "does not", "undecided", start="aba", net="cde"), "mixed", ""),
        (checked("reproduces", "does not", "reproduces", "does not", start="abab", net="ccdd"), "mixed", "start"),
        (checked("reproduces", "does not", "does not", "does not", start="abab", net="ccdd"), "mixed", ""),
    ],
)
def test_a_claim_is_decided_by_all_its_decided_checks_and_mixed_by_the_one_factor_that_explains_it(
    checks: list[PaperCheck], overall: str, depends_on: str
) -> None:
    (found,) = by_claim(checks)
    assert (found.overall, found.depends_on) == (overall, depends_on)
    assert sum(found.counts.values()) == len(checks)


def test_trivial_claims_are_counted_apart_and_our_own_not_at_all() -> None:
    checks = paper_checks(all_rows(), all_comparisons(), CONFIG)
    counted, trivial = by_claim(checks), by_claim(checks, trivial=True)
    assert [each.overall for each in trivial if SENSITIVITY in each.claim] == ["reproduces"]
    assert {each.claim for each in (*counted, *trivial)} == {each.about for each in checks if NEVER not in each.about}
    assert any(NEVER in each.about for each in checks)
