"""Figures of ratings, against sklearn and plain counting."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, confusion_matrix, recall_score
from study_results import fake_study

from rightloss.metrics import evaluate
from rightloss.study.config import StudyConfig
from rightloss.study.results import Cell, StudyResults, cells, read_study
from rightloss.study.summary import CellSummary, Summary, summarise
from rightloss.study.summary.comparisons import RULE_FIGURES
from rightloss.study.summary.contract import CONSTANT

CONFIG = StudyConfig(
    "ratings",
    task="rating",
    likelihoods=("onion-peeling", "categorical"),
    losses=("information-gain", "weighted"),
    populations=(None,),
    folds=3,
    num_folds=5,
)
RULES = {
    "majority": lambda table: np.argmax(table, 1),
    "mean": lambda table: np.floor(table @ np.arange(1, 6) + 0.5 + 1e-6).astype(int) - 1,
}
EACH_RULE = pytest.mark.parametrize("rule", RULES)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> StudyResults:
    out = tmp_path_factory.mktemp("ratings")
    fake_study(out, CONFIG, 300)
    return read_study(out)


@pytest.fixture(scope="module")
def summary(results: StudyResults) -> Summary:
    return summarise(results)


@pytest.fixture(scope="module")
def cell(results: StudyResults) -> Cell:
    return cells(results)[1]


@pytest.fixture(scope="module")
def row(summary: Summary, cell: Cell) -> CellSummary:
    return next(row for row in summary.rows if row.key == cell.key)


def answers(cell: Cell, rule: str) -> tuple[np.ndarray, np.ndarray]:
    """The readers' and the predictions'."""
    make = RULES[rule]
    return make(cell.data.votes[cell.rows].astype(np.float64)), make(np.exp(cell.log_probs))


@pytest.mark.long
def test_the_log_likelihood_takes_votes_as_soft_labels_at_their_shares(cell: Cell, row: CellSummary) -> None:
    votes = cell.data.votes[cell.rows].astype(np.float64)
    expected = evaluate(cell.log_probs, votes, cell.population, groups=cell.patients, intervals="analytic")
    found = row.figures["expected_log_likelihood"]
    assert found.value == pytest.approx(expected.expected_log_likelihood.value, rel=1e-8)
    assert row.figures["skill"].value == pytest.approx(expected.skill.value, abs=1e-8)
    wide = expected.expected_log_likelihood.high - expected.expected_log_likelihood.low
    assert found.high - found.low == pytest.approx(wide, rel=0.15)
    blind = float(cell.population @ np.log(cell.population))
    assert row.figures["skill"].low == pytest.approx(1 - found.low / blind, rel=1e-7)


@EACH_RULE
def test_accuracies_are_those_of_sklearn(cell: Cell, row: CellSummary, rule: str) -> None:
    truth, answer = answers(cell, rule)
    assert row.figures[f"{rule}_accuracy"].value == pytest.approx(np.mean(truth == answer))
    assert row.figures[f"{rule}_balanced_accuracy"].value == pytest.approx(balanced_accuracy_score(truth, answer))


@EACH_RULE
def test_off_by_one_counts_the_rating_beside(cell: Cell, row: CellSummary, rule: str) -> None:
    truth, answer = answers(cell, rule)
    # An answer beside the truth is moved onto it, so that sklearn's recalls are those off by one.
    moved = np.where(np.abs(answer - truth) <= 1, truth, answer)
    recalls = recall_score(truth, moved, average=None, labels=range(5))
    found = [row.figures[f"{rule}_off_by_one_recall_{rating}"].value for rating in range(1, 6)]
    np.testing.assert_allclose(found, recalls)
    assert row.figures[f"{rule}_off_by_one"].value == pytest.approx(np.mean(moved == truth))
    assert row.figures[f"{rule}_balanced_off_by_one"].value == pytest.approx(np.mean(recalls))


@EACH_RULE
def test_benign_or_malignant_leaves_out_the_nodules_rated_3(cell: Cell, row: CellSummary, rule: str) -> None:
    truth, _ = answers(cell, rule)
    probs = np.exp(cell.log_probs)
    # With half of P(3) on each side, which must not matter.
    called = probs[:, 3] + probs[:, 4] + probs[:, 2] / 2 > 0.5 * probs.sum(1)
    sure = truth != 2
    table = confusion_matrix(truth[sure] > 2, called[sure])
    (tn, fp), (fn, tp) = table
    expected = {
        "accuracy": (tp + tn) / table.sum(),
        "tpr": tp / (tp + fn),
        "tnr": tn / (tn + fp),
        "ppv": tp / (tp + fp),
        "npv": tn / (tn + fn),
    }
    for name, value in expected.items():
        assert row.figures[f"{rule}_malignant_{name}"].value == pytest.approx(value), name


def test_scores_are_compared_as_numbers(cell: Cell, row: CellSummary) -> None:
    scale = np.arange(1, 6)
    off = np.abs(np.exp(cell.log_probs) @ scale - cell.data.votes[cell.rows].astype(np.float64) @ scale)
    assert row.figures["score_error"].value == pytest.approx(off.mean(), rel=1e-6)
    assert row.figures["score_within_half"].value == pytest.approx(np.mean(off <= 0.5))
    assert row.figures["score_within_one"].value == pytest.approx(np.mean(off <= 1))


def test_every_figure_of_ratings_has_an_interval_around_it(row: CellSummary) -> None:
    for name, figure in row.figures.items():
        assert figure.low <= figure.value <= figure.high, name
        assert figure.low < figure.high, name


def test_a_recall_of_one_is_not_taken_for_certain(summary: Summary) -> None:
    """Wilson's limit for n of n, by patients."""
    z = 1.959964
    perfect = [
        (name, figure, row)
        for row in summary.rows
        for name, figure in row.figures.items()
        if name.endswith(tuple("12345")) and figure.value == 1.0
    ]
    assert perfect
    for name, figure, row in perfect:
        least = row.patients / (row.patients + z**2)
        assert 0.5 < figure.low < least, name
        assert figure.high == 1.0


