"""Laplace's approximation: a Gaussian at the mode, with the curvature of the log posterior there.

Stage: `LogPosterior`, data → the log posterior to second order (`Expansion`) → `Posterior` with a `DenseGaussian` or
`DiagonalGaussian`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ..arrays import checked_choice
from ..prevalence import Prevalence
from ..tensors import in_mode, own_random
from .distributions import DenseGaussian, DiagonalGaussian, Distribution, Layout, Particles, check_finite
from .fisher import DataLikelihood, LikelihoodTerms, SecondOrder, fisher_information, hessian, prior_hessian
from .map import Search, most_probable, on_device, one_draw
from .minibatches import Data, Device, Pair
from .posterior import Posterior, posterior_of
from .prediction import JointModel, check_given
from .priors import Params
from .target import LIKELIHOOD, LogPosterior, inference_method

_LARGEST = 20_000  # maximum number of weights for a full covariance: 3 GB
_SEARCHED = "found by a search"
_NEWTON = 300  # maximum number of weights for a search by Newton's method, which needs about ten Hessians
_NEARER = 0.05  # at most this fraction of the Gaussian's draws may be closer to the peak than weights that are near it
_DEVIATIONS = 2.0  # posterior standard deviations by which a Newton step may change log p(k|w)
# Nats by which these weights must predict better than a constant. If x had no information about y, weights independent of the
# labels would reach log 20 with a probability of at most 1/20, because the mean of a likelihood ratio is 1.
_GAINED = 3.0
_TIMES = 4.0  # relative to the nats that a Newton step would add
_SINGULAR = 1e-10  # a smaller pivot of a matrix with unit diagonal counts as 0 in float64


@inference_method
def laplace(
    target: LogPosterior,
    data: Data,
    *,
    covariance: Literal["full", "diagonal", "last-layer"] = "full",
    curvature: Literal["hessian", "fisher"] | None = None,
    layer: str | None = None,
    mode: Literal["model", "search"] | Posterior | Params | None = None,
    linearised: bool | None = None,
    steps: int = 1000,
    batch_size: int | None = None,
    lr: float = 1e-2,
    seed: int = 0,
    device: Device = None,
    progress: bool | None = None,
) -> Posterior:
    """Return the Gaussian approximation N(ŵ, H⁻¹) of the posterior, with the mode ŵ and the curvature H of −log p(w|X,Y) there.

    p(y|w) is computed exactly, over `target.pool` or else over the training data, and in float64. The marginal of one example,
    or of a minibatch, follows the prediction, and the curvature would be too small.

    Weights are near a mode if H is positive definite there, and the Newton step from them, H⁻¹g with the gradient g, is short
    by three scale-free criteria:

    - It gains only ½ gᵀH⁻¹g nats, so that at least 95 % of the Gaussian's own draws are further below the peak (χ² with as
      many degrees of freedom as weights). That is half a standard deviation for each of 6 weights, and nearly one for each of
      thousands.
    - It changes no class's log p(k|w) by more than two posterior standard deviations. Among many weights, a single wrong
      intercept, as after training with plain cross-entropy, would otherwise not be noticed.
    - The log-likelihood is above that of the best constant predictions by 3 nats or more, and by at least 4 times the expected
      gain of the step in the log posterior, or, with the likelihood's own g, as after training without a prior, in the
      log-likelihood. With few data, random weights may pass the other two.

    Args:
        target: from `log_posterior`, over classes.
        data: `(x, y)`, a Dataset or a DataLoader.
        covariance: "full" (small models); "diagonal"; or "last-layer", full over the last layer (and the likelihood's own
            parameters), with all other weights fixed at the mode.
        curvature: "hessian" for the exact second derivatives, best for linear models at their mode; with hidden layers they are
            rarely positive definite. "fisher" for the Fisher information, which is never negative and also a Gauss–Newton
            matrix, so it is valid at any weights of any network. None for the Hessian, if the inferred weights are those of one
            layer and it is positive definite, else "fisher".
        layer: the module of "last-layer"; None for the last one with trainable parameters.
        mode: where to expand. "model" for the model's current weights. "search" to search from there: by Newton's method for
            one layer of at most 300 weights and without `batch_size`, else by `map_estimate`, with the arguments below. Or a
            result of `map_estimate`, or weights by name. None for "model" if the weights are near a mode, as after training,
            else "search".
        linearised: whether to predict with the model linearised in the weights around the mode. The Gauss–Newton curvature is
            that of the linearised model; the network itself predicts worse at weights so far from the mode (Immer et al.,
            2021). None for True with "fisher", if torch supports forward-mode derivatives of the model.
        steps: number of optimiser steps of the search.
        batch_size: examples per step of the search. None for all data, followed by a search for the exact mode.
        lr: initial learning rate of the search.
        seed: seed of the order of its data.
        device: the device to compute on; None for that of the model and the data.
        progress: whether to show a progress bar; None for only on a terminal.

    Returns:
        A posterior with a `record`: the `mode`, which is "the model's own weights", "found by a search" or "as given";
        `log_evidence`, Laplace's estimate of log ∫ p(w) p(Y|X,w) dw, by which `optimize_prior` chooses; `decrement`, ½ gᵀH⁻¹g,
        the distance of the log posterior from its peak; the `curvature` used; and `repaired`. If H is not positive definite (a
        warning says so), curvatures below the prior's are set to the prior's, and `repaired` is their number.

    Examples:
        >>> import torch, rightloss as rl
        >>> y = torch.arange(100) % 2
        >>> x = torch.randn(100, 1, generator=torch.Generator().manual_seed(0)) + y[:, None]
        >>> target = rl.inference.log_posterior(torch.nn.Linear(1, 2), rl.Prevalence.binary(population=0.1))
        >>> posterior = rl.inference.laplace(target, (x, y))
        >>> posterior.record["mode"], posterior.record["curvature"]
        ('found by a search', 'hessian')
    """
    search = Search(steps, batch_size, lr, seed, device, progress)
    return laplace_from(target, data, None, covariance, curvature, layer, mode, linearised, search)


def laplace_from(
    target: LogPosterior,
    data: Data,
    start: Params | None,
    covariance: str,
    curvature: str | None,
    layer: str | None,
    mode: str | Posterior | Params | None,
    linearised: bool | None,
    search: Search,
) -> Posterior:
    """Run `laplace`; Newton's method starts from the weights `start`, or, if None, from those of the model."""
    _check(target, covariance, curvature, layer, mode, linearised)
    device = search.device
    with own_random(search.seed) as generator:
        whole = target.minibatches(data, None, generator, device)
        target = target.with_data(whole.num_data, whole.few)
        names = _inferred(target, covariance, layer)
        expand = _Expander(target, whole.whole(), names, covariance == "diagonal", curvature, device)
        given = mode if isinstance(mode, Posterior | Mapping) else None
        here = None if mode == "search" else expand(target.parameters() if given is None else given)
        if here is not None and mode is None and not here.is_near():
            here = None  # before the second one, because it may be large
        where = _SEARCHED if here is None else "the model's own weights" if given is None else "as given"
        if here is None and search.batch_size is None and covariance == "full":
            here = _newton(expand, start)
        if here is None:
            here = expand(most_probable(target, data, search, one_draw(), polish=True))
        with in_mode(target.model, False):
            found = here.posterior(where, linearised)
    if where == _SEARCHED and found.record["decrement"] > 0.5 * found.layout.size:
        warnings.warn(
            f"The log posterior is {found.record['decrement']:.3g} nats below its peak where the search ended, further than "
            f"draws of its {found.layout.size} weights are on average: the Gaussian is in the wrong place. Raise `steps`.",
            stacklevel=4,
        )
    return found


