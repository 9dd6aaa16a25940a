"""Prevalence: class frequencies where a model is used (π) and where it is trained (ρ), and their ratio β and evidence κ.

Stage: class frequencies in any form → `Prevalence`, the input of every later stage; or → checked log-frequencies (`log_mix`).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np

from ..arrays import Numbers, array_of, checked_choice, checked_int, checked_number, is_tensor, random_generator, rounding

if TYPE_CHECKING:
    from jaxtyping import Float64

    from .multilabel import FindingMix, MultilabelPrevalence


class PrevalenceWarning(UserWarning):
    """Warn that data, predictions and prevalence contradict each other.

    Examples:
        >>> import warnings
        >>> import rightloss as rl
        >>> warnings.filterwarnings("ignore", category=rl.PrevalenceWarning)
    """


Frequencies = Numbers


class Prevalence:
    """Class frequencies: π in the population, ρ in the minibatches (section "Notation" of the docs).

    Immutable. Frequencies are read-only NumPy arrays of float64, and must be positive, because their logarithms are needed.

    Args:
        population: π, the K class frequencies where the model will be used; they sum to 1.
        sampling: ρ, the K class frequencies in the training minibatches. `None` means equal frequencies.
        evidence: κ ≥ 0, the weight of the knowledge of π, in people counted by class per training example. 1 is for a known
            prevalence. 0 is the paper's loss, which does not use that π is known.

    Attributes:
        concentration: the Dirichlet's parameters (K,) if the prevalence is uncertain, else None.
        evidence: κ.
        is_unknown: whether π is unknown, to be learned from unlabelled rows.
        sampling: ρ (K,).
        start: the class frequencies (K,) for the start of the output layer: π, or the guess if π is unknown.

    Examples:
        >>> import rightloss as rl
        >>> prevalence = rl.Prevalence([0.9, 0.09, 0.01], sampling=[0.5, 0.3, 0.2])
        >>> prevalence.weights.round(3).tolist()
        [1.8, 0.3, 0.05]
        >>> rl.Prevalence.binary(population=0.001, sampling=0.5)
        Prevalence(population=[0.999, 0.001], sampling=[0.5, 0.5])
    """

    __slots__ = ("concentration", "evidence", "is_unknown", "sampling", "start")

    concentration: np.ndarray | None
    evidence: float
    is_unknown: bool
    sampling: np.ndarray
    start: np.ndarray

    def __init__(self, population: Frequencies, sampling: Frequencies | None = None, evidence: float = 1.0) -> None:
        pi = frequencies(population, "population")
        self._assign(pi, _mix_or_even(sampling, "sampling", len(pi)), _kappa(evidence), None)

    def _assign(self, start: Any, sampling: Any, evidence: float, concentration: Any, is_unknown: bool = False) -> None:
        alpha, rho, pi = (None if each is None else _read_only(each) for each in (concentration, sampling, start))
        for name, value in zip(self.__slots__, (alpha, evidence, is_unknown, rho, pi), strict=True):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"A Prevalence cannot be changed: make a new one instead of setting `{name}`.")

    @classmethod
    def binary(cls, population: float, sampling: float = 0.5, evidence: float = 1.0) -> Prevalence:
        """Make a prevalence of two classes from the frequency of class 1."""
        return cls(_pair(population, "population"), _pair(sampling, "sampling"), evidence)

    @classmethod
    def from_labels(
        cls, labels: Numbers, population: Frequencies, evidence: float = 1.0, ignore_index: int | None = -100
    ) -> Prevalence:
        """Make a prevalence with `sampling` set to the class frequencies of the labels.

        Args:
            labels: int labels `(n,)`, dense int masks `(n, h, w, …)`, or soft votes, float `(n, k)` with rows that sum to 1;
                bools for two classes.
            population: π, K frequencies, or for two classes the frequency of class 1.
            evidence: κ.
            ignore_index: the int label of rows to ignore.
        """
        pi = _pair(population, "population") if _is_number(population) else frequencies(population, "population")
        given = array_of(labels, "labels")
        labels = given.astype(np.int64) if given.dtype == bool and len(pi) == 2 else labels
        if given.ndim == 2 and given.dtype.kind != "f" and given.shape[1] > 1:
            remedy = "for findings (multi-label) use Prevalence.from_label_matrix; for signals call `labels.flatten()`"
            raise ValueError(f"Expected labels (n,), or maps (n, h, w, …), but got {given.dtype} {given.shape}: {remedy}.")
        return cls(pi, mix_of_every_class(labels, len(pi), ignore_index), evidence)

    @classmethod
    def beta(cls, a: float, b: float, sampling: float = 0.5, evidence: float = 1.0) -> Prevalence:
        """Make a prevalence of two classes, with class 1's frequency ~ Beta(a, b). `population` is the mean, a / (a + b)."""
        return cls.dirichlet([b, a], _pair(sampling, "sampling"), evidence)

    @classmethod
    def dirichlet(cls, alpha: Frequencies, sampling: Frequencies | None = None, evidence: float = 1.0) -> Prevalence:
        """Make a prevalence of K classes, with π ~ Dirichlet(alpha). `population` is the mean, alpha / Σ alpha.

        Losses train at the mean. Rows sampled by class say nothing about π, so its uncertainty is added afterwards: see
        [`Posterior`][rightloss.inference.Posterior] and [`retarget_interval`][rightloss.predictive.retarget_interval].

        Args:
            alpha: the K parameters, comparable to counts of people by class.
            sampling: ρ, as in `Prevalence`.
            evidence: κ, as in `Prevalence`.
        """
        concentration = _vector(alpha, "alpha")
        if not ((concentration > 0) & np.isfinite(concentration)).all():
            remedy = "use the counts of people seen per class, plus one half"
            raise ValueError(f"Expected `alpha` to be positive and finite, but got {concentration.tolist()}: {remedy}.")
        certain = cls(concentration / concentration.sum(), sampling, evidence)
        return _rebuild(certain.start, certain.sampling, certain.evidence, concentration)

    @classmethod
    def unknown(cls, num_classes: int, sampling: Frequencies | None = None, start: Frequencies | None = None) -> Prevalence:
        """Make a prevalence with an unknown π, which the loss learns from unlabelled rows: `criterion(logits, y,
        unlabelled=…)`.

        `criterion.population` is the learned π; `retarget` turns this prevalence into a known one.

        Args:
            num_classes: K.
            sampling: ρ, as in `Prevalence`.
            start: a guess of π, used by `start_at_prevalence` to set the output layer; ρ by default.
        """
        k = checked_int(num_classes, "num_classes", 2, remedy="count the classes")
        rho = _mix_or_even(sampling, "sampling", k)
        return _rebuild(rho if start is None else frequencies(start, "start", k), rho, 1.0, None, True)

    @classmethod
    def positive_unlabelled(cls, population: float, labelled: int = 1) -> Prevalence:
        """Make a prevalence for positive-unlabelled learning: one of two classes is labelled, all other data are unlabelled.

        Its `sampling` is [0, 1] or [1, 0], so a loss with it requires `unlabelled=`.

        Args:
            population: the frequency of class 1.
            labelled: the class that is labelled.
        """
        sampling = np.eye(2)[checked_choice(labelled, "labelled", (0, 1), "there are two classes")]
        return _rebuild(_pair(population, "population"), sampling, 1.0, None)

    @staticmethod
    def multilabel(
        population: Any, sampling: Any = None, evidence: float = 1.0, names: Sequence[str] | None = None
    ) -> MultilabelPrevalence:
        """Make a prevalence of several findings that can be present together, a pair of rates for each.

        Losses with it take logits and targets `(n, L)`; targets are 0, 1, or NaN where a finding was not read.

        Args:
            population: π, the rate of each finding where the model will be used: L numbers, a dict by name, or L binary
                `Prevalence`s.
            sampling: ρ, the rate of each finding in the training minibatches: L numbers, a dict, or one number for all; one
                half each by default. It is right if each finding was sampled by its own label. For images that were sampled
                by their findings together use `from_label_matrix`.
            evidence: κ.
            names: of the findings.

        Examples:
            >>> import rightloss as rl
            >>> rl.Prevalence.multilabel(population=[0.30, 0.05, 0.01], sampling=[0.3, 0.3, 0.3])
            Prevalence.multilabel(population=[0.3, 0.05, 0.01], sampling=[0.3, 0.3, 0.3])
        """
        from .multilabel import MultilabelPrevalence

        return MultilabelPrevalence(population, sampling, evidence, names)

    @staticmethod
    def from_label_matrix(
        labels: Any,
        population: Any,
        sampled_by: Literal["any", "each"] | None = None,
        evidence: float = 1.0,
        names: Sequence[str] | None = None,
    ) -> MultilabelPrevalence:
        """Make a prevalence of several findings with `sampling` from their label matrix.

        If images were sampled by one finding, or by any finding, the images *without* another finding are not those of the
        population. The losses then weight rows by their pattern of findings (`rightloss.prevalence.PatternWeights`).

        Args:
            labels: the training labels `(n, L)`: 0, 1, or NaN where a finding was not read; array, tensor or DataFrame.
            population: π: L rates or a dict by name; or the population's label matrix `(m, L)`, such as that of the archive
                that the images were drawn from, which gives the rates and the weights of all patterns.
            sampled_by: with rates, "any" if images were drawn by whether they have any finding, "each" if every finding was
                sampled by its own label. None is as "each", with a warning if the labels contradict it.
            evidence: κ.
            names: of the findings; the columns of a DataFrame by default.

        Examples:
            >>> import numpy as np
            >>> import rightloss as rl
            >>> archive = np.array([[0, 0]] * 90 + [[1, 0]] * 5 + [[1, 1]] * 5)  # 10 % have the first finding, 5 % the second
            >>> drawn = archive[80:]  # ten without a finding, ten with
            >>> rl.Prevalence.from_label_matrix(drawn, population=archive)
            Prevalence.multilabel(population=[0.1, 0.05], sampling=[0.5, 0.25], sampled by pattern)
        """
        from .multilabel import from_label_matrix

        return from_label_matrix(labels, population, sampled_by, evidence, names)

    @property
    def population(self) -> np.ndarray:
        """π (K,), float64; the mean if the prevalence is uncertain."""
        if self.is_unknown:
            remedy = "take what a loss has learnt, `criterion.population`, or use shift.estimate_prevalence"
            raise ValueError(f"Expected a known prevalence, but this one is Prevalence.unknown: {remedy}.")
        return self.start

    def evidence_for(self, num_data: int | None, reference: Any = None) -> float:
        """Return `evidence`. Deprecated: an uncertain prevalence has κ = 1 for any number of examples."""
        warnings.warn("Prevalence.evidence_for is deprecated: write `evidence`.", DeprecationWarning, stacklevel=2)
        return self.evidence

    @property
    def given_evidence(self) -> float:
        """`evidence`. Deprecated."""
        warnings.warn("Prevalence.given_evidence is deprecated: write `evidence`.", DeprecationWarning, stacklevel=2)
        return self.evidence

    def with_sampling(self, sampling: Frequencies) -> Prevalence:
        """Return a copy with another `sampling`."""
        rho = frequencies(sampling, "sampling", self.num_classes)
        return _rebuild(self.start, rho, self.evidence, self.concentration, self.is_unknown)

    def with_evidence(self, evidence: float) -> Prevalence:
        """Return a copy with another κ; 0 for the paper's loss."""
        return _rebuild(self.start, self.sampling, _kappa(evidence), self.concentration, self.is_unknown)

    @property
    def weights(self) -> np.ndarray:
        """β = π/ρ (K,): the importance weight of each class; ∞ for one that is never sampled."""
        with np.errstate(divide="ignore"):
            return self.population / self.sampling

    @property
    def log_weights(self) -> np.ndarray:
        """log β (K,)."""
        return np.log(self.weights)

    @property
    def num_classes(self) -> int:
        """K."""
        return len(self.start)

    @property
    def is_uncertain(self) -> bool:
        """Whether π has a distribution rather than one value."""
        return self.concentration is not None

    def sample(self, n: int, generator: Any = None) -> np.ndarray:
        """Draw n samples of π, `(n, K)`, from the Dirichlet; a certain π is repeated.

        Args:
            n: number of samples.
            generator: a `numpy.random.Generator`, a seed or a `torch.Generator`; a new one by default, so that calls differ.
        """
        alpha = self.concentration
        if alpha is None:
            return np.tile(self.population, (n, 1))
        # Normalised Gamma(α) draws, as Gamma(α + 1) U^(1/α) and in logarithms: where all α are small they would all underflow.
        draws = np.random.default_rng() if generator is None else random_generator(generator)
        logs = np.log(draws.standard_gamma(alpha + 1, (n, len(alpha)))) - draws.exponential(size=(n, len(alpha))) / alpha
        shares = np.exp(logs - logs.max(axis=1, keepdims=True))
        return np.maximum(shares / shares.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)

    def retarget(self, population: Frequencies | Prevalence) -> Prevalence:
        """Return a copy with another population (K frequencies; a number for two classes; a `Prevalence`)."""
        if isinstance(population, Prevalence):
            own, new = self.num_classes, population.num_classes
            if own != new:
                raise ValueError(f"Expected a prevalence of {own} classes, but got {new}: those of a model cannot change.")
            return _rebuild(population.start, self.sampling, self.evidence, population.concentration, population.is_unknown)
        pi = _pair(population, "population") if _is_number(population) else population
        return _rebuild(frequencies(pi, "population", self.num_classes), self.sampling, self.evidence, None)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Prevalence):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return tuple(tuple(each.tolist()) if isinstance(each, np.ndarray) else each for each in self.__reduce__()[1])

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.start, self.sampling, self.evidence, self.concentration, self.is_unknown)

    def __repr__(self) -> str:
        parts = [f"{'start' if self.is_unknown else 'population'}={shown(self.start)}", f"sampling={shown(self.sampling)}"]
        parts += [f"evidence={self.evidence:g}"] if self.evidence != 1.0 else []
        parts += [f"concentration={shown(self.concentration)}"] if self.concentration is not None else []
        return f"Prevalence{'.unknown' * self.is_unknown}({', '.join(parts)})"


