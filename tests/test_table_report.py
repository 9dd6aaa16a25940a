"""The report of a table's model: its figures, its picture, and the page in a browser."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import Page, browser_path, open_browser
from table_files import people

from rightloss.card.charts import calibration_plot
from rightloss.card.page import one_against_rest
from rightloss.card.words import limits, number
from rightloss.metrics import predictive_value_curve
from rightloss.predictive import retarget
from rightloss.tabular import TableModel, fit_table
from rightloss.tabular.report import report_page, sentences, slider_data

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def model() -> TableModel:
    """Return the model of a table whose category and target have names that would run if they were not escaped."""
    frame = people(300).rename(columns={"cancer": HOSTILE}).replace({"clinic": {"north": "</style><img src=x>"}})
    return fit_table(frame, target=HOSTILE, population=0.01, candidates=["linear"], folds=3, leave_out=["patient"])


@pytest.fixture(scope="module")
def ratings() -> TableModel:
    """Return a model of three classes."""
    frame = people(300)
    frame["stage"] = np.where(frame["density"] > 1.4, "late", np.where(frame["cancer"] == "yes", "early", "none"))
    mix: dict[Hashable, float] = {"none": 0.9, "early": 0.08, "late": 0.02}
    return fit_table(frame.drop(columns="cancer"), target="stage", population=mix, candidates=["linear"], folds=3)


def calibrated(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return log-probabilities at (0.98, 0.02) of N(0, 1) against N(2, 1), labels in equal shares, and π."""
    rng = np.random.default_rng(seed)
    target = np.arange(rows) % 2
    odds = 2 * (rng.normal(2.0 * target, 1) - 1) + np.log(0.02 / 0.98)
    return np.stack([-np.logaddexp(0, odds), -np.logaddexp(0, -odds)], 1), target, np.array([0.98, 0.02])


