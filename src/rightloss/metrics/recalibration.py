"""How far predicted log-odds are stretched: Cox's recalibration at the population's mix.

Stage: `Sample` → slope b and intercepts a of p(k|x) ∝ exp(a_k + b log p_k), fitted by likelihood at π. A model that is right
has b = 1; one too sure of itself has b < 1. For two classes this is logistic regression of the label on the log-odds.
"""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor

from .sample import Sample

_STEPS, _HALVINGS, _LARGEST = 50, 40, 1e3


def fit_recalibration(sample: Sample, block: int) -> tuple[Float64[Tensor, " k"] | None, str]:
    """θ = (b, a_1 … a_{K−1}) with a_0 = 0, by Newton's method; or None and the reason why there is no such fit."""
    if bool(sample.log_probs.isneginf().any()):
        return None, "a probability of exactly 0 has no log-odds"
    k = sample.num_classes
    weights = sample.population_weights
    theta = torch.zeros(k, dtype=torch.float64)
    theta[0] = 1.0
    value, score, curvature = _derivatives(sample, weights, theta, block)
    negligible = 1e-6 * value  # as good as certain of every label
    for _ in range(_STEPS):
        if value > negligible:
            break
        spread = torch.linalg.eigvalsh(curvature)
        if not bool(spread[0] > 1e-12 * spread[-1]):
            return None, "all predictions are alike, or the classes are separated"
        step = torch.linalg.solve(curvature, score)
        if float(step @ score) < 1e-20 + 1e-15 * abs(value):
            return theta, ""
        for _ in range(_HALVINGS):
            moved = _derivatives(sample, weights, theta + step, block)
            if moved[0] >= value:
                break
            step = step / 2
        else:  # no step gains anything: rounding is all that is left
            return theta, ""
        theta, (value, score, curvature) = theta + step, moved
        if float(theta.abs().max()) > _LARGEST:
            break
    return None, "the classes are separated, so the slope has no bound"


def recalibration_terms(
    table: Float64[Tensor, "m k"], labels: Tensor, theta: Float64[Tensor, " k"]
) -> tuple[Float64[Tensor, " m"], Float64[Tensor, "m k"], Float64[Tensor, "m kk"]]:
    """Each entry's log-likelihood `(m,)`, its gradient `(m, k)` and negative Hessian `(m, k·k)` at theta."""
    return _two_classes(table, labels, theta) if table.shape[1] == 2 else _many_classes(table, labels, theta)


def _two_classes(table: Tensor, labels: Tensor, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    odds = table[:, 1] - table[:, 0]
    logit = theta[0] * odds + theta[1]
    own = torch.nn.functional.logsigmoid((2.0 * labels - 1) * logit)
    p = torch.sigmoid(logit)
    score = torch.stack([odds, torch.ones_like(odds)], 1) * (labels - p)[:, None]
    v = p * (1 - p)
    cross = v * odds
    return own, score, torch.stack([cross * odds, cross, cross, v], 1)


def _many_classes(table: Tensor, labels: Tensor, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    m, k = table.shape
    design = torch.zeros(m, k, k, dtype=table.dtype)  # ∂ logit_j / ∂ theta_p
    design[:, :, 0] = table
    design[:, 1:, 1:] = torch.eye(k - 1, dtype=table.dtype)
    log_probs = torch.log_softmax(design @ theta, 1)
    probs = log_probs.exp()
    mean = torch.einsum("mj,mjp->mp", probs, design)
    rows = torch.arange(m)
    second = torch.einsum("mj,mjp,mjq->mpq", probs, design, design)
    curvature = second - mean[:, :, None] * mean[:, None]
    return log_probs[rows, labels], design[rows, labels] - mean, curvature.flatten(1)


def _derivatives(sample: Sample, weights: Tensor, theta: Tensor, block: int) -> tuple[float, Tensor, Tensor]:
    k = sample.num_classes
    value, score = 0.0, torch.zeros(k, dtype=torch.float64)
    curvature = torch.zeros(k * k, dtype=torch.float64)
    size = max(4 * block // k**2, 1024)
    for start in range(0, len(sample.labels), size):
        part = slice(start, start + size)
        rows = part if sample.rows is None else sample.rows[part]
        terms = recalibration_terms(sample.log_probs[rows].double(), sample.labels[part], theta)
        value += float(weights[part] @ terms[0])
        score += weights[part] @ terms[1]
        curvature += weights[part] @ terms[2]
    return value, score, curvature.view(k, k)
