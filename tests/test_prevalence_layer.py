"""PrevalenceLayer: predictions at any population, as an exported graph too."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from layers import FEATURES, inputs, layer_of, network
from members import ClassLikelihood, assert_refused, each_kind, generator, population, unchecked_types
from torch import Tensor, nn
from torch.export import Dim

from rightloss import (
    Bernoulli,
    Categorical,
    CumulativeLogit,
    OnionPeeling,
    Prevalence,
    StickBreaking,
)
from rightloss.predictive import PrevalenceLayer, retarget
from rightloss.tensors import tensor_of

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


class TestPredictions:
    @each_kind
    def test_they_are_the_likelihoods_table_retargeted(self, make: Callable[[], ClassLikelihood], k: int) -> None:
        x, each = inputs().double(), torch.stack([population(k, seed) for seed in range(7)])
        mixes: list[tuple[Any, Tensor]] = [("sampling", population(k, 2)), (population(k, 3), population(k, 3))]
        for outputs_at, at in [("population", population(k, 1)), *mixes]:
            layer = layer_of(make(), k, outputs_at=outputs_at).double()
            table = layer.likelihood.table(layer.model(x))
            for asked, to in ((None, population(k, 1)), (population(k, 4), population(k, 4)), (each, each)):
                torch.testing.assert_close(layer(x, asked), retarget(table, at, to), rtol=0, atol=1e-6)
        same = layer_of(make(), k)
        exact = same.likelihood.table(same.model(inputs()))
        assert torch.equal(same(inputs()), exact)
        assert torch.equal(same.predict(inputs()), exact)

    def test_the_prevalence_is_kept_as_exactly_as_the_model(self) -> None:
        wide = PrevalenceLayer(network(2).double(), Prevalence.binary(1e-9), outputs_at="sampling").eval()
        x = inputs().double()
        expected = retarget(torch.log_softmax(wide.model(x), 1), 0.5, 1e-9)
        torch.testing.assert_close(wide(x), expected, rtol=0, atol=1e-12)

    def test_a_model_in_half_precision_keeps_the_prevalence(self) -> None:
        class Half(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                return super().forward(x).float()

        layer = PrevalenceLayer(Half(6, 2).to(torch.bfloat16), Prevalence.binary(1e-3), outputs_at="sampling")
        x = inputs().bfloat16()
        expected = retarget(torch.log_softmax(layer.model(x), 1), 0.5, 1e-3)
        torch.testing.assert_close(layer(x), expected, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(layer.predict(x.float().numpy()), expected.detach(), rtol=1e-6, atol=1e-6)

    def test_under_vmap_it_is_the_same(self) -> None:
        layer = layer_of(Categorical(3), 3)
        each = torch.stack([population(3, seed) for seed in range(4)]).float()
        x = inputs()
        found = torch.func.vmap(lambda mix: layer(x, mix))(each)
        torch.testing.assert_close(found, torch.stack([layer(x, mix) for mix in each]))

    def test_two_classes_take_one_logit_per_row_and_the_frequency_of_class_1_alone(self) -> None:
        layer = PrevalenceLayer(nn.Sequential(network(1), nn.Flatten(0)), Prevalence.binary(0.1), Bernoulli()).eval()
        column = torch.linspace(0.1, 0.9, 7)[:, None]
        torch.testing.assert_close(layer(inputs(), column), layer(inputs(), torch.cat([1 - column, column], 1)))
        for one in (torch.tensor(0.3), torch.tensor([0.3])):
            torch.testing.assert_close(layer(inputs(), one), layer(inputs(), torch.tensor([0.7, 0.3])))

    def test_dense_outputs_are_their_cells(self) -> None:
        likelihood, outputs = OnionPeeling(3), 2
        layer = PrevalenceLayer(nn.Conv2d(2, outputs, 1), Prevalence(population(3)), likelihood)
        image = torch.randn(2, 2, 4, 5, generator=generator(1))
        each = torch.stack([population(3, 4), population(3, 5)])
        found = layer(image, each)
        assert found.shape == (2, 3, 4, 5)
        cell = PrevalenceLayer(nn.Flatten(), Prevalence(population(3)), likelihood)
        expected = cell(layer.model(image)[:, :, 1, 3], each)
        torch.testing.assert_close(found[:, :, 1, 3], expected)

    @pytest.mark.parametrize("to", [0.01, [0.99, 0.01], Prevalence.beta(1.0, 99.0), {"ill": 0.01, "well": 0.99}])
    def test_predict_takes_whatever_retarget_takes_and_classes_by_name(self, to: Any) -> None:
        layer = PrevalenceLayer(network(2), Prevalence.binary(0.1), classes=["well", "ill"]).train()
        layer.model[1].eval()  # type: ignore[index]
        before = [module.training for module in layer.modules()]
        found = layer.predict(inputs(), to)
        assert not found.requires_grad
        assert [module.training for module in layer.modules()] == before
        torch.testing.assert_close(found, layer.eval()(inputs(), torch.tensor([0.99, 0.01])), rtol=0, atol=1e-6)

    @pytest.mark.parametrize("kind", [np.uint8, bool, ">f4"])
    def test_predict_gives_arrays_for_arrays_of_every_kind(self, kind: Any) -> None:
        features = np.eye(FEATURES)[:, ::-1].astype(kind)
        for layer in (two(), two().double()):
            found = layer.predict(features, np.linspace(0.1, 0.9, FEATURES)[:, None])
            assert isinstance(found, np.ndarray)
            expected = layer.predict(np.eye(FEATURES)[:, ::-1].copy(), np.linspace(0.1, 0.9, FEATURES)[:, None])
            np.testing.assert_array_equal(found, expected)

    @pytest.mark.parametrize("model_dtype", [torch.float64, torch.bfloat16])
    def test_predict_casts_tensors_as_it_casts_arrays(self, model_dtype: torch.dtype) -> None:
        layer = PrevalenceLayer(network(2).to(model_dtype), Prevalence.binary(0.1))
        for x in (inputs(), inputs().double()):
            found = layer.predict(x)
            assert found.dtype == model_dtype
            assert torch.equal(found, layer.predict(inputs().to(model_dtype)))
            assert torch.equal(found, torch.from_numpy(layer.predict(x.numpy())).to(model_dtype))

    def test_predict_takes_a_dataframe_of_numbers_of_several_kinds_as_its_array(self) -> None:
        values = {
            **{"a": [1.5, 2.0], "b": [True, False], "c": [3, 4], "d": pd.array([5, 6], dtype="Int64")},
            **{"e": [0.0, 1.0], "f": [7, 8]},
        }
        found = two().predict(pd.DataFrame(values), 0.3)
        assert isinstance(found, np.ndarray)
        expected = two().predict(np.array([[1.5, 1, 3, 5, 0, 7], [2.0, 0, 4, 6, 1, 8]]), 0.3)
        np.testing.assert_array_equal(found, expected)

    def test_predict_leaves_class_numbers_to_an_embedding(self) -> None:
        model = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(12, 2))
        layer, words = PrevalenceLayer(model, Prevalence.binary(0.1)), np.array([[0, 4, 2], [1, 1, 3]])
        np.testing.assert_array_equal(layer.predict(words), layer.predict(torch.from_numpy(words)).numpy())


class TestAsAModule:
    def test_its_state_moves_with_it(self) -> None:
        layer = layer_of(CumulativeLogit(5), 5)
        assert "population=" in repr(layer)
        assert {"log_population", "log_outputs_at", "likelihood.first", "model.0.weight"} <= set(layer.state_dict())
        assert layer(inputs()).dtype == torch.float32
        assert layer.double()(inputs().double()).dtype == torch.float64
        assert layer.to(torch.bfloat16)(inputs().bfloat16(), torch.full((5,), 0.2)).dtype == torch.bfloat16

    def test_a_state_dict_goes_into_a_layer_of_the_same_prevalence_only(self) -> None:
        layer, own = layer_of(Categorical(3), 3), Prevalence(population(3, 1), population(3, 2))
        other = PrevalenceLayer(network(3, seed=5), own).eval()
        other.load_state_dict(layer.state_dict())
        assert torch.equal(other(inputs(), population(3, 4)), layer(inputs(), population(3, 4)))
        for same in (
            PrevalenceLayer(network(3, seed=5), Prevalence(population(3, 8), population(3, 2))),
            PrevalenceLayer(network(3, seed=5), own, outputs_at="sampling"),
        ):
            before = {name: value.clone() for name, value in same.state_dict().items()}
            assert_refused(lambda same=same: same.load_state_dict(layer.state_dict()), "of the same prevalence, but `log_")  # type: ignore[misc]
            assert all(torch.equal(value, before[name]) for name, value in same.state_dict().items())

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_a_state_in_half_precision_leaves_the_mixes_exact(self, dtype: torch.dtype) -> None:
        layer = PrevalenceLayer(network(2), Prevalence.binary(1e-9), outputs_at="sampling")
        rounded = {name: value.to(dtype) for name, value in layer.state_dict().items()}
        layer.load_state_dict(rounded)
        torch.testing.assert_close(
            layer.log_population.double(), tensor_of(layer.prevalence.population).log(), rtol=1e-7, atol=0
        )
        missing = {name: value for name, value in rounded.items() if name != "log_population"}
        with pytest.raises(RuntimeError, match=r"Missing key.*log_population"):
            layer.load_state_dict(missing)

    @pytest.mark.long
    def test_it_compiles_without_a_break(self) -> None:
        """In a process of its own, without run-time type checks, through which torch.compile cannot see."""
        run = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, timeout=200)
        assert run.returncode == 0, run.stderr[-3000:]


COMPILED = """
import torch
from rightloss import Prevalence, StickBreaking
from rightloss.predictive import PrevalenceLayer
from rightloss.tensors import tensor_of
layer = PrevalenceLayer(torch.nn.Linear(6, 4), Prevalence(torch.full((5,), 0.2)), StickBreaking(5))
compiled = torch.compile(layer, fullgraph=True, backend="eager")
x, population = torch.randn(7, 6), torch.tensor([0.5, 0.2, 0.1, 0.1, 0.1])
torch.testing.assert_close(compiled(x, population), layer(x, population))
torch.testing.assert_close(compiled(x), layer(x))
"""

EXPORTED: dict[str, tuple[ClassLikelihood, int]] = {
    "Categorical": (Categorical(3), 3),
    "Bernoulli": (Bernoulli(), 2),
    "OnionPeeling": (OnionPeeling(5), 5),
    "StickBreaking": (StickBreaking(4), 4),
    "CumulativeLogit": (CumulativeLogit(5), 5),
}
each_exported = pytest.mark.parametrize(("name", "per_row"), [*((name, False) for name in EXPORTED), ("Categorical", True)])


def example(k: int, n: int, per_row: bool, rate: float) -> tuple[Tensor, Tensor]:
    """x and population: class 1 at `rate`, the others alike; in every second row, where each has its own, class 0 at `rate`."""
    mix = torch.full((k,), (1 - rate) / (k - 1))
    mix[1] = rate
    rows = torch.stack([mix if row % 2 == 0 else mix.roll(-1) for row in range(n)])
    return inputs(n, seed=n), rows if per_row else mix


def dynamic(per_row: bool) -> dict[str, Any]:
    return {"x": {0: Dim.DYNAMIC}, "population": {0: Dim.DYNAMIC} if per_row else None}


def in_onnxruntime(
    layer: PrevalenceLayer, given: tuple[Tensor, Tensor], shapes: dict[str, Any] | None, folder: Path
) -> Callable[[Tensor, Tensor], np.ndarray]:
    import onnxruntime

    with unchecked_types():
        program = torch.onnx.export(layer, given, dynamo=True, dynamic_shapes=shapes, verbose=False)
    assert program is not None
    program.save(folder / "layer.onnx")
    session = onnxruntime.InferenceSession(folder / "layer.onnx", providers=["CPUExecutionProvider"])
    assert [each.name for each in session.get_inputs()] == ["x", "population"]
    return lambda x, mix: session.run(None, {"x": x.numpy(), "population": mix.numpy()})[0]


# Of torch's exporter on itself.
in_onnx = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.*:FutureWarning")


class TestExport:
    @pytest.mark.long
    @each_exported
    def test_torch_export_gives_the_same_numbers_at_any_prevalence_and_batch_size(self, name: str, per_row: bool) -> None:
        likelihood, k = EXPORTED[name]
        layer = layer_of(likelihood, k)
        with unchecked_types():  # which take sizes for ints
            exported = torch.export.export(layer, example(k, 4, per_row, 0.3), dynamic_shapes=dynamic(per_row)).module()
        for rate, n in ((0.001, 2), (0.1, 4), (0.9, 9)):
            given = example(k, n, per_row, rate)
            torch.testing.assert_close(exported(*given), layer(*given), rtol=1e-5, atol=1e-6)

    @pytest.mark.long
    @in_onnx
    @pytest.mark.parametrize(("name", "per_row"), [("OnionPeeling", False), ("CumulativeLogit", False), ("Categorical", True)])
    def test_onnxruntime_gives_the_same_numbers_at_any_prevalence_and_batch_size(
        self, name: str, per_row: bool, tmp_path: Path
    ) -> None:
        likelihood, k = EXPORTED[name]
        layer = layer_of(likelihood, k)
        session = in_onnxruntime(layer, example(k, 4, per_row, 0.3), dynamic(per_row), tmp_path)
        for rate, n in ((0.001, 2), (0.1, 4), (0.9, 9)):
            x, mix = example(k, n, per_row, rate)
            found, expected = session(x, mix), layer(x, mix).detach().numpy()
            np.testing.assert_allclose(np.exp(found), np.exp(expected), rtol=0, atol=1e-6)
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=2e-6)

    @pytest.mark.long
    @in_onnx
    def test_onnxruntime_gives_several_findings_at_any_rates(self, tmp_path: Path) -> None:
        layer = PrevalenceLayer(nn.Linear(FEATURES, 3), Prevalence.multilabel([0.1, 0.2, 0.3])).eval()
        start = torch.tensor([0.4, 0.5, 0.6])
        session = in_onnxruntime(layer, (inputs(4), start), dynamic(False), tmp_path)
        for n, rates in ((2, start / 2), (9, start / 500)):
            found, expected = session(inputs(n), rates), layer(inputs(n), rates).detach().numpy()
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=2e-6)

    @pytest.mark.long
    @in_onnx
    def test_onnxruntime_takes_one_number_for_two_classes(self, tmp_path: Path) -> None:
        layer = layer_of(Categorical(2), 2)
        session = in_onnxruntime(layer, (inputs(4), torch.tensor(0.3)), dynamic(False), tmp_path)
        for rate in (0.001, 0.9):
            expected = layer(inputs(9), torch.tensor([1 - rate, rate])).detach().numpy()
            np.testing.assert_allclose(session(inputs(9), torch.tensor(rate)), expected, rtol=1e-6, atol=2e-6)

    @pytest.mark.parametrize("population", [torch.tensor(0.3), torch.tensor([0.5, 0.5])], ids=["number", "two"])
    def test_torch_export_refuses_a_population_of_other_classes_with_a_remedy(self, population: Any) -> None:
        layer = layer_of(Categorical(3), 3)
        assert_refused(lambda: torch.export.export(layer, (inputs(4), population)), "`population` to .*3")

    @pytest.mark.long
    @in_onnx
    def test_a_rare_classs_log_probability_keeps_its_digits_in_onnx(self, tmp_path: Path) -> None:
        likelihood = Bernoulli()
        layer = PrevalenceLayer(nn.Identity(), Prevalence.binary(0.001), likelihood).eval()
        x, mix = torch.linspace(-120, 120, 49)[:, None], torch.tensor([0.5, 0.5])
        session = in_onnxruntime(layer, (x, mix), None, tmp_path)
        exact = PrevalenceLayer(nn.Identity(), Prevalence.binary(0.001), likelihood).double()(x.double(), mix.double()).numpy()
        np.testing.assert_allclose(session(x, mix), exact, rtol=1e-6, atol=2e-6)


def two(**settings: Any) -> PrevalenceLayer:
    return PrevalenceLayer(network(2), Prevalence.binary(0.1), **settings).eval()


class Stateful(nn.Linear):
    def get_extra_state(self) -> Any:
        return {"steps": 3}


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "no module": (lambda: PrevalenceLayer(lambda x: x, Prevalence.binary(0.1)), "`model` to be an nn.Module"),  # type: ignore[arg-type]
    "frequencies for a Prevalence": (lambda: PrevalenceLayer(network(2), [0.9, 0.1]), "a Prevalence .*but got list"),  # type: ignore[arg-type]
    "a likelihood of other classes": (lambda: two(likelihood=OnionPeeling(5)), "a prevalence of 5 classes"),
    "another word": (lambda: two(outputs_at="training"), "`outputs_at` to be 'population', 'sampling' or frequencies"),
    "too few names": (lambda: two(classes=["well"]), "2 names in `classes`"),
    "a name twice": (lambda: two(classes=["well", "well"]), "all different"),
    "one word for names": (lambda: two(classes="ab"), r"2 names .*but got \['ab'\]"),
    "too many outputs": (lambda: PrevalenceLayer(network(3), Prevalence.binary(0.1))(inputs()), r"outputs of shape \(n, 2\)"),
    "too many classes": (
        lambda: PrevalenceLayer(network(3), Prevalence.binary(0.1), Categorical())(inputs()),
        "2 classes, but got 3",
    ),
    "a population off 1": (lambda: two()(inputs(), torch.tensor([0.5, 0.6])), "`population` to sum to 1"),
    "a population of other classes": (lambda: two()(inputs(), torch.full((3,), 1 / 3)), "`population` to have 2 entries"),
    "populations of other rows": (lambda: two()(inputs(), torch.full((3, 2), 0.5)), r"\(7, 2\), but got shape \(3, 2\)"),
    "a bad population in a row": (lambda: two()(inputs(2), torch.tensor([[0.5, 0.5], [0.5, 0.4]])), "but row 1"),
    "a number for three classes": (
        lambda: layer_of(Categorical(3), 3)(inputs(), torch.tensor(0.1)),
        r"a tensor of 3 frequencies.*write torch.tensor\(\[…\]\)",
    ),
    "a number": (lambda: two()(inputs(), 0.1), r"a tensor of 2 frequencies.*write torch.tensor\(rate\), or use `predict`"),
    "words in a DataFrame": (
        lambda: two().predict(pd.DataFrame({"age": [40.0, 50.0], "sex": ["f", "m"]})),
        r"column\(s\) \['sex'\] are not: encode words with pandas.get_dummies",
    ),
    "gaps in a DataFrame": (
        lambda: two().predict(pd.DataFrame({"age": pd.Series([40, None], dtype=object), "old": [True, False]})),
        r"column\(s\) \['age'\] are not.*x.fillna",
    ),
    "a percentage": (lambda: two().predict(inputs(), 10), "is it a percentage"),
    "names for nameless classes": (lambda: two().predict(inputs(), {"ill": 0.1, "well": 0.9}), r"pass `classes=…`"),
    "another name": (
        lambda: two(classes=["well", "ill"]).predict(inputs(), {"sick": 0.1, "well": 0.9}),
        r"got \['sick', 'well'\]: the classes' names are well, ill",
    ),
    "state that is no tensor": (
        lambda: PrevalenceLayer(Stateful(6, 2), Prevalence.binary(0.1)).save("never-written"),
        r"\['model\._extra_state'\] are not",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_with_what_came_and_what_to_do(what: str) -> None:
    assert_refused(*BAD[what])
    assert not Path("never-written").exists()
