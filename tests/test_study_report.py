"""The report: complete in itself, safe against its own text, the same bytes each time, and right in every number it makes."""

from __future__ import annotations

import base64
import dataclasses
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
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
from study_summaries import BETTER, EVEN, WORSE, all_comparisons, all_rows
from study_summaries import comparison as compared_in
from study_summaries import row as made_up

from rightloss import retarget
from rightloss.cli.commands import load_command
from rightloss.cli.study import configured
from rightloss.metrics import Figure
from rightloss.study.config import PRESETS, Source, StudyConfig, Training, options_of
from rightloss.study.methods import ADJUSTED, ADJUSTED_LABELLED, FULLY_LABELLED, METHODS
from rightloss.study.report import write_report
from rightloss.study.report.figures import (
    confusion,
    mean_and_range,
    mean_roc,
    panels_of,
    prevalence_figures,
    reliability_figure,
    roc_figure,
    trace_figures,
)
from rightloss.study.report.overview import Overview, OverviewRow, overview
from rightloss.study.report.page import command, grid, hardest_cases, judging_loss, settings, slider_data
from rightloss.study.report.tables import comparison_table, tables
from rightloss.study.results import StudyResults, cells, read_study, trace_steps
from rightloss.study.summary import Summary, summarise
from rightloss.study.summary.wording import SHORT_LOSSES, headline, incomplete

OPTIONS = {option.parameter for each in (StudyConfig, Training) for option in options_of(each).values()}
HOSTILE = "<img src=x onerror=alert(1)> $\\frac | `a` </script>"
SMALL = StudyConfig("quick", losses=("information-gain", "published", "weighted"), folds=2, num_folds=3)
RATINGS = dataclasses.replace(
    PRESETS["ratings"],
    losses=("information-gain", "published"),
    likelihoods=("onion-peeling", "categorical"),
    folds=2,
    num_folds=3,
)
VOID = {"meta", "link", "img", "input"}


@lru_cache
def study(config: StudyConfig, folder: Path, skip: int = 0) -> tuple[StudyResults, Summary]:
    fake_study(folder, config, nodules=120, skip=skip)
    results = read_study(folder)
    return results, summarise(results)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyResults, Summary]:
    return study(SMALL, tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyResults, Summary]:
    """As a user's file of that name would give it."""
    results, _ = study(dataclasses.replace(SMALL, sources=(Source("file"),)), tmp_path_factory.mktemp("hostile"))
    runs = tuple(dataclasses.replace(run, config=dataclasses.replace(run.config, data=HOSTILE)) for run in results.runs)
    config = dataclasses.replace(results.config, sources=(Source(HOSTILE),))
    renamed = StudyResults(config, {HOSTILE: dataclasses.replace(results.data["file"], name=HOSTILE)}, runs)
    return renamed, summarise(renamed)


