"""The log posterior of the weights, from loss and prior, as a function of weights and a minibatch.

Stage: model, prevalence, likelihood, marginal, prior → `LogPosterior`, the input of every inference method.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from ..arrays import checked_int
from ..likelihoods import Bernoulli, Categorical, Likelihood
from ..losses import InformationGainLoss, LogitAdjustedLoss, LogLikelihoodLoss, WeightedLoss
from ..losses.batch import LabelledBatch, Labels, checked_batch
from ..losses.functional import gain_loss, log_sum_of, measure_of
from ..losses.gain import PriorTerms, at_reference, gain_of_rows, information_gain, log_mean_prediction, table_of
from ..losses.streams import stream_batch, stream_columns, stream_labels, stream_terms, tables_of
from ..marginals import AuxiliaryMarginal, Marginal, MinibatchEstimate, PoolMarginal, in_transform, log_mean, sharing_group
from ..marginals.pool import Pool
from ..prevalence import ContinuousPrevalence, Density, Frequencies, MultilabelPrevalence, Prevalence, PrevalenceWarning
from ..tensors import in_mode, ordinary
from .exact_mix import exact_gain
from .minibatches import Batch, Data, Device, Minibatches, checked_rows
from .prediction import JointModel, inner
from .priors import LIKELIHOOD, Params, Prior, layer_prior

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
LogMarginal = Tensor | Callable[[Tensor], Tensor]


def inference_method(method: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Decorate a function of a `LogPosterior` and data: check its target, and run it with gradients enabled.

    So the result is the same under `torch.no_grad()` and `torch.inference_mode()`.
    """

    @wraps(method)
    def run(*args: Arguments.args, **options: Arguments.kwargs) -> Result:
        given = args[:1] or [value for name, value in options.items() if name == "target"]
        if given and not isinstance(given[0], LogPosterior):
            raise ValueError(
                f"Expected `target` to be what log_posterior returns, but got {type(given[0]).__name__}: write "
                f"{method.__name__}(log_posterior(model, prevalence), data)."
            )
        with torch.inference_mode(False):  # also enables gradients
            return method(*args, **options)

    return run


