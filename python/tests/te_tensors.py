"""Makes scaled tensors in TransformerEngine's layout. Also returns the float64 matrices that they stand for."""

import dataclasses
import enum
from typing import Any

import ml_dtypes
import numpy as np
from quantized_formats import codes, nearest

E4M3, E5M2, E2M1 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float4_e2m1fn
# {scaling mode: (element type, scale type, shape of a block with one scale)}. The scale type is None if there are no
# scales. The shape is None if a whole group shares one scale.
MODES = {
    "NO_SCALING": (ml_dtypes.bfloat16, None, None),
    "DELAYED_TENSOR_SCALING": (E4M3, np.float32, None),
    "CURRENT_TENSOR_SCALING": (E5M2, np.float32, None),
    "MXFP8_1D_SCALING": (E4M3, ml_dtypes.float8_e8m0fnu, (1, 32)),
    "NVFP4_1D_SCALING": (E2M1, E4M3, (1, 16)),
    "NVFP4_2D_SCALING": (E2M1, E4M3, (16, 16)),
}
ScalingMode = enum.Enum("ScalingMode", [(name, i) for i, name in enumerate(MODES)])

# The last five rows belong to no group.
G, M = 5, 70
SIZES = np.array([5, 0, 37, 3, 20], np.int32)
ROWS = [slice(end - size, end) for end, size in zip(np.cumsum(SIZES), SIZES, strict=True)]


def parts(x):
    return [x[rows] for rows in ROWS]


def close(got, lhs, rhs, out=None, bias=None):
    """Checks that `got` has lhs[g] @ rhs[g] + bias[g] for each group g, and zeros elsewhere.

    out: index of each group's product in `got`. Default: g.
    """
    got = np.float64(got)
    rest = np.ones(got.shape, bool)
    for g, index in enumerate(range(len(lhs)) if out is None else out):
        a, b, c = np.float64(lhs[g]), np.float64(rhs[g]), np.float64(0 if bias is None else bias[g])
        assert (np.abs(got[index] - (a @ b + c)) <= 2e-6 * (np.abs(a) @ np.abs(b) + np.abs(c))).all()
        rest[index] = False
    assert (got[rest] == 0).all()


@dataclasses.dataclass
class Tensor:
    """A stand-in for TransformerEngine's class of scaled tensors, to test that raggemm needs only its attributes."""

    data: Any
    scale_inv: Any
    amax: Any
    first_dims: Any
    last_dims: Any
    scaling_mode: Any
    dq_dtype: Any
    is_colwise: bool
    data_layout: str
    flatten_axis: int
    original_shape: tuple[int, ...]
    pre_swizzled: bool = False


