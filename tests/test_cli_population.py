"""The population as users type it, and as the next command shows it to the shell."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from draws import assert_refused
from scipy.stats import beta

from rightloss import Prevalence
from rightloss.cli.population import parse_mix, parse_population, parse_rates, population_text
from rightloss.cli.terminal import command_line

HOSTILE = ["a,b", "c=d, e", '"quoted"', "x=0.5,y", " padded ", "f\x1b[31mg", "two\nlines", "don't", "100%", "…", "12 of 30"]


def test_a_population_can_be_written_in_many_ways() -> None:
    for text in ("0.001", "0.1%", "0.1 %", "1/1000", "1e-3", "1 / 1000", ".001"):
        assert parse_population(text) == pytest.approx(0.001, rel=1e-15), text


@pytest.mark.parametrize("text", ["0.3%-2%", "0.3% – 2%", "0.003 to 0.02", "3/1000-1/50", "3e-3-2e-2"])
def test_a_range_is_the_beta_with_these_limits(text: str) -> None:
    found = parse_population(text)
    assert isinstance(found, Prevalence)
    assert found.concentration is not None
    b, a = found.concentration
    assert beta.cdf([0.003, 0.02], a, b).tolist() == pytest.approx([0.025, 0.975], abs=1e-6)


def test_one_in_n_is_a_share_and_any_other_fraction_of_whole_numbers_a_survey(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_population("1/3000") == pytest.approx(1 / 3000, rel=1e-15)
    assert capsys.readouterr().err == ""
    found = parse_population("12/3000")
    assert found == parse_population("12 of 3000") == Prevalence.beta(12.5, 2988.5)  # Jeffreys' prior
    assert "a survey that counted 12 of 3,000" in capsys.readouterr().err
    assert parse_population("no=3/4,yes=1/4") == {"no": 0.75, "yes": 0.25}
    assert parse_rates("a=2/9,b=0.4") == {"a": Prevalence.beta(2.5, 7.5), "b": 0.4}
    assert (parse_mix("12/30"), parse_mix("12 of 30"), parse_mix("a=2/5,b=0.9", rates=True)) == (0.4, 0.4, {"a": 0.4, "b": 0.9})


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        ("between 0 and 1", ["", "0", "1", "2", "100%", "-0.1", "nan", "inf", "1/0", "5%/3", "x", "1e400", "0,001"]),
        ("shares that sum to 1", ["a=0.5"]),
        ("share for each class", ["a=0.5,a=0.5", "=1"]),
        ("population of 1e-12 or more", ["5e-324", "1e-300", "a=1,b=5e-324", "0.9999999999999"]),
        ("a range of the population", ["2%-0.3%", "0.3-2%", "0.02-0.02", "1e-12-0.9999"]),
        ("counts of a population", ["3/2", "3 of 2"]),
    ],
)
def test_what_is_no_population_is_refused(words: str, texts: list[str]) -> None:
    for text in texts:
        assert_refused(lambda text=text: parse_population(text), words)  # type: ignore[misc]


@pytest.mark.parametrize("shares", [[0.999, 0.001], [1 - 1 / 3, 1 / 3], [0.123456, 0.876544]])
def test_a_population_in_a_command_is_read_as_it_was_meant(shares: list[float]) -> None:
    assert parse_population(population_text(shares, ["no", "yes"], "yes")) == pytest.approx(shares[1], rel=1e-3)
    assert parse_population(population_text([1e-6, 1 - 1e-6], ["no", "yes"], "yes")) == pytest.approx(1 - 1e-6)
    found = parse_population(population_text([*(0.5 * each for each in shares), 0.5], ["a", "b", "c"], None))
    assert isinstance(found, dict)
    assert list(found.values()) == pytest.approx([*(0.5 * each for each in shares), 0.5], rel=1e-3)


def test_frequencies_of_classes_with_any_name_are_read_as_they_were_written() -> None:
    shares = dict.fromkeys(HOSTILE, 1 / len(HOSTILE))
    assert parse_population(population_text([*shares.values()], HOSTILE, None)) == pytest.approx(shares, rel=1e-3)
    assert parse_population("other, benign=0.9,malignant=0.1") == {"other, benign": 0.9, "malignant": 0.1}
    assert parse_population("a=b=50%, c d=1/4,e=0.25") == {"a=b": 0.5, "c d": 0.25, "e": 0.25}


def test_the_shell_reads_a_command_as_it_was_meant_and_the_terminal_gets_no_control_characters() -> None:
    shell = shutil.which("bash")
    if shell is None:
        pytest.skip("needs bash")
    for argument in [*HOSTILE, "\udcff.csv", "\u202eab", "$(touch harm)\x07", "é\x07f1"]:
        line = command_line(argument, "end")
        assert line.isprintable()
        program = line.replace("rightloss", "printf '%s|'", 1)
        read = subprocess.run([shell, "-c", program], capture_output=True, check=True).stdout
        assert read == f"{argument}|end|".encode("utf-8", "surrogateescape")
