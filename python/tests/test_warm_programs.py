"""How programs are timed: over each other's results, in turns, when nothing else runs."""

import threading
import time

import jax.numpy as jnp
import numpy as np
from raggemm._warm_programs import WarmProgram, median_ms, wait_until_quiet


def test_runs_write_over_their_results():
    x = jnp.arange(1 << 16, dtype=jnp.float32)
    once = WarmProgram(lambda x: {"y": x + 1, "sum": x.sum()}, x)
    first = once.output
    once.seconds()
    assert first["y"].is_deleted() and not x.is_deleted()
    twice = WarmProgram(lambda x: {"y": x * 2, "sum": x.sum()}, x, over=once.output)
    np.testing.assert_array_equal(twice.output["y"], 2 * np.asarray(x))
    assert once.output["y"].is_deleted()
    ms = median_ms({"once": once, "twice": twice}, over=twice.output)
    assert list(ms) == ["once", "twice"] and min(ms.values()) > 0
    assert once.output is None and twice.output is None


def test_waits_until_quiet():
    end = time.monotonic() + 0.3

    def spin():
        while time.monotonic() < end:
            pass

    busy = threading.Thread(target=spin)
    busy.start()
    wait_until_quiet()
    assert not busy.is_alive()


def test_long_runs_are_few():
    class Program:
        def __init__(self, took):
            self.took, self.runs = took, 0

        def seconds(self):
            self.runs += 1
            return self.took

    programs = {"short": Program(0.1), "middling": Program(1.5), "long": Program(20.0)}
    assert median_ms(programs, over=None) == {"short": 100.0, "middling": 1500.0, "long": 20000.0}
    assert [program.runs for program in programs.values()] == [9, 2, 1]
