"""Train on a labelled draw and its unlabelled rows by our likelihood and by every rival, side by side.

Stage: `Draw` (labelled by class, validation, unlabelled, test) → `Fitted`: a figure per `Job` (method, setting, decay).

Outputs `(rows, jobs)` are log-odds of class 1. Our losses are written out here for a stack of jobs; tests/test_evidence.py
holds them against the library's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rightloss.losses.streams import evidence_decay

from .nets import LABELLED, LOOK, MEMORY, STEPS, UNLABELLED, Best, Kind, Nets, auc, balanced, descend, flipped, matched

DECAYS = {"linear": (1e-3, 3e-2), "MLP": (1e-3, 1e-2), "ConvNet": (1e-3,)}
BLIND = ("guess", "unknown")  # methods that are not told π
TESTED, FEWEST = 0.4, 30


class Draw(NamedTuple):
    """One random split: tensors of rows, labels 0/1 and the population's share of class 1; labelled rows come half and half."""

    x: Tensor
    y: Tensor
    x_valid: Tensor
    y_valid: Tensor
    unlabelled: Tensor
    x_test: Tensor
    y_test: Tensor
    population: float

    @property
    def ratio(self) -> float:
        """Return N_u/n, unlabelled rows per labelled one."""
        return len(self.unlabelled) / len(self.y)


# --- splits ---


def parts_of(groups: np.ndarray | None, rows: int, random: np.random.Generator) -> list[np.ndarray]:
    """Return test rows and two parts for labelled and validation rows, in random order; no group is in two of them."""
    groups = np.arange(rows) if groups is None else np.unique(groups, return_inverse=True)[1]
    order = random.permutation(groups.max() + 1)[groups]  # a random place for each group
    cut = np.quantile(order, [TESTED, TESTED + (1 - TESTED) * 2 / 3])
    parts = (order < cut[0], (order >= cut[0]) & (order < cut[1]), order >= cut[1])
    return [random.permutation(np.flatnonzero(part)) for part in parts]


def of_each(y: np.ndarray, rows: np.ndarray, size: int) -> np.ndarray:
    """Return the first `size` of the rows of each class, class 0 first."""
    return np.concatenate([rows[y[rows] == k][:size] for k in range(int(y.max()) + 1)])


def at_share(y: np.ndarray, rows: np.ndarray, share: float, most: int) -> np.ndarray:
    """Return as many of the rows as there are, at most `most`, in which class 1 has the share."""
    positive, negative = rows[y[rows] == 1], rows[y[rows] == 0]
    total = min(most, len(positive) / share, len(negative) / (1 - share))
    return np.concatenate([positive[: round(total * share)], negative[: round(total * (1 - share))]])


def standardised(x: np.ndarray, rows: np.ndarray) -> Callable[[np.ndarray], Tensor]:
    """Return a function from rows to float32, standardised by the given ones, at most 5 from the mean, 0 where missing."""
    if x.ndim == 4:
        mean, scale = x[rows].mean(), x[rows].std()
    else:
        mean, scale = np.nanmean(x[rows], 0), np.nanstd(x[rows], 0)
        scale = np.where(scale > 0, scale, 1.0)
    return lambda own: torch.from_numpy(np.nan_to_num((x[own] - mean) / scale, nan=0.0).clip(-5, 5).astype(np.float32))


# --- losses, each for a stack of jobs ---


@dataclass(frozen=True)
class Job:
    """A net to train: a method, its setting (a weight, γ, κ or a guess of π) and the weight decay."""

    method: str
    setting: str
    value: float  # of the setting
    population: float  # π it is told
    decay: float = 0.0


def with_decays(jobs: Sequence[Job], decays: Sequence[float]) -> list[Job]:
    return [replace(job, decay=decay) for job in jobs for decay in decays]


def stream_loss(z: Tensor, y: Tensor, z_unlabelled: Tensor, population: Tensor, weight: Tensor) -> Tensor:
    """Return the stream likelihood's loss per labelled example, of each job; logit adjustment where the weight is 0.

    t(k|x) ∝ ρ_k p(k|x)/π_k for the classes, here with ρ = 1/2, and t(u|x) ∝ λ:
    mean −log t(y|x) + λ · mean −log t(u|x_u).
    """
    log_weight = weight.log()
    mixed, own = _stream_parts(z, population, log_weight)
    mixed_unlabelled, _ = _stream_parts(z_unlabelled, population, log_weight)
    labelled = (mixed - torch.where(y[:, None] == 1, own[1], own[0])).mean(0)
    return labelled + torch.where(weight > 0, weight * (mixed_unlabelled - log_weight.clamp(min=-50)).mean(0), 0.0)


