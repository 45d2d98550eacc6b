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
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: is no JSON: {error}") from None
    if not isinstance(read, dict):
        raise CheckpointError(f"{path}: holds a {type(read).__name__}, must hold an object")
    return read


def _entries(path: pathlib.Path) -> dict[str, Entry]:
    """The header of a file, whose tensors must end where it ends."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if length <= size - 8 else None
        if not isinstance(header, dict):
            raise ValueError(f"a header of {length} bytes in a file of {size}")
        header.pop("__metadata__", None)
        entries = {
            name: Entry(path, 8 + length + x["data_offsets"][0], x["dtype"], tuple(map(int, x["shape"])))
            for name, x in header.items()
        }
        end = 8 + length + max((x["data_offsets"][1] for x in header.values()), default=0)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: there is no such file") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: is no file of safetensors: {error}") from None
    if end != size:
        raise CheckpointError(f"{path}: has {size} bytes, must have {end}: it was not written or copied to its end")
    return entries


class Checkpoint:
    """Reads each tensor straight into the memory that it stays in; nothing is mapped or held twice."""

    def __init__(self, folder: str | pathlib.Path):
        self.folder = pathlib.Path(folder)
        self.config = _json(self.folder / "config.json")
        index = self.folder / "model.safetensors.index.json"
        places = _json(index).get("weight_map", {}) if index.exists() else {}
        shards = sorted({self.folder / name for name in places.values()}) or sorted(self.folder.glob("*.safetensors"))
        if not shards:
            raise CheckpointError(f"{self.folder}: has no file *.safetensors")
        self._entries = {name: entry for path in shards for name, entry in _entries(path).items()}
        if lost := [name for name in places if name not in self._entries]:
            raise CheckpointError(f"{self.folder / places[lost[0]]}: has no tensor {lost[0]}, as {index.name} says")

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def read(self, names: Sequence[str], shape: Sequence[int], dtypes: Sequence[str]) -> np.ndarray:
        """The tensors of these names, each of this shape and of one of these dtypes, behind each other: an axis of
        names, then those of shape. Of one name there is no such axis."""
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
        for name, part in zip(names, out, strict=True):
            with self._entries[name].path.open("rb", buffering=0) as file:
                file.seek(self._entries[name].offset)
                view = memoryview(part.reshape(-1).view(np.uint8))
                while len(view) and (count := file.readinto(view)):
                    view = view[count:]
                if len(view):
                    raise CheckpointError(f"{self._entries[name].path}: ends within {name}")
        return out if len(names) > 1 else out[0]
