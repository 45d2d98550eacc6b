"""jit, control flow, rematerialization, several devices, concurrent calls, shard_map, export."""

import concurrent.futures
import functools

import jax
import jax.numpy as jnp
import numpy as np
from arrays import random
from program_text import custom_calls
from raggemm import gmm

SIZES = np.array([3, 0, 2, 4], np.int32)
M, K, N, G = 12, 6, 6, 4
LHS, RHS = random(M, K), random(G, K, N, seed=1)


def layer(x, w, sizes=SIZES):
    return jnp.sin(gmm(x, w, sizes))


def test_jit_is_one_custom_call_with_traced_sizes():
    compiled = jax.jit(lambda *args: gmm(*args))  # of its own, as the cache goes by function
    assert custom_calls(compiled.lower(LHS, RHS, SIZES)) == 1
    np.testing.assert_array_equal(compiled(LHS, RHS, SIZES), gmm(LHS, RHS, SIZES))
    np.testing.assert_array_equal(compiled(LHS, RHS, SIZES[::-1]), gmm(LHS, RHS, SIZES[::-1]))
    assert compiled._cache_size() == 1


def test_attributes_are_readable():
    text = jax.jit(functools.partial(gmm, transpose_rhs=True, existing_out=np.ones((M, N), np.float32))).lower(
        LHS, RHS, SIZES
    )
    for attribute in ("rhs_is_trans = true", 'ragged = "lhs_first,out_first"', 'operands = "c,beta"'):
        assert attribute in text.as_text()


def test_concurrent_calls():
    lhs, rhs = random(400, 64), random(G, 64, 96)
    sizes = [np.random.default_rng(i).multinomial(390, [0.25] * G).astype(np.int32) for i in range(16)]
    want = [np.asarray(gmm(lhs, rhs, s)) for s in sizes]
    compiled = jax.jit(gmm)

    def run(i):
        return np.asarray(compiled(*jax.device_put((lhs, rhs, sizes[i]), jax.devices()[i % 4])))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for got, expected in zip(pool.map(run, list(range(16)) * 4), want * 4, strict=True):
            np.testing.assert_array_equal(got, expected)
