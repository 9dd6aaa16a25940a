"""Test on new seeds whether the default loss is behind logit adjustment on the toy study's five ratings.

With κ = 0 it was, by 4 standard errors. Both losses are trained on the same examples in the same order, so the difference is
paired by seed. Writes toy_fresh_ratings.md.
"""

from __future__ import annotations

import math
from statistics import fmean, stdev

from report import folder, table

from rightloss.study.methods import DEFAULT, EVIDENCE
from rightloss.study.toy.study import LINEAR, ToyConfig, ToyProblem, ToyRun, run
from rightloss.study.toy.table import constant_rows

SEEDS = range(200, 300)  # the study has 0 to 4, toy_fresh_seeds.py 100 to 139


def main() -> None:
    out, config = folder(), ToyConfig()
    population = config.populations()[-1]
    best = constant_rows(population)[0].log_likelihood
    losses = {}
    for method in (DEFAULT, "logit-adjusted"):
        losses[method] = [run(ToyRun(ToyProblem(population, LINEAR, seed, config.test_examples), method)) for seed in SEEDS]
    ours, theirs = ([each.log_likelihood for each in runs] for runs in losses.values())
    error = math.sqrt(math.fsum(each.variance for each in losses[DEFAULT])) / len(SEEDS)
    differences = [one - other for one, other in zip(ours, theirs, strict=True)]
    spread = stdev(differences) / math.sqrt(len(SEEDS))
    lines = [
        [
            "default minus the best possible",
            f"{fmean(ours) - best:+.2e}",
            f"{error:.1e}",
            f"{(fmean(ours) - best) / error:+.1f}",
        ],
        [
            "logit adjustment minus the best possible",
            f"{fmean(theirs) - best:+.2e}",
            f"{error:.1e}",
            f"{(fmean(theirs) - best) / error:+.1f}",
        ],
        [
            "default minus logit adjustment, paired",
            f"{fmean(differences):+.2e}",
            f"{spread:.1e}",
            f"{fmean(differences) / spread:+.1f}",
        ],
    ]
    header = ["expected log-likelihood", "mean", "standard error", "in standard errors"]
    made = (
        f"Five ratings, linear model, {len(SEEDS)} seeds, κ = {EVIDENCE:g}; made by `python benchmarks/toy_fresh_ratings.py`."
    )
    page = f"{made}\n\n{table(header, lines)}"
    (out / "toy_fresh_ratings.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
