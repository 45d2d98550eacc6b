"""The shared library: loading it, its handlers as an XLA custom call, its plain C functions.

Importing this module registers the custom calls `raggemm_grouped_gemm_v1`, `raggemm_moe_mlp_v1` and
`raggemm_moe_mlp_backward_v1` for the platform cpu. What they bind is written in ffi/handlers.h, their attributes in
proto/config.proto.
"""

import ctypes
import functools
import json
import pathlib
import re
from typing import Any

import jax
import jaxlib

TARGET = "raggemm_grouped_gemm_v1"
MLP_TARGET = "raggemm_moe_mlp_v1"
MLP_BACKWARD_TARGET = "raggemm_moe_mlp_backward_v1"

_PACKAGE = pathlib.Path(__file__).parents[1]


def _load() -> ctypes.CDLL:
    path = _PACKAGE / "lib" / "libraggemm_ffi.so"
    try:
        # Local, so that neither its protobuf and Abseil nor those of others ever stand in for each other.
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
        function.restype = ctypes.c_void_p  # not c_char_p, which would lose the pointer to free
    library.raggemm_record_plans.argtypes = [ctypes.c_int32]
    library.raggemm_record_plans.restype = None
    library.raggemm_ffi_version.argtypes = [ctypes.POINTER(ctypes.c_int32)] * 2
    library.raggemm_ffi_version.restype = None
    return library


def _built_ffi_version(library: ctypes.CDLL) -> tuple[int, int]:
    major, minor = ctypes.c_int32(), ctypes.c_int32()
    library.raggemm_ffi_version(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def _runtime_ffi_version() -> tuple[int, int] | None:
    """The version of jaxlib's FFI, which only the header beside it tells; None where that has moved."""
    header = pathlib.Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    if not header.exists():
        return None
    found = dict(re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", header.read_text()))
    return (int(found["MAJOR"]), int(found["MINOR"])) if len(found) == 2 else None


def _check_ffi_version(built: tuple[int, int], runtime: tuple[int, int] | None) -> None:
    """Raises ImportError where the runtime would refuse the handlers, with a message that names only a symbol."""
    if runtime is None or (built[0] == runtime[0] and built[1] <= runtime[1]):
        return
    raise ImportError(
        f"raggemm: its handlers are built for version {built[0]}.{built[1]} of XLA's FFI, which jaxlib "
        f"{jaxlib.__version__} with version {runtime[0]}.{runtime[1]} does not take"
    )


_library = _load()
_check_ffi_version(_built_ffi_version(_library), _runtime_ffi_version())
for _target in (TARGET, MLP_TARGET, MLP_BACKWARD_TARGET):
    jax.ffi.register_ffi_target(
        _target,
        {stage: jax.ffi.pycapsule(getattr(_library, f"{_target}_{stage}")) for stage in ("instantiate", "execute")},
        platform="cpu",
    )


@functools.cache
def workspace_coefficients(dims_arrays: int) -> tuple[int, int]:
    """(constant, per_group) of the workspace, in int64 elements, where `dims_arrays` of the six are set.

    The workspace of a call has constant + per_group * P*R*G elements. The formula is the library's alone.
    """
    constant, per_group = ctypes.c_int64(), ctypes.c_int64()
    _library.raggemm_v1_workspace_coefficients(dims_arrays, ctypes.byref(constant), ctypes.byref(per_group))
    return constant.value, per_group.value


def moe_mlp_workspace(target: str, *extents: int) -> int:
    """Returns the int64 elements of the workspace of a custom call, by the library's formula.

    extents: tokens, hidden, intermediate, rows, groups; then for the value sums_tokens and has_slots, for the gradients
    element_bytes, sums_tokens and sums_weights (ffi/handlers.h). ValueError if there can be no such arrays.
    """
    name = {MLP_TARGET: "moe_mlp", MLP_BACKWARD_TARGET: "moe_mlp_backward"}[target]
    elements = getattr(_library, f"raggemm_v1_{name}_workspace")(*extents)
    if elements < 0:
        raise ValueError(f"x: shape is {extents[:2]}, for which no workspace can be")
    return elements


def _text(function: str) -> str:
    """Returns the text that a function of the library returns, and frees it."""
    text = getattr(_library, function)()
    if not text:
        raise MemoryError(function)
    try:
        return ctypes.string_at(text).decode()
    finally:
        _library.raggemm_free(text)


@functools.cache
def tables() -> dict[str, list[Any]]:
    """Returns the library's tables: formats of elements, optional operands, activations and custom calls.

    raggemm_tables_json in ffi/handlers.h describes their columns.
    """
    return json.loads(_text("raggemm_tables_json"))


def description() -> dict[str, Any]:
    """Returns facts about the library, this CPU and the environment variables that the library has read.

    It is the object of raggemm_describe_json in ffi/handlers.h. The first call measures the instruction sets, for some
    milliseconds.
    """
    return json.loads(_text("raggemm_describe_json"))


def record_plans(on: bool) -> None:
    """Makes the library keep the plans of the calls that all threads run, as often as it was switched on."""
    _library.raggemm_record_plans(on)


def take_plans() -> str:
    """The plans that were kept since the last time, in the order of the calls, separated by empty lines."""
    return _text("raggemm_take_plans")


def version() -> str:
    """The version of the shared library, as in "0.1.0"."""
    return _library.raggemm_version().decode()
