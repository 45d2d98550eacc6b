"""Loads the shared library, registers its custom calls for the platform cpu, and wraps its C functions.

ffi/handlers.h documents the operands and results of the custom calls, and proto/config.proto their attributes.
"""

import ctypes
import functools
import json
import pathlib
import re
from typing import Any

import jax
import jaxlib

_TARGETS = ("raggemm_grouped_gemm_v1", "raggemm_moe_mlp_v1", "raggemm_moe_mlp_backward_v1")
TARGET, MLP_TARGET, MLP_BACKWARD_TARGET = _TARGETS

_PACKAGE = pathlib.Path(__file__).parents[1]


def _runtime_ffi_version() -> tuple[int, int] | None:
    """Returns (major, minor) of XLA's FFI from a header of jaxlib, or None if jaxlib lacks the header."""
    header = pathlib.Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    if not header.exists():
        return None
    found = dict(re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", header.read_text()))
    return (int(found["MAJOR"]), int(found["MINOR"])) if len(found) == 2 else None


def _find_library(folder: pathlib.Path, runtime: tuple[int, int] | None) -> pathlib.Path:
    """Returns the library with the newest version of XLA's FFI that the runtime takes.

    libraggemm_ffi.so has the oldest version. libraggemm_ffi_0_5.so is the same library with version 0.5.
    """
    found = {}
    for path in folder.glob("libraggemm_ffi_*.so"):
        if match := re.fullmatch(r"libraggemm_ffi_(\d+)_(\d+)", path.stem):
            found[int(match[1]), int(match[2])] = path
    taken = [version for version in found if runtime and version[0] == runtime[0] and version[1] <= runtime[1]]
    return found[max(taken)] if taken else folder / "libraggemm_ffi.so"


def _load(path: pathlib.Path) -> ctypes.CDLL:
    try:
        # Keeps the library's protobuf and Abseil apart from other copies in the process.
        library = ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL)
    except OSError as error:
        raise ImportError(f"raggemm: the package's shared library does not load: {error}") from error
    int64_out = ctypes.POINTER(ctypes.c_int64)
    library.raggemm_v1_workspace_coefficients.argtypes = [ctypes.c_int32, int64_out, int64_out]
    library.raggemm_v1_workspace_coefficients.restype = None
    for name, arguments in (("moe_mlp", 7), ("moe_mlp_backward", 8)):
        function = getattr(library, f"raggemm_v1_{name}_workspace")
        function.argtypes = [ctypes.c_int64] * arguments
        function.restype = ctypes.c_int64
    library.raggemm_free.argtypes = [ctypes.c_void_p]
    library.raggemm_free.restype = None
    library.raggemm_version.restype = ctypes.c_char_p
    for function in (library.raggemm_describe_json, library.raggemm_tables_json, library.raggemm_take_plans):
        function.argtypes = []
        function.restype = ctypes.c_void_p  # c_char_p would lose the pointer that raggemm_free needs
    library.raggemm_record_plans.argtypes = [ctypes.c_int32]
    library.raggemm_record_plans.restype = None
    library.raggemm_ffi_version.argtypes = [ctypes.POINTER(ctypes.c_int32)] * 2
    library.raggemm_ffi_version.restype = None
    return library


def _built_ffi_version(library: ctypes.CDLL) -> tuple[int, int]:
    major, minor = ctypes.c_int32(), ctypes.c_int32()
    library.raggemm_ffi_version(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def _check_ffi_version(built: tuple[int, int], runtime: tuple[int, int] | None) -> None:
    """Raises ImportError if XLA would reject the library's handlers. XLA's own message would name only a symbol.

    built, runtime: versions of XLA's FFI in the library and in jaxlib.
    """
    if runtime is None or (built[0] == runtime[0] and built[1] <= runtime[1]):
        return
    raise ImportError(
        f"raggemm: its handlers are built for version {built[0]}.{built[1]} of XLA's FFI, but jaxlib "
        f"{jaxlib.__version__} has version {runtime[0]}.{runtime[1]}"
    )


_runtime = _runtime_ffi_version()
_library = _load(_find_library(_PACKAGE / "lib", _runtime))
_check_ffi_version(_built_ffi_version(_library), _runtime)
for _target in _TARGETS:
    jax.ffi.register_ffi_target(
        _target,
        {stage: jax.ffi.pycapsule(getattr(_library, f"{_target}_{stage}")) for stage in ("instantiate", "execute")},
        platform="cpu",
    )


def call_name(target: str) -> str:
    """Returns the name of a custom call without the prefix and the version, such as "moe_mlp"."""
    return target.removeprefix("raggemm_").removesuffix("_v1")


@functools.cache
def workspace_coefficients(dims_arrays: int) -> tuple[int, int]:
    """Returns (constant, per_group). A grouped_gemm call needs a workspace of constant + per_group * P*R*G int64.

    dims_arrays: number of dims arrays, at most six.
    """
    constant, per_group = ctypes.c_int64(), ctypes.c_int64()
    _library.raggemm_v1_workspace_coefficients(dims_arrays, ctypes.byref(constant), ctypes.byref(per_group))
    return constant.value, per_group.value


def moe_mlp_workspace(target: str, *extents: int) -> int:
    """Returns the size of the workspace of moe_mlp or its gradient, in int64 elements.

    target: MLP_TARGET or MLP_BACKWARD_TARGET. extents: tokens, hidden, intermediate, rows and groups, then for
    MLP_TARGET sums_tokens, has_slots and rounds_rows, or for MLP_BACKWARD_TARGET element_bytes, sums_tokens and
    sums_weights. ffi/handlers.h describes them.
    """
    elements = getattr(_library, f"raggemm_v1_{call_name(target)}_workspace")(*extents)
    if elements < 0:
        raise ValueError(f"x: shape is {extents[:2]}, and no workspace can be that large")
    return elements


def _text(function: str) -> str:
    """Calls a library function that returns text. Copies the text and frees the original."""
    text = getattr(_library, function)()
    if not text:
        raise MemoryError(function)
    try:
        return ctypes.string_at(text).decode()
    finally:
        _library.raggemm_free(text)


@functools.cache
def tables() -> dict[str, list[Any]]:
    """Returns the tables of raggemm_tables_json in ffi/handlers.h, by name."""
    return json.loads(_text("raggemm_tables_json"))


def description() -> dict[str, Any]:
    """Returns the facts of raggemm_describe_json in ffi/handlers.h.

    The first call takes some milliseconds to measure the instruction sets.
    """
    return json.loads(_text("raggemm_describe_json"))


def record_plans(on: bool) -> None:
    """Starts or stops recording the plans of calls on all threads. Every start needs its own stop."""
    _library.raggemm_record_plans(on)


def take_plans() -> str:
    """Returns the plans that were recorded since the last take_plans(), in order, separated by empty lines."""
    return _text("raggemm_take_plans")


def version() -> str:
    """Returns the version of the shared library, such as "0.1.0"."""
    return _library.raggemm_version().decode()
