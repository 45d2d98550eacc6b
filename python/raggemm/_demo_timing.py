"""Compiled programs and their times, and how many rows all contenders can afford."""

import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import jax

from raggemm._demo_blocks import LOOPS, blocks
from raggemm._demo_layers import Layer, Weights, random_rows

# What one run of one contender may need. Where one would need more, all of them run on fewer rows.
LIMIT_BYTES = 4 * 2**30
LIMIT_SECONDS = 3.0
# Rows for each active expert in the small run that tells. A layer with no more than that runs as it is.
SMALL_RUN_ROWS = 4


def compiled(function: Callable, *args: Any) -> jax.stages.Compiled:
    return jax.jit(function).lower(*args).compile()


def temp_bytes(program: jax.stages.Compiled) -> int:
    """Memory that it needs beside its arguments and results."""
    return program.memory_analysis().temp_size_in_bytes


class WarmProgram:
    """A function that was compiled for its arguments and has run once."""

    def __init__(self, function: Callable, *args: Any):
        self._compiled, self._args = compiled(function, *args), args
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


def median_ms(programs: dict[str, WarmProgram]) -> dict[str, float]:
    """Of three runs each, in turns, so that all of them see the same machine."""
    rounds = [[program.seconds() for program in programs.values()] for _ in range(3)]
    return {name: 1e3 * statistics.median(times) for name, *times in zip(programs, *rounds, strict=True)}


def affordable_rows(rows: int, small_rows: int, seconds: float, temp_bytes: int) -> int:
    """How many of `rows` to run, if `small_rows` take `seconds` and `temp_bytes`.

    Both are taken to be proportional to the rows. Reading the weights is not, so that a little more may be affordable.
    """
    share = min(LIMIT_SECONDS / seconds, LIMIT_BYTES / max(1, temp_bytes))
    return min(rows, int(small_rows * share))


def _warm_programs(layer: Layer, weights: Weights, names: Iterable[str]) -> dict[str, WarmProgram]:
    x, sizes = random_rows(layer)
    block = blocks(layer.padded_size)
    return {name: WarmProgram(block[name], x, weights, sizes) for name in names}


def affordable_programs(layer: Layer, weights: Weights) -> tuple[Layer, dict[str, WarmProgram]]:
    """The layer with the rows that all contenders can afford, and the contenders on it, of the two loops the faster."""
    small = layer.with_rows(SMALL_RUN_ROWS * layer.active)
    programs = _warm_programs(small, weights, blocks(small.padded_size))
    del programs[max(LOOPS, key=lambda name: programs[name].first_seconds)]
    slowest = max(programs.values(), key=lambda program: program.first_seconds)
    seconds = slowest.first_seconds
    if seconds > LIMIT_SECONDS:  # perhaps for first touches of memory only
        seconds = min(seconds, slowest.seconds())
    largest = max(program.temp_bytes for program in programs.values())
    affordable = layer.with_rows(affordable_rows(layer.rows, small.rows, seconds, largest))
    return affordable, programs if affordable == small else _warm_programs(affordable, weights, programs)
