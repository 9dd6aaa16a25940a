"""Several findings at once (multi-label): π and ρ of each, and weights of images that were sampled by findings together.

Stage: rates, or the label matrix `(n, L)` → `MultilabelPrevalence`, and weights of rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..arrays import Array, Numbers, array_namespace, array_of, checked_choice, is_tensor, is_traced, like
from .classes import ContinuousPrevalence, Frequencies, Prevalence, PrevalenceWarning, shown

if TYPE_CHECKING:
    from jaxtyping import Float64

SampledBy = Literal["any", "each"]
Pattern = Literal["any", "all"]
Rates = Mapping[str, Any] | Sequence[Any] | Frequencies
_MOST_FINDINGS = 62  # a pattern of findings is coded as a 64-bit integer
_FAR = 0.2  # of a log-ratio of rates: differences below are not worth a warning


class MultilabelPrevalence:
    """Rates of L findings, any of which can be present together: π and ρ of each. Made by `Prevalence.multilabel`.

    Immutable. A sequence of binary prevalences, also by name: `prevalence["mass"]`, `for each in prevalence`.

    Args:
        population: π, the rate of each finding where the model will be used: L numbers, a dict by name, or L binary
            `Prevalence`s (also uncertain ones, `Prevalence.beta`), which bring their own sampling.
        sampling: ρ, the rate of each finding in the training minibatches: L numbers, a dict, or one number for all. None
            means one half each.
        evidence: κ, as in `Prevalence`.
        names: of the findings; those of the dict, or "finding 0", … by default.
        patterns: set by `Prevalence.from_label_matrix`, for images that were sampled by more than one finding.

    Attributes:
        names: of the findings.
        patterns: the weights of rows by their findings; None where the findings were sampled each by its own label.

    Examples:
        >>> import rightloss as rl
        >>> prevalence = rl.Prevalence.multilabel({"mass": 0.05, "nodule": 0.01}, sampling=0.3)
        >>> prevalence["nodule"]
        Prevalence(population=[0.99, 0.01], sampling=[0.7, 0.3])
    """

    __slots__ = ("_findings", "names", "patterns")

    _findings: tuple[Prevalence, ...]
    names: tuple[str, ...]
    patterns: PatternWeights | None

    def __init__(
        self,
        population: Rates,
        sampling: Rates | None = None,
        evidence: float = 1.0,
        names: Sequence[str] | None = None,
        patterns: PatternWeights | None = None,
    ) -> None:
        labels = _names(population, names)
        given = zip(by_finding(population, "population", labels), labels, strict=True)
        findings = [_finding(each, name, evidence) for each, name in given]
        if sampling is not None:
            one = not hasattr(sampling, "__len__") or getattr(sampling, "ndim", 1) == 0
            rates = [sampling] * len(labels) if one else by_finding(sampling, "sampling", labels)
            rates = [_rate(each, "sampling", name) for each, name in zip(rates, labels, strict=True)]
            findings = [each.with_sampling([1 - rate, rate]) for each, rate in zip(findings, rates, strict=True)]
        for name, value in zip(self.__slots__, (tuple(findings), labels, patterns), strict=True):
            object.__setattr__(self, name, value)

    __setattr__ = Prevalence.__setattr__

    @property
    def population(self) -> Float64[np.ndarray, " l"]:
        """π (L,): the rate of each finding in the population."""
        return np.array([each.population[1] for each in self._findings])

    @property
    def sampling(self) -> Float64[np.ndarray, " l"]:
        """ρ (L,): the rate of each finding in the minibatches."""
        return np.array([each.sampling[1] for each in self._findings])

    @property
    def evidence(self) -> float:
        """κ, the same for all findings."""
        return self._findings[0].evidence

    @property
    def num_findings(self) -> int:
        """L."""
        return len(self._findings)

    def with_evidence(self, evidence: float) -> MultilabelPrevalence:
        """Return a copy with another κ; 0 for the paper's loss."""
        findings = [each.with_evidence(evidence) for each in self._findings]
        return MultilabelPrevalence(findings, names=self.names, patterns=self.patterns)

    def retarget(self, population: Rates | MultilabelPrevalence) -> MultilabelPrevalence:
        """Return a copy with another population: L rates, a dict by name, or a `MultilabelPrevalence`."""
        if isinstance(population, MultilabelPrevalence):
            population = dict(zip(population.names, population, strict=True))
        new = by_finding(population, "population", self.names)
        moved = [each.retarget(rate) for each, rate in zip(self._findings, new, strict=True)]
        return MultilabelPrevalence(moved, names=self.names, patterns=self.patterns)

    def __len__(self) -> int:
        return len(self._findings)

    def __iter__(self) -> Iterator[Prevalence]:
        return iter(self._findings)

    def __getitem__(self, finding: int | str) -> Prevalence:
        if isinstance(finding, str):
            if finding not in self.names:
                raise KeyError(f"there is no finding {finding!r}; there are {', '.join(self.names)}")
            finding = self.names.index(finding)
        return self._findings[finding]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MultilabelPrevalence) and self.__reduce__() == other.__reduce__()

    def __hash__(self) -> int:
        return hash((self._findings, self.names))

    def __reduce__(self) -> tuple[Any, ...]:
        return MultilabelPrevalence, (list(self._findings), None, 1.0, self.names, self.patterns)

    def __repr__(self) -> str:
        parts = [f"population={shown(self.population)}", f"sampling={shown(self.sampling)}"]
        parts += [f"evidence={self.evidence:g}"] * (self.evidence != 1)
        parts += ["sampled by pattern"] * (self.patterns is not None)
        return f"Prevalence.multilabel({', '.join(parts)})"


