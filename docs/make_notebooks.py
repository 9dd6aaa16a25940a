"""Execute the notebooks and store them with their outputs.

    .venv/bin/python docs/make_notebooks.py [NOTEBOOK …]      # all of docs/notebooks/ by default

Each runs from top to bottom in a fresh kernel of this Python. What would differ from run to run (times, ids, versions) is left
out, so that a notebook only changes when its program or its figures do.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).resolve().parent / "notebooks"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def execute(path: Path, timeout: int = 120) -> NotebookNode:
    """Return the notebook with the outputs of a fresh kernel; raise at the first cell that fails."""
    notebook = nbformat.read(path, as_version=4)
    place = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=timeout, record_timing=False, coalesce_streams=True, resources=place).execute()
    return stripped(notebook)


def stripped(notebook: NotebookNode) -> NotebookNode:
    """Return the notebook without what differs from run to run; cells are numbered."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", nbformat.from_dict({})
    return notebook


def main() -> None:
    given = [Path(each) for each in sys.argv[1:]]
    for path in given or sorted(FOLDER.glob("*.ipynb")):
        notebook = execute(path)
        path.write_text(nbformat.writes(notebook).rstrip("\n") + "\n", encoding="utf-8")
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
