"""Random weights, for use without a checkpoint."""

import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from checkpoint.files import DTYPES, aligned

SHAPES: dict[str, dict[str, Any]] = json.loads(pathlib.Path(__file__).with_name("shapes.json").read_text())


class RandomFiles:
    """A source of random tensors with the interface `Files` of weights.py.

    If `keep` is True, `made` has all tensors by name. If `keep` is False, all tensors of one read() are equal.
    """

    def __init__(self, dtype: str = "BF16", seed: int = 0, keep: bool = False):
        self._dtype, self._random, self._keep = dtype, np.random.default_rng(seed), keep
        self.made: dict[str, np.ndarray] = {}

    def __contains__(self, name: str) -> bool:
        return not name.endswith(("g_idx", "gate_up_proj"))

    def _values(self, name: str, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """Returns a random tensor. It repeats at most 2^20 numbers, because drawing a whole model takes minutes."""
        count, is_scale = math.prod(shape), name.endswith(("scales", "scale_inv", "scale"))
        drawn_count = min(count, 1 << 20)
        # Integer scales are the exponents of MXFP4 scales, 2^-6 to 2^-3. Other integers are packed 4-bit elements.
        if np.issubdtype(dtype, np.integer):
            info = np.iinfo(dtype)
            drawn = self._random.integers(*((121, 125) if is_scale else (info.min, info.max + 1)), drawn_count, dtype)
        else:
            deviation = 0.1 if len(shape) == 1 else shape[-1] ** -0.5
            drawn = self._random.normal(size=drawn_count) * (0.1 * deviation if is_scale else deviation) + (
                "norm" in name
            )
        return np.resize(drawn.astype(dtype), shape)

    def read(self, names: Sequence[str], shape: Sequence[int], dtypes: Sequence[str]) -> np.ndarray:
        dtype = np.dtype(DTYPES[self._dtype if self._dtype in dtypes else dtypes[0]])
        out = aligned((len(names), *shape), dtype)
        for i, name in enumerate(names):
            out[i] = self._values(name, shape, dtype) if self._keep or i == 0 else out[0]
            if self._keep:
                self.made[name] = out[i]
        return out
