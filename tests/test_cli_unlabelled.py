"""`rightloss fit --unlabelled`: a second table without labels joins the comparison, or is refused with a remedy."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from commands import answer, ran, refused
from table_files import people, write_people

import rightloss as rl
from rightloss.calibration import fit_mean
from rightloss.tabular import TableModel, fit_table, load_model, read_table
from rightloss.tabular import fit as fitting
from rightloss.tabular.fit import ComparedRows, CrossFit, LabelledTable, compared_rows, corrected
from rightloss.tabular.pipelines import LinearPipeline, column_specs
from rightloss.tabular.report import report_page
from rightloss.tabular.unlabelled import (
    WITH_UNLABELLED,
    LinearWithUnlabelled,
    UnlabelledTable,
    mean_findings,
    stream_log_likelihood,
    unlabelled_table,
)

FIT = ["--target", "cancer", "--positive", "yes", "--leave-out", "patient", "--folds", "2"]


def fit(folder: Path, other: Path, population: str = "0.1") -> list[object]:
    """Return the arguments of a fit to the labelled rows in the folder, which are written if there are none, and others."""
    if not (folder / "labelled.csv").exists():
        write_people(folder / "labelled.csv", 160)
    files = [folder / "labelled.csv", "--unlabelled", other, "--out", folder / "model"]
    return ["fit", *files, *FIT, "--population", population]


def screening(rows: int = 300) -> pd.DataFrame:
    """Return unlabelled rows of the population."""
    return people(rows, seed=1, share=0.1).drop(columns="cancer")


Change = Callable[[pd.DataFrame], pd.DataFrame]


def the_labelled_rows(frame: pd.DataFrame) -> pd.DataFrame:
    return people(160)[["clinic", "age", "density"]][::-1]


# By name: a change of the unlabelled table, or None for the labelled file itself, and words of the refusal.
REFUSED: dict[str, tuple[Change | None, str]] = {
    "no rows": (lambda frame: frame[:0], "add data below them"),
    "without two columns": (lambda frame: frame.drop(columns=["age", "clinic"]), "['age', 'clinic'] are missing:"),
    "a column in capitals": (lambda frame: frame.rename(columns=str.upper), "it has ['AGE', 'DENSITY', 'CLINIC']"),
    "text for numbers": (lambda frame: frame.assign(age="old"), "Expected a number in the column 'age'"),
    "infinite numbers": (lambda frame: frame.assign(age=np.inf), "none of its 300 cells has one (such as 'inf')"),
    "decimal commas in quotes": (
        lambda frame: frame.assign(age=frame["age"].astype(str).str.replace(".", ",")),
        "write it as in the labelled table, or leave the column out (--leave-out age)",
    ),
    "an empty column": (lambda frame: frame.assign(density=None), "they are all empty"),
    "other categories": (lambda frame: frame.assign(clinic="west"), "Expected a category of the labelled table"),
    "the labelled file": (None, "160 of 160 are rows of the labelled table: is it the same file?"),
    "the labelled rows in another order, without labels": (the_labelled_rows, "rows of the labelled table"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_table_that_does_not_fit_is_refused_in_one_line_and_nothing_is_written(name: str, tmp_path: Path) -> None:
    change, words = REFUSED[name]
    path = write_people(tmp_path / "labelled.csv", 160)
    if change is not None:
        path = tmp_path / "s.csv"
        change(screening()).to_csv(path, index=False)
    before = sorted(tmp_path.iterdir())
    refused(words, *fit(tmp_path, path, "unknown" if "rows" in name else "0.1"))
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.long
def test_a_table_that_is_odd_is_learnt_from_and_said_to_be(tmp_path: Path) -> None:
    odd = screening().assign(age=lambda f: ["old", *f["age"].astype(str)[1:]], clinic=lambda f: ["west", *f["clinic"][1:]])
    odd = odd.assign(zip=1, note="x", cancer="?")
    pd.concat([people(160)[:20].assign(zip=2, note="y"), odd]).to_csv(tmp_path / "s.csv", index=False)
    findings = answer(*fit(tmp_path, tmp_path / "s.csv"))["findings"]
    for column, words in (
        ("age", "1 of 320 cells are no num"),
        ("clinic", "such as 'west'"),
        (None, "the columns ['zip', 'note'] are not used"),
        ("cancer", "no label in it is learnt from"),
        (None, "20 of 320 unlabelled rows are in the labelled table, too: they count twice"),
    ):
        said = [each for each in findings if words in each["message"]]
        assert [each["column"] for each in said] == [column], words
        assert "unlabelled" in said[0]["message"]


def options(unlabelled: pd.DataFrame) -> dict[str, Any]:
    return {"unlabelled": unlabelled, "positive": "yes", "leave_out": ["patient"], "candidates": ["linear"], "folds": 2}


@pytest.fixture(scope="module")
def plain() -> TableModel:
    return fit_table(people(160), target="cancer", population=0.1, **options(screening()))


def same_model(first: TableModel, second: TableModel) -> bool:
    new = people(50, seed=3)
    return np.array_equal(first.predict_log_proba(new), second.predict_log_proba(new))


@pytest.mark.long
def test_neither_labels_in_the_unlabelled_table_nor_the_way_it_is_written_change_the_model(
    plain: TableModel, tmp_path: Path
) -> None:
    other = screening().rename(columns={"age": " age "})[["clinic", "density", " age ", "patient"]]
    other.assign(cancer=["no", "yes", "?"] * 100).to_csv(
        tmp_path / "s.csv", index=False, sep=";", decimal=",", encoding="utf-16"
    )
    found = fit_table(people(160), target="cancer", population=0.1, **options(read_table(tmp_path / "s.csv")))
    assert same_model(found, plain)
    assert found.unlabelled == plain.unlabelled
    assert found.unlabelled is not None
    assert found.unlabelled.stream_gain is not None
    assert found.unlabelled.kept == (found.unlabelled.stream_gain > 0)
    assert {WITH_UNLABELLED, "linear, mean matching"} <= set(found.comparison["candidate"])


@pytest.mark.long
def test_a_file_with_labels_in_some_rows_serves_as_both(tmp_path: Path) -> None:
    pd.concat([people(160), screening()]).to_csv(tmp_path / "labelled.csv", index=False)
    assert answer(*fit(tmp_path, tmp_path / "labelled.csv"))["unlabelled"]["rows"] == 460
    assert load_model(tmp_path / "model").rows == 160


def test_very_many_rows_are_drawn_from_and_said_to_be(plain: TableModel) -> None:
    many = pd.concat([screening(10_000)] * 20, ignore_index=True)
    table, findings = unlabelled_table(many, people(160), plain.columns, "cancer", 0)
    assert (table.rows, len(table.frame)) == (200_000, 50_000)
    assert any("50,000 of the 200,000 unlabelled rows" in each.message for each in findings)
    assert plain.unlabelled is not None
    gain, low, high = plain.unlabelled.gain, plain.unlabelled.low, plain.unlabelled.high
    assert gain is not None
    assert low is not None
    assert high is not None
    assert low < gain
    assert high - gain == pytest.approx(gain - low)
    brought = dataclasses.replace(plain.unlabelled, rows=200_000, used=50_000)
    assert "50,000 unlabelled rows of 200,000 were used" in report_page(dataclasses.replace(plain, unlabelled=brought))


@pytest.mark.long
@pytest.mark.parametrize("population", ["0.1", "unknown"])
def test_the_stored_model_predicts_and_is_evaluated_and_its_page_tells_of_the_rows(tmp_path: Path, population: str) -> None:
    screening(600).to_csv(tmp_path / "screening.csv", index=False)
    found, model = answer(*fit(tmp_path, tmp_path / "screening.csv", population)), load_model(tmp_path / "model")
    assert model.unlabelled is not None
    assert found["unlabelled"] == vars(model.unlabelled)
    assert (model.unlabelled.rows, model.unlabelled.warned) == (600, False)
    page = (tmp_path / "model" / "report.html").read_text(encoding="utf-8")
    assert page == report_page(model)
    assert "600 unlabelled rows were used; a test found no sign" in page
    learnt = f"was learnt from the unlabelled rows: {100 * float(model.population.population[1]):.3g} % (95 % interval "
    assert (learnt in page) == (population == "unknown")
    means = np.exp(model.predict_log_proba(screening(600))).mean(0)
    np.testing.assert_allclose(np.array(model.unlabelled.mean_predictions), means, rtol=1e-12)
    new = write_people(tmp_path / "new.csv", 100, seed=2)
    for arguments in (["predict", "--out", str(tmp_path / "p.csv")], ["evaluate"], ["prevalence"]):
        result = ran(arguments[0], str(tmp_path / "model"), str(new), *arguments[1:])
    assert ("learnt its population from 600 unlabelled rows: yes " in result.stdout) == (population == "unknown")


@pytest.mark.long
@pytest.mark.parametrize(
    ("rows", "words"), [(screening()[:1], "Too few rows"), (screening().assign(age=99.0), "no mixture of the labelled classes")]
)
def test_the_test_warns_and_the_page_says_so(rows: pd.DataFrame, words: str) -> None:
    model = fit_table(people(160), target="cancer", population=0.1, **options(rows))
    assert words in " ".join(each.message for each in model.findings if each.level == "warning")
    brought = model.unlabelled
    assert brought is not None
    assert (brought.warned, brought.kept, brought.stream_gain) == (True, False, None)
    assert "mean matching" not in set(model.comparison["correction"])
    page = report_page(model)
    tested = "was not tested" if brought.p_value is None else "the same in both tables warned (p = "
    assert tested in page
    assert "It is not kept, since the test warned." in page


@pytest.mark.long
def test_a_model_of_before_there_were_these_figures_is_read(tmp_path: Path, plain: TableModel) -> None:
    plain.save(tmp_path / "model")
    path = tmp_path / "model" / "model.json"
    facts = json.loads(path.read_text(encoding="utf-8"))
    for name in ("stream_gain", "warned", "mean_predictions"):
        del facts["unlabelled"][name]
    del facts["sha256"]
    from rightloss.tabular.folder import _digest

    path.write_text(json.dumps(facts | {"sha256": _digest(facts)}), encoding="utf-8")
    model = load_model(tmp_path / "model")
    assert same_model(model, plain)
    page = report_page(model)
    assert "On average it predicts" in page
    assert "For the unlabelled rows" not in page


# Which model is kept.


def test_the_likelihood_of_both_tables_is_that_of_logit_adjustment() -> None:
    counts = (40, 20, 5)
    rng, k = np.random.default_rng(0), len(counts)
    codes, pi = np.repeat(np.arange(k), counts), np.array([0.9, 0.07, 0.03][:k])
    pi = pi / pi.sum()
    torch = pytest.importorskip("torch")
    from rightloss.losses import LogitAdjustedLoss

    tables = [torch.log_softmax(torch.from_numpy(rng.normal(size=(n, k))), 1) for n in (len(codes), 200)]
    prevalence = rl.Prevalence(pi, sampling=np.array(counts) / len(codes))
    criterion = LogitAdjustedLoss(prevalence, reduction="sum", unlabelled_evidence=0.0)
    loss = criterion(tables[0], torch.from_numpy(codes), unlabelled=tables[1])
    found = stream_log_likelihood(tables[0].numpy(), codes, tables[1].numpy(), pi)
    assert found * len(codes) == pytest.approx(-float(loss), rel=1e-12)


def test_predictions_far_from_the_population_on_average_are_warned_of_but_not_by_chance() -> None:
    pi = np.array([0.97, 0.03])

    def predictions(mean: float, rows: int) -> np.ndarray:
        positive = np.random.default_rng(0).beta(2 * mean, 2 * (1 - mean), rows)
        return np.stack([1 - positive, positive], 1)

    (found,) = mean_findings(predictions(0.06, 2000), pi, ["no", "yes"])
    assert "% yes for them on average, but the population has 3 %" in found.message
    assert mean_findings(predictions(0.03, 2000), pi, ["no", "yes"]) == []
    assert mean_findings(predictions(0.06, 2000)[:1], pi, ["no", "yes"]) == []
    assert mean_findings(np.tile(pi, (50, 1)), pi, ["no", "yes"]) == []


def drawn(rows: int, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of two Gaussians, at a distance of 2.5 along one column of four, and their classes."""
    ill = (np.arange(rows) < share * rows).astype(np.int64)
    x = np.random.default_rng(seed).normal(size=(rows, 4)) + 2.5 * np.outer(ill, [1, 0, 0, 0])
    return x.astype(np.float32), ill


