"""The intercept of an output layer: set it to π before training, or match the mean prediction to π after training.

Stage: output layer, π → its bias before training; output layer, outputs for unlabelled rows, π → its bias after training.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import least_squares
from torch import Tensor, nn

from ..arrays import rows_of
from ..prevalence import AnyPrevalence, MultilabelPrevalence, Prevalence
from ..tensors import tensor_of
from .contract import Likelihood
from .standard import Bernoulli, likelihood_of

CLOSE = 1e-5  # tolerance of log m − log π: float32 parameters of a likelihood allow no more digits


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
    likelihood = likelihood_of(likelihood, prevalence)
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
    `log avg_u p(k|x_u, b) = log π_k`, in float64.

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
    likelihood = likelihood_of(likelihood, prevalence)
    bias = _bias(layer, prevalence, likelihood)
    if isinstance(prevalence, MultilabelPrevalence):
        columns = rows_of(_checked(unlabelled, len(bias)).detach().double()).T[:, :, None]
        pairs = zip(columns, prevalence, strict=True)
        bias.add_(torch.cat([_solve(z, tensor_of(each.population).log().to(z), Bernoulli(), []) for z, each in pairs]).to(bias))
        return
    if not isinstance(prevalence, Prevalence) or prevalence.is_unknown or not likelihood.over_classes:
        remedy = "give the population's class frequencies"
        raise ValueError(f"Expected a known prevalence of classes to match, but got {prevalence}: {remedy}.")
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
    sizes = [rows.shape[1], *(each.numel() for each in own)]

    def log_mean(point: np.ndarray) -> tuple[Tensor, Tensor]:
        shift, *parts = torch.from_numpy(point.copy()).to(rows).split(sizes)
        for each, part in zip(own, parts, strict=True):
            each.copy_(part.view_as(each))
        with torch.enable_grad():
            table = likelihood.table(rows + shift.requires_grad_()).double()
            return shift, torch.logsumexp(table, 0) - math.log(len(rows))

    def gap(point: np.ndarray) -> np.ndarray:
        return (log_mean(point)[1].detach() - log_pi).nan_to_num(nan=1e6).cpu().numpy()

    def slopes(point: np.ndarray) -> np.ndarray:
        shift, found = log_mean(point)
        with torch.enable_grad():
            derivatives = [torch.autograd.grad(each, [shift, *own], retain_graph=True) for each in found]
        return np.stack([torch.cat([part.flatten().double() for part in row]).cpu().numpy() for row in derivatives])

    start = torch.cat([torch.zeros_like(rows[0]), *(each.detach().flatten().to(rows) for each in own)]).cpu().numpy()
    solution = least_squares(gap, start, slopes, xtol=1e-15, ftol=1e-15, gtol=1e-15, max_nfev=200).x
    left = gap(solution)
    if np.abs(left).max() < CLOSE:
        return log_mean(solution)[0].detach()
    worst = int(np.abs(left).argmax())
    wanted = f"whose mean prediction of class {worst} can be moved to {float(log_pi[worst].exp()):.3g}"
    remedy = "check that the rows are from the population and that the logits are not extreme"
    stays = float((log_pi[worst] + left[worst]).exp())
    raise ValueError(f"Expected outputs {wanted}, but it stays at {stays:.3g}: {remedy}.")


def _bias(layer: nn.Module, prevalence: AnyPrevalence, likelihood: Likelihood) -> Tensor:
    """Return the layer's bias, or raise a ValueError if it does not fit the likelihood."""
    name = type(likelihood).__name__
    bias = getattr(layer, "bias", None)
    if not isinstance(bias, Tensor):
        remedy = "pass the last layer itself, made with bias=True"
        raise ValueError(f"Expected a layer with a bias, but {type(layer).__name__} has none: {remedy}.")
    size = likelihood.num_outputs
    if size is None:
        size = prevalence.num_classes if isinstance(prevalence, Prevalence) else len(bias)
    if bias.shape != (size,):
        came = f"its bias has shape {tuple(bias.shape)}: match the layer to the likelihood, or pass `likelihood=…`"
        raise ValueError(f"Expected a layer with {size} output(s) for {name}, but {came}.")
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
    remedy = "pass model(x_unlabelled)"
    raise ValueError(f"Expected finite outputs of shape (n, {size}) for unlabelled rows, but got {problem}: {remedy}.")
