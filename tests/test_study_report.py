"""The report: complete in itself, safe against its own text, the same bytes each time, and right in every number it makes."""

from __future__ import annotations

import base64
import dataclasses
import re
import shlex
from collections import Counter
from functools import lru_cache
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

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
from rightloss.study.methods import METHODS
from rightloss.study.pooled_predictions import cells
from rightloss.study.report import write_report
from rightloss.study.report.claims import claims
from rightloss.study.report.figures import confusion, prevalence_figures
from rightloss.study.report.hardest_cases import describe_ratings, hardest_cases, judging_loss
from rightloss.study.report.methods_section import LOSSES, command, facts, glossary, methods
from rightloss.study.report.overview import OverviewRow, overview
from rightloss.study.report.panel_figures import Panel, mean_roc, panels_of, roc_figure
from rightloss.study.report.slider import grid, slider_data
from rightloss.study.report.tables import beyond_intercept, comparison_table, tables
from rightloss.study.report.trace_figure import CAPTION, mean_and_range, trace_figures
from rightloss.study.results import StudyResults, read_study, trace_steps
from rightloss.study.summary import CellSummary, Comparison, PaperCheck, Summary, summarise
from rightloss.study.summary.checks import LOWER_LIKELIHOOD, NO_SENSITIVITY, paper_checks
from rightloss.study.summary.headline import headline
from rightloss.study.summary.wording import SHORT_LOSSES, one_in

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
    assert len(asked) > 50
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
    assert all(re.fullmatch(r"[a-z0-9-]+\.(svg|png)", file.name) for file in (written.parent / "figures").iterdir())


