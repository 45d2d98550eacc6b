"""Tests sort_by_expert against sorted(), and combine against float64 and a float32 reference."""

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import raggemm
import routing_oracle as oracle
from arrays import random
from front_end_checks import check_errors
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads

T, K, G, H = 6, 3, 5, 4
close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
sort = jax.jit(raggemm.sort_by_expert, static_argnums=1)
jitted_combine = jax.jit(raggemm.combine, static_argnums=2, static_argnames="preferred_element_type")


def python_sort(experts, num_experts):
    pairs = [(t, slot) for t, slot in np.ndindex(experts.shape)]
    sort_key = lambda pair: e if 0 <= (e := experts[pair]) < num_experts else num_experts  # noqa: E731
    tokens, slots = zip(*sorted(pairs, key=sort_key), strict=True)
    return tokens, slots, [int(np.sum(experts == e)) for e in range(num_experts)]


@settings(max_examples=25)
@given(st.lists(st.integers(-2, G + 1), min_size=T * K, max_size=T * K))
def test_sort_by_expert(experts):
    experts = np.array(experts, np.int32).reshape(T, K)
    rows = sort(experts, G)
    tokens, slots, sizes = python_sort(experts, G)
    assert rows.row_tokens.tolist() == list(tokens)
    assert rows.row_slots.tolist() == list(slots)
    assert rows.group_sizes.tolist() == sizes
    np.testing.assert_array_equal(rows.order, rows.row_tokens * K + rows.row_slots)
    assert {x.dtype for x in rows} == {np.dtype(np.int32)}


@pytest.mark.parametrize("tokens, num_experts", [(40, 7), (512, 600), (1 << 14, 1 << 16)])
def test_sort_strategies(tokens, num_experts):
    """sort_by_expert counts experts by comparison or by search.

    It sorts by a single key of expert and position if the key has room.
    """
    experts = np.random.default_rng(tokens).integers(0, num_experts + 1, (tokens, 2), np.int32)
    rows = sort(experts, num_experts)
    np.testing.assert_array_equal(rows.order, np.argsort(experts.reshape(-1), kind="stable"))
    np.testing.assert_array_equal(rows.group_sizes, np.bincount(experts.reshape(-1))[:num_experts])


@pytest.mark.parametrize("shape", [(0, 2), (3, 0), (0, 0)])
def test_no_pairs(shape):
    rows = raggemm.sort_by_expert(np.zeros(shape, np.int32), 3)
    assert rows.row_tokens.shape == (0,) and rows.group_sizes.tolist() == [0, 0, 0]
    out = raggemm.combine(np.zeros((0, H), np.float32), rows.row_tokens, 2, group_sizes=rows.group_sizes)
    assert (np.asarray(out) == np.zeros((2, H))).all()


def combine_in_float32(rows, tokens, num_tokens, weights, count):
    """Computes combine with one float32 fma per row, in order. Products are exact in float64."""
    out = np.zeros((num_tokens, rows.shape[1]), np.float32)
    for r in range(count):
        out[tokens[r]] = (out[tokens[r]] + float(weights[r]) * rows[r].astype(np.float64)).astype(np.float32)
    return out


