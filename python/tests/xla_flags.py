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
    """Returns flags that make XLA compile its own kernels cheaply. Those of raggemm are compiled already.

    - Optimization level 0, and one LLVM module per program, which takes a quarter off the compilation of products and
      their derivatives (0.48 s of CPU become 0.37 for twelve programs, Zen 5). Programs that are compared bit by bit
      are all compiled with these flags.
    - No emitters: their MLIR passes are more than half of each compilation. jaxlib 0.8 and 0.9 need them, since they
      round to float8 wrongly without them.
    """
    flags = ["--xla_force_host_platform_device_count=4", "--xla_backend_optimization_level=0"]
    flags.append("--xla_cpu_parallel_codegen_split_count=1")
    if knows(EMITTERS):
        needed = importlib.metadata.version("jaxlib").startswith(("0.8.", "0.9."))
        flags.append(f"--{EMITTERS}={str(needed).lower()}")
    return flags
