"""The report in a real browser: no console messages, no requests, fits a phone, a slider that agrees with rightloss.metrics."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from browser import Page, browser_path, open_browser
from members import unchecked_types
from scipy.stats import binomtest
from study_results import fake_study

from rightloss import retarget
from rightloss.card.words import crowd, number, people, percent
from rightloss.metrics import decision_curve, predictive_value_curve
from rightloss.study.config import PRESETS, Source
from rightloss.study.report import write_report
from rightloss.study.report.figures import Panel, panels_of
from rightloss.study.report.page import grid
from rightloss.study.results import Cell, read_study
from rightloss.study.summary import summarise
from rightloss.study.summary.wording import method

pytestmark = pytest.mark.skipif(browser_path() is None, reason="no Chromium here: apt-get install chromium, or Chrome")

HOME, RIGHT, LEFT = ("Home", 36), ("ArrowRight", 39), ("ArrowLeft", 37)
# As large as Table 1 on two data sets: 5 of 10 folds, 280 nodules in each, 2 nets, 5 losses, 2 prevalences.
TABLE_1 = dataclasses.replace(PRESETS["table1"], sources=(Source("contours"), Source("slices <b>CT</b>", "0")))
NODULES = 2800
Made = tuple[Path, list[Panel]]  # the page, and its panels


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("table1")
    fake_study(folder, TABLE_1, nodules=NODULES)
    results = read_study(folder)
    assert sum(len(run.rows) for run in results.runs) == 5 * 280 * 2 * 2 * 5 * 2
    fake_study(folder / "few", TABLE_1, nodules=300)
    with unchecked_types():  # other tests check them on small studies
        summary = summarise(read_study(folder / "few"))  # as many rows, in less time
        return write_report(results, summary, folder), panels_of(results)


@pytest.fixture(scope="module")
def page(report: Made, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with open_browser(tmp_path_factory.mktemp("profile")) as tab:
        tab.resize(1280)
        tab.open(report[0])
        yield tab


def shown(page: Page) -> list[dict[str, tuple[float, str, float, float]]]:
    """Rows of the table: by figure, the value, its text, and its limits."""
    return page.evaluate(
        "[...document.querySelectorAll('#moved tr')].map((row) => Object.fromEntries("
        "[...row.querySelectorAll('[data-figure]')].map((each) => [each.dataset.figure, "
        "[each.dataset.value, each.firstChild.textContent, +each.dataset.low, +each.dataset.high]])))"
    )


def choose(page: Page, name: str, index: int) -> None:
    page.evaluate(f"{name}.value = {index}; {name}.dispatchEvent(new Event('change', {{bubbles: true}}))")


def value(page: Page, name: str) -> int:
    return int(page.evaluate(f"document.getElementById('{name}').value"))


def expected(cell: Cell, rate: float, prevalence: float, threshold: float) -> dict[str, float]:
    """By rightloss.metrics alone."""
    curve = predictive_value_curve(
        cell.log_probs, cell.labels, threshold=threshold, retarget=True, from_=rate, prevalences=[prevalence]
    )
    moved = retarget(cell.log_probs, from_=rate, to=prevalence)
    benefit = decision_curve(moved, cell.labels, prevalence, [threshold]).net_benefit[0]
    tpr, tnr = curve.true_positive_rate[0], curve.true_negative_rate[0]
    people = {"benefit": benefit, "found": prevalence * tpr, "alarms": (1 - prevalence) * (1 - tnr)}
    shares = {"ppv": float(curve.ppv[0]), "npv": float(curve.npv[0])}
    return shares | {name: crowd(prevalence) * float(each) for name, each in people.items()}


WORDS = {"ppv": percent, "npv": percent, "found": people, "alarms": people, "benefit": number}


def assert_page_agrees(page: Page, rate: float, cells: Sequence[Cell]) -> None:
    prevalence, threshold = grid(-4)[value(page, "prevalence")], grid(-3)[value(page, "threshold")]
    found = shown(page)
    assert len(found) == len(cells) + 1
    for place, cell in enumerate(cells):
        right = expected(cell, rate, prevalence, threshold)
        assert set(found[place]) == set(right)
        for name, (exact, text, low, high) in found[place].items():
            where = f"{name}, {method(cell.key)} at {prevalence} from {threshold}"
            assert text == WORDS[name](right[name]), where
            if math.isnan(right[name]):
                assert math.isnan(float(exact)), where
                continue
            assert float(exact) == pytest.approx(right[name], rel=1e-9, abs=1e-12), where
            assert low <= float(exact) + 1e-12, where
            assert float(exact) - 1e-12 <= high, where
    assert float(found[-1]["benefit"][0]) == pytest.approx(
        crowd(prevalence) * (prevalence - (1 - prevalence) * threshold / (1 - threshold))
    )


@pytest.mark.long
def test_moving_the_sliders_gives_the_figures_of_the_metrics(page: Page, report: Made) -> None:
    for panel, trained in ((1, 0), (3, 1), (0, 1)):
        choose(page, "panel", panel)
        choose(page, "trained", trained)
        column = list(report[1][panel].columns.items())[trained]
        assert_page_agrees(page, *column)
        places = set()
        for share in (0.02, 0.55, 0.98):
            page.click_within("#prevalence", share)
            page.click_within("#threshold", 1 - share)
            places.add((value(page, "prevalence"), value(page, "threshold")))
            assert_page_agrees(page, *column)
        assert len(places) == 3
    for name, last in (("prevalence", len(grid(-4)) - 1), ("threshold", len(grid(-3)) - 1)):
        page.evaluate(f"document.getElementById('{name}').focus()")
        page.press(*HOME)
        assert value(page, name) == 0
        page.press(*LEFT)
        page.press(*RIGHT)
        page.press(*RIGHT)
        assert value(page, name) == 2
        assert_page_agrees(page, *column)
        page.press("End", 35)
        assert value(page, name) == last
        assert_page_agrees(page, *column)


@pytest.mark.long
def test_limits_are_as_wide_as_so_many_patients_make_them(page: Page, report: Made) -> None:
    """By Wilson's formula for patients, who are fewer than their nodules."""
    choose(page, "panel", 0)
    choose(page, "trained", 1)
    prevalence, threshold = grid(-4)[value(page, "prevalence")], grid(-3)[value(page, "threshold")]
    rate, cells = list(report[1][0].columns.items())[1]
    for cell, row in zip(cells, shown(page), strict=False):
        patients = len(set(cell.patients[cell.labels == 1]))
        assert patients < (cell.labels == 1).sum()
        scale = crowd(prevalence) * prevalence
        share = expected(cell, rate, prevalence, threshold)["found"] / scale
        limits = binomtest(round(share * patients), patients).proportion_ci(0.95, "wilson")
        _, _, low, high = row["found"]
        assert [low / scale, high / scale] == pytest.approx([limits.low, limits.high], abs=0.5 / patients)


