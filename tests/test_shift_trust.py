"""What an estimate takes on trust: calibration that was not shown, columns in another order, cells as rows, modes of torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from members import assert_refused, generator, population
from sklearn.ensemble import RandomForestClassifier
from test_shift import drawn, equal, exact, overconfident
from torch import Tensor

from rightloss import PrevalenceWarning, undo_sampling
from rightloss.shift import LabelShiftTest, estimate_prevalence, fit_calibration, label_shift_test


def mix(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


class TestCalibrationThatWasNotShown:
    def test_predictions_without_a_held_out_set_are_trusted_with_a_warning(self) -> None:
        x, _ = drawn(mix(0.9, 0.1), 300, 1)
        with pytest.warns(PrevalenceWarning, match=r"pass held_out=\(log_probs, labels\)"):
            estimate_prevalence(exact(x, equal(2)), 0.5)

    def test_there_is_none_where_calibration_is_stated_fitted_or_not_needed(self) -> None:
        (x, _), (h, y) = drawn(mix(0.9, 0.1), 300, 1), drawn(equal(2), 300, 2)
        table, held_out = exact(x, equal(2)), (exact(h, equal(2)), y)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            stated = estimate_prevalence(table, 0.5, calibration="assumed")
            estimate_prevalence(table, 0.5, held_out=held_out)
            estimate_prevalence(table, 0.5, calibration=fit_calibration(*held_out))
            estimate_prevalence(table, 0.5, method="bbse", held_out=held_out)
        assert not caught
        assert stated.calibration is None
        with pytest.warns(PrevalenceWarning):
            trusted = estimate_prevalence(table, 0.5)
        assert torch.equal(trusted.population, stated.population)
        assert torch.equal(trusted.high, stated.high)

    def test_calibration_cannot_be_assumed_beside_a_held_out_set(self) -> None:
        table, y = exact(drawn(equal(2), 50, 3)[0], equal(2)), torch.arange(50) % 2
        assert_refused(lambda: estimate_prevalence(table, 0.5, calibration="assumed", held_out=(table, y)), "but got both")

    @pytest.mark.parametrize("predict", [lambda x: exact(x, mix(0.7, 0.3)), overconfident], ids=["right", "overconfident"])
    def test_unlabelled_predictions_always_look_calibrated(self, predict: Callable[[Tensor], Tensor]) -> None:
        """Why the warning does not depend on them: weighted back to the sampled mix their mean is that mix, right or wrong."""
        table = predict(drawn(mix(0.9, 0.1), 2000, 4)[0])
        found = estimate_prevalence(table, 0.3, calibration="assumed")
        weights = 1 / ((table.exp() / mix(0.7, 0.3)) @ found.population)
        assert float(weights.mean()) == pytest.approx(1, abs=1e-9)
        torch.testing.assert_close((weights[:, None] * table.exp()).mean(0), mix(0.7, 0.3), atol=1e-9, rtol=0)

    def test_a_forest_shows_what_the_warning_is_for_and_a_held_out_set_mends_it(self) -> None:
        (x, y), (h, labels) = drawn(mix(0.9, 0.1), 2000, 5), drawn(mix(0.9, 0.1), 4000, 6)
        forest = RandomForestClassifier(100, class_weight="balanced", random_state=0).fit(x, y)

        def predict(points: Tensor) -> Any:
            votes = np.log(0.99 * forest.predict_proba(points) + 0.005)
            return undo_sampling(votes, class_weight="balanced", labels=y)

        table, rho = predict(drawn(mix(0.7, 0.3), 4000, 7)[0]), float(y.double().mean())
        with pytest.warns(PrevalenceWarning, match="as those of trees often"):
            trusted = estimate_prevalence(table, rho)
        mended = estimate_prevalence(table, rho, held_out=(predict(h), labels))
        assert abs(float(trusted.population[1]) - 0.3) > 10 * float(trusted.standard_error[1])
        assert abs(float(mended.population[1]) - 0.3) < 4 * float(mended.standard_error[1])


class TestColumnsInAnotherOrder:
    @pytest.mark.parametrize("kind", ["temperature", "bias-corrected", "vector"])
    @pytest.mark.parametrize(
        ("mixed", "separation"), [(equal(2), 1.0), (mix(0.95, 0.05), 1.0), (equal(2), 50.0)], ids=["even", "rare", "separated"]
    )
    def test_swapped_columns_are_named_with_the_order_that_is_right(self, kind: Any, mixed: Tensor, separation: float) -> None:
        h, y = drawn(mixed, 600, 10)
        h = h + separation * torch.nn.functional.one_hot(y, 2)
        assert_refused(lambda: fit_calibration(exact(h, mixed).flip(1), y, kind), r"log_probs\[:, \[1, 0\]\] agrees")

    @pytest.mark.parametrize("order", [[1, 2, 0], [2, 0, 1], [1, 0, 2], [2, 1, 0], [0, 2, 1]])
    def test_following_the_advice_gives_the_fit_of_the_right_order(self, order: list[int]) -> None:
        h, y = drawn(mix(0.6, 0.3, 0.1), 2000, 11)
        table = exact(h, mix(0.6, 0.3, 0.1))
        wrong = table[:, torch.tensor(order).argsort()]
        kind: Any = "vector" if any(k == column for k, column in enumerate(order)) else "bias-corrected"
        assert_refused(lambda: fit_calibration(wrong, y, kind), rf"log_probs\[:, \[{', '.join(map(str, order))}\]\] agrees")
        torch.testing.assert_close(fit_calibration(wrong[:, order], y).bias, fit_calibration(table, y).bias)

    def test_where_order_is_not_the_fault_the_advice_is_a_method_that_works(self) -> None:
        """Three classes that avoid their own columns: no order of the columns agrees, and BBSE needs no agreement."""
        (x, _), (h, y) = drawn(mix(0.6, 0.3, 0.1), 4000, 12), drawn(equal(3), 4000, 13)
        table, held = (torch.log_softmax(-each, 1) for each in (x, h))
        assert_refused(lambda: estimate_prevalence(table, equal(3), held_out=(held, y)), "method='bbse'")
        found = estimate_prevalence(table, equal(3), method="bbse", held_out=(held, y))
        assert bool(((found.population - mix(0.6, 0.3, 0.1)).abs() < 4 * found.standard_error).all())

    def test_a_single_class_against_its_own_column_gets_one_temperature_for_all(self) -> None:
        h, y = drawn(equal(3), 600, 14)
        table = torch.log_softmax(exact(h, equal(3)) * torch.tensor([1.5, 1.5, -1.0]), 1)
        assert_refused(lambda: fit_calibration(table, y, "vector"), "one temperature, 'bias-corrected'")
        fit_calibration(table, y, "bias-corrected")


class TestDenseMaps:
    """A cell counts as a row."""

    @pytest.fixture
    def maps(self) -> tuple[Tensor, Tensor]:
        """Log-probabilities `(6, 3, 4, 5)` and labels `(6, 4, 5)`, some of them to be ignored."""
        x, y = drawn(mix(0.5, 0.3, 0.2), 120, 20)
        labels = y.view(6, 4, 5).clone()
        labels[torch.rand(6, 4, 5, generator=generator(21)) < 0.1] = -100
        return overconfident(x).view(6, 4, 5, 3).movedim(-1, 1), labels

    @pytest.mark.parametrize("options", [{"calibration": "assumed"}, {"calibration": "vector"}, {"method": "bbse-soft"}, {}])
    def test_they_give_what_the_table_of_their_cells_gives(self, maps: tuple[Tensor, Tensor], options: dict[str, Any]) -> None:
        dense, labels = maps
        rows, kept = dense.movedim(1, -1).reshape(-1, 3), labels.flatten() >= 0
        with_labels = options.get("calibration") != "assumed"
        found = estimate_prevalence(dense, equal(3), held_out=(dense, labels) if with_labels else None, **options)
        plain = (rows[kept], labels.flatten()[kept]) if with_labels else None
        expected = estimate_prevalence(rows, equal(3), held_out=plain, **options)
        assert found.rows == 120
        for name in ("population", "low", "high", "covariance"):
            torch.testing.assert_close(getattr(found, name), getattr(expected, name), atol=1e-12, rtol=0)

    @pytest.mark.parametrize("form", ["list", "function", "array", "map of a file"])
    def test_they_come_as_streams_and_files_too(self, maps: tuple[Tensor, Tensor], form: str, tmp_path: Path) -> None:
        dense = maps[0]
        if form == "map of a file":
            np.save(tmp_path / "maps.npy", dense.numpy())
        given: Any = {
            "list": lambda: list(dense.split(4)),
            "function": lambda: lambda: iter(dense.split(1)),
            "array": lambda: dense.numpy(),
            "map of a file": lambda: np.load(tmp_path / "maps.npy", mmap_mode="r"),
        }[form]()
        found = estimate_prevalence(given, equal(3), calibration="assumed", region="curvature")
        expected = estimate_prevalence(dense, equal(3), calibration="assumed", region="curvature")
        assert found.rows == 120
        torch.testing.assert_close(found.population, expected.population, atol=1e-9, rtol=0)

    def test_calibration_and_test_take_them_cell_by_cell(self, maps: tuple[Tensor, Tensor]) -> None:
        dense, labels = maps
        rows = dense.movedim(1, -1).reshape(-1, 3)
        calibration = fit_calibration(dense, labels)
        torch.testing.assert_close(calibration(dense).movedim(1, -1).reshape(-1, 3), calibration(rows))
        kept = labels.flatten() >= 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dense_test, expected = (
                label_shift_test(dense, (dense, labels)),
                label_shift_test(rows, (rows[kept], labels.flatten()[kept])),
            )
        assert isinstance(dense_test, LabelShiftTest)
        assert dense_test.p_value == pytest.approx(expected.p_value, rel=1e-9)

    def test_labels_of_another_shape_and_cells_that_are_no_log_probabilities_are_refused(
        self, maps: tuple[Tensor, Tensor]
    ) -> None:
        dense, labels = maps
        assert_refused(lambda: fit_calibration(dense, labels.flatten()), r"label per cell, \(6, 4, 5\)")
        assert_refused(lambda: estimate_prevalence(dense.exp(), equal(3), calibration="assumed"), "look like probabilities")
        assert_refused(lambda: estimate_prevalence(dense[:, :1], equal(3), calibration="assumed"), "column per class")


MODES: dict[str, Callable[[], Any]] = {"plain": nullcontext, "no_grad": torch.no_grad, "inference_mode": torch.inference_mode}


class TestModesOfTorch:
    @pytest.mark.parametrize("called", MODES)
    @pytest.mark.parametrize("made", MODES)
    def test_estimates_do_not_depend_on_the_mode_that_predictions_were_made_or_used_in(self, made: str, called: str) -> None:
        with MODES[made]():
            table = overconfident(drawn(population(3, 30), 300, 31)[0])
            h, y = drawn(equal(3), 300, 32)
            held_out = (overconfident(h), y)
        reference = estimate_prevalence(table.clone().numpy(), equal(3), held_out=(held_out[0].clone().numpy(), y.numpy()))
        with MODES[called](), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = estimate_prevalence(table, equal(3), held_out=held_out)
            label_shift_test(table, held_out, equal(3))
            others: list[dict[str, Any]] = [{"method": "bbse"}, {"method": "rlls-soft"}, {"calibration": "mean"}]
            for options in others:
                estimate_prevalence(table, equal(3), held_out=held_out, **options)
        assert torch.equal(found.high, reference.high)

    def test_what_was_estimated_in_inference_mode_serves_in_training(self) -> None:
        h, y = drawn(equal(3), 300, 33)
        with torch.inference_mode():
            found = estimate_prevalence(overconfident(h), equal(3), held_out=(overconfident(h), y))
        logits = torch.randn(5, 3, dtype=torch.float64, generator=generator(34)).requires_grad_()
        assert found.calibration is not None
        (found.population * found.calibration(torch.log_softmax(logits, 1))).sum().backward()
        assert logits.grad is not None
        assert bool((logits.grad != 0).any())
