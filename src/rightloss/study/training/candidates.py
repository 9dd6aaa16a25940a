"""A run with one step size: its nets, their loss, and their predictions.

Stage: `RunConfig`, step size → `Candidate`; minibatch → one step of the nets of all candidates; validation or test part →
log-probabilities at π.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float64
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ...likelihoods import start_at_prevalence
from ...losses import LogLikelihoodLoss
from ...marginals import AuxiliaryMarginal, BatchMarginal, ClasswiseMarginal, Marginal, RunningMarginal
from ...predictive import retarget
from ...prevalence import Prevalence
from ..config import RunConfig
from ..methods import METHODS
from .batches import Batch, Inputs, seed_of, stream
from .models import DROPOUT, LIKELIHOOD_OF, Model, convolve_together

if TYPE_CHECKING:
    from lightning.fabric import Fabric

_BLOCK = 64  # nodules per block when a net predicts

MARGINAL_OF: dict[str, Callable[[nn.Module], Marginal | None]] = {
    "own": lambda head: None,
    "batch": lambda head: BatchMarginal(),
    "classwise": lambda head: ClasswiseMarginal(),
    "running": lambda head: RunningMarginal(),
    "auxiliary": AuxiliaryMarginal,
}


class OneCPU:
    """What Fabric does on one CPU in single precision, which is nothing. Its import takes seconds in each process."""

    device, global_rank, world_size = torch.device("cpu"), 0, 1

    def launch(self, function: Callable[[OneCPU], Any]) -> Any:
        return function(self)

    def setup(self, model: nn.Module, optimiser: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        return model, optimiser

    def autocast(self) -> AbstractContextManager[None]:
        return nullcontext()

    def all_reduce(self, tensor: Tensor) -> Tensor:
        return tensor

    def backward(self, loss: Tensor) -> None:
        loss.backward()


class Candidate:
    """The nets of one run with one step size: one, or as many as an ensemble has.

    Args:
        run: the run.
        rate: the first step size.
        sampling: ρ.
        population: π.
        num_features: columns of the metadata.
        fabric: where and how precisely.
        made: nets of other candidates, by everything their training depends on. Nets with the same training are taken from
            there; others are added.
    """

    def __init__(
        self,
        run: RunConfig,
        rate: float,
        sampling: Tensor,
        population: Tensor,
        num_features: int,
        fabric: Fabric | OneCPU,
        made: dict[tuple[RunConfig, float], list[Net]] | None = None,
    ) -> None:
        self.run, self.rate, self.fabric = run, rate, fabric
        self.prevalence = Prevalence(population, sampling=sampling, evidence=run.evidence)
        members = run.training.members if run.inference == "ensemble" else 1
        made = {} if made is None else made
        if (same := (_as_trained(run), rate)) not in made:
            made[same] = [self._net(member, num_features) for member in range(members)]
        self.nets = made[same]
        self.scores: list[float] = []
        self.best: list[dict[str, Tensor]] = []
        self._failed = False

    @property
    def failed(self) -> bool:
        """Whether a loss or a score was not finite; training and scoring then stop."""
        return self._failed or any(net.failed for net in self.nets)

    def score(self, part: Batch) -> None:
        """Score the nets on the validation part, and keep a copy if the score is the best so far."""
        if self.failed:
            return
        found = expected_log_likelihood(self.log_probs(part), part.target, self.prevalence.population)
        if not math.isfinite(found):
            self._failed = True
            return
        if found > max(self.scores, default=-math.inf):
            self.best = [_copied(net.averaged.module) for net in self.nets]
        self.scores.append(found)

    def restore(self) -> None:
        """Load the nets of the best score."""
        for net, state in zip(self.nets, self.best, strict=True):
            net.averaged.module.load_state_dict(state)

    @torch.no_grad()
    def log_probs(self, part: Batch) -> Float64[Tensor, "n k"]:
        """Return predictions at π, averaged over nets or over masks of dropout."""
        dropout = self.run.inference == "mc-dropout"
        masks = self.run.training.members if dropout else 1
        for net in self.nets:
            net.averaged.train(dropout)
        tables = [self._table(net, part, mask) for net in self.nets for mask in range(masks)]
        return torch.logsumexp(torch.stack(tables), 0) - math.log(len(tables))

    def _table(self, net: Net, part: Batch, mask: int) -> Float64[Tensor, "n k"]:
        model: Any = net.averaged.module
        dtype = next(model.parameters()).dtype
        _seed_default(self._seed("mask", mask), self.fabric)
        blocks = []
        for start in range(0, len(part.target), _BLOCK):
            block = slice(start, start + _BLOCK)
            with self.fabric.autocast():
                features = None if part.inputs.features is None else part.inputs.features[block].to(dtype)
                outputs = model(features, part.inputs.metadata[block].to(dtype))
            blocks.append(model.likelihood.table(outputs.double()))
        table = torch.cat(blocks).cpu()
        if not METHODS[self.run.loss].corrected or bool(table.isnan().any()):  # seen by `score`
            return table
        return retarget(table, self.prevalence.sampling, self.prevalence.population)

    def _net(self, member: int, num_features: int) -> Net:
        run, training, method = self.run, self.run.training, METHODS[self.run.loss]
        likelihood = LIKELIHOOD_OF[run.likelihood](self.prevalence.num_classes)
        start = stream("weights", run.net, run.likelihood, run.data, run.fold, run.seed, member)
        model = Model(run.net, likelihood, num_features, training.small, DROPOUT, start)
        if method.start != "torch":
            at = self.prevalence if method.start == "population" else Prevalence(self.prevalence.sampling)
            start_at_prevalence(model.head, at, likelihood)
        _seed_default(self._seed("marginal", member), self.fabric)  # of the auxiliary network's weights
        marginal = MARGINAL_OF[run.marginal](model.head)
        criterion: Any = method.loss(self.prevalence, likelihood, marginal, run.unlabelled_weight)
        criterion.nonfinite = "nan"  # seen by `take_step`
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        optimiser = torch.optim.AdamW(trained, self.rate, weight_decay=training.weight_decay, fused=True)
        wrapped, set_up = self.fabric.setup(model, optimiser)
        return Net(
            run,
            member,
            model,
            wrapped,
            criterion.to(self.fabric.device),
            set_up,
            torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 0.5 + 0.5 * math.cos(math.pi * step / training.steps)),
            AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(training.averaging)),
        )

    def _seed(self, purpose: str, *numbers: int) -> int:
        return seed_of(purpose, self.run.data, self.run.fold, self.run.seed, *numbers)


def expected_log_likelihood(log_probs: Float64[Tensor, "n k"], target: Tensor, population: Tensor) -> float:
    """Return the expected log-likelihood at π, Σ_c π_c Σ_n v_nc log p(c|x_n) / Σ_n v_nc."""
    votes = target if target.is_floating_point() else nn.functional.one_hot(target, log_probs.shape[1])
    votes = votes.double().cpu()
    return float(population @ ((votes * log_probs).sum(0) / votes.sum(0)))


@dataclass(eq=False)
class Net:
    """One net in training: wrapped by Fabric, with its loss and the running mean of its weights, which predicts.

    Attributes:
        run: the run it is trained for, or the first of several with the same training.
        member: its number in an ensemble.
        module: the net itself.
        model: the same, as Fabric calls it.
        failed: whether its loss was not finite.
    """

    run: RunConfig
    member: int
    module: Any
    model: Any
    criterion: Any
    optimiser: Any
    schedule: Any
    averaged: AveragedModel
    failed: bool = False

    def inputs(self, batch: Batch) -> Inputs:
        """Return the rows of a minibatch that it reads: labelled rows, or all rows if it learns from unlabelled ones too."""
        return batch.with_unlabelled[self.run.population] if self.run.learns_from_unlabelled else batch.inputs

    def loss(self, batch: Batch, number: int, fabric: Fabric | OneCPU) -> Tensor:
        """Return the loss of minibatch `number`; labelled and unlabelled rows go through the net together."""
        run = self.run
        _seed_default(seed_of("dropout", run.data, run.fold, run.seed, self.member, number, fabric.global_rank), fabric)
        outputs = self.model(*self.inputs(batch))
        if not run.learns_from_unlabelled:
            return self.criterion(outputs, batch.target)
        labelled, unlabelled = outputs.tensor_split([len(batch.target)])
        return self.criterion(labelled, batch.target, unlabelled=unlabelled)

    def update(self) -> None:
        """Take one optimiser step."""
        self.optimiser.step()
        self.schedule.step()
        self.averaged.update_parameters(self.module)


def take_step(candidates: Iterable[Candidate], batch: Batch, number: int, fabric: Fabric | OneCPU) -> None:
    """Take one step with each net of the candidates; a loss that is not finite ends the training of its net."""
    nets = dict.fromkeys(net for candidate in candidates if not candidate.failed for net in candidate.nets)
    for team in _teams(nets, batch, fabric):
        losses = []
        for net in team:
            net.optimiser.zero_grad()
            loss = net.loss(batch, number, fabric)
            mean: Any = fabric.all_reduce(loss.detach().clone())  # it overwrites its argument
            net.failed = not math.isfinite(float(mean))
            losses += [] if net.failed else [loss]
        if losses:
            fabric.backward(sum(losses[1:], losses[0]))
        for net in team:
            if not net.failed:
                net.update()


def _teams(nets: Iterable[Net], batch: Batch, fabric: Fabric | OneCPU) -> list[list[Net]]:
    """Return the nets in teams, with the first convolutions of each team computed: one backward pass for the whole team."""
    teams: list[list[Net]] = []
    together: dict[tuple[int, str], tuple[Tensor, list[Net]]] = {}
    for net in nets:
        features, first = net.inputs(batch).features, net.module.first
        plain = fabric.device.type == "cpu" and fabric.world_size == 1 and net.run.training.precision == "32-true"
        if plain and features is not None and first is not None:
            together.setdefault((id(features), repr(first)), (features, []))[1].append(net)
        else:
            teams.append([net])
    for features, team in together.values():
        if len(team) > 1 and convolve_together([net.module.first for net in team], features.flatten(0, 1)):
            teams.append(team)
        else:
            teams += [[net] for net in team]
    return teams


def _as_trained(run: RunConfig) -> RunConfig:
    """Return a run that represents all runs with the same training; they differ only in scoring and prediction."""
    if METHODS[run.loss].rival is LogLikelihoodLoss:  # at the sampled mix, whatever the population
        run = replace(run, loss="plain", population=None)
    return replace(run, inference="map") if run.inference == "mc-dropout" else run


def _seed_default(seed: int, fabric: Fabric | OneCPU) -> None:
    """Seed torch's default generators; on a CPU only the CPU's, since seeding missing devices is slow."""
    seed_all = torch.default_generator.manual_seed if fabric.device.type == "cpu" else torch.manual_seed
    seed_all(seed)


def _copied(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}
