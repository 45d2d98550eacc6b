"""Tests that raggemm and XLA's dots do not change each other's CPU state, such as AMX tile shapes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import raggemm
from arrays import random

pytestmark = pytest.mark.slow

same = np.testing.assert_array_equal
SIZES = np.array([200, 0, 55, 1], np.int32)


def bf16(*shape, seed=0):
    return random(*shape, seed=seed).astype(jnp.bfloat16)


def test_alternating_bf16_products():
    x, w, dense = bf16(256, 320), bf16(4, 320, 320, seed=1), bf16(320, 320, seed=2)

    def raggemm_product(x):
        return raggemm.gmm(x, w, SIZES, preferred_element_type=jnp.float32)

    def xla_product(x):
        return jnp.dot(x, dense, preferred_element_type=jnp.float32)

    def alternating(x):
        results = []
        for _ in range(10):
            results += [raggemm_product(x), xla_product(x)]
        return results

    want = [jax.jit(raggemm_product)(x), jax.jit(xla_product)(x)]
    for rule in ("tiles", "pairs"):
        with raggemm.options(bf16_sums=rule):
            want[0] = jax.jit(raggemm_product)(x)
            results = jax.jit(alternating)(x)
        for i, result in enumerate(results):
            same(result, want[i % 2])
