"""Objectives for LightGBM and XGBoost: the information gain, with its marginal over all rows, and early-stopping metrics."""

from typing import Any

from .objectives import BoostingMetric as BoostingMetric
from .objectives import InformationGainObjective as InformationGainObjective
from .objectives import WeightedObjective as WeightedObjective


def __getattr__(name: str) -> Any:
    """Name the replacement of a class that is gone."""
    if name == "BoostingClassifier":
        raise ImportError(
            "BoostingClassifier is gone: use rightloss.sklearn.PrevalenceCorrectedClassifier(LGBMClassifier(), population=…). "
            "It takes LightGBM, XGBoost and CatBoost. For other losses give the library an objective of rightloss.boosting."
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
