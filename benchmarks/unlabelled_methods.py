"""Train many small classifiers side by side on one labelled draw and its unlabelled rows: ours, and every rival.

Stage: `Draw` (labelled by class, validation, unlabelled, test) → `Fitted`: a row of figures per `Job` (method, setting, decay).

Jobs of a draw share their start, their minibatches and their budget; only the loss differs. Their weights are stacked along a
first dimension, so that all of them cost one matrix product. Logits `(rows, jobs)` are log-odds of class 1. Our losses are
written out here for a stack of jobs; `unlabelled.check_losses`, which every run begins with, holds them against the library's.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rightloss.losses.streams import evidence_decay

Kind = Literal["linear", "MLP", "ConvNet"]
HIDDEN = 64
STEPS = {"linear": 300, "MLP": 300, "ConvNet": 300}
RATES = {"linear": 0.05, "MLP": 0.005, "ConvNet": 0.003}  # of Adam, at most: see `learning_rate`
DECAYS = {"linear": (1e-3, 3e-2), "MLP": (1e-3, 1e-2), "ConvNet": (1e-3,)}
LOOK = 10  # steps between looks at the validation rows, after a few early ones
EARLY = (2, 4, 6, 8, 12, 15, 18, 24, 27)
LABELLED, UNLABELLED = 64, 256  # rows of a minibatch: of each class, and unlabelled
MEMORY = 0.9  # decay of running means over minibatches
WEIGHTS = (0.3, 1.0, 3.0, 10.0)  # fixed masses of the unlabelled against the labelled
GAMMAS = (-0.5, 0.0, 0.5, 0.9)  # of PNU
FACTORS = (0.5, 2.0)  # by which a guess of the odds of π is wrong
EVIDENCE = (1.0, 3.0)  # people counted by class per unlabelled row
PSEUDO = (0.3, 1.0)  # weights of pseudo-labels and of EM's soft labels


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


@dataclass(frozen=True)
class Job:
    """A net to train: a method, its setting (a weight, γ, κ or a guess of π) and the weight decay."""

    method: str
    setting: str
    decay: float
    value: float  # of the setting
    population: float  # π it is told


def jobs_of(draw: Draw, kind: Kind) -> list[Job]:
    """Return the jobs that are told π."""
    pi = draw.population
    plain = [("stream", name, value) for name, value in stream_weights(draw.ratio).items()]
    plain += [("cross-entropy", "", 0.0)]
    plain += [("paper", f"κ={kappa:g}", kappa) for kappa in (0.0, 1.0)]
    plain += [("PNU", f"{gamma:g}", gamma) for gamma in GAMMAS]
    plain += [(method, f"{weight:g}", weight) for method in ("pseudo-labels", "EM") for weight in PSEUDO]
    return [Job(method, name, decay, value, pi) for method, name, value in plain for decay in DECAYS[kind]]


def evidence_jobs_of(draw: Draw, kind: Kind) -> list[Job]:
    """Return logit adjustment, the streams at the weight that the loss takes by itself, and the same with evidence of π."""
    batch = UNLABELLED / (2 * labelled_of_each(draw))
    plain = [("stream", "0", 0.0), ("stream", "batch", batch)]
    plain += [("evidence", f"{people:g}", people) for people in EVIDENCE]
    return [Job(method, name, decay, value, draw.population) for method, name, value in plain for decay in DECAYS[kind]]


def unknown_jobs_of(draw: Draw, kind: Kind) -> list[Job]:
    """Return the jobs that are not told π: logit adjustment, judged at the labelled mix, and ours, which start at a guess."""
    pi, masses = draw.population, {"1": 1.0, "rows": draw.ratio}
    plain = [("guess", "", 0.0, pi)]
    plain += [("unknown", f"{factor:g} {name}", mass, guess(pi, factor)) for factor in FACTORS for name, mass in masses.items()]
    return [Job(method, name, decay, value, told) for method, name, value, told in plain for decay in DECAYS[kind]]


def stream_weights(ratio: float) -> dict[str, float]:
    """Return the masses λ of the unlabelled that are tried, by name; ratio = N_u/n."""
    return {"0": 0.0, **{f"{weight:g}": weight for weight in WEIGHTS}, "root": math.sqrt(ratio), "rows": ratio}


def guess(population: float, factor: float) -> float:
    """Return the share whose odds are those of π times the factor."""
    odds = factor * population / (1 - population)
    return odds / (1 + odds)


# --- nets, stacked over jobs -------------------------------------------------------------------------------------------------


class Nets:
    """`jobs` copies of one net: a parameter is `(jobs, …)`, logits are `(rows, jobs)`."""

    def __init__(self, kind: Kind, shape: torch.Size, bias: Tensor, generator: torch.Generator) -> None:
        self.kind, self.jobs = kind, len(bias)
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

    def some(self, where: slice | Tensor) -> Nets:
        """Return the nets of some jobs, for predictions."""
        found = copy.copy(self)
        found.weights, found.biases = ([each.detach()[where] for each in kept] for kept in (self.weights, self.biases))
        found.jobs = len(found.biases[-1])
        return found


def _start(size: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(size, generator=generator) * math.sqrt(2 / math.prod(size[1:]))


# --- losses, each for a stack of jobs ----------------------------------------------------------------------------------------


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
    log_p = torch.where(y[:, None] == 1, F.logsigmoid(z), F.logsigmoid(-z)).mean(0)
    m = z_unlabelled.sigmoid().mean(0)
    rates = torch.stack([0.5 - kappa * (1 - population), 0.5 - kappa * population])
    return -log_p + (rates * torch.stack([1 - m, m]) / q).sum(0)


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


def evidence_loss(z: Tensor, y: Tensor, z_unlabelled: Tensor, population: Tensor, people: Tensor, q: Tensor) -> Tensor:
    """Return the stream likelihood's loss at the minibatch's own weight, with evidence of π; q as in `paper_loss`."""
    weight = torch.full_like(people, len(z_unlabelled) / len(y))
    m = z_unlabelled.sigmoid().mean(0)
    evidence = (torch.stack([1 - population, population]) * torch.stack([1 - m, m]) / q).sum(0)
    return stream_loss(z, y, z_unlabelled, population, weight) - people * weight * evidence


def taught_loss(z: Tensor, y: Tensor, z_unlabelled: Tensor, population: Tensor, weight: Tensor, taught: Tensor) -> Tensor:
    """Return logit adjustment on the labelled plus weight × cross-entropy of the unlabelled to the labels `taught`."""
    nothing = torch.zeros_like(weight)
    given = F.binary_cross_entropy_with_logits(z_unlabelled, taught, reduction="none").mean(0)
    return stream_loss(z, y, z_unlabelled, population, nothing) + weight * given


def matched(z: Tensor, population: Tensor | float) -> Tensor:
    """Return the shift per column after which the mean prediction over the rows is π, by bisection in float64."""
    z = z.double()
    low, high = torch.full_like(z[0], -40.0), torch.full_like(z[0], 40.0)
    for _ in range(50):
        middle = (low + high) / 2
        below = (z + middle).sigmoid().mean(0) < population
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return ((low + high) / 2).float()


# --- training ----------------------------------------------------------------------------------------------------------------


class Fitted(NamedTuple):
    """Figures per job: of the weights that were best on the validation rows.

    Attributes:
        valid: log-likelihood of each validation row at π `(jobs, rows)`.
        score: what was maximised over the steps `(jobs,)`.
        likelihood, auc: on the test rows, which come at the population's mix.
        matched: the likelihood after the intercept is matched to π on the unlabelled rows.
        mean: mean prediction on the test rows.
        learnt: π that the job holds at the end: what it was told, or what it learnt.
        step: the step that was kept.
        z_unlabelled, z_test: logits of the jobs that are asked for.
    """

    valid: Tensor
    score: Tensor
    likelihood: Tensor
    auc: Tensor
    matched: Tensor
    mean: Tensor
    learnt: Tensor
    step: Tensor
    z_unlabelled: Tensor
    z_valid: Tensor
    z_test: Tensor


class Families:
    """Which columns belong to which loss, and what the losses remember from step to step."""

    def __init__(self, jobs: list[Job], draw: Draw) -> None:
        self.columns = {name: _columns(jobs, name) for name in dict.fromkeys(job.method for job in jobs)}
        self.value = torch.tensor([job.value for job in jobs])
        self.population = torch.tensor([job.population for job in jobs])
        self.q = torch.stack([1 - self.population, self.population])
        own = evidence_decay(UNLABELLED, torch.tensor([draw.population, 1 - draw.population]))
        self.memory = torch.tensor([own if job.method == "evidence" else MEMORY for job in jobs])
        em = self.columns.get("EM", slice(0))
        self.taught = torch.zeros(len(draw.unlabelled), em.stop - (em.start or 0))

    def losses(self, z: Tensor, y: Tensor, z_unlabelled: Tensor, rows: Tensor, progress: float) -> Tensor:
        """Return the sum of all jobs' losses."""
        total = z.new_zeros(())
        for name, where in self.columns.items():
            parts = (z[:, where], y, z_unlabelled[:, where], self.population[where])
            value = self.value[where]
            if name in ("stream", "guess", "unknown"):
                found = stream_loss(*parts, value)
            elif name == "cross-entropy":
                found = F.binary_cross_entropy_with_logits(
                    parts[0], y[:, None].float().expand_as(parts[0]), reduction="none"
                ).mean(0)
            elif name == "paper":
                found = paper_loss(*parts, value, self.q[:, where])
            elif name == "evidence":
                found = evidence_loss(*parts, value, self.q[:, where])
            elif name == "PNU":
                found = pnu_loss(*parts, value)
            else:
                taught = self.taught[rows] if name == "EM" else (z_unlabelled[:, where] > 0).float()
                found = taught_loss(*parts, value * _ramp(progress), taught)
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


