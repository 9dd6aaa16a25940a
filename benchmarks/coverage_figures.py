"""Measure how often the 95 % intervals of `metrics.evaluate` and of a card contain the true value.

*evaluate_coverage*: the classes are two Gaussians (π = 0.05), with labels in equal numbers. The model's log-odds are scaled by
1.3 and shifted by 0.2. True values are integrals over the log-odds, on a grid. The cases differ in what is drawn (examples;
patients with four examples that share a random shift; π itself from a Beta) and in the kind of interval. For patients the true
values are those of the wider Gaussians that result from the shift. Of 1,000 draws the standard error is 0.7 percentage points.

*card_coverage*: the model is correct at π. Test rows are sampled half and half, or with 30 % of the class; the threshold is π,
so that whoever is above the average risk is flagged. True values are normal probabilities. Of 4,000 draws the standard error
is 0.35 percentage points. With a survey of n people, π itself is drawn from its posterior, Beta(π n + ½, (1 − π) n + ½).
"""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from measuring import shown, table, write_pages
from scipy.special import log_expit, logit
from scipy.stats import norm
from torch import Tensor

from rightloss import Prevalence
from rightloss.card.numbers import at_threshold, mean_over_observed
from rightloss.metrics import evaluate
from rightloss.metrics.one_vs_rest import scores
from rightloss.metrics.predictive_values import figures_at, operating_point

DRAWS, CARDS = (int(os.environ.get("RIGHTLOSS_DRAWS", draws)) for draws in (1000, 4000))
PI, SEPARATION, STRETCH, MOVE, THRESHOLD = 0.05, 0.8, 1.3, 0.2, 0.1
BELIEF = Prevalence.beta(20, 380)
CASES = {  # rows of a class, kind of interval, standard deviation of the patients' shifts, whether π is drawn
    "1,000 + 1,000 examples, bootstrap": (1000, "bootstrap", 0.0, False),
    "1,000 + 1,000 examples, analytic": (1000, "analytic", 0.0, False),
    "300 + 300 examples, bootstrap": (300, "bootstrap", 0.0, False),
    "300 + 300 examples, analytic": (300, "analytic", 0.0, False),
    "100 + 100 examples, bootstrap": (100, "bootstrap", 0.0, False),
    "150 + 150 patients of 4, bootstrap": (600, "bootstrap", 0.7, False),
    "150 + 150 patients of 4, analytic": (600, "analytic", 0.7, False),
    "300 + 300 examples, π from Beta(20, 380), bootstrap": (300, "bootstrap", 0.0, True),
    "300 + 300 examples, π from Beta(20, 380), analytic": (300, "analytic", 0.0, True),
}


def predictions(x: Tensor) -> Tensor:
    odds = STRETCH * (math.log(PI) - math.log1p(-PI) + 2 * SEPARATION * x) + MOVE
    return torch.stack([F.logsigmoid(-odds), F.logsigmoid(odds)], 1)


def truth(pi: float, shared: float) -> dict[str, float]:
    """Return every figure at prevalence `pi`; patients' shifts have the standard deviation `shared`."""
    width = math.sqrt(1 + shared**2)
    x = torch.linspace(-12 * width, 12 * width, 400_001, dtype=torch.float64)
    density = [torch.exp(-((x - side * SEPARATION) ** 2) / (2 * width**2)) for side in (-1, 1)]
    well, ill = (each / each.sum() for each in density)
    log_probs = predictions(x)
    p = log_probs[:, 1].exp()
    positive = (p >= THRESHOLD).double()
    tpr, fpr = float(ill @ positive), float(well @ positive)
    ell = pi * float(ill @ log_probs[:, 1]) + (1 - pi) * float(well @ log_probs[:, 0])
    price, both = THRESHOLD / (1 - THRESHOLD), pi * ill + (1 - pi) * well
    gap = torch.bincount((both.cumsum(0) * 15).long().clamp_max(14), weights=both * p - pi * ill)
    return {
        "expected_log_likelihood": ell,
        "skill": 1 - ell / (pi * math.log(pi) + (1 - pi) * math.log1p(-pi)),
        "brier": pi * float(ill @ (1 - p) ** 2) + (1 - pi) * float(well @ p**2),
        "mean_prediction": float(both @ p),
        "accuracy": (tpr + 1 - fpr) / 2,
        "weighted_accuracy": pi * tpr + (1 - pi) * (1 - fpr),
        "balanced_accuracy": (tpr + 1 - fpr) / 2,
        "ppv": pi * tpr / (pi * tpr + (1 - pi) * fpr),
        "npv": (1 - pi) * (1 - fpr) / ((1 - pi) * (1 - fpr) + pi * (1 - tpr)),
        "tpr": tpr,
        "tnr": 1 - fpr,
        "auc": float(ill @ (well.cumsum(0) - 0.5 * well)),
        "calibration_error": float(gap.abs().sum()),
        "calibration_slope": 1 / width**2 / STRETCH,  # the true log-odds are 2 μ x / width², even if patients differ
        "expected_cost": pi * (1 - tpr) + (1 - pi) * fpr * price,
        "net_benefit": pi * tpr - (1 - pi) * fpr * price,
    }


