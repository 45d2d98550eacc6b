"""How long a step takes, and its parts, beside what memory allows."""

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
    info = {True: ml_dtypes.iinfo, False: ml_dtypes.finfo}  # nbytes counts 4 bits as a byte.
    return sum(x.size * info[jnp.issubdtype(x.dtype, jnp.integer)](x.dtype).bits // 8 for x in jax.tree.leaves(tree))


def passes_over_memory() -> Callable[[], float]:
    """Returns a function that reads half a GiB, with a thread for each core, and returns bytes a second."""
    cores = len(os.sched_getaffinity(0))
    parts, pool = np.array_split(np.ones(PASS_BYTES // 4, np.float32), cores), ThreadPoolExecutor(cores)

    def rate() -> float:
        start = time.perf_counter()
        list(pool.map(np.sum, parts))
        return PASS_BYTES / (time.perf_counter() - start)

    return rate


def parts_of_a_step(config: Config, weights: Tree, dtype: Any, length: int) -> dict[str, tuple[Callable, float]]:
    """By name: what a step does in a part of each layer, and the bytes that it reads."""
    experts = model.experts_here(config)
    attention = model.latent_attention if config.latent else model.grouped_attention
    cache = model.empty_cache(config, length, dtype)
    x, at = jax.random.normal(jax.random.key(0), (1, config.width)), jnp.full(1, length - 1)
    share = config.top_k / config.experts

    @jax.jit
    def of_experts(layers: Tree, x: jax.Array) -> jax.Array:
        for layer in layers:
            x += model.feed_forward(config, experts, layer, model.norm(x, 1.0, config.epsilon), dtype)
        return x

    @jax.jit
    def of_attention(layers: Tree, cache: Tree, x: jax.Array) -> jax.Array:
        for window, layer, of_layer in zip(config.windows, layers, cache, strict=True):
            normed = model.norm(x, 1.0, config.epsilon)
            x += attention(config, window, layer["attention"], normed, of_layer, at)[0]
        return x

    layers, reads = weights["layers"], {"experts": share, "router": 1, "dense": 1, "shared": 1, "expert_bias": 1}
    of_feed = sum(stored_bytes(layer[name]) * part for layer in layers for name, part in reads.items() if name in layer)
    return {
        "experts": (lambda: of_experts(layers, x), of_feed),
        "attention": (
            lambda: of_attention(layers, cache, x),
            stored_bytes(([layer["attention"] for layer in layers], cache)),
        ),
    }


def report(config: Config, weights: Tree, dtype: Any, run: Callable, length: int) -> str:
    """A step, its parts and plain passes over memory take turns, and medians count."""
    parts, rate = parts_of_a_step(config, weights, dtype, length), passes_over_memory()
    cache, token = model.empty_cache(config, length, dtype), jnp.zeros(1, jnp.int32)
    times: dict[str, list[float]] = {name: [] for name in ("step", *parts)}
    rates = []
    for _ in range(ROUNDS + 1):
        rates.append(rate())
        start = time.perf_counter()
        token, cache = jax.block_until_ready(run(weights, cache, token, jnp.int32(length - 1)))
        times["step"].append(time.perf_counter() - start)
        for name, (part, _) in parts.items():
            start = time.perf_counter()
            jax.block_until_ready(part())
            times[name].append(time.perf_counter() - start)
    seconds = {name: statistics.median(of[1:]) for name, of in times.items()}
    seconds["rest"] = seconds["step"] - seconds["experts"] - seconds["attention"]
    sizes = {name: size for name, (_, size) in parts.items()} | {"rest": stored_bytes(weights["head"])}
    sizes["step"], plain = sum(sizes.values()), statistics.median(rates[1:])
    lines = [
        f"a plain pass over memory: {plain / 1e9:.1f} GB/s",
        f"{1 / seconds['step']:.2f} tokens/s, of at most {plain / sizes['step']:.2f}",
        f"{'':10} {'ms':>8} {'MB read':>9}  of the bound",
    ]
    for name, size in sizes.items():
        lines.append(f"{name:10} {1e3 * seconds[name]:8.2f} {size / 1e6:9.1f}  {size / plain / seconds[name]:8.3f}")
    return "\n".join(lines)
