"""`metrics.card`: figures against scikit-learn and plain formulas, what moves on the page, safety of names, and bad input."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import browser_path, open_browser
from draws import assert_refused
from labelled import predictions
from scipy.special import expit, logit, logsumexp
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import class_likelihood_ratios, precision_score, recall_score, roc_auc_score

import rightloss as rl
from rightloss.card import content
from rightloss.card.numbers import mean_over_observed
from rightloss.metrics import card, compare, operating_point
from rightloss.metrics.one_vs_rest import scores

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>|`*"
TEMPLATES = files("rightloss.card").joinpath("templates")


def vendor(n: int = 600, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Risks of a model trained on equal classes, and labels."""
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < 0.5).astype(int)
    return expit(1.7 * (rng.normal(size=n) + 1.4 * y) - 1.2), y


def table(risk: np.ndarray) -> np.ndarray:
    return np.log(np.stack([1 - risk, risk], 1))


def findings(n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    target = (rng.random((n, 2)) < 0.4).astype(float)
    target[:20, 1] = np.nan
    return -np.logaddexp(0, 1 - 2 * np.nan_to_num(target) - rng.normal(size=(n, 2))), target


@cache
def three_classes() -> Any:
    log_probs, y = predictions(300, 3)
    return card(log_probs, y, [0.9, 0.08, 0.02], from_=[1 / 3] * 3, classes=["a", "b", "c"], groups=np.arange(len(y)) // 2)


@cache
def two_models() -> Any:
    (risk, y), other = vendor(), vendor(seed=1)[0]
    site = np.where(np.arange(len(y)) < 3, HOSTILE, np.where(np.arange(len(y)) % 3 == 0, "north", "south"))
    tables = {"first": table(risk), HOSTILE: table(0.8 * risk + 0.2 * other)}
    about = {"title": HOSTILE, "data": HOSTILE, "population_source": "a survey"}
    return card(tables, y, rl.Prevalence.beta(12.5, 588), from_=0.5, by={HOSTILE: site, "age": np.arange(len(y))}, about=about)


@cache
def multilabel() -> Any:
    log_probs, target = findings()
    return card(log_probs, target, rl.Prevalence.multilabel({"mass": 0.05, "nodule": 0.01}), from_=[0.4, 0.4])


@cache
def constant() -> Any:
    return card(np.log(np.full((60, 2), 0.5)), np.arange(60) % 2, 0.02, from_=0.5)


@cache
def separated() -> Any:
    return card(table(expit(np.where(np.arange(60) % 2, 8.0, -8.0))), np.arange(60) % 2, 0.001)


CARDS: list[Callable[[], Any]] = [three_classes, two_models, multilabel, constant, separated]


def test_figures_are_those_of_scikit_learn_and_plain_formulas() -> None:
    risk, y = vendor()
    pi, t = 0.02, 0.03
    made = card(table(risk), y, pi, from_=0.5, threshold=t).data["answers"][0]
    p = expit(logit(risk) + logit(pi))
    flagged, weight = (p >= t).astype(int), np.where(y == 1, pi / (y == 1).sum(), (1 - pi) / (y == 0).sum())
    plus, minus = class_likelihood_ratios(y, flagged)
    tpr, tnr = recall_score(y, flagged), recall_score(1 - y, 1 - flagged)
    expected = {"sensitivity": tpr, "specificity": tnr, "lr_plus": plus, "lr_minus": minus, "auc": roc_auc_score(y, p)}
    expected["ppv"] = precision_score(y, flagged, sample_weight=weight)
    expected["npv"] = precision_score(1 - y, 1 - flagged, sample_weight=weight)
    expected |= {"found": 1000 * pi * tpr, "missed": 1000 * pi * (1 - tpr), "false_alarms": 1000 * (1 - pi) * (1 - tnr)}
    expected["flagged"] = 1000 * weight @ flagged
    assert {name: made["figures"][name]["value"] for name in expected} == pytest.approx(expected, rel=1e-10)
    assert made["calibration"]["ratio"]["value"] == pytest.approx(weight @ p / pi, rel=1e-10)
    price = t / (1 - t)
    range_ = expit(np.log(price) - np.log([plus, minus]))
    assert [made["helps"]["low"], made["helps"]["high"]] == pytest.approx(range_.tolist(), rel=1e-10)
    assert made["figures"]["rest"]["value"] == pytest.approx(1000 * (1 - pi) * tnr, rel=1e-10)
    place = made["decision"]["threshold"].index(pytest.approx(t, rel=1e-9))
    benefit = pi * tpr - (1 - pi) * (1 - tnr) * price
    assert made["decision"]["net_benefit"][place] == pytest.approx(benefit, rel=1e-9)


def test_flagging_helps_where_its_net_benefit_is_above_that_of_nobody_and_everybody() -> None:
    risk, y = vendor(3000)
    made = card(table(risk), y, 0.02, from_=0.5, threshold=0.03).data["answers"][0]
    tpr, fpr = made["figures"]["sensitivity"]["value"], 1 - made["figures"]["specificity"]["value"]

    def benefit(pi: float, sensitivity: float, alarms: float) -> float:
        return pi * sensitivity - (1 - pi) * alarms * 0.03 / 0.97

    for each in made["prevalences"]:
        pi = each["prevalence"]
        best = max({"nobody": (0, 0), "everybody": (1, 1), "yes": (tpr, fpr)}.items(), key=lambda one: benefit(pi, *one[1]))
        assert each["helps"] in (best[0], "unclear")
    assert {each["helps"] for each in made["prevalences"]} >= {"yes", "nobody", "everybody"}


@pytest.mark.parametrize("make", [two_models, three_classes, multilabel], ids=lambda make: make.__name__)
def test_the_range_where_flagging_helps_gives_the_table_s_verdicts(make: Callable[[], Any]) -> None:
    for answer in make().data["answers"]:
        sure, possible = answer["helps"]["sure"], answer["helps"]["possible"]
        for each in answer["prevalences"]:
            pi = each["prevalence"]
            within = [end["low"] is not None and end["low"] < pi < end["high"] for end in (sure, possible)]
            assert within == [each["helps"] == "yes", each["helps"] in ("yes", "unclear")]


def test_a_threshold_that_nobody_chose_and_whom_it_misses_are_said_first() -> None:
    risk, y = vendor(3000)
    by = {"sex": np.where(np.arange(3000) % 2, "men", "women")}
    risk = np.where(by["sex"] == "women", 0.6 * risk, risk)
    first = card(table(risk), y, 0.5, by=by).html().split("<main")[0]
    assert "Nobody chose this threshold" in first
    assert "By sex, worse for women: sensitivity" in first
    assert "Nobody chose" not in card(table(risk), y, 0.5, threshold=0.4).html()


def test_a_small_subgroup_is_too_few_to_say_and_no_certain_difference_is_not_none() -> None:
    risk, y = vendor(3000)
    site = np.where(np.arange(3000) < 26, "small", np.where(np.arange(3000) % 2, "north", "south"))
    made = card(table(risk), y, 0.5, by={"site": site})
    assert {each["name"]: each["few"] for each in made.data["answers"][0]["subgroups"]["site"]["groups"]}["small"]
    said = " ".join(made.data["answers"][0]["subgroups"]["site"]["summary"])
    assert "does not mean that there is none" in said
    assert "Nobody can say for small (26 rows)" in said


def test_the_intervals_of_the_threshold_are_those_of_operating_point() -> None:
    risk, y = vendor()
    pi = rl.Prevalence.beta(12, 500)
    found = card(table(risk), y, pi, threshold=0.4).data["answers"][0]["figures"]
    at = operating_point(table(risk), y, pi, threshold=0.4)
    for ours, theirs in {"sensitivity": at.recall, "ppv": at.ppv, "lr_minus": at.lr_minus, "flagged": at.alarms}.items():
        assert list(found[ours].values())[:3] == [theirs.value, theirs.low, theirs.high]


def test_an_uncertain_prevalence_widens_what_depends_on_it() -> None:
    risk, y = vendor()
    known, survey = (card(table(risk), y, pi, threshold=0.5).data for pi in (12 / 600, rl.Prevalence.beta(12, 588)))
    widths = [
        {name: each["high"] - each["low"] for name, each in made["answers"][0]["figures"].items()} for made in (known, survey)
    ]
    for name in ("ppv", "npv", "found", "missed"):
        assert widths[1][name] > 1.2 * widths[0][name], name
    assert widths[1]["sensitivity"] == pytest.approx(widths[0]["sensitivity"], rel=0.1)
    assert survey["questions"][0]["prevalence"]["low"] < 0.02 < survey["questions"][0]["prevalence"]["high"]


def test_a_subgroup_is_the_part_of_the_population_that_it_is() -> None:
    risk, y = vendor()
    pi, rng = 0.05, np.random.default_rng(3)
    sex = np.where(rng.random(len(y)) < 0.3 + 0.3 * y, "men", "women")
    made = card(table(risk), y, pi, from_=0.5, by={"sex": sex}).data["answers"][0]["subgroups"]["sex"]["groups"]
    p = expit(logit(risk) + logit(pi))
    weight = np.where(y == 1, pi / (y == 1).sum(), (1 - pi) / (y == 0).sum())
    for each in made:
        own, flagged = sex == each["name"], p >= pi
        assert each["prevalence"] == pytest.approx(np.average(y[own], weights=weight[own]), rel=1e-10)
        ppv = precision_score(y[own], flagged[own], sample_weight=weight[own])
        assert each["ppv"]["value"] == pytest.approx(ppv, rel=1e-10)
        assert each["sensitivity"]["value"] == pytest.approx(recall_score(y[own], flagged[own]), rel=1e-10)
        assert each["auc"]["value"] == pytest.approx(roc_auc_score(y[own], p[own]), rel=1e-10)
        assert each["ratio"]["value"] == pytest.approx(np.average(p[own], weights=weight[own]) / each["prevalence"], rel=1e-10)
        others = recall_score(y[~own], flagged[~own])
        assert each["differences"]["sensitivity"]["value"] == pytest.approx(each["sensitivity"]["value"] - others, rel=1e-9)
    first, second = (each["differences"]["specificity"] for each in made)
    assert [first["value"], first["low"]] == pytest.approx([-second["value"], -second["high"]])


def test_it_says_for_whom_the_model_works_worse_and_for_whom_nobody_can_say() -> None:
    risk, y = vendor(3000)
    group = np.where(np.arange(3000) % 2, "well read", "badly read").astype(object)
    group[:3] = "three"
    risk = np.where(group == "badly read", 0.6 * risk, risk)
    said = " ".join(card(table(risk), y, 0.5, by={"scanner": group}).data["answers"][0]["subgroups"]["scanner"]["summary"])
    assert "Worse for badly read: AUC" not in said  # ranks within a group are the same
    assert "Worse for badly read: sensitivity" in said
    assert "Worse for well read: specificity" in said
    assert "Nobody can say for three" in said


@pytest.mark.parametrize("part", ["all", "a subgroup"])
def test_limits_of_the_mean_prediction_are_as_wide_as_its_spread_over_samples(part: str) -> None:
    values, widths = [], []
    for seed in range(300):
        risk, y = vendor(300, seed)
        inside = np.random.default_rng(seed).random(300) < (1.0 if part == "all" else 0.2 + 0.3 * y)
        seen = scores(rl.retarget(table(risk), 0.5, 0.1), y, 0.1, 1, "a test")
        ratio = mean_over_observed(seen, inside, 0.95)
        values.append(np.log(ratio["value"]))
        widths.append(np.log(ratio["high"] / ratio["low"]) / 2 / 1.96)
    assert np.mean(widths) == pytest.approx(np.std(values), rel=4 / np.sqrt(2 * 300))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """Run an expression with the functions of the page's script."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node")
    stub = "globalThis.document = {getElementById: () => null, querySelectorAll: () => []};"
    stub += "globalThis.location = {hash: ''}; globalThis.addEventListener = () => {};"
    script = "".join(TEMPLATES.joinpath(name).read_text("utf-8") for name in ("page.js", "card.js"))
    file = tmp_path_factory.mktemp("script") / "run.js"

    def runs(expression: str) -> Any:
        file.write_text(f"{stub}{script};console.log(JSON.stringify({expression}));", encoding="utf-8")
        return json.loads(subprocess.run([node, str(file)], check=True, capture_output=True, text=True).stdout)

    return runs


@pytest.mark.long
def test_what_the_script_shows_is_what_python_computes(run: Callable[[str], Any]) -> None:
    risk, y = vendor()
    made = card(table(risk), y, 0.02, from_=0.5, threshold=0.03).data["answers"][0]
    slider, names = (
        made["slider"],
        ["sensitivity", "specificity", "lr_plus", "lr_minus", "ppv", "npv", "flagged", "found", "missed"],
    )
    places = [slider["start"], slider["start"] - 4, slider["start"] + 6]
    stored = json.dumps(slider)
    shown = run(f"[0.02, 0.2].map((pi) => {places}.map((i) => cardFigures({stored}, i, pi)))")
    log_probs = rl.retarget(table(risk), 0.5, 0.02)
    for pi, row in zip((0.02, 0.2), shown, strict=True):
        for place, found in zip(places, row, strict=True):
            at = operating_point(log_probs, y, pi, threshold=slider["thresholds"][place], people=1)
            theirs = [at.recall, at.specificity, at.lr_plus, at.lr_minus, at.ppv, at.npv, at.alarms, at.found, at.missed]
            for name, each in zip(names, theirs, strict=True):
                value, low, high = found[name]
                assert value == pytest.approx(each.value, rel=1e-10), name
                noise = 0.12 * (each.high - each.low)  # other draws
                assert [low, high] == pytest.approx([each.low, each.high], abs=noise), name
    own = shown[0][0]
    for name in names:
        unit = 1000 if name in ("flagged", "found", "missed") else 1
        assert (unit * np.array(own[name])).tolist() == pytest.approx(
            [made["figures"][name][end] for end in ("value", "low", "high")]
        )
    rates, start = json.dumps([each["prevalence"] for each in made["prevalences"]]), slider["start"]
    helps = run(f"{rates}.map((pi) => helps(cardFigures({stored}, {start}, pi), pi, {0.97 / 0.03}))")
    assert helps == [each["helps"] for each in made["prevalences"]]


@pytest.mark.parametrize("make", CARDS, ids=lambda make: make.__name__)
def test_every_card_is_valid_json_with_people_who_add_up_and_escaped_names(make: Callable[[], Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    made = make()
    data = json.loads(made.json())
    assert data == made.data
    jsonschema.validate(data, json.loads(files("rightloss.card").joinpath("card.schema.json").read_text("utf-8")))
    for answer in data["answers"]:
        question = data["questions"][answer["question"]]
        assert sum(answer["whole_people"].values()) == question["people"]
        assert all(low <= each <= high for each, low, high in zip(*answer["slider"]["sensitivity"], strict=True))
    for page in (made.html(), made.markdown()):
        assert not re.search("<script>alert|<img", page)
        assert not re.search(r"\b(nan|inf|NaN|None)\b", page.split("<body>")[-1].split("<script")[0])
    assert HOSTILE not in made.html()


def test_markdown_begins_with_the_metadata_of_model_hubs() -> None:
    yaml = pytest.importorskip("yaml")
    made = two_models()
    _, head, body = made.markdown().split("---\n", 2)
    first, second = yaml.safe_load(head)["model-index"]
    assert (first["name"], second["name"]) == ("first", HOSTILE)
    metrics = {each["type"]: each["value"] for each in first["results"][0]["metrics"]}
    assert metrics["ppv"] == made.data["answers"][0]["figures"]["ppv"]["value"]
    assert {"task", "dataset", "metrics"} == set(first["results"][0])
    rows = [line for line in body.split("At a glance")[1].splitlines() if line.startswith("| ")][:4]
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1


def test_models_side_by_side_are_compared_on_the_same_rows() -> None:
    (risk, y), other = vendor(), vendor(seed=1)[0]
    tables = {"a": table(risk), "b": table(0.8 * risk + 0.2 * other)}
    (found,) = card(tables, y, 0.1, threshold=0.3).data["comparisons"]
    expected = compare(tables["a"], tables["b"], y, 0.1, threshold=0.3)
    assert found["differences"]["auc"]["value"] == expected.auc.value
    assert found["differences"]["auc"]["verdict"] == "a"


def test_a_fitted_classifier_and_names_as_labels_give_the_card_of_its_predictions() -> None:
    risk, y = vendor()
    rows, names = logit(risk)[:, None], np.array(["well", "ill"])[y]
    model = LogisticRegression().fit(rows, names)
    made = card(model, names, [0.1, 0.9], rows=rows, from_=0.5)  # its classes are in alphabetical order
    assert made.data["questions"][0]["label"] == "well"
    direct = card(model.predict_log_proba(rows), (names == "well").astype(int), [0.1, 0.9], from_=0.5)
    assert made.data["answers"][0]["figures"] == direct.data["answers"][0]["figures"]


def test_several_classes_are_each_asked_against_the_rest_at_the_population() -> None:
    made, pi = three_classes().data, np.array([0.9, 0.08, 0.02])
    assert [each["label"] for each in made["questions"]] == ["a", "b", "c"]
    shares = np.array(made["decisions"][0]["shares"])
    assert shares.sum(1) == pytest.approx(pi)
    log_probs, y = predictions(300, 3)
    p = np.exp(log_probs + np.log(3 * pi) - logsumexp(log_probs + np.log(3 * pi), axis=1, keepdims=True))
    assert shares[2, 2] == pytest.approx(0.02 * np.mean(p[y == 2].argmax(1) == 2))
    weight = (pi / np.bincount(y))[y]
    found = made["answers"][1]["figures"]
    assert found["ppv"]["value"] == pytest.approx(precision_score(y == 1, p[:, 1] >= 0.08, sample_weight=weight), rel=1e-10)


def test_what_cannot_be_said_is_said() -> None:
    answer = constant().data["answers"][0]
    assert answer["figures"]["npv"] == {"value": None, "low": None, "high": None, "reason": "everybody is called positive"}
    assert answer["helps"]["low"] is None
    assert answer["calibration"]["curve"] is None
    certain = separated().data["answers"][0]["figures"]["lr_plus"]
    assert certain["value"] is None
    assert certain["low"] > 10
    assert "above" in separated().html()


risk_, y_ = vendor(40)
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "one class": (lambda: card(table(risk_), np.zeros(40, int), 0.02), "examples of every class"),
    "population of 0": (lambda: card(table(risk_), y_, 0.0), "strictly between 0 and 1"),
    "risks": (lambda: card(np.stack([1 - risk_, risk_], 1), y_, 0.02), "log-probabilities"),
    "missing": (lambda: card(np.where(np.arange(80).reshape(-1, 2) == 5, np.nan, table(risk_)), y_, 0.02), "without NaN"),
    "threshold": (lambda: card(table(risk_), y_, 0.02, threshold=20.0), "percentage"),
    "classes": (lambda: card(table(risk_), y_, 0.02, classes=["a"]), "name each column"),
    "numbers out of order": (lambda: card(table(risk_), y_, 0.02, classes=[1, 0]), "order of the numbers"),
    "names": (lambda: card(table(risk_), np.where(y_ == 1, "a", "z"), 0.02, classes=["a", "b"]), "labels"),
    "by": (lambda: card(table(risk_), y_, 0.02, by={"sex": ["m"]}), "align"),
    "by column": (lambda: card(table(risk_), y_, 0.02, by=["m"] * 40), "dict of labels"),  # type: ignore[arg-type]
    "no rows": (lambda: card(LogisticRegression(), y_, 0.02), "rows"),
    "models": (lambda: card({"a": table(risk_), "b": table(risk_)[:5]}, y_, 0.02), "align the models"),
    "no models": (lambda: card({}, y_, 0.02), "at least one model"),
    "finding": (lambda: card(findings()[0], np.zeros((400, 2)), {"a": 0.1, "b": 0.2}), "with and without 'a'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_refused_with_the_remedy(name: str) -> None:
    assert_refused(*REFUSED[name])


def test_a_card_is_written_whole_and_not_over_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = constant()
    with monkeypatch.context() as broken:
        broken.setattr(content, "markdown_page", lambda data: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            made.write(tmp_path / "card")
    assert not (tmp_path / "card").exists()
    folder = made.write(tmp_path / "card")
    assert sorted(each.name for each in folder.iterdir()) == ["card.html", "card.json", "card.md"]
    assert_refused(lambda: made.write(folder), "overwrite")
    made.write(folder, overwrite=True)


@pytest.mark.long
def test_the_page_moves_by_keyboard_and_runs_no_foreign_script(tmp_path: Path) -> None:
    if browser_path() is None:
        pytest.skip("no Chromium")
    made = two_models()
    made.write(tmp_path / "card")
    with open_browser(tmp_path) as page:
        page.open(tmp_path / "card" / "card.html")
        figures = made.data["answers"][0]["figures"]
        assert float(page.evaluate("at('ppv').dataset.low")) == figures["ppv"]["low"]
        before = page.evaluate("at('lead').textContent")
        page.evaluate("at('prevalence').focus()")
        page.press("ArrowRight", 39)
        assert page.evaluate("at('lead').textContent") != before
        assert page.evaluate("at('prevalence').getAttribute('aria-valuetext')") != "1 in 48"
        assert page.evaluate("at('weight-shown').textContent") == "47 false alarms"  # it stays where the prevalence moves
        moved = float(page.evaluate("at('threshold-shown').textContent").removesuffix(" %"))
        page.evaluate("at('best').click()")
        best = float(page.evaluate("at('threshold-shown').textContent").removesuffix(" %"))
        assert abs(best - 100 / 48) < abs(moved - 100 / 48)
        assert page.evaluate("at('best').hidden")
        page.evaluate("at('reset').click()")
        assert page.evaluate("at('lead').textContent") == before
        page.evaluate("at('model').focus()")
        page.press("ArrowDown", 40)
        assert page.evaluate("at('answer-1').hidden === false && at('answer-0').hidden")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert (page.complaints(), page.requests()) == ([], [])
        constant().write(tmp_path / "constant")
        page.open(tmp_path / "constant" / "card.html")
        assert (page.complaints(), page.requests()) == ([], [])
