"""The expert block, on raggemm and on what JAX has: all with bfloat16 operands and sums in float32.

    y = (silu(x W_gate) * (x W_up)) W_down        for each row, with the weights of its expert

A block takes (x, weights, sizes): bfloat16 rows in the order of their experts [rows, hidden], bfloat16 weights, and
int32 rows of each expert [experts]. It returns y, float32 [rows, hidden].

Each competitor stands in the fastest of the forms that were tried. What lost, at 250 rows of 128 experts on two cores
with AVX-512: ragged_dot on operands cast to float32, as fast and twice the memory; einsum on such operands, 1.7 times
the time and 60 times the memory; the loop without its branch, 5 times the time and 100 times the memory, as XLA then
moves the conversion of all the weights in front of it. Which of the loops is faster depends on the size of a matrix.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from raggemm._demo_layers import Weights
from raggemm.ops import gmm

Block = Callable[[jax.Array, Weights, jax.Array], jax.Array]

RAGGEMM = "raggemm"
RAGGED_DOT = "lax.ragged_dot"
LOOPS = ("padded loop, bfloat16", "padded loop, float32")
EINSUM = "padded einsum"


class Products(NamedTuple):
    """Everything that a block computes. The gated product is bfloat16 [rows, intermediate], the others are float32."""

    gate: jax.Array
    up: jax.Array
    gated: jax.Array
    y: jax.Array


def gated_product(gate: jax.Array, up: jax.Array) -> jax.Array:
    return (jax.nn.silu(gate) * up).astype(jnp.bfloat16)


def ragged_dot(lhs: jax.Array, rhs: jax.Array, sizes: jax.Array) -> jax.Array:
    return lax.ragged_dot(lhs, rhs, sizes, preferred_element_type=jnp.float32)


def expert_products(product: Callable, x: jax.Array, weights: Weights, sizes: jax.Array) -> Products:
    """The block over a product of (rows, matrices, sizes)."""
    gate, up = product(x, weights.gate, sizes), product(x, weights.up, sizes)
    gated = gated_product(gate, up)
    return Products(gate, up, gated, product(gated, weights.down, sizes))


class Backward(NamedTuple):
    """What the derivative of the loss computes: cotangents, bfloat16 like their primal or float32, and gradients."""

    dy: jax.Array
    dgated: jax.Array
    dgate: jax.Array
    dup: jax.Array
    dx_gate: jax.Array  # x's gradient is the sum of these two
    dx_up: jax.Array
    dweights: Weights


def loss(x: jax.Array, weights: Weights, sizes: jax.Array, target: jax.Array) -> jax.Array:
    return _distance(expert_products(gmm, x, weights, sizes).y, target)


def _distance(y: jax.Array, target: jax.Array) -> jax.Array:
    return 0.5 * jnp.sum(jnp.square(y - target)) / len(y)


def backward_products(x: jax.Array, weights: Weights, sizes: jax.Array, target: jax.Array) -> tuple[Products, Backward]:
    """The derivative of `loss`, one product after the other, with what goes between them."""

    def product(rows, matrices):
        return jax.vjp(lambda a, b: gmm(a, b, sizes), rows, matrices)

    gate, gate_transpose = product(x, weights.gate)
    up, up_transpose = product(x, weights.up)
    gated, gated_transpose = jax.vjp(gated_product, gate, up)
    y, y_transpose = product(gated, weights.down)
    dy = jax.grad(_distance)(y, target)
    dgated, ddown_weights = y_transpose(dy)
    dgate, dup = gated_transpose(dgated)
    dx_gate, dgate_weights = gate_transpose(dgate)
    dx_up, dup_weights = up_transpose(dup)
    dweights = Weights(dgate_weights, dup_weights, ddown_weights)
    return Products(gate, up, gated, y), Backward(dy, dgated, dgate, dup, dx_gate, dx_up, dweights)


def _first_rows(sizes: jax.Array) -> jax.Array:
    return jnp.cumsum(sizes) - sizes


def _loop_block(padded_size: int, dtype: Any) -> Block:
    """Expert by expert, on padded_size rows from its first; its dots on operands of `dtype`."""

    def dot(a, b):
        return jnp.dot(a.astype(dtype), b.astype(dtype), preferred_element_type=jnp.float32)

    def block(x, weights, sizes):
        padding = ((0, padded_size), (0, 0))
        first, padded = _first_rows(sizes), jnp.pad(x, padding)

        def expert(g, y):
            rows = lax.dynamic_slice_in_dim(padded, first[g], padded_size)
            gated = gated_product(dot(rows, weights.gate[g]), dot(rows, weights.up[g]))
            # Also writes on rows of later experts, which come later.
            return lax.dynamic_update_slice_in_dim(y, dot(gated, weights.down[g]), first[g], 0)

        def active_expert(g, y):
            return lax.cond(sizes[g] > 0, expert, lambda _, y: y, g, y)

        y = lax.fori_loop(0, sizes.shape[0], active_expert, jnp.pad(jnp.zeros(x.shape, jnp.float32), padding))
        return y[: x.shape[0]]

    return block


def _einsum_block(padded_size: int) -> Block:
    """All experts at once, each on padded_size rows from its first."""

    def dot(a, b):
        return jnp.einsum("gmk,gkn->gmn", a, b, preferred_element_type=jnp.float32)

    def block(x, weights, sizes):
        rows, first = jnp.arange(x.shape[0]), _first_rows(sizes)
        padded = jnp.pad(x, ((0, padded_size), (0, 0)))[first[:, None] + jnp.arange(padded_size)]
        y = dot(gated_product(dot(padded, weights.gate), dot(padded, weights.up)), weights.down)
        expert = jnp.repeat(jnp.arange(sizes.shape[0]), sizes, total_repeat_length=x.shape[0])
        return y[expert, rows - first[expert]]

    return block


def blocks(padded_size: int) -> dict[str, Block]:
    """Every contender; the padded ones are right for groups of at most padded_size rows."""
    return {
        RAGGEMM: lambda *operands: expert_products(gmm, *operands).y,
        RAGGED_DOT: lambda *operands: expert_products(ragged_dot, *operands).y,
        LOOPS[0]: _loop_block(padded_size, jnp.bfloat16),
        LOOPS[1]: _loop_block(padded_size, jnp.float32),
        EINSUM: _einsum_block(padded_size),
    }
