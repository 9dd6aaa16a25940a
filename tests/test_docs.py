"""The documentation: its programs run, what they print is what it says, its links lead somewhere, its names exist.

Blocks of ```python are run in order, those of one page in one namespace; `no-run` after the language leaves a block out.
A ```text block after the line "It prints:" is what the block before it must print.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from members import unchecked_types

import rightloss as rl
from rightloss.likelihoods import Likelihood

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)

each_page = pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])


@dataclass(frozen=True)
class Run:
    """A page's blocks, run: what they defined, and what each printed."""

    names: dict[str, Any]
    printed: list[str]


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def prose_of(page: Path) -> str:
    """Without blocks, whose brackets are not links."""
    return BLOCK.sub("", text_of(page))


def is_program(block: re.Match[str]) -> bool:
    words = block["info"].split()
    return words[:1] == ["python"] and "no-run" not in words


@cache
def run(page: Path) -> Run:
    names, printed = {"__name__": page.stem}, []
    text = text_of(page)
    with torch.random.fork_rng(), unchecked_types():  # as users run them
        for block in filter(is_program, BLOCK.finditer(text)):
            line = text.count("\n", 0, block.start("code"))
            output = io.StringIO()
            with redirect_stdout(output):  # blank lines first, so that a traceback names the line of the page
                exec(compile("\n" * line + block["code"], str(page), "exec"), names)
            printed.append(output.getvalue())
    return Run(names, printed)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.*:FutureWarning")  # of torch's exporter on itself
@each_page
def test_its_programs_run_and_print_what_it_says(page: Path) -> None:
    text, printed = text_of(page), iter(run(page).printed)
    end, output = 0, ""
    for block in BLOCK.finditer(text):
        if text[end : block.start()].strip() == "It prints:":
            assert block["code"] == output
        end, output = block.end(), next(printed) if is_program(block) else ""


@each_page
def test_its_links_and_inclusions_lead_to_files(page: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", prose_of(page))
    files = [page.parent / target.partition("#")[0] for target in targets if not re.match(r"\w+:", target)]
    files += [ROOT / target for target in re.findall(r'^--8<-- "(.+)"$', text_of(page), re.MULTILINE)]
    missing = [str(file.relative_to(ROOT)) for file in files if not file.exists()]
    assert not missing, f"{page.name} points to files that do not exist: {missing}"


@each_page
def test_its_names_exist(page: Path) -> None:
    names = set(re.findall(r"\brl\.(\w+)", text_of(page)))
    if page == README:  # all names in capitals and small letters are rightloss's own
        names |= set(re.findall(r"`([A-Z][a-z]\w+)(?:\([^`]*\))?`", prose_of(page)))
        assert {"InformationGainLoss", "OnionPeeling", "PoolMarginal", "RebalancedSampler"} <= names
    missing = sorted(name for name in names if not any(hasattr(room, name) for room in (rl, rl.sklearn, rl.boosting)))
    assert not missing, f"rightloss does not have {missing}"


def test_the_readme_has_a_whole_program_on_its_first_screen() -> None:
    first_screen = "".join(README.read_text(encoding="utf-8").splitlines(keepends=True)[:45])
    (program,) = [block["code"] for block in BLOCK.finditer(first_screen) if is_program(block)]
    assert "import rightloss" in program
    for name in ("Prevalence.binary(population=0.001, sampling=0.5)", "InformationGainLoss"):
        assert f"rl.{name}" in program


def test_the_readmes_map_shows_every_part_of_the_package() -> None:
    (plan,) = [block["code"] for block in BLOCK.finditer(text_of(README)) if block["code"].startswith("src/rightloss/")]
    package = ROOT / "src" / "rightloss"
    shown = set(re.findall(r"^  (\S+)", plan, re.MULTILINE))
    there = {f"{part.name}/" if part.is_dir() else part.name for part in package.iterdir()}
    assert shown == {part for part in there if not part.startswith("__") and part != "py.typed"}
    for folder in re.findall(r"^(\w\S+/)", plan, re.MULTILINE):
        assert (ROOT / folder).is_dir()


def test_the_readmes_program_predicts_the_prevalence_and_cross_entropy_does_not() -> None:
    found = re.findall(r"(\w+): mean prediction (\S+), prevalence 0.0010", run(README).printed[0])
    means = {name: float(mean) for name, mean in found}
    assert 0.0005 < means["InformationGainLoss"] < 0.002
    assert means["CrossEntropyLoss"] > 20 * 0.001


def test_the_readmes_figures_are_those_of_the_results_page() -> None:
    block = README.read_text(encoding="utf-8").split("<!-- begin toy -->")[1].split("<!-- end toy -->")[0]
    page = text_of(ROOT / "docs" / "results" / "toy.md")
    figures = re.findall(r"\d\.\d+(?= \|)", block)
    assert len(figures) > 50
    for figure in figures:
        assert f" {figure} |" in page, f"{figure} is not in docs/results/toy.md: run docs/make_results.py"


def test_results_of_a_study_that_was_not_run_are_refused(tmp_path: Path) -> None:
    before = README.read_bytes()
    script = ROOT / "docs" / "make_results.py"
    done = subprocess.run([sys.executable, str(script), str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "run `make toy` first" in done.stderr
    assert "Traceback" not in done.stderr
    assert README.read_bytes() == before


def test_the_likelihood_that_contributing_adds_keeps_the_contract_and_learns() -> None:
    names = run(ROOT / "CONTRIBUTING.md").names
    likelihood, prevalence = names["likelihood"], names["prevalence"]
    assert isinstance(likelihood, Likelihood)
    assert likelihood.num_outputs is not None
    table = likelihood.table(3 * torch.randn(50, likelihood.num_outputs, dtype=torch.float64))
    torch.testing.assert_close(table.exp().sum(1), torch.ones(50, dtype=torch.float64))
    started = likelihood.table(likelihood.starting_outputs(prevalence)[None])[0]
    torch.testing.assert_close(started.exp(), prevalence.population)
    assert names["losses"][-1] < names["losses"][0] - 0.2
