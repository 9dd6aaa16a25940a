"""What can happen to a file that was saved, and what the error then says."""

from __future__ import annotations

import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from rightloss import serialization


def rewritten(path: Path, change: Callable[[dict[str, Any]], Any], **others: Tensor) -> None:
    """The file with other facts or tensors and a digest that fits them, as a newer version or a forger would write it."""
    with safe_open(path, framework="pt") as file:
        facts = json.loads(file.metadata()["rightloss"])
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}
    facts.pop("sha256")
    change(facts)
    tensors |= {name.replace("__", "."): value for name, value in others.items()}
    facts["sha256"] = serialization._digest(tensors, facts)
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


# To a file of any kind.
DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "empty": (lambda path: path.write_bytes(b""), "damaged, or of another kind"),
    "cut in the weights": (lambda path: path.write_bytes(path.read_bytes()[:-5]), "damaged, or of another kind"),
    "longer": (lambda path: path.write_bytes(path.read_bytes() + b"\0"), "damaged, or of another kind"),
    "a flipped bit in the last weight": (lambda path: flipped(path, -1), "its digest differs: it is damaged"),
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
        r"version 1 .*has 2, of rightloss 9\.9: update rightloss",
    ),
    "a pickle": (lambda path: path.write_bytes(pickle.dumps({"w": 1})), "damaged, or of another kind"),
    "torch.save": (lambda path: torch.save({"w": torch.ones(2)}, path), "damaged, or of another kind"),
    "a header of absurd length": (lambda path: path.write_bytes(struct.pack("<Q", 2**62) + b"x" * 50), "of another kind"),
    "a folder": (made_a_folder, "is a folder"),
}
