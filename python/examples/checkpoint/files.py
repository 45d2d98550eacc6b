"""Reads a checkpoint in the format of model hubs: a folder with config.json and the tensors in files *.safetensors."""

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
    "I8": np.int8,
    "I32": np.int32,
}
FLOATS = ("BF16", "F16", "F32")


class CheckpointError(Exception):
    """An error in a file, a tensor or the command line."""


def aligned(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """Allocates an array aligned to 64 bytes, which jax.device_put uses without a copy."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)


def _json(path: pathlib.Path) -> dict[str, Any]:
    try:
        read = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: is no JSON: {error}") from None
    if not isinstance(read, dict):
        raise CheckpointError(f"{path}: holds a {type(read).__name__}, must hold an object")
    return read


class Entry(NamedTuple):
    path: pathlib.Path
    offset: int  # start of the tensor, in bytes from the start of the file
    dtype: str
    shape: tuple[int, ...]


def _entries(path: pathlib.Path) -> dict[str, Entry]:
    """Reads the header of a safetensors file: the length of a JSON object, then this object. The tensors follow."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = 8 + int.from_bytes(file.read(8), "little")
            if start > size:
                raise ValueError(f"a header of {start - 8} bytes in a file of {size}")
            header = json.loads(file.read(start - 8))
        header.pop("__metadata__", None)
        end = start + max((found["data_offsets"][1] for found in header.values()), default=0)
        entries = {
            name: Entry(path, start + found["data_offsets"][0], found["dtype"], tuple(found["shape"]))
            for name, found in header.items()
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: is no file of safetensors: {error}") from None
    if size != end:
        raise CheckpointError(f"{path}: has {size} bytes, must have {end}: it is truncated or damaged")
    return entries


class Checkpoint:
    """A checkpoint in a folder. Files are not mapped, because mapped pages would take memory besides the arrays."""

    def __init__(self, folder: str | pathlib.Path):
        self.folder = pathlib.Path(folder)
        self.config = _json(self.folder / "config.json")
        index, paths = self.folder / "model.safetensors.index.json", sorted(self.folder.glob("*.safetensors"))
        if index.exists():
            paths = [self.folder / name for name in sorted(set(_json(index).get("weight_map", {}).values()))]
        if not paths:
            raise CheckpointError(f"{self.folder}: has no file *.safetensors")
        self._entries = {name: entry for path in paths for name, entry in _entries(path).items()}

    def __contains__(self, name: str) -> bool:
        """Returns True if the checkpoint has the tensor, and it has elements."""
        return name in self._entries and 0 not in self._entries[name].shape

    def read(self, names: Sequence[str], shape: Sequence[int], dtypes: Sequence[str]) -> np.ndarray:
        """Reads the tensors `names`, and returns them stacked, [len(names), *shape].

        Each tensor must have shape `shape`. All must have the same dtype, one of `dtypes`.
        """
        allowed = tuple(dtypes)
        for name in names:
            if (entry := self._entries.get(name)) is None:
                raise CheckpointError(f"{self.folder}: has no tensor {name}")
            if entry.shape != tuple(shape) or entry.dtype not in allowed:
                wanted = f"{' or '.join(allowed)} {list(shape)}"
                raise CheckpointError(f"{entry.path}: {name} is {entry.dtype} {list(entry.shape)}, must be {wanted}")
            allowed = (entry.dtype,)
        out = aligned((len(names), *shape), DTYPES[allowed[0]])
        for i, name in enumerate(names):
            with self._entries[name].path.open("rb") as file:
                file.seek(self._entries[name].offset)
                file.readinto(out[i : i + 1].reshape(-1).view(np.uint8))
        return out
