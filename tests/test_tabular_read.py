"""Tables from files: every kind that users have, whole, by chunk and in parts, and clear words on those that cannot be read."""

from __future__ import annotations

import gzip
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from draws import assert_refused

from rightloss.tabular import open_table, read_table
from rightloss.tabular.columns import as_numbers

TEXT = "age,cancer\n61.5,yes\n,no\n"


def write(folder: Path, content: str | bytes, name: str = "people.csv") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(("delimiter", "name"), [(",", "a.csv"), (";", "a.txt"), ("\t", "a.tsv"), ("|", "a.csv")])
def test_the_delimiter_is_found(tmp_path: Path, delimiter: str, name: str) -> None:
    frame = read_table(write(tmp_path, TEXT.replace(",", delimiter), name))
    np.testing.assert_array_equal(frame["age"], [61.5, np.nan])
    assert frame["cancer"].tolist() == ["yes", "no"]
    assert frame.attrs["findings"] == []


def test_gzip_and_parquet_hold_the_same_table_as_csv(tmp_path: Path) -> None:
    plain = read_table(write(tmp_path, TEXT))
    packed = read_table(write(tmp_path, gzip.compress(TEXT.encode()), "people.csv.gz"))
    plain.attrs = {}
    plain.assign(nested=[[1], [2, 3]]).to_parquet(tmp_path / "people.parquet")
    read = read_table(tmp_path / "people.parquet")
    pd.testing.assert_frame_equal(plain, packed)
    pd.testing.assert_frame_equal(plain, read)
    assert [finding.column for finding in read.attrs["findings"]] == ["nested"]


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
    "a long first line": ("x;" + ";".join(f"{i:0150}" for i in range(500)) + "\n3,5" + ";" * 500 + "\n", [3.5], "note"),
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
        ("x\ty\tz\n82,402\t3,5\t3.5\n", "'82,402'"),
        ("x;y;z\n1.234;3,5;a\n999;4,5;b\n", r"'1\.234'"),
    ],
)
def test_a_number_that_can_be_read_in_two_ways_is_refused(content: str, cell: str, tmp_path: Path) -> None:
    words = f"column 'x' is not: {cell} may have .* write .* without separators"
    assert_refused(lambda: read_table(write(tmp_path, content)), words)


@pytest.mark.parametrize("cell", ["1,2,3", "12,34,567", "3,5 kg", "1.2,3.4"])
def test_text_with_commas_stays_text(cell: str, tmp_path: Path) -> None:
    frame = read_table(write(tmp_path, f"x;y\n{cell};1\n{cell};2\n"))
    assert frame["x"].tolist() == [cell, cell]
    assert frame.attrs["findings"] == []


def test_a_name_may_have_line_ends_quotes_and_separators_of_other_kinds_but_no_spaces_around_it(tmp_path: Path) -> None:
    frame = read_table(write(tmp_path, '"a\nb;""c""","d\u2028e", f \n1,2,3\n'))
    assert frame.columns.tolist() == ['a\nb;"c"', "d\u2028e", "f"]
    assert frame.to_numpy().tolist() == [[1, 2, 3]]


