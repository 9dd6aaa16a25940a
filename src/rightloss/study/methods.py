"""The losses that a study compares, by the names that users type.

Stage: name → `Method`: a loss, where its output bias starts, and whether its predictions are corrected afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import nn

from ..likelihoods import Likelihood
from ..losses import InformationGainLoss, LogitAdjustedLoss, LogLikelihoodLoss, WeightedLoss
from ..marginals import BatchMarginal, Marginal
from ..prevalence import Prevalence

LossOf = Callable[[Prevalence, Likelihood, Marginal | None], nn.Module]
Start = Literal["population", "sampling", "torch"]


@dataclass(frozen=True)
class Method:
    """A loss, where its output bias starts, and whether its predictions are corrected afterwards.

    The bias starts at what the loss takes the logits to be, those of the population or of the sampled classes; in the published
    form it starts wherever torch puts it.

    Attributes:
        title: in tables.
        loss: prevalence, likelihood, marginal (None for its own) → the loss.
        start: of the output bias.
        corrected: whether predictions are moved from ρ to π after training.
        takes_marginal: whether the loss has a marginal.
    """

    title: str
    loss: LossOf
    start: Start
    corrected: bool = False
    takes_marginal: bool = False


def _information_gain(prevalence: Prevalence, likelihood: Likelihood, marginal: Marginal | None) -> nn.Module:
    return InformationGainLoss(prevalence, likelihood, marginal)


def _published(prevalence: Prevalence, likelihood: Likelihood, marginal: Marginal | None) -> nn.Module:
    marginal = BatchMarginal() if marginal is None else marginal
    return InformationGainLoss(prevalence, likelihood, marginal, reference=prevalence.population)


def _rival(loss: Callable[[Prevalence, Likelihood], nn.Module]) -> LossOf:
    return lambda prevalence, likelihood, marginal: loss(prevalence, likelihood)


METHODS: dict[str, Method] = {
    "information-gain": Method("information gain (default)", _information_gain, "population", takes_marginal=True),
    "published": Method("information gain as published", _published, "torch", takes_marginal=True),
    "weighted": Method("weighted loss", _rival(WeightedLoss), "population"),
    "logit-adjusted": Method("logit-adjusted loss", _rival(LogitAdjustedLoss), "population"),
    "corrected": Method("cross-entropy, then corrected", _rival(LogLikelihoodLoss), "sampling", corrected=True),
    "plain": Method("cross-entropy as it is", _rival(LogLikelihoodLoss), "sampling"),
}
DEFAULT = "information-gain"
COMPARED = tuple(name for name in METHODS if name != "plain")
