"""The losses as modules, each a drop-in for `nn.CrossEntropyLoss`: called with `(logits, target)`."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

from ..likelihoods import Categorical, Likelihood
from ..marginals import BatchMarginal, Marginal, RunningMarginal, cannot_be_read, sharing_group
from ..prevalence import ContinuousPrevalence, Density, Frequencies, Prevalence, frequencies
from .batch import LabelledBatch, NonFinite, Reduction, check_options, check_pair, class_batch
from .functional import batch_and_terms, cross_entropy, gain_loss, importance, measure_of
from .gain import PriorTerms, class_terms
from .monitor import Kind, Monitor


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
        check_options(reduction, nonfinite, ignore_index)
        self._prevalence, self.likelihood, self.reduction = prevalence, likelihood, reduction
        self.ignore_index, self.nonfinite = ignore_index, nonfinite
        if isinstance(prevalence, Prevalence) and reference is not None:
            reference = frequencies(reference, "reference", prevalence.num_classes)
        self._reference = reference
        self._terms: dict[tuple[torch.device, torch.dtype], PriorTerms] = {}
        if isinstance(prevalence, Prevalence):
            double = class_terms(prevalence, reference, torch.empty(0, dtype=torch.float64), num_data)
            cpu = torch.device("cpu")
            self._terms = {(cpu, torch.float64): double, (cpu, torch.float32): double.to(cpu, torch.float32)}
        self.monitor = Monitor(*self._quiet) if isinstance(prevalence, Prevalence) else None

    @property
    def prevalence(self) -> Prevalence | ContinuousPrevalence:
        """π, ρ and κ; for others make a new loss."""
        return self._prevalence

    @property
    def reference(self) -> Any:
        """r as given; for another make a new loss."""
        return self._reference

    def terms(self, like: Tensor) -> PriorTerms:
        """Return r, ρ, κ and offsets of the classes, on the device and in the precision of the logits `like`."""
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        found = self._terms.get((like.device, dtype))
        if found is None:
            found = self._terms[torch.device("cpu"), torch.float64].to(like.device, dtype)
            self._terms[like.device, dtype] = found
        return found

    def cross_entropy_terms(self, terms: PriorTerms) -> tuple[Float[Tensor, " k"] | None, Float[Tensor, " k"] | None]:
        """Return the offset that moves the table, and the labels' weights, of the part of the loss that is a cross-entropy.

        None where nothing is moved, and where all weights are 1.
        """
        raise NotImplementedError

    def _batch_and_terms(
        self, logits: Tensor, target: Tensor, group: dist.ProcessGroup | None = None
    ) -> tuple[LabelledBatch, PriorTerms]:
        prevalence, likelihood = self._prevalence, self.likelihood
        if isinstance(prevalence, Prevalence):
            batch = class_batch(logits, target, likelihood, prevalence.num_classes, self.ignore_index, self.nonfinite)
            return batch, self.terms(logits)
        return batch_and_terms(
            logits, target, prevalence, likelihood, self._reference, self.ignore_index, self.nonfinite, group
        )

    def _watch(self, batch: LabelledBatch, terms: PriorTerms, group: dist.ProcessGroup | None = None) -> None:
        """Show the monitor the batch, if it is one of those it looks at."""
        if self.monitor is None or not self.training or cannot_be_read(batch.outputs):
            return
        if self.monitor.due() and group is None:
            self.monitor.look(batch, terms, self.likelihood)

    def extra_repr(self) -> str:
        return f"{self.prevalence}, reduction={self.reduction!r}"


class InformationGainLoss(_Loss):
    """The paper's loss; the equation is in [`information_gain_loss`][rightloss.losses.functional.information_gain_loss].

    The logits are the population's: predict with the plain likelihood. By default the loss is that of a known prevalence,
    κ = 1, in the sampled mix; `as_published` is the paper's. `start_at_prevalence` on the output layer saves the first steps.

    Args:
        prevalence: π, ρ and κ.
        likelihood: Categorical by default.
        marginal: the estimator of q; `RunningMarginal` by default, in regression `BatchMarginal`.
        reference: r, the mix in which the marginal is taken: None for the sampled mix ρ, `prevalence.population` for the
            paper's form, or any other mix.
        reduction: "mean", "sum" or "none".
        ignore_index: the int label of rows that count for nothing; None if there is none.
        nonfinite: "raise" for logits that are not finite, or "nan" to let them make the loss NaN.
        process_group: the ranks that share the batch under `torch.distributed`; all by default.
        fused: False composes the softmax path from torch operations too.
        num_data: N, how many training examples there are: it sets κ of an uncertain prevalence, see `Prevalence.evidence_for`.

    Examples:
        >>> import torch, rightloss as rl
        >>> criterion = rl.InformationGainLoss(rl.Prevalence.binary(population=0.001, sampling=0.5))
        >>> logits, y = torch.zeros(4, 2, requires_grad=True), torch.tensor([0, 1, 0, 1])
        >>> loss = criterion(logits, y)
        >>> loss.backward()
        >>> round(float(loss.detach()), 4)
        3.4544
    """

    def __init__(
        self,
        prevalence: Prevalence | ContinuousPrevalence,
        likelihood: Likelihood | None = None,
        marginal: Marginal | None = None,
        reference: Frequencies | Density | None = None,
        reduction: Reduction = "mean",
        ignore_index: int | None = -100,
        nonfinite: NonFinite = "raise",
        process_group: dist.ProcessGroup | None = None,
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
        group = sharing_group(self.process_group, self.training)
        batch, terms = self._batch_and_terms(logits, target, group)
        measure = measure_of(batch, terms, self._prevalence, self.likelihood, self._reference, self.ignore_index)
        loss = gain_loss(batch, terms, self.likelihood, self.marginal, measure, self.reduction, group, self.fused)
        self._watch(batch, terms, group)
        return loss

    def cross_entropy_terms(self, terms: PriorTerms) -> tuple[Tensor | None, Tensor | None]:
        return terms.log_offset, None


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

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        batch, terms = self._batch_and_terms(logits, target)
        loss = cross_entropy(batch, self.likelihood, *self.cross_entropy_terms(terms), self.reduction)
        self._watch(batch, terms)
        return loss


class WeightedLoss(_Rival):
    """Importance weighting: [`weighted_loss`][rightloss.losses.functional.weighted_loss], with the same arguments.

    Examples:
        >>> import torch, rightloss as rl
        >>> criterion = rl.WeightedLoss(rl.Prevalence.binary(population=0.01))
        >>> round(float(criterion(torch.zeros(2, 2), torch.tensor([0, 1]))), 4)
        0.6931
    """

    _at_population = True

    def cross_entropy_terms(self, terms: PriorTerms) -> tuple[Tensor | None, Tensor | None]:
        return None, importance(terms)


class LogitAdjustedLoss(_Rival):
    """Logit adjustment in training: [`logit_adjusted_loss`][rightloss.losses.functional.logit_adjusted_loss].

    Examples:
        >>> import torch, rightloss as rl
        >>> criterion = rl.LogitAdjustedLoss(rl.Prevalence.binary(population=0.01))
        >>> round(float(criterion(torch.tensor([[99.0, 1.0]]).log(), torch.tensor([1]))), 4)
        0.6931
    """

    def cross_entropy_terms(self, terms: PriorTerms) -> tuple[Tensor | None, Tensor | None]:
        return terms.log_adjust, None


class LogLikelihoodLoss(_Rival):
    """Plain cross-entropy: [`log_likelihood_loss`][rightloss.losses.functional.log_likelihood_loss].

    Examples:
        >>> import torch, rightloss as rl
        >>> criterion = rl.LogLikelihoodLoss(rl.Prevalence.binary(population=0.01))
        >>> round(float(criterion(torch.zeros(2, 2), torch.tensor([0, 1]))), 4)
        0.6931
    """

    _quiet = ("mix", "mean")  # it asks for neither ρ nor π

    def cross_entropy_terms(self, terms: PriorTerms) -> tuple[Tensor | None, Tensor | None]:
        return None, None
