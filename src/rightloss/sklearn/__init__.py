"""Classifiers and scorers for scikit-learn, with the population's class frequencies as a constructor argument."""

import importlib.util

from ..extras import install

for _name in ("sklearn", "pandas"):
    if importlib.util.find_spec(_name) is None:
        raise ModuleNotFoundError(f"rightloss.sklearn needs {_name}: {install('sklearn')}", name=_name)

from .coefficients import CoefficientTable as CoefficientTable
from .corrected import PrevalenceCorrectedClassifier as PrevalenceCorrectedClassifier
from .information_gain import InformationGainClassifier as InformationGainClassifier
from .ordinal import OrdinalClassifier as OrdinalClassifier
from .scorers import PrevalenceScorer as PrevalenceScorer
from .scorers import prevalence_scorer as prevalence_scorer
