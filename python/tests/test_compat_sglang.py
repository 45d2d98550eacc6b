import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quantized_modes as q
import raggemm
from quantized_modes import SIZES, G, M, N, experts, near
from raggemm.compat import sglang

LHS = q.floats("M", 0)
BIAS = np.random.default_rng(5).normal(size=(G, 1, N)).astype(np.float32)
BEFORE = np.random.default_rng(6).normal(size=(M, N)).astype(np.float32)


@pytest.mark.parametrize(("dtype", "blocks"), [("int8", 2), ("int4", 1), ("float8_e4m3fn", 2)])
def test_gmm(dtype, blocks):
    data, scale, values = experts(dtype, blocks, 1)
    want, magnitude = q.product("M", LHS, values)
    bias = np.concatenate([BIAS[:, 0], np.zeros((1, N))])[q.GROUP_OF_ROW]
    out = sglang.gmm(LHS, data, SIZES, rhs_scale=scale, rhs_bias=BIAS)
    near(out, want + bias, magnitude + np.abs(bias))
    assert (out[17:] == 0).all()
    near(sglang.gmm(LHS, values.astype(np.float32), SIZES), want, magnitude)
    # Rows of groups that rhs lacks keep existing_out, or are zero without it.
    sizes, offset = np.array([2, *SIZES[:2], 7, 2], np.int32), jnp.int32(1)
    is_member = np.repeat(np.arange(5), sizes) == np.arange(1, 4)[:, None]
    want, magnitude = (
        np.einsum("gm,mk,gkn->mn", is_member, f(np.float64(LHS)), f(values)) for f in (np.asarray, np.abs)
    )
    is_processed = is_member.any(0)[:, None]
    for before in (None, BEFORE):
        out = sglang.gmm(LHS, data, sizes, rhs_scale=scale, group_offset=offset, existing_out=before)
        near(out, want if before is None else np.where(is_processed, want, before), magnitude + 1)
        assert (np.asarray(out)[~is_processed[:, 0]] == (0 if before is None else before[~is_processed[:, 0]])).all()


def test_quantized_activations_with_a_bias():
    data, scale, values = experts("int8", 1)
    elements, _, dense = q.operand(q.FORMATS["int8"], "M", 0, 3)
    assert elements.dtype == np.int8
    out = sglang.gmm(
        dense.astype(np.float32), data, SIZES, rhs_scale=scale, rhs_bias=BIAS, activation_quantized_dtype=jnp.int8
    )
    bias = np.concatenate([BIAS[:, 0], np.zeros((1, N))])[q.GROUP_OF_ROW]
    want, magnitude = q.product("M", dense, values)
    near(out, want + bias, magnitude + np.abs(bias))


def test_rows_of_int8_are_quantized_inside_the_call():
    data, scale, _ = experts("int4", 2)
    rhs = raggemm.QuantizedTensor(data, scale[:, :, 0])
    want = raggemm.gmm(LHS, rhs, SIZES, lhs_quantize=jnp.int8, lhs_block=None)
    call = functools.partial(sglang.gmm, rhs_scale=scale, activation_quantized_dtype=jnp.int8)
    np.testing.assert_array_equal(call(LHS, data, SIZES), want)
    gradient = jax.grad(lambda lhs: call(lhs, data, SIZES).sum())(LHS)
    assert not gradient.any()
    # Blocks of 8 elements along k are too short, so lhs is quantized before the call.
    data, scale, values = experts("int4", 8)
    near(call(LHS, data, SIZES, rhs_scale=scale), *q.product("M", LHS, values), 2e-2)
