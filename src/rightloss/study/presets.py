"""The studies by name.

Stage: name → `StudyConfig`.
"""

from __future__ import annotations

from .config import IMAGE_NETS, LIKELIHOODS, StudyConfig, Training

BOTH_NETS = IMAGE_NETS[:2]
FULL = Training(steps=2000, views=9, learning_rates=(1e-3, 3e-4), checkpoints=20, averaging=0.99, small=False)
# The paper's Tables 1 and 2: both nets, both prevalences, five of ten folds.
_TABLE = StudyConfig("table1", nets=BOTH_NETS, training=FULL)

PRESETS: dict[str, StudyConfig] = {
    "quick": StudyConfig("quick", folds=4),
    "table1": _TABLE,
    "table2": StudyConfig("table2", nets=BOTH_NETS, minibatches=("raw",), training=FULL),
    "prevalence-sweep": StudyConfig("prevalence-sweep", populations=(0.5, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001), training=FULL),
    "ratings": StudyConfig(
        "ratings",
        task="rating",
        likelihoods=(LIKELIHOODS[1], *LIKELIHOODS[2:], LIKELIHOODS[0]),
        populations=(None,),
        training=FULL,
    ),
    "metadata": StudyConfig(
        "metadata",
        task="balanced",
        nets=("convnet", "metadata", "both"),
        populations=(0.5, 0.3, 0.03, 0.001),
        folds=10,
        training=FULL,
    ),
    "features": StudyConfig(
        "features",
        nets=("mlp",),
        inferences=("map", "ensemble", "mc-dropout", "laplace", "variational", "sghmc"),
        populations=(0.3, 0.01, 0.001),
        minibatches=("raw",),
        folds=10,
        training=Training(steps=1000, batch_size=128, learning_rates=(1e-2, 3e-3), checkpoints=20, averaging=0.99),
    ),
}
