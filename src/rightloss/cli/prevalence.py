"""`rightloss prevalence model unlabelled.csv`: how frequent are the classes there?

Stage: a model, rows without labels → estimated class frequencies with intervals, the label-shift test, the next command.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import commands, terminal
from .population import population_text
from .terminal import number, percent, quiet_exit

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from ..shift import LabelShiftTest, PrevalenceEstimate
    from ..tabular import TableModel
    from ..tabular.model import ComparableRows

_SMALLEST = 1e-6  # frequency of an unseen class in the next command


_CALIBRATION = "How held-out rows calibrate the predictions: affine, beta, temperature or mean (not at all)."


def prevalence(
    model: commands.ModelFolder,
    data: commands.Data,
    method: Annotated[str, typer.Option(help="em, bbse, bbse-soft, rlls or rlls-soft; all but em need no calibration.")] = "em",
    calibration: Annotated[str | None, commands.option(_CALIBRATION, show_default="affine", metavar="KIND")] = None,
    encoding: commands.Encoding = None,
    engine: commands.Engine = "in-process",
    address: commands.Address = None,
    json: commands.Json = False,
) -> None:
    """Estimate the class frequencies of unlabelled rows, with intervals, and test what the estimate rests on.

    It holds if each class looks as it did in the training table and only
    the mix differs (label shift). The model's held-out predictions
    calibrate it and are what the test compares with. The test cannot see
    a change of inputs that looks like more cases. A table, or a folder of
    parts, is read by chunk: only its predictions are kept.

    \b
    How frequent is the disease in this clinic?
      rightloss prevalence model clinic.csv

    \b
    The estimate for a script:
      rightloss prevalence model clinic.parquet --json
    """
    with quiet_exit():
        from ..shift import estimate_prevalence
        from ..tabular import load_model
        from .tables import engine_of, open_for, over_chunks, stacked
    with terminal.warnings_on_stderr(), engine_of(engine, address) as each:
        fitted = load_model(model)
        if fitted.family is None:
            raise ValueError(
                f"Expected a model that tells the classes apart, but {model} always answers its population, as nothing "
                "better was found: fit one with more rows or other columns."
            )
        table, labels = open_for(fitted, data, encoding, each), fitted.held_out.target
        chunks = over_chunks(each, table, [], fitted.comparable_log_probs, fitted)
        rows = fitted.compared(stacked(chunks, table.rows))
        options: dict[str, Any] = {"method": method, "calibration": calibration}
        estimate = estimate_prevalence(rows.log_probs, rows.sampling, held_out=(rows.held_out, labels), **options)
        test = _test(rows, labels)
    shares = [max(_SMALLEST, each) for each in estimate.population.tolist()]
    text = population_text([each / sum(shares) for each in shares], fitted.classes_, fitted.positive)
    following = ["predict", model, data, "--population", text, "--out", "predictions.csv"]
    if json:
        content = {name: getattr(estimate, name) for name in ("population", "low", "high", "level", "rows")}
        content = {"classes": fitted.classes_} | content | {"label_shift_test": vars(test), "learnt": _learnt(fitted)}
        terminal.print_json(content | {"next": terminal.command_line(*following)})
    else:
        _print_estimate(estimate, test, fitted, data)
        terminal.print_next(*following)


def _test(rows: ComparableRows, labels: np.ndarray) -> LabelShiftTest:
    """Test for label shift at equal class frequencies, so that a class is predicted even if it is rare at the population.

    The predictions of the table are replaced by those at equal frequencies, as they may fill the memory.
    """
    from ..arrays import row_blocks
    from ..predictive.retarget import retarget
    from ..shift import LabelShiftWarning, label_shift_test

    equal = [1 / len(rows.sampling)] * len(rows.sampling)
    for _, block in row_blocks(rows.log_probs):
        block[:] = retarget(block, rows.sampling, equal)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LabelShiftWarning)  # its complaints are printed
        held_out = retarget(rows.held_out, rows.sampling, equal)
        return label_shift_test(rows.log_probs, (held_out, labels), folds=rows.folds)


def _print_estimate(estimate: PrevalenceEstimate, test: LabelShiftTest, fitted: TableModel, data: Path) -> None:
    figures = (each.tolist() for each in (estimate.population, estimate.low, estimate.high, fitted.population.population))
    rows = [
        (str(label), number(share, 4), number(low), number(high), percent(share), number(at, 4))
        for label, share, low, high, at in zip(fitted.classes_, *figures, strict=True)
    ]
    heads = ("class", "estimate", "low", "high", "in percent", "model's population")
    title = f"Class frequencies of {data}: {estimate.rows:,} rows, {100 * estimate.level:g} % intervals"
    terminal.print_table(heads, rows, title)
    terminal.print_sentences(_verdict(test), *_learnt_sentence(fitted))


def _verdict(test: LabelShiftTest) -> str:
    p_value = f"(p = {test.p_value:.2g})"
    if not test.complaints:
        return (
            f"Label-shift test: not contradicted {p_value}. It cannot see a change of inputs that looks like more cases: check "
            "some labels there if you can."
        )
    verdict = f"do not rely on the estimate {p_value}" if test.degrees > 0 else "do not rely on the estimate"
    return f"Label-shift test: {verdict}. {' '.join(test.complaints)}"


def _learnt(fitted: TableModel) -> dict[str, Any] | None:
    """Return the population that the model learnt from unlabelled rows, with its limits; None if it was given."""
    used = fitted.unlabelled
    if used is None or used.population_low is None:
        return None
    shares = fitted.population.population.tolist()
    return {"population": shares, "low": used.population_low, "high": used.population_high, "rows": used.rows}


def _learnt_sentence(fitted: TableModel) -> list[str]:
    learnt = _learnt(fitted)
    if learnt is None:
        return []
    shares = zip(fitted.classes_, learnt["population"], learnt["low"], learnt["high"], strict=True)
    found = [f"{label} {number(share)} ({number(low)} to {number(high)})" for label, share, low, high in shares]
    shown = ", ".join(found[1:] if len(found) == 2 else found)
    return [
        f"The model learnt its population from {learnt['rows']:,} unlabelled rows: {shown}. Are they these rows? Then report "
        "that estimate."
    ]
