"""Predictions as tables, streams, memory maps and dense maps, made of arrays and of tensors."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from draws import assert_refused, population, stream, unchecked_types
from normal_classes import (
    drawn,
    equal,
    exact,
    mix,
    overconfident,
)

from rightloss import Prevalence
from rightloss.arrays import rows_of
from rightloss.shift import (
    LabelShiftTest,
    estimate_prevalence,
    fit_calibration,
    label_shift_test,
)

pytestmark = pytest.mark.filterwarnings("ignore:The predictions are trusted to be calibrated:rightloss.PrevalenceWarning")


def split(table: np.ndarray, size: int) -> list[np.ndarray]:
    return [table[start : start + size] for start in range(0, len(table), size)]


class TestStreams:
    @pytest.fixture
    def table(self) -> np.ndarray:
        return exact(drawn(np.array([0.6, 0.3, 0.1]), 1000, 40)[0], equal(3))

    @pytest.mark.long
    @pytest.mark.parametrize("kind", [None, "affine"])
    @pytest.mark.parametrize("size", [7, 64, 999, 1000])
    def test_chunks_make_no_difference(self, table: np.ndarray, size: int, kind: Any) -> None:
        h, y = drawn(equal(3), 400, 41)
        options: dict[str, Any] = {"held_out": (overconfident(h), y), "calibration": kind} if kind else {}
        whole = estimate_prevalence(table, equal(3), **options, region="curvature")
        for parts in (
            split(table, size),
            lambda: iter(table[i : i + size] for i in range(0, 1000, size)),
            lambda: ([chunk] for chunk in split(table, size)),
        ):
            found = estimate_prevalence(parts, equal(3), **options, region="curvature")
            assert found.rows == 1000
            np.testing.assert_allclose(found.population, whole.population, atol=1e-10, rtol=0)
            for name in ("low", "high", "covariance"):  # by the curvature one last step before
                np.testing.assert_allclose(getattr(found, name), getattr(whole, name), atol=1e-7, rtol=0)

    def test_profiles_of_streams_are_those_of_tables(self, table: np.ndarray) -> None:
        whole = estimate_prevalence(table, equal(3))
        found = estimate_prevalence(split(table, 300), equal(3), region="profile")
        assert whole.region == "profile"
        np.testing.assert_allclose(found.low, whole.low, atol=1e-7, rtol=0)
        np.testing.assert_allclose(found.high, whole.high, atol=1e-7, rtol=0)

    @pytest.mark.long
    def test_a_memory_map_is_read_in_blocks(self, tmp_path: Path) -> None:
        table = exact(drawn(np.array([0.9, 0.1]), 300_000, 42)[0], equal(2)).astype(np.float32)
        np.save(tmp_path / "predictions.npy", table)
        mapped = np.load(tmp_path / "predictions.npy", mmap_mode="r")
        assert isinstance(mapped, np.memmap)
        found, whole = (estimate_prevalence(each, 0.5, region=None) for each in (mapped, table))
        np.testing.assert_allclose(found.population, whole.population, atol=1e-10, rtol=0)
        assert float(mapped[299_999, 0]) == table[299_999, 0]

    def test_a_private_memory_map_keeps_its_changes(self, tmp_path: Path) -> None:
        table = exact(drawn(equal(2), 3000, 43)[0], equal(2))
        np.save(tmp_path / "predictions.npy", table)
        private = np.load(tmp_path / "predictions.npy", mmap_mode="c")
        private[:] = private[:, ::-1].copy()
        estimate_prevalence(private, 0.5, region=None)
        np.testing.assert_array_equal(private, table[:, ::-1])

    @pytest.mark.parametrize("form", [np.ndarray.tolist, np.float32, np.asfortranarray, pd.DataFrame])
    def test_tables_come_in_any_form(self, table: np.ndarray, form: Callable[[np.ndarray], Any]) -> None:
        found, whole = (estimate_prevalence(each, equal(3), region=None) for each in (form(table), table))
        np.testing.assert_allclose(found.population, whole.population, atol=1e-6, rtol=0)

    @pytest.mark.parametrize("rho", [0.25, [0.75, 0.25], Prevalence.binary(0.001, sampling=0.25)])
    def test_the_mix_comes_in_any_form(self, rho: Any) -> None:
        table = exact(drawn(equal(2), 100, 44)[0], np.array([0.75, 0.25]))
        found = estimate_prevalence(table, rho)
        assert found.sampling.tolist() == [0.75, 0.25]

    def test_a_function_that_returns_a_used_iterator_loses_no_rows(self, table: np.ndarray) -> None:
        (h, y), once = drawn(equal(3), 300, 45), iter(split(table, 250))
        found = estimate_prevalence(lambda: once, equal(3), method="bbse", held_out=(exact(h, equal(3)), y))
        assert found.rows == 1000

    def test_read_only_arrays_pass_without_a_warning(self, table: np.ndarray) -> None:
        chunks = [chunk.copy() for chunk in split(table, 400)]
        for chunk in chunks:
            chunk.flags.writeable = False
        assert estimate_prevalence(chunks, equal(3)).rows == 1000

    def test_half_precision_is_accepted(self, table: np.ndarray) -> None:
        h, y = drawn(equal(3), 600, 46)
        options: dict[str, Any] = {"held_out": (exact(h, equal(3)).astype(np.float16), y), "calibration": "mean"}
        with unchecked_types():
            found = estimate_prevalence(table.astype(np.float16), equal(3), level=np.float32(0.9), **options)
        assert float(found.prevalence().sampling.sum()) == pytest.approx(1, abs=1e-12)
        assert found.level == pytest.approx(0.9)

    def test_a_stream_that_changes_is_refused(self, table: np.ndarray) -> None:
        calls = iter(range(100))
        shrinking = lambda: iter([table[: 1000 - next(calls)]])  # noqa: E731
        assert_refused(lambda: estimate_prevalence(shrinking, equal(3)), "same rows in every pass")
        once = iter([table])
        assert_refused(lambda: estimate_prevalence(lambda: once, equal(3)), "same rows in every pass")

    def test_a_one_shot_stream_is_enough_for_one_pass(self) -> None:
        (x, _), (h, y) = drawn(population(3, 33), 300, 34), drawn(equal(3), 300, 35)
        table, held_out = exact(x, equal(3)), (exact(h, equal(3)), y)
        whole = estimate_prevalence(table, equal(3), method="bbse-soft", held_out=held_out)
        chunks = (chunk for chunk in split(table, 77))
        found = estimate_prevalence(chunks, equal(3), method="bbse-soft", held_out=held_out)
        np.testing.assert_allclose(found.population, whole.population, atol=1e-12, rtol=0)
        assert found.rows == 300


class TestDenseMaps:
    """A cell counts as a row."""

    @pytest.fixture
    def maps(self) -> tuple[np.ndarray, np.ndarray]:
        """Log-probabilities `(6, 3, 4, 5)` and labels `(6, 4, 5)`, some of them to be ignored."""
        x, y = drawn(mix(0.5, 0.3, 0.2), 120, 20)
        labels = y.reshape(6, 4, 5).copy()
        labels[stream(21).random((6, 4, 5)) < 0.1] = -100
        return np.moveaxis(overconfident(x).reshape(6, 4, 5, 3), -1, 1), labels

    @pytest.mark.parametrize("options", [{"calibration": "assumed"}, {"calibration": "beta"}, {"method": "bbse-soft"}, {}])
    def test_dense_maps_equal_the_table_of_their_cells(
        self, maps: tuple[np.ndarray, np.ndarray], options: dict[str, Any]
    ) -> None:
        dense, labels = maps
        rows, kept = rows_of(dense), labels.ravel() >= 0
        with_labels = options.get("calibration") != "assumed"
        found = estimate_prevalence(dense, equal(3), held_out=(dense, labels) if with_labels else None, **options)
        plain = (rows[kept], labels.ravel()[kept]) if with_labels else None
        expected = estimate_prevalence(rows, equal(3), held_out=plain, **options)
        assert found.rows == 120
        for name in ("population", "low", "high", "covariance"):
            np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=1e-12, rtol=0)

    @pytest.mark.parametrize("form", ["list", "function", "array", "map of a file"])
    def test_dense_maps_can_be_streams_and_files(self, maps: tuple[np.ndarray, np.ndarray], form: str, tmp_path: Path) -> None:
        dense = maps[0]
        if form == "map of a file":
            np.save(tmp_path / "maps.npy", dense)
        given: Any = {
            "list": lambda: split(dense, 4),
            "function": lambda: lambda: iter(split(dense, 1)),
            "array": lambda: dense.astype(np.float64),
            "map of a file": lambda: np.load(tmp_path / "maps.npy", mmap_mode="r"),
        }[form]()
        found = estimate_prevalence(given, equal(3), calibration="assumed", region="curvature")
        expected = estimate_prevalence(dense, equal(3), calibration="assumed", region="curvature")
        assert found.rows == 120
        np.testing.assert_allclose(found.population, expected.population, atol=1e-9, rtol=0)

    def test_calibration_and_test_take_them_cell_by_cell(self, maps: tuple[np.ndarray, np.ndarray]) -> None:
        dense, labels = maps
        rows = rows_of(dense)
        calibration = fit_calibration(dense, labels)
        np.testing.assert_allclose(rows_of(calibration(dense)), calibration(rows))
        kept = labels.ravel() >= 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dense_test, expected = (
                label_shift_test(dense, (dense, labels)),
                label_shift_test(rows, (rows[kept], labels.ravel()[kept])),
            )
        assert isinstance(dense_test, LabelShiftTest)
        assert dense_test.p_value == pytest.approx(expected.p_value, rel=1e-9)

    def test_labels_of_another_shape_and_cells_that_are_no_log_probabilities_are_refused(
        self, maps: tuple[np.ndarray, np.ndarray]
    ) -> None:
        dense, labels = maps
        assert_refused(lambda: fit_calibration(dense, labels.ravel()), r"label per cell, \(6, 4, 5\)")
        assert_refused(lambda: estimate_prevalence(np.exp(dense), equal(3), calibration="assumed"), "look like probabilities")
        assert_refused(lambda: estimate_prevalence(dense[:, :1], equal(3), calibration="assumed"), "column per class")


class TestTensors:
    def test_estimates_of_tensors_are_tensors_with_the_same_numbers(self) -> None:
        torch = pytest.importorskip("torch")
        table, (h, y) = overconfident(drawn(population(3, 30), 300, 31)[0]), drawn(equal(3), 300, 32)
        expected = estimate_prevalence(table, equal(3), held_out=(overconfident(h), y))
        given = torch.from_numpy(table).requires_grad_()
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.from_numpy(table)), batch_size=77)
        held_out = (torch.from_numpy(overconfident(h)), torch.from_numpy(y))
        with torch.inference_mode():
            made_there = torch.from_numpy(table) + 0
        for predictions in (given, loader, made_there):
            found = estimate_prevalence(predictions, torch.from_numpy(equal(3)), held_out=held_out, region="profile")
            for name in ("population", "low", "high", "covariance", "standard_error", "sampling"):
                value = getattr(found, name)
                assert isinstance(value, torch.Tensor)
                np.testing.assert_allclose(value, getattr(expected, name), atol=1e-9)
            assert found.prevalence().num_classes == 3
            assert str(found) == str(expected)

    @pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
    def test_half_precision_is_accepted(self, dtype: str) -> None:
        torch = pytest.importorskip("torch")
        table = torch.from_numpy(exact(drawn(equal(3), 600, 46)[0], equal(3)))
        found, whole = (estimate_prevalence(each, equal(3)) for each in (table.to(getattr(torch, dtype)), table))
        np.testing.assert_allclose(found.population, whole.population, atol=0.01)

    def test_a_loader_of_pairs_is_refused(self) -> None:
        data = pytest.importorskip("torch.utils.data")
        torch = pytest.importorskip("torch")
        pairs = data.DataLoader(data.TensorDataset(torch.log(torch.full((40, 2), 0.5)), torch.zeros(40)), batch_size=20)
        assert_refused(lambda: estimate_prevalence(pairs, 0.5), "the predictions alone")