@pytest.mark.long
def test_the_same_results_give_the_same_bytes(hostile: tuple[StudyResults, Summary], written: Path, tmp_path: Path) -> None:
    write_report(*hostile, tmp_path)
    files = [sorted(file for file in folder.rglob("*") if file.is_file()) for folder in (written.parent, tmp_path)]
    assert [file.name for file in files[0]] == [file.name for file in files[1]]
    assert len(files[0]) == 2 + 2 * 2
    for one, other in zip(*files, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name


def test_markdown_shows_every_figure(written: Path) -> None:
    links = re.findall(r"\]\((figures/[^)]+)\)", (written.parent / "report.md").read_text(encoding="utf-8"))
    assert len(links) == 2
    for link in links:
        png = (written.parent / link).read_bytes()
        assert png.startswith(b"\x89PNG")
        assert (written.parent / link).with_suffix(".svg").exists()


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
    content = slider_data(shown)
    assert [column["rate"] for column in content["panels"][0]["columns"]] == [0.3, 0.001]
    cell = shown[0].columns[1].cells[2]
    method = content["panels"][0]["columns"][1]["methods"][2]
    assert method["name"] == "weighted loss"
    for label, name in enumerate(("benign", "malignant")):
        odds = np.frombuffer(base64.b64decode(method[name]), "<f8")
        rows = cell.labels == label
        np.testing.assert_array_equal(odds, np.sort(cell.log_probs[rows, 1] - cell.log_probs[rows, 0]))


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


def test_ratings_are_described_in_words() -> None:
    assert describe_ratings(np.array([1, 2, 0, 0, 0])) == "rated 1, 2, 2 by three readers"
    assert describe_ratings(np.array([0, 0, 0, 0, 1])) == "rated 5 by one reader"
    assert describe_ratings(np.array([0, 0, 9, 0, 0])) == "rated 3, 3, 3, 3, 3, 3, 3, 3, 3 by 9 readers"
    assert describe_ratings(np.zeros(5, dtype=np.int64)) == "not rated"


@pytest.mark.long
def test_the_page_has_every_table_with_our_figures_and_the_papers(small: tuple[StudyResults, Summary], tmp_path: Path) -> None:
    _, summary = small
    table, costs = tables(summary, more=True)
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
    every = (table, costs, compared)
    shown = [line for each in every for section in each.sections for line in section.lines]
    for line in shown:
        assert line.label in text
        assert all(entry.value in text for entry in line.entries)
        assert all(entry.interval in text or entry.interval.replace(" to ", "–") in text for entry in line.entries)
    sections = sum(len(each.sections) for each in every)
    rows = [name for name, _ in page.found if name == "tr"]
    losses, found = len(summary.rows) - 2, claims(summary)
    # The heads of the tables, of the claims, and of the slider's two; a row of the picture for each loss.
    assert len(rows) == len(shown) + sections + 6 + losses + len(found)


@pytest.mark.long
def test_an_unfinished_study_says_so(tmp_path: Path) -> None:
    config = dataclasses.replace(SMALL, losses=("information-gain",))
    results, summary = study(config, tmp_path, skip=1)
    page = write_report(results, summary, tmp_path).read_text(encoding="utf-8")
    assert "1 of 4 runs are missing" in summary.findings[0]
    assert page.count(f'role="note">{escape(summary.findings[0])}</p>') == page.count(escape(summary.findings[0])) == 1


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
    assert {"ratings", "tables", "nodules", "methods"} <= set(found.all("id"))
    assert "slider" not in found.all("id")
    assert [file.name for file in sorted((tmp_path / "figures").glob("*.svg"))] == ["ratings-readers-outlines-convnet.svg"]
    colours = re.findall(r"(?:fill|stroke): ([^;\"]+)", "; ".join(found.all("style")))
    assert len(colours) > 100
    assert not [each for each in colours if not re.fullmatch(r"none|currentColor|var\(--[a-z0-9-]+\)|#[0-9a-f]{6}", each)]


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


def test_the_methods_section_describes_the_config(
    small: tuple[StudyResults, Summary], ratings: tuple[StudyResults, Summary]
) -> None:
    results = small[0]
    usual = " ".join(methods(results))
    assert "Tested: 2 folds of 3, by patient" in usual
    assert "weights averaged over steps" in usual
    assert "Prevalence of malignant nodules passed to the losses: 30 % and 0.1 % (known: κ = 1)." in usual
    training = dataclasses.replace(SMALL.training, averaging=0.0)
    config = dataclasses.replace(SMALL, evidence=0.5, training=training)
    published = {name: dataclasses.replace(each, ratings=each.ratings[:0]) for name, each in results.data.items()}
    other = " ".join(methods(StudyResults(config, published, results.runs)))
    assert "Tested: the training, validation and test parts" in other
    assert "by patient" not in other
    assert "weights not averaged over steps" in other
    assert "0.1 %, as if counted in 0.5 people per training example." in other
    of_ratings = " ".join(methods(ratings[0]))
    assert "Shares of the ratings passed to the losses: those of the readers' votes" in of_ratings
    assert "Prevalence of malignant" not in of_ratings


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
        training=dataclasses.replace(PRESETS["features"].training, weight_decay=0.0, averaging=0.9, prior_scales=(0.1, 3.0)),
    ),
    dataclasses.replace(PRESETS["quick"], training=dataclasses.replace(PRESETS["quick"].training, precision="bf16-mixed")),
]


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


def test_every_loss_has_a_short_name_and_is_explained() -> None:
    assert set(SHORT_LOSSES) == set(LOSSES) == set(METHODS)
    explained = glossary(RATINGS)
    assert set(explained) == {"Information gain (default)", "Information gain as published", "Gain, or skill"}


def test_shares_are_written_as_people_say_them() -> None:
    assert [one_in(rate) for rate in (0.001, 0.1, 0.3, 0.5, 0.003, 1 / 3)] == [
        "1 in 1,000",
        "1 in 10",
        "30 %",
        "50 %",
        "0.3 %",
        "33.3 %",
    ]


