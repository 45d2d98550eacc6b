"""How many of a layer's rows lax.ragged_dot can afford. It multiplies every row with every expert, so that it needs the
most time and memory of all contenders by far; what it can afford, all of them run on."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from raggemm._moe_layers import Layer, Weights
from raggemm._warm_programs import WarmProgram, compiled, temp_bytes

# A part of the experts on the same rows tells the time of all: 16 of 128, times 8, are within a tenth forward. With
# gradients all 128 take half as long again, in first touches of fresh memory (600 rows of 2048x768, Emerald Rapids).
_PART_OF_EXPERTS = 8
# Rows for each active expert in the larger of the two runs that tell how time grows with rows.
_ROWS_OF_EXPERT = 8

# What to compile and call, for a layer and its weights: (function, *its arguments).
MakeCall = Callable[[Layer, Weights], tuple[Any, ...]]


class Limits(NamedTuple):
    """What one run of lax.ragged_dot may need, the time as predicted. Where it would need more, rows are left out."""

    seconds: float
    temp_bytes: int

    def __str__(self) -> str:
        return f"{self.seconds:.0f} s or {self.temp_bytes >> 30} GiB of temporaries"


def _predicted_seconds(layer: Layer, weights: Weights, make_call: MakeCall, rows: int) -> float:
    """Of all experts on `rows`. How the rows are shared out does not matter to lax.ragged_dot."""
    experts = max(2, layer.experts // _PART_OF_EXPERTS)
    share, rest = divmod(rows, experts)
    part = dataclasses.replace(layer, sizes=tuple(share + (g < rest) for g in range(experts)))
    program = WarmProgram(*make_call(part, Weights(*(w[:experts] for w in weights))))
    return program.seconds() * layer.experts / experts


def rows_in_time(limit: float, few: tuple[int, float], many: tuple[int, float]) -> int:
    """Where a line through two points (rows, seconds) reaches the limit."""
    slope = (many[1] - few[1]) / (many[0] - few[0])
    if slope <= 0:  # noise: the runs take no time
        return many[0]
    return int(few[0] + (limit - few[1]) / slope)


def affordable_layer(layer: Layer, weights: Weights, make_call: MakeCall, limits: Limits) -> Layer:
    """The layer with the rows that make_call's program of lax.ragged_dot can afford, never less than one for each
    active expert."""
    if layer.rows == layer.active:
        return layer
    rows, many = layer.rows, min(layer.rows, _ROWS_OF_EXPERT * layer.active)
    seconds = _predicted_seconds(layer, weights, make_call, many)
    if seconds * rows / many > limits.seconds:
        few = (layer.active, _predicted_seconds(layer, weights, make_call, layer.active))
        rows = rows_in_time(limits.seconds, few, (many, seconds))
    affordable = layer.with_rows(rows)
    while affordable.rows > layer.active:
        needed = temp_bytes(compiled(*make_call(affordable, weights)))  # known without a run
        if needed <= limits.temp_bytes:
            break
        rows = affordable.rows * limits.temp_bytes // needed  # more than enough less, for not all of it grows with rows
        affordable = layer.with_rows(rows)
    return affordable