def gaussian_of_layer(target: LogPosterior, batch: Pair, device: Device) -> Posterior | None:
    """Return Laplace's approximation at the mode by Newton's method; None if the weights are not those of one small layer."""
    found = _newton(_Expander(target, batch, tuple(target.parameters()), False, "hessian", device))
    return None if found is None else found.posterior(_SEARCHED, False)


class _Expander:
    """Weights → the log posterior to second order there, in float64 if the model supports it.

    Args:
        target: from `log_posterior`, with `num_data`.
        data: x and y.
        names: of the inferred weights.
        diagonal: whether to compute only the diagonal of second derivatives.
        curvature: their kind; None for the Hessian of one layer where it is positive definite, else "fisher".
        device: the device of the weights.
    """

    def __init__(
        self, target: LogPosterior, data: Pair, names: tuple[str, ...], diagonal: bool, curvature: str | None, device: Device
    ) -> None:
        self.target, self.data, self.diagonal, self.curvature, self.device = target, data, diagonal, curvature, device
        self.layout = Layout.of({name: value for name, value in target.parameters().items() if name in names})
        self.wide = _wide
        target = target.on(data[0].device)
        state = self._state(target.parameters())
        with in_mode(target.model, False):
            try:
                with torch.no_grad():
                    target.outputs({name: _wide(value) for name, value in state.items()}, _wide(data[0][:1]))
                self.rows, self.inside = target.with_rows(_wide), (_wide(data[0]), data[1])
            except (RuntimeError, TypeError):
                self.rows, self.inside, self.wide = target, data, lambda value: value
            params = {name: self.wide(value) for name, value in state.items()}
            self.likelihood = DataLikelihood(self.rows, params, self.inside)

    def __call__(self, at: Posterior | Params) -> Expansion:
        """Return the expansion at these weights; all others are the model's."""
        with in_mode(self.target.model, False):
            return self.expand_at(self._state(at))

    def expand_at(self, state: dict[str, Tensor]) -> Expansion:
        """Return the expansion at these weights and buffers."""
        wide = {name: self.wide(value) for name, value in state.items()}
        vector = self.layout.flatten(wide)

        def weights(at: Tensor) -> dict[str, Tensor]:
            return {**wide, **self.layout.unflatten(at)}

        terms = self.likelihood.at(weights, vector)
        prior = prior_hessian(lambda at: self.rows.log_prior(weights(at)), vector, self.diagonal)
        log_joint = terms.log_likelihood + float(self.rows.log_prior(wide))

        def with_curvature(kind: str, data: SecondOrder) -> Expansion:
            total = _sum(data, prior)
            root = _inverse_root(total.matrix)
            return Expansion(self, state, vector, terms, log_joint, kind, data, prior.matrix, total, root)

        if self.curvature == "hessian" or (self.curvature is None and _is_one_layer(self.layout.names)):
            # outputs that are linear in the weights lack the terms that make the Hessian of a network negative
            found = with_curvature("hessian", hessian(terms, self.diagonal))
            if self.curvature is not None or found.root is not None:
                return found
            del found  # before the second one
        return with_curvature("fisher", fisher_information(terms, self.diagonal))

    def found(
        self, state: Params, distribution: Distribution, record: Mapping[str, Any], linearised: bool = False
    ) -> Posterior:
        """Return the posterior; weights that are not inferred are fixed."""
        return posterior_of(self.target, distribution, self.layout, state, record=record, linearised=linearised)

    def _state(self, mode: Posterior | Params) -> dict[str, Tensor]:
        """Return all weights and buffers at the mode."""
        own = JointModel(self.target.model, self.target.likelihood).own(unsaved=True)
        if isinstance(mode, Posterior) and isinstance(mode.distribution, Particles) and len(mode.distribution) > 1:
            raise ValueError(
                f"Expected `mode` to be one set of weights, but got {len(mode.distribution)} draws: use map_estimate, or "
                "mode=posterior.module().state_dict() if their mean is a mode."
            )
        given = JointModel(mode.model, mode.likelihood).own() if isinstance(mode, Posterior) else mode
        check_given(given, own, "mode")
        return on_device({**own, **given}, self.device)