def test_a_text_column_is_read_as_it_stands_and_none_is_a_category(tmp_path: Path) -> None:
    path = write(tmp_path, "x;y; z\n01;NA;None\n1,5;;2\nTRUE;x;NA\n")
    frame = read_table(path, text_columns=["x", "y", "none"])
    assert frame["x"].tolist() == ["01", "1,5", "TRUE"]
    assert frame["y"].tolist()[::2] == ["NA", "x"]
    assert frame["y"].isna().tolist() == [False, True, False]
    assert frame["z"].fillna("-").tolist() == ["None", "2", "-"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_unicode_is_read_without_a_finding(tmp_path: Path, encoding: str) -> None:
    frame = read_table(write(tmp_path, "größe,c\n1,é\n".encode(encoding)))
    assert (frame.columns[0], frame["c"].iloc[0], frame.attrs["findings"]) == ("größe", "é", [])


def test_latin_1_is_read_with_a_warning(tmp_path: Path) -> None:
    rows = "".join(f"{i},x\n" for i in range(30_000))  # the odd byte is far behind the part that is looked at first
    frame = read_table(write(tmp_path, ("a,c\n" + rows + "1,né\n").encode("latin-1")))
    assert frame["c"].iloc[-1] == "né"
    (finding,) = frame.attrs["findings"]
    assert (finding.level, "cp1252" in finding.message) == ("warning", True)


NAMES = [f"a long name of column {i}" for i in range(5000)]


@pytest.mark.parametrize(
    ("content", "name", "words"),
    [
        ("", "a.csv", "empty"),
        ("\n\n", "a.csv", "empty"),
        ("age,cancer\n", "a.csv", "rows"),
        ("age, age\n1,2\n", "a.csv", "'age'"),
        (",".join([*NAMES, NAMES[7]]) + "\n" + ",".join(["1"] * 5001) + "\n", "a.csv", "'a long name of column 7'"),
        ("1,2\n3,4\n", "a.csv", "names of the columns"),
        ('a,b\n1,"x\n', "a.csv", "quotes"),
        (b"PK\x03\x04", "a.csv", "Excel"),
        (b"a,b\n\x00\x01,2\n", "a.csv", "binary"),
        (b"no gzip", "a.csv.gz", "gzip"),
        (gzip.compress(TEXT.encode() * 9000)[:-300], "a.csv.gz", "write it again|cannot be read"),
        (b"not parquet", "a.parquet", "Parquet"),
    ],
)
def test_a_file_that_is_no_table_is_refused_with_a_remedy(tmp_path: Path, content: str | bytes, name: str, words: str) -> None:
    assert_refused(lambda: read_table(write(tmp_path, content, name)), words)


def test_what_is_no_file_and_a_wrong_encoding_are_refused(tmp_path: Path) -> None:
    assert_refused(lambda: read_table(tmp_path / "missing.csv"), "there is none")
    path = write(tmp_path, "a\né\n".encode("latin-1"))
    for encoding in ("utf-8", "no such code", "rot13", "base64", "undefined", "utf\0"):
        assert_refused(partial(read_table, path, encoding=encoding), "encoding")
    assert read_table(path, encoding="latin-1")["a"].iloc[0] == "é"


# By chunk, and in parts.

# Columns whose type is only known at the end.
LATE = {
    "whole numbers to missing": [*"1234567", "", "9"],
    "whole numbers to words": [*"12345678", "many"],
    "whole numbers to fractions": [*"12345678", "0.1"],
    "missing to whole numbers": ["", *"12345678"],
    "truth values to missing": ["True", "False"] * 4 + [""],
    "truth values to numbers": ["True"] * 8 + ["1"],
    "numbers of 64 bits to missing": ["9007199254740993"] * 8 + [""],
    "numbers of 70 bits": [*"12345678", str(2**70)],
    "all missing": ["NA"] * 9,
    "words": [f"é{i}" for i in range(9)],
}


def text_of(columns: dict[str, list[str]], delimiter: str = ",") -> str:
    rows = [list(columns), *zip(*columns.values(), strict=True)]
    return "".join(delimiter.join(row) + "\n" for row in rows)


def whole(path: Path, size: int | None) -> pd.DataFrame:
    """Read a table by chunk, and put the chunks together; each has the same types."""
    table = open_table(path, size=size)
    frames = list(table.frames())
    assert len(frames) >= table.rows / (size or table.rows)
    assert len({tuple(map(str, frame.dtypes)) for frame in frames}) == 1
    return pd.concat(frames, ignore_index=True)


@pytest.fixture(params=["commas", "semicolons", "parquet"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A table with types that are only known at the end."""
    if request.param == "parquet":
        cells = {"i": [*range(8), None], "b": [*[True] * 8, None], "d": pd.to_datetime([*["2020-01-01"] * 8, None])}
        found = pa.table(cells | {"c": pa.array([*"aabbaabb", "c"]).dictionary_encode(), "n": pa.nulls(9)})
        pq.write_table(found, tmp_path / "a.parquet", row_group_size=4, write_statistics=False)
        return tmp_path / "a.parquet"
    european = {"decimal commas": [*"12345678", "3,5"], "thousands": [*"12345678", "1.234,5"]}
    return write(tmp_path, text_of(LATE | european, ";") if request.param == "semicolons" else text_of(LATE))


@pytest.mark.parametrize("size", [1, 4, 9])
def test_chunks_are_the_whole_table_to_the_bit_and_the_type(table: Path, size: int) -> None:
    expected = read_table(table)
    pd.testing.assert_frame_equal(whole(table, size), expected, check_exact=True)
    assert open_table(table, size=size).findings == expected.attrs["findings"]
    wanted = list(expected.columns[[3, 0]])
    found = pd.concat(open_table(table, size=2).frames(wanted), ignore_index=True)
    pd.testing.assert_frame_equal(found, expected[sorted(wanted, key=list(expected.columns).index)], check_exact=True)


@pytest.mark.parametrize("rows", [1, 4])
def test_a_folder_of_parts_is_one_table(table: Path, rows: int, tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    (folder / "_SUCCESS").touch()
    lines = [] if table.suffix == ".parquet" else table.read_text().splitlines(keepends=True)
    for start in range(0, 9, rows):
        if lines:
            (folder / f"part-{start}.csv").write_text("".join([lines[0], *lines[start + 1 : start + 1 + rows]]))
        else:
            pq.write_table(pq.read_table(table).slice(start, rows), folder / f"{start}.parquet")
    for size in (None, 3):
        pd.testing.assert_frame_equal(whole(folder, size), read_table(table), check_exact=True)
    assert read_table(folder).attrs["findings"] == read_table(table).attrs["findings"]


@pytest.mark.parametrize("size", [1, 5, 100])
def test_a_line_with_more_cells_is_refused_with_its_number(size: int, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n" + "1,2\n" * 5 + "1,2,3\n" + "1,2\n" * 2)
    assert_refused(lambda: open_table(tmp_path / "a.csv", size=size), "Expected 2 fields in line 7, saw 3")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "no such files"),
        ({"a.csv": "x,y\n1,2\n", "b.parquet": ""}, "files of both kinds"),
        ({"a.csv": "x,y\n1,2\n", "b.csv": "x,z\n1,2\n"}, r"a\.csv and b\.csv differ in \['y', 'z'\]"),
        ({"a.csv": "x,y\n1,2\n", "b.csv": "x;y\n1;2\n"}, "has ',' between cells and b.csv ';'"),
        ({"a.csv": "x,y\n", "b.csv": "x,y\n"}, "only the 2 column names"),
        ({"a.parquet": 1, "b.parquet": "x"}, "differ in type"),
    ],
)
def test_files_that_are_no_parts_of_one_table_are_refused(files: dict[str, str | int], words: str, tmp_path: Path) -> None:
    for name, content in files.items():
        if words == "differ in type":
            pq.write_table(pa.table({"x": [content]}), tmp_path / name)
        else:
            (tmp_path / name).write_text(str(content))
    assert_refused(lambda: open_table(tmp_path), words)
