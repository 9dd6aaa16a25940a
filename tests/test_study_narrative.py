"""The report's sentences: checks of the paper's findings, wins and losses, the claim, calibration, missing runs."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
from study_results import fake_study
from study_summaries import BETTER, CONFIG, EVEN, WORSE, all_comparisons, all_rows, comparison, row

from rightloss.metrics import Figure
from rightloss.study.config import Source, StudyConfig
from rightloss.study.results import StudyResults, read_study
from rightloss.study.summary import CellSummary, Comparison, PaperCheck, Summary, narrative, summarise, wording
from rightloss.study.summary.checks import paper_checks


def test_without_the_papers_losses_or_prevalences_there_is_no_check_and_that_is_said() -> None:
    config = StudyConfig("sweep", losses=("information-gain", "corrected"), populations=(0.1,))
    rows = [row("information-gain", 0.1, BETTER), row("corrected", 0.1, BETTER)]
    comparisons = [comparison("information-gain", "corrected", 0.1, EVEN, EVEN)]
    checks = paper_checks(rows, comparisons, config)
    assert checks == ()
    assert any("was not asked" in each for each in narrative.findings(rows, comparisons, checks, config, 0))
    assert not any("was not asked" in each for each in narrative.findings(rows, comparisons, checks, config, 1)), (
        "it may be missing"
    )


def test_the_papers_claims_are_listed_by_what_became_of_them() -> None:
    checks = [
        PaperCheck("it falls", "", "does not", "", setting={"start": "equal"}),
        PaperCheck("it falls", "", "reproduces", "", setting={"start": "population"}),
        PaperCheck("it rises", "", "does not", ""),
        PaperCheck("it is 0", "", "reproduces", "", trivial=True),
    ]
    found = narrative.findings([], [], checks, CONFIG, 0)[0]
    assert "In some settings, by start: it falls (1 of 2). Does not reproduce: it rises." in found
    assert found.endswith("Always answering π does the same, not counted: it is 0.")


def said(rows: list[CellSummary], comparisons: list[Comparison], missing: int = 0) -> str:
    return "\n".join(narrative.findings(rows, comparisons, paper_checks(rows, comparisons, CONFIG), CONFIG, missing))


def test_losses_are_named_with_their_figures_worst_first() -> None:
    comparisons = [
        comparison("information-gain", "weighted", 0.3, Figure(-0.02, -0.03, -0.01), EVEN),
        comparison("information-gain", "weighted", 0.001, Figure(-0.5, -0.6, -0.4), BETTER),
    ]
    text = said(all_rows(), comparisons)
    assert "Weighted loss: behind in 2 of 2" in text
    worst, other = "weighted loss (ConvNet, π = 0.001) −0.500", "weighted loss (ConvNet, π = 0.3) −0.020"
    assert text.index(f"It loses to: {worst}") < text.index(other)


def test_differences_after_matching_to_the_prevalence_have_a_sentence_of_their_own() -> None:
    matched = [comparison("information-gain", "published", 0.001, EVEN, EVEN)]
    found = narrative.findings(all_rows(), all_comparisons(), (), CONFIG, 0, matched)
    (sentence,) = (each for each in found if "matched to π afterwards" in each)
    assert sentence.endswith("Information gain as published: undecided in 1 of 1.")


def test_an_undefined_difference_is_counted_as_such() -> None:
    undefined = Figure(math.nan, reason="a class has no nodule")
    text = said(all_rows(), [comparison("information-gain", "weighted", 0.3, undefined, undefined)])
    assert text.count("In 1 of 1 the difference is not defined.") == 2


@pytest.mark.parametrize(("pairs", "expected"), [(5, ""), (9, ""), (10, "Of 20 differences, about 1 would")])
def test_differences_decided_by_chance_are_mentioned_from_one_on(pairs: int, expected: str) -> None:
    text = said(all_rows(), [comparison("information-gain", "weighted", 0.3, EVEN, EVEN)] * pairs)
    assert expected in text
    assert ("by chance alone" in text) == bool(expected)


def test_a_probability_of_zero_for_what_happened_is_worse_than_always_answering_the_prevalence() -> None:
    rows = all_rows(information_gain=Figure(-math.inf, reason="1 example(s) were given probability 0"))
    assert "undecided in 0, worse in 2 of 2 cases. It is worse in: ConvNet, π = 0.3; ConvNet, π = 0.001." in said(rows, [])


def test_calibration_that_is_not_defined_is_not_counted() -> None:
    nothing = Figure(math.nan, reason="a class has no nodule")
    off = row("information-gain", 0.3, BETTER, calibration_error=nothing, mean_prediction=nothing)
    assert "in 1 of 1 case the calibration error" in said([off, *all_rows()[1:]], [])
    assert "Calibration" not in said([off], [])


def test_the_claim_is_checked_by_interval_and_failures_are_named() -> None:
    text = said(all_rows(), all_comparisons())
    assert "the default information gain is better in 2, undecided in 0, worse in 0 of 2 cases." in text
    assert "Other losses that are worse than always answering π: information gain as published in 2 cases" in text
    worse = [row("information-gain", 0.3, WORSE), *all_rows()[1:]]
    assert "worse in 1 of 2 cases. It is worse in: ConvNet, π = 0.3." in said(worse, all_comparisons())


@pytest.mark.parametrize("mean", [Figure(0.6, 0.5, 0.7), Figure(0.1, 0.05, 0.2)])
def test_calibration_is_compared_with_chance_and_by_the_mean_prediction(mean: Figure) -> None:
    off = row("information-gain", 0.3, BETTER, calibration_error=Figure(0.1, 0.05, 0.2), mean_prediction=mean)
    text = said([off, *all_rows()[1:]], all_comparisons())
    assert "in 1 of 2 cases the calibration error is no larger than chance would make it" in text
    assert "The mean prediction agrees with π in 1 of 2." in text


def test_an_incomplete_study_says_so_first() -> None:
    config = dataclasses.replace(CONFIG, folds=2)
    found = narrative.findings(all_rows(), all_comparisons(), (), config, 7)
    assert found[0].startswith("The study is incomplete: 7 of 12 runs are missing")
    assert not any("incomplete" in each for each in narrative.findings(all_rows(), all_comparisons(), (), config, 0))


def results_of(out: Path, config: StudyConfig, skip: int = 0) -> StudyResults:
    fake_study(out, config, 100, skip)
    return read_study(out)


@pytest.mark.long
def test_the_question_names_data_population_and_test(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, sources=(Source("contours"), Source("slices", "1")), folds=2, num_folds=4, seeds=2)
    results = results_of(tmp_path, config, skip=1)
    found = summarise(results)
    malignant = int((results.data["slices"].labels == 1).sum())
    for words_ in (
        "readers' outlines of lung nodules in LIDC-IDRI (100 of 50 patients)",
        f"nodules of slices (100 of 50 patients), {malignant} of them malignant",
        "all classes are equally frequent",
        "0.3 and 0.001",
        "2 of 4 folds, with 2 seeds",
    ):
        assert words_ in found.question
    assert found.findings[0].startswith("The study is incomplete: 1 of")
    assert {check.where for check in found.checks} == {"readers' outlines, ConvNet", "slices, ConvNet"}


@pytest.mark.long
def test_each_check_is_made_for_each_data_set_net_and_minibatches(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, nets=("convnet", "inception"), minibatches=("rebalanced", "raw"), folds=1, num_folds=3)
    found: Summary = summarise(results_of(tmp_path, config))
    where = [check.where for check in found.checks]
    assert len(set(where)) == 4
    assert len({where.count(each) for each in where}) == 1
    assert isinstance(found.checks[0], PaperCheck)


@pytest.mark.parametrize(
    ("figure", "expected"),
    [
        (Figure(0.0123, 0.01, 0.02), "+0.012 (+0.010 to +0.020)"),
        (Figure(-0.000123, -0.0004, 0.0001), "−0.00012 (−0.00040 to +0.00010)"),
        (Figure(0.0), "0.000"),
        (Figure(math.nan, reason="none"), "–"),
        (Figure(-math.inf), "−∞"),
    ],
)
def test_differences_show_as_many_places_as_they_need(figure: Figure, expected: str) -> None:
    assert wording.difference(figure) == expected


@pytest.mark.parametrize(("population", "places"), [(0.5, 3), (0.3, 3), (0.1, 3), (0.03, 4), (0.01, 4), (0.001, 5), (0.999, 5)])
def test_figures_of_a_rare_class_show_more_places(population: float, places: int) -> None:
    assert wording.decimals("expected_log_likelihood", population) == places
    assert wording.decimals("auc", population) == 3


def test_the_answer_counts_the_cases_worse_than_the_prevalence_by_start() -> None:
    assert narrative.answer(all_rows(), CONFIG).endswith("(default) in 0 of 2; information gain as published in 2 of 2.")
    config = dataclasses.replace(CONFIG, starts=("population", "equal"))
    equal = [dataclasses.replace(each, key=each.key._replace(start="equal")) for each in all_rows(published=BETTER)]
    found = narrative.answer([*all_rows(), *equal], config)
    assert "as published, started at π in 2 of 2" in found
    assert "as published, started at equal classes in 0 of 2" in found


def test_without_the_default_loss_there_is_no_answer() -> None:
    config = dataclasses.replace(CONFIG, losses=("published", "weighted"))
    rows = [each for each in all_rows() if each.key.loss != "information-gain"]
    assert narrative.answer(rows, config) == ""


def test_a_mean_prediction_that_is_clearly_off_the_prevalence_is_named() -> None:
    def said_of(**means: Figure) -> str:
        rows = tuple(
            row("information-gain", rate, BETTER, **({"mean_prediction": means[name]} if name in means else {}))
            for name, rate in (("common", 0.3), ("rare", 0.001))
        )
        return narrative.mean_prediction_off(Summary(CONFIG, 0, "", "", rows, (), (), ()))

    undefined = Figure(math.nan, reason="a class has no nodule")
    assert said_of() == said_of(rare=undefined) == ""
    name = "The mean prediction of the default information gain is clearly"
    low, high = Figure(0.00079, 0.00065, 0.00099), Figure(0.5, 0.4, 0.6)
    below = f"{name} below the prevalence at 1 in 1,000: 0.00079 (0.00065 to 0.00099)"
    assert said_of(rare=low) == f"{below}; elsewhere it agrees."
    assert said_of(common=undefined, rare=low) == f"{below}."
    assert said_of(common=high, rare=low) == (
        f"{name} off the prevalence in 2 of 2 cases; furthest above it at 30 %: 0.500 (0.400 to 0.600)."
    )
