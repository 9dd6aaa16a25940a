"""The report: tables as files and on a terminal, and a page that is complete in itself and right in every number it makes."""

from __future__ import annotations

import base64
import csv
import io
import json
import math
import re
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from markupsafe import escape
from sklearn.metrics import roc_auc_score
from study_results import fake_study
from study_summaries import BETTER, EVEN, WORSE, all_rows
from study_summaries import comparison as compared_in
from study_summaries import row as made_up
from study_work import contents

from rightloss import retarget
from rightloss.cli.commands import load_command
from rightloss.cli.study import configured
from rightloss.metrics import Figure
from rightloss.study.config import PRESETS, Source, StudyConfig, Training, options_of
from rightloss.study.methods import ADJUSTED, ADJUSTED_LABELLED, FULLY_LABELLED, METHODS
from rightloss.study.report import figures, page, print_summary, tables, write_report, write_tables
from rightloss.study.report.export import latex_text, to_latex
from rightloss.study.report.tables import TableSection, comparison_table
from rightloss.study.results import StudyResults, cells, read_study, trace_steps
from rightloss.study.summary import Summary, summarise, wording
from rightloss.study.summary.wording import headline, incomplete

HOSTILE = "<img src=x onerror=alert(1)> $\\frac | `a` </script> 50% {of} my_x #1 ~ ^ 结"
SMALL = StudyConfig("quick", losses=("information-gain", "published", "weighted"), folds=2, num_folds=4)
TWO = ("information-gain", "weighted")
UNLABELLED = ("information-gain", "published", ADJUSTED, ADJUSTED_LABELLED, "weighted")
CONFIGS = {
    "table1": replace(SMALL, nets=("convnet", "inception")),
    "table2": replace(SMALL, minibatches=("raw",), losses=TWO),
    "sweep": replace(SMALL, sources=(Source("contours"), Source(HOSTILE, "1")), populations=(0.3, 0.000123456789), losses=TWO),
    "ratings": replace(SMALL, task="rating", likelihoods=("onion-peeling", "categorical"), populations=(None,)),
    "metadata": replace(SMALL, task="balanced", nets=("metadata", "both"), populations=(0.5, 0.03, 0.001), losses=TWO),
    "features": replace(SMALL, nets=("mlp",), inferences=("map", "laplace"), minibatches=("raw",), losses=TWO[:1]),
    "unlabelled": replace(SMALL, losses=UNLABELLED, unlabelled=0.8),
}
EXPECTED = {
    "table1": "table1 costs standings checks",
    "table2": "table2 costs standings checks",
    "sweep": "table1 populations costs standings checks",
    "ratings": "ratings ratings_by_class standings checks",
    "metadata": "metadata costs standings checks",
    "features": "populations costs standings checks",
    "unlabelled": "populations costs standings",
}
EACH, SOME = (pytest.mark.parametrize("name", names) for names in (CONFIGS, ("sweep", "ratings", "metadata")))
Study = tuple[StudyResults, Summary]
StudyOf = Callable[[str], Study]


def study(config: StudyConfig, folder: Path, skip: int = 0) -> Study:
    fake_study(folder, config, nodules=100, skip=skip)
    results = read_study(folder)
    return results, summarise(results)


@pytest.fixture(scope="module")
def study_of(tmp_path_factory: pytest.TempPathFactory) -> StudyOf:
    """Studies by name, each made once."""
    return cache(lambda name: study(CONFIGS[name], tmp_path_factory.mktemp(name)))


@pytest.fixture(scope="module")
def small(study_of: StudyOf) -> Study:
    """One net of the first study."""
    results, summary = study_of("table1")
    runs = tuple(run for run in results.runs if run.config.net == "convnet")
    one = replace(results, config=SMALL, runs=runs)
    return one, replace(summary, config=SMALL, rows=tuple(row for row in summary.rows if row.key.net in ("", "convnet")))


def table_of(summary: Summary, name: str) -> tuple[TableSection, ...]:
    (found,) = (table.sections for table in tables(summary) if table.name == name)
    return found


# Tables as files and on a terminal.


@pytest.mark.long
@EACH
def test_tables_that_fit_the_study_are_written_as_tex_and_markdown(study_of: StudyOf, name: str, tmp_path: Path) -> None:
    paths = write_tables(study_of(name)[1], tmp_path)
    expected = {f"tables/{table}.{ending}" for table in EXPECTED[name].split() for ending in ("tex", "md")}
    expected |= {"table.csv", "comparisons.csv", "summary.json"}
    assert {str(path.relative_to(tmp_path)) for path in paths} == expected == set(contents(tmp_path))
    for path in (tmp_path / "tables").glob("*.md"):
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
        assert len(lines) > 3
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1, "a cell per column"


