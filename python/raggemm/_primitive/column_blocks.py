"""Weights in column blocks: [..., K, N] as [..., T, K, B], T blocks of B columns, with zeros behind column N.

So every strip of columns that a kernel reads is one run of memory (include/raggemm/problem.h draws it).
"""

import jax
import jax.numpy as jnp


def to_blocks(x: jax.Array, width: int) -> jax.Array:
    *outer, k, n = x.shape
    count = -(-n // width)
    padded = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, count * width - n)])
    return jnp.moveaxis(padded.reshape(*outer, k, count, width), -2, -3)


def from_blocks(x: jax.Array, columns: int) -> jax.Array:
    *outer, count, k, width = x.shape
    return jnp.moveaxis(x, -3, -2).reshape(*outer, k, count * width)[..., :columns]
