"""The network: trained on every kind of label, with unlabelled rows; without torch the extra is named."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest
from draws import SEED, assert_refused, unchecked_types
from scipy import special
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler

torch = pytest.importorskip("torch")

from rightloss.sklearn import InformationGainMLPClassifier  # noqa: E402
from rightloss.sklearn.network import _EndlessRows  # noqa: E402

POPULATION = [0.5, 0.3, 0.2]


def rows(k: int = 2, n: int = 120, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1000 * SEED + seed)
    y = np.concatenate([np.arange(k), rng.choice(k, n - k, p=np.arange(1, k + 1) / np.arange(1, k + 1).sum())])
    return StandardScaler().fit_transform(rng.normal(size=(n, 3)) + np.column_stack([y, -y, 0.1 * y])), y


def network(population: Any = None, **options: Any) -> InformationGainMLPClassifier:
    options = {"hidden_layer_sizes": (8,), "max_iter": 30, "n_iter_no_change": 1000, "random_state": 0, **options}
    return InformationGainMLPClassifier(population, **options)


def trained(model: InformationGainMLPClassifier, x: Any, y: Any, **options: Any) -> InformationGainMLPClassifier:
    """Fit for the epochs given, without the warning that more might help."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(x, y, **options)


def first_weights(model: InformationGainMLPClassifier) -> np.ndarray:
    network: Any = model.network_
    return network[0].weight.detach().numpy()


@pytest.mark.parametrize(("evidence", "soft"), [(1.0, True), (0.3, False)])
def test_it_trains_with_any_evidence_and_beats_answering_the_population(evidence: float, soft: bool) -> None:
    x, y = rows(3, n=400)
    model = trained(network(POPULATION, evidence=evidence, learning_rate_init=0.01), x, np.eye(3)[y] if soft else y)
    gained = model.predict_log_proba(x)[np.arange(len(y)), y] @ (np.array(POPULATION)[y] / np.bincount(y)[y])
    assert gained > np.log(POPULATION) @ POPULATION + 0.1


def test_without_features_that_tell_it_answers_the_population() -> None:
    y = np.repeat([0, 1], 50)
    model = trained(network(0.01, evidence=0.3, learning_rate_init=0.05, max_iter=200), np.zeros((100, 2)), y)
    np.testing.assert_allclose(model.predict_proba([[0.0, 0.0]])[0, 1], 0.01, rtol=0.01)


def test_it_keeps_the_precision_of_its_features_is_set_by_its_seed_and_leaves_the_global_random_numbers_alone() -> None:
    x, y = rows()
    before = torch.random.get_rng_state()
    first, second = (trained(network(0.1), x.astype(np.float32), y) for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert first_weights(first).dtype == np.float32
    np.testing.assert_array_equal(first_weights(first), first_weights(second))
    assert not np.array_equal(
        first_weights(trained(network(0.1, random_state=1), x.astype(np.float32), y)), first_weights(first)
    )


def test_too_few_epochs_are_said() -> None:
    with pytest.warns(ConvergenceWarning, match="raise max_iter"):
        network(0.1, max_iter=1).fit(*rows())


# Unlabelled rows.


def study(each: int = 100, m: int = 1000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Normal classes: rows sampled by class, and unlabelled rows of a population with a tenth of class 1."""
    rng = np.random.default_rng(1000 * SEED)
    y, hidden = np.repeat([0, 1], each), (rng.random(m) < 0.1).astype(int)
    x, others = (rng.normal(size=(len(classes), 2)) + np.outer(classes, [2.0, 1.0]) for classes in (y, hidden))
    return x, y, others


@pytest.mark.parametrize("options", [{}, {"evidence": 0.5, "unlabelled_weight": 3.0}])
def test_it_learns_from_both_kinds_of_rows_and_predicts_the_population(options: dict[str, Any]) -> None:
    x, y, others = study()
    options = {"max_iter": 60, "learning_rate_init": 0.01, "n_iter_no_change": 10, **options}
    fitted, again = (trained(network(0.1, **options), x, y, X_unlabelled=others) for _ in range(2))
    assert fitted.predict_proba(others)[:, 1].mean() == pytest.approx(0.1, abs=0.04)
    np.testing.assert_array_equal(fitted.predict_proba(x), again.predict_proba(x))


@pytest.mark.parametrize("evidence", [1.0, 0.5])
def test_with_unlabelled_rows_too_an_integer_weight_is_a_repeated_row(evidence: float) -> None:
    x, y, others = study(each=50, m=90)
    weight = np.random.default_rng(SEED).integers(1, 3, len(y))
    again = np.repeat(np.arange(len(y)), weight)
    weighted, repeated = (network(0.1, evidence=evidence, batch_size=1000) for _ in range(2))  # all rows in each minibatch
    trained(weighted, x, y, sample_weight=weight, X_unlabelled=others)
    trained(repeated, x[again], y[again], X_unlabelled=others)
    assert_refused(lambda: network().fit(x, y, X_unlabelled=others), "population")
    np.testing.assert_allclose(weighted.predict_proba(x), repeated.predict_proba(x), atol=1e-8)


def test_positive_and_unlabelled_rows_are_enough_where_the_population_is_known() -> None:
    x, y, others = study(each=300, m=4000)
    fitted = trained(network(0.1, max_iter=60, learning_rate_init=0.01), x[y == 1], y[y == 1], X_unlabelled=others)
    assert fitted.sampling_.tolist() == [0.0, 1.0]
    assert fitted.predict_proba(others)[:, 1].mean() == pytest.approx(0.1, abs=0.025)
    true = x @ [2.0, 1.0] - 2.5 + special.logit(0.1)
    assert np.corrcoef(special.logit(fitted.predict_proba(x)[:, 1]), true)[0, 1] > 0.95


def test_every_unlabelled_row_is_taken_before_any_is_taken_again() -> None:
    endless = _EndlessRows(torch.arange(10)[:, None], torch.Generator().manual_seed(0))
    taken = torch.cat([endless.take(5) for _ in range(4)]).flatten()
    assert taken[:10].sort().values.tolist() == taken[10:].sort().values.tolist() == list(range(10))
    assert len(endless.take(99)) == 10


# What users give.


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"C": 0.0}, "`C`"),
        ({"evidence": -1.0}, "evidence"),
        ({"batch_size": 0}, "batch_size"),
        ({"hidden_layer_sizes": (0,)}, "hidden_layer_sizes"),
        ({"learning_rate_init": 1e300}, "finite loss"),
        ({"population": "unknown"}, "estimate_prevalence"),
    ],
)
def test_wrong_options_are_refused_with_the_remedy(options: dict[str, Any], words: str) -> None:
    with unchecked_types():
        model = network(**options)
    assert_refused(lambda: model.fit(*rows()), words)


def test_without_torch_the_extra_is_named_and_the_rest_works() -> None:
    program = """
import sys

class NoTorch:
    def find_spec(self, name, *others):
        if name == "torch":
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, NoTorch())
from rightloss.sklearn import InformationGainClassifier, OrdinalClassifier
try:
    from rightloss.sklearn import InformationGainMLPClassifier
except ImportError as error:
    print(error)
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "rightloss[torch]" in found.stdout
