"""Two ranks with half the batch each give what one rank gives with all of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from two_ranks import loss_of, make_criterion

CASES = [
    *(f"{marginal}-{rest}" for marginal in ("batch", "classwise", "running") for rest in ("sampled-fused", "paper-composed")),
    *("regression-sampled-composed", "batch-paper-mixed", "classwise-sampled-fused-ignored", "running-paper-composed-ignored"),
    *("batch-sampled-fused-unlabelled", "classwise-sampled-fused-unlabelled", "running-sampled-fused-ignored-unlabelled"),
    *("running-paper-fused-unlabelled", "running-sampled-fused-weighted", "running-sampled-fused-unknown"),
    *("batch-sampled-composed-findings", "running-sampled-composed-findings"),
]


def make_case(name: str) -> dict[str, Any]:
    torch.manual_seed(CASES.index(name))
    marginal, paper, fused, *also = name.split("-")
    x = torch.randn(3, 24, 4)
    if fused == "mixed":  # the first rank's probabilities underflow, so that it alone must compose in log space
        x[:, :12] *= 300
    # the first rank sees few of class 2, the second few of class 0
    y = torch.tensor([0] * 7 + [1] * 4 + [2] + [0] + [1] * 3 + [2] * 8).expand(3, -1)
    if "ignored" in also:  # all on the first rank
        y = y.clone()
        y[:, :5] = -100
    if "findings" in also:  # the first rank has not read the second finding, and no rank the third in the second batch
        y = torch.stack([y == 0, y == 1, y == 2], -1).float()
        y[:, :12, 1], y[1, :, 2] = torch.nan, torch.nan
    regression = marginal == "regression"
    extra: dict[str, Any] = {}
    if {"unlabelled", "weighted", "unknown"} & {*also}:
        extra = {"unlabelled": torch.randn(40, 4), "unknown": "unknown" in also}
        extra |= {"weight": 0.6, "people": 3.0} if "weighted" in also else {}
    return extra | {
        "findings": "findings" in also,
        "marginal": marginal,
        "paper": paper == "paper",
        "fused": fused != "composed",
        "x": x,
        "y": torch.randn(3, 24) if regression else y,
        "outputs": 1 if regression else 3,
        "weights": nn.Linear(4, 1 if regression else 3).state_dict(),
        "population": [0.7, 0.25, 0.05],
        "sampling": [0.3, 0.3, 0.4],
        "evidence": 0.2,
    }


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("ranks")
    torch.save({name: make_case(name) for name in CASES}, folder / "cases.pt")
    script = Path(__file__).with_name("two_ranks.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script), str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr[-3000:]
    results: dict[str, Any] = torch.load(folder / "results.pt", weights_only=True)
    return results


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_two_ranks_give_the_loss_and_the_gradients_of_one(two_ranks: dict[str, Any], name: str) -> None:
    case = make_case(name)
    model = nn.Linear(4, case["outputs"])
    model.load_state_dict(case["weights"])
    criterion = make_criterion(case)
    losses = []
    for x, y in zip(case["x"], case["y"], strict=True):
        model.zero_grad()
        loss = loss_of(criterion, model, case, x, y)
        loss.backward()
        losses.append(loss.detach())
    relative = 1e-6 if name.endswith("mixed") else 0.0  # there the numbers are in the hundreds
    torch.testing.assert_close(two_ranks[name]["loss"], torch.stack(losses), rtol=relative, atol=1e-6)
    for ours, theirs in zip(two_ranks[name]["gradients"], model.parameters(), strict=True):
        assert theirs.grad is not None
        torch.testing.assert_close(ours, theirs.grad, rtol=relative, atol=1e-6)
