"""Factors of quantized operands in JAX: what each element of the operand gets, and the sum over what shares a value.

One of blocks is [P, second axis of the operand or 1, blocks of rows, blocks of columns], any other [P,1|R,G].
"""

import jax
import jax.numpy as jnp

from raggemm._primitive.call import Arguments, Call


def _group_of_rows(sizes: jax.Array, extent: int) -> jax.Array:
    """[P,R,extent]: which group a row, or column, is of; G behind the last."""
    ends = jnp.cumsum(sizes, -1)
    rows = jnp.arange(extent, dtype=ends.dtype)
    return jax.vmap(jax.vmap(lambda x: jnp.searchsorted(x, rows, side="right")))(ends)


def _ragged_axis(call: Call, args: Arguments, side: str) -> tuple[int, jax.Array] | None:
    """The axis of an operand that groups divide, and for each row or column of it which group of the factor."""
    storage, x = call.storages[side], getattr(args, side)
    if storage.per_group or storage.shared:
        return None
    axis = 2 if storage.first is not None else 3
    groups = _group_of_rows(args.sizes(storage.first if axis == 2 else storage.last), x.shape[axis])
    offset = args.optional.get("group_offset")
    return axis, groups if offset is None else groups - offset[..., None].astype(groups.dtype)


def spread(call: Call, args: Arguments, side: str, factor: jax.Array) -> jax.Array:
    """The factor of each element of an operand; broadcasts against it."""
    if factor.ndim == 4:
        shape = getattr(args, side).shape
        for axis in (2, 3):
            if factor.shape[axis] != 1:
                factor = jnp.repeat(factor, shape[axis] // factor.shape[axis], axis)
        return factor
    ragged = _ragged_axis(call, args, side)
    if ragged is None:
        return factor.reshape(*factor.shape[:1], factor.shape[2], 1, 1)
    axis, groups = ragged
    known = (groups >= 0) & (groups < factor.shape[2])
    values = jnp.take_along_axis(
        jnp.broadcast_to(factor, (*groups.shape[:2], factor.shape[2])), jnp.where(known, groups, 0), -1
    )
    return jnp.expand_dims(jnp.where(known, values, 0), 3 if axis == 2 else 2)


def summed(call: Call, args: Arguments, side: str, x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """The sums over the elements of an operand that share a factor of this shape."""
    if len(shape) == 4:
        for axis in (2, 3):
            x = x.reshape(*x.shape[:axis], shape[axis], x.shape[axis] // shape[axis], *x.shape[axis + 1 :]).sum(
                axis + 1
            )
        return x if x.shape[1] == shape[1] else x.sum(1, keepdims=True)
    ragged = _ragged_axis(call, args, side)
    if ragged is None:
        return x.sum((2, 3))[:, None]
    axis, groups = ragged
    rows = x.sum(3 if axis == 2 else 2)
    sums = (jax.nn.one_hot(groups, shape[2], dtype=x.dtype) * rows[..., None]).sum(2)
    return sums if sums.shape[1] == shape[1] else sums.sum(1, keepdims=True)
