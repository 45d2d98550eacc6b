"""Seeded operands of tests."""

import numpy as np


def random(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def integers(seed, *shape):
    """So small that every sum of a few products is exact, in bfloat16 too."""
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float32)