@pytest.mark.long
def test_with_few_labels_unlabelled_rows_make_predictions_of_the_population_better() -> None:
    prevalence, gains = rl.Prevalence([0.95, 0.05], [0.5, 0.5]), []
    test, own = drawn(20_000, 0.05, 99)
    for seed in range(6):
        (x, codes), (others, _) = drawn(50, 0.5, seed), drawn(3000, 0.05, 50 + seed)
        models = LinearWithUnlabelled(prevalence, others), LinearPipeline()
        raw = (each.fit(x, codes).predict_log_proba(test) for each in models)
        ours, theirs = (rl.retarget(each, 0.5, prevalence)[np.arange(len(own)), own].mean() for each in raw)
        gains.append(ours - theirs)
    assert np.mean(gains) > 2 * np.std(gains, ddof=1) / np.sqrt(len(gains))


def two_tables(rows: int, folds: int) -> tuple[ComparedRows, UnlabelledTable]:
    """Return labelled rows, half of them cases, and unlabelled ones: the log-odds at equal classes are 1.5 x."""
    rng = np.random.default_rng(0)
    codes, hidden = np.arange(rows) % 2, rng.random(rows) < 0.1
    frame, others = (pd.DataFrame({"x": rng.normal(1.5 * (each - 0.5), 1)}) for each in (codes, hidden))
    specs = column_specs(frame, {"x": "number"})
    return compared_rows(LabelledTable(frame, specs, codes, None), folds, 0, rows), UnlabelledTable(others, rows, specs)


