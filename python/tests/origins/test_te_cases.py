"""The cases of TransformerEngine's own tests of grouped GEMMs, which need a GPU, against NumPy in float64.
`./dev test --origins` runs this."""

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from raggemm.compat import transformer_engine as te

E4M3, E5M2, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.bfloat16
HALF_ULP = {E4M3: 2.0**-4, E5M2: 2.0**-3, BF16: 2.0**-8, np.float16: 2.0**-11}
SHAPES = [(5, 1024, 128, 64), (8, 2048, 32, 128), (8, 2048, 128, 256)]  # groups, rows, columns, k
MODES = ["DELAYED_TENSOR_SCALING", "CURRENT_TENSOR_SCALING", "MXFP8_1D_SCALING"]
FORWARD = ((1,), (1,))


def group_sizes(groups, rows, seed=0):
    """Multiples of 32, the second 0."""
    cuts = np.sort(np.random.default_rng(seed).integers(0, rows // 32 + 1, groups - 1))
    sizes = np.diff(np.concatenate([[0], cuts, [rows // 32]])) * 32
    sizes[0] += sizes[1]
    sizes[1] = 0
    return sizes.astype(np.int32)


def uniform(shape, dtype, seed):
    """Not negative, so that a sum is relatively as exact as its terms."""
    return np.random.default_rng(seed).uniform(size=shape).astype(np.float32).astype(dtype)


def operands(shape, dtype):
    groups, rows, n, k = shape
    arrays = (uniform(s, dtype, i) for i, s in enumerate([(rows, k), (groups, k, n), (groups, n)], 1))
    return *arrays, group_sizes(groups, rows)


def products(x, kernel, bias, sizes):
    """x @ kernel + bias of each group."""
    group = np.repeat(np.arange(len(sizes)), sizes)
    x, kernel, bias = (np.asarray(a).astype(np.float64) for a in (x, kernel, bias))
    return np.stack([row @ kernel[g] + bias[g] for row, g in zip(x, group, strict=True)])


def sums(x, kernel, sizes):
    """The gradients of x and kernel where that of every result is 1."""
    group = np.repeat(np.arange(len(sizes)), sizes)
    x, kernel = (np.asarray(a).astype(np.float64) for a in (x, kernel))
    of_kernel = np.stack([x[group == g].sum(0) for g in range(len(sizes))])
    return kernel.sum(2)[group], np.broadcast_to(of_kernel[:, :, None], kernel.shape)


def close(got, want, relative):
    got = np.asarray(got).astype(np.float64)
    assert got.shape == want.shape
    assert (np.abs(got - want) <= relative * np.abs(want) + 1e-6 * np.abs(want).max()).all()


def quantizer(mode, dtype, groups, layout="ROWWISE_COLWISE", scale=2.0):
    scale = jnp.full(groups, scale) if mode == MODES[0] else None
    return te.GroupedQuantizer(dtype, mode, layout, scale)


def grouped_gemm(x, kernel, sizes, **options):
    rows = te.GroupedNoScaleTensor(x, None, first_dims=sizes, last_dims=None, original_shape=x.shape)
    stack = te.GroupedNoScaleTensor(kernel, None, first_dims=None, last_dims=None, original_shape=kernel.shape)
    return te.grouped_gemm(rows, stack, contracting_dims=FORWARD, **options)


@pytest.mark.parametrize("dtype", [BF16, np.float16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_grouped_gemm(shape, dtype):
    x, kernel, bias, sizes = operands(shape, dtype)
    got = jax.jit(grouped_gemm)(x, kernel, sizes)
    assert got.dtype == dtype
    close(got, products(x, kernel, 0 * bias, sizes), 1.01 * HALF_ULP[dtype] + 1e-5)


@pytest.mark.parametrize("types", [(E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3)])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_grouped_gemm_quantized(shape, mode, types):
    x, kernel, bias, sizes = operands(shape, BF16)
    quantizers = te.QuantizerSet(*(quantizer(mode, t, shape[0]) for t in types))
    got = jax.jit(functools.partial(grouped_gemm, quantizer_set=quantizers))(x, kernel, sizes)
    first, second = (HALF_ULP[t] for t in types)
    want = products(x, kernel, 0 * bias, sizes)
    close(got, want, (1 + first) * (1 + second) - 1 + 2 * HALF_ULP[BF16])
    assert (np.abs(got - want) > 1e-3 * want).any()


def gradients(shape, dtype, quantizers=None):
    """(value, gradients of x, kernel and bias) of the sum of grouped_dense over the root of the elements of x, those of
    NumPy, and the operands' type."""
    x, kernel, bias, sizes = operands(shape, dtype)
    factor = x.size**-0.5

    def loss(x, kernel, bias):
        out = te.grouped_dense(x, kernel, sizes, FORWARD, bias=bias, quantizer_set=quantizers)
        return out.astype(jnp.float32).sum() * factor

    value, got = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(x, kernel, bias)
    assert [g.dtype for g in got] == [dtype] * 3
    dbias = np.broadcast_to(sizes[:, None].astype(np.float64), bias.shape)
    want = [factor * g for g in (*sums(x, kernel, sizes), dbias)]
    return (value, *got), (np.array(factor * products(x, kernel, bias, sizes).sum()), *want)


@pytest.mark.parametrize("dtype", [BF16, np.float16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_grouped_dense_and_gradients(shape, dtype):
    for got, want in zip(*gradients(shape, dtype), strict=True):
        close(got, want, 4 * HALF_ULP[dtype])


@pytest.mark.parametrize("backward", [E4M3, E5M2])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_grouped_dense_and_gradients_quantized(shape, mode, backward):
    one = quantizer(mode, E4M3, shape[0])
    got, want = gradients(shape, BF16, te.QuantizerSet(one, one, quantizer(mode, backward, shape[0], scale=1024.0)))
    forward = (1 + HALF_ULP[E4M3]) ** 2 - 1
    back = (1 + HALF_ULP[E4M3]) * (1 + HALF_ULP[backward]) - 1
    for a, b, relative in zip(got, want, (forward, back, back, 0), strict=True):
        close(a, b, relative + 4 * HALF_ULP[BF16])


def dequantized(tensor, shape, sizes):
    """The matrix of a tensor with scales for each group or for 32 elements, by its definition."""
    rows = np.asarray(sizes) if sizes is not None else np.full(shape[0], shape[1])
    width, data, scale = shape[-1], np.asarray(tensor.data), np.asarray(tensor.scale_inv).astype(np.float64)
    out, start, first = np.zeros((rows.sum(), width)), 0, 0
    for g, size in enumerate(rows):
        part = data[start * width : (start + size) * width].astype(np.float64)
        part = part.reshape(width, size).T if tensor.data_layout == "T" else part.reshape(size, width)
        if len(scale) == len(rows):
            part = part * scale[g]
        else:
            count = size * width // 32
            of_blocks, first = scale[first : first + count], first + count
            if tensor.is_colwise:
                part = part * np.repeat(of_blocks.reshape(size // 32, width), 32, 0)
            else:
                part = part * np.repeat(of_blocks.reshape(size, width // 32), 32, 1)
        out[start : start + size] = part
        start += size
    return out


@pytest.mark.parametrize("layout", ["ROWWISE", "COLWISE", "ROWWISE_COLWISE"])
@pytest.mark.parametrize("with_group_sizes", [True, False])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [np.float32, BF16, np.float16])
def test_grouped_quantize(dtype, mode, with_group_sizes, layout):
    groups, rows, width = 8, 512, 32
    shape = (rows, width) if with_group_sizes else (groups, rows // groups, width)
    sizes = group_sizes(groups, rows) if with_group_sizes else None
    x = uniform(shape, dtype, 4)
    got = te.grouped_quantize(x, quantizer(mode, E4M3, groups, layout), sizes, -1)
    both = (got.rowwise_tensor, got.colwise_tensor) if layout == "ROWWISE_COLWISE" else (got,)
    assert [tensor.is_colwise for tensor in both] == {"ROWWISE": [False], "COLWISE": [True]}.get(layout, [False, True])
    for tensor in both:
        want = x.astype(np.float64).reshape(rows, width)
        error = np.abs(dequantized(tensor, shape, sizes) - want)
        assert (error <= HALF_ULP[E4M3] * want + 2.0**-8).all() and error.max() > 1e-3