AnyPrevalence = Prevalence | ContinuousPrevalence | MultilabelPrevalence
FindingMix = MultilabelPrevalence | Mapping[str, Any]  # a mix of findings: their prevalence, or rates or estimates by name


@dataclass(frozen=True, eq=False)
class PatternWeights:
    """Weights of rows by the findings they have together, for images sampled by more than one finding.

    Let images be drawn with a probability that depends on their pattern of findings, with the weight w(pattern), the pattern's
    frequency in the population over that in the sample. Then the images *without* finding l are not those of the population:
    among them, other findings are too frequent. A row of the class c of finding l has the weight

        w(pattern) / E[w(pattern) | y_l = c],

    which is 1 on average within each class. So the mix of classes stays ρ_l, and π_l/ρ_l corrects it as usual. If all
    weights are 1, the findings can be treated one by one.

    Attributes:
        codes: sorted codes of the P patterns.
        weights: w of each pattern for each finding and class, `(P, L, 2)`.
        by: "any" if a pattern is whether a row has any finding, "all" if it is all of its findings.
    """

    codes: np.ndarray
    weights: np.ndarray
    by: Pattern

    def of_rows(self, target: Array) -> Array:
        """Return the weight of each row `(n, L)` of labels for each finding; 1 where a finding was not read."""
        target = target.detach() if is_tensor(target) else np.asarray(target, np.float64)
        xp, codes = array_namespace(target), pattern_codes(target, self.by)
        own = like(self.codes, target)
        place = xp.clip(xp.searchsorted(own, codes), None, len(own) - 1)
        if (row := _first_row(own[place] != codes)) is not None:
            came = f"row {row} has {target[row].tolist()}: make the prevalence from all training labels"
            raise ValueError(f"Expected patterns of findings that occur in the label matrix, but {came}.")
        table = like(self.weights, target)[place]
        unread, present = xp.isnan(target), xp.nan_to_num(xp.astype(target, xp.float64))
        return xp.where(unread, 1.0, table[..., 0] * (1 - present) + table[..., 1] * present)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PatternWeights) or self.by != other.by:
            return False
        return np.array_equal(self.codes, other.codes) and np.array_equal(self.weights, other.weights)

    __hash__ = None  # type: ignore[assignment]