@runtime_checkable
class Density(Protocol):
    """The interface of a density in `ContinuousPrevalence`; any `torch.distributions` object has it."""

    def log_prob(self, value: Any) -> Any: ...


class ContinuousPrevalence:
    """Densities of y, for regression: the counterpart of the class frequencies of `Prevalence`.

    Args:
        population: the density of y where the model will be used.
        sampling: the density of y in the training minibatches, or `None` if it is not known. The default reference, the sampled
            mix, needs only the batch's labels; the paper's form and `WeightedLoss` need the density.
        evidence: κ, as in `Prevalence`.

    Examples:
        >>> import rightloss as rl
        >>> from torch.distributions import Normal
        >>> rl.ContinuousPrevalence(population=Normal(0.0, 1.0), sampling=Normal(0.0, 3.0)).evidence
        1.0
    """

    def __init__(self, population: Density, sampling: Density | None = None, evidence: float = 1.0) -> None:
        for name, density in [("population", population)] + [("sampling", sampling)] * (sampling is not None):
            if not callable(getattr(density, "log_prob", None)):
                raise ValueError(
                    f"Expected `{name}` to be a density with `log_prob`, such as torch.distributions.Normal(0., 1.), "
                    f"but got {type(density).__name__}: for classes use `Prevalence`."
                )
        self.population, self.sampling, self.evidence = population, sampling, _kappa(evidence)

    def with_evidence(self, evidence: float) -> ContinuousPrevalence:
        """Return a copy with another κ."""
        return ContinuousPrevalence(self.population, self.sampling, evidence)


