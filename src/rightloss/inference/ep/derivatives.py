"""Derivatives of a likelihood's table in its outputs.

Stage: outputs z `(…, o)` → log p(k|z) `(…, k)`, with gradients and Hessians.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ...likelihoods import Bernoulli, Categorical
from ...losses.gain import at_reference


@runtime_checkable
class Table(Protocol):
    """log p(k|z) in some mix of the classes."""

    def log_probs(self, z: Float[Tensor, "*rows o"]) -> Float[Tensor, "*rows k"]:
        """log p(k|z)."""
        ...

    def derivatives(self, z: Float[Tensor, "*rows o"]) -> tuple[Tensor, Tensor, Tensor]:
        """log p(k|z), its gradients `(…, k, o)`, and its Hessians `(…, k, o, o)`; `(…, 1, o, o)` where classes share it."""
        ...


def table_of(likelihood: Any, log_offset: Float[Tensor, " k"] | None) -> Table:
    """The likelihood's table, moved to another mix by `log_offset`: in closed form for softmax and logistic."""
    if isinstance(likelihood, Categorical):
        return _Softmax(log_offset)
    if isinstance(likelihood, Bernoulli):
        return _Logistic(log_offset)
    return _AnyTable(likelihood, log_offset)


class _Softmax:
    """∇ log p_k = e_k − p, ∇² log p_k = p pᵀ − diag p."""

    def __init__(self, log_offset: Tensor | None) -> None:
        self.log_offset = log_offset

    def log_probs(self, z: Tensor) -> Tensor:
        return F.log_softmax(z if self.log_offset is None else z + self.log_offset, -1)

    def derivatives(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        log_p = self.log_probs(z)
        p = log_p.exp()
        hessians = p.unsqueeze(-1) * p.unsqueeze(-2) - torch.diag_embed(p)
        return log_p, torch.eye(p.shape[-1]).to(p) - p.unsqueeze(-2), hessians.unsqueeze(-3)


class _Logistic:
    """∇ log p = (−p_1, p_0), ∇² log p_k = −p_0 p_1."""

    def __init__(self, log_offset: Tensor | None) -> None:
        self.shift = 0.0 if log_offset is None else log_offset[1] - log_offset[0]

    def log_probs(self, z: Tensor) -> Tensor:
        z = z + self.shift
        return torch.cat([F.logsigmoid(-z), F.logsigmoid(z)], -1)

    def derivatives(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        log_p = self.log_probs(z)
        p = log_p.exp()
        gradients = torch.stack([-p[..., 1], p[..., 0]], -1).unsqueeze(-1)
        return log_p, gradients, -p.prod(-1)[..., None, None, None]


class _AnyTable:
    """By automatic differentiation."""

    def __init__(self, likelihood: Any, log_offset: Tensor | None) -> None:
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
    """Gradients of numbers that each depend on their own row alone."""
    (found,) = torch.autograd.grad(values.sum(), z, create_graph=True, materialize_grads=True)
    return found
