"""The contenders as whole MLPs of tokens: which expert gets which row, the expert block, and the weighted sum of each
token's rows.

    out[t] = sum over j of shares[t,j] * block(x[t], the weights of expert chosen[t,j])

An Mlp takes (x, weights, shares, chosen): bfloat16 [T,hidden], weights as a block has them, float32 [T,k] and int32
[T,k]. It returns float32 [T,hidden].

What XLA's contenders do around the block is sort_by_expert, which is plain JAX, a gather, and for the sums another
gather, which is faster than adding rows where they belong. MaxText's dense path has all experts compute all tokens, and
zeros as shares of those that were not chosen. Here it is a product for each expert. As MaxText has it, in one of all,
tokens times [hidden, experts * intermediate], XLA casts all weights to float32: with 8 tokens and 128 experts on Zen 4
that takes 6 times the time, and 2.3 GiB of temporaries instead of 16 MiB.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from raggemm._functions.moe_mlp import moe_mlp
from raggemm._functions.routing import combine, sort_by_expert
from raggemm.ops import gmm

from raggemm_demo import contenders
from raggemm_demo.layers import Block, Layer, Weights, expert_products, gated_product

FUSED = "fused"
SAVED = "fused, save=activations"  # of gradients; forward it is the same
UNFUSED = "unfused"
DENSE = "dense einsum"
OURS = (FUSED, SAVED, UNFUSED)
OTHERS = (contenders.RAGGED_DOT, contenders.LOOPS[0], DENSE)

Mlp = Callable[[jax.Array, Weights, jax.Array, jax.Array], jax.Array]


def recorded_routing(layer: Layer, tokens: int) -> np.ndarray:
    """int32 [tokens,k]: the experts of some of the recorded tokens, drawn from all. The recorded rows are dealt out, in
    the order of the experts: no expert has a token twice, and all tokens have the recorded sizes together."""
    experts = np.repeat(np.arange(layer.experts, dtype=np.int32), layer.sizes)
    dealt = experts.reshape(layer.top_k, -1).T
    if tokens > len(dealt):
        raise ValueError(f"tokens is {tokens}, but {len(dealt)} were recorded for {layer.model} {layer.phase}")
    return np.random.default_rng(5).permutation(dealt)[:tokens]


def _fused(save: str) -> Mlp:
    def mlp(x, weights, shares, chosen):
        rows = sort_by_expert(chosen, weights.up.shape[0])
        routed = (rows.row_tokens, shares.reshape(-1)[rows.order], rows.group_sizes)
        matrices = {"w_up": weights.up, "w_down": weights.down, "w_gate": weights.gate}
        return moe_mlp(x, *routed, **matrices, preferred_element_type=jnp.float32, save=save)

    return mlp


def _unfused(x: jax.Array, weights: Weights, shares: jax.Array, chosen: jax.Array) -> jax.Array:
    rows = sort_by_expert(chosen, weights.up.shape[0])
    y = expert_products(gmm, x[rows.row_tokens], weights, rows.group_sizes).y
    return combine(y, rows.row_tokens, len(x), shares.reshape(-1)[rows.order])


def _around(block: Block) -> Mlp:
    def mlp(x, weights, shares, chosen):
        rows = sort_by_expert(chosen, weights.up.shape[0])
        y = block(x[rows.row_tokens], weights, rows.group_sizes)
        return jnp.einsum("tkh,tk->th", y[jnp.argsort(rows.order)].reshape(*shares.shape, -1), shares)

    return mlp


def _dense(x: jax.Array, weights: Weights, shares: jax.Array, chosen: jax.Array) -> jax.Array:
    def dot(a, b):
        return jnp.einsum("etk,ekn->etn", a, b, preferred_element_type=jnp.float32)

    experts = weights.up.shape[0]
    of_all = jnp.zeros((len(x), experts), jnp.float32).at[jnp.arange(len(x))[:, None], chosen].add(shares)
    # Never one row, for which XLA casts all weights too.
    padded = jnp.pad(x, ((0, max(0, 8 - len(x))), (0, 0)))
    copies = jnp.broadcast_to(padded, (experts, *padded.shape))
    y = dot(gated_product(dot(copies, weights.gate), dot(copies, weights.up)), weights.down)
    return jnp.einsum("eth,te->th", y[:, : len(x)], of_all)


def mlps(padded_size: int) -> dict[str, Mlp]:
    """All of them; the padded one is right where no expert has more than padded_size rows."""
    block = contenders.blocks(padded_size)
    return {
        FUSED: _fused("inputs"),
        SAVED: _fused("activations"),
        UNFUSED: _unfused,
        contenders.RAGGED_DOT: _around(block[contenders.RAGGED_DOT]),
        contenders.LOOPS[0]: _around(block[contenders.LOOPS[0]]),
        DENSE: _dense,
    }
