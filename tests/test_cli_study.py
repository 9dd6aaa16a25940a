"""`rightloss study` on the grid, and `rightloss report`: what is asked for, what is printed, what is kept."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import invoke, ran, refused
from nodule_files import small_archive
from scipy.special import logit
from study_results import fake_study
from study_work import contents as contents
from study_work import wait_for
from test_cli import failing_with
from worker_jobs import is_running

from rightloss.cli import report as pages
from rightloss.cli import study as study_command
from rightloss.cli.dry_run import estimate_seconds, lasting
from rightloss.cli.study import NAMES, configured, machine_of
from rightloss.study import execute, report, summary
from rightloss.study.config import PRESETS, Group, Source, StudyConfig
from rightloss.study.engines import InProcess, OnRay, Processes, Report
from rightloss.study.execute import disk_space
from rightloss.study.methods import ADJUSTED, ADJUSTED_LABELLED
from rightloss.study.results import RunResult, read_study, write_config
from rightloss.study.training import Hardware, train_group

SMALL = "--engine in-process --steps 2 --checkpoints 1 --num-folds 4 --folds 2".split()
SMALL += "--loss information-gain --loss weighted --prevalence 0.3 --start population".split()
CONFIG = StudyConfig("quick", losses=("information-gain", "weighted"), populations=(0.3,), folds=3)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "discs.npz"
    small_archive(path)
    return path


@pytest.fixture(scope="module")
def finished(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path, str]:
    """A small study that was run: its arguments, its folder, what it printed."""
    out = tmp_path_factory.mktemp("studies") / "not" / "there" / "yet"
    arguments = ["study", "quick", "--data", str(archive), "--out", str(out), *SMALL]
    result = ran(*arguments)
    return arguments, out, result.stdout


def asked(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> StudyConfig:
    """The config that these arguments ask for."""
    found: list[StudyConfig] = []
    with monkeypatch.context() as patch:
        patch.setattr(study_command, "_run_study", lambda config, *others: found.append(config))
        ran("study", *arguments, "--out", "unused")
    return found[0]


@pytest.mark.long
def test_a_study_prints_its_table_and_last_where_the_report_is_and_once_done_the_same_without_computing(
    finished: tuple[list[str], Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, out, printed = finished
    assert all(title in printed for title in ("information gain (default)", "weighted loss", "always answering π"))
    assert printed.splitlines()[-2:] == [str(out / "table.csv"), str(out / "report.html")]
    assert (out / "report.html").read_text(encoding="utf-8").startswith("<!")
    results, before = read_study(out), contents(out)
    assert (results.missing, len(results.runs)) == (0, 4)
    for module, name in ((execute, "run_study"), (summary, "summarise"), (report, "write_tables")):
        monkeypatch.setattr(module, name, failing_with(AssertionError(f"{name} was called")))
    again = invoke(*arguments)
    assert (again.exit_code, again.stdout) == (0, printed)
    assert contents(out) == before


@pytest.mark.long
@pytest.mark.parametrize("lost", ["report.html", "run", "damaged summary.json"])
def test_what_is_lost_is_made_again_as_it_was(finished: tuple[list[str], Path, str], lost: str) -> None:
    arguments, out, printed = finished
    before = contents(out)
    run = next((out / "runs").glob("*weighted*fold1*.json"))
    if lost.startswith("damaged "):
        path = out / lost.removeprefix("damaged ")
        path.write_bytes(path.read_bytes()[:-20] + b"\xff")
    else:
        (run if lost == "run" else out / lost).unlink()
    again = invoke(*(["report", str(out)] if lost == "report.html" else arguments))
    assert (again.exit_code, again.stdout) == (0, printed), again.stderr
    assert contents(out) == before


def test_results_that_changed_are_not_shown_from_before(finished: tuple[list[str], Path, str]) -> None:
    _, out, _ = finished
    config = read_study(out).config
    assert pages.made_pages(config, out) is not None
    assert pages.made_pages(dataclasses.replace(config, seeds=2), out) is None
    run = next((out / "runs").glob("*.npz"))
    content = run.read_bytes()
    try:
        run.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert pages.made_pages(config, out) is None
    finally:
        run.write_bytes(content)


@pytest.mark.long
def test_a_report_of_a_study_that_is_not_done_says_so(tmp_path: Path) -> None:
    fake_study(tmp_path, CONFIG, skip=3)
    result = ran("report", str(tmp_path))
    assert re.search(r"\b3\b", result.stdout)
    assert result.stdout.splitlines()[-1] == str(tmp_path / "report.html")
    assert pages.made_pages(CONFIG, tmp_path) is None, "as if it were done"


def test_a_report_needs_a_run(tmp_path: Path) -> None:
    for name in ("runs", "data"):
        (tmp_path / name).mkdir()
    write_config(tmp_path, CONFIG)
    file = tmp_path / "study.json"
    cases = {tmp_path: "Expected a finished run in", tmp_path / "runs": "has no study.json", file: "add --out DIR"}
    for folder, words in cases.items():
        refused(words, "report", folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "runs", "study.json"]


@pytest.mark.long
def test_every_option_replaces_what_the_preset_has(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = "--net mlp --net metadata --loss weighted --loss information-gain --prevalence 0.2 --prevalence 1e-4 --start equal "
    grid += "--start population --inference map --inference ensemble --minibatches raw --minibatches rebalanced --folds 2 "
    grid += "--num-folds 6 --seeds 3 --evidence 0.5 --steps 40 --batch-size 16 --views 6 --learning-rate 0.01 "
    grid += "--learning-rate 1e-4 --checkpoints 4 --averaging 0.5 --full"
    assert asked(monkeypatch, "ratings") == PRESETS["ratings"]
    config = asked(monkeypatch, "quick", "--data", "contours", "--data", str(archive), *grid.split())
    assert [source.name for source in config.sources] == ["contours", "discs"]
    assert (config.nets, config.losses) == (("mlp", "metadata"), ("weighted", "information-gain"))
    assert (config.populations, config.starts, config.inferences) == ((0.2, 1e-4), ("equal", "population"), ("map", "ensemble"))
    assert (config.minibatches, config.folds, config.num_folds) == (("raw", "rebalanced"), 2, 6)
    assert (config.seeds, config.evidence) == (3, 0.5)
    training = dataclasses.asdict(config.training)
    given = dict(steps=40, batch_size=16, views=6, learning_rates=(0.01, 1e-4), checkpoints=4)
    given |= dict(averaging=0.5, small=False)
    assert training == {**dataclasses.asdict(PRESETS["quick"].training), **given}
    scales = asked(monkeypatch, "features", "--prior-scale", "0.1", "--prior-scale", "3").training.prior_scales
    assert scales == (0.1, 3.0)
    ordinal = asked(monkeypatch, "ratings", "--likelihood", "onion-peeling", "--small")
    assert (ordinal.likelihoods, ordinal.training.small) == (("onion-peeling",), True)


@pytest.mark.long
def test_unlabelled_patients_add_logit_adjustment_without_them_unless_losses_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    config = asked(monkeypatch, "quick", "--unlabelled", "0.8", "--unlabelled-weight", "3")
    assert (config.unlabelled, config.unlabelled_weight) == (0.8, 3.0)
    assert config.losses == ("information-gain", "published", "weighted", "corrected", ADJUSTED, ADJUSTED_LABELLED)
    own = asked(monkeypatch, "quick", "--unlabelled", "0.8", "--loss", "information-gain", "--loss", "weighted")
    assert own.losses == ("information-gain", "weighted")
    assert asked(monkeypatch, "quick", "--unlabelled", "0") == PRESETS["quick"]
    for arguments, words in ((["--unlabelled", "80"], "such as 0.8"), (["--unlabelled-weight", "3"], "add --unlabelled 0.8")):
        refused(words, "study", "quick", "--out", "unused", *arguments)


@pytest.mark.long
def test_help_tells_what_the_presets_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    monkeypatch.setenv("TERMINAL_WIDTH", "500")
    text = invoke("study", "--help").stdout
    assert "table1, table2: convnet, inception; metadata: convnet, metadata, both; features: mlp." in text
    panels = ("What is compared", "Folds and repetitions", "Training", "Where it runs")
    assert all(words in text for words in (*NAMES, *panels))
    assert "By default 2000; quick: 160; features: 1000." in text


@pytest.mark.long
def test_a_dry_run_prints_the_grid_and_the_time_and_writes_nothing(archive: Path, tmp_path: Path) -> None:
    arguments = ["study", "quick", "--data", str(archive), *SMALL, "--seeds", "2", "--dry-run"]
    result = ran(*arguments, "--out", str(tmp_path / "new"))
    assert "8 runs in 4 groups" in result.stdout
    assert "information gain (default); weighted loss" in result.stdout
    assert re.search(r"time +(about .* seconds|a second or two) with 1 process", result.stdout)
    assert re.search(r"space +at most \d+ MB", result.stdout)
    assert ("seed 0" in result.stdout, "… and 2 more" in result.stdout) == (True, True)
    assert result.stdout.endswith("nothing was written\n")
    assert list(tmp_path.iterdir()) == []
    every = invoke(*arguments, "--out", str(tmp_path / "new"), "--verbose", "--unlabelled", "0.5", "--batch-size", "10").stdout
    assert sum(line.startswith("  discs, convnet") for line in every.splitlines()) == 8
    assert "unlabelled   50 % of the training patients; learnt from by: information gain (default)" in every


@pytest.mark.long
def test_a_dry_run_needs_no_folder_and_a_study_does(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["study", "quick", "--data", str(archive), *SMALL]
    assert invoke(*arguments, "--dry-run").stdout.endswith("nothing was written\n")
    for each in (arguments, ["study", "toy"], [*arguments, "--dry-run", "--out", " "]):
        refused("Expected a folder for the results, but got none: --out results, say.", *each)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_dry_run_leaves_out_what_is_done(finished: tuple[list[str], Path, str]) -> None:
    arguments, out, _ = finished
    before = contents(out)
    done = invoke(*arguments, "--dry-run")
    assert "4 runs in 2 groups; runs of a group are trained side by side; 4 are done already in" in done.stdout
    assert "everything is done" in done.stdout
    more = invoke(*arguments, "--seeds", "2", "--dry-run")
    assert "8 runs in 4 groups; runs of a group are trained side by side; 4 are done already in" in more.stdout
    assert contents(out) == before


# The estimate against work whose length is known: it moves the clock itself.

STEP, LOOK = 0.05, 0.03
TWO_SOURCES = dataclasses.replace(PRESETS["quick"], sources=(Source("contours"), Source("slices", "digest", "slices.npz")))


class Worker:
    """Trains nothing, but takes its time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def __call__(self, group: Group, report: Report) -> list[RunResult]:
        training = group.runs[0].training
        nets = len(group.runs) * len(training.learning_rates)
        for step in range(1, training.steps + 1):
            self.now += STEP * nets * training.views
            if step * training.checkpoints % training.steps == 0:
                self.now += LOOK * nets * training.test_views
            report(step / training.steps)
        self.now += LOOK * nets * training.test_views
        return []


