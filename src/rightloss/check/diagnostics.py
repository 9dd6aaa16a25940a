"""Labelled predictions → a `Diagnosis` for each row of the table that `check` returns.

Stage: `Sample` → `Diagnosis`, one per question → `CheckRow`. Every statistic is a smooth function of averages within the
classes; its standard error comes from the influence of each example.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.special import log_softmax, ndtr, ndtri

from ..arrays import log_prob_table, multiply_classes, rows_of
from ..metrics.intervals import Design, InfluenceSum, design_of
from ..metrics.recalibration import fit_recalibration, score_influence
from ..metrics.sample import Sample
from ..prevalence import Prevalence
from ..prevalence.classes import shown
from ..shift import LabelShiftWarning, label_shift_test
from ..shift.maximum_likelihood import normal_score
from ..solve import intercepts_for_mean

_ROUNDING = 1e-5  # relative error of figures computed from float32 predictions
_ALIKE = 0.25  # how close an offset must be to that of a known mistake, relative to the length of the latter
_RECALIBRATE = "recalibrate on held-out rows (rightloss.calibration.fit_calibration, then retarget from its `sampling`)"
_SQUASHED = "the model ends in a softmax or sigmoid, and the likelihood applies another: drop the model's, and train again"


@dataclass(frozen=True)
class CheckRow:
    """One row of a `Check`: a test and its verdict.

    Examples:
        >>> from rightloss.check import CheckRow
        >>> CheckRow("skill", "0.3 (0.2 to 0.4)", "≥ 0", 0.99, "ok").verdict
        'ok'

    Attributes:
        name: what was tested.
        seen: the result, with an interval if there is one.
        expected: the result of a correct model.
        p_value: the probability of such a result for a correct model; None if the test is not statistical.
        verdict: "ok", "look" or "not tested".
        remedy: what to do if the verdict is "look", why if it is "not tested", else empty.
    """

    name: str
    seen: str
    expected: str
    p_value: float | None
    verdict: Literal["ok", "look", "not tested"]
    remedy: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """A row before the level of its test is known.

    Attributes:
        name, expected, remedy: as in `CheckRow`.
        p_value: None if there is no statistical test.
        wrong: the verdict in that case; None for "not tested".
        seen: text before the figure, or instead of it.
        value: the figure.
        error: its standard error.
        weight: its effective sample size.
        looks: the number of figures this one was chosen from.
        bounds: the range of the figure.
    """

    name: str
    expected: str
    remedy: str
    p_value: float | None = None
    wrong: bool | None = None
    seen: str = ""
    value: float = math.nan
    error: float = math.nan
    weight: float = math.inf
    looks: int = 1
    bounds: tuple[float, float] = (-math.inf, math.inf)

    def row(self, size: float) -> CheckRow:
        """Make the row of the table, with a test of level `size`."""
        if self.p_value is None and self.wrong is None:
            return CheckRow(self.name, self.seen or "–", self.expected, None, "not tested", self.remedy)
        wrong = self.wrong if self.p_value is None else self.p_value < size
        seen = self.seen
        if not math.isnan(self.error):
            reach = _quantile(size / self.looks, self.weight) * self.error
            low, high = max(self.value - reach, self.bounds[0]), min(self.value + reach, self.bounds[1])
            seen += f"{self.value:.4g} ({low:.4g} to {high:.4g})"
        return CheckRow(self.name, seen, self.expected, self.p_value, "look" if wrong else "ok", self.remedy if wrong else "")


@dataclass(frozen=True)
class Evidence:
    """A sample, and the values per entry that all tests use.

    Attributes:
        sample: labelled predictions at π.
        design: the groups of the entries.
        repeats: whether the entries of a group are copies of one example.
        shares: the weight of each entry in its class `(m,)`; they sum to 1 in each class.
        probs: the predictions `(m, k)`.
    """

    sample: Sample
    design: Design
    repeats: bool
    shares: np.ndarray
    probs: np.ndarray

    @classmethod
    def of(cls, sample: Sample, repeats: bool) -> Evidence:
        shares = (1.0 if sample.votes is None else sample.votes) / sample.totals[sample.labels]
        return cls(sample, design_of(sample), repeats, shares, sample.per_entry(np.exp(sample.log_probs.astype(np.float64))))

    @property
    def mix(self) -> np.ndarray:
        """Return the frequencies of the labels (K,)."""
        return self.sample.totals / self.sample.totals.sum()

    @property
    def is_simple(self) -> bool:
        """Return whether entries are independent examples, or copies of such."""
        return self.sample.votes is None and (self.sample.groups is None or self.repeats)

    def by_class(self, values: np.ndarray) -> np.ndarray:
        """Return the average within each class, `(k, …)`, of values per entry `(m, …)`."""
        columns = values.reshape(len(values), -1).T
        sums = [np.bincount(self.sample.labels, each * self.shares, self.sample.num_classes) for each in columns]
        return np.stack(sums, 1).reshape(-1, *values.shape[1:])

    def spread(self, values: np.ndarray, mix: np.ndarray, design: Design | None = None) -> tuple[float, float]:
        """Return the standard error of Σ_c mix_c avg_c(values), and its effective sample size."""
        labels, total = self.sample.labels, InfluenceSum(design or self.design)
        total.add(slice(None), mix[labels] * self.shares * (values - self.by_class(values)[labels]))
        influence = total.summary()
        return influence.error, influence.effective_size

    def design_effect(self, values: np.ndarray, mix: np.ndarray) -> float:
        """Return the factor by which groups increase that error, at least 1."""
        if self.design.clusters is None:
            return 1.0
        alone = self.spread(values, mix, Design(None, self.sample.labels))[0]
        return max(1.0, self.spread(values, mix)[0] / alone) if alone > 0 else 1.0


def label_mix(seen: Evidence) -> Diagnosis:
    """Test whether the class frequencies of the labels are ρ."""
    from scipy.stats import binomtest  # 0.3 s, which other functions need not wait for

    rho, mix, n = seen.sample.prevalence.sampling, seen.mix, float(seen.sample.totals.sum())
    if seen.is_simple or (seen.sample.weighted and seen.sample.groups is None):  # weights do not change the counts
        counts = zip(seen.sample.totals.tolist(), rho.tolist(), strict=True)
        tests = [float(binomtest(round(count), round(n), rate).pvalue) for count, rate in counts]
    else:
        tests = [_of_share(seen, k, float(rho[k])) for k in range(len(rho))]
    remedy = (
        "if these are held-out rows that were not drawn as in training, pass sampled=False; else state the mix of the "
        "training rows, Prevalence.from_labels(y, population) or the sampler's `sampler.prevalence`, and train again"
    )
    smallest = min(tests) if len(tests) == 2 else min(1.0, len(tests) * min(tests))
    return Diagnosis("label mix", shown(rho), remedy, smallest, seen=shown(mix))


def mean_prediction(seen: Evidence, remedy: str) -> Diagnosis:
    """Test whether Σ_c π_c avg_c p(k|x) is π_k.

    The standard error is at least that of a correct model, in which p within class c has the density p_c/π_c relative to the
    population. This matters because the few rows of a rare class can underestimate their variance.
    """
    pi, means = seen.sample.prevalence.population, seen.by_class(seen.probs)
    found = pi @ means
    weights = (pi[seen.sample.labels] * seen.shares)[:, None] * seen.probs
    weights = weights / weights.sum(0).clip(1e-300)
    spreads = (weights.T @ seen.probs**2 - (weights.T @ seen.probs) ** 2).clip(0)
    least = np.sqrt((pi**2 / seen.sample.effective_totals) @ spreads)
    figures = []
    for k in _classes(len(pi)):
        error, weight = seen.spread(seen.probs[:, k], pi)
        error = max(error, float(least[k]) * seen.design_effect(seen.probs[:, k], pi), _ROUNDING * float(pi[k]))
        figures.append((k, float(found[k]), float(pi[k]), error, weight))
    return replace(_worst("mean prediction", figures, remedy), bounds=(0.0, 1.0))


def calibration(seen: Evidence, mix_is_wrong: bool, squashed: bool) -> tuple[Diagnosis, Diagnosis, str]:
    """Test slope and intercept at the rows' own mix; also return how to fix the intercept."""
    sample, mix = seen.sample, seen.mix
    offset = np.log(mix) - np.log(sample.prevalence.population)
    moved = multiply_classes(sample.log_probs.astype(np.float64), offset)
    there = replace(sample, log_probs=np.asfortranarray(moved), prevalence=Prevalence(mix))
    slope, (offsets, intercept) = _slope(seen, there), _intercept(seen, there)
    if squashed or slope.value <= 0:  # one cause for all three
        remedy = _SQUASHED if squashed else slope.remedy
        return replace(slope, remedy=remedy), replace(intercept, remedy=remedy), remedy
    remedy = _name_offset(None if slope.value > 3 else offsets, seen, mix_is_wrong)
    return slope, replace(intercept, remedy=intercept.remedy or remedy), remedy


