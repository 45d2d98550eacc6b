"""raggemm through JAX: sort_by_expert and moe_mlp in one jitted function, with the weights as arguments.

Weights are prepacked for rounded rows, and stay as JAX stores them for exact rows.
"""

import functools
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import raggemm
from layer import MATRICES, Call, Layer, Quantized

# Each call is waited for, so it runs in the calling thread. JAX would use another thread because of the sort.
jax.config.update("jax_cpu_enable_async_dispatch", False)

DTYPES = {"int4-32": ml_dtypes.int4, "mxfp4": ml_dtypes.float4_e2m1fn, "int8": np.int8, "int8-32": np.int8}
ROUNDING: dict[str, dict[str, Any]] = {
    "exact": {},
    "32": {"lhs_quantize": jnp.int8, "lhs_block": 32},
    "row": {"lhs_quantize": jnp.int8, "lhs_block": None},
}


def _tensor(q: Quantized, form: str) -> raggemm.QuantizedTensor:
    """Returns the matrices [experts,K,N] of `q`, which has [experts,N,K]."""
    codes, scale = (np.ascontiguousarray(part.transpose(0, 2, 1)) for part in q)
    codes = codes.view(np.uint8).view(DTYPES[form]) if form == "mxfp4" else codes.astype(DTYPES[form])
    return raggemm.QuantizedTensor(
        jnp.array(codes), jnp.array(scale.view(ml_dtypes.float8_e8m0fnu) if scale.dtype == np.uint8 else scale)
    )


@functools.partial(jax.jit, static_argnames="rows")
def _mlp(x: Any, experts: Any, shares: Any, weights: dict[str, Any], *, rows: str) -> Any:
    order = raggemm.sort_by_expert(experts, weights["up"].shape[0])
    routed = (order.row_tokens, shares.reshape(-1)[order.order], order.group_sizes)
    matrices = {f"w_{name}": w for name, w in weights.items()}
    return raggemm.moe_mlp(x, *routed, **matrices, **ROUNDING[rows])


class Raggemm:
    def __init__(self, layer: Layer):
        self._copies: list[dict[str, Any]] = [{} for _ in range(layer.copies)]
        for name in MATRICES:
            q = layer.matrices(name)
            for copy in self._copies:
                copy[name] = _tensor(q, layer.form)
        jax.block_until_ready(self._copies)
        self._packed = False
        self.about = f"raggemm {raggemm.version()}, jax {jax.__version__}"

    def _weights(self, rows: str, copy: int) -> dict[str, Any]:
        """Returns a copy of the weights, packed for these rows. The first call for other rows converts all copies.

        One matrix after the other is replaced, because memory has no room for both forms.
        """
        if self._packed != bool(ROUNDING[rows]):
            self._packed = not self._packed
            convert = functools.partial(raggemm.prepack, lhs_quantize=jnp.int8) if self._packed else raggemm.unprepack
            for weights in self._copies:
                for name in weights:
                    weights[name] = jax.block_until_ready(convert(weights[name]))
        return self._copies[copy]

    def prepare(self, rows: str, x: np.ndarray, call: Call) -> Callable[[], Any]:
        arguments = (x.view(ml_dtypes.bfloat16), call.experts, call.shares)
        arrays = jax.block_until_ready([jnp.array(a) for a in arguments])
        self._weights(rows, call.copy)
        return lambda: _mlp(*arrays, self._weights(rows, call.copy), rows=rows).block_until_ready()

    def to_numpy(self, out: Any) -> np.ndarray:
        return np.asarray(out, np.float32)


def make(system: str, peers: pathlib.Path, layer: Layer) -> Raggemm:
    return Raggemm(layer)
