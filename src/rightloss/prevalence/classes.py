"""Prevalence: class frequencies where a model is used (π) and where it is trained (ρ), and their ratio β and evidence κ.

Stage: class frequencies in any form → `Prevalence`, the input of every later stage; or → checked log-frequencies (`log_mix`).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from ..log_probs import Numbers, tensor_of

if TYPE_CHECKING:
    from .multilabel import MultilabelPrevalence


class PrevalenceWarning(UserWarning):
    """Warn that data, predictions and prevalence contradict each other.

    Examples:
        >>> import warnings
        >>> import rightloss as rl
        >>> warnings.filterwarnings("ignore", category=rl.PrevalenceWarning)
    """


Frequencies = float | Sequence[float | int] | Tensor | np.ndarray


class Prevalence:
    """Class frequencies: π in the population, ρ in the minibatches (section "Notation" of the docs).

    Immutable. Frequencies are stored in float64 and must be positive, because their logarithms are needed.

    Args:
        population: π, the K class frequencies where the model will be used; they sum to 1.
        sampling: ρ, the K class frequencies in the training minibatches. `None` means equal frequencies.
        evidence: κ ≥ 0, the weight of the knowledge of π, in people counted by class per training example. 1 is for a known
            prevalence. 0 is the paper's loss, which does not use that π is known.

    Examples:
        >>> import rightloss as rl
        >>> prevalence = rl.Prevalence([0.9, 0.09, 0.01], sampling=[0.5, 0.3, 0.2])
        >>> prevalence.weights.round(decimals=3).tolist()
        [1.8, 0.3, 0.05]
        >>> rl.Prevalence.binary(population=0.001, sampling=0.5)
        Prevalence(population=[0.999, 0.001], sampling=[0.5, 0.5])
    """

    __slots__ = ("_concentration", "_evidence", "_population", "_sampling", "_unknown")

    _population: Tensor
    _sampling: Tensor
    _evidence: float
    _concentration: Tensor | None
    _unknown: bool

    def __init__(self, population: Frequencies, sampling: Frequencies | None = None, evidence: float = 1.0) -> None:
        pi = frequencies(population, "population")
        rho = torch.full_like(pi, 1 / len(pi)) if sampling is None else frequencies(sampling, "sampling", len(pi))
        self._assign(pi, rho, _kappa(evidence), None)

    def _assign(
        self,
        population: Tensor,
        sampling: Tensor,
        evidence: float,
        concentration: Tensor | None,
        unknown: bool = False,
    ) -> None:
        object.__setattr__(self, "_population", population)
        object.__setattr__(self, "_sampling", sampling)
        object.__setattr__(self, "_evidence", evidence)
        object.__setattr__(self, "_concentration", concentration)
        object.__setattr__(self, "_unknown", unknown)

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
        given = tensor_of(labels, "labels")
        given = given.long() if given.dtype == torch.bool and len(pi) == 2 else given
        if given.ndim == 2 and not given.is_floating_point() and given.shape[1] > 1:
            raise ValueError(
                f"Expected labels (n,), or maps (n, h, w, …), but got {given.dtype} of shape {tuple(given.shape)}: "
                "for findings that can be present together (multi-label) use Prevalence.from_label_matrix; for signals of one "
                "dimension call `labels.flatten()`."
            )
        return cls(pi, mix_of_every_class(given, len(pi), ignore_index), evidence)

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
        if not bool((concentration > 0).all()) or not bool(torch.isfinite(concentration).all()):
            raise ValueError(
                f"Expected the parameters of an uncertain prevalence to be positive and finite, "
                f"but got {concentration.tolist()}: use the counts of people seen per class, plus one half."
            )
        certain = cls(concentration / concentration.sum(), sampling)
        return _rebuild(certain._population, certain._sampling, _kappa(evidence), concentration)

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
        if isinstance(num_classes, bool) or not isinstance(num_classes, int | np.integer) or num_classes < 2:
            raise ValueError(f"Expected `num_classes` to be an int from 2 up, but got {num_classes!r}: count the classes.")
        k = int(num_classes)
        rho = torch.full((k,), 1 / k, dtype=torch.float64) if sampling is None else frequencies(sampling, "sampling", k)
        return _rebuild(rho if start is None else frequencies(start, "start", k), rho, 1.0, None, True)

    @classmethod
    def positive_unlabelled(cls, population: float, labelled: int = 1) -> Prevalence:
        """Make a prevalence for positive-unlabelled learning: one of two classes is labelled, all other data are unlabelled.

        Its `sampling` is [0, 1] or [1, 0], so a loss with it requires `unlabelled=`.

        Args:
            population: the frequency of class 1.
            labelled: the class that is labelled.
        """
        if labelled not in (0, 1):
            raise ValueError(f"Expected `labelled` to be 0 or 1, but got {labelled!r}: there are two classes.")
        sampling = torch.eye(2, dtype=torch.float64)[int(labelled)]
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
    def population(self) -> Tensor:
        """π (K,), float64; the mean if the prevalence is uncertain."""
        if self._unknown:
            raise ValueError(
                "Expected a known prevalence, but this one is Prevalence.unknown: take what a loss has learnt, "
                "`criterion.population`, or estimate it with rightloss.shift.estimate_prevalence."
            )
        return self._population.clone()

    @property
    def start(self) -> Tensor:
        """The class frequencies (K,) for the start of the output layer: π, or the guess if π is unknown."""
        return self._population.clone()

    @property
    def is_unknown(self) -> bool:
        """Whether π is unknown, to be learned from unlabelled rows."""
        return self._unknown

    @property
    def sampling(self) -> Tensor:
        """ρ (K,), float64."""
        return self._sampling.clone()

    @property
    def evidence(self) -> float:
        """κ."""
        return self._evidence

    def evidence_for(self, num_data: int | None, reference: Tensor | None = None) -> float:
        """Return `evidence`. Deprecated: an uncertain prevalence has κ = 1 for any number of examples."""
        warnings.warn("Prevalence.evidence_for is deprecated: write `evidence`.", DeprecationWarning, stacklevel=2)
        return self._evidence

    @property
    def given_evidence(self) -> float:
        """`evidence`. Deprecated."""
        warnings.warn("Prevalence.given_evidence is deprecated: write `evidence`.", DeprecationWarning, stacklevel=2)
        return self._evidence

    def with_sampling(self, sampling: Frequencies) -> Prevalence:
        """Return a copy with another `sampling`."""
        rho = frequencies(sampling, "sampling", self.num_classes)
        return _rebuild(self._population, rho, self._evidence, self._concentration, self._unknown)

    def with_evidence(self, evidence: float) -> Prevalence:
        """Return a copy with another κ; 0 for the paper's loss."""
        return _rebuild(self._population, self._sampling, _kappa(evidence), self._concentration, self._unknown)

    @property
    def weights(self) -> Tensor:
        """β = π/ρ (K,): the importance weight of each class."""
        return self.population / self._sampling

    @property
    def log_weights(self) -> Tensor:
        """log β (K,)."""
        return self.population.log() - self._sampling.log()

    @property
    def num_classes(self) -> int:
        """K."""
        return len(self._population)

    @property
    def concentration(self) -> Tensor | None:
        """The Dirichlet's parameters (K,) if the prevalence is uncertain, else None."""
        return None if self._concentration is None else self._concentration.clone()

    @property
    def is_uncertain(self) -> bool:
        """Whether π has a distribution rather than one value."""
        return self._concentration is not None

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw n samples of π, `(n, K)`, from the Dirichlet; a certain π is repeated."""
        if self._concentration is None:
            return self.population.expand(n, -1).clone()
        # Normalised Gamma(α) draws, as Gamma(α + 1) U^(1/α) and in logarithms: where all α are small they would all underflow.
        alpha = self._concentration.expand(n, -1)
        log_gamma = torch._standard_gamma(alpha + 1, generator=generator).log()
        exponential = torch.empty(alpha.shape, dtype=alpha.dtype).exponential_(generator=generator)
        return torch.softmax(log_gamma - exponential / alpha, dim=1).clamp_min(torch.finfo(alpha.dtype).tiny)

    def retarget(self, population: Frequencies | Prevalence) -> Prevalence:
        """Return a copy with another population (K frequencies; a number for two classes; a `Prevalence`)."""
        if isinstance(population, Prevalence):
            if population.num_classes != self.num_classes:
                raise ValueError(
                    f"Expected a prevalence of {self.num_classes} classes, but got {population.num_classes}: "
                    "the classes of a trained model cannot change."
                )
            kept = self._sampling, self._evidence
            return _rebuild(population._population, *kept, population._concentration, population._unknown)
        pi = _pair(population, "population") if _is_number(population) else population
        return _rebuild(frequencies(pi, "population", self.num_classes), self._sampling, self.evidence, None)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Prevalence):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        alpha = None if self._concentration is None else tuple(self._concentration.tolist())
        return tuple(self._population.tolist()), tuple(self._sampling.tolist()), self._evidence, alpha, self._unknown

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._population, self._sampling, self._evidence, self._concentration, self._unknown)

    def __repr__(self) -> str:
        def show(values: Tensor) -> str:
            numbers = [f"{value:.4g}" for value in values[:6].tolist()]
            return "[" + ", ".join(numbers + ["…"] * (len(values) > 6)) + "]"

        name = "start" if self._unknown else "population"
        parts = [f"{name}={show(self._population)}", f"sampling={show(self._sampling)}"]
        parts += [f"evidence={self._evidence:g}"] if self._evidence != 1.0 else []
        parts += [f"concentration={show(self._concentration)}"] if self._concentration is not None else []
        return f"Prevalence{'.unknown' * self._unknown}({', '.join(parts)})"


@runtime_checkable
class Density(Protocol):
    """The interface of a density in `ContinuousPrevalence`; any `torch.distributions` object has it."""

    def log_prob(self, value: Tensor) -> Tensor: ...


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
        for name, density in (("population", population), ("sampling", sampling)):
            unknown = name == "sampling" and density is None
            if not unknown and not callable(getattr(density, "log_prob", None)):
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
    def standard_error(self) -> Tensor: ...

    def prevalence(self) -> Prevalence: ...


# A mix of classes: a number (two classes: how often class 1 occurs), K frequencies, a `Prevalence` (its population), an
# estimate of one, or one mix per example, `(n, k)`.
Mix = Numbers | Prevalence | PopulationEstimate


def without_estimate(value: Any) -> Any:
    """Return an estimate as an uncertain `Prevalence`, which keeps its uncertainty; return anything else unchanged."""
    return value.prevalence() if isinstance(value, PopulationEstimate) else value


def log_mix(value: Mix, name: str, num_classes: int, rows: int | None = None) -> Float64[Tensor, "*n k"]:
    """Return log-frequencies `(k,)`, or `(n, k)` if `value` has a row per example.

    Args:
        value: a number (two classes: how often class 1 occurs), K frequencies, a `Prevalence` (its population, the mean where
            it is uncertain), an estimate of one, or one mix per example, `(n, k)`, for two classes also `(n, 1)`.
        name: the argument's name in messages.
        num_classes: K.
        rows: n; None if only one mix is allowed.
    """
    value = without_estimate(value)
    if isinstance(value, Prevalence):
        if value.num_classes != num_classes:
            raise ValueError(
                f"Expected `{name}` to be a prevalence of {num_classes} classes, but got {value.num_classes}: "
                "the prevalence and the predictions list the same classes in the same order."
            )
        return value.population.log()
    mix = tensor_of(value, name).detach()
    if mix.ndim == 2 and rows is not None:
        return _row_frequencies(mix, name, num_classes, rows).log()
    if num_classes == 2 and rows not in (None, 2) and mix.shape == (rows,):
        raise ValueError(
            f"Expected `{name}` to be the 2 frequencies of one mix, but got {rows} numbers, one per example: "
            f"write a mix per example as a column, `{name}[:, None]`."
        )
    return frequencies(value, name, num_classes).log()


def frequencies(values: Any, name: str, num_classes: int | None = None) -> Tensor:
    """Return `values` as float64 frequencies that sum to 1 up to rounding, or raise a ValueError that says how to fix them.

    `values` may have any type; a ValueError is raised for anything but a list of frequencies.
    """
    vector = _pair(values, name) if num_classes == 2 and _is_number(values) else _vector(values, name)
    if num_classes is not None and len(vector) != num_classes:
        raise ValueError(
            f"Expected `{name}` to have {num_classes} entries, one per class, but got {len(vector)}: "
            "`population`, `sampling` and `reference` list the same classes in the same order."
        )
    if len(vector) < 2:
        raise ValueError(
            f"Expected `{name}` to list at least 2 classes, but got {len(vector)}: "
            "for two classes write both frequencies, or use Prevalence.binary(population=…)."
        )
    if not bool(torch.isfinite(vector).all()):
        raise ValueError(f"Expected `{name}` to be finite, but got {vector.tolist()}: is a class count missing?")
    if bool((vector < 0).any()):
        raise ValueError(f"Expected `{name}` to be positive, but got {vector.tolist()}: are these log-probabilities?")
    total = float(vector.sum())
    given = values.dtype if isinstance(values, Tensor | np.ndarray) else None
    tolerance = 1e-6 if given in (None, torch.float64, np.float64) else _rounding(values)
    if abs(total - 1) > tolerance:
        remedy = "divide by its sum, or, for findings that can be present together (multi-label), use Prevalence.multilabel"
        raise ValueError(f"Expected `{name}` to sum to 1, but got {total:g}: {remedy}.")
    if bool((vector == 0).any()):
        never = torch.nonzero(vector == 0).flatten().tolist()
        remedy = {
            "population": "drop the class, or give it the smallest frequency you would believe, such as 1e-9",
            "sampling": "a class of the population that is never sampled cannot be learned; sample it, or drop it",
        }.get(name, "give every class a positive share")
        raise ValueError(f"Expected `{name}` to be positive for every class, but it is 0 for {never}: {remedy}.")
    # A sum of 1 up to rounding is not normalised again, so that accepted frequencies never change.
    return vector if abs(total - 1) < 1e-14 else vector / total


def class_frequencies(labels: Numbers, num_classes: int, ignore_index: int | None = None) -> Tensor:
    """Return the class frequencies of `labels` (K,), float64: int labels of any shape, or soft votes `(n, k)`."""
    labels = tensor_of(labels, "labels").detach()
    if labels.is_complex():
        raise ValueError(f"Expected int labels, but got {labels.dtype}: number the classes from 0.")
    if labels.numel() == 0:
        raise ValueError(f"Expected at least one label, but got shape {tuple(labels.shape)}: is the dataset empty?")
    if labels.is_floating_point():
        if labels.ndim != 2 or labels.shape[1] != num_classes:
            raise ValueError(
                f"Expected int labels, or soft votes of shape (n, {num_classes}), but got {labels.dtype} "
                f"of shape {tuple(labels.shape)}: for int labels call `labels.long()`."
            )
        fine = ((labels.double().sum(1) - 1).abs() < _rounding(labels)) & (labels >= 0).all(1)
        if not bool(fine.all()):
            row = int(torch.nonzero(~fine)[0])
            raise ValueError(
                f"Expected soft votes to be non-negative with rows that sum to 1, but row {row} is {labels[row].tolist()}: "
                "divide counts of votes by their row sums."
            )
        votes = labels.double()
        return (votes / votes.sum(1, keepdim=True)).mean(0)
    if labels.dtype == torch.bool:
        raise ValueError("Expected int labels, but got bool: call `labels.long()`, or `.astype(int)` in NumPy and pandas.")
    labels = labels.flatten().long()
    labels = labels if ignore_index is None else labels[labels != ignore_index]
    if len(labels) == 0:
        raise ValueError("Expected at least one label, but all are ignored: is everything `ignore_index`?")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        raise ValueError(
            f"Expected labels in 0..{num_classes - 1}, but got {low}..{high}: "
            "number the classes from 0, and list each of them in `population`."
        )
    return torch.bincount(labels, minlength=num_classes).double() / len(labels)


def mix_of_every_class(labels: Numbers, num_classes: int, ignore_index: int | None = None, remedy: str | None = None) -> Tensor:
    """Return `class_frequencies` on the CPU, or raise a ValueError if a class has no label."""
    mix = class_frequencies(labels, num_classes, ignore_index).cpu()
    never = torch.nonzero(mix == 0).flatten().tolist()
    if never:
        remedy = remedy or "a class that is never sampled cannot be learned; collect some, or drop it from the prevalence"
        raise ValueError(f"Expected an example of every class in `labels`, but class(es) {never} have none: {remedy}.")
    return mix


def _kappa(evidence: Any) -> float:
    if not _is_number(evidence) or not 0 <= float(evidence) < float("inf"):
        raise ValueError(
            f"Expected `evidence` to be a finite number ≥ 0, but got {evidence!r}: 1 is a known prevalence, 0 the paper's; "
            "a larger number ties the mean prediction more firmly to the population."
        )
    return float(evidence)


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor | np.ndarray):
        return value.ndim == 0 and not (value.is_complex() if isinstance(value, Tensor) else np.iscomplexobj(value))
    return isinstance(value, int | float | np.integer | np.floating)


def _rounding(values: Tensor | np.ndarray) -> float:
    """Return the tolerance of a sum of 1 in this dtype."""
    coarse = values.dtype if isinstance(values, Tensor) and values.is_floating_point() else torch.float32
    return max(1e-4, torch.finfo(coarse).eps)


def _pair(value: Any, name: str) -> Tensor:
    if not _is_number(value):
        raise ValueError(
            f"Expected `{name}` to be one number, the frequency of class 1, but got {value!r}: "
            "for a list of frequencies use Prevalence([…])."
        )
    rate = float(value)
    if not 0 < rate < 1:
        raise ValueError(f"Expected `{name}` to lie strictly between 0 and 1, but got {rate:g}: is it a percentage?")
    return torch.tensor([1 - rate, rate], dtype=torch.float64)


def _vector(values: Any, name: str) -> Tensor:
    remedy = "write one frequency per class, such as [0.9, 0.1]"
    try:  # lists, arrays (also read-only), pandas series and tensors
        vector = values.detach() if isinstance(values, Tensor) else torch.tensor(np.asarray(values))
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"Expected `{name}` to be numbers, but got {values!r}: {remedy}.") from error
    if vector.is_complex():
        raise ValueError(f"Expected `{name}` to be real numbers, but got {vector.dtype}: take `.real`, or {remedy}.")
    vector = vector.to("cpu", torch.float64, copy=True)
    if vector.ndim != 1:
        raise ValueError(
            f"Expected `{name}` to be a list with a frequency per class, but got shape {tuple(vector.shape)}: "
            "for two classes and one number use Prevalence.binary(population=…)."
        )
    return vector


def _row_frequencies(mix: Tensor, name: str, num_classes: int, rows: int) -> Float64[Tensor, "n k"]:
    """Return one checked mix per example; `frequencies` checks a single mix."""
    tolerance = 1e-6 if mix.dtype == torch.float64 else 1e-4
    mix = mix.to("cpu", torch.float64)
    if num_classes == 2 and mix.shape[1] == 1:
        mix = torch.cat([1 - mix, mix], 1)
    if mix.shape != (rows, num_classes):
        raise ValueError(
            f"Expected `{name}` to have one mix per example, ({rows}, {num_classes}), but got shape {tuple(mix.shape)}: "
            "give every row of the predictions its own, or one list of frequencies for all."
        )
    total = mix.sum(1, keepdim=True)
    for bad, expected, remedy in (
        (~(mix.isfinite() & (mix > 0)).all(1), "positive and finite", "a class cannot be ruled out"),
        ((total[:, 0] - 1).abs() > tolerance, "frequencies that sum to 1", "divide each row by its sum"),
    ):
        if bool(bad.any()):
            row = int(torch.nonzero(bad)[0])
            raise ValueError(
                f"Expected the rows of `{name}` to be {expected}, but row {row} is {mix[row, :10].tolist()}: {remedy}."
            )
    return torch.where((total - 1).abs() < 1e-14, mix, mix / total)


def _rebuild(
    population: Tensor, sampling: Tensor, evidence: float | None, concentration: Tensor | None, unknown: bool = False
) -> Prevalence:
    prevalence = Prevalence.__new__(Prevalence)
    kappa = 1.0 if evidence is None else evidence  # None in old pickles of an uncertain prevalence
    prevalence._assign(population, sampling, kappa, concentration, unknown)
    return prevalence
