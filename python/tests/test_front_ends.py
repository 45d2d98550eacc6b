"""Tests result dtypes: float64 requires jax_enable_x64, and ragged_dot has the result dtype of jax.lax.ragged_dot."""

import functools
import warnings

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from arrays import random
from raggemm import gmm, ragged_dot, tgmm
from raggemm.compat import lax, tokamax, transformer_engine

SIZES = np.array([3, 0, 2, 4], np.int32)
M, K, N, G = 11, 5, 6, 4
LHS, RHS, OTHER = random(M, K), random(G, K, N, seed=1), random(M, N, seed=2)


CALLS = {
    "gmm": lambda dtype: gmm(LHS, RHS, SIZES, dtype),
    "tgmm": lambda dtype: tgmm(LHS.T, OTHER, SIZES, dtype),
    "ragged_dot": lambda dtype: ragged_dot(LHS, RHS, SIZES, preferred_element_type=dtype),
    "lax": lambda dtype: lax.ragged_dot(LHS, RHS, SIZES, preferred_element_type=dtype),
    "tokamax": lambda dtype: tokamax.ragged_dot(LHS, RHS, group_sizes=SIZES, preferred_element_type=dtype),
    "te": lambda dtype: transformer_engine.grouped_dense(LHS, RHS, SIZES, preferred_element_type=dtype),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [np.float64, jnp.float64, "float64"], ids=["numpy", "jax", "string"])
def test_unavailable_float64_warns(name, dtype):
    with pytest.warns(
        UserWarning, match="preferred_element_type: dtype float64 is not available.*jax_enable_x64"
    ) as warned:
        assert CALLS[name](dtype).dtype == np.float32
    assert len(warned) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert CALLS[name](np.float32).dtype == np.float32
        with jax.enable_x64(True):
            assert CALLS[name](dtype).dtype == np.float64


FLOATS = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)


@pytest.mark.parametrize("lhs_dtype", FLOATS, ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("rhs_dtype", FLOATS, ids=lambda t: np.dtype(t).name)
def test_ragged_dot_has_the_dtype_rule_of_lax(x64, lhs_dtype, rhs_dtype):
    lhs, rhs = LHS.astype(lhs_dtype), RHS.astype(rhs_dtype)
    for preferred in (None, np.float32, ml_dtypes.bfloat16):
        ours, theirs = (
            jax.eval_shape(functools.partial(f, preferred_element_type=preferred), lhs, rhs, SIZES)
            for f in (ragged_dot, jax.lax.ragged_dot)
        )
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