def skill(seen: Evidence) -> list[Diagnosis]:
    """Test the log-likelihood at π against that of always predicting π, and count labels with probability 0."""
    sample, pi = seen.sample, seen.sample.prevalence.population
    own = sample.own_log_probs
    impossible = int(np.isneginf(own).sum())
    if impossible:
        finding = Diagnosis("skill", "≥ 0", "some labels had probability 0", seen="−∞")
        remedy = (
            "no data support a probability of exactly 0: use log_softmax rather than log(softmax), or mix a "
            "little of the class frequencies into the predictions"
        )
        return [finding, Diagnosis("impossible labels", "0", remedy, wrong=True, seen=str(impossible))]
    least = float(pi @ np.log(pi))
    error, weight = seen.spread(own, pi)
    value, error = 1 - float(pi @ seen.by_class(own)) / least, max(error / -least, _ROUNDING)
    below = p_value(value, error, weight) / 2
    remedy = "always answering the population is better than this: fix the rows above, then regularise, or train on more"
    p = below if value < 0 else 1 - below
    return [Diagnosis("skill", "≥ 0", remedy, p, value=value, error=error, weight=weight, bounds=(-math.inf, 1.0))]


def logits(squashed: bool) -> Diagnosis:
    """Test whether the outputs are probabilities, used as logits by mistake."""
    return Diagnosis("logits", "unbounded", _SQUASHED, wrong=squashed, seen="all in [0, 1]" if squashed else "unbounded")


