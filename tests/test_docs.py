"""The documentation: its programs run, what they print is what it says, its links lead somewhere, its names exist.

Blocks of ```python are run in order, those of one page in one namespace; `no-run` after the language leaves a block out.
A ```text block after the line "It prints:" is what the block before it must print.
"""

from __future__ import annotations

import importlib
import io
import json
import math
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from dicom_series import Scan, write_scan
from members import unchecked_types
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import confusion_matrix
from study_results import fake_study

import rightloss as rl
from rightloss.likelihoods import Likelihood
from rightloss.study import StudyResults, read_one_file
from rightloss.study.config import PRESETS
from rightloss.study.summary import summarise

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [
    README,
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "tutorials").glob("*.md")),
]
RECIPES = sorted((ROOT / "docs" / "recipes").glob("*.md"))
BLOCK = re.compile(r"^```(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)

sys.path[:0] = [str(ROOT), str(ROOT / "docs")]
from evidence.__main__ import COMPARISONS, THEN  # noqa: E402

charts, programs, studies = (importlib.import_module(f"scripts.{name}") for name in ("charts", "programs", "studies"))

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


def included(text: str) -> list[str]:
    """Return the files that a page includes, also inside a fold."""
    return re.findall(r'^ *--8<-- "(.+)"$', text, re.MULTILINE)


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


@pytest.mark.long
@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "api").glob("*.md")), ids=lambda page: page.stem)
def test_programs_of_the_api_pages_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if page.stem == "lidc-ct":  # a made-up scan with the name of a real one
        scan = Scan("1.3.6.1.4.1.14519.5.2.1.6279.6001.179049373636438705059720603192", rows=512, columns=512)
        write_scan(tmp_path / "LIDC-IDRI", replace(scan, origin=(-150.0, -150.0, -155.0)), lambda places: 0 * places[..., 0])
    if page.stem == "study":
        fake_study(tmp_path / "results" / "quick", PRESETS["quick"])
    run(page)


def test_links_and_inclusions_lead_to_files() -> None:
    missing = []
    for page in [*PAGES, *RECIPES, *sorted((ROOT / "docs" / "notebooks").glob("*.md"))]:
        parts = [page, *(ROOT / target for target in included(text_of(page)))]  # the builder checks the page's own links alone
        targets = [target for part in parts if part.is_file() for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(part))]
        files = [page.parent / target.partition("#")[0] for target in targets if not re.match(r"\w+:", target)]
        missing += [f"{page.name}: {file}" for file in [*files, *parts] if not file.exists()]
    assert not missing, "\n".join(missing)


def test_names_of_the_package_exist() -> None:
    names = {name for page in [*PAGES, *RECIPES] for name in re.findall(r"\brl\.(\w+)", text_of(page))}
    own = set(re.findall(r"`([A-Z][a-z]\w+)(?:\([^`]*\))?`", prose_of(README)))  # in capitals and small letters
    assert {"InformationGainLoss", "PrevalenceCorrectedClassifier"} <= own
    missing = sorted(name for name in names | own if not any(hasattr(room, name) for room in (rl, rl.sklearn, rl.boosting)))
    assert not missing, f"rightloss does not have {missing}"


def test_commands_that_make_the_pages_exist() -> None:
    """A page may be older than its command: then it names the commit, and a comparison of that name exists."""
    scripts, comparisons = [*(ROOT / "benchmarks").glob("*.py")], {"NAME", *COMPARISONS, *THEN}
    functions = {*re.findall(r"^def (\w+)", "".join(map(text_of, scripts)), re.M)}
    known = {
        r"\bbenchmarks/(\w+)\.py": comparisons | {path.stem for path in scripts},
        rf"\bbenchmarks/(?!{'|'.join(THEN)})\w+\.py ([a-z]+_\w+)": functions,
        r"-m evidence (\w+)": comparisons,
        r"\bdocs/(\w+)\.py": {"make"},
        r"\bdocs/make\.py (\w+)": {*re.findall(r"docs/make\.py (\w+)", text_of(ROOT / "docs" / "make.py"))},
        r"`make (\w+)`": {*re.findall(r"^(\w+):", text_of(ROOT / "Makefile"), re.M)},
    }
    pages = [*PAGES, *sorted((ROOT / "docs").glob("[bar]*/*.md"))]  # benchmarks, api and results
    for rule, names in known.items():
        named = re.findall(rule, "\n".join(map(text_of, pages)))
        assert len(named) > 5, rule
        assert {*named} <= names, rule


