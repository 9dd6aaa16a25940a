"""What `rightloss fit --unlabelled` brings: few labelled rows of a real table; of the others half are unlabelled, half tested.

Per set ten draws of 60 rows of each class; the population is the set's own. Three fits of each draw: without unlabelled rows;
with them, where labelled rows alone choose the model; with them, where held-out rows of both tables choose, which is what `fit`
does. The figure is the log-likelihood of the test rows. "Moved" unlabelled rows have each column shifted by half its standard
deviation: people of another place. The seeds are not those on which the way to choose was decided.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
from data_sets import load
from report import folder, table

from rightloss.tabular import fit as fitting
from rightloss.tabular import fit_table
from rightloss.tabular.unlabelled import WITH_UNLABELLED, stream_log_likelihood

CASES = [("Default", 0.0), ("Default", 0.5), ("Caravan", 0.0), ("Caravan", 0.5), ("adult", 0.0), ("satimage", 0.0)]
LABELLED, UNLABELLED, TESTED, SEEDS = 60, 6000, 10_000, range(100, 110)


def of_labelled(log_probs: Any, codes: Any, of_others: Any, population: Any) -> float:
    """Return the expected log-likelihood of the labelled rows, as if the unlabelled ones said nothing."""
    own = log_probs[np.arange(len(codes)), codes]
    return float(population @ [own[codes == k].mean() for k in range(len(population))])


def draw(name: str, moved: float, seed: int) -> tuple[list[float], bool, bool]:
    """Return the log-likelihoods of the three fits, whether the model that learnt from both was kept, and a warning given."""
    data, rng = load(name), np.random.default_rng(seed)
    x = pd.DataFrame(data.x, columns=[f"column {number}" for number in range(data.x.shape[1])])
    few = np.concatenate([rng.choice(np.flatnonzero(data.y == label), LABELLED, replace=False) for label in (0, 1)])
    rest = rng.permutation(np.setdiff1d(np.arange(len(x)), few))
    test, others = rest[: len(rest) // 2][:TESTED], rest[len(rest) // 2 :][:UNLABELLED]
    population, y = float(data.y[rest].mean()), data.y[test]
    unlabelled = x.iloc[others] + moved * x.std() * rng.choice([-1, 1], x.shape[1])
    found, labelled = [], x.iloc[few].assign(target=data.y[few])
    for rows, rule in ((None, stream_log_likelihood), (unlabelled, of_labelled), (unlabelled, stream_log_likelihood)):
        setattr(fitting, "stream_log_likelihood", rule)  # noqa: B010
        model = fit_table(labelled, target="target", population=population, unlabelled=rows, positive=1)
        found.append(float(model.predict_log_proba(x.iloc[test])[np.arange(len(y)), y].mean()))
    assert model.unlabelled is not None
    assert WITH_UNLABELLED in set(model.comparison["candidate"])
    return found, model.unlabelled.kept, model.unlabelled.warned


def difference(values: np.ndarray) -> str:
    return f"{values.mean():+.4f} ± {values.std(ddof=1) / np.sqrt(len(values)):.4f}".replace("-", "−")


def main() -> None:
    warnings.simplefilter("ignore")
    out, rows = folder(), []
    for name, moved in CASES:
        drawn = [draw(name, moved, seed) for seed in SEEDS]
        alone, by_labelled, by_both = np.array([each[0] for each in drawn]).T
        kept, warned = sum(each[1] for each in drawn), sum(each[2] for each in drawn)
        gains = [difference(by_labelled - alone), difference(by_both - alone)]
        base = f"{alone.mean():.4f}".replace("-", "−")
        rows.append([f"{name}{', moved' if moved else ''}", base, *gains, f"{kept} of {len(SEEDS)}", str(warned)])
        print(" | ".join(rows[-1]), flush=True)
    header = ["set", "without", "with, labelled rows choose", "with, both choose", "learnt from both, kept", "warned"]
    head = (
        f"Log-likelihood in the population, nats a row, of {LABELLED} + {LABELLED} labelled rows; paired differences to the "
        f"fit without unlabelled rows, ± standard error over seeds {SEEDS[0]} to {SEEDS[-1]}. Made by "
        "`python benchmarks/fit_unlabelled.py`.\n"
    )
    page = "\n".join([head, table(header, rows)])
    (out / "fit_unlabelled.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
