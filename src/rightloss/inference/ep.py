"""Expectation propagation: a Gaussian over the weights of a linear model, or of a net's last layer.

Stage: `LogPosterior`, data → `Posterior` with a `DenseGaussian`.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..arrays import checked_int
from ..prevalence import Prevalence
from ..tensors import own_random
from .diagnostics import judge_gaussian
from .distributions import DenseGaussian, Diverged
from .ep_factors import Factors, Head, SiteGroup, factors_of, head_of
from .ep_sites import GaussianMoments, NaturalParameters
from .map import map_estimate
from .minibatches import Data, Device, Minibatches, steps_of
from .posterior import Posterior, posterior_of
from .prediction import JointModel
from .priors import Params, positive_number
from .target import LogPosterior, inference_method

_HALVINGS = 12  # factor of a step that does not give a Gaussian
_START = 100  # steps towards the mode
_LEAST = 1e-2  # the smallest power
_POINT = 1e-6  # the power for tangents


@inference_method
def expectation_propagation(
    target: LogPosterior,
    data: Data,
    *,
    layer: str | None = None,
    mode: Posterior | Params | None = None,
    power: float = 1.0,
    damping: float = 0.5,
    iterations: int = 200,
    tolerance: float = 1e-3,
    draws: int = 512,
    batch_size: int | None = None,
    seed: int = 0,
    device: Device = None,
    progress: bool | None = None,
) -> Posterior:
    """Return a Gaussian posterior by expectation propagation: its mean and covariance match each factor of the posterior.

        p(w|X,Y) ∝ p(w) Π_n p_r(y_n|x_n,w) Π_k p_r(k|w)^(−N_k + N κ r_k)

    Each factor except the prior, which must be Gaussian, is approximated by a Gaussian site. Each site in turn is removed from
    the product and updated, so that site and factor give the same mean and covariance. An example's factor depends on few
    numbers, its outputs, and is integrated by quadrature. A class's p_r(k|w)^(−N_k) depends on all of w and is far from
    Gaussian: it is treated as N_k equal factors with one common site, and integrated by quasi-random draws. Its site has a
    negative precision, because it removes the information about the intercept that is due to the labels' mix.

    Args:
        target: from `log_posterior`. p_r(k|w) is exact over its pool, or else over the training data, for any marginal.
        data: `(x, y)`, a Dataset or a DataLoader, which is read once.
        layer: name of the linear output layer; None for the last one.
        mode: values of all other weights: a `Posterior` from `map_estimate`, or weights by name, such as the current ones,
            `target.parameters()`. None to call `map_estimate(target, data)`, if there are other weights.
        power: α of power EP: 1 is EP, and close to 0 the result is that of variational inference. If the data hardly determine
            the intercept, or a hyperplane separates the classes, EP may not converge. Then α is divided by four, repeatedly if
            necessary; standard deviations may then be too small, as in variational inference.
        damping: the fraction of a site's change to apply.
        iterations: maximum number of sweeps; each updates all sites once.
        tolerance: stop when no mean changes by more, in standard deviations, and no log standard deviation.
        draws: number of draws of the weights, for the marginal, and of the outputs, for the examples; with up to three
            dimensions, quadrature is used instead.
        batch_size: number of examples to update together; None for all. The result is the same.
        seed: seed of the draws, and of `map_estimate`.
        device: where to compute, in float64; None: where model and data are.
        progress: whether to show a progress bar; None for only on a terminal.

    Returns:
        `DenseGaussian` over the layer's weights; its `record` has `iterations`, `converged`, the last `change`, and the final
        `power`.

    Raises:
        Diverged: if no step gives a Gaussian; the error has the last good `.posterior`.

    Examples:
        >>> import torch, rightloss as rl
        >>> y = torch.arange(100) % 2
        >>> x = torch.randn(100, 1, generator=torch.Generator().manual_seed(0)) + y[:, None]
        >>> target = rl.inference.log_posterior(torch.nn.Linear(1, 2), rl.Prevalence.binary(population=0.1))
        >>> posterior = rl.inference.expectation_propagation(target, (x, y))
        >>> posterior.record["converged"]
        True
    """
    power, damping, tolerance = _share(power, "power"), _share(damping, "damping"), positive_number(tolerance, "tolerance")
    iterations, draws = checked_int(iterations, "iterations", 1), checked_int(draws, "draws", 1)
    size = None if batch_size is None else checked_int(batch_size, "batch_size", 1)
    if not isinstance(target.prevalence, Prevalence):
        raise ValueError("Expected classes for expectation propagation, but got a density: use laplace, variational or sghmc.")
    if target.exact:
        raise ValueError(
            'Expected no evidence="exact" for expectation propagation, but got it: the likelihood is then no product of '
            "factors of the rows and the classes; use laplace or nuts."
        )
    batches = Minibatches(data, None, device=device, prevalence=target.prevalence, like=target.model)
    target = target.with_data(batches.num_data, batches.few)
    net = _settled(target, data, layer, mode, seed, device, progress)
    head = head_of(net.model, layer, target.parameters())
    fixed = {name: value.clone() for name, value in net.own().items() if name not in head.names}
    with torch.no_grad(), own_random(seed):
        natural = head.prior(target, net.own())
        factors = factors_of(target, net, head, batches.whole(), draws, seed)

    def found(q: GaussianMoments, record: Mapping[str, Any]) -> Posterior:
        return posterior_of(target, _gaussian(q, head), head.layout, fixed, record=record)

    with torch.no_grad():
        result = _propagated(natural, factors, size, power, damping, iterations, tolerance, progress, found)
    judge_gaussian(result, target, batches.whole())
    return result


def _propagated(
    natural: NaturalParameters,
    factors: Factors,
    size: int | None,
    power: float,
    damping: float,
    iterations: int,
    tolerance: float,
    progress: bool | None,
    found: Callable[[GaussianMoments, Mapping[str, Any]], Posterior],
) -> Posterior:
    natural, q = _at_mode(natural, factors)
    change, done, since = float("inf"), 0, 0
    for step in steps_of(iterations, "EP", progress):
        before = q
        natural, q, least = _sweep(natural, q, factors, size, power, damping)
        sound = least > 0
        if not sound and power < _LEAST:
            raise _no_gaussian(step, found(q, {"iterations": step, "converged": False, "change": change, "power": power}))
        change, done, since = _distance(before, q) / least if sound else float("inf"), step + 1, since + 1
        if change < tolerance:
            break
        if not sound or (since > 10 and change > 1 and power >= _LEAST):
            power, since = power / 4, 0
    if change >= tolerance:
        warnings.warn(
            f"Expectation propagation still changes by {change:.1g} standard deviations after {iterations} iterations: "
            "give it more `iterations`, or a lower `power` or `damping` if the changes do not shrink.",
            stacklevel=4,
        )
    return found(q, {"iterations": done, "converged": change < tolerance, "change": change, "power": power})


def _sweep(
    natural: NaturalParameters, q: GaussianMoments, factors: Factors, size: int | None, power: float, damping: float
) -> tuple[NaturalParameters, GaussianMoments, float]:
    """Return the product after one sweep over all sites, and the smallest applied fraction of a change; 0 if none was."""
    least = damping
    for group in factors.groups(size):
        moved = _moved(natural, q, group, power, damping)
        if moved is None:
            return natural, q, 0.0
        natural, q = moved[:2]
        least = min(least, moved[2])
    return natural, q, least


def _at_mode(natural: NaturalParameters, factors: Factors) -> tuple[NaturalParameters, GaussianMoments]:
    """Return the start, at the posterior's mode; from a wide prior, sites may diverge."""
    q = natural.moments()
    assert q is not None
    for _ in range(_START):
        before, moved = q, _moved(natural, q, factors.tangents(), _POINT, 1.0)
        if moved is None:
            break
        natural, q, share = moved
        if _distance(before, q) / share < 0.01:
            break
    return natural, q


