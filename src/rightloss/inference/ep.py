"""Expectation propagation: a Gaussian over the weights of a linear model, or of a net's last layer.

Stage: `LogPosterior`, data → `Posterior` with a `DenseGaussian`. Only the last linear layer is random: its inputs are features
h `(n, p)` with outputs W h, where the bias is W's last column and h ends in 1. The factors of the examples and of the classes
have a Gaussian site each, `ep_sites`.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..arrays import checked_int
from ..prevalence import Prevalence
from ..tensors import own_random
from .diagnostics import judge_gaussian
from .distributions import DenseGaussian, Diverged, Layout
from .ep_sites import ExampleSites, GaussianMoments, MarginalSites, NaturalParameters, Sites, normal_points, output_table
from .fisher import loss_mix
from .map import map_estimate
from .minibatches import Data, Device, Pair, steps_of
from .posterior import Posterior, posterior_of
from .prediction import JointModel
from .priors import Params, positive_number
from .target import LogPosterior, inference_method

_HALVINGS = 12  # factor of a step that does not give a Gaussian
_START = 100  # steps towards the mode
_LEAST = 1e-2  # the smallest power
_ROWS = 4096  # examples per call of the model
_NOTHING = 1e-12  # relative to all examples: smaller exponents are rounding


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
    if not isinstance(target.prevalence, Prevalence):
        raise ValueError("Expected classes for expectation propagation, but got a density: use laplace, variational or sghmc.")
    if target.exact:
        raise ValueError(
            'Expected no evidence="exact" for expectation propagation, but got it: the likelihood is then no product of '
            "factors of the rows and the classes; use laplace or nuts."
        )
    batches = target.minibatches(data, None, device=device)
    target = target.with_data(batches.num_data, batches.few)
    net = _settled(target, data, layer, mode, seed, device, progress)
    head = head_of(net.model, layer, target.parameters())
    fixed = {name: value.clone() for name, value in net.own().items() if name not in head.names}

    def found(q: GaussianMoments, record: Mapping[str, Any]) -> Posterior:
        return posterior_of(target, head.gaussian(q), head.layout, fixed, record=record)

    with torch.no_grad():
        with own_random(seed):
            natural = head.prior(target, net.own())
            sites = sites_of(target, net, head, batches.whole(), draws, seed)
        steps = steps_of(iterations, "EP", progress)
        result = _propagated(natural, sites, power, damping, steps, tolerance, found)
    judge_gaussian(result, target, batches.whole())
    return result


def _propagated(
    natural: NaturalParameters,
    sites: list[Sites],
    power: float,
    damping: float,
    steps: Iterator[int],
    tolerance: float,
    found: Callable[[GaussianMoments, Mapping[str, Any]], Posterior],
) -> Posterior:
    natural, q = _at_mode(natural, sites)
    change, done, since = float("inf"), 0, 0
    for step in steps:
        before, moved = q, _moved(natural, q, sites, power, damping)
        if moved is None:
            if power < _LEAST:
                raise Diverged(
                    f"Expected the product of the sites to be a Gaussian, but iteration {step} gave none: lower `damping` or "
                    "`power`, scale the inputs, or give a narrower prior, above all to the bias; the last good result is this "
                    "error's `.posterior`.",
                    step,
                    found(q, {"iterations": step, "converged": False, "change": change, "power": power}),
                )
            change = float("inf")
        else:
            natural, q, share = moved
            change = _distance(before, q) / share
        done, since = step + 1, since + 1
        if change < tolerance:
            break
        if moved is None or (since > 10 and change > 1 and power >= _LEAST):
            power, since = power / 4, 0
    if change >= tolerance:
        warnings.warn(
            f"Expectation propagation still changes by {change:.1g} standard deviations after {done} iterations: "
            "give it more `iterations`, or a lower `power` or `damping` if the changes do not shrink.",
            stacklevel=4,
        )
    return found(q, {"iterations": done, "converged": change < tolerance, "change": change, "power": power})


def _at_mode(natural: NaturalParameters, sites: list[Sites]) -> tuple[NaturalParameters, GaussianMoments]:
    """Return the start, at the posterior's mode; from a wide prior, sites may diverge."""
    q = natural.moments()
    assert q is not None
    for _ in range(_START):
        before, moved = q, _moved(natural, q, sites, 0.0, 1.0)
        if moved is None:
            break
        natural, q, share = moved
        if _distance(before, q) / share < 0.01:
            break
    return natural, q