@pytest.mark.long
def test_no_unlabelled_row_changes_the_held_out_predictions_of_its_own_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, fit_once = list[tuple[int, int]](), LinearWithUnlabelled.fit

    def counted(self: LinearWithUnlabelled, X: np.ndarray, *others: Any) -> Any:
        seen.append((len(X), len(self.others)))
        return fit_once(self, X, *others)

    monkeypatch.setattr(LinearWithUnlabelled, "fit", counted)
    some, table = two_tables(120, 3)
    prevalence, others, folds = rl.Prevalence([0.9, 0.1], [0.5, 0.5]), table.encoded(LinearPipeline()), some.folds
    of_labelled, of_others = LinearWithUnlabelled(prevalence, others, 1.0).held_out(some)
    assert seen == [(80, 80)] * 3
    for row in (4, 5, 6):
        moved = others.copy()
        moved[row] += 30
        labelled, unlabelled = LinearWithUnlabelled(prevalence, moved, 1.0).held_out(some)
        own = np.arange(120) % 3 == row % 3
        rest = own & (np.arange(120) != row)
        np.testing.assert_array_equal(unlabelled[rest], of_others[rest])
        np.testing.assert_array_equal(labelled[folds == row % 3], of_labelled[folds == row % 3])
        assert (unlabelled[~own] != of_others[~own]).all()  # the other folds have learnt from it


