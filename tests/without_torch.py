"""Which tests need torch: those that import it, or what imports it, before a test begins."""

from __future__ import annotations

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path

HAS_TORCH = find_spec("torch") is not None
FOLDER = Path(__file__).parent
RUN_TORCH = {"test_examples", "test_cli_process"}  # in processes that they start, or by name
TORCH_HALF = {"tensors", "sampling", "likelihoods", "marginals", "losses", "inference", "layer", "lidc", "study"}


@cache
def needs_torch(module: str) -> bool:
    """Return whether a file of this folder imports torch, or a part of rightloss that does, at its top or in its helpers."""
    file = FOLDER / f"{module}.py"
    if module in RUN_TORCH:
        return True
    return file.exists() and any(_is_torch(name) for name in _imported(ast.parse(file.read_text(encoding="utf-8"))))


def _imported(tree: ast.Module) -> list[str]:
    names = [alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names]
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def _is_torch(name: str) -> bool:
    first, _, rest = name.partition(".")
    if first == "rightloss":
        return rest.partition(".")[0] in TORCH_HALF and not rest.startswith("study.toy.population.")
    return first in {"torch", "jaxtyping"} or needs_torch(first)
