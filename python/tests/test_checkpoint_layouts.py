"""Tests int4_from_awq, int4_from_gptq and fp8_from_blocks on matrices in the layouts of checkpoints."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import raggemm

E, K, N, SIZE = 2, 64, 24, 16
AWQ = [0, 2, 4, 6, 1, 3, 5, 7]  # Columns of the eight elements in a 32-bit word, lowest bits first.


def pack(elements, order=range(8)):
    """Packs eight 4-bit elements of the last axis into a 32-bit word, element order[0] in the lowest bits."""
    eight = elements.reshape(*elements.shape[:-1], -1, 8).astype(np.uint32)[..., list(order)]
    return np.bitwise_or.reduce(eight << np.arange(0, 32, 4, dtype=np.uint32), -1).view(np.int32)


def random_matrix(seed, *experts):
    random = np.random.default_rng(seed)
    elements, zeros = random.integers(0, 16, (*experts, K, N)), random.integers(0, 16, (*experts, K // SIZE, N))
    return elements, zeros, random.random((*experts, K // SIZE, N)).astype(np.float16)


def values(elements, zeros, scales):
    repeated = (np.repeat(x.astype(np.float64), SIZE, -2) for x in (zeros, scales))
    zero, scale = repeated
    return (elements - zero) * scale


@pytest.mark.parametrize("experts", [(), (E,)])
@pytest.mark.parametrize("jit", [False, True])
def test_int4_from_awq(experts, jit):
    elements, zeros, scales = random_matrix(0, *experts)
    call = jax.jit(raggemm.int4_from_awq) if jit else raggemm.int4_from_awq
    got = call(pack(elements, AWQ), pack(zeros, AWQ), scales)
    assert got.dtype == jnp.uint4 and got.shape == (*experts, K, N)
    np.testing.assert_allclose(np.float64(raggemm.dequantize(got)), values(elements, zeros, scales), rtol=1e-6)


@pytest.mark.parametrize("experts", [(), (E,)])
@pytest.mark.parametrize("less_one", [True, False])
def test_int4_from_gptq(experts, less_one):
    elements, zeros, scales = random_matrix(1, *experts)
    qweight = np.swapaxes(pack(np.swapaxes(elements, -1, -2)), -1, -2)
    got = raggemm.int4_from_gptq(qweight, pack((zeros - less_one) % 16), scales, zeros_less_one=less_one)
    assert got.dtype == jnp.uint4 and got.shape == (*experts, K, N)
    np.testing.assert_allclose(np.float64(raggemm.dequantize(got)), values(elements, zeros, scales), rtol=1e-6)


@pytest.mark.parametrize("experts", [(), (E,)])
def test_fp8_from_blocks(experts):
    random = np.random.default_rng(3)
    weight = random.normal(size=(*experts, 256, 384)).astype(ml_dtypes.float8_e4m3fn)
    scale = random.random((*experts, 2, 3)).astype(np.float32)
    got = raggemm.fp8_from_blocks(weight, scale)
    repeated = np.repeat(np.repeat(scale.astype(np.float64), 128, -2), 128, -1)
    np.testing.assert_allclose(np.float64(raggemm.dequantize(got)), weight.astype(np.float64) * repeated, rtol=1e-6)


W, Z, S = np.zeros((K, N // 8), np.int32), np.zeros((K // SIZE, N // 8), np.int32), np.zeros((K // SIZE, N), np.float16)
F8 = np.zeros((256, 128), ml_dtypes.float8_e4m3fn)
WRONG = [
    (lambda: raggemm.int4_from_awq(W.astype(np.uint8), Z, S), TypeError, "qweight: dtype is uint8, must be int32"),
    (lambda: raggemm.int4_from_awq(W[0], Z, S), ValueError, r"qweight: shape is \(3,\), must have 2 axes or more"),
    (lambda: raggemm.int4_from_awq(W, Z, S[:, :-1]), ValueError, r"scales: shape is \(4, 23\), must be "),
    (lambda: raggemm.int4_from_awq(W, Z[:3], S[:3]), ValueError, "has 3 blocks, which must divide 64, K of"),
    (lambda: raggemm.int4_from_awq(W, Z[:2], S), ValueError, r"qzeros: has zero points for scales of \(2, 24\)"),
    (lambda: raggemm.int4_from_gptq(W[: K // 8], Z, S), ValueError, "scales: shape is"),
    (lambda: raggemm.fp8_from_blocks(F8.astype(np.float32), S), TypeError, "weight: dtype is float32"),
    (lambda: raggemm.fp8_from_blocks(F8[:200], S), ValueError, r"shape is \(200, 128\), .* blocks of 128 x 128"),
    (lambda: raggemm.fp8_from_blocks(F8, S), ValueError, r"weight_scale_inv: shape is \(4, 24\), must be \(2, 1\)"),
    (lambda: raggemm.fp8_from_blocks(F8, S, block=(0, 1)), ValueError, "in blocks of 0 x 1"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), WRONG)
def test_wrong_arrays(call, error, message):
    with pytest.raises(error, match=message):
        call()
