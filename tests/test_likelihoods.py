"""Likelihoods: the table against plain formulas in many digits, their kinship, the intercept, densities, bad input."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from typing import Any, TypeVar

import pytest
import torch
from members import ClassLikelihood, assert_refused, each_kind, each_likelihood, generator, population, random_outputs
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
    match_prevalence,
    start_at_prevalence,
)
from rightloss.prevalence import ContinuousPrevalence, Prevalence
from rightloss.tensors import tensor_of

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
    def test_it_is_the_plain_formula_a_row_that_sums_to_1_for_each_example(self, make: Make, k: int) -> None:
        likelihood = moved(make())
        assert isinstance(likelihood, Likelihood)
        assert (likelihood.over_classes, likelihood.num_classes) == (True, k)
        outputs = random_outputs(likelihood, 20)
        table = likelihood.table(outputs)
        assert_close(table, exact_table(likelihood, outputs), rtol=1e-12, atol=1e-14)
        total = likelihood.table(15 * outputs).exp().sum(1)
        assert_close(total, torch.ones(20, dtype=torch.float64), rtol=1e-12, atol=0)
        assert likelihood.table(outputs[:0]).shape == (0, k)
        support = [k - 1, 0, k - 1, k // 2]
        assert torch.equal(likelihood.table(outputs, torch.tensor(support)), table[:, support])
        batches = outputs.reshape(4, 5, -1)
        assert_close(vmap(likelihood.table)(batches).flatten(0, 1), table, rtol=1e-13, atol=0)

    # Absolute errors in log p are relative ones in p: a few roundings.
    @each_likelihood
    def test_it_is_exact_and_its_gradients_finite_at_outputs_of_ten_thousand(self, make: Make, k: int) -> None:
        for dtype, rtol, atol in ((torch.float32, 1e-6, 1e-6), (torch.float64, 1e-12, 1e-14)):
            likelihood = make().to(dtype)
            outputs = extreme_outputs(likelihood, dtype).requires_grad_()
            table = likelihood.table(outputs)
            assert table.dtype == dtype
            assert_close(table.detach().double(), exact_table(likelihood, outputs.detach()), rtol=rtol, atol=atol)
            for column in table.T:
                for gradient in torch.autograd.grad(column.sum(), [outputs, *likelihood.parameters()], retain_graph=True):
                    assert bool(gradient.isfinite().all())

    @each_likelihood
    def test_its_gradient_is_right_by_its_own_parameters_too(self, make: Make, k: int) -> None:
        check_gradient(Table(moved(make())), random_outputs(make(), 4).requires_grad_())

    def test_vmap_over_its_own_parameters_is_a_loop(self) -> None:
        table, outputs = Table(moved(CumulativeLogit(4))), random_outputs(CumulativeLogit(4), 5)
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

    def test_with_two_levels_all_are_bernoulli_which_is_two_logits_of_which_the_first_is_0(self) -> None:
        two, one = Categorical().table(torch.cat([torch.zeros_like(self.Z), self.Z], dim=1)), Bernoulli().table(self.Z)
        # log_softmax has log(1 + e^−z) where logsigmoid has log1p(e^−z): one rounding of a number near 1.
        assert_close(one, two, rtol=1e-15, atol=3e-16)
        assert torch.equal(OnionPeeling(2).table(self.Z), one)
        assert torch.equal(StickBreaking(2).table(-self.Z), one)
        shifted = CumulativeLogit(2).double()
        nn.init.constant_(shifted.first, -1.25)
        assert shifted.cutpoints.tolist() == [-1.25]
        assert torch.equal(shifted.table(self.Z - 1.25), one)

    def test_each_says_how_many_outputs_it_takes_and_categorical_without_a_number_takes_any(self) -> None:
        laplace = FromDistribution(lambda z: Laplace(z[:, 0], z[:, 1].exp()), 2)
        members: list[Likelihood] = [Categorical(), Categorical(4), Bernoulli(), OnionPeeling(5), StickBreaking(5)]
        members += [CumulativeLogit(5), Gaussian(), Gaussian(3), laplace]
        assert [each.num_outputs for each in members] == [None, 4, 1, 4, 4, 1, 1, 3, 2]
        outputs = random_outputs(Categorical(5), 4)
        assert torch.equal(Categorical().table(outputs), Categorical(5).table(outputs))


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
    # up to six such numbers are added.
    @each_likelihood
    def test_the_first_prediction_is_the_population_or_its_mean_if_it_is_uncertain(self, make: Make, k: int) -> None:
        for dtype, atol, rtol in ((torch.float32, 1e-6, 7e-6), (torch.float64, 1e-12, 1e-12)):
            for pi in populations(k):
                found = predicted(make(), Prevalence(pi, sampling=population(k, 50)), dtype).double()
                assert_close(found, pi.expand(4, k), rtol=0, atol=atol)
                assert_close(found, pi.expand(4, k), rtol=rtol, atol=0)
        alpha = 10 * population(k, 3)
        found = predicted(make(), Prevalence.dirichlet(alpha), torch.float64)
        assert_close(found, (alpha / alpha.sum()).expand(4, k), rtol=1e-12, atol=0)

    def test_only_the_bias_moves_and_it_can_still_learn(self) -> None:
        layer, pi = nn.Linear(2, 3, dtype=torch.float64), population(3)
        weight, bias = layer.weight.clone(), layer.bias
        start_at_prevalence(layer, Prevalence(pi))
        assert_close(layer.bias.softmax(0), pi, rtol=1e-14, atol=0)
        assert torch.equal(layer.weight, weight)
        assert layer.bias is bias
        assert (bias.requires_grad, bias.is_leaf) == (True, True)

    @pytest.mark.parametrize("density", [Normal(-3.0, 0.25), StudentT(5.0, 1.0, 2.0)], ids=str)
    def test_a_gaussian_starts_at_the_mean_and_spread_of_the_population_unless_its_scale_is_fixed(
        self, density: Distribution
    ) -> None:
        for likelihood, scale in ((Gaussian(), float(density.stddev)), (Gaussian(scale=0.5, learn_scale=False), 0.5)):
            layer = nn.Linear(2, 1)
            start_at_prevalence(layer, ContinuousPrevalence(density), likelihood)
            assert math.isclose(layer.bias.item(), float(density.mean), rel_tol=1e-6)
            assert math.isclose(likelihood.log_scale.exp().item(), scale, rel_tol=1e-6)

    def test_a_gaussian_of_many_dimensions_starts_at_their_means_and_root_mean_square_spread(self) -> None:
        likelihood, layer = Gaussian(2), nn.Linear(2, 2)
        density = Independent(Normal(torch.tensor([1.0, -2.0]), torch.tensor([3.0, 4.0])), 1)
        start_at_prevalence(layer, ContinuousPrevalence(density), likelihood)
        assert_close(layer.bias, torch.tensor([1.0, -2.0]), rtol=1e-6, atol=0)
        assert math.isclose(likelihood.log_scale.exp().item(), math.sqrt((9 + 16) / 2), rel_tol=1e-6)

    def test_another_density_starts_where_it_is_told(self) -> None:
        likelihood = FromDistribution(
            lambda z: Laplace(z[:, 0], z[:, 1].exp()), 2, start=lambda y: torch.stack([y.mean, (y.stddev / 2**0.5).log()])
        )
        layer, density = nn.Linear(2, 2), Laplace(2.0, 3.0)
        start_at_prevalence(layer, ContinuousPrevalence(density), likelihood)
        y = torch.linspace(-9, 9, 5)
        assert_close(likelihood.table(layer.bias[None], y)[0], density.log_prob(y), rtol=1e-6, atol=0)


class TestMatch:
    @pytest.mark.long
    @each_kind
    def test_the_mean_prediction_over_unlabelled_rows_becomes_the_population(self, make: Make, k: int) -> None:
        for seed in range(3):
            likelihood, prevalence = make().double(), Prevalence(population(k, seed))
            layer = nn.Linear(4, likelihood.num_outputs or k, dtype=torch.float64)
            x = 3 * torch.randn(200, 4, dtype=torch.float64, generator=generator(seed))
            weight = layer.weight.detach().clone()
            match_prevalence(layer, layer(x), prevalence, likelihood)
            found = likelihood.table(layer(x)).exp().mean(0)
            assert_close(found, tensor_of(prevalence.population), rtol=1e-8, atol=0)
            assert torch.equal(layer.weight, weight)

    def test_a_billionth_and_dense_outputs_and_float32_cutpoints_are_matched(self) -> None:
        prevalence, layer = Prevalence.binary(1e-9), nn.Conv2d(2, 2, 1, dtype=torch.float64)
        x = 5 * torch.randn(3, 2, 4, 5, dtype=torch.float64, generator=generator())
        match_prevalence(layer, layer(x), prevalence)
        assert layer(x).softmax(1)[:, 1].mean().item() == pytest.approx(1e-9, rel=1e-8)
        narrow, ordinal, rates = nn.Linear(2, 1), CumulativeLogit(4), population(4)
        x = torch.randn(300, 2, generator=generator(2))
        match_prevalence(narrow, narrow(x), Prevalence(rates), ordinal)
        assert_close(ordinal.table(narrow(x)).exp().mean(0).double(), rates, rtol=1e-5, atol=0)

    @pytest.mark.parametrize(
        ("outputs", "message"),
        [
            (torch.zeros(0, 2), r"\(n, 2\).* but got \(0, 2\)"),
            (torch.full((4, 2), torch.nan), "not finite"),
            (torch.zeros(4, 2, dtype=torch.long), "torch.int64"),
            (torch.tensor([[1e5, 0.0], [-1e5, 0.0]]), "logits are not extreme"),
        ],
    )
    def test_outputs_that_cannot_be_matched_are_refused_and_nothing_moves(self, outputs: Tensor, message: str) -> None:
        layer = nn.Linear(3, 2)
        before = layer.bias.detach().clone()
        with pytest.raises(ValueError, match=message):
            match_prevalence(layer, outputs, Prevalence.binary(0.01))
        assert torch.equal(layer.bias, before)

    def test_cutpoints_of_a_likelihood_that_cannot_be_matched_stay(self) -> None:
        likelihood, layer = CumulativeLogit(3), nn.Linear(3, 1)
        before = likelihood.cutpoints.detach().clone()
        with pytest.raises(ValueError, match="known prevalence"):
            match_prevalence(layer, torch.zeros(4, 1), Prevalence.unknown(3), likelihood)
        with pytest.raises(ValueError, match="logits are not extreme"):
            match_prevalence(layer, torch.tensor([[1e5], [-1e5]]), Prevalence([0.9, 0.09, 0.01]), likelihood)
        assert torch.equal(likelihood.cutpoints, before)


# A density's outputs, as (name, build, number of outputs, values of y); one of another type for y in several dimensions.
DENSITIES: list[tuple[str, Callable[[Tensor], Distribution], int, Tensor]] = [
    ("Laplace", lambda z: Laplace(z[:, 0], z[:, 1].exp()), 2, torch.linspace(-3, 3, 7, dtype=torch.float64)),
    ("Poisson", lambda z: Poisson(z[:, 0].exp()), 1, torch.tensor([0, 1, 2, 5, 9], dtype=torch.float64)),
    ("vectors", lambda z: Independent(Normal(z, 2.0), 1), 3, torch.randn(6, 3, dtype=torch.float64, generator=generator(8))),
]


class TestDensities:
    OUTPUTS = torch.randn(4, 3, dtype=torch.float64, generator=generator(7))

    @pytest.mark.parametrize(("build", "d", "y"), [pytest.param(*row, id=name) for name, *row in DENSITIES])
    def test_any_distribution_is_its_own_log_prob_of_each_y_at_each_x(
        self, build: Callable[[Tensor], Distribution], d: int, y: Tensor
    ) -> None:
        outputs, likelihood = self.OUTPUTS[:, :d], FromDistribution(build, d)
        found = likelihood.table(outputs, y)
        loop = torch.tensor(
            [[build(z[None]).log_prob(value[None]).item() for value in y] for z in outputs], dtype=torch.float64
        )
        assert_close(found, loop, rtol=1e-13, atol=0)
        assert_close(vmap(lambda z: likelihood.table(z, y))(outputs[:, None])[:, 0], found, rtol=1e-13, atol=0)

    @pytest.mark.parametrize("scale", [0.1, 25.0])
    def test_gaussian_is_the_normal_density_in_one_dimension_and_in_several(self, scale: float) -> None:
        outputs, y = self.OUTPUTS[:, :1], torch.linspace(-3, 3, 7, dtype=torch.float64)
        likelihood = Gaussian(scale=scale).double()
        sigma = likelihood.log_scale.exp().detach()
        assert math.isclose(sigma.item(), scale, rel_tol=1e-6)
        loop = torch.stack([Normal(z, sigma).log_prob(y) for z in outputs])
        assert_close(likelihood.table(outputs, y), loop, rtol=1e-13, atol=0)
        assert_close(likelihood.table(outputs, y[:, None]), loop, rtol=1e-13, atol=0)
        y = torch.randn(6, 3, dtype=torch.float64, generator=generator(8))
        covariance = torch.eye(3, dtype=torch.float64) * sigma**2
        loop = torch.stack([MultivariateNormal(z, covariance).log_prob(y) for z in self.OUTPUTS])
        assert_close(Gaussian(3, scale=scale).double().table(self.OUTPUTS, y), loop, rtol=1e-12, atol=0)

    @pytest.mark.parametrize("d", [1, 3])
    def test_the_gradient_of_a_gaussian_is_right(self, d: int) -> None:
        y = torch.randn(5, d, dtype=torch.float64, generator=generator(8))
        check_gradient(Table(Gaussian(d, scale=0.7).double(), y), self.OUTPUTS[:, :d].clone().requires_grad_())


class Flat:
    """A density that torch does not know."""

    def log_prob(self, value: Tensor) -> Tensor:
        return torch.zeros_like(value)


def zeros(*shape: int) -> Tensor:
    return torch.zeros(*shape)


def laplace(z: Tensor) -> Distribution:
    return Laplace(z[:, 0], 1.0)


def start(outputs: int, prevalence: Any, likelihood: Any = None) -> Callable[[], None]:
    return lambda: start_at_prevalence(nn.Linear(3, outputs), prevalence, likelihood)


TWO, THREE, NORMAL = Prevalence.binary(0.1), Prevalence([0.5, 0.25, 0.25]), ContinuousPrevalence(Normal(0.0, 1.0))
ONE = FromDistribution(laplace, 1)
COLUMN = FromDistribution(lambda z: Laplace(z, 1.0), 1)

# (what was done, words of the message).
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "one level": (lambda: OnionPeeling(1), "`levels` to be an int of at least 2, but got 1: "),
    "half a level": (lambda: StickBreaking(2.5), "`levels` to be an int of at least 2, but got 2.5: "),  # type: ignore[arg-type]
    "one output of Categorical": (lambda: Categorical().table(zeros(4, 1)), r"\(n, 2\).* but got \(4, 1\): "),
    "one dimension": (lambda: Categorical().table(zeros(4)), r"but got \(4,\): "),
    "dense outputs": (lambda: Categorical().table(zeros(4, 3, 8, 8)), r"\(n, 3\).* but got \(4, 3, 8, 8\): "),
    "outputs of another likelihood": (lambda: OnionPeeling(5).table(zeros(4, 5)), r"\(n, 4\) for OnionPeeling\(5\), .*layer 4"),
    "outputs of a Gaussian": (lambda: Gaussian(2).table(zeros(4, 1), zeros(4)), r"\(n, 2\) for Gaussian.*, but got \(4, 1\)"),
    "outputs of a density": (lambda: ONE.table(zeros(4, 2), zeros(4)), r"\(n, 1\).*\(4, 2\)"),
    "values for classes": (lambda: Categorical().table(zeros(4, 2), zeros(3)), "class numbers, but got torch.float32: "),
    "no values": (lambda: ONE.table(zeros(4, 1)), "a support, but got None: .*values of y"),
    "vectors for a number": (lambda: Gaussian().table(zeros(4, 1), zeros(4, 2)), r"shape \(1,\) each, but got \(2,\): "),
    "a scale of 0": (lambda: Gaussian(scale=0.0), "`scale` .*> 0, but got 0.0: "),
    "a scale of NaN": (lambda: Gaussian(scale=float("nan")), "`scale` .*finite.* but got nan: "),
    "a column kept": (lambda: COLUMN.table(zeros(4, 1), zeros(4)), r"batch shape \(4,\), but got \(4, 1\): index the outputs"),
    "no bias": (lambda: start_at_prevalence(nn.Linear(3, 2, bias=False), TWO), "a bias, but Linear has none: .*bias=True"),
    "a whole network": (lambda: start_at_prevalence(nn.Sequential(nn.Linear(3, 2)), TWO), "but Sequential has none"),
    "a layer too small": (start(2, THREE), r"3 output\(s\) .*but .*\(2,\): match"),
    "a layer for another likelihood": (start(2, TWO, Bernoulli()), r"1 output\(s\) for Bernoulli, but .* \(2,\): "),
    "no start": (start(1, NORMAL, ONE), "`start` to be given, but got None: FromDistribution"),
    "classes for a Gaussian": (start(1, TWO, Gaussian()), "ContinuousPrevalence.* but got a Prevalence of 2 classes: "),
    "a density for classes": (start(2, NORMAL), "Prevalence of classes for Categorical, but got a ContinuousPrevalence: "),
    "a density torch does not know": (start(1, ContinuousPrevalence(Flat()), Gaussian()), "with a torch distribution"),
    "no variance": (start(1, ContinuousPrevalence(Cauchy(0.0, 1.0)), Gaussian()), "finite mean and variance .*by hand"),
}


class TestBadInput:
    @pytest.mark.parametrize("what", BAD)
    def test_it_is_refused_with_what_came_and_what_to_do(self, what: str) -> None:
        assert_refused(*BAD[what])

    @each_kind
    def test_outputs_of_the_wrong_number_and_prevalences_of_other_classes_are_refused(self, make: Make, k: int) -> None:
        likelihood, name = make(), type(make()).__name__
        right = likelihood.num_outputs
        assert right is not None
        for shape in [(4, right + 1), (4, right - 1), (4, right, 1)]:
            assert_refused(lambda: likelihood.table(zeros(*shape)), rf"\(n, {right}\) for {name}.* but got ")  # noqa: B023
        words = rf"a prevalence of {k} classes for {name}.* but got {k + 1}: "
        assert_refused(lambda: likelihood.starting_outputs(Prevalence(population(k + 1))), words)
