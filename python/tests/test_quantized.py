"""Tests dequantize and mxfp4_from_blocks against NumPy in float64."""

import itertools
import math

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import raggemm
from arrays import sampled
from quantized_formats import E8M0, FLOATS, INTEGERS, SCALES, broadcast_blocks, codes, dtype_of, flush_subnormals
from raggemm import GroupedTensor, QuantizedTensor, dequantize, mxfp4_from_blocks, quantize
from raggemm._src.checks import as_quantized_tensor


@pytest.mark.parametrize(("name", "scale"), sampled([*itertools.product((*INTEGERS, *FLOATS), SCALES)], 4, unpack=True))
def test_every_code_times_scales(name, scale):
    data = codes(name)
    if scale.startswith("float8"):
        scales = np.arange(256, dtype=np.uint8).view(dtype_of(scale))
    else:
        scales = np.array([1, 3, -0.7, 2.0**-10, 1023.0, 2.0**-14, 6e4, np.nan, np.inf]).astype(dtype_of(scale))
    with np.errstate(invalid="ignore"):
        want = data.astype(np.float64) * scales.astype(np.float64)[:, None]
    got = dequantize(QuantizedTensor(np.broadcast_to(data, want.shape), scales[:, None]))
    assert got.dtype == np.float32
    np.testing.assert_array_equal(np.asarray(got), flush_subnormals(want))
    unscaled = dequantize(QuantizedTensor(data))
    np.testing.assert_array_equal(np.asarray(unscaled), data.astype(np.float32))


@pytest.mark.parametrize("name", INTEGERS)
def test_every_code_with_every_zero_point(name):
    data = codes(name)
    pairs = np.broadcast_to(data[:, None], (data.size, data.size))
    got = dequantize(QuantizedTensor(pairs, np.float32(0.5), data[None]), jnp.bfloat16)
    want = (np.int64(data)[:, None] - np.int64(data)[None]) * 0.5
    np.testing.assert_array_equal(np.asarray(got, np.float64), want)


SHAPES = [(), (4,), (4, 1, 6), (1, 1, 6), (4, 2, 6), (1, 1, 1), (4, 64, 6), (2, 32, 3)]


@pytest.mark.parametrize(
    ("scales", "zeros"), sampled([*itertools.product(SHAPES, (None, (), (4,), (1, 2, 1)))], 3, unpack=True)
)
def test_shapes_of_scales(scales, zeros):
    rng = np.random.default_rng(1)
    data = rng.integers(0, 256, (4, 64, 6)).astype(np.uint8)
    scale = 2.0 ** rng.integers(-10, 11, scales).astype(np.float32)
    zero = None if zeros is None else rng.integers(0, 256, zeros).astype(np.uint8)
    want = (data - (0 if zero is None else broadcast_blocks(zero, data.shape).astype(float))) * broadcast_blocks(
        scale, data.shape
    )
    tensor = QuantizedTensor(data, np.float32(scale), zero)
    np.testing.assert_array_equal(np.asarray(dequantize(tensor)), want)


@pytest.mark.parametrize("scale", [(3,), (7, 1), (1, 2), ()])
def test_group_sizes(scale):
    data = np.arange(28, dtype=np.int8).reshape(7, 4)
    scales = 2.0 ** np.arange(math.prod(scale), dtype=np.float32).reshape(scale)
    tensor = QuantizedTensor(data, scales)
    rows = np.array([1, 1, 4, 4, 4, 0, 0])[:, None] if scale == (3,) else broadcast_blocks(scales, data.shape)
    want = data * rows * (np.arange(7) < 5)[:, None]
    sizes = np.array([2, 0, 3], np.int32)
    np.testing.assert_array_equal(np.asarray(dequantize(tensor, group_sizes=sizes)), want)


