"""Makes random QuantizedTensors, and compares results with products of their float64 values."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import oracle
import quantized_formats
from raggemm import GroupedTensor, QuantizedTensor


def codes(dtype, shape, seed=0):
    random = np.random.default_rng(seed)
    if jnp.issubdtype(dtype, jnp.integer):
        info = ml_dtypes.iinfo(dtype)
        return random.integers(info.min, info.max + 1, shape).astype(dtype)
    return random.uniform(-4, 4, shape).astype(dtype)


def scales(shape, dtype=np.float32, seed=1):
    random = np.random.default_rng(seed)
    exact = 2.0 ** random.integers(-6, 7, shape)
    return (exact if dtype == ml_dtypes.float8_e8m0fnu else exact * random.uniform(1, 2, shape)).astype(dtype)


def tensor(dtype, shape, scale_shape, scale_dtype=np.float32, zero=False):
    zero_point = codes(dtype, scale_shape, 2) if zero else None
    return QuantizedTensor(codes(dtype, shape), scales(scale_shape, scale_dtype), zero_point)


def broadcast_scale(scale, shape, row_groups=None):
    """Returns the scale of each element. row_groups: group of each row, or G for none."""
    if row_groups is not None and np.ndim(scale) == 1:
        return np.append(np.float64(scale), 0)[row_groups][:, None]
    return quantized_formats.broadcast_blocks(np.float64(scale), shape)


def dense(q, row_groups=None):
    values = np.asarray(q.data, np.float64)
    if q.zero_point is not None:
        values = values - broadcast_scale(q.zero_point, values.shape, row_groups)
    return values if q.scale is None else values * broadcast_scale(q.scale, values.shape, row_groups)


def close(got, want, magnitude, relative):
    error = np.abs(np.asarray(got, np.float64) - want)
    assert (error <= relative * magnitude + 1e-6 * np.abs(want)).all(), (error / np.maximum(magnitude, 1e-30)).max()


def values_and_magnitudes(lhs, rhs, sizes, axes=((1,), (1,)), **options):
    """Returns the float64 product of lhs and rhs, and the product of their magnitudes.

    sizes: group sizes along the first axis of lhs, and also of rhs if rhs has two axes. None: no axis is ragged.
    """
    dims = [sizes, sizes if rhs.ndim == 2 else None]

    def product(*values):
        operands = (GroupedTensor(np.float64(x), first_dims=d) for x, d in zip(values, dims, strict=True))
        return oracle.grouped_gemm(*operands, contracting_dims=axes, **options).want

    return product(lhs, rhs), product(np.abs(lhs), np.abs(rhs))


def close_to_oracle(got, lhs, rhs, sizes, axes=((1,), (1,)), relative=1e-5, **options):
    close(got, *values_and_magnitudes(lhs, rhs, sizes, axes, **options), relative)
