"""The expert block by hand, with every group padded to one static size: as a loop over experts, and as an einsum.

Right for groups of at most padded_size rows.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from raggemm._expert_products import Block, gated_product
from raggemm._moe_layers import Weights
from raggemm._one_expert import OneExpert, as_words


def _first_rows(sizes: jax.Array) -> jax.Array:
    return jnp.cumsum(sizes) - sizes


def loop_block(padded_size: int, dtype: Any) -> Block:
    """Expert by expert, on padded_size rows from its first; its dots on operands of `dtype`.

    Its derivative is written by hand. Reverse mode through the loop would add a gradient of all experts' weights for
    each expert.
    """
    padding = ((0, padded_size), (0, 0))

    def rows_of(array, first):
        return lax.dynamic_slice_in_dim(array, first, padded_size)

    def write(array, rows, first):
        # Also writes on rows of later experts, which come later.
        return lax.dynamic_update_slice_in_dim(array, rows, first, 0)

    def forward(x, weights, sizes, widths):
        """The first len(widths) of y, gate and up, whose rows have these widths, with padding."""
        one, first, padded = OneExpert(weights, dtype), _first_rows(sizes), jnp.pad(x, padding)

        def expert(g, outputs):
            new = one.forward(g, rows_of(padded, first[g]))
            return tuple(write(*args, first[g]) for args in zip(outputs, new, strict=False))

        def active_expert(g, outputs):
            return lax.cond(sizes[g] > 0, expert, lambda _, outputs: outputs, g, outputs)

        outputs = tuple(jnp.zeros((len(padded), width), jnp.float32) for width in widths)
        return lax.fori_loop(0, sizes.shape[0], active_expert, outputs)

    @jax.custom_vjp
    def block(x, weights, sizes):
        (y,) = forward(x, weights, sizes, x.shape[1:])
        return y[: x.shape[0]]

    def keep_gate_and_up(x, weights, sizes):
        hidden, intermediate = weights.gate.shape[1:]
        y, gate, up = forward(x, weights, sizes, (hidden, intermediate, intermediate))
        return y[: x.shape[0]], (x, weights, sizes, gate, up)

    def transpose(kept, dy):
        x, weights, sizes, gate, up = kept
        one, first = OneExpert(weights, dtype), _first_rows(sizes)
        padded, dy = jnp.pad(x, padding), jnp.pad(dy, padding)
        active = jnp.argsort(sizes == 0, stable=True)

        def of_expert(g):
            own_dy = jnp.where(jnp.arange(padded_size)[:, None] < sizes[g], rows_of(dy, first[g]), 0)
            kept = rows_of(gate, first[g]), rows_of(up, first[g])
            drows, *dweights = one.backward(g, rows_of(padded, first[g]), kept, own_dy)
            return as_words(drows), *(as_words(d[None]) for d in dweights)

        def nothing(g):
            return jax.tree.map(jnp.zeros_like, jax.eval_shape(of_expert, g))

        def expert(i, gradients):
            g = active[i]
            new = lax.cond(sizes[g] > 0, of_expert, nothing, g)
            return tuple(write(*args) for args in zip(gradients, new, (first[g], g, g, g), strict=True))

        zeros = tuple(jnp.zeros(primal.shape, jnp.uint16) for primal in (padded, *weights))
        gradients = lax.fori_loop(0, jnp.count_nonzero(sizes), expert, zeros)
        dx, *dweights = (lax.bitcast_convert_type(d, x.dtype) for d in gradients)
        return dx[: x.shape[0]], Weights(*dweights), None

    block.defvjp(keep_gate_and_up, transpose)
    return block


def einsum_block(padded_size: int) -> Block:
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
