"""What a table is good for: kinds of columns, classes, and a finding for each thing that may go wrong."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score
from tables import people

from rightloss.tabular import Finding, TableReport, inspect_table
from rightloss.tabular.columns import as_days, as_numbers, date_format, kind_of, labels_of
from rightloss.tabular.inspect import halves_of, single_column_auc

N = 100
RNG = np.random.default_rng(0)
KINDS: dict[str, tuple[str, Any]] = {
    "floats": ("number", RNG.normal(size=N)),
    "whole numbers": ("number", RNG.integers(0, 90, N)),
    "numbers as text": ("number", [*map(str, RNG.normal(size=N - 3)), "?", "unknown", ""]),
    "distinct whole numbers with gaps": ("number", RNG.choice(10_000, N, replace=False)),
    "row numbers": ("identifier", np.arange(N) + 5000),
    "codes": ("identifier", [f"P{i:05}" for i in range(N)]),
    "patient_id": ("identifier", RNG.choice(10_000, N, replace=False)),
    "words": ("category", RNG.choice(["a", "b", "c"], N)),
    "numbers and words": ("category", RNG.choice(["1", "2", "many"], N)),
    "one word or nothing": ("category", ["x", None] * (N // 2)),
    "one word": ("constant", ["x"] * N),
    "nothing": ("constant", [None] * N),
    "bools": ("boolean", RNG.random(N) < 0.5),
    "bools, some missing": ("boolean", [True, False, None, True] * (N // 4)),
    "dates": ("date", pd.date_range("2020-01-01", periods=N)),
    "dates as text": ("date", pd.date_range("2020-01-01", periods=N).strftime("%d.%m.%Y")),
    "sentences": ("text", [f"a note of {i} words" for i in range(N)]),
}


@pytest.mark.parametrize("name", KINDS)
def test_the_kind_of_a_column_is_recognised(name: str) -> None:
    kind, values = KINDS[name]
    assert kind_of(pd.Series(values, name=name)) == kind


@pytest.mark.parametrize("written", ["%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d"])
def test_dates_are_days_since_1970_however_they_are_written(written: str) -> None:
    dates = pd.date_range("2019-11-20", periods=300)
    text = pd.Series(dates.strftime(written))
    found = date_format(text)
    assert found is not None
    np.testing.assert_allclose(as_days(text, found), (dates - pd.Timestamp("1970-01-01")).days)


def test_numbers_are_read_from_text_and_the_rest_is_missing() -> None:
    numbers, cells = as_numbers(pd.Series(["1", "2.5", "x", None, "inf"]))
    np.testing.assert_array_equal(numbers, [1, 2.5, np.nan, np.nan, np.nan])
    assert "x" in cells


def found(report: TableReport, column: str | None, level: str = "warning") -> str:
    return " ".join(finding.message for finding in report.findings if (finding.column, finding.level) == (column, level))


def test_a_clean_table_has_no_findings() -> None:
    report = inspect_table(people(), target="cancer", population=0.01)
    assert report.findings == []
    assert [(each.label, each.rows, each.share) for each in report.classes or []] == [("no", 200, 0.5), ("yes", 200, 0.5)]
    assert [column.role for column in report.columns] == ["feature", "feature", "feature", "target"]


COLUMNS: dict[str, tuple[Any, str]] = {
    "text among numbers": ([*RNG.normal(size=397), "?", "?", "n.a."], "3 of 400 cells are text"),
    "identifier": (np.arange(400), "identifier"),
    "text": ([f"a note of {i} words" for i in range(400)], "distinct texts"),
    "formula": (["=1+2", "x"] * 200, "formula"),
    "infinite": (np.where(np.arange(400) == 5, np.inf, RNG.normal(size=400)), "infinite"),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_a_warning_names_the_odd_column(case: str) -> None:
    values, words = COLUMNS[case]
    assert words in found(inspect_table(people().assign(odd=values), target="cancer"), "odd")


def test_columns_that_say_nothing_are_left_out() -> None:
    frame = people().assign(constant=1, empty=None, nr=np.arange(400), copy=lambda each: each["x"])
    report = inspect_table(frame, target="cancer", leave_out=["noise"])
    left_out = {column.name for column in report.columns if column.role == "left out"}
    assert left_out == {"constant", "empty", "nr", "copy", "noise"}
    assert "'x'" in found(report, "copy")


@pytest.mark.parametrize("prevalence", [0.5, 0.05])
@pytest.mark.parametrize("leak", ["category", "number", "middle", "missing"])
def test_a_column_that_leaks_the_target_is_named_and_no_other_is(prevalence: float, leak: str) -> None:
    frame = people(1000, prevalence)
    sick, noise = (frame["cancer"] == "yes").to_numpy(), np.random.default_rng(1).random(1000)
    frame["leak"] = {
        "category": np.where(sick, "treated", "none"),
        "number": np.where(sick, 5 + noise, noise),
        "middle": np.where(sick, noise, np.where(noise < 0.5, noise - 1, noise + 1)),  # neither rises nor falls
        "missing": np.where(sick, noise, np.nan),
    }[leak]
    warned = [finding.column for finding in inspect_table(frame, target="cancer").findings if "AUC" in finding.message]
    assert warned == ["leak"]


def test_the_area_of_one_column_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    codes = np.tile([0, 1], 3000)
    levels = rng.integers(0, 3, 6000) + codes
    halves = halves_of(codes)
    # rates rise with the level, so that the order of the scores is that of the levels
    expected = np.mean([roc_auc_score(codes[halves == half], levels[halves == half]) for half in (0, 1)])
    assert single_column_auc(levels, codes) == pytest.approx(expected, abs=1e-12)


def test_repeated_rows_are_counted() -> None:
    frame = pd.concat([people(), people().head(7)], ignore_index=True)
    assert "7 of 407 rows" in found(inspect_table(frame, target="cancer"), None)


def test_rows_without_a_label_are_counted() -> None:
    frame = people()
    frame.loc[:4, "cancer"] = None
    report = inspect_table(frame, target="cancer")
    assert "5 of 400 rows" in found(report, "cancer")
    assert sum(each.rows for each in report.classes or []) == 395


ERRORS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "target missing": ({}, {"target": "nope"}, "'nope'"),
    "group missing": ({}, {"target": "cancer", "group": "nope"}, "'nope'"),
    "one class": ({"cancer": "no"}, {"target": "cancer"}, "two classes"),
    "no labels": ({"cancer": None}, {"target": "cancer"}, "two classes"),
    "one row of a class": ({"cancer": ["yes"] + ["no"] * 399}, {"target": "cancer"}, "'yes' has 1"),
    "numbers as target": ({}, {"target": "x"}, "400 distinct"),
    "positive unknown": ({}, {"target": "cancer", "positive": "maybe"}, "'maybe'"),
    "population of another class": ({}, {"target": "cancer", "population": {"yes": 0.1, "maybe": 0.9}}, "'maybe'"),
    "population without a class": ({}, {"target": "cancer", "population": {"yes": 1.0}}, "name the classes"),
    "population above 1": ({}, {"target": "cancer", "population": 5.0}, "percentage"),
    "one group": ({"g": 1}, {"target": "cancer", "group": "g"}, "groups"),
    "target as group": ({}, {"target": "cancer", "group": "cancer"}, "differ"),
    "left out unknown": ({}, {"target": "cancer", "leave_out": ["nope"]}, "'nope'"),
    "nothing left": ({}, {"target": "cancer", "leave_out": ["x", "noise", "sex"]}, "learn from"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_an_error_says_what_was_expected_and_what_came(case: str) -> None:
    columns, options, words = ERRORS[case]
    messages = [finding.message for finding in inspect_table(people().assign(**columns), **options).errors]
    assert any(message.startswith("Expected ") and words in message for message in messages)


def test_one_row_is_an_error() -> None:
    assert "two rows" in inspect_table(people().head(1), target="cancer").errors[0].message


def test_errors_come_before_warnings_and_these_before_notes() -> None:
    report = inspect_table(people().assign(cancer="no", nr=np.arange(400), c=1), target="cancer")
    assert [finding.level for finding in report.findings] == ["error", "warning", "note"]


@pytest.mark.parametrize(
    ("labels", "positive", "classes", "guessed"),
    [
        (["no", "yes"], None, ["no", "yes"], False),
        (["case", "control"], None, ["control", "case"], False),
        ([1.0, 0.0, np.nan], None, [0, 1], False),
        ([True, False], None, [False, True], False),
        (["a", "b"], None, ["a", "b"], True),
        (["a", "b"], "a", ["b", "a"], False),
        ([0, 1], "0", [1, 0], False),
        (["c", "a", "b"], None, ["a", "b", "c"], False),
        ([1, 2], None, [2, 1], False),
    ],
)
def test_the_positive_class_is_the_second(labels: list[Any], positive: Any, classes: list[Any], guessed: bool) -> None:
    found = labels_of(pd.Series(labels), positive)
    assert (found.classes, found.guessed) == (classes, guessed)
    known = [label for label in labels if label == label]
    assert [found.classes[code] for code in found.codes if code >= 0] == known
    assert (found.codes < 0).sum() == len(labels) - len(known)


def test_likely_targets_are_listed_by_name_first() -> None:
    assert inspect_table(people().assign(last=[0, 1] * 200)).likely_targets == ["cancer", "last", "sex"]


def test_groups_are_counted_and_rows_without_one_named() -> None:
    frame = people().assign(site=[None, *(np.arange(399) % 40)])
    report = inspect_table(frame, target="cancer", group="site")
    assert report.groups == 41
    assert "1 rows have no group" in found(report, "site")
    assert report.column("site").role == "group"


def test_a_report_becomes_json() -> None:
    report = inspect_table(people().assign(nr=np.arange(400)), target="cancer")
    facts = json.loads(json.dumps(report.to_dict()))
    assert facts["classes"][1] == {"label": "yes", "rows": 200, "share": 0.5}
    assert facts["findings"][0]["column"] == "nr"


def test_findings_of_reading_are_kept() -> None:
    frame = people()
    frame.attrs["findings"] = [Finding("note", None, "read with care")]
    assert inspect_table(frame, target="cancer").findings == frame.attrs["findings"]
