"""bench_jax --layer: whole MLPs of some tokens of a recorded layer, forward and with the gradients of a loss for x, the
weights and the router's weights of each token. A table for each number of tokens, and one of all.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from raggemm_demo import contenders, contest, whole_mlps
from raggemm_demo.checks import Checks, aligned, milliseconds
from raggemm_demo.contest import BACKWARD, FORWARD, LIMITS
from raggemm_demo.layers import Layer, Weights, distance
from raggemm_demo.programs import compiled, temp_bytes
from raggemm_demo.progress import say
from raggemm_demo.whole_mlps import FUSED, Mlp

_Row = dict[str, Any]  # of the report

# With fewer tokens it is the weights that take the time, of all experts: as long for one token as for eight.
_FEW = 16
TOKENS = {"decode": (1, 8), "prefill": (64, 512)}


class Case(NamedTuple):
    recorded: Layer
    direction: str  # FORWARD or BACKWARD
    chosen: np.ndarray  # [T,k]

    @property
    def layer(self) -> Layer:
        """With the rows of these tokens."""
        sizes = np.bincount(self.chosen.ravel(), minlength=self.recorded.experts)
        return dataclasses.replace(self.recorded, sizes=tuple(sizes.tolist()))

    @property
    def title(self) -> str:
        tokens, top_k = self.chosen.shape
        experts = f"{self.layer.active} of {self.layer.experts} experts active"
        return f"{self.layer.model}, {self.direction}, {tokens} tokens of {top_k} experts each, {experts}"


def _call(mlp: Mlp, case: Case, weights: Weights) -> tuple[Any, ...]:
    """What to run: (function, *its arguments)."""
    random = np.random.default_rng(4)
    tokens, top_k = case.chosen.shape
    x, target = (random.standard_normal((tokens, case.recorded.hidden), np.float32) for _ in range(2))
    shares = random.uniform(0.5, 1.5, (tokens, top_k)).astype(np.float32) / top_k
    operands = jnp.asarray(x, jnp.bfloat16), weights, jnp.asarray(shares)
    if case.direction == FORWARD:
        return mlp, *operands, jnp.asarray(case.chosen)

    def loss(x, weights, shares, chosen, target):
        return distance(mlp(x, weights, shares, chosen), target)

    return jax.value_and_grad(loss, argnums=(0, 1, 2)), *operands, jnp.asarray(case.chosen), jnp.asarray(target)


def _is_slow(name: str, tokens: int, fewer: _Row | None) -> bool:
    """Whether it would take longer than the limit, by the row for fewer tokens, if there is one."""
    if fewer is None:
        return False
    of = fewer["contenders"].get(name)
    return of is None or of["ms"] * tokens / max(fewer["tokens"], _FEW) > 1e3 * LIMITS.seconds


def _affordable_calls(case: Case, weights: Weights, fewer: _Row | None) -> dict[str, tuple[Any, ...]]:
    """Of all contenders that need no more than the limits."""
    mlps = whole_mlps.mlps(case.layer.padded_size)
    if case.direction == FORWARD:
        del mlps[whole_mlps.SAVED]
    calls = {name: _call(mlp, case, weights) for name, mlp in mlps.items()}
    for name in whole_mlps.OTHERS:
        if _is_slow(name, len(case.chosen), fewer) or temp_bytes(compiled(*calls[name])) > LIMITS.temp_bytes:
            del calls[name]
    return calls


def report(case: Case, weights: Weights, fewer: _Row | None, checks: Checks) -> _Row:
    """A row of the report, which is also printed; ratios are times over the fused one's."""
    say(f"\n{case.title}")
    calls = _affordable_calls(case, weights, fewer)
    row: _Row = {
        "model": case.layer.model,
        "direction": case.direction,
        "tokens": len(case.chosen),
        "top_k": case.layer.top_k,
        "active": case.layer.active,
        "experts": case.layer.experts,
        "contenders": contest.measured(*contest.checked_programs(case.title, calls, checks)),
    }
    say(contest.table(row["contenders"], "/ fused", {}))
    return row


def run_layer(recorded: Layer, weights: Weights, checks: Checks) -> list[_Row]:
    rows: list[_Row] = []
    for direction in (FORWARD, BACKWARD):
        fewer = None
        for tokens in TOKENS[recorded.phase]:
            case = Case(recorded, direction, whole_mlps.recorded_routing(recorded, tokens))
            fewer = report(case, weights, fewer, checks)
            rows.append(fewer)
    return rows


def _cell(name: str, field: str, text: Callable[[Any], str]) -> Callable[[_Row], str]:
    def cell(row: _Row) -> str:
        return text(row["contenders"][name][field]) if name in row["contenders"] else "-"

    return cell


def _ratio(name: str, *heading: str) -> tuple[Any, ...]:
    return *heading, _cell(name, "ratio", lambda ratio: f"{ratio:.2f}")


def _temp(name: str, *heading: str) -> tuple[Any, ...]:
    return *heading, _cell(name, "temp_bytes", lambda size: f"{size / 2**20:.1f}")


# Two lines of heading, and what stands below.
_COLUMNS: tuple[tuple[Any, ...], ...] = (
    ("", "model", lambda row: row["model"]),
    ("", "direction", lambda row: row["direction"]),
    ("", "tokens", lambda row: str(row["tokens"])),
    ("active", "experts", lambda row: f"{row['active']} of {row['experts']}"),
    ("fused", "ms", _cell(FUSED, "ms", milliseconds)),
    _ratio(whole_mlps.SAVED, "saved", "/ fused"),
    _ratio(whole_mlps.UNFUSED, "unfused", "/ fused"),
    _ratio(contenders.RAGGED_DOT, "ragged_dot", "/ fused"),
    _ratio(contenders.LOOPS[0], "loop", "/ fused"),
    _ratio(whole_mlps.DENSE, "dense", "/ fused"),
    _temp(FUSED, "fused", "MiB"),
    _temp(whole_mlps.SAVED, "saved", "MiB"),
    _temp(whole_mlps.UNFUSED, "unfused", "MiB"),
    _temp(contenders.RAGGED_DOT, "ragged_dot", "MiB"),
    _temp(contenders.LOOPS[0], "loop", "MiB"),
    _temp(whole_mlps.DENSE, "dense", "MiB"),
)


def summary(rows: Sequence[_Row]) -> str:
    lines = [*aligned(_COLUMNS, rows), "MiB: of temporaries"]
    if any(name not in row["contenders"] for row in rows for name in whole_mlps.OTHERS):
        lines.append(f"-: would need over {LIMITS}; saved, which keeps activations for gradients, is fused forward")
    return "\n".join(lines)
