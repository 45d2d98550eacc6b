"""Quantized weights of the demo."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from raggemm import QuantizedTensor, quantize


@dataclasses.dataclass(frozen=True)
class Format:
    dtype: Any
    scale_dtype: Any = jnp.float32
    # Steps of k that share a scale, or their greatest common divisor with K. None: all steps share a scale.
    block: int | None = None

    def quantized(self, weights: jax.Array) -> QuantizedTensor:
        """Quantizes weights [experts,K,N]."""
        shared: dict[str, Any] = {"axes": (1,)}
        if self.block:
            shared = {"axes": (), "block": (1, math.gcd(weights.shape[1], self.block))}
        return quantize(weights, self.dtype, scale_dtype=self.scale_dtype, **shared)


FORMATS = {
    "int8": Format(jnp.int8),
    "fp8": Format(jnp.float8_e4m3fn),
    "int4": Format(jnp.int4, jnp.bfloat16, 128),
    "mxfp4": Format(jnp.float4_e2m1fn, jnp.float8_e8m0fnu, 32),
}


class Dequantized:
    """Wraps a QuantizedTensor [experts,K,N]. Reading item g dequantizes the matrix of expert g to float64."""

    def __init__(self, tensor: QuantizedTensor):
        self._data, self._scale = np.asarray(tensor.data), np.asarray(tensor.scale)

    @functools.cached_property
    def scalings(self) -> float:
        """Returns how many roundings scales add to a sum: 0 for powers of two, else 5 plus the blocks along K."""
        return 0 if self._scale.dtype == jnp.float8_e8m0fnu else 5 + self._scale.shape[1]

    def __getitem__(self, expert: int) -> np.ndarray:
        data, scale = (x[expert].astype(np.float64) for x in (self._data, self._scale))
        return data * scale.repeat(data.shape[0] // scale.shape[0], axis=0)
