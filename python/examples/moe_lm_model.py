"""The model of moe_lm.py: a decoder-only transformer over bytes whose feed-forward layers are mixtures of experts.

Everything is float32. `experts` is the one thing that differs between implementations: a layer's arrays, tokens
[tokens, width], and the weights and numbers of each token's experts [tokens, top_k] give [tokens, width].
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import raggemm
from jax import lax

Experts = Callable[[dict[str, Any], jax.Array, jax.Array, jax.Array], jax.Array]
VOCABULARY = 256


@dataclasses.dataclass(frozen=True)
class Shape:
    """The sizes of a model."""

    layers: int = 3
    width: int = 128  # of a token
    heads: int = 4
    experts: int = 32
    top_k: int = 2  # experts that see a token
    hidden: int = 256  # of an expert
    context: int = 128  # tokens that a prediction can look back on, itself included


def initial_parameters(shape: Shape, key: jax.Array) -> dict[str, Any]:
    def normal(*dims: int) -> jax.Array:
        nonlocal key
        key, own = jax.random.split(key)
        return jax.random.normal(own, dims) * dims[-2] ** -0.5

    def layer() -> dict[str, jax.Array]:
        return {
            "attention_norm": jnp.ones(shape.width),
            "qkv": normal(shape.width, 3 * shape.width),
            "projection": normal(shape.width, shape.width),
            "moe_norm": jnp.ones(shape.width),
            "router": normal(1, shape.width, shape.experts),
            "gate_and_up": normal(shape.experts, shape.width, 2 * shape.hidden),
            "down": normal(shape.experts, shape.hidden, shape.width),
        }

    return {
        "embedding": 0.02 * jax.random.normal(key, (VOCABULARY, shape.width)),
        "position": 0.02 * jax.random.normal(jax.random.fold_in(key, 1), (shape.context, shape.width)),
        "layers": [layer() for _ in range(shape.layers)],
        "norm": jnp.ones(shape.width),
        "unembedding": normal(shape.width, VOCABULARY),
    }


@jax.custom_vjp
def permuted(x: jax.Array, order: jax.Array, inverse: jax.Array) -> jax.Array:
    """x[order], whose gradient is a gather by the inverse permutation too; JAX', which cannot know, scatters."""
    return x[order]


permuted.defvjp(
    lambda x, order, inverse: (x[order], inverse),
    lambda inverse, ct: (ct[inverse], None, None),
)


def fused(layer: dict[str, Any], x: jax.Array, weights: jax.Array, chosen: jax.Array) -> jax.Array:
    rows = raggemm.sort_by_expert(chosen, len(layer["down"]))
    routed = rows.row_tokens, weights.reshape(-1)[rows.order], rows.group_sizes
    return raggemm.moe_mlp(x, *routed, layer["gate_and_up"], layer["down"], merged="halves")


def by_products(
    layer: dict[str, Any], x: jax.Array, weights: jax.Array, chosen: jax.Array, product: Callable[..., jax.Array]
) -> jax.Array:
    """product: rows [m, k] in the order of their groups, a matrix for each group [g, k, n] and int32 sizes [g] give
    [m, n]."""
    (tokens, top_k), experts = chosen.shape, layer["down"].shape[0]
    order = jnp.argsort(chosen.reshape(-1), stable=True)  # of (token, choice) pairs, by expert
    inverse = jnp.argsort(order)
    sizes = jnp.bincount(chosen.reshape(-1), length=experts).astype(jnp.int32)
    rows = permuted(jnp.repeat(x, top_k, axis=0), order, inverse)
    gate, up = jnp.split(product(rows, layer["gate_and_up"], sizes), 2, axis=1)
    answers = product(jax.nn.silu(gate) * up, layer["down"], sizes)
    answers = permuted(answers, inverse, order).reshape(tokens, top_k, -1)
    return jnp.sum(answers * weights[..., None], axis=1)


EXPERTS: dict[str, Experts] = {
    "raggemm": fused,
    "ragged_dot": functools.partial(by_products, product=lax.ragged_dot),
}


def moe_layer(layer: dict[str, Any], x: jax.Array, top_k: int, experts: Experts) -> tuple[jax.Array, jax.Array]:
    """The experts' answers to x [tokens, width], weighted by the router, and the load-balance loss, which is 1 where
    all experts get equally many tokens."""
    # As a product of one group, which has the same bits for any number of threads.
    scores = raggemm.gmm(x, layer["router"], jnp.array([len(x)], jnp.int32))
    weights, chosen = raggemm.route(scores, top_k)
    return experts(layer, x, weights, chosen), raggemm.load_balance_loss(scores, chosen)


def _normalized(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x * lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + 1e-6) * scale


def _attention(layer: dict[str, jax.Array], x: jax.Array, heads: int) -> jax.Array:
    batch, context, width = x.shape
    qkv = (x @ layer["qkv"]).reshape(batch, context, 3, heads, width // heads)
    mixed = jax.nn.dot_product_attention(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], is_causal=True)
    return mixed.reshape(x.shape) @ layer["projection"]


def logits(parameters: dict[str, Any], text: jax.Array, shape: Shape, experts: Experts) -> tuple[jax.Array, jax.Array]:
    """Of the byte after each of text's [batch, context], and the load-balance loss of a layer."""
    x = parameters["embedding"][text] + parameters["position"][: text.shape[1]]
    balances = []
    for layer in parameters["layers"]:
        x += _attention(layer, _normalized(x, layer["attention_norm"]), shape.heads)
        rows = _normalized(x, layer["moe_norm"]).reshape(-1, shape.width)
        answers, balance = moe_layer(layer, rows, shape.top_k, experts)
        x += answers.reshape(x.shape)
        balances.append(balance)
    return _normalized(x, parameters["norm"]) @ parameters["unembedding"], jnp.mean(jnp.stack(balances))


def losses(parameters: dict[str, Any], text: jax.Array, shape: Shape, experts: Experts) -> tuple[jax.Array, jax.Array]:
    """Cross entropy of each byte of text [batch, context + 1] but the first, in nats [batch, context]; load balance."""
    scores, balance = logits(parameters, text[:, :-1], shape, experts)
    chosen = jnp.take_along_axis(scores, text[:, 1:, None], axis=2)[..., 0]
    return jax.nn.logsumexp(scores, axis=2) - chosen, balance
