"""The likelihood of labelled and unlabelled rows of a linear model: its derivatives, and the coefficients' covariance.

Stage: `LabelledRows`, `UnlabelledFeatures`, π or none → coefficients and π (`fit_streams`) → `stream_covariances`.

The likelihood is that of `rightloss.losses.streams`, with t(s|x) for the probability of a stream and e for the stream that the
row is from. By the log-odds η_k of the model and φ_k of the population, both against class 0, and with c = Σ_k (t_k − e_k) over
the classes, a row's derivatives are

    ∂/∂η_j = (t_j − e_j) − p_j c,        ∂/∂φ_j = −(t_j − e_j) + π_j c,
    ∂²/∂η∂η = A − c V(p),     ∂²/∂η∂φ = A,     ∂²/∂φ∂φ = A + c V(π),

with V(p) = diag p − p pᵀ and A the covariance, over the streams, of ∂ log(t_k/t_u): `1{k = j} − p_j` by η_j and
`π_j − 1{k = j}` by φ_j for class k, 0 for the unlabelled stream.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from ..prevalence import Prevalence
from ..shift.maximum_likelihood import log_mixture, maximise
from .coefficients import inverse_or_none, moments, vanishes
from .linear import LinearFit, class_logits, lbfgs, moved, sum_of_products, variance
from .rows import LabelledRows, UnlabelledFeatures


def fit_streams(
    rows: LabelledRows,
    others: UnlabelledFeatures,
    prevalence: Prevalence,
    begin: np.ndarray,
    ridge: float,
    max_iter: int,
    tol: float,
) -> tuple[LinearFit, FittedStreams]:
    """Maximise the likelihood by L-BFGS, also over an unknown or uncertain π; return coefficients at the population.

    Args:
        rows: labelled.
        others: unlabelled.
        prevalence: π, ρ.
        begin: coefficients (d + 1, j) in the population, at `prevalence.start`.
        ridge: as in `linear.lbfgs`; the same for `max_iter` and `tol`.
    """
    learnt = prevalence.is_unknown or prevalence.is_uncertain
    rho, first, table, m = prevalence.sampling, prevalence.start, rows.table(), len(others.features)
    known = None if learnt else first
    loss = StreamLikelihood(table, m, others.mass, rho, known, prevalence.concentration, others.evidence)
    features = np.vstack([rows.features, others.features])
    weight = np.concatenate([table.sum(1), np.full(m, loss.multiple)])
    own = np.empty(0)
    if learnt:
        begin = moved(begin, np.log(rho) - np.log(first))
        probs = special.softmax(class_logits(others.features @ begin[:-1] + begin[-1]), axis=1)
        best = maximise(lambda pi: log_mixture(pi, [(probs / rho).T]), rho).point
        # where a class is at 0 the likelihood is flat in φ, so a search must come from inside
        inside = np.maximum(best, 0.1 * rho)
        own = loss.own_of(first if prevalence.is_uncertain else inside / inside.sum())
    fit = lbfgs(features, loss, ridge, begin, max_iter, tol, own, weight=weight)
    pi = loss.population_of(fit.own)
    found = moved(fit.coefficients, np.log(pi) - np.log(rho)) if learnt else fit.coefficients
    logits = class_logits(features @ found[:-1] + found[-1])
    stream = np.concatenate([table.argmax(1), np.full(m, len(rho))])
    counted = np.concatenate([table.sum(1), np.ones(m)])
    fitted = FittedStreams(features, stream, counted, loss, logits, pi)
    return replace(fit, coefficients=found), fitted


@dataclass(frozen=True, eq=False)
class StreamLikelihood:
    """`Σ_n −log t(y_n|x_n) + λN/M Σ_m −log t(u|x_m)` per labelled example, as an `Objective` of `linear.lbfgs`.

    If π is learned, the outputs are at the sampled mix, which the labelled rows determine best, and the objective has its own
    parameters: φ times `own_scale`, so that their scale is that of the coefficients. The prior of π is
    Dirichlet(`concentration`), people counted by class.

    Attributes:
        table: weights by class of the labelled rows (N, K), as `LabelledRows.table`.
        unlabelled: M, the number of unlabelled rows.
        mass: λ, the weight of the unlabelled relative to the labelled rows.
        sampling: ρ (K,); 0 for a class that is never labelled.
        population: π (K,); None if it is learned.
        concentration: parameters of the prior of a learned π (K,); None for no prior.
        evidence: ε of a known π, see `rightloss.losses.streams.with_evidence`.
    """

    table: np.ndarray
    unlabelled: int
    mass: float
    sampling: np.ndarray
    population: np.ndarray | None
    concentration: np.ndarray | None = None
    evidence: float = 0.0

    @property
    def total(self) -> float:
        """N, the weight of the labelled rows."""
        return float(self.table.sum())

    @property
    def multiple(self) -> float:
        """The weight of an unlabelled row: λN/M."""
        return self.mass * self.total / self.unlabelled

    def __call__(self, outputs: np.ndarray, own: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Return value and gradients by outputs and by φ."""
        pi = self.population_of(own)
        logits = class_logits(outputs)
        if self.population is None:
            logits = logits + np.log(pi) - np.log(self.sampling)
        streams = StreamTable.of(logits, pi, self.sampling, self.mass)
        n = len(self.table)
        counts = np.concatenate([self.table.sum(1), np.full(self.unlabelled, self.multiple)])
        seen = self.sampling > 0
        value = -float(np.vdot(self.table[:, seen], streams.log_t[:n, :-1][:, seen]))
        value -= self.multiple * float(streams.log_t[n:, -1].sum())
        residual = counts[:, None] * streams.t[:, :-1]
        residual[:n] -= self.table
        c = residual.sum(1)
        by_output = residual - streams.p * c[:, None]
        by_own = np.empty(0)
        if self.evidence and self.population is not None:
            of_evidence, by_unlabelled = self._evidence(streams.p[n:])
            value, by_output[n:] = value + of_evidence, by_output[n:] + by_unlabelled
        if self.population is None:
            by_own = (pi * c.sum() - c @ streams.p)[1:]
            if self.concentration is not None:
                mean = self.concentration / self.concentration.sum()
                # 0 at the mean, because a large constant would lose digits
                value -= float(self.concentration @ (np.log(pi) - np.log(mean)))
                by_own = by_own - (self.concentration - self.concentration.sum() * pi)[1:]
        by_output = by_output[:, 1:] if outputs.shape[1] == 1 else by_output
        by_own = by_own / self.own_scale if len(by_own) else by_own
        return value / self.total, by_output / self.total, by_own / self.total

    def _evidence(self, p: np.ndarray) -> tuple[float, np.ndarray]:
        """Return −ελN Σ_k π_k log m_k, m the mean of p(k|x) over the unlabelled rows, and its gradient by their logits."""
        assert self.population is not None
        people, m = self.evidence * self.mass * self.total, p.mean(0)
        ratio = self.population / m
        gradient = -people / len(p) * p * (ratio - (p @ ratio)[:, None])
        return -people * float(self.population @ np.log(m)), gradient

    @property
    def own_scale(self) -> np.ndarray:
        """The factor of φ (K − 1,): the square root of the prior's curvature, 1 without a prior."""
        if self.concentration is None:
            return np.ones(len(self.sampling) - 1)
        total = self.concentration.sum()
        share = self.concentration[1:] / total
        return np.sqrt(1 + total * share * (1 - share) / self.total)

    def population_of(self, own: np.ndarray) -> np.ndarray:
        """Return π (K,): the given one, or that of the objective's own parameters."""
        if self.population is not None:
            return self.population
        found: np.ndarray = special.softmax(np.append(0.0, own / self.own_scale))
        return found

    def own_of(self, population: np.ndarray) -> np.ndarray:
        """Return the objective's own parameters for a π (K,)."""
        return self.own_scale * (np.log(population[1:]) - np.log(population[0]))