def places(drawing: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the lines of a plot, from the back to the front, as points from 0 to 1 on both axes."""
    lines = [[float(n) for n in re.findall(r"[\d.]+", path)] for path in re.findall(r'class="line" d="(M[^"]+)"', drawing)]
    points = [np.array(line).reshape(-1, 2) for line in lines if len(line) > 4]
    left, right = (float(each) for each in re.findall(r'data-(?:left|right)="(\d+)"', drawing))
    without, model = [(each - [left, 292]) / [right - left, -280] for each in points]
    return without, model


def test_the_picture_is_off_the_line_before_the_correction_and_on_it_after() -> None:
    log_probs, target, population = calibrated(4000, 1)
    uncorrected = retarget(log_probs, population, [0.5, 0.5])
    drawing = calibration_plot({"the model": log_probs, "without": uncorrected}, target, population, 1)
    without, after = places(drawing)
    assert abs((after[:, 1] - after[:, 0]).mean()) < 0.03
    assert (without[:, 0] - without[:, 1]).min() > 0.1  # predicted too high
    for odds in (np.full(100, -4.0), np.where(np.arange(100) % 2, 9.0, -9.0)):  # there is no curve
        log_probs = np.stack([-np.logaddexp(0, odds), -np.logaddexp(0, -odds)], 1)
        assert "No calibration curve" in calibration_plot({"it": log_probs}, np.arange(100) % 2, [0.9, 0.1], 1)


def unpacked(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), "<f8")


@pytest.mark.long
def test_the_sliders_log_odds_are_those_of_the_held_out_rows_in_each_class(ratings: TableModel) -> None:
    data, held = slider_data(ratings), ratings.held_out
    assert [each["label"] for each in data["focus"]] == ["late", "early", "none"]
    for each in data["focus"]:
        k = ratings.classes_.index(each["label"])
        p = np.exp(held.log_probs[:, k])
        np.testing.assert_allclose(unpacked(each["own"]["odds"]), np.sort(np.log(p / (1 - p))[held.target == k]), atol=1e-9)
        assert sum(one["weight"] for one in each["rest"]) == pytest.approx(1)
        assert each["rate"] in each["prevalences"]


@pytest.mark.long
def test_the_page_is_complete_in_itself_and_escapes_the_tables_text(model: TableModel, ratings: TableModel) -> None:
    page = report_page(model)
    assert page == report_page(model), "not the same bytes twice"
    assert HOSTILE not in page
    assert "<img" not in page
    assert not re.search(r"(src|href)=\"(?!#|data:)", page)
    for row in model.comparison.to_dict("records"):
        assert row["candidate"] in page
    assert len(sentences(model)) == 2
    assert model.odds_ratios is not None
    row = model.odds_ratios.iloc[0]
    assert f">{number(row['odds_ratio'])}<span" in page.replace("\n", "")
    assert limits(row["low"], row["high"]) in page
    assert "✓ marks the model that is kept" in page
    assert "Odds ratios" not in report_page(dataclasses.replace(model, odds_ratios=None))
    assert "each class against early" in report_page(dataclasses.replace(ratings, odds_ratios=model.odds_ratios))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if browser_path() is None:
        pytest.skip("no Chromium")
    with open_browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


def opened(page: Page, model: TableModel, folder: Path, width: int = 1280, dark: bool = False) -> Page:
    path = folder / "report.html"
    path.write_text(report_page(model), encoding="utf-8")
    page.resize(width, dark=dark)
    page.open(path)
    return page


@pytest.mark.long
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_the_page_fits_its_window_and_asks_for_nothing(
    width: int, dark: bool, page: Page, model: TableModel, tmp_path: Path
) -> None:
    opened(page, model, tmp_path, width, dark)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert (page.complaints(), page.requests()) == ([], [])
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, re.findall(r"\d+", colour))) < 100) == dark
    if width == 1280:  # on the first screen
        assert page.evaluate("document.getElementById('threshold').getBoundingClientRect().bottom") < 800
        assert page.evaluate("document.querySelector('.plot').getBoundingClientRect().bottom") < 900


@pytest.mark.long
def test_the_slider_moves_by_keyboard_and_shows_the_figures_of_the_library_with_limits(
    page: Page, model: TableModel, tmp_path: Path
) -> None:
    opened(page, model, tmp_path)
    data = json.loads(page.evaluate("document.getElementById('page-data').textContent"))
    before = figures(page)
    page.evaluate("document.getElementById('prevalence').focus()")
    for _ in range(3):
        page.press("ArrowRight", 39)
    after = figures(page)
    place = int(page.evaluate("document.getElementById('prevalence').value"))
    rate = data["focus"][0]["prevalences"][place]
    threshold = data["thresholds"][int(page.evaluate("document.getElementById('threshold').value"))]
    assert rate > 0.01
    assert after["ppv"] > before["ppv"]
    held = model.held_out
    curve = predictive_value_curve(
        held.log_probs, held.target, threshold=threshold, prevalences=[rate], retarget=True, from_=model.population
    )
    assert (after["ppv"], after["npv"]) == pytest.approx((curve.ppv[0], curve.npv[0]), rel=1e-9)
    moved = np.exp(retarget(held.log_probs, model.population.population, [1 - rate, rate]))[:, 1]
    flagged = moved >= threshold
    tpr, fpr = flagged[held.target == 1].mean(), flagged[held.target == 0].mean()
    assert after["tpr"] == pytest.approx(tpr)
    assert after["flagged"] == pytest.approx(1000 * (rate * tpr + (1 - rate) * fpr))
    assert after["risk-1"] == pytest.approx(population_quantile(moved, held.target, [0.99, 0.01], 0.9), rel=1e-9)
    assert after["file-1"] == before["file-1"]
    script = "[...document.querySelectorAll('[data-value]')].map((e) => [+e.dataset.low, +e.dataset.value, +e.dataset.high])"
    found = page.evaluate(script)
    assert len(found) == 7 + 2 * 2  # among 300 rows, none say what the risk of the top 1 % is
    assert all(low <= value <= high and low < high for low, value, high in found)
    ranges = page.evaluate("[...document.querySelectorAll('#slider .range')].map((e) => e.textContent)")
    assert len(ranges) == len(found)
    assert all(re.fullmatch(r"[<\d.,]+ to [<\d.,]+( %)?", each) for each in ranges), ranges


def population_quantile(values: np.ndarray, target: np.ndarray, mix: list[float], share: float) -> float:
    """Return the lowest value with that share of the population at or below it."""
    return float(min(v for v in values if sum(p * (values[target == k] <= v).mean() for k, p in enumerate(mix)) >= share))


def test_patients_with_several_rows_count_as_fewer_rows() -> None:
    log_probs, target, population = calibrated(40, 0)
    groups = np.arange(40) // 4  # two rows of each class
    data = one_against_rest(log_probs, target, population, 1, groups)
    assert data["own"]["effective"] == data["rest"][0]["effective"] == 10


def figures(page: Page) -> dict[str, Any]:
    """Return every figure of the slider, unrounded."""
    script = "Object.fromEntries([...document.querySelectorAll('[data-value]')].map((e) => [e.id, +e.dataset.value]))"
    found: dict[str, Any] = page.evaluate(script)
    return found


@pytest.mark.long
def test_another_class_can_be_chosen(page: Page, ratings: TableModel, tmp_path: Path) -> None:
    opened(page, ratings, tmp_path)
    assert page.evaluate("document.querySelector('.focus-label').textContent") == "late"
    page.evaluate(
        "(() => { const s = document.getElementById('focus'); s.value = 1; s.dispatchEvent(new Event('change')); })()"
    )
    assert page.evaluate("document.querySelector('.focus-label').textContent") == "early"
    assert page.evaluate("document.getElementById('prevalence-shown').textContent") == "8 %"
    assert page.complaints() == []
