"""Predictions: tables of a model at many weights, and their average over draws, with entropies and intervals.

Stage: weights `(s, …)` by name, x → `log_probs (s, n, k)`, in blocks → `Prediction`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, jvp, vmap
from torch.nn.modules.dropout import _DropoutNd

from ..arrays import array_of
from ..likelihoods import Likelihood
from ..losses.batch import full_precision
from ..tensors import by_cell
from .distributions import Layout
from .priors import LIKELIHOOD

_MOST = 1 << 20  # draws of π
_NUMBERS = 1 << 24  # numbers in memory at a time


@dataclass(frozen=True)
class Prediction:
    """The posterior predictive: the average of the draws, and their disagreement.

    With p_s(k|x) of draw s and p = avg_s p_s, the entropy of p is the mean entropy of the draws plus the information I that the
    label of x would give about the weights:

        H[p] = avg_s H[p_s] + I,  I ≥ 0.

    More training data reduce only I. Entropies are in nats. Functions with an argument `log_probs`, such as `retarget` and
    `evaluate`, also accept a prediction.

    Attributes:
        log_probs: log avg_s p_s(k|x), `(n, k)` or dense `(n, k, h, w, …)`; in regression the log-density at m values, `(n, m)`.
        entropy: H[p], `(n,)` or `(n, h, w, …)`; None in regression, like the other two.
        data_entropy: avg_s H[p_s], the uncertainty that remains if the weights are known (aleatoric).
        model_entropy: I, the uncertainty due to unknown weights (epistemic).
        low: lower limit of the central interval of p_s(k|x) over the draws, a probability, class by class, in the shape of
            `log_probs`; None if no interval was requested. With an uncertain population, π is drawn as well. For one draw, such
            as MAP, and a certain population, it is p itself.
        high: upper limit.

    Examples:
        >>> import torch
        >>> from rightloss.inference.prediction import averaged
        >>> two_draws = torch.tensor([[[0.9, 0.1]], [[0.1, 0.9]]]).log()
        >>> prediction = averaged([two_draws], over_classes=True)
        >>> prediction.log_probs.exp()
        tensor([[0.5000, 0.5000]])
        >>> bool(prediction.model_entropy > prediction.data_entropy)  # each draw is sure, of something else
        True
    """

    log_probs: Any  # arrays if x is an array, else tensors
    entropy: Any = None
    data_entropy: Any = None
    model_entropy: Any = None
    low: Any = None
    high: Any = None

    def as_given(self, x: Any) -> Prediction:
        """Return the prediction with arrays if x is an array, else with tensors."""
        if not isinstance(x, np.ndarray):
            return self
        parts = (getattr(self, field.name) for field in fields(self))
        return Prediction(*(None if part is None else array_of(part, "log_probs") for part in parts))


def averaged(
    tables: Iterable[Float[Tensor, "m n k *dense"]],
    over_classes: bool,
    level: float | None = None,
    log_ratios: Callable[[int], Float[Tensor, "d k"]] | None = None,
) -> Prediction:
    """Return the prediction of all draws in `tables`, in blocks of any size; sums are in float64.

    With `level`, also return the limits of the interval with this fraction of the draws; then all tables stay in memory.
    `log_ratios` draws log π − log π̄ for an uncertain population, to which the interval moves the draws, each several times.
    """
    log_sum, entropies, count, kept = None, torch.zeros(()), 0, []
    for table in tables:
        kept += [] if level is None else [table]
        dtype, wide = table.dtype, table.double()
        part = torch.logsumexp(wide, 0)
        log_sum = part if log_sum is None else torch.logaddexp(log_sum, part)
        if over_classes:
            entropies = _entropy(wide, 2).sum(0) + entropies.to(wide)
        count += len(table)
    assert log_sum is not None, "no draws"
    log_probs = log_sum - math.log(count)
    ends = (None, None) if level is None else _central(torch.cat(kept), level, log_ratios)
    if not over_classes:
        return Prediction(log_probs.to(dtype), low=ends[0], high=ends[1])
    total, data = _entropy(log_probs, 1), entropies / count
    gain = total - data
    # negative only by rounding, because entropy is concave
    gain = torch.where(gain.abs() < 1e-6, gain.clamp_min(0), gain)
    return Prediction(*(each.to(dtype) for each in (log_probs, total, data, gain)), *ends)


def _central(
    tables: Float[Tensor, "s n k *dense"], level: float, log_ratios: Callable[[int], Tensor] | None
) -> tuple[Tensor, Tensor]:
    """Return the quantiles (1 ± level)/2 over the draws, interpolated; torch.quantile fails for large tables."""
    rows = tables.cpu().movedim(2, -1)
    shape, rows = rows.shape[1:], rows.flatten(1, -2)
    moves = torch.zeros(1, len(rows), 1, 1)
    if log_ratios is not None:
        times = math.ceil(min(200 / (1 - level), _MOST) / len(rows))  # a hundred beyond each limit, as in retarget_interval
        moves = log_ratios(times * len(rows)).to(rows).view(times, len(rows), 1, -1)

    def quantiles(block: Tensor) -> Tensor:
        drawn = block.exp() if log_ratios is None else torch.softmax(block + moves, -1).flatten(0, 1)
        return torch.from_numpy(np.quantile(drawn.numpy(), [(1 - level) / 2, (1 + level) / 2], axis=0))

    blocks = rows.split(max(1, _NUMBERS // (moves.shape[0] * rows[:, 0].numel())), 1)
    low, high = torch.cat([quantiles(block) for block in blocks], 1).unflatten(1, shape[:-1]).movedim(-1, 2).to(tables)
    return low, high


def _entropy(log_probs: Tensor, dim: int) -> Tensor:
    """Return −Σ_k p_k log p_k, with 0 for a class of probability 0."""
    return torch.special.entr(log_probs.exp()).sum(dim)


class JointModel(nn.Module):
    """x → table. Weights have their names in the model; those of the likelihood have the prefix "likelihood."."""

    def __init__(self, model: nn.Module, likelihood: Likelihood) -> None:
        super().__init__()
        self.model, self.likelihood = model, likelihood

    def forward(self, x: Any, support: Tensor | None = None) -> Float[Tensor, "n k *dense"]:
        return _table(self.likelihood, self.model(x), support)

    def own(self, unsaved: bool = False) -> dict[str, Tensor]:
        """Return parameters and buffers by name; tied ones once; those that are not in a state dict only if `unsaved`."""
        named, kept = dict([*self.named_parameters(), *self.named_buffers()]), self.state_dict()
        return {name.removeprefix("model."): value.detach() for name, value in named.items() if unsaved or name in kept}

    def put(self, weights: Mapping[str, Tensor]) -> None:
        """Set weights to these values, in place."""
        own = self.own()
        check_weights(Layout.of(weights), own)
        with torch.no_grad():
            for name, value in weights.items():
                own[name].copy_(value)

    def wake_dropout(self) -> int:
        """Switch on dropout only, and return the number of dropout modules."""
        found = [part for part in self.modules() if isinstance(part, _DropoutNd | nn.MultiheadAttention | nn.RNNBase)]
        live = [part for part in found if (part.p if isinstance(part, _DropoutNd) else part.dropout) > 0]
        for part in live:
            part.training = True
        return len(live)

    def at(self, weights: Mapping[str, Tensor], x: Any, support: Tensor | None = None) -> Float[Tensor, "n k *dense"]:
        """Return the table with these weights instead of its own."""
        return functional_call(self, inner(weights), (x, support))


class LinearisedModel(nn.Module):
    """A network linearised in the model's weights around its own weights w̄:

        f(x, w̄) + J(x) (w − w̄),  J = ∂f/∂w at w̄.

    The likelihood is not changed. Weights are given as differences from w̄, because in narrow dtypes a difference computed here
    would be mostly rounding.
    """

    def __init__(self, net: JointModel) -> None:
        super().__init__()
        self.net = net

    def at(self, moves: Mapping[str, Tensor], x: Any, support: Tensor | None = None) -> Float[Tensor, "n k *dense"]:
        """Return the table with the weights w̄ + `moves`."""
        own = {name: value.to(moves[name].device) for name, value in self.net.own().items() if name in moves}
        inside = {name: value for name, value in own.items() if not name.startswith(LIKELIHOOD)}
        outputs = self._outputs(inside, {name: moves[name] for name in inside}, x) if inside else self.net.model(x)
        likelihood = {name: value + moves[name] for name, value in own.items() if name not in inside}
        return functional_call(JointModel(nn.Identity(), self.net.likelihood), likelihood, (outputs, support))

    def _outputs(self, own: dict[str, Tensor], moves: dict[str, Tensor], x: Any) -> Tensor:
        def outputs(weights: dict[str, Tensor]) -> Tensor:
            return functional_call(self.net.model, weights, (x,))

        try:
            value, slope = jvp(outputs, (own,), (moves,))[:2]
        except RuntimeError as error:
            outputs(own)  # errors of the model or x itself are raised here
            raise ValueError(
                f"Expected a model with forward derivatives to linearise, but torch.func.jvp raised {str(error)[:200]!r}: "
                "predict without linearisation, linearised=False."
            ) from error
        return full_precision(value) + slope


class Runner:
    """Evaluate tables at many weights: a block together if the model supports `torch.func.vmap`, else one by one.

    Args:
        net: the network, in the required mode.
        together: False to always go one by one, as random masks require, with a seed for each draw.
        seeds: a generator of the seeds.
    """

    def __init__(self, net: JointModel | LinearisedModel, together: bool, seeds: torch.Generator) -> None:
        self.net, self.together, self.seeds = net, together, seeds

    def __call__(self, weights: Mapping[str, Tensor], x: list[Any], support: Tensor | None) -> Float[Tensor, "m n k *dense"]:
        """Return the tables of a block of weights `(m, …)` for the parts of x, concatenated."""
        if self.together:
            try:
                return torch.cat([self._at_once(weights, each, support) for each in x], 1)
            except (RuntimeError, TypeError, ValueError):
                self.together = False  # errors of the model or x are raised there as well
        return self._one_by_one(weights, x, support)

    def _at_once(self, weights: Mapping[str, Tensor], x: Any, support: Tensor | None) -> Tensor:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")
            return vmap(partial(self.net.at, x=x, support=support))(dict(weights))

    def _one_by_one(self, weights: Mapping[str, Tensor], x: list[Any], support: Tensor | None) -> Tensor:
        found = []
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            for row in range(len(next(iter(weights.values())))):
                torch.manual_seed(int(torch.randint(2**62, (), generator=self.seeds, device=self.seeds.device)))
                own = {name: value[row] for name, value in weights.items()}
                found.append(torch.cat([self.net.at(own, each, support) for each in x]))
        return torch.stack(found)


class AveragedModel(nn.Module):
    """x → log-probabilities averaged over fixed weights, always in eval mode.

    `Categorical` accepts them as logits, so a `PrevalenceLayer` around it can be exported if the model can.

    Args:
        net: the net.
        draws: its random weights, `(s, …)` by name, in the form of `at`.
    """

    def __init__(self, net: JointModel | LinearisedModel, draws: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.net = net.requires_grad_(False)
        self.names = tuple(draws)
        for number, value in enumerate(draws.values()):
            self.register_buffer(f"draws_{number}", value)
        self.eval()

    def forward(self, x: Any, support: Tensor | None = None) -> Float[Tensor, "n k *dense"]:
        stacks = [self.get_buffer(f"draws_{number}") for number in range(len(self.names))]
        weights = [dict(zip(self.names, rows, strict=True)) for rows in zip(*(each.unbind() for each in stacks), strict=True)]
        tables = torch.stack([self.net.at(each, x, support) for each in weights])
        return torch.logsumexp(tables, 0) - math.log(len(weights))

    def train(self, mode: bool = True) -> AveragedModel:
        return super().train(False)


def inner(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights by the names of `JointModel`."""
    return {name if name.startswith(LIKELIHOOD) else f"model.{name}": value for name, value in weights.items()}


