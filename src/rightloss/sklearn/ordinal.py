"""OrdinalClassifier: a linear classifier for ordered classes, such as ratings, trained for the population's class frequencies.

Stage: `fit(X, y)` at class frequencies ρ → `predict_proba(X)` at the population π, with an ordinal likelihood.

The likelihoods are those of `rightloss.likelihoods`, here with derivatives written out. Stick breaking and onion peeling take
classes off in stages: with outputs z of the classes of a stage, the log-probability of stopping at class c of it is
z_c − log(1 + Σ exp z), and of going on −log(1 + Σ exp z).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import special
from sklearn.utils.validation import check_is_fitted, validate_data

from ..arrays import checked_choice
from .base import PopulationClassifier, check_solver, log_odds, training_prevalence
from .linear import lbfgs, warn_unless_converged
from .population import Population
from .rows import LabelledRows, read_rows

LIKELIHOODS = ("cumulative_logit", "stick_breaking", "onion_peeling")


class OrdinalClassifier(PopulationClassifier):
    """A linear classifier for ordered classes, trained at one mix of classes, with predictions for another.

    The order is that of the sorted labels: use numbers, or strings that sort in the right order.

    Args:
        population: π, the population's class frequencies: K frequencies from the lowest class up, a dict by class label, a
            `Prevalence` or an estimate of one; for two classes the frequency of the upper one (of two words only if that is
            plainly the positive one, such as "yes"). None for the training mix.
        likelihood: "cumulative_logit", proportional odds: one slope per feature and K − 1 cutpoints; "stick_breaking", level
            by level from below; "onion_peeling", the paper's, both ends first: K − 1 slopes per feature and intercepts.
        penalty: "l2" or None.
        C: inverse of the strength of "l2", as in `InformationGainClassifier`.
        max_iter: maximum number of iterations.
        tol: stop when no derivative of the mean loss, by standardised features, is above tol.

    Attributes:
        classes_: the class labels, sorted.
        population_: π (K,) of the predictions; the mean if it is uncertain.
        sampling_: ρ (K,), the mix of the training rows, by weight.
        concentration_: Dirichlet parameters of an uncertain population (K,), else None.
        coef_: slopes, (1, d) for "cumulative_logit", else (K − 1, d).
        intercept_: (K − 1,); zeros (1,) for "cumulative_logit", which has cutpoints instead.
        cutpoints_: θ (K − 1,) of "cumulative_logit", `p(y ≤ k) = σ(θ_k − x·coef)` in `fitted_population_`; else None.
        fitted_population_: the mix of the probabilities from coefficients and cutpoints.
        n_iter_: iterations run.
        loss_curve_: the objective after each of them.

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
        penalty: Literal["l2"] | None = "l2",
        C: float = 1.0,
        max_iter: int = 200,
        tol: float = 1e-4,
    ) -> None:
        self.population = population
        self.likelihood = likelihood
        self.penalty = penalty
        self.C = C
        self.max_iter = max_iter
        self.tol = tol

    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> OrdinalClassifier:
        """Fit to rows sampled by class; the arguments are those of `InformationGainClassifier.fit`."""
        checked_choice(self.likelihood, "likelihood", LIKELIHOODS)
        checked_choice(self.penalty, "penalty", ("l2", None))
        check_solver(self)
        rows = read_rows(self, X, y, sample_weight)
        self.classes_ = rows.classes
        self._set_prevalence(training_prevalence(self.population, rows))
        self.fitted_population_ = self.population_
        likelihood = likelihood_of(self.likelihood, len(rows.classes))
        outputs, own = likelihood.start(self.fitted_population_)
        begin = np.vstack([np.zeros((rows.features.shape[1], len(outputs))), outputs])
        ridge = 1 / (self.C * rows.total) if self.penalty == "l2" else 0.0
        loss = _loss(likelihood, rows, self.sampling_ / self.population_)
        free = len(own) == 0  # otherwise the cutpoints are the intercept
        fit = lbfgs(rows.features, loss, ridge, begin, self.max_iter, self.tol, own, free, rows.weight)
        warn_unless_converged(fit, self.max_iter)
        self.coef_, self.intercept_ = fit.coefficients[:-1].T.copy(), fit.coefficients[-1].copy()
        self.cutpoints_ = None if free else _cutpoints(fit.own)
        self.loss_curve_, self.n_iter_ = fit.loss_curve, len(fit.loss_curve)
        return self

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return log-probabilities in the population (n, K)."""
        check_is_fitted(self)
        outputs = validate_data(self, X, dtype=np.float64, reset=False) @ self.coef_.T + self.intercept_
        own = np.empty(0) if self.cutpoints_ is None else np.append(self.cutpoints_[:1], np.log(np.diff(self.cutpoints_)))
        table = likelihood_of(self.likelihood, len(self.classes_)).table(outputs, own)
        moved: np.ndarray = table + np.log(self.population_) - np.log(self.fitted_population_)
        return moved - special.logsumexp(moved, axis=1, keepdims=True)

    decision_function = log_odds

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # with unordered classes, as in scikit-learn's checks
        return tags


def likelihood_of(name: str, classes: int) -> Peeling | ProportionalOdds:
    """Return the likelihood of that name."""
    if name == "cumulative_logit":
        return ProportionalOdds()
    if name == "stick_breaking":
        return Peeling(tuple((k,) for k in range(classes - 1)), classes - 1)
    pairs = [(low, classes - 1 - low) for low in range((classes - 1) // 2)]
    middle = classes // 2
    return Peeling((*pairs, (middle,)), middle - 1) if classes % 2 == 0 else Peeling(tuple(pairs), middle)


def _loss(likelihood: Peeling | ProportionalOdds, rows: LabelledRows, factors: np.ndarray) -> Any:
    """Return the information gain at κ = 1, logit adjustment by the factors ρ/π (K,), as an `Objective` of `linear.lbfgs`."""
    offset, weights = np.log(factors), rows.table() / rows.total

    def loss(outputs: np.ndarray, own: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        log_probs = special.log_softmax(likelihood.table(outputs, own) + offset, axis=1)
        by_table = np.exp(log_probs) * weights.sum(1, keepdims=True) - weights
        return -float(np.vdot(weights, log_probs)), *likelihood.backward(outputs, own, by_table)

    return loss


@dataclass(frozen=True)
class Peeling:
    """Classes taken off in stages, one output each; see the module.

    Attributes:
        stages: the classes of each stage.
        last: the class that is left.
    """

    stages: tuple[tuple[int, ...], ...]
    last: int

    def start(self, population: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the outputs (m,) that predict the population: log-odds against all that are left; and no own parameters."""
        left, outputs = set(range(len(population))), []
        for stage in self.stages:
            left -= set(stage)
            outputs += [np.log(population[c]) - np.log(population[sorted(left)].sum()) for c in stage]
        return np.array(outputs), np.empty(0)

    def table(self, outputs: np.ndarray, own: np.ndarray) -> np.ndarray:
        """Return log p(k|x) (n, K)."""
        found, reached, used = np.empty((len(outputs), outputs.shape[1] + 1)), np.zeros(len(outputs)), 0
        for stage in self.stages:
            z = outputs[:, used : used + len(stage)]
            log_total = special.logsumexp(np.column_stack([z, np.zeros(len(z))]), axis=1)
            found[:, list(stage)] = (reached - log_total)[:, None] + z
            reached, used = reached - log_total, used + len(stage)
        found[:, self.last] = reached
        return found

    def backward(self, outputs: np.ndarray, own: np.ndarray, by_table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the derivatives by outputs (n, m) and own parameters (j,), from those by the table (n, K).

        That of an output is by_c − p_c Σ_{j left} by_j, with p_c the probability within its stage.
        """
        found, total, used = np.empty_like(outputs), by_table.sum(1, keepdims=True), 0
        for stage in self.stages:
            columns, by_stage = slice(used, used + len(stage)), by_table[:, list(stage)]
            p = special.softmax(np.column_stack([outputs[:, columns], np.zeros(len(outputs))]), axis=1)[:, :-1]
            found[:, columns] = by_stage - p * total
            total, used = total - by_stage.sum(1, keepdims=True), used + len(stage)
        return found, own


class ProportionalOdds:
    """Proportional odds, `p(y ≤ k) = σ(θ_k − z)`; own parameters are the first cutpoint and the logarithms of the gaps.

    `p(y = k) = σ(θ_k − z) σ(z − θ_{k−1}) (1 − exp(θ_{k−1} − θ_k))`.
    """

    def start(self, population: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return an output of 0 and the cutpoints at which it predicts the population.

        A gap is the difference of the logits of p(y ≤ k), or by the formula above where that is inaccurate, for a rare class.
        """
        up_to, above = np.cumsum(population)[:-1], np.cumsum(population[::-1])[-2::-1]
        share, logits = population[1:-1] / (up_to[1:] * above[:-1]), np.log(up_to) - np.log(above)
        with np.errstate(divide="ignore", invalid="ignore"):
            gaps = np.where(share < 0.5, -np.log1p(-share), np.diff(logits))
        return np.zeros(1), np.append(logits[:1], np.log(gaps))

    def table(self, outputs: np.ndarray, own: np.ndarray) -> np.ndarray:
        """Return log p(k|x) (n, K)."""
        margin = _cutpoints(own) - outputs
        below, above = special.log_expit(margin), special.log_expit(-margin)
        inside = np.log(-np.expm1(-np.exp(own[1:])))
        return np.column_stack([below[:, :1], below[:, 1:] + above[:, :-1] + inside, above[:, -1:]])

    def backward(self, outputs: np.ndarray, own: np.ndarray, by_table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the derivatives by z, and by the first cutpoint and the log-gaps."""
        margin, gaps = _cutpoints(own) - outputs, np.exp(own[1:])
        by_margin = by_table[:, :-1] * special.expit(-margin) - by_table[:, 1:] * special.expit(margin)
        by_cutpoint = by_margin.sum(0)
        later = by_cutpoint[::-1].cumsum()[::-1]  # a gap moves every later cutpoint
        by_gap = later[1:] + by_table[:, 1:-1].sum(0) / np.expm1(gaps)
        return -by_margin.sum(1, keepdims=True), np.append(later[:1], by_gap * gaps)


def _cutpoints(own: np.ndarray) -> np.ndarray:
    """Return θ (K − 1,), increasing, of the first one and the logarithms of the gaps."""
    return np.append(own[:1], own[:1] + np.cumsum(np.exp(own[1:])))
