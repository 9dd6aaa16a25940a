"""The one calibration of the package, q(k|x) ∝ exp(a_k log p(k|x) + b_k), and that with a known mean, which needs no labels.

Stage: `log_probs (n, k)` → calibrated `log_probs`; a mean and no labels → `Calibration` with biases alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import log_softmax

from ..arrays import Numbers, Predictions, array_of, as_given, log_prob_table, logsumexp, map_of, rows_of
from ..prevalence import Mix, log_mix
from ..solve import intercepts_for_mean

LEAST = -1e5  # log of the probability 0: it stays 0 at every slope


@dataclass(frozen=True, eq=False)
class Calibration:
    """q(k|x) ∝ exp(a_k log p(k|x) + b_k): call it with log-probabilities. Made by `fit_calibration` and `fit_mean`.

    The calibrated predictions hold at the mix `sampling`.

    Attributes:
        kind: that of `fit_calibration`; "intercepts" for `fit_mean`.
        slopes: a (K,), at least 0. A slope of 0 answers the label frequencies.
        biases: b (K,), with mean 0.
        sampling: the mean of the calibrated predictions over the rows fitted to (K,). With biases this is the label
            frequencies; without, it is only as good as the predictions.
        counts: the number of labelled rows of each class, by weight (K,); None for `fit_mean`.
        covariance: covariance of the fitted (a, b − log sampling), `(2K, 2K)`, up to a constant added to the second half;
            None for `fit_mean`.

    Examples:
        >>> import numpy as np
        >>> from rightloss.calibration import fit_calibration
        >>> labels = np.array([0, 0, 0, 1, 1, 1])
        >>> log_probs = np.log([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.2, 0.8], [0.6, 0.4], [0.1, 0.9]])
        >>> calibration = fit_calibration(log_probs, labels)
        >>> np.exp(calibration(log_probs)).mean(0).round(3)  # the label frequencies
        array([0.5, 0.5])
    """

    kind: str
    slopes: np.ndarray
    biases: np.ndarray
    sampling: np.ndarray
    counts: np.ndarray | None = field(default=None, repr=False)
    covariance: np.ndarray | None = field(default=None, repr=False)

    @property
    def temperature(self) -> np.ndarray:
        """1 / slopes (K,)."""
        with np.errstate(divide="ignore"):
            return 1 / self.slopes

    @property
    def has_biases(self) -> bool:
        """True if the mix of the calibrated predictions is that of the labels, rather than of the predictions."""
        return self.kind in ("affine", "beta", "intercepts")

    def __call__(self, log_probs: Predictions) -> Any:
        """Return calibrated log-probabilities, `(n, k)` or dense `(n, k, h, w, …)`, with the type and dtype of the input."""
        given = array_of(log_probs, "log_probs")
        rows = log_prob_table(rows_of(given), len(self.slopes))
        return as_given(map_of(self.apply(rows.astype(np.float64)).astype(rows.dtype), given.shape), log_probs)

    def apply(self, log_probs: np.ndarray) -> np.ndarray:
        """Calibrate a float64 table `(n, k)` without checks."""
        if self.kind == "mean":
            return log_probs
        flat = self.slopes == 0  # 0 · log 0 is 0
        logits = np.multiply(log_probs, self.slopes, where=~flat, out=np.zeros_like(log_probs)) + self.biases
        return logits - logsumexp(logits)


def fit_mean(
    log_probs: Predictions, population: Mix, weights: Numbers | None = None, slopes: Numbers | None = None
) -> Calibration:
    """Return the biases with which the mean prediction is the population π; no labels are needed.

    Args:
        log_probs: predictions on rows of the population, `(n, k)` or dense.
        population: π: K frequencies, for two classes that of class 1, or a `Prevalence`.
        weights: of the rows `(n,)`.
        slopes: a (K,); 1 by default.

    Examples:
        >>> import numpy as np
        >>> from rightloss.calibration import fit_mean
        >>> log_probs = np.log([[0.9, 0.1], [0.4, 0.6]])
        >>> np.exp(fit_mean(log_probs, 0.01)(log_probs)).mean(0)
        array([0.99, 0.01])
    """
    table = log_prob_table(rows_of(array_of(log_probs, "log_probs"))).astype(np.float64)
    mean = np.exp(log_mix(population, "population", table.shape[1]))
    share = np.ones(len(table)) if weights is None else array_of(weights, "weights").astype(np.float64)
    a = np.ones(len(mean)) if slopes is None else array_of(slopes, "slopes").astype(np.float64)
    return Calibration("intercepts", a, intercepts_for_mean(a * table.clip(LEAST), mean, share), mean)


def match_mean(log_probs: Predictions, population: Mix, weights: Numbers | None = None) -> Any:
    """Return predictions with biases that make their mean the population π: `fit_mean`, applied to the same rows.

    Examples:
        >>> import numpy as np
        >>> from rightloss.calibration import match_mean
        >>> np.exp(match_mean(np.log([[0.9, 0.1], [0.4, 0.6]]), 0.01)).mean(0)
        array([0.99, 0.01])
    """
    return fit_mean(log_probs, population, weights)(log_probs)


def smooth_likelihoods(log_probs: np.ndarray, population: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return predictions that claim no more than the labelled rows can show: no likelihood ratio exceeds about n_k + 1.

    p(k|x)/π_k is proportional to the likelihood p(x|k). If none of n_k labelled rows of class k looked like x, one in n_k of
    that class still may. So 1/(n_k + 1) is added to each class's share of the likelihood, Σ_k share_k = 1. For two classes
    this keeps the order of the predictions.

    Args:
        log_probs: at the population `(n, k)`.
        population: π (K,).
        counts: labelled rows of each class n_k (K,).

    Examples:
        >>> import numpy as np
        >>> from rightloss.calibration import smooth_likelihoods
        >>> certain = np.log([[1e-9, 1 - 1e-9]])
        >>> np.exp(smooth_likelihoods(certain, np.array([0.5, 0.5]), np.array([49, 49]))).round(2).tolist()
        [[0.02, 0.98]]
    """
    prior = np.log(population)
    shares = np.exp(log_softmax(log_probs - prior, axis=1)) + 1 / (1 + counts)
    return log_softmax(np.log(shares) + prior, axis=1)
