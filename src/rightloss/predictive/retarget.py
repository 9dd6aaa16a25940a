"""Move predictions to other class frequencies.

Stage: `log_probs` at one mix → `log_probs` at another.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays import Array, Predictions, array_or_tensor, is_traced, log_prob_table, multiply_classes, rows_of
from ..finding_tables import map_findings
from ..prevalence import FindingMix, Mix, MultilabelPrevalence, Prevalence, by_finding, log_mix


def retarget(log_probs: Predictions, from_: Mix | FindingMix, to: Mix | FindingMix) -> Any:
    """Return predictions for other class frequencies, without retraining.

    By Bayes' rule p_from(k|x) ∝ p(x|k) from_k and p_to(k|x) ∝ p(x|k) to_k. If p(x|k) is the same in both (label shift), it
    cancels:

        log p_to(k|x) = log p_from(k|x) + log to_k − log from_k − log Σ_j p_from(j|x) to_j / from_j.

    `to = from_` is exactly the identity, a probability of 0 stays 0, and the reverse call undoes it up to rounding.

    **An uncertain `to`** is used with its mean E[π], which is exact for one new person. With π unknown,
    p(y, x) = ∫ p(x|y) π_y p(π) dπ = p(x|y) E[π_y], so p(y|x) ∝ p(x|y) E[π_y]: the prediction at the mean. The same number is
    ∫ p(y|x,π) p(π|x) dπ, where p(π|x) is not p(π), because x is evidence about π. For the change of the prediction if π were
    known, see [`retarget_interval`][rightloss.predictive.retarget_interval].

    **An estimate** (`estimate_prevalence`) is used as the uncertain `Prevalence` from its `prevalence()`, with the mean of
    that: the estimate itself, except that a class estimated at or near 0 gets about 0.8 of its standard error, because 0 would
    exclude the class for all rows.

    Args:
        log_probs: log-probabilities `(n, k)`, or dense maps `(n, k, h, w, …)`; tensor or array.
        from_: their current mix: a number (two classes: how often class 1 occurs), K frequencies, a `Prevalence` (its
            population), an estimate of one, or one mix per example, `(n, k)`, for two classes also `(n, 1)`.
        to: the new mix, in the same form.

    **Several findings** (multi-label): `log_probs` `(n, L)`, the log-probability that each finding is present, such as
    `F.logsigmoid(logits)`, or tables `(n, 2, L)`. One of `from_` and `to` is a `Prevalence.multilabel`; the other may also be
    L rates, a dict by name, or rates per example `(n, L)`.

    Returns:
        Log-probabilities of the same shape, dtype and type; tensors keep their gradients.

    Raises:
        ValueError: `log_probs` that are not log-probabilities; frequencies that are not positive or do not sum to 1.

    Examples:
        >>> import numpy as np
        >>> import rightloss as rl
        >>> log_probs = np.log([[0.2, 0.8]])  # of a model trained on equal classes
        >>> np.exp(rl.retarget(log_probs, from_=0.5, to=0.01)).round(3)
        array([[0.961, 0.039]])
    """
    if isinstance(from_, MultilabelPrevalence) or isinstance(to, MultilabelPrevalence):
        names = from_.names if isinstance(from_, MultilabelPrevalence) else to.names  # type: ignore[union-attr]
        refuse_patterns(to, from_)
        rows = len(array_or_tensor(log_probs, "log_probs"))
        starts, ends = by_finding(from_, "from_", names, rows), by_finding(to, "to", names, rows)
        return map_findings(log_probs, names, lambda table, number: retarget(table, starts[number], ends[number]))
    table = class_table(log_probs)
    rows, num_classes = table.shape[:2]
    start, end = log_mix(from_, "from_", num_classes, rows), log_mix(to, "to", num_classes, rows)
    return multiply_classes(table, end - start)


def refuse_patterns(prevalence: Any, predicted_at: Any) -> None:
    """Raise a ValueError for predictions at the mix of images that were sampled by their findings together."""
    patterns = getattr(prevalence, "patterns", None)
    if patterns is None or isinstance(predicted_at, MultilabelPrevalence):
        return
    at = by_finding(predicted_at, "from_", prevalence.names)
    rates = zip(at, prevalence.sampling.tolist(), strict=True)
    if all(np.ndim(rate) == 0 and not isinstance(rate, Prevalence) and abs(float(rate) - rho) < 1e-6 for rate, rho in rates):
        raise ValueError(
            "Expected predictions at the population, but got those of images sampled by their findings together, which rates "
            "cannot correct: train with one of rightloss's losses, or with the weights `prevalence.patterns.of_rows(y)`."
        )


def class_table(log_probs: Predictions) -> Array:
    """Return `log_probs`, checked, as an array or a tensor: `(n, k)`, or dense with the classes in dimension 1."""
    table = array_or_tensor(log_probs, "log_probs")
    if not is_traced(table):
        log_prob_table(log_probs if table.ndim <= 2 else rows_of(table))
    return table
