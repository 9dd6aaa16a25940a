"""An ensemble: trained together or one after the other, it is the same; and where its members start."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from members import assert_refused, generator
from torch import Tensor, nn

import rightloss as rl
from rightloss.inference import gaussian_prior, log_posterior
from rightloss.inference.distributions import Particles
from rightloss.inference.ensemble import ensemble
from rightloss.inference.minibatches import Minibatches
from rightloss.inference.posterior import Posterior

STEPS, LR, BATCH, MEMBERS = 12, 0.05, 40, 3


def data() -> tuple[Tensor, Tensor, rl.Prevalence]:
    """Three classes, 180 examples."""
    y = torch.arange(180) % 6 // 2
    x = torch.randn(180, 4, dtype=torch.float64, generator=generator(11)) + y[:, None]
    return x, y, rl.Prevalence.from_labels(y, population=[0.9, 0.07, 0.03])


def net(*extra: nn.Module, outputs: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), *extra, nn.Tanh(), nn.Linear(6, outputs)).double()


def starts(model: nn.Module, spread: float = 0.5) -> list[dict[str, Tensor]]:
    own = generator(12)
    draw = {
        name: torch.randn(MEMBERS, *value.shape, dtype=value.dtype, generator=own) for name, value in model.named_parameters()
    }
    return [{name: spread * values[member] for name, values in draw.items()} for member in range(MEMBERS)]


def trained_alone(
    model: nn.Module, criterion: nn.Module, start: dict[str, Tensor], batches: list[tuple[Tensor, Tensor]]
) -> Tensor:
    """A plain loop: the loss, weight decay as a Gaussian prior of scale 1, Adam."""
    model = copy.deepcopy(model)
    model.load_state_dict(start)
    weights = [*model.parameters(), *criterion.parameters()]
    optimiser = torch.optim.Adam(weights)
    for step, (x, y) in enumerate(batches):
        optimiser.param_groups[0]["lr"] = LR * (1 - step / STEPS) ** 2
        optimiser.zero_grad()
        decay = sum((0.5 * value.square()).sum() for value in weights)
        (criterion(model(x), y) + decay / len(data()[1])).backward()
        optimiser.step()
    return torch.cat([value.detach().flatten() for value in weights])


def draws_of(posterior: Posterior) -> Tensor:
    assert isinstance(posterior.distribution, Particles)
    return posterior.distribution.draws


# What is given to `log_posterior`; without a loss it is the information gain, of which the first would be the default.
ROWS: dict[str, Callable[[], dict[str, Any]]] = {
    "gain": dict,
    "gain, batch": lambda: {"marginal": rl.BatchMarginal()},
    "ordered, slow average": lambda: {
        "reference": data()[2].population,
        "marginal": rl.RunningMarginal(0.99),
        "likelihood": rl.CumulativeLogit(3).double(),
    },
    "weighted": lambda: {"loss": rl.WeightedLoss},
    "logit-adjusted": lambda: {"loss": rl.LogitAdjustedLoss},
}


@pytest.mark.long
@pytest.mark.parametrize(("name", "evidence"), [("gain", 0.0), *((name, 0.5) for name in ROWS)])
def test_members_trained_together_are_those_trained_alone_by_a_plain_loop(name: str, evidence: float) -> None:
    x, y, known = data()
    prevalence, options, own = rl.Prevalence(known.population, known.sampling, evidence), ROWS[name](), ROWS[name]()
    model = net(outputs=options["likelihood"].num_outputs if "likelihood" in options else 3)
    begin = starts(model)
    batches = Minibatches((x, y), BATCH, torch.Generator().manual_seed(5))
    seen = [batches.next_each(MEMBERS) for _ in range(STEPS)]
    target = log_posterior(model, prevalence, prior=gaussian_prior(1.0), **options)
    found = ensemble(
        target, (x, y), members=MEMBERS, initial=lambda member: begin[member], steps=STEPS, lr=LR, batch_size=BATCH, seed=5
    )
    loss = own.pop("loss", rl.InformationGainLoss)
    for member, start in enumerate(begin):
        criterion = loss(prevalence, **copy.deepcopy(own))
        alone = trained_alone(model, criterion, start, [(xs[member], ys[member]) for xs, ys in seen])
        torch.testing.assert_close(draws_of(found)[member], alone, rtol=1e-6, atol=1e-8)


def test_by_default_matrices_are_redrawn_and_biases_and_frozen_layers_stay_the_models() -> None:
    x, y, prevalence = data()
    with torch.random.fork_rng():
        torch.manual_seed(0)  # the seed of the starts: a model made with the same one is drawn again
        model: Any = net(nn.LayerNorm(6), nn.Linear(6, 6))
    model[2].requires_grad_(False)
    rl.start_at_prevalence(model[4], prevalence)
    model[1].weight.data.fill_(2)
    found = ensemble(log_posterior(model, prevalence), (x, y), members=4, steps=0)
    begin = found.sample(4)
    assert not any(name.startswith("2.") for name in begin)
    trained: Any = found.module(1)
    assert torch.equal(trained[2].weight, model[2].weight)
    for name, value in begin.items():
        others = [model.get_parameter(name).detach(), *value]
        alike = [torch.equal(one, other) for k, one in enumerate(others) for other in others[:k]]
        assert all(alike) if value.ndim == 2 else not any(alike)
    assert 0.4 < float(begin["0.weight"].abs().max()) <= 0.5  # nn.Linear's own start: uniform within 1/√fan_in


class Branching(nn.Module):
    """A net that looks at values on its way, which vmap does not allow."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.inner(x)
        return outputs if float(outputs.detach().sum()) > -1e9 else -outputs


