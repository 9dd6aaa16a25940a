"""Predictions of a torch module or a `Posterior`, for `check`. The only file of the check that needs torch.

Stage: module or `Posterior`, x → log-probabilities at the population, and whether its outputs were probabilities.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..inference import Posterior
from ..layer import PrevalenceLayer
from ..likelihoods import Bernoulli, Categorical, Findings, Likelihood
from ..metrics.sample import refuse_multi_hot
from ..predictive import predictive
from ..prevalence import MultilabelPrevalence, Prevalence
from ..tensors import tensor_of
from .model_check import Predictor


class TorchPredictor(Predictor):
    """Predict with a module, in eval mode and in batches, or with a `Posterior`."""

    def __init__(
        self, model: Any, prevalence: Prevalence | MultilabelPrevalence, likelihood: Likelihood | None, batch_size: int
    ) -> None:
        if isinstance(prevalence, MultilabelPrevalence):
            if isinstance(model, Posterior) or not isinstance(likelihood, Bernoulli | None):
                what = "a Posterior" if isinstance(model, Posterior) else type(likelihood).__name__
                remedy = "pass log-probabilities of presence (n, L) instead of the model"
                raise ValueError(f"Expected a logit for each of several findings (multi-label), but got {what}: {remedy}.")
        self._at: Any = prevalence
        if not isinstance(model, Posterior | PrevalenceLayer):
            model, self._at = PrevalenceLayer(model, prevalence, likelihood), None  # the likelihood of the layer
        super().__init__(model, prevalence)
        self.batch_size = batch_size

    def predicted(self, x: Any, labels: np.ndarray | None) -> Any:
        if isinstance(self.model, Posterior):
            assert isinstance(self.prevalence, Prevalence)
            return predictive(self.model, x, self.prevalence, batch_size=self.batch_size)
        cut = isinstance(x, Tensor | np.ndarray) or hasattr(x, "columns")
        parts = [x[start : start + self.batch_size] for start in range(0, len(x), self.batch_size)] if cut else [x]
        layer = self.model
        hook = layer.model.register_forward_hook(lambda _, given, outputs: self._look(outputs, layer.likelihood, labels))
        try:
            return torch.cat([tensor_of(layer.predict(part, self._at), "log_probs") for part in parts])
        finally:
            hook.remove()

    def _look(self, outputs: Any, likelihood: Likelihood, labels: np.ndarray | None) -> None:
        """Refuse labels of findings, and note whether all outputs are in [0, 1]."""
        if isinstance(outputs, Tensor) and labels is not None and isinstance(self.prevalence, Prevalence):
            refuse_multi_hot(labels[: len(outputs)], outputs)
        if not isinstance(outputs, Tensor) or not isinstance(likelihood, Categorical | Bernoulli | Findings):
            return
        parts = [(outputs, self.prevalence)]
        if isinstance(self.prevalence, MultilabelPrevalence):
            if outputs.shape[1:2] != (len(self.prevalence),):
                return  # the layer refuses them
            by_finding = outputs.reshape(len(outputs), len(self.prevalence), -1).unbind(1)
            parts = [*zip(by_finding, self.prevalence, strict=True)]
        for number, (part, prevalence) in enumerate(parts):
            log_pi = np.log(prevalence.population)
            if not isinstance(likelihood, Categorical) and 0 <= float(log_pi[1] - log_pi[0]) <= 1:
                continue  # the logits of a weak model are in this range as well
            inside = bool(((part >= 0) & (part <= 1)).all())
            if isinstance(likelihood, Categorical):
                inside = inside and bool(((part.float().sum(1) - 1).abs() < 1e-2).all())
            self.squashed[number] = inside and self.squashed[number] is not False
