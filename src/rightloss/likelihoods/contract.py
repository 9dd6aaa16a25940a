"""The interface of a likelihood, and the checks that all likelihoods share."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from ..prevalence import AnyPrevalence


@runtime_checkable
class Likelihood(Protocol):
    """The interface of a likelihood: outputs of a network → table of log-probabilities.

    `num_outputs` is the number of outputs per example (None: the number of classes), `num_classes` the number of classes
    (None: that of the prevalence). `over_classes` is False in regression.

    Examples:
        >>> import torch, rightloss as rl
        >>> from rightloss.likelihoods import Likelihood
        >>> isinstance(rl.Bernoulli(), Likelihood)
        True
        >>> rl.Bernoulli().table(torch.zeros(1, 1)).exp()
        tensor([[0.5000, 0.5000]])
        >>> round(float(rl.Bernoulli().starting_outputs(rl.Prevalence.binary(population=0.1)).sigmoid()), 3)
        0.1
    """

    @property
    def num_outputs(self) -> int | None: ...

    @property
    def num_classes(self) -> int | None: ...

    @property
    def over_classes(self) -> bool: ...

    def table(self, outputs: Tensor, support: Tensor | None = None) -> Tensor:
        """Return `table[i, j] = log p(y = s_j | x_i, w)`.

        Args:
            outputs: `(n, num_outputs)`, unnormalised.
            support: the labels s_j: class numbers (default: all, in order); in regression values of y.
        """
        ...

    def starting_outputs(self, prevalence: AnyPrevalence) -> Tensor:
        """Return the outputs `(num_outputs,)` that predict the population for every x, the inverse link of π.

        A likelihood with its own parameters also sets these here, if outputs alone cannot predict π.
        """
        ...


def check_outputs(outputs: Tensor, num_outputs: int, likelihood: object) -> None:
    """Raise a ValueError if the outputs do not have the shape that the likelihood needs."""
    if outputs.ndim != 2 or outputs.shape[1] != num_outputs:
        came = f"{tuple(outputs.shape)}: give the last layer {num_outputs} output(s), or choose another likelihood"
        raise ValueError(f"Expected outputs of shape (n, {num_outputs}) for {likelihood}, but got {came}.")


def columns(table: Tensor, support: Tensor | None) -> Tensor:
    """Return the columns of the classes in the support."""
    if support is None:
        return table
    if support.is_floating_point():
        came = f"{support.dtype}: for regression use Gaussian() or FromDistribution(…)"
        raise ValueError(f"Expected the support of a likelihood over classes to be class numbers, but got {came}.")
    return table[:, support]
