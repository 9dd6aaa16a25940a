"""The training loop: the runs of a group, trained side by side on the same minibatches and low-level features.

Stage: `Group` → a `RunResult` for each of its runs; it depends only on the run, not on the rest of the group.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...extras import install
from ...inference import Posterior, laplace, layer_prior, log_posterior, sghmc, variational
from ...lidc import NoduleSet
from ...likelihoods import start_at_prevalence
from ...predictive import predictive
from ...prevalence import Prevalence
from ..config import OF_TABLES, Group, RunConfig
from ..datasets import study_data, study_images
from ..engines import Report
from ..methods import METHODS
from ..results import RunResult, trace_steps
from .batches import Batch, Batches, seed_of, stream
from .candidates import (
    LIKELIHOOD_OF,
    Candidate,
    Model,
    Net,
    expected_log_likelihood,
    offsets_to_match,
    place_of,
    score,
    take_step,
    takes_image,
)

if TYPE_CHECKING:
    from lightning.fabric import Fabric


@dataclass(frozen=True)
class Hardware:
    """Devices, as for Lightning Fabric, which all but one CPU need; results do not depend on them.

    Attributes:
        accelerator: "cpu", "cuda", "mps", or "auto".
        devices: number of devices; several share each minibatch (DDP).

    Examples:
        >>> from rightloss.study.training import Hardware
        >>> Hardware()
        Hardware(accelerator='cpu', devices=1)
    """

    accelerator: str = "cpu"
    devices: int = 1

    def fabric(self, precision: str = "32-true") -> Fabric | None:
        """Return a Fabric that is not launched yet, or None for plain torch on one CPU.

        Raises:
            ImportError: if Fabric is not installed.
            ValueError: for devices that this machine does not have.
        """
        if (self.accelerator, self.devices, precision) == ("cpu", 1, "32-true"):
            return None
        try:  # it is a package of its own, and a part of Lightning
            fabric = import_module("lightning_fabric" if find_spec("lightning_fabric") else "lightning.fabric").Fabric
        except ModuleNotFoundError as error:
            raise ImportError(f"{self} at {precision} needs lightning-fabric: {install('fabric')}.") from error
        strategy = "ddp_spawn" if self.devices > 1 else "auto"
        settings: dict[str, Any] = {"accelerator": self.accelerator, "devices": self.devices, "precision": precision}
        try:
            return fabric(**settings, strategy=strategy)
        except Exception as error:  # Fabric raises its own kinds
            raise ValueError(f"Expected devices that this machine has, but got {self} at {precision}: {error}") from error


def silent(share: float) -> None:
    """Report nothing."""


def train_group(group: Group, report: Report = silent, hardware: Hardware | None = None) -> list[RunResult]:
    """Train the runs of a group, choose on the validation part, and return the predictions of the test part.

    Args:
        group: runs that share data, fold, seed and minibatches.
        report: called with the share that is done; not with several devices.
        hardware: where to train; the CPU by default.
    """
    hardware = Hardware() if hardware is None else hardware
    training = group.runs[0].training
    fabric = hardware.fabric(training.precision)
    batch_size = training.batch_size
    if batch_size % hardware.devices:
        raise ValueError(
            f"Expected a batch size that {hardware.devices} devices can share, but got {batch_size}: "
            "take a multiple of their number."
        )
    told = silent if hardware.devices > 1 else report  # it cannot be called from other processes
    with torch.random.fork_rng():
        # A partial that returns plain tuples: Fabric unpacks arguments and results, and rejects frozen dataclasses.
        work: Any = partial(_plain, group=group, report=told)
        found = work(None) if fabric is None else fabric.launch(work)
    if isinstance(found, ValueError):
        raise found
    return [RunResult(run, *each) for run, each in zip(group.runs, found, strict=True)]


def _plain(fabric: Fabric | None, group: Group, report: Report) -> list[tuple[Any, ...]] | ValueError:
    """Return a ValueError as a value: if raised in another process, it would come back as a torch error."""
    try:
        return [tuple(vars(each).values())[1:] for each in _train(fabric, group, report)]  # without the config
    except ValueError as error:
        return error


def _train(fabric: Fabric | None, group: Group, report: Report) -> list[RunResult]:
    first = group.runs[0]
    data = study_data(group.source, first.task)
    images = study_images(group.source, first.task) if any(takes_image(run.net) for run in group.runs) else None
    populations = {run.population: population_of(run, data) for run in group.runs if run.learns_from_unlabelled}
    batches = Batches(data, images, first, *place_of(fabric), populations)
    trained = [run for run in group.runs if run.inference not in OF_TABLES]
    share = len(trained) / len(group.runs)
    results = _side_by_side(fabric, trained, batches, lambda done: report(share * done)) if trained else {}
    for run in group.runs:
        if run.inference in OF_TABLES:
            results[run] = posterior_result(run, batches, population_of(run, data))
            report(len(results) / len(group.runs))
    return [results[run] for run in group.runs]


def _side_by_side(fabric: Fabric | None, runs: list[RunConfig], batches: Batches, report: Report) -> dict[RunConfig, RunResult]:
    training, features = runs[0].training, len(batches.data.feature_names)
    made: dict[tuple[RunConfig, float], list[Net]] = {}
    candidates = {
        run: [
            Candidate(run, rate, batches.sampling, population_of(run, batches.data), features, fabric, made)
            for rate in training.learning_rates
        ]
        for run in runs
    }
    all_candidates = [candidate for each in candidates.values() for candidate in each]
    checkpoints = {round(training.steps * (number + 1) / training.checkpoints) for number in range(training.checkpoints)}
    traced = {*trace_steps(training.steps)}
    valid = batches.fixed(batches.parts.valid)
    for step, batch in enumerate(batches, start=1):
        take_step(all_candidates, batch, step)
        if step in traced:
            for candidate in all_candidates:
                candidate.record(batch)
        if step in checkpoints:
            score(all_candidates, valid)
        report(step / training.steps)
    test = batches.fixed(batches.parts.test)
    return {run: _best(run, each, sorted(checkpoints), valid, test, batches.parts.test) for run, each in candidates.items()}


def _best(
    run: RunConfig, candidates: list[Candidate], checkpoints: list[int], valid: Batch, test: Batch, rows: Tensor
) -> RunResult:
    """Return the predictions of the candidate with the best score, at the checkpoint that had it."""
    scored = [candidate for candidate in candidates if candidate.scores]
    if not scored:
        raise ValueError(f"Expected finite losses, but got none for {run.label}: lower --learning-rate.")
    chosen = max(scored, key=lambda candidate: max(candidate.scores))
    chosen.restore()
    return RunResult(
        run,
        rows.numpy(),
        chosen.log_probs(test).numpy(),
        {"learning_rate": chosen.rate, "step": checkpoints[int(np.argmax(chosen.scores))]},
        tuple(tuple(candidate.scores) for candidate in candidates),
        chosen.matched(valid),
        tuple(chosen.trace),
    )


def population_of(run: RunConfig, data: NoduleSet) -> np.ndarray:
    """Return π by class: the run's; for ratings the shares of votes in the whole data set."""
    if run.population is None:
        return data.votes.double().mean(0).numpy()
    return np.array([1 - run.population, run.population])


