"""Loss and prior → the log posterior of the weights, as a function of weights and a minibatch.

Stage: model, prevalence, likelihood, marginal, prior → `LogPosterior`, which every method of inference takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from numbers import Integral
from typing import Any, ParamSpec, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from ..likelihoods import Likelihood
from ..log_probs import as_input, tensor_of
from ..losses import InformationGainLoss, LogitAdjustedLoss, LogLikelihoodLoss, WeightedLoss
from ..losses.batch import class_batch, full_precision
from ..losses.functional import batch_and_terms, check_unlabelled, class_log_sum, gain_loss, measure_of
from ..losses.gain import PriorTerms, at_reference, information_gain, table_of
from ..marginals import AuxiliaryMarginal, Marginal, MinibatchEstimate, PoolMarginal, log_mean, sharing_group
from ..marginals.pool import Pool
from ..prevalence import ContinuousPrevalence, Density, Frequencies, Prevalence
from .joint_model import JointModel
from .marginals import RecordingMarginal, fresh_marginal
from .minibatches import check_mix
from .priors import LIKELIHOOD, Params, Prior, layer_prior
from .steps import ordinary

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def inference_method(method: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Make a function of a `LogPosterior` and data check its target, and run with gradients in whatever mode it is called.

    Under `torch.no_grad()` and `torch.inference_mode()` the result is then the same as outside.
    """

    @wraps(method)
    def run(*args: Arguments.args, **options: Arguments.kwargs) -> Result:
        given = args[:1] or [value for name, value in options.items() if name == "target"]
        if given and not isinstance(given[0], LogPosterior):
            raise ValueError(
                f"Expected `target` to be what log_posterior returns, but got {type(given[0]).__name__}: write "
                f"{method.__name__}(log_posterior(model, prevalence), data)."
            )
        with torch.inference_mode(False):  # which also switches gradients on
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
) -> LogPosterior:
    """Return the paper's posterior, Eq. (1), as a function of weights and a minibatch, in the form that `posteriors` takes:

        log p(w|X,Y) = log p(w) + Σ_n [log p(y_n|x_n,w) − log p(y_n|w)] + N κ Σ_k r_k log p(k|w) + const.

    Both probabilities are taken in the mix of classes r, `reference`. The value returned for a minibatch estimates this divided
    by N: the mean over the minibatch, plus log p(w)/N. With it goes a temperature of 1/N.

    Args:
        model: x → the likelihood's outputs. Its trainable parameters are w; it is never changed.
        prevalence: π, ρ and κ.
        likelihood: Categorical by default. Its own parameters, if it has any, are part of w.
        marginal: the estimator of q, the value of p(y|w) in a minibatch; `RunningMarginal` by default. A method begins with
            one that has seen nothing, so that its result is the same whatever ran before: it works on a copy of a running
            average or a pool, and calls `reset` on others, unless they are in eval mode.
        prior: weights by name → log p(w), such as `gaussian_prior(1.0)`; `layer_prior(model, 1.0, likelihood)` by default.
        num_data: N, how many training examples there are; where it is left out, a method takes the size of its data. Examples
            of which every label is ignored do not count; a dense map counts as one, since its cells say much the same.
        reference: r. None: the sampled mix ρ. `prevalence.population`: the paper's form. Or any mix.
        loss: a rival's class (`WeightedLoss`, `LogitAdjustedLoss`, `LogLikelihoodLoss`), minus which is then the
            log-likelihood; it has no marginal.
        pool: data over which p(y|w) is taken exactly, value and gradient, in the place of `marginal`: `(x, y)` in the mix ρ,
            or x alone from the population where r = π. Each evaluation goes over all of it.

    Examples:
        >>> import torch, rightloss as rl
        >>> from rightloss.inference import log_posterior
        >>> model, x, y = torch.nn.Linear(3, 2), torch.randn(8, 3), torch.arange(8) % 2
        >>> target = log_posterior(model, rl.Prevalence.binary(0.1), num_data=8)
        >>> value, by_products = target(target.parameters(), (x, y))
        >>> sorted(by_products)
        ['log_m', 'outputs']
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"Expected `model` to be an nn.Module, but got {type(model).__name__}: wrap it in one.")
    if any(name.startswith(LIKELIHOOD) for name, _ in (*model.named_parameters(), *model.named_buffers())):
        raise ValueError("Expected a model without a part named `likelihood`, but it has one: rename it.")
    criterion = _criterion(loss, prevalence, likelihood, marginal, reference, pool)
    if not _trainable(model, criterion):
        raise ValueError("Expected weights to infer, but no parameter has requires_grad: unfreeze some.")
    _check_source(marginal, model)
    prior = layer_prior(model, likelihood=criterion.likelihood) if prior is None else prior
    if not callable(prior):
        raise ValueError(f"Expected `prior` to be a function of the weights, but got {prior!r}: write gaussian_prior(1.0).")
    if num_data is not None and not _is_count(num_data):
        raise ValueError(f"Expected `num_data` to be how many training examples there are, but got {num_data!r}: len(y).")
    return LogPosterior(
        model,
        criterion,
        prior,
        None if num_data is None else int(num_data),
        None if pool is None else _checked_pool(pool, criterion, model),
    )


@dataclass(frozen=True, eq=False)
class LogPosterior:
    """The log posterior of the weights: `target(params, batch)` → (log p(w|X,Y)/N estimated from the batch, by-products).

    `log_posterior` makes it.

    Attributes:
        model: as given; called with other weights by `torch.func.functional_call`, in the mode it is in.
        criterion: the loss minus which is the log-likelihood.
        prior: weights by name → log p(w).
        num_data: N.
        pool: x and labels (or None) of the data over which p(y|w) is exact.

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
    _joint: _Joint = field(init=False, repr=False)
    _names: frozenset[str] = field(init=False, repr=False)
    _known: frozenset[str] = field(init=False, repr=False)
    _inference: frozenset[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_joint", _Joint(self.model, self.criterion.likelihood))
        object.__setattr__(self, "_names", frozenset(_trainable(self.model, self.criterion)))
        object.__setattr__(self, "_known", frozenset(name for name, _ in _all_named(self._joint)))
        made = (name for name, value in _all_named(self._joint) if value.is_inference())
        object.__setattr__(self, "_inference", frozenset(made))

    @property
    def prevalence(self) -> Prevalence | ContinuousPrevalence:
        """π, ρ and κ."""
        return self.criterion.prevalence

    @property
    def likelihood(self) -> Likelihood:
        """Outputs → table."""
        return self.criterion.likelihood

    @property
    def gains(self) -> bool:
        """Whether the likelihood is the information gain, and not a rival's."""
        return isinstance(self.criterion, InformationGainLoss)

    @property
    def marginal(self) -> Marginal | None:
        """The estimator of q; None for the rivals, and where p(y|w) is exact over a pool."""
        return self.criterion.marginal if self.gains and self.pool is None else None

    def parameters(self) -> dict[str, Tensor]:
        """Return w as it stands, by name: copies of the model's trainable parameters, the likelihood's as "likelihood.…"."""
        return {name: value.detach().clone() for name, value in _trainable(self.model, self.criterion).items()}

    def buffers(self) -> dict[str, Tensor]:
        """Return copies of the model's buffers: given along with the weights, they are what a step in training mode moves."""
        return {name: value.detach().clone() for name, value in self.model.named_buffers()}

    def with_data(self, num_data: int | None) -> LogPosterior:
        """Return a copy with N filled in if it was left out."""
        if self.num_data is None and num_data is None:
            raise ValueError("Expected `num_data` in log_posterior, but got none: a loader without a data set has no size.")
        return self if self.num_data is not None else replace(self, num_data=num_data)

    def with_fresh_marginal(self) -> LogPosterior:
        """Return a copy with a marginal that has seen nothing, as every run begins."""
        if self.marginal is None:
            return self
        marginal = fresh_marginal(self.marginal)
        return self if marginal is self.marginal else self.with_marginal(marginal)

    def with_marginal(self, marginal: Marginal) -> LogPosterior:
        """Return a copy with another marginal."""
        return replace(
            self, criterion=InformationGainLoss(self.prevalence, self.likelihood, marginal, self.criterion.reference)
        )

    def __call__(self, params: Params, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Return log p(w|X,Y)/N, and by-products: the model's `outputs`, and the minibatch's `log_m` if there is a marginal.

        Outside `torch.func` a marginal with a state (running, auxiliary, pool) moves by its own rules. Inside, states cannot
        change: its value is used as it stands, and `follow` moves it afterwards.
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
        """Return log p(w); buffers that were given along do not count."""
        return self.prior({name: value for name, value in params.items() if name in self._names})

    def outputs(self, params: Params, x: Tensor) -> Tensor:
        """Return the model's outputs for x with these weights."""
        result: Tensor = self.at(params, lambda: self.model(x))
        return result

    def table(self, params: Params, x: Tensor, support: Tensor | None = None) -> Float[Tensor, "n k"]:
        """Return log p(y|x,w) in the population's mix, a row for each label: dense outputs have one for each cell."""
        result: Tensor = self.at(params, lambda: table_of(self.model(x), self.likelihood, support))
        return result

    def log_marginal(self, params: Params, data: Any) -> Float[Tensor, " k"]:
        """Return log p(k|w), in the mix r, exactly over `data`; gradients pass through.

        Args:
            params: w.
            data: `(x, y)` in the mix ρ; x alone, drawn from the population, where r = π; or a list of such, batch by batch.
        """
        if not isinstance(self.prevalence, Prevalence):
            raise ValueError("Expected classes for `log_marginal`, but the likelihood is a density: p(y|w) has no K values.")
        parts = data if isinstance(data, list) else [data]
        return log_mean([self._log_sum(params, *(part if isinstance(part, tuple) else (part, None))) for part in parts])

    def at(self, params: Params, call: Callable[[], Any]) -> Any:
        """Return `call()` with these weights in the model and the likelihood; parts left out keep their own.

        What a model in training mode moves, of the buffers left out, are copies.
        """
        named = {name if name.startswith(LIKELIHOOD) else f"model.{name}": value for name, value in params.items()}
        if not named.keys() <= self._known:
            unknown = [name.removeprefix("model.") for name in named.keys() - self._known]
            raise ValueError(f"Expected weights by the model's names, but it has no {sorted(unknown)[:5]}: see `parameters()`.")
        return functional_call(self._joint, self._buffers_apart() | self._copied() | named, (call,))

    def _copied(self) -> dict[str, Tensor]:
        """Return copies of tensors made under `torch.inference_mode()`, which autograd refuses."""
        named = _all_named(self._joint) if self._inference else []
        return {name: value.clone() for name, value in named if name in self._inference}

    def _buffers_apart(self) -> dict[str, Tensor]:
        buffers = dict(self.model.named_buffers())
        if not buffers or not any(part.training for part in self.model.modules()):
            return {}
        return {f"model.{name}": value.clone() for name, value in buffers.items()}

    def terms(self, like: Tensor) -> PriorTerms:
        """Return what the loss computes with for classes: r, ρ, κ for N examples, and offsets."""
        terms: PriorTerms = self.criterion.terms(like)
        assert isinstance(self.prevalence, Prevalence)
        if self.prevalence.given_evidence is not None:
            return terms
        return replace(terms, evidence=self.prevalence.evidence_for(self.num_data, terms.reference))

    def exact_gain(self, outputs: Tensor, y: Tensor, log_marginal: Tensor) -> Tensor:
        """Return the mean of log p(y_n|x_n,w) − log p(y_n|w), plus κ Σ_k r_k log p(k|w), at a p(y|w) that is given."""
        assert isinstance(self.prevalence, Prevalence)
        batch = class_batch(outputs, y, self.likelihood, self.prevalence.num_classes, -100, "nan")
        terms = self.terms(full_precision(outputs))
        log_probs = at_reference(self.likelihood.table(batch.rows()), terms.log_offset)
        return information_gain(log_probs, log_marginal, batch.labels, terms).sum() / batch.labels.count

    def _log_likelihood(self, params: Params, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        outputs = self.model(x)
        if not self.gains:
            return -self.criterion(outputs, y), {"outputs": outputs}
        if self.pool is not None:
            return self.exact_gain(outputs, y, self.log_marginal(params, self.pool)), {"outputs": outputs}
        marginal = RecordingMarginal(self.criterion.marginal, self.model)
        prevalence, likelihood, reference = self.prevalence, self.likelihood, self.criterion.reference
        group = sharing_group(None, True)
        if isinstance(prevalence, Prevalence):
            batch, terms = class_batch(outputs, y, likelihood, prevalence.num_classes, -100, "nan"), self.terms(outputs)
        else:
            batch, terms = batch_and_terms(outputs, y, prevalence, likelihood, reference, -100, "nan", group)
        measure = measure_of(batch, terms, prevalence, likelihood, reference, -100)
        loss = gain_loss(batch, terms, likelihood, marginal, measure, "mean", group, True)
        return -loss, {"outputs": outputs, "log_m": marginal.log_m}

    def _log_sum(self, params: Params, x: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor | float]:
        """Return log Σ_n β_n p_r(k|x_n,w) and log n."""

        def found() -> tuple[Tensor, Tensor | float]:
            outputs = self.model(x)
            return class_log_sum(outputs, y, self.terms(full_precision(outputs)), self.likelihood)

        result: tuple[Tensor, Tensor | float] = self.at(params, found)
        return result


class _Joint(JointModel):
    """Model and likelihood as one module, so that the weights of both can be exchanged at once during any call."""

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


def _check_source(marginal: Any, model: nn.Module) -> None:
    """A marginal that asks another net than the one whose weights are inferred would answer for that one."""
    asked: Any = marginal.model if isinstance(marginal, PoolMarginal) else None
    asked = marginal.source if isinstance(marginal, AuxiliaryMarginal) else asked
    own = {id(value) for value in model.parameters()}
    if isinstance(asked, nn.Module) and not all(id(value) in own for value in asked.parameters()):
        raise ValueError(
            f"Expected {type(marginal).__name__} to ask the model whose weights are inferred, but got another net in it: "
            "make it with this model (or a part of it), not with a copy."
        )


def _criterion(loss: Any, prevalence: Any, likelihood: Any, marginal: Any, reference: Any, pool: Any) -> Any:
    if loss is None or loss is InformationGainLoss:
        if pool is not None and marginal is not None:
            raise ValueError("Expected one of `marginal` and `pool`, but got both: over a pool p(y|w) is exact.")
        return InformationGainLoss(prevalence, likelihood, marginal, ordinary(reference))
    if not isinstance(loss, type) or not issubclass(loss, WeightedLoss | LogitAdjustedLoss | LogLikelihoodLoss):
        raise ValueError(f"Expected `loss` to be a class such as WeightedLoss, but got {loss!r}: give the class, no brackets.")
    given = [name for name, value in (("marginal", marginal), ("reference", reference), ("pool", pool)) if value is not None]
    if given:
        raise ValueError(f"Expected no {' or '.join(given)} with {loss.__name__}, but got one: it has no marginal.")
    return loss(prevalence, likelihood, nonfinite="nan")


def _checked_pool(pool: Any, criterion: Any, model: nn.Module) -> Pool:
    if not isinstance(criterion.prevalence, Prevalence):
        raise ValueError("Expected classes for `pool`, but the likelihood is a density: use marginal=PoolMarginal(…).")
    x, y = pool if isinstance(pool, tuple | list) and len(pool) == 2 else (pool, None)
    x = ordinary(tensor_of(as_input(x, model, torch.empty(0)), "pool"))
    if y is None:
        check_unlabelled(criterion.terms(torch.empty(0)))
        return x, None
    y = ordinary(tensor_of(y, "target")).to(x.device)
    if len(x) != len(y):
        raise ValueError(f"Expected as many inputs as labels in `pool`, but got {len(x)} and {len(y)}: is one cut off?")
    check_mix(y, criterion.prevalence)
    return x, y


def _is_count(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= 1
