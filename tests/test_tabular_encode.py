"""Columns as matrices: numbers, levels and missing cells, at training and later."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from rightloss.tabular import column_specs
from rightloss.tabular.columns import Kind
from rightloss.tabular.pipelines import boosting_matrix, check_columns, linear_matrix

KINDS: dict[str, Kind] = {"age": "number", "sex": "category", "smoker": "boolean", "seen": "date"}


def table(rows: int = 300) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": rng.normal(60, 10, rows),
            "sex": rng.choice(["f", "m"], rows),
            "smoker": rng.random(rows) < 0.3,
            "seen": pd.date_range("2020-01-01", periods=rows).strftime("%Y-%m-%d"),
        }
    )
    frame.loc[:9, "age"] = np.nan
    frame.loc[10:14, "sex"] = None
    frame.loc[15, "sex"] = "x"
    return frame


def test_linear_columns_are_standardised_and_complete() -> None:
    frame = table()
    specs = column_specs(frame, KINDS)
    matrix = linear_matrix(frame, specs)
    assert matrix.shape == (300, sum(spec.linear_width for spec in specs)) == (300, 2 + 4 + 1 + 1)
    known = matrix[10:, 0]
    np.testing.assert_allclose([known.mean(), known.std()], [0, 1], atol=1e-5)
    median = (frame["age"].median() - frame["age"].mean()) / frame["age"].std(ddof=0)
    np.testing.assert_allclose(matrix[:10, 0], median, rtol=1e-5)
    np.testing.assert_array_equal(matrix[:, 1], frame["age"].isna())
    assert np.isfinite(matrix).all()


def test_each_known_level_has_a_column_and_the_others_share_one() -> None:
    frame = table()
    specs = column_specs(frame, {"sex": "category"})
    matrix = linear_matrix(frame, specs)
    levels = specs[0].categories
    assert set(levels) == {"f", "m"}
    expected = np.stack([(frame["sex"] == levels[0]), (frame["sex"] == levels[1]), frame["sex"] == "x", frame["sex"].isna()], 1)
    np.testing.assert_array_equal(matrix, expected)
    codes = boosting_matrix(frame, specs)[:, 0]
    assert np.isnan(codes[10:15]).all()
    np.testing.assert_array_equal(codes[15:], expected[15:].argmax(1))


def test_boosting_keeps_missing_cells_missing() -> None:
    frame = table()
    matrix = boosting_matrix(frame, column_specs(frame, KINDS))
    np.testing.assert_array_equal(np.isnan(matrix[:, 0]), frame["age"].isna())
    assert matrix.dtype == np.float32
    assert np.all(np.diff(matrix[:, 3]) > 0)  # dates in their order


def test_columns_are_read_by_name_whatever_their_order_or_dtype() -> None:
    frame = table()
    specs = column_specs(frame, KINDS)
    other = frame[["seen", "smoker", "sex", "age"]].astype({"age": object, "smoker": int})
    other["age"] = other["age"].map(str).replace("nan", "")
    np.testing.assert_array_equal(linear_matrix(other, specs), linear_matrix(frame, specs))


def test_at_most_a_hundred_levels_are_kept_the_most_frequent() -> None:
    codes = np.repeat(np.arange(150), np.arange(150) + 10)
    spec = column_specs(pd.DataFrame({"c": codes.astype(str)}), {"c": "category"})[0]
    assert set(spec.categories) == {str(code) for code in range(50, 150)}
    assert set(spec.pooled) == {str(code) for code in range(50)}


def test_a_numeric_level_is_the_same_with_and_without_a_decimal_point() -> None:
    spec = column_specs(pd.DataFrame({"c": ["1", "2"] * 20}), {"c": "category"})
    np.testing.assert_array_equal(
        linear_matrix(pd.DataFrame({"c": [1.0, 2.0, np.nan]}), spec), linear_matrix(pd.DataFrame({"c": ["1", "2", None]}), spec)
    )


def test_cells_unlike_those_of_training_are_counted_by_column() -> None:
    frame = table()
    specs = column_specs(frame, KINDS)
    assert check_columns(frame, specs) == []  # the rare level x was there at training
    odd = frame.head(5).assign(age=["1", "old", "older", None, "3"], sex=["f", "q", "q", "q", None], seen="today", extra=1)
    found = {finding.column: finding for finding in check_columns(odd, specs, ["cancer"])}
    assert "2 of 5" in found["age"].message
    assert "3 of 5" in found["sex"].message
    assert "5 of 5" in found["seen"].message
    assert (found[None].level, "extra" in found[None].message) == ("note", True)


def test_a_missing_or_doubled_column_is_refused_by_name() -> None:
    frame = table()
    specs = column_specs(frame, KINDS)
    with pytest.raises(ValueError, match=r"\['age'\] are missing"):
        check_columns(frame.drop(columns="age"), specs)
    with pytest.raises(ValueError, match=r"'age'.*more than once"):
        check_columns(pd.concat([frame, frame["age"]], axis=1), specs)


def test_huge_numbers_stay_finite() -> None:
    frame = pd.DataFrame({"age": [1e300, -1e300, 1.0, 2.0]})
    specs = column_specs(pd.DataFrame({"age": [1.0, 2.0, 3.0]}), {"age": "number"})
    assert np.isfinite(linear_matrix(frame, specs)).all()
    assert np.isfinite(boosting_matrix(frame, specs)).all()


def test_numbers_are_standardised_alike_in_any_unit() -> None:
    frame = pd.DataFrame({"x": [-180.0, 3.0, 7.5, np.nan, 250.0, 3.0]})
    expected = linear_matrix(frame, column_specs(frame, {"x": "number"}))
    for unit in (2.0**-1000, 2.0**500, 2.0**1015):  # the last gives numbers near the largest
        scaled = frame * unit
        specs = column_specs(scaled, {"x": "number"})
        assert np.isfinite([specs[0].mean, specs[0].scale, specs[0].fill]).all()
        np.testing.assert_allclose(linear_matrix(scaled, specs), expected, rtol=1e-6)
        np.testing.assert_allclose(
            boosting_matrix(scaled, specs)[:, 0][[0, 1, 2, 4, 5]], expected[[0, 1, 2, 4, 5], 0], rtol=1e-6
        )