@pytest.mark.parametrize("sizes, message", [([2, -1, 3], "group 1 has size -1"), ([2, 4, 2], "group 2 has size 2 and")])
def test_wrong_group_sizes(sizes, message):
    sizes, scale = np.array(sizes, np.int32), np.ones(3, np.float32)
    run = lambda scale: dequantize(QuantizedTensor(np.ones((7, 4), np.int8), scale), group_sizes=sizes)  # noqa: E731
    transformed = (lambda scale: jax.vmap(run)(scale[None]), jax.grad(lambda scale: run(scale).sum()))
    for call in (run, jax.jit(run), *map(jax.jit, transformed)):
        with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match=f"group_sizes: {message}"):
            jax.block_until_ready(call(scale))
    with raggemm.options(on_error="nan"):
        assert np.isnan(np.asarray(jax.jit(run)(scale))).all()


def test_mxfp4_from_blocks():
    rng = np.random.default_rng(3)
    blocks = np.concatenate([np.arange(256), rng.integers(0, 256, 256 * 15)]).astype(np.uint8).reshape(2, 16, 8, 16)
    scales = np.arange(256, dtype=np.uint8).reshape(2, 16, 8)
    tensor = mxfp4_from_blocks(blocks, scales)
    assert (tensor.shape, tensor.dtype) == ((2, 16, 256), ml_dtypes.float4_e2m1fn)
    assert (tensor.scale.shape, tensor.scale.dtype) == ((2, 16, 8), E8M0)
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    elements = np.stack([values[blocks & 15], values[blocks >> 4]], -1).reshape(2, 16, 8, 32)
    powers = np.where(scales == 255, np.nan, 2.0 ** (scales.astype(float) - 127))
    want = flush_subnormals(elements * powers[..., None]).reshape(2, 16, 256)
    for got in (dequantize(tensor), jax.jit(lambda *x: dequantize(mxfp4_from_blocks(*x)))(blocks, scales)):
        np.testing.assert_array_equal(np.asarray(got), want)
    jitted = jax.jit(mxfp4_from_blocks)(blocks, scales)
    np.testing.assert_array_equal(np.asarray(jitted.data).view(np.uint8), np.asarray(tensor.data).view(np.uint8))


D3, D2 = np.zeros((4, 64, 6), np.int8), np.zeros((8, 64), np.int8)
F4 = np.zeros((4, 64), ml_dtypes.float4_e2m1fn)


def scaled(data, *shape):
    return QuantizedTensor(data, np.zeros(shape, np.float32))


BAD_TENSORS = [
    (D3, TypeError, "w: is ndarray, must be a QuantizedTensor"),
    (GroupedTensor(D3), TypeError, "w: is GroupedTensor"),
    (QuantizedTensor(np.zeros(4, np.int16)), TypeError,
     "w.data: dtype is int16, must be int8, uint8, int4, uint4, int2"),
    (QuantizedTensor(D3, np.ones(4, np.int32)), TypeError, "w.scale: dtype is int32, must be float16, bfloat16"),
    (QuantizedTensor(D3, None, np.uint8(1)), TypeError, "w.zero_point: dtype is uint8, must be int8"),
    (QuantizedTensor(F4, None, F4), TypeError, "w.data: with a zero_point: dtype is float4_e2m1fn, must be int8"),
    (scaled(D3, 3), ValueError, "w.scale: shape is (3,), must be (), (4,) or have the 3 axes of data (4, 64, 6)"),
    (scaled(D3, 64, 6), ValueError, "w.scale: shape is (64, 6), must be (), (4,) or"),
    (scaled(D2, 1, 8, 1), ValueError,
     "w.scale: shape is (1, 8, 1), must be (), [G] or have the 2 axes of data (8, 64)"),
    (scaled(D3, 4, 5, 6), ValueError, "w.scale: axis 1 of shape (4, 5, 6) is 5, must divide 64 of data (4, 64, 6)"),
    (scaled(D3, 4, 0, 6), ValueError, "w.scale: axis 1 of shape (4, 0, 6) is 0, must divide 64"),
    (QuantizedTensor(D3, None, D3[:3]), ValueError, "w.zero_point: axis 0 of shape (3, 64, 6) is 3, must divide 4"),
]  # fmt: skip


