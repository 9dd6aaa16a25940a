"""Classifiers and scorers for scikit-learn, with the population's class frequencies as a constructor argument.

Names are imported on first use: the network needs torch, and others need parts of scikit-learn that take time to import.
"""

import importlib.util
from typing import TYPE_CHECKING, Any

from ..extras import install

for _name in ("sklearn", "pandas"):
    if importlib.util.find_spec(_name) is None:
        raise ModuleNotFoundError(f"rightloss.sklearn needs {_name}: {install('sklearn')}", name=_name)

if TYPE_CHECKING:
    from .coefficients import CoefficientTable as CoefficientTable
    from .corrected import PrevalenceCorrectedClassifier as PrevalenceCorrectedClassifier
    from .information_gain import InformationGainClassifier as InformationGainClassifier
    from .network import InformationGainMLPClassifier as InformationGainMLPClassifier
    from .ordinal import OrdinalClassifier as OrdinalClassifier
    from .scorers import PrevalenceScorer as PrevalenceScorer
    from .scorers import prevalence_scorer as prevalence_scorer

_MODULES = {
    "CoefficientTable": "coefficients",
    "InformationGainClassifier": "information_gain",
    "InformationGainMLPClassifier": "network",
    "OrdinalClassifier": "ordinal",
    "PrevalenceCorrectedClassifier": "corrected",
    "PrevalenceScorer": "scorers",
    "prevalence_scorer": "scorers",
}


def __getattr__(name: str) -> Any:
    """Import a name on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES} - {"InformationGainMLPClassifier"})  # which needs torch
