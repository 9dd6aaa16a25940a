"""The function `check`: test a trained model in one call, and return a table of problems and how to fix them.

Stage: module, `Posterior`, function or `log_probs`; `(x, y)`, data set or loader; `Prevalence` → log-probabilities at the
population and labels → `Check`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any, overload

import numpy as np

from ..arrays import (
    Array,
    HasLogProbs,
    Numbers,
    Predictions,
    array_namespace,
    array_of,
    array_or_tensor,
    checked_level,
    is_tensor,
)
from ..finding_tables import ByFinding, FindingRows, finding_tables, for_each_finding, in_order
from ..metrics.sample import Sample, labelled_sample
from ..prevalence import MultilabelPrevalence, Prevalence
from . import diagnostics
from .diagnostics import CheckRow


@overload
def check(model: Any, data: Any, prevalence: MultilabelPrevalence, **options: Any) -> ChecksByFinding: ...
@overload
def check(model: Any, data: Any, prevalence: Prevalence, **options: Any) -> Check: ...
def check(  # type: ignore[misc]  # the options of both are these
    model: Any,
    data: Any,
    prevalence: Prevalence | MultilabelPrevalence,
    *,
    likelihood: Any = None,
    unlabelled: Any = None,
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
        model: log-probabilities, `(n, k)` or dense `(n, k, h, w, …)`; a function from x to log-probabilities at the population,
            such as scikit-learn's `predict_log_proba`; a torch module, which is called in eval mode without gradients and then
            reset to its mode; or a `Posterior`.
        data: `(x, y)`, a data set of such pairs or a loader of batches of them; y alone with log-probabilities. y are class
            numbers, −100 for rows to ignore, or soft votes `(n, k)`. Every class must have rows.
        prevalence: π and ρ.
        likelihood: turns a module's outputs into probabilities, one of `rightloss.likelihoods`; Categorical by default. One
            with its own parameters must be the trained one, `criterion.likelihood`.
        unlabelled: rows from the population: x or a loader of x; log-probabilities if `model` is log-probabilities.
        groups: ids of patients or sites, one per example: rows with the same id are not independent. Cells of a map have the
            id of their image. Copies of an example that a sampler drew repeatedly are recognised, unless augmented.
        sampled: whether the rows were drawn as in training. False omits the test of their mix, because held-out rows need
            not have the mix ρ.
        level: the level of the whole table.
        batch_size: rows per call of the model, if `data` is not a loader.

    Examples:
        >>> import numpy as np
        >>> import rightloss as rl
        >>> prevalence = rl.Prevalence.binary(population=0.01, sampling=0.5)
        >>> y = np.arange(400) % 2
        >>> x = np.random.default_rng(0).normal(2.0 * y - 1)
        >>> at_sampling = -np.logaddexp(0, np.stack([2 * x, -2 * x], 1))  # right where half are of class 1
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
    with sys.modules["torch"].no_grad() if "torch" in sys.modules else nullcontext():
        predict = None if _is_table(model) else _predictor(model, prevalence, likelihood, batch_size)
        table, labels, may_repeat = (model, data, False) if predict is None else _predictions(predict, data, batch_size)
        there = unlabelled if unlabelled is None or predict is None else predict(unlabelled)
    size = 1 if isinstance(prevalence, Prevalence) else len(prevalence)
    squashed = [None] * size if predict is None else predict.squashed
    if isinstance(prevalence, Prevalence):
        repeats = False
        if groups is None and may_repeat and array_of(labels, "labels").dtype.kind != "f" and table.ndim == 2:
            groups, repeats = _copies(table, labels)
        sample = labelled_sample(table, labels, prevalence, groups)
        there = None if there is None else array_or_tensor(there, "unlabelled")
        return _tested(sample, repeats, sampled, squashed[0], there, level)
    rows = FindingRows.of(table, labels, prevalence, "labels", weighted=sampled)
    groups, repeats = _copies(rows.tables, rows.labels) if groups is None and may_repeat else (groups, False)
    pool = None if there is None else finding_tables(in_order(there, rows.names), size)

    def tested(number: int, name: str) -> Check:
        own, classes, weights = rows[number]
        sample = labelled_sample(own, classes, prevalence[name], groups, weights=weights)
        unseen = None if pool is None else pool[:, :, number]
        return _tested(sample, repeats, sampled, squashed[number], unseen, 1 - (1 - level) / size)

    return ChecksByFinding(for_each_finding(rows.names, tested, stacklevel=3), level)


def _tested(sample: Sample, repeats: bool, sampled: bool, squashed: bool | None, there: Array, level: float) -> Check:
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


class Check(ByFinding[CheckRow]):
    """The result of `check`: a `CheckRow` by the name of each test; print it to see the table.

    Attributes:
        rows: a `CheckRow` for each test.
        level: the probability that a correct model gets "ok" in all rows.
        num_examples: the number of examples of each class; votes count as fractions.

    Examples:
        >>> import numpy as np
        >>> import rightloss as rl
        >>> found = rl.check(np.log([[0.9, 0.1]] * 40), np.arange(40) % 2, rl.Prevalence.binary(0.1))
        >>> found.ok, found["label mix"].seen
        (True, '[0.5, 0.5]')
    """

    _kind = "row"

    def __init__(self, rows: tuple[CheckRow, ...], level: float, num_examples: tuple[float, ...]) -> None:
        self.rows, self.level, self.num_examples = rows, level, num_examples
        about: dict[str, list[str]] = {}
        for row in rows:
            about.setdefault(row.remedy, []).append(row.name)
        remarks = [f"- {', '.join(names)}: {remedy}" for remedy, names in about.items() if remedy]
        counts = ", ".join(f"{count:g}" for count in num_examples[:6]) + ", …" * (len(num_examples) > 6)
        title = f"{_look_at([row.name for row in rows if row.verdict == 'look'])} (examples by class: {counts})"
        super().__init__({row.name: row for row in rows}, _cells, title, remarks)

    @property
    def ok(self) -> bool:
        """Whether no row says "look"."""
        return all(row.verdict != "look" for row in self.rows)


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
        super().__init__(results, _verdicts, f"{_look_at(look)} ({len(results)} findings)", remarks)
        self.level = level

    @property
    def ok(self) -> bool:
        """Whether no row of any finding says "look"."""
        return all(each.ok for each in self.values())


def _verdicts(found: Check) -> dict[str, str]:
    """Return a finding's row of the table."""
    absent, present = found.num_examples
    return {"absent": f"{absent:.6g}", "present": f"{present:.6g}", **{row.name: row.verdict for row in found.rows}}