@runtime_checkable
class PopulationEstimate(Protocol):
    """An estimated population that converts to an uncertain `Prevalence`: `rightloss.shift.PrevalenceEstimate`."""

    @property
    def standard_error(self) -> np.ndarray: ...

    def prevalence(self) -> Prevalence: ...


# A mix of classes: a number (two classes: how often class 1 occurs), K frequencies, a `Prevalence` (its population), an
# estimate of one, or one mix per example, `(n, k)`.
Mix = Numbers | Prevalence | PopulationEstimate


def without_estimate(value: Any) -> Any:
    """Return an estimate as an uncertain `Prevalence`, which keeps its uncertainty; return anything else unchanged."""
    return value.prevalence() if isinstance(value, PopulationEstimate) else value


def log_mix(value: Mix | FindingMix, name: str, num_classes: int, rows: int | None = None) -> Float64[np.ndarray, "*n k"]:
    """Return log-frequencies `(k,)`, or `(n, k)` if `value` has a row per example.

    Args:
        value: a number (two classes: how often class 1 occurs), K frequencies, a `Prevalence` (its population, the mean where
            it is uncertain), an estimate of one, or one mix per example, `(n, k)`, for two classes also `(n, 1)`.
        name: the argument's name in messages.
        num_classes: K.
        rows: n; None if only one mix is allowed.
    """
    value = without_estimate(value)
    if isinstance(value, Mapping):
        remedy = "write a list in the order of the columns; for findings (multi-label) use Prevalence.multilabel"
        raise ValueError(f"Expected `{name}` to be K frequencies, but got a dict: {remedy}.")
    if isinstance(value, Prevalence):
        if value.num_classes != num_classes:
            raise ValueError(
                f"Expected `{name}` to be a prevalence of {num_classes} classes, but got {value.num_classes}: "
                "the prevalence and the predictions list the same classes in the same order."
            )
        return np.log(value.population)
    mix = array_of(value, name)
    if mix.ndim == 2 and rows is not None:
        return np.log(_row_frequencies(mix, name, num_classes, rows))
    if num_classes == 2 and mix.ndim == 1 and len(mix) != 2 and len(mix) == rows:
        remedy = f"write a mix per example as a column, `{name}[:, None]`"
        raise ValueError(f"Expected `{name}` to be the 2 frequencies of one mix, but got {rows} numbers: {remedy}.")
    return np.log(frequencies(value, name, num_classes))


