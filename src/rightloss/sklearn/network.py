"""Train a multi-layer perceptron in minibatches on any of the losses.

Stage: `LabelledRows`, a loss → weights of the layers, as arrays.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from torch import Tensor

from ..likelihoods import Categorical
from ..losses import InformationGainLoss, LogitAdjustedLoss
from ..losses.batch import Labels
from ..marginals import MinibatchEstimate
from ..prevalence import Prevalence
from .criteria import Criterion, loss_of_rows
from .labelled_rows import LabelledRows

Activation = Literal["relu", "tanh", "logistic"]
# name → the function, and its backward pass as a function of its value
ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "relu": (torch.relu, lambda gradient, value: torch.ops.aten.threshold_backward(gradient, value, 0)),
    "tanh": (torch.tanh, lambda gradient, value: gradient * (1 - value * value)),
    "logistic": (torch.sigmoid, lambda gradient, value: gradient * (value * (1 - value))),
}


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


class Network:
    """A multi-layer perceptron trained by Adam. All weights are in one vector, so that a step is a few operations.

    The loss gives the gradient by the outputs. The backward pass is written by hand, because a graph is expensive for small
    minibatches.

    Args:
        sizes: of the layers: features, hidden ones, outputs.
        start: the last bias (m,), the outputs that predict the population.
        settings: activation and optimiser.
        criterion: the loss; its own parameters are learned as well.
        dtype: the dtype of the features.
        generator: draws the initial weights, as Glorot & Bengio.
        learn_bias: False if the likelihood has parameters instead of the last bias.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        start: Tensor,
        settings: NetworkSettings,
        criterion: Criterion,
        dtype: torch.dtype,
        generator: torch.Generator,
        learn_bias: bool = True,
    ) -> None:
        shapes = [shape for a, b in pairwise(sizes) for shape in ((a, b), (b,))]
        length = sum(int(np.prod(shape)) for shape in shapes)
        self.activation, self.criterion = settings.activation, criterion.to(dtype)
        self.vector, self.gradient, self.decay, self.mean, self.square = torch.zeros(5, length, dtype=dtype)
        self.shapes = shapes
        self._view()
        for view in _views(self.decay, shapes)[0]:
            view.fill_(settings.decay)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            bound = ((2.0 if self.activation == "logistic" else 6.0) / sum(weight.shape)) ** 0.5
            weight.uniform_(-bound, bound, generator=generator)
            bias.uniform_(-bound, bound, generator=generator)
        self.biases[-1].copy_(start)
        self.learn_bias, self.steps, self.rate = learn_bias, 0, settings.learning_rate_init
        self.own = list(criterion.parameters())
        self.own_optimizer = torch.optim.Adam(self.own, lr=self.rate) if self.own else None
        self.to_population = torch.zeros(sizes[-1], dtype=dtype)  # moves outputs from their mix to the loss's π
        self.loss_curve: list[float] = []
        self.validation_scores: list[float] = []

    def _view(self) -> None:
        """Make the layers' weights views of the vector."""
        self.weights, self.biases = _views(self.vector, self.shapes)
        self.weight_gradients, self.bias_gradients = _views(self.gradient, self.shapes)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the views, which copying and pickling separate from the vector."""
        self.__dict__.update(state)
        self._view()

    def __call__(self, x: Tensor) -> Tensor:
        """Return the outputs (n, m)."""
        return self._values(x)[-1]

    def step(self, x: Tensor, target: Tensor, weight: Tensor | None, unlabelled: Tensor | None = None) -> float:
        """Train on one minibatch, with unlabelled rows if there are any, and return its loss."""
        values = self._values(x if unlabelled is None else torch.cat([x, unlabelled]))
        gradients = self._loss_and_gradients if unlabelled is None else self._stream_loss_and_gradients
        loss, delta, *of_own = gradients(values[-1], target, weight)
        for i in reversed(range(len(self.weights))):
            torch.mm(values[i].T, delta, out=self.weight_gradients[i])
            torch.sum(delta, 0, out=self.bias_gradients[i])
            if i:
                delta = ACTIVATIONS[self.activation][1](delta @ self.weights[i].T, values[i])
        if not self.learn_bias:
            self.bias_gradients[-1].zero_()
        self._adam()
        if self.own_optimizer is not None:
            for parameter, gradient in zip(self.own, of_own, strict=True):
                parameter.grad = gradient
            self.own_optimizer.step()
        return float(loss)

    def arrays(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return the layers' weights (in, out) and biases (out,), in the form of `MLPClassifier`."""
        return [weight.numpy().copy() for weight in self.weights], [bias.numpy().copy() for bias in self.biases]

    def set_arrays(self, weights: Sequence[np.ndarray], biases: Sequence[np.ndarray]) -> None:
        """Set the layers' weights, to continue from an earlier fit."""
        for own, given in zip([*self.weights, *self.biases], [*weights, *biases], strict=True):
            own.copy_(torch.from_numpy(given.copy()))

    def state(self) -> list[Tensor]:
        """Return a copy of everything that is learned."""
        return [self.vector.clone(), *(parameter.detach().clone() for parameter in self.own)]

    def restore(self, state: list[Tensor]) -> None:
        """Set everything that is learned."""
        with torch.no_grad():
            for own, kept in zip([self.vector, *self.own], state, strict=True):
                own.copy_(kept)

    def _values(self, x: Tensor) -> list[Tensor]:
        """Return the input and every layer's values, the outputs last."""
        values, act = [x], ACTIVATIONS[self.activation][0]
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            values.append(act(torch.addmm(bias, values[-1], weight)))
        return [*values, torch.addmm(self.biases[-1], values[-1], self.weights[-1])]

    def _loss_and_gradients(self, outputs: Tensor, target: Tensor, weight: Tensor | None) -> list[Tensor]:
        """Return the loss and its gradients by the outputs and by the loss's own parameters.

        The derivative of a softmax's cross-entropy is written by hand, because a graph would take longer than the minibatch.
        """
        criterion = self.criterion
        if isinstance(criterion, InformationGainLoss) or type(criterion.likelihood) is not Categorical:
            outputs.requires_grad_()
            loss = _loss(criterion, outputs, target, weight)
            return [loss.detach(), *torch.autograd.grad(loss, [outputs, *self.own])]
        offset, of_class = criterion.cross_entropy_terms(criterion.terms(outputs))
        log_probs = torch.log_softmax(outputs if offset is None else outputs + offset, 1)
        share = target if target.ndim == 2 else torch.zeros_like(outputs).scatter_(1, target[:, None], 1.0)
        share = share / len(share) if weight is None else share * (weight / weight.sum())[:, None]
        share = share if of_class is None else share * of_class
        return [-(share * log_probs).sum(), log_probs.exp().mul_(share.sum(1, keepdim=True)).sub_(share)]

    def _stream_loss_and_gradients(self, outputs: Tensor, target: Tensor, weight: Tensor | None) -> list[Tensor]:
        """Return the same with unlabelled rows after the labelled ones; `stream_likelihood` has the derivative."""
        criterion, n = self.criterion, len(target)
        if not isinstance(criterion, LogitAdjustedLoss) or type(criterion.likelihood) is not Categorical:
            outputs.requires_grad_()
            loss = criterion(outputs[:n], target, unlabelled=outputs[n:])
            return [loss.detach(), *torch.autograd.grad(loss, [outputs, *self.own])]
        mass, log_probs = criterion.unlabelled_weight, torch.log_softmax(outputs + self.to_population, 1)
        assert mass is not None
        streams = F.pad(log_probs + criterion.terms(outputs).log_adjust, (0, 1), value=math.log(mass))
        log_t, share = torch.log_softmax(streams, 1), torch.zeros_like(streams)
        if target.ndim == 2:
            share[:n, :-1] = target
        else:
            share[:n].scatter_(1, target[:, None], 1.0)
        share[:n] *= 1 / n if weight is None else (weight / weight.sum())[:, None]
        share[n:, -1] = mass / (len(outputs) - n)
        residual = (log_t.exp().mul_(share.sum(1, keepdim=True)).sub_(share))[:, :-1]
        loss = -torch.where(share > 0, share * log_t, 0.0).sum()
        gradient = residual - log_probs.exp() * residual.sum(1, keepdim=True)
        if criterion.unlabelled_evidence:
            of_evidence, by_unlabelled = self._evidence_and_gradient(log_probs[n:], mass)
            loss, gradient[n:] = loss + of_evidence, gradient[n:] + by_unlabelled
        return [loss, gradient]

    def _evidence_and_gradient(self, log_probs: Tensor, mass: float) -> tuple[Tensor, Tensor]:
        """Return the negative evidence of π on the unlabelled rows, as in `StreamLikelihood`, with the running mean as m."""
        criterion, p = self.criterion, log_probs.exp()
        assert isinstance(criterion, LogitAdjustedLoss)
        assert isinstance(criterion.prevalence, Prevalence)
        people = criterion.unlabelled_evidence * criterion.terms(p).evidence * mass
        pi = criterion.prevalence.population.to(p)
        log_q = criterion.mean_prediction(len(p)).update(MinibatchEstimate(p.mean(0).log(), len(p)))
        ratio = pi / log_q.exp()
        return -people * (pi * log_q).sum(), -people / len(p) * p * (ratio - (p @ ratio)[:, None])

    def _adam(self) -> None:
        """Take a step of Adam (Kingma & Ba 2015), including the gradient of the penalty."""
        self.steps += 1
        gradient = self.gradient.addcmul_(self.decay, self.vector)
        self.mean.lerp_(gradient, 0.1)
        self.square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        scale = (1 - 0.999**self.steps) ** 0.5
        size = self.rate * scale / (1 - 0.9**self.steps)
        self.vector.addcdiv_(self.mean, self.square.sqrt().add_(1e-8 * scale), value=-size)


