"""Tables from files: every kind that users have, and clear words on those that cannot be read."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rightloss.tabular import read_table
from rightloss.tabular.columns import as_numbers

TEXT = "age,cancer\n61.5,yes\n,no\n"


def write(folder: Path, content: str | bytes, name: str = "people.csv") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.txt"])
def test_the_delimiter_is_found(tmp_path: Path, delimiter: str, name: str) -> None:
    frame = read_table(write(tmp_path, TEXT.replace(",", delimiter), name))
    assert frame["age"].iloc[0] == 61.5
    assert np.isnan(frame["age"].iloc[1])
    assert frame["cancer"].tolist() == ["yes", "no"]
    assert frame.attrs["findings"] == []


def test_gzip_and_parquet_hold_the_same_table_as_csv(tmp_path: Path) -> None:
    plain = read_table(write(tmp_path, TEXT))
    packed = read_table(write(tmp_path, gzip.compress(TEXT.encode()), "people.csv.gz"))
    plain.attrs = {}
    plain.to_parquet(tmp_path / "people.parquet")
    pd.testing.assert_frame_equal(plain, packed)
    pd.testing.assert_frame_equal(plain, read_table(tmp_path / "people.parquet"))


def test_decimal_commas_are_read_and_noted(tmp_path: Path) -> None:
    frame = read_table(write(tmp_path, "age;cancer\n61,5;yes\n48;no\n"))
    assert frame["age"].tolist() == [61.5, 48.0]
    assert [finding.level for finding in frame.attrs["findings"]] == ["note"]


COMMAS: dict[str, tuple[str, list[float], str]] = {
    "decimal commas below many lines without": ("x;y\n" + "7;a\n" * 60 + "3,5;b\n", [*[7.0] * 60, 3.5], "note"),
    "points for thousands": ("x;y\n1.234,5;a\n1.234;b\n", [1234.5, 1234.0], "note"),
    "commas for millions": ("x\ty\n1,234,567\ta\n82,402\tb\n999\tc\n", [1234567.0, 82402.0, 999.0], "note"),
    "commas for thousands, and points": ("x|y\n1,234.5|a\n999|b\n", [1234.5, 999.0], "note"),
    "three digits, and a leading 0": ("x\ty\n82,402\ta\n0,402\tb\n", [82.402, 0.402], "note"),
    "decimal commas elsewhere": ("x\ty\n82,402\t3,5\n999\t4\n", [82.402, 999.0], "warning"),
    "decimal points elsewhere": ("x\ty\n82,402\t3.5\n999\t4\n", [82402.0, 999.0], "warning"),
    "semicolons": ("x;y\n82,402;a\n999;b\n", [82.402, 999.0], "warning"),
    "other text in the column": ("x;y\n" + "3,5;a\n" * 19 + "?;b\n", [*[3.5] * 19, np.nan], "note"),
    "a name for each of many columns": (
        "x;y;" + ";".join(f"column {i}" for i in range(9000)) + "\n3,5;a" + ";" * 9000 + "\n",
        [3.5],
        "note",
    ),
}


@pytest.mark.parametrize("name", COMMAS)
def test_commas_in_numbers_are_read_by_the_whole_column_and_reported(name: str, tmp_path: Path) -> None:
    content, expected, level = COMMAS[name]
    frame = read_table(write(tmp_path, content))
    np.testing.assert_array_equal(as_numbers(frame["x"])[0], expected)
    assert level in {finding.level for finding in frame.attrs["findings"] if finding.column in ("x", None)}


@pytest.mark.parametrize(
    ("content", "cell"),
    [
        ("x\ty\n82,402\ta\n999\tb\n", "'82,402'"),
        ("x|y\n82,402|a\n1234|b\n", "'82,402'"),
        ("x\ty\tz\n82,402\t3,5\t3.5\n", "'82,402'"),
        ("x;y;z\n1.234;3,5;a\n999;4,5;b\n", r"'1\.234'"),
    ],
)
def test_a_number_that_can_be_read_in_two_ways_is_refused(content: str, cell: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"column 'x' is not: {cell} may have .* write .* without separators"):
        read_table(write(tmp_path, content))


@pytest.mark.parametrize("cell", ["1,2,3", "12,34,567", "3,5 kg", "1.2,3.4", "a,b"])
def test_text_with_commas_stays_text(cell: str, tmp_path: Path) -> None:
    frame = read_table(write(tmp_path, f"x;y\n{cell};1\n{cell};2\n"))
    assert frame["x"].tolist() == [cell, cell]
    assert frame.attrs["findings"] == []


def test_two_columns_of_one_name_are_found_in_a_header_of_any_length(tmp_path: Path) -> None:
    names = [f"a long name of column {i}" for i in range(5000)]
    with pytest.raises(ValueError, match="'a long name of column 7'"):
        read_table(write(tmp_path, ",".join([*names, names[7]]) + "\n" + ",".join(["1"] * 5001) + "\n"))


def test_a_name_may_have_line_ends_quotes_and_separators_of_other_kinds(tmp_path: Path) -> None:
    frame = read_table(write(tmp_path, '"a\nb;""c""","d\u2028e",f\n1,2,3\n'))
    assert frame.columns.tolist() == ['a\nb;"c"', "d\u2028e", "f"]
    assert frame.to_numpy().tolist() == [[1, 2, 3]]


