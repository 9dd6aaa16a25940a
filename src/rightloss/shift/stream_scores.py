"""Scores that distinguish labelled from unlabelled rows: learn them on some parts of the rows, and test them on another.

Stage: rows → features → `Learner`, which gives directions; `HeldOutPart` → z-values of scores, and an AUC.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtri

from .regions import normal_score

if TYPE_CHECKING:
    from jaxtyping import Float64

_MOST_COLUMNS = 50  # with more columns, their leading principal components are used
_MOST_IN_PAIRS = 20  # the same for products of two columns
MEANS, SPREADS, PAIRS = "means", "spreads", "pairs"


def features_of(rows: np.ndarray, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return standardised features `(rows, q)`, without constant ones, and the kind of each (q,).

    They are normal scores of the columns, their squares, and products of two of them. NaN is replaced by the mean of the
    column's finite values, and by 0 in a column without any.
    """
    finite = np.isfinite(rows)
    means = np.where(finite, rows, 0).sum(0) / finite.sum(0).clip(1)
    scores = normal_scores(np.where(np.isnan(rows), means, rows))
    scores = scores[:, scores.std(0) > 0]
    if scores.shape[1] == 0:
        raise ValueError("Expected a column of `x` that varies, but got only constant ones: pass features that vary.")
    scores = _components(scores, _MOST_COLUMNS, generator)
    few = _components(scores, _MOST_IN_PAIRS, generator)
    first, second = np.triu_indices(few.shape[1], 1)
    blocks = [scores, scores**2, few[:, first] * few[:, second]]
    kinds = np.repeat([MEANS, SPREADS, PAIRS], [block.shape[1] for block in blocks])
    centred = np.concatenate(blocks, 1)
    centred -= centred.mean(0)
    spread = centred.std(0)
    kept = spread > math.sqrt(np.finfo(np.float64).eps)
    return centred[:, kept] / spread[kept], kinds[kept]


def normal_scores(table: Float64[np.ndarray, "n d"]) -> Float64[np.ndarray, "n d"]:
    """Return Φ⁻¹(rank/n) of each column, with the middle rank for ties; monotone changes of a column have no effect."""
    from scipy.stats import rankdata  # 0.3 s, which other functions need not wait for

    scores = ndtri((rankdata(table, axis=0) - 0.5) / len(table))
    return scores - scores.mean(0)


