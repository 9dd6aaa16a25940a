"""The losses as modules, each a drop-in for `nn.CrossEntropyLoss`: called with `(logits, target)`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..likelihoods import Categorical, Likelihood
from ..marginals import BatchMarginal, Marginal, RunningMarginal, unseen, world_size
from ..prevalence import ContinuousPrevalence, Prevalence, frequencies
from .batch import NonFinite, Reduction, check_choices, check_pair, class_frame
from .functional import (
    information_gain_loss,
    log_likelihood_loss,
    logit_adjusted_loss,
    weighted_loss,
)
from .monitor import Kind, Monitor
from .prior_terms import Setting, class_setting


class _Loss(nn.Module):
    """What the losses share: a prevalence, a likelihood, and how to reduce.

    `monitor` looks at a few of the training batches and warns of what cannot be right; None turns it off.
    """

    _quiet: tuple[Kind, ...] = ()

    def __init__(
        self,
        prevalence: Prevalence | ContinuousPrevalence,
        likelihood: Likelihood | None,
        reduction: Reduction,
        ignore_index: int | None,
        nonfinite: NonFinite,
        reference: Any = None,
        num_data: int | None = None,
    ) -> None:
        super().__init__()
        likelihood = Categorical() if likelihood is None else likelihood
        check_pair(likelihood, prevalence)
        check_choices(reduction, nonfinite, ignore_index)
        self._prevalence, self.likelihood, self.reduction = prevalence, likelihood, reduction
        self.ignore_index, self.nonfinite = ignore_index, nonfinite
        if isinstance(prevalence, Prevalence) and reference is not None:
            reference = frequencies(reference, "reference", prevalence.num_classes)
        self._reference = reference
        self._settings: dict[tuple[str, bool], Setting] = {}
        if isinstance(prevalence, Prevalence):
            double = class_setting(prevalence, reference, torch.empty(0, dtype=torch.float64), num_data)
            self._settings = {("cpu", True): double, ("cpu", False): double.to(torch.device("cpu"), torch.float32)}
        self.monitor = Monitor(*self._quiet) if isinstance(prevalence, Prevalence) else None

    @property
    def prevalence(self) -> Prevalence | ContinuousPrevalence:
        """π, ρ and κ; for others make a new loss."""
        return self._prevalence

    @property
    def reference(self) -> Any:
        """r as given; for another make a new loss."""
        return self._reference

    def _setting(self, logits: Tensor) -> Setting | None:
        """Worked out once per device and precision."""
        if not self._settings or not isinstance(logits, Tensor):
            return None
        wide = logits.dtype == torch.float64
        key = (str(logits.device), wide)
        if key not in self._settings:
            self._settings[key] = self._settings["cpu", True].to(logits.device, torch.float64 if wide else torch.float32)
        return self._settings[key]

    def _watch(self, logits: Tensor, target: Tensor, group: Any = None) -> None:
        """Let the monitor look at the batch, if it is one of those it looks at."""
        if self.monitor is None or not self.training or unseen(logits) or not self.monitor.due() or world_size(group) > 1:
            return
        assert isinstance(self.prevalence, Prevalence)
        classes = self.prevalence.num_classes
        frame = class_frame(logits.detach(), target, self.likelihood, classes, self.ignore_index, "nan")
        setting = self._setting(frame.outputs)
        assert setting is not None
        self.monitor.look(frame, setting, self.likelihood)

    def extra_repr(self) -> str:
        return f"{self.prevalence}, reduction={self.reduction!r}"


class InformationGainLoss(_Loss):
    """The paper's loss; the equation is in [`information_gain_loss`][rightloss.losses.functional.information_gain_loss].

    The logits are the population's: predict with the plain likelihood. By default the loss is that of a known prevalence,
    κ = 1, in the sampled mix; `as_published` is the paper's. `start_at_prevalence` on the output layer saves the first steps.

    Args:
        prevalence: π, ρ and κ.
        likelihood: Categorical by default.
        marginal: who supplies q; `RunningMarginal` by default, in regression `BatchMarginal`.
        reference: r, the mix in which the marginal is taken: None for the sampled mix ρ, `prevalence.population` for the
            paper's form, or any other mix.
        reduction: "mean", "sum" or "none".
        ignore_index: the int label of rows that count for nothing; None where there is none.
        nonfinite: "raise" for logits that are not finite, or "nan" to let them make the loss NaN.
        process_group: the ranks that share the batch under `torch.distributed`; all by default.
        fused: False composes the softmax path from torch operations too.
        num_data: N, how many training examples there are: it sets κ of an uncertain prevalence, see `Prevalence.evidence_for`.
    """

    def __init__(
        self,
        prevalence: Prevalence | ContinuousPrevalence,
        likelihood: Likelihood | None = None,
        marginal: Marginal | None = None,
        reference: Any = None,
        reduction: Reduction = "mean",
        ignore_index: int | None = -100,
        nonfinite: NonFinite = "raise",
        process_group: Any = None,
        fused: bool = True,
        num_data: int | None = None,
    ) -> None:
        super().__init__(prevalence, likelihood, reduction, ignore_index, nonfinite, reference, num_data)
        classes = prevalence.num_classes if isinstance(prevalence, Prevalence) else None
        if marginal is None:
            marginal = BatchMarginal() if classes is None else RunningMarginal()
        if isinstance(marginal, type) or not isinstance(marginal, Marginal):
            raise ValueError(f"Expected `marginal` to be a marginal such as RunningMarginal(), but got {marginal!r}: make one.")
        marginal.prepare(classes)
        self.marginal, self.process_group, self.fused = marginal, process_group, fused

    @classmethod
    def as_published(
        cls, prevalence: Prevalence | ContinuousPrevalence, likelihood: Likelihood | None = None, **options: Any
    ) -> InformationGainLoss:
        """Return the paper's loss: r = π, κ = 0, the minibatch's own marginal.

        It does not use that π is known: start the output layer with `start_at_prevalence`, or the mean prediction may stay
        far from it.

        Args:
            prevalence: π and ρ; its κ is left out.
            likelihood: Categorical by default.
            options: the others of `InformationGainLoss`.
        """
        options = {"marginal": BatchMarginal(), "reference": prevalence.population, **options}
        return cls(prevalence.with_evidence(0.0), likelihood, **options)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        loss = information_gain_loss(
            logits,
            target,
            self.prevalence,
            self.likelihood,
            self.marginal,
            self.reference,
            self.reduction,
            ignore_index=self.ignore_index,
            nonfinite=self.nonfinite,
            process_group=self.process_group,
            training=self.training,
            fused=self.fused,
            setting=self._setting(logits),
        )
        self._watch(logits, target, self.process_group)
        return loss


class _Rival(_Loss):
    """A loss without a marginal. `_at_population`: whether it is π in which its mean prediction is right, and not ρ."""

    _at_population = False

    def __init__(
        self,
        prevalence: Prevalence | ContinuousPrevalence,
        likelihood: Likelihood | None = None,
        reduction: Reduction = "mean",
        ignore_index: int | None = -100,
        nonfinite: NonFinite = "raise",
    ) -> None:
        reference = prevalence.population if self._at_population and isinstance(prevalence, Prevalence) else None
        super().__init__(prevalence, likelihood, reduction, ignore_index, nonfinite, reference)

    def _arguments(self, logits: Tensor, target: Tensor) -> dict[str, Any]:
        return {
            "logits": logits,
            "target": target,
            "prevalence": self.prevalence,
            "likelihood": self.likelihood,
            "reduction": self.reduction,
            "ignore_index": self.ignore_index,
            "nonfinite": self.nonfinite,
            "setting": self._setting(logits),
        }


class WeightedLoss(_Rival):
    """Importance weighting: [`weighted_loss`][rightloss.losses.functional.weighted_loss]."""

    _at_population = True

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        loss = weighted_loss(**self._arguments(logits, target))
        self._watch(logits, target)
        return loss


class LogitAdjustedLoss(_Rival):
    """Logit adjustment in training: [`logit_adjusted_loss`][rightloss.losses.functional.logit_adjusted_loss]."""

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        loss = logit_adjusted_loss(**self._arguments(logits, target))
        self._watch(logits, target)
        return loss


class LogLikelihoodLoss(_Rival):
    """Plain cross-entropy: [`log_likelihood_loss`][rightloss.losses.functional.log_likelihood_loss]."""

    _quiet = ("mix", "mean")  # it asks for neither ρ nor π

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        loss = log_likelihood_loss(**self._arguments(logits, target))
        self._watch(logits, target)
        return loss