@pytest.mark.long
def test_roc_curves_of_many_prevalences_go_on_below_and_every_one_is_drawn(small: tuple[StudyResults, Summary]) -> None:
    column = panels_of(small[0])[0].columns[0]

    def drawn(count: int) -> tuple[float, float, str]:
        rates = [0.5 / (place + 1) for place in range(count)]
        svg = roc_figure(Panel("many", tuple(dataclasses.replace(column, rate=rate) for rate in rates))).svg
        width, height = (float(each) for each in re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)[0])
        return width, height, svg

    four, seven = drawn(4), drawn(7)
    assert seven[0] == four[0]
    assert seven[1] == pytest.approx(2 * four[1])
    assert seven[2].count("False positive rate") == 7
    assert seven[2].count("Predicted probability of malignancy") == 7


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
    (drawing,) = prevalence_figures(Summary(config, 0, "", "", rows, (), (), ()))
    ticks = {float(each.replace("−", "-")) for each in re.findall(r">([−-]?\d\.\d+)<", drawing.svg)}
    assert -1.0 in ticks
    assert max(ticks - {0.85, 0.9, 0.95}) < 1


PAIRS = dataclasses.replace(SMALL, sources=(Source("contours"), Source("slices", "0")))


def picture_of(skills: dict[str, Figure]) -> tuple[OverviewRow, ...]:
    rows = tuple(made_up(loss, 0.001, skill) for loss, skill in skills.items())
    found = overview(Summary(SMALL, 0, "", "", rows, tuple(all_comparisons()), (), ()))
    assert found is not None
    return found.shown[0].rows


