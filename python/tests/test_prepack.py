import dataclasses
import itertools
import zlib

import jax
import jax.numpy as jnp
import ml_dtypes
import moe_mlps
import numpy as np
import pytest
import raggemm
from arrays import random, sampled
from quantized_formats import codes, dtype_of
from raggemm import GroupedTensor, QuantizedTensor, gmm, grouped_gemm, moe_mlp, prepack, unprepack

SIZES = np.array([3, 0, 7, 2], np.int32)
M, K, G = 14, 64, 4
LHS = random(M, K)
FLOATS = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)
QUANTIZED = ("int8", "uint8", "int4", "uint4", "int2", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn")
# Numbers of columns. 64 is one block of floats. 100 has much padding in the last block. 704 and 2880 are in blocks of
# 64 and 128 floats, or of 128 quantized elements.
COLUMNS = (1, 64, 100, 704, 2880, 0)


def same_bits(a, b):
    a, b = np.asarray(a), np.asarray(b)
    assert (a.shape, a.dtype) == (b.shape, b.dtype)
    assert a.tobytes() == b.tobytes()


def weights(columns, dtype=np.float32, transpose=False, seed=1):
    shape = (G, columns, K) if transpose else (G, K, columns)
    return jnp.asarray(random(*shape, seed=seed).astype(dtype))


def quantized(name, columns, transpose=False, blocks=2, has_zero=False):
    seed = np.random.default_rng(zlib.crc32(f"{name} {columns}".encode()))
    shape = (G, columns, K) if transpose else (G, K, columns)
    elements = codes(name)
    data = jnp.asarray(seed.choice(elements[np.isfinite(elements.astype(np.float32))], shape))
    scale_shape = (G, columns, blocks) if transpose else (G, blocks, columns)
    scale = jnp.asarray(seed.uniform(0.5, 2, scale_shape).astype(np.float32))
    zero = jnp.ones(scale_shape, data.dtype) if has_zero and dtype_of(name).kind in "iu" else None
    return QuantizedTensor(data, scale, zero)


@pytest.mark.parametrize(
    ("columns", "transpose"), sampled([*itertools.product(COLUMNS, (False, True))], 5, unpack=True)
)
def test_floats_come_back_and_have_the_same_products(columns, transpose, x64):
    for dtype in FLOATS:
        w = weights(columns, dtype, transpose)
        packed = prepack(w, transpose=transpose)
        assert (packed.shape, packed.ndim, packed.dtype) == ((G, K, columns), 3, np.dtype(dtype))
        same_bits(unprepack(packed), w)
        lhs = LHS.astype(dtype)
        same_bits(gmm(lhs, packed, SIZES), gmm(lhs, w, SIZES, transpose_rhs=transpose))
        if not transpose:
            same_bits(raggemm.ragged_dot(lhs, packed, SIZES), raggemm.ragged_dot(lhs, w, SIZES))


@pytest.mark.parametrize(("name", "columns"), sampled([*itertools.product(QUANTIZED, COLUMNS)], 7, unpack=True))
def test_quantized_weights_come_back_and_have_the_same_products(name, columns):
    transpose = QUANTIZED.index(name) % 2 == 1
    for dtype, has_zero in ((np.float32, False), (ml_dtypes.bfloat16, True)):
        w = quantized(name, columns, transpose, has_zero=has_zero)
        packed = prepack(w, transpose=transpose)
        back = unprepack(packed)
        for field in ("data", "scale"):
            same_bits(getattr(back, field), getattr(w, field))
        assert (back.zero_point is None) == (w.zero_point is None)
        lhs = LHS.astype(dtype)
        same_bits(gmm(lhs, packed, SIZES), gmm(lhs, w, SIZES, transpose_rhs=transpose))


@pytest.mark.parametrize("name", ["SCALAR", "AVX2", "AVX512"])
def test_every_instruction_set_reads_packed_weights(name):
    usable = {isa["name"].upper() for isa in raggemm._src.library.description()["isas"] if isa["usable"]}
    if name not in usable:
        pytest.skip(f"this CPU has no {name}")
    w, q = weights(300, ml_dtypes.bfloat16), quantized("float4_e2m1fn", 300)
    packed, packed_q = prepack(w), prepack(q)
    expected = gmm(LHS, w, SIZES), gmm(LHS, q, SIZES)
    with raggemm.options(isa=name):
        same_bits(jax.jit(lambda w: gmm(LHS, w, SIZES))(packed), expected[0])
        same_bits(jax.jit(lambda w: gmm(LHS, w, SIZES))(packed_q), expected[1])


# Lowered programs.


def test_packed_weights_are_operands_without_a_copy():
    text = jax.jit(lambda w: gmm(LHS, w, SIZES)).lower(prepack(weights(100))).as_text()
    assert 'rhs_layout = "COLUMN_BLOCKS"' in text
    assert "transpose" not in text


def prepack_weights(case, names):
    transposes = dict(zip(("w_up", "w_down"), case.transposed, strict=True))
    transposes["w_gate"] = transposes["w_up"]
    return {n: prepack(w, transpose=transposes[n]) if n in names else w for n, w in case.given.items()}


def arguments(case, given, transposed):
    return {
        "row_weights": None,
        "row_tokens": moe_mlps.ROW_TOKENS,
        "group_sizes": moe_mlps.SIZES,
        "merged": case.merged,
        "transpose_up": transposed[0],
        "transpose_down": transposed[1],
    } | given


# Errors.


W = prepack(np.zeros((G, K, 100), np.float32))
BAD = [
    (lambda: prepack(np.zeros((K, 100), np.float32)), ValueError, r"w: shape is \(64, 100\), must be \[G,K,N\]"),
    (lambda: prepack(np.zeros((G, K, 100), np.int32)), TypeError, "w: dtype is int32"),
    (lambda: prepack(np.zeros((G, K, 100), np.int8)), TypeError, "w: dtype is int8.*QuantizedTensor"),
    (lambda: prepack(W), TypeError, "w: is a PackedWeights, must be an array"),
    (lambda: unprepack(LHS), TypeError, "packed: is ndarray, must be PackedWeights"),
    (lambda: gmm(LHS, dataclasses.replace(W, version=2), SIZES), ValueError,
     "rhs: is packed by version 2 of the layout, this raggemm reads version 1"),
    (lambda: unprepack(dataclasses.replace(W, version=2)), ValueError, "version 2 .* version 1"),
    (lambda: gmm(LHS, dataclasses.replace(W, columns=129), SIZES), ValueError,
     r"rhs.data: shape is \(4, 2, 64, 64\), must be \[G,T,K,B\] with T blocks for 129 columns"),
    (lambda: gmm(LHS, dataclasses.replace(W, data=W.data[0]), SIZES), ValueError, "rhs.data: shape is"),
    (lambda: gmm(LHS, dataclasses.replace(W, scale=np.ones(3, np.float32)), SIZES), ValueError, "rhs.scale: shape"),
    (lambda: gmm(LHS[:, :60], W, SIZES), ValueError,
     r"rhs, shape \(4, 64, 100\), are contracted, but differ: 60 and 64"),
    (lambda: gmm(LHS, W, SIZES, transpose_rhs=True), ValueError, "rhs: PackedWeights are .* axis 1"),
    (lambda: gmm(LHS, W, SIZES[:3], group_offset=0), ValueError, "4 groups, more than the 3"),
    (lambda: gmm(W, W, SIZES), TypeError, "lhs: is a PackedWeights, must be an array"),
    (lambda: raggemm.tgmm(LHS.T, W, SIZES), ValueError, r"rhs: shape is \(4, 64, 100\), must have 2 axes"),
    (lambda: grouped_gemm(np.zeros((G, 3, K), np.float32), W, contracting_dims=((2,), (1,))), ValueError,
     "rhs: PackedWeights are for the rhs of ragged M; unprepack them"),
    (lambda: grouped_gemm(GroupedTensor(LHS, SIZES), W, contracting_dims=((1,), (2,))), ValueError,
     "rhs: PackedWeights are"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=range(len(BAD)))
def test_wrong_arguments_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_wrong_weights_of_moe_mlp_are_refused():
    case = moe_mlps.Case()
    packed = prepack_weights(case, ("w_up", "w_gate", "w_down"))
    for given, transposed, error, message in (
        (packed | {"w_gate": case.given["w_gate"]}, (0, 0), TypeError, "w_gate: must be PackedWeights if"),
        (packed, (1, 0), ValueError, "w_up: is PackedWeights.* transpose_up"),
        (packed, (0, 1), ValueError, "w_down: is PackedWeights.* transpose_down"),
        (packed | {"w_down": packed["w_up"]}, (0, 0), ValueError, r"w_down: shape is \(4, 64, 32\), must be \[4,I"),
    ):
        with pytest.raises(error, match=message):
            moe_mlp(**arguments(case, given, transposed))
