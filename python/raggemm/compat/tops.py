"""tops: gmm and tgmm that round their operands to bfloat16 and return float32, and their references.

Operands of any float type are rounded to bfloat16. Their products are exact, and sums are float32. Group sizes
partition the rows: no size is negative, and their sum is m. Deliberate differences:

- Sizes that are not traced are checked before the product (ValueError). For traced sizes, a negative size and a sum
  above m are errors at run time, and a sum below m is allowed: the remaining rows are zero.
- The gradient of an operand is rounded to bfloat16, and has the operand's dtype. The cotangent is not rounded.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from raggemm._src import checks, versions
from raggemm._src.grouped_gemm import compute_product
from raggemm._src.operands import ArgNames, Operand, make_operands

__all__ = ["check_partition", "gmm", "gmm_ref", "tgmm", "tgmm_ref"]

_ARGUMENT_NAMES = ArgNames(sizes="group_sizes")


def check_partition(group_sizes: Any, m: int, num_groups: int | None = None) -> jax.Array:
    """Checks that group_sizes can partition m rows into num_groups groups. Values are checked unless they are traced.

    Args:
      group_sizes: [num_groups], integer.
      m: number of rows.
      num_groups: number of groups. None: any number.

    Returns:
      group_sizes as an array.

    Raises:
      TypeError: if group_sizes is not integer.
      ValueError: if the shape is wrong, a size is negative, or the sum is not m.
    """
    sizes = checks.as_integer_array("group_sizes", group_sizes)
    num_groups = None if num_groups is None else checks.check_integer("num_groups", num_groups)
    _check_partition(sizes, group_sizes, checks.check_integer("m", m), num_groups)
    return sizes


def _check_partition(sizes: jax.Array, given: Any, m: int, num_groups: int | None) -> None:
    if sizes.ndim != 1:
        raise ValueError(f"group_sizes: shape is {sizes.shape}, must have 1 axis")
    if num_groups not in (None, sizes.shape[0]):
        raise ValueError(f"group_sizes has {sizes.shape[0]} sizes, but rhs has {num_groups} groups")
    if isinstance(given, jax.core.Tracer):
        return
    values = np.asarray(given).astype(np.int64)
    if (values < 0).any():
        index = int(np.argmax(values < 0))
        raise ValueError(f"group_sizes: value {values[index]} at index {index}, must be at least 0")
    if values.sum() != m:
        raise ValueError(f"group_sizes: the sum is {values.sum()}, must be m = {m}")


def _parse_operands(
    lhs: Any, rhs: Any, group_sizes: Any, axes: tuple[int, int], rhs_rank: int
) -> tuple[Operand, Operand]:
    lhs, rhs = checks.as_float_array("lhs", lhs), checks.as_float_array("rhs", rhs)
    left, right = make_operands(lhs, rhs, group_sizes, axes, rhs_rank)
    assert left.first_dims is not None
    m, num_groups = left.data.shape[0], right.data.shape[0] if rhs_rank == 3 else None
    _check_partition(left.first_dims, group_sizes, m, num_groups)
    return left, right


def _round_to_bfloat16(*operands: Operand) -> Iterator[Operand]:
    """Marks operands as varying along the same mesh axes, then rounds them to bfloat16.

    In this order, the gradient of a replicated operand is summed over devices in its type, not in bfloat16.
    """
    for x, data in zip(operands, versions.promote_vma([x.data for x in operands]), strict=True):
        yield dataclasses.replace(x, data=data.astype(jnp.bfloat16))


@jax.jit
def _product(lhs: Operand, rhs: Operand) -> jax.Array:
    return compute_product(_ARGUMENT_NAMES, *_round_to_bfloat16(lhs, rhs), preferred_element_type=jnp.float32)


def gmm(lhs: Any, rhs: Any, group_sizes: Any, transpose_rhs: bool = False) -> jax.Array:
    """Computes lhs[rows of group g] x rhs[g] for each group, in bfloat16 with float32 sums.

    Args:
      lhs: [m, k], of any float type.
      rhs: [num_groups, k, n], of any float type. With transpose_rhs [num_groups, n, k].
      group_sizes: [num_groups], int32, int64 or uint32, the rows of each group.
      transpose_rhs: see rhs.

    Returns:
      [m, n] float32.
    """
    return _product(
        *_parse_operands(lhs, rhs, group_sizes, (1, 2 if checks.check_bool("transpose_rhs", transpose_rhs) else 1), 3)
    )


def tgmm(lhs: Any, rhs: Any, group_sizes: Any) -> jax.Array:
    """Computes transpose(lhs[rows of group g]) x rhs[rows of group g] for each group, in bfloat16 with float32 sums.

    Args:
      lhs: [m, k], of any float type. (tgmm of megablox takes [k, m].)
      rhs: [m, n], of any float type.
      group_sizes: [num_groups], int32, int64 or uint32, the rows of each group.

    Returns:
      [num_groups, k, n] float32, zero for an empty group.
    """
    return _product(*_parse_operands(lhs, rhs, group_sizes, (0, 0), 2))


def _group_slices(name: str, group_sizes: Any) -> list[slice]:
    if isinstance(group_sizes, jax.core.Tracer):
        raise TypeError(f"{name} loops over group_sizes in Python, so they must be known when tracing; use {name[:-4]}")
    ends = np.cumsum(np.asarray(group_sizes), dtype=np.int64).tolist()
    return [slice(end - size, end) for end, size in zip(ends, np.asarray(group_sizes).tolist(), strict=True)]


def _dot(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Multiplies bfloat16 operands in float32, so that no product is rounded."""
    return jnp.dot(lhs.astype(jnp.float32), rhs.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST)


def gmm_ref(lhs: Any, rhs: Any, group_sizes: Any, transpose_rhs: bool = False) -> jax.Array:
    """Computes gmm with one jnp.dot per group, as a reference. group_sizes must be known when tracing."""
    axes = (1, 2 if checks.check_bool("transpose_rhs", transpose_rhs) else 1)
    lhs, rhs = (x.data for x in _round_to_bfloat16(*_parse_operands(lhs, rhs, group_sizes, axes, 3)))
    make_operands = rhs.swapaxes(1, 2) if transpose_rhs else rhs
    rows = _group_slices("gmm_ref", group_sizes)
    empty = jnp.zeros((0, make_operands.shape[2]), jnp.float32)
    return jnp.concatenate([empty, *(_dot(lhs[r], make_operands[g]) for g, r in enumerate(rows))])


def tgmm_ref(lhs: Any, rhs: Any, group_sizes: Any) -> jax.Array:
    """Computes tgmm with one jnp.dot per group, as a reference. group_sizes must be known when tracing."""
    lhs, rhs = (x.data for x in _round_to_bfloat16(*_parse_operands(lhs, rhs, group_sizes, (0, 0), 2)))
    rows = _group_slices("tgmm_ref", group_sizes)
    empty = jnp.zeros((0, lhs.shape[1], rhs.shape[1]), jnp.float32)
    return jnp.concatenate([empty, *(_dot(lhs[r].T, rhs[r])[None] for r in rows)])
