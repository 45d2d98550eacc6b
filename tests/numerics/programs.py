"""Who computes the products of the numerics report: this library in every mode, XLA's dot, and BLAS libraries."""

import ctypes
import functools
import os
import pathlib
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from raggemm import GroupedTensor, grouped_gemm

# [g,m,k] x [g,k,n] to [g,m,n] of a dtype, those of this library of a precision too; None where there is no such one.
Program = Callable[..., np.ndarray | None]


def _ragged_m(lhs, rhs, dtype, precision):
    g, m, k = lhs.shape
    rows = GroupedTensor(lhs.reshape(g * m, k), first_dims=jnp.full(g, m, jnp.int32))
    out = grouped_gemm(rows, rhs, contracting_dims=((1,), (1,)), preferred_element_type=dtype, precision=precision)
    return out.reshape(g, m, -1)


def _ragged_k(lhs, rhs, dtype, precision):
    (g, _, k), n = lhs.shape, rhs.shape[2]
    sizes = jnp.full(g, k, jnp.int32)
    left = GroupedTensor(lhs.transpose(0, 2, 1).reshape(g * k, -1), first_dims=sizes)
    right = GroupedTensor(rhs.reshape(g * k, n), first_dims=sizes)
    return grouped_gemm(left, right, contracting_dims=((0,), (0,)), preferred_element_type=dtype, precision=precision)


def _ragged_n(lhs, rhs, dtype, precision):
    (g, m, k), n = lhs.shape, rhs.shape[2]
    columns = GroupedTensor(rhs.transpose(1, 0, 2).reshape(k, g * n), last_dims=jnp.full(g, n, jnp.int32))
    out = grouped_gemm(lhs, columns, contracting_dims=((2,), (0,)), preferred_element_type=dtype, precision=precision)
    return out.reshape(m, g, n).transpose(1, 0, 2)


def _uniform(lhs, rhs, dtype, precision):
    return grouped_gemm(lhs, rhs, contracting_dims=((2,), (1,)), preferred_element_type=dtype, precision=precision)


def _all_ragged(lhs, rhs, dtype, precision):
    (g, m, k), n = lhs.shape, rhs.shape[2]
    ms, ks, ns = (jnp.full(g, x, jnp.int32) for x in (m, k, n))
    left, right = GroupedTensor(lhs.reshape(-1), ms, ks, "PACKED"), GroupedTensor(rhs.reshape(-1), ks, ns, "PACKED")
    options = {"out_size": g * m * n, "out_layout": "PACKED", "preferred_element_type": dtype, "precision": precision}
    return grouped_gemm(left, right, contracting_dims=((1,), (0,)), **options).reshape(g, m, n)


def _jitted(f, *static: int) -> Program:
    compiled = jax.jit(f, static_argnums=static)
    return lambda lhs, rhs, dtype, *precision: np.asarray(compiled(lhs, rhs, np.dtype(dtype), *precision))


MODES: dict[str, Program] = {
    "ragged M": _jitted(_ragged_m, 2, 3),
    "ragged K": _jitted(_ragged_k, 2, 3),
    "ragged N": _jitted(_ragged_n, 2, 3),
    "uniform": _jitted(_uniform, 2, 3),
    "all ragged": _jitted(_all_ragged, 2, 3),
}


def _xla_dot(lhs, rhs, dtype):
    batched = (((2,), (1,)), ((0,), (0,)))
    return jax.lax.dot_general(lhs, rhs, batched, precision=jax.lax.Precision.HIGHEST, preferred_element_type=dtype)


def _numpy(lhs: np.ndarray, rhs: np.ndarray, dtype) -> np.ndarray | None:
    if lhs.dtype != dtype or dtype not in (np.float32, np.float64):
        return None
    return np.stack([a @ b for a, b in zip(lhs, rhs, strict=True)])


_ROW_MAJOR, _NO_TRANS = 101, 111


def _cblas(functions: dict[Any, Any]) -> Program:
    """functions: gemm of each dtype."""

    def run(lhs: np.ndarray, rhs: np.ndarray, dtype) -> np.ndarray | None:
        if lhs.dtype != dtype or dtype not in functions:
            return None
        real = ctypes.c_float if dtype == np.float32 else ctypes.c_double
        (g, m, k), n = lhs.shape, rhs.shape[2]
        out = np.empty((g, m, n), dtype)
        for a, b, c in zip(lhs, rhs, out, strict=True):
            a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
            factors = [ctypes.c_void_p(a.ctypes.data), k, ctypes.c_void_p(b.ctypes.data), n]
            result = [ctypes.c_void_p(c.ctypes.data), n]
            functions[dtype](_ROW_MAJOR, _NO_TRANS, _NO_TRANS, m, n, k, real(1), *factors, real(0), *result)
        return out

    return run


def _load_cblas(path: str, prefix: str) -> Program:
    library = ctypes.CDLL(path, mode=ctypes.RTLD_LOCAL)
    gemm = {np.dtype(t): getattr(library, f"{prefix}cblas_{c}gemm") for t, c in ((np.float32, "s"), (np.float64, "d"))}
    for function in gemm.values():
        function.restype = None
    return _cblas(gemm)


_CACHE = pathlib.Path(__file__).resolve().parents[2] / "build" / "release" / "CMakeCache.txt"
# As bench/peers has them: the name, its variable in the build's cache, what its symbols begin with.
_PEERS = (
    ("openblas", "OPENBLAS", ""),
    ("openblas-wheel", "OPENBLAS_WHEEL", "scipy_"),
    ("blis", "BLIS", ""),
    ("mkl", "MKL", ""),
)


@functools.cache
def others() -> dict[str, Program]:
    """XLA's dot, numpy, and those libraries with a CBLAS that the build has found for bench."""
    programs: dict[str, Program] = {"XLA dot": _jitted(_xla_dot, 2), "numpy": _numpy}
    text = _CACHE.read_text() if _CACHE.exists() else ""
    found = dict(re.findall(r"^RAGGEMM_PEER_(\w+):\w+=(/.*)$", text, re.MULTILINE))
    os.environ.setdefault("MKL_THREADING_LAYER", "SEQUENTIAL")  # MKL's own OpenMP would be a second one here
    for name, variable, prefix in _PEERS:
        if variable in found:
            programs[name] = _load_cblas(found[variable], prefix)
    return programs
