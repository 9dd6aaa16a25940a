"""The page's glossary: losses and terms in a line each.

Stage: `StudyConfig` → names and what they mean.
"""

from __future__ import annotations

from ..config import StudyConfig
from ..methods import METHODS
from ..summary import wording

LOSSES = {
    "information-gain": "log p(y|x) − log p(y), where p(y) is the average prediction in the proportions of training; the known "
    "prevalence counts as evidence. The default of rightloss.",
    "published": "the paper's loss (bayesIG): the same gain, with the average in the population's proportions and without "
    "evidence.",
    "weighted": "cross-entropy in which each example has the weight π/ρ of its class; ρ is its share in training (the paper's "
    "wLoss).",
    "logit-adjusted": "cross-entropy of log-odds that were moved from π to the proportions of training; the net itself answers "
    "for π.",
    "corrected": "cross-entropy; afterwards, predictions are moved from the proportions of training to π by Bayes' rule.",
    "plain": "cross-entropy without any correction: the net answers for the proportions of training.",
    "logit-adjusted-labelled": "logit adjustment that learns from the labelled patients alone.",
}
_TERMS = {
    "π, the prevalence": "share of malignant nodules where the net is used.",
    "gain, or skill": "expected log-likelihood, rescaled: 0 % is always answering π, 100 % is certainty.",
    "expected log-likelihood": "mean logarithm of the probability given to what is true, weighted to π; higher is better.",
    "AUC": "how often a malignant nodule is ranked above a benign one; it ignores the size of probabilities.",
    "PPV": "positive predictive value: share of malignant nodules among those acted on.",
    "TPR": "true positive rate, or sensitivity: share of malignant nodules that are found.",
}
_RATING_TERMS = {
    "gain, or skill": "expected log-likelihood, rescaled: 0 % is always answering the ratings' shares, 100 % is certainty.",
}


def glossary(config: StudyConfig) -> dict[str, str]:
    """Return what the losses of a study and the terms of its page mean."""
    losses = {wording.capitalised(METHODS[name].title): LOSSES[name] for name in config.losses}
    terms = _RATING_TERMS if config.task == "rating" else _TERMS
    return losses | {wording.capitalised(name): meaning for name, meaning in terms.items()}
