"""undo_sampling: on a population whose p(y|x) is known it gives that back, whatever was done to the classes; and its rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from draws import assert_mean_is, assert_refused, population, stream
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression
from sklearn.utils.class_weight import compute_class_weight

from rightloss import Prevalence
from rightloss.predictive import retarget, undo_sampling

TRAINING_SETS, EXAMPLES = 25, 10_000
MIX = np.array([0.8, 0.15, 0.05])
CENTRES = np.array([[0.0, 0.0], [1.2, 0.0], [0.0, 1.2]])  # unit Gaussians of the three classes
POINTS = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.8, 0.8]])  # x at which predictions are compared
Fit = Callable[[np.ndarray, np.ndarray, np.random.Generator], np.ndarray]


def true_log_probs(x: np.ndarray) -> np.ndarray:
    """By Bayes p(k|x) ∝ π_k exp(−|x − c_k|²/2), which logistic regression can express."""
    return log_softmax(np.log(MIX) - ((x[:, None] - CENTRES) ** 2).sum(2) / 2, 1)


def scikit(x: np.ndarray, y: np.ndarray, **settings: Any) -> np.ndarray:
    return LogisticRegression(C=np.inf, tol=1e-8, max_iter=1000, **settings).fit(x, y).predict_log_proba(POINTS)


def undersampled(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    kept = (y > 0) | (rng.random(len(y)) < 0.2)
    return scikit(x[kept], y[kept])


# How the training was rebalanced, and what the user writes, given the labels.
WAYS: dict[str, tuple[Fit, Callable[[np.ndarray], dict[str, Any]]]] = {
    "balanced": (lambda x, y, rng: scikit(x, y, class_weight="balanced"), lambda y: {"class_weight": "balanced", "labels": y}),
    "undersampled": (undersampled, lambda y: {"kept": {0: 0.2}}),
}


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_on_a_population_that_is_known_the_undone_predictions_are_the_truth_and_the_raw_ones_far_off(way: str) -> None:
    """Over independent training sets, the mean prediction at a few x against the true p(y|x), in standard errors."""
    fit, write = WAYS[way]
    rng, raw = stream(list(WAYS).index(way)), []
    for _ in range(TRAINING_SETS):
        y = rng.choice(3, EXAMPLES, p=MIX)
        raw.append((y, fit(rng.normal(size=(EXAMPLES, 2)) + CENTRES[y], y, rng)))
    truth = np.exp(true_log_probs(POINTS))
    assert_mean_is(np.stack([np.exp(undo_sampling(each, **write(y))) for y, each in raw]), truth)
    plain = np.exp(np.stack([each for _, each in raw]))
    assert (np.abs((plain.mean(0) - truth) / (plain.std(0, ddof=1) / TRAINING_SETS**0.5)).max(1) > 10).all()
    elsewhere = np.array([1, 2, 3]) / 6
    moved = [undo_sampling(each, **{"labels": y, **write(y)}, population=elsewhere) for y, each in raw]
    assert_mean_is(np.exp(np.stack(moved)), np.exp(retarget(true_log_probs(POINTS), MIX, elsewhere)))


def table(k: int, n: int = 20, seed: int = 0) -> np.ndarray:
    return log_softmax(3 * stream(seed).normal(size=(n, k)), 1)


def by_hand(log_probs: np.ndarray, weights: Any) -> np.ndarray:
    """p / w, divided by its sum, in probabilities."""
    probs = np.exp(log_probs) / np.asarray(weights, float)
    return probs / probs.sum(1, keepdims=True)


LABELS = np.array([0] * 70 + [1] * 20 + [2] * 10)
PAIR = np.array([0] * 90 + [1] * 10)
BALANCED = compute_class_weight("balanced", classes=np.arange(3), y=LABELS)

# Arguments for three classes, and the weights that they mean.
MEANINGS: dict[str, tuple[dict[str, Any], Any]] = {
    "weights in an array": ({"class_weight": np.array([1.0, 4.0, 12.0])}, [1, 4, 12]),
    "weights in a dict": ({"class_weight": {1: 4, 2: 12}}, [1, 4, 12]),
    "balanced": ({"class_weight": "balanced", "labels": LABELS}, BALANCED),
    "weights of what was kept": ({"class_weight": [1, 2, 3], "kept": [0.1, 1, 5]}, [0.1, 2, 15]),
    # Scikit-learn sees what was kept: 7, 20 and 10 examples.
    "balanced after keeping a tenth": (
        {"class_weight": "balanced", "kept": {0: 0.1}, "labels": LABELS},
        compute_class_weight("balanced", classes=np.arange(3), y=[0] * 7 + [1] * 20 + [2] * 10) * [0.1, 1, 1],
    ),
    "a sampler": ({"sampling": [0.2, 0.3, 0.5], "labels": LABELS}, [0.2 / 0.7, 0.3 / 0.2, 0.5 / 0.1]),
    "a sampler and weights": (
        {"sampling": [0.2, 0.3, 0.5], "labels": LABELS, "class_weight": {2: 3}},
        [0.2 / 0.7, 0.3 / 0.2, 1.5 / 0.1],
    ),
}


class TestItsRules:
    @pytest.mark.parametrize("meaning", MEANINGS)
    def test_it_divides_by_the_weights_and_reaches_a_population_from_the_datas_own_mix(self, meaning: str) -> None:
        arguments, weights = MEANINGS[meaning]
        found = undo_sampling(table(3), **arguments)
        np.testing.assert_allclose(np.exp(found), by_hand(table(3), weights), rtol=1e-12)
        elsewhere = population(3, 5)
        there = undo_sampling(table(3), **{"labels": LABELS, **arguments}, population=elsewhere)
        np.testing.assert_allclose(there, retarget(found, [0.7, 0.2, 0.1], elsewhere), rtol=0, atol=1e-12)

    @pytest.mark.parametrize("word", ["pos_weight", "scale_pos_weight"])
    def test_a_positive_weight_is_the_weight_of_class_1(self, word: str) -> None:
        for form in (9, np.float32(9), np.array(9.0), np.array([9.0])):
            found = undo_sampling(table(2), **{word: form})
            np.testing.assert_allclose(np.exp(found), by_hand(table(2), [1, 9]), rtol=1e-12)

    def test_bagging_fractions_are_the_shares_kept(self) -> None:
        found = undo_sampling(table(2), pos_bagging_fraction=0.9, neg_bagging_fraction=0.1)
        np.testing.assert_allclose(found, undo_sampling(table(2), kept={0: 0.1, 1: 0.9}), rtol=0, atol=1e-12)
        alone = undo_sampling(table(2), neg_bagging_fraction=0.1)
        np.testing.assert_allclose(np.exp(alone), by_hand(table(2), [0.1, 1]), rtol=1e-12)

    def test_the_mix_drawn_needs_no_labels_to_reach_a_population(self) -> None:
        found = undo_sampling(table(2), sampling=0.5, population=0.01)
        np.testing.assert_allclose(found, retarget(table(2), 0.5, 0.01), rtol=0, atol=1e-13)

    def test_only_ratios_of_weights_count_and_no_rebalancing_is_exactly_the_identity(self) -> None:
        scaled = undo_sampling(table(3), class_weight=[1e6, 4e6, 12e6])
        np.testing.assert_allclose(scaled, undo_sampling(table(3), class_weight=[1, 4, 12]), rtol=0, atol=1e-12)
        identities: list[dict[str, Any]] = [{"class_weight": [1, 1]}, {"pos_weight": 1}, {"kept": {}}]
        for arguments in identities:
            assert np.array_equal(undo_sampling(table(2), **arguments), table(2))

    def test_kind_dtype_and_shape_stay_and_a_probability_of_0_too(self) -> None:
        given = np.log(np.array([[0.5, 0.5], [0.25, 0.75]], dtype=np.float32))
        found = undo_sampling(given, pos_weight=3)
        assert isinstance(found, np.ndarray)
        assert found.dtype == np.float32
        np.testing.assert_allclose(np.exp(found), [[0.75, 0.25], [0.5, 0.5]], rtol=1e-6)
        certain = np.array([[0.0, -np.inf]])
        assert np.array_equal(undo_sampling(certain, pos_weight=3), certain)
        maps = np.moveaxis(table(3, 24).reshape(2, 12, 3), 2, 1).reshape(2, 3, 4, 3)
        flat = undo_sampling(table(3, 24), class_weight=[1, 4, 12])
        undone = np.moveaxis(undo_sampling(maps, class_weight=[1, 4, 12]), 1, -1).reshape(24, 3)
        np.testing.assert_allclose(undone, flat, rtol=0, atol=1e-14)

    def test_tensors_stay_tensors_with_their_gradients(self) -> None:
        torch = pytest.importorskip("torch")
        given = torch.from_numpy(table(3)).requires_grad_()
        labels = torch.from_numpy(LABELS)
        for arguments in ({"class_weight": torch.tensor([1.0, 4.0, 12.0])}, {"sampling": population(3), "labels": labels}):
            found = undo_sampling(given, **arguments)
            plain = {name: np.asarray(value) for name, value in arguments.items()}
            np.testing.assert_allclose(found.detach(), undo_sampling(table(3), **plain), rtol=1e-14)
            assert found.requires_grad
        two = torch.from_numpy(table(2))
        assert torch.equal(undo_sampling(two, pos_weight=torch.tensor([9.0])), undo_sampling(two, pos_weight=9))


U: Any = undo_sampling
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "labels and a population alone": (lambda: U(table(2), labels=PAIR, population=0.1), r"none of.*retarget\("),
    "balanced without labels": (lambda: U(table(2), class_weight="balanced"), "'balanced' weights.*: add `labels`"),
    "a sampler without labels": (lambda: U(table(2), sampling=0.5), "undo `sampling`.*: add `labels`, or `population`"),
    "weights without labels": (lambda: U(table(2), pos_weight=9, population=0.1), "go on to `population`.*: add `labels`"),
    "bags among three": (lambda: U(table(3), neg_bagging_fraction=0.5), "two classes.*but got 3: .*`kept`"),
    "bags and kept": (lambda: U(table(2), neg_bagging_fraction=0.5, kept={1: 5}), "bagging fractions, but got both"),
    "a bag of more than all": (lambda: U(table(2), pos_bagging_fraction=2), "at most 1, but got 2"),
    "an empty bag": (lambda: U(table(2), neg_bagging_fraction=0), "`neg_bagging_fraction` to be one positive"),
    "two names of one weight": (lambda: U(table(2), pos_weight=9, scale_pos_weight=9), "or `scale_pos_weight`.*both"),
    "kept and sampling": (lambda: U(table(2), kept={0: 0.1}, sampling=0.5, labels=PAIR), "leave out `kept`"),
    "balanced weights of resampled data": (
        lambda: U(table(2), class_weight="balanced", sampling=[0.5, 0.5], labels=PAIR),
        "or `sampling`, but got both: .*write the weights themselves",
    ),
    "a Prevalence for a mix drawn": (lambda: U(table(2), sampling=Prevalence.binary(0.1)), r"write `prevalence\.sampling`"),
    "a positive class among three": (lambda: U(table(3), pos_weight=9), "two classes.*but got 3: use `class_weight`"),
    "a weight of 0": (lambda: U(table(2), class_weight=[1, 0]), r"`class_weight` to be positive.*\[1.0, 0.0\]"),
    "a negative weight": (lambda: U(table(2), pos_weight=-1), "`pos_weight` to be one positive number"),
    "a weight of NaN": (lambda: U(table(2), kept=[1, float("nan")]), "`kept` to be positive and finite"),
    "too few weights": (lambda: U(table(3), class_weight=[1, 2]), r"3 numbers.*shape \(2,\)"),
    "a class by its name": (lambda: U(table(2), class_weight={"ill": 9}), r"numbered 0\.\.1, but got \['ill'\]"),
    "another word": (lambda: U(table(2), class_weight="balanced_subsample"), "'balanced'.*but got 'balanced_subsample'"),
    "many positive weights": (lambda: U(table(2), pos_weight=[1, 9]), "class_weight"),
    "a class without labels": (lambda: U(table(2), class_weight="balanced", labels=[0, 0]), r"`labels`, but class\(es\) \[1\]"),
    "a mix off 1": (lambda: U(table(2), sampling=[0.5, 0.6], labels=PAIR), "`sampling` to sum to 1"),
    "logits": (lambda: U(5 * np.eye(2), pos_weight=9), "are these logits"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_with_what_to_add(what: str) -> None:
    assert_refused(*BAD[what])
