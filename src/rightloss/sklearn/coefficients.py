"""Standard errors of the coefficients of a linear classifier, valid for rows sampled by class.

Stage: features, labels, probabilities at the fitted coefficients → covariances; covariances → a table, and intervals of risks.

With ψ_n the gradient of row n's loss and H the Hessian of their sum, the coefficients' covariance is `H⁻¹ M H⁻¹`. If the number
of rows of each class was fixed, as in a case-control study, only x given the class is random, so M is the covariance of ψ
*within the classes*:

    robust:  M = Σ_c Σ_{n: y_n = c} (ψ_n − ψ̄_c)(ψ_n − ψ̄_c)ᵀ · n_c/(n_c − 1)
    model:   M = Σ_n Σ_c p_ρ(c|x_n) ψ(x_n, c) ψ(x_n, c)ᵀ − Σ_c n_c μ_c μ_cᵀ,   μ_c = Σ_n p_ρ(c|x_n) ψ(x_n, c) / n_c

where p_ρ is the fitted prediction at the sampled mix; "model" also uses the expected H. For the logit-adjusted loss the first
sum is H and H⁻¹ n_c μ_c is the unit vector of class c's intercept, so that the slopes' covariance is that of ordinary logistic
regression and the intercept's variance is smaller by Σ_c 1/n_c: Prentice & Pyke (1979). For the weighted loss neither holds,
and H⁻¹ alone is wrong. With Firth's penalty, made for few rows, "robust" divides each ψ_n by 1 − h_n, with h_n the row's
leverage (HC3, MacKinnon & White 1985): residuals at the solution are smaller than the errors.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy import special, stats

from .linear import leverage, sum_of_products, variance

if TYPE_CHECKING:
    from pandas import DataFrame

Covariance = Literal["model", "robust"]


@dataclass(frozen=True)
class FittedRows:
    """The inputs of the covariances.

    Attributes:
        features: X (n, d).
        index: class numbers (n,).
        weight: sample weights of the rows (n,).
        probs: p(k|x_n) at the fitted coefficients, at the mix of the loss (n, K).
        sampled_probs: p_ρ(k|x_n), the same at the sampled mix (n, K).
        class_weight: the loss's weight of each class (K,).
        few: whether rows may be few, for two classes: "robust" residuals are divided by 1 − the row's leverage.
    """

    features: np.ndarray
    index: np.ndarray
    weight: np.ndarray
    probs: np.ndarray
    sampled_probs: np.ndarray
    class_weight: np.ndarray
    few: bool = False


def covariances(fitted: FittedRows) -> dict[str, np.ndarray] | None:
    """Return a dict of covariances of the log-odds against class 0 ("model case-control", …), class by class, intercept last.

    Return None if the features are linearly dependent, because the coefficients are then not determined.
    """
    classes, weight = range(fitted.probs.shape[1]), fitted.weight[:, None]
    counts = np.bincount(fitted.index, fitted.weight, len(classes))
    observed = np.eye(len(classes))[fitted.index]
    importance = {"model": fitted.sampled_probs @ fitted.class_weight, "robust": fitted.class_weight[fitted.index]}
    found = {}
    for kind, shares in {"model": weight * fitted.sampled_probs, "robust": weight * observed}.items():
        bread = inverse_or_none(_hessian(fitted, fitted.probs, importance[kind]))
        if bread is None:
            return None
        scores = [fitted.class_weight[c] * (fitted.probs - np.eye(len(classes))[c])[:, 1:] for c in classes]
        if kind == "robust" and fitted.few:
            p = fitted.probs[:, 1]
            rest = 1 - leverage(fitted.features, bread, p * (1 - p)).clip(0, 0.9)
            scores = [score / rest[:, None] for score in scores]
        total, within = moments(fitted.features, scores, shares, counts, kind == "robust")
        found[f"{kind} case-control"], found[f"{kind} cohort"] = bread @ within @ bread, bread @ total @ bread
    return found


def moments(
    features: np.ndarray, scores: list[np.ndarray], shares: np.ndarray, counts: np.ndarray, small: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return Σ ψψᵀ over all rows, and the same about the mean of each group, (p, p) each.

    Args:
        features: X (n, d).
        scores: for each group, the derivatives by the outputs (n, m) if all rows were of that group.
        shares: how much each row is of each group (n, groups).
        counts: rows of each group.
        small: whether to multiply by n/(n − 1) within the groups.
    """
    total, within = [], []
    for score, share, count in zip(scores, shares.T, counts, strict=True):
        second = sum_of_products(features, share[:, None, None] * score[:, :, None] * score[:, None, :])
        weighted = share[:, None] * score
        mean = np.column_stack([weighted.T @ features, weighted.sum(0)]).ravel() / max(count, 1e-300)
        total.append(second)
        within.append((count / max(count - 1, 1) if small else 1.0) * (second - count * np.outer(mean, mean)))
    return np.sum(total, axis=0), np.sum(within, axis=0)