def _moved(
    natural: NaturalParameters, q: GaussianMoments, sites: list[Sites], power: float, step: float
) -> tuple[NaturalParameters, GaussianMoments, float] | None:
    """Return the product after a fraction `step` of the sites' changes (halved while it is too far), and that fraction.

    All sites are updated together, because those of examples and marginal nearly cancel in the intercept.
    """
    changes = [each.change(q, power) for each in sites]
    over_weights = [each.over_weights(change) for each, change in zip(sites, changes, strict=True)]
    for _ in range(_HALVINGS):
        new = natural
        for each in over_weights:
            new = new.plus(each, step)
        moments = new.moments()
        if moments is not None and _near(q, moments):
            for own, change in zip([each.own for each in sites], changes, strict=True):
                own.precision.add_(change.precision, alpha=step)
                own.shift.add_(change.shift, alpha=step)
            return new, moments, step
        step /= 2
    return None


def _near(old: GaussianMoments, new: GaussianMoments) -> bool:
    """Return whether no mean has moved by more than three standard deviations, and none of these has doubled."""
    deviation, mean = old.covariance.diagonal().sqrt(), (new.mean - old.mean).abs()
    return bool((mean <= 3 * deviation).all()) and bool((new.covariance.diagonal().sqrt() <= 2 * deviation).all())


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


def sites_of(target: LogPosterior, net: JointModel, head: Head, data: Pair, draws: int, seed: int) -> list[Sites]:
    """Return flat sites of the factors besides the prior: of the examples, and of the information gain's marginal."""
    target = target.on(data[0].device)
    features, votes = _examples(target, net, head, *data, target.unlabelled)
    assert votes is not None
    setting, likelihood = target.terms(features), copy.deepcopy(net.likelihood)
    likelihood = likelihood.double() if isinstance(likelihood, nn.Module) else likelihood
    log_offset, importance = loss_mix(target, setting)
    sampled = None if target.unlabelled is None else target.class_terms(features).sampling > 0
    table = output_table(likelihood, log_offset, sampled)
    assert target.num_data is not None
    total = target.num_data * (1 + target.unlabelled_mass)
    outputs, weights = head.module.out_features, head.layout.size
    exponents = total / votes.sum() * votes
    points, flat = normal_points(outputs, draws, seed).to(features.device), _flat(features, len(features), outputs)
    sites = ExampleSites(features, exponents * importance, table, points, flat)
    of_marginal = -exponents.sum(0) if setting.of_marginal is None else -total * setting.of_marginal
    if not target.gains or bool((of_marginal.abs() <= _NOTHING * total).all()):  # with κ = 1 at the sampled mix they cancel
        return [sites]
    pool, of_pool = (features, votes) if target.pool is None else _examples(target, net, head, *target.pool)
    beta = pool.new_ones(len(pool)) if of_pool is None else of_pool @ (setting.reference / setting.sampling)
    log_weights = (beta / (len(pool) if of_pool is None else of_pool.sum())).log()
    points = normal_points(weights, draws, seed).to(features.device)
    own = _flat(features, len(of_marginal), weights)
    return [sites, MarginalSites(pool, log_weights, of_marginal, table, points, own)]


def _examples(
    target: LogPosterior, net: JointModel, head: Head, x: Tensor, y: Tensor | None, others: Tensor | None = None
) -> tuple[Float[Tensor, "n p"], Float[Tensor, "n k"] | None]:
    """Return h_n and v_nk times the multiple of the row, without ignored rows; unlabelled rows `others` are last.

    Without labels there are no v.
    """
    features, outputs = head.features(net.model, x)
    if others is not None:
        features = torch.cat([features, head.features(net.model, others)[0]])
    labels = target.labels_of(outputs, y, len(features) - len(outputs))
    if y is None:
        return features, None
    votes = labels.counted_votes(features)
    used = votes.any(1)
    return features[used], votes[used]


def _flat(like: Tensor, *shape: int) -> NaturalParameters:
    """Return sites without information."""
    return NaturalParameters(like.new_zeros(*shape, shape[-1]), like.new_zeros(*shape))


