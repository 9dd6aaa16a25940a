"""Saved posteriors: what comes back from a file, and what `load` refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from corrupt_files import DAMAGE, replaced, rewritten
from layers import inputs, layer_of, network
from members import ClassLikelihood, assert_refused, each_kind, generator
from posterior_fixtures import DISTRIBUTIONS, normal, posterior_of_net
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributions import Normal

from rightloss import Categorical, ContinuousPrevalence, CumulativeLogit, Gaussian, OnionPeeling, Prevalence
from rightloss.inference.distributions import Layout, Particles
from rightloss.inference.posterior import Posterior
from rightloss.predictive import PrevalenceLayer

X = inputs().double()


def other_net(outputs: int) -> nn.Sequential:
    """Of the same architecture, with other weights and other moving averages."""
    net = network(outputs, seed=5).double()
    with torch.no_grad():
        for buffer in net.buffers():
            buffer.add_(3)
    return net


def saved_posterior(folder: Path, *args: Any, **settings: Any) -> tuple[Posterior, Path]:
    posterior = posterior_of_net(*args, **settings)
    posterior.save(folder / "posterior.safetensors")
    return posterior, folder / "posterior.safetensors"


def assert_predicts_the_same(found: Posterior, expected: Posterior, **settings: Any) -> None:
    for samples in (4,) if expected.dropout else (None, 4):  # masks run one by one
        pair = [each.predict(X, samples, generator(1), **settings) for each in (found, expected)]
        assert torch.equal(pair[0].log_probs, pair[1].log_probs)


class TestSaved:
    @pytest.mark.parametrize("kind", DISTRIBUTIONS)
    def test_a_loaded_posterior_predicts_bit_for_bit_the_same(self, kind: str, tmp_path: Path) -> None:
        for way in ("dropout", "linearised", "record"):
            posterior, path = saved_posterior(tmp_path, kind=kind, **{way: {"a": 1} if way == "record" else True})
            found = Posterior.load(path, other_net(3))
            assert_predicts_the_same(found, posterior)
            assert (found.prevalence, found.layout) == (posterior.prevalence, posterior.layout)
            assert (found.dropout, found.linearised, found.record) == (way == "dropout", way == "linearised", posterior.record)

    @each_kind
    def test_every_likelihood_comes_back(self, make: Callable[[], ClassLikelihood], k: int, tmp_path: Path) -> None:
        posterior, path = saved_posterior(tmp_path, make(), k)
        found = Posterior.load(path, other_net(make().num_outputs or k), make())
        assert_predicts_the_same(found, posterior)

    def test_weights_that_are_not_random_come_back(self, tmp_path: Path) -> None:
        model = network(1).double()
        layout = Layout.of({name: model.state_dict()[name] for name in ("4.weight", "1.running_mean")})
        likelihood = CumulativeLogit(4).double()
        with torch.no_grad():
            likelihood.first.add_(1.0)
        fixed, draws = {"0.bias": normal(8)}, Particles(normal(3, layout.size, seed=1))
        posterior = Posterior(model, Prevalence([0.1, 0.2, 0.3, 0.4]), likelihood, draws, layout, fixed)
        posterior.save(tmp_path / "x")
        fresh, like = other_net(1), CumulativeLogit(4).double()
        before = {name: value.clone() for name, value in fresh.state_dict().items()}
        assert_predicts_the_same(Posterior.load(tmp_path / "x", fresh, like), posterior)
        assert all(torch.equal(value, before[name]) for name, value in fresh.state_dict().items())
        assert torch.equal(like.first, CumulativeLogit(4).double().first)

    def test_a_loaded_regression_needs_the_density_again(self, tmp_path: Path) -> None:
        model, prevalence = network(1).double(), ContinuousPrevalence(Normal(0.0, 1.0))
        layout = Layout.of({**dict(model.named_parameters()), "likelihood.log_scale": torch.zeros(())})
        posterior = Posterior(model, prevalence, Gaussian().double(), Particles(normal(3, layout.size)), layout)
        posterior.save(tmp_path / "x")
        found = Posterior.load(tmp_path / "x", other_net(1), Gaussian().double(), prevalence)
        assert_predicts_the_same(found, posterior, support=[0.0, 1.0])
        assert_refused(lambda: Posterior.load(tmp_path / "x", other_net(1), Gaussian()), "a ContinuousPrevalence")
        assert_refused(lambda: Posterior.load(tmp_path / "x", other_net(1), None, prevalence), "'Gaussian', 'outputs': 1")

    def test_the_prevalence_is_kept(self, tmp_path: Path) -> None:
        model = nn.Linear(6, 2).double()
        layout = Layout.of(dict(model.named_parameters()))
        all_known = Prevalence.binary(1e-9, 0.3, 2.0), Prevalence.beta(3.0, 2000.0, 0.4), Prevalence.positive_unlabelled(0.05)
        for prevalence in all_known:
            Posterior(model, prevalence, Categorical(), Particles(normal(1, 14)), layout).save(tmp_path / "x")
            assert Posterior.load(tmp_path / "x", nn.Linear(6, 2).double()).prevalence == prevalence

    def test_the_record_keeps_what_json_can_hold_with_keys_as_strings(self, tmp_path: Path) -> None:
        record = {"losses": [1.0, 0.5], "by_step": {2: 1.0, 10: 0.5}, "note": "ok", "raw": torch.ones(2), "self": object()}
        _, path = saved_posterior(tmp_path, record=record)
        found = Posterior.load(path, other_net(3)).record
        assert found == {"losses": [1.0, 0.5], "by_step": {"2": 1.0, "10": 0.5}, "note": "ok"}

    def test_a_wider_model_takes_the_weights_as_they_are(self, tmp_path: Path) -> None:
        posterior = posterior_of_net(net=network(3))
        posterior.save(tmp_path / "x")
        found = Posterior.load(tmp_path / "x", other_net(3)).predict(X).log_probs
        torch.testing.assert_close(found, posterior.predict(X.float()).log_probs.double(), rtol=1e-3, atol=1e-4)

    def test_tied_weights_are_saved_once(self, tmp_path: Path) -> None:
        def tied(seed: int) -> nn.Sequential:
            model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)).double()
            model[1].weight = model[0].weight = nn.Parameter(normal(6, 6, seed=seed))
            return model

        posterior = posterior_of_net(net=tied(1))
        assert posterior.layout.size == 36 + 6 + 6 + 21
        posterior.save(tmp_path / "x")
        assert_predicts_the_same(Posterior.load(tmp_path / "x", tied(2)), posterior)

    def test_it_is_a_safetensors_file_that_says_what_it_holds(self, tmp_path: Path) -> None:
        posterior, path = saved_posterior(tmp_path, OnionPeeling(5), 5)
        with safe_open(path, framework="pt") as file:
            facts, names = json.loads(file.metadata()["rightloss"]), set(file.keys())
        assert facts["format"] == "rightloss.Posterior"
        assert facts["names"] == list(posterior.layout.names)
        assert names == {f"distribution.{name}" for name in ("draws", "chains")} | {
            f"rest.1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")
        }

    def test_a_distribution_that_could_not_be_loaded_is_not_saved(self, tmp_path: Path) -> None:
        class Own(Particles):
            pass

        posterior = posterior_of_net()
        posterior.distribution = Own(normal(2, 99))
        assert_refused(lambda: posterior.save(tmp_path / "x"), "but got Own: save draws of it, as Particles")
        assert list(tmp_path.iterdir()) == []


def with_facts(**facts: Any) -> Callable[[Path], Any]:
    return lambda path: rewritten(path, lambda own: own.update(facts))


def with_tensors(**tensors: Tensor) -> Callable[[Path], Any]:
    return lambda path: rewritten(path, str, **tensors)


# What happened to the file of three classes, and what the error says.
POSTERIOR_DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    **{name: DAMAGE[name] for name in ("a flipped bit in the last weight", "a pickle")},  # all are tested with the reader
    "another weight's name": (lambda path: replaced(path, rb"\"4.bias\"", rb"\"4.bios\""), "its digest differs"),
    "a layer": (lambda path: layer_of(Categorical(3), 3).save(path), r"holds a rightloss\.PrevalenceLayer: load it with that"),
    "a fact missing": (lambda path: rewritten(path, lambda facts: facts.pop("names")), r"lacks \['names'\]"),
    "no prevalence": (with_facts(population=[0.5, 0.6, 0.7]), "to sum to 1"),
    "another likelihood": (with_facts(likelihood="Categorical"), "the likelihood that the posterior was saved with"),
    "no distribution": (with_facts(distribution="Cauchy"), "one of Particles"),
    "another name": (with_facts(names=["weights"] * 6), "it has no such weight"),
    "draws of another size": (with_tensors(distribution__draws=torch.ones(2, 5)), r"of 99 weights, but got \(5,\)"),
    "more chains than draws": (with_tensors(distribution__chains=torch.tensor(4)), r"each of 4 chain\(s\), but got 6"),
}


class TestLoadRefuses:
    @pytest.mark.parametrize("what", POSTERIOR_DAMAGE)
    def test_a_file_that_is_damaged_or_foreign(self, what: str, tmp_path: Path) -> None:
        _, path = saved_posterior(tmp_path)
        harm, words = POSTERIOR_DAMAGE[what]
        harm(path)
        assert_refused(lambda: Posterior.load(path, other_net(3)), words)

    @pytest.mark.parametrize(
        ("model", "words"),
        [
            (lambda: other_net(2), r"`4\.weight` of shape \(3, 8\), but it has it as \(2, 8\)"),
            (lambda: nn.Sequential(*other_net(3), nn.Linear(3, 3)), r"5\.weight is missing from the file"),
            (lambda: other_net(3)[:1], r"`1\.weight` of shape \(8,\), but it has no such weight"),
            (lambda: other_net(3).half(), r"1\.running_mean is float64 \(8,\) in the file and float16 \(8,\) in the model"),
        ],
    )
    def test_weights_that_do_not_fit_the_model(self, model: Callable[[], nn.Module], words: str, tmp_path: Path) -> None:
        _, path = saved_posterior(tmp_path)
        assert_refused(lambda: Posterior.load(path, model()), words)

    def test_another_likelihood(self, tmp_path: Path) -> None:
        _, path = saved_posterior(tmp_path, CumulativeLogit(5).double(), 5)
        for likelihood in (None, OnionPeeling(5), CumulativeLogit(3)):
            words = "'CumulativeLogit', 'levels': 5|3 classes"
            assert_refused(partial(Posterior.load, path, other_net(1), likelihood), words)

    def test_no_file_or_the_file_of_a_layer_with_its_own_prevalence(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match=r"saved by Posterior\.save, but there is none at .*: is the path right"):
            Posterior.load(tmp_path / "none", other_net(3))
        posterior, path = saved_posterior(tmp_path)
        assert_refused(lambda: Posterior.load(path, other_net(3), None, posterior.prevalence), "no `prevalence` for classes")
        assert_refused(lambda: PrevalenceLayer.load(path, other_net(3)), r"holds a rightloss\.Posterior: load it with that")
