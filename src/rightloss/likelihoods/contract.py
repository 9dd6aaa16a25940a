"""The interface of a likelihood, the checks that all likelihoods share, and the start of an output layer."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from ..prevalence import ContinuousPrevalence, Prevalence


@runtime_checkable
class Likelihood(Protocol):
    """The interface of a likelihood: outputs of a network → table of log-probabilities.

    `num_outputs` is how many numbers the network gives per example (None: as many as there are classes);
    `num_classes` how many labels there are (None: as many as in the prevalence); `over_classes` is False in regression.
    """

    @property
    def num_outputs(self) -> int | None: ...

    @property
    def num_classes(self) -> int | None: ...

    @property
    def over_classes(self) -> bool: ...

    def table(self, outputs: Tensor, support: Tensor | None = None) -> Tensor:
        """Return `table[i, j] = log p(y = s_j | x_i, w)`.

        Args:
            outputs: `(n, num_outputs)`, unnormalised.
            support: the labels s_j: class numbers (default: all, in order), in regression values of y.
        """
        ...

    def starting_outputs(self, prevalence: Prevalence | ContinuousPrevalence) -> Tensor:
        """Return the outputs `(num_outputs,)` that predict the population for every x, the inverse link of π.

        A likelihood with parameters of its own that the outputs cannot stand in for sets them here.
        """
        ...


def start_at_prevalence(
    layer: nn.Module, prevalence: Prevalence | ContinuousPrevalence, likelihood: Likelihood | None = None
) -> None:
    """Set the bias of the output layer so that, before any x is looked at, the model predicts the population.

    The bias becomes the likelihood's inverse link of π (log π for softmax, logit π for a single logit). At a small
    prevalence the loss hardly depends on the intercept, so it stays near where it starts.

    Args:
        layer: the last layer, with a `bias` of `num_outputs` entries (`nn.Linear`, `nn.Conv2d`, …).
        prevalence: π; the mean where it is uncertain.
        likelihood: as given to the loss; Categorical by default. One with parameters of its own has them set too.

    Examples:
        >>> import torch
        >>> import rightloss as rl
        >>> head = torch.nn.Linear(8, 2)
        >>> rl.start_at_prevalence(head, rl.Prevalence.binary(0.001))
        >>> head.bias.softmax(0).round(decimals=4).tolist()
        [0.9990000128746033, 0.0010000000474974513]
    """
    name = "Categorical" if likelihood is None else type(likelihood).__name__
    bias = getattr(layer, "bias", None)
    if not isinstance(bias, Tensor):
        raise ValueError(
            f"Expected a layer with a bias, but {type(layer).__name__} has none: "
            "pass the last layer itself, made with bias=True."
        )
    size = None if likelihood is None else likelihood.num_outputs
    if size is None:
        size = prevalence.num_classes if isinstance(prevalence, Prevalence) else len(bias)
    if bias.shape != (size,):
        raise ValueError(
            f"Expected a layer with {size} output(s) for {name}, but its bias has shape {tuple(bias.shape)}: "
            "match the layer to the likelihood, or pass `likelihood=…`."
        )
    with torch.no_grad():
        bias.copy_(log_population(prevalence, None, name) if likelihood is None else likelihood.starting_outputs(prevalence))


def check_outputs(outputs: Tensor, num_outputs: int, name: str) -> None:
    """Raise the ValueError for outputs of another shape than the likelihood takes."""
    if outputs.ndim != 2 or outputs.shape[1] != num_outputs:
        raise ValueError(
            f"Expected outputs of shape (n, {num_outputs}) for {name}, but got {tuple(outputs.shape)}: "
            f"give the last layer {num_outputs} output(s), or choose another likelihood."
        )


def check_levels(levels: int, name: str) -> int:
    """Return the number of levels, or raise the ValueError where it is below two."""
    if levels < 2 or levels != int(levels):
        raise ValueError(
            f"Expected {name} to have at least 2 levels, a whole number, but got {levels}: count the classes of the labels."
        )
    return int(levels)


def columns(table: Tensor, support: Tensor | None) -> Tensor:
    """Return the columns of the classes in the support."""
    if support is None:
        return table
    if support.is_floating_point():
        raise ValueError(
            f"Expected the support of a likelihood over classes to be class numbers, but got {support.dtype}: "
            "for regression use Gaussian() or FromDistribution(…)."
        )
    return table[:, support]


def log_population(prevalence: Prevalence | ContinuousPrevalence, num_classes: int | None, name: str) -> Tensor:
    """Return log π (K,) for a likelihood over classes."""
    if not isinstance(prevalence, Prevalence):
        raise ValueError(
            f"Expected a Prevalence of classes for {name}, but got {type(prevalence).__name__}: "
            "densities go with Gaussian() or FromDistribution(…)."
        )
    if num_classes is not None and prevalence.num_classes != num_classes:
        raise ValueError(
            f"Expected a prevalence of {num_classes} classes for {name}, but got {prevalence.num_classes}: "
            "the likelihood and the prevalence list the same classes."
        )
    return torch.log(prevalence.start)
