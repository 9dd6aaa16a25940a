"""Train one small classifier by every loss side by side, on one draw of labelled rows.

Stage: `Rows` (labelled, validation, test), `Job`s → `Kept`: for each loss and population the net that was best on validation.

A job with K classes has K − 1 outputs, its log-odds against class 0. All logits are at the minibatches' own mix ρ; + log π −
log ρ moves them to any population. A loss that does not depend on π is trained once, and has its best step chosen for every π.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .nets import LABELLED, MEMORY, STEPS, UNLABELLED, Best, Kind, Nets, balanced, descend, flipped

FAMILIES = ("weighted", "focal", "by x", "gain")
DECAYS: dict[Kind, tuple[float, ...]] = {"linear": (1e-3, 3e-2), "MLP": (3e-3,), "ConvNet": (1e-3,)}
FOCUS, MEMBERS = 2.0, 5  # γ of the focal loss; nets of an ensemble


class Rows(NamedTuple):
    """One random split, as tensors."""

    x: Tensor  # labelled rows, of which minibatches take equally many of each class
    y: Tensor
    x_natural: Tensor  # as many labelled rows, as they are met
    y_natural: Tensor
    x_valid: Tensor  # on which steps, decays and calibrations are chosen
    y_valid: Tensor
    x_test: Tensor  # on which everything is reported; figures are weighted by class
    y_test: Tensor
    unlabelled: dict[int, Tensor]  # rows at the mix of each population for which there are some, by its place
    populations: Tensor  # class frequencies `(populations, K)`; the first is the natural one
    as_met: Tensor  # class frequencies of `x_natural`: the first population, but where labelled rows come from elsewhere


class Loss(NamedTuple):
    """A loss: its family, the mix r it is taken in, and its options."""

    family: str  # "weighted" (−(r/ρ) log p_r), "focal", "by x" (weights that depend on x alone), "gain" (r = ρ, running q)
    reference: float = 0.0  # 0 for r = ρ, 1 for r = π, between them the normalised geometric mean ρ^(1−t) π^t
    kappa: float = 0.0  # evidence of the gain
    power: float = 0.0  # of the weights by x; 0 for weights by uncertainty

    @property
    def depends(self) -> bool:
        """Return whether training depends on π."""
        return self.reference > 0 or self.power > 0


LOGIT_ADJUSTED, GAIN = "logit-adjusted", "gain, r = ρ, κ = 0"
LOSSES = {
    LOGIT_ADJUSTED: Loss("weighted"),  # and cross-entropy corrected afterwards: the same path from this start
    "focal": Loss("focal"),
    GAIN: Loss("gain"),
    "gain, r = ρ, κ = 0.1": Loss("gain", kappa=0.1),
    "by uncertainty": Loss("by x"),
    "weighted": Loss("weighted", 1.0),
    "half weighted": Loss("weighted", 0.5),
    "by x, half": Loss("by x", power=0.5),
}


@dataclass(frozen=True)
class Job:
    """A net to train: a loss, the place of the population it is told (None: none), the decay, and which start it has."""

    name: str
    population: int | None
    decay: float
    member: int = 0

    @property
    def loss(self) -> Loss:
        return LOSSES[self.name]


def jobs_of(kind: Kind, populations: int, trained_at: Sequence[int], ensembles: bool) -> list[Job]:
    """Return the jobs, by family: the weighted loss at each population, others that depend on it at those of `trained_at`."""
    found = []
    for name, loss in LOSSES.items():
        places = range(populations) if name == "weighted" else trained_at
        told: Sequence[int | None] = places if loss.depends else [None]
        members = range(MEMBERS if ensembles and name == LOGIT_ADJUSTED else 1)
        found += [Job(name, place, decay, member) for place in told for decay in DECAYS[kind] for member in members]
    return sorted(found, key=lambda job: FAMILIES.index(job.loss.family))


class Stack:
    """The losses of all jobs, and the running marginals that the gain remembers."""

    def __init__(self, jobs: Sequence[Job], populations: Tensor, sampling: Tensor) -> None:
        self.jobs, self.sampling = jobs, sampling
        told = torch.stack([populations[job.population or 0] for job in jobs])
        power = torch.tensor([[job.loss.reference] for job in jobs])
        self.reference = torch.softmax((1 - power) * sampling.log() + power * told.log(), 1)  # (jobs, K)
        self.importance, self.beta = told / sampling, self.reference / sampling
        self.log_offset = self.reference.log() - sampling.log()
        ends = [sum(FAMILIES.index(job.loss.family) <= place for job in jobs) for place in range(len(FAMILIES))]
        self.columns = {name: slice(a, b) for name, a, b in zip(FAMILIES, [0, *ends], ends, strict=False)}
        gains = jobs[self.columns["gain"]]
        self.kappa = torch.tensor([[job.loss.kappa] for job in gains])
        self.power = torch.tensor([job.loss.power for job in jobs[self.columns["by x"]]])
        self.sum, self.steps = torch.zeros(len(gains), len(sampling)), 0

    def losses(self, z: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each job `(jobs,)`, up to a constant; its gradient is exact. z is `(rows, jobs, K)`."""
        table = torch.log_softmax(z + self.log_offset, 2)
        own = table.gather(2, y[:, None, None].expand(-1, len(self.jobs), 1))[:, :, 0]
        weights = [
            self.beta[self.columns["weighted"]].T[y],
            (1 - own[:, self.columns["focal"]].exp()) ** FOCUS,
            self.weights_by_x(table[:, self.columns["by x"]]),
            torch.ones(len(y), len(self.kappa)),
        ]
        found = -(torch.cat(weights, 1) * own).mean(0)
        where = self.columns["gain"]
        if not len(self.kappa):
            return found
        marginal = (self.beta[where].T[y][:, :, None] * table[:, where].exp()).mean(0)  # (gains, K)
        self.steps += 1  # q: the running mean, as `RunningMarginal` has it
        self.sum = MEMORY * self.sum + (1 - MEMORY) * marginal.detach()
        q = self.sum / (1 - MEMORY**self.steps)
        excess = torch.bincount(y, minlength=len(self.sampling)) / len(y) - self.kappa * self.reference[where]
        return torch.cat([found[: where.start], found[where] + (excess / q * marginal).sum(1)])

    @torch.no_grad()
    def weights_by_x(self, table: Tensor) -> Tensor:
        """Return weights with mean 1 that depend on x alone, so that the loss stays right at ρ; `table` is log p_ρ(k|x).

        (p_π(x)/p_ρ(x))^t = (Σ_k p_ρ(k|x) π_k/ρ_k)^t: the weight of the weighted loss, averaged over what y may be; at t = 0
        the variance of y given x.
        """
        p = table.exp()
        importance = (p * self.importance[self.columns["by x"]]).sum(2)
        weights = torch.where(self.power > 0, importance**self.power, 1 - (p * p).sum(2))
        return weights / weights.mean(0)


