"""An uncertain prevalence, carried to the predictions.

Stage: `log_probs`, distribution of π → mean and interval of p(k|x,π).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from ..inference.steps import checked_level
from ..log_probs import as_given, map_of, row_blocks, rows_of
from ..mixes import log_mix, multiply_classes, without_estimate
from ..prevalence import Prevalence
from ..rng import checked_generator
from .beta import BetaLogOdds
from .retarget import class_table

_NUMBERS = 1 << 22  # float64 numbers held at once, 32 MB
_DRAWN = 1 << 25  # numbers drawn in all, 256 MB


@dataclass(frozen=True)
class PredictionInterval:
    """Probabilities of the shape and kind of the predictions.

    Attributes:
        mean: E[p(k|x,π)] over the distribution of π.
        low: the lower end of the central interval of p(k|x,π), class by class.
        high: its upper end.
    """

    mean: Any
    low: Any
    high: Any


def retarget_interval(
    log_probs: Any, from_: Any, to: Any, level: Any = 0.95, draws: Any = None, generator: Any = None
) -> PredictionInterval:
    """How far p(k|x,π) moves with a π that is not known exactly.

    p(k|x,π) ∝ p_from(k|x) π_k / from_k is the prediction if π were known; with π ~ Beta or Dirichlet it has a distribution,
    whose mean and central interval these are. The mean says what such predictions would be on average over π. The
    probability to act on for one new person is another one, [`retarget`][rightloss.predictive.retarget.retarget].

    Two classes: p(1|x,π) = σ(logit π + c(x)) grows with π, so its quantiles are those of π, carried over; both they and the
    mean are computed without draws. More classes: by draws of π, the same for all rows.

    Args:
        log_probs: log-probabilities `(n, k)`, or dense maps `(n, k, h, w, …)`; tensor or array.
        from_: the mix they are for, as in `retarget`.
        to: an uncertain `Prevalence` (`Prevalence.beta`, `.dirichlet`), or an estimate of one (`estimate_prevalence`). Anything
            certain, as in `retarget`, gives low = mean = high.
        level: the share of π's distribution that the interval covers.
        draws: of π, for more than two classes, at most 2²⁵ / K. None means 200 / (1 − level), a hundred beyond either end.
        generator: of the draws, a torch.Generator; torch's own by default.
    """
    table = class_table(log_probs)
    rows, num_classes = table.shape[:2]
    level = checked_level(level)
    count = _checked_draws(draws, level)
    generator = checked_generator(generator)
    to = without_estimate(to)
    start = log_mix(from_, "from_", num_classes, rows)
    target = log_mix(to, "to", num_classes, rows)
    if not isinstance(to, Prevalence) or to.concentration is None:
        same = multiply_classes(table.detach(), target - start).exp()
        return PredictionInterval(*(as_given(same.clone(), log_probs) for _ in range(3)))
    logits = rows_of(table.detach().to("cpu", torch.float64) - start.reshape(*start.shape, *[1] * (table.ndim - 2)))
    if num_classes == 2:
        b, a = to.concentration.tolist()
        found = _two_classes(logits, BetaLogOdds(a, b), level)
    else:
        _refuse_excess(count, num_classes)
        found = _many_classes(logits, to.sample(count, generator), level)
    return PredictionInterval(*(as_given(map_of(each, table.shape).to(table), log_probs) for each in found))


def _checked_draws(draws: Any, level: float) -> int:
    if draws is None:
        return math.ceil(200 / (1 - level))
    try:
        count = operator.index(draws)
    except TypeError:
        raise ValueError(f"Expected `draws` to be a whole number, but got {draws!r}: round it.") from None
    least = math.ceil(2 / (1 - level))
    if count < least:
        raise ValueError(
            f"Expected at least {least} draws for level {level:g}, but got {count}: "
            "fewer leave none beyond the interval's ends."
        )
    return count


def _refuse_excess(draws: int, num_classes: int) -> None:
    most = _DRAWN // num_classes
    if draws > most:
        raise ValueError(
            f"Expected at most {most} draws of {num_classes} classes, but got {draws}: lower `level`, which needs so many, or "
            "set `draws`."
        )


def _two_classes(logits: Float64[Tensor, "n 2"], beta: BetaLogOdds, level: float) -> list[Float64[Tensor, "n 2"]]:
    nodes, weights = beta.rule()
    signs = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    odds = (logits[:, 1] - logits[:, 0])[:, None]
    low, high = (beta.quantile(share) for share in ((1 - level) / 2, (1 + level) / 2))

    def mean(block: Tensor) -> Tensor:
        return torch.stack([torch.sigmoid(sign * (block + nodes)) @ weights for sign in signs], 1)

    return [
        _blockwise(mean, odds, len(nodes)),
        torch.sigmoid(signs * (odds + torch.tensor([high, low], dtype=torch.float64))),
        torch.sigmoid(signs * (odds + torch.tensor([low, high], dtype=torch.float64))),
    ]


def _many_classes(logits: Float64[Tensor, "n k"], draws: Float64[Tensor, "s k"], level: float) -> list[Float64[Tensor, "n k"]]:
    places = [share * (len(draws) - 1) for share in ((1 - level) / 2, (1 + level) / 2)]
    nearest = sorted({end(place) for place in places for end in (math.floor, math.ceil)})

    def summary(block: Tensor) -> Tensor:
        # relative to the likeliest class, whose product with a draw is never 0
        ratio = (block - block.amax(1, keepdim=True)).exp()
        probs = ratio[:, :, None] * draws.T
        probs /= probs.sum(1, keepdim=True)
        mean = probs.mean(2)
        probs.numpy().partition(nearest, axis=2)  # a quarter of the time of sorting
        return torch.stack([mean, *(_between(probs, place) for place in places)], 1)

    return list(_blockwise(summary, logits, draws.numel()).unbind(1))


def _between(ordered: Float64[Tensor, "n k s"], place: float) -> Float64[Tensor, "n k"]:
    """The quantile at `place`, between the two nearest draws."""
    below, above = math.floor(place), math.ceil(place)
    return torch.lerp(ordered[..., below], ordered[..., above], place - below)


def _blockwise(function: Callable[[Tensor], Tensor], table: Tensor, numbers_per_row: int) -> Tensor:
    """`function` of some rows at a time, so that memory is bounded."""
    return torch.cat([function(block) for _, block in row_blocks(table, max(1, _NUMBERS // numbers_per_row))])
