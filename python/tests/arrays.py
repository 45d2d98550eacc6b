"""Seeded operands of tests."""

import numpy as np
import pytest


def random(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def integers(seed, *shape):
    """So small that every sum of a few products is exact, in bfloat16 too."""
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float32)


def sampled(rows, step, unpack=False):
    """Rows as parameters of a test, one parameter each unless unpacked. The short run has each step-th of them."""
    slow = [pytest.param(*(row if unpack else (row,)), marks=pytest.mark.slow) for row in rows]
    return [row if i % step == 0 else slow[i] for i, row in enumerate(rows)]
