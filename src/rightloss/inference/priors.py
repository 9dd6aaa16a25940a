"""Priors: weights → log p(w).

Stage: `{name: tensor}` → log-density, a number. A prior is any such function; the functions here make the usual ones. A
Gaussian prior of scale s is weight decay of 1/(N s²) per example.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from ..likelihoods import Likelihood
from ..tensors import tensor_of

LIKELIHOOD = "likelihood."  # prefix of the names of the likelihood's own parameters
Params = Mapping[str, Tensor]
Prior = Callable[[Params], Tensor]

_LOG_ROOT_2PI = 0.5 * math.log(2 * math.pi)


def gaussian_prior(
    scale: float | Mapping[str, float] = 1.0, centre: Mapping[str, ArrayLike | Tensor | float] | None = None
) -> Prior:
    """Return a prior of independent weights N(centre, scale²).

    Args:
        scale: s > 0; one for all, or one for each name, `{name: s}`.
        centre: the prior mean of each weight, by name; 0 by default. At a small prevalence give the output bias its starting
            value, because a prior around 0 assumes equal classes.

    Examples:
        >>> import torch
        >>> from rightloss.inference import gaussian_prior
        >>> log_prior = gaussian_prior(1.0, centre={"bias": [-2.0]})
        >>> log_prior({"weight": torch.zeros(1), "bias": torch.tensor([-2.0])})  # −log 2π
        tensor(-1.8379)
    """
    scales, centres = _checked_scales(scale), _centres(centre)

    def log_prior(params: Params) -> Tensor:
        standard, log_scales = [], 0.0
        for name, value in params.items():
            s = _scale_of(scales, name)
            standard.append((_away(value, centres.get(name), name) / s).flatten())
            log_scales += value.numel() * (math.log(s) + _LOG_ROOT_2PI)
        return -0.5 * torch.cat(standard).square().sum() - log_scales

    return log_prior


def layer_prior(model: nn.Module, scale: float | Mapping[str, float] = 1.0, likelihood: Likelihood | None = None) -> Prior:
    """Return the default prior: Gaussian by layer, scaled so that signals keep their size.

    A weight with `fan_in` inputs is N(0, scale²/fan_in), an embedding N(0, scale²). Weights with at most one dimension (biases,
    factors of a normalisation) are N(current value, scale²). So an output bias set by `start_at_prevalence` is kept, within
    `scale` in log-odds.

    Args:
        model: the model with the weights, at their current values.
        scale: the scale of the prior; one for all, or one for each name, `{name: s}`. `optimize_prior` chooses it.
        likelihood: its own parameters, if any, are weights as well; cutpoints are treated as biases.

    Examples:
        >>> import torch
        >>> from rightloss.inference import layer_prior
        >>> model = torch.nn.Linear(100, 2)
        >>> at_present = {name: value.detach() for name, value in model.named_parameters()}
        >>> farther = {**at_present, "bias": at_present["bias"] + 1}
        >>> log_prior = layer_prior(model)
        >>> round(float(log_prior(at_present) - log_prior(farther)), 3)  # ½ for each bias that is 1 away
        1.0
    """
    given = _checked_scales(scale)
    scales, centre = {}, {}
    own = likelihood.named_parameters(prefix=LIKELIHOOD[:-1]) if isinstance(likelihood, nn.Module) else ()
    looked_up = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding | nn.EmbeddingBag)}
    for name, value in (*model.named_parameters(), *own):
        if isinstance(given, dict) and name not in given:
            continue  # a frozen weight; a trainable one is refused below
        fan_in = value[0].numel() if value.ndim > 1 and len(value) and id(value) not in looked_up else 1
        scales[name] = _scale_of(given, name) / math.sqrt(max(fan_in, 1))
        if value.ndim < 2:
            centre[name] = value
    by_name = gaussian_prior(scales, centre)
    others = gaussian_prior(given)

    def log_prior(params: Params) -> Tensor:
        own = {name: value for name, value in params.items() if name in scales}
        rest = {name: value for name, value in params.items() if name not in scales}
        return by_name(own) + others(rest) if own and rest else by_name(own) if own else others(rest)

    return log_prior


def horseshoe_prior(
    scale: float = 1.0, centre: Mapping[str, ArrayLike | Tensor | float] | None = None, slab: float | None = None
) -> Prior:
    """Return a horseshoe prior: most weights near 0 and some large, with local scales integrated out.

    w = λ τ z with z standard normal and λ half-Cauchy has no density in closed form, but tight bounds (Carvalho et al. 2010).
    The upper bound is `∝ log(1 + 2 τ²/w²)`, with the same pole at 0 and the same tails, 1/w². This prior is the normalised
    upper
    bound: `p(w) = log(1 + 2 τ²/w²) / (2√2 π τ)`.

    Args:
        scale: τ > 0, the size from which a weight is large.
        centre: the prior mean of each weight, by name; 0 by default.
        slab: the scale of a Gaussian that limits large weights (the regularised horseshoe); None for none. The product of the
            two is not normalised.

    Examples:
        >>> import torch
        >>> from rightloss.inference import horseshoe_prior
        >>> log_prior = horseshoe_prior(0.1)
        >>> [round(float(log_prior({"weight": torch.tensor([w])})), 2) for w in (0.01, 1.0)]
        [1.79, -3.8]
    """
    tau, centres = positive_number(scale, "scale"), _centres(centre)
    held = None if slab is None else gaussian_prior(positive_number(slab, "slab"), centre)

    def log_prior(params: Params) -> Tensor:
        terms = []
        for name, value in params.items():
            away = _away(value, centres.get(name), name)
            # the pole at 0 is integrable, but its gradient is not finite
            square = (away / tau).square().clamp_min(torch.finfo(value.dtype).eps)
            terms.append((torch.log1p(2 / square).log() - math.log(2 * math.sqrt(2) * math.pi * tau)).sum())
        total = torch.stack(terms).sum()
        return total if held is None else total + held(params)

    return log_prior


def _centres(centre: Mapping[str, ArrayLike | Tensor | float] | None) -> dict[str, Tensor]:
    return {name: tensor_of(value, name).detach().clone() for name, value in (centre or {}).items()}


def _away(value: Tensor, centre: Tensor | None, name: str) -> Tensor:
    """Return the distance of the weight from its prior mean."""
    if centre is None:
        return value
    try:
        return value - centre.to(value).expand(value.shape)
    except RuntimeError as error:
        raise ValueError(
            f"Expected the centre of {name!r} to be of shape {tuple(value.shape)}, but got {tuple(centre.shape)}: reshape it."
        ) from error


def _checked_scales(scale: float | Mapping[str, float]) -> float | dict[str, float]:
    if isinstance(scale, Mapping):
        return {name: positive_number(each, "scale") for name, each in scale.items()}
    return positive_number(scale, "scale")


def positive_number(value: Any, name: str) -> float:
    """Return `value` as a float, or raise a ValueError if it is not a positive, finite number."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < math.inf:
        raise ValueError(f"Expected `{name}` to be positive and finite, but got {value!r}: choose a number above 0.")
    return float(value)


def _scale_of(scales: float | dict[str, float], name: str) -> float:
    if isinstance(scales, float):
        return scales
    if name not in scales:
        raise ValueError(f"Expected a scale for every weight, but {name!r} has none among {list(scales)[:10]}: add it.")
    return scales[name]