def frequencies(values: Any, name: str, num_classes: int | None = None) -> np.ndarray:
    """Return `values` as float64 frequencies that sum to 1 up to rounding, or raise a ValueError that says how to fix them.

    `values` may have any type; a ValueError is raised for anything but a list of frequencies.
    """
    vector = _pair(values, name) if num_classes == 2 and _is_number(values) else _vector(values, name)
    if num_classes is not None and len(vector) != num_classes:
        remedy = "every mix lists the same classes in the same order"
        raise ValueError(f"Expected `{name}` to have {num_classes} entries, but got {len(vector)}: {remedy}.")
    if len(vector) < 2:
        remedy = "for two classes write both frequencies, or use Prevalence.binary(population=…)"
        raise ValueError(f"Expected `{name}` to list at least 2 classes, but got {len(vector)}: {remedy}.")
    if not np.isfinite(vector).all():
        raise ValueError(f"Expected `{name}` to be finite, but got {vector.tolist()}: is a class count missing?")
    if (vector < 0).any():
        raise ValueError(f"Expected `{name}` to be positive, but got {vector.tolist()}: are these log-probabilities?")
    total = float(vector.sum())
    if abs(total - 1) > rounding(values):
        remedy = "divide by its sum, or, for findings that can be present together (multi-label), use Prevalence.multilabel"
        raise ValueError(f"Expected `{name}` to sum to 1, but got {total:g}: {remedy}.")
    if (vector == 0).any():
        never = np.flatnonzero(vector == 0).tolist()
        remedy = "drop the class, or give it the smallest share you would believe, such as 1e-9"
        if name == "sampling":
            remedy = "a class of the population that is never sampled cannot be learned; sample it, or drop it"
        raise ValueError(f"Expected `{name}` to be positive for every class, but it is 0 for {never}: {remedy}.")
    # A sum of 1 up to rounding is not normalised again, so that accepted frequencies never change.
    return vector if abs(total - 1) < 1e-14 else vector / total


