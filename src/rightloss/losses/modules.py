"""Loss modules, each a drop-in replacement for `nn.CrossEntropyLoss`: call them with `(logits, target)`."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Literal

import torch
import torch.distributed as dist
from jaxtyping import Float, Float64
from torch import Tensor, nn

from ..arrays import rows_of
from ..likelihoods import Categorical, Likelihood
from ..marginals import (
    AuxiliaryMarginal,
    BatchMarginal,
    Marginal,
    MinibatchEstimate,
    PoolMarginal,
    RunningMarginal,
    cannot_be_read,
    in_transform,
    log_mean_over_ranks,
    sharing_group,
)
from ..prevalence import (
    AnyPrevalence,
    ContinuousPrevalence,
    Density,
    Frequencies,
    MultilabelPrevalence,
    Prevalence,
    frequencies,
)
from ..tensors import tensor_of
from .batch import LabelledBatch, NonFinite, Reduction, check_options, class_batch, finding_batch, full_precision
from .functional import (
    batch_and_terms,
    cross_entropy,
    gain_loss,
    importance,
    likelihood_of,
    marginal_of,
    measure_of,
    population_gain_loss,
    stream_cross_entropy,
    usable,
    with_evidence,
)
from .gain import PriorTerms, at_reference, class_terms, finding_terms, log_sum
from .monitor import FindingMonitors, Kind, Monitor
from .streams import (
    Tables,
    check_unlabelled_evidence,
    check_unlabelled_weight,
    evidence_decay,
    stream_batch,
    tables_of,
    unreduced_shape,
)

FOLLOWED = 32  # the default loss shows its running marginal one batch in so many


def _without_learning_under_no_grad(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Make a loss behave as in eval mode where gradients are off: a validation batch must not change what is learnt."""

    @wraps(forward)
    def call(self: nn.Module, *args: Any, **options: Any) -> Tensor:
        if not self.training or torch.is_grad_enabled():
            return forward(self, *args, **options)
        learning = [module for module in self.modules() if module.training]
        self.eval()
        try:
            return forward(self, *args, **options)
        finally:
            for module in learning:
                module.training = True

    return call