# The package `posteriors` also has Laplace's approximation, but as a sum over examples, which cannot include a marginal that
# they share.
@dataclass(frozen=True, eq=False)
class Expansion:
    """The second-order expansion of the log posterior at some weights.

    Attributes:
        expander: that made it.
        state: all weights and buffers.
        vector: the inferred weights (d,), in the precision of the computation.
        terms: the likelihood.
        log_joint: the log posterior, up to a constant.
        curvature: the kind of the second derivatives.
        data: those of the negative log-likelihood.
        prior: those of the negative log prior, (d,) or (d, d).
        total: their sum H, and the gradient g of the negative log posterior.
        root: F with F Fᵀ = H⁻¹, or the standard deviations of a diagonal H; None where H is not positive definite.
    """

    expander: _Expander
    state: dict[str, Tensor]
    vector: Float[Tensor, " d"]
    terms: LikelihoodTerms
    log_joint: float
    curvature: str
    data: SecondOrder
    prior: Tensor
    total: SecondOrder
    root: Tensor | None

    def posterior(self, where: str, linearised: bool | None) -> Posterior:
        """Return the Gaussian, repaired if necessary."""
        found, narrow = partial(self.expander.found, self.state), self.expander.layout.flatten(self.state)
        check_finite(self.total.matrix, 0, lambda: found(Particles(narrow[None]), {}), "the curvature")
        factor, repaired = (self.root, 0) if self.root is not None else _repaired(self.total.matrix, self.prior)
        log_volume = float((factor if factor.ndim == 1 else factor.diagonal()).log().sum())
        record = {
            "mode": where,
            "log_evidence": self.log_joint + 0.5 * len(factor) * math.log(2 * math.pi) + log_volume,
            "decrement": _nats(factor, self.total.gradient),
            "curvature": self.curvature,
            "repaired": repaired,
        }
        gaussian = (DiagonalGaussian if factor.ndim == 1 else DenseGaussian)(narrow, factor.to(narrow.dtype))
        if linearised is None:
            slopes = found(gaussian, record, True) if self.curvature == "fisher" else None
            linearised = slopes is not None and _has_slopes(slopes, self.expander.inside[0][:1])
        return found(gaussian, record, linearised)

    def is_near(self) -> bool:
        """Whether the weights are near a mode, as `laplace` defines it."""
        if self.root is None:
            return False
        freedom = torch.tensor(len(self.root) / 2, dtype=torch.float64)
        nats = _nats(self.root, self.total.gradient)
        nearer = float(torch.special.gammainc(freedom, torch.tensor(nats, dtype=torch.float64)))
        assert self.data.marginal is not None
        step, classes = (_whitened(self.root, each) for each in (self.total.gradient, self.data.marginal))
        moved = (classes @ step).abs() / torch.linalg.vector_norm(classes, dim=1).clamp_min(torch.finfo(step.dtype).tiny)
        left, gained = min(nats, _nats(self.root, self.data.gradient)), self.terms.log_likelihood - self.terms.constant
        return nearer <= _NEARER and float(moved.max()) <= _DEVIATIONS and gained >= max(_GAINED, _TIMES * left)


