"""Tables: whatever holds numbers is taken as it is, in any layout; what does not is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from members import assert_refused
from rightloss.log_probs import as_given, log_prob_table, tensor_of

from rightloss import metrics
from rightloss.predictive import retarget

TABLE = np.log([[0.1, 0.2, 0.7], [0.5, 0.25, 0.25]])
RECORDS = np.zeros(2, dtype=[("label", np.int8), ("table", np.float64, (3,))])  # fields that are not aligned
RECORDS["table"] = TABLE
READ_ONLY = TABLE.copy()
READ_ONLY.flags.writeable = False

# The same numbers in other layouts, and whether torch can share their memory.
LAYOUTS: dict[str, tuple[Any, bool]] = {
    "as they are": (TABLE, True),
    "transposed": (TABLE.T.copy().T, True),
    "every second column": (np.repeat(TABLE, 2, axis=1)[:, ::2], True),
    "rows reversed": (TABLE[::-1].copy()[::-1], False),
    "columns reversed": (TABLE[:, ::-1].copy()[:, ::-1], False),
    "both reversed": (TABLE[::-1, ::-1].copy()[::-1, ::-1], False),
    "of the other byte order": (TABLE.astype(TABLE.dtype.newbyteorder()), False),
    "wider than float64": (TABLE.astype(np.longdouble), False),
    "a field of records": (RECORDS["table"], False),
    "read-only": (READ_ONLY, False),
    "a list": (TABLE.tolist(), False),
    "objects that are numbers": (TABLE.astype(object), False),
    "a data frame": (pd.DataFrame(TABLE), False),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_numbers_are_taken_in_every_layout(layout: str) -> None:
    values, _ = LAYOUTS[layout]
    found = tensor_of(values, "log_probs")
    assert found.dtype == torch.float64
    np.testing.assert_array_equal(found.numpy(), TABLE)
    np.testing.assert_array_equal(retarget(values, [1 / 3] * 3, [1 / 3] * 3), TABLE)


@pytest.mark.parametrize("layout", [name for name, (values, _) in LAYOUTS.items() if isinstance(values, np.ndarray)])
def test_memory_is_shared_where_it_can_be(layout: str) -> None:
    values, shared = LAYOUTS[layout]
    assert np.shares_memory(tensor_of(values, "log_probs").numpy(), values) == shared


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int16, np.int64, np.float16, np.float32])
def test_the_dtype_stays(dtype: Any) -> None:
    values = np.array([0, 1], dtype=dtype)
    for given in (values, values[::-1], values.astype(values.dtype.newbyteorder())):
        found = tensor_of(given, "x")
        assert found.numpy().dtype == dtype
        assert found.tolist() == given.tolist()


def test_a_tensor_is_not_copied_and_results_come_in_the_kind_given() -> None:
    given = torch.from_numpy(TABLE)
    assert tensor_of(given, "x") is given
    assert as_given(given, given) is given
    assert isinstance(as_given(given, TABLE), np.ndarray)
    assert log_prob_table(given, 3) is given


Y = ["benign", "malignant"]
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "words": (lambda: tensor_of([["a"]], "log_probs"), r"`log_probs` to be numbers, but got list of dtype <U1: give an array"),
    "labels in words": (lambda: tensor_of(np.array(Y), "target"), r"`target` .*dtype <U9: number the classes from 0"),
    "labels as objects": (lambda: tensor_of(np.array(Y, object), "labels"), "dtype object: number the classes from 0"),
    "labels as a series": (
        lambda: metrics.roc_curve(TABLE, pd.Series(Y), 1, [1 / 3] * 3),
        "Series of dtype .*: number the classes from 0",
    ),
    "dates": (lambda: tensor_of(np.array(["2020-01-01"], "datetime64[D]"), "x"), r"dtype datetime64\[D\]: give"),
    "complex numbers": (lambda: tensor_of(TABLE + 1j, "x"), "dtype complex128"),
    "nothing": (lambda: tensor_of(None, "x"), "NoneType of dtype object"),
    "ragged rows": (lambda: tensor_of([[1.0], [1.0, 2.0]], "x"), "but got list: give an array"),
    "whole numbers beyond all bounds": (lambda: tensor_of([10**400], "x"), "dtype object"),
    "class numbers": (lambda: log_prob_table(np.zeros((2, 2), int)), "are these class numbers"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_with_what_came_and_what_to_do(what: str) -> None:
    assert_refused(*BAD[what])


def test_a_table_of_another_number_of_classes_is_refused_and_of_the_same_is_not() -> None:
    assert_refused(lambda: log_prob_table(TABLE, 2), "to have 2 columns.*but got 3")
    assert log_prob_table(TABLE, 3).shape == (2, 3)