def label_shift(there: np.ndarray, seen: Evidence) -> Diagnosis:
    """Test whether unlabelled predictions are a mixture of those of the labelled classes."""
    name, expected, sample = "label shift", "a mixture of the classes", seen.sample
    if not seen.is_simple or there.ndim > 2:
        return Diagnosis(name, expected, "rows in groups, of maps, with votes or with weights are not independent examples")
    table, labels = sample.per_entry(sample.log_probs), sample.labels
    if seen.repeats:
        assert sample.groups is not None
        once = np.unique(sample.per_entry(sample.groups), return_index=True)[1]
        table, labels = table[once], labels[once]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LabelShiftWarning)
        found = label_shift_test(there, (table, labels))
    if found.degrees < 1:
        return Diagnosis(name, expected, "too few rows for more bins of predictions than classes")
    remedy = (
        "p(x|y) differs between the labelled and the unlabelled rows, and predictions do not carry over: look for changes of "
        "scanner, site or selection; where the labelled rows are the training's, for overfitting"
    )
    return Diagnosis(name, expected, remedy, found.p_value, seen=f"χ² = {found.statistic:.1f}, {found.degrees} degrees")


def unlabelled_mean(there: np.ndarray, seen: Evidence) -> Diagnosis:
    """Test whether the mean prediction over unlabelled rows is π."""
    prevalence, pi = seen.sample.prevalence, seen.sample.prevalence.population
    probs = np.exp(log_prob_table(rows_of(there), len(pi), "unlabelled").astype(np.float64))
    per_image = probs.reshape(len(there), -1, len(pi)).mean(1)
    means, n = per_image.mean(0), len(per_image)
    weights = pi[seen.sample.labels] * seen.shares
    least = (weights @ seen.probs**2 - pi**2).clip(0) / n if there.ndim == 2 else np.zeros(len(pi))
    alpha = prevalence.concentration
    unknown = np.zeros(len(pi)) if alpha is None else pi * (1 - pi) / (alpha.sum() + 1)
    figures = []
    for k in _classes(len(pi)):
        error, weight = _spread_of((per_image[:, k] - means[k]) / n)
        error = math.sqrt(max(error**2, float(least[k])) + float(unknown[k]))
        figures.append((k, float(means[k]), float(pi[k]), max(error, _ROUNDING * float(pi[k])), max(weight, 2.0)))
    remedy = (
        "where the rows above are ok, the classes come at another mix there: estimate_prevalence(unlabelled, "
        "prevalence.population, held_out=(log_probs, y)), and retarget to it"
    )
    return replace(_worst("unlabelled mean", figures, remedy), bounds=(0.0, 1.0))