def _is_one_layer(names: tuple[str, ...]) -> bool:
    return len({name.rpartition(".")[0] for name in names if not name.startswith(LIKELIHOOD)}) <= 1


def _newton(expand: _Expander, start: Params | None = None) -> Expansion | None:
    """Return the expansion at the mode, by Newton's method with step halving from `start`, or from the model's weights.

    None if it does not arrive, as for a log posterior that is not concave, or if the weights are not those of one small layer.
    """
    own, layout = {**expand.target.parameters(), **(start or {})}, expand.layout
    if not _is_one_layer(layout.names) or layout.size > _NEWTON:
        return None
    here = expand(own)
    for _ in range(50):
        if here.root is None:
            return None
        nats, step = _nats(here.root, here.total.gradient), here.root @ _whitened(here.root, here.total.gradient)
        if nats < 1e-9:
            return here
        for halvings in range(40):
            moved = layout.unflatten(here.vector - step / 2**halvings)
            there = expand({name: value.to(own[name].dtype) for name, value in moved.items()})
            if there.log_joint > here.log_joint:
                break
        else:
            return here if nats < 1e-5 else None  # as close as float32 weights can be, or stuck
        here = there
    return None


def _whitened(root: Tensor, vectors: Float[Tensor, "*m d"]) -> Float[Tensor, "*m d"]:
    """Return Fᵀv, of length √(vᵀH⁻¹v)."""
    return vectors * root if root.ndim == 1 else vectors @ root


def _nats(root: Tensor, gradient: Float[Tensor, " d"]) -> float:
    """Return ½ gᵀH⁻¹g, the gain of a Newton step."""
    return 0.5 * float(_whitened(root, gradient).square().sum())


def _has_slopes(posterior: Posterior, x: Tensor) -> bool:
    """Return whether the linearised model can predict; warn if it cannot."""
    try:
        posterior.predict(x.to(posterior.distribution.mean.dtype) if x.is_floating_point() else x, samples=1)
    except (RuntimeError, ValueError) as error:  # keep the fit in spite of the error
        warnings.warn(f"Predictions will not be linearised. {error}", stacklevel=5)
        return False
    return True


def _sum(data: SecondOrder, prior: SecondOrder) -> SecondOrder:
    total = data.matrix + (torch.diag(prior.matrix) if prior.matrix.ndim < data.matrix.ndim else prior.matrix)
    return SecondOrder(total if total.ndim == 1 else (total + total.T) / 2, data.gradient + prior.gradient)