@pytest.mark.long
def test_the_same_results_give_the_same_bytes_and_tables_of_another_study_go(study_of: StudyOf, tmp_path: Path) -> None:
    write_tables(study_of("sweep")[1], tmp_path / "first")
    write_tables(study(CONFIGS["sweep"], tmp_path / "study")[1], tmp_path / "second")
    assert contents(tmp_path / "first") == contents(tmp_path / "second")
    (tmp_path / "first" / "tables" / "mine.tex").write_text("mine")
    write_tables(study_of("ratings")[1], tmp_path / "first")
    names = {path.name for path in (tmp_path / "first" / "tables").iterdir()}
    assert names == {"mine.tex", *(f"{each}.{end}" for each in EXPECTED["ratings"].split() for end in ("tex", "md"))}


@SOME
def test_a_summary_comes_back_and_tables_of_numbers_have_its_figures(study_of: StudyOf, name: str, tmp_path: Path) -> None:
    summary = study_of(name)[1]
    write_tables(summary, tmp_path)
    back = Summary.read(tmp_path / "summary.json")
    assert str(back) == str(replace(summary, config=back.config))
    assert back.to_json() == summary.to_json() == (tmp_path / "summary.json").read_text(encoding="utf-8")
    json.loads(summary.to_json(), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    lines = list(csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text(encoding="utf-8"))))
    for line, row in zip(lines, summary.rows, strict=True):
        assert line["data"] == row.key.data
        assert (float(line["population"]) if line["population"] else None) == row.key.population
        for figure, found in row.figures.items():
            for column, value in ((figure, found.value), (f"{figure}_low", found.low), (f"{figure}_high", found.high)):
                assert (line[column] == "") == math.isnan(value)
                assert math.isnan(value) or float(line[column]) == pytest.approx(value, rel=1e-8)
    lines = list(csv.DictReader(io.StringIO((tmp_path / "comparisons.csv").read_text(encoding="utf-8"))))
    pairs = [each for comparison in summary.comparisons for each in comparison.differences.values()]
    assert [(line["standing"], int(line["folds_ahead"])) for line in lines] == [(each.standing, each.ahead) for each in pairs]
    assert [float(line["difference"]) for line in lines] == pytest.approx([each.figure.value for each in pairs], rel=1e-8)


LATEX = {
    *("begin", "end", "centering", "caption", "label", "footnotesize", "setlength", "tabcolsep", "makebox", "textwidth"),
    *("toprule", "midrule", "bottomrule", "rlap", "textit", "tiny", "scriptsize", "par", "smallskip", "parbox"),
    *("pi", "pm", "frac", "infty", "to", "textbackslash", "textasciitilde", "textasciicircum", "usepackage"),
}


@SOME
def test_latex_is_balanced_has_a_cell_per_column_and_needs_only_article_with_booktabs(study_of: StudyOf, name: str) -> None:
    for table in tables(study_of(name)[1]):
        text = to_latex(table)
        depths = np.cumsum([(sign == "{") - (sign == "}") for sign in re.sub(r"\\[\\{}]", "", text)])
        assert (depths.min(), depths[-1]) == (0, 0)
        (columns,) = re.findall(r"\\begin\{tabular\}\{(l?r+)\}", text)
        body = text.partition(r"\toprule")[2].partition(r"\bottomrule")[0]
        for line in (line for line in body.splitlines() if line.strip() and r"\midrule" not in line):
            assert line.endswith(r"\\"), line
            assert len(re.split(r"(?<!\\)&", line)) == len(columns), line
        assert set(re.findall(r"\\([A-Za-z]+)", text)) <= LATEX
        assert all(ord(sign) < 0x180 for sign in text)
        # A bare % would comment the rest of its line out.
        assert all(line.startswith("%") for line in text.splitlines() if re.search(r"(?<!\\)%", line))
        assert not re.search(r"(?<!\\)[_#]", re.sub(r"\\label\{[\w:-]+\}", "", text))
        assert len(re.findall(r"(?<!\\)\$", text)) % 2 == 0
    assert latex_text("50% a_b & {c} #1 $2") == r"50\% a\_b \& \{c\} \#1 \$2"
    assert latex_text("\\~^") == r"\textbackslash{}\textasciitilde{}\textasciicircum{}"
    assert latex_text("π − 1 – ±½ é 结") == r"$\pi$ $-$ 1 -- $\pm$$\frac12$ é ?"


@EACH
def test_the_printed_summary_fits_the_terminal(
    study_of: StudyOf, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    summary = study_of(name)[1]
    for width in (80, 160):
        monkeypatch.setenv("COLUMNS", str(width))
        print_summary(summary)
        lines = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out).splitlines()
        assert max(len(line.rstrip()) for line in lines) <= width
        text = " ".join(" ".join(lines).split())
        ending = text.rpartition(headline(summary)[0])
        assert ending[2].endswith("Intervals are 95 %, by patient; the report explains every column.")
        # Figures stay in one piece.
        value = summary.rows[1].figures["expected_log_likelihood"].value
        assert f"{value:.3f}".replace("-", "−") in text
        assert (" to " in ending[0]) == (width == 160)


