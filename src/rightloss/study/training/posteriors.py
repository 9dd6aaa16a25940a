"""Posteriors over the weights of nets that read only features.

Stage: `RunConfig`, the group's data → `RunResult`; the prior's scale is chosen on the validation part.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...inference import Posterior, laplace, layer_prior, log_posterior, sghmc, variational
from ...likelihoods import start_at_prevalence
from ...predictive import predictive
from ...prevalence import Prevalence
from ..config import RunConfig
from ..methods import METHODS
from ..results import RunResult
from .batches import Batches, seed_of, stream
from .candidates import expected_log_likelihood, offsets_to_match
from .models import LIKELIHOOD_OF, Model

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
