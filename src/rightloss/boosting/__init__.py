"""Gradient boosting at the population's prevalence: objectives for LightGBM and XGBoost, and a classifier around them."""

from .classifier import BoostingClassifier as BoostingClassifier
from .objectives import BoostingMetric as BoostingMetric
from .objectives import InformationGainObjective as InformationGainObjective
from .objectives import WeightedObjective as WeightedObjective
