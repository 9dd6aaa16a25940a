"""Test whether the corrected posterior is calibrated, by ranks of the true weights over many data sets (Talts et al. 2018).

Weights are drawn from the prior, half of the labels are of each class for any weights, and inputs come from the paper's biased
generative model, p(x|y,w) ∝ p(y|x,w) p(x). The population has 64 kinds of people, equally frequent. If a posterior is correct,
the rank of the true value among independent draws is uniform. This is tested by χ² with 16 bins and by Kolmogorov-Smirnov, for
the slope, the intercept and the log posterior density. Draws are importance samples, around the mode and from the prior.

Three kinds of knowledge of π have a likelihood of their own. *Exact*: the posterior gets the population's π, with
`evidence="exact"`. *Counted*: π as precisely as from N people counted by class, κ = 1; weights from the prior are accepted
with the probability that N people split as the sample does. *Dirichlet*: π ~ Beta, and the posterior gets that distribution;
given π it is exact. For comparison: κ = 1 where π is exact, the published likelihood, and none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy import stats
from torch import Tensor, nn

from rightloss import Bernoulli, LogLikelihoodLoss, Prevalence
from rightloss.inference import LogPosterior, Posterior, gaussian_prior, log_posterior
from rightloss.inference.distributions import DenseGaussian, Layout, Particles
from rightloss.inference.posterior import posterior_of
from rightloss.inference.weight_sets import evaluate_many, marginal_of_sets

from .engine import Comparison
from .pages import axes, table

N = 100  # examples of a data set, half of each class
DRAWS, BINS = 31, 16  # 32 ranks, two per bin
PROPOSALS, FREEDOM = 4000, 5  # importance samples, and degrees of freedom of the t distribution that half of them come from
MEAN = {"weight": torch.tensor([[1.0]], dtype=torch.float64), "bias": torch.tensor([-2.0], dtype=torch.float64)}  # prior, sd 1
ILL = 0.1  # π in the data where the default's assumptions hold
PEOPLE = torch.special.ndtri((torch.arange(64, dtype=torch.float64) + 0.5) / 64)[:, None]  # normal quantiles
SURVEYED = 50  # α of the Dirichlet distributions sums to this
SEED = 1_000_000  # keeps the random numbers of the draws separate from those of the data
LEVEL = 0.01  # over all tests of a likelihood
RANKED = ("slope", "intercept", "log density")


def truth(generator: torch.Generator) -> dict[str, Tensor]:
    """Draw weights from the prior."""
    return {name: mean + torch.randn(mean.shape, dtype=mean.dtype, generator=generator) for name, mean in MEAN.items()}


def ill(params: dict[str, Tensor]) -> Tensor:
    """Return p(y=1|x,w) for each kind of people."""
    return torch.sigmoid(PEOPLE @ params["weight"].T + params["bias"]).flatten()


def biased_sample(p: Tensor, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw n/2 labels of each class, then inputs from p(x|y,w) ∝ p(y|x,w) p(x), where `p` is p(y=1|x,w) by kind of people."""
    picks = [torch.multinomial(weights, n // 2, replacement=True, generator=generator) for weights in (1 - p, p)]
    return PEOPLE[torch.cat(picks)], torch.arange(2).repeat_interleave(n // 2)


def counted_truth(generator: torch.Generator) -> dict[str, Tensor]:
    """Draw weights from the prior, given that half of N people of the sampled mix were ill."""
    while True:
        params = truth(generator)
        half = at_sampling(params).mean()
        log_chance = N / 2 * torch.log(4 * half * (1 - half))
        if torch.rand((), dtype=torch.float64, generator=generator).log() < log_chance:
            return params


def at_sampling(params: dict[str, Tensor]) -> Tensor:
    """Return p_ρ(y=1|x,w) for each kind of people, where half are ill, and a share `ILL` in the population."""
    return torch.sigmoid(torch.logit(ill(params)) - math.log(ILL / (1 - ILL)))


def surveyed(params: dict[str, Tensor]) -> tuple[float, float]:
    """Return the parameters of the Beta distribution, of the ill and of the others."""
    return SURVEYED * share(params), SURVEYED * (1 - share(params))


def _target(prevalence: Prevalence, **options: Any) -> LogPosterior:
    layer = nn.Linear(1, 1).double()
    layer.load_state_dict(MEAN)
    return log_posterior(layer, prevalence, Bernoulli(), prior=gaussian_prior(1.0, MEAN), num_data=N, **options)


def share(params: dict[str, Tensor]) -> float:
    """Return π, the population's share of ill people."""
    return float(ill(params).mean())


EXACT = 'exact: evidence="exact", π told exactly'
COUNTED = "counted: κ = 1, π known as N people tell it"
DIRICHLET = 'Dirichlet: evidence="exact", π as uncertain as told'
PUBLISHED = Prevalence.binary(0.1, evidence=0.0)  # without evidence the value of π has no effect
LIKELIHOODS: dict[str, Callable[[dict[str, Tensor], Any], LogPosterior]] = {  # true weights, data → what the posterior assumes
    EXACT: lambda params, data: _target(Prevalence.binary(share(params)), evidence="exact"),
    COUNTED: lambda params, data: _target(Prevalence.binary(ILL), pool=data),
    DIRICHLET: lambda params, data: _target(Prevalence.beta(*surveyed(params)), evidence="exact"),
    "κ = 1, π told exactly": lambda params, data: _target(Prevalence.binary(share(params)), pool=data),
    "as published: r = π, κ = 0, p(y\\|w) over the population": lambda params, data: _target(
        PUBLISHED, reference=PUBLISHED.population, pool=PEOPLE
    ),
    "log-likelihood, uncorrected": lambda params, data: _target(Prevalence.binary(0.1), loss=LogLikelihoodLoss),
}


class Cell(NamedTuple):
    likelihood: str
    seed: int


def cells() -> Iterator[Cell]:
    yield from (Cell(*each) for each in product(LIKELIHOODS, range(300)))


def run(cell: Cell) -> list[dict[str, Any]]:
    """Return the ranks of the true values, each from 0 to `DRAWS`, and the effective sample size of the proposals."""
    torch.set_num_threads(1)
    generator, counted = torch.Generator().manual_seed(cell.seed), cell.likelihood == COUNTED
    params = (counted_truth if counted else truth)(generator)
    data = biased_sample((at_sampling if counted else ill)(params), N, generator)
    target = LIKELIHOODS[cell.likelihood](params, data).with_data(N, lambda: data[0])
    posterior = sampled(target, data, SEED + cell.seed)
    if cell.likelihood == DIRICHLET:  # rows sampled by class are the same for any π, if the intercept moves with it
        ill_ones, others = np.random.default_rng(cell.seed).gamma(surveyed(params))
        moved = math.log(ill_ones / others) - math.log(surveyed(params)[0] / surveyed(params)[1])
        params = {**params, "bias": params["bias"] + moved}
    draws = posterior.sample(DRAWS, torch.Generator().manual_seed(SEED + cell.seed))
    both = {name: torch.cat([draws[name], value[None]]) for name, value in params.items()}
    quantities = torch.stack([both["weight"].flatten(), both["bias"].flatten(), log_density(target, both, data)], 1)
    ranks = (quantities[:-1] < quantities[-1]).sum(0).tolist()
    return [{**dict(zip(RANKED, ranks, strict=True)), "size": posterior.record["effective_sample_size"]}]


@torch.no_grad()
def log_density(target: LogPosterior, params: dict[str, Tensor], data: Any) -> Tensor:
    """Return the log posterior at many weights, up to a constant."""
    return N * evaluate_many(target, params, data, marginal_of_sets(target), shared=True)[0]


def sampled(target: LogPosterior, data: Any, seed: int) -> Posterior:
    """Return draws of the posterior, by resampling importance samples: half from a t distribution around the mode, half prior.

    The prior's half finds the other ridge of a posterior that has two.
    """
    generator = torch.Generator().manual_seed(seed)
    start = around_mode(target, data)
    gaussian, layout = start.distribution, start.layout
    assert isinstance(gaussian, DenseGaussian)
    around = stats.multivariate_t(gaussian.mean.numpy(), (gaussian.factor @ gaussian.factor.T).numpy(), FREEDOM)
    prior = stats.multivariate_normal(layout.flatten(MEAN).numpy())
    random = np.random.default_rng(seed)
    drawn_from = [each.rvs(PROPOSALS // 2, random_state=random) for each in (around, prior)]
    proposals = torch.from_numpy(np.concatenate(drawn_from))
    log_proposal = torch.from_numpy(np.logaddexp(around.logpdf(proposals), prior.logpdf(proposals)))
    each = [layout.unflatten(one) for one in proposals]
    params = {name: torch.stack([one[name] for one in each]) for name in layout.names}
    weights = torch.softmax(log_density(target, params, data) - log_proposal, 0)
    drawn = proposals[torch.multinomial(weights, PROPOSALS, replacement=True, generator=generator)]
    record = {"effective_sample_size": float(1 / weights.square().sum())}
    return posterior_of(target, Particles(drawn), layout, record=record)


def around_mode(target: LogPosterior, data: Any) -> Posterior:
    """Return the proposals' place and scale: a Gaussian from the curvature at the mode, in fewer steps than `laplace`."""
    layout = Layout.of(target.parameters())
    vector = layout.flatten(target.parameters()).requires_grad_()
    optimizer = torch.optim.LBFGS([vector], max_iter=50, line_search_fn="strong_wolfe")

    def energy(at: Tensor) -> Tensor:
        return -N * target(layout.unflatten(at), data)[0]

    def closure() -> Tensor:
        vector.grad = None
        value = energy(vector)
        value.backward()
        return value

    optimizer.step(closure)
    curvature = torch.autograd.functional.hessian(energy, vector.detach())
    # the information gain is not concave: directions without curvature get the prior's
    values, vectors = torch.linalg.eigh(curvature)
    return posterior_of(target, DenseGaussian(vector.detach(), vectors * values.clamp_min(1.0).rsqrt()))


def p_values(ranks: np.ndarray) -> tuple[float, float]:
    """Return the p-values of uniform ranks by χ² over bins and by Kolmogorov-Smirnov, for ranks jittered over (0, 1)."""
    counts = np.bincount(ranks * BINS // (DRAWS + 1), minlength=BINS)
    spread = (ranks + np.random.default_rng(0).random(len(ranks))) / (DRAWS + 1)
    return float(stats.chisquare(counts).pvalue), float(stats.kstest(spread, "uniform").pvalue)


def tables(rows: pd.DataFrame) -> dict[str, str]:
    """Return whether ranks are uniform, by the smallest p-value of all tests of a likelihood (Bonferroni), and all tests."""
    lines, verdicts = [], []
    for name, part in rows.groupby("likelihood", sort=False):
        tests = {each: p_values(part[each].to_numpy()) for each in RANKED}
        found = [(p, test, each) for each, both in tests.items() for test, p in zip(("χ²", "KS"), both, strict=True)]
        p, test, quantity = min(found)
        each = LEVEL / len(found)
        says = "uniformity is rejected" if p < each else "uniformity is not rejected"
        least = f"the smallest p is {p:.2g} ({test}, {quantity})"
        verdicts.append(f"- {name}: {says}; {least}, against {each:.2g} for {LEVEL:.0%} over {len(found)} tests.")
        means = ", ".join(f"{part[each].mean() / DRAWS:.2f}" for each in RANKED)
        size = f"{part['size'].median():.0f}, {part['size'].min():.0f}"
        lines.append([str(name), str(len(part)), *(f"{chi:.2g} / {ks:.2g}" for chi, ks in tests.values()), means, size])
    header = ["likelihood", "data sets", *(f"{each}: p of χ² / of KS" for each in RANKED)]
    header += ["mean ranks, as shares of the highest", "effective sample size, median and least"]
    return {"verdicts": "\n".join(verdicts), "table": table(header, lines)}


def draw(rows: pd.DataFrame) -> Any:
    """Draw histograms of the ranks, a row for each likelihood, with the band of 99 % of uniform ranks."""
    names = list(rows["likelihood"].unique())
    figure, grid = axes(len(names), len(RANKED), (9, 2.3 * len(names)), 150, squeeze=False)
    for row, name in zip(grid, names, strict=True):
        part = rows[rows["likelihood"] == name]
        low, high = stats.binom.ppf([0.005, 0.995], len(part), 1 / BINS)
        for axis, quantity in zip(row, RANKED, strict=True):
            axis.hist(part[quantity], np.arange(0, DRAWS + 2, (DRAWS + 1) // BINS) - 0.5, color="0.75", edgecolor="white")
            axis.axhspan(low, high, color="tab:blue", alpha=0.15)
            axis.axhline(len(part) / BINS, color="tab:blue", linewidth=1)
            axis.set(xlabel=f"rank of the true {quantity}", xlim=(-0.5, DRAWS + 0.5))
        row[1].set_title(name.replace("\\", ""), fontsize=9)
    return figure


COMPARISONS = (Comparison("posterior_calibration", cells, run, tables, draw),)
