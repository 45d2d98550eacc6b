"""What every module of the package asks in a run with faults: which of them the environment's MUTANT chooses."""

import os

CHOSEN = int(os.environ.get("MUTANT", "0"))
reached: set[int] = set()


def chosen(n: int) -> bool:
    reached.add(n)
    return n == CHOSEN