def train(
    network: Network,
    rows: LabelledRows,
    score: Callable[[Tensor, LabelledRows], float],
    settings: NetworkSettings,
    generator: torch.Generator,
    unlabelled: np.ndarray | None = None,
    before_epoch: Callable[[EndlessRows], None] | None = None,
    held: LabelledRows | None = None,
) -> None:
    """Train until the loss, or with early stopping the validation score, no longer improves; warn if it still improves at the
    end.

    With early stopping the best weights are kept.

    Args:
        network: its layers change.
        rows: the rows, including the validation rows.
        score: outputs, rows → the score for early stopping, larger is better.
        settings: how to train.
        generator: orders the minibatches and splits the rows.
        unlabelled: features of unlabelled rows; each minibatch has as many of them as labelled ones, if there are enough.
        before_epoch: called with them before each epoch, to learn the population.
        held: the validation rows, if they are already split off.
    """
    others = None if unlabelled is None else EndlessRows(torch.from_numpy(unlabelled), generator)
    best_state = None
    if settings.early_stopping and held is None:
        rows, held = split_rows(rows, settings.validation_fraction, generator)
    best, waited = np.inf, 0
    for epoch in range(settings.max_iter):
        if before_epoch is not None and others is not None:
            before_epoch(others)
        network.loss_curve.append(epoch_loss(network, rows, settings, generator, others))
        figure = network.loss_curve[-1]
        if held is not None:
            network.validation_scores.append(score(network(torch.from_numpy(held.features)), held))
            figure = -network.validation_scores[-1]
        if settings.verbose:
            print(f"Iteration {epoch + 1}, loss = {network.loss_curve[-1]:.8f}" + (f", score = {-figure:.6f}" if held else ""))
        waited = 0 if figure < best - settings.tol else waited + 1
        if figure < best:
            best, best_state = figure, network.state() if held is not None else None
        if waited > settings.n_iter_no_change:
            break
    else:
        warnings.warn(
            f"Training stopped at max_iter={settings.max_iter} epochs, before the loss stopped falling: raise max_iter.",
            ConvergenceWarning,
            stacklevel=3,
        )
    if best_state is not None:
        network.restore(best_state)


