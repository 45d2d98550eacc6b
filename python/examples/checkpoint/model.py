"""The decoder of one sequence, with raggemm.gmm and raggemm.moe_mlp. Results of all matrix products are float32."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import raggemm
from checkpoint.config import Config
from checkpoint.weights import Mlp

Tree = Any
LATENT_EPSILON = 1e-6  # epsilon of the norms in latent attention, which do not use rms_norm_eps


def norm(x: jax.Array, weight: jax.Array, epsilon: float) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + epsilon) * weight


def linear(x: jax.Array, layer: dict[str, Tree], dtype: Any) -> jax.Array:
    """Rounds x [T,K] to dtype, and applies a linear layer: float32 [T,N]."""
    x = x[:, layer["order"]] if "order" in layer else x
    out = raggemm.gmm(x.astype(dtype), layer["w"], jnp.full(1, x.shape[0], jnp.int32))
    return out + layer["b"] if "b" in layer else out


def rotate(config: Config, x: jax.Array, positions: jax.Array) -> jax.Array:
    """Rotates pairs of elements of x [T,heads,dim]: (i, i + dim / 2), or (2i, 2i + 1) with latent attention."""
    angles = positions[:, None, None] * jnp.asarray(config.frequencies, jnp.float32)
    sin, cos = jnp.sin(angles) * config.magnitude, jnp.cos(angles) * config.magnitude
    if config.latent:
        a, b = x[..., ::2], x[..., 1::2]
        return jnp.stack((a * cos - b * sin, b * cos + a * sin), -1).reshape(x.shape)
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate((a * cos - b * sin, b * cos + a * sin), -1)


def _softmax(scores: jax.Array, positions: jax.Array, window: int | None, sinks: jax.Array | None) -> jax.Array:
    """Computes the softmax of scores [heads,T,S] over visible keys. Adds exp(sink) of a head to its denominators."""
    distance = positions[:, None] - jnp.arange(scores.shape[-1])
    is_visible = distance >= 0 if window is None else (distance >= 0) & (distance < window)
    scores = jnp.where(is_visible, scores, -jnp.inf)
    largest = scores.max(-1, keepdims=True)
    largest = largest if sinks is None else jnp.maximum(largest, sinks[:, None, None])
    exponentials = jnp.exp(scores - largest)
    total = exponentials.sum(-1, keepdims=True)
    return exponentials / (total if sinks is None else total + jnp.exp(sinks[:, None, None] - largest))


def _update_cache(cache: jax.Array, x: jax.Array, positions: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_slice_in_dim(cache, x.astype(cache.dtype), positions[0], 0)


def grouped_attention(
    config: Config, window: int | None, layer: Tree, x: jax.Array, cache: Tree, positions: jax.Array
) -> tuple[jax.Array, Tree]:
    dtype = cache[0].dtype

    def heads(name: str) -> jax.Array:
        y = linear(x, layer[name], dtype)
        if (weight := layer.get(f"{name}_norm")) is None:
            return y.reshape(len(x), -1, config.head_dim)
        if weight.shape[0] == config.head_dim:
            return norm(y.reshape(len(x), -1, config.head_dim), weight, config.epsilon)
        return norm(y, weight, config.epsilon).reshape(len(x), -1, config.head_dim)

    q, k, v = heads("q"), heads("k"), heads("v")
    keys = _update_cache(cache[0], rotate(config, k, positions), positions)
    values = _update_cache(cache[1], v, positions)
    q = rotate(config, q, positions).reshape(len(x), config.kv_heads, -1, config.head_dim)
    scores = jnp.einsum("tgrd,sgd->grts", q, keys.astype(jnp.float32), precision="highest") * config.score_scale
    probabilities = _softmax(scores.reshape(config.heads, len(x), -1), positions, window, layer.get("sinks"))
    probabilities = probabilities.reshape(scores.shape)
    out = jnp.einsum("grts,sgd->tgrd", probabilities, values.astype(jnp.float32), precision="highest")
    return linear(out.reshape(len(x), -1), layer["o"], dtype), (keys, values)


def latent_attention(
    config: Config, window: int | None, layer: Tree, x: jax.Array, cache: Tree, positions: jax.Array
) -> tuple[jax.Array, Tree]:
    """Caches a latent vector and a rotated key for each token.

    Multiplies the unrotated part of each query by k_b, then by latent vectors. So no unrotated keys are computed.
    """
    del window
    latent, dtype = config.latent, cache[0].dtype
    if "q_a" in layer:
        q = linear(norm(linear(x, layer["q_a"], dtype), layer["q_norm"], LATENT_EPSILON), layer["q"], dtype)
    else:
        q = linear(x, layer["q"], dtype)
    q = q.reshape(len(x), config.heads, latent.plain_dim + latent.rotary_dim)
    plain, rotated = q[..., : latent.plain_dim], rotate(config, q[..., latent.plain_dim :], positions)
    kv = linear(x, layer["kv_a"], dtype)
    vectors = _update_cache(cache[0], norm(kv[:, : latent.rank], layer["kv_norm"], LATENT_EPSILON), positions)
    rotated_key = rotate(config, kv[:, None, latent.rank :], positions)[:, 0]
    keys = _update_cache(cache[1], rotated_key, positions)

    def product(formula: str, a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.einsum(formula, a.astype(jnp.float32), b.astype(jnp.float32), precision="highest")

    scores = product("thr,sr->hts", product("thd,hdr->thr", plain, layer["k_b"]), vectors)
    scores = (scores + product("thd,sd->hts", rotated, keys)) * config.score_scale
    mean = product("hts,sr->thr", _softmax(scores, positions, None, None), vectors)
    out = product("thr,hdr->thd", mean, layer["v_b"])
    return linear(out.reshape(len(x), -1), layer["o"], dtype), (vectors, keys)


def dense_mlp(x: jax.Array, weights: Mlp) -> jax.Array:
    row_tokens, sizes = jnp.arange(len(x), dtype=jnp.int32), jnp.full(1, len(x), jnp.int32)
    x = x if weights.order is None else x[:, weights.order[0]]
    return raggemm.moe_mlp(x, row_tokens, None, sizes, weights.up, weights.down, **weights.options())


# A function (x [T,width], weights of the experts, routing weights [T,k], experts [T,k]) -> [T,width]. Sums the weighted
# results of each token's experts.
Experts = Callable[[jax.Array, Mlp, jax.Array, jax.Array], jax.Array]


def local_experts(config: Config) -> Experts:
    def run(x: jax.Array, weights: Mlp, token_weights: jax.Array, chosen: jax.Array) -> jax.Array:
        rows = raggemm.sort_by_expert(chosen, config.experts)
        row_weights = token_weights.reshape(-1)[rows.order]
        if weights.order is not None:  # Each expert multiplies the elements of its rows in an order of its own.
            count, (experts_count, _) = len(row_weights), weights.order.shape
            row_experts = jnp.repeat(jnp.arange(experts_count), rows.group_sizes, total_repeat_length=count)
            permuted = x[rows.row_tokens[:, None], weights.order[row_experts]]
            each = jnp.arange(count, dtype=jnp.int32)
            out = raggemm.moe_mlp(
                permuted, each, row_weights, rows.group_sizes, weights.up, weights.down, **weights.options()
            )
            return raggemm.combine(out, rows.row_tokens, len(x))
        return raggemm.moe_mlp(
            x, rows.row_tokens, row_weights, rows.group_sizes, weights.up, weights.down, **weights.options()
        )

    return run


def feed_forward(config: Config, experts: Experts, layer: Tree, x: jax.Array, dtype: Any) -> jax.Array:
    if "dense" in layer:
        return dense_mlp(x.astype(dtype), layer["dense"])
    routing = dict(config.routing) | {"expert_bias": layer.get("expert_bias")}
    token_weights, chosen = raggemm.route(linear(x, layer["router"], jnp.float32), config.top_k, **routing)
    out = experts(x.astype(dtype), layer["experts"], token_weights, chosen)
    return out + dense_mlp(x.astype(dtype), layer["shared"]) if "shared" in layer else out


def empty_cache(config: Config, length: int, dtype: Any) -> list[Tree]:
    if config.latent:
        shapes: tuple[tuple[int, ...], ...] = ((length, config.latent.rank), (length, config.latent.rotary_dim))
    else:
        shapes = ((length, config.kv_heads, config.head_dim),) * 2
    return [tuple(jnp.zeros(shape, dtype) for shape in shapes) for _ in config.windows]


def states(
    config: Config, experts: Experts, weights: Tree, cache: list[Tree], tokens: jax.Array, start: jax.Array
) -> tuple[jax.Array, list[Tree]]:
    positions = start + jnp.arange(len(tokens))
    attention = latent_attention if config.latent else grouped_attention
    x, updated, dtype = weights["embedding"][tokens].astype(jnp.float32), [], weights["embedding"].dtype
    for window, layer, layer_cache in zip(config.windows, weights["layers"], cache, strict=True):
        normed = norm(x, layer["input_norm"], config.epsilon)
        out, layer_cache = attention(config, window, layer["attention"], normed, layer_cache, positions)
        x += out
        x += feed_forward(config, experts, layer, norm(x, layer["post_norm"], config.epsilon), dtype)
        updated.append(layer_cache)
    return x, updated


def logits(config: Config, weights: Tree, x: jax.Array) -> jax.Array:
    return linear(norm(x, weights["norm"], config.epsilon), weights["head"], weights["embedding"].dtype)


def next_token(
    config: Config, experts: Experts, weights: Tree, cache: list[Tree], tokens: jax.Array, start: jax.Array
) -> tuple[jax.Array, list[Tree]]:
    x, cache = states(config, experts, weights, cache, tokens, start)
    return jnp.argmax(logits(config, weights, x[-1:]), -1).astype(jnp.int32), cache
