"""Figures of a study's cells, their intervals and paired differences, against sklearn, closed forms and plain loops."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from members import SEED
from sklearn.metrics import balanced_accuracy_score, confusion_matrix, recall_score, roc_auc_score
from study_results import fake_data, fake_result, fake_study

from rightloss.metrics import evaluate
from rightloss.study.config import Source, StudyConfig
from rightloss.study.results import Cell, StudyResults, cells, matched, read_study
from rightloss.study.summary import CellPair, CellSummary, Summary, summarise
from rightloss.study.summary.comparisons import RULE_FIGURES, compare, paired_figures, pairs
from rightloss.study.summary.contract import CONSTANT, COSTS
from rightloss.study.summary.resampling import areas_of, resamples_of, weighted_auc
from rightloss.study.summary.summarise import BINARY_FIGURES

CONFIG = StudyConfig("quick", populations=(0.3, 0.001), folds=3, num_folds=5, seeds=2)
Z = 1.959964


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
    config = replace(results.config, populations=(0.3,), losses=("information-gain", "weighted"))
    return replace(results, config=config, runs=tuple(runs))


@pytest.fixture(scope="module")
def summary(results: StudyResults) -> Summary:
    return summarise(results)


def row_of(summary: Summary, loss: str, population: float | None) -> CellSummary:
    return next(row for row in summary.rows if (row.key.loss, row.key.population) == (loss, population))


def cell_of(results: StudyResults, loss: str, population: float) -> Cell:
    return next(cell for cell in cells(results) if (cell.key.loss, cell.key.population) == (loss, population))


def comparison_of(summary: Summary, theirs: str, population: float) -> CellPair:
    return next(
        each
        for each in summary.comparisons
        if (each.about, each.theirs.loss, each.ours.population) == ("loss", theirs, population)
    )


def plain_auc(score: np.ndarray, labels: np.ndarray) -> float:
    gaps = score[labels == 1][:, None] - score[labels == 0]
    return float(np.mean(gaps > 0) + np.mean(gaps == 0) / 2)


# Figures.


def test_every_auc_is_that_of_sklearn_with_ties_and_weights_and_undefined_where_a_class_weighs_nothing() -> None:
    generator = np.random.default_rng(SEED)
    score = generator.integers(0, 6, 40).astype(np.float64)
    positive = generator.random(40) < 0.4
    positive[:2] = True, False
    weights = generator.integers(0, 4, (20, 40)).astype(np.float64)
    weights[:, :2] = 1
    expected = [roc_auc_score(positive, score, sample_weight=each) for each in weights]
    np.testing.assert_allclose(weighted_auc(score, positive, weights), expected, rtol=1e-12)
    nothing = np.array([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
    found = weighted_auc(np.array([2.0, 1.0, 3.0]), np.array([True, False, False]), nothing)
    np.testing.assert_array_equal(found, [np.nan, np.nan, 1.0])


@pytest.mark.long
def test_the_auc_is_the_mean_over_runs_and_other_figures_those_of_evaluate(results: StudyResults, summary: Summary) -> None:
    cell = cell_of(results, "weighted", 0.3)
    score = cell.log_probs[:, 1] - cell.log_probs[:, 0]
    runs = [(cell.fold == fold) & (cell.seed == seed) for fold in range(3) for seed in range(2)]
    expected = np.mean([roc_auc_score(cell.labels[run], score[run]) for run in runs])
    found = row_of(summary, "weighted", 0.3).figures["auc"]
    assert found.value == pytest.approx(expected, rel=1e-8)
    assert abs(found.value - roc_auc_score(cell.labels, score)) > 1e-4, "not pooled"
    assert found.low < found.value < found.high
    cell, figures = cell_of(results, "published", 0.001), row_of(summary, "published", 0.001).figures
    whole = evaluate(cell.log_probs, cell.labels, 0.001, groups=cell.patients)
    for name in BINARY_FIGURES:
        for end in ("value", "low", "high"):
            assert getattr(figures[name], end) == pytest.approx(getattr(whole[name], end), rel=1e-8, nan_ok=True)
    for cost in COSTS:
        by_cost = evaluate(cell.log_probs, cell.labels, 0.001, threshold=1 / (1 + cost), groups=cell.patients)
        for name in ("tpr", "tnr", "net_benefit"):
            figure = figures[f"{name}_cost_{cost}"]
            assert figure.value == pytest.approx(by_cost[name].value, rel=1e-8)
            assert figure.low <= figure.value <= figure.high
            if name != "tpr":  # near 1, where methods differ
                assert figure.high - figure.low == pytest.approx(by_cost[name].high - by_cost[name].low, rel=0.35)


def test_each_cell_has_a_row_and_always_answering_the_prevalence_one(results: StudyResults, summary: Summary) -> None:
    assert [row.key.loss for row in summary.rows] == [CONSTANT, *CONFIG.losses] * 2
    assert {(row.folds, row.seeds, row.nodules, row.patients) for row in summary.rows} == {(3, 2, 96, 48)}
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
        for cost in COSTS:
            acts = rate * cost > 1 - rate
            assert (found[f"tpr_cost_{cost}"].value, found[f"tnr_cost_{cost}"].value) == (acts, 1 - acts)
            assert found[f"net_benefit_cost_{cost}"].value == pytest.approx(acts * (rate - (1 - rate) / cost))


# Comparisons.


def test_a_difference_is_that_of_the_rows_with_folds_ahead_and_behind(results: StudyResults, summary: Summary) -> None:
    for comparison in summary.comparisons:
        ours, theirs = (row_of(summary, key.loss, key.population) for key in (comparison.ours, comparison.theirs))
        assert (comparison.differences.keys() == {"auc"}) == (comparison.about == "population")
        for name, difference in comparison.differences.items():
            expected = ours.figures[name].value - theirs.figures[name].value
            assert difference.figure.value == pytest.approx(expected, abs=1e-8)
            assert difference.figure.low <= difference.figure.value <= difference.figure.high
            assert difference.folds == 3 >= difference.ahead + difference.behind
    mine, yours = (cell_of(results, loss, 0.001) for loss in ("information-gain", "weighted"))
    gains = []
    for fold in range(3):
        own = mine.fold == fold
        both = [evaluate(cell.log_probs[own], cell.labels[own], 0.001, intervals=None) for cell in (mine, yours)]
        gains.append(both[0].expected_log_likelihood.value - both[1].expected_log_likelihood.value)
    means = [paired_figures(cell)["expected_log_likelihood"].in_folds(cell.fold) for cell in (mine, yours)]
    assert [means[0][fold] - means[1][fold] for fold in range(3)] == pytest.approx(gains)
    found = comparison_of(summary, "weighted", 0.001).differences["expected_log_likelihood"]
    assert (found.ahead, found.behind) == (sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains))
    against = comparison_of(summary, "published", 0.001).differences["expected_log_likelihood"]
    assert against.standing == "ahead"
    turned = replace(against.figure, low=-against.figure.high, high=-against.figure.low)
    assert replace(against, figure=turned).standing == "behind"


def pairs_of(config: StudyConfig) -> list[tuple[str, ...]]:
    """What is compared: about what, and the fields in which the two differ, with their values."""
    keys = [cell.key for cell in _cells_of(config)]
    found = []
    for about, ours, theirs in pairs(keys, config):
        differing = [name for name in ours._fields if getattr(ours, name) != getattr(theirs, name)]
        sides = (" ".join(str(getattr(key, name)) for name in differing) for key in (ours, theirs))
        found.append((about, *sides))
    return found


def _cells_of(config: StudyConfig) -> list[Cell]:
    data = {source.name: fake_data(source.name, config.task, 60) for source in config.sources}
    return cells(StudyResults(config, data, tuple(fake_result(run, 60) for run in config.runs())))


def test_what_is_compared_differs_in_one_respect() -> None:
    losses = ("information-gain", "published", "published-network", "weighted", "plain")
    two = replace(CONFIG, losses=losses, folds=1, seeds=1)
    by_loss = [
        *(("loss", "information-gain", loss) for loss in losses[1:]),
        *(("published", loss, "weighted") for loss in losses[1:3]),
        ("plain", "weighted", "plain"),
    ]
    falls = [("population", "0.001", "0.3")] * len(losses)
    assert sorted(pairs_of(two)) == sorted([*by_loss, *by_loss, *falls])
    starts = replace(two, starts=("population", "equal"), populations=(0.001,))
    assert sorted(pairs_of(starts)) == sorted([*by_loss, *by_loss, *[("start", "equal", "population")] * len(losses)])
    nets = replace(
        two,
        task="balanced",
        nets=("convnet", "metadata", "both"),
        losses=losses[:1],
        inferences=("map", "ensemble"),
        populations=(0.3,),
    )
    assert sorted(pairs_of(nets)) == sorted(
        [("inference", "ensemble", "map")] * 3 + [("net", "both", net) for net in ("convnet", "metadata")] * 2
    )
    labels = replace(two, losses=("logit-adjusted", "logit-adjusted-labelled"), unlabelled=0.5, populations=(0.001,))
    assert pairs_of(labels) == [("unlabelled", "logit-adjusted", "logit-adjusted-labelled")]


@pytest.mark.long
@pytest.mark.parametrize("figure", ["expected_log_likelihood", "auc"])
def test_a_difference_is_as_uncertain_as_by_a_plain_bootstrap(results: StudyResults, summary: Summary, figure: str) -> None:
    ours, theirs = (cell_of(results, loss, 0.3) for loss in ("information-gain", "weighted"))
    generator = np.random.default_rng(SEED)
    gain = np.take_along_axis(ours.log_probs - theirs.log_probs, ours.labels[:, None], 1)[:, 0]
    odds = [cell.log_probs[:, 1] - cell.log_probs[:, 0] for cell in (ours, theirs)]
    malignant = np.array([ours.labels[ours.patients == name].any() for name in ours.patients])
    strata = [np.unique(ours.patients[(ours.fold == fold) & (malignant == kind)]) for fold in range(3) for kind in (0, 1)]
    rows_of = {name: np.flatnonzero(ours.patients == name) for name in np.unique(ours.patients)}
    draws = []
    for _ in range(400):
        drawn = np.concatenate([generator.choice(stratum, len(stratum) - 1) for stratum in strata])
        rows = np.concatenate([rows_of[name] for name in drawn])
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


def test_swapped_sides_mirror_the_interval_and_a_loss_against_itself_is_undecided(results: StudyResults) -> None:
    ours, theirs = (cell_of(results, loss, 0.001) for loss in ("information-gain", "weighted"))
    resamples = resamples_of([ours, theirs])
    areas = (areas_of(ours, resamples), areas_of(theirs, resamples))
    there, back = compare("loss", ours, theirs, areas, resamples), compare("loss", theirs, ours, areas[::-1], resamples)
    same = compare("loss", ours, ours, (areas[0], areas[0]), resamples)
    assert there is not None
    assert back is not None
    assert same is not None
    for name, one in there.differences.items():
        other, none = back.differences[name], same.differences[name]
        assert (one.ahead, one.behind) == (other.behind, other.ahead)
        assert one.figure.value == -other.figure.value
        assert one.figure.low == pytest.approx(-other.figure.high, rel=1e-6)
        assert (none.figure.value, none.ahead, none.behind, none.standing) == (0, 0, 0, "undecided")
        if not name.startswith(("tpr", "tnr")):
            assert (none.figure.low, none.figure.high) == (0, 0)


def test_a_sensitivity_that_never_differs_is_as_uncertain_as_patients_are_few(results: StudyResults) -> None:
    ours = cell_of(results, "weighted", 0.001)
    timid = replace(ours, log_probs=np.tile(np.log([0.999, 0.001]), (len(ours.rows), 1)))
    found = compare("loss", timid, timid, None, resamples_of([ours]))
    assert found is not None
    ill = len(np.unique(ours.patients[ours.labels == 1]))
    limit = Z**2 / (ill + Z**2)
    tpr = found.differences["tpr"].figure
    assert (tpr.low, tpr.value, tpr.high) == pytest.approx((-limit, 0.0, limit), rel=1e-5)


@pytest.mark.long
def test_calibration_over_prevalences_is_compared_on_the_same_patients(tmp_path: Path) -> None:
    rates = (0.3, 0.03, 0.001)
    config = replace(CONFIG, losses=("published", "weighted"), populations=rates, seeds=1)
    results = results_of(tmp_path, config, 120)
    found = [each for each in summarise(results).comparisons if "log_mean_off" in each.differences]
    assert [(each.about, each.ours.loss, each.ours.population) for each in found] == [("published", "published", 0.001)]
    gaps = []
    for loss in ("published", "weighted"):
        own = [cell_of(results, loss, rate) for rate in rates]
        of = [evaluate(cell.log_probs, cell.labels, cell.population[1], intervals=None).mean_prediction.value for cell in own]
        gaps.append(np.mean(np.abs(np.log(np.array(of) / rates))))
    figure = found[0].differences["log_mean_off"].figure
    assert figure.value == pytest.approx(gaps[0] - gaps[1], rel=1e-6)
    assert figure.low < figure.value < figure.high


# Resampling.


def with_ill_patients(results: StudyResults, count: int) -> Cell:
    """So many in each fold."""
    cell = cell_of(results, "weighted", 0.3)
    labels = np.zeros_like(cell.data.labels)
    for fold in range(3):
        ill = np.unique(cell.patients[cell.fold == fold])[:count]
        labels[np.isin(cell.data.patients, ill)] = 1
    return replace(cell, data=replace(cell.data, labels=labels))


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
    keep = cell.fold != 1
    part = replace(cell, **{name: getattr(cell, name)[keep] for name in ("rows", "log_probs", "fold", "seed")})
    others = resamples_of([part])
    np.testing.assert_array_equal(found.counts[:, found.fold == 2], others.counts[:, others.fold == 2])


@pytest.mark.parametrize("ill", [1, 2, 9])
def test_a_mean_over_few_patients_spreads_as_its_standard_error_says(results: StudyResults, ill: int) -> None:
    cell = with_ill_patients(results, ill)
    found = resamples_of([cell], draws=20_000)
    value = np.random.default_rng(SEED).standard_normal(found.size)
    for stratum in np.unique(found.strata):
        own = found.strata == stratum
        spread = (found.counts[:, own] @ value[own] / own.sum()).std()
        assert spread == pytest.approx(value[own].std(ddof=1) / math.sqrt(own.sum()), rel=0.05)
    patients = np.unique(found.patient[cell.rows[cell.labels == 1]])
    assert len(patients) == 3 * ill
    assert len(set(found.strata[patients])) == (1 if ill == 1 else 3)


@pytest.mark.long
def test_the_spread_of_an_auc_is_delongs(tmp_path: Path) -> None:
    config = replace(CONFIG, losses=("weighted",), populations=(0.3,), folds=1, seeds=1)
    cell = cells(results_of(tmp_path, config, 1000))[0]
    resamples = resamples_of([cell])
    spread = areas_of(cell, resamples)[0, 0].draws.std()
    auc = evaluate(cell.log_probs, cell.labels, 0.3, groups=cell.patients, intervals="analytic").auc
    on_log_odds = (math.log(auc.high / (1 - auc.high)) - math.log(auc.low / (1 - auc.low))) / (2 * 1.96)
    assert spread == pytest.approx(on_log_odds * auc.value * (1 - auc.value), rel=0.12)


@pytest.mark.long
def test_neither_stacked_seeds_nor_another_data_set_change_an_interval(tmp_path: Path) -> None:
    """Seeds that predict alike tell no more than one of them; each data set is resampled by its own patients."""
    config = replace(CONFIG, losses=("plain", "information-gain"), populations=(0.3,), seeds=1)
    once = results_of(tmp_path / "one", config)
    runs = [replace(run, config=replace(run.config, seed=seed)) for seed in (0, 1) for run in once.runs]
    twice = replace(once, config=replace(config, seeds=2), runs=tuple(runs))
    alone = summarise(once).rows
    for first, second in zip(alone, summarise(twice).rows, strict=True):
        for name in ("expected_log_likelihood", "auc", "tpr"):
            assert second.figures[name].low == pytest.approx(first.figures[name].low, rel=1e-8, nan_ok=True)
            assert second.figures[name].high == pytest.approx(first.figures[name].high, rel=1e-8, nan_ok=True)
    two = replace(config, sources=(*config.sources, Source("slices", "abc")))
    both = summarise(results_of(tmp_path / "both", two)).rows
    assert len(both) == 2 * len(alone)
    assert str([row for row in both if row.key.data == "contours"]) == str(list(alone))  # as text, since NaN is not itself


# What is missing, undefined or infinite.


@pytest.mark.long
def test_an_incomplete_study_compares_the_runs_that_both_have(few: StudyResults, tmp_path: Path) -> None:
    lacking = [run for run in few.runs if run.config.loss != "weighted" or run.config.fold != 2]
    part = summarise(replace(few, runs=tuple(lacking)))
    both = [run for run in few.runs if run.config.fold != 2]
    expected = summarise(replace(few, runs=tuple(both)))
    assert part.missing == 2
    for name in ("expected_log_likelihood", "auc"):
        found, wanted = (comparison_of(each, "weighted", 0.3).differences[name] for each in (part, expected))
        assert found.folds == 2
        assert found.figure.value == pytest.approx(wanted.figure.value, rel=1e-8)
        assert found.figure.low == pytest.approx(wanted.figure.low, abs=0.1 * (wanted.figure.high - wanted.figure.low))
    none = summarise(results_of(tmp_path, CONFIG, skip=len(CONFIG.runs())))
    assert (none.rows, none.comparisons, none.missing) == ((), (), len(CONFIG.runs()))


@pytest.mark.long
def test_a_class_that_a_fold_or_no_fold_tested_leaves_figures_undefined_with_a_reason(few: StudyResults) -> None:
    name, data = next(iter(few.data.items()))

    def with_labels(labels: np.ndarray) -> Summary:
        return summarise(replace(few, data={name: replace(data, labels=labels)}))

    labels = data.labels.copy()
    labels[few.runs[0].rows] = 0
    auc = row_of(with_labels(labels), "weighted", 0.3).figures["auc"]
    assert "2 of 6 tests have one class alone" in auc.reason
    assert 0.5 < auc.low < auc.high < 1
    found = with_labels(np.zeros_like(labels))
    for figure in ("expected_log_likelihood", "auc", "tpr"):
        for row in (row for row in found.rows if row.key.loss != CONSTANT):
            assert math.isnan(row.figures[figure].value)
            assert row.figures[figure].reason
        assert all(pair.differences[figure].standing == "undecided" for pair in found.comparisons)
    assert {check.verdict for check in found.checks} == {"undecided"}


@pytest.mark.long
def test_a_probability_of_zero_for_what_happened_is_minus_infinity(few: StudyResults, tmp_path: Path) -> None:
    labels = next(iter(few.data.values())).labels

    def certain(of_what_happened: bool) -> Summary:
        """Of the first nodule of each run of the weighted loss."""
        runs = [replace(run, log_probs=run.log_probs.copy()) for run in few.runs]
        for run in (run for run in runs if run.config.loss == "weighted"):
            label = labels[run.rows[0]]
            lost = label if of_what_happened else 1 - label
            run.log_probs[0, lost], run.log_probs[0, 1 - lost] = -np.inf, 0.0
        return summarise(replace(few, runs=tuple(runs)))

    found = certain(True)
    assert row_of(found, "weighted", 0.3).figures["expected_log_likelihood"].value == -math.inf
    difference = comparison_of(found, "weighted", 0.3).differences["expected_log_likelihood"]
    assert difference.standing == "undecided"
    assert "probability of 0" in difference.figure.reason
    (tmp_path / "summary.json").write_text(found.to_json(), encoding="utf-8")
    assert Summary.read(tmp_path / "summary.json").to_json() == found.to_json()
    for each in (each for pair in certain(False).comparisons for each in pair.differences.values()):
        assert each.figure.low <= each.figure.value <= each.figure.high


# Predictions matched to π.


@pytest.mark.long
def test_matched_rows_and_comparisons_are_those_of_predictions_moved_back(few: StudyResults, tmp_path: Path) -> None:
    moved = []
    for run in few.runs:
        odds = run.log_probs[:, 1] - run.log_probs[:, 0] + 3.0
        moved.append(replace(run, log_probs=-np.logaddexp(0, np.stack([odds, -odds], 1)), matched=(3.0, 0.0)))
    off = replace(few, runs=tuple(moved))
    for run, plain in zip(matched(off).runs, few.runs, strict=True):
        np.testing.assert_allclose(run.log_probs, plain.log_probs, atol=1e-9)
    lost = [replace(moved[0], matched=(math.nan, 0.0)), replace(moved[1], matched=())]
    kept = matched(replace(off, runs=(*lost, *moved[2:]))).runs
    assert [run.config for run in kept] == [run.config for run in moved[2:]], "without finite offsets they are left out"
    found, expected = summarise(off), summarise(few)
    assert (expected.matched_rows, expected.matched_comparisons) == ((), ())
    for row in found.matched_rows:
        same = row_of(expected, row.key.loss, row.key.population)
        assert {"expected_log_likelihood", "skill", "auc", "tpr", "tnr", "mean_prediction"} <= row.figures.keys()
        for name, figure in row.figures.items():
            assert figure.value == pytest.approx(same.figures[name].value, rel=1e-7)
    for each, usual in zip(found.matched_comparisons, expected.comparisons, strict=True):
        for name, difference in each.differences.items():
            assert difference.figure.low == pytest.approx(usual.differences[name].figure.low, rel=1e-6, abs=1e-9)
    path = tmp_path / "summary.json"
    path.write_text(found.to_json(), encoding="utf-8")
    assert Summary.read(path).to_json() == found.to_json()
    older = {name: each for name, each in json.loads(found.to_json()).items() if not name.startswith("matched")}
    path.write_text(json.dumps(older), encoding="utf-8")
    assert Summary.read(path).matched_rows == ()


# Ratings.

RATED = StudyConfig(
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


Rated = tuple[StudyResults, Summary]
CellAndRow = tuple[Cell, CellSummary]


@pytest.fixture(scope="module")
def rated(tmp_path_factory: pytest.TempPathFactory) -> Rated:
    results = results_of(tmp_path_factory.mktemp("ratings"), RATED, 300)
    return results, summarise(results)


@pytest.fixture(scope="module")
def cell_and_row(rated: Rated) -> CellAndRow:
    cell = cells(rated[0])[1]
    return cell, next(row for row in rated[1].rows if row.key == cell.key)


@pytest.mark.long
def test_the_log_likelihood_of_ratings_takes_votes_as_soft_labels(rated: Rated, cell_and_row: CellAndRow) -> None:
    cell, row = cell_and_row
    votes = cell.data.votes[cell.rows].astype(np.float64)
    expected = evaluate(cell.log_probs, votes, cell.population, groups=cell.patients, intervals="analytic")
    found = row.figures["expected_log_likelihood"]
    assert found.value == pytest.approx(expected.expected_log_likelihood.value, rel=1e-8)
    assert row.figures["skill"].value == pytest.approx(expected.skill.value, abs=1e-8)
    wide = expected.expected_log_likelihood.high - expected.expected_log_likelihood.low
    assert found.high - found.low == pytest.approx(wide, rel=0.15)
    blind = float(cell.population @ np.log(cell.population))
    assert row.figures["skill"].low == pytest.approx(1 - found.low / blind, rel=1e-7)
    (constant,) = (row for row in rated[1].rows if row.key.loss == CONSTANT)
    assert constant.figures["expected_log_likelihood"].value == pytest.approx(blind, rel=1e-8)
    assert constant.figures["brier"].value == pytest.approx(1 - cell.population @ cell.population, rel=1e-8)


@pytest.mark.parametrize("rule", RULES)
def test_accuracies_of_ratings_are_those_of_sklearn(cell_and_row: CellAndRow, rule: str) -> None:
    (cell, row), make = cell_and_row, RULES[rule]
    probs = np.exp(cell.log_probs)
    truth, answer = make(cell.data.votes[cell.rows].astype(np.float64)), make(probs)
    # An answer beside the truth is moved onto it, so that sklearn's recalls are those off by one.
    moved = np.where(np.abs(answer - truth) <= 1, truth, answer)
    recalls = recall_score(truth, moved, average=None, labels=range(5))
    # With half of P(3) on each side, which must not matter; nodules rated 3 are left out.
    called = probs[:, 3] + probs[:, 4] + probs[:, 2] / 2 > 0.5 * probs.sum(1)
    table = confusion_matrix(truth[truth != 2] > 2, called[truth != 2])
    (tn, fp), (fn, tp) = table
    expected = {
        "accuracy": np.mean(truth == answer),
        "balanced_accuracy": balanced_accuracy_score(truth, answer),
        **{f"off_by_one_recall_{rating}": recall for rating, recall in enumerate(recalls, 1)},
        "off_by_one": np.mean(moved == truth),
        "balanced_off_by_one": np.mean(recalls),
        "off_by_one_margin": recalls[1:4].min() - recalls[0],
        "malignant_accuracy": (tp + tn) / table.sum(),
        "malignant_tpr": tp / (tp + fn),
        "malignant_tnr": tn / (tn + fp),
        "malignant_ppv": tp / (tp + fp),
        "malignant_npv": tn / (tn + fn),
    }
    found = {name: row.figures[f"{rule}_{name}"] for name in expected}
    assert {name: figure.value for name, figure in found.items()} == pytest.approx(expected)


def test_scores_are_compared_as_numbers_and_every_figure_has_an_interval(cell_and_row: CellAndRow) -> None:
    (cell, row), scale = cell_and_row, np.arange(1, 6)
    off = np.abs(np.exp(cell.log_probs) @ scale - cell.data.votes[cell.rows].astype(np.float64) @ scale)
    assert row.figures["score_error"].value == pytest.approx(off.mean(), rel=1e-6)
    assert row.figures["score_within_half"].value == pytest.approx(np.mean(off <= 0.5))
    assert row.figures["score_within_one"].value == pytest.approx(np.mean(off <= 1))
    for name, figure in row.figures.items():
        assert figure.low <= figure.value <= figure.high, name
        assert figure.low < figure.high, name


def test_intervals_of_shares_are_by_patient(rated: Rated, cell_and_row: CellAndRow) -> None:
    cell, row = cell_and_row
    truth, answer = (RULES["majority"](each) for each in (cell.data.votes[cell.rows], cell.log_probs))
    number = np.unique(cell.patients, return_inverse=True)[1]
    by_patient = np.bincount(number, weights=truth == answer) - np.bincount(number) * np.mean(truth == answer)
    figure = row.figures["majority_accuracy"]
    assert (figure.high - figure.low) / (2 * 1.96) == pytest.approx(math.sqrt((by_patient**2).sum()) / len(truth), rel=0.15)
    assert number.max() + 1 < len(truth)
    every = [(row, name) for row in rated[1].rows for name in row.figures if name.endswith(tuple("12345"))]
    perfect = [(row.figures[name], row.patients) for row, name in every if row.figures[name].value == 1.0]
    assert perfect
    for figure, patients in perfect:  # Wilson's limit for n of n, by patients
        assert 0.5 < figure.low < patients / (patients + Z**2)
        assert figure.high == 1.0


@pytest.mark.long
def test_a_rating_that_nobody_gave_has_no_recall_and_does_not_count(rated: Rated) -> None:
    results = rated[0]
    name, data = next(iter(results.data.items()))
    votes = data.votes.copy()
    votes[:, 3] += votes[:, 4]
    votes[:, 4] = 0
    votes[0] = [0.75, 0, 0, 0, 0.25]  # one reader keeps the class in the population; by majority nobody has it
    changed = replace(results, data={name: replace(data, votes=votes)})
    found = summarise(changed).rows[1].figures
    assert math.isnan(found["majority_off_by_one_recall_5"].value)
    assert found["majority_off_by_one_recall_5"].reason == "there is no such nodule"
    recalls = [found[f"majority_off_by_one_recall_{rating}"].value for rating in range(1, 5)]
    assert found["majority_balanced_off_by_one"].value == pytest.approx(np.mean(recalls))


def test_ratings_have_likelihoods_compared_with_the_softmax_and_no_auc(rated: Rated) -> None:
    summary = rated[1]
    assert sorted(pairs_of(RATED)) == sorted(
        [("likelihood", "onion-peeling", "categorical")] * 2 + [("loss", "information-gain", "weighted")] * 2
    )
    names = {"expected_log_likelihood", *(f"{rule}_{name}" for rule in RULES for name in RULE_FIGURES)}
    figures = {row.key: row.figures for row in summary.rows}
    for each in summary.comparisons:
        assert set(each.differences) == names
        for name, difference in each.differences.items():
            expected = figures[each.ours][name].value - figures[each.theirs][name].value
            assert difference.figure.value == pytest.approx(expected, abs=1e-8)
    assert all("auc" not in row.figures for row in summary.rows)
