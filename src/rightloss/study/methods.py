"""The losses that a study compares, by the names that users type.

Stage: name → `Method`: a loss, where its output bias starts, and whether its predictions are corrected afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ..likelihoods import Likelihood
from ..losses import InformationGainLoss, LogitAdjustedLoss, LogLikelihoodLoss, WeightedLoss
from ..marginals import Marginal
from ..prevalence import Prevalence

Start = Literal["population", "sampling", "torch"]
Loss = InformationGainLoss | WeightedLoss | LogitAdjustedLoss | LogLikelihoodLoss


@dataclass(frozen=True)
class Method:
    """A loss, where its output bias starts, and whether its predictions are corrected afterwards.

    The bias starts at the classes that the loss's logits are for: those of the population, or the sampled ones; in the
    published form it keeps torch's initial value.

    Attributes:
        title: in tables.
        start: of the output bias.
        rival: the loss's class; None for the information gain.
        published: the information gain in the mix π, without evidence, with the minibatch's own marginal.
        corrected: whether predictions are moved from ρ to π after training.
        labelled_only: whether unlabelled rows are withheld from a loss that could learn from them.
    """

    title: str
    start: Start
    rival: type[WeightedLoss | LogitAdjustedLoss | LogLikelihoodLoss] | None = None
    published: bool = False
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

    @property
    def takes_marginal(self) -> bool:
        return self.rival is None

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
        loss = self._loss(prevalence, likelihood, marginal)
        if unlabelled_weight is not None:
            assert isinstance(loss, InformationGainLoss | LogitAdjustedLoss)
            loss.unlabelled_weight = unlabelled_weight
        loss.monitor = None
        return loss

    def _loss(self, prevalence: Prevalence, likelihood: Likelihood, marginal: Marginal | None) -> Loss:
        if self.rival is not None:
            return self.rival(prevalence, likelihood)
        if self.published:
            return InformationGainLoss.as_published(
                prevalence, likelihood, **({} if marginal is None else {"marginal": marginal})
            )
        return InformationGainLoss(prevalence, likelihood, marginal)

    def reference(self, prevalence: Prevalence) -> Tensor | None:
        """Return r; None for the sampled mix."""
        return prevalence.population if self.published else None


METHODS: dict[str, Method] = {
    "information-gain": Method("information gain (default)", "population"),
    "published": Method("information gain as published", "torch", published=True),
    "weighted": Method("weighted loss", "population", WeightedLoss),
    "logit-adjusted": Method("logit-adjusted loss", "population", LogitAdjustedLoss),
    "corrected": Method("cross-entropy, then corrected", "sampling", LogLikelihoodLoss, corrected=True),
    "plain": Method("cross-entropy as it is", "sampling", LogLikelihoodLoss),
    "logit-adjusted-labelled": Method(
        "logit-adjusted loss, labelled only", "population", LogitAdjustedLoss, labelled_only=True
    ),
}
DEFAULT, ADJUSTED, ADJUSTED_LABELLED = "information-gain", "logit-adjusted", "logit-adjusted-labelled"
# If every row is labelled: the other methods equal one of these.
FULLY_LABELLED = tuple(name for name, method in METHODS.items() if not method.labelled_only)
EVIDENCE = 1.0  # κ of the default, that of a known prevalence
