"""Tests TransformerEngine's grouped_quantize and quantized products against a NumPy reference."""

import jax
import numpy as np
import pytest
from arrays import sampled
from raggemm import GroupedTensor
from raggemm.compat import transformer_engine as te
from te_tensors import E2M1, E4M3, E5M2, MODES, ROWS, SIZES, G, M, blocks, close, most, padded, parts, quantized

pytestmark = pytest.mark.usefixtures("emitters")

K, N = 40, 24
RNG = np.random.default_rng(7)
MAGNITUDES = np.array([2.0**-10, 1, 2.0**10, 0, 3.7], np.float32)


def random(*shape):
    return RNG.normal(size=shape).astype(np.float32)


X, KERNEL, CT, BIAS = random(M, K), random(G, K, N), random(M, N), random(G, N)
X[: SIZES.sum()] *= np.repeat(MAGNITUDES, SIZES)[:, None]
X[SIZES.sum() :] = np.nan
KERNEL *= MAGNITUDES[::-1, None, None]
SCALE = np.array([2.0**9, 3, 2.0**-9, 1, 0.3], np.float32)  # Scale of each group for delayed scaling.

CASES = [(mode, dtype) for mode in list(MODES)[1:4] for dtype in (E4M3, E5M2)]
CASES += [("NVFP4_1D_SCALING", E2M1), ("NVFP4_2D_SCALING", E2M1)]


def quantizer(mode, dtype, q_layout="ROWWISE_COLWISE"):
    return te.GroupedQuantizer(dtype, mode, q_layout, SCALE if mode.startswith("DELAYED") else None)


def reference(mode, dtype, groups, is_colwise):
    return [
        quantized(mode, dtype, x, is_colwise, SCALE[g] if mode.startswith("DELAYED") else None)
        for g, x in enumerate(groups)
    ]


quantize = jax.jit(te.grouped_quantize, static_argnames="flatten_axis")


def check(got, mode, dtype, groups, rows, columns, is_ragged):
    parts = reference(mode, dtype, groups, got.is_colwise)
    is_transposed = got.is_colwise and not mode.startswith("MXFP8")
    assert got.data_layout == ("T" if is_transposed else "N")
    lead = () if is_ragged else (len(groups),)
    assert got.original_shape == (*lead, *((columns, rows) if is_transposed else (rows, columns)))
    assert (got.scaling_mode, got.flatten_axis, got.dq_dtype) == (mode, 1 + len(lead), np.float32)
    assert got.data.dtype == dtype
    want = padded([p[0].T if is_transposed else p[0] for p in parts], got.data.size, 0, dtype)
    np.testing.assert_array_equal(np.float64(got.data), np.float64(want))
    np.testing.assert_array_equal(got.amax, [p[2] for p in parts])
    if not (block := MODES[mode][2]):
        np.testing.assert_array_equal(got.scale_inv, [p[1] for p in parts])
        return
    block = block[::-1] if got.is_colwise else block
    down = most(rows, G, block[0]) if is_ragged else G * blocks(rows, block[0])
    assert got.scale_inv.shape == (down * blocks(columns, block[1]),)
    want = np.concatenate([np.ravel(p[1].T if is_transposed else p[1]) for p in parts])
    np.testing.assert_array_equal(np.asarray(got.scale_inv[: want.size]).view(np.uint8), want.view(np.uint8))


@pytest.mark.parametrize(
    "mode, dtype", sampled(CASES[3:] + CASES[:3], 4, unpack=True), ids=lambda x: getattr(x, "__name__", x)
)
def test_grouped_quantize(mode, dtype):
    both = quantize(X, quantizer(mode, dtype), SIZES)
    assert [t.is_colwise for t in (both.rowwise_tensor, both.colwise_tensor)] == [False, True]
    for got in (both.rowwise_tensor, both.colwise_tensor):
        np.testing.assert_array_equal(got.first_dims, SIZES)
        check(got, mode, dtype, parts(X), M, K, True)
    both = quantize(KERNEL, quantizer(mode, dtype))
    for got in (both.rowwise_tensor, both.colwise_tensor):
        assert got.first_dims is None and got.last_dims is None
        check(got, mode, dtype, KERNEL, K, N, False)


