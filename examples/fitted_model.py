"""Correct a boosting model that was fitted with balanced class weights, and score both at the new prevalence.

pip install -c constraints.txt -e ".[boosting]" ISLP
python examples/fitted_model.py
"""

from __future__ import annotations

import numpy as np
from ISLP import load_data
from lightgbm import LGBMClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import train_test_split

from rightloss.metrics import evaluate
from rightloss.sklearn import PrevalenceCorrectedClassifier

POPULATION = 0.01  # 1 customer in 100 defaults where the model will be used; in the table it is 3.3


def main() -> None:
    table = load_data("Default")
    x = table[["balance", "income"]].assign(student=table["student"] == "Yes").astype(float)
    y = (table["default"] == "Yes").astype(int)
    x_fit, x_rest, y_fit, y_rest = train_test_split(x, y, train_size=0.4, stratify=y, random_state=0)
    x_held_out, x_test, y_held_out, y_test = train_test_split(x_rest, y_rest, train_size=0.5, stratify=y_rest, random_state=0)

    fitted = LGBMClassifier(n_estimators=50, num_leaves=7, class_weight="balanced", n_jobs=1, verbosity=-1).fit(x_fit, y_fit)
    # A model that is already fitted is frozen, and corrected on rows that it has not seen.
    corrected = PrevalenceCorrectedClassifier(FrozenEstimator(fitted), population=POPULATION).fit(x_held_out, y_held_out)

    before, after = (np.log(model.predict_proba(x_test)) for model in (fitted, corrected))
    for name, log_probs in {"before": before, "after": after}.items():
        print(f"{name:<6} skill", evaluate(log_probs, y_test, POPULATION).skill)


if __name__ == "__main__":
    main()
