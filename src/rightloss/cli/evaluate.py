"""`rightloss evaluate model labelled.csv`, or `rightloss evaluate predictions.csv --target cancer --population 0.001`.

Stage: a model and labelled rows, or a table with predictions and labels → every figure at the population, with intervals.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from .errors import quiet_exit
from .parts import Each, engine_of, open_for, over_chunks, used
from .population import parse_population, population_words
from .predict import check_threshold
from .predictions_file import as_predicted, open_predictions, probability_columns
from .table_options import Address, Encoding, Engine, Group, Json, OptionalTarget, Population, Positive, Threshold, argument
from .terminal import number, print_json, print_sentences, print_table, warnings_on_stderr

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from ..metrics import Evaluation
    from ..prevalence import Prevalence
    from .population import Parsed

    _Rows = tuple[np.ndarray, np.ndarray, tuple[np.ndarray, Any] | None]  # predictions, class numbers, groups and their names

_OFF = 1e-3  # tolerance for the sum of a row of rounded probabilities
_WORDS = {
    "expected_log_likelihood": "expected log-likelihood, nats",
    "skill": "skill against always answering the population",
    "auc": "AUC",
    "brier": "Brier score",
    "mean_prediction": "mean prediction",
    "calibration_slope": "calibration slope",
    "calibration_error": "calibration error",
    "ppv": "PPV (precision)",
    "npv": "NPV",
    "tpr": "recall (sensitivity)",
    "tnr": "specificity",
    "weighted_accuracy": "accuracy in the population",
    "balanced_accuracy": "balanced accuracy",
    "net_benefit": "net benefit",
}


class Labelled(NamedTuple):
    """Predictions with labels.

    Attributes:
        log_probs: at the population `(n, k)`.
        codes: the class number of each row.
        groups: the group of each row, if there is a group column.
        classes: the labels; of two, the positive one last.
        prevalence: π, with its uncertainty.
    """

    log_probs: np.ndarray
    codes: np.ndarray
    groups: np.ndarray | None
    classes: Sequence[Any]
    prevalence: Prevalence


def evaluate(
    model: Annotated[Path, argument("The folder of `rightloss fit`, or a file (or parts) of `rightloss predict`.")],
    data: Annotated[Path | None, argument("The labelled table, if the first is a folder.")] = None,
    target: OptionalTarget = None,
    positive: Positive = None,
    population: Population = None,
    threshold: Threshold = None,
    group: Group = None,
    encoding: Encoding = None,
    engine: Engine = "in-process",
    address: Address = None,
    json: Json = False,
) -> None:
    """Evaluate a model on labelled rows: every figure at the population, whatever the mix of classes in the file.

    Rows are averaged within each class, and the classes weighted by the
    population. PPV, NPV, recall and specificity are those of the decision:
    the more probable class, or by --threshold. A table, or a folder of
    parts, is read by chunk: only predictions, labels and groups are kept.

    \b
    A model on rows that it has not seen, several per patient:
      rightloss evaluate model labelled.csv --group patient

    \b
    A file of predictions with the labels in a column, where 1 in 1,000 has the disease:
      rightloss evaluate predictions.csv --target cancer \\
        --positive yes --population 1/1000 --threshold 0.02
    """
    mix = None if population is None else parse_population(population)
    with quiet_exit():
        from ..metrics import evaluate as evaluate_predictions
    with warnings_on_stderr() as warned, engine_of(engine, address) as each:
        if data is None:
            labelled = _from_predictions(model, target, positive, mix, group, encoding, each)
        else:
            labelled = _from_model(model, data, target, mix, group, encoding, each)
        check_threshold(threshold, len(labelled.classes))
        log_probs, codes, groups, _, at = labelled
        found = evaluate_predictions(log_probs, codes, at, threshold=threshold, groups=groups)
    _print_evaluation(found, labelled, threshold, list(warned), json)


def _from_model(
    folder: Path, data: Path, target: str | None, mix: Parsed | None, group: str | None, encoding: str | None, each: Each
) -> Labelled:
    from ..tabular import load_model
    from ..tabular.labels import class_numbers

    model = load_model(folder)
    target = target or model.target
    table = open_for(model, data, encoding, each)
    _require(table.columns, target, group)

    def rows(frame: pd.DataFrame, start: int) -> _Rows:
        log_probs = model.predict_log_proba(frame, mix, warn=False)
        return log_probs, class_numbers(frame[target], model.classes_), _groups(frame, group)

    names = {target, group, *(spec.name for spec in used(model))}
    found = _collected(over_chunks(each, table, names, rows, used(model)), table.rows, target)
    return Labelled(*found, model.classes_, model.population if mix is None else model.prevalence_of(mix))


def _from_predictions(
    path: Path,
    target: str | None,
    positive: str | None,
    mix: Parsed | None,
    group: str | None,
    encoding: str | None,
    each: Each = map,
) -> Labelled:
    """Read the columns `p_…` of a file, as predictions at the given population."""
    import numpy as np

    from ..tabular.labels import Labels, class_numbers, matching_label, population_of

    if (path / "model.json").is_file():
        raise ValueError("Expected a labelled table after the model's folder, but got none: evaluate model labelled.csv.")
    if target is None or mix is None:
        raise ValueError("Expected --target and --population with a file of predictions, but got none: add them.")
    table, names = open_predictions(path, target, encoding, each)
    columns = probability_columns(list(names))
    classes: list[Any] = [name.removeprefix("p_") for name in columns]
    if len(classes) < 2:
        raise ValueError(f"Expected a column p_… per class in {path}, but got {len(classes)}: write it by `rightloss predict`.")
    _require(list(names), target, group)
    second = classes[1] if positive is None else matching_label(positive, classes, "positive")
    if len(classes) == 2:
        classes = sorted(classes, key=lambda label: label == second)
    wanted = {name: names[name] for name in dict.fromkeys([*columns, target, group or target])}

    def rows(frame: pd.DataFrame, start: int) -> _Rows:
        plain = as_predicted(frame, wanted, table.is_parquet)
        return _log_probs(plain, classes, path), class_numbers(plain[target], classes), _groups(plain, group)

    found = _collected(over_chunks(each, table, wanted.values(), rows), table.rows, target)
    labels = Labels(classes, found[1], second if len(classes) == 2 else None, False)
    return Labelled(*found, classes, population_of(mix, labels, np.full(len(classes), 1 / len(classes))))


def _log_probs(frame: pd.DataFrame, classes: Sequence[Any], path: Path) -> np.ndarray:
    import numpy as np

    from ..tabular.columns import as_numbers

    columns = [f"p_{label}" for label in classes]
    found = np.column_stack([as_numbers(frame[name])[0] for name in columns])
    if not (np.isfinite(found).all() and (found >= 0).all() and (abs(found.sum(1) - 1) < _OFF).all()):
        raise ValueError(
            f"Expected probabilities that sum to 1 in the columns {columns} of {path}, but some rows do not: write it by "
            "`rightloss predict`."
        )
    with np.errstate(divide="ignore"):
        return np.log(found / found.sum(1, keepdims=True))


def _collected(chunks: Iterable[_Rows], rows: int, target: str) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return predictions, class numbers and groups of all rows with a label; a row without a group is one of its own."""
    import numpy as np

    log_probs, codes, groups = np.empty(0), np.empty(rows, dtype=np.int64), np.full(rows, -1)
    numbers: dict[Any, int] = {}
    start, given = 0, None
    for table, own, given in chunks:
        log_probs = log_probs if start else np.empty((rows, table.shape[1]))
        place = slice(start, start + len(own))
        log_probs[place], codes[place], start = table, own, place.stop
        if given is not None:
            known = [numbers.setdefault(name, len(numbers)) for name in given[1]]
            groups[place] = np.array([*known, -1])[given[0]]
    labelled = codes >= 0
    if not labelled.any():
        raise ValueError(f"Expected labels in column {target!r}, but all are missing: `rightloss predict` needs none.")
    if not labelled.all():
        without = int((~labelled).sum())
        warnings.warn(f"column {target!r}: {without:,} rows have no label and are left out", UserWarning, stacklevel=2)
    groups[groups < 0] = len(numbers) + np.arange((groups < 0).sum())
    return log_probs[labelled], codes[labelled], None if given is None else groups[labelled]


