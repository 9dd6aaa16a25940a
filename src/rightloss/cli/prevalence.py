"""`rightloss prevalence model unlabelled.csv`: how frequent are the classes there?

Stage: a model, rows without labels → estimated class frequencies with intervals, the label-shift test, the next command.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from .errors import plain_errors, quiet_exit
from .population import in_words, population_text
from .table_options import Data, Encoding, Json, ModelFolder
from .terminal import command_line, number, print_json, print_next, print_sentences, print_table, warnings_on_stderr

if TYPE_CHECKING:
    from pathlib import Path

    from ..shift import LabelShiftTest, PrevalenceEstimate
    from ..tabular import TableModel

_SMALLEST = 1e-6  # frequency of an unseen class in the next command


def prevalence(model: ModelFolder, data: Data, encoding: Encoding = None, json: Json = False) -> None:
    """Estimate the class frequencies of unlabelled rows, with intervals, and test what the estimate rests on.

    It holds if each class looks as it did in the training table and only
    the mix differs (label shift). The model's held-out predictions
    calibrate it and are what the test compares with.

    \b
    How frequent is the disease in this clinic?
      rightloss prevalence model clinic.csv

    \b
    The estimate for a script:
      rightloss prevalence model clinic.parquet --json
    """
    with plain_errors():
        with quiet_exit():
            from ..shift import LabelShiftWarning, estimate_prevalence, label_shift_test
            from ..tabular import load_model, read_table
        with warnings_on_stderr():
            fitted = load_model(model)
            log_probs = fitted.predict_log_proba(read_table(data, encoding=encoding))
            held_out = (fitted.held_out.log_probs, fitted.held_out.target)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", LabelShiftWarning)  # the test's message is printed below
                test = label_shift_test(log_probs, held_out)
            estimate = estimate_prevalence(log_probs, fitted.population.population, held_out=held_out)
        following = _next_arguments(estimate, fitted, model, data)
        if json:
            _print_json(estimate, test, fitted, following)
        else:
            _print_estimate(estimate, test, fitted, data)
            print_next(*following)


def _next_arguments(estimate: PrevalenceEstimate, fitted: TableModel, folder: Path, data: Path) -> list[str]:
    shares = [max(_SMALLEST, each) for each in estimate.population.tolist()]
    shares = [each / sum(shares) for each in shares]
    text = population_text(shares, fitted.classes_, fitted.positive)
    return ["predict", str(folder), str(data), "--population", text, "--out", "predictions.csv"]


def _print_estimate(estimate: PrevalenceEstimate, test: LabelShiftTest, fitted: TableModel, data: Path) -> None:
    rows = [
        (str(label), number(share, 4), number(low), number(high), in_words(share), number(at, 4))
        for label, share, low, high, at in zip(
            fitted.classes_,
            estimate.population.tolist(),
            estimate.low.tolist(),
            estimate.high.tolist(),
            fitted.population.population.tolist(),
            strict=True,
        )
    ]
    heads = ("class", "estimate", "low", "high", "in words", "model's population")
    print_table(heads, rows, f"Class frequencies of {data}: {estimate.rows:,} rows, {100 * estimate.level:g} % intervals")
    verdict = "passed" if test.tenable and test.well_conditioned else "do not rely on the estimate"
    print_sentences(f"Label-shift test: {verdict}. {test.message}")


def _print_json(estimate: PrevalenceEstimate, test: LabelShiftTest, fitted: TableModel, following: list[str]) -> None:
    print_json(
        {
            "classes": list(fitted.classes_),
            "population": estimate.population,
            "low": estimate.low,
            "high": estimate.high,
            "level": estimate.level,
            "rows": estimate.rows,
            "label_shift_test": vars(test),
            "next": command_line(*following),
        }
    )
