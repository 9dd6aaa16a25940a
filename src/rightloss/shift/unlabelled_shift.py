"""Test whether a classifier can distinguish labelled rows, weighted to π, from unlabelled ones.

Stage: `x`, `y`, `unlabelled`, π → `UnlabelledShift`. Use it before training with unlabelled rows. Scores that distinguish the
two are learned on some parts of the rows (`Learner`), and tested on another (`HeldOutPart`).
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from ..arrays import Numbers, array_of, checked_int, checked_number, feature_table, random_generator
from ..prevalence import Frequencies, PopulationEstimate, Prevalence, log_mix, mix_of_every_class, without_estimate
from .label_shift import LabelShiftWarning
from .maximum_likelihood import normal_score

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64

_MOST_COLUMNS = 50  # with more columns, their leading principal components are used
_MOST_IN_PAIRS = 20  # the same for products of two columns
MEANS, SPREADS, PAIRS, CLASSES = "means", "spreads", "pairs", "classes"
_SORTED_BY = 32  # columns by which rows are put in order
_PER_PART = 4  # rows of a class per part, if possible
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
    complaints: tuple[str, ...] = ()
    message: str = ""

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
    parts = checked_int(folds, "folds", 2, remedy="5 is usual")
    data = _split_rows(x, y, unlabelled, num_classes, groups, parts, random_generator(generator))
    before = [data.part < part for part in range(1, data.parts)]
    learners = [Learner(data.features[rows], data.votes[rows], data.kinds) for rows in before]
    found = _tested(data, learners, known, size)
    if known is not None:
        found = replace(found, any_prevalence=_tested(data, learners, None, size).p_value)
    complaints = _complaints(found, known is not None, size)
    message = _message(data, found, complaints)
    if complaints:
        warnings.warn(message, LabelShiftWarning, stacklevel=2)
    return replace(found, complaints=tuple(complaints), message=message)


class _SplitRows(NamedTuple):
    """All rows, the labelled and the unlabelled: features `(rows, q)` and their kinds (q,), votes with a last column of 1 for
    unlabelled rows `(rows, K + 1)`, the number of each row's group, its part, and the number of parts.
    """

    features: np.ndarray
    kinds: np.ndarray
    votes: Float64[np.ndarray, "rows streams"]
    groups: Int64[np.ndarray, " rows"]
    part: Int64[np.ndarray, " rows"]
    parts: int


def _split_rows(
    x: Any, y: Numbers, unlabelled: Any, num_classes: int | None, groups: Any, folds: int, generator: np.random.Generator
) -> _SplitRows:
    """Check all input, sort the rows, and split them into random parts, with all rows of a group in one.

    With the same generator the result does not depend on the order of the given rows.
    """
    labelled = feature_table(x, "x")
    others = feature_table(unlabelled, "unlabelled", like=x)
    votes = _votes(y, len(labelled), num_classes)
    rows = np.concatenate([labelled, others])
    streams = np.zeros((len(rows), votes.shape[1] + 1))
    streams[: len(labelled), :-1], streams[len(labelled) :, -1] = votes, 1
    # sorted by stream, by the first columns, and for ties by the mean of all columns
    order = np.lexsort([np.nan_to_num(rows).mean(1), *rows.T[:_SORTED_BY][::-1], *streams.T])
    order = order[streams[order].sum(1) > 0]
    rows, streams = rows[order], streams[order]
    # groups numbered in the order in which they appear
    group = _group_labels(groups, len(labelled), len(others))[order]
    _, first, inverse = np.unique(group, return_index=True, return_inverse=True)
    group = first.argsort().argsort()[inverse].astype(np.int64)
    parts = int(np.clip(streams.sum(0).min() // _PER_PART, 2, folds))
    part = _parts(streams, group, parts, generator)
    return _SplitRows(*features_of(rows, generator), streams, group, part, parts)


def _votes(y: Numbers, rows: int, num_classes: int | None) -> Float64[np.ndarray, "n k"]:
    """Return one-hot labels or soft votes, with zeros for rows labelled −100."""
    labels = array_of(y, "labels")
    soft = labels.dtype.kind == "f"
    if num_classes is None:
        num_classes = labels.shape[1] if soft and labels.ndim == 2 else max(2, int(labels.max(initial=0)) + 1)
    labels = labels.astype(np.int64) if labels.dtype == bool and num_classes == 2 else labels
    remedy = "p(x|y) of such a class cannot be tested; label some, or drop the class"
    mix_of_every_class(labels, num_classes, ignore_index=-100, remedy=remedy)
    if len(labels) != rows or (labels.ndim != 1 and not soft):
        raise ValueError(f"Expected one label per row of `x`, {rows}, but got shape {labels.shape}: were some rows dropped?")
    votes = np.float64(labels if soft else labels[:, None] == np.arange(num_classes))
    return votes / votes.sum(1, keepdims=True).clip(1e-300)


def _group_labels(groups: Any, labelled: int, others: int) -> np.ndarray:
    """Return a number per row, equal within a group: of the labelled rows, then of the others."""
    if groups is None:
        return np.arange(labelled + others)
    if not isinstance(groups, tuple | list) or len(groups) != 2:
        came = f"{type(groups).__name__}: write (patients, patients_of_unlabelled), or None for independent rows"
        raise ValueError(f"Expected `groups` to be a pair, of the labelled and of the unlabelled rows, but got {came}.")
    keys: list[Any] = []
    for each, rows in zip(groups, (labelled, others), strict=True):
        names = [(len(keys), row) for row in range(rows)] if each is None else np.asarray(each).tolist()
        if len(names) != rows:
            raise ValueError(f"Expected one group per row, {rows}, but got {len(names)}: were some rows dropped?")
        keys += names
    numbers: dict[Any, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys])


def _parts(streams: np.ndarray, groups: np.ndarray, parts: int, generator: np.random.Generator) -> Int64[np.ndarray, " rows"]:
    """Assign the groups to parts at random, separately for each class and for the unlabelled rows."""
    totals = np.zeros((groups.max() + 1, streams.shape[1]))
    np.add.at(totals, groups, streams)
    main, part = totals.argmax(1), np.zeros(len(totals), dtype=np.int64)
    for stream in range(streams.shape[1]):
        own = np.flatnonzero(main == stream)
        part[generator.permutation(own)] = np.arange(len(own)) % parts
    return part[groups]


_Scores = tuple[dict[str, np.ndarray], tuple[float, float], np.ndarray]  # z of each kind, AUC and its variance, π (K,)


def _tested(data: _SplitRows, learners: list[Learner], known: np.ndarray | None, size: float) -> UnlabelledShift:
    """Score each part but the first with scores learned on the parts before it, and sum over the parts.

    Scores of streams are weighted by the root of their training parts, as their power grows with it. Without enough rows in
    any part, the standard error of the AUC is ∞.
    """
    kinds = list(dict.fromkeys(data.kinds.tolist()))
    found: dict[int, _Scores] = {}
    for part, learner in enumerate(learners, 1):
        own = data.part == part
        held = HeldOutPart(data.votes[own], data.groups[own])
        if held.effective.min() > 1.5:
            found[part] = _scored(held, data.features[own], learner, kinds, known)
    if not found:
        return UnlabelledShift(1.0, True, 0.0, dict.fromkeys([*kinds, CLASSES], 1.0), 0.5, math.inf, 1.0, ())
    raw, largest, weights = {}, 0.0, np.array(list(found), dtype=np.float64)
    scores, aucs, mixes = zip(*found.values(), strict=True)
    for kind in scores[0]:
        root = np.ones(len(weights)) if kind == CLASSES else np.sqrt(weights)
        z = root @ np.array([each[kind] for each in scores]) / math.sqrt(float(root @ root))
        sides = 2 if kind == CLASSES and known is not None else 1
        z = np.abs(z) if sides == 2 else z
        raw[kind] = np.minimum(1.0, sides * ndtr(-z)).tolist()
        largest = max(largest, float(z.max()))
    share, (areas, variances) = weights / weights.sum(), np.array(aucs).T
    auc = float(share @ areas), math.sqrt(float(share**2 @ variances))
    # a shift within a class is seen if its frequency is 3 standard errors of the mean of a score with variance 1
    pi = np.mean(mixes, 0)
    error = math.sqrt(float((np.append(pi, 1.0) ** 2 / data.votes.sum(0)).sum()))
    p_values, unseen = _holm(raw), tuple(np.flatnonzero(pi < 3 * error).tolist())
    p = min(p_values.values())
    return UnlabelledShift(p, p >= size, largest, p_values, *auc, p, unseen)


def _scored(held: HeldOutPart, features: np.ndarray, learner: Learner, kinds: list[str], known: np.ndarray | None) -> _Scores:
    contrast = np.append(learner.mix() if known is None else known, -1.0)  # the labelled rows at π against the unlabelled
    scores = normal_scores(features @ np.stack([learner.direction(contrast, kind) for kind in kinds], 1))
    classes = normal_scores(features @ learner.class_directions())
    if known is None:
        mix, scores, indicators = held.without_mix(scores, classes)
        of_classes = held.z_values(indicators, mix, -held.means(indicators)[-1])  # that a class is absent
        of_streams = held.z_values(scores, mix, more=held.mix_variance(scores, indicators, mix))
    else:
        mix, of_classes, of_streams = known, held.z_values(classes, known), held.z_values(scores, known)
    z = {**dict(zip(kinds, of_streams[:, None], strict=True)), CLASSES: of_classes}
    return z, held.auc(features @ learner.direction(contrast), mix), mix


def _holm(raw: dict[str, list[float]]) -> dict[str, float]:
    """Return each kind's smallest p-value, corrected for the number of all (Holm 1979)."""
    every = sorted((p, kind) for kind, values in raw.items() for p in values)
    corrected: dict[str, float] = {}
    highest = 0.0
    for rank, (p, kind) in enumerate(every):
        highest = max(highest, min(1.0, p * (len(every) - rank)))
        corrected.setdefault(kind, highest)
    return {kind: corrected[kind] for kind in raw}


