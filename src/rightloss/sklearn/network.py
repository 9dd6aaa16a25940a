"""InformationGainMLPClassifier: a multi-layer perceptron, trained with torch for the population's class frequencies.

Stage: `fit(X, y)` at class frequencies ρ, with or without unlabelled rows of the population → `predict_proba(X)` at the
population π. The only file of `rightloss.sklearn` that imports torch.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import special
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from ..arrays import checked_int, checked_number
from ..extras import install
from ..prevalence import Prevalence
from .base import PopulationClassifier, log_odds, training_prevalence
from .population import Population, is_unknown
from .rows import EVIDENCE, LabelledRows, UnlabelledFeatures, read_both, warn_of_shift

try:
    import torch
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"InformationGainMLPClassifier needs rightloss[torch]: {install('torch')}", name="torch"
    ) from error
from torch import Tensor, nn

from ..likelihoods import Categorical
from ..losses import InformationGainLoss, LogitAdjustedLoss

TOL = 1e-4  # the smallest improvement that counts


class InformationGainMLPClassifier(PopulationClassifier):
    """A multi-layer perceptron trained at one mix of classes, with predictions for a population with another mix.

    Standardise the features in a pipeline before. The arguments are those of scikit-learn's `MLPClassifier` where the names
    are the same; hidden layers are rectified linear units, trained by Adam. Rows may be float32. For other layers,
    likelihoods and losses train a module with `rightloss.losses`.

    Args:
        population: π, as in `InformationGainClassifier`, but known.
        hidden_layer_sizes: (100,) is one hidden layer.
        evidence: κ of the information gain; at 1 it is trained as logit adjustment, the same but for the noise of minibatches.
        C: inverse of the strength of the l2 penalty of the weights, as in `InformationGainClassifier`; inf for none.
        batch_size: rows of a minibatch; "auto" is min(200, n).
        learning_rate_init: learning rate of Adam.
        max_iter: maximum number of epochs.
        n_iter_no_change: epochs without an improvement of 1e-4 before training stops.
        unlabelled_weight: λ, the total weight of `X_unlabelled` relative to the labelled rows. None for 1: a minibatch has as
            many of both. 0 ignores them.
        random_state: seed of the initial weights, the minibatches and the validation rows.

    Attributes:
        classes_: the class labels, sorted.
        population_: π (K,) of the predictions; the mean if it is uncertain.
        sampling_: ρ (K,), the mix of the training rows, by weight.
        concentration_: Dirichlet parameters of an uncertain population (K,), else None.
        fitted_population_: the mix of the network's own outputs.
        network_: the layers, an `nn.Sequential`, with a logit per class.
        n_iter_: epochs run.
        loss_curve_: the mean loss of each epoch.
        unlabelled_weight_: the λ used; 0 without unlabelled rows.

    Examples:
        >>> import numpy as np
        >>> from rightloss.sklearn import InformationGainMLPClassifier
        >>> rng = np.random.default_rng(0)
        >>> y = np.repeat([0, 1], 200)  # as many cases as controls
        >>> x = rng.normal(size=(400, 2)) + 2 * y[:, None]
        >>> model = InformationGainMLPClassifier(population=0.01, hidden_layer_sizes=(8,), max_iter=400, random_state=0)
        >>> bool(model.fit(x, y).predict_proba(x)[y == 0, 1].mean() < 0.01)
        True
    """

    def __init__(
        self,
        population: Population | None = None,
        *,
        hidden_layer_sizes: Sequence[int] | int = (100,),
        evidence: float = 1.0,
        C: float = 1.0,
        batch_size: int | Literal["auto"] = "auto",
        learning_rate_init: float = 1e-3,
        max_iter: int = 200,
        n_iter_no_change: int = 10,
        unlabelled_weight: float | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.population = population
        self.hidden_layer_sizes = hidden_layer_sizes
        self.evidence = evidence
        self.C = C
        self.batch_size = batch_size
        self.learning_rate_init = learning_rate_init
        self.max_iter = max_iter
        self.n_iter_no_change = n_iter_no_change
        self.unlabelled_weight = unlabelled_weight
        self.random_state = random_state

    def fit(
        self, X: Any, y: Any, sample_weight: ArrayLike | None = None, *, X_unlabelled: Any = None
    ) -> InformationGainMLPClassifier:
        """Train on rows sampled by class, and on unlabelled rows of the population; as `InformationGainClassifier.fit`.

        Args:
            X: features (n, d).
            y: labels (n,), or votes (n, K).
            sample_weight: (n,): 2 is the same as the row twice, 0 ignores it.
            X_unlabelled: features (m, d) of rows from the population, with the columns of `X`.
        """
        sizes, mass = self._checked_sizes(), 1.0 if self.unlabelled_weight is None else self.unlabelled_weight
        people, dtypes = EVIDENCE if self.evidence == 1 else 0.0, [np.float64, np.float32]
        rows, others = read_both(self, X, y, sample_weight, X_unlabelled, mass, people, dtypes)
        prevalence = training_prevalence(self.population, rows).with_evidence(self.evidence)
        if others is not None:
            warn_of_shift(rows, others, prevalence)
        self.classes_, self.unlabelled_weight_ = rows.classes, 0.0 if others is None else others.mass
        self._set_prevalence(prevalence)
        self.fitted_population_ = prevalence.population
        generator = torch.Generator().manual_seed(int(check_random_state(self.random_state).randint(2**31 - 1)))
        self.network_ = _layers([rows.features.shape[1], *sizes], np.log(self.population_), rows.features.dtype, generator)
        self._train(rows, others, prevalence, generator)
        return self

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return log-probabilities in the population (n, K)."""
        check_is_fitted(self)
        dtype = next(self.network_.parameters()).numpy(force=True).dtype
        return self._log_probs(validate_data(self, X, dtype=dtype, reset=False))

    decision_function = log_odds

    def _log_probs(self, features: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            logits = self.network_(torch.from_numpy(np.ascontiguousarray(features))).double().numpy()
        log_probs: np.ndarray = special.log_softmax(logits + np.log(self.population_) - np.log(self.fitted_population_), axis=1)
        return log_probs

    def _checked_sizes(self) -> tuple[int, ...]:
        """Raise a ValueError for the first argument that cannot be used; return the sizes of the hidden layers."""
        if is_unknown(self.population):
            raise ValueError(
                "Expected a known population for a network, but got an unknown one: estimate it first, with "
                "rightloss.shift.estimate_prevalence, or learn it with InformationGainClassifier."
            )
        least = {"evidence": 0.0, "learning_rate_init": 1e-300} | ({"C": 1e-300} if self.C != np.inf else {})
        for name, smallest in least.items():
            checked_number(getattr(self, name), name, smallest, remedy="leave it out for the default")
        for name in ("max_iter", "n_iter_no_change", *(["batch_size"] if self.batch_size != "auto" else [])):
            checked_int(getattr(self, name), name, 1)
        sizes = self.hidden_layer_sizes if isinstance(self.hidden_layer_sizes, tuple | list) else [self.hidden_layer_sizes]
        return tuple(checked_int(size, "hidden_layer_sizes", 1) for size in sizes)

    def _train(
        self, rows: LabelledRows, others: UnlabelledFeatures | None, prevalence: Prevalence, generator: torch.Generator
    ) -> None:
        """Train until the loss no longer improves."""
        linear = [each for each in self.network_ if isinstance(each, nn.Linear)]
        groups: list[dict[str, Any]] = [
            {"params": [each.weight for each in linear], "weight_decay": 1 / (self.C * rows.total)},
            {"params": [each.bias for each in linear]},
        ]
        optimizer = torch.optim.Adam(groups, lr=self.learning_rate_init, fused=True)
        criterion = self._criterion(prevalence, others).to(linear[0].weight.dtype)
        unlabelled = None if others is None else _EndlessRows(torch.from_numpy(others.features), generator)
        losses, best, waited = [], np.inf, 0
        for _ in range(self.max_iter):
            losses.append(self._epoch(rows, unlabelled, criterion, optimizer, generator))
            waited = 0 if losses[-1] < best - TOL else waited + 1
            best = min(best, losses[-1])
            if waited > self.n_iter_no_change:
                break
        else:
            warnings.warn(
                f"Training stopped at max_iter={self.max_iter} epochs, before the loss stopped falling: raise max_iter.",
                ConvergenceWarning,
                stacklevel=3,
            )
        self.loss_curve_, self.n_iter_ = losses, len(losses)

    def _criterion(self, prevalence: Prevalence, others: UnlabelledFeatures | None) -> nn.Module:
        streams: dict[str, Any] = {}
        if others is not None:
            streams = {"unlabelled_weight": others.mass, "unlabelled_evidence": others.evidence}
        criterion = (LogitAdjustedLoss if self.evidence == 1 else InformationGainLoss)(prevalence, Categorical(), **streams)
        criterion.monitor, criterion.nonfinite = None, "nan"  # ρ is the rows' own mix; a loss of NaN is refused here
        return criterion

    def _epoch(
        self,
        rows: LabelledRows,
        unlabelled: _EndlessRows | None,
        criterion: Any,
        optimizer: torch.optim.Optimizer,
        generator: torch.Generator,
    ) -> float:
        """Train on every labelled row once, in minibatches, and return the mean loss."""
        x, total = torch.from_numpy(rows.features), 0.0
        target = torch.from_numpy(rows.index) if rows.hard else torch.from_numpy(rows.votes).to(x.dtype)
        weight = None if rows.weight is None else torch.from_numpy(rows.weight)
        for chosen in torch.randperm(len(x), generator=generator).split(200 if self.batch_size == "auto" else self.batch_size):
            n, batch, streams = len(chosen), x[chosen], {}
            if unlabelled is not None:
                batch = torch.cat([batch, unlabelled.take(n)])
            outputs = self.network_(batch)
            if unlabelled is not None:
                streams = {"unlabelled": outputs[n:]}
            own = None if weight is None else weight[chosen]
            loss: Tensor = criterion(outputs[:n], target[chosen], sample_weight=own, **streams)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * n
        if not np.isfinite(total):
            raise ValueError(f"Expected a finite loss, but got {total}: standardise the features, or lower learning_rate_init.")
        return total / len(x)


class _EndlessRows:
    """Rows in random order, reshuffled after all were used."""

    def __init__(self, rows: Tensor, generator: torch.Generator) -> None:
        self.rows, self.generator, self.order = rows, generator, torch.empty(0, dtype=torch.long)

    def take(self, count: int) -> Tensor:
        """Return the next rows, at most as many as there are."""
        count = min(count, len(self.rows))
        if len(self.order) < count:
            self.order = torch.cat([self.order, torch.randperm(len(self.rows), generator=self.generator)])
        chosen, self.order = self.order[:count], self.order[count:]
        return self.rows[chosen]


def _layers(sizes: Sequence[int], start: np.ndarray, dtype: Any, generator: torch.Generator) -> nn.Sequential:
    """Return layers with the initial weights of Glorot & Bengio, as `MLPClassifier`, and `start` as the last bias."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise([*sizes, len(start)]):
        layer = nn.utils.skip_init(nn.Linear, inputs, outputs, dtype=torch.from_numpy(np.empty(0, dtype)).dtype)
        bound = (6.0 / (inputs + outputs)) ** 0.5
        for parameter in layer.parameters():
            parameter.data.uniform_(-bound, bound, generator=generator)
        layers += [layer, nn.ReLU()]
    layer.bias.data.copy_(torch.from_numpy(start))
    return nn.Sequential(*layers[:-1])