def class_frequencies(labels: Numbers, num_classes: int, ignore_index: int | None = None) -> np.ndarray:
    """Return the class frequencies of `labels` (K,), float64: int labels of any shape, or soft votes `(n, k)`."""
    given, labels = labels, array_of(labels, "labels")
    if labels.size == 0:
        raise ValueError(f"Expected at least one label, but got shape {labels.shape}: is the dataset empty?")
    if labels.dtype.kind == "f":
        if labels.ndim != 2 or labels.shape[1] != num_classes:
            came = f"{labels.dtype} of shape {labels.shape}: for int labels call `labels.long()`"
            raise ValueError(f"Expected int labels, or soft votes of shape (n, {num_classes}), but got {came}.")
        votes = labels.astype(np.float64)
        fine = (np.abs(votes.sum(1) - 1) < max(rounding(given), 1e-4)) & (votes >= 0).all(1)
        if not fine.all():
            row = int(np.flatnonzero(~fine)[0])
            came = f"row {row} is {labels[row].tolist()}: divide counts of votes by their row sums"
            raise ValueError(f"Expected soft votes to be non-negative with rows that sum to 1, but {came}.")
        return (votes / votes.sum(1, keepdims=True)).mean(0)
    if labels.dtype == bool:
        raise ValueError("Expected int labels, but got bool: call `labels.long()`, or `.astype(int)` in NumPy and pandas.")
    labels = labels.ravel()
    labels = labels if ignore_index is None else labels[labels != ignore_index]
    if len(labels) == 0:
        raise ValueError("Expected at least one label, but all are ignored: is everything `ignore_index`?")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        remedy = "number the classes from 0, and list each of them in `population`"
        raise ValueError(f"Expected labels in 0..{num_classes - 1}, but got {low}..{high}: {remedy}.")
    return np.bincount(labels.astype(np.int64), minlength=num_classes) / len(labels)


