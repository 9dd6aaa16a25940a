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
    return table.findings([*ends, *rows], DEFAULT)


def test_the_sentences_count_where_the_default_is_clearly_ahead_and_behind() -> None:
    rows = [row(DEFAULT, [-0.15, -0.152]), row(PLAIN, [-0.19, -0.18]), row("rival", [-0.11, -0.1121])]
    assert findings(*rows)[0] == (
        f"The {DEFAULT} is clearly better than the other losses in 1 of 2 comparisons and clearly worse in 1."
    )
    assert "clearly worse in none." in findings(*rows[:2])[0]


@pytest.mark.parametrize(("value", "worse"), [(-0.21, True), (-0.202, False), (-0.19, False)])
def test_the_sentences_name_what_is_worse_than_always_answering_the_prevalence(value: float, worse: bool) -> None:
    last = findings(row(DEFAULT, [-0.15, -0.15]), row(PLAIN, [value, value]))[-1]
    assert (f"Worse than {CONSTANT}: {PLAIN} from π (1 of 1)." == last) is worse
    assert (f"No method is worse than {CONSTANT}" in last) is not worse


def test_a_loss_is_compared_with_the_default_from_its_own_start_and_if_both_coincide_from_pi() -> None:
    rows = [row(DEFAULT, [-0.1, -0.1]), row(DEFAULT, [-0.3, -0.3], start="equal")]
    rows += [row("rival", [-0.2, -0.2], start=start) for start in ("π", "equal", "both")]
    assert [round(each.mean, 9) for each in table._leads(rows, DEFAULT)] == [-0.1, 0.1, -0.1]


def test_one_seed_tells_no_methods_apart() -> None:
    assert any("One seed does not tell" in each for each in findings(row(DEFAULT, [-0.1]), row(PLAIN, [-0.4])))


def test_the_table_has_a_cell_for_every_column() -> None:
    assert all(list(table.cells(each)) == list(COLUMNS) for each in [row(DEFAULT, [-0.1]), *table.constant_rows(FiveRatings())])
