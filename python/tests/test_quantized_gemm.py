import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quantized_modes as q
import raggemm
from arrays import sampled
from quantized_modes import SIZES, G, K, M, N, experts, near
from quantized_operands import close, dense, tensor
from raggemm import QuantizedTensor, gmm
from raggemm.compat import ejkernel

LHS = q.floats("M", 0)


RHS_SCALES = [(), (G,), (G, 1, N), (1, 1, N), (G, 1, 1), (G, K // 32, N), (G, K // 16, N // 4), (1, K, 1)]
SCALE_CASES = [*itertools.product(RHS_SCALES, (np.float32, jnp.bfloat16, jnp.float8_e8m0fnu))]


@pytest.mark.parametrize(("shape", "scale_dtype"), sampled(SCALE_CASES, 7, unpack=True))
def test_every_scale(shape, scale_dtype):
    for dtype, zero in ((jnp.int4, False), (jnp.uint4, True), (jnp.float8_e4m3fn, False)):
        rhs, lhs = tensor(dtype, (G, K, N), shape, scale_dtype, zero), LHS.astype(jnp.bfloat16)
        out = jax.jit(raggemm.gmm)(lhs, rhs, SIZES)
        # Elements may be rounded to bfloat16 after they are scaled.
        close(out, *q.product("M", np.float64(lhs), dense(rhs)), 2.0**-8 * 1.01)


@pytest.mark.parametrize("lhs_shape", sampled([(M, 2), (G,), (4, 1), (M, 1), (), (1, 1)], 2), ids=str)
def test_both_quantized(lhs_shape):
    for dtype in (jnp.int8, jnp.float8_e4m3fn):
        lhs = tensor(dtype, (M, K), lhs_shape)
        rhs = tensor(dtype, (G, K, N), (G, 2, N) if lhs_shape == (M, 2) else (G, 1, N))
        out = jax.jit(raggemm.gmm)(lhs, rhs, SIZES)
        close(out, *q.product("M", dense(lhs, q.GROUP_OF_ROW), dense(rhs)), 1e-5)


def operands():
    random = np.random.default_rng(5)
    lhs = random.normal(size=(M, K)) * 2.0 ** random.integers(-10, 11, (M, 1))
    return lhs.astype(np.float32), random.normal(size=(G, K, N)).astype(np.float32)


def dequantized_rows(lhs):
    scale = (np.abs(lhs).max(1, keepdims=True) * np.float32(1 / 127)).astype(np.float32)
    return np.rint(lhs * (np.float32(1) / scale)).astype(np.float64) * scale


@pytest.mark.parametrize("call", [raggemm.gmm, raggemm.ragged_dot])
def test_lhs_quantize_multiplies_quantized_rows(call):
    lhs, rhs = operands()
    got = jax.jit(lambda *args: call(*args, lhs_quantize=jnp.int8))(lhs, rhs, SIZES)
    assert got.dtype == np.float32
    near(got, *q.product("M", dequantized_rows(lhs), np.float64(rhs)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_lhs_quantize_keeps_nan_and_infinity_in_their_row(bad):
    lhs, rhs = operands()
    changed = lhs.copy()
    changed[4, 7] = bad
    want = raggemm.gmm(lhs, rhs, SIZES, lhs_quantize=jnp.int8)
    got = raggemm.gmm(changed, rhs, SIZES, lhs_quantize=jnp.int8)
    assert np.isnan(got[4]).all()
    others = np.arange(M) != 4
    np.testing.assert_array_equal(got[others], want[others])
    wide = raggemm.gmm(changed, rhs, SIZES, lhs_quantize=jnp.float8_e5m2)  # float8_e5m2 has infinities
    want = bad * np.sign(rhs[q.GROUP_OF_ROW[4], 7])
    np.testing.assert_array_equal(wide[4], want)


def test_gradients_of_lhs_quantize_are_straight_through():
    lhs, rhs = operands()
    ct = np.random.default_rng(6).normal(size=(M, N)).astype(np.float32)
    loss = jax.jit(jax.grad(lambda *args: (raggemm.gmm(*args, SIZES, lhs_quantize=jnp.int8) * ct).sum(), (0, 1)))
    dlhs, drhs = loss(lhs, rhs)
    np.testing.assert_allclose(dlhs, q.gradient("M", 0, rhs, ct), rtol=1e-4, atol=1e-4)
    want = q.gradient("M", 1, dequantized_rows(lhs), ct)
    np.testing.assert_allclose(drhs, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


def test_errors():
    lhs, rhs = operands()
    with pytest.raises(ValueError, match="existing_out: must not be given with lhs_quantize"):
        raggemm.gmm(lhs, rhs, SIZES, existing_out=jnp.zeros((M, N)), lhs_quantize=jnp.int8)
    with pytest.raises(TypeError, match="dtype"):
        raggemm.gmm(lhs, rhs, SIZES, lhs_quantize=jnp.float32)


# Derivatives.


def test_tangents_of_quantized_data_are_float0_or_zero(x64):
    """Tangents of integer elements and of zero points have dtype float0. Gradients of float8 elements are zeros."""
    w = tensor(jnp.uint4, (G, K, N), (G, 1, N), zero=True)
    tangents = np.zeros(w.shape, jax.dtypes.float0), w.scale, np.zeros(w.zero_point.shape, jax.dtypes.float0)
    value, tangent = jax.jvp(lambda w: gmm(LHS, w, SIZES), (w,), (QuantizedTensor(*tangents),))
    np.testing.assert_array_equal(tangent, value)
    gradient = jax.grad(lambda w: gmm(LHS, w, SIZES).sum(), allow_int=True)(w)
    assert gradient.data.dtype == gradient.zero_point.dtype == jax.dtypes.float0
    w = tensor(jnp.float8_e4m3fn, (G, K, N), (G, 1, N))
    gradient = jax.grad(lambda w: gmm(LHS, w, SIZES).sum())(w)
    assert gradient.data.dtype == jnp.float8_e4m3fn
    assert (np.asarray(gradient.data, np.float32) == 0).all()


def test_float8_e8m0fnu_scales_are_constants():
    """JAX's zero tangent is NaN in float8_e8m0fnu, which has no zero."""
    w = tensor(jnp.float4_e2m1fn, (G, K, N), (G, 1, N), jnp.float8_e8m0fnu)
    tangents = LHS, jnp.zeros_like(w.scale)
    value, tangent = jax.jvp(lambda x, s: gmm(x, QuantizedTensor(w.data, s), SIZES), (LHS, w.scale), tangents)
    np.testing.assert_array_equal(tangent, value)


# Front ends.


CT = np.random.default_rng(4).uniform(-1, 1, (M, N)).astype(np.float32)
BIAS = np.random.default_rng(5).normal(size=(G, 1, N)).astype(np.float32)


BLOCK_CASES = [*itertools.product((1, 2, 16), ("int8", "int4", "float8_e4m3fn"))]


@pytest.mark.parametrize(("blocks", "dtype"), sampled(BLOCK_CASES, 4, unpack=True))
def test_ejkernel_scales(dtype, blocks):
    data, scale, values = experts(dtype, blocks)
    for transposed in (False, True):
        rhs = data.swapaxes(1, 2) if transposed else data

        def loss_and_result(lhs, scale, rhs=rhs, transposed=transposed):
            call = ejkernel.grouped_matmul
            out = call(lhs, rhs, SIZES, rhs_scale=scale, rhs_bias=BIAS, transpose_rhs=transposed, use_v3=True)
            return (out * CT).sum(), out

        (dlhs, dscale), out = jax.jit(jax.grad(loss_and_result, (0, 1), has_aux=True))(LHS, scale)
        want, magnitude = q.product("M", LHS, values)
        bias = np.concatenate([BIAS[:, 0], np.zeros((1, N))])[q.GROUP_OF_ROW]
        near(out, want + bias, magnitude + np.abs(bias))
        # dlhs contracts N, and scales differ along N. So elements are scaled, and may then be rounded.
        near(dlhs, q.gradient("M", 0, values, CT), q.gradient("M", 0, np.abs(values), np.abs(CT)), 2.0**-7)
        products, magnitudes = (
            f(q.gradient("M", 1, f(LHS), f(CT)) * data.astype(np.float64)) for f in (np.asarray, np.abs)
        )
        shape = (G, blocks, K // blocks, N)
        near(dscale[:, :, 0], products.reshape(shape).sum(2), magnitudes.reshape(shape).sum(2) + 1e-6)
    np.testing.assert_array_equal(
        ejkernel.grouped_matmul(LHS, data, SIZES, rhs_scale=scale[:, :, 0], use_v3=True),
        ejkernel.grouped_matmul(LHS, data, SIZES, rhs_scale=scale, use_v3=True),
    )
