"""The information gain of a whole training set, with the derivatives that a boosting library needs.

Stage: raw scores `(n,)` or `(n, k)`, labels `(n,)`, weights `(n,)` → loss, gradient and positive Hessian, in NumPy.

**The loss.** Let z_nk be the raw scores, the population's logits, p_nk = softmax_k(z_n + log r − log π) the prediction in the
reference mix r, s_n the sample weights, W = Σ_n s_n, v_k = Σ_n s_n 1{y_n=k} / W (with evidence ρ_k, as in the losses),
β_n = r_y/ρ_y at y = y_n, and

    m_k = (1/W) Σ_n s_n β_n p_nk,      c_k = v_k − κ r_k,      a_k = c_k / m_k,      ā_n = Σ_j a_j p_nj.

A boosting round uses all rows, so the marginal m is exact, with its value and gradient; nothing is estimated from a minibatch.
The objective of a library is a sum over rows, W times the mean loss:

    F = −Σ_n s_n log p_{n,y_n} + W Σ_k c_k log m_k.

**Gradient.** ∂m_j/∂z_nk = (s_n β_n / W) p_nj (δ_jk − p_nk), so

    ∂F/∂z_nk = s_n [ p_nk − 1{y_n=k} + β_n p_nk (a_k − ā_n) ].

**Exact Hessian, its diagonal.** With ∂²m_j/∂z_nk² = (s_n β_n / W) p_nj [(δ_jk − p_nk)² − p_nk (1 − p_nk)] and b_k = c_k/m_k²,

    ∂²F/∂z_nk² = s_n [ p_nk (1 − p_nk) + β_n p_nk (1 − 2 p_nk)(a_k − ā_n) ]
                 − (s_n β_n)²/W · p_nk² [ b_k (1 − 2 p_nk) + Σ_j b_j p_nj² ].

It is negative, for example, at a confident row, p_nk > ½, of a class that is predicted too rarely: a_k is then large. A Newton
step there goes the wrong way, and LightGBM and XGBoost divide by the sum of it over a leaf.

**The positive Hessian** bounds the curvature along every tree of one class, that is, along any change of the scores of class k
over all the rows, cross terms between the rows included. For c_j > 0 the tangent bounds c_j log m_j from above; the omitted
term, −W c_j (∂ log m_j)², is never positive. For c_j < 0 the bound is Jensen's inequality, as in the EM algorithm. Together
they give, with a⁺ and a⁻ the positive and negative parts of a,

    s_n [ p_nk (1 − p_nk)(1 + β_n Σ_j a⁻_j p_nj) + β_n Σ_j a⁺_j p_nj ((δ_jk − p_nk)² − p_nk (1 − p_nk)) ].

The last sum does not change when a number is added to all a⁺_j. Subtract the smallest, a'_j = a⁺_j − min a⁺ ≥ 0, then leave out
the negative part of each term:

    h_nk = s_n [ p_nk (1 − p_nk)(1 + β_n Σ_j a⁻_j p_nj) + β_n p_nk (a'_k (1 − 2 p_nk) + p_nk Σ_j a'_j p_nj) ].

So h_nk ≥ s_n p_nk (1 − p_nk), the Hessian of cross-entropy. For the same gradient, steps are never longer than those of the
built-in objective, and equally long if the marginal is right (all a_k equal and not negative). On underflow it is 1e-16, as in
XGBoost, never 0. The bound is on the curvature at the current scores, as for any Newton step. At r = π and a small π, a leaf
with only the rare class still takes a first step of the order of 1/π, at r = ρ of 1/ρ; `max_delta_step` of the libraries limits
it. With K raw scores per row h is multiplied by K/(K − 1), because all K change together (Friedman 2000; LightGBM's own factor;
XGBoost's is 2).

**Where it is the built-in objective.** At r = ρ and κ = 1, c = 0: the marginal's terms vanish, and F is the cross-entropy
of the scores moved to ρ, logit adjustment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

TINY = 1e-290  # smaller marginals are computed in log space
FLOOR = 1e-16  # minimum of the Hessian, as in XGBoost


@dataclass(frozen=True)
class ClassTerms:
    """Prior terms of each class: r, log r − log π, r/ρ, and κ."""

    reference: np.ndarray
    offset: np.ndarray
    weights: np.ndarray
    evidence: float

    @property
    def plain(self) -> bool:
        """Whether r = ρ, which makes every β 1."""
        return bool((self.weights == 1).all())


class ScoredRows(NamedTuple):
    """Raw scores by class `(k, n)`, class numbers `(n,)`, sample weights `(n,)` (None: all 1) and their sum."""

    scores: np.ndarray
    labels: np.ndarray
    sample_weight: np.ndarray | None
    total: float

    def mix(self) -> np.ndarray:
        """Return v (k,), the weighted class frequencies of the rows."""
        return np.bincount(self.labels, self.sample_weight, len(self.scores)) / self.total

    def weigh(self, values: np.ndarray) -> np.ndarray:
        """Return `values (…, n)` times the sample weights."""
        return values if self.sample_weight is None else values * self.sample_weight

    def importance(self, weights: np.ndarray) -> np.ndarray:
        """Return s_n times the weight of the row's class (n,)."""
        return self.weigh(weights[self.labels])


