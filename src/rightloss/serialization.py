"""Arrays in one file, verified on load: safetensors with metadata, and `.npz` of anybody.

Stage: arrays or tensors, and metadata (`facts`) → a safetensors file, and back. The metadata are JSON, with the name and
version of the format and a SHA-256 digest of everything. The digest detects damage, not forgery.

Stage: path of an untrusted `.npz` file → `Npz`: names, shapes and dtypes; name → array, or memory map. Nothing is unpickled,
and no array is larger than declared.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from . import __version__
from .arrays import Array, is_tensor
from .atomic_files import whole_path
from .extras import imported
from .prevalence import MultilabelPrevalence, Prevalence

PREVALENCE: tuple[str, ...] = ("population", "sampling", "evidence", "concentration")  # metadata of a prevalence
_KEY = "rightloss"
_BLOCK = 1 << 24  # bytes read at a time
_LIMIT = 1 << 33  # bytes of a compressed array in memory: a hostile file can be a thousand times smaller
_BITS = {"float16": 16, "bfloat16": 16, "float32": 32, "float64": 64}  # the others have no common dtype


@dataclass(frozen=True)
class Format:
    """One kind of file.

    Attributes:
        name: identifies files of this kind.
        version: increased when older programs cannot read new files.
        facts: names of the metadata that every file must have.
        thing: what is saved, for messages.
        saved_by: the method that writes such files.
        wrapping: advice on how to convert weights from another program's file.
    """

    name: str
    version: int
    facts: tuple[str, ...]
    thing: str
    saved_by: str
    wrapping: str


def write_file(kind: Format, path: str | os.PathLike[str], arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
    """Write arrays, or tensors, and metadata atomically to `path`."""
    path = _no_folder(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"Expected a folder at {path.parent}, but there is none: make it first.")
    odd = [name for name, value in arrays.items() if not isinstance(value, np.ndarray) and not is_tensor(value)]
    if odd:
        raise ValueError(f"Expected the model's state to be tensors, but {odd} are not: leave out `get_extra_state`.")
    tensors = any(map(is_tensor, arrays.values()))
    # Copies, since safetensors refuses tensors that share memory, as tied weights do.
    kept = {
        name: value.detach().to("cpu", copy=True).contiguous() if tensors else np.ascontiguousarray(value)
        for name, value in arrays.items()
    }
    versions = {"version": kind.version, "rightloss": __version__}
    versions |= {"torch": str(sys.modules["torch"].__version__)} if tensors else {}
    written = {**facts, "format": kind.name, **versions}
    written["sha256"] = _digest(kept, written)
    with whole_path(path) as temporary:
        library = _safetensors("safetensors.torch" if tensors else "safetensors.numpy")
        library.save_file(kept, temporary, metadata={_KEY: json.dumps(written)})


def read_file(
    kind: Format, path: str | os.PathLike[str], framework: Literal["numpy", "pt"] = "pt"
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return arrays, or tensors, and metadata; raise a ValueError that says what is wrong with the file."""
    path = _no_folder(path)
    if not path.is_file():
        raise FileNotFoundError(f"Expected a file saved by {kind.saved_by}, but there is none at {path}: is the path right?")
    safetensors = _safetensors("safetensors")
    try:
        with safetensors.safe_open(path, framework=framework) as file:
            facts = _facts_of(kind, (file.metadata() or {}).get(_KEY), path)
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except safetensors.SafetensorError as error:
        came = f"{path} is damaged, or of another kind ({error}): save the {kind.thing} again, or give its path"
        raise ValueError(f"Expected a file saved by {kind.saved_by}, but {came}.") from error
    if facts.pop("sha256", None) != _digest(tensors, facts):
        raise ValueError(f"Expected {path} as it was saved, but its digest differs: it is damaged; copy or save it again.")
    missing = [name for name in kind.facts if name not in facts]
    if missing:
        raise ValueError(f"Expected {path} to hold the prevalence, but it lacks {missing}: save the {kind.thing} again.")
    return tensors, facts