@dataclass(frozen=True, eq=False)
class Head:
    """The model's last linear layer.

    Attributes:
        module: the layer.
        names: the names in the model of its weight and, if it has one, its bias.
    """

    module: nn.Linear
    names: tuple[str, ...]

    @property
    def layout(self) -> Layout:
        """Layout of its weights."""
        return Layout.of(dict(zip(self.names, self.module.parameters(), strict=True)))

    def order(self) -> Int[Tensor, " d"]:
        """Return the index of each element of the layout in the concatenated rows of W."""
        outputs, size = self.module.out_features, self.module.in_features
        if len(self.names) == 1:
            return torch.arange(outputs * size)
        places = torch.arange(outputs * (size + 1)).reshape(outputs, size + 1)
        return torch.cat([places[:, :size].flatten(), places[:, size]])

    def gaussian(self, q: GaussianMoments) -> DenseGaussian:
        """Return q in the order and the dtype of the layer's weights."""
        order, dtype = self.order().to(q.mean.device), self.module.weight.dtype
        factor = torch.linalg.cholesky(q.covariance[order][:, order])
        return DenseGaussian(q.mean[order].to(dtype), factor.to(dtype))

    @torch.no_grad()
    def features(self, model: nn.Module, x: Tensor) -> tuple[Float[Tensor, "n p"], Tensor]:
        """Return h in float64, and the model's outputs."""
        seen: list[tuple[Tensor, Tensor]] = []
        handle = self.module.register_forward_hook(lambda _, inputs, output: seen.append((inputs[0], output)))
        try:
            pieces = [model(part) for part in x.split(_ROWS)]
        finally:
            handle.remove()
        outputs = torch.cat(pieces)
        if not bool(torch.isfinite(outputs).all()):
            raise ValueError(
                "Expected finite outputs of the model, but some are not: look for NaN or infinity in x, or in its weights."
            )
        own = [output.flatten() for _, output in seen if output.ndim == 2]
        if len(own) != len(pieces) or not torch.equal(torch.cat(own), outputs.flatten()):
            raise ValueError(
                f"Expected the outputs of the linear layer {self.names[0]!r} to be the model's, a row for each example, but "
                "something comes after it, or it is called otherwise: name the last layer with `layer`, or use `laplace`."
            )
        features = torch.cat([inputs for inputs, _ in seen]).double()
        return features if len(self.names) == 1 else F.pad(features, (0, 1), value=1.0), outputs

    def prior(self, target: LogPosterior, values: Params) -> NaturalParameters:
        """Return the prior of this layer's weights, given all other weights; it must be Gaussian."""
        layout, order = self.layout, self.order().to(next(iter(values.values())).device)
        others = {name: value.double() for name, value in values.items() if value.is_floating_point()}

        def log_prior(w: Tensor) -> Tensor:
            return target.log_prior({**others, **layout.unflatten(w[order])})

        start = torch.zeros(layout.size, dtype=torch.float64, device=order.device)
        elsewhere = torch.linspace(-1.7, 1.3, layout.size).to(start)
        with torch.enable_grad():
            slope = torch.autograd.functional.jacobian(log_prior, start)
            bends = [torch.autograd.functional.hessian(log_prior, at) for at in (start, elsewhere)]
        constant = torch.allclose(bends[0], bends[1], rtol=1e-6, atol=1e-9)
        if not constant or int(torch.linalg.cholesky_ex(-bends[0])[1]):
            raise ValueError(
                "Expected a Gaussian prior of the linear layer's weights, but log p(w) is not quadratic with one peak: "
                "expectation propagation starts from it; use gaussian_prior or layer_prior, or nuts or laplace."
            )
        return NaturalParameters(-bends[0], slope)


def head_of(model: nn.Module, layer: str | None, trainable: Collection[str]) -> Head:
    """Return the layer of that name; for None the last linear one."""
    linear = {name: part for name, part in model.named_modules() if isinstance(part, nn.Linear)}
    if not linear or (layer is not None and layer not in linear):
        raise ValueError(
            f"Expected a model that ends in an nn.Linear, but got {list(linear)} as its linear layers for `layer` = {layer!r}: "
            "name one of them; models without one take laplace, variational, sghmc."
        )
    name = list(linear)[-1] if layer is None else layer
    names = tuple(f"{name}.{each}" if name else each for each, _ in linear[name].named_parameters())
    _check_own(model, linear[name], name)
    frozen = [each for each in names if each not in trainable]
    if frozen:
        raise ValueError(f"Expected the last layer's weights to be random, but {frozen} have no requires_grad: unfreeze them.")
    return Head(linear[name], names)


def _check_own(model: nn.Module, module: nn.Linear, name: str) -> None:
    """Raise a ValueError if the outputs are not W h with a W that only this layer uses."""
    own = {id(value) for value in module.parameters()}
    shared = sum(id(value) in own for _, value in model.named_parameters(remove_duplicate=False)) > len(own)
    if shared or {each for each, _ in module.named_parameters()} - {"weight", "bias"}:
        what = "others share its weights" if shared else "these are computed from others"
        raise ValueError(
            f"Expected the linear layer {name!r} to have a weight and a bias of its own, but {what}: take a plain nn.Linear, "
            "or use laplace, variational or sghmc."
        )


def _share(value: float, name: str) -> float:
    if positive_number(value, name) > 1:
        raise ValueError(f"Expected `{name}` to be at most 1, but got {value!r}: 1.0 is all of it.")
    return float(value)
