"""The expert block over any grouped product, and a loss of it: bfloat16 operands and sums in float32.

    y = (silu(x W_gate) * (x W_up)) W_down        for each row, with the weights of its expert

A block takes (x, weights, sizes): bfloat16 rows in the order of their experts [rows, hidden], bfloat16 weights, and
int32 rows of each expert [experts]. It returns y, float32 [rows, hidden].
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from raggemm._moe_layers import Weights

Block = Callable[[jax.Array, Weights, jax.Array], jax.Array]


class Products(NamedTuple):
    """Everything that a block computes. The gated product is bfloat16 [rows, intermediate], the others are float32."""

    gate: jax.Array
    up: jax.Array
    gated: jax.Array
    y: jax.Array


def gated_product(gate: jax.Array, up: jax.Array) -> jax.Array:
    return (jax.nn.silu(gate) * up).astype(jnp.bfloat16)


def expert_products(product: Callable, x: jax.Array, weights: Weights, sizes: jax.Array) -> Products:
    """The block over a product of (rows, matrices, sizes)."""
    gate, up = product(x, weights.gate, sizes), product(x, weights.up, sizes)
    gated = gated_product(gate, up)
    return Products(gate, up, gated, product(gated, weights.down, sizes))


def distance(y: jax.Array, target: jax.Array) -> jax.Array:
    return 0.5 * jnp.sum(jnp.square(y - target)) / len(y)


def loss_of(block: Block) -> Callable[[jax.Array, Weights, jax.Array, jax.Array], jax.Array]:
    """The loss as a function of (x, weights, sizes, target), where target is like y."""
    return lambda x, weights, sizes, target: distance(block(x, weights, sizes), target)
