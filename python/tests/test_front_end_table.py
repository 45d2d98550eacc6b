import functools
import inspect
import types

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import quantized_modes as q
from arrays import random
from front_end_checks import check_errors
from jax.lax import DotAlgorithmPreset
from jax.sharding import PartitionSpec as P
from raggemm import GroupedTensor, QuantizedTensor
from raggemm.compat import ejkernel, lax, maxtext, megablox, sglang, tokamax, tops
from raggemm.compat import transformer_engine as te


def test_sglang_has_the_argument_order_of_the_original():
    names = "lhs rhs group_sizes preferred_element_type rhs_scale rhs_bias tiling group_offset existing_out"
    assert list(inspect.signature(sglang.gmm).parameters)[:9] == names.split()


def tokamax_dot(lhs, rhs, sizes, **options):
    return tokamax.ragged_dot(lhs, rhs, group_sizes=sizes, **options)


# {front end: (function, default dtype of its result for bfloat16 operands)}
RESULTS = {
    "ejkernel": (ejkernel.grouped_matmul, np.float32),
    "lax": (lax.ragged_dot, jnp.bfloat16),
    "maxtext": (maxtext.gmm, np.float32),
    "megablox": (megablox.gmm, np.float32),
    "sglang": (sglang.gmm, np.float32),
    "tokamax": (tokamax_dot, jnp.bfloat16),
    "transformer_engine": (te.grouped_dense, jnp.bfloat16),
}


@pytest.mark.parametrize("name", RESULTS)
def test_dtypes_of_results_and_gradients(name):
    function, default = RESULTS[name]
    lhs, rhs = LHS.astype(ml_dtypes.bfloat16), RHS.astype(np.float16)
    operands = lhs, rhs.astype(ml_dtypes.bfloat16), SIZES
    assert jax.eval_shape(function, *operands).dtype == default
    for dtype in (np.float16, np.float32):
        assert jax.eval_shape(functools.partial(function, preferred_element_type=dtype), *operands).dtype == dtype
    product = functools.partial(function, preferred_element_type=np.float32)
    gradients = jax.grad(lambda x, w: product(x, w, SIZES).sum(), (0, 1))(lhs, rhs)
    assert [x.dtype for x in gradients] == [lhs.dtype, rhs.dtype]


SIZES, FULL = np.array([3, 0, 2, 4], np.int32), np.array([3, 0, 2, 7], np.int32)
M, K, N, G = 12, 5, 6, 4
LHS, RHS, COLS, BIAS = random(M, K), random(G, K, N, seed=1), random(M, N, seed=2), random(G, 1, N, seed=4)
HALF, SCALE = COLS.astype(np.float16), np.ones((G, 1, 1, N), np.float32)
DATA, DATA_SCALE, _ = q.experts("int8", 1)
ROWS, ROW_SIZES = q.floats("M", 0), q.SIZES
ej_gmm = functools.partial(ejkernel.grouped_matmul, LHS, RHS, SIZES)
max_gmm, max_tgmm = functools.partial(maxtext.gmm, LHS, RHS, SIZES), functools.partial(maxtext.tgmm, LHS.T, COLS, SIZES)
sg_gmm = functools.partial(sglang.gmm, ROWS, group_sizes=ROW_SIZES)
scaled = functools.partial(sg_gmm, DATA, rhs_scale=DATA_SCALE)
dense = functools.partial(te.grouped_dense, LHS, RHS, SIZES)
V3 = {"use_v3": True}
ONLY_V3 = "rhs_scale and rhs_bias are only supported by grouped_matmulv3"
NOT_IMPLEMENTED = NotImplementedError


def quantized_tokamax_dot(scale, qtype=None):
    return tokamax_dot(ROWS, q.QArray(DATA, scale, None, qtype), ROW_SIZES)


