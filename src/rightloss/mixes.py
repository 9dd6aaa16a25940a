"""A mix of classes, however it is written → log-frequencies, and a table multiplied by such factors.

Stage: number, K frequencies, `Prevalence`, an estimate of one, or a row per example → `(k,)` or `(n, k)`, checked.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from .log_probs import tensor_of
from .losses.batch import full_precision
from .prevalence import Prevalence, frequencies


@runtime_checkable
class PopulationEstimate(Protocol):
    """An estimated population that states itself as an uncertain `Prevalence`: `rightloss.shift.PrevalenceEstimate`."""

    @property
    def standard_error(self) -> Tensor: ...

    def prevalence(self) -> Prevalence: ...


def without_estimate(value: Any) -> Any:
    """The uncertain `Prevalence` that an estimate stands for, so that its uncertainty counts; anything else as it is."""
    return value.prevalence() if isinstance(value, PopulationEstimate) else value


def log_mix(value: Any, name: str, num_classes: int, rows: int | None = None) -> Float64[Tensor, "*n k"]:
    """log-frequencies `(k,)`, or `(n, k)` where `value` has a row per example.

    Args:
        value: a number (two classes: how often class 1 occurs), K frequencies, a `Prevalence` (its population, the mean where
            it is uncertain), an estimate of one, or one mix per example, `(n, k)`, for two classes also `(n, 1)`.
        name: what the caller calls it.
        num_classes: K.
        rows: n; None where there can be only one mix.
    """
    value = without_estimate(value)
    if isinstance(value, Prevalence):
        if value.num_classes != num_classes:
            raise ValueError(
                f"Expected `{name}` to be a prevalence of {num_classes} classes, but got {value.num_classes}: "
                "the prevalence and the predictions list the same classes in the same order."
            )
        return value.population.log()
    mix = tensor_of(value, name).detach()
    if mix.ndim == 2 and rows is not None:
        return _row_frequencies(mix, name, num_classes, rows).log()
    if num_classes == 2 and rows not in (None, 2) and mix.shape == (rows,):
        raise ValueError(
            f"Expected `{name}` to be the 2 frequencies of one mix, but got {rows} numbers, one per example: "
            f"write a mix per example as a column, `{name}[:, None]`."
        )
    return frequencies(value, name, num_classes).log()


def multiply_classes(table: Float[Tensor, "n k *dense"], log_factors: Float[Tensor, "*n k"]) -> Float[Tensor, "n k *dense"]:
    """Each class's probability times its factor, made to sum to what it summed to before (1 but for rounding).

    Keeping the sum, rather than dividing by it, is what makes factors of 1 exactly the identity.
    """
    wide = full_precision(table)
    factors = log_factors.to(wide)
    moved = wide + factors.reshape(*factors.shape, *[1] * (wide.ndim - 2))
    change = torch.logsumexp(moved, 1, keepdim=True) - torch.logsumexp(wide, 1, keepdim=True)
    return (moved - change).to(table.dtype)


def _row_frequencies(mix: Tensor, name: str, num_classes: int, rows: int) -> Float64[Tensor, "n k"]:
    tolerance = 1e-6 if mix.dtype == torch.float64 else 1e-4
    mix = mix.to("cpu", torch.float64)
    if num_classes == 2 and mix.shape[1] == 1:
        mix = torch.cat([1 - mix, mix], 1)
    if mix.shape != (rows, num_classes):
        raise ValueError(
            f"Expected `{name}` to have one mix per example, ({rows}, {num_classes}), but got shape {tuple(mix.shape)}: "
            "give every row of the predictions its own, or one list of frequencies for all."
        )
    total = mix.sum(1, keepdim=True)
    _refuse_first(~(mix.isfinite() & (mix > 0)).all(1), mix, name, "positive and finite", "a class cannot be ruled out")
    _refuse_first((total[:, 0] - 1).abs() > tolerance, mix, name, "frequencies that sum to 1", "divide each row by its sum")
    # As in `frequencies`: a sum that is 1 but for rounding is left alone.
    return torch.where((total - 1).abs() < 1e-14, mix, mix / total)


def _refuse_first(bad: Tensor, mix: Tensor, name: str, expected: str, remedy: str) -> None:
    if bool(bad.any()):
        row = int(torch.nonzero(bad)[0])
        raise ValueError(
            f"Expected the rows of `{name}` to be {expected}, but row {row} is {mix[row, :10].tolist()}: {remedy}."
        )