def test_a_study_without_a_run_has_files_and_a_page_that_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results, summary = study(SMALL, tmp_path, skip=12)
    assert len(write_tables(summary, tmp_path)) == 3
    print_summary(summary)
    assert capsys.readouterr().out.startswith("The study is incomplete")
    found = Elements(write_report(results, summary, tmp_path).read_text(encoding="utf-8"))
    assert "12 of 12 runs are missing" in "".join(found.text)
    assert "slider" not in found.all("id")


# What the tables show.


def test_the_papers_figures_stand_beside_ours_in_its_order(study_of: StudyOf) -> None:
    table, *_ = tables(study_of("table1")[1])
    nets, rates = ("ConvNet", "InceptionNet"), ("0.3", "0.001")
    assert [section.title for section in table.sections] == [f"{net}, π = {rate}" for rate in rates for net in nets]
    first = table.sections[0].lines
    assert [line.origin for line in first] == ["paper", "paper", "constant", "main", "other", "other"]
    printed = dict(zip(table.columns, first[0].entries, strict=True))
    assert (printed["exp. log-lik."].value, printed["TPR"].value, printed["AUC"].value) == ("−0.3483", "0.712", "–")
    assert not any(entry.range for entry in first[0].entries)
    assert all(entry.range for entry in first[3].entries)
    assert any("Bayes' rule" in note for note in table.notes)
    assert any("with care" in note for note in table.notes)
    for sections in (table_of(study_of("ratings")[1], name) for name in ("ratings", "ratings_by_class")):
        for section in sections:
            paper = [line for line in section.lines if line.origin == "paper"]
            assert len(paper) == ("onion peeling" in section.title), "of its own likelihood alone"
    assert [entry.value for entry in sections[0].lines[0].entries][:5] == ["0.76", "0.98", "0.98", "1.00", "0.93"]


def test_a_figure_in_a_table_is_that_of_its_row_and_decisions_by_cost_are_shown_if_rare(study_of: StudyOf) -> None:
    summary = study_of("table2")[1]
    table, costs, *_ = tables(summary)
    line, row = table.sections[1].lines[-1], summary.rows[-1]
    assert (line.label, row.key.loss, row.key.population) == ("weighted loss", "weighted", 0.001)
    shown = dict(zip(table.columns, line.entries, strict=True))
    figure = row.figures["expected_log_likelihood"]
    assert float(shown["exp. log-lik."].value.replace("−", "-")) == pytest.approx(figure.value, abs=5e-6)
    assert shown["AUC"].range == f"{row.figures['auc'].low:.3f} to {row.figures['auc'].high:.3f}"
    (section,) = costs.sections
    assert section.title == "ConvNet, π = 0.001"
    assert [line.label for line in section.lines] == ["always answering π", "information gain (default)", "weighted loss"]
    shown = dict(zip(costs.columns, section.lines[-1].entries, strict=True))
    assert shown["TPR at 1/101"].value == f"{row.figures['tpr_cost_100'].value:.3f}"
    benefit = 1000 * row.figures["net_benefit_cost_1000"].value  # per 1,000 people
    assert float(shown["benefit at 1/1,001"].value) == pytest.approx(benefit, abs=5e-4)
    labels = [line.label for line in table_of(study_of("metadata")[1], "metadata")[0].lines[1:3]]
    assert labels == [f"information gain (default): {net}" for net in ("metadata alone", "image and metadata")]


def test_standings_count_the_comparisons_of_each_kind_and_checks_have_the_papers_figures_and_ours(study_of: StudyOf) -> None:
    summary = study_of("table1")[1]
    (section,) = table_of(summary, "standings")
    lines = {line.label: [str(each) for each in line.entries] for line in section.lines}
    for loss, label in (("published", "information gain as published"), ("weighted", "weighted loss")):
        for place, figure in ((0, "expected_log_likelihood"), (2, "auc")):
            found = [c.differences[figure].standing for c in summary.comparisons if (c.about, c.theirs.loss) == ("loss", loss)]
            assert lines[label][place] == " / ".join(str(found.count(word)) for word in ("ahead", "undecided", "behind"))
            assert len(found) == 4
    shown = [line for section in table_of(summary, "checks") for line in section.lines]
    assert [[str(each) for each in line.entries][:2] for line in shown] == [
        [check.paper or "–", check.ours] for check in summary.checks
    ]
    trivial = [str(line.entries[2]) for line, check in zip(shown, summary.checks, strict=True) if check.trivial]
    assert trivial
    assert all(text.endswith("(as always answering π)") for text in trivial)


def test_differences_show_as_many_places_as_they_need_and_figures_of_a_rare_class_more() -> None:
    shown = {
        "+0.012 (+0.010 to +0.020)": Figure(0.0123, 0.01, 0.02),
        "−0.00012 (−0.00040 to +0.00010)": Figure(-0.000123, -0.0004, 0.0001),
        "–": Figure(math.nan, reason="none"),
        "−∞": Figure(-math.inf),
    }
    assert {text: wording.difference(figure) for text, figure in shown.items()} == {text: text for text in shown}
    for population, places in ((0.5, 3), (0.1, 3), (0.03, 4), (0.01, 4), (0.001, 5), (0.999, 5)):
        assert wording.decimals("expected_log_likelihood", population) == places
        assert wording.decimals("auc", population) == 3


