"""tops: gmm and tgmm that round their operands to bfloat16, sum in float32 and return float32, and their references.

Semantics: operands of any float type are rounded to bfloat16 first; products of those are exact and sums are made in
float32. Group sizes are a partition of the rows: integers, none negative, as many as groups, with the sum m. Deliberate
differences:

- Sizes that are known when tracing are checked then (ValueError). Of sizes that are data, a negative one and a sum
  above m are errors when running; a sum below m is legal, and the rows behind it are zero.
- The gradient of an operand is rounded to bfloat16, as the operand is, and has the operand's dtype; the cotangent is
  not rounded.
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

_WORDS = ArgNames(sizes="group_sizes")


def check_partition(group_sizes: Any, m: int, num_groups: int | None = None) -> jax.Array:
    """group_sizes as an array, if it can be a partition of m rows into num_groups groups (None: any number).

    TypeError if it is not integer; ValueError with the numbers if it is not [num_groups] or, where the values are
    known, if one is negative or the sum is not m.
    """
    sizes = checks.as_integer_array("group_sizes", group_sizes)
    num_groups = None if num_groups is None else checks.check_integer("num_groups", num_groups)
    _check_partition(sizes, group_sizes, checks.check_integer("m", m), num_groups)
    return sizes


def _check_partition(sizes: jax.Array, given: Any, m: int, num_groups: int | None) -> None:
    """given: the sizes as they came, whose values are read where they are known."""
    if sizes.ndim != 1:
        raise ValueError(f"group_sizes: shape is {sizes.shape}, must have 1 axes")
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


def _operands(lhs: Any, rhs: Any, group_sizes: Any, axes: tuple[int, int], rhs_rank: int) -> tuple[Operand, Operand]:
    """Returns the operands of a product, with sizes that are a partition."""
    lhs, rhs = checks.as_float_array("lhs", lhs), checks.as_float_array("rhs", rhs)
    left, right = make_operands(lhs, rhs, group_sizes, axes, rhs_rank)
    assert left.first_dims is not None
    m, num_groups = left.data.shape[0], right.data.shape[0] if rhs_rank == 3 else None
    _check_partition(left.first_dims, group_sizes, m, num_groups)
    return left, right


def _rounded(*operands: Operand) -> Iterator[Operand]:
    """Rounds operands to bfloat16.

    They vary along the same axes before, so that under shard_map the gradient of a replicated operand is summed over
    the devices in the operand's own type.
    """
    for x, data in zip(operands, versions.promote_vma([x.data for x in operands]), strict=True):
        yield dataclasses.replace(x, data=data.astype(jnp.bfloat16))


@jax.jit
def _product(lhs: Operand, rhs: Operand) -> jax.Array:
    return compute_product(_WORDS, *_rounded(lhs, rhs), preferred_element_type=jnp.float32)


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
    return _product(
        *_operands(lhs, rhs, group_sizes, (1, 2 if checks.check_bool("transpose_rhs", transpose_rhs) else 1), 3)
    )


def tgmm(lhs: Any, rhs: Any, group_sizes: Any) -> jax.Array:
    """transpose(lhs[rows of group g]) x rhs[rows of group g] for each group, in bfloat16 with float32 sums.

    Args:
      lhs: [m, k], of any float type. (megablox' tgmm has it as [k, m].)
      rhs: [m, n], of any float type.
      group_sizes: [num_groups], int32, int64 or uint32, the rows of each group; their sum is m.

    Returns:
      [num_groups, k, n] float32, zero for an empty group.
    """
    return _product(*_operands(lhs, rhs, group_sizes, (0, 0), 2))


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
    lhs, rhs = (
        x.data
        for x in _rounded(
            *_operands(lhs, rhs, group_sizes, (1, 2 if checks.check_bool("transpose_rhs", transpose_rhs) else 1), 3)
        )
    )
    make_operands = rhs.swapaxes(1, 2) if transpose_rhs else rhs
    rows = _groups("gmm_ref", group_sizes)
    none = jnp.zeros((0, make_operands.shape[2]), jnp.float32)
    return jnp.concatenate([none, *(_dot(lhs[r], make_operands[g]) for g, r in enumerate(rows))])


def tgmm_ref(lhs: Any, rhs: Any, group_sizes: Any) -> jax.Array:
    """tgmm as a loop over the groups, one jnp.dot each, for comparison; group_sizes must be known when tracing."""
    lhs, rhs = (x.data for x in _rounded(*_operands(lhs, rhs, group_sizes, (0, 0), 2)))
    rows = _groups("tgmm_ref", group_sizes)
    none = jnp.zeros((0, lhs.shape[1], rhs.shape[1]), jnp.float32)
    return jnp.concatenate([none, *(_dot(lhs[r].T, rhs[r])[None] for r in rows)])
