"""Arrays: whatever holds numbers is taken as it is, in any layout; what does not is named; tensors come back as tensors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
from draws import assert_refused, stream
from scipy import special

from rightloss.arrays import (
    array_of,
    array_or_tensor,
    as_given,
    checked_choice,
    checked_int,
    checked_level,
    checked_number,
    clusters_of,
    fields_as_given,
    is_missing,
    log_prob_table,
    logsumexp,
    map_of,
    multiply_classes,
    random_generator,
    rows_of,
    target_rows,
)
from rightloss.predictive import retarget

INF, NAN = float("inf"), float("nan")
TABLE = np.log([[0.1, 0.2, 0.7], [0.5, 0.25, 0.25]])
RECORDS = np.zeros(2, dtype=[("label", np.int8), ("table", np.float64, (3,))])  # fields that are not aligned
RECORDS["table"] = TABLE
READ_ONLY = TABLE.copy()
READ_ONLY.flags.writeable = False

# The same numbers in other layouts, and whether NumPy and torch can share their memory.
LAYOUTS: dict[str, tuple[Any, bool, bool]] = {
    "transposed": (TABLE.T.copy().T, True, True),
    "every second column": (np.repeat(TABLE, 2, axis=1)[:, ::2], True, True),
    "both reversed": (TABLE[::-1, ::-1].copy()[::-1, ::-1], True, False),
    "of the other byte order": (TABLE.astype(TABLE.dtype.newbyteorder()), False, False),
    "wider than float64": (TABLE.astype(np.longdouble), False, False),
    "a field of records": (RECORDS["table"], True, False),
    "read-only": (READ_ONLY, True, False),
    "a list": (TABLE.tolist(), False, False),
    "objects that are numbers": (TABLE.astype(object), False, False),
    "a data frame": (pd.DataFrame(TABLE), False, False),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_numbers_are_taken_in_every_layout_and_memory_is_shared_where_it_can_be(layout: str) -> None:
    values, shared, _ = LAYOUTS[layout]
    found = array_of(values, "log_probs")
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, TABLE)
    np.testing.assert_array_equal(retarget(values, [1 / 3] * 3, [1 / 3] * 3), TABLE)
    if isinstance(values, np.ndarray):
        assert np.shares_memory(found, values) == shared


def test_the_dtype_stays() -> None:
    for dtype in (np.bool_, np.uint8, np.int64, np.float16, np.float32):
        values = np.array([0, 1], dtype=dtype)
        for given in (values[::-1], values.astype(values.dtype.newbyteorder())):
            found = array_of(given, "x")
            assert found.dtype == dtype
            assert found.tolist() == given.tolist()


Y = ["benign", "malignant"]
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "words": (lambda: array_of([["a"]], "log_probs"), "`log_probs` to be numbers, but got list of dtype <U1: give an array"),
    "labels in words": (lambda: array_of(np.array(Y), "target"), "`target` .*dtype <U9: number the classes from 0"),
    "labels that are missing": (lambda: array_of(pd.Series([*Y, None]), "labels"), "drop the rows without a label"),
    "dates": (lambda: array_of(np.array(["2020-01-01"], "datetime64[D]"), "x"), r"dtype datetime64\[D\]: give"),
    "complex numbers": (lambda: array_of(TABLE + 1j, "x"), "dtype complex128"),
    "nothing": (lambda: array_of(None, "x"), "NoneType of dtype object"),
    "ragged rows": (lambda: array_of([[1.0], [1.0, 2.0]], "x"), "but got list: give an array"),
    "whole numbers beyond all bounds": (lambda: array_of([10**400], "x"), "dtype object"),
    "class numbers": (lambda: log_prob_table(np.zeros((2, 2), int)), "are these class numbers"),
    "a table of other classes": (lambda: log_prob_table(TABLE, 2), "to have 2 columns.*but got 3"),
    "a choice": (lambda: checked_choice("mean", "kind", ["sum", None, 3]), "`kind` to be 'sum', None or 3, but got 'mean': "),
    "a choice that has no hash": (lambda: checked_choice([1], "kind", ["sum"]), r"`kind` to be 'sum', but got \[1\]: "),
    "an int too small": (lambda: checked_int(0, "x", 1), "an int of at least 1, but got 0"),
    "an int too large": (lambda: checked_int(9, "x", 1, 3, "wait"), r"an int in 1\.\.3, but got 9: wait"),
    "half an int": (lambda: checked_int(1.5, "x", 1), "an int of at least 1, but got 1.5"),
    "True for an int": (lambda: checked_int(True, "x", 0), "an int of at least 0, but got True"),
    "a number too small": (lambda: checked_number(0, "x", 1), "a finite number from 1 up, but got 0: write a number"),
    "a number too large": (lambda: checked_number(9, "x", 1, 3, "wait"), "a finite number from 1 to 3, but got 9: wait"),
    "a number of words": (lambda: checked_number("1", "x"), "`x` to be a finite number, but got '1'"),
    "True for a number": (lambda: checked_number(True, "x"), "`x` to be a finite number, but got True"),
    "no number": (lambda: checked_number(NAN, "x"), "`x` to be a finite number, but got nan"),
    "a level in per cent": (lambda: checked_level(95), "write 0.95 for 95 %"),
    "a level of True": (lambda: checked_level(True), "but got True"),
    "a seed in words": (lambda: random_generator("7"), "`generator` to be a numpy.random.Generator"),
    "a negative seed": (lambda: random_generator(-1), "or a seed, but got -1"),
    "too few groups": (lambda: clusters_of([1, 2], (3, 2)), r"one group id per row, \(3,\)"),
    "a group that is missing": (lambda: clusters_of(["a", None, "b"], (3, 2)), r"row\(s\) \[1\] have none"),
    "a group of NaN": (lambda: clusters_of([1.0, NAN, 2.0], (3, 2)), r"row\(s\) \[1\] have none"),
    "labels of another map": (lambda: target_rows(np.zeros((2, 5), int), (2, 3, 4)), r"of shape \(2, 4\) \(class numbers\)"),
    "labels with a channel": (lambda: target_rows(np.zeros((2, 1, 4), int), (2, 3, 4)), r"call `squeeze\(1\)`"),
    "float labels": (lambda: target_rows(np.zeros(2), (2, 3)), r"call `y\.astype\(int\)`"),
    "labels of NaN": (lambda: target_rows(np.array([0, NAN]), (2, 3)), r"`y\.notna\(\)`"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_with_what_came_and_what_to_do(what: str) -> None:
    assert_refused(*BAD[what])


@pytest.mark.parametrize("row", [0, 300_000])
def test_every_row_of_a_large_table_is_checked(row: int) -> None:
    table = np.full((300_001, 2), np.log(0.5))
    table[row] = 0.0
    assert_refused(lambda: log_prob_table(table), rf"but row {row} is \[0.0, 0.0\]: are these logits")
    table[row] = [0.25, 0.75]
    assert_refused(lambda: log_prob_table(table), f"but row {row} .*look like probabilities")


def test_logsumexp_is_that_of_scipy() -> None:
    table = np.where(stream().random((3, 4, 5)) < 0.3, -INF, 800 * stream(1).normal(size=(3, 4, 5)))
    table[0] = -INF
    for each, axis in ((table, 0), (table, 1), (table, 2), (table[0], 1), (table[1], 1)):
        with np.errstate(divide="ignore"):
            np.testing.assert_allclose(logsumexp(each, axis), special.logsumexp(each, axis, keepdims=True), rtol=1e-14)
        assert logsumexp(each.astype(np.float32), axis).dtype == np.float32


def test_maps_become_rows_and_maps_again() -> None:
    maps = stream().normal(size=(2, 3, 4, 5))
    rows = rows_of(maps)
    assert rows[1 * 20 + 2 * 5 + 3].tolist() == maps[1, :, 2, 3].tolist()
    assert np.array_equal(map_of(rows, maps.shape), maps)
    assert np.array_equal(map_of(rows[:, 0], maps.shape), maps[:, 0])
    assert rows_of(TABLE) is TABLE
    labels = stream().integers(3, size=(2, 4, 5))
    assert np.array_equal(target_rows(labels, maps.shape), labels.ravel())
    assert np.array_equal(target_rows(maps, maps.shape), rows)
    mask = labels > 1
    assert np.array_equal(target_rows(mask, (2, 2, 4, 5)), mask.ravel().astype(int))
    assert_refused(lambda: target_rows(mask, maps.shape), r"in 0\.\.2")


@pytest.mark.parametrize("ndim", [2, 4])
def test_factors_multiply_probabilities_and_each_row_keeps_its_sum(ndim: int) -> None:
    shape = (6, 3, 2, 2)[:ndim]
    table = stream(2).normal(size=shape)
    for factors in (stream(3).normal(size=3), stream(3).normal(size=(6, 3))):
        found = np.exp(rows_of(multiply_classes(table, factors)))
        cells = np.broadcast_to(factors.reshape(-1, 3, *[1] * (ndim - 2)), shape)
        probs = np.exp(rows_of(table) + rows_of(cells))
        expected = probs / probs.sum(1, keepdims=True) * np.exp(rows_of(table)).sum(1, keepdims=True)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert np.array_equal(multiply_classes(table, np.zeros(3)), table)


def test_groups_are_numbered_and_a_map_is_a_group() -> None:
    assert clusters_of(None, (3, 2)) is None
    for groups in (["b", "a", "b"], pd.Series(["b", "a", "b"]), [7, 3, 7], np.array([2.5, 0.5, 2.5])):
        first, second, third = clusters_of(groups, (3, 2))  # type: ignore[misc]
        assert first == third != second
    assert clusters_of(None, (2, 3, 2)).tolist() == [0, 0, 1, 1]  # type: ignore[union-attr]
    assert len(set(clusters_of(["a", "a"], (2, 3, 2)).tolist())) == 1  # type: ignore[union-attr]


def test_missing_values_are_found() -> None:
    assert all(map(is_missing, (None, NAN, np.float32("nan"), pd.NA, pd.NaT)))
    assert not any(map(is_missing, (0, "", False, "nan", np.int64(3))))


def test_a_seed_is_a_generator_and_none_a_fixed_one() -> None:
    numbers = [random_generator(each).random() for each in (None, 0, np.int64(0), np.random.default_rng(0))]
    assert len(set(numbers)) == 1
    own = np.random.default_rng(3)
    assert random_generator(own) is own


@dataclass(frozen=True)
class Both:
    """A result with an array and a number."""

    mean: Any
    count: int


class TestTensors:
    def test_every_layout_becomes_a_tensor_that_shares_memory_where_it_can(self) -> None:
        pytest.importorskip("torch")
        from rightloss.tensors import tensor_of

        for values, _, shared in LAYOUTS.values():
            found = tensor_of(values, "log_probs").numpy()
            np.testing.assert_array_equal(found, TABLE)
            if isinstance(values, np.ndarray):
                assert np.shares_memory(found, values) == shared

    def test_results_come_in_the_kind_given(self) -> None:
        torch = pytest.importorskip("torch")
        given = torch.from_numpy(TABLE).requires_grad_()
        assert array_or_tensor(given, "x") is given
        assert np.shares_memory(array_of(given, "x"), TABLE)
        assert array_of(torch.ones(2, dtype=torch.bfloat16), "x").dtype == np.float32
        assert torch.equal(as_given(TABLE, given), given)
        assert as_given(TABLE, TABLE) is TABLE
        assert as_given(given, given) is given
        both = Both(TABLE, 2)
        assert isinstance(fields_as_given(both, given).mean, torch.Tensor)
        assert fields_as_given(both, given).count == 2
        assert fields_as_given(both, TABLE) is both
        assert isinstance(log_prob_table(given), np.ndarray)

    def test_groups_and_generators_of_torch_are_taken(self) -> None:
        torch = pytest.importorskip("torch")
        assert clusters_of(torch.tensor([5, 2, 5]), (3, 2)).tolist() == [1, 0, 1]  # type: ignore[union-attr]
        first, again = (random_generator(torch.Generator().manual_seed(3)).random() for _ in range(2))
        assert first == again


def test_arrays_do_not_import_torch() -> None:
    code = "import sys, rightloss.predictive, rightloss.solve, rightloss.serialization; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
