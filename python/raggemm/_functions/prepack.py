"""Weights in blocks of columns, as a value: made once, transposed ones too, and used in any number of calls."""

import functools
from typing import Any

import jax
import numpy as np
from jax import lax

from raggemm._functions.containers import as_bits
from raggemm._functions.tensors import (
    PACKED_VERSION,
    PackedWeights,
    QuantizedTensor,
    checked_packed,
    flag,
    quantized_parts,
)
from raggemm._primitive.call import FLOATS
from raggemm._primitive.column_blocks import from_blocks, to_blocks

# Columns of a block, the widest first: the strip of a sweep is up to 256 columns of floats, and up to 128 of quantized
# elements. A wider one is taken where it is padded by at most this share.
_WIDTHS, _LEAST_WIDTH, _LEAST_QUANTIZED_WIDTH = (256, 128, 64), 64, 128
_PADDING = 1 / 16


def _width(columns: int, dtype: np.dtype) -> int:
    least = _LEAST_WIDTH if dtype in FLOATS else _LEAST_QUANTIZED_WIDTH
    fits = (x for x in _WIDTHS if x >= least and -columns % x <= _PADDING * columns)
    return next(fits, least) if columns else least


@functools.partial(jax.jit, static_argnames=("width", "transpose"))
def _packed(data: jax.Array, width: int, transpose: bool) -> jax.Array:
    bits = as_bits(data)
    blocks = to_blocks(bits.swapaxes(1, 2) if transpose else bits, width)
    return blocks if bits.dtype == data.dtype else lax.bitcast_convert_type(blocks, data.dtype)


@functools.partial(jax.jit, static_argnames=("columns", "transpose"))
def _unpacked(data: jax.Array, columns: int, transpose: bool) -> jax.Array:
    bits = from_blocks(as_bits(data), columns)
    bits = bits.swapaxes(1, 2) if transpose else bits
    return bits if bits.dtype == data.dtype else lax.bitcast_convert_type(bits, data.dtype)


def _swapped(factor: jax.Array | None, transpose: bool) -> jax.Array | None:
    return factor.swapaxes(1, 2) if transpose and factor is not None and factor.ndim == 3 else factor


def prepack(w: Any, *, transpose: bool = False) -> PackedWeights:
    """The weights of G groups in the layout of PackedWeights.

    Args:
      w: [G,K,N], an array of float16, bfloat16, float32 or float64, or a QuantizedTensor, whose data is packed, and
        whose scale and zero_point stay as they are, but that they are transposed with it.
      transpose: w is stored [G,N,K]. Where it is used it is [G,K,N] all the same.

    Returns:
      PackedWeights of shape [G,K,N]. TypeError for another dtype, ValueError for another shape.

    It copies the weights, under jit too: pack them once, and donate w where nothing else needs it. It has derivatives,
    as a linear function of an array.
    """
    data, factors = quantized_parts("w", w, FLOATS)
    transpose = flag("transpose", transpose)
    if data.ndim != 3:
        raise ValueError(f"w: shape is {data.shape}, must be [G,{'N,K' if transpose else 'K,N'}]")
    columns = data.shape[1 if transpose else 2]
    return PackedWeights(
        _packed(data, _width(columns, data.dtype), transpose),
        None if factors is None else _swapped(factors.scale, transpose),
        None if factors is None else _swapped(factors.zero, transpose),
        columns=columns,
        transposed=transpose,
        quantized=factors is not None,
        version=PACKED_VERSION,
    )


def unprepack(packed: PackedWeights) -> Any:
    """What prepack was given, with the same bits: an array, or a QuantizedTensor. ValueError as for each use of packed
    weights, where they are of another version or their arrays are not what prepack makes."""
    packed = checked_packed("packed", packed)
    data = _unpacked(packed.data, packed.columns, packed.transposed)
    if not packed.quantized:
        return data
    return QuantizedTensor(
        data, _swapped(packed.scale, packed.transposed), _swapped(packed.zero_point, packed.transposed)
    )
