"""Test whether a classifier can distinguish labelled rows, weighted to π, from unlabelled ones.

Stage: `x`, `y`, `unlabelled`, π → `UnlabelledShift`. Use it before training with unlabelled rows.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr

from ..arrays import Numbers, checked_number, random_generator
from ..prevalence import Frequencies, PopulationEstimate, Prevalence, log_mix, without_estimate
from .label_shift import LabelShiftWarning
from .shift_features import MEANS, PAIRS, SPREADS, Streams, normal_scores, streams_of
from .stream_scores import HeldOutPart, Learner

CLASSES = "classes"
_IN_WORDS = {
    MEANS: "the means of columns",
    SPREADS: "the spreads of columns",
    PAIRS: "how columns vary together",
    CLASSES: "how often x looks like each class",
}


@dataclass(frozen=True)
class UnlabelledShift:
    """The result of `unlabelled_shift_test`.

    Attributes:
        p_value: of the hypothesis that the unlabelled rows are a mixture of the labelled classes at π. If it is small, they are
            not.
        tenable: whether the p-value is at least `size`.
        statistic: z of the score with the largest difference.
        p_values: p-value of each kind of score, corrected for their number (Holm): "means", "spreads", "pairs", "classes".
        auc: AUC of a classifier of held-out labelled rows, weighted to π, against unlabelled ones; 0.5 is no difference.
        auc_error: its standard error.
        any_prevalence: the p-value of a mixture at any π; `p_value` itself if π was not given.
        unseen: classes too rare, or with too few rows: the test would usually miss a shift of one standard deviation within
            such a class.
        complaints: the problems found, as sentences; empty if there are none.
        message: the result as text.

    Examples:
        >>> import numpy as np
        >>> from rightloss.shift import unlabelled_shift_test
        >>> draw, y = np.random.default_rng(0), np.arange(400) % 2
        >>> x, unlabelled = draw.normal(size=(400, 3)) + y[:, None], draw.normal(size=(2000, 3))
        >>> found = unlabelled_shift_test(x, y, unlabelled, prevalence=0.001)
        >>> found.unseen  # one in a thousand: whatever they look like among the unlabelled, it does not show
        (1,)
    """

    p_value: float
    tenable: bool
    statistic: float
    p_values: dict[str, float]
    auc: float
    auc_error: float
    any_prevalence: float
    unseen: tuple[int, ...]
    complaints: tuple[str, ...]
    message: str

    def __str__(self) -> str:
        return self.message


def unlabelled_shift_test(
    x: Any,
    y: Numbers,
    unlabelled: Any,
    prevalence: Frequencies | Prevalence | PopulationEstimate | None,
    *,
    size: float = 0.05,
    folds: int = 5,
    groups: Any = None,
    generator: Any = None,
) -> UnlabelledShift:
    """Test whether the unlabelled rows are a mixture of the labelled classes; warn with `LabelShiftWarning` if they are not.

    A loss with unlabelled rows as one more stream, `criterion(logits, y, unlabelled=…)`, assumes that p(x|y) is the same in
    all streams. Then every score s(x) has the same mean in both, Δ = Σ_k π_k E_k[s] − E_u[s] = 0. The rows are split into
    parts. For each part, ridge regressions on the parts before it learn scores that separate the labelled rows, weighted to
    π, from the unlabelled: by means, by variances and by products of columns; and scores of the classes. On the part itself, Δ
    of each score is divided by its standard error. If p(x|y) is the same, this has a t-distribution (Welch), given the parts
    before. So the z-values of the parts are independent, and are added. (With ordinary cross-fitting they are not: each pair
    of parts counts twice, and a nominal 5 % was 13 % in a simulation.) The p-value is the smallest of all scores times their
    number. Columns are replaced by their ranks, as normal scores, so neither outliers nor units matter. More than 50 columns
    are replaced by their leading 50 principal components; products are those of the leading 20. NaN is replaced by the
    column's mean.

    If π is not known, or uncertain, the part of the scores that depends on the mix is removed. The hypothesis is then a
    mixture at some π, and the test has less power. A shift within a rare class only cannot be detected, because it changes Δ by
    π_k times the shift: `unseen` lists such classes. If the given π is wrong, the test rejects; `any_prevalence` shows whether
    another π would fit.

    Args:
        x: features of the labelled rows `(n, d)`: array, tensor or DataFrame; images `(n, …)` are flattened. The features that
            a network computes are better than pixels.
        y: class numbers `(n,)`, with −100 for rows to ignore; or soft votes `(n, k)`.
        unlabelled: features of rows from the population `(m, d)`.
        prevalence: π, as a `Prevalence`, K frequencies, or that of class 1 for two classes; None if it is not known.
        size: the rate of false alarms; a p-value below it is not tenable.
        folds: the number of parts, 2 or more; fewer if a class has fewer than 4 rows in each.
        groups: a pair, the group (patient, site) of each labelled and of each unlabelled row, or None for independent ones;
            rows of one group are in one part, and standard errors account for their correlation.
        generator: for the split: a `numpy.random.Generator`, a `torch.Generator` or a seed; by default one with a fixed seed.

    Examples:
        >>> import numpy as np
        >>> from rightloss.shift import unlabelled_shift_test
        >>> draw, y, unknown = np.random.default_rng(0), np.arange(400) % 2, np.arange(4000) % 10 == 0
        >>> x, unlabelled = (draw.normal(size=(len(each), 5)) + each[:, None] for each in (y, unknown))
        >>> unlabelled_shift_test(x, y, unlabelled, prevalence=0.1).tenable
        True
    """
    size = checked_number(size, "size", 1e-12, 1 - 1e-12, "write 0.05 for 5 % false alarms")
    known, num_classes = _population(prevalence)
    data = streams_of(x, y, unlabelled, num_classes, groups, _checked_folds(folds), random_generator(generator))
    learners = [Learner.of(data, part) for part in range(1, data.parts)]
    found = _tested(data, learners, known)
    at_any = found.p_value if known is None else _tested(data, learners, None).p_value
    complaints = _complaints(found, known is not None, at_any, size)
    message = _message(data, found, complaints)
    if complaints:
        warnings.warn(message, LabelShiftWarning, stacklevel=2)
    tenable, p_values = found.p_value >= size, _holm(found.raw)
    return UnlabelledShift(
        found.p_value, tenable, found.statistic, p_values, *found.auc, at_any, found.unseen, tuple(complaints), message
    )


class _Found(NamedTuple):
    """The results of the scores: p-values, the largest z, AUC with its error, and the classes of `unseen`."""

    raw: dict[str, list[float]]
    statistic: float
    auc: tuple[float, float]
    unseen: tuple[int, ...]
    parts: int

    @property
    def p_value(self) -> float:
        return min(_holm(self.raw).values())


def _tested(data: Streams, learners: list[Learner], known: np.ndarray | None) -> _Found:
    """Score each part but the first with scores learned on the parts before it, and sum over the parts."""
    found = []
    for part, learner in enumerate(learners, 1):
        own = data.part == part
        held = HeldOutPart(data.votes[own], data.groups[own])
        if held.effective.min() > 1.5:
            found.append(_scored(held, data.features[own], learner, known, part))
    if not found:
        return _Found({kind: [1.0] for kind in (*dict.fromkeys(data.kinds.tolist()), CLASSES)}, 0.0, (0.5, math.inf), (), 0)
    return _summed_up(found, known is None, _unseen(data, np.mean([each.mix for each in found], 0)))


class _PartScores(NamedTuple):
    """The z-values of each kind of score on one part, AUC and its variance, π (K,), and the number of training parts."""

    z: dict[str, np.ndarray]
    auc: tuple[float, float]
    mix: np.ndarray
    learnt_from: int


def _scored(held: HeldOutPart, features: np.ndarray, learner: Learner, known: np.ndarray | None, part: int) -> _PartScores:
    mix = learner.mix() if known is None else known
    kinds = list(dict.fromkeys(learner.kinds.tolist()))
    scores = normal_scores(features @ np.stack([learner.stream_direction(mix, kind) for kind in kinds], 1))
    classes = normal_scores(features @ learner.class_directions())
    if known is None:
        found, scores, indicators = held.without_mix(scores, classes)
        of_classes = held.z_of_absence(indicators, found)
        of_streams = held.z_values(scores, found, held.mix_variance(scores, indicators, found))
    else:
        found, of_classes, of_streams = known, held.z_values(classes, known), held.z_values(scores, known)
    z = {kind: value[None] for kind, value in zip(kinds, of_streams, strict=True)}
    return _PartScores({**z, CLASSES: of_classes}, held.auc(features @ learner.stream_direction(mix), found), found, part)


def _summed_up(found: list[_PartScores], unknown: bool, unseen: tuple[int, ...]) -> _Found:
    """Sum over the parts. Scores of streams are weighted by the root of their training parts, as their power grows with it."""
    raw, largest = {}, 0.0
    weights = np.array([each.learnt_from for each in found], dtype=np.float64)
    for kind in found[0].z:
        root = np.ones(len(weights)) if kind == CLASSES else np.sqrt(weights)
        z = root @ np.array([each.z[kind] for each in found]) / math.sqrt(float(root @ root))
        sides = 2 if kind == CLASSES and not unknown else 1
        z = np.abs(z) if sides == 2 else z
        raw[kind] = np.minimum(1.0, sides * ndtr(-z)).tolist()
        largest = max(largest, float(z.max()))
    share, aucs = weights / weights.sum(), np.array([each.auc for each in found])
    auc = float(share @ aucs[:, 0]), math.sqrt(float(share**2 @ aucs[:, 1]))
    return _Found(raw, largest, auc, unseen, len(found))


def _unseen(data: Streams, pi: np.ndarray) -> tuple[int, ...]:
    """Return the classes with a frequency below 3 standard errors of the mean of a score with variance 1."""
    weights = data.votes.sum(0)
    error = math.sqrt(float((np.append(pi, 1.0) ** 2 / weights).sum()))
    return tuple(int(k) for k in np.flatnonzero(pi < 3 * error))


def _holm(raw: dict[str, list[float]]) -> dict[str, float]:
    """Return each kind's smallest p-value, corrected for the number of all (Holm 1979)."""
    every = sorted((p, kind) for kind, values in raw.items() for p in values)
    corrected: dict[str, float] = {}
    highest = 0.0
    for rank, (p, kind) in enumerate(every):
        highest = max(highest, min(1.0, p * (len(every) - rank)))
        corrected.setdefault(kind, highest)
    return {kind: corrected[kind] for kind in raw}