def _columns(jobs: list[Job], name: str) -> slice:
    places = [place for place, job in enumerate(jobs) if job.method == name]
    assert places == list(range(places[0], places[-1] + 1))
    return slice(places[0], places[-1] + 1)


def _ramp(progress: float) -> float:
    """Return the weight of taught labels: 0 in the first fifth of the budget, then rising to 1 at half of it."""
    return min(max((progress - 0.2) / 0.3, 0.0), 1.0)


def learning_rate(progress: float) -> float:
    """Return the step size's factor: rising from 0 over the first third of the budget, then falling as a half cosine."""
    return 3 * progress if progress < 1 / 3 else 0.5 + 0.5 * math.cos(1.5 * math.pi * (progress - 1 / 3))


def fit(kind: Kind, draw: Draw, jobs: list[Job], seed: int, steps: int | None = None) -> Fitted:
    """Train all jobs with Adam; keep, job by job, the weights best on the validation rows."""
    generator = torch.Generator().manual_seed(seed)
    steps = steps or STEPS[kind]
    told = torch.tensor([job.population for job in jobs])
    sampled = torch.tensor([job.method == "cross-entropy" for job in jobs])  # these nets give log-odds at half and half
    nets = Nets(kind, draw.x.shape[1:], torch.where(sampled, 0.0, told.logit()), generator)
    families, decay = Families(jobs, draw), torch.tensor([job.decay for job in jobs])
    optimizer = torch.optim.Adam(nets.parameters, RATES[kind], (0.9, 0.99))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate((step + 1) / steps))
    keep = Keep(nets, families.population)
    for step in range(1, steps + 1):
        if "EM" in families.columns and step > 0.2 * steps and (step - 1) % (3 * LOOK) == 0:
            families.teach(nets, draw)
        x, y, rows = minibatch(draw, generator)
        z, z_unlabelled = nets(x).split([len(y), len(rows)])
        loss = families.losses(z, y, z_unlabelled, rows, step / steps) + nets.penalty(decay)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        families.remember(z_unlabelled)
        if step % LOOK == 0 or step in EARLY:
            offset = torch.where(sampled, families.population.logit(), 0.0)  # the closed form: from half and half to π
            keep.look(step, criterion(nets.predict(draw.x_valid) + offset, draw, families), families.population)
    return keep.figures(draw, sampled)