def _repaired(matrix: Tensor, prior: Tensor) -> tuple[Tensor, int]:
    """Return F as in `_inverse_root` for a matrix that is not positive definite, and the number of raised curvatures; warn."""
    floor = (prior if prior.ndim == 1 else prior.diagonal()).abs()
    if not bool((floor > 0).all()):
        raise ValueError(
            "Expected the log posterior to have a peak, but in some direction neither data nor prior bend it downwards: "
            "give a prior with a scale for every weight, such as gaussian_prior(1.0)."
        )
    inverse, count = _raised(matrix, floor)
    if count:
        warnings.warn(
            f"The log posterior has no peak at these weights: {count} of {len(matrix)} curvatures are below the prior's, and "
            "were set to it. Go closer to the mode (more steps, batch_size=None), or use curvature='fisher'.",
            stacklevel=5,
        )
    return inverse, count


def _inverse_root(matrix: Tensor) -> Tensor | None:
    """Return F with F Fᵀ = H⁻¹, triangular, or the standard deviations of a diagonal H; None where H is not positive."""
    scale = (matrix if matrix.ndim == 1 else matrix.diagonal()).clamp_min(0).rsqrt()
    if not bool(torch.isfinite(scale).all()):
        return None
    if matrix.ndim == 1:
        return scale
    root, failed = torch.linalg.cholesky_ex(scale[:, None] * matrix * scale)
    if int(failed) or float(root.diagonal().min()) ** 2 < max(_SINGULAR, 10 * torch.finfo(root.dtype).eps):
        return None
    return scale[:, None] * torch.linalg.solve_triangular(root.T, torch.eye(len(root)).to(root), upper=True)


def _raised(matrix: Tensor, floor: Float[Tensor, " d"]) -> tuple[Tensor, int]:
    """Return F as in `_inverse_root`, of the matrix with curvatures raised to `floor`, and the number below it.

    Curvatures below the rounding of the largest, as for unscaled features, are set to the floor.
    """
    if matrix.ndim == 1:
        return torch.maximum(matrix, floor).rsqrt(), int((matrix < floor).sum())
    root = floor.sqrt()
    values, axes = torch.linalg.eigh(matrix / root[:, None] / root)
    rounding = len(matrix) * torch.finfo(matrix.dtype).eps * float(values.abs().max())
    raised = torch.where(values > rounding, values, 1.0).clamp_min(1)
    triangle = torch.linalg.qr((axes / root[:, None] * raised.rsqrt()).T).R
    return triangle.T * triangle.diagonal().sign(), int((values < 1 - rounding).sum())


def _wide(value: Tensor) -> Tensor:
    return value.double() if value.is_floating_point() else value


def _inferred(target: LogPosterior, covariance: str, layer: str | None) -> tuple[str, ...]:
    """Return the names of the weights to infer."""
    names = tuple(target.parameters())
    if covariance == "last-layer":
        names = _names_in(target, names, layer)
    size = Layout.of({name: value for name, value in target.parameters().items() if name in names}).size
    if covariance != "diagonal" and size > _LARGEST:
        raise ValueError(
            f"Expected at most {_LARGEST} weights for a {covariance} covariance, but got {size}: "
            "use covariance='last-layer', with `layer` if need be, or 'diagonal'."
        )
    return names


def _names_in(target: LogPosterior, names: tuple[str, ...], layer: str | None) -> tuple[str, ...]:
    owners = [name.rpartition(".")[0] for name in names if not name.startswith(LIKELIHOOD)]
    layers = [name for name, _ in target.model.named_modules() if name in owners]
    prefix = layer if layer is not None else layers[-1] if layers else ""
    chosen = tuple(name for name in names if name.startswith((LIKELIHOOD, f"{prefix}." if prefix else "")))
    if all(name.startswith(LIKELIHOOD) for name in chosen):
        raise ValueError(f"Expected `layer` to have trainable parameters, but got {layer!r}: choose from {layers[-10:]}.")
    return chosen


def _check(
    target: LogPosterior, covariance: object, curvature: object, layer: object, mode: object, linearised: object
) -> None:
    checked_choice(covariance, "covariance", ("full", "diagonal", "last-layer"))
    checked_choice(curvature, "curvature", ("hessian", "fisher", None))
    checked_choice(linearised, "linearised", (True, False, None))
    if not isinstance(mode, Posterior | Mapping):
        remedy = "or give a Posterior from map_estimate, or weights by name"
        checked_choice(mode, "mode", ("model", "search", None), remedy)
    if layer is not None and (covariance != "last-layer" or not isinstance(layer, str)):
        raise ValueError(
            f"Expected `layer` to be a module's name, with covariance='last-layer', but got {layer!r} with {covariance!r}: "
            "leave it out, or give both."
        )
    if not isinstance(target.prevalence, Prevalence):
        raise ValueError("Expected classes for laplace, but the likelihood is a density: use another method of inference.")
