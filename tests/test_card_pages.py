"""What all pages are made of: the skeleton and its safety, the style, the words, the plots, and the limits that move."""

from __future__ import annotations

import base64
import doctest
import hashlib
import json
import math
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import numpy as np
import pytest
from browser import Page, browser_path, open_browser
from scipy.special import expit, logit
from scipy.stats import binomtest

from rightloss.card import svg, words
from rightloss.card.page import render
from rightloss.card.svg import Axis, Series, plot

HOSTILE = "</script><script>alert(1)</script><img src=x>"
STYLE = files("rightloss.card").joinpath("templates", "page.css").read_text("utf-8")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """An empty page, whose script can be called."""
    if browser_path() is None:
        pytest.skip("no Chromium")
    folder = tmp_path_factory.mktemp("page")
    (folder / "page.html").write_text(render("base.html.j2", {"title": HOSTILE, "data": {"name": HOSTILE}}), encoding="utf-8")
    with open_browser(folder) as found:
        found.open(folder / "page.html")
        yield found


def test_only_our_own_script_may_run_and_nothing_may_be_loaded() -> None:
    html = render("base.html.j2", {"title": HOSTILE, "data": [HOSTILE]})
    assert HOSTILE not in html
    assert "<img" not in html
    *_, script = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', html)
    assert f"script-src 'sha256-{digest}';" in policy
    assert "default-src 'none'" in policy
    assert not re.search(r"\son\w+=|(?:src|href)=\"(?!#|data:)", html)


@pytest.mark.long
def test_names_full_of_markup_are_text_and_the_console_stays_silent(page: Page) -> None:
    assert page.evaluate("document.querySelector('h1').textContent") == HOSTILE
    assert page.evaluate("pageData().name") == HOSTILE
    assert (page.complaints(), page.requests()) == ([], [])


