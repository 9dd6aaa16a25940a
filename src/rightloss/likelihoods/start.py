"""The output layer, started at the population."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..prevalence import ContinuousPrevalence, Prevalence
from .contract import Likelihood
from .nominal import Categorical


def start_at_prevalence(
    layer: nn.Module, prevalence: Prevalence | ContinuousPrevalence, likelihood: Likelihood | None = None
) -> None:
    """Set the bias of the output layer so that, before any x is looked at, the model predicts the population.

    The bias becomes the likelihood's inverse link of π (log π for softmax, logit π for a single logit). At a small
    prevalence the loss hardly sees the intercept, so where it starts is where it stays.

    Args:
        layer: the last layer, with a `bias` of `num_outputs` entries (`nn.Linear`, `nn.Conv2d`, …).
        prevalence: π; the mean where it is uncertain.
        likelihood: as given to the loss; Categorical by default. One with parameters of its own has them set too.
    """
    likelihood = Categorical() if likelihood is None else likelihood
    bias = getattr(layer, "bias", None)
    if not isinstance(bias, Tensor):
        raise ValueError(
            f"Expected a layer with a bias, but {type(layer).__name__} has none: "
            "pass the last layer itself, made with bias=True."
        )
    size = likelihood.num_outputs
    if size is None:
        size = prevalence.num_classes if isinstance(prevalence, Prevalence) else len(bias)
    if bias.shape != (size,):
        raise ValueError(
            f"Expected a layer with {size} output(s) for {type(likelihood).__name__}, "
            f"but its bias has shape {tuple(bias.shape)}: match the layer to the likelihood, or pass `likelihood=…`."
        )
    with torch.no_grad():
        bias.copy_(likelihood.starting_outputs(prevalence))
