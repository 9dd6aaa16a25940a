"""Tables from files: every kind that users have, and clear words on those that cannot be read."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rightloss.tabular import read_table

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
    for encoding in ("utf-8", "no such code"):
        with pytest.raises(ValueError, match="encoding"):
            read_table(path, encoding=encoding)
    assert read_table(path, encoding="latin-1")["a"].iloc[0] == "é"
