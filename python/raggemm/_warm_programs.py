"""Compiled programs, what they need and how long they take."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


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
