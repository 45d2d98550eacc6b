"""Tests weights that prepack packs for products with lhs_quantize=jnp.int8."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import raggemm
from arrays import random
from quantized_operands import tensor
from raggemm import GroupedTensor, QuantizedTensor, gmm, grouped_gemm, moe_mlp, nn, prepack, quantize, unprepack

SIZES = np.array([3, 0, 7, 2], np.int32)
M, K, G = 14, 96, 4
LHS = random(M, K)
DTYPES = ("int8", "uint8", "int4", "uint4", "float4_e2m1fn")
COLUMNS = (1, 40, 64, 0)
INT8 = {"lhs_quantize": jnp.int8}
pack = functools.partial(prepack, **INT8)


def same_bits(a, b):
    a, b = np.asarray(a), np.asarray(b)
    assert (a.shape, a.dtype) == (b.shape, b.dtype)
    assert a.tobytes() == b.tobytes()


def weights(name, columns, k=K, transpose=False, blocks=3):
    """Makes random weights [G,k,columns], with zero points if the type is unsigned."""
    q = tensor(jnp.dtype(name), (G, k, columns), (G, blocks, columns), zero="uint" in name)
    return jax.tree.map(lambda x: jnp.asarray(x.swapaxes(1, 2) if transpose else x), q)


def to_bytes(x):
    """Returns the bytes of an array in memory. Two elements of 4 bits share a byte, the first one in the low bits."""
    codes = np.asarray(x).view(np.uint8).reshape(-1)
    return (codes[::2] & 15) | codes[1::2] << 4 if "4" in x.dtype.name else codes


def expected_bytes(data):
    """Orders the elements of [G,K,N] one by one, as include/raggemm/problem.h describes kWordBlocks."""
    groups, k, columns = data.shape
    halves = 2 if "4" in data.dtype.name else 1
    codes, out = data.view(np.uint8) & (15 if halves == 2 else 255), []
    for g, first, row in itertools.product(range(groups), range(0, columns, 32), range(0, k, 4)):
        for j, i in itertools.product(range(32 // halves), range(4)):
            byte = 0
            for half in range(halves):
                column = first + j + 16 * half
                byte |= int(codes[g, row + i, column] if column < columns else 0) << 4 * half
            out.append(byte)
    return np.array(out, np.uint8)


def order_by_blocks(values):
    """Returns scales or zero points [D,D0,N] in the order [D,T,D0,32], as [D,D0,32*T]."""
    values = np.asarray(values)
    groups, blocks, columns = values.shape
    count = -(-columns // 32)
    out = np.zeros((groups, blocks, 32 * count), values.dtype)
    flat = out.reshape(-1)
    for g, b, j in np.ndindex(values.shape):
        flat[((g * count + j // 32) * blocks + b) * 32 + j % 32] = values[g, b, j]
    return out


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("name", DTYPES)
def test_order_in_memory(name, transpose):
    for columns, k in itertools.product(COLUMNS, (4, 12)):
        w = weights(name, columns, k, transpose, blocks=1)
        packed = pack(w, transpose=transpose)
        assert (packed.shape, packed.ndim, packed.dtype) == ((G, k, columns), 3, np.dtype(w.dtype))
        data = np.asarray(w.data)
        want = expected_bytes(data.swapaxes(1, 2).copy() if transpose else data)
        np.testing.assert_array_equal(to_bytes(packed.data), want)
        jax.tree.map(same_bits, unprepack(packed), w)


@pytest.mark.parametrize("name", ["uint8", "uint4"])
def test_order_of_scales_and_zero_points(name):
    for columns, blocks in itertools.product((40, 64), (1, 3)):
        w = weights(name, columns, blocks=blocks)
        packed = pack(w)
        same_bits(packed.scale, order_by_blocks(w.scale))
        same_bits(packed.zero_point, order_by_blocks(w.zero_point))
        jax.tree.map(same_bits, unprepack(packed), w)
    shared = QuantizedTensor(w.data, w.scale[:, :, ::8])
    same_bits(pack(shared).scale, shared.scale)


def test_a_call_gets_the_weights_without_a_copy():
    text = jax.jit(lambda w: gmm(LHS, w, SIZES, **INT8)).lower(pack(weights("int4", 40))).as_text()
    assert 'rhs_layout = "WORD_BLOCKS"' in text
    assert "transpose" not in text


# Products.


@pytest.mark.parametrize("block", [32, None])
@pytest.mark.parametrize("name", DTYPES)
def test_products_have_the_bits_of_unpacked_weights(name, block):
    options = INT8 | {"lhs_block": block}
    for n, dtype in itertools.product(COLUMNS, (np.float32, ml_dtypes.bfloat16)):
        # Unpacked float4_e2m1fn must have an even number of columns.
        lhs, w = LHS.astype(dtype), weights(name, n + n % 2)
        packed = pack(jax.tree.map(lambda x: x[:, :, :n], w))  # noqa: B023
        for call in (gmm, raggemm.ragged_dot):
            same_bits(call(lhs, packed, SIZES, **options), call(lhs, w, SIZES, **options)[:, :n])
    bias, index = random(G, 40), np.arange(M, dtype=np.int32)[::-1].copy()
    w = weights(name, 40)
    run = functools.partial(
        grouped_gemm, GroupedTensor(LHS, SIZES), contracting_dims=((1,), (1,)), bias=bias, row_index=index,
        activation="relu", **options,
    )  # fmt: skip
    same_bits(run(pack(w)), run(w))


def test_every_instruction_set_has_the_same_products():
    w = weights("int8", 40), weights("float4_e2m1fn", 40)
    want = [gmm(LHS, x, SIZES, **INT8) for x in w]
    for isa in raggemm._src.library.description()["isas"]:
        if isa["usable"]:
            with raggemm.options(isa=isa["name"]):
                for x, y in zip(w, want, strict=True):
                    same_bits(jax.jit(lambda x: gmm(LHS, x, SIZES, **INT8))(pack(x)), y)


HIDDEN, INNER = 64, 96
ROWS = {"x": random(6, HIDDEN), "row_tokens": np.array([*range(6), *range(6)]), "group_sizes": np.array([3, 0, 7, 2])}
ROWS |= {"row_weights": random(12, seed=3)}


def mlp_weights(up, down, gate="separate"):
    random = np.random.default_rng(5)
    shapes = {"w_up": (up, HIDDEN, INNER * (2 if gate == "merged" else 1)), "w_down": (down, INNER, HIDDEN)}
    shapes |= {"w_gate": (up, HIDDEN, INNER)} if gate == "separate" else {}
    return {
        name: quantize(random.normal(size=(G, *shape)).astype(np.float32), dtype, block=(1, 32))
        for name, (dtype, *shape) in shapes.items()
    }


MLPS = [
    ("int8", "int4", "separate", ("w_up", "w_gate", "w_down")),
    ("uint4", "float4_e2m1fn", "merged", ("w_up", "w_down")),
    ("float4_e2m1fn", "uint8", None, ("w_up", "w_down")),
    ("int4", "int8", "separate", ("w_down",)),
    ("int4", "int4", "separate", ("w_up", "w_gate")),
]


@pytest.mark.parametrize("block", [32, None])
@pytest.mark.parametrize(("up", "down", "gate", "packed"), MLPS)
def test_mlps_have_the_bits_of_unpacked_weights(up, down, gate, packed, block):
    w = mlp_weights(up, down, gate)
    options = INT8 | {"lhs_block": block, "merged": "halves" if gate == "merged" else None}
    for x in (ROWS["x"], ROWS["x"].astype(ml_dtypes.bfloat16)):
        run = functools.partial(moe_mlp, **ROWS | {"x": x}, **options)
        same_bits(run(**{name: pack(v) if name in packed else v for name, v in w.items()}), run(**w))


def test_a_layer_has_the_bits_of_unpacked_weights():
    w = mlp_weights("int4", "int8")
    shared = {f"shared_{name[2:]}": x[0] for name, x in w.items()}
    router = {"router": random(HIDDEN, G)}
    run = functools.partial(nn.apply, x=ROWS["x"], top_k=2, **INT8)
    packed = {name: pack(x[:1] if "shared" in name else x) for name, x in w.items()}
    packed |= {f"shared_{name[2:]}": pack(x[:1]) for name, x in w.items()}
    jax.tree.map(same_bits, run(router | packed), run(router | w | shared))


# Derivatives.


@pytest.mark.parametrize("name", DTYPES)
def test_derivatives_of_products_are_those_of_unpacked_weights(name):
    w, ct = weights(name, 40), random(M, 40, seed=4)

    def derivatives(w):
        def product(lhs, scale):
            return gmm(lhs, dataclasses.replace(w, scale=scale), SIZES, **INT8)

        def pull(lhs):
            return jax.vjp(product, lhs, w.scale)[1](ct)

        return pull(LHS), jax.jvp(pull, (LHS,), (LHS,))[1]

    want = jax.jit(derivatives)(w)
    want = jax.tree.map(lambda x: order_by_blocks(x) if x.shape == w.scale.shape else x, want)
    jax.tree.map(same_bits, jax.jit(derivatives)(pack(w)), want)


def test_tangents_of_products_are_those_of_unpacked_weights():
    """The tangent is a product of rows that are not rounded. Its call gets the weights in column blocks."""
    for name, columns in itertools.product(DTYPES, (40, 1)):
        w = weights(name, columns)
        packed = pack(w)

        def tangent(w):
            def product(lhs, scale):
                return gmm(lhs, dataclasses.replace(w, scale=scale), SIZES, **INT8)

            # jit drops the rounded product, which is not a result.
            return jax.jit(lambda: jax.jvp(product, (LHS, w.scale), (LHS, w.scale))[1])()

        lhs_and_scale = 2 * gmm(LHS, w, SIZES)
        np.testing.assert_allclose(tangent(packed), lhs_and_scale, rtol=0, atol=1e-5 * np.abs(lhs_and_scale).max())


def test_derivatives_with_a_scale_for_each_group():
    """The 32 scales of groups must not be taken for those of the 32 columns of a block."""
    w = tensor(jnp.int8, (32, K, 20), (32,))
    sizes, ct = np.full(32, 1), random(32, 20, seed=4)

    def derivatives(w):
        run = functools.partial(gmm, rhs=w, group_sizes=sizes, **INT8)
        return jax.vjp(run, random(32, K))[1](ct), jax.jvp(run, (random(32, K),), (random(32, K),))

    jax.tree.map(same_bits, derivatives(pack(w)), derivatives(w))


@pytest.mark.parametrize("save", ["inputs", "activations"])
def test_derivatives_of_mlps_are_those_of_unpacked_weights(save):
    w = mlp_weights("int4", "int8")
    packed = {name: pack(x) for name, x in w.items()}

    def run(w, x, row_weights, scale):
        w = w | {"w_down": dataclasses.replace(w["w_down"], scale=scale)}
        return moe_mlp(**ROWS | {"x": x, "row_weights": row_weights}, **w, save=save, **INT8)

    def derivatives(w):
        primals = ROWS["x"], ROWS["row_weights"], w["w_down"].scale
        pull = jax.vjp(functools.partial(run, w), *primals)[1]
        rows = jax.vjp(lambda *x: run(w, *x, primals[2]), *primals[:2])[1](ROWS["x"])
        return pull(ROWS["x"]), rows, jax.jvp(functools.partial(run, w), primals, primals)[1]

    want, scale = jax.jit(derivatives)(w), w["w_down"].scale
    want = jax.tree.map(lambda x: order_by_blocks(x) if x.shape == scale.shape else x, want)
    jax.tree.map(same_bits, jax.jit(derivatives)(packed), want)


# Errors.


W = pack(weights("int8", 40))
MLP = mlp_weights("int8", "int8")
PACKED_MLP = {name: pack(x) for name, x in MLP.items()}
NEEDS_INT8 = "is prepacked with lhs_quantize=int8, .* give lhs_quantize=jnp.int8, or unprepack"


def run_mlp(**changes):
    return moe_mlp(**ROWS | PACKED_MLP | changes)


BAD = [
    (lambda: pack(np.zeros((G, K, 40), np.float32)), TypeError,
     "w: is an array of float32, must be a QuantizedTensor of int8, uint8, int4, uint4 or float4_e2m1fn with lhs_qu"),
    (lambda: pack(weights("float8_e4m3fn", 40)), TypeError, "w: is a QuantizedTensor of float8_e4m3fn, must be"),
    (lambda: pack(weights("int2", 40)), TypeError, "w: is a QuantizedTensor of int2, must be"),
    (lambda: pack(QuantizedTensor(weights("int8", 40).data, jnp.ones((G, 3, 5)))), ValueError,
     "w: has 5 scales or zero points for 40 columns, must have 1 or 40 with lhs_quantize=int8, unless"),
    (lambda: pack(weights("int8", 40, 6)), ValueError, "w: K is 6, must be a multiple of 4 with lhs_quantize=int8"),
    (lambda: pack(weights("int8", 40, 6, transpose=True), transpose=True), ValueError, "w: K is 6, must be a"),
    (lambda: prepack(weights("int8", 40), lhs_quantize=jnp.int4), TypeError,
     "lhs_quantize: dtype is int4, must be int8"),
    (lambda: gmm(LHS, W, SIZES), ValueError, f"rhs: {NEEDS_INT8}"),
    (lambda: gmm(LHS, W, SIZES, lhs_quantize=jnp.float8_e4m3fn), ValueError, f"rhs: {NEEDS_INT8}"),
    (lambda: raggemm.ragged_dot(LHS, W, SIZES), ValueError, f"rhs: {NEEDS_INT8}"),
    (lambda: grouped_gemm(GroupedTensor(LHS, SIZES), W, contracting_dims=((1,), (1,))), ValueError,
     f"rhs: {NEEDS_INT8}"),
    (run_mlp, ValueError, f"w_up: {NEEDS_INT8}"),
    (lambda: run_mlp(w_up=MLP["w_up"], w_gate=MLP["w_gate"]), ValueError, f"w_down: {NEEDS_INT8}"),
    (lambda: run_mlp(w_gate=prepack(MLP["w_gate"]), **INT8), ValueError,
     "w_gate: layout is COLUMN_BLOCKS, must be WORD_BLOCKS, the layout of w_up"),
    (lambda: nn.apply({"router": random(HIDDEN, G)} | PACKED_MLP, ROWS["x"], 2), ValueError,
     rf"params\['w_up'\]: {NEEDS_INT8}"),
    (lambda: unprepack(dataclasses.replace(W, layout="STRIDED")), ValueError, "packed.layout is 'STRIDED', must be"),
    (lambda: unprepack(dataclasses.replace(W, data=W.data[:, :, :94])), ValueError,
     r"packed.data: shape is \(4, 2, 94, 32\), must be \[G,T,4\*n,32\] with T blocks for 40 columns"),
    (lambda: unprepack(dataclasses.replace(W, data=W.data.astype(jnp.int2))), TypeError, "packed.data: dtype is int2"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=range(len(BAD)))
def test_wrong_arguments_are_refused(call, error, message):
    with pytest.raises(error, match=f"^{message}"):
        jax.eval_shape(call)


def test_a_matrix_without_scales_is_packed():
    w = QuantizedTensor(weights("int4", 40).data)
    packed = pack(w)
    assert packed.scale is None and packed.zero_point is None
    same_bits(unprepack(packed).data, w.data)
