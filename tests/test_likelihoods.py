"""Likelihoods: the table against plain formulas in many digits, their kinship, where they start, densities, bad input."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from functools import partial
from typing import Any, TypeVar

import pytest
import torch
from members import (
    LEVELS,
    LIKELIHOODS,
    ClassLikelihood,
    assert_refused,
    each_likelihood,
    generator,
    population,
    random_outputs,
)
from torch import Tensor, nn
from torch.distributions import Cauchy, Distribution, Independent, Laplace, MultivariateNormal, Normal, Poisson, StudentT
from torch.func import functional_call, vmap
from torch.testing import assert_close

from rightloss.likelihoods import (
    Bernoulli,
    Categorical,
    CumulativeLogit,
    FromDistribution,
    Gaussian,
    Likelihood,
    OnionPeeling,
    StickBreaking,
    start_at_prevalence,
)
from rightloss.prevalence import ContinuousPrevalence, Prevalence

Make = Callable[[], ClassLikelihood]
Member = TypeVar("Member", bound=ClassLikelihood)


# The plain formulas, in probability space, one example at a time; 60 digits, and exponents without end, make them exact.


def sigmoid(z: Decimal) -> Decimal:
    return 1 / (1 + (-z).exp())


def softmax(z: list[Decimal]) -> list[Decimal]:
    return [each.exp() / sum(other.exp() for other in z) for each in z]


def peel(z: list[Decimal], levels: int) -> list[Decimal]:
    """Both ends against neither, then inwards; a last pair is split by the last output."""
    p, left, low, high = [Decimal(0)] * levels, Decimal(1), 0, levels - 1
    while low < high:
        if high - low == 1:
            lower, upper = softmax([Decimal(0), z.pop(0)])
            neither = Decimal(0)
        else:
            lower, upper, neither = softmax([z.pop(0), z.pop(0), Decimal(0)])
        p[low], p[high] = left * lower, left * upper
        left, low, high = left * neither, low + 1, high - 1
    if low == high:
        p[low] = left
    return p


def break_stick(z: list[Decimal]) -> list[Decimal]:
    """Of what is left of the stick, the share σ(z_k) is level k; the last level is the remainder."""
    p, left = [], Decimal(1)
    for each in z:
        p.append(left * sigmoid(each))
        left *= sigmoid(-each)
    return [*p, left]


def accumulate(z: Decimal, first: Decimal, log_gaps: list[Decimal]) -> list[Decimal]:
    """Differences of p(y ≤ k) = σ(θ_k − z), or of p(y > k) where that is the smaller."""
    cutpoints = [first]
    for log_gap in log_gaps:
        cutpoints.append(cutpoints[-1] + log_gap.exp())
    below = [Decimal(0), *(sigmoid(cutpoint - z) for cutpoint in cutpoints), Decimal(1)]
    above = [Decimal(1), *(sigmoid(z - cutpoint) for cutpoint in cutpoints), Decimal(0)]
    return [below[k + 1] - below[k] if below[k + 1] < above[k] else above[k] - above[k + 1] for k in range(len(cutpoints) + 1)]


def plain(likelihood: ClassLikelihood, z: list[Decimal]) -> list[Decimal]:
    if isinstance(likelihood, Categorical):
        return softmax(z)
    if isinstance(likelihood, Bernoulli):
        return [sigmoid(-z[0]), sigmoid(z[0])]
    if isinstance(likelihood, OnionPeeling):
        return peel(z, likelihood.num_classes)
    if isinstance(likelihood, StickBreaking):
        return break_stick(z)
    first, log_gaps = ([Decimal(value) for value in each.tolist()] for each in (likelihood.first, likelihood.log_gaps))
    return accumulate(z[0], first[0], log_gaps)


def exact_table(likelihood: ClassLikelihood, outputs: Tensor) -> Tensor:
    """log p by the plain formulas, float64."""
    with localcontext() as context:
        context.prec = 60
        rows = [plain(likelihood, [Decimal(value) for value in row]) for row in outputs.tolist()]
        return torch.tensor([[float(p.ln()) for p in row] for row in rows], dtype=torch.float64)


def extreme_outputs(likelihood: ClassLikelihood, dtype: torch.dtype) -> Tensor:
    """All high, all low, in turn, and at random, with near ties among them."""
    outputs = 1e4 * random_outputs(likelihood, 6, scale=1.0).sign()
    outputs[0], outputs[1] = 1e4, -1e4
    outputs[2, ::2], outputs[2, 1::2] = 1e4, -1e4
    outputs[3:] += random_outputs(likelihood, 3, scale=1.0, seed=1)
    return outputs.to(dtype)


def moved(likelihood: Member) -> Member:
    """In float64, with parameters of its own away from where they start."""
    likelihood.double()
    with torch.no_grad():
        for parameter in likelihood.parameters():
            parameter.add_(torch.randn(parameter.shape, dtype=torch.float64, generator=generator(5)))
    return likelihood


class Table(nn.Module):
    """A likelihood as a function of its outputs and its own parameters, for `functional_call`."""

    def __init__(self, likelihood: ClassLikelihood | Gaussian, support: Tensor | None = None) -> None:
        super().__init__()
        self.likelihood, self.support = likelihood, support

    def forward(self, outputs: Tensor) -> Tensor:
        return self.likelihood.table(outputs, self.support)


class TestTable:
    @each_likelihood
    def test_it_keeps_the_contract(self, make: Make, k: int) -> None:
        likelihood = make()
        assert isinstance(likelihood, Likelihood)
        assert likelihood.over_classes
        assert likelihood.num_classes == k
        assert likelihood.table(random_outputs(likelihood, 7)).shape == (7, k)
        assert likelihood.table(random_outputs(likelihood, 0)).shape == (0, k)

    @pytest.mark.parametrize(
        ("likelihood", "expected"),
        [
            (Categorical(), None),
            (Categorical(4), 4),
            (Bernoulli(), 1),
            *((OnionPeeling(levels), levels - 1) for levels in LEVELS),
            *((StickBreaking(levels), levels - 1) for levels in LEVELS),
            *((CumulativeLogit(levels), 1) for levels in LEVELS),
            (Gaussian(), 1),
            (Gaussian(3), 3),
            (FromDistribution(lambda z: Laplace(z[:, 0], z[:, 1].exp()), 2), 2),
        ],
        ids=str,
    )
    def test_it_says_how_many_outputs_it_takes(self, likelihood: Likelihood, expected: int | None) -> None:
        assert likelihood.num_outputs == expected

    @each_likelihood
    @pytest.mark.parametrize("scale", [0.1, 2.0, 30.0])
    def test_rows_sum_to_1(self, make: Make, k: int, scale: float) -> None:
        likelihood = moved(make())
        total = likelihood.table(random_outputs(likelihood, 50, scale)).exp().sum(1)
        assert_close(total, torch.ones(50, dtype=torch.float64), rtol=1e-12, atol=0)

    @each_likelihood
    def test_it_is_the_plain_formula(self, make: Make, k: int) -> None:
        likelihood = moved(make())
        outputs = random_outputs(likelihood, 20)
        assert_close(likelihood.table(outputs), exact_table(likelihood, outputs), rtol=1e-12, atol=1e-14)

    # Absolute errors in log p are relative ones in p: a few roundings.
    @each_likelihood
    @pytest.mark.parametrize(("dtype", "rtol", "atol"), [(torch.float32, 1e-6, 1e-6), (torch.float64, 1e-12, 1e-14)])
    def test_it_is_exact_at_outputs_of_ten_thousand(
        self, make: Make, k: int, dtype: torch.dtype, rtol: float, atol: float
    ) -> None:
        likelihood = make().to(dtype)
        outputs = extreme_outputs(likelihood, dtype)
        table = likelihood.table(outputs)
        assert table.dtype == dtype
        assert_close(table.double(), exact_table(likelihood, outputs), rtol=rtol, atol=atol)
        assert_close(table.logsumexp(1), torch.zeros(len(outputs), dtype=dtype), rtol=0, atol=atol)

    @each_likelihood
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_its_gradients_are_finite_at_outputs_of_ten_thousand(self, make: Make, k: int, dtype: torch.dtype) -> None:
        likelihood = make().to(dtype)
        outputs = extreme_outputs(likelihood, dtype).requires_grad_()
        table = likelihood.table(outputs)
        for column in range(k):
            for gradient in torch.autograd.grad(table[:, column].sum(), [outputs, *likelihood.parameters()], retain_graph=True):
                assert bool(gradient.isfinite().all())

    @each_likelihood
    def test_a_support_selects_its_columns(self, make: Make, k: int) -> None:
        likelihood = make()
        outputs = random_outputs(likelihood, 6)
        table, support = likelihood.table(outputs), [k - 1, 0, k - 1, k // 2]
        found = likelihood.table(outputs, torch.tensor(support))
        assert_close(found, torch.stack([table[:, label] for label in support], dim=1), rtol=0, atol=0)

    @each_likelihood
    def test_its_gradient_is_right(self, make: Make, k: int) -> None:
        check_gradient(Table(moved(make())), random_outputs(make(), 4).requires_grad_())

    @each_likelihood
    def test_vmap_over_outputs_is_a_loop(self, make: Make, k: int) -> None:
        likelihood = moved(make())
        batches = random_outputs(likelihood, 15).reshape(3, 5, -1)
        assert_close(
            vmap(likelihood.table)(batches), torch.stack([likelihood.table(each) for each in batches]), rtol=1e-14, atol=0
        )

    @pytest.mark.parametrize(("name", "make"), [(name, make) for name, make, _ in LIKELIHOODS if list(make().parameters())])
    def test_vmap_over_its_own_parameters_is_a_loop(self, name: str, make: Make) -> None:
        table = Table(moved(make()))
        outputs = random_outputs(make(), 5)
        weights = {
            name: each + torch.randn(3, *each.shape, dtype=torch.float64, generator=generator())
            for name, each in table.named_parameters()
        }
        found = vmap(lambda w: functional_call(table, w, (outputs,)))(weights)
        loop = [functional_call(table, {name: each[i] for name, each in weights.items()}, (outputs,)) for i in range(3)]
        assert_close(found, torch.stack(loop), rtol=1e-13, atol=0)


def check_gradient(table: Table, outputs: Tensor) -> None:
    """By finite differences, of the outputs and of the likelihood's own parameters."""
    names = [name for name, _ in table.named_parameters()]

    def call(outputs: Tensor, *values: Tensor) -> Any:
        return functional_call(table, dict(zip(names, values, strict=True)), (outputs,))

    assert torch.autograd.gradcheck(call, (outputs, *table.parameters()))