class EndlessRows:
    """Rows in random order, reshuffled after all were used."""

    def __init__(self, rows: Tensor, generator: torch.Generator) -> None:
        self.rows, self.generator = rows, generator
        self.order = torch.empty(0, dtype=torch.long)

    def take(self, count: int) -> Tensor:
        """Return the next rows, at most as many as there are."""
        count = min(count, len(self.rows))
        if len(self.order) < count:
            self.order = torch.cat([self.order, torch.randperm(len(self.rows), generator=self.generator)])
        chosen, self.order = self.order[:count], self.order[count:]
        return self.rows[chosen]


def epoch_loss(
    network: Network,
    rows: LabelledRows,
    settings: NetworkSettings,
    generator: torch.Generator,
    others: EndlessRows | None = None,
) -> float:
    """Train on every labelled row once, in minibatches, and return the mean loss."""
    n, size = len(rows.features), settings.batch_size
    order = torch.randperm(n, generator=generator)
    x = torch.from_numpy(rows.features)[order]
    target = rows.target(x.dtype)[order]
    weight = None if rows.weight is None else torch.from_numpy(rows.weight).to(x.dtype)[order]
    total = 0.0
    for start in range(0, n, size):
        part = slice(start, start + size)
        unlabelled = None if others is None else others.take(len(x[part]))
        loss = network.step(x[part], target[part], None if weight is None else weight[part], unlabelled)
        total += loss * len(x[part])
    if not np.isfinite(total):
        raise ValueError(f"Expected a finite loss, but got {total}: standardise the features, or lower learning_rate_init.")
    return total / n