def _complaints(found: _Found, known: bool, at_any: float, size: float) -> list[str]:
    if not found.parts:
        return ["Too few rows of some class to test whether p(x|y) differs; label more, or use smaller groups."]
    if found.p_value >= size:
        return []
    kinds = [_IN_WORDS[kind] for kind, p in _holm(found.raw).items() if p < size]
    mixture = "at this prevalence" if known else "at any prevalence"
    said = [f"The unlabelled rows are no mixture of the labelled classes {mixture}: they differ in {'; '.join(kinds)}."]
    if at_any >= size:
        said.append(f"At another prevalence they may be one (p = {at_any:.2g}): check the prevalence first.")
    else:
        said.append(
            "p(x|y) differs: in training, a model can learn to distinguish labelled from unlabelled rows instead of the "
            "classes. Leave them out, or match scanner, site and selection, and compare with labelled rows of the population."
        )
    return said


def _message(data: Streams, found: _Found, complaints: list[str]) -> str:
    labelled = int((data.votes[:, -1] == 0).sum())
    each = ", ".join(f"{kind} {p:.2g}" for kind, p in _holm(found.raw).items())
    summary = (
        f"p = {found.p_value:.3g} ({each}), AUC {found.auc[0]:.3f} ± {found.auc[1]:.3f}, {labelled:,} labelled and "
        f"{len(data.votes) - labelled:,} unlabelled rows."
    )
    blind = f"A shift within class(es) {list(found.unseen)} alone would hardly show." if found.unseen else ""
    parts = [*(complaints or ["The unlabelled rows may be a mixture of the labelled classes:"]), summary, blind]
    return " ".join(part for part in parts if part)


def _population(prevalence: Any) -> tuple[np.ndarray | None, int | None]:
    """Return π (K,), None if it is unknown or uncertain, and K, None if it follows from the labels."""
    prevalence = without_estimate(prevalence)
    if prevalence is None:
        return None, None
    if isinstance(prevalence, Prevalence):
        if prevalence.is_unknown or prevalence.is_uncertain:
            return None, prevalence.num_classes
        return prevalence.population, prevalence.num_classes
    length = 2 if np.ndim(prevalence) == 0 else len(prevalence)
    return np.exp(log_mix(prevalence, "prevalence", length)), length


def _checked_folds(folds: Any) -> int:
    if isinstance(folds, bool) or not isinstance(folds, int | np.integer) or folds < 2:
        raise ValueError(f"Expected `folds` to be an int from 2 up, but got {folds!r}: 5 is usual.")
    return int(folds)
