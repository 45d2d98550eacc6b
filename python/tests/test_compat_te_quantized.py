"""Tests products of TransformerEngine's scaled tensors against float64."""

import dataclasses
import functools
import itertools
import types

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from arrays import sampled
from raggemm import GroupedTensor
from raggemm.compat import transformer_engine as te
from te_tensors import E4M3, E5M2, MODES, ROWS, SIZES, G, M, Tensor, blocks, close, parts, tensor

RNG = np.random.default_rng(11)
# Pairs (K, N). Blocks of 16 and 32 elements divide only the first pair evenly.
EXTENTS = [(64, 32), (40, 24)]
BFLOAT16 = ml_dtypes.bfloat16


def random_bf16(*shape):
    return RNG.normal(size=shape).astype(BFLOAT16)


PLAIN = {
    extents: (random_bf16(M, extents[0]), random_bf16(G, *extents), random_bf16(M, extents[1])) for extents in EXTENTS
}
gemm = functools.partial(te.grouped_gemm, preferred_element_type=np.float32)
FORWARD, WGRAD, TRANSPOSED = ((1,), (1,)), ((0,), (0,)), ((1,), (2,))


def as_ragged_tensor(x):
    return te.GroupedNoScaleTensor(x, None, SIZES, None, x.shape)


@jax.jit
def compute_products(x, kernel, grad, plain):
    """Computes the forward product of a layer and the gradients of x and kernel.

    x, kernel and grad are scaled tensors. `plain` has the same operands as arrays without scales. In the returned dict,
    "x", "kernel" and "grad" are products of one scaled tensor with plain arrays. "both" has products of two scaled
    tensors.
    """
    x0, kernel0, grad0 = as_ragged_tensor(plain[0]), plain[1], as_ragged_tensor(plain[2])
    return {
        "x": (gemm(x, kernel0, FORWARD), gemm(x, grad0, WGRAD)),
        "kernel": (gemm(x0, kernel, FORWARD), gemm(grad0, kernel, TRANSPOSED)),
        "grad": gemm(x0, grad, WGRAD),
        "both": (gemm(x, kernel, FORWARD), gemm(grad, kernel, TRANSPOSED), gemm(x, grad, WGRAD)),
    }


jax.tree_util.register_dataclass(
    Tensor,
    data_fields=("data", "scale_inv", "amax", "first_dims", "last_dims"),
    meta_fields=[f.name for f in dataclasses.fields(Tensor)[5:]],
)


CASES = [(mode, EXTENTS[0]) for mode in MODES] + [(mode, EXTENTS[1]) for mode in list(MODES)[3:]]


PRODUCT_CASES = [(mode, *rest) for mode in CASES for rest in itertools.product("NT", (False, True))]


@pytest.mark.parametrize("case, layout, is_colwise", sampled(PRODUCT_CASES, 7, unpack=True), ids=str)
def test_products_of_a_layer(case, layout, is_colwise):
    mode, extents = case
    (k, n), plain = extents, PLAIN[extents]
    x, xs = tensor(mode, layout, is_colwise, M, k, SIZES, seed=1)
    kernel, kernels = tensor(mode, layout, is_colwise, k, n, G, seed=2, dtype=E4M3 if MODES[mode][0] == E5M2 else None)
    grad, grads = tensor(mode, layout, is_colwise, M, n, SIZES, seed=3, dtype=E4M3 if MODES[mode][0] == E5M2 else None)
    got = compute_products(x, kernel, grad, plain)
    x0, kernel0, grad0 = parts(plain[0]), plain[1], parts(plain[2])
    close(got["x"][0], xs, kernel0, ROWS)
    close(got["x"][1], [x.T for x in xs], grad0)
    close(got["kernel"][0], x0, kernels, ROWS)
    close(got["kernel"][1], grad0, [w.T for w in kernels], ROWS)
    close(got["grad"], [x.T for x in x0], grads)
    close(got["both"][0], xs, kernels, ROWS)
    close(got["both"][1], grads, [w.T for w in kernels], ROWS)
    close(got["both"][2], [x.T for x in xs], grads)


