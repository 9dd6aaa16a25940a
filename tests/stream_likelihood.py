"""Labelled rows of two classes and unlabelled rows of their population: likelihoods, estimators and bounds, in NumPy alone.

Written apart from the package, from the formulas of docs/unlabelled_theory.md.
Many draws are fitted at once. r(x) = p(x|1)/p(x|0) = exp(α + b·x); rows come in the order class 0, class 1, unlabelled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Evaluate = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Draws:
    """D draws of the same sizes: `x (D, N, 3)`, the first column 1, with n rows of class 0, n of class 1, m unlabelled."""

    x: np.ndarray
    labelled: int
    ridge: float

    @property
    def unlabelled(self) -> int:
        return self.x.shape[1] - 2 * self.labelled

    def penalty(self) -> np.ndarray:
        """Return `(D, 3, 3)` for ½ θᵀPθ = ridge/4 · Var(b·x): that of `joint_prevalence` for two classes."""
        centred = self.x - self.x.mean(1, keepdims=True)
        return self.ridge / 2 * np.einsum("dnp,dnq->dpq", centred, centred) / self.x.shape[1]


def stream_estimate(draws: Draws, population: float, start: np.ndarray) -> np.ndarray:
    """Return (α, b) `(D, 3)` that maximise the likelihood of the streams at a known π₁, each row counting one."""
    penalty = draws.penalty()
    multiplier = draws.labelled + draws.unlabelled * population

    def evaluate(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        value, gradient, hessian = derivatives(draws, theta, population, multiplier)
        drawn = np.einsum("dpq,dq->dp", penalty, theta)
        return value - (theta * drawn).sum(1) / 2, gradient - drawn, hessian - penalty

    return newton(evaluate, start)


def derivatives(
    draws: Draws, theta: np.ndarray, population: float, multiplier: np.ndarray | float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return value, gradient and Hessian by (α, b) of Σ₁ η + Σ_u log(π₀ + π₁ r) − Σ log(c₀ + c₁ r), with c₁ = `multiplier`."""
    n, x = draws.labelled, draws.x
    c1 = np.broadcast_to(multiplier, (len(x),))[:, None]
    eta = np.einsum("dnp,dp->dn", x, theta)
    c0 = x.shape[1] - c1
    pooled = np.logaddexp(np.log(c0), np.log(c1) + eta)
    t = np.exp(np.log(c1) + eta - pooled)
    mixed = np.logaddexp(np.log(1 - population), np.log(population) + eta[:, 2 * n :])
    s = np.exp(np.log(population) + eta[:, 2 * n :] - mixed)
    value = eta[:, n : 2 * n].sum(1) + mixed.sum(1) - pooled.sum(1)
    of_rows = -t
    of_rows[:, n : 2 * n] += 1
    of_rows[:, 2 * n :] += s
    curved = -t * (1 - t)
    curved[:, 2 * n :] += s * (1 - s)
    return value, np.einsum("dn,dnp->dp", of_rows, x), np.matmul((x * curved[:, :, None]).transpose(0, 2, 1), x)


def newton(evaluate: Evaluate, start: np.ndarray) -> np.ndarray:
    """Maximise D functions together; steps are shortened until each grows, and mirrored where it is not concave."""
    theta = start
    value, gradient, hessian = evaluate(theta)
    for _ in range(200):
        values, vectors = np.linalg.eigh(-hessian)
        values = np.maximum(np.abs(values), 1e-10 * np.abs(values).max(1, keepdims=True))
        step = np.einsum("dpq,dq->dp", vectors, np.einsum("dqp,dq->dp", vectors, gradient) / values)
        gain, share = (gradient * step).sum(1), np.ones(len(theta))
        if gain.max() < 1e-11 * (1 + np.abs(value).max()):
            return theta + step
        for _ in range(20):
            found = evaluate(theta + share[:, None] * step)
            worse = ~(found[0] >= value + 1e-4 * share * gain - 1e-12 * (1 + np.abs(value)))
            if not worse.any():
                break
            share = np.where(worse, share / 4, share)
        theta = theta + share[:, None] * step
        value, gradient, hessian = found
    raise RuntimeError("Newton's method did not converge in 200 steps.")


