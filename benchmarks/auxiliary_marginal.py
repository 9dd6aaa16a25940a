"""Measure how well q_ψ(w) follows the exact marginal, while weights change in training and when they are sampled around a fit.

The measure is KL[exact ‖ q] in nats at every step, for `AuxiliaryMarginal` and, for comparison, `RunningMarginal`. The exact
marginal is over all data. K = 2 and 5 classes, minibatches of 128. Writes auxiliary_marginal.md (a row per case and marginal)
and auxiliary_marginal.png.
"""

from __future__ import annotations

from dataclasses import dataclass

import matplotlib
import torch
from report import folder, table
from torch import Tensor, nn

import rightloss as rl
from rightloss.marginals import MinibatchEstimate

matplotlib.use("Agg")
import matplotlib.pyplot as plt

STEPS, WARM_UP, BATCH, SPREAD = 3000, 1000, 128, 0.3


@dataclass(frozen=True)
class Problem:
    x: Tensor
    y: Tensor
    body: nn.Module
    head: nn.Linear
    prevalence: rl.Prevalence


def problem(k: int) -> Problem:
    torch.manual_seed(k)
    centres = torch.randn(k, 10)
    y = torch.arange(4000) % k
    x = 0.7 * centres[y] + torch.randn(4000, 10)
    frequencies = torch.tensor([0.9, 0.1] if k == 2 else [0.45, 0.25, 0.15, 0.1, 0.05], dtype=torch.float64)
    body, head = nn.Sequential(nn.Linear(10, 32), nn.Tanh()), nn.Linear(32, k)
    return Problem(x, y, body, head, rl.Prevalence(frequencies, evidence=0.0))


def divergence(exact: Tensor, log_q: Tensor) -> float:
    """Return KL[exact ‖ q], with q as it is used, even if it is not normalised."""
    return float((exact * (exact.log() - log_q)).sum())


def training(k: int) -> dict[str, list[float]]:
    """Train the model with the auxiliary marginal, so that the weights change; return the divergences by step."""
    p = problem(k)
    rl.start_at_prevalence(p.head, p.prevalence)
    auxiliary, running = rl.AuxiliaryMarginal(p.head), rl.RunningMarginal()
    running.prepare(k)
    criterion = rl.InformationGainLoss(p.prevalence, marginal=auxiliary)
    offset = -torch.tensor(p.prevalence.log_weights).float()
    optimizer = torch.optim.Adam([*p.body.parameters(), *p.head.parameters()], lr=1e-3)
    curves: dict[str, list[float]] = {"auxiliary": [], "running": []}
    for _ in range(STEPS):
        rows = torch.randint(len(p.x), (BATCH,))
        loss = criterion(p.head(p.body(p.x[rows])), p.y[rows])
        with torch.no_grad():
            probs = torch.softmax(p.head(p.body(p.x)) + offset, 1)
        log_m = probs[rows].mean(0).log()
        log_running = running.update(MinibatchEstimate(log_m, BATCH))
        exact = probs.mean(0)
        curves["auxiliary"].append(divergence(exact, auxiliary.log_marginal(auxiliary.vector())))
        curves["running"].append(divergence(exact, log_running))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return curves


def sampled(k: int) -> dict[str, list[float]]:
    """Draw new weights at every step from a Gaussian around a trained output layer; return the divergences by step."""
    p = problem(k)
    optimizer = torch.optim.Adam([*p.body.parameters(), *p.head.parameters()], lr=3e-3)
    for _ in range(300):
        optimizer.zero_grad()
        nn.functional.cross_entropy(p.head(p.body(p.x)), p.y).backward()
        optimizer.step()
    auxiliary, running = rl.AuxiliaryMarginal(p.head), rl.RunningMarginal()
    auxiliary.prepare(k)
    running.prepare(k)
    mean = auxiliary.vector()
    features = p.body(p.x).detach()
    curves: dict[str, list[float]] = {"auxiliary": [], "running": []}
    for _ in range(STEPS):
        vector = mean + SPREAD * torch.randn_like(mean)
        weight, bias = vector[: p.head.weight.numel()].view_as(p.head.weight), vector[p.head.weight.numel() :]
        probs = torch.softmax(features @ weight.T + bias, 1)
        m = probs[torch.randint(len(probs), (BATCH,))].mean(0)
        auxiliary.learn(vector, m)
        log_running = running.update(MinibatchEstimate(m.log(), BATCH))
        fresh = mean + SPREAD * torch.randn_like(mean)
        weight, bias = fresh[: p.head.weight.numel()].view_as(p.head.weight), fresh[p.head.weight.numel() :]
        exact = torch.softmax(features @ weight.T + bias, 1).mean(0)
        curves["auxiliary"].append(divergence(exact, auxiliary.log_marginal(fresh)))
        curves["running"].append(divergence(exact, log_running))
    return curves


def main() -> None:
    out = folder()
    rows = []
    figure, axes = plt.subplots(1, 4, figsize=(13, 3.2), sharey=True, layout="constrained")
    cases = [(training, "weights that move", 1e-3), (sampled, "weights that are sampled", 1e-2)]
    for column, ((run, words, target), k) in enumerate((case, k) for case in cases for k in (2, 5)):
        curves = run(k)
        axis = axes[column]
        for name, style in (("running", "0.7"), ("auxiliary", "k")):
            late = torch.tensor(curves[name][WARM_UP:])
            axis.plot(
                torch.tensor(curves[name]).clamp_min(1e-8).unfold(0, 25, 25).mean(1).repeat_interleave(25),
                color=style,
                label=name,
            )
            below = 100 * float((late < target).float().mean())
            figures = [f"{float(late.mean()):.1e}", f"{float(late.quantile(0.95)):.1e}", f"{float(late.max()):.1e}"]
            rows.append([words, str(k), name, *figures, f"{target:.0e}", f"{below:.0f} %"])
        axis.axhline(target, color="k", linestyle=":", linewidth=1, label="target")
        axis.axvline(WARM_UP, color="k", linestyle="--", linewidth=0.5, label="end of warm-up")
        axis.set(yscale="log", title=f"{words}, K = {k}", xlabel="training step", ylim=(1e-7, 3e-1))
    axes[0].set_ylabel("KL[exact ‖ q], nats (mean of 25 steps)")
    axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(out / "auxiliary_marginal.png", dpi=150)
    header = ["weights", "K", "marginal", "mean KL after warm-up", "95 % quantile", "largest", "target", "steps below target"]
    page = f"Made by `python benchmarks/auxiliary_marginal.py`.\n\n{table(header, rows)}"
    (out / "auxiliary_marginal.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