def swizzle(x, is_colwise):
    """Pads a matrix of scales to tiles of 128 x 4, and reorders it to TransformerEngine's swizzled layout."""
    x = x.T if is_colwise else x
    rows, columns = blocks(x.shape[0], 128) * 128, blocks(x.shape[1], 4) * 4
    out = np.full(rows * columns, 7, np.uint8)
    for r, c in np.ndindex(x.shape):
        tile = (r // 128) * (columns // 4) + c // 4
        out[tile * 512 + (r % 32) * 16 + (r % 128 // 32) * 4 + c % 4] = x[r, c]
    return out


@pytest.mark.parametrize(
    ("is_colwise", "is_ragged"), sampled([(True, True), (True, False), (False, True), (False, False)], 3, unpack=True)
)
def test_unswizzled(is_colwise, is_ragged):
    sizes = np.array([160, 0, 96, 32], np.int32)
    rows, columns, groups = (300, 192, 4) if is_ragged else (96, 160, 3)
    x, _ = tensor("MXFP8_1D_SCALING", "N", is_colwise, rows, columns, sizes if is_ragged else groups, seed=8)
    group_shapes = [(int(s), columns) for s in sizes] if is_ragged else [(rows, columns)] * groups
    codes, start, swizzled_parts = np.asarray(x.scale_inv).view(np.uint8), 0, []
    for r, c in group_shapes:
        shape = (blocks(r, 32), c) if is_colwise else (r, blocks(c, 32))
        swizzled_parts.append(swizzle(codes[start : start + shape[0] * shape[1]].reshape(shape), is_colwise))
        start += shape[0] * shape[1]
    tiles = np.concatenate([*swizzled_parts, np.full(512, 9, np.uint8)])
    swizzled_tensor = dataclasses.replace(x, scale_inv=tiles.view(ml_dtypes.float8_e8m0fnu), pre_swizzled=True)
    got = jax.jit(te.unswizzled)(swizzled_tensor)
    assert (got.pre_swizzled, got.scale_inv.shape) == (False, x.scale_inv.shape)
    np.testing.assert_array_equal(np.asarray(got.scale_inv).view(np.uint8)[:start], codes[:start])
    with pytest.raises(ValueError, match=r"^lhs.pre_swizzled: is True, must be False; call unswizzled"):
        gemm(swizzled_tensor, x, FORWARD)
    with pytest.raises(ValueError, match=r"^tensor.scale_inv: shape is \(500,\), must be at least \(\d+,\)"):
        jax.eval_shape(te.unswizzled, dataclasses.replace(swizzled_tensor, scale_inv=swizzled_tensor.scale_inv[:500]))


MX, FP8 = (tensor(mode, "N", False, M, 64, SIZES)[0] for mode in ("MXFP8_1D_SCALING", "CURRENT_TENSOR_SCALING"))
FP4, PLAIN_KERNEL = tensor("NVFP4_2D_SCALING", "N", False, M, 64, SIZES)[0], PLAIN[64, 32][1]
REFUSED = {
    "data": (MX, {"data": MX.data[1:]}, ValueError, r"data: shape is \(4479,\), must be \(4480,\), the elements of or"),
    "elements": (FP8, {"data": MX.data.astype(np.int8)}, TypeError, "data for .* is int8, must be float8_e4m3fn or fl"),
    "padded scales": (MX, {"scale_inv": np.resize(MX.scale_inv, 1024)}, ValueError,
        r"scale_inv: shape is \(1024,\), must be \(140,\), one for each 1x32 block of the stored \(70, 64\), of 5"),
    "too few scales": (FP8, {"scale_inv": FP8.scale_inv[:4]}, ValueError,
        r"scale_inv: shape is \(4,\), must be \(5,\), one for each group, of 5 groups"),
    "scales' dtype": (MX, {"scale_inv": np.ones(140, np.float32)}, TypeError,
        "scale_inv: dtype is float32, must be floa"),
    "amax": (FP4, {"amax": None}, ValueError, r"amax: is None, must have the shape \(5,\), \(1,\) or \(\)"),
    "wrong amax": (FP4, {"amax": np.ones(4, np.float32)}, ValueError, r"amax: shape is \(4,\), must be \(5,\)"),
    "a mode": (MX, {"scaling_mode": "MX"}, ValueError, "scaling_mode: is 'MX', must be NO_SCALING, DELAYED_TENSOR_SC"),
    "a layout": (MX, {"data_layout": "NT"}, ValueError, "data_layout: is 'NT', must be N, T"),
    "flatten_axis": (MX, {"flatten_axis": 2}, ValueError, r"flatten_axis: is 2, must be between the axes of shape \("),
    "two dims": (MX, {"last_dims": SIZES}, ValueError, "first_dims and last_dims are both set, at most one may be"),
    "sizes": (MX, {"first_dims": SIZES[None]}, ValueError, r"first_dims: shape is \(1, 5\), must be \[G\]"),
}  # fmt: skip


@pytest.mark.parametrize("x, wrong, error, message", REFUSED.values(), ids=REFUSED)
def test_wrong_tensors_are_refused(x, wrong, error, message):
    with pytest.raises(error, match=rf"^lhs[.:] ?{message}"):
        gemm(dataclasses.replace(x, **wrong), PLAIN_KERNEL, FORWARD)
    with pytest.raises(error, match=rf"^rhs[.:] ?{message}"):
        jax.eval_shape(lambda: gemm(as_ragged_tensor(PLAIN[64, 32][0]), dataclasses.replace(x, **wrong), WGRAD))


def test_wrong_arguments_are_refused():
    other = tensor("CURRENT_TENSOR_SCALING", "N", True, 64, 32, G)[0]
    with pytest.raises(ValueError, match=r"^lhs, rhs: both have dtype float8_e5m2, one must be float8_e4m3fn"):
        gemm(FP8, other, FORWARD)
    with pytest.raises(ValueError, match=r"^x.first_dims: shape is \(5,\), must be \(2,\) like group_sizes"):
        te.grouped_dense(FP8, PLAIN_KERNEL, SIZES[:2])
    with pytest.raises(TypeError, match=r"^rhs: SimpleNamespace lacks the attributes data, first_dims, last_dims"):
        gemm(FP8, types.SimpleNamespace(scale_inv=1), FORWARD)
    with pytest.raises(ValueError, match=r"^tensor: is CURRENT_TENSOR_SCALING with data_layout N, must be MXFP8_1D_S"):
        te.unswizzled(FP8)
    rotated = types.SimpleNamespace(**vars(FP4), has_rht_applied=True)
    with pytest.raises(
        ValueError, match=r"^lhs.has_rht_applied: is True, must be False; rotated tensors are not supported"
    ):
        gemm(rotated, PLAIN_KERNEL, FORWARD)
    both = GroupedTensor(np.ones(64, np.float32), SIZES, SIZES, "PACKED")
    quantizers = te.QuantizerSet(te.GroupedQuantizer(jnp.float8_e4m3fn, "MXFP8_1D_SCALING"))
    with pytest.raises(ValueError, match=r"^quantizer_set.x: lhs has first_dims and last_dims"):
        gemm(both, PLAIN_KERNEL, FORWARD, quantizer_set=quantizers)


COLUMN_MODES = "DELAYED_TENSOR_SCALING", "MXFP8_1D_SCALING", "NVFP4_1D_SCALING"
COLUMN_CASES = [*itertools.product(COLUMN_MODES, "NT", (False, True))]


@pytest.mark.parametrize("mode, layout, is_colwise", sampled(COLUMN_CASES, 5, unpack=True), ids=str)
def test_groups_of_columns(mode, layout, is_colwise):
    """Tests ragged columns (last_dims): in lhs of ragged M and K, and in rhs of ragged N with a scaled lhs."""
    x, xs = tensor(mode, layout, is_colwise, 64, M, SIZES, axis=1, seed=4)
    shared, (value,) = tensor(mode, "N", is_colwise, 9, 64, np.array([9]), seed=5)
    shared = dataclasses.replace(shared, first_dims=None)
    plain = PLAIN[64, 32]

    @jax.jit
    def run(x, shared, kernel, grad):
        return gemm(x, kernel, ((0,), (1,))), gemm(x, grad, ((1,), (0,))), gemm(shared, x, ((1,), (0,)))

    rows, weights, columns = run(x, shared, plain[1], as_ragged_tensor(plain[2]))
    close(rows, [x.T for x in xs], plain[1], ROWS)
    close(weights, xs, parts(plain[2]))
    close(columns, [value] * G, xs, [(slice(None), rows) for rows in ROWS])


@pytest.mark.parametrize("mode", ["DELAYED_TENSOR_SCALING", "NVFP4_1D_SCALING"])
def test_group_offset(mode):
    """With group_offset, each processed group still uses its own scale of x."""
    x, xs = tensor(mode, "N", False, M, 64, SIZES, seed=1)
    kernel, kernels = tensor(mode, "N", True, 64, 32, 2, seed=2)
    out = jax.jit(lambda x, w, offset: gemm(x, w, FORWARD, group_offset=offset))(x, kernel, np.array([2], np.int32))
    close(out, xs[2:4], kernels, ROWS[2:4])
