"""Intervals of predictions at an uncertain prevalence.

Stage: `log_probs`, distribution of π → mean and interval of p(k|x,π).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import betaincinv, betaln, expit, logit

from ..arrays import (
    Predictions,
    array_of,
    as_given,
    checked_int,
    checked_level,
    map_of,
    multiply_classes,
    random_generator,
    row_blocks,
    rows_of,
)
from ..prevalence import Mix, Prevalence, PrevalenceWarning, log_mix, without_estimate
from .retarget import class_table

_NEGLIGIBLE = 50.0  # the density is e^−50 of that at the mode
_FARTHEST = 700.0  # distance from the mode, so that e^u is finite; beyond it the tail is exponential in float64
_NUMBERS = 1 << 22  # float64 numbers held at once, 32 MB
_DRAWN = 1 << 25  # numbers drawn in total, 256 MB


@dataclass(frozen=True)
class PredictionInterval:
    """The result of `retarget_interval`: probabilities with the shape and type of the predictions.

    Attributes:
        mean: E[p(k|x,π)] over the distribution of π.
        low: the lower end of the central interval of p(k|x,π), class by class.
        high: its upper end.

    Examples:
        >>> import numpy as np
        >>> import rightloss as rl
        >>> found = rl.retarget_interval(np.log([[0.2, 0.8]]), from_=0.5, to=rl.Prevalence.beta(10, 990))
        >>> bool((found.low < found.mean).all() and (found.mean < found.high).all())
        True
    """

    mean: Any
    low: Any
    high: Any


def retarget_interval(
    log_probs: Predictions,
    from_: Mix,
    to: Mix,
    level: float = 0.95,
    draws: int | None = None,
    generator: Any = None,
) -> PredictionInterval:
    """Return the mean and a central interval of p(k|x,π) for an uncertain π.

    p(k|x,π) ∝ p_from(k|x) π_k / from_k is the prediction for a known π; with π ~ Beta or Dirichlet it has a distribution.
    The mean is the average prediction over π. For a decision about one new person use another probability,
    [`retarget`][rightloss.predictive.retarget.retarget].

    A prediction of a [`Posterior`][rightloss.inference.Posterior] is an average over weights. This interval leaves out their
    uncertainty, with a warning; `posterior.predict(x, population=to, level=0.95)` has both.

    For two classes, p(1|x,π) = σ(logit π + c(x)) increases with π, so its quantiles follow from those of π; quantiles and
    mean are computed without draws. For more classes they are computed from draws of π, the same for all rows.

    Args:
        log_probs: log-probabilities `(n, k)`, or dense maps `(n, k, h, w, …)`; tensor or array.
        from_: the mix they are for, as in `retarget`.
        to: an uncertain `Prevalence` (`Prevalence.beta`, `.dirichlet`), or an estimate of one (`estimate_prevalence`). Anything
            certain, as in `retarget`, gives low = mean = high.
        level: the probability of the interval.
        draws: number of draws of π, for more than two classes, at most 2²⁵ / K. None means 200 / (1 − level), a hundred beyond
            each limit.
        generator: for the draws: a `numpy.random.Generator`, a `torch.Generator` or a seed; one with a fixed seed by default.

    Examples:
        >>> import numpy as np
        >>> import rightloss as rl
        >>> found = rl.retarget_interval(np.log([[0.2, 0.8]]), from_=0.5, to=rl.Prevalence.beta(10, 990))
        >>> found.low[0, 1].round(3), found.high[0, 1].round(3)  # of class 1
        (np.float64(0.019), np.float64(0.065))
    """
    table = array_of(class_table(log_probs), "log_probs")
    rows, num_classes = table.shape[:2]
    level, generator, to = checked_level(level), random_generator(generator), without_estimate(to)
    least = math.ceil(2 / (1 - level))
    count = math.ceil(200 / (1 - level)) if draws is None else checked_int(draws, "draws", least, remedy=f"for level {level:g}")
    start = log_mix(from_, "from_", num_classes, rows)
    target = log_mix(to, "to", num_classes, rows)
    if not isinstance(to, Prevalence) or to.concentration is None:
        same = np.exp(multiply_classes(table, target - start))
        return PredictionInterval(*(as_given(same.copy(), log_probs) for _ in range(3)))
    spread = getattr(log_probs, "model_entropy", None)  # of a posterior's prediction
    if spread is not None and bool((spread > 1e-6).any()):
        warnings.warn(
            "This interval leaves out the uncertainty of a posterior's weights: posterior.predict(x, population=…, level=…) "
            "has that and the population's in one interval.",
            PrevalenceWarning,
            stacklevel=2,
        )
    logits = rows_of(table.astype(np.float64) - start.reshape(*start.shape, *[1] * (table.ndim - 2)))
    if num_classes == 2:
        b, a = to.concentration.tolist()
        found = _two_classes(logits, BetaLogOdds(a, b), level)
    else:
        if count > (most := _DRAWN // num_classes):
            raise ValueError(f"Expected at most {most} draws of {num_classes} classes, but got {count}: lower `level`.")
        found = _many_classes(logits, to.sample(count, generator), level)
    return PredictionInterval(*(as_given(map_of(each, table.shape).astype(table.dtype), log_probs) for each in found))


def _two_classes(logits: np.ndarray, beta: BetaLogOdds, level: float) -> list[np.ndarray]:
    nodes, weights = beta.rule()
    signs = np.array([-1.0, 1.0])
    odds = (logits[:, 1] - logits[:, 0])[:, None]
    ends = np.array([beta.quantile(share) for share in ((1 - level) / 2, (1 + level) / 2)])

    def mean(block: np.ndarray) -> np.ndarray:
        return np.stack([expit(sign * (block + nodes)) @ weights for sign in signs], 1)

    return [_blockwise(mean, odds, len(nodes)), expit(signs * (odds + ends[::-1])), expit(signs * (odds + ends))]


def _many_classes(logits: np.ndarray, draws: np.ndarray, level: float) -> list[np.ndarray]:
    def summary(block: np.ndarray) -> np.ndarray:
        # relative to the most probable class, so that its product with a draw is never 0
        probs = np.exp(block - block.max(1, keepdims=True))[:, :, None] * draws.T
        probs /= probs.sum(1, keepdims=True)
        mean = probs.mean(2)
        return np.stack([mean, *np.quantile(probs, [(1 - level) / 2, (1 + level) / 2], axis=2, overwrite_input=True)], 1)

    return list(np.moveaxis(_blockwise(summary, logits, draws.size), 1, 0))


def _blockwise(function: Callable[[np.ndarray], np.ndarray], table: np.ndarray, numbers_per_row: int) -> np.ndarray:
    """Apply `function` to blocks of rows, to bound the memory."""
    return np.concatenate([function(block) for _, block in row_blocks(table, max(1, _NUMBERS // numbers_per_row))])


@dataclass(frozen=True)
class BetaLogOdds:
    """The distribution of the log-odds t = log π/(1 − π) for π ~ Beta(a, b): means and quantiles.

    With t = t₀ + u and t₀ = log a/b, the mode of the density of t, that density is, relative to the mode,

        g(u) = −a log(1 + b/(a+b) (e^{−u} − 1)) − b log(1 + a/(a+b) (e^u − 1)),

    without the cancellation of a log σ(t) + b log σ(−t) at large counts, and without the poles of Beta(a, b) at a, b < 1.
    """

    a: float
    b: float

    def rule(self) -> tuple[np.ndarray, np.ndarray]:
        """Return nodes t and weights that sum to 1: E[f(t)] ≈ Σ w f(t), for f that is smooth on the scale of 1.

        This is the trapezoidal rule, which is precise to rounding for a smooth density with tails that decay exponentially.
        The rest of the tails, a geometric series, is added to the first and to the last node.
        """
        width = math.sqrt(1 / self.a + 1 / self.b)
        step = min(1.0, width) / 8
        below, above = (math.ceil(self._reach(direction, width) / step) for direction in (-1.0, 1.0))
        u = step * np.arange(-below, above + 1)
        weights = np.exp(self._log_density(u))
        weights[[0, -1]] /= -np.expm1([-self.a * step, -self.b * step])
        return u + math.log(self.a) - math.log(self.b), weights / weights.sum()

    def quantile(self, share: float) -> float:
        """Return the quantile t at the probability `share`."""
        low = _log_odds_quantile(self.a, self.b, share)
        return low if low < 0 else -_log_odds_quantile(self.b, self.a, 1 - share)

    def _log_density(self, u: Any) -> Any:
        share, rest = self.a / (self.a + self.b), self.b / (self.a + self.b)
        return -self.a * np.log1p(rest * np.expm1(-u)) - self.b * np.log1p(share * np.expm1(u))

    def _reach(self, direction: float, width: float) -> float:
        distance = width
        while distance < _FARTHEST and self._log_density(direction * distance) > -_NEGLIGIBLE:
            distance *= 1.5
        return min(distance, _FARTHEST)


def _log_odds_quantile(a: float, b: float, share: float) -> float:
    """Return a quantile of log π/(1 − π), precise for π < 1/2; where π underflows, F(π) = π^a / (a B(a, b))."""
    pi = betaincinv(a, b, share)
    return float(logit(pi) if pi > 1e-290 else (math.log(share * a) + betaln(a, b)) / a)
