"""The functions that MoE code already calls: gmm and tgmm of megablox, and ragged_dot of jax.lax.

Wrong shapes and dtypes raise while tracing. A wrong group size or group_offset raises after the call has run, and names
the array, group, value and limit. JAX chooses the exception's type, so catch both: ValueError if a compiled program has
succeeded before, else jax.errors.JaxRuntimeError. Outside of jit, raggemm's functions also count as compiled programs.
"""

from raggemm._src.api import gmm, ragged_dot, tgmm

__all__ = ["gmm", "ragged_dot", "tgmm"]
