"""gmm and tgmm against megablox' definitions, ragged_dot against jax.lax.ragged_dot."""

import functools
import warnings

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import oracle
import pytest
from arrays import random
from raggemm import GroupedTensor, gmm, ragged_dot, tgmm
from raggemm.compat import lax, tokamax, transformer_engine

SIZES = np.array([3, 0, 2, 4], np.int32)
M, K, N, G = 11, 5, 6, 4
LHS, RHS, OTHER = random(M, K), random(G, K, N, seed=1), random(M, N, seed=2)


def test_gmm():
    got = gmm(LHS, RHS, SIZES)
    oracle.grouped_gemm(GroupedTensor(LHS, first_dims=SIZES), GroupedTensor(RHS), contracting_dims=((1,), (1,))).check(
        got
    )
    np.testing.assert_array_equal(gmm(LHS, RHS.swapaxes(1, 2), SIZES, transpose_rhs=True), got)
    # Positional, in megablox' order.
    existing = random(M, N, seed=3)
    ours = gmm(LHS, RHS[:2], SIZES, jnp.float32, (8, 8, 8), np.int32(1), existing, False, True)
    np.testing.assert_array_equal(ours[3:5], LHS[3:5] @ RHS[1])
    np.testing.assert_array_equal(np.delete(ours, [3, 4], axis=0), np.delete(existing, [3, 4], axis=0))


def test_tgmm():
    got = tgmm(LHS.T, OTHER, SIZES)
    rows, cols = (GroupedTensor(x, first_dims=SIZES) for x in (LHS, OTHER))
    oracle.grouped_gemm(rows, cols, contracting_dims=((0,), (0,))).check(got)
    assert (got[1] == 0).all()
    # Positional, in megablox' order; existing_out is added to.
    existing = random(2, K, N, seed=3)
    ours = tgmm(LHS.T, OTHER, SIZES, jnp.float32, (8, 8, 8), np.array([1]), 2, existing, True)
    oracle.grouped_gemm(
        rows, cols, contracting_dims=((0,), (0,)), group_offset=1, num_actual_groups=2, c=existing
    ).check(ours)


FLOAT64 = {
    "gmm": lambda dtype: gmm(LHS, RHS, SIZES, dtype),
    "tgmm": lambda dtype: tgmm(LHS.T, OTHER, SIZES, dtype),
    "ragged_dot": lambda dtype: ragged_dot(LHS, RHS, SIZES, preferred_element_type=dtype),
    "lax": lambda dtype: lax.ragged_dot(LHS, RHS, SIZES, preferred_element_type=dtype),
    "tokamax": lambda dtype: tokamax.ragged_dot(LHS, RHS, group_sizes=SIZES, preferred_element_type=dtype),
    "te": lambda dtype: transformer_engine.grouped_dense(LHS, RHS, SIZES, preferred_element_type=dtype),
}


@pytest.mark.parametrize("name", FLOAT64)
@pytest.mark.parametrize("dtype", [np.float64, jnp.float64, "float64"], ids=["numpy", "jax", "string"])
def test_float64_that_is_not_available_is_a_warning(name, dtype):
    with pytest.warns(UserWarning, match="preferred_element_type: dtype float64 is not available.*jax_enable_x64") as w:
        assert FLOAT64[name](dtype).dtype == np.float32
    assert len(w) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert FLOAT64[name](np.float32).dtype == np.float32
        with jax.enable_x64(True):
            assert FLOAT64[name](dtype).dtype == np.float64


FLOATS = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)


@pytest.mark.parametrize("lhs_dtype", FLOATS, ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("rhs_dtype", FLOATS, ids=lambda t: np.dtype(t).name)
def test_ragged_dot_has_lax_dtype_rule(x64, lhs_dtype, rhs_dtype):
    lhs, rhs = LHS.astype(lhs_dtype), RHS.astype(rhs_dtype)
    for preferred in (None, np.float32, ml_dtypes.bfloat16):
        ours, theirs = (
            jax.eval_shape(functools.partial(f, preferred_element_type=preferred), lhs, rhs, SIZES)
            for f in (ragged_dot, jax.lax.ragged_dot)
        )
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
