"""The three kinds of sampling bias: what each selection leaves as it is, what each remedy fixes, the table and the picture."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from draws import assert_mean_is, assert_refused
from members import unchecked_types
from scipy.integrate import dblquad
from scipy.special import expit
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression

import rightloss as rl
from rightloss.study.methods import METHODS
from rightloss.study.toy.biases import (
    CURVED,
    MODELS,
    REMEDIES,
    STRAIGHT,
    BiasConfig,
    BiasFigures,
    BiasRow,
    best_of,
    bias_rows,
    biases_csv,
    fitted,
    plot_biases,
    run_seed,
    save_biases,
)
from rightloss.study.toy.population import BY_BOTH, BY_FEATURE, BY_LABEL, EVERYONE, SELECTIONS, CurvedRisk, Selection, drawn

POPULATION = CurvedRisk()
LABEL_REMEDIES = {"information-gain", "published", "weighted", "corrected"}
# Which remedies leave no more than noise; the others are wrong however many examples there are.
FIXES = {
    (BY_FEATURE.name, CURVED): {"plain", "given-x", "given-both"},
    (BY_FEATURE.name, STRAIGHT): {"given-x", "given-both"},
    (BY_LABEL.name, CURVED): {*LABEL_REMEDIES, "given-both"},
    (BY_LABEL.name, STRAIGHT): {"weighted", "given-both"},
    (BY_BOTH.name, CURVED): {"given-both"},
    (BY_BOTH.name, STRAIGHT): {"given-both"},
}

Rows = dict[tuple[str, str, str], BiasRow]  # by selection, model and title of the remedy
each_selection = pytest.mark.parametrize("selection", SELECTIONS, ids=lambda selection: selection.name)
each_model = pytest.mark.parametrize("model", MODELS)


def squares(x: np.ndarray, model: str) -> np.ndarray:
    """What a model is linear in, written once more."""
    first, second = x.T
    return np.column_stack([first, second] if model == STRAIGHT else [first, second, first**2, second**2, first * second])


@pytest.fixture(scope="module")
def rows() -> Rows:
    """The simulation with few seeds, by selection, model and title of the remedy."""
    with unchecked_types():  # thousands of steps
        config = BiasConfig(seeds=3)
        found = bias_rows(config, [each for seed in range(3) for each in run_seed(config, seed)])
    return {(row.selection, row.model, row.remedy): row for row in found}


@pytest.mark.long
def test_the_prevalence_of_the_population_equals_an_independent_integral() -> None:
    def density(second: float, first: float) -> float:
        odds = POPULATION.bias + POPULATION.slopes[0] * first + POPULATION.slopes[1] * second + POPULATION.bend * first**2
        return float(norm.pdf(first) * norm.pdf(second) / (1 + math.exp(-odds)))

    expected, _ = dblquad(density, -7, 7, -7, 7, epsabs=1e-6)
    assert POPULATION.positive == pytest.approx(expected, abs=1e-6)


def test_what_is_lost_is_the_mean_difference_of_log_likelihoods_on_a_sample() -> None:
    people = drawn(POPULATION, EVERYONE, 100_000, seed=1)
    true = POPULATION.log_odds(people.x)
    wrong = 0.5 * true - people.x[:, 1]
    sign = 2.0 * people.y - 1
    difference = np.logaddexp(-sign * wrong, 0) - np.logaddexp(-sign * true, 0)
    nodes = POPULATION.people[0]
    assert_mean_is(difference, POPULATION.lost(0.5 * POPULATION.log_odds(nodes) - nodes[:, 1]))
    assert POPULATION.lost(POPULATION.log_odds(nodes)) == 0


@each_selection
def test_the_chances_of_the_selected_are_those_at_which_people_are_selected(selection: Selection) -> None:
    people = drawn(POPULATION, selection, 50_000, seed=2)
    nodes, mass = POPULATION.people
    risk = expit(POPULATION.log_odds(nodes))
    selected = mass @ (selection.chances(nodes) * np.stack([1 - risk, risk], 1)).sum(1)
    for chance in (people.given_x, people.given_both):  # weighted by 1 / chance, the selected are the population again
        weights = selected / chance
        assert_mean_is(weights, 1.0)
        assert_mean_is(weights * people.x[:, 0], 0.0)
    assert_mean_is(selected / people.given_both * people.y, POPULATION.positive)


@each_selection
def test_selection_by_feature_leaves_the_classes_given_it_and_by_label_the_features(selection: Selection) -> None:
    people = drawn(POPULATION, selection, 50_000, seed=3)
    nodes, mass = POPULATION.people
    risk = expit(POPULATION.log_odds(nodes))
    assert people.y.mean() > POPULATION.positive + 0.05, "every selection changes the mix of classes"
    surprise = people.y - expit(POPULATION.log_odds(people.x))
    if selection is BY_FEATURE:
        for feature in (np.ones(50_000), *people.x.T):
            assert_mean_is(surprise * feature, 0.0)
    else:
        assert float(surprise.mean()) > 0.1
    for label, chance in ((0, 1 - risk), (1, risk)):
        expected = (mass * chance) @ nodes[:, 0] / (mass @ chance)
        of_class = people.x[people.y == label, 0]
        if selection is BY_LABEL:
            assert_mean_is(of_class, expected)
        else:
            assert abs(float(of_class.mean() - expected)) > 0.1


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "remedy"), [(CURVED, "plain"), (STRAIGHT, "weighted"), (CURVED, "given-x"), (STRAIGHT, "given-both")]
)
def test_a_fit_is_that_of_scikit_learn(model: str, remedy: str) -> None:
    people = drawn(POPULATION, BY_BOTH, 2_000, seed=6)
    share = people.y.mean()
    by_class = np.where(people.y == 1, POPULATION.positive / share, (1 - POPULATION.positive) / (1 - share))
    weights = {"weighted": by_class, "given-x": 1 / people.given_x, "given-both": 1 / people.given_both}
    given = weights.get(remedy, np.ones(2_000))
    reference = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000)
    reference.fit(squares(people.x, model), people.y, sample_weight=given / given.mean())
    ours = fitted(people, model, remedy, POPULATION)(people.x)
    np.testing.assert_allclose(ours, reference.decision_function(squares(people.x, model)), atol=2e-3)


@pytest.mark.long
def test_logit_adjustment_fits_what_correction_afterwards_gives() -> None:
    people = drawn(POPULATION, BY_LABEL, 2_000, seed=7)
    adjusted, corrected = (fitted(people, STRAIGHT, name, POPULATION)(people.x) for name in ("logit-adjusted", "corrected"))
    np.testing.assert_allclose(adjusted, corrected, atol=2e-3, rtol=0)


def test_the_best_curved_model_is_the_truth_and_the_best_straight_one_that_of_scikit_learn() -> None:
    assert best_of(CURVED, POPULATION) == pytest.approx(0, abs=1e-9)
    nodes, mass = POPULATION.people
    risk = expit(POPULATION.log_odds(nodes))
    weights = np.concatenate([mass * (1 - risk), mass * risk])
    both = np.tile(nodes, (2, 1))
    reference = LogisticRegression(C=np.inf, tol=1e-10).fit(both, np.repeat([0, 1], len(nodes)), sample_weight=weights)
    lost = POPULATION.lost(reference.decision_function(nodes))
    assert best_of(STRAIGHT, POPULATION) == pytest.approx(lost, abs=1e-6)
    assert lost > 0.02


@pytest.mark.long
@each_model
def test_each_remedy_corrects_its_own_kind_of_bias_and_no_other(model: str, rows: Rows) -> None:
    for selection in SELECTIONS:
        found = {name: rows[selection.name, model, title] for name, title in REMEDIES.items()}
        assert {name for name, row in found.items() if row.beyond < row.noise} == FIXES[selection.name, model]
        for name in FIXES[selection.name, model]:
            assert found[name].mean_prediction == pytest.approx(POPULATION.positive, abs=0.01)
    of_label = {name: rows[BY_FEATURE.name, model, title] for name, title in REMEDIES.items()}
    for name in LABEL_REMEDIES:  # of people selected by feature it is worse than none
        assert of_label[name].beyond_low > 2 * of_label["plain"].beyond
        assert of_label[name].mean_prediction < 0.8 * POPULATION.positive


@pytest.mark.long
def test_with_another_curve_a_label_correction_helps_a_little_by_luck_and_is_still_wrong() -> None:
    population = CurvedRisk(-1.0, (0.5, 0.8), -0.8)
    people = drawn(population, BY_FEATURE, 20_000, seed=8)
    best, nodes = best_of(STRAIGHT, population), population.people[0]
    names = ("plain", "information-gain", "given-x")
    plain, gain, right = (population.lost(fitted(people, STRAIGHT, name, population)(nodes)) - best for name in names)
    assert 10 * right < gain < plain


@each_selection
def test_a_model_that_can_express_it_learns_the_tilted_truth(selection: Selection, rows: Rows) -> None:
    nodes, mass = POPULATION.people
    true, chances = POPULATION.log_odds(nodes), selection.chances(nodes)
    tilted = true + np.log(chances[:, 1] / chances[:, 0])
    joint = (mass[:, None] * chances * expit(np.stack([-true, true], 1))).sum(0)
    offset = math.log(POPULATION.positive / (1 - POPULATION.positive)) - math.log(joint[1] / joint[0])
    for name, odds in (("plain", tilted), ("corrected", tilted + offset)):
        row = rows[selection.name, CURVED, REMEDIES[name]]
        half = (row.beyond_high - row.beyond_low) / 2
        assert row.beyond == pytest.approx(POPULATION.lost(odds), abs=2 * half + row.noise)


def test_selection_by_class_and_known_group_is_corrected_group_by_group() -> None:
    nodes, mass = POPULATION.people
    true = POPULATION.log_odds(nodes)
    risk, group = expit(np.stack([-true, true], 1)), (nodes[:, 0] > 0.3).astype(int)
    chances = np.array([[0.1, 0.9], [0.5, 0.2]])[group]  # by group and class
    in_training = np.log(risk * chances / (risk * chances).sum(1, keepdims=True))
    corrected = in_training.copy()
    for each in (0, 1):
        of_group = group == each
        own = (mass[of_group, None] * risk[of_group]).sum(0)
        sampled = (mass[of_group, None] * (risk * chances)[of_group]).sum(0)
        corrected[of_group] = rl.retarget(in_training[of_group], from_=sampled / sampled.sum(), to=own / own.sum())
    np.testing.assert_allclose(np.exp(corrected), risk)
    joint = (mass[:, None] * risk * chances).sum(0)
    at_once = rl.retarget(in_training, from_=joint / joint.sum(), to=[1 - POPULATION.positive, POPULATION.positive])
    assert POPULATION.lost(at_once[:, 1] - at_once[:, 0]) > 0.05


@pytest.mark.long
def test_a_repetition_is_a_function_of_its_config_and_seed_with_people_of_its_own() -> None:
    config = BiasConfig(seeds=2, examples=300, selections=(BY_LABEL,))
    found = run_seed(config, 0)
    torch.rand(7)
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    assert run_seed(config, 0) == found != run_seed(config, 1)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)
    met = np.concatenate([drawn(POPULATION, BY_FEATURE, 300, seed).x for seed in range(2)])
    assert len(np.unique(met, axis=0)) == 600


def made_up(values: list[float]) -> list[BiasFigures]:
    """One remedy over as many seeds, losing this much; another losing ten times as much."""
    found = [BiasFigures(BY_LABEL.name, CURVED, "information-gain", value, 0.15) for value in values]
    return found + [BiasFigures(BY_LABEL.name, CURVED, "plain", 10 * value, 0.3) for value in values]


def test_a_row_is_the_mean_over_the_seeds_with_students_interval_and_a_line_of_the_table() -> None:
    config = BiasConfig(seeds=3)
    gain, plain = bias_rows(config, made_up([0.0005, 0.0007, 0.0006]))
    assert gain.beyond == pytest.approx(0.0006, abs=1e-8)
    assert gain.beyond_high - gain.beyond == pytest.approx(4.302653 * 0.0001 / math.sqrt(3), rel=1e-5)
    assert gain.remedy == METHODS["information-gain"].title
    assert gain.noise == pytest.approx(0.0015)
    assert (gain.right, plain.right) == (True, False)
    lines = list(csv.DictReader(io.StringIO(biases_csv([gain, plain]))))
    assert [(line["remedy"], line["right"]) for line in lines] == [(gain.remedy, "yes"), (plain.remedy, "no")]
    assert [float(line["beyond"]) for line in lines] == pytest.approx([gain.beyond, plain.beyond], rel=1e-5)
    (alone,) = bias_rows(config, made_up([0.0005])[:1])
    assert alone.beyond_low == alone.beyond == alone.beyond_high


@pytest.mark.long
def test_the_picture_has_a_dot_at_every_figure_and_the_same_bytes(rows: Rows, tmp_path: Path) -> None:
    figure = plot_biases(list(rows.values()))
    assert len(figure.axes) == 9
    for column, selection in enumerate(SELECTIONS):
        assert selection.name in figure.axes[column].get_title()
        for line, model in enumerate(MODELS, start=1):
            dots = [each for each in figure.axes[3 * line + column].get_lines() if each.get_marker() == "o"]
            expected = [rows[selection.name, model, title] for title in REMEDIES.values()]
            assert [np.asarray(dot.get_xdata()).item() for dot in dots] == [row.beyond for row in expected]
            assert [dot.get_markerfacecolor() != "white" for dot in dots] == [row.right for row in expected]
    paths = tuple(tmp_path / name for name in ("a.png", "a.svg", "b.png", "b.svg"))
    for some in (paths[:2], paths[2:]):
        of_label = [row for row in rows.values() if row.selection == BY_LABEL.name]
        save_biases(of_label, BiasConfig(selections=(BY_LABEL,)), some)
    png, svg, *again = (path.read_bytes() for path in paths)
    assert [png, svg] == again
    assert (png[:4], b"<svg" in svg) == (b"\x89PNG", True)
    assert sorted(tmp_path.iterdir()) == sorted(paths)


@pytest.mark.parametrize(("seeds", "examples"), [(0, 100), (2, 0)])
def test_no_seeds_or_examples_are_refused(seeds: int, examples: int) -> None:
    assert_refused(lambda: BiasConfig(seeds, examples), "10 and 10,000")