@pytest.mark.long
def test_screen_reader_text_follows_the_slider(page: Page) -> None:
    for rate, words, malignant in ((1e-3, "1 in 1,000", "10"), (0.12, "12 %", "120")):
        page.evaluate(f"prevalence.value = {grid(-4).index(rate)}; prevalence.dispatchEvent(new Event('input'))")
        spoken = page.evaluate("document.getElementById('spoken').textContent")
        assert spoken.startswith(f"Where {words} of nodules is malignant")
        assert f" of {malignant} malignant nodules" in spoken
    page.evaluate(f"threshold.value = {grid(-3).index(0.01)}; threshold.dispatchEvent(new Event('input'))")
    assert page.evaluate("document.getElementById('spoken').getAttribute('aria-live')") == "polite"
    assert page.evaluate(
        "[...document.querySelectorAll('input[type=range]')].map((each) => "
        "[each.labels[0].textContent, each.getAttribute('aria-valuetext')])"
    ) == [["Prevalence where the nets are used", "12 %"], ["Probability from which to act", "1 %"]]
    assert page.evaluate("document.getElementById('threshold-hint').textContent").startswith(
        "A missed malignant nodule counts as much as 99 needless actions"
    )


@pytest.mark.long
def test_no_width_needs_scrolling_sideways(page: Page, report: Made) -> None:
    for width, dark in ((360, True), (768, False), (1280, True)):
        page.resize(width, dark=dark)
        page.open(report[0])
        page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("innerWidth") == width
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (max(int(each) for each in re.findall(r"\d+", colour)) < 100) == dark


@pytest.mark.long
def test_the_first_screen_has_the_headline_a_picture_and_the_slider(page: Page, report: Made) -> None:
    page.resize(1280, 800)
    page.open(report[0])
    for element in ("h1", ".lead", "#overview .forest", "#prevalence", "#moved tr"):
        box = page.evaluate(f"document.querySelector('{element}').getBoundingClientRect().toJSON()")
        assert 0 <= box["top"] < box["bottom"] <= 800, element
        assert box["width"] > 300, element
    assert page.evaluate("document.querySelector('.lead').textContent.split('. ').length") == 2
    page.resize(390, 844)
    page.open(report[0])
    assert page.evaluate("document.querySelector('.forest').getBoundingClientRect().bottom") <= 844


