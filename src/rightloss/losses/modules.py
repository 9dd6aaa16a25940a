"""Loss modules, each a drop-in replacement for `nn.CrossEntropyLoss`: call them with `(logits, target)`."""

from __future__ import annotations

import copy
from typing import Any, Literal

import torch
import torch.distributed as dist
from jaxtyping import Float, Float64
from torch import Tensor, nn

from ..arrays import rows_of
from ..likelihoods import Likelihood
from ..likelihoods.standard import likelihood_of
from ..marginals import (
    BatchMarginal,
    Marginal,
    MarginalState,
    MinibatchEstimate,
    RunningMarginal,
    cannot_be_read,
    in_transform,
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
from .batch import LabelledBatch, NonFinite, Reduction, check_options, checked_batch, full_precision
from .functional import (
    cross_entropy,
    gain_loss,
    importance,
    loss_with_rows,
    marginal_of,
    measure_of,
    usable,
)
from .gain import PriorTerms, at_reference, log_mean_prediction, prior_terms
from .monitor import FindingMonitors, Kind, Monitor
from .streams import EVIDENCE, PopulationRows, Tables, check_stream_marginal, check_takes_unlabelled, evidence_decay, tables_of

FOLLOWED = 32  # the default loss shows its running marginal one batch in so many


class _Loss(nn.Module):
    """The base of all losses: a prevalence, a likelihood and a reduction.

    Where gradients are off it behaves as in eval mode: a validation batch must not change what is learnt. `monitor` checks some
    of the training batches and warns of likely mistakes; None turns it off. `population_marginal` is the mean prediction over
    unlabelled rows: an unknown π, or what the evidence of a known π is about.
    """

    _quiet: tuple[Kind, ...] = ()
    _takes_unlabelled = True

    def __init__(
        self,
        prevalence: AnyPrevalence,
        likelihood: Likelihood | None,
        reduction: Reduction,
        ignore_index: int | None,
        nonfinite: NonFinite,
        reference: Any = None,
        unlabelled_weight: float | None = None,
        unlabelled_evidence: float = EVIDENCE,
    ) -> None:
        super().__init__()
        self.likelihood = likelihood_of(likelihood, prevalence)
        check_options(reduction, nonfinite, ignore_index)
        rows = PopulationRows(torch.empty(0), unlabelled_weight, unlabelled_evidence)
        self.unlabelled_weight, self.unlabelled_evidence = rows.weight, rows.evidence
        self._prevalence, self.reduction, self.ignore_index, self.nonfinite = prevalence, reduction, ignore_index, nonfinite
        self._at_population = isinstance(reference, str)  # and updated with π if π is learned
        self._unknown = isinstance(prevalence, Prevalence) and prevalence.is_unknown
        if isinstance(prevalence, Prevalence) and reference is not None:
            reference = prevalence.start if self._at_population else reference
            reference = tensor_of(frequencies(reference, "reference", prevalence.num_classes))
        self._reference = reference
        self.prior_terms: PriorTerms  # in float64; not in regression
        self.population_marginal: RunningMarginal | None = None
        self.monitor: Monitor | FindingMonitors | None = None
        self._all_sampled = True
        if isinstance(prevalence, Prevalence):
            self._all_sampled = bool((prevalence.sampling > 0).all())
            if self._unknown:
                self._make_population_marginal(0.99)
            self._set_population(self.population)
            self.monitor = Monitor(*self._quiet)
        elif isinstance(prevalence, MultilabelPrevalence):
            self._set_terms(prevalence, reference)
            self.monitor = FindingMonitors(prevalence.names, *self._quiet)

    @property
    def prevalence(self) -> AnyPrevalence:
        """π, ρ and κ. Read-only: make a new loss to change them."""
        return self._prevalence

    @property
    def reference(self) -> Any:
        """r as given. Read-only: make a new loss to change it."""
        return "population" if self._at_population and self._unknown else self._reference

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
        if not self._unknown or marginal is None or int(marginal.steps) == 0:
            return tensor_of(self._prevalence.start)
        return torch.softmax(marginal.log_average.double(), 0).cpu()

    def forward(
        self,
        logits: Tensor,
        target: Tensor,
        unlabelled: Tensor | PopulationRows | None = None,
        sample_weight: Tensor | None = None,
    ) -> Tensor:
        if not self.training or torch.is_grad_enabled():
            return self._loss(logits, target, unlabelled, sample_weight)
        learning = [module for module in self.modules() if module.training]
        self.eval()
        try:
            return self._loss(logits, target, unlabelled, sample_weight)
        finally:
            for module in learning:
                module.training = True

    def _loss(
        self, logits: Tensor, target: Tensor, unlabelled: Tensor | PopulationRows | None, sample_weight: Tensor | None
    ) -> Tensor:
        group = self._group(unlabelled)
        rows = None
        if unlabelled is not None or not self._all_sampled or self._unknown:
            rows = self._rows(unlabelled, group)
        batch, terms = self.batch_and_terms(logits, target, group, sample_weight)
        if rows is None:
            loss = self._labelled_loss(batch, terms, group)
        else:
            tables = tables_of(batch, rows, self.likelihood)
            marginal, mean = self._stream_marginal(terms), self._mean_prediction(tables.number(group))
            options = self.likelihood, self.reduction, group, marginal, mean, getattr(self, "fused", True)
            loss = loss_with_rows(batch, tables, terms, *options)
            self._learn_population(tables, group)
        if sample_weight is None and self.monitor is not None:
            self._watch(batch, terms, group)
        return loss

    def terms(self, like: Tensor) -> PriorTerms:
        """Return the prior terms r, ρ, κ and offsets, in the dtype and on the device of the logits `like`."""
        return self.prior_terms.like(like)

    def cross_entropy_terms(self, terms: PriorTerms) -> tuple[Float[Tensor, "*l k"] | None, Float[Tensor, "*l k"] | None]:
        """Return the offset of the table and the weights of the labels, for the cross-entropy part of the loss.

        The offset is None if it is 0, the weights are None if all are 1.
        """
        return terms.log_offset, None

    def _group(self, unlabelled: object) -> dist.ProcessGroup | None:
        """Return the ranks that share a batch; without a marginal and unlabelled rows, ranks need not ask each other."""
        return None if unlabelled is None else sharing_group(None, self.training)

    def _labelled_loss(self, batch: LabelledBatch, terms: PriorTerms, group: dist.ProcessGroup | None) -> Tensor:
        return cross_entropy(batch, self.likelihood, *self.cross_entropy_terms(terms), self.reduction, group)

    def _stream_marginal(self, terms: PriorTerms) -> Marginal | None:
        """Return the estimator of q of the streams, or of the classes where r = π; None if none is used."""
        return None

    def batch_and_terms(
        self, logits: Tensor, target: Tensor, group: dist.ProcessGroup | None, sample_weight: Tensor | None = None
    ) -> tuple[LabelledBatch, PriorTerms]:
        """Return the checked batch, and the prior terms of its labels."""
        options = self.ignore_index, self.nonfinite, group, sample_weight
        batch = checked_batch(logits, target, self._prevalence, self.likelihood, *options)
        if batch.support is None:
            return batch, self.terms(logits)
        return batch, prior_terms(self._prevalence, self._reference, logits, batch.support)

    def _set_population(self, population: Tensor) -> None:
        """Set π, and compute the prior terms."""
        assert isinstance(self._prevalence, Prevalence)
        known = self._prevalence.retarget(population) if self._unknown else self._prevalence
        reference = population if self._at_population else self._reference
        self._set_terms(known, reference)

    def _set_terms(self, prevalence: AnyPrevalence, reference: Any) -> None:
        """Compute the prior terms in float64, and in float32, in which compiled graphs read them."""
        self.prior_terms = prior_terms(prevalence, reference, torch.empty(0, dtype=torch.float64))
        self.prior_terms.like(torch.empty(0))

    def _rows(self, unlabelled: Tensor | PopulationRows | None, group: dist.ProcessGroup | None) -> PopulationRows | None:
        """Return the unlabelled rows to use, or raise a ValueError if they are required, or of no use to this loss."""
        if unlabelled is not None:
            check_takes_unlabelled(self, self._takes_unlabelled)
        if unlabelled is None and self._takes_unlabelled and self.training and self._unknown:
            assert self.population_marginal is not None
            if int(self.population_marginal.steps) == 0:
                came = "none: pass unlabelled=model(x_unlabelled) to the loss, or give the prevalence a population"
                raise ValueError(f"Expected `unlabelled` rows, from which an unknown prevalence is learnt, but got {came}.")
        if not self._takes_unlabelled:
            return None
        return usable(unlabelled, self._prevalence, group, self.unlabelled_weight, self.unlabelled_evidence)

    def _make_population_marginal(self, decay: float) -> RunningMarginal:
        if self.population_marginal is None:
            assert isinstance(self._prevalence, Prevalence)
            with torch.inference_mode(False):  # training may follow a first pass in inference mode
                self.population_marginal = RunningMarginal()
                self.population_marginal.prepare(self._prevalence.num_classes)
        self.population_marginal.decay = decay
        return self.population_marginal

    def _mean_prediction(self, rows: int) -> MarginalState | None:
        """Return the estimator of the mean prediction over the unlabelled rows, which the evidence keeps at a known π.

        It is a running mean if a minibatch has few unlabelled rows, `rows`.
        """
        if self._unknown:
            return None
        assert isinstance(self._prevalence, Prevalence)
        return self._make_population_marginal(evidence_decay(rows, self._prevalence.population))

    def _learn_population(self, tables: Tables, group: dist.ProcessGroup | None) -> None:
        """In training, if π is unknown, update it with the mean prediction over the unlabelled rows."""
        if not self._unknown or not self.training:
            return
        assert self.population_marginal is not None
        with torch.no_grad():
            self.population_marginal.update(MinibatchEstimate(tables.log_mean(group), len(tables.population)))
        self._set_population(self.population)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        """Load the state. `population_marginal` was called `evidence_marginal`, if π was known."""
        for name in [name for name in state_dict if name.startswith(f"{prefix}evidence_marginal.")]:
            state_dict[name.replace("evidence_marginal", "population_marginal")] = state_dict.pop(name)
        if any(name.startswith(f"{prefix}population_marginal.") for name in state_dict) and not self._unknown:
            self._mean_prediction(1)
        super()._load_from_state_dict(state_dict, prefix, *others)
        if self._unknown and int(state_dict.get(f"{prefix}population_marginal.steps", 0)):
            saved: Tensor = state_dict[f"{prefix}population_marginal.log_average"]
            self._set_population(torch.softmax(saved.double().cpu(), 0))

    def _watch(self, batch: LabelledBatch, terms: PriorTerms, group: dist.ProcessGroup | None) -> None:
        """Pass the batch to the monitor, if the monitor wants to check it."""
        assert self.monitor is not None
        if self.training and not cannot_be_read(batch.outputs) and self.monitor.due() and group is None:
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
        unlabelled_weight: λ, the weight of unlabelled relative to labelled rows, used with `unlabelled=`; None for the ratio
            of their numbers.
        unlabelled_evidence: ε of `PopulationRows`, which says what it does.

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
        unlabelled_weight: float | None = None,
        unlabelled_evidence: float = EVIDENCE,
    ) -> None:
        if isinstance(reference, str):
            if reference != "population":
                came = f"{reference!r}: write the mix"
                raise ValueError(f"Expected `reference` to be 'population', a mix or None, but got {came}.")
            reference = prevalence.population if isinstance(prevalence, ContinuousPrevalence) else reference
        options = reduction, ignore_index, nonfinite, reference, unlabelled_weight, unlabelled_evidence
        super().__init__(prevalence, likelihood, *options)
        classes = None if isinstance(prevalence, ContinuousPrevalence) else getattr(prevalence, "num_classes", 2)
        if marginal is None:
            marginal = BatchMarginal() if classes is None else RunningMarginal()
        if isinstance(marginal, type) or not isinstance(marginal, Marginal):
            raise ValueError(f"Expected `marginal` to be a marginal such as RunningMarginal(), but got {marginal!r}: make one.")
        marginal = marginal_of(marginal, prevalence)
        marginal.prepare(classes)
        self.marginal, self.process_group, self.fused = marginal, process_group, fused
        self.stream_marginal: Marginal | None = None
        self._batches = [0]  # a list, as nn.Module is slow to set attributes

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

    def _group(self, unlabelled: object) -> dist.ProcessGroup | None:
        return sharing_group(self.process_group, self.training)

    def _labelled_loss(self, batch: LabelledBatch, terms: PriorTerms, group: dist.ProcessGroup | None) -> Tensor:
        if terms.cancels:
            if self.training and not torch.compiler.is_compiling():
                self._batches[0] += 1
                if self._batches[0] % FOLLOWED == 1:
                    self._follow(batch, terms, group)
            return cross_entropy(batch, self.likelihood, terms.log_offset, None, self.reduction, group)
        measure = None
        if not isinstance(self.marginal, RunningMarginal | BatchMarginal):
            measure = measure_of(batch, terms, self._prevalence, self.likelihood, self._reference, self.ignore_index)
        return gain_loss(batch, terms, self.likelihood, self.marginal, measure, self.reduction, group, self.fused)

    def _follow(self, batch: LabelledBatch, terms: PriorTerms, group: dist.ProcessGroup | None) -> None:
        """Show a running marginal the batch: it does not enter the default loss, but can be read."""
        if in_transform() or batch.outputs.is_meta or not isinstance(self.marginal, RunningMarginal):
            return
        with torch.no_grad():
            table = at_reference(self.likelihood.table(rows_of(full_precision(batch.outputs.detach()))), terms.log_offset)
            log_m = log_mean_prediction(table, batch.labels, terms, None, group)
            self.marginal.update(MinibatchEstimate(log_m, batch.labels.rows))

    def _stream_marginal(self, terms: PriorTerms) -> Marginal | None:
        if terms.at_population:
            return self.marginal
        if terms.cancels:
            return None
        if self.stream_marginal is None:
            self.stream_marginal = _stream_marginal(self.marginal, int((terms.sampling > 0).sum()))
        return self.stream_marginal

    def _mean_prediction(self, rows: int) -> MarginalState | None:
        stateless = isinstance(self.marginal, BatchMarginal) and not self._unknown
        return self.marginal if stateless else super()._mean_prediction(rows)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        """Load the state; one saved in training with unlabelled rows may also have a marginal of the streams."""
        if self.stream_marginal is None and any(name.startswith(f"{prefix}stream_marginal.") for name in state_dict):
            assert isinstance(self._prevalence, Prevalence)
            self.stream_marginal = _stream_marginal(self.marginal, int((self._prevalence.sampling > 0).sum()))
        super()._load_from_state_dict(state_dict, prefix, *others)


def _stream_marginal(marginal: Marginal, streams: int) -> Marginal:
    """Return a new marginal of the same kind for the sampled classes, `streams`, and the unlabelled stream."""
    check_stream_marginal(marginal)
    with torch.inference_mode(False):
        own = copy.deepcopy(marginal)
        own.reset()
        own.prepare(streams + 1)
    return own


class _Rival(_Loss):
    """A loss of labelled rows only. `_right_at_population`: True if its mean prediction should be π, False if ρ."""

    _right_at_population = False
    _takes_unlabelled = False

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


class LogitAdjustedLoss(_Loss):
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
        unlabelled_evidence: float = EVIDENCE,
    ) -> None:
        options = reduction, ignore_index, nonfinite, None, unlabelled_weight, unlabelled_evidence
        super().__init__(prevalence, likelihood, *options)


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
