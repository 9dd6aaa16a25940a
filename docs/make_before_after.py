"""Compare results before and after a change of defaults: pages of another commit and of the working tree, in one table.

    .venv/bin/python docs/make_before_after.py [COMMIT]      # by default the last commit with κ = 0

Computes nothing: every figure is read from a page that its own command wrote. Writes docs/results/evidence.md.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMIT = "444e897"
LOST, AUC = -3, -2  # columns of docs/results/toy.md
DEFAULT, ADJUSTED = "information gain (default)", "logit-adjusted loss"

Page = Callable[[str], str]


def now(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def then(commit: str) -> Page:
    def page(path: str) -> str:
        return subprocess.run(["git", "show", f"{commit}:{path}"], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    return page


def cells(page: str, *words: str) -> list[str]:
    """Return the cells of the only table row that contains all `words`."""
    rows = [line for line in page.splitlines() if line.startswith("|") and all(f"| {word} |" in line for word in words)]
    if len(rows) != 1:
        raise ValueError(f"Expected one row with {words}, but found {len(rows)}: has the page's format changed?")
    return [cell.strip() for cell in rows[0].strip("|").split("|")]


def found(page: str, pattern: str) -> str:
    match = re.search(pattern, page)
    if match is None:
        raise ValueError(f"Expected to find {pattern!r} on a page: has its format changed?")
    return match.group(1)


def rows() -> dict[str, Callable[[Page], str]]:
    """Return, by name, a function that reads each compared figure from the pages."""

    def toy(net: str, loss: str, population: str, column: int = LOST) -> Callable[[Page], str]:
        def read(page: Page) -> str:
            text = page("docs/results/toy.md")
            start = ["π"] if "| start |" in text else []  # older pages have one row for each loss
            return cells(text, population, net, loss, *start)[column]

        return read

    def quick(pattern: str) -> Callable[[Page], str]:
        return lambda page: found(page("docs/results/study-quick.md"), pattern)

    def calibration(page: Page) -> str:
        text = page("docs/benchmarks/posterior_calibration.md")
        return found(
            text,
            r"(?:(?:default: r = ρ, )?κ = 1, π told exactly|information gain, r = ρ, .*?over the training data): .*?p is (\S+)",
        )

    def logistic(pattern: str) -> Callable[[Page], str]:
        return lambda page: found(page("docs/benchmarks/posterior_logistic.md"), pattern)

    return {
        "toy, linear, 5 ratings: nats lost": toy("linear", DEFAULT, "5 ratings"),
        "… logit adjustment": toy("linear", ADJUSTED, "5 ratings"),
        "toy, MLP, 5 ratings: nats lost": toy("MLP", DEFAULT, "5 ratings"),
        "… logit adjustment ": toy("MLP", ADJUSTED, "5 ratings"),
        "toy, MLP, π = 0.3: nats lost": toy("MLP", DEFAULT, "0.3"),
        "toy, MLP, π = 0.001: nats lost": toy("MLP", DEFAULT, "0.001"),
        "toy, MLP, π = 0.001: AUC": toy("MLP", DEFAULT, "0.001", AUC),
        "ratings on 40 fresh seeds: standard errors from the best possible": lambda page: cells(
            page("docs/benchmarks/toy_fresh_seeds.md"), "5 ratings", DEFAULT
        )[-1],
        "… logit adjustment  ": lambda page: cells(page("docs/benchmarks/toy_fresh_seeds.md"), "5 ratings", ADJUSTED)[-1],
        "posteriors of a logistic regression: EP, SGHMC, NUTS within 0.15 sd and 15 %": logistic(
            r"expectation propagation; SGHMC\): (\d+ of \d+)"
        ),
        "… Laplace, full-rank VI within 0.3 sd and 25 %": logistic(r"Laplace, full\): (\d+ of \d+)"),
        "calibration where π is told exactly: smallest p": calibration,
        "quick study: comparisons in which the default is clearly better": quick(
            r"probabilities are clearly better in (\d+ of \d+)"
        ),
        "… clearly worse": quick(r"comparisons, clearly worse in (\d+)"),
        "… mean prediction where furthest off": quick(r"The mean prediction agrees with π in (.*?)\.\s*(?:\n|$)"),
    }


def main() -> None:
    commit = sys.argv[1] if len(sys.argv) > 1 else COMMIT
    lines = ["| | κ = 0, before | κ = 1, now |", "| --- | --- | --- |"]
    lines += [f"| {name.rstrip()} | {read(then(commit))} | {read(now)} |" for name, read in rows().items()]
    page = f"Made by `python docs/make_before_after.py`, from the pages of commit {commit} and of this one.\n\n" + "\n".join(
        lines
    )
    (ROOT / "docs/results/evidence.md").write_text(page + "\n", encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
