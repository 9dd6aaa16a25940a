"""The house rules that a reader cannot see in one file: imports run one way, and no file names a machine."""

import ast
import re
import runpy
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from without_torch import needs_torch

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "rightloss"

# In the order data flow: a file or folder imports only from those before it. `__init__` gathers them all.
ORDER = [
    # without torch
    "extras",
    "atomic_files",
    "ray_cluster",
    "process_pool",
    "arrays",
    "solve",
    "prevalence",
    "finding_tables",
    "serialization",
    "predictive",
    "calibration",
    "shift",
    "metrics",
    "card",
    "check",
    "sklearn",
    "boosting",
    "tabular",
    # with torch
    "tensors",
    "sampling",
    "likelihoods",
    "marginals",
    "losses",
    "inference",
    "layer",
    "lidc",
    "study",
    "cli",
    "__init__",
]

HOSTS = re.compile(
    r"pypi\.org|pythonhosted\.org|download\.pytorch\.org|anaconda\.(?:org|com)"
    r"|(?:deb|ftp|security|snapshot|archive)\.(?:\w+\.)?(?:debian|ubuntu)\.(?:org|com)"
    r"|npmjs\.(?:org|com)|yarnpkg\.com|(?:static|index)\.crates\.io",
    re.IGNORECASE,
)
PATHS = re.compile(r"(?<![\w.-])/(?:root|work|opt|home|Users|tmp/scratch)\b")


# Imports of a later part within a function: where a user gives a torch model, asks for a network, or for a page.
LATE: dict[str, set[str]] = {
    "predictive/__init__.py": {"layer"},
    "metrics/__init__.py": {"card"},
    "check/torch_model.py": {"tensors", "likelihoods", "inference", "layer"},
    "sklearn/network.py": {"likelihoods", "losses"},
}


def stage_of(path: Path) -> str:
    """The file or folder directly under the package to which `path` (relative to the package) belongs."""
    return path.parts[0] if len(path.parts) > 1 else path.stem


def imported_stages(source: str, path: Path) -> Iterator[str]:
    """The stages of rightloss that `source`, to be found at `path` relative to the package, imports from."""
    folder = ["rightloss", *path.parent.parts]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = folder[: len(folder) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            top, _, rest = name.partition(".")
            stage = rest.partition(".")[0]
            if top == "rightloss" and stage != "__version__":
                yield stage if stage in ORDER else "__init__"


def upward_imports(source: str, path: Path) -> list[str]:
    """Those imports of `source` that run against `ORDER`."""
    own = stage_of(path)
    late = LATE.get(str(path), set())
    assert own in ORDER, f"{path} has no place in the order of imports: give it one in ORDER"
    return [stage for stage in imported_stages(source, path) if ORDER.index(stage) > ORDER.index(own) and stage not in late]


@pytest.mark.long
def test_imports_run_one_way() -> None:
    wrong = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        path = file.relative_to(PACKAGE)
        if found := upward_imports(file.read_text(encoding="utf-8"), path):
            wrong[str(path)] = found
    assert not wrong, f"these files import from ones below them: {wrong}"


def imports_of_torch(tree: ast.Module) -> list[str]:
    """The imports of torch, and of what users of tables need not have, that run when the module is imported."""
    names = []
    for node in tree.body:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [str(node.module)]
    return [name for name in names if name.partition(".")[0] in {"torch", "jaxtyping"}]


def test_the_half_for_predictions_imports_no_torch() -> None:
    upper = ORDER[: ORDER.index("tensors")]
    files = [file for file in sorted(PACKAGE.rglob("*.py")) if stage_of(file.relative_to(PACKAGE)) in [*upper, "cli"]]
    assert len(files) > 80
    found = {str(file.relative_to(PACKAGE)): imports_of_torch(ast.parse(file.read_text(encoding="utf-8"))) for file in files}
    assert not {name: names for name, names in found.items() if names and name not in LATE}


def test_the_tests_of_the_half_for_predictions_need_no_torch() -> None:
    parts = ["prevalence", "retarget", "undo_sampling", "arrays", "evaluate", "curves", "compare", "decisions", "shift"]
    parts += ["label_shift", "card", "check", "sklearn", "tabular", "cli_table"]
    starts = tuple(f"test_{part}" for part in parts)
    named = [file.stem for file in Path(__file__).parent.glob("test_*.py") if file.stem.startswith(starts)]
    assert len(named) > 20
    assert sorted(filter(needs_torch, named)) == ["test_check_models", "test_prevalence_layer"]


@pytest.mark.parametrize(
    ("path", "source", "expected"),
    [
        ("marginals.py", "from rightloss.losses import InformationGainLoss", ["losses"]),
        ("marginals.py", "from .losses import InformationGainLoss", ["losses"]),
        ("marginals.py", "from . import losses", ["losses"]),
        ("marginals.py", "def late():\n    import rightloss.study.grid as grid", ["study"]),
        ("marginals.py", "from rightloss import InformationGainLoss", ["__init__"]),
        ("marginals.py", "import rightloss", ["__init__"]),
        ("inference/laplace.py", "from ..layer import PrevalenceLayer", ["layer"]),
        ("inference/laplace.py", "from ..losses import x\nfrom .posterior import y\nfrom . import z", []),
        ("inference/__init__.py", "from .laplace import laplace", []),
        ("losses.py", "import sklearn, torch\nfrom .marginals import x\nfrom rightloss.prevalence import y", []),
        ("cli.py", "from rightloss import __version__, study", []),
        ("__init__.py", "from . import cli\nfrom .losses import x", []),
    ],
)
def test_an_upward_import_is_caught_and_a_downward_one_is_not(path: str, source: str, expected: list[str]) -> None:
    assert upward_imports(source, Path(path)) == expected


def test_the_map_in_contributing_shows_every_file_with_its_first_sentence() -> None:
    written = runpy.run_path(str(ROOT / "docs" / "scripts" / "package_map.py"))["package_map"]()
    shown = set(re.findall(r"^ +(\S+\.py) ", written, re.MULTILINE))
    assert shown == {file.name for file in PACKAGE.rglob("*.py")} - {"__init__.py"}
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert written in page, "run .venv/bin/python docs/make.py map"


def test_a_file_outside_the_order_is_caught() -> None:
    with pytest.raises(AssertionError, match="no place in the order"):
        upward_imports("", Path("utils.py"))


@pytest.mark.long
def test_no_file_names_a_package_host_or_a_path_of_one_machine() -> None:
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True
    )
    if listing.returncode:
        pytest.skip("not a git checkout")
    found = []
    for name in listing.stdout.decode().split("\0"):
        file = ROOT / name
        content = file.read_bytes() if file.is_file() else b""
        if b"\0" not in content:  # text
            for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), start=1):
                found += [f"{name}:{number}: {hit[0]}" for hit in [*HOSTS.finditer(line), *PATHS.finditer(line)]]
    assert not found, "\n".join(found)


def test_package_hosts_and_machine_paths_are_recognised() -> None:
    for parts in [("files", "pythonhosted", "org"), ("pypi", "org"), ("ftp", "uk", "debian", "org")]:
        assert HOSTS.search("https://" + ".".join(parts) + "/simple")
    for parts in [("", "root", "x"), ("", "work", "x"), ("", "opt", "x"), ("", "tmp", "scratch")]:
        assert PATHS.search("at " + "/".join(parts))
        assert PATHS.search("file://" + "/".join(parts))
    assert not PATHS.search("results/work/toy and https://example.org/opt/in")
