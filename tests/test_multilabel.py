"""Several findings at once: each has its own prevalence, and images sampled by findings together get weights."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from draws import stream
from scipy.special import log_expit, logit

import rightloss as rl
from rightloss.finding_tables import one_finding
from rightloss.prevalence import MultilabelPrevalence

RATES, SAMPLED = [0.30, 0.05, 0.01], [0.3, 0.4, 0.5]
LOGITS = stream().normal(size=(40, 3))
LOG_PROBS = log_expit(LOGITS)
LABELS = (stream(1).random((40, 3)) < SAMPLED).astype(float)


def findings() -> MultilabelPrevalence:
    return rl.Prevalence.multilabel(RATES, SAMPLED, names=["edema", "mass", "nodule"])


def associated(rows: int, seed: int) -> np.ndarray:
    """The findings A (5 %) and B, which 30 % of those with A have, and 1 % of the others."""
    rng = stream(seed)
    a = rng.random(rows) < 0.05
    b = rng.random(rows) < 0.01 + 0.29 * a
    return np.stack([a, b], 1).astype(float)


M: Any = rl.Prevalence.multilabel
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "rates that do not sum to 1": (lambda: rl.Prevalence([0.1, 0.05, 0.02]), "multilabel"),
    "a label matrix for masks": (lambda: rl.Prevalence.from_labels(np.eye(3, dtype=int), 0.1), "from_label_matrix"),
    "a rate above 1": (lambda: M([0.1, 1.2]), "`population` of 'finding 1' to lie strictly between 0 and 1"),
    "no rates": (lambda: M([]), "a rate for each finding"),
    "one rate": (lambda: M(0.3), "a rate for each finding"),
    "a rate in words": (lambda: M([0.1, "x"]), "`population` of 'finding 1'"),
    "a sampled rate of 0": (lambda: M([0.1, 0.2], [0.0, 0.5]), "`sampling` of 'finding 0'"),
    "too few sampled rates": (lambda: M([0.1, 0.2], [0.5]), "2 rates"),
    "sampled rates of other findings": (lambda: M({"a": 0.1}, {"b": 0.1}), "by the names of the findings"),
    "one name for two": (lambda: M([0.1, 0.2], names=["a", "a"]), "2 different names"),
    "a finding of three classes": (lambda: M([rl.Prevalence([0.2, 0.3, 0.5]), 0.1]), "of two classes for 'finding 0'"),
    "labels of one finding": (
        lambda: rl.Prevalence.from_label_matrix([0, 1], [0.1]),
        r"a multi-label matrix of shape \(n, L\)",
    ),
    "uncertain labels": (lambda: rl.Prevalence.from_label_matrix([[0, 1], [1, -1]], [0.1, 0.1]), "but got -1: .*uncertain"),
    "too many findings for patterns": (
        lambda: rl.Prevalence.from_label_matrix(np.eye(63), np.eye(63)),
        "at most 62 findings for weights by pattern, but got 63",
    ),
    "a finding that nobody has": (lambda: rl.Prevalence.from_label_matrix([[0, 1], [0, 0]], [0.1, 0.1]), r"column\(s\) \[0\]"),
    "logits": (lambda: rl.retarget(LOGITS, findings(), [0.5, 0.5, 0.5]), "logsigmoid"),
    "NaN": (lambda: rl.retarget(np.full((2, 3), np.nan), findings(), [0.5] * 3), "without NaN"),
    "a table off 1": (lambda: rl.retarget(np.full((4, 2, 3), -1.0), findings(), [0.5] * 3), "sum to 1, but some do not"),
    "a table of two classes": (
        lambda: rl.retarget(np.log([[0.2, 0.8], [0.7, 0.3]]), M([0.1, 0.2]), [0.5, 0.5]),
        "exclude each other",
    ),
    "two weights for two classes": (lambda: rl.undo_sampling(np.log([[0.2, 0.8]]), pos_weight=[1, 9]), "class_weight"),
    "weights of classes with findings": (
        lambda: rl.undo_sampling(LOG_PROBS, pos_weight=[1, 2, 3], kept=[1, 2]),
        "another argument: its weights are not by finding",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_with_what_to_do(what: str) -> None:
    call, words = BAD[what]
    with pytest.raises(ValueError, match=words):
        call()


class TestPrevalence:
    def test_it_is_a_sequence_of_binary_prevalences_by_name(self) -> None:
        prevalence = findings()
        assert prevalence["mass"] == prevalence[1] == rl.Prevalence.binary(0.05, 0.4)
        assert list(prevalence) == [rl.Prevalence.binary(*pair) for pair in zip(RATES, SAMPLED, strict=True)]
        assert pickle.loads(pickle.dumps(prevalence)) == prevalence == copy.deepcopy(prevalence)

    def test_retarget_by_name_is_retarget_by_number(self) -> None:
        by_name = findings().retarget({"nodule": 0.3, "edema": 0.1, "mass": 0.2})
        assert by_name == findings().retarget([0.1, 0.2, 0.3])
        assert findings().retarget(by_name).population.tolist() == by_name.population.tolist()

    def test_uncertain_rates_keep_their_distribution(self) -> None:
        prevalence = rl.Prevalence.multilabel([rl.Prevalence.beta(3.0, 97.0), rl.Prevalence.beta(1.0, 9.0)], sampling=0.4)
        assert prevalence[0].concentration is not None
        assert rl.Prevalence.multilabel([prevalence[0], 0.1])[1].population.tolist() == [0.9, 0.1]
        assert prevalence.sampling.tolist() == [0.4, 0.4]

    def test_the_label_matrix_gives_the_rates_of_what_was_read(self) -> None:
        labels = np.array([[0, 1], [1, np.nan], [1, 0], [0, np.nan]])
        prevalence = rl.Prevalence.from_label_matrix(labels, population=[0.1, 0.2])
        assert prevalence.sampling.tolist() == [0.5, 0.5]


class TestSampledByAnyFinding:
    """Images with any finding are drawn as often as those without: among images without B, those with A are too frequent."""

    def drawn(self) -> tuple[np.ndarray, np.ndarray]:
        archive = associated(160_000, 0)
        ill, well = np.flatnonzero(archive.any(1)), np.flatnonzero(~archive.any(1))
        return archive[np.concatenate([ill, well[: len(ill)]])], archive

    def test_associated_findings_at_other_rates_than_the_population_are_warned_of(self) -> None:
        y, archive = self.drawn()
        with pytest.warns(rl.PrevalenceWarning, match="sampled_by"):
            rl.Prevalence.from_label_matrix(y, population=archive.mean(0))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            rl.Prevalence.from_label_matrix(archive, population=archive.mean(0))
            rl.Prevalence.from_label_matrix(y, population=archive.mean(0), sampled_by="each")

    @pytest.mark.parametrize("by_matrix", [False, True])
    def test_weights_make_each_class_that_of_the_population(self, by_matrix: bool) -> None:
        y, archive = self.drawn()
        rates = archive.mean(0)
        if by_matrix:
            prevalence = rl.Prevalence.from_label_matrix(y, population=archive)
        else:
            prevalence = rl.Prevalence.from_label_matrix(y, population=rates, sampled_by="any")
        assert prevalence.patterns is not None
        weights = prevalence.patterns.of_rows(y)
        for finding, other in ((0, 1), (1, 0)):
            for value in (0, 1):
                rows, all_rows = y[:, finding] == value, archive[:, finding] == value
                assert float(weights[rows, finding].mean()) == pytest.approx(1)
                found = float((weights[rows, finding] * y[rows, other]).mean())
                expected = archive[all_rows, other]
                error = np.sqrt(expected.var() / len(expected) + y[rows, other].var() / rows.sum())
                assert found == pytest.approx(float(expected.mean()), abs=4 * error)

    def test_weights_are_1_where_images_were_not_sampled_by_findings(self) -> None:
        y = associated(4000, 2)
        prevalence = rl.Prevalence.from_label_matrix(y, population=y)
        assert prevalence.patterns is not None
        np.testing.assert_allclose(prevalence.patterns.of_rows(y), 1)
        assert pickle.loads(pickle.dumps(prevalence)) == prevalence != rl.Prevalence.multilabel(list(prevalence))

    def test_rates_that_contradict_the_sampling_are_refused(self) -> None:
        y, _ = self.drawn()
        with pytest.raises(ValueError, match="the same for all findings"):
            rl.Prevalence.from_label_matrix(y, population=[0.05, 0.2], sampled_by="any")

    def test_a_row_with_an_unread_finding_or_another_pattern_has_no_weight(self) -> None:
        y, archive = self.drawn()
        patterns = rl.Prevalence.from_label_matrix(y, population=archive).patterns
        assert patterns is not None
        with pytest.raises(ValueError, match="row 1 has NaN"):
            patterns.of_rows([[0, 0], [np.nan, 1]])
        few = rl.Prevalence.from_label_matrix([[0, 0], [1, 1]] * 20, population=[[0, 0], [1, 1]] * 20).patterns
        assert few is not None
        with pytest.raises(ValueError, match=r"occur in the label matrix, but row 0 has \[0.0, 1.0\]"):
            few.of_rows([[0, 1]])
        any_finding = rl.Prevalence.from_label_matrix(y, population=archive.mean(0), sampled_by="any").patterns
        assert any_finding is not None
        assert any_finding.of_rows([[1, np.nan]])[0, 1] == 1  # a finding decides; the other was not read

    def test_a_population_with_other_patterns_is_warned_of_or_refused(self) -> None:
        y, archive = self.drawn()
        some = y[~y.all(1)]
        with pytest.warns(rl.PrevalenceWarning, match="not in `labels`"):
            rl.Prevalence.from_label_matrix(some, population=archive)
        with pytest.raises(ValueError, match="1 do not"):
            rl.Prevalence.from_label_matrix(y, population=archive[~archive.all(1)])


class TestPredictions:
    def test_retarget_moves_each_finding_by_its_own_odds(self) -> None:
        to = np.array([0.1, 0.2, 0.3])
        expected = log_expit(LOGITS + logit(to) - logit(findings().population))
        for told in (to, np.tile(to, (40, 1)), {"edema": 0.1, "mass": 0.2, "nodule": 0.3}, findings().retarget(to)):
            np.testing.assert_allclose(rl.retarget(LOG_PROBS, findings(), told), expected, rtol=0, atol=1e-12)

    def test_tables_with_both_probabilities_stay_tables(self) -> None:
        table = log_expit(np.stack([-LOGITS, LOGITS], 1))
        moved = rl.retarget(table, findings(), [0.5, 0.5, 0.5])
        assert moved.shape == (40, 2, 3)
        np.testing.assert_allclose(moved[:, 1], rl.retarget(LOG_PROBS, findings(), [0.5, 0.5, 0.5]), rtol=0, atol=1e-14)
        assert np.array_equal(rl.retarget(table, findings(), findings()), table)

    def test_tensors_stay_tensors_with_their_gradients(self) -> None:
        torch = pytest.importorskip("torch")
        logits = torch.from_numpy(LOGITS).requires_grad_()
        moved = rl.retarget(torch.nn.functional.logsigmoid(logits), findings(), [0.1, 0.2, 0.3])
        np.testing.assert_allclose(moved.detach(), rl.retarget(LOG_PROBS, findings(), [0.1, 0.2, 0.3]), rtol=0, atol=1e-14)
        (slope,) = torch.autograd.grad(moved.sum(), logits)
        np.testing.assert_allclose(slope, -moved.detach().expm1(), rtol=1e-9)  # 1 − σ of the moved logit
        weights = torch.tensor([2.0, 9.0, 30.0])
        undone = rl.undo_sampling(torch.from_numpy(LOG_PROBS), pos_weight=weights)
        np.testing.assert_allclose(undone, rl.undo_sampling(LOG_PROBS, pos_weight=[2.0, 9.0, 30.0]), rtol=0, atol=1e-14)

    def test_pos_weight_of_each_finding_is_undone(self) -> None:
        weights = np.array([2.0, 9.0, 30.0])
        undone = rl.undo_sampling(LOG_PROBS, pos_weight=weights)
        np.testing.assert_allclose(undone, log_expit(LOGITS - np.log(weights)), rtol=0, atol=1e-12)
        moved = rl.undo_sampling(LOG_PROBS, pos_weight=weights, labels=LABELS, population=findings())
        offset = logit(findings().population) - logit(LABELS.mean(0)) - np.log(weights)
        np.testing.assert_allclose(moved, log_expit(LOGITS + offset), rtol=0, atol=1e-12)
        for sampling in (SAMPLED, findings()):
            drawn = rl.undo_sampling(LOG_PROBS, sampling=sampling, population=findings())
            np.testing.assert_allclose(drawn, rl.retarget(LOG_PROBS, SAMPLED, findings()), rtol=0, atol=1e-12)
        one, three = (
            rl.undo_sampling(LOG_PROBS, sampling=findings(), pos_weight=w, population=findings()) for w in (2.0, [2.0] * 3)
        )
        np.testing.assert_array_equal(one, three)

    def test_columns_of_a_frame_are_taken_by_their_names(self) -> None:
        frame = pd.DataFrame(LOG_PROBS, columns=findings().names)[["nodule", "edema", "mass"]]
        to = [0.1, 0.2, 0.3]
        np.testing.assert_array_equal(rl.retarget(frame, findings(), to), rl.retarget(LOG_PROBS, findings(), to))

    def test_one_finding_is_a_table_of_two_classes_whose_unread_labels_are_ignored(self) -> None:
        labels = np.where(np.arange(40)[:, None] % 4 == 0, np.nan, LABELS)
        table, y = one_finding(LOG_PROBS, labels, findings(), "mass")
        np.testing.assert_allclose(table, log_expit(np.stack([-LOGITS[:, 1], LOGITS[:, 1]], 1)), rtol=0, atol=1e-12)
        np.testing.assert_array_equal(y, np.where(np.arange(40) % 4 == 0, -100, LABELS[:, 1]))

    def test_rates_do_not_correct_predictions_of_images_sampled_by_findings_together(self) -> None:
        y = associated(4000, 2)
        together = rl.Prevalence.from_label_matrix(np.concatenate([y, y[y.any(1)]]), population=y)
        log_probs = np.log(np.full((3, 2), 0.2))
        for call in (
            lambda: rl.retarget(log_probs, together.sampling, together),
            lambda: rl.undo_sampling(log_probs, pos_weight=[2.0, 3.0], labels=y, population=together),
        ):
            with pytest.raises(ValueError, match=r"findings .*together"):
                call()
