import dataclasses
import itertools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import oracle
import pytest
import quantized_modes as q
import raggemm
from arrays import sampled
from quantized_modes import SIZES, G, K, M, N, experts, near
from quantized_operands import close, dense, tensor
from raggemm import GroupedTensor, QuantizedTensor, gmm
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
    got = jax.jit(lambda *args: call(*args, lhs_quantize=jnp.int8, lhs_block=None))(lhs, rhs, SIZES)
    assert got.dtype == np.float32
    near(got, *q.product("M", dequantized_rows(lhs), np.float64(rhs)))
    halves = dequantized_rows(lhs.reshape(2 * M, K // 2)).reshape(M, K)
    got = jax.jit(lambda *args: call(*args, lhs_quantize=jnp.int8))(lhs, rhs, SIZES)
    near(got, *q.product("M", halves, np.float64(rhs)))


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
    options = {"lhs_quantize": jnp.int8, "lhs_block": None}
    loss = jax.jit(jax.grad(lambda *args: (raggemm.gmm(*args, SIZES, **options) * ct).sum(), (0, 1)))
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


# Rows that the call quantizes, if rhs has codes.

# {name: (dtype, shape of the scales or None, has zero points, dtype of the scales)}
CODES = {
    "int8": (np.int8, (G, 1, N), False, np.float32),
    "uint8": (np.uint8, (G, K // 16, N), True, jnp.bfloat16),
    "int4": (jnp.int4, (G, K // 32, N), False, jnp.bfloat16),
    "uint4": (jnp.uint4, (G, K // 32, N), True, np.float16),
    "int2": (jnp.int2, (1, 1, N), False, np.float32),
    "mxfp4": (jnp.float4_e2m1fn, (G, K // 32, N), False, ml_dtypes.float8_e8m0fnu),
    "nvfp4": (jnp.float4_e2m1fn, (G, K // 16, N), False, ml_dtypes.float8_e4m3fn),
    "no scale": (np.int8, None, False, np.float32),
}


def code_tensor(name):
    dtype, shape, zero, scale_dtype = CODES[name]
    if shape is None:
        return QuantizedTensor(tensor(dtype, (G, K, N), ()).data)
    return tensor(dtype, (G, K, N), shape, scale_dtype, zero)


def rounded(lhs, rhs, block, groups=q.GROUP_OF_ROW):
    """Returns the result of a ragged M product by the rule, float32 [M,N]."""
    out, fields = np.zeros((len(lhs), rhs.shape[2]), np.float32), (rhs.scale, rhs.zero_point)
    for g in range(len(rhs.data)):
        params = (None if x is None else np.asarray(x)[g if len(x) > 1 else 0] for x in fields)
        out[groups == g] = oracle.rounded_product(lhs[groups == g], rhs.data[g], *params, block=block)
    return out


@pytest.mark.parametrize(("name", "block"), [*itertools.product(CODES, (32, 64, None))])
def test_rounded_rows_have_the_bits_of_the_rule(name, block):
    lhs, rhs = operands()[0], code_tensor(name)
    lhs[3] = 0
    lhs[4, :32] *= 2.0**-140  # Scales are subnormal.
    lhs[5, :32] *= 2.0**100
    lhs[6, 7], lhs[10, 40] = np.nan, -np.inf
    options = {"lhs_quantize": jnp.int8, "lhs_block": block}
    for rows in (lhs, lhs.astype(jnp.bfloat16)):
        want = rounded(rows, rhs, block)
        assert np.isnan(want[[6, 10]]).all() and np.isfinite(np.delete(want, [6, 10], 0)).all()
        calls = {
            "gmm": lambda rows=rows: raggemm.gmm(rows, rhs, SIZES, **options),
            "packed": lambda rows=rows: raggemm.gmm(rows, raggemm.prepack(rhs), SIZES, **options),
            "ragged_dot": lambda rows=rows: raggemm.ragged_dot(
                rows, rhs, SIZES, preferred_element_type=np.float32, **options
            ),
            "grouped_gemm": lambda rows=rows: raggemm.grouped_gemm(
                GroupedTensor(rows, SIZES), rhs, contracting_dims=((1,), (1,)),
                preferred_element_type=np.float32, **options,
            ),
        }  # fmt: skip
        for call, run in calls.items():
            np.testing.assert_array_equal(run(), want, err_msg=call)


def test_rounded_rows_of_transposed_weights_and_uniform_groups():
    lhs, rhs = operands()[0], code_tensor("uint4")
    stored = jax.tree.map(lambda x: np.asarray(x).swapaxes(1, 2), rhs)
    got = raggemm.gmm(lhs, stored, SIZES, transpose_rhs=True, lhs_quantize=jnp.int8)
    np.testing.assert_array_equal(got, rounded(lhs, rhs, 32))
    stacked = lhs[:15].reshape(G, 5, K)
    got = raggemm.grouped_gemm(stacked, rhs, contracting_dims=((2,), (1,)), lhs_quantize=jnp.int8)
    np.testing.assert_array_equal(got.reshape(15, N), rounded(lhs[:15], rhs, 32, np.repeat(np.arange(G), 5)))


def test_a_short_last_block_and_rounding_of_the_result():
    lhs, weights = operands()[0][:, :40], tensor(jnp.int4, (G, 40, N), (G, 1, N))
    want = rounded(lhs, weights, 32)
    np.testing.assert_array_equal(raggemm.gmm(lhs, weights, SIZES, lhs_quantize=jnp.int8), want)
    onto = np.random.default_rng(3).normal(size=(M, N)).astype(jnp.bfloat16)
    got = raggemm.gmm(lhs, weights, SIZES, jnp.bfloat16, existing_out=onto, lhs_quantize=jnp.int8)
    inside = q.GROUP_OF_ROW[:, None] < G
    np.testing.assert_array_equal(got, np.where(inside, want.astype(jnp.bfloat16), onto))


@pytest.mark.parametrize("block", [32, None])
def test_a_stretch_ends_where_the_zero_point_changes(block):
    lhs, rhs = operands()[0], dataclasses.replace(code_tensor("uint8"), scale=code_tensor("int8").scale)
    assert rhs.scale.shape[1] < rhs.zero_point.shape[1]
    got = raggemm.gmm(lhs, rhs, SIZES, lhs_quantize=jnp.int8, lhs_block=block)
    np.testing.assert_array_equal(got, rounded(lhs, rhs, block))


def test_rounded_rows_with_an_epilogue_and_row_index():
    """Each result is rounded a few times after the product."""
    tokens, rhs = operands()[0][:6], code_tensor("int4")
    index, random = np.arange(M) * 5 % 6, np.random.default_rng(3)
    c, bias, alpha, beta = (random.normal(size=shape).astype(np.float32) for shape in ((M, N), (G, N), G, G))
    added = {"c": c, "bias": bias, "alpha": alpha, "beta": beta, "row_index": index.astype(np.int32)}
    rows, options = GroupedTensor(tokens, SIZES), {"contracting_dims": ((1,), (1,)), "lhs_quantize": jnp.int8}
    want, inside = np.float64(rounded(tokens[index], rhs, 32)), q.GROUP_OF_ROW < G
    groups = q.GROUP_OF_ROW[inside]
    terms = alpha[groups, None] * want[inside], beta[groups, None] * c[inside], bias[groups]
    got = raggemm.grouped_gemm(rows, rhs, **added, **options)
    near(got[inside], sum(terms), sum(map(np.abs, terms)), 1e-6)
    np.testing.assert_array_equal(got[~inside], c[~inside])
    got = raggemm.grouped_gemm(rows, rhs, row_index=added["row_index"], activation="relu", **options)
    np.testing.assert_array_equal(got, np.maximum(want, 0))


def test_derivatives_of_rounded_rows_are_those_of_the_unrounded_product():
    lhs, rhs = operands()[0], code_tensor("int4")
    rhs = QuantizedTensor(rhs.data, rhs.scale.astype(np.float32))

    def derivatives(**options):
        def product(lhs, scale):
            return raggemm.gmm(lhs, QuantizedTensor(rhs.data, scale), SIZES, **options)

        ones = np.ones((M, N), np.float32)
        gradients = jax.vjp(product, lhs, rhs.scale)[1](ones)
        both = jax.jvp(lambda lhs: jax.vjp(lambda s: product(lhs, s), rhs.scale)[1](ones)[0], (lhs,), (lhs,))[1]
        return *gradients, jax.jvp(product, (lhs, rhs.scale), (lhs, rhs.scale))[1], both

    jax.tree.map(np.testing.assert_array_equal, derivatives(lhs_quantize=jnp.int8), derivatives())


CODE_ERRORS = [
    ({"lhs_block": 64}, ValueError, "lhs_block is 64, but lhs_quantize is not given"),
    ({"lhs_block": None}, ValueError, "lhs_block is None, but lhs_quantize is not given"),
    ({"lhs_quantize": "int8", "lhs_block": 48}, ValueError, "lhs_block is 48, must be a multiple of 32, or None"),
    ({"lhs_quantize": "int8", "lhs_block": 0}, ValueError, "lhs_block is 0, must be a multiple of 32, or None"),
    ({"lhs_quantize": "int8", "lhs_block": 2**31}, ValueError, "lhs_block is 2147483648, must be a multiple of 32"),
    ({"lhs_quantize": "int8", "lhs_block": 32.0}, TypeError, "lhs_block is 32.0, must be an integer"),
    ({"lhs_quantize": "uint8", "lhs_block": 64}, ValueError, "lhs_block is 64, must be None with lhs_quantize of"),
    ({"lhs_quantize": "int16"}, TypeError, "lhs_quantize: dtype is int16, must be int8,"),
    ({"lhs_quantize": "int8", "lhs": "float64"}, TypeError, "lhs: with lhs_quantize: dtype is float64, must be float"),
    ({"lhs_quantize": "int8", "out": "float64"}, TypeError, "preferred_element_type: with lhs_quantize: dtype is fl"),
    ({"lhs_quantize": "int8", "scale": 12}, ValueError, "rhs.scale: has blocks of 8 elements along K, must be of"),
    ({"lhs_quantize": "int8", "scale": 2}, ValueError, "lhs_block is 32, must divide the 48 elements of a block"),
    ({"lhs_quantize": "int8", "rows": 2**16 + 32, "lhs_block": None}, ValueError,
     "lhs_block: 65568 elements along K share a scale of lhs and a scale of rhs, must be at most 65536"),
    ({"lhs_quantize": "int8", "columns": 3}, ValueError, "rhs: the last axis of float4_e2m1fn .* is 3, must be even"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "error", "message"), CODE_ERRORS)
def test_errors_of_rounded_rows_name_the_argument(given, error, message, x64):
    options = dict(given)
    lhs, out = (jnp.dtype(options.pop(name, "float32")) for name in ("lhs", "out"))
    k, blocks, n = options.pop("rows", 96), options.pop("scale", 1), options.pop("columns", 4)
    data, scale = ((1, k, n), jnp.float4_e2m1fn), ((1, blocks, n), np.float32)
    rhs = QuantizedTensor(jax.ShapeDtypeStruct(*data), jax.ShapeDtypeStruct(*scale))

    def call(lhs, rhs):
        return raggemm.gmm(lhs, rhs, np.array([2]), out, **options)

    with pytest.raises(error, match=f"^{message}"):
        jax.eval_shape(call, jax.ShapeDtypeStruct((2, k), lhs), rhs)


def test_grouped_gemm_refuses_what_it_cannot_round():
    lhs, rhs = operands()
    codes, rows = code_tensor("int8"), GroupedTensor(lhs, SIZES)

    def call(lhs=rows, rhs=codes, axes=((1,), (1,)), **options):
        return raggemm.grouped_gemm(lhs, rhs, contracting_dims=axes, **({"lhs_quantize": jnp.int8} | options))

    wrong = [
        (lambda: call(rhs=rhs), TypeError, "rhs: is an array of float32, must be a QuantizedTensor or PackedWeights"),
        (lambda: call(rhs=tensor(jnp.float8_e5m2, (G, K, N), ())), TypeError, "rhs: is a QuantizedTensor of float8"),
        (lambda: call(lhs_quantize=jnp.uint8), TypeError, "lhs_quantize: dtype is uint8, must be int8"),
        (lambda: call(lhs=GroupedTensor(tensor(np.int8, (M, K), ()), SIZES)), TypeError, "lhs: is quantized already"),
        (lambda: call(lhs=GroupedTensor(lhs.T, last_dims=SIZES), axes=((0,), (1,))), ValueError,
         r"lhs: contracting_dims are \(0,\), must be the last axes"),
        (lambda: call(rhs=GroupedTensor(tensor(np.int8, (M, N), ()), SIZES), axes=((0,), (0,))), ValueError,
         "lhs_quantize is for ragged M and uniform"),
    ]  # fmt: skip
    for run, error, message in wrong:
        with pytest.raises(error, match=f"^{message}"):
            jax.eval_shape(run)


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
