"""The expert block compiled for one routing: the bound of whoever can pay a compilation for each."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from raggemm._expert_products import Block
from raggemm._moe_layers import Weights
from raggemm._one_expert import OneExpert, as_words


def unrolled_block(static_sizes: Sequence[int]) -> Block:
    """Each active expert in turn, on exactly its rows. The sizes that it is called with must be the static ones."""
    active = [g for g, size in enumerate(static_sizes) if size]

    def split(array):
        rows = lax.split(array, static_sizes)
        return [rows[g] for g in active]

    def each_expert(function, sizes, operands):
        """function(g, *operands of g) of the active experts: for each of its results a list."""

        def nothing(*operands):
            return jax.tree.map(jnp.zeros_like, jax.eval_shape(function, *operands))

        results = []
        for g, *of_expert in zip(active, *operands, strict=True):
            results.append(lax.cond(sizes[g] > 0, function, nothing, np.int32(g), *of_expert))
        return zip(*results, strict=True)

    def forward(x, weights, sizes):
        return each_expert(OneExpert(weights, jnp.bfloat16).forward, sizes, [split(x)])

    @jax.custom_vjp
    def block(x, weights, sizes):
        y, _, _ = forward(x, weights, sizes)
        return jnp.concatenate(y)

    def keep_gate_and_up(x, weights, sizes):
        y, *gate_up = forward(x, weights, sizes)
        return jnp.concatenate(y), (x, weights, sizes, gate_up)

    def transpose(kept, dy):
        x, weights, sizes, gate_up = kept
        operands = [split(x), list(zip(*gate_up, strict=True)), split(dy)]
        drows, *dmatrices = each_expert(OneExpert(weights, jnp.bfloat16).backward, sizes, operands)

        def stack(primal, matrices):
            words = jnp.zeros(primal.shape, jnp.uint16)
            for g, matrix in zip(active, matrices, strict=True):
                words = words.at[g].set(as_words(matrix))
            return lax.bitcast_convert_type(words, primal.dtype)

        return jnp.concatenate(drows), Weights(*map(stack, weights, dmatrices)), None

    block.defvjp(keep_gate_and_up, transpose)
    return block
