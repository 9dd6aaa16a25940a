"""A posterior's predictions where the classes come in another mix.

Stage: `Posterior`, x → `log_probs` at any population.
"""

from __future__ import annotations

from typing import Any

from ..inference.posterior import Posterior


def predictive(
    posterior: Any, x: Any, population: Any = None, samples: Any = None, generator: Any = None, batch_size: Any = None
) -> Any:
    """Log-probabilities of the posterior predictive, p(y|x,X,Y) = ∫ p(y|x,w) p(w|X,Y) dw, at any population.

    Each draw of the weights is moved to the new mix, as `retarget` would move it, and then the average is taken. A draw
    moves by a change of its intercepts alone. With the reference at the sampled mix, the default, the likelihood of the
    training data does not feel it; so, where the prior lets the intercepts move along, this is what a posterior trained for
    the new population predicts.

    To `retarget` the average, `retarget(predictive(posterior, x), π, π′)`, gives another number: Bayes' rule with p(x|k)
    averaged over the draws, ∝ π′_k avg_w p(k|x,w)/π_k. In it a draw counts the more the larger its Σ_k p(k|x,w) π′_k/π_k,
    since an x that is met at the new mix speaks for some weights and against others if it spoke for none at the old one. Here
    it speaks for none: that x without y says nothing about w, in the mix in which it is met, is the paper's assumption. The
    two agree where the draws do.

    Args:
        posterior: what a method of `rightloss.inference` returned, over classes.
        x: what the model takes; an array becomes a tensor of the model's dtype, and the predictions then an array.
        population: where they are to be used: whatever `retarget` takes as `to`. None: the posterior's own.
        samples: draws of the weights, as in `Posterior.predict`.
        generator: of the draws; one of a fixed seed by default.
        batch_size: rows of x that go through the model at once; all by default.

    Returns:
        Log-probabilities `(n, k)`, or dense `(n, k, h, w, …)`: those of `posterior.predict(x, population=…)`, which also gives
        entropies and intervals.
    """
    if not isinstance(posterior, Posterior):
        kind = type(posterior).__name__
        raise ValueError(f"Expected `posterior` to be a Posterior, but got {kind}: wrap a trained model in a PrevalenceLayer.")
    return posterior.predict(x, samples, generator, batch_size=batch_size, population=population).log_probs