def test_the_headline_counts_cases_against_the_prevalence_and_against_others() -> None:
    rows = tuple(all_rows(information_gain=WORSE))
    assert headline(Summary(SMALL, 0, rows, (), ())) == [
        "Against always answering π, information gain (default): clearly better in 0 of 2 cases, clearly worse in 2."
    ]
    by_loss = compared_in("information-gain", "weighted", 0.3, BETTER, EVEN)
    found = headline(Summary(SMALL, 0, tuple(all_rows()), (by_loss, replace(by_loss, about="net")), ()))
    words = "Image and metadata together, against either alone: clearly better in 1 of 1 comparison, clearly worse in none."
    assert found[1] == words
    never = tuple(all_rows(information_gain=Figure(-np.inf, reason="a probability of 0")))
    assert "clearly worse in 2" in headline(Summary(SMALL, 0, never, (), ()))[0]
    assert headline(Summary(SMALL, 0, (), (), ())) == ["No run is done yet."]


@pytest.mark.long
def test_tables_and_page_mark_unlabelled_patients_and_leave_the_papers_findings_out(study_of: StudyOf, tmp_path: Path) -> None:
    results, summary = study_of("unlabelled")
    assert summary.checks == ()
    table = tables(summary)[0]
    assert table.title == "Figures by population, 80 % of the training patients unlabelled"
    labels = [line.label for line in table.sections[0].lines]
    learning = [METHODS[name].title for name in UNLABELLED if METHODS[name].takes_unlabelled]
    assert [label.removesuffix(", with unlabelled") for label in labels if label.endswith(", with unlabelled")] == learning
    assert "logit-adjusted loss, labelled only" in labels
    assert headline(summary)[1].startswith("Logit adjustment with the unlabelled patients, against without: clearly")
    text = write_report(results, summary, tmp_path).read_text(encoding="utf-8")
    assert wording.title(CONFIGS["unlabelled"]) in text
    assert "The population of the unlabelled patients is simulated" in text
    learnt = "information gain (default), information gain as published and logit-adjusted loss"
    assert page.settings(results)["Unlabelled"] == f"80 % of the training patients lost their labels; used by {learnt}"


# The page.


