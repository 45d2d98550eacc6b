"""Scales and zero points of the quantized operands of ragged_dot_general, as a call has them."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

Axes = Sequence[int]


def _as_blocks(factor: jax.Array, shape: tuple[int, ...], parts: tuple[Axes, Axes, Axes, Axes]) -> jax.Array:
    """[P, second axis or 1, rows, columns], each of which is the product of some axes of data, whose rank factor has.

    Blocks of collapsed axes are of one size where those before the last one that is divided have a value for each
    index, which is what repeats them.
    """
    x = factor.transpose([axis for part in parts for axis in part])
    extents = [shape[axis] for part in parts for axis in part]
    merged, at = [], 0
    for index, part in enumerate(parts):
        axes = range(at, at + len(part))
        at = axes.stop
        divided = max((axis for axis in axes if x.shape[axis] != 1), default=-1)
        whole = {0: at, 1: divided + 1}.get(index, divided)  # axes before it: problems all, groups all or none
        for axis in axes:
            if axis < whole and x.shape[axis] != extents[axis]:
                x = jnp.repeat(x, extents[axis] // x.shape[axis], axis)
        merged.append(math.prod(x.shape[axis] for axis in axes))
    return x.reshape(merged)


def placed(
    factors: dict[str, jax.Array],
    side: str,
    x: jax.Array,
    parts: tuple[Axes, Axes, Axes, Axes],
    groups: int,
) -> dict[str, jax.Array]:
    """The factors of lhs or rhs, as operands of a call.

    Args:
      factors: of both sides, by the names that operands of a call have, as QuantizedTensor has them.
      x: data, as it was given.
      parts: its axes that are problems, the second axis of the canonical shape, rows and columns.
      groups: how many are processed. ValueError where a factor of [G] has others.
    """
    canonical = {}
    for name, factor in factors.items():
        if not name.startswith(side):
            continue
        if factor.ndim == 1 and x.ndim > 2:
            factor = factor.reshape(-1, *[1] * (x.ndim - 1))
        if factor.ndim == x.ndim:
            canonical[name] = _as_blocks(factor, x.shape, parts)
            continue
        if factor.ndim and factor.shape != (groups,):
            word = name.replace("_zero", ".zero_point").replace("_scale", ".scale")
            raise ValueError(f"{word}: shape is {factor.shape}, must be ({groups},), one for each processed group")
        canonical[name] = jnp.broadcast_to(factor, (math.prod(x.shape[axis] for axis in parts[0]), 1, groups))
    return canonical
