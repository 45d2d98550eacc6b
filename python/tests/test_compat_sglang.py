"""raggemm.compat.sglang: the arguments of sglang-jax' gmm, its weights with scales, its bias, and rows of no group."""

import jax.numpy as jnp
import numpy as np
import pytest
import quantized_modes as q
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
    # With fewer groups than sizes: rows of others are zero, or existing_out's.
    sizes, offset = np.array([2, *SIZES[:2], 7, 2], np.int32), jnp.int32(1)
    members = np.repeat(np.arange(5), sizes) == np.arange(1, 4)[:, None]
    want, magnitude = (np.einsum("gm,mk,gkn->mn", members, f(np.float64(LHS)), f(values)) for f in (np.asarray, np.abs))
    ours = members.any(0)[:, None]
    for before in (None, BEFORE):
        out = sglang.gmm(LHS, data, sizes, rhs_scale=scale, group_offset=offset, existing_out=before)
        near(out, want if before is None else np.where(ours, want, before), magnitude + 1)
        assert (np.asarray(out)[~ours[:, 0]] == (0 if before is None else before[~ours[:, 0]])).all()


def test_activations_are_quantized_by_row_and_the_bias_is_not_scaled():
    data, scale, values = experts("int8", 1)
    rows, _, dense = q.operand(q.FORMATS["int8"], "M", 0, 3)
    assert rows.dtype == np.int8
    out = sglang.gmm(
        dense.astype(np.float32), data, SIZES, rhs_scale=scale, rhs_bias=BIAS, activation_quantized_dtype=jnp.int8
    )
    bias = np.concatenate([BIAS[:, 0], np.zeros((1, N))])[q.GROUP_OF_ROW]
    want, magnitude = q.product("M", dense, values)
    near(out, want + bias, magnitude + np.abs(bias))
