"""A distribution of weights → predictions.

Stage: model, likelihood, `Distribution` over some of their weights → `Posterior`: draws by name, `Prediction`s, files.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..likelihoods import Likelihood
from ..log_probs import as_input, first_float, multiply_classes, tensor_of
from ..losses.batch import check_pair
from ..prevalence import ContinuousPrevalence, Prevalence, log_mix
from ..rng import own_stream
from .contract import Distribution
from .distributions import Particles
from .layout import Layout
from .nets import AveragedNet, Net, Runner, TangentNet
from .prediction import Prediction, averaged
from .serialization import read_posterior, write_posterior
from .steps import checked_level, ordinary, whole_number

_DRAWS = 100  # where the distribution has no number of its own
_WEIGHTS, _INPUTS = 1 << 24, 1 << 20  # numbers held at once: of stacked weights, and of x times draws, before layers widen it


class Posterior:
    """What is known of the weights after training, and the predictions that follow.

    It can be made and asked under `torch.no_grad()` and `torch.inference_mode()`, too, with the same results.

    Args:
        model: x → the likelihood's outputs; copied.
        prevalence: π, ρ and κ.
        likelihood: copied, too.
        distribution: of the random weights, as flat vectors.
        layout: which weights these are: parameters and float buffers of the model by their names, the likelihood's parameters
            as "likelihood.<name>".
        fixed: values of others, where they are not the model's own.
        dropout: whether masks are drawn with the weights, as in MC dropout.
        record: what the method has to tell, such as its losses; what JSON can hold of it is saved.
        linearised: whether predictions are those of the model made linear in its weights around their mean, as a Gaussian
            from a Gauss–Newton matrix assumes it to be. The weights that `sample` gives are the same.
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
        self._net = Net(copy.deepcopy(model), copy.deepcopy(likelihood)).eval()
        self._net.put({**(fixed or {}), **self.mean})
        if dropout and self._net.wake_dropout() == 0:
            raise ValueError("Expected a model that drops out, but it has no such module: nn.Dropout(0.1) between layers.")
        if linearised:
            self._check_linear()
        self._function = TangentNet(self._net) if linearised else self._net

    @property
    def model(self) -> nn.Module:
        """A copy of the model, at the posterior mean."""
        return self._net.model

    @property
    def likelihood(self) -> Likelihood:
        """A copy of the likelihood, its own parameters at the posterior mean."""
        return self._net.likelihood

    @property
    def mean(self) -> dict[str, Tensor]:
        """Of the random weights, by name."""
        return self.layout.unflatten(self.distribution.mean)

    @property
    def standard_deviation(self) -> dict[str, Tensor]:
        """Of the random weights, by name."""
        return self.layout.unflatten(self.distribution.standard_deviation)

    @torch.inference_mode(False)
    def sample(self, n: int, generator: Any = None) -> dict[str, Tensor]:
        """n draws of the random weights, `(n, …)` by name; without a generator the same ones in every call."""
        return self.layout.unflatten(self.distribution.sample(whole_number(n, "n"), own_stream(generator)))

    @torch.inference_mode(False)
    def module(self, index: Any = None) -> nn.Module:
        """The model with the mean weights, in eval mode, or with those of draw `index` of `Particles`.

        For MAP this is the trained net. The mean of an ensemble or of chains, whose nets may have the same function in quite
        different weights, is in general no good net.
        """
        net = copy.deepcopy(self._net).eval()
        if index is not None:
            count = len(self.distribution) if isinstance(self.distribution, Particles) else 0
            if (
                not isinstance(self.distribution, Particles)
                or not isinstance(index, Integral)
                or not -count <= int(index) < count
            ):
                raise ValueError(f"Expected `index` to name a draw, but got {index} of {self._kind()}: use `sample`.")
            net.put(self.layout.unflatten(self.distribution.draws[index]))
        return net.model

    @torch.inference_mode(False)
    def predict(
        self,
        x: Any,
        samples: Any = None,
        generator: Any = None,
        support: Any = None,
        batch_size: Any = None,
        *,
        population: Any = None,
        level: float | None = None,
    ) -> Prediction:
        """Probabilities averaged over draws of the weights, p(y|x,X,Y) = ∫ p(y|x,w) p(w|X,Y) dw, at any population.

        Each draw is moved to the new mix, as `retarget` would move it, and then the average is taken: see
        [`predictive`][rightloss.predictive.predictive]. Entropies and the interval are those of the draws so moved.

        Args:
            x: what the model takes; an array becomes a tensor of the model's dtype, and what is predicted then arrays.
            samples: draws. None: all particles, or 100 of a Gaussian or with dropout.
            generator: of the draws; one of a fixed seed by default, so that equal input has equal predictions.
            support: in regression, the values of y at which the density is wanted.
            batch_size: rows of x that go through the model at once; all by default. (Dropout's masks depend on it.)
            population: where the predictions are to be used: whatever `retarget` takes as `to`, such as 0.001, K frequencies,
                or a `Prevalence`, which counts with its mean where it is uncertain; or a `PrevalenceEstimate`. None: the
                posterior's own.
            level: of `Prediction.low` and `.high`, such as 0.95. None: no interval, which needs the predictions of all draws
                at once.
        """
        level = None if level is None else checked_level(level)
        tables = self.tables(x, samples, generator, support, batch_size, population)
        return averaged(tables, self.likelihood.over_classes, level).as_given(x)

    def tables(
        self,
        x: Any,
        samples: Any = None,
        generator: Any = None,
        support: Any = None,
        batch_size: Any = None,
        population: Any = None,
    ) -> Iterator[Float[Tensor, "m n k *dense"]]:
        """log p(y|x,w) of each draw, some draws at a time; the arguments are those of `predict`."""
        if population is not None and not isinstance(self.prevalence, Prevalence):
            raise ValueError("Expected classes to move to `population`, but the likelihood is a density: leave it out.")
        stream = own_stream(generator)
        values, pieces = self._support(support), self._pieces(x, batch_size)
        count = self._count(samples)
        largest = max(each.numel() if isinstance(each, Tensor) else 1 for each in pieces)
        block = max(1, min(_WEIGHTS // max(self.layout.size, 1), _INPUTS // max(largest, 1)))
        seeds = torch.Generator(stream.device)
        seeds.set_state(stream.get_state())  # a stream beside it: the weights are the ones that `sample` gives
        runner = Runner(self._function, not self.dropout, seeds)
        tables = self._run(runner, pieces, values, self._draws(count, block, stream))
        return tables if population is None else self._moved(tables, population)

    @torch.inference_mode(False)
    def as_module(self, samples: Any = None, generator: Any = None) -> nn.Module:
        """x → averaged log-probabilities, over draws that are fixed now.

        Within `PrevalenceLayer(posterior.as_module(), prevalence)`, whose Categorical likelihood reads them as logits, it
        exports where the model does; if `linearised`, for one number of rows. In regression it is called with x and the
        support.
        """
        if self.dropout:
            raise ValueError("Expected draws that can be fixed, but dropout's masks cannot: call `predict`.")
        count = self._count(samples)
        draws = next(self._draws(count, count, own_stream(generator)))
        return AveragedNet(copy.deepcopy(self._function), self._weights(draws))

    @torch.inference_mode(False)
    def save(self, path: str | Path) -> None:
        """Everything in one safetensors file, written whole or not at all. Needs `rightloss[export]`.

        As with `PrevalenceLayer.save`, damage is found on loading, a forger is not.
        """
        write_posterior(path, self)

    @classmethod
    @torch.inference_mode(False)
    def load(
        cls, path: str | Path, model: nn.Module, likelihood: Likelihood | None = None, prevalence: Any = None
    ) -> Posterior:
        """A saved posterior. Nothing in the file is unpickled or run.

        Args:
            path: a file written by `save`.
            model: a fresh one of the same architecture and dtype, which stays as it is.
            likelihood: one like the saved posterior's; Categorical by default.
            prevalence: in regression, where files cannot hold the densities; else the file's own.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file is damaged, of another kind or of a newer version, or does not fit `model` and `likelihood`.
        """
        return cls(*read_posterior(path, model, likelihood, prevalence))

    def __repr__(self) -> str:
        ways = ", dropout" * self.dropout + ", linearised" * self.linearised
        weights = f"{self.layout.size} random weights of {type(self.model).__name__}"
        return f"Posterior({self._kind()} over {weights}{ways}, {type(self.likelihood).__name__}, {self.prevalence!r})"

    def _kind(self) -> str:
        if not isinstance(self.distribution, Particles):
            return type(self.distribution).__name__
        chains = f" in {self.distribution.chains} chains" if self.distribution.chains > 1 else ""
        return f"{len(self.distribution)} draw{'s' * (len(self.distribution) > 1)}{chains}"

    def _count(self, samples: Any) -> int | None:
        """None where every particle is to be used once."""
        if samples is not None:
            return whole_number(samples, "samples")
        return None if isinstance(self.distribution, Particles) and not self.dropout else _DRAWS

    def _draws(self, count: int | None, block: int | None, stream: torch.Generator) -> Iterator[Float[Tensor, "m d"]]:
        """The draws, at most `block` at a time (None: all)."""
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
        """By name, in the dtypes of the net, as the function to run takes them."""
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
        """Each draw's table at another population."""
        assert isinstance(self.prevalence, Prevalence)
        own = self.prevalence.population.log()
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

    def _support(self, support: Any) -> Tensor | None:
        if self.likelihood.over_classes == (support is None):
            return None if support is None else tensor_of(support, "support").to(first_float(self._net, torch.empty(0)))
        wanted, got = ("no `support` with classes", "one") if self.likelihood.over_classes else ("`support`", "none")
        raise ValueError(f"Expected {wanted}, but got {got}: it lists values of y, at which a density is wanted.")

    def _pieces(self, x: Any, batch_size: Any) -> list[Any]:
        whole = ordinary(as_input(x, self.model, torch.empty(0)))
        if batch_size is None:
            return [whole]
        if not isinstance(whole, Tensor):
            raise ValueError(f"Expected x as a tensor or an array to cut, but got {type(x).__name__}: leave out `batch_size`.")
        return list(whole.split(whole_number(batch_size, "batch_size")))


def posterior_of(
    target: Any,
    distribution: Distribution,
    layout: Layout | None = None,
    fixed: Mapping[str, Tensor] | None = None,
    dropout: bool = False,
    record: Mapping[str, Any] | None = None,
    linearised: bool = False,
) -> Posterior:
    """The posterior of a `LogPosterior` that a method has found; `layout` is by default that of all its parameters."""
    layout = Layout.of(target.parameters()) if layout is None else layout
    how = (dropout, record, linearised)
    return Posterior(target.model, target.prevalence, target.likelihood, distribution, layout, fixed, *how)
