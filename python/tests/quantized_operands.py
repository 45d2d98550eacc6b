"""Random QuantizedTensors, what they stand for in float64, and the comparison with a product of that."""

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


def spread(factor, shape, rows=None):
    """What each element gets; `rows`: the group of each row, where the factor is (G,)."""
    if rows is not None and np.ndim(factor) == 1:
        return np.append(np.float64(factor), 0)[rows][:, None]
    return quantized_formats.spread(np.float64(factor), shape)


def dense(q, rows=None):
    values = np.asarray(q.data, np.float64)
    if q.zero_point is not None:
        values = values - spread(q.zero_point, values.shape, rows)
    return values if q.scale is None else values * spread(q.scale, values.shape, rows)


def close(got, want, magnitude, relative):
    error = np.abs(np.asarray(got, np.float64) - want)
    assert (error <= relative * magnitude + 1e-6 * np.abs(want)).all(), (error / np.maximum(magnitude, 1e-30)).max()


def values_and_magnitudes(lhs, rhs, sizes, axes=((1,), (1,)), **options):
    """The product of these values, and that of their magnitudes. sizes, if any, divide the first axis of lhs, and that
    of rhs where it has only two."""
    dims = [sizes, sizes if rhs.ndim == 2 else None]

    def product(*values):
        operands = (GroupedTensor(np.float64(x), first_dims=d) for x, d in zip(values, dims, strict=True))
        return oracle.grouped_gemm(*operands, contracting_dims=axes, **options).want

    return product(lhs, rhs), product(np.abs(lhs), np.abs(rhs))


def close_to_oracle(got, lhs, rhs, sizes, axes=((1,), (1,)), relative=1e-5, **options):
    close(got, *values_and_magnitudes(lhs, rhs, sizes, axes, **options), relative)
