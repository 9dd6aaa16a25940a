"""Warn of likely mistakes in training: labels not at the declared mix, a mean prediction that stays wrong, a second softmax.

Stage: logits and labels of some of the training batches → at most one `PrevalenceWarning` of each kind.
"""

from __future__ import annotations

import math
import random
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from ..arrays import rows_of
from ..likelihoods import Bernoulli, Categorical, Likelihood
from ..prevalence import PrevalenceWarning
from .batch import LabelledBatch, check_finite_rows, finding, full_precision
from .gain import PriorTerms, at_reference

OUTPUTS = (1, 16)  # batches whose outputs are checked: the first 16, then 16 each time their number grows by a factor of e
LABELS = (8, 64)  # batches whose labels are counted: one in 8 of the first 512, then 64 for each factor of e
FALSE_ALARMS = 1e-3  # probability of a false warning about the labels, over a whole training
ODDS = 1.25  # no warning if the odds of a mix or mean prediction are wrong by less than this factor
FAR = 3.0  # a mean prediction with odds wrong by this factor is far off
SETTLED = 256  # batches before a mean prediction can count as stuck
MANY = 2**16  # enough rows for a mean prediction
CONCENTRATIONS = torch.logspace(-2, 7, 28, dtype=torch.float64)  # 1 / (correlation of rows in a batch) − 1
SORTED = (
    ", and successive batches are alike, as if the rows were sorted: pass shuffle=True to the loader. If it shuffles them, give"
)

Kind = Literal["mix", "mean", "logits"]


