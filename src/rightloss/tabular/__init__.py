"""Models of tables (CSV, Parquet): read and inspect a table, and fit a model at the population's prevalence.

What fits a model is imported on first use, so that a model predicts without it.
"""

import importlib.util
from typing import TYPE_CHECKING, Any

from ..extras import install

for _name in ("sklearn", "pandas", "pyarrow"):
    if importlib.util.find_spec(_name) is None:
        raise ModuleNotFoundError(f"rightloss.tabular needs {_name}: {install('table')}", name=_name)

from .columns import Finding as Finding
from .columns import TableWarning as TableWarning
from .folder import check_destination as check_destination
from .folder import load_model as load_model
from .inspect import ClassReport as ClassReport
from .inspect import ColumnReport as ColumnReport
from .inspect import TableReport as TableReport
from .inspect import inspect_table as inspect_table
from .model import HeldOutPredictions as HeldOutPredictions
from .model import TableModel as TableModel
from .model import UnlabelledReport as UnlabelledReport
from .pipelines import ColumnSpec as ColumnSpec
from .pipelines import column_specs as column_specs
from .read import TableStream as TableStream
from .read import open_table as open_table
from .read import read_table as read_table

if TYPE_CHECKING:
    from .fit import FitOptions as FitOptions
    from .fit import fit_table as fit_table


def __getattr__(name: str) -> Any:
    """Import a name on first use."""
    if name not in ("fit_table", "FitOptions"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.fit"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), "fit_table", "FitOptions"})