@pytest.fixture(scope="module")
def written(hostile: tuple[StudyResults, Summary], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(*hostile, tmp_path_factory.mktemp("report"))


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
        if tag not in VOID:
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
def elements(written: Path) -> Elements:
    return Elements(written.read_text(encoding="utf-8"))


@pytest.mark.long
def test_every_element_is_closed_and_every_id_is_there_once(elements: Elements) -> None:
    assert not elements.wrong
    assert not elements.open
    assert max(Counter(elements.all("id")).values()) == 1


def test_every_reference_within_the_page_has_its_target(elements: Elements) -> None:
    ids = set(elements.all("id"))
    asked = [*elements.all("for"), *elements.all("aria-labelledby"), *elements.all("aria-describedby")]
    asked += [value[1:] for name in ("href", "xlink:href") for value in elements.all(name) if value.startswith("#")]
    asked += re.findall(r"url\(#([^)]+)\)", " ".join([*elements.all("clip-path"), *elements.all("style")]))
    assert len(asked) > 8
    assert not set(asked) - ids


def test_the_page_refers_to_nothing_outside_itself(elements: Elements) -> None:
    places = [
        value for name in ("src", "href", "xlink:href", "action", "data", "srcset", "poster") for value in elements.all(name)
    ]
    assert [value for value in places if not value.startswith(("#", "data:"))] == []
    assert "url(http" not in " ".join(elements.text + elements.all("style"))
    policy = next(attributes["content"] for name, attributes in elements.found if "http-equiv" in attributes)
    assert policy is not None
    assert policy.startswith("default-src 'none'; img-src data:; ")
    assert "script-src 'sha256-" in policy


def test_images_have_descriptions_and_controls_have_labels(elements: Elements) -> None:
    assert all(attributes.get("alt") for name, attributes in elements.found if name == "img")
    labelled = set(elements.all("for"))
    controls = [attributes["id"] for name, attributes in elements.found if name in ("input", "select")]
    assert len(controls) == 4
    assert set(controls) <= labelled
    assert all(attributes.get("aria-label") for _, attributes in elements.found if attributes.get("role") in ("img", "region"))
    assert "polite" in elements.all("aria-live")


def test_a_hostile_name_stays_text(elements: Elements, written: Path) -> None:
    assert HOSTILE in "".join(elements.text)
    assert not [name for name, attributes in elements.found if "onerror" in attributes]
    assert [attributes.get("type") for name, attributes in elements.found if name == "script"] == ["application/json", None]
    markdown = (written.parent / "report.md").read_text(encoding="utf-8")
    assert not [line for line in markdown.splitlines() if re.search(r"(?<!\\)<img", line) and not line.startswith("    ")]
    assert all(re.fullmatch(r"[a-z0-9-]+\.svg", file.name) for file in (written.parent / "figures").iterdir())


@pytest.mark.long
def test_the_same_results_give_the_same_bytes(hostile: tuple[StudyResults, Summary], written: Path, tmp_path: Path) -> None:
    write_report(*hostile, tmp_path)
    files = [sorted(file for file in folder.rglob("*") if file.is_file()) for folder in (written.parent, tmp_path)]
    assert [file.name for file in files[0]] == [file.name for file in files[1]]
    assert len(files[0]) == 2 + 2
    for one, other in zip(*files, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name


def test_markdown_shows_every_figure(written: Path) -> None:
    links = re.findall(r"\]\((figures/[^)]+)\)", (written.parent / "report.md").read_text(encoding="utf-8"))
    assert len(links) == 2
    assert all((written.parent / link).read_text(encoding="utf-8").startswith("<svg ") for link in links)


def test_figures_are_valid_files_that_draw_every_plot_with_its_legend(small: tuple[StudyResults, Summary]) -> None:
    (panel,) = panels_of(small[0])
    for drawing in (roc_figure(panel), reliability_figure(panel)):
        root = ElementTree.fromstring(drawing.svg())
        texts = ["".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")]
        assert [each.title for each in drawing.plots] == [text for text in texts if text.startswith("π = ")]
        assert all(series.name in texts for plot in drawing.plots for series in plot.series if series.name)
    curves = [[series.name for series in plot.series if "AUC" in series.name] for plot in roc_figure(panel).plots]
    assert [len(each) for each in curves] == [3, 0, 0, 0, 3, 0, 0, 0]


@pytest.mark.long
def test_the_mean_curve_has_the_mean_area_of_the_folds(small: tuple[StudyResults, Summary]) -> None:
    results, summary = small
    areas = {row.key: row.figures["auc"].value for row in summary.rows}
    for cell in cells(results):
        parts = [cell.fold == fold for fold in range(2)]
        expected = np.mean([roc_auc_score(cell.labels[part], cell.log_probs[part, 1]) for part in parts])
        curve = mean_roc(cell)
        assert curve is not None
        area = np.trapezoid(curve.true_positive_rate, curve.false_positive_rate)
        assert [area, curve.auc, areas[cell.key]] == pytest.approx([expected] * 3, rel=1e-8)
        assert (np.diff(curve.true_positive_rate) >= 0).all()
        assert (np.diff(curve.false_positive_rate) >= 0).all()


def test_the_mean_curve_is_right_where_predictions_tie(small: tuple[StudyResults, Summary]) -> None:
    cell = cells(small[0])[0]
    odds = np.round(cell.log_probs[:, 1] - cell.log_probs[:, 0])
    tied = dataclasses.replace(cell, log_probs=-np.logaddexp(0, np.stack([odds, -odds], 1)))
    curve = mean_roc(tied)
    assert curve is not None
    expected = np.mean([roc_auc_score(cell.labels[cell.fold == fold], odds[cell.fold == fold]) for fold in range(2)])
    assert np.trapezoid(curve.true_positive_rate, curve.false_positive_rate) == pytest.approx(expected)


def test_the_page_holds_the_log_odds_to_the_last_bit(small: tuple[StudyResults, Summary]) -> None:
    shown = panels_of(small[0])
    content = [slider_data(panel, SMALL) for panel in shown]
    assert [column["rate"] for column in content[0]["columns"]] == [0.3, 0.001]
    cell = shown[0].columns[1].cells[2]
    method = content[0]["columns"][1]["methods"][2]
    assert method["name"] == "weighted loss"
    for label, name in enumerate(("benign", "malignant")):
        odds = np.frombuffer(base64.b64decode(method[name]), "<f8")
        rows = cell.labels == label
        np.testing.assert_array_equal(odds, np.sort(cell.log_probs[rows, 1] - cell.log_probs[rows, 0]))
        assert method["patients"][name] == len(set(cell.patients[rows]))


def test_sliders_run_over_round_numbers_from_end_to_end() -> None:
    for lowest in (-4, -3):
        values = grid(lowest)
        steps = np.diff(np.log(values))
        assert (values[0], values[-1]) == (10.0**lowest, 0.5)
        assert 0 < steps.min()
        assert steps.max() < 0.2
        assert {0.001, 0.03, 0.05, 0.3} <= set(values)


def test_misjudged_nodules_are_those_with_most_probability_on_the_wrong_side(small: tuple[StudyResults, Summary]) -> None:
    results, _ = small
    data = results.data["contours"]
    wrong: dict[int, list[float]] = {}
    for run in results.runs:
        if run.config.loss == "information-gain":
            assert run.config.population is not None
            equal = retarget(torch.from_numpy(run.log_probs), from_=run.config.population, to=0.5).exp().numpy()
            for row, probability in zip(run.rows.tolist(), equal, strict=True):
                wrong.setdefault(row, []).append(float(probability[1 - data.labels[row]]))
    found = hardest_cases(results, "contours", most=10)
    for side in (0, 1):
        order = sorted((row for row in wrong if data.labels[row] == side), key=lambda row: -float(np.mean(wrong[row])))
        assert [each.row for each in found[side]] == order[:10]
        for each in found[side]:
            assert each.wrong == pytest.approx(np.mean(wrong[each.row]))
            assert each.share == np.mean([probability > 0.5 for probability in wrong[each.row]])
            assert set(each.by_loss) == set(SMALL.losses)


@pytest.mark.long
def test_the_page_has_every_table_with_our_figures_and_the_papers(small: tuple[StudyResults, Summary], tmp_path: Path) -> None:
    _, summary = small
    every = tables(summary)
    table = every[0]
    assert table.title.startswith("The paper's Table 1")
    lines = [line for section in table.sections for line in section.lines]
    values = {line.label: [entry.value for entry in line.entries] for line in lines}
    assert values["wLoss (paper)"][:3] == ["−0.0074", "0.74", "0.9989"]
    for row in summary.rows:
        text = f"{row.figures['tpr'].value:.3f}"
        assert any(line.entries[6].value == text for line in lines), (row.key, text)
    compared = comparison_table(summary)
    assert compared is not None
    page = Elements(write_report(*small, tmp_path).read_text(encoding="utf-8"))
    text = "".join(page.text)
    shown = [line for each in (*every, compared) for section in each.sections for line in section.lines]
    for line in shown:
        assert line.label in text
        assert all(entry.value in text and entry.range in text for entry in line.entries)
    assert all(note in text for each in every for note in each.notes)
    assert all(sentence in text for sentence in headline(summary))


@pytest.mark.long
def test_an_unfinished_study_says_so(tmp_path: Path) -> None:
    config = dataclasses.replace(SMALL, losses=("information-gain",))
    results, summary = study(config, tmp_path, skip=1)
    page = write_report(results, summary, tmp_path).read_text(encoding="utf-8")
    assert "1 of 4 runs are missing" in incomplete(summary)
    assert page.count(f'role="note">{escape(incomplete(summary))}</p>') == page.count(escape(incomplete(summary))) == 1


def test_a_study_without_a_run_has_a_page_that_says_so(tmp_path: Path) -> None:
    found = Elements(write_report(*study(SMALL, tmp_path, skip=12), tmp_path).read_text(encoding="utf-8"))
    assert "12 of 12 runs are missing" in "".join(found.text)
    assert "slider" not in found.all("id")


@pytest.fixture(scope="module")
def ratings(tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyResults, Summary]:
    return study(RATINGS, tmp_path_factory.mktemp("ratings"))


@pytest.mark.long
def test_confusion_agrees_with_the_figures_of_the_table(ratings: tuple[StudyResults, Summary]) -> None:
    results, summary = ratings
    figures = {row.key: row.figures for row in summary.rows}
    for cell in cells(results):
        shares = confusion(cell)
        near = np.array([[abs(truth - answer) <= 1 for answer in range(5)] for truth in range(5)])
        for level in range(5):
            expected = figures[cell.key][f"mean_off_by_one_recall_{level + 1}"].value
            assert shares[level][near[level]].sum() == pytest.approx(expected)


@pytest.mark.long
def test_ratings_have_a_page_without_a_slider(ratings: tuple[StudyResults, Summary], tmp_path: Path) -> None:
    found = Elements(write_report(*ratings, tmp_path).read_text(encoding="utf-8"))
    assert {"tables", "nodules", "methods"} <= set(found.all("id"))
    assert "Readers' ratings (rows) and predicted ones: readers' outlines, ConvNet, onion peeling" in "".join(found.text)
    assert "slider" not in found.all("id")
    assert [file.name for file in sorted((tmp_path / "figures").glob("*.svg"))] == ["ratings-readers-outlines-convnet.svg"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("preset", "changes", "figures"),
    [
        ("features", {"inferences": ("map", "laplace"), "populations": (0.3, 0.001)}, {"inferences"}),
        ("metadata", {"nets": ("metadata", "both"), "populations": (0.5, 0.03, 0.001)}, {"nets"}),
        ("prevalence-sweep", {"losses": ("plain", "weighted"), "populations": (0.5, 0.03, 0.001)}, {"prevalences"}),
    ],
)
def test_a_study_has_the_figures_that_it_asks_for(
    preset: str, changes: dict[str, Any], figures: set[str], tmp_path: Path
) -> None:
    options: dict[str, Any] = {"losses": ("information-gain",), "folds": 1, "num_folds": 3, **changes}
    config = dataclasses.replace(PRESETS[preset], **options)
    write_report(*study(config, tmp_path), tmp_path)
    kinds = {file.name.partition("-")[0] for file in (tmp_path / "figures").glob("*.svg")}
    assert kinds == {"roc", "reliability", *figures}


@pytest.mark.long
def test_nodules_are_judged_by_a_loss_that_predicts_for_the_prevalence(tmp_path: Path) -> None:
    config = dataclasses.replace(SMALL, losses=("plain", "weighted"))
    results, summary = study(config, tmp_path)
    assert judging_loss(results) == "weighted"
    assert {loss for side in hardest_cases(results, "contours").values() for each in side for loss in each.by_loss} == {
        "weighted"
    }
    page = write_report(results, summary, tmp_path).read_text(encoding="utf-8")
    assert "Judged by the weighted loss over all nets" in page
    assert judging_loss(dataclasses.replace(results, runs=())) is None


CONFIGS = [
    PRESETS["quick"],
    dataclasses.replace(PRESETS["quick"], folds=2, seeds=3, losses=("weighted", "plain"), populations=(0.25, 1e-5)),
    dataclasses.replace(PRESETS["features"], inferences=("map", "ensemble"), evidence=0.5),
    dataclasses.replace(PRESETS["table1"], starts=("equal", "population"), minibatches=("raw", "rebalanced")),
    dataclasses.replace(
        PRESETS["ratings"],
        training=dataclasses.replace(PRESETS["ratings"].training, steps=7, checkpoints=3, learning_rates=(0.1,)),
    ),
    dataclasses.replace(PRESETS["table2"], training=dataclasses.replace(PRESETS["table2"].training, small=True, views=6)),
    dataclasses.replace(
        PRESETS["features"],
        training=dataclasses.replace(PRESETS["features"].training, averaging=0.9, prior_scales=(0.1, 3.0)),
    ),
    dataclasses.replace(PRESETS["quick"], training=dataclasses.replace(PRESETS["quick"].training, precision="bf16-mixed")),
]


def test_the_settings_are_those_of_the_config(
    small: tuple[StudyResults, Summary], ratings: tuple[StudyResults, Summary]
) -> None:
    found = settings(small[0])
    data = small[0].data["contours"]
    counts = f"{len(data.labels)} nodules, {len(set(data.patients))} patients, {(data.labels == 1).sum()} malignant"
    assert found["Data"] == f"readers' outlines: {counts}"
    assert (found["Tested"], found["Runs"]) == ("2 of 3 folds by patient, 1 seed", "12 of 12")
    assert found["Prevalence"] == "30 % and 1 in 1,000; evidence κ = 1"
    assert settings(ratings[0])["Prevalence"].startswith("shares of the readers’ votes")


@pytest.mark.parametrize(("losses", "unlabelled"), [(FULLY_LABELLED, 0.0), ((ADJUSTED, ADJUSTED_LABELLED), 0.5)])
def test_every_loss_has_a_short_name_and_is_explained_on_the_page(
    losses: tuple[str, ...], unlabelled: float, tmp_path: Path
) -> None:
    assert set(SHORT_LOSSES) == set(METHODS) == {*FULLY_LABELLED, ADJUSTED_LABELLED}
    config = dataclasses.replace(SMALL, losses=losses, unlabelled=unlabelled)
    page = write_report(*study(config, tmp_path, skip=len(config.runs())), tmp_path).read_text(encoding="utf-8")
    explained = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page)[-len(losses) :]
    assert [title for title, _ in explained] == [escape(METHODS[loss].title) for loss in losses]
    assert all(len(meaning) > 30 for _, meaning in explained)
    assert ("are the same loss here" in page) == (not unlabelled)


def test_the_headline_counts_cases_against_the_prevalence_and_against_others() -> None:
    rows = tuple(all_rows(information_gain=WORSE))
    assert headline(Summary(SMALL, 0, rows, (), ())) == [
        "Against always answering π, information gain (default): clearly better in 0 of 2 cases, clearly worse in 2."
    ]
    by_loss = (compared_in("information-gain", "weighted", 0.3, BETTER, EVEN),)
    against = [comparison for comparison in (*by_loss, dataclasses.replace(by_loss[0], about="net"))]
    found = headline(Summary(SMALL, 0, tuple(all_rows()), tuple(against), ()))
    assert (
        found[1]
        == "Image and metadata together, against either alone: clearly better in 1 of 1 comparison, clearly worse in none."
    )
    never = tuple(all_rows(information_gain=Figure(-np.inf, reason="a probability of 0")))
    assert "clearly worse in 2" in headline(Summary(SMALL, 0, never, (), ()))[0]
    assert headline(Summary(SMALL, 0, (), (), ())) == ["No run is done yet."]


@pytest.mark.long
@pytest.mark.parametrize("config", CONFIGS, ids=[command(config) for config in CONFIGS])
def test_the_command_makes_the_same_study(config: StudyConfig) -> None:
    words = shlex.split(command(config))
    given = load_command("study").make_context("study", words[2:]).params
    options = {name: value for name, value in given.items() if name in OPTIONS and value not in (None, ())}
    assert configured(given["preset"], options) == config


def test_the_command_is_safe_to_paste_whatever_a_file_is_called() -> None:
    config = dataclasses.replace(PRESETS["quick"], sources=(Source("contours"), Source("a; rm -rf $HOME")))
    assert shlex.split(command(config))[5:9] == ["--data", "contours", "--data", "a; rm -rf $HOME.npz"]


@pytest.mark.long
def test_a_gain_far_below_the_axis_does_not_stretch_it_above() -> None:
    rates = (0.5, 0.03, 0.001)
    config = dataclasses.replace(SMALL, populations=rates)
    skills = {"information-gain": [0.5, 0.3, 0.2], "published": [0.5, 0.2, -30.0]}
    rows = tuple(
        made_up(loss, rate, Figure(skill, skill - 0.1, skill + 0.1), auc=Figure(0.9, 0.85, 0.95))
        for loss, some in skills.items()
        for rate, skill in zip(rates, some, strict=True)
    )
    (drawing,) = prevalence_figures(Summary(config, 0, rows, (), ()))
    gain = drawing.plots[1]
    assert gain.y.low == pytest.approx(-1, abs=0.2)
    assert gain.y.high < 1


PAIRS = dataclasses.replace(SMALL, sources=(Source("contours"), Source("slices", "0")))


def first_panel(found: Overview) -> Sequence[OverviewRow]:
    return next(iter(found.panels.values()))


def picture_of(skills: dict[str, Figure]) -> Sequence[OverviewRow]:
    rows = tuple(made_up(loss, 0.001, skill) for loss, skill in skills.items())
    found = overview(Summary(SMALL, 0, rows, tuple(all_comparisons()), ()))
    assert found is not None
    return first_panel(found)


def test_the_first_picture_says_what_is_better_and_worse_than_always_answering_the_prevalence() -> None:
    rows = picture_of({"information-gain": BETTER, "published": WORSE, "weighted": EVEN})
    assert [row.standing for row in rows] == ["better", "worse", "unclear"]
    assert [tuple(row.gain) for row in rows] == [
        ("+20.0 %", "+10 to +30 %"),
        ("−20.0 %", "−30 to −10 %"),
        ("0.0 %", "−10 to +10 %"),
    ]
    for row in rows:
        assert row.dot is not None
        assert 0 <= row.left < row.dot < row.right <= 100


def test_the_first_picture_compares_with_the_default_on_the_same_nodules() -> None:
    comparisons = (
        compared_in("information-gain", "published", 0.001, BETTER, EVEN),
        compared_in("information-gain", "weighted", 0.001, WORSE, EVEN),
        compared_in("information-gain", "logit-adjusted", 0.001, EVEN, EVEN),
    )
    losses = ("information-gain", "published", "weighted", "logit-adjusted", "corrected")
    rows = tuple(made_up(loss, 0.001, BETTER) for loss in losses)
    found = overview(Summary(SMALL, 0, rows, comparisons, ()))
    assert found is not None
    verdicts = [row.verdict for row in first_panel(found)]
    assert verdicts == ["", "clearly worse", "clearly better", "no clear difference", "not compared"]
    assert found.reference == "information gain (default)"


def test_a_gain_below_the_axis_is_cut_and_written_out() -> None:
    nothing = Figure(float("-inf"), reason="a probability of 0")
    default, far, none, undefined = picture_of(
        {"information-gain": BETTER, "published": Figure(-3.0, -9.0, -0.1), "weighted": nothing, "corrected": Figure(np.nan)}
    )
    assert (default.cut, far.cut, none.cut, undefined.cut) == (False, True, True, False)
    assert (far.dot, *far.gain) == (None, "−300 %", "−900 to −10 %")
    assert (none.dot, none.gain.value, none.standing) == (None, "−∞ %", "worse")
    assert (undefined.dot, *undefined.gain) == (None, "–", "")
    assert far.left == 0 < far.right


@pytest.mark.long
def test_two_panels_are_shown_first_and_every_row_is_in_some_panel(tmp_path: Path) -> None:
    config = dataclasses.replace(PAIRS, populations=(0.03, 0.5, 0.001), folds=1)
    _, summary = study(config, tmp_path)
    found = overview(summary)
    assert found is not None
    assert list(found.panels)[: found.first] == [
        "Prevalence 50 %, readers' outlines, ConvNet",
        "Prevalence 1 in 1,000, readers' outlines, ConvNet",
    ]
    assert len(found.panels) == 6
    rows = [row for panel in found.panels.values() for row in panel]
    assert len(rows) == sum(row.key.loss != "constant" for row in summary.rows)
    assert found.ticks["0 %"] == found.zero


@pytest.mark.parametrize(
    ("losses", "starts", "reference"),
    [
        (("information-gain", "weighted"), ("population", "equal"), "information gain (default)"),
        (("information-gain", "weighted"), ("equal",), "information gain (default)"),
        (("weighted", "plain"), ("population",), "weighted loss"),
    ],
)
def test_every_study_with_a_run_has_a_first_picture(
    losses: tuple[str, ...], starts: tuple[str, ...], reference: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"losses": losses, "starts": starts, "folds": 1, "num_folds": 3, "populations": (0.3,)}
    by_inference = dataclasses.replace(PRESETS["features"], inferences=("ensemble", "map"), **options)
    one = overview(study(by_inference, tmp_path / "one", skip=len(by_inference.runs()) - 1)[1])
    assert one is not None
    assert [len(rows) for rows in one.panels.values()] == [1]
    found = overview(study(dataclasses.replace(PRESETS["quick"], **options), tmp_path / "losses")[1])
    assert found is not None
    assert [row.label for row in first_panel(found) if not row.verdict] == [reference]
    assert (len(found.panels), found.first) == (len(starts), 1)


STARTED = dataclasses.replace(SMALL, losses=("information-gain", "published"), starts=("population", "equal"))


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyResults, Summary]:
    """A study from two starts: nets from equal classes differ from the others by their intercept, and can be matched."""
    results, _ = study(STARTED, tmp_path_factory.mktemp("started"))
    runs, usual = [], {run.config: run.log_probs for run in results.runs if run.config.start == "population"}
    for run in results.runs:
        assert run.config.population is not None
        away = run.config.start == "equal"
        offset = -float(np.log(run.config.population / (1 - run.config.population))) if away else 0.0
        table = usual[dataclasses.replace(run.config, start="population")] + np.array([0.0, offset])
        table -= np.logaddexp.reduce(table, axis=1, keepdims=True)
        mean = 0.5 if away else run.config.population
        steps = len(trace_steps(run.config.training.steps))
        trace = tuple(mean * (1 + run.config.fold) for _ in range(steps))
        runs.append(dataclasses.replace(run, log_probs=table, matched=(0.0, -offset), trace=trace))
    moved = dataclasses.replace(results, runs=tuple(runs))
    return moved, summarise(moved)


def test_traces_are_means_over_folds_with_a_figure_for_each_prevalence(started: tuple[StudyResults, Summary]) -> None:
    results = started[0]
    config = dataclasses.replace(STARTED, populations=(0.01, 0.3, 0.001))
    runs = [dataclasses.replace(run.config, population=rate) for rate in config.populations for run in results.runs]
    given = [dataclasses.replace(results.runs[0], config=run) for run in runs]
    drawn = trace_figures(StudyResults(config, results.data, tuple(given)))
    assert [drawing.title.partition(",")[0] for drawing in drawn[:1]] == ["π = 30 %"]
    assert [drawing.plots[0].title for drawing in drawn] == [
        f"π = {rate}, started at π" for rate in ("30 %", "1 in 1,000", "1 in 100")
    ]
    assert [each.name for each in drawn[0].plots[1].series] == ["π", "information gain", "as published"]
    case = ("published", "equal", 0.3)
    own = [run for run in results.runs if (run.config.loss, run.config.start, run.config.population) == case]
    short = dataclasses.replace(own[1], trace=own[1].trace[:3])  # its loss was not finite
    np.testing.assert_allclose(mean_and_range([own[0], short])[:, [0, -1]], [[0.75, 0.5], [0.5, 0.5], [1.0, 0.5]])
    assert trace_figures(dataclasses.replace(results, runs=(dataclasses.replace(results.runs[0], trace=()),))) == []


@pytest.mark.long
def test_the_page_shows_the_traces_and_what_is_left_once_matched(started: tuple[StudyResults, Summary], tmp_path: Path) -> None:
    page = Elements(write_report(*started, tmp_path).read_text(encoding="utf-8"))
    assert not page.wrong
    assert {"table-matched", "table-checks"} <= set(page.all("id"))
    assert "an intercept that did not move" in "".join(page.text)
    assert len(list((tmp_path / "figures").glob("trace-*.svg"))) == 2


def test_matching_takes_back_what_a_start_did(started: tuple[StudyResults, Summary]) -> None:
    summary = started[1]
    (table,) = (table for table in tables(summary) if table.name == "matched")
    lines = {section.title: {line.label: line.entries for line in section.lines} for section in table.sections}
    usual, away = (lines[f"ConvNet, started at {start}, π = 0.001"] for start in ("π", "equal classes"))
    default = "information gain (default)"
    assert usual[default][0].value == usual[default][1].value == away[default][1].value != away[default][0].value
    assert str(usual[default][5]) == "–"
    rows = {row.key: row.figures["expected_log_likelihood"].value for row in summary.rows}
    ours = next(key for key in rows if (key.loss, key.start, key.population) == ("information-gain", "population", 0.001))
    behind = rows[ours._replace(loss="published")] - rows[ours]
    shown = str(usual["information gain as published"][5]).partition(" ")[0]
    assert float(shown.replace("−", "-")) == pytest.approx(behind, rel=0.05)
    (standings,) = (table for table in tables(summary) if table.name == "standings")
    (start,) = (section for section in standings.sections if section.title.startswith("Started at equal"))
    counts = [[tuple(map(int, str(entry).split(" / "))) for entry in line.entries] for line in start.lines]
    assert sum(ahead + behind for (ahead, _, behind), *_ in counts) == 2
    assert all(line[1] == (0, 2, 0) for line in counts)


def test_every_panel_has_one_start_and_the_slider_says_which(started: tuple[StudyResults, Summary]) -> None:
    shown = panels_of(started[0])
    assert [panel.title.rpartition(", ")[2] for panel in shown] == ["started at π", "started at equal classes"]
    assert [len(column.cells) for panel in shown for column in panel.columns] == [2, 2, 2, 2]
    assert [slider_data(panel, STARTED)["title"] for panel in shown] == [panel.title for panel in shown]
