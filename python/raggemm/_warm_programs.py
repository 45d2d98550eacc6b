"""Compiled programs, what they need, and how many rows all contenders can afford."""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from raggemm._moe_layers import Layer


class Limits(NamedTuple):
    """What one run of one contender may need. Where one would need more, all of them run on fewer rows."""

    seconds: float
    temp_bytes: int

    def __str__(self) -> str:
        return f"{self.seconds:.0f} s or {self.temp_bytes >> 30} GiB of temporaries"


def compiled(function: Callable, *args: Any) -> jax.stages.Compiled:
    return jax.jit(function).lower(*args).compile()


def temp_bytes(program: jax.stages.Compiled) -> int:
    """Memory that it needs beside its arguments and results."""
    analysis = program.memory_analysis()
    assert analysis is not None, "XLA:CPU tells"
    return analysis.temp_size_in_bytes


class WarmProgram:
    """A function that was compiled for its arguments and has run once."""

    def __init__(self, function: Callable, *args: Any):
        start = time.perf_counter()
        self._compiled, self._args = compiled(function, *args), args
        self.compile_seconds = time.perf_counter() - start
        start = time.perf_counter()
        self.output = self._run()
        self.first_seconds = time.perf_counter() - start

    @property
    def temp_bytes(self) -> int:
        return temp_bytes(self._compiled)

    def _run(self) -> Any:
        return jax.block_until_ready(self._compiled(*self._args))

    def seconds(self) -> float:
        start = time.perf_counter()
        self._run()
        return time.perf_counter() - start


def median_ms(programs: dict[str, WarmProgram], rounds: int = 3) -> dict[str, float]:
    """Of some runs each, in turns, so that all of them see the same machine."""
    times = [[program.seconds() for program in programs.values()] for _ in range(rounds)]
    return {name: 1e3 * statistics.median(column) for name, *column in zip(programs, *times, strict=True)}


def affordable_rows(rows: int, small_rows: int, needs: Limits, limits: Limits) -> int:
    """How many of `rows` to run within the limits, if `small_rows` need `needs`.

    Both are taken to be proportional to the rows. Reading the weights is not, so that a little more may be affordable.
    """
    share = min(limits.seconds / needs.seconds, limits.temp_bytes / max(1, needs.temp_bytes))
    return min(rows, int(small_rows * share))


Programs = dict[str, WarmProgram]


def affordable_layer(layer: Layer, small: Layer, programs: Programs, limits: Limits) -> Layer:
    """The layer with the rows that all of the programs can afford; they are for `small`, which has some of its rows."""
    slowest = max(programs.values(), key=lambda program: program.first_seconds)
    seconds = slowest.first_seconds
    if seconds > limits.seconds:  # perhaps for first touches of memory only
        seconds = min(seconds, slowest.seconds())
    needs = Limits(seconds, max(program.temp_bytes for program in programs.values()))
    return layer.with_rows(affordable_rows(layer.rows, small.rows, needs, limits))
