"""A trained model and labelled rows → a table of what can be seen to be wrong, and what to do about it.

Stage: model or `log_probs`, labels, `Prevalence` → `Check`.
"""

from .result import Check as Check
from .result import CheckRow as CheckRow
from .run import check as check
