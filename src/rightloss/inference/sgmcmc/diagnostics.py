"""Whether Markov chains have mixed, and how many independent draws theirs are worth (Vehtari et al. 2021).

Stage: draws (chains, n, d) → R̂ (d,) and effective sample sizes (d,).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...log_probs import tensor_of

TAILS = (0.05, 0.95)  # the tail's effective sample size is that of these two quantiles
NUMBERS = 1 << 23  # how many draws are looked at together, which bounds the memory


def r_hat(draws: Any) -> Float[Tensor, " d"]:
    """How far chains disagree, and each with its own past: 1 where they have mixed, above 1.01 where they need longer.

    Chains are cut in halves and draws become normal scores of their ranks, z. With W the mean of the halves' variances and B/n
    the variance of their means, R̂ = √((n − 1)/n + (B/n)/W): the larger one of that for the draws and that for their distance
    from the median, which finds chains that differ in spread. A number that never moves, in no chain, has ∞.

    Args:
        draws: `(chains, n, d)`, n ≥ 4.
    """
    return _by_columns(_checked(draws), _worst_r_hat)


def effective_sample_size(draws: Any, tail: bool = False) -> Float[Tensor, " d"]:
    """How many independent draws would give as good a mean; with `tail`, as good a 5 % or 95 % quantile, the worse of the two.

    S = chains · n draws are worth S/τ with τ = −1 + 2 Σ_t ρ_t, where ρ_t is the correlation at a lag of t of the halved chains,
    summed up in pairs while these are positive and made not to rise (Geyer 1992). Of draws (rather than their quantiles), those
    of the normal scores of ranks. A number that never moves has 0.

    Args:
        draws: `(chains, n, d)`, n ≥ 4.
        tail: the quantiles' in the place of the bulk's.
    """
    return _by_columns(_checked(draws), _tail_size if tail else _bulk_size)


def _checked(draws: Any) -> Float[Tensor, "c n d"]:
    values = tensor_of(draws, "draws")
    if values.ndim != 3 or values.shape[0] < 1 or values.shape[1] < 4 or values.shape[2] < 1:
        raise ValueError(
            f"Expected draws of shape (chains, n, d) with n of at least 4, but got {tuple(values.shape)}: "
            "add the dimension that is missing, or draw for longer."
        )
    if not bool(torch.isfinite(values).all()):
        raise ValueError("Expected finite draws, but some are not: did a chain diverge?")
    return values.detach().double()


def _by_columns(draws: Tensor, of: Callable[[Tensor], Tensor]) -> Float[Tensor, " d"]:
    """Of so many numbers at a time, each number's draws next to one another, which is what sorting wants."""
    columns = max(1, NUMBERS // draws[:, :, 0].numel())
    return torch.cat([of(part.permute(2, 0, 1).contiguous()) for part in draws.split(columns, 2)])


def _worst_r_hat(draws: Tensor) -> Tensor:
    halves = _halves(draws)
    away = (halves - halves.flatten(1).median(1).values[:, None, None]).abs()
    return torch.maximum(_plain_r_hat(_normal_scores(halves)), _plain_r_hat(_normal_scores(away)))


def _bulk_size(draws: Tensor) -> Tensor:
    return _plain_size(_normal_scores(_halves(draws)))


def _tail_size(draws: Tensor) -> Tensor:
    halves = _halves(draws)
    levels = halves.flatten(1).quantile(torch.tensor(TAILS, dtype=halves.dtype, device=halves.device), 1)
    low, high = (_plain_size((halves <= level[:, None, None]).double()) for level in levels)
    return torch.minimum(low, high)


def _halves(draws: Float[Tensor, "d c n"]) -> Float[Tensor, "d c2 h"]:
    """Each chain's first and second half; a middle draw is left out."""
    half = draws.shape[2] // 2
    return torch.cat([draws[:, :, :half], draws[:, :, -half:]], 1)


def _normal_scores(draws: Float[Tensor, "d c n"]) -> Float[Tensor, "d c n"]:
    """Φ⁻¹((rank − 3/8)/(S + 1/4)) among all chains' draws; equal ones share their mean rank."""
    ordered, order = draws.flatten(1).sort(1)
    place = torch.arange(ordered.shape[1], device=draws.device).expand_as(order)
    steps = torch.nn.functional.pad(ordered[:, 1:] > ordered[:, :-1], (1, 1), value=True)
    first = torch.where(steps[:, :-1], place, 0).cummax(1).values
    last = torch.where(steps[:, 1:], place, len(place[0])).flip(1).cummin(1).values.flip(1)
    rank = torch.empty_like(ordered).scatter_(1, order, 1 + (first + last).double() / 2)
    return torch.special.ndtri((rank - 0.375) / (rank.shape[1] + 0.25)).view_as(draws)


def _plain_r_hat(draws: Float[Tensor, "d c n"]) -> Float[Tensor, " d"]:
    n = draws.shape[2]
    within, between = draws.var(2).mean(1), draws.mean(2).var(1)
    return ((n - 1) / n + torch.where(within > 0, between / within, torch.inf)).sqrt()


def _plain_size(draws: Float[Tensor, "d c n"]) -> Float[Tensor, " d"]:
    _, chains, n = draws.shape
    covariance = _autocovariance(draws)
    within = covariance[:, :1] * n / (n - 1)
    total = covariance[:, :1] + draws.mean(2).var(1)[:, None]
    correlation = 1 - (within - covariance) / torch.where(total > 0, total, 1)
    correlation[:, 0] = 1
    size = chains * n / _time(correlation).clamp_min(1 / math.log10(chains * n))
    return torch.where(total[:, 0] > 0, size, 0)


def _time(correlation: Float[Tensor, "d n"]) -> Float[Tensor, " d"]:
    """τ. Where the pairs' sums turn negative, the first of that pair still counts once, if positive."""
    even, odd = correlation[:, : correlation.shape[1] // 2 * 2].unflatten(1, (-1, 2)).unbind(2)
    positive = (even + odd > 0).cumprod(1).bool()
    falling = torch.where(positive, even + odd, torch.inf).cummin(1).values
    next_even = torch.cat([even, torch.zeros_like(even[:, :1])], 1).gather(1, positive.sum(1, keepdim=True))
    return -1 + 2 * torch.where(positive, falling, 0).sum(1) + next_even[:, 0].clamp_min(0)


def _autocovariance(draws: Float[Tensor, "d c n"]) -> Float[Tensor, "d n"]:
    """At each lag, the mean over chains: sums of products divided by n."""
    n = draws.shape[2]
    spectrum = torch.fft.rfft(draws - draws.mean(2, keepdim=True), n=2 * n)
    return torch.fft.irfft(spectrum.abs().square().mean(1), n=2 * n)[:, :n] / n