@pytest.mark.long
def test_unlabelled_rows_are_compared_with_the_correction_of_the_model_that_would_be_kept(plain: TableModel) -> None:
    some, others = two_tables(600, 3)
    sure = LinearPipeline.of(np.array([[0.0], [6.0]]), np.array([0.0, 1.0]))  # in every fold; four times too sure, and off
    prevalence = rl.Prevalence([0.9, 0.1], [0.5, 0.5])
    log_probs = sure.predict_log_proba(some.given(sure).X)
    matched = fit_mean(others.by_fold([sure]), prevalence)
    made, _ = corrected(CrossFit(sure, [sure] * 3, log_probs, 0.0), some, prevalence, matched)
    assert [each.method for each in made] == ["closed_form", "mean_matching", "affine", "beta", "none"]
    compared = fitting._Comparison(some, prevalence, others, print)
    nothing = compared.of_others(fitting.always_population(prevalence, 600), others)
    np.testing.assert_allclose(np.exp(nothing), np.tile([0.9, 0.1], (600, 1)))
    for candidate in made[:-1]:
        correction = compared.correction(candidate, others.predictions(sure))
        kept = dataclasses.replace(plain, columns=others.specs, fitted=sure, population=prevalence, correction=correction)
        found = compared.of_others(candidate, others)
        np.testing.assert_allclose(found, kept.predict_log_proba(others.frame), rtol=1e-9, err_msg=candidate.name)
        if candidate.method == "mean_matching":
            np.testing.assert_allclose(np.exp(found).mean(0), [0.9, 0.1])
