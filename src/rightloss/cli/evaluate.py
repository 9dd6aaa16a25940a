"""`rightloss evaluate model labelled.csv`, or `rightloss evaluate predictions.csv --target cancer --population 0.001`.

Stage: a model and labelled rows, or a table with predictions and labels → every figure at the population, with intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .errors import plain_errors, quiet_exit
from .population import parse_population, population_words
from .predict import check_threshold
from .predictions_file import NUMBER, probability_columns, read_predictions
from .table_options import Encoding, Group, Json, OptionalTarget, Population, Positive, Threshold
from .terminal import number, print_json, print_sentences, print_table, warnings_on_stderr

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from ..metrics import Evaluation
    from ..prevalence import Prevalence
    from .population import Parsed

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


@dataclass(frozen=True)
class Labelled:
    """Predictions with labels.

    Attributes:
        log_probs: at the population `(n, k)`.
        codes: the class number of each row, −1 if it has no label.
        classes: the labels; of two, the positive one last.
        prevalence: π, with its uncertainty.
        groups: the group of each row, if there is a group column.
    """

    log_probs: np.ndarray
    codes: np.ndarray
    classes: Sequence[Any]
    prevalence: Prevalence
    groups: np.ndarray | None


def evaluate(
    model: Annotated[
        Path,
        typer.Argument(help="The folder of `rightloss fit`, or a file of `rightloss predict`.", show_default=False),
    ],
    data: Annotated[
        Path | None, typer.Argument(help="The labelled table, if the first is a folder.", show_default=False)
    ] = None,
    target: OptionalTarget = None,
    positive: Positive = None,
    population: Population = None,
    threshold: Threshold = None,
    group: Group = None,
    encoding: Encoding = None,
    json: Json = False,
) -> None:
    """Evaluate a model on labelled rows: every figure at the population, whatever the mix of classes in the file.

    Rows are averaged within each class, and the classes weighted by the
    population. PPV, NPV, recall and specificity are those of the decision:
    the more probable class, or by --threshold.

    \b
    A model on rows that it has not seen, several per patient:
      rightloss evaluate model labelled.csv --group patient

    \b
    A file of predictions with the labels in a column, where 1 in 1,000 has the disease:
      rightloss evaluate predictions.csv --target cancer \\
        --positive yes --population 1/1000 --threshold 0.02
    """
    with plain_errors():
        mix = None if population is None else parse_population(population)
        with quiet_exit():
            from ..metrics import evaluate as evaluate_predictions
        with warnings_on_stderr() as warned:
            if data is None:
                labelled = _from_predictions(model, target, positive, mix, group, encoding)
            else:
                labelled = _from_model(model, data, target, mix, group, encoding)
            check_threshold(threshold, len(labelled.classes))
            rows = labelled.codes >= 0
            found = evaluate_predictions(
                labelled.log_probs[rows],
                labelled.codes[rows],
                labelled.prevalence,
                threshold=threshold,
                groups=None if labelled.groups is None else labelled.groups[rows],
            )
        _print_evaluation(found, labelled, threshold, list(warned), json)


def _from_model(
    folder: Path,
    data: Path,
    target: str | None,
    mix: Parsed | None,
    group: str | None,
    encoding: str | None,
) -> Labelled:
    from ..tabular import load_model, read_table

    model = load_model(folder)
    frame = read_table(data, encoding=encoding)
    codes = class_numbers(frame, target or model.target, model.classes_)
    groups = _groups(frame, group)
    log_probs = model.predict_log_proba(frame, population=mix)
    prevalence = model.population if mix is None else model.prevalence_of(mix)
    return Labelled(log_probs, codes, model.classes_, prevalence, groups)


def _from_predictions(
    path: Path,
    target: str | None,
    positive: str | None,
    mix: Parsed | None,
    group: str | None,
    encoding: str | None,
) -> Labelled:
    """Read the columns `p_…` of a file, as predictions at the given population."""
    import numpy as np
    import torch

    from ..tabular.columns import as_numbers
    from ..tabular.labels import Labels, matching_label, population_of

    if path.is_dir():
        raise ValueError("Expected a labelled table after the model's folder, but got none: evaluate model labelled.csv.")
    if target is None or mix is None:
        raise ValueError("Expected --target and --population with a file of predictions, but got none: add them.")
    frame = read_predictions(path, target, encoding)
    columns = probability_columns(list(frame.columns))
    classes: list[Any] = [name.removeprefix("p_") for name in columns]
    if len(classes) < 2:
        raise ValueError(f"Expected a column p_… per class in {path}, but got {len(classes)}: write it by `rightloss predict`.")
    second = classes[1] if positive is None else matching_label(positive, classes, "positive")
    if len(classes) == 2:
        classes = sorted(classes, key=lambda label: label == second)
    probabilities = np.column_stack([as_numbers(frame[f"p_{label}"])[0] for label in classes])
    if not (np.isfinite(probabilities).all() and (probabilities >= 0).all() and (abs(probabilities.sum(1) - 1) < _OFF).all()):
        raise ValueError(
            f"Expected probabilities that sum to 1 in the columns {columns} of {path}, but some rows do not: write it by "
            "`rightloss predict`."
        )
    codes = class_numbers(frame, target, classes)
    even = torch.full((len(classes),), 1 / len(classes), dtype=torch.float64)
    prevalence = population_of(mix, Labels(classes, codes, second if len(classes) == 2 else None, False), even)
    with np.errstate(divide="ignore"):
        log_probs = np.log(probabilities / probabilities.sum(1, keepdims=True))
    return Labelled(log_probs, codes, classes, prevalence, _groups(frame, group))


def class_numbers(frame: pd.DataFrame, target: str, classes: Sequence[Any]) -> np.ndarray:
    """Return the class number of each row, −1 if it has no label; raise ValueError for unknown labels."""
    import warnings

    import numpy as np
    import pandas as pd

    from ..tabular.columns import text_of

    if target not in frame.columns:
        raise ValueError(f"Expected the target column {target!r}, but got {list(frame.columns[:30])}: name it by --target.")
    place = {text_of(label): number for number, label in enumerate(classes)}
    numbers, labels = pd.factorize(frame[target].astype(object))
    found = [_class_number(text_of(label), place) for label in labels]
    unknown = sorted(text_of(label) for label, number in zip(labels, found, strict=True) if number is None)
    if unknown:
        raise ValueError(
            f"Expected the classes {list(place)} in column {target!r}, but got {unknown[:5]}: leave those rows out."
        )
    codes = np.array([*found, -1], dtype=np.int64)[numbers]
    if not len(codes) or codes.max() < 0:
        raise ValueError(f"Expected labels in column {target!r}, but all are missing: `rightloss predict` needs none.")
    if (codes < 0).any():
        warnings.warn(
            f"column {target!r}: {(codes < 0).sum():,} rows have no label and are left out", UserWarning, stacklevel=2
        )
    return codes


def _class_number(text: str, place: dict[str, int]) -> int | None:
    """Return the number of the class that a label names, as it stands or loosely; −1 for "NA" and similar, None if unknown."""
    from ..tabular.columns import text_of
    from ..tabular.read import MISSING

    number = text_of(float(text)) if NUMBER.fullmatch(text) and "," not in text else text  # "1.0" is the class 1
    exact = [place[form] for form in (text, text.rstrip(), number) if form in place]
    alike = [each for label, each in place.items() if label.casefold() == text.casefold()]
    return exact[0] if exact else alike[0] if len(alike) == 1 else -1 if text in MISSING else None


def _groups(frame: pd.DataFrame, group: str | None) -> np.ndarray | None:
    import pandas as pd

    if group is None:
        return None
    if group not in frame.columns:
        raise ValueError(f"Expected the group column {group!r}, but got {list(frame.columns[:30])}: name it by --group.")
    codes, names = pd.factorize(frame[group].astype(object))
    missing = codes < 0
    codes[missing] = len(names) + missing[missing].cumsum()  # each a group of its own
    return codes


def _print_evaluation(found: Evaluation, labelled: Labelled, threshold: float | None, warned: list[str], json: bool) -> None:
    figures = {name: found[name] for name in _WORDS if threshold is not None or name != "net_benefit"}
    positive = labelled.classes[1] if len(labelled.classes) == 2 else None
    population = population_words(labelled.prevalence.population.tolist(), labelled.classes, positive)
    if json:
        shown = {
            name: {"value": each.value, "low": each.low, "high": each.high, "note": each.reason}
            for name, each in figures.items()
        }
        context = {"classes": list(labelled.classes), "rows": list(found.num_examples), "level": found.level}
        return print_json(
            {
                "population": labelled.prevalence.population,
                **context,
                "threshold": threshold,
                "figures": shown,
                "warnings": warned,
            }
        )
    counts = ", ".join(f"{int(rows):,} {label}" for rows, label in zip(found.num_examples, labelled.classes, strict=True))
    decision = "for the more probable class" if threshold is None else f"for {positive} from a probability of {threshold:g} on"
    rows = [(_WORDS[name], number(each.value, 4), number(each.low), number(each.high)) for name, each in figures.items()]
    print_table(("figure", "value", "low", "high"), rows, f"At the population {population}; decisions {decision}")
    print_sentences(f"Rows: {counts}. Limits are those of {100 * found.level:g} % intervals.")
    print_sentences(*(f"{_WORDS[name]}: {each.reason}." for name, each in figures.items() if each.reason))
