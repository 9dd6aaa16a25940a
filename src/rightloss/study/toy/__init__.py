"""Each loss on populations with known truth, and under sampling biases that no loss here can correct.

Stage: `ToyConfig` → runs → a folder of tables and figures. Names that need torch are imported on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

from .population import FiveRatings as FiveRatings
from .population import TwoGaussians as TwoGaussians

if TYPE_CHECKING:
    from .study import FILES as FILES
    from .study import ToyConfig as ToyConfig
    from .study import run_toy as run_toy
    from .table import Results as Results
    from .table import print_results as print_results

_MODULE_OF = {"FILES": "study", "ToyConfig": "study", "run_toy": "study", "Results": "table", "print_results": "table"}


def __getattr__(name: str) -> Any:
    """Import a name on first use."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
