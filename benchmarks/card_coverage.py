"""Measure how often the intervals of a card contain the true value.

The classes are two Gaussians; the model is correct at π. Test rows are sampled half and half, or with 30 % of the class; the
threshold is π, so that whoever is above the average risk is flagged. True values are normal probabilities. Every case is drawn
`DRAWS` times; with 4,000 draws, the standard error of a coverage of 95 % is 0.35 percentage points. With a survey of n people,
π itself is drawn from its posterior, Beta(π n + ½, (1 − π) n + ½).
Writes card_coverage.md: a row per case, a column per figure.
"""

from __future__ import annotations

import sys

import numpy as np
from report import folder, table
from scipy.special import logit
from scipy.stats import norm

from rightloss import Prevalence
from rightloss.card.numbers import at_threshold, mean_over_observed
from rightloss.metrics.one_vs_rest import scores
from rightloss.metrics.predictive_values import figures_at, operating_point

DRAWS, SEPARATION = 4000, 1.8
FIGURES = [
    "sensitivity",
    "specificity",
    "lr_plus",
    "lr_minus",
    "ppv",
    "npv",
    "flagged",
    "found",
    "false_alarms",
    "missed",
    "mean / π",
]


def odds(x: np.ndarray, pi: float) -> np.ndarray:
    """Return the correct log-odds at π of classes N(0, 1) and N(SEPARATION, 1)."""
    return SEPARATION * x - SEPARATION**2 / 2 + logit(pi)


def truth(pi: float, model_pi: float) -> dict[str, float]:
    """Return the figures at π of a model made for `model_pi`, per 1,000 people, where the threshold is `model_pi`."""
    cut = SEPARATION / 2
    tpr, fpr = norm.sf(cut - SEPARATION), norm.sf(cut)
    found = figures_at(np.array(tpr), np.array(fpr), np.array(pi), 1000)
    names = ["sensitivity", "specificity", "ppv", "npv", "lr_plus", "lr_minus", "flagged", "found", "false_alarms", "missed"]
    return {name: float(each) for name, each in zip(names, found.values(), strict=True)} | {"mean / π": 1.0}


def coverage(n: int, share: float, pi: float, survey: int | None, draws: int) -> dict[str, float]:
    held = dict.fromkeys(FIGURES, 0)
    for draw in range(draws):
        rng = np.random.default_rng(draw)
        y = (np.arange(n) < round(share * n)).astype(np.int64)
        z = odds(rng.normal(size=n) + SEPARATION * y, pi)
        log_probs = -np.logaddexp(0, np.stack([z, -z], 1))
        belief = Prevalence.binary(pi) if survey is None else Prevalence.beta(pi * survey + 0.5, (1 - pi) * survey + 0.5)
        right = truth(pi if survey is None else float(belief.sample(1, rng)[0, 1]), pi)
        found = at_threshold(operating_point(log_probs, y, belief, threshold=pi, people=1000))
        found["mean / π"] = mean_over_observed(scores(log_probs, y, pi, 1, "coverage"), np.ones(n, bool), 0.95)
        for name in FIGURES:
            low, high = found[name]["low"], found[name]["high"]
            held[name] += low is not None and low <= right[name] and (high is None or right[name] <= high)
    return {name: count / draws for name, count in held.items()}


def main(draws: int = DRAWS) -> None:
    known = [(n, share, pi) for n in (200, 2000) for share in (0.5, 0.3) for pi in (0.3, 0.02, 0.001)]
    cases: list[tuple[int, float, float, int | None]] = [(*each, None) for each in known]
    cases += [(2000, 0.5, 0.02, 600), (2000, 0.5, 0.001, 3000)]
    rows = []
    for n, share, pi, survey in cases:
        found = coverage(n, share, pi, survey, draws)
        source = "known" if survey is None else f"from a survey of {survey:,}"
        rows.append([f"{n:,}", f"{share:.0%}", f"{pi:g}, {source}", *(f"{100 * found[name]:.1f}" for name in FIGURES)])
        print(rows[-1], file=sys.stderr, flush=True)
    page = (
        f"Made by `python benchmarks/card_coverage.py`: coverage in % of 95 % intervals of a card, {draws:,} draws each.\n\n"
        + table(["test rows", "of the class", "π", *FIGURES], rows)
    )
    (folder() / "card_coverage.md").write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
