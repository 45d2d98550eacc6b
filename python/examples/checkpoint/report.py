"""Compares the times of a decoding step and its parts with their lower bounds: bytes read / memory bandwidth."""

import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from checkpoint import model
from checkpoint.config import Config

Tree = Any
ROUNDS = 20
PASS_BYTES = 1 << 29


def stored_bytes(tree: Tree) -> int:
    info = {True: ml_dtypes.iinfo, False: ml_dtypes.finfo}  # x.nbytes would count a whole byte per 4-bit element.
    return sum(x.size * info[jnp.issubdtype(x.dtype, jnp.integer)](x.dtype).bits // 8 for x in jax.tree.leaves(tree))


def bandwidth_meter() -> Callable[[], float]:
    """Returns a function that measures memory bandwidth in bytes/s, by reading 512 MiB with one thread per core."""
    cores = len(os.sched_getaffinity(0))
    parts, pool = np.array_split(np.ones(PASS_BYTES // 4, np.float32), cores), ThreadPoolExecutor(cores)

    def rate() -> float:
        start = time.perf_counter()
        list(pool.map(np.sum, parts))
        return PASS_BYTES / (time.perf_counter() - start)

    return rate


def step_parts(config: Config, weights: Tree, dtype: Any, length: int) -> dict[str, tuple[Callable, float]]:
    """Returns the parts of a decoding step: (function that runs the part in all layers, bytes that it reads)."""
    experts = model.local_experts(config)
    attention = model.latent_attention if config.latent else model.grouped_attention
    cache = model.empty_cache(config, length, dtype)
    x, positions = jax.random.normal(jax.random.key(0), (1, config.width)), jnp.full(1, length - 1)
    active_share = config.top_k / config.experts

    @jax.jit
    def run_feed_forward(layers: Tree, x: jax.Array) -> jax.Array:
        for layer in layers:
            x += model.feed_forward(config, experts, layer, model.norm(x, 1.0, config.epsilon), dtype)
        return x

    @jax.jit
    def run_attention(layers: Tree, cache: Tree, x: jax.Array) -> jax.Array:
        for window, layer, layer_cache in zip(config.windows, layers, cache, strict=True):
            normed = model.norm(x, 1.0, config.epsilon)
            x += attention(config, window, layer["attention"], normed, layer_cache, positions)[0]
        return x

    # `shares`: fraction of a layer's weights that a decoding step reads, by name of the weights.
    layers, shares = (
        weights["layers"],
        {"experts": active_share, "router": 1, "dense": 1, "shared": 1, "expert_bias": 1},
    )
    size = sum(stored_bytes(layer[name]) * share for layer in layers for name, share in shares.items() if name in layer)
    return {
        "experts": (lambda: run_feed_forward(layers, x), size),
        "attention": (
            lambda: run_attention(layers, cache, x),
            stored_bytes(([layer["attention"] for layer in layers], cache)),
        ),
    }


def report(config: Config, weights: Tree, dtype: Any, run: Callable, length: int) -> str:
    """Measures bandwidth, a step and its parts alternately, ROUNDS times each. Returns a table of medians."""
    parts, bandwidth = step_parts(config, weights, dtype, length), bandwidth_meter()
    cache, token = model.empty_cache(config, length, dtype), jnp.zeros(1, jnp.int32)
    times: dict[str, list[float]] = {name: [] for name in ("step", *parts)}
    bandwidths = []
    for _ in range(ROUNDS + 1):
        bandwidths.append(bandwidth())
        start = time.perf_counter()
        token, cache = jax.block_until_ready(run(weights, cache, token, jnp.int32(length - 1)))
        times["step"].append(time.perf_counter() - start)
        for name, (part, _) in parts.items():
            start = time.perf_counter()
            jax.block_until_ready(part())
            times[name].append(time.perf_counter() - start)
    seconds = {name: statistics.median(each[1:]) for name, each in times.items()}
    seconds["rest"] = seconds["step"] - seconds["experts"] - seconds["attention"]
    sizes = {name: size for name, (_, size) in parts.items()} | {"rest": stored_bytes(weights["head"])}
    sizes["step"], rate = sum(sizes.values()), statistics.median(bandwidths[1:])
    lines = [
        f"a plain pass over memory: {rate / 1e9:.1f} GB/s",
        f"{1 / seconds['step']:.2f} tokens/s, of at most {rate / sizes['step']:.2f}",
        f"{'':10} {'ms':>8} {'MB read':>9}  of the bound",
    ]
    for name, size in sizes.items():
        lines.append(f"{name:10} {1e3 * seconds[name]:8.2f} {size / 1e6:9.1f}  {size / rate / seconds[name]:8.3f}")
    return "\n".join(lines)