def _slope(seen: Evidence, there: Sample) -> Diagnosis:
    name, expected = "calibration slope", "1 at the rows' mix"  # `evaluate` fits it at π
    model, reason = fit_recalibration(there)
    if model is None:
        return Diagnosis(name, expected, reason)
    error, weight = seen.spread(score_influence(there, model), there.prevalence.population)
    value = float(model.theta[0]) / model.scale
    if value <= 0:
        remedy = "these predictions contradict the labels: are columns in the order of the class numbers, rows in that of y?"
    elif value < 1:
        remedy = f"too sure of itself, as after overfitting: stop earlier, regularise, or {_RECALIBRATE}"
    else:
        remedy = f"not sure enough, as after a second softmax or too short a training: look for either, or {_RECALIBRATE}"
    return Diagnosis(name, expected, remedy, p_value(value - 1, error, weight), value=value, error=error, weight=weight)


def _intercept(seen: Evidence, there: Sample) -> tuple[np.ndarray | None, Diagnosis]:
    """Return offsets a (K,), of mean 0, for which avg softmax(log q + a) is the labels' frequencies."""
    mix, table = there.prevalence.population, there.per_entry(there.log_probs)
    share = mix[there.labels] * seen.shares
    a = intercepts_for_mean(table, mix, share)
    probs = np.exp(log_softmax(table + a, axis=1))
    weighted = share[:, None] * probs
    if not np.allclose(weighted.sum(0), mix, rtol=1e-6, atol=0):  # rows with probability 0 keep it
        return None, Diagnosis("calibration intercept", "0", "no intercept makes up for these predictions")
    inverse = np.linalg.pinv(np.diag(weighted.sum(0)) - weighted.T @ probs, rcond=1e-12, hermitian=True)
    figures = []
    for k in _classes(len(mix)):
        moves = inverse[k] if len(mix) > 2 else inverse[1] - inverse[0]
        value = float(a[k]) if len(mix) > 2 else float(a[1] - a[0])
        error, weight = seen.spread(probs @ moves, mix)
        figures.append((k, value, 0.0, max(error, _ROUNDING), weight))
    return a, _worst("calibration intercept", figures, "")


