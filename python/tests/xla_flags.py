"""Which of XLA's flags the installed jaxlib knows. One that it does not know ends the process without an exception."""

import functools
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
