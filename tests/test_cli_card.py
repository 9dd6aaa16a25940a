"""`rightloss card`, `retarget` and `evaluate` on files of scores, of any program."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from commands import ROOT, answer, invoke, ran
from scipy.special import expit, log_expit, logit

from rightloss.cli.labelled import labelled_scores
from rightloss.cli.scores import Asked
from rightloss.metrics import evaluate

CARD = ["--target", "y", "--score", "risk", "--from", "0.5", "--population", "0.02"]
FILES = {"card.html", "card.md", "card.json"}


def scores(rows: int = 300) -> pd.DataFrame:
    """Return risks that hold where half of the people are ill, their logits and logarithms, and labels of another mix."""
    rng = np.random.default_rng(0)
    ill = rng.random(rows) < 0.3
    log_odds = 1.5 * rng.normal(size=rows) + 2.25 * ill - 1.125
    other = log_odds + rng.normal(size=rows)
    named = {"risk": expit(log_odds), "odds": log_odds, "log": log_expit(log_odds), "other": expit(other)}
    return pd.DataFrame(
        named | {"y": ill.astype(int), "sex": rng.choice(["f", "m"], rows), "id": [f"{n:04d}" for n in range(rows)]}
    )


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "scores.csv"
    scores().to_csv(path, index=False)
    return path


# Files of scores.


@pytest.mark.parametrize(
    ("name", "column", "scale"),
    [("s.csv.gz", "risk", "probability"), ("s.tsv", "odds", "logit"), ("s.parquet", "log", "log-probability")],
)
def test_scores_on_each_scale_and_in_each_format_are_the_same_predictions(
    name: str, column: str, scale: str, tmp_path: Path
) -> None:
    frame, path = scores(), tmp_path / name
    frame.to_parquet(path) if name.endswith("parquet") else frame.to_csv(path, index=False, sep="\t" if ".tsv" in name else ",")
    found = labelled_scores(path, Asked(["y"], None, "0.1", [column], scale, "0.5", "id", ["sex"]))
    expected = np.stack([log_expit(-frame["odds"]), log_expit(frame["odds"])], 1)
    np.testing.assert_allclose(found.predictions, expected, rtol=1e-12)
    assert found.target.tolist() == frame["y"].tolist()
    assert found.by["sex"].tolist() == frame["sex"].tolist()
    assert found.from_.tolist() == [0.5, 0.5]


def test_scores_are_moved_by_bayes_rule_and_evaluated_at_the_population(table: Path) -> None:
    found, frame = answer("evaluate", table, *CARD, "--threshold", "0.03"), scores()
    risk = expit(frame["odds"] + logit(0.02))
    expected = evaluate(np.log(np.stack([1 - risk, risk], 1)), frame["y"], 0.02, threshold=0.03)
    for name in ("expected_log_likelihood", "auc", "ppv", "tpr", "mean_prediction"):
        assert found["figures"][name]["value"] == pytest.approx(expected[name].value, rel=1e-10), name


def test_several_models_and_several_findings_are_evaluated_each_by_itself(table: Path, tmp_path: Path) -> None:
    one = answer("evaluate", table, *CARD)["figures"]
    both = answer("evaluate", table, *CARD, "--score", "other")["models"]
    assert (list(both), both["risk"]["figures"]) == (["risk", "other"], one)
    frame = scores().rename(columns={"y": "mass", "risk": "p_mass", "other": "p_cyst"}).assign(cyst=lambda frame: frame["mass"])
    frame.loc[:9, "cyst"] = np.nan  # not read
    frame.to_csv(tmp_path / "reads.csv", index=False)
    named = ["--target", "mass", "--target", "cyst", "--population", "mass=0.02,cyst=1/10", "--from", "0.5"]
    findings = answer("evaluate", tmp_path / "reads.csv", *named)["findings"]
    assert findings["mass"]["figures"] == one
    assert findings["cyst"]["rows"] == [sum(scores()["y"][10:] == 0), sum(scores()["y"][10:] == 1)]


@pytest.mark.parametrize(("column", "scale"), [("risk", "probability"), ("odds", "logit"), ("log", "log-probability")])
def test_retarget_multiplies_odds_and_leaves_everything_else_as_it_stands(
    column: str, scale: str, table: Path, tmp_path: Path
) -> None:
    out, options = tmp_path / "moved.csv", ["--score", column, "--scale", scale, "--from", "0.5", "--to", "2%"]
    assert answer("retarget", table, *options, "--out", out)["rows"] == 300
    moved, before = pd.read_csv(out, dtype=str), pd.read_csv(table, dtype=str)
    pd.testing.assert_frame_equal(moved[before.columns], before)
    back = {"probability": logit, "logit": lambda z: z, "log-probability": lambda log_p: logit(np.exp(log_p))}[scale]
    odds = back(moved[f"{column}_at_0.02"].astype(float))
    np.testing.assert_allclose(odds, scores()["odds"] + logit(0.02), rtol=1e-9)
    printed = invoke("retarget", str(table), *options)
    assert (printed.exit_code, printed.stdout) == (0, out.read_text())
    assert "300 rows moved from 0.5 to 2%" in printed.stderr


def test_retarget_of_classes_replaces_their_columns_and_there_and_back_is_the_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = rng.dirichlet([1, 1, 1], 50)
    classes = np.array(["a", "=b", "c<i>"])
    frame = pd.DataFrame({"p_dose": 1, **{f"p_{name}": each for name, each in zip(classes, table.T, strict=True)}})
    path, moved, again = (tmp_path / f"{name}.csv" for name in ("predictions", "moved", "again"))
    frame.assign(predicted=classes[table.argmax(1)]).drop(columns="p_dose").to_csv(path, index=False)
    mixes = '"=b"=0.3,c<i>=0.3,a=0.4', 'c<i>=0.02,a=0.9,"=b"=0.08'
    ran("retarget", str(path), "--from", mixes[0], "--to", mixes[1], "--out", str(moved))
    expected = table * [0.9 / 0.4, 0.08 / 0.3, 0.02 / 0.3]
    expected /= expected.sum(1, keepdims=True)
    found = pd.read_csv(moved)
    np.testing.assert_allclose(found[["p_a", "p_=b", "p_c<i>"]], expected, rtol=1e-12)
    assert (found["predicted"].str.lstrip("'") == classes[expected.argmax(1)]).all()
    ran("retarget", str(moved), "--from", mixes[1], "--to", mixes[0], "--out", str(again))
    np.testing.assert_allclose(pd.read_csv(again)[["p_a", "p_=b", "p_c<i>"]], table, rtol=1e-12)


def test_probabilities_of_0_and_1_stay_and_are_said_and_so_is_a_score_that_says_nothing(tmp_path: Path) -> None:
    frame, path = scores().assign(risk=lambda frame: frame["risk"].round(1), same=0.3), str(tmp_path / "s.csv")
    frame.to_csv(path, index=False)
    done = invoke("retarget", path, "--score", "risk", "--from", "0.5", "--to", "0.01")
    assert f"{frame['risk'].isin([0, 1]).sum()} scores are exactly 0 or 1" in done.stderr
    done = invoke("evaluate", path, *CARD, "--score", "same")
    assert done.exit_code == 0
    assert "column 'same' has the same score in all rows" in done.stderr


# Cards.


def test_a_card_of_a_file_has_the_figures_of_plain_formulas(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "card"
    made = answer("card", table, *CARD, "--threshold", "0.05", "--by", "sex", "--out", out)["card"]
    assert {path.name for path in out.iterdir()} == FILES
    assert json.loads((out / "card.json").read_text()) == made
    frame = scores()
    flagged, ill = expit(frame["odds"] + logit(0.02)) >= 0.05, frame["y"] == 1
    tpr, fpr = flagged[ill].mean(), flagged[~ill].mean()
    expected = {"sensitivity": tpr, "specificity": 1 - fpr, "ppv": 0.02 * tpr / (0.02 * tpr + 0.98 * fpr), "lr_plus": tpr / fpr}
    figures = made["answers"][0]["figures"]
    assert {name: figures[name]["value"] for name in expected} == pytest.approx(expected, rel=1e-12)
    assert {each["name"] for each in made["answers"][0]["subgroups"]["sex"]["groups"]} == {"f", "m"}
    scores().assign(y=lambda frame: 1 - frame["y"]).to_csv(table, index=False)  # the positive class is called 0
    named = [*CARD, "--threshold", "0.05", "--positive", "0", "--out", tmp_path / "other"]
    assert answer("card", table, *named)["card"]["answers"][0]["figures"] == figures
    printed = invoke("card", str(table), *CARD, "--positive", "0", "--out", str(out), "--overwrite").stdout
    assert "of 1,000 people" in printed
    assert str(out / "card.html") in printed


def changed(**columns: Any) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda frame: frame.assign(**columns)


def cell(column: str, value: Any, row: int = 16) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda frame: frame.assign(**{column: frame[column].astype(object).where(frame.index != row, value)})


REFUSED: dict[str, tuple[Callable[[pd.DataFrame], pd.DataFrame], list[str], str]] = {
    "above 1": (cell("risk", 3.2), [], "row 17 has 3.2: if the scores are on another scale, add --scale logit"),
    "an unknown scale": (changed(), ["--scale", "odds"], "--scale"),
    "a missing score": (cell("risk", None), [], "row 17 has none"),
    "unclear labels": (
        lambda frame: frame.assign(y=np.where(frame["y"], "red", "blue")),
        [],
        "--positive blue or --positive red",
    ),
    "a column that is not there": (changed(), ["--by", "age"], "Expected a column 'age'"),
    "a population of 0": (changed(), ["--population", "0"], "Expected a population between 0 and 1"),
    "a mix by other names": (changed(), ["--from", "a=0.5,b=0.5"], "Expected --from to name one of the classes"),
    "scores of one finding": (changed(), ["--target", "sex"], "Expected a --score for each of the 2 findings"),
    "a cell of no study": (changed(), ["--cell", "loss=weighted"], "Expected the folder of a study"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_scores_that_say_nothing_give_one_line_and_no_card(name: str, tmp_path: Path) -> None:
    change, options, words = REFUSED[name]
    change(scores(60)).to_csv(tmp_path / "scores.csv", index=False)
    done = invoke("card", str(tmp_path / "scores.csv"), *CARD, *options, "--out", str(tmp_path / "card"))
    assert (done.exit_code, done.stdout) == (2, "")
    assert words in done.stderr.splitlines()[-1]
    assert not (tmp_path / "card").exists()


def test_a_card_is_only_overwritten_on_request_and_needs_a_place(table: Path, tmp_path: Path) -> None:
    (tmp_path / "card").mkdir()
    (tmp_path / "card" / "card.md").write_text("mine")
    for out, words in (("card", "has card.md"), ("scores.csv", "Expected a folder"), ("none/card", "Expected a folder")):
        done = invoke("card", str(table), *CARD, "--out", str(tmp_path / out))
        assert (done.exit_code, words in done.stderr) == (2, True), out
    assert (tmp_path / "card" / "card.md").read_text() == "mine"


def test_names_of_columns_and_classes_are_no_markup(tmp_path: Path) -> None:
    hostile, path = "<img src=x onerror=alert(1)>", tmp_path / "scores.csv"
    frame = scores(80).rename(columns={"risk": "<script>alert(1)</script>", "sex": "=1+1"})
    frame.assign(y=np.where(frame["y"], hostile, "=cmd")).to_csv(path, index=False)
    options = ["--target", "y", "--score", "<script>alert(1)</script>", "--positive", hostile, "--population", "0.1"]
    ran("card", str(path), *options, "--by", "=1+1", "--out", str(tmp_path / "card"))
    for name in ("card.html", "card.md"):
        page = (tmp_path / "card" / name).read_text()
        assert "<img src=x" not in page
        assert "<script>alert" not in page


def test_the_commands_of_the_tutorial_print_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "tutorials" / "scores.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (program,) = re.findall(r"^```python no-run\n(.*?)^```$", text, re.DOTALL | re.M)
    exec(program, {})
    block = r"^```sh\nrightloss (.*?)\n```$(?:\n\nThe terminal shows:\n\n```text\n(.*?)```$)?"
    commands = re.findall(block, text, re.DOTALL | re.M)
    assert [line.split()[0] for line, _ in commands] == ["card", "evaluate", "retarget"]
    for line, printed in commands:
        done = ran(*shlex.split(line))
        assert printed in ("", done.stdout), line