class TestKinship:
    Z = torch.linspace(-50, 50, 101, dtype=torch.float64)[:, None]

    def test_bernoulli_is_two_logits_of_which_the_first_is_0(self) -> None:
        two = Categorical().table(torch.cat([torch.zeros_like(self.Z), self.Z], dim=1))
        # log_softmax has log(1 + e^−z) where logsigmoid has log1p(e^−z): one rounding of a number near 1.
        assert_close(Bernoulli().table(self.Z), two, rtol=1e-15, atol=3e-16)

    def test_onion_peeling_of_two_levels_is_bernoulli(self) -> None:
        assert_close(OnionPeeling(2).table(self.Z), Bernoulli().table(self.Z), rtol=0, atol=0)

    def test_stick_breaking_of_two_levels_is_bernoulli_with_the_sign_flipped(self) -> None:
        assert_close(StickBreaking(2).table(self.Z), Bernoulli().table(-self.Z), rtol=0, atol=0)

    @pytest.mark.parametrize("cutpoint", [0.0, -1.25, 7.5])
    def test_cumulative_logit_of_two_levels_is_bernoulli_shifted_by_its_cutpoint(self, cutpoint: float) -> None:
        likelihood = CumulativeLogit(2).double()
        nn.init.constant_(likelihood.first, cutpoint)
        assert likelihood.cutpoints.tolist() == [cutpoint]
        assert_close(likelihood.table(self.Z), Bernoulli().table(self.Z - cutpoint), rtol=0, atol=0)

    def test_categorical_without_a_number_takes_any(self) -> None:
        for k in (2, 3, 5):
            outputs = random_outputs(Categorical(k), 4)
            assert_close(Categorical().table(outputs), Categorical(k).table(outputs), rtol=0, atol=0)

    @pytest.mark.parametrize("levels", LEVELS)
    def test_onion_peeling_read_backwards_swaps_the_outputs_of_each_pair(self, levels: int) -> None:
        likelihood = OnionPeeling(levels)
        outputs = random_outputs(likelihood, 6)
        swapped = outputs.clone()
        for first in range(0, levels - 2, 2):
            swapped[:, [first, first + 1]] = outputs[:, [first + 1, first]]
        if levels % 2 == 0:
            swapped[:, -1] = -outputs[:, -1]
        assert_close(likelihood.table(swapped), likelihood.table(outputs).flip(1), rtol=1e-14, atol=1e-15)