def split_rows(rows: LabelledRows, fraction: float, generator: torch.Generator) -> tuple[LabelledRows, LabelledRows]:
    """Return training and validation rows, with every class in both; rows with votes are stratified by the majority class."""
    strata = rows.index if rows.index is not None else rows.table().argmax(1)
    seed = int(torch.randint(2**31 - 1, (1,), generator=generator))
    try:
        kept, held = train_test_split(np.arange(len(rows.features)), test_size=fraction, stratify=strata, random_state=seed)
    except ValueError as error:
        raise ValueError(
            f"Expected rows of every class for training and for validation, but got {len(rows.features)} rows with "
            f"{np.bincount(strata).min()} in the rarest class: pass early_stopping=False, or raise validation_fraction."
        ) from error
    return rows.take(kept), rows.take(held)


def forward(weights: Sequence[np.ndarray], biases: Sequence[np.ndarray], activation: str, x: np.ndarray) -> np.ndarray:
    """Return the outputs of layers given as arrays."""
    act, found = ACTIVATIONS[activation][0], torch.from_numpy(np.ascontiguousarray(x))
    for position, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        found = torch.addmm(torch.from_numpy(bias), found, torch.from_numpy(weight))
        found = act(found) if position < len(weights) - 1 else found
    return found.numpy()


def _loss(criterion: Criterion, outputs: Tensor, target: Tensor, weight: Tensor | None) -> Tensor:
    """Return the loss of a minibatch."""
    if weight is None:
        value: Tensor = criterion(outputs, target)
        return value
    assert isinstance(criterion.prevalence, Prevalence)
    hard = target.ndim == 1
    labels = Labels(target if hard else None, None if hard else target, None, criterion.prevalence.num_classes, len(target))
    return loss_of_rows(criterion, outputs, labels, weight)


def _views(vector: Tensor, shapes: Sequence[tuple[int, ...]]) -> tuple[list[Tensor], list[Tensor]]:
    """Return views of a vector as weights (in, out) and biases (out,)."""
    parts = vector.split([int(np.prod(shape)) for shape in shapes])
    views = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
    return views[::2], views[1::2]
