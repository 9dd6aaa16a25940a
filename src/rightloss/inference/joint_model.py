"""Model and likelihood as one module, evaluated at many weights.

Stage: weights `(s, …)` by name, x → `log_probs (s, n, k)`, or their average.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, jvp, vmap
from torch.nn.modules.dropout import _DropoutNd

from ..likelihoods import Likelihood
from ..losses.batch import full_precision
from ..tensors import by_cell
from .distributions import Layout
from .priors import LIKELIHOOD


class JointModel(nn.Module):
    """x → table. Weights have their names in the model; those of the likelihood have the prefix "likelihood."."""

    def __init__(self, model: nn.Module, likelihood: Likelihood) -> None:
        super().__init__()
        self.model, self.likelihood = model, likelihood

    def forward(self, x: Any, support: Tensor | None = None) -> Float[Tensor, "n k *dense"]:
        return _table(self.likelihood, self.model(x), support)

    def own(self) -> dict[str, Tensor]:
        """Return parameters and buffers by name; tied ones once, without those that are not in a state dict."""
        kept = self.state_dict()
        named = [*self.named_parameters(), *self.named_buffers()]
        return {name.removeprefix("model."): value.detach() for name, value in named if name in kept}

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


def _table(likelihood: Likelihood, outputs: Tensor, support: Tensor | None) -> Float[Tensor, "n k *dense"]:
    if outputs.ndim == 1 and likelihood.num_outputs == 1:
        outputs = outputs.unsqueeze(1)
    return by_cell(partial(likelihood.table, support=support), full_precision(outputs))