def check_fit(tensors: Mapping[str, Array], own: Mapping[str, Array]) -> None:
    """Raise a ValueError that names the file's `tensors` that do not fit the model's `own`."""
    wrong = [f"{name} is missing from the file" for name in own if name not in tensors]
    wrong += [f"{name} is not in the model" for name in tensors if name not in own]
    for name in own:
        if name in tensors and not _fits(tensors[name], own[name]):
            saved, needed = (f"{_dtype(each)} {tuple(each.shape)}" for each in (tensors[name], own[name]))
            wrong.append(f"{name} is {saved} in the file and {needed} in the model")
    if wrong:
        remedy = "give a fresh model, made as the saved one was and in its dtype, or a wider one"
        raise ValueError(f"Expected weights that fit, but {'; '.join(wrong[:10])}{' …' * (len(wrong) > 10)}: {remedy}.")


def prevalence_facts(prevalence: Prevalence | MultilabelPrevalence) -> dict[str, Any]:
    """Return the prevalence as metadata for a file."""
    alpha = prevalence.concentration if isinstance(prevalence, Prevalence) else None
    return {
        "population": prevalence.population.tolist(),
        "sampling": prevalence.sampling.tolist(),
        "evidence": prevalence.evidence,
        "concentration": None if alpha is None else alpha.tolist(),
    }


def saved_prevalence(facts: Mapping[str, Any]) -> Prevalence:
    """Return the prevalence from the metadata of `prevalence_facts`."""
    if facts["sampling"] in ([0, 1], [1, 0]) and len(facts["population"]) == 2:
        one = Prevalence.positive_unlabelled(facts["population"][1], int(facts["sampling"][1]))
        return one.with_evidence(facts["evidence"])
    if facts["concentration"] is None:
        return Prevalence(facts["population"], facts["sampling"], facts["evidence"])
    kappa = 1.0 if facts["evidence"] is None else facts["evidence"]  # None in files of versions up to 0.1
    return Prevalence.dirichlet(facts["concentration"], facts["sampling"], kappa)


@dataclass(frozen=True)
class StoredArray:
    """The header of one array of an `.npz` file; its content has not been read."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    start: int  # offset of the numbers from the start of the file
    info: zipfile.ZipInfo

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def stored(self) -> bool:
        """Return whether the numbers are uncompressed in the file, so that they can be memory-mapped."""
        return self.info.compress_type == zipfile.ZIP_STORED


@dataclass(frozen=True)
class Npz:
    """The arrays of a file by name, made by `open_npz`."""

    path: Path
    members: dict[str, StoredArray]
    stamp: tuple[int, ...]  # of the opened file; a file that replaced it has another

    def read(self, name: str) -> NDArray[Any]:
        """Return the array in memory, with its checksum verified."""
        with self._content(name) as file:
            array = np.lib.format.read_array(file, allow_pickle=False)
            file.read(1)  # past the end, where the checksum is compared
            return array

    def check(self, name: str) -> None:
        """Verify the checksum of an array, reading in blocks."""
        with self._content(name) as file:
            while file.read(_BLOCK):
                pass

    def map(self, name: str) -> NDArray[Any]:
        """Return a memory map of an uncompressed array: only the rows used are read."""
        member = self.members[name]
        assert member.stored, "a compressed array cannot be mapped"
        if _stamp(self.path) != self.stamp:
            raise ValueError(f"Expected the file that was read, but {self.path} has changed since: read it again.")
        with _reading(self.path):
            return np.memmap(self.path, member.dtype, "r", member.start, member.shape, "F" if member.fortran else "C")

    @contextmanager
    def _content(self, name: str) -> Iterator[IO[bytes]]:
        info = self.members[name].info
        with _reading(self.path), zipfile.ZipFile(self.path) as archive, archive.open(info) as file:
            yield file


def open_npz(path: str | os.PathLike[str]) -> Npz:
    """Return the file's arrays without reading them; ValueError if it is damaged, FileNotFoundError if there is none."""
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"Expected an .npz file, but {path} is a folder: give the path of the file in it.")
    if not path.is_file():
        raise FileNotFoundError(f"Expected an .npz file, but there is none at {path}: is the path right?")
    with _reading(path), open(path, "rb") as file, zipfile.ZipFile(file) as archive:
        stamp = _stamp(path)
        infos = archive.infolist()
        names = [info.filename for info in infos]
        if not infos or len(set(names)) != len(names) or not all(name.endswith(".npy") for name in names):
            raise ValueError(f"it holds {names[:5]}, not arrays of different names")
        file.seek(-22, os.SEEK_END)  # the last record of a zip file without a comment gives the number of its members
        count = int.from_bytes(file.read()[10:12], "little")
        if count not in (len(infos), 0xFFFF):  # one flipped bit in an entry's length hides the entries after it
            raise ValueError(f"its directory lists {len(infos)} of {count} arrays")
        members = {info.filename.removesuffix(".npy"): _member(file, archive, info) for info in infos}
    return Npz(path, members, stamp)