class Monitor:
    """Check some of the training batches of a loss, and warn of likely mistakes.

    - **Labels.** The rows of a batch may be correlated in any way: pixels of an image, rows of a patient. So batches are the
      units, some apart because a volume may fill several. Each time their number has doubled, the share of each class is
      tested against ρ, at levels that add up to `FALSE_ALARMS`: see `_by_rows` and `_by_betting`.
    - **Mean prediction** at the mix r of the loss: it must be r, or between r and the labels of the same batches. It is stuck
      if, in two successive doublings of the number of batches, its odds are wrong by a factor of `FAR` and by more than 5
      standard errors, and hardly closer in the second.
    - **Logits** of a softmax likelihood that are non-negative and sum to 1 in every row of three batches.

    Nothing is checked in eval mode, on an accelerator, under `torch.compile`, inside `torch.func` or over several ranks.
    Messages begin with the finding `name`, if one is given.
    """

    def __init__(self, *quiet: Kind, name: str | None = None) -> None:
        self._prefix = "" if name is None else f"finding {name!r}: "
        self._random = random.Random(0)
        self.batches, self._next_outputs, self._next_labels = 0, 1, 1
        self._counts: list[Tensor] = []  # labels of each class, in each batch whose labels were counted
        self._mean, self._mean_before = _Average(), _Average()
        self._checks, self._mean_due = 0, 2
        self._normalised = 0
        self._quiet: set[Kind] = set(quiet)

    def due(self) -> bool:
        """Count a batch, and return whether to check it."""
        self.batches += 1
        return self.waiting

    @property
    def waiting(self) -> bool:
        """Whether the latest batch is one to check."""
        return self.batches >= min(self._next_outputs, self._next_labels)

    @torch.no_grad()
    def look(self, batch: LabelledBatch, terms: PriorTerms, likelihood: Likelihood) -> None:
        """Add one batch to the statistics, and warn if a test fails."""
        labels, sampling = batch.labels, terms.sampling.double()
        counts = labels.per_class(sampling).double()
        if self.batches >= self._next_labels:
            self._next_labels = self._after(*LABELS)
            if "mix" not in self._quiet:
                self._look_at_mix(counts, sampling, dense=len(batch.shape) > 1)
        if self.batches < self._next_outputs:
            return
        self._next_outputs = self._after(*OUTPUTS)
        rows = check_finite_rows(rows_of(full_precision(batch.outputs.detach())), "nan")
        if "logits" not in self._quiet and type(likelihood) is Categorical:
            self._look_at_logits(rows)
        if "mean" not in self._quiet:
            weights = terms.reference.double() / sampling
            per_row = labels.mask(labels.per_row(weights.to(rows)))
            some = slice(None, None, max(1, len(rows) // MANY))
            table = at_reference(likelihood.table(rows[some]), terms.log_offset)
            mean = (table.exp() * per_row[some, None]).sum(0).double()
            if float(mean.sum()) > 0:
                self._look_at_mean(torch.stack([mean / mean.sum(), counts * weights / (counts @ weights)]), terms)

    def _after(self, least: int, density: int) -> int:
        """Return the number of the next batch to check: at random, so that no period of the loader can fool the monitor."""
        stride = max(least, self.batches // density)
        return self.batches + 1 + stride // 2 + self._random.randrange(stride)

    def _look_at_logits(self, rows: Tensor) -> None:
        tolerance = 1e-3 if rows.shape[1] < 1000 else 1e-2
        normalised = bool(rows.amin() >= 0) and bool(((rows.sum(1) - 1).abs() < tolerance).all())
        self._normalised = self._normalised + 1 if normalised else 0
        if self._normalised == 3:
            self._warn(
                "logits",
                "Expected logits, but every row is non-negative and sums to 1, like the output of a softmax: pass the outputs "
                "of the last layer. The loss applies the softmax itself.",
            )

    def _look_at_mix(self, counts: Tensor, sampling: Tensor, dense: bool) -> None:
        self._counts.append(counts)
        if len(self._counts) < 8 << self._checks:
            return
        self._checks += 1
        table = torch.stack(self._counts)
        rows = table.sum(1, keepdim=True)
        seen = table.sum(0) / rows.sum()
        bound = math.log(2 * len(seen) * self._checks * (self._checks + 1) / FALSE_ALARMS)
        off = (_log_odds(seen) - _log_odds(sampling)).abs() > math.log(ODDS)
        suspects = torch.nonzero(off & (rows.sum() * _divergence(seen, sampling) > bound)).flatten()
        surprise = (_by_betting if dense else _by_rows)(table[:, suspects], rows, sampling[suspects])
        if bool((surprise > bound).any()):
            worst = int(suspects[surprise.argmax()])
            self._warn(
                "mix",
                f"Expected labels in the mix `sampling`, but class {worst} makes up {float(seen[worst]):.3g} of those in the "
                f"{len(table)} batches looked at, where `sampling` says {float(sampling[worst]):.3g}"
                + (SORTED if _in_turn(table / rows) else ": predicted odds will be wrong by that ratio. Give")
                + " the mix of the minibatches, Prevalence.from_labels(train_labels, population=…), or have a "
                "RebalancedSampler draw them at `sampling`.",
            )

    def _look_at_mean(self, mean: Tensor, terms: PriorTerms) -> None:
        if self.batches >= self._mean_due:
            self._mean_due *= 2
            if self.batches > SETTLED and self._mean_before.batches and self._mean.batches > 4:
                self._compare_means(terms.reference.double(), terms.at_population)
            self._mean_before, self._mean = self._mean, _Average()
        self._mean.add(mean)

    def _compare_means(self, wanted: Tensor, at_population: bool) -> None:
        predicted, labels = torch.stack([self._mean_before.mean, self._mean.mean], 1)
        right = predicted.clamp(torch.minimum(wanted, labels), torch.maximum(wanted, labels))
        was, off = _log_odds(predicted) - _log_odds(right)
        now = predicted[1]
        surely = (now - right[1]).abs() > 5 * self._mean.standard_error[0]
        far = (off.abs() > math.log(FAR)) & (was.abs() > math.log(FAR)) & (off.abs() > 0.8 * was.abs()) & (off * was > 0)
        if bool((far & surely).any()):
            worst = int(torch.where(surely, off.abs(), -1.0).argmax())
            mix = "the population has" if at_population else "in the mix of the minibatches it is to be"
            self._warn(
                "mean",
                f"The mean prediction of class {worst} has stayed at {float(now[worst]):.3g} for {self.batches // 2} batches, "
                f"where {mix} {float(wanted[worst]):.3g}: call start_at_prevalence(output_layer, prevalence) before training, "
                "give the prevalence evidence=1, have the optimizer train the output layer's bias, and pass logits that no "
                "sigmoid or softmax has been applied to.",
            )

    def _warn(self, kind: Kind, message: str) -> None:
        self._quiet.add(kind)
        warnings.warn(self._prefix + message, PrevalenceWarning, stacklevel=_frames_to_user())


class FindingMonitors:
    """A monitor for each of several findings (multi-label); its messages name the finding."""

    def __init__(self, names: Sequence[str], *quiet: Kind) -> None:
        self.monitors = [Monitor(*quiet, name=name) for name in names]

    def due(self) -> bool:
        """Count a batch, and return whether to check it for any finding."""
        return any([monitor.due() for monitor in self.monitors])  # a list, so that every monitor counts

    def look(self, batch: LabelledBatch, terms: PriorTerms, likelihood: Likelihood) -> None:
        """Pass the rows that were read of each finding to its monitor."""
        for number, monitor in enumerate(self.monitors):
            if monitor.waiting and (own := finding(batch, number)) is not None:
                monitor.look(own, terms.of_finding(number), Bernoulli())


@dataclass
class _Average:
    """The running mean of a tensor over batches, and its standard error."""

    batches: int = 0
    total: Tensor = field(default_factory=lambda: torch.zeros(()))
    squares: Tensor = field(default_factory=lambda: torch.zeros(()))

    def add(self, values: Tensor) -> None:
        self.batches, self.total, self.squares = self.batches + 1, self.total + values, self.squares + values**2

    @property
    def mean(self) -> Tensor:
        return self.total / self.batches

    @property
    def standard_error(self) -> Tensor:
        variance = (self.squares / self.batches - self.mean**2).clamp_min(0)
        return (variance / max(1, self.batches - 1)).sqrt()


def _frames_to_user() -> int:
    """Return the stack level of the code that called the loss, so that the warning names its line."""
    level, frame = 1, sys._getframe(1)
    ours = ("rightloss", "torch", "jaxtyping", "beartype")
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in ours:
        level, frame = level + 1, frame.f_back
    return level


def _by_rows(counts: Tensor, rows: Tensor, sampling: Tensor) -> Tensor:
    """Return log LR of the seen mix against `sampling`, by class, for counts that are beta-binomial: rows of one label each.

    The correlation of the rows is whatever makes each of the two mixes most probable. If it is 0 in all the batches, each row
    counts; if a class is in no batch, nothing tells it from 1, and each batch counts as one row.
    """

    def log_likelihood(mix: Tensor) -> Tensor:
        mix = mix.clamp(1e-12, 1 - 1e-12)
        a, b = CONCENTRATIONS[:, None, None] * mix, CONCENTRATIONS[:, None, None] * (1 - mix)
        return (_log_beta(counts + a, rows - counts + b) - _log_beta(a, b)).sum(1).amax(0)

    return log_likelihood(counts.sum(0) / rows.sum()) - log_likelihood(sampling)


def _by_betting(counts: Tensor, rows: Tensor, sampling: Tensor) -> Tensor:
    """Return the log of the capital won, by class, by bets on or against it in every batch, averaged over stakes.

    The odds are fair if the mix is `sampling`. Then 1 grows to c with a probability of at most 1/c, however the labels of a
    batch are correlated and its shares distributed (Waudby-Smith and Ramdas 2024): for maps, where shares have long tails.
    """
    gain = (counts / rows - sampling) * rows / rows.amax()
    stakes = torch.linspace(0.1, 1, 10, dtype=gain.dtype)[:, None, None]
    won = torch.stack([torch.log1p(stakes * each).sum(1) for each in (gain / sampling, -gain / (1 - sampling))])
    return (won.logsumexp(1) - math.log(len(stakes))).amax(0)


def _in_turn(shares: Tensor) -> bool:
    """Return whether batches hold one class each, or differ little from one to the next, as from a loader of sorted rows."""
    steps, spread = (shares[1:] - shares[:-1]).square().sum(), 2 * (shares - shares.mean(0)).square().sum()
    return bool(steps < 0.2 * spread) or float((shares.amax(1) == 1).double().mean()) > 0.9


def _log_beta(a: Tensor, b: Tensor) -> Tensor:
    return torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)


def _divergence(f: Tensor, p: Tensor) -> Tensor:
    """Return KL(f‖p) of each class against all others."""
    return torch.special.xlogy(f, f / p) + torch.special.xlogy(1 - f, (1 - f) / (1 - p))


def _log_odds(p: Tensor) -> Tensor:
    return torch.logit(p, eps=1e-12)
