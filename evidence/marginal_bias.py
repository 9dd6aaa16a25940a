"""Measure the bias of the minibatch estimates of the log marginal and of its gradient, relative to the whole data.

A small softmax model on three classes, π = (0.9, 0.09, 0.01), with balanced data, at the paper's reference (r = π) and the
default (r = ρ). With q fixed to the exact marginal the gradient is unbiased; with q = the batch's own m (`BatchMarginal`) it
is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn

from .engine import Comparison
from .pages import axes, table

BATCHES, DRAWS = [8, 16, 32, 64, 128, 256], 2000
REFERENCES = {"population": ("k-o", "r = π, as published"), "sampling": ("k--s", "r = ρ, the default")}


def terms(reference: str) -> tuple[Tensor, Tensor]:
    """Return β_n p_r(k|x_n) for the rarest class k, and β_n p_r(k|x_n) ∇ log p_r(k|x_n) for the model's 3×4 weights."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(6000) % 3
    x = torch.randn(6000, 3, dtype=torch.float64, generator=generator) + 1.5 * nn.functional.one_hot(y, 3)
    x = torch.cat([x, torch.ones(6000, 1, dtype=torch.float64)], 1)
    pi = torch.tensor([0.9, 0.09, 0.01], dtype=torch.float64)
    weight = torch.cat([1.2 * torch.eye(3, dtype=torch.float64), pi.log()[:, None]], 1)
    offset, beta = (torch.zeros(3), (3 * pi)[y]) if reference == "population" else (-(3 * pi).log(), torch.ones(6000))
    probs = torch.softmax(x @ weight.T + offset, 1)
    own = beta * probs[:, 2]
    scores = (nn.functional.one_hot(torch.tensor(2), 3) - probs)[:, :, None] * x[:, None, :]
    return own, own[:, None] * scores.flatten(1)


class Cell(NamedTuple):
    reference: str
    batch: int


def cells(quick: bool) -> Iterator[Cell]:
    yield from (Cell(reference, batch) for reference in REFERENCES for batch in BATCHES)


def run(cell: Cell) -> list[dict[str, Any]]:
    """Return the bias of log m, and of the gradient with q = m and with exact q (norm over weights, relative to ‖∇‖)."""
    own, moved = terms(cell.reference)
    exact, gradient = own.mean(), moved.mean(0) / own.mean()
    rows = torch.randint(len(own), (DRAWS, cell.batch), generator=torch.Generator().manual_seed(cell.batch))
    m, summed = own[rows].mean(1), moved[rows].mean(1)
    errors = [float((each.mean(0) - gradient).norm() / gradient.norm()) for each in (summed / m[:, None], summed / exact)]
    return [{"log_m": float((m.log() - exact.log()).mean()), "own": 100 * errors[0], "given": 100 * errors[1]}]


def tables(rows: pd.DataFrame) -> dict[str, str]:
    lines = [
        [REFERENCES[row.reference][1], str(row.batch), f"{row.log_m:+.4f}", f"{row.own:.1f} %", f"{row.given:.1f} %"]
        for row in rows.itertuples()
    ]
    header = ["reference", "batch", "bias of log m", "gradient bias, q = m", f"q exact (noise of {DRAWS} draws)"]
    return {"table": table(header, lines)}


def draw(rows: pd.DataFrame) -> Any:
    figure, (left, right) = axes(1, 2, (9, 3.4), 150)
    for reference, (style, words) in REFERENCES.items():
        part = rows[rows["reference"] == reference]
        left.plot(BATCHES, part["log_m"], style, label=words)
        right.plot(BATCHES, part["own"], style, label=f"{words}: q = the batch's own")
        right.plot(BATCHES, part["given"], style[1:], color="0.65", label=f"{words}: q exact (noise of the mean)")
    for axis, label in ((left, "bias of log p(rarest class | w), nats"), (right, "bias of its gradient, % of its length")):
        axis.set(xscale="log", xlabel="examples in a minibatch", ylabel=label)
        axis.set_xticks(BATCHES, [str(batch) for batch in BATCHES])
        axis.minorticks_off()
        axis.legend(frameon=False, fontsize=7)
    return figure


COMPARISON = Comparison("marginal_bias", cells, run, tables, draw)
