"""Each loss on populations with known truth, and under sampling biases that no loss here can correct.

Stage: `ToyConfig` → runs → a folder of tables and figures.
"""

from .population import FiveRatings as FiveRatings
from .population import TwoGaussians as TwoGaussians
from .study import FILES as FILES
from .study import ToyConfig as ToyConfig
from .study import run_toy as run_toy
from .table import Results as Results
from .table import print_results as print_results
