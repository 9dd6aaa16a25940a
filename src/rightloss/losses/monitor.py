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

from ..likelihoods import Bernoulli, Categorical, Likelihood
from ..log_probs import rows_of
from ..prevalence import PrevalenceWarning
from .batch import LabelledBatch, check_finite_rows, finding, full_precision
from .gain import PriorTerms, at_reference

DENSITY = 16  # batches checked: the first 16, then about 16 each time their number grows by a factor of e
FALSE_ALARMS = 1e-3  # probability of a false warning about the labels, over a whole training
ODDS = 1.25  # no warning if the odds of a mix or mean prediction are wrong by less than this factor
FAR = 3.0  # a mean prediction with odds wrong by this factor is far off
SETTLED = 256  # batches before a mean prediction can count as stuck
MANY = 2**16  # enough rows for a mean prediction

Kind = Literal["mix", "mean", "logits"]


class Monitor:
    """Check some of the training batches of a loss, and warn of likely mistakes.

    - **Labels.** By Chernoff's bound, n labels drawn at rates ρ show a class at the rate f with a probability of at most
      exp(−n KL(f‖ρ)). For correlated rows, such as pixels of an image, n is an effective number, from the variance between
      batches. The bound is tested each time the number of batches has doubled, at levels that add up to `FALSE_ALARMS`.
    - **Mean prediction** at the mix r of the loss: it must be r. It is stuck if, in two successive doublings of the number of
      batches, its odds are wrong by a factor of `FAR` and by more than 5 standard errors, and hardly closer in the second.
    - **Logits** of a softmax likelihood that are non-negative and sum to 1 in every row of three batches.

    Nothing is checked in eval mode, on an accelerator, under `torch.compile`, inside `torch.func` or over several ranks.
    """

    def __init__(self, *quiet: Kind, name: str | None = None) -> None:
        self._prefix = "" if name is None else f"finding {name!r}: "
        self._random = random.Random(0)
        self.batches, self._next = 0, 1
        self._mix, self._mean = _Average(), _Average()
        self._mean_before: _Average | None = None
        self._checks, self._mix_due, self._mean_due = 0, 8, 2
        self._normalised = 0
        self._quiet: set[Kind] = set(quiet)

    def due(self) -> bool:
        """Count a batch, and return whether to check it."""
        self.batches += 1
        return self.waiting

    @property
    def waiting(self) -> bool:
        """Whether the latest batch is one to check."""
        return self.batches >= self._next

    @torch.no_grad()
    def look(self, batch: LabelledBatch, terms: PriorTerms, likelihood: Likelihood) -> None:
        """Add one batch to the statistics, and warn if a test fails."""
        stride = max(1, self.batches // DENSITY)
        self._next = self.batches + 1 + self._random.randrange(2 * stride - 1)
        labels, rows = batch.labels, check_finite_rows(rows_of(full_precision(batch.outputs.detach())), "nan")
        assert isinstance(labels.count, int)
        if "logits" not in self._quiet and type(likelihood) is Categorical:
            self._look_at_logits(rows)
        if "mix" not in self._quiet:
            self._mix.add(labels.per_class(rows).double() / labels.count, labels.count)
            self._look_at_mix(terms.sampling.double())
        if "mean" not in self._quiet:
            per_row = labels.mask(labels.per_row((terms.reference / terms.sampling).to(rows)))
            some = slice(None, None, max(1, len(rows) // MANY))
            table = at_reference(likelihood.table(rows[some]), terms.log_offset)
            mean = (table.exp() * per_row[some, None]).sum(0).double()
            if float(mean.sum()) > 0:
                self._look_at_mean(mean / mean.sum(), terms)

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

    def _look_at_mix(self, sampling: Tensor) -> None:
        if self._mix.batches < self._mix_due:
            return
        self._mix_due *= 2
        self._checks += 1
        seen = self._mix.mean
        share = FALSE_ALARMS / (self._checks * (self._checks + 1))
        bound = math.log(2 * len(seen) / share)
        surprise = self._mix.independent_rows(sampling) * _divergence(seen, sampling)
        off = (_log_odds(seen) - _log_odds(sampling)).abs() > math.log(ODDS)
        if bool((off & (surprise > bound)).any()):
            worst = int(torch.where(off, surprise, -1.0).argmax())
            self._warn(
                "mix",
                f"Expected labels in the mix `sampling`, but class {worst} makes up {float(seen[worst]):.3g} of those in the "
                f"{self._mix.batches} batches looked at, where `sampling` says {float(sampling[worst]):.3g}: predicted odds "
                "will be wrong by that ratio. Give the mix of the minibatches, Prevalence.from_labels(train_labels, "
                "population=…), or have a RebalancedSampler draw them at `sampling`.",
            )

    def _look_at_mean(self, mean: Tensor, terms: PriorTerms) -> None:
        if self.batches >= self._mean_due:
            self._mean_due *= 2
            if self.batches > SETTLED and self._mean_before is not None and self._mean.batches > 4:
                self._compare_means(self._mean_before.mean, terms.reference.double(), terms.at_population)
            self._mean_before, self._mean = self._mean, _Average()
        self._mean.add(mean)

    def _compare_means(self, before: Tensor, wanted: Tensor, at_population: bool) -> None:
        now = self._mean.mean
        off, was = (_log_odds(each) - _log_odds(wanted) for each in (now, before))
        surely = (now - wanted).abs() > 5 * self._mean.standard_error
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
    """The running mean of a vector over batches, and its variance between them."""

    batches: int = 0
    rows: int = 0
    weighted: Tensor = field(default_factory=lambda: torch.zeros(()))
    total: Tensor = field(default_factory=lambda: torch.zeros(()))
    squares: Tensor = field(default_factory=lambda: torch.zeros(()))

    def add(self, values: Tensor, rows: int = 1) -> None:
        self.batches, self.rows = self.batches + 1, self.rows + rows
        self.weighted = self.weighted + values * rows
        self.total, self.squares = self.total + values, self.squares + values**2

    @property
    def mean(self) -> Tensor:
        return self.weighted / self.rows

    @property
    def standard_error(self) -> Tensor:
        variance = (self.squares / self.batches - (self.total / self.batches) ** 2).clamp_min(0)
        return (variance / max(1, self.batches - 1)).sqrt()

    def independent_rows(self, sampling: Tensor) -> Tensor:
        """Return the effective number of independent rows, by class."""
        alone = sampling * (1 - sampling) / self.rows
        return self.rows * (alone / torch.maximum(alone, self.standard_error**2))


def _frames_to_user() -> int:
    """Return the stack level of the code that called the loss, so that the warning names its line."""
    level, frame = 1, sys._getframe(1)
    ours = ("rightloss", "torch", "jaxtyping", "beartype")
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in ours:
        level, frame = level + 1, frame.f_back
    return level


def _divergence(f: Tensor, p: Tensor) -> Tensor:
    """Return KL(f‖p) of each class against all others."""
    return torch.special.xlogy(f, f / p) + torch.special.xlogy(1 - f, (1 - f) / (1 - p))


def _log_odds(p: Tensor) -> Tensor:
    return torch.logit(p, eps=1e-12)