def from_label_matrix(
    labels: Numbers,
    population: Rates,
    sampled_by: SampledBy | None = None,
    evidence: float = 1.0,
    names: Sequence[str] | None = None,
) -> MultilabelPrevalence:
    """Return the prevalence of findings with `sampling` from their label matrix; see `Prevalence.from_label_matrix`."""
    names = list(map(str, labels.columns)) if names is None and hasattr(labels, "columns") else names
    matrix = label_matrix(labels, "labels")
    counts = np.maximum((~np.isnan(matrix)).sum(0), 1)
    sampling = np.nansum(matrix, 0) / counts
    wrong = [column for column, rate in enumerate(sampling.tolist()) if not 0 < rate < 1]
    if wrong:
        came = f"column(s) {wrong} have only one kind: collect some of the other, or drop the finding"
        raise ValueError(f"Expected rows with and without each finding in `labels`, but {came}.")
    rates: Any = population
    archive = patterns = None
    if not isinstance(population, Mapping) and np.ndim(population) == 2:
        archive = label_matrix(population, "population", matrix.shape[1])
        rates = np.nanmean(archive, 0)
    simple = MultilabelPrevalence(rates, sampling, evidence, names)
    if archive is not None:
        patterns = _by_pattern(matrix, archive)
    elif sampled_by == "any":
        patterns = _by_any(matrix, simple)
    elif checked_choice(sampled_by, "sampled_by", ("any", "each", None)) is None:
        _warn_of_patterns(matrix, simple)
    return MultilabelPrevalence(list(simple), names=simple.names, patterns=patterns)


def label_matrix(labels: Any, name: str, num_findings: int | None = None) -> Float64[np.ndarray, "n l"]:
    """Return labels of findings, 0, 1 or NaN where not read, as float64 `(n, L)`, or raise a ValueError."""
    matrix = array_of(labels, name).astype(np.float64)
    if matrix.ndim != 2 or 0 in matrix.shape or num_findings not in (None, matrix.shape[1]):
        expected = f"a multi-label matrix of shape (n, {num_findings or 'L'}), a column for each finding"
        raise ValueError(f"Expected `{name}` to be {expected}, but got shape {matrix.shape}: list a row per image.")
    check_findings(matrix, name)
    return matrix


def check_findings(target: Array, name: str) -> None:
    """Raise a ValueError for labels of findings outside 0 to 1; NaN is a finding that was not read."""
    bad = (target < 0) | (target > 1)
    if bool(bad.any()):
        value = float(target[bad][0])
        remedy = "0 is absent, 1 present, NaN not read"
        if value == -1:
            remedy += "; for -1, uncertain in some data sets, write NaN to leave it out, or the probability that you believe"
        raise ValueError(f"Expected multi-label `{name}` of 0 and 1, but got {value:g}: {remedy}.")


def pattern_codes(target: Array, by: Pattern) -> Array:
    """Return an int64 code of the pattern of findings of each row; a ValueError if a finding that decides it was not read."""
    xp = array_namespace(target)
    unread = xp.isnan(target)
    present = xp.astype(xp.nan_to_num(xp.round(target)), xp.int64)
    some = xp.any(present != 0, axis=1)
    unknown = xp.any(unread, axis=1) & ~some if by == "any" else xp.any(unread, axis=1)
    if (row := _first_row(unknown)) is not None:
        raise ValueError(
            f"Expected every finding to be read where images were sampled by findings together, but row {row} has NaN: leave "
            "it out; for a random sample of the population, which needs no weights, pass Prevalence.multilabel(rates)."
        )
    if by == "any":
        return xp.astype(some, xp.int64)
    return xp.sum(present * like(2 ** np.arange(target.shape[1]), target), axis=1)


def _first_row(bad: Array) -> int | None:
    """Return the first row where `bad`, unless that would wait for a device or break a traced graph."""
    can_be_read = not is_tensor(bad) or (bad.is_cpu and not is_traced(bad))
    return int(bad.nonzero()[0][0]) if can_be_read and bool(bad.any()) else None


