"""Measure how often the 95 % intervals of `InformationGainClassifier.summary()` contain the truth in case-control studies.

A population of 2,000,000 people with three features (two normal and correlated, one binary), 1 % of them cases by a logistic
model. Each study draws 150 cases and 150 controls from it, without regard to x, and knows that π = 0.01; 1,000 studies. In the
second table the log-odds also have a quadratic term that the model lacks, and the truth is what the same loss finds in the
whole population. In the third, π is not known but was estimated from a survey of 2,000 people, drawn separately for each study.
Beside ours are intervals that are often reported: the inverse Hessian of the weighted loss, and an ordinary logistic regression
whose intercept is moved to the population but keeps its own standard error, or is not moved. Writes standard_errors.md.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from report import folder, table
from scipy import optimize, special
from sklearn.exceptions import ConvergenceWarning

from rightloss import Prevalence
from rightloss.sklearn.information_gain import InformationGainClassifier

STUDIES, CASES, PEOPLE, RATE, SURVEY = 1000, 150, 2_000_000, 0.01, 2000
SLOPES, PERSON = np.array([0.8, -0.5, 1.0]), np.array([[1.0, -0.5, 1.0]])

Interval = tuple[np.ndarray, np.ndarray]  # low, high of the slopes, the intercept and the log-odds of PERSON's risk
Method = Callable[[np.ndarray, np.ndarray, int], Interval]


@dataclass(frozen=True)
class Population:
    """People: x of the cases and of the controls, and the coefficients, the intercept last."""

    cases: np.ndarray
    controls: np.ndarray
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
    return Population(x[case], x[~case], np.append(SLOPES, intercept))


def intervals(coef: np.ndarray, covariance: np.ndarray) -> Interval:
    """Return 95 % limits of the coefficients (the intercept last) and of the log-odds of PERSON."""
    person = np.append(PERSON[0], 1.0)
    value = np.append(coef, person @ coef)
    error = np.sqrt(np.append(np.diag(covariance), person @ covariance @ person))
    return value - 1.959964 * error, value + 1.959964 * error


def ours(loss: str, covariance: str, penalty: str | None = None, survey: bool = False) -> Method:
    """Return the intervals of `summary()` and `predict_interval()`."""

    def method(x: np.ndarray, y: np.ndarray, found: int) -> Interval:
        pi = Prevalence.beta(found + 0.5, SURVEY - found + 0.5) if survey else RATE
        model = InformationGainClassifier(pi, loss=loss, penalty=penalty).fit(x, y)  # type: ignore[arg-type]
        frame = model.summary(covariance).frame  # type: ignore[arg-type]
        low, high = model.predict_interval(PERSON, covariance)  # type: ignore[arg-type]
        return np.append(frame["low"], special.logit(low[0, 1])), np.append(frame["high"], special.logit(high[0, 1]))

    return method


def inverse_hessian(x: np.ndarray, y: np.ndarray, found: int) -> Interval:
    """Return the intervals of the weighted loss with the inverse Hessian as the covariance, weights with mean 1."""
    model = InformationGainClassifier(RATE, loss="weighted", penalty=None).fit(x, y)
    p, weights = model.predict_proba(x)[:, 1], np.where(y == 1, 2 * RATE, 2 * (1 - RATE))
    design = np.column_stack([x, np.ones(len(x))])
    hessian = (design * (weights * p * (1 - p))[:, None]).T @ design
    return intervals(np.append(model.coef_, model.intercept_), np.linalg.inv(hessian))


def ordinary(moved: bool) -> Method:
    """Return the intervals of ordinary logistic regression, the intercept moved to the population or not."""

    def method(x: np.ndarray, y: np.ndarray, found: int) -> Interval:
        table = InformationGainClassifier(None, penalty=None).fit(x, y).summary()
        coef = table.frame["coef"].to_numpy().copy()
        coef[-1] += special.logit(RATE) if moved else 0.0
        return intervals(coef, table.covariance.to_numpy())

    return method


def known_rate(x: np.ndarray, y: np.ndarray, found: int) -> Interval:
    """Return the intervals with the survey's share taken as the population's."""
    model = InformationGainClassifier((found + 0.5) / (SURVEY + 1), penalty=None).fit(x, y)
    frame = model.summary().frame
    low, high = model.predict_interval(PERSON)
    return np.append(frame["low"], special.logit(low[0, 1])), np.append(frame["high"], special.logit(high[0, 1]))


def limit(people: Population, weighted: bool) -> np.ndarray:
    """Return the coefficients that a loss finds in ever larger studies: those of the whole population, reweighted."""
    x = np.concatenate([people.controls, people.cases])
    y = np.repeat([0, 1], [len(people.controls), len(people.cases)])
    mix = np.array([1 - RATE, RATE]) if weighted else np.array([0.5, 0.5])
    weight = (mix / np.bincount(y))[y] * len(y)
    model = InformationGainClassifier(RATE, loss="weighted" if weighted else "information_gain", penalty=None, tol=1e-8)
    model.fit(x, y, sample_weight=weight)
    return np.append(model.coef_, model.intercept_)


def coverage(people: Population, method: Method, truth: np.ndarray) -> list[str]:
    """Return the shares of studies whose interval contains each truth, and the mean width for the risk's log-odds."""
    rng = np.random.default_rng(1)
    target = np.append(truth, np.append(PERSON[0], 1.0) @ truth)
    hits, widths = np.zeros(5), 0.0
    y = np.repeat([0, 1], CASES)
    for _ in range(STUDIES):
        groups = [people.controls, people.cases]
        x = np.concatenate([group[rng.choice(len(group), CASES, replace=False)] for group in groups])
        low, high = method(x, y, rng.binomial(SURVEY, RATE))
        hits += (low <= target) & (target <= high)
        widths += (high - low)[-1] / STUDIES
    return [*(f"{100 * share / STUDIES:.1f} %" for share in hits), f"{widths:.2f}"]


