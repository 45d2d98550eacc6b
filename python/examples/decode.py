"""Tokens a second of a stack of mixture-of-experts layers, beside what the speed of memory allows.

    .venv/bin/python python/examples/decode.py [--weights=bf16|int8|int4|mxfp4] [--layers=N] [--tokens=1] [--steps=50]

The layers have the shape of qwen3-30b-a3b: 128 experts, of which a token gets 8; RMS norm, router, experts, residual.
There is no attention, so that tokens don't see each other, and weights are random. The next token is drawn from the
logits of a small vocabulary. Each step is computed with the experts in one call (raggemm.moe_mlp), product by product,
and with --ragged-dot, which needs weights of bf16, by jax.lax.ragged_dot.

A step must read the experts that its tokens chose, as they are stored, with their scales. How long that takes at least
a plain pass over memory tells: a sum of half a GiB, which no cache holds, with a thread for each core, in huge pages,
for which NumPy asks. Passes and steps take turns, and medians count. Routers and vocabulary, which are read too, are
not in the bound: with one token 7 % more of 4 bits, 3 % of bf16. JAX' arrays, so also the weights, have huge pages
where malloc gives them: with GLIBC_TUNABLES=glibc.malloc.hugetlb=1 in the environment.
"""

import argparse
import functools
import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import raggemm


class Shape(NamedTuple):
    width: int = 2048
    hidden: int = 768  # of an expert
    experts: int = 128
    top_k: int = 8
    vocabulary: int = 1024


class Layer(NamedTuple):
    """The experts' matrices are arrays of bfloat16, or a QuantizedTensor each."""

    router: jax.Array  # float32 [width, experts]
    gate: Any  # [experts, width, hidden]
    up: Any
    down: Any  # [experts, hidden, width]


def _of_blocks(dtype: Any, steps: int, scale_dtype: Any) -> Callable[[jax.Array], Any]:
    return functools.partial(raggemm.quantize, dtype=dtype, axes=(), block=(1, steps), scale_dtype=scale_dtype)


# What becomes of matrices [experts, K, N]: a scale for each column, or for each block of K in it.
FORMATS: dict[str, Callable[[jax.Array], Any]] = {
    "bf16": lambda x: x,
    "int8": functools.partial(raggemm.quantize, dtype=jnp.int8, axes=(1,)),
    "int4": _of_blocks(jnp.int4, 128, jnp.bfloat16),
    "mxfp4": _of_blocks(jnp.float4_e2m1fn, 32, jnp.float8_e8m0fnu),
}
EXPERTS_BYTES = 4 << 30  # of all layers, where their number is not given
PASS_BYTES = 1 << 29


