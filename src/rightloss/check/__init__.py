"""Check a trained model on labelled rows: a table of problems, and how to fix them.

Stage: model or `log_probs`, labels, `Prevalence` → `Check`. The package is also callable: `rightloss.check(…)` calls the
function `check` in it.
"""

import sys
from types import ModuleType

from .diagnostics import CheckRow as CheckRow
from .model_check import Check as Check
from .model_check import check as check


class _CallableModule(ModuleType):
    __call__ = staticmethod(check)


sys.modules[__name__].__class__ = _CallableModule
