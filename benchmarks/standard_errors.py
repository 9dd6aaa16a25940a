"""Measure how often the 95 % intervals of `InformationGainClassifier` contain the truth in case-control studies.

A population of 2,000,000 people with three features (two normal and correlated, one binary), 1 % of them cases by a logistic
model. Each study draws 150 cases and 150 controls, without regard to x, and knows that π = 0.01. Then the log-odds also have a
quadratic term that the model lacks, and the truth is what the same loss finds in the whole population. Then π is not known but
was estimated from a survey of 2,000 people, drawn separately for each study. Beside ours are intervals that are often
reported: the inverse Hessian of the weighted loss, and an ordinary logistic regression whose intercept is moved to the
population but keeps its own standard error, or is not moved.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from measuring import shown, table, write_pages
from scipy import optimize, special
from sklearn.exceptions import ConvergenceWarning

from rightloss import Prevalence
from rightloss.sklearn import InformationGainClassifier

STUDIES = int(os.environ.get("RIGHTLOSS_DRAWS", "1000"))
SIZE, PEOPLE, RATE, SURVEY = 150, 2_000_000, 0.01, 2000
SLOPES, PERSON = np.array([0.8, -0.5, 1.0]), np.array([[1.0, -0.5, 1.0]])
Interval = tuple[np.ndarray, np.ndarray]  # low, high of the slopes, the intercept and the log-odds of PERSON's risk
Method = Callable[[np.ndarray, np.ndarray, int], Interval]


class Population(NamedTuple):
    """People: x of the controls and of the cases, and the coefficients, the intercept last."""

    groups: tuple[np.ndarray, np.ndarray]
    truth: np.ndarray


def population(quadratic: float) -> Population:
    """Draw the population; `truth` is that of the logistic model."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(PEOPLE, 3))
    x[:, 1] = 0.6 * x[:, 0] + 0.8 * x[:, 1]
    x[:, 2] = rng.random(PEOPLE) < 0.3
    log_odds = x @ SLOPES + quadratic * x[:, 0] ** 2
    intercept = optimize.brentq(lambda a: special.expit(log_odds + a).mean() - RATE, -20, 0)
    case = rng.random(PEOPLE) < special.expit(log_odds + intercept)
    return Population((x[~case], x[case]), np.append(SLOPES, intercept))


def wald(coef: np.ndarray, covariance: np.ndarray) -> Interval:
    """Return 95 % limits of the coefficients (the intercept last) and of the log-odds of PERSON."""
    person = np.append(PERSON[0], 1.0)
    value, error = np.append(coef, person @ coef), np.sqrt(np.append(np.diag(covariance), person @ covariance @ person))
    return value - 1.959964 * error, value + 1.959964 * error


def ours(loss: str, covariance: str, penalty: str | None, survey: str, x: np.ndarray, y: np.ndarray, found: int) -> Interval:
    """Return the intervals of `summary()` and `predict_interval()`; of a survey, π is "uncertain", or the share is "known"."""
    counts = found + 0.5, SURVEY - found + 0.5
    pi: Any = {"": RATE, "uncertain": Prevalence.beta(*counts), "known": counts[0] / sum(counts)}[survey]
    model: Any = InformationGainClassifier(pi, loss=loss, penalty=penalty).fit(x, y)  # type: ignore[arg-type]
    frame, (low, high) = model.summary(covariance).frame, model.predict_interval(PERSON, covariance)
    return np.append(frame["low"], special.logit(low[0, 1])), np.append(frame["high"], special.logit(high[0, 1]))


def inverse_hessian(x: np.ndarray, y: np.ndarray, found: int) -> Interval:
    """Return the intervals of the weighted loss with the inverse Hessian as the covariance, weights with mean 1."""
    model = InformationGainClassifier(RATE, loss="weighted", penalty=None).fit(x, y)
    p, weights = model.predict_proba(x)[:, 1], np.where(y == 1, 2 * RATE, 2 * (1 - RATE))
    design = np.column_stack([x, np.ones(len(x))])
    return wald(np.append(model.coef_, model.intercept_), np.linalg.inv((design * (weights * p * (1 - p))[:, None]).T @ design))


