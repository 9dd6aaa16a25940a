"""Notebooks: they run in a fresh kernel, print what is stored, and their pages are made of what is stored."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import NotebookNode
from without_torch import HAS_TORCH

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


@pytest.fixture(scope="module")
def make() -> dict[str, Any]:
    """The functions of docs/scripts/notebooks.py."""
    return runpy.run_path(str(ROOT / "docs" / "scripts" / "notebooks.py"))


def read(path: Path) -> NotebookNode:
    return nbformat.read(path, as_version=4)


def texts(notebook: NotebookNode) -> list[str]:
    """Return what the cells print, and their results as text, but for pictures."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [
        output.text if output.output_type == "stream" else output.data["text/plain"]
        for output in outputs
        if "image/png" not in output.get("data", {})
    ]


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_and_prints_what_is_stored(path: Path, make: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    if not HAS_TORCH and "import torch" in path.read_text(encoding="utf-8"):
        pytest.skip("it trains a network")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    executed = make["execute"](path)
    stored = read(path)
    assert texts(executed) == texts(stored)
    assert pictures(executed) == pictures(stored) > 0


def pictures(notebook: NotebookNode) -> int:
    return sum("image/png" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", []))


def test_pages_are_made_of_what_is_stored(make: dict[str, Any]) -> None:
    for path in NOTEBOOKS:
        page, images = make["page_of"](read(path), path.stem)
        assert path.with_suffix(".md").read_text(encoding="utf-8") == page, "run .venv/bin/python docs/make.py notebooks"
        assert all((FOLDER / name).read_bytes() == content for name, content in images.items())
    assert {page.stem for page in FOLDER.glob("*.md")} == {path.stem for path in NOTEBOOKS}
    assert len(NOTEBOOKS) == 5


def test_they_are_short_and_small_and_say_nothing_of_the_machine_they_ran_on() -> None:
    for path in NOTEBOOKS:
        notebook, text = read(path), path.read_text(encoding="utf-8")
        assert len(notebook.cells) <= 8
        assert len(text) < 300_000
        assert "What to do next" in notebook.cells[-1].source
        assert not re.search(r"/(home|tmp|work|usr|Users)/|stderr|\"execution\"", text)
        assert [cell.id for cell in notebook.cells] == [f"cell-{number}" for number in range(len(notebook.cells))]
