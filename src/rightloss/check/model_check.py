"""The function `check`: test a trained model in one call, and return a table of problems and how to fix them.

Stage: module, `Posterior`, function or `log_probs`; `(x, y)`, data set or loader; `Prevalence` → log-probabilities at the
population and labels → `Check`.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler

from ..finding_tables import ByFinding, FindingRows, finding_tables, for_each_finding, in_order
from ..inference import Posterior
from ..likelihoods import Bernoulli, Categorical, Findings, Likelihood
from ..log_probs import HasLogProbs, rows_of, tensor_of
from ..metrics.sample import Numbers, Predictions, Sample, labelled_sample, refuse_multi_hot
from ..predictive import PrevalenceLayer, predictive
from ..prevalence import MultilabelPrevalence, Prevalence
from ..rng import checked_level
from . import diagnostics
from .diagnostics import CheckRow

Model = nn.Module | Posterior | Callable[[Any], Predictions] | Predictions
Labelled = Numbers | Dataset[Any] | Iterable[Any]


@overload
def check(model: Model, data: Labelled, prevalence: MultilabelPrevalence, **options: Any) -> ChecksByFinding: ...
@overload
def check(
    model: Model,
    data: Labelled,
    prevalence: Prevalence,
    *,
    likelihood: Likelihood | None = None,
    unlabelled: Any = None,
    groups: Numbers | None = None,
    sampled: bool = True,
    level: float = 0.95,
    batch_size: int = 1024,
) -> Check: ...
def check(  # type: ignore[misc]  # the options of both are the same
    model: Model,
    data: Labelled,
    prevalence: Prevalence | MultilabelPrevalence,
    *,
    likelihood: Likelihood | None = None,
    unlabelled: Any = None,  # any input of the model
    groups: Numbers | None = None,
    sampled: bool = True,
    level: float = 0.95,
    batch_size: int = 1024,
) -> Check | ChecksByFinding:
    """Test a trained model for common mistakes, and return a table that says how to fix them.

    | row | a correct model |
    |---|---|
    | label mix | the class frequencies of the labels are ρ, `prevalence.sampling` |
    | mean prediction | Σ_c π_c avg_c p(k given x) is π_k, avg_c being the mean over the rows of class c |
    | calibration slope | 1: log-odds neither too far apart nor too close together |
    | calibration intercept | 0: nothing has to be added to the log-odds |
    | skill | no less than that of always predicting π |
    | logits | outputs are not probabilities (modules with a softmax or logistic likelihood) |
    | impossible labels | no label has probability 0 (shown only if some have) |
    | label shift | unlabelled predictions are a mixture of those of the labelled classes (with `unlabelled`) |
    | unlabelled mean | the mean prediction there is π (with `unlabelled`) |

    Slope and intercept are fitted at the rows' own mix, where they are most precise: log-odds that are right at one mix of
    classes are right at every mix. `metrics.evaluate` fits them at π, so its figures differ a little. With more than two
    classes a row shows the class with the largest deviation.

    A correct model gets "ok" in all rows with a probability of at least `level`: each of m tests has the level
    (1 − `level`)/m, and for each of K classes (1 − `level`)/(m K). Figures from few rows are tested with Student's t. Use
    held-out rows: on its training rows an overfitted model looks right.

    **Several findings** (multi-label), with a `Prevalence.multilabel`: the model returns logits `(n, L)`, a function
    log-probabilities of presence `(n, L)`, and y are 0 and 1, NaN where a finding was not read. The result has a `Check` for
    each finding, `found["mass"]`, and `found.ok`; each of L findings has the level 1 − (1 − `level`)/L. Rows that were sampled
    by findings together (`Prevalence.from_label_matrix`) have the weights of their patterns, unless `sampled=False`.

    Args:
        model: a module, which is called in eval mode without gradients and then reset to its mode; a `Posterior`; a function
            from x to log-probabilities at the population, such as `PrevalenceLayer.predict` or scikit-learn's
            `predict_log_proba`; or log-probabilities, `(n, k)` or dense `(n, k, h, w, …)`.
        data: `(x, y)`, a data set of such pairs or a loader of batches of them; y alone with log-probabilities. y are class
            numbers, −100 for rows to ignore, or soft votes `(n, k)`. Every class must have rows.
        prevalence: π and ρ.
        likelihood: turns a module's outputs into probabilities; Categorical by default. One with its own parameters must be
            the trained one, `criterion.likelihood`.
        unlabelled: rows from the population: x or a loader of x; log-probabilities if `model` is log-probabilities.
        groups: ids of patients or sites, one per example: rows with the same id are not independent. Cells of a map have the
            id of their image. Copies of an example that a sampler drew repeatedly are recognised, unless augmented.
        sampled: whether the rows were drawn as in training. False omits the test of their mix, because held-out rows need
            not have the mix ρ.
        level: the level of the whole table.
        batch_size: rows per call of the model, if `data` is not a loader.

    Examples:
        >>> import torch
        >>> import rightloss as rl
        >>> prevalence = rl.Prevalence.binary(population=0.01, sampling=0.5)
        >>> y = torch.arange(400) % 2
        >>> x = torch.randn(400, generator=torch.Generator().manual_seed(0)) + 2.0 * y - 1
        >>> at_sampling = torch.nn.functional.logsigmoid(torch.stack([-2 * x, 2 * x], 1))  # right where half are of class 1
        >>> rl.check(at_sampling, y, prevalence)["mean prediction"].verdict
        'look'
        >>> rl.check(rl.retarget(at_sampling, prevalence.sampling, prevalence.population), y, prevalence).ok
        True
    """
    if not isinstance(prevalence, Prevalence | MultilabelPrevalence):
        raise ValueError(
            f"Expected a Prevalence, which has the population and the sampling mix, but got {type(prevalence).__name__}: write "
            "rightloss.Prevalence([…], sampling=[…]), or Prevalence.multilabel for several findings (multi-label)."
        )
    level = checked_level(level)
    with torch.no_grad():
        predict = None if _is_table(model) else _Predictor(model, prevalence, likelihood, batch_size)
        found: tuple[Any, Any, bool] = (model, data, False) if predict is None else _predict(predict, data)
        table, labels, may_repeat = found
        squashed = None if predict is None else [*predict.squashed]
        there = unlabelled if unlabelled is None or predict is None else predict(unlabelled)
        if isinstance(prevalence, Prevalence):
            table, there = tensor_of(table, "log_probs"), None if there is None else tensor_of(there, "unlabelled")
            sample, repeats = _sample_of(table, labels, prevalence, groups, may_repeat)
            return _tested(sample, repeats, sampled, None if squashed is None else squashed[0], there, level)
        rows, size = FindingRows.of(table, labels, prevalence, "labels", weighted=sampled), len(prevalence)
        repeats = False
        if groups is None and may_repeat:
            groups, repeats = _copies(torch.cat([each.flatten(1).cpu() for each in (rows.tables, rows.labels)], 1))
        pool = None if there is None else finding_tables(in_order(there, rows.names), size).cpu()

        def tested(number: int, name: str) -> Check:
            sample, _ = _sample_of(*rows[number][:2], prevalence[name], groups, False, rows[number][2])
            is_squashed = None if squashed is None else squashed[number]
            unseen = None if pool is None else pool[:, :, number]
            return _tested(sample, repeats, sampled, is_squashed, unseen, 1 - (1 - level) / size)

        return ChecksByFinding(for_each_finding(rows.names, tested, stacklevel=3), level)


def _tested(sample: Sample, repeats: bool, sampled: bool, squashed: bool | None, there: Tensor | None, level: float) -> Check:
    """Return the table of a sample, and of the unlabelled predictions `there`; the rest is as in `check`."""
    sample.require_every_class("a check")
    seen = diagnostics.Evidence.of(sample, repeats)
    mix = diagnostics.label_mix(seen) if sampled else None
    mix_is_wrong = mix is not None and mix.p_value is not None and mix.p_value < 1e-3
    slope, intercept, remedy = diagnostics.calibration(seen, mix_is_wrong, bool(squashed))
    found = [*([mix] if mix else []), diagnostics.mean_prediction(seen, remedy), slope, intercept, *diagnostics.skill(seen)]
    if squashed is not None:
        found.append(diagnostics.logits(squashed))
    if there is not None:
        found += [diagnostics.label_shift(there, seen), diagnostics.unlabelled_mean(there, seen)]
    size = (1 - level) / max(1, sum(each.p_value is not None for each in found))
    return Check(tuple(each.row(size) for each in found), level, tuple(sample.totals.tolist()))


@dataclass(frozen=True, repr=False)
class Check:
    """The result of `check`; print it to see the table.

    Attributes:
        rows: a `CheckRow` for each test.
        level: the probability that a correct model gets "ok" in all rows.
        num_examples: the number of examples of each class; votes count as fractions.

    Examples:
        >>> import torch
        >>> import rightloss as rl
        >>> y = torch.arange(40) % 2
        >>> found = rl.check(torch.tensor([[0.9, 0.1]]).log().expand(40, 2), y, rl.Prevalence.binary(0.1))
        >>> found.ok, found["label mix"].seen
        (True, '[0.5, 0.5]')
    """

    rows: tuple[CheckRow, ...]
    level: float
    num_examples: tuple[float, ...]

    @property
    def ok(self) -> bool:
        """Whether no row says "look"."""
        return all(row.verdict != "look" for row in self.rows)

    def __getitem__(self, name: str) -> CheckRow:
        found = {row.name: row for row in self.rows}
        if name not in found:
            raise KeyError(f"there is no row {name!r}; there are {', '.join(found)}")
        return found[name]

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return plain numbers and strings by row name: `pandas.DataFrame(check.to_dict()).T`."""
        return {row.name: asdict(row) for row in self.rows}

    def __repr__(self) -> str:
        cells = [("", "seen", "expected", "p", ""), *map(_cells, self.rows)]
        widths = [max(len(line[column]) for line in cells) for column in range(5)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
        about: dict[str, list[str]] = {}
        for row in self.rows:
            about.setdefault(row.remedy, []).append(row.name)
        remarks = [f"- {', '.join(names)}: {remedy}" for remedy, names in about.items() if remedy]
        return "\n".join([self._title(), *("  " + line for line in lines), *remarks])

    def _repr_html_(self) -> str:
        def line(cells: Iterable[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        head = line(("", "seen", "expected", "p", "", "what to do"), "th")
        body = "".join(line((*_cells(row), row.remedy), "td") for row in self.rows)
        return f"<p>{html.escape(self._title())}</p><table>{head}{body}</table>"

    def _title(self) -> str:
        bad = [row.name for row in self.rows if row.verdict == "look"]
        counts = ", ".join(f"{count:g}" for count in self.num_examples[:6]) + (", …" if len(self.num_examples) > 6 else "")
        return f"{'Look at: ' + ', '.join(bad) if bad else 'No problem found'} (examples by class: {counts})"


class ChecksByFinding(ByFinding[Check]):
    """The result of `check` for several findings: a `Check` by the name of each; print it to see a table.

    Args:
        results: by name.
        level: the probability that a correct model gets "ok" in all rows of all findings.
    """

    def __init__(self, results: dict[str, Check], level: float) -> None:
        bad = {name: [row for row in each.rows if row.verdict == "look"] for name, each in results.items()}
        said: dict[str, list[str]] = {}
        for name, rows in bad.items():
            for row in rows:
                said.setdefault(row.remedy, []).append(f"{name}, {row.name}: {row.seen}, expected {row.expected}")
        remarks = [line for remedy, seen in said.items() for line in (*(f"- {each}" for each in seen), f"  → {remedy}")]
        look = [name for name, rows in bad.items() if rows]
        title = f"{'Look at: ' + ', '.join(look) if look else 'No problem found'} ({len(results)} findings)"
        super().__init__(results, _verdicts, title, remarks)
        self.level = level

    @property
    def ok(self) -> bool:
        """Whether no row of any finding says "look"."""
        return all(each.ok for each in self.values())


def _verdicts(found: Check) -> dict[str, str]:
    """Return a finding's row of the table."""
    absent, present = found.num_examples
    return {"absent": f"{absent:.6g}", "present": f"{present:.6g}", **{row.name: row.verdict for row in found.rows}}


class _Predictor:
    """Predict log-probabilities at the population for any x.

    Attributes:
        labels: those of the next x, if known.
        squashed: whether all outputs so far could be probabilities used as logits, of the classes, or of each finding; None
            if unknown.
    """

    def __init__(
        self, model: Any, prevalence: Prevalence | MultilabelPrevalence, likelihood: Likelihood | None, batch_size: int
    ) -> None:
        if not callable(model) and not isinstance(model, Posterior):
            raise ValueError(
                f"Expected `model` to be a module, a Posterior, a function of x or log-probabilities, but got "
                f"{type(model).__name__}: for a scikit-learn model pass `model.predict_log_proba`."
            )
        self._at: Any = prevalence
        if isinstance(prevalence, MultilabelPrevalence):
            if isinstance(model, Posterior) or not isinstance(likelihood, Bernoulli | None):
                what = "a Posterior" if isinstance(model, Posterior) else type(likelihood).__name__
                raise ValueError(
                    f"Expected a model of several findings (multi-label) with a logit for each, but got {what}: pass "
                    "log-probabilities of presence (n, L) instead of the model."
                )
        if isinstance(model, nn.Module) and not isinstance(model, PrevalenceLayer):
            model, self._at = PrevalenceLayer(model, prevalence, likelihood), None  # the likelihood of the layer
        self.model, self.prevalence, self.batch_size = model, prevalence, batch_size
        self.labels: Tensor | None = None
        self.squashed: list[bool | None] = [None] * (len(prevalence) if isinstance(prevalence, MultilabelPrevalence) else 1)

    def __call__(self, x: Any) -> Tensor:
        if isinstance(x, DataLoader):
            return torch.cat([self(batch[0] if isinstance(batch, list | tuple) else batch) for batch in x])
        if isinstance(self.model, Posterior):
            assert isinstance(self.prevalence, Prevalence)
            found = predictive(self.model, x, self.prevalence, batch_size=self.batch_size)
        elif isinstance(self.model, PrevalenceLayer):
            found = self._of_layer(self.model, x)
        else:
            found = self.model(x)
        return tensor_of(found, "log_probs").detach().cpu()

    def _of_layer(self, layer: PrevalenceLayer, x: Any) -> Tensor:
        cut = isinstance(x, Tensor | np.ndarray) or hasattr(x, "columns")
        parts = [x[start : start + self.batch_size] for start in range(0, len(x), self.batch_size)] if cut else [x]
        hook = layer.model.register_forward_hook(lambda _, given, outputs: self._look(outputs, layer.likelihood))
        try:
            return torch.cat([tensor_of(layer.predict(part, self._at), "log_probs") for part in parts])
        finally:
            hook.remove()

    def _look(self, outputs: Any, likelihood: Likelihood) -> None:
        if isinstance(outputs, Tensor) and self.labels is not None and isinstance(self.prevalence, Prevalence):
            refuse_multi_hot(self.labels[: len(outputs)], outputs)
        if not isinstance(outputs, Tensor) or not isinstance(likelihood, Categorical | Bernoulli | Findings):
            return
        parts = [(outputs, self.prevalence)]
        if isinstance(self.prevalence, MultilabelPrevalence):
            if outputs.shape[1:2] != (len(self.prevalence),):
                return  # the layer refuses them
            by_finding = outputs.reshape(len(outputs), len(self.prevalence), -1).unbind(1)
            parts = [*zip(by_finding, self.prevalence, strict=True)]
        for number, (part, prevalence) in enumerate(parts):
            log_pi = prevalence.population.log()
            if not isinstance(likelihood, Categorical) and 0 <= float(log_pi[1] - log_pi[0]) <= 1:
                continue  # the logits of a weak model are in this range as well
            inside = bool(((part >= 0) & (part <= 1)).all())
            if isinstance(likelihood, Categorical):
                inside = inside and bool(((part.float().sum(1) - 1).abs() < 1e-2).all())
            self.squashed[number] = inside and self.squashed[number] is not False


def _is_table(model: Any) -> bool:
    """Return whether the argument is predictions rather than a model."""
    if isinstance(model, Tensor | np.ndarray | list | tuple):
        return True
    return not callable(model) and (hasattr(model, "__array__") or isinstance(model, HasLogProbs))


def _predict(predict: _Predictor, data: Any) -> tuple[Tensor, Tensor, bool]:
    """Return log-probabilities, labels, and whether a sampler may have drawn an example more than once."""
    if isinstance(data, Dataset):
        data = DataLoader(data, predict.batch_size)
    if isinstance(data, tuple | list) and len(data) == 2:
        predict.labels = tensor_of(in_order(data[1], getattr(predict.prevalence, "names", ())), "labels")
        return predict(data[0]), predict.labels, False
    if isinstance(data, Tensor | np.ndarray) or not isinstance(data, Iterable):
        raise ValueError(
            f"Expected `data` to be (x, y) or a loader of such batches, but got {type(data).__name__}: a model needs the "
            "inputs and their labels."
        )
    tables, labels = [], []
    for batch in data:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise ValueError(
                f"Expected batches (x, y), but got a {type(batch).__name__}: make pairs of them, or pass log-probabilities and "
                "labels."
            )
        predict.labels = tensor_of(batch[1], "labels").detach().cpu()
        labels.append(predict.labels)
        tables.append(predict(batch[0]))
    if not tables:
        raise ValueError("Expected at least one batch in `data`, but got none: is the loader empty, or used up?")
    return torch.cat(tables), torch.cat(labels), _may_repeat(data)


def _sample_of(
    table: Tensor,
    labels: Any,
    prevalence: Prevalence,
    groups: Numbers | None,
    may_repeat: bool,
    weights: Tensor | None = None,
) -> tuple[Sample, bool]:
    """Return a `Sample` with the given groups, those of a map's images or of repeated examples, and whether examples repeat."""
    repeats = False
    labels, rows = tensor_of(labels, "labels").detach().cpu(), rows_of(tensor_of(table, "log_probs")).cpu()
    if table.ndim > 2:
        if labels.shape != (len(table), *table.shape[2:]):
            raise ValueError(
                f"Expected one label per cell, {(len(table), *table.shape[2:])}, but got shape {tuple(labels.shape)}: "
                "labels of maps are maps of class numbers."
            )
        labels, cells = labels.flatten(), math.prod(table.shape[2:])
        named = np.arange(len(table)) if groups is None else np.asarray(groups)
        groups = np.repeat(named, cells)
    if groups is None and may_repeat and not labels.is_floating_point():
        groups, repeats = _copies(torch.cat([rows.double(), labels[:, None].double()], 1))
    return labelled_sample(rows, labels, prevalence, groups, weights=weights), repeats


def _copies(rows: Tensor) -> tuple[Tensor | None, bool]:
    """Return which rows are equal, as groups, and whether any are."""
    found, which = torch.unique(rows.nan_to_num(-1.0), dim=0, return_inverse=True)
    return (which, True) if len(found) < len(rows) else (None, False)


def _may_repeat(data: Any) -> bool:
    if not isinstance(data, DataLoader) or type(data.batch_sampler) is not BatchSampler:
        return True
    sampler = data.sampler
    return not isinstance(sampler, SequentialSampler) and not (isinstance(sampler, RandomSampler) and not sampler.replacement)


def _cells(row: CheckRow) -> tuple[str, str, str, str, str]:
    p = "" if row.p_value is None else "< 1e-6" if row.p_value < 1e-6 else f"{row.p_value:.2g}"
    return row.name, row.seen, row.expected, p, row.verdict