ERRORS = [
    (lambda: tops.gmm(LHS, RHS[:3], FULL), ValueError, "group_sizes has 4 sizes, but rhs has 3 groups"),
    (lambda: tops.gmm_ref(LHS, RHS, np.array([12])), ValueError, "group_sizes has 1 sizes, but rhs has 4 groups"),
    (lambda: tops.tgmm(LHS, RHS, FULL), ValueError, r"rhs: shape is \(4, 5, 6\), must have 2 axes"),
    (lambda: tops.gmm(LHS, QuantizedTensor(RHS.astype(np.int8)), FULL), TypeError, "rhs: is a QuantizedTensor, must"),
    (lambda: jax.jit(tops.gmm_ref)(LHS, RHS, FULL), TypeError, "gmm_ref loops over group_sizes .* use gmm"),
    (lambda: jax.jit(tops.tgmm_ref)(LHS, COLS, FULL), TypeError, "tgmm_ref loops over group_sizes .* use tgmm"),
    (lambda: max_gmm(existing_out=COLS, partial_sum=COLS), NOT_IMPLEMENTED, "existing_out and partial_sum are both"),
    (lambda: max_gmm(tiling=(8, 8)), ValueError, r"tiling is \(8, 8\), must have 9 or 3 numbers"),
    (lambda: max_tgmm(tiling=128), ValueError, "tiling is 128, must have 3 or 9 numbers"),
    (lambda: max_gmm(partial_sum=HALF), ValueError, "partial_sum: dtype is float16, must be preferred"),
    (lambda: max_gmm(partial_sum=COLS[1:]), ValueError, r"^partial_sum: shape is \(11, 6\)"),
    (lambda: max_tgmm(existing_out=COLS), ValueError, r"^existing_out: shape is \(12, 6\), must be out's \(4, 5, 6\)"),
    (lambda: quantized_tokamax_dot(DATA_SCALE[:, 0], "nf4"), NOT_IMPLEMENTED, "^rhs: qtype is nf4"),
    (lambda: quantized_tokamax_dot(DATA_SCALE), NOT_IMPLEMENTED, r"^rhs\.scale: shape is \(3, 1, 1, 32\), must be"),
    (lambda: sg_gmm(DATA, rhs_scale=DATA_SCALE[0]), ValueError, r"^rhs_scale: shape is \(1, 1, 32\), must be"),
    (lambda: sg_gmm(DATA[0], rhs_scale=DATA_SCALE), ValueError, r"^rhs: shape is \(64, 32\), must have 3"),
    (lambda: sg_gmm(DATA), TypeError, "^lhs: dtype is float32, must be int8 or uint8"),
    (lambda: sg_gmm(QuantizedTensor(DATA), rhs_scale=DATA_SCALE), TypeError, "^rhs: is a QuantizedTensor, must be"),
    (lambda: scaled(rhs_bias=np.ones((3, 32), np.float32)), ValueError, r"^rhs_bias: shape is \(3, 32\), must be"),
    (lambda: scaled(existing_out=np.ones((20, 32), np.float16)), ValueError, "^existing_out: dtype is float16, must"),
    (lambda: scaled(group_offset=ROW_SIZES), ValueError, r"^group_offset: shape is \(3,\), must be"),
    (lambda: ej_gmm(**V3, rhs_scale=SCALE[:2]), ValueError, r"^rhs_scale: shape is \(2, 1, 1, 6\), must be \(4, b"),
    (lambda: ej_gmm(**V3, rhs_scale=SCALE.astype(int)), TypeError, "^rhs_scale: dtype is int"),
    (lambda: ej_gmm(rhs_bias=BIAS), ValueError, ONLY_V3),
    (lambda: ej_gmm(rhs_scale=SCALE, use_v2=True), ValueError, ONLY_V3),
    (lambda: ej_gmm(use_v2=True, use_v3=True), ValueError, "use_v2 and use_v3 are mutually exclusive"),
    (lambda: ej_gmm(**V3, rhs_bias=BIAS[:2]), ValueError, r"^rhs_bias: shape is \(2, 6\), must be \(4, 6\)"),
    (lambda: ej_gmm(platform="pallas"), NOT_IMPLEMENTED, "platform is 'pallas', must be None"),
    (lambda: ej_gmm(cfg=types.SimpleNamespace(platform="triton")), NOT_IMPLEMENTED, "platform is 'triton', must be"),
    (lambda: ej_gmm(precision=("highest",) * 3), NOT_IMPLEMENTED, "must be None, .* or a pair of them"),
    (lambda: ej_gmm(precision=DotAlgorithmPreset.BF16_BF16_F32), NOT_IMPLEMENTED, "precision is .*BF16_BF16_F32, mu"),
    (lambda: ej_gmm(out_specs=P()), ValueError, "must be given together, but mesh, in_specs is missing"),
    (lambda: ej_gmm(None, COLS.astype(int)), TypeError, "existing_out: dtype is int32"),
    (lambda: dense(bias=BIAS[:2, 0]), ValueError, r"bias: shape is \(2, 6\), must be \(4, 6\)"),
    (lambda: te.grouped_dense(LHS[:, 1:], RHS, SIZES), ValueError, r"^x contracts \(4,\) .* kernel contracts \(5,\)"),
    (lambda: te.grouped_dense(LHS, RHS[1:], SIZES), ValueError, "kernel has 3 groups, but group_sizes has 4: the two"),
    (lambda: te.grouped_dense(LHS, RHS, SIZES, ((1,), (0,))), ValueError, "^kernel: axis 0 of shape .* is the group"),
    (lambda: te.grouped_gemm(LHS, [1]), TypeError, "rhs: list is no array and lacks the attributes data, first"),
    (lambda: te.grouped_gemm(GroupedTensor(LHS, SIZES, SIZES), RHS), ValueError, "lhs: .*first_dims and last_dims"),
    (lambda: te.grouped_gemm(LHS, RHS, SIZES), ValueError, r"contracting_dims must be \(lhs_axes, rhs_axes\)"),
]  # fmt: skip


@pytest.mark.parametrize("call, error, message", ERRORS, ids=range(len(ERRORS)))
def test_errors(call, error, message):
    check_errors(call, error, message)
