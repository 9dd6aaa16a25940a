"""Check a trained model on labelled rows: a table of what looks wrong, and what to do about it.

Stage: model or `log_probs`, labels, `Prevalence` → `Check`. The package itself can be called: it is then the function `check`
in it, so that `rightloss.check` is both.
"""

import sys
from types import ModuleType

from .diagnostics import CheckRow as CheckRow
from .model_check import Check as Check
from .model_check import check as check


class _CallableModule(ModuleType):
    __call__ = staticmethod(check)


sys.modules[__name__].__class__ = _CallableModule
