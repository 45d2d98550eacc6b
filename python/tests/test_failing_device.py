"""A call that fails on one of several devices, while the others wait for it in a collective."""

import re
import subprocess
import sys
import threading

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import contextlib, os, sys
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
import jax, numpy as np, raggemm
from jax.sharding import AxisType, PartitionSpec

def shard(x, w, sizes):
    out = raggemm.gmm(x, w, sizes[0])
    return out, jax.lax.psum(out.sum(), "d")

mesh, spec = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,)), PartitionSpec("d")
specs = {"in_specs": (spec, PartitionSpec(), spec), "out_specs": (spec, PartitionSpec())}
sizes = np.array([[3, 5], [4, 4], [1, 9], [8, 0]], np.int32)  # of 8 rows each
with raggemm.options(on_error="nan") if "nan" in sys.argv else contextlib.nullcontext():
    call = jax.jit(jax.shard_map(shard, mesh=mesh, **specs))
    out, total = call(np.ones((32, 16), np.float32), np.ones((2, 16, 4), np.float32), sizes)
print([bool(np.isnan(part).all()) for part in np.split(np.asarray(out), 4)], bool(np.isnan(total)))
print([float(part.max()) for part in np.split(np.asarray(out), 4)])
"""
MESSAGE = re.compile(r"^raggemm: .*group 1 has size 9", re.MULTILINE)


def test_with_nan_the_program_goes_on():
    done = subprocess.run([sys.executable, "-c", PROGRAM, "nan"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[False, False, True, False] True", "[16.0, 16.0, nan, 16.0]"]
    assert len(MESSAGE.findall(done.stderr)) == 1


@pytest.mark.parametrize("seconds", [60])
def test_by_default_the_message_is_there_before_xla_ends_the_process(seconds):
    """XLA of jaxlib 0.10.2 ends it 60 seconds after the failure, and warns after 20."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stderr=subprocess.PIPE, text=True) as process:
        watchdog = threading.Timer(seconds, process.kill)
        watchdog.start()
        try:
            before = []
            for line in process.stderr:
                if MESSAGE.match(line):
                    break
                before.append(line)
            else:
                pytest.fail("no message of raggemm:\n" + "".join(before))
            assert process.poll() is None
            assert not re.search("rendezvous|stuck|waiting", "".join(before), re.IGNORECASE)
        finally:
            watchdog.cancel()
            process.kill()
