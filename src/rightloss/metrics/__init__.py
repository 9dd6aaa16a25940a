"""Metrics, curves and decisions at a prevalence, from predictions and labels."""

from typing import TYPE_CHECKING, Any

from .compare import Comparison as Comparison
from .compare import Difference as Difference
from .compare import compare as compare
from .curves import PrecisionRecallCurve as PrecisionRecallCurve
from .curves import ProbabilityHistogram as ProbabilityHistogram
from .curves import ReliabilityCurve as ReliabilityCurve
from .curves import RocCurve as RocCurve
from .curves import precision_recall_curve as precision_recall_curve
from .curves import probability_histogram as probability_histogram
from .curves import reliability_curve as reliability_curve
from .curves import roc_curve as roc_curve
from .decisions import ConformalSets as ConformalSets
from .decisions import cost_matrix as cost_matrix
from .decisions import decide as decide
from .decisions import expected_cost as expected_cost
from .evaluate import evaluate as evaluate
from .figures import Evaluation as Evaluation
from .figures import Figure as Figure
from .predictive_values import DecisionCurve as DecisionCurve
from .predictive_values import OperatingPoint as OperatingPoint
from .predictive_values import PredictiveValueCurve as PredictiveValueCurve
from .predictive_values import decision_curve as decision_curve
from .predictive_values import operating_point as operating_point
from .predictive_values import predictive_value_curve as predictive_value_curve
from .smooth_calibration import SmoothCalibrationCurve as SmoothCalibrationCurve
from .smooth_calibration import smooth_calibration_curve as smooth_calibration_curve

if TYPE_CHECKING:
    from ..card.card import Card as Card
    from ..card.card import card as card


def __getattr__(name: str) -> Any:
    """Return `card` and `Card`, which are made of the functions here."""
    if name not in ("card", "Card"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ..card import card as made

    return getattr(made, name)
