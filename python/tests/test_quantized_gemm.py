"""QuantizedTensor as an operand of the front ends: results, derivatives and transformations against float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import raggemm
from quantized_operands import close, codes, dense, tensor
from raggemm import QuantizedTensor
from raggemm.compat import megablox, tops

M, G, K, N = 20, 3, 64, 32
SIZES = np.array([9, 0, 8], np.int32)
FORMATS = [
    *(jnp.int8, jnp.uint8, jnp.int4, jnp.uint4, jnp.int2),
    *(jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.float4_e2m1fn),
]
RHS_SCALES = [(), (G,), (G, 1, N), (1, 1, N), (G, 1, 1), (G, K // 32, N), (G, K // 16, N // 4), (1, K, 1)]
WHERE = np.repeat(np.arange(G + 1), [*SIZES, M - SIZES.sum()])  # the group of each row


def gmm64(lhs, rhs):
    rhs = np.concatenate([np.asarray(rhs, np.float64), np.zeros((1, *rhs.shape[1:]))])
    return np.einsum("mk,mkn->mn", np.asarray(lhs, np.float64), rhs[WHERE])


LHS = np.random.default_rng(3).uniform(-1, 1, (M, K)).astype(np.float32)


@pytest.mark.parametrize("dtype", FORMATS, ids=lambda t: jnp.dtype(t).name)
@pytest.mark.parametrize("lhs_dtype", [jnp.bfloat16, jnp.float32], ids=lambda t: jnp.dtype(t).name)
def test_every_format(dtype, lhs_dtype):
    rhs, lhs = tensor(dtype, (G, K, N), (G, 1, N)), jnp.asarray(LHS, lhs_dtype)
    out = raggemm.gmm(lhs, rhs, SIZES)
    assert out.dtype == np.float32
    close(out, gmm64(lhs, dense(rhs)), gmm64(np.abs(lhs), np.abs(dense(rhs))), 1e-5)


@pytest.mark.parametrize("scale_dtype", [np.float32, jnp.bfloat16, jnp.float8_e8m0fnu], ids=lambda t: jnp.dtype(t).name)
@pytest.mark.parametrize("shape", RHS_SCALES, ids=str)
def test_every_scale(shape, scale_dtype):
    for dtype, zero in ((jnp.int4, False), (jnp.uint4, True), (jnp.float8_e4m3fn, False)):
        rhs, lhs = tensor(dtype, (G, K, N), shape, scale_dtype, zero), jnp.asarray(LHS, jnp.bfloat16)
        for out in (raggemm.gmm(lhs, rhs, SIZES), jax.jit(raggemm.gmm)(lhs, rhs, SIZES)):
            # Scales of single elements are rounded to bfloat16 with them.
            close(out, gmm64(lhs, dense(rhs)), gmm64(np.abs(lhs), np.abs(dense(rhs))), 2.0**-8 * 1.01)


@pytest.mark.parametrize("lhs_shape", [(), (G,), (M, 1), (M, 2), (1, 1), (4, 1)], ids=str)
def test_both_quantized(lhs_shape):
    for dtype in (jnp.int8, jnp.float8_e4m3fn):
        lhs = tensor(dtype, (M, K), lhs_shape)
        rhs = tensor(dtype, (G, K, N), (G, 2, N) if lhs_shape == (M, 2) else (G, 1, N))
        out = raggemm.gmm(lhs, rhs, SIZES)
        want, magnitude = gmm64(dense(lhs, WHERE), dense(rhs)), gmm64(np.abs(dense(lhs, WHERE)), np.abs(dense(rhs)))
        close(out, want, magnitude, 1e-5)


def test_transposed_weights_and_tgmm():
    rhs, lhs = tensor(jnp.int4, (G, N, K), (G, N, 2)), jnp.asarray(LHS, jnp.bfloat16)
    weights = dense(rhs).swapaxes(1, 2)
    out = raggemm.gmm(lhs, rhs, SIZES, transpose_rhs=True)
    close(out, gmm64(lhs, weights), gmm64(np.abs(lhs), np.abs(weights)), 1e-5)
    rows = tensor(jnp.int8, (M, K), (M, 1))
    left = QuantizedTensor(rows.data.T, rows.scale.T)
    ct = np.random.default_rng(4).uniform(-1, 1, (M, N)).astype(jnp.bfloat16)
    out = raggemm.tgmm(left, ct, SIZES)
    for g in range(G):
        a, b = dense(rows)[g == WHERE].T, np.asarray(ct, np.float64)[g == WHERE]
        close(out[g], a @ b, np.abs(a) @ np.abs(b), 2.0**-8 * 1.01)


def test_ragged_dot():
    rhs = tensor(jnp.int8, (G, K, N), (G, 1, N))
    for dtype in (jnp.bfloat16, jnp.float32):
        lhs = jnp.asarray(LHS, dtype)
        out = raggemm.ragged_dot(lhs, rhs, SIZES)
        assert out.dtype == dtype
        np.testing.assert_array_equal(out, raggemm.gmm(lhs, rhs, SIZES, preferred_element_type=dtype))
    both = raggemm.ragged_dot(tensor(jnp.int8, (M, K), (M, 1)), rhs, SIZES)
    assert both.dtype == np.float32


def test_uniform():
    lhs = np.random.default_rng(9).uniform(-1, 1, (G, 5, K)).astype(jnp.bfloat16)
    rhs = tensor(jnp.float4_e2m1fn, (G, K, N), (G, 2, N), jnp.float8_e8m0fnu)
    out = raggemm.grouped_gemm(lhs, rhs, contracting_dims=((2,), (1,)), preferred_element_type=np.float32)
    want = np.asarray(lhs, np.float64) @ dense(rhs)
    close(out, want, np.abs(np.asarray(lhs, np.float64)) @ np.abs(dense(rhs)), 1e-5)


WRONG = {
    "scale of other blocks": (lambda: tensor(jnp.int8, (G, K, N), (G, 3, N)), ValueError, "rhs.scale: axis 1 of shape"),
    "scales of too many groups": (lambda: tensor(jnp.int8, (G, K, N), (G + 1,)), ValueError, "rhs.scale: shape is"),
    "double scales": (
        lambda: QuantizedTensor(codes(jnp.int8, (G, K, N)), np.array([1, 2], np.int32)),
        TypeError,
        "rhs.scale: dtype is int32, must be float16, bfloat16, float32, ",
    ),
    "zeros of floats": (
        lambda: QuantizedTensor(codes(jnp.float8_e5m2, (G, K, N)), np.float32(1), codes(jnp.float8_e5m2, ())),
        TypeError,
        "rhs.data: with a zero_point: dtype is",
    ),
    "elements of floats": (
        lambda: QuantizedTensor(np.ones((G, K, N), np.float32)),
        TypeError,
        "rhs.data: .*must be int8",
    ),
}


@pytest.mark.parametrize("make, error, message", WRONG.values(), ids=WRONG)
def test_wrong_input(make, error, message):
    with pytest.raises(error, match=message):
        raggemm.gmm(LHS, make(), SIZES)
    with pytest.raises(error, match=message):
        jax.eval_shape(raggemm.gmm, LHS, make(), SIZES)


def test_a_front_end_that_takes_none_says_so():
    with pytest.raises(TypeError, match="rhs: is a QuantizedTensor, must be an array"):
        tops.gmm(LHS, tensor(jnp.int8, (G, K, N), ()), SIZES)


def test_megablox():
    rhs = tensor(jnp.int8, (G, K, N), (G, 1, N))
    np.testing.assert_array_equal(megablox.gmm(LHS, rhs, SIZES), raggemm.gmm(LHS, rhs, SIZES))


def test_two_of_e5m2_are_refused():
    q = tensor(jnp.float8_e5m2, (M, K), ()), tensor(jnp.float8_e5m2, (G, K, N), ())
    for call in (raggemm.gmm, raggemm.ragged_dot):
        with pytest.raises(TypeError, match=r"^lhs and rhs are both of float8_e5m2"):
            jax.eval_shape(call, *q, SIZES)
