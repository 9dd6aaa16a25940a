"""Estimate how many tumours are malignant at a hospital that has sent no labels, and move the predictions there.

pip install -c constraints.txt -e ".[sklearn]"
python examples/unknown_prevalence.py
"""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import rightloss as rl
from rightloss.shift import estimate_prevalence, label_shift_test


def main() -> None:
    x, y = load_breast_cancer().data[:, :10], 1 - load_breast_cancer().target
    x, x_rest, y, y_rest = train_test_split(x, y, train_size=0.5, stratify=y, random_state=0)
    x_held_out, x_other, y_held_out, y_other = train_test_split(x_rest, y_rest, train_size=0.5, random_state=0)
    hospital = np.concatenate([x_other[y_other == 0], x_other[y_other == 1][:10]])  # its labels are never used

    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(x, y)
    held_out = (model.predict_log_proba(x_held_out), y_held_out)
    log_probs = model.predict_log_proba(hospital)
    found = estimate_prevalence(log_probs, y.mean(), held_out=held_out)
    print(found)
    print(label_shift_test(log_probs, held_out))
    moved = rl.retarget(log_probs, from_=y.mean(), to=found)
    print(f"mean risk: {np.exp(log_probs)[:, 1].mean():.3f} as it was, {np.exp(moved)[:, 1].mean():.3f} at the estimate;")
    print(f"the truth, which nobody was told: {10 / len(hospital):.3f}")


if __name__ == "__main__":
    main()
