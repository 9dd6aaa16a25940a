"""Saved layers: what comes back from a file, and what `load` refuses."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from corrupt_files import DAMAGE, Hostile, replaced, rewritten
from layers import NAN, inputs, layer_of, network
from members import ClassLikelihood, assert_refused, each_kind, generator, population
from safetensors import safe_open
from torch import nn

from rightloss import (
    Categorical,
    CumulativeLogit,
    OnionPeeling,
    Prevalence,
)
from rightloss.predictive import PrevalenceLayer


def saved_layer(folder: Path, likelihood: ClassLikelihood | None = None, k: int = 3) -> tuple[PrevalenceLayer, Path]:
    layer = layer_of(Categorical(k) if likelihood is None else likelihood, k, classes=[f"level {each}" for each in range(k)])
    layer.save(folder / "model.safetensors")
    return layer, folder / "model.safetensors"


class TestSaved:
    @each_kind
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
        ("prevalence", "outputs_at"),
        [
            (Prevalence.binary(1e-9, 0.3, 2.0), "population"),
            (Prevalence.beta(3.0, 2000.0, 0.4), "sampling"),
            (Prevalence([0.9, 0.1]), [0.25, 0.75]),
            (Prevalence.positive_unlabelled(0.1, 0), "population"),
            (Prevalence.positive_unlabelled(0.1, 1), "population"),
        ],
    )
    def test_the_prevalence_is_kept(self, prevalence: Prevalence, outputs_at: Any, tmp_path: Path) -> None:
        PrevalenceLayer(network(2), prevalence, outputs_at=outputs_at).save(tmp_path / "x")
        found = PrevalenceLayer.load(tmp_path / "x", network(2))
        assert found.prevalence == prevalence
        assert found.outputs_at == outputs_at
        assert found.classes is None

    def test_every_dtype_is_kept(self, tmp_path: Path) -> None:
        for dtype in (torch.float64, torch.float16, torch.bfloat16):
            layer = layer_of(Categorical(3), 3).to(dtype)
            layer.save(tmp_path / "x")
            found = PrevalenceLayer.load(tmp_path / "x", network(3, seed=5).to(dtype)).eval()
            assert torch.equal(found(inputs().to(dtype)), layer(inputs().to(dtype)))

    def test_files_of_version_0_1_have_no_evidence_of_an_uncertain_prevalence(self, tmp_path: Path) -> None:
        PrevalenceLayer(network(2), Prevalence.beta(3.0, 7.0)).save(tmp_path / "x")
        rewritten(tmp_path / "x", lambda facts: facts.update(evidence=None))
        assert PrevalenceLayer.load(tmp_path / "x", network(2)).prevalence == Prevalence.beta(3.0, 7.0)

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

    def test_a_name_can_be_as_long_as_the_system_allows(self, tmp_path: Path) -> None:
        layer_of(Categorical(3), 3).save(tmp_path / ("x" * 255))
        assert [len(each.name) for each in tmp_path.iterdir()] == [255]

    def test_without_safetensors_the_extra_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "safetensors.torch", None)
        with pytest.raises(ImportError, match=r"pip install .*\.\[export\]"):
            layer_of(Categorical(3), 3).save(tmp_path / "x")
        assert list(tmp_path.iterdir()) == []


# What happened to the file of three classes, and what the error says.
LAYER_DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    **DAMAGE,
    "another class name": (lambda path: replaced(path, b"level 2", b"level 9"), "its digest differs"),
    "a fact missing": (lambda path: rewritten(path, lambda facts: facts.pop("sampling")), r"lacks \['sampling'\]"),
    "no prevalence": (lambda path: rewritten(path, lambda facts: facts.update(population=[0.5, 0.6, 0.7])), "to sum to 1"),
    **{
        f"{name} beyond all numbers": (
            lambda path, name=name: rewritten(path, lambda facts: facts.update({name: 10**400})),  # type: ignore[misc]
            "numbers that a float can hold|to be ",
        )
        for name in ("population", "evidence", "concentration", "outputs_at")
    },
    "a mix of NaN": (
        lambda path: rewritten(path, str, log_population=torch.tensor([NAN, 0.0, 0.0])),
        "same prevalence, but `log_population` is",
    ),
    "a mix at odds with the prevalence": (
        lambda path: rewritten(path, str, log_outputs_at=torch.tensor([5.0, -7.0, 0.0])),
        "same prevalence, but `log_outputs_at` is",
    ),
    "weights of eight bits": (
        lambda path: rewritten(path, str, model__0__bias=torch.zeros(8).to(torch.float8_e4m3fn)),
        r"model\.0\.bias is float8_e4m3fn \(8,\) in the file",
    ),
    "a likelihood of another shape": (
        lambda path: rewritten(path, lambda facts: facts.update(likelihood=None)),
        "the likelihood of the saved layer, None",
    ),
    "classes of another shape": (lambda path: rewritten(path, lambda facts: facts.update(classes=5)), r"3 names .*\[5\]"),
    "a mix of another shape": (lambda path: rewritten(path, lambda facts: facts.update(outputs_at=None)), "`outputs_at` to be"),
}


class TestLoadRefuses:
    @pytest.mark.parametrize("what", LAYER_DAMAGE)
    def test_a_file_that_is_damaged_or_foreign_and_the_model_stays(self, what: str, tmp_path: Path) -> None:
        _, path = saved_layer(tmp_path)
        harm, words = LAYER_DAMAGE[what]
        harm(path)
        self.assert_refused_untouched(path, network(3, seed=5), Categorical(3), words)

    @pytest.mark.parametrize(("protocol", "archive"), [(0, False), (5, False), (2, True)])
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

    @pytest.mark.parametrize("likelihood", [None, OnionPeeling(5), CumulativeLogit(3)])
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
