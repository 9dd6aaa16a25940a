"""Posteriors in files.

Stage: posterior → safetensors file, and back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..likelihoods import Categorical, Likelihood
from ..log_probs import first_float
from ..losses.batch import check_pair
from ..prevalence import ContinuousPrevalence, Prevalence
from ..serialization import PREVALENCE, Format, check_fit, prevalence_facts, read_file, saved_prevalence, write_file
from .distributions import SAVED, saved_distribution
from .layout import Layout
from .nets import Net, check_weights

_FORMAT = Format(
    "rightloss.Posterior",
    version=1,
    facts=(*PREVALENCE, "likelihood", "distribution", "names", "shapes", "dropout", "linearised", "record"),
    thing="posterior",
    saved_by="Posterior.save",
    wrapping="make a Posterior of its tensors",
)


def write_posterior(path: str | Path, posterior: Any) -> None:
    """The distribution, and all weights that are not random."""
    kind = type(posterior.distribution).__name__
    if kind not in SAVED:
        raise ValueError(f"Expected one of {', '.join(SAVED)} to save, but got {kind}: save draws of it, as Particles.")
    own = Net(posterior.model, posterior.likelihood).own()
    tensors = {f"distribution.{name}": value for name, value in posterior.distribution.tensors().items()}
    tensors |= {f"rest.{name}": value for name, value in own.items() if name not in posterior.layout.names}
    known = prevalence_facts(posterior.prevalence) if isinstance(posterior.prevalence, Prevalence) else {}
    facts = {
        **dict.fromkeys(PREVALENCE),
        **known,
        "likelihood": _likelihood_facts(posterior.likelihood, posterior.prevalence),
        "distribution": kind,
        "names": list(posterior.layout.names),
        "shapes": [list(shape) for shape in posterior.layout.shapes],
        "dropout": posterior.dropout,
        "linearised": posterior.linearised,
        # as it will be read: keys that are numbers become strings, and sort otherwise in the digest
        "record": {name: json.loads(json.dumps(value)) for name, value in posterior.record.items() if _is_json(name, value)},
    }
    write_file(_FORMAT, path, tensors, facts)


def read_posterior(path: str | Path, model: nn.Module, likelihood: Likelihood | None, prevalence: Any) -> tuple[Any, ...]:
    """The arguments of `Posterior`; the model and the likelihood stay as they are."""
    tensors, facts = read_file(_FORMAT, path)
    prevalence = _prevalence_of(facts, path, prevalence)
    if likelihood is None and isinstance(prevalence, Prevalence):
        likelihood = Categorical(prevalence.num_classes)
    own = _likelihood_facts(likelihood, prevalence)
    if likelihood is None or facts["likelihood"] != own:
        raise ValueError(
            f"Expected the likelihood that the posterior was saved with, {facts['likelihood']}, but got {own}: "
            "pass `likelihood=…` to load."
        )
    check_pair(likelihood, prevalence)
    layout, weights = _layout_of(facts, path), Net(model, likelihood).own()
    check_weights(layout, weights)
    device = first_float(model, torch.empty(0)).device
    distribution = saved_distribution(facts["distribution"], _under("distribution.", tensors, device))
    rest = _under("rest.", tensors, device)
    check_fit(rest, {name: value for name, value in weights.items() if name not in layout.names})
    how = facts["dropout"], facts["record"], facts["linearised"]
    return model, prevalence, likelihood, distribution, layout, rest, *how


def _prevalence_of(facts: Mapping[str, Any], path: str | Path, given: Any) -> Prevalence | ContinuousPrevalence:
    if facts["population"] is not None and given is None:
        return saved_prevalence(facts, path)
    if facts["population"] is None and isinstance(given, ContinuousPrevalence):
        return given
    wanted = "no `prevalence` for classes" if given is not None else "`prevalence`, a ContinuousPrevalence, for a density"
    raise ValueError(
        f"Expected {wanted}, but got {type(given).__name__}: the file has that of classes, and cannot have a density's."
    )


def _layout_of(facts: Mapping[str, Any], path: str | Path) -> Layout:
    names, shapes = facts["names"], facts["shapes"]
    fine = isinstance(names, list) and isinstance(shapes, list) and len(names) == len(shapes)
    fine = fine and all(isinstance(name, str) for name in names)
    fine = fine and all(isinstance(shape, list) and all(type(each) is int for each in shape) for shape in shapes)
    fine = fine and all(isinstance(facts[name], bool) for name in ("dropout", "linearised"))
    if not fine or not isinstance(facts["record"], dict):
        raise ValueError(f"Expected {path} to name the weights and their shapes, but it does not: save the posterior again.")
    return Layout(tuple(names), tuple(tuple(shape) for shape in shapes))


def _likelihood_facts(likelihood: Likelihood | None, prevalence: Any) -> dict[str, Any]:
    if isinstance(prevalence, Prevalence):
        return {"name": type(likelihood).__name__, "levels": prevalence.num_classes}
    return {"name": type(likelihood).__name__, "outputs": None if likelihood is None else likelihood.num_outputs}


def _under(prefix: str, tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value.to(device) for name, value in tensors.items() if name.startswith(prefix)}


def _is_json(name: Any, value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return isinstance(name, str)