class Predictor:
    """Predict log-probabilities at the population for any x, with a function.

    Attributes:
        squashed: whether all outputs so far could be probabilities used as logits, of the classes, or of each finding; None
            if unknown.
    """

    def __init__(self, model: Any, prevalence: Prevalence | MultilabelPrevalence) -> None:
        self.model, self.prevalence = model, prevalence
        self.squashed: list[bool | None] = [None] * (len(prevalence) if isinstance(prevalence, MultilabelPrevalence) else 1)

    def __call__(self, x: Any, labels: np.ndarray | None = None) -> Array:
        """Return predictions of x, or of all batches of a loader; `labels` are those of x, if known."""
        data = sys.modules.get("torch.utils.data")
        if data is not None and isinstance(x, data.DataLoader):
            parts = [self(batch[0] if isinstance(batch, list | tuple) else batch) for batch in x]
            return array_namespace(parts[0]).concat(parts)
        found = array_or_tensor(self.predicted(x, labels), "log_probs")
        return found.detach().cpu() if is_tensor(found) else found

    def predicted(self, x: Any, labels: np.ndarray | None) -> Predictions:
        return self.model(x)


def _predictor(model: Any, prevalence: Any, likelihood: Any, batch_size: int) -> Predictor:
    torch, inference = sys.modules.get("torch"), sys.modules.get("rightloss.inference")
    is_posterior = inference is not None and isinstance(model, inference.Posterior)
    if is_posterior or (torch is not None and isinstance(model, torch.nn.Module)):
        from .torch_model import TorchPredictor  # the only part that needs torch

        return TorchPredictor(model, prevalence, likelihood, batch_size)
    if not callable(model):
        came = f"{type(model).__name__}: for a scikit-learn model pass `model.predict_log_proba`"
        raise ValueError(f"Expected `model` to be a module, a Posterior, a function or log-probabilities, but got {came}.")
    return Predictor(model, prevalence)


def _is_table(model: Any) -> bool:
    """Return whether the argument is predictions rather than a model."""
    if is_tensor(model) or isinstance(model, np.ndarray | list | tuple):
        return True
    return not callable(model) and (hasattr(model, "__array__") or isinstance(model, HasLogProbs))


def _predictions(predict: Predictor, data: Any, batch_size: int) -> tuple[Array, np.ndarray, bool]:
    """Return log-probabilities, labels, and whether a sampler may have drawn an example more than once."""
    loaders = sys.modules.get("torch.utils.data")
    if loaders is not None and isinstance(data, loaders.Dataset):
        data = loaders.DataLoader(data, batch_size)
    if isinstance(data, tuple | list) and len(data) == 2:
        labels = array_of(in_order(data[1], getattr(predict.prevalence, "names", ())), "labels")
        return predict(data[0], labels), labels, False
    if is_tensor(data) or isinstance(data, np.ndarray) or not isinstance(data, Iterable):
        came = f"{type(data).__name__}: a model needs the inputs and their labels"
        raise ValueError(f"Expected `data` to be (x, y) or a loader of such batches, but got {came}.")
    tables, batches = [], []
    for batch in data:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            came = f"a {type(batch).__name__}: make pairs of them, or pass log-probabilities and labels"
            raise ValueError(f"Expected batches (x, y), but got {came}.")
        batches.append(array_of(batch[1], "labels"))
        tables.append(predict(batch[0], batches[-1]))
    if not tables:
        raise ValueError("Expected at least one batch in `data`, but got none: is the loader empty, or used up?")
    return array_namespace(tables[0]).concat(tables), np.concatenate(batches), _may_repeat(data, loaders)


def _copies(table: Array, labels: Any) -> tuple[np.ndarray | None, bool]:
    """Return which rows are equal, as groups, and whether any are."""
    both = [array_of(each, "log_probs").astype(np.float64).reshape(len(table), -1) for each in (table, labels)]
    found, which = np.unique(np.nan_to_num(np.concatenate(both, 1), nan=-1.0), axis=0, return_inverse=True)
    return (which, True) if len(found) < len(table) else (None, False)


def _may_repeat(data: Any, loaders: Any) -> bool:
    if loaders is None or not isinstance(data, loaders.DataLoader) or type(data.batch_sampler) is not loaders.BatchSampler:
        return True
    sampler = data.sampler
    once = isinstance(sampler, loaders.RandomSampler) and not sampler.replacement
    return not isinstance(sampler, loaders.SequentialSampler) and not once


def _cells(row: CheckRow) -> dict[str, str]:
    p = "" if row.p_value is None else "< 1e-6" if row.p_value < 1e-6 else f"{row.p_value:.2g}"
    return {"seen": row.seen, "expected": row.expected, "p": p, "": row.verdict}


def _look_at(names: list[str]) -> str:
    return "Look at: " + ", ".join(names) if names else "No problem found"