class TestCumulativeLogit:
    @pytest.mark.parametrize("levels", LEVELS)
    def test_a_larger_output_means_higher_levels(self, levels: int) -> None:
        likelihood = moved(CumulativeLogit(levels))
        outputs = torch.linspace(-8, 8, 100, dtype=torch.float64)[:, None]
        up_to = likelihood.table(outputs).exp().cumsum(1)[:, :-1]
        assert bool((up_to.diff(dim=0) < 0).all())

    @pytest.mark.parametrize("levels", LEVELS)
    def test_the_probability_up_to_a_level_is_one_half_at_its_cutpoint(self, levels: int) -> None:
        likelihood = moved(CumulativeLogit(levels))
        up_to = likelihood.table(likelihood.cutpoints[:, None]).exp().cumsum(1)[:, :-1]
        assert_close(up_to.diagonal(), torch.full((levels - 1,), 0.5, dtype=torch.float64), rtol=1e-13, atol=0)

    @pytest.mark.parametrize("levels", LEVELS)
    def test_cutpoints_increase_whatever_the_parameters(self, levels: int) -> None:
        likelihood = CumulativeLogit(levels).double()
        for seed in range(10):
            for parameter in likelihood.parameters():
                nn.init.normal_(parameter, std=3.0, generator=generator(seed))
            assert likelihood.cutpoints.shape == (levels - 1,)
            assert bool((likelihood.cutpoints.diff() > 0).all())

    @pytest.mark.parametrize("levels", LEVELS)
    def test_all_levels_are_equally_likely_at_0_in_a_new_one(self, levels: int) -> None:
        found = CumulativeLogit(levels).table(torch.zeros(1, 1)).exp()
        assert_close(found, torch.full((1, levels), 1 / levels), rtol=1e-6, atol=0)


