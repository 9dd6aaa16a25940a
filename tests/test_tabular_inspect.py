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
from rightloss.tabular.inspect import single_column_auc

N = 100
RNG = np.random.default_rng(0)
KINDS: dict[str, tuple[str, Any]] = {
    "whole numbers": ("number", RNG.integers(0, 90, N)),
    "numbers as text": ("number", [*map(str, RNG.normal(size=N - 3)), "?", "unknown", ""]),
    "distinct whole numbers with gaps": ("number", RNG.choice(10_000, N, replace=False)),
    "row numbers": ("identifier", np.arange(N) + 5000),
    "codes": ("identifier", [f"P{i:05}" for i in range(N)]),
    "patient_id": ("identifier", RNG.choice(10_000, N, replace=False)),
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


def test_the_kind_of_a_column_is_recognised() -> None:
    found = {name: kind_of(pd.Series(values, name=name)) for name, (_, values) in KINDS.items()}
    assert found == {name: kind for name, (kind, _) in KINDS.items()}


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


def test_a_clean_table_has_no_findings_but_those_of_reading() -> None:
    frame = people()
    frame.attrs["findings"] = [Finding("note", None, "read with care")]
    report = inspect_table(frame, target="cancer", population=0.01)
    assert report.findings == frame.attrs["findings"]
    assert [(each.label, each.rows, each.share) for each in report.classes or []] == [("no", 200, 0.5), ("yes", 200, 0.5)]
    assert [column.role for column in report.columns] == ["feature", "feature", "feature", "target"]


def test_a_warning_names_the_odd_column_and_a_note_a_column_that_is_mostly_missing() -> None:
    odd = {
        "mixed": [*RNG.normal(size=597), "?", "?", "n.a."],
        "names": np.arange(600),
        "prose": [f"a note of {i} words" for i in range(600)],
        "formula": ["=1+2", "x"] * 300,
        "infinite": np.where(np.arange(600) == 5, np.inf, RNG.normal(size=600)),
        "days": [*pd.date_range("2020-01-01", periods=598).strftime("%Y-%m-%d"), "?", "today"],
        "levels": [f"level {i % 110}" for i in range(600)],
        "empty": np.where(np.arange(600) % 3 > 0, np.nan, RNG.normal(size=600)),
    }
    report = inspect_table(people(600).assign(**odd), target="cancer")
    words = {"mixed": "3 of 600 cells are text", "names": "identifier", "prose": "distinct texts", "formula": "formula"}
    words |= {"infinite": "infinite", "days": "2 of 600 cells are no dates"}
    assert all(text in found(report, name) for name, text in words.items()), report.findings
    assert "days since 1970" in found(report, "days", "note")
    assert "of 110 categories the 100 most frequent" in found(report, "levels", "note")
    assert "67% of its cells are missing" in found(report, "empty", "note")


def test_columns_that_say_nothing_are_left_out() -> None:
    frame = people().assign(constant=1, empty=None, nr=np.arange(400), copy=lambda each: each["x"])
    report = inspect_table(frame, target="cancer", leave_out=["noise"])
    left_out = {column.name for column in report.columns if column.role == "left out"}
    assert left_out == {"constant", "empty", "nr", "copy", "noise"}
    assert "'x'" in found(report, "copy")


@pytest.mark.parametrize(("leak", "prevalence"), [("category", 0.5), ("number", 0.05), ("middle", 0.05), ("missing", 0.5)])
def test_a_column_that_leaks_the_target_is_named_and_no_other_is(leak: str, prevalence: float) -> None:
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
    levels, halves = rng.integers(0, 3, 6000) + codes, np.arange(6000) // 2 % 2
    # rates rise with the level, so that the order of the scores is that of the levels
    expected = np.mean([roc_auc_score(codes[halves == half], levels[halves == half]) for half in (0, 1)])
    assert single_column_auc(levels, codes) == pytest.approx(expected, abs=1e-12)


def test_repeated_rows_and_rows_without_a_label_are_counted() -> None:
    frame = pd.concat([people(), people().head(7)], ignore_index=True)
    assert "7 of 407 rows" in found(inspect_table(frame, target="cancer"), None)
    frame.loc[:4, "cancer"] = None
    report = inspect_table(frame, target="cancer")
    assert "5 of 407 rows" in found(report, "cancer")
    assert sum(each.rows for each in report.classes or []) == 402
    few, enough = (found(inspect_table(people(200, rows / 200), target="cancer"), "cancer") for rows in (9, 10))
    assert "only 9 rows: expect wide intervals" in few
    assert enough == ""


ERRORS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "target missing": ({}, {"target": "nope"}, "'nope'"),
    "group missing": ({}, {"target": "cancer", "group": "nope"}, "'nope'"),
    "one class": ({"cancer": "no"}, {"target": "cancer"}, "two classes"),
    "no labels": ({"cancer": None}, {"target": "cancer"}, "two classes"),
    "no labels, but a positive class": ({"cancer": None}, {"target": "cancer", "positive": "yes"}, "every cell is empty"),
    "one row of a class": ({"cancer": ["yes"] + ["no"] * 399}, {"target": "cancer"}, "'yes' has 1"),
    "numbers as target": ({}, {"target": "x"}, "400 distinct"),
    "infinity as a class": ({"cancer": [np.inf, 3.0] * 200}, {"target": "cancer"}, "infinity"),
    "classes alike": ({"cancer": ["yes", "yes "] * 200}, {"target": "cancer"}, "differ in more than blanks"),
    "positive unknown": ({}, {"target": "cancer", "positive": "maybe"}, "'maybe'"),
    "positive of three": ({"cancer": [*"abc" * 133, "a"]}, {"target": "cancer", "positive": "a"}, "two classes for"),
    "population of another class": ({}, {"target": "cancer", "population": {"yes": 0.1, "maybe": 0.9}}, "'maybe'"),
    "population without a class": ({}, {"target": "cancer", "population": {"yes": 1.0}}, "name the classes"),
    "population above 1": ({}, {"target": "cancer", "population": 5.0}, "percentage"),
    "a number for three": ({"cancer": [*"abc" * 133, "a"]}, {"target": "cancer", "population": 0.1}, "name them all"),
    "a number for either": ({"cancer": ["a", "b"] * 200}, {"target": "cancer", "population": 0.1}, "positive='a' or"),
    "one group": ({"g": 1}, {"target": "cancer", "group": "g"}, "groups"),
    "target as group": ({}, {"target": "cancer", "group": "cancer"}, "differ"),
    "left out unknown": ({}, {"target": "cancer", "leave_out": ["nope"]}, "'nope'"),
    "target left out": ({}, {"target": "cancer", "leave_out": ["cancer"]}, "to be used"),
    "nothing left": ({}, {"target": "cancer", "leave_out": ["x", "noise", "sex"]}, "learn from"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_an_error_says_what_was_expected_and_what_came(case: str) -> None:
    columns, options, words = ERRORS[case]
    messages = [finding.message for finding in inspect_table(people().assign(**columns), **options).errors]
    assert any(message.startswith("Expected ") and words in message for message in messages), messages


def test_one_row_is_an_error_and_errors_come_before_warnings_and_these_before_notes() -> None:
    assert "two rows" in inspect_table(people().head(1), target="cancer").errors[0].message
    report = inspect_table(people().assign(cancer="no", nr=np.arange(400), c=1), target="cancer")
    assert [finding.level for finding in report.findings] == ["error", "warning", "note"]


@pytest.mark.parametrize(
    ("labels", "positive", "classes", "guessed"),
    [
        (["case", "control"], None, ["control", "case"], False),
        ([1.0, 0.0, np.nan], None, [0, 1], False),
        ([True, False], None, [False, True], False),
        (["a", "b"], None, ["a", "b"], True),
        (["a", "b"], "a", ["b", "a"], False),
        ([0, 1], "0", [1, 0], False),
        (["c", "a", "b"], None, ["a", "b", "c"], False),
        ([10, 2, 9], None, [2, 9, 10], False),
        (["b", 1, "a"], None, [1, "a", "b"], False),
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


def test_groups_are_counted_rows_without_one_named_and_the_report_becomes_json() -> None:
    frame = people().assign(site=[None, *(np.arange(399) % 40)], nr=np.arange(400))
    report = inspect_table(frame, target="cancer", group="site")
    assert report.groups == 41
    assert "1 rows have no group" in found(report, "site")
    assert report.column("site").role == "group"
    facts = json.loads(json.dumps(report.to_dict()))
    assert facts["classes"][1] == {"label": "yes", "rows": 200, "share": 0.5}
    assert facts["findings"][0]["column"] == "nr"
