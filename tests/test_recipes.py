"""Recipes for training frameworks: their programs run, print what the pages say, and what the pages claim holds.

The convention of the blocks is that of `test_docs.py`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_docs import BLOCK, ROOT, is_program, run, text_of
from test_docs import test_its_links_and_inclusions_lead_to_files as check_links
from test_docs import test_its_names_exist as check_names
from test_docs import test_its_programs_run_and_print_what_it_says as check_programs

os.environ["HF_HUB_OFFLINE"] = "1"

PAGES = {page.stem: page for page in sorted((ROOT / "docs" / "recipes").glob("*.md"))}
MEAN = re.compile(r"mean prediction ([\d.]+), prevalence ([\d.]+)")

each_recipe = pytest.mark.parametrize("name", PAGES)
pytestmark = [
    pytest.mark.long,
    # of frameworks on themselves, on torch, and on a short run
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Starting from v1.9.0, `tensorboardX`"),
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator:UserWarning"),
]


def program_of(page: Path) -> str:
    return "\n".join(block["code"] for block in BLOCK.finditer(text_of(page)) if is_program(block))


@each_recipe
def test_its_programs_run_and_print_what_it_says(name: str) -> None:
    check_programs(PAGES[name])


@each_recipe
def test_its_links_and_names_exist_and_its_program_is_short(name: str) -> None:
    check_links(PAGES[name])
    check_names(PAGES[name])
    assert 0 < len([line for line in program_of(PAGES[name]).splitlines() if line.strip()]) <= 50


@pytest.mark.parametrize("name", ["torch-ddp", "lightning", "skorch", "huggingface"])
def test_the_mean_prediction_over_the_population_is_the_prevalence(name: str) -> None:
    found = MEAN.findall("".join(run(PAGES[name]).printed))
    assert found
    for mean, rate in found:
        assert float(mean) == pytest.approx(float(rate), rel=0.2)


def test_two_processes_print_what_one_does(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(program_of(PAGES["torch-ddp"]).replace(":.3f}", ":.7f}"), encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    ((mean, _),) = MEAN.findall(done.stdout)
    one = float(run(PAGES["torch-ddp"]).names["risk"].detach().mean())
    assert float(mean) == pytest.approx(one, rel=1e-3)  # 300 steps in another order of summation


def test_skorch_returns_logits_where_the_nonlinearity_is_left_to_it() -> None:
    names = run(PAGES["skorch"]).names
    net, people = names["net"], names["people"][:100]
    np.testing.assert_allclose(net.predict_proba(people).sum(1), 1, rtol=1e-5)
    given = net.predict_nonlinearity
    net.set_params(predict_nonlinearity="auto")
    assert (net.predict_proba(people) < 0).any()
    net.set_params(predict_nonlinearity=given)


def test_gradient_accumulation_gives_the_gradient_of_the_whole_batch() -> None:
    found = re.findall(r"first gradient ([\d.]+)", "".join(run(PAGES["huggingface"]).printed))
    whole, accumulated = (float(each) for each in found)
    assert accumulated == pytest.approx(whole, rel=0.3)  # the mean of each micro-batch would give 4 times as much


def test_patches_have_a_mix_of_their_own_and_the_loss_allows_for_it() -> None:
    run_page = run(PAGES["monai"])
    prevalence = run_page.names["prevalence"]
    assert prevalence.sampling[1] > 5 * prevalence.population[1]
    found = re.findall(r"(\w+): mean prediction ([\d.]+), lesion pixels ([\d.]+)", "".join(run_page.printed))
    off = {name: abs(np.log(float(mean) / float(rate))) for name, mean, rate in found}
    assert off["InformationGainLoss"] < 0.5 * off["CrossEntropyLoss"]


def test_the_judges_pass_rates_are_those_of_rogan_and_gladen_and_cover_the_truth() -> None:
    page = run(PAGES["llm-judge"])
    names, labels, known = page.names, page.names["labels"], page.names["known"]
    hit, false_alarm = known[labels == 1].mean(), known[labels == 0].mean()
    printed = re.findall(r"(\w): .*corrected ([\d.]+) \(([\d.]+) to ([\d.]+)\)", "".join(page.printed))
    assert [name for name, *_ in printed] == ["A", "B", "A"]  # the last is "B - A"
    for name, *figures in printed[:2]:
        rate, low, high = (float(each) for each in figures)
        assert rate == pytest.approx((names["verdicts"][name].mean() - false_alarm) / (hit - false_alarm), abs=6e-4)
        assert low < names["goods"][name].mean() < high


def test_the_interval_of_the_difference_is_that_of_the_delta_method() -> None:
    names = run(PAGES["llm-judge"]).names
    bad, good, a, b = names["sets"]
    slope, gap = good.mean() - bad.mean(), names["difference"](bad, good, a, b)
    noise = [each.var() / len(each) for each in (a, b, good, bad)]
    error = np.sqrt(noise[0] + noise[1] + gap**2 * (noise[2] + noise[3])) / slope
    assert names["high"] - names["low"] == pytest.approx(2 * 1.96 * error, rel=0.1)
    assert names["low"] < names["truth"] < names["high"]
