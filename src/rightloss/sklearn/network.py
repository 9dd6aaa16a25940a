"""InformationGainMLPClassifier: a multi-layer perceptron, trained with torch for the population's class frequencies.

Stage: `fit(X, y)` at class frequencies ρ, with or without unlabelled rows of the population → `predict_proba(X)` at the
population π. The only file of `rightloss.sklearn` that imports torch.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import special
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from ..arrays import checked_choice, checked_number
from ..extras import install
from ..prevalence import Prevalence
from .base import PopulationClassifier, checked_whole, training_prevalence
from .labelled_rows import LabelledRows, read_rows
from .population import LearntPopulation, is_unknown
from .stream_likelihood import mixture_proportions
from .unlabelled_rows import (
    EVIDENCE,
    PopulationRows,
    both_classes,
    check_usable,
    read_unlabelled,
    warn_of_absent_class,
    warn_of_shift,
)

try:
    import torch
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"InformationGainMLPClassifier needs rightloss[torch]: {install('torch')}", name="torch"
    ) from error
from torch import Tensor, nn

from ..likelihoods import Categorical, CumulativeLogit, Likelihood, OnionPeeling, StickBreaking
from ..losses import InformationGainLoss, LogitAdjustedLoss, LogLikelihoodLoss, WeightedLoss

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "logistic": nn.Sigmoid}
LIKELIHOODS: dict[str, Callable[[int], Any]] = {
    "categorical": lambda classes: Categorical(),
    "cumulative_logit": CumulativeLogit,
    "stick_breaking": StickBreaking,
    "onion_peeling": OnionPeeling,
}
LOSSES = ("information_gain", "as_published", "weighted", "log_likelihood")
TOL = 1e-4  # the smallest improvement that counts
HELD_OUT = 0.1  # of the rows, with early stopping
ROWS_FOR_POPULATION = 10_000  # unlabelled rows used to update π before each epoch; at the end all are used


class InformationGainMLPClassifier(PopulationClassifier):
    """A multi-layer perceptron trained at one mix of classes, with predictions for a population with another mix.

    Standardise the features in a pipeline before. The arguments are those of scikit-learn's `MLPClassifier` where the names
    are the same, trained by Adam. Rows may be float32.

    Args:
        population: π, as in `InformationGainClassifier`; "unknown" to learn it from `X_unlabelled`.
        hidden_layer_sizes: (100,) is one hidden layer.
        activation: of the hidden layers: "relu", "tanh" or "logistic".
        likelihood: "categorical"; for ordered classes "cumulative_logit", "stick_breaking" or "onion_peeling", as in
            `OrdinalClassifier`.
        loss: "information_gain"; "as_published", the paper's form, r = π and κ = 0; "weighted"; "log_likelihood", plain
            cross-entropy moved to the population afterwards.
        evidence: κ of the information gain; at 1 it is trained as logit adjustment, the same but for the noise of minibatches.
        C: inverse of the strength of the l2 penalty of the weights, as in `InformationGainClassifier`; inf for none.
        batch_size: rows of a minibatch; "auto" is min(200, n).
        learning_rate_init: learning rate of Adam.
        max_iter: maximum number of epochs.
        n_iter_no_change: epochs without an improvement of 1e-4 before training stops.
        early_stopping: hold out a tenth of the rows, by class, stop by the expected log-likelihood in the population on them,
            and keep the best weights.
        unlabelled_weight: λ, the total weight of `X_unlabelled` relative to the labelled rows. None for 1: a minibatch has as
            many of both. 0 ignores them.
        random_state: seed of the initial weights, the minibatches and the validation rows.

    Attributes:
        classes_: the class labels, sorted.
        population_: π (K,) of the predictions; the mean if it is uncertain; the learned one if it is unknown.
        sampling_: ρ (K,), the mix of the training rows, by weight.
        concentration_: Dirichlet parameters of an uncertain population (K,), else None.
        fitted_population_: the mix of the network's own outputs.
        network_: the layers, an `nn.Sequential`.
        likelihood_: takes its outputs to log-probabilities.
        n_iter_: epochs run.
        loss_curve_: the mean loss of each epoch.
        validation_scores_: with early stopping, the expected log-likelihood after each epoch; else None.
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
        population: LearntPopulation | None = None,
        *,
        hidden_layer_sizes: Sequence[int] | int = (100,),
        activation: Literal["relu", "tanh", "logistic"] = "relu",
        likelihood: Literal["categorical", "cumulative_logit", "stick_breaking", "onion_peeling"] = "categorical",
        loss: Literal["information_gain", "as_published", "weighted", "log_likelihood"] = "information_gain",
        evidence: float = 1.0,
        C: float = 1.0,
        batch_size: int | Literal["auto"] = "auto",
        learning_rate_init: float = 1e-3,
        max_iter: int = 200,
        n_iter_no_change: int = 10,
        early_stopping: bool = False,
        unlabelled_weight: float | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.population = population
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.likelihood = likelihood
        self.loss = loss
        self.evidence = evidence
        self.C = C
        self.batch_size = batch_size
        self.learning_rate_init = learning_rate_init
        self.max_iter = max_iter
        self.n_iter_no_change = n_iter_no_change
        self.early_stopping = early_stopping
        self.unlabelled_weight = unlabelled_weight
        self.random_state = random_state

    def fit(
        self, X: Any, y: Any, sample_weight: ArrayLike | None = None, *, X_unlabelled: Any = None
    ) -> InformationGainMLPClassifier:
        """Train on rows sampled by class, and on unlabelled rows of the population; as `InformationGainClassifier.fit`.

        Args:
            X: features (n, d).
            y: labels (n,), or votes (n, K).
            sample_weight: (n,); not for an information gain that has a marginal of its own.
            X_unlabelled: features (m, d) of rows from the population, with the columns of `X`.
        """
        sizes, given = self._checked_sizes(), X_unlabelled is not None
        classes = both_classes(y, sample_weight, self.population) if given else None
        rows = read_rows(self, X, y, sample_weight, [np.float64, np.float32], classes)
        mass = 1.0 if self.unlabelled_weight is None else self.unlabelled_weight
        plain = self.loss == "information_gain" and self.evidence == 1
        people = EVIDENCE if plain and not is_unknown(self.population) else 0.0
        others = read_unlabelled(self, X_unlabelled, rows, mass, people) if given else None
        check_usable(self, rows, others, given, self.loss in ("information_gain", "as_published"))
        self._check_rows(rows, plain)
        prevalence = training_prevalence(self.population, rows).with_evidence(self.evidence)
        if others is not None:
            warn_of_shift(rows, others, prevalence)
        self.classes_, self.unlabelled_weight_ = rows.classes, 0.0 if others is None else others.mass
        self._set_prevalence(prevalence)
        at_sampling = self.loss == "log_likelihood" or prevalence.is_unknown
        self.fitted_population_ = prevalence.sampling if at_sampling else prevalence.population
        training = _Training(self, rows, sizes, prevalence)
        if prevalence.is_unknown:
            assert others is not None
            self.population_ = training.learn_population(others)
            warn_of_absent_class(self.classes_, self.population_, len(others.features))
        else:
            training.run(others)
        self.network_, self.likelihood_ = training.network, training.likelihood
        self.loss_curve_, self.n_iter_ = training.losses, len(training.losses)
        self.validation_scores_ = training.scores or None
        return self

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return log-probabilities in the population (n, K)."""
        check_is_fitted(self)
        dtype = next(self.network_.parameters()).numpy(force=True).dtype
        table = _table(self.network_, self.likelihood_, validate_data(self, X, dtype=dtype, reset=False))
        log_probs: np.ndarray = special.log_softmax(table + np.log(self.population_) - np.log(self.fitted_population_), axis=1)
        return log_probs

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = False
        tags.classifier_tags.poor_score = self.likelihood != "categorical"  # with unordered classes
        return tags

    def criterion(self, prevalence: Prevalence, likelihood: Likelihood, others: PopulationRows | None) -> nn.Module:
        """Return the loss module for a known prevalence."""
        streams: dict[str, Any] = {}
        if others is not None:
            streams = {"unlabelled_weight": others.mass, "unlabelled_evidence": others.evidence}
        criterion: InformationGainLoss | LogitAdjustedLoss | WeightedLoss | LogLikelihoodLoss
        if self.loss == "information_gain" and self.evidence == 1:
            criterion = LogitAdjustedLoss(prevalence, likelihood, **streams)
        elif self.loss == "information_gain":
            criterion = InformationGainLoss(prevalence, likelihood, **streams)
        elif self.loss == "as_published":
            criterion = InformationGainLoss.as_published(prevalence, likelihood, **streams)
        else:
            criterion = (WeightedLoss if self.loss == "weighted" else LogLikelihoodLoss)(prevalence, likelihood)
        criterion.monitor, criterion.nonfinite = None, "nan"  # ρ is the rows' own mix; a loss of NaN is refused here
        return criterion

    def _checked_sizes(self) -> tuple[int, ...]:
        """Raise a ValueError for the first argument that cannot be used; return the sizes of the hidden layers."""
        checked_choice(self.loss, "loss", LOSSES)
        checked_choice(self.activation, "activation", ACTIVATIONS)
        checked_choice(self.likelihood, "likelihood", LIKELIHOODS)
        least = {"evidence": 0.0, "learning_rate_init": 1e-300} | ({"C": 1e-300} if self.C != np.inf else {})
        for name, smallest in least.items():
            checked_number(getattr(self, name), name, smallest, remedy="leave it out for the default")
        for name in ("max_iter", "n_iter_no_change", *(["batch_size"] if self.batch_size != "auto" else [])):
            checked_whole(getattr(self, name), name)
        sizes = self.hidden_layer_sizes if isinstance(self.hidden_layer_sizes, tuple | list) else [self.hidden_layer_sizes]
        return tuple(checked_whole(size, "hidden_layer_sizes") for size in sizes)

    def _check_rows(self, rows: LabelledRows, plain: bool) -> None:
        """Raise a ValueError if the rows cannot be used with the options."""
        for wrong, expected, remedy in (
            (
                rows.weight is not None and self.loss in ("information_gain", "as_published") and not plain,
                "no sample_weight with a loss that has a marginal, but got some",
                "leave them out, or keep the default loss and evidence",
            ),
            (
                is_unknown(self.population) and not (plain and self.likelihood == "categorical"),
                "the default loss, evidence and likelihood with population='unknown', but got others",
                "leave them out, or give the population",
            ),
            (
                self.early_stopping and not rows.class_totals().all(),
                "labelled rows of both classes for early_stopping, but got one class",
                "pass early_stopping=False and choose max_iter",
            ),
        ):
            if wrong:
                raise ValueError(f"Expected {expected}: {remedy}.")


class _Training:
    """A network in training: its weights, its loss and its optimiser.

    Args:
        model: the options.
        rows: labelled; with early stopping some are held out.
        sizes: of the hidden layers.
        prevalence: π, which may be unknown, and ρ.
    """

    def __init__(
        self, model: InformationGainMLPClassifier, rows: LabelledRows, sizes: Sequence[int], prevalence: Prevalence
    ) -> None:
        self.model, self.prevalence = model, prevalence
        self.generator = torch.Generator().manual_seed(int(check_random_state(model.random_state).randint(2**31 - 1)))
        self.likelihood = LIKELIHOODS[model.likelihood](len(rows.classes))
        self.dtype = torch.from_numpy(rows.features[:0]).dtype
        self.likelihood.to(self.dtype)
        start = self.likelihood.starting_outputs(prevalence.retarget(model.fitted_population_))
        layers = [rows.features.shape[1], *sizes, len(start)]
        self.network = _layers(layers, model.activation, start, self.dtype, self.generator)
        own = list(self.likelihood.parameters())
        self.network[-1].bias.requires_grad_(not own)  # cutpoints instead of the last bias
        weights = [each.weight for each in self.network if isinstance(each, nn.Linear)]
        biases = [each.bias for each in self.network if isinstance(each, nn.Linear) and each.bias.requires_grad]
        decay = 1 / (model.C * rows.total)
        groups: list[dict[str, Any]] = [{"params": weights, "weight_decay": decay}, {"params": [*biases, *own]}]
        self.optimizer = torch.optim.Adam(groups, lr=model.learning_rate_init, fused=True)
        self.criterion: Any = None
        self.offset: Tensor | float = 0.0  # moves outputs from their mix to the loss's π
        self.losses: list[float] = []
        self.scores: list[float] = []
        self.held: LabelledRows | None = None
        self.rows = rows
        if model.early_stopping:
            self.rows, self.held = _split(rows, self.generator)

    def run(self, others: PopulationRows | None, before_epoch: Callable[[_EndlessRows], None] | None = None) -> None:
        """Train until the loss, or with early stopping the validation score, no longer improves, and keep the best weights.

        Args:
            others: unlabelled rows; each minibatch has as many of them as labelled ones, if there are enough.
            before_epoch: called with them before each epoch.
        """
        model, known = self.model, not self.prevalence.is_unknown
        if known:
            self.criterion = model.criterion(self.prevalence, self.likelihood, others).to(self.dtype)
        unlabelled = None if others is None else _EndlessRows(torch.from_numpy(others.features), self.generator)
        mix = self.prevalence.population if known else self.prevalence.sampling
        # the figure that must improve is in the units of the mix
        in_units = model.loss == "weighted" or self.held is not None
        tol = TOL * (float(special.entr(mix).sum() / np.log(len(mix))) if in_units else 1.0)
        best, waited, kept = np.inf, 0, None
        for _ in range(model.max_iter):
            if before_epoch is not None and unlabelled is not None:
                before_epoch(unlabelled)
            self.losses.append(self._epoch(unlabelled))
            figure = self.losses[-1]
            if self.held is not None:
                self.scores.append(self._score(self.held, mix))
                figure = -self.scores[-1]
            waited = 0 if figure < best - tol else waited + 1
            if figure < best:
                best, kept = figure, self.state() if self.held is not None else None
            if waited > model.n_iter_no_change:
                break
        else:
            warnings.warn(
                f"Training stopped at max_iter={model.max_iter} epochs, before the loss stopped falling: raise max_iter.",
                ConvergenceWarning,
                stacklevel=3,
            )
        if kept is not None:
            self.restore(kept)

    def learn_population(self, others: PopulationRows) -> np.ndarray:
        """Train outputs at the sampled mix and learn π (K,), which is returned.

        Train first on the labelled rows, because an untrained network cannot determine π. Then train on all rows; before each
        epoch set π to its maximum likelihood estimate, given the outputs. At the end use all unlabelled rows: their mean
        prediction is π, as at the maximum of the likelihood.
        """
        rho = self.prevalence.sampling
        stated = Prevalence(rho, rho)
        self.criterion = self.model.criterion(stated, self.likelihood, None).to(self.dtype)
        self.run(None)

        def most_likely(features: np.ndarray) -> np.ndarray:
            return mixture_proportions(_table(self.network, self.likelihood, features), rho)

        def learn(unlabelled: _EndlessRows) -> None:
            pi = most_likely(unlabelled.take(ROWS_FOR_POPULATION).numpy())
            self.criterion = self.model.criterion(stated.retarget(pi), self.likelihood, others).to(self.dtype)
            self.offset = torch.from_numpy(np.log(pi) - np.log(rho)).to(self.dtype)

        before, best = self.state(), max(self.scores, default=-np.inf)
        self.run(others, learn)
        if self.held is not None and max(self.scores) <= best:
            self.restore(before)
        return most_likely(others.features)

    def state(self) -> Any:
        """Return a copy of everything that is learned."""
        return copy.deepcopy((self.network.state_dict(), self.likelihood.state_dict()))

    def restore(self, state: Any) -> None:
        """Set everything that is learned."""
        self.network.load_state_dict(state[0])
        self.likelihood.load_state_dict(state[1])

    def _epoch(self, unlabelled: _EndlessRows | None) -> float:
        """Train on every labelled row once, in minibatches, and return the mean loss."""
        rows, total = self.rows, 0.0
        x = torch.from_numpy(rows.features)
        target = torch.from_numpy(rows.index) if rows.votes is None else torch.from_numpy(rows.votes).to(x.dtype)
        weight = None if rows.weight is None else torch.from_numpy(rows.weight).to(x.dtype)
        size = 200 if self.model.batch_size == "auto" else self.model.batch_size
        for chosen in torch.randperm(len(x), generator=self.generator).split(size):
            others = None if unlabelled is None else unlabelled.take(len(chosen))
            loss = self._loss(x[chosen], target[chosen], None if weight is None else weight[chosen], others)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += float(loss.detach()) * len(chosen)
        if not np.isfinite(total):
            raise ValueError(f"Expected a finite loss, but got {total}: standardise the features, or lower learning_rate_init.")
        return total / len(x)

    def _loss(self, x: Tensor, target: Tensor, weight: Tensor | None, unlabelled: Tensor | None) -> Tensor:
        outputs = self.network(x if unlabelled is None else torch.cat([x, unlabelled])) + self.offset
        n, streams = len(x), {} if unlabelled is None else {"unlabelled": outputs[len(x) :]}
        self.criterion.reduction = "mean" if weight is None else "none"
        loss: Tensor = self.criterion(outputs[:n], target, **streams)
        return loss if weight is None else (loss[:n] @ (weight / weight.sum())) + loss[n:].sum() / n

    def _score(self, held: LabelledRows, mix: np.ndarray) -> float:
        """Return `Σ_k π_k · avg_{n: y_n = k} log p(k|x_n)` on the validation rows, at the mix π."""
        table = _table(self.network, self.likelihood, held.features)
        log_probs = special.log_softmax(table + np.log(mix) - np.log(self.model.fitted_population_), axis=1)
        weights = held.table()
        return float(((weights * log_probs).sum(0) / weights.sum(0)) @ mix)


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


def _layers(
    sizes: Sequence[int], activation: str, start: Tensor, dtype: torch.dtype, generator: torch.Generator
) -> nn.Sequential:
    """Return layers with the initial weights of Glorot & Bengio, as `MLPClassifier`, and `start` as the last bias."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layer = nn.utils.skip_init(nn.Linear, inputs, outputs, dtype=dtype)
        bound = ((2.0 if activation == "logistic" else 6.0) / (inputs + outputs)) ** 0.5
        for parameter in layer.parameters():
            parameter.data.uniform_(-bound, bound, generator=generator)
        layers += [layer, ACTIVATIONS[activation]()]
    layer.bias.data.copy_(start)
    return nn.Sequential(*layers[:-1])


def _table(network: nn.Module, likelihood: Likelihood, features: np.ndarray) -> np.ndarray:
    """Return log-probabilities (n, K) at the network's own mix, float64."""
    with torch.no_grad():
        return likelihood.table(network(torch.from_numpy(np.ascontiguousarray(features)))).double().numpy()


def _split(rows: LabelledRows, generator: torch.Generator) -> tuple[LabelledRows, LabelledRows]:
    """Return training and validation rows, with every class in both; rows with votes are stratified by the majority class."""
    strata = rows.index if rows.index is not None else rows.table().argmax(1)
    seed = int(torch.randint(2**31 - 1, (1,), generator=generator))
    try:
        kept, held = train_test_split(np.arange(len(rows.features)), test_size=HELD_OUT, stratify=strata, random_state=seed)
    except ValueError as error:
        raise ValueError(
            f"Expected rows of every class for training and for validation, but got {len(rows.features)} rows with "
            f"{np.bincount(strata).min()} in the rarest class: pass early_stopping=False."
        ) from error
    return rows.take(kept), rows.take(held)
