"""Fit a linear model by minimising a loss of its outputs: Newton's method for cross-entropy and Firth's penalty, or L-BFGS.

Stage: features (n, d), a loss of the outputs (n, m) → coefficients (d + 1, m), the intercept in the last row.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy import linalg, optimize, special
from sklearn.exceptions import ConvergenceWarning

from ..solve import Quadratic, intercepts_for_mean, minimise

BLOCK = 2**17  # numbers per block of rows, 1 MiB: what a pass writes stays in the cache
NEWTON_LIMIT = 300  # coefficients; with more, a Hessian is too expensive
SMALL = 12  # coefficients; with fewer, Newton's method is faster than L-BFGS

# outputs (n, m), the loss's own parameters (j,) → value, gradient by outputs, gradient by own parameters
Objective = Callable[[np.ndarray, np.ndarray], tuple[float, np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class LinearFit:
    """The coefficients, and how the solver found them.

    Attributes:
        coefficients: (d + 1, m), the intercept in the last row.
        own: parameters of the loss itself (j,), such as cutpoints.
        loss_curve: the objective after each iteration.
        converged: whether it stopped by `tol`.
    """

    coefficients: np.ndarray
    own: np.ndarray
    loss_curve: list[float]
    converged: bool


@dataclass(frozen=True)
class CrossEntropy:
    """`−Σ_n Σ_k t_nk log p(k|x_n) / total`, a softmax's or, with one output, a logistic's; convex, with its Hessian.

    Attributes:
        targets: t_nk, each row's weight by class: (n, K); for two classes (n, 1), that of class 1.
        row_weights: Σ_k t_nk (n,).
        total: the divisor of the sum.
    """

    targets: np.ndarray
    row_weights: np.ndarray
    total: float

    @classmethod
    def of(cls, table: np.ndarray, total: float) -> CrossEntropy:
        """Return the loss of labels given as `LabelledRows.table`; one output for two classes."""
        return cls(np.ascontiguousarray(table[:, 1:] if table.shape[1] == 2 else table), table.sum(1), total)

    def __call__(self, outputs: np.ndarray, own: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Return value and gradients, as an `Objective`."""
        value, probs = self.value_and_probs(outputs)
        return value, self.gradient(probs), own

    def gradient(self, probs: np.ndarray) -> np.ndarray:
        """Return the gradient by the outputs; `probs` is overwritten."""
        probs *= self.row_weights[:, None]
        probs -= self.targets
        probs /= self.total
        return probs

    def value_and_probs(self, outputs: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the loss and p(k|x_n) (n, m)."""
        if outputs.shape[1] == 1:
            log_sum = np.maximum(outputs, 0) + np.log1p(np.exp(-np.abs(outputs)))
            probs = special.expit(outputs)
        else:
            top = outputs.max(1, keepdims=True)
            probs = np.exp(outputs - top)
            sums = probs.sum(1, keepdims=True)
            log_sum = top + np.log(sums)
            probs /= sums
        value = self.row_weights @ log_sum[:, 0] - np.vdot(self.targets, outputs)
        return float(value) / self.total, probs

    def hessian(self, features: np.ndarray, probs: np.ndarray) -> np.ndarray:
        """Return the second derivative by the coefficients, output by output: (m (d + 1), m (d + 1))."""
        weight, found = self.row_weights / self.total, np.zeros(())
        for rows in blocks(features):
            found = found + sum_of_products(features[rows], weight[rows, None, None] * variance(probs[rows]))
        return found


def newton(features: np.ndarray, loss: CrossEntropy, ridge: float, start: np.ndarray, max_iter: int, tol: float) -> LinearFit:
    """Minimise `loss + ½ ridge ‖slopes‖²` by Newton's method.

    It stops when a step is expected to decrease the objective by less than tol² times the mean absolute residual at the start,
    and takes that step: a loss of small weights is fitted as well as one of large weights. The remaining error is of the order
    of its square.

    Args:
        features: X (n, d).
        loss: of the outputs (n, m).
        ridge: λ ≥ 0; the intercept is not penalised.
        start: coefficients (d + 1, m).
        max_iter: maximum number of steps.
        tol: see above.
    """
    m, size = start.shape[1], len(start)
    penalty = np.kron(np.eye(m), np.diag(np.append(np.full(size - 1, ridge), 0.0)))

    def function(coefficients: np.ndarray) -> Quadratic:
        slopes = coefficients[:-1]
        value, probs = loss.value_and_probs(features @ slopes + coefficients[-1])
        by_output = loss.gradient(probs.copy())
        gradient = np.vstack([features.T @ by_output + ridge * slopes, by_output.sum(0)])
        hessian = _pinned(loss.hessian(features, probs) + penalty, m)
        return Quadratic(value + ridge / 2 * float(np.vdot(slopes, slopes)), gradient.T.ravel(), hessian, by_output)

    return _newton_steps(function, start, lambda by_output: tol**2 * _mean_residual(by_output), max_iter)


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
        tol: stop when a step is expected to improve the objective by less than tol² times the sum of absolute residuals.
    """
    loss = CrossEntropy.of(table, float(table.sum()))

    def function(coefficients: np.ndarray) -> Quadratic:
        mean, probs = loss.value_and_probs(features @ coefficients[:-1] + coefficients[-1])
        p = probs[:, 0]
        weights = loss.row_weights * p * (1 - p)
        information = sum_of_products(features, weights[:, None, None])
        spread = np.sqrt(np.diag(information))
        if not spread.all() or np.linalg.cond(information / np.outer(spread, spread)) > 1e13:
            raise ValueError(
                "Expected linearly independent features for penalty='firth', but some depend on others: "
                "drop constant and duplicate columns."
            )
        by_output = (loss.row_weights * p - loss.targets[:, 0]) / loss.total
        shifted = by_output - leverage(features, linalg.inv(information), weights) * (0.5 - p) / loss.total
        value = mean - float(np.linalg.slogdet(information)[1]) / (2 * loss.total)
        gradient = np.append(features.T @ shifted, shifted.sum())
        return Quadratic(value, gradient, information / loss.total, by_output)

    fit = _newton_steps(function, start, lambda by_output: tol**2 * float(np.abs(by_output).sum()), max_iter)
    fixed = features @ fit.coefficients[:-1]
    share = float(loss.targets.sum() / loss.row_weights.sum())
    intercepts = intercepts_for_mean(np.hstack([0 * fixed, fixed]), np.array([1 - share, share]), loss.row_weights)
    return replace(fit, coefficients=np.vstack([fit.coefficients[:-1], [[intercepts[1] - intercepts[0]]]]))


def leverage(features: np.ndarray, inverse: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return h_n = weights_n x_nᵀ I⁻¹ x_n."""
    size = inverse[-1, -1] + 2 * features @ inverse[:-1, -1]
    found: np.ndarray = weights * (size + np.einsum("nd,nd->n", features @ inverse[:-1, :-1], features))
    return found


def _newton_steps(
    function: Callable[[np.ndarray], Quadratic], start: np.ndarray, enough: Callable[[np.ndarray], float], max_iter: int
) -> LinearFit:
    """Minimise a function of coefficients (d + 1, m) by `solve.minimise`, in coordinates whose curvature at the start is 1.

    The derivatives are by the coefficients output by output. The last step, which is expected to change next to nothing, is
    taken without another pass over the rows.

    Args:
        function: also returns its derivatives by the outputs, as `detail`.
        start: coefficients (d + 1, m).
        enough: these derivatives at the start → the expected decrease at which to stop.
        max_iter: maximum number of steps.
    """
    first = function(start)
    values: list[float] = []
    root = np.linalg.cholesky(_regular(first.hessian))

    def coefficients_of(point: np.ndarray) -> np.ndarray:
        step: np.ndarray = linalg.solve_triangular(root, point, trans=1, lower=True)
        return start + step.reshape(start.shape[::-1]).T

    def whitened(point: np.ndarray) -> Quadratic:
        at = function(coefficients_of(point)) if values else first
        values.append(at.value)
        half = linalg.solve_triangular(root, _regular(at.hessian), lower=True)
        gradient, hessian = (linalg.solve_triangular(root, each, lower=True) for each in (at.gradient, half.T))
        return Quadratic(at.value, gradient, hessian)

    found = minimise(whitened, np.zeros(start.size), enough=enough(first.detail), max_steps=max_iter)
    last = np.linalg.solve(found.at.hessian, found.at.gradient) if found.converged else 0.0
    curve = np.minimum.accumulate(values[1:] or values).tolist()
    return LinearFit(coefficients_of(found.point - last), np.empty(0), curve, found.converged)


def _regular(hessian: np.ndarray) -> np.ndarray:
    """Return the Hessian with a little added to its diagonal, so that collinear features do no harm."""
    return hessian + np.diag(1e-12 * np.diag(hessian) + 1e-300)


def lbfgs(
    features: np.ndarray,
    loss: Objective,
    ridge: float,
    start: np.ndarray,
    max_iter: int,
    tol: float,
    own: np.ndarray | None = None,
    intercept: bool = True,
    weight: np.ndarray | None = None,
) -> LinearFit:
    """Minimise `loss + ½ ridge ‖slopes‖²` by L-BFGS, with standardised features.

    It stops when no derivative by the coefficients of standardised features is above tol times the mean absolute residual at
    the start, the derivative by the outputs: by this the objective is divided, so that no tolerance has its units.

    Args:
        features: X (n, d).
        loss: of the outputs (n, m) and of the loss's own parameters.
        ridge: λ ≥ 0; neither the intercept nor the loss's own parameters are penalised.
        start: coefficients (d + 1, m).
        max_iter: maximum number of iterations.
        tol: see above.
        own: the start of the loss's own parameters.
        intercept: False keeps the intercept at its start.
        weight: of the rows, for the features' mean and variance.
    """
    own = np.empty(0) if own is None else own
    mean, scale = _mean_and_scale(features, weight)
    shape = start.shape

    def coefficients_of(point: np.ndarray) -> np.ndarray:
        standard = point[: start.size].reshape(shape)
        slopes = standard[:-1] / scale[:, None]
        shift = mean @ slopes if intercept else 0.0
        return np.vstack([slopes, standard[-1] - shift])

    def value_and_gradient(point: np.ndarray) -> tuple[float, np.ndarray]:
        found = coefficients_of(point)
        value, by_output, by_own = loss(features @ found[:-1] + found[-1], point[start.size :])
        by_intercept = by_output.sum(0)
        by_slopes = features.T @ by_output + ridge * found[:-1]
        if intercept:
            by_slopes = by_slopes - np.outer(mean, by_intercept)
        gradient = np.vstack([by_slopes / scale[:, None], by_intercept * intercept])
        value += ridge / 2 * float(np.vdot(found[:-1], found[:-1]))
        return value / unit, np.concatenate([gradient.ravel(), by_own]) / unit

    first = np.vstack([start[:-1] * scale[:, None], start[-1] + (mean @ start[:-1] if intercept else 0.0)])
    unit = _mean_residual(loss(features @ start[:-1] + start[-1], own)[1])
    curve: list[float] = []
    result = optimize.minimize(
        value_and_gradient,
        np.concatenate([first.ravel(), own]),
        jac=True,
        method="L-BFGS-B",
        callback=lambda intermediate_result: curve.append(unit * float(intermediate_result.fun)),
        options={"maxiter": max_iter, "maxfun": 20 * max_iter, "gtol": tol, "ftol": 1e-15, "maxls": 50},
    )
    curve = curve or [unit * float(result.fun)]
    return LinearFit(coefficients_of(result.x), result.x[start.size :], curve, result.status != 1)


def _mean_residual(by_output: np.ndarray) -> float:
    """Return the largest Σ_n |derivative by the output of row n| (n, m), at most 1; 1 where all are 0."""
    return min(1.0, float(np.abs(by_output).sum(0).max())) or 1.0


def _mean_and_scale(features: np.ndarray, weight: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the features' mean and standard deviation (1 for constants)."""
    share = np.full(len(features), 1 / len(features)) if weight is None else weight / weight.sum()
    mean = share @ features
    scale = np.sqrt(share @ (features - mean) ** 2)
    return mean, np.where(scale > 1e-12 * np.abs(mean), scale, 1.0)


def warn_unless_converged(fit: LinearFit, max_iter: int) -> None:
    """Warn if the maximum number of iterations was reached, as scikit-learn does."""
    if not fit.converged:
        warnings.warn(
            f"The solver stopped after max_iter={max_iter} iterations, before tol was reached: raise max_iter, "
            "or standardise the features.",
            ConvergenceWarning,
            stacklevel=3,
        )


def blocks(features: np.ndarray) -> list[slice]:
    """Return slices of rows, each of about `BLOCK` numbers."""
    rows = max(64, BLOCK // (features.shape[1] + 1))
    return [slice(start, start + rows) for start in range(0, len(features), rows)]


def sum_of_products(features: np.ndarray, products: np.ndarray) -> np.ndarray:
    """Return `Σ_n products_n ⊗ x_n x_nᵀ` with a 1 appended to each x: (m (d + 1), m (d + 1)).

    Args:
        features: X (n, d).
        products: matrices (n, m, m).
    """
    m, size = products.shape[1], features.shape[1] + 1
    found = np.zeros((m, m, size, size))
    for rows in blocks(features):
        x = np.column_stack([features[rows], np.ones(len(features[rows]))])
        for i, j in np.ndindex(m, m):
            found[i, j] += (products[rows, i, j, None] * x).T @ x
    return found.transpose(0, 2, 1, 3).reshape(m * size, m * size)


def variance(p: np.ndarray) -> np.ndarray:
    """Return V(p) = diag p − p pᵀ of each row (n, m, m)."""
    return p[:, :, None] * (np.eye(p.shape[1]) - p[:, None, :])


def _pinned(hessian: np.ndarray, m: int) -> np.ndarray:
    """Return the Hessian, made regular in the direction in which a softmax is constant: equal changes of all outputs.

    The gradient has no component in that direction, so the step has none either.
    """
    if m == 1:
        return hessian
    size = len(hessian) // m
    return hessian + np.kron(np.ones((m, m)), np.diag(np.diag(hessian).reshape(m, size).mean(0) + 1e-300))


def moved(coefficients: np.ndarray, log_factors: np.ndarray) -> np.ndarray:
    """Return coefficients with log-factors (K,) added to the classes' log-probabilities."""
    found = coefficients.copy()
    found[-1] += log_factors[1] - log_factors[0] if found.shape[1] == 1 else log_factors - log_factors.mean()
    return found


def class_logits(outputs: np.ndarray) -> np.ndarray:
    """Return a logit per class (n, K); a single output is the log-odds of the second of two classes."""
    return np.column_stack([np.zeros(len(outputs)), outputs]) if outputs.shape[1] == 1 else outputs
