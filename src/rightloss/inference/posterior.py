"""Posterior: a distribution of weights, with predictions, saving and loading.

Stage: model, likelihood, `Distribution` over some of their weights → `Posterior`: draws by name, `Prediction`s, files.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator, Mapping
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64
from numpy.typing import ArrayLike
from torch import Tensor, nn

from ..arrays import checked_int, checked_level, multiply_classes
from ..likelihoods import Categorical, Likelihood
from ..likelihoods.standard import check_pair
from ..prevalence import ContinuousPrevalence, Prevalence, log_mix, without_estimate
from ..serialization import PREVALENCE, Format, check_fit, prevalence_facts, read_file, saved_prevalence, write_file
from ..tensors import as_input, first_float, ordinary, own_stream, tensor_of
from .distributions import SAVED, Distribution, Layout, Particles, saved_distribution
from .prediction import AveragedModel, JointModel, LinearisedModel, Prediction, Runner, averaged, check_weights
from .target import LogPosterior, output_shift

_DRAWS = 100  # if the distribution has no number of draws
_WEIGHTS, _INPUTS = 1 << 24, 1 << 20  # numbers in memory at a time: of stacked weights, and of x times draws
_FORMAT = Format(
    "rightloss.Posterior",
    version=1,
    facts=(*PREVALENCE, "likelihood", "distribution", "names", "shapes", "dropout", "linearised", "record"),
    thing="posterior",
    saved_by="Posterior.save",
    wrapping="make a Posterior of its tensors",
)


class Posterior:
    """A distribution over a model's weights, and its predictions.

    **An uncertain prevalence**, π ~ Dirichlet(α) with mean π̄. Rows sampled by class say nothing about π, so
    p(w, π|X,Y) = p(w|X,Y,π) p(π), and the weights at π are those at π̄ with log π_k − log π̄_k added to the intercept of class
    k. So `distribution`, `model` and `module` are at π̄, and `mean`, `standard_deviation` and `sample` include π, if the output
    layer has a random bias: `record["intercept"]` is its name. In `predict`, the interval includes π with any model, and the
    probabilities are those at π̄, which is exact for one new person (see [`retarget`][rightloss.predictive.retarget.retarget]).

    It can also be made and used under `torch.no_grad()` and `torch.inference_mode()`, with the same results.

    Args:
        model: x → the likelihood's outputs; copied.
        prevalence: π, ρ and κ.
        likelihood: also copied.
        distribution: distribution of the random weights, as flat vectors.
        layout: the names of these weights: parameters and float buffers of the model by their names, the likelihood's
            parameters as "likelihood.<name>".
        fixed: values of other weights, if they are not the model's own.
        dropout: whether dropout masks are drawn with the weights, as in MC dropout.
        record: a report of the method, such as its losses; the part that JSON can represent is saved.
        linearised: whether to predict with the model linearised in its weights around their mean, as a Gaussian from a
            Gauss–Newton matrix assumes. The weights of `sample` are the same.

    Examples:
        >>> import torch, rightloss as rl
        >>> model, y = torch.nn.Linear(1, 2), torch.arange(100) % 2
        >>> x = torch.randn(100, 1, generator=torch.Generator().manual_seed(0)) + y[:, None]
        >>> target = rl.inference.log_posterior(model, rl.Prevalence.binary(population=0.1))
        >>> posterior = rl.inference.laplace(target, (x, y), progress=False)
        >>> posterior.predict(x).log_probs.shape
        torch.Size([100, 2])
        >>> posterior.sample(3)["weight"].shape
        torch.Size([3, 2, 1])
    """

    @torch.inference_mode(False)
    def __init__(
        self,
        model: nn.Module,
        prevalence: Prevalence | ContinuousPrevalence,
        likelihood: Likelihood,
        distribution: Distribution,
        layout: Layout,
        fixed: Mapping[str, Tensor] | None = None,
        dropout: bool = False,
        record: Mapping[str, Any] | None = None,
        linearised: bool = False,
    ) -> None:
        check_pair(likelihood, prevalence)
        self.prevalence, self.distribution, self.layout = prevalence, distribution, layout
        self.dropout, self.linearised, self.record = dropout, linearised, dict(record or {})
        if distribution.mean.shape != (layout.size,):
            raise ValueError(
                f"Expected a distribution of {layout.size} weights, but got {tuple(distribution.mean.shape)}: "
                "the layout must be that of its vectors."
            )
        self._net = JointModel(copy.deepcopy(model), copy.deepcopy(likelihood)).eval()
        self._net.put({**(fixed or {}), **layout.unflatten(distribution.mean)})
        if dropout and self._net.wake_dropout() == 0:
            raise ValueError("Expected a model that drops out, but it has no such module: nn.Dropout(0.1) between layers.")
        if linearised:
            self._check_linear()
        self._function = LinearisedModel(self._net) if linearised else self._net

    @property
    def model(self) -> nn.Module:
        """A copy of the model, at the mean of the distribution."""
        return self._net.model

    @property
    def likelihood(self) -> Likelihood:
        """A copy of the likelihood, its own parameters at the mean of the distribution."""
        return self._net.likelihood

    @property
    def mean(self) -> dict[str, Tensor]:
        """Mean of the random weights, by name."""
        mean, moments = self.layout.unflatten(self.distribution.mean), self._intercept_moments()
        return mean if moments is None else self._add(mean, moments[0])

    @property
    def standard_deviation(self) -> dict[str, Tensor]:
        """Standard deviation of the random weights, by name."""
        own, moments = self.layout.unflatten(self.distribution.standard_deviation), self._intercept_moments()
        if moments is None:
            return own
        variance = self._add({name: value.square() for name, value in own.items()}, moments[1])
        return {name: value.sqrt() for name, value in variance.items()}

    @torch.inference_mode(False)
    def sample(self, n: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Return n draws of the random weights, `(n, …)` by name; without a generator the same ones in every call."""
        stream = own_stream(generator)
        draws = self.layout.unflatten(self.distribution.sample(checked_int(n, "n", 1), stream))
        if self._intercept is None:
            return draws
        assert isinstance(self.prevalence, Prevalence)
        return self._add(draws, output_shift(self.likelihood, _log_ratios(self.prevalence, n, stream)))

    @torch.inference_mode(False)
    def module(self, index: int | None = None) -> nn.Module:
        """Return the model with the mean weights, in eval mode, or with those of draw `index` of `Particles`.

        For MAP this is the trained network. The mean of an ensemble or of chains is usually not a good network, because
        networks with the same function can have very different weights.
        """
        net = copy.deepcopy(self._net).eval()
        if index is not None:
            draws = self.distribution.draws if isinstance(self.distribution, Particles) else torch.empty(0)
            if not isinstance(index, int | Integral) or not -len(draws) <= index < len(draws):
                raise ValueError(f"Expected `index` to name a draw, but got {index} of {self._kind()}: use `sample`.")
            net.put(self.layout.unflatten(draws[index]))
        return net.model

    @torch.inference_mode(False)
    def predict(
        self,
        x: Any,
        samples: int | None = None,
        generator: torch.Generator | None = None,
        support: ArrayLike | Tensor | None = None,
        batch_size: int | None = None,
        *,
        population: Any = None,
        level: float | None = None,
    ) -> Prediction:
        """Return probabilities averaged over draws of the weights, p(y|x,X,Y) = ∫ p(y|x,w) p(w|X,Y) dw, at any population.

        The prediction of each draw is moved to the new mix with `retarget`, then averaged: see
        [`predictive`][rightloss.predictive.predictive]. Entropies and the interval are those of the moved draws. The interval
        also includes the uncertainty of the population, if it has one.

        Args:
            x: the model's input; an array is converted to a tensor of the model's dtype, and the results to arrays.
            samples: number of draws. None for all particles, or for 100 of a Gaussian or with dropout.
            generator: for the draws; one with a fixed seed by default, so that equal input gives equal predictions.
            support: in regression, the values of y at which to evaluate the density.
            batch_size: rows of x per call of the model; all by default. (Dropout masks depend on it.)
            population: the population of the predictions, as `to` of `retarget`: 0.001, K frequencies, a `Prevalence` or a
                `PrevalenceEstimate`. None for that of the posterior. If it is uncertain, the probabilities are at its mean.
            level: level of `Prediction.low` and `.high`, such as 0.95. None for no interval; an interval needs the predictions
                of all draws in memory.
        """
        level, stream = None if level is None else checked_level(level), own_stream(generator)
        tables = self.tables(x, samples, stream, support, batch_size, population)
        mix = without_estimate(self.prevalence if population is None else population)
        drawn = partial(_log_ratios, mix, stream=stream) if isinstance(mix, Prevalence) and mix.is_uncertain else None
        return averaged(tables, self.likelihood.over_classes, level, drawn).as_given(x)

    def tables(
        self,
        x: Any,
        samples: int | None = None,
        generator: torch.Generator | None = None,
        support: ArrayLike | Tensor | None = None,
        batch_size: int | None = None,
        population: Any = None,
    ) -> Iterator[Float[Tensor, "m n k *dense"]]:
        """Yield log p(y|x,w) of blocks of draws, at the mean of an uncertain population; arguments as in `predict`."""
        if population is not None and not isinstance(self.prevalence, Prevalence):
            raise ValueError("Expected classes to move to `population`, but the likelihood is a density: leave it out.")
        stream = own_stream(generator)
        values, pieces = self._support(support), self._pieces(x, batch_size)
        count = self._count(samples)
        largest = max(each.numel() if isinstance(each, Tensor) else 1 for each in pieces)
        block = max(1, min(_WEIGHTS // max(self.layout.size, 1), _INPUTS // max(largest, 1)))
        seeds = torch.Generator(stream.device)
        seeds.set_state(stream.get_state())  # a separate generator, so that the weights are those of `sample`
        runner = Runner(self._function, not self.dropout, seeds)
        tables = self._run(runner, pieces, values, self._draws(count, block, stream))
        return tables if population is None else self._moved(tables, population)

    @torch.inference_mode(False)
    def as_module(self, samples: int | None = None, generator: torch.Generator | None = None) -> nn.Module:
        """Return a module, x → log-probabilities averaged over fixed draws.

        Inside `PrevalenceLayer(posterior.as_module(), prevalence)`, with a Categorical likelihood that accepts them as logits,
        it can be exported if the model can; if `linearised`, for a fixed number of rows. In regression call it with x and the
        support.
        """
        if self.dropout:
            raise ValueError("Expected draws that can be fixed, but dropout's masks cannot: call `predict`.")
        count = self._count(samples)
        draws = next(self._draws(count, count, own_stream(generator)))
        return AveragedModel(copy.deepcopy(self._function), self._weights(draws))

    @torch.inference_mode(False)
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one safetensors file, atomically. Needs `rightloss[export]`.

        As with `PrevalenceLayer.save`, loading detects damage, but not forgery.
        """
        _write(path, self)

    @classmethod
    @torch.inference_mode(False)
    def load(
        cls,
        path: str | os.PathLike[str],
        model: nn.Module,
        likelihood: Likelihood | None = None,
        prevalence: Prevalence | ContinuousPrevalence | None = None,
    ) -> Posterior:
        """Load a saved posterior. Nothing in the file is unpickled or run.

        Args:
            path: a file written by `save`.
            model: a new model of the same architecture and dtype; it is not changed.
            likelihood: of the same type as that of the saved posterior; Categorical by default.
            prevalence: only for regression, because files cannot store densities.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file is damaged, of another kind or of a newer version, or does not fit `model` and `likelihood`.
        """
        return cls(*_read(path, model, likelihood, prevalence))

    def __repr__(self) -> str:
        ways = ", dropout" * self.dropout + ", linearised" * self.linearised
        weights = f"{self.layout.size} random weights of {type(self.model).__name__}"
        return f"Posterior({self._kind()} over {weights}{ways}, {type(self.likelihood).__name__}, {self.prevalence!r})"

    @property
    def _intercept(self) -> str | None:
        """The name of the random bias that moves with an uncertain π."""
        name = self.record.get("intercept")
        uncertain = isinstance(self.prevalence, Prevalence) and self.prevalence.is_uncertain
        return name if uncertain and name in self.layout.names else None

    def _intercept_moments(self) -> tuple[Float[Tensor, " j"], Float[Tensor, " j"]] | None:
        """Return mean and variance of what an uncertain π adds to the intercept; None if it adds nothing."""
        if self._intercept is None:
            return None
        assert isinstance(self.prevalence, Prevalence)
        alpha = tensor_of(self.prevalence.concentration)
        log_mean = alpha.digamma() - alpha.sum().digamma() - tensor_of(self.prevalence.population).log()
        covariance = torch.diag(torch.polygamma(1, alpha)) - torch.polygamma(1, alpha.sum())  # of log π
        by_output = output_shift(self.likelihood, output_shift(self.likelihood, covariance).T)
        return output_shift(self.likelihood, log_mean), by_output.diagonal()

    def _add(self, weights: dict[str, Tensor], to_intercept: Float[Tensor, "*n j"]) -> dict[str, Tensor]:
        assert self._intercept is not None
        value = weights[self._intercept]
        return {**weights, self._intercept: value + to_intercept.to(value)}

    def _kind(self) -> str:
        if not isinstance(self.distribution, Particles):
            return type(self.distribution).__name__
        chains = f" in {self.distribution.chains} chains" if self.distribution.chains > 1 else ""
        return f"{len(self.distribution)} draw{'s' * (len(self.distribution) > 1)}{chains}"

    def _count(self, samples: int | None) -> int | None:
        """Return the number of draws; None to use every particle once."""
        if samples is not None:
            return checked_int(samples, "samples", 1)
        return None if isinstance(self.distribution, Particles) and not self.dropout else _DRAWS

    def _draws(self, count: int | None, block: int | None, stream: torch.Generator) -> Iterator[Float[Tensor, "m d"]]:
        """Yield the draws in blocks of at most `block` (None for all)."""
        if isinstance(self.distribution, Particles):
            draws = self.distribution.draws
            picks = torch.arange(len(draws)) if count is None else self.distribution.picks(count, stream)
            for some in picks.to(draws.device).split(block or len(picks)):
                yield draws[some]
            return
        assert count is not None
        for start in range(0, count, block or count):
            yield self.distribution.sample(min(block or count, count - start), stream)

    def _weights(self, draws: Float[Tensor, "m d"]) -> dict[str, Tensor]:
        """Return draws by name, in the dtypes of the network; differences from the mean if it is linearised."""
        own = self._net.own()
        draws = draws - self.distribution.mean if self.linearised else draws
        return {name: value.to(own[name].dtype) for name, value in self.layout.unflatten(draws).items()}

    @torch.inference_mode(False)
    def _run(self, run: Runner, pieces: list[Any], support: Tensor | None, draws: Iterator[Tensor]) -> Iterator[Tensor]:
        for some in draws:
            with torch.no_grad():
                table = run(self._weights(some), pieces, support)
            if isinstance(self.prevalence, Prevalence) and table.shape[2] != self.prevalence.num_classes:
                raise ValueError(
                    f"Expected the model to predict {self.prevalence.num_classes} classes, but got {table.shape[2]}: "
                    "match the last layer and the prevalence."
                )
            yield table

    @torch.inference_mode(False)
    def _moved(self, tables: Iterator[Tensor], population: Any) -> Iterator[Tensor]:
        """Move each draw's table to another population."""
        assert isinstance(self.prevalence, Prevalence)
        own = np.log(self.prevalence.population)
        for table in tables:
            offset = log_mix(population, "population", self.prevalence.num_classes, table.shape[1]) - own
            yield torch.stack([multiply_classes(each, offset) for each in table])

    def _check_linear(self) -> None:
        if self.dropout:
            raise ValueError("Expected dropout or a linearised model, but got both: leave out one.")
        parameters = {name.removeprefix("model.") for name, _ in self._net.named_parameters()}
        for name in self.layout.names:
            if name not in parameters:
                raise ValueError(f"Expected parameters to linearise in, but `{name}` is a buffer: leave out `linearised`.")

    def _support(self, support: ArrayLike | Tensor | None) -> Tensor | None:
        if self.likelihood.over_classes == (support is None):
            return None if support is None else tensor_of(support, "support").to(first_float(self._net, torch.empty(0)))
        wanted, got = ("no `support` with classes", "one") if self.likelihood.over_classes else ("`support`", "none")
        raise ValueError(f"Expected {wanted}, but got {got}: it lists values of y, at which a density is wanted.")

    def _pieces(self, x: Any, batch_size: int | None) -> list[Any]:
        whole = ordinary(as_input(x, self.model, torch.empty(0)))
        if batch_size is None:
            return [whole]
        if not isinstance(whole, Tensor):
            raise ValueError(f"Expected x as a tensor or an array to cut, but got {type(x).__name__}: leave out `batch_size`.")
        return list(whole.split(checked_int(batch_size, "batch_size", 1)))


def posterior_of(
    target: LogPosterior,
    distribution: Distribution,
    layout: Layout | None = None,
    fixed: Mapping[str, Tensor] | None = None,
    dropout: bool = False,
    record: Mapping[str, Any] | None = None,
    linearised: bool = False,
) -> Posterior:
    """Return the posterior of a method; `layout` is by default that of all parameters of the target.

    Buffers that are not in a state dict are left out of `fixed`.
    """
    layout = Layout.of(target.parameters()) if layout is None else layout
    kept = JointModel(target.model, target.likelihood).own()
    fixed = {name: value for name, value in (fixed or {}).items() if name in kept}
    record = {**(record or {}), "intercept": target.intercept} if target.intercept in layout.names else record
    how = (dropout, record, linearised)
    return Posterior(target.model, target.prevalence, target.likelihood, distribution, layout, fixed, *how)


def _log_ratios(prevalence: Prevalence, n: int, stream: torch.Generator) -> Float64[Tensor, "n k"]:
    """Return log π − log π̄ of n draws of π, independent of what else is drawn from `stream`, on any device."""
    return tensor_of(np.log(prevalence.sample(n, stream)) - np.log(prevalence.population))


def _write(path: str | os.PathLike[str], posterior: Posterior) -> None:
    """Write the distribution, and all weights that are not random."""
    kind = type(posterior.distribution).__name__
    if kind not in SAVED:
        raise ValueError(f"Expected one of {', '.join(SAVED)} to save, but got {kind}: save draws of it, as Particles.")
    own = JointModel(posterior.model, posterior.likelihood).own()
    tensors = {f"distribution.{name}": value for name, value in posterior.distribution.tensors().items()}
    tensors |= {f"rest.{name}": value for name, value in own.items() if name not in posterior.layout.names}
    known = prevalence_facts(posterior.prevalence) if isinstance(posterior.prevalence, Prevalence) else {}
    facts = {
        **dict.fromkeys(PREVALENCE),
        **known,
        "likelihood": _likelihood_facts(posterior.likelihood, posterior.prevalence),
        "distribution": kind,
        "names": list(posterior.layout.names),
        "shapes": [list(shape) for shape in posterior.layout.shapes],
        "dropout": posterior.dropout,
        "linearised": posterior.linearised,
        # in the form it is read: numeric keys become strings, which sort differently in the digest
        "record": {name: json.loads(json.dumps(value)) for name, value in posterior.record.items() if _is_json(name, value)},
    }
    write_file(_FORMAT, path, tensors, facts)


def _read(
    path: str | os.PathLike[str],
    model: nn.Module,
    likelihood: Likelihood | None,
    given: Prevalence | ContinuousPrevalence | None,
) -> tuple[Any, ...]:
    """Return the arguments of `Posterior`; the model and the likelihood are not changed."""
    tensors, facts = read_file(_FORMAT, path)
    prevalence = _prevalence_of(facts, given)
    if likelihood is None and isinstance(prevalence, Prevalence):
        likelihood = Categorical(prevalence.num_classes)
    own = _likelihood_facts(likelihood, prevalence)
    if likelihood is None or facts["likelihood"] != own:
        raise ValueError(
            f"Expected the likelihood that the posterior was saved with, {facts['likelihood']}, but got {own}: "
            "pass `likelihood=…` to load."
        )
    check_pair(likelihood, prevalence)
    layout = Layout(tuple(facts["names"]), tuple(tuple(shape) for shape in facts["shapes"]))
    weights = JointModel(model, likelihood).own()
    check_weights(layout, weights)
    device = first_float(model, torch.empty(0)).device
    distribution = saved_distribution(facts["distribution"], _under("distribution.", tensors, device))
    rest = _under("rest.", tensors, device)
    check_fit(rest, {name: value for name, value in weights.items() if name not in layout.names})
    how = facts["dropout"], facts["record"], facts["linearised"]
    return model, prevalence, likelihood, distribution, layout, rest, *how


def _prevalence_of(
    facts: Mapping[str, Any], given: Prevalence | ContinuousPrevalence | None
) -> Prevalence | ContinuousPrevalence:
    if facts["population"] is not None and given is None:
        return saved_prevalence(facts)
    if facts["population"] is None and isinstance(given, ContinuousPrevalence):
        return given
    wanted = "no `prevalence` for classes" if given is not None else "`prevalence`, a ContinuousPrevalence, for a density"
    raise ValueError(
        f"Expected {wanted}, but got {type(given).__name__}: the file has that of classes, and cannot have a density's."
    )


def _likelihood_facts(likelihood: Likelihood | None, prevalence: Prevalence | ContinuousPrevalence) -> dict[str, Any]:
    if isinstance(prevalence, Prevalence):
        return {"name": type(likelihood).__name__, "levels": prevalence.num_classes}
    return {"name": type(likelihood).__name__, "outputs": None if likelihood is None else likelihood.num_outputs}


def _under(prefix: str, tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value.to(device) for name, value in tensors.items() if name.startswith(prefix)}


def _is_json(name: object, value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return isinstance(name, str)
