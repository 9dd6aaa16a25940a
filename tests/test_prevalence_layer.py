"""PrevalenceLayer: predictions at any population, as an exported graph too; saved to a file, and what `load` refuses."""

from __future__ import annotations

import json
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from members import ClassLikelihood, assert_refused, each_likelihood, generator, population, unchecked_types
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.export import Dim

from rightloss import (
    Bernoulli,
    Categorical,
    ContinuousPrevalence,
    CumulativeLogit,
    InformationGainLoss,
    OnionPeeling,
    Prevalence,
    RebalancedSampler,
    StickBreaking,
)
from rightloss.predictive import PrevalenceLayer, retarget, saved

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
FEATURES = 6
NAN = float("nan")


def network(outputs: int, seed: int = 0) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, outputs)).eval()
    with torch.no_grad():
        for each in model.parameters():
            each.copy_(torch.randn(each.shape, generator=generator(seed)))
    return model


def inputs(n: int = 7, seed: int = 9) -> Tensor:
    return torch.randn(n, FEATURES, generator=generator(seed))


def layer_of(likelihood: ClassLikelihood, k: int, **settings: Any) -> PrevalenceLayer:
    prevalence = Prevalence(population(k, 1), population(k, 2), evidence=0.5)
    return PrevalenceLayer(network(likelihood.num_outputs or k), prevalence, likelihood, **settings).eval()


