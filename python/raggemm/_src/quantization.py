"""Quantization and dequantization of arrays, in JAX.

Like XLA on CPU, these functions flush subnormal float32 to 0. Only the choice of float8_e8m0fnu scales distinguishes
subnormals from 0.
"""

import functools
import itertools
import numbers
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from raggemm._src import checks, versions
from raggemm._src.dtypes import E2M1, E8M0, FLOATS, INTEGER_ELEMENTS, QUANTIZED, SCALES, format_dtypes
from raggemm._src.grouped_gemm import mask_grouped_rows
from raggemm._src.tensors import QuantizedTensor, as_bits, refine_blocks


def apply_blockwise(op: Callable[[jax.Array, jax.Array], jax.Array], x: jax.Array, values: jax.Array) -> jax.Array:
    """Applies op to each element of x and the value of its block.

    values: one value per block, with as many axes as x; or one value per index of axis 0; or one value, ().
    """
    values = values.reshape(values.shape + (1,) * (x.ndim - values.ndim))
    x, values = gather_blocked_axes(x, values.shape), gather_blocked_axes(values, x.shape)
    ones = itertools.chain.from_iterable((count, 1) for count in values.shape)
    return op(x.reshape(split_blocks(x.shape, values.shape)), values.reshape(tuple(ones))).reshape(x.shape)


def gather_blocked_axes(x: jax.Array, counts: Sequence[int]) -> jax.Array:
    """Replicates x over its explicit mesh if an axis has several blocks of several elements.

    The caller splits such an axis. JAX cannot always do this if an explicit mesh divides the axis. counts: number of
    blocks along each axis.
    """
    blocks = any(count != extent and 1 not in (count, extent) for count, extent in zip(counts, x.shape, strict=True))
    return versions.replicate_explicit_axes(x) if blocks else x


