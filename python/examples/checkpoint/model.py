"""The decoder: plain JAX around raggemm.moe_mlp, of one sequence, in float32 between products."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import raggemm
from checkpoint.config import Config
from checkpoint.weights import Mlp

Tree = Any
LATENT_EPSILON = 1e-6  # of the norms inside of latent attention, whatever rms_norm_eps is


def norm(x: jax.Array, weight: jax.Array, epsilon: float) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + epsilon) * weight


def linear(x: jax.Array, layer: dict[str, Tree], dtype: Any) -> jax.Array:
    """float32 [T,N]; the product's operands are of dtype, or its weights quantized."""
    out = raggemm.gmm(x.astype(dtype), layer["w"], jnp.full(1, x.shape[0], jnp.int32))
    return out + layer["b"] if "b" in layer else out


def rotate(config: Config, x: jax.Array, positions: jax.Array) -> jax.Array:
    """x [T,heads,dim]: pairs are the two halves, or neighbours in DeepSeek's."""
    angles = positions[:, None, None] * jnp.asarray(config.frequencies, jnp.float32)
    sin, cos = jnp.sin(angles) * config.magnitude, jnp.cos(angles) * config.magnitude
    if config.latent:
        a, b = x[..., ::2], x[..., 1::2]
        return jnp.stack((a * cos - b * sin, b * cos + a * sin), -1).reshape(x.shape)
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate((a * cos - b * sin, b * cos + a * sin), -1)


def _shares(scores: jax.Array, positions: jax.Array, window: int | None, sinks: jax.Array | None) -> jax.Array:
    """Softmax of scores [heads,T,S] over what a position sees, and over the sink of a head, which has no value."""
    ago = positions[:, None] - jnp.arange(scores.shape[-1])
    seen = ago >= 0 if window is None else (ago >= 0) & (ago < window)
    scores = jnp.where(seen, scores, -jnp.inf)
    most = scores.max(-1, keepdims=True)
    most = most if sinks is None else jnp.maximum(most, sinks[:, None, None])
    shares = jnp.exp(scores - most)
    total = shares.sum(-1, keepdims=True)
    return shares / (total if sinks is None else total + jnp.exp(sinks[:, None, None] - most))