class TestPredictions:
    @each_likelihood
    @pytest.mark.parametrize("outputs_at", ["population", "sampling", "elsewhere"])
    def test_they_are_the_likelihoods_table_retargeted(
        self, make: Callable[[], ClassLikelihood], k: int, outputs_at: str
    ) -> None:
        at = {"population": population(k, 1), "sampling": population(k, 2), "elsewhere": population(k, 3)}[outputs_at]
        layer = layer_of(make(), k, outputs_at=at if outputs_at == "elsewhere" else outputs_at).double()
        x = inputs().double()
        table = layer.likelihood.table(layer.model(x))
        each = torch.stack([population(k, seed) for seed in range(7)])
        for asked, to in ((None, population(k, 1)), (population(k, 4), population(k, 4)), (each, each)):
            torch.testing.assert_close(layer(x, asked), retarget(table, at, to), rtol=0, atol=1e-6)

    @each_likelihood
    def test_at_the_mix_of_the_outputs_it_is_exactly_the_plain_likelihood(
        self, make: Callable[[], ClassLikelihood], k: int
    ) -> None:
        layer = layer_of(make(), k)
        table = layer.likelihood.table(layer.model(inputs()))
        assert torch.equal(layer(inputs()), table)
        assert torch.equal(layer.predict(inputs()), table)

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

    def test_two_classes_take_one_logit_per_row_and_a_column_of_frequencies(self) -> None:
        layer = PrevalenceLayer(nn.Sequential(network(1), nn.Flatten(0)), Prevalence.binary(0.1), Bernoulli()).eval()
        column = torch.linspace(0.1, 0.9, 7)[:, None]
        torch.testing.assert_close(layer(inputs(), column), layer(inputs(), torch.cat([1 - column, column], 1)))

    @pytest.mark.parametrize(("likelihood", "outputs"), [(Categorical(), 3), (OnionPeeling(3), 2)])
    def test_dense_outputs_are_their_cells(self, likelihood: ClassLikelihood, outputs: int) -> None:
        layer = PrevalenceLayer(nn.Conv2d(2, outputs, 1), Prevalence(population(3)), likelihood)
        image = torch.randn(2, 2, 4, 5, generator=generator(1))
        each = torch.stack([population(3, 4), population(3, 5)])
        found = layer(image, each)
        assert found.shape == (2, 3, 4, 5)
        cell = PrevalenceLayer(nn.Flatten(), Prevalence(population(3)), likelihood)
        expected = cell(layer.model(image)[:, :, 1, 3], each)
        torch.testing.assert_close(found[:, :, 1, 3], expected)

    def test_gradients_reach_the_model(self) -> None:
        layer = layer_of(Categorical(3), 3)
        layer(inputs(), population(3, 4).float())[:, 0].sum().backward()
        assert all(each.grad is not None for each in layer.model.parameters())

    @pytest.mark.parametrize(
        "to", [0.01, [0.99, 0.01], Prevalence.binary(0.01), Prevalence.beta(1.0, 99.0), {"ill": 0.01, "well": 0.99}]
    )
    def test_predict_takes_whatever_retarget_takes_and_classes_by_name(self, to: Any) -> None:
        layer = PrevalenceLayer(network(2), Prevalence.binary(0.1), classes=["well", "ill"]).train()
        found = layer.predict(inputs(), to)
        assert not found.requires_grad
        assert all(module.training for module in layer.modules())
        torch.testing.assert_close(found, layer.eval()(inputs(), torch.tensor([0.99, 0.01])), rtol=0, atol=1e-6)

    def test_predict_leaves_every_part_in_the_mode_it_was_in(self) -> None:
        layer = PrevalenceLayer(network(2).train(), Prevalence.binary(0.1))
        layer.model[1].eval()  # type: ignore[index]
        before = [module.training for module in layer.modules()]
        layer.predict(inputs())
        assert [module.training for module in layer.modules()] == before

    def test_predict_gives_arrays_for_arrays(self) -> None:
        layer = PrevalenceLayer(network(2), Prevalence.binary(0.1))
        each = np.linspace(0.1, 0.9, 7)[:, None]
        found = layer.predict(inputs().double().numpy(), each)
        assert isinstance(found, np.ndarray)
        np.testing.assert_allclose(found, layer.predict(inputs(), each).numpy(), rtol=1e-6)

    @pytest.mark.parametrize("kind", [int, np.uint8, bool, ">f4"])
    def test_predict_takes_features_of_every_kind(self, kind: Any) -> None:
        features = np.eye(FEATURES)[:, ::-1].astype(kind)
        for layer in (two(), two().double()):
            expected = layer.predict(np.eye(FEATURES)[:, ::-1].copy())
            np.testing.assert_array_equal(layer.predict(features), expected)

    def test_predict_leaves_class_numbers_to_an_embedding(self) -> None:
        model = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(12, 2))
        layer, words = PrevalenceLayer(model, Prevalence.binary(0.1)), np.array([[0, 4, 2], [1, 1, 3]])
        np.testing.assert_array_equal(layer.predict(words), layer.predict(torch.from_numpy(words)).numpy())

    def test_trained_on_minibatches_at_sampling_it_meets_the_population(self) -> None:
        """Plain cross-entropy on rebalanced draws of two Gaussians, N(±1, 1), at 5 %: the closed form is logit π + 2x."""
        rng = generator(4)
        y = (torch.rand(20_000, generator=rng) < 0.05).long()
        x = (torch.randn(len(y), generator=rng) + 2 * y - 1)[:, None].double()
        sampler = RebalancedSampler(y, Prevalence.binary(0.05), generator=rng)
        index = torch.tensor(list(sampler))
        model = nn.Linear(1, 2).double()
        search = torch.optim.LBFGS(model.parameters(), max_iter=100, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            search.zero_grad()
            loss = nn.functional.cross_entropy(model(x[index]), y[index])
            loss.backward()
            return loss

        search.step(closure)
        layer = PrevalenceLayer(model, sampler.prevalence, outputs_at="sampling")
        points = torch.tensor([[-1.0], [0.0], [1.0]]).double()
        for pi in (0.05, 0.5, 0.001):
            log_odds = layer.predict(points, pi).diff(dim=1)
            truth = np.log(pi / (1 - pi)) + 2 * points
            # 1,000 positives: a standard error of the log-odds of some 0.07.
            torch.testing.assert_close(log_odds, truth, rtol=0, atol=0.3)


class TestAsAModule:
    def test_its_state_moves_with_it(self) -> None:
        layer = layer_of(CumulativeLogit(5), 5)
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
        torch.testing.assert_close(layer.log_population.double(), layer.prevalence.population.log(), rtol=1e-7, atol=0)
        missing = {name: value for name, value in rounded.items() if name != "log_population"}
        with pytest.raises(RuntimeError, match=r"Missing key.*log_population"):
            layer.load_state_dict(missing)

    def test_the_repr_names_the_prevalence(self) -> None:
        assert "population=[0.9, 0.1]" in repr(PrevalenceLayer(network(2), Prevalence.binary(0.1)))

    def test_it_compiles_without_a_break(self) -> None:
        """In a process of its own, without run-time type checks, through which torch.compile cannot see."""
        run = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, timeout=200)
        assert run.returncode == 0, run.stderr[-3000:]


