"""Classes without an order."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..prevalence import ContinuousPrevalence, Prevalence
from .contract import check_levels, check_outputs, columns, log_population


class Categorical(nn.Module):
    """Softmax: `log p(k|x,w) = z_k − log Σ_j exp z_j`, K logits for K classes.

    Args:
        num_classes: K, where it is to be checked; by default as many as the prevalence has.
    """

    over_classes = True

    def __init__(self, num_classes: int | None = None) -> None:
        super().__init__()
        self.num_classes = None if num_classes is None else check_levels(num_classes, "Categorical")

    @property
    def num_outputs(self) -> int | None:
        return self.num_classes

    def table(self, outputs: Tensor, support: Tensor | None = None) -> Tensor:
        check_outputs(outputs, self.num_classes or max([2, *outputs.shape[1:2]]), "Categorical")
        return columns(F.log_softmax(outputs, dim=1), support)

    def starting_outputs(self, prevalence: Prevalence | ContinuousPrevalence) -> Tensor:
        return log_population(prevalence, self.num_classes, "Categorical")

    def extra_repr(self) -> str:
        return "" if self.num_classes is None else str(self.num_classes)


class Bernoulli(nn.Module):
    """Logistic: one logit z of class 1, `log p(1|x,w) = log σ(z)`. The same as two logits (0, z)."""

    over_classes = True
    num_outputs = 1
    num_classes = 2

    def table(self, outputs: Tensor, support: Tensor | None = None) -> Tensor:
        check_outputs(outputs, 1, "Bernoulli")
        return columns(torch.cat([F.logsigmoid(-outputs), F.logsigmoid(outputs)], dim=1), support)

    def starting_outputs(self, prevalence: Prevalence | ContinuousPrevalence) -> Tensor:
        log_pi = log_population(prevalence, 2, "Bernoulli")
        return log_pi[1:] - log_pi[:1]
