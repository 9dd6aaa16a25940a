"""Optional packages.

Stage: the name of an extra → how to install it, for the message of an ImportError; a module's name → the module.
"""

from importlib import import_module
from types import ModuleType


def install(extra: str) -> str:
    """Return the command that installs an extra, and where it works.

    Examples:
        >>> from rightloss.extras import install
        >>> install("table")
        'in a checkout of rightloss, pip install -c constraints.txt -e ".[table]"'
    """
    return f'in a checkout of rightloss, pip install -c constraints.txt -e ".[{extra}]"'


def imported(name: str, needed: str, extra: str) -> ModuleType:
    """Import an optional module, or raise an ImportError with the sentence `needed` and how to install the extra."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ModuleNotFoundError(f"{needed}: {install(extra)}", name=name) from error
