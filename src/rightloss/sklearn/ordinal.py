"""OrdinalClassifier: a classifier for ordered classes, such as ratings, trained for the population's class frequencies.

Stage: `fit(X, y)` at class frequencies ρ → `predict_proba(X)` at the population π, with an ordinal likelihood.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy import special
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from ..likelihoods import CumulativeLogit, OnionPeeling, StickBreaking
from ..prevalence import Prevalence
from .criteria import LossName, OutputLoss, make_criterion, reference_mix
from .information_gain import Reference, expected_log_likelihood
from .labelled_rows import LabelledRows, read_rows
from .linear import lbfgs, warn_unless_converged
from .network import Activation, Network, forward, train
from .options import check_options, hidden_sizes, network_settings
from .population import Population, class_prevalence

OrdinalLikelihood = CumulativeLogit | StickBreaking | OnionPeeling
LIKELIHOODS: dict[str, type[CumulativeLogit] | type[StickBreaking] | type[OnionPeeling]] = {
    "cumulative_logit": CumulativeLogit,
    "stick_breaking": StickBreaking,
    "onion_peeling": OnionPeeling,
}


class OrdinalClassifier(ClassifierMixin, BaseEstimator):
    """A classifier for ordered classes, trained at one mix of classes, with predictions for a population with another mix.

    The order is that of the sorted labels: use numbers, or strings that sort in the right order. Arguments that are not
    listed are those of `InformationGainClassifier`.

    Args:
        population: π, the population's class frequencies: K frequencies from the lowest class up, a dict by class label, a
            `Prevalence` or an estimate of one; for two classes the frequency of the upper one (of two words only if that is
            plainly the positive one, such as "yes"). None for the training mix.
        likelihood: "cumulative_logit", proportional odds: one slope per feature and K − 1 cutpoints; "stick_breaking", level
            by level from below; "onion_peeling", the paper's, both ends first: K − 1 slopes per feature and intercepts.
        loss: as in `InformationGainClassifier`.
        penalty: "l2" or None.

    Attributes:
        classes_: the class labels, sorted.
        population_: π (K,) of the predictions; the mean if it is uncertain.
        sampling_: ρ (K,), the mix of the training rows, by weight.
        coef_: slopes of a linear model, (1, d) for "cumulative_logit", else (K − 1, d).
        intercept_: of a linear model: (K − 1,); zeros (1,) for "cumulative_logit", which has cutpoints instead.
        cutpoints_: θ (K − 1,) of "cumulative_logit", `p(y ≤ k) = σ(θ_k − x·coef)` in `fitted_population_`; else None.
        fitted_population_: the mix of the probabilities from coefficients and cutpoints.
        coefs_, intercepts_: weights of the layers of a network.
        n_layers_: 2 for a linear model, and one more for each hidden layer.
        n_iter_: iterations or epochs run.
        loss_curve_: the objective after each of them.
        validation_scores_: with early stopping, the expected log-likelihood after each epoch; else None.

    Examples:
        >>> import numpy as np
        >>> from rightloss.sklearn.ordinal import OrdinalClassifier
        >>> rng = np.random.default_rng(0)
        >>> y = np.repeat([1, 2, 3], 50)  # as many of each rating
        >>> x = rng.normal(size=(150, 1)) + y[:, None]
        >>> model = OrdinalClassifier(population=[0.9, 0.08, 0.02]).fit(x, y)
        >>> model.predict_proba([[2.0]]).round(2)
        array([[0.83, 0.15, 0.02]])
    """

    def __init__(
        self,
        population: Population | None = None,
        *,
        likelihood: Literal["cumulative_logit", "stick_breaking", "onion_peeling"] = "cumulative_logit",
        loss: LossName = "information_gain",
        evidence: float | None = None,
        reference: Reference | None = None,
        hidden_layer_sizes: Sequence[int] | int = (),
        activation: Activation = "relu",
        penalty: Literal["l2"] | None = "l2",
        C: float = 1.0,
        max_iter: int = 200,
        tol: float = 1e-4,
        batch_size: int | Literal["auto"] = "auto",
        learning_rate_init: float = 1e-3,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ) -> None:
        self.population = population
        self.likelihood = likelihood
        self.loss = loss
        self.evidence = evidence
        self.reference = reference
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.penalty = penalty
        self.C = C
        self.max_iter = max_iter
        self.tol = tol
        self.batch_size = batch_size
        self.learning_rate_init = learning_rate_init
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> OrdinalClassifier:
        """Fit to rows sampled by class; the arguments are those of `InformationGainClassifier.fit`."""
        check_options(self, ("l2", None))
        if self.likelihood not in LIKELIHOODS:
            raise ValueError(
                f"Expected `likelihood` to be one of {list(LIKELIHOODS)}, but got {self.likelihood!r}: choose one of them."
            )
        sizes = hidden_sizes(self)
        rows = read_rows(self, X, y, sample_weight, [np.float64, np.float32] if sizes else np.float64)
        prevalence = class_prevalence(self.population, rows.classes, rows.class_totals() / rows.class_totals().sum())
        prevalence = prevalence if self.evidence is None else prevalence.with_evidence(self.evidence)
        self.classes_, self.n_layers_ = rows.classes, len(sizes) + 2
        self._remember(prevalence)
        stated = Prevalence(prevalence.sampling, prevalence.sampling) if self.loss == "log_likelihood" else prevalence
        self.fitted_population_ = stated.population.numpy()
        likelihood: OrdinalLikelihood = LIKELIHOODS[self.likelihood](len(rows.classes))
        likelihood.double()
        reference = reference_mix(self.reference, prevalence, rows.classes)
        criterion = make_criterion(self.loss, prevalence, reference, likelihood, not sizes)
        start = likelihood.starting_outputs(stated)
        if sizes:
            self._fit_network(rows, criterion, start)
        else:
            self._fit_linear(rows, criterion, start)
        self.cutpoints_ = None
        if isinstance(likelihood, CumulativeLogit):
            self.cutpoints_ = likelihood.double().cutpoints.detach().numpy()
        return self

    def set_population(self, population: Population | None) -> OrdinalClassifier:
        """Move the predictions to another population without refitting; None is the training mix."""
        check_is_fitted(self)
        self._remember(class_prevalence(population, self.classes_, self.sampling_))
        return self

    @property
    def prevalence_(self) -> Prevalence:
        """π, with its uncertainty, and ρ."""
        check_is_fitted(self)
        if self.concentration_ is not None:
            return Prevalence.dirichlet(self.concentration_, self.sampling_)
        return Prevalence(self.population_, self.sampling_)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return log-probabilities in the population (n, K)."""
        check_is_fitted(self)
        return self._log_probs(self._outputs(X))

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return probabilities in the population (n, K)."""
        return np.exp(self.predict_log_proba(X))

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the log-odds of the upper of two classes (n,); log-probabilities (n, K) for more."""
        log_probs = self.predict_log_proba(X)
        return log_probs[:, 1] - log_probs[:, 0] if len(self.classes_) == 2 else log_probs

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class in the population (n,)."""
        log_probs = self.predict_log_proba(X)
        return self.classes_[log_probs.argmax(1)]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # with unordered classes, as in scikit-learn's checks
        return tags

    def _remember(self, prevalence: Prevalence) -> None:
        concentration = prevalence.concentration
        self.population_, self.sampling_ = prevalence.population.numpy(), prevalence.sampling.numpy()
        self.concentration_ = None if concentration is None else concentration.numpy()

    def _fit_linear(self, rows: LabelledRows, criterion: Any, start: Tensor) -> None:
        loss = OutputLoss(criterion, rows)
        begin = np.vstack([np.zeros((rows.features.shape[1], len(start))), start.numpy()])
        ridge = 1 / (self.C * rows.total) if self.penalty == "l2" else 0.0
        free = self.likelihood != "cumulative_logit"  # otherwise the cutpoints are the intercept
        fit = lbfgs(rows.features, loss, ridge, begin, self.max_iter, self.tol, loss.own, free, rows.weight)
        loss.set_own(fit.own)
        warn_unless_converged(fit, self.max_iter)
        self.coef_, self.intercept_ = fit.coefficients[:-1].T.copy(), fit.coefficients[-1].copy()
        self.loss_curve_, self.n_iter_ = fit.loss_curve, len(fit.loss_curve)
        self.validation_scores_: list[float] | None = None

    def _fit_network(self, rows: LabelledRows, criterion: Any, start: Tensor) -> None:
        settings = network_settings(self, len(rows.features), rows.total)
        generator = torch.Generator().manual_seed(int(check_random_state(self.random_state).randint(2**31 - 1)))
        sizes = [rows.features.shape[1], *settings.hidden_layer_sizes, len(start)]
        dtype = torch.from_numpy(rows.features[:0]).dtype
        free = self.likelihood != "cumulative_logit"
        network = Network(sizes, start, settings, criterion, dtype, generator, free)
        to_population = np.log(self.population_) - np.log(self.fitted_population_)

        def score(outputs: Tensor, held: LabelledRows) -> float:
            with torch.no_grad():
                table = criterion.likelihood.table(outputs).double().numpy()
            return expected_log_likelihood(special.log_softmax(table + to_population, axis=1), held, self.population_)

        train(network, rows, score, settings, generator)
        self.coefs_, self.intercepts_ = network.arrays()
        self.loss_curve_, self.n_iter_ = network.loss_curve, len(network.loss_curve)
        self.validation_scores_ = network.validation_scores or None

    def _outputs(self, X: Any) -> np.ndarray:
        if self.n_layers_ == 2:
            outputs: np.ndarray = validate_data(self, X, dtype=np.float64, reset=False) @ self.coef_.T + self.intercept_
            return outputs
        features = validate_data(self, X, dtype=self.coefs_[0].dtype, reset=False)
        return forward(self.coefs_, self.intercepts_, self.activation, features).astype(np.float64)

    def _log_probs(self, outputs: np.ndarray) -> np.ndarray:
        likelihood: OrdinalLikelihood = LIKELIHOODS[self.likelihood](len(self.classes_))
        likelihood.double()
        with torch.no_grad():
            if isinstance(likelihood, CumulativeLogit):
                cutpoints = torch.from_numpy(self.cutpoints_)
                likelihood.first.copy_(cutpoints[:1])
                likelihood.log_gaps.copy_(cutpoints.diff().log())
            table = likelihood.table(torch.from_numpy(outputs)).numpy()
        log_probs: np.ndarray = special.log_softmax(table + np.log(self.population_) - np.log(self.fitted_population_), axis=1)
        return log_probs
