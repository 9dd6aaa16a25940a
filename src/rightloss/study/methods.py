"""The losses that a study compares, by the names that users type.

Stage: name → `Method`: a loss with its marginal, the mix that its logits are for, and whether its predictions are corrected
afterwards; a start by name → the classes that the untrained net predicts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import nn

from ..likelihoods import Likelihood
from ..losses import InformationGainLoss, LogitAdjustedLoss, LogLikelihoodLoss, WeightedLoss
from ..marginals import AuxiliaryMarginal, BatchMarginal, Marginal, RunningMarginal
from ..prevalence import Prevalence

STARTS = ("population", "equal")  # the mix that a loss's logits are for, or equal classes
Loss = InformationGainLoss | WeightedLoss | LogitAdjustedLoss | LogLikelihoodLoss


@dataclass(frozen=True)
class Method:
    """A loss with its marginal, the mix that its logits are for, and whether its predictions are corrected afterwards.

    Attributes:
        title: in tables.
        short: the same in fewer words, for figures.
        mix: of the classes that its logits are for.
        rival: the loss's class; None for the information gain.
        published: the information gain in the mix π, without evidence, with the minibatch's own marginal by default.
        marginal: output layer → another marginal than the loss's own.
        corrected: whether predictions are moved from ρ to π after training.
        labelled_only: whether unlabelled rows are withheld from a loss that could learn from them.
    """

    title: str
    short: str
    mix: Literal["population", "sampling"] = "population"
    rival: type[WeightedLoss | LogitAdjustedLoss | LogLikelihoodLoss] | None = None
    published: bool = False
    marginal: Callable[[nn.Module], Marginal] | None = None
    corrected: bool = False
    labelled_only: bool = False

    @property
    def takes_unlabelled(self) -> bool:
        """Whether it learns from unlabelled rows, if there are any."""
        return self.rival in (None, LogitAdjustedLoss) and not self.labelled_only

    @property
    def weighs_unlabelled(self) -> bool:
        """Whether their mass matters: in the published form p(y|w) is computed over them, whatever their number."""
        return self.takes_unlabelled and not self.published

    def marginal_for(self, head: nn.Module) -> Marginal | None:
        """Return the marginal for a net with this output layer; None for the loss's own."""
        return None if self.marginal is None else self.marginal(head)

    @property
    def takes_evidence(self) -> bool:
        return self.rival is None and not self.published

    def loss(
        self,
        prevalence: Prevalence,
        likelihood: Likelihood,
        marginal: Marginal | None = None,
        unlabelled_weight: float | None = None,
    ) -> Loss:
        """Return the loss, with its own marginal unless one is given, and without monitoring: results are checked later."""
        loss: Loss
        if self.rival is not None:
            loss = self.rival(prevalence, likelihood)
        elif self.published:
            loss = InformationGainLoss.as_published(prevalence, likelihood, marginal=marginal or BatchMarginal())
        else:
            loss = InformationGainLoss(prevalence, likelihood, marginal)
        if unlabelled_weight is not None:
            assert isinstance(loss, InformationGainLoss | LogitAdjustedLoss)
            loss.unlabelled_weight = unlabelled_weight
        loss.monitor = None
        return loss

    def reference(self, prevalence: Prevalence) -> np.ndarray | None:
        """Return r; None for the sampled mix."""
        return prevalence.population if self.published else None

    def start(self, prevalence: Prevalence, start: str = "population") -> Prevalence:
        """Return the classes that the untrained net predicts: those its logits are for, or equal ones."""
        if start == "equal":
            return Prevalence(np.full(prevalence.num_classes, 1 / prevalence.num_classes))
        return prevalence if self.mix == "population" else Prevalence(prevalence.sampling)


METHODS: dict[str, Method] = {
    "information-gain": Method("information gain (default)", "information gain"),
    "published": Method("information gain as published", "as published", published=True),
    "published-running": Method(
        "as published, running marginal", "as published, running", published=True, marginal=lambda head: RunningMarginal()
    ),
    "published-network": Method(
        "as published, marginal network", "as published, network", published=True, marginal=AuxiliaryMarginal
    ),
    "weighted": Method("weighted loss", "weighted", rival=WeightedLoss),
    "logit-adjusted": Method("logit-adjusted loss", "logit-adjusted", rival=LogitAdjustedLoss),
    "corrected": Method("cross-entropy, then corrected", "corrected after", "sampling", LogLikelihoodLoss, corrected=True),
    "plain": Method("cross-entropy as it is", "cross-entropy", "sampling", LogLikelihoodLoss),
    "logit-adjusted-labelled": Method(
        "logit-adjusted loss, labelled only", "logit-adj., labelled only", rival=LogitAdjustedLoss, labelled_only=True
    ),
}
DEFAULT, ADJUSTED, ADJUSTED_LABELLED = "information-gain", "logit-adjusted", "logit-adjusted-labelled"
# If every row is labelled: the other methods equal one of these.
FULLY_LABELLED = tuple(name for name, method in METHODS.items() if not method.labelled_only)
EVIDENCE = 1.0  # κ of the default, that of a known prevalence
