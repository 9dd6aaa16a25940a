"""The factors of the posterior, for a model in which only the last linear layer is random.

Stage: target, net, data → features h `(n, p)` with outputs W h, where the bias is W's last column and h ends in 1 → factors of
the examples and of the classes, each with a flat Gaussian site.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..likelihoods import Bernoulli, Categorical, Likelihood
from ..losses.gain import at_reference
from ..losses.streams import stream_columns
from .distributions import Layout
from .ep_sites import (
    ExampleSites,
    MarginalSites,
    MarginalTangents,
    NaturalParameters,
    OutputTable,
    Sites,
    normal_points,
)
from .fisher import loss_mix
from .prediction import JointModel
from .priors import Params
from .target import LogPosterior

SiteGroup = list[tuple[Sites, float]]

_ROWS = 4096  # examples per call of the model
_NOTHING = 1e-12  # relative to all examples: smaller exponents are rounding


@dataclass(frozen=True, eq=False)
class Factors:
    """Sites of the factors of the posterior besides the prior: the examples, and the information gain's marginal."""

    examples: ExampleSites
    marginal: MarginalSites | None

    def groups(self, size: int | None) -> Iterator[SiteGroup]:
        """Yield groups of sites to update together, each with the fraction of its change to apply.

        The marginal's sites are updated together with the examples', because they nearly cancel in the intercept.
        """
        parts = list(self.examples.parts(size))
        for part in parts:
            yield [(part, 1.0)] + ([] if self.marginal is None else [(self.marginal, 1 / len(parts))])

    def tangents(self) -> SiteGroup:
        """Return the same sites, to be updated only at the mean.

        Then the marginal's have no precision. So the product is always a Gaussian, and its mean converges to the mode.
        """
        group: SiteGroup = [(self.examples.at_mean(), 1.0)]
        return group + ([] if self.marginal is None else [(MarginalTangents(self.marginal), 1.0)])


