"""`rightloss report DIR`.

Stage: a study's folder → its tables and report, made anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .errors import plain_errors, require


def report(
    folder: Annotated[Path, typer.Argument(help="The folder that `rightloss study` wrote to.", show_default=False)],
) -> None:
    """Write the tables and the report of a study anew, from its results alone; also of one that is not done yet."""
    with plain_errors():
        from ..study.results import read_study
        from .folder import check_folder
        from .pages import PAGES_SIZE, make_pages, show_pages

        require("rich", "matplotlib")
        check_folder(folder, PAGES_SIZE)
        show_pages(make_pages(read_study(folder), folder), folder)