def populations(k: int) -> list[Tensor]:
    """At random; each class in turn rare, 1e-9; each class in turn common and all others rare."""
    chosen = [population(k, seed) for seed in range(3)]
    for c in range(k):
        rare, common = population(k, c) + 0.1, torch.full((k,), 1e-9, dtype=torch.float64)
        rare[c] = 0
        rare *= (1 - 1e-9) / rare.sum()
        rare[c], common[c] = 1e-9, 1 - (k - 1) * 1e-9
        chosen += [rare, common]
    return chosen


def predicted(likelihood: ClassLikelihood, prevalence: Prevalence, dtype: torch.dtype) -> Tensor:
    """What a layer started at the prevalence makes of four examples, before it looks at them."""
    likelihood = likelihood.to(dtype)
    assert likelihood.num_outputs is not None
    layer = nn.Linear(3, likelihood.num_outputs, dtype=dtype)
    nn.init.zeros_(layer.weight)
    start_at_prevalence(layer, prevalence, likelihood)
    return likelihood.table(layer(torch.randn(4, 3, dtype=dtype, generator=generator()))).exp()


class TestStart:
    # A float32 logit of 1e-9, −20.7, is rounded by up to 1e-6, which is the relative error of the rare class;
    # up to seven such numbers are added.
    @each_likelihood
    @pytest.mark.parametrize(("dtype", "atol", "rtol"), [(torch.float32, 1e-6, 7e-6), (torch.float64, 1e-12, 1e-12)])
    def test_the_first_prediction_is_the_population(
        self, make: Make, k: int, dtype: torch.dtype, atol: float, rtol: float
    ) -> None:
        for pi in populations(k):
            found = predicted(make(), Prevalence(pi, sampling=population(k, 50)), dtype).double()
            assert_close(found, pi.expand(4, k), rtol=0, atol=atol)
            assert_close(found, pi.expand(4, k), rtol=rtol, atol=0)

    @each_likelihood
    def test_an_uncertain_population_starts_at_its_mean(self, make: Make, k: int) -> None:
        alpha = 10 * population(k, 3)
        found = predicted(make(), Prevalence.dirichlet(alpha), torch.float64)
        assert_close(found, (alpha / alpha.sum()).expand(4, k), rtol=1e-12, atol=0)

    def test_the_default_is_categorical(self) -> None:
        pi = population(3)
        layer = nn.Linear(2, 3, dtype=torch.float64)
        start_at_prevalence(layer, Prevalence(pi))
        assert_close(layer.bias.softmax(0), pi, rtol=1e-14, atol=0)

    def test_only_the_bias_moves_and_it_can_still_learn(self) -> None:
        layer = nn.Linear(2, 3)
        weight, bias = layer.weight.clone(), layer.bias
        start_at_prevalence(layer, Prevalence(population(3)))
        assert_close(layer.weight, weight, rtol=0, atol=0)
        assert layer.bias is bias
        assert bias.requires_grad
        assert bias.is_leaf

    @pytest.mark.parametrize(("likelihood", "k"), [(Categorical(3), 3), (Bernoulli(), 2), (OnionPeeling(4), 4)])
    def test_every_pixel_of_a_convolution_starts_at_the_population(self, likelihood: ClassLikelihood, k: int) -> None:
        assert likelihood.num_outputs is not None
        pi = population(k)
        layer = nn.Conv2d(2, likelihood.num_outputs, 3, padding=1, dtype=torch.float64)
        nn.init.zeros_(layer.weight)
        start_at_prevalence(layer, Prevalence(pi), likelihood)
        outputs = layer(torch.randn(2, 2, 4, 5, dtype=torch.float64, generator=generator()))
        found = likelihood.table(outputs.movedim(1, -1).flatten(0, -2)).exp()
        assert_close(found, pi.expand(40, k), rtol=1e-12, atol=0)

    @pytest.mark.parametrize("density", [Normal(-3.0, 0.25), Laplace(2.0, 3.0), StudentT(5.0, 1.0, 2.0)], ids=str)
    def test_a_gaussian_starts_at_the_mean_and_spread_of_the_population(self, density: Distribution) -> None:
        likelihood, layer = Gaussian(), nn.Linear(2, 1)
        start_at_prevalence(layer, ContinuousPrevalence(density), likelihood)
        assert math.isclose(layer.bias.item(), float(density.mean), rel_tol=1e-6)
        assert math.isclose(likelihood.log_scale.exp().item(), float(density.stddev), rel_tol=1e-6)

    def test_a_gaussian_of_many_dimensions_starts_at_their_means_and_root_mean_square_spread(self) -> None:
        likelihood, layer = Gaussian(2), nn.Linear(2, 2)
        density = Independent(Normal(torch.tensor([1.0, -2.0]), torch.tensor([3.0, 4.0])), 1)
        start_at_prevalence(layer, ContinuousPrevalence(density), likelihood)
        assert_close(layer.bias, torch.tensor([1.0, -2.0]), rtol=1e-6, atol=0)
        assert math.isclose(likelihood.log_scale.exp().item(), math.sqrt((9 + 16) / 2), rel_tol=1e-6)

    def test_a_fixed_scale_stays(self) -> None:
        likelihood, layer = Gaussian(scale=0.5, learn_scale=False), nn.Linear(2, 1)
        start_at_prevalence(layer, ContinuousPrevalence(Normal(1.0, 3.0)), likelihood)
        assert layer.bias.item() == 1
        assert math.isclose(likelihood.log_scale.exp().item(), 0.5, rel_tol=1e-6)

    def test_another_density_starts_where_it_is_told(self) -> None:
        likelihood = FromDistribution(
            lambda z: Laplace(z[:, 0], z[:, 1].exp()), 2, start=lambda y: torch.stack([y.mean, (y.stddev / 2**0.5).log()])
        )
        layer, density = nn.Linear(2, 2), Laplace(2.0, 3.0)
        start_at_prevalence(layer, ContinuousPrevalence(density), likelihood)
        y = torch.linspace(-9, 9, 5)
        assert_close(likelihood.table(layer.bias[None], y)[0], density.log_prob(y), rtol=1e-6, atol=0)