def is_separated(fitted: FittedRows) -> bool:
    """Return whether a combination of the features separates the classes, which makes a coefficient infinite.

    Along it the curvature at the solution is negligible relative to that at a constant prediction.
    """
    mix = np.bincount(fitted.index, fitted.weight, fitted.probs.shape[1]) / fitted.weight.sum()
    importance = fitted.class_weight[fitted.index]
    null = _hessian(fitted, np.broadcast_to(mix, fitted.probs.shape), importance)
    return vanishes(_hessian(fitted, fitted.probs, importance), null)


def vanishes(curvature: np.ndarray, null: np.ndarray) -> bool:
    """Return whether a curvature is negligible along a direction relative to that at a constant prediction."""
    scale = 1 / np.sqrt(np.maximum(np.diag(null), 1e-300))
    values, vectors = np.linalg.eigh(null * np.outer(scale, scale))
    vectors = (scale[:, None] * vectors)[:, values > 1e-10] / np.sqrt(values[values > 1e-10])
    return bool(np.linalg.eigvalsh(vectors.T @ curvature @ vectors)[0] < 1e-5)


def prevalence_variance(concentration: np.ndarray) -> np.ndarray:
    """Return the covariance (K − 1, K − 1) of log π_k − log π_0 for π ~ Dirichlet(concentration)."""
    log_variance = special.polygamma(1, concentration)
    return np.diag(log_variance[1:]) + log_variance[0]


class CoefficientTable:
    """Coefficients with standard errors, as a table.

    Attributes:
        frame: a row per coefficient: coef, std_err, z, p_value, low, high, and the same as odds ratios.
        covariance: the covariance of the coefficients, rows and columns as in `frame`.
        note: which class the log-odds are of, and how the errors were computed.

    Examples:
        >>> import numpy as np
        >>> from rightloss.sklearn.information_gain import InformationGainClassifier
        >>> rng = np.random.default_rng(0)
        >>> y = np.repeat([0, 1], 100)
        >>> x = rng.normal(size=(200, 1)) + y[:, None]
        >>> table = InformationGainClassifier(population=0.01, penalty=None).fit(x, y).summary()
        >>> table.frame[["coef", "std_err"]].round(2)
                   coef  std_err
        x0         0.91     0.17
        intercept -5.07     0.11
    """

    def __init__(self, frame: DataFrame, covariance: DataFrame, note: str) -> None:
        self.frame, self.covariance, self.note = frame, covariance, note

    def __str__(self) -> str:
        return f"{self.frame.to_string(float_format=lambda value: f'{value:.4g}')}\n{self.note}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"{self.frame.to_html(float_format=lambda value: f'{value:.4g}')}<p>{html.escape(self.note)}</p>"


