"""bench_jax --calls: where the time of one call goes, of the whole MLP of one token of a recorded layer. Each part is a
program of its own, with the same arguments; 1,000 calls of each take turns, and other experts every time, so that their
weights come from memory.
"""

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from raggemm._functions.moe_mlp import moe_mlp
from raggemm._functions.routing import sort_by_expert

from raggemm_demo.checks import Checks, aligned
from raggemm_demo.layers import Layer, Weights
from raggemm_demo.programs import compiled
from raggemm_demo.progress import say
from raggemm_demo.whole_mlps import FUSED, mlps

CALLS = 1000
PERCENTILES = (50, 95, 99)


def parts(layer: Layer) -> dict[str, Callable[..., Any]]:
    """Functions of (x, weights, shares, chosen, sorted rows)."""

    def sorted_mlp(x, weights, shares, chosen, rows):
        routed = (rows.row_tokens, shares.reshape(-1)[rows.order], rows.group_sizes)
        matrices = {"w_up": weights.up, "w_down": weights.down, "w_gate": weights.gate}
        return moe_mlp(x, *routed, **matrices, preferred_element_type=jnp.float32)

    return {
        "XLA, a program of nothing": lambda x, weights, shares, chosen, rows: x,
        "sort by expert": lambda x, weights, shares, chosen, rows: sort_by_expert(chosen, layer.experts),
        "moe_mlp, sorted before": sorted_mlp,
        "moe_mlp, with the sort": lambda x, weights, shares, chosen, rows: mlps(8)[FUSED](x, weights, shares, chosen),
    }


def operands(layer: Layer, weights: Weights) -> list[tuple[Any, ...]]:
    """Of one token, for one choice of experts after the other, until all had a turn."""
    x = jnp.asarray(np.random.default_rng(4).standard_normal((1, layer.hidden), np.float32), jnp.bfloat16)
    shares = jnp.full((1, layer.top_k), 1 / layer.top_k, jnp.float32)
    experts = np.random.default_rng(5).permutation(layer.experts).astype(np.int32)
    groups = experts[: len(experts) // layer.top_k * layer.top_k].reshape(-1, 1, layer.top_k)
    return [(x, weights, shares, jnp.asarray(chosen), sort_by_expert(chosen, layer.experts)) for chosen in groups]


def run_layer(recorded: Layer, weights: Weights, checks: Checks) -> list[dict[str, Any]]:
    """A row of the report for each part; nothing of prefill."""
    if recorded.phase != "decode":
        return []
    choices = operands(recorded, weights)
    programs = {name: compiled(part, *choices[0]) for name, part in parts(recorded).items()}
    alone, whole = (np.asarray(programs[f"moe_mlp, {how}"](*choices[0])) for how in ("sorted before", "with the sort"))
    checks.add(f"{recorded.model}, one token", [("y", 0.0 if np.array_equal(alone, whole) else np.inf)])
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for call in range(CALLS):
        for name, program in programs.items():
            start = time.perf_counter()
            jax.block_until_ready(program(*choices[call % len(choices)]))
            seconds[name].append(time.perf_counter() - start)
    say(f"\n{recorded.model}, one token of {recorded.top_k} experts, {CALLS} calls of each")
    return [
        {"model": recorded.model, "part": name}
        | {f"p{p}": 1e6 * float(np.percentile(seconds[name], p)) for p in PERCENTILES}
        for name in programs
    ]


def _microseconds(name: str, row: dict[str, Any]) -> str:
    return f"{row[name]:.0f}"


def summary(rows: Sequence[dict[str, Any]]) -> str:
    columns: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
        ("model", lambda row: row["model"]),
        ("part", lambda row: row["part"]),
        *((f"p{p}, us", functools.partial(_microseconds, f"p{p}")) for p in PERCENTILES),
        ("p95 / p50", lambda row: f"{row['p95'] / row['p50']:.2f}"),
    ]
    return "\n".join(aligned(columns, rows))
