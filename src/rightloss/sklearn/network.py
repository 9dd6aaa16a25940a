"""Train a multi-layer perceptron in minibatches on any of the losses.

Stage: `LabelledRows`, a loss → weights of the layers, as arrays.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from ..losses.batch import Labels
from ..prevalence import Prevalence
from .criteria import Criterion, loss_of_rows
from .labelled_rows import LabelledRows

Activation = Literal["relu", "tanh", "logistic"]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu, "tanh": torch.tanh, "logistic": torch.sigmoid}


@dataclass(frozen=True)
class NetworkSettings:
    """How to train; the names and meanings are those of scikit-learn's `MLPClassifier`."""

    hidden_layer_sizes: tuple[int, ...]
    activation: str
    decay: float
    max_iter: int
    tol: float
    batch_size: int
    learning_rate_init: float
    early_stopping: bool
    validation_fraction: float
    n_iter_no_change: int
    verbose: bool


@dataclass
class Network:
    """Layers in training.

    Attributes:
        layers: the linear maps, with the activation between them.
        activation: its name.
        optimizer: Adam over the layers' and the loss's own parameters.
        loss_curve: the mean training loss of each epoch.
        validation_scores: the expected log-likelihood in the population on the validation rows, after each epoch.
    """

    layers: list[nn.Linear]
    activation: str
    optimizer: torch.optim.Optimizer
    loss_curve: list[float] = field(default_factory=list)
    validation_scores: list[float] = field(default_factory=list)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the outputs."""
        act = ACTIVATIONS[self.activation]
        for layer in self.layers[:-1]:
            x = act(layer(x))
        outputs: Tensor = self.layers[-1](x)
        return outputs

    def arrays(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return the layers' weights (in, out) and biases (out,), as `MLPClassifier` keeps them."""
        weights = [layer.weight.detach().numpy().T.copy() for layer in self.layers]
        return weights, [layer.bias.detach().numpy().copy() for layer in self.layers]