def _moved(
    natural: NaturalParameters, q: GaussianMoments, group: SiteGroup, power: float, step: float
) -> tuple[NaturalParameters, GaussianMoments, float] | None:
    """Return the product after a fraction `step` of the sites' changes (halved while it is too far), and that fraction."""
    changes = [sites.change(q, power).times(share) for sites, share in group]
    over_weights = [sites.over_weights(change) for (sites, _), change in zip(group, changes, strict=True)]
    for _ in range(_HALVINGS):
        new = natural
        for each in over_weights:
            new = new.plus(each, step)
        moments = new.moments()
        if moments is not None and _near(q, moments):
            for (sites, _), change in zip(group, changes, strict=True):
                sites.own.precision.add_(change.precision, alpha=step)
                sites.own.shift.add_(change.shift, alpha=step)
            return new, moments, step
        step /= 2
    return None


def _near(old: GaussianMoments, new: GaussianMoments) -> bool:
    """Return whether no mean has moved by more than three standard deviations, and none of these has doubled."""
    deviation, mean = old.covariance.diagonal().sqrt(), (new.mean - old.mean).abs()
    return bool((mean <= 3 * deviation).all()) and bool((new.covariance.diagonal().sqrt() <= 2 * deviation).all())


def _no_gaussian(step: int, last_good: Posterior) -> Diverged:
    return Diverged(
        f"Expected the product of the sites to be a Gaussian, but iteration {step} gave none: lower `damping` or `power`, "
        "scale the inputs, or give a narrower prior, above all to the bias; the last good result is this error's "
        "`.posterior`.",
        step,
        last_good,
    )


def _distance(one: GaussianMoments, other: GaussianMoments) -> float:
    """Return the largest change of a mean in standard deviations, or of a log standard deviation."""
    variance, new = one.covariance.diagonal(), other.covariance.diagonal()
    means = (other.mean - one.mean).abs() / new.sqrt()
    return float(torch.maximum(means, (new / variance).log().abs() / 2).max())


def _settled(
    target: LogPosterior,
    data: Data,
    layer: str | None,
    mode: Posterior | Params | None,
    seed: int,
    device: Device,
    progress: bool | None,
) -> JointModel:
    """Return a copy of model and likelihood, in eval mode, with all other weights at the mode."""
    head = head_of(target.model, layer, target.parameters())
    if mode is None and any(name not in head.names for name in target.parameters()):
        mode = map_estimate(target, data, seed=seed, device=device, progress=progress)
    source = mode if isinstance(mode, Posterior) else target
    net = JointModel(*copy.deepcopy((source.model, source.likelihood))).eval()
    if mode is not None and source is target:
        if not isinstance(mode, Mapping):
            raise ValueError(
                f"Expected `mode` to be a Posterior or weights by name, but got {type(mode).__name__}: map_estimate."
            )
        net.put(mode)
    return net if device is None else net.to(device)


def _gaussian(q: GaussianMoments, head: Head) -> DenseGaussian:
    """Return q in the order and the dtype of the layer's weights."""
    order, dtype = head.order().to(q.mean.device), head.module.weight.dtype
    factor = torch.linalg.cholesky(q.covariance[order][:, order])
    return DenseGaussian(q.mean[order].to(dtype), factor.to(dtype))


def _share(value: float, name: str) -> float:
    if positive_number(value, name) > 1:
        raise ValueError(f"Expected `{name}` to be at most 1, but got {value!r}: 1.0 is all of it.")
    return float(value)
