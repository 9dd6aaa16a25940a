"""What users give to `log_posterior`, checked.

Stage: loss, prevalence, likelihood, marginal, reference, pool → the loss minus which is the log-likelihood, and the pool.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..log_probs import as_input, tensor_of
from ..losses import InformationGainLoss, LogitAdjustedLoss, LogLikelihoodLoss, WeightedLoss
from ..marginals import AuxiliaryMarginal, PoolMarginal
from ..prevalence import Prevalence
from .minibatches import check_mix
from .standing import Pool
from .steps import ordinary


def check_source(marginal: Any, model: nn.Module) -> None:
    """A marginal that asks another net than the one whose weights are inferred would answer for that one."""
    asked: Any = marginal.model if isinstance(marginal, PoolMarginal) else None
    asked = marginal.source if isinstance(marginal, AuxiliaryMarginal) else asked
    own = {id(value) for value in model.parameters()}
    if isinstance(asked, nn.Module) and not all(id(value) in own for value in asked.parameters()):
        raise ValueError(
            f"Expected {type(marginal).__name__} to ask the model whose weights are inferred, but got another net in it: "
            "make it with this model (or a part of it), not with a copy."
        )


def criterion_of(loss: Any, prevalence: Any, likelihood: Any, marginal: Any, reference: Any, pool: Any) -> Any:
    if loss is None or loss is InformationGainLoss:
        if pool is not None and marginal is not None:
            raise ValueError("Expected one of `marginal` and `pool`, but got both: over a pool p(y|w) is exact.")
        return InformationGainLoss(prevalence, likelihood, marginal, ordinary(reference))
    if not isinstance(loss, type) or not issubclass(loss, WeightedLoss | LogitAdjustedLoss | LogLikelihoodLoss):
        raise ValueError(f"Expected `loss` to be a class such as WeightedLoss, but got {loss!r}: give the class, no brackets.")
    given = [name for name, value in (("marginal", marginal), ("reference", reference), ("pool", pool)) if value is not None]
    if given:
        raise ValueError(f"Expected no {' or '.join(given)} with {loss.__name__}, but got one: it has no marginal.")
    return loss(prevalence, likelihood, nonfinite="nan")


def check_population(criterion: Any) -> None:
    if not criterion._setting(torch.empty(0)).at_population:
        raise ValueError(
            "Expected reference=prevalence.population with an unlabelled pool, but got another mix: such data show the "
            "population's mix alone; give a labelled pool, or that reference."
        )


def checked_pool(pool: Any, criterion: Any, model: nn.Module) -> Pool:
    if not isinstance(criterion.prevalence, Prevalence):
        raise ValueError("Expected classes for `pool`, but the likelihood is a density: use marginal=PoolMarginal(…).")
    x, y = pool if isinstance(pool, tuple | list) and len(pool) == 2 else (pool, None)
    x = ordinary(tensor_of(as_input(x, model, torch.empty(0)), "pool"))
    if y is None:
        check_population(criterion)
        return x, None
    y = ordinary(tensor_of(y, "target")).to(x.device)
    if len(x) != len(y):
        raise ValueError(f"Expected as many inputs as labels in `pool`, but got {len(x)} and {len(y)}: is one cut off?")
    check_mix(y, criterion.prevalence)
    return x, y
