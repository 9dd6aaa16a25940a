"""Restate predictions for another mix of classes.

Stage: `log_probs` at one mix → `log_probs` at another.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor

from ..log_probs import Predictions, as_given, log_prob_table, multiply_classes, rows_of, tensor_of
from ..prevalence import Mix, log_mix


def retarget(log_probs: Predictions, from_: Mix, to: Mix) -> Any:
    """Restate predictions made for one mix of classes for another; no retraining.

    By Bayes p_from(k|x) ∝ p(x|k) from_k and p_to(k|x) ∝ p(x|k) to_k. Where p(x|k), what a class looks like, is the same in
    both (label shift), it cancels:

        log p_to(k|x) = log p_from(k|x) + log to_k − log from_k − log Σ_j p_from(j|x) to_j / from_j.

    `to = from_` is exactly the identity, a probability of 0 stays 0, and there and back is where one was, but for rounding.

    **An uncertain `to`** counts with its mean E[π], and for one new person that is exact. With π unknown,
    p(y, x) = ∫ p(x|y) π_y p(π) dπ = p(x|y) E[π_y], so p(y|x) ∝ p(x|y) E[π_y]: the prediction at the mean. The same number is
    ∫ p(y|x,π) p(π|x) dπ, where p(π|x) is not p(π), since x itself tells of π. How far the prediction would move if π became
    known is [`retarget_interval`][rightloss.predictive.retarget_interval].

    **An estimate** (`estimate_prevalence`) counts as the uncertain `Prevalence` that its `prevalence()` gives, so with that
    one's mean: the estimate itself, except that a class estimated at or near 0 keeps about 0.8 of its standard error, since a
    0 would rule the class out for everybody.

    Args:
        log_probs: log-probabilities `(n, k)`, or dense maps `(n, k, h, w, …)`; tensor or array.
        from_: the mix they are for: a number (two classes: how often class 1 occurs), K frequencies, a `Prevalence` (its
            population), an estimate of one, or one mix per example, `(n, k)`, for two classes also `(n, 1)`.
        to: the mix to state them for, written likewise.

    Returns:
        Log-probabilities of the same shape, dtype and kind. Gradients pass through a tensor.

    Raises:
        ValueError: `log_probs` that are not log-probabilities; frequencies that are not positive or do not sum to 1.

    Examples:
        >>> import numpy as np
        >>> import rightloss as rl
        >>> log_probs = np.log([[0.2, 0.8]])  # of a model trained on equal classes
        >>> np.exp(rl.retarget(log_probs, from_=0.5, to=0.01)).round(3)
        array([[0.961, 0.039]])
    """
    table = class_table(log_probs)
    rows, num_classes = table.shape[:2]
    offset = log_mix(to, "to", num_classes, rows) - log_mix(from_, "from_", num_classes, rows)
    return as_given(multiply_classes(table, offset), log_probs)


def class_table(log_probs: Predictions) -> Float[Tensor, "n k *dense"]:
    """Return `log_probs` as a tensor, checked: `(n, k)`, or dense with the classes in dimension 1."""
    table = tensor_of(log_probs, "log_probs")
    log_prob_table(rows_of(table))
    return table