@pytest.mark.parametrize(("tensor", "error", "message"), BAD_TENSORS)
def test_wrong_tensors(tensor, error, message):
    with pytest.raises(error) as caught:
        as_quantized_tensor("w", tensor)
    assert message in str(caught.value)


G = np.zeros(3, np.int32)
BAD_CALLS = [
    (lambda: dequantize(scaled(D2, 3)), ValueError,
     "q.scale: shape is (3,), one for each group of rows, which needs gro"),
    (lambda: dequantize(scaled(D2, 4), group_sizes=G), ValueError,
     "q.scale: shape is (4,), must be (3,), the shape of group_sizes"),
    (lambda: dequantize(scaled(D3, 4), group_sizes=G), ValueError, "group_sizes: shape is (3,) with data (4, 64, 6)"),
    (lambda: dequantize(scaled(D2), group_sizes=np.float32([1])), TypeError, "group_sizes: dtype is float32"),
    (lambda: dequantize(scaled(D2), jnp.int8), TypeError, "dtype: dtype is int8, must be float16"),
    (lambda: quantize(D2, "int8"), TypeError, "x: dtype is int8, must be float16"),
    (lambda: quantize(np.float32(D2), "int16"), TypeError, "dtype: dtype is int16, must be int8"),
    (lambda: quantize(np.float32(D2), "int8", scale_dtype="int8"), TypeError,
     "scale_dtype: dtype is int8, must be float16, bfloat16, float32"),
    (lambda: quantize(np.float32(D2), E8M0), TypeError, "dtype: dtype is float8_e8m0fnu"),
    (lambda: quantize(np.float32(D2), jnp.float8_e5m2, zero_point=True), TypeError, "zero_point: dtype is float8_e5m2"),
    (lambda: quantize(np.float32(D2), "int8", axes=2), ValueError, "axes: axis 2 is out of range for shape (8, 64)"),
    (lambda: quantize(np.float32(D2), "int8", block=(-3, 2)), ValueError,
     "block[0]: axis -3 is out of range for shape"),
    (lambda: quantize(np.float32(D2), "int8", block=(1, 0)), ValueError, "block: size is 0, must be positive"),
    (lambda: quantize(np.float32(D2), "int8", block=((0, 4), (1, -1))), ValueError, "block[1]: size is -1, must be"),
    (lambda: quantize(np.float32(D2), "int8", block=((1, 4), (-1, 4))), ValueError,
     "block[1]: axis 1 of (8, 64) is also in axes None, or twice in block"),
    (lambda: quantize(np.float32(D2), "int8", block=((0, 4), 8)), TypeError, "block[1] is 8, must be (axis, size)"),
    (lambda: quantize(np.float32(D2), "int8", block=(1, 8), axes=1), ValueError,
     "block: axis 1 of (8, 64) is also in axes"),
    (lambda: quantize(np.float32(D2), "int8", bound=-1.0), ValueError, "bound is -1.0, must be positive, and finite"),
    (lambda: quantize(np.float32(D2), "int8", bound=np.inf), ValueError, "bound is inf, must be positive"),
    (lambda: mxfp4_from_blocks(D2, D2), TypeError, "blocks: dtype is int8, must be uint8"),
    (lambda: mxfp4_from_blocks(np.uint8(D3), np.uint8(D2)), ValueError,
     "blocks: shape is (4, 64, 6), must be [E,N,K/32"),
    (lambda: mxfp4_from_blocks(np.zeros((2, 3, 4, 16), np.uint8), np.zeros((2, 3, 5), np.uint8)), ValueError,
     "scales: shape is (2, 3, 5), must be (2, 3, 4), the first three axes of blocks"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), BAD_CALLS, ids=range(len(BAD_CALLS)))
def test_wrong_arguments(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value)
