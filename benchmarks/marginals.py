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

import os
from typing import NamedTuple

import matplotlib
import torch
from matplotlib.figure import Figure
from measuring import shown, table, write_pages
from torch import Tensor, nn

import rightloss as rl
from rightloss.marginals import MinibatchEstimate

matplotlib.use("Agg")
import matplotlib.pyplot as plt

BATCHES, DRAWS = [8, 16, 32, 64, 128, 256], 2000
STEPS, BATCH, SPREAD = int(os.environ.get("RIGHTLOSS_DRAWS", "3000")), 128, 0.3
WARM_UP = STEPS // 3


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


def bias(reference: str, batch: int) -> tuple[float, float, float]:
    """Return the bias of log m, and of the gradient with q = m and with exact q (norm over weights, relative to ‖∇‖)."""
    own, moved = terms(reference)
    exact, gradient = own.mean(), moved.mean(0) / own.mean()
    rows = torch.randint(len(own), (DRAWS, batch), generator=torch.Generator().manual_seed(batch))
    m, summed = own[rows].mean(1), moved[rows].mean(1)
    errors = [((each.mean(0) - gradient).norm() / gradient.norm()).item() for each in (summed / m[:, None], summed / exact)]
    return float((m.log() - exact.log()).mean()), errors[0], errors[1]


def marginal_bias() -> tuple[str, Figure]:
    rows = []
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for reference, style, words in (("population", "k-o", "r = π, as published"), ("sampling", "k--s", "r = ρ, the default")):
        value, own, given = zip(*(bias(reference, batch) for batch in BATCHES), strict=True)
        for batch, of_log, of_own, of_exact in zip(BATCHES, value, own, given, strict=True):
            rows.append([words, str(batch), f"{of_log:+.4f}", f"{100 * of_own:.1f} %", f"{100 * of_exact:.1f} %"])
        axes[0].plot(BATCHES, value, style, label=words)
        axes[1].plot(BATCHES, [100 * each for each in own], style, label=f"{words}: q = the batch's own")
        exact = [100 * each for each in given]
        axes[1].plot(BATCHES, exact, style[1:], color="0.65", label=f"{words}: q exact (noise of the mean)")
    for axis, label in zip(
        axes, ("bias of log p(rarest class | w), nats", "bias of its gradient, % of its length"), strict=True
    ):
        axis.set(xscale="log", xlabel="examples in a minibatch", ylabel=label)
        axis.set_xticks(BATCHES, [str(batch) for batch in BATCHES])
        axis.minorticks_off()
        axis.legend(frameon=False, fontsize=7)
    header = ["reference", "batch", "bias of log m", "gradient bias, q = m", f"q exact (noise of {DRAWS} draws)"]
    return f"three classes.\n\n{table(header, rows)}", figure


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


def auxiliary_marginal() -> tuple[str, Figure]:
    rows = []
    figure, axes = plt.subplots(1, 4, figsize=(13, 3.2), sharey=True, layout="constrained")
    moves, samples = (training, "weights that move", 1e-3), (sampled, "weights that are sampled", 1e-2)
    cases = [(*each, k) for each in (moves, samples) for k in (2, 5)]
    for axis, (run, words, target, k) in zip(axes, cases, strict=True):
        for curve, name, style in zip(torch.tensor(run(k)).T, ("running", "auxiliary"), ("0.7", "k"), strict=True):
            late = curve[WARM_UP:]
            axis.plot(curve.clamp_min(1e-8).unfold(0, 25, 25).mean(1).repeat_interleave(25), color=style, label=name)
            figures = [f"{float(each):.1e}" for each in (late.mean(), late.quantile(0.95), late.max())]
            below = f"{100 * float((late < target).float().mean()):.0f} %"
            rows.append(shown([words, str(k), name, *figures, f"{target:.0e}", below]))
        axis.axhline(target, color="k", linestyle=":", linewidth=1, label="target")
        axis.axvline(WARM_UP, color="k", linestyle="--", linewidth=0.5, label="end of warm-up")
        axis.set(yscale="log", title=f"{words}, K = {k}", xlabel="training step", ylim=(1e-7, 3e-1))
    axes[0].set_ylabel("KL[exact ‖ q], nats (mean of 25 steps)")
    axes[0].legend(frameon=False, fontsize=8)
    header = ["weights", "K", "marginal", "mean KL after warm-up", "95 % quantile", "largest", "target", "steps below target"]
    return f"minibatches of {BATCH}.\n\n{table(header, rows)}", figure


if __name__ == "__main__":
    write_pages(__doc__, marginal_bias=marginal_bias, auxiliary_marginal=auxiliary_marginal)
