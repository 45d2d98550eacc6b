"""Chooses XLA flags for tests. Omits flags that jaxlib does not know, which abort the process."""

import functools
import importlib.metadata
import os
import subprocess
import sys

EMITTERS = "xla_cpu_use_fusion_emitters"


@functools.cache
def knows(flag: str) -> bool:
    """Returns true if jaxlib knows the flag. Tries the flag in another process, in a tenth of a second."""
    program = "from jaxlib import xla_client; xla_client.make_cpu_client()"
    environment = os.environ | {"XLA_FLAGS": f"--{flag}=true"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    if done.returncode and "Unknown flag" not in done.stderr:
        raise RuntimeError(f"jaxlib does not start, for another reason than --{flag}:\n{done.stderr}")
    return done.returncode == 0


def flags_for_tests() -> list[str]:
    """Returns flags for four devices and for short compilation times. XLA does not compile the kernels of raggemm.

    - Optimization level 0, and one LLVM module per program. Compiling products and derivatives takes a quarter less
      CPU time: 0.37 instead of 0.48 s for twelve programs (Zen 5). Tests that compare bits compile all programs with
      these flags.
    - No fusion emitters: their MLIR passes take more than half of a compilation. jaxlib 0.8 and 0.9 keep them, because
      these versions round to float8 incorrectly without them.
    """
    flags = ["--xla_force_host_platform_device_count=4", "--xla_backend_optimization_level=0"]
    flags.append("--xla_cpu_parallel_codegen_split_count=1")
    if knows(EMITTERS):
        needed = importlib.metadata.version("jaxlib").startswith(("0.8.", "0.9."))
        flags.append(f"--{EMITTERS}={str(needed).lower()}")
    return flags