def _by_pattern(matrix: np.ndarray, archive: np.ndarray) -> PatternWeights:
    """Return weights of each pattern from its frequencies in the sample and in the population's label matrix."""
    if matrix.shape[1] > _MOST_FINDINGS:
        came = f"{matrix.shape[1]}: use sampled_by='any' with the rates of the findings"
        raise ValueError(f"Expected at most {_MOST_FINDINGS} findings for weights by pattern, but got {came}.")
    codes, place, counts = np.unique(pattern_codes(matrix, "all"), return_inverse=True, return_counts=True)
    there, found = np.unique(pattern_codes(archive, "all"), return_counts=True)
    spot = np.searchsorted(there, codes).clip(max=len(there) - 1)
    in_population = np.where(there[spot] == codes, found[spot], 0)
    missing = float(1 - in_population.sum() / len(archive))
    if missing > 0.01:
        warnings.warn(
            f"{missing:.1%} of the population's rows have a pattern of findings that is not in `labels`: the loss cannot "
            "represent them; sample every pattern, or use sampled_by='any' with rates.",
            PrevalenceWarning,
            stacklevel=4,
        )
    if not (in_population > 0).all():
        raise ValueError(
            f"Expected every pattern in `labels` to occur in the population's label matrix, but {(in_population == 0).sum()} "
            "do not: give the matrix that the images were sampled from, or the rates of the findings with sampled_by='any'."
        )
    return _normalised(codes, place, in_population / len(archive) * len(matrix) / counts, matrix, "all")


def _by_any(matrix: np.ndarray, simple: MultilabelPrevalence) -> PatternWeights:
    """Return weights of rows with and without any finding.

    Rows with any finding are drawn c⁻¹ times as often as the population has them, the same for all findings: π_l = c ρ_l.
    """
    log_ratio = np.log(simple.population / simple.sampling)
    c = float(simple.population.sum() / simple.sampling.sum())
    off = np.abs(log_ratio - np.log(c))
    error = np.sqrt((1 - simple.sampling) / (simple.sampling * len(matrix)))
    if (off > np.maximum(_FAR, 4 * error)).any():
        ratio = f"{np.exp(log_ratio[worst := int(off.argmax())]):.3g} for {simple.names[worst]!r} and {c:.3g} over all"
        raise ValueError(
            f"Expected π/ρ to be the same for all findings where images are sampled by any finding, but it is {ratio}: check "
            "the rates, or give the population's label matrix as `population`."
        )
    codes = pattern_codes(matrix, "any")
    rate = float(codes.mean())
    if not 0 < rate < 1 or c * rate >= 1:
        raise ValueError(
            f"Expected rows with and without a finding, and rates below those of the sample, but {rate:.3g} of the rows have "
            f"one, and {c * rate:.3g} of the population would: check the rates."
        )
    weights = np.array([(1 - c * rate) / (1 - rate), c])
    return _normalised(np.array([0, 1]), codes, weights, matrix, "any")


def _normalised(codes: np.ndarray, place: np.ndarray, weights: np.ndarray, matrix: np.ndarray, by: Pattern) -> PatternWeights:
    """Return pattern weights with a mean of 1 in each class of each finding."""
    each, read = weights[place][:, None], ~np.isnan(matrix)
    present = np.nan_to_num(matrix)
    means = [(each * part).sum(0) / part.sum(0) for part in ((1 - present) * read, present * read)]
    return PatternWeights(codes, weights[:, None, None] / np.stack(means, -1), by)


def _warn_of_patterns(matrix: np.ndarray, simple: MultilabelPrevalence) -> None:
    """Warn where the mix of associated findings is not the population's: then the sampling went by several of them."""
    off = np.abs(np.log(simple.population / simple.sampling))
    error = np.sqrt((1 - simple.sampling) / (simple.sampling * len(matrix)))
    far = off > np.maximum(_FAR / 2, 4 * error)
    if len(simple) < 2 or not far.any() or not _associated(matrix):
        return
    warnings.warn(
        "The findings are associated, and their rates in `labels` are not those of the population: images that were sampled by "
        "one finding, or by any finding, have the wrong mix of the others, which one pair of rates per finding cannot correct. "
        "Give the population's label matrix, population=Y_population, or sampled_by='any' if images were sampled by whether "
        "they have any finding; sampled_by='each' if each finding was sampled by itself.",
        PrevalenceWarning,
        stacklevel=4,
    )