COMPILED = """
import torch
from rightloss import Prevalence, StickBreaking
from rightloss.predictive import PrevalenceLayer
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
each_exported = pytest.mark.parametrize("name", EXPORTED)
each_form = pytest.mark.parametrize("per_row", [False, True], ids=["one population", "one per row"])


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
    @each_exported
    @each_form
    def test_torch_export_gives_the_same_numbers_at_any_prevalence_and_batch_size(self, name: str, per_row: bool) -> None:
        likelihood, k = EXPORTED[name]
        layer = layer_of(likelihood, k)
        with unchecked_types():  # which take sizes for ints
            exported = torch.export.export(layer, example(k, 4, per_row, 0.3), dynamic_shapes=dynamic(per_row)).module()
        for rate, n in ((0.001, 2), (0.1, 4), (0.9, 9)):
            given = example(k, n, per_row, rate)
            torch.testing.assert_close(exported(*given), layer(*given), rtol=1e-5, atol=1e-6)

    @in_onnx
    @pytest.mark.parametrize(("name", "per_row"), [*((name, False) for name in EXPORTED), ("Categorical", True)])
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

    @in_onnx
    @pytest.mark.parametrize("likelihood", [Bernoulli(), StickBreaking(2)])
    def test_a_rare_classs_log_probability_keeps_its_digits_in_onnx(self, likelihood: ClassLikelihood, tmp_path: Path) -> None:
        layer = PrevalenceLayer(nn.Identity(), Prevalence.binary(0.001), likelihood).eval()
        x, mix = torch.linspace(-120, 120, 49)[:, None], torch.tensor([0.5, 0.5])
        session = in_onnxruntime(layer, (x, mix), None, tmp_path)
        exact = PrevalenceLayer(nn.Identity(), Prevalence.binary(0.001), likelihood).double()(x.double(), mix.double()).numpy()
        np.testing.assert_allclose(session(x, mix), exact, rtol=1e-6, atol=2e-6)


def saved_layer(folder: Path, likelihood: ClassLikelihood | None = None, k: int = 3) -> tuple[PrevalenceLayer, Path]:
    layer = layer_of(Categorical(k) if likelihood is None else likelihood, k, classes=[f"level {each}" for each in range(k)])
    layer.save(folder / "model.safetensors")
    return layer, folder / "model.safetensors"


class TestSaved:
    @each_likelihood
    def test_a_loaded_layer_is_the_saved_one(self, make: Callable[[], ClassLikelihood], k: int, tmp_path: Path) -> None:
        layer, path = saved_layer(tmp_path, make(), k)
        with torch.no_grad():
            for each in layer.likelihood.parameters():  # type: ignore[attr-defined]
                each.add_(0.3)
        layer.save(path)
        found = PrevalenceLayer.load(path, network(make().num_outputs or k, seed=5), make()).eval()
        assert torch.equal(found(inputs(), population(k, 4)), layer(inputs(), population(k, 4)))
        assert torch.equal(found(inputs()), layer(inputs()))
        assert (found.prevalence, found.outputs_at, found.classes) == (layer.prevalence, layer.outputs_at, layer.classes)

    @pytest.mark.parametrize(
        "prevalence", [Prevalence.binary(1e-9, 0.3, 2.0), Prevalence.beta(3.0, 2000.0, 0.4), Prevalence([0.9, 0.1])]
    )
    @pytest.mark.parametrize("outputs_at", ["population", "sampling", [0.25, 0.75]])
    def test_all_that_is_known_of_the_prevalence_is_kept(self, prevalence: Prevalence, outputs_at: Any, tmp_path: Path) -> None:
        PrevalenceLayer(network(2), prevalence, outputs_at=outputs_at).save(tmp_path / "x")
        found = PrevalenceLayer.load(tmp_path / "x", network(2))
        assert found.prevalence == prevalence
        assert found.outputs_at == outputs_at
        assert found.classes is None

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
    def test_every_dtype_is_kept(self, dtype: torch.dtype, tmp_path: Path) -> None:
        layer = layer_of(Categorical(3), 3).to(dtype)
        layer.save(tmp_path / "x")
        found = PrevalenceLayer.load(tmp_path / "x", network(3, seed=5).to(dtype)).eval()
        assert torch.equal(found(inputs().to(dtype)), layer(inputs().to(dtype)))

    def test_a_wider_model_takes_the_weights_as_they_are(self, tmp_path: Path) -> None:
        layer, path = saved_layer(tmp_path)
        found = PrevalenceLayer.load(path, network(3, seed=5).double()).eval()
        torch.testing.assert_close(found(inputs().double()), layer.double()(inputs().double()), rtol=0, atol=1e-14)

    def test_tied_and_transposed_weights_are_saved(self, tmp_path: Path) -> None:
        def tied(seed: int) -> nn.Sequential:
            model = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False), nn.Linear(6, 2))
            weight = nn.Parameter(torch.randn(6, 6, generator=generator(seed)).T)
            model[0].weight, model[1].weight = weight, weight
            return model

        layer = PrevalenceLayer(tied(1), Prevalence.binary(0.1))
        layer.save(tmp_path / "x")
        assert torch.equal(PrevalenceLayer.load(tmp_path / "x", tied(2))(inputs()), layer(inputs()))

    def test_it_is_a_safetensors_file_that_says_what_it_holds(self, tmp_path: Path) -> None:
        layer, path = saved_layer(tmp_path, OnionPeeling(5), 5)
        with safe_open(path, framework="pt") as file:
            facts = json.loads(file.metadata()["rightloss"])
            assert set(file.keys()) == set(layer.state_dict())
        assert facts["format"] == "rightloss.PrevalenceLayer"
        assert facts["population"] == layer.prevalence.population.tolist()
        assert facts["likelihood"] == {"name": "OnionPeeling", "levels": 5}
        assert facts["torch"] == torch.__version__

    @pytest.mark.parametrize("length", [252, 255])
    def test_a_name_can_be_as_long_as_the_system_allows(self, length: int, tmp_path: Path) -> None:
        layer_of(Categorical(3), 3).save(tmp_path / ("x" * length))
        assert [len(each.name) for each in tmp_path.iterdir()] == [length]

    def test_a_failed_save_leaves_the_old_file_and_no_other(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        _, path = saved_layer(tmp_path)
        before = path.read_bytes()

        def fails(tensors: Any, name: str, metadata: Any) -> None:
            Path(name).write_bytes(b"half")
            raise OSError("disk full")

        monkeypatch.setattr("safetensors.torch.save_file", fails)
        with pytest.raises(OSError, match="disk full"):
            layer_of(Categorical(3), 3).save(path)
        assert path.read_bytes() == before
        assert list(tmp_path.iterdir()) == [path]

    def test_without_safetensors_the_extra_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "safetensors.torch", None)
        with pytest.raises(ImportError, match=r"pip install 'rightloss\[export\]'"):
            layer_of(Categorical(3), 3).save(tmp_path / "x")
        assert list(tmp_path.iterdir()) == []


def rewritten(path: Path, change: Callable[[dict[str, Any]], Any], **others: Tensor) -> None:
    """The file with other facts or tensors and a digest that fits them, as a newer version or a forger would write it."""
    with safe_open(path, framework="pt") as file:
        facts = json.loads(file.metadata()["rightloss"])
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}
    facts.pop("sha256")
    change(facts)
    tensors |= {name.replace("__", "."): value for name, value in others.items()}
    facts["sha256"] = saved._digest(tensors, facts)
    save_file(tensors, path, metadata={"rightloss": json.dumps(facts)})


def flipped(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def replaced(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert old in content
    assert len(old) == len(new)
    path.write_bytes(content.replace(old, new))


def made_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


class Hostile:
    """Runs a command when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