@dataclass(frozen=True, eq=False)
class StreamTable:
    """Probabilities of the classes and of the streams, row by row.

    Attributes:
        p: p(k|x) in the population (n, K).
        log_t: log t(s|x) (n, K + 1), the unlabelled last; −inf for a class that is never labelled.
        t: t(s|x).
    """

    p: np.ndarray
    log_t: np.ndarray
    t: np.ndarray

    @classmethod
    def of(cls, logits: np.ndarray, population: np.ndarray, sampling: np.ndarray, mass: float) -> StreamTable:
        """Return the probabilities for logits at the population (n, K)."""
        log_p = special.log_softmax(logits, axis=1)
        with np.errstate(divide="ignore"):
            adjust = np.log(sampling) - np.log(population)
        log_t = special.log_softmax(np.column_stack([log_p + adjust, np.full(len(log_p), np.log(mass))]), axis=1)
        return cls(np.exp(log_p), log_t, np.exp(log_t))


@dataclass(frozen=True, eq=False)
class FittedStreams:
    """The inputs of the covariances: the rows, and the likelihood at the solution.

    Attributes:
        features: X of labelled and then unlabelled rows (n, d).
        stream: the stream of each row (n,): its class, or K for unlabelled ones.
        weight: sample weights (n,), 1 for unlabelled rows.
        likelihood: the objective.
        logits: logits at the population (n, K), at the solution.
        population: π (K,) at the solution.
    """

    features: np.ndarray
    stream: np.ndarray
    weight: np.ndarray
    likelihood: StreamLikelihood
    logits: np.ndarray
    population: np.ndarray

    @property
    def observed(self) -> np.ndarray:
        """The weight of each row in its stream (n, K + 1)."""
        return np.eye(len(self.population) + 1)[self.stream] * self.weight[:, None]

    @property
    def counts(self) -> np.ndarray:
        """Rows of each stream (K + 1,)."""
        return self.observed.sum(0)

    @property
    def multiples(self) -> np.ndarray:
        """The weight of a row of each stream in the likelihood (K + 1,)."""
        return np.append(np.ones(len(self.population)), self.likelihood.multiple)