def mix_of_every_class(
    labels: Numbers, num_classes: int, ignore_index: int | None = None, remedy: str | None = None
) -> np.ndarray:
    """Return `class_frequencies`, or raise a ValueError if a class has no label."""
    mix = class_frequencies(labels, num_classes, ignore_index)
    never = np.flatnonzero(mix == 0).tolist()
    if never:
        remedy = remedy or "a class that is never sampled cannot be learned; collect some, or drop it from the prevalence"
        raise ValueError(f"Expected an example of every class in `labels`, but class(es) {never} have none: {remedy}.")
    return mix


def shown(values: np.ndarray) -> str:
    """Return the first frequencies, to print."""
    return "[" + ", ".join([f"{value:.4g}" for value in values[:6].tolist()] + ["…"] * (len(values) > 6)) + "]"


def _mix_or_even(values: Any, name: str, num_classes: int) -> np.ndarray:
    return np.full(num_classes, 1 / num_classes) if values is None else frequencies(values, name, num_classes)


def _kappa(evidence: Any) -> float:
    remedy = "1 is a known prevalence, 0 the paper's; a larger number ties the mean prediction more firmly to the population"
    return checked_number(evidence, "evidence", 0.0, remedy=remedy)


def _is_number(value: Any) -> bool:
    if is_tensor(value) or isinstance(value, np.ndarray):
        return value.ndim == 0 and "complex" not in str(value.dtype)
    return isinstance(value, int | float | np.integer | np.floating)


def _pair(value: Any, name: str) -> np.ndarray:
    if not _is_number(value):
        remedy = "for a list of frequencies use Prevalence([…])"
        raise ValueError(f"Expected `{name}` to be one number, the frequency of class 1, but got {value!r}: {remedy}.")
    rate = float(value)
    if not 0 < rate < 1:
        raise ValueError(f"Expected `{name}` to lie strictly between 0 and 1, but got {rate:g}: is it a percentage?")
    return np.array([1 - rate, rate])


def _vector(values: Any, name: str) -> np.ndarray:
    vector = array_of(values, name).astype(np.float64)
    if vector.ndim != 1:
        remedy = "for two classes and one number use Prevalence.binary(population=…)"
        raise ValueError(f"Expected `{name}` to list a frequency per class, but got shape {vector.shape}: {remedy}.")
    return vector


def _row_frequencies(mix: np.ndarray, name: str, num_classes: int, rows: int) -> Float64[np.ndarray, "n k"]:
    """Return one checked mix per example; `frequencies` checks a single mix."""
    tolerance, mix = rounding(mix), mix.astype(np.float64)
    if num_classes == 2 and mix.shape[1] == 1:
        mix = np.concatenate([1 - mix, mix], 1)
    if mix.shape != (rows, num_classes):
        expected = f"one mix per example, ({rows}, {num_classes})"
        raise ValueError(f"Expected `{name}` to have {expected}, but got shape {mix.shape}: or give one list for all.")
    total = mix.sum(1, keepdims=True)
    bad = ~((np.isfinite(mix) & (mix > 0)).all(1) & (np.abs(total[:, 0] - 1) <= tolerance))
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        came = f"row {row} is {mix[row, :10].tolist()}: divide each row by its sum, and rule out no class"
        raise ValueError(f"Expected the rows of `{name}` to be positive and to sum to 1, but {came}.")
    return np.where(np.abs(total - 1) < 1e-14, mix, mix / total)


def _read_only(values: Any) -> np.ndarray:
    own = np.array(array_of(values, "frequencies"), np.float64)  # old pickles have tensors
    own.flags.writeable = False
    return own


def _rebuild(population: Any, sampling: Any, evidence: float | None, concentration: Any, unknown: bool = False) -> Prevalence:
    prevalence = Prevalence.__new__(Prevalence)
    kappa = 1.0 if evidence is None else evidence  # None in old pickles of an uncertain prevalence
    prevalence._assign(population, sampling, kappa, concentration, unknown)
    return prevalence
