"""QuantizedTensor as an operand of the front ends: results, derivatives and transformations against float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import raggemm
from quantized_operands import close, dense, tensor

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
