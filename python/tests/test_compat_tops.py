import functools
import itertools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import oracle
import pytest
from arrays import random, sampled
from front_end_checks import check_errors
from jax.sharding import AxisType, PartitionSpec
from raggemm import GroupedTensor
from raggemm.compat import tops

SIZES = np.array([9, 0, 4, 11], np.int32)
M, K, N, G = 24, 300, 7, 4
LHS, RHS, COLS = random(M, K), random(G, K, N, seed=1), random(M, N, seed=2)


def to_bf16(x):
    return np.asarray(x).astype(ml_dtypes.bfloat16)


DTYPES = np.float32, ml_dtypes.bfloat16, np.float16


@pytest.mark.parametrize(("dtype", "transpose"), sampled([*itertools.product(DTYPES, (False, True))], 3, unpack=True))
def test_gmm(dtype, transpose):
    lhs, rhs = LHS.astype(dtype), RHS.astype(dtype)
    want = oracle.grouped_gemm(
        GroupedTensor(to_bf16(lhs), first_dims=SIZES),
        GroupedTensor(to_bf16(rhs)),
        contracting_dims=((1,), (1,)),
        preferred_element_type=np.float32,
    )
    stored = rhs.swapaxes(1, 2) if transpose else rhs
    for f in (tops.gmm, tops.gmm_ref):
        got = f(lhs, stored, SIZES, transpose)
        assert got.dtype == np.float32
        want.check(got)


def test_tgmm():
    want = oracle.grouped_gemm(
        *(GroupedTensor(to_bf16(x), first_dims=SIZES) for x in (LHS, COLS)),
        contracting_dims=((0,), (0,)),
        preferred_element_type=np.float32,
    )
    for f in (tops.tgmm, tops.tgmm_ref):
        got = f(LHS, COLS, SIZES)
        assert got.dtype == np.float32
        want.check(got)
        assert (got[1] == 0).all()


@pytest.mark.parametrize("function", [tops.gmm, tops.gmm_ref])
def test_devices_sum_gradients_in_the_dtype_of_the_weights(function):
    mesh, rows = jax.make_mesh((4,), ("rows",), axis_types=(AxisType.Auto,)), PartitionSpec("rows")
    x, one = np.array([[256], [1], [1], [1]], np.float32), np.array([1], np.int32)
    specs = {"mesh": mesh, "in_specs": (rows, PartitionSpec()), "out_specs": rows}
    product = jax.shard_map(lambda x, w: function(x, w, one), **specs)
    gradient = jax.jit(jax.grad(lambda w: product(x, w).sum()))(np.ones((1, 1, 1), np.float32))
    np.testing.assert_array_equal(gradient, 259)  # 259 is not a bfloat16 number, so the sum was not rounded


def sizes(*values):
    return np.array(values, np.int32)


PARTITIONS = [
    (sizes(9, 0, 4, 10), ValueError, "group_sizes: the sum is 23, must be m = 24"),
    (sizes(9, 0, 4, 12), ValueError, "group_sizes: the sum is 25, must be m = 24"),
    (np.array([2**31 - 1, 2**31 - 1, 0, 0], np.uint32), ValueError, "group_sizes: the sum is 4294967294"),
    (sizes(9, 0, -4, 19), ValueError, "group_sizes: value -4 at index 2, must be at least 0"),
    (SIZES[None], ValueError, r"group_sizes: shape is \(1, 4\)"),
    (SIZES.astype(np.float32), TypeError, "group_sizes: dtype is float32, must be int32"),
    (SIZES.astype(bool), TypeError, "group_sizes: dtype is bool"),
]


@pytest.mark.parametrize("wrong, error, message", PARTITIONS, ids=range(len(PARTITIONS)))
def test_wrong_partitions(wrong, error, message):
    for f, rhs in ((tops.gmm, RHS), (tops.gmm_ref, RHS), (tops.tgmm, COLS), (tops.tgmm_ref, COLS)):
        check_errors(functools.partial(f, LHS, rhs, wrong), error, message)
    check_errors(functools.partial(tops.check_partition, wrong, M), error, message)


def test_traced_sizes():
    compiled = jax.jit(tops.gmm)
    got = compiled(LHS, RHS, sizes(9, 0, 4, 3))
    assert (got[16:] == 0).all()
    np.testing.assert_array_equal(got[:16], tops.gmm(LHS, RHS, SIZES)[:16])
    for wrong, message in ((sizes(9, 0, 4, 12), "exceeds the extent 24"), (sizes(-1, 0, 4, 3), "group 0 has size -1")):
        with pytest.raises(jax.errors.JaxRuntimeError, match=message):
            jax.block_until_ready(compiled(LHS, RHS, jnp.asarray(wrong)))