def gain_loss(rows: ScoredRows, terms: ClassTerms) -> float:
    """Return F/W, the mean information gain loss of the rows."""
    table = log_table(rows, terms.offset)
    own = rows.weigh(table[rows.labels, np.arange(len(rows.labels))]).sum() / rows.total
    return float((_excess(rows, terms) * _log_marginal(table, rows, terms)).sum() - own)


def gain_derivatives(rows: ScoredRows, terms: ClassTerms) -> tuple[np.ndarray, np.ndarray]:
    """Return the gradient and the positive Hessian of F by class, `(k, n)` each; the Hessian without the factor K/(K − 1)."""
    table = log_table(rows, terms.offset)
    probs, c = np.exp(table), _excess(rows, terms)
    gradient, hessian = probs.copy(), probs * (1 - probs)
    gradient[rows.labels, np.arange(len(rows.labels))] -= 1
    if c.any():
        log_m = _log_marginal(table, rows, terms)
        beta = terms.weights[rows.labels]
        shares = _shares(table, log_m, beta)
        plus, minus = np.maximum(c, 0)[:, None], np.maximum(-c, 0)[:, None]
        gradient += c[:, None] * shares - probs * (c[:, None] * shares).sum(0)
        with np.errstate(divide="ignore"):
            least = beta * np.exp((np.log(plus[:, 0]) - log_m).min())  # β_n min_k a⁺_k
        own = plus * shares - least * probs
        hessian *= 1 + (minus * shares).sum(0)
        hessian += own * (1 - 2 * probs) + probs**2 * own.sum(0)
    return rows.weigh(gradient), np.maximum(rows.weigh(hessian), FLOOR)