def _no_folder(path: str | os.PathLike[str]) -> Path:
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"Expected the path of a file, but {path} is a folder: name a file in it, such as model.safetensors.")
    return path


def _facts_of(kind: Format, text: str | None, path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(text or "null")
    except (ValueError, RecursionError):
        facts = None
    other = facts.get("format") if isinstance(facts, dict) else None
    if other != kind.name and str(other).startswith("rightloss."):
        raise ValueError(f"Expected a file saved by {kind.saved_by}, but {path} holds a {other}: load it with that.")
    if not isinstance(facts, dict) or other != kind.name:
        remedy = f"load it with safetensors, {kind.wrapping} and save that"
        raise ValueError(f"Expected a file saved by {kind.saved_by}, but {path} is another's safetensors file: {remedy}.")
    if facts.get("version") != kind.version:
        came = f"{facts.get('version')!r}, of rightloss {facts.get('rightloss')}: update rightloss (this is {__version__})"
        raise ValueError(f"Expected version {kind.version} of the file format, but {path} has {came}.")
    return facts


def _digest(arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name in sorted(arrays):
        value = arrays[name]
        digest.update(json.dumps([name, f"torch.{_dtype(value)}", list(value.shape)]).encode())
        digest.update(_bytes(value))
    return digest.hexdigest()


def _bytes(value: Array) -> Any:
    if is_tensor(value):
        return value.contiguous().reshape(-1).view(sys.modules["torch"].uint8).numpy().data
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8).data


def _dtype(value: Array) -> str:
    return str(value.dtype).removeprefix("torch.")


def _fits(given: Array, own: Array) -> bool:
    """Return whether a copy is lossless: the same shape, and the same dtype or a wider float."""
    old, new = _dtype(given), _dtype(own)
    return given.shape == own.shape and (old == new or _BITS.get(old, 99) < _BITS.get(new, 0))


def _safetensors(name: str) -> ModuleType:
    return imported(name, "Saving and loading need safetensors", "export")


def _stamp(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _member(file: IO[bytes], archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> StoredArray:
    read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    with archive.open(info) as array:
        shape, fortran, dtype = read_header[np.lib.format.read_magic(array)](array)
        header = array.tell()
    name, size = info.filename.removesuffix(".npy"), prod(shape) * dtype.itemsize
    if dtype.hasobject:
        raise ValueError(f"`{name}` holds Python objects, which are never unpickled")
    if not dtype.itemsize or min(shape, default=0) < 0 or header + size != info.file_size:
        raise ValueError(f"`{name}` is said to be {dtype}{list(shape)}, but has {info.file_size - header} bytes")
    if info.compress_type != zipfile.ZIP_STORED and size > _LIMIT:
        raise ValueError(f"`{name}` decompresses to {size / 1e9:.0f} GB: store it uncompressed")
    file.seek(info.header_offset + 26)  # where the member's own header has the lengths of its name and extra field
    start = info.header_offset + 30 + int(np.frombuffer(file.read(4), "<u2").sum()) + header
    return StoredArray(shape, dtype, fortran, start, info)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn every error into a ValueError: the zip reader and NumPy raise nearly anything for a damaged file."""
    try:
        yield
    except Exception as error:
        raise ValueError(
            f"Expected an .npz file that np.savez wrote, but {path} is not, or is damaged "
            f"({str(error)[:200] or type(error).__name__}): copy or make it again."
        ) from error
