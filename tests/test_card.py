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
from draws import assert_refused, unchecked_types
from labelled import predictions
from scipy.special import expit, logit, logsumexp
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import class_likelihood_ratios, precision_score, recall_score, roc_auc_score

import rightloss as rl
from rightloss.card import content, numbers
from rightloss.card.inputs import subgroups
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


def of_vendor(n: int, population: Any, **options: Any) -> Any:
    risk, y = vendor(n)
    return card(table(risk), y, population, **options)


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


@pytest.mark.long
def test_flagging_helps_where_its_net_benefit_is_above_that_of_nobody_and_everybody() -> None:
    whole = of_vendor(3000, 0.02, from_=0.5, threshold=0.03)
    assert "In between, the intervals leave it open." in whole.html()
    made = whole.data["answers"][0]
    tpr, fpr = made["figures"]["sensitivity"]["value"], 1 - made["figures"]["specificity"]["value"]

    def benefit(pi: float, sensitivity: float, alarms: float) -> float:
        return pi * sensitivity - (1 - pi) * alarms * 0.03 / 0.97

    for each in made["prevalences"]:
        pi = each["prevalence"]
        best = max({"nobody": (0, 0), "everybody": (1, 1), "yes": (tpr, fpr)}.items(), key=lambda one: benefit(pi, *one[1]))
        assert each["helps"] in (best[0], "unclear")
    assert {each["helps"] for each in made["prevalences"]} >= {"yes", "nobody", "everybody"}
    for answer in (made, *two_models().data["answers"], *three_classes().data["answers"]):
        ends = answer["helps"]["sure"], answer["helps"]["possible"]
        for each in answer["prevalences"]:
            within = [end["low"] is not None and end["low"] < each["prevalence"] < end["high"] for end in ends]
            assert within == [each["helps"] == "yes", each["helps"] in ("yes", "unclear")]


def test_a_threshold_that_nobody_chose_and_whom_it_misses_are_said_first() -> None:
    risk, y = vendor(3000)
    by = {"sex": np.where(np.arange(3000) % 2, "men", "women")}
    risk = np.where(by["sex"] == "women", 0.6 * risk, risk)
    first = card(table(risk), y, 0.5, by=by).html().split("<main")[0]
    assert "Nobody chose this threshold" in first
    assert "By sex, worse for women: sensitivity" in first
    assert "Nobody chose" not in card(table(risk), y, 0.5, threshold=0.4).html()


def test_intervals_are_those_of_operating_point_and_an_uncertain_prevalence_widens_what_depends_on_it() -> None:
    (risk, y), survey = vendor(), rl.Prevalence.beta(12, 588)
    made = [of_vendor(600, pi, threshold=0.5).data for pi in (12 / 600, survey)]
    known, found = (each["answers"][0]["figures"] for each in made)
    at = operating_point(table(risk), y, survey, threshold=0.5)
    for ours, theirs in {"sensitivity": at.recall, "ppv": at.ppv, "lr_minus": at.lr_minus, "flagged": at.alarms}.items():
        assert list(found[ours].values())[:3] == [theirs.value, theirs.low, theirs.high]
    ratios = {name: (each["high"] - each["low"]) / (known[name]["high"] - known[name]["low"]) for name, each in found.items()}
    assert min(ratios[name] for name in ("ppv", "npv", "found", "missed")) > 1.2
    assert ratios["sensitivity"] == pytest.approx(1, rel=0.1)
    assert made[1]["questions"][0]["prevalence"]["low"] < 0.02 < made[1]["questions"][0]["prevalence"]["high"]


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
    group[:26], group[-3:] = "small", "three"
    risk = np.where(group == "badly read", 0.6 * risk, risk)
    found = card(table(risk), y, 0.5, by={"scanner": group}).data["answers"][0]["subgroups"]["scanner"]
    said = " ".join(found["summary"])
    assert "Worse for badly read: AUC" not in said  # ranks within a group are the same
    assert "Worse for badly read: sensitivity" in said
    assert "Worse for well read: specificity" in said
    assert "Nobody can say for three (3 rows), small (26 rows)" in said
    assert [each["name"] for each in found["groups"] if each.get("few")] == ["small"]
    site = np.where(np.arange(3000) < 26, "small", np.where(np.arange(3000) % 2, "north", "south"))
    same = of_vendor(3000, 0.5, by={"site": site}).data["answers"][0]["subgroups"]["site"]["summary"]
    assert "does not mean that there is none" in " ".join(same)


