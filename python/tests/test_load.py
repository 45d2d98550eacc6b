import concurrent.futures
import multiprocessing
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest
import raggemm
from arrays import integers
from front_end_programs import expected, with_gradients

pytestmark = pytest.mark.slow

SOAKING = "RAGGEMM_SOAK" in os.environ
CALLS = 20_000 if SOAKING else 4_000
# (rows, k, n, group sizes) of the calls: from a single tile to many tiles per thread.
SHAPES = [
    (5, 7, 3, (2, 0, 3)),
    (64, 40, 48, (1, 30, 12)),
    (200, 96, 160, (100, 99, 1)),
    (600, 256, 128, (0, 590, 10)),
]


forward_and_backward = jax.jit(with_gradients(raggemm.gmm))


def cases():
    """Returns (operands on a device, (expected result, dx, dw)) for each device and each of SHAPES."""
    made = []
    for device in jax.devices():
        for rows, k, n, sizes in SHAPES:
            arrays = integers(0, rows, k), integers(1, len(sizes), k, n), np.array(sizes, np.int32)
            made.append((jax.device_put(arrays, device), expected(*arrays)))
    return made


def resident_mib():
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 2**20


def resident_while_calling():
    """Makes CALLS calls from eight threads. Returns the resident MiB after each of ten batches."""
    made = cases()

    def call(i):
        operands, want = made[i * 7 % len(made)]
        got = forward_and_backward(*operands)
        return all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))

    resident = []
    with concurrent.futures.ThreadPoolExecutor(8) as callers:
        for tenth in range(10):
            assert all(callers.map(call, range(tenth, tenth + CALLS // 10)))
            resident.append(resident_mib())
    return resident


def test_calls_on_all_devices_at_once(capsys):
    # Uses a new process, because the freed memory of other tests (2.8 GiB) hides a leak.
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
        resident = fresh.submit(resident_while_calling).result(timeout=600)
    with capsys.disabled():
        print(f"\n{CALLS} times three calls from 8 threads on 4 devices, resident MiB: {[round(r) for r in resident]}")
    # If results were never freed, the second half of the calls would take 870 MiB.
    assert resident[-1] < max(resident[:5]) + 32


FORKING = """
import os, signal, sys
import jax, jax.numpy as jnp, numpy as np
import raggemm
x, w, sizes = jnp.ones((64, 32)), jnp.ones((3, 32, 256)), jnp.array([40, 0, 24])
call = jax.jit(raggemm.gmm)
call(x, w, sizes).block_until_ready()
child = os.fork()
if child == 0:
    signal.alarm(20)
    os._exit(0 if (np.asarray(call(x, w, sizes)) == 32).all() else 3)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert (np.asarray(call(x, w, sizes)) == 32).all()
sys.exit(status)
"""


def test_a_forked_child_can_call():
    """A compiled call must not need JAX' threads, which the child lacks."""
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKING], timeout=120, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
