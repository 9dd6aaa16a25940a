"""Optional packages.

Stage: the name of an extra → how to install it, for the message of an ImportError.
"""


def install(extra: str) -> str:
    """Return the command that installs an extra, and where it works.

    Examples:
        >>> from rightloss.extras import install
        >>> install("table")
        'in a checkout of rightloss, pip install -c constraints.txt -e ".[table]"'
    """
    return f'in a checkout of rightloss, pip install -c constraints.txt -e ".[{extra}]"'