def test_the_readme_begins_with_a_picture_and_has_three_short_programs() -> None:
    text = text_of(README)
    assert "![" in "".join(text.splitlines(keepends=True)[:12])
    programs = [block["code"] for block in BLOCK.finditer(text) if is_program(block) or "rightloss fit" in block["code"]]
    assert len(programs) == 3
    assert max(program.count("\n") for program in programs) <= 16
    for name in ("Prevalence.binary(population=0.001, sampling=0.5)", "InformationGainLoss"):
        assert f"rl.{name}" in programs[0]


def test_the_readmes_model_predicts_the_prevalence_and_cross_entropy_would_not() -> None:
    names = run(README).names
    prevalence, y = names["prevalence"], torch.arange(4000) % 2
    assert (torch.tensor(prevalence.weights)[y] * names["risk"]).mean().item() == pytest.approx(0.001, rel=0.2)
    model, x = torch.nn.Linear(5, 2), torch.randn(4000, 5, generator=torch.Generator().manual_seed(0)) + y[:, None]
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=100)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = torch.nn.functional.cross_entropy(model(x), y)
        value.backward()
        return value

    optimizer.step(loss)
    assert (torch.tensor(prevalence.weights)[y] * model(x).softmax(1)[:, 1]).mean() > 20 * 0.001


@pytest.mark.long
def test_answers_to_questions_are_those_of_textbook_formulas() -> None:
    names = run(ROOT / "docs" / "questions.md").names
    x, y, kept, x_test, y_test = (names[name] for name in ("x", "y", "kept", "x_test", "y_test"))
    logits = LogisticRegression().fit(x[kept], y[kept]).decision_function(x_test)
    found = rl.undo_sampling(names["downsampled"], kept={0: 0.05})
    np.testing.assert_allclose(found[:, 1] - found[:, 0], logits + math.log(0.05), atol=1e-9)
    (tn, fp), (fn, tp) = confusion_matrix(y_test, logits >= 0)
    pi, sensitivity, specificity = names["curve"].prevalence, tp / (tp + fn), tn / (tn + fp)
    expected = pi * sensitivity / (pi * sensitivity + (1 - pi) * (1 - specificity))
    np.testing.assert_allclose(names["curve"].ppv, expected, rtol=1e-9)
    x, y = names["x_study"], names["y_study"]
    usual = LogisticRegression(C=np.inf, tol=1e-8).fit(x, y)
    np.testing.assert_allclose(names["study"].coef_, usual.coef_, atol=1e-4)
    moved = usual.intercept_ - math.log(y.sum() / (1 - y).sum()) + math.log(0.02 / 0.98)
    np.testing.assert_allclose(names["study"].intercept_, moved, atol=1e-4)
    odds = {name: -np.log(np.expm1(-names[name])) for name in ("weighted", "undone")}
    np.testing.assert_allclose(odds["undone"], odds["weighted"] - np.log(names["weights"]), atol=1e-6)


def test_the_readmes_figures_and_the_toy_page_are_those_of_the_stored_results() -> None:
    rows = charts.toy_rows()
    known = rows[["lost", "mean_prediction"]].to_numpy()
    block = text_of(README).split("<!-- begin toy -->")[1].split("<!-- end toy -->")[0]
    figures = re.findall(r"\d\.\d{5,}(?= \|)", block)
    assert len(figures) >= 60
    missing = [each for each in figures if np.abs(known - float(each)).min() > 10.0 ** -len(each[2:])]
    assert not missing, "run docs/make.py results"
    page = np.array(re.findall(r"(?<= )\d\.\d{6}(?= \|)", text_of(ROOT / "docs" / "results" / "toy.md")), dtype=float)
    assert not [each for each in rows["lost"] if np.abs(page - each).min() > 1e-6]