def test_the_first_picture_says_what_is_better_and_worse_than_always_answering_the_prevalence() -> None:
    rows = picture_of({"information-gain": BETTER, "published": WORSE, "weighted": EVEN})
    assert [row.standing for row in rows] == ["better", "worse", "unclear"]
    assert [(row.value, row.interval) for row in rows] == [
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
    found = overview(Summary(SMALL, 0, "", "", rows, comparisons, (), ()))
    assert found is not None
    verdicts = [row.verdict for row in found.shown[0].rows]
    assert verdicts == ["", "clearly worse", "clearly better", "no clear difference", "not compared"]
    assert [row.main for row in found.shown[0].rows] == [True, False, False, False, False]


def test_a_gain_below_the_axis_is_cut_and_written_out() -> None:
    nothing = Figure(float("-inf"), reason="a probability of 0")
    default, far, none, undefined = picture_of(
        {"information-gain": BETTER, "published": Figure(-3.0, -9.0, -0.1), "weighted": nothing, "corrected": Figure(np.nan)}
    )
    assert (default.cut, far.cut, none.cut, undefined.cut) == (False, True, True, False)
    assert (far.dot, far.value, far.interval) == (None, "−300 %", "−900 to −10 %")
    assert (none.dot, none.value, none.standing) == (None, "−∞ %", "worse")
    assert (undefined.dot, undefined.value, undefined.interval) == (None, "–", "")
    assert far.left == 0 < far.right


@pytest.mark.long
def test_two_panels_are_shown_first_and_every_row_is_in_some_panel(tmp_path: Path) -> None:
    config = dataclasses.replace(PAIRS, populations=(0.03, 0.5, 0.001), folds=1)
    _, summary = study(config, tmp_path)
    found = overview(summary)
    assert found is not None
    assert [panel.title for panel in found.shown] == [
        "Prevalence 50 %, readers' outlines, ConvNet",
        "Prevalence 1 in 1,000, readers' outlines, ConvNet",
    ]
    assert len(found.more) == 4
    rows = [row for panel in (*found.shown, *found.more) for row in panel.rows]
    assert len(rows) == sum(row.key.loss != "constant" for row in summary.rows)
    assert found.ticks["0 %"] == found.zero


def test_a_claim_checked_in_several_places_is_one_row_with_counts() -> None:
    one = PaperCheck("it falls", "net 1", "does not", "", paper="0.3", ours="0.2")
    other = dataclasses.replace(one, where="net 2", verdict="undecided", ours="0.1")
    alone = dataclasses.replace(one, about="it rises")
    found = claims(Summary(SMALL, 0, "", "", (), (), (one, other, alone), ()))
    assert [each.about for each in found] == ["it falls", "it rises"]
    assert found[0].verdicts == {"does not": "does not reproduce in 1 of 2", "undecided": "undecided in 1 of 2"}
    assert (found[0].paper, found[0].ours) == ("0.3", ("net 1: 0.2 – does not reproduce", "net 2: 0.1 – undecided"))
    assert (found[1].verdicts, found[1].ours) == ({"does not": "does not reproduce"}, ("0.2",))
    starts = tuple(
        dataclasses.replace(one, setting={"net": "convnet", "start": start}, ours=start) for start in ("population", "equal")
    )
    (by_start,) = claims(Summary(SMALL, 0, "", "", (), (), starts, ()))
    assert [line.partition(":")[0] for line in by_start.ours] == ["started at π", "started at equal classes"]
    many = claims(Summary(SMALL, 0, "", "", (), (), (one, other, one, other, one), ()))
    assert many[0].ours == ("several: see every check below",)


@pytest.mark.long
def test_nothing_that_was_said_before_is_missing_from_the_page(small: tuple[StudyResults, Summary], tmp_path: Path) -> None:
    results, summary = small
    page = "".join(Elements(write_report(*small, tmp_path).read_text(encoding="utf-8")).text)
    markdown = (tmp_path / "report.md").read_text(encoding="utf-8")
    sentences = [*headline(summary), summary.answer, summary.question, *summary.findings]
    sentences += [check.sentence for check in summary.checks]
    for sentence in sentences:
        assert sentence in page
        assert sentence in markdown
    assert all(sentence in page for sentence in methods(results))


def test_the_headline_says_which_loss_to_avoid_and_where() -> None:
    rows = tuple(all_rows(published=BETTER))

    def found(*comparisons: Comparison, rows: tuple[CellSummary, ...] = rows) -> tuple[str, ...]:
        return headline(Summary(SMALL, 0, "", "", rows, comparisons, (), ()))

    def against(loss: str, rate: float, difference: Figure) -> Comparison:
        return compared_in("information-gain", loss, rate, difference, EVEN)

    even = [against(loss, rate, EVEN) for loss in ("published", "weighted") for rate in (0.3, 0.001)]
    all_beat = "All three losses clearly beat always answering the prevalence, at 30 % and 1 in 1,000."
    assert found(*even) == (
        "No other loss differs clearly from the default information gain, at 30 % and 1 in 1,000.",
        all_beat,
    )
    worse = [even[0], against("published", 0.001, BETTER), *even[2:]]
    assert found(*worse) == (
        "At a prevalence of 1 in 1,000, avoid the information gain as published; otherwise no loss differs clearly from the "
        "default information gain.",
        "The other two losses clearly beat always answering the prevalence, at 30 % and 1 in 1,000.",
    )
    better = [*even[:3], against("weighted", 0.001, WORSE)]
    assert found(*better) == (
        "At a prevalence of 1 in 1,000, prefer the weighted loss to the default information gain; otherwise no loss differs "
        "clearly from it.",
        all_beat,
    )
    in_two_nets = found(*worse, *even)
    assert "avoid the information gain as published (clearly worse in 1 of 2 settings); otherwise" in in_two_nets[0]
    both_ways = found(*worse, against("published", 0.001, WORSE))
    assert both_ways[1].startswith(
        "Against the other losses, it is clearly better in 1 of 5 comparisons and clearly worse in 1"
    )
    assert all("avoid" not in each for each in both_ways)
    blind = tuple(all_rows(information_gain=EVEN, published=BETTER))
    assert found(*even, rows=blind)[1].endswith("predicts clearly better than always answering the prevalence in 0 of 2 cases.")


def test_the_headline_of_many_prevalences_counts_them() -> None:
    rates = (0.5, 0.1, 0.01, 0.001)
    rows = tuple(made_up(loss, rate, BETTER) for loss in ("information-gain", "plain") for rate in rates)
    worse = [compared_in("information-gain", "plain", rate, BETTER, EVEN) for rate in rates]
    found = headline(Summary(dataclasses.replace(SMALL, populations=rates), 0, "", "", rows, tuple(worse), (), ()))
    assert found == (
        "At every prevalence, avoid cross-entropy as it is.",
        "The default information gain clearly beats always answering the prevalence, at every prevalence.",
    )


def test_a_loss_that_gave_a_probability_of_zero_to_what_happened_is_one_to_avoid() -> None:
    rows = tuple(all_rows(published=Figure(float("-inf"), reason="a probability of 0")))
    undefined = compared_in("information-gain", "published", 0.001, Figure(np.nan), EVEN)
    assert headline(Summary(SMALL, 0, "", "", rows, (undefined,), (), ()))[0].startswith(
        "At a prevalence of 1 in 1,000, avoid the information gain as published."
    )


def test_headlines_of_other_studies_count_cases_in_two_sentences_at_most() -> None:
    rows, config = tuple(all_rows()), SMALL
    alone = tuple(row for row in all_rows(information_gain=WORSE) if row.key.loss == "information-gain")
    assert headline(Summary(config, 0, "", "", alone, (), (), ())) == (
        "The default information gain predicts clearly better than always answering the prevalence in 0 of 2 cases, "
        "and is clearly worse in 2.",
    )
    others = tuple(row for row in rows if row.key.loss != "information-gain")
    assert headline(Summary(config, 0, "", "", others, (), (), ())) == (
        "A trained net predicts clearly better than always answering the prevalence in 2 of 4 cases, "
        "and is clearly worse in 2.",
    )
    assert headline(Summary(config, 0, "", "", (), (), (), ())) == ("No run is done yet.",)
    by_net = dataclasses.replace(compared_in("information-gain", "weighted", 0.3, BETTER, EVEN), about="net")
    with_nets = headline(Summary(config, 0, "", "", rows, (*all_comparisons(), by_net), (), ()))
    assert with_nets[1] == (
        "Against either alone, image and metadata together are clearly better in 1 of 1 comparison and clearly worse in none."
    )


def test_claims_say_what_a_reader_needs_to_judge_them() -> None:
    rows, comparisons = all_rows(), all_comparisons()
    summary = Summary(SMALL, 0, "", "", tuple(rows), (), paper_checks(rows, comparisons, SMALL), ())
    found = {claim.about: claim for claim in claims(summary)}
    (sensitivity,) = (claim for about, claim in found.items() if about.startswith(NO_SENSITIVITY))
    assert sensitivity.about.endswith("from a probability of ½ on")
    assert sensitivity.ours == ("TPR 0.000 (0.000 to 0.020); by default 0.000 (0.000 to 0.020)",)
    assert sensitivity.note.startswith("Always answering π does the same")
    assert {claim.about for claim in found.values() if claim.note} == {sensitivity.about}
    by_figures = {about for about, claim in found.items() if claim.by_figures}
    assert LOWER_LIKELIHOOD in by_figures
    assert len(by_figures) == 2
    assert found["the weighted loss has a lower AUC at a prevalence of 0.001"].paper == "Fig. 3, no number"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, True),
        ({"evidence": 0.5}, False),
        ({"minibatches": ("raw",)}, False),
        ({"losses": ("information-gain", "weighted")}, False),
    ],
)
def test_the_picture_says_where_the_default_is_logit_adjustment(changes: dict[str, Any], said: bool) -> None:
    config = dataclasses.replace(SMALL, **{"losses": ("information-gain", "logit-adjusted"), **changes})
    rows = tuple(made_up(loss, 0.001, BETTER) for loss in config.losses)
    found = overview(Summary(config, 0, "", "", rows, (), (), ()))
    assert found is not None
    assert ("the same loss" in found.note) == said