def luminance(colour: str) -> float:
    parts = [
        int(colour[1 + i * (len(colour) // 3) :][: len(colour) // 3] * (2 if len(colour) == 4 else 1), 16) for i in range(3)
    ]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in (part / 255 for part in parts)]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def test_every_colour_of_text_and_line_has_enough_contrast_on_every_background() -> None:
    palettes = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    assert len(palettes) >= 2  # light and dark
    for palette in palettes:
        colours = dict(re.findall(r"--([\w-]+): (#\w+);", palette))
        assert len(colours) == 14
        for name in colours.keys() - {"paper", "raised", "rule"}:
            for ground in ("paper", "raised"):
                dark, light = sorted([luminance(colours[name]), luminance(colours[ground])])
                assert (light + 0.05) / (dark + 0.05) >= (3 if name.startswith("line") else 4.5), (name, ground)


@pytest.mark.long
def test_the_script_writes_numbers_as_the_library_does(page: Page) -> None:
    shares = [0.0, 1.0, 0.5, 0.033, 1 / 30, 0.001, 0.12345, 0.99951, 1e-6, 3.3e-7, 1 - 1e-9, -6.9876, 0.7325, 0.8125]
    rates = [0.5, 0.033, 1 / 30, 1 / 15, 0.0667, 0.001, 1 / 12345, 1e-6, 3.3e-7, 0.0625]
    numbers = [0.0, 0.2, 0.7, 12.4, 999.6, 1234567.0, 2.125, 100.5, -0.01234, 17.26]
    for name, values in (("percent", shares), ("share", rates), ("number", numbers), ("people", numbers[:-2])):
        ours = [getattr(words, name)(value) for value in values]
        assert page.evaluate(f"{json.dumps(values)}.map((each) => {name}(each))") == ours
    for name, low, high in (("percent", 0.01, 0.025), ("percent", 0.02, 0.02), ("people", 6.71, 7.4), ("people", 0.01, 0.3)):
        expected = words.limits(low, high, getattr(words, name))
        assert page.evaluate(f"limits([0.02, {low}, {high}], {name})") == expected
    assert [words.crowd(rate) for rate in rates] == page.evaluate(f"{json.dumps(rates)}.map(crowd)")


def test_the_examples_of_words_and_plots_run_and_what_is_not_defined_is_a_dash() -> None:
    for module in (words, svg):
        found = doctest.testmod(module)
        assert found.attempted
        assert not found.failed
    nan = float("nan")
    undefined = [words.number(nan), words.number(None), words.percent(nan), words.people(nan), words.figure(nan, nan, nan)]
    assert {str(each) for each in undefined} == {"–"}
    assert words.share(0.0) == "0 %"
    assert (words.number(math.inf), words.number(-math.inf)) == ("∞", "−∞")


@pytest.mark.long
def test_figures_that_move_are_those_of_bayes_rule_and_lie_within_their_limits(page: Page) -> None:
    own = {"hits": 33, "rows": 40}
    rest = [{"weight": 0.7, "hits": 7, "rows": 60}, {"weight": 0.3, "hits": 1, "rows": 60}]
    for pi in (0.3, 0.001):
        found = page.evaluate(f"figuresAt({json.dumps(own)}, {json.dumps(rest)}, {pi})")
        tpr, fpr = own["hits"] / 40, sum(each["weight"] * each["hits"] / 60 for each in rest)
        flagged = pi * tpr + (1 - pi) * fpr
        expected = {"tpr": tpr, "tnr": 1 - fpr, "flagged": flagged, "found": pi * tpr, "missed": pi * (1 - tpr)}
        expected |= {"alarms": (1 - pi) * fpr, "spared": (1 - pi) * (1 - fpr)}
        expected |= {"ppv": pi * tpr / flagged, "npv": (1 - pi) * (1 - fpr) / (1 - flagged)}
        expected |= {"lrPositive": tpr / fpr, "lrNegative": (1 - tpr) / (1 - fpr)}
        assert {name: values[0] for name, values in found.items()} == pytest.approx(expected, rel=1e-12)
        assert all(low <= value <= high for value, low, high in found.values())


@pytest.mark.long
def test_limits_are_wilsons_and_with_many_rows_those_of_the_delta_method(page: Page) -> None:
    few = page.evaluate("figuresAt({hits: 7, rows: 9}, [{hits: 3, rows: 40}], 0.1)")
    assert few["tpr"][1:] == pytest.approx(list(binomtest(7, 9).proportion_ci(method="wilson")), rel=1e-9)
    assert few["alarms"][1:] == pytest.approx(0.9 * np.array(binomtest(3, 40).proportion_ci(method="wilson")), rel=1e-9)
    many = page.evaluate("figuresAt({hits: 8000, rows: 10000}, [{hits: 3000, rows: 30000}], 0.01)")
    error = 1.96 * np.sqrt(0.2 / 8000 + 0.9 / 3000)  # of log LR+: Simel, Samsa and Matchar (1991)
    assert many["lrPositive"] == pytest.approx([8, 8 * np.exp(-error), 8 * np.exp(error)], rel=1e-3)
    assert many["ppv"][1:] == pytest.approx([expit(logit(0.01) + np.log(each)) for each in many["lrPositive"][1:]], rel=1e-9)


@pytest.mark.long
def test_limits_exist_where_nobody_is_flagged_or_everybody(page: Page) -> None:
    for hits in (0, 50):
        group = {"hits": hits, "rows": 50}
        found = page.evaluate(f"figuresAt({json.dumps(group)}, [{json.dumps(group)}], 0.01)")
        for _, low, high in (found[name] for name in ("tpr", "tnr", "flagged", "found", "alarms")):
            assert 0 <= low < high <= 1
    certain = page.evaluate("figuresAt({hits: 40, rows: 50}, [{hits: 0, rows: 50}], 0.5).ppv")
    assert certain[0] == certain[2] == 1
    assert 0.5 < certain[1] < 1


def test_places_on_an_axis_follow_its_scale() -> None:
    assert Axis("", 0, 10).places([0, 5, 20]).tolist() == [0, 0.5, 2]
    assert Axis("", 1e-4, 1, "log").places([0.01, 1]) == pytest.approx([0.5, 1])
    assert Axis("", 0.01, 0.99, "log-odds").places([0.5, 0.99, np.nan]) == pytest.approx([0.5, 1, np.nan], nan_ok=True)


def test_axes_have_a_few_ticks_at_round_numbers() -> None:
    for low, high in ((0.0, 1.0), (-0.013, 0.021), (0.0, 1234.0), (0.4, 0.5)):
        ticks = Axis("", low, high).tick_values()
        assert 3 <= len(ticks) <= 7
        assert len(set(np.diff(ticks).round(12))) == 1
        assert all(low <= tick <= high for tick in ticks)
        assert 0 in ticks or low > 0 or high < 0
    scales: list[Any] = ["log", "log-odds"]
    for scale in scales:
        for low, high in ((0.01, 0.05), (1e-4, 0.3), (1e-6, 0.999), (0.2, 0.97)):
            ticks = Axis("", low, high, scale).tick_values()
            assert 2 <= len(ticks) <= 7
            assert ticks == sorted(ticks)
            assert len({words.percent(tick) for tick in ticks}) == len(ticks)


def test_a_plot_draws_points_limits_gaps_and_a_legend_and_escapes_names() -> None:
    line = Series("a & b", [0, 0.5, np.nan, 1], [0, 0.5, 0.7, 1], style=1)
    points = Series("", [0.5], [0.5], low=[0.25], high=[0.75], marks=True, joined=False)
    drawn = plot(Axis("x", 0, 1), Axis("<y>", 0, 1), [line, points], alt='"quoted"', marker=True)
    assert 'd="M66.0 292.0L244.0 152.0M422.0 12.0"' in drawn
    assert 'class="bar" d="M244.0 222.0V82.0"' in drawn
    assert "a &amp; b</li>" in drawn
    assert "&lt;y&gt;" in drawn
    assert 'aria-label="&#34;quoted&#34;"' in drawn
    assert drawn.count("<li>") == 1


@pytest.mark.long
def test_the_marker_of_a_plot_is_at_its_value(page: Page) -> None:
    drawn = plot(Axis("", 1e-4, 0.5, "log-odds"), Axis("", 0, 1), [], alt="", marker=True)
    page.evaluate(f"document.querySelector('main').innerHTML = {json.dumps(str(drawn))}")
    page.evaluate("moveMarker(document.querySelector('.plot'), 0.01)")
    place = float(page.evaluate("document.querySelector('.marker').getAttribute('x1')"))
    assert place == pytest.approx(66 + 356 * Axis("", 1e-4, 0.5, "log-odds").places(0.01), abs=0.1)
    page.evaluate("moveMarker(document.querySelector('.plot'), 0.9)")
    assert page.evaluate("document.querySelector('.marker').getAttribute('visibility')") == "hidden"
