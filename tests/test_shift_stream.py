"""Predictions as tables, streams, memory maps and dense maps, made in any of torch's modes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from members import assert_refused, generator, population, unchecked_types
from normal_classes import (
    drawn,
    equal,
    exact,
    mix,
    overconfident,
)
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from rightloss import Prevalence
from rightloss.shift import (
    LabelShiftTest,
    estimate_prevalence,
    fit_calibration,
    label_shift_test,
)

pytestmark = pytest.mark.filterwarnings("ignore:The predictions are trusted to be calibrated:rightloss.PrevalenceWarning")


class TestStreams:
    @pytest.fixture
    def table(self) -> Tensor:
        return exact(drawn(torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64), 1000, 40)[0], equal(3))

    @pytest.mark.long
    @pytest.mark.parametrize("kind", [None, "bias-corrected"])
    @pytest.mark.parametrize("size", [7, 64, 999, 1000])
    def test_chunks_make_no_difference(self, table: Tensor, size: int, kind: Any) -> None:
        h, y = drawn(equal(3), 400, 41)
        options: dict[str, Any] = {"held_out": (overconfident(h), y), "calibration": kind} if kind else {}
        whole = estimate_prevalence(table, equal(3), **options, region="curvature")
        for stream in (
            list(table.split(size)),
            lambda: iter(table.numpy()[i : i + size] for i in range(0, 1000, size)),
            DataLoader(TensorDataset(table), batch_size=size),
        ):
            found = estimate_prevalence(stream, equal(3), **options, region="curvature")
            assert found.rows == 1000
            torch.testing.assert_close(found.population, whole.population, atol=1e-10, rtol=0)
            for name in ("low", "high", "covariance"):  # by the curvature one last step before
                torch.testing.assert_close(getattr(found, name), getattr(whole, name), atol=1e-7, rtol=0)

    def test_profiles_of_streams_are_those_of_tables(self, table: Tensor) -> None:
        whole = estimate_prevalence(table, equal(3))
        found = estimate_prevalence(list(table.split(300)), equal(3), region="profile")
        assert whole.region == "profile"
        torch.testing.assert_close(found.low, whole.low, atol=1e-7, rtol=0)
        torch.testing.assert_close(found.high, whole.high, atol=1e-7, rtol=0)

    @pytest.mark.long
    def test_a_memory_map_is_read_in_blocks(self, tmp_path: Path) -> None:
        table = exact(drawn(torch.tensor([0.9, 0.1], dtype=torch.float64), 300_000, 42)[0], equal(2)).float().numpy()
        np.save(tmp_path / "predictions.npy", table)
        mapped = np.load(tmp_path / "predictions.npy", mmap_mode="r")
        assert isinstance(mapped, np.memmap)
        found, whole = (estimate_prevalence(each, 0.5, region=None) for each in (mapped, table))
        torch.testing.assert_close(found.population, whole.population, atol=1e-10, rtol=0)
        assert float(mapped[299_999, 0]) == table[299_999, 0]

    def test_a_private_memory_map_keeps_its_changes(self, tmp_path: Path) -> None:
        table = exact(drawn(equal(2), 3000, 43)[0], equal(2)).numpy()
        np.save(tmp_path / "predictions.npy", table)
        private = np.load(tmp_path / "predictions.npy", mmap_mode="c")
        private[:] = private[:, ::-1].copy()
        estimate_prevalence(private, 0.5, region=None)
        np.testing.assert_array_equal(private, table[:, ::-1])

    @pytest.mark.parametrize("form", [Tensor.numpy, Tensor.tolist, Tensor.float, lambda t: t.float().numpy()])
    def test_tables_come_in_any_form(self, table: Tensor, form: Callable[[Tensor], Any]) -> None:
        found, whole = (estimate_prevalence(each, equal(3), region=None) for each in (form(table), table))
        torch.testing.assert_close(found.population, whole.population, atol=1e-6, rtol=0)

    @pytest.mark.parametrize("rho", [0.25, [0.75, 0.25], Prevalence.binary(0.001, sampling=0.25)])
    def test_the_mix_comes_in_any_form(self, rho: Any) -> None:
        table = exact(drawn(equal(2), 100, 44)[0], torch.tensor([0.75, 0.25], dtype=torch.float64))
        found = estimate_prevalence(table, rho)
        assert found.sampling.tolist() == [0.75, 0.25]

    def test_a_function_that_returns_a_used_iterator_loses_no_rows(self, table: Tensor) -> None:
        (h, y), once = drawn(equal(3), 300, 45), iter(table.split(250))
        found = estimate_prevalence(lambda: once, equal(3), method="bbse", held_out=(exact(h, equal(3)), y))
        assert found.rows == 1000

    def test_read_only_arrays_pass_without_a_warning(self, table: Tensor) -> None:
        chunks = [chunk.numpy().copy() for chunk in table.split(400)]
        for chunk in chunks:
            chunk.flags.writeable = False
        assert estimate_prevalence(chunks, equal(3)).rows == 1000

    def test_half_precision_is_accepted(self, table: Tensor) -> None:
        h, y = drawn(equal(3), 600, 46)
        options: dict[str, Any] = {"held_out": (exact(h, equal(3)).half(), y), "calibration": "mean"}
        with unchecked_types():
            found = estimate_prevalence(table.half(), equal(3), level=np.float32(0.9), **options)  # type: ignore[call-overload]
        assert float(found.prevalence().sampling.sum()) == pytest.approx(1, abs=1e-12)
        assert found.level == pytest.approx(0.9)

    def test_a_stream_that_changes_is_refused(self, table: Tensor) -> None:
        calls = iter(range(100))
        shrinking = lambda: iter([table[: 1000 - next(calls)]])  # noqa: E731
        assert_refused(lambda: estimate_prevalence(shrinking, equal(3)), "same rows in every pass")
        once = iter([table])
        assert_refused(lambda: estimate_prevalence(lambda: once, equal(3)), "same rows in every pass")

    def test_a_one_shot_stream_is_enough_for_one_pass(self) -> None:
        (x, _), (h, y) = drawn(population(3, 33), 300, 34), drawn(equal(3), 300, 35)
        table, held_out = exact(x, equal(3)), (exact(h, equal(3)), y)
        whole = estimate_prevalence(table, equal(3), method="bbse-soft", held_out=held_out)
        chunks = (chunk for chunk in table.split(77))
        found = estimate_prevalence(chunks, equal(3), method="bbse-soft", held_out=held_out)
        torch.testing.assert_close(found.population, whole.population, atol=1e-12, rtol=0)
        assert found.rows == 300


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
    def test_dense_maps_equal_the_table_of_their_cells(self, maps: tuple[Tensor, Tensor], options: dict[str, Any]) -> None:
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
    def test_dense_maps_can_be_streams_and_files(self, maps: tuple[Tensor, Tensor], form: str, tmp_path: Path) -> None:
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
    @pytest.mark.long
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

    def test_an_estimate_made_in_inference_mode_can_be_used_in_training(self) -> None:
        h, y = drawn(equal(3), 300, 33)
        with torch.inference_mode():
            found = estimate_prevalence(overconfident(h), equal(3), held_out=(overconfident(h), y))
        logits = torch.randn(5, 3, dtype=torch.float64, generator=generator(34)).requires_grad_()
        assert found.calibration is not None
        (found.population * found.calibration(torch.log_softmax(logits, 1))).sum().backward()
        assert logits.grad is not None
        assert bool((logits.grad != 0).any())
