"""Makes random operands, and selects the parameters of tests."""

import numpy as np
import pytest


def random(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def integers(seed, *shape):
    """Returns random integers from -2 to 2 in float32. Sums of a few products are exact even in bfloat16."""
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float32)


def sampled(rows, step, unpack=False):
    """Returns all rows as test parameters. `./dev test` runs only rows[::step].

    unpack: True if each row is a tuple of several parameters.
    """
    slow = [pytest.param(*(row if unpack else (row,)), marks=pytest.mark.slow) for row in rows]
    return [row if i % step == 0 else slow[i] for i, row in enumerate(rows)]