def test_dots_and_intervals_stand_where_their_numbers_say(page: Page, report: Made) -> None:
    page.resize(1280, 800)
    page.open(report[0])
    page.evaluate("middle = (each) => (({left, right}) => (left + right) / 2)(each.getBoundingClientRect())")
    ticks, dots = (
        [(float(text.replace("−", "-").removesuffix(" %")) / 100, place) for text, place in page.evaluate(script)]
        for script in (
            "[...document.querySelectorAll('#overview .axis span')].map((each) => [each.textContent, middle(each)])",
            "[...document.querySelectorAll('#overview .forest .dot')].map((each) => "
            "[each.closest('tr').lastElementChild.firstChild.textContent, middle(each)])",
        )
    )
    slope = (ticks[-1][1] - ticks[0][1]) / (ticks[-1][0] - ticks[0][0])
    assert len(dots) >= 5
    for gain, place in dots:
        assert abs(place - ticks[0][1] - slope * (gain - ticks[0][0])) <= 0.006 * abs(slope) + 1.5, gain


OPEN = "[...document.querySelectorAll('details')].map((each) => each.open)"


@pytest.mark.long
def test_what_is_folded_opens_at_once_by_keyboard_by_a_link_and_for_print(page: Page, report: Made) -> None:
    page.resize(1280)
    page.open(report[0])
    before = page.evaluate(OPEN)
    assert page.evaluate("document.querySelectorAll('details.fold').length") >= 5
    assert not all(before)
    page.evaluate(f"addEventListener('beforeprint', () => (window.printed = {OPEN}))")
    page.call("Page.printToPDF")
    assert all(page.evaluate("window.printed"))
    assert page.evaluate(OPEN) == before
    page.evaluate("document.getElementById('open-all').focus()")
    for opened in (True, False):
        page.press("Enter", 13, "\r")
        assert set(page.evaluate(OPEN)) == {opened}
    page.evaluate("document.querySelector('#tables > summary').focus()")
    page.press("Enter", 13, "\r")
    assert page.evaluate("document.getElementById('tables').open")
    page.evaluate("document.getElementById('tables').open = false; location.hash = 'table-checks'")
    page.evaluate("new Promise((done) => setTimeout(done, 100))")
    assert page.evaluate("document.getElementById('tables').open")
    page.open(report[0], "#methods")
    assert page.evaluate("document.getElementById('methods').open")


@pytest.mark.long
def test_the_keyboard_reaches_every_control_and_shows_where_it_is(page: Page, report: Made) -> None:
    page.resize(1280)
    page.open(report[0])
    reached = []
    for _ in range(40):
        page.press("Tab", 9)
        name, outline = page.evaluate(
            "[document.activeElement.id || document.activeElement.className || document.activeElement.parentElement.id, "
            "getComputedStyle(document.activeElement).outlineStyle]"
        )
        if name in reached or not name:
            break
        assert outline == "solid", name
        reached.append(name)
    assert reached[:5] == ["skip", "panel", "trained", "prevalence", "threshold"]
    assert {"open-all", "tables"} <= set(reached)


@pytest.mark.long
def test_the_page_is_small_and_has_no_console_messages_and_no_requests(page: Page, report: Made) -> None:
    assert report[0].stat().st_size < 3_000_000, "small enough to be sent"
    page.resize(1280)
    page.open(report[0])
    page.click_within("#prevalence", 0.6)
    choose(page, "panel", 2)
    page.evaluate("document.getElementById('open-all').click()")
    page.call("Page.printToPDF")
    assert page.evaluate("[...document.images].every((each) => each.complete && each.naturalWidth > 0)")
    assert page.evaluate("document.querySelectorAll('b').length") == 0  # a data set's name is text
    assert page.complaints() == []
    assert page.requests() == []


@pytest.mark.long
def test_a_faulty_page_is_detected(page: Page, tmp_path: Path) -> None:
    faulty = tmp_path / "faulty.html"
    faulty.write_text(
        "<!doctype html><script>console.error('fault 1'); console.warn('fault 2'); fault3()</script><img src='http://127.0.0.1:9/x.png'>"
        "<div style='width: 5000px'>wide</div>"
    )
    page.resize(360)
    page.open(faulty)
    page.evaluate("new Promise((done) => setTimeout(done, 200))")
    for words in ("fault 1", "fault 2", "fault3"):
        assert len([each for each in page.complaints() if words in each]) == 1, words
    assert page.requests() == ["http://127.0.0.1:9/x.png"]
    assert page.evaluate("document.documentElement.scrollWidth") > 360
