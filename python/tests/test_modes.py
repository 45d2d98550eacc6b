import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import oracle
import pytest
from arrays import random, sampled
from cases import CASES
from raggemm import GroupedTensor, gmm, grouped_gemm, tgmm

FLOATS = tuple(map(np.dtype, (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)))


def expected_gmm(lhs, rhs, sizes, **options):
    return oracle.grouped_gemm(
        GroupedTensor(lhs, first_dims=sizes), GroupedTensor(rhs), contracting_dims=((1,), (1,)), **options
    )


@pytest.mark.parametrize("case", sampled(CASES, 3), ids=str)
def test_every_mode_and_storage(case):
    operands = case.operands()
    plain = {name: operands[name] for name in ("lhs", "rhs", "dims")}
    case.expected(plain).check(case.run(plain))
    case.expected(operands).check(case.run(operands))


def test_several_axes_collapse():
    lhs, rhs, sizes = random(3, 4, 2, 5), random(2, 2, 5, 3, 2, seed=1), np.array([7, 4], np.int32)
    x, w = GroupedTensor(lhs, first_dims=sizes), GroupedTensor(rhs)
    dims = (2, 3), (1, 2)
    got = grouped_gemm(x, w, contracting_dims=dims)
    assert got.shape == (3, 4, 3, 2)
    oracle.grouped_gemm(x, w, contracting_dims=dims).check(got)
    # One operand may have one contracted axis, and the other several.
    np.testing.assert_array_equal(got, grouped_gemm(x, rhs, contracting_dims=((-2, -1), (-4, -3))))
    np.testing.assert_array_equal(got, grouped_gemm(x, rhs.reshape(2, 10, 3, 2), contracting_dims=((2, 3), (1,))))
    bias = random(2, 3, 2)
    biased = functools.partial(grouped_gemm, x, rhs, contracting_dims=dims)
    np.testing.assert_array_equal(biased(bias=bias), biased(bias=bias.reshape(2, 6)))
    ragged = GroupedTensor(random(11, 3, 2), first_dims=sizes)
    got = grouped_gemm(x, GroupedTensor(random(12, 5), first_dims=sizes), contracting_dims=((0, 1), (0,)))
    assert got.shape == (2, 2, 5, 5)
    oracle.grouped_gemm(x, GroupedTensor(random(12, 5), first_dims=sizes), contracting_dims=((0, 1), (0,))).check(got)
    assert grouped_gemm(ragged, ragged, contracting_dims=((0,), (0,))).shape == (2, 3, 2, 3, 2)
    uniform = grouped_gemm(random(2, 3, 4, 5), random(2, 5, 6, 7), contracting_dims=((3,), (1,)))
    assert uniform.shape == (2, 3, 4, 6, 7)


@pytest.mark.parametrize(
    ("lhs_dtype", "rhs_dtype"), sampled([*itertools.product(FLOATS, FLOATS)], 5, unpack=True), ids=str
)
def test_mixed_dtypes(x64, lhs_dtype, rhs_dtype):
    sizes = np.array([3, 0, 5], np.int32)
    for out_dtype in FLOATS:
        x = GroupedTensor(random(9, 6, dtype=lhs_dtype), first_dims=sizes)
        w = GroupedTensor(random(3, 6, 4, dtype=rhs_dtype, seed=1))
        y = GroupedTensor(random(9, 4, dtype=rhs_dtype, seed=1), first_dims=sizes)
        compute = oracle.compute_type(lhs_dtype, rhs_dtype, out_dtype)
        optional = {"c": random(9, 4, dtype=out_dtype), "alpha": random(3, dtype=compute), "beta": 0.5}
        optional["bias"] = random(3, 4, dtype=lhs_dtype)
        for left, right, dims, options in ((x, w, ((1,), (1,)), optional), (x, y, ((0,), (0,)), {})):
            options = {"contracting_dims": dims, "preferred_element_type": out_dtype, **options}
            got = grouped_gemm(left, right, **options)
            assert got.dtype == out_dtype
            oracle.grouped_gemm(left, right, **options).check(got)
    default = grouped_gemm(x, w, contracting_dims=((1,), (1,)))
    assert default.dtype == jnp.result_type(x.data, w.data)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32])
def test_dtypes_of_sizes_and_offset(x64, dtype):
    lhs, rhs, sizes = random(9, 3), random(2, 3, 4), np.array([2, 0, 4], dtype)
    got = gmm(lhs, rhs, sizes, group_offset=np.ones(1, dtype))
    expected_gmm(lhs, rhs, sizes, group_offset=1).check(got)
    got = tgmm(lhs.T, lhs, sizes, group_offset=dtype(1), num_actual_groups=2)
    np.testing.assert_allclose(got[1], lhs[2:6].T @ lhs[2:6], rtol=1e-5)


def test_every_pattern_of_empty_groups():
    lhs, rhs, other = random(24, 5), random(8, 5, 3, seed=1), random(24, 4, seed=2)
    forward, wgrad = jax.jit(gmm), jax.jit(tgmm)
    for pattern in itertools.product((0, 1), repeat=8):
        sizes = np.array(pattern, np.int32) * np.array([1, 2, 3, 4, 3, 2, 1, 6], np.int32)
        expected_gmm(lhs, rhs, sizes).check(forward(lhs, rhs, sizes))
        x, y = (GroupedTensor(data, first_dims=sizes) for data in (lhs, other))
        oracle.grouped_gemm(x, y, contracting_dims=((0,), (0,))).check(wgrad(lhs.T, other, sizes))


