"""Classifiers and scorers for scikit-learn, with the population's class frequencies as a constructor argument."""

import importlib.util
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from .network import InformationGainMLPClassifier as InformationGainMLPClassifier


def __getattr__(name: str) -> Any:
    """Import the network, which needs torch, on first use."""
    if name != "InformationGainMLPClassifier":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .network import InformationGainMLPClassifier

    return InformationGainMLPClassifier
