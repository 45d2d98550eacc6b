"""Weights with scales as ejkernel and sglang-jax hand them over, and quantized arrays of tokamax."""

import inspect

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import quantized_modes as q
from front_end_checks import check_errors
from quantized_modes import SIZES, AsQArray, G, K, M, N, QArray
from raggemm import QuantizedTensor
from raggemm.compat import ejkernel, sglang, tokamax

LHS, CT = q.floats("M", 0), np.random.default_rng(4).uniform(-1, 1, (M, N)).astype(np.float32)
BIAS = np.random.default_rng(5).normal(size=(G, 1, N)).astype(np.float32)
BEFORE = np.random.default_rng(6).normal(size=(M, N)).astype(np.float32)


def experts(dtype, blocks, seed=0):
    """Elements [G,K,N], scales [G,blocks,1,N] of groups that differ by up to 2^20, and the values."""
    random = np.random.default_rng(seed)
    data = q.elements(np.dtype(dtype), (G, K, N), seed)[0]
    scale = random.uniform(1, 2, (G, blocks, 1, N)) * 2.0 ** np.array([-10, 0, 10]).reshape(G, 1, 1, 1)
    scale = scale.astype(np.float32)
    return data, scale, data.astype(np.float64) * scale[:, :, 0].repeat(K // blocks, 1)


def near(got, want, magnitude, relative=1e-5):
    np.testing.assert_array_less(np.abs(np.asarray(got, np.float64) - want), relative * magnitude + 1e-30)


@pytest.mark.parametrize("blocks", [1, 2, 16])
@pytest.mark.parametrize("dtype", ["int8", "int4", "float8_e4m3fn"])
def test_ejkernels_scales(dtype, blocks):
    data, scale, values = experts(dtype, blocks)
    for transposed in (False, True):
        rhs = data.swapaxes(1, 2) if transposed else data

        def of(lhs, scale, rhs=rhs, transposed=transposed):
            call = ejkernel.grouped_matmul
            out = call(lhs, rhs, SIZES, rhs_scale=scale, rhs_bias=BIAS, transpose_rhs=transposed, use_v3=True)
            return (out * CT).sum(), out

        (dlhs, dscale), out = jax.jit(jax.grad(of, (0, 1), has_aux=True))(LHS, scale)
        want, magnitude = q.product("M", LHS, values)
        bias = np.concatenate([BIAS[:, 0], np.zeros((1, N))])[q.WHERE]
        near(out, want + bias, magnitude + np.abs(bias))
        # Scales of 4 steps of k multiply elements.
        near(dlhs, q.gradient("M", 0, values, CT), q.gradient("M", 0, np.abs(values), np.abs(CT)), 2.0**-7)
        terms, many = (f(q.gradient("M", 1, f(LHS), f(CT)) * data.astype(np.float64)) for f in (np.asarray, np.abs))
        shape = (G, blocks, K // blocks, N)
        near(dscale[:, :, 0], terms.reshape(shape).sum(2), many.reshape(shape).sum(2) + 1e-6)
    np.testing.assert_array_equal(
        ejkernel.grouped_matmul(LHS, data, SIZES, rhs_scale=scale[:, :, 0], use_v3=True),
        ejkernel.grouped_matmul(LHS, data, SIZES, rhs_scale=scale, use_v3=True),
    )


def test_ejkernels_scales_of_floats_multiply_them_in_their_type():
    weights, scale = q.floats("M", 1).astype(ml_dtypes.bfloat16), experts("int8", 2)[1]
    out = ejkernel.grouped_matmul(LHS, weights, SIZES, rhs_scale=scale, use_v3=True)
    spread = scale.astype(ml_dtypes.bfloat16)[:, :, 0].repeat(K // 2, 1)
    near(out, *q.product("M", LHS, (weights * spread).astype(np.float64)))


def test_sglangs_arguments():
    names = [*inspect.signature(sglang.gmm).parameters]
    assert names[:5] == ["lhs", "rhs", "group_sizes", "preferred_element_type", "rhs_scale"]
    assert names[5:9] == ["rhs_bias", "tiling", "group_offset", "existing_out"]
    data, scale, _ = experts("int8", 1)
    by_position = sglang.gmm(LHS, data, SIZES, jnp.float32, scale, BIAS, (8, 8, 8), None, BEFORE, True, False, False)
    by_name = sglang.gmm(
        LHS,
        data,
        SIZES,
        rhs_scale=scale,
        rhs_bias=BIAS,
        existing_out=BEFORE,
        acc_dtype=jnp.float32,
        zero_initialize=True,
    )
    np.testing.assert_array_equal(by_position, by_name)
    np.testing.assert_array_equal(by_name[17:], BEFORE[17:])


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("dtype", ["int8", "int4", "float8_e4m3fn"])
def test_sglangs_gmm(dtype, blocks):
    data, scale, values = experts(dtype, blocks, 1)
    want, magnitude = q.product("M", LHS, values)
    bias = np.concatenate([BIAS[:, 0], np.zeros((1, N))])[q.WHERE]
    out = sglang.gmm(LHS, data, SIZES, rhs_scale=scale, rhs_bias=BIAS)
    near(out, want + bias, magnitude + np.abs(bias))
    assert (out[17:] == 0).all()
    near(sglang.gmm(LHS, values.astype(np.float32), SIZES), want, magnitude)
    # With fewer groups than sizes: rows of others are zero, or existing_out's.
    sizes, offset = np.array([2, *SIZES[:2], 7, 2], np.int32), jnp.int32(1)
    members = np.repeat(np.arange(5), sizes) == np.arange(1, 4)[:, None]
    want, magnitude = (np.einsum("gm,mk,gkn->mn", members, f(np.float64(LHS)), f(values)) for f in (np.asarray, np.abs))
    ours = members.any(0)[:, None]
    for before in (None, BEFORE):
        out = sglang.gmm(LHS, data, sizes, rhs_scale=scale, group_offset=offset, existing_out=before)
        near(out, want if before is None else np.where(ours, want, before), magnitude + 1)
        assert (np.asarray(out)[~ours[:, 0]] == (0 if before is None else before[~ours[:, 0]])).all()


def test_sglangs_activations_are_quantized_by_row_and_the_bias_is_not_scaled():
    data, scale, values = experts("int8", 1)
    rows, _, dense = q.operand(q.FORMATS["int8"], "M", 0, 3)
    assert rows.dtype == np.int8
    out = sglang.gmm(
        dense.astype(np.float32), data, SIZES, rhs_scale=scale, rhs_bias=BIAS, activation_quantized_dtype=jnp.int8
    )
    bias = np.concatenate([BIAS[:, 0], np.zeros((1, N))])[q.WHERE]
    want, magnitude = q.product("M", dense, values)
    near(out, want + bias, magnitude + np.abs(bias))


QUANTIZED = [(K // b, n) for b, n in ((K, N), (32, N), (16, N), (K, 2))]


@pytest.mark.parametrize("blocks", QUANTIZED, ids=str)
def test_tokamaxs_scales_of_channels_and_less(blocks):
    count, columns = blocks
    data = q.elements(q.FORMATS["int8"], (G, K, N), 0)[0]
    scale = (2.0 ** np.random.default_rng(1).integers(-10, 11, (G, count, columns))).astype(ml_dtypes.bfloat16)
    dense = data * np.kron(scale.astype(np.float64), np.ones((1, K // count, N // columns)))
    rows, row_scale, row_values = q.operand(q.FORMATS["int8"], "M", 0, 2)
    for lhs, values in ((LHS.astype(ml_dtypes.bfloat16), None), (QArray(rows, row_scale), row_values)):
        out = tokamax.ragged_dot(lhs, QArray(data, scale), group_sizes=SIZES, preferred_element_type=np.float32)
        values = lhs.astype(np.float64) if values is None else values
        near(out, *q.product("M", values, dense), 2.0**-8)
    out = tokamax.ragged_dot(LHS.astype(ml_dtypes.bfloat16), QArray(data, scale), group_sizes=SIZES)
    assert out.dtype == jnp.bfloat16
    assert tokamax.ragged_dot(LHS, QArray(data, scale), group_sizes=SIZES).dtype == np.float32


def test_tokamaxs_arrays_to_be_quantized():
    data, scale, values = q.operand(q.FORMATS["int4"], "M", 1, 0)
    rows, row_scale, row_values = q.operand(q.FORMATS["int8"], "M", 0, 2)

    def of(x, w, activation=jnp.tanh):
        lhs, rhs = AsQArray(x, rows, row_scale), AsQArray(w, data, scale)
        return tokamax.ragged_dot(lhs, rhs, group_sizes=SIZES, activation=activation)

    x, w = row_values.astype(np.float32), values.astype(np.float32)
    want, magnitude = q.product("M", row_values, values)
    near(jax.jit(of)(x, w, None), want, magnitude)
    dots = np.random.default_rng(3).uniform(-1, 1, x.shape).astype(np.float32), np.ones_like(w)
    out, tangent = jax.jvp(lambda x, w: of(x, w, None), (x, w), dots)
    near(out, want, magnitude)
    first, second = q.product("M", dots[0], values), q.product("M", row_values, dots[1])
    near(tangent, *(a + b for a, b in zip(first, second, strict=True)))
    both = jax.jit(jax.vmap(jax.grad(lambda x, w: (of(x, w, None) * CT).sum(), (0, 1)), (0, None)))(np.stack([x, x]), w)
    near(both[0][1], q.gradient("M", 0, values, CT), q.gradient("M", 0, np.abs(values), np.abs(CT)))
    near(both[1][0], q.gradient("M", 1, row_values, CT), q.gradient("M", 1, np.abs(row_values), np.abs(CT)))
    mixed = jax.grad(
        lambda s, w: (tokamax.ragged_dot(QArray(rows, s), AsQArray(w, data, scale), group_sizes=SIZES) * CT).sum(),
        (0, 1),
    )(row_scale, w)
    near(mixed[1], q.gradient("M", 1, row_values, CT), q.gradient("M", 1, np.abs(row_values), np.abs(CT)), 2.0**-8)
    assert mixed[0].shape == row_scale.shape and (np.asarray(mixed[0])[:17] != 0).all()


DATA, SCALE, _ = experts("int8", 1)
ERRORS = [
    (
        lambda: sglang.gmm(LHS, DATA, SIZES, rhs_scale=SCALE[0]),
        ValueError,
        r"^rhs_scale: shape is \(1, 1, 32\), must be",
    ),
    (lambda: sglang.gmm(LHS, DATA[0], SIZES, rhs_scale=SCALE), ValueError, r"^rhs: shape is \(64, 32\), must have 3"),
    (lambda: sglang.gmm(LHS, DATA, SIZES), TypeError, "^lhs: dtype is float32, must be int8 or uint8"),
    (lambda: sglang.gmm(LHS, DATA, SIZES, rhs_scale=SCALE[..., :5]), ValueError, "must be .3, blocks, 1, 32. with"),
    (
        lambda: sglang.gmm(LHS, QuantizedTensor(DATA), SIZES, rhs_scale=SCALE),
        TypeError,
        "^rhs: is a QuantizedTensor, must be an array",
    ),
    (
        lambda: sglang.gmm(LHS, DATA, SIZES, rhs_scale=SCALE, rhs_bias=BIAS[:, 0]),
        ValueError,
        r"^rhs_bias: shape is \(3, 32\), must be \[num_groups, 1, n\]",
    ),
    (
        lambda: sglang.gmm(LHS, DATA, SIZES, rhs_scale=SCALE, existing_out=BEFORE.astype(np.float16)),
        ValueError,
        "^existing_out: dtype is float16, must be preferred_element_type float32",
    ),
    (
        lambda: sglang.gmm(LHS.astype(int), DATA, SIZES, rhs_scale=SCALE, activation_quantized_dtype=jnp.int8),
        TypeError,
        r"^lhs: dtype is int\d+, must be float16",
    ),
    (
        lambda: sglang.gmm(LHS, DATA, SIZES, rhs_scale=SCALE, group_offset=SIZES),
        ValueError,
        r"^group_offset: shape is \(3,\), must be",
    ),
    (
        lambda: tokamax.ragged_dot(LHS, QArray(DATA, SCALE[:, 0], None, "nf4"), group_sizes=SIZES),
        NotImplementedError,
        "^rhs: qtype is nf4",
    ),
    (
        lambda: tokamax.ragged_dot(LHS, QArray(DATA, SCALE), group_sizes=SIZES),
        NotImplementedError,
        r"^rhs\.scale: shape is \(3, 1, 1, 32\), must be",
    ),
]


@pytest.mark.parametrize("call, error, message", ERRORS, ids=range(len(ERRORS)))
def test_errors(call, error, message):
    check_errors(call, error, message)
