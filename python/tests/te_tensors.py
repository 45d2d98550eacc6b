"""Tensors as TransformerEngine's, made by NumPy one group at a time, with the matrices that they stand for."""

import dataclasses
import enum
from typing import Any

import ml_dtypes
import numpy as np
from quantized_formats import codes

E4M3, E5M2, E2M1 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float4_e2m1fn
# The elements, the scales, and the rows and columns that share one.
MODES = {
    "NO_SCALING": (ml_dtypes.bfloat16, None, None),
    "DELAYED_TENSOR_SCALING": (E4M3, np.float32, None),
    "CURRENT_TENSOR_SCALING": (E5M2, np.float32, None),
    "MXFP8_1D_SCALING": (E4M3, ml_dtypes.float8_e8m0fnu, (1, 32)),
    "NVFP4_1D_SCALING": (E2M1, E4M3, (1, 16)),
    "NVFP4_2D_SCALING": (E2M1, E4M3, (16, 16)),
}
ScalingMode = enum.Enum("ScalingMode", [(name, i) for i, name in enumerate(MODES)])


@dataclasses.dataclass
class Tensor:
    """Looks like TransformerEngine's class, and is another one than raggemm's."""

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
    """Blocks of sizes that sum up to n at most, by trying: one group has all that the others' single rows leave."""
    return max(k + blocks(n - k, size) for k in range(min(groups - 1, n) + 1)) if n else 0


def elements(random, dtype, shape):
    if dtype == ml_dtypes.bfloat16:
        return random.normal(size=shape).astype(dtype)
    every = codes(np.dtype(dtype).name)
    every = every[np.abs(every.astype(np.float64)) <= 64]  # no NaN, no infinity
    return random.choice(every, shape)


def spread(scale, block, shape):
    return scale.repeat(block[0], 0).repeat(block[1], 1)[: shape[0], : shape[1]]


def padded(parts, length, fill, dtype):
    """All parts one after the other, and garbage behind them."""
    x = np.concatenate([np.zeros(0, dtype), *(np.ravel(part).astype(dtype) for part in parts)])
    return np.concatenate([x, np.full(length - x.size, fill, dtype)])


def matrices(rows, columns, sizes, axis):
    """The shapes of the groups' matrices; `sizes` divide this axis, or there are so many whole ones."""
    if np.ndim(sizes) == 0:
        return [(rows, columns)] * sizes
    return [(s, columns) if axis == 0 else (rows, s) for s in sizes.tolist()]


def tensor(mode, layout, is_colwise, rows, columns, sizes, axis=0, seed=0, dtype=None):
    """A tensor, and the matrix of each group in float64. Scales of groups differ by up to 2^20."""
    random = np.random.default_rng(seed)
    of_elements, of_scales, block = MODES[mode]
    dtype = dtype or of_elements
    shapes = matrices(rows, columns, sizes, axis)
    groups, transposed = len(shapes), layout == "T"
    magnitudes = 2.0 ** random.permutation(np.linspace(-10, 10, groups)).round() * random.uniform(1, 2, groups)
    block = block[::-1] if block and is_colwise else block
    data, scales, values, amax = [], [], [], None
    if of_elements == E2M1:
        amax = (magnitudes * 6 * 448).astype(np.float32)
    for g, shape in enumerate(shapes):
        x = elements(random, dtype, shape)
        value = x.astype(np.float64)
        if block:
            scale = np.exp2(random.integers(-3, 4, (blocks(shape[0], block[0]), blocks(shape[1], block[1]))))
            scale = (scale * (1.5 if of_scales == E4M3 else 2.0 ** np.round(np.log2(magnitudes[g])))).astype(of_scales)
            value = value * spread(scale.astype(np.float64), block, shape)
        if amax is not None:
            value = value * np.float64(np.float32(amax[g] * np.float32(1 / (6 * 448))))
        if of_scales and not block:
            scale = np.float32(magnitudes[g])
            value = value * scale
        if of_scales:
            scales.append(scale.T if transposed and block else scale)
        data.append(x.T if transposed else x)
        values.append(value)
    lead = () if np.ndim(sizes) else (groups,)
    length = groups if of_scales else 0
    if block:
        divided = axis if np.ndim(sizes) else None
        counts = [most(n, groups, b) if i == divided else blocks(n, b) for i, (n, b) in enumerate(zip((rows, columns), block, strict=True))]
        length = int(np.prod((*lead, *counts)))
    dims = [sizes if np.ndim(sizes) and i == axis else None for i in range(2)]
    return Tensor(
        padded(data, int(np.prod((*lead, rows, columns))), 1, dtype),
        padded(scales, length, 1, of_scales or np.float32),
        amax, *dims, ScalingMode[mode], np.float32, is_colwise, layout, 1 + len(lead),
        (*lead, columns, rows) if transposed else (*lead, rows, columns),
    ), values  # fmt: skip
