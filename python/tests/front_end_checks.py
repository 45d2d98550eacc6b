"""A front end under every transform of JAX, against einsums under the same ones.

All values are small integers, so that every sum is exact in any order and in bfloat16, and results must be equal.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import integers
from oracle import membership
from program_text import calls

M, K, N, G = 9, 2, 3, 3
FULL, SHORT = np.array([4, 0, 5], np.int32), np.array([2, 4, 0], np.int32)  # sums M, and less
LHS, RHS, COLS = integers(0, M, K), integers(1, G, K, N), integers(2, M, N)


def einsum_gmm(lhs, rhs, sizes):
    return jnp.einsum("gm,mk,gkn->mn", membership(sizes, lhs.shape[0], lhs.dtype), lhs, rhs)


def einsum_gmm_transposed(lhs, rhs, sizes):
    return jnp.einsum("gm,mk,gnk->mn", membership(sizes, lhs.shape[0], lhs.dtype), lhs, rhs)


def einsum_tgmm(lhs, rhs, sizes):
    return jnp.einsum("gm,mk,mn->gkn", membership(sizes, lhs.shape[0], lhs.dtype), lhs, rhs)


@functools.partial(jax.jit, static_argnums=0)
def _under_transforms(f, lhs, rhs, sizes, ct):
    def at(lhs, rhs):
        return f(lhs, rhs, sizes)

    def loss(lhs, rhs):
        return jnp.vdot(ct, at(lhs, rhs))

    rows = jnp.stack([lhs, -lhs, jnp.roll(lhs, 1, 0)])
    weights = jnp.stack([-rhs, jnp.roll(rhs, 1, 0), rhs])
    routing = jnp.stack([sizes, sizes[::-1], jnp.roll(sizes, 1)])
    shared = jax.vmap(loss, (0, None))
    gradients = jax.grad(loss, (0, 1))
    out, along = jax.linearize(at, lhs, rhs)
    return {
        "jit": at(lhs, rhs),
        "vmap of lhs": jax.vmap(f, (0, None, None))(rows, rhs, sizes),
        "vmap of rhs and sizes": jax.vmap(f, (None, 0, 0))(lhs, weights, routing),
        "vmap of the last axis": jax.vmap(f, (-1, None, None), -1)(jnp.moveaxis(rows, 0, -1), rhs, sizes),
        "nested vmap": jax.vmap(jax.vmap(f, (0, None, 0)), (None, 0, None))(rows, weights, routing),
        "grad": gradients(lhs, rhs),
        "vmap of grad": jax.vmap(gradients, (0, None))(rows, rhs),
        "grad of vmap": jax.grad(lambda *args: shared(*args).sum(), (0, 1))(rows, rhs),
        "jvp": jax.jvp(at, (lhs, rhs), (rows[2], weights[1])),
        "linearize": (out, along(rows[2], weights[1])),
        "linear_transpose": jax.linear_transpose(lambda rhs: at(lhs, rhs), rhs)(ct),
        "hessian": jax.hessian(loss, (0, 1))(lhs, rhs),
        "checkpoint": jax.grad(jax.checkpoint(loss), (0, 1))(lhs, rhs),
        "scan": jax.lax.scan(lambda _, s: (None, f(lhs, rhs, s)), None, routing)[1],
        "while": jax.lax.fori_loop(0, 2, lambda i, sum: sum + f(lhs, rhs, routing[i]), jnp.zeros_like(out)),
        "cond": jax.lax.cond(sizes[0] > 3, at, lambda lhs, rhs: -at(lhs, rhs), lhs, rhs),
    }


def check(f, want, lhs, rhs, sizes):
    """f(lhs, rhs, sizes), a front end with float32 results that is linear in both matrices, against einsums."""
    ct = integers(3, *jax.eval_shape(want, lhs, rhs, sizes).shape)
    np.testing.assert_array_equal(f(lhs, rhs, sizes), want(lhs, rhs, sizes))
    got, expected = (_under_transforms(g, lhs, rhs, sizes, ct) for g in (f, want))
    for name in expected:
        jax.tree.map(functools.partial(np.testing.assert_array_equal, err_msg=name), got[name], expected[name])
    for x in jax.tree.leaves(got):
        assert x.dtype == np.float32

    rows = np.stack([lhs, lhs])
    batched = jax.vmap(f, (0, None, None))
    assert calls(batched, rows, rhs, sizes).total() == 1
    # The value, and one gradient for what all of the batch share.
    assert calls(jax.grad(lambda rhs: jnp.vdot(batched(rows, rhs, sizes), np.stack([ct, ct]))), rhs).total() == 2


def check_errors(call, error, message):
    """The error comes when tracing, with or without jit."""
    for run in (call, lambda: jax.eval_shape(call)):
        with pytest.raises(error, match=message):
            run()
