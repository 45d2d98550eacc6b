"""The front ends that MoE code already calls: megablox' gmm and tgmm, and jax.lax's ragged_dot.

Each is one grouped_gemm with the signature, the defaults and the dtype rules of its origin. Errors that shapes and
dtypes can tell are raised when tracing. A wrong group size or group_offset is data and arrives when the call has run,
with the array, the group, the value and the limit. JAX chooses its class: ValueError where a compiled program that has
succeeded before is called again, jax.errors.JaxRuntimeError otherwise; so catch both. raggemm's own functions, called
outside of jit, are such programs too.
"""

from raggemm._src.api import gmm, ragged_dot, tgmm

__all__ = ["gmm", "ragged_dot", "tgmm"]
