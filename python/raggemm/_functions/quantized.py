"""Quantized operands: elements of 8, 4 or 2 bits, with scales and zero points that blocks of them share.

QuantizedTensor (tensors.py) says what they stand for, and dequantize computes it; quantize.py makes them. Plain JAX:
XLA on CPU takes subnormal float32 for 0, and so does all that is computed here.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from raggemm._functions.inside_groups import inside_groups
from raggemm._functions.operands import integer_array
from raggemm._functions.tensors import QuantizedTensor, check_type, checked, dtype_of, float_array
from raggemm._primitive import jax_versions
from raggemm._primitive.call import FLOATS, QUANTIZED, SCALES

E2M1, E8M0 = np.dtype(ml_dtypes.float4_e2m1fn), np.dtype(ml_dtypes.float8_e8m0fnu)


def by_blocks(op: Callable[[jax.Array, jax.Array], jax.Array], x: jax.Array, values: jax.Array) -> jax.Array:
    """op of each element and its block's value: those of one rank, or (), or for axis 0 alone."""
    values = values.reshape(values.shape + (1,) * (x.ndim - values.ndim))
    x, values = with_blocks(x, values.shape), with_blocks(values, x.shape)
    ones = itertools.chain.from_iterable((count, 1) for count in values.shape)
    return op(x.reshape(split(x.shape, values.shape)), values.reshape(tuple(ones))).reshape(x.shape)


def with_blocks(x: jax.Array, counts: Sequence[int]) -> jax.Array:
    """x, gathered where blocks lie along an axis: one that a mesh with explicit axes divides cannot always be split."""
    blocks = any(count != extent and 1 not in (count, extent) for count, extent in zip(counts, x.shape, strict=True))
    return jax_versions.gathered(x) if blocks else x


def split(shape: Sequence[int], counts: Sequence[int]) -> tuple[int, ...]:
    """The shape with two axes for each: that of the blocks, and that inside them."""
    pairs = ((count, extent // max(count, 1)) for extent, count in zip(shape, counts, strict=True))
    return tuple(itertools.chain.from_iterable(pairs))


def _times_power(x: jax.Array, code: jax.Array, sign: int) -> jax.Array:
    """x * 2^(sign * (code - 127)), exact while it is normal: in two factors, for 2^-127 is subnormal. 255 is NaN."""
    n = sign * (code.astype(jnp.int32) - 127)
    for part in (n >> 1, n - (n >> 1)):
        factor = lax.bitcast_convert_type((part + 127) << 23, jnp.float32)
        x = by_blocks(jnp.multiply, x, jnp.where(code == 255, jnp.nan, factor))
    return x


def times(x: jax.Array, scale: jax.Array) -> jax.Array:
    if scale.dtype == E8M0:
        return _times_power(x, lax.bitcast_convert_type(scale, jnp.uint8), 1)
    return by_blocks(jnp.multiply, x, scale.astype(jnp.float32))


def over(x: jax.Array, scale: jax.Array) -> jax.Array:
    """x times 1 / scale, which XLA makes of most quotients by a broadcast: so all programs have the same bits."""
    if scale.dtype == E8M0:
        return _times_power(x, lax.bitcast_convert_type(scale, jnp.uint8), -1)
    return by_blocks(jnp.multiply, x, 1 / scale.astype(jnp.float32))


def dequantize(q: QuantizedTensor, dtype: Any = jnp.float32, *, group_sizes: Any = None) -> jax.Array:
    """(data - zero_point) * scale in float32, then rounded to dtype.

    Args:
      q: a QuantizedTensor, or a QArray of qwix; TypeError or ValueError where its parts do not go together.
      dtype: of the result, float16, bfloat16, float32 or float64.
      group_sizes: [G], int32, int64 or uint32, the rows of each group of data [M,K], whose scale or zero_point of [G]
        needs them (else ValueError). Rows behind their sum are 0. A negative size, or a sum above M, is an error when
        the call has run, as everywhere.

    Returns:
      As data's shape. Of a scale that is not float8_e8m0fnu it has a derivative.
    """
    q, dtype = checked("q", q), dtype_of("dtype", dtype)
    check_type("dtype", dtype, FLOATS)
    if group_sizes is not None:
        group_sizes = integer_array("group_sizes", group_sizes)
        if q.ndim != 2 or group_sizes.ndim != 1:
            raise ValueError(f"group_sizes: shape is {group_sizes.shape} with data {q.shape}, must be [G] with [M,K]")
    for name, x in (("scale", q.scale), ("zero_point", q.zero_point)):
        if x is not None and q.ndim == 2 and x.ndim == 1:
            if group_sizes is None:
                raise ValueError(f"q.{name}: shape {x.shape} is one for each group of rows, which needs group_sizes")
            if x.shape != group_sizes.shape:
                raise ValueError(f"q.{name}: shape is {x.shape}, must be {group_sizes.shape} as group_sizes")
    return _dequantized(q, group_sizes, dtype)


@functools.partial(jax.jit, static_argnums=2)
def _dequantized(q: QuantizedTensor, group_sizes: jax.Array | None, dtype: np.dtype) -> jax.Array:
    scale, zero_point = q.scale, q.zero_point
    out = q.data.astype(jnp.float32)
    if group_sizes is not None:
        inside = inside_groups(q.shape[0], group_sizes)[:, None]
        ends = jnp.cumsum(group_sizes)
        group = jnp.searchsorted(ends, jnp.arange(q.shape[0], dtype=ends.dtype), side="right")
        scale, zero_point = (
            x.at[group].get(mode="clip") if x is not None and x.ndim == 1 else x for x in (scale, zero_point)
        )
    if zero_point is not None:
        out = by_blocks(jnp.subtract, out, zero_point.astype(jnp.float32))
    if scale is not None:
        out = times(out, scale)
    if group_sizes is not None:
        out = jnp.where(inside == 1, out, inside)  # NaN where a size is wrong and nothing raises
    return out.astype(dtype)


def with_scale(rhs: Any, rhs_scale: Any, *, transposed: bool) -> Any:
    """rhs [G,K,N], or transposed [G,N,K], times rhs_scale [G,blocks,1,N] or [G,blocks,N], with errors in these words:
    a QuantizedTensor, or an array in rhs' own type where that is of floats."""
    rhs, scale = float_array("rhs", rhs, (*FLOATS, *QUANTIZED)), float_array("rhs_scale", rhs_scale, SCALES)
    if rhs.ndim != 3:
        raise ValueError(f"rhs: shape is {rhs.shape}, must have 3 axes")
    groups, k, n = (rhs.shape[axis] for axis in ((0, 2, 1) if transposed else (0, 1, 2)))
    three = scale.reshape(*scale.shape[:2], scale.shape[3]) if scale.ndim == 4 and scale.shape[2] == 1 else scale
    blocks = three.shape[1] if three.ndim == 3 else 0
    if three.shape != (groups, blocks, n) or not blocks or k % blocks:
        raise ValueError(
            f"rhs_scale: shape is {scale.shape}, must be ({groups}, blocks, 1, {n}) with blocks that divide {k}"
        )
    three = three.swapaxes(1, 2) if transposed else three
    return by_blocks(jnp.multiply, rhs, three.astype(rhs.dtype)) if rhs.dtype in FLOATS else QuantizedTensor(rhs, three)