def empirical_estimate(draws: Draws, population: float, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (α, b) `(D, 3)` of the empirical likelihood at a known π₁, and whether each draw converged (D,).

    Newton's method on the saddle point in (α, b, c₁), from the estimate of the streams: c₁ is such that
    Σ (r − 1)/(c₀ + c₁ r) = 0, so that p(x|1) integrates to 1.
    """
    penalty, total = draws.penalty(), draws.x.shape[1]
    theta, c1 = start.copy(), np.full(len(start), draws.labelled + draws.unlabelled * population)
    for _ in range(50):
        _, gradient, hessian = derivatives(draws, theta, population, c1)
        r = np.exp(np.einsum("dnp,dp->dn", draws.x, theta))
        pooled = (total - c1)[:, None] + c1[:, None] * r
        by_c, c_c = -((r - 1) / pooled).sum(1), (((r - 1) / pooled) ** 2).sum(1)
        by_both = -np.einsum("dn,dnp->dp", total * r / pooled**2, draws.x)
        slopes = np.concatenate([gradient - np.einsum("dpq,dq->dp", penalty, theta), by_c[:, None]], 1)
        matrix = np.concatenate([hessian - penalty, by_both[:, :, None]], 2)
        last = np.concatenate([by_both, c_c[:, None]], 1)[:, None, :]
        step = -np.linalg.solve(np.concatenate([matrix, last], 1), slopes[:, :, None])[:, :, 0]
        share = np.minimum(1.0, 0.5 / np.abs(step[:, :3]).max(1))
        room = np.where(step[:, 3] > 0, total - c1, c1)
        share = np.minimum(share, 0.5 * room / np.maximum(np.abs(step[:, 3]), 1e-300))
        theta, c1 = theta + share[:, None] * step[:, :3], c1 + share * step[:, 3]
        error = np.abs(step[:, :3]).max(1)
        if error.max() < 1e-9:
            break
    return theta, error < 1e-6


@dataclass(frozen=True)
class GaussianClasses:
    """x|k ~ N(k (δ, 0), I): r = exp(−δ²/2 + δ x₁), so the logistic model is exactly true, and x₂ says nothing."""

    distance: float

    @property
    def truth(self) -> np.ndarray:
        """α, b₁, b₂."""
        return np.array([-(self.distance**2) / 2, self.distance, 0.0])

    @property
    def auc(self) -> float:
        """That of the true model, Φ(δ/√2)."""
        return (1 + math.erf(self.distance / 2)) / 2

    def drawn(self, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw `(n, 3)`, a 1 first, of people with these classes."""
        x = np.concatenate([np.ones((len(labels), 1)), rng.normal(size=(len(labels), 2))], 1)
        x[:, 1] += self.distance * labels
        return x

    def grid(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return x₁ on a fine grid, p(x₁|0) times its spacing, and r there."""
        x = np.linspace(-12, 12 + self.distance, 8001)
        f0 = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi) * (x[1] - x[0])
        return x, f0, np.exp(self.distance * x - self.distance**2 / 2)


@dataclass(frozen=True)
class Covariances:
    """Asymptotic covariances of (α, b₁, b₂) times the number of labelled rows; those with π unknown have π₁ as their fourth.

    Attributes:
        known: the semiparametric bound, π known, p(x) unknown.
        unknown: the bound where π is unknown too; None without unlabelled rows, where it is not identified.
        streams: of the estimate that maximises the likelihood of the streams at a known π, with the mass λ.
        hessian: the inverse of the joint information of the streams, π unknown, which takes the class counts to be random.
    """

    known: np.ndarray
    unknown: np.ndarray | None
    streams: np.ndarray
    hessian: np.ndarray | None


def asymptotic(classes: GaussianClasses, population: float, ratio: float, mass: float | None = None) -> Covariances:
    """Work out the bounds by quadrature, for half of the labelled rows in each class and `ratio` unlabelled rows to each.

    The efficient information is the negative Hessian of the expected empirical log-likelihood, minimised over c₁:
    −E L_θθ + E L_θc (E L_cc)⁻¹ E L_cθ; where π is unknown, of (α, b, π).

    Args:
        classes: p(x|k).
        population: π₁.
        ratio: of the unlabelled rows to the labelled ones.
        mass: λ of `streams`, by default the ratio.
    """
    x, f0, r = classes.grid()
    total, c1 = 1 + ratio, 0.5 + ratio * population
    pooled, mixed = total - c1 + c1 * r, 1 - population + population * r
    by_c, c_c = total * _mean(x, f0 * r / pooled), (f0 * (r - 1) ** 2 / pooled).sum()
    curved, streams = _of_streams(classes, population, ratio, ratio)
    information = curved + np.outer(by_c, by_c) / c_c
    known = np.linalg.inv(information)
    if mass is not None:
        streams = _of_streams(classes, population, ratio, mass)[1]
    if not ratio:
        return Covariances(known, None, streams, None)
    by_pi, pi_pi = ratio * _mean(x, f0 * r / mixed), ratio * (f0 * (r - 1) ** 2 / mixed).sum()
    unknown = np.linalg.inv(_bordered(information, -by_pi, pi_pi))
    hessian = np.linalg.inv(_bordered(curved, ratio * by_c - by_pi, pi_pi - ratio**2 * c_c))
    return Covariances(known, unknown, streams, hessian)


def _of_streams(classes: GaussianClasses, population: float, ratio: float, mass: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the information of the streams' likelihood by (α, b) at a known π and mass λ, and its estimate's covariance."""
    x, f0, r = classes.grid()
    c1 = 0.5 + mass * population
    pooled, mixed = 1 + mass - c1 + c1 * r, 1 - population + population * r
    t, s = c1 * r / pooled, population * r / mixed
    curved = _moment(x, f0 * pooled * t * (1 - t)) - mass * _moment(x, f0 * mixed * s * (1 - s))
    scores = [(0.5, f0, -t), (0.5, f0 * r, 1 - t), (mass**2 / ratio if ratio else 0.0, f0 * mixed, s - t)]
    noise = np.zeros((3, 3))
    for weight, f, u in scores:
        noise += weight * (_moment(x, f * u**2) - np.outer(_mean(x, f * u), _mean(x, f * u)))
    inverse = np.linalg.inv(curved)
    return curved, inverse @ noise @ inverse


def _bordered(matrix: np.ndarray, edge: np.ndarray, corner: float) -> np.ndarray:
    return np.block([[matrix, edge[:, None]], [edge[None], np.array([[corner]])]])


def _mean(x: np.ndarray, density: np.ndarray) -> np.ndarray:
    """Return ∫ density (1, x₁, x₂)."""
    return np.array([density.sum(), density @ x, 0.0])


def _moment(x: np.ndarray, density: np.ndarray) -> np.ndarray:
    """Return ∫ density (1, x₁, x₂)(1, x₁, x₂)ᵀ; x₂ is standard normal whatever x₁."""
    a, b, c = density.sum(), density @ x, density @ x**2
    return np.array([[a, b, 0.0], [b, c, 0.0], [0.0, 0.0, a]])