def check_weights(layout: Layout, own: Mapping[str, Tensor]) -> None:
    """Raise a ValueError if the weights `own` of a network lack one of the layout's, or have another shape."""
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        if name not in own or tuple(own[name].shape) != tuple(shape):
            found = f"has it as {tuple(own[name].shape)}" if name in own else "has no such weight"
            raise ValueError(
                f"Expected a model with `{name}` of shape {tuple(shape)}, but it {found}: give one with the architecture of "
                f"the trained one."
            )


def check_given(given: Any, own: Mapping[str, Tensor], argument: str, sets: int = 1) -> None:
    """Raise a ValueError if `given`, of that argument, are not some of the weights `own` by name, one or `sets` of each."""
    if not isinstance(given, Mapping):
        raise ValueError(
            f"Expected `{argument}` to be weights by name, but got {type(given).__name__}: write target.parameters(), or give "
            "what a method has found, such as map_estimate(target, data)."
        )
    for name, value in given.items():
        if name not in own or value.shape not in (own[name].shape, (sets, *own[name].shape)):
            wanted = f"of shape {tuple(own[name].shape)}" if name in own else f"among {list(own)[:10]}"
            raise ValueError(
                f"Expected `{argument}` to have weights {wanted}, but got {name!r} of shape {tuple(value.shape)}: take those "
                "of target.parameters()."
            )


def _table(likelihood: Likelihood, outputs: Tensor, support: Tensor | None) -> Float[Tensor, "n k *dense"]:
    if outputs.ndim == 1 and likelihood.num_outputs == 1:
        outputs = outputs.unsqueeze(1)
    return by_cell(partial(likelihood.table, support=support), full_precision(outputs))
