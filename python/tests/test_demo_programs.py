"""How programs are timed: over each other's results, in turns, when nothing else runs. How many rows one can afford: by
memory, by time, and never less than one for each active expert. What is counted as wrong.
"""

import time

import jax.numpy as jnp
import numpy as np
import pytest
from raggemm_demo import layers, programs
from raggemm_demo.checks import Checks
from raggemm_demo.programs import Limits, WarmProgram, affordable_layer, median_ms, wait_until_quiet

LAYER = layers.Layer("", "", hidden=16, intermediate=8, sizes=(0, 100, 700, 0, 1, 0, 199, 0))
PLENTY = 2**40


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


@pytest.mark.parametrize(("busy", "waits"), [(0, 1), (5, 6), (1000, 100)])
def test_waits_until_quiet(busy, waits, monkeypatch):
    """While the process takes a tenth of a core, and no longer than 2 s."""
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(time, "process_time", lambda: 0.0021 * min(len(slept), busy))
    wait_until_quiet()
    assert slept == [0.02] * waits


def test_long_runs_are_few():
    class Program:
        def __init__(self, took):
            self.took, self.runs = took, 0

        def seconds(self):
            self.runs += 1
            return self.took

    three = {"short": Program(0.1), "middling": Program(1.5), "long": Program(20.0)}
    assert median_ms(three, over=None) == {"short": 100.0, "middling": 1500.0, "long": 20000.0}
    assert [program.runs for program in three.values()] == [9, 2, 1]


@pytest.fixture(scope="module")
def weights():
    return layers.random_weights(LAYER)


def outer_sums(layer, weights):
    """A program whose temporaries grow with rows times experts, as those of lax.ragged_dot do."""
    x, _ = layers.random_rows(layer)
    return lambda x, w: jnp.sort(x[None, :, :] + w[:, :1, :1], axis=1)[:, ::2].sum(), x, weights.gate


@pytest.mark.parametrize(("limit", "rows"), [(1.0, 100), (2.0, 300), (1.5, 200), (3.0, 500), (0.5, 0)])
def test_rows_in_time_are_on_a_line(limit, rows):
    assert programs.rows_in_time(limit, (100, 1.0), (300, 2.0)) == rows


def test_noise_allows_the_rows_that_were_run():
    assert programs.rows_in_time(1.0, (100, 1.0), (300, 0.9)) == 300


@pytest.mark.parametrize(("limit", "rows"), [(10.5, 1000), (5.1, 510), (1.0, 100), (0.01, 4)])
def test_time_is_that_of_all_experts(monkeypatch, weights, limit, rows):
    runs = []

    class Program:
        """10 ms for a row of 8 experts, and nothing for memory."""

        def __init__(self, layer):
            runs.append(layer)

        def seconds(self):
            return 0.01 * runs[-1].rows * runs[-1].experts / LAYER.experts

    monkeypatch.setattr(programs, "WarmProgram", Program)
    monkeypatch.setattr(programs, "compiled", lambda layer: layer)
    monkeypatch.setattr(programs, "temp_bytes", lambda layer: 0)
    got = affordable_layer(LAYER, weights, lambda layer, weights: (layer,), Limits(limit, PLENTY))
    assert rows - LAYER.active <= got.rows <= max(rows, LAYER.active)
    assert [size > 0 for size in got.sizes] == [size > 0 for size in LAYER.sizes]
    assert [(layer.experts, layer.rows) for layer in runs] == [(2, 32), (2, 4)][: 1 if limit > 10 else 2]


@pytest.mark.parametrize("share", [0.1, 0.5, 2.0])
def test_memory_is_within_the_limit(weights, share):
    needed = programs.temp_bytes(programs.compiled(*outer_sums(LAYER, weights)))
    limit = int(share * needed)
    got = affordable_layer(LAYER, weights, outer_sums, Limits(1000.0, limit))
    assert programs.temp_bytes(programs.compiled(*outer_sums(got, weights))) <= limit
    assert got.rows == LAYER.rows if share > 1 else 0.5 * share * LAYER.rows < got.rows < LAYER.rows


def test_every_active_expert_keeps_a_row(weights):
    assert affordable_layer(LAYER, weights, outer_sums, Limits(1000.0, 1)).sizes == (0, 1, 1, 0, 1, 0, 1, 0)


def test_nothing_has_no_error():
    assert Checks().add("nothing", []) == 0
    assert Checks().add("something", [("a", 0.25), ("b", 0.5), ("c", 0.125)]) == 0.5