def stored_bytes(tree: Any) -> int:
    info = {True: ml_dtypes.iinfo, False: ml_dtypes.finfo}  # nbytes counts 4 bits as a byte
    return sum(x.size * info[jnp.issubdtype(x.dtype, jnp.integer)](x.dtype).bits // 8 for x in jax.tree.leaves(tree))


def make_layers(shape: Shape, count: int | None, weights: str) -> list[Layer]:
    """Each has a router and memory of its own. The experts' values are those of a few, which are quick to copy."""

    def normal(seed: int, *dims: int, dtype: Any = jnp.bfloat16) -> jax.Array:
        return jax.random.normal(jax.random.key(seed), dims, dtype) * jnp.asarray(dims[-2] ** -0.5, dtype)

    sides = (shape.width, shape.hidden), (shape.width, shape.hidden), (shape.hidden, shape.width)
    few = min(16, shape.experts)
    made = jax.jit(lambda seed, k, n: FORMATS[weights](normal(seed, few, k, n)), static_argnums=(0, 1, 2))
    some = [made(-seed, *side) for seed, side in enumerate(sides, 1)]
    first = jax.tree.map(lambda x: jnp.tile(x, (shape.experts // few, 1, 1)), some)
    count = count or max(1, EXPERTS_BYTES // stored_bytes(first))
    copies = [first, *(jax.tree.map(jnp.copy, first) for _ in range(count - 1))]
    return [Layer(normal(i, shape.width, shape.experts, dtype=jnp.float32), *copy) for i, copy in enumerate(copies)]


def one_call(layer: Layer, x: jax.Array, rows: raggemm.SortedRows, shares: jax.Array) -> jax.Array:
    routed = (rows.row_tokens, shares, rows.group_sizes)
    return raggemm.moe_mlp(x, *routed, layer.up, layer.down, w_gate=layer.gate, preferred_element_type=jnp.float32)


def products(gmm: Callable, layer: Layer, x: jax.Array, rows: raggemm.SortedRows, shares: jax.Array) -> jax.Array:
    product = functools.partial(gmm, group_sizes=rows.group_sizes, preferred_element_type=jnp.float32)
    own = x[rows.row_tokens]
    activated = jax.nn.silu(product(own, layer.gate)) * product(own, layer.up)
    return raggemm.combine(product(activated.astype(x.dtype), layer.down), rows.row_tokens, len(x), shares)


EXPERTS: dict[str, Callable] = {
    "one call": one_call,
    "product by product": functools.partial(products, raggemm.gmm),
    "lax.ragged_dot": functools.partial(products, jax.lax.ragged_dot),
}


def norm(x: jax.Array) -> jax.Array:
    return (x * jax.lax.rsqrt(jnp.mean(x * x, axis=1, keepdims=True) + 1e-6)).astype(jnp.bfloat16)


class Step(NamedTuple):
    x: jax.Array  # float32 [tokens, width], what the last layer gives
    logits: jax.Array  # float32 [tokens, vocabulary]
    chosen: jax.Array  # int32 [layers, tokens, top_k], experts


def step(experts: Callable, top_k: int, layers: list[Layer], embedding: jax.Array, tokens: jax.Array) -> Step:
    x, chosen = embedding[tokens].astype(jnp.float32), []
    for layer in layers:
        normed = norm(x)
        shares, of_tokens = raggemm.route(normed.astype(jnp.float32) @ layer.router, top_k)
        rows = raggemm.sort_by_expert(of_tokens, layer.router.shape[1])
        x += experts(layer, normed, rows, shares.reshape(-1)[rows.order])
        chosen.append(of_tokens)
    return Step(x, jnp.dot(norm(x), embedding.T, preferred_element_type=jnp.float32), jnp.stack(chosen))


def passes_over_memory() -> Callable[[], float]:  # each gives bytes a second
    cores = len(os.sched_getaffinity(0))
    parts, pool = np.array_split(np.ones(PASS_BYTES // 4, np.float32), cores), ThreadPoolExecutor(cores)

    def rate() -> float:
        start = time.perf_counter()
        list(pool.map(np.sum, parts))
        return PASS_BYTES / (time.perf_counter() - start)

    return rate


class Medians(NamedTuple):
    seconds: dict[str, float]  # of a step, by who computed the experts
    step_bytes: float  # of the experts of a step
    rate: float  # bytes a second of a plain pass


def measure(names: Sequence[str], layers: list[Layer], shape: Shape, tokens: int, steps: int) -> Medians:
    """All get the tokens that are drawn from the logits of the first."""
    embedding = jax.random.normal(jax.random.key(1), (shape.vocabulary, shape.width), jnp.bfloat16)
    drawn, rate = jnp.arange(tokens) % shape.vocabulary, passes_over_memory()
    steps_of = {name: jax.jit(functools.partial(step, EXPERTS[name], shape.top_k)) for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    expert_bytes, step_bytes, rates = stored_bytes(layers[0][1:]) / shape.experts, [], []
    for i in range(steps + 1):  # the first, which compiles, is not counted
        rates.append(rate())
        for name in reversed(names):
            start = time.perf_counter()
            out = jax.block_until_ready(steps_of[name](layers, embedding, drawn))
            times[name].append(time.perf_counter() - start)
        step_bytes.append(expert_bytes * sum(len(np.unique(of_layer)) for of_layer in out.chosen))
        drawn = jax.random.categorical(jax.random.key(i), out.logits / shape.width**0.5)
    seconds = {name: statistics.median(of[1:]) for name, of in times.items()}
    return Medians(seconds, statistics.median(step_bytes[1:]), statistics.median(rates[1:]))


def report(measured: Medians, tokens: int) -> str:
    bound = measured.step_bytes / measured.rate
    lines = [
        f"a plain pass over memory: {measured.rate / 1e9:.2f} GB/s",
        f"experts of a step: {measured.step_bytes / 1e6:.3f} MB, so at most {tokens / bound:.2f} tokens/s",
        f"{'':18}  ms a step  tokens/s  of the bound",
    ]
    for name, seconds in measured.seconds.items():
        lines.append(f"{name:18}  {1e3 * seconds:9.2f}  {tokens / seconds:8.2f}  {bound / seconds:12.3f}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> Medians:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", choices=FORMATS, default="int4", help="how experts are stored (default int4)")
    parser.add_argument("--layers", type=int, help="by default as many as have 4 GiB of experts")
    parser.add_argument("--tokens", type=int, default=1, help="of a step (default 1)")
    parser.add_argument("--steps", type=int, default=50, help="(default 50)")
    parser.add_argument("--ragged-dot", action="store_true", help="also jax.lax.ragged_dot, of weights of bf16")
    options = parser.parse_args(argv)
    for name, count in vars(options).items():
        if type(count) is int and count < 1:
            parser.error(f"--{name}={count}: must be positive")
    if options.ragged_dot and options.weights != "bf16":
        parser.error(f"--ragged-dot: needs --weights=bf16, not {options.weights}")

    shape = Shape()
    layers = make_layers(shape, options.layers, options.weights)
    size = stored_bytes([layer[1:] for layer in layers]) / 2**30
    print(f"{len(layers)} layers of {shape}, experts of {options.weights}: {size:.2f} GiB")
    measured = measure(list(EXPERTS)[: 3 if options.ragged_dot else 2], layers, shape, options.tokens, options.steps)
    print(report(measured, options.tokens))
    return measured


if __name__ == "__main__":
    main()
