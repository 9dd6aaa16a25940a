"""Check the options of `log_posterior`: the loss, the pool and the unlabelled rows.

Stage: the arguments → a loss; a pool over which p(y|w) is exact; `UnlabelledRows`, one more stream; or a ValueError.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..losses import InformationGainLoss, LogitAdjustedLoss, LogLikelihoodLoss, WeightedLoss
from ..losses.functional import check_unlabelled, usable
from ..losses.streams import PopulationRows, check_unlabelled_weight
from ..marginals import AuxiliaryMarginal, PoolMarginal
from ..marginals.pool import Pool
from ..prevalence import Prevalence
from ..tensors import as_input, tensor_of
from .minibatches import UnlabelledRows, check_mix
from .steps import ordinary, whole_number


def checked_criterion(loss: Any, prevalence: Any, likelihood: Any, marginal: Any, reference: Any, pool: Any) -> Any:
    """Return the loss, which is the negative log-likelihood."""
    if isinstance(prevalence, Prevalence) and prevalence.is_unknown:
        raise ValueError(
            "Expected a prevalence with a population in a log posterior, but got Prevalence.unknown: train with "
            "InformationGainLoss(prevalence) and `unlabelled=` first, and pass prevalence.retarget(criterion.population); or, "
            "where it is known roughly, Prevalence.dirichlet(…)."
        )
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


def is_exact(evidence: Any, criterion: Any, **others: Any) -> bool:
    """Return whether π is known exactly; the `others` are options that do not go with it."""
    if evidence is None:
        return False
    if evidence != "exact":
        raise ValueError(
            f"Expected `evidence` of log_posterior to be 'exact' or None, but got {evidence!r}: a number is an argument of "
            "the prevalence, Prevalence(…, evidence=0.5)."
        )
    given = [name for name, value in others.items() if value is not None]
    if given or not isinstance(criterion.prevalence, Prevalence):
        names = " or ".join(given) or "regression"
        raise ValueError(
            f'Expected no {names} with evidence="exact", but got one: its likelihood has a mix of its own over the labelled '
            "rows, for classes; leave out one of the two."
        )
    return True


def checked_rows(
    pool: Any, unlabelled: Any, weight: Any, batch_size: Any, criterion: Any, model: nn.Module, marginal: Any
) -> tuple[Pool | None, UnlabelledRows | None]:
    """Return the pool, and the unlabelled rows; if r = π these *are* the pool.

    Args:
        pool: the argument of `log_posterior`, like the following ones.
        unlabelled: x.
        weight: λ.
        batch_size: of the unlabelled rows.
        criterion: the loss.
        model: for which arrays become tensors.
        marginal: as given.
    """
    rows = _checked_unlabelled(unlabelled, weight, batch_size, criterion, model)
    if rows is None:
        found = None if pool is None else _checked_pool(pool, criterion, model)
        if found is None or found[1] is not None:
            usable(None, criterion.prevalence, None)  # raises the error if a class is never labelled
        return found, None
    if pool is not None:
        raise ValueError(
            "Expected one of `pool` and `unlabelled`, but got both: where r = π the unlabelled rows are the pool, and "
            "elsewhere p(y|w) is that of labelled and unlabelled rows together."
        )
    if not isinstance(criterion, InformationGainLoss) or not criterion.terms(torch.empty(0)).at_population:
        _check_minibatch_marginal(marginal)
        return None, rows
    if marginal is not None or rows.batch_size is not None:
        name = "unlabelled_batch_size" if marginal is None else "marginal"
        raise ValueError(
            f"Expected no `{name}` with unlabelled rows and r = π, but got one: p(y|w) is exact over all rows in each "
            "evaluation. If that takes too long, give fewer of them, or marginal=PoolMarginal(…) instead of `unlabelled`."
        )
    return (rows.x, None), None


def check_source(marginal: Any, model: nn.Module) -> None:
    """Raise a ValueError if a marginal uses another network than the one with the inferred weights."""
    asked: Any = marginal.model if isinstance(marginal, PoolMarginal) else None
    asked = marginal.source if isinstance(marginal, AuxiliaryMarginal) else asked
    own = {id(value) for value in model.parameters()}
    if isinstance(asked, nn.Module) and not all(id(value) in own for value in asked.parameters()):
        raise ValueError(
            f"Expected {type(marginal).__name__} to use the model with the inferred weights, but it uses another one: "
            "make it with this model (or a part of it), not with a copy."
        )


def _checked_unlabelled(
    unlabelled: Any, weight: Any, batch_size: Any, criterion: Any, model: nn.Module
) -> UnlabelledRows | None:
    """Return the rows; None if there are none with a positive weight."""
    weight = check_unlabelled_weight(weight)
    size = None if batch_size is None else whole_number(batch_size, "unlabelled_batch_size")
    if unlabelled is None:
        return None
    if not isinstance(criterion, InformationGainLoss | LogitAdjustedLoss):
        raise ValueError(
            f"Expected no `unlabelled` rows for {type(criterion).__name__}, but got some: its likelihood cannot use them; "
            "use LogitAdjustedLoss or InformationGainLoss."
        )
    x = _inputs(unlabelled, model, "unlabelled")
    if x.ndim < 1:
        raise ValueError("Expected `unlabelled` to be inputs, a row for each person, but got a number: pass x_unlabelled.")
    found = usable(PopulationRows(x, weight), criterion.prevalence, None)
    return None if found is None else UnlabelledRows(x, weight, None if size is None else min(size, len(x)))


def _check_minibatch_marginal(marginal: Any) -> None:
    if isinstance(marginal, PoolMarginal | AuxiliaryMarginal):
        raise ValueError(
            f"Expected a marginal of the minibatches with `unlabelled`, but got {type(marginal).__name__}: it has no "
            "estimate for the unlabelled stream; use RunningMarginal(), or reference=prevalence.population."
        )


def _checked_pool(pool: Any, criterion: Any, model: nn.Module) -> Pool:
    if not isinstance(criterion.prevalence, Prevalence):
        raise ValueError("Expected classes for `pool`, but the likelihood is a density: use marginal=PoolMarginal(…).")
    x, y = pool if isinstance(pool, tuple | list) and len(pool) == 2 else (pool, None)
    x = _inputs(x, model, "pool")
    if y is None:
        check_unlabelled(criterion.terms(torch.empty(0)))
        return x, None
    y = ordinary(tensor_of(y, "target")).to(x.device)
    if len(x) != len(y):
        raise ValueError(f"Expected as many inputs as labels in `pool`, but got {len(x)} and {len(y)}: is one cut off?")
    check_mix(y, criterion.prevalence)
    return x, y


def _inputs(x: Any, model: nn.Module, name: str) -> Tensor:
    result: Tensor = ordinary(tensor_of(as_input(x, model, torch.empty(0)), name))
    return result