# What happened to the file of three classes, and what the error says.
DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "empty": (lambda path: path.write_bytes(b""), "is empty"),
    "cut in the header": (lambda path: path.write_bytes(path.read_bytes()[:100]), "cut short"),
    "cut in the weights": (lambda path: path.write_bytes(path.read_bytes()[:-5]), "cut short"),
    "longer": (lambda path: path.write_bytes(path.read_bytes() + b"\0"), "cut short, damaged"),
    "a flipped bit in the last weight": (lambda path: flipped(path, -1), "its digest differs: it is damaged"),
    "another class name": (lambda path: replaced(path, b"level 2", b"level 9"), "its digest differs"),
    "a weight renamed": (lambda path: replaced(path, b"model.0.bias", b"model.0.bios"), "its digest differs"),
    "another evidence": (
        lambda path: replaced(path, rb"\"evidence\": 0.5", rb"\"evidence\": 0.7"),
        "its digest differs",
    ),
    "somebody else's safetensors": (lambda path: save_file({"w": torch.ones(2)}, path), "another's safetensors file"),
    "somebody else's metadata": (
        lambda path: save_file({"w": torch.ones(2)}, path, metadata={"rightloss": "no JSON"}),
        "another's safetensors file",
    ),
    "metadata without end": (
        lambda path: save_file({"w": torch.ones(2)}, path, metadata={"rightloss": "[" * 100_000}),
        "another's safetensors file",
    ),
    "a list for facts": (
        lambda path: save_file({"w": torch.ones(2)}, path, metadata={"rightloss": "[1]"}),
        "another's safetensors file",
    ),
    "a newer format": (
        lambda path: rewritten(path, lambda facts: facts.update(version=2, rightloss="9.9")),
        r"version 1 .*has 2, written by rightloss 9\.9: update rightloss",
    ),
    "a fact missing": (lambda path: rewritten(path, lambda facts: facts.pop("sampling")), r"lacks \['sampling'\]"),
    "no prevalence": (lambda path: rewritten(path, lambda facts: facts.update(population=[0.5, 0.6, 0.7])), "to sum to 1"),
    "a prevalence in words": (lambda path: rewritten(path, lambda facts: facts.update(sampling="even")), "`sampling` to be "),
    **{
        f"{name} beyond all numbers": (
            lambda path, name=name: rewritten(path, lambda facts: facts.update({name: 10**400})),  # type: ignore[misc]
            "numbers that a float can hold|to be ",
        )
        for name in ("population", "sampling", "evidence", "concentration", "outputs_at")
    },
    "a mix of NaN": (
        lambda path: rewritten(path, str, log_population=torch.tensor([NAN, 0.0, 0.0])),
        "same prevalence, but `log_population` is",
    ),
    "a mix at odds with the prevalence": (
        lambda path: rewritten(path, str, log_outputs_at=torch.tensor([5.0, -7.0, 0.0])),
        "same prevalence, but `log_outputs_at` is",
    ),
    "a mix of another length": (
        lambda path: rewritten(path, str, log_population=torch.zeros(2)),
        r"log_population is float32 \(2,\) in the file",
    ),
    "weights of eight bits": (
        lambda path: rewritten(path, str, model__0__bias=torch.zeros(8).to(torch.float8_e4m3fn)),
        r"model\.0\.bias is float8_e4m3fn \(8,\) in the file",
    ),
    "a likelihood of another shape": (
        lambda path: rewritten(path, lambda facts: facts.update(likelihood=None)),
        "the likelihood that the layer was saved with, None",
    ),
    "classes of another shape": (lambda path: rewritten(path, lambda facts: facts.update(classes=5)), r"3 names .*\[5\]"),
    "a mix of another shape": (lambda path: rewritten(path, lambda facts: facts.update(outputs_at=None)), "`outputs_at` to be"),
    "a pickle": (lambda path: path.write_bytes(pickle.dumps({"w": 1})), "is a pickle"),
    "torch.save": (lambda path: torch.save({"w": torch.ones(2)}, path), r"is a zip archive, such as torch\.save"),
    "JSON": (lambda path: path.write_text('{"population": [0.5, 0.5]}'), "is JSON"),
    "a header of absurd length": (lambda path: path.write_bytes(struct.pack("<Q", 2**62) + b"x" * 50), "of another kind"),
    "a folder": (made_a_folder, "is a folder"),
}


