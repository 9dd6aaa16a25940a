"""Measure how close estimates of the log marginal are to the exact one.

*marginal_bias*: the bias of the minibatch estimates of the log marginal and of its gradient, relative to the whole data. A
small softmax model on three classes, π = (0.9, 0.09, 0.01), with balanced data, at the paper's reference (r = π) and the
default (r = ρ). With q fixed to the exact marginal the gradient is unbiased; with q = the batch's own m (`BatchMarginal`) it
is not.

*auxiliary_marginal*: KL[exact ‖ q] in nats at every step, for `AuxiliaryMarginal` and, for comparison, `RunningMarginal`,
while weights change in training and when they are sampled around a fit. The exact marginal is over all data, in minibatches of
128.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn

import rightloss as rl
from rightloss.marginals import MinibatchEstimate

from .engine import Comparison
from .pages import axes, table

BATCHES, DRAWS = [8, 16, 32, 64, 128, 256], 2000
STEPS, WARM_UP, BATCH, SPREAD = 3000, 1000, 128, 0.3
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


class BiasCell(NamedTuple):
    reference: str
    batch: int


def bias_cells(quick: bool) -> Iterator[BiasCell]:
    yield from (BiasCell(reference, batch) for reference in REFERENCES for batch in BATCHES)


def bias(cell: BiasCell) -> list[dict[str, Any]]:
    """Return the bias of log m, and of the gradient with q = m and with exact q (norm over weights, relative to ‖∇‖)."""
    own, moved = terms(cell.reference)
    exact, gradient = own.mean(), moved.mean(0) / own.mean()
    rows = torch.randint(len(own), (DRAWS, cell.batch), generator=torch.Generator().manual_seed(cell.batch))
    m, summed = own[rows].mean(1), moved[rows].mean(1)
    errors = [float((each.mean(0) - gradient).norm() / gradient.norm()) for each in (summed / m[:, None], summed / exact)]
    return [{"log_m": float((m.log() - exact.log()).mean()), "own": 100 * errors[0], "given": 100 * errors[1]}]


def bias_tables(rows: pd.DataFrame) -> dict[str, str]:
    lines = [
        [REFERENCES[row.reference][1], str(row.batch), f"{row.log_m:+.4f}", f"{row.own:.1f} %", f"{row.given:.1f} %"]
        for row in rows.itertuples()
    ]
    header = ["reference", "batch", "bias of log m", "gradient bias, q = m", f"q exact (noise of {DRAWS} draws)"]
    return {"table": table(header, lines)}


def draw_bias(rows: pd.DataFrame) -> Any:
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


class Problem(NamedTuple):
    """Data of K classes, and a network."""

    x: Tensor
    y: Tensor
    body: nn.Module
    head: nn.Linear
    prevalence: rl.Prevalence


def problem(k: int) -> Problem:
    torch.manual_seed(k)
    centres, y = torch.randn(k, 10), torch.arange(4000) % k
    x = 0.7 * centres[y] + torch.randn(4000, 10)
    frequencies = torch.tensor([0.9, 0.1] if k == 2 else [0.45, 0.25, 0.15, 0.1, 0.05], dtype=torch.float64)
    body, head = nn.Sequential(nn.Linear(10, 32), nn.Tanh()), nn.Linear(32, k)
    return Problem(x, y, body, head, rl.Prevalence(frequencies, evidence=0.0))


def divergence(exact: Tensor, log_q: Tensor) -> float:
    """Return KL[exact ‖ q], with q as it is used, even if it is not normalised."""
    return float((exact * (exact.log() - log_q)).sum())


Curves = list[tuple[float, float]]  # by step, of the running and of the auxiliary marginal


def training(k: int) -> Curves:
    """Train the model with the auxiliary marginal, so that the weights change; return the divergences by step."""
    p = problem(k)
    rl.start_at_prevalence(p.head, p.prevalence)
    auxiliary, running = rl.AuxiliaryMarginal(p.head), rl.RunningMarginal()
    running.prepare(k)
    criterion = rl.InformationGainLoss(p.prevalence, marginal=auxiliary)
    offset = -torch.tensor(p.prevalence.log_weights).float()
    optimizer, curves = torch.optim.Adam([*p.body.parameters(), *p.head.parameters()], lr=1e-3), []
    for _ in range(STEPS):
        rows = torch.randint(len(p.x), (BATCH,))
        loss = criterion(p.head(p.body(p.x[rows])), p.y[rows])
        with torch.no_grad():
            probs = torch.softmax(p.head(p.body(p.x)) + offset, 1)
        log_running = running.update(MinibatchEstimate(probs[rows].mean(0).log(), BATCH))
        exact = probs.mean(0)
        curves.append((divergence(exact, log_running), divergence(exact, auxiliary.log_marginal(auxiliary.vector()))))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return curves


def sampled(k: int) -> Curves:
    """Draw new weights at every step from a Gaussian around a trained output layer; return the divergences by step."""
    p = problem(k)
    optimizer, curves = torch.optim.Adam([*p.body.parameters(), *p.head.parameters()], lr=3e-3), []
    for _ in range(300):
        optimizer.zero_grad()
        nn.functional.cross_entropy(p.head(p.body(p.x)), p.y).backward()
        optimizer.step()
    auxiliary, running = rl.AuxiliaryMarginal(p.head), rl.RunningMarginal()
    for each in (auxiliary, running):
        each.prepare(k)
    mean, features = auxiliary.vector(), p.body(p.x).detach()

    def drawn() -> tuple[Tensor, Tensor]:
        vector = mean + SPREAD * torch.randn_like(mean)
        weight, bias = vector[: p.head.weight.numel()].view_as(p.head.weight), vector[p.head.weight.numel() :]
        return vector, torch.softmax(features @ weight.T + bias, 1)

    for _ in range(STEPS):
        vector, probs = drawn()
        m = probs[torch.randint(len(probs), (BATCH,))].mean(0)
        auxiliary.learn(vector, m)
        log_running = running.update(MinibatchEstimate(m.log(), BATCH))
        vector, probs = drawn()
        exact = probs.mean(0)
        curves.append((divergence(exact, log_running), divergence(exact, auxiliary.log_marginal(vector))))
    return curves


WAYS = {"weights that move": (training, 1e-3), "weights that are sampled": (sampled, 1e-2)}  # and the target, in nats


class FollowCell(NamedTuple):
    weights: str
    classes: int


def follow_cells(quick: bool) -> Iterator[FollowCell]:
    yield from (FollowCell(weights, k) for weights in WAYS for k in (2, 5))


def follow(cell: FollowCell) -> list[dict[str, Any]]:
    """Return the divergences of every step."""
    found = WAYS[cell.weights][0](cell.classes)
    return [{"running": running, "auxiliary": auxiliary} for running, auxiliary in found]


def follow_tables(rows: pd.DataFrame) -> dict[str, str]:
    lines = []
    for (weights, k), part in rows.groupby(["weights", "classes"], sort=False):
        target = WAYS[weights][1]
        for name in ("running", "auxiliary"):
            late = part[name].iloc[WARM_UP:]
            figures = [f"{each:.1e}" for each in (late.mean(), late.quantile(0.95), late.max())]
            lines.append([weights, str(k), name, *figures, f"{target:.0e}", f"{100 * (late < target).mean():.0f} %"])
    header = ["weights", "K", "marginal", "mean KL after warm-up", "95 % quantile", "largest", "target", "steps below target"]
    return {"table": table(header, lines)}


def draw_follow(rows: pd.DataFrame) -> Any:
    figure, panels = axes(1, 4, (13, 3.2), 150, sharey=True)
    for axis, ((weights, k), part) in zip(panels, rows.groupby(["weights", "classes"], sort=False), strict=True):
        for name, style in (("running", "0.7"), ("auxiliary", "k")):
            by_25 = part[name].clip(1e-8).to_numpy().reshape(-1, 25).mean(1).repeat(25)
            axis.plot(by_25, color=style, label=name)
        axis.axhline(WAYS[weights][1], color="k", linestyle=":", linewidth=1, label="target")
        axis.axvline(WARM_UP, color="k", linestyle="--", linewidth=0.5, label="end of warm-up")
        axis.set(yscale="log", title=f"{weights}, K = {k}", xlabel="training step", ylim=(1e-7, 3e-1))
    panels[0].set_ylabel("KL[exact ‖ q], nats (mean of 25 steps)")
    panels[0].legend(frameon=False, fontsize=8)
    return figure


COMPARISONS = (
    Comparison("marginal_bias", bias_cells, bias, bias_tables, draw_bias),
    Comparison("auxiliary_marginal", follow_cells, follow, follow_tables, draw_follow),
)
