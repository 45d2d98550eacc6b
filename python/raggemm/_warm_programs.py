"""Compiled programs, what they need and how long they take."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax


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
        self.output = self._run()

    @property
    def temp_bytes(self) -> int:
        return temp_bytes(self._compiled)

    def _run(self) -> Any:
        return jax.block_until_ready(self._compiled(*self._args))

    def seconds(self) -> float:
        start = time.perf_counter()
        self._run()
        return time.perf_counter() - start


Programs = dict[str, WarmProgram]


def median_ms(programs: Programs, rounds: int = 3, seconds: float = 3.0) -> dict[str, float]:
    """Of some runs each, in turns, so that all of them see the same machine. Who has run for `seconds` sits out."""
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(rounds):
        for name, program in programs.items():
            if sum(times[name]) < seconds:
                times[name].append(program.seconds())
    return {name: 1e3 * statistics.median(of) for name, of in times.items()}