@st.composite
def sums(draw):
    """Draws rows, tokens, weights and group sizes. Rows in no group are NaN."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = rng.multinomial(draw(st.integers(0, 18)), np.ones(G) / G).astype(np.int32)
    tokens = rng.integers(0, T, 18).astype(np.int32)
    dtype = draw(st.sampled_from((np.float16, ml_dtypes.bfloat16, np.float32)))
    rows = rng.normal(size=(18, H)).astype(dtype)
    rows[sizes.sum() :] = np.nan
    weights = rng.normal(size=18).astype(np.float32)
    weights[sizes.sum() :] = rng.choice([np.nan, 1.0])
    return rows, tokens, weights, sizes


@settings(max_examples=30)
@given(sums(), st.booleans())
def test_combine(sums, keep_dtype):
    rows, tokens, weights, sizes = sums
    out_type = rows.dtype if keep_dtype else np.float32
    got = jitted_combine(rows, tokens, T, weights, sizes, preferred_element_type=out_type)
    assert got.dtype == out_type
    want = combine_in_float32(rows, tokens, T, weights, sizes.sum())
    np.testing.assert_array_equal(got, want.astype(out_type))  # the sum is rounded once
    exact = oracle.combine(rows, tokens, T, weights, sizes)
    close(want, exact)


def test_derivatives():
    tokens, sizes = np.array([2, 0, 2, 1, 0], np.int32), np.array([3, 0, 1], np.int32)
    f = jax.jit(lambda rows, weights: jnp.sin(raggemm.combine(rows, tokens, 4, weights, sizes)))
    check_grads(f, (random(5, H), random(5, seed=1)), order=2, modes=("fwd", "rev"), rtol=0.02, atol=0.02)


def test_without_weights_and_sizes():
    """Rows of tokens outside of [0, num_tokens) are skipped, even NaN rows. Sums start at +0."""
    rows = np.array([[1, -0.0], [np.nan, np.nan], [2, -0.0], [np.nan, 1], [4, -0.0]], np.float32)
    tokens = np.array([1, -1, 1, 3, 0], np.int32)
    for run in (jitted_combine, raggemm.combine):
        out = np.asarray(run(rows, tokens, 3))
        assert out.tolist() == [[4, 0], [3, 0], [0, 0]]
        assert not np.signbit(out).any()
    d_rows = jax.jit(jax.grad(lambda rows: raggemm.combine(rows, tokens, 3).sum()))(rows)
    assert d_rows[:, 0].tolist() == [1, 0, 1, 0, 1]


def test_a_nan_stays_with_its_token():
    rows = random(4, H)
    rows[1, 2] = np.nan
    out = np.asarray(jitted_combine(rows, np.array([0, 1, 1, 2]), 3))
    assert np.isnan(out[1, 2]) and np.isnan(out).sum() == 1


def test_other_tokens_do_not_change_bits():
    rng = np.random.default_rng(3)
    rows, tokens = rng.normal(size=(400, H)).astype(np.float32), rng.integers(0, 40, 400).astype(np.int32)
    weights = rng.normal(size=400).astype(np.float32)
    out = np.asarray(jitted_combine(rows, tokens, 40, weights))
    np.testing.assert_array_equal(out, jitted_combine(rows, tokens, 40, weights))
    with raggemm.options(isa="SCALAR", threads=1):
        np.testing.assert_array_equal(out, jitted_combine(rows, tokens, 40, weights))
    np.testing.assert_array_equal(out, combine_in_float32(rows, tokens, 40, weights, 400))
    for t in (0, 17):
        own_rows = tokens == t
        np.testing.assert_array_equal(
            jitted_combine(rows[own_rows], np.zeros(own_rows.sum(), int), 1, weights[own_rows])[0], out[t]
        )


def test_vmap():
    rows, tokens = random(3, 5, H), np.array([[0, 1, 1, 0, 1], [1] * 5, [2, 0, 0, 0, 1]], np.int32)
    got = jax.vmap(lambda rows, tokens: jitted_combine(rows, tokens, 2))(rows, tokens)
    for x, y, z in zip(got, rows, tokens, strict=True):
        np.testing.assert_array_equal(x, jitted_combine(y, z, 2))


@settings(max_examples=20)
@given(sums(), st.integers(0, 2**32 - 1))
def test_order_of_slots(sums, seed):
    rows, tokens, weights, sizes = sums
    slots = np.random.default_rng(seed).integers(-2, 3, len(rows)).astype(np.int32)
    got = jitted_combine(rows, tokens, T, weights, sizes, row_slots=slots)
    order = np.argsort(slots[: sizes.sum()], kind="stable")
    want = combine_in_float32(rows[order], tokens[order], T, weights[order], len(order))
    np.testing.assert_array_equal(got, want.astype(rows.dtype))


def test_a_new_chain_begins_after_256_rows():
    """Chains are added in order."""
    weights = np.random.default_rng(5).normal(size=600).astype(np.float32)
    chains = [
        combine_in_float32(np.ones((n, 1)), np.zeros(n, int), 1, w, n)
        for n, w in ((len(w), w) for w in np.split(weights, [256, 512]))
    ]
    got = jitted_combine(np.ones((600, 1), np.float32), np.zeros(600, np.int32), 1, weights)
    np.testing.assert_array_equal(got, (chains[0] + chains[1]) + chains[2])


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([-1, 3], "group_sizes: group 0 has size -1"),
        ([3, 3], "group_sizes: group 1 has size 3 and starts at 3, which exceeds the extent 4"),
    ],
)
def test_wrong_sizes(sizes, message):
    rows, tokens, sizes = np.ones((4, 2), np.float32), np.zeros(4, np.int32), np.array(sizes, np.int32)
    for run in (jitted_combine, raggemm.combine):
        with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match=message):
            jax.block_until_ready(run(rows, tokens, 1, None, sizes))
    with raggemm.options(on_error="nan"):
        assert np.isnan(jax.jit(lambda sizes: raggemm.combine(rows, tokens, 1, None, sizes))(sizes)).all()


def test_errors():
    rows, tokens = np.ones((4, 2), np.float32), np.zeros(4, np.int32)
    combine, sort = raggemm.combine, raggemm.sort_by_expert
    check_errors(lambda: sort(tokens, 3), ValueError, r"^experts: shape is \(4,\), must be \[tokens, top_k\]")
    check_errors(lambda: sort(rows, 3), TypeError, "^experts: dtype is float32, must be int32")
    check_errors(lambda: sort(tokens[:, None], 0), ValueError, "^num_experts is 0, must be at least 1")
    check_errors(lambda: combine(rows[0], tokens, 1), ValueError, r"^rows: shape is \(2,\), must be \[M,H\]")
    check_errors(lambda: combine(tokens[:, None], tokens, 1), TypeError, "^rows: dtype is int32")
    check_errors(lambda: combine(rows, tokens[1:], 1), ValueError, r"^row_tokens: shape is \(3,\), must be \(4,\), one")
    check_errors(lambda: combine(rows, rows[:, 0], 1), TypeError, "^row_tokens: dtype is float32")
    check_errors(lambda: combine(rows, tokens, -1), ValueError, "^num_tokens is -1, must be at least 0")
    check_errors(lambda: combine(rows, tokens, 1, rows), ValueError, r"^row_weights: shape is \(4, 2\), must be \(4,\)")
    check_errors(lambda: combine(rows, tokens, 1, None, rows), TypeError, "^group_sizes: dtype is float32")
    sizes = np.ones((1, 2), np.int32)
    check_errors(lambda: combine(rows, tokens, 1, None, sizes), ValueError, r"^group_sizes: shape is \(1, 2\), must be")
    slots = {"row_slots": tokens[1:]}
    check_errors(lambda: combine(rows, tokens, 1, **slots), ValueError, r"^row_slots: shape is \(3,\), must be \(4,\)")
    dtype = {"preferred_element_type": np.int32}
    check_errors(lambda: combine(rows, tokens, 1, **dtype), TypeError, "^preferred_element_type: dtype is int32")