def binary_derivatives(rows: ScoredRows, terms: ClassTerms) -> tuple[np.ndarray, np.ndarray]:
    """Return the row of class 1 of `gain_derivatives` for two classes whose first score is 0, faster.

    With p = p_n1, A = a_1 − a_0, u = a⁻_0 + a'_1 and w = a⁻_1 + a'_0,

        g_n = s_n [ p − y_n + β_n A p (1 − p) ],      h_n = s_n p (1 − p) [ 1 + β_n (u (1 − p) + w p) ].
    """
    odds = np.exp(np.clip(terms.offset[0] - terms.offset[1] - rows.scores[1], -700, 700))
    first = 1 / (1 + odds)  # p of class 1, accurate when it is near 0; odds * first is that of class 0
    c = _excess(rows, terms)
    gradient, spread = rows.weigh(first - rows.labels), rows.weigh(odds * first * first)
    hessian = spread
    if c.any():
        weights = None if terms.plain and rows.sample_weight is None else rows.importance(terms.weights)
        m = np.array([_sum(odds * first, weights), _sum(first, weights)]) / rows.total
        if m.min() < TINY:
            gradient, hessian = gain_derivatives(rows, terms)
            return gradient[1], hessian[1]
        a = c / m
        plus, minus = np.maximum(a, 0), np.maximum(-a, 0)
        plus -= plus.min()
        weighted = spread if terms.plain else spread * terms.weights[rows.labels]
        gradient = gradient + (a[1] - a[0]) * weighted
        at_0, at_1 = minus[0] + plus[1], minus[1] + plus[0]
        hessian = spread + weighted * (at_0 + (at_1 - at_0) * first)
    return gradient, np.maximum(hessian, FLOOR)


def weighted_derivatives(rows: ScoredRows, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the gradient s β (p − 1{y=k}) and Hessian s β p (1 − p) of the weighted loss by class, `(k, n)` each."""
    probs = np.exp(log_table(rows, np.zeros(len(rows.scores))))
    importance, hessian = rows.importance(weights), probs * (1 - probs)
    probs[rows.labels, np.arange(len(rows.labels))] -= 1
    return probs * importance, np.maximum(hessian * importance, FLOOR)


def weighted_loss(rows: ScoredRows, weights: np.ndarray) -> float:
    """Return the mean of −β_n log p(y_n|x_n)."""
    own = log_table(rows, np.zeros(len(rows.scores)))[rows.labels, np.arange(len(rows.labels))]
    return float(-(own * rows.importance(weights)).sum() / rows.total)


def expected_log_loss(rows: ScoredRows, population: np.ndarray) -> float:
    """Return −Σ_k π_k avg_{n: y_n=k} log p(k|x_n), the negative expected log-likelihood in the population."""
    mix = rows.mix()
    if not mix.all():
        absent = np.flatnonzero(mix == 0).tolist()
        raise ValueError(
            f"Expected every class among the rows to evaluate on, but class(es) {absent} are missing: "
            "split by class (train_test_split(stratify=y)), or evaluate on more rows."
        )
    return weighted_loss(rows, population / mix)


def log_table(rows: ScoredRows, offset: np.ndarray) -> np.ndarray:
    """Return log p_nk by class, `(k, n)`: the log-softmax of the scores plus an offset per class."""
    shifted = rows.scores + offset[:, None]
    shifted -= shifted.max(0)
    return shifted - np.log(np.exp(shifted).sum(0))


def _excess(rows: ScoredRows, terms: ClassTerms) -> np.ndarray:
    """Return c = v − κ r (k,), with ρ for v if there is evidence; exactly 0 if only rounding is left."""
    c = (terms.reference / terms.weights if terms.evidence else rows.mix()) - terms.evidence * terms.reference
    return c if np.abs(c).max() > 1e-9 else np.zeros_like(c)


def _log_marginal(table: np.ndarray, rows: ScoredRows, terms: ClassTerms) -> np.ndarray:
    """Return log m (k,)."""
    with np.errstate(divide="ignore"):
        weighted = table + np.log(rows.importance(terms.weights))
    highest = weighted.max(1, keepdims=True)
    return highest[:, 0] + np.log(np.exp(weighted - highest).sum(1)) - np.log(rows.total)


def _shares(table: np.ndarray, log_m: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """Return β_n p_nk / m_k by class: at most W/s_n, also for a small m; capped for rows without weight."""
    return np.exp(np.minimum(table - log_m[:, None], 600)) * beta


def _sum(values: np.ndarray, weights: np.ndarray | None) -> float:
    """Return Σ_n weights_n values_n without a matrix product, because its threads would compete with the library's."""
    return float(values.sum() if weights is None else np.einsum("n,n->", values, weights))