def factors_of(
    target: LogPosterior, net: JointModel, head: Head, data: tuple[Tensor, Tensor], draws: int, seed: int
) -> Factors:
    """Return the factors of the data."""
    target = target.on(data[0].device)
    features, votes = _examples(target, net, head, *data, None if target.unlabelled is None else target.unlabelled.x)
    assert votes is not None
    order = torch.randperm(len(votes), generator=torch.Generator().manual_seed(seed)).to(votes.device)
    features, votes = features[order], votes[order]  # so that any part has the same mix of classes
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
        return Factors(sites, None)
    pool, of_pool = (features, votes) if target.pool is None else _examples(target, net, head, *target.pool)
    beta = pool.new_ones(len(pool)) if of_pool is None else of_pool @ (setting.reference / setting.sampling)
    log_weights = (beta / (len(pool) if of_pool is None else of_pool.sum())).log()
    points = normal_points(weights, draws, seed).to(features.device)
    own = _flat(features, len(of_marginal), weights)
    return Factors(sites, MarginalSites(pool, log_weights, of_marginal, table, points, own))


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

    @torch.no_grad()
    def features(self, model: nn.Module, x: Tensor) -> tuple[Float[Tensor, "n p"], Tensor]:
        """Return h in float64, and the model's outputs."""
        pieces = [self._piece(model, part) for part in x.split(_ROWS)]
        features = torch.cat([piece for piece, _ in pieces]).double()
        if len(self.names) > 1:
            features = torch.cat([features, features.new_ones(len(features), 1)], 1)
        return features, torch.cat([outputs for _, outputs in pieces])

    def _piece(self, model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        seen: list[tuple[Tensor, Tensor]] = []
        handle = self.module.register_forward_hook(lambda _, inputs, output: seen.append((inputs[0], output)))
        try:
            outputs: Tensor = model(x)
        finally:
            handle.remove()
        if not bool(torch.isfinite(outputs).all()):
            raise ValueError(
                "Expected finite outputs of the model, but some are not: look for NaN or infinity in x, or in its weights."
            )
        last = len(seen) == 1 and seen[0][1].ndim == 2 and seen[0][1].numel() == outputs.numel()
        if not last or not torch.equal(seen[0][1].flatten(), outputs.flatten()):
            raise ValueError(
                f"Expected the outputs of the linear layer {self.names[0]!r} to be the model's, a row for each example, but "
                "something comes after it, or it is called otherwise: name the last layer with `layer`, or use `laplace`."
            )
        return seen[0][0], outputs

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


def output_table(
    likelihood: Likelihood, log_offset: Float[Tensor, " k"] | None, sampled: Bool[Tensor, " c"] | None = None
) -> OutputTable:
    """Return the likelihood's table, moved to another mix by `log_offset`; closed forms for softmax and logistic.

    With unlabelled rows it is that of the streams: of the classes `sampled`, and of the unlabelled.
    """
    if sampled is not None:
        assert log_offset is not None
        return _Streams(output_table(likelihood, None), log_offset, sampled)
    if isinstance(likelihood, Categorical | Bernoulli):
        return _Softmax(log_offset, isinstance(likelihood, Bernoulli))
    return _AnyTable(likelihood, log_offset)


class _Softmax:
    """∇ log p_k = e_k − p, ∇² log p_k = p pᵀ − diag p. With a single output, `logistic`, that of class 0 is 0."""

    def __init__(self, log_offset: Tensor | None, logistic: bool) -> None:
        self.log_offset, self.fixed = log_offset, int(logistic)

    def log_probs(self, z: Tensor) -> Tensor:
        z = F.pad(z, (self.fixed, 0))
        return F.log_softmax(z if self.log_offset is None else z + self.log_offset, -1)

    def derivatives(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        log_p = self.log_probs(z)
        p, free = log_p.exp(), slice(self.fixed, None)
        gradients = torch.eye(p.shape[-1]).to(p) - p.unsqueeze(-2)
        hessians = p.unsqueeze(-1) * p.unsqueeze(-2) - torch.diag_embed(p)
        return log_p, gradients[..., free], hessians[..., free, free].unsqueeze(-3)


class _Streams:
    """t = log-softmax(log p + offset), with a column for the unlabelled that has no slope of its own, and derivatives by z:

    ∇t_k = g_k − ḡ and ∇²t_k = H_k − Σ_j t_j (H_j + g_j g_jᵀ) + ḡ ḡᵀ, with ḡ = Σ_j t_j g_j, g = ∇ log p, H = ∇² log p.
    """

    def __init__(self, table: OutputTable, log_offset: Tensor, sampled: Tensor) -> None:
        self.table, self.log_offset, self.sampled = table, log_offset, sampled

    def log_probs(self, z: Tensor) -> Tensor:
        return self._streams(self.table.log_probs(z))

    def derivatives(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        log_p, slopes, bends = self.table.derivatives(z)
        log_t = self._streams(log_p)
        slopes = F.pad(slopes[..., self.sampled, :], (0, 0, 0, 1))
        bends = F.pad(bends.expand(*log_p.shape, -1, -1)[..., self.sampled, :, :], (0, 0, 0, 0, 0, 1))
        t = log_t.exp()
        mean = torch.einsum("...k,...ka->...a", t, slopes)
        square = torch.einsum("...k,...ka,...kb->...ab", t, slopes, slopes) + torch.einsum("...k,...kab->...ab", t, bends)
        shift = mean.unsqueeze(-1) * mean.unsqueeze(-2) - square
        return log_t, slopes - mean.unsqueeze(-2), bends + shift.unsqueeze(-3)

    def _streams(self, log_p: Tensor) -> Tensor:
        return at_reference(stream_columns(log_p, self.sampled), self.log_offset)


class _AnyTable:
    """Any other likelihood, by automatic differentiation."""

    def __init__(self, likelihood: Likelihood, log_offset: Tensor | None) -> None:
        self.likelihood, self.log_offset = likelihood, log_offset

    def log_probs(self, z: Tensor) -> Tensor:
        return at_reference(self.likelihood.table(z.reshape(-1, z.shape[-1])), self.log_offset).reshape(*z.shape[:-1], -1)

    def derivatives(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            log_p = self.log_probs(z)
            gradients = [_by_row(column, z) for column in log_p.unbind(-1)]
            hessians = [torch.stack([_by_row(part, z) for part in each.unbind(-1)], -2) for each in gradients]
        return log_p.detach(), torch.stack(gradients, -2).detach(), torch.stack(hessians, -3).detach()


def _by_row(values: Float[Tensor, "*rows"], z: Float[Tensor, "*rows o"]) -> Float[Tensor, "*rows o"]:
    """Return gradients of values that depend only on their own row."""
    (found,) = torch.autograd.grad(values.sum(), z, create_graph=True, materialize_grads=True)
    return found
