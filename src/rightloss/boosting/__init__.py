"""Gradient boosting at the population's prevalence: objectives for LightGBM and XGBoost, and a classifier around them."""

import importlib.util

from ..extras import install

for _name in ("sklearn",):
    if importlib.util.find_spec(_name) is None:
        raise ModuleNotFoundError(f"rightloss.boosting needs {_name}: {install('boosting')}", name=_name)

from .classifier import BoostingClassifier as BoostingClassifier
from .objectives import BoostingMetric as BoostingMetric
from .objectives import InformationGainObjective as InformationGainObjective
from .objectives import WeightedObjective as WeightedObjective
