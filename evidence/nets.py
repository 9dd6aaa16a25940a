"""Small classifiers of one kind, stacked: jobs that share their start, minibatches and budget, and differ in the loss alone.

Stage: kind, shape of a row, biases of the jobs → `Nets`: rows → one output per job; `descend` trains them by any loss, and
`Best` keeps the weights that were best on the validation rows.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rightloss.solve import intercepts_for_mean

Kind = Literal["linear", "MLP", "ConvNet"]
HIDDEN, STEPS = 64, 300
RATES = {"linear": 0.05, "MLP": 0.005, "ConvNet": 0.003}  # of Adam, at most: see `learning_rate`
LOOK, EARLY = 10, (2, 4, 6, 8, 12, 15, 18, 24, 27)  # steps between looks at the validation rows, after a few early ones
LABELLED, UNLABELLED = 64, 256  # rows of a minibatch: of each class, and unlabelled
MEMORY = 0.9  # decay of running means over minibatches


class Nets:
    """`jobs` copies of one net: a parameter is `(jobs, …)`, outputs are `(rows, jobs)`."""

    def __init__(self, kind: Kind, shape: torch.Size, bias: Tensor, generator: torch.Generator) -> None:
        self.kind, self.jobs, self.shape = kind, len(bias), shape
        layers: dict[Kind, list[tuple[int, ...]]] = {
            "linear": [],
            "MLP": [(HIDDEN, shape[0])],
            "ConvNet": [(8, shape[0], 5, 5), (16, 8, 3, 3), (32, 16, 3, 3)],
        }
        last = {"linear": shape[0], "MLP": HIDDEN, "ConvNet": 32 * 4}[kind]
        weights = [_start(size, generator) for size in layers[kind]]
        weights.append(torch.zeros(last) if kind == "linear" else _start((1, last), generator)[0] / 2)
        biases = [torch.zeros(size[0]) for size in layers[kind]]
        self.weights = [weight.expand(self.jobs, *weight.shape).clone().requires_grad_() for weight in weights]
        self.biases = [each.expand(self.jobs, *each.shape).clone().requires_grad_() for each in biases]
        self.biases.append(bias.clone().requires_grad_())

    @property
    def parameters(self) -> list[Tensor]:
        return [*self.weights, *self.biases]

    def __call__(self, x: Tensor) -> Tensor:
        hidden = x
        if self.kind == "MLP":
            hidden = F.linear(x, self.weights[0].flatten(0, 1), self.biases[0].flatten()).relu()
        if self.kind == "ConvNet":
            for layer, stride in enumerate((4, 2, 2)):
                weight, bias = self.weights[layer].flatten(0, 1), self.biases[layer].flatten()
                groups = self.jobs if layer else 1
                hidden = F.conv2d(hidden, weight, bias, stride, padding=weight.shape[-1] // 2, groups=groups).relu()
            hidden = hidden.flatten(1)
        if self.kind == "linear":
            return hidden @ self.weights[0].T + self.biases[-1]
        stacked = hidden.unflatten(1, (self.jobs, -1)).transpose(0, 1)
        return torch.baddbmm(self.biases[-1][:, None, None], stacked, self.weights[-1][:, :, None])[:, :, 0].T

    def penalty(self, decay: Tensor) -> Tensor:
        """Return Σ decay ‖weights‖² over the jobs, biases apart."""
        return sum((decay * weight.square().flatten(1).sum(1)).sum() for weight in self.weights)  # type: ignore[return-value]

    @torch.no_grad()
    def predict(self, x: Tensor, block: int = 256) -> Tensor:
        return torch.cat([self(part) for part in x.split(block)])

    def some(self, where: Tensor | list[int]) -> Nets:
        """Return the nets of some jobs, for predictions."""
        found = copy.copy(self)
        found.weights, found.biases = ([each.detach()[where] for each in kept] for kept in (self.weights, self.biases))
        found.jobs = len(found.biases[-1])
        return found


def _start(size: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(size, generator=generator) * math.sqrt(2 / math.prod(size[1:]))


def descend(nets: Nets, decay: Tensor, steps: int, loss: Callable[[int], Tensor]) -> Iterator[int]:
    """Train by Adam with the schedule that all jobs share, and yield the number of each step after it."""
    optimizer = torch.optim.Adam(nets.parameters, RATES[nets.kind], (0.9, 0.99))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate((step + 1) / steps))
    for step in range(1, steps + 1):
        total = loss(step) + nets.penalty(decay)
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        schedule.step()
        yield step


def learning_rate(progress: float) -> float:
    """Return the step size's factor: rising from 0 over the first third of the budget, then falling as a half cosine."""
    return 3 * progress if progress < 1 / 3 else 0.5 + 0.5 * math.cos(1.5 * math.pi * (progress - 1 / 3))


class Best:
    """The weights of the best score so far, for each of `count` candidates, in the outputs of the stack that are its own."""

    def __init__(self, nets: Nets, outputs: Tensor, count: int) -> None:
        self.nets, self.outputs, self.each = nets.some(outputs), outputs, len(outputs) // count
        self.score = torch.full((count,), -math.inf)

    def is_due(self, step: int) -> bool:
        return step % LOOK == 0 or step in EARLY

    def look(self, nets: Nets, score: Tensor) -> Tensor:
        """Keep the weights of the candidates whose score is higher than before, and return which they are."""
        better = score > self.score
        self.score = torch.where(better, score, self.score)
        wide = better.repeat_interleave(self.each)
        for kept, now in zip(self.nets.parameters, nets.parameters, strict=True):
            kept[wide] = now.detach()[self.outputs[wide]]
        return better


def balanced(y: Tensor, classes: int, each: int, generator: torch.Generator) -> Tensor:
    """Return the places of a minibatch with `each` rows of each class."""
    places = [torch.nonzero(y == k)[:, 0] for k in range(classes)]
    return torch.cat([own[torch.randperm(len(own), generator=generator)[:each]] for own in places])


def flipped(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return images flipped at random, and other rows as they are."""
    return x.flip([dim for dim in (2, 3) if torch.rand((), generator=generator) < 0.5]) if x.ndim == 4 else x


def matched(z: Tensor, population: float) -> Tensor:
    """Return the shift per column after which the mean prediction over the rows is π."""
    mean, weights = np.array([1 - population, population]), np.ones(len(z))
    shifts = [intercepts_for_mean(np.stack([0 * own, own], 1), mean, weights) for own in z.double().numpy().T]
    return torch.tensor([high - low for low, high in shifts]).float()


def log_table(z: Tensor) -> Tensor:
    """Return log-probabilities of both classes, `(rows, 2)` in float64, of log-odds of class 1."""
    z = z.double()
    return torch.stack([F.logsigmoid(-z), F.logsigmoid(z)], 1)


def auc(odds: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the area under the ROC curve of the last class against the others, of each column; ties counted half."""
    from scipy.stats import rankdata

    positive = y == y.max()
    count = int(positive.sum())
    total = rankdata(odds, axis=0)[positive].sum(0) - count * (count + 1) / 2
    return np.asarray(total / (count * (len(y) - count)))
