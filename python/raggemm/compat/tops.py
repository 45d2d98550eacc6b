"""tops: gmm and tgmm that round their operands to bfloat16, sum in float32 and return float32, and their references.

Semantics: operands of any float type are rounded to bfloat16 first; products of those are exact and sums are made in
float32. Group sizes are a partition of the rows: integers, none negative, as many as groups, with the sum m. Deliberate
differences:

- Sizes that are known when tracing are checked then (ValueError). Of sizes that are data, a negative one and a sum
  above m are errors when running; a sum below m is legal, and the rows behind it are zero.
- The gradient of an operand is rounded to bfloat16, as the operand is, and has the operand's dtype; the cotangent is
  not rounded.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from raggemm import _compat, ops
from raggemm._grouped_gemm import grouped_gemm_in
from raggemm._operands import GroupedTensor, Words, integer_array

__all__ = ["check_partition", "gmm", "gmm_ref", "tgmm", "tgmm_ref"]


def check_partition(group_sizes: Any, m: int, num_groups: int | None = None) -> jax.Array:
    """group_sizes as an array, if it can be a partition of m rows into num_groups groups (None: any number).

    TypeError if it is not integer; ValueError with the numbers if it is not [num_groups] or, where the values are
    known, if one is negative or the sum is not m.
    """
    sizes = integer_array("group_sizes", group_sizes)
    if sizes.ndim != 1:
        raise ValueError(f"group_sizes: shape is {sizes.shape}, must have 1 axes")
    if num_groups not in (None, sizes.shape[0]):
        raise ValueError(f"group_sizes has {sizes.shape[0]} sizes, but rhs has {num_groups} groups")
    if isinstance(group_sizes, jax.core.Tracer):
        return sizes
    values = np.asarray(group_sizes).astype(np.int64)
    if (values < 0).any():
        index = int(np.argmax(values < 0))
        raise ValueError(f"group_sizes: value {values[index]} at index {index}, must be at least 0")
    if values.sum() != m:
        raise ValueError(f"group_sizes: the sum is {values.sum()}, must be m = {m}")
    return sizes


def _rounded(lhs: jax.Array, rhs: jax.Array, sizes: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """lhs and rhs as bfloat16. They are aligned before, so that under shard_map the gradient of a replicated operand is
    summed over the devices in the operand's own type."""
    lhs, rhs, sizes = _compat.aligned([lhs, rhs, sizes])
    return lhs.astype(jnp.bfloat16), rhs.astype(jnp.bfloat16), sizes


def _gmm_operands(lhs: Any, rhs: Any, group_sizes: Any, transpose_rhs: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
    axes = (1, 2 if transpose_rhs else 1)
    lhs, rhs, _ = ops.checked_matrices(ValueError, lhs, rhs, group_sizes, (2, 3), axes)
    return _rounded(lhs, rhs, check_partition(group_sizes, lhs.shape[0], rhs.shape[0]))


def _tgmm_operands(lhs: Any, rhs: Any, group_sizes: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    lhs, rhs, _ = ops.checked_matrices(ValueError, lhs, rhs, group_sizes, (2, 2), (0, 0))
    return _rounded(lhs, rhs, check_partition(group_sizes, lhs.shape[0]))


def gmm(lhs: Any, rhs: Any, group_sizes: Any, transpose_rhs: bool = False) -> jax.Array:
    """lhs[rows of group g] x rhs[g] for each group, in bfloat16 with float32 sums.

    Args:
      lhs: [m, k], of any float type.
      rhs: [num_groups, k, n], of any float type; with transpose_rhs [num_groups, n, k].
      group_sizes: [num_groups], int32, int64 or uint32, the rows of each group; their sum is m.
      transpose_rhs: whether the matrices of rhs are stored transposed.

    Returns:
      [m, n] float32.
    """
    return ops.gmm(*_gmm_operands(lhs, rhs, group_sizes, transpose_rhs), jnp.float32, transpose_rhs=transpose_rhs)


def tgmm(lhs: Any, rhs: Any, group_sizes: Any) -> jax.Array:
    """transpose(lhs[rows of group g]) x rhs[rows of group g] for each group, in bfloat16 with float32 sums.

    Args:
      lhs: [m, k], of any float type. (megablox' tgmm has it as [k, m].)
      rhs: [m, n], of any float type.
      group_sizes: [num_groups], int32, int64 or uint32, the rows of each group; their sum is m.

    Returns:
      [num_groups, k, n] float32, zero for an empty group.
    """
    lhs, rhs, sizes = _tgmm_operands(lhs, rhs, group_sizes)
    rows, cols = GroupedTensor(lhs, first_dims=sizes), GroupedTensor(rhs, first_dims=sizes)
    words = Words(sizes="group_sizes")
    return grouped_gemm_in(words, rows, cols, ((0,), (0,)), preferred_element_type=jnp.float32)


def _groups(name: str, group_sizes: Any) -> list[slice]:
    """The rows of each group, for which the sizes must be known."""
    if isinstance(group_sizes, jax.core.Tracer):
        raise TypeError(f"{name} loops over group_sizes in Python, so they must be known when tracing; use {name[:-4]}")
    ends = np.cumsum(np.asarray(group_sizes), dtype=np.int64).tolist()
    return [slice(end - size, end) for end, size in zip(ends, np.asarray(group_sizes).tolist(), strict=True)]


def _dot(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """The float32 product of bfloat16 matrices, widened first, so that no product is rounded."""
    return jnp.dot(lhs.astype(jnp.float32), rhs.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST)


def gmm_ref(lhs: Any, rhs: Any, group_sizes: Any, transpose_rhs: bool = False) -> jax.Array:
    """gmm as a loop over the groups, one jnp.dot each, for comparison; group_sizes must be known when tracing."""
    lhs, rhs, _ = _gmm_operands(lhs, rhs, group_sizes, transpose_rhs)
    matrices = rhs.swapaxes(1, 2) if transpose_rhs else rhs
    rows = _groups("gmm_ref", group_sizes)
    none = jnp.zeros((0, matrices.shape[2]), jnp.float32)
    return jnp.concatenate([none, *(_dot(lhs[r], matrices[g]) for g, r in enumerate(rows))])


def tgmm_ref(lhs: Any, rhs: Any, group_sizes: Any) -> jax.Array:
    """tgmm as a loop over the groups, one jnp.dot each, for comparison; group_sizes must be known when tracing."""
    lhs, rhs, _ = _tgmm_operands(lhs, rhs, group_sizes)
    rows = _groups("tgmm_ref", group_sizes)
    none = jnp.zeros((0, lhs.shape[1], rhs.shape[1]), jnp.float32)
    return jnp.concatenate([none, *(_dot(lhs[r].T, rhs[r])[None] for r in rows)])