# Posteriors over the weights of nets that read only features; the prior's scale is chosen on the validation part.

_CHAIN = 3  # steps of a chain for each of an ascent's

FIT: dict[str, Callable[..., Posterior]] = {
    "laplace": partial(laplace, mode="search"),
    "variational": variational,
    "sghmc": sghmc,
}


def posterior_result(run: RunConfig, batches: Batches, population: np.ndarray) -> RunResult:
    """Fit a posterior for each prior scale; return the predictions of the one that scores best on the validation part."""
    parts, prevalence = batches.parts, Prevalence(population, sampling=batches.sampling, evidence=run.evidence)
    found = []
    for scale in run.training.prior_scales:
        posterior = _fit(run, scale, batches, prevalence)
        valid = _log_probs(run, posterior, batches.metadata[parts.valid], prevalence)
        found.append((expected_log_likelihood(valid, batches.target[parts.valid], population), posterior))
    best = int(np.argmax([score if np.isfinite(score) else -np.inf for score, _ in found]))
    log_probs = _log_probs(run, found[best][1], batches.metadata[parts.test], prevalence)
    if not bool(torch.isfinite(log_probs).all()):
        raise ValueError(f"Expected finite predictions, but got others for {run.label}: another --inference, or other scales.")
    chosen = {"prior_scale": run.training.prior_scales[best]}
    valid = _log_probs(run, found[best][1], batches.metadata[parts.valid], prevalence)
    matched = offsets_to_match(valid, batches.target[parts.valid], population)
    return RunResult(run, parts.test.numpy(), log_probs.numpy(), chosen, tuple((score,) for score, _ in found), matched)


def _fit(run: RunConfig, scale: float, batches: Batches, prevalence: Prevalence) -> Posterior:
    method, training, rows = METHODS[run.loss], run.training, batches.parts.train
    likelihood = LIKELIHOOD_OF[run.likelihood](prevalence.num_classes)
    weights = stream("weights", run.net, run.likelihood, run.data, run.fold, run.seed, 0)
    model = Model(run.net, likelihood, batches.metadata.shape[1], training.small, 0.0, weights)
    if method.mix == "sampling":  # its logits are at the sampling frequencies, and predictions are corrected from there
        prevalence = Prevalence(prevalence.sampling, sampling=prevalence.sampling, evidence=run.evidence)
    start_at_prevalence(model.head, method.start(prevalence), likelihood)
    prior = layer_prior(model.net, scale, likelihood)  # its centre is the same, whatever the start
    start_at_prevalence(model.head, method.start(prevalence, run.start), likelihood)
    settings: dict[str, Any] = {"loss": method.rival}
    if method.rival is None:
        settings = {"marginal": method.marginal_for(model.head), "reference": method.reference(prevalence)}
    if run.learns_from_unlabelled:
        settings |= _unlabelled(run, batches)
    target = log_posterior(model.net, prevalence, likelihood, prior=prior, **settings)
    steps = {"steps": _CHAIN * training.steps} if run.inference == "sghmc" else {"steps": training.steps, "lr": 1e-2}
    seed = seed_of("posterior", run.data, run.fold, run.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # chains may disagree: the validation part decides
        return FIT[run.inference](
            target,
            (batches.metadata[rows], batches.target[rows]),
            batch_size=training.batch_size,
            seed=seed,
            progress=False,
            **steps,
        )


def _unlabelled(run: RunConfig, batches: Batches) -> dict[str, Any]:
    """Return the unlabelled rows as `log_posterior` takes them; in the published form p(y|w) is exact over all of them."""
    rows = batches.metadata[batches.unlabelled_rows(run.population)]
    if not METHODS[run.loss].weighs_unlabelled:
        return {"unlabelled": rows}
    weight = 1.0 if run.unlabelled_weight is None else run.unlabelled_weight
    return {"unlabelled": rows, "unlabelled_weight": weight, "unlabelled_batch_size": run.training.batch_size}


def _log_probs(run: RunConfig, posterior: Posterior, x: Tensor, prevalence: Prevalence) -> Tensor:
    """Return predictions at π, averaged over draws of the weights; each is corrected first, as in `Candidate.log_probs`."""
    population = prevalence.population if METHODS[run.loss].corrected else None
    return torch.as_tensor(predictive(posterior, x, population)).double()