def _name_offset(a: np.ndarray | None, seen: Evidence, mix_is_wrong: bool) -> str:
    """Return the likely mistake, given the offsets a of the log-odds that would correct the predictions."""
    prevalence = seen.sample.prevalence
    to_population, to_rows = prevalence.log_weights, np.log(prevalence.sampling / seen.mix)
    told = {
        "trained at the mix of these rows, while `sampling` says another: train again with Prevalence.from_labels(y, "
        "population) or the sampler's `sampler.prevalence`": to_rows if mix_is_wrong else None,
        "these are predictions at `sampling`, as after plain cross-entropy: retarget(log_probs, from_=prevalence.sampling, "
        "to=prevalence.population), or PrevalenceLayer(…, outputs_at='sampling')": to_population,
        "moved from `sampling` to the population once too often: leave out `retarget`, since losses that know the prevalence "
        "give the population's predictions": -to_population,
        "moved the wrong way: from_=prevalence.sampling, to=prevalence.population": 2 * to_population,
    }
    for remedy, offset in told.items():
        if a is not None and offset is not None:
            offset = offset - offset.mean()
            if np.linalg.norm(offset) > 0.2 and np.linalg.norm(a - offset) < _ALIKE * np.linalg.norm(offset):
                return remedy
    return f"off by log-odds that have no simple cause: {_RECALIBRATE}; or train again, with start_at_prevalence and longer"


def _worst(name: str, figures: Sequence[tuple[int, float, float, float, float]], remedy: str) -> Diagnosis:
    """Return the diagnosis of the class with the largest deviation, from (class, value, expected, error, effective size)."""
    looks = len(figures)
    tests = [p_value(value - expected, error, weight, looks) for _, value, expected, error, weight in figures]
    scores = [abs(value - expected) / error for _, value, expected, error, _ in figures]
    number = min(range(looks), key=lambda i: (tests[i], -scores[i]))
    k, value, expected, error, weight = figures[number]
    label = f"class {k}: " if looks > 1 else ""
    return Diagnosis(name, f"{expected:.4g}", remedy, tests[number], None, label, value, error, weight, looks)


def _classes(size: int) -> Sequence[int]:
    """Return the classes to test; of two classes the second is enough."""
    return [1] if size == 2 else range(size)


def _of_share(seen: Evidence, k: int, rate: float) -> float:
    """Test a class frequency with the variance between groups, or of votes; groups are not stratified by class."""
    sample, value = seen.sample, float(seen.mix[k])
    votes = np.ones(len(sample.labels)) if sample.votes is None else sample.votes
    added = votes * ((sample.labels == k) - value) / votes.sum()
    sums = added if seen.design.clusters is None else np.bincount(seen.design.clusters, added)
    error, weight = _spread_of(sums)
    return p_value(value - rate, max(error, _ROUNDING * rate), weight)


def _spread_of(parts: np.ndarray) -> tuple[float, float]:
    """Return the standard error of a sum of independent parts of mean 0, and its effective sample size."""
    squares, n = parts**2, len(parts)
    total = float(squares.sum())
    return math.sqrt(total * n / max(n - 1, 1)), total**2 / max(float((squares**2).sum()), 1e-300)


def p_value(distance: float, error: float, weight: float, looks: int = 1) -> float:
    """Return P(|T| ≥ distance/error), with Student's t of as many degrees of freedom as `weight` examples have; times `looks`.

    It is Wallace's normal approximation, within 2 % for 10 examples or more and p > 0.003; with fewer it is slightly too large.
    """
    return min(1.0, 2 * looks * float(ndtr(-normal_score(distance / error, max(weight - 1, 1.0)))))


def _quantile(size: float, weight: float) -> float:
    """Return the distance, in standard errors, at which `p_value` is `size`."""
    z = -float(ndtri(size / 2))
    if math.isinf(weight):
        return z
    degrees = max(weight - 1, 1.0)
    z *= (8 * degrees + 3) / (8 * degrees + 1)
    return math.sqrt(degrees * math.expm1(min(z * z / degrees, 500.0)))
