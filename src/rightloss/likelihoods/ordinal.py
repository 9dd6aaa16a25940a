"""Ordinal likelihoods: ordered classes, numbered 0 to levels − 1."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..arrays import checked_int
from ..prevalence import AnyPrevalence
from .contract import check_outputs, columns
from .standard import log_population


class _Levels(nn.Module):
    """Ordered classes, with one output fewer than there are levels."""

    over_classes = True

    def __init__(self, levels: int) -> None:
        super().__init__()
        self.num_classes = checked_int(levels, "levels", 2, remedy="count the classes of the labels")
        self.num_outputs = self.num_classes - 1

    def extra_repr(self) -> str:
        return str(self.num_classes)


class OnionPeeling(_Levels):
    """The paper's likelihood for subjective ratings: the clear cases at both ends first, the ambiguous middle last.

    For 5 levels (here 1 to 5) and outputs z: softmax(z_1, z_2, 0) of {1, 5, neither}; if neither, softmax(z_3, z_4, 0)
    of {2, 4, neither}; if neither, 3. With an even number of levels the innermost pair is split by a logistic
    on the last output, its logit for the upper level. So there are levels − 1 outputs, for any number of levels ≥ 2.
    The paper states the order of these steps; their formula is ours.

    Examples:
        >>> import torch
        >>> import rightloss as rl
        >>> rl.OnionPeeling(5).table(torch.zeros(1, 4)).exp().round(decimals=3)
        tensor([[0.3330, 0.1110, 0.1110, 0.1110, 0.3330]])
    """

    def table(self, outputs: Tensor, support: Tensor | None = None) -> Tensor:
        check_outputs(outputs, self.num_outputs, self)
        n, layers = outputs.shape[0], self.num_outputs // 2  # len() would fix the batch size in torch.export
        pairs = outputs[:, : 2 * layers].reshape(n, layers, 2)
        peel = F.log_softmax(F.pad(pairs, (0, 1)), dim=2)
        reached = F.pad(torch.cumsum(peel[:, :, 2], dim=1), (1, 0))
        low, high, core = reached[:, :-1] + peel[:, :, 0], reached[:, :-1] + peel[:, :, 1], reached[:, -1:]
        if self.num_classes % 2 == 0:
            split = outputs[:, -1:]
            core = torch.cat([core + F.logsigmoid(-split), core + F.logsigmoid(split)], dim=1)
        return columns(torch.cat([low, core, high.flip(1)], dim=1), support)

    def starting_outputs(self, prevalence: AnyPrevalence) -> Tensor:
        log_pi = log_population(self, prevalence)
        outputs: list[Tensor] = []
        low, high = 0, self.num_classes - 1
        while high - low >= 2:
            neither = torch.logsumexp(log_pi[low + 1 : high], 0)
            outputs += [log_pi[low] - neither, log_pi[high] - neither]
            low, high = low + 1, high - 1
        if high > low:
            outputs.append(log_pi[high] - log_pi[low])
        return torch.stack(outputs)


class StickBreaking(_Levels):
    """Stick breaking, level by level from below (Khan et al. 2012): `p(y = k) = σ(z_k) Π_{j<k} σ(−z_j)`; levels − 1 outputs.

    A large output means "stop at this level", so with 2 levels z is the logit of the *lower* one.

    Examples:
        >>> import torch
        >>> import rightloss as rl
        >>> rl.StickBreaking(4).table(torch.zeros(1, 3)).exp()
        tensor([[0.5000, 0.2500, 0.1250, 0.1250]])
    """

    def table(self, outputs: Tensor, support: Tensor | None = None) -> Tensor:
        check_outputs(outputs, self.num_outputs, self)
        reached = F.pad(torch.cumsum(F.logsigmoid(-outputs), dim=1), (1, 0))
        return columns(torch.cat([reached[:, :-1] + F.logsigmoid(outputs), reached[:, -1:]], dim=1), support)

    def starting_outputs(self, prevalence: AnyPrevalence) -> Tensor:
        log_pi = log_population(self, prevalence)
        return log_pi[:-1] - _log_above(log_pi)


class CumulativeLogit(_Levels):
    """Proportional odds: `p(y ≤ k) = σ(θ_k − z)`, one output z (larger: higher level), levels − 1 learned cutpoints θ.

    The cutpoints are parameters of the likelihood, so give `criterion.parameters()` to the optimiser too. They are kept as the
    first one and the logarithms of the gaps, which keeps them in order and a rare level exact:
    `p(y = k) = σ(θ_k − z) σ(z − θ_{k−1}) (1 − exp(θ_{k−1} − θ_k))`.

    Examples:
        >>> import torch
        >>> import rightloss as rl
        >>> likelihood = rl.CumulativeLogit(4)
        >>> likelihood.table(torch.zeros(1, 1)).exp().round(decimals=3).tolist()  # all levels alike at the start
        [[0.25, 0.25, 0.25, 0.25]]
    """

    def __init__(self, levels: int) -> None:
        super().__init__(levels)
        self.num_outputs = 1
        first, log_gaps = _cutpoints(torch.full((levels,), 1 / levels, dtype=torch.float64).log())
        self.first = nn.Parameter(first.to(torch.get_default_dtype()))
        self.log_gaps = nn.Parameter(log_gaps.to(torch.get_default_dtype()))

    @property
    def cutpoints(self) -> Tensor:
        """θ (levels − 1,), increasing."""
        return torch.cat([self.first, self.first + torch.cumsum(self.log_gaps.exp(), dim=0)])

    def table(self, outputs: Tensor, support: Tensor | None = None) -> Tensor:
        check_outputs(outputs, 1, self)
        margin = self.cutpoints - outputs
        below, above = F.logsigmoid(margin), F.logsigmoid(-margin)
        inside = torch.log(-torch.expm1(-self.log_gaps.exp()))
        middle = below[:, 1:] + above[:, :-1] + inside
        return columns(torch.cat([below[:, :1], middle, above[:, -1:]], dim=1), support)

    def starting_outputs(self, prevalence: AnyPrevalence) -> Tensor:
        log_pi = log_population(self, prevalence)
        first, log_gaps = _cutpoints(log_pi)
        with torch.no_grad():
            self.first.copy_(first)
            self.log_gaps.copy_(log_gaps)
        return torch.zeros(1, dtype=torch.float64)


def _log_above(log_pi: Tensor) -> Tensor:
    """Return log Σ_{j>k} π_j for k = 0 … K − 2."""
    return torch.logcumsumexp(log_pi.flip(0), 0).flip(0)[1:]


def _cutpoints(log_pi: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first cutpoint (1,) and the log-gaps (K − 2,) at which z = 0 predicts π.

    They follow from π_k = σ(θ_k) σ(−θ_{k−1}) (1 − e^{−gap}). The gap is also the difference of the logits of p(y ≤ k), but
    that is inaccurate for a rare level, while this formula is inaccurate for the neighbours of a common level.
    """
    log_up_to, log_above = torch.logcumsumexp(log_pi, 0)[:-1], _log_above(log_pi)
    share = torch.exp(log_pi[1:-1] - log_up_to[1:] - log_above[:-1])
    logits = log_up_to - log_above
    return logits[:1], torch.where(share < 0.5, -torch.log1p(-share), logits.diff()).log()
