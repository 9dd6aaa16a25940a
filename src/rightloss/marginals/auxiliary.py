"""AuxiliaryMarginal: q from a network of the weights, the paper's q_ψ(w)."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from .contract import MinibatchEstimate, Reference, check_classes, in_transform

_MEMORY_NUMBERS = 2**22  # stored weights take at most 16 MiB


class AuxiliaryMarginal(nn.Module):
    """q = q_ψ(w), a small network from (a vector made from) the weights to the K log-probabilities of p(y|w).

    It is trained jointly with the model, by its own optimiser, to minimise KL[p(·|w) ‖ q_ψ(w)], that is
    −Σ_k p(k|w) log q_ψ(w)_k, with the unbiased minibatch estimate m_k instead of p(k|w). To reduce the noise of one
    minibatch, each step averages that loss over pairs (w, m) drawn from the latest ones, each unbiased at its own w. The
    derivative by w is not used.
    For weights sampled from a posterior, q_ψ depends on the sample, which a running average cannot. In `eval()` mode ψ is
    fixed.

    Args:
        weights: the output layer, whose parameters are the vector; or a function that returns a vector made from w. The loss
            calls it when it is made, for the size, and then in each step, so it must have a vector before the first draw.
        hidden: width of the network's nonlinear part, which is added to a linear part.
        lr: step size of its Adam optimiser.
        memory: the number of latest pairs (w, m) to store.
        draw: the number of stored pairs that a step averages over: the newest and others at random.

    Examples:
        >>> import torch, rightloss as rl
        >>> layer, x, y = torch.nn.Linear(3, 2), torch.randn(8, 3), torch.arange(8) % 2
        >>> loss = rl.InformationGainLoss(rl.Prevalence.binary(0.1), marginal=rl.AuxiliaryMarginal(layer))
        >>> value = loss(layer(x), y)
        >>> round(float(loss.marginal.log_marginal(loss.marginal.vector()).exp().sum()), 4)
        1.0
    """

    network: _Network | None
    _seen_weights: Tensor
    _seen_marginals: Tensor
    _steps: Tensor

    def __init__(
        self,
        weights: nn.Module | Callable[[], Tensor],
        hidden: int = 32,
        lr: float = 1e-3,
        memory: int = 2048,
        draw: int = 64,
    ) -> None:
        super().__init__()
        if isinstance(weights, nn.Module) and not list(weights.parameters()):
            raise ValueError(f"Expected a layer with parameters, but {type(weights).__name__} has none: pass the output layer.")
        if min(hidden, memory, draw) < 1 or not lr > 0:
            raise ValueError(f"Expected hidden, memory, draw ≥ 1 and lr > 0, but got {hidden}, {memory}, {draw} and {lr}.")
        self._source = Reference(weights)
        self.hidden, self.lr, self.memory, self.draw = hidden, lr, memory, draw
        self.network = None
        self._generator = torch.Generator().manual_seed(0)  # own generator, the same on all ranks

    @property
    def source(self) -> nn.Module | Callable[[], Tensor]:
        """The layer or function that gives the vector."""
        source: nn.Module | Callable[[], Tensor] = self._source.get()
        return source

    def prepare(self, num_classes: int | None) -> None:
        """Build the network, its optimiser and its memory."""
        k = check_classes(num_classes, "AuxiliaryMarginal", "it gives one number per class")
        if self.network is not None:
            return
        start = self.vector()
        self.network = _Network(start, self.hidden, k)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=self.lr)
        rows = max(1, min(self.memory, _MEMORY_NUMBERS // len(start)))
        self.register_buffer("_seen_weights", start.new_zeros(rows, len(start)))
        self.register_buffer("_seen_marginals", start.new_zeros(rows, k))
        self.register_buffer("_steps", torch.zeros((), dtype=torch.long))

    def vector(self) -> Float[Tensor, " d"]:
        """Return the vector of w, the input of q_ψ."""
        if isinstance(self.source, nn.Module):
            return torch.cat([parameter.detach().flatten() for parameter in self.source.parameters()])
        vector: Any = self.source()
        if not isinstance(vector, Tensor):
            raise ValueError(
                f"Expected `weights` to return a vector of the weights, but got {type(vector).__name__}: the loss asks for it "
                "when it is made, before the first draw; return the means of the weights until then."
            )
        if vector.ndim != 1:
            raise ValueError(f"Expected `weights` to return a vector, but got shape {tuple(vector.shape)}: flatten it.")
        return vector.detach()

    def sampling_frequencies(self, sampling: Tensor, realised: Callable[[], Tensor]) -> Tensor:
        return sampling

    def value(self, estimate: MinibatchEstimate) -> Float[Tensor, " k"]:
        return self.log_marginal(self.vector()).to(estimate.log_m) if int(self._steps) > 0 else estimate.log_m

    def update(self, estimate: MinibatchEstimate) -> Float[Tensor, " k"]:
        if self.training and not torch.is_inference_mode_enabled() and bool(torch.isfinite(estimate.log_m).all()):
            self.learn(self.vector(), estimate.log_m.exp())
        return self.value(estimate)

    def reset(self) -> None:
        """Reset q_ψ to a constant, and clear the memory."""
        assert self.network is not None
        origin, classes = self.network.origin, self._seen_marginals.shape[1]
        blank = AuxiliaryMarginal(lambda: origin, self.hidden, self.lr, self.memory, self.draw)
        blank.prepare(classes)
        self.load_state_dict(blank.state_dict())

    def log_marginal(self, vector: Float[Tensor, "*t d"]) -> Float[Tensor, "*t k"]:
        """Return log q_ψ(w), without gradient, of one w or of many."""
        assert self.network is not None
        with torch.no_grad():
            log_q: Tensor = self.network(vector.to(self._seen_weights))
        return log_q

    def learn(self, vector: Float[Tensor, " d"], marginal: Float[Tensor, " k"]) -> None:
        """Train ψ for one step, given the unbiased estimate m at the weights w."""
        if in_transform():
            remedy = "call `.eval()` on the loss there, and `marginal.learn(vector, m)` outside"
            raise ValueError(f"Expected q_ψ not to be trained inside a torch.func transform: {remedy}.")
        assert self.network is not None
        steps, rows = int(self._steps), len(self._seen_weights)
        if steps == 0:
            self.network.start(marginal)
        self._seen_weights[steps % rows] = vector
        self._seen_marginals[steps % rows] = marginal
        self._steps += 1
        drawn = torch.randint(min(steps + 1, rows), (self.draw,), generator=self._generator)
        drawn[0] = steps % rows
        with torch.enable_grad(), torch.autocast(vector.device.type, enabled=False):
            log_q = self.network(self._seen_weights[drawn])
            risk = -(self._seen_marginals[drawn] * log_q).sum(1).mean()
            risk.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()  # so that the model's optimiser does nothing if it was also given ψ

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> AuxiliaryMarginal:
        """Move the module by `.to()` or `.double()`, together with the optimiser's state."""
        super()._apply(fn, recurse)
        if self.network is not None:
            self.optimizer.load_state_dict(self.optimizer.state_dict())
        return self

    def get_extra_state(self) -> dict[str, Any]:
        """Return the state of the optimiser and the generator, so that a restored run continues exactly."""
        if self.network is None:
            return {}
        return {"optimizer": deepcopy(self.optimizer.state_dict()), "generator": self._generator.get_state()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore the state from `get_extra_state`."""
        if self.network is not None:
            self.optimizer.load_state_dict(state["optimizer"])
            self._generator.set_state(state["generator"])

    def extra_repr(self) -> str:
        return f"hidden={self.hidden}, lr={self.lr:g}, memory={self.memory}"


class _Network(nn.Module):
    """w → log-softmax(affine(w − w₀) + MLP(w − w₀)), constant in w at the start."""

    origin: Tensor

    def __init__(self, origin: Tensor, hidden: int, num_classes: int) -> None:
        super().__init__()
        self.register_buffer("origin", origin.clone())
        self.linear = nn.Linear(len(origin), num_classes)
        self.inner = nn.Linear(len(origin), hidden)
        self.outer = nn.Linear(hidden, num_classes, bias=False)
        for parameter in (self.linear.weight, self.linear.bias, self.outer.weight):
            nn.init.zeros_(parameter)
        self.to(origin)

    def start(self, marginal: Tensor) -> None:
        """Predict `marginal` for every w."""
        with torch.no_grad():
            self.linear.bias.copy_(marginal.clamp_min(torch.finfo(marginal.dtype).tiny).log())

    def forward(self, weights: Float[Tensor, "*t d"]) -> Float[Tensor, "*t k"]:
        moved = weights - self.origin
        return F.log_softmax(self.linear(moved) + self.outer(torch.tanh(self.inner(moved))), dim=-1)
