"""A run with one step size: its nets, their loss, and their predictions.

Stage: `RunConfig`, step size → `Candidate`; minibatch → one step of its nets; validation or test part → log-probabilities at π.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float64
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ...likelihoods import start_at_prevalence
from ...marginals import AuxiliaryMarginal, BatchMarginal, ClasswiseMarginal, Marginal, RunningMarginal
from ...predictive import retarget
from ...prevalence import Prevalence
from ..config import RunConfig
from ..methods import METHODS
from .batches import Batch, seed_of, stream
from .models import DROPOUT, LIKELIHOOD_OF, Model

if TYPE_CHECKING:
    from lightning.fabric import Fabric

_BLOCK = 64  # nodules that a net predicts in one go

MARGINAL_OF: dict[str, Callable[[nn.Module], Marginal | None]] = {
    "own": lambda head: None,
    "batch": lambda head: BatchMarginal(),
    "classwise": lambda head: ClasswiseMarginal(),
    "running": lambda head: RunningMarginal(),
    "auxiliary": AuxiliaryMarginal,
}


class Candidate:
    """The nets of one run with one step size: one, or as many as an ensemble has.

    Args:
        run: the run.
        rate: the first step size.
        sampling: ρ.
        population: π.
        num_features: columns of the metadata.
        fabric: where and how precisely.
    """

    def __init__(
        self, run: RunConfig, rate: float, sampling: Tensor, population: Tensor, num_features: int, fabric: Fabric
    ) -> None:
        self.run, self.rate, self.fabric = run, rate, fabric
        self.prevalence = Prevalence(population, sampling=sampling, evidence=run.evidence)
        members = run.training.members if run.inference == "ensemble" else 1
        self.nets = [self._net(member, num_features) for member in range(members)]
        self.failed = False
        self.scores: list[float] = []
        self.best: list[dict[str, Tensor]] = []

    def step(self, batch: Batch, number: int) -> None:
        """Take one step with each net; a loss that is not finite ends the training of all."""
        for member, net in enumerate(self.nets):
            if self.failed:
                return
            torch.manual_seed(self._seed("dropout", member, number, self.fabric.global_rank))
            net.optimiser.zero_grad()
            loss = self._loss(net, batch)
            mean: Any = self.fabric.all_reduce(loss.detach().clone())  # it overwrites its argument
            self.failed = not math.isfinite(float(mean))
            if not self.failed:
                self.fabric.backward(loss)
                net.optimiser.step()
                net.schedule.step()
                net.averaged.update_parameters(net.model.module)

    def _loss(self, net: _Net, batch: Batch) -> Tensor:
        """Return the loss; labelled and unlabelled rows go through the net together."""
        if not self.run.learns_from_unlabelled:
            return net.criterion(net.model(*batch.inputs), batch.target)
        outputs = net.model(*batch.with_unlabelled[self.run.population])
        labelled, unlabelled = outputs.tensor_split([len(batch.target)])
        return net.criterion(labelled, batch.target, unlabelled=unlabelled)

    def score(self, part: Batch) -> None:
        """Score the nets on the validation part, and keep a copy if they were never better."""
        if self.failed:
            return
        found = expected_log_likelihood(self.log_probs(part), part.target, self.prevalence.population)
        if not math.isfinite(found):
            self.failed = True
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

    def _table(self, net: _Net, part: Batch, mask: int) -> Float64[Tensor, "n k"]:
        model: Any = net.averaged.module
        dtype = next(model.parameters()).dtype
        torch.manual_seed(self._seed("mask", mask))
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

    def _net(self, member: int, num_features: int) -> _Net:
        run, training, method = self.run, self.run.training, METHODS[self.run.loss]
        likelihood = LIKELIHOOD_OF[run.likelihood](self.prevalence.num_classes)
        start = stream("weights", run.net, run.likelihood, run.data, run.fold, run.seed, member)
        model = Model(run.net, likelihood, num_features, training.small, DROPOUT, start)
        if method.start != "torch":
            at = self.prevalence if method.start == "population" else Prevalence(self.prevalence.sampling)
            start_at_prevalence(model.head, at, likelihood)
        torch.manual_seed(self._seed("marginal", member))  # of the auxiliary network's weights
        marginal = MARGINAL_OF[run.marginal](model.head)
        criterion: Any = method.loss(self.prevalence, likelihood, marginal, run.unlabelled_weight)
        criterion.nonfinite = "nan"  # seen by `step`
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        optimiser = torch.optim.AdamW(trained, self.rate, weight_decay=training.weight_decay, fused=True)
        wrapped, set_up = self.fabric.setup(model, optimiser)
        return _Net(
            wrapped,
            criterion.to(self.fabric.device),
            set_up,
            torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 0.5 + 0.5 * math.cos(math.pi * step / training.steps)),
            AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(training.averaging)),
        )

    def _seed(self, purpose: str, *numbers: int) -> int:
        return seed_of(purpose, self.run.data, self.run.fold, self.run.seed, *numbers)


def expected_log_likelihood(log_probs: Float64[Tensor, "n k"], target: Tensor, population: Tensor) -> float:
    """Return Σ_c π_c Σ_n v_nc log p(c|x_n) / Σ_n v_nc, the study's main figure, here on the validation part."""
    votes = target if target.is_floating_point() else nn.functional.one_hot(target, log_probs.shape[1])
    votes = votes.double().cpu()
    return float(population @ ((votes * log_probs).sum(0) / votes.sum(0)))


@dataclass(frozen=True)
class _Net:
    """One net in training: as Fabric wraps it, with its loss and the running mean of its weights, which predicts."""

    model: Any
    criterion: Any
    optimiser: Any
    schedule: Any
    averaged: AveragedModel


def _copied(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}