# A density's outputs, as (name, build, number of outputs, values of y); one of another type for y in several dimensions.
DENSITIES: list[tuple[str, Callable[[Tensor], Distribution], int, Tensor]] = [
    ("Laplace", lambda z: Laplace(z[:, 0], z[:, 1].exp()), 2, torch.linspace(-3, 3, 7, dtype=torch.float64)),
    ("Poisson", lambda z: Poisson(z[:, 0].exp()), 1, torch.tensor([0, 1, 2, 5, 9], dtype=torch.float64)),
    ("StudentT", lambda z: StudentT(3.0, z[:, 0], z[:, 1].exp()), 2, torch.linspace(-3, 3, 7, dtype=torch.float64)),
    ("vectors", lambda z: Independent(Normal(z, 2.0), 1), 3, torch.randn(6, 3, dtype=torch.float64, generator=generator(8))),
]


class TestDensities:
    OUTPUTS = torch.randn(4, 3, dtype=torch.float64, generator=generator(7))

    @pytest.mark.parametrize(("build", "d", "y"), [pytest.param(*row, id=name) for name, *row in DENSITIES])
    def test_any_distribution_is_its_own_log_prob_of_each_y_at_each_x(
        self, build: Callable[[Tensor], Distribution], d: int, y: Tensor
    ) -> None:
        outputs = self.OUTPUTS[:, :d]
        found = FromDistribution(build, d).table(outputs, y)
        loop = torch.tensor(
            [[build(z[None]).log_prob(value[None]).item() for value in y] for z in outputs], dtype=torch.float64
        )
        assert_close(found, loop, rtol=1e-13, atol=0)

    @pytest.mark.parametrize("scale", [0.1, 1.0, 25.0])
    def test_gaussian_is_the_normal_density(self, scale: float) -> None:
        outputs, y = self.OUTPUTS[:, :1], torch.linspace(-3, 3, 7, dtype=torch.float64)
        likelihood = Gaussian(scale=scale).double()
        sigma = likelihood.log_scale.exp().detach()
        assert math.isclose(sigma.item(), scale, rel_tol=1e-6)
        loop = torch.stack([Normal(z, sigma).log_prob(y) for z in outputs])
        assert_close(likelihood.table(outputs, y), loop, rtol=1e-13, atol=0)
        assert_close(likelihood.table(outputs, y[:, None]), loop, rtol=1e-13, atol=0)

    def test_gaussian_of_many_dimensions_is_the_multivariate_normal_density(self) -> None:
        y = torch.randn(6, 3, dtype=torch.float64, generator=generator(8))
        likelihood = Gaussian(3, scale=0.5).double()
        covariance = torch.eye(3, dtype=torch.float64) * likelihood.log_scale.exp().item() ** 2
        loop = torch.stack([MultivariateNormal(z, covariance).log_prob(y) for z in self.OUTPUTS])
        assert_close(likelihood.table(self.OUTPUTS, y), loop, rtol=1e-12, atol=0)

    @pytest.mark.parametrize("d", [1, 3])
    def test_the_gradient_of_a_gaussian_is_right(self, d: int) -> None:
        y = torch.randn(5, d, dtype=torch.float64, generator=generator(8))
        check_gradient(Table(Gaussian(d, scale=0.7).double(), y), self.OUTPUTS[:, :d].clone().requires_grad_())

    @pytest.mark.parametrize("likelihood", [Gaussian(), FromDistribution(lambda z: Laplace(z[:, 0], 1.0), 1)])
    def test_vmap_over_outputs_is_a_loop(self, likelihood: Gaussian | FromDistribution) -> None:
        y, batches = torch.linspace(-1, 1, 3), torch.randn(2, 4, 1, generator=generator())
        found = vmap(lambda z: likelihood.table(z, y))(batches)
        assert_close(found, torch.stack([likelihood.table(z, y) for z in batches]), rtol=1e-6, atol=0)

    def test_a_fixed_scale_does_not_learn(self) -> None:
        assert Gaussian().log_scale.requires_grad
        assert not Gaussian(learn_scale=False).log_scale.requires_grad


