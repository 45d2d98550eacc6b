"""The expert block with raggemm and with the alternatives in JAX. Weights are bfloat16 or quantized.

Each alternative has the fastest form that was tried. These forms were no faster, with 250 rows of 128 experts on two
cores with AVX-512:

- ragged_dot of operands that are cast to float32 takes the same time and twice the memory.
- Dots of bfloat16 with bfloat16 results take twice the time, because XLA casts the operands to float32. With float32
  results XLA uses the CPU's bfloat16 unit (256 rows of 2048x768 on Zen 4: 346 GFLOP/s; fma instructions reach 231).

The size of the matrices decides whether the loop over padded groups is faster in bfloat16 or in float32.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from raggemm import QuantizedTensor, dequantize, moe_mlp
from raggemm.ops import gmm

from raggemm_demo.layers import Block, Weights, expert_products, gated_product

RAGGEMM = "raggemm"
FUSED = "raggemm, one call"
RAGGED_DOT = "ragged_dot"
LOOPS = ("padded loop, bfloat16", "padded loop, float32")


def _dequantized(weights: jax.Array | QuantizedTensor) -> jax.Array:
    return dequantize(weights, jnp.bfloat16) if isinstance(weights, QuantizedTensor) else weights


def _expert_matrix(weights: jax.Array | QuantizedTensor, g: jax.Array) -> jax.Array:
    if isinstance(weights, QuantizedTensor):
        weights = QuantizedTensor(weights.data[g], weights.scale[g])
        return _dequantized(weights)
    return weights[g]


def _dot(a: jax.Array, b: jax.Array, dtype: Any) -> jax.Array:
    return jnp.dot(a.astype(dtype), b.astype(dtype), preferred_element_type=jnp.float32)


def fused_block(x: jax.Array, weights: Weights, sizes: jax.Array) -> jax.Array:
    """Computes the block in one call of moe_mlp. Each row is a token."""
    rows, dtype = jnp.arange(x.shape[0], dtype=jnp.int32), jnp.float32
    return moe_mlp(x, rows, None, sizes, weights.up, weights.down, w_gate=weights.gate, preferred_element_type=dtype)


def ragged_dot(lhs: jax.Array, rhs: jax.Array | QuantizedTensor, sizes: jax.Array) -> jax.Array:
    return lax.ragged_dot(lhs, _dequantized(rhs), sizes, preferred_element_type=jnp.float32)


def loop_block(padded_size: int, dtype: Any) -> Block:
    """Returns a block that loops over the experts. The dots of each expert have padded_size rows."""

    def block(x: jax.Array, weights: Weights, sizes: jax.Array) -> jax.Array:
        first, padded = jnp.cumsum(sizes) - sizes, jnp.pad(x, ((0, padded_size), (0, 0)))

        def expert(g: jax.Array, y: jax.Array) -> jax.Array:
            rows = lax.dynamic_slice_in_dim(padded, first[g], padded_size)
            gate, up, down = (_expert_matrix(w, g) for w in weights)
            gated = gated_product(_dot(rows, gate, dtype), _dot(rows, up, dtype))
            # Padding rows overwrite the first rows of later experts, which the loop computes later.
            return lax.dynamic_update_slice_in_dim(y, _dot(gated, down, dtype), first[g], 0)

        def active_expert(g: jax.Array, y: jax.Array) -> jax.Array:
            # Without lax.cond, XLA would convert all experts' weights to float32 before the loop. This takes 5 times
            # the time and 100 times the memory (250 rows of 128 experts, two cores, AVX-512).
            return lax.cond(sizes[g] > 0, expert, lambda _, y: y, g, y)

        return lax.fori_loop(0, sizes.shape[0], active_expert, jnp.zeros(padded.shape, jnp.float32))[: x.shape[0]]

    return block


def blocks(padded_size: int) -> dict[str, Block]:
    """Returns the expert block of each contender, by name. The loops require groups of at most padded_size rows."""
    return {
        RAGGEMM: lambda *operands: expert_products(gmm, *operands).y,
        FUSED: fused_block,
        RAGGED_DOT: lambda *operands: expert_products(ragged_dot, *operands).y,
        LOOPS[0]: loop_block(padded_size, jnp.bfloat16),
        LOOPS[1]: loop_block(padded_size, jnp.float32),
    }
