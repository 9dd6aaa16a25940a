"""Tensors: what users and the NumPy half give, as torch takes it.

Stage: arrays, class frequencies, generators → tensors and torch generators, on the device and in the dtype of a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from numbers import Integral
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .arrays import array_of, log_probs_of, map_of, rows_of

# Before torch 2.7 the two could not be distinguished.
_is_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)


def tensor_of(values: Any, name: str = "values") -> Tensor:
    """Return a tensor that shares memory with `values` if torch can, else a copy (for read-only or reversed arrays)."""
    values = log_probs_of(values)
    if isinstance(values, Tensor):
        return values
    array = array_of(values, name)
    takes = array.flags.writeable and array.flags.aligned and all(s >= 0 and s % array.itemsize == 0 for s in array.strides)
    return torch.from_numpy(array if takes else array.copy())


def full_precision(tensor: Tensor) -> Tensor:
    """Return float64 unchanged, and every narrower dtype as float32."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def by_cell(table: Callable[[Tensor], Tensor], outputs: Tensor) -> Tensor:
    """Apply `table`, which takes rows `(n, c)` to `(n, k)`, to dense outputs `(n, c, h, w, …)` cell by cell."""
    with _ExactLogSigmoid() if _is_exporting() else nullcontext():
        return map_of(table(rows_of(outputs)), outputs.shape)


def as_input(x: Any, model: nn.Module, default: Tensor) -> Any:
    """Convert an array to a tensor of the model's dtype, on its device; ints stay ints for a model with an `nn.Embedding`.

    Args:
        x: any input; only arrays are converted.
        model: the model that takes x.
        default: gives the dtype and device if the model has no weights.
    """
    if not isinstance(x, np.ndarray):
        return x
    tensor, like = tensor_of(x, "x"), first_float(model, default)
    numbers = any(isinstance(part, nn.Embedding | nn.EmbeddingBag) for part in model.modules())
    return tensor.to(like.device) if numbers and not tensor.is_floating_point() else tensor.to(like)


def first_float(model: nn.Module, default: Tensor) -> Tensor:
    """Return the model's first floating-point parameter, which gives its dtype and device."""
    return next((each for each in model.parameters() if each.is_floating_point()), default)


def checked_generator(generator: Any) -> torch.Generator | None:
    """Return `generator`, or raise a ValueError for a seed or another library's generator."""
    if generator is None or isinstance(generator, torch.Generator):
        return generator
    kind, library = type(generator).__name__, type(generator).__module__.split(".")[0]
    seed = generator if isinstance(generator, int) and not isinstance(generator, bool) else 0
    came = f"{kind}{('' if library == 'builtins' else f' of {library}')}: write torch.Generator().manual_seed({seed})"
    raise ValueError(f"Expected `generator` to be a torch.Generator, but got {came}.")


def own_stream(generator: Any) -> torch.Generator:
    """Return the given generator, checked, or one with a fixed seed, so that equal input gives equal draws."""
    return checked_generator(generator) or torch.Generator().manual_seed(0)


@contextmanager
def own_random(seed: Any) -> Iterator[torch.Generator]:
    """Seed torch's global generator inside, restore its state afterwards, and yield a generator with the same seed."""
    if isinstance(seed, bool) or not isinstance(seed, Integral):
        raise ValueError(f"Expected `seed` to be a whole number, but got {seed!r}: write seed=0.")
    with torch.random.fork_rng():
        torch.manual_seed(int(seed))
        yield torch.Generator().manual_seed(int(seed))


def ordinary(value: Any) -> Any:
    """Return `value`, or a copy if it is a tensor made under `torch.inference_mode()`: autograd refuses those."""
    if not isinstance(value, Tensor) or not value.is_inference():
        return value
    with torch.inference_mode(False):
        return value.clone()


def in_transform() -> bool:
    """Return whether a `torch.func` transform is active; inside one, state must not change and values cannot be read."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def cannot_be_read(tensor: Tensor) -> bool:
    """Return whether reading a value would break a graph, be impossible, or make the host wait for an accelerator."""
    return not tensor.is_cpu or torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


@contextmanager
def in_mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Put the model in training or eval mode inside, and restore the mode of each module afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


class _ExactLogSigmoid(TorchFunctionMode):
    """Compute log σ(z) as a softmax of (z, 0) in exported graphs.

    The ONNX exporter writes Log(Sigmoid(z)), which onnxruntime computes wrongly in float32 for z ≤ −15: off by 0.15, then −∞.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.logsigmoid:
            return torch.log_softmax(torch.stack([args[0], torch.zeros_like(args[0])], -1), -1)[..., 0]
        return func(*args, **(kwargs or {}))
