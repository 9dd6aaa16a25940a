"""Labels of pandas and others: bools of two classes are taken, other labels refused with what makes numbers of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from draws import assert_refused

from rightloss import metrics

ILL = [False, True, True, False, True, False]
WORDS = ["ill" if each else "healthy" for each in ILL]
TABLE = np.log([[0.8, 0.2], [0.3, 0.7], [0.6, 0.4], [0.1, 0.9], [0.4, 0.6], [0.7, 0.3]])
THREE = np.log([[0.8, 0.1, 0.1]] * 6)
METRICS: dict[str, Callable[[Any], Any]] = {
    "evaluate": lambda y: metrics.evaluate(TABLE, y, 0.1, intervals=None).to_dict(),
    "roc_curve": lambda y: vars(metrics.roc_curve(TABLE, y)),
    "decision_curve": lambda y: vars(metrics.decision_curve(TABLE, y, 0.1)),
    "conformal sets": lambda y: metrics.ConformalSets.fit(TABLE, y, 0.1, level=0.5).predict(TABLE),
}
BOOLS: dict[str, Any] = {
    "a series": pd.Series(ILL),
    "a series of pandas' boolean": pd.Series(ILL, dtype="boolean"),
    "a series of objects": pd.Series(ILL, dtype=object),
    "a categorical series": pd.Series(ILL, dtype="category"),
    "a series with another index": pd.Series(ILL, index=list("fedcba")),
    "an index": pd.Index(ILL),
    "an array": np.array(ILL),
    "a list": ILL,
}
# Labels, and the words of the error; those in backticks are code that makes class numbers of `y`.
WORDED: dict[str, tuple[Any, str]] = {
    "str": (pd.Series(WORDS), "Series"),
    "string": (pd.Series(WORDS, dtype="string"), "Series of dtype string"),
    "object": (pd.Series(WORDS, dtype=object), "Series of dtype object"),
    "category": (pd.Series(WORDS, dtype="category"), "Series of dtype category"),
    "a Categorical": (pd.Categorical(WORDS), "Categorical of dtype category"),
    "an Index": (pd.Index(WORDS), "Index"),
    "an array of words": (np.array(WORDS), "ndarray of dtype <U7"),
    "an array of objects": (np.array(WORDS, dtype=object), "ndarray of dtype object"),
    "digits": (pd.Series(["1" if each else "0" for each in ILL]), "number the classes from 0"),
    "dates": (pd.Series(pd.to_datetime(["2021" if each else "2020" for each in ILL])), "datetime64"),
    "floats": (pd.Series(ILL).astype(float), "float64"),
    "an array of floats": (np.array(ILL, dtype=np.float32), "float32"),
}
MISSING: dict[str, Any] = {
    "str": pd.Series([*WORDS[:5], None]),
    "string": pd.Series([*WORDS[:5], pd.NA], dtype="string"),
    "category": pd.Series([*WORDS[:5], None], dtype="category"),
    "boolean": pd.Series([*ILL[:5], pd.NA], dtype="boolean"),
    "Int64": pd.Series([0, 1, 1, 0, 1, None], dtype="Int64"),
    "float": pd.Series([0.0, 1.0, 1.0, 0.0, 1.0, None]),
}


@pytest.mark.long
@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("kind", BOOLS)
def test_bools_are_classes_0_and_1(kind: str, name: str) -> None:
    np.testing.assert_equal(METRICS[name](BOOLS[kind]), METRICS[name](np.array(ILL, dtype=np.int64)))


@pytest.mark.parametrize("kind", WORDED)
def test_what_an_error_says_to_call_makes_labels_that_are_taken(kind: str) -> None:
    labels, words = WORDED[kind]
    with pytest.raises(ValueError, match=words) as caught:
        metrics.evaluate(TABLE, labels, 0.1)
    assert_refused(lambda: metrics.evaluate(TABLE, labels, 0.1), words)
    calls = [each for each in re.findall(r"`([^`]*)`", str(caught.value)) if each.endswith((")", "]", ".codes"))]
    assert calls
    for call in calls:
        numbers = eval(call, {"pd": pd, "np": np, "y": labels, "target": labels})
        np.testing.assert_equal(METRICS["evaluate"](numbers), METRICS["evaluate"](np.array(ILL, dtype=np.int64)))


@pytest.mark.parametrize("kind", MISSING)
def test_rows_without_a_label_are_to_be_dropped(kind: str) -> None:
    assert_refused(lambda: metrics.evaluate(TABLE, MISSING[kind], 0.1), r"drop the rows without a label.*`y\.notna\(\)`")


def test_bools_of_three_classes_are_refused() -> None:
    assert_refused(lambda: metrics.evaluate(THREE, pd.Series(ILL), [0.2, 0.3, 0.5]), r"in 0\.\.2")


def test_tensors_are_labels_too() -> None:
    torch = pytest.importorskip("torch")
    expected = METRICS["evaluate"](np.array(ILL, dtype=np.int64))
    for labels in (torch.tensor(ILL), torch.tensor(ILL).long()):
        np.testing.assert_equal(METRICS["evaluate"](labels), expected)
    assert_refused(lambda: metrics.evaluate(TABLE, torch.tensor(ILL).float(), 0.1), r"call `target\.long\(\)`")


def test_a_frame_of_one_column_is_told_how_to_be_flat() -> None:
    frame = pd.DataFrame({"label": np.array(ILL, dtype=np.int64)})
    assert_refused(lambda: metrics.evaluate(TABLE, frame, 0.1), r"squeeze\(1\)")
    np.testing.assert_equal(METRICS["evaluate"](frame.squeeze(axis=1)), METRICS["evaluate"](np.array(ILL, dtype=np.int64)))