EMPTY = [(2, 4, 0, 2), (2, 4, 3, 0), (2, 0, 3, 2), (0, 0, 0, 0), (0, 4, 3, 2)]


@pytest.mark.parametrize(("g", "m", "k", "n"), sampled(EMPTY, 2, unpack=True))
def test_empty_extents(g, m, k, n):
    sizes = np.full(g, m // 2, np.int32)
    rows, cols = GroupedTensor(random(m, k), first_dims=sizes), GroupedTensor(random(k, m), last_dims=sizes)
    calls = [
        (rows, GroupedTensor(random(g, k, n)), ((1,), (1,)), {"bias": random(g, n)}),
        (rows, GroupedTensor(random(m, n), first_dims=sizes), ((0,), (0,)), {"bias": random(g, n)}),
        (GroupedTensor(random(g, n, k)), cols, ((2,), (0,)), {}),
        (GroupedTensor(random(n, k)), cols, ((1,), (0,)), {}),
        (GroupedTensor(random(g, m, k)), GroupedTensor(random(g, k, n)), ((2,), (1,)), {"bias": random(g, n)}),
    ]
    for lhs, rhs, dims, bias in calls:
        for options in ({}, bias):
            got = grouped_gemm(lhs, rhs, contracting_dims=dims, **options)
            oracle.grouped_gemm(lhs, rhs, contracting_dims=dims, **options).check(got)


def test_nothing_leaks_between_groups():
    sizes = np.array([3, 2, 0, 4], np.int32)
    for bad in (np.nan, np.inf):
        lhs, rhs = random(12, 5), random(4, 5, 3)
        lhs[3:5], rhs[1], rhs[2], lhs[9:] = bad, bad, bad, bad
        got = np.asarray(gmm(lhs, rhs, sizes))
        assert np.isfinite(np.delete(got, [3, 4], axis=0)).all()
        assert not np.isfinite(got[3:5]).any()
        assert (got[9:] == 0).all()
        wgrad = np.asarray(tgmm(lhs.T, lhs, sizes))
        assert np.isfinite(wgrad[[0, 2, 3]]).all()
        expected_gmm(lhs, rhs, sizes).check(got)
    # NaN in the cotangent does not reach the gradients of other groups.
    ct = np.ones((12, 3), np.float32)
    ct[3:5], ct[9:] = np.nan, np.nan
    dlhs, drhs = jax.vjp(lambda x, w: gmm(x, w, sizes), random(12, 5), random(4, 5, 3))[1](ct)
    assert np.isfinite(np.delete(dlhs, [3, 4], axis=0)).all()
    assert np.isfinite(np.delete(drhs, 1, axis=0)).all()


OFFSETS = [(offset, local) for offset in range(4) for local in range(4 - offset + 1)]


@pytest.mark.parametrize(("offset", "local"), sampled(OFFSETS, 4, unpack=True))
def test_group_offset(offset, local):
    sizes = np.array([3, 0, 2, 4], np.int32)
    lhs, rhs = GroupedTensor(random(11, 5), first_dims=sizes), GroupedTensor(random(local, 5, 3))
    optional = {"alpha": random(local), "beta": random(local, seed=1), "bias": random(local, 3)}
    for options in ({}, {**optional, "c": random(11, 3, seed=2)}):
        options = {"contracting_dims": ((1,), (1,)), "group_offset": np.int32(offset), **options}
        oracle.grouped_gemm(lhs, rhs, **options).check(grouped_gemm(lhs, rhs, **options))
    other = GroupedTensor(random(11, 3), first_dims=sizes)
    for options in ({}, {**optional, "c": random(local, 5, 3, seed=2)}):
        options = {"contracting_dims": ((0,), (0,)), "num_actual_groups": local, **options}
        options["group_offset"] = np.array([offset], np.int32)
        oracle.grouped_gemm(lhs, other, **options).check(grouped_gemm(lhs, other, **options))


@pytest.mark.parametrize("beta", [0, 0.0, np.zeros(2, np.float32)], ids=["int", "float", "array"])
def test_beta_zero_never_reads_c(beta):
    sizes, c = np.array([2, 3], np.int32), np.full((6, 4), np.nan, np.float32)
    lhs, rhs = GroupedTensor(random(6, 3), first_dims=sizes), random(2, 3, 4)
    got = grouped_gemm(lhs, rhs, contracting_dims=((1,), (1,)), c=c, beta=beta)
    np.testing.assert_array_equal(got[:5], grouped_gemm(lhs, rhs, contracting_dims=((1,), (1,)))[:5])
    assert np.isnan(got[5:]).all()


def test_grouped_tensor_is_a_pytree():
    x = GroupedTensor(jnp.ones((4, 2)), first_dims=jnp.array([1, 3]), layout="PACKED")
    leaves, tree = jax.tree.flatten(x)
    assert len(leaves) == 2
    assert dataclasses.asdict(jax.tree.unflatten(tree, [1, 2])) == dict(
        data=1, first_dims=2, last_dims=None, layout="PACKED"
    )
    out = jax.jit(lambda x, w: grouped_gemm(x, w, contracting_dims=((1,), (1,))))(x, jnp.ones((2, 2, 3)))
    assert (out == 2).all()
