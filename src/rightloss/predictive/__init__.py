"""Predictions at the prevalence where they are used, whatever mix of classes the model was trained on.

Stage: `log_probs`, a trained model or a posterior → `log_probs` at any prevalence. The package itself can be called: it is
then the function `predictive` in it, so that `rightloss.predictive` is both.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch

from ..inference.posterior import Posterior
from ..prevalence import Mix
from .interval import PredictionInterval as PredictionInterval
from .interval import retarget_interval as retarget_interval
from .layer import PrevalenceLayer as PrevalenceLayer
from .retarget import retarget as retarget
from .undo import undo_sampling as undo_sampling

__all__ = ["PredictionInterval", "PrevalenceLayer", "predictive", "retarget", "retarget_interval", "undo_sampling"]


def predictive(
    posterior: Posterior,
    x: Any,
    population: Mix | None = None,
    samples: int | None = None,
    generator: torch.Generator | None = None,
    batch_size: int | None = None,
) -> Any:
    """Return the log-probabilities of the posterior predictive, p(y|x,X,Y) = ∫ p(y|x,w) p(w|X,Y) dw, at any population.

    Each draw of the weights is moved to the new mix, as `retarget` would move it, and then the average is taken. A draw
    moves by a change of its intercepts alone. With the reference at the sampled mix, the default, the likelihood of the
    training data does not change with it; so, where the prior lets the intercepts move along, this is what a posterior
    trained for the new population predicts.

    To `retarget` the average, `retarget(predictive(posterior, x), π, π′)`, gives another number: Bayes' rule with p(x|k)
    averaged over the draws, ∝ π′_k avg_w p(k|x,w)/π_k. In it a draw counts the more the larger its Σ_k p(k|x,w) π′_k/π_k:
    an x met at the new mix is then evidence about the weights if it was none at the old mix. Here it is no evidence: that x
    without y says nothing about w, in the mix in which it is met, is the paper's assumption. The two agree where the draws do.

    Args:
        posterior: the result of a method of `rightloss.inference`, over classes.
        x: the model's input, of any type that it takes; an array becomes a tensor of the model's dtype, and the predictions
            then an array.
        population: where they are to be used: as `to` of `retarget`. None: the posterior's own.
        samples: draws of the weights, as in `Posterior.predict`.
        generator: of the draws; one of a fixed seed by default.
        batch_size: rows of x that go through the model at once; all by default.

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
    given: Any = posterior
    if not isinstance(given, Posterior):
        kind = type(given).__name__
        raise ValueError(f"Expected `posterior` to be a Posterior, but got {kind}: wrap a trained model in a PrevalenceLayer.")
    return posterior.predict(x, samples, generator, batch_size=batch_size, population=population).log_probs


class _CallablePackage(ModuleType):
    __call__ = staticmethod(predictive)


sys.modules[__name__].__class__ = _CallablePackage
