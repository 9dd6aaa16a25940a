"""Execute notebooks, store them with their outputs, and write the page of each: Markdown and pictures.

Each runs from top to bottom in a fresh kernel of this Python. What would differ from run to run (times, ids, versions) is left
out, so that a notebook only changes when its program or its figures do. Pages are made here, and not by a plugin, so that the
site's own styles, links and checks apply to them, and nothing is loaded from the net.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
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


def page_of(notebook: NotebookNode, name: str) -> tuple[str, dict[str, bytes]]:
    """Return a notebook's page as Markdown, and its pictures by file name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(re.sub(r"\.ipynb\)", ".md)", cell.source))
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:
            data = output.get("data", {})
            if "image/png" in data:
                file = f"{name}-{len(pictures) + 1}.png"
                pictures[file] = base64.b64decode(data["image/png"])
                parts.append(f"![Figure {len(pictures)}]({file})")
            elif "text/html" in data:
                parts.append(plain_table(data["text/html"]))
            else:
                text = output.text if output.output_type == "stream" else data["text/plain"]
                parts.append("```text\n" + text.rstrip("\n") + "\n```")
    parts.append(f"This page is a notebook, as executed: [{name}.ipynb]({name}.ipynb).")
    return "\n\n".join(parts) + "\n", pictures


def plain_table(html: str) -> str:
    """Return a DataFrame's HTML without styles of its own, so that those of the site apply."""
    html = re.sub(r"<style.*?</style>|</?div>", "", html, flags=re.DOTALL)
    html = re.sub(r"<table[^>]*>", "<table>", html)
    return re.sub(r"\n\s*\n", "\n", html).strip()


def make_notebooks(notebooks: Sequence[Path]) -> None:
    """Execute notebooks, and write each with its page and its pictures."""
    for path in notebooks or sorted(FOLDER.glob("*.ipynb")):
        notebook = execute(path)
        path.write_text(nbformat.writes(notebook).rstrip("\n") + "\n", encoding="utf-8")
        page, pictures = page_of(notebook, path.stem)
        path.with_suffix(".md").write_text(page, encoding="utf-8")
        for file, content in pictures.items():
            (path.parent / file).write_bytes(content)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")
