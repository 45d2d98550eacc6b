"""Tests raggemm.compat.maxtext with the arguments that MaxText passes to gmm and tgmm."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from arrays import random, sampled
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from raggemm import GroupedTensor
from raggemm.compat import maxtext

SIZES = np.array([3, 0, 2, 4], np.int32)
M, K, N, G = 12, 5, 6, 4
LHS, RHS, COLS, OUT = random(M, K), random(G, K, N, seed=1), random(M, N, seed=2), random(M, N, seed=3)
EXISTING = random(G, K, N, seed=4)


def expected(**options):
    rows = GroupedTensor(LHS, first_dims=SIZES)
    return oracle.grouped_gemm(rows, GroupedTensor(RHS), contracting_dims=((1,), (1,)), **options)


def test_gmm():
    got = maxtext.gmm(LHS, RHS, SIZES)
    assert got.dtype == np.float32
    expected().check(got)
    # Rows in no group keep existing_out.
    got = maxtext.gmm(LHS, RHS.swapaxes(1, 2), SIZES, jnp.float32, (8,) * 9, None, OUT, True, True, None, None, False)
    expected().check(np.where(np.arange(M)[:, None] < 9, got, 0))
    np.testing.assert_array_equal(got[9:], OUT[9:])


def test_tgmm():
    rows, cols = (GroupedTensor(x, first_dims=SIZES) for x in (LHS, COLS))
    want = functools.partial(oracle.grouped_gemm, rows, cols, contracting_dims=((0,), (0,)))
    want().check(maxtext.tgmm(LHS.T, COLS, SIZES))
    got = maxtext.tgmm(
        LHS.T, COLS, SIZES, jnp.float32, (8, 8, 8), jnp.int32(1), 2, EXISTING[:2], True, (), None, None, False
    )
    want(group_offset=1, num_actual_groups=2, c=EXISTING[:2]).check(got)


def test_partial_sum_is_added():
    got = maxtext.gmm(LHS, RHS, SIZES, partial_sum=OUT)
    expected(c=OUT, beta=np.ones(G)).check(got)
    gradient = jax.jit(jax.grad(lambda c: jnp.vdot(COLS, maxtext.gmm(LHS, RHS, SIZES, partial_sum=c))))(OUT)
    np.testing.assert_array_equal(gradient, COLS)


@pytest.mark.parametrize("check_vma", sampled([True, False], 2))
def test_result_varies_along_the_named_axes(check_vma):
    """Results vary along the named mesh axes, so shard_map concatenates four equal arrays."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))

    def gmm_and_tgmm(lhs, rhs, sizes):
        out = maxtext.gmm(lhs, rhs, sizes, lhs_vma_axes=("x",), rhs_vma_axes=("x",))
        gradient = maxtext.tgmm(lhs.T, out, sizes, varying_axes=("x",))
        return out, gradient

    specs = {"in_specs": (P(), P(), P()), "out_specs": (P("x"), P("x"))}
    out, gradient = jax.jit(jax.shard_map(gmm_and_tgmm, mesh=mesh, check_vma=check_vma, **specs))(LHS, RHS, SIZES)
    want = maxtext.gmm(LHS, RHS, SIZES)
    np.testing.assert_array_equal(out, np.concatenate([want] * 4))
    np.testing.assert_array_equal(gradient, np.concatenate([maxtext.tgmm(LHS.T, want, SIZES)] * 4))
    with pytest.raises((NameError, ValueError), match=r"under .*shard_map|unbound axis"):
        maxtext.gmm(LHS, RHS, SIZES, lhs_vma_axes=("x",))  # Outside of shard_map no axis is called "x".
