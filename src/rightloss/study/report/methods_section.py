"""The report's methods section: methods, limits, a glossary, and the command that reproduces the study.

Stage: `StudyResults` → sentences; `StudyConfig` → a line for the shell.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TypeVar

import numpy as np

from ... import __version__
from ..config import CONTOURS, IMAGE_NETS, OF_TABLES, PRESETS, StudyConfig, Training, options_of
from ..methods import METHODS
from ..results import StudyResults
from ..summary.wording import INFERENCES, LIKELIHOODS, NETS, capitalised, counted, listed, percent, source

Config = TypeVar("Config", StudyConfig, Training)
_SETS = {
    "binary": "nodules that most readers rated clearly benign (1, 2) or clearly malignant (4, 5)",
    "rating": "nodules with their readers' ratings of malignancy, 1 to 5",
    "balanced": "nodules, half of them malignant, with metadata beside the image",
}
_STARTS = {
    "population": "the classes that their loss's logits are for: π, or for cross-entropy those of the minibatches",
    "equal": "equal classes",
}
LOSSES = {
    "information-gain": "log p(y|x) − log p(y), where p(y) is the average prediction in the proportions of training; the known "
    "prevalence counts as evidence. The default of rightloss.",
    "published": "the paper's loss (bayesIG): the same gain, with the average in the population's proportions and without "
    "evidence.",
    "published-running": "the same, with the average over recent minibatches as its value.",
    "published-network": "the same, with the paper's network that reads the output layer's weights and learns the average.",
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
    losses = {capitalised(METHODS[name].title): LOSSES[name] for name in config.losses}
    terms = _RATING_TERMS if config.task == "rating" else _TERMS
    return losses | {capitalised(name): meaning for name, meaning in terms.items()}


def facts(results: StudyResults) -> str:
    """Return one line for the top of the page: data, labels, test and nets."""
    config = results.config
    folds = f"{config.folds} of {config.num_folds} folds" if config.folds < config.num_folds else f"all {config.folds} folds"
    small = " (small)" if config.training.small and _sees_images(config) else ""
    data = [_counts(results, name) for name in results.data]
    nets = listed([NETS[each] for each in config.nets]) + small
    return " · ".join([*data, f"{folds}, {counted(config.seeds, 'seed')}", nets, f"study “{config.preset}”"])


def _counts(results: StudyResults, name: str) -> str:
    """Return the size of a data set and what its labels are; patients if they are named."""
    data = results.data[name]
    what = "Readers' outlines (no CT)" if name == CONTOURS else f"CT ({name})"
    what = what if _sees_images(results.config) else "Features (no images)"
    patients = f", {counted(len(np.unique(data.patients)), 'patient')}" if len(data.ratings) else ""
    malignant = f"{int((data.labels == 1).sum()):,} malignant as rated by readers"
    labels = "rated 1 to 5 by readers" if results.config.task == "rating" else malignant
    return f"{what} of {counted(len(data.labels), 'lung nodule')}{patients}; {labels}"


def methods(results: StudyResults) -> list[str]:
    """Return the config in words."""
    config = results.config
    return [
        f"Data: {listed([source(each.name) for each in config.sources])}; {_SETS[config.task]}.",
        f"Nets: {_nets(config)}. Likelihood: {listed([LIKELIHOODS[each] for each in config.likelihoods])}. "
        f"Inference: {listed([INFERENCES[each] for each in config.inferences])}.",
        f"Before training, the nets predict {' or '.join(_STARTS[each] for each in config.starts)}.",
        f"{_rates(config)}{_evidence(config)}.",
        f"Tested: {_tested(results)}; {counted(config.seeds, 'seed')}.",
        *_unlabelled(results),
        _training(config),
        "Runs that share data, fold and seed were trained together on the same minibatches, so that comparisons of losses "
        "are paired.",
        f"{len(results.runs):,} of {len(config.runs()):,} runs are in this report. Made by rightloss {__version__}.",
    ]


def limits(config: StudyConfig) -> list[str]:
    """Return the limits of the study."""
    found = [
        "Malignant means that readers rated the image so; few of these nodules have a confirmed diagnosis.",
        "A low prevalence is computed, not sampled: the same nodules are weighted to that prevalence. This is right if "
        "benign nodules look the same in that population as here, and malignant ones too.",
        "Intervals are by patient, over the tested folds: they do not show how much another training run would differ.",
    ]
    if any(each.name == CONTOURS for each in config.sources):
        found.append(
            "Readers' outlines are shapes without grey values: each voxel is the share of the nodule's readers who included "
            "it. The shares show how many readers saw the nodule, which correlates with malignancy: a net can use this, but a "
            "scan does not contain it."
        )
    if config.unlabelled:
        found.append(
            "The population of the unlabelled patients is simulated: they are drawn repeatedly from a few hundred, at "
            "prevalence π by their hidden labels. If π is far below the share in the data, hardly any is malignant. And they "
            "come from the same archive as the labelled ones, unlike a real population."
        )
    if config.task == "binary":
        found.append(
            "Nodules whose most frequent rating is 3 (undecided) are left out; the paper leaves out an average of 3. A clinic "
            "would see them."
        )
    if config.training.small and _sees_images(config):
        found.append("The nets are small variants for computers without a GPU; the paper's are larger.")
    return found


def _nets(config: StudyConfig) -> str:
    small = ", in the small variant for CPUs" if config.training.small and _sees_images(config) else ""
    return listed([NETS[each] for each in config.nets]) + small


def _sees_images(config: StudyConfig) -> bool:
    return any(each in (*IMAGE_NETS, "both") for each in config.nets)


def _rates(config: StudyConfig) -> str:
    if config.task == "rating":
        return "Shares of the ratings passed to the losses: those of the readers' votes in the data set"
    rates = listed([f"{100 * rate:g} %" for rate in config.populations if rate is not None])
    return f"Prevalence of malignant nodules passed to the losses: {rates}"


def _evidence(config: StudyConfig) -> str:
    """Describe the evidence for the prevalence that the information gain uses."""
    words = {1.0: " (known: κ = 1)", 0.0: " (not used as evidence: κ = 0)"}
    return words.get(config.evidence, f", as if counted in {config.evidence:g} people per training example")


def _tested(results: StudyResults) -> str:
    """Describe the folds, or the published split: NoduleMNIST3D has neither ratings nor patients."""
    config, published = results.config, [not len(each.ratings) for each in results.data.values()]
    folds = (
        f"{counted(config.folds, 'fold')} of {config.num_folds}, by patient, so that no patient is in both training and test; "
        "the next fold is the validation part"
    )
    parts = "the training, validation and test parts are those published, without patient names"
    return parts if published and all(published) else f"{folds}; elsewhere {parts}" if any(published) else folds


def _unlabelled(results: StudyResults) -> list[str]:
    """Describe who lost their labels, and which losses learnt from them."""
    config = results.config
    if not config.unlabelled:
        return []
    learnt = listed([METHODS[loss].title for loss in config.losses if METHODS[loss].takes_unlabelled])
    slow = [INFERENCES[each] for each in config.inferences if each in OF_TABLES]
    once = f" For {listed(slow)}, as many nodules as there are unlabelled ones were drawn once." if slow else ""
    weight = ""
    if config.unlabelled_weight is not None:
        weight = f", with {config.unlabelled_weight:g} times the mass of the labelled ones in the likelihood"
    return [
        f"Unlabelled: {percent(config.unlabelled)} of the training patients, chosen again for each fold and seed, lost their "
        f"labels.{''.join(f' {_label_counts(results, name)}' for name in results.data)} Every loss was trained on the same "
        "minibatches of labelled patients. "
        f"As many unlabelled nodules as labelled ones{weight} were passed in each minibatch to: {learnt}.{once} They represent "
        "the population, so they were drawn at prevalence π by their hidden labels, which no loss saw. The validation and test "
        "parts kept their labels.",
    ]


def _label_counts(results: StudyResults, name: str) -> str:
    """Count the patients and nodules of a data set that kept and lost their labels, over the folds and seeds that are done."""
    data = results.data[name]
    runs = {(each.config.fold, each.config.seed): each.config for each in results.runs if each.config.data == name}
    kept, lost = zip(*map(data.trained, runs.values()), strict=True)
    patients = [_range([len(np.unique(data.patients[rows])) for rows in some], "patient") for some in (kept, lost)]
    nodules = [_range([len(rows) for rows in some], "nodule") for some in (kept, lost)]
    malignant = _range([int((data.labels[rows] == 1).sum()) for rows in kept])
    labelled = nodules[0] if results.config.task == "rating" else f"{nodules[0]} ({malignant} malignant)"
    return (
        f"In each training part of {source(name)}, {patients[0]} with {labelled} kept them, {patients[1]} with {nodules[1]} "
        "lost them."
    )


def _range(counts: list[int], word: str = "") -> str:
    """Return "101 patients", "180 to 195 nodules"."""
    low, high = min(counts), max(counts)
    number = f"{high:,}" if low == high else f"{low:,} to {high:,}"
    return f"{number} {word}{'' if high == 1 else 's'}" if word else number


def _training(config: StudyConfig) -> str:
    training = config.training
    views = f" {training.views} views of a nodule in training, {training.test_views} in the test;"
    averaged = "averaged" if training.averaging else "not averaged"
    scales = listed([f"{scale:g}" for scale in training.prior_scales])
    prior = f" For inferences with a prior, its scale was also chosen there, from {scales}."
    return (
        f"Training: {training.steps:,} steps of AdamW on minibatches of {training.batch_size}, step size "
        f"{listed([f'{rate:g}' for rate in training.learning_rates])} with half-cosine decay;"
        f"{views if _sees_images(config) else ''} weights {averaged} over steps. Step size and stopping "
        f"({training.checkpoints} checkpoints) were chosen by expected log-likelihood on the validation part, by one rule for "
        "every loss; nothing was chosen on the test fold."
        f"{prior if any(each in OF_TABLES for each in config.inferences) else ''}"
    )


def command(config: StudyConfig) -> str:
    """Return the command: the preset, and an option for each difference from it."""
    preset = PRESETS.get(config.preset, StudyConfig(config.preset, task=config.task, populations=config.populations))
    words = ["rightloss", "study", config.preset, "--out", "FOLDER"]
    if [source.name for source in config.sources] != [CONTOURS]:
        names = [source.name if source.name == CONTOURS else f"{source.name}.npz" for source in config.sources]
        words += [word for name in names for word in ("--data", name)]
    words += _differences(replace(config, sources=preset.sources), preset)
    words += _differences(config.training, preset.training)
    return shlex.join(words)


def _differences(own: Config, usual: Config) -> list[str]:
    """Return options for the fields that differ."""
    words = []
    for field, option in options_of(type(own)).items():
        value = getattr(own, field)
        if value == getattr(usual, field):
            continue
        if isinstance(value, bool):
            words.append(f"--{option.name}" if value else "--full")
        else:
            values = value if isinstance(value, tuple) else (value,)
            words += [word for each in values if each is not None for word in (f"--{option.name}", f"{each}")]
    return words