class Kept(NamedTuple):
    """The nets that were best on validation: stacked in the order of `names` (method, place of the population, member).

    `sampling` is ρ, at which their logits are; `decays` are those of each.
    """

    names: list[tuple[str, int, int]]
    nets: Nets
    sampling: Tensor
    decays: list[float]

    def table(self, x: Tensor, places: Sequence[int] | None = None) -> Tensor:
        """Return log p_ρ(k|x), `(rows, names or places, K)`, in float64."""
        nets = self.nets if places is None else self.nets.some(_outputs(places, len(self.sampling)))
        return torch.log_softmax(_classes(nets.predict(x), len(self.sampling)).double(), 2)


def fit(kind: Kind, rows: Rows, jobs: Sequence[Job], seed: int, natural: bool = False, steps: int = STEPS) -> Kept:
    """Train all jobs with Adam, and keep for each job and population the weights best on the validation rows at it.

    With `natural`, minibatches are of `x_natural`, as rows are met, instead of equally many rows of each class.
    """
    generator = torch.Generator().manual_seed(seed)
    size = rows.populations.shape[1]
    sampling = rows.as_met if natural else torch.full((size,), 1 / size)
    stack, start = Stack(jobs, rows.populations, sampling), sampling.log()  # ρ at ρ is π in the population
    nets = Nets(kind, rows.x.shape[1:], (start[1:] - start[0]).repeat(len(jobs)), generator)
    for member in range(1, MEMBERS):  # of an ensemble: starts of their own
        places = [place for place, job in enumerate(jobs) if job.member == member]
        other = Nets(kind, nets.shape, torch.zeros(1), torch.Generator().manual_seed(1_000 * member + seed))
        for own, new in zip(nets.weights, other.weights, strict=True):
            own.data[_outputs(places, size)] = new.data
    decay = torch.tensor([job.decay for job in jobs]).repeat_interleave(size - 1)

    def loss(step: int) -> Tensor:
        x, y = minibatch(rows, size, natural, generator)
        return stack.losses(_classes(nets(x), size), y).sum()

    judged = Judged(nets, jobs, rows, sampling)
    for step in descend(nets, decay, steps, loss):
        if judged.best.is_due(step):
            judged.look(nets)
    return judged.chosen()


