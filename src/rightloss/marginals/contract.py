"""What a marginal is to the loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MethodType
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Estimate:
    """What the minibatch says of the marginal, handed to `Marginal.value`.

    Attributes:
        log_m: `log avg_n β_n p(k|x_n,w)` of the (global) minibatch, without gradient.
        examples: how many examples it rests on.
        finite: True where log_m is known to be finite; False where nobody has looked.
        measure: the same sum over other data: (outputs, target or None) → (`log Σ_n β_n p(k|x_n,w)`, `log n`).
    """

    log_m: Float[Tensor, " k"]
    examples: int
    measure: Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor | float]]
    finite: bool = False


@runtime_checkable
class Marginal(Protocol):
    """Who supplies q, the value that stands for p(y|w) in denominators."""

    def prepare(self, num_classes: int | None) -> None:
        """Called once by the loss: K, or None in regression, where the support is each batch's own labels."""
        ...

    def mix(self, sampling: Tensor, batch: Callable[[], Tensor]) -> Tensor:
        """The class frequencies (K,) that β divides by: ρ as declared, or as realised in the batch, `batch()`."""
        ...

    def value(self, estimate: Estimate) -> Float[Tensor, " k"]:
        """log q."""
        ...


class Reference:
    """Hold a module, or a function of one, that is not the holder's own: it is not saved, trained or moved along.

    A deep copy refers to the module's copy where both are copied together, in whatever order, and else to the module itself.
    """

    def __init__(self, target: Any, memo: dict[int, Any] | None = None) -> None:
        self._target, self._memo = target, memo

    def get(self) -> Any:
        """Return what is referred to."""
        if self._memo is not None:
            self._target, self._memo = _copied(self._target, self._memo), None
        return self._target

    def __deepcopy__(self, memo: dict[int, Any]) -> Reference:
        return Reference(self.get(), memo)

    def __reduce__(self) -> tuple[type[Reference], tuple[Any]]:
        return Reference, (self.get(),)


def _copied(target: Any, memo: dict[int, Any]) -> Any:
    """What a deep copy made of `target`, or `target` where it made nothing of it."""
    if isinstance(target, MethodType):
        return MethodType(target.__func__, memo.get(id(target.__self__), target.__self__))
    return memo.get(id(target), target)


def attach(log_q: Float[Tensor, "*many k"], log_m: Float[Tensor, "*many k"]) -> Float[Tensor, "*many k"]:
    """log p(y|w) with the value `log q` and the gradient ∇m/q of the minibatch estimate m, Eq. (5).

    Written as log(q + m − stop(m)), so that also the second derivative, ∇²m/q − ∇m∇mᵀ/q², is that of a logarithm, and
    with q = m every derivative is exactly that of log m. Computed as `log q + log1p(m/q − stop(m/q))`: no underflow.
    """
    ratio = torch.exp(log_m - log_q)
    return log_q + torch.log1p(ratio - ratio.detach())


def in_transform() -> bool:
    """Whether a `torch.func` transform is being traced, in which state must not change and values cannot be looked at."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def unseen(tensor: Tensor) -> bool:
    """Whether looking at a value would break a graph, be impossible, or make the host wait for an accelerator."""
    return not tensor.is_cpu or torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def not_in_regression(num_classes: int | None, name: str, why: str) -> int:
    """K, or the ValueError for marginals that need a fixed list of labels."""
    if num_classes is None:
        raise ValueError(f"Expected classes for {name}, but the likelihood is a density: {why}; use BatchMarginal().")
    return num_classes
