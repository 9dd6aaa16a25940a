"""Learn scores that distinguish labelled from unlabelled rows on some parts, and test them on another.

Stage: `Streams` → `Learner`, which gives directions; `HeldOutPart` → z-values of scores, and an AUC.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .shift_features import Streams


@dataclass(frozen=True)
class Learner:
    """Means of the features in each stream and their covariance, over the training rows.

    A direction is (C + λ)⁻¹ δ, for a difference δ of means of n rows: the linear discriminant with a ridge. With q features
    of a kind and e = max(0, |δ|² − q/n), the part of the squared difference that is not noise, λ = q / (n e + √2q), as for a
    normal prior of that variance, which is never below the standard error of e.
    """

    weights: np.ndarray
    means: np.ndarray
    covariance: np.ndarray
    kinds: np.ndarray

    @classmethod
    def of(cls, data: Streams, part: int) -> Learner:
        """Learn from the parts before `part`."""
        features, votes = data.features[data.part < part], data.votes[data.part < part]
        mean, weights = features.mean(0), votes.sum(0)
        spread = features.T @ features / len(features) - np.outer(mean, mean)
        return cls(weights, votes.T @ features / weights[:, None], spread, data.kinds)

    def direction(self, contrast: np.ndarray, kind: str | None = None) -> np.ndarray:
        """Return the direction (q,) for Σ_j contrast_j mean_j, with features of one kind, or of all kinds."""
        own = np.ones(len(self.kinds), dtype=bool) if kind is None else self.kinds == kind
        delta = contrast @ self.means
        found = np.zeros(len(delta))
        found[own] = np.linalg.solve((self.covariance + np.diag(self.ridge(contrast)))[np.ix_(own, own)], delta[own])
        return found

    def ridge(self, contrast: np.ndarray) -> np.ndarray:
        """Return λ for each feature (q,)."""
        rows = 1 / float((contrast**2 / self.weights).sum())
        delta, ridge = contrast @ self.means, np.empty(len(self.kinds))
        for kind in np.unique(self.kinds):
            own = self.kinds == kind
            count = int(own.sum())
            energy = max(0.0, float(delta[own] @ delta[own]) - count / rows)
            ridge[own] = count / (rows * energy + math.sqrt(2 * count))
        return ridge

    def stream_direction(self, pi: np.ndarray, kind: str | None = None) -> np.ndarray:
        """Return the direction that separates the labelled rows, weighted to π, from the unlabelled."""
        return self.direction(np.append(pi, -1.0), kind)

    def class_directions(self) -> np.ndarray:
        """Return the directions that separate each class from the others `(q, K)`; one column for two classes."""
        size = len(self.weights) - 1
        contrasts = np.append(np.eye(size) * size / (size - 1) - 1 / (size - 1), np.zeros((size, 1)), 1)
        return np.stack([self.direction(contrast) for contrast in contrasts[1 if size == 2 else 0 :]], 1)

    def mix(self) -> np.ndarray:
        """Return the π (K,) whose mixture is closest to the unlabelled rows, moved into the simplex."""
        size = len(self.weights) - 1
        contrast = np.append(np.full(size, 1 / size), -1.0)
        root = np.linalg.cholesky(np.linalg.inv(self.covariance + np.diag(self.ridge(contrast))))
        classes, unlabelled = self.means[:-1] @ root, self.means[-1] @ root
        rest = np.linalg.lstsq((classes[1:] - classes[0]).T, unlabelled - classes[0], rcond=None)[0]
        return in_simplex(np.append(1 - rest.sum(), rest))


@dataclass(frozen=True)
class HeldOutPart:
    """The rows of one part: votes with a column for the unlabelled `(rows, K + 1)`, and groups (rows,)."""

    votes: np.ndarray
    groups: np.ndarray

    @cached_property
    def effective(self) -> np.ndarray:
        """The effective number of groups in each stream (K + 1,), less if they are unequal (Kish)."""
        by_group = self._summed(self.votes)
        return by_group.sum(0) ** 2 / (by_group**2).sum(0).clip(1e-300)

    def means(self, scores: np.ndarray) -> np.ndarray:
        """Return the mean of each score in each stream `(K + 1, scores)`."""
        return (self.votes.T @ scores) / self.votes.sum(0)[:, None]

    def z_values(self, scores: np.ndarray, pi: np.ndarray, more: np.ndarray | float = 0.0) -> np.ndarray:
        """Return Δ = Σ_k π_k E_k[s] − E_u[s] of each score over its standard error, as a normal value.

        Args:
            scores: s, a column for each score.
            pi: π (K,).
            more: an additional variance of each Δ, such as `mix_variance`.
        """
        contrast = np.append(pi, -1.0)
        return self._normal(scores, contrast, contrast @ self.means(scores), more)

    def z_of_absence(self, indicators: np.ndarray, pi: np.ndarray) -> np.ndarray:
        """Return −π̂_k over its standard error, from scores whose mean in class j is 1{j = k}."""
        return self._normal(indicators, np.append(pi, -1.0), -self.means(indicators)[-1])

    def without_mix(self, scores: np.ndarray, classes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return π̂ of this part, scores whose mean is 0 in every class, and K scores whose mean in class j is 1{j = k}.

        The last, t, are affine in the classes' scores; their mean over the unlabelled is π̂. A score s becomes
        s − Σ_k t_k E_k[s], whose Δ is the same for every π.
        """
        both = np.append(classes, np.ones((len(classes), 1)), 1)
        indicators = both @ np.linalg.pinv(self.means(both)[:-1])
        found = in_simplex(self.means(indicators)[-1])
        return found, scores - indicators @ self.means(scores)[:-1], indicators

    def mix_variance(self, scores: np.ndarray, indicators: np.ndarray, pi: np.ndarray) -> np.ndarray:
        """Return Σ_k Var(π̂_k) Var(E_k[s]) of each score: the variance of π̂ times that of the means, large for few rows."""
        of_mix = [self._variance(score, np.append(pi, -1.0))[0] for score in indicators.T]
        alone = np.eye(len(pi) + 1)[:-1]
        return np.array(
            [sum(v * self._variance(score, e)[0] for v, e in zip(of_mix, alone, strict=True)) for score in scores.T]
        )

    def auc(self, score: np.ndarray, pi: np.ndarray) -> tuple[float, float]:
        """Return Σ_k π_k P(s of class k > s unlabelled), with ties as one half, and its variance (DeLong et al. 1988)."""
        share = self.votes / self.votes.sum(0)
        labelled, unlabelled = share[:, :-1] @ pi, share[:, -1]
        placed = np.where(unlabelled > 0, _below(score, labelled), _below(score, unlabelled))
        return float(labelled @ placed), self._variance(placed, np.append(pi, -1.0))[0]

    def _normal(
        self, scores: np.ndarray, contrast: np.ndarray, delta: np.ndarray, more: np.ndarray | float = 0.0
    ) -> np.ndarray:
        """Return Welch's t as the normal value with the same tail probability (Wallace 1959).

        A score that is constant in each stream gets the variance of one differing row per stream, not 0.
        """
        z, more = np.zeros(len(delta)), np.broadcast_to(more, delta.shape)
        for index, (score, difference) in enumerate(zip(scores.T, delta, strict=True)):
            variance, degrees = self._variance(score, contrast)
            variance = max(variance + float(more[index]), float(score.var() * (contrast**2 / self.effective**2).sum()))
            if variance > 1e-24:
                squared = float(difference) ** 2 / variance
                root = math.sqrt(degrees * math.log1p(squared / degrees))
                z[index] = math.copysign((8 * degrees + 1) / (8 * degrees + 3) * root, difference)
        return z

    def _variance(self, score: np.ndarray, contrast: np.ndarray) -> tuple[float, float]:
        """Return the variance of Σ_j contrast_j mean_j between groups, and its degrees of freedom (Satterthwaite)."""
        degrees = self.effective - 1
        influence = contrast * self.votes / self.votes.sum(0) * (score[:, None] - self.means(score[:, None])[:, 0])
        by_group = self._summed(influence) * np.sqrt(1 + 1 / degrees)
        alone = (by_group**2).sum(0)
        joint = float((alone**2 / degrees).sum())
        return float((by_group.sum(1) ** 2).sum()), float(alone.sum()) ** 2 / joint if joint > 0 else float(degrees.min())

    @cached_property
    def _group_index(self) -> tuple[int, np.ndarray]:
        names, index = np.unique(self.groups, return_inverse=True)
        return len(names), index

    def _summed(self, values: np.ndarray) -> np.ndarray:
        """Return sums over each group."""
        count, index = self._group_index
        if count == len(values):
            return values
        return np.stack([np.bincount(index, column, count) for column in values.T], 1)


def _below(score: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return the weight of rows with a smaller score, and half of that of equal ones (rows,)."""
    order = score.argsort(kind="stable")
    total, ordered = np.append(0.0, weight[order].cumsum()), score[order]
    return (total[np.searchsorted(ordered, score, "left")] + total[np.searchsorted(ordered, score, "right")]) / 2


def in_simplex(mix: np.ndarray) -> np.ndarray:
    """Return the mix with its negative entries set to about 1e-6."""
    kept = mix.clip(1e-6)
    return kept / kept.sum()