@pytest.mark.parametrize(
    ("config", "workers"),
    [(PRESETS["quick"], 1), (PRESETS["table1"], 2), (TWO_SOURCES, 3)],
    ids=["quick", "table1", "two sources"],
)
def test_a_few_steps_predict_the_time_of_all(config: StudyConfig, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    groups, worker = config.groups(), Worker(monkeypatch)
    found = estimate_seconds(groups, worker, workers)
    assert worker.now < 200
    before = worker.now
    worker(groups[0], lambda share: None)
    assert found == pytest.approx((worker.now - before) * math.ceil(len(groups) / workers))


def test_posteriors_are_not_counted_nor_is_work_that_does_not_report_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(monkeypatch)
    both = dataclasses.replace(PRESETS["features"], inferences=("map", "laplace"))
    alone = dataclasses.replace(both, inferences=("map",))
    assert estimate_seconds(both.groups(), worker, 2) == pytest.approx(estimate_seconds(alone.groups(), worker, 2))
    assert estimate_seconds(dataclasses.replace(both, inferences=("laplace",)).groups(), worker, 2) is None
    assert estimate_seconds(PRESETS["quick"].groups(), lambda group, report: [], 1) is None
    durations = {0.3: "a second or two", 12.6: "about 13 seconds", 1500.0: "about 25 minutes", 2.6e5: "about 3 days"}
    assert [lasting(seconds) for seconds in durations] == list(durations.values())


# Where it runs.


@pytest.mark.parametrize(
    ("options", "cores", "engine", "words"),
    [
        ({}, 4, Processes(3), "3 processes"),
        ({}, 2, Processes(2), "2 processes"),
        ({}, 1, InProcess(), "1 process"),
        ({"workers": 1}, 4, Processes(1), "1 process"),
        ({"engine": "processes"}, 1, Processes(1), "1 process"),
        ({"engine": "in-process"}, 4, InProcess(), "1 process"),
        ({"devices": 2}, 4, InProcess(), "2 devices"),
        ({"engine": "ray"}, 2, OnRay(), "2 workers of Ray"),
        ({"engine": "ray", "workers": 1}, 2, OnRay(workers=1), "1 worker of Ray"),
        ({"engine": "ray", "address": "head:6379"}, 2, OnRay("head:6379"), "Ray"),
    ],
)
def test_the_engine_is_what_the_options_and_the_cores_say(
    options: dict[str, Any], cores: int, engine: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study_command, "processors", lambda: cores)
    found = machine_of(options, groups=3)
    assert (found.engine, found.words) == (engine, words)


@pytest.mark.long
def test_devices_and_precision_reach_the_training_and_room_is_asked_for_what_a_study_writes(tmp_path: Path) -> None:
    assert machine_of({}, 1).work is train_group
    work: Any = machine_of({"engine": "in-process", "accelerator": "cpu", "devices": 2}, 1).work
    assert (work.func, work.keywords) == (train_group, {"hardware": Hardware("cpu", 2)})
    assert configured("quick", {"precision": "bf16-mixed"}).training.precision == "bf16-mixed"
    config = dataclasses.replace(PRESETS["quick"], folds=1)
    fake_study(tmp_path, config, nodules=1400)
    written = sum(len(content) for content in contents(tmp_path).values())
    assert written < disk_space(len(config.runs()), 1) < 20 * written


@pytest.mark.long
def test_ctrl_c_gives_one_line_and_leaves_no_process(archive: Path, tmp_path: Path) -> None:
    arguments = ["study", "quick", "--data", str(archive), "--out", str(tmp_path / "out"), "--workers", "2", "--steps", "9999"]
    command = [sys.executable, "-c", "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"]
    command[-1] += "from rightloss.cli import main; main()"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([*command, *arguments], stderr=subprocess.PIPE, text=True, env=environment) as process:
        deadline = time.monotonic() + 60
        while len(children(process.pid)) < 3 and time.monotonic() < deadline:  # two workers, and multiprocessing's own
            time.sleep(0.1)
        started = children(process.pid)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert len(started) == 3
    assert (process.returncode, errors) == (130, "rightloss: interrupted; run again to resume\n")
    wait_for(lambda: not any(map(is_running, started)), 5)
    assert not list((tmp_path / "out").glob("*.lock"))


def children(process: int) -> list[int]:
    """Return the sum over all its threads."""
    if not Path("/proc/self/task").exists():
        pytest.skip("this system does not tell which processes a process has")
    return [int(number) for path in Path(f"/proc/{process}/task").glob("*/children") for number in path.read_text().split()]


def test_a_card_of_a_study_is_that_of_stored_predictions_of_one_loss_or_of_several(tmp_path: Path) -> None:
    fake_study(tmp_path / "study", dataclasses.replace(CONFIG, populations=(0.3, 0.01)))
    results = read_study(tmp_path / "study")
    own = [run for run in results.runs if (run.config.loss, run.config.population) == ("information-gain", 0.01)]
    log_odds = np.concatenate([run.log_probs[:, 1] - run.log_probs[:, 0] for run in own]) + logit(0.02) - logit(0.01)
    malignant = results.data[own[0].config.data].labels[np.concatenate([run.rows for run in own])] == 1
    options = ["--cell", "population=0.01", "--population", "2%"]
    done = ran("card", str(tmp_path / "study"), *options, "--out", str(tmp_path / "card"), "--json")
    made = json.loads(done.stdout)["card"]
    found = made["answers"][0]["figures"]
    assert found["sensitivity"]["value"] == pytest.approx((log_odds >= logit(0.02))[malignant].mean(), rel=1e-12)
    assert found["specificity"]["value"] == pytest.approx((log_odds < logit(0.02))[~malignant].mean(), rel=1e-12)
    several = ["--cell", "loss=weighted", "--cell", "loss=information-gain", "--overwrite"]
    both = invoke("card", str(tmp_path / "study"), *several, "--out", str(tmp_path / "card"), "--json")
    assert json.loads(both.stdout)["card"]["models"] == ["information-gain", "weighted"]
    for option in ("zebra=1", "loss=none"):
        refused("Expected --cell", "card", tmp_path / "study", "--cell", option, "--out", tmp_path / "no")
