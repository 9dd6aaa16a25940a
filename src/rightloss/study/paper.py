"""The paper's figures, for comparison: Tables 1 and 2, and its results on ratings.

Stage: none → figures by case and by name, as `rightloss.metrics` names them.

Le Folgoc et al., "Bayesian Sampling Bias Correction: Training with the Right Loss Function", 2020. All are averages over 5
folds of 10, of one run each, on LIDC-IDRI's CT (1,065 benign and 342 malignant nodules; 1,086 with ratings), without intervals.
"""

from __future__ import annotations

from collections.abc import Mapping

COLUMNS = ("expected_log_likelihood", "accuracy", "weighted_accuracy", "balanced_accuracy", "ppv", "npv", "tpr", "tnr", "auc")
CITATION = (
    "Le Folgoc et al., “Bayesian Sampling Bias Correction: Training with the Right Loss Function”, 2020, arXiv:2006.13798"
)
Case = tuple[str, float, str]  # net, population, loss, as our studies name them: bayesIG is "published", wLoss is "weighted"
PaperTable = Mapping[Case, Mapping[str, float]]


def _table(rows: Mapping[Case, tuple[float, ...]]) -> PaperTable:
    return {case: dict(zip(COLUMNS, figures, strict=False)) for case, figures in rows.items()}


# Without AUC.
TABLE_1 = _table(
    {
        ("convnet", 0.3, "published"): (-0.3483, 0.88, 0.872, 0.826, 0.843, 0.885, 0.712, 0.941),
        ("convnet", 0.3, "weighted"): (-0.3488, 0.87, 0.867, 0.831, 0.807, 0.893, 0.740, 0.921),
        ("inception", 0.3, "published"): (-0.39, 0.86, 0.84, 0.78, 0.79, 0.86, 0.64, 0.92),
        ("inception", 0.3, "weighted"): (-0.36, 0.87, 0.85, 0.81, 0.81, 0.87, 0.69, 0.93),
        ("convnet", 0.001, "published"): (-0.027, 0.82, 0.9925, 0.66, 0.67, 0.999, 0.33, 0.99),
        ("convnet", 0.001, "weighted"): (-0.0074, 0.74, 0.9989, 0.5, 0.0, 0.9989, 0.0, 1.0),
        ("inception", 0.001, "published"): (-0.36, 0.83, 0.86, 0.81, 0.81, 0.93, 0.69, 0.928),
        ("inception", 0.001, "weighted"): (-0.006, 0.74, 0.9989, 0.5, 0.0, 0.9989, 0.0, 1.0),
    }
)
TABLE_2 = _table(
    {
        ("convnet", 0.3, "published"): (-0.33, 0.89, 0.88, 0.83, 0.86, 0.89, 0.72, 0.95, 0.91),
        ("convnet", 0.3, "weighted"): (-0.33, 0.89, 0.88, 0.83, 0.84, 0.89, 0.72, 0.94, 0.90),
        ("inception", 0.3, "published"): (-0.36, 0.88, 0.85, 0.78, 0.86, 0.85, 0.61, 0.96, 0.90),
        ("inception", 0.3, "weighted"): (-0.33, 0.88, 0.85, 0.79, 0.84, 0.86, 0.64, 0.95, 0.91),
        ("convnet", 0.001, "published"): (-0.008, 0.82, 0.999, 0.61, 1.0, 0.999, 0.2, 1.0, 0.90),
        ("convnet", 0.001, "weighted"): (-0.006, 0.77, 0.999, 0.50, 0.0, 0.999, 0.0, 1.0, 0.86),
        ("inception", 0.001, "published"): (-0.033, 0.82, 0.992, 0.65, 0.67, 0.999, 0.31, 0.99, 0.90),
        ("inception", 0.001, "weighted"): (-0.006, 0.74, 0.999, 0.5, 0.0, 0.999, 0.0, 1.0, 0.90),
    }
)
TABLES: Mapping[str, PaperTable] = {"rebalanced": TABLE_1, "raw": TABLE_2}
POPULATIONS = (0.3, 0.001)
NETS = ("convnet", "inception")

RATINGS: Mapping[str, float] = {
    "accuracy": 0.55,
    "balanced_accuracy": 0.45,
    "off_by_one": 0.94,
    "balanced_off_by_one": 0.94,
    "off_by_one_recall_1": 0.76,
    "off_by_one_recall_2": 0.98,
    "off_by_one_recall_3": 0.98,
    "off_by_one_recall_4": 1.0,
    "off_by_one_recall_5": 0.93,
    "malignant_accuracy": 0.85,
    "malignant_tpr": 0.92,
    "malignant_tnr": 0.76,
    "malignant_ppv": 0.80,
    "malignant_npv": 0.90,
}
"""Onion-peeling likelihood, bayesIG, rebalanced minibatches; the paper does not say for which way of aggregating readers."""

AVERAGES = (
    "The paper's figures are averages over 5 folds of 10, so that its PPV is not that of all nodules together: at 0.001, a TPR "
    "of 0.33 and a TNR of 0.99 make a PPV of 0.03 by Bayes' rule, where it prints 0.67. "
    "Where nobody is called malignant it prints 0."
)
MISPRINT = (
    "The paper's InceptionNet with bayesIG at 0.001 in Table 1 has the wAcc. that its TPR of 0.69 and TNR of 0.928 make at 0.3 "
    "(0.86), not at 0.001 (0.93): take that line with care."
)