def split_blocks(shape: Sequence[int], counts: Sequence[int]) -> tuple[int, ...]:
    pairs = ((count, extent // max(count, 1)) for extent, count in zip(shape, counts, strict=True))
    return tuple(itertools.chain.from_iterable(pairs))


def _multiply_by_power(x: jax.Array, code: jax.Array, sign: int) -> jax.Array:
    """Returns x * 2^(sign * (code - 127)), or NaN if code is 255.

    code: the bits of the float8_e8m0fnu scale of each block. Multiplies in two steps, because 2^-127 is subnormal.
    """
    n = sign * (code.astype(jnp.int32) - 127)
    for part in (n >> 1, n - (n >> 1)):
        power = lax.bitcast_convert_type((part + 127) << 23, jnp.float32)
        x = apply_blockwise(jnp.multiply, x, jnp.where(code == 255, jnp.nan, power))
    return x


def multiply_by_scale(x: jax.Array, scale: jax.Array) -> jax.Array:
    if scale.dtype == E8M0:
        return _multiply_by_power(x, lax.bitcast_convert_type(scale, jnp.uint8), 1)
    return apply_blockwise(jnp.multiply, x, scale.astype(jnp.float32))


def divide_by_scale(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Returns x * (1 / scale). XLA rewrites only most quotients x / scale like this, so their bits could vary."""
    if scale.dtype == E8M0:
        return _multiply_by_power(x, lax.bitcast_convert_type(scale, jnp.uint8), -1)
    return apply_blockwise(jnp.multiply, x, 1 / scale.astype(jnp.float32))


def dequantize(q: QuantizedTensor, dtype: Any = jnp.float32, *, group_sizes: Any = None) -> jax.Array:
    """Computes (data - zero_point) * scale in float32, and rounds it to dtype.

    Args:
      q: a QuantizedTensor, or a QArray of qwix. TypeError or ValueError if its fields do not fit together.
      dtype: dtype of the result: float16, bfloat16, float32 or float64.
      group_sizes: [G], int32, int64 or uint32: rows of each group of data [M,K]. Required for a scale or zero_point [G]
        (else ValueError). Rows behind the sum of the sizes become 0. A negative size, or a sum above M, is an error at
        run time.

    Returns:
      An array with the shape of data, differentiable in the scale unless that is float8_e8m0fnu.
    """
    q, dtype = checks.as_quantized_tensor("q", q), checks.as_dtype("dtype", dtype, FLOATS)
    if group_sizes is not None:
        group_sizes = checks.as_integer_array("group_sizes", group_sizes)
        if q.ndim != 2 or group_sizes.ndim != 1:
            raise ValueError(f"group_sizes: shape is {group_sizes.shape} with data {q.shape}, must be [G] with [M,K]")
    for name, x in (("scale", q.scale), ("zero_point", q.zero_point)):
        if x is not None and q.ndim == 2 and x.ndim == 1:
            if group_sizes is None:
                raise ValueError(f"q.{name}: shape is {x.shape}, one for each group of rows, which needs group_sizes")
            if x.shape != group_sizes.shape:
                raise ValueError(f"q.{name}: shape is {x.shape}, must be {group_sizes.shape}, the shape of group_sizes")
    return _dequantize(q, group_sizes, dtype)


@functools.partial(jax.jit, static_argnums=2)
def _dequantize(q: QuantizedTensor, group_sizes: jax.Array | None, dtype: np.dtype) -> jax.Array:
    scale, zero_point = q.scale, q.zero_point
    out = q.data.astype(jnp.float32)
    if group_sizes is not None:
        inside = mask_grouped_rows(q.shape[0], group_sizes)[:, None]
        ends = jnp.cumsum(group_sizes)
        group = jnp.searchsorted(ends, jnp.arange(q.shape[0], dtype=ends.dtype), side="right")
        scale, zero_point = (
            x.at[group].get(mode="clip") if x is not None and x.ndim == 1 else x for x in (scale, zero_point)
        )
    if zero_point is not None:
        out = apply_blockwise(jnp.subtract, out, zero_point.astype(jnp.float32))
    if scale is not None:
        out = multiply_by_scale(out, scale)
    if group_sizes is not None:
        out = jnp.where(inside == 1, out, inside)  # `inside` is NaN if a size is wrong and on_error is "nan"
    return out.astype(dtype)


def attach_scale(rhs: Any, rhs_scale: Any, *, transposed: bool) -> Any:
    """Returns a QuantizedTensor of rhs and rhs_scale. If rhs is of floats, returns rhs * rhs_scale in the dtype of rhs.

    rhs: [G,K,N], or [G,N,K] if transposed. rhs_scale: [G,blocks,1,N] or [G,blocks,N], one scale per column and block
    of K.
    """
    rhs, scale = (
        checks.as_float_array("rhs", rhs, (*FLOATS, *QUANTIZED)),
        checks.as_float_array("rhs_scale", rhs_scale, SCALES),
    )
    if rhs.ndim != 3:
        raise ValueError(f"rhs: shape is {rhs.shape}, must have 3 axes")
    groups, k, n = (rhs.shape[axis] for axis in ((0, 2, 1) if transposed else (0, 1, 2)))
    three = scale.reshape(*scale.shape[:2], scale.shape[3]) if scale.ndim == 4 and scale.shape[2] == 1 else scale
    blocks = three.shape[1] if three.ndim == 3 else 0
    if three.shape != (groups, blocks, n) or not blocks or k % blocks:
        raise ValueError(
            f"rhs_scale: shape is {scale.shape}, must be ({groups}, blocks, 1, {n}), and blocks must divide {k}"
        )
    three = three.swapaxes(1, 2) if transposed else three
    return (
        apply_blockwise(jnp.multiply, rhs, three.astype(rhs.dtype))
        if rhs.dtype in FLOATS
        else QuantizedTensor(rhs, three)
    )


E4M3, E5M2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)


class QuantSpec(NamedTuple):
    dtype: np.dtype
    scale_dtype: np.dtype
    asymmetric: bool  # True: with zero points
    counts: tuple[int, ...]  # number of scales along each axis
    bound: float | None  # largest magnitude, in place of absmax; None: absmax of the data

    @property
    def has_nan(self) -> bool:
        return self.dtype in (E4M3, E5M2)

    @property
    def limits(self) -> tuple[float, float]:
        if self.dtype not in INTEGER_ELEMENTS:
            return -float(ml_dtypes.finfo(self.dtype).max), float(ml_dtypes.finfo(self.dtype).max)
        info = ml_dtypes.iinfo(self.dtype)
        return float(info.min if self.asymmetric else -info.max), float(info.max)


def _as_bits(x: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(x, jnp.int32)


def _power_of_two_scale(absmax: jax.Array, largest: float) -> jax.Array:
    """Returns the smallest power of two from 2^-127 to 2^127 that is at least absmax * (1 / largest).

    The result is float8_e8m0fnu, and NaN for NaN. XLA flushes subnormal products to 0. So an absmax below 2^-63 is
    first multiplied by 2^64. A subnormal absmax is read from its bits.
    """
    bits = _as_bits(absmax)
    lift = jnp.where(bits < 64 << 23, 64, 0)
    subnormal = bits < 1 << 23
    lifted = jnp.where(subnormal, bits.astype(jnp.float32) * np.float32(2**-85), absmax * np.float32(2**64))
    product = _as_bits(jnp.where(lift > 0, lifted, absmax) * np.float32(1 / largest))
    exponent = (product >> 23) - lift
    # Exponent 0 means [2^-127, 2^-126). Without the factor 2^64, these products would be subnormal, with one fraction
    # bit less. Then 2^-127 * (1 + 2^-23) would round to 2^-127. So a fraction of 1 does not count as above 2^-127.
    is_above = (product & 0x7FFFFF) > (exponent == 0).astype(jnp.int32)
    code = jnp.clip(exponent + is_above.astype(jnp.int32), 0, 0xFE)
    return lax.bitcast_convert_type(jnp.where(bits > 255 << 23, 0xFF, code).astype(jnp.uint8), E8M0)


def compute_scale(absmax: jax.Array, largest: float, dtype: np.dtype) -> jax.Array:
    """Returns absmax * (1 / largest) in dtype, within the limits of scales that `quantize` describes. NaN stays NaN."""
    if dtype == E8M0:
        return _power_of_two_scale(absmax, largest)
    # Scales are at most 2^126, because the reciprocal of a larger scale is subnormal, and XLA flushes it to 0.
    scale = jnp.minimum(absmax * np.float32(1 / largest), min(float(ml_dtypes.finfo(dtype).max), 2.0**126))
    scale = scale.astype(dtype).astype(jnp.float32)
    return jnp.where(scale < float(jnp.finfo(jnp.float32).tiny), 1, scale).astype(dtype)


def magnitude_bits(x: jax.Array) -> jax.Array:
    """Returns the bits of abs(x) for float32 x. The bits compare exactly. XLA compares subnormal floats as equal."""
    return _as_bits(x) & 0x7FFFFFFF


def round_to_elements(values: jax.Array, x: jax.Array, spec: QuantSpec) -> jax.Array:
    """Rounds values to the nearest elements of spec.dtype. values: x divided by its scales, plus zero points if any.

    An infinite element of x stays infinite in float8_e5m2, and becomes NaN in float8_e4m3fn. In types without NaN,
    infinity becomes the largest or the smallest number, and NaN becomes 0.
    """
    values = jnp.clip(values, *spec.limits)
    values = jnp.where(jnp.isinf(x), x, values) if spec.has_nan else jnp.where(jnp.isnan(values), 0, values)
    return values.astype(spec.dtype)


@functools.partial(jax.jit, static_argnums=1)
def quantize_blocks(x: jax.Array, spec: QuantSpec) -> QuantizedTensor:
    low, high = spec.limits
    blocks = x.reshape(split_blocks(x.shape, spec.counts))
    inside = tuple(range(1, blocks.ndim, 2))
    least = jnp.min(blocks, axis=inside, initial=0)
    if spec.asymmetric:
        absmax = 0.5 * jnp.max(blocks, axis=inside, initial=0) - 0.5 * least
    else:
        absmax = lax.bitcast_convert_type(jnp.max(magnitude_bits(blocks), axis=inside, initial=0), jnp.float32)
    finite = jnp.isfinite(absmax)
    if spec.bound is not None:
        least, absmax = jnp.full_like(least, -spec.bound), jnp.full_like(absmax, spec.bound)
    if not spec.has_nan:
        absmax = jnp.where(finite, absmax, jnp.nan)
    elif spec.bound is None and spec.scale_dtype != E8M0:
        absmax = jnp.where(finite, absmax, 0)  # an absmax of 0 gives a scale of 1
    scale = compute_scale(absmax, (high - low) / 2, spec.scale_dtype)
    values, zero_point = divide_by_scale(x, scale), None
    if spec.dtype in INTEGER_ELEMENTS:
        values = jnp.rint(values)
    if spec.asymmetric:
        zero = jnp.clip(jnp.rint(low - divide_by_scale(least, scale)), low, high)
        zero = jnp.where(jnp.isnan(zero), 0, zero)
        values, zero_point = apply_blockwise(jnp.add, values, zero), zero.astype(spec.dtype)
    return QuantizedTensor(round_to_elements(values, x, spec), scale, zero_point)


def _as_float32(name: str, x: Any) -> jax.Array:
    return lax.stop_gradient(checks.as_float_array(name, x).astype(jnp.float32))


def _check_axis(name: str, axis: Any, shape: tuple[int, ...]) -> int:
    if not -len(shape) <= (axis := checks.check_integer(name, axis)) < len(shape):
        raise ValueError(f"{name}: axis {axis} is out of range for shape {shape}")
    return axis % len(shape)


def _check_is_pair(block: Any, name: str = "block") -> None:
    if not isinstance(block, tuple | list) or len(block) != 2:
        raise TypeError(f"{name} is {block!r}, must be (axis, size)")


def _as_pairs(block: Any) -> list[tuple[str, Any]]:
    """Returns the pairs (axis, size) of the argument block, each with its name for errors."""
    if isinstance(block, tuple | list) and block and isinstance(block[0], tuple | list):
        return [(f"block[{i}]", pair) for i, pair in enumerate(block)]
    return [] if block is None else [("block", block)]


def _split_axes(shape: tuple[int, ...], axes: Any, block: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the number of scales along each axis, and the number of elements that share one."""
    counts, sizes = list(shape), [1] * len(shape)
    for axis in axes if isinstance(axes, tuple | list | range) else () if axes is None else (axes,):
        checked = _check_axis("axes", axis, shape)
        counts[checked], sizes[checked] = 1, shape[checked]
    for name, pair in _as_pairs(block):
        _check_is_pair(pair, name)
        axis = _check_axis(f"{name}[0]", pair[0], shape)
        size, extent = checks.check_integer(f"{name}[1]", pair[1]), shape[axis]
        if size < 1:
            raise ValueError(f"{name}: size is {size}, must be positive")
        if counts[axis] != extent:
            raise ValueError(f"{name}: axis {axis} of {shape} is also in axes {axes}, or twice in block")
        sizes[axis] = min(size, max(extent, 1))
        counts[axis] = -(-extent // sizes[axis])
    return tuple(counts), tuple(sizes)


def _quantize_partial_blocks(x: jax.Array, spec: QuantSpec, sizes: tuple[int, ...]) -> QuantizedTensor:
    """Quantizes x like quantize_blocks, also if the last block of an axis is partial. Zeros fill such blocks."""
    padding = [(0, count * size - extent) for count, size, extent in zip(spec.counts, sizes, x.shape, strict=True)]
    if not any(after for _, after in padding):
        return quantize_blocks(gather_blocked_axes(x, spec.counts), spec)
    q = quantize_blocks(jnp.pad(versions.replicate_explicit_axes(x), padding), spec)
    bits = as_bits(q.data)[tuple(slice(extent) for extent in x.shape)]
    data = bits if bits.dtype == spec.dtype else lax.bitcast_convert_type(bits, spec.dtype)
    scale, zero = (y if y is None else refine_blocks(y, x.shape, sizes) for y in (q.scale, q.zero_point))
    return QuantizedTensor(data, scale, zero)


def quantize(
    x: Any,
    dtype: Any,
    *,
    axes: int | Sequence[int] | None = None,
    block: tuple[int, int] | Sequence[tuple[int, int]] | None = None,
    scale_dtype: Any = jnp.float32,
    zero_point: bool = False,
    bound: float | None = None,
) -> QuantizedTensor:
    """Quantizes x to elements of dtype with scales. Elements are rounded to nearest, ties to even, and saturate.

    Symmetric: element = x / scale, with scale = absmax * (1 / largest), computed in float32 and rounded to scale_dtype.
    absmax is the maximum of abs(x) over the elements that share the scale.

        dtype    int8  int4  int2  float8_e4m3fn  float8_e5m2  float4_e2m1fn
        largest  127   7     1     448            57344        6

    A scale of 0 or below 2^-126 becomes 1. Scales are limited to 2^126 and to the maximum of scale_dtype. Elements
    saturate at this limit. x / scale is computed in float32 as x * (1 / scale), with the rounded scale. For scale_dtype
    float8_e8m0fnu, scale is the smallest power of two, from 2^-127 on, that is at least absmax * (1 / largest).
    scale_dtype float8_e4m3fn is for quantize_nvfp4.

    Asymmetric (uint8, uint4, and other integers with zero_point): low is min(x, 0), high is max(x, 0), scale is
    (high - low) / (2^bits - 1), zero_point is round(minimum of dtype - low / scale), and element is
    round(x / scale) + zero_point.

    NaN and infinity never become finite. float8_e5m2 keeps both. In float8_e4m3fn both are NaN. In these two types the
    scale is then 1, or that of the bound. A float8_e8m0fnu scale is 2^127 for an infinity and NaN for a NaN. Other
    dtypes get a scale of NaN and elements of 0, so that all elements with this scale are NaN.

    There is no derivative. See fake_quantize.

    Args:
      x: float16, bfloat16, float32 or float64. float64 is rounded to float32 first.
      dtype: dtype of the elements: int8, uint8, int4, uint4, int2, float8_e4m3fn, float8_e5m2 or float4_e2m1fn.
      axes: axes along which elements share a scale. The scale has extent 1 there. The default for x with three axes,
        such as weights [G,K,N], is 1: one scale per group and column. Weights stored as [G,N,K] need axes=2. Any other
        x needs axes, block or bound (else ValueError). With bound alone, x has one scale, of shape ().
      block: (axis, size): `size` elements along `axis` share a scale. axis must not be in axes. Several such pairs make
        blocks of several axes: ((-2, 128), (-1, 128)) are the blocks of DeepSeek-V3, which fp8_from_blocks reads. If
        size does not divide the extent, the last block is shorter, and the result repeats scales for blocks of
        gcd(size, extent) elements.
      scale_dtype: float32, bfloat16, float16, float8_e8m0fnu or float8_e4m3fn.
      zero_point: True for an integer dtype with a zero point.
      bound: a positive number that replaces absmax, for a range from -bound to bound. Values beyond it saturate.

    Raises:
      ValueError: for wrong axes, block or bound.
      TypeError: for a wrong dtype.
    """
    x, dtype = _as_float32("x", x), checks.as_dtype("dtype", dtype, QUANTIZED)
    scale_dtype = checks.as_dtype("scale_dtype", scale_dtype, SCALES)
    if checks.check_bool("zero_point", zero_point) and dtype not in INTEGER_ELEMENTS:
        raise TypeError(f"zero_point: dtype is {dtype}, must be {format_dtypes(INTEGER_ELEMENTS)}")
    if bound is not None and not isinstance(bound, numbers.Real):
        raise TypeError(f"bound is a {type(bound).__name__}, must be a number of Python or NumPy")
    if bound is not None and not 0 < bound <= float(jnp.finfo(jnp.float32).max):
        raise ValueError(f"bound is {bound}, must be positive, and finite in float32")
    default = axes is None and block is None
    if default and bound is None and x.ndim != 3:
        raise ValueError(
            f"axes: must be given for x of shape {x.shape}, which is not [G,K,N]: the axes along which elements share "
            f"a scale, such as {tuple(range(x.ndim))} for one scale"
        )
    one = default and bound is not None
    counts, sizes = _split_axes(x.shape, range(x.ndim) if one else 1 if default else axes, block)
    asymmetric = bool(zero_point) or dtype in map(np.dtype, (np.uint8, ml_dtypes.uint4))
    spec = QuantSpec(dtype, scale_dtype, asymmetric, counts, None if bound is None else float(bound))
    out = _quantize_partial_blocks(x, spec, sizes)
    return QuantizedTensor(out.data, *jax.tree.map(lambda s: s.reshape(()) if one else s, (out.scale, out.zero_point)))


def quantize_nvfp4(x: Any, *, block: tuple[int, int]) -> tuple[QuantizedTensor, jax.Array]:
    """Quantizes x to NVFP4: float4_e2m1fn with one float8_e4m3fn scale per block, and one float32 scale for all of x.

    The float32 scale is max(abs(x)) * (1 / (6 * 448)), or 1 if that is 0 or not finite. quantize is applied to
    x * (1 / scale), so x is about dequantize(q) * scale. Multiply products of q by scale, too.

    Args:
      x: an array, as for quantize. It gets no derivative.
      block: (axis, size). TransformerEngine's blocks are (1, 16), along the contracted axis of [G,K,N].

    Returns:
      (q, scale): the QuantizedTensor, and the float32 of shape ().
    """
    x = _as_float32("x", x)
    _check_is_pair(block)
    absmax = jnp.max(jnp.abs(x), initial=0)
    scale = compute_scale(jnp.where(jnp.isfinite(absmax), absmax, 0), 6 * 448, np.dtype(np.float32))
    return quantize(x * (1 / scale), E2M1, block=block, scale_dtype=E4M3), scale


@jax.custom_jvp
def _replace_tangent(value: jax.Array, x: jax.Array) -> jax.Array:
    del x
    return value


@_replace_tangent.defjvp
def _tangent(primals: tuple[jax.Array, jax.Array], tangents: tuple[Any, Any]) -> tuple[jax.Array, Any]:
    return _replace_tangent(*primals), tangents[1]  # calls _replace_tangent again, so that higher derivatives exist


def fake_quantize(x: Any, dtype: Any, *, bound: float | None = None, **options: Any) -> jax.Array:
    """Computes dequantize(quantize(x, dtype, bound=bound, **options)) in x's dtype, with a straight-through derivative.

    The tangent is that of x. With a bound it is 0 for elements with abs(x) > bound.

    Args:
      x: an array, as for quantize.
      dtype, bound, options: arguments of quantize, with the same defaults.

    Returns:
      An array with the shape and dtype of x.
    """
    x = checks.as_float_array("x", x)
    value = dequantize(quantize(x, dtype, bound=bound, **options), x.dtype)
    value = versions.reshard_like(value, jax.typeof(x))
    return _replace_tangent(
        value, x if bound is None else jnp.where(jnp.abs(x) > float(bound), lax.stop_gradient(x), x)
    )
