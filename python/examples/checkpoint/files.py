"""The tensors of a folder as model hubs have it: config.json, and files of safetensors with an index."""

import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

DTYPES = {
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "U8": np.uint8,
    "I32": np.int32,
}
FLOATS = ("BF16", "F16", "F32")


class CheckpointError(Exception):
    """What is wrong with which file or tensor, in one sentence."""


class Entry(NamedTuple):
    path: pathlib.Path
    offset: int  # bytes from the start of the file
    dtype: str
    shape: tuple[int, ...]


def aligned(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """Memory of a multiple of 64 bytes, which jax.device_put takes as it is."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)


def _json(path: pathlib.Path) -> dict[str, Any]:
    try:
        read = json.loads(path.read_text())
    except FileNotFoundError:
        raise CheckpointError(f"{path}: there is no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: is no JSON: {error}") from None
    if not isinstance(read, dict):
        raise CheckpointError(f"{path}: holds a {type(read).__name__}, must hold an object")
    return read


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) != len(pairs):
        raise ValueError(f"two are called {next(name for name, _ in pairs if sum(name == n for n, _ in pairs) > 1)}")
    return found


def _entry(path: pathlib.Path, start: int, found: dict[str, Any]) -> tuple[int, int, Entry]:
    """The bytes of a tensor, from and to, behind the header, and where it is."""
    (first, end), shape, dtype = found["data_offsets"], tuple(found["shape"]), found["dtype"]
    if not all(type(n) is int and n >= 0 for n in (first, end, *shape)):
        raise ValueError(f"offsets {first} to {end} of shape {list(shape)}")
    # What this program does not read may be of any type.
    if dtype in DTYPES and end - first != math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize:
        raise ValueError(f"{end - first} bytes for {dtype} {list(shape)}")
    return first, end, Entry(path, start + first, dtype, shape)


def _entries(path: pathlib.Path) -> dict[str, Entry]:
    """The header of a file, whose tensors lie one behind the other up to its end."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length), object_pairs_hook=_without_twins) if length <= size - 8 else None
        if not isinstance(header, dict):
            raise ValueError(f"a header of {length} bytes in a file of {size}")
        header.pop("__metadata__", None)
        entries = {name: _entry(path, 8 + length, found) for name, found in header.items()}
        at = 0
        for first, end, _ in sorted(entries.values()):
            if first != at:
                raise ValueError(f"a tensor begins at {first}, must at {at}")
            at = end
    except FileNotFoundError:
        raise CheckpointError(f"{path}: there is no such file") from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path}: is no file of safetensors: {error}") from None
    if size != 8 + length + at:
        raise CheckpointError(
            f"{path}: has {size} bytes, must have {8 + length + at}: it was not written or copied to its end"
        )
    return {name: entry for name, (_, _, entry) in entries.items()}


class Checkpoint:
    """Reads each tensor straight into memory of its own: pages of a mapped file would be in memory beside it."""

    def __init__(self, folder: str | pathlib.Path):
        self.folder = pathlib.Path(folder)
        if not self.folder.is_dir():
            raise CheckpointError(f"{folder}: is no folder")
        self.config = _json(self.folder / "config.json")
        index = self.folder / "model.safetensors.index.json"
        places = _json(index).get("weight_map") if index.exists() else {}
        if not isinstance(places, dict) or any(pathlib.Path(str(shard)).name != shard for shard in places.values()):
            raise CheckpointError(f"{index}: weight_map must have the name of a file in this folder for each tensor")
        names = sorted(set(places.values())) or sorted(path.name for path in self.folder.glob("*.safetensors"))
        if not names:
            raise CheckpointError(f"{self.folder}: has no file *.safetensors")
        self._entries: dict[str, Entry] = {}
        for shard in names:
            for name, entry in _entries(self.folder / shard).items():
                if places.get(name, shard) != shard or name in self._entries:
                    raise CheckpointError(f"{entry.path}: has {name}, which another file has too")
                self._entries[name] = entry
        if lost := [name for name in places if name not in self._entries]:
            raise CheckpointError(f"{self.folder / places[lost[0]]}: has no tensor {lost[0]}, as {index.name} says")

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def read(self, names: Sequence[str], shape: Sequence[int], dtypes: Sequence[str]) -> np.ndarray:
        """[len(names), *shape]: the tensors of these names, each of this shape and all of one of these dtypes."""
        for name in names:
            entry = self._entries.get(name)
            if entry is None:
                raise CheckpointError(f"{self.folder}: has no tensor {name}")
            allowed = dtypes if name == names[0] else (self._entries[names[0]].dtype,)
            if entry.shape != tuple(shape) or entry.dtype not in allowed:
                raise CheckpointError(
                    f"{entry.path}: {name} is {entry.dtype} {list(entry.shape)}, must be {' or '.join(allowed)} "
                    f"{list(shape)}"
                )
        out = aligned((len(names), *shape), DTYPES[self._entries[names[0]].dtype])
        for i, name in enumerate(names):
            with self._entries[name].path.open("rb", buffering=0) as file:
                file.seek(self._entries[name].offset)
                view = memoryview(out[i : i + 1].reshape(-1).view(np.uint8))
                while len(view) and (count := file.readinto(view)):
                    view = view[count:]
                if len(view):
                    raise CheckpointError(f"{self._entries[name].path}: ends within {name}")
        return out
