"""`Posterior`: predictions are averages over draws, whatever the way they are computed; and the uncertainty of π."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from layers import inputs, network
from logistic import Logistic
from members import ClassLikelihood, assert_mean_is, assert_refused, each_kind, generator, population, unchecked_types
from posterior_fixtures import DISTRIBUTIONS, normal, parameters_of, posterior_of_net
from torch import Tensor, nn
from torch.distributions import Normal

import rightloss as rl
from rightloss import inference
from rightloss.inference import posterior as posterior_file
from rightloss.inference.distributions import DenseGaussian, Layout, Particles
from rightloss.inference.posterior import Posterior
from rightloss.inference.target import LogPosterior
from rightloss.predictive import retarget_interval

X = inputs().double()
each_distribution = pytest.mark.parametrize("kind", DISTRIBUTIONS)


def over_a_line(likelihood: Any, prevalence: Any) -> tuple[Posterior, Tensor, Tensor, Tensor]:
    """A dense Gaussian over the weights of 3 inputs and a bias; x, and mean and standard deviation of w·x + b for each."""
    model, x = nn.Linear(3, 1).double(), normal(5, 3, seed=3)
    distribution = DenseGaussian(normal(4, seed=1), normal(4, 4, seed=2) / 2)
    posterior = Posterior(model, prevalence, likelihood, distribution, Layout.of(dict(model.named_parameters())))
    wide = torch.cat([x, torch.ones(5, 1).double()], 1)
    return posterior, x, wide @ distribution.mean, ((wide @ distribution.covariance()) * wide).sum(1).sqrt()


def probabilities(posterior: Posterior, x: Any, **settings: Any) -> Tensor:
    return torch.cat(list(posterior.tables(x, **settings))).exp()


class TestPredict:
    @pytest.mark.long
    def test_a_logistic_line_predicts_the_integral(self) -> None:
        posterior, x, mean, spread = over_a_line(rl.Bernoulli(), rl.Prevalence.binary(0.1))
        nodes, weights = np.polynomial.hermite_e.hermegauss(200)
        expected = torch.sigmoid(mean[:, None] + spread[:, None] * torch.from_numpy(nodes)) @ torch.from_numpy(weights)
        draws = probabilities(posterior, x, samples=20_000, generator=generator(4))[:, :, 1]
        assert_mean_is(draws, expected / math.sqrt(2 * math.pi), z=5)
        found = posterior.predict(x, samples=20_000, generator=generator(4)).log_probs
        torch.testing.assert_close(found[:, 1].exp(), draws.mean(0))
        torch.testing.assert_close(found.exp().sum(1), torch.ones(5, dtype=torch.float64))

    def test_a_density_at_the_support_is_the_closed_form(self) -> None:
        posterior, x, mean, spread = over_a_line(rl.Gaussian(scale=0.7).double(), rl.ContinuousPrevalence(Normal(0.0, 1.0)))
        support = np.linspace(-2, 2, 5)
        expected = Normal(mean, (spread**2 + 0.49).sqrt()).log_prob(torch.from_numpy(support)[:, None]).T.exp()
        draws = probabilities(posterior, x, samples=5000, support=support)
        assert_mean_is(draws, expected, z=5)
        found = posterior.predict(x, samples=5000, support=support)
        torch.testing.assert_close(found.log_probs.exp(), draws.mean(0))
        assert found.entropy is found.data_entropy is found.model_entropy is None
        fixed = posterior.as_module(4, generator(1))(x, torch.from_numpy(support))
        torch.testing.assert_close(fixed, posterior.predict(x, 4, generator(1), support).log_probs)

    @each_kind
    def test_it_is_the_average_of_nets_with_the_draws_for_weights(self, make: Callable[[], ClassLikelihood], k: int) -> None:
        posterior = posterior_of_net(make(), k)
        model, likelihood = network(make().num_outputs or k).double(), make()
        probs = []
        for draw in posterior.distribution.draws:  # type: ignore[attr-defined]
            torch.nn.utils.vector_to_parameters(draw.clone(), parameters_of(model, likelihood).values())
            probs.append(likelihood.table(model(X)).exp())
        torch.testing.assert_close(posterior.predict(X).log_probs.exp(), torch.stack(probs).mean(0))

    def test_the_entropy_is_that_of_the_data_and_that_of_the_weights(self) -> None:
        posterior = posterior_of_net(rl.Categorical(4), 4)
        probs, found = probabilities(posterior, X), posterior.predict(X)
        each, average = scipy.stats.entropy(probs, axis=2).mean(0), scipy.stats.entropy(probs.mean(0), axis=1)
        np.testing.assert_allclose(found.entropy, average, rtol=1e-10)
        np.testing.assert_allclose(found.data_entropy, each, rtol=1e-10)
        np.testing.assert_allclose(found.model_entropy, average - each, rtol=1e-8)
        assert bool((found.model_entropy > 0).all())

    def test_draws_that_agree_leave_nothing_to_the_weights(self) -> None:
        model = network(3)
        for scale in (1.0, 1e4):
            draws = scale * torch.nn.utils.parameters_to_vector(model.parameters()).detach().expand(7, -1)
            layout = Layout.of(dict(model.named_parameters()))
            found = Posterior(model, rl.Prevalence([0.2, 0.3, 0.5]), rl.Categorical(), Particles(draws), layout).predict(
                X.float()
            )
            assert bool((found.model_entropy >= 0).all())
            assert float(found.model_entropy.max()) < 1e-6
            assert bool(found.entropy.isfinite().all())

    def test_dense_maps_are_predicted_cell_by_cell(self) -> None:
        posterior = posterior_of_net(rl.CumulativeLogit(4).double(), 4, net=nn.Conv2d(6, 1, 1).double())
        maps = normal(4, 6, 2, 3)
        cells = posterior.predict(maps.movedim(1, -1).reshape(-1, 6, 1, 1), level=0.8)
        found = posterior.predict(maps, level=0.8)
        for name in ("log_probs", "low", "high"):
            of_map = getattr(found, name)
            assert of_map.shape == (4, 4, 2, 3)
            torch.testing.assert_close(of_map.movedim(1, -1).reshape(-1, 4), getattr(cells, name).flatten(1))
        torch.testing.assert_close(found.model_entropy.flatten(), cells.model_entropy.flatten())

    def test_arrays_in_arrays_out_in_the_precision_of_the_model(self) -> None:
        posterior = posterior_of_net()
        found, expected = posterior.predict(X.numpy()), posterior.predict(X)
        assert isinstance(found.log_probs, np.ndarray)
        np.testing.assert_array_equal(found.log_probs, expected.log_probs)
        np.testing.assert_array_equal(found.model_entropy, expected.model_entropy)
        half = posterior_of_net(net=network(3).half())
        assert half.predict(X.numpy()).log_probs.dtype == np.float32


class Counted(nn.Module):
    """A net that counts its calls and, where it looks at a value of its own, cannot be run at many weights at once."""

    def __init__(self, looks: bool) -> None:
        super().__init__()
        self.inner, self.looks, self.calls = network(3).double(), looks, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        outputs = self.inner(x)
        if self.looks:
            assert math.isfinite(float(outputs.sum()))
        return outputs


class Recurrent(nn.Module):
    """Has no rule for many weights in torch, and takes x in two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.GRU(2, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        return self.head(self.inner((x["a"] + x["b"]).unflatten(1, (3, 2)))[0][:, -1])


class TestTheWayThere:
    @pytest.mark.long
    def test_many_weights_at_once_predict_what_they_do_one_by_one_and_the_users_model_is_unchanged(self) -> None:
        found = {}
        for looks in (False, True):
            model = Counted(looks).train()
            before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
            posterior = posterior_of_net(net=model)
            found[looks] = posterior.predict(X)
            posterior_of_net(net=model, dropout=True).predict(X)
            assert posterior.model.calls == (1 + 6 if looks else 1)
            assert torch.equal(torch.get_rng_state(), state)
            assert all(part.training for part in model.modules())
            assert all(torch.equal(*pair) for pair in zip(before.values(), model.state_dict().values(), strict=True))
        torch.testing.assert_close(found[True].log_probs, found[False].log_probs)
        torch.testing.assert_close(found[True].model_entropy, found[False].model_entropy)

    def test_a_net_without_a_rule_for_many_weights_or_with_x_in_parts_is_run_one_by_one(self) -> None:
        posterior, parts = posterior_of_net(net=Recurrent().double()), {"a": X / 4, "b": 3 * X / 4}
        singly = [posterior.module(index)(parts).softmax(1) for index in range(6)]
        torch.testing.assert_close(posterior.predict(parts).log_probs.exp(), torch.stack(singly).mean(0))

    @pytest.mark.parametrize(("kind", "linearised"), [(kind, number % 2 == 1) for number, kind in enumerate(DISTRIBUTIONS)])
    def test_any_size_of_blocks_and_batches_gives_the_same(
        self, kind: str, linearised: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        posterior = posterior_of_net(kind=kind, linearised=linearised)
        expected = posterior.predict(X, samples=11)
        for weights, numbers, batch_size in ((1, 1, None), (200, 1 << 20, 1), (1 << 24, 150, 3)):
            monkeypatch.setattr(posterior_file, "_WEIGHTS", weights)
            monkeypatch.setattr(posterior_file, "_INPUTS", numbers)
            assert len(list(posterior.tables(X, samples=11))) > 1
            found = posterior.predict(X, samples=11, batch_size=batch_size)
            torch.testing.assert_close(found.log_probs, expected.log_probs, rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(found.model_entropy, expected.model_entropy, rtol=1e-8, atol=1e-10)

    @each_distribution
    def test_the_draws_are_those_of_sample_by_name(self, kind: str) -> None:
        posterior = posterior_of_net(rl.CumulativeLogit(4).double(), 4, kind)
        draws = posterior.sample(5, generator(1))
        own = parameters_of(posterior.model, posterior.likelihood)
        assert {name: value.shape for name, value in draws.items()} == {n: (5, *value.shape) for n, value in own.items()}
        flat = posterior.layout.flatten(draws)
        assert torch.equal(flat, posterior.distribution.sample(5, generator(1)))
        same = Posterior(
            posterior.model, posterior.prevalence, rl.CumulativeLogit(4).double(), Particles(flat), posterior.layout
        )
        found = posterior.predict(X, 5, generator(1)).log_probs
        torch.testing.assert_close(found, same.predict(X).log_probs)
        assert torch.equal(posterior.predict(X, 5, generator(1)).log_probs, found)
        for moment, value in ((posterior.mean, "mean"), (posterior.standard_deviation, "standard_deviation")):
            assert torch.equal(posterior.layout.flatten(moment), getattr(posterior.distribution, value))
        assert torch.equal(posterior.likelihood.first, posterior.mean["likelihood.first"])  # type: ignore[attr-defined]


class TestDropout:
    @pytest.mark.long
    def test_masks_are_drawn_with_each_draw(self) -> None:
        model = nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 1)).double()
        point = Particles(torch.nn.utils.parameters_to_vector(model.parameters()).detach()[None])
        layout = Layout.of(dict(model.named_parameters()))
        posterior = Posterior(model, rl.Prevalence.binary(0.1), rl.Bernoulli(), point, layout, dropout=True)
        x = normal(3, 2)
        masks = torch.tensor([[0, 0], [0, 2], [2, 0], [2, 2]]).double()
        expected = torch.stack([torch.sigmoid(model[1](x * mask)) for mask in masks]).mean(0).detach()
        draws = probabilities(posterior, x, samples=600, generator=generator(1))
        assert_mean_is(draws[:, :, 1], expected[:, 0], z=5)
        assert len(probabilities(posterior, x)) == 100
        torch.testing.assert_close(posterior.module()(x), model.eval()(x))

    def test_masks_depend_on_the_generator_and_a_stream_goes_on(self) -> None:
        posterior = posterior_of_net(dropout=True)
        assert [type(part) for part in posterior.model.modules() if part.training] == [nn.Dropout]
        one, same, other = (posterior.predict(X, 20, generator(seed)).log_probs for seed in (1, 1, 2))
        assert torch.equal(one, same)
        assert not torch.equal(one, other)
        for kind, samples in (("a point", 1), ("particles", 1), ("particles", 20)):
            posterior, stream = posterior_of_net(kind=kind, dropout=True), generator(1)
            assert not torch.equal(*(posterior.predict(X, samples, stream).log_probs for _ in range(2)))


class TestParts:
    def test_the_module_has_the_mean_weights_or_those_of_a_draw(self) -> None:
        posterior = posterior_of_net()
        draw = posterior.layout.unflatten(posterior.distribution.draws[2])  # type: ignore[attr-defined]
        for found, weights in ((posterior.module(), posterior.mean), (posterior.module(2), draw)):
            assert all(torch.equal(value, weights[name]) for name, value in found.named_parameters())
            assert not any(part.training for part in found.modules())
        point = posterior_of_net(kind="a point")
        expected = torch.log_softmax(point.module()(X), 1)
        torch.testing.assert_close(point.predict(X).log_probs, expected, rtol=1e-12, atol=1e-12)

    def test_fixed_values_and_random_buffers_take_the_place_of_the_models(self) -> None:
        model = network(3).double()
        layout = Layout.of({name: model.state_dict()[name] for name in ("4.weight", "4.bias", "1.running_mean")})
        fixed = {"0.weight": normal(8, 6, seed=1), "1.running_var": normal(8, seed=2).exp()}
        draws = Particles(normal(4, layout.size, seed=3))
        posterior = Posterior(model, rl.Prevalence([0.2, 0.3, 0.5]), rl.Categorical(), draws, layout, fixed)
        probs = []
        for draw in draws.draws:
            model.load_state_dict(model.state_dict() | fixed | layout.unflatten(draw))
            probs.append(model(X).softmax(1))
        torch.testing.assert_close(posterior.predict(X).log_probs.exp(), torch.stack(probs).mean(0))

    def test_the_repr_says_what_it_is(self) -> None:
        words = "Posterior(6 draws in 2 chains over 99 random weights of Sequential, Categorical, Prevalence(population=["
        assert repr(posterior_of_net()).startswith(words)
        assert "LowRankGaussian over 99" in repr(posterior_of_net(kind="LowRankGaussian"))
        for way in ("dropout", "linearised"):
            told = repr(posterior_of_net(None, 3, "a point", None, **{way: True}))
            assert f"1 draw over 99 random weights of Sequential, {way}, Categorical" in told


MODEL = network(3).double()
LAYOUT = Layout.of(dict(MODEL.named_parameters()))
POINT = Particles(torch.zeros(1, LAYOUT.size, dtype=torch.float64))
MIX = rl.Prevalence(population(3))
DENSITY = rl.ContinuousPrevalence(Normal(0.0, 1.0))
LINEAR = Layout.of(dict(nn.Linear(2, 3).named_parameters()))
BUFFER = Layout(("1.running_mean",), ((8,),))
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "a density for classes": (lambda: Posterior(MODEL, DENSITY, rl.Categorical(), POINT, LAYOUT), "Prevalence of classes"),
    "a layout of another size": (
        lambda: Posterior(MODEL, MIX, rl.Categorical(), Particles(torch.zeros(1, 4)), LAYOUT),
        r"of 99 weights, but got \(4,\)",
    ),
    "weights the model has not": (
        lambda: Posterior(MODEL, MIX, rl.Categorical(), POINT, Layout(("no",), ((LAYOUT.size,),))),
        "it has no such weight",
    ),
    "weights of another shape": (
        lambda: Posterior(MODEL, MIX, rl.Categorical(), POINT, LAYOUT, {"1.running_var": torch.ones(3)}),
        r"it has it as \(8,\)",
    ),
    "no dropout": (
        lambda: Posterior(nn.Linear(2, 3), MIX, rl.Categorical(), Particles(torch.zeros(1, 9)), LINEAR, dropout=True),
        "a model that drops out",
    ),
    "dropout of a linear model": (lambda: posterior_of_net(dropout=True, linearised=True), "but got both"),
    "a buffer to linearise in": (
        lambda: Posterior(MODEL, MIX, rl.Categorical(), Particles(normal(2, 8)), BUFFER, linearised=True),
        r"but `1\.running_mean` is a buffer",
    ),
    "no draws": (lambda: posterior_of_net().predict(X, samples=0), "`samples` to be an int"),
    "half a draw": (lambda: posterior_of_net().sample(0.5), "`n` to be an int"),  # type: ignore[arg-type]
    "a seed": (lambda: posterior_of_net().predict(X, generator=3), "to be a torch.Generator"),  # type: ignore[arg-type]
    "no rows at once": (lambda: posterior_of_net().predict(X, batch_size=0), "`batch_size` to be an int"),
    "rows that cannot be cut": (lambda: posterior_of_net().predict((X,), batch_size=2), "to cut, but got tuple"),
    "a support for classes": (lambda: posterior_of_net().predict(X, support=[1.0]), "no `support` with classes"),
    "no support for a density": (
        lambda: over_a_line(rl.Gaussian(), DENSITY)[0].predict(normal(2, 3)),
        "`support`, but got none",
    ),
    "too few outputs": (
        lambda: posterior_of_net(rl.Categorical(), 4, net=network(3).double()).predict(X),
        "4 classes, but got 3",
    ),
    "a draw beyond the last": (lambda: posterior_of_net().module(6), "got 6 of 6 draws in 2 chains"),
    "a draw of a Gaussian": (lambda: posterior_of_net(kind="DenseGaussian").module(0), "got 0 of DenseGaussian"),
    "masks to be fixed": (lambda: posterior_of_net(dropout=True).as_module(), "that can be fixed, but dropout's masks"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_with_a_remedy(what: str) -> None:
    assert_refused(*BAD[what])


SURVEY = rl.Prevalence.beta(2.5, 48.5)  # 0.8 to 12 %
CASE_CONTROL = Logistic(1, n=240, population=2.5 / 51)
ORIGIN = torch.zeros(1, 1).double()


def survey_target(likelihood: Any = None) -> LogPosterior:
    """240 case-control rows and a survey of 51 people, under a wide prior of the weights."""
    likelihood = rl.Bernoulli() if likelihood is None else likelihood
    model = nn.Linear(1, likelihood.num_outputs or 2).double()
    nn.init.zeros_(model.weight)
    rl.start_at_prevalence(model, SURVEY, likelihood)
    return inference.log_posterior(model, SURVEY, likelihood, prior=inference.gaussian_prior(10.0, {"bias": model.bias}))


@cache
def approximated() -> Posterior:
    return inference.laplace(survey_target(), CASE_CONTROL.data)


@cache
def by_importance(draws: int = 40_000) -> tuple[Tensor, Tensor, Tensor]:
    """Draws of slope, intercept and logit π, and their weights: the likelihood of rows sampled by class, by hand.

    p(1|x) in the sample, of equal classes, has the logit slope x + intercept − logit π.
    """
    (x, y), stream = CASE_CONTROL.data, generator(31)
    t = 0.75 * torch.randn(draws, 2, dtype=torch.float64, generator=stream) / torch.tensor([1.0, 3.0]).double()
    t = t / torch.randn(draws, 6, dtype=torch.float64, generator=stream).square().mean(1, keepdim=True).sqrt()
    log_proposal = -4 * torch.log1p((t * torch.tensor([1.0, 3.0]).double() / 0.75).square().sum(1) / 6)
    slope = 1 + 0.25 * torch.randn(draws, dtype=torch.float64, generator=stream)
    log_proposal = log_proposal - 0.5 * ((slope - 1) / 0.25).square()
    log_odds, intercept = math.log(2.5 / 48.5) + t[:, 0], math.log(2.5 / 48.5) + t[:, 0] + t[:, 1] - 0.4
    z = slope[:, None] * x[:, 0] + (intercept - log_odds)[:, None]
    likelihood = torch.nn.functional.logsigmoid(torch.where(y == 1, z, -z)).sum(1)
    survey = 2.5 * torch.nn.functional.logsigmoid(log_odds) + 48.5 * torch.nn.functional.logsigmoid(-log_odds)
    weights = torch.softmax(likelihood + survey - 0.5 * (slope / 10).square() - log_proposal, 0)
    assert float(1 / weights.square().sum()) > 5000, "too few draws count"
    return slope, intercept, weights


@pytest.mark.long
class TestAnUncertainPrevalence:
    """Rows sampled by class say nothing about π, so its uncertainty is that of the survey."""

    @pytest.mark.parametrize("gaussian", [True, False])
    @unchecked_types()
    def test_gaussians_and_draws_have_the_intercept_and_the_risk_of_importance_sampling(self, gaussian: bool) -> None:
        slope, intercept, weights = by_importance()
        options: dict[str, Any] = {"draws": 200, "warmup": 50, "chains": 1}
        posterior = approximated() if gaussian else inference.nuts(survey_target(), CASE_CONTROL.data, **options)
        for name, drawn in (("weight", slope), ("bias", intercept)):
            mean = weights @ drawn
            spread = float((weights @ (drawn - mean).square()).sqrt())
            assert float(posterior.standard_deviation[name]) == pytest.approx(spread, rel=0.05 if name == "bias" else 0.15)
            assert float(posterior.mean[name]) == pytest.approx(float(mean), abs=0.25 * spread)
        order = intercept.argsort()
        ends = torch.searchsorted(weights[order].cumsum(0), torch.tensor([0.025, 0.975]).double())
        limits = torch.sigmoid(intercept[order][ends])
        found = posterior.predict(ORIGIN, level=0.95)
        for ours, limit in zip((found.low[0, 1], found.high[0, 1]), limits, strict=True):
            assert float(torch.logit(ours)) == pytest.approx(float(torch.logit(limit)), abs=0.15)

    def test_its_intercept_is_as_uncertain_as_the_classifiers(self) -> None:
        """Which knows that the class counts are fixed by design: a difference of 1/n₀ + 1/n₁ in the variance."""
        from rightloss.sklearn import InformationGainClassifier

        x, y = CASE_CONTROL.data
        classifier = InformationGainClassifier(population=SURVEY, penalty=None).fit(x.numpy(), y.numpy())
        error = classifier.summary().frame.loc["intercept", "std_err"]
        assert float(approximated().standard_deviation["bias"]) ** 2 - error**2 == pytest.approx(2 / 120, rel=0.2)

    def test_plain_cross_entropy_leaves_it_out(self) -> None:
        known = inference.log_posterior(
            nn.Linear(1, 1).double(), rl.Prevalence(SURVEY.population), rl.Bernoulli(), loss=rl.LogLikelihoodLoss
        )
        unsure = inference.log_posterior(known.model, SURVEY, rl.Bernoulli(), loss=rl.LogLikelihoodLoss)
        spreads = [inference.laplace(each, CASE_CONTROL.data).standard_deviation["bias"] for each in (known, unsure)]
        torch.testing.assert_close(*spreads)

    def test_the_draws_have_the_stated_moments(self) -> None:
        for posterior in (approximated(), inference.laplace(survey_target(rl.Categorical(2)), CASE_CONTROL.data)):
            draws = posterior.sample(20_000)
            for name, mean in posterior.mean.items():
                assert_mean_is(draws[name].flatten(1), mean.flatten())
                assert_mean_is((draws[name] - mean).square().flatten(1), posterior.standard_deviation[name].square().flatten())

    def test_the_bias_that_moves_is_found_in_any_network_and_only_there(self) -> None:
        class Net(nn.Module):
            def __init__(self, bias: bool) -> None:
                super().__init__()
                self.last, self.first = nn.Linear(2, 2, bias=bias), nn.Linear(1, 2)  # not in the order of use

            def forward(self, x: Tensor) -> Tensor:
                outputs: Tensor = self.last(torch.tanh(self.first(x)))
                return outputs

        for bias, name in ((True, "last.bias"), (False, None)):
            found = inference.map_estimate(inference.log_posterior(Net(bias).double(), SURVEY), CASE_CONTROL.data, steps=5)
            assert found.record.get("intercept") == name
            spread = found.standard_deviation
            assert [each for each, value in spread.items() if bool((value > 0).any())] == ([name] if name else [])
            limits = found.predict(ORIGIN, level=0.9)
            width = torch.logit(limits.high) - torch.logit(limits.low)
            survey = torch.logit(torch.tensor(SURVEY.sample(20_000, generator(1))[:, 1]))
            assert float(width[0, 1]) == pytest.approx(float(survey.quantile(0.95) - survey.quantile(0.05)), rel=0.1)

    def test_one_set_of_weights_has_the_interval_of_retarget_interval(self) -> None:
        posterior = inference.ensemble(survey_target(), CASE_CONTROL.data, members=1, steps=20)
        x = torch.linspace(-2, 2, 5).double()[:, None]
        found, log_probs = posterior.predict(x, level=0.9), posterior.predict(x).log_probs
        exact = retarget_interval(log_probs, SURVEY, SURVEY, level=0.9)
        torch.testing.assert_close(found.log_probs, log_probs)
        torch.testing.assert_close(torch.logit(found.low), torch.logit(exact.low), rtol=0, atol=0.1)
        torch.testing.assert_close(torch.logit(found.high), torch.logit(exact.high), rtol=0, atol=0.1)

    def test_a_posteriors_prediction_is_not_silently_treated_as_certain(self) -> None:
        with pytest.warns(rl.PrevalenceWarning, match="leaves out the uncertainty of a posterior"):
            of_survey = retarget_interval(approximated().predict(ORIGIN), SURVEY, SURVEY)
        both = approximated().predict(ORIGIN, population=SURVEY, level=0.95)
        assert float(both.low[0, 1]) < float(of_survey.low[0, 1]) < float(of_survey.high[0, 1]) < float(both.high[0, 1])

    def test_a_known_population_leaves_out_the_survey_and_a_file_keeps_it(self, tmp_path: Path) -> None:
        posterior = approximated()
        known = Posterior(
            posterior.model, rl.Prevalence(SURVEY.population), rl.Bernoulli(), posterior.distribution, posterior.layout
        )
        for to in (0.03, SURVEY):
            low, same = (each.predict(ORIGIN, population=to, level=0.9).low for each in (posterior, known))
            assert torch.equal(low, same)
        posterior.save(tmp_path / "posterior.safetensors")
        again = Posterior.load(tmp_path / "posterior.safetensors", nn.Linear(1, 1).double(), rl.Bernoulli())
        assert torch.equal(again.sample(3)["bias"], posterior.sample(3)["bias"])
