"""Predictions of several findings (multi-label): tables of log p(absent) and log p(present), and results by finding.

Stage: predictions `(n, L)` → tables `(n, 2, L)`, the input of every function of predictions; a result for each finding.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from .log_probs import Predictions, as_given, full_precision, tensor_of


def finding_tables(log_probs: Predictions, num_findings: int) -> Float[Tensor, "n 2 l *dense"]:
    """Return predictions of findings as tables `(n, 2, L)` of log p(absent) and log p(present), checked.

    Args:
        log_probs: `(n, L)`, the log-probability that each finding is present, such as `F.logsigmoid(logits)`; or tables
            `(n, 2, L)` with both; also dense, `(n, L, h, w)`.
        num_findings: L.
    """
    given = tensor_of(log_probs, "log_probs")
    expected = f"(n, {num_findings}) or (n, 2, {num_findings})"
    if given.ndim < 2 or len(given) == 0 or not given.is_floating_point():
        raise ValueError(
            f"Expected `log_probs` of {num_findings} findings (multi-label), floats of shape {expected}, but got {given.dtype} "
            f"of shape {tuple(given.shape)}: pass torch.nn.functional.logsigmoid(logits)."
        )
    if is_table(given, num_findings):
        total = torch.logsumexp(full_precision(given.detach()), 1)
        if not bool((total.abs() <= 1e-4).all()):
            raise ValueError(
                "Expected tables of log-probabilities (n, 2, L) whose exponentials sum to 1 over dimension 1, but some do not: "
                "take torch.log_softmax over it."
            )
        return given
    if given.shape[1] != num_findings:
        raise ValueError(
            f"Expected `log_probs` of {num_findings} findings (multi-label), of shape {expected}, but got "
            f"{tuple(given.shape)}: a column for each finding, in the order of the prevalence."
        )
    if bool(given.isnan().any()):
        raise ValueError("Expected `log_probs` without NaN, but got some: no figure can be right with them; drop such rows.")
    if bool((given > 0).any()):
        raise ValueError(
            "Expected `log_probs` to be log-probabilities that each finding is present, at most 0, but some are above: are "
            "these logits? Take torch.nn.functional.logsigmoid(logits); of probabilities take the logarithm."
        )
    return torch.stack([log_complement(given), given], 1)


def map_findings(log_probs: Predictions, num_findings: int, call: Callable[[Tensor, int], Tensor]) -> Any:
    """Return `call(table (n, 2), number)` of each finding, in the shape and type of the predictions."""
    table = finding_tables(log_probs, num_findings)
    moved = torch.stack([call(table[:, :, number], number) for number in range(num_findings)], 2)
    given = tensor_of(log_probs, "log_probs")
    return as_given(moved if is_table(given, num_findings) else moved[:, 1], log_probs)


def is_table(log_probs: Tensor, num_findings: int) -> bool:
    """Return whether predictions of findings have both log-probabilities, `(n, 2, L)`."""
    return log_probs.ndim > 2 and log_probs.shape[1] == 2 and log_probs.shape[2] == num_findings


def log_complement(log_p: Tensor) -> Tensor:
    """Return log(1 − p), precise for all p."""
    small = log_p > -0.6931
    near = torch.log(-torch.expm1(torch.where(small, log_p, -1.0)))
    return torch.where(small, near, torch.log1p(-torch.exp(torch.where(small, -1.0, log_p))))


def multiply_findings(table: Float[Tensor, "n 2 l *dense"], log_factors: Tensor) -> Float[Tensor, "n 2 l *dense"]:
    """Multiply both probabilities of each finding by their factors, `(2, L)` or `(n, 2, L)`, and rescale them."""
    wide = full_precision(table)
    factors = log_factors.to(wide)
    moved = wide + factors.reshape(*factors.shape, *[1] * (wide.ndim - 3))
    change = torch.logsumexp(moved, 1, keepdim=True) - torch.logsumexp(wide, 1, keepdim=True)
    return (moved - change).to(table.dtype)


Result = TypeVar("Result")


class ByFinding(Mapping[str, Result], Generic[Result]):
    """Results by the name of each finding: a mapping that prints itself.

    Examples:
        >>> from rightloss.finding_tables import ByFinding
        >>> ByFinding({"mass": 1, "nodule": 2})["nodule"]
        2
    """

    def __init__(self, results: Mapping[str, Result]) -> None:
        self._results = dict(results)

    def __getitem__(self, finding: str) -> Result:
        if finding not in self._results:
            raise KeyError(f"there is no finding {finding!r}; there are {', '.join(self._results)}")
        return self._results[finding]

    def __iter__(self) -> Iterator[str]:
        return iter(self._results)

    def __len__(self) -> int:
        return len(self._results)

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers by finding."""
        return {name: each.to_dict() for name, each in self._results.items()}  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        return "\n".join(f"{name}\n{each!r}" for name, each in self._results.items())

    def _repr_html_(self) -> str:
        def shown(each: Any) -> str:
            return each._repr_html_() if hasattr(each, "_repr_html_") else f"<pre>{html.escape(repr(each))}</pre>"

        return "".join(f"<h4>{html.escape(name)}</h4>{shown(each)}" for name, each in self._results.items())
