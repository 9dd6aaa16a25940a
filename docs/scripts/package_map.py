"""Write the map of the package into CONTRIBUTING.md, from the first sentence of each file's docstring."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "src" / "rightloss"
PAGE = ROOT / "CONTRIBUTING.md"
BLOCK = re.compile(r"```text\nsrc/rightloss/\n.*?```\n", re.DOTALL)
ORDER = (  # of data flow, as tests/test_layout.py enforces it; torch is needed from tensors.py on
    "extras.py atomic_files.py ray_cluster.py process_pool.py arrays.py solve.py prevalence finding_tables.py "
    "serialization.py predictive calibration shift metrics card check sklearn boosting.py tabular "
    "tensors.py sampling likelihoods marginals losses inference layer.py lidc study cli"
).split()
WIDTH = 34


def summary(file: Path) -> str:
    """Return the first sentence of a file's docstring, at most a line long."""
    text = " ".join((ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").split("\n\n")[0].split())
    sentence = re.split(r"(?<![A-Z]q)[.?](?:\s|$)", text)[0]
    return sentence if len(sentence) < 100 else re.split(r"[:;]\s", sentence)[0]


def lines(folder: Path, depth: int = 1) -> list[str]:
    """Return a line for each file and folder below `folder`; files first, folders after them."""
    found, parts = [], sorted(folder.iterdir(), key=lambda part: (part.is_dir(), part))
    for part in parts if depth > 1 else [PACKAGE / name for name in ORDER]:
        indent = "  " * depth
        if part.suffix == ".py" and part.stem != "__init__":
            found.append(f"{indent + part.name:<{WIDTH}}{summary(part)}")
        elif (part / "__init__.py").exists():
            found += [f"{indent + part.name + '/':<{WIDTH}}{summary(part / '__init__.py')}", *lines(part, depth + 1)]
    return found


def package_map() -> str:
    """Return the map as a Markdown block."""
    return "\n".join(["```text", "src/rightloss/", *lines(PACKAGE), "```", ""])


def make_map() -> None:
    PAGE.write_text(BLOCK.sub(lambda _: package_map(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