class _Loss(nn.Module):
    """The base of all losses: a prevalence, a likelihood and a reduction.

    `monitor` checks some of the training batches and warns of likely mistakes; None turns it off.
    """

    _quiet: tuple[Kind, ...] = ()

    def __init__(
        self,
        prevalence: AnyPrevalence,
        likelihood: Likelihood | None,
        reduction: Reduction,
        ignore_index: int | None,
        nonfinite: NonFinite,
        reference: Any = None,
    ) -> None:
        super().__init__()
        likelihood = likelihood_of(likelihood, prevalence)
        check_options(reduction, nonfinite, ignore_index)
        self._prevalence, self.likelihood, self.reduction = prevalence, likelihood, reduction
        self.ignore_index, self.nonfinite = ignore_index, nonfinite
        self._at_population = isinstance(reference, str)  # and updated with π if π is learned
        if isinstance(prevalence, Prevalence) and reference is not None:
            reference = prevalence.start if self._at_population else reference
            reference = tensor_of(frequencies(reference, "reference", prevalence.num_classes))
        self._reference = reference
        self._terms: dict[tuple[torch.device, torch.dtype], PriorTerms] = {}
        self.population_marginal: RunningMarginal | None = None
        self.evidence_marginal: RunningMarginal | None = None
        if isinstance(prevalence, Prevalence):
            self._set_population(self.population)
            if prevalence.is_unknown:
                self.population_marginal = RunningMarginal(decay=0.99)
                self.population_marginal.prepare(prevalence.num_classes)
        self.monitor: Monitor | FindingMonitors | None = None
        if isinstance(prevalence, MultilabelPrevalence):
            self._set_terms(finding_terms(prevalence, reference, torch.empty(0, dtype=torch.float64)))
            self.monitor = FindingMonitors(prevalence.names, *self._quiet)
        elif isinstance(prevalence, Prevalence):
            self.monitor = Monitor(*self._quiet)

    @property
    def prevalence(self) -> AnyPrevalence:
        """π, ρ and κ. Read-only: make a new loss to change them."""
        return self._prevalence

    @property
    def reference(self) -> Any:
        """r as given. Read-only: make a new loss to change it."""
        unknown = isinstance(self._prevalence, Prevalence) and self._prevalence.is_unknown
        return "population" if self._at_population and unknown else self._reference

    @property
    def population(self) -> Float64[Tensor, " k"]:
        """π (K,), or (L,) by finding: the given one, or if unknown the current estimate.

        The estimate is a running mean of the predictions on unlabelled rows.

        At the joint maximum of the likelihood, in the weights (with an intercept) and in π, π *is* the mean prediction over the
        unlabelled rows. So π needs no optimizer. `rightloss.shift.joint_prevalence` returns an interval.
        """
        if isinstance(self._prevalence, MultilabelPrevalence):
            return tensor_of(self._prevalence.population)
        if not isinstance(self._prevalence, Prevalence):
            raise ValueError("Expected classes for `population`, but the likelihood is a density: see `prevalence`.")
        marginal = self.population_marginal
        if marginal is None or int(marginal.steps) == 0:
            return tensor_of(self._prevalence.start)
        return torch.softmax(marginal.log_average.double(), 0).cpu()

    def terms(self, like: Tensor) -> PriorTerms:
        """Return the prior terms r, ρ, κ and offsets, in the dtype and on the device of the logits `like`."""
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        found = self._terms.get((like.device, dtype))
        if found is None:
            found = self._terms[torch.device("cpu"), torch.float64].to(like.device, dtype)
            self._terms[like.device, dtype] = found
        return found

    def cross_entropy_terms(self, terms: PriorTerms) -> tuple[Float[Tensor, " k"] | None, Float[Tensor, " k"] | None]:
        """Return the offset of the table and the weights of the labels, for the cross-entropy part of the loss.

        The offset is None if it is 0, the weights are None if all are 1.
        """
        raise NotImplementedError

    def _batch_and_terms(
        self, logits: Tensor, target: Tensor, group: dist.ProcessGroup | None = None
    ) -> tuple[LabelledBatch, PriorTerms]:
        prevalence, likelihood = self._prevalence, self.likelihood
        if isinstance(prevalence, Prevalence):
            batch = class_batch(logits, target, likelihood, prevalence.num_classes, self.ignore_index, self.nonfinite)
            return batch, self.terms(logits)
        if isinstance(prevalence, MultilabelPrevalence):
            return finding_batch(logits, target, prevalence, self.ignore_index, self.nonfinite), self.terms(logits)
        return batch_and_terms(
            logits, target, prevalence, likelihood, self._reference, self.ignore_index, self.nonfinite, group
        )

    def _set_population(self, population: Tensor) -> None:
        """Set π, and compute the prior terms."""
        assert isinstance(self._prevalence, Prevalence)
        known = self._prevalence.retarget(population) if self._prevalence.is_unknown else self._prevalence
        reference = population if self._at_population else self._reference
        self._set_terms(class_terms(known, reference, torch.empty(0, dtype=torch.float64)))

    def _set_terms(self, double: PriorTerms) -> None:
        """Keep the prior terms in float64, and in float32."""
        cpu = torch.device("cpu")
        self._terms = {(cpu, torch.float64): double, (cpu, torch.float32): double.to(cpu, torch.float32)}

    def _set_unlabelled(self, weight: float | None, evidence: float) -> None:
        """Set the weight of unlabelled rows, and the weight of the evidence that their mean prediction is π."""
        self.unlabelled_weight = check_unlabelled_weight(weight)
        self.unlabelled_evidence = check_unlabelled_evidence(evidence)

    def mean_prediction(self, rows: int) -> BatchMarginal | RunningMarginal:
        """Return the estimator of the mean prediction over the unlabelled rows, which the evidence keeps at π.

        It is a running mean if a minibatch has few unlabelled rows, `rows`, unless the loss must be stateless.
        """
        assert isinstance(self._prevalence, Prevalence)
        if self.evidence_marginal is None:
            self.evidence_marginal = RunningMarginal()
            self.evidence_marginal.prepare(self._prevalence.num_classes)
        self.evidence_marginal.decay = evidence_decay(rows, self._prevalence.population)
        return self.evidence_marginal

    def _with_evidence(
        self, loss: Tensor, batch: LabelledBatch, tables: Tables, terms: PriorTerms, group: dist.ProcessGroup | None
    ) -> Tensor:
        """Return the loss plus the evidence term of the known π on the unlabelled rows."""
        if not self.unlabelled_evidence or not isinstance(self._prevalence, Prevalence) or self._prevalence.is_unknown:
            return loss
        rows = len(tables.population) * (1 if group is None else dist.get_world_size(group))
        options = self.unlabelled_evidence, self.unlabelled_weight, self.mean_prediction(rows), self.reduction
        return with_evidence(loss, batch, tables, terms, self._prevalence, *options, group)

    def _learn_population(self, tables: Tables, group: dist.ProcessGroup | None) -> None:
        """In training, if π is unknown, update it with the mean prediction over the unlabelled rows."""
        if self.population_marginal is None or not self.training:
            return
        others = tables.population.detach()
        log_m = log_mean_over_ranks(torch.logsumexp(others, 0), math.log(max(1, len(others))), group)
        self.population_marginal.update(MinibatchEstimate(log_m, len(others)))
        self._set_population(self.population)

    def _check_learns(self, unlabelled: Tensor | None) -> None:
        """Raise a ValueError if π is unknown and there are no rows to learn it from."""
        marginal = self.population_marginal
        if unlabelled is None and self.training and marginal is not None and int(marginal.steps) == 0:
            raise ValueError(
                "Expected `unlabelled` rows, from which an unknown prevalence is learnt, but got none: pass "
                "unlabelled=model(x_unlabelled) to the loss, or give the prevalence a population."
            )

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *others: Any) -> None:
        if any(name.startswith(f"{prefix}evidence_marginal.") for name in state_dict):
            self.mean_prediction(1)
        super()._load_from_state_dict(state_dict, prefix, *others)
        if self.population_marginal is not None and int(state_dict.get(f"{prefix}population_marginal.steps", 0)):
            saved: Tensor = state_dict[f"{prefix}population_marginal.log_average"]
            self._set_population(torch.softmax(saved.double().cpu(), 0))

    def _watch(self, batch: LabelledBatch, terms: PriorTerms, group: dist.ProcessGroup | None = None) -> None:
        """Pass the batch to the monitor, if the monitor wants to check it."""
        if self.monitor is None or not self.training or cannot_be_read(batch.outputs):
            return
        if self.monitor.due() and group is None:
            self.monitor.look(batch, terms, self.likelihood)

    def extra_repr(self) -> str:
        return f"{self.prevalence}, reduction={self.reduction!r}"


