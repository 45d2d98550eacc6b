"""What raggemm.moe_mlp and its gradient compute, of raggemm's other public functions: with the same bits, at the price
of a round trip through memory for each intermediate result."""

from typing import Any

import jax
import jax.numpy as jnp
import raggemm

LANES = 16  # divides the hidden width


def activated(gate: jax.Array, up: jax.Array) -> jax.Array:
    """silu(gate) * up as moe_mlp has it, whose exp is not XLA's, and so its derivative: of LANES values of each as a
    token, whose one expert multiplies them by the identity before and after."""
    tokens = jnp.concatenate([x.reshape(-1, LANES) for x in (gate, up)], axis=1)
    count, identity = len(tokens), jnp.eye(2 * LANES)[None]
    rows = jnp.arange(count), None, jnp.array([count])
    return raggemm.moe_mlp(tokens, *rows, identity, identity[:, :LANES], merged="halves")[:, :LANES].reshape(gate.shape)


def dots(a: jax.Array, b: jax.Array) -> jax.Array:
    """Of rows, of LANES interleaved sums each, which are then added by halves. The sums are the diagonals of a product
    for each row."""
    a, b = (x.reshape(len(x), -1, LANES) for x in (a, b))
    sums = jnp.diagonal(raggemm.grouped_gemm(a, b, contracting_dims=((1,), (1,))), axis1=1, axis2=2)
    while sums.shape[1] > 1:
        sums = sums[:, : sums.shape[1] // 2] + sums[:, sums.shape[1] // 2 :]
    return sums[:, 0]


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
    answers = raggemm.gmm(activated(gate, up), down, sizes)
    return raggemm.combine(answers, tokens, len(x), weights)


def _gradients(kept: tuple[jax.Array, ...], ct: jax.Array) -> tuple[Any, ...]:
    """Rows and products are computed again, and the weight of a row multiplies after the product with down, in which
    it is not, as moe_mlp has it."""
    x, weights, gate_and_up, down, tokens, sizes = kept
    rows, ct_rows = x[tokens], ct[tokens]
    gate, up = jnp.split(raggemm.gmm(rows, gate_and_up, sizes), 2, axis=1)
    hidden, pull = jax.vjp(activated, gate, up)
    ct_hidden = raggemm.gmm(ct_rows, down, sizes, transpose_rhs=True)
    ct_both = jnp.concatenate(pull(weights[:, None] * ct_hidden), axis=1)
    of_rows = raggemm.gmm(ct_both, gate_and_up, sizes, transpose_rhs=True)
    return (
        raggemm.combine(of_rows, tokens, len(x)),
        dots(hidden, ct_hidden),
        raggemm.tgmm(rows.T, ct_both, sizes),
        raggemm.tgmm(hidden.T, weights[:, None] * ct_rows, sizes),
        None,
        None,
    )


_sequence.defvjp(lambda *args: (_sequence(*args), args), _gradients)
