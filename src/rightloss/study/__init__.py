"""A grid of runs → results on disk → tables, figures, one page.

The grid, in the order data flow:

    methods               the losses that are compared, by name
    config                what is run, frozen: `StudyConfig` → runs → groups of runs that share data, fold and seed; presets
    datasets              data sets, from the package or from files
    training              a group of runs → their predictions
    results               predictions of runs, on disk, pooled over folds and seeds; a finished study in one small file
    engines               where groups are run: here, in other processes, on other machines
    execute               runs a study: only what is missing in its folder
    paper                 the paper's figures, for comparison
    summary               results → figures with intervals, findings in words, tables
    report                results, summary → one self-contained page

`toy` is separate: each loss where the truth is known, and under sampling biases that no loss here can correct.

Names are imported on first use, so that populations with a known truth need no torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import PRESETS as PRESETS
    from .config import StudyConfig as StudyConfig
    from .execute import run_study as run_study
    from .results import StudyResults as StudyResults
    from .results import read_one_file as read_one_file
    from .results import read_study as read_study
    from .results import write_one_file as write_one_file
    from .toy.population import FiveRatings as FiveRatings
    from .toy.population import TwoGaussians as TwoGaussians
    from .toy.study import ToyConfig as ToyConfig
    from .toy.study import run_toy as run_toy

_NAMES_OF = {
    "config": "PRESETS StudyConfig",
    "execute": "run_study",
    "results": "StudyResults read_one_file read_study write_one_file",
    "toy.population": "FiveRatings TwoGaussians",
    "toy.study": "ToyConfig run_toy",
}
_MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names.split()}
__all__ = [*_MODULE_OF]


def __getattr__(name: str) -> Any:
    """Import a name on first use."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
