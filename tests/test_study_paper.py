"""The paper's figures, read off its LaTeX."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rightloss.study import paper
from rightloss.study.config import NETS

SEEDS = Path(__file__).parents[2] / "shared" / "seeds"
LOSSES = {"bayesIG": "published", "wLoss": "weighted"}


@pytest.fixture(scope="module")
def latex() -> str:
    texts = [path.read_text(encoding="utf-8") for path in sorted(SEEDS.glob("*.txt"))]
    found = [text for text in texts if r"\label{table: LIDC - balanced minibatch}" in text]
    if not found:
        pytest.skip("the paper's LaTeX is not beside this checkout")
    return found[0]


def printed(latex: str, label: str) -> list[tuple[str, float, str, list[float]]]:
    """Net, prevalence, loss and figures of each line of the table with this label."""
    body = latex.partition(rf"\label{{{label}}}")[2].partition(r"\bottomrule")[0].partition(r"\toprule")[2]
    lines = [line for line in body.replace(r"\midrule", "").split(r"\\") if "textbf" in line]
    found = []
    for first, second in zip(lines[::2], lines[1::2], strict=True):
        net = "convnet" if "ConvNet" in first else "inception"
        rate = 0.3 if "0.3$" in second.partition("&")[0] else 0.001
        assert ("10^{-3}" in second) == (rate == 0.001)
        for line in (first, second):
            cells = line.split("&")
            loss = LOSSES[re.findall(r"textbf\{(\w+)\}", cells[1])[0]]
            found.append((net, rate, loss, [float(cell.strip().strip("$")) for cell in cells[2:]]))
    return found


@pytest.mark.parametrize(
    ("label", "table"),
    [("table: LIDC - balanced minibatch", paper.TABLE_1), ("table: LIDC - original batch statistics", paper.TABLE_2)],
)
def test_the_tables_are_those_of_the_paper(latex: str, label: str, table: paper.PaperTable) -> None:
    ours = [(*case, list(figures.values())) for case, figures in table.items()]
    assert ours == printed(latex, label)


def test_the_figures_of_ratings_are_those_of_the_paper(latex: str) -> None:
    text = latex.partition("lower (Acc. $")[2].partition(r"\noindent")[0]
    numbers = [float(each) for each in re.findall(r"\$?([01]\.\d*)\$", "$" + text)]
    assert numbers == list(paper.RATINGS.values())


def test_the_papers_figures_are_found_by_case_and_table_1_has_no_auc() -> None:
    assert paper.TABLES["raw"]["convnet", 0.001, "weighted"]["auc"] == 0.86
    assert all("auc" not in figures for figures in paper.TABLE_1.values())
    cases = (*paper.TABLE_1, *paper.TABLE_2)
    assert {net for net, _, _ in cases} == set(paper.NETS) <= set(NETS)
    assert {population for _, population, _ in cases} == set(paper.POPULATIONS)


def test_the_papers_ppv_does_not_follow_from_its_rates() -> None:
    figures = paper.TABLES["rebalanced"]["convnet", 0.001, "published"]
    tpr, tnr = figures["tpr"], figures["tnr"]
    by_bayes = 0.001 * tpr / (0.001 * tpr + 0.999 * (1 - tnr))
    assert f"TPR of {tpr} and a TNR of {tnr} make a PPV of {by_bayes:.2f}" in paper.AVERAGES
    assert f"prints {figures['ppv']}" in paper.AVERAGES


def test_the_line_to_be_taken_with_care_has_the_accuracy_of_another_prevalence() -> None:
    figures = paper.TABLES["rebalanced"]["inception", 0.001, "published"]
    at = {rate: rate * figures["tpr"] + (1 - rate) * figures["tnr"] for rate in (0.3, 0.001)}
    assert round(at[0.3], 2) == figures["weighted_accuracy"] == 0.86
    assert round(at[0.001], 2) == 0.93
    assert "0.3 (0.86), not at 0.001 (0.93)" in paper.MISPRINT


def test_the_papers_off_by_one_accuracy_does_not_follow_from_its_true_rates_and_shares(latex: str) -> None:
    shares = latex.partition("marginal label distributions $\\sim ")[2].partition("$")[0].split(",")
    by_class = sum(float(share) * paper.RATINGS[f"off_by_one_recall_{rating}"] for rating, share in enumerate(shares, 1))
    assert round(by_class, 2) != paper.RATINGS["off_by_one"]
