"""Figures of a study's cells, their intervals and paired differences, against sklearn, closed forms and plain loops."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from members import SEED
from sklearn.metrics import roc_auc_score
from study_results import fake_study

from rightloss.metrics import evaluate
from rightloss.study.config import Source, StudyConfig
from rightloss.study.results import Cell, StudyResults, cells, matched, read_study
from rightloss.study.summary import CellPair, CellSummary, Summary, summarise
from rightloss.study.summary.comparisons import compare
from rightloss.study.summary.contract import CONSTANT, COSTS
from rightloss.study.summary.resampling import areas_of, mean_area, resamples_of, weighted_auc
from rightloss.study.summary.summarise import BINARY_FIGURES

CONFIG = StudyConfig("quick", populations=(0.3, 0.001), folds=3, num_folds=5, seeds=2)


def results_of(out: Path, config: StudyConfig, nodules: int = 160, skip: int = 0) -> StudyResults:
    fake_study(out, config, nodules, skip)
    return read_study(out)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> StudyResults:
    return results_of(tmp_path_factory.mktemp("study"), CONFIG)


@pytest.fixture(scope="module")
def few(results: StudyResults) -> StudyResults:
    """Two losses at one prevalence."""
    runs = [run for run in results.runs if run.config.population == 0.3 and run.config.loss in ("information-gain", "weighted")]
    config = dataclasses.replace(results.config, populations=(0.3,), losses=("information-gain", "weighted"))
    return dataclasses.replace(results, config=config, runs=tuple(runs))


@pytest.fixture(scope="module")
def summary(results: StudyResults) -> Summary:
    return summarise(results)


def row_of(summary: Summary, loss: str, population: float | None) -> CellSummary:
    return next(row for row in summary.rows if (row.key.loss, row.key.population) == (loss, population))


def cell_of(results: StudyResults, loss: str, population: float) -> Cell:
    return next(cell for cell in cells(results) if (cell.key.loss, cell.key.population) == (loss, population))


def comparison_of(summary: Summary, theirs: str, population: float, about: str = "loss") -> CellPair:
    return next(
        each
        for each in summary.comparisons
        if (each.about, each.theirs.loss, each.ours.population) == (about, theirs, population)
    )


def test_every_auc_is_that_of_sklearn_with_ties_and_weights() -> None:
    generator = np.random.default_rng(SEED)
    score = generator.integers(0, 6, 40).astype(np.float64)
    positive = generator.random(40) < 0.4
    positive[:2] = True, False
    weights = generator.integers(0, 4, (20, 40)).astype(np.float64)
    weights[:, :2] = 1
    expected = [roc_auc_score(positive, score, sample_weight=each) for each in weights]
    np.testing.assert_allclose(weighted_auc(score, positive, weights), expected, rtol=1e-12)


def test_an_auc_is_undefined_where_a_class_weighs_nothing() -> None:
    positive = np.array([True, False, False])
    weights = np.array([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
    found = weighted_auc(np.array([2.0, 1.0, 3.0]), positive, weights)
    np.testing.assert_array_equal(found, [np.nan, np.nan, 1.0])


@pytest.mark.long
def test_the_auc_is_the_mean_over_folds_and_seeds_and_not_pooled(results: StudyResults, summary: Summary) -> None:
    cell = cell_of(results, "weighted", 0.3)
    score = cell.log_probs[:, 1] - cell.log_probs[:, 0]
    runs = [(cell.fold == fold) & (cell.seed == seed) for fold in range(3) for seed in range(2)]
    expected = np.mean([roc_auc_score(cell.labels[run], score[run]) for run in runs])
    found = row_of(summary, "weighted", 0.3).figures["auc"]
    assert found.value == pytest.approx(expected, rel=1e-8)
    assert abs(found.value - roc_auc_score(cell.labels, score)) > 1e-4
    assert found.low < found.value < found.high


def test_other_figures_are_those_of_evaluate_by_patient(results: StudyResults, summary: Summary) -> None:
    cell = cell_of(results, "published", 0.001)
    expected = evaluate(cell.log_probs, cell.labels, 0.001, groups=cell.patients)
    found = row_of(summary, "published", 0.001).figures
    for name in BINARY_FIGURES:
        for end in ("value", "low", "high"):
            assert getattr(found[name], end) == pytest.approx(getattr(expected[name], end), rel=1e-8, nan_ok=True)


def test_always_answering_the_prevalence_is_its_closed_form(results: StudyResults, summary: Summary) -> None:
    tested = np.unique(np.concatenate([cell.rows for cell in cells(results)]))
    labels = next(iter(results.data.values())).labels[tested]
    for rate in (0.3, 0.001):
        found = row_of(summary, CONSTANT, rate).figures
        blind = rate * math.log(rate) + (1 - rate) * math.log1p(-rate)
        assert found["expected_log_likelihood"].value == pytest.approx(blind, rel=1e-8)
        assert found["brier"].value == pytest.approx(rate * (1 - rate), rel=1e-8)
        assert found["accuracy"].value == pytest.approx(np.mean(labels == 0))
        values = {name: found[name].value for name in ("skill", "auc", "tpr", "tnr", "calibration_error")}
        assert values == {"skill": 0.0, "auc": 0.5, "tpr": 0.0, "tnr": 1.0, "calibration_error": 0.0}
        assert math.isnan(found["ppv"].value)
        assert found["ppv"].reason


def test_there_is_a_row_for_each_cell_and_one_for_the_prevalence_with_counts(summary: Summary) -> None:
    losses = [row.key.loss for row in summary.rows]
    assert losses == [CONSTANT, *CONFIG.losses] * 2
    assert {(row.folds, row.seeds) for row in summary.rows} == {(3, 2)}
    assert {row.nodules for row in summary.rows} == {96}
    assert {row.patients for row in summary.rows} == {48}


def test_a_difference_is_that_of_the_rows(summary: Summary) -> None:
    for comparison in summary.comparisons:
        ours, theirs = (row_of(summary, key.loss, key.population) for key in (comparison.ours, comparison.theirs))
        for name, difference in comparison.differences.items():
            expected = ours.figures[name].value - theirs.figures[name].value
            assert difference.figure.value == pytest.approx(expected, abs=1e-8)
            assert difference.figure.low <= difference.figure.value <= difference.figure.high
            assert difference.folds == 3 >= difference.ahead + difference.behind


def test_the_default_is_compared_with_every_rival_and_the_published_form_with_the_weighted_loss(summary: Summary) -> None:
    pairs = [(each.about, each.ours.loss, each.theirs.loss, each.ours.population) for each in summary.comparisons]
    rivals = [("loss", "information-gain", loss) for loss in CONFIG.losses[1:]]
    expected = [*rivals, ("published", "published", "weighted")]
    falls = [("population", loss, loss, 0.001) for loss in CONFIG.losses]
    assert sorted(pairs) == sorted([*falls, *((*each, rate) for each in expected for rate in (0.3, 0.001))])


def test_between_populations_auc_alone_is_compared(results: StudyResults, summary: Summary) -> None:
    falls = [each for each in summary.comparisons if each.about == "population"]
    assert {(each.ours.population, each.theirs.population) for each in falls} == {(0.001, 0.3)}
    for each in falls:
        areas = []
        for cell in (cell_of(results, each.ours.loss, rate) for rate in (0.001, 0.3)):
            runs = set(zip(cell.fold.tolist(), cell.seed.tolist(), strict=True))
            folds = [(cell.fold == fold) & (cell.seed == seed) for fold, seed in runs]
            areas.append(
                np.mean([plain_auc(cell.log_probs[part, 1] - cell.log_probs[part, 0], cell.labels[part]) for part in folds])
            )
        assert each.differences.keys() == {"auc"}
        assert each.differences["auc"].figure.value == pytest.approx(areas[0] - areas[1], abs=1e-8)


def test_folds_ahead_and_behind_are_counted(results: StudyResults, summary: Summary) -> None:
    ours, theirs = (cell_of(results, loss, 0.001) for loss in ("information-gain", "weighted"))
    gains = []
    for fold in range(3):
        own = ours.fold == fold
        both = [evaluate(cell.log_probs[own], cell.labels[own], 0.001, intervals=None) for cell in (ours, theirs)]
        gains.append(both[0].expected_log_likelihood.value - both[1].expected_log_likelihood.value)
    found = comparison_of(summary, "weighted", 0.001).differences["expected_log_likelihood"]
    assert (found.ahead, found.behind) == (sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains))


def plain_auc(score: np.ndarray, labels: np.ndarray) -> float:
    gaps = score[labels == 1][:, None] - score[labels == 0]
    return float(np.mean(gaps > 0) + np.mean(gaps == 0) / 2)


@pytest.mark.long
@pytest.mark.parametrize("figure", ["expected_log_likelihood", "auc"])
def test_a_difference_is_as_uncertain_as_a_plain_bootstrap_of_patients_makes_it(
    results: StudyResults, summary: Summary, figure: str
) -> None:
    ours, theirs = (cell_of(results, loss, 0.3) for loss in ("information-gain", "weighted"))
    generator = np.random.default_rng(SEED)
    gain = np.take_along_axis(ours.log_probs - theirs.log_probs, ours.labels[:, None], 1)[:, 0]
    odds = [cell.log_probs[:, 1] - cell.log_probs[:, 0] for cell in (ours, theirs)]
    malignant = np.array([ours.labels[ours.patients == name].any() for name in ours.patients])
    strata = [np.unique(ours.patients[(ours.fold == fold) & (malignant == kind)]) for fold in range(3) for kind in (0, 1)]
    draws = []
    for _ in range(400):
        drawn = np.concatenate([generator.choice(stratum, len(stratum) - 1) for stratum in strata])
        rows = np.concatenate([np.flatnonzero(ours.patients == name) for name in drawn])
        if figure == "auc":
            runs = [rows[(ours.fold[rows] == fold) & (ours.seed[rows] == seed)] for fold in range(3) for seed in range(2)]
            areas = [[plain_auc(each[run], ours.labels[run]) for run in runs] for each in odds]
            draws.append(np.mean(areas[0]) - np.mean(areas[1]))
        else:
            draws.append(np.dot([0.7, 0.3], [gain[rows][ours.labels[rows] == label].mean() for label in (0, 1)]))
    low, high = np.quantile(draws, [0.025, 0.975])
    found = comparison_of(summary, "weighted", 0.3).differences[figure].figure
    assert found.high - found.low == pytest.approx(high - low, rel=0.25)
    assert found.low == pytest.approx(low, abs=0.25 * (high - low))


def test_patients_of_each_fold_and_kind_weigh_the_same_in_every_resample(results: StudyResults) -> None:
    cell = cell_of(results, "weighted", 0.3)
    found = resamples_of([cell])
    assert len(found.counts) >= 1000
    malignant = np.zeros(found.size, dtype=bool)
    malignant[found.patient[cell.rows[cell.labels == 1]]] = True
    for fold in range(3):
        for kind in (True, False):
            some = (found.fold == fold) & (malignant == kind)
            np.testing.assert_allclose(found.counts[:, some].sum(1), some.sum())
    assert found.counts.var(0).min() > 0


@pytest.mark.parametrize("ill", [2, 3, 9])
def test_a_mean_over_few_patients_spreads_as_its_standard_error_says(results: StudyResults, ill: int) -> None:
    found = resamples_of([with_ill_patients(results, ill)], draws=20_000)
    value = np.random.default_rng(SEED).standard_normal(found.size)
    for stratum in np.unique(found.strata):
        own = found.strata == stratum
        spread = (found.counts[:, own] @ value[own] / own.sum()).std()
        assert spread == pytest.approx(value[own].std(ddof=1) / math.sqrt(own.sum()), rel=0.05)


def test_patients_who_are_alone_in_their_fold_are_drawn_together(results: StudyResults) -> None:
    cell = with_ill_patients(results, 1)
    found = resamples_of([cell])
    ill = np.unique(found.patient[cell.rows[cell.labels == 1]])
    assert len(set(found.fold[ill])) == len(ill) == 3
    assert len(set(found.strata[ill])) == 1
    assert found.counts[:, ill].std(0).min() > 0.5


def with_ill_patients(results: StudyResults, count: int) -> Cell:
    """So many in each fold."""
    cell = cell_of(results, "weighted", 0.3)
    labels = np.zeros_like(cell.data.labels)
    for fold in range(3):
        ill = np.unique(cell.patients[cell.fold == fold])[:count]
        labels[np.isin(cell.data.patients, ill)] = 1
    return dataclasses.replace(cell, data=dataclasses.replace(cell.data, labels=labels))


def test_the_draws_of_a_fold_do_not_depend_on_the_other_folds(results: StudyResults) -> None:
    whole = cell_of(results, "weighted", 0.3)
    keep = whole.fold != 1
    fields = {name: getattr(whole, name)[keep] for name in ("rows", "log_probs", "fold", "seed")}
    first, second = resamples_of([whole]), resamples_of([dataclasses.replace(whole, **fields)])
    np.testing.assert_array_equal(first.counts[:, first.fold == 2], second.counts[:, second.fold == 2])


def test_swapped_sides_mirror_the_interval(results: StudyResults) -> None:
    ours, theirs = (cell_of(results, loss, 0.001) for loss in ("information-gain", "weighted"))
    resamples = resamples_of([ours, theirs])
    areas = (areas_of(ours, resamples), areas_of(theirs, resamples))
    there, back = compare("loss", ours, theirs, areas, resamples), compare("loss", theirs, ours, areas[::-1], resamples)
    assert there is not None
    assert back is not None
    for name, one in there.differences.items():
        other = back.differences[name]
        assert (one.ahead, one.behind) == (other.behind, other.ahead)
        assert one.figure.value == -other.figure.value
        assert one.figure.low == pytest.approx(-other.figure.high, rel=1e-6)


@pytest.mark.long
def test_the_spread_of_an_auc_is_delongs(tmp_path: Path) -> None:
    results = results_of(
        tmp_path, dataclasses.replace(CONFIG, losses=("weighted",), populations=(0.3,), folds=1, seeds=1), 1000
    )
    cell = cells(results)[0]
    resamples = resamples_of([cell])
    spread = mean_area(areas_of(cell, resamples), resamples).draws.std()
    auc = evaluate(cell.log_probs, cell.labels, 0.3, groups=cell.patients, intervals="analytic").auc
    on_log_odds = (math.log(auc.high / (1 - auc.high)) - math.log(auc.low / (1 - auc.low))) / (2 * 1.96)
    assert spread == pytest.approx(on_log_odds * auc.value * (1 - auc.value), rel=0.12)


@pytest.mark.long
def test_stacked_seeds_do_not_make_intervals_shorter_than_patients_allow(tmp_path: Path) -> None:
    """Seeds that predict alike tell no more than one of them."""
    config = dataclasses.replace(CONFIG, losses=("plain", "information-gain"), populations=(0.3,), seeds=1)
    once = results_of(tmp_path, config)
    runs = [dataclasses.replace(run, config=dataclasses.replace(run.config, seed=seed)) for seed in (0, 1) for run in once.runs]
    twice = dataclasses.replace(once, config=dataclasses.replace(config, seeds=2), runs=tuple(runs))
    for first, second in zip(summarise(once).rows, summarise(twice).rows, strict=True):
        for name in ("expected_log_likelihood", "auc", "tpr"):
            assert second.figures[name].low == pytest.approx(first.figures[name].low, rel=1e-8, nan_ok=True)
            assert second.figures[name].high == pytest.approx(first.figures[name].high, rel=1e-8, nan_ok=True)


@pytest.mark.long
def test_loss_against_itself_is_undecided_and_a_clear_lead_is_ahead(results: StudyResults, summary: Summary) -> None:
    found = comparison_of(summary, "published", 0.001).differences["expected_log_likelihood"]
    assert found.standing == "ahead"
    flipped = dataclasses.replace(
        found, figure=dataclasses.replace(found.figure, low=-found.figure.high, high=-found.figure.low)
    )
    assert flipped.standing == "behind"
    alike = [
        dataclasses.replace(
            run,
            log_probs=next(
                r for r in results.runs if r.config == dataclasses.replace(run.config, loss="weighted", evidence=0.0)
            ).log_probs,
        )
        for run in results.runs
    ]
    differences = [
        each
        for comparison in summarise(dataclasses.replace(results, runs=tuple(alike))).comparisons
        for name, each in comparison.differences.items()
        if comparison.about != "population" and not name.startswith(("tpr", "tnr"))
    ]
    assert {each.standing for each in differences} == {"undecided"}
    assert {(each.figure.low, each.figure.value, each.figure.high) for each in differences} == {(0.0, 0.0, 0.0)}
    assert {(each.ahead, each.behind) for each in differences} == {(0, 0)}


@pytest.mark.long
def test_an_incomplete_study_compares_the_runs_that_both_have(few: StudyResults) -> None:
    lacking = [run for run in few.runs if run.config.loss != "weighted" or run.config.fold != 2]
    part = summarise(dataclasses.replace(few, runs=tuple(lacking)))
    both = [run for run in few.runs if run.config.fold != 2]
    expected = summarise(dataclasses.replace(few, runs=tuple(both)))
    assert part.missing == 2
    for name in ("expected_log_likelihood", "auc"):
        found, wanted = (comparison_of(each, "weighted", 0.3).differences[name] for each in (part, expected))
        assert found.folds == 2
        assert found.figure.value == pytest.approx(wanted.figure.value, rel=1e-8)
        assert found.figure.low == pytest.approx(wanted.figure.low, abs=0.1 * (wanted.figure.high - wanted.figure.low))


def test_no_run_at_all_is_no_error(tmp_path: Path) -> None:
    found = summarise(results_of(tmp_path, CONFIG, skip=len(CONFIG.runs())))
    assert (found.rows, found.comparisons, found.missing) == ((), (), len(CONFIG.runs()))


@pytest.mark.long
def test_a_fold_with_one_class_is_left_out_of_the_auc_with_a_reason(few: StudyResults) -> None:
    name, data = next(iter(few.data.items()))
    labels = data.labels.copy()
    labels[few.runs[0].rows] = 0
    changed = dataclasses.replace(few, data={name: dataclasses.replace(data, labels=labels)})
    found = row_of(summarise(changed), "weighted", 0.3).figures["auc"]
    assert "2 of 6 tests have one class alone" in found.reason
    assert 0.5 < found.low < found.high < 1


@pytest.mark.long
def test_a_class_that_was_never_tested_leaves_figures_undefined_with_a_reason(results: StudyResults) -> None:
    name, data = next(iter(results.data.items()))
    blank = dataclasses.replace(data, labels=np.zeros_like(data.labels))
    found = summarise(dataclasses.replace(results, data={name: blank}))
    for row in found.rows:
        for figure in ("expected_log_likelihood", "auc", "tpr"):
            assert row.key.loss == CONSTANT or (math.isnan(row.figures[figure].value) and row.figures[figure].reason)
    for name in ("expected_log_likelihood", "auc", "tpr"):
        assert all(pair.differences[name].standing == "undecided" for pair in found.comparisons if name in pair.differences)
    assert {check.verdict for check in found.checks} == {"undecided"}


@pytest.mark.long
def test_a_probability_of_zero_for_what_happened_is_minus_infinity_and_undecided(few: StudyResults, tmp_path: Path) -> None:
    runs = list(few.runs)
    number = next(at for at, run in enumerate(runs) if run.config.loss == "weighted" and run.config.population == 0.3)
    label = next(iter(few.data.values())).labels[runs[number].rows[0]]
    log_probs = runs[number].log_probs.copy()
    log_probs[0, label], log_probs[0, 1 - label] = -np.inf, 0.0
    runs[number] = dataclasses.replace(runs[number], log_probs=log_probs)
    found = summarise(dataclasses.replace(few, runs=tuple(runs)))
    assert row_of(found, "weighted", 0.3).figures["expected_log_likelihood"].value == -math.inf
    difference = comparison_of(found, "weighted", 0.3).differences["expected_log_likelihood"]
    assert difference.standing == "undecided"
    assert "probability of 0" in difference.figure.reason
    (tmp_path / "summary.json").write_text(found.to_json(), encoding="utf-8")
    assert Summary.read(tmp_path / "summary.json").to_json() == found.to_json()


@pytest.mark.long
def test_a_probability_of_zero_for_what_did_not_happen_is_fine(few: StudyResults) -> None:
    runs = [dataclasses.replace(run, log_probs=run.log_probs.copy()) for run in few.runs]
    labels = next(iter(few.data.values())).labels
    for run in runs:
        run.log_probs[0, labels[run.rows[0]]], run.log_probs[0, 1 - labels[run.rows[0]]] = 0.0, -np.inf
    found = summarise(dataclasses.replace(few, runs=tuple(runs)))
    for each in (each for pair in found.comparisons for each in pair.differences.values()):
        assert each.figure.low <= each.figure.value <= each.figure.high


@pytest.mark.long
def test_two_data_sets_are_resampled_each_by_its_own_patients(tmp_path: Path) -> None:
    config = dataclasses.replace(
        CONFIG, sources=(Source("contours"), Source("slices", "abc")), populations=(0.3,), losses=("weighted",)
    )
    both = summarise(results_of(tmp_path / "both", config))
    single = summarise(results_of(tmp_path / "one", dataclasses.replace(config, sources=config.sources[:1])))
    # As text, since NaN is not equal to itself.
    assert str([row for row in both.rows if row.key.data == "contours"]) == str(list(single.rows))
    assert len(both.rows) == 2 * len(single.rows)


@pytest.mark.long
def test_nets_and_inferences_are_compared_with_what_they_add_to(tmp_path: Path) -> None:
    config = dataclasses.replace(
        CONFIG,
        task="balanced",
        nets=("convnet", "metadata", "both"),
        losses=("information-gain",),
        inferences=("map", "ensemble"),
    )
    pairs = [
        (each.about, each.ours.net, each.theirs.net, each.ours.inference, each.theirs.inference)
        for each in summarise(results_of(tmp_path, config, 80)).comparisons
        if each.ours.population == 0.3
    ]
    nets = [("net", "both", net, how, how) for net in ("convnet", "metadata") for how in ("map", "ensemble")]
    inferences = [("inference", net, net, "ensemble", "map") for net in config.nets]
    assert sorted(pairs) == sorted([*nets, *inferences])


@pytest.mark.long
def test_losses_are_compared_from_the_same_start_and_starts_within_a_loss(tmp_path: Path) -> None:
    losses = ("information-gain", "published", "published-network", "weighted")
    config = dataclasses.replace(CONFIG, losses=losses, starts=("population", "equal"), populations=(0.001,), seeds=1)
    found = summarise(results_of(tmp_path, config, 80)).comparisons
    between = [each for each in found if each.about == "start"]
    assert [(each.ours.loss, each.ours.start, each.theirs.loss, each.theirs.start) for each in between] == [
        (loss, "equal", loss, "population") for loss in losses
    ]
    assert all(each.ours.start == each.theirs.start for each in found if each.about != "start")
    pairs = [(each.about, each.ours.loss, each.theirs.loss) for each in found if each.ours.start == "equal"]
    rivals = [("loss", losses[0], loss) for loss in losses[1:]]
    assert [pair for pair in pairs if pair[0] != "start"] == [
        *rivals,
        *(("published", loss, "weighted") for loss in losses[1:3]),
    ]


# Decisions by cost, and predictions matched to π.


@pytest.mark.parametrize("cost", COSTS)
def test_figures_by_cost_are_those_of_acting_from_its_threshold_on(results: StudyResults, summary: Summary, cost: int) -> None:
    cell = cell_of(results, "published", 0.001)
    expected = evaluate(cell.log_probs, cell.labels, 0.001, threshold=1 / (1 + cost), groups=cell.patients)
    figures = row_of(summary, "published", 0.001).figures
    for name in ("tpr", "tnr", "net_benefit"):
        found = figures[f"{name}_cost_{cost}"]
        assert found.value == pytest.approx(expected[name].value, rel=1e-8)
        assert found.low <= found.value <= found.high
        if name != "tpr":  # near 1, where methods differ
            assert found.high - found.low == pytest.approx(expected[name].high - expected[name].low, rel=0.35)


@pytest.mark.parametrize("cost", COSTS)
def test_always_answering_the_prevalence_acts_on_all_or_nobody(summary: Summary, cost: int) -> None:
    for rate in (0.3, 0.001):
        found = row_of(summary, CONSTANT, rate).figures
        acts = rate * cost > 1 - rate
        assert (found[f"tpr_cost_{cost}"].value, found[f"tnr_cost_{cost}"].value) == (acts, 1 - acts)
        assert found[f"net_benefit_cost_{cost}"].value == pytest.approx(acts * (rate - (1 - rate) / cost))


def test_a_sensitivity_that_never_differs_is_as_uncertain_as_patients_are_few(results: StudyResults) -> None:
    ours = cell_of(results, "weighted", 0.001)
    timid = dataclasses.replace(ours, log_probs=np.tile(np.log([0.999, 0.001]), (len(ours.rows), 1)))
    resamples = resamples_of([ours])
    found = compare("loss", timid, timid, None, resamples)
    assert found is not None
    ill = len(np.unique(ours.patients[ours.labels == 1]))
    limit = 1.959964**2 / (ill + 1.959964**2)
    tpr = found.differences["tpr"].figure
    assert (tpr.low, tpr.value, tpr.high) == pytest.approx((-limit, 0.0, limit), rel=1e-5)


def off(results: StudyResults, shift: float) -> StudyResults:
    """Every run's log-odds moved by a constant, with the offsets that move them back."""
    moved = []
    for run in results.runs:
        odds = run.log_probs[:, 1] - run.log_probs[:, 0] + shift
        moved.append(dataclasses.replace(run, log_probs=-np.logaddexp(0, np.stack([odds, -odds], 1)), matched=(shift, 0.0)))
    return dataclasses.replace(results, runs=tuple(moved))


