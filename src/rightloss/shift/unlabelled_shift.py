"""Labelled and unlabelled rows → whether a classifier can tell the labelled ones, weighted to π, from the unlabelled.

Stage: `x`, `y`, `unlabelled`, π → `UnlabelledShift`. To be asked before unlabelled rows are trained on.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from ..log_probs import Numbers
from ..prevalence import Frequencies, PopulationEstimate, Prevalence, log_mix, without_estimate
from ..rng import own_stream
from .label_shift import LabelShiftWarning
from .shift_features import MEANS, PAIRS, SPREADS, Streams, normal_scores, streams_of
from .stream_scores import HeldOutPart, Learner, Moments, moments_of

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
        p_value: of the hypothesis that the unlabelled rows are a mixture of the labelled classes at π. Small: they are not.
        tenable: whether that is at least `size`.
        statistic: z of the score that differs most.
        p_values: of each kind of score, corrected for their number (Holm): "means", "spreads", "pairs", "classes".
        auc: how well a classifier on all features tells held-out labelled rows, weighted to π, from unlabelled ones; 0.5: not.
        auc_error: its standard error.
        any_prevalence: the p-value of a mixture at any π; `p_value` itself where π was not given.
        unseen: classes too rare, or with too few rows, for the test to notice a shift of one standard deviation within them
            alone in most cases.
        complaints: what is wrong, in sentences; empty where nothing is.
        message: all of it in words.

    Examples:
        >>> import torch
        >>> from rightloss.shift import unlabelled_shift_test
        >>> y = torch.arange(400) % 2
        >>> x, unlabelled = torch.randn(400, 3) + y[:, None], torch.randn(2000, 3)
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
    generator: torch.Generator | None = None,
) -> UnlabelledShift:
    """Test whether the unlabelled rows are a mixture of the labelled classes; warn with `LabelShiftWarning` where they are not.

    A loss that takes unlabelled rows as one more stream, `criterion(logits, y, unlabelled=…)`, assumes that p(x|y) is the same
    in all streams. Then every score s(x) has the same mean in both, Δ = Σ_k π_k E_k[s] − E_u[s] = 0. The rows are cut into
    parts. On the parts before each one, ridge regressions learn scores that tell the labelled rows, weighted to π, from the
    unlabelled: by means, by spreads and by products of columns; and scores of the classes. On the part itself Δ of each score
    is divided by its standard error. Given the parts before, that has a t-distribution (Welch) if p(x|y) is the same; so the
    z-values of the parts are independent, and are added. (With ordinary cross-fitting they are not, each pair of parts counts
    twice, and a nominal 5 % was 13 % in a simulation.) The p-value is the smallest of the scores' times their number.

    Columns enter by their ranks, as normal scores, so neither outliers nor units matter. More than 50 columns are replaced by
    their leading 50 principal components; products are those of the leading 20. NaN is replaced by the column's mean.

    Where π is not known, or uncertain, scores are taken less the part that another mix would move: the hypothesis is then a
    mixture at some π, and there is less power. A shift within a rare class alone cannot be seen, as it moves Δ by π_k times the
    shift: `unseen` lists such classes. Where π is given and wrong, the test says no; `any_prevalence` tells whether another π
    would do.

    Args:
        x: features of the labelled rows `(n, d)`: array, tensor or DataFrame; images `(n, …)` are flattened. The features that
            a network computes are better than pixels.
        y: class numbers `(n,)`, with −100 for rows to leave out; or soft votes `(n, k)`.
        unlabelled: features of rows from the population `(m, d)`.
        prevalence: π, as a `Prevalence`, K frequencies, or that of class 1 for two classes; None where it is not known.
        size: the share of false alarms; a p-value below it is not tenable.
        folds: the parts, 2 or more; fewer are made where a class has fewer than 4 rows in each.
        groups: a pair, the group (patient, site) of each labelled and of each unlabelled row, or None for independent ones;
            rows of one group stay in one part, and standard errors allow for their being alike.
        generator: of the cut; by default one with a fixed seed.

    Examples:
        >>> import torch
        >>> from rightloss.shift import unlabelled_shift_test
        >>> draw = torch.Generator().manual_seed(0)
        >>> y, unknown = torch.arange(400) % 2, torch.arange(4000) % 10 == 0
        >>> x, unlabelled = (torch.randn(len(c), 5, generator=draw) + c[:, None].float() for c in (y, unknown))
        >>> unlabelled_shift_test(x, y, unlabelled, prevalence=0.1).tenable
        True
    """
    size = _checked_size(size)
    known, num_classes = _population(prevalence)
    data = streams_of(x, y, unlabelled, num_classes, groups, _checked_folds(folds), own_stream(generator))
    moments = moments_of(data)
    found = _tested(data, moments, known)
    at_any = found.p_value if known is None else _tested(data, moments, None).p_value
    complaints = _complaints(found, known is not None, at_any, size)
    message = _message(data, found, complaints)
    if complaints:
        warnings.warn(message, LabelShiftWarning, stacklevel=2)
    tenable, p_values = found.p_value >= size, _holm(found.raw)
    return UnlabelledShift(
        found.p_value, tenable, found.statistic, p_values, *found.auc, at_any, found.unseen, tuple(complaints), message
    )


class _Found(NamedTuple):
    """What the scores say: their p-values, the largest z, AUC with its error, and the classes that cannot be seen."""

    raw: dict[str, list[float]]
    statistic: float
    auc: tuple[float, float]
    unseen: tuple[int, ...]
    parts: int

    @property
    def p_value(self) -> float:
        return min(_holm(self.raw).values())


def _tested(data: Streams, moments: Moments, known: np.ndarray | None) -> _Found:
    """Score each part but the first by what the parts before it show, and add up the parts."""
    found = []
    for part in range(1, data.parts):
        own = data.part == part
        held = HeldOutPart(data.votes[own], data.groups[own])
        if held.effective.min() > 1.5:
            found.append(_scored(held, moments.features[own], Learner.of(moments, part - 1), known, part))
    if not found:
        return _Found({kind: [1.0] for kind in (*data.blocks, CLASSES)}, 0.0, (0.5, math.inf), (), 0)
    return _summed_up(found, known is None, _unseen(data, np.mean([each.mix for each in found], 0)))


class _PartScores(NamedTuple):
    """The z-values of each kind of score on one part, AUC and its variance, π (K,), and how many parts were learnt from."""

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
    """Add up the parts. Scores of streams count by the root of what they were learnt from, as their power grows with it."""
    raw, largest = {}, 0.0
    weights = np.array([each.learnt_from for each in found], dtype=np.float64)
    for kind in found[0].z:
        root = np.ones(len(weights)) if kind == CLASSES else np.sqrt(weights)
        z = root @ np.array([each.z[kind] for each in found]) / math.sqrt(float(root @ root))
        sides = 2 if kind == CLASSES and not unknown else 1
        z = np.abs(z) if sides == 2 else z
        raw[kind] = [min(1.0, sides * 0.5 * math.erfc(float(each) / math.sqrt(2))) for each in z]
        largest = max(largest, float(z.max()))
    share, aucs = weights / weights.sum(), np.array([each.auc for each in found])
    auc = float(share @ aucs[:, 0]), math.sqrt(float(share**2 @ aucs[:, 1]))
    return _Found(raw, largest, auc, unseen, len(found))


def _unseen(data: Streams, pi: np.ndarray) -> tuple[int, ...]:
    """Return the classes whose share is below 3 standard errors of the mean of a score with variance 1."""
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
        return ["Too few rows of some class to test whether p(x|y) differs; label more, or pass larger groups apart."]
    if found.p_value >= size:
        return []
    kinds = [_IN_WORDS[kind] for kind, p in _holm(found.raw).items() if p < size]
    mixture = "at this prevalence" if known else "at any prevalence"
    said = [f"The unlabelled rows are no mixture of the labelled classes {mixture}: they differ in {'; '.join(kinds)}."]
    if at_any >= size:
        said.append(f"At another prevalence they may be one (p = {at_any:.2g}): check the prevalence first.")
    else:
        said.append(
            "p(x|y) differs: trained on as one more stream, they can teach a model the streams instead of the classes. Leave"
            " them out, or match scanner, site and selection, and compare with labelled rows of the population."
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
    """Return π (K,), None where it is unknown or uncertain, and K, None where the labels tell it."""
    prevalence = without_estimate(prevalence)
    if prevalence is None:
        return None, None
    if isinstance(prevalence, Prevalence):
        if prevalence.is_unknown or prevalence.is_uncertain:
            return None, prevalence.num_classes
        return prevalence.population.numpy(), prevalence.num_classes
    length = 2 if np.ndim(prevalence) == 0 else len(prevalence)
    return log_mix(prevalence, "prevalence", length).exp().numpy(), length


def _checked_size(size: Any) -> float:
    if isinstance(size, bool) or not isinstance(size, int | float) or not 0 < size < 1:
        raise ValueError(f"Expected `size` to lie strictly between 0 and 1, but got {size!r}: write 0.05 for 5 % false alarms.")
    return float(size)


def _checked_folds(folds: Any) -> int:
    if isinstance(folds, bool) or not isinstance(folds, int | np.integer) or folds < 2:
        raise ValueError(f"Expected `folds` to be an int from 2 up, but got {folds!r}: 5 is usual.")
    return int(folds)
