"""TableModel: a fitted classifier of tables, with its columns, comparison and held-out predictions.

Stage: table → log-probabilities `(n, k)` at any population.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ..calibration import Calibration
from ..predictive import retarget
from ..prevalence import Prevalence
from ..sklearn.population import Population
from .columns import Finding, Label, class_numbers, population_of, warn_of
from .pipelines import ColumnSpec, Pipeline, by_fold, check_columns

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64

_BLOCK = 100_000  # rows encoded at a time


@dataclass(frozen=True, eq=False)
class HeldOutPredictions:
    """Out-of-fold predictions: each row is predicted by a model that was not trained on it.

    Attributes:
        log_probs: at the model's population `(m, k)`.
        target: class numbers `(m,)`, in the order of the model's `classes_`.
        groups: numbers of the groups `(m,)`, or None.
        rows: row numbers among the labelled rows of the training table `(m,)`.

    Examples:
        >>> import numpy as np
        >>> from rightloss.tabular import HeldOutPredictions
        >>> held_out = HeldOutPredictions(np.log([[0.9, 0.1]]), target=np.array([0]), groups=None, rows=np.array([7]))
        >>> held_out.log_probs.shape
        (1, 2)
    """

    log_probs: Float64[np.ndarray, "m k"]
    target: Int64[np.ndarray, " m"]
    groups: Int64[np.ndarray, " m"] | None
    rows: Int64[np.ndarray, " m"]


@dataclass(frozen=True, eq=False)
class FoldModels:
    """The models of the folds: a row that none was trained on is comparable with a held-out row only if a fold predicts it.

    Attributes:
        models: one without each fold.
        log_probs: their predictions of the held-out rows, at the mix of the training table, before any correction `(m, k)`.
        numbers: the fold of each held-out row `(m,)`.
        corrections: of each of the models, by the rows outside of the fold.
    """

    models: list[Pipeline]
    log_probs: Float64[np.ndarray, "m k"]
    numbers: Int64[np.ndarray, " m"]
    corrections: list[Calibration]


@dataclass(frozen=True, eq=False)
class ComparableRows:
    """Predictions of a table and of the held-out rows by the same models.

    Attributes:
        log_probs: of the table `(n, k)`.
        held_out: of the held-out rows `(m, k)`.
        sampling: the mix (K,) at which both hold.
        folds: the number of each row's model, of both; None if there is one model.
    """

    log_probs: Float64[np.ndarray, "n k"]
    held_out: Float64[np.ndarray, "m k"]
    sampling: np.ndarray
    folds: tuple[np.ndarray, np.ndarray] | None


@dataclass(frozen=True)
class UnlabelledReport:
    """How unlabelled rows were used.

    Attributes:
        rows: number of unlabelled rows.
        used: number of rows used.
        p_value: of the hypothesis that p(x|y) is the same as in the labelled rows; None if it was not tested.
        gain: increase of the expected log-likelihood of the linear model by these rows; None if it was not fitted.
        low: lower limit of a 95 % interval of the gain.
        high: its upper limit.
        kept: whether the model that uses them is kept.
        stream_gain: log-likelihood of held-out rows of both tables, in nats per labelled row, of the model that uses them minus
            that of the best other one, if that decided; else None.
        warned: whether the shift test, or its absence, gave a warning.
        mean_predictions: the kept model's mean prediction for them (K); None in older models.
        population_low: lower limits of the frequencies (K), if these were learned from the rows; else None.
        population_high: upper limits.

    Examples:
        >>> from rightloss.tabular import UnlabelledReport
        >>> UnlabelledReport(rows=5000, used=5000, p_value=0.4, gain=0.002, low=0.001, high=0.003, kept=True).kept
        True
    """

    rows: int
    used: int
    p_value: float | None = None
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    kept: bool = False
    stream_gain: float | None = None
    warned: bool = False
    mean_predictions: list[float] | None = None
    population_low: list[float] | None = None
    population_high: list[float] | None = None


@dataclass(frozen=True, eq=False)
class TableModel:
    """A classifier of tables at a prevalence, from `fit_table` or `load_model`.

    Attributes:
        target: the name of the target column.
        group: the name of the group column, or None.
        classes_: the labels, in the order of the predictions' columns; of two the positive one is the second.
        positive: the positive class, or None with more than two classes.
        population: π and ρ.
        columns: how each column is encoded.
        comparison: the candidates' out-of-fold figures at π; `chosen` marks the one in use.
        held_out: its out-of-fold predictions.
        findings: what to know about the training table.
        fitted: the pipeline, fitted to all rows; None for always answering π.
        correction: slopes and biases of its log-probabilities, which then hold at `correction.sampling`; 1 and 0 for the closed
            form. None for always answering π.
        rows: number of rows that the model was fitted to.
        unlabelled: how unlabelled rows were used; None without any.
        folds: the models of the folds; None for always answering π, and in models saved by version 0.2.0.
        odds_ratios: of a linear model's columns, from a fit without penalty to the labelled rows: see `limits.odds_ratios`.
            None of other models, or if the rows do not determine them.

    Examples:
        >>> import numpy as np, pandas as pd
        >>> from rightloss.tabular import fit_table
        >>> rng = np.random.default_rng(0)
        >>> cancer = np.arange(300) % 2
        >>> frame = pd.DataFrame({"x": rng.normal(2 * cancer, 1), "cancer": np.where(cancer, "yes", "no")})
        >>> model = fit_table(frame, target="cancer", population=0.01, candidates=["linear"])
        >>> model.classes_
        ['no', 'yes']
        >>> bool(np.exp(model.predict_log_proba(pd.DataFrame({"x": [1.0]}))[0, 1]) < 0.05)
        True
        >>> bool(np.exp(model.predict_log_proba(pd.DataFrame({"x": [1.0]}), population=0.5)[0, 1]) > 0.3)
        True
    """

    target: str
    group: str | None
    classes_: list[Label]
    positive: Label | None
    population: Prevalence
    columns: list[ColumnSpec]
    comparison: pd.DataFrame
    held_out: HeldOutPredictions
    fitted: Pipeline | None
    correction: Calibration | None
    rows: int
    findings: list[Finding] = field(default_factory=list)
    unlabelled: UnlabelledReport | None = None
    folds: FoldModels | None = None
    odds_ratios: pd.DataFrame | None = None

    @property
    def family(self) -> str | None:
        """Which pipeline it is: "linear", "boosting", or None for always answering π."""
        return None if self.fitted is None else self.fitted.family

    @property
    def sampling(self) -> np.ndarray:
        """ρ (K,): the mix of classes in the training table."""
        return self.population.sampling

    def predict_log_proba(
        self, frame: pd.DataFrame, population: Population | None = None, *, warn: bool = True
    ) -> Float64[np.ndarray, "n k"]:
        """Return log-probabilities at a population, a column per class in the order of `classes_`.

        Args:
            frame: a table with the columns of the training table; others are ignored.
            population: as in `fit_table`; None for the model's own.
            warn: whether to warn of columns with cells that did not occur in training.
        """
        to, fitted, correction = self._prevalence(population), self.fitted, self.correction
        if fitted is None or correction is None:  # exactly π, as out of fold: rounding would look like information
            return np.tile(np.log(to.population), (len(frame), 1))
        if warn:
            warn_of(self.check(frame))

        def block(part: pd.DataFrame) -> np.ndarray:
            log_probs = correction.apply(fitted.predict_log_proba(fitted.encode(part, self.columns)))
            return np.asarray(retarget(log_probs, correction.sampling, to))

        return self._in_blocks(frame, block)

    def comparable_log_probs(self, frame: pd.DataFrame, start: int = 0) -> Float64[np.ndarray, "n k"]:
        """Return the predictions of a chunk for `compared`; its first row has the number `start` in the whole table.

        Each row is predicted by the model of one fold, like each held-out row. The model fitted to all rows is another one:
        tests and estimates that compare its predictions with those of the folds are wrong.
        """
        if self.folds is None:
            return self.predict_log_proba(frame, warn=False)
        models = self.folds.models
        return self._in_blocks(
            frame, lambda part: by_fold(models, models[0].encode(part, self.columns), self._folds_of(len(part), start))
        )

    def compared(self, log_probs: Float64[np.ndarray, "n k"]) -> ComparableRows:
        """Return the predictions of all rows of a table, by `comparable_log_probs`, with those of the held-out rows."""
        if self.folds is None:
            return ComparableRows(log_probs, self.held_out.log_probs, self.population.population, None)
        folds = (self._folds_of(len(log_probs)), self.folds.numbers)
        return ComparableRows(log_probs, self.folds.log_probs, self.population.sampling, folds)

    def predict(self, frame: pd.DataFrame, population: Population | None = None) -> list[Label]:
        """Return the most probable class of each row at a population."""
        return [self.classes_[number] for number in self.predict_log_proba(frame, population).argmax(1).tolist()]

    def predict_limits(
        self, frame: pd.DataFrame, population: Population | None = None, level: float = 0.95
    ) -> tuple[Float64[np.ndarray, "n k"], Float64[np.ndarray, "n k"]]:
        """Return the lower and upper limits of the probabilities, a column per class; `limits_cover` says what they allow for.

        They are of p(k|x), by a jackknife: by how much predictions differ between the models without a fold each; see
        `rightloss.tabular.limits`. They also allow for the uncertainty of the population, if it is a survey's, learnt, or the
        mix of the training rows; one stated number is taken as known. They do not allow for what no such model could learn.

        Args:
            frame: the table.
            population: as in `fit_table`; None for the model's own.
            level: the probability of the limits.

        Raises:
            ValueError: the model was saved by version 0.2.0, without the models of the folds.
        """
        from .limits import risk_limits

        return risk_limits(self, frame, self._prevalence(population), level)

    def limits_cover(self, population: Population | None = None) -> str:
        """Return in words what `predict_limits` allows for at a population."""
        from .limits import limits_cover

        return limits_cover(self, self._prevalence(population))

    def prevalence_of(self, population: Population) -> Prevalence:
        """Return a population in any form as a `Prevalence` over the model's classes."""
        return population_of(population, self.classes_, self.population.sampling)

    def check(self, frame: pd.DataFrame) -> list[Finding]:
        """Compare a table with the training table; return warnings about unknown cells and notes about unused columns.

        What `read_table` found about the file comes first.

        Raises:
            ValueError: a column is missing.
        """
        known = [self.target, *([] if self.group is None else [self.group])]
        return [*frame.attrs.get("findings", []), *check_columns(frame, self.columns, known)]

    def labels(self, frame: pd.DataFrame) -> Int64[np.ndarray, " n"]:
        """Return the class numbers of a labelled table, −1 for missing labels.

        Raises:
            ValueError: the target column is missing, or has a class that the model does not know.
        """
        if self.target not in frame.columns:
            raise ValueError(
                f"Expected the target column {self.target!r}, but got {list(frame.columns[:30])}: predictions need no labels, "
                "but figures do."
            )
        return class_numbers(frame[self.target], self.classes_)

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False, also: Mapping[str, str] | None = None) -> None:
        """Save the model as a folder, atomically; see `rightloss.tabular.folder`.

        Args:
            folder: the new folder; its parent must exist.
            overwrite: replace an existing model.
            also: other text files of the folder by name, such as a report.
        """
        from .folder import save_model

        save_model(self, folder, overwrite=overwrite, also=also)

    def _folds_of(self, rows: int, start: int = 0) -> np.ndarray:
        """Return which fold's model predicts each of some rows of a table, from row `start` on: each in turn, by block."""
        assert self.folds is not None
        in_turn = (np.arange(_BLOCK) % len(self.folds.models)).astype(np.uint8)
        return np.resize(np.roll(in_turn, -start), rows)

    def _prevalence(self, population: Population | None) -> Prevalence:
        return self.population if population is None else self.prevalence_of(population)

    def _in_blocks(self, frame: pd.DataFrame, block: Callable[[pd.DataFrame], np.ndarray]) -> Float64[np.ndarray, "n k"]:
        """Return the predictions of all blocks of a table."""
        parts = [block(frame.iloc[start : start + _BLOCK]) for start in range(0, len(frame), _BLOCK)]
        return np.concatenate(parts) if parts else np.empty((0, len(self.classes_)))
