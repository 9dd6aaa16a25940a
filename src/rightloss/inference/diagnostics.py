"""Convergence of Markov chains: R̂ and effective sample sizes (Vehtari et al. 2021), by `arviz-stats`.

Stage: draws `(chains, n, d)` → R̂ `(d,)` and effective sample sizes `(d,)`; a posterior of chains → its record, and a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike
from torch import Tensor

from ..extras import install
from ..marginals import BatchMarginal
from ..prevalence import Prevalence
from ..tensors import in_mode, tensor_of
from .distributions import Particles
from .minibatches import Pair
from .posterior import Posterior
from .prediction import JointModel
from .target import LogPosterior
from .weight_sets import evaluate_many, vmaps

R_HAT_THRESHOLD = 1.05  # a larger R̂ of predictions gives a warning
TAILS = (0.05, 0.95)  # quantiles for the effective sample size of the tail
WEIGHTS = 20  # a Gaussian of more weights is not compared with the posterior: importance weights would be too uneven
_DRAWS, _WIDER = 1000, 1.25  # draws for that comparison, from a Gaussian whose standard deviations are larger by this factor
_EVALUATIONS, _AT_ONCE = 2 * 10**7, 1 << 21  # draws times examples, in all and together
_OFF, _FEW = 0.1, 50  # relative error of a standard deviation that gives a warning; effective draws that are too few to tell
_ROWS, _NUMBERS = 64, 2000  # examples for the comparison of predictions between chains, and the maximum number of values


def r_hat(draws: ArrayLike | Tensor) -> Float[Tensor, " d"]:
    """Return R̂ of Markov chains: 1 if they have mixed, above 1.01 if they need more steps.

    It is the rank-normalised R̂: chains are split into halves, and draws are replaced by normal scores of their ranks. With W
    the mean of the halves' variances and B/n the variance of their means, R̂ = √((n − 1)/n + (B/n)/W). The result is the larger
    of that for the draws and that for their distance from the median, which detects chains with different variances.

    Args:
        draws: `(chains, n, d)`, n ≥ 4. The halves of a single chain count as two chains.

    Returns:
        R̂ of each of the d quantities; ∞ if there is nothing to compare: a quantity that never changes, or one chain of fewer
        than 8 draws.

    Examples:
        >>> import torch
        >>> from rightloss.inference import r_hat
        >>> draws = torch.randn(4, 100, 1, generator=torch.Generator().manual_seed(0))
        >>> draws[0] += 3  # one chain is elsewhere
        >>> r_hat(draws) > 1.3
        tensor([True])
    """
    values = _checked(draws)
    if len(values) == 1:  # arviz-stats needs two or more chains
        half = values.shape[1] // 2
        values = torch.cat([values[:, :half], values[:, -half:]])
    if values.shape[1] < 4:
        return torch.full_like(values[0, 0], torch.inf)
    return _for_moving(values, np.inf, lambda moving: _arviz().rhat(moving, chain_axis=0, draw_axis=1))


def effective_sample_size(draws: ArrayLike | Tensor, tail: bool = False) -> Float[Tensor, " d"]:
    """Return the number of independent draws with the same precision of the mean, or with `tail` of the 5 % or 95 % quantile.

    The effective size of S = chains · n draws is S/τ with τ = −1 + 2 Σ_t ρ_t, where ρ_t is the autocorrelation of the halved
    chains at lag t, summed in pairs while these are positive, and made non-increasing (Geyer 1992). For the mean, ρ_t is that
    of normal scores of ranks.

    Args:
        draws: `(chains, n, d)`, n ≥ 4.
        tail: whether to return the smaller of the two quantiles' sizes.

    Returns:
        The size of each of the d quantities; 0 for one that never changes.

    Examples:
        >>> import torch
        >>> from rightloss.inference import effective_sample_size
        >>> draws = torch.randn(4, 100, 1, generator=torch.Generator().manual_seed(0)).cumsum(1)
        >>> effective_sample_size(draws) < 40  # of 400 draws of a random walk
        tensor([True])
    """
    how: dict[str, Any] = {"method": "tail", "prob": TAILS} if tail else {"method": "bulk"}
    # arviz-stats returns the number of draws for a constant quantity
    return _for_moving(_checked(draws), 0.0, lambda moving: _arviz().ess(moving, chain_axis=0, draw_axis=1, **how))


def worst_of(draws: Float[Tensor, "c n d"]) -> dict[str, float]:
    """Return the largest R̂ and the smallest sample sizes of (some of) the d quantities, for a record."""
    some = draws[:, :, :: -(-draws.shape[2] // _NUMBERS)]
    return {
        "r_hat": float(r_hat(some).max()),
        "effective_sample_size": float(effective_sample_size(some).min()),
        "tail_sample_size": float(effective_sample_size(some, tail=True).min()),
    }


def judge_chains(posterior: Posterior, x: Tensor) -> None:
    """Add R̂ and sample sizes of weights and of predictions for x to the record; warn if chains have not mixed.

    The hidden units of a network can be permuted, so its weights may never agree between chains. The warning is about
    predictions.
    """
    distribution = posterior.distribution
    assert isinstance(distribution, Particles)
    if len(distribution) < 4 * distribution.chains:
        return
    rows = x[:: max(len(x) // _ROWS, 1)][:_ROWS]
    tables = torch.cat([table.flatten(1) for table in posterior.tables(rows)])
    moving = (tables != tables[0]).any(0)  # probabilities that round to 1 in every draw are no sign of a problem
    tables = tables[:, moving] if bool(moving.any()) else tables
    predicted = worst_of(tables.unflatten(0, (distribution.chains, -1)))
    posterior.record.update(worst_of(distribution.by_chain), predictions=predicted)
    if predicted["r_hat"] > R_HAT_THRESHOLD:
        warnings.warn(
            f"Chains disagree: R̂ of predictions is {predicted['r_hat']:.2f}, above {R_HAT_THRESHOLD}. Raise `steps` (and "
            "`warmup`), or use `ensemble` if there are several modes.",
            stacklevel=5,
        )


@torch.no_grad()
def judge_gaussian(posterior: Posterior, target: LogPosterior, data: Pair, temperature: float = 1.0) -> None:
    """Add to the record by how much the posterior's own standard deviations differ from a Gaussian's; warn if by much.

    The ratios are estimated by importance sampling: draws of the Gaussian, somewhat widened, are weighted by the posterior's
    density relative to the Gaussian's. Only for up to 20 weights and 20,000 examples.
    """
    q, size = posterior.distribution, posterior.layout.size
    classes = isinstance(target.prevalence, Prevalence)
    if size > WEIGHTS or len(data[0]) * _DRAWS > _EVALUATIONS or not classes or not vmaps(target.model):
        return
    target = (target if target.marginal is None else target.with_marginal(BatchMarginal())).on(data[0].device)
    fixed = JointModel(posterior.model, posterior.likelihood).own()
    draws = q.mean + _WIDER * (q.sample(_DRAWS, torch.Generator().manual_seed(0)) - q.mean)
    values = []
    with in_mode(target.model, False):
        for some in draws.split(max(1, _AT_ONCE // len(data[0]))):
            shared = {name: value.expand(len(some), *value.shape) for name, value in fixed.items()}
            weights = {**shared, **posterior.layout.unflatten(some)}
            values.append(evaluate_many(target, weights, data, target.marginal, shared=True)[0].double())
    assert target.num_data is not None
    gaussian = torch.distributions.MultivariateNormal(q.mean.double(), q.covariance().double())
    log_ratio = torch.cat(values) * (target.num_data / temperature) - gaussian.log_prob(draws.double()) / _WIDER**2
    share = torch.softmax(log_ratio, 0)
    away = draws.double() - share @ draws.double()
    effective = float(1 / share.square().sum())
    ratio = (share @ away.square()).sqrt() / q.standard_deviation.double()
    worst = int(ratio.log().abs().argmax())
    posterior.record.update(sd_ratio=float(ratio[worst]), sd_ratio_draws=effective)
    if effective >= _FEW and abs(float(ratio[worst].log())) < _OFF + 2 / (2 * effective) ** 0.5:
        return
    ends = np.cumsum(posterior.layout.sizes)
    name = posterior.layout.names[int(np.searchsorted(ends, worst, side="right"))]
    said = f"the standard deviation of `{name}` is {1 / float(ratio[worst]):.2f} × that of its own draws, weighted"
    said = said if effective >= _FEW else "hardly any of its draws are probable there"
    warnings.warn(
        f"The Gaussian differs from the posterior: {said}. In `variational`, first try more `steps` and family='full-rank'; "
        "else use nuts, or sghmc with batch_size=None. A narrower prior of the bias, or evidence about the prevalence (κ = 1), "
        "makes the posterior itself more Gaussian.",
        stacklevel=5,
    )


def _checked(draws: ArrayLike | Tensor) -> Float[Tensor, "c n d"]:
    values = tensor_of(draws, "draws")
    if values.ndim != 3 or values.shape[0] < 1 or values.shape[1] < 4 or values.shape[2] < 1:
        raise ValueError(
            f"Expected draws of shape (chains, n, d) with n of at least 4, but got {tuple(values.shape)}: "
            "add the dimension that is missing, or draw for longer."
        )
    if not bool(torch.isfinite(values).all()):
        raise ValueError("Expected finite draws, but some are not: did a chain diverge?")
    return values.detach().double()


def _for_moving(draws: Tensor, still: float, statistic: Callable[[np.ndarray], np.ndarray]) -> Float[Tensor, " d"]:
    """Return the statistic of each quantity, and `still` for constant ones."""
    values = draws.cpu().numpy()
    moving = (values != values[:1, :1]).any((0, 1))
    result = np.full(len(moving), still)
    if moving.any():
        with np.errstate(divide="ignore", invalid="ignore"):  # warnings of folded draws that are all equal
            result[moving] = statistic(values[:, :, moving])
    return torch.from_numpy(np.where(np.isnan(result), still, result)).to(draws.device)


def _arviz() -> Any:
    """Return the functions of `arviz-stats` on arrays; its import takes a second."""
    try:
        return import_module("arviz_stats.base").array_stats
    except ImportError as error:
        raise ImportError(f"R̂ and effective sample sizes need arviz-stats: {install('bayes')}.") from error
