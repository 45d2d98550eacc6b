"""Rows that the call itself quantizes, against float64 sums of what a model in NumPy makes of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import raggemm

M, G, K, N = 24, 3, 64, 32
SIZES = np.array([9, 0, 11], np.int32)
WHERE = np.repeat(np.arange(G), SIZES)


def operands(dtype=np.float32):
    random = np.random.default_rng(5)
    lhs = random.normal(size=(M, K)) * 2.0 ** random.integers(-10, 11, (M, 1))
    rhs = random.normal(size=(G, K, N))
    return jnp.asarray(lhs, dtype), jnp.asarray(rhs, dtype)


def quantized_rows(lhs):
    lhs = np.asarray(lhs, np.float32)
    scale = (np.abs(lhs).max(1, keepdims=True) * np.float32(1 / 127)).astype(np.float32)
    return np.rint(lhs * (np.float32(1) / scale)).astype(np.float64) * scale


def product(lhs, rhs):
    out = np.zeros((M, N))
    out[: WHERE.size] = np.einsum("mk,mkn->mn", np.float64(lhs[: WHERE.size]), np.float64(rhs)[WHERE])
    return out


@pytest.mark.parametrize("call", [raggemm.gmm, raggemm.ragged_dot])
def test_is_the_product_of_quantized_rows(call):
    lhs, rhs = operands()
    got = jax.jit(lambda *args: call(*args, lhs_quantize=jnp.int8))(lhs, rhs, SIZES)
    rows = quantized_rows(lhs)
    assert got.dtype == np.float32
    assert (np.abs(got - product(rows, rhs)) <= 1e-5 * product(np.abs(rows), np.abs(rhs))).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_no_number_stays_one(bad):
    lhs, rhs = operands()
    want = raggemm.gmm(lhs, rhs, SIZES, lhs_quantize=jnp.int8)
    got = raggemm.gmm(lhs.at[4, 7].set(bad), rhs, SIZES, lhs_quantize=jnp.int8)
    assert np.isnan(got[4]).all()
    others = np.arange(M) != 4
    np.testing.assert_array_equal(got[others], want[others])
    wide = raggemm.gmm(lhs.at[4, 7].set(bad), rhs, SIZES, lhs_quantize=jnp.float8_e5m2)  # which has infinities
    want = bad * np.sign(np.asarray(rhs)[WHERE[4], 7])
    np.testing.assert_array_equal(wide[4], want)


def test_gradients_pass_straight_through_lhs():
    lhs, rhs = operands()
    ct = np.random.default_rng(6).normal(size=(M, N)).astype(np.float32)
    loss = jax.jit(jax.grad(lambda *args: (raggemm.gmm(*args, SIZES, lhs_quantize=jnp.int8) * ct).sum(), (0, 1)))
    dlhs, drhs = loss(lhs, rhs)
    used = slice(0, WHERE.size)
    want = np.einsum("mn,mkn->mk", np.float64(ct[used]), np.float64(rhs)[WHERE])
    np.testing.assert_allclose(dlhs[used], want, rtol=1e-4, atol=1e-4)
    assert (np.asarray(dlhs[WHERE.size :]) == 0).all()
    members = (np.arange(G)[:, None] == WHERE).astype(np.float64)
    want = np.einsum("gm,mk,mn->gkn", members, quantized_rows(lhs)[used], np.float64(ct[used]))
    np.testing.assert_allclose(drhs, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


def test_errors():
    lhs, rhs = operands()
    with pytest.raises(ValueError, match="existing_out: is given with lhs_quantize"):
        raggemm.gmm(lhs, rhs, SIZES, existing_out=jnp.zeros((M, N)), lhs_quantize=jnp.int8)
    with pytest.raises(TypeError, match="dtype"):
        raggemm.gmm(lhs, rhs, SIZES, lhs_quantize=jnp.float32)
