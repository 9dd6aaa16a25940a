"""Tables of a study as files and on a terminal."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from members import assert_refused
from study_results import fake_study

from rightloss.metrics import Figure
from rightloss.study.config import Source, StudyConfig
from rightloss.study.report import print_summary, tables, write_tables
from rightloss.study.report.export import figures_csv, latex_text, to_latex
from rightloss.study.results import CellKey, read_study
from rightloss.study.summary import Summary, summarise, wording
from rightloss.study.summary.wording import headline

HOSTILE = "my_nodules & 50% {of} $x^2$ ~ #1 \\end | 结"
BASE = StudyConfig("small", losses=("information-gain", "published", "weighted"), folds=2, num_folds=4)
TWO = ("information-gain", "weighted")
CONFIGS = {
    "table1": replace(BASE, nets=("convnet", "inception")),
    "table2": replace(BASE, minibatches=("raw",), losses=TWO),
    "sweep": replace(BASE, sources=(Source("contours"), Source(HOSTILE, "1")), populations=(0.3, 0.000123456789), losses=TWO),
    "ratings": replace(BASE, task="rating", likelihoods=("onion-peeling", "categorical"), populations=(None,)),
    "metadata": replace(BASE, task="balanced", nets=("convnet", "metadata", "both"), populations=(0.5, 0.03), losses=TWO),
    "features": replace(BASE, nets=("mlp",), inferences=("map", "laplace"), minibatches=("raw",), losses=TWO[:1]),
}
EXPECTED = {
    "table1": ["table1", "costs", "standings", "checks"],
    "table2": ["table2", "costs", "standings", "checks"],
    "sweep": ["table1", "populations", "costs", "standings", "checks"],
    "ratings": ["ratings", "ratings_by_class", "standings", "checks"],
    "metadata": ["metadata", "costs", "standings", "checks"],
    "features": ["populations", "costs", "standings", "checks"],
}


@pytest.fixture(scope="module")
def summaries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Summary]:
    found = {}
    for name, config in CONFIGS.items():
        out = tmp_path_factory.mktemp(name)
        fake_study(out, config, 100)
        found[name] = summarise(read_study(out))
    return found


EACH = pytest.mark.parametrize("name", CONFIGS)


@pytest.mark.long
@EACH
def test_tables_are_those_that_fit_the_study_and_are_written_as_tex_and_markdown(
    summaries: dict[str, Summary], name: str, tmp_path: Path
) -> None:
    paths = write_tables(summaries[name], tmp_path)
    expected = {f"tables/{table}.{ending}" for table in EXPECTED[name] for ending in ("tex", "md")}
    expected |= {"table.csv", "comparisons.csv", "summary.json"}
    assert {str(path.relative_to(tmp_path)) for path in paths} == expected
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == expected


def test_tables_of_another_study_in_the_folder_go_and_other_files_stay(summaries: dict[str, Summary], tmp_path: Path) -> None:
    write_tables(summaries["table1"], tmp_path)
    (tmp_path / "tables" / "mine.tex").write_text("mine")
    write_tables(summaries["ratings"], tmp_path)
    names = {path.name for path in (tmp_path / "tables").iterdir()}
    assert names == {"mine.tex", *(f"{name}.{ending}" for name in EXPECTED["ratings"] for ending in ("tex", "md"))}


@pytest.mark.long
def test_the_same_results_give_the_same_bytes(summaries: dict[str, Summary], tmp_path: Path) -> None:
    fake_study(tmp_path / "study", CONFIGS["sweep"], 100)
    write_tables(summaries["sweep"], tmp_path / "first")
    write_tables(summarise(read_study(tmp_path / "study")), tmp_path / "second")
    first, second = (
        {path.relative_to(tmp_path / name): path.read_bytes() for path in (tmp_path / name).rglob("*") if path.is_file()}
        for name in ("first", "second")
    )
    assert first == second


@EACH
def test_a_summary_comes_back_from_its_file(summaries: dict[str, Summary], name: str, tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    path.write_text(summaries[name].to_json(), encoding="utf-8")
    back = Summary.read(path)
    assert str(back) == str(replace(summaries[name], config=back.config))
    assert back.to_json() == summaries[name].to_json()
    json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '"text"', '{"config": {}}'])
def test_a_file_that_holds_no_summary_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "summary.json"
    path.write_text(content)
    assert_refused(lambda: Summary.read(path), "summary of a study")


def test_a_missing_summary_is_refused(tmp_path: Path) -> None:
    assert_refused(lambda: Summary.read(tmp_path / "summary.json"), "there is none")


@EACH
def test_the_csv_holds_every_figure_of_every_row(summaries: dict[str, Summary], name: str) -> None:
    summary = summaries[name]
    lines = list(csv.DictReader(io.StringIO(figures_csv(summary))))
    assert len(lines) == len(summary.rows)
    for line, row in zip(lines, summary.rows, strict=True):
        assert line["data"] == row.key.data
        assert (float(line["population"]) if line["population"] else None) == row.key.population
        for figure, found in row.figures.items():
            for column, value in ((figure, found.value), (f"{figure}_low", found.low), (f"{figure}_high", found.high)):
                assert (line[column] == "") == math.isnan(value)
                assert math.isnan(value) or float(line[column]) == pytest.approx(value, rel=1e-8)


def test_the_comparisons_have_a_line_per_difference(summaries: dict[str, Summary], tmp_path: Path) -> None:
    write_tables(summaries["table1"], tmp_path)
    lines = list(csv.DictReader(io.StringIO((tmp_path / "comparisons.csv").read_text(encoding="utf-8"))))
    found = [each for comparison in summaries["table1"].comparisons for each in comparison.differences.values()]
    assert [line["standing"] for line in lines] == [each.standing for each in found]
    assert float(lines[0]["difference"]) == found[0].figure.value
    assert set(CellKey._fields) < set(lines[0])


def cells_of(line: str) -> list[str]:
    return re.split(r"(?<!\\)&", line)


@EACH
def test_latex_has_balanced_braces_and_a_cell_per_column(summaries: dict[str, Summary], name: str) -> None:
    for table in tables(summaries[name]):
        text = to_latex(table)
        bare = re.sub(r"\\[\\{}]", "", text)
        depth = 0
        for sign in bare:
            depth += (sign == "{") - (sign == "}")
            assert depth >= 0
        assert depth == 0
        assert re.findall(r"\\(begin|end)\{(\w+)\}", text) == [
            ("begin", "table"),
            ("begin", "tabular"),
            ("end", "tabular"),
            ("end", "table"),
        ]
        columns = re.findall(r"\\begin\{tabular\}\{(l?r+)\}", text)
        assert len(columns) == 1
        body = text.partition(r"\toprule")[2].partition(r"\bottomrule")[0]
        lines = [line for line in body.splitlines() if line.strip() and r"\midrule" not in line]
        for line in lines:
            assert line.endswith(r"\\"), line
            assert len(cells_of(line)) == len(columns[0]), line


@EACH
def test_latex_uses_nothing_that_plain_article_with_booktabs_does_not_know(summaries: dict[str, Summary], name: str) -> None:
    known = {
        *("begin", "end", "centering", "caption", "label", "footnotesize", "setlength", "tabcolsep", "makebox", "textwidth"),
        *("toprule", "midrule", "bottomrule", "rlap", "textit", "tiny", "scriptsize", "par", "smallskip", "parbox"),
        *("pi", "pm", "frac", "infty", "to", "textbackslash", "textasciitilde", "textasciicircum", "usepackage"),
    }
    for table in tables(summaries[name]):
        text = to_latex(table)
        assert set(re.findall(r"\\([A-Za-z]+)", text)) <= known
        assert all(ord(sign) < 0x180 for sign in text)
        # A bare % would comment the rest of its line out.
        assert all(line.startswith("%") for line in text.splitlines() if re.search(r"(?<!\\)%", line))
        assert not re.search(r"(?<!\\)[_#]", re.sub(r"\\label\{[\w:-]+\}", "", text))
        assert len(re.findall(r"(?<!\\)\$", text)) % 2 == 0


def test_every_special_character_of_latex_is_escaped() -> None:
    assert latex_text("50% a_b & {c} #1 $2") == r"50\% a\_b \& \{c\} \#1 \$2"
    assert latex_text("\\~^") == r"\textbackslash{}\textasciitilde{}\textasciicircum{}"
    assert latex_text("π − 1 – ±½ é 结") == r"$\pi$ $-$ 1 -- $\pm$$\frac12$ é ?"


@EACH
def test_markdown_has_a_cell_per_column(summaries: dict[str, Summary], name: str, tmp_path: Path) -> None:
    write_tables(summaries[name], tmp_path)
    for path in (tmp_path / "tables").glob("*.md"):
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
        assert len(lines) > 3
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1


def test_the_papers_figures_stand_beside_ours_in_its_order(summaries: dict[str, Summary]) -> None:
    table, *_ = tables(summaries["table1"])
    titles = [section.title for section in table.sections]
    nets, rates = ("ConvNet", "InceptionNet"), ("0.3", "0.001")
    assert titles == [f"{net}, π = {rate}" for rate in rates for net in nets]
    first = table.sections[0].lines
    assert [line.origin for line in first] == ["paper", "paper", "constant", "main", "other", "other"]
    printed = dict(zip(table.columns, first[0].entries, strict=True))
    assert (printed["exp. log-lik."].value, printed["TPR"].value, printed["AUC"].value) == ("−0.3483", "0.712", "–")
    assert not any(entry.range for entry in first[0].entries)
    assert all(entry.range for entry in first[3].entries)
    assert any("Bayes' rule" in note for note in table.notes)
    assert any("with care" in note for note in table.notes)


def test_a_figure_in_a_table_is_that_of_its_row(summaries: dict[str, Summary]) -> None:
    summary = summaries["table2"]
    table, *_ = tables(summary)
    line = table.sections[1].lines[-1]
    row = summary.rows[-1]
    assert (line.label, row.key.loss, row.key.population) == ("weighted loss", "weighted", 0.001)
    shown = dict(zip(table.columns, line.entries, strict=True))
    figure = row.figures["expected_log_likelihood"]
    assert float(shown["exp. log-lik."].value.replace("−", "-")) == pytest.approx(figure.value, abs=5e-6)
    assert shown["AUC"].range == f"{row.figures['auc'].low:.3f} to {row.figures['auc'].high:.3f}"


def test_decisions_by_cost_are_shown_where_malignancy_is_rare_with_the_benefit_per_1000_people(
    summaries: dict[str, Summary],
) -> None:
    summary = summaries["table2"]
    (table,) = (each for each in tables(summary) if each.name == "costs")
    assert [section.title for section in table.sections] == ["ConvNet, π = 0.001"]
    assert [line.label for line in table.sections[0].lines] == [
        "always answering π",
        "information gain (default)",
        "weighted loss",
    ]
    shown = dict(zip(table.columns, table.sections[0].lines[-1].entries, strict=True))
    figures = summary.rows[-1].figures
    assert shown["TPR at 1/101"].value == f"{figures['tpr_cost_100'].value:.3f}"
    assert float(shown["benefit at 1/1,001"].value) == pytest.approx(1000 * figures["net_benefit_cost_1000"].value, abs=5e-4)


def test_the_papers_ratings_stand_beside_its_own_likelihood_alone(summaries: dict[str, Summary]) -> None:
    ratings, by_class, *_ = tables(summaries["ratings"])
    for table in (ratings, by_class):
        for section in table.sections:
            paper = [line for line in section.lines if line.origin == "paper"]
            assert len(paper) == ("onion peeling" in section.title)
    assert [entry.value for entry in by_class.sections[0].lines[0].entries][:5] == ["0.76", "0.98", "0.98", "1.00", "0.93"]


def test_image_metadata_and_both_stand_below_each_other(summaries: dict[str, Summary]) -> None:
    table, *_ = tables(summaries["metadata"])
    labels = [line.label for line in table.sections[0].lines[1:4]]
    nets = ("image alone (ConvNet)", "metadata alone", "image and metadata")
    assert labels == [f"information gain (default): {net}" for net in nets]


@EACH
@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_printed_summary_fits_the_terminal(
    summaries: dict[str, Summary], name: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    print_summary(summaries[name])
    lines = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= width
    text = " ".join(" ".join(lines).split())
    ending = text.rpartition(headline(summaries[name])[0])
    assert ending[2].endswith("Intervals are 95 %, by patient; the report explains every column.")
    # Figures stay in one piece.
    value = summaries[name].rows[1].figures["expected_log_likelihood"].value
    assert f"{value:.3f}".replace("-", "−") in text
    assert (" to " in ending[0]) == (width >= 130)


def test_standings_count_the_comparisons_of_each_kind(summaries: dict[str, Summary]) -> None:
    summary = summaries["table1"]
    (table,) = (each for each in tables(summary) if each.name == "standings")
    lines = {line.label: [str(each) for each in line.entries] for line in table.sections[0].lines}
    for loss, label in (("published", "information gain as published"), ("weighted", "weighted loss")):
        for place, figure in ((0, "expected_log_likelihood"), (2, "auc")):
            found = [c.differences[figure].standing for c in summary.comparisons if (c.about, c.theirs.loss) == ("loss", loss)]
            assert lines[label][place] == " / ".join(str(found.count(word)) for word in ("ahead", "undecided", "behind"))
            assert len(found) == 4


def test_checks_are_shown_with_the_papers_figures_and_ours(summaries: dict[str, Summary]) -> None:
    summary = summaries["table1"]
    (table,) = (each for each in tables(summary) if each.name == "checks")
    lines = [line for section in table.sections for line in section.lines]
    assert [[str(each) for each in line.entries][:2] for line in lines] == [
        [check.paper or "–", check.ours] for check in summary.checks
    ]
    trivial = [str(line.entries[2]) for line, check in zip(lines, summary.checks, strict=True) if check.trivial]
    assert trivial
    assert all(text.endswith("(as always answering π)") for text in trivial)


@pytest.mark.parametrize(
    ("figure", "expected"),
    [
        (Figure(0.0123, 0.01, 0.02), "+0.012 (+0.010 to +0.020)"),
        (Figure(-0.000123, -0.0004, 0.0001), "−0.00012 (−0.00040 to +0.00010)"),
        (Figure(0.0), "0.000"),
        (Figure(math.nan, reason="none"), "–"),
        (Figure(-math.inf), "−∞"),
    ],
)
def test_differences_show_as_many_places_as_they_need(figure: Figure, expected: str) -> None:
    assert wording.difference(figure) == expected


@pytest.mark.parametrize(("population", "places"), [(0.5, 3), (0.3, 3), (0.1, 3), (0.03, 4), (0.01, 4), (0.001, 5), (0.999, 5)])
def test_figures_of_a_rare_class_show_more_places(population: float, places: int) -> None:
    assert wording.decimals("expected_log_likelihood", population) == places
    assert wording.decimals("auc", population) == 3


def test_a_summary_without_runs_is_written_and_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = CONFIGS["table1"]
    fake_study(tmp_path, config, 100, skip=len(config.runs()))
    summary = summarise(read_study(tmp_path))
    assert len(write_tables(summary, tmp_path)) == 3
    print_summary(summary)
    assert capsys.readouterr().out.startswith("The study is incomplete")
