"""Marginals: their gradient, their bias, their state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from members import KINDS, MARGINALS, assert_refused, population, recorded
from torch import Tensor, nn
from torch.distributions import Laplace, Normal

import rightloss as rl
from rightloss.marginals import Marginal, MinibatchEstimate, minibatch
from rightloss.tensors import tensor_of

# Every kind of likelihood with one marginal, every marginal with one kind, and both references.
COMPOSED: dict[str, tuple[Callable[[], Any], int, str, str]] = {
    **{f"{name}, running": (factory, k, "running", "sampling") for name, factory, k in KINDS},
    **{f"OnionPeeling(4), {marginal}": (lambda: rl.OnionPeeling(4), 4, marginal, "population") for marginal in MARGINALS},
}
DENSITIES: dict[str, Callable[[], Any]] = {
    "gaussian": lambda: rl.Gaussian(scale=0.8).double(),
    "laplace": lambda: rl.FromDistribution(lambda z: Laplace(z[:, 0], z[:, 1].exp()), 2),
}


class Claim(torch.autograd.Function):
    """A function with the gradient that something else claims it has, for gradcheck to judge."""

    @staticmethod
    def forward(ctx: Any, function: Callable[[], Tensor], gradients: list[Tensor], *inputs: Tensor) -> Tensor:
        ctx.gradients = gradients
        return function()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, None, *[grads[0] * gradient for gradient in ctx.gradients]


def gradcheck_given_q(criterion: rl.InformationGainLoss, z: Tensor, y: Tensor, weights: Callable[[Tensor], Tensor]) -> None:
    """The loss's gradient at z against finite differences of `−avg log p_r + Σ_k (ρ_k − κ r_k) m_k/q_k`, q held still.

    By outputs and by the likelihood's own parameters. `weights`: table of probabilities p_r → (ρ_k − κ r_k, β_n, log p_r at y).
    """
    seen = recorded(criterion.marginal)
    likelihood: Any = criterion.likelihood
    inputs = [z, *(p for p in likelihood.parameters() if p.requires_grad)]
    gradients = list(torch.autograd.grad(criterion(z, y), inputs))
    q = seen[-1].exp()

    def function() -> Tensor:
        with torch.no_grad():
            shares, beta, own, probs = weights(z)
            return -own.mean() + (shares * (beta[:, None] * probs).mean(0) / q).sum()

    assert torch.autograd.gradcheck(lambda *_: Claim.apply(function, gradients, *inputs), tuple(inputs), atol=1e-7, rtol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("case", COMPOSED)
def test_gradcheck_passes_on_the_composed_path(case: str) -> None:
    factory, k, marginal, reference = COMPOSED[case]
    torch.manual_seed(1)
    likelihood = factory().double()
    prevalence = rl.Prevalence(population(k, 1), population(k, 2), evidence=0.3)
    outputs = likelihood.num_outputs or k
    model = nn.Linear(2, outputs).double()
    x, y = torch.randn(3 * k, 2, dtype=torch.float64), torch.arange(3 * k) % k
    r = tensor_of(prevalence.sampling) if reference == "sampling" else tensor_of(prevalence.population)
    criterion = rl.InformationGainLoss(prevalence, likelihood, MARGINALS[marginal](model, [(x, y)]), reference=r, fused=False)
    criterion(model(x), y)
    criterion.eval()
    z = (model(x) + 0.1 * torch.randn(3 * k, outputs, dtype=torch.float64)).detach().requires_grad_()

    def weights(z: Tensor) -> Any:
        tilted = likelihood.table(z).exp() * r / tensor_of(prevalence.population)
        probs = tilted / tilted.sum(1, keepdim=True)
        counted = torch.full((k,), 1 / k, dtype=torch.float64)
        sampled = counted if marginal == "classwise" else tensor_of(prevalence.sampling)
        own = probs[torch.arange(len(y)), y].log()
        return tensor_of(prevalence.sampling) - 0.3 * r, (r / sampled)[y], own, probs

    gradcheck_given_q(criterion, z, y, weights)


@pytest.mark.parametrize(
    ("density", "marginal", "reference"),
    [("gaussian", "batch", "sampling"), ("gaussian", "pool", "population"), ("laplace", "batch", "population")],
)
def test_gradcheck_passes_for_densities(density: str, marginal: str, reference: str) -> None:
    torch.manual_seed(1)
    likelihood = DENSITIES[density]()
    pi, rho = Normal(0.0, 1.0), Normal(0.3, 1.5)
    prevalence = rl.ContinuousPrevalence(pi, rho, evidence=0.3)
    model = nn.Linear(2, likelihood.num_outputs).double()
    x, y = torch.randn(7, 2, dtype=torch.float64), torch.randn(7, dtype=torch.float64)
    criterion = rl.InformationGainLoss(
        prevalence, likelihood, MARGINALS[marginal](model, [(x, y)]), reference=pi if reference == "population" else None
    )
    z = (model(x) + 0.1).detach().requires_grad_()

    def weights(z: Tensor) -> Any:
        probs = likelihood.table(z, y).exp()
        beta = torch.ones(7, dtype=torch.float64)
        if reference == "population":
            beta = (pi.log_prob(y) - rho.log_prob(y)).exp()
        else:
            probs = probs / pi.log_prob(y).exp()
            probs = probs / probs.sum(1, keepdim=True)
        return (1 - 0.3 * beta) / 7, beta, probs.diagonal().log(), probs

    gradcheck_given_q(criterion, z, y, weights)


def test_the_gaussian_gain_of_a_constant_predictor_is_zero_and_of_a_good_one_positive() -> None:
    y = torch.randn(50, dtype=torch.float64)
    prevalence = rl.ContinuousPrevalence(Normal(0.0, 1.0), evidence=0.0)
    criterion = rl.InformationGainLoss(prevalence, rl.Gaussian(scale=0.5))
    constant = criterion(torch.zeros(50, dtype=torch.float64), y)
    torch.testing.assert_close(constant, torch.zeros_like(constant), rtol=0, atol=1e-12)
    assert float(criterion(y, y).detach()) < -0.5


def test_rivals_in_regression_are_balanced_mse_and_weights_by_the_ratio_of_densities() -> None:
    y, z = torch.randn(20, dtype=torch.float64), torch.randn(20, 1, dtype=torch.float64)
    flat = torch.distributions.Uniform(-10.0, 10.0)
    loss = rl.logit_adjusted_loss(z, y, rl.ContinuousPrevalence(flat), rl.Gaussian(scale=0.7))
    logits = -0.5 * (z - y).square() / 0.7**2
    torch.testing.assert_close(loss, nn.functional.cross_entropy(logits, torch.arange(20)), rtol=0, atol=1e-6)
    pi, rho = Normal(0.0, 1.0), Normal(0.3, 1.5)
    loss = rl.WeightedLoss(rl.ContinuousPrevalence(pi, rho), rl.Gaussian(scale=0.7), reduction="none")(z, y)
    expected = -(pi.log_prob(y) - rho.log_prob(y)).exp() * Normal(z[:, 0], 0.7).log_prob(y)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)


def test_the_classwise_marginal_sums_to_one() -> None:
    _, _, y, prevalence = small_problem()
    criterion = rl.InformationGainLoss(prevalence, marginal=rl.ClasswiseMarginal(), reference=prevalence.population)
    seen = recorded(criterion.marginal)
    criterion(torch.randn(40, 3, dtype=torch.float64), y[torch.randperm(600)[:40]])
    torch.testing.assert_close(seen[0].exp().sum(), torch.ones((), dtype=torch.float64))


def small_problem() -> tuple[nn.Sequential, Tensor, Tensor, rl.Prevalence]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    x, y = torch.randn(600, 3, dtype=torch.float64), torch.arange(600) % 3
    return model, x + nn.functional.one_hot(y, 3), y, rl.Prevalence([0.7, 0.25, 0.05], [1 / 3] * 3)


def estimate(log_m: Tensor) -> MinibatchEstimate:
    return MinibatchEstimate(log_m, 10)


def running(decay: float = 0.9) -> rl.RunningMarginal:
    marginal = rl.RunningMarginal(decay)
    marginal.prepare(2)
    return marginal


def test_the_running_marginal_is_the_exponential_average_corrected_for_its_start() -> None:
    marginal = running(0.8)
    values = [torch.tensor([0.9, 0.1]), torch.tensor([0.5, 0.5]), torch.tensor([1e-30, 1.0])]
    for t, m in enumerate(values, 1):
        q = marginal.update(estimate(m.double().log())).exp()
        weights = torch.tensor([0.8 ** (t - s) for s in range(1, t + 1)], dtype=torch.float64)
        expected = (weights[:, None] * torch.stack(values[:t]).double()).sum(0) / weights.sum()
        torch.testing.assert_close(q, expected, rtol=1e-12, atol=0)
    far = running(0.5)
    for _ in range(3):
        log_q = far.update(estimate(torch.tensor([0.0, -1e4])))  # far below what a float can hold
    torch.testing.assert_close(log_q, torch.tensor([0.0, -1e4]), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("decay", [0.0, 0.9, 0.9999])
def test_the_running_marginal_is_the_same_where_values_cannot_be_read(decay: float, monkeypatch: pytest.MonkeyPatch) -> None:
    read, unread = running(decay), running(decay)
    for step in range(5):
        log_m = torch.tensor([-0.001, -16.0 - step])
        found = []
        for marginal, hidden in ((read, False), (unread, True)):
            with monkeypatch.context() as patch:
                patch.setattr(minibatch, "cannot_be_read", lambda tensor, hidden=hidden: hidden)
                marginal.update(estimate(torch.tensor([float("nan"), -1.0])))  # which changes nothing
                found.append(marginal.update(estimate(log_m)))
        torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)
    assert (int(read.steps), int(unread.steps)) == (5, 5)
    unread.eval()
    with monkeypatch.context() as patch:
        patch.setattr(minibatch, "cannot_be_read", lambda tensor: True)
        torch.testing.assert_close(unread.update(estimate(torch.tensor([-9.0, -0.1]))), found[1])


def test_the_running_marginal_stands_still_in_eval_mode() -> None:
    marginal = running().eval()
    log_m, other = torch.tensor([-0.1, -2.3]), torch.tensor([-1.0, -0.5])
    torch.testing.assert_close(marginal.update(estimate(other)), other)
    marginal.train().update(estimate(log_m))
    marginal.eval()
    torch.testing.assert_close(marginal.update(estimate(other)), log_m)
    marginal.reset()
    torch.testing.assert_close(marginal.update(estimate(other)), other)


@pytest.mark.parametrize("make", [rl.RunningMarginal, lambda: rl.AuxiliaryMarginal(nn.Linear(2, 2)), rl.BatchMarginal])
def test_training_goes_on_after_a_pass_in_inference_mode(make: Callable[[], Marginal]) -> None:
    criterion = rl.InformationGainLoss(rl.Prevalence.binary(0.01, evidence=0.5), marginal=make())
    z, y = torch.randn(2, 2, 128, 128), torch.randint(2, (2, 128, 128))
    with torch.inference_mode():
        criterion(z, y)
    criterion(z.requires_grad_(), y).backward()
    criterion.load_state_dict(criterion.state_dict())
    assert z.grad is not None


@pytest.mark.parametrize("kind", ["running", "auxiliary"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_state_dicts_restore_marginals_so_that_training_goes_on_to_the_last_digit(kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer, prevalence = nn.Linear(4, 3), rl.Prevalence([0.7, 0.2, 0.1], evidence=0.5)
    batches = [(torch.randn(30, 4, dtype=dtype), torch.randint(3, (30,))) for _ in range(8)]
    first, second = (rl.InformationGainLoss(prevalence, marginal=MARGINALS[kind](layer, [])) for _ in range(2))
    if kind == "auxiliary":
        first, second = first.to(dtype), second.to(dtype)  # with the state of its optimizer
    layer.to(dtype)
    for x, y in batches[:4]:
        first(layer(x), y)
    second.load_state_dict(first.state_dict())
    for x, y in batches[4:]:
        assert torch.equal(first(layer(x), y), second(layer(x), y))


def test_a_running_average_of_other_classes_is_refused() -> None:
    marginal, three = rl.RunningMarginal(), rl.Prevalence([0.5, 0.3, 0.2])
    rl.InformationGainLoss(three, marginal=marginal)
    rl.InformationGainLoss(rl.Prevalence.binary(0.1), marginal=marginal)(torch.randn(8, 2), torch.arange(8) % 2)
    with pytest.raises(ValueError, match="average over 2: make one for each loss"):
        rl.InformationGainLoss(three, marginal=marginal)


def test_a_pool_gives_the_exact_marginal_and_leaves_the_model_in_its_mode() -> None:
    model, x, y, prevalence = small_problem()
    model.append(nn.Dropout(0.5))
    bias: Any = model[2].bias
    pool = list(zip(x.split(100), y.split(100), strict=True))
    marginal = rl.PoolMarginal(model, pool, every=2)
    criterion = rl.InformationGainLoss(prevalence, marginal=marginal, reference=prevalence.population)
    seen = recorded(marginal)
    for step in range(4):
        criterion(model(x[:50]), y[:50])
        with torch.no_grad():
            bias += 1.0 if step < 3 else 0.0
            bias[0] -= 0.7
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[2], seen[3])
    assert not torch.equal(seen[1], seen[2])
    marginal.reset()
    criterion(model(x[:50]), y[:50])
    assert model[3].training
    with torch.no_grad():
        model.eval()
        exact = (tensor_of(prevalence.weights)[y][:, None] * torch.softmax(model(x), 1)).mean(0)
    torch.testing.assert_close(seen[-1].exp(), exact, rtol=1e-12, atol=0)
    assert not list(criterion.parameters())


def test_a_pool_that_fails_leaves_gradients_on_and_the_model_in_its_mode() -> None:
    model, x, y, prevalence = small_problem()

    def loader() -> Any:
        yield x[:10], y[:10]
        raise OSError("disk")

    criterion = rl.InformationGainLoss(prevalence.with_evidence(0), marginal=rl.PoolMarginal(model, loader()))
    with pytest.raises(OSError, match="disk"):
        criterion(model(x[:50]), y[:50])
    assert torch.is_grad_enabled()
    assert model.training


def test_an_unlabelled_pool_is_averaged_as_it_is_whichever_class_is_ignored() -> None:
    model, x, y, prevalence = small_problem()
    marginal = rl.PoolMarginal(model, [x[:300], x[300:]], labelled=False)
    criterion = rl.InformationGainLoss(prevalence, marginal=marginal, reference=prevalence.population, ignore_index=0)
    seen = recorded(marginal)
    assert bool(torch.isfinite(criterion(model(x[:50]), y[:50])))
    with torch.no_grad():
        torch.testing.assert_close(seen[0].exp(), torch.softmax(model(x), 1).mean(0), rtol=1e-12, atol=0)


@pytest.mark.long
def test_the_auxiliary_network_learns_the_marginal_of_weights_that_are_sampled() -> None:
    torch.manual_seed(0)
    k, features = 5, torch.randn(2000, 8)
    marginal = rl.AuxiliaryMarginal(nn.Linear(8, k))
    marginal.prepare(k)
    mean, divergences = marginal.vector(), []
    for step in range(1500):
        vector = mean + 0.1 * torch.randn_like(mean)
        weight, bias = vector[: 8 * k].view(k, 8), vector[8 * k :]
        probs = torch.softmax(features @ weight.T + bias, 1)
        exact = probs.mean(0)
        if step >= 1200:
            divergences.append(float((exact * (exact.log() - marginal.log_marginal(vector))).sum()))
        marginal.learn(vector, probs[torch.randint(2000, (128,))].mean(0))
    assert sum(divergences) / len(divergences) < 1e-2
    marginal.reset()
    assert torch.equal(marginal.log_marginal(mean), marginal.log_marginal(mean + 1))  # constant again


def test_the_auxiliary_network_is_not_trained_by_the_models_loss_nor_by_its_optimiser() -> None:
    layer = nn.Linear(4, 2)
    criterion = rl.InformationGainLoss(rl.Prevalence.binary(0.1, evidence=0.5), marginal=rl.AuxiliaryMarginal(layer))
    x, y = torch.randn(20, 4), torch.arange(20) % 2
    optimizer = torch.optim.SGD([*layer.parameters(), *criterion.parameters()], lr=10.0)
    criterion(layer(x), y).backward()
    before = [p.detach().clone() for p in criterion.parameters()]
    optimizer.step()
    assert before
    for old, new in zip(before, criterion.parameters(), strict=True):
        assert torch.equal(old, new)


def test_sources_of_the_weights_that_give_no_vector_are_refused_with_the_remedy() -> None:
    sources: list[Any] = [lambda: None, lambda: torch.zeros(2, 2)]
    for source, words in zip(sources, ("but got NoneType: the loss asks for it when it is made", "flatten it"), strict=True):
        assert_refused(
            lambda: rl.InformationGainLoss(rl.Prevalence.binary(0.1), marginal=rl.AuxiliaryMarginal(source)),  # noqa: B023
            words,
        )


@pytest.mark.parametrize("marginal", [rl.ClasswiseMarginal(), rl.RunningMarginal(), rl.AuxiliaryMarginal(nn.Linear(2, 2))])
def test_marginals_that_need_classes_refuse_a_density(marginal: Marginal) -> None:
    with pytest.raises(ValueError, match="BatchMarginal"):
        rl.InformationGainLoss(rl.ContinuousPrevalence(Normal(0.0, 1.0)), rl.Gaussian(), marginal)