def _stored(cache: jax.Array, x: jax.Array, positions: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_slice_in_dim(cache, x.astype(cache.dtype), positions[0], 0)


def grouped_attention(
    config: Config, window: int | None, layer: Tree, x: jax.Array, cache: Tree, positions: jax.Array
) -> tuple[jax.Array, Tree]:
    """Query heads in groups, each with one head of keys and values."""
    dtype = cache[0].dtype

    def heads(word: str) -> jax.Array:
        y = linear(x, layer[word], dtype)
        if (weight := layer.get(f"{word}_norm")) is None:
            return y.reshape(len(x), -1, config.head_dim)
        if weight.shape[0] == config.head_dim:
            return norm(y.reshape(len(x), -1, config.head_dim), weight, config.epsilon)
        return norm(y, weight, config.epsilon).reshape(len(x), -1, config.head_dim)

    q, k, v = heads("q"), heads("k"), heads("v")
    keys = _stored(cache[0], rotate(config, k, positions), positions)
    values = _stored(cache[1], v, positions)
    q = rotate(config, q, positions).reshape(len(x), config.kv_heads, -1, config.head_dim)
    scores = jnp.einsum("tgrd,sgd->grts", q, keys.astype(jnp.float32), precision="highest") * config.score_scale
    shares = _shares(scores.reshape(config.heads, len(x), -1), positions, window, layer.get("sinks"))
    shares = shares.reshape(scores.shape)
    out = jnp.einsum("grts,sgd->tgrd", shares, values.astype(jnp.float32), precision="highest")
    return linear(out.reshape(len(x), -1), layer["o"], dtype), (keys, values)


def latent_attention(
    config: Config, window: int | None, layer: Tree, x: jax.Array, cache: Tree, positions: jax.Array
) -> tuple[jax.Array, Tree]:
    """Queries go into the space of the latent vectors, which alone are kept: keys of all heads are never made."""
    del window
    latent, dtype = config.latent, cache[0].dtype
    if "q_a" in layer:
        q = linear(norm(linear(x, layer["q_a"], dtype), layer["q_norm"], LATENT_EPSILON), layer["q"], dtype)
    else:
        q = linear(x, layer["q"], dtype)
    q = q.reshape(len(x), config.heads, latent.plain_dim + latent.rotary_dim)
    plain, turned = q[..., : latent.plain_dim], rotate(config, q[..., latent.plain_dim :], positions)
    kv = linear(x, layer["kv_a"], dtype)
    vectors = _stored(cache[0], norm(kv[:, : latent.rank], layer["kv_norm"], LATENT_EPSILON), positions)
    rotated = rotate(config, kv[:, None, latent.rank :], positions)[:, 0]
    keys = _stored(cache[1], rotated, positions)

    def product(formula: str, a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.einsum(formula, a.astype(jnp.float32), b.astype(jnp.float32), precision="highest")

    scores = product("thr,sr->hts", product("thd,hdr->thr", plain, layer["k_b"]), vectors)
    scores = (scores + product("thd,sd->hts", turned, keys)) * config.score_scale
    seen = product("hts,sr->thr", _shares(scores, positions, None, None), vectors)
    out = product("thr,hdr->thd", seen, layer["v_b"])
    return linear(out.reshape(len(x), -1), layer["o"], dtype), (vectors, keys)


def for_all(x: jax.Array, weights: Mlp) -> jax.Array:
    """An MLP that has one expert, of all tokens."""
    each, sizes = jnp.arange(len(x), dtype=jnp.int32), jnp.full(1, len(x), jnp.int32)
    return raggemm.moe_mlp(x, each, None, sizes, weights.up, weights.down, **weights.options())


# (x [T,width], experts' weights, shares of a token's experts [T,k], these experts [T,k]) -> [T,width]
Experts = Callable[[jax.Array, Mlp, jax.Array, jax.Array], jax.Array]


def experts_here(config: Config) -> Experts:
    def run(x: jax.Array, weights: Mlp, shares: jax.Array, chosen: jax.Array) -> jax.Array:
        rows = raggemm.sort_by_expert(chosen, config.experts)
        routed = rows.row_tokens, shares.reshape(-1)[rows.order], rows.group_sizes
        return raggemm.moe_mlp(x, *routed, weights.up, weights.down, **weights.options())

    return run


def feed_forward(config: Config, experts: Experts, layer: Tree, x: jax.Array, dtype: Any) -> jax.Array:
    if "dense" in layer:
        return for_all(x.astype(dtype), layer["dense"])
    routing = dict(config.routing) | {"expert_bias": layer.get("expert_bias")}
    shares, chosen = raggemm.route(linear(x, layer["router"], jnp.float32), config.top_k, **routing)
    out = experts(x.astype(dtype), layer["experts"], shares, chosen)
    return out + for_all(x.astype(dtype), layer["shared"]) if "shared" in layer else out


def empty_cache(config: Config, length: int, dtype: Any) -> list[Tree]:
    if config.latent:
        shapes: tuple[tuple[int, ...], ...] = ((length, config.latent.rank), (length, config.latent.rotary_dim))
    else:
        shapes = ((length, config.kv_heads, config.head_dim),) * 2
    return [tuple(jnp.zeros(shape, dtype) for shape in shapes) for _ in config.windows]


def states(
    config: Config, experts: Experts, weights: Tree, cache: list[Tree], tokens: jax.Array, start: jax.Array
) -> tuple[jax.Array, list[Tree]]:
    """float32 [T,width] behind the last layer, of tokens [T] at the positions from start on, and the cache."""
    positions = start + jnp.arange(len(tokens))
    attention = latent_attention if config.latent else grouped_attention
    x, filled, dtype = weights["embedding"][tokens].astype(jnp.float32), [], weights["embedding"].dtype
    for window, layer, of_layer in zip(config.windows, weights["layers"], cache, strict=True):
        normed = norm(x, layer["input_norm"], config.epsilon)
        out, of_layer = attention(config, window, layer["attention"], normed, of_layer, positions)
        x += out
        x += feed_forward(config, experts, layer, norm(x, layer["post_norm"], config.epsilon), dtype)
        filled.append(of_layer)
    return x, filled


def logits(config: Config, weights: Tree, x: jax.Array) -> jax.Array:
    """float32 [T,vocabulary]."""
    return linear(norm(x, weights["norm"], config.epsilon), weights["head"], weights["embedding"].dtype)


def next_token(
    config: Config, experts: Experts, weights: Tree, cache: list[Tree], tokens: jax.Array, start: jax.Array
) -> tuple[jax.Array, list[Tree]]:
    """int32 [1], the likeliest behind tokens [T], and the cache: prefill where T is a prompt, else a step."""
    x, cache = states(config, experts, weights, cache, tokens, start)
    return jnp.argmax(logits(config, weights, x[-1:]), -1).astype(jnp.int32), cache
