"""Scales and zero points of the quantized operands of ragged_dot_general, as a call has them."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

Parts = tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]]  # axes of data, as placed() says


def _as_blocks(factor: jax.Array, shape: tuple[int, ...], parts: Parts, ragged: int | None) -> jax.Array:
    """[P, second axis or 1, rows, columns], each of which is the product of some axes of data, whose rank factor has.

    What the custom call has no name for is repeated: of collapsed axes those before the last one that is divided, for
    blocks of one size; and where groups divide an axis, blocks of it, and of the problems and replicas that it is
    stacked from.
    """
    x = factor.transpose([axis for part in parts for axis in part])
    extents = [shape[axis] for part in parts for axis in part]
    stacked = math.prod(shape[axis] for part in parts[:2] for axis in part) > 1
    merged, at = [], 0
    for index, part in enumerate(parts):
        axes = range(at, at + len(part))
        at = axes.stop
        divided = max((axis for axis in axes if x.shape[axis] != 1), default=-1)
        if index == 0 or (index == 1 and ragged is not None):
            whole = at
        elif index == 1 or ragged in part:
            whole = at if divided != -1 or (index == 2 and stacked) else 0
        else:
            whole = divided
        for axis in axes:
            if axis < whole and x.shape[axis] != extents[axis]:
                x = jnp.repeat(x, extents[axis] // x.shape[axis], axis)
        merged.append(math.prod(x.shape[axis] for axis in axes))
    return x.reshape(merged)


def placed(
    factors: dict[str, jax.Array],
    side: str,
    x: jax.Array,
    parts: Parts,
    groups: int,
    ragged: int | None = None,
) -> dict[str, jax.Array]:
    """The factors of lhs or rhs, as operands of a call.

    Args:
      factors: of both sides, by the names that operands of a call have, as QuantizedTensor has them.
      x: data, as it was given.
      parts: its axes that are problems, the second axis of the canonical shape, rows and columns.
      groups: how many are processed. ValueError where a factor of [G] has others.
      ragged: the axis of data that groups divide, if they do.
    """
    canonical = {}
    for name, factor in factors.items():
        if not name.startswith(side):
            continue
        if factor.ndim == 1 and x.ndim > 2:
            factor = factor.reshape(-1, *[1] * (x.ndim - 1))
        if factor.ndim == x.ndim:
            canonical[name] = _as_blocks(factor, x.shape, parts, ragged)
            continue
        if factor.ndim and factor.shape != (groups,):
            word = name.replace("_zero", ".zero_point").replace("_scale", ".scale")
            raise ValueError(f"{word}: shape is {factor.shape}, must be ({groups},), one for each processed group")
        canonical[name] = jnp.broadcast_to(factor, (math.prod(x.shape[axis] for axis in parts[0]), 1, groups))
    return canonical
