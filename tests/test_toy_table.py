"""The toy study's sentences and table rows, from rows made up for the purpose."""

import pytest

from rightloss.study import FiveRatings
from rightloss.study.methods import METHODS
from rightloss.study.toy import table
from rightloss.study.toy.table import BEST, COLUMNS, CONSTANT, ToyRow

DEFAULT, PLAIN = METHODS["information-gain"].title, METHODS["plain"].title


def row(method: str, by_seed: list[float], from_best: float = 0.0, start: str = "π") -> ToyRow:
    mean = sum(by_seed) / len(by_seed)
    return ToyRow("0.05", "linear", method, start, mean, 0.001, from_best, None, 0.0, None, 0.05, by_seed, [])


def findings(*rows: ToyRow) -> list[str]:
    ends = [
        ToyRow("0.05", "any", name, "", value, None, None, None, 0.0, None, 0.05, [], [])
        for name, value in ((BEST, -0.1), (CONSTANT, -0.2))
    ]
    return table.findings([*ends, *rows], DEFAULT, PLAIN, "linear")


def test_the_sentences_say_where_the_default_loses() -> None:
    near, likelihood, *_ = findings(
        row(DEFAULT, [-0.15, -0.152], from_best=-5.0), row(PLAIN, [-0.19, -0.18]), row("rival", [-0.11, -0.1121])
    )
    assert f"{DEFAULT} from π in 0 of 1" in near
    assert "furthest: -5.0 at 0.05" in near
    assert f"{PLAIN} from π in 1 of 1" in near
    assert "ahead in 1 of 2 comparisons" in likelihood
    assert "behind in 1, clearly in 1" in likelihood
    assert "clearly behind rival from π (0.05 linear: 0.04 ± 5e-05)" in likelihood


def test_the_sentences_do_not_claim_a_loss_where_there_is_none() -> None:
    near, likelihood, *_ = findings(row(DEFAULT, [-0.1, -0.102], from_best=-1.0), row(PLAIN, [-0.19, -0.18], from_best=-80.0))
    assert f"{DEFAULT} from π in 1 of 1" in near
    assert f"{PLAIN} from π in 0 of 1" in near
    assert "behind in 0, clearly in 0." in likelihood
    assert "furthest behind" not in likelihood


@pytest.mark.parametrize(("value", "worse"), [(-0.21, True), (-0.202, False), (-0.19, False)])
def test_the_sentences_name_what_is_worse_than_always_answering_the_prevalence(value: float, worse: bool) -> None:
    last = findings(row(DEFAULT, [-0.15, -0.15]), row(PLAIN, [value, value]))[-1]
    assert (f"Worse than {CONSTANT}: {PLAIN} from π (0.05 linear)." == last) is worse
    assert (f"No method is worse than {CONSTANT}" in last) is not worse


def test_a_loss_is_compared_with_the_default_from_its_own_start_and_if_both_coincide_from_pi() -> None:
    rows = [row(DEFAULT, [-0.1, -0.1]), row(DEFAULT, [-0.3, -0.3], start="equal")]
    rows += [row("rival", [-0.2, -0.2], start=start) for start in ("π", "equal", "both")]
    assert [(each.name, round(each.mean, 9)) for each in table._leads(rows, DEFAULT, "log_likelihood")] == [
        ("rival from π", -0.1),
        ("rival from equal", 0.1),
        ("rival", -0.1),
    ]


def test_one_seed_tells_no_methods_apart() -> None:
    assert any("one seed does not tell" in each for each in findings(row(DEFAULT, [-0.1]), row(PLAIN, [-0.4])))


def test_the_table_has_a_cell_for_every_column() -> None:
    assert all(list(table.cells(each)) == list(COLUMNS) for each in [row(DEFAULT, [-0.1]), *table.constant_rows(FiveRatings())])
