"""A Gaussian as wide as the log posterior is curved at its mode.

Stage: `LogPosterior`, data → `Posterior` with a `DenseGaussian` or `DiagonalGaussian`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..prevalence import Prevalence
from .distributions import DenseGaussian, DiagonalGaussian, Particles
from .information import Second, Terms, fisher_information, hessian, likelihood_terms, prior_hessian
from .layout import Layout
from .maximum import map_estimate
from .minibatches import Batch, Minibatches
from .nets import Net
from .posterior import Posterior, posterior_of
from .steps import check_finite, in_mode, own_random
from .target import LIKELIHOOD, LogPosterior

_COVARIANCES = ("full", "diagonal", "last-layer")
_DERIVATIVES = {"hessian": hessian, "fisher": fisher_information}
_LARGEST = 20_000  # weights whose covariance is still worked out in full: 3 GB
_SINGULAR = 1e-10  # a pivot of a matrix with ones on its diagonal that is as good as 0 in float64


def laplace(
    target: LogPosterior,
    data: Any,
    *,
    covariance: Any = "full",
    curvature: Any = None,
    layer: Any = None,
    mode: Any = None,
    linearised: Any = None,
    steps: Any = 1000,
    batch_size: Any = None,
    lr: Any = 1e-2,
    seed: Any = 0,
    device: Any = None,
    progress: bool | None = None,
) -> Posterior:
    """Laplace's approximation: N(ŵ, H⁻¹) with the mode ŵ and the curvature H of −log p(w|X,Y) there.

    p(y|w) is taken over `target.pool`, or else over the training data, exactly, and in float64: of one example, or of a
    minibatch, the marginal follows the prediction, and the curvature would come out too small.

    Args:
        target: from `log_posterior`, over classes.
        data: `(x, y)`, a Dataset or a DataLoader.
        covariance: "full" (small models); "diagonal"; or "last-layer", in full over the last layer (and the likelihood's own
            parameters), with the other weights fixed at the mode.
        curvature: "hessian": all second derivatives as they are, for linear models at their mode the more exact; with hidden
            layers they are rarely those of a peak. "fisher": the information that the model itself expects of the data, which
            is never negative and also a Gauss–Newton matrix, so it stands at any weights of any net. None: the Hessian, if
            the weights to infer are those of one layer and it is that of a peak, else "fisher".
        layer: the name of the module that "last-layer" stands for; None: the last one that has trainable parameters.
        mode: where to expand, from `map_estimate`, or weights by name; None: `map_estimate` with the following arguments.
        linearised: whether predictions are those of the model made linear in the weights around the mode. Gauss–Newton
            curvature is that of this linear model, and the net itself, at weights as far from the mode as it allows, predicts
            worse than at the mode (Immer et al., 2021). None: with "fisher", if torch can differentiate the model forwards.
        steps: of its optimiser.
        batch_size: of its steps. None: all data in each, and from there to the mode itself.
        lr: its first step size.
        seed: of the order of its data.
        device: where to compute; None: where model and data are.
        progress: whether a bar is shown; None: on a terminal.

    Returns:
        A posterior whose `record` holds `log_evidence`, Laplace's estimate of log ∫ p(w) p(Y|X,w) dw, by which priors can be
        compared; `decrement`, ½ gᵀH⁻¹g with the gradient g: how far below its peak the log posterior is at the mode that was
        used; the `curvature` that was taken; and `repaired`: if H is no peak (a warning says so), curvatures below the prior's
        are set to the prior's, and this is how many there were.
    """
    _check(target, covariance, curvature, layer, linearised)
    with own_random(seed) as generator:
        whole = Minibatches(data, None, generator, device, target.prevalence, target.model)
        target = target.with_data(whole.num_data)
        searched = mode is None
        if searched:
            options = {"steps": steps, "batch_size": batch_size, "lr": lr}
            mode = map_estimate(target, data, **options, seed=seed, device=device, progress=progress)
        with in_mode(target.model, False):
            problem = _problem(target, _state(target, mode, device), whole.whole(), _chosen(target, covariance, layer))
            found = _expand(problem, covariance == "diagonal", curvature, linearised)
    if searched and found.record["decrement"] > 0.5 * found.layout.size:
        warnings.warn(
            f"The log posterior is {found.record['decrement']:.3g} nats below its peak where the search ended, farther than "
            f"draws of its {found.layout.size} weights are on average: the Gaussian is in the wrong place. Raise `steps`.",
            stacklevel=2,
        )
    return found


@dataclass(frozen=True, eq=False)
class _Problem:
    """A target at weights of which some are inferred.

    Attributes:
        target: with its pool, in the precision of the computation.
        state: all weights and buffers, as they are.
        wide: the same in that precision.
        data: x and y.
        layout: of the inferred weights.
    """

    target: LogPosterior
    state: dict[str, Tensor]
    wide: dict[str, Tensor]
    data: Batch
    layout: Layout

    @property
    def vector(self) -> Float[Tensor, " d"]:
        return self.layout.flatten(self.wide)

    def weights(self, vector: Float[Tensor, " d"]) -> dict[str, Tensor]:
        """All weights by name, the inferred ones from `vector`."""
        return {**self.wide, **self.layout.unflatten(vector)}

    def found(self, distribution: Any, record: Mapping[str, Any], linearised: bool = False) -> Posterior:
        """The posterior; weights that are not inferred stay where they are."""
        kept = Net(self.target.model, self.target.likelihood).own()
        fixed = {name: value for name, value in self.state.items() if name in kept and name not in self.layout.names}
        return posterior_of(self.target, distribution, self.layout, fixed, record=record, linearised=linearised)


# The package `posteriors` has Laplace's approximation, too, but sums over examples one by one: a marginal that they share is
# out of its reach.
def _expand(problem: _Problem, diagonal: bool, curvature: str | None, linearised: bool | None) -> Posterior:
    """The Gaussian around the weights of `problem`."""
    target, vector, narrow = problem.target, problem.vector, problem.layout.flatten(problem.state)
    terms = likelihood_terms(target, problem.weights, vector, problem.data)
    prior = prior_hessian(lambda at: target.log_prior(problem.weights(at)), vector, diagonal)
    curvature = _default(terms, prior, diagonal, problem.layout) if curvature is None else curvature
    total = _sum(_DERIVATIVES[curvature](terms, diagonal), prior)
    check_finite(total.matrix, 0, lambda: problem.found(Particles(narrow[None]), {}), "the curvature")
    factor, repaired = _factor(total.matrix, prior.matrix)
    log_joint = terms.log_likelihood + float(target.log_prior(problem.wide))
    log_volume = float((factor if diagonal else factor.diagonal()).log().sum())
    scaled = factor * total.gradient if diagonal else total.gradient @ factor
    record = {
        "log_evidence": log_joint + 0.5 * len(vector) * math.log(2 * math.pi) + log_volume,
        "decrement": 0.5 * float(scaled.square().sum()),
        "curvature": curvature,
        "repaired": repaired,
    }
    gaussian = (DiagonalGaussian if diagonal else DenseGaussian)(narrow, factor.to(narrow.dtype))
    if linearised is None:
        linearised = curvature == "fisher" and _has_slopes(problem.found(gaussian, record, True), problem.data[0][:1])
    return problem.found(gaussian, record, linearised)


def _has_slopes(posterior: Posterior, x: Tensor) -> bool:
    """Whether the linearised model can predict."""
    try:
        posterior.predict(x.to(posterior.distribution.mean.dtype) if x.is_floating_point() else x, samples=1)
    except (RuntimeError, ValueError) as error:  # not worth losing the fit
        warnings.warn(f"Predictions will be with the weights as they are drawn. {error}", stacklevel=4)
        return False
    return True


def _default(terms: Terms, prior: Second, diagonal: bool, layout: Layout) -> str:
    """Where outputs are linear in the weights, what makes a Hessian negative in nets is absent."""
    layers = {name.rpartition(".")[0] for name in layout.names if not name.startswith(LIKELIHOOD)}
    if len(layers) > 1:
        return "fisher"
    return "fisher" if _inverse_root(_sum(hessian(terms, diagonal), prior).matrix) is None else "hessian"


def _sum(data: Second, prior: Second) -> Second:
    total = data.matrix + (torch.diag(prior.matrix) if prior.matrix.ndim < data.matrix.ndim else prior.matrix)
    return Second(total if total.ndim == 1 else (total + total.T) / 2, data.gradient + prior.gradient)


def _factor(matrix: Tensor, prior: Tensor) -> tuple[Tensor, int]:
    """F with F Fᵀ = H⁻¹, triangular, or the standard deviations of a diagonal H; and how many curvatures were raised."""
    inverse = _inverse_root(matrix)
    if inverse is not None:
        return inverse, 0
    floor = (prior if prior.ndim == 1 else prior.diagonal()).abs()
    if not bool((floor > 0).all()):
        raise ValueError(
            "Expected the log posterior to have a peak, but in some direction neither data nor prior bend it downwards: "
            "give a prior with a scale for every weight, such as gaussian_prior(1.0)."
        )
    inverse, count = _raised(matrix, floor)
    if count:
        warnings.warn(
            f"The log posterior is no peak at these weights: {count} of {len(matrix)} curvatures are below the prior's, and "
            "were set to it. Go nearer to the mode (more steps, batch_size=None), or use curvature='fisher'.",
            stacklevel=4,
        )
    return inverse, count


def _inverse_root(matrix: Tensor) -> Tensor | None:
    """None where the matrix is not positive definite, to rounding."""
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
    """F as in `_factor`, of the matrix with curvatures of at least `floor` in every direction; and how many had less.

    Those that are lost in the rounding of the largest, as where features are not scaled, are taken for the floor's.
    """
    if matrix.ndim == 1:
        return torch.maximum(matrix, floor).rsqrt(), int((matrix < floor).sum())
    root = floor.sqrt()
    values, axes = torch.linalg.eigh(matrix / root[:, None] / root)
    rounding = len(matrix) * torch.finfo(matrix.dtype).eps * float(values.abs().max())
    raised = torch.where(values > rounding, values, 1.0).clamp_min(1)
    triangle = torch.linalg.qr((axes / root[:, None] * raised.rsqrt()).T).R
    return triangle.T * triangle.diagonal().sign(), int((values < 1 - rounding).sum())


def _problem(target: LogPosterior, state: dict[str, Tensor], data: Batch, names: tuple[str, ...]) -> _Problem:
    """In float64, if the model can be computed with in it."""
    layout = Layout.of({name: state[name] for name in names})
    if target.pool is not None:
        x, y = target.pool
        target = replace(target, pool=(x.to(data[0].device), None if y is None else y.to(data[0].device)))
    wide = {name: _wide(value) for name, value in state.items()}
    try:
        with torch.no_grad():
            target.outputs(wide, _wide(data[0][:1]))
    except (RuntimeError, TypeError):
        return _Problem(target, state, state, data, layout)
    pool = None if target.pool is None else (_wide(target.pool[0]), target.pool[1])
    return _Problem(replace(target, pool=pool), state, wide, (_wide(data[0]), data[1]), layout)


def _wide(value: Tensor) -> Tensor:
    return value.double() if value.is_floating_point() else value


def _state(target: LogPosterior, mode: Any, device: Any) -> dict[str, Tensor]:
    """All weights and buffers at the mode."""
    own = {**dict(target.model.named_parameters()), **dict(target.model.named_buffers())}
    if isinstance(target.likelihood, torch.nn.Module):
        parts = [*target.likelihood.named_parameters(), *target.likelihood.named_buffers()]
        own |= {LIKELIHOOD + name: value for name, value in parts}
    if isinstance(mode, Posterior) and isinstance(mode.distribution, Particles) and len(mode.distribution) > 1:
        raise ValueError(
            f"Expected `mode` to be one set of weights, but got {len(mode.distribution)} draws: use map_estimate, or "
            "mode=posterior.mean where their mean is a mode."
        )
    given = Net(mode.model, mode.likelihood).own() if isinstance(mode, Posterior) else mode
    if not isinstance(given, Mapping):
        raise ValueError(f"Expected `mode` from map_estimate, or weights by name, but got {type(mode).__name__}: or None.")
    for name, value in given.items():
        if name not in own or own[name].shape != value.shape:
            raise ValueError(
                f"Expected a mode of this target's model, but `{name}` of shape {tuple(value.shape)} is not in it: "
                "use the model that the mode was found with."
            )
    return {name: value.detach().to(device, copy=True) for name, value in {**own, **given}.items()}


def _chosen(target: LogPosterior, covariance: str, layer: Any) -> tuple[str, ...]:
    """The names of the weights to infer."""
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


def _names_in(target: LogPosterior, names: tuple[str, ...], layer: Any) -> tuple[str, ...]:
    owners = [name.rpartition(".")[0] for name in names if not name.startswith(LIKELIHOOD)]
    layers = [name for name, _ in target.model.named_modules() if name in owners]
    prefix = layer if layer is not None else layers[-1] if layers else ""
    chosen = tuple(name for name in names if name.startswith((LIKELIHOOD, f"{prefix}." if prefix else "")))
    if all(name.startswith(LIKELIHOOD) for name in chosen):
        raise ValueError(f"Expected `layer` to have trainable parameters, but got {layer!r}: choose from {layers[-10:]}.")
    return chosen


def _check(target: LogPosterior, covariance: Any, curvature: Any, layer: Any, linearised: Any) -> None:
    if covariance not in _COVARIANCES:
        raise ValueError(f"Expected `covariance` to be one of {', '.join(_COVARIANCES)}, but got {covariance!r}: choose one.")
    if curvature not in (None, *_DERIVATIVES):
        raise ValueError(f"Expected `curvature` to be one of {', '.join(_DERIVATIVES)}, but got {curvature!r}: or None.")
    if layer is not None and (covariance != "last-layer" or not isinstance(layer, str)):
        raise ValueError(
            f"Expected `layer` to be a module's name, with covariance='last-layer', but got {layer!r} with {covariance!r}: "
            "leave it out, or give both."
        )
    if linearised not in (None, True, False):
        raise ValueError(f"Expected `linearised` to be True, False or None, but got {linearised!r}: leave it out.")
    if not isinstance(target.prevalence, Prevalence):
        raise ValueError("Expected classes for laplace, but the likelihood is a density: use another method of inference.")
