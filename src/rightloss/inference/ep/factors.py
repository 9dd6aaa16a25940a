"""The posterior's factors, for a model whose last layer alone is random.

Stage: target, net, data → examples and classes, each with a Gaussian site that still says nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ...losses import LogitAdjustedLoss, LogLikelihoodLoss, WeightedLoss
from ...losses.batch import class_batch
from ...losses.gain import PriorTerms
from ...prevalence import Prevalence
from ..nets import Net
from ..target import LogPosterior
from .derivatives import table_of
from .heads import Head
from .natural import Natural
from .points import normal_points
from .sites import MarginalSites, MarginalTangents, Rows, RowSites, Sites, TiedSites

Group = list[tuple[Sites, float]]


@dataclass(frozen=True, eq=False)
class Factors:
    """What is multiplied with the prior: the examples, and the marginal, which rivals do not have."""

    examples: RowSites | list[TiedSites]
    marginal: MarginalSites | None

    def groups(self, size: int | None) -> Iterator[Group]:
        """Sites that are set together, and the share of its way that each goes.

        The marginal's go along with the examples', for in the intercept they nearly cancel.
        """
        if isinstance(self.examples, RowSites):
            parts: list[list[Sites]] = [[part] for part in self.examples.parts(size)]
        else:
            parts = [list(self.examples)]
        for part in parts:
            yield [(sites, 1.0) for sites in part] + ([] if self.marginal is None else [(self.marginal, 1 / len(parts))])

    def tangents(self) -> Group:
        """The same sites, to be set at the mean alone.

        The marginal's have no precision then. So the product always is a Gaussian, whose mean goes to the posterior's mode.
        """
        if isinstance(self.examples, RowSites):
            group: Group = [(RowSites(self.examples.rows.at_mean(), self.examples.own), 1.0)]
        else:
            group = [(TiedSites(each.rows.at_mean(), each.own), 1.0) for each in self.examples]
        return group + ([] if self.marginal is None else [(MarginalTangents(self.marginal), 1.0)])


def factors_of(
    target: LogPosterior, net: Net, head: Head, data: tuple[Tensor, Tensor], stochastic: bool, draws: int, seed: int
) -> Factors:
    features, votes = _features_and_votes(target, net, head, *data)
    order = torch.randperm(len(votes), generator=torch.Generator().manual_seed(seed)).to(votes.device)
    features, votes = features[order], votes[order]  # so that any part of the examples has their mix of classes
    setting = target.terms(features)
    likelihood = copy.deepcopy(net.likelihood)
    likelihood = likelihood.double() if isinstance(likelihood, nn.Module) else likelihood
    log_offset, worth = _mix(target, setting)
    table = table_of(likelihood, log_offset)
    assert target.num_data is not None
    scale = target.num_data / len(features)
    outputs, weights = head.module.out_features, head.layout.size
    points = normal_points(outputs, draws, seed).to(features.device)
    rows = Rows(features, scale * votes * worth, table, points)
    examples: RowSites | list[TiedSites] = RowSites(rows, _flat(features, len(features), outputs))
    if stochastic:
        main = torch.where(features.any(1), votes.argmax(1), -1)  # outputs of 0 whatever w: such a factor is constant
        examples = [TiedSites(rows.where(main == k), _flat(features, weights)) for k in main.unique() if k >= 0]
    if not target.gains:
        return Factors(examples, None)
    exponents = -scale * votes.sum(0) + target.num_data * setting.evidence * setting.reference
    pool, log_weights = _pool(target, net, head, setting, features, votes)
    points = normal_points(weights, draws, seed).to(features.device)
    own = _flat(features, len(exponents), weights)
    return Factors(examples, MarginalSites(pool, log_weights, exponents, table, points, own))


def _mix(target: LogPosterior, setting: PriorTerms) -> tuple[Tensor | None, Tensor | float]:
    """In which mix an example's factor is taken, as an offset of the table, and to which power, by class."""
    if target.gains:
        return setting.log_offset, 1.0
    if isinstance(target.criterion, WeightedLoss):
        assert setting.log_importance is not None
        return None, setting.log_importance.exp()
    if isinstance(target.criterion, LogitAdjustedLoss):
        return setting.log_adjust, 1.0
    if isinstance(target.criterion, LogLikelihoodLoss):
        return None, 1.0
    raise ValueError(
        f"Expected one of the library's losses, whose factors are known, but got {type(target.criterion).__name__}: "
        "laplace, variational and sghmc take any."
    )


def _features_and_votes(
    target: LogPosterior, net: Net, head: Head, x: Tensor, y: Tensor | None
) -> tuple[Float[Tensor, "n p"], Float[Tensor, "n k"]]:
    """Of the examples that count; without labels, all do, and have no votes."""
    features, outputs = head.features(net.model, x)
    assert isinstance(target.prevalence, Prevalence)
    classes = target.prevalence.num_classes
    labels = outputs.new_zeros(len(outputs), dtype=torch.long) if y is None else y
    found = class_batch(outputs, labels, target.likelihood, classes, -100, "raise").labels
    votes = F.one_hot(found.index, classes) if found.votes is None else found.votes  # type: ignore[arg-type]
    counts = slice(None) if found.valid is None else found.valid
    return features[counts], votes[counts].to(features)


def _pool(
    target: LogPosterior, net: Net, head: Head, setting: PriorTerms, features: Tensor, votes: Tensor
) -> tuple[Float[Tensor, "n p"], Float[Tensor, " n"]]:
    """Features of the data over which p(k|w) is the mean of β p(k|x,w), and log(β/n)."""
    labelled = True
    if target.pool is not None:
        x, y = target.pool
        features, votes = _features_and_votes(
            target, net, head, x.to(features.device), y if y is None else y.to(features.device)
        )
        labelled = y is not None
    weights = votes @ (setting.reference / setting.sampling) if labelled else features.new_ones(len(features))
    return features, (weights / len(features)).log()


def _flat(like: Tensor, *shape: int) -> Natural:
    """Sites that say nothing."""
    return Natural(like.new_zeros(*shape, shape[-1]), like.new_zeros(*shape))
