"""Tests the functions that read matrices in the layouts of checkpoints."""

import functools

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


def pack_words(elements, bits):
    """Packs unsigned elements of the last axis into 32-bit words, the first one in the lowest bits."""
    words = elements.reshape(*elements.shape[:-1], -1, 32 // bits).astype(np.uint32)
    return np.bitwise_or.reduce(words << np.arange(0, 32, bits, dtype=np.uint32), -1).view(np.int32)


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
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("jit", [True, False])
def test_act_order_of_gptq(experts, bits, symmetric, jit):
    """Multiplies permuted rows by the sorted matrix, and compares with the values of the stored matrix."""
    random = np.random.default_rng(2)
    elements, zeros = (random.integers(0, 2**bits, (*experts, k, N)) for k in (K, K // SIZE))
    scales = random.random(zeros.shape).astype(np.float16)
    g_idx = random.permuted(np.broadcast_to(np.arange(K, dtype=np.int32) // SIZE, (*experts, K)), axis=-1)
    qweight = np.swapaxes(pack_words(np.swapaxes(elements, -1, -2), bits), -1, -2)
    qzeros = np.zeros(0, np.int32) if symmetric else pack_words((zeros - 1) % 2**bits, bits)
    read = functools.partial(raggemm.int4_from_gptq, bits=bits)
    got = (jax.jit(read) if jit else read)(qweight, qzeros, scales, g_idx=g_idx)
    assert got.dtype == f"{'' if symmetric else 'u'}int{bits}"
    zero = 2 ** (bits - 1) if symmetric else np.take_along_axis(zeros, g_idx[..., None], -2)
    want = (elements - zero) * np.take_along_axis(scales.astype(np.float64), g_idx[..., None], -2)
    rows, order = random.normal(size=(5, K)).astype(np.float32), np.argsort(g_idx, axis=-1, kind="stable")
    permuted, exact = np.moveaxis(rows[:, order], 0, -2), np.float64(rows) @ want
    product = permuted @ np.float64(raggemm.dequantize(got))
    np.testing.assert_allclose(product, exact, rtol=0, atol=1e-5 * np.abs(product).max())
    if symmetric:
        packed = pack_words(np.swapaxes(elements, -1, -2), bits)
        read = functools.partial(raggemm.from_compressed_tensors, bits=bits)
        got = (jax.jit(read) if jit else read)(packed, np.swapaxes(scales, -1, -2), weight_g_idx=g_idx)
        product = permuted @ np.float64(np.swapaxes(raggemm.dequantize(got), -1, -2))
        np.testing.assert_allclose(product, exact, rtol=0, atol=1e-5 * np.abs(product).max())


@pytest.mark.parametrize("experts", [(), (E,)])
def test_fp8_from_blocks(experts):
    random = np.random.default_rng(3)
    weight = random.normal(size=(*experts, 256, 384)).astype(ml_dtypes.float8_e4m3fn)
    scale = random.random((*experts, 2, 3)).astype(np.float32)
    got = raggemm.fp8_from_blocks(weight, scale)
    repeated = np.repeat(np.repeat(scale.astype(np.float64), 128, -2), 128, -1)
    np.testing.assert_allclose(np.float64(raggemm.dequantize(got)), weight.astype(np.float64) * repeated, rtol=1e-6)


@pytest.mark.parametrize("experts", [(), (E,)])
@pytest.mark.parametrize(("n", "k"), [(192, 576), (130, 128), (96, 100), (256, 131)])
@pytest.mark.parametrize("jit", [False, True])
def test_partial_fp8_blocks(experts, n, k, jit):
    random = np.random.default_rng(6)
    weight = random.normal(size=(*experts, n, k)).astype(ml_dtypes.float8_e4m3fn)
    scale = random.random((*experts, -(-n // 128), -(-k // 128))).astype(np.float32)
    got = (jax.jit(raggemm.fp8_from_blocks) if jit else raggemm.fp8_from_blocks)(weight, scale)
    each = np.repeat(np.repeat(scale.astype(np.float64), 128, -2), 128, -1)[..., :n, :k]
    want = weight.astype(np.float64) * each
    np.testing.assert_allclose(np.float64(raggemm.dequantize(got)), want, rtol=1e-6)
    rows, sizes = random.normal(size=(5, k)).astype(np.float32), np.array([2, 3])[: len(want) if experts else 1]
    w = got if experts else jax.tree.map(lambda x: x[None], got)
    product = raggemm.gmm(rows[: sizes.sum()], w, sizes, transpose_rhs=True)
    groups = np.split(np.float64(rows[: sizes.sum()]), np.cumsum(sizes)[:-1])
    matrices = want if experts else want[None]
    exact = np.concatenate([x @ m.T for x, m in zip(groups, matrices, strict=True)])
    np.testing.assert_allclose(product, exact, rtol=0, atol=1e-5 * np.abs(exact).max())


@pytest.mark.parametrize(("n", "k"), [(256, 128), (192, 576), (130, 100)])
def test_fp8_from_blocks_reads_blocks_of_quantize(n, k):
    w = np.random.default_rng(7).normal(size=(E, n, k)).astype(np.float32)
    q = raggemm.quantize(w, jnp.float8_e4m3fn, block=((-2, 128), (-1, 128)))
    padded = np.pad(np.abs(w), ((0, 0), (0, -n % 128), (0, -k % 128)))
    scale = padded.reshape(E, -(-n // 128), 128, -(-k // 128), 128).max((2, 4)) * np.float32(1 / 448)
    read = raggemm.fp8_from_blocks(q.data, scale)
    np.testing.assert_array_equal(read.scale, q.scale)
    np.testing.assert_array_equal(raggemm.fp8_from_blocks(q.data, q.scale).scale, q.scale)
    each = np.repeat(np.repeat(scale, 128, 1), 128, 2)[:, :n, :k]
    np.testing.assert_array_equal(
        np.float32(q.data), (w * (1 / each)).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    )


def pack_compressed(signed, bits):
    """Packs signed elements along the last axis as compressed-tensors does: element i starts at bit i * bits."""
    unsigned = (signed + 2 ** (bits - 1)).astype(np.uint8)
    stream = np.unpackbits(unsigned[..., None], axis=-1, count=bits, bitorder="little").reshape(*signed.shape[:-1], -1)
    stream = np.pad(stream, [(0, 0)] * (signed.ndim - 1) + [(0, -stream.shape[-1] % 32)])
    return np.packbits(stream, axis=-1, bitorder="little").view("<i4")


@pytest.mark.parametrize("experts", [(), (E,)])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("n", "k", "size"), [(16, 64, 32), (10, 30, 10), (16, 64, 64)])
@pytest.mark.parametrize("symmetric", [True, False])
def test_packed_compressed_tensors(experts, bits, n, k, size, symmetric):
    random, half = np.random.default_rng(4), 2 ** (bits - 1)
    signed, zeros = (random.integers(-half, half, (*experts, n, x)) for x in (k, k // size))
    scales = random.random(zeros.shape).astype(ml_dtypes.bfloat16)
    packed_zeros = np.swapaxes(pack_compressed(np.swapaxes(zeros, -1, -2), bits), -1, -2)
    got = raggemm.from_compressed_tensors(
        pack_compressed(signed, bits), scales, None if symmetric else packed_zeros, bits=bits, weight_shape=[n, k]
    )
    assert got.dtype == (jnp.int4 if bits == 4 else jnp.int8) and got.shape == signed.shape
    want = signed - (0 if symmetric else np.repeat(zeros, size, -1))
    np.testing.assert_array_equal(
        np.float64(raggemm.dequantize(got)), want * np.repeat(scales.astype(np.float64), size, -1)
    )


@pytest.mark.parametrize("scale", [(E, 16, 1), (E, 1), (E,), (E, 16, 2)])
def test_unpacked_compressed_tensors(scale):
    random = np.random.default_rng(5)
    fp8 = random.normal(size=(E, 16, 64)).astype(ml_dtypes.float8_e4m3fn)
    int8, scales = random.integers(-128, 128, fp8.shape, np.int8), random.random(scale).astype(np.float32)
    zeros = random.integers(-128, 128, scale, np.int8)
    blocks = scale if len(scale) == 3 else (E, 1, 1)
    size = 64 // blocks[2]
    each, zero = (np.repeat(x.reshape(blocks).astype(np.float64), size, -1) for x in (scales, zeros))
    got = raggemm.from_compressed_tensors(fp8, scales)
    np.testing.assert_allclose(np.float64(raggemm.dequantize(got)), fp8.astype(np.float64) * each, rtol=1e-6)
    got = raggemm.from_compressed_tensors(int8, scales, zeros)
    np.testing.assert_allclose(np.float64(raggemm.dequantize(got)), (int8 - zero) * each, rtol=1e-6)


W, Z, S = np.zeros((K, N // 8), np.int32), np.zeros((K // SIZE, N // 8), np.int32), np.zeros((K // SIZE, N), np.float16)
F8 = np.zeros((256, 128), ml_dtypes.float8_e4m3fn)
G = np.arange(8 * K) // (8 * SIZE)
F8_SCALE = np.ones((256, 1), np.float32)
ONES, compressed = np.ones((K, 1), np.float32), raggemm.from_compressed_tensors
WRONG = [
    (lambda: raggemm.int4_from_awq(W.astype(np.uint8), Z, S), TypeError, "qweight: dtype is uint8, must be int32"),
    (lambda: raggemm.int4_from_awq(W[0], Z, S), ValueError, r"qweight: shape is \(3,\), must have 2 axes or more"),
    (lambda: raggemm.int4_from_awq(W, Z, S[:, :-1]), ValueError, r"scales: shape is \(4, 23\), must be "),
    (lambda: raggemm.int4_from_awq(W, Z[:3], S[:3]), ValueError, "has 3 blocks, which must divide 64, K of"),
    (lambda: raggemm.int4_from_awq(W, Z[:2], S), ValueError, r"qzeros: has zero points for scales of \(2, 24\)"),
    (lambda: raggemm.int4_from_gptq(W[: K // 8], Z, S), ValueError, "scales: shape is"),
    (lambda: raggemm.int4_from_gptq(W[:8], Z, S, bits=2), ValueError, "bits is 2, must be 4 or 8"),
    (lambda: raggemm.int4_from_gptq(W, None, S[:, :3], g_idx=G[:9]), ValueError, r"g_idx: shape"),
    (lambda: raggemm.int4_from_gptq(W, None, S[:, :3], g_idx=G * 0), ValueError, "g_idx: must have each"),
    (lambda: raggemm.fp8_from_blocks(F8, np.ones((2, 1), np.uint8)), TypeError, r"need \.view\(ml_dtypes\.float8"),
    (lambda: raggemm.dequantize(raggemm.QuantizedTensor(F8, np.ones((256, 4), np.uint8))), TypeError,
     r"q\.scale: dtype is uint8, must be .*; bytes of float8_e8m0fnu need \.view\(ml_dtypes\.float8_e8m0fnu\)"),
    (lambda: raggemm.fp8_from_blocks(F8.astype(np.float32), S), TypeError, "weight: dtype is float32"),
    (lambda: raggemm.fp8_from_blocks(F8[:200], S), ValueError, r"\(4, 24\), must be \(2, 1\) or \(25, 1\), one per"),
    (lambda: raggemm.fp8_from_blocks(F8, S), ValueError, r"weight_scale_inv: shape is \(4, 24\), must be \(2, 1\)"),
    (lambda: raggemm.fp8_from_blocks(F8, S, block=(0, 1)), ValueError, "in blocks of 0 x 1"),
    (lambda: compressed(W.astype(np.uint8), S), TypeError, "weight: dtype is uint8, must be int32, int8 or float8"),
    (lambda: compressed(W, S[:, :1], bits=3), ValueError, "bits is 3, must be 4 or 8"),
    (lambda: compressed(W, S, weight_shape=3), TypeError, r"weight_shape is 3, must be \(N, K\)"),
    (lambda: compressed(W, S, weight_shape=(64, 25)), ValueError, r"shape is \(64, 3\), .*weight_shape \(64, 25\)"),
    (lambda: compressed(W, S), ValueError, r"weight_scale: shape is \(4, 24\), must be .* of shape \(64, 24\)"),
    (lambda: compressed(W, ONES, Z), ValueError, "weight_zero_point: has 4 rows of int32, must have 8 for N = 64"),
    (lambda: compressed(F8, ONES[:, 0], S), TypeError, "weight_zero_point: dtype is float16, must be int8"),
    (lambda: compressed(F8, F8_SCALE, weight_g_idx=G), TypeError, "weight: with weight_g_idx: dtype is float8_e4m3fn"),
    (lambda: compressed(W, ONES, W[:8]), ValueError, r"shape is \(64, 3\), must be \(64, 1\) if unpacked"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), WRONG)
def test_wrong_arrays(call, error, message):
    with pytest.raises(error, match=message):
        call()
