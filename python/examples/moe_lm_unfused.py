"""What raggemm.moe_mlp and its gradient compute, of raggemm's other public functions: with the same bits, at the price
of a round trip through memory for each intermediate result."""

from typing import Any

import jax
import jax.numpy as jnp
import raggemm

BLOCK = 16  # divides the hidden width


def silu(x: jax.Array) -> jax.Array:
    """moe_mlp's, whose exp is not XLA's: one in five differs from jax.nn.silu, by 4 ulp at most. Of BLOCK values as a
    token, whose one expert multiplies them by the identity before and after."""
    tokens = x.reshape(-1, BLOCK)
    count, identity = len(tokens), jnp.eye(BLOCK)[None]
    out = raggemm.moe_mlp(tokens, jnp.arange(count), None, jnp.array([count]), identity, identity, activation="silu")
    return out.reshape(x.shape)


def experts(layer: dict[str, Any], x: jax.Array, weights: jax.Array, chosen: jax.Array) -> jax.Array:
    """As moe_lm_model has them."""
    rows = raggemm.sort_by_expert(chosen, len(layer["down"]))
    matrices = layer["gate_and_up"], layer["down"]
    return _sequence(x, weights.reshape(-1)[rows.order], *matrices, rows.row_tokens, rows.group_sizes)


@jax.custom_vjp
def _sequence(
    x: jax.Array, weights: jax.Array, gate_and_up: jax.Array, down: jax.Array, tokens: jax.Array, sizes: jax.Array
) -> jax.Array:
    gate, up = jnp.split(raggemm.gmm(x[tokens], gate_and_up, sizes), 2, axis=1)
    answers = raggemm.gmm(silu(gate) * up, down, sizes)
    return raggemm.combine(answers, tokens, len(x), weights)


def _gradients(kept: tuple[jax.Array, ...], ct: jax.Array) -> tuple[Any, ...]:
    """Rows and products are computed again, and the weight of a row multiplies after the product with down, in which
    it is not, as moe_mlp has it; its activation is XLA's here."""
    x, weights, gate_and_up, down, tokens, sizes = kept
    rows, ct_rows = x[tokens], ct[tokens]
    gate, up = jnp.split(raggemm.gmm(rows, gate_and_up, sizes), 2, axis=1)
    hidden, pull = jax.vjp(lambda gate, up: jax.nn.silu(gate) * up, gate, up)
    ct_hidden = raggemm.gmm(ct_rows, down, sizes, transpose_rhs=True)
    ct_both = jnp.concatenate(pull(weights[:, None] * ct_hidden), axis=1)
    of_rows = raggemm.gmm(ct_both, gate_and_up, sizes, transpose_rhs=True)
    return (
        raggemm.combine(of_rows, tokens, len(x)),
        (hidden * ct_hidden).sum(1),
        raggemm.tgmm(rows.T, ct_both, sizes),
        raggemm.tgmm(hidden.T, weights[:, None] * ct_rows, sizes),
        None,
        None,
    )


_sequence.defvjp(lambda *args: (_sequence(*args), args), _gradients)
