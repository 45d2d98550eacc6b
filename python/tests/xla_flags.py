"""XLA's flags for the tests, of those that the installed jaxlib knows: others end the process without an exception."""

import functools
import importlib.metadata
import os
import subprocess
import sys

EMITTERS = "xla_cpu_use_fusion_emitters"


@functools.cache
def knows(flag: str) -> bool:
    """Of a flag that takes true; a process of its own tries it, which takes a tenth of a second."""
    program = "from jaxlib import xla_client; xla_client.make_cpu_client()"
    environment = os.environ | {"XLA_FLAGS": f"--{flag}=true"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    if done.returncode and "Unknown flag" not in done.stderr:
        raise RuntimeError(f"jaxlib does not start, which has nothing to do with --{flag}:\n{done.stderr}")
    return done.returncode == 0


def of_tests() -> list[str]:
    """XLA's own kernels are compiled without optimization: all tests take 239 s instead of 285. And without the
    emitters, whose passes of MLIR are more than half of each compilation, whatever it is of, where jaxlib can do
    without; jaxlib 0.8.1 rounds to float8 wrongly without them.
    """
    flags = [
        "--xla_force_host_platform_device_count=4",
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
        "--xla_cpu_parallel_codegen_split_count=1",
    ]
    if knows(EMITTERS):
        needed = importlib.metadata.version("jaxlib").startswith(("0.8.", "0.9."))
        flags.append(f"--{EMITTERS}={str(needed).lower()}")
    return flags
