"""One call after training.

Stage: model, labelled rows, `Prevalence` → `Check`.
"""

from __future__ import annotations

from typing import Any

import torch

from ..inference.steps import checked_level
from ..likelihoods import Likelihood
from ..log_probs import tensor_of
from ..prevalence import Prevalence
from . import questions
from .predictions import Predictor, is_table, labelled, sample_of
from .result import Check

__all__ = ["check"]


def check(
    model: Any,
    data: Any,
    prevalence: Prevalence,
    *,
    likelihood: Likelihood | None = None,
    unlabelled: Any = None,
    groups: Any = None,
    sampled: bool = True,
    level: Any = 0.95,
    batch_size: int = 1024,
) -> Check:
    """Look at a trained model for what can be seen to be wrong, and say what to do about it.

    | row | a model that is right |
    |---|---|
    | label mix | the labels come at ρ, `prevalence.sampling` |
    | mean prediction | Σ_c π_c avg_c p(k given x) is π_k, avg_c being the mean over the rows of class c |
    | calibration slope | 1: log-odds neither too far apart nor too close together |
    | calibration intercept | 0: nothing has to be added to the log-odds |
    | skill | no less than always answering π |
    | logits | outputs are no probabilities yet (modules with a softmax or logistic likelihood) |
    | impossible labels | none had probability 0 (where there are some) |
    | label shift | unlabelled predictions are a mixture of those of the labelled classes (with `unlabelled`) |
    | unlabelled mean | the mean prediction there is π (with `unlabelled`) |

    Slope and intercept are fitted at the rows' own mix, where they are known best: log-odds that are right at one mix of
    classes are right at every one. With more than two classes a row shows the class that stands out most.

    A model that is right gets "ok" in all rows in at least `level` of all cases: each of m tests has the level (1 − `level`)/m,
    and for each of K classes (1 − `level`)/(m K). Figures that rest on few rows are held against Student's t of that many.
    On the rows it was trained on, an overfitted model looks right: use held-out ones.

    Args:
        model: a module, which is called in eval mode without gradients and left in the mode it was in; a `Posterior`; a
            function from x to log-probabilities at the population, such as `PrevalenceLayer.predict` or scikit-learn's
            `predict_log_proba`; or log-probabilities, `(n, k)` or dense `(n, k, h, w, …)`.
        data: `(x, y)`, a data set of such pairs or a loader of batches of them; y alone with log-probabilities. y are class
            numbers, −100 where a row is to be left out, or soft votes `(n, k)`. There must be rows of every class.
        prevalence: π and ρ.
        likelihood: what turns a module's outputs into probabilities; Categorical by default. One with parameters of its own
            must be the trained one, `criterion.likelihood`.
        unlabelled: rows from where the model will be used: x or a loader of x; with log-probabilities, such.
        groups: ids of patients or sites, one per example: those that share one are not independent. Cells of a map share that
            of their image. Copies of an example that a sampler drew repeatedly are recognised, unless augmented.
        sampled: whether the rows were drawn as in training. False leaves out the row about their mix: held-out rows need not
            come at ρ.
        level: of the whole table.
        batch_size: rows that go through the model at once, where `data` is no loader.
    """
    if not isinstance(prevalence, Prevalence):
        raise ValueError(
            f"Expected a Prevalence, which has the population and the sampling mix, but got {type(prevalence).__name__}: write "
            "rightloss.Prevalence([…], sampling=[…])."
        )
    level = checked_level(level)
    with torch.no_grad():
        predict = None if is_table(model) else Predictor(model, prevalence, likelihood, batch_size)
        table, labels, may_repeat = (tensor_of(model, "log_probs"), data, False) if predict is None else labelled(predict, data)
        sample, repeats = sample_of(table, labels, prevalence, groups, may_repeat)
        seen = questions.Evidence.of(sample, repeats)
        mix = questions.label_mix(seen) if sampled else None
        squashed = None if predict is None else predict.squashed
        mix_is_wrong = mix is not None and mix.p_value is not None and mix.p_value < 1e-3
        slope, intercept, remedy = questions.calibration(seen, mix_is_wrong, bool(squashed))
        found = [*([mix] if mix else []), questions.mean_prediction(seen, remedy), slope, intercept, *questions.skill(seen)]
        if squashed is not None:
            found.append(questions.logits(squashed))
        if unlabelled is not None:
            there = tensor_of(unlabelled, "unlabelled") if predict is None else predict(unlabelled)
            found += [questions.label_shift(there, seen), questions.unlabelled_mean(there, seen)]
    size = (1 - level) / max(1, sum(each.p_value is not None for each in found))
    return Check(tuple(each.row(size) for each in found), level, tuple(sample.totals.tolist()))
