"""Compiled programs, what they need and how long they take; and how many of a layer's rows lax.ragged_dot can afford.

It multiplies every row with every expert, so that it needs the most time and memory of all contenders by far; what it
can afford, all of them run on.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from raggemm_demo.layers import Layer

# A part of the experts on the same rows tells the time of all: 16 of 128, times 8, are within a tenth forward. With
# gradients all 128 take half as long again, in first touches of fresh memory (600 rows of 2048x768, Emerald Rapids).
_PART_OF_EXPERTS = 8
# Rows for each active expert in the larger of the two runs that tell how time grows with rows.
_ROWS_OF_EXPERT = 8

# What to compile and call, for a layer and its weights: (function, *its arguments).
MakeCall = Callable[[Layer, Any], tuple[Any, ...]]


def compiled(function: Callable, *args: Any) -> jax.stages.Compiled:
    return jax.jit(function).lower(*args).compile()


def temp_bytes(program: jax.stages.Compiled) -> int:
    """Memory that it needs beside its arguments and results."""
    analysis = program.memory_analysis()
    assert analysis is not None, "XLA:CPU tells"
    return analysis.temp_size_in_bytes


def wait_until_quiet() -> None:
    """Returns when the process does nothing, after 2 s at the latest.

    XLA frees temporaries when the result is there already: those of the padded einsum, gigabytes, would take 100 ms of
    whoever runs next.
    """
    for _ in range(100):
        before = time.process_time()
        time.sleep(0.02)
        if time.process_time() - before < 0.002:
            return


class WarmProgram:
    """A function that was compiled for its arguments and has run once.

    A run gives `output` and writes it over that of the run before, or at first over `over`, as a training loop does
    that donates. In fresh memory everybody waits for the system instead: raggemm's gradients, 1.2 GB, took between 250
    and 1120 ms from one run to the next.
    """

    def __init__(self, function: Callable, *args: Any, over: Any = None):
        self._args = args
        if over is None:
            over = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(function, *args))
        start = time.perf_counter()
        run = jax.jit(lambda over, *args: function(*args), donate_argnums=0, keep_unused=True)
        self._compiled = run.lower(over, *args).compile()
        self.compile_seconds = time.perf_counter() - start
        self.output = over
        self.seconds()

    @property
    def temp_bytes(self) -> int:
        return temp_bytes(self._compiled)

    def seconds(self) -> float:
        wait_until_quiet()
        start = time.perf_counter()
        self.output = jax.block_until_ready(self._compiled(self.output, *self._args))
        return time.perf_counter() - start


Programs = dict[str, WarmProgram]


def median_ms(programs: Programs, over: Any, rounds: int = 9, seconds: float = 2.0) -> dict[str, float]:
    """Of some runs each, in turns, so that all of them see the same machine. Who has run for so many seconds sits out.

    All write over the same results, `over`, and have no output afterwards.
    """
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(rounds):
        for name, program in programs.items():
            if sum(times[name]) < seconds:
                program.output = over
                times[name].append(program.seconds())
                over, program.output = program.output, None
    return {name: 1e3 * statistics.median(of) for name, of in times.items()}


class Limits(NamedTuple):
    """What one run of lax.ragged_dot may need, the time as predicted. Where it would need more, rows are left out."""

    seconds: float
    temp_bytes: int
    timed_seconds: float = 2.0  # of a contender's timed runs, of which one more may take longer

    def __str__(self) -> str:
        return f"{self.seconds:.0f} s or {self.temp_bytes >> 30} GiB of temporaries"


def _predicted_seconds(layer: Layer, weights: Any, make_call: MakeCall, rows: int) -> float:
    """Of all experts on `rows`. How the rows are shared out does not matter to lax.ragged_dot."""
    experts = max(2, layer.experts // _PART_OF_EXPERTS)
    share, rest = divmod(rows, experts)
    part = dataclasses.replace(layer, sizes=tuple(share + (g < rest) for g in range(experts)))
    program = WarmProgram(*make_call(part, jax.tree.map(lambda w: w[:experts], weights)))
    return program.seconds() * layer.experts / experts


def rows_in_time(limit: float, few: tuple[int, float], many: tuple[int, float]) -> int:
    """Where a line through two points (rows, seconds) reaches the limit."""
    slope = (many[1] - few[1]) / (many[0] - few[0])
    if slope <= 0:  # noise: the runs take no time
        return many[0]
    return int(few[0] + (limit - few[1]) / slope)


def affordable_layer(layer: Layer, weights: Any, make_call: MakeCall, limits: Limits) -> Layer:
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