class TestLoadRefuses:
    @pytest.mark.parametrize("what", DAMAGE)
    def test_a_file_that_is_damaged_or_foreign_and_the_model_stays(self, what: str, tmp_path: Path) -> None:
        _, path = saved_layer(tmp_path)
        harm, words = DAMAGE[what]
        harm(path)
        self.assert_refused_untouched(path, network(3, seed=5), Categorical(3), words)

    @pytest.mark.parametrize("protocol", [0, 2, 5])
    @pytest.mark.parametrize("archive", [False, True])
    def test_a_hostile_file_without_running_it(self, protocol: int, archive: bool, tmp_path: Path) -> None:
        mark, path = tmp_path / "mark", tmp_path / "model.bin"
        if archive:
            torch.save(Hostile(mark), path, pickle_protocol=protocol)
        else:
            path.write_bytes(pickle.dumps(Hostile(mark), protocol))
        self.assert_refused_untouched(path, network(3), Categorical(3), "Expected a file saved by PrevalenceLayer.save")
        assert not mark.exists()
        torch.load(path, weights_only=False) if archive else pickle.loads(path.read_bytes())
        assert mark.exists()  # so it would have run

    @pytest.mark.parametrize(
        ("model", "words"),
        [
            (lambda: network(2), r"model\.4\.weight is float32 \(3, 8\) in the file and float32 \(2, 8\) in the model"),
            (lambda: nn.Sequential(*network(3), nn.Linear(3, 3)), r"model\.5\.weight is missing from the file"),
            (lambda: network(3)[:1], r"model\.4\.bias is not in the model"),
            (lambda: network(3).half(), r"model\.0\.weight is float32 \(8, 6\) in the file and float16 \(8, 6\) in the model"),
        ],
    )
    def test_weights_that_do_not_fit_the_model(self, model: Callable[[], nn.Module], words: str, tmp_path: Path) -> None:
        _, path = saved_layer(tmp_path)
        self.assert_refused_untouched(path, model(), Categorical(3), words)

    @pytest.mark.parametrize("likelihood", [None, Categorical(5), OnionPeeling(5), CumulativeLogit(3)])
    def test_another_likelihood(self, likelihood: ClassLikelihood | None, tmp_path: Path) -> None:
        _, path = saved_layer(tmp_path, CumulativeLogit(5), 5)
        words = "'CumulativeLogit', 'levels': 5|3 classes"
        self.assert_refused_untouched(path, network(1, seed=5), likelihood, words)

    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match=r"there is none at .*: is the path right"):
            PrevalenceLayer.load(tmp_path / "none", network(3))
        with pytest.raises(FileNotFoundError, match="make it first"):
            layer_of(Categorical(3), 3).save(tmp_path / "none" / "x")
        assert_refused(lambda: layer_of(Categorical(3), 3).save(tmp_path), "is a folder: name a file in it")

    def assert_refused_untouched(self, path: Path, model: nn.Module, likelihood: Any, words: str) -> None:
        parts = [model] if likelihood is None else [model, likelihood]
        before = [each.clone() for part in parts for each in part.state_dict().values()]
        assert_refused(lambda: PrevalenceLayer.load(path, model, likelihood), words)
        after = [each for part in parts for each in part.state_dict().values()]
        assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))