@torch.inference_mode(False)
def log_posterior(
    model: nn.Module,
    prevalence: Prevalence | ContinuousPrevalence,
    likelihood: Likelihood | None = None,
    marginal: Marginal | None = None,
    prior: Prior | None = None,
    num_data: int | None = None,
    *,
    reference: Frequencies | Density | None = None,
    loss: type[nn.Module] | None = None,
    pool: Any = None,
    unlabelled: Any = None,
    unlabelled_weight: float | None = None,
    unlabelled_batch_size: int | None = None,
    evidence: str | None = None,
) -> LogPosterior:
    """Return the paper's posterior, Eq. (1), as a function of weights and a minibatch, in the form of the package `posteriors`:

        log p(w|X,Y) = log p(w) + Σ_n [log p(y_n|x_n,w) − log p(y_n|w)] + N κ Σ_k r_k log p(k|w) + const.

    Both probabilities are those at the class frequencies r, `reference`. The value for a minibatch estimates this divided by N:
    the mean over the minibatch, plus log p(w)/N. So the temperature is 1/N.

    With `unlabelled` rows it is log p(w|X,Y,X_u): the sums are over labelled and unlabelled rows, and "unlabelled" is one more
    class, as in the losses.

    **An uncertain prevalence** enters with its mean π̄: data sampled by class depend on the weights only through
    p(k|x,w)/π_k, so they say nothing about π, and p(w, π|X,Y) = p(w|X,Y,π) p(π). The weights at another π are those at π̄ with
    another intercept; this assumes that the prior moves with it. `Posterior` adds the uncertainty of π.

    Args:
        model: x → the likelihood's outputs. Its trainable parameters are w; the model is never changed.
        prevalence: π, ρ and κ.
        likelihood: Categorical by default. Its own parameters, if any, are part of w.
        marginal: the estimator of q, the value of p(y|w) in a minibatch; `RunningMarginal` by default. Every method starts with
            a reset marginal, so that its result does not depend on earlier runs: it uses a copy of a running average or a pool,
            and calls `reset` on others, unless they are in eval mode.
        prior: weights by name → log p(w), such as `gaussian_prior(1.0)`; `layer_prior(model, 1.0, likelihood)` by default.
        num_data: N, the number of training examples; by default the size of the method's data. Examples with only ignored
            labels do not count; a dense map counts as one, because its cells are correlated.
        reference: r. None for the sampled mix ρ, `prevalence.population` for the paper's form, or any other mix.
        loss: the class of another loss (`WeightedLoss`, `LogitAdjustedLoss`, `LogLikelihoodLoss`); the log-likelihood is then
            the negative loss, without a marginal.
        pool: data for an exact p(y|w), value and gradient, instead of `marginal`: `(x, y)` at the mix ρ, or only x from the
            population if r = π. Every evaluation uses all of it.
        unlabelled: x of unlabelled rows from the population: one more stream of the likelihood (see rightloss.losses.streams).
            If r = π they are the `pool`. Every evaluation uses all of them.
        unlabelled_weight: λ, the weight of unlabelled relative to labelled rows in the likelihood. None for N_u/N, one count
            each.
        unlabelled_batch_size: number of unlabelled rows per minibatch, drawn at random, for large pools; they represent all, at
            the same λ. Evaluations of all data (`batch_size=None`, curvatures, nuts, expectation propagation) still use all of
            them.
        evidence: "exact" if π is known exactly, or, for an uncertain π, if nothing else is known about it: the gain is then
            taken at the mix r(w) that solves avg_n p_r(k|x_n,w) = r_k, over all data in every evaluation (see
            rightloss.inference.exact_mix). None for the prevalence's κ, where κ = 1 means that π is known as from N people
            counted by class. Under a flat prior the mode and the slopes are those of κ = 1, and the intercept's standard
            deviation is smaller. So there is no such loss: networks are trained with κ = 1.

    Examples:
        >>> import torch, rightloss as rl
        >>> from rightloss.inference import log_posterior
        >>> model, x, y = torch.nn.Linear(3, 2), torch.randn(8, 3), torch.arange(8) % 2
        >>> target = log_posterior(model, rl.Prevalence.binary(0.1), num_data=8)
        >>> value, by_products = target(target.parameters(), (x, y))
        >>> sorted(by_products)
        ['log_m', 'outputs']
        >>> more = log_posterior(model, rl.Prevalence.binary(0.1), num_data=8, unlabelled=torch.randn(100, 3))
        >>> more.unlabelled_mass  # λ
        12.5
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"Expected `model` to be an nn.Module, but got {type(model).__name__}: wrap it in one.")
    if any(name.startswith(LIKELIHOOD) for name, _ in (*model.named_parameters(), *model.named_buffers())):
        raise ValueError("Expected a model without a part named `likelihood`, but it has one: rename it.")
    given: Any = prevalence
    if isinstance(given, MultilabelPrevalence):
        raise ValueError(
            "Expected a prevalence of classes for a posterior, but got one of several findings (multi-label): infer one "
            "posterior for each finding, log_posterior(model_of_one_logit, prevalence['name'], Bernoulli())."
        )
    if loss is LogLikelihoodLoss and isinstance(prevalence, Prevalence) and prevalence.is_uncertain:
        prevalence = prevalence.retarget(prevalence.population)  # plain cross-entropy does not use π, nor its uncertainty
    criterion = _checked_criterion(loss, prevalence, likelihood, marginal, reference, pool)
    exact = _is_exact(evidence, criterion, marginal=marginal, reference=reference, loss=loss, pool=pool, unlabelled=unlabelled)
    if not _trainable(model, criterion):
        raise ValueError("Expected weights to infer, but no parameter has requires_grad: unfreeze some.")
    _check_source(marginal, model)
    prior = layer_prior(model, likelihood=criterion.likelihood) if prior is None else prior
    if not callable(prior):
        raise ValueError(f"Expected `prior` to be a function of the weights, but got {prior!r}: write gaussian_prior(1.0).")
    num_data = None if num_data is None else checked_int(num_data, "num_data", 1)
    size = None if unlabelled_batch_size is None else checked_int(unlabelled_batch_size, "unlabelled_batch_size", 1)
    if unlabelled is not None and isinstance(prevalence, Prevalence) and prevalence.is_uncertain:
        warnings.warn(
            "Unlabelled rows say something about an uncertain prevalence, but a log posterior uses them at its mean: the "
            "intercept's standard deviation will be too large, and wrong if the rows contradict the mean. For a linear model "
            "use InformationGainClassifier, which learns both.",
            PrevalenceWarning,
            stacklevel=3,
        )
    pool, rows = checked_rows(pool, unlabelled, unlabelled_weight, size, criterion, model, marginal)
    return LogPosterior(model, criterion, prior, num_data, pool, rows, unlabelled_weight, size, exact=exact)


@dataclass(frozen=True, eq=False)
class LogPosterior:
    """The log posterior of the weights: `target(params, batch)` → (estimate of log p(w|X,Y)/N from the batch, by-products).

    Make it with `log_posterior`. A batch is `(x, y)`; with unlabelled rows also `(x, y, x_u)`, where x_u represents all of
    them.

    Attributes:
        model: the given model; called with other weights by `torch.func.functional_call`, in its current mode.
        criterion: the loss, which is the negative log-likelihood.
        prior: weights by name → log p(w).
        num_data: N.
        pool: x and labels (or None) of the data over which p(y|w) is exact.
        unlabelled: x of the unlabelled rows, one more stream of the likelihood.
        unlabelled_weight: the given λ; None if each counts once.
        unlabelled_batch_size: number of unlabelled rows per minibatch; None for all.
        intercept: the name of the output layer's bias, if the prevalence is uncertain and `with_data` found one.
        exact: whether π is known exactly, `evidence="exact"`.

    Examples:
        >>> import torch, rightloss as rl
        >>> from rightloss.inference import log_posterior
        >>> target = log_posterior(torch.nn.Linear(3, 2), rl.Prevalence.binary(0.1), num_data=8)
        >>> list(target.parameters())
        ['weight', 'bias']
        >>> target.table(target.parameters(), torch.zeros(4, 3)).shape
        torch.Size([4, 2])
    """

    model: nn.Module
    criterion: Any
    prior: Prior
    num_data: int | None = None
    pool: Pool | None = None
    unlabelled: Tensor | None = None
    unlabelled_weight: float | None = None
    unlabelled_batch_size: int | None = None
    intercept: str | None = None
    exact: bool = False

    def __post_init__(self) -> None:
        if self.unlabelled is not None and self.marginal is not None:
            assert isinstance(self.prevalence, Prevalence)
            self.marginal.prepare(int((self.prevalence.sampling > 0).sum()) + 1)

    @property
    def prevalence(self) -> Prevalence | ContinuousPrevalence:
        """π, ρ and κ."""
        found: Prevalence | ContinuousPrevalence = self.criterion.prevalence
        return found

    @property
    def likelihood(self) -> Likelihood:
        """Outputs → table."""
        found: Likelihood = self.criterion.likelihood
        return found

    @property
    def gains(self) -> bool:
        """Whether the likelihood is the information gain, and not another loss."""
        return isinstance(self.criterion, InformationGainLoss)

    @property
    def marginal(self) -> Marginal | None:
        """The estimator of q; None for other losses, if p(y|w) is exact over a pool, and if π is known exactly."""
        return self.criterion.marginal if self.gains and self.pool is None and not self.exact else None

    @cached_property
    def _joint(self) -> _Joint:
        return _Joint(self.model, self.likelihood)

    @cached_property
    def _trained(self) -> frozenset[str]:
        return frozenset(_trainable(self.model, self.criterion))

    @cached_property
    def _names(self) -> dict[str, bool]:
        """The names of all weights and buffers in `_joint`; True for tensors made under `torch.inference_mode()`."""
        return {name: value.is_inference() for name, value in _all_named(self._joint)}

    @property
    def unlabelled_mass(self) -> float:
        """λ; 0 without unlabelled rows."""
        if self.unlabelled is None:
            return 0.0
        assert self.num_data is not None
        return len(self.unlabelled) / self.num_data if self.unlabelled_weight is None else self.unlabelled_weight

    def parameters(self) -> dict[str, Tensor]:
        """Return the current w by name: copies of the model's trainable parameters, the likelihood's as "likelihood.…"."""
        return {name: value.detach().clone() for name, value in _trainable(self.model, self.criterion).items()}

    def buffers(self) -> dict[str, Tensor]:
        """Return copies of the model's buffers; passed with the weights, they are updated by a step in training mode."""
        return {name: value.detach().clone() for name, value in self.model.named_buffers()}

    def with_data(self, num_data: int | None, few: Callable[[], Tensor] | None = None) -> LogPosterior:
        """Return a copy with N set, if it was not given, and with the `intercept`, found from a few x, if π is uncertain."""
        num_data = num_data if self.num_data is None else self.num_data
        if num_data is None:
            raise ValueError("Expected `num_data` in log_posterior, but got none: a loader without a data set has no size.")
        uncertain = isinstance(self.prevalence, Prevalence) and self.prevalence.is_uncertain
        intercept = _output_bias(self, few()) if uncertain and few is not None else None
        return replace(self, num_data=num_data, intercept=intercept)

    def with_rows(self, move: Callable[[Tensor], Tensor]) -> LogPosterior:
        """Return a copy with `move(x)`, on another device or in another dtype, of the pool and of the unlabelled rows."""
        pool, unlabelled = self.pool, self.unlabelled
        if pool is not None:
            x, y = move(pool[0]), pool[1]
            pool = x, None if y is None else y.to(x.device)
        return replace(self, pool=pool, unlabelled=None if unlabelled is None else move(unlabelled))

    def on(self, device: str | torch.device | None) -> LogPosterior:
        """Return the target with its pool and its unlabelled rows on `device`; None does not move them."""
        return self if device is None else self.with_rows(lambda x: x.to(device))

    def minibatches(
        self, data: Data, batch_size: int | None, generator: torch.Generator | None = None, device: Device = None
    ) -> Minibatches:
        """Return minibatches of `data`, with some of the unlabelled rows unless a minibatch has all data, or all of them."""
        rows, size, others = self.unlabelled, self.unlabelled_batch_size, None
        if rows is not None and batch_size is not None and size is not None and size < len(rows):
            others = Minibatches((rows, torch.zeros(len(rows))), size, generator, device)
        return Minibatches(data, batch_size, generator, device, self.prevalence, self.model, others)

    def with_marginal(self, marginal: Marginal) -> LogPosterior:
        """Return a copy with another marginal."""
        options = self.prevalence, self.likelihood, marginal, self.criterion.reference
        return replace(self, criterion=InformationGainLoss(*options, nonfinite="nan"))

    def __call__(self, params: Params, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Return log p(w|X,Y)/N, and by-products: the model's `outputs`, and the minibatch's `log_m` if there is a marginal.

        Outside `torch.func` a marginal with state (running, auxiliary, pool) updates itself. Inside, state cannot change: its
        current value is used, and `follow` updates it afterwards.
        """
        if self.num_data is None:
            raise ValueError(
                "Expected `num_data`, by which the prior is divided, but got none: log_posterior(…, num_data=len(y))."
            )
        value, aux = self.at(params, lambda: self._log_likelihood(params, *batch))
        return value + self.log_prior(params) / self.num_data, aux

    def follow(self, params: Params, aux: Mapping[str, Tensor]) -> None:
        """Update the marginal with the by-products `aux` of an evaluation inside a transform."""
        if "log_m" in aux and aux["log_m"].ndim > 1:
            raise ValueError(
                f"Expected `aux` of one evaluation, but got {len(aux['log_m'])} at once: follow each, with its own weights."
            )
        if self.marginal is not None and not isinstance(self.marginal, PoolMarginal):
            estimate = MinibatchEstimate(aux["log_m"].detach(), len(aux["outputs"]))
            self.at(params, lambda: self.criterion.marginal.update(estimate))

    def log_prior(self, params: Params) -> Tensor:
        """Return log p(w), without buffers in `params`."""
        return self.prior({name: value for name, value in params.items() if name in self._trained})

    def outputs(self, params: Params, x: Tensor) -> Tensor:
        """Return the model's outputs for x with these weights."""
        return self.at(params, lambda: self.model(x))

    def table(self, params: Params, x: Tensor, support: Tensor | None = None) -> Float[Tensor, "n k"]:
        """Return log p(y|x,w) at the population's mix, a row for each label; dense outputs have one for each cell."""
        return self.at(params, lambda: table_of(self.model(x), self.likelihood, support))

    def log_marginal(self, params: Params, data: Any) -> Float[Tensor, " k"]:
        """Return the exact log p(k|w) of the classes over `data`, at the mix r, with gradients.

        Args:
            params: w.
            data: `(x, y)` at the mix ρ; only x, drawn from the population, if r = π; or a list of such batches.
        """
        if not isinstance(self.prevalence, Prevalence):
            raise ValueError("Expected classes for `log_marginal`, but the likelihood is a density: p(y|w) has no K values.")
        parts = [part if isinstance(part, tuple) else (part, None) for part in (data if isinstance(data, list) else [data])]

        def one(x: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor | float]:
            outputs = self.model(x)
            return log_sum_of(outputs, y, self.class_terms(outputs), self.prevalence, self.likelihood)

        return self.at(params, lambda: log_mean([one(*part) for part in parts]))

    def at(self, params: Params, call: Callable[[], Result]) -> Result:
        """Return `call()` with these weights in the model and the likelihood; other weights keep their values.

        A model in training mode updates copies of the buffers that are not given.
        """
        named = inner(params)
        if not named.keys() <= self._names.keys():
            unknown = [name.removeprefix("model.") for name in named.keys() - self._names.keys()]
            raise ValueError(f"Expected weights by the model's names, but it has no {sorted(unknown)[:5]}: see `parameters()`.")
        buffers = dict(self.model.named_buffers())
        training = bool(buffers) and any(part.training for part in self.model.modules())
        apart = {f"model.{name}": value.clone() for name, value in buffers.items()} if training else {}
        if any(self._names.values()):  # tensors made under `torch.inference_mode()`, which autograd cannot use
            apart |= {name: value.clone() for name, value in _all_named(self._joint) if self._names[name]}
        result: Result = functional_call(self._joint, apart | named, (call,))
        return result

    def class_terms(self, like: Tensor) -> PriorTerms:
        """Return the prior terms of the classes: r, ρ, κ and offsets."""
        terms: PriorTerms = self.criterion.prior_terms.like(like)
        return terms

    def terms(self, like: Tensor) -> PriorTerms:
        """Return the prior terms of the likelihood: those of the classes, or with unlabelled rows those of the streams."""
        terms = self.class_terms(like)
        return terms if self.unlabelled is None else stream_terms(terms, terms.sampling > 0, self.unlabelled_mass)

    def columns(self, table: Float[Tensor, "*sets n k"]) -> Float[Tensor, "*sets n s"]:
        """Return the table of the likelihood: of the classes, or with unlabelled rows of the streams."""
        return table if self.unlabelled is None else stream_columns(table, self.class_terms(table).sampling > 0)

    def all_tables(self, params: Params, x: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        """Return `table` of x, and that of the unlabelled rows (`others`, or all), if there are any."""

        def found() -> tuple[Tensor, ...]:
            both = self._all_outputs(x, *others)
            return tuple(table_of(outputs, self.likelihood) for outputs in both if outputs is not None)

        return self.at(params, found)

    def gains_of(
        self, table: Float[Tensor, "*sets n k"], labels: Labels, terms: PriorTerms, log_marginal: LogMarginal | None = None
    ) -> Float[Tensor, "*sets n"]:
        """Return the log-likelihood of each row, for one set of weights or many; 0 where ignored.

        Args:
            table: log p(k|x,w) at the population's mix; of the streams if there are unlabelled rows.
            labels: one per row.
            terms: r, ρ and κ, of the classes or of the streams.
            log_marginal: log p(y|w), or a function that returns its value q from the rows' own log m (without gradient); None
                for other losses, and if π is known exactly.
        """
        if self.exact:
            return exact_gain(table, labels, terms)
        if not self.gains:
            log_offset, weights = self.criterion.cross_entropy_terms(terms)
            log_probs = at_reference(table, log_offset)
            return labels.mask(labels.gather(log_probs if weights is None else log_probs * weights))
        if isinstance(log_marginal, Tensor):
            return information_gain(at_reference(table, terms.log_offset), log_marginal, labels, terms)
        assert log_marginal is not None
        return gain_of_rows(table, labels, terms, log_marginal)

    def likelihood_of(
        self, outputs: Tensor, y: Tensor, others: Tensor | None = None, log_marginal: LogMarginal | None = None
    ) -> Tensor:
        """Return the log-likelihood of a batch, per labelled example, from outputs of labelled and unlabelled rows."""
        if not self.gains and others is None:
            result: Tensor = -self.criterion(outputs, y)
            return result
        batch, terms = self._batch(outputs, y, others)
        table = batch.outputs if others is not None else self.likelihood.table(batch.rows())
        gain = self.gains_of(table, batch.labels, terms, log_marginal)
        return gain.sum() / (batch.labels.count if batch.examples is None else batch.examples)

    def labels_of(self, outputs: Tensor, y: Tensor | None, others: int = 0) -> Labels:
        """Return the checked labels of the rows of `outputs`; with `others` unlabelled rows after them, those of the streams.

        Without labels every row is of class 0.
        """
        if y is None:
            y = torch.zeros(outputs.shape[:1] + outputs.shape[2:], dtype=torch.long, device=outputs.device)
        labels = checked_batch(outputs, y, self.prevalence, self.likelihood).labels
        if not others:
            return labels
        multiple = self.unlabelled_mass * labels.count / others
        return stream_labels(labels, others, self.class_terms(outputs).sampling > 0, multiple)

    def log_m(self, params: Params, batch: Batch) -> Float[Tensor, " k"]:
        """Return the batch's estimate of log p(y|w): of the classes, or with unlabelled rows of the streams."""
        if self.unlabelled is None:
            return self.log_marginal(params, batch)

        def found() -> Tensor:
            x, y, *others = batch
            outputs, unlabelled = self._all_outputs(x, *others)
            rows, terms = self._batch(outputs, y, unlabelled)
            return log_mean_prediction(at_reference(rows.outputs, terms.log_offset), rows.labels, terms)

        return self.at(params, found)

    def _batch(
        self, outputs: Tensor, y: Tensor, others: Tensor | None, group: dist.ProcessGroup | None = None
    ) -> tuple[LabelledBatch, PriorTerms]:
        """Return the batch and the prior terms of the classes; with outputs of unlabelled rows, those of the streams."""
        batch, terms = self.criterion.batch_and_terms(outputs, y, group)
        if others is None:
            return batch, terms
        tables = tables_of(batch, others, self.likelihood)
        return stream_batch(batch, tables, terms, self.unlabelled_mass, group)

    def _all_outputs(self, x: Tensor, others: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return the model's outputs for x, and for the unlabelled rows `others`, or all; None if there are none.

        It is one pass if shapes allow it, so that normalisation by minibatch is the same for both.
        """
        if self.unlabelled is None:
            if others is not None:
                raise ValueError("Expected a batch (x, y), but got unlabelled rows, too: log_posterior(…, unlabelled=x_u).")
            return self.model(x), None
        others = self.unlabelled if others is None else others
        if x.shape[1:] != others.shape[1:]:
            return self.model(x), self.model(others)
        outputs = self.model(torch.cat([x, others]))
        return outputs[: len(x)], outputs[len(x) :]

    def _log_likelihood(self, params: Params, x: Tensor, y: Tensor, *others: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        outputs, unlabelled = self._all_outputs(x, *others)
        if self.marginal is not None:
            return self._gain(outputs, y, unlabelled)
        if self.exact:
            self.check_all(len(x))
        log_marginal = None if self.pool is None else self.log_marginal(params, self.pool)
        return self.likelihood_of(outputs, y, unlabelled, log_marginal), {"outputs": outputs}

    def check_all(self, rows: int) -> None:
        """Raise a ValueError for a minibatch, if π is known exactly."""
        if self.num_data is not None and rows < self.num_data:
            raise ValueError(
                f'Expected all {self.num_data} examples in every evaluation with evidence="exact", but got {rows}: the mix '
                "r(w) is that of all rows. Use batch_size=None, laplace or nuts; or leave out `evidence`."
            )

    def _gain(self, outputs: Tensor, y: Tensor, others: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the gain with the marginal's value of p(y|w)."""
        marginal = _RecordingMarginal(self.criterion.marginal, self.model)
        prevalence, likelihood, reference = self.prevalence, self.likelihood, self.criterion.reference
        group, measure = sharing_group(None, True), None
        batch, terms = self._batch(outputs, y, others, group)
        if others is None:
            measure = measure_of(batch, terms, prevalence, likelihood, reference, -100)
        likelihood = likelihood if others is None else Categorical()
        loss = gain_loss(batch, terms, likelihood, marginal, measure, "mean", group, True)
        return -loss, {"outputs": outputs, "log_m": marginal.log_m}


class _Joint(JointModel):
    """Model and likelihood as one module, so that the weights of both can be replaced together in any call."""

    def forward(self, call: Callable[[], Any]) -> Any:  # type: ignore[override]
        return call()


def _trainable(model: nn.Module, criterion: Any) -> dict[str, nn.Parameter]:
    named = {name: value for name, value in model.named_parameters() if value.requires_grad}
    if isinstance(criterion.likelihood, nn.Module):
        own = criterion.likelihood.named_parameters()
        named |= {LIKELIHOOD + name: value for name, value in own if value.requires_grad}
    return named


def _all_named(joint: nn.Module) -> list[tuple[str, Tensor]]:
    """Return parameters and buffers, tied ones by each of their names."""
    return [*joint.named_parameters(remove_duplicate=False), *joint.named_buffers(remove_duplicate=False)]


def output_shift(likelihood: Likelihood, log_ratio: Float[Tensor, "*n k"]) -> Float[Tensor, "*n j"]:
    """Return what to add to the outputs so that predictions move from π to π′, from log π′ − log π."""
    return log_ratio if isinstance(likelihood, Categorical) else log_ratio[..., 1:] - log_ratio[..., :1]


@torch.no_grad()
def _output_bias(target: LogPosterior, x: Tensor) -> str | None:
    """Return the name of the weight to which `output_shift` can be added instead; None if there is none."""
    assert isinstance(target.prevalence, Prevalence)
    if not isinstance(target.likelihood, Categorical | Bernoulli):
        return None
    own, log_ratio = target.parameters(), torch.linspace(-1, 1, target.prevalence.num_classes)
    shift = output_shift(target.likelihood, log_ratio)
    with in_mode(target.model, False):
        x = x.to(next(iter(own.values())).device)
        table = target.table(own, x)
        wanted = F.log_softmax(table + log_ratio.to(table), 1)
        for name, value in own.items():
            moved = target.table({**own, name: value + shift.to(value)}, x) if value.shape == shift.shape else table
            if torch.allclose(moved, wanted, rtol=0, atol=1e-3):
                return name
    return None


class _RecordingMarginal:
    """A marginal that records the minibatch's estimate. Inside `torch.func` it does not change state.

    There the marginal is used as in eval mode; a pool is evaluated at the model's current weights.

    Args:
        marginal: gives the value.
        model: the model, with the weights of the evaluation.
    """

    log_m: Tensor

    def __init__(self, marginal: Marginal, model: nn.Module) -> None:
        self.marginal, self.model = marginal, model
        self.prepare, self.sampling_frequencies, self.reset = marginal.prepare, marginal.sampling_frequencies, marginal.reset

    def value(self, estimate: MinibatchEstimate) -> Float[Tensor, " k"]:
        if isinstance(self.marginal, PoolMarginal):
            return self.marginal.exact(estimate, self.model)
        if not isinstance(self.marginal, nn.Module):
            return self.marginal.value(estimate)
        with in_mode(self.marginal, False):
            return self.marginal.value(estimate)

    def update(self, estimate: MinibatchEstimate) -> Float[Tensor, " k"]:
        self.log_m = estimate.log_m
        return self.value(estimate) if in_transform() else self.marginal.update(estimate)


def _checked_criterion(loss: Any, prevalence: Any, likelihood: Any, marginal: Any, reference: Any, pool: Any) -> Any:
    """Return the loss, which is the negative log-likelihood."""
    if isinstance(prevalence, Prevalence) and prevalence.is_unknown:
        raise ValueError(
            "Expected a prevalence with a population in a log posterior, but got Prevalence.unknown: train with "
            "InformationGainLoss(prevalence) and `unlabelled=` first, and pass prevalence.retarget(criterion.population); or, "
            "where it is known roughly, Prevalence.dirichlet(…)."
        )
    if loss is None or loss is InformationGainLoss:
        if pool is not None and marginal is not None:
            raise ValueError("Expected one of `marginal` and `pool`, but got both: over a pool p(y|w) is exact.")
        return InformationGainLoss(prevalence, likelihood, marginal, ordinary(reference), nonfinite="nan")
    if not isinstance(loss, type) or not issubclass(loss, WeightedLoss | LogitAdjustedLoss | LogLikelihoodLoss):
        raise ValueError(f"Expected `loss` to be a class such as WeightedLoss, but got {loss!r}: give the class, no brackets.")
    given = [name for name, value in (("marginal", marginal), ("reference", reference), ("pool", pool)) if value is not None]
    if given:
        raise ValueError(f"Expected no {' or '.join(given)} with {loss.__name__}, but got one: it has no marginal.")
    return loss(prevalence, likelihood, nonfinite="nan")


def _is_exact(evidence: Any, criterion: Any, **others: Any) -> bool:
    """Return whether π is known exactly; the `others` are options that do not go with it."""
    if evidence is None:
        return False
    if evidence != "exact":
        raise ValueError(
            f"Expected `evidence` of log_posterior to be 'exact' or None, but got {evidence!r}: a number is an argument of "
            "the prevalence, Prevalence(…, evidence=0.5)."
        )
    given = [name for name, value in others.items() if value is not None]
    if given or not isinstance(criterion.prevalence, Prevalence):
        names = " or ".join(given) or "regression"
        raise ValueError(
            f'Expected no {names} with evidence="exact", but got one: its likelihood has a mix of its own over the labelled '
            "rows, for classes; leave out one of the two."
        )
    return True


def _check_source(marginal: Any, model: nn.Module) -> None:
    """Raise a ValueError if a marginal uses another network than the one with the inferred weights."""
    asked: Any = marginal.model if isinstance(marginal, PoolMarginal) else None
    asked = marginal.source if isinstance(marginal, AuxiliaryMarginal) else asked
    own = {id(value) for value in model.parameters()}
    if isinstance(asked, nn.Module) and not all(id(value) in own for value in asked.parameters()):
        raise ValueError(
            f"Expected {type(marginal).__name__} to use the model with the inferred weights, but it uses another one: "
            "make it with this model (or a part of it), not with a copy."
        )
