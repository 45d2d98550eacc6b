"""One expert of the block on a slice of the rows, forward and backward, with jnp's dots; for loops over experts.

Called in a branch (lax.cond) that XLA can't decide: without one it converts the weights of all experts to float32
in front of everything else. That takes 5 times the time and 100 times the memory in a loop, 3 times the time and 45
times the memory in an unrolled one (250 rows of 128 experts, two cores, AVX-512).
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from raggemm._expert_products import gated_product
from raggemm._moe_layers import Weights


def _dot(subscripts: str, a: jax.Array, b: jax.Array, dtype: Any = jnp.float32) -> jax.Array:
    return jnp.einsum(subscripts, a.astype(dtype), b.astype(dtype), preferred_element_type=jnp.float32)


class OneExpert:
    """Forward its dots are on operands of `dtype`, backward of float32, which cotangents are; sums are float32."""

    def __init__(self, weights: Weights, dtype: Any):
        self._weights, self._dtype = weights, dtype

    def forward(self, g: int | jax.Array, rows: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """float32 (y, gate, up) of expert g."""
        gate, up = (_dot("mk,kn->mn", rows, w[g], self._dtype) for w in (self._weights.gate, self._weights.up))
        return _dot("mk,kn->mn", gated_product(gate, up), self._weights.down[g], self._dtype), gate, up

    def backward(self, g: int | jax.Array, rows: jax.Array, gate_up: tuple, dy: jax.Array) -> tuple[jax.Array, ...]:
        """bfloat16 gradients for the rows and for the three matrices of expert g; of float32 gate, up and dy."""
        gated, gated_transpose = jax.vjp(gated_product, *gate_up)
        dgated = _dot("mn,kn->mk", dy, self._weights.down[g])
        dgate, dup = gated_transpose(dgated.astype(gated.dtype))
        drows = _dot("mn,kn->mk", dgate, self._weights.gate[g]) + _dot("mn,kn->mk", dup, self._weights.up[g])
        dweights = (_dot("mk,mn->kn", *operands) for operands in ((rows, dgate), (rows, dup), (gated, dy)))
        return tuple(d.astype(rows.dtype) for d in (drows, *dweights))


def as_words(array: jax.Array) -> jax.Array:
    # XLA on CPU updates part of an array of bfloat16 by rewriting all of it, hundreds of megabytes for each expert.
    return lax.bitcast_convert_type(array, jnp.uint16)
