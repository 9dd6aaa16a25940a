"""A run with one step size: its nets by name, their loss, and their predictions.

Stage: `RunConfig`, step size → `Candidate`; minibatch → one step of the nets of all candidates; validation or test part →
log-probabilities at π.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ...lidc.nets import MetadataBlock, convnet, fully_convolutional_net, gated_net, inception_net, metadata_net
from ...likelihoods import Categorical, CumulativeLogit, Likelihood, OnionPeeling, StickBreaking, start_at_prevalence
from ...losses import LogLikelihoodLoss
from ...predictive import retarget
from ...prevalence import Prevalence
from ...solve import intercepts_for_mean
from ...tensors import tensor_of
from ..config import IMAGE_NETS, RunConfig
from ..methods import METHODS
from .batches import Batch, Inputs, seed_of, stream

if TYPE_CHECKING:
    from lightning.fabric import Fabric

LIKELIHOOD_OF: dict[str, Callable[[int], Likelihood]] = {
    "categorical": Categorical,
    "onion-peeling": OnionPeeling,
    "stick-breaking": StickBreaking,
    "cumulative-logit": CumulativeLogit,
}
IMAGE_NET_OF: dict[str, Callable[..., nn.Module]] = {
    "convnet": convnet,
    "inception": inception_net,
    "fully-convolutional": fully_convolutional_net,
    "gated": gated_net,
}
HIDDEN, DROPOUT = 32, 0.1
_BLOCK = 32  # nodules per block when nets predict; the C library does not keep freed memory of larger ones
_MASKED_BLOCK = 64  # the same with dropout, whose masks depend on it


class Candidate:
    """The nets of one run with one step size: one, or as many as an ensemble has.

    Args:
        run: the run.
        rate: the first step size.
        sampling: ρ.
        population: π.
        num_features: columns of the metadata.
        fabric: the devices and their precision; None for plain torch on one CPU.
        made: nets of other candidates, by everything their training depends on. Nets with the same training are taken from
            there; others are added.
    """

    def __init__(
        self,
        run: RunConfig,
        rate: float,
        sampling: np.ndarray,
        population: np.ndarray,
        num_features: int,
        fabric: Fabric | None = None,
        made: dict[tuple[RunConfig, float], list[Net]] | None = None,
    ) -> None:
        self.run, self.rate, self.fabric = run, rate, fabric
        self.prevalence = Prevalence(population, sampling=sampling, evidence=run.evidence)
        members = run.training.members if run.inference == "ensemble" else 1
        made = {} if made is None else made
        if (same := (_as_trained(run), rate)) not in made:
            made[same] = [Net(run, rate, member, self.prevalence, num_features, fabric) for member in range(members)]
        self.nets = made[same]
        self.scores: list[float] = []
        self.trace: list[float] = []
        self.best: list[dict[str, Tensor]] = []
        self._failed = False

    @property
    def failed(self) -> bool:
        """Whether a loss or a score was not finite; training and scoring then stop."""
        return self._failed or any(net.failed for net in self.nets)

    def score(self, part: Batch, tables: Mapping[Net, Tensor]) -> None:
        """Score the nets on the validation part, and keep a copy if the score is the best so far.

        Args:
            part: the validation part.
            tables: its tables by `tables_of`, of nets that have one.
        """
        if self.failed:
            return
        found = expected_log_likelihood(self.log_probs(part, tables), part.target, self.prevalence.population)
        if not math.isfinite(found):
            self._failed = True
            return
        if found > max(self.scores, default=-math.inf):
            self.best = [_copied(net.averaged.module) for net in self.nets]
        self.scores.append(found)

    @torch.no_grad()
    def record(self, batch: Batch) -> None:
        """Add the mean prediction of the last class over this minibatch, weighted to π, as the nets saw it in training."""
        if self.failed:
            return
        weights = tensor_of(self.prevalence.weights)
        rows = weights[batch.target] if batch.target.ndim == 1 else batch.target.double() @ weights
        tables = [self._at_population(net.module.likelihood.table(net.outputs.double())) for net in self.nets]
        mean = torch.stack([table[:, -1].exp() for table in tables]).mean(0).cpu()
        sums = _over_processes(torch.stack([rows.cpu() @ mean, rows.sum().cpu()]), self.fabric)
        self.trace.append(float(sums[0] / sums[1]))

    def matched(self, part: Batch) -> tuple[float, ...]:
        """Return what to add to the log-probabilities by class so that their mean over this part, weighted to π, is π."""
        return offsets_to_match(self.log_probs(part), part.target, self.prevalence.population)

    def restore(self) -> None:
        """Load the nets of the best score."""
        for net, state in zip(self.nets, self.best, strict=True):
            net.averaged.module.load_state_dict(state)

    def log_probs(self, part: Batch, tables: Mapping[Net, Tensor] | None = None) -> Float64[Tensor, "n k"]:
        """Return predictions at π, averaged over nets or over masks of dropout."""
        masks = self.run.training.members if self.run.inference == "mc-dropout" else 0
        found = [] if masks else [(tables or tables_of(self.nets, part))[net] for net in self.nets]
        for net in self.nets if masks else ():
            for mask in range(masks):
                net.seed("mask", mask)
                found.append(tables_of([net], part, dropout=True)[net])
        return torch.logsumexp(torch.stack([self._at_population(table) for table in found]), 0) - math.log(len(found))

    def _at_population(self, table: Float64[Tensor, "n k"]) -> Float64[Tensor, "n k"]:
        if not METHODS[self.run.loss].corrected or bool(table.isnan().any()):  # seen by `score`
            return table
        return retarget(table, self.prevalence.sampling, self.prevalence.population)


def expected_log_likelihood(log_probs: Float64[Tensor, "n k"], target: Tensor, population: np.ndarray) -> float:
    """Return the expected log-likelihood at π, Σ_c π_c Σ_n v_nc log p(c|x_n) / Σ_n v_nc."""
    votes = _votes(target, log_probs.shape[1])
    return float(tensor_of(population) @ ((votes * log_probs).sum(0) / votes.sum(0)))


def offsets_to_match(log_probs: Float64[Tensor, "n k"], target: Tensor, population: np.ndarray) -> tuple[float, ...]:
    """Return what to add to log-probabilities by class so that their mean, weighted to π by the labels, is π."""
    votes = _votes(target, log_probs.shape[1])
    weights = (votes * (tensor_of(population) / votes.sum(0))).sum(1)
    if not bool(torch.isfinite(log_probs).all()):
        return (math.nan,) * log_probs.shape[1]
    return tuple(intercepts_for_mean(log_probs.numpy(), population, weights.numpy()).tolist())


def _votes(target: Tensor, classes: int) -> Float64[Tensor, "n k"]:
    votes = target if target.is_floating_point() else nn.functional.one_hot(target, classes)
    return votes.double().cpu()


class Net:
    """One net in training, with its loss and the running mean of its weights, which predicts.

    Args:
        run: the run it is trained for, or the first of several with the same training.
        rate: the first step size.
        member: its number in an ensemble.
        prevalence: π and ρ.
        num_features: columns of the metadata.
        fabric: as in `Candidate`.

    Attributes:
        module: the net itself.
        model: the same, or Fabric's wrapper of it.
        failed: whether its loss was not finite.
        outputs: for the labelled rows of the last minibatch.
    """

    def __init__(
        self, run: RunConfig, rate: float, member: int, prevalence: Prevalence, num_features: int, fabric: Fabric | None
    ) -> None:
        self.run, self.rate, self.member, self.fabric = run, rate, member, fabric
        training, method = run.training, METHODS[run.loss]
        likelihood = LIKELIHOOD_OF[run.likelihood](prevalence.num_classes)
        weights = stream("weights", run.net, run.likelihood, run.data, run.fold, run.seed, member)
        self.module = Model(run.net, likelihood, num_features, training.small, DROPOUT, weights)
        start_at_prevalence(self.module.head, method.start(prevalence, run.start), likelihood)
        self.seed("marginal", member)  # of the auxiliary network's weights
        marginal = method.marginal_for(self.module.head)
        self.criterion: Any = method.loss(prevalence, likelihood, marginal, run.unlabelled_weight)
        self.criterion.nonfinite = "nan"  # seen by `take_step`
        trained = [weight for weight in self.module.parameters() if weight.requires_grad]
        self.model: Any = self.module
        self.optimiser: Any = torch.optim.AdamW(trained, rate, weight_decay=training.weight_decay, fused=True)
        if fabric is not None:
            self.model, self.optimiser = fabric.setup(self.model, self.optimiser)
        self.criterion.to(place_of(fabric)[0])
        self.averaged = AveragedModel(self.module, multi_avg_fn=get_ema_multi_avg_fn(training.averaging))
        self.failed, self.outputs = False, torch.empty(0)

    def seed(self, purpose: str, *numbers: int) -> None:
        """Seed torch's default generators; on one CPU only the CPU's, since seeding missing devices is slow."""
        number = seed_of(purpose, self.run.data, self.run.fold, self.run.seed, *numbers)
        (torch.default_generator if self.fabric is None else torch).manual_seed(number)

    def inputs(self, batch: Batch) -> Inputs:
        """Return the rows of a minibatch that it reads: labelled rows, or all rows if it learns from unlabelled ones too."""
        return batch.with_unlabelled[self.run.population] if self.run.learns_from_unlabelled else batch.inputs

    def loss(self, batch: Batch, number: int) -> Tensor:
        """Return the loss of minibatch `number`; labelled and unlabelled rows go through the net together."""
        self.seed("dropout", self.member, number, place_of(self.fabric)[1])
        outputs = self.model(*self.inputs(batch))
        self.outputs = outputs.detach()[: len(batch.target)]
        labelled, unlabelled = outputs.tensor_split([len(batch.target)])
        loss: Tensor = self.criterion(labelled, batch.target, **({"unlabelled": unlabelled} if len(unlabelled) else {}))
        return loss

    def update(self, number: int) -> None:
        """Take optimiser step `number`, counted from 1; step sizes fall by half a cosine."""
        self.optimiser.param_groups[0]["lr"] = self.rate * (
            0.5 + 0.5 * math.cos(math.pi * (number - 1) / self.run.training.steps)
        )
        self.optimiser.step()
        self.averaged.update_parameters(self.module)


def score(candidates: Iterable[Candidate], part: Batch) -> None:
    """Score the candidates on the validation part; nets that several of them share predict once."""
    candidates = [each for each in candidates if not each.failed]
    nets = dict.fromkeys(net for each in candidates if each.run.inference != "mc-dropout" for net in each.nets)
    tables = tables_of(nets, part)
    for candidate in candidates:
        candidate.score(part, tables)


@torch.no_grad()
def tables_of(nets: Iterable[Net], part: Batch, dropout: bool = False) -> dict[Net, Float64[Tensor, "n k"]]:
    """Return the tables of nets for all rows of a part."""
    found, block = {}, _MASKED_BLOCK if dropout else _BLOCK
    for net in nets:
        model: Any = net.averaged.module.train(dropout)
        dtype, blocks = next(model.parameters()).dtype, []
        for start in range(0, len(part.target), block):
            rows = (None if each is None else each[start : start + block] for each in part.inputs)
            with nullcontext() if net.fabric is None else net.fabric.autocast():
                outputs = model(*(None if each is None else each.to(dtype) for each in rows))
            blocks.append(model.likelihood.table(outputs.double()))
        found[net] = torch.cat(blocks).cpu()
    return found


def take_step(candidates: Iterable[Candidate], batch: Batch, number: int) -> None:
    """Take one step with each net of the candidates; a loss that is not finite ends the training of its net."""
    for net in dict.fromkeys(net for candidate in candidates if not candidate.failed for net in candidate.nets):
        net.optimiser.zero_grad()
        loss = net.loss(batch, number)
        net.failed = not math.isfinite(float(_over_processes(loss.detach(), net.fabric)))
        if not net.failed:
            loss.backward() if net.fabric is None else net.fabric.backward(loss)
            net.update(number)


def _as_trained(run: RunConfig) -> RunConfig:
    """Return a run that represents all runs with the same training; they differ only in scoring and prediction."""
    if METHODS[run.loss].rival is LogLikelihoodLoss:  # at the sampled mix, whatever the population
        same = {"rebalanced": "equal"}.get(run.minibatches, run.start)  # both starts are at the sampled mix then
        run = replace(run, loss="plain", population=None, start=same)
    return replace(run, inference="map") if run.inference == "mc-dropout" else run


def place_of(fabric: Fabric | None) -> tuple[torch.device, int, int]:
    """Return the device of this process, its rank, and the number of processes that train together."""
    return (torch.device("cpu"), 0, 1) if fabric is None else (fabric.device, fabric.global_rank, fabric.world_size)


def _over_processes(value: Tensor, fabric: Fabric | None) -> Tensor:
    """Return the mean over the processes that train together."""
    mean: Any = value if fabric is None else fabric.all_reduce(value.clone())  # it overwrites its argument
    return mean


def _copied(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


# Nets by name, with their likelihoods.


class Model(nn.Module):
    """A net and its likelihood; parameters of the likelihood are trained with the net.

    It is called with low-level features of views and metadata, and uses the ones its net needs.

    Args:
        name: of the net.
        likelihood: outputs → table.
        num_features: columns of the metadata.
        small: the variant for CPUs.
        dropout: share of the channels or units.
        generator: of the random weights.
    """

    def __init__(
        self, name: str, likelihood: Likelihood, num_features: int, small: bool, dropout: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.takes_image, self.takes_metadata = takes_image(name), name not in IMAGE_NETS
        self.net = _net(name, likelihood, num_features, small, dropout, generator)
        self.likelihood = likelihood

    @property
    def head(self) -> nn.Module:
        """The last layer."""
        head = self.net[-1] if isinstance(self.net, nn.Sequential) else self.net.head
        assert isinstance(head, nn.Module)
        return head

    def forward(self, features: Tensor | None, metadata: Tensor) -> Tensor:
        outputs: Tensor = self.net(*([features] * self.takes_image), *([metadata] * self.takes_metadata))
        return outputs


def takes_image(name: str) -> bool:
    """Return whether the net of this name reads images."""
    return name in (*IMAGE_NETS, "both")


def _net(name: str, likelihood: Likelihood, num_features: int, small: bool, dropout: float, generator: torch.Generator) -> Any:
    outputs = likelihood.num_outputs
    assert outputs is not None
    settings: dict[str, Any] = {"small": small, "dropout": dropout, "generator": generator}
    if name == "metadata":
        return MetadataBlock(num_features, outputs, generator=generator)
    if name == "mlp":
        return _perceptron(num_features, outputs, dropout, generator)
    if name != "fully-convolutional":
        settings["pool"] = "mean"  # steadier than the largest of three views
    net = metadata_net(num_features, outputs, **settings) if name == "both" else IMAGE_NET_OF[name](outputs, **settings)
    image: Any = net.image if name == "both" else net
    image.low_level = nn.Identity()  # it is the same in all nets, and computed once for all of them
    return net


def _perceptron(inputs: int, outputs: int, dropout: float, generator: torch.Generator) -> nn.Module:
    first, last = nn.Linear(inputs, HIDDEN), nn.Linear(HIDDEN, outputs)
    for layer in (first, last):
        bound = layer.in_features**-0.5
        nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
        nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
    return nn.Sequential(first, nn.ReLU(), nn.Dropout(dropout), last)