def test_a_text_column_is_read_as_it_stands(tmp_path: Path) -> None:
    frame = read_table(write(tmp_path, "x;y; z\n01;NA;1\n1,5;;2\nTRUE;x;NA\n"), text_columns=["x", "y", "none"])
    assert frame["x"].tolist() == ["01", "1,5", "TRUE"]
    assert frame["y"].tolist()[::2] == ["NA", "x"]
    assert frame["y"].isna().tolist() == [False, True, False]
    assert frame["z"].isna().tolist() == [False, False, True]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_unicode_is_read_without_a_finding(tmp_path: Path, encoding: str) -> None:
    frame = read_table(write(tmp_path, "größe,c\n1,é\n".encode(encoding)))
    assert (frame.columns[0], frame["c"].iloc[0], frame.attrs["findings"]) == ("größe", "é", [])


def test_latin_1_is_read_with_a_warning(tmp_path: Path) -> None:
    rows = "".join(f"{i},x\n" for i in range(30_000))  # the odd byte is far behind the part that is looked at first
    frame = read_table(write(tmp_path, ("a,c\n" + rows + "1,né\n").encode("latin-1")))
    assert frame["c"].iloc[-1] == "né"
    (finding,) = frame.attrs["findings"]
    assert finding.level == "warning"
    assert "cp1252" in finding.message


def test_none_is_a_category_and_na_is_missing(tmp_path: Path) -> None:
    frame = read_table(write(tmp_path, "a,b\n1,None\n2,NA\n"))
    assert frame["b"].iloc[0] == "None"
    assert pd.isna(frame["b"].iloc[1])


def test_names_lose_the_spaces_around_them(tmp_path: Path) -> None:
    assert list(read_table(write(tmp_path, "age , cancer\n1,2\n")).columns) == ["age", "cancer"]


def test_nested_columns_of_parquet_are_left_out_by_name(tmp_path: Path) -> None:
    pd.DataFrame({"a": [1, 2], "b": [[1], [2, 3]]}).to_parquet(tmp_path / "a.parquet")
    frame = read_table(tmp_path / "a.parquet")
    assert list(frame.columns) == ["a"]
    assert [finding.column for finding in frame.attrs["findings"]] == ["b"]


@pytest.mark.parametrize(
    ("content", "name", "words"),
    [
        ("", "a.csv", "empty"),
        ("\n\n", "a.csv", "empty"),
        ("age,cancer\n", "a.csv", "rows"),
        ("age,age\n1,2\n", "a.csv", "'age'"),
        ("age, age\n1,2\n", "a.csv", "'age'"),
        ("a,b\n1,2\n1,2,3\n", "a.csv", "line 3"),
        ("a,b\n1,2,3\n", "a.csv", "cells"),
        ("1,2\n3,4\n", "a.csv", "names of the columns"),
        ('a,b\n1,"x\n', "a.csv", "quotes"),
        (b"PK\x03\x04", "a.csv", "Excel"),
        (b"a,b\n\x00\x01,2\n", "a.csv", "binary"),
        (b"no gzip", "a.csv.gz", "gzip"),
        (gzip.compress(TEXT.encode() * 9000)[:-300], "a.csv.gz", "write it again|cannot be read"),
        (b"PAR1", "a.csv", "Parquet"),
        (b"not parquet", "a.parquet", "Parquet"),
    ],
)
def test_a_file_that_is_no_table_is_refused_with_a_remedy(tmp_path: Path, content: str | bytes, name: str, words: str) -> None:
    with pytest.raises(ValueError, match=rf"(?s)Expected .*({words}).*"):
        read_table(write(tmp_path, content, name))


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is none"):
        read_table(tmp_path / "missing.csv")
    with pytest.raises(ValueError, match="folder"):
        read_table(tmp_path)


def test_a_wrong_encoding_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "a\né\n".encode("latin-1"))
    for encoding in ("utf-8", "no such code", "rot13", "base64", "hex", "idna", "undefined", "utf\0", "ascii"):
        with pytest.raises(ValueError, match="encoding"):
            read_table(path, encoding=encoding)
    assert read_table(path, encoding="latin-1")["a"].iloc[0] == "é"