def _complaints(found: UnlabelledShift, known: bool, size: float) -> list[str]:
    if math.isinf(found.auc_error):
        return ["Too few rows of some class to test whether p(x|y) differs; label more, or use smaller groups."]
    if found.p_value >= size:
        return []
    kinds = [_IN_WORDS[kind] for kind, p in found.p_values.items() if p < size]
    mixture = "at this prevalence" if known else "at any prevalence"
    said = [f"The unlabelled rows are no mixture of the labelled classes {mixture}: they differ in {'; '.join(kinds)}."]
    if found.any_prevalence >= size:
        return [*said, f"At another prevalence they may be one (p = {found.any_prevalence:.2g}): check the prevalence first."]
    why = (
        "p(x|y) differs: in training, a model can learn to distinguish labelled from unlabelled rows instead of the "
        "classes. Leave them out, or match scanner, site and selection, and compare with labelled rows of the population."
    )
    return [*said, why]


def _message(data: _SplitRows, found: UnlabelledShift, complaints: list[str]) -> str:
    labelled = int((data.votes[:, -1] == 0).sum())
    each = ", ".join(f"{kind} {p:.2g}" for kind, p in found.p_values.items())
    summary = f"p = {found.p_value:.3g} ({each}), AUC {found.auc:.3f} ± {found.auc_error:.3f}, {labelled:,} labelled and "
    summary += f"{len(data.votes) - labelled:,} unlabelled rows."
    blind = f"A shift within class(es) {list(found.unseen)} alone would hardly show." if found.unseen else ""
    parts = [*(complaints or ["The unlabelled rows may be a mixture of the labelled classes:"]), summary, blind]
    return " ".join(part for part in parts if part)