def stream_covariances(fitted: FittedStreams) -> dict[str, np.ndarray] | None:
    """Return covariances of the log-odds against class 0, class by class, intercept last; then of φ if π is learned.

    The rows of each stream are a sample of fixed size, so only x given the stream is random, and the covariance is
    `H⁻¹ M H⁻¹` as in `coefficients`, with streams instead of classes. "robust" uses the observed H and the covariance within
    streams; "model" their expectations if x belongs to stream s with the model's probability. A Dirichlet for π is treated
    as people counted by class, with random numbers.

    Return None if the features are linearly dependent, or if the likelihood is not at its maximum.
    """
    lik, counts = fitted.likelihood, fitted.counts
    streams = StreamTable.of(fitted.logits, fitted.population, lik.sampling, lik.mass)
    by_model = StreamTable.of(fitted.logits, fitted.population, lik.sampling, counts[-1] / counts[:-1].sum()).t
    expected = by_model * fitted.weight[:, None]
    expected *= counts / np.where(counts > 0, expected.sum(0), 1.0)
    moves = _by_odds(streams, fitted)
    own = moves.transpose(1, 0, 2)  # of each class; the unlabelled have none
    mean = (streams.t[:, :-1, None] * moves).sum(1)
    scores = [multiple * (mean - part) for multiple, part in zip(fitted.multiples, [*own, 0.0], strict=True)]
    found = {}
    for kind, shares in {"model": expected, "robust": fitted.observed}.items():
        bread = inverse_or_none(_hessian(fitted, streams, shares))
        if bread is None:
            return None
        within = moments(fitted.features, scores, shares, counts, kind == "robust")[1]
        found[kind] = bread @ _of_parameters(within, fitted) @ bread
    return found


def streams_are_separated(fitted: FittedStreams) -> bool:
    """Return whether the curvature vanishes along a combination of the features, which makes a coefficient infinite."""
    flat = np.broadcast_to(np.log(fitted.population), fitted.logits.shape)
    here, null = (
        _hessian(
            fitted, StreamTable.of(each, fitted.population, fitted.likelihood.sampling, fitted.likelihood.mass), fitted.observed
        )
        for each in (fitted.logits, flat)
    )
    size = (len(fitted.population) - 1) * (fitted.features.shape[1] + 1)  # only the coefficients
    return vanishes(here[:size, :size], null[:size, :size])


def _by_odds(streams: StreamTable, fitted: FittedStreams) -> np.ndarray:
    """Return the derivatives of log(t_k/t_u), k a class, by η and, if π is learned, by φ: (n, K, K − 1), (n, K, 2(K − 1))."""
    one = np.eye(len(fitted.population))[:, 1:]
    by_eta = one - streams.p[:, None, 1:]
    if fitted.likelihood.population is not None:
        return by_eta
    return np.concatenate([by_eta, np.broadcast_to(fitted.population[1:] - one, by_eta.shape)], axis=2)


def _hessian(fitted: FittedStreams, streams: StreamTable, shares: np.ndarray) -> np.ndarray:
    """Return H, where row i belongs to the streams with probabilities (n, K + 1)."""
    t, moves, k = streams.t[:, :-1], _by_odds(streams, fitted), len(fitted.population) - 1
    counted = shares * fitted.multiples
    weight = counted.sum(1)
    c = (weight * t.sum(1) - counted[:, :-1].sum(1))[:, None, None]
    mean = np.einsum("nk,nki->ni", t, moves)
    curved = np.einsum("nk,nki,nkj->nij", t, moves, moves) - mean[:, :, None] * mean[:, None, :]
    curved *= weight[:, None, None]
    curved[:, :k, :k] -= c * variance(streams.p[:, 1:])
    curved[:, k:, k:] += c * variance(fitted.population[None, 1:]) if curved.shape[1] > k else 0.0
    return _of_parameters(sum_of_products(fitted.features, curved), fitted)


def _of_parameters(matrix: np.ndarray, fitted: FittedStreams) -> np.ndarray:
    """Return the rows and columns of the coefficients and of φ, which has only an intercept, plus the prior's curvature for φ.

    The prior is people counted by class, whose numbers are random: it adds as much to M as to H.
    """
    if fitted.likelihood.population is not None:
        return matrix
    free, size = len(fitted.population) - 1, fitted.features.shape[1] + 1
    kept = [*range(free * size), *range((free + 1) * size - 1, 2 * free * size, size)]
    found, alpha = matrix[np.ix_(kept, kept)], fitted.likelihood.concentration
    if alpha is not None:
        found[free * size :, free * size :] += alpha.sum() * variance(fitted.population[None, 1:])[0]
    return found