@pytest.mark.long
def test_the_line_below_the_title_counts_the_data(
    small: tuple[StudyResults, Summary], ratings: tuple[StudyResults, Summary]
) -> None:
    results = small[0]
    data = results.data["contours"]
    counts = (
        f"{len(data.labels)} lung nodules, {len(set(data.patients))} patients; {(data.labels == 1).sum()} malignant as rated"
    )
    assert facts(results).startswith(f"Readers' outlines (no CT) of {counts} by readers · 2 of 3 folds, 1 seed · ConvNet")
    assert "rated 1 to 5 by readers" in facts(ratings[0])
    other = dataclasses.replace(results, data={"slices": dataclasses.replace(data, name="slices", ratings=data.ratings[:0])})
    assert facts(other).startswith(f"CT (slices) of {len(data.labels)} lung nodules; ")
    features = dataclasses.replace(results, config=dataclasses.replace(SMALL, nets=("mlp",)))
    assert facts(features).startswith("Features (no images) of ")


def test_the_page_names_the_paper_and_explains_its_terms(elements: Elements) -> None:
    text = "".join(elements.text)
    assert "arXiv:2006.13798" in text
    assert all(meaning in text for meaning in glossary(SMALL).values())
    assert [attributes["title"] for name, attributes in elements.found if name == "abbr"] == [
        "positive predictive value: share of malignant nodules among those acted on"
    ]


