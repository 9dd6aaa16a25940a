"""Draw predicted against observed risk, before and after: the same network, trained with cross-entropy and with rightloss.

The data are 10,000 credit card holders, of whom 3.3 % default (ISLP's Default). Training sees as many who default as not;
the pictures are of 5,000 other customers, as they come.

    pip install -c constraints.txt -e ".[study]" ISLP
    python examples/risk_before_after.py risk_before_after.png
"""

from __future__ import annotations

import sys

import matplotlib.pyplot as plt
import numpy as np
import torch
from ISLP import load_data
from matplotlib.axes import Axes
from scipy.stats import binomtest
from torch import Tensor, nn

import rightloss as rl

PREVALENCE = 0.033
TITLES = {
    "CrossEntropyLoss": "Before: nn.CrossEntropyLoss()",
    "InformationGainLoss": "After: rl.InformationGainLoss(prevalence)",
}
COLOURS = {"CrossEntropyLoss": "#d55e00", "InformationGainLoss": "#0072b2"}


def customers() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return a balanced training set, and half of all customers as they come."""
    table = load_data("Default")
    x = torch.tensor(table[["balance", "income"]].assign(student=table["student"] == "Yes").to_numpy(dtype=np.float32))
    x, y = (x - x.mean(0)) / x.std(0), torch.tensor((table["default"] == "Yes").to_numpy().astype(int))
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    train, test = order[: len(y) // 2], order[len(y) // 2 :]
    positive, negative = train[y[train] == 1], train[y[train] == 0]
    balanced = torch.cat([positive, negative[: len(positive)]])
    return x[balanced], y[balanced], x[test], y[test]


def train(criterion: nn.Module, x: Tensor, y: Tensor) -> nn.Module:
    """Return a small network, trained in the usual loop."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=1e-3)
    for _ in range(300):
        rows = torch.randint(len(y), (128,))
        optimizer.zero_grad()
        criterion(model(x[rows]), y[rows]).backward()
        optimizer.step()
    return model


def draw(axis: Axes, predicted: np.ndarray, y: np.ndarray, name: str) -> None:
    """Draw the observed risk in ten groups of rising prediction, with 95 % intervals."""
    edges = np.unique(np.quantile(predicted, [0, 0.5, 0.7, 0.8, 0.85, 0.9, 0.93, 0.96, 0.98, 0.99, 1]))
    group = np.clip(np.searchsorted(edges, predicted, side="right") - 1, 0, len(edges) - 2)
    said, seen, limits = [], [], []
    for k in range(len(edges) - 1):
        own = group == k
        found = binomtest(int(y[own].sum()), int(own.sum()))
        said.append(predicted[own].mean())
        seen.append(found.statistic)
        limits.append(found.proportion_ci(method="wilson"))
    errors = np.abs(np.array(limits).T - seen)
    axis.plot([0, 1], [0, 1], color="#777777", lw=1.2, ls="--")
    axis.text(0.6, 0.63, "predicted = observed", color="#777777", rotation=45, rotation_mode="anchor", fontsize=10)
    axis.errorbar(said, seen, errors, fmt="o", color=COLOURS[name], ms=6, lw=1.5, capsize=2)
    axis.set_title(TITLES[name], fontsize=12, loc="left", color=COLOURS[name])
    axis.set_xlabel(f"predicted risk (mean {predicted.mean():.1%}, observed {y.mean():.1%})", fontsize=11)
    axis.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    axis.set_aspect("equal")
    for side in (axis.xaxis, axis.yaxis):
        side.set_major_formatter("{x:.0%}")
    axis.grid(alpha=0.25)


def main(path: str) -> None:
    x, y, x_test, y_test = customers()
    prevalence = rl.Prevalence.binary(population=PREVALENCE, sampling=0.5)
    figure, axes = plt.subplots(1, 2, figsize=(9.6, 4.9), layout="constrained", sharey=True)
    axes[0].set_ylabel("observed risk in 5,000 new customers", fontsize=11)
    for axis, criterion in zip(axes, (nn.CrossEntropyLoss(), rl.InformationGainLoss(prevalence)), strict=True):
        predicted = train(criterion, x, y)(x_test).softmax(1)[:, 1].detach().numpy()
        draw(axis, predicted, y_test.numpy(), type(criterion).__name__)
    figure.savefig(path, dpi=110)
    print(path)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "risk_before_after.png")