def blocks(n, size):
    return -(-n // size)


def most(n, groups, size):
    """Returns the most blocks of `size` rows that n rows in several groups can need.

    Each group begins a new block.
    """
    return max(k + blocks(n - k, size) for k in range(min(groups - 1, n) + 1)) if n else 0


def elements(random, dtype, shape):
    if dtype == ml_dtypes.bfloat16:
        return random.normal(size=shape).astype(dtype)
    every = codes(np.dtype(dtype).name)
    every = every[np.abs(every.astype(np.float64)) <= 64]  # Excludes NaN and infinity.
    return random.choice(every, shape)


def broadcast_scale(scale, block, shape):
    return scale.repeat(block[0], 0).repeat(block[1], 1)[: shape[0], : shape[1]]


def padded(parts, length, fill, dtype):
    x = np.concatenate([np.zeros(0, dtype), *(np.ravel(part).astype(dtype) for part in parts)])
    return np.concatenate([x, np.full(length - x.size, fill, dtype)])


def matrices(rows, columns, sizes, axis):
    """Returns the shape of each group's matrix.

    sizes: group sizes along the ragged axis `axis`, or a number of groups: then each is rows x columns.
    """
    if np.ndim(sizes) == 0:
        return [(rows, columns)] * sizes
    return [(s, columns) if axis == 0 else (rows, s) for s in sizes.tolist()]


def tensor(mode, layout, is_colwise, rows, columns, sizes, axis=0, seed=0, dtype=None):
    """Returns a random tensor and the float64 matrix of each group. Scales of groups differ by up to about 2^20."""
    random = np.random.default_rng(seed)
    element_dtype, scale_dtype, block = MODES[mode]
    dtype = dtype or element_dtype
    shapes = matrices(rows, columns, sizes, axis)
    groups, transposed = len(shapes), layout == "T"
    magnitudes = 2.0 ** random.permutation(np.linspace(-10, 10, groups)).round() * random.uniform(1, 2, groups)
    block = block[::-1] if block and is_colwise else block
    data, scales, values, amax = [], [], [], None
    if element_dtype == E2M1:
        amax = (magnitudes * 6 * 448).astype(np.float32)
    for g, shape in enumerate(shapes):
        x = elements(random, dtype, shape)
        value = x.astype(np.float64)
        if block:
            scale = np.exp2(random.integers(-3, 4, (blocks(shape[0], block[0]), blocks(shape[1], block[1]))))
            scale = (scale * (1.5 if scale_dtype == E4M3 else 2.0 ** np.round(np.log2(magnitudes[g])))).astype(
                scale_dtype
            )
            value = value * broadcast_scale(scale.astype(np.float64), block, shape)
        if amax is not None:
            value = value * np.float64(np.float32(amax[g] * np.float32(1 / (6 * 448))))
        if scale_dtype and not block:
            scale = np.float32(magnitudes[g])
            value = value * scale
        if scale_dtype:
            scales.append(scale.T if transposed and block else scale)
        data.append(x.T if transposed else x)
        values.append(value)
    lead = () if np.ndim(sizes) else (groups,)
    length = groups if scale_dtype else 0
    if block:
        ragged_axis = axis if np.ndim(sizes) else None
        counts = [
            most(n, groups, b) if i == ragged_axis else blocks(n, b)
            for i, (n, b) in enumerate(zip((rows, columns), block, strict=True))
        ]
        length = int(np.prod((*lead, *counts)))
    dims = [sizes if np.ndim(sizes) and i == axis else None for i in range(2)]
    return Tensor(
        padded(data, int(np.prod((*lead, rows, columns))), 1, dtype),
        padded(scales, length, 1, scale_dtype or np.float32),
        amax, *dims, ScalingMode[mode], np.float32, is_colwise, layout, 1 + len(lead),
        (*lead, columns, rows) if transposed else (*lead, rows, columns),
    ), values  # fmt: skip


def _nearest(x, name):
    """Rounds float32 numbers to elements of a format, ties to even.

    Finite numbers saturate. NaN stays NaN. Infinity stays infinity, or becomes NaN in float8_e4m3fn. float4_e2m1fn has
    neither NaN nor infinity: both become 0.
    """
    out = nearest(np.where(np.isfinite(x), x, 0).astype(np.float64), name).astype(getattr(ml_dtypes, name))
    return out if name == "float4_e2m1fn" else np.where(np.isfinite(x), out, x.astype(out.dtype))


def _scale(absmax, largest, scale_dtype):
    """Returns a block's scale by the rule of raggemm.quantize. absmax: largest magnitude in the block."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        scale = np.float32(absmax) * np.float32(1 / largest)
    if scale_dtype != ml_dtypes.float8_e8m0fnu:
        scale = np.float32(np.minimum(scale, 448).astype(scale_dtype))
        return np.float32(1) if scale == 0 else scale
    if not np.isfinite(scale):
        return np.float32(2.0**127 if np.isinf(scale) else np.nan)
    return np.exp2(np.maximum(np.ceil(np.log2(np.float64(scale))), -127)) if scale else np.float64(2.0**-127)


def quantized(mode, dtype, x, is_colwise, given=None):
    """Quantizes a group's matrix x. Returns (elements, scales, amax, values).

    scales multiply the elements. amax is the largest magnitude of x. values are the dequantized elements in float64.
    given: number that multiplies x, for modes with one scale per group. The scale is the reciprocal of this number.
      Default: computed from amax.
    """
    name, (_, scale_dtype, block) = np.dtype(dtype).name, MODES[mode]
    largest = float(ml_dtypes.finfo(dtype).max)
    amax = np.abs(x).max(initial=0)
    if not block:
        scale = given if given is not None else np.float32(largest) / amax if amax > 0 and np.isfinite(amax) else 1
        data, inverse = _nearest(x * np.float32(scale), name), 1 / np.float32(scale)
        return data, inverse, amax, data.astype(np.float64) * inverse
    block, factor = block[::-1] if is_colwise else block, np.float32(1)
    if scale_dtype == E4M3 and np.isfinite(amax) and amax > 0:
        factor = amax * np.float32(1 / (6 * 448))
    x = x * (1 / factor)
    scale = np.zeros([blocks(n, b) for n, b in zip(x.shape, block, strict=True)])
    for i, j in np.ndindex(scale.shape):
        inside = x[i * block[0] :][: block[0], j * block[1] :][:, : block[1]]
        absmax = np.abs(inside).max()
        scale[i, j] = _scale(absmax if np.isfinite(absmax) or scale_dtype != E4M3 else np.nan, largest, scale_dtype)
    each = broadcast_scale(scale, block, x.shape)
    quotients = x / each if scale_dtype == ml_dtypes.float8_e8m0fnu else x * (1 / each.astype(np.float32))
    data = _nearest(np.where(np.isnan(each) & (name == "float4_e2m1fn"), 0, quotients).astype(np.float32), name)
    return data, scale.astype(scale_dtype), amax, data.astype(np.float64) * each * factor
