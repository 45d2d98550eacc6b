"""`python -m raggemm.override PROGRAM ARGUMENTS`: runs an unchanged program with the override on.

PROGRAM is a file, or `-m MODULE`. The command imports jax before it runs PROGRAM, so set variables such as
JAX_PLATFORMS outside of PROGRAM. Processes that PROGRAM starts do not have the override.
"""

import os
import runpy
import sys

from raggemm._src.override import enable_ragged_dot_override

__all__ = ["main"]

_USAGE = "usage: python -m raggemm.override (PROGRAM | -m MODULE) [ARGUMENTS]"


def main(arguments: list[str]) -> None:
    """Runs a program with the override. Prints the usage and exits with status 2 if `arguments` names no program."""
    is_module = arguments[:1] == ["-m"]
    given = arguments[is_module:]
    if not given or given[0].startswith("-"):
        print(_USAGE, file=sys.stderr)
        raise SystemExit(2)
    enable_ragged_dot_override()
    sys.argv = given
    if is_module:
        runpy.run_module(given[0], run_name="__main__", alter_sys=True)
    else:
        # `python -m` has set sys.path[0] to the working directory, but a script expects its own folder there.
        sys.path[0] = os.path.dirname(os.path.abspath(given[0]))
        runpy.run_path(given[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
