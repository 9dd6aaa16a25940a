"""Firth's penalised logistic regression, finite under separation, with the intercept corrected afterwards (FLIC).

Stage: features (n, d), weights by class (n, 2) → coefficients (d + 1, 1) in the sampled mix.
"""

from __future__ import annotations

import numpy as np
from scipy import linalg

from ..solve import intercepts_for_mean
from .linear import CrossEntropy, LinearFit, blocks, second_moments


def firth(features: np.ndarray, table: np.ndarray, start: np.ndarray, max_iter: int, tol: float) -> LinearFit:
    """Maximise `ℓ(b) + ½ log det I(b)` for two classes, then correct the intercept to match the mean prediction.

    The penalty is Jeffreys' prior. It removes the first-order bias of the coefficients (Firth 1993) and keeps them finite if
    the classes are separated (Heinze & Schemper 2002). It also shrinks predictions towards ½, so the intercept is estimated
    again by maximum likelihood with fixed slopes: FLIC (Puhr et al. 2017). The derivative of the penalty is
    `Σ_n h_n (½ − p_n) x_n`, with h_n the row's leverage, so each step is a Newton step with shifted labels.

    Args:
        features: X (n, d), linearly independent.
        table: each row's weight by class (n, 2).
        start: coefficients (d + 1, 1).
        max_iter: maximum number of steps.
        tol: stop when half the squared Newton decrement is at most tol² times the sum of absolute residuals.
    """
    loss = CrossEntropy.of(table, float(table.sum()))
    found, curve, converged = start, [], False
    value, probs, inverse = _penalised_loss(features, loss, found)
    for _ in range(max_iter):
        h = leverage(features, inverse, loss.row_weights * probs * (1 - probs))
        residual = loss.targets[:, 0] - loss.row_weights * probs + h * (0.5 - probs)
        score = np.append(features.T @ residual, residual.sum())
        step = inverse @ score
        converged = float(score @ step) / 2 <= tol**2 * float(np.abs(loss.targets[:, 0] - loss.row_weights * probs).sum())
        step *= min(1.0, 5 / max(np.abs(features @ step[:-1] + step[-1]).max(), 1e-300))  # logits change by at most 5
        for size in 0.5 ** np.arange(40):
            trial = found + size * step[:, None]
            new = _penalised_loss(features, loss, trial)
            if new[0] <= value + 1e-14 * abs(value):
                found, (value, probs, inverse) = trial, new
                break
        else:
            converged = True
        curve.append(value / loss.total)
        if converged:
            break
    return LinearFit(_with_right_mean(features, loss, found), np.empty(0), curve, converged)


def _penalised_loss(features: np.ndarray, loss: CrossEntropy, coefficients: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Return `−ℓ(b) − ½ log det I(b)`, the probabilities (n,) and I(b)⁻¹."""
    mean, probs = loss.value_and_probs(features @ coefficients[:-1] + coefficients[-1])
    p = probs[:, 0]
    weights = loss.row_weights * p * (1 - p)
    information = sum((second_moments(features[rows], weights[rows]) for rows in blocks(features)), np.zeros(()))
    sign, log_det = np.linalg.slogdet(information)
    if sign <= 0 or np.linalg.cond(information / np.sqrt(np.outer(np.diag(information), np.diag(information)))) > 1e13:
        raise ValueError(
            "Expected linearly independent features for penalty='firth', but some depend on others: "
            "drop constant and duplicate columns."
        )
    return mean * loss.total - log_det / 2, p, linalg.inv(information)


def leverage(features: np.ndarray, inverse: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return h_n = weights_n x_nᵀ I⁻¹ x_n."""
    size = inverse[-1, -1] + 2 * features @ inverse[:-1, -1]
    found: np.ndarray = weights * (size + np.einsum("nd,nd->n", features @ inverse[:-1, :-1], features))
    return found


def _with_right_mean(features: np.ndarray, loss: CrossEntropy, coefficients: np.ndarray) -> np.ndarray:
    """Return the coefficients with the intercept of maximum likelihood, given the slopes."""
    fixed = features @ coefficients[:-1]
    share = float(loss.targets.sum() / loss.row_weights.sum())
    found = intercepts_for_mean(np.hstack([0 * fixed, fixed]), np.array([1 - share, share]), loss.row_weights)
    return np.vstack([coefficients[:-1], [[found[1] - found[0]]]])