def minibatch(draw: Draw, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return labelled rows, equally many of each class, above unlabelled ones; the labels; the unlabelled rows' places."""
    chosen = [_some(torch.nonzero(draw.y == k)[:, 0], labelled_of_each(draw), generator) for k in (0, 1)]
    rows = torch.randint(len(draw.unlabelled), (UNLABELLED,), generator=generator)
    labelled = torch.cat(chosen)
    x = torch.cat([draw.x[labelled], draw.unlabelled[rows]])
    if x.ndim == 4:
        x = x.flip([dim for dim in (2, 3) if torch.rand((), generator=generator) < 0.5])
    return x, draw.y[labelled], rows


def labelled_of_each(draw: Draw) -> int:
    """Return how many labelled rows of each class a minibatch has."""
    return min(LABELLED, len(draw.y) // 2)


def _some(places: Tensor, size: int, generator: torch.Generator) -> Tensor:
    return places[torch.randperm(len(places), generator=generator)[:size]]


def row_likelihood(z: Tensor, y: Tensor) -> Tensor:
    """Return log p(y|x) of each row and job."""
    return F.logsigmoid(torch.where(y[:, None] == 1, z, -z))


def criterion(z: Tensor, draw: Draw, families: Families) -> Tensor:
    """Return the validation log-likelihood of each job, weighted by class to π.

    Jobs that do not know π are judged at the labelled mix, half and half, to which their logits are moved: a criterion at
    a π that itself is learnt would prefer a small one.
    """
    y, score = draw.y_valid, z.new_zeros(z.shape[1])
    blind = torch.zeros(z.shape[1], dtype=torch.bool)
    for name in ("guess", "unknown"):
        if name in families.columns:
            blind[families.columns[name]] = True
    log_p = row_likelihood(torch.where(blind, z - families.population.logit(), z), y)
    share = torch.where(blind, 0.5, draw.population)
    score = share * log_p[y == 1].mean(0) + (1 - share) * log_p[y == 0].mean(0)
    return score


class Keep:
    """The best weights of each job so far."""

    def __init__(self, nets: Nets, population: Tensor) -> None:
        self.nets = nets
        self.best = [each.detach().clone() for each in nets.parameters]
        self.score = torch.full((nets.jobs,), -math.inf)
        self.step = torch.zeros(nets.jobs, dtype=torch.long)
        self.learnt = population.clone()

    @torch.no_grad()
    def look(self, step: int, score: Tensor, population: Tensor) -> None:
        better = score > self.score
        self.score, self.step[better], self.learnt[better] = torch.where(better, score, self.score), step, population[better]
        for kept, now in zip(self.best, self.nets.parameters, strict=True):
            kept[better] = now[better]

    def figures(self, draw: Draw, sampled: Tensor) -> Fitted:
        offset = torch.where(sampled, self.learnt.logit(), 0.0)
        for now, kept in zip(self.nets.parameters, self.best, strict=True):
            now.data.copy_(kept)
        z_valid, z_unlabelled, z_test = (self.nets.predict(x) + offset for x in (draw.x_valid, draw.unlabelled, draw.x_test))
        shifted = z_test + matched(z_unlabelled, draw.population)
        return Fitted(
            row_likelihood(z_valid, draw.y_valid).T,
            self.score,
            row_likelihood(z_test, draw.y_test).mean(0),
            auc(z_test, draw.y_test),
            row_likelihood(shifted, draw.y_test).mean(0),
            z_test.sigmoid().mean(0),
            self.learnt,
            self.step,
            z_unlabelled,
            z_valid,
            z_test,
        )


def auc(z: Tensor, y: Tensor) -> Tensor:
    """Return the area under the ROC curve of each column, ties counted half."""
    from scipy.stats import rankdata

    ranks = rankdata(z.numpy(), axis=0)
    positives = int(y.sum())
    total = ranks[y.numpy() == 1].sum(0) - positives * (positives + 1) / 2
    return torch.from_numpy(np.asarray(total / (positives * (len(y) - positives))))
