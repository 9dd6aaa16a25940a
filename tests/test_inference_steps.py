"""Steps that are shown, stopped and left no trace of; weights by name and as vectors."""

from __future__ import annotations

import builtins
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from members import assert_refused, generator
from torch import nn

from rightloss.inference import Diverged
from rightloss.inference.distributions import Layout, check_finite
from rightloss.inference.minibatches import steps_of
from rightloss.inference.priors import positive_number
from rightloss.tensors import in_mode, own_random


def test_a_bar_goes_to_stderr_on_request_and_else_to_a_terminal_alone(capsys: Any) -> None:
    for progress, shown in ((True, True), (False, False), (None, False)):
        assert list(steps_of(3, "MAP", progress)) == [0, 1, 2]
        written = capsys.readouterr()
        assert written.out == ""
        assert ("MAP" in written.err and "3/3" in written.err) == shown
    assert written.err == ""


def test_a_bar_that_cannot_be_is_an_error_if_it_was_asked_for(monkeypatch: Any) -> None:
    real = builtins.__import__

    def without_rich(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("rich"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without_rich)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert list(steps_of(2, "MAP", None)) == [0, 1]
    with pytest.raises(ImportError, match=r"pip install -c constraints.txt -e \"\.\[bayes"):
        list(steps_of(2, "MAP", True))


def test_a_step_that_is_not_finite_stops_with_what_was_good() -> None:
    made = []
    check_finite(torch.tensor([1.0, -1e30]), 3, lambda: made.append("made"))
    assert not made
    for bad in (torch.nan, torch.inf, -torch.inf):
        with pytest.raises(Diverged, match=r"Expected the weights to be finite, but step 7 gave .+: lower `lr`") as caught:
            check_finite(torch.tensor([[0.0, bad]]), 7, lambda: "the last good state", "the weights")
        assert caught.value.step == 7
        assert caught.value.posterior == "the last good state"


def test_random_numbers_inside_are_the_seeds_and_outside_as_if_nothing_had_been() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    with own_random(5) as stream:
        first = torch.rand(2), torch.rand(2, generator=stream)
    torch.testing.assert_close(torch.rand(3), expected)
    state = torch.get_rng_state()
    with own_random(5) as stream:
        torch.testing.assert_close((torch.rand(2), torch.rand(2, generator=stream)), first)
    with own_random(6):
        assert not torch.equal(torch.rand(2), first[0])
    with pytest.raises(KeyError), own_random(5):
        raise KeyError(torch.rand(2))
    assert torch.equal(torch.get_rng_state(), state)


def test_each_module_has_its_own_mode_again_also_after_an_error() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(1)))
    next(part for part in model.modules() if isinstance(part, nn.BatchNorm1d)).eval()
    modes = [part.training for part in model.modules()]
    for training in (True, False):
        with in_mode(model, training):
            assert all(part.training == training for part in model.modules())
        assert [part.training for part in model.modules()] == modes
        with pytest.raises(KeyError), in_mode(model, training):
            raise KeyError
        assert [part.training for part in model.modules()] == modes


def test_numbers_that_are_none_are_refused() -> None:
    for value in (0, -1.0, float("nan"), float("inf"), True, "3", None):
        assert_refused(partial(positive_number, value, "lr"), "`lr` to be positive")
    assert positive_number(1, "lr") == 1.0
    assert positive_number(np.float32(0.5), "lr") == 0.5
    for seed in (1.5, True, None, "0"):
        assert_refused(own_random(seed).__enter__, "seed=0")


@pytest.mark.parametrize("lead", [(), (4,), (2, 3)])
def test_weights_by_name_go_into_a_vector_and_back(lead: tuple[int, ...]) -> None:
    shapes: dict[str, tuple[int, ...]] = {"a": (2, 3), "b": (), "c": (0,), "d.e": (4,)}
    one = {name: torch.zeros(shape) for name, shape in shapes.items()}
    many = {name: torch.randn(*lead, *shape, 1, generator=generator(1))[..., 0] for name, shape in shapes.items()}
    layout = Layout.of(one)
    vector = layout.flatten({"more": torch.ones(3), **dict(reversed(many.items()))})
    assert vector.shape == (*lead, 11)
    assert layout.size == 11
    torch.testing.assert_close(vector[..., :6].reshape(*lead, 2, 3), many["a"])
    torch.testing.assert_close(vector[..., 6], many["b"])
    torch.testing.assert_close(layout.unflatten(vector), many)


def test_a_layout_is_equal_to_another_of_the_same_names_and_shapes_in_the_same_order() -> None:
    net = nn.Linear(3, 2)
    params = dict(net.named_parameters())
    assert Layout.of(params) == Layout(("weight", "bias"), ((2, 3), (2,)))
    assert Layout.of(params) != Layout.of(dict(reversed(params.items())))
