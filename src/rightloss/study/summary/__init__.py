"""Results of a study → figures with intervals, comparisons, and findings in sentences."""

from .contract import CellPair as CellPair
from .contract import CellSummary as CellSummary
from .contract import PairedFigure as PairedFigure
from .contract import PaperCheck as PaperCheck
from .contract import Summary as Summary
from .summarise import summarise as summarise