@pytest.mark.long
def test_a_model_that_vmap_refuses_finds_the_same_where_nothing_is_random() -> None:
    x, y, prevalence = data()
    model = Branching()
    begin = starts(model)
    inner = [{name.removeprefix("inner."): value for name, value in start.items()} for start in begin]

    def found_from(one: nn.Module, each: list[dict[str, Tensor]]) -> Posterior:
        target = log_posterior(one, prevalence, prior=gaussian_prior(1.0))
        return ensemble(target, (x, y), members=MEMBERS, initial=lambda member: each[member], batch_size=None, steps=STEPS)

    found = [found_from(model, begin), found_from(model.inner, inner)]
    torch.testing.assert_close(draws_of(found[0]), draws_of(found[1]), rtol=1e-6, atol=1e-8)
    traces = [torch.tensor(each.record["log_posterior"]) for each in found]
    assert traces[0].shape == (STEPS, MEMBERS)
    torch.testing.assert_close(*traces, rtol=1e-5, atol=1e-5)


@pytest.mark.long
def test_each_member_has_moving_averages_and_an_order_of_its_own() -> None:
    x, y, prevalence = data()
    options: dict[str, Any] = {"members": 3, "steps": 20, "lr": 1e-9}
    found = ensemble(log_posterior(net(nn.BatchNorm1d(6)), prevalence), (x, y), batch_size=None, **options)
    assert "1.running_mean" in found.layout.names
    for member in range(3):
        trained: Any = found.module(member)
        torch.testing.assert_close(trained[1].running_mean, (1 - 0.9**20) * trained[0](x).mean(0), rtol=1e-6, atol=1e-6)
        assert int(trained[1].num_batches_tracked) == 20
    means = found.sample(3)["1.running_mean"]
    assert not bool(torch.isclose(means[0], means[1]).any())
    alike = log_posterior(nn.Sequential(nn.BatchNorm1d(4, affine=False), nn.Linear(4, 3)).double(), prevalence)
    orders = ensemble(alike, (x, y), batch_size=90, initial=lambda member: {}, **options).sample(3)["0.running_mean"]
    assert len(orders.unique(dim=0)) == 3  # of the same minibatches these would be the same


def test_invalid_options_are_refused() -> None:
    x, y, prevalence = data()
    target = log_posterior(net(), prevalence)
    assert_refused(lambda: ensemble(target, (x, y), members=0), "`members`")
    assert_refused(lambda: ensemble(target, (x, y), initial=lambda member: {"9.weight": x}), "among")
    assert_refused(lambda: ensemble(target, (x, y), initial=lambda member: {"0.weight": x}), r"of shape \(6, 4\)")
    assert_refused(lambda: ensemble(target, (x, y), initial=cast(Any, lambda member: x)), "by name")
    bare = nn.ParameterList([nn.Parameter(x)])
    assert_refused(lambda: ensemble(log_posterior(bare, prevalence), (x, y)), "can be reset")