def _classes(z: Tensor, size: int) -> Tensor:
    """Return logits `(rows, jobs, K)` of outputs `(rows, jobs · (K − 1))`; those of class 0 are 0."""
    return F.pad(z.unflatten(1, (-1, size - 1)), (1, 0))


def _outputs(places: Sequence[int], size: int) -> Tensor:
    return (torch.tensor(places, dtype=torch.long)[:, None] * (size - 1) + torch.arange(size - 1)).flatten()


def minibatch(rows: Rows, size: int, natural: bool, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return rows as they are met, or equally many of each class: the labelled part of `streams.minibatch`."""
    if natural:
        chosen = torch.randperm(len(rows.y_natural), generator=generator)[: 2 * LABELLED]
        return flipped(rows.x_natural[chosen], generator), rows.y_natural[chosen]
    chosen = balanced(rows.y, size, min(2 * LABELLED // size, int(torch.bincount(rows.y).min())), generator)
    torch.randint(1_000, (UNLABELLED,), generator=generator)  # the draw of unlabelled rows there
    return flipped(rows.x[chosen], generator), rows.y[chosen]


def expected(log_p: Tensor, y: Tensor, population: Tensor) -> Tensor:
    """Return Σ_k π_k × mean log p over rows of class k. Shapes `(rows, n, K)`, `(n, K)` → `(n,)`."""
    present = range(population.shape[1])
    return sum(population[:, k] * log_p[y == k][:, :, k].mean(0) for k in present)  # type: ignore[return-value]


class Judged:
    """The best weights so far, for each job and each population that it is judged at."""

    def __init__(self, nets: Nets, jobs: Sequence[Job], rows: Rows, sampling: Tensor) -> None:
        self.jobs, self.rows, self.sampling = jobs, rows, sampling
        every = range(len(rows.populations))
        told = [every if job.population is None else [job.population] for job in jobs]
        pairs = [(place, at) for place, each in enumerate(told) for at in each]
        self.job, self.at = (torch.tensor(each) for each in zip(*pairs, strict=True))
        self.best = Best(nets, _outputs(self.job.tolist(), len(sampling)), len(pairs))

    @torch.no_grad()
    def look(self, nets: Nets) -> None:
        population = self.rows.populations[self.at]
        z = _classes(nets.predict(self.rows.x_valid), len(self.sampling))[:, self.job]
        log_p = torch.log_softmax(z + population.log() - self.sampling.log(), 2)
        self.best.look(nets, expected(log_p, self.rows.y_valid, population))

    def chosen(self) -> Kept:
        """Return, for each method, population and member, the job whose decay was best."""
        best: dict[tuple[str, int, int], int] = {}
        for place, (job, at) in enumerate(zip(self.job.tolist(), self.at.tolist(), strict=True)):
            key = self.jobs[job].name, at, self.jobs[job].member
            if key not in best or self.best.score[place] > self.best.score[best[key]]:
                best[key] = place
        places = list(best.values())
        nets = self.best.nets.some(_outputs(places, len(self.sampling)))
        decays = [self.jobs[int(self.job[place])].decay for place in places]
        return Kept(list(best), nets, self.sampling, decays)