class InformationGainLoss(_Loss):
    """The paper's loss; the equation is in [`information_gain_loss`][rightloss.losses.functional.information_gain_loss].

    The logits are for the population: predict with the plain likelihood. By default the prevalence is known, κ = 1, and the
    reference is the sampled mix; `as_published` makes the paper's loss. Call `start_at_prevalence` on the output layer before
    training.

    Args:
        prevalence: π, ρ and κ.
        likelihood: Categorical by default.
        marginal: the estimator of q; `RunningMarginal` by default, in regression `BatchMarginal`. With r = ρ and κ = 1, q
            cancels: the loss is `F.cross_entropy(logits + log ρ − log π, y)`, and a running marginal sees one batch in 32.
        reference: r, the class frequencies of the marginal: None for the sampled mix ρ, "population" for π as in the paper, or
            any other mix.
        reduction: "mean", "sum" or "none".
        ignore_index: the int label of rows to ignore; None if there is none.
        nonfinite: "raise" an error for logits that are not finite, or "nan" to return a loss of NaN.
        process_group: the ranks that share the batch under `torch.distributed`; all by default.
        fused: False to compose the softmax path from torch operations.
        num_data: deprecated, without effect.
        unlabelled_weight: λ, the weight of unlabelled relative to labelled rows, used with `unlabelled=`; None for the ratio
            of their numbers.
        unlabelled_evidence: ε, people counted by class per unlabelled row. It keeps the mean prediction over the unlabelled
            rows at a known π, and keeps flexible models from memorising which rows are labelled. 3 is a good start; 0 uses
            the likelihood of the streams only.

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
        prevalence: AnyPrevalence,
        likelihood: Likelihood | None = None,
        marginal: Marginal | None = None,
        reference: Frequencies | Density | Literal["population"] | None = None,
        reduction: Reduction = "mean",
        ignore_index: int | None = -100,
        nonfinite: NonFinite = "raise",
        process_group: dist.ProcessGroup | None = None,
        fused: bool = True,
        num_data: int | None = None,
        unlabelled_weight: float | None = None,
        unlabelled_evidence: float = 0.0,
    ) -> None:
        if isinstance(reference, str):
            if reference != "population":
                raise ValueError(
                    f"Expected `reference` to be 'population', a mix or None, but got {reference!r}: write the mix."
                )
            reference = prevalence.population if isinstance(prevalence, ContinuousPrevalence) else reference
        if num_data is not None:
            message = "`num_data` is deprecated, and has no effect: an uncertain prevalence has κ = 1. Leave it out."
            warnings.warn(message, DeprecationWarning, stacklevel=2)
        super().__init__(prevalence, likelihood, reduction, ignore_index, nonfinite, reference)
        classes = None if isinstance(prevalence, ContinuousPrevalence) else getattr(prevalence, "num_classes", 2)
        if marginal is None:
            marginal = BatchMarginal() if classes is None else RunningMarginal()
        if isinstance(marginal, type) or not isinstance(marginal, Marginal):
            raise ValueError(f"Expected `marginal` to be a marginal such as RunningMarginal(), but got {marginal!r}: make one.")
        marginal = marginal_of(marginal, prevalence)
        marginal.prepare(classes)
        self.marginal, self.process_group, self.fused = marginal, process_group, fused
        self._set_unlabelled(unlabelled_weight, unlabelled_evidence)
        self.stream_marginal: Marginal | None = None
        self._batches = [0]  # a list, as nn.Module is slow to set attributes
        self._all_sampled = not isinstance(prevalence, Prevalence) or bool((prevalence.sampling > 0).all())

    @classmethod
    def as_published(
        cls, prevalence: AnyPrevalence, likelihood: Likelihood | None = None, **options: Any
    ) -> InformationGainLoss:
        """Return the paper's loss: r = π, κ = 0, the minibatch's own marginal.

        It does not use that π is known. So call `start_at_prevalence` on the output layer, or the mean prediction may stay far
        from π.

        Args:
            prevalence: π and ρ; its κ is ignored.
            likelihood: Categorical by default.
            options: other arguments of `InformationGainLoss`.
        """
        options = {"marginal": BatchMarginal(), "reference": "population", **options}
        return cls(prevalence.with_evidence(0.0), likelihood, **options)

    @_without_learning_under_no_grad
    def forward(self, logits: Tensor, target: Tensor, unlabelled: Tensor | None = None) -> Tensor:
        group = sharing_group(self.process_group, self.training)
        self._check_learns(unlabelled)
        batch, terms = self._batch_and_terms(logits, target, group)
        others = None
        if unlabelled is not None or not self._all_sampled:
            others = usable(unlabelled, self.unlabelled_weight, self._prevalence, group)
        if others is None and terms.cancels:
            loss = cross_entropy(batch, self.likelihood, terms.log_offset, None, self.reduction, group)
            self._follow(batch, terms, group)
            self._watch(batch, terms, group)
            return loss
        measure = measure_of(batch, terms, self._prevalence, self.likelihood, self._reference, self.ignore_index)
        if others is None:
            loss = gain_loss(batch, terms, self.likelihood, self.marginal, measure, self.reduction, group, self.fused)
        else:
            tables = tables_of(batch, others, self.likelihood)
            if terms.at_population:
                loss = population_gain_loss(
                    batch, tables, terms, self.likelihood, self.marginal, measure, self.reduction, group
                )
            else:
                loss = self._stream_loss(batch, tables, terms, others, group)
            loss = self._with_evidence(loss, batch, tables, terms, group)
            self._learn_population(tables, group)
        self._watch(batch, terms, group)
        return loss

    def _follow(self, batch: LabelledBatch, terms: PriorTerms, group: dist.ProcessGroup | None) -> None:
        """Show a running marginal one in `FOLLOWED` batches: it does not enter the default loss, but can be read."""
        if not self.training or torch.compiler.is_compiling():
            return
        self._batches[0] += 1
        if self._batches[0] % FOLLOWED != 1 or in_transform() or batch.outputs.is_meta:
            return
        if not isinstance(self.marginal, RunningMarginal):
            return
        with torch.no_grad():
            table = at_reference(self.likelihood.table(rows_of(full_precision(batch.outputs.detach()))), terms.log_offset)
            log_m = log_mean_over_ranks(log_sum(table, batch.labels, None), batch.labels.log_count(table), group)
            self.marginal.update(MinibatchEstimate(log_m, batch.labels.rows))

    def _stream_loss(
        self, batch: LabelledBatch, tables: Tables, terms: PriorTerms, others: Tensor, group: dist.ProcessGroup | None
    ) -> Tensor:
        if self.stream_marginal is None:
            self.stream_marginal = _stream_marginal(self.marginal, int((terms.sampling > 0).sum()))
        joined, stream_terms = stream_batch(batch, tables, terms, self.unlabelled_weight, group)
        marginal, likelihood = self.stream_marginal, Categorical()
        loss = gain_loss(joined, stream_terms, likelihood, marginal, None, self.reduction, group, self.fused)
        return loss.reshape(unreduced_shape(batch, others)) if self.reduction == "none" else loss

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *others: Any) -> None:
        """Load the state; one saved in training with unlabelled rows also has a marginal of the streams."""
        if self.stream_marginal is None and any(name.startswith(f"{prefix}stream_marginal.") for name in state_dict):
            assert isinstance(self._prevalence, Prevalence)
            self.stream_marginal = _stream_marginal(self.marginal, int((self._prevalence.sampling > 0).sum()))
        super()._load_from_state_dict(state_dict, prefix, *others)

    def mean_prediction(self, rows: int) -> BatchMarginal | RunningMarginal:
        return self.marginal if isinstance(self.marginal, BatchMarginal) else super().mean_prediction(rows)

    def cross_entropy_terms(self, terms: PriorTerms) -> tuple[Tensor | None, Tensor | None]:
        return terms.log_offset, None


def _stream_marginal(marginal: Marginal, streams: int) -> Marginal:
    """Return a new marginal of the same kind for the sampled classes, `streams`, and the unlabelled stream."""
    if isinstance(marginal, PoolMarginal | AuxiliaryMarginal):
        raise ValueError(
            f"Expected a marginal of the minibatches with `unlabelled`, but got {type(marginal).__name__}: it has no "
            "estimate for the unlabelled stream; use RunningMarginal(), or reference=prevalence.population."
        )
    own = copy.deepcopy(marginal)
    own.reset()
    own.prepare(streams + 1)
    return own


class _Rival(_Loss):
    """A loss without a marginal. `_right_at_population`: True if its mean prediction should be π, False if ρ."""

    _right_at_population = False

    def __init__(
        self,
        prevalence: AnyPrevalence,
        likelihood: Likelihood | None = None,
        reduction: Reduction = "mean",
        ignore_index: int | None = -100,
        nonfinite: NonFinite = "raise",
    ) -> None:
        at_population = self._right_at_population and not isinstance(prevalence, ContinuousPrevalence)
        reference = prevalence.population if at_population else None
        super().__init__(prevalence, likelihood, reduction, ignore_index, nonfinite, reference)

    @_without_learning_under_no_grad
    def forward(self, logits: Tensor, target: Tensor, unlabelled: Tensor | None = None) -> Tensor:
        if unlabelled is not None:
            raise ValueError(
                f"Expected no `unlabelled` rows for {type(self).__name__}, but got some: its likelihood cannot use them; "
                "use LogitAdjustedLoss or InformationGainLoss."
            )
        return self._labelled_loss(logits, target)

    def _labelled_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        batch, terms = self._batch_and_terms(logits, target)
        loss = cross_entropy(batch, self.likelihood, *self.cross_entropy_terms(terms), self.reduction)
        self._watch(batch, terms)
        return loss


class WeightedLoss(_Rival):
    """Importance-weighted cross-entropy: [`weighted_loss`][rightloss.losses.functional.weighted_loss], with the same arguments.

    Examples:
        >>> import torch, rightloss as rl
        >>> criterion = rl.WeightedLoss(rl.Prevalence.binary(population=0.01))
        >>> round(float(criterion(torch.zeros(2, 2), torch.tensor([0, 1]))), 4)
        0.6931
    """

    _right_at_population = True

    def cross_entropy_terms(self, terms: PriorTerms) -> tuple[Tensor | None, Tensor | None]:
        return None, importance(terms)


class LogitAdjustedLoss(_Rival):
    """Logit-adjusted cross-entropy: [`logit_adjusted_loss`][rightloss.losses.functional.logit_adjusted_loss].

    `criterion(logits, y, unlabelled=logits_u)` also learns from unlabelled rows of the population, as `InformationGainLoss`
    does, with the same arguments `unlabelled_weight` and `unlabelled_evidence`.

    Examples:
        >>> import torch, rightloss as rl
        >>> criterion = rl.LogitAdjustedLoss(rl.Prevalence.binary(population=0.01))
        >>> round(float(criterion(torch.tensor([[99.0, 1.0]]).log(), torch.tensor([1]))), 4)
        0.6931
    """

    def __init__(
        self,
        prevalence: AnyPrevalence,
        likelihood: Likelihood | None = None,
        reduction: Reduction = "mean",
        ignore_index: int | None = -100,
        nonfinite: NonFinite = "raise",
        unlabelled_weight: float | None = None,
        unlabelled_evidence: float = 0.0,
    ) -> None:
        super().__init__(prevalence, likelihood, reduction, ignore_index, nonfinite)
        self._set_unlabelled(unlabelled_weight, unlabelled_evidence)

    @_without_learning_under_no_grad
    def forward(self, logits: Tensor, target: Tensor, unlabelled: Tensor | None = None) -> Tensor:
        self._check_learns(unlabelled)
        others = usable(unlabelled, self.unlabelled_weight, self._prevalence, None)
        if others is None:
            return self._labelled_loss(logits, target)
        batch, terms = self._batch_and_terms(logits, target)
        tables = tables_of(batch, others, self.likelihood)
        loss = stream_cross_entropy(batch, tables, terms, self.unlabelled_weight, self.reduction, others)
        group = sharing_group(None, self.training)
        loss = self._with_evidence(loss, batch, tables, terms, group)
        self._learn_population(tables, group)
        self._watch(batch, terms)
        return loss

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

    _quiet = ("mix", "mean")  # it needs neither ρ nor π

    def cross_entropy_terms(self, terms: PriorTerms) -> tuple[Tensor | None, Tensor | None]:
        return None, None
