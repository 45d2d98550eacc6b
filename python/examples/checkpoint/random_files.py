"""Random weights, for machines without a checkpoint: the shapes of models that people know are in shapes.json."""

import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from checkpoint.files import DTYPES, aligned

SHAPES: dict[str, dict[str, Any]] = json.loads(pathlib.Path(__file__).with_name("shapes.json").read_text())


class RandomFiles:
    """Random numbers for whatever is asked for. made: what was given, by its name, where it is kept."""

    def __init__(self, dtype: str = "BF16", seed: int = 0, keep: bool = False):
        self._dtype, self._random, self._keep = dtype, np.random.default_rng(seed), keep
        self.made: dict[str, np.ndarray] = {}

    def __contains__(self, name: str) -> bool:
        return not name.endswith("g_idx")

    def _values(self, name: str, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """Few of them, over and over, where there are many: to draw them all takes minutes."""
        count, is_scale = math.prod(shape), name.endswith(("scales", "scale_inv"))
        few = min(count, 1 << 20)
        if np.issubdtype(dtype, np.integer):  # scales of MXFP4 near 2^-4, or elements of 4 bits
            info = np.iinfo(dtype)
            drawn = self._random.integers(*((121, 125) if is_scale else (info.min, info.max + 1)), few, dtype)
        else:
            spread = 0.1 if len(shape) == 1 else shape[-1] ** -0.5
            drawn = self._random.normal(size=few) * (0.1 * spread if is_scale else spread) + ("norm" in name)
        return np.resize(drawn.astype(dtype), shape)

    def read(self, names: Sequence[str], shape: Sequence[int], dtypes: Sequence[str]) -> np.ndarray:
        dtype = np.dtype(DTYPES[self._dtype if self._dtype in dtypes else dtypes[0]])
        out = aligned((len(names), *shape), dtype)
        for i, name in enumerate(names):
            out[i] = self._values(name, shape, dtype) if self._keep or i == 0 else out[0]
            if self._keep:
                self.made[name] = out[i]
        return out
