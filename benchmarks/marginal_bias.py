"""Measure the bias of the minibatch estimates of the log marginal and of its gradient, relative to the whole data.

A small softmax model on three classes, π = (0.9, 0.09, 0.01), with balanced data, at the paper's reference (r = π) and the
default (r = ρ). With q fixed to the exact marginal the gradient is unbiased; with q = the batch's own m (`BatchMarginal`) it
is not. Writes marginal_bias.md (a row per reference and batch size) and marginal_bias.png.
"""

from __future__ import annotations

import matplotlib
import torch
from report import folder, table
from torch import Tensor

matplotlib.use("Agg")
import matplotlib.pyplot as plt

BATCHES = [8, 16, 32, 64, 128, 256]
DRAWS = 2000


def terms(reference: str) -> tuple[Tensor, Tensor]:
    """Return β_n p_r(k|x_n) for the rarest class k, and β_n p_r(k|x_n) ∇ log p_r(k|x_n) for the model's 3×4 weights."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(6000) % 3
    x = torch.randn(6000, 3, dtype=torch.float64, generator=generator) + 1.5 * torch.nn.functional.one_hot(y, 3)
    x = torch.cat([x, torch.ones(6000, 1, dtype=torch.float64)], 1)
    pi = torch.tensor([0.9, 0.09, 0.01], dtype=torch.float64)
    weight = torch.cat([1.2 * torch.eye(3, dtype=torch.float64), pi.log()[:, None]], 1)
    offset, beta = (torch.zeros(3), (3 * pi)[y]) if reference == "population" else (-(3 * pi).log(), torch.ones(6000))
    probs = torch.softmax(x @ weight.T + offset, 1)
    own = beta * probs[:, 2]
    scores = (torch.nn.functional.one_hot(torch.tensor(2), 3) - probs)[:, :, None] * x[:, None, :]
    return own, own[:, None] * scores.flatten(1)


def measure(reference: str, batch: int) -> tuple[float, float, float]:
    """Return the bias of log m, and of the gradient with q = m and with exact q (norm over weights, relative to ‖∇‖)."""
    own, moved = terms(reference)
    exact, gradient = own.mean(), moved.mean(0) / own.mean()
    generator = torch.Generator().manual_seed(batch)
    rows = torch.randint(len(own), (DRAWS, batch), generator=generator)
    m, summed = own[rows].mean(1), moved[rows].mean(1)

    def error(estimates: Tensor) -> float:
        return float((estimates.mean(0) - gradient).norm() / gradient.norm())

    return float((m.log() - exact.log()).mean()), error(summed / m[:, None]), error(summed / exact)


def main() -> None:
    out = folder()
    rows = []
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for reference, style, words in (("population", "k-o", "r = π, as published"), ("sampling", "k--s", "r = ρ, the default")):
        figures = [measure(reference, batch) for batch in BATCHES]
        for batch, (value, own, given) in zip(BATCHES, figures, strict=True):
            rows.append([words, str(batch), f"{value:+.4f}", f"{100 * own:.1f} %", f"{100 * given:.1f} %"])
        axes[0].plot(BATCHES, [f[0] for f in figures], style, label=words)
        axes[1].plot(BATCHES, [100 * f[1] for f in figures], style, label=f"{words}: q = the batch's own")
        axes[1].plot(
            BATCHES, [100 * f[2] for f in figures], style[1:], color="0.65", label=f"{words}: q exact (noise of the mean)"
        )
    axes[0].set(xscale="log", xlabel="examples in a minibatch", ylabel="bias of log p(rarest class | w), nats")
    axes[1].set(xscale="log", xlabel="examples in a minibatch", ylabel="bias of its gradient, % of its length")
    for axis in axes:
        axis.set_xticks(BATCHES, [str(batch) for batch in BATCHES])
        axis.minorticks_off()
        axis.legend(frameon=False, fontsize=7)
    figure.savefig(out / "marginal_bias.png", dpi=150)
    header = ["reference", "batch", "bias of log m", "gradient bias, q = m", f"q exact (noise of {DRAWS} draws)"]
    page = f"Made by `python benchmarks/marginal_bias.py`.\n\n{table(header, rows)}"
    (out / "marginal_bias.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
