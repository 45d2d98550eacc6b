"""Tests TransformerEngine's router and permutation against NumPy, one token at a time."""

import enum
import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import routing_oracle as oracle
from arrays import random, sampled
from front_end_checks import check_errors
from hypothesis import given, settings
from hypothesis import strategies as st
from raggemm.compat import transformer_engine as te

T, E, H = 7, 12, 4
LOGITS, BIAS = random(T, E), random(E, seed=1)
close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)


class ScoreFunction(enum.IntEnum):
    SIGMOID = 0
    SOFTMAX = 1
    SQRTSOFTPLUS = 2


def to_dense(weights, experts):
    probs, mask = np.zeros((len(experts), E)), np.zeros((len(experts), E), bool)
    for t, j in np.ndindex(experts.shape):
        probs[t, experts[t, j]], mask[t, experts[t, j]] = weights[t, j], True
    return probs, mask


# {name: (options of the router, the same options for routing_oracle.route)}
ROUTERS = {
    "softmax": ({}, {"score": "softmax"}),
    "pre_softmax": ({"use_pre_softmax": True, "scaling_factor": 2.0}, {"pre_softmax": True, "scaling_factor": 2.0}),
    "sigmoid": ({"score_function": "sigmoid"}, {"score": "sigmoid", "renormalize": True}),
    "enumerator, use_pre_softmax ignored": ({"score_function": ScoreFunction.SIGMOID, "use_pre_softmax": True},
        {"score": "sigmoid", "renormalize": True}),
    "groups": ({"num_groups": 4, "group_topk": 2}, {"groups": (4, 2, 2)}),
    "groups of four experts": ({"num_groups": 3, "group_topk": 1}, {"groups": (3, 1, 4)}),
    "groups with a bias": (
        {"num_groups": 4, "group_topk": 2, "score_function": "sigmoid", "expert_bias": BIAS, "scaling_factor": 2.5},
        {"score": "sigmoid", "groups": (4, 2, 2), "bias": BIAS, "renormalize": True, "scaling_factor": 2.5}),
    "group_topk of 0 turns groups off": ({"num_groups": 4, "group_topk": 0}, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", sampled(ROUTERS, 2))
def test_fused_topk_with_score_function(name):
    options, oracle_options = ROUTERS[name]
    oracle_options = {"score": "softmax"} | oracle_options
    target = random(T, E, seed=2)
    f = functools.partial(te.fused_topk_with_score_function, topk=4, **options)
    probs, mask = jax.jit(f)(LOGITS)
    want_probs, want_mask = to_dense(*oracle.route(LOGITS, 4, **oracle_options))
    close(probs, want_probs)
    np.testing.assert_array_equal(mask, want_mask)
    assert (probs.dtype, mask.dtype) == (np.float32, bool)
    got = jax.jit(jax.grad(lambda x: (f(x)[0] * target).sum()))(LOGITS)
    want = oracle.gradient(lambda x: (to_dense(*oracle.route(x, 4, **oracle_options))[0] * target).sum(), LOGITS)
    close(got, want, rtol=1e-4, atol=2e-5)


def test_fused_moe_aux_loss():
    probs, counts = oracle.softmax(random(T, E)), np.arange(E, dtype=np.int32)

    def want(probs):
        return E * 0.1 / (3 * T**2) * sum(probs[:, e].sum() * counts[e] for e in range(E))

    got = jax.jit(te.fused_moe_aux_loss, static_argnums=(2, 3))(probs.astype(np.float32), counts, 3, 0.1)
    close(got, want(probs))
    gradient = jax.jit(jax.grad(te.fused_moe_aux_loss), static_argnums=(2, 3))(probs.astype(np.float32), counts, 3, 0.1)
    close(gradient, oracle.gradient(want, probs))
    assert te.fused_moe_aux_loss(probs.astype(ml_dtypes.bfloat16), counts, 3, 0.1).dtype == jnp.bfloat16


def expected_dispatch(x, routing_map, count, probs=None, align=1):
    """Computes token_dispatch by its definition.

    Returns `count` rows, probabilities of rows, {row: (token, expert)}, and the padded number of rows per expert.
    """
    rows, row_probs, pair_of_row, sizes = np.zeros((count, x.shape[1])), np.zeros(count), {}, []
    row = 0
    for e in range(routing_map.shape[1]):
        start = row
        for t in np.flatnonzero(routing_map[:, e]):
            if row < count:
                pair_of_row[row] = (int(t), e)
                rows[row] = x[t] if probs is None or probs[t, e] else 0
                row_probs[row] = 0 if probs is None else probs[t, e]
            row += 1
        row = start + -(-(row - start) // align) * align
        sizes.append(row - start)
    return rows, row_probs, pair_of_row, sizes


@st.composite
def routing_maps(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    routing_map = (rng.random((T, 5)) < draw(st.sampled_from((0.15, 0.5, 0.9)))).astype(np.int32)
    routing_map[rng.integers(T), rng.integers(5)] = 1
    probs = np.where(rng.random((T, 5)) < 0.2, 0, rng.random((T, 5))).astype(np.float32)
    return routing_map, probs, rng.normal(size=(T, H)).astype(np.float32)


dispatch = jax.jit(te.token_dispatch, static_argnums=2, static_argnames="align_size")
combine = jax.jit(te.token_combine)


@settings(max_examples=8)
@given(routing_maps(), st.sampled_from([None, 1, 4]), st.booleans())
def test_dispatch_and_combine(case, align, with_probs):
    routing_map, probs, x = case
    count = 40  # Enough rows for all T * 5 pairs. A constant, so that all examples share a program.
    got = dispatch(x, routing_map, count, probs if with_probs else None, align_size=align)
    rows, row_probs, row_id_map, pad_offsets, sizes = got
    length = count if align is None else (count + 5 * (align - 1)) // align * align
    expected = expected_dispatch(x, routing_map, length, probs if with_probs else None, align or 1)
    want, want_row_probs, pair_of_row, want_sizes = expected
    np.testing.assert_array_equal(rows, want.astype(np.float32))
    np.testing.assert_array_equal(sizes, want_sizes)
    assert (row_probs is None) != with_probs and (pad_offsets is None) == (align is None)
    if with_probs:
        np.testing.assert_array_equal(row_probs, want_row_probs.astype(np.float32))
    for t in range(T):
        own_rows = sorted((r for r, (token, _) in pair_of_row.items() if token == t), reverse=True)
        n = int(row_id_map[t, -1])
        experts = np.asarray(row_id_map[t, 5 : 5 + n])
        offsets = 0 if align is None else np.asarray(pad_offsets)[experts]
        assert (np.asarray(row_id_map[t, :n]) + offsets).tolist() == own_rows
        assert experts.tolist() == [pair_of_row[r][1] for r in own_rows]

    # token_combine must not read rows that belong to no token, so they are NaN.
    results = random(length, H, seed=3)
    results[[r for r in range(length) if r not in pair_of_row]] = np.nan
    got = combine(results, row_id_map, probs if with_probs else None, pad_offsets)
    want = np.zeros((T, H))
    for r, (t, e) in pair_of_row.items():
        want[t] += (probs[t, e] if with_probs else 1.0) * results[r].astype(np.float64)
    close(got, want, atol=1e-5)


def test_gradients():
    rng = np.random.default_rng(5)
    routing_map = (rng.random((T, 5)) < 0.5).astype(np.int32)
    x, probs, count = random(T, H), (rng.random((T, 5)) + 0.1).astype(np.float32), int(routing_map.sum())
    for align in (None, 4):
        _, _, row_id_map, pad_offsets, _ = dispatch(x, routing_map, count, align_size=align)
        length = count if align is None else (count + 15) // 4 * 4
        target, rows_target = random(length, H, seed=6), random(length, seed=7)

        def loss(x, probs, target=target, rows_target=rows_target, align=align):
            rows, row_probs, *_ = te.token_dispatch(x, routing_map, count, probs, align)
            return (rows * target).sum() + (row_probs * rows_target).sum()

        def want_loss(x, probs, target=target, rows_target=rows_target, align=align or 1):
            rows, row_probs, *_ = expected_dispatch(x, routing_map, len(target), probs, align)
            return (rows * target).sum() + (row_probs * rows_target).sum()

        d_x, d_probs = jax.jit(jax.grad(loss, (0, 1)))(x, probs)
        close(d_x, oracle.gradient(lambda x: want_loss(x, probs), x), rtol=1e-4, atol=1e-4)
        close(d_probs, oracle.gradient(lambda p: want_loss(x.astype(np.float64), p), probs), rtol=1e-4, atol=1e-4)

        pair_of_row = expected_dispatch(x, routing_map, length, None, align or 1)[2]
        token_target, results = random(T, H, seed=8), random(length, H, seed=9)
        f = functools.partial(te.token_combine, pad_offsets=pad_offsets)
        gradient = jax.grad(lambda *args, f=f, ct=token_target: (f(*args) * ct).sum(), (0, 2))
        d_rows, d_probs = jax.jit(gradient)(results, row_id_map, probs)
        want_rows, want_probs = np.zeros((length, H)), np.zeros((T, 5))
        for r, (t, e) in pair_of_row.items():
            want_rows[r] = probs[t, e] * token_target[t]
            want_probs[t, e] = results[r].astype(np.float64) @ token_target[t]
        close(d_rows, want_rows, atol=1e-5)
        close(d_probs, want_probs, atol=1e-5)


def test_sort_chunks_by_index():
    x, sizes, order = random(9, H), np.array([3, 0, 2, 3], np.uint32), np.array([2, 0, 3, 1], np.int32)
    chunks = np.split(np.arange(9), np.cumsum(sizes))
    source_rows = np.concatenate([*(chunks[c] for c in order), chunks[4]])  # Row 8 is in no chunk.
    out, row_ids = jax.jit(te.sort_chunks_by_index)(x, sizes, order)
    np.testing.assert_array_equal(out, x[source_rows])
    np.testing.assert_array_equal(row_ids, np.argsort(source_rows))
    assert row_ids.dtype == np.int32
    target = random(9, H, seed=1)
    gradient = jax.jit(jax.grad(lambda x: (te.sort_chunks_by_index(x, sizes, order)[0] * target).sum()))(x)
    np.testing.assert_array_equal(gradient, target[row_ids])
    out_of_3d = jax.jit(te.sort_chunks_by_index)(x.reshape(3, 3, H), sizes, order)[0]
    np.testing.assert_array_equal(out_of_3d, out)


def test_errors():
    f, dispatch, x = te.fused_topk_with_score_function, te.token_dispatch, np.ones((2, 3), np.float32)
    options = {"score_function": ScoreFunction.SQRTSOFTPLUS}
    check_errors(lambda: f(LOGITS, 2, **options), NotImplementedError, "^score_function is 'sqrtsoftplus', only")
    check_errors(lambda: f(LOGITS, 2, score_function="tanh"), ValueError, "^score_function is 'tanh', must be")
    check_errors(lambda: f(LOGITS, 2, scaling_factor=jnp.ones(())), TypeError, "^scaling_factor: is .*, must be a fl")
    check_errors(lambda: f(LOGITS, 2, expert_bias=BIAS), ValueError, "^expert_bias is for score_function 'sigmoid'")
    check_errors(lambda: f(LOGITS, 2, routing_map_format=3), ValueError, "^routing_map_format is 3, must be 'bytemap'")
    check_errors(lambda: f(LOGITS, 2, False, 4, 3), ValueError, "^group_topk is 3, must be at most topk, 2")
    check_errors(lambda: f(LOGITS, 2, False, 5, 1), ValueError, "^num_groups is 5, must divide the 12 experts")
    check_errors(lambda: te.fused_moe_aux_loss(x, [1, 2], 1, 1.0), ValueError, r"^probs is \(2, 3\) and tokens_per_exp")
    check_errors(lambda: dispatch(x, x, 0), ValueError, "^num_out_tokens is 0, must be at least 1")
    check_errors(lambda: dispatch(x, x, 6, None, 0), ValueError, "^align_size is 0, must be at least 1")
    check_errors(lambda: dispatch(x, x[1:], 6), ValueError, r"^routing_map: shape is \(1, 3\), must be 2 tokens")
    check_errors(lambda: dispatch(x, x, 6, x[:1]), ValueError, r"^probs: shape is \(1, 3\), must be that of rout")
    check_errors(lambda: dispatch(x[0], x, 6), ValueError, r"^inp: shape is \(3,\), must have 2 or 3 axes")
    check_errors(lambda: dispatch(x, x[:, :0], 6), ValueError, r"^routing_map: shape is \(2, 0\), must be 2 tokens")
    ids = np.zeros((2, 4), np.int32)
    check_errors(lambda: te.token_combine(x, ids), ValueError, r"^row_id_map: shape is \(2, 4\), must be \[T,2E\+1\]")
    ids = np.zeros((2, 5), np.int32)
    check_errors(lambda: te.token_combine(x, ids, x), ValueError, r"^merging_probs: shape is \(2, 3\), must be")
    check_errors(lambda: te.sort_chunks_by_index(x, [1, 1], [0]), ValueError, r"^split_sizes is \(2,\) and sorted_indi")


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize("topk", [1, 3])
def test_compute_aux_scores(score, topk):
    """All experts have scores. Bias, groups and scaling factor do not affect the scores.

    Sigmoids are divided by their sum unless topk is 1.
    """
    ignored = {"expert_bias": BIAS, "num_groups": 5, "group_topk": 9, "scaling_factor": 3.0, "use_pre_softmax": True}
    options = {"score_function": score, "compute_aux_scores": True} | ignored
    scores, mask = jax.jit(lambda x: te.fused_topk_with_score_function(x, topk, **options))(LOGITS)
    x = LOGITS.astype(np.float64)
    want = oracle.softmax(x) if score == "softmax" else oracle.sigmoid(x)
    if score == "sigmoid" and topk > 1:
        want /= want.sum(1, keepdims=True)
    close(scores, want)
    np.testing.assert_array_equal(mask, to_dense(*oracle.route(LOGITS, topk, "softmax"))[1])


@pytest.mark.parametrize("experts", [8, 12])
def test_bitmap(experts):
    logits = LOGITS[:, :experts]
    mask, bits = (
        jax.jit(lambda x, form=form: te.fused_topk_with_score_function(x, 3, routing_map_format=form)[1])(logits)
        for form in ("bytemap", "bitmap_u8")
    )
    mask, bits = np.asarray(mask), np.asarray(bits)
    assert (bits.dtype, bits.shape) == (np.uint8, (T, -(-experts // 8)))
    for t, e in np.ndindex(T, experts):
        assert bits[t, e // 8] >> e % 8 & 1 == mask[t, e]