def test_matching_undoes_any_shift_of_the_intercept(few: StudyResults) -> None:
    moved = matched(off(few, 3.0))
    for run, expected in zip(moved.runs, few.runs, strict=True):
        np.testing.assert_allclose(run.log_probs, expected.log_probs, atol=1e-9)


def test_runs_without_finite_offsets_are_left_out_of_what_is_matched(few: StudyResults) -> None:
    first, second, *others = off(few, 0.0).runs
    runs = (dataclasses.replace(first, matched=(math.nan, 0.0)), dataclasses.replace(second, matched=()), *others)
    assert [run.config for run in matched(dataclasses.replace(few, runs=runs)).runs] == [run.config for run in others]


@pytest.mark.long
def test_matched_rows_and_comparisons_are_those_of_the_moved_predictions(few: StudyResults, tmp_path: Path) -> None:
    found = summarise(off(few, 3.0))
    expected = summarise(few)
    assert (expected.matched_rows, expected.matched_comparisons) == ((), ())
    for row in found.matched_rows:
        plain = row_of(expected, row.key.loss, row.key.population)
        assert {"expected_log_likelihood", "skill", "auc", "tpr", "tnr", "mean_prediction"} <= row.figures.keys()
        for name, figure in row.figures.items():
            assert figure.value == pytest.approx(plain.figures[name].value, rel=1e-7)
    assert [each.about for each in found.matched_comparisons] == [each.about for each in expected.comparisons]
    for each, same in zip(found.matched_comparisons, expected.comparisons, strict=True):
        for name, difference in each.differences.items():
            assert difference.figure.low == pytest.approx(same.differences[name].figure.low, rel=1e-6, abs=1e-9)
    path = tmp_path / "summary.json"
    path.write_text(found.to_json(), encoding="utf-8")
    assert Summary.read(path).to_json() == found.to_json()
    older = {name: each for name, each in json.loads(found.to_json()).items() if not name.startswith("matched")}
    path.write_text(json.dumps(older), encoding="utf-8")
    assert Summary.read(path).matched_rows == ()


@pytest.mark.long
def test_calibration_over_prevalences_is_compared_on_the_same_patients(tmp_path: Path) -> None:
    rates = (0.3, 0.03, 0.001)
    config = dataclasses.replace(CONFIG, losses=("published", "weighted"), populations=rates, seeds=1)
    results = results_of(tmp_path, config, 120)
    found = [each for each in summarise(results).comparisons if "log_mean_off" in each.differences]
    assert [(each.about, each.ours.loss, each.ours.population) for each in found] == [("published", "published", 0.001)]
    gaps = []
    for loss in ("published", "weighted"):
        means = [
            evaluate(cell.log_probs, cell.labels, cell.population[1], intervals=None).mean_prediction.value
            for cell in cells(results)
            if cell.key.loss == loss
        ]
        gaps.append(np.mean(np.abs(np.log(np.array(means) / rates))))
    figure = found[0].differences["log_mean_off"].figure
    assert figure.value == pytest.approx(gaps[0] - gaps[1], rel=1e-6)
    assert figure.low < figure.value < figure.high
