"""The intercept of an output layer: set it to π before training, or match the mean prediction to π after training.

Stage: output layer, π → its bias before training; output layer, outputs for unlabelled rows, π → its bias after training.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..arrays import rows_of
from ..prevalence import AnyPrevalence, MultilabelPrevalence, Prevalence
from ..tensors import tensor_of
from .contract import Likelihood
from .standard import Bernoulli, Categorical, Findings

STEPS, CLOSE = 100, 1e-9  # maximum number of Newton steps, and the tolerance of log m − log π


def start_at_prevalence(layer: nn.Module, prevalence: AnyPrevalence, likelihood: Likelihood | None = None) -> None:
    """Set the bias of the output layer so that the untrained model predicts the population's class frequencies.

    The bias becomes the likelihood's inverse link of π (log π for softmax, logit π for a single logit). At a small
    prevalence the loss hardly depends on the intercept, so it stays close to its start.

    Args:
        layer: the last layer, with a `bias` of `num_outputs` entries (`nn.Linear`, `nn.Conv2d`, …).
        prevalence: π; the mean if it is uncertain. With a `Prevalence.multilabel` the layer has an output for each finding.
        likelihood: the one of the loss; Categorical by default. Its own parameters, if any, are set as well.

    Examples:
        >>> import torch
        >>> import rightloss as rl
        >>> head = torch.nn.Linear(8, 2)
        >>> rl.start_at_prevalence(head, rl.Prevalence.binary(0.001))
        >>> head.bias.softmax(0).round(decimals=4).tolist()
        [0.9990000128746033, 0.0010000000474974513]
    """
    likelihood = _likelihood(likelihood, prevalence)
    bias = _bias(layer, prevalence, likelihood)
    with torch.no_grad():
        bias.copy_(likelihood.starting_outputs(prevalence))


@torch.no_grad()
def match_prevalence(
    layer: nn.Module, unlabelled: Tensor, prevalence: Prevalence | MultilabelPrevalence, likelihood: Likelihood | None = None
) -> None:
    """Adjust the bias of the output layer so that the mean prediction over unlabelled rows of the population is π.

    Call it after training with any loss. It needs no labels, and keeps the ranking of the predictions of two classes. It is
    valid if the rows are from the population and π is known; more rows give a better result. The bias b solves
    `log avg_u p(k|x_u, b) = log π_k`, by Newton's method with step halving, in float64.

    Args:
        layer: the last layer, with a `bias` of `num_outputs` entries.
        unlabelled: the model's current outputs for these rows, in eval mode, `(n, num_outputs)` or dense.
        prevalence: π; the mean if it is uncertain.
        likelihood: the one of the loss; Categorical by default. Its own parameters, if any, are adjusted as well.

    Examples:
        >>> import torch
        >>> import rightloss as rl
        >>> head, x_unlabelled = torch.nn.Linear(3, 2), torch.arange(12.0).view(4, 3).sin()
        >>> rl.match_prevalence(head, head(x_unlabelled), rl.Prevalence.binary(0.02))
        >>> round(head(x_unlabelled).softmax(1)[:, 1].mean().item(), 5)
        0.02
    """
    likelihood = _likelihood(likelihood, prevalence)
    bias = _bias(layer, prevalence, likelihood)
    if isinstance(prevalence, MultilabelPrevalence):
        columns = rows_of(_checked(unlabelled, len(bias)).detach().double()).T[:, :, None]
        pairs = zip(columns, prevalence, strict=True)
        bias.add_(torch.cat([_solve(z, tensor_of(each.population).log().to(z), Bernoulli(), []) for z, each in pairs]).to(bias))
        return
    if not isinstance(prevalence, Prevalence) or prevalence.is_unknown or not likelihood.over_classes:
        raise ValueError(
            f"Expected a known prevalence of classes to match, but got {prevalence}: give the population's class frequencies."
        )
    rows = rows_of(_checked(unlabelled, len(bias)).detach().double())
    own = [each for each in likelihood.parameters() if each.requires_grad] if isinstance(likelihood, nn.Module) else []
    before = [each.detach().clone() for each in own]
    try:
        shift = _solve(rows, tensor_of(prevalence.population).to(rows.device).log(), likelihood, own)
    except ValueError:
        for each, value in zip(own, before, strict=True):
            each.copy_(value)
        raise
    bias.add_(shift.to(bias))


def _solve(
    rows: Float[Tensor, "n j"], log_pi: Float[Tensor, " k"], likelihood: Likelihood, own: list[nn.Parameter]
) -> Float[Tensor, " j"]:
    """Return the shift of the outputs; the likelihood's own parameters are changed in place."""
    shift = torch.zeros_like(rows[0])

    def log_mean(at: Tensor) -> Tensor:
        table = likelihood.table(rows + at).double()
        return torch.logsumexp(table, 0) - torch.log(table.new_tensor(float(len(table))))

    gap = log_pi - log_mean(shift)
    for _ in range(STEPS):
        if float(gap.abs().max()) < CLOSE:
            return shift
        step = torch.linalg.lstsq(_slopes(log_mean, shift, own), gap[:, None], rcond=1e-6, driver="gelsd").solution[:, 0]
        length, here, kept = 1.0, gap, [each.detach().clone() for each in own]
        while length > 1e-6:
            _move(own, kept, length * step[len(shift) :])
            moved = shift + length * step[: len(shift)]
            gap = log_pi - log_mean(moved)
            if float(gap.norm()) < float(here.norm()):  # False for NaN
                shift = moved
                break
            length /= 2
        else:
            break
    if float(gap.abs().max()) < 1e-5:  # float32 parameters allow no higher precision
        return shift
    worst = int(gap.abs().argmax())
    raise ValueError(
        f"Expected outputs whose mean prediction of class {worst} can be moved to {float(log_pi[worst].exp()):.3g}, but it "
        f"stays at {float((log_pi - gap)[worst].exp()):.3g}: check that the rows are from the population and that the logits "
        f"are not extreme."
    )


