"""Write CSV files to try the commands on: 10,000 credit card customers (ISLP's Default), as a user would have them.

    pip install -c constraints.txt -e ".[table]"
    pip install -c constraints.txt --no-deps ISLP  # its data; its dependencies bring PyTorch, which is not needed here
    python examples/customers.py [FOLDER]

`customers.csv` has 200 who defaulted and 200 who did not; `labelled.csv` others, of whom 1 in 30 did; `new.csv` and
`other_bank.csv` have no labels. `few.csv` has 60 of each, and `everybody.csv` is a whole population without labels.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from ISLP import load_data


def files() -> dict[str, pd.DataFrame]:
    """Return the tables by file name."""
    everybody = load_data("Default").sample(frac=1, random_state=0)
    everybody.insert(0, "customer_id", 100_000 + np.random.default_rng(0).permutation(len(everybody)))
    yes, no = everybody[everybody["default"] == "Yes"], everybody[everybody["default"] == "No"]
    others = pd.concat([yes[60:200], yes[280:]])  # at 1 in 30, in neither few.csv nor labelled.csv
    return {
        "customers.csv": pd.concat([yes[:200], no[:200]]),
        "labelled.csv": pd.concat([yes[200:280], no[200:2520]]),
        "other_bank.csv": pd.concat([yes[280:], no[2520:2909]]).drop(columns="default"),
        "new.csv": no[3000:3500].drop(columns="default"),
        "few.csv": pd.concat([yes[:60], no[:60]]),
        "everybody.csv": pd.concat([others, no[2520 : 2520 + 29 * len(others)]]).drop(columns="default"),
    }


def main(folder: Path) -> None:
    for name, table in files().items():
        table.sample(frac=1, random_state=1).to_csv(folder / name, index=False)
        print(f"{name}: {len(table)} rows")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path())
