"""The report's words: the command that makes the study again, escaped text, shares as people say them."""

from __future__ import annotations

import dataclasses
import shlex

import pytest
import typer

from rightloss.cli import application
from rightloss.cli.study import configured
from rightloss.study.config import PRESETS, Source, StudyConfig, Training, options_of
from rightloss.study.methods import METHODS
from rightloss.study.report.command import command
from rightloss.study.report.markup import Html, html, tag
from rightloss.study.report.words import SHORT, one_in

OPTIONS = {option.parameter for each in (StudyConfig, Training) for option in options_of(each).values()}
CONFIGS = [
    PRESETS["quick"],
    dataclasses.replace(PRESETS["quick"], folds=2, seeds=3, losses=("weighted", "plain"), populations=(0.25, 1e-5)),
    dataclasses.replace(PRESETS["features"], inferences=("map", "ensemble"), evidence=0.5),
    dataclasses.replace(PRESETS["table1"], marginals=("own", "auxiliary"), minibatches=("raw", "rebalanced")),
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


@pytest.mark.parametrize("config", CONFIGS, ids=[command(config) for config in CONFIGS])
def test_the_command_makes_the_same_study(config: StudyConfig) -> None:
    words = shlex.split(command(config))
    group = typer.main.get_command(application())
    study_command = group.get_command(None, "study")  # type: ignore[attr-defined]
    given = study_command.make_context("study", words[2:]).params
    options = {name: value for name, value in given.items() if name in OPTIONS and value not in (None, ())}
    assert configured(given["preset"], options) == config


def test_the_command_is_safe_to_paste_whatever_a_file_is_called() -> None:
    config = dataclasses.replace(PRESETS["quick"], sources=(Source("contours"), Source("a; rm -rf $HOME")))
    assert shlex.split(command(config))[5:9] == ["--data", "contours", "--data", "a; rm -rf $HOME.npz"]


def test_text_is_escaped_and_html_is_not() -> None:
    assert tag("p", ["a < b", Html("<br>")], title='"x"', hidden=True, lang=None) == (
        '<p title="&quot;x&quot;" hidden>a &lt; b<br></p>'
    )
    assert html(html("<")) == "&lt;"


def test_every_loss_has_a_short_name() -> None:
    assert set(SHORT) == set(METHODS)


def test_shares_are_said_as_people_say_them() -> None:
    assert [one_in(rate) for rate in (0.001, 0.1, 0.3, 0.5, 0.003, 1 / 3)] == [
        "1 in 1,000",
        "1 in 10",
        "30 %",
        "50 %",
        "0.3 %",
        "33.3 %",
    ]