def _components(table: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
    """Return normal scores of the leading principal components, if there are more columns than `count`.

    By a randomised singular value decomposition (Halko et al. 2011).
    """
    if table.shape[1] <= count:
        return table
    found = table @ generator.standard_normal((table.shape[1], min(count + 10, table.shape[1])))
    for _ in range(3):
        found = table @ (table.T @ np.linalg.qr(found)[0])
    directions = np.linalg.svd(np.linalg.qr(found)[0].T @ table, full_matrices=False)[2][:count]
    return normal_scores(table @ directions.T)


class Learner:
    """Means of the features in each stream and their covariance, over the training rows.

    A direction is (C + λ)⁻¹ δ, for a difference δ of means of n rows: the linear discriminant with a ridge. With q features
    of a kind and e = max(0, |δ|² − q/n), the part of the squared difference that is not noise, λ = q / (n e + √2q), as for a
    normal prior of that variance, which is never below the standard error of e.

    Args:
        features: of the training rows `(rows, q)`.
        votes: with a column for the unlabelled `(rows, K + 1)`.
        kinds: the kind of each feature (q,).
    """

    def __init__(self, features: np.ndarray, votes: np.ndarray, kinds: np.ndarray) -> None:
        mean, self.kinds, self._weights = features.mean(0), kinds, votes.sum(0)
        self._means = votes.T @ features / self._weights[:, None]
        self._covariance = features.T @ features / len(features) - np.outer(mean, mean)

    def direction(self, contrast: np.ndarray, kind: str | None = None) -> np.ndarray:
        """Return the direction (q,) for Σ_j contrast_j mean_j, with features of one kind, or of all kinds."""
        own = np.full(len(self.kinds), True) if kind is None else self.kinds == kind
        found = np.zeros(len(own))
        found[own] = np.linalg.solve(self._ridged(contrast)[np.ix_(own, own)], (contrast @ self._means)[own])
        return found

    def class_directions(self) -> np.ndarray:
        """Return the directions that separate each class from the others `(q, K)`; one column for two classes."""
        size = len(self._weights) - 1
        contrasts = np.append(np.eye(size) * size / (size - 1) - 1 / (size - 1), np.zeros((size, 1)), 1)
        return np.stack([self.direction(contrast) for contrast in contrasts[1 if size == 2 else 0 :]], 1)

    def mix(self) -> np.ndarray:
        """Return the π (K,) whose mixture is closest to the unlabelled rows, moved into the simplex."""
        size = len(self._weights) - 1
        root = np.linalg.cholesky(np.linalg.inv(self._ridged(np.append(np.full(size, 1 / size), -1.0))))
        classes, unlabelled = self._means[:-1] @ root, self._means[-1] @ root
        rest = np.linalg.lstsq((classes[1:] - classes[0]).T, unlabelled - classes[0], rcond=None)[0]
        return _in_simplex(np.append(1 - rest.sum(), rest))

    def _ridged(self, contrast: np.ndarray) -> np.ndarray:
        """Return C + λ `(q, q)`."""
        rows = 1 / float((contrast**2 / self._weights).sum())
        delta, ridge = contrast @ self._means, np.empty(len(self.kinds))
        for kind in np.unique(self.kinds):
            own = self.kinds == kind
            count = int(own.sum())
            energy = max(0.0, float(delta[own] @ delta[own]) - count / rows)
            ridge[own] = count / (rows * energy + math.sqrt(2 * count))
        return self._covariance + np.diag(ridge)


class HeldOutPart:
    """The rows of one part.

    Args:
        votes: with a column for the unlabelled `(rows, K + 1)`.
        groups: the number of each row's group (rows,).

    Attributes:
        effective: the effective number of groups in each stream (K + 1,), less if they are unequal (Kish).
    """

    def __init__(self, votes: np.ndarray, groups: np.ndarray) -> None:
        self.votes = votes
        names, self.groups = np.unique(groups, return_inverse=True)
        self._groups = len(names)
        by_group = self._summed(votes)
        self.effective = by_group.sum(0) ** 2 / (by_group**2).sum(0).clip(1e-300)

    def means(self, scores: np.ndarray) -> np.ndarray:
        """Return the mean of each score in each stream `(K + 1, scores)`."""
        return (self.votes.T @ scores) / self.votes.sum(0)[:, None]

    def z_values(
        self, scores: np.ndarray, pi: np.ndarray, delta: np.ndarray | None = None, more: np.ndarray | float = 0.0
    ) -> np.ndarray:
        """Return Δ of each score over its standard error (Welch's t), as the normal value with the same tail probability.

        A score that is constant in each stream gets the variance of one differing row per stream, not 0.

        Args:
            scores: s, a column for each score.
            pi: π (K,).
            delta: Δ of each score, by default Σ_k π_k E_k[s] − E_u[s].
            more: an additional variance of each Δ, such as `mix_variance`.
        """
        contrast = np.append(pi, -1.0)
        delta = contrast @ self.means(scores) if delta is None else delta
        z, more = np.zeros(len(delta)), np.broadcast_to(more, delta.shape)
        for index, score in enumerate(scores.T):
            variance, degrees = self._variance(score, contrast)
            variance = max(variance + float(more[index]), float(score.var() * (contrast**2 / self.effective**2).sum()))
            if variance > 1e-24:
                z[index] = math.copysign(normal_score(delta[index] / math.sqrt(variance), degrees), delta[index])
        return z

    def without_mix(self, scores: np.ndarray, classes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return π̂ of this part, scores whose mean is 0 in every class, and K scores whose mean in class j is 1{j = k}.

        The last, t, are affine in the classes' scores; their mean over the unlabelled is π̂. A score s becomes
        s − Σ_k t_k E_k[s], whose Δ is the same for every π.
        """
        both = np.append(classes, np.ones((len(classes), 1)), 1)
        indicators = both @ np.linalg.pinv(self.means(both)[:-1])
        found = _in_simplex(self.means(indicators)[-1])
        return found, scores - indicators @ self.means(scores)[:-1], indicators

    def mix_variance(self, scores: np.ndarray, indicators: np.ndarray, pi: np.ndarray) -> np.ndarray:
        """Return Σ_k Var(π̂_k) Var(E_k[s]) of each score: the variance of π̂ times that of the means, large for few rows."""
        of_mix = [self._variance(score, np.append(pi, -1.0))[0] for score in indicators.T]
        alone = np.eye(len(pi) + 1)[:-1]
        return np.array([np.dot(of_mix, [self._variance(score, each)[0] for each in alone]) for score in scores.T])

    def auc(self, score: np.ndarray, pi: np.ndarray) -> tuple[float, float]:
        """Return Σ_k π_k P(s of class k > s unlabelled), with ties as one half, and its variance (DeLong et al. 1988)."""
        share = self.votes / self.votes.sum(0)
        labelled, unlabelled = share[:, :-1] @ pi, share[:, -1]
        placed = np.where(unlabelled > 0, _below(score, labelled), _below(score, unlabelled))
        return float(labelled @ placed), self._variance(placed, np.append(pi, -1.0))[0]

    def _variance(self, score: np.ndarray, contrast: np.ndarray) -> tuple[float, float]:
        """Return the variance of Σ_j contrast_j mean_j between groups, and its degrees of freedom (Satterthwaite)."""
        degrees = self.effective - 1
        influence = contrast * self.votes / self.votes.sum(0) * (score[:, None] - self.means(score[:, None])[:, 0])
        by_group = self._summed(influence) * np.sqrt(1 + 1 / degrees)
        alone = (by_group**2).sum(0)
        joint = float((alone**2 / degrees).sum())
        return float((by_group.sum(1) ** 2).sum()), float(alone.sum()) ** 2 / joint if joint > 0 else float(degrees.min())

    def _summed(self, values: np.ndarray) -> np.ndarray:
        """Return sums over each group."""
        if self._groups == len(values):
            return values
        return np.stack([np.bincount(self.groups, column, self._groups) for column in values.T], 1)


def _below(score: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return the weight of rows with a smaller score, and half of that of equal ones (rows,)."""
    order = score.argsort(kind="stable")
    total, ordered = np.append(0.0, weight[order].cumsum()), score[order]
    return (total[np.searchsorted(ordered, score, "left")] + total[np.searchsorted(ordered, score, "right")]) / 2


def _in_simplex(mix: np.ndarray) -> np.ndarray:
    """Return the mix with its negative entries set to about 1e-6."""
    kept = mix.clip(1e-6)
    return kept / kept.sum()