def _slopes(log_mean: Callable[[Tensor], Tensor], shift: Tensor, own: list[nn.Parameter]) -> Float[Tensor, "k p"]:
    """Return the derivatives of log m_k by the shift and by the likelihood's own parameters."""
    with torch.enable_grad():
        at = shift.clone().requires_grad_()
        found = log_mean(at)
        rows = [torch.autograd.grad(each, [at, *own], retain_graph=True) for each in found]
    return torch.stack([torch.cat([part.flatten().double() for part in row]) for row in rows])


def _move(own: list[nn.Parameter], kept: list[Tensor], step: Tensor) -> None:
    """Set the parameters to their old values plus a step."""
    parts = step.split([each.numel() for each in own])
    for each, value, part in zip(own, kept, parts, strict=True):
        each.copy_(value + part.view_as(value))


def _likelihood(likelihood: Likelihood | None, prevalence: AnyPrevalence) -> Likelihood:
    """Return the likelihood: a logit for each finding of a multi-label prevalence, otherwise Categorical by default."""
    if isinstance(prevalence, MultilabelPrevalence):
        return Findings(prevalence.num_findings)
    return Categorical() if likelihood is None else likelihood


def _bias(layer: nn.Module, prevalence: AnyPrevalence, likelihood: Likelihood) -> Tensor:
    """Return the layer's bias, or raise a ValueError if it does not fit the likelihood."""
    name = type(likelihood).__name__
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
            f"Expected a layer with {size} output(s) for {name}, but its bias has shape {tuple(bias.shape)}: "
            "match the layer to the likelihood, or pass `likelihood=…`."
        )
    return bias


def _checked(unlabelled: object, size: int) -> Tensor:
    """Return the outputs of unlabelled rows, with a dimension for the outputs."""
    if not isinstance(unlabelled, Tensor) or not unlabelled.is_floating_point():
        problem = str(unlabelled.dtype) if isinstance(unlabelled, Tensor) else type(unlabelled).__name__
    else:
        found = unlabelled.unsqueeze(1) if size == 1 and unlabelled.ndim == 1 else unlabelled
        if found.ndim < 2 or found.shape[1] != size or len(found) == 0:
            problem = str(tuple(unlabelled.shape))
        elif not bool(torch.isfinite(found).all()):
            problem = "some that are not finite"
        else:
            return found
    raise ValueError(
        f"Expected finite outputs of shape (n, {size}) for unlabelled rows, but got {problem}: pass model(x_unlabelled)."
    )