class Elements(HTMLParser):
    """The elements of a page as a browser sees them: attributes, text, and tags that are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in {"meta", "link", "img", "input"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def all(self, attribute: str) -> list[str]:
        return [value for _, attributes in self.found if (value := attributes.get(attribute)) is not None]


@pytest.fixture(scope="module")
def written(study_of: StudyOf, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a data set of a hostile name."""
    return write_report(*study_of("sweep"), tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def elements(written: Path) -> Elements:
    return Elements(written.read_text(encoding="utf-8"))


@pytest.mark.long
def test_elements_are_closed_references_have_targets_in_the_page_and_controls_have_labels(elements: Elements) -> None:
    assert (elements.wrong, elements.open) == ([], [])
    ids = Counter(elements.all("id"))
    assert max(ids.values()) == 1
    asked = [*elements.all("for"), *elements.all("aria-labelledby"), *elements.all("aria-describedby")]
    places = [value for name in ("src", "href", "xlink:href", "action", "srcset", "poster") for value in elements.all(name)]
    asked += [value[1:] for value in places if value.startswith("#")]
    asked += re.findall(r"url\(#([^)]+)\)", " ".join([*elements.all("clip-path"), *elements.all("style")]))
    assert len(asked) > 8
    assert not set(asked) - set(ids)
    assert [value for value in places if not value.startswith(("#", "data:"))] == []
    assert "url(http" not in " ".join(elements.text + elements.all("style"))
    policy = next(attributes["content"] for name, attributes in elements.found if "http-equiv" in attributes)
    assert policy is not None
    assert re.match(r"default-src 'none'; img-src data:; .*script-src 'sha256-", policy)
    assert all(attributes.get("alt") for name, attributes in elements.found if name == "img")
    controls = {attributes["id"] for name, attributes in elements.found if name in ("input", "select")}
    assert len(controls) == 4
    assert controls <= set(elements.all("for"))
    assert all(attributes.get("aria-label") for _, attributes in elements.found if attributes.get("role") in ("img", "region"))
    assert "polite" in elements.all("aria-live")


@pytest.mark.long
def test_a_hostile_name_stays_text_and_the_same_results_give_the_same_bytes(
    elements: Elements, written: Path, study_of: StudyOf, tmp_path: Path
) -> None:
    assert HOSTILE in "".join(elements.text)
    assert not [name for name, attributes in elements.found if "onerror" in attributes]
    assert [attributes.get("type") for name, attributes in elements.found if name == "script"] == ["application/json", None]
    markdown = (written.parent / "report.md").read_text(encoding="utf-8")
    assert not [line for line in markdown.splitlines() if re.search(r"(?<!\\)<img", line) and not line.startswith("    ")]
    files = sorted(f"figures/{file.name}" for file in (written.parent / "figures").iterdir())
    assert sorted(re.findall(r"\]\((figures/[a-z0-9-]+\.svg)\)", markdown)) == files
    assert len(files) == 4
    write_report(*study_of("sweep"), tmp_path)
    assert contents(tmp_path) == contents(written.parent)


@pytest.mark.long
def test_the_page_has_every_table_with_our_figures_and_the_papers(study_of: StudyOf, tmp_path: Path) -> None:
    results, summary = study_of("table1")
    compared = comparison_table(summary)
    assert compared is not None
    text = "".join(Elements(write_report(results, summary, tmp_path).read_text(encoding="utf-8")).text)
    for table in (*tables(summary), compared):
        assert all(note in text for note in table.notes)
        for line in (line for section in table.sections for line in section.lines):
            assert line.label in text
            assert all(entry.value in text and entry.range in text for entry in line.entries)
    assert all(sentence in text for sentence in headline(summary))


@pytest.mark.long
def test_an_unfinished_study_says_so_and_nodules_are_judged_by_a_loss_that_predicts_for_the_prevalence(tmp_path: Path) -> None:
    results, summary = study(replace(SMALL, losses=("plain", "weighted")), tmp_path, skip=1)
    text = write_report(results, summary, tmp_path).read_text(encoding="utf-8")
    assert "1 of 8 runs are missing" in incomplete(summary)
    assert text.count(f'role="note">{escape(incomplete(summary))}</p>') == text.count(escape(incomplete(summary))) == 1
    assert page.judging_loss(results) == "weighted"
    cases = page.hardest_cases(results, "contours")
    assert {loss for side in cases.values() for each in side for loss in each.by_loss} == {"weighted"}
    assert "Judged by the weighted loss over all nets" in text
    assert page.judging_loss(replace(results, runs=())) is None


@pytest.mark.parametrize(("losses", "unlabelled"), [(FULLY_LABELLED, 0.0), ((ADJUSTED, ADJUSTED_LABELLED), 0.5)])
def test_every_loss_has_a_short_name_and_is_explained(losses: tuple[str, ...], unlabelled: float, tmp_path: Path) -> None:
    assert len({method.short for method in METHODS.values()}) == len(METHODS) == len(FULLY_LABELLED) + 1
    config = replace(SMALL, losses=losses, unlabelled=unlabelled)
    text = write_report(*study(config, tmp_path, skip=len(config.runs())), tmp_path).read_text(encoding="utf-8")
    explained = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", text)[-len(losses) :]
    assert [title for title, _ in explained] == [escape(METHODS[loss].title) for loss in losses]
    assert all(len(meaning) > 30 for _, meaning in explained)
    assert ("are the same loss here" in text) == (not unlabelled)


def test_the_settings_are_those_of_the_config(small: Study, study_of: StudyOf) -> None:
    found, data = page.settings(small[0]), small[0].data["contours"]
    counts = f"{len(data.labels)} nodules, {len(set(data.patients))} patients, {(data.labels == 1).sum()} malignant"
    assert found["Data"] == f"readers' outlines: {counts}"
    assert (found["Tested"], found["Runs"]) == ("2 of 4 folds by patient, 1 seed", "12 of 12")
    assert found["Prevalence"] == "30 % and 1 in 1,000; evidence κ = 1"
    assert page.settings(study_of("ratings")[0])["Prevalence"].startswith("shares of the readers’ votes")


def trained(preset: str, **changes: Any) -> StudyConfig:
    return replace(PRESETS[preset], training=replace(PRESETS[preset].training, **changes))


@pytest.mark.long
@pytest.mark.parametrize(
    "config",
    [
        PRESETS["quick"],
        replace(PRESETS["quick"], folds=2, seeds=3, losses=("weighted", "plain"), populations=(0.25, 1e-5)),
        replace(PRESETS["features"], inferences=("map", "ensemble"), evidence=0.5),
        trained("ratings", steps=7, checkpoints=3, learning_rates=(0.1,)),
        trained("table2", small=True, views=6),
        trained("quick", precision="bf16-mixed"),
        replace(PRESETS["quick"], losses=TWO, unlabelled=0.8, unlabelled_weight=3.0),
    ],
    ids=page.command,
)
def test_the_command_makes_the_same_study(config: StudyConfig) -> None:
    words = shlex.split(page.command(config))
    given = load_command("study").make_context("study", words[2:]).params
    known = {option.parameter for each in (StudyConfig, Training) for option in options_of(each).values()}
    options = {name: value for name, value in given.items() if name in known and value not in (None, ())}
    assert configured(given["preset"], options) == config


def test_the_command_is_safe_to_paste_whatever_a_file_is_called() -> None:
    config = replace(PRESETS["quick"], sources=(Source("contours"), Source("a; rm -rf $HOME")))
    assert shlex.split(page.command(config))[5:9] == ["--data", "contours", "--data", "a; rm -rf $HOME.npz"]


# What the page's script is given.


def test_the_page_holds_the_log_odds_to_the_last_bit(small: Study) -> None:
    (panel,) = figures.panels_of(small[0])
    content = page.slider_data(panel, SMALL)
    assert [column["rate"] for column in content["columns"]] == [0.3, 0.001]
    cell, method = panel.columns[0.001][2], content["columns"][1]["methods"][2]
    assert method["name"] == "weighted loss"
    for label, name in enumerate(("benign", "malignant")):
        odds = np.frombuffer(base64.b64decode(method[name]), "<f8")
        rows = cell.labels == label
        np.testing.assert_array_equal(odds, np.sort(cell.log_probs[rows, 1] - cell.log_probs[rows, 0]))
        assert method["patients"][name] == len(set(cell.patients[rows]))


def test_sliders_run_over_round_numbers_from_end_to_end() -> None:
    for lowest in (-4, -3):
        values = page.grid(lowest)
        steps = np.diff(np.log(values))
        assert (values[0], values[-1]) == (10.0**lowest, 0.5)
        assert 0 < steps.min()
        assert steps.max() < 0.2
        assert {0.001, 0.03, 0.05, 0.3} <= set(values)


def test_misjudged_nodules_are_those_with_most_probability_on_the_wrong_side(small: Study) -> None:
    results, _ = small
    data, wrong = results.data["contours"], dict[int, list[float]]()
    for run in results.runs:
        if run.config.loss == "information-gain":
            assert run.config.population is not None
            equal = retarget(torch.from_numpy(run.log_probs), from_=run.config.population, to=0.5).exp().numpy()
            for row, probability in zip(run.rows.tolist(), equal, strict=True):
                wrong.setdefault(row, []).append(float(probability[1 - data.labels[row]]))
    found = page.hardest_cases(results, "contours", most=10)
    for side in (0, 1):
        order = sorted((row for row in wrong if data.labels[row] == side), key=lambda row: -float(np.mean(wrong[row])))
        assert [each.row for each in found[side]] == order[:10]
        for each in found[side]:
            assert each.wrong == pytest.approx(np.mean(wrong[each.row]))
            assert each.share == np.mean([probability > 0.5 for probability in wrong[each.row]])
            assert set(each.by_loss) == set(SMALL.losses)


# Figures.


def test_figures_are_valid_files_that_draw_every_plot_with_its_legend(small: Study) -> None:
    (panel,) = figures.panels_of(small[0])
    for drawing in (figures.roc_figure(panel), figures.reliability_figure(panel)):
        root = ElementTree.fromstring(drawing.svg())
        texts = ["".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")]
        assert [each.title for each in drawing.plots] == [text for text in texts if text.startswith("π = ")]
        assert all(series.name in texts for plot in drawing.plots for series in plot.series if series.name)
    curves = [[series.name for series in plot.series if "AUC" in series.name] for plot in figures.roc_figure(panel).plots]
    assert [len(each) for each in curves] == [3, 0, 0, 0, 3, 0, 0, 0]


@pytest.mark.long
def test_the_mean_curve_has_the_mean_area_of_the_folds_also_where_predictions_tie(small: Study) -> None:
    results, summary = small
    areas = {row.key: row.figures["auc"].value for row in summary.rows}
    for cell in cells(results):
        odds = cell.log_probs[:, 1] - cell.log_probs[:, 0]
        for score in (odds, np.round(odds)):
            curve = figures.mean_roc(replace(cell, log_probs=-np.logaddexp(0, np.stack([score, -score], 1))))
            expected = np.mean([roc_auc_score(cell.labels[cell.fold == n], score[cell.fold == n]) for n in range(2)])
            assert curve is not None
            area = np.trapezoid(curve.true_positive_rate, curve.false_positive_rate)
            assert [area, curve.auc] == pytest.approx([expected] * 2, rel=1e-8)
            assert (np.diff(curve.true_positive_rate) >= 0).all()
            assert (np.diff(curve.false_positive_rate) >= 0).all()
            assert score is not odds or areas[cell.key] == pytest.approx(expected, rel=1e-8)


@pytest.mark.long
def test_ratings_have_a_page_without_a_slider_and_confusions_as_in_the_table(study_of: StudyOf, tmp_path: Path) -> None:
    results, summary = study_of("ratings")
    found = Elements(write_report(results, summary, tmp_path).read_text(encoding="utf-8"))
    assert {"tables", "nodules", "methods"} <= set(found.all("id"))
    assert "Readers' ratings (rows) and predicted ones: readers' outlines, ConvNet, onion peeling" in "".join(found.text)
    assert "slider" not in found.all("id")
    assert [file.name for file in (tmp_path / "figures").glob("*.svg")] == ["ratings-readers-outlines-convnet.svg"]
    by_key = {row.key: row.figures for row in summary.rows}
    near = np.abs(np.arange(5)[:, None] - np.arange(5)) <= 1
    for cell in cells(results):
        recalls = [by_key[cell.key][f"mean_off_by_one_recall_{level}"].value for level in range(1, 6)]
        assert (figures.confusion(cell) * near).sum(1) == pytest.approx(recalls)


@pytest.mark.long
@pytest.mark.parametrize(("name", "own"), [("features", {"inferences"}), ("metadata", {"nets", "prevalences"})])
def test_a_study_has_the_figures_that_it_asks_for(study_of: StudyOf, name: str, own: set[str], tmp_path: Path) -> None:
    write_report(*study_of(name), tmp_path)
    kinds = {file.name.partition("-")[0] for file in (tmp_path / "figures").glob("*.svg")}
    assert kinds == {"roc", "reliability", *own}


@pytest.mark.long
def test_a_gain_far_below_the_axis_does_not_stretch_it_above() -> None:
    rates = (0.5, 0.03, 0.001)
    skills = {"information-gain": [0.5, 0.3, 0.2], "published": [0.5, 0.2, -30.0]}
    rows = tuple(
        made_up(loss, rate, Figure(skill, skill - 0.1, skill + 0.1), auc=Figure(0.9, 0.85, 0.95))
        for loss, some in skills.items()
        for rate, skill in zip(rates, some, strict=True)
    )
    (drawing,) = figures.prevalence_figures(Summary(replace(SMALL, populations=rates), 0, rows, (), ()))
    gain = drawing.plots[1]
    assert gain.y.low == pytest.approx(-1, abs=0.2)
    assert gain.y.high < 1


# The first picture.


def first_panel(summary: Summary) -> Sequence[page.OverviewRow]:
    found = page.overview(summary)
    assert found is not None
    return next(iter(found.panels.values()))


def test_the_first_picture_says_what_is_better_than_always_answering_pi_and_cuts_what_is_below_the_axis() -> None:
    nothing = Figure(float("-inf"), reason="a probability of 0")
    skills = {"information-gain": BETTER, "published": WORSE, "weighted": EVEN}
    beyond = {"published": Figure(-3.0, -9.0, -0.1), "weighted": nothing, "corrected": Figure(np.nan)}
    inside, (_, far, none, undefined) = (
        first_panel(Summary(SMALL, 0, tuple(made_up(loss, 0.001, skill) for loss, skill in each.items()), (), ()))
        for each in (skills, {"information-gain": BETTER, **beyond})
    )
    assert [(row.standing, *row.gain) for row in inside] == [
        ("better", "+20.0 %", "+10 to +30 %"),
        ("worse", "−20.0 %", "−30 to −10 %"),
        ("unclear", "0.0 %", "−10 to +10 %"),
    ]
    for row in inside:
        assert row.dot is not None
        assert 0 <= row.left < row.dot < row.right <= 100
        assert not row.cut
    assert (far.cut, far.dot, *far.gain) == (True, None, "−300 %", "−900 to −10 %")
    assert (none.cut, none.dot, none.gain.value, none.standing) == (True, None, "−∞ %", "worse")
    assert (undefined.cut, undefined.dot, *undefined.gain) == (False, None, "–", "")
    assert far.left == 0 < far.right


def test_the_first_picture_compares_with_the_default_on_the_same_nodules() -> None:
    differences = {"published": BETTER, "weighted": WORSE, ADJUSTED: EVEN}
    comparisons = tuple(compared_in("information-gain", loss, 0.001, each, EVEN) for loss, each in differences.items())
    rows = tuple(made_up(loss, 0.001, BETTER) for loss in ("information-gain", *differences, "corrected"))
    verdicts = [row.verdict for row in first_panel(Summary(SMALL, 0, rows, comparisons, ()))]
    assert verdicts == ["", "clearly worse", "clearly better", "no clear difference", "not compared"]


@pytest.mark.long
def test_the_highest_and_the_lowest_prevalence_are_shown_first_and_every_row_is_in_some_panel(tmp_path: Path) -> None:
    sources = (Source("contours"), Source("slices", "0"))
    config = replace(SMALL, sources=sources, populations=(0.03, 0.5, 0.001), folds=1, losses=TWO)
    summary = study(config, tmp_path)[1]
    found = page.overview(summary)
    assert found is not None
    assert list(found.panels)[: found.first] == [
        "Prevalence 50 %, readers' outlines, ConvNet",
        "Prevalence 1 in 1,000, readers' outlines, ConvNet",
    ]
    assert len(found.panels) == 6
    assert sum(map(len, found.panels.values())) == sum(row.key.loss != "constant" for row in summary.rows)
    assert found.ticks["0 %"] == found.zero


@pytest.mark.parametrize(
    ("changes", "reference"),
    [
        ({"losses": TWO, "starts": ("population", "equal")}, "information gain (default)"),
        ({"losses": ("weighted", "plain")}, "weighted loss"),
        ({"nets": ("mlp",), "inferences": ("ensemble", "map"), "losses": ("weighted",)}, "one net"),
        ({"nets": ("metadata", "both"), "task": "balanced"}, "image and metadata"),
    ],
    ids=["losses", "no default", "inferences", "nets"],
)
def test_every_study_has_a_first_picture_with_its_reference(changes: dict[str, Any], reference: str, tmp_path: Path) -> None:
    config = replace(SMALL, folds=1, num_folds=3, populations=(0.3,), **changes)
    summary = study(config, tmp_path)[1]
    found = page.overview(summary)
    assert found is not None
    assert [row.label for row in first_panel(summary) if not row.verdict] == [found.reference] == [reference]
    assert (len(found.panels), found.first) == (len(config.starts), 1)


# Where nets start, and what is left once they are matched.

STARTED = replace(SMALL, losses=("information-gain", "published"), starts=("population", "equal"))


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """A study from two starts: nets from equal classes differ from the others by their intercept, and can be matched."""
    out = tmp_path_factory.mktemp("started")
    fake_study(out, STARTED, nodules=100)
    results = read_study(out)
    runs, usual = [], {run.config: run.log_probs for run in results.runs if run.config.start == "population"}
    for run in results.runs:
        assert run.config.population is not None
        away = run.config.start == "equal"
        offset = -float(np.log(run.config.population / (1 - run.config.population))) if away else 0.0
        table = usual[replace(run.config, start="population")] + np.array([0.0, offset])
        table -= np.logaddexp.reduce(table, axis=1, keepdims=True)
        mean = 0.5 if away else run.config.population
        trace = (mean * (1 + run.config.fold),) * len(trace_steps(run.config.training.steps))
        runs.append(replace(run, log_probs=table, matched=(0.0, -offset), trace=trace))
    moved = replace(results, runs=tuple(runs))
    return moved, summarise(moved)


def test_traces_are_means_over_folds_with_a_figure_for_each_prevalence(started: Study) -> None:
    results = started[0]
    config = replace(STARTED, populations=(0.01, 0.3, 0.001))
    runs = [replace(run.config, population=rate) for rate in config.populations for run in results.runs]
    given = [replace(results.runs[0], config=run) for run in runs]
    drawn = figures.trace_figures(StudyResults(config, results.data, tuple(given)))
    assert [drawing.plots[0].title for drawing in drawn] == [
        f"π = {rate}, started at π" for rate in ("30 %", "1 in 1,000", "1 in 100")
    ]
    assert [each.name for each in drawn[0].plots[1].series] == ["π", "information gain", "as published"]
    case = ("published", "equal", 0.3)
    own = [run for run in results.runs if (run.config.loss, run.config.start, run.config.population) == case]
    short = replace(own[1], trace=own[1].trace[:3])  # its loss was not finite
    np.testing.assert_allclose(figures.mean_and_range([own[0], short])[:, [0, -1]], [[0.75, 0.5], [0.5, 0.5], [1.0, 0.5]])
    assert figures.trace_figures(replace(results, runs=(replace(results.runs[0], trace=()),))) == []


@pytest.mark.long
def test_the_page_shows_the_traces_and_a_panel_for_each_start(started: Study, tmp_path: Path) -> None:
    found = Elements(write_report(*started, tmp_path).read_text(encoding="utf-8"))
    assert not found.wrong
    assert {"table-matched", "table-checks"} <= set(found.all("id"))
    assert "an intercept that did not move" in "".join(found.text)
    assert len(list((tmp_path / "figures").glob("trace-*.svg"))) == 2
    shown = figures.panels_of(started[0])
    assert [panel.title.rpartition(", ")[2] for panel in shown] == ["started at π", "started at equal classes"]
    assert [len(some) for panel in shown for some in panel.columns.values()] == [2, 2, 2, 2]
    assert [page.slider_data(panel, STARTED)["title"] for panel in shown] == [panel.title for panel in shown]


def test_matching_takes_back_what_a_start_did(started: Study) -> None:
    summary = started[1]
    lines = {section.title: {line.label: line.entries for line in section.lines} for section in table_of(summary, "matched")}
    usual, away = (lines[f"ConvNet, started at {start}, π = 0.001"] for start in ("π", "equal classes"))
    default = "information gain (default)"
    assert usual[default][0].value == usual[default][1].value == away[default][1].value != away[default][0].value
    assert str(usual[default][5]) == "–"
    rows = {row.key: row.figures["expected_log_likelihood"].value for row in summary.rows}
    ours = next(key for key in rows if (key.loss, key.start, key.population) == ("information-gain", "population", 0.001))
    behind = rows[ours._replace(loss="published")] - rows[ours]
    shown = str(usual["information gain as published"][5]).partition(" ")[0]
    assert float(shown.replace("−", "-")) == pytest.approx(behind, rel=0.05)
    (start,) = (each for each in table_of(summary, "standings") if each.title.startswith("Started at equal"))
    counts = [[tuple(map(int, str(entry).split(" / "))) for entry in line.entries] for line in start.lines]
    assert sum(ahead + behind for (ahead, _, behind), *_ in counts) == 2
    assert all(line[1] == (0, 2, 0) for line in counts)
