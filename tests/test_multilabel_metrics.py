"""Several findings (multi-label) in `evaluate`, `estimate_prevalence`, `label_shift_test` and `check`: one after another."""

import math
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from draws import assert_refused, stream, unchecked_types
from scipy.special import log_expit, log_softmax, logsumexp

import rightloss as rl
from rightloss import metrics
from rightloss.finding_tables import ByFinding, finding_tables, one_finding
from rightloss.metrics import compare, evaluate, reliability_curve, roc_curve
from rightloss.metrics.figures import FIGURES
from rightloss.metrics.intervals import normal_interval
from rightloss.shift import LabelShiftWarning, estimate_prevalence, label_shift_test

NAMES = ["mass", "nodule", "<b>"]
RATES = dict(zip(NAMES, [0.3, 0.05, 0.01], strict=True))
PREVALENCE = rl.Prevalence.multilabel(RATES, sampling=[0.5, 0.4, 0.5])


def findings(n: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """Logits `(n, 3)` that are right where half of the rows have each finding, and labels, a tenth of them unread."""
    random = stream(0)
    y = (random.random((n, 3)) < 0.5).astype(float)
    logits = random.normal(size=(n, 3)) + 2 * y - 1
    return 2 * logits, np.where(random.random((n, 3)) < 0.1, math.nan, y)


LOGITS, LABELS = findings()
LOG_PROBS = log_expit(LOGITS)


def read_rows(log_probs: np.ndarray, y: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The two columns of a finding, its class numbers, and which rows they are: those that were read."""
    read = ~np.isnan(y[:, number])
    return finding_tables(log_probs, 3)[read][:, :, number], y[read, number].astype(int), read


def same(a: object, b: object) -> bool:
    """Whether two results have the same plain numbers, NaN included, up to rounding."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, float) and isinstance(b, float):
        return a == pytest.approx(b, rel=1e-9, abs=1e-12, nan_ok=True)
    return a == b


class TestEvaluate:
    @pytest.mark.parametrize("intervals", [None, pytest.param("bootstrap", marks=pytest.mark.long)])
    def test_is_that_of_each_finding_over_the_rows_that_were_read(self, intervals: str | None) -> None:
        groups, thresholds = np.arange(300) // 2, dict(zip(NAMES, [0.5, 0.3, 0.2], strict=True))
        options: dict[str, Any] = {"intervals": intervals, "draws": 100}
        found = evaluate(LOG_PROBS, LABELS, PREVALENCE, threshold=thresholds, groups=groups, **options)
        assert list(found) == NAMES
        for number, (name, rate) in enumerate(RATES.items()):
            table, labels, read = read_rows(LOG_PROBS, LABELS, number)
            alone = evaluate(table, labels, rate, groups=groups[read], threshold=thresholds[name], **options)
            assert same(found[name].to_dict(), alone.to_dict())
            assert found[name].num_examples == alone.num_examples

    def test_takes_thresholds_for_all_or_by_name_and_costs_by_name(self) -> None:
        def rates(**options: Any) -> list[float]:
            return [each.tpr.value for each in evaluate(LOG_PROBS, LABELS, PREVALENCE, intervals=None, **options).values()]

        by_name = dict(zip(reversed(NAMES), [0.2, 0.3, 0.5], strict=True))
        expected = [rates(threshold=each)[number] for number, each in enumerate([0.5, 0.3, 0.2])]
        assert rates(threshold=by_name) == expected != rates(threshold=0.5)
        assert rates(threshold=0.2) == rates(costs={name: [[0, 0.25], [1, 0]] for name in NAMES})
        with pytest.raises(ValueError, match="`threshold` to be one number"):
            rates(threshold=[0.5, 0.3, 0.2])
        with pytest.raises(ValueError, match="by the names of the findings"):
            rates(threshold={"mass": 0.5})

    @pytest.mark.long
    def test_takes_tables_of_both_log_probabilities_dense_maps_frames_and_rates(self) -> None:
        expected = evaluate(LOG_PROBS, LABELS, PREVALENCE, intervals=None).to_dict()
        maps, labels = (np.moveaxis(each.reshape(30, 10, 3), 2, 1) for each in (LOG_PROBS, LABELS))
        frames = [pd.DataFrame(each, columns=NAMES)[NAMES[::-1]] for each in (LOG_PROBS, LABELS)]
        pairs: list[Any] = [(finding_tables(LOG_PROBS, 3), LABELS), (maps, labels), frames]
        for log_probs, target in pairs:
            assert same(evaluate(log_probs, target, PREVALENCE, intervals=None).to_dict(), expected)
        assert same(evaluate(LOG_PROBS, LABELS, RATES, intervals=None).to_dict(), expected)
        checked = rl.check(lambda x: LOG_PROBS, (LOGITS, frames[1]), PREVALENCE)
        assert same(checked.to_dict(), rl.check(LOG_PROBS, LABELS, PREVALENCE).to_dict())
        with pytest.raises(ValueError, match="none for \\['mass'\\]"):
            evaluate(LOG_PROBS, frames[1].rename(columns={"mass": "Mass"}), PREVALENCE)

    def test_takes_labels_between_0_and_1_as_votes(self) -> None:
        soft = 0.8 * LABELS + 0.1
        table, _, read = read_rows(LOG_PROBS, LABELS, 0)
        votes = np.stack([1 - soft[read, 0], soft[read, 0]], 1)
        found = evaluate(LOG_PROBS, soft, PREVALENCE, intervals=None)
        assert same(found["mass"].to_dict(), evaluate(table, votes, 0.3, intervals=None).to_dict())

    @pytest.mark.long
    def test_takes_estimates_and_uncertain_prevalences_by_name(self) -> None:
        estimates = estimate_prevalence(LOG_PROBS, dict.fromkeys(NAMES, 0.5), calibration="assumed")
        found = evaluate(LOG_PROBS, LABELS, estimates, intervals="analytic")
        table, labels, _ = read_rows(LOG_PROBS, LABELS, 0)
        assert same(found["mass"].to_dict(), evaluate(table, labels, estimates["mass"], intervals="analytic").to_dict())
        uncertain = rl.Prevalence.multilabel([rl.Prevalence.beta(3.0, 7.0)], names=["mass"])
        one = LOG_PROBS[:, :1], LABELS[:, :1]
        wide, narrow = (evaluate(*one, at, intervals="analytic")["mass"].ppv for at in (uncertain, {"mass": 0.3}))
        assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)

    def test_gives_one_finding_what_functions_of_classes_take(self) -> None:
        table, labels = one_finding(LOG_PROBS, LABELS, PREVALENCE, "nodule")
        found = evaluate(LOG_PROBS, LABELS, PREVALENCE, intervals=None)["nodule"]
        assert roc_curve(table, labels, prevalence=PREVALENCE["nodule"]).auc == pytest.approx(found.auc.value)
        assert compare(table, table, labels, PREVALENCE["nodule"], intervals=None).auc.a == pytest.approx(found.auc.value)
        with pytest.raises(ValueError, match="one of \\['mass'"):
            one_finding(LOG_PROBS, LABELS, PREVALENCE, "Mass")


@pytest.mark.long
def test_the_printed_table_names_every_finding_and_escapes_it() -> None:
    y = LABELS.copy()
    y[8:, 2] = math.nan
    y[:8, 2] = np.tile([0.0, 1.0], 4)
    results: list[ByFinding[Any]] = [
        evaluate(LOG_PROBS, y, PREVALENCE, intervals="analytic"),
        estimate_prevalence(LOG_PROBS, PREVALENCE, calibration="assumed"),
        rl.check(LOG_PROBS, LABELS, PREVALENCE),
    ]
    for found in results:
        assert isinstance(found, ByFinding)
        assert all(name in repr(found) for name in NAMES)
        assert "<b>" not in found._repr_html_()
        assert "&lt;b&gt;" in found._repr_html_()
        assert repr(pickle.loads(pickle.dumps(found))) == repr(found)
        assert list(found.to_dict()) == NAMES
    assert "* <b>: fewer than 10 examples" in repr(results[0])
    with pytest.raises(KeyError, match="there are mass, nodule"):
        results[0]["Mass"]


def test_errors_and_warnings_name_the_findings() -> None:
    y = LABELS.copy()
    y[:, 1] = y[:, 1] * 0
    with pytest.raises(ValueError, match=r"^nodule: Expected examples of every class"):
        rl.check(LOG_PROBS, y, PREVALENCE)
    y[:, 1] = math.nan
    with pytest.raises(ValueError, match=r"^nodule: Expected at least one label"):
        evaluate(LOG_PROBS, y, PREVALENCE)
    few = LABELS.copy()
    few[20:, 1] = np.where(few[20:, 1] == 0, few[20:, 1], math.nan)
    with pytest.warns(rl.PrevalenceWarning, match="^mass, nodule, <b>: The predictions are trusted") as heard:
        estimate_prevalence(LOG_PROBS, PREVALENCE)
    assert len(heard) == 1
    with pytest.warns(LabelShiftWarning, match="^nodule: .*fewer than 15 held-out"):
        estimate_prevalence(LOG_PROBS, PREVALENCE, held_out=(LOG_PROBS, few))


@pytest.mark.parametrize("method", ["em", "bbse-soft"])
def test_prevalences_are_estimated_finding_by_finding(method: str) -> None:
    logits, y = findings(600)
    target, held_out = log_expit(logits[:300]), (log_expit(logits[300:]), y[300:])
    found = estimate_prevalence(target, PREVALENCE, method=method, held_out=held_out)
    for number, name in enumerate(NAMES):
        two, rho = finding_tables(target, 3)[:, :, number], PREVALENCE[name].sampling
        alone = estimate_prevalence(two, rho, method=method, held_out=read_rows(*held_out, number)[:2])
        assert same(found[name].to_dict(), alone.to_dict())


@pytest.mark.long
def test_streams_of_several_findings_are_read_again_for_each(tmp_path: object) -> None:
    whole = estimate_prevalence(LOG_PROBS, PREVALENCE, calibration="assumed")
    mapped = np.memmap(f"{tmp_path}/log_probs", np.float64, "w+", shape=(300, 3))
    mapped[:] = LOG_PROBS
    parts = [LOG_PROBS[:100], LOG_PROBS[100:]]
    for given in (parts, lambda: iter(parts), mapped):
        found = estimate_prevalence(given, PREVALENCE, calibration="assumed")
        for name in NAMES:
            assert np.allclose(found[name].population, whole[name].population, rtol=1e-9)
            assert found[name].rows == 300
    with pytest.raises(ValueError, match="used up after one pass"):
        estimate_prevalence(iter(parts), PREVALENCE)


def test_label_shift_is_tested_finding_by_finding() -> None:
    logits, y = findings(2000)
    log_probs = log_expit(logits)
    there = log_probs.copy()
    there[:, 1] = log_expit(2 * logits[:, 1])  # not the same p(x|y)
    with pytest.warns(LabelShiftWarning, match="^nodule: The target is no mixture"):
        found = label_shift_test(there[:1000], (log_probs[1000:], y[1000:]), dict.fromkeys(NAMES, 0.5))
    assert [each.tenable for each in found.values()] == [True, False, True]
    two, (table, labels, _) = finding_tables(there[:1000], 3)[:, :, 1], read_rows(log_probs[1000:], y[1000:], 1)
    with pytest.warns(LabelShiftWarning):
        assert found["nodule"].p_value == pytest.approx(label_shift_test(two, (table, labels), 0.5).p_value)
    assert found.to_dict()["nodule"]["degrees"] == found["nodule"].degrees
    assert "no mixture" in repr(found)


class TestCheck:
    @pytest.mark.long
    def test_is_that_of_each_finding_at_a_level_that_holds_for_all(self) -> None:
        found = rl.check(LOG_PROBS, LABELS, PREVALENCE, unlabelled=LOG_PROBS)
        assert not found.ok  # right where half of the rows have each finding
        for number, name in enumerate(NAMES):
            table, labels, _ = read_rows(LOG_PROBS, LABELS, number)
            pool = finding_tables(LOG_PROBS, 3)[:, :, number]
            alone = rl.check(table, labels, PREVALENCE[name], unlabelled=pool, level=1 - 0.05 / 3)
            for row, expected in zip(found[name].rows, alone.rows, strict=True):
                assert (row.name, row.verdict, row.remedy) == (expected.name, expected.verdict, expected.remedy)
                assert row.p_value == pytest.approx(expected.p_value, rel=1e-6, abs=1e-12)
        right = rl.Prevalence.multilabel(dict.fromkeys(NAMES, 0.5), sampling=0.5)
        assert rl.check(LOG_PROBS, LABELS, right).ok

    @pytest.mark.long
    def test_takes_modules_functions_and_loaders(self) -> None:
        torch = pytest.importorskip("torch")
        nn, log_sigmoid, logits, y = torch.nn, torch.nn.functional.logsigmoid, *map(torch.from_numpy, (LOGITS, LABELS))
        half = rl.Prevalence.multilabel(dict.fromkeys(NAMES, 0.4), sampling=0.5)
        model = nn.Sequential(nn.Identity(), nn.Dropout(0.9))
        expected = rl.check(log_sigmoid(logits), y, half)
        data = torch.utils.data.TensorDataset(logits, y)
        for found in (
            rl.check(model, (logits, y), half, batch_size=70),
            rl.check(model, data, half, likelihood=rl.Bernoulli()),
            rl.check(log_sigmoid, torch.utils.data.DataLoader(data, batch_size=50), half),
        ):
            for name in NAMES:
                for row in expected[name].rows:
                    assert found[name][row.name].p_value == pytest.approx(row.p_value, rel=1e-6, abs=1e-12)
        assert model.training
        assert rl.check(model, (logits, y), half)["mass"]["logits"].verdict == "ok"
        squashed = rl.check(nn.Sigmoid(), (logits, y), half)
        assert [each["logits"].verdict for each in squashed.values()] == ["look"] * 3
        with pytest.raises(ValueError, match="a logit for each of 3 findings"):
            rl.check(nn.Linear(3, 2).double(), (logits, y), half)
        with pytest.raises(ValueError, match=r"multi-label.*got Categorical"):
            rl.check(nn.Linear(3, 3).double(), (logits, y), half, likelihood=rl.Categorical(2))


# Images sampled by whether they have any finding: 4 in 10 have B where A is present, 2 in 100 elsewhere. Then the rows without
# B are not those of the population, because half of them have A.


def joint_population(n: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """x `(n, 2)` and labels of A and B `(n, 2)`; A also moves the x that shows B."""
    a = (random.random(n) < 0.1).astype(float)
    b = (random.random(n) < np.where(a == 1, 0.4, 0.02)).astype(float)
    noise = random.normal(size=(n, 2))
    return np.stack([1.5 * a, 1.2 * b + 0.8 * a], 1) + noise, np.stack([a, b], 1)


def joint_predictions(x: np.ndarray) -> np.ndarray:
    """The exact log-probabilities of A and of B given x, in the population."""
    log_p = np.empty((len(x), 2, 2))
    for a, rate in enumerate((0.9, 0.1)):
        for b in (0, 1):
            of_b = (0.02, 0.4)[a]
            gap = x - np.array([1.5 * a, 1.2 * b + 0.8 * a])
            log_p[:, a, b] = math.log(rate * (of_b if b else 1 - of_b)) - (gap**2).sum(1) / 2
    log_p -= logsumexp(log_p, (1, 2), keepdims=True)
    return np.stack([logsumexp(log_p[:, 1], 1), logsumexp(log_p[:, :, 1], 1)], 1)


def sampled_by_any(n: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows of which half have a finding."""
    x, y = joint_population(12 * n, random)
    some = y.any(1)
    rows = np.concatenate([np.flatnonzero(some)[: n // 2], np.flatnonzero(~some)[: n // 2]])
    return x[rows], y[rows]


def joint(seed: int, n: int) -> tuple[rl.prevalence.MultilabelPrevalence, np.ndarray, np.ndarray, np.random.Generator]:
    """A prevalence of rows sampled by any finding; exact predictions and labels of n such rows; the stream behind them."""
    random = stream(seed)
    labels = sampled_by_any(20_000, random)[1]
    prevalence = rl.Prevalence.from_label_matrix(labels, population=JOINT, sampled_by="any", names=["A", "B"])
    x, y = sampled_by_any(n, random)
    return prevalence, joint_predictions(x), y, random


JOINT = {"A": 0.1, "B": 0.1 * 0.4 + 0.9 * 0.02}


class TestRowsSampledByAnyFinding:
    @pytest.mark.long
    def test_give_the_figures_of_the_population(self) -> None:
        prevalence, log_probs, y, random = joint(0, 20_000)
        x, labels = joint_population(200_000, random)
        truth = evaluate(joint_predictions(x), labels, JOINT, intervals="analytic", threshold=0.1)
        options: dict[str, Any] = {"intervals": "analytic", "threshold": 0.1, "level": 0.999}
        found, plain = (evaluate(log_probs, y, each, **options) for each in (prevalence, JOINT))
        for name in ("A", "B"):
            for figure in ("mean_prediction", "skill", "brier", "auc", "tnr", "ppv", "calibration_slope", "expected_cost"):
                here = found[name][figure]
                error = (truth[name][figure].high - truth[name][figure].low) / 2
                assert here.low - error < truth[name][figure].value < here.high + error, (name, figure)
                if name == "B":
                    wrong = plain[name][figure]
                    assert not wrong.low - error < truth[name][figure].value < wrong.high + error, figure
        assert found["B"].num_examples == pytest.approx(plain["B"].num_examples)
        assert "weighted by the findings" in repr(found)
        assert rl.check(log_probs, y, prevalence).ok
        assert not rl.check(log_probs, y, rl.Prevalence.multilabel(dict(zip("AB", prevalence, strict=True)))).ok

    @pytest.mark.long
    def test_have_limits_of_the_jackknife(self) -> None:
        prevalence, log_probs, y, _ = joint(1, 60)
        found = evaluate(log_probs, y, prevalence, intervals="analytic")
        figures = ["mean_prediction", "brier", "expected_log_likelihood", "auc"]

        def values(rows: np.ndarray) -> list[list[float]]:
            with unchecked_types():
                there = evaluate(log_probs[rows], y[rows], prevalence, intervals=None)
            return [[there[name][figure].value for figure in figures] for name in "AB"]

        without = np.array([values(np.arange(60) != row) for row in range(60)])
        for number, name in enumerate("AB"):
            variance = np.zeros(len(figures))
            for label in (0, 1):  # the classes are strata
                own = without[y[:, number] == label, number]
                variance += (len(own) - 1) / len(own) * ((own - own.mean(0)) ** 2).sum(0)
            for figure, error in zip(figures, np.sqrt(variance).tolist(), strict=True):
                here = found[name][figure]
                limits = normal_interval(here.value, error, 0.95, FIGURES[figure].bounds)
                # the two differ in the order of 1/n
                assert here.high - here.low == pytest.approx(limits[1] - limits[0], rel=0.1), (name, figure)

    @pytest.mark.long
    def test_have_limits_of_decisions_as_wide_as_their_weighted_variance(self) -> None:
        prevalence, log_probs, y, _ = joint(2, 2000)
        found = evaluate(log_probs, y, prevalence, threshold=0.1, intervals="analytic", draws=10_000)["B"].tnr
        absent = y[:, 1] == 0
        assert prevalence.patterns is not None
        weight, right = prevalence.patterns.of_rows(y)[absent, 1], log_probs[absent, 1] < math.log(0.1)
        value = float((weight * right).sum() / weight.sum())
        error = float(np.linalg.norm(weight * (right - value)) / weight.sum())
        assert found.value == pytest.approx(value)
        assert (found.high - found.low) / (2 * 1.96) == pytest.approx(error, rel=0.05)

    @pytest.mark.long
    def test_are_told_from_rows_of_the_population(self) -> None:
        prevalence, log_probs, y, random = joint(3, 200)
        x, labels = joint_population(2000, random)
        everybody = joint_predictions(x)
        with pytest.warns(rl.PrevalenceWarning, match="not sampled by findings as the label matrix"):
            evaluate(everybody, labels, prevalence, intervals=None)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            plain = rl.Prevalence.multilabel(dict(zip(prevalence.names, prevalence, strict=True)))
            evaluate(everybody, labels, plain, intervals=None)
            assert rl.check(everybody, labels, prevalence, sampled=False).ok
            for n in (20, 200) * 3:  # those sampled in the same way, of any number
                x, labels = sampled_by_any(n, random)
                evaluate(joint_predictions(x), labels, prevalence, intervals=None)
        for call in (
            lambda: estimate_prevalence(log_probs, prevalence),
            lambda: estimate_prevalence(log_probs, prevalence, held_out=(log_probs, y)),
            lambda: label_shift_test(log_probs, (log_probs, y), prevalence),
            lambda: one_finding(log_probs, y, prevalence, "A"),
        ):
            assert_refused(call, "findings")
        y[0] = np.array([0.0, math.nan])
        with pytest.raises(ValueError, match="every finding to be read"):
            evaluate(log_probs, y, prevalence)


KNOWN = np.nan_to_num(LABELS, nan=1.0)


@pytest.mark.parametrize(
    ("at", "y", "log_probs"),
    [
        (rl.Prevalence.binary(0.1), KNOWN, LOG_PROBS),
        (rl.Prevalence.binary(0.1), KNOWN.astype(int), log_softmax(LOGITS, axis=1)),
        (rl.Prevalence([0.3, 0.3, 0.4]), KNOWN.astype(bool), log_softmax(LOGITS, axis=1)),
        (rl.Prevalence([0.3, 0.3, 0.4]), LABELS, LOG_PROBS),
    ],
    ids=["floats", "ints, softmax", "bools, softmax", "unread"],
)
def test_tables_of_findings_with_a_prevalence_of_classes_are_refused(at: Any, y: np.ndarray, log_probs: np.ndarray) -> None:
    for call in (
        lambda: evaluate(log_probs, y, at),
        lambda: compare(log_probs, log_probs, y, at),
        lambda: roc_curve(log_probs, y, prevalence=at),
        lambda: reliability_curve(log_probs, y, at),
        lambda: rl.check(log_probs, y, at),
    ):
        assert_refused(call, "multi-label|multilabel")
    if at.num_classes == 3 or log_probs is LOG_PROBS:
        assert_refused(lambda: estimate_prevalence(log_probs, at, held_out=(log_probs, y)), "multi-label|multilabel")


@pytest.mark.parametrize("at", [PREVALENCE, RATES], ids=["prevalence", "dict"])
def test_functions_of_one_finding_say_how_to_select_it(at: Any) -> None:
    given = LOG_PROBS, LABELS
    for call in (
        lambda: compare(LOG_PROBS, *given, at),
        lambda: roc_curve(*given, prevalence=at),
        lambda: reliability_curve(*given, at),
        lambda: metrics.operating_point(*given, at, recall=0.9),
        lambda: metrics.decision_curve(*given, at),
        lambda: metrics.predictive_value_curve(*given, threshold=0.5, prevalences=at),
        lambda: metrics.precision_recall_curve(*given, at),
        lambda: metrics.smooth_calibration_curve(*given, at),
        lambda: metrics.ConformalSets.fit(*given, at),
    ):
        assert_refused(call, r"multi-label\): select one, such as 'mass' by .*one_finding")


CHANGES: dict[str, Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]] = {
    r"of shape \(n, 3\)": lambda p, y: (p[:, :2], y),
    r"shape \(300, 3\).*got \(300, 2\)": lambda p, y: (p, y[:, :2]),
    r"got \(300,\)": lambda p, y: (p, y[:, 0]),
    r"got \(200, 3\)": lambda p, y: (p, y[:200]),
    "take the logarithm": lambda p, y: (np.exp(p), y),
    "0 is absent, 1 present": lambda p, y: (p, y * 2),
    "-1, uncertain": lambda p, y: (p, np.where(y == 1, -1.0, y)),
    "without NaN": lambda p, y: (np.where(y == 1, math.nan, p), y),
    "sum to 1": lambda p, y: (np.stack([p, p], 1), y),
}


@pytest.mark.parametrize("message", CHANGES)
def test_predictions_and_labels_that_are_not_of_these_findings_are_refused(message: str) -> None:
    log_probs, target = CHANGES[message](LOG_PROBS, LABELS)
    assert_refused(lambda: evaluate(log_probs, target, PREVALENCE), message)
    assert_refused(lambda: rl.check(log_probs, target, PREVALENCE), message)


def test_a_calibration_of_one_finding_is_not_taken_for_all() -> None:
    calibration = rl.shift.fit_calibration(*read_rows(LOG_PROBS, LABELS, 0)[:2])
    with pytest.raises(ValueError, match="one for all"):
        estimate_prevalence(LOG_PROBS, PREVALENCE, calibration=calibration)