def test_colours_have_enough_contrast_in_light_dark_and_print() -> None:
    style = files("rightloss.study.report").joinpath("templates", "page.css").read_text(encoding="utf-8")
    roots = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6});", block)) for block in re.findall(r":root \{([^}]*)\}", style)]
    assert len(roots) == 3
    for colours in roots:
        for paper in ("paper", "raised"):
            for ink in ("ink", "muted", "accent", "good", "bad"):
                assert contrast(colours[ink], colours[paper]) >= 4.5, (ink, paper, colours)
        for line in range(6):
            assert contrast(colours[f"line-{line}"], colours["paper"]) >= 3, (line, colours)


def contrast(one: str, other: str) -> float:
    """WCAG's contrast of two colours."""
    light, dark = sorted([luminance(one), luminance(other)], reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    """WCAG's relative luminance of "#rrggbb" or "#rgb"."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * each for each in colour[1:])
    parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [each / 12.92 if each <= 0.03928 else ((each + 0.055) / 1.055) ** 2.4 for each in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


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
    assert [len(panel.rows) for panel in one.shown] == [1]
    found = overview(study(dataclasses.replace(PRESETS["quick"], **options), tmp_path / "losses")[1])
    assert found is not None
    assert [row.label for panel in found.shown for row in panel.rows if row.main] == [reference]
    assert len(found.more) == len(starts) - 1


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
    assert [drawing.title for drawing in drawn] == ["π = 30 %", "π = 1 in 1,000", "π = 1 in 100"]
    assert all(f">{word}<" in drawn[0].svg for word in ("information gain", "as published", "started at equal classes", "π"))
    case = ("published", "equal", 0.3)
    own = [run for run in results.runs if (run.config.loss, run.config.start, run.config.population) == case]
    short = dataclasses.replace(own[1], trace=own[1].trace[:3])  # its loss was not finite
    np.testing.assert_allclose(mean_and_range([own[0], short])[:, [0, -1]], [[0.75, 0.5], [0.5, 0.5], [1.0, 0.5]])
    assert trace_figures(dataclasses.replace(results, runs=(dataclasses.replace(results.runs[0], trace=()),))) == []


@pytest.mark.long
def test_the_page_shows_the_traces_and_what_is_left_once_matched(started: tuple[StudyResults, Summary], tmp_path: Path) -> None:
    page = Elements(write_report(*started, tmp_path).read_text(encoding="utf-8"))
    ids = page.all("id")
    assert ids.index("overview") < ids.index("trace") < ids.index("checks")
    assert {"#table-matched"} <= set(page.all("href"))
    assert not page.wrong
    assert CAPTION in "".join(page.text)
    assert beyond_intercept(started[1]) in "".join(page.text)
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
    assert re.search(r"by their start in 2 of 4 cases as trained, in 0 of 4 once matched to π\.$", beyond_intercept(summary))


def test_every_panel_has_one_start_and_the_slider_says_which(started: tuple[StudyResults, Summary]) -> None:
    shown = panels_of(started[0])
    assert [panel.title.rpartition(", ")[2] for panel in shown] == ["started at π", "started at equal classes"]
    assert [len(column.cells) for panel in shown for column in panel.columns] == [2, 2, 2, 2]
    assert [panel["mix"] for panel in slider_data(shown)["panels"]] == [
        "half and half, started at π",
        "half and half, started at equal classes",
    ]
    assert slider_data(shown[:1])["panels"][0]["mix"] == "half and half"