def test_the_charts_show_every_row_of_the_toy_study_and_every_check_of_the_paper() -> None:
    rows, results = charts.toy_rows(), ROOT / "docs" / "results" / "paper.json"
    panels = charts.toy(rows).axes
    drawn = [float(x) for axis in panels for line in axis.lines if " from " in line.get_label() for x in line.get_xdata()]
    assert len(drawn) == rows["model"].isin(["linear", "MLP"]).sum() + (rows["start"] == "both").sum()
    assert {*drawn} <= {*rows["lost"]}
    checks = json.loads(results.read_text(encoding="utf-8"))["checks"]
    (axis,) = charts.verdicts(checks).axes
    tested = [check for check in checks if charts.is_counted(check)]
    assert sum(bar.get_width() for bar in axis.patches) == len(tested)


def test_what_commands_and_programs_of_a_page_print_is_put_into_it(tmp_path: Path) -> None:
    text = """```python
print(1 + 1)
```

It prints:

```text
old
```

```sh
python -c 'print("written")' > file.txt
cat file.txt
```

The terminal shows:

```text
old
```

```sh no-run
false
```
"""
    _, found = programs.run(text, tmp_path)
    assert found == text.replace("old", "2", 1).replace("old", "written")
    with pytest.raises(ValueError, match="commands that succeed"):
        programs.run(text.replace(" no-run", ""), tmp_path)


def test_the_page_of_biases_has_what_is_right_in_bold_and_a_column_for_each_selection() -> None:
    header = ["model", "remedy", "selection", "beyond", "beyond_low", "beyond_high", "right", "mean_prediction"]
    first = ["straight", "none", "by label", 0.0005, 0.0, 0.9, "yes", 0.05]
    second = ["straight", "none", "by both", 0.2, 0.0, 0.9, "no", 0.3]
    page = studies.biases_page(pd.DataFrame([first, second], columns=header).assign(best=0.01, population=0.05))
    assert "| straight | none | **0.0005** (0.0000 to 0.9000) | 0.2000 (0.0000 to 0.9000) |" in page
    assert "| straight | none | 0.0500 | 0.3000 |" in page


def test_the_risks_of_the_tutorial_follow_from_its_shares() -> None:
    """At both ends of the interval that it shows, by moving a risk of a half."""
    text = text_of(ROOT / "docs" / "tutorials" / "table.md")
    shares = [float(share) for share in re.findall(r"own_mix other_bank.csv --population (\S+)", text)]
    assert all(f" {share:g} " in text for share in shares)  # in the table of estimates
    risks = [float(np.exp(rl.retarget(np.log([[0.5, 0.5]]), shares[0], share))[0, 1]) for share in shares[1:]]
    assert f"risk of 0.50 has {risks[0]:.2f}\nand {risks[1]:.2f} there" in text


@pytest.mark.long
def test_the_papers_verdicts_follow_from_the_stored_predictions() -> None:
    """For a part: Table 1 on CT slabs, the ConvNet from π. All of it is `python docs/make.py paper`, which trains nothing."""
    folder = ROOT / "docs" / "results"
    assert sum(path.stat().st_size for path in (folder / "paper").iterdir()) < 20e6
    stored = read_one_file(folder / "paper" / "table1.npz")
    config = replace(stored.config, sources=stored.config.sources[:1], nets=("convnet",), starts=("population",))
    part = StudyResults(config, stored.data, tuple(run for run in stored.runs if run.config in config.runs()))

    def _of(setting: Mapping[str, str]) -> tuple[str | None, ...]:
        return tuple(setting.get(name) for name in ("loss", "start"))

    found = {(check.about, _of(check.setting)): check.verdict for check in summarise(part).checks}
    here = {"data": config.sources[0].name, "net": "convnet", "minibatches": "rebalanced"}
    listed = {
        (check["about"], _of(check["setting"])): check["verdict"]
        for check in json.loads((folder / "paper.json").read_text(encoding="utf-8"))["checks"]
        if here.items() <= check["setting"].items() and check["verdict"] != "cannot be tested"
    }
    assert len(found) > 10
    assert found.items() <= listed.items()


def test_results_of_a_study_that_was_not_run_are_refused(tmp_path: Path) -> None:
    before = README.read_bytes()
    script = ROOT / "docs" / "make.py"
    done = subprocess.run([sys.executable, str(script), "results", str(tmp_path)], capture_output=True, text=True)
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
    torch.testing.assert_close(started.exp(), torch.tensor(prevalence.population))
    assert names["losses"][-1] < names["losses"][0] - 0.2