def build_network(
    num_features: int,
    start: Tensor,
    settings: NetworkSettings,
    criterion: Criterion,
    dtype: torch.dtype,
    generator: torch.Generator,
    learn_bias: bool = True,
) -> Network:
    """Return new layers, drawn as Glorot & Bengio do, whose last bias is `start`.

    Args:
        num_features: d.
        start: the outputs that predict the population, (m,).
        settings: sizes and optimiser.
        criterion: its own parameters are learned too.
        dtype: that of the features.
        generator: draws the weights.
        learn_bias: False where the likelihood has parameters in the place of the last bias.
    """
    sizes = [num_features, *settings.hidden_layer_sizes, len(start)]
    layers = [
        _layer(a, b, 2.0 if settings.activation == "logistic" else 6.0, dtype, generator)
        for a, b in zip(sizes[:-1], sizes[1:], strict=True)
    ]
    with torch.no_grad():
        layers[-1].bias.copy_(start)
    layers[-1].bias.requires_grad_(learn_bias)
    free = [each for each in [*(layer.bias for layer in layers), *criterion.to(dtype).parameters()] if each.requires_grad]
    groups = [
        {"params": [layer.weight for layer in layers], "weight_decay": settings.decay},
        {"params": free, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    optimizer = torch.optim.Adam(groups, lr=settings.learning_rate_init, fused=True)
    return Network(layers, settings.activation, optimizer)


def from_arrays(
    network: Network, weights: Sequence[np.ndarray], biases: Sequence[np.ndarray]
) -> None:
    """Set the layers' weights, to go on where an earlier fit ended."""
    with torch.no_grad():
        for layer, weight, bias in zip(network.layers, weights, biases, strict=True):
            layer.weight.copy_(torch.from_numpy(weight.T.copy()))
            layer.bias.copy_(torch.from_numpy(bias))


def train(
    network: Network,
    rows: LabelledRows,
    criterion: Criterion,
    score: Callable[[Tensor, LabelledRows], float],
    settings: NetworkSettings,
    generator: torch.Generator,
) -> None:
    """Train until the loss, or with early stopping the validation score, no longer improves; warn if it still does.

    With early stopping the best weights are kept.

    Args:
        network: its layers change.
        rows: what to train on, the validation rows included.
        criterion: the loss.
        score: outputs, rows → the figure by which to stop, larger is better.
        settings: how to train.
        generator: orders the minibatches and splits the rows.
    """
    held, best_state = None, None
    if settings.early_stopping:
        rows, held = _split(rows, settings.validation_fraction, generator)
    best, waited = np.inf, 0
    for epoch in range(settings.max_iter):
        network.loss_curve.append(epoch_loss(network, rows, criterion, settings, generator))
        figure = network.loss_curve[-1]
        if held is not None:
            with torch.no_grad():
                network.validation_scores.append(score(network(torch.from_numpy(held.features)), held))
            figure = -network.validation_scores[-1]
        if settings.verbose:
            print(f"Iteration {epoch + 1}, loss = {network.loss_curve[-1]:.8f}" + (f", score = {-figure:.6f}" if held else ""))
        waited = 0 if figure < best - settings.tol else waited + 1
        if figure < best:
            best, best_state = figure, _state(network, criterion) if held is not None else None
        if waited > settings.n_iter_no_change:
            break
    else:
        warnings.warn(
            f"Training stopped at max_iter={settings.max_iter} epochs, before the loss stopped falling: raise max_iter.",
            ConvergenceWarning,
            stacklevel=3,
        )
    if best_state is not None:
        _restore(network, criterion, best_state)


def epoch_loss(
    network: Network, rows: LabelledRows, criterion: Criterion, settings: NetworkSettings, generator: torch.Generator
) -> float:
    """Train on every row once, in minibatches, and return the mean loss."""
    n = len(rows.features)
    order = torch.randperm(n, generator=generator)
    x, target = torch.from_numpy(rows.features)[order], rows.target(torch.from_numpy(rows.features[:0]).dtype)[order]
    weight = None if rows.weight is None else torch.from_numpy(rows.weight).to(x.dtype)[order]
    size, sums = settings.batch_size, []
    for start in range(0, n, size):
        part = slice(start, start + size)
        outputs = network(x[part])
        loss = criterion(outputs, target[part]) if weight is None else _weighted(criterion, outputs, target[part], weight[part])
        network.optimizer.zero_grad()
        loss.backward()
        network.optimizer.step()
        sums.append(float(loss.detach()) * len(outputs))
    if not np.isfinite(sums[-1]):
        raise ValueError(
            f"Expected a finite loss, but got {sums[-1]}: standardise the features, or lower learning_rate_init."
        )
    return sum(sums) / n


def forward(weights: Sequence[np.ndarray], biases: Sequence[np.ndarray], activation: str, x: np.ndarray) -> np.ndarray:
    """Return the outputs of layers kept as arrays."""
    act, found = ACTIVATIONS[activation], torch.from_numpy(np.ascontiguousarray(x))
    for position, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        found = torch.addmm(torch.from_numpy(bias), found, torch.from_numpy(weight))
        found = act(found) if position < len(weights) - 1 else found
    return found.numpy()


def _weighted(criterion: Criterion, outputs: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    assert isinstance(criterion.prevalence, Prevalence)
    hard = target.ndim == 1
    labels = Labels(target if hard else None, None if hard else target, None, criterion.prevalence.num_classes, len(target))
    return loss_of_rows(criterion, outputs, labels, weight)


def _layer(inputs: int, outputs: int, factor: float, dtype: torch.dtype, generator: torch.Generator) -> nn.Linear:
    layer = nn.utils.skip_init(nn.Linear, inputs, outputs, dtype=dtype)
    bound = (factor / (inputs + outputs)) ** 0.5
    with torch.no_grad():
        layer.weight.uniform_(-bound, bound, generator=generator)
        layer.bias.uniform_(-bound, bound, generator=generator)
    return layer


def _split(rows: LabelledRows, fraction: float, generator: torch.Generator) -> tuple[LabelledRows, LabelledRows]:
    """Return training and validation rows, with every class in both; votes are split by the class with the most."""
    strata = rows.index if rows.votes is None else rows.votes.argmax(1)
    seed = int(torch.randint(2**31 - 1, (1,), generator=generator))
    try:
        kept, held = train_test_split(np.arange(len(rows.features)), test_size=fraction, stratify=strata, random_state=seed)
    except ValueError as error:
        raise ValueError(
            f"Expected rows of every class for training and for validation, but got {len(rows.features)} rows with "
            f"{np.bincount(strata).min()} in the rarest class: pass early_stopping=False, or raise validation_fraction."
        ) from error
    return rows.take(kept), rows.take(held)


def _state(network: Network, criterion: Criterion) -> list[Tensor]:
    return [each.detach().clone() for each in _parameters(network, criterion)]


def _restore(network: Network, criterion: Criterion, state: list[Tensor]) -> None:
    with torch.no_grad():
        for parameter, kept in zip(_parameters(network, criterion), state, strict=True):
            parameter.copy_(kept)


def _parameters(network: Network, criterion: Criterion) -> list[Tensor]:
    return [part for layer in network.layers for part in (layer.weight, layer.bias)] + list(criterion.parameters())
