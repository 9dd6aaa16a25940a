"""`rightloss evaluate model labelled.csv`, or `rightloss evaluate predictions.csv --target cancer --population 0.001`.

Stage: a model and labelled rows, or a table with predictions and labels → every figure at the population, with intervals.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from . import commands
from .population import population_words
from .predict import check_threshold
from .terminal import number, print_json, print_sentences, print_table, quiet_exit, warnings_on_stderr

if TYPE_CHECKING:
    from ..metrics import Evaluation, Figure
    from .labelled import Labelled

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


def evaluate(
    model: Annotated[Path, commands.argument("The folder of `rightloss fit`; or a file of scores, or its parts.")],
    data: Annotated[Path | None, commands.argument("The labelled table, if the first is a folder.")] = None,
    target: commands.Targets = [],  # noqa: B006 (typer's way to say "none given")
    score: commands.Score = [],  # noqa: B006
    scale: commands.Scale = "probability",
    from_: commands.From = None,
    positive: commands.Positive = None,
    population: commands.Population = None,
    threshold: commands.Threshold = None,
    group: commands.Group = None,
    encoding: commands.Encoding = None,
    engine: commands.Engine = "in-process",
    address: commands.Address = None,
    json: commands.Json = False,
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

    \b
    A file of another program's risks, which hold where half of the people are ill:
      rightloss evaluate scores.csv --score risk --from 0.5 \\
        --target y --population 2%
    """
    with quiet_exit():
        from ..metrics import evaluate as evaluate_predictions
        from .labelled import Asked, labelled_by_model, labelled_scores
        from .tables import engine_of
    asked = Asked(target, positive, population, score, scale, from_, group, encoding=encoding)
    found: dict[str, tuple[Evaluation, Labelled]] = {}
    with warnings_on_stderr() as warned, engine_of(engine, address) as each:
        read = labelled_scores(model, asked, each) if data is None else labelled_by_model(model, data, asked, each)
        for name, one in read.each():
            check_threshold(threshold, len(one.classes))
            figures = evaluate_predictions(one.predictions, one.target, one.prevalence, threshold=threshold, groups=one.groups)
            found[name] = figures, one
    if json:
        content = {name: _json(*each, threshold, list(warned)) for name, each in found.items()}
        return print_json(content.get("", {"models" if read.target.ndim == 1 else "findings": content}))
    for name, (figures, one) in found.items():
        _print_evaluation(name, figures, one, threshold)


def _shown(found: Evaluation, threshold: float | None) -> dict[str, Figure]:
    return {name: found[name] for name in _WORDS if threshold is not None or name != "net_benefit"}


def _json(found: Evaluation, labelled: Labelled, threshold: float | None, warned: list[str]) -> dict[str, Any]:
    figures = _shown(found, threshold).items()
    return {
        "population": labelled.prevalence.population,
        "classes": labelled.classes,
        "rows": found.num_examples,
        "level": found.level,
        "threshold": threshold,
        "figures": {name: {"value": e.value, "low": e.low, "high": e.high, "note": e.reason} for name, e in figures},
        "warnings": warned,
    }


def _print_evaluation(name: str, found: Evaluation, labelled: Labelled, threshold: float | None) -> None:
    figures = _shown(found, threshold)
    positive = labelled.classes[1] if len(labelled.classes) == 2 else None
    population = population_words(labelled.prevalence.population.tolist(), labelled.classes, positive)
    labels = [each if isinstance(each, str) else f"of class {each}" for each in labelled.classes]
    counts = ", ".join(f"{int(rows):,} {label}" for rows, label in zip(found.num_examples, labels, strict=True))
    decision = "for the more probable class" if threshold is None else f"for {positive} from a probability of {threshold:g} on"
    rows = [(_WORDS[name], number(each.value, 4), number(each.low), number(each.high)) for name, each in figures.items()]
    title = f"{name}: at" if name else "At"
    print_table(("figure", "value", "low", "high"), rows, f"{title} the population {population}; decisions {decision}")
    print_sentences(f"Rows: {counts}. Limits are those of {100 * found.level:g} % intervals.")
    print_sentences(*(f"{_WORDS[name]}: {each.reason}." for name, each in figures.items() if each.reason))