def _stream_parts(z: Tensor, population: Tensor, log_weight: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return log Σ over streams, and the two classes' terms of it."""
    zero = F.logsigmoid(-z) - (2 * (1 - population)).log()
    one = F.logsigmoid(z) - (2 * population).log()
    return torch.logaddexp(torch.logaddexp(zero, one), log_weight), (zero, one)


def paper_loss(z: Tensor, y: Tensor, z_unlabelled: Tensor, population: Tensor, kappa: Tensor, q: Tensor) -> Tensor:
    """Return the gain's loss at r = π: the unlabelled rows are the marginal; its value is the running `q` `(2, jobs)`."""
    m = z_unlabelled.sigmoid().mean(0)
    rates = torch.stack([0.5 - kappa * (1 - population), 0.5 - kappa * population])
    return -row_likelihood(z, y).mean(0) + (rates * torch.stack([1 - m, m]) / q).sum(0)


def evidence_loss(z: Tensor, y: Tensor, z_unlabelled: Tensor, population: Tensor, people: Tensor, q: Tensor) -> Tensor:
    """Return the stream likelihood's loss at the minibatch's own weight, with evidence of π; q as in `paper_loss`."""
    weight = torch.full_like(people, len(z_unlabelled) / len(y))
    m = z_unlabelled.sigmoid().mean(0)
    evidence = (torch.stack([1 - population, population]) * torch.stack([1 - m, m]) / q).sum(0)
    return stream_loss(z, y, z_unlabelled, population, weight) - people * weight * evidence


def pnu_loss(z: Tensor, y: Tensor, z_unlabelled: Tensor, population: Tensor, gamma: Tensor) -> Tensor:
    """Return the PNU risk (Sakai et al. 2017) with the logistic loss and non-negative corrections (Kiryo et al. 2017).

    (1 − |γ|) R_PN + |γ| R_PU for γ > 0 and R_NU for γ < 0; what stands for the class that the risk does not see,
    E_u ℓ − π E_p ℓ (or its mirror), is not allowed below 0.
    """
    positive, negative = z[y == 1], z[y == 0]
    other = 1 - population
    pn = population * F.softplus(-positive).mean(0) + other * F.softplus(negative).mean(0)
    unseen_negative = F.softplus(z_unlabelled).mean(0) - population * F.softplus(positive).mean(0)
    unseen_positive = F.softplus(-z_unlabelled).mean(0) - other * F.softplus(-negative).mean(0)
    pu = population * F.softplus(-positive).mean(0) + unseen_negative.clamp(min=0)
    nu = other * F.softplus(negative).mean(0) + unseen_positive.clamp(min=0)
    return (1 - gamma.abs()) * pn + gamma.clamp(min=0) * pu + (-gamma).clamp(min=0) * nu


def taught_loss(z: Tensor, y: Tensor, z_unlabelled: Tensor, population: Tensor, weight: Tensor, taught: Tensor) -> Tensor:
    """Return logit adjustment on the labelled plus weight × cross-entropy of the unlabelled to the labels `taught`."""
    given = F.binary_cross_entropy_with_logits(z_unlabelled, taught, reduction="none").mean(0)
    return stream_loss(z, y, z_unlabelled, population, torch.zeros_like(weight)) + weight * given


def row_likelihood(z: Tensor, y: Tensor) -> Tensor:
    """Return log p(y|x) of each row and job."""
    return F.logsigmoid(torch.where(y[:, None] == 1, z, -z))


class Families:
    """Which columns belong to which loss, and what the losses remember from step to step."""

    def __init__(self, jobs: list[Job], draw: Draw) -> None:
        names = [job.method for job in jobs]
        self.columns = {name: [place for place, each in enumerate(names) if each == name] for name in dict.fromkeys(names)}
        self.value = torch.tensor([job.value for job in jobs])
        self.population = torch.tensor([job.population for job in jobs])
        self.blind = torch.tensor([name in BLIND for name in names])
        self.q = torch.stack([1 - self.population, self.population])
        own = evidence_decay(UNLABELLED, torch.tensor([draw.population, 1 - draw.population]))
        self.memory = torch.tensor([own if name == "evidence" else MEMORY for name in names])
        self.taught = torch.zeros(len(draw.unlabelled), names.count("EM"))

    def losses(self, z: Tensor, y: Tensor, z_unlabelled: Tensor, rows: Tensor, progress: float) -> Tensor:
        """Return the sum of all jobs' losses."""
        total = z.new_zeros(())
        ramp = min(max((progress - 0.2) / 0.3, 0.0), 1.0)  # of taught labels
        for name, where in self.columns.items():
            parts = (z[:, where], y, z_unlabelled[:, where], self.population[where])
            value = self.value[where]
            if name in ("stream", *BLIND):
                found = stream_loss(*parts, value)
            elif name == "cross-entropy":
                target = y[:, None].float().expand_as(parts[0])
                found = F.binary_cross_entropy_with_logits(parts[0], target, reduction="none").mean(0)
            elif name in ("paper", "evidence"):
                found = (paper_loss if name == "paper" else evidence_loss)(*parts, value, self.q[:, where])
            elif name == "PNU":
                found = pnu_loss(*parts, value)
            else:
                taught = self.taught[rows] if name == "EM" else (parts[2] > 0).float()
                found = taught_loss(*parts, value * ramp, taught)
            total = total + found.sum()
        return total

    @torch.no_grad()
    def remember(self, z_unlabelled: Tensor) -> None:
        """Update the running means: q of the paper's form, and π of the jobs that learn it, as the library does."""
        mean = z_unlabelled.sigmoid().mean(0).clamp(1e-5, 1 - 1e-5)
        self.q = self.memory * self.q + (1 - self.memory) * torch.stack([1 - mean, mean])
        if "unknown" in self.columns:
            where = self.columns["unknown"]
            self.population[where] = MEMORY * self.population[where] + (1 - MEMORY) * mean[where]

    def teach(self, nets: Nets, draw: Draw) -> None:
        """Refresh EM's soft labels: predictions on all unlabelled rows, moved until their mean is π."""
        z = nets.some(self.columns["EM"]).predict(draw.unlabelled)
        self.taught = (z + matched(z, draw.population)).sigmoid()

    def score(self, z: Tensor, draw: Draw) -> Tensor:
        """Return the validation log-likelihood of each job, weighted by class to π.

        Jobs that do not know π are judged at the labelled mix, half and half, to which their logits are moved: a criterion at
        a π that itself is learnt would prefer a small one.
        """
        log_p = row_likelihood(torch.where(self.blind, z - self.population.logit(), z), draw.y_valid)
        share = torch.where(self.blind, 0.5, draw.population)
        return share * log_p[draw.y_valid == 1].mean(0) + (1 - share) * log_p[draw.y_valid == 0].mean(0)


# --- training ---


class Fitted(NamedTuple):
    """Figures per job, of the weights that were best on the validation rows."""

    score: Tensor  # what was maximised over the steps
    likelihood: Tensor  # on the test rows, which come at the population's mix
    auc: np.ndarray  # on the same rows
    matched: Tensor  # the likelihood after the intercept is matched to π on the unlabelled rows
    learnt: Tensor  # π that the job holds at the end: what it was told, or what it learnt
    z_valid: Tensor  # log-odds `(rows, jobs)`, as the next two
    z_unlabelled: Tensor
    z_test: Tensor


def fit(kind: Kind, draw: Draw, jobs: list[Job], seed: int, steps: int = STEPS) -> Fitted:
    """Train all jobs with Adam; keep, job by job, the weights best on the validation rows."""
    generator = torch.Generator().manual_seed(seed)
    told = torch.tensor([job.population for job in jobs])
    sampled = torch.tensor([job.method == "cross-entropy" for job in jobs])  # these nets give log-odds at half and half
    nets = Nets(kind, draw.x.shape[1:], torch.where(sampled, 0.0, told.logit()), generator)
    families, decay = Families(jobs, draw), torch.tensor([job.decay for job in jobs])
    best, learnt = Best(nets, torch.arange(len(jobs)), len(jobs)), families.population.clone()
    seen: list[Tensor] = []

    def loss(step: int) -> Tensor:
        if "EM" in families.columns and step > 0.2 * steps and (step - 1) % (3 * LOOK) == 0:
            families.teach(nets, draw)
        x, y, rows = minibatch(draw, generator)
        z, z_unlabelled = nets(x).split([len(y), len(rows)])
        seen[:] = [z_unlabelled.detach()]
        return families.losses(z, y, z_unlabelled, rows, step / steps)

    for step in descend(nets, decay, steps, loss):
        families.remember(*seen)
        if best.is_due(step):
            offset = torch.where(sampled, families.population.logit(), 0.0)  # the closed form: from half and half to π
            better = best.look(nets, families.score(nets.predict(draw.x_valid) + offset, draw))
            learnt[better] = families.population[better]
    offset = torch.where(sampled, learnt.logit(), 0.0)
    z_valid, others, z_test = (best.nets.predict(x) + offset for x in (draw.x_valid, draw.unlabelled, draw.x_test))
    shifted, y_test = z_test + matched(others, draw.population), draw.y_test
    plain, moved = (row_likelihood(each, y_test).mean(0) for each in (z_test, shifted))
    return Fitted(best.score, plain, auc(z_test.numpy(), y_test.numpy()), moved, learnt, z_valid, others, z_test)


def minibatch(draw: Draw, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return labelled rows, equally many of each class, above unlabelled ones; the labels; the unlabelled rows' places."""
    labelled = balanced(draw.y, 2, labelled_of_each(draw), generator)
    rows = torch.randint(len(draw.unlabelled), (UNLABELLED,), generator=generator)
    x = torch.cat([draw.x[labelled], draw.unlabelled[rows]])
    return flipped(x, generator), draw.y[labelled], rows


def labelled_of_each(draw: Draw) -> int:
    """Return how many labelled rows of each class a minibatch has."""
    return min(LABELLED, len(draw.y) // 2)
