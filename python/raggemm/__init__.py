"""Ragged grouped GEMM for XLA on CPU: the experts of a mixture-of-experts layer, in JAX.

    gmm, tgmm      with the signatures of megablox
    ragged_dot     with the signature of jax.lax.ragged_dot
    grouped_gemm   the general operation, on arrays and GroupedTensors

Start reading at _grouped_gemm.py; from there _call.py (what a call is), _primitive.py (how it reaches the library),
_derivatives.py and _batching.py (its rules), _rewrites.py (what the rules ask for beyond the library's modes).
"""

from raggemm import _batching, _derivatives  # noqa: F401  the rules of the primitive
from raggemm._ffi import cases_json, version
from raggemm._grouped_gemm import grouped_gemm
from raggemm._operands import GroupedTensor
from raggemm.ops import gmm, ragged_dot, tgmm

__all__ = ["GroupedTensor", "cases_json", "gmm", "grouped_gemm", "ragged_dot", "tgmm", "version"]
__version__ = version()