class Flat:
    """A density that torch does not know."""

    def log_prob(self, value: Tensor) -> Tensor:
        return torch.zeros_like(value)


def zeros(*shape: int) -> Tensor:
    return torch.zeros(*shape)


def laplace(z: Tensor) -> Distribution:
    return Laplace(z[:, 0], 1.0)


TWO, THREE, NORMAL = Prevalence.binary(0.1), Prevalence([0.5, 0.25, 0.25]), ContinuousPrevalence(Normal(0.0, 1.0))

# (what was done, words of the message).
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    # levels
    "one level of an onion": (lambda: OnionPeeling(1), "OnionPeeling .*at least 2 levels.* but got 1: "),
    "one level of a stick": (lambda: StickBreaking(1), "StickBreaking .*at least 2 levels.* but got 1: "),
    "one cumulative level": (lambda: CumulativeLogit(1), "CumulativeLogit .*at least 2 levels.* but got 1: "),
    "no levels": (lambda: OnionPeeling(0), "at least 2 levels.* but got 0: "),
    "half a level": (lambda: StickBreaking(2.5), "a whole number, but got 2.5: "),  # type: ignore[arg-type]
    # outputs
    "one output of Categorical": (lambda: Categorical().table(zeros(4, 1)), r"\(n, 2\).* but got \(4, 1\): "),
    "one dimension": (lambda: Categorical().table(zeros(4)), r"but got \(4,\): "),
    "no dimension": (lambda: Categorical().table(torch.tensor(1.0)), r"but got \(\): "),
    "dense outputs": (lambda: Categorical().table(zeros(4, 3, 8, 8)), r"but got \(4, 3, 8, 8\): "),
    "outputs of another likelihood": (
        lambda: OnionPeeling(5).table(zeros(4, 5)),
        r"\(n, 4\) for OnionPeeling\(5\), but got \(4, 5\): give the last layer 4",
    ),
    "outputs of a Gaussian": (lambda: Gaussian(2).table(zeros(4, 1), zeros(4)), r"\(n, 2\) for Gaussian, but got \(4, 1\)"),
    "outputs of a density": (lambda: FromDistribution(laplace, 1).table(zeros(4, 2), zeros(4)), r"\(n, 1\).*\(4, 2\)"),
    # support
    "values for classes": (lambda: Categorical().table(zeros(4, 2), zeros(3)), "class numbers, but got torch.float32: "),
    "no values for a Gaussian": (lambda: Gaussian().table(zeros(4, 1)), "a support, but got None: .*values of y"),
    "no values for a density": (lambda: FromDistribution(laplace, 1).table(zeros(4, 1)), "a support, but got None"),
    "vectors for a number": (lambda: Gaussian().table(zeros(4, 1), zeros(4, 2)), r"shape \(1,\) each, but got \(2,\): "),
    "numbers for a vector": (lambda: Gaussian(2).table(zeros(4, 2), zeros(4)), r"shape \(2,\) each, but got \(\): "),
    "vectors for a density of numbers": (
        lambda: FromDistribution(laplace, 1).table(zeros(4, 1), zeros(4, 2)),
        r"shape \(\) each, but got \(2,\): ",
    ),
    # densities
    "a scale of 0": (lambda: Gaussian(scale=0.0), "`scale` .*> 0, but got 0.0: "),
    "a negative scale": (lambda: Gaussian(scale=-1.0), "`scale` .*> 0, but got -1.0: "),
    "an infinite scale": (lambda: Gaussian(scale=float("inf")), "`scale` .*finite.* but got inf: "),
    "a scale of NaN": (lambda: Gaussian(scale=float("nan")), "`scale` .*finite.* but got nan: "),
    "a column kept": (
        lambda: FromDistribution(lambda z: Laplace(z, 1.0), 1).table(zeros(4, 1), zeros(4)),
        r"batch shape \(4,\), but got \(4, 1\): index the outputs",
    ),
    "one density for all": (
        lambda: FromDistribution(lambda z: Laplace(0.0, 1.0), 1).table(zeros(4, 1), zeros(4)),
        r"batch shape \(4,\), but got \(\): ",
    ),
    # start
    "no bias": (lambda: start_at_prevalence(nn.Linear(3, 2, bias=False), TWO), "a bias, but Linear has none: .*bias=True"),
    "a layer that has no bias": (lambda: start_at_prevalence(nn.ReLU(), TWO), "a bias, but ReLU has none"),
    "a whole network": (lambda: start_at_prevalence(nn.Sequential(nn.Linear(3, 2)), TWO), "but Sequential has none"),
    "a layer too small": (lambda: start_at_prevalence(nn.Linear(3, 2), THREE), r"3 output\(s\) .*but .*\(2,\): match"),
    "a layer for another likelihood": (
        lambda: start_at_prevalence(nn.Linear(3, 2), TWO, Bernoulli()),
        r"1 output\(s\) for Bernoulli, but its bias has shape \(2,\): ",
    ),
    "no start": (
        lambda: start_at_prevalence(nn.Linear(3, 1), NORMAL, FromDistribution(laplace, 1)),
        "`start` to be given, but got None: FromDistribution",
    ),
    "classes for a Gaussian": (
        lambda: start_at_prevalence(nn.Linear(3, 1), TWO, Gaussian()),
        "ContinuousPrevalence.* but got Prevalence: ",
    ),
    "a density for classes": (
        lambda: start_at_prevalence(nn.Linear(3, 2), NORMAL),
        "Prevalence of classes for Categorical, but got ContinuousPrevalence: ",
    ),
    "a density torch does not know": (
        lambda: start_at_prevalence(nn.Linear(3, 1), ContinuousPrevalence(Flat()), Gaussian()),
        "with a torch distribution",
    ),
    "a population without a variance": (
        lambda: start_at_prevalence(nn.Linear(3, 1), ContinuousPrevalence(Cauchy(0.0, 1.0)), Gaussian()),
        "finite mean and variance .*but got Cauchy.*: set the bias by hand",
    ),
}


class TestBadInput:
    @pytest.mark.parametrize("what", BAD)
    def test_it_is_refused_with_what_came_and_what_to_do(self, what: str) -> None:
        assert_refused(*BAD[what])

    @each_likelihood
    def test_outputs_of_the_wrong_number_are_refused(self, make: Make, k: int) -> None:
        likelihood = make()
        right = likelihood.num_outputs
        assert right is not None
        for shape in [(4, right + 1), (4, right - 1), (4,), (4, right, 1)]:
            words = rf"\(n, {right}\) for {type(likelihood).__name__}.* but got "
            assert_refused(partial(likelihood.table, torch.zeros(shape)), words)

    @each_likelihood
    def test_prevalences_of_other_classes_are_refused(self, make: Make, k: int) -> None:
        for wrong in {2, k + 1} - {k}:
            likelihood = make()
            words = rf"a prevalence of {k} classes for {type(likelihood).__name__}.* but got {wrong}: "
            assert_refused(partial(likelihood.starting_outputs, Prevalence(population(wrong))), words)