def two(**settings: Any) -> PrevalenceLayer:
    return PrevalenceLayer(network(2), Prevalence.binary(0.1), **settings).eval()


class Stateful(nn.Linear):
    def get_extra_state(self) -> Any:
        return {"steps": 3}


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "no module": (lambda: PrevalenceLayer(lambda x: x, Prevalence.binary(0.1)), "`model` to be an nn.Module"),  # type: ignore[arg-type]
    "frequencies for a Prevalence": (lambda: PrevalenceLayer(network(2), [0.9, 0.1]), "a Prevalence .*but got list"),  # type: ignore[arg-type]
    "a density": (
        lambda: PrevalenceLayer(network(2), ContinuousPrevalence(torch.distributions.Normal(0.0, 1.0))),  # type: ignore[arg-type]
        "but got ContinuousPrevalence",
    ),
    "a likelihood of other classes": (lambda: two(likelihood=OnionPeeling(5)), "a prevalence of 5 classes"),
    "a loss for a likelihood": (lambda: two(likelihood=InformationGainLoss(Prevalence.binary(0.1))), "to be a likelihood"),
    "another word": (lambda: two(outputs_at="training"), "`outputs_at` to be 'population', 'sampling' or frequencies"),
    "outputs at a mix off 1": (lambda: two(outputs_at=[0.5, 0.6]), "`outputs_at` to sum to 1"),
    "too few names": (lambda: two(classes=["well"]), "2 names in `classes`"),
    "a name twice": (lambda: two(classes=["well", "well"]), "all different"),
    "numbers for names": (lambda: two(classes=[0, 1]), "2 names"),
    "one word for names": (lambda: two(classes="ab"), r"2 names .*but got \['ab'\]"),
    "too many outputs": (lambda: PrevalenceLayer(network(3), Prevalence.binary(0.1))(inputs()), r"outputs of shape \(n, 2\)"),
    "too many classes": (
        lambda: PrevalenceLayer(network(3), Prevalence.binary(0.1), Categorical())(inputs()),
        "2 classes, but got 3",
    ),
    "a population off 1": (lambda: two()(inputs(), torch.tensor([0.5, 0.6])), "`population` to sum to 1"),
    "a negative population": (lambda: two()(inputs(), torch.tensor([1.5, -0.5])), "`population` to be positive"),
    "a population of other classes": (lambda: two()(inputs(), torch.full((3,), 1 / 3)), "`population` to have 2 entries"),
    "populations of other rows": (lambda: two()(inputs(), torch.full((3, 2), 0.5)), r"\(7, 2\), but got shape \(3, 2\)"),
    "a bad population in a row": (lambda: two()(inputs(2), torch.tensor([[0.5, 0.5], [0.5, 0.4]])), "but row 1"),
    "a number in a tensor": (lambda: two()(inputs(), torch.tensor(0.1)), "a tensor of 2 frequencies.*`predict` takes numbers"),
    "a number": (lambda: two()(inputs(), 0.1), "a tensor of 2 frequencies.*`predict` takes numbers"),
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