def _associated(matrix: np.ndarray) -> bool:
    """Return whether any two findings are correlated by more than 4 standard errors."""
    centred = matrix - np.nanmean(matrix, 0)
    read = (~np.isnan(centred)).astype(np.float64)
    centred = np.nan_to_num(centred)
    both, squares = read.T @ read, centred**2
    scale = np.sqrt((squares.T @ read) * (read.T @ squares))
    score = (centred.T @ centred) / np.maximum(scale, 1e-300) * np.sqrt(both)
    np.fill_diagonal(score, 0.0)
    return bool((np.abs(score) > 4).any())


def by_finding(value: Any, name: str, names: Sequence[str], rows: int | None = None) -> list[Any]:
    """Return the mix of each finding, as functions of two classes take it.

    Args:
        value: a `MultilabelPrevalence`, L rates, a dict by name, estimates by finding, or rates per example `(n, L)`.
        name: the argument's name in messages.
        names: of the L findings.
        rows: n; None if only one list is allowed.
    """
    if isinstance(value, MultilabelPrevalence):
        value = dict(zip(value.names, value, strict=True)) if set(value.names) == set(names) else list(value)
    if isinstance(value, Mapping):
        if set(value) != set(names):
            raise ValueError(f"Expected `{name}` by the names of the findings, {list(names)}, but got {list(value)}.")
        return [value[each] for each in names]
    if np.ndim(value) == 2 and rows is not None:
        rates, expected = array_of(value, name), (rows, len(names))
        if rates.shape != expected:
            came = f"shape {rates.shape}: or give one list of rates for all"
            raise ValueError(f"Expected `{name}` to have a rate for each example and finding, {expected}, but got {came}.")
        return [rates[:, number, None] for number in range(len(names))]
    entries = _entries(value, name)
    if len(entries) != len(names):
        raise ValueError(f"Expected `{name}` to have {len(names)} rates, one for each finding, but got {len(entries)}.")
    return entries


def _entries(values: Any, name: str) -> list[Any]:
    """Return the L entries of a list, array or tensor; the keys of a dict."""
    if isinstance(values, str) or not hasattr(values, "__len__") or getattr(values, "ndim", 1) != 1 or not len(values):
        came = f"{values!r}: for two classes that exclude each other use Prevalence.binary"
        raise ValueError(f"Expected `{name}` to be a rate for each finding, such as [0.3, 0.05], but got {came}.")
    return list(values)


def _rate(value: Any, name: str, finding: str) -> float:
    rate = value.item() if getattr(value, "ndim", 1) == 0 else value
    if not isinstance(rate, float | int) or not 0 < rate < 1:
        came = f"{rate!r}: is it a percentage?"
        raise ValueError(f"Expected `{name}` of {finding!r} to lie strictly between 0 and 1, but got {came}")
    return float(rate)


def _names(population: Any, names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the given names, those of a dict of rates, or numbers."""
    entries = _entries(population, "population")
    if names is None:
        names = entries if isinstance(population, Mapping) else [f"finding {number}" for number in range(len(entries))]
    if not len(names) == len(entries) == len(set(names)) or not all(isinstance(each, str) for each in names):
        raise ValueError(f"Expected {len(entries)} different names, of all findings, but got {list(names)}: name each.")
    return tuple(names)


def _finding(value: Any, name: str, evidence: float) -> Prevalence:
    """Return the prevalence of one finding, from its rate or as it is."""
    if not isinstance(value, Prevalence):
        return Prevalence.binary(_rate(value, "population", name), evidence=evidence)
    if value.num_classes != 2 or value.is_unknown:
        raise ValueError(f"Expected a known prevalence of two classes for {name!r}, but got {value}: use Prevalence.binary.")
    return value
