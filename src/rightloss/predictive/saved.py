"""Tensors and facts in one file that can be trusted not to be damaged.

Stage: tensors, facts → safetensors file, and back. The facts stand as JSON in its metadata, with a format name, a version
and a SHA-256 digest of everything; the digest finds damage, not a forger.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from .. import __version__
from ..files import whole_path

FORMAT, VERSION = "rightloss.PrevalenceLayer", 1
FACTS = ("population", "sampling", "evidence", "concentration", "outputs_at", "classes", "likelihood")
_KEY = "rightloss"
_FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}  # the others have no common dtype
_OTHERS = {b"PK": "a zip archive, such as torch.save writes", b"\x80": "a pickle", b"{": "JSON", b"": "empty"}


def write_file(path: str | Path, tensors: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Under a temporary name in the same folder first, so that there is never half a file at `path`."""
    path = Path(path)
    _refuse_folder(path)
    odd = [name for name, value in tensors.items() if not isinstance(value, Tensor)]
    if odd:
        raise ValueError(f"Expected the model's state to be tensors, but {odd} are not: leave out `get_extra_state`.")
    # Copies, since safetensors refuses tensors that share memory, as tied weights do.
    kept = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in tensors.items()}
    written = {**facts, "format": FORMAT, "version": VERSION, "rightloss": __version__, "torch": str(torch.__version__)}
    written["sha256"] = _digest(kept, written)
    with whole_path(path) as temporary:
        _safetensors("safetensors.torch").save_file(kept, temporary, metadata={_KEY: json.dumps(written)})


def read_file(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and facts, or a ValueError that says what is wrong with the file."""
    path = Path(path)
    _refuse_folder(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"Expected a file saved by PrevalenceLayer.save, but there is none at {path}: is the path right?"
        )
    safetensors = _safetensors("safetensors")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            facts = _facts_of((file.metadata() or {}).get(_KEY), path)
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except safetensors.SafetensorError as error:
        raise ValueError(
            f"Expected a file saved by PrevalenceLayer.save, but {path} is {_kind_of(path)} ({error}): save the layer again, "
            "or give the path of that file."
        ) from error
    said = facts.pop("sha256", None)
    if said != _digest(tensors, facts):
        raise ValueError(
            f"Expected {path} to be as it was saved, but its digest differs: it is damaged; copy or save it again."
        )
    missing = [name for name in FACTS if name not in facts]
    if missing:
        raise ValueError(f"Expected {path} to hold the prevalence, but it lacks {missing}: save the layer again.")
    return tensors, facts


def copy_state(tensors: Mapping[str, Tensor], module: nn.Module) -> None:
    """Into `module`, if all of it fits; else a ValueError that names what does not, and nothing is copied."""
    own = module.state_dict()
    wrong = [f"{name} is missing from the file" for name in own if name not in tensors]
    wrong += [f"{name} is not in the model" for name in tensors if name not in own]
    wrong += [
        f"{name} is {_form(tensors[name])} in the file and {_form(own[name])} in the model"
        for name in own
        if name in tensors and not _fits(tensors[name], own[name])
    ]
    if wrong:
        raise ValueError(
            f"Expected weights that fit the model, but {'; '.join(wrong[:10])}{' …' * (len(wrong) > 10)}: "
            "give a fresh model, made as the saved one was and in its dtype, or a wider one."
        )
    module.load_state_dict(tensors, strict=True)


def _facts_of(text: str | None, path: Path) -> dict[str, Any]:
    foreign = f"Expected a file saved by PrevalenceLayer.save, but {path} is another's safetensors file: "
    remedy = "load it with safetensors, wrap the model in a PrevalenceLayer and save that."
    try:
        facts = json.loads(text or "null")
    except (ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise ValueError(foreign + remedy)
    if facts.get("version") != VERSION:
        raise ValueError(
            f"Expected version {VERSION} of the file format, but {path} has {facts.get('version')!r}, "
            f"written by rightloss {facts.get('rightloss')}: update rightloss (this is {__version__})."
        )
    return facts


def _digest(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name in sorted(tensors):
        value = tensors[name].contiguous()
        digest.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _fits(given: Tensor, own: Tensor) -> bool:
    """Whether a copy would lose nothing: one shape, and one dtype or a wider float."""
    wider = {given.dtype, own.dtype} <= _FLOATS and torch.promote_types(given.dtype, own.dtype) == own.dtype
    return given.shape == own.shape and (given.dtype == own.dtype or wider)


def _form(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"


def _kind_of(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(2)
    named = (what for magic, what in _OTHERS.items() if magic and start.startswith(magic))
    return _OTHERS[b""] if not start else next(named, "cut short, damaged, or of another kind")


def _refuse_folder(path: Path) -> None:
    if path.is_dir():
        raise ValueError(f"Expected the path of a file, but {path} is a folder: name a file in it, such as model.safetensors.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"Expected a folder at {path.parent}, but there is none: make it first.")


def _safetensors(name: str) -> ModuleType:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError("Saving and loading need safetensors: pip install 'rightloss[export]'.") from error
