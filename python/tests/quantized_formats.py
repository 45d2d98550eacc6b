"""Lists the elements of quantized formats, and rounds to them with NumPy in float64."""

import ml_dtypes
import numpy as np

INTEGERS = {"int8": 8, "uint8": 8, "int4": 4, "uint4": 4, "int2": 2}
FLOATS = {"float8_e4m3fn": 8, "float8_e5m2": 8, "float4_e2m1fn": 4}
UNSIGNED = ("uint8", "uint4")
HAS_NAN = ("float8_e4m3fn", "float8_e5m2")
SCALES = ("float32", "bfloat16", "float16", "float8_e8m0fnu", "float8_e4m3fn")
E8M0, E4M3 = ml_dtypes.float8_e8m0fnu, ml_dtypes.float8_e4m3fn
TINY = 2.0**-126


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def codes(name):
    if name in INTEGERS:
        info = ml_dtypes.iinfo(dtype_of(name))
        return np.arange(info.min, info.max + 1).astype(dtype_of(name))
    return np.arange(2 ** FLOATS[name], dtype=np.uint8).view(dtype_of(name))


def magnitudes(name):
    """Returns the finite nonnegative values of a format, ascending. Values at even indices have even mantissas."""
    values = codes(name).astype(np.float64)
    return np.unique(values[np.isfinite(values) & ~np.signbit(values)])


def nearest(quotients, name):
    """Rounds numbers to the nearest values of a format, ties to even.

    Numbers out of its range become its largest value, with their sign.
    """
    values, x = magnitudes(name), np.abs(quotients)
    ties = (values[1:] + values[:-1]) / 2
    index = np.searchsorted(ties, x)
    is_odd_tie = (x == np.append(ties, np.inf)[index]) & (index % 2 == 1)
    return np.copysign(values[index + is_odd_tie], quotients)


def broadcast_blocks(values, shape):
    """Returns an array of this shape, in which each element has the value of its block."""
    values = np.asarray(values)
    values = values.reshape(values.shape + (1,) * (len(shape) - values.ndim))
    for axis, extent in enumerate(shape):
        values = values.repeat(extent // values.shape[axis], axis)
    return values


def reduce_blocks(reduce, x, counts):
    """Reduces each block of x to one value by `reduce`, such as np.max.

    counts: number of blocks along each axis of x.
    """
    pairs = [part for n, count in zip(x.shape, counts, strict=True) for part in (count, n // count)]
    return reduce(x.reshape(pairs), axis=tuple(range(1, 2 * x.ndim, 2)))


def flush_subnormals(exact):
    """Converts float64 to float32. Subnormal results become zero, like in XLA on CPU."""
    with np.errstate(over="ignore"):
        return np.where(np.abs(exact) < TINY, 0, exact).astype(np.float32)