def test_given_amax():
    """amax determines the scales, and larger values saturate."""
    mode, amax = "CURRENT_TENSOR_SCALING", np.arange(1, 1 + G, dtype=np.float32)
    got = te.grouped_quantize(KERNEL, quantizer(mode, E4M3, "ROWWISE"), amax=amax)
    want = [quantized(mode, E4M3, x, False, np.float32(448) / a) for x, a in zip(KERNEL, amax, strict=True)]
    np.testing.assert_array_equal(np.float32(got.data).reshape(KERNEL.shape), np.float32([w[0] for w in want]))
    np.testing.assert_array_equal(got.scale_inv, [w[1] for w in want])
    np.testing.assert_array_equal(got.amax, amax)


@pytest.mark.slow
def test_flatten_axis():
    q, x = quantizer("MXFP8_1D_SCALING", E4M3, "ROWWISE"), KERNEL.reshape(G, 8, 5, N)
    for flatten_axis, flat in ((2, KERNEL.reshape(G, 8, 5 * N)), (-1, KERNEL)):
        got, want = te.grouped_quantize(x, q, flatten_axis=flatten_axis), te.grouped_quantize(flat, q)
        assert (got.original_shape, got.flatten_axis) == (x.shape, flatten_axis % 4)
        for field in ("data", "scale_inv"):
            codes = (np.asarray(getattr(of, field)).view(np.uint8) for of in (got, want))
            np.testing.assert_array_equal(*codes)


SETS = {
    "delayed": [("DELAYED_TENSOR_SCALING", E4M3)] * 2 + [("DELAYED_TENSOR_SCALING", E5M2)],
    "current": [("CURRENT_TENSOR_SCALING", E4M3)] * 2 + [("CURRENT_TENSOR_SCALING", E5M2)],
    "MX": [("MXFP8_1D_SCALING", E4M3)] * 2 + [("MXFP8_1D_SCALING", E5M2)],
    "NVFP4": [("NVFP4_1D_SCALING", E2M1), ("NVFP4_2D_SCALING", E2M1), ("NVFP4_1D_SCALING", E2M1)],
    "mixed": [("CURRENT_TENSOR_SCALING", E5M2), None, ("MXFP8_1D_SCALING", E4M3)],
    "inference": [("MXFP8_1D_SCALING", E4M3)] * 2 + [None],
}


X0 = np.where(np.isnan(X), 1, X)


# Parameters of test_dense: (name of SETS, is_transposed). `./dev test` runs only "MX", "inference" and "delayed".
LAYERS = [*((name, False) for name in SETS), ("delayed", True), ("MX", True)]


@pytest.mark.parametrize("name, is_transposed", sampled(LAYERS[2:] + LAYERS[:2], 3, unpack=True))
def test_dense(name, is_transposed):
    """The result and gradients are products of operands quantized along the contracted axis."""
    quantizers = te.QuantizerSet(*(q and quantizer(*q) for q in SETS[name]))
    kernel, dims = (KERNEL.swapaxes(1, 2), ((1,), (2,))) if is_transposed else (KERNEL, ((1,), (1,)))

    @jax.jit
    def run(x, kernel, bias):
        def dense(x, kernel, bias):
            return te.grouped_dense(x, kernel, SIZES, dims, bias, quantizer_set=quantizers)

        out, back = jax.vjp(dense, x, kernel, bias)
        return out, *back(CT)

    out, dx, dkernel, dbias = run(X0, kernel, BIAS)
    product = jax.jit(lambda x, w: te.grouped_gemm(GroupedTensor(x, SIZES), w, dims, quantizer_set=quantizers))
    np.testing.assert_array_equal(product(X0, kernel), run(X0, kernel, 0 * BIAS)[0])
    dkernel = dkernel.swapaxes(1, 2) if is_transposed else dkernel

    def values(operand, x, is_colwise):
        q, groups = SETS[name][operand], x if x.ndim == 3 else parts(x)
        return [value[3] for value in reference(*q, groups, is_colwise)] if q else groups

    close(out, values(0, X0, False), values(1, KERNEL, True), ROWS, BIAS)
    close(dx, values(2, CT, False), [w.T for w in values(1, KERNEL, False)], ROWS)
    close(dkernel, [x.T for x in values(0, X0, True)], values(2, CT, True))
    np.testing.assert_allclose(dbias, [np.float64(rows).sum(0) for rows in parts(CT)], rtol=0, atol=2e-5)


