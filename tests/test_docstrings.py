"""Every public function and class has an example in its docstring, and it runs."""

from __future__ import annotations

import doctest
import importlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from without_torch import HAS_TORCH

MODULES = ["predictive", "calibration", "shift", "metrics", "check", "sklearn", "boosting", "tabular"]
MODULES += ["", "likelihoods", "inference", "lidc", "lidc.nets", "lidc.ct", "study"] * HAS_TORCH


def public(module: str) -> dict[str, Any]:
    """The functions and classes that users import from `module`."""
    found = importlib.import_module(f"rightloss.{module}".rstrip("."))
    names = getattr(found, "__all__", None) or [name for name in dir(found) if not name.startswith("_")]
    members = {
        name: getattr(found, name)
        for name in names
        if HAS_TORCH or name not in ("PrevalenceLayer", "InformationGainMLPClassifier")
    }
    return {
        name: member
        for name, member in members.items()
        if (inspect.isfunction(member) or inspect.isclass(member)) and member.__module__.startswith("rightloss")
    }


PUBLIC = {f"{member.__module__}.{name}": member for module in MODULES for name, member in public(module).items()}


@pytest.mark.long
@pytest.mark.parametrize("member", PUBLIC.values(), ids=list(PUBLIC))
def test_its_docstring_has_an_example_that_runs(member: Any) -> None:
    finder = doctest.DocTestFinder(recurse=False)
    (example,) = finder.find(member, member.__name__, globs={})
    assert example.examples, f"{member.__name__} has no example: add one, `>>> …`, to its docstring"
    if not HAS_TORCH and "torch" in member.__doc__:
        pytest.skip("the example needs torch")
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    with _quiet_torch():
        failed, _ = runner.run(example)
    assert not failed, f"the example of {member.__name__} prints something else"


@contextmanager
def _quiet_torch() -> Iterator[None]:
    """Seed torch, and switch off the type checks that pytest switches on, as it is for users."""
    if not HAS_TORCH:
        yield
        return
    import torch
    from members import unchecked_types

    with torch.random.fork_rng(), unchecked_types():
        torch.manual_seed(0)
        yield