def test_subgroups_are_numbers_in_quarters_names_and_the_missing_and_no_more_than_a_dozen() -> None:
    names, number = subgroups(np.append(np.arange(100.0), np.nan), "age", 101)
    assert names == ["0 to 24.75", "24.75 to 49.5", "49.5 to 74.25", "74.25 to 99", "missing"]
    assert np.bincount(number).tolist() == [25, 25, 25, 25, 1]
    names, number = subgroups(["a", "b", None, "b"], "clinic", 4)
    assert (names[0], number.tolist()) == ("b", [names.index("a"), 0, names.index("missing"), 0])
    names, number = subgroups([str(each) for each in [*range(13), *range(12)]], "site", 25)
    assert (len(names), number.tolist().count(-1)) == (12, 1)


@pytest.mark.long
@unchecked_types()
def test_limits_of_the_mean_prediction_are_as_wide_as_its_spread_over_samples() -> None:
    values, widths = [], []
    for seed in range(300):
        risk, y = vendor(300, seed)
        inside = np.random.default_rng(seed).random(300) < 0.2 + 0.3 * y
        seen = scores(rl.retarget(table(risk), 0.5, 0.1), y, 0.1, 1, "a test")
        ratio = mean_over_observed(seen, inside, 0.95)
        values.append(np.log(ratio["value"]))
        widths.append(np.log(ratio["high"] / ratio["low"]) / 2 / 1.96)
    assert np.mean(widths) == pytest.approx(np.std(values), rel=4 / np.sqrt(2 * 300))


def test_a_calibration_curve_of_some_rows_of_each_class_is_within_the_limits_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for most in (4000, 1500):
        monkeypatch.setattr(numbers, "_MOST_CURVED", most)
        answer = of_vendor(4000, 0.1, from_=0.5, groups=np.arange(4000) // 2).data["answers"][0]
        made.append({name: np.array(values) for name, values in answer["calibration"]["curve"].items()})
    whole, part = made
    observed = np.interp(whole["predicted"], part["predicted"], part["observed"])
    assert not np.array_equal(observed, whole["observed"])
    assert ((whole["low"] <= observed) & (observed <= whole["high"])).mean() > 0.9


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
    slider, names = made["slider"], "sensitivity specificity lr_plus lr_minus ppv npv flagged found missed".split()
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


@pytest.mark.long
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
    made = card(tables, y, 0.1, threshold=0.3)
    (found,) = made.data["comparisons"]
    assert re.findall(r'<option value="\d">(.*?)</option>', made.html()) == ["a", "b"]
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


RISK, Y = vendor(40)
P = table(RISK)
REFUSED: dict[str, Callable[[], Any]] = {
    "examples of every class": lambda: card(P, np.zeros(40, int), 0.02),
    "strictly between 0 and 1": lambda: card(P, Y, 0.0),
    "log-probabilities": lambda: card(np.exp(P), Y, 0.02),
    "percentage": lambda: card(P, Y, 0.02, threshold=20.0),
    "name each column": lambda: card(P, Y, 0.02, classes=["a"]),
    "order of the numbers": lambda: card(P, Y, 0.02, classes=[1, 0]),
    "among .*'z'": lambda: card(P, np.array([*"ab" * 19, "z", "z"]), 0.02, classes=["a", "b"]),
    "name the `classes`": lambda: card(P, np.where(Y == 1, "ill", "well"), 0.02),
    "align them": lambda: card(P, Y, 0.02, by={"sex": ["m"]}),
    "dict of labels": lambda: card(P, Y, 0.02, by=["m"] * 40),  # type: ignore[arg-type]
    "`rows` for a fitted": lambda: card(LogisticRegression(), Y, 0.02),
    "align the models": lambda: card({"a": P, "b": P[:5]}, Y, 0.02),
    "at least one model": lambda: card({}, Y, 0.02),
    "with and without 'a'": lambda: card(findings()[0], np.zeros((400, 2)), {"a": 0.1, "b": 0.2}),
}


@pytest.mark.parametrize("words", REFUSED)
def test_bad_input_is_refused_with_the_remedy(words: str) -> None:
    assert_refused(REFUSED[words], words)


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