Q = quantizer(*CASES[0])
REFUSED = {
    "elements": (lambda: te.GroupedQuantizer(np.int8, "MXFP8_1D_SCALING"), TypeError,
        r"q_dtype for MXFP8.*is int8, mu"),
    "a mode": (lambda: te.GroupedQuantizer(E4M3, "INT8"), ValueError,
        "scaling_mode: is 'INT8', must be NO_SCALING, DE"),
    "no scale": (lambda: te.GroupedQuantizer(E4M3, CASES[0][0]), ValueError, "scale: is None, must be given for DE"),
    "scales": (lambda: te.GroupedQuantizer(E4M3, CASES[0][0], scale=SCALE[:2]), ValueError,
        r"scale: shape is \(2,\), must be \(5,\), one for each group"),
    "no quantizer": (lambda: "fp8", TypeError, "str lacks the attributes q_dtype, scaling_mode"),
}  # fmt: skip


@pytest.mark.parametrize("make, error, message", REFUSED.values(), ids=REFUSED)
def test_wrong_quantizers(make, error, message):
    with pytest.raises(error, match="^quantizer.*" + message):
        te.grouped_quantize(X, make(), SIZES)
    with pytest.raises(error, match="^quantizer_set.dgrad.*" + message):
        te.grouped_dense(X, KERNEL, SIZES, quantizer_set=te.QuantizerSet(dgrad=make()))


def test_wrong_arguments():
    with pytest.raises(TypeError, match=r"^x: dtype is int32"):
        te.grouped_quantize(SIZES, Q)
    with pytest.raises(ValueError, match=r"^flatten_axis: is 2, must be between the axes of shape \(70, 40\)"):
        te.grouped_quantize(X, Q, SIZES, flatten_axis=2)
    with pytest.raises(ValueError, match=r"^quantizer.q_layout: is None, must be ROWWISE, COLWISE, ROWWISE_COLWISE"):
        te.grouped_quantize(X, te.GroupedQuantizer(E4M3, "MXFP8_1D_SCALING", None), SIZES)
    with pytest.raises(ValueError, match=r"^group_sizes: shape is \(1, 5\), must be \[G\]"):
        te.grouped_quantize(X, Q, SIZES[None])
    with pytest.raises(ValueError, match=r"^amax: shape is \(3,\), must be \(5,\), \(1,\) or \(\)"):
        te.grouped_quantize(X, quantizer(*CASES[2]), SIZES, amax=np.ones(3, np.float32))
    with pytest.raises(ValueError, match=r"^contracting_dims must be \(lhs_axes, rhs_axes\)"):
        te.grouped_gemm(X, KERNEL, (1, 2), quantizer_set=te.QuantizerSet(Q))
    with pytest.raises(ValueError, match=r"^contracting_dims is \(\(0,\), \(1,\)\), must be .* with quantizers"):
        te.grouped_dense(X, KERNEL, SIZES, ((0,), (1,)), quantizer_set=te.QuantizerSet(Q))
    with pytest.raises(ValueError, match=r"^x: shape is \(70, 5, 8\), must have 2 axes with quantizers"):
        te.grouped_dense(X.reshape(M, 5, 8), KERNEL, SIZES, quantizer_set=te.QuantizerSet(Q))
    with pytest.raises(ValueError, match=r"^x, kernel: both have dtype float8_e5m2"):
        te.grouped_dense(X, KERNEL, SIZES, quantizer_set=te.QuantizerSet(*[quantizer(*CASES[3])] * 2))