def ordinary(moved: float, x: np.ndarray, y: np.ndarray, found: int) -> Interval:
    """Return the intervals of ordinary logistic regression, with this added to its intercept."""
    fitted = InformationGainClassifier(None, penalty=None).fit(x, y).summary()
    return wald(fitted.frame["coef"].to_numpy() + np.array([0, 0, 0, moved]), fitted.covariance.to_numpy())


NAMES: dict[str, Method] = {
    "information gain, model": partial(ours, "information_gain", "model", None, ""),
    "information gain, robust": partial(ours, "information_gain", "robust", None, ""),
    "information gain, Firth, model": partial(ours, "information_gain", "model", "firth", ""),
    "weighted, model": partial(ours, "weighted", "model", None, ""),
    "weighted, robust": partial(ours, "weighted", "robust", None, ""),
    "naive: weighted, inverse Hessian": inverse_hessian,
    "naive: ordinary, intercept moved, its own error": partial(ordinary, special.logit(RATE)),
    "naive: ordinary, intercept not moved": partial(ordinary, 0.0),
}


def limit(people: Population, weighted: bool) -> np.ndarray:
    """Return the coefficients that a loss finds in ever larger studies: those of the whole population, reweighted."""
    x, y = np.concatenate(people.groups), np.repeat([0, 1], [*map(len, people.groups)])
    weight = ((np.array([1 - RATE, RATE]) if weighted else 0.5) / np.bincount(y))[y] * len(y)
    model = InformationGainClassifier(RATE, loss="weighted" if weighted else "information_gain", penalty=None, tol=1e-8)
    model.fit(x, y, sample_weight=weight)
    return np.append(model.coef_, model.intercept_)


def coverage(name: str, people: Population, method: Method, truth: np.ndarray) -> list[str]:
    """Return the shares of studies whose interval contains each truth, and the mean width for the risk's log-odds."""
    rng, target, y = np.random.default_rng(1), np.append(truth, np.append(PERSON[0], 1.0) @ truth), np.repeat([0, 1], SIZE)
    hits, widths = np.zeros(5), 0.0
    for _ in range(STUDIES):
        x = np.concatenate([group[rng.choice(len(group), SIZE, replace=False)] for group in people.groups])
        low, high = method(x, y, rng.binomial(SURVEY, RATE))
        hits += (low <= target) & (target <= high)
        widths += (high - low)[-1] / STUDIES
    return shown([name, *(f"{100 * share / STUDIES:.1f} %" for share in hits), f"{widths:.2f}"])


def standard_errors() -> str:
    warnings.simplefilter("ignore", ConvergenceWarning)
    right, wrong = population(0.0), population(0.6)
    few = {name: each for name, each in NAMES.items() if "ordinary" not in name and "Firth" not in name}
    survey = {
        "`population=Prevalence.beta(…)`": partial(ours, "information_gain", "model", None, "uncertain"),
        "naive: the survey's share as if it were known": partial(ours, "information_gain", "model", None, "known"),
    }
    parts = {
        "The model is right": [coverage(name, right, each, right.truth) for name, each in NAMES.items()],
        "The log-odds are not linear": [
            coverage(name, wrong, each, limit(wrong, "weighted" in name)) for name, each in few.items()
        ],
        "The prevalence is from a survey": [coverage(name, right, each, right.truth) for name, each in survey.items()],
    }
    header = ["interval", "slope 1", "slope 2", "slope 3", "intercept", "a person's risk", "mean width of the risk's log-odds"]
    return (
        f"{STUDIES:,} studies a row, so ± 0.7 % is one standard error.\n"
        + "".join(f"\n## {title}\n\n{table(header, rows)}" for title, rows in parts.items())
        + "\nThe inverse Hessian of the weighted loss gives intervals several times too wide here; which way it errs depends "
        "on the weights. Where the log-odds are not linear, robust errors of the weighted loss are somewhat small at 150 "
        "cases: few rows carry most of the weight.\n"
    )


if __name__ == "__main__":
    write_pages(__doc__, standard_errors=standard_errors)