def _population(prevalence: Any) -> tuple[np.ndarray | None, int | None]:
    """Return π (K,), None if it is unknown or uncertain, and K, None if it follows from the labels."""
    prevalence = without_estimate(prevalence)
    if isinstance(prevalence, Prevalence):
        known = None if prevalence.is_unknown or prevalence.is_uncertain else prevalence.population
        return known, prevalence.num_classes
    if prevalence is None:
        return None, None
    length = 2 if np.ndim(prevalence) == 0 else len(prevalence)
    return np.exp(log_mix(prevalence, "prevalence", length)), length


def features_of(rows: np.ndarray, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return standardised features `(rows, q)`, without constant ones, and the kind of each (q,).

    They are normal scores of the columns, their squares, and products of two of them. NaN is replaced by the mean of the
    column's finite values, and by 0 in a column without any.
    """
    finite = np.isfinite(rows)
    means = np.where(finite, rows, 0).sum(0) / finite.sum(0).clip(1)
    scores = normal_scores(np.where(np.isnan(rows), means, rows))
    scores = scores[:, scores.std(0) > 0]
    if scores.shape[1] == 0:
        raise ValueError("Expected a column of `x` that varies, but got only constant ones: pass features that vary.")
    scores = _components(scores, _MOST_COLUMNS, generator)
    few = _components(scores, _MOST_IN_PAIRS, generator)
    first, second = np.triu_indices(few.shape[1], 1)
    blocks = [scores, scores**2, few[:, first] * few[:, second]]
    kinds = np.repeat([MEANS, SPREADS, PAIRS], [block.shape[1] for block in blocks])
    centred = np.concatenate(blocks, 1)
    centred -= centred.mean(0)
    spread = centred.std(0)
    kept = spread > math.sqrt(np.finfo(np.float64).eps)
    return centred[:, kept] / spread[kept], kinds[kept]


def normal_scores(table: Float64[np.ndarray, "n d"]) -> Float64[np.ndarray, "n d"]:
    """Return Φ⁻¹(rank/n) of each column, with the middle rank for ties; monotone changes of a column have no effect."""
    from scipy.stats import rankdata  # 0.3 s, which other functions need not wait for

    scores = ndtri((rankdata(table, axis=0) - 0.5) / len(table))
    return scores - scores.mean(0)


def _components(table: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
    """Return normal scores of the leading principal components, if there are more columns than `count`.

    By a randomised singular value decomposition (Halko et al. 2011).
    """
    if table.shape[1] <= count:
        return table
    found = table @ generator.standard_normal((table.shape[1], min(count + 10, table.shape[1])))
    for _ in range(3):
        found = table @ (table.T @ np.linalg.qr(found)[0])
    directions = np.linalg.svd(np.linalg.qr(found)[0].T @ table, full_matrices=False)[2][:count]
    return normal_scores(table @ directions.T)


class Learner:
    """Means of the features in each stream and their covariance, over the training rows.

    A direction is (C + λ)⁻¹ δ, for a difference δ of means of n rows: the linear discriminant with a ridge. With q features
    of a kind and e = max(0, |δ|² − q/n), the part of the squared difference that is not noise, λ = q / (n e + √2q), as for a
    normal prior of that variance, which is never below the standard error of e.

    Args:
        features: of the training rows `(rows, q)`.
        votes: with a column for the unlabelled `(rows, K + 1)`.
        kinds: the kind of each feature (q,).
    """

    def __init__(self, features: np.ndarray, votes: np.ndarray, kinds: np.ndarray) -> None:
        mean, self.kinds, self._weights = features.mean(0), kinds, votes.sum(0)
        self._means = votes.T @ features / self._weights[:, None]
        self._covariance = features.T @ features / len(features) - np.outer(mean, mean)

    def direction(self, contrast: np.ndarray, kind: str | None = None) -> np.ndarray:
        """Return the direction (q,) for Σ_j contrast_j mean_j, with features of one kind, or of all kinds."""
        own = np.full(len(self.kinds), True) if kind is None else self.kinds == kind
        found = np.zeros(len(own))
        found[own] = np.linalg.solve(self._ridged(contrast)[np.ix_(own, own)], (contrast @ self._means)[own])
        return found

    def class_directions(self) -> np.ndarray:
        """Return the directions that separate each class from the others `(q, K)`; one column for two classes."""
        size = len(self._weights) - 1
        contrasts = np.append(np.eye(size) * size / (size - 1) - 1 / (size - 1), np.zeros((size, 1)), 1)
        return np.stack([self.direction(contrast) for contrast in contrasts[1 if size == 2 else 0 :]], 1)

    def mix(self) -> np.ndarray:
        """Return the π (K,) whose mixture is closest to the unlabelled rows, moved into the simplex."""
        size = len(self._weights) - 1
        root = np.linalg.cholesky(np.linalg.inv(self._ridged(np.append(np.full(size, 1 / size), -1.0))))
        classes, unlabelled = self._means[:-1] @ root, self._means[-1] @ root
        rest = np.linalg.lstsq((classes[1:] - classes[0]).T, unlabelled - classes[0], rcond=None)[0]
        return _in_simplex(np.append(1 - rest.sum(), rest))

    def _ridged(self, contrast: np.ndarray) -> np.ndarray:
        """Return C + λ `(q, q)`."""
        rows = 1 / float((contrast**2 / self._weights).sum())
        delta, ridge = contrast @ self._means, np.empty(len(self.kinds))
        for kind in np.unique(self.kinds):
            own = self.kinds == kind
            count = int(own.sum())
            energy = max(0.0, float(delta[own] @ delta[own]) - count / rows)
            ridge[own] = count / (rows * energy + math.sqrt(2 * count))
        return self._covariance + np.diag(ridge)


class HeldOutPart:
    """The rows of one part.

    Args:
        votes: with a column for the unlabelled `(rows, K + 1)`.
        groups: the number of each row's group (rows,).

    Attributes:
        effective: the effective number of groups in each stream (K + 1,), less if they are unequal (Kish).
    """

    def __init__(self, votes: np.ndarray, groups: np.ndarray) -> None:
        self.votes = votes
        names, self.groups = np.unique(groups, return_inverse=True)
        self._groups = len(names)
        by_group = self._summed(votes)
        self.effective = by_group.sum(0) ** 2 / (by_group**2).sum(0).clip(1e-300)

    def means(self, scores: np.ndarray) -> np.ndarray:
        """Return the mean of each score in each stream `(K + 1, scores)`."""
        return (self.votes.T @ scores) / self.votes.sum(0)[:, None]

    def z_values(
        self, scores: np.ndarray, pi: np.ndarray, delta: np.ndarray | None = None, more: np.ndarray | float = 0.0
    ) -> np.ndarray:
        """Return Δ of each score over its standard error (Welch's t), as the normal value with the same tail probability.

        A score that is constant in each stream gets the variance of one differing row per stream, not 0.

        Args:
            scores: s, a column for each score.
            pi: π (K,).
            delta: Δ of each score, by default Σ_k π_k E_k[s] − E_u[s].
            more: an additional variance of each Δ, such as `mix_variance`.
        """
        contrast = np.append(pi, -1.0)
        delta = contrast @ self.means(scores) if delta is None else delta
        variance, degrees = self._variances(scores, contrast)
        variance = np.maximum(variance + more, scores.var(0) * (contrast**2 / self.effective**2).sum())
        t = delta / np.sqrt(variance.clip(1e-24))
        return np.copysign([normal_score(*each) for each in zip(t, degrees, strict=True)], delta)

    def without_mix(self, scores: np.ndarray, classes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return π̂ of this part, scores whose mean is 0 in every class, and K scores whose mean in class j is 1{j = k}.

        The last, t, are affine in the classes' scores; their mean over the unlabelled is π̂. A score s becomes
        s − Σ_k t_k E_k[s], whose Δ is the same for every π.
        """
        both = np.append(classes, np.ones((len(classes), 1)), 1)
        indicators = both @ np.linalg.pinv(self.means(both)[:-1])
        found = _in_simplex(self.means(indicators)[-1])
        return found, scores - indicators @ self.means(scores)[:-1], indicators

    def mix_variance(self, scores: np.ndarray, indicators: np.ndarray, pi: np.ndarray) -> np.ndarray:
        """Return Σ_k Var(π̂_k) Var(E_k[s]) of each score: the variance of π̂ times that of the means, large for few rows."""
        of_mix = self._variances(indicators, np.append(pi, -1.0))[0]
        return of_mix @ np.stack([self._variances(scores, each)[0] for each in np.eye(len(pi) + 1)[:-1]])

    def auc(self, score: np.ndarray, pi: np.ndarray) -> tuple[float, float]:
        """Return Σ_k π_k P(s of class k > s unlabelled), with ties as one half, and its variance (DeLong et al. 1988)."""
        share = self.votes / self.votes.sum(0)
        labelled, unlabelled = share[:, :-1] @ pi, share[:, -1]
        placed = np.where(unlabelled > 0, _below(score, labelled), _below(score, unlabelled))
        return float(labelled @ placed), float(self._variances(placed[:, None], np.append(pi, -1.0))[0][0])

    def _variances(self, scores: np.ndarray, contrast: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the variance of Σ_j contrast_j mean_j between groups, and its degrees of freedom (Satterthwaite), by score."""
        degrees = (self.effective - 1)[:, None]
        shares = contrast * self.votes / self.votes.sum(0)
        by_group = self._summed(shares[:, :, None] * (scores[:, None] - self.means(scores))) * np.sqrt(1 + 1 / degrees)
        alone = (by_group**2).sum(0)
        joint = (alone**2 / degrees).sum(0)
        found = np.where(joint > 0, alone.sum(0) ** 2 / np.where(joint > 0, joint, 1.0), degrees.min())
        return (by_group.sum(1) ** 2).sum(0), found

    def _summed(self, values: np.ndarray) -> np.ndarray:
        """Return sums over each group."""
        if self._groups == len(values):
            return values
        found = np.zeros((self._groups, *values.shape[1:]))
        np.add.at(found, self.groups, values)
        return found


def _below(score: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return the weight of rows with a smaller score, and half of that of equal ones (rows,)."""
    order = score.argsort(kind="stable")
    total, ordered = np.append(0.0, weight[order].cumsum()), score[order]
    return (total[np.searchsorted(ordered, score, "left")] + total[np.searchsorted(ordered, score, "right")]) / 2


def _in_simplex(mix: np.ndarray) -> np.ndarray:
    """Return the mix with its negative entries set to about 1e-6."""
    kept = mix.clip(1e-6)
    return kept / kept.sum()