def _require(columns: Sequence[str], target: str, group: str | None) -> None:
    """Raise ValueError if a table lacks the column of labels or of groups."""
    for name, what in ((target, "target"), (group, "group")):
        if name is not None and name not in columns:
            raise ValueError(f"Expected the {what} column {name!r}, but got {list(columns[:30])}: name it by --{what}.")


def _groups(frame: pd.DataFrame, group: str | None) -> tuple[np.ndarray, Any] | None:
    import pandas as pd

    return None if group is None else pd.factorize(frame[group].astype(object))


def _print_evaluation(found: Evaluation, labelled: Labelled, threshold: float | None, warned: list[str], json: bool) -> None:
    figures = {name: found[name] for name in _WORDS if threshold is not None or name != "net_benefit"}
    positive = labelled.classes[1] if len(labelled.classes) == 2 else None
    population = population_words(labelled.prevalence.population.tolist(), labelled.classes, positive)
    if json:
        shown = {name: {"value": e.value, "low": e.low, "high": e.high, "note": e.reason} for name, e in figures.items()}
        content = {"population": labelled.prevalence.population, "classes": labelled.classes, "rows": found.num_examples}
        content |= {"level": found.level, "threshold": threshold, "figures": shown, "warnings": warned}
        return print_json(content)
    counts = ", ".join(f"{int(rows):,} {label}" for rows, label in zip(found.num_examples, labelled.classes, strict=True))
    decision = "for the more probable class" if threshold is None else f"for {positive} from a probability of {threshold:g} on"
    rows = [(_WORDS[name], number(each.value, 4), number(each.low), number(each.high)) for name, each in figures.items()]
    print_table(("figure", "value", "low", "high"), rows, f"At the population {population}; decisions {decision}")
    print_sentences(f"Rows: {counts}. Limits are those of {100 * found.level:g} % intervals.")
    print_sentences(*(f"{_WORDS[name]}: {each.reason}." for name, each in figures.items() if each.reason))