def test_the_interval_of_an_accuracy_is_as_wide_as_binomial_noise_of_patients_makes_it(cell: Cell, row: CellSummary) -> None:
    truth, answer = answers(cell, "majority")
    names, number = np.unique(cell.patients, return_inverse=True)
    by_patient = np.bincount(number, weights=truth == answer) - np.bincount(number) * np.mean(truth == answer)
    error = math.sqrt(np.square(by_patient).sum()) / len(truth)
    figure = row.figures["majority_accuracy"]
    assert (figure.high - figure.low) / (2 * 1.96) == pytest.approx(error, rel=0.15)
    assert len(names) < len(truth)


@pytest.mark.long
def test_a_rating_that_nobody_gave_has_no_recall_and_the_balance_is_over_the_others(results: StudyResults) -> None:
    name, data = next(iter(results.data.items()))
    votes = data.votes.copy()
    votes[:, 3] += votes[:, 4]
    votes[:, 4] = 0
    # One reader keeps the class in the population; by majority nobody has it.
    votes[0] = [0.75, 0, 0, 0, 0.25]
    changed = dataclasses.replace(results, data={name: dataclasses.replace(data, votes=votes)})
    cell = cells(changed)[0]
    found = next(row for row in summarise(changed).rows if row.key == cell.key).figures
    assert math.isnan(found["majority_off_by_one_recall_5"].value)
    assert found["majority_off_by_one_recall_5"].reason == "there is no such nodule"
    recalls = [found[f"majority_off_by_one_recall_{rating}"].value for rating in range(1, 5)]
    assert found["majority_balanced_off_by_one"].value == pytest.approx(np.mean(recalls))


def test_ratings_have_likelihoods_compared_with_the_softmax_and_no_auc(summary: Summary) -> None:
    pairs = [(each.about, each.ours.likelihood, each.ours.loss, each.theirs.likelihood) for each in summary.comparisons]
    assert sorted(pairs) == sorted(
        [
            *(("likelihood", "onion-peeling", loss, "categorical") for loss in CONFIG.losses),
            *(("loss", likelihood, "information-gain", likelihood) for likelihood in CONFIG.likelihoods),
        ]
    )
    names = {"expected_log_likelihood", *(f"{rule}_{name}" for rule in RULES for name in RULE_FIGURES)}
    assert all(set(each.differences) == names for each in summary.comparisons)
    figures = {row.key: row.figures for row in summary.rows}
    for each in summary.comparisons:
        for name, difference in each.differences.items():
            expected = figures[each.ours][name].value - figures[each.theirs][name].value
            assert difference.figure.value == pytest.approx(expected, abs=1e-8)
    assert all("auc" not in row.figures for row in summary.rows)


@EACH_RULE
def test_the_distance_of_rating_1_is_from_the_worst_of_2_to_4(row: CellSummary, rule: str) -> None:
    one, *middle = (row.figures[f"{rule}_off_by_one_recall_{rating}"].value for rating in range(1, 5))
    found = row.figures[f"{rule}_off_by_one_margin"]
    assert found.value == pytest.approx(min(middle) - one)
    assert found.low < found.value < found.high


def test_always_answering_the_shares_of_ratings_is_its_closed_form(summary: Summary, cell: Cell) -> None:
    found = [row for row in summary.rows if row.key.loss == CONSTANT]
    assert len(found) == 1
    population = cell.population
    assert found[0].figures["expected_log_likelihood"].value == pytest.approx(population @ np.log(population), rel=1e-8)
    assert found[0].figures["brier"].value == pytest.approx(1 - population @ population, rel=1e-8)
