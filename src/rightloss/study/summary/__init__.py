"""Results of a study → figures with intervals, comparisons, and findings in sentences."""

from .contract import CellSummary as CellSummary
from .contract import Comparison as Comparison
from .contract import Difference as Difference
from .contract import PaperCheck as PaperCheck
from .contract import Summary as Summary
from .summarise import summarise as summarise
