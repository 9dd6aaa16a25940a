"""Write docs/tutorials/table.md and its picture: the commands for tables on a real file, with what each prints.

    .venv/bin/python docs/make_table.py

The file is ISLP's Default (10,000 customers, 333 of whom defaulted), cut into what a user would have: a case-control sample to
learn from, labelled rows to evaluate on, and new rows without labels. The words of the page are here; the commands are run.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).resolve().parent.parent
PAGE, PICTURE = ROOT / "docs" / "tutorials" / "table.md", ROOT / "docs" / "pictures" / "table_report.png"
PROGRAM = "import sys; sys.argv[0] = 'rightloss'; from rightloss_command import main; main()"
SIZE = (1280, 860)

TEXT = """# I have a table

You have a table (CSV or Parquet) with a column of classes, and you know how frequent the classes are where the model
will be used. ([If not](#share-unknown).) In ten minutes and five commands you will have a corrected model,
predictions, and a report. No Python is needed.

![The report: observed against predicted risk, with a slider for the prevalence](../pictures/table_report.png)

This is [the report](../built/table_report.html) of step 2. Its slider moves the prevalence. To install, run
`pip install -c constraints.txt -e ".[table]"` in a checkout. Every command ends with the next one to type.

The file is a case-control sample of ISLP's *Default*: customers of a bank. Half of those in the file defaulted on
their debt; of all customers, one in thirty does. This page is written by `.venv/bin/python docs/make_table.py`, which
runs the commands.

## 1. What is this file good for?

{check}

The identifier is left out automatically. A column that gives the answer away, or text among numbers, would be named
here.

## 2. Fit

`--population` is how frequent the classes are where you will use the model: `0.033`, `3.3%` or `1/30`. For more
classes it is `a=0.9,b=0.09,c=0.01`. [Unknown?](#share-unknown) Leave it out.

{fit}

Several models are compared by cross-validation, and the best one is kept, or a simpler one that is as good.
The folder holds the model, without pickle, and `report.html`: one page, shown above, that works offline.

## 3. Predict

{predict}

The file has the table's own columns, `p_No`, `p_Yes` and the predicted class. `--population 0.1` gives the same
predictions for a population where one in ten defaults. Nothing is trained again. Without `--out`, the predictions go to
standard output, for a pipe, and all messages to standard error.

`--level 0.95` adds `low_Yes` and `high_Yes`, 95 % limits of each risk. They say how much the risk changes if the model
is fitted and calibrated without a fifth of the rows, by a jackknife; its penalty or number of trees stays the same.
With `--group` whole groups are left out. If the population was counted in a survey, write `--population 12/3000`: the
limits then allow for how few were counted. One number is taken as known. The limits do not allow for what no model of
these columns could learn.

## 4. Evaluate

Use labelled rows that the model has not seen. All figures are those of the population, whatever the mix of classes in
the file:

{evaluate}

## 5. How frequent are the classes in a new file?

Another bank's customers, without labels:

{prevalence}

The true answer is twelve in a hundred. The estimate assumes **label shift**: only the mix of classes differs, and the
people of a class look as they did in training. The test says whether the rows contradict that. It cannot confirm it:
[with all balances 1.2 times as high](../unknown_prevalence.md#is-it-only-the-mix) an estimate was three times too high,
and the test did not notice. Check some labels there.

With `--json` the test has two more figures. `condition` says how well the model separates the classes: 1 is perfect,
and above 30 it warns. `error` is the standard error of a rough estimate from the predicted classes: above 0.1 the rows
are too few, and it warns.

### Share unknown?

Leave out `--population`: `fit`, `prevalence`, then `predict --population` with the estimate. Without it, the model
predicts at the file's own mix, here 50 %.

{unknown}

The last two commands give the risks at both ends of the interval. A customer with a risk of {risks} has {risks_low}
and {risks_high} there.

There is a second route: `fit --population unknown --unlabelled other_bank.csv` fits the model and the share together,
from both files. Here it finds {learnt}. The first route fits the model to the labelled rows alone, and finds
{estimate}. Choose the route before you see the results, and report its estimate: the second if labels are few and
[unlabelled rows help](#few-labels-and-a-file-of-everybody), else the first. If the two disagree by more than their
intervals, trust neither.

## Few labels, and a file of everybody

Labels are expensive, but the bank has the other columns of thousands of customers. Pass them as `--unlabelled`, and
one more model learns from both files. Here 120 customers have a label, and {unlabelled_rows} have none.

{unlabelled}

What it says about the unlabelled rows:

- A **test** checks whether people of a class look the same in both files. If not, it warns, and the model that learnt
  from both is not kept.
- Otherwise **held-out rows of both files** decide. The figures in the table are those of labelled rows alone. With so
  few of them, a model with a lower figure can be the better one. On `labelled.csv`, from step 4, the model that is
  kept has an expected log-likelihood of {with_them}. The one that `fit` keeps without `--unlabelled` has
  {without_them}.
- The **mean prediction** for the unlabelled rows should be the population. A warning says if it is far off.

The second file needs the columns of the first, in any order. A target column in it is not read. `--population
unknown` also learns [how frequent the classes are](#share-unknown). [When unlabelled rows help, and when they
harm](../unlabelled.md).

## In scripts

Every command takes `--json`: one document on standard output and nothing else. Warnings and errors are lines on
standard error. The exit code is 0, or 2 for a wrong file or option, or 1 for the machine. Files and folders are
written completely or not at all. `rightloss --install-completion` lets the shell complete commands, options and the
names of columns.

??? note "Table: time and memory for a million rows with thirty columns"

    --8<-- "docs/benchmarks/fit_table.md"

## What to do next

- Use the model in Python, or correct one that you have: [I have a fitted model](fitted-model.md).
- Nobody knows the prevalence: [more on estimating it](../unknown_prevalence.md).
- Report sensitivity, PPV and net benefit: [reporting at a prevalence](../screening.md).
- Before you rely on it: [when not to use this](../when_not.md).
- Every option: `rightloss fit --help`, and the [API of tables](../api/tabular.md).
"""

COMMANDS = {
    "check": "check customers.csv --target default --population 1/30",
    "fit": "fit customers.csv --target default --positive Yes --population 1/30 --out model",
    "predict": "predict model new.csv --out predictions.csv",
    "evaluate": "evaluate model labelled.csv --threshold 0.2",
    "prevalence": "prevalence model other_bank.csv",
    "unlabelled": "fit few.csv --target default --positive Yes --population 1/30 --unlabelled everybody.csv --out with_them",
}
UNKNOWN = """fit customers.csv --target default --positive Yes --out own_mix
prevalence own_mix other_bank.csv
predict own_mix other_bank.csv --population {estimate} --out risks.csv
predict own_mix other_bank.csv --population {low} --out risks_low.csv
predict own_mix other_bank.csv --population {high} --out risks_high.csv"""
LEARNT = "fit customers.csv --target default --positive Yes --population unknown --unlabelled other_bank.csv --out learnt"
WITHOUT = "fit few.csv --target default --positive Yes --population 1/30 --out without_them"


def run(folder: Path, arguments: str) -> str:
    """Run a command in the folder; return what it prints."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments.split()], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"rightloss {arguments}: {done.stderr}")
    return done.stdout


def log_likelihood(folder: Path, model: str) -> str:
    """Return a model's expected log-likelihood on the labelled rows that it has not seen."""
    found = json.loads(run(folder, f"evaluate {model} labelled.csv --json"))
    return f"{found['figures']['expected_log_likelihood']['value']:.4f}".replace("-", "−")


def shown(folder: Path, arguments: str) -> str:
    """Run a command in the folder; return it and what it prints, as blocks of the page."""
    printed = re.sub(r"^\n+|\n+$", "", run(folder, arguments))
    return f"```sh\nrightloss {arguments}\n```\n\nThe terminal shows:\n\n```text\n{printed}\n```"


def unknown_share(folder: Path) -> dict[str, str]:
    """Run the commands of both routes to an unknown share; return the parts of the page."""
    fit, prevalence, *predict = UNKNOWN.splitlines()
    run(folder, fit)
    found = json.loads(run(folder, f"{prevalence} --json"))
    shares = {name: f"{found[key][1]:.4f}" for name, key in {"estimate": "population", "low": "low", "high": "high"}.items()}
    for command in predict:
        run(folder, command.format(**shares))
    risks = {name: pd.read_csv(folder / f"{name}.csv")["p_Yes"] for name in ("risks", "risks_low", "risks_high")}
    customer = (risks["risks"] - 0.5).abs().idxmin()
    run(folder, LEARNT)
    learnt = json.loads(run(folder, "prevalence learnt other_bank.csv --json"))["learnt"]
    commands = "\n".join(f"rightloss {command.format(**shares)}" for command in (fit, prevalence, *predict))
    return {
        "unknown": f"```sh\n{commands}\n```",
        "estimate": interval(found),
        "learnt": interval(learnt),
        **{name: f"{column[customer]:.2f}" for name, column in risks.items()},
    }


def interval(found: dict[str, list[float]]) -> str:
    """Return the share of the positive class with its interval, in percent."""
    share, low, high = (f"{100 * found[key][1]:.3g}" for key in ("population", "low", "high"))
    return f"{share} % ({low} % to {high} %)"


def take_picture(report: Path) -> None:
    """Save the report, docs/built/table_report.html, and its first screen, by the browser of the tests."""
    sys.path.insert(0, str(ROOT / "tests"))
    from browser import open_browser

    with tempfile.TemporaryDirectory() as profile, open_browser(Path(profile)) as page:
        page.resize(*SIZE)
        page.open(report)
        shutil.copy(report, ROOT / "docs" / "built" / "table_report.html")
        answer = page.call("Page.captureScreenshot", format="png")
        PICTURE.write_bytes(base64.b64decode(answer["data"]))


def main() -> None:
    """Write the page."""
    if shutil.which("chromium") is None:
        raise SystemExit("Chromium is needed for the picture of the report.")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([sys.executable, str(ROOT / "examples" / "customers.py"), name], check=True, capture_output=True)
        parts = {command: shown(folder, arguments) for command, arguments in COMMANDS.items()}
        parts |= unknown_share(folder)
        run(folder, WITHOUT)
        parts |= {name: log_likelihood(folder, name) for name in ("with_them", "without_them")}
        parts["unlabelled_rows"] = f"{len(pd.read_csv(folder / 'everybody.csv')):,}"
        take_picture(folder / "model" / "report.html")
    PAGE.write_text(TEXT.format(**parts), encoding="utf-8")


if __name__ == "__main__":
    main()
