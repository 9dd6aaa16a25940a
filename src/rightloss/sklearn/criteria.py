"""Make a loss by its name, and apply it to rows with weights.

Stage: a loss's name, a `Prevalence` → a loss module; outputs, labels and row weights → one number with a gradient.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..likelihoods import Likelihood
from ..losses import InformationGainLoss, LogitAdjustedLoss, LogLikelihoodLoss, WeightedLoss
from ..losses.batch import Labels
from ..losses.gain import at_reference, example_log_weights, information_gain, log_sum
from ..marginals import BatchMarginal, MinibatchEstimate, RunningMarginal, with_minibatch_gradient
from ..prevalence import Prevalence, frequencies
from .labelled_rows import LabelledRows, soft_row_labels
from .population import by_class

LossName = Literal["information_gain", "as_published", "logit_adjusted", "weighted", "log_likelihood"]
LOSSES: tuple[LossName, ...] = ("information_gain", "as_published", "logit_adjusted", "weighted", "log_likelihood")
Criterion = InformationGainLoss | LogitAdjustedLoss | WeightedLoss | LogLikelihoodLoss


def reference_mix(reference: Any, prevalence: Prevalence, classes: np.ndarray) -> Tensor | None:
    """Return r (K,); None for the sampled mix. `reference` is None, "population", or a mix in any form."""
    if reference is None:
        return None
    if isinstance(reference, str):
        if reference != "population":
            raise ValueError(f"Expected `reference` to be None, 'population' or a mix, but got {reference!r}: choose one.")
        return prevalence.population
    return frequencies(by_class(reference, classes, "reference"), "reference", len(classes))


def make_criterion(
    loss: LossName,
    prevalence: Prevalence,
    reference: Tensor | None,
    likelihood: Likelihood,
    full_batch: bool,
    unlabelled_weight: float | None = None,
    unlabelled_evidence: float = 0.0,
) -> Criterion:
    """Return the loss module; with `full_batch` the marginal is that of the given rows.

    The information gain at the sampled mix with κ = 1 is logit adjustment, up to the noise of the minibatches' marginals.
    So it is trained as logit adjustment, in half the time.
    """
    criterion: Criterion
    options: dict[str, Any] = {"unlabelled_weight": unlabelled_weight, "unlabelled_evidence": unlabelled_evidence}
    if loss == "logit_adjusted" or (loss == "information_gain" and reference is None and prevalence.evidence == 1):
        criterion = LogitAdjustedLoss(prevalence, likelihood, **options)
    elif loss == "information_gain":
        marginal = BatchMarginal() if full_batch else RunningMarginal()
        criterion = InformationGainLoss(prevalence, likelihood, marginal, reference, **options)
    elif loss == "as_published":
        criterion = InformationGainLoss.as_published(prevalence, likelihood, **options)
    else:
        criterion = (WeightedLoss if loss == "weighted" else LogLikelihoodLoss)(prevalence, likelihood)
    criterion.monitor = None  # ρ is the rows' own mix
    return criterion


def loss_of_rows(
    criterion: Criterion, outputs: Tensor, labels: Labels, weight: Tensor | None, unlabelled: Tensor | None = None
) -> Tensor:
    """Return the mean of the loss over weighted rows; a weight of 2 is the same row twice, in the marginal too.

    Args:
        criterion: from `make_criterion`.
        outputs: (n, m).
        labels: class numbers or votes of the rows.
        weight: (n,), positive; None if all are 1.
        unlabelled: outputs of unlabelled rows; cannot be combined with weights.
    """
    if weight is None:
        target = labels.index if labels.index is not None else labels.votes
        assert target is not None
        value: Tensor = criterion(outputs, target, unlabelled=unlabelled)
        return value
    assert unlabelled is None
    share, terms = weight / weight.mean(), criterion.terms(outputs)
    if not isinstance(criterion, InformationGainLoss):
        offset, of_class = criterion.cross_entropy_terms(terms)
        table = at_reference(criterion.likelihood.table(outputs), offset)
        return -(share * labels.gather(table if of_class is None else table * of_class)).mean()
    log_probs = at_reference(criterion.likelihood.table(outputs), terms.log_offset)
    log_beta = example_log_weights(terms, labels)
    log_weights = share.log() if log_beta is None else share.log() + log_beta
    log_m = log_sum(log_probs, labels, log_weights) - labels.log_count(log_probs)
    log_q = criterion.marginal.update(MinibatchEstimate(log_m.detach(), labels.rows))
    return -(share * information_gain(log_probs, with_minibatch_gradient(log_q, log_m), labels, terms)).mean()


class OutputLoss:
    """A loss over all rows as a function of the outputs and of the likelihood's own parameters, for `linear.lbfgs`.

    The outputs of unlabelled rows come after those of the labelled rows.
    """

    def __init__(self, criterion: Criterion, rows: LabelledRows) -> None:
        self.criterion = criterion.double()
        self.labels = soft_row_labels(rows, torch.float64)
        self.weight = None if rows.weight is None else torch.from_numpy(rows.weight)
        self.parameters = list(criterion.parameters())

    @property
    def own(self) -> np.ndarray:
        """The likelihood's own parameters, as one vector."""
        parts = [parameter.detach().numpy().ravel() for parameter in self.parameters]
        return np.concatenate([*parts, np.empty(0)])

    def set_own(self, values: np.ndarray) -> None:
        """Set the likelihood's own parameters."""
        torch.nn.utils.vector_to_parameters(torch.from_numpy(values), self.parameters)

    def __call__(self, outputs: np.ndarray, own: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Return value and gradients, as a `linear.Objective`."""
        self.set_own(own)
        tensor = torch.from_numpy(outputs).requires_grad_()
        n = self.labels.rows
        others = tensor[n:] if len(tensor) > n else None
        value = loss_of_rows(self.criterion, tensor[:n], self.labels, self.weight, others)
        by_output, *by_own = torch.autograd.grad(value, [tensor, *self.parameters])
        return (
            float(value.detach()),
            by_output.numpy(),
            np.concatenate([*(each.numpy().ravel() for each in by_own), np.empty(0)]),
        )
