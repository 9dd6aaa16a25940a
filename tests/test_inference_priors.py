"""Priors as functions of the weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from members import assert_refused, generator
from scipy.integrate import quad
from torch import Tensor, nn
from torch.func import grad, vmap

from rightloss import CumulativeLogit
from rightloss.inference import gaussian_prior, horseshoe_prior, layer_prior
from rightloss.inference.priors import Prior


def _bias_at_two() -> nn.Linear:
    layer = nn.Linear(1, 1).double()
    nn.init.constant_(layer.bias, 2.0)
    return layer


# Each over one weight named "bias".
PRIORS: dict[str, Callable[[], Prior]] = {
    "gaussian": lambda: gaussian_prior(0.7),
    "gaussian, moved": lambda: gaussian_prior({"bias": 0.7}, {"bias": torch.tensor([2.0])}),
    "layer": lambda: layer_prior(_bias_at_two(), 0.7),
    "horseshoe": lambda: horseshoe_prior(0.7),
    "horseshoe, moved": lambda: horseshoe_prior(0.7, {"bias": 2.0}),
}
each_prior = pytest.mark.parametrize("make", PRIORS.values(), ids=PRIORS.keys())


def density(prior: Prior, at: float) -> float:
    return float(prior({"bias": torch.tensor([at], dtype=torch.float64)}).exp())


@each_prior
def test_a_prior_is_a_density_with_a_finite_gradient_everywhere_and_vmap_is_a_loop(make: Callable[[], Prior]) -> None:
    prior = make()
    inner = quad(lambda at: density(prior, at), -30, 30, points=[0, 2], limit=500)[0]
    outer = 2 * quad(lambda t: density(prior, 30 / t) * 30 / t**2, 0, 1)[0]  # tails of 1/w², alike on both sides but for 2
    assert inner + outer == pytest.approx(1, abs=3e-3)
    many = {"bias": torch.tensor([[0.0], [2.0], [-1e-9], [0.4], [1e6]], dtype=torch.float64)}
    slopes = vmap(grad(prior))(many)["bias"]
    assert bool(torch.isfinite(slopes).all())
    torch.testing.assert_close(vmap(prior)(many), torch.stack([prior({"bias": each}) for each in many["bias"]]))


def weights(*shapes: tuple[int, ...]) -> dict[str, Tensor]:
    stream = generator(4)
    return {f"part{i}": torch.randn(shape, dtype=torch.float64, generator=stream) for i, shape in enumerate(shapes)}


def test_a_gaussian_prior_is_torchs_normal_of_every_weight() -> None:
    params = weights((3, 2), (4,), ())
    scales = {"part0": 0.5, "part1": 2.0, "part2": 1.0}
    centre: dict[str, Any] = {"part1": torch.arange(4.0), "part2": 3.0}
    normal = torch.distributions.Normal
    expected = normal(0.0, 0.5).log_prob(params["part0"]).sum()
    expected = expected + normal(torch.arange(4.0).double(), 2.0).log_prob(params["part1"]).sum()
    expected = expected + normal(3.0, 1.0).log_prob(params["part2"])
    torch.testing.assert_close(gaussian_prior(scales, centre)(params), expected)


def test_the_horseshoe_has_a_pole_heavy_tails_and_a_slab_that_ends_them() -> None:
    prior, held = horseshoe_prior(0.1), horseshoe_prior(0.1, slab=2.0)
    assert density(prior, 1e-6) > 4 * density(prior, 1e-2) > 16 * density(prior, 1.0)
    assert density(prior, 200.0) / density(prior, 100.0) == pytest.approx(1 / 4, rel=1e-3)
    gaussian = math.exp((10**2 - 20**2) / (2 * 2.0**2))
    assert density(held, 20.0) / density(held, 10.0) == pytest.approx(gaussian / 4, rel=1e-3)


class Net(nn.Module):
    """A part of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 5, 2), nn.BatchNorm2d(5), nn.Linear(5, 2)
        self.double()


def test_a_layer_prior_scales_weights_by_their_inputs_and_believes_biases() -> None:
    net = Net()
    likelihood = CumulativeLogit(4).double()
    prior = layer_prior(net, 0.5, likelihood)
    named = dict(net.named_parameters()) | {f"likelihood.{name}": value for name, value in likelihood.named_parameters()}
    params = {name: value.detach() + 0.3 for name, value in named.items()}
    slopes = grad(prior)(params)
    for name, fan_in in (("conv.weight", 12), ("head.weight", 5)):
        torch.testing.assert_close(slopes[name], -params[name] * fan_in / 0.25)
    for name in ("conv.bias", "norm.weight", "norm.bias", "head.bias", "likelihood.first", "likelihood.log_gaps"):
        torch.testing.assert_close(slopes[name], torch.full_like(params[name], -0.3 / 0.25))


def test_a_layer_prior_takes_some_of_the_weights_and_others_besides() -> None:
    prior, own = layer_prior(nn.Linear(4, 2), 0.5), weights((2,))
    standard = torch.distributions.Normal(0.0, 0.5).log_prob(own["part0"]).sum()
    torch.testing.assert_close(prior(own), standard)
    head = {"weight": torch.ones(2, 4, dtype=torch.float64)}
    torch.testing.assert_close(prior(own | head), standard + prior(head))


def test_the_centre_is_kept_as_it_was_given() -> None:
    centre = {"bias": torch.tensor([2.0])}
    prior = gaussian_prior(1.0, centre)
    before = density(prior, 2.0)
    centre["bias"] += 5
    assert density(prior, 2.0) == before


REFUSED: list[tuple[Callable[[], Any], str]] = [
    *(
        (partial(gaussian_prior, scale), "`scale` to be positive and finite")  # type: ignore[arg-type]
        for scale in (0, -1.0, math.inf, math.nan, "1", True)
    ),
    (lambda: gaussian_prior({"a": 0.0}), "positive and finite"),
    (lambda: layer_prior(nn.Linear(2, 2), 0.0), "positive and finite"),
    (lambda: horseshoe_prior({"bias": 1.0}), "positive and finite"),  # type: ignore[arg-type]
    (lambda: horseshoe_prior(1.0, slab=0.0), "`slab` to be positive and finite"),
    (lambda: gaussian_prior({"part0": 1.0})(weights((3,), (2,))), "'part1'"),
    (lambda: gaussian_prior(1.0, {"part0": torch.zeros(4)})(weights((3,))), "'part0'"),
    (lambda: gaussian_prior(1.0, {"part0": "zero"}), "numbers"),
]


@pytest.mark.parametrize(("call", "words"), REFUSED, ids=range(len(REFUSED)))
def test_scales_and_centres_that_do_not_fit_are_refused(call: Callable[[], Any], words: str) -> None:
    assert_refused(call, words)
