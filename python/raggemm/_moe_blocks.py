"""The contenders: the expert block (_expert_products.py) on raggemm and on what JAX has.

Each competitor stands in the fastest of the forms that were tried. What lost, at 250 rows of 128 experts on two cores
with AVX-512: ragged_dot on operands cast to float32, as fast and twice the memory; einsum on such operands, 1.7 times
the time and 60 times the memory. Which of the loops is faster depends on the size of a matrix.
"""

import jax
import jax.numpy as jnp
from jax import lax

from raggemm._expert_products import Block, expert_products
from raggemm._padded_blocks import einsum_block, loop_block
from raggemm.ops import gmm

RAGGEMM = "raggemm"
RAGGED_DOT = "lax.ragged_dot"
LOOPS = ("padded loop, bfloat16", "padded loop, float32")
EINSUM = "padded einsum"
CONTENDERS = (RAGGEMM, RAGGED_DOT, *LOOPS, EINSUM)


def ragged_dot(lhs: jax.Array, rhs: jax.Array, sizes: jax.Array) -> jax.Array:
    return lax.ragged_dot(lhs, rhs, sizes, preferred_element_type=jnp.float32)


def blocks(padded_size: int) -> dict[str, Block]:
    """Every contender; the padded ones are right for groups of at most padded_size rows."""
    return {
        RAGGEMM: lambda *operands: expert_products(gmm, *operands).y,
        RAGGED_DOT: lambda *operands: expert_products(ragged_dot, *operands).y,
        LOOPS[0]: loop_block(padded_size, jnp.bfloat16),
        LOOPS[1]: loop_block(padded_size, jnp.float32),
        EINSUM: einsum_block(padded_size),
    }
