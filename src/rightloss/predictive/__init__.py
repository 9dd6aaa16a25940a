"""Predictions at any prevalence, independent of the class frequencies in training.

Stage: `log_probs`, a trained model or a posterior → `log_probs` at any prevalence. The package is also callable:
`rightloss.predictive(…)` calls the function `predictive` in it.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..prevalence import Mix
from .interval import PredictionInterval as PredictionInterval
from .interval import retarget_interval as retarget_interval
from .retarget import retarget as retarget
from .undo import undo_sampling as undo_sampling

if TYPE_CHECKING:
    from ..layer import PrevalenceLayer as PrevalenceLayer

__all__ = ["PredictionInterval", "PrevalenceLayer", "predictive", "retarget", "retarget_interval", "undo_sampling"]


def predictive(
    posterior: Any,
    x: Any,
    population: Mix | None = None,
    samples: int | None = None,
    generator: Any = None,
    batch_size: int | None = None,
) -> Any:
    """Return the log-probabilities of the posterior predictive, p(y|x,X,Y) = ∫ p(y|x,w) p(w|X,Y) dw, at any population.

    The prediction of each draw of the weights is moved to the new mix with `retarget`, then averaged. This changes only the
    intercepts of a draw. With the default reference, the sampled mix, it does not change the likelihood of the training data.
    So, if the prior allows the new intercepts, the result is that of a posterior trained for the new population.

    The order matters: `retarget(predictive(posterior, x), π, π′)` moves the average and gives another result,
    ∝ π′_k avg_w p(k|x,w)/π_k. It gives draws with a larger Σ_k p(k|x,w) π′_k/π_k more weight, as if an x at the new mix were
    evidence about the weights. This function follows the paper's assumption that x without y is no evidence about w. Both
    results are equal if all draws agree.

    Args:
        posterior: the result of a method of `rightloss.inference`, over classes.
        x: the model's input, of any type that it takes; an array becomes a tensor of the model's dtype, and the predictions
            then an array.
        population: the population of the predictions, as `to` of `retarget`. None for that of the posterior.
        samples: draws of the weights, as in `Posterior.predict`.
        generator: for the draws; one with a fixed seed by default.
        batch_size: rows of x per call of the model; all by default.

    Returns:
        Log-probabilities `(n, k)`, or dense `(n, k, h, w, …)`: those of `posterior.predict(x, population=…)`, which also gives
        entropies and intervals.

    Examples:
        >>> import torch
        >>> import rightloss as rl
        >>> from rightloss.inference import log_posterior, map_estimate
        >>> y = torch.arange(200) % 2
        >>> x = torch.randn(200, 2) + y[:, None]
        >>> model, prevalence = torch.nn.Linear(2, 2), rl.Prevalence.binary(0.1)
        >>> posterior = map_estimate(log_posterior(model, prevalence), (x, y), steps=20)
        >>> rl.predictive(posterior, x[:3], population=0.3).exp().sum(1).round(decimals=4)
        tensor([1., 1., 1.])
    """
    if not all(hasattr(posterior, name) for name in ("predict", "sample", "prevalence")):
        kind = type(posterior).__name__
        raise ValueError(f"Expected `posterior` to be a Posterior, but got {kind}: wrap a trained model in a PrevalenceLayer.")
    return posterior.predict(x, samples, generator, batch_size=batch_size, population=population).log_probs


class _CallablePackage(ModuleType):
    __call__ = staticmethod(predictive)

    def __getattr__(self, name: str) -> Any:
        if name != "PrevalenceLayer":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from ..layer import PrevalenceLayer

        return PrevalenceLayer


sys.modules[__name__].__class__ = _CallablePackage