def main() -> None:
    warnings.simplefilter("ignore", ConvergenceWarning)
    out = folder()
    header = ["interval", "slope 1", "slope 2", "slope 3", "intercept", "a person's risk", "mean width of the risk's log-odds"]
    names = {
        "information gain, model": ours("information_gain", "model"),
        "information gain, robust": ours("information_gain", "robust"),
        "information gain, Firth, model": ours("information_gain", "model", "firth"),
        "weighted, model": ours("weighted", "model"),
        "weighted, robust": ours("weighted", "robust"),
        "naive: weighted, inverse Hessian": inverse_hessian,
        "naive: ordinary, intercept moved, its own error": ordinary(True),
        "naive: ordinary, intercept not moved": ordinary(False),
    }
    right, wrong = population(0.0), population(0.6)
    parts = [f"Made by `python benchmarks/standard_errors.py`: {STUDIES:,} studies a row, so ± 0.7 % is one standard error.\n"]

    def add(title: str, rows: list[list[str]]) -> None:
        parts.append(f"\n## {title}\n\n{table(header, rows)}")
        print(parts[-1], flush=True)

    add("The model is right", [[name, *coverage(right, method, right.truth)] for name, method in names.items()])
    add(
        "The log-odds are not linear",
        [
            [name, *coverage(wrong, method, limit(wrong, "weighted" in name))]
            for name, method in names.items()
            if "ordinary" not in name and "Firth" not in name
        ],
    )
    survey = ours("information_gain", "model", survey=True)
    methods = {"`population=Prevalence.beta(…)`": survey, "naive: the survey's share as if it were known": known_rate}
    add("The prevalence is from a survey", [[name, *coverage(right, method, right.truth)] for name, method in methods.items()])
    parts.append(
        "\nThe inverse Hessian of the weighted loss gives intervals several times too wide here; which way it errs depends on "
        "the weights. Where the log-odds are not linear, robust errors of the weighted loss are somewhat small at 150 cases: "
        "few rows carry most of the weight.\n"
    )
    (out / "standard_errors.md").write_text("".join(parts))


if __name__ == "__main__":
    main()
