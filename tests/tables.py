"""Tables with known properties, for the tests of `rightloss.tabular`."""

from __future__ import annotations

import numpy as np
import pandas as pd


def people(rows: int = 400, cases: float = 0.5, seed: int = 0, distance: float = 1.5) -> pd.DataFrame:
    """Two normal classes in `x`, whose log-odds at equal classes are distance · x, and columns that say nothing."""
    rng = np.random.default_rng(seed)
    sick = np.arange(rows) < round(cases * rows)
    frame = pd.DataFrame(
        {
            "x": rng.normal(size=rows) + distance * (sick - 0.5),
            "noise": rng.normal(size=rows),
            "sex": rng.choice(["f", "m"], rows),
            "cancer": np.where(sick, "yes", "no"),
        }
    )
    return frame.sample(frac=1, random_state=seed).reset_index(drop=True)