def coefficient_table(
    coefficients: np.ndarray, covariance: np.ndarray, features: list[str], classes: list[object], level: float, note: str
) -> CoefficientTable:
    """Return the table of log-odds against the first class.

    Args:
        coefficients: (K − 1, d + 1), the intercept last.
        covariance: of the coefficients, flattened class by class.
        features: the d names.
        classes: the K labels.
        level: the level of the intervals.
        note: how the errors were computed.
    """
    import pandas as pd

    names = [*features, "intercept"]
    index = pd.Index(names)
    if len(coefficients) > 1:
        index = pd.MultiIndex.from_product([classes[1:], names], names=["class", "feature"])
    coef, error = coefficients.ravel(), np.sqrt(np.diag(covariance))
    z, reach = coef / error, stats.norm.isf((1 - level) / 2) * error
    columns = {
        "coef": coef,
        "std_err": error,
        "z": z,
        "p_value": 2 * stats.norm.sf(np.abs(z)),
        "low": coef - reach,
        "high": coef + reach,
        "odds_ratio": np.exp(coef),
        "odds_ratio_low": np.exp(coef - reach),
        "odds_ratio_high": np.exp(coef + reach),
    }
    return CoefficientTable(pd.DataFrame(columns, index=index), pd.DataFrame(covariance, index, index), note)


def risk_interval(
    features: np.ndarray, coefficients: np.ndarray, covariance: np.ndarray, level: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the limits (n, K) of each class's probability, by the delta method on its logit.

    Args:
        features: X (n, d).
        coefficients: (K − 1, d + 1), the intercept last.
        covariance: of the same, flattened class by class.
        level: the level of the intervals.
    """
    x = np.column_stack([features, np.ones(len(features))])
    table = np.column_stack([np.zeros(len(x)), x @ coefficients.T])
    log_p = table - special.logsumexp(table, axis=1, keepdims=True)
    k, size = table.shape[1], x.shape[1]
    blocks_of = covariance.reshape(k - 1, size, k - 1, size)
    of_odds = np.einsum("na,iajb,nb->nij", x, blocks_of, x)
    logit, gradient = one_vs_rest_logits(log_p)
    reach = stats.norm.isf((1 - level) / 2) * np.sqrt(np.einsum("nci,nij,ncj->nc", gradient, of_odds, gradient))
    return special.expit(logit - reach), special.expit(logit + reach)


def one_vs_rest_logits(log_probs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the log-odds (n, K) of each class against the others, and their derivatives (n, K, K − 1) by η.

    `∂ logit p_k / ∂ η_j = (1{j=k} − p_j)/(1 − p_k)`, η_j the log-odds of class j against class 0.
    """
    k = log_probs.shape[1]
    logit, gradient = np.empty_like(log_probs), np.empty((len(log_probs), k, k - 1))
    for c in range(k):
        rest = special.logsumexp(np.delete(log_probs, c, axis=1), axis=1)
        logit[:, c] = log_probs[:, c] - rest
        gradient[:, c] = np.where(np.arange(1, k) == c, 1.0, -np.exp(log_probs[:, 1:] - rest[:, None]))
    return logit, gradient


def inverse_or_none(hessian: np.ndarray) -> np.ndarray | None:
    """Return the inverse of a positive definite matrix; None if it is not, or almost not, positive definite."""
    if not (np.diag(hessian) > 0).all():
        return None
    scale = 1 / np.sqrt(np.diag(hessian))
    scaled = hessian * np.outer(scale, scale)
    if np.linalg.eigvalsh(scaled)[0] < 1e-10:
        return None
    inverse: np.ndarray = np.linalg.inv(scaled) * np.outer(scale, scale)
    return inverse


def _hessian(fitted: FittedRows, probs: np.ndarray, importance: np.ndarray) -> np.ndarray:
    """Return H by the log-odds against class 0, at probabilities (n, K) and with the loss's weights of the rows (n,)."""
    return sum_of_products(fitted.features, (fitted.weight * importance)[:, None, None] * variance(probs[:, 1:]))
