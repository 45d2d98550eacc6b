import itertools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from arrays import random, sampled
from cases import CASES
from program_text import calls, copies_of_weights, custom_calls
from raggemm import gmm, tgmm

BATCH = 3
# Batch element b has the group sizes SIZES in the order ORDERS[b].
ORDERS = (np.arange(4), np.array([2, 0, 3, 1]), np.array([3, 2, 1, 0]))


@pytest.mark.parametrize("case", sampled(CASES, 3), ids=str)
def test_every_mode_and_storage(case):
    """Runs two vmaps: over lhs, rhs or sizes, and then over all optional operands or three random ones."""
    operands = case.operands()
    names = [name for name in operands if name != "dims" or not case.name.startswith("uniform")]
    rng = np.random.default_rng(len(case.name))
    alone = [(name,) for name in names if name in ("lhs", "rhs", "dims")]
    single = alone[CASES.index(case) % len(alone)]
    optional = tuple(names[len(alone) :])
    for subset in (single, optional if CASES.index(case) % 2 else tuple(rng.choice(names, 3, replace=False))):
        batched, axes = {}, {}
        for name, x in operands.items():
            axes[name] = -1 if name in subset else None
            if name not in subset:
                batched[name] = x
            elif name == "dims":
                batched[name] = jax.tree.map(lambda sizes: np.stack([sizes[o] for o in ORDERS], -1), x)
            else:
                batched[name] = np.stack([np.roll(x, i) * (1 + i) for i in range(BATCH)], -1)
        f = jax.vmap(case.run, (axes,))
        assert calls(f, batched).total() == 1
        got = f(batched)
        for i in range(BATCH):
            problem = {
                name: x if axes[name] is None else jax.tree.map(lambda x, i=i: x[..., i], x)
                for name, x in batched.items()
            }
            case.expected(problem).check(got[i])


SIZES = np.array([3, 0, 2, 4], np.int32)
M, K, N, G = 11, 13, 17, 4  # Only weights have a multiple of K * N elements: copies_of_weights needs this.
ROWS, WEIGHTS = random(BATCH, M, K), random(BATCH, G, K, N, seed=1)
SIZES_B, OFFSETS = np.stack([SIZES[o] for o in ORDERS]), np.array([0, 2, 1], np.int32)


@pytest.mark.parametrize("is_batched", sampled(list(itertools.product((0, 1), repeat=4))[1:], 3), ids=str)
def test_tgmm_in_every_combination(is_batched):
    def f(lhs, rhs, sizes, offset):
        return tgmm(lhs.T, rhs, sizes, group_offset=offset, num_actual_groups=2)

    args = (ROWS, random(BATCH, M, 5), SIZES_B, OFFSETS)
    axes = tuple(0 if batched else None for batched in is_batched)
    batched = jax.vmap(f, axes)
    args = tuple(x if axis == 0 else x[0] for x, axis in zip(args, axes, strict=True))
    assert calls(batched, *args).total() == 1
    got = batched(*args)
    for i in range(BATCH):
        problem = (x[i] if axis == 0 else x for x, axis in zip(args, axes, strict=True))
        np.testing.assert_array_equal(got[i], f(*problem))


@pytest.mark.parametrize("transpose", [False, True])
def test_vmap_copies_no_weights(transpose):
    """Tests vmaps over rows or weights, and their gradients."""
    weights = np.ascontiguousarray(WEIGHTS.swapaxes(2, 3)) if transpose else WEIGHTS

    def loss(lhs, rhs, sizes):
        return jnp.sin(gmm(lhs, rhs, sizes, transpose_rhs=transpose)).sum()

    for axes in ((0, None, 0), (0, 0, 0), (None, 0, None)):
        args = tuple(x[0] if axis is None else x for x, axis in zip((ROWS, weights, SIZES_B), axes, strict=True))
        forward = jax.jit(jax.vmap(lambda *a: gmm(*a, transpose_rhs=transpose), axes)).lower(*args)
        assert custom_calls(forward) == 1
        assert copies_of_weights(forward, K * N) == []
        batched = jax.vmap(loss, axes)
        backward = jax.jit(jax.grad(lambda *a, f=batched: f(*a).sum(), (0, 1))).lower(*args)
        assert custom_calls(backward) == 3
        assert copies_of_weights(backward, K * N) == []


def test_weight_gradient_of_batched_offsets_is_rounded_once():
    """The sum of three gradients of 257 is 772 in bfloat16 (771 rounded). Each 257 alone would round to 256."""
    weights, rows = np.ones((1, 1, 1), ml_dtypes.bfloat16), np.ones((BATCH, 1, 1), ml_dtypes.bfloat16)

    def f(weights):
        return jax.vmap(lambda x, o: gmm(x, weights, np.array([1, 0], np.int32), group_offset=o))(rows, OFFSETS * 0)

    (gradient,) = jax.vjp(f, weights)[1](jnp.full((BATCH, 1, 1), 257, jnp.float32))
    assert gradient.dtype == jnp.bfloat16
    assert gradient.item() == 772


def test_empty_batch():
    assert jax.vmap(gmm)(ROWS[:0], WEIGHTS[:0], SIZES_B[:0]).shape == (0, M, N)
    assert jax.vmap(gmm, (0, None, 0))(ROWS[:0], WEIGHTS[0], SIZES_B[:0]).shape == (0, M, N)


def test_weight_gradient_of_an_empty_batch():
    groups = 100
    weights, sizes = np.ones((groups, 4, 5), np.float32), np.zeros(groups, np.int32)

    def loss(weights):
        return jax.vmap(lambda rows: gmm(rows, weights, sizes))(np.ones((0, 7, 4), np.float32)).sum()

    np.testing.assert_array_equal(jax.grad(loss)(weights), np.zeros_like(weights))