def held(per_class: int, intervals: Any, shared: float, uncertain: bool) -> dict[str, float]:
    """Return the share of intervals that contain the truth, by figure."""
    fixed = truth(PI, shared)
    counts = dict.fromkeys(fixed, 0)
    for draw in range(DRAWS):
        generator = torch.Generator().manual_seed(draw)
        y = torch.arange(2).repeat_interleave(per_class)
        x = torch.randn(2 * per_class, dtype=torch.float64, generator=generator) + (2 * y - 1) * SEPARATION
        groups = torch.arange(2 * per_class) // 4 if shared else None
        if groups is not None:
            x = x + shared * torch.randn(len(groups.unique()), dtype=torch.float64, generator=generator)[groups]
        right = truth(float(BELIEF.sample(1, generator)[0, 1]), shared) if uncertain else fixed
        how: dict[str, Any] = {"threshold": THRESHOLD, "groups": groups, "intervals": intervals, "generator": generator}
        found = evaluate(predictions(x), y, BELIEF if uncertain else PI, **how)
        for name in counts:
            counts[name] += found[name].low <= right[name] <= found[name].high
    return {name: count / DRAWS for name, count in counts.items()}


def evaluate_coverage() -> str:
    torch.set_num_threads(1)
    columns = {words: held(*case) for words, case in CASES.items()}
    rows = [[name, *(f"{100 * column[name]:.1f}" for column in columns.values())] for name in truth(PI, 0.0)]
    return f"coverage in % of 95 % intervals, {DRAWS} draws each.\n\n{table(['figure', *columns], rows)}"


def card_held(n: int, share: float, pi: float, survey: int | None) -> dict[str, float]:
    """Return the share of a card's intervals that contain the truth, by figure, for classes N(0, 1) and N(1.8, 1)."""
    counts: dict[str, int] = {}
    sensitivity, false = (np.array(norm.sf(cut)) for cut in (-0.9, 0.9))
    for draw in range(CARDS):
        rng = np.random.default_rng(draw)
        y = (np.arange(n) < round(share * n)).astype(np.int64)
        z = 1.8 * (rng.normal(size=n) + 1.8 * y) - 1.8**2 / 2 + logit(pi)
        log_probs = log_expit(np.stack([-z, z], 1))
        belief = Prevalence.binary(pi) if survey is None else Prevalence.beta(pi * survey + 0.5, (1 - pi) * survey + 0.5)
        at = pi if survey is None else float(belief.sample(1, rng)[0, 1])
        names = "sensitivity specificity ppv npv lr_plus lr_minus flagged found false_alarms missed".split()
        right = dict(zip(names, map(float, figures_at(sensitivity, false, np.array(at), 1000).values()), strict=True))
        found = at_threshold(operating_point(log_probs, y, belief, threshold=pi, people=1000))
        found["mean / π"] = mean_over_observed(scores(log_probs, y, pi, 1, "coverage"), np.ones(n, bool), 0.95)
        for name, value in {**right, "mean / π": 1.0}.items():
            low, high = found[name]["low"], found[name]["high"]
            counts[name] = counts.get(name, 0) + (low is not None and low <= value and (high is None or value <= high))
    return {name: count / CARDS for name, count in counts.items()}


def card_coverage() -> str:
    cases = [(n, share, pi, None) for n in (200, 2000) for share in (0.5, 0.3) for pi in (0.3, 0.02, 0.001)]
    figures = [*"sensitivity specificity lr_plus lr_minus ppv npv flagged found false_alarms missed".split(), "mean / π"]
    rows = []
    for n, share, pi, survey in [*cases, (2000, 0.5, 0.02, 600), (2000, 0.5, 0.001, 3000)]:
        found = card_held(n, share, pi, survey)
        source = "known" if survey is None else f"from a survey of {survey:,}"
        rows.append(shown([f"{n:,}", f"{share:.0%}", f"{pi:g}, {source}", *(f"{100 * found[name]:.1f}" for name in figures)]))
    words = f"coverage in % of 95 % intervals of a card, {CARDS:,} draws each."
    return f"{words}\n\n{table(['test rows', 'of the class', 'π', *figures], rows)}"


if __name__ == "__main__":
    write_pages(__doc__, evaluate_coverage=evaluate_coverage, card_coverage=card_coverage)
