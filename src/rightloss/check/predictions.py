"""A model and rows, however they come → log-probabilities at the population, and labels.

Stage: module, `Posterior` or function; `(x, y)`, data set or loader → `log_probs`, labels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler

from ..inference import Posterior
from ..likelihoods import Bernoulli, Categorical, Likelihood
from ..log_probs import HasLogProbs, rows_of, tensor_of
from ..metrics.sample import Sample, labelled_sample
from ..predictive import PrevalenceLayer, predictive
from ..prevalence import Prevalence

__all__ = ["Predictor", "is_table", "labelled", "sample_of"]


class Predictor:
    """x → log-probabilities at the population.

    Attributes:
        squashed: whether all outputs seen so far could be probabilities taken for logits; None where that cannot be told.
    """

    def __init__(self, model: Any, prevalence: Prevalence, likelihood: Likelihood | None, batch_size: int) -> None:
        if not callable(model) and not isinstance(model, Posterior):
            raise ValueError(
                f"Expected `model` to be a module, a Posterior, a function of x or log-probabilities, but got "
                f"{type(model).__name__}: of a scikit-learn model pass `model.predict_log_proba`."
            )
        self._at: Prevalence | None = prevalence
        if isinstance(model, nn.Module) and not isinstance(model, PrevalenceLayer):
            model, self._at = PrevalenceLayer(model, prevalence, likelihood), None  # the layer's own
        self.model, self.prevalence, self.batch_size = model, prevalence, batch_size
        self.squashed: bool | None = None

    def __call__(self, x: Any) -> Tensor:
        if isinstance(x, DataLoader):
            return torch.cat([self(batch[0] if isinstance(batch, list | tuple) else batch) for batch in x])
        if isinstance(self.model, Posterior):
            found = predictive(self.model, x, self.prevalence, batch_size=self.batch_size)
        elif isinstance(self.model, PrevalenceLayer):
            found = self._of_layer(self.model, x)
        else:
            found = self.model(x)
        return tensor_of(found, "log_probs").detach().cpu()

    def _of_layer(self, layer: PrevalenceLayer, x: Any) -> Tensor:
        cut = isinstance(x, Tensor | np.ndarray) or hasattr(x, "columns")
        parts = [x[start : start + self.batch_size] for start in range(0, len(x), self.batch_size)] if cut else [x]
        hook = layer.model.register_forward_hook(lambda _, given, outputs: self._look(outputs, layer.likelihood))
        try:
            return torch.cat([tensor_of(layer.predict(part, self._at), "log_probs") for part in parts])
        finally:
            hook.remove()

    def _look(self, outputs: Any, likelihood: Likelihood) -> None:
        if not isinstance(outputs, Tensor) or not isinstance(likelihood, Categorical | Bernoulli):
            return
        log_pi = self.prevalence.population.log()
        if isinstance(likelihood, Bernoulli) and 0 <= float(log_pi[1] - log_pi[0]) <= 1:
            return  # between these are the logits of a weak model, too
        inside = bool(((outputs >= 0) & (outputs <= 1)).all())
        if isinstance(likelihood, Categorical):
            inside = inside and bool(((outputs.float().sum(1) - 1).abs() < 1e-2).all())
        self.squashed = inside and self.squashed is not False


def is_table(model: Any) -> bool:
    """Whether these are predictions rather than what makes them."""
    if isinstance(model, Tensor | np.ndarray | list | tuple):
        return True
    return not callable(model) and (hasattr(model, "__array__") or isinstance(model, HasLogProbs))


def labelled(predict: Predictor, data: Any) -> tuple[Tensor, Tensor, bool]:
    """Log-probabilities, labels, and whether a sampler may have drawn an example more than once."""
    if isinstance(data, Dataset):
        data = DataLoader(data, predict.batch_size)
    if isinstance(data, tuple | list) and len(data) == 2:
        return predict(data[0]), tensor_of(data[1], "labels"), False
    if isinstance(data, Tensor | np.ndarray) or not isinstance(data, Iterable):
        raise ValueError(
            f"Expected `data` to be (x, y) or a loader of such batches, but got {type(data).__name__}: a model needs the "
            "inputs and their labels."
        )
    tables, labels = [], []
    for batch in data:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise ValueError(
                f"Expected batches (x, y), but got a {type(batch).__name__}: make pairs of them, or pass log-probabilities and "
                "labels."
            )
        tables.append(predict(batch[0]))
        labels.append(tensor_of(batch[1], "labels").detach().cpu())
    if not tables:
        raise ValueError("Expected at least one batch in `data`, but got none: is the loader empty, or used up?")
    return torch.cat(tables), torch.cat(labels), _may_repeat(data)


def sample_of(table: Tensor, labels: Any, prevalence: Prevalence, groups: Any, may_repeat: bool) -> tuple[Sample, bool]:
    """A `Sample` whose groups are those given, a dense map's images, or examples drawn repeatedly; and whether the last."""
    labels, rows = tensor_of(labels, "labels").detach().cpu(), rows_of(tensor_of(table, "log_probs")).cpu()
    if table.ndim > 2:
        if labels.shape != (len(table), *table.shape[2:]):
            raise ValueError(
                f"Expected one label per cell, {(len(table), *table.shape[2:])}, but got shape {tuple(labels.shape)}: "
                "labels of maps are maps of class numbers."
            )
        labels, cells = labels.flatten(), math.prod(table.shape[2:])
        named = np.arange(len(table)) if groups is None else np.asarray(groups)
        groups = np.repeat(named, cells)
    if groups is None and may_repeat and not labels.is_floating_point():
        both = torch.cat([rows.double(), labels[:, None].double()], 1)
        found, which = torch.unique(both, dim=0, return_inverse=True)
        if len(found) < len(both):
            return _whole(labelled_sample(rows, labels, prevalence, which)), True
    return _whole(labelled_sample(rows, labels, prevalence, groups)), False


def _whole(sample: Sample) -> Sample:
    sample.require_every_class("a check")
    return sample


def _may_repeat(data: Any) -> bool:
    if not isinstance(data, DataLoader) or type(data.batch_sampler) is not BatchSampler:
        return True
    sampler = data.sampler
    return not isinstance(sampler, SequentialSampler) and not (isinstance(sampler, RandomSampler) and not sampler.replacement)
